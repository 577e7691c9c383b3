//! Figures as a terminal shows them.

use std::fmt::Write;

use baton_workload::result::{Comparison, Ending, Estimate, Load, Point, Summary, Warning};

use super::digest::digest;

/// A point, and what to know about it.
pub(crate) fn point_table(point: &Point, warnings: &[Warning]) -> String {
    let mut text = headline(point);
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(text, "\n  {:<8}{:>24}{:>24}{:>24}{:>24}", "", "mean", "p50", "p90", "p99");
    let rows = [
        ("TTFT ms", point.ttft_ms),
        ("TPOT ms", point.tpot_ms),
        ("ITL ms", point.itl_ms),
        ("E2E ms", point.e2e_ms),
    ];
    for (name, summary) in rows {
        let Some(Summary { mean, p50, p90, p99, .. }) = summary else { continue };
        let cells = [mean, p50, p90, p99].map(estimate);
        let _ = writeln!(text, "  {name:<8}{:>24}{:>24}{:>24}{:>24}", cells[0], cells[1], cells[2], cells[3]);
    }
    let throughput = &point.throughput;
    let _ = writeln!(
        text,
        "  per second: {} requests, {} output tokens, {} prompt tokens",
        estimate(throughput.requests),
        estimate(throughput.output_tokens),
        estimate(throughput.prompt_tokens)
    );
    if let Some(goodput) = &point.goodput {
        let percent = estimate(goodput.share.scaled(100.0));
        let _ = writeln!(
            text,
            "  goodput: {} requests/s, {percent} % within the limits",
            estimate(goodput.requests)
        );
    }
    for scrape in &point.scrapes {
        if let Some(line) = digest(scrape) {
            let _ = writeln!(text, "  {}: {line}", scrape.target);
        }
    }
    for warning in warnings {
        let _ = writeln!(text, "  warning: {}", warning.text);
    }
    text
}

fn headline(point: &Point) -> String {
    let counts = &point.counts;
    let mut line = format!(
        "{}, {}, round {}: {} requests in {:.1} s",
        point.system,
        load(&point.load),
        point.round + 1,
        counts.scheduled,
        point.duration_s
    );
    for (ending, count) in &counts.endings {
        let _ = write!(line, ", {count} {}", word(*ending));
    }
    line
}

fn word(ending: Ending) -> String {
    let name = serde_json::to_value(ending).ok().and_then(|name| name.as_str().map(str::to_owned));
    name.unwrap_or_default().replace('_', " ")
}

fn load(load: &Load) -> String {
    match load {
        Load::Open { rate, arrivals } => format!("{rate} per second ({arrivals})"),
        Load::Trace { time_scale, .. } => format!("arrivals of the trace, {time_scale} times as fast"),
        Load::Closed { concurrency } => format!("{concurrency} clients"),
    }
}

/// The value and its interval.
fn estimate(estimate: Estimate) -> String {
    let value = short(estimate.value);
    match (estimate.low, estimate.high) {
        (Some(low), Some(high)) => format!("{value} ({}..{})", short(low), short(high)),
        _ => value,
    }
}

/// Three digits or so.
fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

pub(crate) fn comparison_table(comparisons: &[Comparison]) -> String {
    let mut text = String::new();
    for comparison in comparisons {
        let Comparison { baseline, candidate, rounds, pairs, unpaired, .. } = comparison;
        let _ = writeln!(
            text,
            "{candidate} by {baseline}, {}: {pairs} pairs in {rounds} rounds, {unpaired} requests without a pair",
            load(&comparison.load)
        );
        let _ = writeln!(
            text,
            "  {:<14}{:>22}{:>22}{:>22}{:>22}{:>22}",
            "ratio", "mean", "p50", "p90", "p99", "pair by pair"
        );
        for ratio in &comparison.ratios {
            let _ = write!(text, "  {:<14}", ratio.figure);
            for cell in [Some(ratio.mean), ratio.p50, ratio.p90, ratio.p99, ratio.pairwise] {
                let _ = write!(text, "{:>22}", cell.map_or_else(|| "-".to_owned(), estimate));
            }
            let _ = writeln!(text);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        for (value, text) in
            [(1234.5, "1234"), (123.4, "123"), (12.34, "12.3"), (1.234, "1.23"), (0.1234, "0.123")]
        {
            assert_eq!(short(value), text);
        }
        assert_eq!(estimate(Estimate { value: 2.0, low: Some(1.0), high: Some(3.0) }), "2.00 (1.00..3.00)");
        assert_eq!(word(Ending::ErrorInStream), "error in stream");
    }
}
