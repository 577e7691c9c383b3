//! What makes figures say less than they seem to.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    pub kind: WarningKind,
    /// A sentence or two, with the figures that it follows from.
    pub text: String,
    /// Index of the point that it is about; none if it is about the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub point: Option<u32>,
}

/// Gravest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WarningKind {
    /// The client could not keep up: latencies and rates are its own.
    ClientLimit,
    /// Requests failed.
    Failures,
    /// Requests were not over when the measurement ended: the slowest are missing.
    Unfinished,
    /// The queue grew for as long as requests came: the figures follow from the duration.
    Saturated,
    /// Prompts were repeated while a prefix cache was on, or may have been.
    RepeatedPrompts,
    /// Answers ended before the length that was asked for.
    EarlyEos,
    /// Prompts or answers had other lengths than the workload wanted.
    OtherLengths,
    /// Too few samples for a p99.
    FewSamples,
    /// One round, or few: the intervals do not hold what differs between rounds.
    FewRounds,
    /// Several tokens came in one chunk: ITL is between chunks.
    CoarseChunks,
    /// The client ran where the servers ran.
    SharedHost,
    /// Figures that were asked for and could not be had.
    MissingFigures,
    #[serde(other)]
    Other,
}
