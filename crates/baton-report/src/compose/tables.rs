//! The figures behind the charts, as tables.

use baton_workload::result::{Ending, Point};

use crate::figures;
use crate::report::Section;
use crate::study::{Measurement, Metric, Statistic, Study};
use crate::table::{Cell, Column, Row, Table};

/// Requests, throughput, and each latency.
pub fn section(study: &Study) -> Option<Section> {
    if study.measurements.is_empty() {
        return None;
    }
    let lead = "Below each figure its 95 % interval; over several rounds, the lowest and the highest round.";
    let mut section = Section::new("figures", "Figures", lead);
    section.tables.push(work(study));
    section.tables.extend(Metric::ALL.into_iter().filter_map(|metric| latencies(study, metric)));
    section.tables.push(everything(study));
    Some(section)
}

fn named(study: &Study, measured: &Measurement, cells: Vec<Cell>) -> Row {
    let mut all =
        vec![Cell::text(&study.series[measured.series].name), Cell::text(&study.loads[measured.load].label)];
    all.extend(cells);
    Row { cells: all, series: Some(measured.series) }
}

fn first_columns() -> Vec<Column> {
    vec![Column::text("System", "system"), Column::text("Load", "load")]
}

fn work(study: &Study) -> Table {
    let mut columns = first_columns();
    columns.extend([
        Column::number("Requests", "requests"),
        Column::number("Answered", "answered"),
        Column::number("Failed", "failed"),
        Column::number("Unfinished", "unfinished"),
        Column::estimate("Answers/s", "answers_per_s"),
        Column::estimate("Prompt tokens/s", "prompt_tokens_per_s"),
        Column::estimate("Output tokens/s", "output_tokens_per_s"),
        Column::number("From cache", "cached_share"),
        Column::number("Within service level", "goodput_share"),
    ]);
    let rows =
        study.measurements.iter().map(|measured| named(study, measured, work_cells(measured))).collect();
    Table {
        id: "work".to_owned(),
        caption: "Requests and throughput".to_owned(),
        columns,
        rows,
        folded: false,
    }
}

fn work_cells(measured: &Measurement) -> Vec<Cell> {
    let count = |value: u64| Cell::number(figures::count(value), value as f64);
    let cached = measured.sum_of(|point| point.counts.cached_tokens.unwrap_or(0));
    let told = measured.points.iter().any(|point| point.counts.cached_tokens.is_some());
    let prompt = measured.sum_of(|point| point.counts.prompt_tokens);
    let cache_share = (told && prompt > 0).then(|| cached as f64 / prompt as f64);
    let goodput = measured.mean_of(|point| point.goodput.map(|goodput| goodput.share));
    vec![
        count(measured.sum_of(|point| point.counts.scheduled)),
        count(measured.sum_of(answered)),
        count(measured.sum_of(failed)),
        count(measured.sum_of(|point| point.counts.of(Ending::Unfinished))),
        Cell::estimate(measured.mean_of(|point| Some(point.throughput.requests))),
        Cell::estimate(measured.mean_of(|point| Some(point.throughput.prompt_tokens))),
        Cell::estimate(measured.mean_of(|point| Some(point.throughput.output_tokens))),
        share(cache_share),
        share(goodput.map(|goodput| goodput.value)),
    ]
}

fn share(share: Option<f64>) -> Cell {
    share.map_or_else(Cell::none, |share| Cell::number(figures::percent(share), share))
}

fn answered(point: &Point) -> u64 {
    point.counts.endings.iter().filter(|(ending, _)| ending.is_answer()).map(|(_, count)| count).sum()
}

fn failed(point: &Point) -> u64 {
    let is_failure = |ending: &Ending| !ending.is_answer() && *ending != Ending::Unfinished;
    point.counts.endings.iter().filter(|(ending, _)| is_failure(ending)).map(|(_, count)| count).sum()
}

fn latencies(study: &Study, metric: Metric) -> Option<Table> {
    let measured: Vec<&Measurement> =
        study.measurements.iter().filter(|measured| measured.samples(metric) > 0).collect();
    if measured.is_empty() {
        return None;
    }
    let mut columns = first_columns();
    columns.push(Column::number("Samples", "samples"));
    columns.extend(Statistic::ALL.map(|statistic| {
        let name = statistic.name();
        Column::estimate(format!("{name}, ms"), format!("{}_{name}_ms", metric.key()))
    }));
    let row = |measured: &&Measurement| {
        let samples = measured.samples(metric);
        let mut cells = vec![Cell::number(figures::count(samples), samples as f64)];
        cells.extend(Statistic::ALL.map(|statistic| Cell::estimate(measured.figure(metric, statistic))));
        named(study, measured, cells)
    };
    Some(Table {
        id: metric.key().to_owned(),
        caption: metric.long_name().to_owned(),
        columns,
        rows: measured.iter().map(row).collect(),
        folded: metric == Metric::Itl || metric == Metric::E2e,
    })
}

/// One row for each measurement, with all digits and intervals: for spreadsheets.
fn everything(study: &Study) -> Table {
    let mut columns = first_columns();
    columns.push(Column::number("Level", "level"));
    columns.push(Column::number("Rounds", "rounds"));
    for name in ["requests", "answered", "failed", "unfinished"] {
        columns.push(Column::number(capital(name), name));
    }
    columns.extend(THROUGHPUTS.map(|(name, key)| Column::estimate(name, key)));
    columns.extend(all_latencies().map(|(metric, statistic)| {
        let (metric_name, statistic_name) = (metric.name(), statistic.name());
        let key = format!("{}_{statistic_name}_ms", metric.key());
        Column::estimate(format!("{metric_name} {statistic_name}, ms"), key)
    }));
    let rows = study.measurements.iter().map(|measured| everything_row(study, measured)).collect();
    Table {
        id: "all".to_owned(),
        caption: "All figures, one row a measurement".to_owned(),
        columns,
        rows,
        folded: true,
    }
}

const THROUGHPUTS: [(&str, &str); 4] = [
    ("Answers/s", "answers_per_s"),
    ("Prompt tokens/s", "prompt_tokens_per_s"),
    ("Output tokens/s", "output_tokens_per_s"),
    ("Within service level", "goodput_share"),
];

fn all_latencies() -> impl Iterator<Item = (Metric, Statistic)> {
    Metric::ALL.into_iter().flat_map(|metric| Statistic::ALL.map(|statistic| (metric, statistic)))
}

fn everything_row(study: &Study, measured: &Measurement) -> Row {
    let count = |value: u64| Cell::number(figures::count(value), value as f64);
    let level = study.loads[measured.load].level;
    let mut cells = vec![
        Cell::number(figures::short(level), level),
        count(measured.points.len() as u64),
        count(measured.sum_of(|point| point.counts.scheduled)),
        count(measured.sum_of(answered)),
        count(measured.sum_of(failed)),
        count(measured.sum_of(|point| point.counts.of(Ending::Unfinished))),
    ];
    let mut estimates = vec![
        measured.mean_of(|point| Some(point.throughput.requests)),
        measured.mean_of(|point| Some(point.throughput.prompt_tokens)),
        measured.mean_of(|point| Some(point.throughput.output_tokens)),
        measured.mean_of(|point| point.goodput.map(|goodput| goodput.share)),
    ];
    estimates.extend(all_latencies().map(|(metric, statistic)| measured.figure(metric, statistic)));
    cells.extend(estimates.into_iter().map(Cell::estimate));
    named(study, measured, cells)
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
