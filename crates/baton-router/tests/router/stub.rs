//! An engine that answers as it is told, on a real socket.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use baton_types::{EngineId, EngineInfo, EngineLoad, EngineName, EngineRole, SideChannel, TransferId};
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// What a stub does with a leg.
#[derive(Clone, Debug)]
pub enum Behaviour {
    /// What its request asks for.
    Good,
    /// The same from a decode engine that retains the KV, 640 tokens under this id. A stream comes in pieces of so many bytes.
    Retains {
        id: u128,
        piece: usize,
    },
    Status(u16, &'static str),
    /// Closes the connection without a word.
    Reset,
    /// Does so if the connection has been used before.
    ResetIfReused,
    /// Never answers.
    Hang,
    /// Status 200 with this body.
    Json(&'static str),
    /// A stream of these pieces, which then ends so.
    Stream(Vec<Bytes>, StreamEnd),
}

#[derive(Clone, Copy, Debug)]
pub enum StreamEnd {
    Proper,
    Dies,
    Hangs,
}

/// A leg as the stub saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub path: String,
    pub headers: HeaderMap,
    pub text: String,
}

impl Seen {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap()
    }

    pub fn params(&self) -> Value {
        self.json()["kv_transfer_params"].clone()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

#[derive(Debug)]
pub struct Inner {
    pub role: EngineRole,
    pub info: Mutex<EngineInfo>,
    pub ready: Mutex<bool>,
    pub next: Mutex<VecDeque<Behaviour>>,
    pub otherwise: Mutex<Behaviour>,
    pub seen: Mutex<Vec<Seen>>,
    /// Legs whose answer is not complete.
    pub open: AtomicUsize,
    /// Legs whose connection was closed by the router before their end.
    pub aborted: AtomicUsize,
}

#[derive(Clone, Debug)]
pub struct Stub {
    pub address: SocketAddr,
    pub inner: Arc<Inner>,
}

pub const HANDLE: &str =
    r#"{"do_remote_prefill":true, "remote_block_ids":[[1,2]],"remote_host":"10.9.8.7","odd":1.50}"#;

impl Stub {
    pub async fn start(name: &str, role: EngineRole) -> Self {
        Self::start_at(name, role, "127.0.0.1:0").await
    }

    pub async fn start_at(name: &str, role: EngineRole, address: &str) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let inner = Arc::new(Inner {
            role,
            info: Mutex::new(info(name, role, 1)),
            ready: Mutex::new(true),
            next: Mutex::default(),
            otherwise: Mutex::new(Behaviour::Good),
            seen: Mutex::default(),
            open: AtomicUsize::new(0),
            aborted: AtomicUsize::new(0),
        });
        let stub = Self { address, inner: Arc::clone(&inner) };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let inner = Arc::clone(&inner);
                let uses = Arc::new(AtomicUsize::new(0));
                let service =
                    service_fn(move |request| serve(Arc::clone(&inner), Arc::clone(&uses), request));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        stub
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// For the next leg only.
    pub fn next(&self, behaviour: Behaviour) -> &Self {
        self.inner.next.lock().unwrap().push_back(behaviour);
        self
    }

    /// For all legs from now on.
    pub fn always(&self, behaviour: Behaviour) -> &Self {
        *self.inner.otherwise.lock().unwrap() = behaviour;
        self
    }

    /// Another incarnation answers from now on.
    pub fn restart(&self, incarnation: u64) {
        self.inner.info.lock().unwrap().engine_id.incarnation.0 = incarnation;
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.inner.seen.lock().unwrap().clone()
    }

    pub fn open(&self) -> usize {
        self.inner.open.load(Ordering::SeqCst)
    }

    pub fn aborted(&self) -> usize {
        self.inner.aborted.load(Ordering::SeqCst)
    }
}

pub fn info(name: &str, role: EngineRole, incarnation: u64) -> EngineInfo {
    EngineInfo {
        engine_id: EngineId::new(EngineName::new(name).unwrap(), incarnation),
        role,
        model: "tiny".into(),
        side_channel: SideChannel { host: "0.0.0.0".into(), port: 5600 },
        transports: vec!["shm".into()],
        max_model_len: 8192,
        block_tokens: 16,
        unit_tokens: 16,
        kv_dtype: Some(baton_types::KvDtype::F32),
        prefix_cache: None,
        load: EngineLoad::default(),
    }
}

/// Counts a leg that is dropped before it is finished as aborted.
struct OpenLeg {
    inner: Arc<Inner>,
    finished: bool,
}

impl OpenLeg {
    fn new(inner: &Arc<Inner>) -> Self {
        inner.open.fetch_add(1, Ordering::SeqCst);
        Self { inner: Arc::clone(inner), finished: false }
    }
}

impl Drop for OpenLeg {
    fn drop(&mut self) {
        self.inner.open.fetch_sub(1, Ordering::SeqCst);
        if !self.finished {
            self.inner.aborted.fetch_add(1, Ordering::SeqCst);
        }
    }
}

type StubBody = BoxBody<Bytes, io::Error>;

fn full(text: impl Into<Bytes>) -> StubBody {
    Full::new(text.into()).map_err(|never: Infallible| match never {}).boxed()
}

async fn serve(
    inner: Arc<Inner>,
    uses: Arc<AtomicUsize>,
    request: Request<Incoming>,
) -> Result<Response<StubBody>, io::Error> {
    match request.uri().path() {
        "/health" => {
            let status = if *inner.ready.lock().unwrap() { 200 } else { 503 };
            return Ok(Response::builder().status(status).body(full("")).unwrap());
        }
        "/baton/info" => {
            let text = serde_json::to_string(&*inner.info.lock().unwrap()).unwrap();
            return Ok(Response::new(full(text)));
        }
        _ => {}
    }
    let is_reused = uses.fetch_add(1, Ordering::SeqCst) > 0;
    let mut leg = OpenLeg::new(&inner);
    let (head, body) = request.into_parts();
    let text = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    let seen = Seen { path: head.uri.path().to_owned(), headers: head.headers, text };
    let next = inner.next.lock().unwrap().pop_front();
    let behaviour = next.unwrap_or_else(|| inner.otherwise.lock().unwrap().clone());
    if matches!(behaviour, Behaviour::ResetIfReused) && is_reused {
        leg.finished = true;
        return Err(io::Error::other("closed while idle"));
    }
    inner.seen.lock().unwrap().push(seen.clone());
    let respond = |status: u16, text: String| {
        let response = Response::builder().status(status).header("server", "stub-secret");
        Ok(response.header("content-type", "application/json").body(full(text)).unwrap())
    };
    match behaviour {
        Behaviour::Status(status, text) => {
            leg.finished = true;
            respond(status, text.to_owned())
        }
        Behaviour::Json(text) => {
            leg.finished = true;
            respond(200, text.to_owned())
        }
        Behaviour::Reset => {
            leg.finished = true;
            Err(io::Error::other("reset"))
        }
        Behaviour::Hang => {
            std::future::pending::<()>().await;
            drop(leg);
            unreachable!()
        }
        Behaviour::Stream(pieces, end) => Ok(stream(leg, pieces, end)),
        Behaviour::Good | Behaviour::ResetIfReused => {
            let asked = seen.json();
            if asked["stream"] == json!(true) {
                return Ok(stream(leg, vec![good_stream().into()], StreamEnd::Proper));
            }
            leg.finished = true;
            respond(200, good_answer())
        }
        Behaviour::Retains { id, piece } => {
            let retained = retained(&inner.info.lock().unwrap().engine_id, id);
            if seen.json()["stream"] == json!(true) {
                let stream_text = good_stream().replace(HANDLE, &retained);
                let pieces = stream_text.as_bytes().chunks(piece).map(Bytes::copy_from_slice).collect();
                return Ok(stream(leg, pieces, StreamEnd::Proper));
            }
            leg.finished = true;
            respond(200, good_answer().replace(HANDLE, &retained))
        }
    }
}

/// What an engine says that it has retained.
pub fn retained(engine: &EngineId, id: u128) -> String {
    let (engine, id) = (engine.to_string(), TransferId(id).to_string());
    json!({
        "do_remote_decode": true, "do_remote_prefill": false, "transfer_id": id, "remote_engine_id": engine,
        "remote_host": "0.0.0.0", "remote_port": 5600, "tp_size": 1, "remote_num_tokens": 640, "remote_ttl_ms": 480_000,
    })
    .to_string()
}

/// An answer with a handle, which both kinds of leg give.
pub fn good_answer() -> String {
    format!(
        r#"{{"id":"x","choices":[{{"text":"hello","finish_reason":"length"}}],"kv_transfer_params":{HANDLE}}}"#
    )
}

/// A stream of a role, two words and a finish chunk with a handle.
pub fn good_stream() -> String {
    let chunk = |inner: &str| format!("data: {{\"choices\":[{inner}]}}\n\n");
    [
        chunk(r#"{"delta":{"role":"assistant","content":""},"finish_reason":null}"#),
        chunk(r#"{"delta":{"content":"hel"},"finish_reason":null}"#),
        chunk(r#"{"delta":{"content":"lo"},"finish_reason":null}"#),
        format!("data: {{\"choices\":[{{\"delta\":{{}},\"finish_reason\":\"stop\"}}],\"kv_transfer_params\":{HANDLE}}}\n\n"),
        "data: [DONE]\n\n".to_owned(),
    ]
    .concat()
}

/// What of [`good_stream`] a client may see.
pub fn clean_stream() -> String {
    good_stream().replace(&format!(",\"kv_transfer_params\":{HANDLE}"), "")
}

fn stream(leg: OpenLeg, pieces: Vec<Bytes>, end: StreamEnd) -> Response<StubBody> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        for piece in pieces {
            if sender.send(Ok(piece)).await.is_err() {
                return;
            }
            // Long enough that pieces do not melt together.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        match end {
            StreamEnd::Proper => {}
            StreamEnd::Dies => drop(sender.send(Err(io::Error::other("dies"))).await),
            StreamEnd::Hangs => sender.closed().await,
        }
    });
    let response = Response::builder().header("content-type", "text/event-stream; charset=utf-8");
    response.body(PieceBody { receiver, leg }.boxed()).unwrap()
}

struct PieceBody {
    receiver: mpsc::Receiver<Result<Bytes, io::Error>>,
    leg: OpenLeg,
}

impl Body for PieceBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let piece = std::task::ready!(self.receiver.poll_recv(context));
        self.leg.finished |= !matches!(piece, Some(Ok(_)));
        Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
    }
}
