//! The HTTP edge of the engines: legs that come in, tokens and errors that go out.

use std::time::Duration;

use baton_engine::{FinishReason, Input, Refusal, Request, Retained, Reuse, SeqFailure, Usage};
use baton_routing::LegFault;
use baton_types::{LegKind, SeqId, TokenId, TransferId};

use crate::conversation::RetainedAt;
use crate::depth::Depth;
use crate::fault::Fault;
use crate::front::{LegAsk, LegNews, Line};
use crate::node::{Process, ServedLeg};
use crate::split::Place;
use crate::world::{Event, World};

/// How a sequence ended.
pub(crate) struct Ended {
    pub reason: FinishReason,
    pub usage: Usage,
    pub handle: bool,
    pub retained: Option<Retained>,
}

impl World {
    pub fn leg_arrives(&mut self, node: usize, ask: LegAsk) {
        let LegAsk { line, client, kind, hand_off, reuse, copy } = ask;
        let refused = self.strikes(Fault::LegRefused);
        if refused || self.nodes[node].process.is_none() {
            if !copy {
                let at = self.arrival(Place::Node(node), Place::Router);
                self.queue.push(at, Event::News { line, news: LegNews::Failed(LegFault::Connect) });
            }
            return;
        }
        let reuse = reuse.map(|retained| self.reading(client, retained));
        let retention =
            self.nodes[node].spec.retain.is_some().then(|| TransferId(u128::from(self.random.next())));
        let client_number = client;
        let client = &self.clients[client];
        let asker = &client.ask;
        let process = self.nodes[node].process.as_mut().expect("looked at above");
        let seq = SeqId(process.next_seq);
        process.next_seq += 1;
        let answers = kind != LegKind::Prefill;
        process.served.insert(
            seq,
            ServedLeg {
                line,
                client: client_number,
                streaming: asker.streaming && answers,
                answers,
                tokens: Vec::new(),
                arrived: self.now,
                // Nobody reads the answer to a request that somebody else has sent again.
                dropped: copy,
            },
        );
        let request = Request {
            seq,
            prompt: asker.prompt.clone(),
            salt: client.salt(),
            // What a router sends on the prefill leg.
            max_tokens: if answers { asker.max_tokens } else { 1 },
            min_tokens: if answers { asker.min_tokens } else { 1.min(asker.min_tokens) },
            stop_tokens: asker.stop_tokens.clone(),
            sampling: client.sampling.clone(),
            hand_off,
            reuse: reuse.map(Box::new),
            retention,
        };
        for hash in &client.chain {
            process.contents.entry(*hash).or_default().insert(seq);
        }
        self.answer(node, seq, LegNews::Connected);
        self.tell_engine(node, Input::Submit(request));
    }

    /// A leg says where KV may be: it is read by an id of its own.
    fn reading(&mut self, client: usize, retained: RetainedAt) -> Reuse {
        let RetainedAt { retention, peer, tokens, .. } = retained;
        let transfer = TransferId(u128::from(self.random.next()));
        if self.depth == Depth::Bytes {
            self.retention_book.reads(transfer, &self.clients[client].chain);
        }
        Reuse { transfer, retention, peer, tokens }
    }

    /// The engine says what it retains of a conversation, and for how long.
    fn note_retained(&mut self, node: usize, client: usize, retained: Retained) -> RetainedAt {
        let (process, spec) =
            (self.nodes[node].process.as_ref().expect("it has just spoken"), &self.nodes[node].spec);
        let retain = spec.retain.expect("I12: it was asked to");
        let ttl = Duration::from_millis(retain.ttl_ms);
        let client = &self.clients[client];
        if self.depth == Depth::Bytes {
            let units = (retained.tokens / self.scenario.layout.block_tokens) as usize;
            let held = client.chain.get(..units);
            let held = held.unwrap_or_else(|| panic!("I2: {retained:?} is more than prompt and answer"));
            let until = (!retain.renewable).then(|| spec.clock.shows(self.now) + ttl);
            self.retention_book.retains(process.life, retained.retention, held, until);
        }
        let Retained { retention, tokens } = retained;
        let at = RetainedAt { retention, peer: process.address(), tokens, ttl };
        self.retained.insert(client.ask.number, at.clone());
        at
    }

    pub fn leg_drops(&mut self, node: usize, line: Line) {
        let Some(process) = &mut self.nodes[node].process else { return };
        let Some(seq) = process.seq_of(line) else { return };
        process.served.get_mut(&seq).expect("just found").dropped = true;
        self.tell_engine(node, Input::Abort { seq });
    }

    /// Sends something back on a leg, after all that was sent on it before.
    fn answer(&mut self, node: usize, seq: SeqId, news: LegNews) {
        let at = self.arrival(Place::Node(node), Place::Router);
        let process = self.nodes[node].process.as_mut().expect("it answers");
        let served = process.served.get_mut(&seq).expect("until its end");
        served.arrived = served.arrived.max(at);
        if !served.dropped {
            self.queue.push(served.arrived, Event::News { line: served.line, news });
        }
    }

    pub fn token(&mut self, node: usize, seq: SeqId, token: TokenId) {
        let process = self.nodes[node].process.as_mut().expect("it has just spoken");
        let life = process.life;
        let served = process.served.get_mut(&seq).expect("I4: nothing follows a sequence's end");
        let stop_after = self.clients[served.client].ask.stop_after.filter(|_| served.answers);
        // The text ends at the stop string, whatever the engine makes of it until it hears.
        if stop_after.is_some_and(|stop| served.tokens.len() >= stop) {
            return;
        }
        served.tokens.push(token);
        let (streaming, len) = (served.streaming, served.tokens.len());
        if stop_after == Some(len) {
            let at = self.now + self.random.duration(0..2_000);
            self.queue.push(at, Event::Stop { to: life, seq });
        }
        if streaming {
            self.answer(node, seq, LegNews::Token(token));
        }
    }

    pub fn finished(&mut self, node: usize, seq: SeqId, ended: Ended) {
        let Ended { reason, usage, handle, retained } = ended;
        let process = self.nodes[node].process.as_mut().expect("it has just spoken");
        if self.depth == Depth::Bytes {
            check_hits(process, self.scenario.layout.block_tokens, seq, usage);
        }
        let address = handle.then(|| process.address());
        let client = process.served.get(&seq).expect("I4: a sequence ends once").client;
        let retained = retained.map(|retained| self.note_retained(node, client, retained));
        let process = self.nodes[node].process.as_mut().expect("it has just spoken");
        let served = process.served.get_mut(&seq).expect("I4: a sequence ends once");
        let news = match reason {
            FinishReason::Stop | FinishReason::Length => {
                let body = if served.streaming { Vec::new() } else { std::mem::take(&mut served.tokens) };
                LegNews::Complete { body, handle: address, retained }
            }
            FinishReason::Aborted => {
                assert!(served.dropped, "{seq:?} was aborted by nobody");
                self.end_served(node, seq);
                return;
            }
            // The status line is gone already: an error event in the stream.
            FinishReason::Failed(_) if served.streaming && !served.tokens.is_empty() => {
                LegNews::Failed(LegFault::BadAnswer)
            }
            FinishReason::Failed(SeqFailure::Receiver(_)) => LegNews::Failed(LegFault::Unwanted),
            FinishReason::Failed(_) => LegNews::Failed(LegFault::ServerError),
        };
        self.answer(node, seq, news);
        self.end_served(node, seq);
    }

    pub fn refused(&mut self, node: usize, seq: SeqId, why: Refusal) {
        let fault = match why {
            Refusal::Empty | Refusal::ContextTooLong { .. } | Refusal::PoolTooSmall { .. } => {
                LegFault::Refused
            }
            Refusal::Overloaded | Refusal::Draining => LegFault::Overloaded,
            Refusal::KvInFlight { .. } => LegFault::KvInFlight,
            Refusal::TransferInUse | Refusal::OwnPeer => LegFault::ServerError,
        };
        self.answer(node, seq, LegNews::Failed(fault));
        self.end_served(node, seq);
    }

    fn end_served(&mut self, node: usize, seq: SeqId) {
        let process = self.nodes[node].process.as_mut().expect("it has just spoken");
        process.served.remove(&seq).expect("I4: a sequence ends once");
    }
}

/// I13: whatever a prefix hit found was put there by another request that had the same words and the same salt.
fn check_hits(process: &Process, unit_tokens: u32, seq: SeqId, usage: Usage) {
    if usage.hit_tokens == 0 {
        return;
    }
    let others = process.contents.values().filter(|seqs| seqs.contains(&seq) && seqs.len() > 1).count();
    assert!(
        usage.hit_tokens / unit_tokens <= others as u32,
        "I13: {seq:?} hit {} cached tokens, of which {others} units are anybody's",
        usage.hit_tokens
    );
}
