//! What an engine did and when, as spans: made of what goes into the core and what comes out of it, and of nothing else. No rule is
//! here, and nothing depends on it. docs/tracing.md says what the spans are called and what they mean.

mod leg;

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use baton_engine::{Batch, Input, Output, Request};
use baton_proto::codec::{self, Notification};
use baton_proto::{Direction, Message, PostId};
use baton_trace::{Args, Lane, Lanes, Span, TraceParent, Tracer};
use baton_types::{EngineId, SeqId, Time, TransferId};

use leg::{Leg, Recorder};

/// Legs that are followed at a time (I11). Each has at most one per transfer thread's post.
const MAX_LEGS: usize = 8192;
/// The first slot is the process's own.
const STEPS: Lane = Lane { slot: 0, row: 0, name: "steps" };

/// Where a request came from.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    /// When its first byte came.
    pub arrived: Instant,
    /// The span that it is a part of, by its client's word.
    pub parent: Option<TraceParent>,
    /// What its client calls it.
    pub request_id: Option<String>,
}

/// How large what is moved is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnitSize {
    /// Of one unit, over all ranks.
    pub bytes: usize,
    pub ranks: u32,
}

#[derive(Debug)]
pub(crate) struct Timeline {
    out: Recorder,
    unit: UnitSize,
    legs: BTreeMap<SeqId, Leg>,
    /// Hand-overs and readings of the legs above.
    transfers: HashMap<TransferId, SeqId>,
    /// Each ends with one Moved.
    posts: HashMap<PostId, Slice>,
    /// As many as the protocol knows peers.
    peer_ranks: HashMap<EngineId, u32>,
    step: Option<Step>,
    /// What the input at hand says of its transfer: posts that follow, and name none, belong to it.
    heard: Option<TransferId>,
    lanes: Lanes,
    max_legs: usize,
}

/// Units on their way.
#[derive(Debug)]
struct Slice {
    seq: SeqId,
    row: Option<u32>,
    since: Time,
    args: Args,
}

/// What the runner computes.
#[derive(Debug)]
struct Step {
    number: u64,
    since: Time,
    sequences: usize,
    tokens: usize,
    shown: Vec<Entry>,
}

/// A part of a step that is a span of its sequence: a chunk, or the first token that is decoded here.
#[derive(Debug)]
struct Entry {
    seq: SeqId,
    start: u32,
    tokens: usize,
    samples: bool,
    chunk: bool,
}

impl Timeline {
    pub fn new(tracer: Tracer, unit: UnitSize) -> Self {
        Self {
            out: Recorder { tracer, epoch: Instant::now(), epoch_ns: 0 },
            unit,
            legs: BTreeMap::new(),
            transfers: HashMap::new(),
            posts: HashMap::new(),
            peer_ranks: HashMap::new(),
            step: None,
            heard: None,
            lanes: Lanes::from(1),
            max_legs: MAX_LEGS,
        }
    }

    /// `epoch` is the core's time zero.
    pub fn begin(&mut self, epoch: Instant) {
        let epoch_ns = self.out.tracer.unix_ns(epoch);
        self.out = Recorder { epoch, epoch_ns, ..self.out.clone() };
    }

    /// Before the core hears of the request.
    pub fn submitted(&mut self, now: Time, request: &Request, origin: Origin) {
        if self.legs.len() >= self.max_legs {
            // What has ended only waits for its last slices.
            match self.legs.iter().find(|(_, leg)| leg.ended).map(|(seq, _)| *seq) {
                Some(seq) => self.forget(seq),
                None => return self.out.tracer.add_lost(1),
            }
        }
        let arrived = Time::ZERO + origin.arrived.saturating_duration_since(self.out.epoch);
        let leg = Leg::new(&self.out, self.lanes.take(), request, origin, arrived.min(now), now);
        for transfer in leg.transfers() {
            // An id that is in use is another leg's, and this one is about to be refused.
            self.transfers.entry(transfer).or_insert(request.seq);
        }
        self.legs.insert(request.seq, leg);
    }

    pub fn input(&mut self, now: Time, input: &Input) {
        self.heard = None;
        match input {
            Input::Stepped(result) => self.step_ended(now, result.step, true),
            Input::StepFailed { step } => self.step_ended(now, *step, false),
            Input::Proto(baton_proto::Input::Moved { post, ok }) => self.moved(now, *post, *ok),
            Input::Proto(baton_proto::Input::PathLost { engine }) => {
                self.peer_ranks.remove(engine);
            }
            Input::Proto(baton_proto::Input::Received { frame, .. }) => {
                // What is none is the protocol's to judge.
                if let Ok(message) = codec::decode(frame) {
                    self.heard(now, &message);
                }
            }
            _ => {}
        }
    }

    pub fn output(&mut self, now: Time, output: &Output) {
        match output {
            Output::Step(batch) => self.step_begins(now, batch),
            Output::Token { seq, .. } => {
                if let Some(leg) = self.legs.get_mut(seq) {
                    leg.token(&self.out, now);
                }
            }
            Output::Finished { seq, reason, usage, handle, .. } => {
                if let Some(leg) = self.legs.get_mut(seq) {
                    leg.finished(&self.out, now, *reason, usage, handle.is_some());
                    self.forget_if_over(*seq);
                }
            }
            Output::Refused { seq, why } => {
                if let Some(leg) = self.legs.get_mut(seq) {
                    leg.refused(&self.out, now, *why);
                    self.forget_if_over(*seq);
                }
            }
            Output::Proto(baton_proto::Output::Send { message, .. }) => self.said(now, message),
            Output::Proto(baton_proto::Output::AddPath { engine, shape, .. }) => {
                self.peer_ranks.insert(engine.clone(), shape.ranks);
            }
            Output::Proto(baton_proto::Output::Post { post, engine, direction, pairs, notify, .. }) => {
                let named = notify.as_deref().and_then(|bytes| Notification::decode(bytes).ok());
                let Some(transfer) = named.map(|named| named.transfer).or(self.heard) else { return };
                let ranks = self.unit.ranks.max(self.peer_ranks.get(engine).copied().unwrap_or(1));
                let direction = match direction {
                    Direction::Read => "read",
                    Direction::Write => "write",
                };
                let args = Args::default()
                    .text("direction", direction)
                    .int("units", pairs.len())
                    .int("bytes", pairs.len() * self.unit.bytes / ranks.max(1) as usize)
                    .text("transfer", transfer.to_string())
                    .text("peer", engine.to_string());
                self.posted(now, *post, transfer, args);
            }
            _ => {}
        }
    }

    /// The engine ends, and whatever is left with it.
    pub fn close(mut self, now: Time) {
        for leg in self.legs.values_mut().filter(|leg| !leg.ended) {
            leg.cut_off(&self.out, now);
        }
    }

    fn step_begins(&mut self, now: Time, batch: &Batch) {
        let mut shown = Vec::new();
        for entry in &batch.entries {
            let Some(leg) = self.legs.get_mut(&entry.seq) else { continue };
            let chunk = leg.is_chunk(entry);
            if chunk {
                leg.computes(&self.out, now);
            }
            if chunk || leg.decodes_first(&self.out, now) {
                let (seq, start, tokens) = (entry.seq, entry.start, entry.tokens.len());
                shown.push(Entry { seq, start, tokens, samples: entry.sample.is_some(), chunk });
            }
        }
        let (sequences, tokens) = (batch.entries.len(), batch.tokens());
        self.step = Some(Step { number: batch.step, since: now, sequences, tokens, shown });
    }

    fn step_ended(&mut self, now: Time, number: u64, ok: bool) {
        let Some(step) = self.step.take().filter(|step| step.number == number) else { return };
        for Entry { seq, start, tokens, samples, chunk } in step.shown {
            // It may have been aborted meanwhile.
            let Some(leg) = self.legs.get(&seq) else { continue };
            let args = Args::default().int("step", number);
            if chunk {
                let args = args.int("start", start).int("tokens", tokens);
                leg.chunk(&self.out, step.since, now, args, ok, samples);
            } else {
                leg.first_step(&self.out, step.since, now, args, ok);
            }
        }
        let (from, to) = (self.out.ns(step.since), self.out.ns(now));
        let args =
            Args::default().int("step", number).int("sequences", step.sequences).int("tokens", step.tokens);
        self.out.tracer.record(Span { args, failed: !ok, ..Span::new("step", STEPS, from, to) });
    }

    fn posted(&mut self, now: Time, post: PostId, transfer: TransferId, args: Args) {
        let Some(seq) = self.transfers.get(&transfer).copied() else { return };
        let Some(leg) = self.legs.get_mut(&seq) else { return };
        let row = leg.begin_slice();
        self.posts.insert(post, Slice { seq, row, since: now, args });
    }

    fn moved(&mut self, now: Time, post: PostId, ok: bool) {
        let Some(Slice { seq, row, since, args }) = self.posts.remove(&post) else { return };
        let Some(leg) = self.legs.get_mut(&seq) else { return };
        leg.end_slice(&self.out, row, since, now, args, ok);
        self.forget_if_over(seq);
    }

    /// What this engine says to another.
    fn said(&mut self, now: Time, message: &Message) {
        let Some((seq, transfer)) = self.about(message) else { return };
        let Some(leg) = self.legs.get_mut(&seq) else { return };
        let way = leg.way(transfer);
        match message {
            Message::Register { .. } => leg.registers(&self.out, now),
            Message::Claim { attempt, .. } => leg.claims(&self.out, now, way, *attempt),
            Message::Done { .. } => leg.has_read(&self.out, now, way),
            Message::Abort { .. } => leg.gives_up(&self.out, now, way),
            Message::Aborted { .. } => leg.owes_nothing(),
            _ => {}
        }
        self.forget_if_over(seq);
    }

    /// What another engine says to this one.
    fn heard(&mut self, now: Time, message: &Message) {
        let Some((seq, transfer)) = self.about(message) else { return };
        let Some(leg) = self.legs.get_mut(&seq) else { return };
        let way = leg.way(transfer);
        match message {
            Message::Claim { .. } => leg.is_claimed(&self.out, now),
            Message::Granted { .. } => leg.answered(&self.out, now, way, true),
            Message::Declined { .. } => {
                leg.answered(&self.out, now, way, false);
                leg.gives_up(&self.out, now, way);
            }
            Message::DoneAck { .. } | Message::Abort { .. } | Message::Aborted { .. } => leg.owes_nothing(),
            _ => {}
        }
        self.heard = Some(transfer);
        self.forget_if_over(seq);
    }

    /// Whose leg a message is about.
    fn about(&self, message: &Message) -> Option<(SeqId, TransferId)> {
        let transfer = match message {
            Message::Register { transfer, .. }
            | Message::Claim { transfer, .. }
            | Message::Granted { transfer, .. }
            | Message::Declined { transfer, .. }
            | Message::Done { transfer, .. }
            | Message::DoneAck { transfer }
            | Message::Abort { transfer }
            | Message::Aborted { transfer } => transfer,
            _ => return None,
        };
        Some((*self.transfers.get(transfer)?, *transfer))
    }

    fn forget_if_over(&mut self, seq: SeqId) {
        if self.legs.get(&seq).is_some_and(Leg::is_over) {
            self.forget(seq);
        }
    }

    fn forget(&mut self, seq: SeqId) {
        let Some(leg) = self.legs.remove(&seq) else { return };
        self.lanes.give_back(leg.slot);
        for transfer in leg.transfers() {
            if self.transfers.get(&transfer) == Some(&seq) {
                self.transfers.remove(&transfer);
            }
        }
    }
}

#[cfg(test)]
mod tests;
