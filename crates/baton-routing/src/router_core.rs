//! The core: takes inputs, keeps requests and legs, and says what to do.
//!
//! What a leg's end means depends on the other leg. For a pair (prefill P, decode D):
//!
//! | event | D not started | D silent | D answering | D over |
//! |---|---|---|---|---|
//! | P ends well | pull: start D. Without a handle: as "P fails" | push: D goes on | push: D goes on | - |
//! | P fails | next attempt | drop D, next attempt | D goes on: only it knows if its KV is whole | - |
//! | P is not wanted by D | next attempt | D goes on: it computes by itself, or fails | D goes on | - |
//! | D's first byte | - | the client gets D's stream | - | - |
//! | D ends well | - | - | answered; a live P is dropped | - |
//! | D fails | - | drop P if live, next attempt | drop P if live; fails, visibly | - |
//! | client gone | drop P | drop both | drop both | - |
//!
//! "Next attempt" and what it does to the engines' records is the table in [`retry`]. A leg without a
//! partner behaves as D in the columns "silent" and "answering".

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use baton_types::{EngineInfo, LegKind, Mutant, Time};
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::attempt::Begun;
use crate::config::RoutingConfig;
use crate::conversation::{ConversationTable, Dropped};
use crate::engine_table::{EngineKey, EngineTable};
use crate::event::{Failure, Input, Output, Reason, RequestEnd};
use crate::leg::{Leg, LegFault, LegId, LegPhase};
use crate::request::{Attempt, Next, Request, RequestId, RequestState, StepState};
use crate::retry::{self, Verdict};
use crate::select::{self, Selector};

/// The router's decisions, without its sockets.
#[derive(Debug)]
pub struct RouterCore {
    pub(crate) config: RoutingConfig,
    pub(crate) engines: EngineTable,
    pub(crate) selector: Selector,
    pub(crate) conversations: ConversationTable,
    pub(crate) requests: BTreeMap<RequestId, Request>,
    pub(crate) legs: BTreeMap<LegId, Leg>,
    /// Requests in [`RequestState::Queued`], first come first served.
    pub(crate) queue: VecDeque<RequestId>,
    pub(crate) timers: BTreeSet<(Time, Reason)>,
    pub(crate) outputs: VecDeque<Output>,
    pub(crate) next_leg: u64,
    pub(crate) rng: ChaCha12Rng,
    pub(crate) now: Time,
}

impl RouterCore {
    /// `seed` decides the transfer ids: from the operating system in earnest, fixed in tests (I10).
    pub fn new(config: RoutingConfig, seed: [u8; 32]) -> Self {
        Self {
            engines: EngineTable::new(&config),
            selector: Selector::new(config.policy),
            conversations: ConversationTable::new(&config.limits.conversations),
            config,
            requests: BTreeMap::new(),
            legs: BTreeMap::new(),
            queue: VecDeque::new(),
            timers: BTreeSet::new(),
            outputs: VecDeque::new(),
            next_leg: 0,
            rng: ChaCha12Rng::from_seed(seed),
            now: Time::ZERO,
        }
    }

    /// Reports about legs that are over, and about requests that are, are late and change nothing.
    ///
    /// # Panics
    /// If time runs backwards, or a request id is used twice at a time: the driver is broken.
    pub fn handle_input(&mut self, now: Time, input: Input) {
        assert!(now >= self.now, "time runs backwards: {now:?} after {:?}", self.now);
        self.now = now;
        self.conversations.expire(now);
        let may_free_a_slot = !matches!(
            input,
            Input::LegConnected { .. }
                | Input::LegProgress { .. }
                | Input::LegBlocked { .. }
                | Input::LegRetained { .. }
        );
        match input {
            Input::Arrive { request, model, streaming, sequences, turn } => {
                let model = model.or_else(|| self.only_model()).unwrap_or_default();
                self.arrive(now, request, Request::new(model, streaming, sequences, turn, now));
            }
            Input::ClientGone { request } if self.requests.contains_key(&request) => {
                self.finish(request, RequestEnd::ClientGone);
            }
            Input::LegConnected { leg } => self.leg_connected(now, leg),
            Input::LegFirstByte { leg } => self.leg_first_byte(now, leg),
            Input::LegProgress { leg } => self.leg_goes_on(now, leg, LegPhase::Streaming),
            Input::LegBlocked { leg } => self.leg_goes_on(now, leg, LegPhase::Blocked),
            Input::LegRetained { leg, retained } => self.leg_retained(now, leg, &retained),
            Input::LegEnded { leg, handle } => self.leg_ended(now, leg, handle),
            Input::LegFailed { leg, fault } => self.leg_failed(now, leg, fault),
            Input::Probed { engine, info } => self.probed(now, engine, info),
            Input::ProbeRefused { engine } => self.engines.get_mut(engine).health.probe_refused(),
            Input::ProbeFailed { engine } => self.engine_not_reached(now, engine),
            Input::Tick => self.expire(now),
            Input::ClientGone { .. } => {}
        }
        if may_free_a_slot {
            self.start_queued(now);
        }
    }

    /// What to do, in order. To be drained to `None` before the next input.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When to send the next [`Input::Tick`], and what for.
    pub fn poll_timeout(&self) -> Option<(Time, Reason)> {
        self.timers.first().copied()
    }

    /// The models that engines say they serve, each with the longest sequence that all of its engines take.
    pub fn models(&self) -> BTreeMap<&str, u32> {
        let mut models: BTreeMap<&str, u32> = BTreeMap::new();
        for info in self.engines.iter().filter_map(|(_, engine)| engine.info.as_ref()) {
            let shortest = models.entry(&info.model).or_insert(info.max_model_len);
            *shortest = info.max_model_len.min(*shortest);
        }
        models
    }

    fn only_model(&self) -> Option<String> {
        let models = self.models();
        let name = models.keys().next().filter(|_| models.len() == 1)?;
        Some((*name).to_owned())
    }

    /// Requests that are not finished.
    pub fn live_requests(&self) -> usize {
        self.requests.len()
    }

    /// Whether any model could be served now, if need be by engines with a bad record.
    pub fn is_ready(&self) -> bool {
        let usable =
            |model: &str| select::usable_plan(self.now, &self.engines, &self.config, model, 1).is_some();
        self.models().into_keys().any(usable)
    }

    /// Whether the engine would be selected without reservations.
    pub fn is_fit(&self, engine: EngineKey) -> bool {
        self.engines.get(engine).standing(self.now) == crate::health::Standing::Fit
    }

    // Arrival and waiting.

    fn arrive(&mut self, now: Time, id: RequestId, request: Request) {
        assert!(!self.requests.contains_key(&id), "{id:?} arrives twice");
        let full = self.requests.len() >= self.config.limits.max_requests;
        self.requests.insert(id, request);
        // I11: reaching a limit is an answer.
        if full {
            return self.finish(id, RequestEnd::Failed(Failure::Overloaded));
        }
        // Nobody overtakes those who wait already.
        let begun = if self.queue.is_empty() { self.begin_attempt(now, id) } else { Begun::Full };
        if begun == Begun::Full {
            if self.queue.len() >= self.config.limits.max_queued {
                return self.finish(id, RequestEnd::Failed(Failure::Overloaded));
            }
            self.queue.push_back(id);
            self.enter_waiting(id, RequestState::Queued { until: now + self.config.limits.queue() });
        }
    }

    /// Gives free slots to those who wait. One who finds no slot speaks for all behind it with the same model.
    fn start_queued(&mut self, now: Time) {
        let mut full: BTreeSet<String> = BTreeSet::new();
        let mut next = 0;
        while let Some(id) = self.queue.get(next).copied() {
            let model = self.request(id).model.clone();
            if full.contains(&model) || self.begin_attempt(now, id) == Begun::Full {
                full.insert(model);
                next += 1;
            }
        }
    }

    fn enter_waiting(&mut self, id: RequestId, state: RequestState) {
        let request = self.request_mut(id);
        request.state = state;
        let timer = request.timer(id);
        self.timers.extend(timer);
    }

    pub(crate) fn remove_request_timer(&mut self, id: RequestId) {
        if let Some(timer) = self.request(id).timer(id) {
            self.timers.remove(&timer);
        }
    }

    // Legs.

    fn leg_connected(&mut self, now: Time, id: LegId) {
        if self.legs.get(&id).is_some_and(|leg| leg.phase == LegPhase::Connecting) {
            self.enter_phase(now, id, LegPhase::Waiting);
        }
    }

    fn leg_first_byte(&mut self, now: Time, id: LegId) {
        let Some(leg) = self.legs.get(&id) else { return };
        let (request, engine) = (leg.request, leg.engine);
        let attempt = self.running_attempt_mut(request);
        let answers = attempt.step_of(id) == Some(attempt.plan.answers);
        if !answers || attempt.answering {
            return;
        }
        attempt.answering = true;
        self.engines.get_mut(engine).health.leg_succeeded();
        self.enter_phase(now, id, LegPhase::Streaming);
        self.outputs.push_back(Output::Answer { request, leg: id });
    }

    /// `phase`: streaming, or blocked by the client.
    fn leg_goes_on(&mut self, now: Time, id: LegId, phase: LegPhase) {
        // A stall counts from its beginning, however often it is reported.
        let goes_on = |leg: &Leg| match leg.phase {
            LegPhase::Streaming => true,
            LegPhase::Blocked => phase != LegPhase::Blocked,
            LegPhase::Connecting | LegPhase::Waiting => false,
        };
        if self.legs.get(&id).is_some_and(goes_on) {
            self.enter_phase(now, id, phase);
        }
    }

    fn leg_ended(&mut self, now: Time, id: LegId, handle: bool) {
        let Some(leg) = self.legs.get(&id) else { return };
        let (request, engine) = (leg.request, leg.engine);
        let attempt = self.running_attempt(request);
        if attempt.step_of(id) == Some(attempt.plan.answers) {
            // An answer of no bytes is none.
            if !attempt.answering {
                return self.leg_failed(now, id, LegFault::BadAnswer);
            }
            self.close_leg(id);
            return self.finish(request, RequestEnd::Answered);
        }
        let is_last = attempt.promised().next().is_none();
        if !is_last && !handle {
            return self.leg_failed(now, id, LegFault::BadAnswer);
        }
        self.close_leg(id);
        self.engines.get_mut(engine).health.leg_succeeded();
        if let Err(failure) = self.start_late_steps(now, request) {
            self.abandon_attempt(now, request, Next::Again(failure));
        }
    }

    /// A leg whose connection is closed already.
    fn leg_failed(&mut self, now: Time, id: LegId, fault: LegFault) {
        let Some(leg) = self.close_leg(id) else { return };
        self.record_fault(now, &leg, fault);
        let retries = self.config.mutation.is(Mutant::RetryAfterFirstByte);
        let attempt = self.running_attempt(leg.request);
        let answering = attempt.answering && !retries;
        // See the table above: whether its KV is whole, or not wanted, is decode's to know.
        let decides = answering || (fault == LegFault::Unwanted && attempt.live_legs().next().is_some());
        if decides && leg.kind == LegKind::Prefill {
            return;
        }
        let next = match retry::verdict(id, fault) {
            Verdict::Again(failure) if answering => Next::Fail(failure),
            Verdict::Later if answering => Next::Fail(Failure::Overloaded),
            Verdict::Again(failure) => Next::Again(failure),
            Verdict::Later => Next::Later,
            Verdict::Final(failure) => Next::Fail(failure),
        };
        self.abandon_attempt(now, leg.request, next);
    }

    /// A leg whose connection the driver still holds.
    fn fail_open_leg(&mut self, now: Time, id: LegId, fault: LegFault) {
        self.outputs.push_back(Output::DropLeg { leg: id, fault: Some(fault) });
        self.leg_failed(now, id, fault);
    }

    fn record_fault(&mut self, now: Time, leg: &Leg, fault: LegFault) {
        if fault == LegFault::KvInFlight {
            self.request_mut(leg.request).tried.insert(leg.engine);
        }
        if !retry::blames_engine(fault) {
            return;
        }
        self.engines.get_mut(leg.engine).health.leg_failed(now, &self.config.limits);
        if fault == LegFault::Connect {
            self.engine_not_reached(now, leg.engine);
        }
        self.request_mut(leg.request).tried.insert(leg.engine);
    }

    /// Drops the legs that are left; then another attempt, if one is allowed.
    fn abandon_attempt(&mut self, now: Time, id: RequestId, next: Next) {
        let failure = match next {
            Next::Fail(failure) => return self.finish(id, RequestEnd::Failed(failure)),
            Next::Again(failure) => failure,
            Next::Later => Failure::Overloaded,
        };
        self.drop_legs(id);
        let plan = self.running_attempt(id).plan;
        if let Some(found) = &self.running_attempt(id).found {
            self.conversations.remove(found.key, Dropped::Failed);
        }
        let limits = &self.config.limits;
        let request = self.requests.get_mut(&id).expect("asked only of live requests");
        let (is_over, number) = match next {
            Next::Later => {
                request.waits += 1;
                let until = *request.waits_until.get_or_insert(now + limits.queue());
                (now >= until, request.waits.min(retry::MAX_WAIT_DOUBLINGS))
            }
            _ => (request.attempts_counted() >= limits.attempts, request.attempts_counted()),
        };
        if is_over {
            return self.finish(id, RequestEnd::Failed(failure));
        }
        // I9: no retry after the first byte to the client.
        assert!(!self.running_attempt(id).answering, "{id:?} is retried after its first byte");
        let request = self.request(id);
        if select::has_fresh(now, &self.engines, limits, plan, &request.model, &request.tried) {
            // It has waited its turn: in front, and whatever the queue's limit says (`max_requests` bounds it too).
            self.queue.push_front(id);
            self.enter_waiting(id, RequestState::Queued { until: now + self.config.limits.queue() });
        } else {
            let until = now + retry::pause(&self.config.limits, number);
            self.enter_waiting(id, RequestState::Paused { until });
        }
    }

    pub(crate) fn enter_phase(&mut self, now: Time, id: LegId, phase: LegPhase) {
        let limits = &self.config.limits;
        let leg = self.legs.get_mut(&id).expect("only live legs have phases");
        self.timers.remove(&(leg.deadline, leg.reason(id)));
        leg.phase = phase;
        leg.deadline = now + leg.limit(limits);
        self.timers.insert((leg.deadline, leg.reason(id)));
    }

    /// The one end of a leg, well or not.
    fn close_leg(&mut self, id: LegId) -> Option<Leg> {
        let leg = self.legs.remove(&id)?;
        self.timers.remove(&(leg.deadline, leg.reason(id)));
        self.engines.get_mut(leg.engine).live_legs -= 1;
        let attempt = self.running_attempt_mut(leg.request);
        let step = attempt.step_of(id).expect("a live leg is a step of its attempt");
        attempt.steps[step] = StepState::Over { engine: leg.engine };
        Some(leg)
    }

    fn drop_legs(&mut self, id: RequestId) {
        let live: Vec<LegId> = self.request(id).attempt().into_iter().flat_map(Attempt::live_legs).collect();
        for leg in live {
            self.close_leg(leg);
            self.outputs.push_back(Output::DropLeg { leg, fault: None });
        }
    }

    /// The one end of a request.
    pub(crate) fn finish(&mut self, id: RequestId, end: RequestEnd) {
        self.drop_legs(id);
        self.remove_request_timer(id);
        self.queue.retain(|queued| *queued != id);
        self.requests.remove(&id);
        self.outputs.push_back(Output::Finished { request: id, end });
    }

    // Engines and time.

    fn probed(&mut self, now: Time, engine: EngineKey, info: EngineInfo) {
        let Some(old_seen) = self.engines.probed(now, engine, info) else { return };
        self.forget_incarnation(engine);
        // Legs that are younger may be the new incarnation's; if they are not, their connections will say so.
        let old = |leg: &Leg| leg.engine == engine && leg.started <= old_seen;
        let lost: Vec<LegId> = self.legs.iter().filter(|(_, leg)| old(leg)).map(|(id, _)| *id).collect();
        for leg in lost {
            // One request may have lost both its legs to this loop's first turn.
            if self.legs.contains_key(&leg) {
                self.fail_open_leg(now, leg, LegFault::Restarted);
            }
        }
    }

    fn expire(&mut self, now: Time) {
        while let Some((at, reason)) = self.timers.first().copied()
            && at <= now
        {
            match reason {
                Reason::Connect(leg) => self.fail_open_leg(now, leg, LegFault::Connect),
                Reason::Answer(leg) | Reason::Idle(leg) => self.fail_open_leg(now, leg, LegFault::TimedOut),
                Reason::ClientStall(leg) => self.finish(self.legs[&leg].request, RequestEnd::ClientGone),
                Reason::Queue(id) => self.finish(id, RequestEnd::Failed(Failure::Overloaded)),
                Reason::Pause(id) => {
                    self.remove_request_timer(id);
                    self.queue.push_front(id);
                    let until = now + self.config.limits.queue();
                    self.enter_waiting(id, RequestState::Queued { until });
                }
            }
        }
    }

    // Look-ups that cannot fail.

    pub(crate) fn request(&self, id: RequestId) -> &Request {
        self.requests.get(&id).expect("asked only of live requests")
    }

    pub(crate) fn request_mut(&mut self, id: RequestId) -> &mut Request {
        self.requests.get_mut(&id).expect("asked only of live requests")
    }

    pub(crate) fn running_attempt(&self, id: RequestId) -> &Attempt {
        self.request(id).attempt().expect("legs belong to attempts")
    }

    pub(crate) fn running_attempt_mut(&mut self, id: RequestId) -> &mut Attempt {
        self.request_mut(id).attempt_mut().expect("legs belong to attempts")
    }
}
