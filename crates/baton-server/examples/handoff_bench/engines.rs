//! A prefill and a decode engine, and the legs of requests to them.

use std::net::SocketAddr;
use std::time::Duration;

use baton_server::{EmulatedChoice, ModelChoice, Server, ServerConfig, TransportKind};
use baton_types::TransferId;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Method, Request, Response};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

/// 30 layers, 3 KV heads of 64 elements, K and V, 4 bytes each: SmolLM2-135M.
pub const KV_BYTES_PER_TOKEN: u64 = 30 * 3 * 64 * 2 * 4;
pub const STEP_TOKENS: u32 = 256;
const POLL: Duration = Duration::from_millis(1);

pub struct Engines {
    prefill: Engine,
    decode: Engine,
}

struct Engine {
    http: SocketAddr,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Engines {
    /// Tokens of a block on each side. Where they differ, every head of every layer of a unit is a descriptor of its own.
    pub async fn start(prefill_block: u32, decode_block: u32) -> Self {
        Self { prefill: engine("prefill", prefill_block).await, decode: engine("decode", decode_block).await }
    }

    /// One hand-off and a few tokens.
    pub async fn hand_off(&self, mode: &str, seed: u32, tokens: u32) {
        let body = request(seed, tokens, 4);
        if mode == "pull" {
            let handle = self.prefill.complete(&leg(&body, "pull", None)).await["kv_transfer_params"].clone();
            self.decode(&body, handle).await;
        } else {
            let id = TransferId(u128::from(seed)).to_string();
            let info = self.prefill.get("/baton/info").await;
            let handle = json!({
                "do_remote_prefill": true, "do_remote_decode": false, "transfer_mode": mode, "transfer_id": id,
                "remote_engine_id": info["engine_id"], "remote_host": info["side_channel"]["host"],
                "remote_port": info["side_channel"]["port"],
            });
            let leg = leg(&body, mode, Some(&id));
            tokio::join!(self.prefill.complete(&leg), self.decode(&body, handle));
        }
        self.idle().await;
    }

    /// The prompt computed and offered: the handle, and the body of the decode leg.
    pub async fn prefill_for_pull(&self, seed: u32, tokens: u32) -> (Value, Value) {
        let body = request(seed, tokens, 4);
        let handle = self.prefill.complete(&leg(&body, "pull", None)).await["kv_transfer_params"].clone();
        (handle, body)
    }

    pub async fn decode(&self, body: &Value, handle: Value) {
        let mut body = body.clone();
        body["kv_transfer_params"] = handle;
        self.decode.complete(&body).await;
    }

    /// A sequence that decodes until the answer is dropped.
    pub async fn start_long_answer(&self) -> Response<Incoming> {
        let mut body = request(0, 8, 16_000);
        body["stream"] = true.into();
        let mut response = self.decode.send(&body).await;
        response.body_mut().frame().await;
        response
    }

    pub async fn idle(&self) {
        for engine in [&self.prefill, &self.decode] {
            loop {
                let load = engine.get("/baton/info").await["load"].clone();
                if load["running"] == 0 && load["kv_blocks_free"] == load["kv_blocks_total"] {
                    break;
                }
                tokio::time::sleep(POLL).await;
            }
        }
    }
}

async fn engine(name: &str, block_tokens: u32) -> Engine {
    let (layers, kv_heads, head_dim) = (30, 3, 64);
    let model = EmulatedChoice {
        profile: "tiny".to_owned(),
        layers,
        kv_heads,
        head_dim,
        ..EmulatedChoice::default()
    };
    let config = ServerConfig {
        name: name.to_owned(),
        port: 0,
        model: ModelChoice::Emulated(model),
        block_tokens,
        step_tokens: STEP_TOKENS,
        max_model_len: Some(40_000),
        kv_memory_bytes: Some(1 << 30),
        prefix_cache: false,
        transport: TransportKind::Shm,
        ..ServerConfig::default()
    };
    let server = Server::bind(config).await.expect("a free port");
    let http = server.http_addr().expect("a bound address");
    tokio::spawn(server.run(std::future::pending()));
    let engine = Engine { http, client: Client::builder(TokioExecutor::new()).build_http() };
    while engine.try_get("/health").await.is_none() {
        tokio::time::sleep(POLL).await;
    }
    engine
}

fn request(seed: u32, tokens: u32, max_tokens: u32) -> Value {
    let prompt: Vec<u32> = (0..tokens).map(|i| (seed.wrapping_mul(7919) + i * 31) % 20_000).collect();
    json!({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true})
}

fn leg(body: &Value, mode: &str, transfer_id: Option<&str>) -> Value {
    let mut leg = body.clone();
    leg["max_tokens"] = 1.into();
    leg["kv_transfer_params"] =
        json!({"do_remote_decode": true, "do_remote_prefill": false, "transfer_mode": mode});
    if let Some(id) = transfer_id {
        leg["kv_transfer_params"]["transfer_id"] = id.into();
    }
    leg
}

impl Engine {
    async fn send(&self, body: &Value) -> Response<Incoming> {
        let uri = format!("http://{}/v1/completions", self.http);
        let request = Request::builder().method(Method::POST).uri(uri).body(Full::from(body.to_string()));
        self.client.request(request.expect("a request")).await.expect("an answer")
    }

    async fn complete(&self, body: &Value) -> Value {
        let response = self.send(body).await;
        let status = response.status();
        let bytes = response.into_body().collect().await.expect("a whole answer").to_bytes();
        assert!(status.is_success(), "{status}: {}", String::from_utf8_lossy(&bytes));
        serde_json::from_slice(&bytes).expect("JSON")
    }

    async fn get(&self, path: &str) -> Value {
        self.try_get(path).await.expect("an answer")
    }

    async fn try_get(&self, path: &str) -> Option<Value> {
        let uri = format!("http://{}{path}", self.http).parse().expect("a URI");
        let response = self.client.get(uri).await.ok().filter(|response| response.status().is_success())?;
        let bytes = response.into_body().collect().await.ok()?.to_bytes();
        Some(serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }
}
