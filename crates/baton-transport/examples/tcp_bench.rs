//! `tcp` beside plain loopback streams of as many bytes: two threads each, one that sends and one that receives, in alternating
//! rounds. One plain stream moves both pools from end to end; the other the same blocks in the same order as `tcp`, by vectored
//! calls. GB/s depend on who else uses the machine; seconds of both threads on a processor for a GB depend on it less.
//!
//!     cargo run --release -p baton-transport --example tcp_bench
#![allow(unsafe_code)]

use std::io::{IoSlice, IoSliceMut, Read, Write};
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
const ROUNDS: usize = 11;

fn region() -> Arc<ShmRegion> {
    Arc::new(ShmRegion::populated(POOL_BYTES).unwrap())
}

/// A block of a region that nothing else uses meanwhile.
#[allow(clippy::mut_from_ref)]
fn block(region: &ShmRegion, block_bytes: usize, index: u32) -> &mut [u8] {
    let begin = index as usize * block_bytes;
    assert!(begin + block_bytes <= region.len());
    // SAFETY: inside the region; each block is used by one thread at a time.
    unsafe { std::slice::from_raw_parts_mut(region.base().as_ptr().add(begin), block_bytes) }
}

/// A stream over loopback, at whose other end a thread receives into a region and answers with a byte.
struct Plain {
    stream: TcpStream,
    from: Arc<ShmRegion>,
    block_bytes: usize,
    pairs: Vec<(u32, u32)>,
}

impl Plain {
    fn new(block_bytes: usize, pairs: Vec<(u32, u32)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_nodelay(true).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let (into, order) = (region(), pairs.clone());
        thread::spawn(move || {
            loop {
                for blocks in order.chunks(blocks_at_once(block_bytes)) {
                    let mut slices: Vec<_> = blocks
                        .iter()
                        .map(|&(_, index)| IoSliceMut::new(block(&into, block_bytes, index)))
                        .collect();
                    let mut left = &mut slices[..];
                    while !left.is_empty() {
                        match peer.read_vectored(left) {
                            Ok(n) if n > 0 => IoSliceMut::advance_slices(&mut left, n),
                            _ => return,
                        }
                    }
                }
                peer.write_all(&[1]).unwrap();
            }
        });
        Self { stream, from: region(), block_bytes, pairs }
    }

    fn round(&mut self) {
        for blocks in self.pairs.chunks(blocks_at_once(self.block_bytes)) {
            let mut slices: Vec<_> = blocks
                .iter()
                .map(|&(index, _)| IoSlice::new(block(&self.from, self.block_bytes, index)))
                .collect();
            let mut left = &mut slices[..];
            while !left.is_empty() {
                let n = self.stream.write_vectored(left).unwrap();
                IoSlice::advance_slices(&mut left, n);
            }
        }
        self.stream.read_exact(&mut [0]).unwrap();
    }
}

fn blocks_at_once(block_bytes: usize) -> usize {
    (CHUNK_BYTES / block_bytes).max(1)
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

/// GB/s, and seconds on a processor for a GB.
#[derive(Clone, Copy)]
struct Speed {
    rate: f64,
    cpu: f64,
}

fn speed(round: impl FnOnce()) -> Speed {
    let (begin, cpu) = (Instant::now(), cpu_s());
    round();
    let gb = POOL_BYTES as f64 / 1e9;
    Speed { rate: gb / begin.elapsed().as_secs_f64(), cpu: (cpu_s() - cpu) / gb }
}

/// How long all threads of this process have been on a processor.
fn cpu_s() -> f64 {
    // SAFETY: all zero is one, and it is filled.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &raw mut usage), 0);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Medians, and those of the ratios of each round to the same round of `plain`.
fn print(name: &str, speeds: &[Speed], plain: &[Speed]) {
    let rounds = || speeds.iter().zip(plain);
    let ratios = || rounds().map(|(ours, theirs)| ours.rate / theirs.rate);
    let (min, max) = (ratios().fold(f64::INFINITY, f64::min), ratios().fold(0.0, f64::max));
    println!(
        "  {name:<16} {:>7.2} {:>7.2} ({min:.2}-{max:.2}) {:>10.3} {:>7.2}",
        median(speeds.iter().map(|speed| speed.rate)),
        median(ratios()),
        median(speeds.iter().map(|speed| speed.cpu)),
        median(rounds().map(|(ours, theirs)| ours.cpu / theirs.cpu)),
    );
}

fn main() {
    let options = [
        ("2 lanes", TcpConfig::default()),
        ("1 lane", TcpConfig { lanes: 1, ..TcpConfig::default() }),
        ("4 lanes", TcpConfig { lanes: 4, ..TcpConfig::default() }),
        ("2 lanes, CRC", TcpConfig { crc: true, ..TcpConfig::default() }),
    ];
    let mut plain = Plain::new(CHUNK_BYTES, pairs(POOL_BYTES / CHUNK_BYTES, false));
    // 4 KiB scattered: 16,384 descriptors, the most that a post takes.
    for (block_bytes, is_scattered) in [(1 << 20, false), (64 << 10, true), (4 << 10, true)] {
        let pairs = pairs(POOL_BYTES / block_bytes, is_scattered);
        let mut same_blocks = Plain::new(block_bytes, pairs.clone());
        for (name, config) in &options {
            let order = if is_scattered { "scattered" } else { "in order" };
            println!("{} KiB {order}, {name}", block_bytes >> 10);
            println!("  {:<16} {:>7} {:>19} {:>10} {:>7}", "", "GB/s", "of plain's", "CPU s/GB", "of");
            let mut tcp = Tcp::new(config);
            tcp.prepare(block_bytes);
            let [mut plains, mut blocks, mut writes, mut reads] = [(); 4].map(|()| Vec::new());
            // The first round warms up.
            for round in 0..=ROUNDS {
                let speeds = [
                    speed(|| plain.round()),
                    speed(|| same_blocks.round()),
                    speed(|| tcp.round(Direction::Write, &pairs)),
                    speed(|| tcp.round(Direction::Read, &pairs)),
                ];
                if round > 0 {
                    for (all, speed) in
                        [&mut plains, &mut blocks, &mut writes, &mut reads].into_iter().zip(speeds)
                    {
                        all.push(speed);
                    }
                }
            }
            print("plain", &plains, &plains);
            print("plain, blocks", &blocks, &plains);
            print("WRITE", &writes, &plains);
            print("READ", &reads, &plains);
        }
    }
}
