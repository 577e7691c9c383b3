//! What an engine has done and is doing, in plain numbers.

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
    /// Sequences computed here because their KV did not come.
    pub recomputed: u64,
}
