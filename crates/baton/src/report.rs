//! `baton report`: reads results, writes one page.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use baton_report::report::Report;
use baton_report::{Input, Trace, markdown, page};

use crate::args::{ReportArgs, ReportFormat};

/// Writes what can be read; fails if that is not all that was named.
pub fn report(args: &ReportArgs) -> Result<ExitCode> {
    let (mut inputs, mut unread) = (Vec::new(), Vec::new());
    for path in &args.results {
        match Input::read(path) {
            Ok(input) => inputs.push(input),
            Err(error) => unread.push(error),
        }
    }
    for error in &unread {
        eprintln!("baton: {error}");
    }
    if inputs.is_empty() {
        bail!("there is nothing to report");
    }
    let mut trace = Trace::default();
    for path in &args.trace {
        trace.read(path)?;
    }
    let report = baton_report::report(&inputs, &unread, &trace);
    let text = match args.format {
        ReportFormat::Html => page(&report)?,
        ReportFormat::Md => markdown(&report),
        ReportFormat::Csv => csv(&report, &args.table)?,
    };
    write(args, &text)?;
    Ok(if unread.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn csv(report: &Report, name: &str) -> Result<String> {
    let Some(table) = report.tables().find(|table| table.id == name) else {
        let names: Vec<&str> = report.tables().map(|table| table.id.as_str()).collect();
        bail!("there is no table {name:?}; there are {}", names.join(", "));
    };
    Ok(table.csv())
}

fn write(args: &ReportArgs, text: &str) -> Result<()> {
    let path = match &args.output {
        Some(path) => path.clone(),
        None if args.format == ReportFormat::Html => PathBuf::from("report.html"),
        None => PathBuf::from("-"),
    };
    if path == Path::new("-") {
        return std::io::stdout().write_all(text.as_bytes()).context("cannot write to standard output");
    }
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    eprintln!("{} ({} KiB)", path.display(), text.len().div_ceil(1024));
    Ok(())
}
