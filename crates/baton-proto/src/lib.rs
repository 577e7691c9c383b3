//! Who may touch which KV blocks, when, between two engines. No I/O, no clock, no threads.
//!
//! In every strategy one side is passive (its blocks are read or written by the other) and one is active. The passive side offers
//! blocks under a lease; the active side claims, moves, and says done. docs/protocol.md tells it in full.

pub mod action;
pub mod config;
pub mod message;

pub use action::{ConnId, Direction, Event, Failure, Input, Output, PeerAddress, PostId, Release};
pub use config::{Config, Limits};
pub use message::{Compat, Message};
