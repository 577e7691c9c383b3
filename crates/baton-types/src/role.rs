//! What an engine does, and what one exchange with it is for.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Which legs an engine is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineRole {
    Prefill,
    Decode,
    Both,
}

impl EngineRole {
    pub const ALL: [Self; 3] = [Self::Prefill, Self::Decode, Self::Both];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Both => "both",
        }
    }
}

impl fmt::Display for EngineRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for EngineRole {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|role| role.as_str() == text)
            .ok_or_else(|| format!("a role is prefill, decode or both, not {text:?}"))
    }
}

/// What one leg of a request asks of its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LegKind {
    /// Compute the prompt's KV and the first token.
    Prefill,
    /// Take over the KV and generate.
    Decode,
    /// Both, on one engine.
    Whole,
}
