//! The model families: Llama, Qwen2 and Qwen3, which are one decoder with small differences.

pub mod decoder;
pub mod linear;
pub mod pass;
pub mod weights;
mod workspace;

pub use weights::{CpuModel, LoadError};
