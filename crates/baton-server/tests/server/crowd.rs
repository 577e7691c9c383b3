//! Thousands of connections that want nothing: an engine serves meanwhile, and is rid of them in the end.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use baton_server::{ServerConfig, TransportKind};
use hyper::StatusCode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::hand_off::{pair, pull};
use crate::harness::{PATIENCE, TestServer, config, expected, greedy, ids, prompt};

/// As many as this machine allows, up to `wanted`: both ends of each are this process's.
fn crowd(wanted: u64) -> usize {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 8;
    wanted.min(allowed) as usize
}

/// A connection from an address that no engine of the test has.
async fn stranger(to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)), 0)).unwrap();
    socket.connect(to).await.unwrap()
}

/// Waits until the other end has closed every one of them.
async fn assert_cut_off(strangers: Vec<TcpStream>) {
    for mut stranger in strangers {
        let mut bytes = [0; 512];
        let closed = async { while stranger.read(&mut bytes).await.is_ok_and(|n| n > 0) {} };
        tokio::time::timeout(PATIENCE, closed).await.expect("whoever says nothing is cut off");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_serves_between_thousands_of_half_open_connections() {
    let (prefill, decode) = pair(|_| {}, TransportKind::Memory).await;
    let mut strangers = Vec::new();
    for i in 0..crowd(2000) {
        strangers.push(stranger(prefill.side_channel).await);
        let mut http = stranger(prefill.http).await;
        http.write_all(&b"POST /v1/completions HTTP/1.1\r\nhost"[..i % 36]).await.unwrap();
        strangers.push(http);
    }
    let begun = Instant::now();
    for seed in 0..5 {
        let prompt = prompt(seed, 64);
        assert_eq!(ids(&pull(&prefill, &decode, &greedy(&prompt, 5)).await), expected(&prompt, 5));
    }
    assert!(
        begun.elapsed() < Duration::from_secs(4),
        "served, and not after the strangers: {:?}",
        begun.elapsed()
    );
    assert_eq!(decode.metric("baton_recomputed_total").await, 0.0);
    assert_cut_off(strangers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_takes_up_service_when_the_idle_are_gone() {
    let server =
        TestServer::start(ServerConfig { max_connections: 8, ..config(TransportKind::Memory) }).await;
    let mut strangers = Vec::new();
    // One place is the test client's, which keeps its connection.
    for _ in 0..10 {
        let mut http = stranger(server.http).await;
        http.write_all(b"GET /health HTTP/1.1\r\n").await.unwrap();
        strangers.push(http);
    }
    let mut patient = stranger(server.http).await;
    patient.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    let waited = tokio::time::timeout(2 * PATIENCE, patient.read_to_string(&mut answer)).await;
    waited.expect("a place becomes free").unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_cut_off(strangers).await;
    assert_eq!(server.get("/health").await.0, StatusCode::OK);
}
