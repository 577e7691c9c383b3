//! Wall time for spans: the only thing that lines up what different processes of a machine did.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The wall clock is read once, so that it may be set while a process runs without spans that end before they begin.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    at: Instant,
    unix_ns: u64,
}

impl WallClock {
    pub fn start() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { at: Instant::now(), unix_ns: nanos(since) }
    }

    /// Nanoseconds since the Unix epoch.
    pub fn unix_ns(&self, instant: Instant) -> u64 {
        match instant.checked_duration_since(self.at) {
            Some(after) => self.unix_ns.saturating_add(nanos(after)),
            None => self.unix_ns.saturating_sub(nanos(self.at - instant)),
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
