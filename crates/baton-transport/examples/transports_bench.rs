//! GB/s of every transport between processes beside memcpy of the same blocks, by block size and number of descriptors;
//! and the longest that one call of the poster held its thread. Two agents in one process, a thread each.
//!
//!     NIXL_PREFIX=... cargo run --release -p baton-transport --example transports_bench -- --svg FILE
//!
//! NIXL moves with what UCX_TLS and NIXL_READS choose, and is left out where there is none. The plot has GB/s by block size, of the
//! most descriptors of each, and the longest call by the number of descriptors of 4 KiB.
#![allow(unsafe_code)]

use std::path::PathBuf;
use std::ptr::copy_nonoverlapping;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use baton_plot::{Line, Panel, Stroke, svg};
use baton_transport::{
    Descriptor, Direction, Event, ListId, MAX_PAIRS, NixlConfig, NixlLibrary, NixlTransport, Post, PostId,
    ShmRegion, ShmTransport, TcpConfig, TcpTransport, Transport, TransportLimits, Waker,
};
use baton_types::{EngineId, EngineName, MemoryRegion};

const POOL_BYTES: usize = 256 << 20;
const ROUNDS: usize = 3;
const KIB: usize = 1 << 10;
/// Bytes of a block, and descriptors of a transfer: as many as a request has whose KV lies block by block (118 of its
/// blocks), up to what it has where it lies layer by layer.
const SHAPES: [(usize, usize); 12] = [
    (4 * KIB, 128),
    (4 * KIB, 1024),
    (4 * KIB, 4096),
    (4 * KIB, 19_456),
    (16 * KIB, 128),
    (16 * KIB, 1024),
    (16 * KIB, 4096),
    (64 * KIB, 128),
    (64 * KIB, 1024),
    (64 * KIB, 4096),
    (1024 * KIB, 128),
    (1024 * KIB, 256),
];

fn engine(name: &str) -> EngineId {
    EngineId::new(EngineName::new(name).unwrap(), 1)
}

/// Two agents that know each other; the second has a thread of its own.
struct Contender {
    name: &'static str,
    transport: Box<dyn Transport>,
    waker: Waker,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Of one shape: GB/s, and milliseconds of the longest call.
#[derive(Clone, Copy)]
struct Speed {
    rate: f64,
    longest_ms: f64,
}

impl Contender {
    fn new(name: &'static str, make: impl Fn(EngineId) -> Box<dyn Transport>) -> Self {
        let mut sides = ["a", "b"].map(|side| {
            let mut transport = make(engine(side));
            transport.register(Arc::new(ShmRegion::populated(POOL_BYTES).unwrap())).unwrap();
            transport
        });
        let metadata = sides.each_ref().map(|side| side.metadata());
        sides[0].add_peer(&engine("b"), &metadata[1]).unwrap();
        sides[1].add_peer(&engine("a"), &metadata[0]).unwrap();
        let [transport, mut other] = sides;
        let (waker, stop) = (other.waker(), Arc::new(AtomicBool::new(false)));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut events = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                if !other.poll(&mut events) {
                    other.wait(Duration::from_secs(1));
                }
                events.clear();
            }
        });
        let mut contender = Self { name, transport, waker, stop, thread: Some(thread) };
        // Their handshake must not wait until it is this one's turn.
        let lists = contender.lists(&[Descriptor { offset: 0, len: 1 }]);
        contender.round(Direction::Write, lists, &[(0, 0)]);
        // Nor the work that follows it: shm touches the peer's pages, bit by bit.
        while contender.transport.poll(&mut Vec::new()) {}
        contender
    }

    fn lists(&mut self, list: &[Descriptor]) -> (ListId, ListId) {
        let local = self.transport.prepare_local(list).unwrap();
        (local, self.transport.prepare_remote(&engine("b"), list).unwrap())
    }

    /// Moves the blocks, and returns how long the longest call took.
    fn round(&mut self, direction: Direction, lists: (ListId, ListId), pairs: &[(u32, u32)]) -> Duration {
        let mut longest = Duration::ZERO;
        let mut timed = |work: &mut dyn FnMut()| {
            let begin = Instant::now();
            work();
            longest = longest.max(begin.elapsed());
        };
        let posts = pairs.chunks(MAX_PAIRS);
        let (mut left, mut events) = (posts.len(), Vec::new());
        for (id, pairs) in posts.enumerate() {
            let (id, peer, (local, remote)) = (PostId(id as u64), engine("b"), lists);
            let mut post =
                Some(Post { id, direction, peer, local, remote, pairs: pairs.to_vec(), notify: None });
            timed(&mut || self.transport.post(post.take().unwrap()).unwrap());
        }
        while left > 0 {
            let mut more = false;
            timed(&mut || more = self.transport.poll(&mut events));
            for event in events.drain(..) {
                assert!(matches!(event, Event::Done(_)), "{}: {event:?}", self.name);
                left -= 1;
            }
            if !more && left > 0 {
                self.transport.wait(Duration::from_secs(1));
            }
        }
        longest
    }

    /// The best of some rounds, for what else the machine does only makes it slower; the first touches the pages.
    fn speed(&mut self, direction: Direction, lists: (ListId, ListId), shape: &Shape) -> Speed {
        self.round(direction, lists, &shape.pairs);
        let rounds = (0..ROUNDS).map(|_| {
            let begin = Instant::now();
            let longest = self.round(direction, lists, &shape.pairs);
            (begin.elapsed(), longest)
        });
        let (taken, longest) = rounds.min().unwrap();
        Speed {
            rate: shape.bytes() as f64 / taken.as_secs_f64() / 1e9,
            longest_ms: longest.as_secs_f64() * 1e3,
        }
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

struct Shape {
    block_bytes: usize,
    pairs: Vec<(u32, u32)>,
}

impl Shape {
    /// In order, or such that no two neighbours stay neighbours.
    fn new(block_bytes: usize, descriptors: usize, scattered: bool) -> Self {
        let blocks = POOL_BYTES / block_bytes;
        let stride = (0..).map(|i| blocks * 5 / 8 + 1 + i).find(|s| gcd(*s, blocks) == 1).unwrap();
        let remote = |i: usize| if scattered { i * stride % blocks } else { i };
        let pairs = (0..descriptors.min(blocks)).map(|i| (i as u32, remote(i) as u32)).collect();
        Self { block_bytes, pairs }
    }

    fn bytes(&self) -> usize {
        self.block_bytes * self.pairs.len()
    }

    fn every_block(&self) -> Vec<Descriptor> {
        let block =
            |i: usize| Descriptor { offset: (i * self.block_bytes) as u64, len: self.block_bytes as u32 };
        (0..POOL_BYTES / self.block_bytes).map(block).collect()
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn memcpy(from: &ShmRegion, to: &ShmRegion, shape: &Shape) -> f64 {
    let round = || {
        for &(l, r) in &shape.pairs {
            let (l, r) = (l as usize * shape.block_bytes, r as usize * shape.block_bytes);
            // SAFETY: blocks of two different regions that nobody else uses.
            unsafe {
                copy_nonoverlapping(
                    from.base().as_ptr().add(l),
                    to.base().as_ptr().add(r),
                    shape.block_bytes,
                );
            }
        }
    };
    round();
    let rounds = (0..ROUNDS).map(|_| {
        let begin = Instant::now();
        round();
        begin.elapsed()
    });
    shape.bytes() as f64 / rounds.min().unwrap().as_secs_f64() / 1e9
}

fn contenders() -> Vec<Contender> {
    let limits = || TransportLimits { lists: 64, ..TransportLimits::default() };
    let mut contenders = vec![
        Contender::new("shm", |id| Box::new(ShmTransport::new(id, limits()).unwrap())),
        Contender::new("tcp", |id| Box::new(TcpTransport::new(id, limits(), TcpConfig::default()).unwrap())),
    ];
    let reads =
        std::env::var("NIXL_READS").map_or_else(|_| Default::default(), |reads| reads.parse().unwrap());
    match NixlLibrary::load(None) {
        Ok(library) => contenders.push(Contender::new("nixl", |id| {
            let config = NixlConfig { reads, ..NixlConfig::default() };
            Box::new(NixlTransport::new(id, limits(), config, library).unwrap())
        })),
        Err(error) => println!("without nixl: {error}"),
    }
    contenders
}

/// What was measured of one shape in one direction.
struct Row {
    scattered: bool,
    direction: Direction,
    block_bytes: usize,
    descriptors: usize,
    memcpy: f64,
    /// In the order of the contenders.
    speeds: Vec<Speed>,
}

impl Row {
    fn print(&self) {
        let order = if self.scattered { "scattered" } else { "in order" };
        let direction = if self.direction == Direction::Read { "READ" } else { "WRITE" };
        let (kib, descriptors, memcpy) = (self.block_bytes / KIB, self.descriptors, self.memcpy);
        print!("{order:>10} {direction:>5} {kib:>4} KiB {descriptors:>11} {memcpy:>7.2}");
        self.speeds.iter().for_each(|speed| print!(" {:>8.2} {:>8.2}", speed.rate, speed.longest_ms));
        println!();
    }
}

/// Rates by block size, both directions scattered and in order; and the longest calls by the number of descriptors.
fn plot(rows: &[Row], names: &[&str]) -> String {
    let of = |scattered, direction| {
        rows.iter().filter(move |row| row.scattered == scattered && row.direction == direction)
    };
    let line = |i: usize, name: &str, points: Vec<(f64, f64)>| Line {
        name: name.to_owned(),
        stroke: Stroke::ALL[i],
        points,
    };
    let rates = |scattered, direction, title: &str| {
        // The last row of a block size has the most descriptors.
        let most: Vec<_> = of(scattered, direction).collect();
        let most: Vec<_> =
            most.chunk_by(|a, b| a.block_bytes == b.block_bytes).filter_map(<[_]>::last).collect();
        let points = |rate: &dyn Fn(&Row) -> f64| {
            most.iter().map(|row| ((row.block_bytes / KIB) as f64, rate(row))).collect()
        };
        let copied = line(3, "memcpy", points(&|row| row.memcpy));
        let moved = |(i, name): (usize, &&str)| line(i, name, points(&|row| row.speeds[i].rate));
        let lines = names.iter().enumerate().map(moved).chain([copied]).collect();
        Panel::fitting(title, ("GB/s", "KiB"), lines)
    };
    let calls = |direction, title: &str| {
        let small: Vec<_> = of(true, direction).filter(|row| row.block_bytes == 4 * KIB).collect();
        let moved = |(i, name): (usize, &&str)| {
            let points = small.iter().map(|row| (row.descriptors as f64, row.speeds[i].longest_ms));
            line(i, name, points.collect())
        };
        Panel::fitting(title, ("ms", ""), names.iter().enumerate().map(moved).collect())
    };
    svg(&[
        rates(true, Direction::Write, "WRITE, scattered, by block size"),
        rates(true, Direction::Read, "READ, scattered, by block size"),
        rates(false, Direction::Write, "WRITE, in order, by block size"),
        rates(false, Direction::Read, "READ, in order, by block size"),
        calls(Direction::Write, "WRITE, longest call, by descriptors of 4 KiB"),
        calls(Direction::Read, "READ, longest call, by descriptors of 4 KiB"),
    ])
}

fn main() {
    let mut args = std::env::args_os().skip(1);
    let path = match (args.next(), args.next()) {
        (None, None) => None,
        (Some(flag), Some(path)) if flag == "--svg" => Some(PathBuf::from(path)),
        _ => panic!("nothing but --svg FILE is understood"),
    };
    let mut contenders = contenders();
    let regions = [(); 2].map(|()| ShmRegion::populated(POOL_BYTES).unwrap());
    print!("{:>10} {:>5} {:>8} {:>11} {:>7}", "order", "", "block", "descriptors", "memcpy");
    contenders.iter().for_each(|contender| print!(" {:>8} {:>8}", contender.name, "longest"));
    println!("\n{:>45} {}", "GB/s", "    GB/s       ms".repeat(contenders.len()));
    let mut rows = Vec::new();
    for scattered in [true, false] {
        for (block_bytes, descriptors) in SHAPES {
            let shape = Shape::new(block_bytes, descriptors, scattered);
            let memcpy = memcpy(&regions[0], &regions[1], &shape);
            let mut speeds = [Vec::new(), Vec::new()];
            for contender in &mut contenders {
                let lists = contender.lists(&shape.every_block());
                for (direction, speeds) in [Direction::Read, Direction::Write].into_iter().zip(&mut speeds) {
                    speeds.push(contender.speed(direction, lists, &shape));
                }
            }
            for (direction, speeds) in [Direction::Read, Direction::Write].into_iter().zip(speeds) {
                let descriptors = shape.pairs.len();
                let row = Row { scattered, direction, block_bytes, descriptors, memcpy, speeds };
                row.print();
                rows.push(row);
            }
        }
    }
    if let Some(path) = path {
        let names: Vec<_> = contenders.iter().map(|contender| contender.name).collect();
        std::fs::write(path, plot(&rows, &names)).unwrap();
    }
}
