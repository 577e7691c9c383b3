//! What a peer may touch, for the transports that can enforce it.

use baton_transport::{
    Access, Descriptor, Direction, Event, PermitId, Permits, Post, PostId, TransportError, TransportLimits,
};
use baton_types::EngineId;

use crate::agent::{Pair, pump_for};
use crate::fabric::Fabric;

const BLOCK: usize = 4096;
const BLOCKS: usize = 16;

fn pair(fabric: &dyn Fabric, block_bytes: usize) -> Pair {
    let limits = TransportLimits { enforce_permits: true, ..TransportLimits::default() };
    Pair::with_limits(fabric, block_bytes, BLOCKS, limits)
}

fn blocks(block_bytes: usize, blocks: impl IntoIterator<Item = usize>) -> Vec<Descriptor> {
    let block = move |i| Descriptor { offset: (i * block_bytes) as u64, len: block_bytes as u32 };
    blocks.into_iter().map(block).collect()
}

impl Pair {
    fn permits(&self) -> (Permits, EngineId) {
        (self.b.transport.permits().clone(), self.a.id.clone())
    }

    /// Posts from `a` to `b`, and says how it ended.
    fn outcome(&mut self, id: u64, direction: Direction, pairs: &[(u32, u32)]) -> Result<(), TransportError> {
        let post = Post { notify: Some(vec![id as u8]), ..self.post(id, direction, pairs) };
        self.a.transport.post(post).unwrap();
        self.pump(|a, _| a.done().contains(&id) || a.failed().contains(&id));
        let ended = |event: &Event| match event {
            Event::Done(PostId(ended)) if *ended == id => Some(Ok(())),
            Event::Failed(PostId(ended), error) if *ended == id => Some(Err(error.clone())),
            _ => None,
        };
        self.a.seen(ended).remove(0)
    }
}

pub fn what_is_not_permitted_is_refused(fabric: &dyn Fabric) {
    let mut pair = pair(fabric, BLOCK);
    let (permits, a) = pair.permits();
    pair.a.fill(|_| 1);
    pair.b.fill(|_| 2);
    let refused = Err(TransportError::NotPermitted);
    assert_eq!(pair.outcome(1, Direction::Write, &[(0, 0)]), refused);
    assert_eq!(pair.outcome(2, Direction::Read, &[(0, 0)]), refused);
    permits.permit(&a, PermitId(1), Access::Write, blocks(BLOCK, 0..2)).unwrap();
    assert_eq!(pair.outcome(3, Direction::Read, &[(0, 0)]), refused, "the other way");
    assert_eq!(pair.outcome(4, Direction::Write, &[(5, 2)]), refused, "another block");
    assert!(pair.b.all_bytes().iter().all(|&b| b == 2) && pair.a.all_bytes().iter().all(|&b| b == 1));

    assert_eq!(pair.outcome(5, Direction::Write, &[(0, 0), (1, 1)]), Ok(()));
    assert_eq!(pair.b.bytes(0, 2 * BLOCK), vec![1; 2 * BLOCK]);
    permits.permit(&a, PermitId(2), Access::Read, blocks(BLOCK, [9])).unwrap();
    assert_eq!(pair.outcome(6, Direction::Read, &[(3, 9)]), Ok(()));
    assert_eq!(pair.a.bytes(3 * BLOCK, BLOCK), vec![2; BLOCK]);

    permits.forbid(&a, PermitId(1));
    assert_eq!(pair.outcome(7, Direction::Write, &[(0, 0)]), refused);
    assert_eq!(pair.outcome(8, Direction::Write, &[]), Ok(()), "it touches nothing");
    pair.pump(|_, b| b.notified().len() == 3);
    assert_eq!(pair.b.notified(), [[5], [6], [8]], "nobody hears of what was refused");
}

pub fn a_shared_block_stays_permitted_until_the_last(fabric: &dyn Fabric) {
    let mut pair = pair(fabric, BLOCK);
    let (permits, a) = pair.permits();
    permits.permit(&a, PermitId(1), Access::Read, blocks(BLOCK, 0..4)).unwrap();
    permits.permit(&a, PermitId(2), Access::Read, blocks(BLOCK, 2..6)).unwrap();
    let all: Vec<_> = (0..6).map(|i| (i, i)).collect();
    assert_eq!(pair.outcome(1, Direction::Read, &all), Ok(()), "by both together");
    permits.forbid(&a, PermitId(1));
    assert_eq!(pair.outcome(2, Direction::Read, &[(2, 2), (5, 5)]), Ok(()));
    assert_eq!(pair.outcome(3, Direction::Read, &[(1, 1)]), Err(TransportError::NotPermitted));
    permits.forbid(&a, PermitId(2));
    assert_eq!(pair.outcome(4, Direction::Read, &[(2, 2)]), Err(TransportError::NotPermitted));
}

const BIG: usize = 512 << 10;

pub fn nothing_lands_after_a_permit_is_taken_back(fabric: &dyn Fabric) {
    for polls in 1..6 {
        let mut pair = pair(fabric, BIG);
        let (permits, a) = pair.permits();
        permits.permit(&a, PermitId(1), Access::Write, blocks(BIG, 0..BLOCKS)).unwrap();
        pair.outcome(1, Direction::Write, &[]).unwrap();
        pair.a.fill(|_| 1);
        let all: Vec<_> = (0..BLOCKS as u32).map(|i| (i, i)).collect();
        let post = pair.post(2, Direction::Write, &all);
        pair.a.transport.post(post).unwrap();
        for _ in 0..polls {
            pair.a.transport.poll(&mut pair.a.events);
            pair.b.transport.poll(&mut pair.b.events);
        }
        permits.forbid(&a, PermitId(1));
        pair.b.fill(|_| 9);
        pair.pump(|a, _| a.failed() == [2]);
        pump_for(&mut [&mut pair.a, &mut pair.b], std::time::Duration::from_millis(5));
        assert!(pair.b.all_bytes().iter().all(|&b| b == 9), "after {polls} polls");
        assert!(pair.a.has(&Event::Failed(PostId(2), TransportError::NotPermitted)));
        // The path goes on.
        permits.permit(&a, PermitId(2), Access::Write, blocks(BIG, [3])).unwrap();
        assert_eq!(pair.outcome(3, Direction::Write, &[(0, 3)]), Ok(()));
        assert_eq!(pair.b.bytes(3 * BIG, BIG), vec![1; BIG]);
    }
}

pub fn nothing_is_read_after_a_permit_is_taken_back(fabric: &dyn Fabric) {
    for polls in 1..6 {
        let mut pair = pair(fabric, BIG);
        let (permits, a) = pair.permits();
        permits.permit(&a, PermitId(1), Access::Read, blocks(BIG, 0..BLOCKS)).unwrap();
        pair.outcome(1, Direction::Read, &[]).unwrap();
        pair.b.fill(|_| 1);
        let all: Vec<_> = (0..BLOCKS as u32).map(|i| (i, i)).collect();
        let post = pair.post(2, Direction::Read, &all);
        pair.a.transport.post(post).unwrap();
        for _ in 0..polls {
            pair.a.transport.poll(&mut pair.a.events);
            pair.b.transport.poll(&mut pair.b.events);
        }
        permits.forbid(&a, PermitId(1));
        // Another tenant's.
        pair.b.fill(|_| 9);
        pair.pump(|a, _| a.failed() == [2]);
        assert!(pair.a.all_bytes().iter().all(|&b| b != 9), "after {polls} polls");
        permits.permit(&a, PermitId(2), Access::Read, blocks(BIG, [3])).unwrap();
        assert_eq!(pair.outcome(3, Direction::Read, &[(0, 3)]), Ok(()));
        assert_eq!(pair.a.bytes(0, BIG), vec![9; BIG]);
    }
}
