//! The clients: what they ask, what they must get, and what they have got so far.

use baton_model::EmulatedModel;
use baton_model::runner_emulated::oracle;
use baton_routing::LegId;
use baton_types::{CacheSalt, KvLayout, SamplingParams, Time, TokenId};

use crate::random::Random;
use crate::scenario::Workload;

/// The one model of every simulated engine.
pub(crate) const MODEL: EmulatedModel = EmulatedModel { vocab: 32_000, first_token: 256, weights_seed: 11 };
/// The name by which clients ask for it.
pub(crate) const MODEL_NAME: &str = "emulated";

/// One request, and the client that waits for its answer.
#[derive(Debug)]
pub(crate) struct Client {
    pub arrives: Time,
    pub prompt: Vec<TokenId>,
    pub salt: CacheSalt,
    pub max_tokens: u32,
    pub min_tokens: u32,
    pub stop_tokens: Vec<TokenId>,
    /// A stop string ends after so many tokens of the answer: only the HTTP edge can see that.
    pub stop_after: Option<usize>,
    pub streaming: bool,
    pub sampling: SamplingParams,
    /// The whole answer, were there no engine's limit to cut it short.
    pub expected: Vec<TokenId>,
    /// What an engine may compute that has not heard yet that it is to stop.
    pub unstopped: Vec<TokenId>,
    pub received: Vec<TokenId>,
    /// The leg whose stream the client gets.
    pub attached: Option<LegId>,
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
    /// How many tokens the answer has on an engine whose sequences end at `max_len` tokens.
    pub fn answer_len(&self, max_len: usize) -> usize {
        self.expected.len().min(max_len - self.prompt.len())
    }

    /// Passes one token of the answer on.
    ///
    /// # Panics
    /// I7: if it is not the next one of the answer that an undisturbed engine gives.
    pub fn receive(&mut self, token: TokenId) {
        let at = self.received.len();
        let wanted = self.expected.get(at).copied();
        assert_eq!(Some(token), wanted, "I7: token {at} of the answer after {} of prompt", self.prompt.len());
        self.received.push(token);
    }
}

/// All clients of a run, in the order in which they arrive. `greedy`: none of them samples at random.
pub(crate) fn draw_clients(
    random: &mut Random,
    workload: &Workload,
    layout: &KvLayout,
    greedy: bool,
    from: Time,
) -> Vec<Client> {
    let longest = workload.longest_prompt;
    let document = |random: &mut Random| (0..longest).map(|_| TokenId(random.below(32_000) as u32)).collect();
    let documents: Vec<Vec<TokenId>> = (0..workload.documents).map(|_| document(random)).collect();
    let mut clients: Vec<Client> = Vec::new();
    let mut arrives = from;
    for _ in 0..workload.requests {
        arrives += random.duration(workload.gap_us.clone());
        let prompt = match clients.last() {
            // The same words again, perhaps for another tenant.
            Some(last) if random.chance(250) => last.prompt.clone(),
            // The next turn of a conversation.
            Some(last) if random.chance(200) => {
                let both = last.prompt.iter().chain(&last.expected).copied();
                both.chain([TokenId(1)]).take(longest).collect()
            }
            _ => draw_prompt(random, &documents, longest),
        };
        clients.push(draw_client(random, workload, layout, greedy, arrives, prompt));
    }
    clients
}

fn draw_prompt(random: &mut Random, documents: &[Vec<TokenId>], longest: usize) -> Vec<TokenId> {
    let document = &documents[random.below(documents.len() as u64) as usize];
    let shared = random.below(longest as u64 + 1) as usize;
    let own = random.skewed(0..20);
    let own: Vec<TokenId> = (0..own).map(|_| TokenId(random.below(32_000) as u32)).collect();
    let mut prompt: Vec<TokenId> = document[..shared].iter().copied().chain(own).take(longest).collect();
    if prompt.is_empty() {
        prompt.push(TokenId(7));
    }
    prompt
}

fn draw_client(
    random: &mut Random,
    workload: &Workload,
    layout: &KvLayout,
    greedy: bool,
    arrives: Time,
    prompt: Vec<TokenId>,
) -> Client {
    let max_tokens = random.skewed(1..u64::from(workload.longest_answer)) as u32;
    let greedy = greedy || random.chance(800);
    let sampling = if greedy {
        SamplingParams::GREEDY
    } else {
        SamplingParams { temperature: 1.0, seed: random.next(), ..SamplingParams::GREEDY }
    };
    let mut expected = oracle(MODEL, layout, &prompt, max_tokens as usize, &sampling);
    let unstopped = expected.clone();
    let mut stop_tokens = Vec::new();
    if random.chance(200) {
        stop_tokens.push(expected[random.below(expected.len() as u64) as usize]);
    }
    let min_tokens = if random.chance(150) { random.below(u64::from(max_tokens) + 1) as u32 } else { 0 };
    let stops = |(i, token): (usize, &TokenId)| i + 1 >= min_tokens as usize && stop_tokens.contains(token);
    if let Some(stop) = expected.iter().enumerate().position(stops) {
        expected.truncate(stop + 1);
    }
    let stop_after = random.chance(150).then(|| random.within(1..u64::from(max_tokens) + 1) as usize);
    expected.truncate(stop_after.unwrap_or(usize::MAX));
    let salt = CacheSalt {
        tenant: format!("tenant-{}", random.below(workload.tenants)),
        client: if random.chance(100) { "private".into() } else { String::new() },
        ..CacheSalt::default()
    };
    Client {
        arrives,
        prompt,
        salt,
        max_tokens,
        min_tokens,
        stop_tokens,
        stop_after,
        streaming: random.chance(700),
        sampling,
        expected,
        unstopped,
        received: Vec::new(),
        attached: None,
        state: ClientState::NotArrived,
    }
}
