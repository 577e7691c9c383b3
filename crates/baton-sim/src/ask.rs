//! One request of a scenario, and what it has to do with others.

use baton_types::TokenId;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ask {
    /// What other requests of the scenario call it.
    pub number: u64,
    /// It arrives then at the earliest.
    pub at_us: u64,
    /// It follows another one, if that is part of the scenario.
    pub after: Option<After>,
    pub prompt: Vec<TokenId>,
    pub tenant: String,
    /// The client's own salt.
    pub salt: String,
    pub conversation: Conversation,
    pub reference: Reference,
    pub max_tokens: u32,
    pub min_tokens: u32,
    pub stop_tokens: Vec<TokenId>,
    /// A stop string ends after so many tokens of the answer: only the HTTP edge can see that.
    pub stop_after: Option<usize>,
    pub streaming: bool,
    /// None: greedy.
    pub sample_seed: Option<u64>,
}

/// A client thinks for a while once that request is over, however it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct After {
    pub number: u64,
    pub think_us: u64,
}

/// How a router can tell to which conversation a request belongs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Conversation {
    /// It cannot.
    Untold,
    /// The client gives it a name.
    Named(String),
    /// By its messages, which end at these places of the prompt.
    Messages(Vec<usize>),
}

/// What the prefill leg says about KV that an engine may retain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reference {
    /// What the router found.
    Found,
    /// Somebody has put there what was retained of that request, whoever's it is.
    Of(u64),
    /// The same, and it is said to be of any length.
    Overstated(u64),
    /// As `Of`, but for the id, which nobody has ever given out.
    ForgedFrom(u64),
}
