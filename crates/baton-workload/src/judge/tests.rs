use std::collections::BTreeMap;

use super::*;
use crate::measure::measure;
use crate::result::{ClientLoad, Counts, Estimate, Gauge, Load, Scrape, Summary};

const FACTS: Facts = Facts { ignore_eos: true, shareable: Some(0.0), prefix_cache: Some(true), cores: 2 };

/// `count` requests, one every 100 ms, each answered within 50 ms.
fn records(count: u64) -> Vec<RequestRecord> {
    let record = |index| {
        let scheduled_ms = index as f64 * 100.0;
        RequestRecord {
            index,
            scheduled_ms,
            sent_ms: Some(scheduled_ms),
            token_ms: vec![scheduled_ms + 20.0, scheduled_ms + 50.0],
            done_ms: Some(scheduled_ms + 50.0),
            prompt_tokens: Some(100),
            wanted_prompt_tokens: Some(100),
            output_tokens: Some(2),
            wanted_output_tokens: Some(2),
            cached_tokens: Some(0),
            ending: Ending::Complete,
            ..RequestRecord::default()
        }
    };
    (0..count).map(record).collect()
}

fn point(records: &[RequestRecord]) -> Point {
    let measured = measure(records, None, 1);
    Point {
        system: "s".to_owned(),
        strategy: None,
        load: Load::Open { rate: 10.0, arrivals: "constant".to_owned() },
        round: 0,
        started_s: 0.0,
        duration_s: measured.duration_s,
        counts: measured.counts,
        ttft_ms: measured.ttft_ms,
        tpot_ms: measured.tpot_ms,
        itl_ms: measured.itl_ms,
        e2e_ms: measured.e2e_ms,
        throughput: measured.throughput,
        goodput: None,
        client: ClientLoad { lag_ms: measured.lag_ms, ..ClientLoad::default() },
        scrapes: Vec::new(),
    }
}

fn kinds(records: &[RequestRecord], facts: Facts) -> Vec<WarningKind> {
    judge(&point(records), 3, records, facts).into_iter().map(|warning| warning.kind).collect()
}

#[test]
fn a_sound_measurement_is_not_warned_about() {
    assert_eq!(kinds(&records(400), FACTS), []);
}

#[test]
fn each_trap_is_seen() {
    let changed = |change: fn(&mut RequestRecord)| {
        let mut records = records(400);
        records.iter_mut().step_by(2).for_each(change);
        records
    };
    for (kind, change) in [
        (WarningKind::ClientLimit, (|r| r.sent_ms = Some(r.scheduled_ms + 9.0)) as fn(&mut RequestRecord)),
        (WarningKind::Failures, |r| r.ending = Ending::Cut),
        (WarningKind::Unfinished, |r| r.ending = Ending::Unfinished),
        (WarningKind::RepeatedPrompts, |r| r.cached_tokens = Some(90)),
        (WarningKind::EarlyEos, |r| r.ending = Ending::Early),
        (WarningKind::OtherLengths, |r| r.prompt_tokens = Some(150)),
        (WarningKind::CoarseChunks, |r| r.output_tokens = Some(8)),
        (WarningKind::MissingFigures, |r| r.output_tokens = None),
    ] {
        assert!(kinds(&changed(change), FACTS).contains(&kind), "{kind:?}");
    }
    assert_eq!(kinds(&records(299), FACTS), [WarningKind::FewSamples]);
    let natural = Facts { ignore_eos: false, ..FACTS };
    assert_eq!(kinds(&changed(|r| r.wanted_output_tokens = Some(3)), natural), [WarningKind::EarlyEos]);
}

#[test]
fn prompts_that_repeat_matter_where_a_cache_may_be_on() {
    let with = |prefix_cache| Facts { shareable: Some(0.9), prefix_cache, ..FACTS };
    for (cache, warned) in [(Some(true), true), (None, true), (Some(false), false)] {
        let kinds = kinds(&records(400), with(cache));
        assert_eq!(kinds.contains(&WarningKind::RepeatedPrompts), warned, "{cache:?}");
    }
}

#[test]
fn a_queue_that_grows_is_seen_and_one_that_is_long_is_not() {
    let mut growing = records(400);
    for record in &mut growing {
        // Each takes 100 ms longer than the one before: served at half the rate at which they come.
        let late = record.index as f64 * 100.0;
        record.token_ms.iter_mut().for_each(|at| *at += late);
        record.done_ms = record.done_ms.map(|at| at + late);
    }
    assert_eq!(kinds(&growing, FACTS), [WarningKind::Saturated]);
    let mut long = records(400);
    long.iter_mut().for_each(|record| record.done_ms = record.done_ms.map(|at| at + 3_000.0));
    assert_eq!(kinds(&long, FACTS), []);
}

#[test]
fn engines_whose_slots_are_taken_say_so() {
    let records = records(400);
    let mut point = point(&records);
    let gauge = Gauge { mean: 6.5, ..Gauge::default() };
    let gauges = BTreeMap::from([("vllm:num_requests_waiting{model_name=\"m\"}".to_owned(), gauge)]);
    point.scrapes.push(Scrape { gauges, ..Scrape::default() });
    let warnings = judge(&point, 3, &records, FACTS);
    assert_eq!((warnings[0].kind, warnings[0].point), (WarningKind::Saturated, Some(3)));
    assert!(warnings[0].text.contains("6.5 requests"), "{}", warnings[0].text);
}

#[test]
fn the_gravest_comes_first() {
    let records = records(10);
    let mut point = point(&records);
    let bare = Estimate::bare(50.0);
    point.client.loop_lag_ms =
        Some(Summary { samples: 9, min: 0.0, max: 60.0, mean: bare, p50: bare, p90: bare, p99: bare });
    point.counts =
        Counts { endings: BTreeMap::from([(Ending::Complete, 8), (Ending::Cut, 2)]), ..point.counts };
    let kinds: Vec<_> = judge(&point, 0, &records, FACTS).into_iter().map(|warning| warning.kind).collect();
    assert_eq!(kinds, [WarningKind::ClientLimit, WarningKind::Failures, WarningKind::FewSamples]);
}
