//! One request in one engine: what it waits for, and the spans that come of it.

use std::time::Instant;

use baton_engine::{BatchEntry, FinishReason, HandOff, Refusal, Request, Usage};
use baton_trace::{Args, Flow, Kind, Lane, Span, SpanContext, Tracer};
use baton_types::{Time, TransferId, TransferMode};

use super::Origin;

const LEG_ROW: (u32, &str) = (0, "request");
const PHASE_ROW: (u32, &str) = (1, "phases");
const HAND_OFF_ROW: (u32, &str) = (2, "hand-off");
const READBACK_ROW: (u32, &str) = (3, "readback");
/// From here on, as many as are in flight at once.
const FIRST_SLICE_ROW: u32 = 4;

/// Where spans go, and how the core's time is the wall's.
#[derive(Clone, Debug)]
pub(super) struct Recorder {
    pub tracer: Tracer,
    /// The core's time zero, and what the wall clock showed then.
    pub epoch: Instant,
    pub epoch_ns: u64,
}

impl Recorder {
    pub fn ns(&self, time: Time) -> u64 {
        self.epoch_ns.saturating_add(time.0)
    }

    fn child(&self, leg: &Leg, name: &'static str, row: (u32, &'static str), from: Time, to: Time) -> Span {
        let lane = Lane { slot: leg.slot, row: row.0, name: row.1 };
        let context = Some(self.tracer.child(&leg.context, Kind::Internal));
        Span { context, ..Span::new(name, lane, self.ns(from), self.ns(to)) }
    }
}

/// Which of a leg's transfers: the hand-over between prefill and decode, or the reading of an earlier turn's KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    HandOff,
    Readback,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Whole,
    Source,
    Destination,
}

#[derive(Debug)]
pub(super) struct Leg {
    pub slot: u32,
    /// The request has been answered; slices may still be on their way.
    pub ended: bool,
    context: SpanContext,
    request_id: Option<String>,
    part: Part,
    hand_off: Option<(TransferId, TransferMode)>,
    readback: Option<TransferId>,
    seq: u64,
    prompt_tokens: usize,
    arrived: Time,
    submitted: Time,
    admitted: bool,
    /// KV is on its way here, or about to be.
    awaits: Option<(Way, Time)>,
    registered: Option<Time>,
    /// The destination's units are claimed, or need not be any more.
    is_claimed: bool,
    claims: [Option<(Time, u32)>; 2],
    first_token: Option<Time>,
    /// Since the first token is there, whether anybody has been told or not.
    decoding_since: Option<Time>,
    tokens: u64,
    decodes: bool,
    /// A bit for each row of slices in use.
    rows: u64,
    moving: u32,
    /// Push: the destination has not said yet that it has everything.
    owes: bool,
}

impl Leg {
    pub fn new(
        out: &Recorder,
        slot: u32,
        request: &Request,
        origin: Origin,
        arrived: Time,
        now: Time,
    ) -> Self {
        let (part, hand_off) = match &request.hand_off {
            HandOff::None => (Part::Whole, None),
            HandOff::ToPeer { transfer, mode } => (Part::Source, Some((*transfer, *mode))),
            HandOff::FromPeer { transfer, mode, .. } => (Part::Destination, Some((*transfer, *mode))),
        };
        let leg = Self {
            slot,
            ended: false,
            context: out.tracer.continue_from(origin.parent),
            request_id: origin.request_id,
            part,
            hand_off,
            readback: request.reuse.as_ref().map(|reuse| reuse.transfer),
            seq: request.seq.0,
            prompt_tokens: request.prompt.len(),
            arrived,
            submitted: now,
            admitted: false,
            awaits: None,
            registered: None,
            is_claimed: false,
            claims: [None; 2],
            first_token: None,
            decoding_since: None,
            tokens: 0,
            decodes: false,
            rows: 0,
            moving: 0,
            owes: false,
        };
        out.tracer.record(out.child(&leg, "read", PHASE_ROW, arrived, now));
        leg
    }

    pub fn transfers(&self) -> impl Iterator<Item = TransferId> + use<> {
        self.hand_off.map(|(transfer, _)| transfer).into_iter().chain(self.readback)
    }

    pub fn way(&self, transfer: TransferId) -> Way {
        if self.readback == Some(transfer) { Way::Readback } else { Way::HandOff }
    }

    pub fn transfer(&self, way: Way) -> Option<TransferId> {
        match way {
            Way::HandOff => self.hand_off.map(|(transfer, _)| transfer),
            Way::Readback => self.readback,
        }
    }

    /// Nothing more will be heard of it.
    pub fn is_over(&self) -> bool {
        self.ended && self.moving == 0 && !self.owes
    }

    pub fn owes_nothing(&mut self) {
        self.owes = false;
    }

    /// It has its blocks. When exactly, the core keeps to itself; this is the first that follows from it.
    fn admit(&mut self, out: &Recorder, now: Time) {
        if !std::mem::replace(&mut self.admitted, true) {
            out.tracer.record(out.child(self, "queue", PHASE_ROW, self.submitted, now));
        }
    }

    /// Whether an entry of a step is a part of a prompt, or of what is computed again; any other is one decoded token.
    pub fn is_chunk(&self, entry: &BatchEntry) -> bool {
        entry.tokens.len() > 1 || (entry.start as usize) < self.prompt_tokens
    }

    /// A step decodes the token behind those that are there, even if nobody has been told of the last of them yet. True once.
    pub fn decodes_first(&mut self, out: &Recorder, now: Time) -> bool {
        self.admit(out, now);
        self.waited(out, now, false);
        self.decoding_since.get_or_insert(now);
        !std::mem::replace(&mut self.decodes, true)
    }

    /// A step computes a chunk.
    pub fn computes(&mut self, out: &Recorder, now: Time) {
        self.admit(out, now);
        // It would not compute what it still hoped to get.
        self.waited(out, now, true);
    }

    pub fn chunk(&self, out: &Recorder, from: Time, to: Time, args: Args, ok: bool, last: bool) {
        let handed_over = self.hand_off.filter(|_| last && self.part == Part::Source);
        let flow = handed_over.map(|(transfer, _)| Flow::Out(arrow(transfer)));
        let span = out.child(self, "prefill chunk", PHASE_ROW, from, to);
        out.tracer.record(Span { args, failed: !ok, flow, ..span });
    }

    pub fn first_step(&self, out: &Recorder, from: Time, to: Time, args: Args, ok: bool) {
        let span = out.child(self, "first step", PHASE_ROW, from, to);
        out.tracer.record(Span { args, failed: !ok, ..span });
    }

    pub fn token(&mut self, out: &Recorder, now: Time) {
        self.waited(out, now, false);
        self.first_token.get_or_insert(now);
        self.decoding_since.get_or_insert(now);
        self.tokens += 1;
    }

    /// The end of a wait for KV, if there is one.
    fn waited(&mut self, out: &Recorder, now: Time, failed: bool) {
        let Some((way, since)) = self.awaits.take() else { return };
        let (name, flow) = match way {
            Way::HandOff => ("receiving", self.transfer(way).map(|id| Flow::InAtEnd(arrow(id)))),
            Way::Readback => ("readback", None),
        };
        let span = out.child(self, name, PHASE_ROW, since, now);
        out.tracer.record(Span { args: self.transfer_args(way), failed, flow, ..span });
    }

    fn transfer_args(&self, way: Way) -> Args {
        match self.transfer(way) {
            Some(transfer) => Args::default().text("transfer", transfer.to_string()),
            None => Args::default(),
        }
    }

    pub fn registers(&mut self, out: &Recorder, now: Time) {
        self.admit(out, now);
        if self.registered.is_none() && !self.ended {
            self.registered = Some(now);
            self.awaits = Some((Way::HandOff, now));
        }
    }

    /// A source has taken up what was registered.
    pub fn is_claimed(&mut self, out: &Recorder, now: Time) {
        let Some(since) = self.registered.filter(|_| !self.is_claimed) else { return };
        self.is_claimed = true;
        let span = out.child(self, "registration", HAND_OFF_ROW, since, now);
        out.tracer.record(Span { args: self.transfer_args(Way::HandOff), ..span });
    }

    pub fn claims(&mut self, out: &Recorder, now: Time, way: Way, attempt: u32) {
        let reads = way == Way::Readback || self.part == Part::Destination;
        if reads && attempt == 0 && !self.ended {
            self.admit(out, now);
            self.awaits = Some((way, now));
        }
        self.claims[way as usize].get_or_insert((now, attempt));
    }

    pub fn answered(&mut self, out: &Recorder, now: Time, way: Way, granted: bool) {
        let Some((since, attempt)) = self.claims[way as usize].take() else { return };
        let row = match way {
            Way::HandOff => HAND_OFF_ROW,
            Way::Readback => READBACK_ROW,
        };
        let args = self.transfer_args(way).int("attempt", attempt);
        let span = out.child(self, "claim", row, since, now);
        out.tracer.record(Span { args, failed: !granted, ..span });
    }

    /// A reader says that it has everything.
    pub fn has_read(&mut self, out: &Recorder, now: Time, way: Way) {
        if way == Way::Readback {
            self.waited(out, now, false);
        }
    }

    pub fn gives_up(&mut self, out: &Recorder, now: Time, way: Way) {
        if self.awaits.is_some_and(|(awaited, _)| awaited == way) {
            self.waited(out, now, true);
        }
        if way == Way::HandOff {
            self.owes = false;
        }
    }

    /// The row of a new slice; none if there are too many at once to show them all.
    pub fn begin_slice(&mut self) -> Option<u32> {
        self.moving += 1;
        let row = self.rows.trailing_ones();
        (row < Lane::ROWS - FIRST_SLICE_ROW).then(|| {
            self.rows |= 1 << row;
            row
        })
    }

    pub fn end_slice(
        &mut self,
        out: &Recorder,
        row: Option<u32>,
        since: Time,
        now: Time,
        args: Args,
        ok: bool,
    ) {
        self.moving -= 1;
        let Some(row) = row else { return out.tracer.add_lost(1) };
        self.rows &= !(1 << row);
        let span = out.child(self, "slice", (FIRST_SLICE_ROW + row, "slices"), since, now);
        out.tracer.record(Span { args, failed: !ok, ..span });
    }

    pub fn finished(
        &mut self,
        out: &Recorder,
        now: Time,
        reason: FinishReason,
        usage: &Usage,
        handed_over: bool,
    ) {
        let (outcome, failed) = match reason {
            FinishReason::Stop => ("stop".to_owned(), false),
            FinishReason::Length => ("length".to_owned(), false),
            FinishReason::Aborted => ("aborted".to_owned(), false),
            FinishReason::Failed(why) => (format!("failed: {why:?}"), true),
        };
        let args = Args::default()
            .int("prompt_tokens", usage.prompt_tokens)
            .int("hit_tokens", usage.hit_tokens)
            .int("cached_tokens", usage.cached_tokens)
            .int("received_tokens", usage.received_tokens)
            .int("completion_tokens", usage.completion_tokens)
            .int("preemptions", usage.preemptions);
        let pushes = self.hand_off.is_some_and(|(_, mode)| mode == TransferMode::Push);
        self.owes = handed_over && pushes && self.part == Part::Source;
        self.end(out, now, outcome, failed, args);
    }

    pub fn refused(&mut self, out: &Recorder, now: Time, why: Refusal) {
        self.end(out, now, format!("refused: {why:?}"), true, Args::default());
    }

    pub fn cut_off(&mut self, out: &Recorder, now: Time) {
        self.end(out, now, "cut off".to_owned(), true, Args::default());
    }

    fn end(&mut self, out: &Recorder, now: Time, outcome: String, failed: bool, usage: Args) {
        self.waited(out, now, true);
        if let Some(first) = self.decoding_since.filter(|_| self.part != Part::Source) {
            let span = out.child(self, "decoding", PHASE_ROW, first, now);
            out.tracer.record(Span { args: Args::default().int("tokens", self.tokens), ..span });
        }
        self.ended = true;
        let name = match self.part {
            Part::Whole => "whole",
            Part::Source => "prefill",
            Part::Destination => "decode",
        };
        let mut args = Args::default().text("outcome", outcome).int("seq", self.seq);
        if let Some(id) = self.request_id.take() {
            args = args.text("request", id);
        }
        if let Some((transfer, mode)) = self.hand_off {
            args = args.text("transfer", transfer.to_string()).text("mode", mode_name(mode));
        }
        args.0.extend(usage.0);
        let lane = Lane { slot: self.slot, row: LEG_ROW.0, name: LEG_ROW.1 };
        let (from, to) = (out.ns(self.arrived), out.ns(now));
        let events = self.first_token.map(|at| ("first token", out.ns(at))).into_iter().collect();
        let flow = self.context.parent.map(|parent| Flow::In(parent.0));
        let context = Some(self.context);
        out.tracer.record(Span { context, args, failed, events, flow, ..Span::new(name, lane, from, to) });
    }
}

fn mode_name(mode: TransferMode) -> &'static str {
    match mode {
        TransferMode::Pull => "pull",
        TransferMode::EarlyPull => "early-pull",
        TransferMode::Push => "push",
    }
}

/// Both sides of a hand-over draw its arrow by the same number.
fn arrow(transfer: TransferId) -> u64 {
    transfer.0 as u64
}
