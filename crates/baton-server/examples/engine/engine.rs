//! One engine in this process, as its clients see it.

use std::net::SocketAddr;
use std::time::Duration;

use baton_server::{Server, ServerConfig};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Method, Request, Response};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

const POLL: Duration = Duration::from_millis(1);

/// A body's `user`, if there is one, is the tenant.
pub struct Engine {
    http: SocketAddr,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Engine {
    /// Until it serves.
    pub async fn start(config: ServerConfig) -> Self {
        let server = Server::bind(config).await.expect("a free port");
        let http = server.http_addr().expect("a bound address");
        tokio::spawn(server.run(std::future::pending()));
        let engine = Self { http, client: Client::builder(TokioExecutor::new()).build_http() };
        while engine.try_get("/health").await.is_none() {
            tokio::time::sleep(POLL).await;
        }
        engine
    }

    pub async fn idle(&self) {
        loop {
            let load = self.get("/baton/info").await["load"].clone();
            if load["running"] == 0 && load["kv_blocks_free"] == load["kv_blocks_total"] {
                break;
            }
            tokio::time::sleep(POLL).await;
        }
    }

    pub async fn send(&self, body: &Value) -> Response<Incoming> {
        let uri = format!("http://{}/v1/completions", self.http);
        let tenant = body["user"].as_str().unwrap_or_default();
        let request = Request::builder().method(Method::POST).uri(uri).header("x-baton-tenant", tenant);
        let request = request.body(Full::from(body.to_string()));
        self.client.request(request.expect("a request")).await.expect("an answer")
    }

    pub async fn complete(&self, body: &Value) -> Value {
        let response = self.send(body).await;
        let status = response.status();
        let bytes = response.into_body().collect().await.expect("a whole answer").to_bytes();
        assert!(status.is_success(), "{status}: {}", String::from_utf8_lossy(&bytes));
        serde_json::from_slice(&bytes).expect("JSON")
    }

    pub async fn get(&self, path: &str) -> Value {
        self.try_get(path).await.expect("an answer")
    }

    #[allow(dead_code, reason = "not every bench reads pages")]
    pub async fn text(&self, path: &str) -> String {
        let uri = format!("http://{}{path}", self.http).parse().expect("a URI");
        let response = self.client.get(uri).await.expect("an answer");
        let bytes = response.into_body().collect().await.expect("a whole answer").to_bytes();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    async fn try_get(&self, path: &str) -> Option<Value> {
        let uri = format!("http://{}{path}", self.http).parse().expect("a URI");
        let response = self.client.get(uri).await.ok().filter(|response| response.status().is_success())?;
        let bytes = response.into_body().collect().await.ok()?.to_bytes();
        Some(serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }
}

/// The body of a prefill leg.
pub fn prefill_leg(body: &Value, mode: &str, transfer_id: Option<&str>) -> Value {
    let mut leg = body.clone();
    leg["max_tokens"] = 1.into();
    leg["kv_transfer_params"] =
        json!({"do_remote_decode": true, "do_remote_prefill": false, "transfer_mode": mode});
    if let Some(id) = transfer_id {
        leg["kv_transfer_params"]["transfer_id"] = id.into();
    }
    leg
}

/// What the decode leg of a hand-off says that it does not wait for.
pub fn decode_params(mode: &str, transfer_id: &str, prefill: &Value) -> Value {
    json!({
        "do_remote_prefill": true, "do_remote_decode": false, "transfer_mode": mode, "transfer_id": transfer_id,
        "remote_engine_id": prefill["engine_id"], "remote_host": prefill["side_channel"]["host"],
        "remote_port": prefill["side_channel"]["port"],
    })
}
