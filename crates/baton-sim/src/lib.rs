//! The cores of Baton on a simulated cluster: a router, engines, clients, and everything that can go wrong between them, in virtual
//! time and from one seed.
//!
//! It is a driver like the server and the router, and has no rules of its own. What it adds is judgement: every client must get
//! exactly the words that an undisturbed engine would say, or one clean error; no byte may land where its owner does not await it;
//! and when the faults stop, nothing may be left of anything.

mod arrivals;
mod ask;
mod chaos;
mod check;
mod client;
mod conversation;
mod depth;
mod draw;
mod edge;
mod fabric;
mod fault;
mod front;
mod ledger;
mod leg_book;
mod log;
mod many;
mod node;
mod queue;
mod random;
mod recording;
mod replay;
mod retention_book;
mod run;
mod scenario;
mod shrink;
mod split;
mod stranger;
mod tally;
mod theme;
mod turn;
mod wires;
mod words;
mod workload;
mod world;

pub use ask::{After, Ask, Conversation, Reference};
pub use fault::{Fault, FaultRate, FaultRates};
pub use many::many;
#[cfg(feature = "mutants")]
pub use many::{Hunted, hunt};
pub use replay::{Replay, Replayed, replay};
pub use run::{Failed, Outcome, SimConfig, run, try_run, try_scenario};
pub use scenario::{Clock, EngineSpec, Network, ProtoTiming, RetainSpec, Scenario};
pub use shrink::shrink;
pub use tally::Tally;
