//! `nixl` against whoever does not keep to what is said on links: sockets driven by hand.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use baton_transport::{Direction, Event, Post, PostId, TransportLimits};

use crate::agent::{Agent, engine, every_block, lists, pump, pump_for};
use crate::fabric::NixlFabric;

const A_WHILE: Duration = Duration::from_millis(50);
const REGION: usize = 1 << 20;

fn agent(name: &str, limits: TransportLimits) -> Agent {
    Agent::new(&NixlFabric, engine(name, 1), REGION, limits)
}

/// `nixl`, version, 16 bytes of token, address and length of the region, port.
const TOKEN: std::ops::Range<usize> = 6..22;
const PORT: std::ops::Range<usize> = 38..40;
const PATH: u64 = 7;
const A: &str = "a@0000000000000001";
const B: &str = "b@0000000000000001";

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const ASK: u8 = 5;
const GIVEN: u8 = 6;
const BYE: u8 = 8;

fn dial(agent: &Agent) -> TcpStream {
    let metadata = agent.transport.metadata();
    let port = u16::from_le_bytes(metadata[PORT].try_into().unwrap());
    let socket = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

fn word(tag: u8, fields: &[u8]) -> Vec<u8> {
    let len = (1 + fields.len()) as u16;
    [&len.to_le_bytes()[..], &[tag], fields].concat()
}

fn hello_of(token: &[u8], proof: &[u8], version: u16, from: &str, to: &str) -> Vec<u8> {
    let mut fields = [&version.to_le_bytes()[..], token, proof, &PATH.to_le_bytes()].concat();
    for id in [from, to] {
        fields.push(id.len() as u8);
        fields.extend(id.bytes());
    }
    word(HELLO, &fields)
}

/// By somebody who knows the token of `agent` only.
fn hello(agent: &Agent, from: &str, to: &str) -> Vec<u8> {
    hello_of(&agent.transport.metadata()[TOKEN], &[0; 16], 1, from, to)
}

/// By `b`, to `a`.
fn true_hello(a: &Agent, b: &Agent) -> Vec<u8> {
    let [dialed, dialing] = [a, b].map(|agent| agent.transport.metadata()[TOKEN].to_vec());
    let key: [u8; 32] = [dialing, dialed.clone()].concat().try_into().unwrap();
    let proof = blake3::keyed_hash(&key, &PATH.to_le_bytes());
    hello_of(&dialed, &proof.as_bytes()[..16], 1, B, A)
}

fn ask(number: u32, pieces: &[(u64, u64, u32)]) -> Vec<u8> {
    let mut fields = number.to_le_bytes().to_vec();
    for (from, to, len) in pieces {
        fields.extend(from.to_le_bytes());
        fields.extend(to.to_le_bytes());
        fields.extend(len.to_le_bytes());
    }
    word(ASK, &fields)
}

/// What came, and whether that was the end.
fn hear(socket: &mut TcpStream) -> (Vec<u8>, bool) {
    let (mut heard, mut bytes) = (Vec::new(), [0; 4096]);
    loop {
        match socket.read(&mut bytes) {
            Ok(0) => return (heard, true),
            Ok(n) => heard.extend(&bytes[..n]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return (heard, false),
            Err(_) => return (heard, true),
        }
    }
}

/// Agents of which the second only gives its name; and its link to the first.
fn admitted() -> (Agent, Agent, TcpStream) {
    let mut a = agent("a", TransportLimits::default());
    let b = agent("b", TransportLimits::default());
    a.add(&b).unwrap();
    let mut socket = dial(&a);
    socket.write_all(&true_hello(&a, &b)).unwrap();
    pump_for(&mut [&mut a], A_WHILE);
    assert_eq!(hear(&mut socket), (word(WELCOME, &[]), false));
    (a, b, socket)
}

#[test]
#[ignore = "needs NIXL: cargo x nixl"]
fn strangers_get_nothing() {
    let limits = TransportLimits { peers: 4, ..TransportLimits::default() };
    let mut a = agent("a", limits);
    let mut b = agent("b", TransportLimits::default());
    a.add(&b).unwrap();
    let token = a.transport.metadata()[TOKEN].to_vec();
    let refused = [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0xff; 64],
        vec![0, 0],
        hello_of(&[0; 16], &[0; 16], 1, B, A),
        hello_of(&token, &[0; 16], 9, B, A),
        hello(&a, B, "c@0000000000000001"),
        hello(&a, A, A),
        hello(&a, "no engine id", A),
        // It knows our token, but not the peer's.
        hello(&a, B, A),
        word(BYE, &[]),
        ask(1, &[(0, 0, 64)]),
    ];
    for bytes in refused {
        let mut socket = dial(&a);
        socket.write_all(&bytes).unwrap();
        pump_for(&mut [&mut a], Duration::from_millis(5));
        assert_eq!(hear(&mut socket), (vec![], true), "{bytes:?}");
    }
    let mut flood: Vec<_> = (0..50).map(|_| dial(&a)).collect();
    pump_for(&mut [&mut a], A_WHILE);
    let closed: Vec<_> = flood.iter_mut().map(|socket| hear(socket).1).collect();
    let open = closed.iter().filter(|closed| !**closed).count();
    assert_eq!(open, 4);
    assert!(a.events.is_empty());

    b.add(&a).unwrap();
    let (local, remote) = lists(&mut a, &b.id, &every_block(64, 1));
    let (id, direction, peer) = (PostId(1), Direction::Write, b.id.clone());
    a.transport.post(Post { id, direction, peer, local, remote, pairs: vec![(0, 0)], notify: None }).unwrap();
    pump(&mut [&mut a, &mut b], |agents| agents[0].done() == [1]);
}

#[test]
#[ignore = "needs NIXL: cargo x nixl"]
fn a_peer_that_talks_nonsense_is_lost_when_it_has_said_bye_and_not_before() {
    let end = REGION as u64;
    let nonsense = [
        vec![0, 0],
        vec![0xff; 40],
        word(99, &[]),
        word(WELCOME, &[]),
        word(GIVEN, &[0; 4]),
        ask(1, &[]),
        ask(1, &[(0, 0, 0)]),
        ask(1, &[(end - 10, 0, 11)]),
        ask(1, &[(0, end - 10, 11)]),
        ask(1, &[(u64::MAX, 0, 2)]),
        ask(1, &[(0, 0, 600 << 10)]),
    ];
    for nonsense in nonsense {
        let (mut a, b, mut socket) = admitted();
        let lost = Event::PeerLost(b.id.clone());
        socket.write_all(&nonsense).unwrap();
        pump_for(&mut [&mut a], A_WHILE);
        assert_eq!(hear(&mut socket), (word(BYE, &[]), true), "asked to let go: {nonsense:?}");
        assert!(!a.has(&lost), "it may still be writing");
        // What is said behind nonsense cannot be told from it; whoever talks it has to go.
        let is_deaf = nonsense[0] == 0 || nonsense[0] == 0xff || nonsense[2] == 99;
        match is_deaf {
            true => drop((b, socket)),
            false => socket.write_all(&word(BYE, &[])).unwrap(),
        }
        pump(&mut [&mut a], |agents| agents[0].has(&lost));
        assert_eq!(a.events, [lost]);
    }
}

/// It says that nobody is there to say Bye, but not that nobody is there.
#[test]
#[ignore = "needs NIXL: cargo x nixl"]
fn the_end_of_a_link_is_no_fence_while_the_peer_s_agent_lives() {
    let (mut a, b, socket) = admitted();
    let lost = Event::PeerLost(b.id.clone());
    drop(socket);
    pump_for(&mut [&mut a], Duration::from_millis(300));
    assert!(!a.has(&lost));
    drop(b);
    pump(&mut [&mut a], |agents| agents[0].has(&lost));
}
