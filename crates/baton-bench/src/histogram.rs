//! Histograms of a metrics page: what they took in between two looks at it.

use std::collections::BTreeMap;

use baton_workload::result::Histogram;

/// A histogram as a page shows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Buckets {
    /// How many samples are at or below each bound, the bounds as they are written.
    below: BTreeMap<String, f64>,
    pub sum: f64,
}

impl Buckets {
    /// `count` samples are at or below `bound`, which reads `+Inf` for all.
    pub fn add(&mut self, bound: &str, count: f64) {
        self.below.insert(bound.to_owned(), count);
    }

    /// What was taken in since `before`; none if nothing was.
    pub fn since(&self, before: Option<&Self>) -> Option<Histogram> {
        let earlier = |bound: &String| before.and_then(|before| before.below.get(bound)).copied();
        let grew = |(bound, count): (&String, &f64)| {
            let at: f64 = bound.parse().ok()?;
            Some((at, count - earlier(bound).unwrap_or(0.0)))
        };
        let mut below: Vec<(f64, f64)> = self.below.iter().filter_map(grew).collect();
        below.sort_by(|a, b| a.0.total_cmp(&b.0));
        let count = below.last()?.1;
        if count < 1.0 || below.windows(2).any(|pair| pair[1].1 < pair[0].1) {
            // Nothing, or the counts of a process that began anew.
            return None;
        }
        let quantile = |q: f64| quantile(&below, q * count);
        Some(Histogram {
            count: count as u64,
            mean: (self.sum - before.map_or(0.0, |before| before.sum)) / count,
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
        })
    }
}

/// Where the `rank`th sample is, as if those of each bucket lay evenly in it; the last bound for those above it.
fn quantile(below: &[(f64, f64)], rank: f64) -> f64 {
    let (mut low, mut counted) = (0.0, 0.0);
    for &(bound, count) in below {
        if count >= rank && count > counted {
            return if bound.is_finite() {
                low + (bound - low) * (rank - counted) / (count - counted)
            } else {
                low
            };
        }
        (low, counted) = (bound, count);
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buckets(counts: &[(&str, f64)], sum: f64) -> Buckets {
        let mut buckets = Buckets { sum, ..Buckets::default() };
        counts.iter().for_each(|(bound, count)| buckets.add(bound, *count));
        buckets
    }

    #[test]
    fn what_came_between_two_looks_is_told_apart_from_what_was_there() {
        let before = buckets(&[("0.001", 10.0), ("0.01", 10.0), ("+Inf", 10.0)], 0.005);
        let after = buckets(&[("0.001", 10.0), ("0.01", 100.0), ("+Inf", 110.0)], 1.005);
        let grown = after.since(Some(&before)).unwrap();
        assert!(grown.count == 100 && (grown.mean - 0.01).abs() < 1e-12, "{grown:?}");
        // 90 lie between 1 and 10 ms, evenly as far as is known, and ten above.
        assert!((grown.p50 - (0.001 + 0.009 * 50.0 / 90.0)).abs() < 1e-12, "{grown:?}");
        assert!((grown.p90 - 0.01).abs() < 1e-12);
        assert_eq!(grown.p99, 0.01, "the last bound");
        assert_eq!(after.since(None).unwrap().count, 110);
    }

    #[test]
    fn no_growth_and_a_new_process_tell_nothing() {
        let page = buckets(&[("1", 3.0), ("+Inf", 5.0)], 9.0);
        assert_eq!(page.since(Some(&page)), None);
        assert_eq!(buckets(&[("1", 9.0), ("+Inf", 4.0)], 1.0).since(None), None);
        assert_eq!(Buckets::default().since(None), None);
    }
}
