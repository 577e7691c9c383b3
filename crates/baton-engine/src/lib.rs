//! The core of one engine: scheduler, block manager and sequences. No I/O, no clock, no threads.

pub mod action;
pub mod batch;
pub mod config;
pub mod runner;
pub mod stats;

pub use action::{FinishReason, HandOff, Handle, Input, Output, Refusal, Request, SeqFailure, Usage};
pub use batch::{Batch, BatchEntry, StepResult};
pub use config::{Config, ConfigError, OnLostKv};
pub use runner::{ModelRunner, RunnerError};
pub use stats::{BlockCounts, Counters, Stats};
