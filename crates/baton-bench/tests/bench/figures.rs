//! What is reported is what was written (proof 1), and nothing slows the arrivals.

use std::time::Duration;

use baton_bench::LoadPlan;
use baton_workload::Arrivals;
use baton_workload::quantile::nearest_rank;
use baton_workload::result::{Ending, Slo, WarningKind};
use baton_workload::schedule::Limits;

use crate::stub::{Behaviour, Stub};
use crate::world::{Measured, measure};

const TTFTS_MS: [u64; 5] = [5, 10, 20, 40, 80];

/// The request's own place in the schedule, whatever was lost on its way.
fn scheduled(stub_number: usize) -> Behaviour {
    let ttft = Duration::from_millis(TTFTS_MS[stub_number % 5]);
    Behaviour { ttft, itl: Duration::from_millis(4 + (stub_number % 3) as u64), ..Behaviour::default() }
}

/// What the stub really did, which a busy machine makes later than its schedule: percentiles of TTFT and ITL in milliseconds.
fn written(stub: &Stub, measured: &Measured) -> [Vec<f64>; 2] {
    let ms = |duration: Duration| duration.as_secs_f64() * 1000.0;
    let (mut ttft, mut itl) = (Vec::new(), Vec::new());
    for record in &measured.records {
        let written = stub.written(&record.id);
        ttft.push(ms(written[0]));
        itl.extend(written.windows(2).map(|pair| ms(pair[1] - pair[0])));
    }
    [ttft, itl].map(|mut samples| {
        samples.sort_by(f64::total_cmp);
        [0.5, 0.9, 0.99].map(|share| nearest_rank(&samples, share).unwrap()).to_vec()
    })
}

#[test]
fn percentiles_are_the_schedules_within_a_millisecond() {
    // Other programs may take the processor between the stub's write and the client's read: then once more.
    let mut errors = Vec::new();
    for _ in 0..4 {
        let stub = Stub::start(|asked| scheduled(asked.number));
        let measured = measure(&stub, 200, |_| {});
        let point = &measured.outcome.result.points[0];
        let reported = [point.ttft_ms.unwrap(), point.itl_ms.unwrap()]
            .map(|summary| [summary.p50.value, summary.p90.value, summary.p99.value]);
        let written = written(&stub, &measured);
        let error =
            reported.iter().zip(&written).flat_map(|(a, b)| a.iter().zip(b)).map(|(a, b)| (a - b).abs());
        let worst = error.fold(0.0, f64::max);
        if worst < 1.0 {
            // And the stub kept its schedule by and large: this is no comparison of two zeros.
            assert!(written[0][1] >= 80.0 && written[0][0] >= 20.0 && written[1][0] >= 4.0, "{written:?}");
            return;
        }
        errors.push((worst, reported, written));
    }
    panic!("never within 1 ms: {errors:#?}");
}

/// A server that does nothing for 2 s: whoever was to be sent meanwhile waits for all that is left of them.
#[test]
fn a_stall_shows_in_full_and_slows_no_arrival() {
    use std::sync::OnceLock;
    use std::time::Instant;
    static FIRST: OnceLock<Instant> = OnceLock::new();
    let (from, to) = (Duration::from_millis(500), Duration::from_millis(2500));
    let stub = Stub::start(move |asked| {
        let began = *FIRST.get_or_init(|| asked.at);
        let since = asked.at.duration_since(began);
        let stalled = if (from..to).contains(&since) { to - since } else { Default::default() };
        Behaviour {
            ttft: stalled + Duration::from_millis(5),
            itl: Duration::from_millis(1),
            ..Behaviour::default()
        }
    });
    let measured = measure(&stub, 300, |_| {});
    let ttft = measured.outcome.result.points[0].ttft_ms.unwrap();
    assert!((1_985.0..2_200.0).contains(&ttft.max), "{ttft:?}");
    // 200 of the 300 came meanwhile, and waited for 1,000 ms on average.
    assert!((600.0..760.0).contains(&ttft.mean.value), "{ttft:?}");
    for (record, index) in measured.records.iter().zip(0..) {
        assert!((record.scheduled_ms - f64::from(index) * 10.0).abs() < 0.01);
        assert!(record.sent_ms.unwrap() < record.scheduled_ms + 200.0, "{record:?}");
    }
}

#[test]
fn a_client_that_is_too_slow_says_so() {
    let stub = Stub::start(|_| Behaviour::default());
    // Two streams for what needs nine.
    let measured = measure(&stub, 60, |options| options.max_streams = 2);
    let point = &measured.outcome.result.points[0];
    // The lag is in the latency, not beside it.
    assert!(point.ttft_ms.unwrap().max > 500.0 && point.client.lag_ms.unwrap().max > 500.0);
    assert!(measured.outcome.result.warnings.iter().any(|warning| warning.kind == WarningKind::ClientLimit));
    assert_eq!(point.client.peak_concurrency, 2);
}

#[test]
fn a_sweep_has_a_point_for_each_rate_and_clients_wait_for_their_answers() {
    let stub = Stub::start(|_| Behaviour::default());
    let swept = measure(&stub, 30, |options| {
        options.load = LoadPlan::Rates { rates: vec![50.0, 200.0], arrivals: Arrivals::Poisson };
        options.rounds = 2;
        options.slo = Some(Slo { ttft_ms: Some(10_000.0), tpot_ms: Some(10_000.0), e2e_ms: None });
    });
    let points = &swept.outcome.result.points;
    let levels: Vec<_> = points.iter().map(|point| (point.round, point.load.level().unwrap())).collect();
    assert_eq!(levels, [(0, 50.0), (0, 200.0), (1, 50.0), (1, 200.0)]);
    assert!(points.iter().all(|point| point.goodput.unwrap().share.value == 1.0));
    assert_eq!(swept.records.len(), 120);
    let clients = measure(&stub, 30, |options| options.load = LoadPlan::Clients(vec![3]));
    let point = &clients.outcome.result.points[0];
    assert_eq!((point.client.peak_concurrency, point.counts.scheduled), (3, 30));
    // Ten in a row, each of 20 + 7 x 10 ms.
    assert!(point.duration_s > 0.9, "{}", point.duration_s);
}

#[test]
fn clients_stop_when_their_time_is_over() {
    let stub = Stub::start(|_| Behaviour::default());
    let measured = measure(&stub, 0, |options| {
        options.load = LoadPlan::Clients(vec![2]);
        options.limits = Limits { requests: None, duration: Some(Duration::from_millis(700)) };
    });
    let counts = &measured.outcome.result.points[0].counts;
    // Each takes 90 ms or a little more; what runs at the end is waited for.
    assert!((10..=16).contains(&counts.scheduled), "{counts:?}");
    assert_eq!(counts.of(Ending::Complete), counts.scheduled);
}
