//! What was measured where: what differs first, all of it at the end.

use baton_workload::result::{CacheState, EngineConditions, System};

use crate::figures;
use crate::report::Section;
use crate::study::{SeriesOf, Study};
use crate::table::{Cell, Column, Mark, Row, Table};

/// A condition's name, and what it is for a series; none where nobody said.
struct Condition {
    name: &'static str,
    of: fn(&SeriesOf) -> Option<String>,
    /// Differs between any two systems, and so is no reason for anything.
    expected: bool,
}

const CONDITIONS: &[Condition] = &[
    condition("Strategy", |series| series.system?.strategy.clone()),
    condition("Model", |series| text(&series.system?.model)),
    condition("Longest context, tokens", |series| Some(figures::count(series.system?.max_model_len?.into()))),
    condition("Server", |series| series.system?.server.clone()),
    condition("Server commit", |series| series.system?.commit.clone()),
    condition("Server flags", |series| text(&series.system?.flags.join(" "))),
    condition("Engines", |series| text(&engines(series.system?))),
    condition("Prefix cache", |series| text(&caches(series.system?))),
    condition("KV memory, blocks", |series| {
        text(&of_engines(series.system?, |e| e.kv_blocks.map(figures::count)))
    }),
    condition("Block, tokens", |series| {
        text(&of_engines(series.system?, |e| e.block_tokens.map(|tokens| tokens.to_string())))
    }),
    condition("KV type", |series| text(&of_engines(series.system?, |e| e.kv_dtype.clone()))),
    condition("Transports", |series| text(&of_engines(series.system?, |e| text(&e.transports.join(" or "))))),
    condition("On the client's machine", |series| {
        Some(if series.system?.same_host { "yes" } else { "no" }.to_owned())
    }),
    condition("API", |series| text(&series.system?.api)),
    condition("Workload", |series| text(&series.input.result.workload.description)),
    condition("Kind of workload", |series| text(&series.input.result.workload.kind)),
    condition("Trace", |series| series.input.result.workload.trace.clone()),
    condition("Mean prompt, tokens", |series| {
        series.input.result.workload.mean_prompt_tokens.map(figures::number)
    }),
    condition("Mean answer, tokens", |series| {
        series.input.result.workload.mean_output_tokens.map(figures::number)
    }),
    condition("Prompt tokens that a cache could find", |series| {
        series.input.result.workload.shareable_share.map(figures::percent)
    }),
    condition("Answers to their full length", |series| {
        Some(
            if series.input.result.workload.ignore_eos {
                "yes (ignore_eos)"
            } else {
                "as the model ends them"
            }
            .to_owned(),
        )
    }),
    condition("Warm-up requests", |series| {
        Some(figures::count(series.input.result.workload.warmup_requests))
    }),
    condition("Seed", |series| Some(series.input.result.conditions.seed.to_string())),
    condition("Client", |series| text(&series.input.result.conditions.client.version)),
    condition("Client commit", |series| series.input.result.conditions.client.commit.clone()),
    condition("CPU", |series| text(&series.input.result.conditions.client.host.cpu)),
    condition("Cores", |series| some_count(series.input.result.conditions.client.host.cores.into())),
    condition("Memory", |series| {
        let bytes = series.input.result.conditions.client.host.memory_bytes;
        (bytes > 0).then(|| figures::bytes(bytes))
    }),
    condition("System of the client", |series| text(&series.input.result.conditions.client.host.os)),
    condition("GPUs", |series| text(&series.input.result.conditions.client.host.gpus.join(", "))),
    expected("Address", |series| text(&series.system?.endpoint)),
    expected("Started", |series| text(&series.input.result.conditions.started_at)),
    expected("Duration", |series| Some(figures::seconds(series.input.result.conditions.duration_s))),
    expected("Command", |series| text(&series.input.result.conditions.command.join(" "))),
];

const fn condition(name: &'static str, of: fn(&SeriesOf) -> Option<String>) -> Condition {
    Condition { name, of, expected: false }
}

const fn expected(name: &'static str, of: fn(&SeriesOf) -> Option<String>) -> Condition {
    Condition { name, of, expected: true }
}

/// None if there is but one system: then nothing can differ.
pub fn differences(study: &Study) -> Option<Section> {
    if study.series.len() < 2 {
        return None;
    }
    let rows = rows(study, |condition, values| !condition.expected && differ(values));
    let mut section = Section::new("differences", "What differs", "");
    if rows.is_empty() {
        section.lead = "Nothing in the recorded conditions differs between the systems.".to_owned();
        return Some(section);
    }
    section.lead = "Whatever is in this table may be the reason for a difference in the figures. All else that was recorded is equal.".to_owned();
    section.tables.push(table(study, "differences-table", "Conditions that differ", rows));
    Some(section)
}

pub fn all(study: &Study) -> Option<Section> {
    let rows = rows(study, |_, values| values.iter().any(Option::is_some));
    if rows.is_empty() {
        return None;
    }
    let mut section = Section::new("conditions", "Conditions", "");
    section.tables.push(table(study, "conditions-table", "Conditions as they were recorded", rows));
    Some(section)
}

fn rows(study: &Study, wanted: impl Fn(&Condition, &[Option<String>]) -> bool) -> Vec<Row> {
    let mut rows = Vec::new();
    for condition in CONDITIONS {
        let values: Vec<Option<String>> = study.series.iter().map(condition.of).collect();
        if !wanted(condition, &values) {
            continue;
        }
        let marks = odd_ones(&values);
        let mut cells = vec![Cell::text(condition.name)];
        for (value, odd) in values.into_iter().zip(marks) {
            let cell = Cell::text(value.unwrap_or_else(|| "not known".to_owned()));
            cells.push(cell.with_mark(odd.then_some(Mark::Differs)));
        }
        rows.push(Row { cells, series: None });
    }
    rows
}

fn table(study: &Study, id: &str, caption: &str, rows: Vec<Row>) -> Table {
    let mut columns = vec![Column::text("Condition", "condition")];
    columns.extend(study.series.iter().map(|series| Column::text(&series.name, &series.name)));
    Table { id: id.to_owned(), caption: caption.to_owned(), columns, rows, folded: false }
}

fn differ(values: &[Option<String>]) -> bool {
    values.windows(2).any(|pair| pair[0] != pair[1])
}

/// Those that are not what most are; where no value leads, all that differ from the first.
fn odd_ones(values: &[Option<String>]) -> Vec<bool> {
    let count = |value: &Option<String>| values.iter().filter(|other| *other == value).count();
    let most = values.iter().map(count).max().unwrap_or(0);
    let usual = values.iter().find(|value| count(value) == most);
    values.iter().map(|value| Some(value) != usual).collect()
}

fn text(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn some_count(count: u64) -> Option<String> {
    (count > 0).then(|| figures::count(count))
}

/// `2 prefill, 1 decode`.
fn engines(system: &System) -> String {
    let mut roles: Vec<(&str, usize)> = Vec::new();
    for engine in &system.engines {
        let role = engine.role.as_deref().unwrap_or("engine");
        match roles.iter_mut().find(|(known, _)| *known == role) {
            Some((_, count)) => *count += 1,
            None => roles.push((role, 1)),
        }
    }
    let roles: Vec<String> = roles.iter().map(|(role, count)| format!("{count} {role}")).collect();
    roles.join(", ")
}

fn caches(system: &System) -> String {
    of_engines(system, |engine| {
        let state = match engine.prefix_cache {
            CacheState::On => "on",
            CacheState::Off => "off",
            CacheState::Unknown => "not known",
        };
        Some(state.to_owned())
    })
}

/// One value if all engines have the same, or else each engine's with its name.
fn of_engines(system: &System, of: impl Fn(&EngineConditions) -> Option<String>) -> String {
    let values: Vec<Option<String>> = system.engines.iter().map(&of).collect();
    if !differ(&values) {
        return values.into_iter().flatten().next().unwrap_or_default();
    }
    let named = system.engines.iter().zip(values).map(|(engine, value)| {
        let name = if engine.name.is_empty() { &engine.url } else { &engine.name };
        format!("{name}: {}", value.as_deref().unwrap_or("not known"))
    });
    named.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_odd_one_is_marked() {
        let values = |texts: &[&str]| texts.iter().map(|text| Some((*text).to_owned())).collect::<Vec<_>>();
        assert_eq!(odd_ones(&values(&["a", "b", "a"])), [false, true, false]);
        assert_eq!(odd_ones(&values(&["a", "b"])), [false, true]);
        assert!(!differ(&values(&["a", "a"])));
    }

    #[test]
    fn engines_that_agree_are_said_once() {
        let engine = |name: &str, blocks| EngineConditions {
            name: name.to_owned(),
            role: Some("decode".to_owned()),
            kv_blocks: Some(blocks),
            ..EngineConditions::default()
        };
        let mut system = System { engines: vec![engine("a", 10), engine("b", 10)], ..System::default() };
        let blocks = |system: &System| of_engines(system, |e| e.kv_blocks.map(figures::count));
        assert_eq!((blocks(&system), engines(&system)), ("10".into(), "2 decode".into()));
        system.engines[1].kv_blocks = None;
        assert_eq!(blocks(&system), "a: 10; b: not known");
    }
}
