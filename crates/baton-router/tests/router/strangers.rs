//! Clients that keep a connection and do nothing with it.

use std::time::Duration;

use baton_router::{Limits, RouterConfig, Strategy};
use baton_types::EngineRole::Both;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::stub::{Behaviour, Stub};
use crate::world::{World, config};

const ASK: &str = r#"{"model":"tiny","prompt":"x"}"#;
/// Longer than anything here takes; a test that waits so long has failed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whether the router closes it.
async fn is_closed(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut rest)).await.is_ok()
}

#[tokio::test]
async fn who_says_nothing_or_half_a_request_loses_its_connection() {
    let engine = Stub::start("a", Both).await;
    let world =
        World::with(RouterConfig { head_timeout_ms: 200, ..config(Strategy::None, &[&engine]) }).await;
    let whole =
        format!("POST /v1/completions HTTP/1.1\r\nhost: r\r\ncontent-length: {}\r\n\r\n{ASK}", ASK.len());
    for beginning in ["", "POST /v1/completions HTTP/1.1\r\nhost: r", &whole] {
        let mut stream = TcpStream::connect(world.address).await.unwrap();
        stream.write_all(beginning.as_bytes()).await.unwrap();
        assert!(is_closed(&mut stream).await, "{beginning:?}");
    }
}

#[tokio::test]
async fn at_the_limit_of_connections_a_new_one_waits_for_a_place() {
    let engine = Stub::start("a", Both).await;
    let settings = config(Strategy::None, &[&engine]);
    let world = World::with(RouterConfig { max_connections: 4, head_timeout_ms: 1_000, ..settings }).await;
    let mut idle = Vec::new();
    for _ in 0..4 {
        idle.push(TcpStream::connect(world.address).await.unwrap());
    }
    // They are there before it.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let answer = world.complete(ASK);
    tokio::pin!(answer);
    assert!(timeout(Duration::from_millis(200), &mut answer).await.is_err(), "there is no place");
    assert_eq!(answer.await.status, 200, "the idle ones have lost theirs");
}

#[tokio::test]
async fn who_does_not_take_its_answer_loses_it() {
    let engine = Stub::start("a", Both).await;
    let limits = Limits { client_stall_ms: 300, ..Limits::default() };
    let world = World::with(RouterConfig { limits, ..config(Strategy::None, &[&engine]) }).await;
    // More than the operating system takes on the way.
    let text = "x".repeat(32 << 20);
    let answer = format!(r#"{{"choices":[{{"index":0,"text":"{text}","finish_reason":"stop"}}]}}"#);
    engine.next(Behaviour::Json(answer.leak()));
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    let mut stream = socket.connect(world.address).await.unwrap();
    let ask =
        format!("POST /v1/completions HTTP/1.1\r\nhost: r\r\ncontent-length: {}\r\n\r\n{ASK}", ASK.len());
    stream.write_all(ask.as_bytes()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut taken = Vec::new();
    let read = timeout(PATIENCE * 4, stream.read_to_end(&mut taken)).await.expect("the connection is closed");
    assert!(read.is_err() || taken.len() < text.len(), "{} bytes after all", taken.len());
}
