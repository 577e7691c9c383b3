//! What computes tokens: model runners over the paged KV pool, the weights they read, and how the next token is chosen. And
//! what stands between tokens and text: tokenizer, chat template, detokeniser, stop strings; and where models come from.
//! Without the feature `checkpoints` only the emulated runner and what it needs is left.

#[cfg(feature = "checkpoints")]
pub mod chat_template;
#[cfg(feature = "checkpoints")]
pub mod config;
pub mod cost_profile;
#[cfg(feature = "checkpoints")]
pub mod detokenizer;
#[cfg(feature = "checkpoints")]
pub mod fetch;
#[cfg(feature = "checkpoints")]
pub mod kernels;
pub mod kv_memory;
#[cfg(feature = "checkpoints")]
pub mod models;
#[cfg(feature = "checkpoints")]
pub mod runner_cpu;
pub mod runner_emulated;
#[cfg(feature = "checkpoints")]
pub mod sampler;
#[cfg(feature = "checkpoints")]
pub mod stop;
#[cfg(feature = "checkpoints")]
pub mod tokenizer;
#[cfg(feature = "checkpoints")]
pub mod weights;

#[cfg(feature = "checkpoints")]
pub use chat_template::ChatTemplate;
#[cfg(feature = "checkpoints")]
pub use config::ModelConfig;
pub use cost_profile::CostProfile;
#[cfg(feature = "checkpoints")]
pub use detokenizer::Detokenizer;
#[cfg(feature = "checkpoints")]
pub use fetch::{ModelFiles, ModelSource};
#[cfg(feature = "checkpoints")]
pub use kernels::activations::CpuPrecision;
pub use kv_memory::{KvMemory, KvMemoryError};
#[cfg(feature = "checkpoints")]
pub use models::{CpuModel, LoadError};
#[cfg(feature = "checkpoints")]
pub use runner_cpu::{CpuRunner, CpuRunnerError};
pub use runner_emulated::{EmulatedModel, EmulatedRunner, Paced};
#[cfg(feature = "checkpoints")]
pub use stop::StopMatcher;
#[cfg(feature = "checkpoints")]
pub use tokenizer::Tokenizer;
