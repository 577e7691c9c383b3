//! What the peer has asked us to write: its reads, where the network has no good ones.

use std::collections::VecDeque;
use std::ffi::CStr;

use super::agent::{Agent, Piece, Progress, Request};
use super::library::NixlError;
use super::postings::{Bases, MAX_SLICES};
use super::word::AskedPiece;
use crate::posts::SLICE_BYTES;
use crate::transport::Direction;

#[derive(Debug, Default)]
pub(super) struct Serving {
    asked: VecDeque<(u32, Vec<AskedPiece>)>,
    /// In flight, the oldest first.
    writing: VecDeque<(u32, Request)>,
}

impl Serving {
    /// Takes an Ask, to be served; false if no agent asks for that.
    pub fn push(&mut self, number: u32, pieces: Vec<AskedPiece>, our_bytes: u64, their_bytes: u64) -> bool {
        let within = |offset: u64, len: u32, bytes: u64| {
            offset.checked_add(u64::from(len)).is_some_and(|end| end <= bytes)
        };
        let fits = |piece: &AskedPiece| {
            piece.len > 0
                && within(piece.from, piece.len, our_bytes)
                && within(piece.to, piece.len, their_bytes)
        };
        let bytes: u64 = pieces.iter().map(|piece| u64::from(piece.len)).sum();
        let is_ask = !pieces.is_empty() && bytes <= SLICE_BYTES as u64 && pieces.iter().all(fits);
        if !is_ask || self.asked.len() + self.writing.len() >= MAX_SLICES {
            return false;
        }
        self.asked.push_back((number, pieces));
        true
    }

    pub fn can_start(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Whether bytes of ours are on their way into the peer's memory.
    pub fn is_writing(&self) -> bool {
        !self.writing.is_empty()
    }

    /// Starts to write the oldest that was asked for.
    pub fn start(&mut self, agent: &Agent, peer: &CStr, bases: Bases) -> Result<(), NixlError> {
        let Some((number, pieces)) = self.asked.pop_front() else { return Ok(()) };
        let piece = |piece: &AskedPiece| Piece {
            local: bases.local + piece.from as usize,
            remote: bases.remote + piece.to as usize,
            len: piece.len as usize,
        };
        let pieces: Vec<_> = pieces.iter().map(piece).collect();
        self.writing.push_back((number, agent.post(Direction::Write, peer, &pieces)?));
        Ok(())
    }

    /// What has been written since the last call.
    pub fn collect(&mut self, agent: &Agent) -> Result<Vec<u32>, NixlError> {
        let mut written = Vec::new();
        while let Some((number, request)) = self.writing.front() {
            match agent.progress(request) {
                Progress::Moving => break,
                Progress::Failed(status) => return Err(NixlError::Call("a transfer", status)),
                Progress::Done => written.push(*number),
            }
            if let Some((_, request)) = self.writing.pop_front() {
                agent.release(request);
            }
        }
        Ok(written)
    }

    /// Writes nothing more, and lets go of what is over.
    pub fn settle(&mut self, agent: &Agent) {
        self.asked.clear();
        for (number, request) in std::mem::take(&mut self.writing) {
            if agent.progress(&request) == Progress::Moving {
                self.writing.push_back((number, request));
            } else {
                agent.release(request);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_in_both_regions_is_served_and_only_so_much() {
        let mut serving = Serving::default();
        let piece = |from, to, len| vec![AskedPiece { from, to, len }];
        for nonsense in [
            vec![],
            piece(0, 0, 0),
            piece(91, 0, 10),
            piece(0, 191, 10),
            piece(u64::MAX, 0, 10),
            piece(0, u64::MAX - 5, 10),
        ] {
            assert!(!serving.push(1, nonsense.clone(), 100, 200), "{nonsense:?}");
        }
        let long = piece(0, 0, SLICE_BYTES as u32 + 1);
        assert!(!serving.push(1, long, u64::MAX, u64::MAX));
        for number in 0..MAX_SLICES as u32 {
            assert!(serving.push(number, piece(90, 190, 10), 100, 200));
        }
        assert!(!serving.push(99, piece(90, 190, 10), 100, 200), "more than a peer asks for at once");
    }
}
