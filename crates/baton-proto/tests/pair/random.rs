//! Anything at any time: the promises hold, and in the end nothing is left.

use std::time::Duration;

use baton_proto::{Held, Input, codec};
use baton_types::TransferId;
use proptest::prelude::*;

use crate::world::{PREFILLED, World, chain, content, forked_chain, units};

/// One engine's command, or a fault.
#[derive(Clone, Debug)]
enum Step {
    Offer(u8),
    Fetch {
        transfer: u8,
        early: bool,
    },
    Send(u8),
    Finish(u8),
    Receive(u8),
    Expect(u8),
    /// Decode keeps what it has.
    Retain(u8),
    Revoke(u8),
    /// Prefill reads of it what a prompt of four units, with so many in common, can use.
    ReadBack {
        retention: u8,
        common: usize,
        first: usize,
    },
    Cancel {
        node: usize,
        transfer: u8,
    },
    Crash(usize),
    Wait(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let transfer = 0u8..6;
    prop_oneof![
        3 => transfer.clone().prop_map(Step::Offer),
        3 => (transfer.clone(), any::<bool>()).prop_map(|(transfer, early)| Step::Fetch { transfer, early }),
        3 => transfer.clone().prop_map(Step::Send),
        4 => transfer.clone().prop_map(Step::Finish),
        3 => transfer.clone().prop_map(Step::Receive),
        2 => transfer.clone().prop_map(Step::Expect),
        3 => transfer.clone().prop_map(Step::Retain),
        1 => transfer.clone().prop_map(Step::Revoke),
        5 => (transfer.clone(), 0usize..=3, 0usize..3)
            .prop_map(|(retention, common, first)| Step::ReadBack { retention, common, first }),
        2 => (0usize..2, transfer).prop_map(|(node, transfer)| Step::Cancel { node, transfer }),
        1 => (0usize..2).prop_map(Step::Crash),
        6 => (0u16..4000).prop_map(Step::Wait),
    ]
}

/// What the engines of this test remember of each transfer, so that they keep to the rules of the commands.
#[derive(Default)]
struct Engines {
    /// Per side: the incarnation in which this transfer was named to the endpoint.
    named: [[bool; 6]; 2],
    expected: [bool; 6],
    /// How many units have been named in Progress.
    sent: [Option<u32>; 6],
    /// The retention by this number that decode has now, or had last.
    retentions: [u128; 6],
    readbacks: u128,
    /// How much each readback has in common with what is retained.
    common: std::collections::BTreeMap<TransferId, usize>,
}

/// Ids are never used again.
const RETENTIONS: u128 = 1000;
const READBACKS: u128 = 2000;

fn apply(world: &mut World, engines: &mut Engines, step: Step) {
    let id = |n: u8| TransferId(u128::from(n) + 1);
    let at = |n: u8| u32::from(n) * 10;
    let mine = |n: u8| units(at(n)..at(n) + 3);
    match step {
        Step::Offer(n) | Step::Send(n) => {
            if std::mem::replace(&mut engines.named[0][n as usize], true) {
                return;
            }
            engines.sent[n as usize] = Some(0);
            world.hold(0, id(n), &mine(n), true, Vec::new());
            let (transfer, chain) = (id(n), chain(at(n), 3));
            world.input(
                0,
                match step {
                    Step::Offer(_) => Input::Offer { transfer, chain },
                    _ => Input::Send { transfer, chain },
                },
            );
        }
        Step::Finish(n) => {
            let Some(done) = engines.sent[n as usize] else { return };
            // An engine whose transfer has ended stops naming it.
            if world.nodes[0].endings.contains_key(&id(n)) {
                engines.sent[n as usize] = None;
                return;
            }
            if done < 3 {
                engines.sent[n as usize] = Some(done + 1);
                world.progress(0, id(n), done as usize, units(at(n) + done..at(n) + done + 1));
            } else {
                engines.sent[n as usize] = None;
                world.input(0, Input::Complete { transfer: id(n), prefilled: PREFILLED });
            }
        }
        Step::Expect(n) => {
            if engines.named[1][n as usize] || engines.expected[n as usize] {
                return;
            }
            engines.expected[n as usize] = true;
            world.hold(1, id(n), &[], false, Vec::new());
            let peer = world.address(0);
            world.input(1, Input::Expect { transfer: id(n), peer, early: n % 2 == 0 });
        }
        Step::Fetch { transfer: n, .. } | Step::Receive(n) => {
            let over = world.nodes[1].endings.contains_key(&id(n));
            if engines.named[1][n as usize] || over {
                return;
            }
            engines.named[1][n as usize] = true;
            let wanted = (0..3).map(|i| content(id(n), i)).collect();
            world.hold(1, id(n), &mine(n), false, wanted);
            let (peer, chain, units) = (world.address(0), chain(at(n), 3), mine(n));
            let (transfer, first_unit) = (id(n), 0);
            let input = match step {
                Step::Fetch { early, .. } => {
                    let held = if early { Held::Early } else { Held::Offered };
                    Input::Fetch { transfer, peer, chain, first_unit, units, held }
                }
                _ => Input::Receive { transfer, peer, chain, first_unit, units },
            };
            world.input(1, input);
        }
        Step::Retain(n) => {
            let now = RETENTIONS + engines.retentions[n as usize] * 6 + u128::from(n);
            let kept = units(at(n) + 3..at(n) + 6);
            // A reader of the retention before may still have them: an engine fills no block that is leased (I3).
            let lent = world.is_touchable(1, &kept);
            if lent || world.is_retained(1, TransferId(now)) || world.nodes[1].endpoint.is_none() {
                return;
            }
            engines.retentions[n as usize] += 1;
            world.retain(1, TransferId(now + 6), chain(at(n), 3), kept);
        }
        Step::Revoke(n) => {
            let now = RETENTIONS + engines.retentions[n as usize] * 6 + u128::from(n);
            world.revoke(1, TransferId(now));
        }
        Step::ReadBack { retention: n, common, first } => {
            let retention = TransferId(RETENTIONS + engines.retentions[n as usize] * 6 + u128::from(n));
            let transfer = TransferId(READBACKS + engines.readbacks);
            // Ten places to read into.
            let place = 60 + (engines.readbacks % 10) as u32 * 4;
            let before = TransferId(transfer.0.saturating_sub(10));
            let over = |world: &World| !world.is_open(0, before);
            if !over(world) {
                return;
            }
            engines.readbacks += 1;
            let into = units(place + first as u32..place + 4);
            // Only what is common may ever come: nothing is wanted beyond it.
            world.hold(0, transfer, &into, false, (0..4).map(|i| content(retention, i)).collect());
            let (peer, chain) = (world.address(1), forked_chain(at(n), common, 4));
            let held = Held::Retained(retention);
            world.input(0, Input::Fetch { transfer, peer, chain, first_unit: first, units: into, held });
            engines.common.insert(transfer, common);
        }
        Step::Cancel { node, transfer } => {
            engines.sent[transfer as usize].take_if(|_| node == 0);
            world.input(node, Input::Cancel { transfer: id(transfer) });
        }
        Step::Crash(node) => {
            world.crash(node);
            let pause = world.random(2000);
            let until = world.now + Duration::from_millis(pause);
            world.run(until);
            world.start(node);
            world.nodes[node].endings.clear();
            // The new incarnation starts with nothing; the ids of the old one are not used again.
            engines.named[node] = [true; 6];
            if node == 0 {
                engines.sent = [None; 6];
            } else {
                engines.expected = [true; 6];
            }
        }
        Step::Wait(ms) => {
            let until = world.now + Duration::from_millis(u64::from(ms));
            world.run(until);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_each_transfer_ends_once_and_nothing_is_left(
        seed: u64, delay in 1u64..900, ranks in (0u32..3, 0u32..3), steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut world = World::new(&[("P", 1 << ranks.0), ("D", 1 << ranks.1)], seed, delay);
        let mut engines = Engines::default();
        for step in steps {
            apply(&mut world, &mut engines, step);
        }
        // An engine ends what it began: what is still computing or queued is given up.
        for n in 0..6 {
            for node in 0..2 {
                world.input(node, Input::Cancel { transfer: TransferId(n + 1) });
            }
        }
        let until = world.now + Duration::from_secs(60);
        world.run(until);
        for n in 0..engines.readbacks {
            world.input(0, Input::Cancel { transfer: TransferId(READBACKS + n) });
        }
        let until = world.now + Duration::from_secs(60);
        world.run(until);
        world.assert_drained();
        for (transfer, common) in engines.common {
            if let Some((covered, _)) = world.nodes[0].ready.get(&transfer) {
                prop_assert!(*covered <= common, "I13: {covered} units of {common} that are true");
            }
        }
        for n in 0..6 {
            world.revoke(1, TransferId(RETENTIONS + engines.retentions[n] * 6 + n as u128));
        }
    }

    #[test]
    fn every_frame_decodes_or_is_a_fault(frame in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(message) = codec::decode(&frame) {
            prop_assert_eq!(codec::encode(&message), frame);
        }
    }

    #[test]
    fn strangers_learn_nothing_and_break_nothing(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..20)) {
        let mut world = World::new(&[("P", 1), ("D", 1)], 1, 1);
        let conn = baton_proto::ConnId(1_000_000);
        world.input(0, Input::Accepted { conn });
        for frame in frames {
            world.input(0, Input::Received { conn, frame });
        }
        world.input(0, Input::Closed { conn });
        prop_assert!(!world.log.contains("Granted") && !world.log.contains("Welcome"), "{}", world.log);
    }
}
