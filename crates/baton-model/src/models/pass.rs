//! A step cut into passes of bounded size.

use baton_engine::Batch;
use baton_types::TokenId;

/// Rows of one pass at most: bounds the runner's memory, and keeps activations near the second-level cache.
pub const MAX_ROWS: usize = 512;

/// Some rows of a batch, computed together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    pub tokens: Vec<TokenId>,
    pub spans: Vec<Span>,
}

/// Consecutive tokens of one entry, inside one pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Index into the batch.
    pub entry: usize,
    pub first_row: usize,
    pub rows: usize,
    /// Position of the first row.
    pub position: usize,
    /// Whether the token after the last row is wanted.
    pub samples: bool,
}

impl Pass {
    /// Cuts a batch into passes of at most `max_rows` rows, in order. A long entry's later rows come in a later pass, which
    /// finds the KV of the earlier ones in its table.
    pub fn cut(batch: &Batch, max_rows: usize) -> Vec<Self> {
        let mut passes: Vec<Self> = Vec::new();
        for (index, entry) in batch.entries.iter().enumerate() {
            let mut done = 0;
            while done < entry.tokens.len() {
                if passes.last().is_none_or(|pass| pass.tokens.len() >= max_rows) {
                    passes.push(Self::default());
                }
                let pass = passes.last_mut().expect("there is a pass with room");
                let rows = (max_rows - pass.tokens.len()).min(entry.tokens.len() - done);
                pass.spans.push(Span {
                    entry: index,
                    first_row: pass.tokens.len(),
                    rows,
                    position: entry.start as usize + done,
                    samples: entry.sample.is_some() && done + rows == entry.tokens.len(),
                });
                pass.tokens.extend(&entry.tokens[done..done + rows]);
                done += rows;
            }
        }
        passes
    }

    /// The rows whose logits are wanted, in order, each with the index of its entry.
    pub fn sampled(&self) -> Vec<(usize, usize)> {
        let sampling = self.spans.iter().filter(|span| span.samples);
        sampling.map(|span| (span.first_row + span.rows - 1, span.entry)).collect()
    }
}

#[cfg(test)]
mod tests {
    use baton_engine::BatchEntry;
    use baton_types::{SamplingParams, SeqId};

    use super::*;

    #[test]
    fn passes_are_bounded_and_cover_every_token_in_order() {
        let entry = |len: u32, start: u32| BatchEntry {
            seq: SeqId(0),
            tokens: (start..start + len).map(TokenId).collect(),
            start,
            table: Vec::new(),
            sample: Some(SamplingParams::GREEDY),
        };
        let batch = Batch { step: 0, entries: vec![entry(3, 10), entry(9, 0), entry(1, 4)] };
        let passes = Pass::cut(&batch, 5);
        assert_eq!(passes.iter().map(|p| p.tokens.len()).collect::<Vec<_>>(), [5, 5, 3]);
        let sampled: Vec<_> = passes.iter().map(Pass::sampled).collect();
        assert_eq!(sampled, [vec![(2, 0)], vec![], vec![(1, 1), (2, 2)]]);
        for span in passes.iter().flat_map(|p| p.spans.iter().map(move |s| (p, s))) {
            let (pass, span) = span;
            // The token ids of this test are their positions.
            assert_eq!(pass.tokens[span.first_row].0 as usize, span.position);
        }
    }
}
