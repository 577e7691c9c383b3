//! Engines that are only endpoints: a network with delays, memories of a few numbers a unit, and a virtual clock.
//!
//! The world holds the endpoints to their promises while it runs them: a unit that was let go of is filled with rubbish at once,
//! and a byte that lands in such a unit is a failure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use baton_proto::{
    Compat, Config, ConnId, Direction, Ending, Endpoint, Event, Input, Output, PeerAddress, PostId,
    Prefilled, RankPair, codec,
};
use baton_types::{
    BlockChain, BlockHash, CacheSalt, EngineId, EngineName, KvDtype, PoolShape, Time, TokenId, TransferId,
    UnitId,
};

pub const PREFILLED: Prefilled = Prefilled { first_token: TokenId(42), cached_tokens: 3 };
/// KV heads of the model, split over the ranks of each engine.
const HEADS: usize = 4;
const UNITS: u32 = 128;
const RUBBISH: Heads = [u64::MAX; HEADS];

/// What a unit holds: a number a head.
pub type Heads = [u64; HEADS];

pub struct World {
    pub now: Time,
    pub nodes: Vec<Node>,
    /// Both ends of each connection: node and number there.
    conns: BTreeMap<(usize, ConnId), (usize, ConnId)>,
    last_arrival: BTreeMap<(usize, ConnId), Time>,
    queue: BTreeMap<(Time, u64), Happening>,
    next: u64,
    random: u64,
    max_delay_ms: u64,
    pub log: String,
}

pub struct Node {
    pub name: &'static str,
    pub endpoint: Option<Endpoint>,
    pub incarnation: u64,
    ranks: u32,
    pub memory: Vec<Heads>,
    /// Units that a peer, or a post, may touch at the moment, by transfer.
    open: BTreeMap<TransferId, Vec<UnitId>>,
    /// Transfers for which the engine was told an ending, and whether Released is still owed.
    pub endings: BTreeMap<TransferId, Ending>,
    owed: BTreeSet<TransferId>,
    pub ready: BTreeMap<TransferId, (usize, Option<Prefilled>)>,
    source: BTreeSet<TransferId>,
    /// What is kept for other turns, by retention.
    retained: BTreeMap<TransferId, Vec<UnitId>>,
    wanted: BTreeMap<TransferId, Vec<Heads>>,
}

enum Happening {
    Input(usize, u64, Input),
    /// Bytes of a post leave one memory and reach the other; then the post is over.
    Move {
        node: usize,
        incarnation: u64,
        post: PostId,
        peer: EngineId,
        direction: Direction,
        ranks: RankPair,
        pairs: Vec<(UnitId, UnitId)>,
        notify: Option<Vec<u8>>,
    },
}

impl Node {
    /// Other contents come into units that nobody holds any more (I3).
    fn overwrite(&mut self, units: &[UnitId]) {
        for unit in units {
            let held = self.open.values().chain(self.retained.values()).any(|held| held.contains(unit));
            if !held {
                self.memory[unit.index()] = RUBBISH;
            }
        }
    }
}

impl World {
    /// Engines with names and numbers of ranks.
    pub fn new(engines: &[(&'static str, u32)], seed: u64, max_delay_ms: u64) -> Self {
        let mut world = Self {
            now: Time::ZERO,
            nodes: Vec::new(),
            conns: BTreeMap::new(),
            last_arrival: BTreeMap::new(),
            queue: BTreeMap::new(),
            next: 0,
            random: seed,
            max_delay_ms,
            log: String::new(),
        };
        for &(name, ranks) in engines {
            let node = Node {
                name,
                ranks,
                endpoint: None,
                incarnation: 0,
                memory: Vec::new(),
                open: BTreeMap::new(),
                endings: BTreeMap::new(),
                owed: BTreeSet::new(),
                ready: BTreeMap::new(),
                source: BTreeSet::new(),
                retained: BTreeMap::new(),
                wanted: BTreeMap::new(),
            };
            world.nodes.push(node);
            world.start(world.nodes.len() - 1);
        }
        world
    }

    pub fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below.max(1)
    }

    /// (Re)starts a node with an empty memory and a new incarnation.
    pub fn start(&mut self, node: usize) {
        self.nodes[node].incarnation += 1;
        let ranks = self.nodes[node].ranks;
        let shape = PoolShape { units: UNITS, block_units: 1, ranks, dtype: KvDtype::F32 };
        let mut config = Config::new(self.id(node), Compat([7; 16]), vec![node as u8], shape);
        config.lease = Duration::from_millis(3000);
        config.heartbeat = Duration::from_millis(500);
        config.retry = Duration::from_millis(200);
        config.register_timeout = Duration::from_millis(8000);
        config.peer_grace = Duration::from_millis(800);
        config.retain_ttl = Duration::from_millis(9000);
        let state = &mut self.nodes[node];
        state.endpoint = Some(Endpoint::new(config));
        state.memory = vec![[0; HEADS]; UNITS as usize];
        state.open.clear();
        state.owed.clear();
        state.retained.clear();
    }

    /// The process dies: its peers see their connections close and, as the fence, their paths lost.
    pub fn crash(&mut self, node: usize) {
        let dead = self.id(node);
        self.note(node, "crashes");
        self.nodes[node].endpoint = None;
        let gone: Vec<_> =
            self.conns.iter().filter(|((n, _), _)| *n == node).map(|(a, b)| (*a, *b)).collect();
        for (ours, (peer, conn)) in gone {
            self.conns.remove(&ours);
            self.conns.remove(&(peer, conn));
            self.send_after(peer, Input::Closed { conn });
        }
        for peer in (0..self.nodes.len()).filter(|peer| *peer != node) {
            self.send_after(peer, Input::PathLost { engine: dead.clone() });
        }
    }

    pub fn id(&self, node: usize) -> EngineId {
        EngineId::new(EngineName::new(self.nodes[node].name).unwrap(), self.nodes[node].incarnation)
    }

    pub fn address(&self, node: usize) -> PeerAddress {
        PeerAddress { engine: self.id(node), host: self.nodes[node].name.into(), port: 1 }
    }

    /// The source computes the next units of its chain, from its `first` on, and says so.
    pub fn progress(&mut self, node: usize, transfer: TransferId, first: usize, units: Vec<UnitId>) {
        for (i, unit) in units.iter().enumerate() {
            self.nodes[node].memory[unit.index()] = content(transfer, first + i);
        }
        self.input(node, Input::Progress { transfer, units });
    }

    /// The engine keeps what a conversation left in these units.
    pub fn retain(&mut self, node: usize, retention: TransferId, chain: Vec<BlockHash>, units: Vec<UnitId>) {
        assert!(!self.is_touchable(node, &units), "I3: an engine fills nothing that is leased");
        for (place, unit) in units.iter().enumerate() {
            self.nodes[node].memory[unit.index()] = content(retention, place);
        }
        self.nodes[node].retained.insert(retention, units.clone());
        self.input(node, Input::Retain { retention, chain, units });
    }

    /// The engine needs the room of what it keeps.
    pub fn revoke(&mut self, node: usize, retention: TransferId) {
        self.input(node, Input::Revoke { retention });
        self.forget(node, retention);
    }

    /// Whether anybody may still touch the units of a transfer.
    pub fn is_open(&self, node: usize, transfer: TransferId) -> bool {
        self.nodes[node].open.contains_key(&transfer)
    }

    /// Whether a peer, or a post, may still touch any of these units.
    pub fn is_touchable(&self, node: usize, units: &[UnitId]) -> bool {
        self.nodes[node].open.values().flatten().any(|open| units.contains(open))
    }

    pub fn is_retained(&self, node: usize, retention: TransferId) -> bool {
        self.nodes[node].retained.contains_key(&retention)
    }

    pub fn hold(
        &mut self,
        node: usize,
        transfer: TransferId,
        units: &[UnitId],
        source: bool,
        wanted: Vec<Heads>,
    ) {
        let state = &mut self.nodes[node];
        state.open.insert(transfer, units.to_vec());
        state.owed.insert(transfer);
        if source {
            state.source.insert(transfer);
        } else {
            state.wanted.insert(transfer, wanted);
        }
    }

    pub fn input(&mut self, node: usize, input: Input) {
        let now = self.now;
        let Some(endpoint) = &mut self.nodes[node].endpoint else { return };
        endpoint.handle_input(now, input);
        let mut outputs = Vec::new();
        while let Some(output) = endpoint.poll_output() {
            outputs.push(output);
        }
        endpoint.check();
        for output in outputs {
            self.output(node, output);
        }
    }

    fn output(&mut self, node: usize, output: Output) {
        match output {
            Output::Event(event) => self.event(node, event),
            Output::Dial { address } => self.dial(node, address),
            Output::Send { conn, message } => {
                self.note(node, &format!("says {message:?}"));
                let Some((peer, peer_conn)) = self.conns.get(&(node, conn)).copied() else { return };
                let frame = codec::encode(&message);
                let at = self
                    .later()
                    .max(self.last_arrival.get(&(peer, peer_conn)).copied().unwrap_or(Time::ZERO));
                self.last_arrival.insert((peer, peer_conn), at);
                self.push(at, peer, Input::Received { conn: peer_conn, frame });
            }
            Output::Close { conn } => {
                if let Some((peer, peer_conn)) = self.conns.remove(&(node, conn)) {
                    self.conns.remove(&(peer, peer_conn));
                    self.send_after(peer, Input::Closed { conn: peer_conn });
                }
            }
            Output::AddPath { .. } | Output::Permit { .. } | Output::Forbid { .. } => {}
            Output::RemovePath { engine } => self.send_after(node, Input::PathLost { engine }),
            Output::Post { post, engine, direction, ranks, pairs, notify } => {
                let RankPair { ours, theirs } = ranks;
                self.note(node, &format!("posts {direction:?} of {pairs:?}, ranks {ours} and {theirs}"));
                let at = self.later();
                let incarnation = self.nodes[node].incarnation;
                let peer = engine;
                let happening =
                    Happening::Move { node, incarnation, post, peer, direction, ranks, pairs, notify };
                self.next += 1;
                self.queue.insert((at, self.next), happening);
            }
        }
    }

    fn dial(&mut self, node: usize, address: PeerAddress) {
        let peer = self.nodes.iter().position(|other| other.name == address.host);
        let alive = peer.filter(|peer| self.nodes[*peer].endpoint.is_some());
        let Some(peer) = alive else {
            self.send_after(node, Input::DialFailed { address });
            return;
        };
        self.next += 2;
        let (ours, theirs) = (ConnId(self.next), ConnId(self.next + 1));
        self.conns.insert((node, ours), (peer, theirs));
        self.conns.insert((peer, theirs), (node, ours));
        let at = self.later();
        // Nothing overtakes the opening of its own connection.
        self.last_arrival.insert((node, ours), at);
        self.last_arrival.insert((peer, theirs), at);
        self.push(at, node, Input::Connected { address, conn: ours });
        self.push(at, peer, Input::Accepted { conn: theirs });
    }

    fn event(&mut self, node: usize, event: Event) {
        self.note(node, &format!("hears {event:?}"));
        let state = &mut self.nodes[node];
        match event {
            Event::Ready { transfer, covered, prefilled } => {
                assert!(state.owed.remove(&transfer), "I4: {transfer:?} ends twice at {}", state.name);
                let units = state.open.remove(&transfer).unwrap();
                let held: Vec<Heads> = units.iter().map(|unit| state.memory[unit.index()]).collect();
                let missing = state.wanted[&transfer].len() - units.len();
                let covered_here = covered - missing;
                assert_eq!(
                    held[..covered_here],
                    state.wanted[&transfer][missing..covered],
                    "wrong bytes for {transfer:?}"
                );
                state.ready.insert(transfer, (covered, prefilled));
                state.endings.insert(transfer, Ending::Done);
            }
            Event::Failed { transfer, why, quarantined } => {
                assert!(
                    !state.endings.contains_key(&transfer),
                    "I4: {transfer:?} ends twice at {}",
                    state.name
                );
                state.endings.insert(transfer, why);
                if !quarantined {
                    self.let_go(node, transfer);
                }
            }
            Event::Lent { retention, transfer, units } => {
                let kept = &state.retained[&retention];
                assert!(units.iter().all(|unit| kept.contains(unit)), "I13: lent {units:?} of {kept:?}");
                state.open.insert(transfer, units);
                state.owed.insert(transfer);
                state.source.insert(transfer);
            }
            Event::Lapsed { retention } => self.forget(node, retention),
            Event::Released { transfer, why } => {
                if state.source.contains(&transfer) {
                    assert!(
                        !state.endings.contains_key(&transfer),
                        "I4: {transfer:?} ends twice at {}",
                        state.name
                    );
                    state.endings.insert(transfer, why);
                }
                self.let_go(node, transfer);
            }
        }
    }

    fn let_go(&mut self, node: usize, transfer: TransferId) {
        let state = &mut self.nodes[node];
        assert!(state.owed.remove(&transfer), "I4: {transfer:?} is released twice at {}", state.name);
        let units = state.open.remove(&transfer).unwrap_or_default();
        state.overwrite(&units);
    }

    fn forget(&mut self, node: usize, retention: TransferId) {
        let units = self.nodes[node].retained.remove(&retention).unwrap_or_default();
        self.nodes[node].overwrite(&units);
    }

    fn later(&mut self) -> Time {
        let delay = self.random(self.max_delay_ms * 1000);
        self.now + Duration::from_micros(delay)
    }

    fn send_after(&mut self, node: usize, input: Input) {
        let at = self.later();
        self.push(at, node, input);
    }

    fn push(&mut self, at: Time, node: usize, input: Input) {
        self.next += 1;
        let incarnation = self.nodes[node].incarnation;
        self.queue.insert((at, self.next), Happening::Input(node, incarnation, input));
    }

    /// Runs until `until`, or until nothing is left to happen before it.
    pub fn run(&mut self, until: Time) {
        loop {
            let timer = self
                .nodes
                .iter()
                .enumerate()
                .filter_map(|(i, node)| Some((node.endpoint.as_ref()?.poll_timeout()?.0, i)))
                .min();
            let event = self.queue.keys().next().copied();
            let timer_first = match (event, timer) {
                (Some((at, _)), Some((due, _))) => due < at,
                (event, _) => event.is_none(),
            };
            if timer_first {
                let Some((due, node)) = timer.filter(|(due, _)| *due <= until) else { break };
                self.now = self.now.max(due);
                self.input(node, Input::Tick);
            } else {
                let key = event.expect("an event comes first");
                if key.0 > until {
                    break;
                }
                self.now = self.now.max(key.0);
                let happening = self.queue.remove(&key).expect("just seen");
                self.happen(happening);
            }
        }
        self.now = self.now.max(until);
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Input(node, incarnation, input) => {
                if self.nodes[node].incarnation == incarnation {
                    self.input(node, input);
                }
            }
            Happening::Move { node, incarnation, post, peer, direction, ranks, pairs, notify } => {
                if self.nodes[node].incarnation != incarnation || self.nodes[node].endpoint.is_none() {
                    return;
                }
                let other = self.nodes.iter().position(|n| n.name == peer.name.as_str()).unwrap();
                let ok = self.id(other) == peer && self.nodes[other].endpoint.is_some();
                if ok {
                    let heads: Vec<usize> = self
                        .heads(node, ranks.ours)
                        .filter(|head| self.heads(other, ranks.theirs).contains(head))
                        .collect();
                    assert!(!heads.is_empty(), "the ranks {ranks:?} share heads");
                    for (ours, theirs) in pairs {
                        match direction {
                            Direction::Read => self.copy(other, theirs, node, ours, &heads),
                            Direction::Write => self.copy(node, ours, other, theirs, &heads),
                        }
                    }
                    if let Some(bytes) = notify {
                        let engine = self.id(node);
                        self.send_after(other, Input::Notified { engine, bytes });
                    }
                }
                self.send_after(node, Input::Moved { post, ok });
            }
        }
    }

    fn heads(&self, node: usize, rank: u32) -> std::ops::Range<usize> {
        let each = HEADS / self.nodes[node].ranks as usize;
        rank as usize * each..(rank as usize + 1) * each
    }

    fn copy(&mut self, from: usize, source: UnitId, to: usize, target: UnitId, heads: &[usize]) {
        let open = self.nodes[to].open.values().any(|units| units.contains(&target));
        assert!(open, "I3: a byte lands in {target:?} of {}, which was let go of", self.nodes[to].name);
        for &head in heads {
            self.nodes[to].memory[target.index()][head] = self.nodes[from].memory[source.index()][head];
        }
    }

    fn note(&mut self, node: usize, what: &str) {
        self.log += &format!("{:<7.3} {} {what}\n", self.now.0 as f64 / 1e6, self.nodes[node].name);
    }

    /// I8: after a time without faults nothing is left anywhere.
    pub fn assert_drained(&self) {
        for node in &self.nodes {
            assert!(node.owed.is_empty(), "I8: {} still waits for {:?}\n{}", node.name, node.owed, self.log);
            let Some(endpoint) = &node.endpoint else { continue };
            let census = endpoint.census();
            let left =
                census.leases + census.transfers + census.registrations + census.posts + census.farewells;
            assert_eq!(left, 0, "I8: {} still has {census:?}\n{}", node.name, self.log);
            assert_eq!(census.retentions, node.retained.len(), "I4: {} retains {census:?}", node.name);
        }
    }
}

/// What the unit at `place` in a transfer's chain holds.
pub fn content(transfer: TransferId, place: usize) -> Heads {
    std::array::from_fn(|head| transfer.0 as u64 * 1000 + place as u64 * 10 + head as u64)
}

/// The chain of a prompt that only this number determines.
pub fn chain(prompt: u32, units: usize) -> Vec<BlockHash> {
    forked_chain(prompt, units, units)
}

/// The same, but only the first `common` units are those of that prompt.
pub fn forked_chain(prompt: u32, common: usize, units: usize) -> Vec<BlockHash> {
    let edited = |i| if i < common as u32 * 4 { 0 } else { 1 << 20 };
    let tokens: Vec<TokenId> = (0..units as u32 * 4).map(|i| TokenId(prompt + i + edited(i))).collect();
    BlockChain::new(&CacheSalt::default(), 4, &tokens).hashes().to_vec()
}

pub fn units(range: std::ops::Range<u32>) -> Vec<UnitId> {
    range.map(UnitId).collect()
}
