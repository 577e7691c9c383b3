//! Two engines and what may happen between them.

mod toy;

use std::time::Duration;

use baton_engine::{Config, FinishReason, Input, OnLostKv, Refusal, SeqFailure};
use baton_types::{Mutation, SeqId, Time, TransferId, TransferMode};
use toy::pair::{Happening, Job, Pair, config, job};
use toy::solo::{Answer, End};
use toy::{Dice, oracle, prompt, request};

const MODES: [TransferMode; 3] = [TransferMode::Pull, TransferMode::EarlyPull, TransferMode::Push];

fn pair() -> Pair {
    Pair::new([config(0, 32, 4), config(1, 32, 4)])
}

fn reason(answer: &Answer) -> FinishReason {
    match answer.end {
        Some(End::Finished(reason, ..)) => reason,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn decode_says_what_one_engine_would_say_and_computes_no_prompt() {
    for mode in MODES {
        for len in [1, 3, 4, 5, 8, 19, 32] {
            let mut pair = pair();
            pair.start(Time::ZERO, job(mode, 1, len), TransferId(1));
            pair.run_to_end();
            assert_eq!(pair.answer(1, 0).tokens, oracle(&request(0, prompt(1, len), 6), 1000));
            let (source, destination) = (pair.nodes[0].core.stats(), pair.nodes[1].core.stats());
            assert_eq!(source.counters.computed_tokens as usize, len);
            assert_eq!(destination.counters.computed_tokens, 5, "{mode:?} {len}");
            assert_eq!((source.counters.transfers_sent, destination.counters.transfers_received), (1, 1));
            assert_eq!(destination.counters.received_tokens as usize, len);
        }
    }
}

#[test]
fn what_either_side_has_already_is_neither_computed_nor_moved() {
    for mode in MODES {
        let mut pair = pair();
        pair.start(Time::ZERO, job(mode, 1, 12), TransferId(1));
        pair.run_to_end();
        let mut longer = job(mode, 1, 12);
        longer.prompt.extend(prompt(2, 5));
        pair.start(pair.now, longer.clone(), TransferId(2));
        pair.run_to_end();
        assert_eq!(pair.answer(1, 1).tokens, oracle(&request(0, longer.prompt, 6), 1000));
        let (source, destination) = (pair.nodes[0].core.stats(), pair.nodes[1].core.stats());
        assert_eq!(source.counters.computed_tokens, 12 + 5);
        assert_eq!(destination.counters.received_tokens, 12 + 5);
        let Some(End::Finished(_, usage, _)) = pair.answer(1, 1).end.clone() else { panic!() };
        assert_eq!((usage.cached_tokens, usage.received_tokens), (12, 5));
        let Some(End::Finished(_, _, Some(handle))) = pair.answer(0, 1).end.clone() else { panic!() };
        assert_eq!((handle.tokens, handle.cached_tokens), (17, 12));
    }
}

#[test]
fn a_first_token_that_ends_the_answer_ends_it_without_a_step() {
    for mode in MODES {
        let mut pair = pair();
        pair.start(Time::ZERO, Job { max_tokens: 1, ..job(mode, 1, 9) }, TransferId(1));
        pair.run_to_end();
        assert_eq!(pair.answer(1, 0).tokens.len(), 1);
        assert_eq!(pair.nodes[1].core.stats().counters.steps, 0);
    }
}

/// Two sequences at a decode engine with one place: whether the second one's first token came while the first still ran.
fn is_first_token_early(hold_first_token: bool) -> bool {
    let narrow = Config { max_running: 1, hold_first_token, ..config(1, 32, 4) };
    let mut pair = Pair::new([config(0, 32, 4), narrow]);
    for (i, family) in [(1, 1), (2, 2)] {
        pair.start(Time::ZERO, job(TransferMode::Push, family, 9), TransferId(i));
    }
    let mut is_early = false;
    while pair.step() {
        let answers = &pair.nodes[1].answers;
        let given = |seq| answers.get(&SeqId(seq)).map_or(0, |(_, answer)| answer.tokens.len());
        is_early |= given(0) < 6 && given(1) > 0;
    }
    pair.run_to_end();
    assert_eq!([0, 1].map(|seq| pair.answer(1, seq).tokens.len()), [6, 6]);
    is_early
}

#[test]
fn a_first_token_may_be_held_until_the_next_can_follow() {
    assert!(is_first_token_early(false));
    assert!(!is_first_token_early(true));
}

#[test]
fn a_push_may_be_told_to_write_everything_at_the_end() {
    let posts = |push_at_end| {
        let source = Config { push_at_end, ..config(0, 32, 4) };
        let mut pair = Pair::new([source, config(1, 32, 4)]);
        // Three chunks of 8 tokens.
        pair.start(Time::ZERO, job(TransferMode::Push, 1, 24), TransferId(1));
        pair.run_to_end();
        pair.log.lines().filter(|line| line.contains("P -> post")).count()
    };
    assert_eq!((posts(true), posts(false)), (1, 3));
}

/// Runs the same game again and again, each time interrupted one event later.
fn interrupted_at_each_moment(mode: TransferMode, destination_first: bool, node: usize) {
    let mut moments = 0;
    loop {
        let mut pair = pair();
        let lag = Duration::from_millis(12);
        let job = Job { destination_first, lag, ..job(mode, 1, 18) };
        pair.start(Time::ZERO, job, TransferId(1));
        for _ in 0..moments {
            if !pair.step() {
                assert!(moments > 20, "the game is long enough");
                return;
            }
        }
        pair.input(node, Input::Abort { seq: SeqId(0) });
        pair.run_to_end();
        for node in [0, 1] {
            let lost = pair.nodes[node].core.stats().counters;
            assert_eq!(
                lost.failed, 0,
                "a lost transfer is computed again, or was aborted: {mode:?} {moments}"
            );
        }
        moments += 1;
    }
}

#[test]
fn a_pull_may_be_aborted_at_each_moment() {
    for node in [0, 1] {
        interrupted_at_each_moment(TransferMode::Pull, false, node);
    }
}

#[test]
fn a_push_may_be_aborted_at_the_source_at_each_moment() {
    for first in [false, true] {
        interrupted_at_each_moment(TransferMode::Push, first, 0);
    }
}

#[test]
fn a_push_may_be_aborted_at_the_destination_at_each_moment() {
    for first in [false, true] {
        for moments in 0..60 {
            let mut pair = pair();
            let lag = Duration::from_millis(12);
            pair.start(
                Time::ZERO,
                Job { destination_first: first, lag, ..job(TransferMode::Push, 1, 18) },
                TransferId(1),
            );
            for _ in 0..moments {
                pair.step();
            }
            pair.input(1, Input::Abort { seq: SeqId(0) });
            pair.run_to_end();
            // The source computes no further for a destination that is gone.
            let end = reason(pair.answer(0, 0));
            assert!(
                matches!(end, FinishReason::Length | FinishReason::Failed(SeqFailure::Receiver(_))),
                "{end:?}"
            );
        }
    }
}

#[test]
fn kv_that_nobody_comes_for_is_freed() {
    for mode in MODES {
        let mut pair = pair();
        pair.start(Time::ZERO, Job { abandoned: true, ..job(mode, 1, 18) }, TransferId(1));
        pair.run_to_end();
        assert_eq!(pair.nodes[0].core.stats().counters.transfers_unsent, 1);
    }
}

#[test]
fn a_destination_that_refuses_frees_the_sources_blocks_at_once() {
    let small = Config { max_model_len: 10, ..config(1, 32, 4) };
    let mut pair = Pair::new([config(0, 32, 4), small]);
    pair.start(Time::ZERO, job(TransferMode::Pull, 1, 18), TransferId(1));
    assert!(pair.run_until_idle() < Time::from_millis(1_000), "before the lease runs out");
    assert!(matches!(pair.answer(1, 0).end, Some(End::Refused(_))));
}

#[test]
fn a_source_that_refuses_lets_the_destination_go_on_at_once() {
    let small = Config { max_model_len: 10, ..config(0, 32, 4) };
    for first in [false, true] {
        let mut pair = Pair::new([small.clone(), config(1, 32, 4)]);
        let lag = Duration::from_millis(50);
        pair.start(
            Time::ZERO,
            Job { destination_first: first, lag, ..job(TransferMode::Push, 1, 18) },
            TransferId(1),
        );
        assert!(pair.run_until_idle() < Time::from_millis(1_000), "before any time limit");
        assert!(matches!(pair.answer(0, 0).end, Some(End::Refused(_))));
        assert_eq!(pair.answer(1, 0).tokens.len(), 6);
    }
}

#[test]
fn lost_kv_fails_the_sequence_where_that_is_wanted() {
    let strict = Config { on_lost_kv: OnLostKv::Fail, ..config(1, 32, 4) };
    let mut pair = Pair::new([config(0, 32, 4), strict]);
    pair.start(Time::ZERO, job(TransferMode::Push, 1, 18), TransferId(1));
    while pair.nodes[1].core.stats().receiving == 0 {
        assert!(pair.step());
    }
    pair.input(0, Input::Abort { seq: SeqId(0) });
    pair.run_to_end();
    assert!(matches!(reason(pair.answer(1, 0)), FinishReason::Failed(SeqFailure::Kv(_))));
}

/// Prefill's pool is full of KV that decode has no blocks for, and decode's of blocks for KV that prefill has no room to compute.
#[test]
fn neither_engine_holds_what_the_other_waits_for() {
    for mode in [TransferMode::EarlyPull, TransferMode::Push] {
        let mut pair = Pair::new([config(0, 8, 4), config(1, 8, 4)]);
        for transfer in 1..5 {
            // In one order at prefill, and in another at decode.
            let destination_first = transfer < 3;
            let lag = Duration::from_millis(200);
            let job = Job { destination_first, lag, ..job(mode, transfer, 16) };
            pair.start(Time::ZERO, job, TransferId(transfer.into()));
        }
        assert!(pair.run_until_idle() < Time::from_millis(2_000), "{mode:?}: long before a lease runs out");
        let counters = pair.nodes[1].core.stats().counters;
        assert_eq!((counters.transfers_received, counters.transfers_lost), (2, 0), "{mode:?}");
        for seq in [2, 3] {
            let end = &pair.answer(1, seq).end;
            assert!(matches!(end, Some(End::Refused(Refusal::KvInFlight(_)))), "{mode:?}: {end:?}");
        }
    }
}

/// What decode takes on comes over, however small the pools are and in whatever order the legs come.
#[test]
fn in_small_pools_no_transfer_waits_for_a_time_limit() {
    let (mut received, mut refused) = (0, 0);
    for seed in 0..300 {
        let mut dice = Dice(seed * 1000);
        let mut small = |node| {
            let config = config(node, 8 + dice.below(8) as u32, 4);
            let max_receiving = 1 + dice.below(5) as usize;
            Config { max_receiving, watermark_blocks: dice.below(3) as usize, ..config }
        };
        let mut pair = Pair::new([small(0), small(1)]);
        for transfer in 0..12 {
            let job = Job {
                max_tokens: 1 + dice.below(8) as u32,
                lag: Duration::from_millis(dice.below(300)),
                destination_first: dice.one_in(2),
                ..job(MODES[dice.below(3) as usize], transfer, 1 + dice.below(30) as usize)
            };
            pair.start(Time::from_millis(dice.below(300)), job, TransferId(transfer.into()));
            if dice.one_in(4) {
                let (prompt, transfer) = (prompt(99 + transfer, 1 + dice.below(24) as usize), transfer);
                pair.ask(1, prompt, 1 + transfer as u32);
            }
        }
        let idle = pair.run_until_idle();
        assert!(idle < Time::from_millis(20_000), "seed {seed}: idle only at {idle:?}\n{}", pair.log);
        let counters = pair.nodes[1].core.stats().counters;
        assert_eq!(counters.transfers_lost, 0, "seed {seed}");
        received += counters.transfers_received;
        refused += counters.refused;
    }
    assert!(received > 1_000 && refused > 300, "{received} {refused}");
}

#[test]
fn one_transfer_serves_one_sequence() {
    for mode in MODES {
        let mut pair = pair();
        let job = job(mode, 1, 18);
        pair.start(Time::ZERO, job.clone(), TransferId(1));
        // The same handle again, while the first is there and long after.
        for at in [1, 15, 45, 70, 500] {
            let again = Happening::Submit { job: job.clone(), transfer: TransferId(1), is_source: false };
            pair.at(Time::from_millis(at), 1, again);
        }
        pair.run_to_end();
        assert!(pair.nodes[1].core.stats().counters.transfers_received <= 1);
    }
}

#[test]
fn random_games_end_with_the_right_words_and_empty_tables() {
    let mut totals = baton_engine::Counters::default();
    for seed in 0..400 {
        let pair = random_game(seed, Mutation::NONE);
        for node in &pair.nodes {
            let counters = node.core.stats().counters;
            totals.transfers_received += counters.transfers_received;
            totals.transfers_lost += counters.transfers_lost;
            totals.preemptions += counters.preemptions;
            totals.recomputed += counters.recomputed;
            totals.aborted += counters.aborted;
            totals.readbacks_done += counters.readbacks_done;
            totals.readbacks_declined += counters.readbacks_declined;
            totals.retained_expired += counters.retained_expired;
            totals.retained_revoked += counters.retained_revoked;
        }
    }
    // The games reach what they are for.
    assert!(totals.transfers_received > 500, "{totals:?}");
    assert!(totals.transfers_lost > 50 && totals.recomputed > 50, "{totals:?}");
    assert!(totals.preemptions > 50 && totals.aborted > 50, "{totals:?}");
    assert!(totals.readbacks_done > 100 && totals.readbacks_declined > 50, "{totals:?}");
    assert!(totals.retained_expired > 50 && totals.retained_revoked > 50, "{totals:?}");
}

/// I10.
#[test]
fn a_random_game_is_the_same_when_played_again() {
    for seed in 0..10 {
        assert_eq!(random_game(seed, Mutation::NONE).log, random_game(seed, Mutation::NONE).log);
    }
}

/// The games must be able to lose.
#[cfg(feature = "mutants")]
#[test]
fn random_games_catch_the_bugs_that_are_put_in() {
    use baton_types::Mutant;

    for mutant in [
        Mutant::FreeWithoutQuarantine,
        Mutant::ReadyOneNotificationEarly,
        Mutant::PrefixHitOffByOne,
        Mutant::RetentionRenewedOnAccess,
        Mutant::GrantBeyondCommonPrefix,
        Mutant::FreedDuringRead,
        Mutant::RetainUncomputed,
    ] {
        let caught = (0..1000).find(|seed| {
            std::panic::catch_unwind(|| drop(random_game(*seed, Mutation::of(mutant)))).is_err()
        });
        assert!(caught.is_some(), "{mutant:?} goes unnoticed");
    }
}

/// Turn after turn of one conversation, and where each turn's KV came from.
fn conversation(job: Job, configs: [Config; 2]) -> Pair {
    let mut pair = Pair::new(configs);
    pair.start(Time::ZERO, job, TransferId(1));
    pair.run_to_end();
    pair
}

#[test]
fn prefill_reads_back_what_decode_kept() {
    for mode in MODES {
        let forgetful = Config { prefix_cache: false, ..config(0, 32, 4) };
        let pair = conversation(Job { turns: 2, ..job(mode, 1, 18) }, [forgetful, config(1, 32, 4)]);
        let (source, destination) = (pair.nodes[0].core.stats(), pair.nodes[1].core.stats());
        // 18 + 6 tokens, of which the last was never computed, are 5 full blocks; then 29 + 6, which are 8.
        assert_eq!(source.counters.readback_tokens, 20 + 32);
        assert_eq!(source.counters.computed_tokens, 18 + (29 - 20) + (40 - 32));
        assert_eq!((source.counters.readbacks_done, destination.counters.lent_done), (2, 2));
        assert_eq!(destination.counters.retained_expired, 3, "none is renewed by being read");
        let Some(End::Finished(_, usage, Some(handle))) = pair.answer(0, 2).end.clone() else { panic!() };
        assert_eq!((usage.cached_tokens, usage.hit_tokens, handle.cached_tokens), (32, 0, 32));
        // Decode has the history still, and receives what is new.
        assert_eq!(destination.counters.received_tokens, 18 + (29 - 20) + (40 - 32));
    }
}

#[test]
fn an_edited_history_reuses_what_is_still_true() {
    let forgetful = Config { prefix_cache: false, ..config(0, 32, 4) };
    let edited = Job { turns: 1, edited_from: Some(10), ..job(TransferMode::Push, 1, 18) };
    let pair = conversation(edited, [forgetful, config(1, 32, 4)]);
    assert_eq!(pair.nodes[0].core.stats().counters.readback_tokens, 8);
}

#[test]
fn what_its_own_cache_has_is_not_read_back() {
    let pair = conversation(
        Job { turns: 1, ..job(TransferMode::Push, 1, 18) },
        [config(0, 32, 4), config(1, 32, 4)],
    );
    let source = pair.nodes[0].core.stats().counters;
    // Its own 4 full blocks of the prompt, and one block of what decode made of it.
    assert_eq!((source.prefix_hit_tokens, source.readback_tokens), (16, 4));
}

#[test]
fn fewer_tokens_than_the_threshold_are_computed() {
    let picky = Config { prefix_cache: false, reuse_threshold: 21, ..config(0, 32, 4) };
    let pair = conversation(Job { turns: 1, ..job(TransferMode::Push, 1, 18) }, [picky, config(1, 32, 4)]);
    let source = pair.nodes[0].core.stats().counters;
    assert_eq!((source.reuse_requests, source.reuse_unused, source.readbacks), (1, 1, 0));
}

#[test]
fn what_is_kept_gives_way_to_whoever_needs_room() {
    // 12 blocks: a conversation of 5, and another that needs 9.
    let small = Config { watermark_blocks: 0, max_retained_blocks: 12, ..config(1, 12, 4) };
    let mut pair = Pair::new([config(0, 32, 4), small]);
    pair.start(Time::ZERO, job(TransferMode::Push, 1, 18), TransferId(1));
    pair.start(Time::from_millis(2_000), job(TransferMode::Push, 2, 30), TransferId(2));
    pair.run_until_idle();
    let destination = pair.nodes[1].core.stats().counters;
    assert_eq!((destination.retained, destination.retained_revoked), (2, 1));
}

/// Runs the same conversation again and again, each time revoking what is kept one event later.
#[test]
fn what_is_kept_may_be_revoked_at_each_moment() {
    let (mut read, mut declined) = (0, 0);
    for moments in 0.. {
        let forgetful = Config { prefix_cache: false, ..config(0, 32, 4) };
        let mut pair = Pair::new([forgetful, config(1, 16, 4)]);
        pair.start(Time::ZERO, Job { turns: 1, ..job(TransferMode::Push, 1, 18) }, TransferId(1));
        if !(0..moments).all(|_| pair.step()) {
            break;
        }
        // A request of one engine alone that needs nearly all its blocks.
        pair.ask(1, prompt(9, 50), 2);
        pair.run_to_end();
        read += pair.nodes[0].core.stats().counters.readbacks_done;
        declined += pair.nodes[0].core.stats().counters.readbacks_declined;
    }
    assert!(read > 10 && declined > 10, "{read} {declined}");
}

/// Jobs in both directions, in both modes, with clients that leave, between two small engines.
fn random_game(seed: u64, mutation: Mutation) -> Pair {
    let mut dice = Dice(seed * 1000);
    let mut pair = random_pair(&mut dice, mutation);
    for i in 0..4 + dice.below(16) {
        let job = Job {
            source: dice.below(2) as usize,
            mode: MODES[dice.below(3) as usize],
            prompt: prompt(dice.below(3), 1 + dice.below(30) as usize),
            max_tokens: 1 + dice.below(8) as u32,
            lag: Duration::from_millis(dice.below(80)),
            destination_first: dice.one_in(2),
            abandoned: dice.one_in(10),
            turns: dice.below(4),
            edited_from: dice.one_in(3).then(|| dice.below(40) as usize),
            kept: None,
        };
        pair.start(Time::from_millis(dice.below(400)), job, TransferId(u128::from(i)));
    }
    for _ in 0..dice.below(16) {
        let seq = SeqId(dice.below(16));
        let input = if dice.one_in(2) { Input::Abort { seq } } else { Input::Stop { seq } };
        let node = dice.below(2) as usize;
        pair.at(Time::from_millis(dice.below(600)), node, Happening::Input(Box::new(input)));
    }
    for _ in 0..dice.below(4) {
        pair.at(Time::from_millis(dice.below(600)), 0, Happening::Cut);
    }
    pair.dice = Some(dice);
    pair.run_to_end();
    pair
}

fn random_pair(dice: &mut Dice, mutation: Mutation) -> Pair {
    let unit_tokens = 1 + dice.below(3) as u32;
    let mut next = |node| {
        let block_units = 1 + dice.below(3) as u32;
        let block_tokens = unit_tokens * block_units;
        let mut config = config(node, 32 / block_tokens + dice.below(20) as u32, block_tokens);
        config.proto.mutation = mutation;
        config.proto.shape.units *= block_units;
        config.proto.shape.block_units = block_units;
        config.proto.retain_ttl = Duration::from_millis([50, 300, 3_000, 60_000][dice.below(4) as usize]);
        config.proto.retain_renewable = dice.one_in(4);
        config.max_retained_blocks = dice.below(u64::from(config.num_blocks) + 1) as usize;
        Config {
            max_running: 1 + dice.below(4) as usize,
            max_receiving: 1 + dice.below(4) as usize,
            prefix_cache: !dice.one_in(3),
            hold_first_token: dice.one_in(2),
            push_at_end: dice.one_in(4),
            watermark_blocks: dice.below(3) as usize,
            mutation,
            ..config
        }
    };
    let mut pair = Pair::new([next(0), next(1)]);
    pair.failing_posts = [0, 5][dice.below(2) as usize];
    pair
}
