//! The plot of a replay: what is found and what is held, over the time to live.

use baton_plot::{Line, Panel, Stroke, svg};

use crate::replay_command::Row;

type Value = fn(&Row) -> f64;

/// An SVG of two panels: what has no cap is solid, what has one is dashed.
pub(crate) fn plot(rows: &[Row]) -> String {
    let line = |name: &str, stroke, capped, value: Value| {
        let points = rows.iter().filter(|row| row.capped == capped).map(|row| (row.ttl_s as f64, value(row)));
        Line { name: name.to_owned(), stroke, points: points.collect() }
    };
    let shares = Panel {
        title: "Turns that find their KV, and prompt tokens saved".to_owned(),
        units: ("%", "s"),
        most: 100.0,
        lines: vec![
            line("turns, unbounded", Stroke::Blue, false, |row| row.found() * 100.0),
            line("turns, capped", Stroke::BlueDashed, true, |row| row.found() * 100.0),
            line("tokens, unbounded", Stroke::Red, false, |row| row.saved() * 100.0),
            line("tokens, capped", Stroke::RedDashed, true, |row| row.saved() * 100.0),
        ],
    };
    let memory = vec![
        line("most, unbounded", Stroke::Blue, false, Row::most_gb),
        line("most, capped", Stroke::BlueDashed, true, Row::most_gb),
        line("mean, unbounded", Stroke::Red, false, Row::mean_gb),
        line("mean, capped", Stroke::RedDashed, true, Row::mean_gb),
    ];
    svg(&[shares, Panel::fitting("Memory retained", ("GB", "s"), memory)])
}
