//! What is retained may end at any moment: before it is claimed, between claim and read, during the read, between two turns. Each time
//! the answer is the same, and clocks that are hours apart change nothing.

use baton_routing::Strategy;
use baton_sim::{
    After, Ask, Clock, Conversation, EngineSpec, FaultRates, Outcome, Reference, RetainSpec, Scenario,
    SimConfig, Tally, try_scenario,
};
use baton_types::{EngineRole, KvDtype, KvLayout, KvOrder, TokenId, TransferMode};

const TTL_MS: u64 = 400;
/// Of a whole read: 15 units.
const UNIT_US: u64 = 2_000;

fn layout() -> KvLayout {
    KvLayout {
        layers: 1,
        kv_heads: 4,
        head_dim: 4,
        dtype: KvDtype::F32,
        block_tokens: 4,
        ranks: 1,
        order: KvOrder::BlockMajor,
    }
}

fn engine(role: EngineRole, clock: Clock, drawn: &EngineSpec) -> EngineSpec {
    EngineSpec {
        role,
        layout: layout(),
        block_units: 1,
        num_blocks: 100,
        max_model_len: 200,
        step_tokens: 64,
        watermark_blocks: 0,
        prefix_cache: false,
        retain: (role == EngineRole::Decode).then_some(RetainSpec {
            ttl_ms: TTL_MS,
            renewable: false,
            blocks: 100,
        }),
        reuse_threshold: 4,
        reuse_timeout_ms: 10_000,
        clock,
        ..drawn.clone()
    }
}

/// Two turns: the second brings the first one's reference when its time is about to end, or is over.
fn two_turns(mode: TransferMode, clocks: [Clock; 2], think_us: u64) -> Scenario {
    let calm = Scenario::draw(1, false);
    let ask = |number: u64, tokens: u32| Ask {
        number,
        at_us: 200_000,
        after: None,
        prompt: (0..tokens).map(TokenId).collect(),
        tenant: "a".into(),
        salt: String::new(),
        conversation: Conversation::Named("talk".into()),
        reference: Reference::Found,
        max_tokens: 6,
        min_tokens: 0,
        stop_tokens: Vec::new(),
        stop_after: None,
        streaming: true,
        sample_seed: None,
    };
    let second =
        Ask { after: Some(After { number: 0, think_us }), reference: Reference::Of(0), ..ask(1, 70) };
    let mut scenario = Scenario {
        strategy: Strategy::Bidirectional(mode),
        engines: vec![
            engine(EngineRole::Prefill, clocks[0], &calm.engines[0]),
            engine(EngineRole::Decode, clocks[1], &calm.engines[0]),
        ],
        crossed: false,
        layout: layout(),
        faults: FaultRates::default(),
        requests: vec![ask(0, 60), second],
        ..calm
    };
    scenario.proto.lease_ms = 30_000;
    scenario.network.delay_us = 500..501;
    scenario.network.block_us = UNIT_US..UNIT_US + 1;
    scenario.network.pieces = 1;
    scenario
}

fn run(scenario: &Scenario) -> Outcome {
    try_scenario(&SimConfig::default(), scenario).unwrap_or_else(|failed| panic!("{failed}"))
}

/// The sum over second turns that come at any moment from a read's time before the end to after it.
fn sweep(mode: TransferMode, clocks: [Clock; 2]) -> Tally {
    let mut total = Tally::default();
    for think_us in (TTL_MS * 1_000 - 100_000..TTL_MS * 1_000 + 20_000).step_by(2_000) {
        let outcome = run(&two_turns(mode, clocks, think_us));
        assert_eq!(outcome.tally.answered, 2, "{mode:?} after {think_us} us");
        total.merge(&outcome.tally);
    }
    total
}

#[test]
fn whenever_it_ends_the_answer_is_the_same() {
    for mode in [TransferMode::Push, TransferMode::Pull, TransferMode::EarlyPull] {
        let total = sweep(mode, [Clock::TRUE; 2]);
        let ends = [total.readbacks_done, total.readbacks_expired, total.declined];
        assert!(ends.iter().all(|ends| *ends > 2), "{mode:?}: {total}");
    }
}

#[test]
fn clocks_that_are_hours_apart_change_nothing() {
    let late = Clock { ahead_ms: 0, rate_ppm: 1_000_000 };
    let early = Clock { ahead_ms: 36_000_000, rate_ppm: 1_000_000 };
    let wanted = sweep(TransferMode::Push, [Clock::TRUE; 2]);
    for clocks in [[late, early], [early, late]] {
        assert_eq!(sweep(TransferMode::Push, clocks), wanted, "{clocks:?}");
    }
}
