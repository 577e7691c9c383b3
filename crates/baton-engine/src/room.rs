//! Room for KV that goes from engine to engine: what is taken on, and when a source may have blocks.
//!
//! A destination holds blocks until its source has computed, and a source until its destination has blocks. So engines can wait for
//! each other: two that hand over to one another, each full of what the other has no room for (I8). Two promises, each kept
//! by one engine for itself, leave no such circle:
//!
//! - **A destination waits for no source of the same engine.** What is to be received and what sources hold fit into the pool
//!   together, so that a destination has its blocks as soon as what runs here has ended.
//! - **A source waits for no destination whose own source is still to compute.** Such a one is taken on only where it leaves room for
//!   the largest source that waits here, and a source only where they leave room for it.
//!
//! Sources then have blocks in the order of arrival, each when those before it have been taken, whose destinations wait for nobody.
//! What cannot be promised is refused, and worth another try. Blocks are counted as if nobody shared any.
//!
//! So that neither direction is refused for ever, an engine that has been asked for both since it started gives each half of the room;
//! more only to one that is alone in its direction.

use baton_types::{SeqId, TransferMode};

use crate::action::{HandOff, KvLimit};
use crate::engine::Engine;
use crate::sequence::{Part, Phase};
use crate::transfer_hooks::TransferBlocks;

/// What an engine has been asked for since it started.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Directions {
    inbound: bool,
    outbound: bool,
}

/// Sequences whose KV is to come from peers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Inbound {
    /// Those that read back included: they have the same places.
    sequences: usize,
    /// That destinations hold or wait for.
    pub blocks: usize,
    /// Whether the source of any of them computes while it waits here.
    both_begin: bool,
}

/// Blocks of sequences whose KV goes to peers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outbound {
    /// Of those that compute, and of those that are done and not taken yet.
    pub held: usize,
    /// Of the largest that waits for blocks.
    largest_waiting: usize,
}

impl Engine {
    /// Blocks that may be in use while others grow.
    pub(crate) fn room(&self) -> usize {
        self.config.num_blocks as usize - self.config.watermark_blocks
    }

    /// The limit that a request for so many blocks would break, if there is one.
    pub(crate) fn kv_limit(&self, hand_off: &HandOff, blocks: usize) -> Option<KvLimit> {
        match hand_off {
            HandOff::None => None,
            HandOff::ToPeer { .. } => self.outbound_limit(blocks),
            HandOff::FromPeer { mode, .. } => self.inbound_limit(*mode, blocks),
        }
    }

    pub(crate) fn note_direction(&mut self, hand_off: &HandOff) {
        self.asked.inbound |= matches!(hand_off, HandOff::FromPeer { .. });
        self.asked.outbound |= matches!(hand_off, HandOff::ToPeer { .. });
    }

    fn outbound_limit(&self, blocks: usize) -> Option<KvLimit> {
        let inbound = self.inbound();
        let (all, room) = (inbound.blocks + blocks, self.room());
        (inbound.both_begin && all > room).then(|| KvLimit::pool(all, room))
    }

    /// A pull whose source has computed waits for nobody who waits for it: where nothing goes out, more of them may be taken on than
    /// have room at once.
    fn inbound_limit(&self, mode: TransferMode, blocks: usize) -> Option<KvLimit> {
        let (max_sequences, max_blocks) = (self.config.max_receiving, self.config.max_inbound_blocks);
        let (inbound, room) = (self.inbound(), self.room());
        let outbound = if self.asked.outbound { self.outbound().most() } else { 0 };
        let waited_for = inbound.both_begin || mode != TransferMode::Pull;
        let all = inbound.blocks + blocks;
        if all > max_blocks {
            return Some(KvLimit::inbound(all, max_blocks));
        }
        if inbound.sequences == 0 && outbound == 0 {
            // Whoever is alone may have everything.
            return None;
        }
        if waited_for && inbound.sequences >= max_sequences {
            return Some(KvLimit::receiving(inbound.sequences + 1, max_sequences));
        }
        if (waited_for || outbound > 0) && all + outbound > room {
            return Some(KvLimit::pool(all + outbound, room));
        }
        let is_shared = self.asked.outbound && inbound.blocks > 0;
        (is_shared && all > room / 2).then(|| KvLimit::inbound(all, room / 2))
    }

    /// Whether a source that waits may have its blocks.
    pub(crate) fn may_send(&self, id: SeqId) -> bool {
        if !self.asked.inbound {
            return true;
        }
        let blocks = self.blocks.blocks_for(self.sequences[&id].tokens.len());
        let (inbound, held) = (self.inbound().blocks, self.outbound().held);
        let has_share = held == 0 || held + blocks <= self.room() / 2;
        let is_alone = held == 0 && inbound == 0;
        is_alone || (has_share && inbound + held + blocks <= self.room())
    }

    pub(crate) fn inbound(&self) -> Inbound {
        let mut inbound = Inbound::default();
        for id in self.queues.expecting.iter().chain(&self.queues.receiving) {
            let seq = &self.sequences[id];
            inbound.sequences += 1;
            if let Part::Destination { mode, .. } = seq.part {
                inbound.blocks += self.blocks.blocks_for(seq.tokens.len());
                inbound.both_begin |= mode != TransferMode::Pull;
            }
        }
        inbound
    }

    pub(crate) fn outbound(&self) -> Outbound {
        let mut outbound = Outbound::default();
        for seq in self.sequences.values().filter(|seq| matches!(seq.part, Part::Source { .. })) {
            let blocks = self.blocks.blocks_for(seq.tokens.len());
            match seq.phase {
                Phase::Waiting => outbound.largest_waiting = outbound.largest_waiting.max(blocks),
                Phase::Expecting | Phase::Receiving | Phase::Running => outbound.held += blocks,
            }
        }
        for entry in self.transfers.values().filter(|entry| entry.seq.is_none()) {
            if let TransferBlocks::Leased(blocks) = &entry.blocks {
                outbound.held += blocks.len();
            }
        }
        outbound
    }
}

impl Outbound {
    /// What must be left to sources: all that they hold, and once that is gone, the place of the largest.
    fn most(self) -> usize {
        self.held.max(self.largest_waiting)
    }
}
