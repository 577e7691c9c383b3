//! What the API refuses, and what it says about itself.

use baton_server::{ServerConfig, TransportKind::Memory};
use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use crate::hand_off::{ask_decode, transfer};
use crate::harness::{TestServer, config, emulated, greedy, prompt, with};

#[tokio::test(flavor = "multi_thread")]
async fn wrong_requests_get_their_status_in_openai_s_shape() {
    let server = TestServer::start(ServerConfig { max_model_len: Some(64), ..config(Memory) }).await;
    let info = server.info().await;
    let own = ask_decode(1, "pull", &info);
    let prompt = greedy(&prompt(1, 10), 4);
    let cases = [
        (json!({}), 400, Value::Null),
        (json!([]), 400, Value::Null),
        (with(prompt.clone(), "model", "gpt-9".into()), 404, "model_not_found".into()),
        (with(prompt.clone(), "temperature", json!(9)), 400, Value::Null),
        (with(prompt.clone(), "n", json!(2)), 400, "unsupported_parameter".into()),
        (with(prompt.clone(), "prompt", json!([99_999])), 400, Value::Null),
        (with(prompt.clone(), "prompt", json!(vec![1; 64])), 400, "context_length_exceeded".into()),
        (with(prompt.clone(), "max_tokens", json!(60)), 400, "context_length_exceeded".into()),
        (with(prompt.clone(), "kv_transfer_params", json!({"do_remote_prefill": true})), 400, Value::Null),
        (
            with(
                prompt.clone(),
                "kv_transfer_params",
                json!({"do_remote_decode": true, "do_remote_prefill": true}),
            ),
            400,
            Value::Null,
        ),
        (
            with(prompt.clone(), "kv_transfer_params", json!({"do_remote_decode": true, "transfer_id": "x"})),
            400,
            Value::Null,
        ),
        (with(prompt.clone(), "kv_transfer_params", own), 400, Value::Null),
    ];
    for (body, status, code) in cases {
        let (got, answer) = server.post("/v1/completions", &body).await;
        assert_eq!(got.as_u16(), status, "{body} {answer}");
        assert_eq!(answer["error"]["code"], code, "{body} {answer}");
        assert!(answer["error"]["message"].is_string());
    }
    let (status, _) = server.post("/v1/chat/completions", &json!({"messages": []})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let (status, body) = server.get("/nowhere").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(serde_json::from_slice::<Value>(&body).unwrap()["error"].is_object());
    let garbage = server.send(Method::POST, "/v1/completions", "{\"prompt\":".into(), &[]).await;
    assert_eq!(garbage.status(), StatusCode::BAD_REQUEST);
    let tenant = "t".repeat(300);
    let long = server
        .send(Method::POST, "/v1/completions", prompt.to_string().into(), &[("x-baton-tenant", &tenant)])
        .await;
    assert_eq!(long.status(), StatusCode::BAD_REQUEST);
    server.idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_have_a_limit_with_and_without_a_length() {
    let server = TestServer::start(ServerConfig {
        max_body_bytes: 20_000,
        kv_memory_bytes: Some(16 << 20),
        ..config(Memory)
    })
    .await;
    let (status, _) =
        server.post("/v1/completions", &json!({"prompt": "x".repeat(10_000), "max_tokens": 1})).await;
    assert_eq!(status, StatusCode::OK, "off the async threads");
    let large = json!({"prompt": "x".repeat(20_000)});
    for path in ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"] {
        let (status, answer) = server.post(path, &large).await;
        assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{path}");
        assert_eq!(answer["error"]["code"], "body_too_large");
    }
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut chunked = tokio::net::TcpStream::connect(server.http).await.unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    chunked.write_all(head.as_bytes()).await.unwrap();
    for _ in 0..3 {
        chunked.write_all(format!("2000\r\n{}\r\n", "x".repeat(0x2000)).as_bytes()).await.unwrap();
    }
    let mut answer = [0; 12];
    chunked.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_is_429_and_says_when_to_come_back() {
    let small = ServerConfig { max_num_seqs: 1, max_waiting: 1, model: emulated("tiny"), ..config(Memory) };
    let server = TestServer::start(small).await;
    let body = greedy(&prompt(1, 20), 2_000).to_string();
    let requests = (0..6).map(|_| server.send(Method::POST, "/v1/completions", body.clone().into(), &[]));
    let mut requests: Vec<_> = requests.map(Box::pin).collect();
    let first = futures_util::future::select_all(&mut requests).await.0;
    assert_eq!(first.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(first.headers().contains_key("retry-after"));
    drop((first, requests));
    server.idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_tells_what_it_is() {
    let named = ServerConfig {
        name: "p0".to_owned(),
        role: baton_types::EngineRole::Prefill,
        served_model_name: Some("tiny".to_owned()),
        ..config(Memory)
    };
    let server = TestServer::start(named).await;
    let info = server.info().await;
    assert_eq!(info.engine_id.name.as_str(), "p0");
    assert_eq!((info.role, info.model.as_str()), (baton_types::EngineRole::Prefill, "tiny"));
    assert_eq!(
        (info.side_channel.host.as_str(), info.side_channel.port),
        ("127.0.0.1", server.side_channel.port())
    );
    assert_eq!((info.transports, info.block_tokens), (vec!["memory".to_owned()], 16));
    assert_eq!(info.load.kv_blocks_total, 512);
    // 512 blocks of 16 tokens are less than the model's context; the last token needs no place.
    assert_eq!(info.max_model_len, 8193);

    let (_, models) = server.get("/v1/models").await;
    let models: Value = serde_json::from_slice(&models).unwrap();
    assert_eq!(models["data"][0]["id"], "tiny");
    assert_eq!(server.get("/version").await.0, StatusCode::OK);
    let (_, tokens) =
        server.post("/tokenize", &json!({"prompt": "hü<300>", "return_token_strs": true})).await;
    assert_eq!(tokens["tokens"], json!([104, 195, 188, 300]));
    let (_, text) = server.post("/detokenize", &json!({"tokens": tokens["tokens"]})).await;
    assert_eq!(text["prompt"], "hü<300>");
    let chat = json!({"messages": [{"role": "user", "content": "a"}]});
    assert_eq!(server.post("/tokenize", &chat).await.1["count"], "user: a\nassistant:".len());
    let (_, page) = server.get("/metrics").await;
    let page = String::from_utf8(page.to_vec()).unwrap();
    for name in [
        "vllm:num_requests_running{model_name=\"tiny\"} 0",
        "vllm:kv_cache_usage_perc{model_name=\"tiny\"} 0",
        "baton_time_to_first_token_seconds_count 0",
    ] {
        assert!(page.contains(name), "{name} in {page}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_id_is_used_by_one_request_at_a_time() {
    let server = TestServer::start(ServerConfig { model: emulated("tiny"), ..config(Memory) }).await;
    let leg = with(
        greedy(&prompt(1, 20), 1),
        "kv_transfer_params",
        json!({"do_remote_decode": true, "transfer_id": transfer(5)}),
    );
    server.complete(&leg).await;
    let (status, answer) = server.post("/v1/completions", &leg).await;
    assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("kv_transfer_params")));
}
