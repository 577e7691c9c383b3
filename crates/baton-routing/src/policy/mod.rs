//! Which of several equally fit engines gets a leg.

mod least_loaded;
mod round_robin;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::engine_table::EngineKey;
use least_loaded::LeastLoaded;
use round_robin::RoundRobin;

/// What a policy may look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub engine: EngineKey,
    /// Legs that this router has on the engine now.
    pub live_legs: usize,
    /// Sequences that waited in the engine at its last probe, whoever sent them.
    pub waiting: u32,
}

impl Candidate {
    /// The legs this router has on the engine, known at once, plus what the engine last reported as waiting: that counts
    /// other routers' requests too, and counts our own waiting ones twice, which is what a backlog deserves.
    pub(crate) fn load(&self) -> usize {
        self.live_legs.saturating_add(self.waiting as usize)
    }
}

/// An engine to be taken whatever the policy, as long as its load is at most `slack` above that of the least loaded
/// candidate: it has KV that any other would have to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Preference {
    pub engine: EngineKey,
    pub slack: usize,
}

impl Preference {
    fn is_good(self, candidates: &[Candidate]) -> bool {
        let least = candidates.iter().map(Candidate::load).min();
        let preferred = candidates.iter().find(|c| c.engine == self.engine);
        preferred.zip(least).is_some_and(|(c, least)| c.load() <= least.saturating_add(self.slack))
    }
}

/// The operator's choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyKind {
    RoundRobin,
    #[default]
    LeastLoaded,
}

impl PolicyKind {
    pub const ALL: [Self; 2] = [Self::RoundRobin, Self::LeastLoaded];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::LeastLoaded => "least_loaded",
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for PolicyKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| format!("a policy is round_robin or least_loaded, not {text:?}"))
    }
}

/// A policy with its state. Each kind of leg has its own, so that the turns of one do not skip engines of the other.
#[derive(Clone, Debug)]
pub(crate) enum Policy {
    RoundRobin(RoundRobin),
    LeastLoaded(LeastLoaded),
}

impl Policy {
    pub fn new(kind: PolicyKind) -> Self {
        match kind {
            PolicyKind::RoundRobin => Self::RoundRobin(RoundRobin::default()),
            PolicyKind::LeastLoaded => Self::LeastLoaded(LeastLoaded::default()),
        }
    }

    /// Takes one of the candidates, which are sorted by key; none only if there are none. A preference that is followed is
    /// nobody's turn.
    pub fn pick(&mut self, candidates: &[Candidate], preference: Option<Preference>) -> Option<EngineKey> {
        if let Some(preference) = preference.filter(|p| p.is_good(candidates)) {
            return Some(preference.engine);
        }
        match self {
            Self::RoundRobin(policy) => policy.pick(candidates),
            Self::LeastLoaded(policy) => policy.pick(candidates),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_read_back_as_printed() {
        for kind in PolicyKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert!("random".parse::<PolicyKind>().is_err());
    }

    #[test]
    fn a_preference_gives_way_to_load() {
        let candidate = |key, live_legs, waiting| Candidate { engine: EngineKey(key), live_legs, waiting };
        let candidates = [candidate(0, 1, 0), candidate(1, 2, 1)];
        for kind in PolicyKind::ALL {
            let pick = |engine, slack| {
                let preference = Some(Preference { engine: EngineKey(engine), slack });
                Policy::new(kind).pick(&candidates, preference)
            };
            assert_eq!(pick(1, 2), Some(EngineKey(1)));
            assert_eq!(pick(1, 1), Some(EngineKey(0)), "one too many");
            assert_eq!(pick(0, 0), Some(EngineKey(0)));
            assert_eq!(pick(7, usize::MAX), Some(EngineKey(0)), "it is no candidate");
        }
    }

    #[test]
    fn no_candidates_no_pick() {
        for kind in PolicyKind::ALL {
            let preference = Some(Preference { engine: EngineKey(0), slack: 9 });
            assert_eq!(Policy::new(kind).pick(&[], preference), None);
        }
    }
}
