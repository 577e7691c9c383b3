//! Confidence intervals by the bootstrap: the same figure of many resampled rows of requests.
//!
//! Requests that follow each other share a queue, so they are drawn as blocks of neighbours, not one by one (circular block
//! bootstrap, blocks of the cube root of the count): intervals of independent draws would be too narrow.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::result::Estimate;

/// Rows that are drawn, unless there are so many samples that it would take long.
const MOST_ROWS: usize = 1000;
const FEWEST_ROWS: usize = 50;
/// Samples looked at in all rows together: about a second.
const SAMPLE_BUDGET: usize = 400_000_000;
/// With fewer units there is nothing to draw from.
pub const FEWEST_UNITS: usize = 5;
/// A percentile has an interval if so many samples are beyond it.
pub const FEWEST_BEYOND: f64 = 3.0;

/// Half of what is outside a 95 % interval.
const TAIL: f64 = 0.025;

#[derive(Debug)]
pub struct Resampler {
    random: ChaCha8Rng,
}

impl Resampler {
    pub fn new(seed: u64) -> Self {
        Self { random: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// How many rows to draw of so many samples.
    pub fn rows(samples: usize) -> usize {
        (SAMPLE_BUDGET / samples.max(1)).clamp(FEWEST_ROWS, MOST_ROWS)
    }

    /// Draws as many of the `units` as there are, in blocks of neighbours, and counts how often each came.
    pub fn draw_counts(&mut self, units: usize, counts: &mut Vec<u32>) {
        counts.clear();
        counts.resize(units, 0);
        self.draw(units, |unit| counts[unit] += 1);
    }

    /// Draws as many of the `units` as there are, in blocks of neighbours.
    pub fn draw(&mut self, units: usize, mut take: impl FnMut(usize)) {
        let block = (units as f64).cbrt().ceil().max(1.0) as usize;
        let mut left = units;
        while left > 0 {
            let start = self.random.random_range(0..units);
            for i in 0..block.min(left) {
                take((start + i) % units);
            }
            left -= block.min(left);
        }
    }

    /// Draws as many of the `units` as there are, each by itself.
    pub fn draw_alone(&mut self, units: usize, mut take: impl FnMut(usize)) {
        (0..units).for_each(|_| take(self.random.random_range(0..units)));
    }
}

/// The interval between the outer rows.
pub fn interval(value: f64, mut rows: Vec<f64>) -> Estimate {
    rows.retain(|row| row.is_finite());
    rows.sort_by(f64::total_cmp);
    Estimate {
        value,
        low: crate::quantile::nearest_rank(&rows, TAIL),
        high: crate::quantile::nearest_rank(&rows, 1.0 - TAIL),
    }
    .rounded()
}

/// Figures are written to the sixth decimal: far behind what they mean, and what is written is read back the same.
pub fn round_figure(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

impl Estimate {
    /// Without an interval.
    pub fn bare(value: f64) -> Self {
        Self { value, low: None, high: None }.rounded()
    }

    fn rounded(self) -> Self {
        Self {
            value: round_figure(self.value),
            low: self.low.map(round_figure),
            high: self.high.map(round_figure),
        }
    }

    #[must_use]
    pub fn scaled(self, by: f64) -> Self {
        let scaled = |x: f64| x * by;
        Self { value: scaled(self.value), low: self.low.map(scaled), high: self.high.map(scaled) }.rounded()
    }
}
