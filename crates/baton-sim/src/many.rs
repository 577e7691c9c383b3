//! Many seeds, on several threads. A seed's run knows nothing of the others, so only the order of the reports may differ.

use std::ops::{ControlFlow, Range};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::run::{Failed, Outcome, SimConfig, try_run};

/// Runs all seeds and hands each result to `report`, one at a time, until that says that it has seen enough.
///
/// # Panics
/// If `report` does.
pub fn many(
    config: &SimConfig,
    seeds: Range<u64>,
    threads: usize,
    report: impl FnMut(u64, Result<Outcome, Box<Failed>>) -> bool + Send,
) {
    let next = AtomicU64::new(seeds.start);
    let report = Mutex::new((report, ControlFlow::Continue(())));
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let result = try_run(config, seed);
                    let mut report = report.lock().expect("no report panics");
                    if report.1.is_break() {
                        return;
                    }
                    if !(report.0)(seed, result) {
                        report.1 = ControlFlow::Break(());
                        return;
                    }
                }
            });
        }
    });
}

/// The first seed in which a core with this bug is caught.
#[cfg(feature = "mutants")]
pub fn hunt(config: &SimConfig, mutant: baton_types::Mutant, seeds: Range<u64>) -> Option<Box<Failed>> {
    let config = SimConfig { mutation: baton_types::Mutation::of(mutant), ..*config };
    seeds.into_iter().find_map(|seed| try_run(&config, seed).err())
}
