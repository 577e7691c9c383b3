//! Why there can be no traces.

use std::io;
use std::path::PathBuf;

/// For the operator to read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("cannot write the trace {}: {error}", path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("the trace {} is complete; name another file", .0.display())]
    Closed(PathBuf),
    #[error("spans cannot be sent to {endpoint}: {why}")]
    Collector { endpoint: String, why: String },
    #[error("no thread for traces: {0}")]
    Thread(io::Error),
    #[error("no randomness from the operating system: {0}")]
    Randomness(String),
}
