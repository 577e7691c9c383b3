//! What is asked: prompts that share their beginnings, conversations that go on, tenants that say the same words, and those who bring
//! what belongs to others.

use std::ops::Range;

use baton_types::{KvLayout, TokenId};

use crate::ask::{After, Ask, Conversation, Reference};
use crate::client::whole_answer;
use crate::draw::draw_span;
use crate::random::Random;
use crate::turn::next_prompt;

/// Turns continue one of so many that were asked last: several at once, from the same one or from different ones.
const RECENT: usize = 8;

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
    /// Requests that continue another one, of a thousand.
    pub turns: u32,
    /// How long clients think between two turns, in microseconds.
    pub think_us: Range<u64>,
    /// Requests that say what others have said, with their names and their references, of a thousand.
    pub hostile: u32,
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
            turns: 200,
            think_us: 0..random.skewed(1..100_000),
            hostile: 0,
        }
    }
}

/// All requests, each after those that it follows.
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
    for number in 0..workload.requests {
        at_us += random.within(workload.gap_us.clone());
        let prompt = match asks.last() {
            // The same words again, perhaps for another tenant.
            Some(last) if random.chance(250) => last.prompt.clone(),
            _ => draw_prompt(random, &documents, longest),
        };
        let question = Ask { number, at_us, ..a_question(random, prompt) };
        let first = draw_ask(random, workload, layout, question);
        let recent = &asks[asks.len().saturating_sub(RECENT)..];
        let earlier = (!recent.is_empty()).then(|| &recent[random.below(recent.len() as u64) as usize]);
        let ask = match earlier {
            Some(earlier) if random.chance(workload.turns) => {
                next_turn(random, workload, layout, earlier, &first).unwrap_or(first)
            }
            Some(earlier) if random.chance(workload.hostile) => hostile(random, workload, earlier, &first),
            _ => first,
        };
        asks.push(ask);
    }
    asks
}

pub(crate) fn draw_token(random: &mut Random) -> TokenId {
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

/// A first turn, to be answered in some way.
fn a_question(random: &mut Random, prompt: Vec<TokenId>) -> Ask {
    let conversation = match random.below(7) {
        0 => Conversation::Untold,
        1..=3 => Conversation::Named(format!("chat-{}", random.below(20))),
        _ => Conversation::Messages(vec![prompt.len()]),
    };
    Ask {
        number: 0,
        at_us: 0,
        after: None,
        prompt,
        tenant: String::new(),
        salt: String::new(),
        conversation,
        reference: Reference::Found,
        max_tokens: 1,
        min_tokens: 0,
        stop_tokens: Vec::new(),
        stop_after: None,
        streaming: false,
        sample_seed: None,
    }
}

fn draw_ask(random: &mut Random, workload: &Workload, layout: &KvLayout, question: Ask) -> Ask {
    let max_tokens = random.skewed(1..u64::from(workload.longest_answer)) as u32;
    let greedy = workload.greedy || random.chance(800);
    let sample_seed = (!greedy).then(|| random.next());
    let mut ask = Ask {
        tenant: format!("tenant-{}", random.below(workload.tenants)),
        salt: if random.chance(100) { "private".into() } else { String::new() },
        max_tokens,
        min_tokens: if random.chance(150) { random.below(u64::from(max_tokens) + 1) as u32 } else { 0 },
        stop_after: random.chance(150).then(|| random.within(1..u64::from(max_tokens) + 1) as usize),
        streaming: random.chance(700),
        sample_seed,
        ..question
    };
    if random.chance(200) {
        ask.stop_tokens.push(random.pick(&whole_answer(&ask, layout)));
    }
    ask
}

/// The next turn of somebody's conversation, answered as `ask` is; none if that is too long by now.
fn next_turn(
    random: &mut Random,
    workload: &Workload,
    layout: &KvLayout,
    earlier: &Ask,
    ask: &Ask,
) -> Option<Ask> {
    let (prompt, conversation) = next_prompt(random, earlier, layout);
    if prompt.len() > workload.longest_prompt {
        return None;
    }
    // Some do not wait for the answer.
    let waits = random.chance(850);
    let think_us = random.skewed(workload.think_us.clone());
    // Now and then the router is not asked.
    let reference = match random.below(12) {
        0 => Reference::Of(earlier.number),
        1 => Reference::Overstated(earlier.number),
        _ => Reference::Found,
    };
    Some(Ask {
        reference,
        after: waits.then_some(After { number: earlier.number, think_us }),
        prompt,
        tenant: earlier.tenant.clone(),
        salt: earlier.salt.clone(),
        conversation,
        ..ask.clone()
    })
}

/// Somebody else with the same words: another tenant, or another salt, who knows the names and the references of the first.
fn hostile(random: &mut Random, workload: &Workload, earlier: &Ask, ask: &Ask) -> Ask {
    let mut hostile = Ask {
        after: Some(After { number: earlier.number, think_us: random.skewed(workload.think_us.clone()) }),
        prompt: earlier.prompt.clone(),
        tenant: earlier.tenant.clone(),
        salt: earlier.salt.clone(),
        conversation: earlier.conversation.clone(),
        ..ask.clone()
    };
    match random.below(3) {
        0 => hostile.salt.push('*'),
        _ => hostile.tenant.push('*'),
    }
    hostile.reference = match random.below(4) {
        0 => Reference::Found,
        1 => Reference::ForgedFrom(earlier.number),
        _ => Reference::Of(earlier.number),
    };
    // A few words of what the first has not said yet.
    let more = random.below((workload.longest_prompt - hostile.prompt.len()) as u64 + 1).min(20);
    hostile.prompt.extend((0..more).map(|_| draw_token(random)));
    hostile
}
