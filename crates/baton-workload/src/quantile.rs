//! Percentiles, exact: the smallest sample with at least that share at or below it ("nearest rank").

/// Of sorted samples; none if there are none.
pub fn nearest_rank(sorted: &[f64], share: f64) -> Option<f64> {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied()
}

/// The same without sorting all of them; reorders the samples.
pub fn select(samples: &mut [f64], share: f64) -> Option<f64> {
    if samples.is_empty() {
        return None;
    }
    let rank = ((share * samples.len() as f64).ceil() as usize).clamp(1, samples.len()) - 1;
    Some(*samples.select_nth_unstable_by(rank, f64::total_cmp).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_the_textbooks() {
        let samples = [15.0, 20.0, 35.0, 40.0, 50.0];
        for (share, value) in [(0.05, 15.0), (0.3, 20.0), (0.4, 20.0), (0.5, 35.0), (1.0, 50.0), (0.0, 15.0)]
        {
            assert_eq!(nearest_rank(&samples, share), Some(value), "{share}");
            assert_eq!(select(&mut [50.0, 15.0, 40.0, 20.0, 35.0], share), Some(value), "{share}");
        }
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(nearest_rank(&hundred, 0.99), Some(99.0));
        assert_eq!((nearest_rank(&[], 0.5), select(&mut [], 0.5)), (None, None));
    }
}
