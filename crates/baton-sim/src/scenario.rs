//! What is run: the system, its timing, what goes wrong, and what is asked of it. Plain data: it can be written to a file, edited
//! there, made smaller, and run again. `draw` makes one from a seed.

use std::ops::Range;
use std::time::Duration;

use baton_model::CostProfile;
use baton_routing::{Limits, PolicyKind, Strategy};
use baton_types::{EngineRole, KvLayout, Time};
use serde::{Deserialize, Serialize};

use crate::ask::Ask;
use crate::fault::{Fault, FaultRates};

/// Time limits from here on are not waited for by anybody.
pub(crate) const AGES_MS: u64 = 100_000_000;

/// By then the router has probed every engine, if nothing keeps it from doing so.
pub(crate) const PROBED_US: u64 = 100_000;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Where the run's chance comes from: delays, and which opportunities the faults take.
    pub seed: u64,
    pub strategy: Strategy,
    pub policy: PolicyKind,
    pub engines: Vec<EngineSpec>,
    /// Engines that prefill are asked to decode as well, and those that decode to prefill: they hand over to each other.
    pub crossed: bool,
    pub router_clock: Clock,
    /// What all pools have in common: blocks of one unit, one rank.
    pub layout: KvLayout,
    pub profile: CostProfile,
    pub proto: ProtoTiming,
    pub limits: Limits,
    pub network: Network,
    pub faults: FaultRates,
    /// Between two turns of the saboteur, in microseconds.
    pub turn_us: Range<u64>,
    /// Faults go on for so long after the last request has arrived.
    pub unrest_us: u64,
    /// The router is told of no tenants: the names that clients give their conversations are all that tells them apart.
    pub names_are_global: bool,
    pub requests: Vec<Ask>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineSpec {
    pub role: EngineRole,
    pub layout: KvLayout,
    pub block_units: u32,
    pub num_blocks: u32,
    pub max_model_len: usize,
    pub max_running: usize,
    pub step_tokens: usize,
    pub max_waiting: usize,
    pub max_receiving: usize,
    pub max_inbound_blocks: usize,
    pub watermark_blocks: usize,
    pub prefix_cache: bool,
    /// A sequence whose KV is lost is computed here; otherwise it fails.
    pub recompute: bool,
    pub kv_timeout_ms: u64,
    pub retain: Option<RetainSpec>,
    /// Tokens that are worth reading back, and retaining.
    pub reuse_threshold: usize,
    pub reuse_timeout_ms: u64,
    /// Whether its KV is the other engines' kind.
    pub compatible: bool,
    pub clock: Clock,
}

/// How an engine retains conversations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetainSpec {
    pub ttl_ms: u64,
    pub renewable: bool,
    /// At most, for all of them.
    pub blocks: usize,
}

/// How a process's clock differs from the true time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clock {
    pub ahead_ms: u64,
    /// How far it goes in a million microseconds.
    pub rate_ppm: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProtoTiming {
    pub lease_ms: u64,
    pub heartbeat_ms: u64,
    pub retry_ms: u64,
    pub register_timeout_ms: u64,
    pub peer_grace_ms: u64,
    pub dial_attempts: u32,
    /// Entries of the endpoint's tables; none for the defaults.
    pub tables: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    pub delay_us: Range<u64>,
    pub spike_us: Range<u64>,
    /// Per block of a post.
    pub block_us: Range<u64>,
    /// Most pieces in which the bytes of a post move.
    pub pieces: u64,
    /// How long a peer may take to set up its half of a path.
    pub join_us: Range<u64>,
    pub probe_us: u64,
    pub restart_us: Range<u64>,
    /// From a crash to the moment when its peers know that nothing it posted can land any more.
    pub fence_us: Range<u64>,
    /// How long a split lasts.
    pub split_us: Range<u64>,
    /// The router may find itself on either side of a split; otherwise it reaches everybody.
    pub split_router: bool,
    /// Connections across a split break; otherwise they stall.
    pub split_breaks: bool,
    /// Bytes of KV go over the network that splits; otherwise they have one of their own, which stays whole.
    pub split_stops_bytes: bool,
    /// A half of a path that has lost the other joins no second one, as over `tcp`; otherwise it does, as over `shm`.
    pub halves_pair_once: bool,
}

impl Clock {
    pub const TRUE: Self = Self { ahead_ms: 0, rate_ppm: 1_000_000 };

    /// What it shows at a true time.
    pub fn shows(&self, at: Time) -> Time {
        let gone = u128::from(at.0) * u128::from(self.rate_ppm) / 1_000_000;
        Time(gone as u64) + Duration::from_millis(self.ahead_ms)
    }

    /// The first true time at which it shows this or later.
    pub fn reaches(&self, shown: Time) -> Time {
        let gone = shown.since(Time::from_millis(self.ahead_ms)).as_nanos();
        Time((gone * 1_000_000).div_ceil(u128::from(self.rate_ppm.max(1))) as u64)
    }
}

impl Scenario {
    /// The engines as the router knows them, in the order of its keys: which it is, and for what. One that is asked for both is two.
    pub(crate) fn faces(&self) -> Vec<(usize, EngineRole)> {
        let faces = |crossed: bool| {
            self.engines.iter().enumerate().filter_map(move |(node, spec)| match (spec.role, crossed) {
                (role, false) => Some((node, role)),
                (EngineRole::Prefill, true) => Some((node, EngineRole::Decode)),
                (EngineRole::Decode, true) => Some((node, EngineRole::Prefill)),
                (EngineRole::Both, true) => None,
            })
        };
        let mut all: Vec<_> = faces(false).collect();
        if self.crossed {
            all.extend(faces(true));
        }
        all
    }

    /// The longest sequence on an engine, prompt and answer together: the KV of the last token is never computed.
    pub fn max_len(&self, engine: &EngineSpec) -> usize {
        let pool = engine.num_blocks as usize * engine.layout.block_tokens as usize;
        engine.max_model_len.min(pool + 1)
    }

    /// Whether every engine has room for a request.
    pub fn fits(&self, ask: &Ask) -> bool {
        self.engines.iter().all(|engine| self.max_len(engine) > ask.prompt.len())
    }

    /// Whether no client may hear an error: nothing goes wrong but what concerns the KV alone, which can be computed again, and
    /// nobody loses patience.
    pub fn owes_answers(&self) -> bool {
        let Limits { queue_ms, prefill_ms, first_byte_ms, answer_ms, idle_ms, .. } = self.limits;
        let patient =
            [queue_ms, prefill_ms, first_byte_ms, answer_ms, idle_ms].iter().min() >= Some(&AGES_MS);
        let roomy = |engine: &EngineSpec| {
            engine.recompute && engine.compatible && engine.max_waiting > self.requests.len() * 2
        };
        let only_kv = Fault::ALL.iter().all(|fault| fault.is_about_kv() || self.faults.of(*fault) == 0);
        let answers = self.requests.iter().all(|ask| ask.at_us >= PROBED_US && self.fits(ask));
        patient && only_kv && answers && self.engines.iter().all(roomy)
    }

    /// Whether every KV must come over: nothing goes wrong, and no engine has to wait for blocks or places that another engine holds
    /// for it. Two engines that wait for each other are ended by a time limit, which costs the transfer.
    pub fn owes_transfers(&self) -> bool {
        let tokens = |ask: &Ask| ask.prompt.len() + ask.max_tokens as usize;
        let directions = if self.crossed { 2 } else { 1 };
        let ample = |engine: &EngineSpec| {
            let blocks: usize = self.requests.iter().map(|ask| engine.layout.blocks_for(tokens(ask))).sum();
            engine.num_blocks as usize >= blocks * directions + engine.watermark_blocks
                && engine.max_receiving >= self.requests.len()
        };
        self.faults.is_calm() && self.owes_answers() && self.engines.iter().all(ample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_reaches_what_it_is_set_to_and_not_before() {
        for rate_ppm in [500_000, 970_001, 1_000_000, 2_000_000] {
            let clock = Clock { ahead_ms: 3_600_000, rate_ppm };
            for shown in [0, 3_600_000_000_000, 3_600_000_000_001, 7_777_777_777_777] {
                let at = clock.reaches(Time(shown));
                assert!(clock.shows(at) >= Time(shown));
                assert!(at == Time::ZERO || clock.shows(Time(at.0 - 1)) < Time(shown), "{rate_ppm} {shown}");
            }
        }
    }
}
