//! What the core remembers between requests, as text: an executable specification. `UPDATE_EXPECT=1` rewrites it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::script::Script;
use baton_routing::{
    ConversationLimits, Dropped, EngineKey, Input, LegFault, LegId, Limits, Retained, Strategy,
};
use baton_types::EngineRole::{Both, Decode, Prefill};
use baton_types::{EngineId, EngineName, TransferId, TransferMode};
use expect_test::expect;

const PUSH: Strategy = Strategy::Bidirectional(TransferMode::Push);
const PULL: Strategy = Strategy::Bidirectional(TransferMode::Pull);

/// Two engines of each role; the first turn has gone over prefill e0 and decode e2, which retains it under key 1.
fn after_one_turn(limits: Limits) -> Script {
    let mut s = Script::with_limits(PUSH, &[Prefill, Prefill, Decode, Decode], limits);
    s.at(0).turn(1, &[], 1).first_byte(1).at(10).retained(1, 2, 1, 0xa).ended(1);
    s.transcript();
    s
}

fn dropped(s: &Script) -> BTreeMap<Dropped, u64> {
    s.core.conversations().dropped
}

#[test]
fn the_next_turn_is_given_what_the_last_one_left_and_goes_to_the_same_decode_engine() {
    let mut s = Script::new(PUSH, &[Prefill, Prefill, Decode, Decode]);
    s.at(0).turn(1, &[], 1).first_byte(1).at(10).retained(1, 2, 1, 0xa).ended(1);
    s.at(1000).turn(2, &[3, 2, 1], 4).first_byte(3).retained(3, 2, 1, 0xb).ended(3);
    expect![[r#"
        0ms > Arrive r1, finds [], stores 1
            < StartLeg l0 of r1: Prefill on e0, Push, attempt 1, x0, peer e2 n2@0000000000000001
            < StartLeg l1 of r1: Decode on e2, Push, attempt 1, x0, peer e0 n0@0000000000000001
        0ms > LegFirstByte { leg: l1 }
            < Answer { request: r1, leg: l1 }
        10ms > l1: Retained by n2@0000000000000001 as xa
        10ms > LegEnded { leg: l1, handle: true }
            < DropLeg { leg: l0, fault: None }
            < Finished { request: r1, end: Answered }
        1000ms > Arrive r2, finds [3, 2, 1], stores 4
            < StartLeg l2 of r2: Prefill on e1, Push, attempt 1, x1, peer e2 n2@0000000000000001, reuse xa of e2 n2@0000000000000001, 640 tokens, 474000ms
            < StartLeg l3 of r2: Decode on e2, Push, attempt 1, x1, peer e1 n1@0000000000000001
        1000ms > LegFirstByte { leg: l3 }
            < Answer { request: r2, leg: l3 }
        1000ms > l3: Retained by n2@0000000000000001 as xb
        1000ms > LegEnded { leg: l3, handle: true }
            < DropLeg { leg: l2, fault: None }
            < Finished { request: r2, end: Answered }
    "#]].assert_eq(&s.transcript());
    let counts = s.core.conversations();
    assert_eq!((counts.lookups, counts.found, counts.stored, counts.entries), (1, 1, 2, 2));
}

#[test]
fn with_pull_decode_is_preferred_when_it_is_chosen_at_last() {
    let mut s = Script::new(PULL, &[Prefill, Decode, Decode]);
    s.at(0).turn(1, &[], 1).ended(0).first_byte(1).retained(1, 1, 1, 0xa).ended(1);
    s.at(1000).turn(2, &[1], 2).ended(2).first_byte(3).ended(3);
    expect![[r#"
        0ms > Arrive r1, finds [], stores 1
            < StartLeg l0 of r1: Prefill on e0, Pull, attempt 1, x0
        0ms > LegEnded { leg: l0, handle: true }
            < StartLeg l1 of r1: Decode on e1, Pull, attempt 1, x0, peer e0 n0@0000000000000001
        0ms > LegFirstByte { leg: l1 }
            < Answer { request: r1, leg: l1 }
        0ms > l1: Retained by n1@0000000000000001 as xa
        0ms > LegEnded { leg: l1, handle: true }
            < Finished { request: r1, end: Answered }
        1000ms > Arrive r2, finds [1], stores 2
            < StartLeg l2 of r2: Prefill on e0, Pull, attempt 1, x1, reuse xa of e1 n1@0000000000000001, 640 tokens, 474000ms
        1000ms > LegEnded { leg: l2, handle: true }
            < StartLeg l3 of r2: Decode on e1, Pull, attempt 1, x1, peer e0 n0@0000000000000001
        1000ms > LegFirstByte { leg: l3 }
            < Answer { request: r2, leg: l3 }
        1000ms > LegEnded { leg: l3, handle: true }
            < Finished { request: r2, end: Answered }
    "#]].assert_eq(&s.transcript());
}

#[test]
fn branches_and_a_regenerated_answer_read_the_same_turn() {
    let mut s = after_one_turn(Limits::default());
    s.at(20).turn(2, &[5, 1], 5).turn(3, &[6, 1], 6).turn(4, &[1], 1);
    expect![[r#"
        20ms > Arrive r2, finds [5, 1], stores 5
            < StartLeg l2 of r2: Prefill on e1, Push, attempt 1, x1, peer e2 n2@0000000000000001, reuse xa of e2 n2@0000000000000001, 640 tokens, 474980ms
            < StartLeg l3 of r2: Decode on e2, Push, attempt 1, x1, peer e1 n1@0000000000000001
        20ms > Arrive r3, finds [6, 1], stores 6
            < StartLeg l4 of r3: Prefill on e0, Push, attempt 1, x2, peer e2 n2@0000000000000001, reuse xa of e2 n2@0000000000000001, 640 tokens, 474980ms
            < StartLeg l5 of r3: Decode on e2, Push, attempt 1, x2, peer e0 n0@0000000000000001
        20ms > Arrive r4, finds [1], stores 1
            < StartLeg l6 of r4: Prefill on e1, Push, attempt 1, x3, peer e2 n2@0000000000000001, reuse xa of e2 n2@0000000000000001, 640 tokens, 474980ms
            < StartLeg l7 of r4: Decode on e2, Push, attempt 1, x3, peer e1 n1@0000000000000001
    "#]].assert_eq(&s.transcript());
}

#[test]
fn another_conversation_and_another_tenants_keys_find_nothing() {
    let mut s = after_one_turn(Limits::default());
    // The same conversation's id under another tenant is another key.
    s.at(20).turn(2, &[0xbad, 0xbeef], 7).arrive(3);
    expect![[r#"
        20ms > Arrive r2, finds [bad, beef], stores 7
            < StartLeg l2 of r2: Prefill on e1, Push, attempt 1, x1, peer e3 n3@0000000000000001
            < StartLeg l3 of r2: Decode on e3, Push, attempt 1, x1, peer e1 n1@0000000000000001
        20ms > Arrive r3
            < StartLeg l4 of r3: Prefill on e0, Push, attempt 1, x2, peer e2 n2@0000000000000001
            < StartLeg l5 of r3: Decode on e2, Push, attempt 1, x2, peer e0 n0@0000000000000001
    "#]]
    .assert_eq(&s.transcript());
    let counts = s.core.conversations();
    assert_eq!((counts.lookups, counts.found), (1, 0));
}

#[test]
fn a_turn_that_comes_too_late_finds_nothing() {
    let mut s = after_one_turn(Limits::default());
    // 480 s from the start of the leg, less the margin of 5 s.
    s.at(474_999).turn(2, &[1], 2).gone(2);
    s.at(475_000).turn(3, &[1], 3);
    expect![[r#"
        474999ms > Arrive r2, finds [1], stores 2
            < StartLeg l2 of r2: Prefill on e1, Push, attempt 1, x1, peer e2 n2@0000000000000001, reuse xa of e2 n2@0000000000000001, 640 tokens, 1ms
            < StartLeg l3 of r2: Decode on e2, Push, attempt 1, x1, peer e1 n1@0000000000000001
        474999ms > ClientGone { request: r2 }
            < DropLeg { leg: l2, fault: None }
            < DropLeg { leg: l3, fault: None }
            < Finished { request: r2, end: ClientGone }
        475000ms > Arrive r3, finds [1], stores 3
            < StartLeg l4 of r3: Prefill on e0, Push, attempt 1, x2, peer e3 n3@0000000000000001
            < StartLeg l5 of r3: Decode on e3, Push, attempt 1, x2, peer e0 n0@0000000000000001
    "#]].assert_eq(&s.transcript());
    assert_eq!(dropped(&s), BTreeMap::from([(Dropped::Expired, 1)]));
}

#[test]
fn a_restarted_engine_has_retained_nothing() {
    let mut s = after_one_turn(Limits::default());
    s.at(20).probe(2, 9).turn(2, &[1], 2);
    // A word of the old incarnation's that comes late, and one about another engine, are not believed.
    s.retained(3, 3, 8, 0xb).retained(3, 2, 9, 0xc);
    expect![[r#"
        20ms > Probed e2: n2@0000000000000009
        20ms > Arrive r2, finds [1], stores 2
            < StartLeg l2 of r2: Prefill on e1, Push, attempt 1, x1, peer e3 n3@0000000000000001
            < StartLeg l3 of r2: Decode on e3, Push, attempt 1, x1, peer e1 n1@0000000000000001
        20ms > l3: Retained by n3@0000000000000008 as xb
        20ms > l3: Retained by n2@0000000000000009 as xc
    "#]]
    .assert_eq(&s.transcript());
    let counts = s.core.conversations();
    assert_eq!((counts.entries, counts.stored), (0, 1));
    assert_eq!(dropped(&s), BTreeMap::from([(Dropped::Restarted, 1)]));
}

#[test]
fn an_engine_that_is_gone_takes_what_it_retained_along() {
    let mut s = after_one_turn(Limits::default());
    for _ in 0..3 {
        s.input(Input::ProbeFailed { engine: EngineKey(2) });
    }
    s.probe(2, 1);
    s.transcript();
    s.at(20).turn(2, &[1], 2);
    expect![[r#"
        20ms > Arrive r2, finds [1], stores 2
            < StartLeg l2 of r2: Prefill on e1, Push, attempt 1, x1, peer e3 n3@0000000000000001
            < StartLeg l3 of r2: Decode on e3, Push, attempt 1, x1, peer e1 n1@0000000000000001
    "#]]
    .assert_eq(&s.transcript());
    assert_eq!(dropped(&s), BTreeMap::from([(Dropped::Unreachable, 1)]));
}

#[test]
fn a_retry_goes_without_and_nobody_else_is_given_it() {
    let mut s = after_one_turn(Limits::default());
    s.at(20).turn(2, &[1], 2).failed(2, LegFault::Broken).turn(3, &[1], 3);
    expect![[r#"
        20ms > Arrive r2, finds [1], stores 2
            < StartLeg l2 of r2: Prefill on e1, Push, attempt 1, x1, peer e2 n2@0000000000000001, reuse xa of e2 n2@0000000000000001, 640 tokens, 474980ms
            < StartLeg l3 of r2: Decode on e2, Push, attempt 1, x1, peer e1 n1@0000000000000001
        20ms > LegFailed { leg: l2, fault: Broken }
            < DropLeg { leg: l3, fault: None }
            < StartLeg l4 of r2: Prefill on e0, Push, attempt 2, x2, peer e3 n3@0000000000000001
            < StartLeg l5 of r2: Decode on e3, Push, attempt 2, x2, peer e0 n0@0000000000000001
        20ms > Arrive r3, finds [1], stores 3
            < StartLeg l6 of r3: Prefill on e1, Push, attempt 1, x3, peer e2 n2@0000000000000001
            < StartLeg l7 of r3: Decode on e2, Push, attempt 1, x3, peer e1 n1@0000000000000001
    "#]].assert_eq(&s.transcript());
    assert_eq!(dropped(&s), BTreeMap::from([(Dropped::Failed, 1)]));
}

#[test]
fn load_outweighs_the_preference_but_the_kv_is_still_read() {
    let conversations = ConversationLimits { slack: 1, ..ConversationLimits::default() };
    let mut s = after_one_turn(Limits { conversations, ..Limits::default() });
    s.at(20).turn(2, &[1], 2).turn(3, &[1], 3).turn(4, &[1], 4);
    expect![[r#"
        20ms > Arrive r2, finds [1], stores 2
            < StartLeg l2 of r2: Prefill on e1, Push, attempt 1, x1, peer e2 n2@0000000000000001, reuse xa of e2 n2@0000000000000001, 640 tokens, 474980ms
            < StartLeg l3 of r2: Decode on e2, Push, attempt 1, x1, peer e1 n1@0000000000000001
        20ms > Arrive r3, finds [1], stores 3
            < StartLeg l4 of r3: Prefill on e0, Push, attempt 1, x2, peer e2 n2@0000000000000001, reuse xa of e2 n2@0000000000000001, 640 tokens, 474980ms
            < StartLeg l5 of r3: Decode on e2, Push, attempt 1, x2, peer e0 n0@0000000000000001
        20ms > Arrive r4, finds [1], stores 4
            < StartLeg l6 of r4: Prefill on e1, Push, attempt 1, x3, peer e3 n3@0000000000000001, reuse xa of e2 n2@0000000000000001, 640 tokens, 474980ms
            < StartLeg l7 of r4: Decode on e3, Push, attempt 1, x3, peer e1 n1@0000000000000001
    "#]].assert_eq(&s.transcript());
}

#[test]
fn a_turn_in_the_queue_is_given_what_is_there_when_it_begins() {
    let limits = Limits { max_legs_per_engine: 1, ..Limits::default() };
    let mut s = Script::with_limits(PUSH, &[Prefill, Decode], limits);
    s.at(0).turn(1, &[], 1).turn(2, &[1], 2);
    s.at(10).first_byte(1).retained(1, 1, 1, 0xa).ended(1);
    expect![[r#"
        0ms > Arrive r1, finds [], stores 1
            < StartLeg l0 of r1: Prefill on e0, Push, attempt 1, x0, peer e1 n1@0000000000000001
            < StartLeg l1 of r1: Decode on e1, Push, attempt 1, x0, peer e0 n0@0000000000000001
        0ms > Arrive r2, finds [1], stores 2
        10ms > LegFirstByte { leg: l1 }
            < Answer { request: r1, leg: l1 }
        10ms > l1: Retained by n1@0000000000000001 as xa
        10ms > LegEnded { leg: l1, handle: true }
            < DropLeg { leg: l0, fault: None }
            < Finished { request: r1, end: Answered }
            < StartLeg l2 of r2: Prefill on e0, Push, attempt 1, x1, peer e1 n1@0000000000000001, reuse xa of e1 n1@0000000000000001, 640 tokens, 474990ms
            < StartLeg l3 of r2: Decode on e1, Push, attempt 1, x1, peer e0 n0@0000000000000001
    "#]].assert_eq(&s.transcript());
    assert_eq!(s.core.conversations().lookups, 1, "waiting is no lookup");
}

#[test]
fn only_so_many_keys_are_looked_up() {
    let conversations = ConversationLimits { lookups: 2, ..ConversationLimits::default() };
    let mut s = after_one_turn(Limits { conversations, ..Limits::default() });
    s.at(20).turn(2, &[8, 9, 1], 2).turn(3, &[9, 1], 3);
    expect![[r#"
        20ms > Arrive r2, finds [8, 9, 1], stores 2
            < StartLeg l2 of r2: Prefill on e1, Push, attempt 1, x1, peer e3 n3@0000000000000001
            < StartLeg l3 of r2: Decode on e3, Push, attempt 1, x1, peer e1 n1@0000000000000001
        20ms > Arrive r3, finds [9, 1], stores 3
            < StartLeg l4 of r3: Prefill on e0, Push, attempt 1, x2, peer e2 n2@0000000000000001, reuse xa of e2 n2@0000000000000001, 640 tokens, 474980ms
            < StartLeg l5 of r3: Decode on e2, Push, attempt 1, x2, peer e0 n0@0000000000000001
    "#]].assert_eq(&s.transcript());
}

#[test]
fn other_strategies_remember_nothing() {
    for strategy in [Strategy::Push, Strategy::Pull] {
        let mut s = Script::new(strategy, &[Prefill, Decode]);
        s.at(0).turn(1, &[], 1).ended(0).first_byte(1).retained(1, 1, 1, 0xa).ended(1);
        assert_eq!(s.core.conversations(), Default::default());
    }
    // Nor does one engine that stands in for a pair.
    let mut s = Script::new(PUSH, &[Both]);
    s.at(0).turn(1, &[1], 1).first_byte(0).retained(0, 0, 1, 0xa).ended(0);
    assert_eq!(s.core.conversations(), Default::default());
}

#[test]
fn only_the_answering_leg_is_believed_and_only_about_something() {
    let mut s = Script::new(PUSH, &[Prefill, Decode]);
    s.at(0).turn(1, &[], 1).retained(0, 0, 1, 0xa).arrive(2);
    let word = |tokens, ttl| {
        let engine = EngineId::new(EngineName::new("n1").unwrap(), 1);
        Retained { engine, transfer: TransferId(7), tokens, ttl }
    };
    for retained in [word(0, Duration::from_secs(9)), word(64, Duration::ZERO)] {
        s.input(Input::LegRetained { leg: LegId(1), retained });
    }
    // A request that is part of no conversation, and a leg that is over.
    s.retained(3, 1, 1, 0xb).first_byte(1).ended(1).retained(1, 1, 1, 0xc);
    assert_eq!(s.core.conversations().stored, 0);
}

#[test]
fn a_reader_that_cannot_exchange_kv_with_the_holder_is_given_nothing() {
    let mut s = Script::new(PUSH, &[Prefill, Decode, Decode]);
    s.at(0).turn(1, &[], 1).first_byte(1).retained(1, 1, 1, 0xa).ended(1);
    let mut other = crate::script::info("n1", 1, Decode);
    other.transports = vec!["nixl".into()];
    s.input(Input::Probed { engine: EngineKey(1), info: other });
    s.transcript();
    s.at(20).turn(2, &[1], 2);
    expect![[r#"
        20ms > Arrive r2, finds [1], stores 2
            < StartLeg l2 of r2: Prefill on e0, Push, attempt 1, x1, peer e2 n2@0000000000000001
            < StartLeg l3 of r2: Decode on e2, Push, attempt 1, x1, peer e0 n0@0000000000000001
    "#]]
    .assert_eq(&s.transcript());
    assert_eq!(s.core.conversations().found, 0);
}

/// The core's own check sees the bug, so the simulator does.
#[cfg(feature = "mutants")]
#[test]
#[should_panic(expected = "is of an engine that is no more")]
fn a_conversation_that_survives_a_restart_is_noticed() {
    let mut config = crate::script::config(PUSH, &[Prefill, Decode], Limits::default());
    config.mutation = baton_types::Mutation::of(baton_types::Mutant::ConversationSurvivesRestart);
    let mut s = Script::with_config(config);
    s.at(0).turn(1, &[], 1).first_byte(1).retained(1, 1, 1, 0xa).ended(1);
    s.probe(1, 2);
}
