//! Before the first byte moves.

use std::time::{Duration, Instant};

use baton_transport::{Direction, Event, TransportError, TransportLimits};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::agent::{Agent, Pair, engine, pump, pump_for};
use crate::fabric::Fabric;

fn agent(fabric: &dyn Fabric, name: &str) -> Agent {
    Agent::new(fabric, engine(name, 1), 4096, TransportLimits::default())
}

pub fn a_region_is_registered_once(fabric: &dyn Fabric) {
    let mut a = agent(fabric, "a");
    assert!(matches!(a.transport.register(fabric.region(4096)), Err(TransportError::BadRegion(_))));
    let b = agent(fabric, "b");
    let mut bare = fabric.transport(engine("bare", 1), TransportLimits::default());
    let added = bare.add_peer(&b.id, &b.transport.metadata());
    assert!(matches!(added, Err(TransportError::BadRegion(_))));
}

pub fn any_other_metadata_is_refused(fabric: &dyn Fabric) {
    let mut a = agent(fabric, "a");
    let b = agent(fabric, "b");
    let good = b.transport.metadata();
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(200) });
    let mut refused = |bytes: &[u8]| {
        let result = a.transport.add_peer(&b.id, bytes);
        matches!(result, Err(TransportError::BadMetadata(_) | TransportError::PeerGone(_)))
    };
    for cut in 0..good.len() {
        assert!(refused(&good[..cut]), "cut to {cut}");
    }
    let wrong_version: Vec<u8> =
        good.iter().enumerate().map(|(i, b)| if (3..6).contains(&i) { b ^ 0x40 } else { *b }).collect();
    assert!(refused(&wrong_version));
    let refused = std::cell::RefCell::new(refused);
    let bytes = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..200),
        proptest::collection::vec(any::<u8>(), 1..9).prop_map(|tail| [&good[..], &tail].concat()),
        proptest::collection::vec(any::<u8>(), good.len() - 6..good.len())
            .prop_map(|t| [&good[..6], &t].concat()),
    ];
    runner
        .run(&bytes, |bytes| {
            prop_assert!((refused.borrow_mut())(&bytes));
            Ok(())
        })
        .unwrap();
    assert_eq!(a.add(&b), Ok(()));
}

pub fn adding_a_peer_twice_changes_nothing(fabric: &dyn Fabric) {
    let mut pair = Pair::new(fabric, 64, 4);
    pair.a.fill(|_| 7);
    assert_eq!(pair.a.add(&pair.b), Ok(()));
    let other = agent(fabric, "other");
    let added = pair.a.transport.add_peer(&pair.b.id, &other.transport.metadata());
    assert!(matches!(added, Err(TransportError::BadMetadata(_))));
    let post = pair.post(1, Direction::Write, &[(0, 1)]);
    pair.a.transport.post(post).unwrap();
    pair.pump(|a, _| a.done() == [1]);
    assert_eq!(pair.b.bytes(64, 64), [7; 64]);
    assert_eq!(pair.a.add(&pair.b), Ok(()));
}

pub fn an_agent_is_not_its_own_peer(fabric: &dyn Fabric) {
    let mut a = agent(fabric, "a");
    let metadata = a.transport.metadata();
    assert!(matches!(a.transport.add_peer(&a.id, &metadata), Err(TransportError::BadMetadata(_))));
}

pub fn peers_beyond_the_limit_are_refused(fabric: &dyn Fabric) {
    let limits = TransportLimits { peers: 2, ..TransportLimits::default() };
    let mut a = Agent::new(fabric, engine("a", 1), 4096, limits);
    let mut others: Vec<_> = (0..3).map(|i| agent(fabric, &format!("other-{i}"))).collect();
    for other in &mut others {
        other.add(&a).unwrap();
    }
    assert_eq!(a.add(&others[0]), Ok(()));
    assert_eq!(a.add(&others[1]), Ok(()));
    assert_eq!(a.add(&others[2]), Err(TransportError::Limit("peers")));
    a.transport.remove_peer(&others[0].id);
    let (left, rest) = others.split_at_mut(1);
    pump(&mut [&mut a, &mut left[0]], |agents| agents[0].has(&Event::PeerLost(agents[1].id.clone())));
    assert_eq!(a.add(&rest[1]), Ok(()));
}

pub fn a_post_waits_until_the_peer_has_added_us_too(fabric: &dyn Fabric) {
    let mut a = agent(fabric, "a");
    let mut b = agent(fabric, "b");
    a.add(&b).unwrap();
    let lists = crate::agent::lists(&mut a, &b.id, &crate::agent::every_block(64, 4));
    let mut post = baton_transport::Post {
        id: baton_transport::PostId(1),
        direction: Direction::Write,
        peer: b.id.clone(),
        local: lists.0,
        remote: lists.1,
        pairs: vec![(0, 1)],
        notify: Some(b"here".to_vec()),
    };
    a.transport.post(post.clone()).unwrap();
    pump_for(&mut [&mut a, &mut b], Duration::from_millis(50));
    assert!(a.events.is_empty() && b.events.is_empty(), "no stranger's memory is touched");
    b.add(&a).unwrap();
    pump(&mut [&mut a, &mut b], |agents| agents[0].done() == [1] && agents[1].notified() == [b"here"]);
    post.peer = engine("nobody", 1);
    assert!(matches!(a.transport.post(post), Err(TransportError::UnknownPeer(_))));
}

pub fn a_peer_that_never_adds_us_is_lost(fabric: &dyn Fabric) {
    let limits = TransportLimits { handshake: Duration::from_millis(100), ..TransportLimits::default() };
    let mut a = Agent::new(fabric, engine("a", 1), 4096, limits);
    let b = agent(fabric, "b");
    a.add(&b).unwrap();
    let begin = Instant::now();
    pump(&mut [&mut a], |agents| agents[0].has(&Event::PeerLost(b.id.clone())));
    assert!(begin.elapsed() >= Duration::from_millis(90), "not before the time given");
}

pub fn both_sides_may_add_at_once(fabric: &dyn Fabric) {
    let mut pair = Pair::new(fabric, 64, 4);
    pair.a.fill(|_| 1);
    pair.b.fill(|_| 2);
    let (there, back) =
        (pair.post(1, Direction::Write, &[(0, 0)]), pair.post_back(1, Direction::Write, &[(1, 1)]));
    pair.a.transport.post(there).unwrap();
    pair.b.transport.post(back).unwrap();
    pair.pump(|a, b| a.done() == [1] && b.done() == [1]);
    assert_eq!((pair.b.bytes(0, 64), pair.a.bytes(64, 64)), (vec![1; 64], vec![2; 64]));
}

pub fn the_waker_ends_a_sleep(fabric: &dyn Fabric) {
    let mut a = agent(fabric, "a");
    let waker = a.transport.waker();
    waker.wake();
    let begin = Instant::now();
    a.transport.poll(&mut a.events);
    a.transport.wait(Duration::from_secs(20));
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        waker.wake();
    });
    a.transport.wait(Duration::from_secs(20));
    assert!(begin.elapsed() < Duration::from_secs(10));
    assert!(begin.elapsed() >= Duration::from_millis(45), "one wake ends one sleep");
    thread.join().unwrap();
    a.transport.wait(Duration::from_millis(20));
    assert!(begin.elapsed() >= Duration::from_millis(65), "and not the next");
}
