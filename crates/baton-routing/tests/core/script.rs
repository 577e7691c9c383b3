//! A core under a clock of the test's own, with a transcript of what goes in and comes out.

use std::fmt::Write as _;
use std::time::Duration;

use baton_routing::{
    ConversationKey, EngineKey, Input, LegFault, LegId, LegStart, Limits, Output, PolicyKind, RequestId,
    Retained, RouterCore, RoutingConfig, Strategy, Turn,
};
use baton_types::{
    EngineId, EngineInfo, EngineLoad, EngineName, EngineRole, Mutation, SideChannel, Time, TransferId,
};

pub struct Script {
    pub core: RouterCore,
    roles: Vec<EngineRole>,
    now: Time,
    log: String,
    /// In order of appearance, so that a transcript shows which legs share one.
    transfers: Vec<TransferId>,
}

pub fn info(name: &str, incarnation: u64, role: EngineRole) -> EngineInfo {
    EngineInfo {
        engine_id: EngineId::new(EngineName::new(name).unwrap(), incarnation),
        role,
        model: "tiny".into(),
        side_channel: SideChannel { host: "10.0.0.1".into(), port: 5600 },
        transports: vec!["shm".into()],
        max_model_len: 8192,
        block_tokens: 16,
        unit_tokens: 16,
        kv_dtype: Some(baton_types::KvDtype::F32),
        prefix_cache: None,
        load: EngineLoad::default(),
    }
}

pub fn config(strategy: Strategy, engines: &[EngineRole], limits: Limits) -> RoutingConfig {
    let (engines, policy) = (engines.to_vec(), PolicyKind::RoundRobin);
    RoutingConfig { engines, strategy, policy, limits, mutation: Mutation::NONE }
}

pub fn arrival(request: u64) -> Input {
    let (request, model) = (RequestId(request), Some("tiny".to_owned()));
    Input::Arrive { request, model, streaming: true, sequences: 1, turn: None }
}

impl Script {
    /// A core whose engines have all been probed well.
    pub fn new(strategy: Strategy, engines: &[EngineRole]) -> Self {
        Self::with_limits(strategy, engines, Limits::default())
    }

    pub fn with_limits(strategy: Strategy, engines: &[EngineRole], limits: Limits) -> Self {
        Self::with_config(config(strategy, engines, limits))
    }

    pub fn with_config(config: RoutingConfig) -> Self {
        let engines = config.engines.clone();
        let core = RouterCore::new(config, [7; 32]);
        let mut script =
            Self { core, roles: engines.clone(), now: Time::ZERO, log: String::new(), transfers: Vec::new() };
        for key in 0..engines.len() {
            script.probe(key as u32, 1);
        }
        script.log.clear();
        script
    }

    /// Goes on to this time; fires no timer.
    pub fn at(&mut self, ms: u64) -> &mut Self {
        self.now = Time::from_millis(ms);
        self
    }

    /// Goes on to the next timer and fires it.
    pub fn timeout(&mut self) -> &mut Self {
        let (at, reason) = self.core.poll_timeout().expect("something is waited for");
        self.now = self.now.max(at);
        writeln!(self.log, "{}ms > time: {reason:?}", self.now.0 / 1_000_000).unwrap();
        self.feed(Input::Tick)
    }

    pub fn arrive(&mut self, request: u64) -> &mut Self {
        writeln!(self.log, "{}ms > Arrive r{request}", self.now.0 / 1_000_000).unwrap();
        self.feed(arrival(request))
    }

    /// A turn of a conversation: it looks for `find` and is stored under `store`.
    pub fn turn(&mut self, request: u64, find: &[u128], store: u128) -> &mut Self {
        writeln!(
            self.log,
            "{}ms > Arrive r{request}, finds {find:x?}, stores {store:x}",
            self.now.0 / 1_000_000
        )
        .unwrap();
        let find = find.iter().copied().map(ConversationKey).collect();
        let turn = Some(Turn { find, store: ConversationKey(store) });
        let (request, model) = (RequestId(request), Some("tiny".to_owned()));
        self.feed(Input::Arrive { request, model, streaming: true, sequences: 1, turn })
    }

    /// An engine's word that it retains 640 tokens for 480 s.
    pub fn retained(&mut self, leg: u64, engine: u32, incarnation: u64, transfer: u128) -> &mut Self {
        let engine = EngineId::new(EngineName::new(format!("n{engine}")).unwrap(), incarnation);
        let (tokens, ttl, transfer) = (640, Duration::from_secs(480), TransferId(transfer));
        let line = format!("Retained by {engine} as {transfer:?}");
        writeln!(self.log, "{}ms > l{leg}: {line}", self.now.0 / 1_000_000).unwrap();
        let retained = Retained { engine, transfer, tokens, ttl };
        self.feed(Input::LegRetained { leg: LegId(leg), retained })
    }

    pub fn gone(&mut self, request: u64) -> &mut Self {
        self.input(Input::ClientGone { request: RequestId(request) })
    }

    pub fn connected(&mut self, leg: u64) -> &mut Self {
        self.input(Input::LegConnected { leg: LegId(leg) })
    }

    pub fn first_byte(&mut self, leg: u64) -> &mut Self {
        self.input(Input::LegFirstByte { leg: LegId(leg) })
    }

    pub fn ended(&mut self, leg: u64) -> &mut Self {
        self.input(Input::LegEnded { leg: LegId(leg), handle: true })
    }

    pub fn failed(&mut self, leg: u64, fault: LegFault) -> &mut Self {
        self.input(Input::LegFailed { leg: LegId(leg), fault })
    }

    pub fn probe(&mut self, engine: u32, incarnation: u64) -> &mut Self {
        let info = info(&format!("n{engine}"), incarnation, self.roles[engine as usize]);
        writeln!(self.log, "{}ms > Probed e{engine}: {}", self.now.0 / 1_000_000, info.engine_id).unwrap();
        self.feed(Input::Probed { engine: EngineKey(engine), info })
    }

    pub fn input(&mut self, input: Input) -> &mut Self {
        writeln!(self.log, "{}ms > {input:?}", self.now.0 / 1_000_000).unwrap();
        self.feed(input)
    }

    fn feed(&mut self, input: Input) -> &mut Self {
        self.core.handle_input(self.now, input);
        while let Some(output) = self.core.poll_output() {
            let line = match output {
                Output::StartLeg(start) => self.describe(&start),
                other => format!("{other:?}"),
            };
            writeln!(self.log, "    < {line}").unwrap();
        }
        self.core.check();
        self
    }

    fn describe(&mut self, start: &LegStart) -> String {
        let known = self.transfers.iter().position(|t| *t == start.transfer);
        let transfer = known.unwrap_or_else(|| {
            self.transfers.push(start.transfer);
            self.transfers.len() - 1
        });
        let LegStart { leg, request, engine, kind, mode, peer, reuse, attempt, .. } = start;
        let mode = mode.map_or("alone".into(), |mode| format!("{mode:?}"));
        let peer = peer.as_ref().map_or(String::new(), |p| format!(", peer {:?} {}", p.engine, p.id));
        let reuse = reuse.as_ref().map_or(String::new(), |r| {
            let (holder, ms) = (&r.holder, r.ttl.as_millis());
            format!(
                ", reuse {:?} of {:?} {}, {} tokens, {ms}ms",
                r.transfer, holder.engine, holder.id, r.tokens
            )
        });
        format!(
            "StartLeg {leg:?} of {request:?}: {kind:?} on {engine:?}, {mode}, attempt {attempt}, x{transfer}{peer}{reuse}"
        )
    }

    /// What has happened since the last call.
    pub fn transcript(&mut self) -> String {
        std::mem::take(&mut self.log)
    }
}
