//! The time of one point: milliseconds since it began.

use std::time::{Duration, Instant};

use baton_workload::result::round_ms;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub fn start() -> Self {
        Self(Instant::now())
    }

    pub fn now_ms(self) -> f64 {
        round_ms(self.0.elapsed().as_secs_f64() * 1000.0)
    }

    pub fn at(self, offset: Duration) -> Instant {
        self.0 + offset
    }
}

pub(crate) fn ms(duration: Duration) -> f64 {
    round_ms(duration.as_secs_f64() * 1000.0)
}
