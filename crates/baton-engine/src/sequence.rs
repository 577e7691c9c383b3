//! One sequence: its tokens, how far its KV is computed, and when it ends.

use baton_proto::PeerAddress;
use baton_types::{BlockChain, SamplingParams, SeqId, Time, TokenId, TransferId, TransferMode};

use crate::action::{FinishReason, HandOff, Request, Usage};
use crate::batch::BatchEntry;
use crate::block_table::BlockTable;
use crate::readback::{Readback, Reuse};

/// Where a sequence is on its way. It may end in each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Wants blocks to compute in.
    Waiting,
    /// Wants blocks to receive into.
    Expecting,
    /// Its KV is on its way from a peer, into its blocks.
    Receiving,
    /// Has all blocks that its tokens need, and computes.
    Running,
}

/// What a sequence still has to do with a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Whole,
    Source {
        transfer: TransferId,
        mode: TransferMode,
        /// So many complete blocks are leased and named to the protocol.
        sent_blocks: usize,
    },
    /// Until the KV is there or lost; then Whole.
    Destination {
        transfer: TransferId,
        mode: TransferMode,
        peer: PeerAddress,
        /// When the KV counts as lost.
        overdue: Time,
    },
}

impl Part {
    fn new(hand_off: HandOff, overdue: Time) -> Self {
        match hand_off {
            HandOff::None => Self::Whole,
            HandOff::ToPeer { transfer, mode } => Self::Source { transfer, mode, sent_blocks: 0 },
            HandOff::FromPeer { transfer, mode, peer } => Self::Destination { transfer, mode, peer, overdue },
        }
    }
}

#[derive(Debug)]
pub struct Sequence {
    pub id: SeqId,
    /// Prompt and answer.
    pub tokens: Vec<TokenId>,
    pub prompt_len: usize,
    /// Of `tokens`, as far as it was needed.
    pub chain: BlockChain,
    pub table: BlockTable,
    /// The KV of the positions `0..computed` is complete.
    pub computed: usize,
    pub phase: Phase,
    pub part: Part,
    /// Until it is first admitted.
    pub reuse: Option<Box<Reuse>>,
    /// While it is Receiving what an engine retained.
    pub readback: Option<Readback>,
    /// What to keep it by when it ends.
    pub retention: Option<TransferId>,
    pub usage: Usage,
    /// Its first token, if that is appended but not given yet: see [`Config::hold_first_token`](crate::Config).
    pub held: Option<TokenId>,
    /// Its prompt has been looked up in the prefix cache once: what is found later is its own.
    pub admitted: bool,
    /// Prompt and answer together end here.
    max_len: usize,
    min_tokens: u32,
    stop_tokens: Vec<TokenId>,
    sampling: SamplingParams,
}

impl Sequence {
    /// `longest` is the engine's own limit on prompt and answer together; `overdue` is when KV from a peer counts as lost.
    pub fn new(request: Request, unit_tokens: usize, longest: usize, overdue: Time) -> Self {
        let prompt_len = request.prompt.len();
        // Only what was handed over is kept: whoever asks one engine for everything has nobody to bring it back.
        let kept = matches!(request.hand_off, HandOff::FromPeer { .. });
        let part = Part::new(request.hand_off, overdue);
        Self {
            id: request.seq,
            chain: BlockChain::new(&request.salt, unit_tokens, &request.prompt),
            tokens: request.prompt,
            prompt_len,
            table: BlockTable::default(),
            computed: 0,
            phase: if matches!(part, Part::Destination { .. }) { Phase::Expecting } else { Phase::Waiting },
            part,
            reuse: request.reuse,
            readback: None,
            retention: request.retention.filter(|_| kept),
            usage: Usage { prompt_tokens: prompt_len as u32, ..Usage::default() },
            held: None,
            admitted: false,
            max_len: longest.min(prompt_len.saturating_add(request.max_tokens as usize)),
            min_tokens: request.min_tokens,
            stop_tokens: request.stop_tokens,
            sampling: request.sampling,
        }
    }

    /// Tokens whose KV is not computed yet; never none, since the last token's never is.
    pub fn remaining(&self) -> usize {
        self.tokens.len() - self.computed
    }

    pub fn is_decoding(&self) -> bool {
        self.remaining() == 1
    }

    /// Appends a token; why the sequence ends with it, if it does.
    pub fn append(&mut self, token: TokenId) -> Option<FinishReason> {
        self.tokens.push(token);
        self.usage.completion_tokens += 1;
        if self.usage.completion_tokens >= self.min_tokens && self.stop_tokens.contains(&token) {
            return Some(FinishReason::Stop);
        }
        // A prefill leg hands over after one token, whatever the client wants in all.
        let is_source = matches!(self.part, Part::Source { .. });
        (is_source || self.tokens.len() >= self.max_len).then_some(FinishReason::Length)
    }

    /// The next `count` tokens to compute.
    pub fn entry(&self, count: usize, block_tokens: usize) -> BatchEntry {
        let end = self.computed + count;
        BatchEntry {
            seq: self.id,
            tokens: self.tokens[self.computed..end].to_vec(),
            start: self.computed as u32,
            table: self.table.covering(end, block_tokens).to_vec(),
            sample: (end == self.tokens.len()).then(|| self.sampling.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use baton_types::CacheSalt;

    use super::*;

    fn sequence(max_tokens: u32, min_tokens: u32, hand_off: HandOff) -> Sequence {
        let request = Request {
            seq: SeqId(1),
            prompt: (0..6).map(TokenId).collect(),
            salt: CacheSalt::default(),
            max_tokens,
            min_tokens,
            stop_tokens: vec![TokenId(99)],
            sampling: SamplingParams::GREEDY,
            hand_off,
            reuse: None,
            retention: Some(TransferId(5)),
        };
        Sequence::new(request, 4, 10, Time::ZERO)
    }

    #[test]
    fn a_stop_token_stops_from_min_tokens_on() {
        let mut seq = sequence(9, 2, HandOff::None);
        assert_eq!(seq.append(TokenId(99)), None);
        assert_eq!(seq.append(TokenId(99)), Some(FinishReason::Stop));
        assert_eq!(seq.usage.completion_tokens, 2);
    }

    #[test]
    fn a_sequence_ends_at_max_tokens_or_at_the_engines_limit() {
        let mut seq = sequence(1, 0, HandOff::None);
        assert_eq!(seq.append(TokenId(7)), Some(FinishReason::Length));
        let mut seq = sequence(u32::MAX, 0, HandOff::None);
        let ends: Vec<_> = (0..4).map(|_| seq.append(TokenId(7))).collect();
        assert_eq!(ends, [None, None, None, Some(FinishReason::Length)]);
    }

    #[test]
    fn a_prefill_leg_ends_with_its_first_token() {
        let hand_off = HandOff::ToPeer { transfer: TransferId(1), mode: TransferMode::Pull };
        assert_eq!(sequence(9, 0, hand_off).append(TokenId(7)), Some(FinishReason::Length));
    }

    #[test]
    fn only_what_was_handed_over_is_kept() {
        let (transfer, mode) = (TransferId(1), TransferMode::Push);
        let engine = baton_types::EngineId::new(baton_types::EngineName::new("p").unwrap(), 1);
        let peer = PeerAddress { engine, host: "p".into(), port: 1 };
        let kept = |hand_off| sequence(9, 0, hand_off).retention;
        assert_eq!(kept(HandOff::FromPeer { transfer, mode, peer }), Some(TransferId(5)));
        assert_eq!(kept(HandOff::ToPeer { transfer, mode }), None);
        assert_eq!(kept(HandOff::None), None);
    }

    #[test]
    fn only_the_chunk_that_reaches_the_end_samples() {
        let mut seq = sequence(9, 0, HandOff::None);
        seq.table.blocks = vec![baton_types::BlockId(3), baton_types::BlockId(5)];
        let first = seq.entry(4, 4);
        assert_eq!((first.start, first.table.len(), first.sample.is_some()), (0, 1, false));
        seq.computed = 4;
        let last = seq.entry(2, 4);
        assert_eq!((last.start, last.table.len(), last.sample.is_some()), (4, 2, true));
    }
}
