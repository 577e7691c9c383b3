//! What a measurement leaves: one JSON document, and a file of one line for each request. `docs/measuring.md` tells what each
//! figure means; these types are its schema.
//!
//! Readers skip members that they do not know. A member that is added keeps [`SCHEMA_VERSION`]; one that is taken away or
//! changes its meaning raises it.

mod comparison;
mod conditions;
mod point;
mod request_record;
mod scrape;
mod summary;
mod warning;

use std::io::{BufRead, Write};

use serde::{Deserialize, Serialize};

pub use comparison::{Comparison, Ratio};
pub use conditions::{CacheState, Client, Conditions, EngineConditions, Host, System};
pub use point::{ClientLoad, Counts, Goodput, Load, Point, Slo, Throughput};
pub use request_record::{Ending, RequestRecord};
pub use scrape::{Gauge, Histogram, Scrape};
pub use summary::{Estimate, Summary};
pub use warning::{Warning, WarningKind};

pub const SCHEMA_VERSION: u32 = 1;

/// The document's name in the directory of a run.
pub const RESULT_FILE: &str = "result.json";
/// The name of the file with one [`RequestRecord`] a line.
pub const REQUESTS_FILE: &str = "requests.jsonl";

/// One run of `baton bench` or `baton bench compare`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    pub schema_version: u32,
    pub conditions: Conditions,
    pub workload: Workload,
    /// What a reader must know before the figures; first the gravest.
    #[serde(default)]
    pub warnings: Vec<Warning>,
    /// In the order in which they were measured.
    pub points: Vec<Point>,
    /// Only of `compare`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub comparisons: Vec<Comparison>,
    /// Name of the file with the requests, beside this document.
    #[serde(default)]
    pub requests_file: Option<String>,
}

/// What was sent, in words and in the figures that tell whether two runs sent the same.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Workload {
    /// `synthetic`, `mooncake`, `weka`, `weka_raw` or `sharegpt`.
    pub kind: String,
    /// One sentence: lengths, arrivals, turns.
    pub description: String,
    /// The trace's file name, without its directories.
    pub trace: Option<String>,
    /// Everything random follows from it: arrivals, lengths, words.
    pub seed: u64,
    /// Whether every answer was to have its whole length, whatever the model said.
    pub ignore_eos: bool,
    /// Requests sent and forgotten before each point.
    pub warmup_requests: u64,
    pub mean_prompt_tokens: Option<f64>,
    pub mean_output_tokens: Option<f64>,
    /// Share of the prompts' blocks that an unlimited prefix cache would find, 0 to 1; null where answers are sent back.
    pub shareable_share: Option<f64>,
}

/// Why a result cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ResultError {
    #[error("this is no result of baton bench: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("the result has schema version {found}; this program reads {SCHEMA_VERSION}")]
    OtherVersion { found: u32 },
    #[error("line {line} is no request: {error}")]
    Record { line: usize, error: serde_json::Error },
    #[error("line {line} cannot be read: {error}")]
    Io { line: usize, error: std::io::Error },
}

impl RunResult {
    /// # Errors
    /// If the text is no result, or one of another version.
    pub fn read(text: &str) -> Result<Self, ResultError> {
        #[derive(Deserialize)]
        struct Versioned {
            schema_version: u32,
        }
        // The version first: a document of another one may lack members.
        let Versioned { schema_version: found } = serde_json::from_str(text)?;
        if found != SCHEMA_VERSION {
            return Err(ResultError::OtherVersion { found });
        }
        Ok(serde_json::from_str(text)?)
    }

    /// # Errors
    /// The writer's.
    pub fn write(&self, mut out: impl Write) -> std::io::Result<()> {
        serde_json::to_writer_pretty(&mut out, self)?;
        out.write_all(b"\n")
    }
}

/// The requests of a run, one by one; a line that is none is an error, and the next call reads on.
pub fn read_requests(lines: impl BufRead) -> impl Iterator<Item = Result<RequestRecord, ResultError>> {
    lines.lines().enumerate().filter_map(|(index, text)| {
        let line = index + 1;
        match text {
            Err(error) => Some(Err(ResultError::Io { line, error })),
            Ok(text) if text.trim().is_empty() => None,
            Ok(text) => {
                Some(serde_json::from_str(&text).map_err(|error| ResultError::Record { line, error }))
            }
        }
    })
}

/// Milliseconds as they are written: no finer than a microsecond.
pub fn round_ms(ms: f64) -> f64 {
    (ms * 1000.0).round() / 1000.0
}
