//! The engine with the fewest legs.

use super::Candidate;
use super::round_robin::RoundRobin;
use crate::engine_table::EngineKey;

/// By [`Candidate::load`]; equals take turns.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeastLoaded {
    ties: RoundRobin,
}

impl LeastLoaded {
    pub fn pick(&mut self, candidates: &[Candidate]) -> Option<EngineKey> {
        let least = candidates.iter().map(Candidate::load).min()?;
        let tied: Vec<Candidate> = candidates.iter().copied().filter(|c| c.load() == least).collect();
        self.ties.pick(&tied)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(key: u32, live_legs: usize, waiting: u32) -> Candidate {
        Candidate { engine: EngineKey(key), live_legs, waiting }
    }

    #[test]
    fn the_least_load_wins_and_ties_rotate() {
        let mut policy = LeastLoaded::default();
        assert_eq!(policy.pick(&[candidate(0, 2, 0), candidate(1, 1, 0)]), Some(EngineKey(1)));
        assert_eq!(policy.pick(&[candidate(0, 1, 0), candidate(1, 0, 5)]), Some(EngineKey(0)));
        let even = [candidate(0, 1, 0), candidate(1, 0, 1), candidate(2, 3, 0)];
        assert_eq!(policy.pick(&even), Some(EngineKey(1)));
        assert_eq!(policy.pick(&even), Some(EngineKey(0)));
    }
}
