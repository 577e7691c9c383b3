//! How far an engine can be trusted: what its probes say, and how its last legs went.
//!
//! The two are separate, for they disagree: an engine can answer 503 to every leg while its probes are fine. Both only
//! *order* the engines. An engine is never shut out by its record: if all are bad, the least bad one is tried.

use std::time::Duration;

use baton_types::Time;

use crate::config::Limits;

/// How fit an engine is for a new leg; the best class that has any engine is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Probes are fine, and legs too; or the time of avoiding it is over and it gets one leg to prove itself.
    Fit,
    /// Legs failed in a row.
    Avoided,
    /// It says that it takes no requests.
    NotReady,
    /// It does not answer.
    Unhealthy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probe {
    Ready,
    Refused,
    Failed,
}

#[derive(Clone, Debug)]
pub(crate) struct Health {
    probe: Probe,
    /// Probes and connections that failed, in a row.
    unreachable: u32,
    /// Legs that failed, in a row.
    failures: u32,
    avoid_until: Time,
}

impl Health {
    pub fn new() -> Self {
        Self { probe: Probe::Refused, unreachable: 0, failures: 0, avoid_until: Time::ZERO }
    }

    pub fn probe_ready(&mut self) {
        self.probe = Probe::Ready;
        self.unreachable = 0;
    }

    pub fn probe_refused(&mut self) {
        self.probe = Probe::Refused;
        self.unreachable = 0;
    }

    /// A probe failed, or a leg got no connection.
    pub fn not_reached(&mut self, limits: &Limits) {
        self.unreachable = self.unreachable.saturating_add(1);
        if self.unreachable >= limits.probe_failures {
            self.probe = Probe::Failed;
        }
    }

    pub fn leg_succeeded(&mut self) {
        self.failures = 0;
        self.avoid_until = Time::ZERO;
    }

    /// One failure is bad luck; from the second in a row on, the engine is avoided for a time that doubles.
    pub fn leg_failed(&mut self, now: Time, limits: &Limits) {
        self.failures = self.failures.saturating_add(1);
        if self.failures >= 2 {
            let doublings = (self.failures - 2).min(20);
            let ms = limits.backoff_ms.saturating_mul(1 << doublings).min(limits.backoff_max_ms);
            self.avoid_until = now + Duration::from_millis(ms);
        }
    }

    /// `live_legs`: an engine on trial gets one leg, not all that wait.
    pub fn standing(&self, now: Time, live_legs: usize) -> Standing {
        match self.probe {
            Probe::Failed => Standing::Unhealthy,
            Probe::Refused => Standing::NotReady,
            Probe::Ready if self.failures < 2 => Standing::Fit,
            Probe::Ready if now >= self.avoid_until && live_legs == 0 => Standing::Fit,
            Probe::Ready => Standing::Avoided,
        }
    }

    /// Orders engines of one standing: fewer is better.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready() -> Health {
        let mut health = Health::new();
        health.probe_ready();
        health
    }

    #[test]
    fn fails_after_so_many_probes_in_a_row_and_is_back_with_the_first_good_one() {
        let limits = Limits::default();
        let mut health = ready();
        for expected in [Standing::Fit, Standing::Fit, Standing::Unhealthy] {
            health.not_reached(&limits);
            assert_eq!(health.standing(Time::ZERO, 0), expected);
        }
        health.probe_refused();
        assert_eq!(health.standing(Time::ZERO, 0), Standing::NotReady);
        health.probe_ready();
        assert_eq!(health.standing(Time::ZERO, 0), Standing::Fit);
    }

    #[test]
    fn good_probes_do_not_excuse_failing_legs() {
        let limits = Limits::default();
        let mut health = ready();
        health.leg_failed(Time::ZERO, &limits);
        assert_eq!(health.standing(Time::ZERO, 0), Standing::Fit);
        health.leg_failed(Time::ZERO, &limits);
        health.probe_ready();
        assert_eq!(health.standing(Time::ZERO, 0), Standing::Avoided);
        let later = Time::from_millis(limits.backoff_ms);
        assert_eq!(health.standing(later, 0), Standing::Fit, "one leg on trial");
        assert_eq!(health.standing(later, 1), Standing::Avoided, "one only");
        health.leg_succeeded();
        assert_eq!(health.standing(later, 7), Standing::Fit);
    }

    #[test]
    fn the_time_of_avoiding_doubles_up_to_its_limit() {
        let limits = Limits::default();
        let mut health = ready();
        let mut avoided = Vec::new();
        for _ in 0..9 {
            health.leg_failed(Time::ZERO, &limits);
            avoided.push(health.avoid_until.since(Time::ZERO).as_millis());
        }
        assert_eq!(avoided, [0, 250, 500, 1000, 2000, 4000, 5000, 5000, 5000]);
        assert_eq!(limits.backoff_max_ms, 5000);
    }
}
