//! Races that a free draw meets too rarely: each theme brings together what one of them needs.

use std::ops::Range;

use baton_routing::{Limits, Strategy};

use crate::draw::patient_limits;
use crate::fault::{Fault, FaultRates};
use crate::random::Random;
use crate::scenario::{Network, Scenario};
use crate::workload::Workload;

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
    /// A side channel that loses, doubles, garbles and breaks.
    BadLines,
    /// Decode engines that have hardly room for what they receive, and answers that go on.
    FullDecode,
    /// Whatever happens to the KV, it can be computed again: every client gets its answer.
    OnlyKv,
}

impl Theme {
    pub const ALL: [Self; 7] = [
        Self::SlowReads,
        Self::UnwantedWrites,
        Self::QuickRestarts,
        Self::MixedHandles,
        Self::BadLines,
        Self::FullDecode,
        Self::OnlyKv,
    ];

    pub fn apply(self, random: &mut Random, scenario: &mut Scenario, workload: &mut Workload) {
        match self {
            Self::SlowReads => {
                set(random, scenario, &[Fault::PostSlow], 300..800);
                set(random, scenario, &[Fault::Split, Fault::FrameLost, Fault::Pause, Fault::Spike], 20..150);
                for engine in &mut scenario.engines {
                    engine.clock.rate_ppm = random.pick(&[970_000, 1_030_000]);
                }
                scenario.strategy = Strategy::Pull;
                scenario.proto.lease_ms = random.within(30..300);
                scenario.proto.heartbeat_ms = scenario.proto.lease_ms / 3;
                // Nobody hears that a lease is over, and the bytes come all the same.
                let Network { split_us, split_router, split_breaks, split_stops_bytes, .. } =
                    &mut scenario.network;
                *split_us = scenario.proto.lease_ms * 1_000..scenario.proto.lease_ms * 4_000;
                (*split_router, *split_breaks, *split_stops_bytes) = (false, false, false);
            }
            Self::UnwantedWrites => {
                let faults = [Fault::PostSlow, Fault::ClientGone, Fault::Reset, Fault::Disconnect];
                set(random, scenario, &faults, 50..300);
                scenario.strategy = Strategy::Push;
            }
            Self::QuickRestarts => {
                set(random, scenario, &[Fault::Crash, Fault::PostSlow], 100..300);
                scenario.network.restart_us = 100..5_000;
                scenario.network.fence_us = 50_000..random.within(100_000..2_000_000);
            }
            Self::MixedHandles => set(random, scenario, &[Fault::WrongHandle, Fault::PostSlow], 200..700),
            Self::BadLines => {
                let faults = [Fault::FrameLost, Fault::FrameDoubled, Fault::FrameLate, Fault::Disconnect];
                set(random, scenario, &faults, 50..400);
                set(random, scenario, &[Fault::NotifyLost, Fault::NotifyDoubled], 20..200);
            }
            Self::FullDecode => {
                set(random, scenario, &[Fault::PostSlow, Fault::ClientGone], 20..200);
                workload.longest_answer = 60;
            }
            Self::OnlyKv => return self.only_kv(random, scenario, workload),
        }
        crowd(random, scenario, workload);
    }

    fn only_kv(self, random: &mut Random, scenario: &mut Scenario, workload: &mut Workload) {
        let mut rates = FaultRates::default();
        for fault in Fault::ALL.into_iter().filter(|fault| fault.is_about_kv()) {
            rates.set(fault, if random.chance(300) { random.within(1..400) as u32 } else { 0 });
        }
        scenario.faults = rates;
        let legs = scenario.limits.max_legs_per_engine;
        // A leg may fail with its transfer; the request tries again, for as long as it takes.
        scenario.limits = Limits { attempts: 1_000, retry_pause_ms: 1, ..patient_limits(legs) };
        scenario.proto.tables = None;
        let longest = workload.longest_prompt + workload.longest_answer as usize;
        for engine in &mut scenario.engines {
            engine.max_model_len = longest + 1;
            engine.num_blocks = engine.num_blocks.max(scenario.layout.blocks_for(longest) as u32);
            (engine.recompute, engine.compatible, engine.max_waiting) = (true, true, 1_000);
        }
        scenario.turn_us = 2_000..random.within(5_000..80_000);
    }
}

fn set(random: &mut Random, scenario: &mut Scenario, faults: &[Fault], rate: Range<u64>) {
    for fault in faults {
        scenario.faults.set(*fault, random.within(rate.clone()) as u32);
    }
}

/// Many requests in little memory: blocks are handed out again at once.
fn crowd(random: &mut Random, scenario: &mut Scenario, workload: &mut Workload) {
    for engine in &mut scenario.engines {
        engine.num_blocks = engine.num_blocks.min(engine.num_blocks / 4 + random.within(2..40) as u32);
        engine.watermark_blocks = engine.watermark_blocks.min(engine.num_blocks as usize - 1);
    }
    workload.requests += random.within(10..60);
    workload.gap_us = 100..random.within(1_000..20_000);
    scenario.turn_us = 2_000..random.within(5_000..60_000);
}
