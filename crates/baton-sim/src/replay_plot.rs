//! The plot of a replay: what is found and what is held, over the time to live.

use std::fmt::Write;

use crate::replay_command::Row;

const WIDTH: f64 = 380.0;
const HEIGHT: f64 = 240.0;
/// Around a panel, for its words and numbers.
const LEFT: f64 = 64.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 56.0;
/// Of the lines in order: what has no cap is solid, what has one is dashed.
const STROKES: [&str; 4] = [
    "stroke=\"#1b6ca8\" stroke-width=\"2\"",
    "stroke=\"#1b6ca8\" stroke-width=\"2\" stroke-dasharray=\"5 3\"",
    "stroke=\"#d1495b\" stroke-width=\"2\"",
    "stroke=\"#d1495b\" stroke-width=\"2\" stroke-dasharray=\"5 3\"",
];

/// Points `(ttl in s, value)`.
struct Line {
    name: &'static str,
    points: Vec<(f64, f64)>,
}

struct Panel {
    title: &'static str,
    unit: &'static str,
    most: f64,
    lines: Vec<Line>,
}

/// An SVG of two panels.
pub(crate) fn plot(rows: &[Row]) -> String {
    let line = |name, capped, value: fn(&Row) -> f64| {
        let points = rows.iter().filter(|row| row.capped == capped).map(|row| (row.ttl_s as f64, value(row)));
        Line { name, points: points.collect() }
    };
    let shares = Panel {
        title: "Turns that find their KV, and prompt tokens saved",
        unit: "%",
        most: 100.0,
        lines: vec![
            line("turns, unbounded", false, |row| row.found() * 100.0),
            line("turns, capped", true, |row| row.found() * 100.0),
            line("tokens, unbounded", false, |row| row.saved() * 100.0),
            line("tokens, capped", true, |row| row.saved() * 100.0),
        ],
    };
    let lines = vec![
        line("most, unbounded", false, Row::most_gb),
        line("most, capped", true, Row::most_gb),
        line("mean, unbounded", false, Row::mean_gb),
        line("mean, capped", true, Row::mean_gb),
    ];
    let highest = lines.iter().flat_map(|line| &line.points).map(|(_, gb)| *gb).fold(1.0, f64::max);
    let memory = Panel { title: "Memory retained", unit: "GB", most: round_up(highest), lines };
    let (width, height) = (2.0 * (LEFT + WIDTH) + 24.0, TOP + HEIGHT + BOTTOM);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    shares.draw(&mut svg, LEFT);
    memory.draw(&mut svg, 2.0 * LEFT + WIDTH);
    svg + "</svg>\n"
}

/// 1, 2 or 5 times a power of ten.
fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|step| step * power).into_iter().find(|round| *round >= value).unwrap_or(value)
}

impl Panel {
    fn draw(&self, svg: &mut String, left: f64) {
        let ttls: Vec<f64> = self
            .lines
            .first()
            .map(|line| line.points.iter().map(|point| point.0).collect())
            .unwrap_or_default();
        let least = ttls.iter().copied().fold(f64::MAX, f64::min).max(1.0);
        let span = (ttls.iter().copied().fold(1.0, f64::max) / least).ln().max(f64::MIN_POSITIVE);
        let x = |ttl: f64| left + 12.0 + (ttl / least).ln() / span * (WIDTH - 24.0);
        let y = |value: f64| TOP + HEIGHT * (1.0 - value / self.most);
        text(svg, left, TOP - 24.0, "start", self.title);
        for i in 0..=4 {
            let value = self.most * f64::from(i) / 4.0;
            let at = y(value);
            writeln!(svg, "<path d=\"M{left} {at:.1}h{WIDTH}\" stroke=\"#ddd\"/>")
                .expect("a String takes all text");
            text(svg, left - 6.0, at + 4.0, "end", &format!("{value:.0} {}", self.unit));
        }
        for ttl in ttls {
            text(svg, x(ttl), TOP + HEIGHT + 16.0, "middle", &format!("{ttl:.0} s"));
        }
        for (i, (line, stroke)) in self.lines.iter().zip(STROKES).enumerate() {
            let points: Vec<String> =
                line.points.iter().map(|(ttl, value)| format!("{:.1},{:.1}", x(*ttl), y(*value))).collect();
            let points = points.join(" ");
            writeln!(svg, "<polyline points=\"{points}\" fill=\"none\" {stroke}/>")
                .expect("a String takes all text");
            let (at, below) = (left + (i % 2) as f64 * 190.0, TOP + HEIGHT + 32.0 + (i / 2) as f64 * 16.0);
            writeln!(svg, "<path d=\"M{at} {:.1}h18\" {stroke}/>", below - 4.0)
                .expect("a String takes all text");
            text(svg, at + 24.0, below, "start", line.name);
        }
    }
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>")
        .expect("a String takes all text");
}
