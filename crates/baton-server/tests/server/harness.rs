//! Servers on free ports, and a client that speaks to them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use baton_model::EmulatedModel;
use baton_model::runner_emulated::oracle;
use baton_openai::{SseEvent, SseParser};
use baton_server::{EmulatedChoice, ModelChoice, Server, ServerConfig, ServerError, TransportKind};
use baton_types::{EngineInfo, SamplingParams, TokenId};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// How long anything may take; generous, because test machines are slow and nothing waits for it in vain.
pub const PATIENCE: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(10);

pub fn config(transport: TransportKind) -> ServerConfig {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    ServerConfig {
        name: format!("e{}", COUNT.fetch_add(1, Ordering::Relaxed)),
        port: 0,
        model: emulated("instant"),
        kv_memory_bytes: Some(4 << 20),
        transport,
        drain_timeout_ms: 10_000,
        ..ServerConfig::default()
    }
}

pub fn emulated(profile: &str) -> ModelChoice {
    ModelChoice::Emulated(EmulatedChoice { profile: profile.to_owned(), ..EmulatedChoice::default() })
}

/// A server that runs until it is stopped or dropped.
#[derive(Debug)]
pub struct TestServer {
    pub http: SocketAddr,
    pub side_channel: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), ServerError>>,
    client: HyperClient<HttpConnector, Full<Bytes>>,
}

impl TestServer {
    pub async fn start(config: ServerConfig) -> Self {
        let server = Self::bind(config).await;
        server.until("it serves", async || server.get("/health").await.0 == StatusCode::OK).await;
        server
    }

    /// As [`TestServer::start`], without waiting for the model.
    pub async fn bind(config: ServerConfig) -> Self {
        let server = Server::bind(config).await.unwrap();
        let (http, side_channel) = (server.http_addr().unwrap(), server.side_channel_addr().unwrap());
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(server.run(async {
            let _ = stopped.await;
        }));
        let client = HyperClient::builder(TokioExecutor::new()).build_http();
        Self { http, side_channel, stop: Some(stop), task, client }
    }

    pub fn begin_shutdown(&mut self) {
        self.stop.take().expect("once").send(()).unwrap();
    }

    pub async fn ended(self) -> Result<(), ServerError> {
        tokio::time::timeout(PATIENCE, self.task).await.expect("it ends").unwrap()
    }

    /// Ends it at once, with no word to anybody: as near to a crash as one process gets.
    pub async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    pub async fn get(&self, path: &str) -> (StatusCode, Bytes) {
        collect(self.send(Method::GET, path, Bytes::new(), &[]).await).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        self.post_as("", path, body).await
    }

    /// For a tenant.
    pub async fn post_as(&self, tenant: &str, path: &str, body: &Value) -> (StatusCode, Value) {
        let headers = [("x-baton-tenant", tenant)];
        let response = self.send(Method::POST, path, body.to_string().into(), &headers).await;
        let (status, body) = collect(response).await;
        (status, serde_json::from_slice(&body).expect("an answer is JSON"))
    }

    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        headers: &[(&str, &str)],
    ) -> Response<Incoming> {
        let mut request = Request::builder().method(method).uri(format!("http://{}{path}", self.http));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body)).unwrap();
        tokio::time::timeout(PATIENCE, self.client.request(request)).await.expect("an answer comes").unwrap()
    }

    /// A completion that must succeed.
    pub async fn complete(&self, body: &Value) -> Value {
        let (status, answer) = self.post("/v1/completions", body).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        answer
    }

    /// The events of a streamed answer, `[DONE]` checked and left out.
    pub async fn stream(&self, path: &str, body: &Value) -> Vec<Value> {
        let response = self.send(Method::POST, path, body.to_string().into(), &[]).await;
        assert_eq!(response.status(), StatusCode::OK);
        let (_, bytes) = collect(response).await;
        let (mut parser, mut events) = (SseParser::new(1 << 20), Vec::new());
        parser.feed(&bytes, &mut events).unwrap();
        let done = events.iter().position(SseEvent::is_done);
        assert_eq!(done, Some(events.len() - 1), "[DONE] once, at the end");
        events.pop();
        events.iter().map(|event| serde_json::from_slice(&event.data).unwrap()).collect()
    }

    pub async fn info(&self) -> EngineInfo {
        let (status, body) = self.get("/baton/info").await;
        assert_eq!(status, StatusCode::OK);
        serde_json::from_slice(&body).unwrap()
    }

    /// A number of `/metrics`; labels, if any, are part of the name.
    pub async fn metric(&self, name: &str) -> f64 {
        let (_, page) = self.get("/metrics").await;
        let page = String::from_utf8(page.to_vec()).unwrap();
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {page}")).parse().unwrap()
    }

    /// I8: every request has ended and every block is free again, in bounded time.
    pub async fn idle(&self) {
        self.until("it is idle", async || {
            let load = self.info().await.load;
            load.running == 0
                && load.waiting == 0
                && load.kv_blocks_free == load.kv_blocks_total
                && self.metric("baton_transfers").await == 0.0
        })
        .await;
    }

    pub async fn until(&self, what: &str, reached: impl AsyncFn() -> bool) {
        let start = Instant::now();
        while !reached().await {
            if start.elapsed() > PATIENCE {
                let (_, page) = self.get("/metrics").await;
                panic!("not within {PATIENCE:?}: {what}\n{}", String::from_utf8_lossy(&page));
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

async fn collect(response: Response<Incoming>) -> (StatusCode, Bytes) {
    let status = response.status();
    let body = tokio::time::timeout(PATIENCE, response.into_body().collect()).await.expect("a body ends");
    (status, body.unwrap().to_bytes())
}

/// A prompt of `n` ids that differs by `seed` from its first token on.
pub fn prompt(seed: u32, n: u32) -> Vec<u32> {
    (0..n).map(|i| (seed.wrapping_mul(7919) + i * 31) % 20_000).collect()
}

/// Greedy, with ids in the answer.
pub fn greedy(prompt: &[u32], max_tokens: u32) -> Value {
    json!({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "return_token_ids": true})
}

/// What an undisturbed engine answers to [`greedy`] (I7).
pub fn expected(prompt: &[u32], max_tokens: u32) -> Vec<u32> {
    let tokens: Vec<TokenId> = prompt.iter().copied().map(TokenId).collect();
    let layout = EmulatedModel::default_layout(16);
    let answer =
        oracle(EmulatedModel::default(), &layout, &tokens, max_tokens as usize, &SamplingParams::GREEDY);
    answer.into_iter().map(|token| token.0).collect()
}

pub fn ids(answer: &Value) -> Vec<u32> {
    serde_json::from_value(answer["choices"][0]["token_ids"].clone()).unwrap()
}

pub fn with(mut body: Value, name: &str, value: Value) -> Value {
    body[name] = value;
    body
}
