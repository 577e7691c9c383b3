//! GB/s of `tcp` beside a plain loopback stream of as many bytes: two threads each, one that sends and one that
//! receives, in alternating rounds.
//!
//!     cargo run --release -p baton-transport --example tcp_bench
#![allow(unsafe_code)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use baton_transport::{
    Descriptor, Direction, Event, ListId, MAX_PAIRS, Post, PostId, ShmRegion, TcpConfig, TcpTransport,
    Transport, TransportLimits, Waker,
};
use baton_types::{EngineId, EngineName, MemoryRegion};

const POOL_BYTES: usize = 64 << 20;
/// As much as `tcp` sends by one call.
const CHUNK_BYTES: usize = 512 << 10;
const ROUNDS: usize = 7;

fn region() -> Arc<ShmRegion> {
    Arc::new(ShmRegion::populated(POOL_BYTES).unwrap())
}

/// A slice of a region that nothing else uses meanwhile.
#[allow(clippy::mut_from_ref)]
fn bytes(region: &ShmRegion) -> &mut [u8] {
    // SAFETY: the whole region; each is used by one thread at a time.
    unsafe { std::slice::from_raw_parts_mut(region.base().as_ptr(), region.len()) }
}

/// A stream over loopback, at whose other end a thread receives into a region and answers with a byte.
struct Plain {
    stream: TcpStream,
    from: Arc<ShmRegion>,
}

impl Plain {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_nodelay(true).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let into = region();
        thread::spawn(move || {
            let mut at = 0;
            while let Ok(n) = peer.read(&mut bytes(&into)[at..(at + CHUNK_BYTES).min(POOL_BYTES)]) {
                at += n;
                match n {
                    0 => return,
                    _ if at == POOL_BYTES => {
                        peer.write_all(&[1]).unwrap();
                        at = 0;
                    }
                    _ => {}
                }
            }
        });
        Self { stream, from: region() }
    }

    fn round(&mut self) {
        for chunk in bytes(&self.from).chunks(CHUNK_BYTES) {
            self.stream.write_all(chunk).unwrap();
        }
        self.stream.read_exact(&mut [0]).unwrap();
    }
}

/// Two agents; the second has a thread of its own.
struct Tcp {
    a: TcpTransport,
    b_id: EngineId,
    b_waker: Waker,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    lists: Option<(ListId, ListId)>,
}

impl Tcp {
    fn new(config: &TcpConfig) -> Self {
        let agent = |name: &str| {
            let id = EngineId::new(EngineName::new(name).unwrap(), 1);
            let limits = TransportLimits { lists: 64, ..TransportLimits::default() };
            let mut transport = TcpTransport::new(id.clone(), limits, config.clone()).unwrap();
            transport.register(region()).unwrap();
            (id, transport)
        };
        let ((a_id, mut a), (b_id, mut b)) = (agent("a"), agent("b"));
        a.add_peer(&b_id, &b.metadata()).unwrap();
        b.add_peer(&a_id, &a.metadata()).unwrap();
        let (b_waker, stop) = (b.waker(), Arc::new(AtomicBool::new(false)));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut events = Vec::new();
            while !stopped.load(Ordering::Acquire) {
                if !b.poll(&mut events) {
                    b.wait(Duration::from_secs(1));
                }
                events.clear();
            }
        });
        Self { a, b_id, b_waker, stop, thread: Some(thread), lists: None }
    }

    fn prepare(&mut self, block_bytes: usize) {
        let list: Vec<_> = (0..POOL_BYTES / block_bytes)
            .map(|i| Descriptor { offset: (i * block_bytes) as u64, len: block_bytes as u32 })
            .collect();
        let local = self.a.prepare_local(&list).unwrap();
        self.lists = Some((local, self.a.prepare_remote(&self.b_id, &list).unwrap()));
    }

    fn round(&mut self, direction: Direction, pairs: &[(u32, u32)]) {
        let (local, remote) = self.lists.unwrap();
        let mut left = 0;
        for (id, pairs) in pairs.chunks(MAX_PAIRS).enumerate() {
            let (id, peer, pairs) = (PostId(id as u64), self.b_id.clone(), pairs.to_vec());
            self.a.post(Post { id, direction, peer, local, remote, pairs, notify: None }).unwrap();
            left += 1;
        }
        let mut events = Vec::new();
        while left > 0 {
            if !self.a.poll(&mut events) && events.is_empty() {
                self.a.wait(Duration::from_secs(1));
            }
            for event in events.drain(..) {
                assert!(matches!(event, Event::Done(_)), "{event:?}");
                left -= 1;
            }
        }
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.b_waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The blocks' order on the remote side: in order, or such that no two neighbours stay neighbours.
fn pairs(blocks: usize, scattered: bool) -> Vec<(u32, u32)> {
    let stride = (blocks * 5 / 8 + 1..).find(|stride| gcd(*stride, blocks) == 1).unwrap();
    let remote = |i: usize| if scattered { i * stride % blocks } else { i };
    (0..blocks).map(|i| (i as u32, remote(i) as u32)).collect()
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn rate(round: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    round();
    POOL_BYTES as f64 / begin.elapsed().as_secs_f64() / 1e9
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let options = [
        ("2 lanes", TcpConfig::default()),
        ("1 lane", TcpConfig { lanes: 1, ..TcpConfig::default() }),
        ("4 lanes", TcpConfig { lanes: 4, ..TcpConfig::default() }),
        ("2 lanes, CRC", TcpConfig { crc: true, ..TcpConfig::default() }),
    ];
    let mut plain = Plain::new();
    println!(
        "{:<14} {:>8} {:>10} {:>10} {:>10} {:>10} {:>16} {:>16}",
        "tcp", "block", "order", "plain", "WRITE", "READ", "WRITE / plain", "READ / plain"
    );
    for (name, config) in options {
        let mut tcp = Tcp::new(&config);
        // 4 KiB scattered: 16,384 descriptors, the most that a post takes.
        for (block_bytes, scattered) in [(1 << 20, false), (64 << 10, true), (4 << 10, true)] {
            let pairs = pairs(POOL_BYTES / block_bytes, scattered);
            tcp.prepare(block_bytes);
            let [mut plains, mut writes, mut reads] = [(); 3].map(|()| Vec::new());
            // The first round warms up.
            for round in 0..=ROUNDS {
                let rates = [
                    rate(|| plain.round()),
                    rate(|| tcp.round(Direction::Write, &pairs)),
                    rate(|| tcp.round(Direction::Read, &pairs)),
                ];
                if round > 0 {
                    plains.push(rates[0]);
                    writes.push(rates[1]);
                    reads.push(rates[2]);
                }
            }
            let ratio = |rates: &[f64]| {
                let by_round: Vec<f64> =
                    rates.iter().zip(&plains).map(|(ours, theirs)| ours / theirs).collect();
                let (min, max) =
                    by_round.iter().fold((f64::INFINITY, 0f64), |(min, max), r| (min.min(*r), max.max(*r)));
                format!("{:.2} ({min:.2}-{max:.2})", median(by_round))
            };
            let (write_ratio, read_ratio) = (ratio(&writes), ratio(&reads));
            println!(
                "{name:<14} {:>4} KiB {:>10} {:>10.2} {:>10.2} {:>10.2} {write_ratio:>16} {read_ratio:>16}",
                block_bytes >> 10,
                if scattered { "scattered" } else { "in order" },
                median(plains),
                median(writes),
                median(reads),
            );
        }
    }
}
