//! Tables: what stands behind every chart, and what people copy.

use std::fmt::Write;

use baton_workload::result::Estimate;

use crate::figures;

/// A table with a caption, headings and rows.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Names the table in the page, and the file that it is saved as.
    pub id: String,
    pub caption: String,
    pub columns: Vec<Column>,
    pub rows: Vec<Row>,
    /// Long tables lie folded below their chart.
    pub folded: bool,
}

#[derive(Clone, Debug)]
pub struct Column {
    pub name: String,
    /// Names the column in CSV, with its unit last: `ttft_p50_ms`.
    pub key: String,
    pub numeric: bool,
    /// Cells are estimates: CSV has columns for the ends of their intervals as well.
    pub interval: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Row {
    pub cells: Vec<Cell>,
    /// Index into the report's series, for the colour in front of the row.
    pub series: Option<usize>,
}

/// What a cell shows, and what it is worth in CSV.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    pub text: String,
    /// Smaller, below the text: an interval, or why there is no number.
    pub detail: Option<String>,
    /// What CSV says instead of the text, such as all digits of a rounded number; of an estimate, three numbers with commas.
    pub value: Option<String>,
    /// A picture of the number, which it needs no words for.
    pub bar: Option<Bar>,
    pub mark: Option<Mark>,
}

/// A ratio with its interval on a logarithmic line, as shares of the width from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bar {
    pub low: f64,
    pub middle: f64,
    pub high: f64,
    /// Where the ratio is 1.
    pub even: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Differs from the other results.
    Differs,
    Better,
    Worse,
}

impl Column {
    pub fn text(name: impl Into<String>, key: impl Into<String>) -> Self {
        Self { name: name.into(), key: key.into(), numeric: false, interval: false }
    }

    pub fn number(name: impl Into<String>, key: impl Into<String>) -> Self {
        Self { name: name.into(), key: key.into(), numeric: true, interval: false }
    }

    pub fn estimate(name: impl Into<String>, key: impl Into<String>) -> Self {
        Self { interval: true, ..Self::number(name, key) }
    }

    /// What CSV calls the column, and its interval's ends: `ttft_p50_ms,ttft_p50_low_ms,ttft_p50_high_ms`.
    pub fn csv_keys(&self) -> String {
        if !self.interval {
            return csv_field(&self.key);
        }
        let (stem, unit) = self.key.strip_suffix("_ms").map_or((self.key.as_str(), ""), |stem| (stem, "_ms"));
        csv_field(&self.key)
            + ","
            + &csv_field(&format!("{stem}_low{unit}"))
            + ","
            + &csv_field(&format!("{stem}_high{unit}"))
    }
}

impl Cell {
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// A number as people read it, and with all its digits for CSV.
    pub fn number(text: impl Into<String>, value: f64) -> Self {
        let (text, value) = (text.into(), plain(value));
        let value = (text != value).then_some(value);
        Self { text, value, ..Self::default() }
    }

    /// An estimate, with its interval below.
    pub fn estimate(estimate: Option<Estimate>) -> Self {
        let Some(found) = estimate else { return Self::none() };
        let bound = |bound: Option<f64>| bound.map(plain).unwrap_or_default();
        let value = format!("{},{},{}", plain(found.value), bound(found.low), bound(found.high));
        let detail = found.low.zip(found.high);
        let detail =
            detail.map(|(low, high)| format!("{} – {}", figures::number(low), figures::number(high)));
        Self { text: figures::number(found.value), detail, value: Some(value), ..Self::default() }
    }

    /// No number.
    pub fn none() -> Self {
        Self { text: "–".to_owned(), value: Some(String::new()), ..Self::default() }
    }

    pub fn with_mark(mut self, mark: Option<Mark>) -> Self {
        self.mark = mark;
        self
    }

    /// The cell's fields in CSV.
    fn csv(&self, column: &Column) -> String {
        match (&self.value, column.interval) {
            (Some(value), true) if !value.is_empty() => value.clone(),
            (_, true) => ",,".to_owned(),
            (value, false) => csv_field(value.as_ref().unwrap_or(&self.text)),
        }
    }
}

impl Table {
    /// RFC 4180, with the columns' keys as the first line.
    pub fn csv(&self) -> String {
        let keys: Vec<String> = self.columns.iter().map(Column::csv_keys).collect();
        let mut lines = vec![keys.join(",")];
        for row in &self.rows {
            let fields: Vec<String> =
                row.cells.iter().zip(&self.columns).map(|(cell, column)| cell.csv(column)).collect();
            lines.push(fields.join(","));
        }
        lines.join("\r\n") + "\r\n"
    }

    pub fn markdown(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(out, "**{}**\n", markdown_text(&self.caption));
        let names: Vec<String> = self.columns.iter().map(|column| markdown_text(&column.name)).collect();
        let _ = writeln!(out, "| {} |", names.join(" | "));
        let rules = self.columns.iter().map(|column| if column.numeric { "---:" } else { "---" });
        let _ = writeln!(out, "|{}|", rules.collect::<Vec<_>>().join("|"));
        for row in &self.rows {
            let cells = row.cells.iter().map(|cell| match &cell.detail {
                Some(detail) => format!("{} ({})", markdown_text(&cell.text), markdown_text(detail)),
                None => markdown_text(&cell.text),
            });
            let _ = writeln!(out, "| {} |", cells.collect::<Vec<_>>().join(" | "));
        }
        out
    }
}

fn csv_field(text: &str) -> String {
    // A spreadsheet would run a text that starts like a formula.
    let number = text.parse::<f64>().is_ok();
    let guard = if text.starts_with(['=', '+', '-', '@', '\t', '\r']) && !number { "'" } else { "" };
    if text.contains(['"', ',', '\n', '\r']) {
        format!("\"{guard}{}\"", text.replace('"', "\"\""))
    } else {
        format!("{guard}{text}")
    }
}

/// A text that Markdown takes for nothing else, on one line.
pub fn markdown_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' | '`' | '*' | '_' | '|' | '[' | ']' | '#' => out.extend(['\\', c]),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// A number for machines: at most six digits behind the point.
fn plain(value: f64) -> String {
    if !value.is_finite() {
        return String::new();
    }
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(cells: Vec<Cell>, columns: Vec<Column>) -> Table {
        let rows = vec![Row { cells, series: None }];
        Table { columns, rows, caption: "A | B".to_owned(), ..Table::default() }
    }

    #[test]
    fn csv_has_numbers_whole_and_texts_quoted() {
        let estimate = Estimate { value: 1234.5678, low: Some(1000.0), high: None };
        let table = table(
            vec![
                Cell::text("a \"b\", c"),
                Cell::text("=HYPERLINK(1)"),
                Cell::number("1 235", 1234.5678),
                Cell::estimate(Some(estimate)),
                Cell::estimate(None),
            ],
            vec![
                Column::text("Name", "name"),
                Column::text("Formula", "formula"),
                Column::number("n", "n"),
                Column::estimate("p50, ms", "ttft_p50_ms"),
                Column::estimate("Answers/s", "answers_per_s"),
            ],
        );
        let lines = [
            "name,formula,n,ttft_p50_ms,ttft_p50_low_ms,ttft_p50_high_ms,answers_per_s,answers_per_s_low,answers_per_s_high",
            "\"a \"\"b\"\", c\",'=HYPERLINK(1),1234.5678,1234.5678,1000,,,,",
        ];
        assert_eq!(table.csv(), lines.join("\r\n") + "\r\n");
    }

    #[test]
    fn markdown_keeps_its_columns() {
        let hostile = Cell::text("a|b\nc<script>`");
        let table = table(
            vec![hostile, Cell::number("1", 1.0)],
            vec![Column::text("x", "x"), Column::number("y", "y")],
        );
        let text = table.markdown();
        assert!(text.ends_with("| x | y |\n|---|---:|\n| a\\|b c&lt;script&gt;\\` | 1 |\n"), "{text}");
    }
}
