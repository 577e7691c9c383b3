//! Whatever a server does to an answer is counted as what it is (proof 1).

use std::time::Duration;

use baton_bench::LoadPlan;
use baton_workload::Arrivals;
use baton_workload::result::{Ending, WarningKind};

use crate::stub::{Behaviour, Stub, StubEnding};
use crate::world::{measure, options};

#[test]
fn every_ending_is_counted_as_what_it_is() {
    let stub = Stub::start(|asked| {
        let of = |ending| Behaviour { tokens: Some(3), ending, ..Behaviour::default() };
        match asked.number % 9 {
            0 | 1 => Behaviour::default(),
            2 => of(StubEnding::Finished),
            3 => of(StubEnding::ErrorEvent),
            4 => of(StubEnding::FinishedInError),
            5 => of(StubEnding::Cut),
            6 => of(StubEnding::Refused),
            7 => of(StubEnding::Rubbish),
            _ => of(StubEnding::Silence),
        }
    });
    let measured = measure(&stub, 90, |options| options.request_timeout = Duration::from_millis(700));
    for (ending, count) in [
        (Ending::Complete, 20),
        (Ending::Early, 10),
        (Ending::ErrorInStream, 20),
        (Ending::Cut, 10),
        (Ending::Refused, 10),
        (Ending::Malformed, 10),
        (Ending::TimedOut, 10),
    ] {
        assert_eq!(measured.ending(ending), count, "{ending:?}");
    }
    // Only answers are in latencies, and what failed keeps what was seen of it.
    assert_eq!(measured.outcome.result.points[0].ttft_ms.unwrap().samples, 30);
    let cut = measured.records.iter().find(|record| record.ending == Ending::Cut).unwrap();
    assert_eq!((cut.token_ms.len(), cut.status), (3, Some(200)));
    let refused = measured.records.iter().find(|record| record.ending == Ending::Refused).unwrap();
    assert_eq!((refused.status, refused.error.as_deref()), (Some(503), Some("The queue is full.")));
    let kinds: Vec<_> = measured.outcome.result.warnings.iter().map(|warning| warning.kind).collect();
    assert!(kinds.contains(&WarningKind::Failures) && kinds.contains(&WarningKind::EarlyEos), "{kinds:?}");
}

#[test]
fn what_is_not_over_in_time_is_unfinished() {
    let slow = |asked: &crate::stub::Asked| match asked.number {
        0..10 => Behaviour::default(),
        _ => Behaviour { ttft: Duration::from_secs(60), ..Behaviour::default() },
    };
    let stub = Stub::start(slow);
    let measured = measure(&stub, 1_000, |options| {
        options.limits.duration = Some(Duration::from_millis(300));
        options.drain = Duration::from_millis(500);
    });
    // The first at 0, then one every 10 ms.
    assert_eq!((measured.ending(Ending::Complete), measured.ending(Ending::Unfinished)), (10, 21));
    let kinds = measured.outcome.result.warnings.iter().map(|warning| warning.kind);
    assert_eq!(kinds.filter(|kind| *kind == WarningKind::Unfinished).count(), 1);
}

#[test]
fn nobody_there_is_told_before_anything_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (_keep, stop) = tokio::sync::watch::channel(false);
    let run = |url: &str, warmup| {
        let mut options = options(dir.path(), 5);
        options.warmup = warmup;
        let error = runtime.block_on(baton_bench::bench(url, options, stop.clone())).unwrap_err();
        format!("{error:#}")
    };
    let error = run("http://127.0.0.1:1", 0);
    assert!(error.contains("nothing answers at http://127.0.0.1:1"), "{error}");
    let refusing = Stub::start(|_| Behaviour { ending: StubEnding::Refused, ..Behaviour::default() });
    let error = run(&refusing.url(), 2);
    assert!(error.contains("The queue is full."), "{error}");
}

/// The user stops it: what runs is unfinished, and everything is written.
#[test]
fn a_run_that_is_stopped_has_a_result() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let stub = Stub::start(|_| Behaviour::default());
    let (say, stop) = tokio::sync::watch::channel(false);
    let outcome = runtime.block_on(async {
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(500)).await;
            say.send_replace(true);
            tokio::time::sleep(Duration::from_secs(60)).await;
        });
        baton_bench::bench(&stub.url(), options(dir.path(), 1_000), stop).await.unwrap()
    });
    let counts = &outcome.result.points[0].counts;
    assert_eq!(counts.scheduled, 1_000);
    assert!(counts.of(Ending::Complete) > 10 && counts.of(Ending::Unfinished) > 900, "{counts:?}");
    assert!(outcome.dir.join("result.json").exists());
}

#[test]
fn a_server_that_is_lost_between_two_rates_leaves_what_was_measured() {
    let stub = Stub::start(|asked| match asked.number {
        // One of warm-up and five of the first rate.
        0..6 => Behaviour::default(),
        _ => Behaviour { ending: StubEnding::Refused, ..Behaviour::default() },
    });
    let measured = measure(&stub, 5, |options| {
        options.warmup = 1;
        options.load = LoadPlan::Rates { rates: vec![50.0, 100.0], arrivals: Arrivals::Constant };
    });
    let result = &measured.outcome.result;
    assert_eq!((result.points.len(), measured.ending(Ending::Complete)), (1, 5));
    let told = result.warnings.iter().find(|warning| warning.kind == WarningKind::MissingFigures).unwrap();
    assert!(told.text.contains("no warm-up request was answered"), "{}", told.text);
}
