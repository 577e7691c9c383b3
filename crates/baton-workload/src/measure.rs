//! From the records of a point to its figures.

use crate::quantile::nearest_rank;
use crate::resample::{FEWEST_BEYOND, FEWEST_UNITS, Resampler, interval, round_figure};
use crate::result::{Counts, Estimate, Goodput, RequestRecord, Slo, Summary, Throughput};

/// The figures of a point that follow from its requests alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    pub duration_s: f64,
    pub counts: Counts,
    pub ttft_ms: Option<Summary>,
    pub tpot_ms: Option<Summary>,
    pub itl_ms: Option<Summary>,
    pub e2e_ms: Option<Summary>,
    pub lag_ms: Option<Summary>,
    pub throughput: Throughput,
    pub goodput: Option<Goodput>,
}

/// The records of one point, in any order. The seed makes the intervals repeatable.
pub fn measure(records: &[RequestRecord], slo: Option<Slo>, seed: u64) -> Measured {
    let mut all: Vec<&RequestRecord> = records.iter().collect();
    all.sort_by(|a, b| a.scheduled_ms.total_cmp(&b.scheduled_ms).then(a.index.cmp(&b.index)));
    let answers: Vec<&RequestRecord> =
        all.iter().copied().filter(|record| record.ending.is_answer()).collect();
    let duration_s = duration_s(&all);
    let of_answers = |figure: fn(&RequestRecord) -> Option<f64>| {
        summarize(answers.iter().map(|record| figure(record).into_iter().collect()), seed)
    };
    Measured {
        duration_s,
        counts: counts(&all),
        ttft_ms: of_answers(RequestRecord::ttft_ms),
        tpot_ms: of_answers(RequestRecord::tpot_ms),
        itl_ms: summarize(answers.iter().map(|record| record.itl_ms().collect()), seed),
        e2e_ms: of_answers(RequestRecord::e2e_ms),
        lag_ms: summarize(all.iter().map(|record| record.lag_ms().into_iter().collect()), seed),
        throughput: throughput(&answers, duration_s, seed),
        goodput: slo.map(|slo| goodput(&all, slo, duration_s, seed)),
    }
}

/// From the first scheduled moment to the last ending.
fn duration_s(records: &[&RequestRecord]) -> f64 {
    let Some(first) = records.first() else { return 0.0 };
    let end = |record: &&RequestRecord| record.done_ms.unwrap_or(record.scheduled_ms);
    let last = records.iter().map(end).fold(first.scheduled_ms, f64::max);
    round_figure((last - first.scheduled_ms) / 1000.0)
}

fn counts(records: &[&RequestRecord]) -> Counts {
    let mut counts = Counts { scheduled: records.len() as u64, ..Counts::default() };
    for record in records {
        *counts.endings.entry(record.ending).or_default() += 1;
        if record.ending.is_answer() {
            counts.prompt_tokens += u64::from(record.prompt_tokens.unwrap_or(0));
        }
        counts.output_tokens += u64::from(record.output_tokens.unwrap_or(0));
        if let Some(cached) = record.cached_tokens {
            *counts.cached_tokens.get_or_insert(0) += u64::from(cached);
        }
    }
    counts
}

/// Samples that come in units (the gaps of one answer, say), in the order of the units; a unit is drawn whole.
pub fn summarize(units: impl Iterator<Item = Vec<f64>>, seed: u64) -> Option<Summary> {
    // Each sample with its unit. Units without samples are none.
    let mut samples: Vec<(f64, u32)> = Vec::new();
    let mut sums: Vec<(f64, u64)> = Vec::new();
    for unit in units.filter(|unit| !unit.is_empty()) {
        let number = sums.len() as u32;
        sums.push((unit.iter().sum(), unit.len() as u64));
        samples.extend(unit.into_iter().map(|value| (value, number)));
    }
    samples.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (first, last) = (round_figure(samples.first()?.0), round_figure(samples.last()?.0));
    let total: f64 = sums.iter().map(|(sum, _)| sum).sum();
    let mean = total / samples.len() as f64;
    let sorted: Vec<f64> = samples.iter().map(|(value, _)| *value).collect();
    let exact = SHARES.map(|share| nearest_rank(&sorted, share).unwrap_or(mean));
    let [mean, p50, p90, p99] = intervals(&samples, &sums, mean, exact, seed);
    Some(Summary { samples: samples.len() as u64, min: first, max: last, mean, p50, p90, p99 })
}

const SHARES: [f64; 3] = [0.5, 0.9, 0.99];

fn intervals(
    samples: &[(f64, u32)],
    sums: &[(f64, u64)],
    mean: f64,
    exact: [f64; 3],
    seed: u64,
) -> [Estimate; 4] {
    let bare = [mean, exact[0], exact[1], exact[2]].map(Estimate::bare);
    if sums.len() < FEWEST_UNITS {
        return bare;
    }
    let mut resampler = Resampler::new(seed);
    let mut rows: [Vec<f64>; 4] = Default::default();
    let mut counts = Vec::new();
    for _ in 0..Resampler::rows(samples.len()) {
        resampler.draw_counts(sums.len(), &mut counts);
        let drawn = || sums.iter().zip(&counts).map(|((sum, n), count)| (sum, n, *count));
        let total: f64 = drawn().map(|(sum, _, count)| sum * f64::from(count)).sum();
        let n: u64 = drawn().map(|(_, n, count)| n * u64::from(count)).sum();
        rows[0].push(total / n as f64);
        let found = weighted_ranks(samples, &counts, n);
        found.into_iter().zip(&mut rows[1..]).for_each(|(value, row)| row.push(value));
    }
    let mut estimates = bare;
    for (i, row) in rows.into_iter().enumerate() {
        let beyond = i.checked_sub(1).map_or(f64::MAX, |i| (1.0 - SHARES[i]) * samples.len() as f64);
        // 1.0 - 0.9 is a little less than a tenth.
        if beyond + 1e-9 >= FEWEST_BEYOND {
            estimates[i] = interval(estimates[i].value, row);
        }
    }
    estimates
}

/// The nearest ranks of sorted samples of which each unit counts as often as it was drawn.
fn weighted_ranks(samples: &[(f64, u32)], counts: &[u32], n: u64) -> [f64; 3] {
    let ranks = SHARES.map(|share| ((share * n as f64).ceil() as u64).max(1));
    let mut found = [f64::NAN; 3];
    let (mut below, mut next) = (0, 0);
    for (value, unit) in samples {
        below += u64::from(counts[*unit as usize]);
        while next < ranks.len() && below >= ranks[next] {
            found[next] = *value;
            next += 1;
        }
        if next == ranks.len() {
            break;
        }
    }
    found
}

/// Slices of the duration whose counts are drawn for the intervals of throughputs.
const SLICES: usize = 20;

fn throughput(answers: &[&RequestRecord], duration_s: f64, seed: u64) -> Throughput {
    let start_ms = answers.first().map_or(0.0, |record| record.scheduled_ms);
    let slice_ms = duration_s * 1000.0 / SLICES as f64;
    let slice = |at_ms: f64| (((at_ms - start_ms) / slice_ms).max(0.0) as usize).min(SLICES - 1);
    let (mut requests, mut prompt, mut output) = ([0.0; SLICES], [0.0; SLICES], [0.0; SLICES]);
    for record in answers {
        let done = record.done_ms.unwrap_or(record.scheduled_ms);
        requests[slice(done)] += 1.0;
        let first = record.token_ms.first().copied().unwrap_or(done);
        prompt[slice(first)] += f64::from(record.prompt_tokens.unwrap_or(0));
        // A chunk has its share of the tokens.
        let tokens = f64::from(record.output_tokens.unwrap_or(0));
        let each = tokens / record.token_ms.len().max(1) as f64;
        record.token_ms.iter().for_each(|at| output[slice(*at)] += each);
    }
    let rate = |slices: &[f64; SLICES]| rate_of_slices(slices, duration_s, seed);
    Throughput { requests: rate(&requests), prompt_tokens: rate(&prompt), output_tokens: rate(&output) }
}

fn rate_of_slices(slices: &[f64; SLICES], duration_s: f64, seed: u64) -> Estimate {
    let total: f64 = slices.iter().sum();
    if duration_s <= 0.0 {
        return Estimate::bare(0.0);
    }
    let mut resampler = Resampler::new(seed);
    let mut row = || {
        let mut drawn = 0.0;
        resampler.draw(SLICES, |slice| drawn += slices[slice]);
        drawn / duration_s
    };
    interval(total / duration_s, (0..Resampler::rows(SLICES)).map(|_| row()).collect())
}

fn goodput(all: &[&RequestRecord], slo: Slo, duration_s: f64, seed: u64) -> Goodput {
    let good = |record: &&RequestRecord| vec![f64::from(u8::from(slo.is_kept_by(record)))];
    let share = summarize(all.iter().map(good), seed).map_or(Estimate::bare(0.0), |summary| summary.mean);
    let per_s = if duration_s > 0.0 { all.len() as f64 / duration_s } else { 0.0 };
    Goodput { slo, share, requests: share.scaled(per_s) }
}

impl Slo {
    /// A whole answer within every limit that is set. An answer of one token has no TPOT to break.
    pub fn is_kept_by(&self, record: &RequestRecord) -> bool {
        let within = |limit: Option<f64>, value: Option<f64>, if_none: bool| match (limit, value) {
            (None, _) => true,
            (Some(limit), Some(value)) => value <= limit,
            (Some(_), None) => if_none,
        };
        record.ending.is_answer()
            && within(self.ttft_ms, record.ttft_ms(), false)
            && within(self.tpot_ms, record.tpot_ms(), true)
            && within(self.e2e_ms, record.e2e_ms(), false)
    }
}

#[cfg(test)]
mod tests;
