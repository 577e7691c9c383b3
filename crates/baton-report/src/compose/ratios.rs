//! Systems side by side: the ratios of `baton bench compare`.

use baton_workload::result::{Comparison, Estimate, Ratio};

use crate::figures;
use crate::input::Input;
use crate::report::Section;
use crate::study::{LoadName, Metric, Study};
use crate::table::{Bar, Cell, Column, Mark, Row, Table};

/// What a ratio's picture spans at least, to either side of 1.
const LEAST_SPAN: f64 = 1.25;
/// And at most: what lies beyond is drawn at the edge, and its number says how far.
const MOST_SPAN: f64 = 16.0;

/// None if nothing was compared pair by pair.
pub fn section(study: &Study) -> Option<Section> {
    let lead = "The same requests went to both systems in the same rounds, so that what else the machine did met both. A ratio below 1 means less time; \
                if its interval holds 1, the difference may be chance.";
    let mut section = Section::new("ratios", "Side by side", lead);
    for (number, input) in
        study.inputs.iter().filter(|input| !input.result.comparisons.is_empty()).enumerate()
    {
        section.tables.push(table(study, input, number));
    }
    (!section.tables.is_empty()).then_some(section)
}

fn table(study: &Study, input: &Input, number: usize) -> Table {
    let comparisons = &input.result.comparisons;
    let span = span(comparisons);
    let baselines: Vec<&str> = comparisons.iter().map(|comparison| comparison.baseline.as_str()).collect();
    let one_baseline = baselines.windows(2).all(|pair| pair[0] == pair[1]);
    let mut caption = match baselines.first() {
        Some(baseline) if one_baseline => format!("Ratios to {baseline}"),
        _ => "Ratios".to_owned(),
    };
    if study.inputs.len() > 1 {
        caption = format!("{caption}, {}", input.name);
    }
    let columns = vec![
        Column::text("System", "candidate"),
        Column::text("Load", "load"),
        Column::text("Figure", "figure"),
        Column::estimate("Ratio of means", "mean_ratio"),
        Column::text("What it shows", "verdict"),
        Column::estimate("p50", "p50_ratio"),
        Column::estimate("p90", "p90_ratio"),
        Column::estimate("p99", "p99_ratio"),
        Column::estimate("Pair by pair", "pairwise_ratio"),
        Column::number("Pairs", "pairs"),
        Column::number("Unpaired", "unpaired"),
        Column::number("Rounds", "rounds"),
        Column::text("Divided by", "baseline"),
    ];
    let mut rows: Vec<_> = comparisons
        .iter()
        .flat_map(|comparison| comparison.ratios.iter().enumerate().map(move |ratio| (comparison, ratio)))
        .collect();
    // Candidates that can be compared stand below each other.
    rows.sort_by_key(|(comparison, (place, _))| {
        (study.loads.iter().position(|load| load.is(&comparison.load)), *place)
    });
    let rows =
        rows.into_iter().map(|(comparison, (_, ratio))| row(study, input, comparison, ratio, span)).collect();
    Table { id: format!("ratios-{number}"), caption, columns, rows, folded: false }
}

fn row(study: &Study, input: &Input, comparison: &Comparison, ratio: &Ratio, span: f64) -> Row {
    let figure = Metric::ALL.into_iter().find(|metric| ratio.figure == format!("{}_ms", metric.key()));
    let name = match figure {
        Some(metric) => metric.name(),
        None if ratio.figure == "output_tokens" => "Output tokens/s",
        None => &ratio.figure,
    };
    let (verdict, mark) = verdict(ratio.mean, figure.is_some());
    let count = |count: u64| Cell::number(figures::count(count), count as f64);
    let load = study.loads.iter().find(|known| known.is(&comparison.load));
    let cells = vec![
        Cell::text(&comparison.candidate),
        Cell::text(
            load.map_or_else(|| LoadName::new(&comparison.load, None).label, |load| load.label.clone()),
        ),
        Cell::text(name),
        Cell { bar: Some(bar(ratio.mean, span)), ..Cell::estimate(Some(ratio.mean)) },
        Cell::text(verdict).with_mark(mark),
        Cell::estimate(ratio.p50),
        Cell::estimate(ratio.p90),
        Cell::estimate(ratio.p99),
        Cell::estimate(ratio.pairwise),
        count(comparison.pairs),
        count(comparison.unpaired),
        count(comparison.rounds.into()),
        Cell::text(&comparison.baseline),
    ];
    Row { cells, series: study.series_of(input, &comparison.candidate) }
}

/// What an interval says in words, and whether that is good.
fn verdict(ratio: Estimate, less_is_better: bool) -> (String, Option<Mark>) {
    let (Some(low), Some(high)) = (ratio.low, ratio.high) else {
        return ("too few pairs to say".to_owned(), None);
    };
    if low <= 1.0 && high >= 1.0 {
        return ("no difference shown".to_owned(), None);
    }
    // The end of the interval that is nearer to no difference comes first: so much is sure.
    let change = |ratio: f64| figures::percent_whole((ratio - 1.0).abs());
    let (near, far) = if low > 1.0 { (low, high) } else { (high, low) };
    let better = (high < 1.0) == less_is_better;
    let word = match (less_is_better, better) {
        (true, true) => "quicker",
        (true, false) => "slower",
        (false, true) => "more",
        (false, false) => "less",
    };
    let (near, far) = (change(near), change(far));
    let by = if near == far { format!("{near} %") } else { format!("{near} to {far} %") };
    (format!("{by} {word}"), Some(if better { Mark::Better } else { Mark::Worse }))
}

/// How far the pictures of one table reach to either side of 1, so that all have the same scale.
fn span(comparisons: &[Comparison]) -> f64 {
    let means = comparisons.iter().flat_map(|comparison| &comparison.ratios).map(|ratio| ratio.mean);
    let ends = means.flat_map(|mean| [Some(mean.value), mean.low, mean.high]).flatten();
    let furthest = ends.filter(|end| *end > 0.0).map(|end| end.max(1.0 / end)).fold(LEAST_SPAN, f64::max);
    furthest.min(MOST_SPAN)
}

fn bar(ratio: Estimate, span: f64) -> Bar {
    let place = |ratio: f64| 0.5 + 0.48 * (ratio.max(1e-9).ln() / span.ln()).clamp(-1.0, 1.0);
    Bar {
        low: place(ratio.low.unwrap_or(ratio.value)),
        middle: place(ratio.value),
        high: place(ratio.high.unwrap_or(ratio.value)),
        even: 0.5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(value: f64, low: f64, high: f64) -> Estimate {
        Estimate { value, low: Some(low), high: Some(high) }
    }

    #[test]
    fn an_interval_that_holds_one_shows_nothing() {
        let said = |ratio, less_is_better| verdict(ratio, less_is_better).0;
        assert_eq!(said(ratio(0.9, 0.8, 1.01), true), "no difference shown");
        assert_eq!(said(ratio(0.8, 0.75, 0.9), true), "10 to 25 % quicker");
        assert_eq!(said(ratio(1.2, 1.1, 1.3), true), "10 to 30 % slower");
        assert_eq!(said(ratio(1.2, 1.1, 1.3), false), "10 to 30 % more");
        assert_eq!(said(ratio(0.5, 0.5, 0.5), false), "50 % less");
        assert_eq!(said(Estimate { value: 2.0, low: None, high: None }, true), "too few pairs to say");
        assert_eq!(verdict(ratio(0.8, 0.7, 0.9), false).1, Some(Mark::Worse));
    }

    #[test]
    fn pictures_stay_in_their_cells() {
        for value in [0.0, 1e-12, 0.5, 1.0, 3.0, 1e12] {
            let bar = bar(ratio(value, value / 2.0, value * 2.0), 2.0);
            for place in [bar.low, bar.middle, bar.high] {
                assert!((0.0..=1.0).contains(&place), "{value}: {bar:?}");
            }
        }
    }
}
