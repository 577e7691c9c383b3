//! One transfer between two engines, and every order in which things can happen: each message, post, notification and command may
//! be next, and so may a timer, an abort by either side, and one crash. Timers are bounded in number; from every state that is reached
//! a quiet time follows, in which everything must end (I8).

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fmt::Write;
use std::hash::Hasher;
use std::time::Duration;

use baton_proto::{
    Compat, Config, ConnId, Direction, Endpoint, Event, Held, Input, Output, PeerAddress, PostId, Prefilled,
    codec,
};
use baton_types::{
    BlockChain, BlockHash, CacheSalt, EngineId, EngineName, KvDtype, PoolShape, Time, TokenId, TransferId,
    UnitId,
};

const P: usize = 0;
const D: usize = 1;
const X: TransferId = TransferId(1);
const R: TransferId = TransferId(2);
const PREFILLED: Prefilled = Prefilled { first_token: TokenId(9), cached_tokens: 0 };
const RUBBISH: u64 = u64::MAX;
/// So many timers may go off at moments of the adversary's choice.
const TIMERS: u32 = 2;

#[derive(Clone, Debug)]
struct State {
    now: Time,
    nodes: [Node; 2],
    /// Numbers of the connection's two ends, if there is one, and what is on its way to each.
    conn: Option<u64>,
    frames: [VecDeque<Vec<u8>>; 2],
    timers: u32,
    crashed: bool,
    next_conn: u64,
}

#[derive(Clone, Debug)]
struct Node {
    endpoint: Endpoint,
    incarnation: u64,
    script: VecDeque<Command>,
    may_cancel: bool,
    reads_back: bool,
    memory: [u64; 2],
    /// Peers and posts may touch the units.
    open: bool,
    /// The engine keeps them for a next turn.
    kept: bool,
    ended: bool,
    posts: Vec<Posted>,
    /// What the transport and the side channel will say, in any order.
    pending: Vec<Input>,
}

#[derive(Clone, Debug)]
struct Posted {
    post: PostId,
    peer: EngineId,
    direction: Direction,
    pairs: Vec<(UnitId, UnitId)>,
    notify: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    Offer,
    Send,
    /// From which unit to which.
    Progress(u32, u32),
    Complete,
    Expect,
    Fetch {
        early: bool,
    },
    Receive,
    Retain,
    Revoke,
    ReadBack,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Command(usize),
    Cancel(usize),
    Crash(usize),
    Frame(usize),
    Post(usize, usize),
    Pending(usize, usize),
    Timer(usize),
}

fn id(node: usize, incarnation: u64) -> EngineId {
    EngineId::new(EngineName::new(["P", "D"][node]).unwrap(), incarnation)
}

fn endpoint(node: usize, incarnation: u64) -> Endpoint {
    let shape = PoolShape::whole_blocks(2, KvDtype::F32);
    let mut config = Config::new(id(node, incarnation), Compat([7; 16]), vec![], shape);
    config.lease = Duration::from_secs(3);
    config.heartbeat = Duration::from_secs(1);
    config.retry = Duration::from_secs(1);
    config.register_timeout = Duration::from_secs(5);
    config.peer_grace = Duration::from_secs(2);
    config.dial_attempts = 2;
    config.retain_ttl = Duration::from_secs(4);
    Endpoint::new(config)
}

fn chain() -> Vec<BlockHash> {
    let tokens: Vec<_> = (0..8).map(TokenId).collect();
    BlockChain::new(&CacheSalt::default(), 4, &tokens).hashes().to_vec()
}

impl Node {
    /// Nobody new may read the units.
    fn forget(&mut self) {
        self.kept = false;
        self.overwrite();
    }

    /// Other contents come into units that nobody holds any more (I3).
    fn overwrite(&mut self) {
        if !self.open && !self.kept {
            self.memory = [RUBBISH; 2];
        }
    }
}

impl State {
    fn new(source: &[Command], destination: &[Command], cancels: [bool; 2]) -> Self {
        let node = |node, script: &[Command]| Node {
            endpoint: endpoint(node, 1),
            incarnation: 1,
            script: script.iter().copied().collect(),
            may_cancel: cancels[node],
            reads_back: script.contains(&Command::ReadBack),
            memory: [0; 2],
            open: false,
            kept: false,
            ended: false,
            posts: Vec::new(),
            pending: Vec::new(),
        };
        Self {
            now: Time::ZERO,
            nodes: [node(P, source), node(D, destination)],
            conn: None,
            frames: [VecDeque::new(), VecDeque::new()],
            timers: 0,
            crashed: false,
            next_conn: 1,
        }
    }

    fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        for (n, node) in self.nodes.iter().enumerate() {
            if !node.script.is_empty() {
                actions.push(Action::Command(n));
            }
            if node.may_cancel && node.open {
                actions.push(Action::Cancel(n));
            }
            if !self.crashed && (node.open || node.kept) {
                actions.push(Action::Crash(n));
            }
            if !self.frames[n].is_empty() {
                actions.push(Action::Frame(n));
            }
            actions.extend((0..node.posts.len()).map(|i| Action::Post(n, i)));
            actions.extend((0..node.pending.len()).map(|i| Action::Pending(n, i)));
            if self.timers < TIMERS && node.endpoint.poll_timeout().is_some() {
                actions.push(Action::Timer(n));
            }
        }
        actions
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Command(n) => self.command(n),
            Action::Cancel(n) => {
                self.nodes[n].may_cancel = false;
                self.nodes[n].script.clear();
                self.input(n, Input::Cancel { transfer: X });
            }
            Action::Crash(n) => self.crash(n),
            Action::Frame(n) => {
                let frame = self.frames[n].pop_front().expect("enabled");
                if let Some(conn) = self.conn {
                    self.input(n, Input::Received { conn: ConnId(conn), frame });
                }
            }
            Action::Post(n, i) => self.move_bytes(n, i),
            Action::Pending(n, i) => {
                let input = self.nodes[n].pending.remove(i);
                self.input(n, input);
            }
            Action::Timer(n) => {
                self.timers += 1;
                let (due, _) = self.nodes[n].endpoint.poll_timeout().expect("enabled");
                self.now = self.now.max(due);
                self.input(n, Input::Tick);
            }
        }
    }

    fn command(&mut self, n: usize) {
        let command = self.nodes[n].script.pop_front().expect("enabled");
        // An engine whose transfer has ended says no more about it.
        if self.nodes[n].ended && command != Command::Revoke {
            return;
        }
        // The request names the incarnation that was there when it was made.
        let peer = PeerAddress { engine: id(P, 1), host: "P".into(), port: 1 };
        let both = vec![UnitId(0), UnitId(1)];
        let node = &mut self.nodes[n];
        if let Command::Progress(from, to) = command {
            (from..to).for_each(|unit| node.memory[unit as usize] = 100 + u64::from(unit));
        }
        node.open |= !matches!(command, Command::Retain | Command::Revoke);
        let input = match command {
            Command::Offer => Input::Offer { transfer: X, chain: chain() },
            Command::Send => Input::Send { transfer: X, chain: chain() },
            Command::Progress(from, to) => {
                Input::Progress { transfer: X, units: (from..to).map(UnitId).collect() }
            }
            Command::Complete => Input::Complete { transfer: X, prefilled: PREFILLED },
            Command::Expect => Input::Expect { transfer: X, peer, early: false },
            Command::Fetch { early } => {
                let held = if early { Held::Early } else { Held::Offered };
                Input::Fetch { transfer: X, peer, chain: chain(), first_unit: 0, units: both, held }
            }
            Command::Receive => {
                Input::Receive { transfer: X, peer, chain: chain(), first_unit: 0, units: both }
            }
            Command::Retain => {
                node.kept = true;
                node.memory = [100, 101];
                Input::Retain { retention: R, chain: chain(), units: both }
            }
            Command::Revoke => Input::Revoke { retention: R },
            Command::ReadBack => {
                let held = Held::Retained(R);
                Input::Fetch { transfer: X, peer, chain: chain(), first_unit: 0, units: both, held }
            }
        };
        self.input(n, input);
        if command == Command::Revoke {
            self.nodes[n].forget();
        }
    }

    /// The process dies, and another incarnation is there at once.
    fn crash(&mut self, n: usize) {
        self.crashed = true;
        let dead = id(n, self.nodes[n].incarnation);
        let node = &mut self.nodes[n];
        node.incarnation += 1;
        node.endpoint = endpoint(n, node.incarnation);
        node.script.clear();
        (node.open, node.ended, node.may_cancel) = (false, true, false);
        node.kept = false;
        node.memory = [RUBBISH; 2];
        node.posts.clear();
        node.pending.clear();
        self.nodes[1 - n].pending.push(Input::PathLost { engine: dead });
        self.hang_up(n);
    }

    /// The connection ends; the other side hears of it after what was on its way.
    fn hang_up(&mut self, n: usize) {
        self.frames = [VecDeque::new(), VecDeque::new()];
        if let Some(conn) = self.conn.take() {
            self.nodes[1 - n].pending.push(Input::Closed { conn: ConnId(conn) });
        }
    }

    fn input(&mut self, n: usize, input: Input) {
        self.nodes[n].endpoint.handle_input(self.now, input);
        self.nodes[n].endpoint.check();
        while let Some(output) = self.nodes[n].endpoint.poll_output() {
            self.output(n, output);
        }
    }

    fn output(&mut self, n: usize, output: Output) {
        match output {
            Output::Event(event) => self.event(n, event),
            Output::Dial { address } => {
                if self.conn.is_some() {
                    self.nodes[n].pending.push(Input::DialFailed { address });
                    return;
                }
                self.conn = Some(self.next_conn);
                let conn = ConnId(self.next_conn);
                self.next_conn += 1;
                // Opened at once: the orders of interest come after.
                self.input(1 - n, Input::Accepted { conn });
                self.input(n, Input::Connected { address, conn });
            }
            Output::Send { conn, message } if self.conn == Some(conn.0) => {
                self.frames[1 - n].push_back(codec::encode(&message));
            }
            Output::Close { conn } if self.conn == Some(conn.0) => self.hang_up(n),
            Output::Send { .. } | Output::Close { .. } | Output::AddPath { .. } => {}
            Output::Permit { .. } | Output::Forbid { .. } => {}
            Output::RemovePath { engine } => self.nodes[n].pending.push(Input::PathLost { engine }),
            Output::Post { post, engine, direction, pairs, notify, .. } => {
                self.nodes[n].posts.push(Posted { post, peer: engine, direction, pairs, notify });
            }
        }
    }

    fn event(&mut self, n: usize, event: Event) {
        let node = &mut self.nodes[n];
        match event {
            Event::Ready { covered, prefilled, .. } => {
                assert!(!node.ended, "I4: one ending");
                let came_of_it = (!node.reads_back).then_some(PREFILLED);
                assert_eq!((covered, prefilled), (2, came_of_it));
                assert_eq!(node.memory, [100, 101], "I7: the right bytes");
                (node.ended, node.open) = (true, false);
            }
            Event::Failed { quarantined, .. } => {
                assert!(!node.ended, "I4: one ending");
                node.ended = true;
                node.open = quarantined;
            }
            Event::Released { .. } => {
                assert!(node.open, "I4: one release");
                (node.ended, node.open) = (true, false);
                node.overwrite();
            }
            Event::Lent { .. } => {
                assert!(node.kept, "I13: nothing is lent that is not kept");
                node.open = true;
            }
            Event::Lapsed { .. } => node.forget(),
        }
    }

    fn move_bytes(&mut self, n: usize, i: usize) {
        let Posted { post, peer, direction, pairs, notify } = self.nodes[n].posts.remove(i);
        let other = 1 - n;
        let ok = peer == id(other, self.nodes[other].incarnation);
        for (ours, theirs) in pairs.iter().filter(|_| ok) {
            let (from, to, source, target) = match direction {
                Direction::Read => (other, n, theirs, ours),
                Direction::Write => (n, other, ours, theirs),
            };
            assert!(self.nodes[to].open, "I3: a byte lands in a unit that was let go of");
            self.nodes[to].memory[target.index()] = self.nodes[from].memory[source.index()];
        }
        if let Some(bytes) = notify.filter(|_| ok) {
            let engine = id(n, self.nodes[n].incarnation);
            self.nodes[other].pending.push(Input::Notified { engine, bytes });
        }
        self.nodes[n].pending.push(Input::Moved { post, ok });
    }

    /// I8: commands end, everything on its way arrives, and time passes: nothing is left.
    fn assert_drains(mut self) {
        for n in [P, D] {
            self.nodes[n].script.clear();
            self.input(n, Input::Cancel { transfer: X });
        }
        for _ in 0..10_000 {
            let act = self
                .actions()
                .into_iter()
                .find(|action| matches!(action, Action::Frame(_) | Action::Post(..) | Action::Pending(..)));
            if let Some(action) = act {
                self.act(action);
                continue;
            }
            let due = self
                .nodes
                .iter()
                .enumerate()
                .filter_map(|(n, node)| Some((node.endpoint.poll_timeout()?.0, n)));
            let Some((at, n)) = due.min().filter(|(at, _)| *at < self.now + Duration::from_secs(60)) else {
                break;
            };
            self.now = self.now.max(at);
            self.input(n, Input::Tick);
        }
        for (n, node) in self.nodes.iter().enumerate() {
            let census = node.endpoint.census();
            let left =
                census.leases + census.transfers + census.registrations + census.posts + census.farewells;
            assert!(left == 0 && !node.open, "I8: {} still has {census:?}", ["P", "D"][n]);
        }
    }

    /// A state's identity: all of it but the room for further timers.
    fn fingerprint(&self) -> u64 {
        struct Sink(DefaultHasher);
        impl Write for Sink {
            fn write_str(&mut self, text: &str) -> std::fmt::Result {
                self.0.write(text.as_bytes());
                Ok(())
            }
        }
        let mut sink = Sink(DefaultHasher::new());
        write!(sink, "{self:?}").expect("a hasher takes everything");
        sink.0.finish()
    }
}

/// Visits every state once; how many there are.
fn explore(start: State) -> usize {
    let mut seen = HashSet::from([start.fingerprint()]);
    let mut todo = vec![start];
    let mut endings = BTreeMap::new();
    while let Some(state) = todo.pop() {
        let actions = state.actions();
        *endings.entry((state.nodes[P].ended, state.nodes[D].ended)).or_insert(0usize) += 1;
        if actions.is_empty() || seen.len() % 16 == 0 {
            state.clone().assert_drains();
        }
        for action in actions {
            let mut next = state.clone();
            next.act(action);
            if seen.insert(next.fingerprint()) {
                todo.push(next);
            }
        }
    }
    assert_eq!(endings.len(), 4, "each side ends before the other in some order: {endings:?}");
    seen.len()
}

const PULL_SOURCE: &[Command] = &[Command::Offer, Command::Progress(0, 2), Command::Complete];
const EARLY_PULL_SOURCE: &[Command] =
    &[Command::Offer, Command::Progress(0, 1), Command::Progress(1, 2), Command::Complete];
const PULL_DESTINATION: &[Command] = &[Command::Expect, Command::Fetch { early: false }];
const EARLY_PULL_DESTINATION: &[Command] = &[Command::Fetch { early: true }];
const RETAINER: &[Command] = &[Command::Retain, Command::Revoke];
const READER: &[Command] = &[Command::ReadBack];
const PUSH_SOURCE: &[Command] =
    &[Command::Send, Command::Progress(0, 1), Command::Progress(1, 2), Command::Complete];
const PUSH_DESTINATION: &[Command] = &[Command::Receive];

#[test]
fn every_order_of_a_pull() {
    let states = explore(State::new(PULL_SOURCE, PULL_DESTINATION, [true, true]));
    println!("pull: {states} states");
}

#[test]
fn every_order_of_an_early_pull() {
    let states = explore(State::new(EARLY_PULL_SOURCE, EARLY_PULL_DESTINATION, [true, true]));
    println!("early pull: {states} states");
}

#[test]
fn every_order_of_a_push() {
    let states = explore(State::new(PUSH_SOURCE, PUSH_DESTINATION, [true, true]));
    println!("push: {states} states");
}

#[test]
fn every_order_of_a_readback() {
    let states = explore(State::new(RETAINER, READER, [false, true]));
    println!("readback: {states} states");
}
