//! What goes into the core and what comes out: plain data, so that a run can be logged and replayed (I10).

use std::time::Duration;

use baton_types::{EngineId, EngineInfo, LegKind, TransferId, TransferMode};

use crate::conversation::Turn;
use crate::engine_table::EngineKey;
use crate::leg::{LegFault, LegId};
use crate::request::RequestId;

/// What happened outside.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A client asks. The driver counts `request` up; it never comes from a client. Without a `model`, the only one that is
    /// served is meant. `sequences`: prompts times choices; a handle serves one only. `turn`: none if the request continues no
    /// conversation and begins none.
    Arrive {
        request: RequestId,
        model: Option<String>,
        streaming: bool,
        sequences: u32,
        turn: Option<Turn>,
    },
    /// The client's connection is gone, or the client has no use for the rest.
    ClientGone {
        request: RequestId,
    },
    /// The leg's connection stands and the request has been sent.
    LegConnected {
        leg: LegId,
    },
    /// A leg that answers the client has something good to pass on: the first chunk of a stream, or a complete answer.
    LegFirstByte {
        leg: LegId,
    },
    /// A streaming leg goes on. May be reported less often than bytes arrive.
    LegProgress {
        leg: LegId,
    },
    /// The leg has bytes for the client, who does not take them. May be reported again while that lasts.
    LegBlocked {
        leg: LegId,
    },
    /// The leg's answer says that its engine retains the KV. To be told before the client sees the answer's end: its next
    /// turn may follow at once.
    LegRetained {
        leg: LegId,
        retained: Retained,
    },
    /// The leg has ended well. `handle`: its answer has `kv_transfer_params`; the driver keeps them.
    LegEnded {
        leg: LegId,
        handle: bool,
    },
    LegFailed {
        leg: LegId,
        fault: LegFault,
    },
    /// The engine is ready and says what it is.
    Probed {
        engine: EngineKey,
        info: EngineInfo,
    },
    /// The engine answers, but takes no requests: it loads or drains.
    ProbeRefused {
        engine: EngineKey,
    },
    /// The engine does not answer.
    ProbeFailed {
        engine: EngineKey,
    },
    /// Nothing but the time: what is due at `now` is done.
    Tick,
}

/// What the driver must do.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send a request to an engine and report how it goes. One report or [`Output::DropLeg`] ends the leg.
    StartLeg(LegStart),
    /// Close the leg's connection now: that aborts it in the engine. Nothing about it needs to be reported any more.
    /// `fault`: the core's verdict on the leg itself; none if it is just not needed any more.
    DropLeg { leg: LegId, fault: Option<LegFault> },
    /// From here on the client gets this leg's stream; no retry is possible any more (I9).
    Answer { request: RequestId, leg: LegId },
    /// The request is over, exactly once for each [`Input::Arrive`].
    Finished { request: RequestId, end: RequestEnd },
}

/// One HTTP exchange with one engine, to be started.
#[derive(Clone, Debug, PartialEq)]
pub struct LegStart {
    pub leg: LegId,
    pub request: RequestId,
    pub engine: EngineKey,
    pub kind: LegKind,
    /// Who moves the KV; none if it stays where it is.
    pub mode: Option<TransferMode>,
    /// Same on all legs of an attempt, new with every attempt, random.
    pub transfer: TransferId,
    /// The engine of the other leg, if it is known already.
    pub peer: Option<Peer>,
    /// What a prefill leg may read instead of computing it. Never given again once an attempt has failed with it.
    pub reuse: Option<Reuse>,
    /// Counted from 1.
    pub attempt: u32,
}

/// What a decode engine says it has retained of prompt and answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retained {
    /// By its own word; ignored unless it is the engine of the leg.
    pub engine: EngineId,
    /// The id under which it can be claimed.
    pub transfer: TransferId,
    pub tokens: u32,
    /// For how long from when the leg ended.
    pub ttl: Duration,
}

/// Where an earlier turn's KV is.
#[derive(Clone, Debug, PartialEq)]
pub struct Reuse {
    /// The decode engine that retains it.
    pub holder: Peer,
    /// The id under which it can be claimed.
    pub transfer: TransferId,
    /// How many tokens it covers. How many of them the new prompt has, only the claim can tell.
    pub tokens: u32,
    /// What is left of its time, rather less than the holder would say.
    pub ttl: Duration,
}

/// The other engine of a hand-off, and where its side channel is.
#[derive(Clone, Debug, PartialEq)]
pub struct Peer {
    pub engine: EngineKey,
    pub id: EngineId,
    pub host: String,
    pub port: u16,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestEnd {
    /// The answering leg ended well.
    Answered,
    /// The client left, or stopped taking its answer.
    ClientGone,
    Failed(Failure),
}

/// Why a request failed, for the client's eyes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The request itself is at fault; what the engine said about it on this leg is passed on.
    Refused { leg: LegId },
    /// No engine serves this model.
    UnknownModel,
    /// Several prompts or choices in one request, and no engine that serves requests whole.
    OneSequenceOnly,
    /// No engine for this kind of leg has been seen so far.
    NoEngine { kind: LegKind },
    /// No room here or in the engines; later may be better.
    Overloaded,
    /// Engines failed on every attempt, or after the answer had begun.
    EngineFailed,
    /// An engine took too long.
    TimedOut,
}

/// What [`RouterCore::poll_timeout`](crate::RouterCore::poll_timeout) waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// A leg that does not get its connection.
    Connect(LegId),
    /// A leg without an answer.
    Answer(LegId),
    /// A client that takes nothing more.
    ClientStall(LegId),
    /// A stream that went silent.
    Idle(LegId),
    /// A request that waits for a free slot.
    Queue(RequestId),
    /// A request that pauses before its next attempt.
    Pause(RequestId),
}
