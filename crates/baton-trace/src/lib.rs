//! Where spans go: a file that Perfetto and chrome://tracing show, and a collector of OpenTelemetry.
//!
//! A program turns what its core did into [`Span`]s and gives them to a [`Tracer`], which never makes it wait: whatever finds no place
//! is counted. What the spans are called, and what they say, is in docs/tracing.md.

mod chrome_event;
mod chrome_file;
mod chrome_writer;
mod clock;
mod config;
mod error;
mod lanes;
mod otlp;
mod span;
mod trace_parent;
mod tracer;

pub use chrome_file::TraceFile;
pub use clock::WallClock;
pub use config::TraceConfig;
pub use error::TraceError;
pub use lanes::Lanes;
pub use span::{Arg, Args, Flow, Kind, Lane, Span, SpanContext};
pub use trace_parent::{SpanId, TraceId, TraceParent};
pub use tracer::{Process, Tracer};
