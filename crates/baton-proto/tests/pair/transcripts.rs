//! The protocol as it is spoken: an executable part of docs/protocol.md.

use std::time::Duration;

use baton_proto::{Ending, Held, Input};
use baton_types::{Time, TransferId};
use expect_test::expect;

use crate::world::{PREFILLED, World, chain, content, forked_chain, units};

const P: usize = 0;
const D: usize = 1;
const X: TransferId = TransferId(0xa);

fn world() -> World {
    World::new(&[("P", 1), ("D", 1)], 1, 2)
}

fn offer(world: &mut World, prompt: u32) {
    world.hold(P, X, &units(0..3), true, Vec::new());
    world.input(P, Input::Offer { transfer: X, chain: chain(prompt, 3) });
}

fn fetch(world: &mut World, prompt: u32, first_unit: usize, held: Held) {
    let into = units(10..13 - first_unit as u32);
    world.hold(D, X, &into, false, (0..3).map(|i| content(X, i)).collect());
    let (transfer, peer, chain) = (X, world.address(P), chain(prompt, 3));
    world.input(D, Input::Fetch { transfer, peer, chain, first_unit, units: into, held });
}

fn receive(world: &mut World, prompt: u32) {
    world.hold(D, X, &units(10..13), false, (0..3).map(|i| content(X, i)).collect());
    let (transfer, peer, chain) = (X, world.address(P), chain(prompt, 3));
    world.input(D, Input::Receive { transfer, peer, chain, first_unit: 0, units: units(10..13) });
}

fn send(world: &mut World, prompt: u32) {
    world.hold(P, X, &units(0..3), true, Vec::new());
    world.input(P, Input::Send { transfer: X, chain: chain(prompt, 3) });
}

/// The first two of three units.
fn begin(world: &mut World) {
    world.progress(P, X, 0, units(0..2));
}

fn finish(world: &mut World) {
    world.progress(P, X, 2, units(2..3));
    world.input(P, Input::Complete { transfer: X, prefilled: PREFILLED });
}

#[test]
fn pull() {
    let mut world = world();
    offer(&mut world, 1);
    begin(&mut world);
    finish(&mut world);
    fetch(&mut world, 1, 1, Held::Offered);
    world.run(Time::from_millis(100));
    world.assert_drained();
    expect![[r#"
        0.465   D says Hello { version: 3, engine: D@0000000000000001, compat: 07070707 }
        0.465   P says Hello { version: 3, engine: P@0000000000000001, compat: 07070707 }
        0.984   P says Welcome { metadata: [0], shape: PoolShape { units: 128, block_units: 1, ranks: 1, dtype: F32 } }
        1.055   D says Welcome { metadata: [1], shape: PoolShape { units: 128, block_units: 1, ranks: 1, dtype: F32 } }
        1.219   D says Claim { transfer: xa, attempt: 0, first_unit: 1, chain: [#804c4d5d, #30295ade, #d902556c], held: Offered }
        1.816   P says Granted { transfer: xa, attempt: 0, remaining: 2800ms, first_unit: 1, units: [u1, u2], complete: true, prefilled: Some(Prefilled { first_token: 42, cached_tokens: 3 }) }
        2.861   D posts Read of [(u10, u1), (u11, u2)], ranks 0 and 0
        3.914   D hears Ready { transfer: xa, covered: 3, prefilled: Some(Prefilled { first_token: 42, cached_tokens: 3 }) }
        3.914   D says Done { transfer: xa, notifications: 0, prefilled: None }
        4.864   P hears Released { transfer: xa, why: Done }
        4.864   P says DoneAck { transfer: xa }
    "#]].assert_eq(&world.log);
}

#[test]
fn push_registered_before_the_prefill_leg_comes() {
    let mut world = world();
    receive(&mut world, 1);
    world.run(Time::from_millis(20));
    send(&mut world, 1);
    begin(&mut world);
    world.run(Time::from_millis(40));
    finish(&mut world);
    world.run(Time::from_millis(100));
    world.assert_drained();
    expect![[r#"
        0.465   D says Hello { version: 3, engine: D@0000000000000001, compat: 07070707 }
        0.465   P says Hello { version: 3, engine: P@0000000000000001, compat: 07070707 }
        0.984   P says Welcome { metadata: [0], shape: PoolShape { units: 128, block_units: 1, ranks: 1, dtype: F32 } }
        1.055   D says Welcome { metadata: [1], shape: PoolShape { units: 128, block_units: 1, ranks: 1, dtype: F32 } }
        1.219   D says Register { transfer: xa, first_unit: 0 }
        20.000  P says Claim { transfer: xa, attempt: 0, first_unit: 0, chain: [#804c4d5d, #30295ade, #d902556c], held: Offered }
        21.045  D says Granted { transfer: xa, attempt: 0, remaining: 2800ms, first_unit: 0, units: [u10, u11, u12], complete: true, prefilled: None }
        21.578  P posts Write of [(u0, u10), (u1, u11)], ranks 0 and 0
        40.000  P posts Write of [(u2, u12)], ranks 0 and 0
        40.000  P says Done { transfer: xa, notifications: 2, prefilled: Some(Prefilled { first_token: 42, cached_tokens: 3 }) }
        42.392  D hears Ready { transfer: xa, covered: 3, prefilled: Some(Prefilled { first_token: 42, cached_tokens: 3 }) }
        42.392  D says DoneAck { transfer: xa }
        44.131  P hears Released { transfer: xa, why: Done }
    "#]].assert_eq(&world.log);
}

#[test]
fn early_pull_of_what_is_computed_so_far() {
    let mut world = World::new(&[("P", 4), ("D", 2)], 1, 2);
    fetch(&mut world, 1, 0, Held::Early);
    world.run(Time::from_millis(20));
    offer(&mut world, 1);
    begin(&mut world);
    world.run(Time::from_millis(40));
    finish(&mut world);
    world.run(Time::from_millis(100));
    world.assert_drained();
    expect![[r#"
        0.465   D says Hello { version: 3, engine: D@0000000000000001, compat: 07070707 }
        0.465   P says Hello { version: 3, engine: P@0000000000000001, compat: 07070707 }
        0.984   P says Welcome { metadata: [0], shape: PoolShape { units: 128, block_units: 1, ranks: 4, dtype: F32 } }
        1.055   D says Welcome { metadata: [1], shape: PoolShape { units: 128, block_units: 1, ranks: 2, dtype: F32 } }
        1.219   D says Claim { transfer: xa, attempt: 0, first_unit: 0, chain: [#804c4d5d, #30295ade, #d902556c], held: Early }
        20.000  P says Offered { transfer: xa }
        21.045  D says Claim { transfer: xa, attempt: 1, first_unit: 0, chain: [#804c4d5d, #30295ade, #d902556c], held: Early }
        21.578  P says Granted { transfer: xa, attempt: 1, remaining: 2800ms, first_unit: 0, units: [u0, u1], complete: false, prefilled: None }
        22.098  D posts Read of [(u10, u0), (u11, u1)], ranks 0 and 0
        22.098  D posts Read of [(u10, u0), (u11, u1)], ranks 0 and 1
        22.098  D posts Read of [(u10, u0), (u11, u1)], ranks 1 and 2
        22.098  D posts Read of [(u10, u0), (u11, u1)], ranks 1 and 3
        40.000  P says Granted { transfer: xa, attempt: 1, remaining: 2800ms, first_unit: 2, units: [u2], complete: false, prefilled: None }
        40.000  P says Granted { transfer: xa, attempt: 1, remaining: 2800ms, first_unit: 3, units: [], complete: true, prefilled: Some(Prefilled { first_token: 42, cached_tokens: 3 }) }
        40.241  D posts Read of [(u12, u2)], ranks 0 and 0
        40.241  D posts Read of [(u12, u2)], ranks 0 and 1
        40.241  D posts Read of [(u12, u2)], ranks 1 and 2
        40.241  D posts Read of [(u12, u2)], ranks 1 and 3
        43.430  D hears Ready { transfer: xa, covered: 3, prefilled: Some(Prefilled { first_token: 42, cached_tokens: 3 }) }
        43.430  D says Done { transfer: xa, notifications: 0, prefilled: None }
        44.241  P hears Released { transfer: xa, why: Done }
        44.241  P says DoneAck { transfer: xa }
    "#]].assert_eq(&world.log);
}

#[test]
fn an_early_reader_keeps_its_right_while_the_prompt_is_computed() {
    let mut world = world();
    offer(&mut world, 1);
    fetch(&mut world, 1, 0, Held::Early);
    begin(&mut world);
    world.run(Time::from_millis(20_000));
    assert!(world.nodes[D].endings.is_empty(), "still reading");
    finish(&mut world);
    world.run(Time::from_millis(20_100));
    assert_eq!(world.nodes[D].ready[&X], (3, Some(PREFILLED)));
    world.assert_drained();
}

#[test]
fn a_push_between_different_ranks_is_notified_by_each_pair() {
    for (source, destination) in [(4, 1), (4, 2), (4, 4), (1, 4), (2, 4)] {
        let mut world = World::new(&[("P", source), ("D", destination)], 1, 2);
        receive(&mut world, 1);
        send(&mut world, 1);
        begin(&mut world);
        world.run(Time::from_millis(20));
        finish(&mut world);
        world.run(Time::from_millis(100));
        assert_eq!(world.nodes[D].ready[&X], (3, Some(PREFILLED)));
        assert!(world.log.contains("notifications: 8"), "two chunks, four pairs: {}", world.log);
        world.assert_drained();
    }
}

#[test]
fn push_registered_after_the_prompt_is_computed() {
    let mut world = world();
    send(&mut world, 1);
    begin(&mut world);
    finish(&mut world);
    world.run(Time::from_millis(20));
    receive(&mut world, 1);
    world.run(Time::from_millis(100));
    world.assert_drained();
    assert_eq!(world.nodes[D].ready[&X], (3, Some(PREFILLED)));
}

#[test]
fn an_aborted_push_quarantines_until_the_writer_has_answered() {
    let mut world = world();
    receive(&mut world, 1);
    send(&mut world, 1);
    world.run(Time::from_millis(20));
    begin(&mut world);
    world.input(D, Input::Cancel { transfer: X });
    world.run(Time::from_millis(9000));
    world.assert_drained();
    let tail: String =
        world.log.lines().skip_while(|line| !line.contains("posts")).map(|l| format!("{l}\n")).collect();
    expect![[r#"
        20.000  P posts Write of [(u0, u10), (u1, u11)], ranks 0 and 0
        20.000  D hears Failed { transfer: xa, why: Cancelled, quarantined: true }
        20.000  D says Abort { transfer: xa }
        22.390  P hears Released { transfer: xa, why: PeerAborted }
        22.390  P says Aborted { transfer: xa }
        23.174  D hears Released { transfer: xa, why: Cancelled }
    "#]]
    .assert_eq(&tail);
}

#[test]
fn an_abort_before_the_request_is_remembered() {
    let mut world = world();
    let peer = world.address(P);
    world.hold(D, X, &[], false, Vec::new());
    world.input(D, Input::Expect { transfer: X, peer, early: false });
    world.input(D, Input::Cancel { transfer: X });
    world.run(Time::from_millis(20));
    offer(&mut world, 1);
    assert_eq!(world.nodes[P].endings[&X], Ending::PeerAborted, "freed at once");
    world.run(Time::from_millis(9000));
    world.assert_drained();
}

#[test]
fn other_tokens_get_nothing() {
    for push in [false, true] {
        let mut world = world();
        if push {
            send(&mut world, 1);
            receive(&mut world, 500);
        } else {
            offer(&mut world, 1);
            begin(&mut world);
            finish(&mut world);
            fetch(&mut world, 500, 0, Held::Offered);
        }
        world.run(Time::from_millis(9000));
        assert_eq!(world.nodes[D].endings[&X], Ending::Declined);
        world.assert_drained();
    }
}

#[test]
fn an_offer_nobody_fetches_ends_with_its_lease() {
    let mut world = world();
    offer(&mut world, 1);
    begin(&mut world);
    finish(&mut world);
    world.run(Time::from_millis(2999));
    assert!(world.nodes[P].endings.is_empty());
    world.run(Time::from_millis(3001));
    assert_eq!(world.nodes[P].endings[&X], Ending::Expired);
    fetch(&mut world, 1, 0, Held::Offered);
    world.run(Time::from_millis(9000));
    assert_eq!(world.nodes[D].endings[&X], Ending::Declined);
    world.assert_drained();
}

#[test]
fn heartbeats_keep_an_offer_until_it_is_fetched() {
    let mut world = world();
    offer(&mut world, 1);
    begin(&mut world);
    finish(&mut world);
    let peer = world.address(P);
    world.input(D, Input::Expect { transfer: X, peer, early: false });
    world.run(Time::from_millis(20_000));
    assert!(world.nodes[P].endings.is_empty(), "still wanted");
    fetch(&mut world, 1, 0, Held::Offered);
    world.run(Time::from_millis(30_000));
    assert_eq!(world.nodes[D].ready[&X], (3, Some(PREFILLED)));
    world.assert_drained();
}

#[test]
fn a_restarted_source_is_another_engine() {
    let mut world = world();
    offer(&mut world, 1);
    begin(&mut world);
    finish(&mut world);
    let old = world.address(P);
    world.crash(P);
    world.start(P);
    world.nodes[P].endings.clear();
    world.hold(D, X, &units(10..13), false, Vec::new());
    let (chain, units) = (chain(1, 3), units(10..13));
    world.input(D, Input::Fetch { transfer: X, peer: old, chain, first_unit: 0, units, held: Held::Offered });
    world.run(Time::from_millis(9000));
    assert_eq!(world.nodes[D].endings[&X], Ending::PeerLost);
    world.assert_drained();
}

#[test]
fn a_source_that_dies_in_mid_push_frees_the_destination() {
    let mut world = world();
    receive(&mut world, 1);
    send(&mut world, 1);
    world.run(Time::from_millis(20));
    begin(&mut world);
    world.crash(P);
    world.run(Time::from_millis(9000));
    assert_eq!(world.nodes[D].endings[&X], Ending::PeerLost);
    assert!(world.nodes[D].endpoint.as_ref().is_some_and(|d| d.census().peers == 0));
}

const R: TransferId = TransferId(0x4e);

/// D keeps three units of a prompt; P reads those that a prompt of four units, with so many in common, can use.
fn read_back(world: &mut World, common: usize) {
    world.hold(P, X, &units(20..24), false, (0..4).map(|i| content(R, i)).collect());
    let (peer, chain, held) = (world.address(D), forked_chain(1, common, 4), Held::Retained(R));
    world.input(P, Input::Fetch { transfer: X, peer, chain, first_unit: 0, units: units(20..24), held });
}

#[test]
fn a_conversation_is_read_back() {
    let mut world = world();
    world.retain(D, R, chain(1, 3), units(0..3));
    read_back(&mut world, 2);
    world.run(Time::from_millis(100));
    assert_eq!(world.nodes[P].ready[&X], (2, None), "the units that both prompts begin with");
    world.assert_drained();
    expect![[r#"
        0.465   P says Hello { version: 3, engine: P@0000000000000001, compat: 07070707 }
        0.465   D says Hello { version: 3, engine: D@0000000000000001, compat: 07070707 }
        0.984   D says Welcome { metadata: [1], shape: PoolShape { units: 128, block_units: 1, ranks: 1, dtype: F32 } }
        1.055   P says Welcome { metadata: [0], shape: PoolShape { units: 128, block_units: 1, ranks: 1, dtype: F32 } }
        1.219   P says Claim { transfer: xa, attempt: 0, first_unit: 0, chain: [#804c4d5d, #30295ade, #5ab17030, #7dd648f0], held: Retained(x4e) }
        1.816   D hears Lent { retention: x4e, transfer: xa, units: [u0, u1] }
        1.816   D says Granted { transfer: xa, attempt: 0, remaining: 2800ms, first_unit: 0, units: [u0, u1], complete: true, prefilled: None }
        2.861   P posts Read of [(u20, u0), (u21, u1)], ranks 0 and 0
        3.914   P hears Ready { transfer: xa, covered: 2, prefilled: None }
        3.914   P says Done { transfer: xa, notifications: 0, prefilled: None }
        4.864   D hears Released { transfer: xa, why: Done }
        4.864   D says DoneAck { transfer: xa }
    "#]].assert_eq(&world.log);
}

#[test]
fn what_holds_other_tokens_or_is_over_or_never_was_gives_nothing_and_all_of_these_are_one() {
    let mut logs = Vec::new();
    for case in 0..4 {
        let mut world = world();
        if case < 3 {
            world.retain(D, R, chain(1, 3), units(0..3));
        }
        match case {
            1 => world.revoke(D, R),
            2 => world.run(Time::from_millis(10_000)),
            _ => {}
        }
        let (from, asked) = (world.log.len(), world.now);
        read_back(&mut world, 0);
        world.run(asked + Duration::from_millis(100));
        assert_eq!(world.nodes[P].endings[&X], Ending::Declined);
        world.assert_drained();
        let said: Vec<String> = world.log[from..]
            .lines()
            .filter_map(|line| line.find("D says Declined").map(|at| line[at..].to_owned()))
            .collect();
        logs.push(said);
    }
    assert_eq!(logs[0], ["D says Declined { transfer: xa, why: Unknown }"]);
    assert!(logs.iter().all(|log| *log == logs[0]), "{logs:?}");
}

#[test]
fn a_retention_ends_on_time_whoever_reads_it_and_no_reader_is_granted_more() {
    let mut world = world();
    world.retain(D, R, chain(1, 3), units(0..3));
    world.run(Time::from_millis(8_900));
    read_back(&mut world, 3);
    world.run(Time::from_millis(8_999));
    assert!(world.is_retained(D, R));
    let granted = world.log.lines().find(|line| line.contains("D says Granted")).expect("it is there still");
    let remaining = granted.split("remaining: ").nth(1).and_then(|rest| rest.split("ms").next());
    let remaining: u64 = remaining.expect("a duration").parse().expect("milliseconds");
    // A fifteenth less than the 100 ms that are left, of a lease of 3 s.
    assert!(remaining <= 93, "{granted}");
    assert!(world.nodes[P].ready.contains_key(&X));
    world.run(Time::from_millis(9_001));
    assert!(!world.is_retained(D, R), "its end is fixed");
    world.assert_drained();
}
