//! A process's end of all traces.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::TryRng;
use rand::rngs::SysRng;

use crate::chrome_file::TraceFile;
use crate::chrome_writer::ChromeWriter;
use crate::clock::WallClock;
use crate::config::TraceConfig;
use crate::error::TraceError;
use crate::otlp::Collector;
use crate::span::{Kind, Span, SpanContext};
use crate::trace_parent::{SpanId, TraceId, TraceParent};

/// Who records spans.
#[derive(Clone, Debug)]
pub struct Process {
    /// What the picture calls it, and OpenTelemetry the instance of the service.
    pub name: String,
    /// OpenTelemetry's name of the service, unless a variable says otherwise.
    pub service: &'static str,
    /// From top to bottom in the picture.
    pub order: u32,
}

/// Takes spans. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Tracer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    clock: WallClock,
    ids: Ids,
    file: Option<ChromeWriter>,
    collector: Option<Collector>,
}

impl Tracer {
    /// None if nobody wants spans. To be called within a tokio runtime that outlives it.
    ///
    /// # Errors
    /// If the file cannot be written, or the collector's URL is none that spans can be sent to. Whether anybody answers there is seen
    /// later, and logged.
    pub fn open(config: &TraceConfig, process: &Process) -> Result<Option<Self>, TraceError> {
        if *config == TraceConfig::default() {
            return Ok(None);
        }
        let clock = WallClock::start();
        let file = config.file.as_ref().map(|path| {
            let file = TraceFile::append(path)?;
            ChromeWriter::spawn(file, next_pid(), process, clock)
        });
        let collector = config.collector.as_ref().map(|url| Collector::open(url, process));
        let inner =
            Inner { clock, ids: Ids::new()?, file: file.transpose()?, collector: collector.transpose()? };
        Ok(Some(Self(Arc::new(inner))))
    }

    /// Nanoseconds since the Unix epoch.
    pub fn unix_ns(&self, instant: Instant) -> u64 {
        self.0.clock.unix_ns(instant)
    }

    /// For a request that came with `parent`; one without begins a trace.
    pub fn continue_from(&self, parent: Option<TraceParent>) -> SpanContext {
        let kind = Kind::Server;
        let span = self.0.ids.span();
        match parent {
            Some(parent) => SpanContext {
                trace: parent.trace,
                span,
                parent: Some(parent.span),
                sampled: parent.sampled,
                kind,
            },
            None => SpanContext { trace: self.0.ids.trace(), span, parent: None, sampled: true, kind },
        }
    }

    pub fn child(&self, of: &SpanContext, kind: Kind) -> SpanContext {
        SpanContext { span: self.0.ids.span(), parent: Some(of.span), kind, ..*of }
    }

    /// Never waits.
    pub fn record(&self, span: Span) {
        if let Some(collector) = &self.0.collector {
            collector.send(&span);
        }
        if let Some(file) = &self.0.file {
            file.write(span);
        }
    }

    /// So many spans could not even be made.
    pub fn add_lost(&self, spans: u64) {
        if let Some(file) = &self.0.file {
            file.add_lost(spans);
        }
    }

    /// Spans that are not in the file, of those that should be.
    pub fn lost(&self) -> u64 {
        self.0.file.as_ref().map_or(0, ChromeWriter::lost)
    }

    /// Waits, about `limit` at most, until what was recorded is out. Nothing may be recorded after it. Not for an async thread.
    pub fn finish(&self, limit: Duration) {
        if let Some(file) = &self.0.file {
            file.flush(limit);
        }
        if let Some(collector) = &self.0.collector {
            collector.finish(limit);
        }
    }
}

/// The picture's number for this process: its own, or another that no process has if it has several tracers.
fn next_pid() -> u32 {
    /// Linux gives no pid above.
    const PID_BITS: u32 = 22;
    static TRACERS: AtomicU32 = AtomicU32::new(0);
    let others = TRACERS.fetch_add(1, Ordering::Relaxed) % (1 << (31 - PID_BITS));
    std::process::id() + (others << PID_BITS)
}

/// Ids of this process: no two are alike, and other processes' hardly are.
#[derive(Debug)]
struct Ids {
    next: AtomicU64,
    hash: RandomState,
}

impl Ids {
    fn new() -> Result<Self, TraceError> {
        let seed = SysRng.try_next_u64().map_err(|error| TraceError::Randomness(error.to_string()))?;
        Ok(Self { next: AtomicU64::new(seed), hash: RandomState::new() })
    }

    fn span(&self) -> SpanId {
        // Zero is no id.
        SpanId(mix(self.next.fetch_add(1, Ordering::Relaxed)).max(1))
    }

    fn trace(&self) -> TraceId {
        let low = self.span().0;
        TraceId(u128::from(self.hash.hash_one(low)) << 64 | u128::from(low))
    }
}

/// SplitMix64's last step: another number for each.
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
