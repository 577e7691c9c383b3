//! The simulator's own promises, and the first seeds. `cargo x sim` runs thousands.

use baton_sim::{Fault, SimConfig, Tally, many, run};

fn run_all(config: &SimConfig, seeds: std::ops::Range<u64>) -> Tally {
    let mut total = Tally::default();
    many(config, seeds, 2, |_, result| match result {
        Ok(outcome) => {
            total.merge(&outcome.tally);
            true
        }
        Err(failed) => panic!("{failed}"),
    });
    total
}

#[test]
fn two_hundred_seeds_hold_and_every_fault_happens_in_them() {
    let total = run_all(&SimConfig::default(), 0..200);
    for fault in Fault::ALL {
        assert!(total.faults(fault) > 0, "{fault} never happened: {total}");
    }
    assert!(total.answered > 0 && total.failed > 0 && total.gone > 0, "{total}");
    assert!(total.received > 0 && total.lost > 0 && total.sent > 0 && total.unsent > 0, "{total}");
    assert!(total.recomputed > 0 && total.preemptions > 0 && total.hit_tokens > 0, "{total}");
}

/// I10
#[test]
fn the_same_seed_gives_the_same_log_byte_for_byte() {
    let config = SimConfig::default();
    for seed in 0..30 {
        let (first, second) = (run(&config, seed), run(&config, seed));
        assert!(first.lines > 10, "seed {seed} does something");
        assert_eq!(first, second, "seed {seed}");
        assert_ne!(first.digest, run(&config, seed + 1).digest, "seeds {seed} and its neighbour");
    }
}

#[test]
fn where_nothing_goes_wrong_nobody_hears_an_error() {
    let config = SimConfig { faults: false, ..SimConfig::default() };
    let total = run_all(&config, 1000..1200);
    assert_eq!((total.answered, total.failed, total.gone), (total.requests, 0, 0), "{total}");
    assert_eq!(Fault::ALL.map(|fault| total.faults(fault)), [0; Fault::ALL.len()]);
}

/// Seeds that failed once: `seed  # why`.
#[test]
fn what_failed_once_holds() {
    for line in include_str!("corpus.txt").lines() {
        let seed = line.split('#').next().unwrap_or_default().trim();
        if !seed.is_empty() {
            run(&SimConfig::default(), seed.parse().expect("a seed"));
        }
    }
}

#[test]
fn a_failed_run_says_how_to_see_it_again() {
    let broken = baton_sim::Failed {
        seed: 7,
        why: "I3: a byte".into(),
        scenario: "Scenario".into(),
        log: "1.000000 p0 dies\n".into(),
    };
    let text = broken.to_string();
    for part in ["seed 7 failed: I3: a byte", "Scenario", "p0 dies", "cargo x sim --seed 7 --log"] {
        assert!(text.contains(part), "{text}");
    }
}

#[cfg(feature = "mutants")]
#[test]
fn each_deliberate_bug_is_found() {
    for mutant in baton_types::Mutant::ALL {
        let found = baton_sim::hunt(&SimConfig::default(), mutant, 0..5000);
        assert!(found.is_some(), "{mutant:?} is not found in 5,000 seeds");
    }
}
