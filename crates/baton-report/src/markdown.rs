//! The report for people who paste: warnings and the tables that the page does not fold.

use std::fmt::Write;

use crate::report::{Level, Report};
use crate::table::markdown_text;

pub fn markdown(report: &Report) -> String {
    let mut out = format!("# {}\n\n", markdown_text(&report.title));
    for (name, value) in &report.facts {
        let _ = writeln!(out, "- {}: {}", markdown_text(name), markdown_text(value));
    }
    if !report.warnings.is_empty() {
        out.push_str("\n## Warnings\n\n");
    }
    for warning in &report.warnings {
        let word = match warning.level {
            Level::Broken => "Broken",
            Level::Warning => "Warning",
            Level::Note => "Note",
        };
        let mut text = markdown_text(&warning.text);
        if !warning.places.is_empty() {
            text = format!("{text} ({})", markdown_text(&warning.places.join("; ")));
        }
        let _ = writeln!(out, "- **{word}: {}.** {}", markdown_text(&warning.title), text.trim_start());
    }
    for section in &report.sections {
        let tables: Vec<_> = section.tables.iter().filter(|table| !table.folded).collect();
        if tables.is_empty() {
            continue;
        }
        let _ = write!(out, "\n## {}\n\n", markdown_text(&section.title));
        if !section.lead.is_empty() {
            let _ = write!(out, "{}\n\n", markdown_text(&section.lead));
        }
        let tables: Vec<String> = tables.into_iter().map(crate::table::Table::markdown).collect();
        out.push_str(&tables.join("\n"));
    }
    out
}
