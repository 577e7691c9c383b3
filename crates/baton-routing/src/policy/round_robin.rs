//! One engine after the other.

use super::Candidate;
use crate::engine_table::EngineKey;

/// Remembers the last engine taken, not an index: engines come and go between turns.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoundRobin {
    last: Option<EngineKey>,
}

impl RoundRobin {
    /// The first candidate after the last one taken, around the end if need be.
    pub fn pick(&mut self, candidates: &[Candidate]) -> Option<EngineKey> {
        let next = candidates.iter().find(|c| Some(c.engine) > self.last).or(candidates.first())?;
        self.last = Some(next.engine);
        Some(next.engine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(keys: &[u32]) -> Vec<Candidate> {
        keys.iter().map(|k| Candidate { engine: EngineKey(*k), live_legs: 0, waiting: 0 }).collect()
    }

    #[test]
    fn goes_round_and_survives_engines_that_leave() {
        let mut policy = RoundRobin::default();
        let mut picks = |keys: &[u32]| policy.pick(&candidates(keys)).unwrap().0;
        assert_eq!(
            [picks(&[0, 1, 2]), picks(&[0, 1, 2]), picks(&[0, 1, 2]), picks(&[0, 1, 2])],
            [0, 1, 2, 0]
        );
        assert_eq!(picks(&[2, 5]), 2);
        assert_eq!(picks(&[0, 5]), 5);
        assert_eq!(picks(&[0, 5]), 0);
    }
}
