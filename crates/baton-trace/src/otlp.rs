//! Spans to a collector, as OTLP over HTTP.
//!
//! OpenTelemetry's own crates queue, batch, encode and retry; their variables (`OTEL_BSP_*`, `OTEL_EXPORTER_OTLP_HEADERS`,
//! `OTEL_EXPORTER_OTLP_TIMEOUT`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_SERVICE_NAME`) hold. What does not fit into their queue is dropped,
//! and logged.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Request, Response, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry::trace::{
    Event, SpanContext as OtelContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchSpanProcessor, SpanData, SpanEvents, SpanProcessor};
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::error::TraceError;
use crate::span::{Arg, Kind, Span};
use crate::tracer::Process;

/// How long one request to the collector may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer of a collector.
const MAX_ANSWER_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Collector {
    processor: BatchSpanProcessor,
    scope: InstrumentationScope,
}

impl Collector {
    /// # Errors
    /// If the URL is none of plain HTTP, or a variable is wrong.
    pub fn open(url: &str, process: &Process) -> Result<Self, TraceError> {
        let failed = |why: String| TraceError::Collector { endpoint: url.to_owned(), why };
        let uri: Uri = url.parse().map_err(|error| failed(format!("{error}")))?;
        if uri.scheme_str() != Some("http") || uri.host().is_none() {
            return Err(failed("only http:// is spoken; let a collector close by send them on".to_owned()));
        }
        let client = Client::builder(TokioExecutor::new()).build_http();
        let exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_http_client(CollectorClient { client, runtime: Handle::current() })
            .with_endpoint(url)
            .build()
            .map_err(|error| failed(error.to_string()))?;
        let mut processor = BatchSpanProcessor::builder(exporter).build();
        processor.set_resource(&resource(process));
        let scope = InstrumentationScope::builder("baton").with_version(env!("CARGO_PKG_VERSION")).build();
        Ok(Self { processor, scope })
    }

    pub fn send(&self, span: &Span) {
        if let Some(data) = data(span, &self.scope) {
            self.processor.on_end(data);
        }
    }

    pub fn finish(&self, limit: Duration) {
        if let Err(error) = self.processor.shutdown_with_timeout(limit) {
            tracing::warn!(%error, "the last spans may not have reached the collector");
        }
    }
}

fn resource(process: &Process) -> Resource {
    let instance = KeyValue::new("service.instance.id", process.name.clone());
    let resource = Resource::builder();
    // What the operator calls it counts more.
    let named = std::env::var_os("OTEL_SERVICE_NAME").is_some();
    let resource = if named { resource } else { resource.with_service_name(process.service) };
    resource.with_attribute(instance).build()
}

/// None for what is in no trace, or in one that is not to be recorded.
fn data(span: &Span, scope: &InstrumentationScope) -> Option<SpanData> {
    let context = span.context.filter(|context| context.sampled)?;
    let attribute = |(name, value): &(&'static str, Arg)| {
        let value = match value {
            Arg::Int(value) => Value::I64(i64::try_from(*value).unwrap_or(i64::MAX)),
            Arg::Bool(value) => Value::Bool(*value),
            Arg::Text(text) => Value::String(text.clone().into()),
        };
        KeyValue::new(format!("baton.{name}"), value)
    };
    let mut events = SpanEvents::default();
    events.events =
        span.events.iter().map(|(name, at)| Event::new(*name, time(*at), Vec::new(), 0)).collect();
    let span_id = |id: crate::SpanId| SpanId::from(id.0);
    Some(SpanData {
        span_context: OtelContext::new(
            TraceId::from(context.trace.0),
            span_id(context.span),
            TraceFlags::SAMPLED,
            false,
            TraceState::default(),
        ),
        parent_span_id: context.parent.map_or(SpanId::INVALID, span_id),
        parent_span_is_remote: context.kind == Kind::Server,
        span_kind: match context.kind {
            Kind::Server => SpanKind::Server,
            Kind::Client => SpanKind::Client,
            Kind::Internal => SpanKind::Internal,
        },
        name: span.name.into(),
        start_time: time(span.start_ns),
        end_time: time(span.end_ns.max(span.start_ns)),
        attributes: span.args.0.iter().map(attribute).collect(),
        dropped_attributes_count: 0,
        events,
        links: Default::default(),
        status: if span.failed { Status::error("") } else { Status::Unset },
        instrumentation_scope: scope.clone(),
    })
}

fn time(unix_ns: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(unix_ns)
}

/// The HTTP client that everything else here uses. The exporter asks from a thread of its own, outside of any runtime.
#[derive(Debug)]
struct CollectorClient {
    client: Client<HttpConnector, Full<Bytes>>,
    runtime: Handle,
}

#[async_trait]
impl HttpClient for CollectorClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let answer = self.client.request(request.map(Full::new));
        let exchange = async {
            let (head, body) = answer.await?.into_parts();
            let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await?.to_bytes();
            Ok::<_, HttpError>(Response::from_parts(head, body))
        };
        self.runtime.spawn(async { timeout(REQUEST_TIMEOUT, exchange).await? }).await?
    }
}
