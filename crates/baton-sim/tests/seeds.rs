//! The simulator's own promises, and the first seeds. `cargo x sim` runs thousands.

use std::path::PathBuf;

use baton_sim::{Failed, Fault, Scenario, SimConfig, Tally, many, run, try_scenario};

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
    assert!(total.retained > 0 && total.expired > 0 && total.revoked > 0, "{total}");
    assert!(total.readbacks_done > 0 && total.declined > 0 && total.readback_tokens > 0, "{total}");
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

/// Seeds and scenarios that failed once: `seed  # why`, and files as `cargo x sim --shrink` writes them.
/// Where scenarios get another field, the files get it too, with the value that leaves them as they were.
#[test]
fn what_failed_once_holds() {
    for line in include_str!("corpus/seeds.txt").lines() {
        let seed = line.split('#').next().unwrap_or_default().trim();
        if !seed.is_empty() {
            run(&SimConfig::default(), seed.parse().expect("a seed"));
        }
    }
    for (path, scenario) in corpus() {
        if let Err(failed) = try_scenario(&SimConfig::default(), &scenario) {
            panic!("{path:?}: {failed}");
        }
    }
}

fn corpus() -> Vec<(PathBuf, Scenario)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus");
    let files = std::fs::read_dir(folder).expect("the corpus").map(|entry| entry.expect("a file").path());
    let json = files.filter(|path| path.extension().is_some_and(|end| end == "json"));
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("readable");
        let scenario = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        (path, scenario)
    };
    json.map(read).collect()
}

/// A scenario is data: what is written and read back runs as before.
#[test]
fn a_scenario_in_a_file_is_the_scenario() {
    for seed in 0..20 {
        let scenario = Scenario::draw(seed, true);
        let text = serde_json::to_string(&scenario).expect("plain data");
        let read: Scenario = serde_json::from_str(&text).expect("what was written");
        assert_eq!(read, scenario);
        let again = try_scenario(&SimConfig::default(), &read).expect("holds");
        assert_eq!(again.digest, run(&SimConfig::default(), seed).digest);
    }
}

#[test]
fn a_failed_run_says_how_to_see_it_again() {
    let broken = Failed {
        seed: Some(7),
        scenario: Scenario::draw(7, true),
        why: "I3: a byte".into(),
        log: "1.000000 p0 dies\n".into(),
    };
    let text = broken.to_string();
    for part in ["seed 7 failed: I3: a byte", "p0 dies", "cargo x sim --seed 7 --log", "--shrink 7"] {
        assert!(text.contains(part), "{text}");
    }
    let text = Failed { seed: None, ..broken }.to_string();
    assert!(text.contains("\"strategy\"") && text.contains("I3: a byte"), "{text}");
}

/// `cargo x sim --mutants` finds all of them; this, that a failure gets smaller and stays one.
#[cfg(feature = "mutants")]
#[test]
fn a_deliberate_bug_is_found_and_its_scenario_shrinks() {
    let mutation = baton_types::Mutation::of(baton_types::Mutant::ReadyOneNotificationEarly);
    let config = SimConfig { mutation, ..SimConfig::default() };
    let failed = (0..100).find_map(|seed| baton_sim::try_run(&config, seed).err()).expect("a bug");
    let before = failed.scenario.clone();
    let least = baton_sim::shrink(&config, *failed, std::time::Duration::from_secs(20));
    let after = &least.scenario;
    assert!(after.requests.len() < before.requests.len() && after.requests.len() <= 3, "{after:?}");
    assert!(try_scenario(&config, after).is_err(), "it still fails");
    assert!(try_scenario(&SimConfig::default(), after).is_ok(), "and only because of the bug");
}
