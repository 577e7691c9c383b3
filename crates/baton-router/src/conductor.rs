//! The driver of the core: one lock around it, and the outputs done at once. Holds no rule.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use baton_openai::body::RawJson;
use baton_routing::{
    EngineKey, Input, LegFault, LegId, LegStart, Output, RequestEnd, RequestId, RouterCore, Turn,
};
use baton_trace::{TraceParent, Tracer};
use baton_types::{EngineInfo, LegKind, Time};
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;

use crate::client_answer::{AnswerBytes, ClientGuard};
use crate::engine_client::EngineClient;
use crate::failure::Refusal;
use crate::leg_request::Ask;
use crate::leg_task::{AnswerLimits, LegTask, Report};
use crate::metrics::{LegOutcome, Metrics};
use crate::served_by::ServedBy;
use crate::timeline::Timeline;

/// An engine's connections, and what metrics call it.
#[derive(Debug)]
pub(crate) struct EngineLink {
    pub client: Arc<EngineClient>,
    pub label: String,
}

#[derive(Debug)]
pub(crate) struct Conductor {
    engines: Vec<EngineLink>,
    limits: AnswerLimits,
    metrics: Metrics,
    epoch: Instant,
    state: Mutex<State>,
    /// The next time limit has come closer.
    sooner: Notify,
}

#[derive(Debug)]
struct State {
    core: RouterCore,
    next_request: u64,
    requests: BTreeMap<RequestId, LiveRequest>,
    legs: BTreeMap<LegId, LiveLeg>,
    /// The engines' own names, once they have said them.
    names: BTreeMap<EngineKey, String>,
    /// The time limit that the timer waits for.
    armed: Option<Time>,
    /// Where nobody wants one, nothing is done for it.
    timeline: Option<Timeline>,
}

/// What the driver holds for a request of the core's.
#[derive(Debug)]
struct LiveRequest {
    ask: Arc<Ask>,
    arrived: Instant,
    begin: Option<oneshot::Sender<Begin>>,
    end: Option<oneshot::Sender<RequestEnd>>,
    handle: Option<RawJson>,
    refusal: Option<Refusal>,
    served_by: ServedBy,
}

#[derive(Debug)]
struct LiveLeg {
    request: RequestId,
    engine: EngineKey,
    kind: LegKind,
    task: AbortHandle,
    answer: Option<AnswerBytes>,
}

/// How the answer to a client begins.
#[derive(Debug)]
pub(crate) enum Begin {
    Answer { bytes: AnswerBytes, end: oneshot::Receiver<RequestEnd>, served_by: ServedBy },
    End { end: RequestEnd, refusal: Option<Refusal> },
}

/// What the core is told about a request.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub ask: Ask,
    pub model: Option<String>,
    pub sequences: u32,
    pub turn: Option<Turn>,
}

impl Conductor {
    pub fn new(
        core: RouterCore,
        engines: Vec<EngineLink>,
        limits: AnswerLimits,
        tracer: Option<Tracer>,
    ) -> Arc<Self> {
        let epoch = Instant::now();
        let labels = || engines.iter().map(|engine| engine.label.clone()).collect();
        let state = State {
            core,
            next_request: 0,
            requests: BTreeMap::new(),
            legs: BTreeMap::new(),
            names: BTreeMap::new(),
            armed: None,
            timeline: tracer.map(|tracer| Timeline::new(tracer, epoch, labels())),
        };
        Arc::new(Self {
            engines,
            limits,
            metrics: Metrics::new(),
            epoch,
            state: Mutex::new(state),
            sooner: Notify::new(),
        })
    }

    /// Hands a request to the core. Dropping the guard tells it that the client is gone.
    pub fn arrive(
        self: &Arc<Self>,
        arrival: Arrival,
        client_id: &str,
    ) -> (ClientGuard, oneshot::Receiver<Begin>) {
        let (begin, receiver) = oneshot::channel();
        let mut state = self.lock();
        let request = RequestId(state.next_request);
        state.next_request += 1;
        let streaming = arrival.ask.streaming;
        let now = self.now();
        if let Some(timeline) = &mut state.timeline {
            timeline.arrived(now, request, client_id, trace_parent(&arrival.ask));
        }
        let live = LiveRequest {
            ask: Arc::new(arrival.ask),
            arrived: Instant::now(),
            begin: Some(begin),
            end: None,
            handle: None,
            refusal: None,
            served_by: ServedBy::default(),
        };
        state.requests.insert(request, live);
        self.metrics.arrived();
        let Arrival { model, sequences, turn, .. } = arrival;
        self.feed(&mut state, Input::Arrive { request, model, streaming, sequences, turn });
        drop(state);
        (ClientGuard { conductor: Arc::clone(self), request }, receiver)
    }

    pub fn client_gone(self: &Arc<Self>, request: RequestId) {
        let mut state = self.lock();
        if state.requests.contains_key(&request) {
            self.feed(&mut state, Input::ClientGone { request });
        }
    }

    /// What happened to a leg. A leg that was dropped meanwhile has nothing to say.
    pub fn report(self: &Arc<Self>, leg: LegId, report: Report) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(live) = state.legs.get_mut(&leg) else { return };
        let request = state.requests.get_mut(&live.request).expect("legs belong to live requests");
        let input = match report {
            Report::Connected => Input::LegConnected { leg },
            Report::Progress => Input::LegProgress { leg },
            Report::Blocked => Input::LegBlocked { leg },
            Report::FirstByte(answer) => {
                live.answer = Some(answer);
                Input::LegFirstByte { leg }
            }
            Report::Retained(retained) => Input::LegRetained { leg, retained },
            Report::Ended { handle } => {
                let has_handle = handle.is_some();
                request.handle = handle;
                self.forget_leg(state, leg, LegOutcome::Ended);
                Input::LegEnded { leg, handle: has_handle }
            }
            Report::Failed(fault) => {
                self.forget_leg(state, leg, LegOutcome::Failed(fault));
                Input::LegFailed { leg, fault }
            }
            Report::Refused(refusal) => {
                request.refusal = Some(refusal);
                self.forget_leg(state, leg, LegOutcome::Failed(LegFault::Refused));
                Input::LegFailed { leg, fault: LegFault::Refused }
            }
        };
        self.feed(state, input);
    }

    pub fn probed(self: &Arc<Self>, engine: EngineKey, info: EngineInfo) {
        let mut state = self.lock();
        state.names.insert(engine, info.engine_id.name.to_string());
        self.feed(&mut state, Input::Probed { engine, info });
    }

    pub fn probe_refused(self: &Arc<Self>, engine: EngineKey) {
        self.feed(&mut self.lock(), Input::ProbeRefused { engine });
    }

    pub fn probe_failed(self: &Arc<Self>, engine: EngineKey) {
        self.feed(&mut self.lock(), Input::ProbeFailed { engine });
    }

    /// Fires the core's time limits, for ever.
    pub async fn run_timer(self: Arc<Self>) {
        loop {
            let due = self.arm();
            let sleep = async {
                match due {
                    Some(due) => {
                        tokio::time::sleep_until((self.epoch + Duration::from_nanos(due.0)).into()).await
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = sleep => self.feed(&mut self.lock(), Input::Tick),
                () = self.sooner.notified() => {}
            }
        }
    }

    /// Ends every request, as if all clients had left.
    pub fn abandon_all(self: &Arc<Self>) {
        let mut state = self.lock();
        let requests: Vec<RequestId> = state.requests.keys().copied().collect();
        for request in requests {
            self.feed(&mut state, Input::ClientGone { request });
        }
    }

    /// Whether some model can be served.
    pub fn is_ready(&self) -> bool {
        self.lock().core.is_ready()
    }

    /// Names and longest sequences.
    pub fn models(&self) -> Vec<(String, u32)> {
        let state = self.lock();
        state.core.models().into_iter().map(|(name, len)| (name.to_owned(), len)).collect()
    }

    /// The exposition text of the metrics.
    pub fn render_metrics(&self) -> String {
        let state = self.lock();
        for (key, engine) in (0..).map(EngineKey).zip(&self.engines) {
            self.metrics.engine_fit(&engine.label, state.core.is_fit(key));
        }
        self.metrics.conversations(&state.core.conversations());
        drop(state);
        self.metrics.render()
    }

    fn arm(&self) -> Option<Time> {
        let mut state = self.lock();
        state.armed = state.core.poll_timeout().map(|(at, _)| at);
        state.armed
    }

    fn feed(self: &Arc<Self>, state: &mut State, input: Input) {
        // Read under the lock: the core's time never runs backwards.
        let now = self.now();
        tracing::trace!(?now, ?input);
        if let Some(timeline) = &mut state.timeline {
            timeline.input(now, &input);
        }
        state.core.handle_input(now, input);
        while let Some(output) = state.core.poll_output() {
            tracing::debug!(?output);
            if let Some(timeline) = &mut state.timeline {
                timeline.output(now, &output);
            }
            self.perform(state, output);
        }
        if let Some((at, _)) = state.core.poll_timeout()
            && state.armed.is_none_or(|armed| at < armed)
        {
            self.sooner.notify_one();
        }
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn perform(self: &Arc<Self>, state: &mut State, output: Output) {
        match output {
            Output::StartLeg(start) => self.start_leg(state, start),
            Output::DropLeg { leg, fault } => {
                let outcome = fault.map_or(LegOutcome::Dropped, LegOutcome::Failed);
                if let Some(live) = self.forget_leg(state, leg, outcome) {
                    live.task.abort();
                }
            }
            Output::Answer { request, leg } => self.answer(state, request, leg),
            Output::Finished { request, end } => self.finish(state, request, end),
        }
    }

    fn start_leg(self: &Arc<Self>, state: &mut State, start: LegStart) {
        let request = state.requests.get_mut(&start.request).expect("the core's requests are live here");
        let link = &self.engines[start.engine.0 as usize];
        let name = state.names.get(&start.engine).cloned().unwrap_or_default();
        request.served_by.leg_started(start.attempt, start.kind, start.mode, name);
        if let Some(reuse) = &start.reuse {
            request.served_by.reuse_offered(reuse.tokens);
        }
        // Only the leg that needs the handle takes it, once.
        let handle = if start.kind == LegKind::Decode { request.handle.take() } else { None };
        self.metrics.leg_started(&link.label, start.kind, start.attempt);
        let (leg, id, engine, kind) = (start.leg, start.request, start.engine, start.kind);
        let trace_parent = state.timeline.as_ref().and_then(|timeline| timeline.parent_of(leg));
        let task = LegTask {
            start,
            trace_parent,
            ask: Arc::clone(&request.ask),
            handle,
            engine: Arc::clone(&link.client),
            conductor: Arc::clone(self),
            limits: self.limits,
        };
        let task = tokio::spawn(task.run()).abort_handle();
        state.legs.insert(leg, LiveLeg { request: id, engine, kind, task, answer: None });
    }

    fn forget_leg(&self, state: &mut State, leg: LegId, outcome: LegOutcome) -> Option<LiveLeg> {
        let live = state.legs.remove(&leg)?;
        self.metrics.leg_over(&self.engines[live.engine.0 as usize].label, live.kind, outcome);
        Some(live)
    }

    fn answer(&self, state: &mut State, request: RequestId, leg: LegId) {
        let live = state.requests.get_mut(&request).expect("the core's requests are live here");
        let bytes =
            state.legs.get_mut(&leg).and_then(|leg| leg.answer.take()).expect("its first byte is here");
        self.metrics.first_byte(live.arrived.elapsed());
        let (sender, end) = oneshot::channel();
        live.end = Some(sender);
        let served_by = live.served_by.clone();
        if let Some(begin) = live.begin.take() {
            // A client that has just left: its guard says so.
            let _ = begin.send(Begin::Answer { bytes, end, served_by });
        }
    }

    fn finish(&self, state: &mut State, request: RequestId, end: RequestEnd) {
        let live = state.requests.remove(&request).expect("requests finish once");
        self.metrics.finished(end);
        tracing::info!(?request, ?end, "finished");
        match (live.begin, live.end) {
            (Some(begin), _) => {
                let _ = begin.send(Begin::End { end, refusal: live.refusal });
            }
            (None, Some(sender)) => {
                let _ = sender.send(end);
            }
            (None, None) => unreachable!("an answer that has begun has an end to come"),
        }
    }

    /// As if the core had broken an invariant.
    #[cfg(test)]
    pub(crate) fn fail(&self) {
        let _state = self.lock();
        panic!("on purpose");
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // After a panic in the core nothing it says can be trusted.
        self.state.lock().expect("the core has panicked")
    }
}

/// What the client says its request is a part of.
fn trace_parent(ask: &Ask) -> Option<TraceParent> {
    TraceParent::parse(ask.headers.get(TraceParent::HEADER)?.to_str().ok()?)
}
