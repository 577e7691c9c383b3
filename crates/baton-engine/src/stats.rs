//! What an engine has done and is doing, in plain numbers.

use crate::action::{KvLimit, Refusal};

/// A moment's gauges and the counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    // Gauges: sequences.
    pub running: usize,
    /// Without blocks, preempted ones and those that wait for room to receive into included.
    pub waiting: usize,
    /// KV on its way from a peer.
    pub receiving: usize,
    /// Transfers that hold or will hold blocks here: queued, moving, leased or quarantined.
    pub transfers: usize,
    /// Conversations that are kept.
    pub retentions: usize,
    pub draining: bool,
    pub blocks: BlockCounts,
    pub counters: Counters,
}

/// How many blocks are in each state; they add up to the pool (I1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockCounts {
    pub free: usize,
    pub active: usize,
    pub leased: usize,
    pub receiving: usize,
    pub quarantined: usize,
    /// Of `leased`: kept for conversations alone, so that they are as good as free.
    pub retained: usize,
}

impl BlockCounts {
    pub fn total(&self) -> usize {
        self.free + self.active + self.leased + self.receiving + self.quarantined
    }
}

/// Only ever grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub requests: u64,
    pub refused: u64,
    /// Of them, for KV in flight: by which limit.
    pub refused_receiving: u64,
    pub refused_inbound: u64,
    pub refused_pool: u64,
    pub finished_stop: u64,
    pub finished_length: u64,
    pub aborted: u64,
    pub failed: u64,

    pub steps: u64,
    /// Tokens whose KV was computed here, those computed again included.
    pub computed_tokens: u64,
    pub generated_tokens: u64,
    pub prompt_tokens: u64,
    /// Tokens looked up in the prefix cache, and of them, found.
    pub prefix_queried_tokens: u64,
    pub prefix_hit_tokens: u64,
    pub preemptions: u64,

    /// Prompt tokens whose KV came from a peer.
    pub received_tokens: u64,
    /// Transfers into this engine that ended with KV, and without.
    pub transfers_received: u64,
    pub transfers_lost: u64,
    /// Transfers out of this engine that were handed over, and not.
    pub transfers_sent: u64,
    pub transfers_unsent: u64,
    /// Conversations kept, and of them, how many ended by time and how many gave way to others.
    pub retained: u64,
    pub retained_expired: u64,
    pub retained_revoked: u64,
    /// Tokens that were granted out of them, and the readings that were completed, and not.
    pub lent_tokens: u64,
    pub lent_done: u64,
    pub lent_unfinished: u64,
    /// Requests that said where KV may be, and of them, those for which it was not worth reading, or not possible.
    pub reuse_requests: u64,
    pub reuse_unused: u64,
    /// The others: begun, done, and why not.
    pub readbacks: u64,
    pub readbacks_done: u64,
    pub readbacks_declined: u64,
    pub readbacks_expired: u64,
    pub readbacks_failed: u64,
    /// Prompt tokens whose KV was read back.
    pub readback_tokens: u64,
    /// Microseconds that sequences waited for them, from their blocks on.
    pub readback_us: u64,
    /// Sequences computed here because their KV did not come.
    pub recomputed: u64,
}

impl Counters {
    pub(crate) fn refuse(&mut self, why: Refusal) {
        self.refused += 1;
        if let Refusal::KvInFlight(limit) = why {
            *match limit {
                KvLimit::Receiving { .. } => &mut self.refused_receiving,
                KvLimit::Inbound { .. } => &mut self.refused_inbound,
                KvLimit::Pool { .. } => &mut self.refused_pool,
            } += 1;
        }
    }
}
