//! The transfer thread over every transport.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use baton_transport::{
    Access, Direction, Event, KvPool, KvPost, MemoryHub, MemoryTransport, PermitId, PostId, ShmRegion,
    ShmTransport, TcpConfig, TcpTransport, TransferHandle, TransferThread, Transport, TransportError,
    TransportLimits,
};
use baton_types::{
    EngineId, EngineName, HeapRegion, KvDtype, KvLayout, KvOrder, MemoryRegion, PoolShape, UnitId,
};

const BLOCKS: u32 = 64;
const BLOCK_BYTES: usize = 1 << 16;
const POOL_BYTES: usize = BLOCKS as usize * BLOCK_BYTES;

fn pool() -> KvPool {
    let (dtype, order) = (KvDtype::F32, KvOrder::BlockMajor);
    let layout = KvLayout { layers: 4, kv_heads: 4, head_dim: 32, dtype, block_tokens: 16, ranks: 1, order };
    assert_eq!(layout.block_bytes(), BLOCK_BYTES);
    KvPool::new(layout, BLOCKS, 1).unwrap()
}

struct Side {
    id: EngineId,
    region: Arc<dyn MemoryRegion>,
    metadata: Vec<u8>,
    handle: TransferHandle,
    events: Receiver<Event>,
    is_tcp: bool,
}

impl Side {
    fn new(id: EngineId, mut transport: Box<dyn Transport>, region: Arc<dyn MemoryRegion>) -> Self {
        transport.register(region.clone()).unwrap();
        let (metadata, is_tcp) = (transport.metadata(), transport.name() == "tcp");
        let (sender, events) = channel();
        let handle =
            TransferThread::spawn(transport, pool(), move |event| sender.send(event).unwrap()).unwrap();
        Self { id, region, metadata, handle, events, is_tcp }
    }

    fn memory(name: &str, hub: &Arc<MemoryHub>) -> Self {
        let id = EngineId::new(EngineName::new(name).unwrap(), 1);
        let transport = MemoryTransport::new(id.clone(), hub.clone(), TransportLimits::default());
        Self::new(id, Box::new(transport), Arc::new(HeapRegion::new(POOL_BYTES)))
    }

    fn shm(name: &str) -> Self {
        let id = EngineId::new(EngineName::new(name).unwrap(), 1);
        let transport = ShmTransport::new(id.clone(), TransportLimits::default()).unwrap();
        Self::new(id, Box::new(transport), Arc::new(ShmRegion::new(POOL_BYTES).unwrap()))
    }

    fn tcp(name: &str, limits: TransportLimits) -> Self {
        let id = EngineId::new(EngineName::new(name).unwrap(), 1);
        let transport = TcpTransport::new(id.clone(), limits, TcpConfig::default()).unwrap();
        Self::new(id, Box::new(transport), Arc::new(HeapRegion::new(POOL_BYTES)))
    }

    fn add(&self, peer: &Side) {
        self.handle.add_peer(peer.id.clone(), peer.metadata.clone(), pool().shape()).unwrap();
    }

    fn next(&self) -> Event {
        self.events.recv_timeout(Duration::from_secs(10)).unwrap()
    }

    fn block(&self, block: u32) -> *mut u8 {
        assert!(block < BLOCKS);
        // SAFETY: inside the region.
        unsafe { self.region.base().as_ptr().add(block as usize * BLOCK_BYTES) }
    }

    fn fill(&self, block: u32, byte: u8) {
        // SAFETY: a block of the region; the test moves nothing meanwhile.
        unsafe { self.block(block).write_bytes(byte, BLOCK_BYTES) };
    }

    fn ends_of(&self, block: u32) -> (u8, u8) {
        // SAFETY: a block of the region; the test moves nothing meanwhile.
        unsafe { (self.block(block).read(), self.block(block).add(BLOCK_BYTES - 1).read()) }
    }
}

fn pairs_of_sides() -> [(Side, Side); 3] {
    let hub = MemoryHub::new();
    let tcp = |name| Side::tcp(name, TransportLimits::default());
    [
        (Side::memory("a", &hub), Side::memory("b", &hub)),
        (Side::shm("a"), Side::shm("b")),
        (tcp("a"), tcp("b")),
    ]
}

fn post(id: u64, peer: &Side, direction: Direction, pairs: &[(u32, u32)], notify: Option<&[u8]>) -> KvPost {
    let (id, peer, pairs, notify) = (
        PostId(id),
        peer.id.clone(),
        pairs.iter().map(|&(our, their)| (UnitId(our), UnitId(their))).collect(),
        notify.map(<[u8]>::to_vec),
    );
    KvPost { id, direction, peer, ranks: (0, 0), pairs, notify }
}

#[test]
fn blocks_move_and_the_other_side_hears_of_it() {
    for (a, b) in pairs_of_sides() {
        a.add(&b);
        b.add(&a);
        a.fill(3, 7);
        a.handle.post(post(1, &b, Direction::Write, &[(3, 60)], Some(b"chunk"))).unwrap();
        assert_eq!(b.next(), Event::Notified { peer: a.id.clone(), bytes: b"chunk".to_vec() });
        assert_eq!((b.ends_of(60), b.ends_of(59), b.ends_of(61)), ((7, 7), (0, 0), (0, 0)));
        b.fill(63, 9);
        a.handle.post(post(2, &b, Direction::Read, &[(0, 63)], None)).unwrap();
        assert_eq!([a.next(), a.next()], [Event::Done(PostId(1)), Event::Done(PostId(2))]);
        assert_eq!(a.ends_of(0), (9, 9));
    }
}

#[test]
fn whoever_waits_for_a_post_finds_it_posted() {
    for (a, b) in pairs_of_sides() {
        a.add(&b);
        b.add(&a);
        b.fill(63, 9);
        // The way to the peer is open.
        a.handle.post(post(1, &b, Direction::Read, &[(1, 63)], None)).unwrap();
        assert_eq!(a.next(), Event::Done(PostId(1)));
        let began = Instant::now();
        let limit = Duration::from_secs(60);
        let all: Vec<(u32, u32)> = (0..BLOCKS).map(|i| (i, 63 - i)).collect();
        a.handle.post_and_wait(post(2, &b, Direction::Read, &all, None), limit).unwrap();
        assert!(began.elapsed() < limit, "it is told");
        if !a.is_tcp {
            // Whoever copies by himself has copied.
            assert_eq!(a.ends_of(0), (9, 9));
            assert_eq!(a.events.try_recv(), Ok(Event::Done(PostId(2))));
        }
        a.handle.post_and_wait(post(3, &b, Direction::Read, &[(99, 0)], None), limit).unwrap();
        let failed = Event::Failed(PostId(3), TransportError::OutOfBounds);
        assert!((0..2).any(|_| a.next() == failed), "an error is an event here too");
        assert!(began.elapsed() < limit);
    }
}

#[test]
fn what_goes_wrong_comes_back_as_an_event() {
    for (a, b) in pairs_of_sides() {
        let ask = |id, pairs: &[(u32, u32)]| {
            a.handle.post(post(id, &b, Direction::Write, pairs, None)).unwrap();
            a.next()
        };
        assert_eq!(ask(1, &[]), Event::Failed(PostId(1), TransportError::UnknownPeer(b.id.clone())));
        a.handle.add_peer(b.id.clone(), vec![1, 2, 3], pool().shape()).unwrap();
        assert!(matches!(a.next(), Event::PeerRefused(_, TransportError::BadMetadata(_))));
        let shape = pool().shape();
        for (shape, error) in [
            (PoolShape { units: 65, ..shape }, TransportError::OutOfBounds),
            (PoolShape { units: u32::MAX, ..shape }, TransportError::Limit("descriptors of a pool")),
            (
                PoolShape { block_units: 0, ..shape },
                TransportError::BadPool("its units do not make whole blocks"),
            ),
            (
                PoolShape { block_units: 7, ..shape },
                TransportError::BadPool("its units do not make whole blocks"),
            ),
            (
                PoolShape { ranks: 0, ..shape },
                TransportError::BadPool("its ranks and ours do not divide one another"),
            ),
            (
                PoolShape { ranks: 8, ..shape },
                TransportError::BadPool("its heads or tokens cannot be split evenly"),
            ),
            (
                PoolShape { dtype: KvDtype::U8, ..shape },
                TransportError::Unconvertible(KvDtype::F32, KvDtype::U8),
            ),
        ] {
            a.handle.add_peer(b.id.clone(), b.metadata.clone(), shape).unwrap();
            assert_eq!(a.next(), Event::PeerRefused(b.id.clone(), error));
            // The path is torn down without a word: nobody was told that it was there.
            std::thread::sleep(Duration::from_millis(20));
        }
        a.add(&b);
        b.add(&a);
        assert_eq!(ask(2, &[(64, 0)]), Event::Failed(PostId(2), TransportError::OutOfBounds));
        assert_eq!(ask(3, &[(0, 64)]), Event::Failed(PostId(3), TransportError::OutOfBounds));
        assert_eq!(ask(4, &[(0, 0)]), Event::Done(PostId(4)));
        b.handle.remove_peer(a.id.clone()).unwrap();
        assert_eq!(b.next(), Event::PeerLost(a.id.clone()));
        assert_eq!(a.next(), Event::PeerLost(b.id.clone()));
        assert!(matches!(ask(5, &[]), Event::Failed(PostId(5), TransportError::UnknownPeer(_))));
    }
}

#[test]
fn every_post_ends_once_also_when_the_thread_is_stopped() {
    for (a, b) in pairs_of_sides() {
        a.add(&b);
        b.add(&a);
        a.handle.post(post(9999, &b, Direction::Write, &[], Some(b"first"))).unwrap();
        assert_eq!(b.next(), Event::Notified { peer: a.id.clone(), bytes: b"first".to_vec() });
        let all: Vec<_> = (0..64).map(|i| (i, 63 - i)).collect();
        let sent =
            (0..3000).filter(|&id| a.handle.post(post(id, &b, Direction::Write, &all, None)).is_ok()).count();
        assert!(sent > 0);
        a.handle.stop();
        let mut ended: Vec<u64> = a
            .events
            .try_iter()
            .filter_map(|event| match event {
                Event::Done(PostId(id)) | Event::Failed(PostId(id), _) => Some(id),
                _ => None,
            })
            .collect();
        ended.sort_unstable();
        ended.dedup();
        assert_eq!(ended.len(), sent + 1);
        assert_eq!(b.next(), Event::PeerLost(a.id));
    }
}

#[test]
fn nothing_is_written_after_the_loss() {
    for (a, b) in pairs_of_sides() {
        let all: Vec<_> = (0..64).map(|i| (i, 63 - i)).collect();
        for _ in 0..10 {
            b.add(&a);
            a.add(&b);
            a.handle.post(post(1000, &b, Direction::Write, &[], Some(b"in"))).unwrap();
            assert!(matches!(b.next(), Event::Notified { .. }), "both have let each other in");
            for id in 0..100 {
                a.handle.post(post(id, &b, Direction::Write, &all, Some(b"n"))).unwrap();
            }
            // `a` copies on its own thread, and goes on while `b` shuts it out. Not before it was let in: whoever
            // waits at a door is not told that nobody will open.
            while !matches!(b.next(), Event::Notified { .. }) {}
            std::thread::sleep(Duration::from_millis(3));
            b.handle.remove_peer(a.id.clone()).unwrap();
            while b.next() != Event::PeerLost(a.id.clone()) {}
            (0..64).for_each(|block| b.fill(block, 9));
            std::thread::sleep(Duration::from_millis(2));
            assert!((0..64).all(|block| b.ends_of(block) == (9, 9)));
            while a.next() != Event::PeerLost(b.id.clone()) {}
        }
    }
}

/// The threads sleep as soon as they think that there is nothing to do, and nothing but the other side wakes them.
#[test]
fn long_posts_never_fall_asleep_half_way() {
    for (a, b) in pairs_of_sides() {
        a.add(&b);
        b.add(&a);
        for (round, direction) in [Direction::Write, Direction::Read].into_iter().cycle().take(6).enumerate()
        {
            let pairs: Vec<_> = (0..64 - round as u32).map(|i| (i, 63 - i)).collect();
            for id in 0..32 {
                a.handle.post(post(id, &b, direction, &pairs, None)).unwrap();
            }
            let done = (0..32).filter(|_| matches!(a.next(), Event::Done(_))).count();
            assert_eq!(done, 32);
        }
    }
}

/// The blocks are the caller's again when `forbid` returns, whatever the thread is doing.
#[test]
fn nothing_lands_after_forbid_returns() {
    let limits = TransportLimits { enforce_permits: true, ..TransportLimits::default() };
    let (a, b) = (Side::tcp("a", limits.clone()), Side::tcp("b", limits));
    a.add(&b);
    b.add(&a);
    let all: Vec<_> = (0..64).map(|i| (i, 63 - i)).collect();
    let blocks: Vec<UnitId> = (0..64).map(UnitId).collect();
    assert_eq!(
        b.handle.permit(&a.id, PermitId(0), Access::Write, &[UnitId(64)]),
        Err(TransportError::OutOfBounds)
    );
    let mut refused = 0;
    for round in 1..200 {
        b.handle.permit(&a.id, PermitId(round), Access::Write, &blocks).unwrap();
        a.fill(0, 1);
        a.handle.post(post(round, &b, Direction::Write, &all, None)).unwrap();
        std::thread::sleep(Duration::from_micros(round * 20));
        b.handle.forbid(&a.id, PermitId(round));
        (0..64).for_each(|block| b.fill(block, 9));
        match a.next() {
            Event::Done(_) => {}
            Event::Failed(_, TransportError::NotPermitted) => refused += 1,
            other => panic!("{other:?}"),
        }
        assert!((0..64).all(|block| b.ends_of(block) == (9, 9)), "round {round}");
    }
    assert!(refused > 10, "only {refused} were in flight");
}

#[test]
fn a_caller_never_waits() {
    let (a, b) = pairs_of_sides().into_iter().next_back().unwrap();
    // `b` never adds `a`: the posts wait, up to the limit, and the rest fail.
    a.add(&b);
    let begin = Instant::now();
    let refused =
        (0..100_000).filter(|&id| a.handle.post(post(id, &b, Direction::Write, &[], None)).is_err()).count();
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?} and {refused} refused", begin.elapsed());
    let failed = a.events.try_iter().all(|event| matches!(event, Event::Failed(_, TransportError::Limit(_))));
    assert!(failed);
}

/// CPU time of the named thread, in clock ticks.
fn ticks_of_transfer_threads() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")).ok());
    let of_ours = stats.filter(|stat| stat.contains("(baton-transfer)"));
    of_ours
        .map(|stat| {
            let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
            fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
        })
        .sum()
}

#[test]
fn an_idle_thread_sleeps() {
    let sides = pairs_of_sides();
    for (a, b) in &sides {
        a.add(b);
        b.add(a);
        a.handle.post(post(1, b, Direction::Write, &[], None)).unwrap();
        assert_eq!(a.next(), Event::Done(PostId(1)));
    }
    if std::env::args().any(|arg| arg == "an_idle_thread_sleeps") {
        // Alone: only then are all the threads idle.
        let before = ticks_of_transfer_threads();
        std::thread::sleep(Duration::from_millis(500));
        assert!(ticks_of_transfer_threads() - before <= 1);
    } else {
        let exe = std::env::current_exe().unwrap();
        let alone =
            std::process::Command::new(exe).args(["--exact", "an_idle_thread_sleeps"]).output().unwrap();
        assert!(alone.status.success(), "{}", String::from_utf8_lossy(&alone.stdout));
    }
}
