//! What a run is told.

use std::path::PathBuf;
use std::time::Duration;

use baton_types::TokenId;
use baton_workload::result::Slo;
use baton_workload::schedule::Limits;
use baton_workload::{Arrivals, Synthetic};
use tokio::sync::watch;

#[derive(Clone, Debug)]
pub struct Options {
    /// Base addresses of engines behind the endpoint: whose metrics are scraped and whose caches are told.
    pub engines: Vec<String>,
    /// None: the first that is served.
    pub model: Option<String>,
    pub api: Api,
    pub source: Source,
    pub load: LoadPlan,
    /// Of a trace's offsets and of think times: 2 is twice as fast.
    pub time_scale: f64,
    pub limits: Limits,
    /// Times that each load is measured, each with prompts of its own.
    pub rounds: u32,
    pub ignore_eos: bool,
    pub temperature: f64,
    /// Requests that are sent and forgotten before each point.
    pub warmup: u64,
    pub seed: u64,
    pub slo: Option<Slo>,
    pub request_timeout: Duration,
    /// How long answers may take behind the end of a duration.
    pub drain: Duration,
    /// Most requests at once; more wait, which counts as the client's lag.
    pub max_streams: usize,
    /// Ids that prompts are made of; none: those of common words, if the endpoint tells them.
    pub token_ids: Option<(TokenId, TokenId)>,
    /// Sent as bearer token.
    pub api_key: Option<String>,
    /// The directory that results go to.
    pub out: PathBuf,
    pub label: Option<String>,
    /// For the conditions, without secrets.
    pub command: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `/v1/completions`, with prompts of token ids.
    Completions,
    /// `/v1/chat/completions`, with messages of words.
    Chat,
}

impl Api {
    pub const fn path(self) -> &'static str {
        match self {
            Self::Completions => "/v1/completions",
            Self::Chat => "/v1/chat/completions",
        }
    }
}

#[derive(Clone, Debug)]
pub enum Source {
    Synthetic(Synthetic),
    Trace {
        path: PathBuf,
        /// Requests with longer prompts are left out.
        max_prompt_tokens: Option<u32>,
        /// Longest answer where the trace says none.
        output_tokens: u32,
        /// Most turns of a conversation.
        turns: Option<u32>,
    },
}

/// How requests come; one point for each level, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum LoadPlan {
    /// Conversations or sessions per second.
    Rates { rates: Vec<f64>, arrivals: Arrivals },
    /// As the trace has them.
    Recorded,
    /// Clients that each wait for their answer.
    Clients(Vec<u32>),
}

/// Becomes true when the user has had enough: what runs is unfinished then, and everything is written all the same.
pub type Stop = watch::Receiver<bool>;

/// Waits for it; for ever, if nobody can say so any more.
pub(crate) async fn said(stop: &mut Stop) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        std::future::pending::<()>().await;
    }
}
