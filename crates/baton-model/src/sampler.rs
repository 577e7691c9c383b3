//! How the next token is chosen from logits.
//!
//! The choice is a function of the logits, the parameters and the position alone: randomness is a hash of seed and position, so
//! that neither batching, preemption nor a hand-off between engines changes it (I7).

use std::cmp::Ordering;

use baton_types::{SamplingParams, TokenId};

/// Candidates sorted at first: nearly always enough for `top_p`, and much less than a vocabulary.
const FIRST_CANDIDATES: usize = 1024;

/// The token at `position`, given the logits after the position before it. With equal logits the lowest id wins.
///
/// # Panics
/// If there are no logits.
pub fn sample(logits: &[f32], params: &SamplingParams, position: u32) -> TokenId {
    assert!(!logits.is_empty(), "a vocabulary has tokens");
    let best = (0..logits.len()).min_by(|&a, &b| by_rank(logits, a, b)).unwrap_or(0);
    if params.is_greedy() || !logits[best].is_finite() {
        return TokenId(best as u32);
    }
    let weight = |id: usize| (f64::from(logits[id] - logits[best]) / f64::from(params.temperature)).exp();
    let kept = candidates(logits, params, weight);
    let total: f64 = kept.iter().map(|&id| weight(id)).sum();
    let mut left = uniform(params.seed, position) * total;
    for &id in &kept {
        left -= weight(id);
        if left < 0.0 {
            return TokenId(id as u32);
        }
    }
    // Rounding may leave a little: the last candidate's.
    TokenId(kept.last().copied().unwrap_or(best) as u32)
}

/// The ids that `top_k` and `top_p` leave. In order of rank where either cuts, else in order of id.
fn candidates(logits: &[f32], params: &SamplingParams, weight: impl Fn(usize) -> f64) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..logits.len()).collect();
    let top_k = match params.top_k as usize {
        0 => ids.len(),
        k => k.min(ids.len()),
    };
    if top_k == ids.len() && params.top_p >= 1.0 {
        return ids;
    }
    keep_best(logits, &mut ids, top_k);
    if params.top_p >= 1.0 {
        ids.sort_unstable_by(|&a, &b| by_rank(logits, a, b));
        return ids;
    }
    let total: f64 = ids.iter().map(|&id| weight(id)).sum();
    let mut sorted = ids.clone();
    keep_best(logits, &mut sorted, FIRST_CANDIDATES);
    for ids in [sorted, ids] {
        let mut ids = ids;
        ids.sort_unstable_by(|&a, &b| by_rank(logits, a, b));
        let mut sum = 0.0;
        for (n, &id) in ids.iter().enumerate() {
            sum += weight(id);
            if sum >= f64::from(params.top_p) * total {
                ids.truncate(n + 1);
                return ids;
            }
        }
    }
    // Rounding kept the sum below: all of them. At least the best id is there.
    keep_best(logits, &mut (0..logits.len()).collect(), top_k)
}

/// Leaves the `n` best ids, in no order.
fn keep_best(logits: &[f32], ids: &mut Vec<usize>, n: usize) -> Vec<usize> {
    if n < ids.len() && n > 0 {
        ids.select_nth_unstable_by(n - 1, |&a, &b| by_rank(logits, a, b));
        ids.truncate(n);
    }
    ids.clone()
}

/// Better first: the larger logit, then the lower id. NaN is the worst.
fn by_rank(logits: &[f32], a: usize, b: usize) -> Ordering {
    let key = |id: usize| if logits[id].is_nan() { f32::NEG_INFINITY } else { logits[id] };
    key(b).partial_cmp(&key(a)).unwrap_or(Ordering::Equal).then(a.cmp(&b))
}

/// A number in `0..1` that seed and position determine.
fn uniform(seed: u64, position: u32) -> f64 {
    // SplitMix64's finaliser, twice, so that neighbouring seeds and positions have nothing to do with one another.
    let mix = |mut x: u64| {
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    let bits = mix(mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)).wrapping_add(u64::from(position)));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(temperature: f32, top_k: u32, top_p: f32, seed: u64) -> SamplingParams {
        SamplingParams { temperature, top_k, top_p, seed }
    }

    fn counts(logits: &[f32], make: impl Fn(u64) -> SamplingParams) -> Vec<usize> {
        let mut counts = vec![0; logits.len()];
        for seed in 0..4_000 {
            counts[sample(logits, &make(seed), 7).0 as usize] += 1;
        }
        counts
    }

    #[test]
    fn greedy_takes_the_largest_and_the_lowest_id_of_equals() {
        assert_eq!(sample(&[1.0, 3.0, 2.0, 3.0], &SamplingParams::GREEDY, 0), TokenId(1));
        assert_eq!(sample(&[f32::NAN, -3.0, -2.0], &SamplingParams::GREEDY, 0), TokenId(2));
    }

    #[test]
    fn frequencies_follow_the_probabilities() {
        let logits = [0.0, 2.0f32.ln(), 4.0f32.ln(), 1.0f32.ln()];
        let counts = counts(&logits, |seed| params(1.0, 0, 1.0, seed));
        for (count, want) in counts.iter().zip([500.0, 1_000.0, 2_000.0, 500.0]) {
            assert!((*count as f64 - want).abs() < 130.0, "{counts:?}");
        }
    }

    #[test]
    fn top_k_and_top_p_cut_the_tail() {
        let logits = [0.0, 2.0f32.ln(), 4.0f32.ln(), 1.0f32.ln()];
        let k = counts(&logits, |seed| params(1.0, 2, 1.0, seed));
        assert!(k[0] == 0 && k[3] == 0 && k[1] > 0 && k[2] > 0, "{k:?}");
        // 4/8 is not yet 0.6, 6/8 is.
        let p = counts(&logits, |seed| params(1.0, 0, 0.6, seed));
        assert!(p[0] == 0 && p[3] == 0 && p[1] > 0 && p[2] > 0, "{p:?}");
        let one = counts(&logits, |seed| params(1.0, 0, 0.5, seed));
        assert_eq!(one[2], 4_000);
    }

    #[test]
    fn a_long_flat_tail_is_sorted_as_a_whole() {
        let logits = vec![0.0f32; 5_000];
        let highest = (0..500).map(|seed| sample(&logits, &params(1.0, 0, 0.9, seed), 3).0).max().unwrap();
        assert!((4_000..4_501).contains(&highest), "{highest}");
    }

    #[test]
    fn seed_and_position_decide() {
        let logits = vec![0.0f32; 1_000];
        let draw = |seed, position| sample(&logits, &params(1.0, 0, 1.0, seed), position);
        assert_eq!(draw(1, 2), draw(1, 2));
        assert!(draw(1, 2) != draw(1, 3) && draw(1, 2) != draw(2, 2));
    }
}
