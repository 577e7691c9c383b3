//! What is written: something that took time, in which lane of the picture, and which trace it belongs to.

use std::borrow::Cow;

use serde::{Serialize, Serializer};

use crate::trace_parent::{SpanId, TraceId, TraceParent};

/// Times are nanoseconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    pub name: &'static str,
    pub lane: Lane,
    /// None for what a process does for all of its requests; that is in the file only.
    pub context: Option<SpanContext>,
    pub start_ns: u64,
    pub end_ns: u64,
    /// Did not come to what it was for.
    pub failed: bool,
    pub args: Args,
    /// What happened in between, and when.
    pub events: Vec<(&'static str, u64)>,
    pub flow: Option<Flow>,
}

impl Span {
    pub fn new(name: &'static str, lane: Lane, start_ns: u64, end_ns: u64) -> Self {
        let (context, failed, args, events, flow) = (None, false, Args::default(), Vec::new(), None);
        Self { name, lane, context, start_ns, end_ns, failed, args, events, flow }
    }
}

/// Where a span is in its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanContext {
    pub trace: TraceId,
    pub span: SpanId,
    pub parent: Option<SpanId>,
    pub sampled: bool,
    pub kind: Kind,
}

impl SpanContext {
    /// For the requests that follow from this span.
    pub fn to_parent(self) -> TraceParent {
        TraceParent { trace: self.trace, span: self.span, sampled: self.sampled }
    }
}

/// OpenTelemetry's: the side of an HTTP exchange, or neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Server,
    Client,
    Internal,
}

/// A row of the picture of one process. Rows of a slot lie together; what is in one row does not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lane {
    /// 0 is the process's own; each request that is going on has another.
    pub slot: u32,
    /// Less than [`Lane::ROWS`].
    pub row: u32,
    pub name: &'static str,
}

impl Lane {
    pub const ROWS: u32 = 64;

    /// Chrome's word for it is a thread.
    pub(crate) fn tid(self) -> u32 {
        self.slot.saturating_mul(Self::ROWS) + self.row.min(Self::ROWS - 1)
    }
}

/// An arrow between two spans, maybe of two processes: both name it, one as its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// From the start of this span.
    Out(u64),
    /// To the start of this one.
    In(u64),
    /// To its end.
    InAtEnd(u64),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Arg {
    Int(u64),
    Bool(bool),
    Text(Cow<'static, str>),
}

/// What a span says, in the order of writing. Of a client's words, only the id that it gave its request is ever among it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Args(pub Vec<(&'static str, Arg)>);

impl Args {
    pub fn int(mut self, name: &'static str, value: impl TryInto<u64>) -> Self {
        self.0.push((name, Arg::Int(value.try_into().unwrap_or(u64::MAX))));
        self
    }

    pub fn bool(mut self, name: &'static str, value: bool) -> Self {
        self.0.push((name, Arg::Bool(value)));
        self
    }

    pub fn text(mut self, name: &'static str, value: impl Into<Cow<'static, str>>) -> Self {
        self.0.push((name, Arg::Text(value.into())));
        self
    }
}

impl Serialize for Args {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}
