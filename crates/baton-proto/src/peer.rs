//! Who is at the other end: connections, handshakes, and the path of the data to each peer.

use std::collections::BTreeMap;
use std::time::Duration;

use baton_types::{EngineId, Mutant, PoolShape, Time};

use crate::action::{ConnId, Ending, Output, PeerAddress};
use crate::endpoint::Endpoint;
use crate::message::{Compat, Message, Mismatch, VERSION};
use crate::timer::Reason;

/// Connections kept to one peer: two when both sides dialled at once, more only while old ones are dying.
const MAX_CONNS_PER_PEER: usize = 4;

/// How long a peer stays out whose posts may wait for a path: longer than any transport lets them.
const REFUSED_FOR: Duration = Duration::from_secs(30);

/// Ranks of one engine, at most.
const MAX_RANKS: u32 = 256;

#[derive(Clone, Debug, Default)]
pub(crate) struct Peers {
    pub conns: BTreeMap<ConnId, Conn>,
    pub known: BTreeMap<EngineId, Peer>,
}

/// One connection of the side channel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conn {
    /// Who was meant to be at the other end; none if the other end dialled.
    dialled: Option<PeerAddress>,
    /// Who is: from a Hello that fits.
    peer: Option<EngineId>,
    /// Its Welcome has come as well: the handshake is done (I5).
    welcomed: bool,
}

impl Conn {
    /// The peer, once the handshake is done.
    pub fn ready(&self) -> Option<&EngineId> {
        self.peer.as_ref().filter(|_| self.welcomed)
    }
}

/// One incarnation of another engine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    /// Ready connections; the newest is spoken on.
    pub conns: Vec<ConnId>,
    /// Of its pool; a grant may not name a unit beyond.
    pub shape: Option<PoolShape>,
    pub path: Path,
    address: Option<PeerAddress>,
    dialling: bool,
    dials: u32,
    /// Of the newest ready connection.
    welcomed_at: Time,
    /// It has made a connection while its path was up. Perhaps it had given up its end of the path, and the connections before, and
    /// we hear of either later: then it has made another path, which waits for ours, and what it is granted it posts there.
    returned: bool,
}

/// The way of the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Path {
    #[default]
    None,
    Up,
    /// Until the fence is there the peer is not let in again.
    Removing,
    /// Nor while posts of its own may wait for a path: the transport has refused the one there was to be, or the peer has
    /// [returned](Peer::returned).
    Refused,
}

/// Whether every rank on one side shares its heads with whole ranks of the other, and the numbers are possible ones.
fn fits(ours: PoolShape, theirs: PoolShape) -> bool {
    let (least, most) = (ours.ranks.min(theirs.ranks), ours.ranks.max(theirs.ranks));
    let possible = theirs.block_units > 0 && theirs.units.is_multiple_of(theirs.block_units);
    possible && (1..=MAX_RANKS).contains(&theirs.ranks) && most.is_multiple_of(least)
}

impl Endpoint {
    /// Makes sure that a peer is there or on its way; false if it cannot be.
    pub(crate) fn seek_peer(&mut self, address: &PeerAddress) -> bool {
        let full = self.peers.known.len() >= self.config.limits.peers;
        if !self.peers.known.contains_key(&address.engine) {
            if full || address.engine == self.config.engine {
                return false;
            }
            self.peers.known.insert(address.engine.clone(), Peer::default());
        }
        let peer = self.peers.known.get_mut(&address.engine).expect("inserted above");
        peer.address = Some(address.clone());
        if peer.conns.is_empty()
            && !peer.dialling
            && !self.timers.is_set(&Reason::Redial(address.engine.clone()))
        {
            peer.dialling = true;
            peer.dials += 1;
            self.out.push_back(Output::Dial { address: address.clone() });
        }
        true
    }

    /// Says something to a peer, if there is a connection to say it on.
    pub(crate) fn say(&mut self, engine: &EngineId, message: Message) {
        if let Some(conn) = self.peers.known.get(engine).and_then(|peer| peer.conns.last()) {
            self.out.push_back(Output::Send { conn: *conn, message });
        }
    }

    pub(crate) fn on_connected(&mut self, now: Time, address: PeerAddress, conn: ConnId) {
        if let Some(peer) = self.peers.known.get_mut(&address.engine) {
            peer.dialling = false;
        }
        self.open(now, conn, Some(address));
    }

    pub(crate) fn on_accepted(&mut self, now: Time, conn: ConnId) {
        self.open(now, conn, None);
    }

    fn open(&mut self, now: Time, conn: ConnId, dialled: Option<PeerAddress>) {
        assert!(!self.peers.conns.contains_key(&conn), "a connection number is used once");
        if self.peers.conns.len() >= self.config.limits.connections {
            self.out.push_back(Output::Close { conn });
            if let Some(address) = dialled {
                self.on_dial_failed(now, &address);
            }
            return;
        }
        self.peers.conns.insert(conn, Conn { dialled, ..Conn::default() });
        self.timers.set(Reason::Handshake(conn), now + self.config.peer_grace);
        let hello = Message::Hello {
            version: VERSION,
            engine: self.config.engine.clone(),
            compat: self.config.compat,
        };
        self.out.push_back(Output::Send { conn, message: hello });
    }

    pub(crate) fn on_dial_failed(&mut self, now: Time, address: &PeerAddress) {
        let Some(peer) = self.peers.known.get_mut(&address.engine) else { return };
        peer.dialling = false;
        if !peer.conns.is_empty() {
            return;
        }
        if peer.dials >= self.config.dial_attempts {
            self.lose_peer(now, &address.engine, Ending::PeerLost);
        } else {
            self.timers.set(Reason::Redial(address.engine.clone()), now + self.config.retry);
        }
    }

    pub(crate) fn on_redial(&mut self, engine: &EngineId) {
        let address = self.peers.known.get(engine).and_then(|peer| peer.address.clone());
        if let Some(address) = address {
            self.seek_peer(&address);
        }
    }

    pub(crate) fn on_hello(
        &mut self,
        now: Time,
        conn: ConnId,
        version: u16,
        engine: EngineId,
        compat: Compat,
    ) {
        let mismatch = if version != VERSION {
            Some(Mismatch::Version)
        } else if compat != self.config.compat {
            Some(Mismatch::Model)
        } else {
            None
        };
        if let Some(why) = mismatch {
            self.out.push_back(Output::Send { conn, message: Message::Incompatible { why } });
            self.refuse(now, conn, Ending::Incompatible);
            return;
        }
        let engine = self.known_as(engine);
        let state = self.peers.conns.get_mut(&conn).expect("looked up by the caller");
        // A Hello is said once; another engine than the one dialled is a restart at the same address: the one dialled is gone.
        let meant = state.dialled.as_ref().map(|address| address.engine.clone());
        if state.peer.is_some() || engine == self.config.engine || meant.is_some_and(|meant| meant != engine)
        {
            self.refuse(now, conn, Ending::PeerLost);
            return;
        }
        state.peer = Some(engine.clone());
        let welcome = Message::Welcome { metadata: self.config.metadata.clone(), shape: self.config.shape };
        self.out.push_back(Output::Send { conn, message: welcome });
        if self.config.mutation.is(Mutant::WordsBeforeWelcome)
            && let Some(peer) = self.peers.known.get_mut(&engine)
        {
            peer.conns.push(conn);
            self.resume_with(now, &engine);
        }
    }

    /// The engine itself: an incarnation is an engine of its own.
    fn known_as(&mut self, engine: EngineId) -> EngineId {
        if !self.config.mutation.is(Mutant::StaleIncarnationAccepted) {
            return engine;
        }
        let before = |known: &EngineId| known.name == engine.name && *known != engine;
        let same_name = self.peers.known.iter_mut().find(|(known, _)| before(known));
        same_name.map_or(engine, |(known, peer)| {
            peer.path = Path::None;
            known.clone()
        })
    }

    pub(crate) fn on_welcome(&mut self, now: Time, conn: ConnId, metadata: Vec<u8>, shape: PoolShape) {
        let state = self.peers.conns.get_mut(&conn).expect("looked up by the caller");
        let Some(engine) = state.peer.clone().filter(|_| !state.welcomed) else {
            self.refuse(now, conn, Ending::PeerLost);
            return;
        };
        if !fits(self.config.shape, shape) {
            self.refuse(now, conn, Ending::Incompatible);
            return;
        }
        let room =
            self.peers.known.len() < self.config.limits.peers || self.peers.known.contains_key(&engine);
        let fenced =
            self.peers.known.get(&engine).is_none_or(|peer| matches!(peer.path, Path::None | Path::Up));
        if !room || !fenced {
            self.refuse(now, conn, Ending::PeerLost);
            return;
        }
        state.welcomed = true;
        self.timers.clear(&Reason::Handshake(conn));
        self.timers.clear(&Reason::Grace(engine.clone()));
        self.timers.clear(&Reason::Redial(engine.clone()));
        let peer = self.peers.known.entry(engine.clone()).or_default();
        peer.dials = 0;
        peer.welcomed_at = now;
        peer.returned |= peer.path == Path::Up;
        peer.conns.push(conn);
        if peer.path == Path::None {
            peer.path = Path::Up;
            peer.shape = Some(shape);
            self.out.push_back(Output::AddPath { engine: engine.clone(), metadata, shape });
        }
        if peer.conns.len() > MAX_CONNS_PER_PEER {
            let oldest = peer.conns.remove(0);
            self.peers.conns.remove(&oldest);
            self.out.push_back(Output::Close { conn: oldest });
        }
        self.resume_with(now, &engine);
    }

    /// Cuts a connection that broke the rules or does not fit. If it was dialled, whoever was meant is not to be had.
    pub(crate) fn refuse(&mut self, now: Time, conn: ConnId, why: Ending) {
        self.out.push_back(Output::Close { conn });
        let Some(state) = self.drop_conn(now, conn) else { return };
        if !state.welcomed
            && let Some(address) = state.dialled
            && self.peers.known.get(&address.engine).is_none_or(|peer| peer.conns.is_empty())
        {
            self.lose_peer(now, &address.engine, why);
        }
    }

    pub(crate) fn on_closed(&mut self, now: Time, conn: ConnId) {
        let Some(state) = self.drop_conn(now, conn) else { return };
        if !state.welcomed
            && let Some(address) = state.dialled
        {
            self.on_dial_failed(now, &address);
        }
    }

    fn drop_conn(&mut self, now: Time, conn: ConnId) -> Option<Conn> {
        let state = self.peers.conns.remove(&conn)?;
        self.timers.clear(&Reason::Handshake(conn));
        if let Some(engine) = state.ready() {
            let peer = self.peers.known.get_mut(engine).expect("a ready connection has a peer");
            peer.conns.retain(|known| *known != conn);
            if peer.conns.is_empty() {
                // One that lets us in and closes again may do so for ever: while it waits for the fence of our former path it does.
                let soonest = peer.welcomed_at + self.config.retry;
                self.timers.set(Reason::Grace(engine.clone()), now + self.config.peer_grace);
                if self.needs(engine) {
                    if now < soonest {
                        self.timers.set(Reason::Redial(engine.clone()), soonest);
                    } else {
                        self.on_redial(engine);
                    }
                }
            }
        }
        Some(state)
    }

    /// Nobody answers for this incarnation any more: everything with it ends, and its path is torn down.
    pub(crate) fn lose_peer(&mut self, now: Time, engine: &EngineId, why: Ending) {
        if let Some(peer) = self.peers.known.get_mut(engine) {
            for conn in std::mem::take(&mut peer.conns) {
                self.peers.conns.remove(&conn);
                self.out.push_back(Output::Close { conn });
            }
            peer.dials = 0;
            if peer.path != Path::Refused {
                self.timers.clear(&Reason::Grace(engine.clone()));
            }
            self.timers.clear(&Reason::Redial(engine.clone()));
            if peer.path == Path::Up {
                peer.path = Path::Removing;
                self.out.push_back(Output::RemovePath { engine: engine.clone() });
            }
        }
        self.end_all_with(now, engine, why);
        if self.peers.known.get(engine).is_some_and(|peer| peer.path == Path::None) {
            self.forget_peer(engine);
        }
    }

    /// The fence is there: what was quarantined because of this peer is free, and it may come back.
    pub(crate) fn on_path_lost(&mut self, now: Time, engine: &EngineId) {
        let may_post = self.has_granted(engine) && !self.config.mutation.is(Mutant::ReturnedPeerLetIn);
        match self.peers.known.get_mut(engine) {
            Some(peer) if peer.path == Path::Refused => return,
            Some(peer) if peer.returned && may_post => return self.keep_out(now, engine, Ending::PeerLost),
            Some(peer) if peer.path != Path::Removing => {
                // Torn down from the other end: there is nothing left to remove.
                peer.path = Path::None;
                self.lose_peer(now, engine, Ending::PeerLost);
            }
            _ => {}
        }
        self.release_fenced(engine);
        self.forget_peer(engine);
    }

    pub(crate) fn on_path_refused(&mut self, now: Time, engine: &EngineId) {
        if self.peers.known.contains_key(engine) {
            self.keep_out(now, engine, Ending::Transport);
        }
    }

    /// There is no path, and until the time limit is over there will be none: what the peer was granted it cannot touch.
    fn keep_out(&mut self, now: Time, engine: &EngineId, why: Ending) {
        let peer = self.peers.known.get_mut(engine).expect("looked up by the caller");
        peer.path = Path::Refused;
        self.timers.set(Reason::Grace(engine.clone()), now + REFUSED_FOR);
        self.lose_peer(now, engine, why);
        self.release_fenced(engine);
    }

    /// A dropped connection has not come back, or a refused peer may try again.
    pub(crate) fn on_grace_over(&mut self, now: Time, engine: &EngineId) {
        self.lose_peer(now, engine, Ending::PeerLost);
        if self.peers.known.get(engine).is_some_and(|peer| peer.path == Path::Refused) {
            self.forget_peer(engine);
        }
    }

    fn forget_peer(&mut self, engine: &EngineId) {
        self.peers.known.remove(engine);
        self.timers.clear(&Reason::Grace(engine.clone()));
        self.timers.clear(&Reason::Redial(engine.clone()));
    }
}
