//! Samples, thinned to what a page can show.

use baton_workload::quantile::nearest_rank;

/// Sorted samples.
#[derive(Clone, Debug, Default)]
pub struct Distribution(Vec<f64>);

/// Counts in bins that each are 1 % wider than the one before: what a percentile of millions of samples needs, in kilobytes.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// By bin, from [`SMALLEST`] up.
    bins: Vec<u64>,
    samples: u64,
    sum: f64,
}

const BIN_RATIO: f64 = 1.01;
/// Milliseconds: a clock tells no less.
const SMALLEST: f64 = 0.001;
/// Up to 0.001 * 1.01^3000 ms, some centuries.
const MAX_BINS: usize = 3000;

/// Shares at which a distribution is drawn: evenly through the middle, and finely at the slow end, which is what matters.
pub fn quantile_grid() -> Vec<f64> {
    let even = (0..=98).map(|step| f64::from(step) / 100.0);
    let fine = (981..1000).map(|step| f64::from(step) / 1000.0);
    even.chain(fine).chain([0.9995, 1.0]).collect()
}

impl Distribution {
    pub fn new(samples: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = samples.into_iter().filter(|sample| sample.is_finite()).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        Self(sorted)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The smallest sample with at least this share at or below it, as `baton bench` counts percentiles.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        nearest_rank(&self.0, share)
    }

    pub fn mean(&self) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.iter().sum::<f64>() / self.0.len() as f64)
    }
}

impl Histogram {
    pub fn add(&mut self, sample: f64) {
        if !sample.is_finite() {
            return;
        }
        let bin =
            ((sample / SMALLEST).ln() / BIN_RATIO.ln()).ceil().clamp(0.0, (MAX_BINS - 1) as f64) as usize;
        if self.bins.len() <= bin {
            self.bins.resize(bin + 1, 0);
        }
        self.bins[bin] += 1;
        self.samples += 1;
        self.sum += sample;
    }

    pub fn merge(&mut self, other: &Self) {
        if self.bins.len() < other.bins.len() {
            self.bins.resize(other.bins.len(), 0);
        }
        for (bin, count) in other.bins.iter().enumerate() {
            self.bins[bin] += count;
        }
        self.samples += other.samples;
        self.sum += other.sum;
    }

    pub fn len(&self) -> u64 {
        self.samples
    }

    pub fn mean(&self) -> Option<f64> {
        (self.samples > 0).then(|| self.sum / self.samples as f64)
    }

    /// As [`Distribution::quantile`], at most half a percent off.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let rank = ((share * self.samples as f64).ceil() as u64).max(1);
        let mut below = 0;
        let bin = self.bins.iter().position(|count| {
            below += count;
            below >= rank
        })?;
        Some(SMALLEST * BIN_RATIO.powf(bin as f64 - 0.5))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples() {
        let ten = Distribution::new((1..=10).rev().map(f64::from).chain([f64::NAN]));
        assert_eq!(ten.len(), 10);
        for (share, value) in [(0.0, 1.0), (0.5, 5.0), (0.51, 6.0), (0.9, 9.0), (0.99, 10.0), (1.0, 10.0)] {
            assert_eq!(ten.quantile(share), Some(value), "{share}");
        }
        assert_eq!(Distribution::default().quantile(0.5), None);
    }

    #[test]
    fn a_histogram_is_half_a_percent_off() {
        let mut halves = [Histogram::default(), Histogram::default()];
        let samples: Vec<f64> = (1..=20_000).map(|n| f64::from(n) * 0.37).collect();
        for (index, sample) in samples.iter().enumerate() {
            halves[index % 2].add(*sample);
        }
        let [mut both, other] = halves;
        both.merge(&other);
        let exact = Distribution::new(samples);
        for share in [0.01, 0.5, 0.9, 0.999, 1.0] {
            let (found, right) = (both.quantile(share).unwrap_or(0.0), exact.quantile(share).unwrap_or(1.0));
            assert!((found / right - 1.0).abs() < 0.006, "{share}: {found} for {right}");
        }
        assert_eq!(both.len(), 20_000);
    }

    #[test]
    fn nothing_is_too_small_or_too_large() {
        let mut odd = Histogram::default();
        for sample in [0.0, -3.0, 1e300, f64::INFINITY, f64::NAN] {
            odd.add(sample);
        }
        assert_eq!(odd.len(), 3);
        assert!(odd.quantile(0.5).is_some_and(f64::is_finite));
        assert_eq!(Histogram::default().quantile(0.5), None);
    }

    #[test]
    fn the_grid_rises() {
        let grid = quantile_grid();
        assert!(grid.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(grid.len() < 130);
    }
}
