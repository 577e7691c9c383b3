//! What the tests have in common.

use std::path::Path;
use std::time::Duration;

use baton_bench::{Api, LoadPlan, Options, Outcome, Source};
use baton_workload::result::{Ending, RequestRecord, read_requests};
use baton_workload::schedule::Limits;
use baton_workload::{Arrivals, Lengths, Synthetic};
use tempfile::TempDir;
use tokio::sync::watch;

use crate::stub::Stub;

pub fn synthetic() -> Synthetic {
    Synthetic {
        input: Lengths::Fixed(32),
        output: Lengths::Fixed(8),
        shared_prefix_tokens: 0,
        distinct: None,
        turns: 1,
        think: Duration::ZERO,
        in_words: false,
    }
}

/// A hundred requests a second, evenly.
pub fn options(out: &Path, requests: u64) -> Options {
    Options {
        engines: Vec::new(),
        model: None,
        api: Api::Completions,
        source: Source::Synthetic(synthetic()),
        load: LoadPlan::Rates { rates: vec![100.0], arrivals: Arrivals::Constant },
        time_scale: 1.0,
        limits: Limits { requests: Some(requests), duration: None },
        rounds: 1,
        ignore_eos: true,
        temperature: 0.0,
        warmup: 0,
        seed: 7,
        slo: None,
        request_timeout: Duration::from_secs(30),
        drain: Duration::from_secs(5),
        max_streams: 1000,
        token_ids: None,
        api_key: None,
        out: out.join("result"),
        label: None,
        command: vec!["baton".to_owned(), "bench".to_owned()],
    }
}

/// A run and its requests, by index.
pub struct Measured {
    pub outcome: Outcome,
    pub records: Vec<RequestRecord>,
    _dir: TempDir,
}

impl Measured {
    pub fn ending(&self, ending: Ending) -> u64 {
        self.outcome.result.points[0].counts.of(ending)
    }
}

/// Measures, on a runtime of its own; `change` makes of the options what the test wants.
pub fn measure(stub: &Stub, requests: u64, change: impl FnOnce(&mut Options)) -> Measured {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path(), requests);
    change(&mut options);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (_keep, stop) = watch::channel(false);
    let outcome = runtime.block_on(baton_bench::bench(&stub.url(), options, stop)).unwrap();
    let file = std::fs::File::open(outcome.dir.join("requests.jsonl")).unwrap();
    let mut records: Vec<_> = read_requests(std::io::BufReader::new(file)).map(Result::unwrap).collect();
    records.sort_by_key(|record| (record.point, record.index));
    Measured { outcome, records, _dir: dir }
}
