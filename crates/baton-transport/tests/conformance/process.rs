//! `shm`, `tcp` and `nixl` with a real second process: this executable again, as [`child`].

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use baton_transport::{Direction, Event, ListId, Post, PostId, TcpConfig, TransportLimits};
use rustix::process::{Pid, Signal, kill_process};

use crate::agent::{Agent, SOON, engine, every_block, lists, pump, pump_for};
use crate::fabric::{Fabric, NixlFabric, ShmFabric, TcpFabric};

const BLOCK: usize = 4096;
const BLOCKS: usize = 4096;
/// Posts that are in flight when the other process ends.
const POSTS: usize = 500;
const INCARNATION: &str = "BATON_TEST_INCARNATION";
const TRANSPORT: &str = "BATON_TEST_TRANSPORT";
const MARK: &str = "baton: ";

fn agent(fabric: &dyn Fabric, name: &str, incarnation: u64) -> Agent {
    Agent::new(fabric, engine(name, incarnation), BLOCK * BLOCKS, TransportLimits::default())
}

fn all_blocks() -> Vec<(u32, u32)> {
    // Scattered, so that a post takes a while.
    (0..BLOCKS as u32).map(|i| (i, BLOCKS as u32 - 1 - i)).collect()
}

/// The other process. Does nothing unless it was started by a test.
#[test]
fn child() {
    let Ok(incarnation) = std::env::var(INCARNATION) else { return };
    let tcp = TcpFabric::default();
    let fabric: &dyn Fabric = match std::env::var(TRANSPORT).as_deref() {
        Ok("tcp") => &tcp,
        Ok("nixl") => &NixlFabric,
        _ => &ShmFabric,
    };
    let mut b = agent(fabric, "b", incarnation.parse().unwrap());
    println!("{MARK}metadata {}", to_hex(&b.transport.metadata()));
    let (sender, commands) = channel();
    std::thread::spawn(move || {
        std::io::stdin().lines().map_while(Result::ok).for_each(|line| sender.send(line).unwrap());
        std::process::exit(0);
    });
    let mut flood: Option<(Direction, (ListId, ListId))> = None;
    let (mut posted, mut ended) = (0, 0);
    loop {
        for line in commands.try_iter() {
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["add", metadata] => b.transport.add_peer(&engine("a", 1), &from_hex(metadata)).unwrap(),
                ["fill", byte] => b.fill(|_| byte.parse().unwrap()),
                ["first", block] => {
                    println!("{MARK}first {}", b.bytes(block.parse::<usize>().unwrap() * BLOCK, 1)[0]);
                }
                ["flood", direction] => {
                    let direction = if direction == "read" { Direction::Read } else { Direction::Write };
                    flood = Some((direction, lists(&mut b, &engine("a", 1), &every_block(BLOCK, BLOCKS))));
                }
                _ => panic!("{line}"),
            }
        }
        if let Some((direction, (local, remote))) = flood
            && posted - ended < 8
        {
            let (id, peer) = (PostId(posted), engine("a", 1));
            let post =
                Post { id, direction, peer, local, remote, pairs: all_blocks(), notify: Some(vec![1]) };
            posted += u64::from(b.transport.post(post).is_ok());
        }
        let more = b.transport.poll(&mut b.events);
        for event in b.events.drain(..) {
            match event {
                Event::Notified { bytes, .. } => println!("{MARK}notified {}", to_hex(&bytes)),
                Event::PeerLost(_) => (flood = None, println!("{MARK}lost")).1,
                _ => ended += 1,
            }
        }
        if !more && flood.is_none() {
            b.transport.wait(Duration::from_millis(5));
        }
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(hex: &str) -> Vec<u8> {
    hex.as_bytes()
        .chunks(2)
        .map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap())
        .collect()
}

struct OtherProcess {
    process: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
    metadata: Vec<u8>,
}

impl OtherProcess {
    /// The other side of an agent of that transport.
    fn start(transport: &str, incarnation: u64) -> Self {
        let exe = std::env::current_exe().unwrap();
        // Which is as good as another host for all that is over a network.
        let mut command = match std::env::var("BATON_TEST_OTHER_NETWORK") {
            Ok(network) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &network]).arg(exe);
                command.env("BATON_TEST_HOST", std::env::var("BATON_TEST_OTHER_HOST").unwrap());
                command
            }
            Err(_) => Command::new(exe),
        };
        let mut process = command
            .args(["process::child", "--exact", "--nocapture", "--test-threads=1"])
            .env(INCARNATION, incarnation.to_string())
            .env(TRANSPORT, transport)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = process.stdin.take().unwrap();
        let stdout = process.stdout.take().unwrap();
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some((_, line)) = line.split_once(MARK) {
                    let _ = sender.send(line.to_owned());
                }
            }
        });
        let metadata = lines.recv_timeout(SOON).unwrap();
        let metadata = from_hex(metadata.strip_prefix("metadata ").unwrap());
        Self { process, stdin, lines, metadata }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").unwrap();
    }

    fn hear(&self) -> String {
        self.lines.recv_timeout(SOON).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }
}

impl OtherProcess {
    /// Returns when none of its threads runs any more: the signal alone only asks for that.
    fn stop(&self) {
        self.signal(Signal::STOP);
        let begin = Instant::now();
        loop {
            assert!(begin.elapsed() < SOON);
            let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process.id())).unwrap();
            let stats = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap());
            if stats
                .into_iter()
                .all(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')))
            {
                return;
            }
        }
    }
}

impl Drop for OtherProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An agent here and one in another process, which know each other.
fn two_processes(incarnation: u64, a: &mut Agent) -> (OtherProcess, (ListId, ListId)) {
    let mut other = OtherProcess::start(a.transport.name(), incarnation);
    other.say(&format!("add {}", to_hex(&a.transport.metadata())));
    a.transport.add_peer(&engine("b", incarnation), &other.metadata).unwrap();
    let lists = lists(a, &engine("b", incarnation), &every_block(BLOCK, BLOCKS));
    (other, lists)
}

fn post(id: u64, direction: Direction, (local, remote): (ListId, ListId), pairs: Vec<(u32, u32)>) -> Post {
    Post {
        id: PostId(id),
        direction,
        peer: engine("b", 1),
        local,
        remote,
        pairs,
        notify: Some(vec![id as u8]),
    }
}

fn lost() -> Event {
    Event::PeerLost(engine("b", 1))
}

#[test]
fn bytes_and_notifications_cross_processes_both_ways() {
    cross_both_ways(agent(&ShmFabric, "a", 1));
    cross_both_ways(agent(&TcpFabric::default(), "a", 1));
}

#[test]
#[ignore = "needs NIXL: cargo x nixl"]
fn nixl_crosses_processes_both_ways() {
    cross_both_ways(agent(&NixlFabric, "a", 1));
}

fn cross_both_ways(mut a: Agent) {
    let (mut other, lists) = two_processes(1, &mut a);
    a.fill(|_| 1);
    a.transport.post(post(1, Direction::Write, lists, all_blocks())).unwrap();
    pump(&mut [&mut a], |agents| agents[0].done() == [1]);
    assert_eq!(other.hear(), "notified 01");
    other.say("first 4095");
    assert_eq!(other.hear(), "first 1");
    other.say("fill 2");
    other.say("first 0");
    assert_eq!(other.hear(), "first 2");
    a.transport.post(post(2, Direction::Read, lists, vec![(5, 9), (7, 11)])).unwrap();
    pump(&mut [&mut a], |agents| agents[0].done() == [1, 2]);
    assert_eq!([4, 5, 6, 7, 8].map(|block| a.bytes(block * BLOCK + 17, 1)[0]), [1, 2, 1, 2, 1]);
    other.say("flood write");
    pump(&mut [&mut a], |agents| agents[0].notified().len() > 3);
    assert!(a.all_bytes().iter().all(|&b| b == 2));
}

/// Both sides copy out of and into each other as fast as they can.
fn busy_processes(a: &mut Agent) -> OtherProcess {
    let (mut other, lists) = two_processes(1, a);
    other.say("fill 3");
    other.say("flood write");
    pump(&mut [&mut *a], |agents| !agents[0].notified().is_empty());
    // They share the way, so that none of them ends before nearly all of their bytes are copied, which takes
    // a second.
    for id in 0..POSTS as u64 {
        let post = post(id, Direction::Read, lists, all_blocks());
        a.transport.post(Post { notify: None, ..post }).unwrap();
    }
    pump_for(&mut [&mut *a], Duration::from_millis(30));
    other
}

/// Every post has ended, the peer is lost, and nothing it had begun reaches our memory any more.
fn nothing_comes_after_the_loss(a: &mut Agent) {
    assert_eq!(a.events.last(), Some(&lost()));
    let (done, failed) = (a.done().len(), a.failed().len());
    assert!(failed > 0 && done + failed == POSTS, "{done} done, {failed} failed");
    a.fill(|_| 9);
    pump_for(&mut [&mut *a], Duration::from_millis(100));
    assert!(a.all_bytes().iter().all(|&b| b == 9));
    assert_eq!(a.events.last(), Some(&lost()));
}

#[test]
fn a_killed_process_is_lost_within_a_second() {
    lose_a_killed_process(agent(&ShmFabric, "a", 1));
    lose_a_killed_process(agent(&TcpFabric::default(), "a", 1));
}

#[test]
#[ignore = "needs NIXL: cargo x nixl"]
fn nixl_loses_a_killed_process_within_a_second() {
    lose_a_killed_process(agent(&NixlFabric, "a", 1));
}

fn lose_a_killed_process(mut a: Agent) {
    let other = busy_processes(&mut a);
    other.signal(Signal::KILL);
    let begin = Instant::now();
    pump(&mut [&mut a], |agents| agents[0].has(&lost()));
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    nothing_comes_after_the_loss(&mut a);

    let (_other, _) = two_processes(2, &mut a);
    let lists = lists(&mut a, &engine("b", 2), &every_block(BLOCK, BLOCKS));
    let again = Post { peer: engine("b", 2), ..post(5000, Direction::Read, lists, vec![(0, 0)]) };
    a.transport.post(again).unwrap();
    pump(&mut [&mut a], |agents| agents[0].done().contains(&5000));
    assert_eq!(a.bytes(0, 1), [0], "a new life begins with new memory");
}

#[test]
fn a_stopped_process_that_maps_our_memory_is_not_lost_before_it_goes_on() {
    let mut a = agent(&ShmFabric, "a", 1);
    let other = busy_processes(&mut a);
    other.stop();
    a.transport.remove_peer(&engine("b", 1));
    pump_for(&mut [&mut a], Duration::from_millis(500));
    assert_eq!(a.done().len() + a.failed().len(), POSTS, "our own posts end at once");
    assert!(!a.has(&lost()), "its next store may hit our memory");
    let again = a.transport.add_peer(&engine("b", 1), &other.metadata);
    assert!(again.is_err(), "not while the old path is there");
    other.signal(Signal::CONT);
    pump(&mut [&mut a], |agents| agents[0].has(&lost()));
    nothing_comes_after_the_loss(&mut a);
    assert_eq!(other.hear(), "lost");
}

/// A dead process's bytes may still be on their way: they come before the loss, and not after it.
#[test]
#[ignore = "needs NIXL: cargo x nixl"]
fn nixl_takes_in_what_a_dead_process_had_sent() {
    let mut a = agent(&NixlFabric, "a", 1);
    for incarnation in 1..=3 {
        let (mut other, _) = two_processes(incarnation, &mut a);
        other.say("flood write");
        let heard = a.notified().len();
        pump(&mut [&mut a], |agents| agents[0].notified().len() > heard);
        // Meanwhile the network between them fills.
        std::thread::sleep(Duration::from_millis(100));
        other.signal(Signal::KILL);
        other.process.wait().unwrap();
        pump(&mut [&mut a], |agents| agents[0].has(&Event::PeerLost(engine("b", incarnation))));
        a.fill(|_| 9);
        pump_for(&mut [&mut a], Duration::from_millis(50));
        assert!(a.all_bytes().iter().all(|&b| b == 9));
    }
}

/// Nobody's death takes along the engine whose memory it was reading.
#[test]
#[ignore = "needs NIXL: cargo x nixl"]
fn nixl_survives_readers_that_are_killed() {
    let mut a = agent(&NixlFabric, "a", 1);
    for incarnation in 1..=3 {
        let (mut other, _) = two_processes(incarnation, &mut a);
        other.say("flood read");
        let heard = a.notified().len();
        pump(&mut [&mut a], |agents| agents[0].notified().len() > heard + 2);
        other.signal(Signal::KILL);
        pump(&mut [&mut a], |agents| agents[0].has(&Event::PeerLost(engine("b", incarnation))));
    }
}

/// What a stopped process has begun may go on at any moment, and some of our own posts end with it only.
fn keep_a_stopped_process_until(mut a: Agent, signal: Signal) {
    let other = busy_processes(&mut a);
    other.stop();
    a.transport.remove_peer(&engine("b", 1));
    pump_for(&mut [&mut a], Duration::from_millis(500));
    assert!(!a.has(&lost()), "its next write may hit our memory");
    let again = a.transport.add_peer(&engine("b", 1), &other.metadata);
    assert!(again.is_err(), "not while the old path is there");
    other.signal(signal);
    pump(&mut [&mut a], |agents| agents[0].has(&lost()));
    nothing_comes_after_the_loss(&mut a);
}

#[test]
#[ignore = "needs NIXL: cargo x nixl"]
fn nixl_keeps_a_stopped_process_until_it_goes_on() {
    keep_a_stopped_process_until(agent(&NixlFabric, "a", 1), Signal::CONT);
}

#[test]
#[ignore = "needs NIXL: cargo x nixl"]
fn nixl_keeps_a_stopped_process_until_it_is_killed() {
    keep_a_stopped_process_until(agent(&NixlFabric, "a", 1), Signal::KILL);
}

#[test]
fn a_stopped_process_that_maps_our_memory_is_lost_when_it_is_killed() {
    let mut a = agent(&ShmFabric, "a", 1);
    let other = busy_processes(&mut a);
    other.stop();
    a.transport.remove_peer(&engine("b", 1));
    pump_for(&mut [&mut a], Duration::from_millis(100));
    assert!(!a.has(&lost()));
    other.signal(Signal::KILL);
    pump(&mut [&mut a], |agents| agents[0].has(&lost()));
    nothing_comes_after_the_loss(&mut a);
}

/// Here it is our side that writes into our memory: there is nothing to wait for.
#[test]
fn a_stopped_process_that_sends_bytes_is_lost_at_once() {
    let mut a = agent(&TcpFabric::default(), "a", 1);
    let other = busy_processes(&mut a);
    other.stop();
    a.transport.remove_peer(&engine("b", 1));
    a.transport.poll(&mut a.events);
    nothing_comes_after_the_loss(&mut a);
    other.signal(Signal::CONT);
    while other.hear() != "lost" {}
    nothing_comes_after_the_loss(&mut a);
}

#[test]
fn a_process_that_stays_stopped_is_cut() {
    let stall = Duration::from_millis(300);
    let mut a = agent(&TcpFabric(TcpConfig { stall, ..TcpConfig::default() }), "a", 1);
    let other = busy_processes(&mut a);
    other.stop();
    pump(&mut [&mut a], |agents| agents[0].has(&lost()));
    nothing_comes_after_the_loss(&mut a);
}

#[test]
fn a_process_that_has_nothing_to_answer_may_stay_silent() {
    let stall = Duration::from_millis(100);
    let mut a = agent(&TcpFabric(TcpConfig { stall, ..TcpConfig::default() }), "a", 1);
    let (other, lists) = two_processes(1, &mut a);
    a.transport.post(post(1, Direction::Write, lists, vec![(1, 1)])).unwrap();
    pump(&mut [&mut a], |agents| agents[0].done() == [1]);
    pump_for(&mut [&mut a], stall * 3);
    a.transport.post(post(2, Direction::Write, lists, vec![(1, 1)])).unwrap();
    pump(&mut [&mut a], |agents| agents[0].done() == [1, 2]);
    assert_eq!((other.hear(), other.hear()), ("notified 01".to_owned(), "notified 02".to_owned()));
}
