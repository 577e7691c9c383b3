//! What befalls the processes, drawn from a seed.

use std::time::Duration;

use rand::seq::IndexedRandom;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::cluster::{ENGINES, Member};

/// Processes that are dead, stopped or cut off at a time; the others go on.
pub const MAX_AWAY: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// SIGKILL, and a new start.
    Kill,
    /// SIGSTOP, and SIGCONT.
    Stop,
    /// The network of one process goes down, and up.
    Cut,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::Kill, Self::Stop, Self::Cut];

    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Cut => "cut",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub kind: Kind,
    pub victim: Member,
    /// How long it is away.
    pub lasts: Duration,
}

/// Faults that are still to come.
#[derive(Clone, Debug)]
pub struct Faults {
    random: ChaCha8Rng,
    left: Vec<(Kind, u32)>,
}

impl Faults {
    pub fn new(seed: u64, counts: &[(Kind, u32)]) -> Self {
        Self { random: ChaCha8Rng::seed_from_u64(seed), left: counts.to_vec() }
    }

    pub fn left(&self) -> u32 {
        self.left.iter().map(|(_, count)| count).sum()
    }

    /// One engine of each role that nothing befalls for a while, and half of the time the router: what they hold shows what their
    /// peers' deaths leave behind.
    pub fn spare(&mut self) -> Vec<Member> {
        let n = self.random.random_range(0..2);
        let mut spared = vec![Member::Prefill(n), Member::Decode(self.random.random_range(0..2))];
        spared.extend(self.random.random_bool(0.5).then_some(Member::Router));
        spared
    }

    /// The time until the next fault.
    pub fn gap(&mut self) -> Duration {
        Duration::from_millis(self.random.random_range(50..600))
    }

    /// The next fault, to one of those that neither are spared nor away. None if there is nobody, or nothing left.
    pub fn next(&mut self, safe: impl Fn(Member) -> bool) -> Option<Fault> {
        // The router is one of five, but its death says least about the hand-off.
        let candidates = ENGINES.into_iter().flat_map(|engine| [engine; 3]).chain([Member::Router]);
        let candidates: Vec<Member> = candidates.filter(|member| !safe(*member)).collect();
        let victim = *candidates.choose(&mut self.random)?;
        let left = self.left();
        let mut drawn = if left == 0 { return None } else { self.random.random_range(0..left) };
        let kind = self.left.iter_mut().find_map(|(kind, count)| {
            if drawn < *count {
                *count -= 1;
                return Some(*kind);
            }
            drawn -= *count;
            None
        })?;
        let lasts = Duration::from_millis(lasts_ms(&mut self.random, kind));
        Some(Fault { kind, victim, lasts })
    }
}

/// Leases last 2 s, and a router gives an engine up after three looks, a second apart: some are back before anybody has noticed, some
/// long after they were declared dead.
fn lasts_ms(random: &mut impl Rng, kind: Kind) -> u64 {
    match kind {
        Kind::Kill => random.random_range(20..600),
        Kind::Stop | Kind::Cut if random.random_bool(0.75) => random.random_range(20..1_500),
        Kind::Stop | Kind::Cut => random.random_range(3_000..9_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_the_same_faults_and_all_of_them() {
        let draw = |seed| {
            let mut faults = Faults::new(seed, &[(Kind::Kill, 20), (Kind::Stop, 30)]);
            let all: Vec<Fault> =
                std::iter::from_fn(|| faults.next(|member| member == Member::Decode(1))).collect();
            assert_eq!(faults.left(), 0);
            all
        };
        let all = draw(7);
        assert_eq!(all, draw(7));
        assert_ne!(all, draw(8));
        assert_eq!(all.iter().filter(|fault| fault.kind == Kind::Kill).count(), 20);
        assert_eq!(all.len(), 50);
        assert!(all.iter().all(|fault| fault.victim != Member::Decode(1)));
        assert!(all.iter().any(|fault| fault.lasts > Duration::from_secs(3)));
    }
}
