//! A prefill and a decode engine, and the legs of requests to them.

use baton_server::{EmulatedChoice, ModelChoice, ServerConfig, TransportKind};
use baton_types::TransferId;
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Incoming;
use serde_json::{Value, json};

use crate::engine::{Engine, decode_params, prefill_leg};

/// 30 layers, 3 KV heads of 64 elements, K and V, 4 bytes each: SmolLM2-135M.
pub const KV_BYTES_PER_TOKEN: u64 = 30 * 3 * 64 * 2 * 4;
pub const STEP_TOKENS: u32 = 256;

pub struct Engines {
    prefill: Engine,
    decode: Engine,
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
            let handle =
                self.prefill.complete(&prefill_leg(&body, "pull", None)).await["kv_transfer_params"].clone();
            self.decode(&body, handle).await;
        } else {
            let id = TransferId(u128::from(seed)).to_string();
            let info = self.prefill.get("/baton/info").await;
            let handle = decode_params(mode, &id, &info);
            let leg = prefill_leg(&body, mode, Some(&id));
            tokio::join!(self.prefill.complete(&leg), self.decode(&body, handle));
        }
        self.idle().await;
    }

    /// The prompt computed and offered: the handle, and the body of the decode leg.
    pub async fn prefill_for_pull(&self, seed: u32, tokens: u32) -> (Value, Value) {
        let body = request(seed, tokens, 4);
        let handle =
            self.prefill.complete(&prefill_leg(&body, "pull", None)).await["kv_transfer_params"].clone();
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
            engine.idle().await;
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
    Engine::start(config).await
}

fn request(seed: u32, tokens: u32, max_tokens: u32) -> Value {
    let prompt: Vec<u32> = (0..tokens).map(|i| (seed.wrapping_mul(7919) + i * 31) % 20_000).collect();
    json!({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true})
}
