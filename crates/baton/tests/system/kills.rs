//! A short soak: SIGKILL and SIGSTOP of random processes in the middle of requests. Every client gets the right answer or one clean
//! error, the others go on, and nothing stays in use. `cargo x soak` is the long one.

use std::time::{Duration, Instant};

use baton_soak::faults::{Faults, Kind};
use baton_soak::{Cluster, Recipe, round};

const CLIENTS: usize = 8;
const SEED: u64 = 1;

fn under_faults(strategy: &'static str, transport: &'static str) {
    let recipe = |strategy| Recipe {
        binary: env!("CARGO_BIN_EXE_baton").into(),
        strategy,
        transport,
        engine_args: Vec::new(),
        logs: None,
    };
    let right = round::right_answers(recipe("none")).unwrap();
    let mut cluster = Cluster::start(recipe(strategy), None).unwrap();
    let warm = round::warm_up(&cluster, &right, CLIENTS).unwrap();
    let mut faults = Faults::new(SEED, &[(Kind::Kill, 12), (Kind::Stop, 6)]);
    let end = Instant::now() + Duration::from_secs(120);
    let findings = round::play(&mut cluster, &right, &warm, &mut faults, 18, CLIENTS, end).unwrap();
    println!("{strategy}: {findings:?}");
    assert_eq!(faults.left(), 0, "all of them were played");
    assert!(findings.tally.right > 0);
    assert_eq!(findings.tally.wrong, 0, "{:?}", findings.tally.shown);
    assert!(findings.violations.is_empty(), "{:?}", findings.violations);
    round::warm_up(&cluster, &right, CLIENTS).expect("the system is whole again");
}

#[test]
fn under_push() {
    under_faults("push", "shm");
}

#[test]
fn under_pull() {
    under_faults("pull", "shm");
}

#[test]
#[ignore = "needs NIXL: cargo x nixl"]
fn under_push_over_nixl() {
    under_faults("push", "nixl");
}

#[test]
#[ignore = "needs NIXL: cargo x nixl"]
fn under_pull_over_nixl() {
    under_faults("pull", "nixl");
}
