//! What a report says, before it is a page, Markdown or CSV.

use serde::Serialize;

use crate::chart::Chart;
use crate::table::Table;
use crate::timeline::Timeline;

#[derive(Clone, Debug, Default)]
pub struct Report {
    pub title: String,
    /// One line below the title: model, machine, when.
    pub facts: Vec<(String, String)>,
    pub warnings: Vec<Warning>,
    /// What is compared: each has its colour, line and marker on the whole page.
    pub series: Vec<Series>,
    pub sections: Vec<Section>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    pub level: Level,
    /// The trap in a few words.
    pub title: String,
    pub text: String,
    /// Which results or measurements it is about.
    pub places: Vec<String>,
}

/// From the worst to the mildest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Something that was asked for is not in the report.
    Broken,
    /// A number that should not be relied on as it stands.
    Warning,
    /// Worth knowing when reading on.
    Note,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Series {
    pub name: String,
    /// Colour and marker, from 0 to [`STYLES`] - 1: the system's, so that it looks the same in every result.
    pub colour: usize,
    /// How the line is dashed: the result's where several have the same system, or else the system's as well.
    pub dash: usize,
}

/// So many series look different.
pub const STYLES: usize = 8;

#[derive(Clone, Debug)]
pub struct Section {
    pub id: String,
    pub title: String,
    /// What to look for.
    pub lead: String,
    /// What the reader may choose; every chart of the section has a view for each combination.
    pub choices: Vec<Choice>,
    pub charts: Vec<Chart>,
    pub timeline: Option<Timeline>,
    pub tables: Vec<Table>,
}

#[derive(Clone, Debug)]
pub struct Choice {
    pub label: String,
    pub options: Vec<String>,
    pub chosen: usize,
}

impl Report {
    /// Every table, as the CSV output and its errors name them.
    pub fn tables(&self) -> impl Iterator<Item = &Table> {
        self.sections.iter().flat_map(|section| &section.tables)
    }
}

impl Section {
    pub fn new(id: &str, title: impl Into<String>, lead: impl Into<String>) -> Self {
        Self {
            id: id.to_owned(),
            title: title.into(),
            lead: lead.into(),
            choices: Vec::new(),
            charts: Vec::new(),
            timeline: None,
            tables: Vec::new(),
        }
    }
}
