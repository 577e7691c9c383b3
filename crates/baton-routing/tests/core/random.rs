//! Random inputs, checked against a small model that knows only what the outputs promise.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use baton_routing::{
    EngineKey, Input, LegFault, LegId, LegStart, Limits, Output, PolicyKind, RequestId, RouterCore,
    RoutingConfig, Strategy as Plan,
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
    Arrive { streaming: bool, known_model: bool },
    Gone(usize),
    Connected(usize),
    FirstByte(usize),
    Progress(usize),
    Blocked(usize),
    Ended(usize, bool),
    Failed(usize, LegFault),
    Probed { engine: u32, restarted: bool, waiting: u32 },
    ProbeRefused(u32),
    ProbeFailed(u32),
    Later(u64),
    Timeout,
}

fn op() -> impl Strategy<Value = Op> {
    let fault = prop::sample::select(vec![
        LegFault::Connect,
        LegFault::Broken,
        LegFault::Overloaded,
        LegFault::ServerError,
        LegFault::Refused,
        LegFault::BadAnswer,
    ]);
    let engine = 0..ROLES.len() as u32;
    prop_oneof![
        6 => (any::<bool>(), prop::bool::weighted(0.95))
            .prop_map(|(streaming, known_model)| Op::Arrive { streaming, known_model }),
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
    transfer: Option<TransferId>,
    /// The prefill leg of this attempt has answered with a handle.
    handle: bool,
}

struct World {
    core: RouterCore,
    limits: Limits,
    mode: Option<TransferMode>,
    now: Time,
    incarnations: Vec<u64>,
    arrived: u64,
    requests: BTreeMap<RequestId, RequestModel>,
    legs: BTreeMap<LegId, LegStart>,
    /// All legs there ever were, so that late reports are sent too.
    ever: Vec<LegId>,
    transfers: BTreeSet<TransferId>,
    log: String,
}

impl World {
    fn new(strategy: Plan, policy: PolicyKind) -> Self {
        let limits = Limits {
            max_requests: 12,
            max_queued: 4,
            max_legs_per_engine: 2,
            queue_ms: 400,
            ..Limits::default()
        };
        let engines = ROLES.to_vec();
        let mutation = Mutation::NONE;
        let config = RoutingConfig { engines, strategy, policy, limits: limits.clone(), mutation };
        let mut world = Self {
            core: RouterCore::new(config, [3; 32]),
            limits,
            mode: strategy.plan().mode,
            now: Time::ZERO,
            incarnations: vec![1; ROLES.len()],
            arrived: 0,
            requests: BTreeMap::new(),
            legs: BTreeMap::new(),
            ever: Vec::new(),
            transfers: BTreeSet::new(),
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
            Op::Arrive { streaming, known_model } => {
                self.arrived += 1;
                let model = if *known_model { "tiny" } else { "other" }.to_owned();
                let (request, sequences) =
                    (RequestId(self.arrived), 1 + u32::from(self.arrived.is_multiple_of(16)));
                let turn = None;
                Some(Input::Arrive { request, model: Some(model), streaming: *streaming, sequences, turn })
            }
            Op::Gone(n) => Some(Input::ClientGone { request: RequestId(*n as u64 % (self.arrived + 1)) }),
            Op::Connected(n) => leg(n).map(|leg| Input::LegConnected { leg }),
            Op::FirstByte(n) => leg(n).map(|leg| Input::LegFirstByte { leg }),
            Op::Blocked(n) => leg(n).map(|leg| Input::LegBlocked { leg }),
            Op::Progress(n) => leg(n).map(|leg| Input::LegProgress { leg }),
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

    fn feed(&mut self, input: Input) {
        match &input {
            Input::Arrive { request, .. } => {
                self.requests.insert(*request, RequestModel::default());
            }
            Input::LegFailed { leg, .. } => self.leg_over(*leg),
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
        self.core.handle_input(self.now, input.clone());
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
        }
        assert!(start.attempt <= self.limits.attempts);
        assert_eq!(Some(start.transfer), model.transfer, "one transfer id for all legs of an attempt");
        assert_eq!(start.mode.is_some(), start.kind != LegKind::Whole);
        assert!(start.mode.is_none() || start.mode == self.mode);
        if start.mode == Some(TransferMode::Pull) && start.kind == LegKind::Decode {
            assert!(model.handle, "decode starts before there is a handle");
        }
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
        let engine = start.engine;
        self.legs.insert(start.leg, start.clone());
        let live = self.legs.values().filter(|leg| leg.engine == engine).count();
        // The promise of slots to late legs holds while engines keep their standing; it may not when they change.
        let may_exceed = start.mode == Some(TransferMode::Pull) && start.kind == LegKind::Decode;
        assert!(may_exceed || live <= self.limits.max_legs_per_engine, "{engine:?} has {live} legs");
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
