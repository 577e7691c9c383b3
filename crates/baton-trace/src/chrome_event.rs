//! Spans as lines of a Chrome trace.

use serde::Serialize;

use crate::span::{Args, Flow, Lane, Span};
use crate::tracer::Process;

/// So that a line is written in one piece by whatever file system.
const MAX_LINE_BYTES: usize = 4096;
const CATEGORY: &str = "baton";

/// <https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>. Times are whole microseconds: since 1970 they are as
/// large as a reader's double can hold, and rounded down alike, what lies in something else still does.
#[derive(Serialize)]
struct Event<'a, A: Serialize> {
    name: &'a str,
    cat: &'static str,
    ph: &'static str,
    ts: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<u64>,
    pid: u32,
    tid: u32,
    /// Of a flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// A flow's: it ends in the event that encloses it. An event's: how much of the picture it concerns.
    #[serde(skip_serializing_if = "Option::is_none")]
    bp: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    args: A,
}

#[derive(Serialize)]
struct Named<'a> {
    name: &'a str,
}

#[derive(Serialize)]
struct Sorted {
    sort_index: u32,
}

#[derive(Serialize)]
struct SpanArgs<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    span: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    failed: bool,
    #[serde(flatten)]
    args: &'a Args,
}

/// Lines of one process.
#[derive(Debug)]
pub(crate) struct Lines {
    pub pid: u32,
    pub bytes: Vec<u8>,
}

impl Lines {
    /// What the process is called, and where it stands among the others.
    pub fn process(&mut self, process: &Process) {
        self.add(&Event { ph: "M", ..self.event("process_name", 0, 0, Named { name: &process.name }) });
        let sort_index = process.order;
        self.add(&Event { ph: "M", ..self.event("process_sort_index", 0, 0, Sorted { sort_index }) });
    }

    pub fn lane(&mut self, lane: Lane) {
        let name = if lane.slot == 0 { lane.name.to_owned() } else { format!("{} {}", lane.slot, lane.name) };
        self.add(&Event { ph: "M", ..self.event("thread_name", 0, lane.tid(), Named { name: &name }) });
        let sort_index = lane.tid();
        self.add(&Event { ph: "M", ..self.event("thread_sort_index", 0, lane.tid(), Sorted { sort_index }) });
    }

    /// The span, what happened in it, and its end of an arrow. False if it is too long to be written.
    pub fn span(&mut self, span: &Span) -> bool {
        let tid = span.lane.tid();
        let (ts, end) = (span.start_ns / 1000, span.end_ns.max(span.start_ns) / 1000);
        let context = span.context.as_ref();
        let trace = context.map(|context| context.trace.to_string());
        let args = SpanArgs {
            trace: trace.clone(),
            span: context.map(|context| context.span.to_string()),
            parent: context.and_then(|context| context.parent).map(|parent| parent.to_string()),
            failed: span.failed,
            args: &span.args,
        };
        if !self.add(&Event { dur: Some(end - ts), ..self.event(span.name, ts, tid, args) }) {
            return false;
        }
        for (name, at_ns) in &span.events {
            let (span, parent) = (None, context.map(|context| context.span.to_string()));
            let args = SpanArgs { trace: trace.clone(), span, parent, failed: false, args: &Args::default() };
            self.add(&Event { ph: "i", s: Some("t"), ..self.event(name, at_ns / 1000, tid, args) });
        }
        let (ph, id, at) = match span.flow {
            None => return true,
            Some(Flow::Out(id)) => ("s", id, ts),
            Some(Flow::In(id)) => ("f", id, ts),
            // The end itself is outside.
            Some(Flow::InAtEnd(id)) => ("f", id, end.saturating_sub(1).max(ts)),
        };
        let (id, bp) = (Some(format!("{id:#x}")), (ph == "f").then_some("e"));
        self.add(&Event { ph, id, bp, ..self.event("hand-over", at, tid, Args::default()) });
        true
    }

    /// So many spans are missing.
    pub fn lost(&mut self, spans: u64, unix_ns: u64) {
        let args = Args::default().int("spans", spans);
        self.add(&Event { ph: "i", s: Some("p"), ..self.event("spans lost", unix_ns / 1000, 0, args) });
    }

    fn event<'a, A: Serialize>(&self, name: &'a str, ts: u64, tid: u32, args: A) -> Event<'a, A> {
        let (cat, ph, dur, pid) = (CATEGORY, "X", None, self.pid);
        Event { name, cat, ph, ts, dur, pid, tid, id: None, bp: None, s: None, args }
    }

    fn add<A: Serialize>(&mut self, event: &Event<'_, A>) -> bool {
        let before = self.bytes.len();
        serde_json::to_writer(&mut self.bytes, event).expect("text and numbers are JSON");
        self.bytes.extend_from_slice(b",\n");
        let fits = self.bytes.len() - before <= MAX_LINE_BYTES;
        if !fits {
            self.bytes.truncate(before);
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::span::{Kind, SpanContext};
    use crate::trace_parent::{SpanId, TraceId};

    fn events(lines: &Lines) -> Vec<Value> {
        let text = std::str::from_utf8(&lines.bytes).unwrap();
        text.lines().map(|line| serde_json::from_str(line.strip_suffix(',').unwrap()).unwrap()).collect()
    }

    #[test]
    fn a_span_is_an_event_with_its_trace_and_an_arrow() {
        let mut lines = Lines { pid: 7, bytes: Vec::new() };
        let lane = Lane { slot: 2, row: 1, name: "phases" };
        lines.lane(lane);
        let context = SpanContext {
            trace: TraceId(0xabc),
            span: SpanId(5),
            parent: Some(SpanId(4)),
            sampled: true,
            kind: Kind::Internal,
        };
        let span = Span {
            context: Some(context),
            args: Args::default().int("units", 3_u32).text("direction", "read").bool("whole", true),
            events: vec![("first byte", 2_500)],
            flow: Some(Flow::InAtEnd(255)),
            ..Span::new("slice", lane, 1_999, 10_001)
        };
        assert!(lines.span(&span));
        let events = events(&lines);
        assert_eq!(events[0]["args"], json!({"name": "2 phases"}));
        let trace = "00000000000000000000000000000abc";
        let args = json!({"trace": trace, "span": "0000000000000005", "parent": "0000000000000004",
            "units": 3, "direction": "read", "whole": true});
        assert_eq!(
            events[2],
            json!({"name": "slice", "cat": "baton", "ph": "X", "ts": 1, "dur": 9, "pid": 7, "tid": 129, "args": args})
        );
        let args = json!({"trace": trace, "parent": "0000000000000005"});
        assert_eq!((&events[3]["ph"], &events[3]["ts"], &events[3]["args"]), (&json!("i"), &json!(2), &args));
        assert_eq!(
            (&events[4]["ph"], &events[4]["ts"], &events[4]["id"]),
            (&json!("f"), &json!(9), &json!("0xff"))
        );
    }

    #[test]
    fn a_line_that_is_too_long_is_left_out_whole() {
        let mut lines = Lines { pid: 7, bytes: Vec::new() };
        let lane = Lane { slot: 0, row: 0, name: "steps" };
        let args = Args::default().text("text", "x".repeat(MAX_LINE_BYTES));
        assert!(!lines.span(&Span { args, ..Span::new("step", lane, 0, 0) }));
        assert!(lines.bytes.is_empty());
    }
}
