//! What engines and the router wrote down of single requests: spans in the Chrome trace format.
//!
//! A span is a complete event (`"ph": "X"`). Whose it is, says its `args.request`, the client's x-request-id or the answer's id; or
//! that of the span `request` with the same `args.trace`. Its name says what it is: `queue`, `prefill chunk`, `slice` or `first
//! step`; others are left alone. Times are microseconds of one clock for the whole file. See docs/tracing.md.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::timeline::Phase;

/// Spans of requests, by their ids.
#[derive(Clone, Debug, Default)]
pub struct Trace(BTreeMap<String, Vec<Span>>);

/// Milliseconds of the file's clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    pub phase: Phase,
    pub from_ms: f64,
    pub to_ms: f64,
}

#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("cannot read {}: {error}", path.display())]
    Io { path: PathBuf, error: std::io::Error },
    #[error("{}: this is no trace: {error}", path.display())]
    Malformed { path: PathBuf, error: serde_json::Error },
}

/// Both forms of the format: an object with the events, or the events alone.
#[derive(Deserialize)]
#[serde(untagged)]
enum File {
    Object {
        #[serde(rename = "traceEvents")]
        events: Vec<Event>,
    },
    Events(Vec<Event>),
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Event {
    name: String,
    ph: String,
    ts: f64,
    dur: f64,
    args: Args,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Args {
    request: Option<String>,
    trace: Option<String>,
}

impl Trace {
    /// Adds a file's spans.
    ///
    /// # Errors
    /// If the file cannot be read or is no trace.
    pub fn read(&mut self, path: &Path) -> Result<(), TraceError> {
        let text =
            std::fs::read_to_string(path).map_err(|error| TraceError::Io { path: path.to_owned(), error })?;
        // One that was cut off ends with a comma.
        let text = match text.trim_end().strip_suffix(',') {
            Some(cut_off) => format!("{cut_off}]"),
            None => text,
        };
        let file = serde_json::from_str(&text)
            .map_err(|error| TraceError::Malformed { path: path.to_owned(), error })?;
        let (File::Object { events } | File::Events(events)) = file;
        let events: Vec<Event> = events.into_iter().filter(|event| event.ph == "X").collect();
        // Engines know a request by another name than its client.
        let clients = events.iter().filter(|event| event.name == "request");
        let clients =
            clients.filter_map(|event| Some((event.args.trace.clone()?, event.args.request.clone()?)));
        let clients: BTreeMap<String, String> = clients.collect();
        for event in events {
            let client = event.args.trace.and_then(|trace| clients.get(&trace).cloned());
            let (Some(request), Some(phase)) = (client.or(event.args.request), phase(&event.name)) else {
                continue;
            };
            let (from_ms, to_ms) = (event.ts / 1000.0, (event.ts + event.dur) / 1000.0);
            self.0.entry(request).or_default().push(Span { phase, from_ms, to_ms });
        }
        Ok(())
    }

    /// A request's spans since its first one began, in milliseconds; neighbours of a kind are one.
    pub fn of<'a>(&self, ids: impl IntoIterator<Item = &'a str>) -> Vec<Span> {
        let ids: BTreeSet<&str> = ids.into_iter().collect();
        let mut spans: Vec<Span> = ids.iter().filter_map(|id| self.0.get(*id)).flatten().copied().collect();
        spans.sort_by(|a, b| a.phase.cmp(&b.phase).then(a.from_ms.total_cmp(&b.from_ms)));
        let begin = spans.iter().map(|span| span.from_ms).fold(f64::INFINITY, f64::min);
        let mut joined: Vec<Span> = Vec::new();
        for span in spans {
            let span = Span { from_ms: span.from_ms - begin, to_ms: span.to_ms - begin, ..span };
            match joined.last_mut() {
                Some(last) if last.phase == span.phase && span.from_ms <= last.to_ms + TOUCHING_MS => {
                    last.to_ms = last.to_ms.max(span.to_ms);
                }
                _ => joined.push(span),
            }
        }
        joined
    }
}

/// A gap that nobody sees.
const TOUCHING_MS: f64 = 0.05;

fn phase(name: &str) -> Option<Phase> {
    match name {
        "queue" => Some(Phase::Queue),
        "prefill chunk" => Some(Phase::Prefill),
        "slice" => Some(Phase::Transfer),
        "first step" => Some(Phase::FirstStep),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Trace, TraceError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let mut trace = Trace::default();
        trace.read(file.path()).map(|()| trace)
    }

    const EVENTS: &str = r#"[
        {"name": "queue", "ph": "X", "ts": 1000000, "dur": 2000, "pid": 1, "args": {"request": "a"}},
        {"name": "prefill chunk", "ph": "X", "ts": 1002000, "dur": 3000, "args": {"request": "a", "tokens": 512}},
        {"name": "prefill chunk", "ph": "X", "ts": 1005000, "dur": 3000, "args": {"request": "a"}},
        {"name": "slice", "ph": "X", "ts": 1005100, "dur": 400, "args": {"trace": "7"}},
        {"name": "slice", "ph": "X", "ts": 1008000, "dur": 400, "args": {"request": "cmpl-a"}},
        {"name": "request", "ph": "X", "ts": 999000, "dur": 90000, "args": {"request": "a", "trace": "7"}},
        {"name": "process_name", "ph": "M", "args": {"name": "prefill-0"}},
        {"name": "gc", "ph": "X", "ts": 1, "dur": 1}
    ]"#;

    #[test]
    fn spans_count_from_the_first_and_neighbours_are_one() {
        let cut_off = EVENTS.trim_end().strip_suffix(']').unwrap().trim_end().to_owned() + ",\n";
        for text in [EVENTS.to_owned(), format!("{{\"traceEvents\": {EVENTS}}}"), cut_off] {
            let spans = read(&text).unwrap().of(["a", "cmpl-a"]);
            let told: Vec<(Phase, f64, f64)> =
                spans.iter().map(|span| (span.phase, span.from_ms, span.to_ms)).collect();
            let near = |a: f64, b: f64| (a - b).abs() < 1e-6;
            let wanted = [
                (Phase::Queue, 0.0, 2.0),
                (Phase::Prefill, 2.0, 8.0),
                (Phase::Transfer, 5.1, 5.5),
                (Phase::Transfer, 8.0, 8.4),
            ];
            assert_eq!(told.len(), wanted.len(), "{told:?}");
            for (found, wanted) in told.iter().zip(wanted) {
                assert!(
                    found.0 == wanted.0 && near(found.1, wanted.1) && near(found.2, wanted.2),
                    "{told:?}"
                );
            }
        }
    }

    #[test]
    fn a_stranger_has_no_spans_and_what_is_no_trace_says_so() {
        assert!(read(EVENTS).unwrap().of(["b"]).is_empty());
        assert!(read("{\"traceEvents\": 1}").is_err());
        assert!(
            Trace::default().read(Path::new("/none")).unwrap_err().to_string().starts_with("cannot read")
        );
    }
}
