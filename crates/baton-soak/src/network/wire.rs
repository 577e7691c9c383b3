//! The wire between the hosts: takes each packet, decides its fate, and delivers it in its time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const MAX_PACKET_BYTES: usize = 1 << 16;
/// Packets on their way; more are lost, as in any switch.
const MAX_QUEUED: usize = 4096;
/// Of a thousand packets.
const LOST: u32 = 5;
const LATE: u32 = 20;
/// How long each takes, and the late ones take longer: those are overtaken.
const DELAY_US: std::ops::Range<u64> = 100..1_500;
const LATER_US: std::ops::Range<u64> = 3_000..12_000;
/// How often the thread looks whether it is to end.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// The running wire.
#[derive(Debug)]
pub struct Wire {
    stop: Arc<AtomicBool>,
    /// A bit for each host that is cut off.
    cut: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Wire {
    /// Connects hosts, each known by the last byte of its address (below 64).
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start(hosts: Vec<(u8, OwnedFd)>, seed: u64) -> io::Result<Self> {
        let (stop, cut) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut carrier = Carrier {
            hosts,
            random: ChaCha8Rng::seed_from_u64(seed),
            queue: BinaryHeap::new(),
            sent: 0,
            cut: cut.clone(),
        };
        let seen = stop.clone();
        let thread = thread::Builder::new().name("wire".to_owned()).spawn(move || carrier.run(&seen))?;
        Ok(Self { stop, cut, thread: Some(thread) })
    }

    pub fn cut(&self, host: u8, cut: bool) {
        let bit = 1 << host;
        if cut {
            self.cut.fetch_or(bit, Ordering::Relaxed);
        } else {
            self.cut.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic has been printed.
            let _ = thread.join();
        }
    }
}

/// A packet on its way: when it arrives, the order of those that arrive at once, and for whom.
type Packet = (Instant, u64, u8, Vec<u8>);

struct Carrier {
    hosts: Vec<(u8, OwnedFd)>,
    random: ChaCha8Rng,
    queue: BinaryHeap<Reverse<Packet>>,
    sent: u64,
    cut: Arc<AtomicU64>,
}

impl Carrier {
    fn run(&mut self, stop: &AtomicBool) {
        let mut buffer = vec![0; MAX_PACKET_BYTES];
        while !stop.load(Ordering::Relaxed) {
            self.deliver(Instant::now());
            if self.wait().is_err() {
                return;
            }
            for i in 0..self.hosts.len() {
                let from = self.hosts[i].0;
                // A few of each, so that nobody is starved. An error means that there is nothing now.
                for _ in 0..32 {
                    let Ok(count) = rustix::io::read(&self.hosts[i].1, &mut buffer[..]) else { break };
                    self.take(from, &buffer[..count]);
                }
            }
        }
    }

    /// Until a packet is due or comes.
    fn wait(&self) -> io::Result<()> {
        let due = self.queue.peek().map(|Reverse((at, ..))| at.saturating_duration_since(Instant::now()));
        let limit = Duration::from_nanos(LOOK.tv_nsec.unsigned_abs());
        let nanos = due.map_or(limit, |due| due.min(limit)).as_nanos();
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::try_from(nanos).unwrap_or(LOOK.tv_nsec) };
        let mut fds: Vec<PollFd<'_>> =
            self.hosts.iter().map(|(_, fd)| PollFd::new(fd, PollFlags::IN)).collect();
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn take(&mut self, from: u8, packet: &[u8]) {
        // IPv4, whose header has the addresses at its end. Everything else is the kernel's small talk.
        let Some(&to) = packet.get(19).filter(|_| packet[0] >> 4 == 4) else { return };
        if self.is_cut(from) || self.is_cut(to) || self.queue.len() >= MAX_QUEUED {
            return;
        }
        let (fate, mut delay_us) = (self.random.random_range(0..1000), self.random.random_range(DELAY_US));
        if fate < LOST {
            return;
        }
        if fate < LOST + LATE {
            delay_us += self.random.random_range(LATER_US);
        }
        self.sent += 1;
        let at = Instant::now() + Duration::from_micros(delay_us);
        self.queue.push(Reverse((at, self.sent, to, packet.to_vec())));
    }

    fn deliver(&mut self, now: Instant) {
        while self.queue.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
            let Some(Reverse((_, _, to, packet))) = self.queue.pop() else { break };
            let host = self.hosts.iter().find(|(host, _)| *host == to);
            if let Some((_, fd)) = host.filter(|_| !self.is_cut(to)) {
                // A host that does not take it has lost it.
                let _ = rustix::io::write(fd, &packet);
            }
        }
    }

    fn is_cut(&self, host: u8) -> bool {
        self.cut.load(Ordering::Relaxed) >> (host & 63) & 1 == 1
    }
}
