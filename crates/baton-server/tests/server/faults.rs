//! What goes wrong on the way: answers stay right, and blocks come back (I7, I8).

use std::time::Duration;

use baton_server::{LostKv, ServerConfig, TransportKind};
use http_body_util::BodyExt;
use hyper::{Method, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::hand_off::{ask_decode, ask_prefill, pair, pull, push};
use crate::harness::{TestServer, config, emulated, expected, greedy, ids, prompt, with};

fn slow(config: &mut ServerConfig) {
    // 62 steps of 6 ms for 4,000 tokens.
    config.model = emulated("qwen3-32b-tp8");
    config.step_tokens = 64;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_frees_its_blocks_at_once() {
    let server =
        TestServer::start(ServerConfig { model: emulated("tiny"), ..config(TransportKind::Memory) }).await;
    // In the middle of a stream.
    let body = with(greedy(&prompt(1, 100), 4_000), "stream", true.into());
    let response = server.send(Method::POST, "/v1/completions", body.to_string().into(), &[]).await;
    let mut stream = response.into_body();
    for _ in 0..3 {
        stream.frame().await.unwrap().unwrap();
    }
    assert!(server.info().await.load.running > 0);
    drop(stream);
    server.idle().await;
    // While the answer is being collected: the connection closes without a byte having come.
    let body = greedy(&prompt(2, 100), 4_000).to_string();
    let mut connection = TcpStream::connect(server.http).await.unwrap();
    let head = format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    connection.write_all(head.as_bytes()).await.unwrap();
    connection.write_all(body.as_bytes()).await.unwrap();
    server.until("it runs", async || server.info().await.load.running > 0).await;
    drop(connection);
    server.idle().await;
    assert_eq!(server.metric("baton_requests_aborted_total").await, 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_server_that_dies_in_the_middle_of_a_push_costs_time_and_nothing_else() {
    for kind in [TransportKind::Memory, TransportKind::Shm, TransportKind::Tcp] {
        let mut prefill_config = config(kind);
        slow(&mut prefill_config);
        let prefill = TestServer::start(prefill_config).await;
        let decode = TestServer::start(config(kind)).await;
        let prompt = prompt(1, 4_000);
        let info = prefill.info().await;
        let leg = with(greedy(&prompt, 1), "kv_transfer_params", ask_prefill(Some(1), "push"));
        let body = with(greedy(&prompt, 5), "kv_transfer_params", ask_decode(1, "push", &info));
        let doomed = async {
            let request = prefill.post("/v1/completions", &leg);
            let _ = tokio::time::timeout(Duration::from_millis(150), request).await;
            // Some of it is written and some is not.
            assert!(prefill.metric("baton_computed_tokens_total").await > 64.0);
            prefill.kill().await;
        };
        let (answer, ()) = tokio::join!(decode.complete(&body), doomed);
        assert_eq!(ids(&answer), expected(&prompt, 5), "{kind:?}");
        assert_eq!(decode.metric("baton_recomputed_total").await, 1.0);
        decode.idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_kv_fails_the_request_where_that_was_chosen() {
    let (prefill, decode) = pair(|c| c.on_lost_kv = LostKv::Fail, TransportKind::Memory).await;
    let info = prefill.info().await;
    prefill.kill().await;
    for stream in [false, true] {
        let body = with(greedy(&prompt(1, 50), 5), "stream", stream.into());
        let body = with(body, "kv_transfer_params", ask_decode(1 + u128::from(stream), "pull", &info));
        let (status, answer) = decode.post("/v1/completions", &body).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "before the first byte a failure has a status");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(!message.contains("127.0.0.1") && !message.contains('@'), "{message}");
    }
    decode.idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn either_side_may_be_taken_back_at_any_time() {
    for kind in [TransportKind::Memory, TransportKind::Shm, TransportKind::Tcp] {
        let (prefill, decode) = pair(slow, kind).await;
        let info = prefill.info().await;
        let prompt = prompt(7, 1_500);
        for (i, (leave_prefill, leave_decode)) in
            [(40, 5_000), (5_000, 40), (60, 60), (1, 1)].into_iter().enumerate()
        {
            let id = 10 + i as u128;
            let leg = with(greedy(&prompt, 1), "kv_transfer_params", ask_prefill(Some(id), "push"));
            let body = with(greedy(&prompt, 5), "kv_transfer_params", ask_decode(id, "push", &info));
            // Dropping the request closes its connection.
            let leave = |ms| Duration::from_millis(ms);
            let (_, answer) = tokio::join!(
                tokio::time::timeout(leave(leave_prefill), prefill.post("/v1/completions", &leg)),
                tokio::time::timeout(leave(leave_decode), decode.post("/v1/completions", &body)),
            );
            if let Ok((status, answer)) = answer {
                assert_eq!(status, StatusCode::OK);
                assert_eq!(ids(&answer), expected(&prompt, 5));
            }
        }
        prefill.idle().await;
        decode.idle().await;
        // And it works again.
        let (_, answer) = push(&prefill, &decode, &greedy(&prompt, 5), 99).await;
        assert_eq!(ids(&answer), expected(&prompt, 5));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handle_nobody_comes_for_expires() {
    let short = |c: &mut ServerConfig| (c.lease_ms, c.heartbeat_ms) = (600, 100);
    let (prefill, decode) = pair(short, TransportKind::Memory).await;
    let prompt = prompt(1, 64);
    let leg = with(greedy(&prompt, 1), "kv_transfer_params", ask_prefill(None, "pull"));
    let handle = prefill.complete(&leg).await["kv_transfer_params"].clone();
    let load = prefill.info().await.load;
    assert!(load.kv_blocks_free < load.kv_blocks_total, "leased");
    prefill.idle().await;
    // Too late: declined, and computed where it was asked for.
    let answer = decode.complete(&with(greedy(&prompt, 5), "kv_transfer_params", handle)).await;
    assert_eq!(ids(&answer), expected(&prompt, 5));
    assert_eq!(decode.metric("baton_recomputed_total").await, 1.0);
    decode.idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_on_the_side_channel_is_cut_off_and_disturbs_nobody() {
    let (prefill, decode) = pair(|_| {}, TransportKind::Memory).await;
    let mut idle = Vec::new();
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0xff; 64],
        &[0, 0, 0, 0],
        &[1, 0, 0, 0, 99],
        // A Heartbeat before any Hello, with a count that its bytes do not hold.
        &[5, 0, 0, 0, 7, 0xff, 0xff, 0xff, 0x7f],
    ] {
        let mut stranger = TcpStream::connect(prefill.side_channel).await.unwrap();
        stranger.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        let end = tokio::time::timeout(crate::harness::PATIENCE, stranger.read_to_end(&mut answer)).await;
        assert!(end.is_ok(), "{bytes:?} is answered by the end of the connection");
        assert!(answer.len() < 200, "a stranger is told a Hello and no more (I5)");
    }
    for _ in 0..50 {
        idle.push(TcpStream::connect(prefill.side_channel).await.unwrap());
    }
    let prompt = prompt(1, 64);
    assert_eq!(ids(&pull(&prefill, &decode, &greedy(&prompt, 5)).await), expected(&prompt, 5));
    // Those that never say anything are cut off as well.
    let mut byte = [0; 256];
    for mut connection in idle {
        let closed = async { while connection.read(&mut byte).await.is_ok_and(|n| n > 0) {} };
        tokio::time::timeout(crate::harness::PATIENCE, closed).await.expect("idle strangers are cut off");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_that_count_kv_in_different_units_do_not_exchange_it() {
    let prefill = TestServer::start(config(TransportKind::Memory)).await;
    let mut other = config(TransportKind::Memory);
    other.unit_tokens = Some(8);
    let decode = TestServer::start(other).await;
    let prompt = prompt(1, 64);
    let answer = pull(&prefill, &decode, &greedy(&prompt, 5)).await;
    assert_eq!(ids(&answer), expected(&prompt, 5), "computed where it was asked for");
    assert_eq!(decode.metric("baton_recomputed_total").await, 1.0);
    decode.idle().await;
}
