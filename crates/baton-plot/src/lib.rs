//! Lines over a logarithmic axis, as an SVG that goes into a page of documentation: for what is measured by hand. Results of
//! `baton bench` have a page of their own (`baton-report`).

use std::fmt::Write;

const WIDTH: f64 = 380.0;
const HEIGHT: f64 = 240.0;
/// Around a panel, for its words and numbers.
const LEFT: f64 = 64.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 56.0;
/// Between the panels of a row, and to the right of the last.
const GAP: f64 = 24.0;
/// Panels beside each other.
const COLUMNS: usize = 2;
/// Names of lines beside each other below a panel.
const NAMES: usize = 2;

/// Told apart without colours by their dashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stroke {
    Blue,
    BlueDashed,
    Red,
    RedDashed,
}

impl Stroke {
    pub const ALL: [Self; 4] = [Self::Blue, Self::BlueDashed, Self::Red, Self::RedDashed];

    fn attributes(self) -> &'static str {
        match self {
            Self::Blue => "stroke=\"#1b6ca8\" stroke-width=\"2\"",
            Self::BlueDashed => "stroke=\"#1b6ca8\" stroke-width=\"2\" stroke-dasharray=\"5 3\"",
            Self::Red => "stroke=\"#d1495b\" stroke-width=\"2\"",
            Self::RedDashed => "stroke=\"#d1495b\" stroke-width=\"2\" stroke-dasharray=\"5 3\"",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Line {
    pub name: String,
    pub stroke: Stroke,
    /// `x` above zero and finite, `y` finite and not below zero.
    pub points: Vec<(f64, f64)>,
}

#[derive(Clone, Debug)]
pub struct Panel {
    pub title: String,
    /// Behind the numbers of the vertical axis, and of the horizontal one.
    pub units: (&'static str, &'static str),
    /// The vertical axis goes from zero to here.
    pub most: f64,
    pub lines: Vec<Line>,
}

impl Panel {
    /// With a vertical axis that has room for all lines.
    pub fn fitting(title: impl Into<String>, units: (&'static str, &'static str), lines: Vec<Line>) -> Self {
        let highest =
            lines.iter().flat_map(|line| &line.points).map(|point| point.1).fold(f64::MIN_POSITIVE, f64::max);
        Self { title: title.into(), units, most: round_up(highest), lines }
    }
}

/// The panels in rows of two.
pub fn svg(panels: &[Panel]) -> String {
    let (columns, rows) = (COLUMNS.min(panels.len()), panels.len().div_ceil(COLUMNS));
    let (width, height) = (columns as f64 * (LEFT + WIDTH) + GAP, rows as f64 * (TOP + HEIGHT + BOTTOM));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (i, panel) in panels.iter().enumerate() {
        let left = LEFT + (i % COLUMNS) as f64 * (LEFT + WIDTH);
        panel.draw(&mut svg, left, TOP + (i / COLUMNS) as f64 * (TOP + HEIGHT + BOTTOM));
    }
    svg + "</svg>\n"
}

/// 1, 2 or 5 times a power of ten.
fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|step| step * power).into_iter().find(|round| *round >= value).unwrap_or(value)
}

impl Panel {
    fn draw(&self, svg: &mut String, left: f64, top: f64) {
        let mut ticks: Vec<f64> =
            self.lines.iter().flat_map(|line| &line.points).map(|point| point.0).collect();
        ticks.sort_by(f64::total_cmp);
        ticks.dedup();
        let least = ticks.first().copied().unwrap_or(1.0);
        let span = (ticks.last().copied().unwrap_or(1.0) / least).ln().max(f64::MIN_POSITIVE);
        let x = |value: f64| left + 12.0 + (value / least).ln() / span * (WIDTH - 24.0);
        let y = |value: f64| top + HEIGHT * (1.0 - value / self.most);
        text(svg, left, top - 24.0, "start", &self.title);
        for i in 0..=4 {
            let value = self.most * f64::from(i) / 4.0;
            let at = y(value);
            writeln!(svg, "<path d=\"M{left} {at:.1}h{WIDTH}\" stroke=\"#ddd\"/>")
                .expect("a String takes all text");
            text(svg, left - 6.0, at + 4.0, "end", &format!("{} {}", number(value), self.units.0));
        }
        for tick in ticks {
            text(svg, x(tick), top + HEIGHT + 16.0, "middle", &format!("{} {}", number(tick), self.units.1));
        }
        for (i, line) in self.lines.iter().enumerate() {
            let stroke = line.stroke.attributes();
            let points: Vec<String> =
                line.points.iter().map(|point| format!("{:.1},{:.1}", x(point.0), y(point.1))).collect();
            let points = points.join(" ");
            writeln!(svg, "<polyline points=\"{points}\" fill=\"none\" {stroke}/>")
                .expect("a String takes all text");
            let at = left + (i % NAMES) as f64 * WIDTH / NAMES as f64;
            let below = top + HEIGHT + 32.0 + (i / NAMES) as f64 * 16.0;
            writeln!(svg, "<path d=\"M{at} {:.1}h18\" {stroke}/>", below - 4.0)
                .expect("a String takes all text");
            text(svg, at + 24.0, below, "start", &line.name);
        }
    }
}

/// Whole where nothing is lost by that.
fn number(value: f64) -> String {
    match value {
        value if value == value.round() => format!("{value:.0}"),
        value if value < 0.1 => format!("{value:.3}"),
        value => format!("{value:.2}"),
    }
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let words = words.trim().replace('&', "&amp;").replace('<', "&lt;");
    writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>")
        .expect("a String takes all text");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel() -> Panel {
        let line = |name: &str, stroke, points: &[(f64, f64)]| Line {
            name: name.to_owned(),
            stroke,
            points: points.to_vec(),
        };
        let lines = vec![
            line("a & b", Stroke::Blue, &[(1.0, 0.0), (10.0, 3.2)]),
            line("c", Stroke::RedDashed, &[(100.0, 1.0)]),
        ];
        Panel::fitting("Speed", ("GB/s", "KiB"), lines)
    }

    #[test]
    fn points_lie_where_the_axes_say() {
        assert_eq!(panel().most, 5.0);
        let text = svg(&[panel()]);
        // Ends of the axis, and its middle, for it is logarithmic; zero is at the bottom.
        assert!(text.contains("<polyline points=\"76.0,284.0 254.0,130.4\""), "{text}");
        assert!(text.contains("<polyline points=\"432.0,236.0\""), "{text}");
        for words in [">Speed<", ">1.25 GB/s<", ">100 KiB<", ">a &amp; b<", "stroke-dasharray"] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    #[test]
    fn panels_go_into_rows_of_two() {
        let text = svg(&[panel(), panel(), panel()]);
        assert!(text.contains("viewBox=\"0 0 912 680\""), "{text}");
        assert_eq!(text.matches(">Speed<").count(), 3);
        assert!(svg(&[]).ends_with("</svg>\n"));
    }
}
