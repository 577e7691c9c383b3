//! What was measured, in tokens per second.

/// One measurement of one contestant.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    pub prefill: f64,
    pub decode: f64,
}

/// What both sides are measured by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Prefill,
    Decode,
}

impl Phase {
    pub const ALL: [Self; 2] = [Self::Prefill, Self::Decode];

    pub fn of(self, speed: &Speed) -> f64 {
        match self {
            Self::Prefill => speed.prefill,
            Self::Decode => speed.decode,
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Self::Prefill => "prefill of 512",
            Self::Decode => "decode at 512",
        }
    }
}

/// What is told of a row of measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Summary {
    /// # Panics
    /// If there is nothing to sum up.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let (lower, upper) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Self { median: (lower + upper) / 2.0, min: values[0], max: values[values.len() - 1] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_the_two_middles() {
        assert_eq!(Summary::of(vec![9.0, 1.0, 2.0]), Summary { median: 2.0, min: 1.0, max: 9.0 });
        assert_eq!(Summary::of(vec![9.0, 4.0, 1.0, 2.0]), Summary { median: 3.0, min: 1.0, max: 9.0 });
    }
}
