//! A router with stub engines, and a client.

use std::net::SocketAddr;
use std::time::Duration;

use baton_router::{BoundRouter, EngineConfig, RouterConfig, Strategy};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;

use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::stub::Stub;

/// Longer than anything here takes; a test that waits so long has failed.
const PATIENCE: Duration = Duration::from_secs(10);

pub struct World {
    pub address: SocketAddr,
    router: Option<JoinHandle<()>>,
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(router) = &self.router {
            router.abort();
        }
    }
}

/// A complete answer.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {}", self.text))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

pub fn config(strategy: Strategy, engines: &[&Stub]) -> RouterConfig {
    let engine = |stub: &&Stub| EngineConfig { role: stub.inner.role, url: stub.url() };
    RouterConfig {
        listen: ([127, 0, 0, 1], 0).into(),
        engines: engines.iter().map(engine).collect(),
        strategy,
        policy: baton_router::PolicyKind::RoundRobin,
        probe_interval_ms: 20,
        expose_served_by: true,
        ..RouterConfig::default()
    }
}

impl World {
    /// A router that has seen its engines.
    pub async fn start(strategy: Strategy, engines: &[&Stub]) -> Self {
        Self::with(config(strategy, engines)).await
    }

    pub async fn with(config: RouterConfig) -> Self {
        let engines = config.engines.len();
        Self::with_fit(config, engines).await
    }

    /// A router that has seen so many of its engines.
    pub async fn with_fit(config: RouterConfig, engines: usize) -> Self {
        let world = Self::unready(config).await;
        world.wait_fit(engines).await;
        world
    }

    pub async fn wait_fit(&self, engines: usize) {
        for _ in 0..200 {
            let metrics = self.get("/metrics").await.text;
            let is_fit = |line: &&str| line.starts_with("baton_router_engine_fit{") && line.ends_with(" 1");
            if metrics.lines().filter(is_fit).count() == engines {
                assert_eq!(self.get("/health").await.status, 200);
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("the router does not get ready");
    }

    pub async fn unready(config: RouterConfig) -> Self {
        let bound = BoundRouter::bind(config).await.unwrap();
        let address = bound.local_addr();
        let router = tokio::spawn(async move { bound.run(std::future::pending()).await.unwrap() });
        Self { address, router: Some(router) }
    }

    /// A client of a router that somebody else runs.
    pub fn attach(address: SocketAddr) -> Self {
        Self { address, router: None }
    }

    pub fn client(&self) -> Self {
        Self::attach(self.address)
    }

    pub async fn complete(&self, body: &str) -> Answer {
        self.post("/v1/completions", body, &[]).await
    }

    pub async fn post(&self, path: &str, body: &str, headers: &[(&str, &str)]) -> Answer {
        finish(self.open(path, body, headers).await).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        let request = Request::builder().method(Method::GET).uri(path).header("host", "router");
        finish(self.send(request.body(Full::default()).unwrap()).await).await
    }

    /// The head of an answer; dropping it closes the connection.
    pub async fn open(&self, path: &str, body: &str, headers: &[(&str, &str)]) -> Response<Incoming> {
        let mut request = Request::builder().method(Method::POST).uri(path).header("host", "router");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(Full::new(Bytes::copy_from_slice(body.as_bytes()))).unwrap()).await
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        let exchange = async {
            let stream = TcpStream::connect(self.address).await.unwrap();
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection);
            sender.send_request(request).await.unwrap()
        };
        tokio::time::timeout(PATIENCE, exchange).await.expect("the router does not answer")
    }
}

async fn finish(response: Response<Incoming>) -> Answer {
    let (head, body) = response.into_parts();
    let body =
        tokio::time::timeout(PATIENCE, body.collect()).await.expect("the answer does not end").unwrap();
    let text = String::from_utf8(body.to_bytes().to_vec()).unwrap();
    Answer { status: head.status, headers: head.headers, text }
}

/// Waits until it is so.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("never: {what}");
}
