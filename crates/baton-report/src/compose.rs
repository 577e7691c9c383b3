//! From results to a report: which sections there are, in which order.

mod conditions;
mod definitions;
mod distributions;
mod lengths;
mod levels;
mod ratios;
mod requests;
mod servers;
mod tables;
mod warnings;

use crate::figures;
use crate::input::{Input, InputError};
use crate::report::{Report, STYLES, Series};
use crate::study::Study;
use crate::trace::Trace;

/// What the results say together. `unread` are those that could not be read, which the report says first;
/// `trace` is what servers wrote down of single requests, or empty.
pub fn report(inputs: &[Input], unread: &[InputError], trace: &Trace) -> Report {
    let study = Study::new(inputs);
    let sections = [conditions::differences(&study), ratios::section(&study)]
        .into_iter()
        .flatten()
        .chain(levels::sections(&study))
        .chain(
            [
                levels::curve(&study),
                tables::section(&study),
                distributions::section(&study),
                lengths::section(&study),
                requests::section(&study, trace),
                servers::section(&study),
                conditions::all(&study),
                Some(definitions::section()),
            ]
            .into_iter()
            .flatten(),
        );
    Report {
        title: title(&study),
        facts: facts(&study),
        warnings: warnings::warnings(&study, unread),
        series: series(&study),
        sections: sections.collect(),
    }
}

fn series(study: &Study) -> Vec<Series> {
    let mut systems: Vec<&str> = Vec::new();
    let mut seen = Vec::new();
    for series in &study.series {
        let place = systems.iter().position(|name| *name == series.system_name).unwrap_or_else(|| {
            systems.push(series.system_name);
            systems.len() - 1
        });
        let run = study.inputs.iter().position(|input| std::ptr::eq(input, series.input)).unwrap_or(0);
        seen.push((&series.name, place, run));
    }
    let repeated = systems.len() < study.series.len();
    let styled = seen.into_iter().map(|(name, place, run)| Series {
        name: name.clone(),
        colour: place % STYLES,
        dash: if repeated { run } else { place } % STYLES,
    });
    styled.collect()
}

/// More names than these do not fit a heading.
const MOST_NAMES: usize = 4;

fn title(study: &Study) -> String {
    let names: Vec<String> = study.series.iter().map(|series| shortened(&series.name)).collect();
    match names.as_slice() {
        [] => "Nothing measured".to_owned(),
        [only] => only.clone(),
        [first @ .., last] if names.len() <= MOST_NAMES => format!("{} and {last}", first.join(", ")),
        many => format!("{} systems", many.len()),
    }
}

/// A heading is no place for a name of any length.
fn shortened(name: &str) -> String {
    const MOST_CHARS: usize = 40;
    match name.char_indices().nth(MOST_CHARS) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

/// What is the same for all, in one line.
fn facts(study: &Study) -> Vec<(String, String)> {
    let mut facts = Vec::new();
    let mut push = |name: &str, values: Vec<String>| {
        let mut distinct: Vec<String> = Vec::new();
        for value in values.into_iter().filter(|value| !value.is_empty()) {
            if !distinct.contains(&value) {
                distinct.push(value);
            }
        }
        if !distinct.is_empty() {
            facts.push((name.to_owned(), distinct.join(" · ")));
        }
    };
    let systems = || study.series.iter().filter_map(|series| series.system);
    let conditions = || study.inputs.iter().map(|input| &input.result.conditions);
    push("Run", conditions().filter_map(|conditions| conditions.label.clone()).collect());
    push("Model", systems().map(|system| system.model.clone()).collect());
    push("Server", systems().filter_map(|system| system.server.clone()).collect());
    push("Machine", conditions().map(|conditions| machine(&conditions.client.host)).collect());
    push("Workload", study.inputs.iter().map(|input| input.result.workload.description.clone()).collect());
    let scheduled: u64 =
        study.measurements.iter().map(|measured| measured.sum_of(|point| point.counts.scheduled)).sum();
    push("Requests", vec![figures::count(scheduled)]);
    push("Measured", conditions().map(|conditions| moment(&conditions.started_at)).collect());
    facts
}

fn machine(host: &baton_workload::result::Host) -> String {
    let mut parts = Vec::new();
    if !host.cpu.is_empty() {
        parts.push(host.cpu.clone());
    }
    if host.cores > 0 {
        parts.push(format!("{} cores", host.cores));
    }
    parts.extend(host.gpus.iter().cloned());
    parts.join(", ")
}

/// An RFC 3339 moment to the minute, or whatever else is there.
fn moment(text: &str) -> String {
    match (text.split_once('T'), text.ends_with('Z')) {
        (Some((day, time)), true) if time.len() >= 6 => {
            format!("{day} {} UTC", time.get(..5).unwrap_or(time))
        }
        _ => text.to_owned(),
    }
}
