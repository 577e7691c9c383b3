//! Races that a free draw meets too rarely: each theme brings together what one of them needs.

use std::time::Duration;

use baton_routing::Strategy;

use crate::fault::Fault;
use crate::random::Random;
use crate::scenario::Scenario;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Theme {
    /// Reads that outlast their lease, while the source hands the blocks out again.
    SlowReads,
    /// Writes to destinations that have given up.
    UnwantedWrites,
    /// Processes that come back before anybody has noticed that they were gone.
    QuickRestarts,
    /// Handles that are used twice, late, or by somebody else.
    MixedHandles,
}

impl Theme {
    pub const ALL: [Self; 4] =
        [Self::SlowReads, Self::UnwantedWrites, Self::QuickRestarts, Self::MixedHandles];

    pub fn apply(self, random: &mut Random, scenario: &mut Scenario) {
        let (faults, rate): (&[Fault], _) = match self {
            Self::SlowReads => (&[Fault::PostSlow, Fault::Pause, Fault::Spike], 100..400),
            Self::UnwantedWrites => {
                (&[Fault::PostSlow, Fault::ClientGone, Fault::Reset, Fault::Disconnect], 50..300)
            }
            Self::QuickRestarts => (&[Fault::Crash, Fault::PostSlow], 100..300),
            Self::MixedHandles => (&[Fault::WrongHandle, Fault::PostSlow], 200..700),
        };
        for fault in faults {
            scenario.faults.set(*fault, random.within(rate.clone()) as u32);
        }
        match self {
            Self::SlowReads => {
                scenario.strategy = Strategy::Pull;
                scenario.proto.lease = Duration::from_millis(random.within(30..300));
                scenario.proto.heartbeat = scenario.proto.lease / 3;
            }
            Self::UnwantedWrites => scenario.strategy = Strategy::Push,
            Self::QuickRestarts => {
                scenario.network.restart_us = 100..5_000;
                scenario.network.fence_us = 50_000..random.within(100_000..2_000_000);
            }
            Self::MixedHandles => {}
        }
        // Blocks are handed out again at once.
        for engine in &mut scenario.engines {
            engine.num_blocks = engine.num_blocks.min(engine.num_blocks / 4 + random.within(2..40) as u32);
            engine.watermark_blocks = engine.watermark_blocks.min(engine.num_blocks as usize - 1);
        }
        scenario.workload.requests += random.within(10..60);
        scenario.workload.gap_us = 100..random.within(1_000..20_000);
        scenario.turn_us = 2_000..random.within(5_000..80_000);
    }
}
