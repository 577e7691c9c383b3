//! The KV of an earlier turn that another engine retained, read into a new turn's blocks instead of computed again. Whatever comes
//! in its way, the sequence computes what it has not got.

use baton_proto::{Ending, Held, Input as Command, PeerAddress};
use baton_types::{SeqId, Time, TransferId};

use crate::engine::Engine;
use crate::sequence::Phase;
use crate::transfer_hooks::{Transfer, TransferBlocks};

/// Where a request's KV may be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reuse {
    /// A new id, for the reading.
    pub transfer: TransferId,
    pub retention: TransferId,
    pub peer: PeerAddress,
    /// How much of the conversation is said to be there. What of it is still true, the chains tell.
    pub tokens: u32,
}

/// A sequence's KV is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readback {
    pub transfer: TransferId,
    pub since: Time,
    /// When it is given up.
    pub overdue: Time,
}

impl Engine {
    /// A sequence has its blocks, of which the prefix cache filled the first `hit_blocks`: reads what else is worth it. False if
    /// nothing is.
    pub(crate) fn read_back(&mut self, now: Time, id: SeqId, hit_blocks: usize) -> bool {
        let seq = self.sequences.get_mut(&id).expect("live");
        // Once a sequence: whatever is preempted or fails is computed.
        let Some(reuse) = seq.reuse.take() else { return false };
        let Reuse { transfer, retention, peer, tokens } = *reuse;
        self.counters.reuse_requests += 1;
        let unit_tokens = self.config.unit_tokens();
        // The last token is computed here, since the next one comes out of that.
        let end = (tokens as usize).min(seq.prompt_len - 1) / unit_tokens;
        let first_unit = hit_blocks * self.config.proto.shape.block_units as usize;
        let worth = (end * unit_tokens).saturating_sub(seq.computed) >= self.config.reuse_threshold.max(1);
        let own = peer.engine == self.config.proto.engine;
        let full = self.queues.receiving.len() >= self.config.max_receiving;
        if !worth || own || full || self.transfers.contains_key(&transfer) {
            self.counters.reuse_unused += 1;
            return false;
        }
        let chain = seq.chain.hashes()[..end].to_vec();
        let overdue = now + self.config.reuse_timeout;
        seq.readback = Some(Readback { transfer, since: now, overdue });
        let seq = &self.sequences[&id];
        let mut units = self.units(seq, hit_blocks, seq.table.len());
        units.truncate(end - first_unit);
        let blocks = self.blocks.receive(&seq.table, hit_blocks);
        let entry = Transfer { seq: Some(id), blocks: TransferBlocks::Inbound { first: hit_blocks, blocks } };
        self.transfers.insert(transfer, entry);
        self.move_to(id, Phase::Receiving);
        self.counters.readbacks += 1;
        let held = Held::Retained(retention);
        self.commands.push_back(Command::Fetch { transfer, peer, chain, first_unit, units, held });
        true
    }

    /// It is there: the sequence computes the rest, and a source names what is complete.
    pub(crate) fn on_read_back(&mut self, now: Time, id: SeqId, readback: Readback) {
        let seq = self.sequences.get_mut(&id).expect("live");
        let received = seq.usage.received_tokens;
        seq.usage.cached_tokens += received;
        self.counters.readbacks_done += 1;
        self.counters.readback_tokens += u64::from(received);
        self.counters.readback_us += now.since(readback.since).as_micros() as u64;
        self.publish(id);
        self.move_to(id, Phase::Running);
        self.on_progress(id);
    }

    /// Nothing came of it, for now at least: the sequence waits for blocks to compute in.
    pub(crate) fn on_readback_failed(&mut self, id: SeqId, why: Ending) {
        self.sequences.get_mut(&id).expect("live").readback = None;
        match why {
            Ending::Declined => self.counters.readbacks_declined += 1,
            Ending::Cancelled | Ending::Expired => self.counters.readbacks_expired += 1,
            _ => self.counters.readbacks_failed += 1,
        }
    }
}
