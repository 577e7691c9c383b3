//! Random inputs, checked against a small model that knows only what the outputs promise.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use baton_routing::{
    ConversationKey, ConversationLimits, EngineKey, Input, LegFault, LegId, LegStart, Limits, Output,
    PolicyKind, RequestId, Retained, RouterCore, RoutingConfig, Strategy as Plan, Turn,
};
use baton_types::{
    EngineId, EngineInfo, EngineLoad, EngineName, EngineRole, LegKind, Mutation, SideChannel, Time,
    TransferId, TransferMode,
};
use proptest::prelude::*;

const ROLES: [EngineRole; 6] = [
    EngineRole::Prefill,
    EngineRole::Decode,
    EngineRole::Prefill,
    EngineRole::Both,
    EngineRole::Decode,
    EngineRole::Both,
];

/// One thing that happens; numbers are taken modulo what there is.
#[derive(Clone, Debug)]
enum Op {
    Arrive {
        streaming: bool,
        known_model: bool,
        turn: Option<(Vec<u128>, u128)>,
    },
    Gone(usize),
    Connected(usize),
    FirstByte(usize),
    Progress(usize),
    Blocked(usize),
    /// `own`: the engine speaks for itself; else for its next incarnation.
    Retained {
        leg: usize,
        own: bool,
        ttl_ms: u64,
    },
    Ended(usize, bool),
    Failed(usize, LegFault),
    Probed {
        engine: u32,
        restarted: bool,
        waiting: u32,
    },
    ProbeRefused(u32),
    ProbeFailed(u32),
    Later(u64),
    Timeout,
}

/// Few keys, so that turns meet.
fn turn() -> impl Strategy<Value = (Vec<u128>, u128)> {
    (prop::collection::vec(0..5u128, 0..4), 0..5u128)
}

fn op() -> impl Strategy<Value = Op> {
    let fault = prop::sample::select(vec![
        LegFault::Connect,
        LegFault::Broken,
        LegFault::Overloaded,
        LegFault::KvInFlight,
        LegFault::ServerError,
        LegFault::Refused,
        LegFault::BadAnswer,
    ]);
    let engine = 0..ROLES.len() as u32;
    prop_oneof![
        6 => (any::<bool>(), prop::bool::weighted(0.95), prop::option::weighted(0.8, turn()))
            .prop_map(|(streaming, known_model, turn)| Op::Arrive { streaming, known_model, turn }),
        5 => (any::<usize>(), prop::bool::weighted(0.9), 0..3000u64)
            .prop_map(|(leg, own, ttl_ms)| Op::Retained { leg, own, ttl_ms }),
        1 => any::<usize>().prop_map(Op::Gone),
        3 => any::<usize>().prop_map(Op::Connected),
        5 => any::<usize>().prop_map(Op::FirstByte),
        1 => any::<usize>().prop_map(Op::Progress),
        1 => any::<usize>().prop_map(Op::Blocked),
        6 => (any::<usize>(), prop::bool::weighted(0.9)).prop_map(|(leg, handle)| Op::Ended(leg, handle)),
        4 => (any::<usize>(), fault).prop_map(|(leg, fault)| Op::Failed(leg, fault)),
        2 => (engine.clone(), prop::bool::weighted(0.3), 0..5u32)
            .prop_map(|(engine, restarted, waiting)| Op::Probed { engine, restarted, waiting }),
        1 => engine.clone().prop_map(Op::ProbeRefused),
        1 => engine.prop_map(Op::ProbeFailed),
        3 => (0..500u64).prop_map(Op::Later),
        1 => Just(Op::Timeout),
    ]
}

#[derive(Debug, Default)]
struct RequestModel {
    live: BTreeMap<LegKind, LegId>,
    answering: Option<LegId>,
    attempt: u32,
    /// Legs that an engine full of KV refused: their attempts do not count.
    refused_for_now: u32,
    transfer: Option<TransferId>,
    /// The prefill leg of this attempt has answered with a handle.
    handle: bool,
    turn: Option<Turn>,
}

/// What an engine has said that it retains.
#[derive(Debug)]
struct Kept {
    key: ConversationKey,
    engine: EngineKey,
    /// When its leg began: it is kept from the leg's end.
    since: Time,
    retained: Retained,
}

struct World {
    core: RouterCore,
    limits: Limits,
    mode: Option<TransferMode>,
    reuses: bool,
    now: Time,
    incarnations: Vec<u64>,
    arrived: u64,
    requests: BTreeMap<RequestId, RequestModel>,
    legs: BTreeMap<LegId, LegStart>,
    /// All legs there ever were, so that late reports are sent too.
    ever: Vec<LegId>,
    /// When each leg began.
    began: BTreeMap<LegId, Time>,
    transfers: BTreeSet<TransferId>,
    /// How often an engine has said that it retains something.
    said: u128,
    /// What it has, by the id under which it can be claimed.
    kept: BTreeMap<TransferId, Kept>,
    /// Under each key, what was said last.
    latest: BTreeMap<ConversationKey, TransferId>,
    /// What an attempt has failed with.
    burnt: BTreeSet<TransferId>,
    given: BTreeMap<RequestId, TransferId>,
    log: String,
}

impl World {
    fn new(strategy: Plan, policy: PolicyKind) -> Self {
        let limits = Limits {
            max_requests: 12,
            max_queued: 4,
            max_legs_per_engine: 2,
            queue_ms: 400,
            conversations: ConversationLimits { entries: 3, slack: 1, ..ConversationLimits::default() },
            ..Limits::default()
        };
        let engines = ROLES.to_vec();
        let mutation = Mutation::NONE;
        let config = RoutingConfig { engines, strategy, policy, limits: limits.clone(), mutation };
        let mut world = Self {
            core: RouterCore::new(config, [3; 32]),
            limits,
            mode: strategy.plan().mode,
            reuses: strategy.plan().reuse,
            now: Time::ZERO,
            incarnations: vec![1; ROLES.len()],
            arrived: 0,
            requests: BTreeMap::new(),
            legs: BTreeMap::new(),
            ever: Vec::new(),
            began: BTreeMap::new(),
            transfers: BTreeSet::new(),
            said: 0,
            kept: BTreeMap::new(),
            latest: BTreeMap::new(),
            burnt: BTreeSet::new(),
            given: BTreeMap::new(),
            log: String::new(),
        };
        for engine in 0..4 {
            world.run(&Op::Probed { engine, restarted: false, waiting: 0 });
        }
        world
    }

    fn run(&mut self, op: &Op) {
        let leg = |n: &usize| {
            (!self.ever.is_empty()).then(|| self.ever[self.ever.len() - 1 - n % self.ever.len().min(8)])
        };
        let input = match op {
            Op::Arrive { streaming, known_model, turn } => {
                self.arrived += 1;
                let model = if *known_model { "tiny" } else { "other" }.to_owned();
                let (request, sequences) =
                    (RequestId(self.arrived), 1 + u32::from(self.arrived.is_multiple_of(16)));
                let turn = turn.clone().map(|(find, store)| Turn {
                    find: find.into_iter().map(ConversationKey).collect(),
                    store: ConversationKey(store),
                });
                Some(Input::Arrive { request, model: Some(model), streaming: *streaming, sequences, turn })
            }
            Op::Gone(n) => Some(Input::ClientGone { request: RequestId(*n as u64 % (self.arrived + 1)) }),
            Op::Connected(n) => leg(n).map(|leg| Input::LegConnected { leg }),
            Op::FirstByte(n) => leg(n).map(|leg| Input::LegFirstByte { leg }),
            Op::Blocked(n) => leg(n).map(|leg| Input::LegBlocked { leg }),
            Op::Progress(n) => leg(n).map(|leg| Input::LegProgress { leg }),
            Op::Retained { leg: n, own, ttl_ms } => {
                leg(n).and_then(|leg| self.retained(leg, *own, Duration::from_millis(*ttl_ms)))
            }
            Op::Ended(n, handle) => leg(n).map(|leg| Input::LegEnded { leg, handle: *handle }),
            Op::Failed(n, fault) => leg(n).map(|leg| Input::LegFailed { leg, fault: *fault }),
            Op::Probed { engine, restarted, waiting } => {
                let incarnation = &mut self.incarnations[*engine as usize];
                *incarnation += u64::from(*restarted);
                let info = info(*engine, *incarnation, *waiting);
                Some(Input::Probed { engine: EngineKey(*engine), info })
            }
            Op::ProbeRefused(engine) => Some(Input::ProbeRefused { engine: EngineKey(*engine) }),
            Op::ProbeFailed(engine) => Some(Input::ProbeFailed { engine: EngineKey(*engine) }),
            Op::Later(ms) => {
                self.now += Duration::from_millis(*ms);
                Some(Input::Tick)
            }
            Op::Timeout => {
                self.now = self.core.poll_timeout().map_or(self.now, |(at, _)| self.now.max(at));
                Some(Input::Tick)
            }
        };
        if let Some(input) = input {
            self.feed(input);
        }
    }

    /// What the leg's engine says, whether or not it is the one to say it.
    fn retained(&mut self, leg: LegId, own: bool, ttl: Duration) -> Option<Input> {
        let EngineKey(engine) = self.legs.get(&leg)?.engine;
        let incarnation = self.incarnations[engine as usize] + u64::from(!own);
        self.said += 1;
        let (transfer, tokens) = (TransferId(self.said), 64);
        let engine = info(engine, incarnation, 0).engine_id;
        Some(Input::LegRetained { leg, retained: Retained { engine, transfer, tokens, ttl } })
    }

    /// The core has believed what a leg's engine said.
    fn see_stored(&mut self, leg: LegId, retained: Retained) {
        let start = &self.legs[&leg];
        let turn = self.requests[&start.request].turn.as_ref().expect("part of a conversation");
        let EngineKey(engine) = start.engine;
        assert!(self.reuses && start.kind == LegKind::Decode);
        assert_eq!(retained.engine, info(engine, self.incarnations[engine as usize], 0).engine_id);
        self.latest.insert(turn.store, retained.transfer);
        let kept = Kept { key: turn.store, engine: start.engine, since: self.began[&leg], retained };
        self.kept.insert(kept.retained.transfer, kept);
    }

    fn feed(&mut self, input: Input) {
        match &input {
            Input::Arrive { request, turn, .. } => {
                let turn = turn.clone();
                self.requests.insert(*request, RequestModel { turn, ..RequestModel::default() });
            }
            Input::LegFailed { leg, fault } => {
                if let Some(start) = self.legs.get(leg).filter(|_| *fault == LegFault::KvInFlight) {
                    self.requests.get_mut(&start.request).unwrap().refused_for_now += 1;
                }
                self.leg_over(*leg);
            }
            Input::LegEnded { leg, handle } => {
                if let Some(start) = self.legs.get(leg)
                    && start.kind == LegKind::Prefill
                {
                    self.requests.get_mut(&start.request).unwrap().handle = *handle;
                }
                self.leg_over(*leg);
            }
            _ => {}
        }
        let stored = self.core.conversations().stored;
        self.core.handle_input(self.now, input.clone());
        if let Input::LegRetained { leg, retained } = &input
            && self.core.conversations().stored > stored
        {
            self.see_stored(*leg, retained.clone());
        }
        while let Some(output) = self.core.poll_output() {
            self.log.push_str(&format!("{output:?}\n"));
            self.see(output, &input);
        }
        self.core.check();
        assert_eq!(self.core.live_requests(), self.requests.len());
        assert!(self.requests.len() <= self.limits.max_requests);
    }

    fn leg_over(&mut self, leg: LegId) {
        if let Some(start) = self.legs.remove(&leg) {
            self.requests.get_mut(&start.request).unwrap().live.remove(&start.kind);
        }
    }

    fn see(&mut self, output: Output, cause: &Input) {
        match output {
            Output::StartLeg(start) => self.see_start(start),
            Output::DropLeg { leg, .. } => {
                assert!(self.legs.contains_key(&leg), "{leg:?} is dropped, but not live");
                self.leg_over(leg);
            }
            Output::Answer { request, leg } => {
                assert_eq!(*cause, Input::LegFirstByte { leg });
                assert_ne!(self.legs[&leg].kind, LegKind::Prefill);
                let before = self.requests.get_mut(&request).unwrap().answering.replace(leg);
                assert_eq!(before, None, "{request:?} is answered twice");
            }
            Output::Finished { request, .. } => {
                self.given.remove(&request);
                let model = self.requests.remove(&request).expect("finished once, and only after it arrived");
                assert!(model.live.is_empty(), "{request:?} is over, its legs are not: {model:?}");
            }
        }
    }

    fn see_start(&mut self, start: LegStart) {
        let model = self.requests.get_mut(&start.request).expect("legs belong to live requests");
        assert_eq!(model.answering, None, "I9: a leg starts after the first byte");
        if start.attempt != model.attempt {
            assert_eq!(start.attempt, model.attempt + 1);
            assert!(model.live.is_empty(), "a new attempt while legs of the old one live");
            assert!(self.transfers.insert(start.transfer), "a transfer id is used again");
            (model.attempt, model.transfer, model.handle) = (start.attempt, Some(start.transfer), false);
            // An attempt has failed with it: it may be why.
            self.burnt.extend(self.given.remove(&start.request));
        }
        assert!(start.attempt - model.refused_for_now <= self.limits.attempts);
        assert_eq!(Some(start.transfer), model.transfer, "one transfer id for all legs of an attempt");
        assert_eq!(start.mode.is_some(), start.kind != LegKind::Whole);
        assert!(start.mode.is_none() || start.mode == self.mode);
        if start.mode == Some(TransferMode::Pull) && start.kind == LegKind::Decode {
            assert!(model.handle, "decode starts before there is a handle");
        }
        self.see_reuse(&start);
        let model = self.requests.get_mut(&start.request).unwrap();
        let before = model.live.insert(start.kind, start.leg);
        assert_eq!(before, None, "I9: two live legs of a kind");
        let role = ROLES[start.engine.0 as usize];
        let fits = [
            (EngineRole::Prefill, LegKind::Prefill),
            (EngineRole::Decode, LegKind::Decode),
            (EngineRole::Both, LegKind::Whole),
        ];
        assert!(fits.contains(&(role, start.kind)), "{:?} on an engine of role {role}", start.kind);
        self.ever.push(start.leg);
        self.began.insert(start.leg, self.now);
        let engine = start.engine;
        self.legs.insert(start.leg, start.clone());
        let live = self.legs.values().filter(|leg| leg.engine == engine).count();
        // The promise of slots to late legs holds while engines keep their standing; it may not when they change.
        let may_exceed = start.mode == Some(TransferMode::Pull) && start.kind == LegKind::Decode;
        assert!(may_exceed || live <= self.limits.max_legs_per_engine, "{engine:?} has {live} legs");
    }

    /// What is offered was retained, by the engine that is said to have it, which has not been restarted since, for one of
    /// the turn's own conversations; and it will still be there when it is claimed.
    fn see_reuse(&mut self, start: &LegStart) {
        let Some(reuse) = &start.reuse else { return };
        assert!(self.reuses, "another strategy");
        assert_eq!((start.kind, start.attempt), (LegKind::Prefill, 1));
        let kept = &self.kept[&reuse.transfer];
        let turn = self.requests[&start.request].turn.as_ref().expect("part of a conversation");
        // I13: no key that the request does not have.
        assert!(turn.find.contains(&kept.key), "{turn:?} has no claim to {kept:?}");
        assert_eq!(self.latest[&kept.key], reuse.transfer, "a later turn was stored under that key");
        assert!(!self.burnt.contains(&reuse.transfer), "an attempt has failed with it");
        let (holder, said) = (&reuse.holder, &kept.retained);
        assert_eq!((holder.engine, &holder.id, reuse.tokens), (kept.engine, &said.engine, said.tokens));
        let incarnation = self.incarnations[holder.engine.0 as usize];
        assert_eq!(said.engine.incarnation.0, incarnation, "it was restarted since");
        assert!(
            reuse.ttl > Duration::ZERO && self.now + reuse.ttl <= kept.since + said.ttl,
            "it ends sooner"
        );
        self.given.insert(start.request, reuse.transfer);
    }

    /// I8: once nothing new comes, everything ends by the core's own time limits.
    fn drain(&mut self) {
        for _ in 0..1000 {
            if self.core.poll_timeout().is_none() {
                break;
            }
            self.run(&Op::Timeout);
        }
        assert_eq!(self.core.poll_timeout(), None);
        assert!(self.requests.is_empty(), "these never end: {:?}", self.requests);
        assert!(self.legs.is_empty());
    }
}

fn info(engine: u32, incarnation: u64, waiting: u32) -> EngineInfo {
    EngineInfo {
        engine_id: EngineId::new(EngineName::new(format!("n{engine}")).unwrap(), incarnation),
        role: ROLES[engine as usize],
        model: "tiny".into(),
        side_channel: SideChannel { host: "::1".into(), port: 5600 },
        transports: vec!["shm".into()],
        max_model_len: 8192,
        block_tokens: 16,
        unit_tokens: 16,
        kv_dtype: Some(baton_types::KvDtype::F32),
        prefix_cache: None,
        load: EngineLoad { waiting, ..EngineLoad::default() },
    }
}

fn play(strategy: Plan, policy: PolicyKind, ops: &[Op]) -> String {
    let mut world = World::new(strategy, policy);
    for op in ops {
        world.run(op);
    }
    world.drain();
    world.log
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_outputs_keep_their_promises(
        strategy in prop::sample::select(Plan::ALL.to_vec()),
        policy in prop::sample::select(PolicyKind::ALL.to_vec()),
        ops in prop::collection::vec(op(), 1..200),
    ) {
        let log = play(strategy, policy, &ops);
        // I10
        prop_assert_eq!(log, play(strategy, policy, &ops));
    }
}
