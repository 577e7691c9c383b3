//! What the router did and when, as spans: made of what goes into the core and what comes out of it, and of nothing else. What the
//! spans are called is in docs/tracing.md.

use std::collections::BTreeMap;
use std::time::Instant;

use baton_routing::{Input, LegId, LegStart, Output, RequestEnd, RequestId};
use baton_trace::{Args, Flow, Kind, Lane, Lanes, Span, SpanContext, TraceParent, Tracer};
use baton_types::{LegKind, Time, TransferMode};

/// Bounded as the core is: it has so many live requests, each with so many live legs (I9, I11).
#[derive(Debug)]
pub(crate) struct Timeline {
    tracer: Tracer,
    /// What the wall clock showed at the core's time zero.
    epoch_ns: u64,
    /// What each engine is called.
    engines: Vec<String>,
    requests: BTreeMap<RequestId, Request>,
    legs: BTreeMap<LegId, Leg>,
    lanes: Lanes,
}

#[derive(Debug)]
struct Request {
    context: SpanContext,
    client_id: String,
    slot: u32,
    arrived: Time,
    /// Since when it has no leg.
    queued: Option<Time>,
    live_legs: u32,
    attempts: u32,
    first_byte: Option<Time>,
}

#[derive(Debug)]
struct Leg {
    start: LegStart,
    context: SpanContext,
    since: Time,
    connected: Option<Time>,
    first_byte: Option<Time>,
}

impl Timeline {
    /// `epoch` is the core's time zero.
    pub fn new(tracer: Tracer, epoch: Instant, engines: Vec<String>) -> Self {
        let epoch_ns = tracer.unix_ns(epoch);
        let (requests, legs) = (BTreeMap::new(), BTreeMap::new());
        Self { tracer, epoch_ns, engines, requests, legs, lanes: Lanes::from(1) }
    }

    /// Before the core hears of the request; `parent` is what its client brought, `client_id` what its answer is called by.
    pub fn arrived(&mut self, now: Time, request: RequestId, client_id: &str, parent: Option<TraceParent>) {
        let live = Request {
            context: self.tracer.continue_from(parent),
            client_id: client_id.to_owned(),
            slot: self.lanes.take(),
            arrived: now,
            queued: Some(now),
            live_legs: 0,
            attempts: 0,
            first_byte: None,
        };
        self.requests.insert(request, live);
    }

    /// What a leg's engine is to continue.
    pub fn parent_of(&self, leg: LegId) -> Option<TraceParent> {
        self.legs.get(&leg).map(|leg| leg.context.to_parent())
    }

    pub fn input(&mut self, now: Time, input: &Input) {
        match input {
            Input::LegConnected { leg } => {
                if let Some(leg) = self.legs.get_mut(leg) {
                    leg.connected.get_or_insert(now);
                }
            }
            Input::LegFirstByte { leg } => {
                let Some(leg) = self.legs.get_mut(leg) else { return };
                leg.first_byte.get_or_insert(now);
                if let Some(request) = self.requests.get_mut(&leg.start.request) {
                    request.first_byte.get_or_insert(now);
                }
            }
            Input::LegEnded { leg, .. } => self.leg_over(now, *leg, "ended".to_owned(), false),
            Input::LegFailed { leg, fault } => self.leg_over(now, *leg, format!("{fault:?}"), true),
            _ => {}
        }
    }

    pub fn output(&mut self, now: Time, output: &Output) {
        match output {
            Output::StartLeg(start) => self.leg_begins(now, start),
            Output::DropLeg { leg, fault } => {
                let outcome = fault.map_or_else(|| "dropped".to_owned(), |fault| format!("{fault:?}"));
                self.leg_over(now, *leg, outcome, fault.is_some());
            }
            Output::Answer { .. } => {}
            Output::Finished { request, end } => self.finished(now, *request, *end),
        }
    }

    fn leg_begins(&mut self, now: Time, start: &LegStart) {
        let Some(request) = self.requests.get_mut(&start.request) else { return };
        let queued = request.queued.take();
        request.live_legs += 1;
        request.attempts = request.attempts.max(start.attempt);
        let context = self.tracer.child(&request.context, Kind::Client);
        let leg = Leg { start: start.clone(), context, since: now, connected: None, first_byte: None };
        self.legs.insert(start.leg, leg);
        // From one leg to the next there is often nothing in between.
        if let Some(since) = queued.filter(|since| *since < now) {
            self.queue(start.request, since, now, start.attempt);
        }
    }

    fn queue(&self, request: RequestId, since: Time, now: Time, attempt: u32) {
        let Some(request) = self.requests.get(&request) else { return };
        let lane = Lane { slot: request.slot, row: 1, name: "queue" };
        let context = Some(self.tracer.child(&request.context, Kind::Internal));
        let args = Args::default().int("attempt", attempt);
        let span = Span::new("queue", lane, self.ns(since), self.ns(now));
        self.tracer.record(Span { context, args, ..span });
    }

    fn leg_over(&mut self, now: Time, leg: LegId, outcome: String, failed: bool) {
        let Some(Leg { start, context, since, connected, first_byte }) = self.legs.remove(&leg) else {
            return;
        };
        let Some(request) = self.requests.get_mut(&start.request) else { return };
        request.live_legs -= 1;
        if request.live_legs == 0 {
            request.queued = Some(now);
        }
        let (row, name) = match start.kind {
            LegKind::Prefill => (2, "prefill leg"),
            LegKind::Decode => (3, "decode leg"),
            LegKind::Whole => (3, "whole leg"),
        };
        let lane = Lane { slot: request.slot, row, name: if row == 2 { "prefill" } else { "answer" } };
        let engine = self.engines.get(start.engine.0 as usize).cloned().unwrap_or_default();
        let mode = match start.mode {
            None => "none",
            Some(TransferMode::Pull) => "pull",
            Some(TransferMode::EarlyPull) => "early-pull",
            Some(TransferMode::Push) => "push",
        };
        let mut args = Args::default()
            .text("outcome", outcome)
            .text("engine", engine)
            .int("attempt", start.attempt)
            .text("mode", mode)
            .text("transfer", start.transfer.to_string());
        if let Some(reuse) = &start.reuse {
            args = args.int("reuse_tokens", reuse.tokens);
        }
        let events = [("connected", connected), ("first byte", first_byte)];
        let events = events.into_iter().filter_map(|(name, at)| Some((name, self.ns(at?)))).collect();
        let flow = Some(Flow::Out(context.span.0));
        let span = Span::new(name, lane, self.ns(since), self.ns(now));
        self.tracer.record(Span { context: Some(context), args, failed, events, flow, ..span });
    }

    fn finished(&mut self, now: Time, id: RequestId, end: RequestEnd) {
        let Some(request) = self.requests.remove(&id) else { return };
        self.lanes.give_back(request.slot);
        let (outcome, failed) = match end {
            RequestEnd::Answered => ("answered".to_owned(), false),
            RequestEnd::ClientGone => ("client gone".to_owned(), false),
            RequestEnd::Failed(failure) => (format!("{failure:?}"), true),
        };
        let lane = Lane { slot: request.slot, row: 0, name: "request" };
        let args = Args::default()
            .text("request", request.client_id)
            .text("outcome", outcome)
            .int("number", id.0)
            .int("attempts", request.attempts);
        let events = request.first_byte.map(|at| ("first byte", self.ns(at))).into_iter().collect();
        let span = Span::new("request", lane, self.ns(request.arrived), self.ns(now));
        self.tracer.record(Span { context: Some(request.context), args, failed, events, ..span });
    }

    fn ns(&self, time: Time) -> u64 {
        self.epoch_ns.saturating_add(time.0)
    }
}
