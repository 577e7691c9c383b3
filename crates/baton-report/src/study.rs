//! Several results as one study: what is compared, at which loads.

use std::collections::BTreeSet;

use baton_workload::result::{Estimate, Load, Point, Summary, System};

use crate::answers::Answers;
use crate::distribution::Distribution;
use crate::figures;
use crate::input::Input;

#[derive(Debug)]
pub struct Study<'a> {
    pub inputs: &'a [Input],
    pub series: Vec<SeriesOf<'a>>,
    /// In the order of their levels: arrivals first, then clients.
    pub loads: Vec<LoadName>,
    pub measurements: Vec<Measurement<'a>>,
}

/// One system of one result.
#[derive(Debug)]
pub struct SeriesOf<'a> {
    pub name: String,
    pub input: &'a Input,
    /// As the result's points name it.
    pub system_name: &'a str,
    /// None if the conditions do not name it.
    pub system: Option<&'a System>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct LoadName {
    pub label: String,
    pub axis: LoadAxis,
    /// Requests per second, or clients.
    pub level: f64,
    /// Tells apart what has the same level.
    load: Load,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LoadAxis {
    Rate,
    Clients,
}

/// One load on one system, over all rounds.
#[derive(Debug)]
pub struct Measurement<'a> {
    pub series: usize,
    pub load: usize,
    pub points: Vec<&'a Point>,
    pub answers: &'a Answers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    Ttft,
    Tpot,
    Itl,
    E2e,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistic {
    Mean,
    P50,
    P90,
    P99,
}

impl<'a> Study<'a> {
    pub fn new(inputs: &'a [Input]) -> Self {
        let series = series(inputs);
        let loads = loads(inputs);
        let mut measurements = Vec::new();
        let mut first = 0;
        for input in inputs {
            let systems = systems(input);
            for measured in &input.measurements {
                let place = systems.iter().position(|name| *name == measured.system);
                let load = loads.iter().position(|load| load.load == measured.load);
                let (Some(place), Some(load)) = (place, load) else { continue };
                let points = measured.points.iter().map(|index| &input.result.points[*index]).collect();
                measurements.push(Measurement {
                    series: first + place,
                    load,
                    points,
                    answers: &measured.answers,
                });
            }
            first += systems.len();
        }
        measurements.sort_by_key(|measurement| (measurement.load, measurement.series));
        Self { inputs, series, loads, measurements }
    }

    pub fn series_of(&self, input: &Input, system: &str) -> Option<usize> {
        self.series
            .iter()
            .position(|series| std::ptr::eq(series.input, input) && series.system_name == system)
    }

    pub fn at_load(&self, load: usize) -> impl Iterator<Item = &Measurement<'a>> {
        self.measurements.iter().filter(move |measurement| measurement.load == load)
    }

    /// Those of one series along one axis, from the lowest level up.
    pub fn along(&self, series: usize, axis: LoadAxis) -> impl Iterator<Item = &Measurement<'a>> {
        self.measurements
            .iter()
            .filter(move |measured| measured.series == series && self.loads[measured.load].axis == axis)
    }

    /// What stands for all in a chart of one load: the middle of the loads that every series has seen.
    pub fn middle_load(&self) -> usize {
        let seen_by_all: Vec<usize> =
            (0..self.loads.len()).filter(|load| self.at_load(*load).count() == self.series.len()).collect();
        seen_by_all.get(seen_by_all.len() / 2).copied().unwrap_or(self.loads.len() / 2)
    }
}

impl Measurement<'_> {
    /// A latency, with its 95 % interval; over several rounds pooled, with the lowest and the highest round.
    pub fn figure(&self, metric: Metric, statistic: Statistic) -> Option<Estimate> {
        let rounds: Vec<Estimate> = self
            .points
            .iter()
            .filter_map(|point| metric.summary(point))
            .map(|summary| statistic.of(summary))
            .collect();
        match rounds.as_slice() {
            [] => None,
            [only] => Some(*only),
            several => {
                let estimate = over_rounds(several)?;
                let pooled = self.pooled(metric, statistic).unwrap_or(estimate.value);
                Some(Estimate { value: pooled, ..estimate })
            }
        }
    }

    /// Something else that points tell, as the mean of the rounds.
    pub fn mean_of(&self, figure: impl Fn(&Point) -> Option<Estimate>) -> Option<Estimate> {
        let rounds: Vec<Estimate> = self.points.iter().filter_map(|point| figure(point)).collect();
        match rounds.as_slice() {
            [only] => Some(*only),
            several => over_rounds(several),
        }
    }

    pub fn sum_of(&self, count: impl Fn(&Point) -> u64) -> u64 {
        self.points.iter().map(|point| count(point)).sum()
    }

    pub fn samples(&self, metric: Metric) -> u64 {
        self.sum_of(|point| metric.summary(point).map_or(0, |summary| summary.samples))
    }

    fn pooled(&self, metric: Metric, statistic: Statistic) -> Option<f64> {
        if metric == Metric::Itl {
            let itl = &self.answers.itl;
            return statistic.share().map_or_else(|| itl.mean(), |share| itl.quantile(share));
        }
        let samples = metric.samples(self.answers);
        statistic.share().map_or_else(|| samples.mean(), |share| samples.quantile(share))
    }
}

/// The mean, and the lowest and highest round.
fn over_rounds(rounds: &[Estimate]) -> Option<Estimate> {
    let values = || rounds.iter().map(|round| round.value);
    (!rounds.is_empty()).then(|| Estimate {
        value: values().sum::<f64>() / rounds.len() as f64,
        low: values().reduce(f64::min),
        high: values().reduce(f64::max),
    })
}

impl Metric {
    pub const ALL: [Self; 4] = [Self::Ttft, Self::Tpot, Self::Itl, Self::E2e];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Ttft => "TTFT",
            Self::Tpot => "TPOT",
            Self::Itl => "ITL",
            Self::E2e => "End to end",
        }
    }

    pub const fn long_name(self) -> &'static str {
        match self {
            Self::Ttft => "Time to first token (TTFT)",
            Self::Tpot => "Time per output token (TPOT)",
            Self::Itl => "Time between chunks (ITL)",
            Self::E2e => "Whole answer (end to end)",
        }
    }

    /// As results and CSV columns name it, with its unit behind.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Ttft => "ttft",
            Self::Tpot => "tpot",
            Self::Itl => "itl",
            Self::E2e => "e2e",
        }
    }

    pub fn summary(self, point: &Point) -> Option<&Summary> {
        match self {
            Self::Ttft => point.ttft_ms.as_ref(),
            Self::Tpot => point.tpot_ms.as_ref(),
            Self::Itl => point.itl_ms.as_ref(),
            Self::E2e => point.e2e_ms.as_ref(),
        }
    }

    /// One sample for each answer; ITL has its histogram instead.
    pub fn samples(self, answers: &Answers) -> Distribution {
        Distribution::new(answers.all.iter().filter_map(|answer| match self {
            Self::Ttft => answer.ttft_ms,
            Self::Tpot => answer.tpot_ms,
            Self::E2e => answer.e2e_ms,
            Self::Itl => None,
        }))
    }
}

impl Statistic {
    pub const ALL: [Self; 4] = [Self::Mean, Self::P50, Self::P90, Self::P99];
    /// The tail that a user meets every day, and that a short run still has samples for.
    pub const CHOSEN: usize = 2;

    pub const fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::P50 => "p50",
            Self::P90 => "p90",
            Self::P99 => "p99",
        }
    }

    pub const fn share(self) -> Option<f64> {
        match self {
            Self::Mean => None,
            Self::P50 => Some(0.5),
            Self::P90 => Some(0.9),
            Self::P99 => Some(0.99),
        }
    }

    pub fn of(self, summary: &Summary) -> Estimate {
        match self {
            Self::Mean => summary.mean,
            Self::P50 => summary.p50,
            Self::P90 => summary.p90,
            Self::P99 => summary.p99,
        }
    }
}

/// The systems of a result: those of its conditions, and any that only a point names.
fn systems(input: &Input) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    let described = input.result.conditions.systems.iter().map(|system| system.name.as_str());
    let measured = input.measurements.iter().map(|measured| measured.system.as_str());
    for name in described.chain(measured) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn series(inputs: &[Input]) -> Vec<SeriesOf<'_>> {
    let all: Vec<(&Input, &str)> =
        inputs.iter().flat_map(|input| systems(input).into_iter().map(move |name| (input, name))).collect();
    let mut seen = BTreeSet::new();
    let ambiguous = !all.iter().all(|(_, name)| seen.insert(*name));
    let mut taken = BTreeSet::new();
    all.into_iter()
        .map(|(input, name)| {
            let wanted = if ambiguous { format!("{} · {name}", input.name) } else { name.to_owned() };
            // Two results may have the same name as well.
            let numbered = (2..).map(|number| format!("{wanted} ({number})"));
            let free = std::iter::once(wanted.clone()).chain(numbered).find(|name| !taken.contains(name));
            let name_shown = free.unwrap_or(wanted);
            taken.insert(name_shown.clone());
            let system = input.result.conditions.systems.iter().find(|system| system.name == name);
            SeriesOf { name: name_shown, input, system_name: name, system }
        })
        .collect()
}

fn loads(inputs: &[Input]) -> Vec<LoadName> {
    let mut arrivals = BTreeSet::new();
    let mut loads: Vec<LoadName> = Vec::new();
    for input in inputs {
        for measured in &input.measurements {
            if let Load::Open { arrivals: kind, .. } = &measured.load {
                arrivals.insert(kind.as_str());
            }
            if !loads.iter().any(|known| known.load == measured.load) {
                let point = measured.points.first().map(|index| &input.result.points[*index]);
                loads.push(LoadName::new(&measured.load, point));
            }
        }
    }
    if arrivals.len() > 1 {
        for load in &mut loads {
            if let Load::Open { arrivals: kind, .. } = &load.load {
                load.label = format!("{}, {kind}", load.label);
            }
        }
    }
    loads.sort_by(|a, b| a.axis.cmp(&b.axis).then(a.level.total_cmp(&b.level)).then(a.label.cmp(&b.label)));
    loads
}

impl LoadName {
    /// `point` is one at this load: a trace's rate may be known only from what was sent.
    pub fn new(load: &Load, point: Option<&Point>) -> Self {
        let sent = point.map_or(0.0, |point| point.counts.scheduled as f64 / point.duration_s.max(1e-3));
        let level = load.level().unwrap_or(sent);
        let (axis, label) = match load {
            Load::Open { rate, .. } => (LoadAxis::Rate, format!("{} req/s", figures::short(*rate))),
            Load::Trace { time_scale, .. } => {
                let scale = figures::short(*time_scale);
                (LoadAxis::Rate, format!("trace ×{scale} ({} req/s)", figures::number(level)))
            }
            Load::Closed { concurrency: 1 } => (LoadAxis::Clients, "1 client".to_owned()),
            Load::Closed { concurrency } => (LoadAxis::Clients, format!("{concurrency} clients")),
        };
        Self { label, axis, level, load: load.clone() }
    }

    pub fn is(&self, load: &Load) -> bool {
        self.load == *load
    }
}

impl LoadAxis {
    pub const ALL: [Self; 2] = [Self::Rate, Self::Clients];

    pub const fn label(self) -> &'static str {
        match self {
            Self::Rate => "Requests per second, offered",
            Self::Clients => "Clients at once",
        }
    }
}
