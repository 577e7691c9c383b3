//! Prometheus' text format, as far as it is needed: names with labels, values, and which of them only grow.

use std::collections::{BTreeMap, BTreeSet};

use crate::histogram::Buckets;

/// One look at a server's metrics. Names include their labels.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Exposition {
    pub gauges: BTreeMap<String, f64>,
    pub counters: BTreeMap<String, f64>,
    pub histograms: BTreeMap<String, Buckets>,
}

/// What is kept of a page; more is not a page of a serving engine.
const MAX_SERIES: usize = 5_000;

/// About the process or its language, not about what it serves.
const LEFT_OUT: [&str; 4] = ["process_", "python_", "http_", "go_"];

impl Exposition {
    /// Lines that make no sense are skipped: other servers' pages are not this program's to correct.
    pub fn read(text: &str) -> Self {
        let mut exposition = Self::default();
        let mut growing = BTreeSet::new();
        let mut histograms = BTreeSet::new();
        let mut buckets = 0;
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                match rest.split_once(' ') {
                    Some((name, "counter")) => drop(growing.insert(name)),
                    Some((name, "histogram" | "summary")) => drop(histograms.insert(name)),
                    _ => {}
                }
                continue;
            }
            let Some((series, value)) = read_line(line) else { continue };
            let name = series.split('{').next().unwrap_or(series);
            if LEFT_OUT.iter().any(|prefix| name.starts_with(prefix))
                || exposition.gauges.len() + exposition.counters.len() + buckets >= MAX_SERIES
            {
                continue;
            }
            let base_before =
                |suffix: &str| name.strip_suffix(suffix).filter(|base| histograms.contains(base));
            let (sum, bucket) = (base_before("_sum"), base_before("_bucket"));
            if let Some(base) = sum {
                let labels = &series[name.len()..];
                exposition.histograms.entry(format!("{base}{labels}")).or_default().sum = value;
            }
            if let Some((histogram, bound)) = bucket.and_then(|base| split_bound(base, &series[name.len()..]))
            {
                exposition.histograms.entry(histogram).or_default().add(&bound, value);
                buckets += 1;
            } else if growing.contains(name) || sum.is_some() || base_before("_count").is_some() {
                exposition.counters.insert(series.to_owned(), value);
            } else if bucket.is_none() && !histograms.contains(name) {
                exposition.gauges.insert(series.to_owned(), value);
            }
        }
        exposition
    }
}

/// The series of a bucket without its bound, and the bound.
fn split_bound(base: &str, labels: &str) -> Option<(String, String)> {
    let labels = labels.strip_prefix('{')?.strip_suffix('}')?;
    let (before, rest) = labels.split_once("le=\"")?;
    let (bound, after) = rest.split_once('"')?;
    let others = format!("{before}{}", after.trim_start_matches(','));
    let others = others.trim_end_matches(',');
    let series = if others.is_empty() { base.to_owned() } else { format!("{base}{{{others}}}") };
    Some((series, bound.to_owned()))
}

/// `name{labels} value`, perhaps with a timestamp behind.
fn read_line(line: &str) -> Option<(&str, f64)> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    // Labels may hold blanks.
    let end = line.rfind('}').map_or_else(|| line.find(' '), |brace| Some(brace + 1))?;
    let (series, rest) = line.split_at(end);
    let value = rest.split_whitespace().next()?.parse().ok().filter(|value: &f64| value.is_finite())?;
    Some((series, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauges_counters_and_totals_are_told_apart() {
        let page = "# HELP a A thing.\n# TYPE a gauge\na{x=\"1 2}\",y=\"\"} 4\n# TYPE b_total counter\nb_total 7 1700000\n\
            # TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 2\nh_sum 3.5\nh_count 2\nuntyped 1e3\nprocess_cpu 3\nbad\nnan NaN\n";
        let read = Exposition::read(page);
        let gauges: Vec<_> = read.gauges.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        assert_eq!(gauges, [("a{x=\"1 2}\",y=\"\"}", 4.0), ("untyped", 1000.0)]);
        let counters: Vec<_> = read.counters.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        assert_eq!(counters, [("b_total", 7.0), ("h_count", 2.0), ("h_sum", 3.5)]);
        assert_eq!(read.histograms["h"].since(None).unwrap().mean, 1.75);
    }

    #[test]
    fn histograms_are_told_apart_by_their_labels() {
        let page = "# TYPE h histogram\nh_bucket{a=\"x\",le=\"1\"} 2\nh_bucket{le=\"1\",a=\"y\"} 3\nh_sum{a=\"x\"} 1\n";
        let read = Exposition::read(page);
        let names: Vec<_> = read.histograms.keys().map(String::as_str).collect();
        assert_eq!(names, ["h{a=\"x\"}", "h{a=\"y\"}"]);
        assert_eq!(read.histograms["h{a=\"x\"}"].sum, 1.0);
    }
}
