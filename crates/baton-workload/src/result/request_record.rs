//! What became of one request: a line of `requests.jsonl`.

use serde::{Deserialize, Serialize};

/// All instants are milliseconds since the point began (its first request was scheduled for 0 or later). Latency is counted
/// from `scheduled_ms`, never from `sent_ms`: a client that falls behind must not flatter the server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestRecord {
    /// Index of its point in the result.
    pub point: u32,
    /// Index of the request in its point's workload. Points of the same load and round have the same requests.
    pub index: u64,
    /// What the client sent as x-request-id.
    pub id: String,
    /// The id of the answer, as the server gave it.
    pub answer_id: Option<String>,
    pub conversation: Option<String>,
    /// Turn in its conversation, from 0.
    pub turn: u32,
    /// When it should have been sent. In a closed loop, and for the turns behind a conversation's first, this is when the
    /// answer before it was there and the think time over.
    pub scheduled_ms: f64,
    /// When the client began to send it.
    pub sent_ms: Option<f64>,
    /// First byte of the response's body.
    pub first_byte_ms: Option<f64>,
    /// One for each chunk that carried tokens.
    pub token_ms: Vec<f64>,
    /// When the answer had ended, whatever its ending.
    pub done_ms: Option<f64>,
    /// As the server counted, or else the workload.
    pub prompt_tokens: Option<u32>,
    /// As the server counted, or else the chunks.
    pub output_tokens: Option<u32>,
    /// Tokens of the prompt that nobody computed, as the server says.
    pub cached_tokens: Option<u32>,
    /// What the workload has; none where words were sent whose tokens nobody counted.
    pub wanted_prompt_tokens: Option<u32>,
    /// What was asked for; none where the model was to end by itself.
    pub wanted_output_tokens: Option<u32>,
    pub ending: Ending,
    /// As the server named it.
    pub finish_reason: Option<String>,
    /// HTTP status, if there was one.
    pub status: Option<u16>,
    /// What went wrong, cut to 300 characters.
    pub error: Option<String>,
}

/// How a request ended, as its client saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The whole answer, with its finish reason.
    Complete,
    /// A whole answer that is shorter than `ignore_eos` should have made it.
    Early,
    /// A status other than 2xx.
    Refused,
    /// Status 200, and an error in the stream or a finish reason that says so.
    ErrorInStream,
    /// The stream ended without a finish reason, or the connection broke.
    Cut,
    /// What came is no such stream.
    Malformed,
    /// No connection.
    Unreachable,
    /// Longer than the limit for one request.
    TimedOut,
    /// Still running, or never sent, when the measurement ended.
    #[default]
    Unfinished,
}

impl Ending {
    /// Whether its latency is one of an answer: others are counted, and not in any latency.
    pub const fn is_answer(self) -> bool {
        matches!(self, Self::Complete | Self::Early)
    }
}

impl RequestRecord {
    /// Time to the first token.
    pub fn ttft_ms(&self) -> Option<f64> {
        self.token_ms.first().map(|first| first - self.scheduled_ms)
    }

    /// Mean time per output token behind the first; none for an answer of fewer than two.
    pub fn tpot_ms(&self) -> Option<f64> {
        let (first, last) = (self.token_ms.first()?, self.token_ms.last()?);
        let tokens = self.output_tokens.unwrap_or(self.token_ms.len() as u32);
        (tokens > 1 && self.token_ms.len() > 1).then(|| (last - first) / f64::from(tokens - 1))
    }

    /// Times between two chunks that carried tokens.
    pub fn itl_ms(&self) -> impl Iterator<Item = f64> + '_ {
        self.token_ms.windows(2).map(|pair| pair[1] - pair[0])
    }

    /// To the last token.
    pub fn e2e_ms(&self) -> Option<f64> {
        self.token_ms.last().map(|last| last - self.scheduled_ms)
    }

    /// How late the client was.
    pub fn lag_ms(&self) -> Option<f64> {
        self.sent_ms.map(|sent| sent - self.scheduled_ms)
    }
}
