//! Everything that a run consists of, and its one loop: the earliest event or timer, then the next.

use std::collections::BTreeMap;
use std::fmt;

use baton_engine::Output;
use baton_routing::EngineKey;
use baton_types::{Mutation, SeqId, Time};

use crate::arrivals::Arrivals;
use crate::ask::Ask;
use crate::chaos::router_core;
use crate::client::Client;
use crate::conversation::RetainedAt;
use crate::depth::Depth;
use crate::edge::Ended;
use crate::fabric::Fabric;
use crate::fault::{Fault, Luck};
use crate::front::{Front, LegAsk, LegNews, Line, Probe};
use crate::ledger::Ledger;
use crate::log::Log;
use crate::node::{Life, Node, letter};
use crate::queue::Queue;
use crate::random::Random;
use crate::recording::Recording;
use crate::retention_book::RetentionBook;
use crate::scenario::Scenario;
use crate::split::Split;
use crate::tally::Tally;
use crate::wires::Wires;

/// A run that does not end is a failure as well (I8).
const MAX_EVENTS: u64 = 3_000_000;

#[derive(Debug)]
pub(crate) struct World {
    pub now: Time,
    pub scenario: Scenario,
    pub random: Random,
    pub luck: Luck,
    pub queue: Queue<Event>,
    pub log: Log,
    pub tally: Tally,
    pub front: Front,
    pub nodes: Vec<Node>,
    pub wires: Wires,
    pub fabric: Fabric,
    pub split: Split,
    pub ledger: Ledger,
    pub retention_book: RetentionBook,
    /// The latest that was retained of each request's conversation, by the request's number.
    pub retained: BTreeMap<u64, RetainedAt>,
    pub clients: Vec<Client>,
    pub arrivals: Arrivals,
    pub depth: Depth,
    /// What is recorded of a trace's requests; where there is none, the scenario has all words.
    pub recording: Option<Recording>,
    pub mutation: Mutation,
    /// When faults stopped; from there on everything must come to its end.
    pub quiet_since: Option<Time>,
}

#[derive(Debug)]
pub(crate) enum Event {
    // At the clients and the router.
    Arrive { client: usize },
    News { line: Line, news: LegNews },
    RouterRestart,
    Probe { engine: EngineKey },
    Probed { engine: EngineKey, probe: Probe },

    // At a node, whatever lives there.
    ProbeArrives { node: usize, engine: EngineKey },
    LegArrives { node: usize, ask: LegAsk },
    LegDrops { node: usize, line: Line },
    DialArrives { node: usize, from: Life, address: baton_proto::PeerAddress },
    Restart { node: usize },

    // At one life of a process.
    Proto { to: Life, input: baton_proto::Input },
    Stop { to: Life, seq: SeqId },
    StepEnds { to: Life, ok: bool },

    // On the side channel, for one end of a connection.
    Wire { to: Life, conn: baton_proto::ConnId, what: crate::wires::WireNews },

    // In the transport.
    Piece { post: u64 },
    PathDown { owner: Life, generation: u64 },
    PathUnjoined { owner: Life, generation: u64 },
    PathRefused { owner: Life, engine: baton_types::EngineId },

    // Faults.
    Turn { deed: Fault },
    Quiet,
}

impl Event {
    /// The node whose process must be awake to see it.
    fn heard_at(&self) -> Option<usize> {
        match self {
            Self::ProbeArrives { node, .. }
            | Self::LegArrives { node, .. }
            | Self::LegDrops { node, .. }
            | Self::DialArrives { node, .. } => Some(*node),
            Self::Proto { to, .. }
            | Self::Stop { to, .. }
            | Self::StepEnds { to, .. }
            | Self::Wire { to, .. }
            | Self::PathRefused { owner: to, .. } => Some(to.node),
            _ => None,
        }
    }
}

impl World {
    pub fn new(scenario: Scenario, mutation: Mutation, log: Log) -> Self {
        let client = |ask: &Ask| Client::new(ask.clone(), &scenario.layout);
        let clients = scenario.requests.iter().map(client).collect();
        Self::of(scenario, clients, mutation, log)
    }

    /// Down to blocks only: clients find their words when they arrive.
    pub fn recorded(scenario: Scenario, recording: Recording) -> Self {
        let clients = scenario.requests.iter().map(|ask| Client::silent(ask.clone())).collect();
        let world = Self::of(scenario, clients, Mutation::NONE, Log::silent());
        Self { depth: Depth::Blocks, recording: Some(recording), ..world }
    }

    fn of(scenario: Scenario, clients: Vec<Client>, mutation: Mutation, log: Log) -> Self {
        let mut random = Random::new(scenario.seed);
        let core = router_core(&scenario, random.next(), mutation);
        let faces = scenario.faces();
        let arrivals = Arrivals::of(&scenario.requests);
        let luck = Luck::new(&scenario.faults, random.next());
        let node = |(i, spec): (usize, &crate::scenario::EngineSpec)| Node {
            name: format!("{}{i}", letter(spec.role)),
            spec: spec.clone(),
            lives: 0,
            process: None,
            paused_until: Time::ZERO,
        };
        Self {
            now: Time::ZERO,
            nodes: scenario.engines.iter().enumerate().map(node).collect(),
            scenario,
            random,
            luck,
            queue: Queue::new(),
            log,
            tally: Tally::default(),
            front: Front::new(core, faces),
            wires: Wires::default(),
            fabric: Fabric::default(),
            split: Split::default(),
            ledger: Ledger::default(),
            retention_book: RetentionBook::default(),
            retained: BTreeMap::new(),
            clients,
            arrivals,
            depth: Depth::Bytes,
            recording: None,
            mutation,
            quiet_since: None,
        }
    }

    /// Runs to the end: all clients answered, faults over, and nothing left anywhere (I8).
    pub fn run(&mut self) {
        for node in 0..self.nodes.len() {
            self.start_process(node);
        }
        for key in 0..self.front.faces.len() {
            self.queue.push(Time::ZERO, Event::Probe { engine: EngineKey(key as u32) });
        }
        let first = self.first_arrivals();
        for deed in Fault::deeds().filter(|deed| self.scenario.faults.of(*deed) > 0) {
            self.queue.push(first, Event::Turn { deed });
        }
        while !self.is_over() {
            self.step();
        }
        self.end();
    }

    /// One event, or one timer.
    fn step(&mut self) {
        self.tally.events += 1;
        let endless = self.tally.events >= MAX_EVENTS && self.depth == Depth::Bytes;
        assert!(!endless, "I8: the run does not end");
        let timer = self.next_timer();
        let event = self.queue.peek();
        match (event, timer) {
            (None, None) => panic!("I8: nothing will ever happen again"),
            (Some(at), Some((due, _))) if at <= due => self.step_event(),
            (Some(_), None) => self.step_event(),
            (_, Some((due, whose))) => {
                self.now = self.now.max(due);
                match whose {
                    None => self.tell_router(baton_routing::Input::Tick),
                    Some(node) => self.tell_engine(node, baton_engine::Input::Tick),
                }
            }
        }
    }

    fn step_event(&mut self) {
        let (slot, event) = self.queue.pop().expect("just seen");
        let Some(until) = self.waits_until(slot.0, &event) else {
            self.now = self.now.max(slot.0);
            return self.happen(event);
        };
        if let Event::News { line, .. } = event {
            self.now = self.now.max(slot.0);
            self.tell_router(baton_routing::Input::LegBlocked { leg: line.leg });
        }
        self.queue.put_off(slot, until, event);
    }

    /// Until when an event must wait, if it must: for a process that is paused, or for a client who takes nothing of its answer.
    fn waits_until(&self, at: Time, event: &Event) -> Option<Time> {
        let paused = event.heard_at().map(|node| self.nodes[node].paused_until);
        let stalled = match event {
            Event::News { line, .. } => {
                let client = self.front.open(*line).map(|open| &self.clients[open.client]);
                client.filter(|client| client.attached == Some(*line)).map(|client| client.stalled_until)
            }
            _ => None,
        };
        paused.or(stalled).filter(|until| *until > at)
    }

    /// The earliest timer of a core, and whose it is: a node's, or the router's.
    fn next_timer(&self) -> Option<(Time, Option<usize>)> {
        let engines = self.nodes.iter().enumerate().filter_map(|(i, node)| {
            let due = node.process.as_ref()?.timer?;
            Some((due.max(node.paused_until), Some(i)))
        });
        engines.chain(self.front.timer.map(|due| (due, None))).min()
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive { client } => self.client_arrives(client),
            Event::News { line, news } => self.leg_news(line, news),
            Event::RouterRestart => self.router_restarts(),
            Event::Probe { engine } => self.probe(engine),
            Event::Probed { engine, probe } => self.probed(engine, probe),
            Event::ProbeArrives { node, engine } => self.probe_arrives(node, engine),
            Event::LegArrives { node, ask } => self.leg_arrives(node, ask),
            Event::LegDrops { node, line } => self.leg_drops(node, line),
            Event::DialArrives { node, from, address } => self.dial_arrives(node, from, address),
            Event::Restart { node } => self.start_process(node),
            Event::Proto { to, input } if self.is_alive(to) => self.tell_proto(to.node, input),
            Event::Stop { to, seq } if self.is_alive(to) => {
                self.tell_engine(to.node, baton_engine::Input::Stop { seq });
            }
            Event::StepEnds { to, ok } if self.is_alive(to) => self.step_ends(to.node, ok),
            Event::Wire { to, conn, what } if self.is_alive(to) => self.wire_news(to.node, conn, what),
            Event::Piece { post } => self.piece_moves(post),
            Event::PathDown { owner, generation } if self.is_alive(owner) => {
                self.path_down(owner, generation);
            }
            Event::PathUnjoined { owner, generation } if self.is_alive(owner) => {
                self.path_unjoined(owner, generation);
            }
            Event::PathRefused { owner, engine } if self.is_alive(owner) => {
                self.path_refused(owner, engine);
            }
            Event::Turn { deed } => self.turn(deed),
            Event::Quiet => self.quiet(),
            // For a process that is dead.
            Event::Proto { .. }
            | Event::Stop { .. }
            | Event::StepEnds { .. }
            | Event::Wire { .. }
            | Event::PathDown { .. }
            | Event::PathUnjoined { .. }
            | Event::PathRefused { .. } => {}
        }
    }

    pub fn is_alive(&self, life: Life) -> bool {
        self.nodes.get(life.node).and_then(Node::life) == Some(life)
    }

    pub fn note(&mut self, who: &str, what: fmt::Arguments<'_>) {
        self.log.line(self.now, who, what);
    }

    // The engines.

    fn start_process(&mut self, node: usize) {
        let incarnation = self.random.next();
        self.nodes[node].start(node, incarnation, &self.scenario.proto, self.depth, self.mutation);
        let Node { name, process, .. } = &self.nodes[node];
        let id = &process.as_ref().expect("just started").id;
        self.log.line(self.now, name, format_args!("starts as {id}"));
    }

    pub fn tell_proto(&mut self, node: usize, input: baton_proto::Input) {
        self.tell_engine(node, baton_engine::Input::Proto(input));
    }

    /// One input to an engine's core, all its outputs, and its invariants.
    pub fn tell_engine(&mut self, node: usize, input: baton_engine::Input) {
        let Node { name, process, spec, .. } = &mut self.nodes[node];
        let clock = spec.clock;
        let process = process.as_mut().expect("told only while alive");
        self.log.line(self.now, name, format_args!("<- {}", crate::words::EngineInput(&input)));
        process.core.handle_input(clock.shows(self.now), input);
        let mut outputs = Vec::new();
        while let Some(output) = process.core.poll_output() {
            self.log.line(self.now, name, format_args!("-> {}", crate::words::EngineOutput(&output)));
            outputs.push(output);
        }
        match &mut self.recording {
            Some(recording) => recording.note_retained(self.now, node, process.core.stats().blocks.retained),
            None => process.core.check(),
        }
        process.timer = process.core.poll_timeout().map(|(due, _)| clock.reaches(due));
        let may_exit = process.draining && process.core.is_idle();
        for output in outputs {
            self.obey(node, output);
        }
        self.check_last_words(node);
        if may_exit && self.nodes[node].process.as_ref().is_some_and(|process| process.served.is_empty()) {
            self.end_process(node);
        }
    }

    fn obey(&mut self, node: usize, output: Output) {
        match output {
            Output::Step(batch) => {
                let duration = self.scenario.profile.step_time(&batch);
                let ok = !self.strikes(Fault::StepFails);
                let process = self.nodes[node].process.as_mut().expect("it has just spoken");
                assert!(process.computing.replace(batch).is_none(), "one step at a time");
                let to = process.life;
                self.tally.steps += 1;
                self.queue.push(self.now + duration, Event::StepEnds { to, ok });
            }
            Output::Token { seq, token } => self.token(node, seq, token),
            Output::Finished { seq, reason, usage, handle, retained } => {
                self.finished(node, seq, Ended { reason, usage, handle: handle.is_some(), retained });
            }
            Output::Refused { seq, why } => self.refused(node, seq, why),
            Output::Proto(output) => self.obey_proto(node, output),
        }
    }

    fn obey_proto(&mut self, node: usize, output: baton_proto::Output) {
        use baton_proto::Output;
        match output {
            Output::Dial { address } => self.dial(node, address),
            Output::Send { conn, message } => self.send(conn, &message),
            Output::Close { conn } => self.close(conn),
            Output::AddPath { engine, metadata, .. } => self.add_path(node, engine, &metadata),
            Output::RemovePath { engine } => self.remove_path(node, engine),
            Output::Permit { .. } | Output::Forbid { .. } => {}
            Output::Post { post, engine, direction, ranks, pairs, notify } => {
                self.post(node, crate::fabric::Order { post, engine, direction, ranks, pairs, notify });
            }
            Output::Event(event) => panic!("an engine core keeps its events: {event:?}"),
        }
    }

    fn step_ends(&mut self, node: usize, ok: bool) {
        let process = self.nodes[node].process.as_mut().expect("checked by the caller");
        let step = process.computing.as_ref().expect("a step was asked for").step;
        // A step that failed may still have written all that it was to write.
        let result = process.compute();
        let input =
            if ok { baton_engine::Input::Stepped(result) } else { baton_engine::Input::StepFailed { step } };
        self.tell_engine(node, input);
    }
}
