//! What two engines say to each other. History of the versions: docs/protocol.md.

use std::fmt;

use baton_types::{BlockHash, EngineId, Millis, PoolShape, TokenId, TransferId, UnitId};

/// The protocol version that this build speaks.
pub const VERSION: u16 = 3;

/// A fingerprint of everything that must be equal before two engines may exchange KV: model, unit, arithmetic.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Compat(pub [u8; 16]);

impl fmt::Debug for Compat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}{:02x}{:02x}{:02x}", self.0[0], self.0[1], self.0[2], self.0[3])
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// First on every connection, from both sides. All that incompatible peers ever learn of each other (I5).
    Hello {
        version: u16,
        engine: EngineId,
        compat: Compat,
    },
    /// The other's Hello fits: how to reach this side's KV pool, and how its units lie in it.
    Welcome {
        metadata: Vec<u8>,
        shape: PoolShape,
    },
    /// The other's Hello does not fit; the connection closes.
    Incompatible {
        why: Mismatch,
    },

    /// Destination to source (push): units from `first_unit` of the chain on are ready to be written, once claimed.
    Register {
        transfer: TransferId,
        first_unit: u32,
    },
    /// Active to passive: wants the units that hold `chain[first_unit..]`. `attempt` comes back in the answer.
    Claim {
        transfer: TransferId,
        attempt: u32,
        first_unit: u32,
        chain: Vec<BlockHash>,
        held: Held,
    },
    /// The units that hold `chain[first_unit..]`, as far as the chains agree and they are computed, for `remaining` from the moment
    /// the claim was made. If not `complete`, more follow as they are computed; the first of them need not be asked for again.
    Granted {
        transfer: TransferId,
        attempt: u32,
        remaining: Millis,
        first_unit: u32,
        units: Vec<UnitId>,
        complete: bool,
        /// Only for a complete read that covers the source's whole chain.
        prefilled: Option<Prefilled>,
    },
    /// Source to an early reader: what it claimed before is there now.
    Offered {
        transfer: TransferId,
    },
    Declined {
        transfer: TransferId,
        why: Decline,
    },
    /// Active to passive: these are still wanted.
    Heartbeat {
        transfers: Vec<TransferId>,
    },
    /// Active to passive: every byte is moved. A writer says how many notifications it sent, over all ranks, and what came of the
    /// prompt.
    Done {
        transfer: TransferId,
        notifications: u32,
        prefilled: Option<Prefilled>,
    },
    DoneAck {
        transfer: TransferId,
    },
    /// From whoever gives up. From a writer it also says that nothing of its own is in flight any more.
    Abort {
        transfer: TransferId,
    },
    /// The answer to Abort: this side will not touch the units of the transfer any more.
    Aborted {
        transfer: TransferId,
    },
}

/// How the source holds what a reader claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// As the offer of this transfer. Writers claim so as well.
    Offered,
    /// The same, but the source may come to know of the transfer later.
    Early,
    /// As a retention of that id, which other readers may share.
    Retained(TransferId),
}

/// What came of computing a prompt, besides its KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefilled {
    /// Sampled after the last token of the prompt.
    pub first_token: TokenId,
    /// Tokens of the prompt whose KV was there before.
    pub cached_tokens: u32,
}

/// Why two engines cannot work together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    Version,
    /// Other weights, other units, other arithmetic, or KV of a type that must not be converted.
    Model,
}

/// Why a claim got nothing. Says no more than the claimant may know: no such transfer, expired and wrong peer are one (I13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decline {
    Unknown,
    /// The chains do not share the first wanted unit.
    Chain,
}
