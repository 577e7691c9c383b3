//! `tcp` against whoever does not keep to the protocol: sockets driven by hand, and a wire that changes bits.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use baton_transport::{
    Access, Descriptor, Direction, Event, PermitId, Post, PostId, TcpConfig, TransportError, TransportLimits,
};

use crate::agent::{Agent, SOON, engine, every_block, lists, pump, pump_for};
use crate::fabric::{Authority, Fabric, TcpFabric};

const A_WHILE: Duration = Duration::from_millis(50);
const REGION: usize = 1 << 20;

fn agent(name: &str, limits: TransportLimits) -> Agent {
    Agent::new(&TcpFabric::default(), engine(name, 1), REGION, limits)
}

/// `tcp`, version, 16 bytes of token, region length, TLS, port, host.
const TOKEN: std::ops::Range<usize> = 5..21;
const PORT: std::ops::Range<usize> = 30..32;

fn address(metadata: &[u8]) -> SocketAddr {
    let port = u16::from_le_bytes(metadata[PORT].try_into().unwrap());
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn dial(agent: &Agent) -> TcpStream {
    let socket = TcpStream::connect(address(&agent.transport.metadata())).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

fn frame(kind: u8, flags: u8, count: u16, payload_bytes: u32, post: u64, value: u32, tail: &[u8]) -> Vec<u8> {
    let mut head = vec![kind, flags];
    head.extend(count.to_le_bytes());
    head.extend(payload_bytes.to_le_bytes());
    head.extend(post.to_le_bytes());
    head.extend(value.to_le_bytes());
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &[&head, tail].concat());
    head.extend((crc as u32).to_le_bytes());
    head.extend(tail);
    head
}

const PATH: u64 = 7;

fn hello_of(token: &[u8], proof: &[u8], version: u16, lane: u8, from: &str, to: &str) -> Vec<u8> {
    let mut body = version.to_le_bytes().to_vec();
    body.extend(token);
    body.extend(proof);
    body.extend(PATH.to_le_bytes());
    body.extend([lane, 2]);
    for id in [from, to] {
        body.push(id.len() as u8);
        body.extend(id.bytes());
    }
    frame(1, 0, body.len() as u16, 0, 0, 0, &body)
}

/// By somebody who knows the token of `agent` only.
fn hello(agent: &Agent, lane: u8, from: &str, to: &str) -> Vec<u8> {
    hello_of(&agent.transport.metadata()[TOKEN], &[0; 16], 1, lane, from, to)
}

/// By `b`, to `a`.
fn true_hello(a: &Agent, b: &Agent, lane: u8) -> Vec<u8> {
    let [dialed, dialing] = [a, b].map(|agent| agent.transport.metadata()[TOKEN].to_vec());
    let key: [u8; 32] = [dialing, dialed.clone()].concat().try_into().unwrap();
    let proof = blake3::keyed_hash(&key, &PATH.to_le_bytes());
    hello_of(&dialed, &proof.as_bytes()[..16], 1, lane, B, A)
}

fn runs(runs: &[(u64, u32)]) -> Vec<u8> {
    runs.iter().flat_map(|(offset, len)| [&offset.to_le_bytes()[..], &len.to_le_bytes()].concat()).collect()
}

fn write(post: u64, at: &[(u64, u32)], byte: u8) -> Vec<u8> {
    let bytes = at.iter().map(|(_, len)| len).sum::<u32>();
    let head = frame(3, 0, at.len() as u16, bytes, post, 0, &runs(at));
    [head, vec![byte; bytes as usize], vec![0; 8]].concat()
}

fn read(post: u64, at: &[(u64, u32)]) -> Vec<u8> {
    frame(5, 0, at.len() as u16, at.iter().map(|(_, len)| len).sum(), post, 0, &runs(at))
}

fn finish(post: u64, writes: u32, notify: &[u8]) -> Vec<u8> {
    frame(4, 2, notify.len() as u16, 0, post, writes, notify)
}

const A: &str = "a@0000000000000001";
const B: &str = "b@0000000000000001";

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

fn is_closed(socket: &mut TcpStream) -> bool {
    hear(socket).1
}

/// A connection that is admitted as the first lane of `b`.
fn admitted(a: &mut Agent, b: &Agent) -> TcpStream {
    a.add(b).unwrap();
    let mut socket = dial(a);
    socket.write_all(&true_hello(a, b, 0)).unwrap();
    pump_for(&mut [&mut *a], A_WHILE);
    let (welcome, closed) = hear(&mut socket);
    assert!(welcome.first() == Some(&2) && !closed, "{welcome:?}");
    socket
}

/// That the agent is well: a real peer comes, and moves a block.
fn assert_well(a: &mut Agent, name: &str) {
    let mut peer = agent(name, TransportLimits::default());
    peer.add(a).unwrap();
    a.add(&peer).unwrap();
    let (local, remote) = lists(&mut peer, &a.id, &every_block(64, 2));
    let (id, direction, peer_id) = (PostId(1), Direction::Write, a.id.clone());
    let post = Post { id, direction, peer: peer_id, local, remote, pairs: vec![(0, 0)], notify: None };
    peer.transport.post(post).unwrap();
    pump(&mut [a, &mut peer], |agents| agents[1].done() == [1]);
}

#[test]
fn strangers_get_nothing() {
    let mut a = agent("a", TransportLimits::default());
    let b = agent("b", TransportLimits::default());
    a.add(&b).unwrap();
    let mut wrong_token = a.transport.metadata()[TOKEN].to_vec();
    wrong_token[3] ^= 1;
    let mut damaged = hello(&a, 0, B, A);
    damaged[30] ^= 1;
    let refused = [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0; 512],
        vec![7; 600],
        hello_of(&wrong_token, &[0; 16], 1, 0, B, A),
        hello_of(&a.transport.metadata()[TOKEN], &[0; 16], 9, 0, B, A),
        hello(&a, 2, B, A),
        hello(&a, 0, B, "c@0000000000000001"),
        hello(&a, 0, A, A),
        hello(&a, 0, "no engine id", A),
        damaged,
        // Another engine that was told our token, but not that of `b`.
        hello(&a, 0, B, A),
        [true_hello(&a, &b, 0), true_hello(&a, &b, 0)].concat(),
        write(1, &[(0, 64)], 9),
        read(1, &[(0, 64)]),
        frame(2, 0, 10, 0, 0, 0, &[1, 0, 0, 0, 16, 0, 0, 0, 0, 0]),
    ];
    for bytes in refused {
        let mut socket = dial(&a);
        socket.write_all(&bytes).unwrap();
        pump_for(&mut [&mut a], Duration::from_millis(5));
        // Whoever sent a whole Hello and more was admitted, and is cut for the rest.
        pump_for(&mut [&mut a], Duration::from_millis(5));
        assert!(is_closed(&mut socket), "{bytes:?}");
        a.events.clear();
        let _ = a.add(&b);
    }
    let mut unknown = dial(&a);
    unknown.write_all(&hello(&a, 0, "c@0000000000000001", A)).unwrap();
    pump_for(&mut [&mut a], A_WHILE);
    assert!(!is_closed(&mut unknown), "it may be added yet");
    unknown.write_all(&write(1, &[(0, 64)], 9)).unwrap();
    pump_for(&mut [&mut a], A_WHILE);
    assert!(is_closed(&mut unknown), "it was not");
    assert!(a.all_bytes().iter().all(|&b| b == 0));
    assert_well(&mut a, "d");
}

#[test]
fn whoever_says_nothing_is_sent_away_in_time() {
    let limits = TransportLimits { handshake: Duration::from_millis(150), ..TransportLimits::default() };
    let mut a = agent("a", limits);
    let (mut silent, mut slow) = (dial(&a), dial(&a));
    slow.write_all(&hello(&a, 0, B, A)[..20]).unwrap();
    pump_for(&mut [&mut a], A_WHILE);
    assert!(!is_closed(&mut silent) && !is_closed(&mut slow));
    pump_for(&mut [&mut a], Duration::from_millis(200));
    assert!(is_closed(&mut silent) && is_closed(&mut slow));
}

#[test]
fn a_flood_of_connections_is_bounded_and_keeps_nobody_out() {
    let mut a = agent("a", TransportLimits { peers: 4, ..TransportLimits::default() });
    let mut flood: Vec<_> = (0..100).map(|_| dial(&a)).collect();
    pump_for(&mut [&mut a], A_WHILE);
    let open = flood.iter_mut().filter_map(|socket| (!is_closed(socket)).then_some(())).count();
    assert_eq!(open, 8, "two lanes for each of four peers");
    assert_well(&mut a, "b");
}

#[test]
fn what_lies_outside_of_the_region_is_refused() {
    let mut a = agent("a", TransportLimits::default());
    let b = agent("b", TransportLimits::default());
    let mut socket = admitted(&mut a, &b);
    let end = REGION as u64;
    for (post, at) in [(1, vec![(0, 64), (end - 63, 64)]), (2, vec![(u64::MAX - 7, 64)]), (3, vec![(end, 1)])]
    {
        socket.write_all(&[write(post, &at, 9), finish(post, 1, &[1])].concat()).unwrap();
        pump_for(&mut [&mut a], A_WHILE);
        let (ended, closed) = hear(&mut socket);
        assert_eq!((ended[0], ended[8], ended[16], closed), (7, post as u8, 2, false));
        socket.write_all(&read(post + 10, &at)).unwrap();
        pump_for(&mut [&mut a], A_WHILE);
        let (data, closed) = hear(&mut socket);
        assert_eq!((data[0], data.len(), data[24], closed), (6, 24 + 8, 2, false), "no payload");
    }
    assert!(a.all_bytes().iter().all(|&b| b == 0) && a.events.is_empty());
    socket.write_all(&[write(4, &[(0, 64)], 9), finish(4, 1, &[1])].concat()).unwrap();
    pump(&mut [&mut a], |agents| agents[0].notified() == [[1]]);
    assert_eq!(a.bytes(0, 65), [vec![9; 64], vec![0]].concat());
}

#[test]
fn a_peer_that_breaks_a_rule_is_lost_and_nobody_else() {
    let nine_reads: Vec<u8> = (0..9).flat_map(|_| read(1, &[(0, 512 << 10)])).collect();
    let too_many_posts: Vec<u8> = (0..1025).flat_map(|post| write(post, &[(0, 1)], 1)).collect();
    let broken = [
        ("garbage", b"hello, hello, hello, hello".to_vec()),
        ("hello again", hello_of(&[0; 16], &[0; 16], 1, 0, B, A)),
        ("an answer to nothing", frame(6, 0, 0, 0, 1, 0, &[])),
        ("the end of nothing", frame(7, 0, 0, 0, 1, 0, &[])),
        ("finished twice", [finish(1, 5, &[]), finish(1, 5, &[])].concat()),
        ("more than it said", [write(1, &[(0, 1)], 1), write(1, &[(1, 1)], 1), finish(1, 1, &[])].concat()),
        ("an empty write", frame(3, 0, 0, 0, 1, 0, &[])),
        ("a payload too long", frame(3, 0, 1, (512 << 10) + 1, 1, 0, &runs(&[(0, (512 << 10) + 1)]))),
        ("lengths that differ", frame(3, 0, 1, 9, 1, 0, &runs(&[(0, 8)]))),
        ("an impossible trailer", [&write(1, &[(0, 1)], 1)[..37], &[9; 8]].concat()),
        ("too many reads", nine_reads),
        ("too many posts", too_many_posts),
    ];
    for (what, bytes) in broken {
        let mut a = agent("a", TransportLimits::default());
        let b = agent("b", TransportLimits::default());
        let mut socket = admitted(&mut a, &b);
        // It may be cut before all of it is sent.
        let _ = socket.write_all(&bytes);
        pump(&mut [&mut a], |agents| agents[0].has(&Event::PeerLost(b.id.clone())));
        assert!(is_closed(&mut socket), "{what}");
        assert_eq!(a.events.len(), 1, "{what}");
        assert_well(&mut a, "c");
    }
}

#[test]
fn a_second_connection_for_the_same_lane_is_closed() {
    let mut a = agent("a", TransportLimits::default());
    let b = agent("b", TransportLimits::default());
    let mut first = admitted(&mut a, &b);
    let mut second = dial(&a);
    second.write_all(&true_hello(&a, &b, 0)).unwrap();
    pump_for(&mut [&mut a], A_WHILE);
    assert!(is_closed(&mut second) && !is_closed(&mut first));
    assert!(a.events.is_empty());
}

/// A peer that asks and does not listen.
#[test]
fn a_peer_that_does_not_read_its_answers_is_cut() {
    let config = TcpConfig { stall: Duration::from_millis(400), ..TcpConfig::default() };
    let mut a = Agent::new(&TcpFabric(config), engine("a", 1), REGION, TransportLimits::default());
    let b = agent("b", TransportLimits::default());
    let mut socket = admitted(&mut a, &b);
    let begin = std::time::Instant::now();
    // More than the two sockets hold.
    for _ in 0..8 {
        socket.write_all(&read(1, &[(0, 512 << 10)])).unwrap();
    }
    pump(&mut [&mut a], |agents| agents[0].has(&Event::PeerLost(b.id.clone())));
    assert!(begin.elapsed() >= Duration::from_millis(400), "it was given its time");
    assert_well(&mut a, "c");
}

/// Half of a write, and then nothing.
#[test]
fn a_peer_that_stops_in_the_middle_is_cut() {
    let config = TcpConfig { stall: Duration::from_millis(200), ..TcpConfig::default() };
    let mut a = Agent::new(&TcpFabric(config), engine("a", 1), REGION, TransportLimits::default());
    let b = agent("b", TransportLimits::default());
    let mut socket = admitted(&mut a, &b);
    let begin = std::time::Instant::now();
    socket.write_all(&write(1, &[(0, 4096)], 9)[..2000]).unwrap();
    pump(&mut [&mut a], |agents| agents[0].has(&Event::PeerLost(b.id.clone())));
    assert!(begin.elapsed() >= Duration::from_millis(200));
    a.fill(|_| 5);
    let _ = socket.write_all(&write(1, &[(0, 4096)], 9)[2000..]);
    pump_for(&mut [&mut a], A_WHILE);
    assert!(a.all_bytes().iter().all(|&b| b == 5), "nothing lands after the loss");
}

#[test]
fn tls_is_spoken_by_both_or_by_none() {
    let authority = Authority::new();
    let with_tls =
        || TcpFabric(TcpConfig { tls: Some(authority.issue("127.0.0.1")), ..TcpConfig::default() });
    let mut a = Agent::new(&with_tls(), engine("a", 1), REGION, TransportLimits::default());
    let mut plain = agent("b", TransportLimits::default());
    assert!(matches!(a.add(&plain), Err(TransportError::BadMetadata(_))));
    assert!(matches!(plain.add(&a), Err(TransportError::BadMetadata(_))));
    // Without TLS nothing is heard, not even the right token.
    let mut socket = dial(&a);
    socket.write_all(&hello(&a, 0, B, A)).unwrap();
    pump_for(&mut [&mut a], A_WHILE);
    assert!(is_closed(&mut socket));

    // Of another authority, with the right token.
    let foreign =
        TcpFabric(TcpConfig { tls: Some(Authority::new().issue("127.0.0.1")), ..TcpConfig::default() });
    let mut stranger = Agent::new(&foreign, engine("c", 1), REGION, TransportLimits::default());
    stranger.add(&a).unwrap();
    a.add(&stranger).unwrap();
    pump(&mut [&mut a, &mut stranger], |agents| {
        agents[0].has(&Event::PeerLost(engine("c", 1))) && agents[1].has(&Event::PeerLost(engine("a", 1)))
    });
    let mut friend = Agent::new(&with_tls(), engine("d", 1), REGION, TransportLimits::default());
    friend.add(&a).unwrap();
    a.add(&friend).unwrap();
    let (local, remote) = lists(&mut friend, &a.id, &every_block(64, 2));
    let (id, direction, peer) = (PostId(1), Direction::Read, a.id.clone());
    friend
        .transport
        .post(Post { id, direction, peer, local, remote, pairs: vec![(0, 0)], notify: None })
        .unwrap();
    pump(&mut [&mut a, &mut friend], |agents| agents[1].done() == [1]);
}

#[test]
fn hosts_may_have_names() {
    let fabric = TcpFabric(TcpConfig { host: "localhost".to_owned(), ..TcpConfig::default() });
    let mut a = Agent::new(&fabric, engine("a", 1), REGION, TransportLimits::default());
    assert_well(&mut a, "b");
    let mut nowhere = a.transport.metadata();
    nowhere[32] = b"nowhere.invalid".len() as u8;
    nowhere.truncate(33);
    nowhere.extend(b"nowhere.invalid");
    nowhere[TOKEN].fill(3);
    a.events.clear();
    a.transport.add_peer(&engine("c", 1), &nowhere).unwrap();
    pump(&mut [&mut a], |agents| agents[0].has(&Event::PeerLost(engine("c", 1))));
}

#[test]
fn every_address_is_listened_on_and_one_is_told() {
    let fabric = |host: &str, advertised: Option<&str>| {
        let (host, advertised_host) = (host.to_owned(), advertised.map(str::to_owned));
        TcpFabric(TcpConfig { host, advertised_host, ..TcpConfig::default() })
    };
    for (host, advertised) in [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("::", "127.0.0.1")] {
        let open = fabric(host, Some(advertised));
        assert_well(&mut Agent::new(&open, engine("a", 1), REGION, TransportLimits::default()), "b");
        let unspoken = baton_transport::TcpTransport::new(
            engine("a", 1),
            TransportLimits::default(),
            fabric(host, None).0,
        );
        assert!(unspoken.unwrap_err().to_string().contains("advertised"));
    }
}

/// Between two agents: passes bytes on, and flips one bit of those that `a` sends on one connection.
struct BadWire {
    listener: TcpListener,
    to: SocketAddr,
    lanes: Vec<(TcpStream, TcpStream)>,
    /// Which bit of all that is sent on the connection.
    flip: usize,
    passed: usize,
}

impl BadWire {
    fn new(to: SocketAddr, flip: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { listener, to, lanes: Vec::new(), flip, passed: 0 }
    }

    fn pass(&mut self) {
        if let Ok((near, _)) = self.listener.accept() {
            let far = TcpStream::connect(self.to).unwrap();
            for socket in [&near, &far] {
                socket.set_nonblocking(true).unwrap();
            }
            self.lanes.push((near, far));
        }
        let mut bytes = vec![0; 8192];
        for (number, (near, far)) in self.lanes.iter_mut().enumerate() {
            if let Ok(n) = near.read(&mut bytes) {
                if number == 0 {
                    let (at, bit) = (self.flip / 8, self.flip % 8);
                    if (self.passed..self.passed + n).contains(&at) {
                        bytes[at - self.passed] ^= 1 << bit;
                    }
                    self.passed += n;
                }
                if n == 0 {
                    let _ = far.shutdown(std::net::Shutdown::Both);
                } else {
                    send(far, &bytes[..n]);
                }
            }
            match far.read(&mut bytes) {
                Ok(0) => drop(near.shutdown(std::net::Shutdown::Both)),
                Ok(n) => send(near, &bytes[..n]),
                Err(_) => {}
            }
        }
    }
}

fn send(socket: &mut TcpStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match socket.write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(_) => return,
        }
    }
}

/// Whether a damaged write was noticed: it failed, and nobody was told that it came.
#[test]
fn bytes_that_are_damaged_on_the_way_are_noticed() {
    const BYTES: usize = 24_000;
    const REGION: usize = 32 << 10;
    let config = TcpConfig { lanes: 1, crc: true, ..TcpConfig::default() };
    let (mut failed, mut lost) = (0, 0);
    // All of the Hello, of the head of the write, and some of the payload and of what follows.
    let positions = (0..240)
        .step_by(3)
        .map(|byte| byte * 8 + byte % 8)
        .chain((0..25).map(|i| (240 + i * 960) * 8 + i % 8));
    for flip in positions {
        let fabric = TcpFabric(config.clone());
        let mut a = Agent::new(&fabric, engine("a", 1), REGION, TransportLimits::default());
        let mut b = Agent::new(&fabric, engine("b", 1), REGION, TransportLimits::default());
        let mut metadata = b.transport.metadata();
        let mut wire = BadWire::new(address(&metadata), flip);
        metadata[PORT].copy_from_slice(&wire.listener.local_addr().unwrap().port().to_le_bytes());
        a.transport.add_peer(&b.id, &metadata).unwrap();
        b.add(&a).unwrap();
        a.fill(|i| (i * 31 % 251) as u8);
        let (local, remote) = lists(&mut a, &b.id, &[Descriptor { offset: 64, len: BYTES as u32 }]);
        let (id, direction, peer, notify) = (PostId(1), Direction::Write, b.id.clone(), Some(vec![1]));
        a.transport.post(Post { id, direction, peer, local, remote, pairs: vec![(0, 0)], notify }).unwrap();
        let begin = std::time::Instant::now();
        while a.failed().is_empty() && a.done().is_empty() {
            assert!(begin.elapsed() < SOON, "bit {flip}");
            wire.pass();
            a.transport.poll(&mut a.events);
            b.transport.poll(&mut b.events);
            // What is cut is cut on both sides; here it is the wire's word that the other side hears.
            if b.has(&Event::PeerLost(a.id.clone())) {
                wire.lanes.clear();
            }
        }
        if wire.passed * 8 <= flip || b.notified() == [[1]] {
            // The bit is behind the last byte of the post.
            assert_eq!(b.bytes(64, BYTES), a.bytes(64, BYTES), "bit {flip}");
            continue;
        }
        assert_eq!(a.failed(), [1], "bit {flip}");
        match a.events[0].clone() {
            Event::Failed(_, TransportError::Damaged) => failed += 1,
            _ => lost += 1,
        }
    }
    assert!(failed >= 40 && lost >= 35, "{failed} posts failed, {lost} paths were cut");
}

/// The same without the check: the reason for the option.
#[test]
fn without_the_check_damage_goes_unnoticed() {
    let fabric = TcpFabric(TcpConfig { lanes: 1, ..TcpConfig::default() });
    let mut a = Agent::new(&fabric, engine("a", 1), REGION, TransportLimits::default());
    let mut b = Agent::new(&fabric, engine("b", 1), REGION, TransportLimits::default());
    let mut metadata = b.transport.metadata();
    let mut wire = BadWire::new(address(&metadata), 5000 * 8);
    metadata[PORT].copy_from_slice(&wire.listener.local_addr().unwrap().port().to_le_bytes());
    a.transport.add_peer(&b.id, &metadata).unwrap();
    b.add(&a).unwrap();
    let (local, remote) = lists(&mut a, &b.id, &[Descriptor { offset: 0, len: 24_000 }]);
    let (id, direction, peer) = (PostId(1), Direction::Write, b.id.clone());
    a.transport.post(Post { id, direction, peer, local, remote, pairs: vec![(0, 0)], notify: None }).unwrap();
    let begin = std::time::Instant::now();
    while a.done().is_empty() {
        assert!(begin.elapsed() < SOON);
        wire.pass();
        a.transport.poll(&mut a.events);
        b.transport.poll(&mut b.events);
    }
    assert_eq!(b.all_bytes().iter().filter(|&&b| b != 0).count(), 1);
}

/// Ranges need not be blocks.
#[test]
fn parts_of_blocks_are_permitted_and_no_byte_more() {
    let limits = TransportLimits { enforce_permits: true, ..TransportLimits::default() };
    let mut a = Agent::new(&TcpFabric::default(), engine("a", 1), REGION, limits);
    let b = agent("b", TransportLimits::default());
    let mut socket = admitted(&mut a, &b);
    let range = Descriptor { offset: 100, len: 50 };
    a.transport.permits().permit(&b.id, PermitId(1), Access::Write, [range]).unwrap();
    for (post, at, outcome) in [(1, (100, 50), 0), (2, (120, 30), 0), (3, (99, 1), 1), (4, (149, 2), 1)] {
        socket.write_all(&[write(post, &[at], post as u8), finish(post, 1, &[])].concat()).unwrap();
        pump_for(&mut [&mut a], A_WHILE);
        let (ended, _) = hear(&mut socket);
        assert_eq!((ended[0], ended[8], ended[16]), (7, post as u8, outcome));
    }
    assert_eq!(a.bytes(99, 52), [vec![0], vec![1; 20], vec![2; 30], vec![0]].concat());
}

/// A permit that is taken back between the two halves of one write.
#[test]
fn the_rest_of_a_write_does_not_land_without_its_permit() {
    let limits = TransportLimits { enforce_permits: true, ..TransportLimits::default() };
    let mut a = Agent::new(&TcpFabric::default(), engine("a", 1), REGION, limits);
    let b = agent("b", TransportLimits::default());
    let mut socket = admitted(&mut a, &b);
    let permits = a.transport.permits().clone();
    for (post, other_permit) in [(1, false), (2, true)] {
        a.fill(|_| 0);
        let range = Descriptor { offset: 0, len: 100_000 };
        permits.permit(&b.id, PermitId(1), Access::Write, [range]).unwrap();
        let bytes = [write(post, &[(0, 50_000), (50_000, 50_000)], 9), finish(post, 1, &[])].concat();
        socket.write_all(&bytes[..60_000]).unwrap();
        pump(&mut [&mut a], |agents| agents[0].bytes(59_000, 1) == [9]);
        if other_permit {
            permits.permit(&b.id, PermitId(2), Access::Write, [range]).unwrap();
        }
        permits.forbid(&b.id, PermitId(1));
        a.fill(|_| 5);
        socket.write_all(&bytes[60_000..]).unwrap();
        pump_for(&mut [&mut a], A_WHILE);
        let (ended, _) = hear(&mut socket);
        assert_eq!((ended[0], ended[8], ended[16]), (7, post as u8, u8::from(!other_permit)));
        assert_eq!(a.bytes(0, 60_000 - 24 - 24 - 8), vec![5; 60_000 - 24 - 24 - 8]);
        assert_eq!(a.bytes(99_000, 1000), vec![if other_permit { 9 } else { 5 }; 1000]);
    }
}

/// One address and port for many lives: what was meant for the last does not reach the next.
#[test]
fn a_restarted_agent_on_the_same_port_knows_no_old_token() {
    let mut a = agent("a", TransportLimits::default());
    let old = agent("b", TransportLimits::default());
    let metadata = old.transport.metadata();
    let port = address(&metadata).port();
    drop(old);
    let fabric = TcpFabric(TcpConfig { port, ..TcpConfig::default() });
    let transport = fabric.transport(engine("b", 2), TransportLimits::default());
    drop(transport);
    let mut new = Agent::new(&fabric, engine("b", 2), REGION, TransportLimits::default());
    new.add(&a).unwrap();
    a.transport.add_peer(&engine("b", 1), &metadata).unwrap();
    pump(&mut [&mut a, &mut new], |agents| agents[0].has(&Event::PeerLost(engine("b", 1))));
    assert!(new.all_bytes().iter().all(|&b| b == 0));
}
