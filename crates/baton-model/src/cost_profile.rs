//! How long a step takes on some hardware: a fit to measurements, as plain data.

use std::time::Duration;

use baton_engine::Batch;
use serde::{Deserialize, Serialize};

/// A step's time. Prompt tokens up to position `n` cost `fixed + a n + b n^2` in all, so that chunks add up to the whole; a
/// decode step costs a base, something per sequence, and something per token of context that it reads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CostProfile {
    pub prefill: PrefillCost,
    pub decode: DecodeCost,
}

/// The prompt's share of a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PrefillCost {
    /// Of each step with prompt tokens.
    pub fixed_us: f64,
    pub per_token_us: f64,
    /// Of attention: per token and token before it, halved.
    pub per_token2_ns: f64,
}

/// The generated tokens' share of a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecodeCost {
    /// Of each step with generated tokens.
    pub base_us: f64,
    pub per_seq_us: f64,
    /// Per token of context, over all sequences.
    pub per_ctx_token_ns: f64,
}

/// The named profiles, and where each comes from.
const PROFILES: [(&str, CostProfile); 5] = [
    // No time at all: tests.
    ("instant", profile([0.0, 0.0, 0.0], [0.0, 0.0, 0.0])),
    // Invented: fast enough for demos and tests in real time, slow enough that overlap shows.
    ("tiny", profile([500.0, 10.0, 0.1], [1_000.0, 20.0, 1.0])),
    // Qwen3-32B, bf16, TP 8 on H200, published: prefill 43 / 165 / 346 / 555 ms at 2k / 8k / 16k / 24k tokens; decode
    // 5.0-5.4 ms (one sequence, 1k-16k) and 5.2-6.4 ms (eight). Least squares over those four gives the second row.
    ("qwen3-32b-tp8", profile([5_000.0, 18.8, 0.15], [5_117.0, 0.0, 10.0])),
    // The same, but decode reads 16,384 tokens of context for every 1,888: as long a step with 8.7 times less KV to move and keep.
    ("qwen3-32b-tp8-long", profile([5_000.0, 18.8, 0.15], [5_117.0, 0.0, 86.78])),
    // GLM-5, FP8, TP 8 on H200, published: prefill 299 / 1,026 / 2,059 / 2,643 ms at 2k / 8k / 16k / 20k; decode with two
    // sequences 23.5-24.4 ms.
    ("glm-5-tp8", profile([77_000.0, 107.0, 0.9], [23_400.0, 0.0, 27.0])),
];

const fn profile(prefill: [f64; 3], decode: [f64; 3]) -> CostProfile {
    CostProfile {
        prefill: PrefillCost { fixed_us: prefill[0], per_token_us: prefill[1], per_token2_ns: prefill[2] },
        decode: DecodeCost { base_us: decode[0], per_seq_us: decode[1], per_ctx_token_ns: decode[2] },
    }
}

impl CostProfile {
    /// The profile of that name, if there is one.
    pub fn named(name: &str) -> Option<Self> {
        PROFILES.iter().find(|(known, _)| *known == name).map(|(_, profile)| *profile)
    }

    /// The names that [`CostProfile::named`] knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PROFILES.iter().map(|(name, _)| *name)
    }

    /// How long `batch` takes. A step that holds both kinds pays the larger of the two fixed costs, since the weights are
    /// read once.
    pub fn step_time(&self, batch: &Batch) -> Duration {
        let (mut prompt_us, mut decode_us) = (0.0, 0.0);
        let (mut any_prompt, mut any_decode) = (false, false);
        for entry in &batch.entries {
            let (start, end) = (f64::from(entry.start), entry.end() as f64);
            if entry.tokens.len() == 1 && entry.start > 0 {
                any_decode = true;
                decode_us += self.decode.per_seq_us + self.decode.per_ctx_token_ns * end / 1e3;
            } else {
                any_prompt = true;
                prompt_us += self.prefill.per_token_us * (end - start)
                    + self.prefill.per_token2_ns * (end * end - start * start) / 1e3;
            }
        }
        let fixed_us = f64::max(
            if any_prompt { self.prefill.fixed_us } else { 0.0 },
            if any_decode { self.decode.base_us } else { 0.0 },
        );
        Duration::from_nanos(((fixed_us + prompt_us + decode_us) * 1e3).round() as u64)
    }
}

#[cfg(test)]
mod tests {
    use baton_engine::BatchEntry;
    use baton_types::{SeqId, TokenId};

    use super::*;

    fn batch(entries: &[(u32, usize)]) -> Batch {
        let entry = |&(start, len): &(u32, usize)| BatchEntry {
            seq: SeqId(0),
            tokens: vec![TokenId(0); len],
            start,
            table: Vec::new(),
            sample: None,
        };
        Batch { step: 0, entries: entries.iter().map(entry).collect() }
    }

    #[test]
    fn fitted_profiles_give_the_published_times() {
        let profile = CostProfile::named("qwen3-32b-tp8").unwrap();
        let ms = |entries: &[(u32, usize)]| profile.step_time(&batch(entries)).as_secs_f64() * 1e3;
        for (tokens, published) in [(2_048, 43.0), (8_192, 165.0), (16_384, 346.0), (24_576, 555.0)] {
            assert!((ms(&[(0, tokens)]) / published - 1.0).abs() < 0.05, "{tokens}");
        }
        let glm = CostProfile::named("glm-5-tp8").unwrap();
        for (tokens, published) in [(2_048, 299.0), (8_192, 1_026.0), (16_384, 2_059.0), (20_480, 2_643.0)] {
            let ms = glm.step_time(&batch(&[(0, tokens)])).as_secs_f64() * 1e3;
            assert!((ms / published - 1.0).abs() < 0.05, "{tokens}");
        }
        for (seqs, context, published) in
            [(1, 1_023, 5.0), (1, 16_383, 5.4), (8, 1_023, 5.2), (8, 16_383, 6.4)]
        {
            assert!((ms(&vec![(context, 1); seqs]) / published - 1.0).abs() < 0.05, "{seqs} {context}");
        }
    }

    #[test]
    fn chunks_cost_the_whole_and_one_fixed_cost_each() {
        let profile = CostProfile::named("qwen3-32b-tp8").unwrap();
        let us = |entries: &[(u32, usize)]| profile.step_time(&batch(entries)).as_secs_f64() * 1e6;
        let parts = us(&[(0, 512)]) + us(&[(512, 512)]) - profile.prefill.fixed_us;
        assert!((us(&[(0, 1_024)]) - parts).abs() < 0.01);
        assert_eq!(us(&[]), 0.0);
        assert!(CostProfile::names().all(|name| CostProfile::named(name).is_some()));
    }
}
