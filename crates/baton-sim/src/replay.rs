//! A trace of conversations on the production cores: how much of each prompt is still retained when its turn comes.
//!
//! Sessions go on with the think times that were recorded, and the engines take the time of a profile. Prompts are computed by engines
//! without a prefix cache, so that whatever they do not compute was read back.

use std::any::Any;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use baton_model::CostProfile;
use baton_routing::{Limits, PolicyKind, Strategy};
use baton_types::{EngineRole, KvDtype, KvLayout, KvOrder, Time, TransferMode};
use baton_workload::{Ask as Asked, Conversation as Recorded, Prompt};

use crate::ask::{After, Ask, Conversation, Reference};
use crate::draw::patient_limits;
use crate::fault::FaultRates;
use crate::recording::Recording;
use crate::run::text_of;
use crate::scenario::{Clock, EngineSpec, Network, PROBED_US, ProtoTiming, RetainSpec, Scenario};
use crate::world::World;

/// Sessions are spread by an estimate of how long they take; a turn's own time is about this.
const TURN: Duration = Duration::from_secs(5);
const TABLES: usize = 1 << 20;

/// How a trace is replayed.
#[derive(Clone, Debug)]
pub struct Replay {
    pub retain_ttl: Duration,
    /// Blocks of the trace that are told apart only together: the more, the faster.
    pub grain: u32,
    /// Sessions that go on at the same time.
    pub at_once: usize,
    pub prefill_engines: usize,
    /// Of the one decode engine, in grains.
    pub kv_blocks: u32,
    /// At most so many of them are retained.
    pub retain_blocks: usize,
    /// Of single tokens.
    pub profile: CostProfile,
    /// To move one grain between two engines.
    pub grain_us: u64,
}

/// What came of it, in grains.
#[derive(Clone, Debug, PartialEq)]
pub struct Replayed {
    pub turns: u64,
    /// Turns that are not the first of their conversation.
    pub later_turns: u64,
    /// Of them, those that read something back.
    pub found: u64,
    pub grain_tokens: u32,
    pub prompt_tokens: u64,
    pub saved: u64,
    pub retained_mean: f64,
    pub retained_most: usize,
    pub retained: u64,
    pub expired: u64,
    pub revoked: u64,
    pub declined: u64,
    pub computed: u64,
    /// In virtual time.
    pub took: Duration,
}

/// Replays conversations to their end.
///
/// # Errors
/// If there is nothing to replay, a conversation does not say all of its prompts, or something did not hold.
pub fn replay(conversations: &[Recorded], how: &Replay) -> Result<Replayed, String> {
    let (asks, prompts) = asks(conversations, how)?;
    let block_tokens = prompts.first().ok_or("there is nothing to replay")?.block_tokens;
    let grain_tokens = block_tokens * how.grain;
    if how.grain == 0 || prompts.iter().any(|prompt| prompt.block_tokens != block_tokens) {
        return Err("all blocks must be of one size".into());
    }
    let turns = asks.len() as u64;
    let later_turns = asks.iter().filter(|ask| ask.after.is_some()).count() as u64;
    let prompt_tokens = prompts.iter().map(|prompt| u64::from(prompt.tokens)).sum();
    let begins = asks.iter().map(|ask| Time(ask.at_us * 1_000)).max().unwrap_or_default();
    let sessions = conversations.chunk_by(|a, b| a.session == b.session).count();
    let begin_until = if sessions > how.at_once { begins } else { Time(u64::MAX) };
    let scenario = scenario(asks, &prompts, how, f64::from(grain_tokens));
    let mut world = World::recorded(scenario, Recording::new(prompts, how.grain as usize, begin_until));
    // AssertUnwindSafe: of a world that panicked nothing is looked at.
    catch_unwind(AssertUnwindSafe(|| world.run())).map_err(|panic: Box<dyn Any + Send>| text_of(&*panic))?;
    let (tally, recording) = (&world.tally, world.recording.as_ref().expect("made with one"));
    if tally.answered != turns {
        return Err(format!("{} of {turns} turns were answered", tally.answered));
    }
    let (retained_mean, retained_most) = recording.retained_blocks();
    Ok(Replayed {
        turns,
        later_turns,
        found: tally.readbacks_done,
        grain_tokens,
        prompt_tokens,
        saved: tally.readback_tokens,
        retained_mean,
        retained_most,
        retained: tally.retained,
        expired: tally.expired,
        revoked: tally.revoked,
        declined: tally.declined,
        computed: tally.computed_tokens,
        took: Duration::from_nanos(world.now.0),
    })
}

/// All turns, each after the one before it; sessions one after the other in so many places.
fn asks(conversations: &[Recorded], how: &Replay) -> Result<(Vec<Ask>, Vec<Prompt>), String> {
    let mut places = places(conversations, how.at_once.max(1) as u32);
    let (mut asks, mut prompts) = (Vec::new(), Vec::new());
    for session in conversations.chunk_by(|a, b| a.session == b.session) {
        let Reverse(begins) = places.pop().expect("at least one place");
        places.push(Reverse(begins + length(session)));
        for thread in session {
            // No two threads of a trace are the same conversation.
            let name = Conversation::Named(format!("thread-{}", asks.len()));
            let mut at = begins + thread.offset;
            let mut before = None;
            for turn in &thread.turns {
                let Asked::Whole(prompt) = &turn.ask else {
                    return Err("a turn without its whole prompt".into());
                };
                let number = asks.len() as u64;
                let blocks = turn.output_tokens.unwrap_or(1).div_ceil(prompt.block_tokens * how.grain).max(1);
                asks.push(Ask {
                    number,
                    at_us: at.as_micros() as u64,
                    after: before.map(|number| After { number, think_us: turn.think.as_micros() as u64 }),
                    prompt: Vec::new(),
                    tenant: String::new(),
                    salt: String::new(),
                    conversation: name.clone(),
                    reference: Reference::Found,
                    max_tokens: blocks,
                    min_tokens: 0,
                    stop_tokens: Vec::new(),
                    stop_after: None,
                    streaming: false,
                    sample_seed: None,
                });
                prompts.push(prompt.clone());
                before = Some(number);
                at = Duration::ZERO;
            }
        }
    }
    Ok((asks, prompts))
}

/// When each place is free for its first session: not all at once, as if the others had gone on for longer already.
fn places(conversations: &[Recorded], at_once: u32) -> BinaryHeap<Reverse<Duration>> {
    let sessions = conversations.chunk_by(|a, b| a.session == b.session);
    let (count, all) = sessions.fold((0u32, Duration::ZERO), |(n, sum), one| (n + 1, sum + length(one)));
    let mean = if count > at_once { all / count } else { Duration::ZERO };
    (0..at_once).map(|i| Reverse(Duration::from_micros(PROBED_US) + mean * i / at_once)).collect()
}

/// Of a session, by estimate.
fn length(session: &[Recorded]) -> Duration {
    let thread =
        |one: &Recorded| one.offset + one.turns.iter().map(|turn| turn.think + TURN).sum::<Duration>();
    session.iter().map(thread).max().unwrap_or_default()
}

fn scenario(asks: Vec<Ask>, prompts: &[Prompt], how: &Replay, grain_tokens: f64) -> Scenario {
    let lengths = asks.iter().zip(prompts).map(|(ask, prompt)| {
        let blocks: u32 = prompt.runs.iter().map(|run| run.blocks).sum();
        (blocks + ask.max_tokens) as usize
    });
    let longest = lengths.max().unwrap_or_default() + 2;
    let layout = KvLayout {
        layers: 1,
        kv_heads: 1,
        head_dim: 4,
        dtype: KvDtype::F32,
        block_tokens: 1,
        ranks: 1,
        order: KvOrder::BlockMajor,
    };
    let prefill_blocks = (longest * 16).max(1 << 16) as u32;
    let prefill = engine(EngineRole::Prefill, &layout, longest, prefill_blocks);
    let retain =
        RetainSpec { ttl_ms: how.retain_ttl.as_millis() as u64, renewable: false, blocks: how.retain_blocks };
    let decode = EngineSpec {
        prefix_cache: true,
        retain: Some(retain),
        ..engine(EngineRole::Decode, &layout, longest, how.kv_blocks)
    };
    let mut engines = vec![prefill; how.prefill_engines.max(1)];
    engines.push(decode);
    Scenario {
        seed: 1,
        strategy: Strategy::Bidirectional(TransferMode::Push),
        policy: PolicyKind::LeastLoaded,
        engines,
        router_clock: Clock::TRUE,
        layout,
        profile: of_grains(&how.profile, grain_tokens),
        proto: ProtoTiming {
            lease_ms: 30_000,
            heartbeat_ms: 5_000,
            retry_ms: 1_000,
            register_timeout_ms: 120_000,
            peer_grace_ms: 5_000,
            dial_attempts: 3,
            tables: Some(TABLES),
        },
        limits: Limits { max_queued: TABLES, ..patient_limits(TABLES) },
        network: Network {
            delay_us: 100..101,
            spike_us: 0..1,
            block_us: how.grain_us..how.grain_us + 1,
            pieces: 1,
            join_us: 1_000_000..1_000_001,
            probe_us: 10_000_000,
            restart_us: 0..1,
            fence_us: 0..1,
            split_us: 0..1,
            split_router: false,
            split_breaks: false,
            split_stops_bytes: false,
            halves_pair_once: false,
        },
        faults: FaultRates::default(),
        turn_us: 1..2,
        unrest_us: 1,
        crossed: false,
        names_are_global: false,
        requests: asks,
    }
}

/// As production engines are, with room for everybody who is there at once.
fn engine(role: EngineRole, layout: &KvLayout, longest: usize, num_blocks: u32) -> EngineSpec {
    EngineSpec {
        role,
        layout: layout.clone(),
        block_units: 1,
        num_blocks,
        max_model_len: longest,
        max_running: 1 << 10,
        step_tokens: TABLES,
        max_waiting: TABLES,
        max_receiving: 1 << 10,
        max_inbound_blocks: usize::MAX / 2,
        watermark_blocks: num_blocks as usize / 100,
        prefix_cache: false,
        recompute: true,
        kv_timeout_ms: 1_000_000,
        retain: None,
        reuse_threshold: 1,
        reuse_timeout_ms: 5_000,
        compatible: true,
        clock: Clock::TRUE,
    }
}

/// A simulated token stands for so many.
fn of_grains(profile: &CostProfile, tokens: f64) -> CostProfile {
    let mut of_grains = *profile;
    of_grains.prefill.per_token_us *= tokens;
    of_grains.prefill.per_token2_ns *= tokens * tokens;
    of_grains.decode.base_us *= tokens;
    of_grains.decode.per_seq_us *= tokens;
    of_grains.decode.per_ctx_token_ns *= tokens * tokens;
    of_grains
}
