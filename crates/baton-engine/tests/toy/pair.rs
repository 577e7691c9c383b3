//! Two engines with toy models, their side channel and the transport between them, under virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;

use baton_engine::{
    Batch, Config, EngineCore, FinishReason, HandOff, Input, ModelRunner, Output, Request, Retained, Reuse,
};
use baton_proto::{
    Compat, ConnId, Direction, Input as ProtoInput, Output as ProtoOutput, PeerAddress, PostId,
};
use baton_types::{KvDtype, PoolShape, SeqId, Time, TransferId, TransferMode, UnitId};

use crate::toy::describe;
use crate::toy::solo::{Answer, End, engine_id};
use crate::toy::{Dice, ToyRunner, oracle, prompt, request};

pub const NAMES: [&str; 2] = ["P", "D"];

/// One request, to be served by a prefill leg on one engine and a decode leg on the other.
#[derive(Clone, Debug)]
pub struct Job {
    pub source: usize,
    pub mode: TransferMode,
    pub prompt: Vec<baton_types::TokenId>,
    pub max_tokens: u32,
    /// Push: how long the decode leg comes after the prefill leg, or before it. Pull: after the handle.
    pub lag: Duration,
    pub destination_first: bool,
    /// The decode leg never comes.
    pub abandoned: bool,
    /// So many turns follow, each with the answer before it and some new words.
    pub turns: u64,
    /// The client changes its history from there on before the next turn.
    pub edited_from: Option<usize>,
    /// Where the turn before was kept, and how much of it.
    pub kept: Option<(usize, Retained)>,
}

#[derive(Debug)]
pub enum Happening {
    Input(Box<Input>),
    Submit {
        job: Job,
        transfer: TransferId,
        is_source: bool,
    },
    StepDone(Batch),
    /// Every connection between the two breaks.
    Cut,
    /// Copies the pairs; Moved with the last of them.
    Move {
        post: PostId,
        direction: Direction,
        pairs: Vec<(UnitId, UnitId)>,
        end: bool,
        notify: Option<Vec<u8>>,
    },
}

#[derive(Debug)]
pub struct Node {
    pub core: EngineCore,
    pub runner: ToyRunner,
    pub answers: BTreeMap<SeqId, (Request, Answer)>,
    pub num_blocks: usize,
    unit_tokens: usize,
    longest: usize,
    next_seq: u64,
}

#[derive(Debug)]
pub struct Pair {
    pub now: Time,
    pub nodes: Vec<Node>,
    /// None: every delay is fixed, for transcripts.
    pub dice: Option<Dice>,
    /// One post in so many fails half-way; 0 for never.
    pub failing_posts: u64,
    pub log: String,
    queue: BTreeMap<(Time, u64), (usize, Happening)>,
    scheduled: u64,
    ids: u64,
    wires: BTreeMap<(usize, ConnId), (usize, ConnId)>,
    conns: u64,
    /// What is said on one connection, and posted on one path, arrives in order.
    last: BTreeMap<(usize, ConnId), Time>,
    jobs: BTreeMap<TransferId, Job>,
    /// Posts that a fence cut off.
    dead: BTreeSet<(usize, PostId)>,
    posts: BTreeSet<(usize, PostId)>,
}

pub fn address(node: usize) -> PeerAddress {
    PeerAddress { engine: engine_id(NAMES[node]), host: NAMES[node].into(), port: 1 }
}

/// From the first engine to the second, both legs at once.
pub fn job(mode: TransferMode, family: u64, len: usize) -> Job {
    Job {
        source: 0,
        mode,
        prompt: prompt(family, len),
        max_tokens: 6,
        lag: Duration::ZERO,
        destination_first: false,
        abandoned: false,
        turns: 0,
        edited_from: None,
        kept: None,
    }
}

pub fn config(node: usize, num_blocks: u32, block_tokens: u32) -> Config {
    let shape = PoolShape::whole_blocks(num_blocks, KvDtype::F32);
    let proto = baton_proto::Config::new(engine_id(NAMES[node]), Compat([0; 16]), Vec::new(), shape);
    let mut config = Config::new(num_blocks, block_tokens, 1 << 16, proto);
    config.max_running = 4;
    config.step_tokens = 8;
    config.reuse_threshold = 2;
    config
}

fn proto(input: ProtoInput) -> Happening {
    Happening::Input(Box::new(Input::Proto(input)))
}

impl Pair {
    pub fn new(configs: [Config; 2]) -> Self {
        let nodes = configs.map(|config| Node {
            runner: ToyRunner::new(config.num_blocks, config.block_tokens as usize),
            unit_tokens: config.unit_tokens(),
            num_blocks: config.num_blocks as usize,
            longest: config.max_len(),
            core: EngineCore::new(config),
            answers: BTreeMap::new(),
            next_seq: 0,
        });
        Self {
            now: Time::ZERO,
            nodes: nodes.into(),
            dice: None,
            failing_posts: 0,
            log: String::new(),
            queue: BTreeMap::new(),
            scheduled: 0,
            ids: 0,
            wires: BTreeMap::new(),
            conns: 0,
            last: BTreeMap::new(),
            jobs: BTreeMap::new(),
            dead: BTreeSet::new(),
            posts: BTreeSet::new(),
        }
    }

    pub fn at(&mut self, at: Time, node: usize, happening: Happening) {
        self.scheduled += 1;
        self.queue.insert((at, self.scheduled), (node, happening));
    }

    /// Both legs of a job, as a router would send them.
    pub fn start(&mut self, at: Time, job: Job, transfer: TransferId) {
        let (source, lag) = (job.source, job.lag);
        self.jobs.insert(transfer, job.clone());
        let submit = |is_source| Happening::Submit { job: job.clone(), transfer, is_source };
        match (job.mode, job.destination_first) {
            (TransferMode::Pull, _) => self.at(at, source, submit(true)),
            (TransferMode::Push | TransferMode::EarlyPull, first) => {
                self.at(if first { at + lag } else { at }, source, submit(true));
                if !job.abandoned {
                    self.at(if first { at } else { at + lag }, 1 - source, submit(false));
                }
            }
        }
    }

    fn delay(&mut self, fixed_ms: u64) -> Duration {
        let micros = match &mut self.dice {
            // Now and then something takes very long.
            Some(dice) => {
                let most = if dice.one_in(50) { 3_000_000 } else { fixed_ms * 3000 };
                dice.below(most)
            }
            None => fixed_ms * 1000,
        };
        Duration::from_micros(micros)
    }

    /// One thing happens; false if nothing ever will.
    pub fn step(&mut self) -> bool {
        let due = (0..self.nodes.len())
            .filter_map(|node| self.nodes[node].core.poll_timeout().map(|(at, _)| (at, node)))
            .min();
        let next = self.queue.first_key_value().map(|(key, _)| key.0);
        match (due, next) {
            (Some((at, node)), next) if next.is_none_or(|next| at < next) => {
                self.now = self.now.max(at);
                self.input(node, Input::Tick);
            }
            (_, Some(_)) => {
                let ((at, _), (node, happening)) = self.queue.pop_first().unwrap();
                self.now = self.now.max(at);
                self.happen(node, happening);
            }
            _ => return false,
        }
        true
    }

    pub fn run_to_end(&mut self) {
        for _ in 0..200_000 {
            if !self.step() {
                return self.judge();
            }
        }
        panic!("I8: never comes to an end: {}", &self.log[self.log.len() - 2_000..]);
    }

    /// When neither engine has anything left to do but to let timers run out.
    pub fn run_until_idle(&mut self) -> Time {
        let mut idle_from = None;
        while self.step() {
            let idle = self.nodes.iter().all(|node| node.core.is_idle());
            idle_from = if idle { idle_from.or(Some(self.now)) } else { None };
        }
        self.judge();
        idle_from.expect("I8")
    }

    fn happen(&mut self, node: usize, happening: Happening) {
        match happening {
            Happening::Input(input) => self.input(node, *input),
            Happening::Submit { job, transfer, is_source } => self.submit(node, &job, transfer, is_source),
            Happening::StepDone(batch) => {
                let result = self.nodes[node].runner.run(&batch).unwrap();
                self.input(node, Input::Stepped(result));
            }
            Happening::Cut => {
                for (node, conn) in std::mem::take(&mut self.wires).into_keys() {
                    self.input(node, Input::Proto(ProtoInput::Closed { conn }));
                }
            }
            Happening::Move { post, direction, pairs, end, notify } => {
                self.copy(node, post, direction, pairs, end, notify);
            }
        }
    }

    fn submit(&mut self, node: usize, job: &Job, transfer: TransferId, is_source: bool) {
        let seq = self.nodes[node].next_seq;
        self.nodes[node].next_seq += 1;
        let mode = job.mode;
        let hand_off = if is_source {
            HandOff::ToPeer { transfer, mode }
        } else {
            HandOff::FromPeer { transfer, mode, peer: address(1 - node) }
        };
        let kept = job.kept.filter(|_| is_source);
        let reuse = kept.map(|(place, Retained { retention, tokens })| {
            let transfer = self.fresh();
            Box::new(Reuse { transfer, retention, peer: address(place), tokens })
        });
        let retention = (!is_source).then(|| self.fresh());
        let request =
            Request { hand_off, reuse, retention, ..request(seq, job.prompt.clone(), job.max_tokens) };
        self.nodes[node].answers.insert(SeqId(seq), (request.clone(), Answer::default()));
        self.input(node, Input::Submit(request));
    }

    /// A request for one engine alone.
    pub fn ask(&mut self, node: usize, prompt: Vec<baton_types::TokenId>, max_tokens: u32) {
        let seq = self.nodes[node].next_seq;
        self.nodes[node].next_seq += 1;
        let request = request(seq, prompt, max_tokens);
        self.nodes[node].answers.insert(SeqId(seq), (request.clone(), Answer::default()));
        self.input(node, Input::Submit(request));
    }

    pub fn input(&mut self, node: usize, input: Input) {
        if let Some(text) = describe::input(&input) {
            self.line(node, "<-", &text);
        }
        self.nodes[node].core.handle_input(self.now, input);
        while let Some(output) = self.nodes[node].core.poll_output() {
            if let Some(text) = describe::output(&output) {
                self.line(node, "->", &text);
            }
            self.take(node, output);
        }
        self.nodes[node].core.check();
    }

    fn line(&mut self, node: usize, arrow: &str, text: &str) {
        writeln!(self.log, "{:<3} {} {arrow} {text}", self.now.0 / 1_000_000, NAMES[node]).unwrap();
    }

    fn take(&mut self, node: usize, output: Output) {
        match output {
            Output::Step(batch) => {
                let at = self.now + self.delay(10);
                self.at(at, node, Happening::StepDone(batch));
            }
            Output::Token { seq, token } => self.open(node, seq).tokens.push(token),
            Output::Finished { seq, reason, usage, handle, retained } => {
                self.open(node, seq).end = Some(End::Finished(reason, usage, handle));
                if let Some(retained) = retained {
                    self.next_turn(node, seq, retained);
                }
                let Some(handle) = handle.filter(|handle| handle.mode == TransferMode::Pull) else { return };
                let job = self.jobs[&handle.transfer].clone();
                if !job.abandoned {
                    let submit =
                        Happening::Submit { transfer: handle.transfer, is_source: false, job: job.clone() };
                    self.at(self.now + job.lag, 1 - node, submit);
                }
            }
            Output::Refused { seq, why } => self.open(node, seq).end = Some(End::Refused(why)),
            Output::Proto(output) => self.take_proto(node, output),
        }
    }

    /// The client reads the answer, and asks on.
    fn next_turn(&mut self, node: usize, seq: SeqId, retained: Retained) {
        let (request, answer) = &self.nodes[node].answers[&seq];
        let HandOff::FromPeer { transfer, .. } = request.hand_off else { panic!("only decode retains") };
        let job = &self.jobs[&transfer];
        if job.turns == 0 {
            return;
        }
        let mut history = [&request.prompt[..], &answer.tokens[..]].concat();
        let said = history.len();
        if let Some(from) = job.edited_from {
            history[from.min(said - 1)..].rotate_left(1);
        }
        history.extend(prompt(job.turns, 5));
        let job = Job { prompt: history, turns: job.turns - 1, kept: Some((node, retained)), ..job.clone() };
        let think = self.delay(100);
        let transfer = self.fresh();
        self.start(self.now + think, job, transfer);
    }

    /// An id that nothing had before.
    fn fresh(&mut self) -> TransferId {
        self.ids += 1;
        TransferId(1_000_000 + u128::from(self.ids))
    }

    fn open(&mut self, node: usize, seq: SeqId) -> &mut Answer {
        let (_, answer) = self.nodes[node].answers.get_mut(&seq).expect("asked for");
        assert_eq!(answer.end, None, "{seq:?} of {} is over", NAMES[node]);
        answer
    }

    fn take_proto(&mut self, node: usize, output: ProtoOutput) {
        match output {
            ProtoOutput::Event(event) => panic!("the engine's own: {event:?}"),
            ProtoOutput::Dial { address } => {
                let (ours, theirs) = (ConnId(self.conns), ConnId(self.conns + 1));
                self.conns += 2;
                self.wires.insert((node, ours), (1 - node, theirs));
                self.wires.insert((1 - node, theirs), (node, ours));
                let at = self.now + self.delay(1);
                self.last.insert((node, ours), at);
                self.last.insert((1 - node, theirs), at);
                let connected = ProtoInput::Connected { address, conn: ours };
                self.at(at, node, proto(connected));
                self.at(at, 1 - node, proto(ProtoInput::Accepted { conn: theirs }));
            }
            ProtoOutput::Send { conn, message } => {
                let frame = baton_proto::codec::encode(&message);
                self.send(node, conn, |conn| ProtoInput::Received { conn, frame });
            }
            ProtoOutput::Close { conn } => self.send(node, conn, |conn| ProtoInput::Closed { conn }),
            ProtoOutput::AddPath { .. } | ProtoOutput::Permit { .. } | ProtoOutput::Forbid { .. } => {}
            ProtoOutput::RemovePath { engine } => {
                for (side, post) in self.posts.clone() {
                    self.dead.insert((side, post));
                }
                let at = self.now + self.delay(5);
                self.at(at, node, proto(ProtoInput::PathLost { engine }));
            }
            ProtoOutput::Post { post, direction, pairs, notify, .. } => {
                self.posts.insert((node, post));
                // Slow enough for blocks to change hands under a write that nobody wants any more.
                let slow = self.dice.as_mut().map_or(0, |dice| dice.below(100));
                let (half, whole) = (self.now + self.delay(1), self.now + self.delay(3 + slow));
                let (first, second) = pairs.split_at(pairs.len() / 2);
                let part = |pairs: &[_], end, notify| Happening::Move {
                    post,
                    direction,
                    pairs: pairs.to_vec(),
                    end,
                    notify,
                };
                let (first, second) = (part(first, false, None), part(second, true, notify));
                self.at(half, node, first);
                self.at(half.max(whole), node, second);
            }
        }
    }

    fn send(&mut self, node: usize, conn: ConnId, input: impl FnOnce(ConnId) -> ProtoInput) {
        // What is said on a connection that has broken is lost.
        let Some(&(other, theirs)) = self.wires.get(&(node, conn)) else { return };
        let at = (self.now + self.delay(1)).max(self.last[&(other, theirs)]);
        self.last.insert((other, theirs), at);
        self.at(at, other, proto(input(theirs)));
    }

    fn copy(
        &mut self,
        node: usize,
        post: PostId,
        direction: Direction,
        pairs: Vec<(UnitId, UnitId)>,
        end: bool,
        notify: Option<Vec<u8>>,
    ) {
        let fails = self.failing_posts > 0
            && self.dice.as_mut().is_some_and(|dice| dice.one_in(self.failing_posts * 2));
        if fails {
            self.dead.insert((node, post));
        }
        let ok = !self.dead.contains(&(node, post));
        for (ours, theirs) in pairs.into_iter().filter(|_| ok) {
            let (from, to) = match direction {
                Direction::Read => ((1 - node, theirs), (node, ours)),
                Direction::Write => ((node, ours), (1 - node, theirs)),
            };
            let unit_tokens = self.nodes[node].unit_tokens;
            let positions = |unit: UnitId| unit.index() * unit_tokens..(unit.index() + 1) * unit_tokens;
            let kv = self.nodes[from.0].runner.kv[positions(from.1)].to_vec();
            self.nodes[to.0].runner.kv[positions(to.1)].copy_from_slice(&kv);
        }
        if !end {
            return;
        }
        self.posts.remove(&(node, post));
        if let Some(bytes) = notify.filter(|_| ok) {
            let at = self.now + self.delay(1);
            let notified = ProtoInput::Notified { engine: engine_id(NAMES[node]), bytes };
            self.at(at, 1 - node, proto(notified));
        }
        self.input(node, Input::Proto(ProtoInput::Moved { post, ok }));
    }

    /// I7, I8: everything has ended, the words are right, and nothing is held for anybody.
    fn judge(&self) {
        for (node, state) in self.nodes.iter().enumerate() {
            for (request, answer) in state.answers.values() {
                let mut wanted = oracle(request, state.longest);
                if matches!(request.hand_off, HandOff::ToPeer { .. }) {
                    wanted.truncate(1);
                }
                let place = format!("{:?} of {}", request.seq, NAMES[node]);
                match answer.end.as_ref().unwrap_or_else(|| panic!("I8: {place} never ended")) {
                    End::Refused(_) => assert!(answer.tokens.is_empty()),
                    End::Finished(FinishReason::Length, ..) => {
                        assert_eq!(answer.tokens, wanted, "I7: {place}");
                    }
                    // Interrupted: nobody here has stop tokens.
                    End::Finished(..) => assert!(wanted.starts_with(&answer.tokens), "I7: {place}"),
                }
            }
            assert!(state.core.is_idle(), "I8: {}", NAMES[node]);
            assert_eq!(state.core.stats().blocks.free, state.num_blocks, "I8: {}", NAMES[node]);
        }
    }

    pub fn answer(&self, node: usize, seq: u64) -> &Answer {
        &self.nodes[node].answers[&SeqId(seq)].1
    }
}
