//! How paths end.

use std::time::Duration;

use baton_transport::{Direction, Event, TransportError, TransportLimits};

use crate::agent::{Agent, Pair, engine, every_block, lists, pump, pump_for};
use crate::fabric::Fabric;

const BIG: usize = 1 << 20;

/// A pair with three long posts from `a` to `b` and one back, all of them begun.
fn busy_pair(fabric: &dyn Fabric) -> Pair {
    let mut pair = Pair::new(fabric, BIG, 16);
    let zero = pair.post(0, Direction::Write, &[]);
    let zero_back = pair.post_back(0, Direction::Write, &[]);
    pair.a.transport.post(zero).unwrap();
    pair.b.transport.post(zero_back).unwrap();
    pair.pump(|a, b| a.done() == [0] && b.done() == [0]);
    let all: Vec<_> = (0..16).map(|i| (i, i)).collect();
    for id in 1..=3 {
        let post = pair.post(id, Direction::Write, &all);
        pair.a.transport.post(post).unwrap();
    }
    let back = pair.post_back(4, Direction::Read, &all);
    pair.b.transport.post(back).unwrap();
    pair.a.transport.poll(&mut pair.a.events);
    pair.b.transport.poll(&mut pair.b.events);
    assert!(pair.a.done().len() < 4 && pair.b.done() == [0], "they are in the middle");
    pair.a.events.clear();
    pair.b.events.clear();
    pair
}

fn ends_with_loss(agent: &Agent, posts: &[u64], peer: &Agent) {
    assert_eq!(agent.failed(), posts);
    assert_eq!(agent.events.last(), Some(&Event::PeerLost(peer.id.clone())), "{:?}", agent.events);
    assert_eq!(agent.events.len(), posts.len() + 1, "{:?}", agent.events);
}

pub fn removing_a_peer_fails_its_posts_and_then_loses_it(fabric: &dyn Fabric) {
    let mut pair = busy_pair(fabric);
    pair.a.transport.remove_peer(&pair.b.id);
    pair.a.transport.remove_peer(&pair.b.id);
    pair.a.transport.remove_peer(&engine("nobody", 1));
    let post = pair.post(7, Direction::Write, &[]);
    assert!(matches!(pair.a.transport.post(post), Err(TransportError::PeerGone(_))));
    pair.pump(|a, b| a.has(&Event::PeerLost(b.id.clone())));
    let mut failed = pair.a.failed();
    failed.sort_unstable();
    assert_eq!(failed, [1, 2, 3]);
    assert_eq!(pair.a.events.len(), 4, "{:?}", pair.a.events);
    // From here on `a` may use its blocks again.
    pair.a.fill(|_| 9);
    pump_for(&mut [&mut pair.a, &mut pair.b], Duration::from_millis(20));
    assert!(pair.a.all_bytes().iter().all(|&b| b == 9));
    let post = pair.post(8, Direction::Write, &[]);
    assert!(matches!(pair.a.transport.post(post), Err(TransportError::UnknownPeer(_))));
    assert!(matches!(pair.a.transport.prepare_remote(&pair.b.id, &[]), Err(TransportError::UnknownPeer(_))));
}

pub fn both_sides_see_the_end(fabric: &dyn Fabric) {
    let mut pair = busy_pair(fabric);
    pair.a.transport.remove_peer(&pair.b.id);
    pair.pump(|a, b| a.has(&Event::PeerLost(b.id.clone())) && b.has(&Event::PeerLost(a.id.clone())));
    ends_with_loss(&pair.b, &[4], &pair.a);
}

pub fn a_dropped_agent_is_lost_to_the_others(fabric: &dyn Fabric) {
    let Pair { mut a, b, .. } = busy_pair(fabric);
    let (b_id, b_metadata) = (b.id.clone(), b.transport.metadata());
    drop(b);
    pump(&mut [&mut a], |agents| agents[0].has(&Event::PeerLost(b_id.clone())));
    assert_eq!(a.failed().len() + a.done().len(), 3);
    assert_eq!(a.transport.add_peer(&b_id, &b_metadata), Err(TransportError::PeerGone(b_id)));
}

pub fn a_lost_peer_may_come_back(fabric: &dyn Fabric) {
    let mut pair = busy_pair(fabric);
    for round in 0..3 {
        pair.a.transport.remove_peer(&pair.b.id);
        pair.pump(|a, b| a.has(&Event::PeerLost(b.id.clone())) && b.has(&Event::PeerLost(a.id.clone())));
        pair.a.events.clear();
        pair.b.events.clear();
        pair.a.fill(|_| round + 1);
        pair.b.add(&pair.a).unwrap();
        pair.a.add(&pair.b).unwrap();
        pair.a_lists.1 = pair.a.transport.prepare_remote(&pair.b.id, &every_block(BIG, 16)).unwrap();
        let post = pair.post(9, Direction::Write, &[(0, 3)]);
        pair.a.transport.post(post).unwrap();
        pair.pump(|a, _| a.done() == [9]);
        assert!(pair.b.bytes(3 * BIG, BIG).iter().all(|&b| b == round + 1));
    }
}

pub fn a_restarted_engine_is_another_peer(fabric: &dyn Fabric) {
    let Pair { mut a, b, .. } = busy_pair(fabric);
    let old = b.id.clone();
    drop(b);
    let mut b = Agent::new(fabric, engine("b", 2), BIG, TransportLimits::default());
    b.fill(|_| 5);
    b.add(&a).unwrap();
    a.add(&b).unwrap();
    let (local, remote) = lists(&mut a, &b.id, &every_block(BIG, 1));
    let post = baton_transport::Post {
        id: baton_transport::PostId(9),
        direction: Direction::Read,
        peer: b.id.clone(),
        local,
        remote,
        pairs: vec![(0, 0)],
        notify: None,
    };
    a.transport.post(post).unwrap();
    pump(&mut [&mut a, &mut b], |agents| {
        agents[0].done().contains(&9) && agents[0].has(&Event::PeerLost(old.clone()))
    });
    assert_eq!(a.bytes(0, BIG), vec![5; BIG]);
    assert!(!a.has(&Event::PeerLost(b.id.clone())));
}

pub fn nothing_is_left_of_many_peers(fabric: &dyn Fabric) {
    let mut a =
        Agent::new(fabric, engine("a", 1), BIG, TransportLimits { peers: 2, ..TransportLimits::default() });
    for incarnation in 0..100 {
        let mut b = Agent::new(fabric, engine("b", incarnation), 4096, TransportLimits::default());
        b.add(&a).unwrap();
        a.add(&b).unwrap();
        a.transport.prepare_remote(&b.id, &every_block(64, 2)).unwrap();
        if incarnation % 2 == 0 {
            a.transport.remove_peer(&b.id);
        } else {
            drop(b);
            b = Agent::new(fabric, engine("c", incarnation), 64, TransportLimits::default());
        }
        let lost = Event::PeerLost(engine("b", incarnation));
        pump(&mut [&mut a, &mut b], |agents| agents[0].has(&lost));
    }
    assert_eq!(a.events.len(), 100);
}
