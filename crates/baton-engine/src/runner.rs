//! The seam between the scheduler and a model.

use crate::batch::{Batch, StepResult};

/// Computes steps over the KV pool that it was built with. Runs on a thread of its own, one step at a time.
pub trait ModelRunner: Send {
    /// Computes `batch`: writes the KV of every entry's tokens into its blocks and samples where asked. Touches no block
    /// that is not in an entry's table, and writes none but those that hold the entry's own `tokens`.
    ///
    /// The KV and the token of an entry are a function of its sequence's tokens, the bytes of its earlier KV and its
    /// sampling parameters alone: bit for bit the same in every batch and cut into any chunks (I7).
    ///
    /// # Errors
    /// Whatever keeps the model from running; the engine then ends every sequence of the batch with that text.
    fn run(&mut self, batch: &Batch) -> Result<StepResult, RunnerError>;
}

/// A step that could not be computed. The text is for logs, never for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnerError(pub String);

impl std::fmt::Display for RunnerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RunnerError {}
