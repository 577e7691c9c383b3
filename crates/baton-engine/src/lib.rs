//! The core of one engine: scheduler, block manager and sequences. No I/O, no clock, no threads.

pub mod batch;
pub mod runner;

pub use batch::{Batch, BatchEntry, StepResult};
pub use runner::{ModelRunner, RunnerError};
