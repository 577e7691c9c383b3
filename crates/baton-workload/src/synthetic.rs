//! Conversations that are drawn, not recorded.

use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::conversation::{Ask, Conversation, Message, Turn};
use crate::lengths::{Lengths, MAX_TOKENS};
use crate::prompt::{Prompt, Run};

/// Blocks that drawn prompts are made of: a shared prefix is a whole number of them.
pub const BLOCK_TOKENS: u32 = 16;

/// Every prompt has keys enough for the longest length, and none has another's.
const KEYS_PER_PROMPT: u64 = (MAX_TOKENS / BLOCK_TOKENS) as u64;

#[derive(Clone, Debug, PartialEq)]
pub struct Synthetic {
    /// Of a whole prompt; where there are several turns, of what each turn adds.
    pub input: Lengths,
    pub output: Lengths,
    /// Tokens that all first prompts begin with, as part of their length; rounded up to whole blocks.
    pub shared_prefix_tokens: u32,
    /// So many different conversations, again and again; none: every one is new.
    pub distinct: Option<u64>,
    pub turns: u32,
    /// Between an answer's end and the next turn.
    pub think: Duration,
    /// Prompts are messages of words, and answers are sent back; otherwise they are tokens.
    pub in_words: bool,
}

impl Synthetic {
    /// Endless. The n-th conversation is the same however many are taken.
    pub fn conversations(&self, seed: u64) -> impl Iterator<Item = Conversation> + use<> {
        let drawn = self.clone();
        (0..).map(move |index| drawn.conversation(seed, index))
    }

    fn conversation(&self, seed: u64, index: u64) -> Conversation {
        let number = self.distinct.map_or(index, |distinct| index % distinct.max(1));
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[8..16].copy_from_slice(&number.to_le_bytes());
        let mut random = ChaCha8Rng::from_seed(bytes);
        let turns = (0..self.turns).map(|turn| self.turn(number, turn, &mut random)).collect();
        Conversation {
            name: (self.turns > 1).then(|| format!("c{index}")),
            session: u32::try_from(index).unwrap_or(u32::MAX),
            offset: Duration::ZERO,
            turns,
        }
    }

    fn turn(&self, number: u64, turn: u32, random: &mut ChaCha8Rng) -> Turn {
        let (tokens, output_tokens) = (self.input.draw(random), self.output.draw(random));
        let own = 1 + number * u64::from(self.turns) + u64::from(turn);
        let mut runs = Vec::new();
        // Later turns are behind the first, and so behind its prefix.
        let shared = if turn == 0 { self.shared_prefix_tokens.div_ceil(BLOCK_TOKENS) } else { 0 };
        let blocks = tokens.div_ceil(BLOCK_TOKENS);
        if shared > 0 {
            runs.push(Run { first: 0, blocks: shared.min(blocks) });
        }
        if blocks > shared {
            runs.push(Run { first: own.wrapping_mul(KEYS_PER_PROMPT), blocks: blocks - shared });
        }
        let prompt = Prompt { tokens, block_tokens: BLOCK_TOKENS, runs, tail_key: own };
        let ask = if self.in_words { Ask::Next(Message::Words(prompt)) } else { Ask::Whole(prompt) };
        let think = if turn == 0 { Duration::ZERO } else { self.think };
        Turn { think, ask, output_tokens: Some(output_tokens) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn synthetic() -> Synthetic {
        Synthetic {
            input: Lengths::Uniform { low: 50, high: 90 },
            output: Lengths::Fixed(8),
            shared_prefix_tokens: 30,
            distinct: None,
            turns: 1,
            think: Duration::from_secs(2),
            in_words: false,
        }
    }

    fn prompts(synthetic: &Synthetic, seed: u64) -> Vec<Prompt> {
        let turns = synthetic.conversations(seed).take(6).flat_map(|conversation| conversation.turns);
        turns
            .map(|turn| match turn.ask {
                Ask::Whole(prompt) | Ask::Next(Message::Words(prompt)) => prompt,
                Ask::Next(Message::Text(_)) => unreachable!("nothing is said in text"),
            })
            .collect()
    }

    #[test]
    fn prompts_are_new_but_for_the_prefix_that_all_share() {
        let prompts = prompts(&synthetic(), 1);
        for (i, a) in prompts.iter().enumerate() {
            assert!((50..=90).contains(&a.tokens));
            assert_eq!(a.keys().count() as u32, a.tokens.div_ceil(16));
            for b in &prompts[..i] {
                assert_eq!(a.keys().filter(|key| b.keys().any(|k| k == *key)).count(), 2);
            }
        }
        assert_ne!(prompts, self::prompts(&synthetic(), 2));
    }

    #[test]
    fn a_prompt_may_be_shorter_than_the_prefix() {
        let short = Synthetic { input: Lengths::Fixed(10), ..synthetic() };
        assert_eq!(prompts(&short, 1)[0].runs, [Run { first: 0, blocks: 1 }]);
    }

    #[test]
    fn few_prompts_come_again_with_their_lengths() {
        let few = Synthetic { distinct: Some(2), ..synthetic() };
        let prompts = prompts(&few, 1);
        assert_eq!(prompts[0], prompts[2]);
        assert_eq!(prompts[1], prompts[5]);
        assert_ne!(prompts[0], prompts[1]);
    }

    #[test]
    fn conversations_think_between_their_turns() {
        let talk = Synthetic { turns: 3, in_words: true, ..synthetic() };
        let conversation = talk.conversations(1).nth(4).unwrap();
        assert_eq!(conversation.name.as_deref(), Some("c4"));
        let think: Vec<u64> = conversation.turns.iter().map(|turn| turn.think.as_secs()).collect();
        assert_eq!(think, [0, 2, 2]);
        let keys: Vec<u64> =
            prompts(&talk, 1).iter().flat_map(|prompt| prompt.keys().skip(2).collect::<Vec<_>>()).collect();
        let mut once = keys.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(keys.len(), once.len());
    }
}
