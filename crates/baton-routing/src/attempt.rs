//! The interpreter of plans: starts attempts and their legs. It knows steps, not strategies.

use baton_types::{LegKind, Mutant, Time, TransferId};
use rand_chacha::rand_core::Rng;

use crate::engine_table::EngineKey;
use crate::event::{Failure, LegStart, Output, RequestEnd};
use crate::leg::{Leg, LegId, LegPhase};
use crate::plan::{After, Plan, Step};
use crate::request::{Attempt, RequestId, RequestState, StepState};
use crate::reuse::Found;
use crate::router_core::RouterCore;
use crate::select::{self, Selection, Want};

/// What came of trying to start an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    Started,
    /// No free slot: the request stays where it is.
    Full,
    /// There is no engine; the request is finished.
    Finished,
}

impl RouterCore {
    /// Starts the next attempt of a request that has no legs. All steps that wait for nothing start, or none does: half a
    /// pair is never sent.
    pub(crate) fn begin_attempt(&mut self, now: Time, id: RequestId) -> Begun {
        let request = self.request(id);
        let (model, sequences) = (request.model.clone(), request.sequences);
        let plan = match select::choose_plan(now, &self.engines, &self.config, &model, sequences) {
            Ok(plan) => plan,
            Err(failure) => {
                self.finish(id, RequestEnd::Failed(failure));
                return Begun::Finished;
            }
        };
        if !self.has_room_for_late_steps(now, plan, &model) {
            return Begun::Full;
        }
        let found = self.find_reuse(now, id, plan);
        let engines = match self.select_first_engines(now, id, plan, found.as_ref()) {
            Ok(engines) => engines,
            Err(Selection::Full) => return Begun::Full,
            Err(_) => {
                let kind = plan.steps[0].kind;
                self.finish(id, RequestEnd::Failed(Failure::NoEngine { kind }));
                return Begun::Finished;
            }
        };
        self.remove_request_timer(id);
        self.queue.retain(|queued| *queued != id);
        let found = self.settle_reuse(id, plan, &engines, found);
        let attempt = Attempt::new(plan, self.mint_transfer(id), found);
        let request = self.request_mut(id);
        // I9: an attempt begins only where no other has live legs.
        assert!(request.attempt().is_none(), "{id:?} has an attempt already");
        request.attempts += 1;
        request.state = RequestState::Running(attempt);
        // Reserved before the first leg starts, so that each leg can be told who its peer is.
        for (step, engine) in &engines {
            self.running_attempt_mut(id).steps[*step] = StepState::Over { engine: *engine };
        }
        for (step, engine) in engines {
            self.start_leg(now, id, step, engine);
        }
        Begun::Started
    }

    /// Starts what waited for the handle. The decode engine is chosen this late so that its load now counts.
    pub(crate) fn start_late_steps(&mut self, now: Time, id: RequestId) -> Result<(), Failure> {
        let plan = self.running_attempt(id).plan;
        for step in plan.late_steps() {
            let attempt = self.running_attempt(id);
            let (peer, found) = (attempt.peer_of(step), attempt.found.as_ref().map(Found::holder));
            match self.select_for_step(now, id, plan, step, peer, found) {
                Selection::Engine(engine) => self.start_leg(now, id, step, engine),
                Selection::Full | Selection::Nobody => {
                    return Err(Failure::NoEngine { kind: plan.steps[step].kind });
                }
            }
        }
        Ok(())
    }

    /// Legs that will follow need slots as well: otherwise prefill runs ahead of decode, and its blocks pile up.
    fn has_room_for_late_steps(&self, now: Time, plan: &Plan, model: &str) -> bool {
        plan.late_steps().all(|step| {
            let kind = plan.steps[step].kind;
            let free = select::free_slots(now, &self.engines, &self.config.limits, kind, model);
            free > self.promised_legs(kind, model)
        })
    }

    /// How many legs of a kind running attempts have yet to start.
    fn promised_legs(&self, kind: LegKind, model: &str) -> usize {
        let attempts = self.requests.values().filter(|r| r.model == model).filter_map(|r| r.attempt());
        attempts.filter(|attempt| attempt.promised().any(|promised| promised == kind)).count()
    }

    /// Engines for all steps that wait for nothing, each able to exchange KV with the one before it.
    fn select_first_engines(
        &mut self,
        now: Time,
        id: RequestId,
        plan: &'static Plan,
        found: Option<&Found>,
    ) -> Result<Vec<(usize, EngineKey)>, Selection> {
        let mut engines: Vec<(usize, EngineKey)> = Vec::with_capacity(plan.steps.len());
        for (step, _) in plan.steps.iter().enumerate().filter(|(_, step)| step.after == After::Nothing) {
            let peer = engines.last().map(|(_, engine)| *engine);
            match self.select_for_step(now, id, plan, step, peer, found.map(Found::holder)) {
                Selection::Engine(engine) => engines.push((step, engine)),
                other => return Err(other),
            }
        }
        Ok(engines)
    }

    fn select_for_step(
        &mut self,
        now: Time,
        id: RequestId,
        plan: &Plan,
        step: usize,
        peer: Option<EngineKey>,
        holder: Option<EngineKey>,
    ) -> Selection {
        let request = self.requests.get(&id).expect("only live requests select");
        let partner = plan.steps.get(step + 1).map(|next| next.kind);
        let Step { kind, after } = plan.steps[step];
        let (model, tried) = (&request.model, &request.tried);
        let prefer = holder.filter(|_| kind == LegKind::Decode);
        let over_full = after == After::Handle;
        let want = Want { kind, model, peer, partner, prefer, tried, over_full };
        self.selector.select(now, &self.engines, &self.config.limits, want)
    }

    fn start_leg(&mut self, now: Time, id: RequestId, step: usize, engine: EngineKey) {
        let leg = LegId(self.next_leg);
        self.next_leg += 1;
        let peer = self.running_attempt(id).peer_of(step).and_then(|peer| self.engines.peer(peer));
        let request = self.request_mut(id);
        let (streaming, number) = (request.streaming, request.attempts);
        let attempt = self.running_attempt_mut(id);
        let (plan, transfer) = (attempt.plan, attempt.transfer);
        attempt.steps[step] = StepState::Live { leg, engine };
        let kind = plan.steps[step].kind;
        let found = attempt.found.as_ref().filter(|_| kind == LegKind::Prefill);
        let reuse = found.map(|found| found.reuse.clone());
        let (phase, deadline) = (LegPhase::Connecting, now);
        self.engines.get_mut(engine).live_legs += 1;
        self.legs.insert(leg, Leg { request: id, engine, kind, streaming, started: now, phase, deadline });
        self.enter_phase(now, leg, LegPhase::Connecting);
        let mode = plan.mode;
        self.outputs.push_back(Output::StartLeg(LegStart {
            leg,
            request: id,
            engine,
            kind,
            mode,
            transfer,
            peer,
            reuse,
            attempt: number,
        }));
    }

    /// Random, and nothing that a client sends goes into it.
    fn mint_transfer(&mut self, request: RequestId) -> TransferId {
        if self.config.mutation.is(Mutant::RetryKeepsTransfer) {
            return TransferId(u128::from(request.0));
        }
        TransferId((u128::from(self.rng.next_u64()) << 64) | u128::from(self.rng.next_u64()))
    }
}
