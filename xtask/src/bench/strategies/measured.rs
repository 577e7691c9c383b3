//! What `baton bench compare` left, system by system; rounds put together.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::Context;
use serde::Deserialize;

/// One system under one load.
#[derive(Debug, Default)]
pub struct Measured {
    pub name: String,
    /// Of each answer.
    pub ttft_ms: Samples,
    pub tpot_ms: Samples,
    /// Output tokens per second, mean of the rounds.
    pub tokens_per_s: f64,
    pub requests: usize,
    pub failed: usize,
    /// Of decode's loop.
    pub stall: Stall,
    /// Mean time of decode's steps.
    pub step_ms: f64,
}

/// Time between two steps.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stall {
    pub mean_ms: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    /// Of all rounds.
    pub sum_ms: f64,
}

#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    pub fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len().max(1) as f64
    }

    /// The smallest sample with at least that share at or below it.
    pub fn percentile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.max(1) - 1).copied().unwrap_or(f64::NAN)
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(samples: I) -> Self {
        Self(samples.into_iter().collect())
    }
}

#[derive(Deserialize)]
struct RunResult {
    points: Vec<Point>,
}

#[derive(Deserialize)]
struct Point {
    system: String,
    throughput: Throughput,
    scrapes: Vec<Scrape>,
}

#[derive(Deserialize)]
struct Throughput {
    output_tokens: Estimate,
}

#[derive(Deserialize)]
struct Estimate {
    value: f64,
}

#[derive(Deserialize)]
struct Scrape {
    target: String,
    histograms: BTreeMap<String, Histogram>,
}

#[derive(Clone, Copy, Deserialize)]
struct Histogram {
    count: u64,
    mean: f64,
    p50: f64,
    p99: f64,
}

#[derive(Deserialize)]
struct Record {
    point: usize,
    scheduled_ms: f64,
    token_ms: Vec<f64>,
    output_tokens: Option<u32>,
    ending: String,
}

const DECODE: &str = "decode-0";
const BETWEEN_STEPS: &str = "baton_between_steps_seconds";
const STEPS: &str = "baton_step_seconds";

impl Measured {
    /// # Errors
    /// If there is no result, or it lacks what this needs.
    pub fn read(dir: &Path) -> anyhow::Result<Vec<Self>> {
        let open = |name: &str| {
            let path = dir.join(name);
            File::open(&path).map(BufReader::new).with_context(|| path.display().to_string())
        };
        let result: RunResult = serde_json::from_reader(open("result.json")?)?;
        let records: Vec<Record> = open("requests.jsonl")?
            .lines()
            .map(|line| Ok(serde_json::from_str(&line?)?))
            .collect::<anyhow::Result<_>>()?;
        let mut names: Vec<&str> = Vec::new();
        for point in &result.points {
            if !names.contains(&point.system.as_str()) {
                names.push(&point.system);
            }
        }
        names.into_iter().map(|name| Self::of(name, &result.points, &records)).collect()
    }

    fn of(name: &str, points: &[Point], records: &[Record]) -> anyhow::Result<Self> {
        let rounds: Vec<&Point> = points.iter().filter(|point| point.system == name).collect();
        let decode = |metric: &str| {
            let scrapes = rounds.iter().flat_map(|point| &point.scrapes);
            let of_decode = scrapes.filter(|scrape| scrape.target == DECODE);
            of_decode.filter_map(|scrape| scrape.histograms.get(metric).copied()).collect::<Vec<_>>()
        };
        let (between, steps) = (decode(BETWEEN_STEPS), decode(STEPS));
        if between.len() < rounds.len() || steps.len() < rounds.len() {
            anyhow::bail!("{DECODE} of {name} did not tell of its steps");
        }
        let sent: Vec<&Record> = records
            .iter()
            .filter(|record| points.get(record.point).is_some_and(|p| p.system == name))
            .collect();
        let answered: Vec<&&Record> =
            sent.iter().filter(|record| ["complete", "early"].contains(&record.ending.as_str())).collect();
        let tokens = rounds.iter().map(|point| point.throughput.output_tokens.value);
        Ok(Self {
            name: name.to_owned(),
            ttft_ms: answered.iter().filter_map(|record| record.ttft_ms()).collect(),
            tpot_ms: answered.iter().filter_map(|record| record.tpot_ms()).collect(),
            tokens_per_s: tokens.sum::<f64>() / rounds.len() as f64,
            requests: sent.len(),
            failed: sent.len() - answered.len(),
            stall: Stall::of(&between),
            step_ms: mean(&steps, |histogram| histogram.mean) * 1e3,
        })
    }
}

impl Record {
    fn ttft_ms(&self) -> Option<f64> {
        self.token_ms.first().map(|first| first - self.scheduled_ms)
    }

    fn tpot_ms(&self) -> Option<f64> {
        let (first, last) = (self.token_ms.first()?, self.token_ms.last()?);
        let tokens = self.output_tokens.filter(|tokens| *tokens > 1)?;
        Some((last - first) / f64::from(tokens - 1))
    }
}

impl Stall {
    fn of(rounds: &[Histogram]) -> Self {
        let sum_ms = rounds.iter().map(|histogram| histogram.mean * histogram.count as f64 * 1e3).sum();
        Self {
            mean_ms: mean(rounds, |histogram| histogram.mean) * 1e3,
            p50_ms: mean(rounds, |histogram| histogram.p50) * 1e3,
            p99_ms: mean(rounds, |histogram| histogram.p99) * 1e3,
            sum_ms,
        }
    }
}

/// Over all samples of all rounds.
fn mean(rounds: &[Histogram], figure: impl Fn(&Histogram) -> f64) -> f64 {
    let count: u64 = rounds.iter().map(|histogram| histogram.count).sum();
    rounds.iter().map(|histogram| figure(histogram) * histogram.count as f64).sum::<f64>()
        / count.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESULT: &str = r#"{"points": [
        {"system": "a", "throughput": {"output_tokens": {"value": 10.0}}, "scrapes": [{"target": "decode-0", "histograms": {
            "baton_between_steps_seconds": {"count": 10, "mean": 0.001, "p50": 0.001, "p90": 0.002, "p99": 0.003},
            "baton_step_seconds": {"count": 10, "mean": 0.005, "p50": 0.005, "p90": 0.005, "p99": 0.005}}}]},
        {"system": "a", "throughput": {"output_tokens": {"value": 20.0}}, "scrapes": [{"target": "decode-0", "histograms": {
            "baton_between_steps_seconds": {"count": 30, "mean": 0.003, "p50": 0.001, "p90": 0.002, "p99": 0.003},
            "baton_step_seconds": {"count": 30, "mean": 0.005, "p50": 0.005, "p90": 0.005, "p99": 0.005}}}]}]}"#;
    const REQUESTS: &str = r#"{"point":0,"scheduled_ms":10,"token_ms":[30,40,50],"output_tokens":3,"ending":"complete"}
{"point":1,"scheduled_ms":10,"token_ms":[50,54,58],"output_tokens":3,"ending":"complete"}
{"point":1,"scheduled_ms":10,"token_ms":[],"output_tokens":0,"ending":"refused"}"#;

    #[test]
    fn rounds_are_put_together() {
        let result: RunResult = serde_json::from_str(RESULT).unwrap();
        let records: Vec<Record> = REQUESTS.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let a = Measured::of("a", &result.points, &records).unwrap();
        assert_eq!((a.requests, a.failed, a.tokens_per_s), (3, 1, 15.0));
        assert_eq!(
            (a.ttft_ms.mean(), a.ttft_ms.percentile(0.5), a.ttft_ms.percentile(0.99)),
            (30.0, 20.0, 40.0)
        );
        assert_eq!((a.tpot_ms.mean(), a.step_ms), (7.0, 5.0));
        assert!((a.stall.mean_ms - 2.5).abs() < 1e-9 && (a.stall.sum_ms - 100.0).abs() < 1e-9, "{a:?}");
        assert!(Measured::of("b", &[], &[]).unwrap().ttft_ms.percentile(0.5).is_nan());
    }
}
