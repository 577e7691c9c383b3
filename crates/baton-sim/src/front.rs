//! The router's driver: clients on one side, legs to the engines on the other. It decides nothing.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use baton_engine::HandOff;
use baton_proto::PeerAddress;
use baton_routing::{EngineKey, Input, LegFault, LegId, LegStart, Output, RequestEnd, RequestId, RouterCore};
use baton_types::{EngineInfo, EngineRole, LegKind, Time, TokenId, TransferId, TransferMode};

use crate::ask::Reference;
use crate::client::{ClientState, MODEL_NAME};
use crate::conversation::RetainedAt;
use crate::depth::Depth;
use crate::fault::Fault;
use crate::leg_book::LegBook;
use crate::split::Place;
use crate::world::{Event, World};

/// Handles that can be mixed up.
const MAX_RECENT: usize = 6;

#[derive(Debug)]
pub(crate) struct Front {
    pub core: RouterCore,
    /// By engine key: which node it is, and for what it is asked.
    pub faces: Vec<(usize, EngineRole)>,
    /// Lives of the router's process so far, the present one included.
    pub lives: u64,
    /// Dead, and not back yet.
    pub down: bool,
    pub legs: BTreeMap<LegId, OpenLeg>,
    pub book: LegBook,
    /// Where the prefill leg of a request said that its KV is.
    handles: BTreeMap<RequestId, PeerAddress>,
    /// The latest handles that were sent to decode engines.
    recent: VecDeque<(TransferId, PeerAddress)>,
    /// In true time.
    pub timer: Option<Time>,
}

/// A leg's connection: legs are numbered anew in each life of the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub router: u64,
    pub leg: LegId,
}

/// The router's half of a leg, until it is reported over or dropped.
#[derive(Debug)]
pub(crate) struct OpenLeg {
    pub client: usize,
    pub node: usize,
    pub kind: LegKind,
    /// Nothing that is sent to the engine may arrive before this.
    pub sent: Time,
}

/// What a leg asks of its engine.
#[derive(Clone, Debug)]
pub(crate) struct LegAsk {
    pub line: Line,
    pub client: usize,
    pub kind: LegKind,
    pub hand_off: HandOff,
    /// What a prefill engine may read instead of computing it.
    pub reuse: Option<RetainedAt>,
    /// Sent again by somebody in between, who throws the answer away.
    pub copy: bool,
}

/// What an engine sends back on a leg, in order.
#[derive(Clone, Debug)]
pub(crate) enum LegNews {
    Connected,
    Token(TokenId),
    /// The end of the answer; all of it, if it was not streamed. A prefill leg's has the handle.
    Complete {
        body: Vec<TokenId>,
        handle: Option<PeerAddress>,
        retained: Option<RetainedAt>,
    },
    Failed(LegFault),
}

/// What a probe hears.
#[derive(Clone, Debug)]
pub(crate) enum Probe {
    Ready(Box<EngineInfo>),
    Refused,
    Failed,
}

impl Front {
    pub fn new(core: RouterCore, faces: Vec<(usize, EngineRole)>) -> Self {
        Self {
            core,
            faces,
            lives: 1,
            down: false,
            legs: BTreeMap::new(),
            book: LegBook::default(),
            handles: BTreeMap::new(),
            recent: VecDeque::new(),
            timer: None,
        }
    }

    fn face(&self, engine: EngineKey) -> (usize, EngineRole) {
        self.faces[engine.0 as usize]
    }

    /// The process is gone: its half of every leg, by the number of the leg.
    pub fn die(&mut self) -> BTreeMap<LegId, OpenLeg> {
        self.down = true;
        self.timer = None;
        self.handles.clear();
        self.book.forget_requests();
        std::mem::take(&mut self.legs)
    }

    pub fn start(&mut self, core: RouterCore) {
        self.core = core;
        self.lives += 1;
        self.down = false;
    }

    /// The leg of the present life that this is, if it is still open.
    pub fn open(&self, line: Line) -> Option<&OpenLeg> {
        self.legs.get(&line.leg).filter(|_| line.router == self.lives)
    }
}

impl World {
    // The clients.

    pub fn client_arrives(&mut self, client: usize) {
        if let Some(recording) = &self.recording {
            self.clients[client].remember(recording.prompt(client), self.depth, &self.scenario.layout);
        }
        let asker = &mut self.clients[client];
        asker.state = ClientState::Waiting;
        asker.arrived = self.now;
        let ask = &asker.ask;
        let (streaming, prompt, most) = (ask.streaming, ask.prompt.len(), ask.max_tokens);
        let reuses = self.scenario.strategy.plan().reuse;
        let turn = ask.turn(self.scenario.names_are_global).filter(|_| reuses);
        self.note("client", format_args!("r{client} asks: {prompt} tokens, at most {most} back"));
        self.tally.requests += 1;
        if self.arrivals.arrived() {
            let calm = self.now + Duration::from_micros(self.scenario.unrest_us);
            self.queue.push(calm, Event::Quiet);
        }
        if self.front.down {
            return self.end_client(client, ClientState::Failed);
        }
        let request = RequestId(client as u64);
        let model = Some(MODEL_NAME.into());
        self.tell_router(Input::Arrive { request, model, streaming, sequences: 1, turn });
    }

    pub fn client_leaves(&mut self, client: usize) {
        self.note("client", format_args!("r{client} leaves"));
        self.client_is_gone(client);
        self.tell_router(Input::ClientGone { request: RequestId(client as u64) });
    }

    fn client_is_gone(&mut self, client: usize) {
        let asker = &mut self.clients[client];
        asker.attached = None;
        if std::mem::replace(&mut asker.state, ClientState::Gone) != ClientState::Gone {
            self.begin_thinking(client);
        }
    }

    // The router.

    /// One input to the router's core, all its outputs, and its invariants.
    pub fn tell_router(&mut self, input: Input) {
        self.log.line(self.now, "router", format_args!("<- {input:?}"));
        let clock = self.scenario.router_clock;
        self.front.core.handle_input(clock.shows(self.now), input);
        let mut outputs = Vec::new();
        while let Some(output) = self.front.core.poll_output() {
            self.log.line(self.now, "router", format_args!("-> {output:?}"));
            outputs.push(output);
        }
        if self.depth == Depth::Bytes {
            self.front.core.check();
        }
        self.front.timer = self.front.core.poll_timeout().map(|(due, _)| clock.reaches(due));
        for output in outputs {
            match output {
                Output::StartLeg(start) => self.start_leg(start),
                Output::DropLeg { leg, .. } => self.drop_leg(leg),
                Output::Answer { request, leg } => {
                    self.front.book.answer(request, leg);
                    let line = Line { router: self.front.lives, leg };
                    self.clients[request.0 as usize].attached = Some(line);
                }
                Output::Finished { request, end } => self.request_ends(request, end),
            }
        }
    }

    fn start_leg(&mut self, start: LegStart) {
        self.front.book.start(&start, self.scenario.limits.attempts);
        let LegStart { leg, request, engine, kind, mode, transfer, peer, reuse, .. } = start;
        let hand_off = match (kind, mode) {
            (LegKind::Prefill, Some(mode)) => HandOff::ToPeer { transfer, mode },
            (LegKind::Decode, Some(mode)) => {
                let known =
                    peer.map(|peer| PeerAddress { engine: peer.id, host: peer.host, port: peer.port });
                // What a prefill leg said is this attempt's only where decode has waited for it.
                let told = self.front.handles.remove(&request).filter(|_| mode == TransferMode::Pull);
                let peer = told.or(known).expect("a decode leg has a peer");
                let (transfer, peer) = self.handle_for(transfer, peer);
                HandOff::FromPeer { transfer, mode, peer }
            }
            _ => HandOff::None,
        };
        let (client, (node, _)) = (request.0 as usize, self.front.face(engine));
        let reuse = self.reference(client, reuse.map(RetainedAt::from)).filter(|_| kind == LegKind::Prefill);
        let sent = self.arrival(Place::Router, Place::Node(node));
        self.tally.legs += 1;
        self.front.legs.insert(leg, OpenLeg { client, node, kind, sent });
        if self.strikes(Fault::LegLost) {
            return;
        }
        let line = Line { router: self.front.lives, leg };
        let ask = LegAsk { line, client, kind, hand_off, reuse, copy: false };
        if self.strikes(Fault::LegDoubled) {
            let again = self.arrival(Place::Router, Place::Node(node));
            self.queue.push(again, Event::LegArrives { node, ask: LegAsk { copy: true, ..ask.clone() } });
        }
        self.queue.push(sent, Event::LegArrives { node, ask });
    }

    /// The handle that a decode leg brings: its own, unless somebody mixes them up.
    fn handle_for(&mut self, transfer: TransferId, peer: PeerAddress) -> (TransferId, PeerAddress) {
        let own = (transfer, peer);
        self.front.recent.push_back(own.clone());
        if self.front.recent.len() > MAX_RECENT {
            self.front.recent.pop_front();
        }
        if !self.strikes(Fault::WrongHandle) {
            return own;
        }
        let other = self.luck.of(Fault::WrongHandle).below(self.front.recent.len() as u64) as usize;
        self.front.recent[other].clone()
    }

    /// What a prefill leg says of what is retained: what the router found, unless somebody else has put something there.
    fn reference(&self, client: usize, found: Option<RetainedAt>) -> Option<RetainedAt> {
        match self.clients[client].ask.reference {
            Reference::Found => found,
            Reference::Of(number) => self.retained.get(&number).cloned(),
            Reference::Overstated(number) => {
                self.retained.get(&number).map(|retained| RetainedAt { tokens: u32::MAX, ..retained.clone() })
            }
            Reference::ForgedFrom(number) => self.retained.get(&number).map(|retained| {
                let retention = TransferId(!retained.retention.0);
                RetainedAt { retention, ..retained.clone() }
            }),
        }
    }

    fn drop_leg(&mut self, leg: LegId) {
        let Some(open) = self.front.legs.remove(&leg) else { return };
        self.front.book.leg_over(RequestId(open.client as u64), leg);
        self.hang_up_leg(Line { router: self.front.lives, leg }, &open);
    }

    /// The router's half of a leg is closed; the engine hears of it.
    pub fn hang_up_leg(&mut self, line: Line, open: &OpenLeg) {
        let arrives = self.arrival(Place::Router, Place::Node(open.node)).max(open.sent);
        self.queue.push(arrives, Event::LegDrops { node: open.node, line });
    }

    /// Something arrives at the router on a leg. What comes after its end finds nobody.
    pub fn leg_news(&mut self, line: Line, news: LegNews) {
        let Some(open) = self.front.open(line) else { return };
        let (leg, client, kind) = (line.leg, open.client, open.kind);
        let answers = kind != LegKind::Prefill;
        match news {
            LegNews::Connected => self.tell_router(Input::LegConnected { leg }),
            LegNews::Token(token) => self.pass_on(line, client, &[token]),
            LegNews::Complete { body, handle, retained } => {
                if let Some(retained) = retained {
                    self.tell_router(Input::LegRetained { leg, retained: retained.told() });
                }
                if answers && !body.is_empty() {
                    self.pass_on(line, client, &body);
                }
                let has_handle = handle.is_some();
                if let Some(address) = handle {
                    self.front.handles.insert(RequestId(client as u64), address);
                }
                self.leg_is_over(leg, client, Input::LegEnded { leg, handle: has_handle });
            }
            LegNews::Failed(fault) => {
                if fault == LegFault::KvInFlight {
                    self.front.book.wait(RequestId(client as u64), leg);
                }
                self.leg_is_over(leg, client, Input::LegFailed { leg, fault });
            }
        }
    }

    fn leg_is_over(&mut self, leg: LegId, client: usize, input: Input) {
        self.front.legs.remove(&leg);
        self.front.book.leg_over(RequestId(client as u64), leg);
        self.tell_router(input);
    }

    /// Tokens of an answer: to the client, if this is the leg whose stream it gets.
    fn pass_on(&mut self, line: Line, client: usize, tokens: &[TokenId]) {
        let leg = line.leg;
        if self.clients[client].attached == Some(line) {
            // Not every byte needs to be reported, but that a client takes them again.
            let stalled = std::mem::take(&mut self.clients[client].stalled_until) > Time::ZERO;
            if stalled || self.random.chance(300) {
                self.tell_router(Input::LegProgress { leg });
            }
        } else {
            self.tell_router(Input::LegFirstByte { leg });
        }
        if self.clients[client].attached == Some(line) {
            for token in tokens {
                self.clients[client].receive(self.now, *token);
            }
        }
    }

    fn request_ends(&mut self, request: RequestId, end: RequestEnd) {
        self.front.handles.remove(&request);
        self.front.book.finish(request);
        let client = request.0 as usize;
        match end {
            RequestEnd::Answered => self.check_answer(client),
            RequestEnd::ClientGone => {
                let asker = &self.clients[client];
                // One that takes nothing for too long is as good as gone.
                let stalls = asker.stalled_until > Time::ZERO && asker.state == ClientState::Waiting;
                assert!(stalls || asker.state == ClientState::Gone, "r{client} has not left");
                self.client_is_gone(client);
            }
            RequestEnd::Failed(why) => {
                self.check_failure(client, why);
                self.end_client(client, ClientState::Failed);
            }
        }
    }

    /// Each client hears one end.
    pub fn end_client(&mut self, client: usize, end: ClientState) {
        let asker = &mut self.clients[client];
        assert_eq!(asker.state, ClientState::Waiting, "r{client} ends twice");
        asker.state = end;
        asker.attached = None;
        self.begin_thinking(client);
    }

    // Probes.

    pub fn probe(&mut self, engine: EngineKey) {
        let (node, _) = self.front.face(engine);
        let arrives = self.arrival(Place::Router, Place::Node(node));
        self.queue.push(arrives, Event::ProbeArrives { node, engine });
    }

    pub fn probe_arrives(&mut self, node: usize, engine: EngineKey) {
        let (_, role) = self.front.face(engine);
        let probe = match (self.nodes[node].info(role), &self.nodes[node].process) {
            (Some(info), _) => Probe::Ready(Box::new(info)),
            (None, Some(_)) => Probe::Refused,
            (None, None) => Probe::Failed,
        };
        let arrives = self.arrival(Place::Node(node), Place::Router);
        self.queue.push(arrives, Event::Probed { engine, probe });
    }

    pub fn probed(&mut self, engine: EngineKey, probe: Probe) {
        if !self.front.down {
            self.tell_router(match probe {
                Probe::Ready(info) => Input::Probed { engine, info: *info },
                Probe::Refused => Input::ProbeRefused { engine },
                Probe::Failed => Input::ProbeFailed { engine },
            });
        }
        let again = self.now + Duration::from_micros(self.scenario.network.probe_us);
        self.queue.push(again, Event::Probe { engine });
    }
}
