//! Latencies and throughput along a sweep: by rate, or by the number of clients.

use baton_workload::result::{Estimate, Point};

use crate::chart::{Axis, Chart, Kind, Line, Unit, rounded};
use crate::figures;
use crate::report::{Choice, Section};
use crate::study::{LoadAxis, Measurement, Metric, Statistic, Study};

const INTERVALS: &str = "Whiskers are 95 % intervals; where a load was measured in several rounds, the lowest and the highest round.";

/// One section for each axis that something was measured along.
pub fn sections(study: &Study) -> Vec<Section> {
    LoadAxis::ALL.into_iter().filter_map(|axis| section(study, axis)).collect()
}

fn section(study: &Study, axis: LoadAxis) -> Option<Section> {
    let levels = study.loads.iter().filter(|load| load.axis == axis).count();
    if levels == 0 {
        return None;
    }
    let (id, title) = match axis {
        LoadAxis::Rate => ("rate", "By rate"),
        LoadAxis::Clients => ("clients", "By clients"),
    };
    if levels == 1 {
        return Some(one_level(study, axis, id));
    }
    let lead = match axis {
        LoadAxis::Rate => {
            "Requests come whether or not earlier ones are answered. Where a line bends upwards, the system no longer keeps up."
        }
        LoadAxis::Clients => {
            "Each client waits for its answer before it sends the next request, so a slow system is asked less often."
        }
    };
    let mut section = Section::new(id, title, format!("{lead} {INTERVALS}"));
    section.choices.push(statistics());
    for metric in Metric::ALL {
        section.charts.extend(latency_chart(study, axis, metric, id));
    }
    section.charts.extend(level_chart(
        study,
        axis,
        format!("{id}-throughput"),
        "Output tokens per second, all answers together",
        Unit::TokensPerSecond,
        |point| Some(point.throughput.output_tokens),
    ));
    section.charts.extend(level_chart(
        study,
        axis,
        format!("{id}-goodput"),
        "Requests within the service level, of all that were to be sent",
        Unit::Share,
        |point| point.goodput.map(|goodput| goodput.share),
    ));
    Some(section)
}

/// Latency over throughput: what one is paid with the other.
pub fn curve(study: &Study) -> Option<Section> {
    let title = "Throughput and latency";
    let lead = "Each point is one load, from the lightest to the heaviest. Further right is more work done, lower is quicker: a line that lies to \
                the right of and below another is better at both.";
    let mut section = Section::new("curve", title, lead);
    section.choices.push(statistics());
    for metric in [Metric::Ttft, Metric::Tpot] {
        let views: Vec<Vec<Line>> =
            Statistic::ALL.map(|statistic| curve_lines(study, metric, statistic)).into();
        if !views.iter().flatten().any(|line| line.x.len() > 1) {
            continue;
        }
        section.charts.push(chart(
            format!("curve-{}", metric.key()),
            metric.long_name(),
            String::new(),
            Kind::Path,
            Axis::new("Output tokens per second", Unit::TokensPerSecond),
            views,
        ));
    }
    (!section.charts.is_empty()).then_some(section)
}

pub fn statistics() -> Choice {
    Choice {
        label: "Statistic".to_owned(),
        options: Statistic::ALL.map(|statistic| statistic.name().to_owned()).into(),
        chosen: Statistic::CHOSEN,
    }
}

/// A chart of milliseconds over something.
pub fn chart(id: String, title: &str, summary: String, kind: Kind, x: Axis, views: Vec<Vec<Line>>) -> Chart {
    // The values alone decide: an interval that reaches down to nothing would make every axis logarithmic.
    let y = Axis::new(title, Unit::Ms).log_if_wide(views.iter().flatten().flat_map(|line| &line.y));
    Chart { id, title: title.to_owned(), summary, kind, x, y, views }
}

fn latency_chart(study: &Study, axis: LoadAxis, metric: Metric, section: &str) -> Option<Chart> {
    let view = |statistic| lines(study, axis, |measured| measured.figure(metric, statistic), metric);
    let views: Vec<Vec<Line>> = Statistic::ALL.map(view).into();
    if views.iter().all(Vec::is_empty) {
        return None;
    }
    let summary = match metric {
        Metric::Ttft => "From the moment a request should have been sent to its first token.",
        Metric::Tpot => "From an answer's first token to its last, by the tokens between.",
        Metric::Itl => "Between two pieces of an answer: what a reader sees as stutter.",
        Metric::E2e => "From the moment a request should have been sent to its last token.",
    };
    let id = format!("{section}-{}", metric.key());
    Some(chart(id, metric.long_name(), summary.to_owned(), Kind::Points, level_axis(study, axis), views))
}

/// Of which there is one view, whatever the statistic.
fn level_chart(
    study: &Study,
    axis: LoadAxis,
    id: String,
    title: &str,
    unit: Unit,
    figure: impl Fn(&Point) -> Option<Estimate>,
) -> Option<Chart> {
    let lines = lines(study, axis, |measured| measured.mean_of(&figure), Metric::Ttft);
    (!lines.is_empty()).then(|| Chart {
        id,
        title: title.to_owned(),
        summary: String::new(),
        kind: Kind::Points,
        x: level_axis(study, axis),
        y: Axis::new(title, unit),
        views: vec![lines],
    })
}

fn level_axis(study: &Study, axis: LoadAxis) -> Axis {
    let unit = match axis {
        LoadAxis::Rate => Unit::Requests,
        LoadAxis::Clients => Unit::Clients,
    };
    let levels = study.loads.iter().filter(|load| load.axis == axis).map(|load| &load.level);
    Axis::new(axis.label(), unit).log_if_wide(levels)
}

fn lines(
    study: &Study,
    axis: LoadAxis,
    figure: impl Fn(&Measurement) -> Option<Estimate>,
    metric: Metric,
) -> Vec<Line> {
    let line = |series| {
        let mut line = Line { series, ..Line::default() };
        for measured in study.along(series, axis) {
            let Some(estimate) = figure(measured) else { continue };
            push(&mut line, study.loads[measured.load].level, estimate);
            line.notes.push(note(measured, metric));
        }
        line
    };
    (0..study.series.len()).map(line).filter(|line| !line.x.is_empty()).collect()
}

fn curve_lines(study: &Study, metric: Metric, statistic: Statistic) -> Vec<Line> {
    let mut lines = Vec::new();
    for (axis, series) in
        LoadAxis::ALL.into_iter().flat_map(|axis| (0..study.series.len()).map(move |series| (axis, series)))
    {
        let mut line = Line { series, ..Line::default() };
        for measured in study.along(series, axis) {
            let output = measured.mean_of(|point| Some(point.throughput.output_tokens));
            if let (Some(output), Some(latency)) = (output, measured.figure(metric, statistic)) {
                push(&mut line, rounded(output.value), latency);
                line.notes.push(study.loads[measured.load].label.clone());
            }
        }
        if !line.x.is_empty() {
            lines.push(line);
        }
    }
    lines
}

fn push(line: &mut Line, x: f64, estimate: Estimate) {
    line.x.push(x);
    line.y.push(rounded(estimate.value));
    // Where there is no interval it is the point itself, which draws nothing.
    line.low.push(rounded(estimate.low.unwrap_or(estimate.value)));
    line.high.push(rounded(estimate.high.unwrap_or(estimate.value)));
}

fn note(measured: &Measurement, metric: Metric) -> String {
    format!("{} answers", figures::count(measured.samples(metric)))
}

/// At one load there is nothing to go along but the distribution itself.
fn one_level(study: &Study, axis: LoadAxis, id: &str) -> Section {
    let load = study.loads.iter().find(|load| load.axis == axis).map(|load| load.label.as_str());
    let title = format!("At {}", load.unwrap_or("one load"));
    let mut section = Section::new(
        id,
        title,
        format!("The only load that was measured: mean and percentiles. {INTERVALS}"),
    );
    for metric in Metric::ALL {
        let mut lines = Vec::new();
        for series in 0..study.series.len() {
            let mut line = Line { series, ..Line::default() };
            for measured in study.along(series, axis) {
                for (place, statistic) in Statistic::ALL.into_iter().enumerate() {
                    if let Some(estimate) = measured.figure(metric, statistic) {
                        push(&mut line, place as f64, estimate);
                        line.notes.push(note(measured, metric));
                    }
                }
            }
            if !line.x.is_empty() {
                lines.push(line);
            }
        }
        if lines.is_empty() {
            continue;
        }
        let mut x = Axis::new("Statistic", Unit::Count);
        x.names = Statistic::ALL.map(|statistic| statistic.name().to_owned()).into();
        section.charts.push(chart(
            format!("{id}-{}", metric.key()),
            metric.long_name(),
            String::new(),
            Kind::Marks,
            x,
            vec![lines],
        ));
    }
    section
}
