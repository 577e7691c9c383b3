//! Single requests: the slowest, and a sample that is the same for every system.

use baton_workload::result::{Ending, RequestRecord};

use crate::answers::{SAMPLE, SLOWEST};
use crate::chart::rounded;
use crate::compose::distributions::{load_choice, loads_with_requests};
use crate::figures;
use crate::report::{Choice, Section};
use crate::study::{Measurement, Study};
use crate::table::{Cell, Column, Row, Table};
use crate::timeline::{Phase, Shown, Timeline};
use crate::trace::Trace;

/// Marks of tokens on one bar; more would be a solid stripe.
const MOST_MARKS: usize = 64;
/// Measurements whose requests are shown; a sweep of more is shown in part.
const MOST_MEASUREMENTS: usize = 48;

const TRACED: &str = " What the servers did is from their traces; their first span is put at the moment of sending, since their clock is another.";

/// None if no requests were kept.
pub fn section(study: &Study, trace: &Trace) -> Option<Section> {
    let options = loads_with_requests(study);
    let total: u64 = study.measurements.iter().map(|measured| measured.answers.requests).sum();
    let mut timeline = Timeline { id: "requests-timeline".to_owned(), ..Timeline::default() };
    timeline.loads = options.iter().map(|load| study.loads[*load].label.clone()).collect();
    let mut table = empty_table();
    let kept = study.measurements.iter().filter(|measured| measured.answers.requests > 0);
    for measured in kept.clone().take(MOST_MEASUREMENTS) {
        let load = options.iter().position(|load| *load == measured.load).unwrap_or(0);
        for (record, slowest, sampled) in chosen(measured) {
            timeline.requests.push(shown(record, trace, measured.series, load, slowest, sampled));
            table.rows.push(row(study, measured, record, slowest));
        }
    }
    if timeline.requests.is_empty() {
        return None;
    }
    let left_out = kept.count().saturating_sub(MOST_MEASUREMENTS);
    let left_out =
        if left_out > 0 { format!(" {left_out} measurements are left out.") } else { String::new() };
    let lead = format!(
        "{} of {} requests: of each measurement the {SLOWEST} that took longest, and {SAMPLE} drawn at random, which are the same for every \
         system.{left_out} Bars begin when a request should have been sent.",
        figures::count(timeline.requests.len() as u64),
        figures::count(total),
    );
    let traced =
        timeline.requests.iter().flat_map(|shown| &shown.phases).any(|(phase, ..)| phase.is_servers());
    let traced = if traced { TRACED } else { "" };
    let mut section = Section::new("requests", "Single requests", format!("{lead}{traced}"));
    section.choices.push(load_choice(study, &options));
    section.choices.push(choice("Which", &["drawn at random", "slowest"]));
    section.choices.push(choice("Line up", &["at their start", "as they came"]));
    section.choices.push(choice("Until", &["the last token", "the first token"]));
    section.timeline = Some(timeline);
    section.tables.push(table);
    Some(section)
}

fn choice(label: &str, options: &[&str]) -> Choice {
    let options = options.iter().map(|option| (*option).to_owned()).collect();
    Choice { label: label.to_owned(), options, chosen: 0 }
}

/// Each with whether it is among the slowest, and in the sample.
fn chosen<'a>(measured: &'a Measurement) -> Vec<(&'a RequestRecord, bool, bool)> {
    let same = |a: &RequestRecord, b: &RequestRecord| (a.point, a.index) == (b.point, b.index);
    let slowest = measured.answers.slowest();
    let sample = measured.answers.sample();
    let mut chosen: Vec<(&RequestRecord, bool, bool)> = slowest
        .iter()
        .map(|record| (*record, true, sample.iter().any(|other| same(record, other))))
        .collect();
    let others = sample.into_iter().filter(|record| !slowest.iter().any(|other| same(record, other)));
    chosen.extend(others.map(|record| (record, false, true)));
    chosen
}

fn shown(
    record: &RequestRecord,
    trace: &Trace,
    series: usize,
    load: usize,
    slowest: bool,
    sampled: bool,
) -> Shown {
    let since = |instant: f64| rounded((instant - record.scheduled_ms).max(0.0));
    let every = record.token_ms.len().div_ceil(MOST_MARKS).max(1);
    let last = record.token_ms.last().filter(|_| record.token_ms.len() % every != 1 || every == 1);
    let marks = record.token_ms.iter().step_by(every).chain(last.filter(|_| every > 1));
    Shown {
        series,
        load,
        index: record.index,
        scheduled_ms: rounded(record.scheduled_ms.max(0.0)),
        note: note(record),
        phases: phases(record, trace)
            .into_iter()
            .map(|(phase, from, to)| (phase, since(from), since(to)))
            .collect(),
        tokens: marks.map(|token| since(*token)).collect(),
        slowest,
        sampled,
        failed: !record.ending.is_answer(),
    }
}

/// Phases with their beginnings and ends, in the record's time.
fn phases(record: &RequestRecord, trace: &Trace) -> Vec<(Phase, f64, f64)> {
    let Some(sent) = record.sent_ms else { return Vec::new() };
    let over = record.done_ms.or(record.token_ms.last().copied()).unwrap_or(sent).max(sent);
    let first = record.token_ms.first().copied().unwrap_or(over);
    let last = record.token_ms.last().copied().unwrap_or(first);
    let mut phases = vec![(Phase::Client, record.scheduled_ms, sent), (Phase::Server, sent, first)];
    // No two clocks are compared: the servers' first word is taken for the moment of sending.
    let spans = trace.of([Some(record.id.as_str()), record.answer_id.as_deref()].into_iter().flatten());
    phases.extend(spans.iter().map(|span| (span.phase, sent + span.from_ms, sent + span.to_ms)));
    phases.push((Phase::Tokens, first, last));
    phases.retain(|(_, from, to)| to > from);
    phases
}

fn note(record: &RequestRecord) -> String {
    let tokens =
        |count: Option<u32>| count.map_or_else(|| "?".to_owned(), |count| figures::count(count.into()));
    let mut note = format!("{} → {} tokens", tokens(record.prompt_tokens), tokens(record.output_tokens));
    if let Some(cached) = record.cached_tokens.filter(|cached| *cached > 0) {
        note = format!("{note}, {} from cache", figures::count(cached.into()));
    }
    if !record.ending.is_answer() {
        note = format!("{note}, {}", ending(record.ending));
    }
    note
}

fn ending(ending: Ending) -> &'static str {
    match ending {
        Ending::Complete => "complete",
        Ending::Early => "ended early",
        Ending::Refused => "refused",
        Ending::ErrorInStream => "error in the stream",
        Ending::Cut => "stream cut",
        Ending::Malformed => "no stream of answers",
        Ending::Unreachable => "no connection",
        Ending::TimedOut => "timed out",
        Ending::Unfinished => "not over at the end",
    }
}

fn empty_table() -> Table {
    Table {
        id: "requests-table".to_owned(),
        caption: "The requests shown".to_owned(),
        columns: vec![
            Column::text("System", "system"),
            Column::text("Load", "load"),
            Column::number("Request", "index"),
            Column::text("Id", "request_id"),
            Column::text("Why shown", "chosen_as"),
            Column::number("Prompt tokens", "prompt_tokens"),
            Column::number("Cached", "cached_tokens"),
            Column::number("Output tokens", "output_tokens"),
            Column::number("Due, ms", "scheduled_ms"),
            Column::number("Sent late, ms", "lag_ms"),
            Column::number("TTFT, ms", "ttft_ms"),
            Column::number("TPOT, ms", "tpot_ms"),
            Column::number("Longest gap, ms", "longest_itl_ms"),
            Column::number("End to end, ms", "e2e_ms"),
            Column::text("Ending", "ending"),
            Column::text("Error", "error"),
        ],
        rows: Vec::new(),
        folded: true,
    }
}

fn row(study: &Study, measured: &Measurement, record: &RequestRecord, slowest: bool) -> Row {
    let number = |value: Option<f64>| {
        value.map_or_else(Cell::none, |value| Cell::number(figures::number(value), value))
    };
    let tokens = |count: Option<u32>| {
        count.map_or_else(Cell::none, |count| Cell::number(figures::count(count.into()), count.into()))
    };
    let longest_gap = record.itl_ms().filter(|gap| gap.is_finite()).reduce(f64::max);
    let cells = vec![
        Cell::text(&study.series[measured.series].name),
        Cell::text(&study.loads[measured.load].label),
        Cell::number(record.index.to_string(), record.index as f64),
        Cell::text(&record.id),
        Cell::text(if slowest { "slowest" } else { "drawn" }),
        tokens(record.prompt_tokens),
        tokens(record.cached_tokens),
        tokens(record.output_tokens),
        number(Some(record.scheduled_ms)),
        number(record.lag_ms()),
        number(record.ttft_ms()),
        number(record.tpot_ms()),
        number(longest_gap),
        number(record.e2e_ms()),
        Cell::text(ending(record.ending)),
        Cell::text(record.error.as_deref().unwrap_or_default()),
    ];
    Row { cells, series: Some(measured.series) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_follow_each_other() {
        let record = RequestRecord {
            scheduled_ms: 100.0,
            sent_ms: Some(102.0),
            token_ms: (0..1000).map(|n| 150.0 + f64::from(n)).collect(),
            done_ms: Some(1150.0),
            ending: Ending::Complete,
            ..RequestRecord::default()
        };
        let shown = shown(&record, &Trace::default(), 0, 0, true, false);
        assert_eq!(
            shown.phases,
            [(Phase::Client, 0.0, 2.0), (Phase::Server, 2.0, 50.0), (Phase::Tokens, 50.0, 1049.0)]
        );
        assert!(shown.tokens.len() <= MOST_MARKS + 1);
        assert_eq!((shown.tokens.first(), shown.tokens.last()), (Some(&50.0), Some(&1049.0)));
    }

    #[test]
    fn a_request_that_failed_ends_where_it_failed() {
        let record = RequestRecord {
            sent_ms: Some(0.0),
            done_ms: Some(7.0),
            ending: Ending::Refused,
            ..RequestRecord::default()
        };
        let shown = shown(&record, &Trace::default(), 0, 0, true, false);
        assert_eq!((shown.phases, shown.failed), (vec![(Phase::Server, 0.0, 7.0)], true));
        assert!(phases(&RequestRecord::default(), &Trace::default()).is_empty());
    }
}
