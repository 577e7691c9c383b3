//! Who may speak on the side channel: a shared secret, certificates, both or neither.

use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_server::{PeerSecret, PeerTlsConfig, ServerConfig, SideChannelConfig, TransportKind};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::hand_off::{ask_prefill, pull, transfer};
use crate::harness::{PATIENCE, TestServer, config, expected, greedy, ids, prompt, with};

/// What a stranger hears of an engine with a secret: an opening and a nonce.
const CHALLENGE_BYTES: usize = 40;
const PROOF_BYTES: usize = 32;

async fn start(side_channel: SideChannelConfig) -> TestServer {
    TestServer::start(ServerConfig { side_channel, ..config(TransportKind::Memory) }).await
}

fn secret(text: &str) -> SideChannelConfig {
    let secret = PeerSecret::new(format!("{text} and fifteen bytes more")).unwrap();
    SideChannelConfig { secret: Some(secret), ..SideChannelConfig::default() }
}

/// Asks for a hand-off, whose answer is right in any case. True if the KV was handed over, false if decode had to compute it.
async fn hands_over(prefill: &TestServer, decode: &TestServer) -> bool {
    let prompt = prompt(1, 64);
    let before = decode.metric("baton_received_tokens_total").await;
    assert_eq!(ids(&pull(prefill, decode, &greedy(&prompt, 5)).await), expected(&prompt, 5));
    let received = decode.metric("baton_received_tokens_total").await - before;
    let recomputed = decode.metric("baton_recomputed_total").await;
    assert!((received > 0.0) != (recomputed > 0.0), "{received} received, {recomputed} recomputed");
    received > 0.0
}

#[tokio::test(flavor = "multi_thread")]
async fn only_engines_with_the_same_secret_hand_over() {
    let none = SideChannelConfig::default;
    for (ours, theirs, trusted) in [
        (secret("one"), secret("one"), true),
        (secret("one"), secret("two"), false),
        (secret("one"), none(), false),
        (none(), secret("one"), false),
    ] {
        let (prefill, decode) = (start(ours.clone()).await, start(theirs.clone()).await);
        assert_eq!(hands_over(&prefill, &decode).await, trusted, "{ours:?} {theirs:?}");
        decode.idle().await;
    }
}

/// What `server` says on a connection on which `said` is said, until one of them has enough of it.
async fn overhear(server: &TestServer, said: &[u8]) -> Vec<u8> {
    let mut stranger = TcpStream::connect(server.side_channel).await.unwrap();
    stranger.write_all(said).await.unwrap();
    let mut heard = Vec::new();
    let end = tokio::time::timeout(PATIENCE, stranger.read_to_end(&mut heard)).await;
    end.expect("a stranger is cut off").ok();
    heard
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_hear_a_challenge_and_nothing_else() {
    let server = start(secret("one")).await;
    let challenge = overhear(&server, b"").await;
    assert_eq!(challenge.len(), CHALLENGE_BYTES, "slow: nothing is said at all");
    let opening = &challenge[..8];
    for said in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0; 200],
        &opening[..5],
        // A nonce and a proof made without the secret; the server's own words from another connection.
        &[opening, &[7; 64]].concat(),
        &[&challenge[..], &[7; 32]].concat(),
    ] {
        assert_eq!(overhear(&server, said).await.len(), CHALLENGE_BYTES, "{said:?}");
    }
}

/// Stands between two engines: `decode` is told that the peer is here.
async fn ask_decode_through(middle: &TcpListener, prefill: &TestServer, decode: &TestServer, id: u128) {
    let prompt = prompt(3, 64);
    let leg = with(greedy(&prompt, 1), "kv_transfer_params", ask_prefill(Some(id), "pull"));
    prefill.complete(&leg).await;
    let info = prefill.info().await;
    let params = json!({
        "do_remote_prefill": true, "do_remote_decode": false, "transfer_mode": "pull",
        "transfer_id": transfer(id), "remote_engine_id": info.engine_id.to_string(),
        "remote_host": "127.0.0.1", "remote_port": middle.local_addr().unwrap().port(), "tp_size": 1,
    });
    let answer = decode.complete(&with(greedy(&prompt, 5), "kv_transfer_params", params)).await;
    assert_eq!(ids(&answer), expected(&prompt, 5));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_overheard_lets_nobody_in() {
    let (prefill, decode) = (start(secret("one")).await, start(secret("one")).await);
    let middle = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let relay = async {
        let (from, _) = middle.accept().await.unwrap();
        let to = TcpStream::connect(prefill.side_channel).await.unwrap();
        let ((mut from_read, mut from_write), (mut to_read, mut to_write)) =
            (from.into_split(), to.into_split());
        tokio::spawn(async move { tokio::io::copy(&mut to_read, &mut from_write).await });
        let mut said = vec![0; CHALLENGE_BYTES + PROOF_BYTES];
        from_read.read_exact(&mut said).await.unwrap();
        to_write.write_all(&said).await.unwrap();
        tokio::spawn(async move { tokio::io::copy(&mut from_read, &mut to_write).await });
        said
    };
    let (said, ()) = tokio::join!(relay, ask_decode_through(&middle, &prefill, &decode, 1));
    assert!(
        decode.metric("baton_received_tokens_total").await > 0.0,
        "the one in the middle changed nothing"
    );
    assert_eq!(overhear(&prefill, &said).await.len(), CHALLENGE_BYTES, "the same words to another nonce");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_is_not_fooled_by_its_own_words() {
    let (prefill, decode) = (start(secret("one")).await, start(secret("one")).await);
    let mirror = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let reflect = async {
        let mut longest = 0;
        // Every dial, for as long as the engine asks.
        loop {
            let (mut stream, _) = mirror.accept().await.unwrap();
            let (mut heard, mut bytes) = (0, [0; 256]);
            while let Ok(n @ 1..) = stream.read(&mut bytes).await {
                heard += n;
                longest = longest.max(heard);
                assert!(longest <= CHALLENGE_BYTES + PROOF_BYTES, "no word of the protocol");
                if stream.write_all(&bytes[..n]).await.is_err() {
                    break;
                }
            }
        }
    };
    tokio::select! {
        () = reflect => {}
        () = ask_decode_through(&mirror, &prefill, &decode, 1) => {}
    }
    assert_eq!(decode.metric("baton_received_tokens_total").await, 0.0);
    assert_eq!(decode.metric("baton_recomputed_total").await, 1.0);
}

/// One authority, and a certificate for `host` in files.
struct Issued {
    dir: tempfile::TempDir,
}

impl Issued {
    fn new(authority: &CertifiedIssuer<'static, KeyPair>, host: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new([host.to_owned()]).unwrap().signed_by(&key, authority).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| std::fs::write(dir.path().join(name), text).unwrap();
        write("cert.pem", certificate.pem());
        write("key.pem", key.serialize_pem());
        write("ca.pem", authority.pem());
        Self { dir }
    }

    fn side_channel(&self, name: Option<&str>) -> SideChannelConfig {
        let file = |name: &str| -> PathBuf { Path::join(self.dir.path(), name) };
        let tls = PeerTlsConfig {
            certificate: file("cert.pem"),
            key: file("key.pem"),
            authorities: file("ca.pem"),
            name: name.map(str::to_owned),
        };
        SideChannelConfig { tls: Some(tls), ..SideChannelConfig::default() }
    }
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_engines_of_one_authority_hand_over() {
    let (ours, foreign) = (authority(), authority());
    let host = Issued::new(&ours, "127.0.0.1");
    let named = Issued::new(&ours, "engine.baton");
    let stranger = Issued::new(&foreign, "127.0.0.1");
    let with_secret = |side| SideChannelConfig { secret: secret("one").secret, ..side };
    for (prefill, decode, trusted) in [
        (host.side_channel(None), host.side_channel(None), true),
        (named.side_channel(Some("engine.baton")), named.side_channel(Some("engine.baton")), true),
        (named.side_channel(None), named.side_channel(None), false),
        (host.side_channel(None), stranger.side_channel(None), false),
        (host.side_channel(None), SideChannelConfig::default(), false),
        (SideChannelConfig::default(), host.side_channel(None), false),
        (with_secret(host.side_channel(None)), with_secret(host.side_channel(None)), true),
        (with_secret(host.side_channel(None)), host.side_channel(None), false),
    ] {
        let case = format!("{prefill:?} {decode:?}");
        let (prefill, decode) = (start(prefill).await, start(decode).await);
        assert_eq!(hands_over(&prefill, &decode).await, trusted, "{case}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_strangers_do_not_hold_up_engines() {
    let (prefill, decode) = (start(secret("one")).await, start(secret("one")).await);
    let mut slow = Vec::new();
    for _ in 0..100 {
        slow.push(TcpStream::connect(prefill.side_channel).await.unwrap());
    }
    let start = std::time::Instant::now();
    assert!(hands_over(&prefill, &decode).await);
    assert!(start.elapsed() < Duration::from_secs(4), "nobody waits for them: {:?}", start.elapsed());
    for mut stranger in slow {
        let mut heard = Vec::new();
        let end = tokio::time::timeout(PATIENCE, stranger.read_to_end(&mut heard)).await;
        assert!(end.is_ok(), "a stranger is cut off");
        assert_eq!(heard.len(), CHALLENGE_BYTES);
    }
}
