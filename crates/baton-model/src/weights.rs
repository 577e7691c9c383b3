//! Checkpoints on disk: containers (safetensors, GGUF), and the tensors they hold.

pub mod checkpoint;
pub mod dtype;
pub mod gguf;
pub mod safetensors;

pub use checkpoint::{Checkpoint, CheckpointError, Tensor};
pub use dtype::Dtype;
pub use gguf::{Gguf, GgufError};
