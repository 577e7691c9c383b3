//! The HTTP edge of the engines: legs that come in, tokens and errors that go out.

use baton_engine::{FinishReason, Input, Refusal, Request, SeqFailure, Usage};
use baton_routing::LegFault;
use baton_types::{BlockChain, CacheSalt, LegKind, SeqId, TokenId};

use crate::client::MODEL;
use crate::fault::Fault;
use crate::front::{LegAsk, LegNews, Line};
use crate::node::{Process, ServedLeg};
use crate::split::Place;
use crate::world::{Event, World};

impl World {
    pub fn leg_arrives(&mut self, node: usize, ask: LegAsk) {
        let LegAsk { line, client, kind, hand_off, copy } = ask;
        let refused = self.strikes(Fault::LegRefused);
        if refused || self.nodes[node].process.is_none() {
            if !copy {
                let at = self.arrival(Place::Node(node), Place::Router);
                self.queue.push(at, Event::News { line, news: LegNews::Failed(LegFault::Connect) });
            }
            return;
        }
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
            reuse: None,
            retention: None,
        };
        let salt = CacheSalt { model: MODEL.fingerprint(), ..client.salt() };
        let all: Vec<TokenId> = asker.prompt.iter().chain(&client.unstopped).copied().collect();
        let chain = BlockChain::new(&salt, self.scenario.layout.block_tokens as usize, &all);
        for hash in chain.full_blocks(1) {
            process.contents.entry(hash).or_default().insert(seq);
        }
        self.answer(node, seq, LegNews::Connected);
        self.tell_engine(node, Input::Submit(request));
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

    pub fn finished(&mut self, node: usize, seq: SeqId, reason: FinishReason, usage: Usage, handle: bool) {
        let process = self.nodes[node].process.as_mut().expect("it has just spoken");
        check_hits(process, self.scenario.layout.block_tokens, seq, usage);
        let address = handle.then(|| process.address());
        let served = process.served.get_mut(&seq).expect("I4: a sequence ends once");
        let news = match reason {
            FinishReason::Stop | FinishReason::Length => {
                let body = if served.streaming { Vec::new() } else { std::mem::take(&mut served.tokens) };
                LegNews::Complete { body, handle: address }
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
            Refusal::Overloaded | Refusal::Draining | Refusal::KvInFlight { .. } => LegFault::Overloaded,
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
