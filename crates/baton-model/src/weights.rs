//! Checkpoints on disk: containers (safetensors, GGUF), and the tensors they hold.

pub mod dtype;
pub mod gguf;

pub use dtype::Dtype;
pub use gguf::{Gguf, GgufError};
