//! What goes into an [`Endpoint`](crate::Endpoint) and what comes out of it.

use baton_types::{BlockHash, EngineId, PoolShape, TransferId, UnitId};

use crate::message::{Held, Message, Prefilled};

/// A connection of the side channel, numbered by the driver and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// A post to the transport, numbered by the endpoint and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PostId(pub u64);

/// Which engine, and where its side channel listens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PeerAddress {
    pub engine: EngineId,
    /// A name or address, IPv6 without brackets.
    pub host: String,
    pub port: u16,
}

/// Which way the bytes of a post go, seen from this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Read,
    Write,
}

/// A chain below is one hash for each unit of the prompt, a partial last unit included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    // The engine's commands. Each transfer is named to one endpoint once: see [`knows`](crate::Endpoint::knows).
    /// Destination: a request names this transfer; shake hands and keep the source's lease alive until units are there. Not if
    /// `early`: where both sides began at once, each may hold what the other waits for, and that must have an end (I8).
    Expect {
        transfer: TransferId,
        peer: PeerAddress,
        early: bool,
    },
    /// Whoever reads: `chain[first_unit..]` into `units`. Not from a retention with Expect before it: nobody renews those.
    Fetch {
        transfer: TransferId,
        peer: PeerAddress,
        chain: Vec<BlockHash>,
        first_unit: usize,
        units: Vec<UnitId>,
        held: Held,
    },
    /// Destination, push: have `chain[first_unit..]` written into `units`.
    Receive {
        transfer: TransferId,
        peer: PeerAddress,
        chain: Vec<BlockHash>,
        first_unit: usize,
        units: Vec<UnitId>,
    },
    /// Source, pull: the KV of `chain` is about to be computed, to be read by whoever claims it.
    Offer {
        transfer: TransferId,
        chain: Vec<BlockHash>,
    },
    /// Source, push: the KV of `chain` is about to be computed; claim as soon as the destination has registered.
    Send {
        transfer: TransferId,
        chain: Vec<BlockHash>,
    },
    /// Source: the next units of the chain are complete, in order.
    Progress {
        transfer: TransferId,
        units: Vec<UnitId>,
    },
    /// Source: every unit has been named in Progress, and this is what came of the prompt.
    Complete {
        transfer: TransferId,
        prefilled: Prefilled,
    },
    /// Keep the KV of a conversation, for [`Config::retain_ttl`](crate::Config::retain_ttl), for whoever claims some of it; `retention`
    /// is a new id. `chain` and `units` are of full units only.
    Retain {
        retention: TransferId,
        chain: Vec<BlockHash>,
        units: Vec<UnitId>,
    },
    /// Nobody new may claim it any more; whoever reads already is answered by leases of its own. One that is over is left as it is.
    Revoke {
        retention: TransferId,
    },
    /// Either side gives up. A transfer that is over or unknown is left as it is.
    Cancel {
        transfer: TransferId,
    },

    // The side channel.
    Connected {
        address: PeerAddress,
        conn: ConnId,
    },
    DialFailed {
        address: PeerAddress,
    },
    Accepted {
        conn: ConnId,
    },
    /// One frame, as it came; decoded here because a bad one has consequences.
    Received {
        conn: ConnId,
        frame: Vec<u8>,
    },
    Closed {
        conn: ConnId,
    },

    // The transport.
    /// A post is over; nothing of it is in flight any more.
    Moved {
        post: PostId,
        ok: bool,
    },
    Notified {
        engine: EngineId,
        bytes: Vec<u8>,
    },
    /// The fence: nothing that the peer posted can touch our memory any more, and nothing of ours its. Given before whatever the peer
    /// says after it has noticed the same.
    PathLost {
        engine: EngineId,
    },
    /// The transport did not take the peer that AddPath named. No fence by itself: what the peer has posted may wait for a path that
    /// comes later, so none may come until such posts have timed out.
    PathRefused {
        engine: EngineId,
    },

    /// The time that [`poll_timeout`](crate::Endpoint::poll_timeout) named has come.
    Tick,
}

/// A rank on each side of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RankPair {
    pub ours: u32,
    pub theirs: u32,
}

impl RankPair {
    /// The pairs that hold heads in common, where both sides split the same heads evenly, one over `ours` ranks and the other over
    /// `theirs`, and the smaller number divides the larger.
    pub fn all(ours: u32, theirs: u32) -> impl Iterator<Item = Self> {
        let most = ours.max(theirs);
        (0..most).map(move |i| Self { ours: i / (most / ours), theirs: i / (most / theirs) })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    // To the engine.
    Event(Event),

    // To the side channel. Every Dial is answered by one Connected or DialFailed.
    Dial {
        address: PeerAddress,
    },
    Send {
        conn: ConnId,
        message: Message,
    },
    /// No Closed is expected back, and a late one is ignored.
    Close {
        conn: ConnId,
    },

    // To the transport.
    /// Make the peer's pool reachable. If that fails: PathRefused.
    AddPath {
        engine: EngineId,
        metadata: Vec<u8>,
        shape: PoolShape,
    },
    /// Tear the path down; PathLost follows once it is.
    RemovePath {
        engine: EngineId,
    },
    /// From here on the peer may do this with these units of ours, under this transfer; adds to what it may already.
    Permit {
        engine: EngineId,
        transfer: TransferId,
        direction: Direction,
        units: Vec<UnitId>,
    },
    /// The peer may do nothing more under this transfer. A transport that can keep it from it does; the others' peers keep to the
    /// protocol. No fence: units are free when the protocol says so (I3).
    Forbid {
        engine: EngineId,
        transfer: TransferId,
    },
    /// Move the heads that both ranks hold of these units: `(ours, the peer's)`. Moved follows exactly once.
    Post {
        post: PostId,
        engine: EngineId,
        direction: Direction,
        ranks: RankPair,
        pairs: Vec<(UnitId, UnitId)>,
        notify: Option<Vec<u8>>,
    },
}

/// What the engine must know. Each transfer has exactly one ending a side (I4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Destination's ending: the first `covered` units of the chain are in place (all of them, unless a pull found less at the
    /// source). `prefilled` if all of it is covered.
    Ready { transfer: TransferId, covered: usize, prefilled: Option<Prefilled> },
    /// Destination's ending: no KV will come. If `quarantined`, the peer or a post of ours may still write into the units:
    /// they must not be reused before Released.
    Failed { transfer: TransferId, why: Ending, quarantined: bool },
    /// A peer was granted these units out of a retention, under a transfer that ends with Released: they are held for it until then
    /// (I3).
    Lent { retention: TransferId, transfer: TransferId, units: Vec<UnitId> },
    /// A retention has come to its end: nobody new is granted any of it.
    Lapsed { retention: TransferId },
    /// Source's ending: nobody reads the units any more. Also follows a quarantined Failed of a destination, once.
    Released { transfer: TransferId, why: Ending },
}

/// How a transfer ended on this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ending {
    /// The KV was handed over.
    Done,
    /// This side's engine gave up.
    Cancelled,
    /// The other side gave up.
    PeerAborted,
    /// The peer has nothing under this transfer, or it holds other tokens.
    Declined,
    /// The lease ran out before the bytes were in place, or nobody came for them.
    Expired,
    /// The peer cannot be reached, is gone, or is another incarnation than the one asked for.
    PeerLost,
    Incompatible,
    /// The transport could not move the bytes.
    Transport,
    /// A limit of this endpoint.
    Limit,
}
