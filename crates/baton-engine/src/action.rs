//! What goes into an [`EngineCore`](crate::EngineCore) and what comes out of it.

use std::fmt;

use baton_proto::{Ending, PeerAddress};
use baton_types::{CacheSalt, SamplingParams, SeqId, TokenId, TransferId, TransferMode};

use crate::batch::{Batch, StepResult};
use crate::readback::Reuse;
use crate::retention::Retained;

/// A sequence is answered by exactly one of Refused and Finished, and nothing about it follows that.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    Submit(Request),
    /// The client is gone. A sequence that is over or unknown is left as it is.
    Abort {
        seq: SeqId,
    },
    /// The text that was generated so far holds a stop string, which only the HTTP edge can see: end with
    /// [`FinishReason::Stop`]. A sequence that is over or unknown is left as it is.
    Stop {
        seq: SeqId,
    },
    /// The step that the last [`Output::Step`] asked for is done.
    Stepped(StepResult),
    /// The step could not be computed: its sequences end with [`FinishReason::Failed`].
    StepFailed {
        step: u64,
    },
    /// From the side channel or the transport. The engine's own commands to the protocol are not the driver's to give.
    Proto(baton_proto::Input),
    /// No new requests from here on; what exists ends in its own time.
    Drain,
    /// The time that `poll_timeout` named has come.
    Tick,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Counted up by the driver: it is the order of arrival, and that is the order of service.
    pub seq: SeqId,
    pub prompt: Vec<TokenId>,
    /// Tenant, adapter and the client's own salt; the model is the engine's to fill in.
    pub salt: CacheSalt,
    /// At least one.
    pub max_tokens: u32,
    /// Before so many tokens are generated, stop tokens do not stop.
    pub min_tokens: u32,
    /// End of sequence and the like; empty to ignore them.
    pub stop_tokens: Vec<TokenId>,
    pub sampling: SamplingParams,
    pub hand_off: HandOff,
    /// KV of an earlier turn that another engine retained.
    pub reuse: Option<Box<Reuse>>,
    /// Keep the KV of prompt and answer under this new id, if the sequence ends well and came from a peer.
    pub retention: Option<TransferId>,
}

/// Which part of a request this engine does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandOff {
    /// All of it.
    None,
    /// The prompt and one token; then the KV goes to whoever comes with this transfer id.
    ToPeer { transfer: TransferId, mode: TransferMode },
    /// Everything after the prompt, whose KV comes from that peer.
    FromPeer { transfer: TransferId, mode: TransferMode, peer: PeerAddress },
}

#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Compute this and answer with one Stepped or StepFailed. At most one step is outstanding.
    Step(Batch),
    /// The next token of a sequence, a stop token included.
    Token {
        seq: SeqId,
        token: TokenId,
    },
    Finished {
        seq: SeqId,
        reason: FinishReason,
        usage: Usage,
        /// Present if the prompt's KV waits for, or goes to, a peer.
        handle: Option<Handle>,
        /// Present if the KV of prompt and answer is kept for the next turn.
        retained: Option<Retained>,
    },
    Refused {
        seq: SeqId,
        why: Refusal,
    },
    /// For the side channel or the transport; never an Event.
    Proto(baton_proto::Output),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FinishReason {
    /// A stop token, or a stop string that the edge saw.
    Stop,
    /// `max_tokens`, the model's context, or the one token of a prefill leg.
    Length,
    Aborted,
    Failed(SeqFailure),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SeqFailure {
    /// The runner could not compute a step that this sequence was in.
    Step,
    /// The KV that was to come from a peer is lost, and the configuration forbids to compute it here.
    Kv(Ending),
    /// The peer that was to take the KV no longer wants or can have it.
    Receiver(Ending),
}

/// What one sequence took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: u32,
    /// Of the prompt: found in this engine's prefix cache when the sequence was first admitted.
    pub hit_tokens: u32,
    /// Of the prompt: computed by nobody for this request, but found or read back. Where the KV came from the engine that computed
    /// it, it is what that one says.
    pub cached_tokens: u32,
    /// Of the prompt: KV that came from a peer.
    pub received_tokens: u32,
    /// Generated, a stop token and the token that came with a peer's KV included.
    pub completion_tokens: u32,
    /// How often the sequence lost its blocks and was computed again.
    pub preemptions: u32,
}

/// What the decode leg must bring along to get the KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    pub transfer: TransferId,
    pub mode: TransferMode,
    /// Prompt tokens whose KV this engine holds.
    pub tokens: u32,
    /// Of them, how many came from its prefix cache.
    pub cached_tokens: u32,
}

/// What a core wants to be woken for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// This sequence has waited long enough for KV from its peer.
    KvOverdue(SeqId),
    Proto(baton_proto::Reason),
}

/// Why a request is not even queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// No prompt, or no token wanted.
    Empty,
    /// Prompt and one token are more than the model's context.
    ContextTooLong { tokens: u32, limit: u32 },
    /// The prompt needs more blocks than the pool has.
    PoolTooSmall { blocks: u32, limit: u32 },
    /// The queue is full: worth another try, here or elsewhere.
    Overloaded,
    /// So much KV is on its way that this request's would grow old, or wait for what waits for it: worth another try, elsewhere
    /// or soon.
    KvInFlight(KvLimit),
    /// [`Input::Drain`] came: worth another try elsewhere.
    Draining,
    /// Another live sequence, or KV that is still leased or quarantined, goes by this transfer id.
    TransferInUse,
    /// The KV is said to be with this very engine.
    OwnPeer,
}

/// A limit on KV between engines, and what there would be with one request more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KvLimit {
    /// Sequences with KV from peers at a time: [`Config::max_receiving`](crate::Config).
    Receiving { sequences: u32, limit: u32 },
    /// Blocks for KV from peers: [`Config::max_inbound_blocks`](crate::Config), or half of the pool where KV goes out as well.
    Inbound { blocks: u32, limit: u32 },
    /// Blocks for KV from peers and to peers: the pool, less the watermark.
    Pool { blocks: u32, limit: u32 },
}

impl KvLimit {
    pub(crate) fn receiving(sequences: usize, limit: usize) -> Self {
        Self::Receiving { sequences: saturating(sequences), limit: saturating(limit) }
    }

    pub(crate) fn inbound(blocks: usize, limit: usize) -> Self {
        Self::Inbound { blocks: saturating(blocks), limit: saturating(limit) }
    }

    pub(crate) fn pool(blocks: usize, limit: usize) -> Self {
        Self::Pool { blocks: saturating(blocks), limit: saturating(limit) }
    }
}

impl fmt::Display for KvLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Receiving { sequences, limit } => {
                write!(f, "{sequences} sequences with KV from other engines, of {limit} at a time")
            }
            Self::Inbound { blocks, limit } => {
                write!(f, "{blocks} blocks for KV from other engines, of {limit}")
            }
            Self::Pool { blocks, limit } => {
                write!(f, "{blocks} blocks for KV from and to other engines, of {limit}")
            }
        }
    }
}

fn saturating(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
