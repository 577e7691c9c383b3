//! Whole distributions: what share of answers was at most so slow.

use crate::chart::{Axis, Chart, Kind, Line, Unit, rounded};
use crate::distribution::quantile_grid;
use crate::figures;
use crate::report::{Choice, Section};
use crate::study::{Measurement, Metric, Study};
use crate::table::{Cell, Column, Row, Table};

/// What the table tells; the chart has the grid.
const TABLE_SHARES: [f64; 9] = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999];

/// None if no requests were kept.
pub fn section(study: &Study) -> Option<Section> {
    let lead = "How many answers were at least as quick as what the lower edge says. A line further left is quicker; one that leans over to the right \
                near the top has a slow tail.";
    let mut section = Section::new("distributions", "Distributions", lead);
    let options = loads_with_requests(study);
    for metric in Metric::ALL {
        let view = |load: &usize| {
            let lines = study.at_load(*load).filter_map(|measured| line(measured, metric));
            lines.collect::<Vec<_>>()
        };
        let views: Vec<Vec<Line>> = options.iter().map(view).collect();
        if views.iter().all(Vec::is_empty) {
            continue;
        }
        section.charts.push(chart(metric, views));
        section.tables.push(table(study, metric));
    }
    section.choices.push(load_choice(study, &options));
    (!section.charts.is_empty()).then_some(section)
}

/// Loads of which single requests were kept.
pub fn loads_with_requests(study: &Study) -> Vec<usize> {
    let kept = |load: &usize| study.at_load(*load).any(|measured| measured.answers.requests > 0);
    (0..study.loads.len()).filter(kept).collect()
}

pub fn load_choice(study: &Study, options: &[usize]) -> Choice {
    let middle = study.middle_load();
    Choice {
        label: "Load".to_owned(),
        options: options.iter().map(|load| study.loads[*load].label.clone()).collect(),
        chosen: options.iter().position(|load| *load == middle).unwrap_or(options.len() / 2),
    }
}

fn chart(metric: Metric, views: Vec<Vec<Line>>) -> Chart {
    let values = views.iter().flatten().flat_map(|line| &line.x);
    Chart {
        id: format!("distribution-{}", metric.key()),
        title: metric.long_name().to_owned(),
        summary: String::new(),
        kind: Kind::Quantiles,
        x: Axis::new(metric.name(), Unit::Ms).log_if_wide(values),
        y: Axis::new("Share of answers", Unit::Share),
        views,
    }
}

fn line(measured: &Measurement, metric: Metric) -> Option<Line> {
    let quantile = quantiles(measured, metric)?;
    let y = quantile_grid();
    let x = y.iter().filter_map(|share| quantile(*share)).map(rounded).collect();
    Some(Line { series: measured.series, x, y, ..Line::default() })
}

/// The quantiles of what was kept, if anything was.
fn quantiles<'a>(measured: &'a Measurement, metric: Metric) -> Option<Box<dyn Fn(f64) -> Option<f64> + 'a>> {
    if metric == Metric::Itl {
        let itl = &measured.answers.itl;
        return (itl.len() > 0).then(|| Box::new(|share| itl.quantile(share)) as _);
    }
    let samples = metric.samples(measured.answers);
    (samples.len() > 0).then(|| Box::new(move |share| samples.quantile(share)) as _)
}

fn table(study: &Study, metric: Metric) -> Table {
    let mut columns = vec![Column::text("System", "system"), Column::text("Load", "load")];
    columns.extend(TABLE_SHARES.map(|share| {
        let percentile = figures::short(share * 100.0);
        Column::number(format!("p{percentile}, ms"), format!("{}_p{percentile}_ms", metric.key()))
    }));
    let row = |measured: &Measurement| {
        let quantile = quantiles(measured, metric)?;
        let mut cells = vec![
            Cell::text(&study.series[measured.series].name),
            Cell::text(&study.loads[measured.load].label),
        ];
        cells.extend(TABLE_SHARES.map(|share| {
            quantile(share).map_or_else(Cell::none, |value| Cell::number(figures::number(value), value))
        }));
        Some(Row { cells, series: Some(measured.series) })
    };
    Table {
        id: format!("percentiles-{}", metric.key()),
        caption: format!("Percentiles: {}", metric.long_name()),
        columns,
        rows: study.measurements.iter().filter_map(row).collect(),
        folded: true,
    }
}
