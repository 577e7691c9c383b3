//! The state machine with inputs and outputs as a core would have them, and the file that comes of it.

use std::time::Duration;

use baton_engine::{BatchEntry, FinishReason, HandOff, Handle, Refusal, Reuse, StepResult, Usage};
use baton_proto::{ConnId, Held, PeerAddress, RankPair};
use baton_trace::{Process, TraceConfig};
use baton_types::{CacheSalt, Millis, SamplingParams, TokenId, TransferMode, UnitId};
use serde_json::Value;
use tempfile::TempDir;

use super::*;

const X: TransferId = TransferId(7);
const S: SeqId = SeqId(3);
const UNIT: UnitSize = UnitSize { bytes: 1000, ranks: 1 };
const CLIENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

struct Script {
    dir: TempDir,
    tracer: Tracer,
    timeline: Timeline,
    epoch: Instant,
    /// What the next request may read of an earlier turn.
    reuse: Option<Box<Reuse>>,
}

impl Script {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = TraceConfig { file: Some(dir.path().join("trace.json")), ..TraceConfig::default() };
        let process = Process { name: "e".to_owned(), service: "baton-engine", order: 1 };
        let tracer = Tracer::open(&config, &process).unwrap().unwrap();
        let mut timeline = Timeline::new(tracer.clone(), UNIT);
        let epoch = Instant::now();
        timeline.begin(epoch);
        Self { dir, tracer, timeline, epoch, reuse: None }
    }

    fn submit(&mut self, ms: u64, seq: SeqId, hand_off: HandOff) {
        let request = Request {
            seq,
            prompt: vec![TokenId(1); 40],
            salt: CacheSalt::default(),
            max_tokens: 2,
            min_tokens: 0,
            stop_tokens: Vec::new(),
            sampling: SamplingParams::GREEDY,
            hand_off,
            reuse: self.reuse.take(),
            retention: None,
        };
        // It took a millisecond to read.
        let arrived = self.epoch + Duration::from_millis(ms - 1);
        let origin =
            Origin { arrived, parent: TraceParent::parse(CLIENT), request_id: Some("mine".to_owned()) };
        self.timeline.submitted(Time::from_millis(ms), &request, origin);
    }

    fn input(&mut self, ms: u64, input: Input) {
        self.timeline.input(Time::from_millis(ms), &input);
    }

    fn output(&mut self, ms: u64, output: Output) {
        self.timeline.output(Time::from_millis(ms), &output);
    }

    fn step(&mut self, ms: u64, step: u64, start: u32, tokens: usize) {
        let tokens = vec![TokenId(1); tokens];
        let sample = (start as usize + tokens.len() >= 40).then_some(SamplingParams::GREEDY);
        let entries = vec![BatchEntry { seq: S, tokens, start, table: Vec::new(), sample }];
        self.output(ms, Output::Step(Batch { step, entries }));
    }

    fn stepped(&mut self, ms: u64, step: u64) {
        self.input(ms, Input::Stepped(StepResult { step, sampled: Vec::new() }));
    }

    fn say(&mut self, ms: u64, message: Message) {
        self.output(ms, Output::Proto(baton_proto::Output::Send { conn: ConnId(1), message }));
    }

    fn hear(&mut self, ms: u64, message: &Message) {
        let frame = codec::encode(message);
        self.input(ms, Input::Proto(baton_proto::Input::Received { conn: ConnId(1), frame }));
    }

    fn post(&mut self, ms: u64, post: u64, direction: Direction, units: u32) {
        let pairs = (0..units).map(|i| (UnitId(i), UnitId(i))).collect();
        let notify = (direction == Direction::Write)
            .then(|| Notification { transfer: X, index: post as u32 }.encode());
        let ranks = RankPair { ours: 0, theirs: 0 };
        let post =
            baton_proto::Output::Post { post: PostId(post), engine: peer(), direction, ranks, pairs, notify };
        self.output(ms, Output::Proto(post));
    }

    fn moved(&mut self, ms: u64, post: u64) {
        self.input(ms, Input::Proto(baton_proto::Input::Moved { post: PostId(post), ok: true }));
    }

    fn token(&mut self, ms: u64) {
        self.output(ms, Output::Token { seq: S, token: TokenId(1) });
    }

    fn finish(&mut self, ms: u64, handle: Option<Handle>) {
        let (reason, usage) = (FinishReason::Length, Usage::default());
        self.output(ms, Output::Finished { seq: S, reason, usage, handle, retained: None });
    }

    /// Names, and when they began and ended in milliseconds; the process's own left out.
    fn told(&self) -> Vec<(String, u64, u64)> {
        let epoch_us = self.tracer.unix_ns(self.epoch) / 1000;
        let ms = |us: u64| (us - epoch_us + 500) / 1000;
        let spans = self.spans().into_iter().filter(|span| span["name"] != "step");
        let line = |span: Value| {
            let (ts, dur) = (span["ts"].as_u64().unwrap(), span["dur"].as_u64().unwrap());
            (span["name"].as_str().unwrap().to_owned(), ms(ts), ms(ts + dur))
        };
        spans.map(line).collect()
    }

    fn spans(&self) -> Vec<Value> {
        self.tracer.finish(Duration::from_secs(60));
        let text = std::fs::read_to_string(self.dir.path().join("trace.json")).unwrap();
        let lines = text.strip_prefix("[\n").unwrap().lines();
        let events =
            lines.map(|line| serde_json::from_str::<Value>(line.strip_suffix(',').unwrap()).unwrap());
        events.filter(|event| event["ph"] == "X").collect()
    }

    fn span(&self, name: &str) -> Value {
        self.spans().into_iter().find(|span| span["name"] == name).unwrap_or_else(|| panic!("no {name}"))
    }

    fn is_empty(&self) -> bool {
        let Timeline { legs, transfers, posts, .. } = &self.timeline;
        legs.is_empty() && transfers.is_empty() && posts.is_empty()
    }
}

fn peer() -> EngineId {
    "d@00000000000000ff".parse().unwrap()
}

fn granted() -> Message {
    Message::Granted {
        transfer: X,
        attempt: 0,
        remaining: Millis(1000),
        first_unit: 0,
        units: Vec::new(),
        complete: true,
        prefilled: None,
    }
}

fn claim() -> Message {
    Message::Claim { transfer: X, attempt: 0, first_unit: 0, chain: Vec::new(), held: Held::Offered }
}

fn lines(all: &[(&str, u64, u64)]) -> Vec<(String, u64, u64)> {
    all.iter().map(|(name, from, to)| ((*name).to_owned(), *from, *to)).collect()
}

#[test]
fn a_push_s_source_computes_and_writes_at_once() {
    let mut script = Script::new();
    script.submit(10, S, HandOff::ToPeer { transfer: X, mode: TransferMode::Push });
    script.step(20, 1, 0, 16);
    script.say(25, claim());
    script.hear(28, &granted());
    script.stepped(30, 1);
    script.post(30, 1, Direction::Write, 1);
    script.step(31, 2, 16, 24);
    script.stepped(50, 2);
    script.post(50, 2, Direction::Write, 2);
    script.moved(55, 1);
    script.token(51);
    let handle = Handle { transfer: X, mode: TransferMode::Push, tokens: 40, cached_tokens: 0 };
    script.finish(51, Some(handle));
    script.moved(60, 2);
    assert!(!script.is_empty(), "the destination has not said that it has everything");
    script.hear(61, &Message::DoneAck { transfer: X });
    assert!(script.is_empty());
    let told = lines(&[
        ("read", 9, 10),
        ("queue", 10, 20),
        ("claim", 25, 28),
        ("prefill chunk", 20, 30),
        ("prefill chunk", 31, 50),
        ("slice", 30, 55),
        ("prefill", 9, 51),
        ("slice", 50, 60),
    ]);
    assert_eq!(script.told(), told);
    let spans = script.spans();
    let slices: Vec<&Value> = spans.iter().filter(|span| span["name"] == "slice").collect();
    assert_ne!(slices[0]["tid"], slices[1]["tid"], "they overlap");
    assert_eq!(
        (&slices[1]["args"]["bytes"], &slices[1]["args"]["direction"]),
        (&2000.into(), &"write".into())
    );
    let leg = script.span("prefill");
    assert_eq!(leg["args"]["request"], "mine");
    assert_eq!(leg["args"]["trace"], CLIENT[3..35]);
    assert_eq!(leg["args"]["parent"], CLIENT[36..52]);
    for span in spans.iter().filter(|span| !["step", "prefill"].contains(&span["name"].as_str().unwrap())) {
        assert_eq!(span["args"]["parent"], leg["args"]["span"], "{span}");
    }
}

#[test]
fn a_pull_s_destination_reads_and_goes_on() {
    let mut script = Script::new();
    let from = PeerAddress { engine: peer(), host: "h".to_owned(), port: 1 };
    script.submit(10, S, HandOff::FromPeer { transfer: X, mode: TransferMode::Pull, peer: from });
    script.say(12, claim());
    script.hear(13, &granted());
    // It names no transfer: it belongs to the grant.
    script.post(13, 1, Direction::Read, 3);
    script.moved(17, 1);
    script.say(17, Message::Done { transfer: X, notifications: 0, prefilled: None });
    script.token(17);
    script.step(20, 1, 40, 1);
    script.stepped(22, 1);
    script.token(22);
    script.finish(22, None);
    assert!(script.is_empty());
    let told = lines(&[
        ("read", 9, 10),
        ("queue", 10, 12),
        ("claim", 12, 13),
        ("slice", 13, 17),
        ("receiving", 12, 17),
        ("first step", 20, 22),
        ("decoding", 17, 22),
        ("decode", 9, 22),
    ]);
    assert_eq!(script.told(), told);
    assert!(script.span("receiving")["args"]["failed"].is_null());
}

#[test]
fn a_turn_reads_what_another_engine_kept_and_hands_on_the_rest() {
    let mut script = Script::new();
    let (reading, peer) = (TransferId(8), PeerAddress { engine: peer(), host: "h".to_owned(), port: 1 });
    script.reuse = Some(Box::new(Reuse { transfer: reading, retention: TransferId(9), peer, tokens: 32 }));
    script.submit(10, S, HandOff::ToPeer { transfer: X, mode: TransferMode::Push });
    let held = Held::Retained(TransferId(9));
    let ask =
        |transfer, held| Message::Claim { transfer, attempt: 0, first_unit: 0, chain: Vec::new(), held };
    script.say(11, ask(reading, held));
    // The other way has begun as well.
    script.say(12, ask(X, Held::Offered));
    script.hear(13, &granted());
    script.hear(
        14,
        &Message::Granted {
            transfer: reading,
            attempt: 0,
            remaining: Millis(1000),
            first_unit: 0,
            units: Vec::new(),
            complete: true,
            prefilled: None,
        },
    );
    script.post(14, 1, Direction::Read, 2);
    script.moved(16, 1);
    script.say(16, Message::Done { transfer: reading, notifications: 0, prefilled: None });
    script.step(17, 1, 32, 8);
    script.stepped(20, 1);
    let told = lines(&[
        ("read", 9, 10),
        ("queue", 10, 11),
        ("claim", 12, 13),
        ("claim", 11, 14),
        ("slice", 14, 16),
        ("readback", 11, 16),
        ("prefill chunk", 17, 20),
    ]);
    assert_eq!(script.told(), told);
    assert_eq!(script.span("slice")["args"]["transfer"], reading.to_string());
    let claims: Vec<Value> = script.spans().into_iter().filter(|span| span["name"] == "claim").collect();
    assert_ne!(claims[0]["tid"], claims[1]["tid"], "they overlap");
}

#[test]
fn kv_that_does_not_come_is_a_failed_wait_and_the_prompt_is_computed() {
    let mut script = Script::new();
    let from = PeerAddress { engine: peer(), host: "h".to_owned(), port: 1 };
    script.submit(10, S, HandOff::FromPeer { transfer: X, mode: TransferMode::Push, peer: from });
    script.say(11, Message::Register { transfer: X, first_unit: 0 });
    script.say(15, Message::Register { transfer: X, first_unit: 0 });
    script.hear(16, &claim());
    script.hear(30, &Message::Abort { transfer: X });
    script.step(31, 1, 0, 40);
    script.stepped(40, 1);
    script.token(40);
    script.timeline.close(Time::from_millis(41));
    // The script's timeline is gone, and so only the file is left to be asked.
    let (dir, tracer, epoch) = (script.dir, script.tracer, script.epoch);
    let timeline = Timeline::new(tracer.clone(), UNIT);
    let script = Script { timeline, dir, tracer, epoch, reuse: None };
    let told = lines(&[
        ("read", 9, 10),
        ("queue", 10, 11),
        ("registration", 11, 16),
        ("receiving", 11, 31),
        ("prefill chunk", 31, 40),
        ("decoding", 40, 41),
        ("decode", 9, 41),
    ]);
    assert_eq!(script.told(), told);
    assert_eq!(script.span("receiving")["args"]["failed"], true);
    assert_eq!(script.span("decode")["args"]["outcome"], "cut off");
}

/// I11: whatever peers leave unsaid.
#[test]
fn so_many_legs_and_no_more() {
    let mut script = Script::new();
    script.timeline.max_legs = 2;
    let push = |n| HandOff::ToPeer { transfer: TransferId(n), mode: TransferMode::Push };
    script.submit(10, S, push(7));
    let handle = Handle { transfer: X, mode: TransferMode::Push, tokens: 40, cached_tokens: 0 };
    script.finish(11, Some(handle));
    script.submit(12, SeqId(4), push(8));
    script.submit(13, SeqId(5), push(9));
    assert!(!script.timeline.legs.contains_key(&S), "what waits for a last word goes first");
    script.submit(14, SeqId(6), push(10));
    assert_eq!((script.timeline.legs.len(), script.tracer.lost()), (2, 1));
    for seq in [4, 5, 6] {
        script.output(15, Output::Refused { seq: SeqId(seq), why: Refusal::Overloaded });
    }
    assert!(script.is_empty());
    assert_eq!(script.span("prefill")["args"]["outcome"], "length");
}

#[test]
fn noise_from_peers_draws_nothing() {
    let mut script = Script::new();
    script.submit(10, S, HandOff::None);
    script.input(11, Input::Proto(baton_proto::Input::Received { conn: ConnId(1), frame: vec![0xff; 40] }));
    script.hear(12, &Message::DoneAck { transfer: TransferId(99) });
    script.moved(13, 77);
    script.stepped(14, 5);
    script.post(15, 1, Direction::Read, 1);
    assert_eq!(script.told(), lines(&[("read", 9, 10)]));
    assert!(script.timeline.posts.is_empty());
}
