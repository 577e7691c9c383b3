//! The one source of chance of a run: all of it comes from the seed (I10).

use std::ops::Range;
use std::time::Duration;

/// SplitMix64: small, fast, and good enough to choose among events.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        // Neighbouring seeds must not give shifted copies of one stream.
        let mut random = Self(seed.wrapping_mul(0xd134_2543_de82_ef95));
        random.next();
        random
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `0..below`; 0 if that is empty.
    pub fn below(&mut self, below: u64) -> u64 {
        self.next() % below.max(1)
    }

    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end.saturating_sub(range.start))
    }

    pub fn chance(&mut self, per_mille: u32) -> bool {
        self.below(1000) < u64::from(per_mille)
    }

    /// # Panics
    /// If there is nothing to pick from.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// Small values often, large ones rarely: each binary order of magnitude of `range` is as likely as the next.
    pub fn skewed(&mut self, range: Range<u64>) -> u64 {
        let span = range.end.saturating_sub(range.start).max(1);
        let orders = u64::from(u64::BITS - span.leading_zeros());
        let order = self.below(orders) + 1;
        range.start + self.below((1u64 << order.min(63)).min(span))
    }

    /// Uniform in microseconds.
    pub fn duration(&mut self, us: Range<u64>) -> Duration {
        Duration::from_micros(self.within(us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_stay_in_their_range_and_repeat_with_the_seed() {
        let mut random = Random::new(7);
        for _ in 0..10_000 {
            assert!((5..9).contains(&random.within(5..9)));
            assert!((3..1000).contains(&random.skewed(3..1000)));
            assert_eq!(random.below(0), 0);
            assert!(!random.chance(0) && random.chance(1000));
        }
        assert_eq!(Random::new(3).next(), Random::new(3).next());
        assert_ne!(Random::new(3).next(), Random::new(4).next());
    }
}
