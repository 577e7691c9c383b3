//! What is asked: prompts that share their beginnings, conversations that go on, tenants that say the same words.

use std::ops::Range;

use baton_types::{KvLayout, TokenId};

use crate::client::whole_answer;
use crate::draw::draw_span;
use crate::random::Random;
use crate::scenario::Ask;

/// What requests are drawn from.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    pub requests: u64,
    /// Between two arrivals, in microseconds.
    pub gap_us: Range<u64>,
    /// Texts that prompts begin with.
    pub documents: u64,
    pub longest_prompt: usize,
    pub longest_answer: u32,
    pub tenants: u64,
    /// Nobody samples at random.
    pub greedy: bool,
}

impl Workload {
    pub fn draw(random: &mut Random, block_tokens: u32) -> Self {
        let longest = if random.chance(200) { 300 } else { 60 };
        Self {
            requests: random.skewed(2..40),
            gap_us: draw_span(random, 10..60_000),
            documents: random.within(1..5),
            longest_prompt: random.within(u64::from(block_tokens)..longest) as usize,
            longest_answer: random.skewed(1..40) as u32 + 1,
            tenants: random.within(1..4),
            greedy: false,
        }
    }
}

/// All requests, in the order in which they arrive.
pub(crate) fn draw_requests(
    random: &mut Random,
    workload: &Workload,
    layout: &KvLayout,
    from_us: u64,
) -> Vec<Ask> {
    let longest = workload.longest_prompt;
    let document = |random: &mut Random| (0..longest).map(|_| draw_token(random)).collect();
    let documents: Vec<Vec<TokenId>> = (0..workload.documents).map(|_| document(random)).collect();
    let mut asks: Vec<Ask> = Vec::new();
    let mut at_us = from_us;
    for _ in 0..workload.requests {
        at_us += random.within(workload.gap_us.clone());
        let prompt = match asks.last() {
            // The same words again, perhaps for another tenant.
            Some(last) if random.chance(250) => last.prompt.clone(),
            // The next turn of a conversation.
            Some(last) if random.chance(200) => {
                let answer = whole_answer(last, layout);
                let both = last.prompt.iter().copied().chain(answer);
                both.chain([TokenId(1)]).take(longest).collect()
            }
            _ => draw_prompt(random, &documents, longest),
        };
        asks.push(draw_ask(random, workload, layout, at_us, prompt));
    }
    asks
}

fn draw_token(random: &mut Random) -> TokenId {
    TokenId(random.below(32_000) as u32)
}

fn draw_prompt(random: &mut Random, documents: &[Vec<TokenId>], longest: usize) -> Vec<TokenId> {
    let document = &documents[random.below(documents.len() as u64) as usize];
    let shared = random.below(longest as u64 + 1) as usize;
    let own = random.skewed(0..20);
    let own: Vec<TokenId> = (0..own).map(|_| draw_token(random)).collect();
    let mut prompt: Vec<TokenId> = document[..shared].iter().copied().chain(own).take(longest).collect();
    if prompt.is_empty() {
        prompt.push(TokenId(7));
    }
    prompt
}

fn draw_ask(
    random: &mut Random,
    workload: &Workload,
    layout: &KvLayout,
    at_us: u64,
    prompt: Vec<TokenId>,
) -> Ask {
    let max_tokens = random.skewed(1..u64::from(workload.longest_answer)) as u32;
    let greedy = workload.greedy || random.chance(800);
    let sample_seed = (!greedy).then(|| random.next());
    let mut ask = Ask {
        at_us,
        prompt,
        tenant: format!("tenant-{}", random.below(workload.tenants)),
        salt: if random.chance(100) { "private".into() } else { String::new() },
        max_tokens,
        min_tokens: if random.chance(150) { random.below(u64::from(max_tokens) + 1) as u32 } else { 0 },
        stop_tokens: Vec::new(),
        stop_after: random.chance(150).then(|| random.within(1..u64::from(max_tokens) + 1) as usize),
        streaming: random.chance(700),
        sample_seed,
    };
    if random.chance(200) {
        ask.stop_tokens.push(random.pick(&whole_answer(&ask, layout)));
    }
    ask
}
