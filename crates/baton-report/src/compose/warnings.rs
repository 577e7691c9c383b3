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
            text: "These results were measured one after the other, so what else the machines did may have differed. Only baton bench compare \
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
    let mut by_kind: BTreeMap<WarningKind, BTreeMap<String, Vec<Place>>> = BTreeMap::new();
    for input in study.inputs {
        for warning in &input.result.warnings {
            let place = Place::new(study, input, warning.point);
            by_kind.entry(warning.kind).or_default().entry(warning.text.clone()).or_default().push(place);
        }
    }
    by_kind.into_iter().map(|(kind, texts)| told(study, kind, texts)).collect()
}

/// What a warning is about.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// A run, with its name if there are several.
    Run(Option<String>),
    Point {
        series: usize,
        load: usize,
    },
}

impl Place {
    fn new(study: &Study, input: &Input, point: Option<u32>) -> Self {
        let run = || Self::Run((study.inputs.len() > 1).then(|| input.name.clone()));
        let Some(point) = point.and_then(|index| input.result.points.get(index as usize)) else {
            return run();
        };
        let load = study.loads.iter().position(|load| load.is(&point.load));
        match (study.series_of(input, &point.system), load) {
            (Some(series), Some(load)) => Self::Point { series, load },
            _ => run(),
        }
    }
}

/// One text as it stands; several with the places of each.
fn told(study: &Study, kind: WarningKind, texts: BTreeMap<String, Vec<Place>>) -> Warning {
    let mut warning = Warning {
        level: level(kind),
        title: title(kind).to_owned(),
        text: String::new(),
        places: Vec::new(),
    };
    let several = texts.len() > 1;
    for (text, places) in texts {
        let places = named(study, &places);
        match (several, places.is_empty()) {
            (false, _) => {
                warning.text = text;
                warning.places = places;
            }
            (true, true) => warning.places.push(text),
            (true, false) => warning.places.push(format!("{text} ({})", places.join("; "))),
        }
    }
    let more = warning.places.len().saturating_sub(MOST_PLACES);
    if more > 0 {
        warning.places.truncate(MOST_PLACES);
        warning.places.push(format!("and {more} more"));
    }
    warning
}

/// More than these are not read.
const MOST_PLACES: usize = 12;

/// Each series with its loads, whichever rounds.
fn named(study: &Study, places: &[Place]) -> Vec<String> {
    let mut named: Vec<String> = Vec::new();
    for place in places {
        if let Place::Run(Some(run)) = place
            && !named.contains(run)
        {
            named.push(run.clone());
        }
    }
    for (series, described) in study.series.iter().enumerate() {
        let at = |load: usize| places.contains(&Place::Point { series, load });
        let measured: Vec<usize> = (0..study.loads.len())
            .filter(|load| study.at_load(*load).any(|measured| measured.series == series))
            .collect();
        let loads: Vec<&str> =
            measured.iter().filter(|load| at(**load)).map(|load| study.loads[*load].label.as_str()).collect();
        match loads.len() {
            0 => {}
            all if all == measured.len() && all > 1 => named.push(format!("{}: every load", described.name)),
            _ => named.push(format!("{}: {}", described.name, loads.join(", "))),
        }
    }
    named
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
