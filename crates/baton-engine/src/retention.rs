//! What this engine keeps of conversations for their next turns. The protocol says who may read it and until when; here are the
//! blocks, how many they may be, and that they are the first to go when a sequence needs room.

use std::collections::{BTreeMap, VecDeque};

use baton_proto::Input as Command;
use baton_types::{BlockId, Mutant, TransferId, UnitId};

use crate::engine::Engine;
use crate::sequence::Sequence;
use crate::transfer_hooks::{Transfer, TransferBlocks};

/// Blocks by retention.
#[derive(Debug, Default)]
pub struct Retentions {
    blocks: BTreeMap<TransferId, Vec<BlockId>>,
    /// The one that ends first in front.
    order: VecDeque<TransferId>,
}

/// The full blocks of a sequence that has ended are kept for whoever claims them by this id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retained {
    pub retention: TransferId,
    /// From the start of the conversation.
    pub tokens: u32,
}

impl Retentions {
    fn insert(&mut self, retention: TransferId, blocks: Vec<BlockId>) {
        let before = self.blocks.insert(retention, blocks);
        assert!(before.is_none(), "I4: each retention is named once");
        self.order.push_back(retention);
    }

    fn remove(&mut self, retention: TransferId) -> Option<Vec<BlockId>> {
        let blocks = self.blocks.remove(&retention)?;
        self.order.retain(|id| *id != retention);
        Some(blocks)
    }

    fn renew(&mut self, retention: TransferId) {
        self.order.retain(|id| *id != retention);
        self.order.push_back(retention);
    }

    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// The blocks of each.
    pub fn blocks(&self) -> impl Iterator<Item = &[BlockId]> {
        self.blocks.values().map(Vec::as_slice)
    }
}

impl Engine {
    /// A sequence has ended well: keeps its full blocks, from the start on and no more than may be kept in all. Before its table is
    /// given back.
    pub(crate) fn retain(&mut self, seq: &mut Sequence) -> Option<Retained> {
        let retention = seq.retention.filter(|_| !self.draining)?;
        let block_tokens = self.blocks.block_tokens();
        // The KV of the last token has not been computed.
        let complete =
            if self.config.mutation.is(Mutant::RetainUncomputed) { seq.tokens.len() } else { seq.computed };
        let full = (complete / block_tokens).min(seq.table.len()).min(self.config.max_retained_blocks);
        let tokens = full * block_tokens;
        if tokens < self.config.reuse_threshold.max(1) {
            return None;
        }
        let blocks = seq.table.blocks()[..full].to_vec();
        while self.blocks.retained_with(&blocks) > self.config.max_retained_blocks {
            assert!(self.revoke_first(), "I11: these blocks alone are few enough");
        }
        self.blocks.retain(&blocks);
        seq.chain.extend(&seq.tokens);
        let block_units = self.config.proto.shape.block_units as usize;
        let chain = seq.chain.hashes()[..full * block_units].to_vec();
        let units = self.units(seq, 0, full);
        self.retentions.insert(retention, blocks);
        self.commands.push_back(Command::Retain { retention, chain, units });
        self.counters.retained += 1;
        Some(Retained { retention, tokens: tokens as u32 })
    }

    /// Gives up the retention that ends first; false if there is none.
    pub(crate) fn revoke_first(&mut self) -> bool {
        let Some(retention) = self.retentions.order.front().copied() else { return false };
        self.commands.push_back(Command::Revoke { retention });
        self.counters.retained_revoked += 1;
        self.let_go(retention);
        true
    }

    pub(crate) fn on_lapsed(&mut self, retention: TransferId) {
        // One that was revoked in the same moment is over already.
        if self.let_go(retention) {
            self.counters.retained_expired += 1;
        }
    }

    fn let_go(&mut self, retention: TransferId) -> bool {
        let blocks = self.retentions.remove(retention);
        if let Some(blocks) = &blocks {
            self.blocks.end_retention(blocks);
        }
        blocks.is_some()
    }

    /// A peer was granted some of what is retained: the blocks stay for it, whatever becomes of the retention (I3).
    pub(crate) fn on_lent(&mut self, retention: TransferId, transfer: TransferId, units: &[UnitId]) {
        let block_units = self.config.proto.shape.block_units;
        let mut blocks: Vec<_> = units.iter().map(|unit| BlockId(unit.0 / block_units)).collect();
        blocks.dedup();
        if self.config.mutation.is(Mutant::FreedDuringRead) {
            blocks.clear();
        }
        self.blocks.lease(&blocks);
        let entry = Transfer { seq: None, blocks: TransferBlocks::Lent(blocks) };
        assert!(self.transfers.insert(transfer, entry).is_none(), "I4: {transfer:?} is lent once");
        self.counters.lent_tokens += (units.len() * self.config.unit_tokens()) as u64;
        if self.config.proto.retain_renewable {
            self.retentions.renew(retention);
        }
    }
}
