//! A tracer as programs use it: into a file, to a collector, and where neither takes anything.

use std::io::Read;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use baton_trace::{
    Args, Kind, Lane, Process, Span, SpanContext, TraceConfig, TraceError, TraceParent, Tracer,
};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as OtlpValue;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message;
use serde_json::Value;
use tokio::net::TcpListener;

const LIMIT: Duration = Duration::from_secs(60);
const LANE: Lane = Lane { slot: 1, row: 0, name: "request" };

fn process(name: &str) -> Process {
    Process { name: name.to_owned(), service: "baton-engine", order: 1 }
}

fn span(tracer: &Tracer, context: Option<SpanContext>) -> Span {
    let now = tracer.unix_ns(std::time::Instant::now());
    let args = Args::default().int("units", 5_u32);
    Span { context, args, ..Span::new("slice", LANE, now, now + 1_000_000) }
}

#[test]
fn nobody_asks_and_nothing_is_recorded() {
    assert!(Tracer::open(&TraceConfig::default(), &process("p")).unwrap().is_none());
}

#[test]
fn spans_of_several_tracers_share_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.json");
    let config = TraceConfig { file: Some(path.clone()), ..TraceConfig::default() };
    let tracers = ["p", "d"].map(|name| Tracer::open(&config, &process(name)).unwrap().unwrap());
    let parent = tracers[0].continue_from(None);
    for tracer in &tracers {
        let context = tracer.child(&parent, Kind::Internal);
        tracer.record(span(tracer, Some(context)));
        tracer.finish(LIMIT);
        assert_eq!(tracer.lost(), 0);
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let lines = text.strip_prefix("[\n").unwrap().lines();
    let events: Vec<Value> =
        lines.map(|line| serde_json::from_str(line.strip_suffix(',').unwrap()).unwrap()).collect();
    let spans: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X").collect();
    assert_eq!(spans.len(), 2);
    assert_ne!(spans[0]["pid"], spans[1]["pid"], "each has rows of its own");
    assert_eq!(spans[0]["args"]["trace"], spans[1]["args"]["trace"]);
    assert_ne!(spans[0]["args"]["span"], spans[1]["args"]["span"]);
    assert_eq!(spans[1]["args"]["parent"], parent.span.to_string());
    let mut names: Vec<&str> = events
        .iter()
        .filter(|event| event["name"] == "process_name")
        .map(|event| event["args"]["name"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["d", "p"], "whichever thread was first");
}

/// I11: a disk that takes nothing costs spans, and no one's time.
#[test]
fn what_finds_no_place_is_counted_and_said() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
    let config = TraceConfig { file: Some(path.clone()), ..TraceConfig::default() };
    let tracer = Tracer::open(&config, &process("p")).unwrap().unwrap();
    let all = 40_000;
    for _ in 0..all {
        tracer.record(span(&tracer, None));
    }
    let lost = tracer.lost();
    assert!(lost > 0 && lost < all, "{lost}");
    // Before the last writer is gone, so that there is an end to read to.
    let mut pipe = std::fs::File::open(&path).unwrap();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        pipe.read_to_string(&mut text).unwrap();
        text
    });
    drop(tracer);
    let text = reader.join().unwrap();
    let said = text.lines().filter(|line| line.contains("spans lost")).map(|line| {
        let event: Value = serde_json::from_str(line.strip_suffix(',').unwrap()).unwrap();
        event["args"]["spans"].as_u64().unwrap()
    });
    assert_eq!(said.sum::<u64>(), lost);
    assert_eq!(text.lines().filter(|line| line.contains("\"slice\"")).count() as u64, all - lost);
}

type Seen = Arc<Mutex<Vec<ExportTraceServiceRequest>>>;

/// A collector that keeps what it gets.
async fn collector() -> (String, Seen) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1/traces", listener.local_addr().unwrap());
    let seen = Seen::default();
    let kept = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let kept = Arc::clone(&kept);
            let service = service_fn(move |request: Request<Incoming>| {
                let kept = Arc::clone(&kept);
                async move {
                    assert_eq!(request.uri().path(), "/v1/traces");
                    assert_eq!(request.headers()["content-type"], "application/x-protobuf");
                    let body = request.into_body().collect().await?.to_bytes();
                    kept.lock().unwrap().push(ExportTraceServiceRequest::decode(body).unwrap());
                    Ok::<_, hyper::Error>(Response::new(Full::new(Bytes::new())))
                }
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    (url, seen)
}

#[tokio::test]
async fn a_collector_gets_the_spans_that_are_to_be_recorded() {
    let (url, seen) = collector().await;
    let config = TraceConfig { collector: Some(url), ..TraceConfig::default() };
    let tracer = Tracer::open(&config, &process("prefill-0")).unwrap().unwrap();
    let header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let leg = tracer.continue_from(TraceParent::parse(header));
    let child = tracer.child(&leg, Kind::Internal);
    tracer.record(Span { failed: true, ..span(&tracer, Some(child)) });
    let events = vec![("first token", tracer.unix_ns(std::time::Instant::now()))];
    tracer.record(Span { events, name: "prefill", ..span(&tracer, Some(leg)) });
    tracer.record(span(&tracer, None));
    tracer
        .record(span(&tracer, Some(tracer.continue_from(TraceParent::parse(&header.replace("-01", "-00"))))));
    let finishing = tracer.clone();
    tokio::task::spawn_blocking(move || finishing.finish(LIMIT)).await.unwrap();

    let seen = seen.lock().unwrap();
    let resources: Vec<_> = seen.iter().flat_map(|request| &request.resource_spans).collect();
    let attributes = &resources[0].resource.as_ref().unwrap().attributes;
    let text = |key: &str| {
        let value = attributes.iter().find(|a| a.key == key)?.value.as_ref()?.value.as_ref()?;
        if let OtlpValue::StringValue(text) = value { Some(text.as_str()) } else { None }
    };
    assert_eq!(text("service.name"), Some("baton-engine"));
    assert_eq!(text("service.instance.id"), Some("prefill-0"));
    let mut spans: Vec<_> =
        resources.iter().flat_map(|r| &r.scope_spans).flat_map(|scope| &scope.spans).collect();
    assert_eq!(spans.len(), 2, "neither what is in no trace nor what is not sampled");
    spans.sort_by_key(|span| &span.name);
    let (parent, child) = (spans[0], spans[1]);
    assert_eq!(parent.name, "prefill");
    assert_eq!(parent.trace_id, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128.to_be_bytes());
    assert_eq!(parent.parent_span_id, 0xb7ad_6b71_6920_3331_u64.to_be_bytes());
    assert_eq!((parent.kind, child.kind), (SpanKind::Server as i32, SpanKind::Internal as i32));
    assert_eq!(parent.events[0].name, "first token");
    assert_eq!((&child.trace_id, &child.parent_span_id), (&parent.trace_id, &parent.span_id));
    assert_eq!(child.end_time_unix_nano - child.start_time_unix_nano, 1_000_000);
    assert_eq!(child.attributes[0].key, "baton.units");
    assert_eq!(child.status.as_ref().unwrap().code, 2);
}

#[tokio::test]
async fn a_collector_is_spoken_to_in_plain_http_only_and_may_be_away() {
    for bad in ["https://c:4318/v1/traces", "c:4318", "grpc://c"] {
        let config = TraceConfig { collector: Some(bad.to_owned()), ..TraceConfig::default() };
        let refused = Tracer::open(&config, &process("p")).unwrap_err();
        assert!(matches!(refused, TraceError::Collector { .. }), "{bad}: {refused}");
    }
    let config =
        TraceConfig { collector: Some("http://127.0.0.1:9/v1/traces".to_owned()), ..Default::default() };
    let tracer = Tracer::open(&config, &process("p")).unwrap().unwrap();
    tracer.record(span(&tracer, Some(tracer.continue_from(None))));
    let started = std::time::Instant::now();
    tokio::task::spawn_blocking(move || tracer.finish(Duration::from_millis(200))).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}
