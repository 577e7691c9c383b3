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

/// How a deliberate bug was caught.
#[cfg(feature = "mutants")]
#[derive(Clone, Debug)]
pub struct Hunted {
    /// The first seed in which something did not hold.
    pub seed: u64,
    pub why: String,
}

/// The first seed in which a core with this bug is caught.
#[cfg(feature = "mutants")]
pub fn hunt(config: &SimConfig, mutant: baton_types::Mutant, seeds: Range<u64>) -> Option<Hunted> {
    let config = SimConfig { mutation: baton_types::Mutation::of(mutant), ..*config };
    let repeats = mutant.attacks().contains("I10");
    seeds.into_iter().find_map(|seed| match try_run(&config, seed) {
        Err(failed) => Some(Hunted { seed, why: failed.why }),
        // I10: what differs from run to run shows in two of them.
        Ok(outcome) if repeats => {
            let again = try_run(&config, seed).ok();
            let same = again.is_some_and(|again| again.digest == outcome.digest);
            (!same).then(|| Hunted { seed, why: "I10: two runs of one seed differ".into() })
        }
        Ok(_) => None,
    })
}
