//! A request: everything the core knows of it, in one place.

use std::collections::BTreeSet;
use std::fmt;

use baton_types::{LegKind, Time, TransferId};

use crate::conversation::Turn;
use crate::engine_table::EngineKey;
use crate::event::{Failure, Reason};
use crate::leg::LegId;
use crate::plan::Plan;
use crate::reuse::Found;

/// Minted by the driver, which counts up; never a client's id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub model: String,
    pub streaming: bool,
    /// Prompts times choices.
    pub sequences: u32,
    pub turn: Option<Turn>,
    pub state: RequestState,
    /// Attempts begun.
    pub attempts: u32,
    /// Of them, those that ended only because an engine was full of KV on its way.
    pub waits: u32,
    /// How long such attempts are repeated, once there was one.
    pub waits_until: Option<Time>,
    /// Engines whose legs for this request have failed.
    pub tried: BTreeSet<EngineKey>,
}

#[derive(Clone, Debug)]
pub(crate) enum RequestState {
    /// Waits for a free slot; is in the core's queue.
    Queued {
        until: Time,
    },
    /// Waits before the next attempt, since the engines that are left have failed it already.
    Paused {
        until: Time,
    },
    Running(Attempt),
}

impl Request {
    pub fn new(model: String, streaming: bool, sequences: u32, turn: Option<Turn>, now: Time) -> Self {
        Self {
            model,
            streaming,
            sequences,
            turn,
            state: RequestState::Queued { until: now },
            attempts: 0,
            waits: 0,
            waits_until: None,
            tried: BTreeSet::new(),
        }
    }

    /// Attempts that were more than a wait for room.
    pub fn attempts_counted(&self) -> u32 {
        self.attempts - self.waits
    }

    pub fn attempt(&self) -> Option<&Attempt> {
        match &self.state {
            RequestState::Running(attempt) => Some(attempt),
            RequestState::Queued { .. } | RequestState::Paused { .. } => None,
        }
    }

    pub fn attempt_mut(&mut self) -> Option<&mut Attempt> {
        match &mut self.state {
            RequestState::Running(attempt) => Some(attempt),
            RequestState::Queued { .. } | RequestState::Paused { .. } => None,
        }
    }

    /// The timer that a request without legs has.
    pub fn timer(&self, id: RequestId) -> Option<(Time, Reason)> {
        match self.state {
            RequestState::Queued { until } => Some((until, Reason::Queue(id))),
            RequestState::Paused { until } => Some((until, Reason::Pause(id))),
            RequestState::Running(_) => None,
        }
    }
}

/// One run of a plan.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub plan: &'static Plan,
    pub transfer: TransferId,
    /// What its prefill leg may read.
    pub found: Option<Found>,
    /// One for each step of the plan.
    pub steps: Vec<StepState>,
    /// The answering leg has its first byte, and so has the client: there will be no other attempt (I9).
    pub answering: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepState {
    NotStarted,
    Live { leg: LegId, engine: EngineKey },
    Over { engine: EngineKey },
}

impl StepState {
    pub fn engine(self) -> Option<EngineKey> {
        match self {
            Self::NotStarted => None,
            Self::Live { engine, .. } | Self::Over { engine } => Some(engine),
        }
    }

    pub fn leg(self) -> Option<LegId> {
        match self {
            Self::Live { leg, .. } => Some(leg),
            Self::NotStarted | Self::Over { .. } => None,
        }
    }
}

impl Attempt {
    pub fn new(plan: &'static Plan, transfer: TransferId, found: Option<Found>) -> Self {
        let steps = vec![StepState::NotStarted; plan.steps.len()];
        Self { plan, transfer, found, steps, answering: false }
    }

    /// The step that this leg runs.
    pub fn step_of(&self, leg: LegId) -> Option<usize> {
        self.steps.iter().position(|state| state.leg() == Some(leg))
    }

    /// The engine of another step than this, if one has been selected.
    pub fn peer_of(&self, step: usize) -> Option<EngineKey> {
        let others = self.steps.iter().enumerate().filter(|(i, _)| *i != step);
        others.filter_map(|(_, state)| state.engine()).next()
    }

    pub fn live_legs(&self) -> impl Iterator<Item = LegId> {
        self.steps.iter().filter_map(|state| state.leg())
    }

    /// Kinds of legs that are still to start.
    pub fn promised(&self) -> impl Iterator<Item = LegKind> {
        let pairs = self.plan.steps.iter().zip(&self.steps);
        pairs.filter(|(_, state)| **state == StepState::NotStarted).map(|(step, _)| step.kind)
    }
}

/// What is to happen once the legs that an attempt still has are dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Next {
    /// Try again if that is allowed; tell the client this if not.
    Again(Failure),
    /// The same, but it counts as a wait for room and not as an attempt.
    Later,
    Fail(Failure),
}
