//! Results as they lie on disk.

use std::fs::File;
use std::io::{BufReader, ErrorKind};
use std::path::{Path, PathBuf};

use baton_workload::result::{
    Load, Point, REQUESTS_FILE, RESULT_FILE, ResultError, RunResult, read_requests,
};

use crate::answers::Answers;

/// One result with its requests.
#[derive(Debug)]
pub struct Input {
    /// What the user called the run, or else its file or directory.
    pub name: String,
    pub result: RunResult,
    pub measurements: Vec<Measured>,
    pub requests: Requests,
}

/// One load on one system: its points, and the requests of all of them.
#[derive(Debug)]
pub struct Measured {
    pub system: String,
    pub load: Load,
    /// Indices into the result's points.
    pub points: Vec<usize>,
    pub answers: Answers,
}

/// How the file with the requests was read.
#[derive(Debug)]
pub enum Requests {
    /// The result names none.
    NotKept,
    /// The result names one that is not there, or cannot be opened.
    Missing(String),
    Read {
        lines: u64,
        broken: Option<BrokenLines>,
    },
}

#[derive(Debug)]
pub struct BrokenLines {
    pub count: u64,
    pub first: String,
}

/// Why a result is not in the report.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    #[error("cannot read {}: {error}", path.display())]
    Io { path: PathBuf, error: std::io::Error },
    #[error("{}: no {RESULT_FILE} in this directory; is it one that `baton bench` wrote?", path.display())]
    NoResult { path: PathBuf },
    #[error("{}: the file is empty; was the run stopped before its end?", path.display())]
    Empty { path: PathBuf },
    #[error("{}: {error}", path.display())]
    Result { path: PathBuf, error: ResultError },
}

impl Input {
    /// Reads a result: its file, or the directory that `baton bench` wrote.
    ///
    /// # Errors
    /// If there is no result. Requests that cannot be read are no error, but are told in the report.
    pub fn read(path: &Path) -> Result<Self, InputError> {
        let file = if path.is_dir() { path.join(RESULT_FILE) } else { path.to_owned() };
        let text = std::fs::read_to_string(&file).map_err(|error| match error.kind() {
            ErrorKind::NotFound if path.is_dir() => InputError::NoResult { path: path.to_owned() },
            _ => InputError::Io { path: file.clone(), error },
        })?;
        if text.trim().is_empty() {
            return Err(InputError::Empty { path: file });
        }
        let result =
            RunResult::read(&text).map_err(|error| InputError::Result { path: file.clone(), error })?;
        let name = result
            .conditions
            .label
            .clone()
            .unwrap_or_else(|| name_of(&path.canonicalize().unwrap_or_else(|_| path.to_owned())));
        let mut measurements = measurements(&result.points);
        let requests = read_beside(&file, &result, &mut measurements);
        Ok(Self { name, result, measurements, requests })
    }
}

/// Points that differ in nothing but their round.
fn measurements(points: &[Point]) -> Vec<Measured> {
    let mut measurements: Vec<Measured> = Vec::new();
    for (index, point) in points.iter().enumerate() {
        match measurements.iter_mut().find(|m| m.system == point.system && m.load == point.load) {
            Some(measured) => measured.points.push(index),
            None => measurements.push(Measured {
                system: point.system.clone(),
                load: point.load.clone(),
                points: vec![index],
                answers: Answers::default(),
            }),
        }
    }
    measurements
}

fn read_beside(file: &Path, result: &RunResult, measurements: &mut [Measured]) -> Requests {
    let Some(named) = &result.requests_file else { return Requests::NotKept };
    // A result from elsewhere may name a file of its own directory only.
    let Some(name) = Path::new(named).file_name() else { return Requests::Missing(named.clone()) };
    let opened = match File::open(file.with_file_name(name)) {
        Ok(opened) => opened,
        Err(error) => return Requests::Missing(format!("{}: {error}", name.display())),
    };
    let of_point = |point: usize| measurements.iter().position(|measured| measured.points.contains(&point));
    let of_points: Vec<Option<usize>> = (0..result.points.len()).map(of_point).collect();
    let (mut lines, mut broken) = (0, None);
    for record in read_requests(BufReader::new(opened)) {
        lines += 1;
        let fault = match record {
            Err(error) => error.to_string(),
            Ok(record) => {
                let point = record.point as usize;
                match of_points.get(point).copied().flatten() {
                    Some(measured) => {
                        let sampled =
                            result.points[point].round == first_round(result, &measurements[measured]);
                        measurements[measured].answers.add(record, sampled);
                        continue;
                    }
                    None => format!(
                        "request {} is of point {point}, which the result does not have",
                        record.index
                    ),
                }
            }
        };
        broken.get_or_insert(BrokenLines { count: 0, first: fault }).count += 1;
    }
    Requests::Read { lines, broken }
}

fn first_round(result: &RunResult, measured: &Measured) -> u32 {
    measured.points.first().map_or(0, |point| result.points[*point].round)
}

/// The directory of a result, or a file's own name if it was renamed.
fn name_of(path: &Path) -> String {
    let named = match path.file_name() {
        Some(name) if name == RESULT_FILE || name == REQUESTS_FILE => path.parent().and_then(Path::file_name),
        Some(_) => path.file_stem(),
        None => None,
    };
    named.map_or_else(|| "result".to_owned(), |name| name.to_string_lossy().into_owned())
}
