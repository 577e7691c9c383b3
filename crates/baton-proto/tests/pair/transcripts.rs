//! The protocol as it is spoken: an executable part of docs/protocol.md.

use baton_proto::{Ending, Input};
use baton_types::{Time, TransferId};
use expect_test::expect;

use crate::world::{FIRST_TOKEN, World, blocks, chain};

const P: usize = 0;
const D: usize = 1;
const X: TransferId = TransferId(0xa);

fn world() -> World {
    World::new(&["P", "D"], 1, 2)
}

fn offer(world: &mut World, prompt: u32) {
    let wanted = world.compute(P, X, &blocks(0..3));
    world.hold(P, X, &blocks(0..3), true, wanted);
    world.input(
        P,
        Input::Offer { transfer: X, chain: chain(prompt, 3), blocks: blocks(0..3), first_token: FIRST_TOKEN },
    );
}

fn fetch(world: &mut World, prompt: u32, first_block: usize) {
    let wanted = (0..3).map(|i| 10_000 + i).collect();
    let into = blocks(10..13 - first_block as u32);
    world.hold(D, X, &into, false, wanted);
    let peer = world.address(P);
    world.input(D, Input::Fetch { transfer: X, peer, chain: chain(prompt, 3), first_block, blocks: into });
}

fn receive(world: &mut World, prompt: u32) {
    world.hold(D, X, &blocks(10..13), false, (0..3).map(|i| 10_000 + i).collect());
    let peer = world.address(P);
    world.input(
        D,
        Input::Receive { transfer: X, peer, chain: chain(prompt, 3), first_block: 0, blocks: blocks(10..13) },
    );
}

fn send(world: &mut World, prompt: u32) {
    let wanted = world.compute(P, X, &blocks(0..3));
    world.hold(P, X, &blocks(0..3), true, wanted);
    world.input(P, Input::Send { transfer: X, chain: chain(prompt, 3) });
}

fn finish(world: &mut World) {
    world.input(P, Input::Progress { transfer: X, blocks: blocks(2..3) });
    world.input(P, Input::Complete { transfer: X, first_token: FIRST_TOKEN });
}

#[test]
fn pull() {
    let mut world = world();
    offer(&mut world, 1);
    fetch(&mut world, 1, 1);
    world.run(Time::from_millis(100));
    world.assert_drained();
    expect![[r#"
        0.465   D says Hello { version: 1, engine: D@0000000000000001, compat: 07070707 }
        0.465   P says Hello { version: 1, engine: P@0000000000000001, compat: 07070707 }
        0.984   P says Welcome { metadata: [0], blocks: 64 }
        1.055   D says Welcome { metadata: [1], blocks: 64 }
        1.219   D says Claim { transfer: xa, attempt: 0, first_block: 1, chain: [#804c4d5d, #30295ade, #d902556c] }
        1.816   P says Granted { transfer: xa, attempt: 0, remaining: 2800ms, first_block: 1, blocks: [b1, b2], first_token: Some(42) }
        2.861   D posts Read of [(b10, b1), (b11, b2)]
        3.914   D hears Ready { transfer: xa, covered: 3, first_token: Some(42) }
        3.914   D says Done { transfer: xa, notifications: 0, first_token: None }
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
    world.input(P, Input::Progress { transfer: X, blocks: blocks(0..2) });
    world.run(Time::from_millis(40));
    finish(&mut world);
    world.run(Time::from_millis(100));
    world.assert_drained();
    expect![[r#"
        0.465   D says Hello { version: 1, engine: D@0000000000000001, compat: 07070707 }
        0.465   P says Hello { version: 1, engine: P@0000000000000001, compat: 07070707 }
        0.984   P says Welcome { metadata: [0], blocks: 64 }
        1.055   D says Welcome { metadata: [1], blocks: 64 }
        1.219   D says Register { transfer: xa, first_block: 0 }
        20.000  P says Claim { transfer: xa, attempt: 0, first_block: 0, chain: [#804c4d5d, #30295ade, #d902556c] }
        21.045  D says Granted { transfer: xa, attempt: 0, remaining: 2800ms, first_block: 0, blocks: [b10, b11, b12], first_token: None }
        21.578  P posts Write of [(b0, b10), (b1, b11)]
        40.000  P posts Write of [(b2, b12)]
        40.000  P says Done { transfer: xa, notifications: 2, first_token: Some(42) }
        42.392  D hears Ready { transfer: xa, covered: 3, first_token: Some(42) }
        42.392  D says DoneAck { transfer: xa }
        44.131  P hears Released { transfer: xa, why: Done }
    "#]].assert_eq(&world.log);
}

#[test]
fn push_registered_after_the_prompt_is_computed() {
    let mut world = world();
    send(&mut world, 1);
    world.input(P, Input::Progress { transfer: X, blocks: blocks(0..2) });
    finish(&mut world);
    world.run(Time::from_millis(20));
    receive(&mut world, 1);
    world.run(Time::from_millis(100));
    world.assert_drained();
    assert_eq!(world.nodes[D].ready[&X], (3, Some(FIRST_TOKEN)));
}

#[test]
fn an_aborted_push_quarantines_until_the_writer_has_answered() {
    let mut world = world();
    receive(&mut world, 1);
    send(&mut world, 1);
    world.run(Time::from_millis(20));
    world.input(P, Input::Progress { transfer: X, blocks: blocks(0..2) });
    world.input(D, Input::Cancel { transfer: X });
    world.run(Time::from_millis(9000));
    world.assert_drained();
    let tail: String =
        world.log.lines().skip_while(|line| !line.contains("posts")).map(|l| format!("{l}\n")).collect();
    expect![[r#"
        20.000  P posts Write of [(b0, b10), (b1, b11)]
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
    world.input(D, Input::Expect { transfer: X, peer });
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
            fetch(&mut world, 500, 0);
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
    world.run(Time::from_millis(2999));
    assert!(world.nodes[P].endings.is_empty());
    world.run(Time::from_millis(3001));
    assert_eq!(world.nodes[P].endings[&X], Ending::Expired);
    fetch(&mut world, 1, 0);
    world.run(Time::from_millis(9000));
    assert_eq!(world.nodes[D].endings[&X], Ending::Declined);
    world.assert_drained();
}

#[test]
fn heartbeats_keep_an_offer_until_it_is_fetched() {
    let mut world = world();
    offer(&mut world, 1);
    let peer = world.address(P);
    world.input(D, Input::Expect { transfer: X, peer });
    world.run(Time::from_millis(20_000));
    assert!(world.nodes[P].endings.is_empty(), "still wanted");
    fetch(&mut world, 1, 0);
    world.run(Time::from_millis(30_000));
    assert_eq!(world.nodes[D].ready[&X], (3, Some(FIRST_TOKEN)));
    world.assert_drained();
}

#[test]
fn a_restarted_source_is_another_engine() {
    let mut world = world();
    offer(&mut world, 1);
    let old = world.address(P);
    world.crash(P);
    world.start(P);
    world.nodes[P].endings.clear();
    world.hold(D, X, &blocks(10..13), false, vec![0; 3]);
    world.input(
        D,
        Input::Fetch { transfer: X, peer: old, chain: chain(1, 3), first_block: 0, blocks: blocks(10..13) },
    );
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
    world.input(P, Input::Progress { transfer: X, blocks: blocks(0..2) });
    world.crash(P);
    world.run(Time::from_millis(9000));
    assert_eq!(world.nodes[D].endings[&X], Ending::PeerLost);
    assert!(world.nodes[D].endpoint.as_ref().is_some_and(|d| d.census().peers == 0));
}
