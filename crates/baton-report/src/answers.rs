//! The requests of one measurement, as much of them as a report needs: a run may have more than memory holds.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use baton_workload::result::{Ending, RequestRecord};

use crate::distribution::Histogram;

/// What stays of every answer.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    pub ttft_ms: Option<f64>,
    pub tpot_ms: Option<f64>,
    pub e2e_ms: Option<f64>,
    pub prompt_tokens: Option<u32>,
    pub output_tokens: Option<u32>,
}

/// The requests of one load on one system, over all rounds.
#[derive(Debug, Default)]
pub struct Answers {
    /// Those that were answered.
    pub all: Vec<Answer>,
    /// Between chunks, over all answers.
    pub itl: Histogram,
    /// Read, answered or not.
    pub requests: u64,
    slowest: BinaryHeap<Reverse<Ranked>>,
    sample: BinaryHeap<Ranked>,
}

/// A record that is kept whole, by what it was kept for.
#[derive(Debug)]
struct Ranked {
    rank: u64,
    record: Box<RequestRecord>,
}

/// Requests of each measurement that are shown one by one: those that took longest, and some that stand for all.
pub const SLOWEST: usize = 12;
pub const SAMPLE: usize = 16;

impl Answers {
    /// `sampled` is whether the request may stand for others: one round is enough to draw from.
    pub fn add(&mut self, record: RequestRecord, sampled: bool) {
        self.requests += 1;
        if record.ending.is_answer() {
            self.all.push(Answer {
                ttft_ms: record.ttft_ms(),
                tpot_ms: record.tpot_ms(),
                e2e_ms: record.e2e_ms(),
                prompt_tokens: record.prompt_tokens,
                output_tokens: record.output_tokens,
            });
            record.itl_ms().for_each(|gap| self.itl.add(gap));
        }
        // Of equal indices in every measurement, so that the same request can be looked at beside itself.
        let rank = scattered(record.index);
        let in_sample = sampled
            && (self.sample.len() < SAMPLE || self.sample.peek().is_some_and(|last| rank < last.rank));
        if in_sample {
            self.sample.push(Ranked { rank, record: Box::new(record.clone()) });
            if self.sample.len() > SAMPLE {
                self.sample.pop();
            }
        }
        let Some(taken) = time_taken(&record) else { return };
        // Positive floats are ordered as their bits are.
        let rank = taken.max(0.0).to_bits();
        if self.slowest.len() < SLOWEST || self.slowest.peek().is_some_and(|Reverse(last)| rank > last.rank) {
            self.slowest.push(Reverse(Ranked { rank, record: Box::new(record) }));
            if self.slowest.len() > SLOWEST {
                self.slowest.pop();
            }
        }
    }

    /// Longest first.
    pub fn slowest(&self) -> Vec<&RequestRecord> {
        let mut kept: Vec<&Ranked> = self.slowest.iter().map(|Reverse(ranked)| ranked).collect();
        kept.sort_unstable_by(|a, b| b.cmp(a));
        kept.into_iter().map(|ranked| &*ranked.record).collect()
    }

    /// In the order of the workload.
    pub fn sample(&self) -> Vec<&RequestRecord> {
        let mut kept: Vec<&RequestRecord> = self.sample.iter().map(|ranked| &*ranked.record).collect();
        kept.sort_unstable_by_key(|record| (record.index, record.point));
        kept
    }
}

/// Milliseconds from when it should have been sent until it was over; none for what was never over.
fn time_taken(record: &RequestRecord) -> Option<f64> {
    let over = record.done_ms.or(record.token_ms.last().copied())?;
    (record.ending != Ending::Unfinished).then_some(over - record.scheduled_ms)
}

/// Spreads numbers that lie close together (the finaliser of SplitMix64).
fn scattered(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Ranked {
    fn key(&self) -> (u64, u64, u32) {
        (self.rank, self.record.index, self.record.point)
    }
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Ranked {}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(index: u64, taken_ms: f64, ending: Ending) -> RequestRecord {
        RequestRecord {
            index,
            done_ms: Some(taken_ms),
            token_ms: vec![taken_ms],
            ending,
            ..RequestRecord::default()
        }
    }

    #[test]
    fn the_slowest_and_the_same_sample_stay() {
        let mut quick = Answers::default();
        let mut slow = Answers::default();
        for index in 0..1000_u64 {
            quick.add(record(index, 1000.0 - index as f64, Ending::Complete), true);
            slow.add(record(index, 5000.0 + index as f64, Ending::Complete), true);
            // Another round: never drawn from, but its slow ones count.
            slow.add(record(index, 1.0, Ending::Complete), false);
        }
        let indices = |records: Vec<&RequestRecord>| records.iter().map(|r| r.index).collect::<Vec<_>>();
        assert_eq!(indices(quick.slowest()), (0..SLOWEST as u64).collect::<Vec<_>>());
        assert_eq!(indices(slow.slowest()), (1000 - SLOWEST as u64..1000).rev().collect::<Vec<_>>());
        assert_eq!(indices(quick.sample()), indices(slow.sample()));
        assert_eq!(quick.sample().len(), SAMPLE);
        assert!(indices(quick.sample()).windows(2).all(|pair| pair[1] - pair[0] < 400));
        assert_eq!((slow.requests, slow.all.len()), (2000, 2000));
    }

    #[test]
    fn what_failed_has_no_latency() {
        let mut answers = Answers::default();
        answers.add(record(0, 5.0, Ending::Cut), true);
        answers.add(record(1, f64::NAN, Ending::Unfinished), true);
        assert_eq!((answers.requests, answers.all.len(), answers.itl.len()), (2, 0, 0));
        assert_eq!((answers.slowest().len(), answers.sample().len()), (1, 2));
    }
}
