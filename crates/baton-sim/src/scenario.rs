//! What a seed stands for: the system, its timing, what goes wrong, and what is asked of it.
//!
//! Each seed switches whole kinds of faults on or off (swarm testing): a run with few kinds goes deeper into each of them than
//! one in which everything fails all the time.

use std::ops::Range;
use std::time::Duration;

use baton_engine::OnLostKv;
use baton_model::CostProfile;
use baton_model::cost_profile::{DecodeCost, PrefillCost};
use baton_routing::{Limits, PolicyKind, Strategy};
use baton_types::{EngineRole, KvDtype, KvLayout, KvOrder};

use crate::fault::{Fault, FaultRates};
use crate::random::Random;
use crate::theme::Theme;

#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub strategy: Strategy,
    pub policy: PolicyKind,
    pub engines: Vec<EngineSpec>,
    /// What all pools have in common: blocks of one unit, one rank.
    pub layout: KvLayout,
    pub profile: CostProfile,
    pub proto: ProtoTiming,
    pub limits: Limits,
    pub network: Network,
    pub faults: FaultRates,
    /// Between two turns of the saboteur, in microseconds.
    pub turn_us: Range<u64>,
    pub workload: Workload,
}

#[derive(Clone, Debug)]
pub(crate) struct EngineSpec {
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
    pub on_lost_kv: OnLostKv,
    pub kv_timeout: Duration,
    /// Whether its KV is the other engines' kind.
    pub compatible: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct ProtoTiming {
    pub lease: Duration,
    pub heartbeat: Duration,
    pub retry: Duration,
    pub register_timeout: Duration,
    pub peer_grace: Duration,
    pub dial_attempts: u32,
    /// Entries of the endpoint's tables; none for the defaults.
    pub tables: Option<usize>,
}

#[derive(Clone, Debug)]
pub(crate) struct Network {
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
}

#[derive(Clone, Debug)]
pub(crate) struct Workload {
    pub requests: u64,
    /// Between two arrivals, in microseconds.
    pub gap_us: Range<u64>,
    /// Texts that prompts begin with.
    pub documents: u64,
    pub longest_prompt: usize,
    pub longest_answer: u32,
    pub tenants: u64,
}

impl Scenario {
    /// Without `faults` nothing goes wrong, whatever the seed.
    pub fn draw(random: &mut Random, faults: bool) -> Self {
        let faulty = faults && !random.chance(150);
        let layout = KvLayout {
            layers: 1,
            kv_heads: 4,
            head_dim: 4,
            dtype: KvDtype::F32,
            block_tokens: random.pick(&[2, 4, 4, 8, 16]),
            ranks: 1,
            order: KvOrder::BlockMajor,
        };
        let workload = draw_workload(random, layout.block_tokens);
        let faults = if faulty { draw_faults(random) } else { FaultRates::default() };
        let calm = faults.is_calm();
        let strategies =
            [Strategy::None, Strategy::Pull, Strategy::EarlyPull, Strategy::Push, Strategy::Push];
        let mut scenario = Self {
            strategy: random.pick(&strategies),
            policy: random.pick(&PolicyKind::ALL),
            engines: draw_engines(random, &layout, &workload, calm),
            profile: draw_profile(random),
            proto: draw_proto(random, calm),
            limits: draw_limits(random, calm),
            network: draw_network(random),
            faults,
            turn_us: draw_span(random, 1_000..200_000),
            layout,
            workload,
        };
        if !calm && random.chance(300) {
            random.pick(&Theme::ALL).apply(random, &mut scenario);
        }
        scenario
    }
}

/// A range whose ends differ by up to a factor of four.
fn draw_span(random: &mut Random, within: Range<u64>) -> Range<u64> {
    let low = random.skewed(within);
    low..low * random.within(1..5) + 1
}

fn draw_workload(random: &mut Random, block_tokens: u32) -> Workload {
    let longest = if random.chance(200) { 300 } else { 60 };
    Workload {
        requests: random.skewed(2..40),
        gap_us: draw_span(random, 10..60_000),
        documents: random.within(1..5),
        longest_prompt: random.within(u64::from(block_tokens)..longest) as usize,
        longest_answer: random.skewed(1..40) as u32 + 1,
        tenants: random.within(1..4),
    }
}

fn draw_faults(random: &mut Random) -> FaultRates {
    let mut rates = FaultRates::default();
    for fault in Fault::ALL {
        if random.chance(400) {
            let most = match fault {
                Fault::Spike => 60,
                Fault::StepFails => 20,
                Fault::LegLost => 100,
                _ => 250,
            };
            let rate = if random.chance(500) { random.skewed(1..most) } else { random.within(1..most) };
            rates.set(fault, rate as u32);
        }
    }
    rates
}

fn draw_engines(random: &mut Random, layout: &KvLayout, workload: &Workload, calm: bool) -> Vec<EngineSpec> {
    let mut roles = Vec::new();
    for (role, range) in [(EngineRole::Prefill, 1..3), (EngineRole::Decode, 1..4), (EngineRole::Both, 1..3)] {
        roles.extend((0..random.within(range)).map(|_| role));
    }
    let longest = workload.longest_prompt + workload.longest_answer as usize;
    let engine = |random: &mut Random, role| {
        let (layout, block_units) = draw_pool(random, layout);
        let need = layout.blocks_for(longest) as u64;
        // Now and then some requests do not fit: they must be refused, and nothing be left of them.
        let misfit = !calm && random.chance(50);
        let num_blocks = if misfit { need / 2 + 1 } else { need + random.skewed(0..64) } as u32;
        let max_model_len = if !calm && random.chance(50) { longest / 2 + 2 } else { longest + 1 };
        let max_running = random.within(1..9) as usize;
        EngineSpec {
            role,
            layout,
            block_units,
            num_blocks,
            max_model_len,
            max_running,
            step_tokens: max_running + random.skewed(0..128) as usize,
            max_waiting: if calm { 1000 } else { random.within(2..40) as usize },
            max_receiving: random.within(1..9) as usize,
            max_inbound_blocks: if calm { 1 << 20 } else { random.within(need..need * 8) as usize },
            watermark_blocks: random.below(3).min(u64::from(num_blocks) - 1) as usize,
            prefix_cache: !random.chance(100),
            on_lost_kv: if !calm && random.chance(250) { OnLostKv::Fail } else { OnLostKv::Recompute },
            kv_timeout: Duration::from_millis(if calm { 1_000_000 } else { random.skewed(100..20_000) }),
            compatible: calm || !random.chance(30),
        }
    };
    roles.into_iter().map(|role| engine(random, role)).collect()
}

/// A layout of one engine's own, and the units of its blocks.
fn draw_pool(random: &mut Random, shared: &KvLayout) -> (KvLayout, u32) {
    let block_units = random.pick(&[1, 1, 2, 3, 4]);
    let layout = KvLayout {
        block_tokens: shared.block_tokens * block_units,
        ranks: random.pick(&[1, 1, 2, 4]),
        dtype: random.pick(&[KvDtype::F32, KvDtype::F32, KvDtype::F16, KvDtype::Bf16]),
        ..shared.clone()
    };
    (layout, block_units)
}

fn draw_profile(random: &mut Random) -> CostProfile {
    let slowness = random.skewed(1..40) as f64 / 10.0;
    CostProfile {
        prefill: PrefillCost {
            fixed_us: 300.0 * slowness,
            per_token_us: 20.0 * slowness,
            per_token2_ns: 0.0,
        },
        decode: DecodeCost { base_us: 500.0 * slowness, per_seq_us: 10.0 * slowness, per_ctx_token_ns: 0.0 },
    }
}

fn draw_proto(random: &mut Random, calm: bool) -> ProtoTiming {
    let lease = Duration::from_millis(random.skewed(300..4000));
    ProtoTiming {
        lease,
        heartbeat: lease / random.within(3..10) as u32,
        retry: Duration::from_millis(random.within(20..400)),
        register_timeout: Duration::from_millis(random.within(300..6000)),
        peer_grace: Duration::from_millis(random.within(50..1500)),
        dial_attempts: random.within(1..5) as u32,
        tables: (!calm && random.chance(100)).then(|| random.within(1..8) as usize),
    }
}

fn draw_limits(random: &mut Random, calm: bool) -> Limits {
    let max_legs_per_engine = random.within(1..20) as usize;
    if calm {
        let ages = 100_000_000;
        return Limits {
            max_legs_per_engine,
            queue_ms: ages,
            prefill_ms: ages,
            first_byte_ms: ages,
            answer_ms: ages,
            idle_ms: ages,
            ..Limits::default()
        };
    }
    Limits {
        max_legs_per_engine,
        queue_ms: random.within(500..20_000),
        connect_ms: random.within(100..2_000),
        prefill_ms: random.within(500..10_000),
        first_byte_ms: random.within(500..20_000),
        answer_ms: random.within(1_000..30_000),
        idle_ms: random.within(500..10_000),
        ..Limits::default()
    }
}

fn draw_network(random: &mut Random) -> Network {
    Network {
        delay_us: draw_span(random, 10..3_000),
        spike_us: 10_000..random.skewed(20_000..6_000_000),
        block_us: draw_span(random, 1..500),
        pieces: random.within(1..6),
        join_us: draw_span(random, 200_000..5_000_000),
        probe_us: random.within(20_000..300_000),
        restart_us: draw_span(random, 500..1_500_000),
        fence_us: draw_span(random, 1_000..1_500_000),
    }
}
