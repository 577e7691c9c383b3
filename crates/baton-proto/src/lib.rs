//! Who may touch which KV units, when, between two engines. No I/O, no clock, no threads.
//!
//! In every strategy one side is passive (its units are read or written by the other) and one is active. The passive side offers
//! units under a lease; the active side claims, moves, and says done. docs/protocol.md tells it in full.

pub mod action;
mod check;
pub mod codec;
pub mod config;
mod ended;
mod endpoint;
mod farewell;
mod grant;
mod lease;
pub mod message;
pub mod order;
mod peer;
mod reader;
mod registration;
mod retention;
mod timer;
mod transfer;
mod writer;

pub use action::{ConnId, Direction, Ending, Event, Input, Output, PeerAddress, PostId, RankPair};
pub use config::{Config, Limits};
pub use endpoint::{Census, Endpoint};
pub use message::{Compat, Held, Message, Prefilled};
pub use timer::Reason;
