//! Latencies by length: TTFT by the prompt's, TPOT by the answer's.

use crate::answers::Answer;
use crate::chart::{Axis, Kind, Line, Unit, rounded};
use crate::compose::distributions::{load_choice, loads_with_requests};
use crate::compose::levels;
use crate::distribution::Distribution;
use crate::figures;
use crate::report::Section;
use crate::study::{Measurement, Metric, Statistic, Study};
use crate::table::{Cell, Column, Row, Table};

/// Fewer samples than these say nothing about a percentile: one beyond it, at the least.
const fn enough(statistic: Statistic) -> usize {
    match statistic {
        Statistic::Mean | Statistic::P50 => 5,
        Statistic::P90 => 10,
        Statistic::P99 => 100,
    }
}

/// None if lengths hardly differ, or no requests were kept.
pub fn section(study: &Study) -> Option<Section> {
    let lead = "Requests of similar length together. A percentile of a group is left out if the group has too few answers for it.";
    let mut section = Section::new("lengths", "By length", lead);
    let options = loads_with_requests(study);
    for (metric, of_what) in [(Metric::Ttft, Length::Prompt), (Metric::Tpot, Length::Output)] {
        let groups = Groups::new(study, of_what);
        if groups.edges.len() < 3 {
            continue;
        }
        let grouped: Vec<Vec<Distribution>> =
            study.measurements.iter().map(|measured| groups.sort(measured, metric)).collect();
        let mut views = Vec::new();
        for load in &options {
            for statistic in Statistic::ALL {
                views.push(view(study, &grouped, *load, statistic));
            }
        }
        if views.iter().all(Vec::is_empty) {
            continue;
        }
        let mut x = Axis::new(of_what.label(), Unit::Count);
        x.names = groups.names();
        let title = format!("{} by {}", metric.name(), of_what.label().to_lowercase());
        let id = format!("lengths-{}", metric.key());
        section.charts.push(levels::chart(id, &title, String::new(), Kind::Points, x, views));
        section.tables.push(table(study, &groups, &grouped, metric, title));
    }
    section.choices = vec![load_choice(study, &options), levels::statistics()];
    (!section.charts.is_empty()).then_some(section)
}

/// A group has more than one in so many of all answers, and enough for most of its percentiles.
const FEW: usize = 50;

#[derive(Clone, Copy, Debug)]
enum Length {
    Prompt,
    Output,
}

impl Length {
    const fn label(self) -> &'static str {
        match self {
            Self::Prompt => "Prompt tokens",
            Self::Output => "Output tokens",
        }
    }

    fn of(self, answer: &Answer) -> Option<u32> {
        match self {
            Self::Prompt => answer.prompt_tokens,
            Self::Output => answer.output_tokens,
        }
    }
}

/// Groups by length, the same for every series.
#[derive(Debug)]
struct Groups {
    of_what: Length,
    /// Group `i` is from edge `i` to just below edge `i + 1`.
    edges: Vec<u32>,
}

impl Groups {
    /// Powers of two, and half-way between where those would be few.
    fn new(study: &Study, of_what: Length) -> Self {
        let lengths = || {
            study
                .measurements
                .iter()
                .flat_map(|m| &m.answers.all)
                .filter_map(move |answer| of_what.of(answer))
        };
        let (Some(shortest), Some(longest)) = (lengths().min(), lengths().max()) else {
            return Self { of_what, edges: Vec::new() };
        };
        let doublings = f64::from(longest.max(1)).log2() - f64::from(shortest.max(1)).log2();
        let steps = if doublings <= 4.0 { vec![2, 3] } else { vec![2] };
        let mut edges: Vec<u32> = (0..31)
            .flat_map(|power| steps.iter().map(move |step| (step << power) / 2))
            .filter(|edge| *edge > shortest && *edge <= longest)
            .collect();
        edges.insert(0, shortest);
        edges.push(longest.saturating_add(1));
        edges.dedup();
        // A group of a few belongs to its neighbour.
        let below = |edge: u32| lengths().filter(|length| *length < edge).count();
        let all = lengths().count();
        let least = (all / FEW).max(enough(Statistic::P90) * study.measurements.len());
        let mut kept = vec![edges[0]];
        let mut at = 0;
        for edge in &edges[1..edges.len() - 1] {
            let here = below(*edge);
            if here - at > least && all - here > least {
                kept.push(*edge);
                at = here;
            }
        }
        kept.extend(edges.last());
        Self { of_what, edges: kept }
    }

    fn names(&self) -> Vec<String> {
        self.edges.windows(2).map(|pair| span(pair[0], pair[1] - 1)).collect()
    }

    fn sort(&self, measured: &Measurement, metric: Metric) -> Vec<Distribution> {
        let mut samples = vec![Vec::new(); self.edges.len().saturating_sub(1)];
        for answer in &measured.answers.all {
            let latency = if metric == Metric::Ttft { answer.ttft_ms } else { answer.tpot_ms };
            let (Some(length), Some(latency)) = (self.of_what.of(answer), latency) else { continue };
            let group = self.edges.partition_point(|edge| *edge <= length).saturating_sub(1);
            if let Some(group) = samples.get_mut(group) {
                group.push(latency);
            }
        }
        samples.into_iter().map(Distribution::new).collect()
    }
}

fn span(low: u32, high: u32) -> String {
    if low == high { figures::count(low.into()) } else { format!("{}–{}", tokens(low), tokens(high)) }
}

fn tokens(count: u32) -> String {
    // An edge is a power of two, so that 8191 is the last below 8 k.
    let near = count.is_multiple_of(1024) || (count + 1).is_multiple_of(1024);
    if near && count >= 10_000 { format!("{}k", count.div_ceil(1024)) } else { figures::count(count.into()) }
}

fn statistic_of(samples: &Distribution, statistic: Statistic) -> Option<f64> {
    if samples.len() < enough(statistic) {
        return None;
    }
    statistic.share().map_or_else(|| samples.mean(), |share| samples.quantile(share))
}

fn view(study: &Study, grouped: &[Vec<Distribution>], load: usize, statistic: Statistic) -> Vec<Line> {
    let mut lines = Vec::new();
    for (measured, groups) in study.measurements.iter().zip(grouped) {
        if measured.load != load {
            continue;
        }
        let mut line = Line { series: measured.series, ..Line::default() };
        for (place, samples) in groups.iter().enumerate() {
            if let Some(value) = statistic_of(samples, statistic) {
                line.x.push(place as f64);
                line.y.push(rounded(value));
                line.notes.push(format!("{} answers", figures::count(samples.len() as u64)));
            }
        }
        if !line.x.is_empty() {
            lines.push(line);
        }
    }
    lines
}

fn table(
    study: &Study,
    groups: &Groups,
    grouped: &[Vec<Distribution>],
    metric: Metric,
    caption: String,
) -> Table {
    let mut columns = vec![
        Column::text("System", "system"),
        Column::text("Load", "load"),
        Column::text(groups.of_what.label(), "tokens"),
        Column::number("Answers", "answers"),
    ];
    columns.extend(Statistic::ALL.map(|statistic| {
        let name = statistic.name();
        Column::number(format!("{name}, ms"), format!("{}_{name}_ms", metric.key()))
    }));
    let names = groups.names();
    let mut rows = Vec::new();
    for (measured, groups) in study.measurements.iter().zip(grouped) {
        for (samples, name) in groups.iter().zip(&names).filter(|(samples, _)| samples.len() > 0) {
            let mut cells = vec![
                Cell::text(&study.series[measured.series].name),
                Cell::text(&study.loads[measured.load].label),
                Cell::text(name),
                Cell::number(figures::count(samples.len() as u64), samples.len() as f64),
            ];
            cells.extend(Statistic::ALL.map(|statistic| {
                statistic_of(samples, statistic)
                    .map_or_else(Cell::none, |value| Cell::number(figures::number(value), value))
            }));
            rows.push(Row { cells, series: Some(measured.series) });
        }
    }
    Table { id: format!("lengths-{}-table", metric.key()), caption, columns, rows, folded: true }
}
