//! Memory for weights: matrices one behind the other, in the order in which a step reads them, in few large buffers, so that huge
//! pages hold them however small each is.

use std::sync::Arc;

use super::aligned::Buffer;

const CHUNK_BYTES: usize = 32 << 20;
const ALIGN: usize = 64;

/// Hands out parts of buffers, front to back.
#[derive(Debug)]
pub struct Arena {
    chunk: Arc<Buffer<u8>>,
    used: usize,
}

/// A zeroed part of a buffer, aligned to a cache line. Keeps the buffer.
#[derive(Debug)]
pub struct ArenaSlice {
    chunk: Arc<Buffer<u8>>,
    start: usize,
    len: usize,
}

impl Default for Arena {
    fn default() -> Self {
        Self { chunk: Arc::new(Buffer::zeroed(0)), used: 0 }
    }
}

impl Arena {
    pub fn take(&mut self, len: usize) -> ArenaSlice {
        if self.chunk.len() - self.used < len {
            *self = Self { chunk: Arc::new(Buffer::zeroed(len.max(CHUNK_BYTES))), used: 0 };
        }
        let start = self.used;
        self.used = (start + len).next_multiple_of(ALIGN).min(self.chunk.len());
        ArenaSlice { chunk: self.chunk.clone(), start, len }
    }
}

impl ArenaSlice {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn ptr(&self) -> *const u8 {
        // SAFETY: `take` placed the slice inside the buffer.
        unsafe { self.chunk.ptr().add(self.start) }
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: inside the buffer, and slices of one arena are disjoint; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.chunk.ptr().add(self.start), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_disjoint_aligned_and_zeroed() {
        let mut arena = Arena::default();
        let mut slices: Vec<ArenaSlice> =
            [1, 100, CHUNK_BYTES - 64, 7, CHUNK_BYTES + 1, 64].map(|n| arena.take(n)).into();
        for (i, slice) in slices.iter_mut().enumerate() {
            assert!(slice.ptr().align_offset(ALIGN) == 0 && slice.as_mut_slice().iter().all(|&b| b == 0));
            slice.as_mut_slice().fill(i as u8 + 1);
        }
        for (i, slice) in slices.iter_mut().enumerate() {
            assert!(slice.as_mut_slice().iter().all(|&b| b == i as u8 + 1));
        }
    }
}
