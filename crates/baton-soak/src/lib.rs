//! Real processes under faults: a cluster of `baton serve` and `baton route`, load whose right answers are known, and everything that
//! can be seen of a process from outside. `cargo x soak` runs it for long; the system tests of the binary use its parts.

pub mod client;
pub mod cluster;
pub mod faults;
pub mod load;
pub mod network;
pub mod prompts;
pub mod report;
pub mod round;
pub mod vitals;

pub use client::{Ask, Got};
pub use cluster::{Cluster, ENGINES, Member, Recipe};
