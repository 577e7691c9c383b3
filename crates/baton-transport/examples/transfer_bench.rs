//! GB/s of `shm` beside memcpy of the same blocks, two agents in one process, one thread.
//!
//!     cargo run --release -p baton-transport --example transfer_bench
#![allow(unsafe_code)]

use std::ptr::copy_nonoverlapping;
use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_transport::{
    Descriptor, Direction, Event, MAX_PAIRS, Post, PostId, ShmRegion, ShmTransport, Transport,
    TransportLimits,
};
use baton_types::{EngineId, EngineName, HeapRegion, MemoryRegion};

const POOL_BYTES: usize = 256 << 20;
const ROUNDS: usize = 7;

struct Agent {
    id: EngineId,
    transport: ShmTransport,
    region: Arc<ShmRegion>,
}

fn agent(name: &str) -> Agent {
    let id = EngineId::new(EngineName::new(name).unwrap(), 1);
    let mut transport = ShmTransport::new(id.clone(), TransportLimits::default()).unwrap();
    let region = Arc::new(ShmRegion::populated(POOL_BYTES).unwrap());
    transport.register(region.clone()).unwrap();
    Agent { id, transport, region }
}

/// The blocks' order on the remote side: in order, or such that no two neighbours stay neighbours.
fn pairs(blocks: usize, scattered: bool) -> Vec<(u32, u32)> {
    let stride = (0..).map(|i| blocks * 5 / 8 + 1 + i).find(|s| gcd(*s, blocks) == 1).unwrap();
    let remote = |i: usize| if scattered { i * stride % blocks } else { i };
    (0..blocks).map(|i| (i as u32, remote(i) as u32)).collect()
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The best of several rounds, in GB/s: what else the machine does only makes it slower. The first touches
/// the pages.
fn rate(mut round: impl FnMut()) -> f64 {
    round();
    let seconds = (0..ROUNDS).map(|_| {
        let begin = Instant::now();
        round();
        begin.elapsed().as_secs_f64()
    });
    POOL_BYTES as f64 / seconds.fold(f64::INFINITY, f64::min) / 1e9
}

fn memcpy(from: &dyn MemoryRegion, to: &dyn MemoryRegion, block_bytes: usize, pairs: &[(u32, u32)]) {
    for &(l, r) in pairs {
        let (l, r) = (l as usize * block_bytes, r as usize * block_bytes);
        // SAFETY: blocks of two different regions that nobody else uses.
        unsafe { copy_nonoverlapping(from.base().as_ptr().add(l), to.base().as_ptr().add(r), block_bytes) };
    }
}

fn main() {
    let (mut a, mut b) = (agent("a"), agent("b"));
    let begin = Instant::now();
    a.transport.add_peer(&b.id, &b.transport.metadata()).unwrap();
    b.transport.add_peer(&a.id, &a.transport.metadata()).unwrap();
    println!("adding a peer of {} MiB: {:?}", POOL_BYTES >> 20, begin.elapsed());
    let heap = [HeapRegion::new(POOL_BYTES), HeapRegion::new(POOL_BYTES)];
    println!(
        "{:>8} {:>10} {:>12} {:>12} {:>9} {:>9}",
        "block", "order", "memcpy heap", "memcpy shm", "READ", "WRITE"
    );
    for scattered in [true, false] {
        for block_bytes in [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20] {
            let blocks = POOL_BYTES / block_bytes;
            let pairs = pairs(blocks, scattered);
            let list: Vec<_> = (0..blocks)
                .map(|i| Descriptor { offset: (i * block_bytes) as u64, len: block_bytes as u32 })
                .collect();
            let local = a.transport.prepare_local(&list).unwrap();
            let remote = a.transport.prepare_remote(&b.id, &list).unwrap();
            let mut events = Vec::new();
            let mut round = |direction| {
                let posts = pairs.chunks(MAX_PAIRS);
                let mut left = posts.len();
                for (id, pairs) in posts.enumerate() {
                    let (id, peer, pairs) = (PostId(id as u64), b.id.clone(), pairs.to_vec());
                    a.transport
                        .post(Post { id, direction, peer, local, remote, pairs, notify: None })
                        .unwrap();
                }
                while left > 0 {
                    if !a.transport.poll(&mut events) {
                        b.transport.poll(&mut Vec::new());
                        a.transport.wait(Duration::ZERO);
                    }
                    left -= events.drain(..).filter(|event| matches!(event, Event::Done(_))).count();
                }
            };
            let (read, write) = (rate(|| round(Direction::Read)), rate(|| round(Direction::Write)));
            let memcpy_heap = rate(|| memcpy(&heap[0], &heap[1], block_bytes, &pairs));
            let memcpy_shm = rate(|| memcpy(a.region.as_ref(), b.region.as_ref(), block_bytes, &pairs));
            let order = if scattered { "scattered" } else { "in order" };
            println!(
                "{:>4} KiB {order:>10} {memcpy_heap:>12.2} {memcpy_shm:>12.2} {read:>9.2} {write:>9.2}",
                block_bytes >> 10
            );
        }
    }
}
