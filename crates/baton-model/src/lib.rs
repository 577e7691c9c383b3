//! What computes tokens: model runners over the paged KV pool, the weights they read, and how the next token is chosen.

pub mod config;
pub mod cost_profile;
pub mod kernels;
pub mod kv_memory;
pub mod models;
pub mod runner_cpu;
pub mod runner_emulated;
pub mod sampler;
pub mod weights;

pub use config::ModelConfig;
pub use cost_profile::CostProfile;
pub use kernels::activations::CpuPrecision;
pub use kv_memory::{KvMemory, KvMemoryError};
pub use models::{CpuModel, LoadError};
pub use runner_cpu::{CpuRunner, CpuRunnerError};
pub use runner_emulated::{EmulatedModel, EmulatedRunner, Paced};
