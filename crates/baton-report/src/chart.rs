//! Charts as data: what the page's script draws, and nothing about how.

use serde::Serialize;

/// A chart with one view for each combination of its section's choices.
#[derive(Clone, Debug, Serialize)]
pub struct Chart {
    pub id: String,
    #[serde(skip)]
    pub title: String,
    /// One sentence for those who do not see the chart, and below it for those who do.
    #[serde(skip)]
    pub summary: String,
    pub kind: Kind,
    pub x: Axis,
    pub y: Axis,
    /// In the order of the choices, the last one running fastest.
    pub views: Vec<Vec<Line>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Points joined by lines, with their intervals.
    Points,
    /// Points on their own: what is at the lower edge has no order.
    Marks,
    /// As points, but joined in the order in which they come: throughput may fall.
    Path,
    /// The values of the quantiles in `Line::y`, drawn sideways.
    Quantiles,
    /// Many points, without markers.
    Samples,
}

#[derive(Clone, Debug, Serialize)]
pub struct Axis {
    pub label: String,
    pub unit: Unit,
    /// What stands at 0, 1, 2, … instead of the numbers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    pub log: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    Ms,
    Seconds,
    /// Per second.
    Requests,
    TokensPerSecond,
    Clients,
    Count,
    Share,
}

/// One series' points.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Line {
    #[serde(rename = "s")]
    pub series: usize,
    pub x: Vec<f64>,
    pub y: Vec<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub low: Vec<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub high: Vec<f64>,
    /// What a tooltip adds to each point.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Axis {
    pub fn new(label: impl Into<String>, unit: Unit) -> Self {
        Self { label: label.into(), unit, names: Vec::new(), log: false }
    }

    /// A logarithmic axis where the numbers are positive and far apart.
    pub fn log_if_wide<'a>(mut self, values: impl IntoIterator<Item = &'a f64>) -> Self {
        let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
        for value in values {
            low = low.min(*value);
            high = high.max(*value);
        }
        self.log = low > 0.0 && high / low > WIDE;
        self
    }
}

/// From this ratio on, the small numbers of a linear axis cannot be told apart.
const WIDE: f64 = 12.0;

/// Four significant digits: more than a pixel shows, fewer bytes than a float.
pub fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let digits = 3 - value.abs().log10().floor() as i32;
    // Multiplying and dividing by a whole power of ten keeps the printed number short.
    let scale = 10_f64.powi(digits.abs());
    if digits >= 0 { (value * scale).round() / scale } else { (value / scale).round() * scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_keeps_four_digits() {
        for (value, text) in [(1234.567, "1235"), (0.00123456, "0.001235"), (987654.0, "987700"), (0.0, "0")]
        {
            assert_eq!(rounded(value).to_string(), text);
        }
    }
}
