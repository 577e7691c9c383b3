//! What two engines say to each other. History of the versions: docs/protocol.md.

use std::fmt;

use baton_types::{BlockHash, BlockId, EngineId, Millis, TokenId, TransferId};

/// The protocol version that this build speaks.
pub const VERSION: u16 = 1;

/// A fingerprint of everything that must be equal before two engines may exchange KV: model, layout, arithmetic.
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
    /// The other's Hello fits: how to reach this side's KV pool, and how many blocks it has.
    Welcome {
        metadata: Vec<u8>,
        blocks: u32,
    },
    /// The other's Hello does not fit; the connection closes.
    Incompatible {
        why: Mismatch,
    },

    /// Destination to source (push): blocks from `first_block` of the chain on are ready to be written, once claimed.
    Register {
        transfer: TransferId,
        first_block: u32,
    },
    /// Active to passive: wants the blocks that hold `chain[first_block..]`. `attempt` comes back in the answer.
    Claim {
        transfer: TransferId,
        attempt: u32,
        first_block: u32,
        chain: Vec<BlockHash>,
    },
    /// The blocks that hold `chain[first_block..]`, as far as the chains agree, for `remaining` from the moment the claim was made.
    Granted {
        transfer: TransferId,
        attempt: u32,
        remaining: Millis,
        first_block: u32,
        blocks: Vec<BlockId>,
        /// The token that the source sampled after the whole chain; only for a read that covers all of it.
        first_token: Option<TokenId>,
    },
    Declined {
        transfer: TransferId,
        why: Decline,
    },
    /// Active to passive: these are still wanted.
    Heartbeat {
        transfers: Vec<TransferId>,
    },
    /// Active to passive: every byte is moved. A writer says how many notifications it sent and which token it sampled.
    Done {
        transfer: TransferId,
        notifications: u32,
        first_token: Option<TokenId>,
    },
    DoneAck {
        transfer: TransferId,
    },
    /// From whoever gives up. From a writer it also says that nothing of its own is in flight any more.
    Abort {
        transfer: TransferId,
    },
    /// The answer to Abort: this side will not touch the blocks of the transfer any more.
    Aborted {
        transfer: TransferId,
    },
}

/// Why two engines cannot work together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    Version,
    /// Other weights, other KV layout or other arithmetic.
    Model,
}

/// Why a claim got nothing. Says no more than the claimant may know: no such transfer, expired and wrong peer are one (I13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decline {
    Unknown,
    /// The chains do not share the first wanted block.
    Chain,
}
