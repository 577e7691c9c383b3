//! What computes tokens: model runners over the paged KV pool, the weights they read, and how the next token is chosen.

pub mod cost_profile;
pub mod kv_memory;
pub mod runner_emulated;
pub mod weights;

pub use cost_profile::CostProfile;
pub use kv_memory::{KvMemory, KvMemoryError};
pub use runner_emulated::{EmulatedModel, EmulatedRunner, Paced};
