//! `baton bench`: against a system that runs, and systems that it starts itself.

use std::path::Path;
use std::process::{Output, Stdio};

use baton_workload::result::{CacheState, Ending, RunResult, read_requests};
use rustix::process::Signal;

use crate::program::{System, baton, send, stderr, stdout, wait};
use crate::tls_front::TlsFront;

fn result(output: &Output, dir: &Path) -> RunResult {
    assert!(output.status.success(), "{}", stderr(output));
    assert_eq!(stdout(output).trim(), dir.join("result.json").display().to_string());
    RunResult::read(&std::fs::read_to_string(dir.join("result.json")).unwrap()).unwrap()
}

#[test]
fn a_running_system_is_measured_with_its_conditions() {
    let system = System::start(&["--decode-args=--no-prefix-cache"]);
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let engines = format!("{},{}", system.place("prefill-0").url, system.place("decode-0").url);
    let argv = ["bench", "--url", &system.url(), "--engine", &engines, "--rate=50", "--requests=40"];
    let more = ["--input=40-80", "--output=8", "--out", out.to_str().unwrap(), "--slo=ttft=10s"];
    let output = baton(&[&argv[..], &more].concat()).output().unwrap();
    let result = result(&output, &out);
    let point = &result.points[0];
    assert_eq!(point.counts.of(Ending::Complete), 40, "{}", stderr(&output));
    assert_eq!(point.counts.output_tokens, 320);
    // What was drawn is what the server counted: prompts go as token ids.
    let lines = std::fs::read_to_string(out.join("requests.jsonl")).unwrap();
    let records: Vec<_> = read_requests(lines.as_bytes()).map(Result::unwrap).collect();
    assert!(records.iter().all(|record| record.prompt_tokens == record.wanted_prompt_tokens));
    let engines = &result.conditions.systems[0].engines;
    let states: Vec<_> = engines.iter().map(|e| (e.role.as_deref().unwrap(), e.prefix_cache)).collect();
    assert_eq!(states, [("prefill", CacheState::On), ("decode", CacheState::Off)]);
    let decode = point.scrapes.iter().find(|scrape| scrape.target == "decode-0").unwrap();
    assert_eq!(decode.counters["baton_transfers_received_total"], 40.0);
    assert!(stderr(&output).contains("transfers 40 received"), "{}", stderr(&output));
    system.signal(Signal::INT);
    system.wait();
}

#[test]
fn an_endpoint_behind_tls_is_measured_if_it_is_trusted() {
    let system = System::start(&["--strategy=none"]);
    let front = TlsFront::start(&system.url());
    let dir = tempfile::tempdir().unwrap();
    let bench = |out: &Path| {
        let mut command = baton(&["bench", "--url", &front.url, "--rate=50", "--requests=10", "--output=4"]);
        command.arg("--out").arg(out);
        command
    };
    let refused = bench(&dir.path().join("refused")).output().unwrap();
    assert!(!refused.status.success() && stderr(&refused).contains("certificate"), "{}", stderr(&refused));
    let out = dir.path().join("trusted");
    let trusted = bench(&out).env("SSL_CERT_FILE", &front.certificate).output().unwrap();
    assert_eq!(result(&trusted, &out).points[0].counts.of(Ending::Complete), 10, "{}", stderr(&trusted));
    system.signal(Signal::INT);
    system.wait();
}

#[test]
fn strategies_are_sent_the_same_requests_and_compared_pair_by_pair() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let argv = ["bench", "compare", "--strategies=none,push", "--rate=50", "--requests=20", "--rounds=2"];
    let more = ["--input=64", "--output=8", "--seed=3", "--out", out.to_str().unwrap()];
    let up = ["--", "--model=emulated", "--kv-memory=16MiB", "--emulated-profile=instant", "--prefill=2"];
    let output = baton(&[&argv[..], &more, &up].concat()).output().unwrap();
    let result = result(&output, &out);
    let order: Vec<_> = result.points.iter().map(|point| (point.system.as_str(), point.round)).collect();
    assert_eq!(order, [("none", 0), ("push", 0), ("push", 1), ("none", 1)]);
    let [comparison] = &result.comparisons[..] else { panic!("one comparison") };
    assert_eq!((comparison.baseline.as_str(), comparison.candidate.as_str()), ("none", "push"));
    assert_eq!((comparison.pairs, comparison.unpaired), (40, 0));
    assert!(comparison.ratios.iter().all(|ratio| ratio.mean.value > 0.0));
    let engines: Vec<_> = result.conditions.systems.iter().map(|system| system.engines.len()).collect();
    assert_eq!(engines, [1, 3]);
    // The same words at the same moments.
    let lines = std::fs::read_to_string(out.join("requests.jsonl")).unwrap();
    let records: Vec<_> = read_requests(lines.as_bytes()).map(Result::unwrap).collect();
    let moments = |point: u32| {
        let mut of: Vec<_> = records.iter().filter(|record| record.point == point).collect();
        of.sort_by_key(|record| record.index);
        of.iter().map(|record| record.scheduled_ms).collect::<Vec<_>>()
    };
    assert_eq!((moments(0), moments(2)), (moments(1), moments(3)));
    assert_ne!(moments(0), moments(2));
}

#[test]
fn a_system_that_does_not_start_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let argv = ["bench", "compare", "--strategies=none,push", "--rate=5", "--out", out.to_str().unwrap()];
    let output = baton(&[&argv[..], &["--", "--model=/nowhere"]].concat()).output().unwrap();
    assert!(!output.status.success());
    assert!(stderr(&output).contains("none: baton up ended"), "{}", stderr(&output));
    assert!(stderr(&output).contains("/nowhere"), "{}", stderr(&output));
}

#[test]
fn ctrl_c_keeps_what_was_measured() {
    let system = System::start(&[]);
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let argv =
        ["bench", "--url", &system.url(), "--rate=20", "--duration=10m", "--out", out.to_str().unwrap()];
    let mut bench = baton(&argv).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(3));
    send(bench.id(), Signal::INT);
    assert!(wait(&mut bench).success());
    let text = std::fs::read_to_string(out.join("result.json")).unwrap();
    let counts = &RunResult::read(&text).unwrap().points[0].counts;
    assert!(counts.of(Ending::Complete) > 5 && counts.of(Ending::Unfinished) > 10_000, "{counts:?}");
    system.signal(Signal::INT);
    system.wait();
}
