//! `baton bench`: sends a workload to an endpoint and measures the answers.
//!
//! What is sent when, and what the figures are, is `baton-workload`'s. This is the client: it keeps to a schedule that was
//! computed before, and counts latency from the scheduled moment, so that neither a slow server nor a slow client can hide.

mod answer;
mod clock;
mod compare;
mod endpoint;
mod exchange;
mod exposition;
mod histogram;
mod host;
mod meter;
mod options;
mod outcome;
mod pacer;
mod point;
mod progress;
mod request_body;
mod run;
mod scrape;
mod survey;
mod system;
mod talk;

pub use compare::compare;
pub use options::{Api, LoadPlan, Options, Source, Stop};
pub use outcome::Outcome;
pub use run::bench;
pub use system::{Launcher, SystemPlan};
