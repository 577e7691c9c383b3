//! A scenario from a seed.
//!
//! Each seed switches whole kinds of faults on or off (swarm testing): a run with few kinds goes deeper into each of them than
//! one in which everything fails all the time.

use std::ops::Range;

use baton_model::CostProfile;
use baton_model::cost_profile::{DecodeCost, PrefillCost};
use baton_routing::{ConversationLimits, Limits, PolicyKind, Strategy};
use baton_types::{EngineRole, KvDtype, KvLayout, KvOrder, TransferMode};

use crate::ask::Ask;
use crate::fault::{Fault, FaultRates};
use crate::random::Random;
use crate::scenario::{AGES_MS, Clock, EngineSpec, Network, PROBED_US, ProtoTiming, RetainSpec, Scenario};
use crate::theme::Theme;
use crate::workload::{Workload, draw_requests};

impl Scenario {
    /// What a seed stands for. Without `faults` nothing goes wrong, whatever the seed.
    pub fn draw(seed: u64, faults: bool) -> Self {
        let random = &mut Random::new(seed);
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
        let mut workload = Workload::draw(random, layout.block_tokens);
        let converses = random.chance(400);
        if converses {
            draw_conversations(random, &mut workload);
        }
        let faults = if faulty { draw_faults(random) } else { FaultRates::default() };
        let calm = faults.is_calm();
        let strategies =
            [Strategy::None, Strategy::Pull, Strategy::EarlyPull, Strategy::Push, Strategy::Push];
        let mut scenario = Self {
            seed: random.next(),
            strategy: random.pick(&strategies),
            policy: random.pick(&PolicyKind::ALL),
            engines: draw_engines(random, &layout, &workload, calm),
            router_clock: draw_clock(random, 970_000..1_030_001),
            profile: draw_profile(random),
            proto: draw_proto(random, calm),
            limits: draw_limits(random, calm),
            network: draw_network(random),
            faults,
            turn_us: draw_span(random, 1_000..80_000),
            unrest_us: random.within(1..2_000_000),
            layout,
            crossed: false,
            names_are_global: false,
            requests: Vec::new(),
        };
        if !calm && random.chance(350) {
            random.pick(&Theme::ALL).apply(random, &mut scenario, &mut workload);
        }
        if converses {
            retain(random, &mut scenario, &mut workload);
        }
        if !calm && !converses && scenario.strategy == Strategy::Push && random.chance(150) {
            // No right of a writer ends with time, so that not even such clocks may harm. A reader's does: it allows for less.
            for engine in &mut scenario.engines {
                engine.clock = draw_clock(random, 500_000..2_000_001);
            }
        }
        // The first token after a prompt belongs to its handle: who brings that of another request with the same prompt gets the
        // token that the other one would have got.
        workload.greedy = scenario.faults.of(Fault::WrongHandle) > 0;
        let from_us = if scenario.owes_answers() { PROBED_US } else { random.below(PROBED_US) };
        scenario.requests = draw_requests(random, &workload, &scenario.layout, from_us);
        let ample = calm && random.chance(500);
        if ample && random.chance(500) {
            // Prompts that take longer than a lease lasts.
            scenario.profile.prefill.per_token_us *= 50.0;
        }
        // Drawn last, so that what older seeds stand for is the same but for this.
        scenario.crossed = random.chance(250);
        scenario.network.halves_pair_once = random.chance(500);
        if ample {
            make_ample(&mut scenario);
        }
        scenario
    }
}

/// Long prompts, for turns to become part of.
fn draw_conversations(random: &mut Random, workload: &mut Workload) {
    workload.longest_prompt = random.within(40..160) as usize;
    workload.requests = random.within(2..30);
    workload.turns = random.within(300..950) as u32;
    workload.hostile = random.pick(&[0, 0, 100, 500]);
}

/// Engines retain conversations, and clients come back before their ends, or after them.
fn retain(random: &mut Random, scenario: &mut Scenario, workload: &mut Workload) {
    if random.chance(850) {
        // Where no KV is handed over, none is retained.
        let mode = scenario.strategy.plan().mode.unwrap_or(TransferMode::Push);
        scenario.strategy = Strategy::Bidirectional(mode);
    }
    let ttl_ms = random.skewed(20..20_000);
    workload.think_us = 0..ttl_ms * random.pick(&[100, 1_000, 3_000]);
    scenario.names_are_global = random.chance(300);
    for engine in &mut scenario.engines {
        let all = u64::from(engine.num_blocks);
        let blocks = if random.chance(600) { all } else { random.within(1..all + 1) } as usize;
        let ttl_ms = random.within(ttl_ms / 2..ttl_ms * 2);
        engine.retain =
            (!random.chance(100)).then_some(RetainSpec { ttl_ms, renewable: random.chance(100), blocks });
        // Else much of the history is here already.
        engine.prefix_cache = random.chance(500);
        engine.reuse_threshold = random.skewed(0..80) as usize;
    }
    scenario.limits.conversations = ConversationLimits {
        entries: if random.chance(100) { random.below(4) as usize } else { 1_000 },
        lookups: random.within(1..9) as usize,
        margin_ms: random.skewed(0..5_000),
        slack: random.below(6) as usize,
        ..ConversationLimits::default()
    };
    // So that not all that happens happens while somebody thinks.
    scenario.network.probe_us = scenario.network.probe_us.max(ttl_ms * 20);
    let Range { start, end } = scenario.turn_us;
    scenario.turn_us = start.max(ttl_ms * 5)..end.max(ttl_ms * 10);
}

/// Room for everything at once.
fn make_ample(scenario: &mut Scenario) {
    let longest = |ask: &Ask| ask.prompt.len() + ask.max_tokens as usize;
    let blocks = scenario.requests.iter().map(|ask| scenario.layout.blocks_for(longest(ask)));
    let directions = if scenario.crossed { 2 } else { 1 };
    let blocks = blocks.sum::<usize>() as u32 * directions;
    for engine in &mut scenario.engines {
        engine.num_blocks = engine.num_blocks.max(blocks + engine.watermark_blocks as u32);
        engine.max_receiving = scenario.requests.len();
    }
}

/// A range whose ends differ by up to a factor of four.
pub(crate) fn draw_span(random: &mut Random, within: Range<u64>) -> Range<u64> {
    let low = random.skewed(within);
    low..low * random.within(1..5) + 1
}

fn draw_faults(random: &mut Random) -> FaultRates {
    let mut rates = FaultRates::default();
    for fault in Fault::ALL {
        if random.chance(300) {
            let most = match fault {
                Fault::StepFails | Fault::RouterCrash => 20,
                // What stops much at once, so that something is left to go wrong.
                Fault::Spike | Fault::FrameGarbled | Fault::Crash | Fault::Drain | Fault::Stranger => 60,
                Fault::LegLost | Fault::LegRefused | Fault::FrameLost | Fault::Split => 100,
                _ => 250,
            };
            let rate = if random.chance(500) { random.skewed(1..most) } else { random.within(1..most) };
            rates.set(fault, rate as u32);
        }
    }
    rates
}

/// Up to ten hours ahead.
fn draw_clock(random: &mut Random, rate_ppm: Range<u64>) -> Clock {
    Clock { ahead_ms: random.skewed(0..36_000_000), rate_ppm: random.within(rate_ppm) }
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
            recompute: calm || !random.chance(250),
            kv_timeout_ms: if calm { 1_000_000 } else { random.skewed(100..20_000) },
            retain: None,
            reuse_threshold: random.skewed(0..80) as usize,
            reuse_timeout_ms: random.skewed(10..10_000),
            compatible: calm || !random.chance(30),
            clock: draw_clock(random, 970_000..1_030_001),
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
    let lease_ms = random.skewed(300..4000);
    ProtoTiming {
        lease_ms,
        heartbeat_ms: lease_ms / random.within(3..10),
        retry_ms: random.within(20..400),
        register_timeout_ms: random.within(300..6000),
        peer_grace_ms: random.within(50..1500),
        dial_attempts: random.within(1..5) as u32,
        tables: (!calm && random.chance(150)).then(|| random.skewed(1..8) as usize),
    }
}

/// Nobody loses patience.
pub(crate) fn patient_limits(max_legs_per_engine: usize) -> Limits {
    Limits {
        max_legs_per_engine,
        queue_ms: AGES_MS,
        connect_ms: AGES_MS,
        prefill_ms: AGES_MS,
        first_byte_ms: AGES_MS,
        answer_ms: AGES_MS,
        idle_ms: AGES_MS,
        ..Limits::default()
    }
}

fn draw_limits(random: &mut Random, calm: bool) -> Limits {
    let max_legs_per_engine = random.within(1..20) as usize;
    if calm {
        return patient_limits(max_legs_per_engine);
    }
    Limits {
        max_legs_per_engine,
        queue_ms: random.within(500..20_000),
        connect_ms: random.within(100..2_000),
        prefill_ms: random.within(500..10_000),
        first_byte_ms: random.within(500..20_000),
        answer_ms: random.within(1_000..30_000),
        idle_ms: random.within(500..10_000),
        client_stall_ms: random.skewed(100..5_000),
        ..Limits::default()
    }
}

fn draw_network(random: &mut Random) -> Network {
    Network {
        delay_us: draw_span(random, 10..3_000),
        spike_us: 10_000..random.skewed(20_000..6_000_000),
        block_us: draw_span(random, 1..500),
        pieces: random.within(1..6),
        // Less than the time for which a refused peer stays out, by any clock.
        join_us: draw_span(random, 200_000..3_000_000),
        probe_us: random.within(20_000..300_000),
        restart_us: draw_span(random, 500..1_500_000),
        fence_us: draw_span(random, 1_000..1_500_000),
        split_us: draw_span(random, 1_000..3_000_000),
        split_router: random.chance(500),
        split_breaks: random.chance(500),
        split_stops_bytes: random.chance(500),
        halves_pair_once: false,
    }
}
