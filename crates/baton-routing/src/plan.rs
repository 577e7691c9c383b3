//! A strategy as data: which legs a request needs, what each waits for, and which one answers the client.
//!
//! The interpreter in `attempt` runs every plan; nothing else knows how many legs a request has.

use std::fmt;
use std::str::FromStr;

use baton_types::{LegKind, TransferMode};
use serde::{Deserialize, Serialize};

/// How a deployment serves its requests. In files it reads as it prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Strategy {
    /// One engine does the whole request.
    None,
    /// Decode reads the KV after prefill has finished.
    Pull,
    /// Decode reads the KV while prefill computes it.
    EarlyPull,
    /// Prefill writes the KV while it computes.
    #[default]
    Push,
    /// A hand-off of this mode, and prefill reads back what a decode engine has retained of the conversation.
    Bidirectional(TransferMode),
}

impl Strategy {
    pub const ALL: [Self; 7] = [
        Self::None,
        Self::Pull,
        Self::EarlyPull,
        Self::Push,
        Self::Bidirectional(TransferMode::Push),
        Self::Bidirectional(TransferMode::Pull),
        Self::Bidirectional(TransferMode::EarlyPull),
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Pull => "pull",
            Self::EarlyPull => "early-pull",
            Self::Push => "push",
            Self::Bidirectional(TransferMode::Push) => "bidirectional",
            Self::Bidirectional(TransferMode::Pull) => "bidirectional-pull",
            Self::Bidirectional(TransferMode::EarlyPull) => "bidirectional-early-pull",
        }
    }

    pub const fn plan(self) -> &'static Plan {
        match self {
            Self::None => &Plan::WHOLE,
            Self::Pull => &Plan::PULL,
            Self::EarlyPull => &Plan::EARLY_PULL,
            Self::Push => &Plan::PUSH,
            Self::Bidirectional(TransferMode::Push) => &Plan::BIDIRECTIONAL_PUSH,
            Self::Bidirectional(TransferMode::Pull) => &Plan::BIDIRECTIONAL_PULL,
            Self::Bidirectional(TransferMode::EarlyPull) => &Plan::BIDIRECTIONAL_EARLY_PULL,
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Strategy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|strategy| strategy.as_str() == text).ok_or_else(|| {
            format!("a strategy is none, pull, early-pull, push or bidirectional, not {text:?}")
        })
    }
}

impl TryFrom<String> for Strategy {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Strategy> for String {
    fn from(strategy: Strategy) -> Self {
        strategy.as_str().to_owned()
    }
}

/// What a step of a plan waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Starts with the attempt, at the same time as all others that wait for nothing.
    Nothing,
    /// The handle with which the prefill leg answers.
    Handle,
}

/// One leg to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub kind: LegKind,
    pub after: After,
}

/// The legs of one attempt, in the order in which their engines are selected. At most one of each kind (I9).
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    pub steps: &'static [Step],
    /// The step whose stream goes to the client.
    pub answers: usize,
    /// Who moves the KV; none where it stays on one engine.
    pub mode: Option<TransferMode>,
    /// Whether decode retains the conversation and the next turn's prefill may read it.
    pub reuse: bool,
}

impl Plan {
    pub const WHOLE: Self = Self {
        steps: &[Step { kind: LegKind::Whole, after: After::Nothing }],
        answers: 0,
        mode: None,
        reuse: false,
    };

    pub const PULL: Self = Self {
        steps: &[
            Step { kind: LegKind::Prefill, after: After::Nothing },
            Step { kind: LegKind::Decode, after: After::Handle },
        ],
        answers: 1,
        mode: Some(TransferMode::Pull),
        reuse: false,
    };

    pub const EARLY_PULL: Self = Self { mode: Some(TransferMode::EarlyPull), ..Self::PUSH };

    pub const PUSH: Self = Self {
        steps: &[
            Step { kind: LegKind::Prefill, after: After::Nothing },
            Step { kind: LegKind::Decode, after: After::Nothing },
        ],
        answers: 1,
        mode: Some(TransferMode::Push),
        reuse: false,
    };

    pub const BIDIRECTIONAL_PULL: Self = Self { reuse: true, ..Self::PULL };
    pub const BIDIRECTIONAL_EARLY_PULL: Self = Self { reuse: true, ..Self::EARLY_PULL };
    pub const BIDIRECTIONAL_PUSH: Self = Self { reuse: true, ..Self::PUSH };

    pub fn kinds(&self) -> impl Iterator<Item = LegKind> {
        self.steps.iter().map(|step| step.kind)
    }

    /// The steps that start only when the handle is there.
    pub fn late_steps(&self) -> impl Iterator<Item = usize> {
        (0..self.steps.len()).filter(|i| self.steps[*i].after == After::Handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategies_read_back_as_printed() {
        for strategy in Strategy::ALL {
            assert_eq!(strategy.to_string().parse(), Ok(strategy));
        }
        assert!("both".parse::<Strategy>().is_err());
    }

    #[test]
    fn every_plan_can_be_run() {
        for plan in Strategy::ALL.map(Strategy::plan) {
            let kinds: Vec<LegKind> = plan.kinds().collect();
            for (i, kind) in kinds.iter().enumerate() {
                // I9: one leg of a kind per attempt.
                assert!(!kinds[..i].contains(kind), "{plan:?}");
            }
            assert!(plan.steps.iter().any(|step| step.after == After::Nothing), "something starts");
            let late = plan.late_steps().count() > 0;
            assert!(!late || kinds.contains(&LegKind::Prefill), "somebody makes the handle");
            assert_ne!(plan.steps[plan.answers].kind, LegKind::Prefill);
            let retains = plan.steps[plan.answers].kind == LegKind::Decode;
            assert!(!plan.reuse || retains, "somebody retains what is to be reused");
        }
    }
}
