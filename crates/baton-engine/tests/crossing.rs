//! Two engines that hand over to each other.

mod toy;

use std::time::Duration;

use baton_engine::{Config, HandOff};
use baton_types::{Time, TransferId, TransferMode};
use toy::pair::{Job, Pair, config, job};
use toy::solo::End;
use toy::{Dice, prompt};

const MODES: [TransferMode; 3] = [TransferMode::Pull, TransferMode::EarlyPull, TransferMode::Push];

/// Two of each engine's four transfers, in which order the legs come to both.
fn crossing(mode: TransferMode, destination_first: bool) -> Pair {
    let mut pair = Pair::new([config(0, 8, 4), config(1, 8, 4)]);
    for transfer in 0..4 {
        let source = transfer as usize % 2;
        let lag = Duration::from_millis(200);
        let job = Job { source, lag, destination_first, ..job(mode, transfer, 16) };
        pair.start(Time::ZERO, job, TransferId(transfer.into()));
    }
    pair
}

/// Each engine's pool is full of KV for the other one, which has no room for it; or of blocks for KV that the other one has no room
/// to compute.
#[test]
fn engines_that_hand_over_to_each_other_do_not_wait_for_each_other() {
    for mode in MODES {
        for destination_first in [false, true] {
            let mut pair = crossing(mode, destination_first);
            let idle = pair.run_until_idle();
            let early = idle < Time::from_millis(2_000);
            assert!(early, "{mode:?}: long before a lease runs out, not at {idle:?}\n{}", pair.log);
        }
    }
}

/// As above, with all sizes, orders and modes, and with others that are asked of one engine alone.
#[test]
fn in_small_pools_nobody_waits_for_a_time_limit_in_either_direction() {
    let (mut received, mut refused) = (0, 0);
    for seed in 0..1_000 {
        let mut dice = Dice(seed * 1000 + 7);
        let mut small = |node| {
            let config = config(node, 8 + dice.below(8) as u32, 4);
            let max_receiving = 1 + dice.below(5) as usize;
            Config { max_receiving, watermark_blocks: dice.below(3) as usize, ..config }
        };
        let mut pair = Pair::new([small(0), small(1)]);
        let longest = 1 + dice.below(30);
        for transfer in 0..16 {
            let job = Job {
                source: dice.below(2) as usize,
                max_tokens: 1 + dice.below(8) as u32,
                lag: Duration::from_millis(dice.below(300)),
                destination_first: dice.one_in(2),
                ..job(MODES[dice.below(3) as usize], transfer, 1 + dice.below(longest) as usize)
            };
            pair.start(Time::from_millis(dice.below(500)), job, TransferId(transfer.into()));
            if dice.one_in(4) {
                let (prompt, transfer) = (prompt(99 + transfer, 1 + dice.below(24) as usize), transfer);
                pair.ask(dice.below(2) as usize, prompt, 1 + transfer as u32);
            }
        }
        let idle = pair.run_until_idle();
        assert!(idle < Time::from_millis(20_000), "seed {seed}: idle only at {idle:?}\n{}", pair.log);
        let counters = [0, 1].map(|node| pair.nodes[node].core.stats().counters);
        for node in [0, 1] {
            let (lost, sources_refused) = (counters[node].transfers_lost, counters[1 - node].refused);
            assert!(lost <= sources_refused, "seed {seed}: lost for nothing\n{}", pair.log);
            received += counters[node].transfers_received;
            refused += counters[node].refused;
        }
    }
    assert!(received > 5_000 && refused > 1_000, "{received} {refused}");
}

/// Two engines with 16 blocks each that know that both directions are asked of them, and how many requests each has had.
fn acquainted() -> Pair {
    let mut pair = Pair::new([config(0, 16, 4), config(1, 16, 4)]);
    for transfer in 0..2 {
        let job = Job { source: transfer as usize, ..job(TransferMode::Pull, transfer, 8) };
        pair.start(Time::ZERO, job, TransferId(transfer.into()));
    }
    pair.run_until_idle();
    pair
}

/// A hundred requests, the largest of which take half of a pool.
fn start_many(pair: &mut Pair, mode: TransferMode, within_ms: u64) {
    let mut dice = Dice(5);
    for transfer in 2..102 {
        let lag = Duration::from_millis(dice.below(100));
        let (source, len) = (transfer as usize % 2, 1 + dice.below(30) as usize);
        let job = Job { source, lag, destination_first: dice.one_in(2), ..job(mode, transfer, len) };
        pair.start(pair.now + Duration::from_millis(dice.below(within_ms)), job, TransferId(transfer.into()));
    }
}

/// Sources wait for their half, so that a router which tries but once is never refused as long as peers have pools of one size.
#[test]
fn pulls_in_both_directions_are_not_refused() {
    let mut pair = acquainted();
    start_many(&mut pair, TransferMode::Pull, 1);
    pair.run_until_idle();
    for node in &pair.nodes {
        let counters = node.core.stats().counters;
        assert_eq!((counters.refused, counters.transfers_received, counters.transfers_lost), (0, 51, 0));
    }
}

/// More to receive than half of the pool is refused, and leaves the sources theirs.
#[test]
fn pushes_in_both_directions_do_not_keep_sources_out() {
    let mut pair = acquainted();
    start_many(&mut pair, TransferMode::Push, 2_000);
    pair.run_until_idle();
    for node in &pair.nodes {
        let refused = node.answers.values().filter(|(_, answer)| matches!(answer.end, Some(End::Refused(_))));
        let (sources, destinations): (Vec<_>, Vec<_>) =
            refused.partition(|(request, _)| matches!(request.hand_off, HandOff::ToPeer { .. }));
        assert_eq!((sources.len(), destinations.is_empty()), (0, false));
        assert_eq!(node.core.stats().counters.transfers_lost, 0);
    }
}

/// KV that nobody comes for fills the half of the sources until its lease ends. Another source waits, but nobody waits for it.
#[test]
fn what_computes_for_itself_passes_sources_that_have_no_room() {
    let mut pair = acquainted();
    let half = job(TransferMode::Pull, 5, 30);
    pair.start(pair.now, Job { abandoned: true, ..half.clone() }, TransferId(5));
    pair.start(pair.now, half, TransferId(6));
    while pair.nodes[0].core.stats().waiting == 0 || pair.nodes[0].core.stats().running > 0 {
        assert!(pair.step());
    }
    let asked = pair.now;
    pair.ask(0, prompt(7, 20), 4);
    while pair.answer(0, 4).end.is_none() {
        assert!(pair.step());
    }
    assert!(pair.now < asked + Duration::from_secs(1), "at {:?}, asked at {asked:?}", pair.now);
    assert_eq!(pair.nodes[0].core.stats().waiting, 1, "the source");
    pair.run_until_idle();
}
