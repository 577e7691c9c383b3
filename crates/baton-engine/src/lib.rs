//! The core of one engine: scheduler, block manager and sequences. No I/O, no clock, no threads.
//!
//! [`EngineCore`] is all that a driver needs. It also holds the engine's end of the protocol, so that a driver passes what comes from
//! the side channel and the transport to the same place as what comes from clients and the runner.

pub mod action;
pub mod batch;
mod block_manager;
mod block_pool;
mod block_table;
mod budget;
mod check;
pub mod config;
mod engine;
mod engine_core;
mod free_blocks;
mod prefix_cache;
mod readback;
mod retention;
mod room;
pub mod runner;
mod runs;
mod scheduler;
mod sequence;
pub mod stats;
mod transfer_hooks;

pub use action::{
    FinishReason, HandOff, Handle, Input, KvLimit, Output, Reason, Refusal, Request, SeqFailure, Usage,
};
pub use batch::{Batch, BatchEntry, StepResult};
pub use block_pool::BlockState;
pub use config::{Config, ConfigError, OnLostKv};
pub use engine_core::EngineCore;
pub use readback::Reuse;
pub use retention::Retained;
pub use runner::{ModelRunner, RunnerError};
pub use stats::{BlockCounts, Counters, Stats};
