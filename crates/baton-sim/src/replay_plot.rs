//! The plot of a replay: what is found and what is held, over the time to live.

use baton_plot::{Line, Panel, Stroke, svg};

use crate::replay_command::Row;

/// An SVG of two panels: what has no cap is solid, what has one is dashed.
pub(crate) fn plot(rows: &[Row]) -> String {
    let lines = |kinds: [(&str, fn(&Row) -> f64); 2]| {
        let capped = kinds.into_iter().flat_map(|kind| [(kind, false), (kind, true)]);
        let line = |(((name, value), capped), stroke): (((&str, fn(&Row) -> f64), bool), Stroke)| Line {
            name: format!("{name}, {}", if capped { "capped" } else { "unbounded" }),
            stroke,
            points: rows
                .iter()
                .filter(|row| row.capped == capped)
                .map(|row| (row.ttl_s as f64, value(row)))
                .collect(),
        };
        capped.zip(Stroke::ALL).map(line).collect()
    };
    let shares = Panel {
        title: "Turns that find their KV, and prompt tokens saved".to_owned(),
        units: ("%", "s"),
        most: 100.0,
        lines: lines([("turns", |row| row.found() * 100.0), ("tokens", |row| row.saved() * 100.0)]),
    };
    let memory = lines([("most", Row::most_gb), ("mean", Row::mean_gb)]);
    svg(&[shares, Panel::fitting("Memory retained", ("GB", "s"), memory)])
}
