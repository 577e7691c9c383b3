//! Bytes and notifications.

use baton_transport::{
    Descriptor, Direction, ListId, MAX_NOTIFICATION, MAX_PAIRS, Post, TransportError, TransportLimits,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::agent::Pair;
use crate::fabric::Fabric;

const BLOCK: usize = 96;
const BLOCKS: usize = 64;

fn a_byte(i: usize) -> u8 {
    (i.wrapping_mul(2_654_435_761) >> 7) as u8
}

fn b_byte(i: usize) -> u8 {
    !a_byte(i + 1)
}

/// Any pairs, with runs of neighbours among them, no block of the destination twice.
fn pairs() -> impl Strategy<Value = Vec<(u32, u32)>> {
    let blocks = 0..BLOCKS as u32;
    let runs = proptest::collection::vec((blocks.clone(), blocks, 1u32..8), 0..12);
    runs.prop_map(|runs| {
        let mut taken = (std::collections::BTreeSet::new(), std::collections::BTreeSet::new());
        let all = runs.into_iter().flat_map(|(l, r, n)| (0..n).map(move |i| (l + i, r + i)));
        let inside = all.filter(|&(l, r)| (l as usize) < BLOCKS && (r as usize) < BLOCKS);
        inside.filter(|&(l, r)| taken.0.insert(l) && taken.1.insert(r)).collect()
    })
}

pub fn bytes_arrive_where_they_should(fabric: &dyn Fabric) {
    let pair = std::cell::RefCell::new(Pair::new(fabric, BLOCK, BLOCKS));
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(100) });
    let direction = prop_oneof![Just(Direction::Read), Just(Direction::Write)];
    runner
        .run(&(pairs(), direction), |(pairs, direction)| {
            let mut pair = pair.borrow_mut();
            pair.a.fill(a_byte);
            pair.b.fill(b_byte);
            let (mut a, mut b) = (pair.a.all_bytes(), pair.b.all_bytes());
            for &(l, r) in &pairs {
                let (l, r) = (
                    l as usize * BLOCK..(l as usize + 1) * BLOCK,
                    r as usize * BLOCK..(r as usize + 1) * BLOCK,
                );
                match direction {
                    Direction::Read => a[l].copy_from_slice(&b[r]),
                    Direction::Write => b[r].copy_from_slice(&a[l]),
                }
            }
            let post = pair.post(1, direction, &pairs);
            pair.a.events.clear();
            pair.a.transport.post(post).unwrap();
            pair.pump(|a, _| a.done() == [1]);
            prop_assert!(pair.a.all_bytes() == a && pair.b.all_bytes() == b);
            Ok(())
        })
        .unwrap();
}

pub fn bytes_that_are_no_pair_s_stay(fabric: &dyn Fabric) {
    let mut pair = Pair::new(fabric, BLOCK, BLOCKS);
    pair.a.fill(|_| 0xaa);
    let odd = [
        Descriptor { offset: 1, len: 3 },
        Descriptor { offset: 100, len: 0 },
        Descriptor { offset: 4, len: 7 },
    ];
    let (local, remote) = crate::agent::lists(&mut pair.a, &pair.b.id, &odd);
    let post = Post { local, remote, ..pair.post(1, Direction::Write, &[(0, 0), (1, 1), (2, 2)]) };
    pair.a.transport.post(post).unwrap();
    pair.pump(|a, _| a.done() == [1]);
    let expected: Vec<u8> =
        (0..BLOCK * BLOCKS).map(|i| if (1..11).contains(&i) { 0xaa } else { 0 }).collect();
    assert_eq!(pair.b.all_bytes(), expected);
}

pub fn zero_pairs_only_notify(fabric: &dyn Fabric) {
    let mut pair = Pair::new(fabric, BLOCK, BLOCKS);
    let longest = vec![5; MAX_NOTIFICATION];
    let posts = [None, Some(Vec::new()), Some(longest.clone())];
    for (id, notify) in (1..).zip(posts) {
        let post = Post { notify, ..pair.post(id, Direction::Read, &[]) };
        pair.a.transport.post(post).unwrap();
    }
    pair.pump(|a, b| a.done() == [1, 2, 3] && b.notified().len() == 2);
    assert_eq!(pair.b.notified(), [Vec::new(), longest]);
}

pub fn the_most_pairs_move_and_more_are_refused(fabric: &dyn Fabric) {
    let mut pair = Pair::new(fabric, 64, MAX_PAIRS);
    pair.a.fill(a_byte);
    // Scattered: no two neighbours stay neighbours in the same order.
    let mut pairs: Vec<_> = (0..MAX_PAIRS as u32).map(|i| (i, MAX_PAIRS as u32 - 1 - i)).collect();
    let post = pair.post(1, Direction::Write, &pairs);
    pair.a.transport.post(post).unwrap();
    pair.pump(|a, _| a.done() == [1]);
    let (a, b) = (pair.a.all_bytes(), pair.b.all_bytes());
    assert!(a.chunks(64).eq(b.rchunks(64)));
    pairs.push((0, 0));
    let post = pair.post(2, Direction::Write, &pairs);
    assert!(matches!(pair.a.transport.post(post), Err(TransportError::Limit(_))));
}

pub fn bad_posts_are_refused_and_start_nothing(fabric: &dyn Fabric) {
    let mut pair = Pair::new(fabric, BLOCK, BLOCKS);
    pair.a.fill(|_| 1);
    let good = pair.post(1, Direction::Write, &[(0, 0)]);
    let short = pair.a.transport.prepare_local(&[Descriptor { offset: 0, len: 8 }]).unwrap();
    let out_of_bounds = [
        Post { pairs: vec![(0, 0), (BLOCKS as u32, 0)], ..good.clone() },
        Post { pairs: vec![(0, 0), (0, BLOCKS as u32)], ..good.clone() },
        Post { pairs: vec![(0, u32::MAX)], ..good.clone() },
        Post { local: short, ..good.clone() },
        Post { local: good.remote, ..good.clone() },
        Post { remote: good.local, ..good.clone() },
        Post { remote: ListId(999), ..good.clone() },
    ];
    for post in out_of_bounds {
        assert_eq!(pair.a.transport.post(post), Err(TransportError::OutOfBounds));
    }
    let loud = Post { notify: Some(vec![0; MAX_NOTIFICATION + 1]), ..good.clone() };
    assert!(matches!(pair.a.transport.post(loud), Err(TransportError::Limit(_))));
    let end = (BLOCK * BLOCKS) as u64;
    let outside = [Descriptor { offset: end - 1, len: 2 }];
    assert_eq!(pair.a.transport.prepare_local(&outside), Err(TransportError::OutOfBounds));
    assert_eq!(pair.a.transport.prepare_remote(&pair.b.id, &outside), Err(TransportError::OutOfBounds));

    pair.a.transport.post(Post { pairs: vec![(1, 1)], ..good }).unwrap();
    pair.pump(|a, _| !a.events.is_empty());
    assert_eq!(pair.a.done(), [1]);
    assert_eq!(pair.b.bytes(0, BLOCK), [0; BLOCK]);
}

pub fn a_notification_comes_once_and_after_the_bytes(fabric: &dyn Fabric) {
    const BIG: usize = 1 << 20;
    let mut pair = Pair::new(fabric, BIG, 8);
    for id in 1..=8u64 {
        pair.a.fill(|i| (i / BIG) as u8 + 1);
        let block = id as u32 - 1;
        let post =
            Post { notify: Some(vec![id as u8]), ..pair.post(id, Direction::Write, &[(block, block)]) };
        pair.a.transport.post(post).unwrap();
        let begin = std::time::Instant::now();
        let mut seen = 0;
        while seen == 0 {
            assert!(begin.elapsed() < crate::agent::SOON);
            pair.a.transport.poll(&mut pair.a.events);
            pair.b.transport.poll(&mut pair.b.events);
            seen = pair.b.notified().iter().filter(|bytes| **bytes == [id as u8]).count();
            if seen > 0 {
                let at = block as usize * BIG;
                assert!(pair.b.bytes(at, BIG).iter().all(|&b| b == id as u8), "notified before the bytes");
            }
        }
    }
    pair.pump(|a, _| a.done().len() == 8);
    crate::agent::pump_for(&mut [&mut pair.a, &mut pair.b], std::time::Duration::from_millis(20));
    assert_eq!(pair.b.notified(), (1..=8).map(|id| vec![id]).collect::<Vec<_>>());
}

pub fn long_posts_share_with_short_ones_both_ways(fabric: &dyn Fabric) {
    const BIG: usize = 256 << 10;
    let mut pair = Pair::new(fabric, BIG, 64);
    pair.a.fill(|_| 1);
    pair.b.fill(|_| 2);
    let first_half: Vec<_> = (0..32).map(|i| (i, i)).collect();
    for id in 0..4 {
        let (there, back) = (
            pair.post(id, Direction::Write, &first_half),
            // Into the other half of `b`, out of the other half of `a`: no byte is written by one and read by
            // the other.
            pair.post_back(id, Direction::Read, &[(40 + id as u32, 40 + id as u32)]),
        );
        pair.a.transport.post(there).unwrap();
        pair.b.transport.post(back).unwrap();
    }
    let short = pair.post(9, Direction::Write, &[(60, 60)]);
    pair.a.transport.post(short).unwrap();
    pair.pump(|a, b| a.done().len() == 5 && b.done().len() == 4);
    assert_eq!(pair.a.done()[0], 9, "the short post overtakes the long ones");
    let b = pair.b.all_bytes();
    let written = |block: usize| block < 32 || (40..44).contains(&block) || block == 60;
    assert!(
        b.chunks(BIG)
            .enumerate()
            .all(|(i, bytes)| bytes.iter().all(|&x| x == if written(i) { 1 } else { 2 }))
    );
}

pub fn a_peer_that_does_not_read_delays_only_its_own_posts(fabric: &dyn Fabric) {
    let limits = TransportLimits { posts: 200, ..TransportLimits::default() };
    let mut pair = Pair::with_limits(fabric, BLOCK, BLOCKS, limits);
    let first = Post { notify: Some(vec![0, 0]), ..pair.post(0, Direction::Write, &[]) };
    pair.a.transport.post(first).unwrap();
    pair.pump(|_, b| b.notified().len() == 1);
    // From here on only `a` runs.
    let mut posted = 1u16;
    loop {
        let post = Post {
            notify: Some(posted.to_le_bytes().to_vec()),
            ..pair.post(u64::from(posted), Direction::Write, &[(0, 0)])
        };
        match pair.a.transport.post(post) {
            Ok(()) => posted += 1,
            Err(TransportError::Limit(_)) => break,
            Err(other) => panic!("{other}"),
        }
        assert!(posted < 20_000, "what waits for a peer is bounded");
        if posted.is_multiple_of(100) {
            pair.a.transport.poll(&mut pair.a.events);
        }
    }
    let mut third =
        crate::agent::Agent::new(fabric, crate::agent::engine("c", 1), 64, TransportLimits::default());
    third.add(&pair.a).unwrap();
    pair.a.add(&third).unwrap();
    let (local, remote) = crate::agent::lists(&mut pair.a, &third.id, &[Descriptor { offset: 0, len: 8 }]);
    let post =
        Post { local, remote, peer: third.id.clone(), ..pair.post(60_000, Direction::Write, &[(0, 0)]) };
    pair.a.transport.post(post).unwrap();
    crate::agent::pump(&mut [&mut pair.a, &mut third], |agents| agents[0].done().contains(&60_000));

    pair.pump(|_, b| b.notified().len() == usize::from(posted));
    let expected: Vec<_> = (0..posted).map(|i| i.to_le_bytes().to_vec()).collect();
    assert_eq!(pair.b.notified(), expected);
    pair.pump(|a, _| a.done().len() == usize::from(posted) + 1);
}
