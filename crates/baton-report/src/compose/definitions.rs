//! What the figures mean, in the page itself: it may be read far from the documentation.

use crate::report::Section;
use crate::table::{Cell, Column, Row, Table};

const DEFINITIONS: &[(&str, &str)] = &[
    (
        "TTFT",
        "From the moment at which a request should have been sent to its first token. A client or a server that falls behind adds to it.",
    ),
    ("TPOT", "From an answer's first token to its last, divided by the number of tokens less one."),
    ("ITL", "Between two chunks of an answer that carried tokens, over all answers."),
    ("End to end", "From the moment at which a request should have been sent to its last token."),
    ("p90", "The smallest sample with at least 90 % of all samples at or below it."),
    (
        "Interval",
        "Holds the figure with 95 % confidence, by resampling; over several rounds, the lowest and the highest round.",
    ),
    ("Answered", "Answers that ended with a finish reason. Latencies are those of answered requests only."),
    ("Unfinished", "Still running, or never sent, when the measurement ended."),
    (
        "Within service level",
        "Share of all requests that were to be sent whose answers kept every limit that was set.",
    ),
    (
        "Ratio",
        "Candidate by baseline over the same requests. Below 1 is quicker; for tokens per second, above 1 is more.",
    ),
];

pub fn section() -> Section {
    let row = |(word, meaning): &(&str, &str)| Row {
        cells: vec![Cell::text(*word), Cell::text(*meaning)],
        series: None,
    };
    let mut section = Section::new("words", "Definitions", "");
    section.tables.push(Table {
        id: "words-table".to_owned(),
        caption: "Figures and how they are counted".to_owned(),
        columns: vec![Column::text("Word", "word"), Column::text("Meaning", "meaning")],
        rows: DEFINITIONS.iter().map(row).collect(),
        folded: false,
    });
    section
}
