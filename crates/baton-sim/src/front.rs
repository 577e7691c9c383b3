//! The router's driver: clients on one side, legs to the engines on the other. It decides nothing.

use std::collections::{BTreeMap, VecDeque};

use baton_engine::HandOff;
use baton_proto::PeerAddress;
use baton_routing::{EngineKey, Input, LegFault, LegId, LegStart, Output, RequestEnd, RequestId, RouterCore};
use baton_types::{EngineInfo, LegKind, Time, TokenId, TransferId};

use crate::client::{ClientState, MODEL_NAME};
use crate::fault::Fault;
use crate::world::{Event, World};

/// Handles that can be mixed up.
const MAX_RECENT: usize = 6;

#[derive(Debug)]
pub(crate) struct Front {
    pub core: RouterCore,
    pub legs: BTreeMap<LegId, OpenLeg>,
    /// Where the prefill leg of a request said that its KV is.
    handles: BTreeMap<RequestId, PeerAddress>,
    /// The latest handles that were sent to decode engines.
    recent: VecDeque<(TransferId, PeerAddress)>,
    pub timer: Option<Time>,
}

/// The router's half of a leg, until it is reported over or dropped.
#[derive(Debug)]
pub(crate) struct OpenLeg {
    pub client: usize,
    pub node: usize,
    pub kind: LegKind,
    /// Nothing that is sent to the engine may arrive before this.
    sent: Time,
}

/// What a leg asks of its engine.
#[derive(Clone, Debug)]
pub(crate) struct LegAsk {
    pub leg: LegId,
    pub client: usize,
    pub kind: LegKind,
    pub hand_off: HandOff,
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
    pub fn new(core: RouterCore) -> Self {
        Self { core, legs: BTreeMap::new(), handles: BTreeMap::new(), recent: VecDeque::new(), timer: None }
    }
}

impl World {
    // The clients.

    pub fn client_arrives(&mut self, client: usize) {
        let asker = &mut self.clients[client];
        asker.state = ClientState::Waiting;
        let (streaming, prompt, most) = (asker.streaming, asker.prompt.len(), asker.max_tokens);
        self.note("client", format_args!("r{client} asks: {prompt} tokens, at most {most} back"));
        self.tally.requests += 1;
        let request = RequestId(client as u64);
        self.tell_router(Input::Arrive { request, model: Some(MODEL_NAME.into()), streaming, sequences: 1 });
    }

    pub fn client_leaves(&mut self, client: usize) {
        self.note("client", format_args!("r{client} leaves"));
        self.clients[client].state = ClientState::Gone;
        self.clients[client].attached = None;
        self.tell_router(Input::ClientGone { request: RequestId(client as u64) });
    }

    // The router.

    /// One input to the router's core, all its outputs, and its invariants.
    pub fn tell_router(&mut self, input: Input) {
        self.log.line(self.now, "router", format_args!("<- {input:?}"));
        self.front.core.handle_input(self.now, input);
        let mut outputs = Vec::new();
        while let Some(output) = self.front.core.poll_output() {
            self.log.line(self.now, "router", format_args!("-> {output:?}"));
            outputs.push(output);
        }
        self.front.core.check();
        self.front.timer = self.front.core.poll_timeout().map(|(due, _)| due);
        for output in outputs {
            match output {
                Output::StartLeg(start) => self.start_leg(start),
                Output::DropLeg { leg, .. } => self.drop_leg(leg),
                Output::Answer { request, leg } => self.clients[request.0 as usize].attached = Some(leg),
                Output::Finished { request, end } => self.request_ends(request, end),
            }
        }
    }

    fn start_leg(&mut self, start: LegStart) {
        let LegStart { leg, request, engine, kind, mode, transfer, peer, .. } = start;
        let hand_off = match (kind, mode) {
            (LegKind::Prefill, Some(mode)) => HandOff::ToPeer { transfer, mode },
            (LegKind::Decode, Some(mode)) => {
                let told = self.front.handles.get(&request).cloned();
                let known =
                    peer.map(|peer| PeerAddress { engine: peer.id, host: peer.host, port: peer.port });
                let peer = told.or(known).expect("a decode leg has a peer");
                let (transfer, peer) = self.handle_for(transfer, peer);
                HandOff::FromPeer { transfer, mode, peer }
            }
            _ => HandOff::None,
        };
        let (client, node) = (request.0 as usize, engine.0 as usize);
        let arrives = self.after_delay();
        self.tally.legs += 1;
        self.front.legs.insert(leg, OpenLeg { client, node, kind, sent: arrives });
        if self.strikes(Fault::LegLost) {
            return;
        }
        self.queue.push(arrives, Event::LegArrives { node, ask: LegAsk { leg, client, kind, hand_off } });
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
        let other = self.random.below(self.front.recent.len() as u64) as usize;
        self.front.recent[other].clone()
    }

    fn drop_leg(&mut self, leg: LegId) {
        let Some(open) = self.front.legs.remove(&leg) else { return };
        let arrives = self.after_delay().max(open.sent);
        self.queue.push(arrives, Event::LegDrops { node: open.node, leg });
    }

    /// Something arrives at the router on a leg. What comes after its end finds nobody.
    pub fn leg_news(&mut self, leg: LegId, news: LegNews) {
        let Some(open) = self.front.legs.get(&leg) else { return };
        let (client, kind) = (open.client, open.kind);
        let answers = kind != LegKind::Prefill;
        match news {
            LegNews::Connected => self.tell_router(Input::LegConnected { leg }),
            LegNews::Token(token) => self.pass_on(leg, client, &[token]),
            LegNews::Complete { body, handle } => {
                if answers && !body.is_empty() {
                    self.pass_on(leg, client, &body);
                }
                self.front.legs.remove(&leg);
                let has_handle = handle.is_some();
                if let Some(address) = handle {
                    self.front.handles.insert(RequestId(client as u64), address);
                }
                self.tell_router(Input::LegEnded { leg, handle: has_handle });
            }
            LegNews::Failed(fault) => {
                self.front.legs.remove(&leg);
                self.tell_router(Input::LegFailed { leg, fault });
            }
        }
    }

    /// Tokens of an answer: to the client, if this is the leg whose stream it gets.
    fn pass_on(&mut self, leg: LegId, client: usize, tokens: &[TokenId]) {
        if self.clients[client].attached == Some(leg) {
            // Not every byte needs to be reported.
            if self.random.chance(300) {
                self.tell_router(Input::LegProgress { leg });
            }
        } else {
            self.tell_router(Input::LegFirstByte { leg });
        }
        if self.clients[client].attached == Some(leg) {
            for token in tokens {
                self.clients[client].receive(*token);
            }
        }
    }

    fn request_ends(&mut self, request: RequestId, end: RequestEnd) {
        self.front.handles.remove(&request);
        let client = request.0 as usize;
        match end {
            RequestEnd::Answered => self.check_answer(client),
            RequestEnd::ClientGone => {
                assert_eq!(self.clients[client].state, ClientState::Gone, "r{client} has not left");
            }
            RequestEnd::Failed(why) => {
                let calm = self.scenario.faults.is_calm();
                assert!(!calm, "r{client} failed ({why:?}) though nothing went wrong");
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
    }

    // Probes.

    pub fn probe(&mut self, engine: EngineKey) {
        let arrives = self.after_delay();
        self.queue.push(arrives, Event::ProbeArrives { node: engine.0 as usize });
    }

    pub fn probe_arrives(&mut self, node: usize) {
        let probe = match (self.nodes[node].info(), &self.nodes[node].process) {
            (Some(info), _) => Probe::Ready(Box::new(info)),
            (None, Some(_)) => Probe::Refused,
            (None, None) => Probe::Failed,
        };
        let arrives = self.after_delay();
        self.queue.push(arrives, Event::Probed { engine: EngineKey(node as u32), probe });
    }

    pub fn probed(&mut self, engine: EngineKey, probe: Probe) {
        self.tell_router(match probe {
            Probe::Ready(info) => Input::Probed { engine, info: *info },
            Probe::Refused => Input::ProbeRefused { engine },
            Probe::Failed => Input::ProbeFailed { engine },
        });
        let again = self.now + std::time::Duration::from_micros(self.scenario.network.probe_us);
        self.queue.push(again, Event::Probe { engine });
    }
}
