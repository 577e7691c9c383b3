//! Which engine gets which leg of which request: a core without sockets, clock, threads or JSON (I12).
//!
//! The driver turns HTTP into [`Input`]s, does what [`Output`]s say, and decides nothing. See [`router_core`] for what
//! happens when a leg ends, [`retry`] for what a fault means, [`plan`] for the strategies, [`conversation`] for what outlives
//! a request.

mod attempt;
mod check;
pub mod config;
pub mod conversation;
pub mod engine_table;
pub mod event;
pub mod health;
pub mod leg;
pub mod plan;
pub mod policy;
pub mod request;
pub mod retry;
mod reuse;
pub mod router_core;
mod select;

pub use config::{ConversationLimits, Limits, RoutingConfig};
pub use conversation::{ConversationCounts, ConversationKey, Dropped, Turn};
pub use engine_table::EngineKey;
pub use event::{Failure, Input, LegStart, Output, Peer, Reason, RequestEnd, Retained, Reuse};
pub use leg::{LegFault, LegId};
pub use plan::Strategy;
pub use policy::PolicyKind;
pub use request::RequestId;
pub use router_core::RouterCore;
