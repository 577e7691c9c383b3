//! One endpoint whose engine keeps to the rules, and a world around it that does not: peers say anything on any connection at any
//! moment, connections and paths come and go, posts fail, clocks jump. What must hold all the same: nothing panics, tables stay
//! within their limits (I11), no unit id leaves before a handshake (I5) or after its transfer was released (I3), each transfer ends
//! once (I4), and when the noise stops everything ends (I8).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use arbitrary::Unstructured;
use baton_proto::codec::{self, Notification};
use baton_proto::message::{Decline, Mismatch, VERSION};
use baton_proto::{
    Compat, Config, ConnId, Endpoint, Event, Held, Input, Limits, Message, Output, PeerAddress, PostId,
    Prefilled,
};
use baton_types::{
    BlockHash, EngineId, EngineName, KvDtype, Millis, PoolShape, Time, TokenId, TransferId, UnitId,
};

/// Transfers that the engine takes part in, each at most once; peers also name others.
const TRANSFERS: usize = 8;
/// Conversations that it retains, now and then; they have units of their own.
const RETENTIONS: usize = 2;
const UNITS_EACH: u32 = 3;
const COMPAT: Compat = Compat([7; 16]);
/// A play longer than this shows nothing new.
const MAX_STEPS: usize = 2000;

pub fn play(data: &[u8]) {
    let mut noise = Unstructured::new(data);
    let mut game = Game::new();
    for _ in 0..MAX_STEPS {
        if noise.is_empty() || game.step(&mut noise).is_err() {
            break;
        }
    }
    game.quieten();
}

/// What the engine knows of one of its transfers.
#[derive(Debug, Default)]
struct Deal {
    named: bool,
    /// Expect was said, and neither Fetch nor Receive yet.
    expected: bool,
    /// Blocks of a push that were named in Progress; none once it is complete or over.
    sending: Option<u32>,
    ended: bool,
    /// Peers or posts may touch its units.
    open: bool,
    source: bool,
}

/// What was said on one connection, seen from outside.
#[derive(Default)]
struct Seen {
    hello: Option<EngineId>,
    ready: bool,
}

struct Game {
    endpoint: Endpoint,
    limits: Limits,
    now: Time,
    deals: [Deal; TRANSFERS],
    conns: BTreeMap<ConnId, Seen>,
    next_conn: u64,
    dials: Vec<PeerAddress>,
    posts: BTreeMap<PostId, EngineId>,
    retained: BTreeSet<TransferId>,
    lent: BTreeMap<TransferId, Vec<UnitId>>,
    /// Peers with a path, and whether it is being removed.
    paths: BTreeMap<EngineId, bool>,
}

fn limits() -> Limits {
    Limits { transfers: 6, peers: 3, connections: 5, registrations: 3, memories: 12, retentions: 1, units: 8 }
}

fn engine(n: u8) -> EngineId {
    // Two names with two lives each, and the endpoint itself.
    let name = ["a", "b", "self"][usize::from(n / 2 % 3)];
    EngineId::new(EngineName::new(name).expect("a legal name"), u64::from(n % 2))
}

fn address(n: u8) -> PeerAddress {
    PeerAddress { engine: engine(n), host: "h".into(), port: 1 }
}

fn transfer(n: usize) -> TransferId {
    TransferId(n as u128)
}

/// Its chain and units are those of `TRANSFERS + r`.
fn retention(r: usize) -> TransferId {
    TransferId(100 + r as u128)
}

fn chain(n: usize, units: u32) -> Vec<BlockHash> {
    (0..units).map(|i| BlockHash([n as u8 * 16 + i as u8; 16])).collect()
}

fn units(n: usize) -> Vec<UnitId> {
    (0..UNITS_EACH).map(|i| UnitId(n as u32 * UNITS_EACH + i)).collect()
}

fn owner(unit: UnitId) -> usize {
    (unit.0 / UNITS_EACH) as usize
}

impl Game {
    fn new() -> Self {
        let pool = (TRANSFERS + RETENTIONS) as u32 * UNITS_EACH;
        let shape = PoolShape::whole_blocks(pool, KvDtype::F32);
        let mut config = Config::new(engine(4), COMPAT, vec![1], shape);
        config.limits = limits();
        config.lease = Duration::from_secs(3);
        config.heartbeat = Duration::from_secs(1);
        config.retry = Duration::from_millis(500);
        config.register_timeout = Duration::from_secs(5);
        config.peer_grace = Duration::from_secs(2);
        Self {
            endpoint: Endpoint::new(config),
            limits: limits(),
            now: Time::ZERO,
            deals: Default::default(),
            conns: BTreeMap::new(),
            next_conn: 0,
            dials: Vec::new(),
            posts: BTreeMap::new(),
            retained: BTreeSet::new(),
            lent: BTreeMap::new(),
            paths: BTreeMap::new(),
        }
    }

    fn step(&mut self, noise: &mut Unstructured<'_>) -> arbitrary::Result<()> {
        match noise.int_in_range(0..=19u8)? {
            0 | 1 => self.command(noise)?,
            2 => {
                let conn = self.new_conn();
                self.input(Input::Accepted { conn });
            }
            3 => self.answer_dial(noise.arbitrary()?),
            4 => {
                let Some(conn) = pick(noise, self.conns.keys())? else { return Ok(()) };
                self.conns.remove(&conn);
                self.input(Input::Closed { conn });
            }
            5 => {
                let Some(post) = pick(noise, self.posts.keys())? else { return Ok(()) };
                self.posts.remove(&post);
                self.input(Input::Moved { post, ok: noise.arbitrary()? });
            }
            6 => {
                let Some(engine) = pick(noise, self.paths.keys())? else { return Ok(()) };
                let (transfer, index) = (any_transfer(noise)?, noise.int_in_range(0..=5)?);
                let mut bytes = Notification { transfer, index }.encode();
                bytes.truncate(noise.int_in_range(18..=20)?);
                self.input(Input::Notified { engine, bytes });
            }
            7 => {
                let Some(engine) = pick(noise, self.paths.keys())? else { return Ok(()) };
                self.end_path(engine);
            }
            8 => {
                let Some(engine) = pick(noise, self.paths.keys())? else { return Ok(()) };
                self.drop_posts(&engine);
                self.paths.remove(&engine);
                self.input(Input::PathRefused { engine });
            }
            9 | 10 => {
                self.now += Duration::from_millis(noise.int_in_range(0..=4000)?);
                self.input(Input::Tick);
            }
            11 => self.shake_hands(noise)?,
            12 => {
                // Also on connections that are closed: a frame may have been on its way.
                let conn = ConnId(noise.int_in_range(0..=self.next_conn)?);
                let len = noise.int_in_range(0..=40)?;
                let frame = noise.bytes(len.min(noise.len()))?.to_vec();
                self.hear(conn, frame);
            }
            _ => {
                let Some(conn) = pick(noise, self.conns.keys())? else { return Ok(()) };
                let message = any_message(noise)?;
                self.hear(conn, codec::encode(&message));
            }
        }
        Ok(())
    }

    /// The engine's own commands, by the rules that docs/protocol.md sets for it.
    fn command(&mut self, noise: &mut Unstructured<'_>) -> arbitrary::Result<()> {
        let n = noise.choose_index(TRANSFERS)?;
        let peer = address(noise.int_in_range(0..=5)?);
        let first_unit = noise.int_in_range(0..=2usize)?;
        let id = transfer(n);
        // The engine refuses a request whose transfer id a peer has made its own.
        let taken = self.lent.contains_key(&id);
        let deal = &mut self.deals[n];
        let chain = chain(n, UNITS_EACH);
        let prefilled = Prefilled { first_token: TokenId(n as u32), cached_tokens: 0 };
        match noise.int_in_range(0..=8u8)? {
            0..=5 if taken => {}
            0 if !deal.named => {
                *deal = Deal { named: true, open: true, source: true, sending: Some(0), ..Deal::default() };
                self.input(Input::Offer { transfer: id, chain });
            }
            1 if !deal.named => {
                *deal = Deal { named: true, open: true, source: true, sending: Some(0), ..Deal::default() };
                self.input(Input::Send { transfer: id, chain });
            }
            2 => match deal.sending {
                Some(sent) if sent < UNITS_EACH => {
                    deal.sending = Some(sent + 1);
                    let units = vec![units(n)[sent as usize]];
                    self.input(Input::Progress { transfer: id, units });
                }
                Some(_) => {
                    deal.sending = None;
                    self.input(Input::Complete { transfer: id, prefilled });
                }
                None => {}
            },
            3 if !deal.named => {
                *deal = Deal { named: true, expected: true, ..Deal::default() };
                self.input(Input::Expect { transfer: id, peer, early: noise.arbitrary()? });
            }
            4 | 5 if (!deal.named || deal.expected) && !deal.ended => {
                *deal = Deal { named: true, open: true, ..Deal::default() };
                let units = units(n)[first_unit..].to_vec();
                self.input(if noise.arbitrary()? {
                    let held = any_held(noise)?;
                    Input::Fetch { transfer: id, peer, chain, first_unit, units, held }
                } else {
                    Input::Receive { transfer: id, peer, chain, first_unit, units }
                });
            }
            6 => {
                deal.sending = None;
                self.input(Input::Cancel { transfer: id });
            }
            7 if self.retained.insert(retention(n % RETENTIONS)) => {
                let (r, of) = (retention(n % RETENTIONS), TRANSFERS + n % RETENTIONS);
                let chain = self::chain(of, UNITS_EACH);
                self.input(Input::Retain { retention: r, chain, units: units(of) });
            }
            8 => {
                let r = retention(n % RETENTIONS);
                self.retained.remove(&r);
                self.input(Input::Revoke { retention: r });
            }
            _ => {}
        }
        Ok(())
    }

    fn new_conn(&mut self) -> ConnId {
        self.next_conn += 1;
        let conn = ConnId(self.next_conn);
        self.conns.insert(conn, Seen::default());
        conn
    }

    fn answer_dial(&mut self, connects: bool) {
        let Some(address) = self.dials.pop() else { return };
        if connects {
            let conn = self.new_conn();
            self.input(Input::Connected { address, conn });
        } else {
            self.input(Input::DialFailed { address });
        }
    }

    /// What a peer says first, so that the fuzzer need not find it out.
    fn shake_hands(&mut self, noise: &mut Unstructured<'_>) -> arbitrary::Result<()> {
        let Some(conn) = pick(noise, self.conns.keys())? else { return Ok(()) };
        let engine = engine(noise.int_in_range(0..=3)?);
        self.hear(conn, codec::encode(&Message::Hello { version: VERSION, engine, compat: COMPAT }));
        self.hear(conn, codec::encode(&Message::Welcome { metadata: vec![2], shape: any_shape(noise)? }));
        Ok(())
    }

    fn hear(&mut self, conn: ConnId, frame: Vec<u8>) {
        // Before the endpoint sees it, as what it says in answer is judged by it.
        if let (Some(seen), Ok(message)) = (self.conns.get_mut(&conn), codec::decode(&frame)) {
            match message {
                Message::Hello { version: VERSION, engine, compat: COMPAT } => seen.hello = Some(engine),
                Message::Welcome { .. } => seen.ready = seen.hello.is_some(),
                _ => {}
            }
        }
        self.input(Input::Received { conn, frame });
    }

    fn input(&mut self, input: Input) {
        self.endpoint.handle_input(self.now, input);
        while let Some(output) = self.endpoint.poll_output() {
            self.output(output);
        }
        self.endpoint.check();
        let (census, limits) = (self.endpoint.census(), &self.limits);
        assert!(census.leases + census.transfers <= limits.transfers, "I11: {census:?}");
        assert!(census.peers <= limits.peers && census.connections <= limits.connections, "I11: {census:?}");
        assert!(census.registrations <= limits.registrations, "I11: {census:?}");
        assert_eq!(census.posts, self.posts.len(), "I4: every post is waited for");
    }

    fn output(&mut self, output: Output) {
        match output {
            Output::Event(event) => self.event(event),
            // One more may be under way to the same peer, if it was lost meanwhile.
            Output::Dial { address } => self.dials.push(address),
            Output::Send { conn, message } => self.said(conn, &message),
            Output::Close { conn } => drop(self.conns.remove(&conn)),
            Output::AddPath { engine, .. } => {
                assert!(self.paths.insert(engine, false).is_none(), "a path is added once");
            }
            Output::RemovePath { engine } => {
                let removing = self.paths.insert(engine, true);
                assert_eq!(removing, Some(false), "a path that is there is removed, once");
            }
            Output::Permit { .. } | Output::Forbid { .. } => {}
            Output::Post { post, engine, pairs, .. } => {
                assert!(self.paths.contains_key(&engine), "I5: bytes move to known peers only");
                for (ours, _) in pairs {
                    assert!(self.deals[owner(ours)].open, "I3: {ours:?} was let go of");
                }
                self.posts.insert(post, engine);
            }
        }
    }

    fn said(&mut self, conn: ConnId, message: &Message) {
        let Some(seen) = self.conns.get(&conn) else { panic!("{message:?} on a closed connection") };
        match message {
            Message::Hello { .. } | Message::Incompatible { .. } => {}
            Message::Welcome { .. } => assert!(seen.hello.is_some(), "I5: a Welcome to a stranger"),
            _ => assert!(seen.ready, "I5: {message:?} before the handshake"),
        }
        if let Message::Granted { transfer: id, units, .. } = message {
            if let Some(lent) = self.lent.get(id) {
                assert!(units.iter().all(|unit| lent.contains(unit)), "I3: more than was said to be lent");
                return;
            }
            for unit in units {
                let n = owner(*unit);
                assert_eq!(transfer(n), *id, "a grant names its transfer's units");
                assert!(self.deals[n].open, "I3: {unit:?} was let go of");
            }
        }
    }

    fn event(&mut self, event: Event) {
        let (id, ends, releases) = match event {
            Event::Lent { retention, transfer, units } => {
                assert!(self.retained.contains(&retention), "I13: {retention:?} is not retained");
                let of = TRANSFERS + (retention.0 - 100) as usize;
                assert!(units.iter().all(|unit| owner(*unit) == of), "I13: not the units of {retention:?}");
                assert!(self.lent.insert(transfer, units).is_none(), "I4: {transfer:?} is lent once");
                return;
            }
            Event::Lapsed { retention } => {
                assert!(self.retained.remove(&retention), "I4: {retention:?} lapses once");
                return;
            }
            Event::Released { transfer, .. } if self.lent.remove(&transfer).is_some() => return,
            Event::Ready { transfer, .. } => (transfer, true, true),
            Event::Failed { transfer, quarantined, .. } => (transfer, true, !quarantined),
            Event::Released { transfer, .. } => (transfer, self.deals[transfer.0 as usize].source, true),
        };
        let deal = &mut self.deals[id.0 as usize];
        assert!(deal.named, "I4: {id:?} was never begun");
        assert!(!(ends && deal.ended), "I4: {id:?} ends twice");
        assert!(ends || deal.open, "I4: {id:?} is released twice");
        deal.ended |= ends;
        deal.sending = deal.sending.filter(|_| !ends);
        deal.expected = false;
        if releases {
            deal.open = false;
        }
    }

    /// The fence: the posts of both sides are over before it is told.
    fn end_path(&mut self, engine: EngineId) {
        self.drop_posts(&engine);
        self.paths.remove(&engine);
        self.input(Input::PathLost { engine });
    }

    fn drop_posts(&mut self, engine: &EngineId) {
        let over: Vec<PostId> =
            self.posts.iter().filter(|(_, peer)| *peer == engine).map(|(post, _)| *post).collect();
        for post in over {
            self.posts.remove(&post);
            self.input(Input::Moved { post, ok: false });
        }
    }

    /// The engine gives everything up, nobody speaks any more, and the transport does as it is told.
    fn quieten(mut self) {
        for n in 0..TRANSFERS {
            self.deals[n].sending = None;
            self.input(Input::Cancel { transfer: transfer(n) });
        }
        for conn in std::mem::take(&mut self.conns).into_keys() {
            self.input(Input::Closed { conn });
        }
        for _ in 0..1000 {
            while !self.dials.is_empty() {
                self.answer_dial(false);
            }
            while let Some(post) = self.posts.keys().next().copied() {
                self.posts.remove(&post);
                self.input(Input::Moved { post, ok: false });
            }
            while let Some(engine) =
                self.paths.iter().find(|(_, removing)| **removing).map(|(e, _)| e.clone())
            {
                self.end_path(engine);
            }
            let Some((due, _)) = self.endpoint.poll_timeout() else { break };
            self.now = self.now.max(due);
            self.input(Input::Tick);
        }
        assert_eq!(self.endpoint.poll_timeout(), None, "I8: something is still waited for");
        let census = self.endpoint.census();
        let left = census.leases + census.transfers + census.registrations + census.posts + census.farewells;
        assert_eq!((left, census.connections, census.retentions), (0, 0, 0), "I8: {census:?}");
        assert!(self.lent.is_empty() && self.retained.is_empty(), "I8: {:?} {:?}", self.lent, self.retained);
        let open: BTreeSet<usize> = (0..TRANSFERS).filter(|n| self.deals[*n].open).collect();
        assert!(open.is_empty(), "I8: the units of {open:?} never come back");
    }
}

fn pick<'a, T: Clone + 'a>(
    noise: &mut Unstructured<'_>,
    all: impl ExactSizeIterator<Item = &'a T>,
) -> arbitrary::Result<Option<T>> {
    let mut all = all;
    if all.len() == 0 {
        return Ok(None);
    }
    Ok(all.nth(noise.choose_index(all.len())?).cloned())
}

/// The engine's, or one that nobody knows.
fn any_transfer(noise: &mut Unstructured<'_>) -> arbitrary::Result<TransferId> {
    Ok(transfer(noise.choose_index(TRANSFERS + 4)?))
}

/// Possible and impossible ones.
fn any_shape(noise: &mut Unstructured<'_>) -> arbitrary::Result<PoolShape> {
    let units = noise.int_in_range(0..=40)?;
    if noise.ratio(3, 4)? {
        return Ok(PoolShape::whole_blocks(units, KvDtype::F32));
    }
    let (block_units, ranks) = (noise.int_in_range(0..=3)?, noise.int_in_range(0..=4)?);
    Ok(PoolShape { units, block_units, ranks, dtype: KvDtype::F16 })
}

fn any_message(noise: &mut Unstructured<'_>) -> arbitrary::Result<Message> {
    let id = any_transfer(noise)?;
    let first_token = noise.arbitrary::<Option<u8>>()?.map(|token| TokenId(token.into()));
    let prefilled = first_token.map(|first_token| Prefilled { first_token, cached_tokens: 1 });
    Ok(match noise.int_in_range(0..=12u8)? {
        0 => Message::Hello {
            version: noise.int_in_range(0..=VERSION)?,
            engine: engine(noise.int_in_range(0..=5)?),
            compat: Compat([7 - noise.int_in_range(0..=1)?; 16]),
        },
        1 => Message::Welcome { metadata: Vec::new(), shape: any_shape(noise)? },
        2 => Message::Incompatible { why: *noise.choose(&[Mismatch::Version, Mismatch::Model])? },
        3 => Message::Register { transfer: id, first_unit: any_position(noise)? },
        4 => {
            let (of, length) = (noise.choose_index(TRANSFERS + RETENTIONS)?, noise.int_in_range(0..=5)?);
            let held = any_held(noise)?;
            let its = match held {
                Held::Retained(retention) => TRANSFERS + (retention.0 - 100) as usize,
                _ => id.0 as usize,
            };
            let chain = chain(if noise.ratio(3, 4)? { its } else { of }, length);
            Message::Claim {
                transfer: id,
                attempt: noise.arbitrary()?,
                first_unit: any_position(noise)?,
                chain,
                held,
            }
        }
        5 => {
            let count = noise.int_in_range(0..=4)?;
            let any_block = |_| noise.int_in_range(0..=45).map(UnitId);
            let units = (0..count).map(any_block).collect::<arbitrary::Result<_>>()?;
            Message::Granted {
                transfer: id,
                attempt: noise.int_in_range(0..=2)?,
                remaining: Millis(noise.arbitrary()?),
                first_unit: any_position(noise)?,
                units,
                complete: noise.arbitrary()?,
                prefilled,
            }
        }
        6 => Message::Declined { transfer: id, why: *noise.choose(&[Decline::Unknown, Decline::Chain])? },
        7 => {
            let count = noise.int_in_range(0..=4)?;
            let transfers = (0..count).map(|_| any_transfer(noise)).collect::<arbitrary::Result<_>>()?;
            Message::Heartbeat { transfers }
        }
        8 => Message::Done { transfer: id, notifications: any_position(noise)?, prefilled },
        9 => Message::DoneAck { transfer: id },
        10 => Message::Abort { transfer: id },
        11 => Message::Offered { transfer: id },
        _ => Message::Aborted { transfer: id },
    })
}

fn any_held(noise: &mut Unstructured<'_>) -> arbitrary::Result<Held> {
    Ok(match noise.int_in_range(0..=3u8)? {
        0 => Held::Offered,
        1 => Held::Early,
        // One more than there are.
        _ => Held::Retained(retention(noise.choose_index(RETENTIONS + 1)?)),
    })
}

/// Mostly small, now and then enormous.
fn any_position(noise: &mut Unstructured<'_>) -> arbitrary::Result<u32> {
    Ok(if noise.ratio(1, 16)? { u32::MAX - noise.int_in_range(0..=3)? } else { noise.int_in_range(0..=4)? })
}
