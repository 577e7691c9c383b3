//! What is computed next. Everything is in the order of arrival, so nothing starves:
//! - the oldest running sequences make up the step; those that decode first, one token each, then chunks of prompts;
//! - the oldest queued sequence is the next to get blocks, and while there are not enough for it, nobody gets any;
//! - what is kept for conversations gives way to whoever needs blocks;
//! - where a decode lacks a block even so, the youngest running sequence gives up all of its own and is computed again later; but not one
//!   that only computes a prompt for a peer.
//!
//! A sequence gets the blocks of all its tokens at once, so only a decode ever lacks one: no prompt stops half-way.

use std::cmp::min;

use baton_types::{BlockHash, SeqId, Time};

use crate::action::Output;
use crate::batch::{Batch, BatchEntry};
use crate::block_manager::Admission;
use crate::budget::Budget;
use crate::engine::{Engine, InFlight, Planned};
use crate::sequence::{Part, Phase};

impl Engine {
    /// Admits what there is room for, and starts the next step if none is in flight.
    pub fn schedule(&mut self, now: Time) {
        self.give_held();
        if self.in_flight.is_some() {
            self.admit(now);
            return;
        }
        let preempted = self.grow();
        // What a victim gave up is for the decode that lacked it, not for the victim itself.
        if !preempted {
            self.admit(now);
        }
        let mut entries = self.plan();
        if entries.is_empty() && preempted {
            self.admit(now);
            entries = self.plan();
        }
        if !entries.is_empty() {
            self.start(entries);
        }
    }

    /// The sequences that the next step is for: all running ones, unless more KV came from peers than a step takes.
    pub(crate) fn step_set(&self) -> Vec<SeqId> {
        self.queues.running.iter().copied().take(self.config.max_running).collect()
    }

    /// Gives first tokens whose sequences have a place by now.
    fn give_held(&mut self) {
        if !self.config.hold_first_token {
            return;
        }
        for id in self.step_set() {
            if let Some(token) = self.sequences.get_mut(&id).and_then(|seq| seq.held.take()) {
                self.answers.push_back(Output::Token { seq: id, token });
            }
        }
    }

    /// Sees to it that every decode of the next step has a block for its token. Whether somebody had to give up his.
    fn grow(&mut self) -> bool {
        let mut preempted = false;
        for id in self.step_set() {
            while self.queues.running.contains(&id) && !self.has_room(id) {
                let victim = self.victim().expect("at least this one");
                self.preempt(victim);
                preempted = true;
            }
        }
        preempted
    }

    fn has_room(&mut self, id: SeqId) -> bool {
        let seq = self.sequences.get_mut(&id).expect("live");
        let wanted = self.blocks.blocks_for(seq.tokens.len());
        assert!(seq.table.len() + 1 >= wanted, "I2: a decode lacks one block at most");
        if seq.table.len() == wanted || self.blocks.grow(&mut seq.table) {
            return true;
        }
        while self.blocks.counts().retained > 0 && self.blocks.counts().free == 0 && self.revoke_first() {}
        let seq = self.sequences.get_mut(&id).expect("live");
        self.blocks.grow(&mut seq.table)
    }

    /// The youngest that may have to grow. Sources never do, and end with their prompt; and the blocks that a push has named to the
    /// protocol would stay leased without it, so that it could wait for ever for room that it takes itself (I8).
    fn victim(&self) -> Option<SeqId> {
        self.queues.running.iter().rev().copied().find(|id| !self.is_source(*id))
    }

    /// Back to the queue without blocks, with all tokens. It keeps its place in the order of arrival, which is before everything
    /// that was not admitted yet.
    fn preempt(&mut self, id: SeqId) {
        assert!(self.in_flight.is_none(), "I3: the runner may write into the blocks");
        let seq = self.sequences.get_mut(&id).expect("live");
        seq.computed = 0;
        seq.usage.preemptions += 1;
        self.blocks.release(std::mem::take(&mut seq.table));
        self.counters.preemptions += 1;
        self.move_to(id, Phase::Waiting);
    }

    fn admit(&mut self, now: Time) {
        while let Some(id) = self.next_to_admit() {
            if !self.try_admit(now, id) && !self.admit_past(now, id) {
                return;
            }
        }
    }

    /// A sequence that computes here finds no blocks, and nothing runs that would free any: what is being received has them. Those
    /// that are to receive as well may pass it, since what they wait for may be what keeps the others' sources from computing; and so
    /// may sources, whose own destinations may hold what the others' destinations wait for (I8).
    fn admit_past(&mut self, now: Time, blocked: SeqId) -> bool {
        let stuck = self.queues.running.is_empty() && self.queues.waiting.contains(&blocked);
        if !stuck {
            return false;
        }
        let has_place = self.queues.receiving.len() < self.config.max_receiving;
        if let Some(next) = self.queues.expecting.first().copied().filter(|_| has_place)
            && self.try_admit(now, next)
        {
            return true;
        }
        let source = self.queues.waiting.iter().copied().find(|id| self.is_source(*id));
        let passes =
            |id: &SeqId| !self.is_source(blocked) && !self.queues.receiving.is_empty() && self.may_send(*id);
        source.filter(passes).is_some_and(|id| self.try_admit(now, id))
    }

    /// The oldest queued sequence whose kind is not at its limit.
    fn next_to_admit(&self) -> Option<SeqId> {
        let Self { queues, config, .. } = self;
        let local = self.next_to_compute().filter(|_| queues.running.len() < config.max_running);
        let remote = queues.expecting.first().filter(|_| queues.receiving.len() < config.max_receiving);
        match (local, remote.copied()) {
            (Some(local), Some(remote)) => Some(min(local, remote)),
            (local, remote) => local.or(remote),
        }
    }

    /// The oldest that wants blocks to compute in. Where sources have no room, that is the oldest which computes for itself.
    fn next_to_compute(&self) -> Option<SeqId> {
        let first = self.queues.waiting.first().copied()?;
        if !self.is_source(first) || self.may_send(first) {
            return Some(first);
        }
        self.queues.waiting.iter().copied().find(|id| !self.is_source(*id))
    }

    fn is_source(&self, id: SeqId) -> bool {
        matches!(self.part(id), Part::Source { .. })
    }

    fn try_admit(&mut self, now: Time, id: SeqId) -> bool {
        // Whoever is alone may have everything: nobody is there to grow.
        let alone = self.queues.running.is_empty() && self.queues.receiving.is_empty();
        let reserve = if alone { 0 } else { self.config.watermark_blocks };
        let seq = self.sequences.get_mut(&id).expect("live");
        seq.chain.extend(&seq.tokens);
        let hashes = seq.chain.full_blocks(self.config.proto.shape.block_units as usize);
        let tokens = seq.tokens.len();
        let Some(admission) = self.allocate(tokens, &hashes, reserve) else { return false };
        let seq = self.sequences.get_mut(&id).expect("live");
        seq.table = admission.table;
        seq.computed = admission.hit_blocks * self.blocks.block_tokens();
        if !std::mem::replace(&mut seq.admitted, true) {
            seq.usage.hit_tokens = seq.computed as u32;
            seq.usage.cached_tokens = seq.usage.hit_tokens;
            self.counters.prefix_queried_tokens += seq.tokens.len() as u64;
            self.counters.prefix_hit_tokens += seq.computed as u64;
        }
        if matches!(seq.part, Part::Destination { .. }) {
            self.move_to(id, Phase::Receiving);
            self.on_allocated(id, admission.hit_blocks);
        } else if !self.read_back(now, id, admission.hit_blocks) {
            self.move_to(id, Phase::Running);
            self.on_progress(id);
        }
        true
    }

    /// Blocks for a sequence; what is kept for conversations gives way, the first to end first, but only if that is enough.
    fn allocate(&mut self, tokens: usize, full_hashes: &[BlockHash], reserve: usize) -> Option<Admission> {
        loop {
            if let Some(admission) = self.blocks.admit(tokens, full_hashes, reserve) {
                return Some(admission);
            }
            if !self.blocks.would_admit(tokens, full_hashes, reserve) || !self.revoke_first() {
                return None;
            }
        }
    }

    fn plan(&self) -> Vec<BatchEntry> {
        let mut budget = Budget::new(self.config.step_tokens, self.config.max_running);
        let set = self.step_set();
        let (decodes, prefills): (Vec<_>, Vec<_>) =
            set.iter().map(|id| &self.sequences[id]).partition(|seq| seq.is_decoding());
        let mut entries = Vec::with_capacity(set.len());
        for seq in decodes.into_iter().chain(prefills) {
            let Some(count) = budget.take(seq.remaining()) else { break };
            let entry = seq.entry(count, self.blocks.block_tokens());
            let start = entry.start as usize;
            for id in seq.table.written(start, entry.end(), self.blocks.block_tokens()) {
                self.blocks.pool().assert_writable(*id);
            }
            entries.push(entry);
        }
        entries
    }

    fn start(&mut self, entries: Vec<BatchEntry>) {
        // Of those that got their place just now: before the tokens of the step.
        self.give_held();
        self.steps += 1;
        self.counters.steps += 1;
        let planned = entries.iter().map(|entry| Planned {
            seq: entry.seq,
            tokens: entry.tokens.len(),
            end: entry.end(),
            samples: entry.sample.is_some(),
        });
        let entries_planned = planned.collect();
        self.in_flight = Some(InFlight { step: self.steps, entries: entries_planned, retiring: Vec::new() });
        self.outputs.push_back(Output::Step(Batch { step: self.steps, entries }));
    }
}
