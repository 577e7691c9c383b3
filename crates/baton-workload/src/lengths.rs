//! How long prompts and answers are.

use std::fmt;
use std::str::FromStr;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, LogNormal, Normal};

/// A distribution of lengths in tokens; what is drawn is 1 at least.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lengths {
    Fixed(u32),
    /// Every length from `low` to `high` alike.
    Uniform {
        low: u32,
        high: u32,
    },
    Normal {
        mean: f64,
        deviation: f64,
    },
    /// `sigma` is the deviation of the logarithm.
    LogNormal {
        median: f64,
        sigma: f64,
    },
}

/// Longest length, in tokens: no context is longer.
pub const MAX_TOKENS: u32 = 16 << 20;

impl Lengths {
    pub fn draw(&self, random: &mut ChaCha8Rng) -> u32 {
        let drawn = match *self {
            Self::Fixed(tokens) => f64::from(tokens),
            Self::Uniform { low, high } => f64::from(random.random_range(low..=high)),
            Self::Normal { mean, deviation } => {
                Normal::new(mean, deviation).expect("checked when read").sample(random)
            }
            Self::LogNormal { median, sigma } => {
                LogNormal::new(median.ln(), sigma).expect("checked when read").sample(random)
            }
        };
        drawn.round().clamp(1.0, f64::from(MAX_TOKENS)) as u32
    }
}

impl FromStr for Lengths {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "lengths read 512, 256-1024, normal:MEAN,DEVIATION or lognormal:MEDIAN,SIGMA, up to {MAX_TOKENS} tokens, not {text:?}"
            )
        };
        let tokens =
            |text: &str| text.parse().ok().filter(|n| (1..=MAX_TOKENS).contains(n)).ok_or_else(wrong);
        if let Some((name, parameters)) = text.split_once(':') {
            let (centre, spread) = parameters.split_once(',').ok_or_else(wrong)?;
            let centre = f64::from(tokens(centre)?);
            let spread =
                spread.parse().ok().filter(|s: &f64| s.is_finite() && *s >= 0.0).ok_or_else(wrong)?;
            return match name {
                "normal" => Ok(Self::Normal { mean: centre, deviation: spread }),
                "lognormal" => Ok(Self::LogNormal { median: centre, sigma: spread }),
                _ => Err(wrong()),
            };
        }
        match text.split_once('-') {
            None => tokens(text).map(Self::Fixed),
            Some((low, high)) => match (tokens(low)?, tokens(high)?) {
                (low, high) if low <= high => Ok(Self::Uniform { low, high }),
                _ => Err(wrong()),
            },
        }
    }
}

impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(tokens) => write!(f, "{tokens}"),
            Self::Uniform { low, high } => write!(f, "{low}-{high}"),
            Self::Normal { mean, deviation } => write!(f, "normal:{mean},{deviation}"),
            Self::LogNormal { median, sigma } => write!(f, "lognormal:{median},{sigma}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::rand_core::SeedableRng;

    use super::*;

    fn drawn(text: &str) -> Vec<u32> {
        let lengths: Lengths = text.parse().unwrap();
        assert_eq!(lengths.to_string(), text);
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut drawn: Vec<u32> = (0..10_001).map(|_| lengths.draw(&mut random)).collect();
        drawn.sort_unstable();
        drawn
    }

    #[test]
    fn lengths_are_spread_as_asked() {
        assert_eq!(drawn("7").iter().filter(|n| **n == 7).count(), 10_001);
        let uniform = drawn("10-20");
        assert_eq!((uniform[0], uniform[10_000]), (10, 20));
        let normal = drawn("normal:500,50");
        assert!(normal[5_000].abs_diff(500) <= 3 && normal[8_413].abs_diff(550) <= 6);
        let log = drawn("lognormal:400,1");
        assert!(log[5_000].abs_diff(400) <= 15 && log[8_413].abs_diff(1_087) <= 60);
        assert_eq!(drawn("normal:2,50")[0], 1);
    }

    #[test]
    fn other_words_are_refused() {
        for bad in ["", "0", "-1", "5-", "9-3", "1.5", "normal:5", "normal:5,-1", "zipf:1,2", "99999999999"] {
            assert!(bad.parse::<Lengths>().is_err(), "{bad}");
        }
    }
}
