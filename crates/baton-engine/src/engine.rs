//! Everything that an engine decides, but for the protocol: what it tells the protocol are commands, what it hears are events.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use baton_types::{Mutant, SeqId, Time, TokenId, TransferId};

use crate::action::{FinishReason, HandOff, Handle, Input, Output, Refusal, Request, SeqFailure};
use crate::batch::StepResult;
use crate::block_manager::BlockManager;
use crate::block_table::BlockTable;
use crate::config::Config;
use crate::retention::Retentions;
use crate::room::Directions;
use crate::sequence::{Part, Phase, Sequence};
use crate::stats::{Counters, Stats};
use crate::transfer_hooks::Transfer;

#[derive(Debug)]
pub struct Engine {
    pub(crate) config: Config,
    pub(crate) blocks: BlockManager,
    pub(crate) sequences: BTreeMap<SeqId, Sequence>,
    pub(crate) queues: Queues,
    pub(crate) transfers: BTreeMap<TransferId, Transfer>,
    pub(crate) retentions: Retentions,
    pub(crate) in_flight: Option<InFlight>,
    pub(crate) steps: u64,
    pub(crate) last_seq: Option<SeqId>,
    pub(crate) draining: bool,
    pub(crate) asked: Directions,
    pub(crate) counters: Counters,
    pub(crate) commands: VecDeque<baton_proto::Input>,
    pub(crate) outputs: VecDeque<Output>,
    /// What requests are told: behind all other outputs, so that nobody who computes or copies waits for those who only listen.
    pub(crate) answers: VecDeque<Output>,
}

/// Each live sequence is in the one that its phase names, in the order of arrival.
#[derive(Debug, Default)]
pub struct Queues {
    pub waiting: BTreeSet<SeqId>,
    pub expecting: BTreeSet<SeqId>,
    pub receiving: BTreeSet<SeqId>,
    pub running: BTreeSet<SeqId>,
}

impl Queues {
    pub fn of(&mut self, phase: Phase) -> &mut BTreeSet<SeqId> {
        match phase {
            Phase::Waiting => &mut self.waiting,
            Phase::Expecting => &mut self.expecting,
            Phase::Receiving => &mut self.receiving,
            Phase::Running => &mut self.running,
        }
    }

    /// Sequences without blocks.
    pub fn queued(&self) -> usize {
        self.waiting.len() + self.expecting.len()
    }
}

/// The step that the runner is computing.
#[derive(Debug)]
pub struct InFlight {
    pub step: u64,
    pub entries: Vec<Planned>,
    /// Of sequences that ended meanwhile: the runner still writes there.
    pub retiring: Vec<BlockTable>,
}

#[derive(Clone, Copy, Debug)]
pub struct Planned {
    pub seq: SeqId,
    pub tokens: usize,
    pub end: usize,
    pub samples: bool,
}

impl Engine {
    /// # Panics
    /// If the configuration is not valid.
    pub fn new(config: Config) -> Self {
        config.validate().expect("the driver validates the configuration");
        let blocks = BlockManager::new(
            config.num_blocks,
            config.block_tokens as usize,
            config.prefix_cache,
            config.mutation,
        );
        Self {
            config,
            blocks,
            sequences: BTreeMap::new(),
            queues: Queues::default(),
            transfers: BTreeMap::new(),
            retentions: Retentions::default(),
            in_flight: None,
            steps: 0,
            last_seq: None,
            draining: false,
            asked: Directions::default(),
            counters: Counters::default(),
            commands: VecDeque::new(),
            outputs: VecDeque::new(),
            answers: VecDeque::new(),
        }
    }

    /// Everything but what is the protocol's.
    pub fn handle(&mut self, now: Time, input: Input) {
        match input {
            Input::Submit(request) => self.submit(now, request),
            Input::Abort { seq } => self.interrupt(seq, FinishReason::Aborted),
            Input::Stop { seq } => self.interrupt(seq, FinishReason::Stop),
            Input::Stepped(result) => self.stepped(result),
            Input::StepFailed { step } => self.step_failed(step),
            Input::Drain => {
                self.draining = true;
                while self.revoke_first() {}
            }
            Input::Proto(_) | Input::Tick => unreachable!("the protocol's own"),
        }
    }

    fn submit(&mut self, now: Time, mut request: Request) {
        assert!(self.last_seq < Some(request.seq), "sequence ids count up");
        self.last_seq = Some(request.seq);
        self.counters.requests += 1;
        // I13: no request chooses which model's KV it may share.
        request.salt.model.clone_from(&self.config.model);
        if self.config.mutation.is(Mutant::TenantNotSalted) {
            request.salt.tenant.clear();
        }
        let refusal = self.refusal(&request);
        if matches!(refusal, None | Some(Refusal::KvInFlight(_))) {
            self.note_direction(&request.hand_off);
        }
        if let Some(why) = refusal {
            self.counters.refuse(why);
            self.answers.push_back(Output::Refused { seq: request.seq, why });
            self.on_refused(request.hand_off, why);
            return;
        }
        let (longest, overdue) = (self.config.max_len(), now + self.config.kv_timeout);
        let seq = Sequence::new(request, self.config.unit_tokens(), longest, overdue);
        self.counters.prompt_tokens += seq.prompt_len as u64;
        self.on_submitted(&seq);
        self.queues.of(seq.phase).insert(seq.id);
        self.sequences.insert(seq.id, seq);
    }

    fn refusal(&self, request: &Request) -> Option<Refusal> {
        let tokens = request.prompt.len();
        let blocks = self.blocks.blocks_for(tokens);
        let limit = self.config.max_model_len;
        match &request.hand_off {
            HandOff::FromPeer { peer, .. } if peer.engine == self.config.proto.engine => {
                return Some(Refusal::OwnPeer);
            }
            HandOff::FromPeer { transfer, .. } | HandOff::ToPeer { transfer, .. }
                if self.transfers.contains_key(transfer) =>
            {
                return Some(Refusal::TransferInUse);
            }
            _ => {}
        }
        if tokens == 0 || request.max_tokens == 0 {
            Some(Refusal::Empty)
        } else if tokens >= limit {
            Some(Refusal::ContextTooLong { tokens: tokens as u32, limit: limit as u32 })
        } else if blocks > self.config.num_blocks as usize {
            Some(Refusal::PoolTooSmall { blocks: blocks as u32, limit: self.config.num_blocks })
        } else if self.draining {
            Some(Refusal::Draining)
        } else if let Some(limit) = self.kv_limit(&request.hand_off, blocks) {
            Some(Refusal::KvInFlight(limit))
        } else if self.queues.queued() >= self.config.max_waiting {
            Some(Refusal::Overloaded)
        } else {
            None
        }
    }

    /// From outside, in whatever phase the sequence is.
    fn interrupt(&mut self, seq: SeqId, reason: FinishReason) {
        if self.sequences.contains_key(&seq) {
            self.finish(seq, reason, None);
        }
    }

    fn stepped(&mut self, result: StepResult) {
        let step = self.in_flight.take().expect("a step is reported once");
        assert_eq!(step.step, result.step, "the step that was asked for");
        let mut sampled = result.sampled.into_iter();
        for planned in step.entries {
            let token = planned.samples.then(|| {
                let (seq, token) = sampled.next().expect("a token for each entry that asked");
                assert_eq!(seq, planned.seq, "in the order of the entries");
                token
            });
            self.counters.computed_tokens += planned.tokens as u64;
            let Some(seq) = self.sequences.get_mut(&planned.seq) else { continue };
            seq.computed = planned.end;
            self.publish(planned.seq);
            self.on_progress(planned.seq);
            if let Some(token) = token {
                self.append(planned.seq, token);
            }
        }
        for table in step.retiring {
            self.blocks.release(table);
        }
    }

    fn step_failed(&mut self, step: u64) {
        let failed = self.in_flight.take().expect("a step is reported once");
        assert_eq!(failed.step, step, "the step that was asked for");
        for planned in failed.entries {
            self.interrupt(planned.seq, FinishReason::Failed(SeqFailure::Step));
        }
        for table in failed.retiring {
            self.blocks.release(table);
        }
    }

    /// Lets others share the blocks that are full and complete by now (I2).
    pub(crate) fn publish(&mut self, seq: SeqId) {
        let seq = self.sequences.get_mut(&seq).expect("live");
        let full = seq.computed / self.blocks.block_tokens();
        if full <= seq.table.published {
            return;
        }
        seq.chain.extend(&seq.tokens);
        let hashes = seq.chain.full_blocks(self.config.proto.shape.block_units as usize);
        self.blocks.publish(&mut seq.table, &hashes[..full]);
    }

    /// The token after all tokens so far: sampled here, or by the peer that computed the prompt.
    pub(crate) fn append(&mut self, id: SeqId, token: TokenId) {
        let holds = self.config.hold_first_token && !self.step_set().contains(&id);
        let seq = self.sequences.get_mut(&id).expect("live");
        let ending = seq.append(token);
        self.counters.generated_tokens += 1;
        if holds && ending.is_none() && seq.usage.completion_tokens == 1 {
            seq.held = Some(token);
            return;
        }
        self.answers.push_back(Output::Token { seq: id, token });
        if let Some(reason) = ending {
            let handle = self.on_finished(id, token);
            self.finish(id, reason, handle);
        }
    }

    /// The one way in which a sequence ends (I4). Without a handle, a transfer that it was part of ends with it.
    pub(crate) fn finish(&mut self, id: SeqId, reason: FinishReason, handle: Option<Handle>) {
        let mut seq = self.sequences.remove(&id).expect("live");
        assert!(self.queues.of(seq.phase).remove(&id), "in the queue of its phase");
        if let Some(token) = seq.held {
            self.answers.push_back(Output::Token { seq: id, token });
        }
        let well = matches!(reason, FinishReason::Stop | FinishReason::Length) && seq.part == Part::Whole;
        let retained = if well && seq.phase == Phase::Running { self.retain(&mut seq) } else { None };
        match reason {
            FinishReason::Stop => self.counters.finished_stop += 1,
            FinishReason::Length => self.counters.finished_length += 1,
            FinishReason::Aborted => self.counters.aborted += 1,
            FinishReason::Failed(_) => self.counters.failed += 1,
        }
        self.answers.push_back(Output::Finished { seq: id, reason, usage: seq.usage, handle, retained });
        let received = self.on_ended(&seq, handle.is_some());
        match (received, &mut self.in_flight) {
            (Some(first), _) => self.blocks.abandon(seq.table, first),
            (None, Some(step)) if step.entries.iter().any(|planned| planned.seq == id) => {
                if !self.config.mutation.is(Mutant::LeakRetiringTable) {
                    step.retiring.push(seq.table);
                }
            }
            (None, _) => self.blocks.release(seq.table),
        }
    }

    /// Moves a live sequence to another queue.
    pub(crate) fn move_to(&mut self, id: SeqId, phase: Phase) {
        let seq = self.sequences.get_mut(&id).expect("live");
        assert!(self.queues.of(seq.phase).remove(&id), "in the queue of its phase");
        seq.phase = phase;
        self.queues.of(phase).insert(id);
    }

    pub fn stats(&self) -> Stats {
        Stats {
            running: self.queues.running.len(),
            waiting: self.queues.queued(),
            receiving: self.queues.receiving.len(),
            transfers: self.transfers.len(),
            retentions: self.retentions.len(),
            draining: self.draining,
            blocks: self.blocks.counts(),
            counters: self.counters,
        }
    }

    /// Whether nothing is left: no sequence, no step, no block that a peer may touch.
    pub fn is_idle(&self) -> bool {
        self.sequences.is_empty() && self.in_flight.is_none() && self.transfers.is_empty()
    }

    pub(crate) fn part(&self, id: SeqId) -> &Part {
        &self.sequences[&id].part
    }
}
