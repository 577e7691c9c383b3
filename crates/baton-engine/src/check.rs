//! The invariants, asserted over everything that an engine holds. The simulator and the tests call this after each event; what is
//! cheap is asserted where it happens, also in release builds.

use std::collections::BTreeMap;

use baton_types::BlockId;

use crate::block_pool::BlockState;
use crate::engine::Engine;
use crate::sequence::{Part, Phase, Sequence};
use crate::transfer_hooks::TransferBlocks;

impl Engine {
    /// # Panics
    /// If an invariant is broken.
    pub fn check(&self) {
        self.blocks.check();
        self.check_counts();
        for seq in self.sequences.values() {
            self.check_sequence(seq);
        }
        self.check_bounds();
    }

    /// I1, I3: a block's users are the tables that name it, its leases the transfers, and inbound blocks have one transfer.
    fn check_counts(&self) {
        let mut users: BTreeMap<BlockId, u32> = BTreeMap::new();
        let mut leases: BTreeMap<BlockId, u32> = BTreeMap::new();
        let mut inbound: BTreeMap<BlockId, BlockState> = BTreeMap::new();
        let retiring = self.in_flight.iter().flat_map(|step| &step.retiring);
        let tables = self.sequences.values().map(|seq| &seq.table).chain(retiring);
        for id in tables.flat_map(|table| table.blocks()) {
            *users.entry(*id).or_default() += 1;
        }
        for (transfer, entry) in &self.transfers {
            match &entry.blocks {
                TransferBlocks::None => {}
                TransferBlocks::Leased(blocks) | TransferBlocks::Lent(blocks) => {
                    for id in blocks {
                        *leases.entry(*id).or_default() += 1;
                        assert_ne!(self.blocks.pool().state(*id), BlockState::Free, "I3: {transfer:?}");
                    }
                }
                TransferBlocks::Inbound { blocks, .. } => {
                    let state =
                        if entry.seq.is_some() { BlockState::Receiving } else { BlockState::Quarantined };
                    for id in blocks {
                        assert_eq!(inbound.insert(*id, state), None, "I3: one writer");
                        if entry.seq.is_some() {
                            assert_eq!(users.remove(id), Some(1), "I3: {transfer:?} writes for one sequence");
                        }
                    }
                }
            }
        }
        let mut retained: BTreeMap<BlockId, u32> = BTreeMap::new();
        for id in self.retentions.blocks().flatten() {
            *retained.entry(*id).or_default() += 1;
        }
        for id in self.blocks.pool().ids() {
            let pool = self.blocks.pool();
            assert_eq!(pool.users(id), users.get(&id).copied().unwrap_or(0), "I1: users of {id:?}");
            assert_eq!(pool.leases(id), leases.get(&id).copied().unwrap_or(0), "I1: leases of {id:?}");
            assert_eq!(
                pool.retained(id),
                retained.get(&id).copied().unwrap_or(0),
                "I1: retentions of {id:?}"
            );
            let state = pool.state(id);
            let is_inbound = matches!(state, BlockState::Receiving | BlockState::Quarantined);
            assert_eq!(inbound.get(&id).copied(), is_inbound.then_some(state), "I3: {id:?}");
        }
    }

    fn check_sequence(&self, seq: &Sequence) {
        let id = seq.id;
        let block_tokens = self.blocks.block_tokens();
        assert_eq!(self.queues.running.contains(&id), seq.phase == Phase::Running);
        assert_eq!(self.queues.receiving.contains(&id), seq.phase == Phase::Receiving);
        assert_eq!(self.queues.waiting.contains(&id), seq.phase == Phase::Waiting);
        assert_eq!(self.queues.expecting.contains(&id), seq.phase == Phase::Expecting);
        assert!(seq.tokens.len() < self.config.max_len(), "I11: a sequence that ended lives");
        assert!(seq.computed < seq.tokens.len(), "I2: the last token's KV is still to come");
        match seq.phase {
            Phase::Waiting | Phase::Expecting => {
                assert!(seq.table.is_empty() && seq.computed == 0, "I1: {id:?} holds blocks in the queue");
            }
            Phase::Receiving | Phase::Running => {
                let most = self.blocks.blocks_for(seq.tokens.len());
                // A decode gets the block of its last token when it is planned.
                assert!(seq.table.len() == most || seq.table.len() + 1 == most, "I2: {id:?}");
                assert!(seq.table.len() * block_tokens >= seq.computed, "I2: {id:?}");
            }
        }
        // I2: only complete full blocks have a hash, and it is the hash of what they hold.
        let mut chain = seq.chain.clone();
        chain.extend(&seq.tokens);
        let hashes = chain.full_blocks(self.config.proto.shape.block_units as usize);
        for (i, block) in seq.table.blocks().iter().enumerate() {
            if let Some(hash) = self.blocks.pool().hash(*block) {
                assert!((i + 1) * block_tokens <= seq.computed, "I2: {block:?} of {id:?} is not complete");
                assert_eq!(hash, hashes[i], "I2: {block:?} of {id:?}");
            }
        }
        if let Part::Source { transfer, .. } | Part::Destination { transfer, .. } = &seq.part {
            let entry = self.transfers.get(transfer).expect("I4: a live transfer has a record");
            assert_eq!(entry.seq, Some(id), "I4: one sequence a transfer");
        }
        if let Some(readback) = seq.readback {
            assert_eq!(seq.phase, Phase::Receiving, "I2: {id:?} computes what it reads");
            assert_eq!(self.transfers[&readback.transfer].seq, Some(id), "I4: one sequence a readback");
        }
    }

    /// I11: nothing is longer than the configuration allows.
    fn check_bounds(&self) {
        let Self { queues, config, sequences, transfers, .. } = self;
        let queued = queues.queued() + queues.receiving.len() + queues.running.len();
        assert_eq!(queued, sequences.len(), "each sequence is in one queue");
        assert!(queues.receiving.len() <= config.max_receiving, "I11: receiving");
        // I8: see `room`.
        let (inbound, held) = (self.inbound().blocks, self.outbound().held);
        let fits = inbound == 0 || held == 0 || inbound + held <= self.room();
        assert!(fits, "I8: {inbound} blocks to receive into, {held} of sources");
        let retained = self.blocks.retained_with(&[]);
        assert!(retained <= config.max_retained_blocks, "I11: retained blocks");
        // Every sequence that was admitted once may be back in the queue, and each of those has held a block.
        let most = config.max_waiting + config.num_blocks as usize;
        assert!(sequences.len() <= most, "I11: sequences");
        if let Some(step) = &self.in_flight {
            assert!(step.entries.len() <= config.max_running, "I11: entries of a step");
            let tokens: usize = step.entries.iter().map(|planned| planned.tokens).sum();
            assert!(tokens <= config.step_tokens, "I11: tokens of a step");
        }
        for (transfer, entry) in transfers {
            if let Some(seq) = entry.seq {
                assert!(sequences.contains_key(&seq), "I4: {transfer:?} belongs to a sequence that is over");
            }
        }
    }
}
