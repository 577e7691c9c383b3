//! Our region as the kernel sees it, and places in it one after the other.
#![allow(unsafe_code)]

use std::sync::Arc;

use baton_types::MemoryRegion;

use super::crc::crc32c;
use super::frame::is_inside;
use super::wire::Part;
use crate::transport::Descriptor;

/// The registered region; until there is one, nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory(pub Option<Arc<dyn MemoryRegion>>);

impl Memory {
    pub fn len(&self) -> u64 {
        self.0.as_ref().map_or(0, |region| region.len() as u64)
    }

    /// Where the bytes of a range are.
    ///
    /// # Panics
    /// As for `part`.
    pub fn bytes(&self, range: Descriptor) -> *mut u8 {
        self.part(range).iov_base.cast()
    }

    /// Where a range of the region is.
    ///
    /// # Panics
    /// If it is not inside: nothing may reach the kernel that was not checked before.
    fn part(&self, range: Descriptor) -> Part {
        let region = self.0.as_ref().filter(|region| is_inside(&range, region.len() as u64));
        let region = region.expect("a range is inside the region");
        // SAFETY: inside the region.
        let base = unsafe { region.base().as_ptr().add(range.offset as usize) };
        Part { iov_base: base.cast(), iov_len: range.len as usize }
    }
}

/// Ranges of the region that are filled or sent in their order.
#[derive(Debug)]
pub(super) struct Ranges {
    ranges: Vec<Descriptor>,
    /// The first that is not finished, and how much of it is.
    at: usize,
    moved: u32,
}

impl Ranges {
    pub fn new(ranges: Vec<Descriptor>) -> Self {
        Self { ranges, at: 0, moved: 0 }
    }

    pub fn bytes(&self) -> usize {
        self.left().map(|range| range.len as usize).sum()
    }

    /// What is not moved yet.
    pub fn left(&self) -> impl Iterator<Item = Descriptor> {
        let mut skip = self.moved;
        self.ranges[self.at..].iter().map(move |range| {
            let begun = std::mem::take(&mut skip);
            Descriptor { offset: range.offset + u64::from(begun), len: range.len - begun }
        })
    }

    pub fn append_parts(&self, memory: &Memory, parts: &mut Vec<Part>) {
        parts.extend(self.left().map(|range| memory.part(range)));
    }

    /// Notes that the next `bytes` are moved; `each` sees where they are.
    pub fn advance(&mut self, mut bytes: usize, mut each: impl FnMut(Descriptor)) {
        while bytes > 0 {
            let range = self.ranges[self.at];
            let n = bytes.min((range.len - self.moved) as usize);
            each(Descriptor { offset: range.offset + u64::from(self.moved), len: n as u32 });
            bytes -= n;
            self.moved += n as u32;
            if self.moved == range.len {
                (self.at, self.moved) = (self.at + 1, 0);
            }
        }
    }
}

/// CRC32C of `crc`'s bytes and those of a range.
pub(super) fn crc_of(memory: &Memory, crc: u32, range: Descriptor) -> u32 {
    let part = memory.part(range);
    // SAFETY: inside the region; nobody writes it meanwhile (I3). A peer that breaks this rule gets a wrong CRC.
    let bytes = unsafe { std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len) };
    crc32c(crc, bytes)
}

/// Copies bytes that came with something else to the next places of `ranges`.
pub(super) fn fill(memory: &Memory, ranges: &mut Ranges, bytes: &[u8], mut each: impl FnMut(Descriptor)) {
    let mut left = bytes;
    ranges.advance(bytes.len(), |range| {
        let (these, rest) = left.split_at(range.len as usize);
        left = rest;
        let part = memory.part(range);
        // SAFETY: as many bytes as the part has; `bytes` are outside of the region.
        unsafe { std::ptr::copy_nonoverlapping(these.as_ptr(), part.iov_base.cast::<u8>(), these.len()) };
        each(range);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_types::HeapRegion;

    fn ranges() -> Ranges {
        Ranges::new([(0, 4), (10, 3), (20, 5)].map(|(offset, len)| Descriptor { offset, len }).into())
    }

    #[test]
    fn ranges_are_moved_in_pieces() {
        let mut ranges = ranges();
        assert_eq!(ranges.bytes(), 12);
        let mut seen = Vec::new();
        for bytes in [3, 3, 0, 6] {
            ranges.advance(bytes, |range| seen.push((range.offset, range.len)));
        }
        assert_eq!(seen, [(0, 3), (3, 1), (10, 2), (12, 1), (20, 5)]);
        assert_eq!((ranges.bytes(), ranges.left().count()), (0, 0));
    }

    #[test]
    fn bytes_go_where_the_ranges_say() {
        let memory = Memory(Some(Arc::new(HeapRegion::new(64))));
        let mut ranges = ranges();
        let mut crc = 0;
        let text = b"abcdefghijkl";
        fill(&memory, &mut ranges, &text[..5], |range| crc = crc_of(&memory, crc, range));
        fill(&memory, &mut ranges, &text[5..], |range| crc = crc_of(&memory, crc, range));
        assert_eq!(crc, crc32c(0, text));
        // SAFETY: the region is this test's alone.
        let bytes = unsafe { std::slice::from_raw_parts(memory.0.as_ref().unwrap().base().as_ptr(), 26) };
        assert_eq!(bytes, b"abcd\0\0\0\0\0\0efg\0\0\0\0\0\0\0hijkl\0");
    }

    #[test]
    #[should_panic(expected = "inside")]
    fn nothing_outside_is_ever_a_part() {
        let memory = Memory(Some(Arc::new(HeapRegion::new(64))));
        Ranges::new(vec![Descriptor { offset: 60, len: 5 }]).append_parts(&memory, &mut Vec::new());
    }
}
