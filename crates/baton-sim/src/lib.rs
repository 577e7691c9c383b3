//! The cores of Baton on a simulated cluster: a router, engines, clients, and everything that can go wrong between them, in virtual
//! time and from one seed.
//!
//! It is a driver like the server and the router, and has no rules of its own. What it adds is judgement: every client must get
//! exactly the words that an undisturbed engine would say, or one clean error; no byte may land where its owner does not await it;
//! and when the faults stop, nothing may be left of anything.

mod chaos;
mod check;
mod client;
mod edge;
mod fabric;
mod fault;
mod front;
mod log;
mod many;
mod node;
mod queue;
mod random;
mod run;
mod scenario;
mod tally;
mod theme;
mod wires;
mod words;
mod world;

pub use fault::Fault;
#[cfg(feature = "mutants")]
pub use many::hunt;
pub use many::many;
pub use run::{Failed, Outcome, SimConfig, run, try_run};
pub use tally::Tally;
