//! What a run writes.

use baton_workload::result::{RunResult, WarningKind};

use crate::stub::{Behaviour, Stub};
use crate::world::{measure, options};

#[test]
fn a_result_says_under_which_conditions() {
    let stub = Stub::start(|_| Behaviour::default());
    let measured = measure(&stub, 20, |options| {
        options.warmup = 3;
        options.label = Some("mine".to_owned());
        options.api_key = Some("secret-key".to_owned());
    });
    let text = std::fs::read_to_string(measured.outcome.dir.join("result.json")).unwrap();
    let result = RunResult::read(&text).unwrap();
    assert_eq!(result, measured.outcome.result);
    assert!(!text.contains("secret-key"));
    let conditions = &result.conditions;
    assert_eq!((conditions.seed, conditions.label.as_deref()), (7, Some("mine")));
    assert!(conditions.started_at.ends_with('Z') && conditions.client.host.cores > 0);
    let system = &conditions.systems[0];
    assert_eq!((system.model.as_str(), system.max_model_len), ("stub", Some(100_000)));
    assert_eq!((system.api.as_str(), system.same_host), ("/v1/completions", true));
    assert_eq!(result.workload.mean_prompt_tokens, Some(32.0));
    assert!(result.warnings.iter().any(|warning| warning.kind == WarningKind::SharedHost));
    // Warm-up is sent and in no figure.
    assert_eq!((stub.asked().len(), result.points[0].counts.scheduled), (23, 20));
    let scrape = &result.points[0].scrapes[0];
    assert_eq!(scrape.counters["stub_requests_total"], 20.0);
    assert_eq!(scrape.gauges["stub_load"].mean, 0.5);
}

#[test]
fn no_prompt_comes_twice_and_a_seed_gives_the_same_ones() {
    let prompts = |seed| {
        let stub = Stub::start(|_| Behaviour::default());
        measure(&stub, 10, |options| {
            options.seed = seed;
            options.rounds = 2;
            options.warmup = 2;
        });
        let mut prompts: Vec<String> =
            stub.asked().iter().map(|asked| asked.body["prompt"].to_string()).collect();
        prompts.sort();
        prompts
    };
    let (one, same, other) = (prompts(1), prompts(1), prompts(2));
    let mut once = one.clone();
    once.dedup();
    // Two rounds, each with its warm-up.
    assert_eq!((one.len(), once.len()), (24, 24));
    assert_eq!(one, same);
    assert!(one.iter().all(|prompt| !other.contains(prompt)));
}

#[test]
fn a_result_is_not_overwritten() {
    let stub = Stub::start(|_| Behaviour::default());
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (_keep, stop) = tokio::sync::watch::channel(false);
    let run = || runtime.block_on(baton_bench::bench(&stub.url(), options(dir.path(), 3), stop.clone()));
    run().unwrap();
    let error = run().unwrap_err().to_string();
    assert!(error.contains("has a result already"), "{error}");
}
