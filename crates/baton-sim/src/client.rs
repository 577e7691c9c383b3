//! The clients: what they must get, and what they have got so far.

use std::time::Duration;

use baton_model::EmulatedModel;
use baton_model::runner_emulated::oracle;
use baton_types::{BlockChain, BlockHash, CacheSalt, KvLayout, SamplingParams, Time, TokenId};

use crate::ask::Ask;
use crate::depth::Depth;
use crate::front::Line;

/// The one model of every simulated engine.
pub(crate) const MODEL: EmulatedModel =
    EmulatedModel { vocab: 32_000, first_token: 256, weights_seed: 11, reads_every: 1 };
/// The name by which clients ask for it.
pub(crate) const MODEL_NAME: &str = "emulated";

/// One request, and the client that waits for its answer.
#[derive(Debug)]
pub(crate) struct Client {
    pub ask: Ask,
    pub sampling: SamplingParams,
    /// The whole answer, were there no engine's limit to cut it short.
    pub expected: Vec<TokenId>,
    /// What the full units of prompt and answer truly are, of an answer that nobody has stopped too.
    pub chain: Vec<BlockHash>,
    pub received: Vec<TokenId>,
    /// The leg whose stream the client gets.
    pub attached: Option<Line>,
    pub arrived: Time,
    /// How long it has waited for its first token.
    pub first_token: Option<Duration>,
    /// Until then it takes nothing.
    pub stalled_until: Time,
    pub state: ClientState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientState {
    NotArrived,
    Waiting,
    Answered,
    /// It got one clean error.
    Failed,
    Gone,
}

impl ClientState {
    pub fn is_over(self) -> bool {
        !matches!(self, Self::NotArrived | Self::Waiting)
    }
}

impl Client {
    pub fn new(ask: Ask, layout: &KvLayout) -> Self {
        let unstopped = whole_answer(&ask, layout);
        let salt = CacheSalt { model: MODEL.fingerprint(), ..salt(&ask) };
        let all: Vec<TokenId> = ask.prompt.iter().chain(&unstopped).copied().collect();
        let chain = BlockChain::new(&salt, layout.block_tokens as usize, &all).full_blocks(1);
        Self { chain, expected: stopped(&ask, unstopped), ..Self::silent(ask) }
    }

    /// One that has not made up its words yet.
    pub fn silent(ask: Ask) -> Self {
        Self {
            sampling: sampling(&ask),
            chain: Vec::new(),
            expected: Vec::new(),
            ask,
            received: Vec::new(),
            attached: None,
            arrived: Time::ZERO,
            first_token: None,
            stalled_until: Time::ZERO,
            state: ClientState::NotArrived,
        }
    }

    /// It says this, and expects the answer to it.
    pub fn remember(&mut self, prompt: Vec<TokenId>, depth: Depth, layout: &KvLayout) {
        self.ask.prompt = prompt;
        self.expected = depth.answer(&self.ask, layout);
    }

    /// Its words were many.
    pub fn forget(&mut self) {
        (self.ask.prompt, self.expected, self.received) = Default::default();
    }

    /// How many tokens the answer has on an engine whose sequences end at `max_len` tokens.
    pub fn answer_len(&self, max_len: usize) -> usize {
        self.expected.len().min(max_len - self.ask.prompt.len())
    }

    pub fn salt(&self) -> CacheSalt {
        salt(&self.ask)
    }

    /// Passes one token of the answer on.
    ///
    /// # Panics
    /// I7: if it is not the next one of the answer that an undisturbed engine gives.
    pub fn receive(&mut self, now: Time, token: TokenId) {
        self.first_token.get_or_insert(now.since(self.arrived));
        let at = self.received.len();
        let wanted = self.expected.get(at).copied();
        let prompt = self.ask.prompt.len();
        assert_eq!(Some(token), wanted, "I7: token {at} of the answer after {prompt} of prompt");
        self.received.push(token);
    }
}

/// What the model says if nobody stops it.
pub(crate) fn whole_answer(ask: &Ask, layout: &KvLayout) -> Vec<TokenId> {
    oracle(MODEL, layout, &ask.prompt, ask.max_tokens as usize, &sampling(ask))
}

/// What the client gets of that.
fn stopped(ask: &Ask, mut answer: Vec<TokenId>) -> Vec<TokenId> {
    let stops =
        |(i, token): (usize, &TokenId)| i + 1 >= ask.min_tokens as usize && ask.stop_tokens.contains(token);
    if let Some(stop) = answer.iter().enumerate().position(stops) {
        answer.truncate(stop + 1);
    }
    answer.truncate(ask.stop_after.unwrap_or(usize::MAX));
    answer
}

/// What the model says to whom it is asked by, all in all.
pub(crate) fn answer(ask: &Ask, layout: &KvLayout) -> Vec<TokenId> {
    stopped(ask, whole_answer(ask, layout))
}

fn salt(ask: &Ask) -> CacheSalt {
    CacheSalt { tenant: ask.tenant.clone(), client: ask.salt.clone(), ..CacheSalt::default() }
}

fn sampling(ask: &Ask) -> SamplingParams {
    match ask.sample_seed {
        Some(seed) => SamplingParams { temperature: 1.0, seed, ..SamplingParams::GREEDY },
        None => SamplingParams::GREEDY,
    }
}
