//! What servers said of themselves meanwhile: KV memory, hits, expiries, transfers.

use std::collections::BTreeSet;

use baton_workload::result::{Gauge, Histogram, Scrape};

use crate::chart::{Axis, Chart, Kind, Line, Unit, rounded};
use crate::compose::distributions::load_choice;
use crate::figures;
use crate::report::{Choice, Section};
use crate::study::{Measurement, Study};
use crate::table::{Cell, Column, Row, Table};

/// Figures that matter for a hand-over of KV, and the counters that tell them, whichever a server has; summed over engines.
const COUNTED: &[(&str, &str, &[&str])] = &[
    (
        "Prompt tokens looked up",
        "prefix_queried_tokens",
        &["baton_prefix_queried_tokens_total", "vllm:prefix_cache_queries_total"],
    ),
    (
        "of them in a cache",
        "prefix_hit_tokens",
        &["baton_prefix_hit_tokens_total", "vllm:prefix_cache_hits_total"],
    ),
    ("Tokens whose KV came from a peer", "received_tokens", &["baton_received_tokens_total"]),
    ("Transfers received", "transfers_received", &["baton_transfers_received_total"]),
    ("Transfers lost", "transfers_lost", &["baton_transfers_lost_total"]),
    ("Offers that nobody took", "transfers_unsent", &["baton_transfers_unsent_total"]),
    ("Prompts computed again", "recomputed", &["baton_recomputed_total"]),
    ("Preemptions", "preemptions", &["baton_preemptions_total", "vllm:num_preemptions_total"]),
    ("Retries of the router", "router_retries", &["baton_router_retries_total"]),
];

/// The share of KV memory in use; its largest engine's.
const KV_USAGE: &str = "vllm:kv_cache_usage_perc";

/// Gauges that can be chosen for the chart.
const MOST_GAUGES: usize = 24;

/// None if nothing was scraped.
pub fn section(study: &Study) -> Option<Section> {
    let scraped: Vec<&Measurement> = study
        .measurements
        .iter()
        .filter(|measured| {
            scrapes(measured).any(|scrape| !scrape.gauges.is_empty() || !scrape.counters.is_empty())
        })
        .collect();
    if scraped.is_empty() {
        return None;
    }
    let mut section = Section::new(
        "servers",
        "KV and transfers",
        "What the servers' own metrics said while they were measured.",
    );
    section.tables.push(counted(study, &scraped));
    gauge_chart(study, &scraped, &mut section);
    section.tables.push(gauges(study, &scraped));
    section.tables.extend(stalls(study, &scraped));
    section.tables.push(histograms(study, &scraped));
    section.tables.push(counters(study, &scraped));
    Some(section)
}

fn scrapes<'a>(measured: &'a Measurement) -> impl Iterator<Item = &'a Scrape> {
    measured.points.iter().flat_map(|point| &point.scrapes)
}

/// A metric's name without its labels.
fn base(key: &str) -> &str {
    key.split('{').next().unwrap_or(key)
}

fn sum(measured: &Measurement, names: &[&str]) -> Option<f64> {
    let found =
        scrapes(measured).flat_map(|scrape| &scrape.counters).filter(|(key, _)| names.contains(&base(key)));
    found.map(|(_, growth)| *growth).reduce(|a, b| a + b)
}

fn first_cells(study: &Study, measured: &Measurement) -> Vec<Cell> {
    vec![Cell::text(&study.series[measured.series].name), Cell::text(&study.loads[measured.load].label)]
}

fn first_columns() -> Vec<Column> {
    vec![Column::text("System", "system"), Column::text("Load", "load")]
}

fn counted(study: &Study, scraped: &[&Measurement]) -> Table {
    // Counters that did not grow are left out of a result: absent is 0 where another measurement has it.
    let seen: Vec<_> = COUNTED
        .iter()
        .filter(|(_, _, names)| scraped.iter().any(|measured| sum(measured, names).is_some()))
        .collect();
    let mut columns = first_columns();
    columns.push(Column::number("KV memory in use, most", "kv_usage_max"));
    columns.push(Column::number("mean", "kv_usage_mean"));
    columns.extend(seen.iter().map(|(name, key, _)| Column::number(*name, *key)));
    let row = |measured: &&Measurement| {
        let usage = || {
            let all = scrapes(measured).flat_map(|scrape| &scrape.gauges);
            all.filter(|(key, _)| base(key) == KV_USAGE).map(|(_, gauge)| gauge)
        };
        let share = |share: Option<f64>| {
            share.map_or_else(Cell::none, |share| Cell::number(figures::percent(share), share))
        };
        let mut cells = first_cells(study, measured);
        cells.push(share(usage().map(|gauge| gauge.max).reduce(f64::max)));
        cells.push(share(usage().map(|gauge| gauge.mean).reduce(f64::max)));
        cells.extend(seen.iter().map(|(_, _, names)| {
            let growth = sum(measured, names).unwrap_or(0.0);
            Cell::number(figures::number(growth), growth)
        }));
        Row { cells, series: Some(measured.series) }
    };
    Table {
        id: "servers-counted".to_owned(),
        caption: "KV memory (of the fullest engine), hits and transfers (of all engines)".to_owned(),
        columns,
        rows: scraped.iter().map(row).collect(),
        folded: false,
    }
}

fn gauge_chart(study: &Study, scraped: &[&Measurement], section: &mut Section) {
    let options = gauge_names(scraped);
    if options.is_empty() {
        return;
    }
    let loads: Vec<usize> =
        scraped.iter().map(|measured| measured.load).collect::<BTreeSet<_>>().into_iter().collect();
    let mut views: Vec<Vec<Line>> = Vec::new();
    for load in &loads {
        for (target, gauge) in &options {
            let at_load = scraped.iter().filter(|measured| measured.load == *load);
            views.push(at_load.filter_map(|measured| gauge_line(measured, target, gauge)).collect());
        }
    }
    section.choices.push(load_choice(study, &loads));
    section.choices.push(Choice {
        label: "Metric".to_owned(),
        options: options.iter().map(|(target, gauge)| format!("{target}: {gauge}")).collect(),
        // The one that most systems have.
        chosen: (0..options.len())
            .rev()
            .max_by_key(|option| lines_of(&views, options.len(), *option))
            .unwrap_or(0),
    });
    section.charts.push(Chart {
        id: "servers-gauges".to_owned(),
        title: "Over time".to_owned(),
        summary: "Sampled about once a second, in the first round of each load.".to_owned(),
        kind: Kind::Samples,
        x: Axis::new("Since the load began", Unit::Seconds),
        y: Axis::new("Value", Unit::Count),
        views,
    });
}

fn lines_of(views: &[Vec<Line>], options: usize, option: usize) -> usize {
    views.iter().skip(option).step_by(options).map(Vec::len).sum()
}

/// Targets with gauges that were not the same all the time; KV memory first.
fn gauge_names(scraped: &[&Measurement]) -> Vec<(String, String)> {
    let changed = |gauge: &Gauge| gauge.samples.iter().any(|(_, value)| *value != gauge.samples[0].1);
    let mut names = BTreeSet::new();
    for scrape in scraped.iter().flat_map(|measured| scrapes(measured)) {
        let of_scrape = scrape.gauges.iter().filter(|(_, gauge)| changed(gauge));
        names.extend(of_scrape.map(|(key, _)| (!key.contains("kv"), scrape.target.clone(), key.clone())));
    }
    names.into_iter().take(MOST_GAUGES).map(|(_, target, key)| (target, key)).collect()
}

fn gauge_line(measured: &Measurement, target: &str, key: &str) -> Option<Line> {
    let scrape = measured.points.first()?.scrapes.iter().find(|scrape| scrape.target == target)?;
    let samples = &scrape.gauges.get(key)?.samples;
    let (x, y) = samples.iter().map(|(second, value)| (rounded(*second), rounded(*value))).unzip();
    Some(Line { series: measured.series, x, y, ..Line::default() })
}

fn gauges(study: &Study, scraped: &[&Measurement]) -> Table {
    let mut columns = first_columns();
    columns.extend([Column::text("Server", "target"), Column::text("Metric", "metric")]);
    columns.extend([
        Column::number("Mean", "mean"),
        Column::number("Most", "max"),
        Column::number("Last", "last"),
    ]);
    let mut rows = Vec::new();
    for measured in scraped {
        for scrape in scrapes(measured) {
            for (key, gauge) in &scrape.gauges {
                let mut cells = first_cells(study, measured);
                cells.extend([Cell::text(&scrape.target), Cell::text(key)]);
                cells.extend(
                    [gauge.mean, gauge.max, gauge.last]
                        .map(|value| Cell::number(figures::number(value), value)),
                );
                rows.push(Row { cells, series: Some(measured.series) });
            }
        }
    }
    rows.truncate(MOST_ROWS);
    Table {
        id: "servers-gauges-table".to_owned(),
        caption: "All gauges".to_owned(),
        columns,
        rows,
        folded: true,
    }
}

/// A table of more rows is not read, and slows the page down.
const MOST_ROWS: usize = 2000;

/// What an engine's loop takes between two steps, in seconds.
const BETWEEN_STEPS: &str = "baton_between_steps_seconds";

/// What running sequences wait for their engine's loop. None if no server tells.
fn stalls(study: &Study, scraped: &[&Measurement]) -> Option<Table> {
    let mut columns = first_columns();
    columns.push(Column::text("Engine", "target"));
    columns.extend([Column::number("Mean, ms", "mean_ms"), Column::number("p50, ms", "p50_ms")]);
    columns.extend([Column::number("p99, ms", "p99_ms"), Column::number("In all, ms", "sum_ms")]);
    let mut rows = Vec::new();
    for measured in scraped {
        for scrape in scrapes(measured) {
            let Some(between) = scrape.histograms.get(BETWEEN_STEPS) else { continue };
            let sum = between.mean * between.count as f64;
            let ms = [between.mean, between.p50, between.p99, sum].map(|seconds| seconds * 1e3);
            let mut cells = first_cells(study, measured);
            cells.push(Cell::text(&scrape.target));
            cells.extend(ms.map(|ms| Cell::number(figures::number(ms), ms)));
            rows.push(Row { cells, series: Some(measured.series) });
        }
    }
    rows.truncate(MOST_ROWS);
    (!rows.is_empty()).then(|| Table {
        id: "servers-stalls".to_owned(),
        caption: "Between a step's end and the next one's beginning, while sequences run; each round"
            .to_owned(),
        columns,
        rows,
        folded: false,
    })
}

fn histograms(study: &Study, scraped: &[&Measurement]) -> Table {
    let mut columns = first_columns();
    columns.extend([Column::text("Server", "target"), Column::text("Metric", "metric")]);
    columns.extend([Column::number("Samples", "count"), Column::number("Mean", "mean")]);
    columns.extend([
        Column::number("p50", "p50"),
        Column::number("p90", "p90"),
        Column::number("p99", "p99"),
    ]);
    let mut rows = Vec::new();
    for measured in scraped {
        for scrape in scrapes(measured) {
            for (key, histogram) in &scrape.histograms {
                let Histogram { count, mean, p50, p90, p99 } = *histogram;
                let mut cells = first_cells(study, measured);
                cells.extend([Cell::text(&scrape.target), Cell::text(key)]);
                cells.extend(
                    [count as f64, mean, p50, p90, p99]
                        .map(|value| Cell::number(figures::number(value), value)),
                );
                rows.push(Row { cells, series: Some(measured.series) });
            }
        }
    }
    rows.truncate(MOST_ROWS);
    Table {
        id: "servers-histograms-table".to_owned(),
        caption: "All histograms, in their own units; percentiles are as exact as the buckets are narrow"
            .to_owned(),
        columns,
        rows,
        folded: true,
    }
}

fn counters(study: &Study, scraped: &[&Measurement]) -> Table {
    let mut columns = first_columns();
    columns.extend([Column::text("Server", "target"), Column::text("Metric", "metric")]);
    columns.push(Column::number("Grew by", "growth"));
    let mut rows = Vec::new();
    for measured in scraped {
        for scrape in scrapes(measured) {
            for (key, growth) in &scrape.counters {
                let mut cells = first_cells(study, measured);
                cells.extend([Cell::text(&scrape.target), Cell::text(key)]);
                cells.push(Cell::number(figures::number(*growth), *growth));
                rows.push(Row { cells, series: Some(measured.series) });
            }
        }
    }
    rows.truncate(MOST_ROWS);
    Table {
        id: "servers-counters-table".to_owned(),
        caption: "All counters".to_owned(),
        columns,
        rows,
        folded: true,
    }
}
