//! Where the scheduler and the protocol meet. The scheduler says what happened to a sequence; the hooks turn that into commands.
//! The protocol says what happened to a transfer; the hooks turn that into blocks and queues.

use baton_proto::{Ending, Event, Held, Input as Command, Prefilled};
use baton_types::{BlockHash, BlockId, Mutant, SeqId, Time, TokenId, TransferId, TransferMode, UnitId};

use crate::action::{FinishReason, HandOff, Handle, Refusal, SeqFailure};
use crate::config::OnLostKv;
use crate::engine::Engine;
use crate::sequence::{Part, Phase, Sequence};

/// What this engine holds for one transfer. Lives from the request to the protocol's last word on it, which may come long after the
/// sequence has ended.
#[derive(Debug, Default)]
pub struct Transfer {
    /// The sequence, while it lives.
    pub seq: Option<SeqId>,
    pub blocks: TransferBlocks,
}

#[derive(Debug, Default)]
pub enum TransferBlocks {
    /// None yet, or no more.
    #[default]
    None,
    /// Source: the first blocks of the chain, each with one lease for this transfer.
    Leased(Vec<BlockId>),
    /// Out of a retention, each with one lease for this transfer.
    Lent(Vec<BlockId>),
    /// Destination, or reader of a retention: those from `first` of the chain on, Receiving while the sequence lives and Quarantined after it.
    Inbound { first: usize, blocks: Vec<BlockId> },
}

impl Engine {
    pub(crate) fn on_submitted(&mut self, seq: &Sequence) {
        let transfer = match &seq.part {
            Part::Whole => return,
            Part::Source { transfer, mode, .. } => {
                self.commands.push_back(announce(*transfer, *mode, seq.chain.hashes().to_vec()));
                *transfer
            }
            Part::Destination { transfer, mode, peer, .. } => {
                let (transfer, early) = (*transfer, *mode == TransferMode::EarlyPull);
                self.commands.push_back(Command::Expect { transfer, peer: peer.clone(), early });
                transfer
            }
        };
        self.transfers.insert(transfer, Transfer { seq: Some(seq.id), ..Transfer::default() });
    }

    /// A peer holds blocks for a leg that will never be: it is told at once, not left to its time limits.
    pub(crate) fn on_refused(&mut self, hand_off: HandOff, why: Refusal) {
        // Nothing may be said in the name of the other leg that goes by this id.
        if matches!(why, Refusal::TransferInUse | Refusal::OwnPeer) {
            return;
        }
        let (transfer, beginning) = match hand_off {
            HandOff::FromPeer { transfer, peer, .. } => {
                (transfer, Command::Expect { transfer, peer, early: false })
            }
            HandOff::ToPeer { transfer, mode } => (transfer, announce(transfer, mode, Vec::new())),
            HandOff::None => return,
        };
        self.transfers.insert(transfer, Transfer::default());
        self.commands.push_back(beginning);
        self.commands.push_back(Command::Cancel { transfer });
    }

    /// A destination has its blocks: those that the prefix cache did not have may be written from now on (I3).
    pub(crate) fn on_allocated(&mut self, id: SeqId, first_block: usize) {
        let seq = &self.sequences[&id];
        let Part::Destination { transfer, mode, peer, .. } = seq.part.clone() else {
            unreachable!("only destinations receive")
        };
        let blocks = self.blocks.receive(&seq.table, first_block);
        let entry = self.transfers.get_mut(&transfer).expect("I4: until its ending");
        entry.blocks = TransferBlocks::Inbound { first: first_block, blocks: blocks.clone() };
        let (chain, units) = (seq.chain.hashes().to_vec(), self.units(seq, first_block, seq.table.len()));
        let first_unit = chain.len() - units.len();
        self.commands.push_back(match mode {
            TransferMode::Pull | TransferMode::EarlyPull => {
                let held = if mode == TransferMode::EarlyPull { Held::Early } else { Held::Offered };
                Command::Fetch { transfer, peer, chain, first_unit, units, held }
            }
            TransferMode::Push => Command::Receive { transfer, peer, chain, first_unit, units },
        });
    }

    /// The units that hold a sequence's chain in its blocks `from..to`: all of each, but of the last only what the chain reaches.
    pub(crate) fn units(&self, seq: &Sequence, from: usize, to: usize) -> Vec<UnitId> {
        let block_units = self.config.proto.shape.block_units as usize;
        let end = (to * block_units).min(seq.chain.hashes().len());
        let unit = |place: usize| {
            let block = seq.table.blocks()[place / block_units];
            UnitId((block.index() * block_units + place % block_units) as u32)
        };
        (from * block_units..end).map(unit).collect()
    }

    /// More of a sequence's prompt is computed, or was found in the cache: a source names the blocks that are complete by that.
    pub(crate) fn on_progress(&mut self, id: SeqId) {
        let is_push = matches!(self.part(id), Part::Source { mode: TransferMode::Push, .. });
        if is_push && self.config.push_at_end {
            return;
        }
        let complete = self.sequences[&id].computed / self.blocks.block_tokens();
        self.send_blocks(id, complete);
    }

    /// The whole prompt is computed and a token sampled; what the decode leg needs to know, if there is one.
    pub(crate) fn on_finished(&mut self, id: SeqId, first_token: TokenId) -> Option<Handle> {
        let seq = &self.sequences[&id];
        let Part::Source { transfer, mode, .. } = seq.part else { return None };
        let handle = Handle {
            transfer,
            mode,
            tokens: seq.usage.prompt_tokens,
            cached_tokens: seq.usage.cached_tokens,
        };
        let prefilled = Prefilled { first_token, cached_tokens: handle.cached_tokens };
        let all = seq.table.len();
        self.send_blocks(id, all);
        self.commands.push_back(Command::Complete { transfer, prefilled });
        Some(handle)
    }

    /// Leases and names the blocks up to `complete` that were not named yet.
    fn send_blocks(&mut self, id: SeqId, complete: usize) {
        let seq = self.sequences.get_mut(&id).expect("live");
        let Part::Source { transfer, sent_blocks, .. } = &mut seq.part else { return };
        if complete <= *sent_blocks {
            return;
        }
        let (transfer, from) = (*transfer, std::mem::replace(sent_blocks, complete));
        let blocks = seq.table.blocks()[from..complete].to_vec();
        let units = self.units(&self.sequences[&id], from, complete);
        self.lease(transfer, &blocks);
        self.commands.push_back(Command::Progress { transfer, units });
    }

    fn lease(&mut self, transfer: TransferId, blocks: &[BlockId]) {
        self.blocks.lease(blocks);
        let entry = self.transfers.get_mut(&transfer).expect("I4: until its ending");
        match &mut entry.blocks {
            TransferBlocks::Leased(leased) => leased.extend_from_slice(blocks),
            none => *none = TransferBlocks::Leased(blocks.to_vec()),
        }
    }

    /// The sequence is over. What goes on without it is a hand-over that it has completed; anything else is cancelled. From which
    /// of its blocks on a peer may still write, if it may.
    pub(crate) fn on_ended(&mut self, seq: &Sequence, handed_over: bool) -> Option<usize> {
        let read = seq.readback.and_then(|readback| self.leave(readback.transfer, false));
        let (Part::Source { transfer, .. } | Part::Destination { transfer, .. }) = seq.part else {
            return read;
        };
        self.leave(transfer, handed_over).or(read)
    }

    /// A transfer goes on without its sequence, or is cancelled.
    fn leave(&mut self, transfer: TransferId, handed_over: bool) -> Option<usize> {
        // A source whose receiver is lost: the protocol has said its last word already.
        let entry = self.transfers.get_mut(&transfer)?;
        entry.seq = None;
        let received = match entry.blocks {
            TransferBlocks::Inbound { first, .. } => Some(first),
            _ => None,
        };
        if !handed_over {
            self.commands.push_back(Command::Cancel { transfer });
        }
        received
    }

    /// The next sequence whose KV will be overdue. All destinations may wait equally long from their arrival on, and all readbacks
    /// from their beginning on, but those begin in any order.
    pub fn next_overdue(&self) -> Option<(Time, SeqId)> {
        let waiting = self.queues.expecting.first().into_iter().chain(&self.queues.receiving);
        let overdue = |id: &SeqId| match (self.sequences[id].readback, self.part(*id)) {
            (Some(readback), _) => readback.overdue,
            (None, Part::Destination { overdue, .. }) => *overdue,
            (None, _) => unreachable!("nobody else waits for KV"),
        };
        waiting.map(|id| (overdue(id), *id)).min()
    }

    /// Gives up on the KV of a sequence; its transfer's Failed says how it goes on.
    pub fn give_up_kv(&mut self, id: SeqId) {
        let seq = &self.sequences[&id];
        let transfer = match (seq.readback, &seq.part) {
            (Some(readback), _) => readback.transfer,
            (None, Part::Destination { transfer, .. }) => *transfer,
            (None, _) => return,
        };
        self.commands.push_back(Command::Cancel { transfer });
    }

    pub fn handle_event(&mut self, now: Time, event: Event) {
        match event {
            Event::Ready { transfer, covered, prefilled } => self.on_ready(now, transfer, covered, prefilled),
            Event::Failed { transfer, why, quarantined } => self.on_failed(transfer, why, quarantined),
            Event::Released { transfer, why } => self.on_released(transfer, why),
            Event::Lent { retention, transfer, units } => self.on_lent(retention, transfer, &units),
            Event::Lapsed { retention } => self.on_lapsed(retention),
        }
    }

    /// The first `covered` units of the prompt are there, and nobody writes into any of them any more.
    fn on_ready(&mut self, now: Time, transfer: TransferId, covered: usize, prefilled: Option<Prefilled>) {
        let entry = self.transfers.remove(&transfer).expect("I4: one ending");
        let TransferBlocks::Inbound { first, .. } = entry.blocks else {
            panic!("I3: {transfer:?} was ready without blocks")
        };
        let id = entry
            .seq
            .expect("a sequence that ended cancelled the transfer, and Cancel is answered by Failed");
        let seq = self.sequences.get_mut(&id).expect("live");
        assert!(covered <= seq.chain.hashes().len(), "I2: no more than was asked for");
        self.blocks.accept(&seq.table, first);
        let is_whole = covered == seq.chain.hashes().len();
        let whole = prefilled.filter(|prefilled| is_whole && prefilled.first_token.0 < self.config.vocab);
        let most = if whole.is_some() { seq.prompt_len } else { seq.prompt_len - 1 };
        let hits = seq.computed;
        seq.computed = hits.max(covered * self.config.unit_tokens()).min(most);
        seq.usage.received_tokens = (seq.computed - hits) as u32;
        let received = seq.usage.received_tokens;
        if let Some(readback) = seq.readback.take() {
            return self.on_read_back(now, id, readback);
        }
        self.counters.transfers_received += 1;
        self.counters.received_tokens += u64::from(received);
        if let Some(Prefilled { cached_tokens, .. }) = whole {
            seq.usage.cached_tokens = cached_tokens.min(seq.usage.prompt_tokens);
        }
        if !self.config.mutation.is(Mutant::RefetchAfterReady) {
            seq.part = Part::Whole;
        }
        self.publish(id);
        self.move_to(id, Phase::Running);
        if let Some(Prefilled { first_token, .. }) = whole {
            self.append(id, first_token);
        }
    }

    fn on_failed(&mut self, transfer: TransferId, why: Ending, quarantined: bool) {
        let entry = self.transfers.remove(&transfer).expect("I4: one ending");
        if let Some(id) = entry.seq {
            let seq = self.sequences.get_mut(&id).expect("live");
            seq.computed = 0;
            let table = std::mem::take(&mut seq.table);
            if let TransferBlocks::Inbound { first, .. } = entry.blocks {
                self.blocks.abandon(table, first);
            }
            let read_back = seq.readback.is_some();
            self.move_to(id, Phase::Waiting);
            if read_back {
                self.on_readback_failed(id, why);
            } else {
                self.on_lost(id, why);
            }
        }
        if quarantined {
            self.transfers.insert(transfer, Transfer { seq: None, blocks: entry.blocks });
        } else if let TransferBlocks::Inbound { blocks, .. } = entry.blocks {
            self.blocks.discard(&blocks);
        }
    }

    /// A destination's KV will not come.
    fn on_lost(&mut self, id: SeqId, why: Ending) {
        self.counters.transfers_lost += 1;
        self.sequences.get_mut(&id).expect("live").part = Part::Whole;
        match self.config.on_lost_kv {
            OnLostKv::Recompute => self.counters.recomputed += 1,
            OnLostKv::Fail => {
                // A living sequence has cancelled nothing but what was overdue.
                let why = if why == Ending::Cancelled { Ending::Expired } else { why };
                self.finish(id, FinishReason::Failed(SeqFailure::Kv(why)), None);
            }
        }
    }

    /// No peer touches the blocks any more: the end of a source, or of a destination's quarantine.
    fn on_released(&mut self, transfer: TransferId, why: Ending) {
        let entry = self.transfers.remove(&transfer).expect("I4: one release");
        match entry.blocks {
            TransferBlocks::Inbound { blocks, .. } => return self.blocks.discard(&blocks),
            TransferBlocks::Leased(blocks) => {
                if self.config.mutation.is(Mutant::LeaseEndedTwice) {
                    self.blocks.end_lease(&blocks);
                }
                self.blocks.end_lease(&blocks);
            }
            TransferBlocks::Lent(blocks) => {
                self.blocks.end_lease(&blocks);
                match why {
                    Ending::Done => self.counters.lent_done += 1,
                    _ => self.counters.lent_unfinished += 1,
                }
                return;
            }
            TransferBlocks::None => {}
        }
        match why {
            Ending::Done => self.counters.transfers_sent += 1,
            _ => self.counters.transfers_unsent += 1,
        }
        // A source that still computes computes for nobody.
        if let Some(id) = entry.seq {
            self.finish(id, FinishReason::Failed(SeqFailure::Receiver(why)), None);
        }
    }
}

/// Tells the protocol of a source.
fn announce(transfer: TransferId, mode: TransferMode, chain: Vec<BlockHash>) -> Command {
    match mode {
        TransferMode::Pull | TransferMode::EarlyPull => Command::Offer { transfer, chain },
        TransferMode::Push => Command::Send { transfer, chain },
    }
}

#[cfg(test)]
mod tests;
