//! What a reader must know first.

use std::collections::BTreeMap;

use baton_workload::result::WarningKind;

use crate::figures;
use crate::input::{Input, InputError, Requests};
use crate::report::{Level, Warning};
use crate::study::Study;

/// Warnings of all results and of reading them, the gravest first; equal ones are said once, with their places.
pub fn warnings(study: &Study, unread: &[InputError]) -> Vec<Warning> {
    let mut warnings: Vec<Warning> = unread.iter().map(unreadable).collect();
    warnings.extend(study.inputs.iter().flat_map(of_reading));
    warnings.extend(of_results(study));
    if study.inputs.len() > 1 {
        warnings.push(Warning {
            level: Level::Note,
            title: "Separate runs".to_owned(),
            text: "These results were measured one after the other, so what else the machines did may have differed. Only `baton bench compare` \
                   measures pair by pair."
                .to_owned(),
            places: study.inputs.iter().map(|input| input.name.clone()).collect(),
        });
    }
    warnings.sort_by_key(|warning| warning.level);
    warnings
}

fn unreadable(error: &InputError) -> Warning {
    Warning {
        level: Level::Broken,
        title: "A result could not be read".to_owned(),
        text: format!("{error}. The page was made without it."),
        places: Vec::new(),
    }
}

fn of_reading(input: &Input) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut push = |level, title: &str, text: String| {
        let places = vec![input.name.clone()];
        warnings.push(Warning { level, title: title.to_owned(), text, places });
    };
    if input.result.points.is_empty() {
        push(
            Level::Broken,
            "Nothing was measured",
            "The result has no point: no load was measured to its end.".to_owned(),
        );
    }
    match &input.requests {
        Requests::NotKept => push(
            Level::Note,
            "Single requests were not kept",
            "Distributions, latencies by length and timelines need them.".to_owned(),
        ),
        Requests::Missing(why) => push(
            Level::Broken,
            "The file with the requests is missing",
            format!(
                "{why}. Distributions, latencies by length and timelines need it; keep it beside the result."
            ),
        ),
        Requests::Read { lines, broken: Some(broken) } => push(
            Level::Broken,
            "Some requests could not be read",
            format!(
                "{} of {} lines; the first: {}. Tables and sweeps are whole, distributions and timelines lack these requests.",
                figures::count(broken.count),
                figures::count(*lines),
                broken.first
            ),
        ),
        Requests::Read { broken: None, .. } => {}
    }
    warnings
}

/// One for each kind: its texts with the points that they are about.
fn of_results(study: &Study) -> Vec<Warning> {
    let mut by_kind: BTreeMap<WarningKind, Vec<(String, String)>> = BTreeMap::new();
    for input in study.inputs {
        for warning in &input.result.warnings {
            let place = place(study, input, warning.point);
            by_kind.entry(warning.kind).or_default().push((place, warning.text.clone()));
        }
    }
    by_kind.into_iter().map(|(kind, said)| told(kind, said)).collect()
}

/// More texts than these are not read.
const MOST_TEXTS: usize = 6;

fn told(kind: WarningKind, said: Vec<(String, String)>) -> Warning {
    let level = level(kind);
    let title = title(kind).to_owned();
    let (first_place, first_text) = said[0].clone();
    if said.iter().all(|(_, text)| *text == first_text) {
        let places = said.into_iter().map(|(place, _)| place).filter(|place| !place.is_empty()).collect();
        return Warning { level, title, text: first_text, places };
    }
    let line = |(place, text): &(String, String)| match place.as_str() {
        "" => text.clone(),
        place => format!("{place}: {text}"),
    };
    let more = said.len().saturating_sub(MOST_TEXTS);
    let mut places: Vec<String> = said.iter().take(MOST_TEXTS).map(line).collect();
    if more > 0 {
        places.push(format!("and {more} more"));
    }
    let text = if first_place.is_empty() { String::new() } else { format!("At {} loads.", said.len()) };
    Warning { level, title, text, places }
}

fn place(study: &Study, input: &Input, point: Option<u32>) -> String {
    let Some(point) = point.and_then(|index| input.result.points.get(index as usize)) else {
        return if study.inputs.len() > 1 { input.name.clone() } else { String::new() };
    };
    let series = study.series_of(input, &point.system).map(|index| study.series[index].name.as_str());
    let load = study.loads.iter().find(|load| load.is(&point.load)).map(|load| load.label.as_str());
    let mut place = format!("{}, {}", series.unwrap_or(&point.system), load.unwrap_or_default());
    let rounds = input.result.points.iter().any(|other| other.round != point.round);
    if rounds {
        place = format!("{place}, round {}", point.round + 1);
    }
    place
}

fn title(kind: WarningKind) -> &'static str {
    match kind {
        WarningKind::ClientLimit => "The client was at its limit",
        WarningKind::Failures => "Requests failed",
        WarningKind::Unfinished => "Requests were not over at the end",
        WarningKind::Saturated => "The system was saturated",
        WarningKind::RepeatedPrompts => "Prompts were repeated while a prefix cache may have been on",
        WarningKind::EarlyEos => "Answers ended early",
        WarningKind::OtherLengths => "Lengths were not those of the workload",
        WarningKind::FewSamples => "Few samples for a p99",
        WarningKind::FewRounds => "Few rounds",
        WarningKind::CoarseChunks => "Several tokens in one chunk",
        WarningKind::SharedHost => "Client and servers shared a machine",
        WarningKind::MissingFigures => "Figures are missing",
        WarningKind::Other => "Warning of a newer version",
    }
}

fn level(kind: WarningKind) -> Level {
    match kind {
        WarningKind::FewRounds
        | WarningKind::CoarseChunks
        | WarningKind::SharedHost
        | WarningKind::MissingFigures => Level::Note,
        _ => Level::Warning,
    }
}
