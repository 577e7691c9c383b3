//! Loading, draining, ending.

use std::time::{Duration, Instant};

use baton_server::{Server, ServerConfig, ServerError, TransportKind::Memory};
use hyper::StatusCode;

use crate::hand_off::ask_prefill;
use crate::harness::{TestServer, config, emulated, expected, greedy, ids, prompt, with};

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_ends_what_runs_and_refuses_what_comes() {
    let mut server = TestServer::start(ServerConfig { model: emulated("tiny"), ..config(Memory) }).await;
    let body = greedy(&prompt(1, 30), 200);
    // On its own connection, for the server to be borrowed meanwhile.
    let client =
        hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new()).build_http();
    let request = hyper::Request::post(format!("http://{}/v1/completions", server.http))
        .body(http_body_util::Full::new(bytes::Bytes::from(body.to_string())))
        .unwrap();
    let running = tokio::spawn(client.request(request));
    server.until("it runs", async || server.info().await.load.running > 0).await;
    server.begin_shutdown();
    server
        .until("it drains", async || server.get("/health").await.0 == StatusCode::SERVICE_UNAVAILABLE)
        .await;
    let (status, answer) = server.post("/v1/completions", &body).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}");
    let answer = http_body_util::BodyExt::collect(running.await.unwrap().unwrap().into_body()).await.unwrap();
    let answer = serde_json::from_slice(&answer.to_bytes()).unwrap();
    assert_eq!(ids(&answer), expected(&prompt(1, 30), 200), "what ran ends in its own time");
    server.ended().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_waits_for_leases_up_to_its_limit() {
    let mut short = config(Memory);
    (short.lease_ms, short.heartbeat_ms) = (800, 100);
    let mut limited = config(Memory);
    limited.drain_timeout_ms = 300;
    for (config, least, most) in [(short, 600, 5_000), (limited, 300, 5_000)] {
        let mut server = TestServer::start(config).await;
        let leg = with(greedy(&prompt(1, 30), 1), "kv_transfer_params", ask_prefill(None, "pull"));
        server.complete(&leg).await;
        let start = Instant::now();
        server.begin_shutdown();
        server.ended().await.unwrap();
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(least) && took < Duration::from_millis(most), "{took:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_drain_cuts_off_is_told() {
    let mut cut = ServerConfig { model: emulated("tiny"), ..config(Memory) };
    cut.drain_timeout_ms = 50;
    let mut server = TestServer::start(cut).await;
    let body = with(greedy(&prompt(1, 30), 5_000), "stream", true.into()).to_string();
    let response = server.send(hyper::Method::POST, "/v1/completions", body.into(), &[]).await;
    server.begin_shutdown();
    let stream = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
    let text = String::from_utf8(stream.to_vec()).unwrap();
    let mut events = text.trim_end().rsplit("\n\n");
    assert_eq!(events.next(), Some("data: [DONE]"));
    assert!(events.next().unwrap().contains("\"error\""), "{text}");
    server.ended().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_start_says_why() {
    let taken = TestServer::start(config(Memory)).await;
    let port = taken.http.port();
    let error = Server::bind(ServerConfig { port, ..config(Memory) }).await.map(drop);
    assert!(matches!(error, Err(ServerError::Bind { what: "HTTP", .. })), "{error:?}");
    let tiny = ServerConfig { kv_memory_bytes: Some(10), ..config(Memory) };
    let error = Server::bind(tiny).await.unwrap().run(std::future::pending()).await;
    assert!(matches!(error, Err(ServerError::Config(_))), "{error:?}");
}
