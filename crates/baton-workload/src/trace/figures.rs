//! What a workload comes to, before it is sent.

use std::time::Duration;

use super::key_set::KeySet;
use crate::conversation::{Ask, Conversation, Message};
use crate::quantile::nearest_rank;

/// Lengths in tokens, of those requests whose length is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    pub requests: u64,
    pub conversations: u64,
    pub mean_input: Option<f64>,
    pub median_input: Option<f64>,
    pub p99_input: Option<f64>,
    pub mean_output: Option<f64>,
    /// From the first conversation's beginning to the last's, as recorded.
    pub span: Duration,
    /// Share of the prompts' blocks that an unlimited prefix cache would find, 0 to 1; none where answers are sent back, since
    /// nobody knows them before.
    pub shareable: Option<f64>,
}

impl Figures {
    pub fn of<'a>(conversations: impl IntoIterator<Item = &'a Conversation>) -> Self {
        let mut figures = Self::default();
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        let (mut seen, mut blocks, mut found) = (KeySet::default(), 0_u64, 0_u64);
        let mut all_whole = true;
        for conversation in conversations {
            figures.conversations += 1;
            figures.requests += conversation.turns.len() as u64;
            figures.span = figures.span.max(conversation.offset);
            for turn in &conversation.turns {
                outputs.extend(turn.output_tokens.map(f64::from));
                let prompt = match &turn.ask {
                    Ask::Whole(prompt) => prompt,
                    // Alone it is all that is sent.
                    Ask::Next(Message::Words(prompt)) if conversation.turns.len() == 1 => prompt,
                    Ask::Next(_) => {
                        all_whole = false;
                        continue;
                    }
                };
                inputs.push(f64::from(prompt.tokens));
                for run in &prompt.runs {
                    blocks += u64::from(run.blocks);
                    found += seen.insert(*run);
                }
            }
        }
        inputs.sort_by(f64::total_cmp);
        figures.mean_input = mean(&inputs);
        figures.median_input = nearest_rank(&inputs, 0.5);
        figures.p99_input = nearest_rank(&inputs, 0.99);
        figures.mean_output = mean(&outputs);
        figures.shareable = (all_whole && blocks > 0).then(|| found as f64 / blocks as f64);
        figures
    }
}

fn mean(samples: &[f64]) -> Option<f64> {
    (!samples.is_empty()).then(|| samples.iter().sum::<f64>() / samples.len() as f64)
}
