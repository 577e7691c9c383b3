//! The threads of one runner.
//!
//! A step is some hundred short phases, so that sleeping between them would cost more than they take; and engines share the
//! machine, so that spinning must end soon. Hence: a worker spins for a bounded time for the next phase, then parks; and a phase
//! waits for items, never for workers, so that a worker that is late, parked or off its core delays nobody.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a worker, or the caller at the end of a phase, looks for work before it sleeps.
const SPIN: Duration = Duration::from_micros(60);

/// A fixed set of threads that share out the items of one phase at a time. The caller is one of them.
#[derive(Debug)]
pub struct ThreadPool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

type Job = dyn Fn(usize, usize) + Sync;

struct Shared {
    /// A [`Ticket`]. An item is claimed by a compare-and-swap of the whole, so that a late worker never takes an item of a
    /// phase other than the one it looked at.
    next: AtomicU64,
    /// Items of the current phase that are computed.
    done: AtomicUsize,
    /// The current phase's function; read only by who has claimed one of its items.
    job: UnsafeCell<Option<*const Job>>,
    /// A worker's function panicked; the caller panics in its place.
    panicked: AtomicBool,
    stop: AtomicBool,
    sleepers: Vec<AtomicBool>,
    caller: UnsafeCell<Option<Thread>>,
    caller_sleeps: AtomicBool,
}

/// Phase number (32 bits), items of the phase (16), and the next item that nobody has claimed (16).
#[derive(Clone, Copy)]
struct Ticket(u64);

impl Ticket {
    fn new(phase: u32, items: u16) -> Self {
        Self(u64::from(phase) << 32 | u64::from(items) << 16)
    }

    fn phase(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn items(self) -> usize {
        usize::from((self.0 >> 16) as u16)
    }

    fn item(self) -> usize {
        usize::from(self.0 as u16)
    }
}

// SAFETY: `job` and `caller` are written by the caller between phases (no item is claimed then) and read by workers that hold
// an item, which orders the accesses through `next` and `done`.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is only used as described for `Sync`.
unsafe impl Send for Shared {}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("threads", &(self.sleepers.len() + 1)).finish_non_exhaustive()
    }
}

impl ThreadPool {
    /// A pool of `threads` in all, the caller included; at least one.
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            next: AtomicU64::new(0),
            done: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            sleepers: (1..threads.max(1)).map(|_| AtomicBool::new(false)).collect(),
            caller: UnsafeCell::new(None),
            caller_sleeps: AtomicBool::new(false),
        });
        let workers = (1..threads.max(1))
            .map(|worker| {
                let shared = shared.clone();
                let name = format!("baton-cpu-{worker}");
                let spawned = std::thread::Builder::new().name(name).spawn(move || shared.work(worker));
                spawned.expect("the system has a thread left")
            })
            .collect();
        Self { shared, workers }
    }

    /// Threads in all, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `job(thread, item)` once for each item in `0..items`, and returns when all are computed. `thread` is below
    /// [`ThreadPool::threads`], and no two calls run at once with the same one.
    ///
    /// # Panics
    /// If a call did, or if there are more than 65,535 items.
    pub fn run(&mut self, items: usize, job: &(dyn Fn(usize, usize) + Sync)) {
        if items <= 1 || self.workers.is_empty() {
            (0..items).for_each(|item| job(0, item));
            return;
        }
        let items = u16::try_from(items).expect("the items of a phase fit a ticket");
        let shared = &*self.shared;
        // SAFETY: no item is claimed between phases, so nobody reads these; the lifetime of `job` is erased, but it is only
        // called for items of this phase, and this function returns after the last of them.
        unsafe {
            *shared.job.get() =
                Some(std::mem::transmute::<*const (dyn Fn(usize, usize) + Sync + '_), *const Job>(job));
            *shared.caller.get() = Some(std::thread::current());
        }
        shared.done.store(0, Ordering::Relaxed);
        let phase = Ticket(shared.next.load(Ordering::Relaxed)).phase().wrapping_add(1);
        // SeqCst pairs with the worker's: either it sees the phase, or we see it asleep.
        shared.next.store(Ticket::new(phase, items).0, Ordering::SeqCst);
        for (sleeps, worker) in shared.sleepers.iter().zip(&self.workers) {
            if sleeps.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        shared.take_items(0, phase);
        shared.wait_done(usize::from(items));
        if shared.panicked.load(Ordering::Relaxed) {
            panic!("a thread of the pool panicked");
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches panics of jobs, so that joining fails for no reason worth a second panic.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn work(&self, worker: usize) {
        let mut seen = 0;
        while let Some(phase) = self.next_phase(worker, seen) {
            self.take_items(worker, phase);
            seen = phase;
        }
    }

    /// Waits for a phase other than `seen`; nothing when the pool stops.
    fn next_phase(&self, worker: usize, seen: u32) -> Option<u32> {
        let sleeps = &self.sleepers[worker - 1];
        let mut spin_end = None;
        loop {
            for _ in 0..64 {
                let phase = Ticket(self.next.load(Ordering::Acquire)).phase();
                if phase != seen {
                    return Some(phase);
                }
                std::hint::spin_loop();
            }
            if self.stop.load(Ordering::SeqCst) {
                return None;
            }
            if Instant::now() < *spin_end.get_or_insert_with(|| Instant::now() + SPIN) {
                continue;
            }
            sleeps.store(true, Ordering::SeqCst);
            while Ticket(self.next.load(Ordering::SeqCst)).phase() == seen
                && !self.stop.load(Ordering::SeqCst)
            {
                std::thread::park();
            }
            sleeps.store(false, Ordering::SeqCst);
            spin_end = None;
        }
    }

    /// Claims and computes items of `phase` until there are none.
    fn take_items(&self, thread: usize, phase: u32) {
        loop {
            let ticket = Ticket(self.next.load(Ordering::Acquire));
            let (item, items) = (ticket.item(), ticket.items());
            if ticket.phase() != phase || item >= items {
                return;
            }
            let claim =
                self.next.compare_exchange_weak(ticket.0, ticket.0 + 1, Ordering::AcqRel, Ordering::Relaxed);
            if claim.is_err() {
                continue;
            }
            // SAFETY: an item of this phase is claimed and not done, so `run` has not returned: the job is alive and set.
            let job = unsafe { (*self.job.get()).map(|job| &*job) };
            let call = std::panic::AssertUnwindSafe(|| job.expect("a phase has a job")(thread, item));
            if std::panic::catch_unwind(call).is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            // SAFETY: as for `job`, read before the item is counted as done.
            let caller = (thread != 0).then(|| unsafe { (*self.caller.get()).clone() }).flatten();
            if self.done.fetch_add(1, Ordering::SeqCst) + 1 == items
                && self.caller_sleeps.load(Ordering::SeqCst)
            {
                caller.inspect(Thread::unpark);
            }
        }
    }

    fn wait_done(&self, items: usize) {
        let mut spin_end = None;
        loop {
            for _ in 0..64 {
                if self.done.load(Ordering::Acquire) == items {
                    return;
                }
                std::hint::spin_loop();
            }
            if Instant::now() < *spin_end.get_or_insert_with(|| Instant::now() + SPIN) {
                continue;
            }
            self.caller_sleeps.store(true, Ordering::SeqCst);
            while self.done.load(Ordering::SeqCst) != items {
                std::thread::park();
            }
            self.caller_sleeps.store(false, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_runs_once_in_every_phase() {
        for threads in [1, 2, 5] {
            let mut pool = ThreadPool::new(threads);
            for phase in 0..300usize {
                let items = phase % 17;
                let counts: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
                pool.run(items, &|thread, item| {
                    assert!(thread < threads);
                    counts[item].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
                if phase % 100 == 0 {
                    // Long enough for the workers to park.
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "panicked")]
    fn a_panic_reaches_the_caller() {
        ThreadPool::new(2).run(8, &|_, item| assert!(item != 5, "item five"));
    }
}
