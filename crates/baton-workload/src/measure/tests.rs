use super::*;
use crate::result::Ending;

/// Request `index` of one a second: TTFT `ttft`, then tokens every 10 ms.
fn record(index: u64, ttft: f64, tokens: u32) -> RequestRecord {
    let scheduled_ms = index as f64 * 1000.0;
    let token_ms: Vec<f64> = (0..tokens).map(|n| scheduled_ms + ttft + 10.0 * f64::from(n)).collect();
    RequestRecord {
        index,
        scheduled_ms,
        sent_ms: Some(scheduled_ms + 0.5),
        done_ms: token_ms.last().copied(),
        token_ms,
        prompt_tokens: Some(100),
        output_tokens: Some(tokens),
        ending: Ending::Complete,
        ..RequestRecord::default()
    }
}

#[test]
fn figures_are_what_the_records_say() {
    let records: Vec<_> = (0..100).map(|i| record(i, (i + 1) as f64, 11)).collect();
    let measured = measure(&records, None, 1);
    let ttft = measured.ttft_ms.unwrap();
    assert_eq!((ttft.samples, ttft.min, ttft.max), (100, 1.0, 100.0));
    assert!((ttft.mean.value - 50.5).abs() < 1e-9);
    assert_eq!([ttft.p50.value, ttft.p90.value, ttft.p99.value].map(f64::round), [50.0, 90.0, 99.0]);
    // One sample beyond a p99 says nothing of how it varies.
    assert!(ttft.p90.low.is_some() && ttft.p99.low.is_none());
    let (itl, tpot) = (measured.itl_ms.unwrap(), measured.tpot_ms.unwrap());
    assert_eq!((itl.samples, tpot.samples), (1000, 100));
    assert!((itl.p50.value - 10.0).abs() < 1e-6 && (tpot.mean.value - 10.0).abs() < 1e-6);
    assert!((measured.e2e_ms.unwrap().max - 200.0).abs() < 1e-6);
    assert!((measured.lag_ms.unwrap().mean.value - 0.5).abs() < 1e-9);
    // 99 s, and the 200 ms of the last.
    assert!((measured.duration_s - 99.2).abs() < 1e-9);
    let rate = measured.throughput.requests;
    assert!((rate.value - 100.0 / 99.2).abs() < 1e-6 && rate.low < Some(1.01) && rate.high > Some(1.0));
    assert!((measured.throughput.output_tokens.value - 1100.0 / 99.2).abs() < 1e-6);
    assert_eq!((measured.counts.prompt_tokens, measured.counts.output_tokens), (10_000, 1100));
}

#[test]
fn what_failed_is_counted_and_in_no_latency() {
    let mut records: Vec<_> = (0..10).map(|i| record(i, 20.0, 3)).collect();
    for (index, ending) in
        [(0, Ending::Cut), (1, Ending::Refused), (2, Ending::Early), (3, Ending::Unfinished)]
    {
        records[index].ending = ending;
        records[index].token_ms.iter_mut().for_each(|at| *at += 500.0);
    }
    let slo = Slo { ttft_ms: Some(100.0), ..Slo::default() };
    let measured = measure(&records, Some(slo), 1);
    assert_eq!(measured.counts.endings.values().sum::<u64>(), measured.counts.scheduled);
    assert_eq!((measured.counts.of(Ending::Cut), measured.counts.of(Ending::Complete)), (1, 6));
    // The six, and the one that ended early.
    let ttft = measured.ttft_ms.unwrap();
    assert_eq!((ttft.samples, ttft.max), (7, 520.0));
    assert!((measured.goodput.unwrap().share.value - 0.6).abs() < 1e-9);
}

#[test]
fn nothing_is_no_figure() {
    let measured = measure(&[], Some(Slo::default()), 1);
    assert_eq!((measured.duration_s, measured.ttft_ms, measured.counts.scheduled), (0.0, None, 0));
    let one = measure(&[record(0, 5.0, 1)], None, 1);
    assert_eq!((one.tpot_ms, one.itl_ms), (None, None));
    assert_eq!(one.ttft_ms.unwrap().p50, Estimate::bare(5.0));
}

#[test]
fn intervals_hold_the_truth_about_as_often_as_they_say() {
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::SeedableRng;
    use rand_distr::{Distribution, Exp};
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let exp = Exp::new(0.01).unwrap();
    // Of an exponential with mean 100: the median is 69.3, the 90th percentile 230.3.
    let (mut mean, mut p50, mut p90) = (0, 0, 0);
    let holds = |estimate: Estimate, truth| estimate.low <= Some(truth) && Some(truth) <= estimate.high;
    for seed in 0..200 {
        let samples: Vec<f64> = (0..200).map(|_| exp.sample(&mut random)).collect();
        let summary = summarize(samples.into_iter().map(|sample| vec![sample]), seed).unwrap();
        mean += u32::from(holds(summary.mean, 100.0));
        p50 += u32::from(holds(summary.p50, 69.31));
        p90 += u32::from(holds(summary.p90, 230.26));
    }
    for (figure, held) in [("mean", mean), ("p50", p50), ("p90", p90)] {
        assert!((174..=200).contains(&held), "{figure}: {held} of 200");
    }
}

#[test]
fn the_gaps_of_one_answer_are_one_unit() {
    // Ten answers with 100 equal gaps each: a thousand samples, but ten that know nothing of each other.
    let units = || (0..10).map(|i| vec![f64::from(i); 100]);
    let whole = summarize(units(), 1).unwrap().mean;
    let alone = summarize(units().flatten().map(|gap| vec![gap]), 1).unwrap().mean;
    let width = |estimate: Estimate| estimate.high.unwrap() - estimate.low.unwrap();
    assert!(width(whole) > 2.0 * width(alone), "{whole:?} {alone:?}");
    assert_eq!(summarize(units(), 1), summarize(units(), 1));
}
