//! What the core does, as text: an executable specification. `UPDATE_EXPECT=1` rewrites it; read the diff.

use crate::script::Script;
use baton_routing::{EngineKey, Input, LegFault, LegId, Limits, RequestId, Strategy};
use baton_types::EngineRole::{Both, Decode, Prefill};
use expect_test::expect;

#[test]
fn a_pull_run() {
    let mut s = Script::new(Strategy::Pull, &[Prefill, Decode]);
    s.at(1).arrive(1).at(2).connected(0).at(9).ended(0).connected(1).at(15).first_byte(1);
    s.at(20).input(Input::LegProgress { leg: LegId(1) }).at(30).ended(1);
    expect![[r#"
        1ms > Arrive r1
            < StartLeg l0 of r1: Prefill on e0, Pull, attempt 1, x0
        2ms > LegConnected { leg: l0 }
        9ms > LegEnded { leg: l0, handle: true }
            < StartLeg l1 of r1: Decode on e1, Pull, attempt 1, x0, peer e0 n0@0000000000000001
        9ms > LegConnected { leg: l1 }
        15ms > LegFirstByte { leg: l1 }
            < Answer { request: r1, leg: l1 }
        20ms > LegProgress { leg: l1 }
        30ms > LegEnded { leg: l1, handle: true }
            < Finished { request: r1, end: Answered }
    "#]]
    .assert_eq(&s.transcript());
}

#[test]
fn a_push_run_where_prefill_ends_first() {
    let mut s = Script::new(Strategy::Push, &[Prefill, Decode]);
    s.at(1).arrive(1).connected(0).connected(1).at(9).ended(0).at(15).first_byte(1).at(30).ended(1);
    expect![[r#"
        1ms > Arrive r1
            < StartLeg l0 of r1: Prefill on e0, Push, attempt 1, x0, peer e1 n1@0000000000000001
            < StartLeg l1 of r1: Decode on e1, Push, attempt 1, x0, peer e0 n0@0000000000000001
        1ms > LegConnected { leg: l0 }
        1ms > LegConnected { leg: l1 }
        9ms > LegEnded { leg: l0, handle: true }
        15ms > LegFirstByte { leg: l1 }
            < Answer { request: r1, leg: l1 }
        30ms > LegEnded { leg: l1, handle: true }
            < Finished { request: r1, end: Answered }
    "#]]
    .assert_eq(&s.transcript());
}

#[test]
fn a_push_run_where_decode_is_done_before_prefills_answer_is_seen() {
    let mut s = Script::new(Strategy::Push, &[Prefill, Decode]);
    s.at(1).arrive(1).at(15).first_byte(1).at(16).ended(1).at(17).ended(0);
    expect![[r#"
        1ms > Arrive r1
            < StartLeg l0 of r1: Prefill on e0, Push, attempt 1, x0, peer e1 n1@0000000000000001
            < StartLeg l1 of r1: Decode on e1, Push, attempt 1, x0, peer e0 n0@0000000000000001
        15ms > LegFirstByte { leg: l1 }
            < Answer { request: r1, leg: l1 }
        16ms > LegEnded { leg: l1, handle: true }
            < DropLeg { leg: l0, fault: None }
            < Finished { request: r1, end: Answered }
        17ms > LegEnded { leg: l0, handle: true }
    "#]]
    .assert_eq(&s.transcript());
}

#[test]
fn a_run_on_one_engine() {
    let mut s = Script::new(Strategy::None, &[Both]);
    s.at(1).arrive(1).connected(0).at(9).first_byte(0).at(12).ended(0);
    expect![[r#"
        1ms > Arrive r1
            < StartLeg l0 of r1: Whole on e0, alone, attempt 1, x0
        1ms > LegConnected { leg: l0 }
        9ms > LegFirstByte { leg: l0 }
            < Answer { request: r1, leg: l0 }
        12ms > LegEnded { leg: l0, handle: true }
            < Finished { request: r1, end: Answered }
    "#]]
    .assert_eq(&s.transcript());
}

#[test]
fn pull_prefill_fails_and_another_takes_over() {
    let mut s = Script::new(Strategy::Pull, &[Prefill, Prefill, Decode]);
    s.at(1).arrive(1).failed(0, LegFault::Broken).at(5).ended(1).first_byte(2).ended(2);
    expect![[r#"
        1ms > Arrive r1
            < StartLeg l0 of r1: Prefill on e0, Pull, attempt 1, x0
        1ms > LegFailed { leg: l0, fault: Broken }
            < StartLeg l1 of r1: Prefill on e1, Pull, attempt 2, x1
        5ms > LegEnded { leg: l1, handle: true }
            < StartLeg l2 of r1: Decode on e2, Pull, attempt 2, x1, peer e1 n1@0000000000000001
        5ms > LegFirstByte { leg: l2 }
            < Answer { request: r1, leg: l2 }
        5ms > LegEnded { leg: l2, handle: true }
            < Finished { request: r1, end: Answered }
    "#]]
    .assert_eq(&s.transcript());
}

#[test]
fn pull_prefill_without_a_handle_has_failed() {
    let mut s = Script::new(Strategy::Pull, &[Prefill, Prefill, Decode]);
    s.at(1).arrive(1).at(3).input(Input::LegEnded { leg: LegId(0), handle: false });
    expect![[r#"
        1ms > Arrive r1
            < StartLeg l0 of r1: Prefill on e0, Pull, attempt 1, x0
        3ms > LegEnded { leg: l0, handle: false }
            < StartLeg l1 of r1: Prefill on e1, Pull, attempt 2, x1
    "#]]
    .assert_eq(&s.transcript());
}

#[test]
fn pull_decode_fails_silently_and_the_handle_is_not_used_again() {
    let mut s = Script::new(Strategy::Pull, &[Prefill, Decode, Decode]);
    s.at(1).arrive(1).at(3).ended(0).at(5).failed(1, LegFault::ServerError);
    s.at(9).ended(2).first_byte(3).ended(3);
    expect![[r#"
        1ms > Arrive r1
            < StartLeg l0 of r1: Prefill on e0, Pull, attempt 1, x0
        3ms > LegEnded { leg: l0, handle: true }
            < StartLeg l1 of r1: Decode on e1, Pull, attempt 1, x0, peer e0 n0@0000000000000001
        5ms > LegFailed { leg: l1, fault: ServerError }
            < StartLeg l2 of r1: Prefill on e0, Pull, attempt 2, x1
        9ms > LegEnded { leg: l2, handle: true }
            < StartLeg l3 of r1: Decode on e2, Pull, attempt 2, x1, peer e0 n0@0000000000000001
        9ms > LegFirstByte { leg: l3 }
            < Answer { request: r1, leg: l3 }
        9ms > LegEnded { leg: l3, handle: true }
            < Finished { request: r1, end: Answered }
    "#]]
    .assert_eq(&s.transcript());
}

#[test]
fn decode_fails_after_its_first_byte_and_nothing_is_retried() {
    let mut s = Script::new(Strategy::Pull, &[Prefill, Decode, Decode]);
    s.at(1).arrive(1).at(3).ended(0).at(5).first_byte(1).at(6).failed(1, LegFault::Broken);
    expect![[r#"
        1ms > Arrive r1
            < StartLeg l0 of r1: Prefill on e0, Pull, attempt 1, x0
        3ms > LegEnded { leg: l0, handle: true }
            < StartLeg l1 of r1: Decode on e1, Pull, attempt 1, x0, peer e0 n0@0000000000000001
        5ms > LegFirstByte { leg: l1 }
            < Answer { request: r1, leg: l1 }
        6ms > LegFailed { leg: l1, fault: Broken }
            < Finished { request: r1, end: Failed(EngineFailed) }
    "#]]
    .assert_eq(&s.transcript());
}

#[test]
fn push_either_leg_takes_the_other_with_it() {
    let mut s = Script::new(Strategy::Push, &[Prefill, Prefill, Decode, Decode]);
    s.at(1).arrive(1).at(2).failed(0, LegFault::Overloaded).at(3).failed(3, LegFault::BadAnswer);
    s.at(4).ended(4).first_byte(5).ended(5);
    expect![[r#"
        1ms > Arrive r1
            < StartLeg l0 of r1: Prefill on e0, Push, attempt 1, x0, peer e2 n2@0000000000000001
            < StartLeg l1 of r1: Decode on e2, Push, attempt 1, x0, peer e0 n0@0000000000000001
        2ms > LegFailed { leg: l0, fault: Overloaded }
            < DropLeg { leg: l1, fault: None }
            < StartLeg l2 of r1: Prefill on e1, Push, attempt 2, x1, peer e3 n3@0000000000000001
            < StartLeg l3 of r1: Decode on e3, Push, attempt 2, x1, peer e1 n1@0000000000000001
        3ms > LegFailed { leg: l3, fault: BadAnswer }
            < DropLeg { leg: l2, fault: None }
            < StartLeg l4 of r1: Prefill on e1, Push, attempt 3, x2, peer e2 n2@0000000000000001
            < StartLeg l5 of r1: Decode on e2, Push, attempt 3, x2, peer e1 n1@0000000000000001
        4ms > LegEnded { leg: l4, handle: true }
        4ms > LegFirstByte { leg: l5 }
            < Answer { request: r1, leg: l5 }
        4ms > LegEnded { leg: l5, handle: true }
            < Finished { request: r1, end: Answered }
    "#]]
    .assert_eq(&s.transcript());
}

#[test]
fn push_prefill_fails_while_decode_answers_and_decode_goes_on() {
    let mut s = Script::new(Strategy::Push, &[Prefill, Decode]);
    s.at(1).arrive(1).at(2).first_byte(1).at(3).failed(0, LegFault::Broken).at(9).ended(1);
    expect![[r#"
        1ms > Arrive r1
            < StartLeg l0 of r1: Prefill on e0, Push, attempt 1, x0, peer e1 n1@0000000000000001
            < StartLeg l1 of r1: Decode on e1, Push, attempt 1, x0, peer e0 n0@0000000000000001
        2ms > LegFirstByte { leg: l1 }
            < Answer { request: r1, leg: l1 }
        3ms > LegFailed { leg: l0, fault: Broken }
        9ms > LegEnded { leg: l1, handle: true }
            < Finished { request: r1, end: Answered }
    "#]]
    .assert_eq(&s.transcript());
}

#[test]
fn push_decode_fails_while_it_answers_and_prefill_is_dropped() {
    let mut s = Script::new(Strategy::Push, &[Prefill, Decode]);
    s.at(1).arrive(1).at(2).first_byte(1).at(3).failed(1, LegFault::BadAnswer);
    expect![[r#"
        1ms > Arrive r1
            < StartLeg l0 of r1: Prefill on e0, Push, attempt 1, x0, peer e1 n1@0000000000000001
            < StartLeg l1 of r1: Decode on e1, Push, attempt 1, x0, peer e0 n0@0000000000000001
        2ms > LegFirstByte { leg: l1 }
            < Answer { request: r1, leg: l1 }
        3ms > LegFailed { leg: l1, fault: BadAnswer }
            < DropLeg { leg: l0, fault: None }
            < Finished { request: r1, end: Failed(EngineFailed) }
    "#]]
    .assert_eq(&s.transcript());
}

#[test]
fn the_client_leaves_at_each_moment() {
    let mut s = Script::with_limits(
        Strategy::Pull,
        &[Prefill, Decode],
        Limits { max_legs_per_engine: 1, ..Limits::default() },
    );
    s.at(1).arrive(1).arrive(2).at(2).gone(2).at(3).gone(1);
    s.at(10).arrive(3).ended(1).at(11).gone(3);
    s.at(20).arrive(4).ended(3).first_byte(4).at(21).gone(4);
    s.at(30).arrive(5).failed(5, LegFault::Broken).gone(5).at(40).gone(5);
    expect![[r#"
        1ms > Arrive r1
            < StartLeg l0 of r1: Prefill on e0, Pull, attempt 1, x0
        1ms > Arrive r2
        2ms > ClientGone { request: r2 }
            < Finished { request: r2, end: ClientGone }
        3ms > ClientGone { request: r1 }
            < DropLeg { leg: l0, fault: None }
            < Finished { request: r1, end: ClientGone }
        10ms > Arrive r3
            < StartLeg l1 of r3: Prefill on e0, Pull, attempt 1, x1
        10ms > LegEnded { leg: l1, handle: true }
            < StartLeg l2 of r3: Decode on e1, Pull, attempt 1, x1, peer e0 n0@0000000000000001
        11ms > ClientGone { request: r3 }
            < DropLeg { leg: l2, fault: None }
            < Finished { request: r3, end: ClientGone }
        20ms > Arrive r4
            < StartLeg l3 of r4: Prefill on e0, Pull, attempt 1, x2
        20ms > LegEnded { leg: l3, handle: true }
            < StartLeg l4 of r4: Decode on e1, Pull, attempt 1, x2, peer e0 n0@0000000000000001
        20ms > LegFirstByte { leg: l4 }
            < Answer { request: r4, leg: l4 }
        21ms > ClientGone { request: r4 }
            < DropLeg { leg: l4, fault: None }
            < Finished { request: r4, end: ClientGone }
        30ms > Arrive r5
            < StartLeg l5 of r5: Prefill on e0, Pull, attempt 1, x3
        30ms > LegFailed { leg: l5, fault: Broken }
        30ms > ClientGone { request: r5 }
            < Finished { request: r5, end: ClientGone }
        40ms > ClientGone { request: r5 }
    "#]]
    .assert_eq(&s.transcript());
    let mut s = Script::new(Strategy::Push, &[Prefill, Decode]);
    s.at(1).arrive(1).gone(1).arrive(2).ended(2).gone(2).arrive(3).first_byte(5).gone(3);
    expect![[r#"
        1ms > Arrive r1
            < StartLeg l0 of r1: Prefill on e0, Push, attempt 1, x0, peer e1 n1@0000000000000001
            < StartLeg l1 of r1: Decode on e1, Push, attempt 1, x0, peer e0 n0@0000000000000001
        1ms > ClientGone { request: r1 }
            < DropLeg { leg: l0, fault: None }
            < DropLeg { leg: l1, fault: None }
            < Finished { request: r1, end: ClientGone }
        1ms > Arrive r2
            < StartLeg l2 of r2: Prefill on e0, Push, attempt 1, x1, peer e1 n1@0000000000000001
            < StartLeg l3 of r2: Decode on e1, Push, attempt 1, x1, peer e0 n0@0000000000000001
        1ms > LegEnded { leg: l2, handle: true }
        1ms > ClientGone { request: r2 }
            < DropLeg { leg: l3, fault: None }
            < Finished { request: r2, end: ClientGone }
        1ms > Arrive r3
            < StartLeg l4 of r3: Prefill on e0, Push, attempt 1, x2, peer e1 n1@0000000000000001
            < StartLeg l5 of r3: Decode on e1, Push, attempt 1, x2, peer e0 n0@0000000000000001
        1ms > LegFirstByte { leg: l5 }
            < Answer { request: r3, leg: l5 }
        1ms > ClientGone { request: r3 }
            < DropLeg { leg: l4, fault: None }
            < DropLeg { leg: l5, fault: None }
            < Finished { request: r3, end: ClientGone }
    "#]]
    .assert_eq(&s.transcript());
}

#[test]
fn a_client_fault_is_passed_on_at_once() {
    let mut s = Script::new(Strategy::Push, &[Prefill, Prefill, Decode]);
    s.at(1).arrive(1).at(2).failed(1, LegFault::Refused).at(3).failed(0, LegFault::Refused);
    expect![[r#"
        1ms > Arrive r1
            < StartLeg l0 of r1: Prefill on e0, Push, attempt 1, x0, peer e2 n2@0000000000000001
            < StartLeg l1 of r1: Decode on e2, Push, attempt 1, x0, peer e0 n0@0000000000000001
        2ms > LegFailed { leg: l1, fault: Refused }
            < DropLeg { leg: l0, fault: None }
            < Finished { request: r1, end: Failed(Refused { leg: l1 }) }
        3ms > LegFailed { leg: l0, fault: Refused }
    "#]]
    .assert_eq(&s.transcript());
}

#[test]
fn attempts_run_out() {
    let mut s = Script::new(Strategy::None, &[Both, Both]);
    s.at(1).arrive(1).failed(0, LegFault::Overloaded).at(2).failed(1, LegFault::Overloaded);
    s.timeout().failed(2, LegFault::Overloaded);
    expect![[r#"
        1ms > Arrive r1
            < StartLeg l0 of r1: Whole on e0, alone, attempt 1, x0
        1ms > LegFailed { leg: l0, fault: Overloaded }
            < StartLeg l1 of r1: Whole on e1, alone, attempt 2, x1
        2ms > LegFailed { leg: l1, fault: Overloaded }
        202ms > time: Pause(r1)
            < StartLeg l2 of r1: Whole on e0, alone, attempt 3, x2
        202ms > LegFailed { leg: l2, fault: Overloaded }
            < Finished { request: r1, end: Failed(Overloaded) }
    "#]]
    .assert_eq(&s.transcript());
}

/// Nobody is blamed, and the attempts that are allowed are for what fails.
#[test]
fn an_engine_full_of_kv_is_waited_for() {
    let mut s = Script::new(Strategy::Push, &[Prefill, Decode, Decode]);
    s.at(1).arrive(1).failed(1, LegFault::KvInFlight).at(2).failed(3, LegFault::KvInFlight);
    for leg in [5, 7, 9, 11] {
        s.timeout().failed(leg, LegFault::KvInFlight);
    }
    s.transcript();
    s.timeout().failed(13, LegFault::Broken).timeout().first_byte(15);
    expect![[r#"
        3002ms > time: Pause(r1)
            < StartLeg l12 of r1: Prefill on e0, Push, attempt 7, x6, peer e1 n1@0000000000000001
            < StartLeg l13 of r1: Decode on e1, Push, attempt 7, x6, peer e0 n0@0000000000000001
        3002ms > LegFailed { leg: l13, fault: Broken }
            < DropLeg { leg: l12, fault: None }
        3102ms > time: Pause(r1)
            < StartLeg l14 of r1: Prefill on e0, Push, attempt 8, x7, peer e2 n2@0000000000000001
            < StartLeg l15 of r1: Decode on e2, Push, attempt 8, x7, peer e0 n0@0000000000000001
        3102ms > LegFirstByte { leg: l15 }
            < Answer { request: r1, leg: l15 }
    "#]]
    .assert_eq(&s.transcript());
}

/// For as long as it would wait for a slot.
#[test]
fn an_engine_full_of_kv_is_not_waited_for_without_end() {
    let limits = Limits { queue_ms: 1_000, ..Limits::default() };
    let mut s = Script::with_limits(Strategy::Push, &[Prefill, Decode], limits);
    s.at(1).arrive(1).failed(1, LegFault::KvInFlight);
    for leg in [3, 5, 7] {
        s.timeout().failed(leg, LegFault::KvInFlight);
    }
    s.transcript();
    s.timeout().failed(9, LegFault::KvInFlight);
    expect![[r#"
        1501ms > time: Pause(r1)
            < StartLeg l8 of r1: Prefill on e0, Push, attempt 5, x4, peer e1 n1@0000000000000001
            < StartLeg l9 of r1: Decode on e1, Push, attempt 5, x4, peer e0 n0@0000000000000001
        1501ms > LegFailed { leg: l9, fault: KvInFlight }
            < DropLeg { leg: l8, fault: None }
            < Finished { request: r1, end: Failed(Overloaded) }
    "#]]
    .assert_eq(&s.transcript());
}

#[test]
fn an_engine_that_refuses_every_leg_while_its_probes_are_fine_is_avoided_then_tried() {
    let mut s = Script::new(Strategy::None, &[Both, Both]);
    // The first engine refuses both times it is asked.
    s.at(1).arrive(1).failed(0, LegFault::Overloaded).first_byte(1).ended(1);
    s.at(2).arrive(2).failed(2, LegFault::Overloaded).first_byte(3).ended(3).probe(0, 1).probe(1, 1);
    s.transcript();
    s.at(3).arrive(3).at(4).arrive(4).at(5).arrive(5);
    s.at(300).arrive(6).at(301).arrive(7);
    expect![[r#"
        3ms > Arrive r3
            < StartLeg l4 of r3: Whole on e1, alone, attempt 1, x4
        4ms > Arrive r4
            < StartLeg l5 of r4: Whole on e1, alone, attempt 1, x5
        5ms > Arrive r5
            < StartLeg l6 of r5: Whole on e1, alone, attempt 1, x6
        300ms > Arrive r6
            < StartLeg l7 of r6: Whole on e0, alone, attempt 1, x7
        301ms > Arrive r7
            < StartLeg l8 of r7: Whole on e1, alone, attempt 1, x8
    "#]]
    .assert_eq(&s.transcript());
}

#[test]
fn a_restart_fails_the_legs_of_the_old_incarnation_only() {
    let mut s = Script::new(Strategy::Push, &[Prefill, Prefill, Decode]);
    s.at(1).arrive(1).at(10).probe(0, 1).at(11).arrive(2).at(12).arrive(3).at(13).probe(0, 2);
    expect![[r#"
        1ms > Arrive r1
            < StartLeg l0 of r1: Prefill on e0, Push, attempt 1, x0, peer e2 n2@0000000000000001
            < StartLeg l1 of r1: Decode on e2, Push, attempt 1, x0, peer e0 n0@0000000000000001
        10ms > Probed e0: n0@0000000000000001
        11ms > Arrive r2
            < StartLeg l2 of r2: Prefill on e1, Push, attempt 1, x1, peer e2 n2@0000000000000001
            < StartLeg l3 of r2: Decode on e2, Push, attempt 1, x1, peer e1 n1@0000000000000001
        12ms > Arrive r3
            < StartLeg l4 of r3: Prefill on e0, Push, attempt 1, x2, peer e2 n2@0000000000000001
            < StartLeg l5 of r3: Decode on e2, Push, attempt 1, x2, peer e0 n0@0000000000000001
        13ms > Probed e0: n0@0000000000000002
            < DropLeg { leg: l0, fault: Some(Restarted) }
            < DropLeg { leg: l1, fault: None }
            < StartLeg l6 of r1: Prefill on e1, Push, attempt 2, x3, peer e2 n2@0000000000000001
            < StartLeg l7 of r1: Decode on e2, Push, attempt 2, x3, peer e1 n1@0000000000000001
    "#]]
    .assert_eq(&s.transcript());
    let mut s = Script::new(Strategy::None, &[Both]);
    s.at(1).arrive(1).first_byte(0).at(2).probe(0, 1).at(3).probe(0, 2);
    expect![[r#"
        1ms > Arrive r1
            < StartLeg l0 of r1: Whole on e0, alone, attempt 1, x0
        1ms > LegFirstByte { leg: l0 }
            < Answer { request: r1, leg: l0 }
        2ms > Probed e0: n0@0000000000000001
        3ms > Probed e0: n0@0000000000000002
            < DropLeg { leg: l0, fault: Some(Restarted) }
            < Finished { request: r1, end: Failed(EngineFailed) }
    "#]]
    .assert_eq(&s.transcript());
}

#[test]
fn each_time_limit() {
    let limits = Limits { attempts: 1, ..Limits::default() };
    let mut s = Script::with_limits(Strategy::Pull, &[Prefill, Decode], limits);
    s.at(1).arrive(1).timeout();
    s.arrive(2).connected(1).timeout();
    s.arrive(3).connected(2).ended(2).connected(3).timeout();
    s.arrive(4).ended(4).connected(5).first_byte(5).timeout();
    let (model, streaming, sequences, turn) = (None, false, 1, None);
    s.input(Input::Arrive { request: RequestId(5), model, streaming, sequences, turn });
    s.ended(6).connected(7).timeout();
    let blocked = || Input::LegBlocked { leg: LegId(9) };
    s.arrive(6).ended(8).first_byte(9).input(blocked()).at(942_001).input(blocked()).timeout();
    expect![[r#"
        1ms > Arrive r1
            < StartLeg l0 of r1: Prefill on e0, Pull, attempt 1, x0
        2001ms > time: Connect(l0)
            < DropLeg { leg: l0, fault: Some(Connect) }
            < Finished { request: r1, end: Failed(EngineFailed) }
        2001ms > Arrive r2
            < StartLeg l1 of r2: Prefill on e0, Pull, attempt 1, x1
        2001ms > LegConnected { leg: l1 }
        122001ms > time: Answer(l1)
            < DropLeg { leg: l1, fault: Some(TimedOut) }
            < Finished { request: r2, end: Failed(TimedOut) }
        122001ms > Arrive r3
            < StartLeg l2 of r3: Prefill on e0, Pull, attempt 1, x2
        122001ms > LegConnected { leg: l2 }
        122001ms > LegEnded { leg: l2, handle: true }
            < StartLeg l3 of r3: Decode on e1, Pull, attempt 1, x2, peer e0 n0@0000000000000001
        122001ms > LegConnected { leg: l3 }
        242001ms > time: Answer(l3)
            < DropLeg { leg: l3, fault: Some(TimedOut) }
            < Finished { request: r3, end: Failed(TimedOut) }
        242001ms > Arrive r4
            < StartLeg l4 of r4: Prefill on e0, Pull, attempt 1, x3
        242001ms > LegEnded { leg: l4, handle: true }
            < StartLeg l5 of r4: Decode on e1, Pull, attempt 1, x3, peer e0 n0@0000000000000001
        242001ms > LegConnected { leg: l5 }
        242001ms > LegFirstByte { leg: l5 }
            < Answer { request: r4, leg: l5 }
        302001ms > time: Idle(l5)
            < DropLeg { leg: l5, fault: Some(TimedOut) }
            < Finished { request: r4, end: Failed(TimedOut) }
        302001ms > Arrive { request: r5, model: None, streaming: false, sequences: 1, turn: None }
            < StartLeg l6 of r5: Prefill on e0, Pull, attempt 1, x4
        302001ms > LegEnded { leg: l6, handle: true }
            < StartLeg l7 of r5: Decode on e1, Pull, attempt 1, x4, peer e0 n0@0000000000000001
        302001ms > LegConnected { leg: l7 }
        902001ms > time: Answer(l7)
            < DropLeg { leg: l7, fault: Some(TimedOut) }
            < Finished { request: r5, end: Failed(TimedOut) }
        902001ms > Arrive r6
            < StartLeg l8 of r6: Prefill on e0, Pull, attempt 1, x5
        902001ms > LegEnded { leg: l8, handle: true }
            < StartLeg l9 of r6: Decode on e1, Pull, attempt 1, x5, peer e0 n0@0000000000000001
        902001ms > LegFirstByte { leg: l9 }
            < Answer { request: r6, leg: l9 }
        902001ms > LegBlocked { leg: l9 }
        942001ms > LegBlocked { leg: l9 }
        962001ms > time: ClientStall(l9)
            < DropLeg { leg: l9, fault: None }
            < Finished { request: r6, end: ClientGone }
    "#]]
    .assert_eq(&s.transcript());
}

#[test]
fn slots_are_waited_for_in_turn_and_the_queue_is_bounded() {
    let limits = Limits { max_legs_per_engine: 1, max_queued: 2, queue_ms: 1000, ..Limits::default() };
    let mut s = Script::with_limits(Strategy::Push, &[Prefill, Decode], limits);
    s.at(1).arrive(1).at(2).arrive(2).at(3).arrive(3).at(4).arrive(4);
    s.at(5).ended(0).at(6).first_byte(1).ended(1).timeout();
    expect![[r#"
        1ms > Arrive r1
            < StartLeg l0 of r1: Prefill on e0, Push, attempt 1, x0, peer e1 n1@0000000000000001
            < StartLeg l1 of r1: Decode on e1, Push, attempt 1, x0, peer e0 n0@0000000000000001
        2ms > Arrive r2
        3ms > Arrive r3
        4ms > Arrive r4
            < Finished { request: r4, end: Failed(Overloaded) }
        5ms > LegEnded { leg: l0, handle: true }
        6ms > LegFirstByte { leg: l1 }
            < Answer { request: r1, leg: l1 }
        6ms > LegEnded { leg: l1, handle: true }
            < Finished { request: r1, end: Answered }
            < StartLeg l2 of r2: Prefill on e0, Push, attempt 1, x1, peer e1 n1@0000000000000001
            < StartLeg l3 of r2: Decode on e1, Push, attempt 1, x1, peer e0 n0@0000000000000001
        1003ms > time: Queue(r3)
            < Finished { request: r3, end: Failed(Overloaded) }
    "#]]
    .assert_eq(&s.transcript());
}

#[test]
fn pull_starts_only_if_decode_will_have_a_slot() {
    let limits = Limits { max_legs_per_engine: 1, ..Limits::default() };
    let mut s = Script::with_limits(Strategy::Pull, &[Prefill, Prefill, Decode], limits);
    s.at(1).arrive(1).at(2).arrive(2).at(3).ended(0).first_byte(1).ended(1);
    expect![[r#"
        1ms > Arrive r1
            < StartLeg l0 of r1: Prefill on e0, Pull, attempt 1, x0
        2ms > Arrive r2
        3ms > LegEnded { leg: l0, handle: true }
            < StartLeg l1 of r1: Decode on e2, Pull, attempt 1, x0, peer e0 n0@0000000000000001
        3ms > LegFirstByte { leg: l1 }
            < Answer { request: r1, leg: l1 }
        3ms > LegEnded { leg: l1, handle: true }
            < Finished { request: r1, end: Answered }
            < StartLeg l2 of r2: Prefill on e1, Pull, attempt 1, x1
    "#]]
    .assert_eq(&s.transcript());
}

#[test]
fn no_engine_no_model_no_room() {
    let mut s = Script::new(Strategy::Push, &[Prefill]);
    s.arrive(1);
    s.input(Input::Arrive {
        request: RequestId(2),
        model: Some("big".into()),
        streaming: true,
        sequences: 1,
        turn: None,
    });
    expect![[r#"
        0ms > Arrive r1
            < Finished { request: r1, end: Failed(NoEngine { kind: Decode }) }
        0ms > Arrive { request: r2, model: Some("big"), streaming: true, sequences: 1, turn: None }
            < Finished { request: r2, end: Failed(UnknownModel) }
    "#]]
    .assert_eq(&s.transcript());
    assert!(!s.core.is_ready());
    let mut s = Script::with_limits(Strategy::None, &[Both], Limits { max_requests: 1, ..Limits::default() });
    s.arrive(1).arrive(2);
    expect![[r#"
        0ms > Arrive r1
            < StartLeg l0 of r1: Whole on e0, alone, attempt 1, x0
        0ms > Arrive r2
            < Finished { request: r2, end: Failed(Overloaded) }
    "#]]
    .assert_eq(&s.transcript());
}

#[test]
fn if_all_engines_are_bad_one_is_tried_all_the_same() {
    let mut s = Script::new(Strategy::None, &[Both]);
    for _ in 0..3 {
        s.input(Input::ProbeFailed { engine: EngineKey(0) });
    }
    assert!(!s.core.is_ready());
    s.arrive(1);
    expect![[r#"
        0ms > ProbeFailed { engine: e0 }
        0ms > ProbeFailed { engine: e0 }
        0ms > ProbeFailed { engine: e0 }
        0ms > Arrive r1
            < StartLeg l0 of r1: Whole on e0, alone, attempt 1, x0
    "#]]
    .assert_eq(&s.transcript());
}
