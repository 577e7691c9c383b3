//! When requests come, if they wait for nobody.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, Exp, Gamma};

/// The gaps between arrivals, at a given mean rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// Gaps that know nothing of each other: many independent users.
    Poisson,
    /// Gaps of a gamma distribution: a shape below 1 comes in bursts, above 1 evenly.
    Gamma { shape: f64 },
    /// Equal gaps.
    Constant,
}

/// Longest gap that is drawn. A tiny shape or rate must not overflow a clock.
const MAX_GAP_S: f64 = 1e6;

impl Arrivals {
    /// The moments, the first at 0. Endless.
    ///
    /// # Panics
    /// If `rate` (per second) is not a positive number.
    pub fn at_rate(self, rate: f64, seed: u64) -> impl Iterator<Item = Duration> {
        assert!(rate > 0.0 && rate.is_finite(), "a rate is positive");
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut at_s = 0.0;
        let first = std::iter::once(Duration::ZERO);
        first.chain(std::iter::repeat_with(move || {
            at_s += self.draw_gap_s(rate, &mut random).min(MAX_GAP_S);
            Duration::from_secs_f64(at_s)
        }))
    }

    fn draw_gap_s(self, rate: f64, random: &mut ChaCha8Rng) -> f64 {
        match self {
            Self::Constant => 1.0 / rate,
            Self::Poisson => Exp::new(rate).expect("a rate is positive").sample(random),
            Self::Gamma { shape } => {
                Gamma::new(shape, 1.0 / (shape * rate)).expect("a shape is positive").sample(random)
            }
        }
    }
}

impl FromStr for Arrivals {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "poisson" => Ok(Self::Poisson),
            None if text == "constant" => Ok(Self::Constant),
            Some(("gamma", shape)) => match shape.parse() {
                // Outside, the draws are zeros and giants, or all the same.
                Ok(shape) if (0.01..=1e4).contains(&shape) => Ok(Self::Gamma { shape }),
                _ => Err(format!("a gamma shape is a number from 0.01 to 10000, not {shape:?}")),
            },
            _ => Err(format!("arrivals are poisson, gamma:SHAPE or constant, not {text:?}")),
        }
    }
}

impl fmt::Display for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Poisson => f.write_str("poisson"),
            Self::Gamma { shape } => write!(f, "gamma:{shape}"),
            Self::Constant => f.write_str("constant"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps_s(arrivals: Arrivals, rate: f64, seed: u64) -> Vec<f64> {
        let at: Vec<Duration> = arrivals.at_rate(rate, seed).take(20_001).collect();
        assert_eq!(at[0], Duration::ZERO);
        at.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect()
    }

    /// Mean, and deviation by mean.
    fn shape_of(gaps: &[f64]) -> (f64, f64) {
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        (mean, variance.sqrt() / mean)
    }

    #[test]
    fn gaps_have_the_rate_and_the_spread_that_was_asked_for() {
        for (text, spread) in [("poisson", 1.0), ("constant", 0.0), ("gamma:4", 0.5), ("gamma:0.25", 2.0)] {
            let arrivals: Arrivals = text.parse().unwrap();
            assert_eq!(arrivals.to_string(), text);
            let (mean, deviation) = shape_of(&gaps_s(arrivals, 8.0, 5));
            assert!((mean - 0.125).abs() < 0.006, "{text}: {mean}");
            assert!((deviation - spread).abs() < 0.1, "{text}: {deviation}");
        }
    }

    #[test]
    fn a_seed_gives_one_schedule() {
        let gaps = |seed| gaps_s(Arrivals::Poisson, 2.0, seed);
        assert_eq!(gaps(1), gaps(1));
        assert_ne!(gaps(1), gaps(2));
    }

    #[test]
    fn other_words_are_refused() {
        for bad in ["", "Poisson", "gamma", "gamma:", "gamma:0", "gamma:-1", "gamma:nan", "constant:1"] {
            assert!(bad.parse::<Arrivals>().is_err(), "{bad}");
        }
    }
}
