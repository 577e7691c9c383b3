//! Two systems that were sent the same requests: ratios pair by pair, so that what differs between requests does not count.

use std::collections::BTreeMap;

use crate::quantile::select;
use crate::resample::{FEWEST_BEYOND, FEWEST_UNITS, Resampler, interval};
use crate::result::{Comparison, Estimate, Load, Ratio, RequestRecord};

/// What both systems did in one round at one load.
#[derive(Clone, Copy, Debug)]
pub struct Round<'a> {
    pub baseline: &'a [RequestRecord],
    pub candidate: &'a [RequestRecord],
    /// Output tokens per second.
    pub baseline_rate: f64,
    pub candidate_rate: f64,
}

/// The same figure of the same request on both sides.
#[derive(Clone, Copy, Debug)]
struct Pair {
    baseline: f64,
    candidate: f64,
}

type Figure = (&'static str, fn(&RequestRecord) -> Option<f64>);

const FIGURES: [Figure; 3] = [
    ("ttft_ms", RequestRecord::ttft_ms),
    ("tpot_ms", RequestRecord::tpot_ms),
    ("e2e_ms", RequestRecord::e2e_ms),
];
const SHARES: [f64; 3] = [0.5, 0.9, 0.99];

pub fn compare(baseline: &str, candidate: &str, load: Load, rounds: &[Round<'_>], seed: u64) -> Comparison {
    let matched: Vec<Vec<(&RequestRecord, &RequestRecord)>> = rounds.iter().map(match_up).collect();
    let pairs: usize = matched.iter().map(Vec::len).sum();
    let sent = |round: &Round<'_>| round.baseline.len().max(round.candidate.len());
    let mut ratios = Vec::new();
    for (name, figure) in FIGURES {
        let of_pair = |(a, b): &(&RequestRecord, &RequestRecord)| {
            Some(Pair { baseline: figure(a)?, candidate: figure(b)? }).filter(|pair| pair.baseline > 0.0)
        };
        let rounds: Vec<Vec<Pair>> =
            matched.iter().map(|round| round.iter().filter_map(of_pair).collect()).collect();
        ratios.extend(ratio(name, &rounds, seed));
    }
    ratios.extend(throughput(rounds, seed));
    Comparison {
        baseline: baseline.to_owned(),
        candidate: candidate.to_owned(),
        load,
        rounds: rounds.len() as u32,
        pairs: pairs as u64,
        unpaired: (rounds.iter().map(sent).sum::<usize>() - pairs) as u64,
        ratios,
    }
}

/// The requests that both answered, by their index.
fn match_up<'a>(round: &Round<'a>) -> Vec<(&'a RequestRecord, &'a RequestRecord)> {
    let answered = |records: &'a [RequestRecord]| records.iter().filter(|record| record.ending.is_answer());
    let candidates: BTreeMap<u64, &RequestRecord> =
        answered(round.candidate).map(|record| (record.index, record)).collect();
    let mut pairs: Vec<_> = answered(round.baseline)
        .filter_map(|record| Some((record, *candidates.get(&record.index)?)))
        .collect();
    pairs.sort_by(|(a, _), (b, _)| a.scheduled_ms.total_cmp(&b.scheduled_ms).then(a.index.cmp(&b.index)));
    pairs
}

/// None if there is no pair.
fn ratio(figure: &str, rounds: &[Vec<Pair>], seed: u64) -> Option<Ratio> {
    let rounds: Vec<&Vec<Pair>> = rounds.iter().filter(|round| !round.is_empty()).collect();
    let all: Vec<Pair> = rounds.iter().flat_map(|round| round.iter().copied()).collect();
    let value = Ratios::of(&all)?;
    let mut rows = Vec::new();
    if all.len() >= FEWEST_UNITS {
        let mut resampler = Resampler::new(seed);
        let mut drawn = Vec::with_capacity(all.len());
        // Each row sorts more than once.
        for _ in 0..Resampler::rows(all.len() * 20) {
            draw(&mut resampler, &rounds, &mut drawn);
            rows.extend(Ratios::of(&drawn));
        }
    }
    let estimate = |of: fn(&Ratios) -> f64| interval(of(&value), rows.iter().map(of).collect());
    let percentile = |i: usize, of: fn(&Ratios) -> f64| {
        // 1.0 - 0.9 is a little less than a tenth.
        let enough = (1.0 - SHARES[i]) * all.len() as f64 + 1e-9 >= FEWEST_BEYOND;
        Some(if enough { estimate(of) } else { Estimate::bare(of(&value)) })
    };
    Some(Ratio {
        figure: figure.to_owned(),
        mean: estimate(|ratios| ratios.mean),
        p50: percentile(0, |ratios| ratios.percentiles[0]),
        p90: percentile(1, |ratios| ratios.percentiles[1]),
        p99: percentile(2, |ratios| ratios.percentiles[2]),
        pairwise: Some(estimate(|ratios| ratios.pairwise)),
    })
}

/// Rounds are drawn, and in each of them its pairs: rounds differ by more than their requests.
fn draw(resampler: &mut Resampler, rounds: &[&Vec<Pair>], drawn: &mut Vec<Pair>) {
    drawn.clear();
    let mut chosen = Vec::with_capacity(rounds.len());
    resampler.draw_alone(rounds.len(), |round| chosen.push(round));
    for round in chosen {
        let pairs = rounds[round];
        resampler.draw(pairs.len(), |pair| drawn.push(pairs[pair]));
    }
}

struct Ratios {
    mean: f64,
    percentiles: [f64; 3],
    pairwise: f64,
}

impl Ratios {
    fn of(pairs: &[Pair]) -> Option<Self> {
        let mut baseline: Vec<f64> = pairs.iter().map(|pair| pair.baseline).collect();
        let mut candidate: Vec<f64> = pairs.iter().map(|pair| pair.candidate).collect();
        let mut each: Vec<f64> = pairs.iter().map(|pair| pair.candidate / pair.baseline).collect();
        let mean = candidate.iter().sum::<f64>() / baseline.iter().sum::<f64>();
        let pairwise = select(&mut each, 0.5)?;
        let percentiles = SHARES.map(|share| {
            select(&mut candidate, share).unwrap_or(f64::NAN)
                / select(&mut baseline, share).unwrap_or(f64::NAN)
        });
        Some(Self { mean, percentiles, pairwise })
    }
}

fn throughput(rounds: &[Round<'_>], seed: u64) -> Option<Ratio> {
    let rates: Vec<Pair> = rounds
        .iter()
        .map(|round| Pair { baseline: round.baseline_rate, candidate: round.candidate_rate })
        .filter(|pair| pair.baseline > 0.0)
        .collect();
    let of = |pairs: &mut dyn Iterator<Item = Pair>| {
        let (a, b) = pairs.fold((0.0, 0.0), |(a, b), pair| (a + pair.baseline, b + pair.candidate));
        b / a
    };
    if rates.is_empty() {
        return None;
    }
    let value = of(&mut rates.iter().copied());
    let mut mean = Estimate::bare(value);
    // A round is one sample of a rate.
    if rates.len() >= FEWEST_UNITS {
        let mut resampler = Resampler::new(seed);
        let row = |_| {
            let mut drawn = Vec::new();
            resampler.draw_alone(rates.len(), |round| drawn.push(rates[round]));
            of(&mut drawn.into_iter())
        };
        mean = interval(value, (0..Resampler::rows(rates.len())).map(row).collect());
    }
    Some(Ratio { figure: "output_tokens".to_owned(), mean, p50: None, p90: None, p99: None, pairwise: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Ending;

    const LOAD: Load = Load::Closed { concurrency: 1 };

    fn answered(index: u64, ttft_ms: f64) -> RequestRecord {
        RequestRecord {
            index,
            scheduled_ms: index as f64,
            token_ms: vec![index as f64 + ttft_ms, index as f64 + ttft_ms + 10.0],
            output_tokens: Some(2),
            ending: Ending::Complete,
            ..RequestRecord::default()
        }
    }

    fn round<'a>(baseline: &'a [RequestRecord], candidate: &'a [RequestRecord]) -> Round<'a> {
        Round { baseline, candidate, baseline_rate: 10.0, candidate_rate: 12.0 }
    }

    /// TTFTs from 1 to 1,000: far wider than what differs between the systems.
    fn side(factor: f64, noise: u64) -> Vec<RequestRecord> {
        let wobble = |i: u64| 1.0 + 0.02 * ((i * 7919 + noise * 104_729) % 13) as f64 / 13.0;
        (0..200).map(|i| answered(i, (1.0 + (i * 611 % 1000) as f64) * factor * wobble(i))).collect()
    }

    #[test]
    fn a_small_difference_shows_although_requests_differ_by_much() {
        let (a, b) = (side(1.0, 1), side(0.9, 2));
        let comparison = compare("pull", "push", LOAD, &[round(&a, &b), round(&a, &b)], 1);
        assert_eq!((comparison.pairs, comparison.unpaired, comparison.rounds), (400, 0, 2));
        let ttft = &comparison.ratios[0];
        let pairwise = ttft.pairwise.unwrap();
        assert!((pairwise.value - 0.9).abs() < 0.01, "{pairwise:?}");
        assert!(pairwise.low > Some(0.88) && pairwise.high < Some(0.92), "{pairwise:?}");
        assert!((ttft.mean.value - 0.9).abs() < 0.01 && ttft.mean.high < Some(0.95), "{:?}", ttft.mean);
        assert!(ttft.p99.unwrap().low.is_some());
        let tpot = comparison.ratios.iter().find(|ratio| ratio.figure == "tpot_ms").unwrap();
        assert!((tpot.mean.value - 1.0).abs() < 1e-6);
        let tokens = comparison.ratios.last().unwrap();
        assert_eq!((tokens.figure.as_str(), tokens.mean), ("output_tokens", Estimate::bare(1.2)));
    }

    #[test]
    fn rounds_that_disagree_widen_the_interval() {
        let (a, quick, slow) = (side(1.0, 1), side(0.8, 2), side(1.2, 3));
        let comparison = compare("a", "b", LOAD, &[round(&a, &quick), round(&a, &slow)], 1);
        let mean = comparison.ratios[0].mean;
        assert!(mean.low < Some(0.85) && mean.high > Some(1.15), "{mean:?}");
    }

    #[test]
    fn only_what_both_answered_is_compared() {
        let (mut a, mut b) = (side(1.0, 1), side(1.0, 1));
        a[3].ending = Ending::Cut;
        b[7].ending = Ending::Unfinished;
        // The order in which answers ended is nobody's concern.
        b.reverse();
        let comparison = compare("a", "b", LOAD, &[round(&a, &b)], 1);
        assert_eq!((comparison.pairs, comparison.unpaired), (198, 2));
        assert_eq!(
            comparison.ratios[0].pairwise,
            Some(Estimate { value: 1.0, low: Some(1.0), high: Some(1.0) })
        );
        assert!(
            compare("a", "b", LOAD, &[round(&a, &[])], 1).ratios.iter().all(|r| r.figure == "output_tokens")
        );
    }
}
