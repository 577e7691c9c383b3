//! `shm` against processes that do not keep to the protocol: sockets driven by hand.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use baton_transport::{Direction, Event, Post, PostId, TransportLimits};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketType, accept, bind, connect, listen, recv, send, sendmsg, socket,
};

use crate::agent::{Agent, engine, every_block, lists, pump, pump_for};
use crate::fabric::ShmFabric;

const A_WHILE: Duration = Duration::from_millis(50);

fn agent(name: &str, limits: TransportLimits) -> Agent {
    Agent::new(&ShmFabric, engine(name, 1), 4096, limits)
}

/// `shm`, version, 16 bytes of socket name, 16 of token, region length.
fn address(metadata: &[u8]) -> SocketAddrUnix {
    let hex: String = metadata[5..21].iter().map(|byte| format!("{byte:02x}")).collect();
    SocketAddrUnix::new_abstract_name(format!("baton-{hex}").as_bytes()).unwrap()
}

fn dial(agent: &Agent) -> OwnedFd {
    let fd = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    connect(&fd, &address(&agent.transport.metadata())).unwrap();
    fd
}

fn hello(agent: &Agent, from: &str, to: &str) -> Vec<u8> {
    let mut bytes = vec![1, 1, 0];
    bytes.extend(&agent.transport.metadata()[21..37]);
    for id in [from, to] {
        bytes.push(id.len() as u8);
        bytes.extend(id.bytes());
    }
    bytes
}

const A: &str = "a@0000000000000001";
const B: &str = "b@0000000000000001";

fn say(fd: &OwnedFd, bytes: &[u8]) {
    send(fd, bytes, SendFlags::NOSIGNAL).unwrap();
}

/// Whether the agent has ended its direction.
fn is_closed(fd: &OwnedFd) -> bool {
    loop {
        match recv(fd, &mut [0u8; 600], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return true,
            Ok(_) | Err(Errno::CONNRESET) => {}
            Err(Errno::AGAIN) => return false,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn strangers_get_nothing() {
    let mut a = agent("a", TransportLimits::default());
    let mut b = agent("b", TransportLimits::default());
    a.add(&b).unwrap();
    let mut wrong_token = hello(&a, B, A);
    wrong_token[10] ^= 1;
    let mut wrong_version = hello(&a, B, A);
    wrong_version[1] = 9;
    let refused = [
        b"GET / HTTP/1.1".to_vec(),
        vec![0; 512],
        vec![7; 600],
        vec![],
        wrong_token,
        wrong_version,
        hello(&a, B, "c@0000000000000001"),
        hello(&a, "no engine id", A),
        [hello(&a, B, A), vec![0]].concat(),
        vec![3, 1, 2],
    ];
    for bytes in refused {
        let fd = dial(&a);
        say(&fd, &bytes);
        pump_for(&mut [&mut a], Duration::from_millis(5));
        assert!(is_closed(&fd), "{bytes:?}");
    }
    let unknown = dial(&a);
    say(&unknown, &hello(&a, "c@0000000000000001", A));
    pump_for(&mut [&mut a], A_WHILE);
    assert!(!is_closed(&unknown), "it may be added yet");
    say(&unknown, &[3, 1]);
    pump_for(&mut [&mut a], A_WHILE);
    assert!(is_closed(&unknown), "it was not");
    assert!(a.events.is_empty());

    b.add(&a).unwrap();
    let (local, remote) = lists(&mut a, &b.id, &every_block(64, 1));
    let (id, direction, peer) = (PostId(1), Direction::Write, b.id.clone());
    a.transport.post(Post { id, direction, peer, local, remote, pairs: vec![(0, 0)], notify: None }).unwrap();
    pump(&mut [&mut a, &mut b], |agents| agents[0].done() == [1]);
}

#[test]
fn a_peer_that_talks_nonsense_is_lost_when_it_has_let_go_and_not_before() {
    for nonsense in [
        vec![],
        vec![9; 20],
        vec![3; 258],
        vec![0; 2000],
        hello(&agent("x", TransportLimits::default()), B, A),
    ] {
        let mut a = agent("a", TransportLimits::default());
        let b = agent("b", TransportLimits::default());
        a.add(&b).unwrap();
        let fd = dial(&a);
        say(&fd, &hello(&a, B, A));
        pump_for(&mut [&mut a], A_WHILE);
        assert!(!is_closed(&fd), "admitted");
        say(&fd, &[3, 42]);
        pump(&mut [&mut a], |agents| agents[0].notified() == [[42]]);
        say(&fd, &nonsense);
        pump_for(&mut [&mut a], A_WHILE);
        assert!(is_closed(&fd), "asked to let go");
        let lost = Event::PeerLost(b.id.clone());
        assert!(!a.has(&lost), "it still has our memory: {nonsense:?}");
        drop(fd);
        pump(&mut [&mut a], |agents| agents[0].has(&lost));
    }
}

#[test]
fn a_second_connection_of_a_peer_is_not_admitted() {
    let mut a =
        agent("a", TransportLimits { handshake: Duration::from_millis(200), ..TransportLimits::default() });
    let mut b = agent("b", TransportLimits::default());
    a.add(&b).unwrap();
    b.add(&a).unwrap();
    pump_for(&mut [&mut a, &mut b], A_WHILE);
    let fd = dial(&a);
    say(&fd, &hello(&a, B, A));
    pump_for(&mut [&mut a, &mut b], A_WHILE);
    let nothing = recv(&fd, &mut [0u8; 64], RecvFlags::DONTWAIT);
    assert_eq!(nothing.map(|(_, len)| len), Err(Errno::AGAIN));
    pump_for(&mut [&mut a, &mut b], Duration::from_millis(300));
    assert!(is_closed(&fd));
    assert!(a.events.is_empty() && b.events.is_empty());
}

#[test]
fn a_flood_of_connections_is_bounded_and_passes() {
    let limits =
        TransportLimits { peers: 4, handshake: Duration::from_millis(300), ..TransportLimits::default() };
    let mut a = agent("a", limits);
    let flood: Vec<_> = (0..100).map(|_| dial(&a)).collect();
    pump_for(&mut [&mut a], A_WHILE);
    let open = flood.iter().filter(|fd| !is_closed(fd)).count();
    assert_eq!(open, 4);
    pump_for(&mut [&mut a], Duration::from_millis(400));
    assert!(flood.iter().all(is_closed));

    let mut b = agent("b", TransportLimits::default());
    b.add(&a).unwrap();
    a.add(&b).unwrap();
    let (local, remote) = lists(&mut b, &a.id, &every_block(64, 1));
    let (id, direction, peer) = (PostId(1), Direction::Write, a.id.clone());
    b.transport.post(Post { id, direction, peer, local, remote, pairs: vec![(0, 0)], notify: None }).unwrap();
    pump(&mut [&mut a, &mut b], |agents| agents[1].done() == [1]);
}

/// A listener that hands over memory that could be taken away under the reader.
#[test]
fn a_region_that_could_shrink_is_not_mapped() {
    let mut a = agent("a", TransportLimits::default());
    let metadata = [&b"shm\x01\x00"[..], &[0xab; 16], &[1; 16], &4096u64.to_le_bytes()].concat();
    let listener = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    bind(&listener, &address(&metadata)).unwrap();
    listen(&listener, 4).unwrap();
    let b = engine("b", 1);
    a.transport.add_peer(&b, &metadata).unwrap();
    let (local, remote) = lists(&mut a, &b, &every_block(64, 1));
    let (id, direction, peer) = (PostId(1), Direction::Read, b.clone());
    a.transport.post(Post { id, direction, peer, local, remote, pairs: vec![(0, 0)], notify: None }).unwrap();

    let fd = accept(&listener).unwrap();
    let memory = memfd_create("unsealed", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memory, 4096).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [memory.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    let welcome = [&[2, 1, 0][..], &4096u64.to_le_bytes()].concat();
    sendmsg(&fd, &[IoSlice::new(&welcome)], &mut control, SendFlags::empty()).unwrap();
    pump(&mut [&mut a], |agents| agents[0].has(&Event::PeerLost(b.clone())));
    assert_eq!(a.failed(), [1]);
    assert!(is_closed(&fd));
}
