//! KV for a peer that keeps it as another type. What is on the wire is of the peer's type, so only our end converts.
#![allow(unsafe_code)]

use std::sync::Arc;

use baton_types::{HeapRegion, KvDtype};

use super::frame::MAX_CHUNK;
use super::memory::Memory;
use crate::convert::{Conversion, convert};
use crate::transport::Descriptor;

/// Of one lane: a payload that goes out, and behind it one that comes in.
#[derive(Debug)]
pub(super) struct Converting {
    conversion: Conversion,
    /// What the lane sends from and receives into, in the place of our region.
    pub scratch: Memory,
}

/// Where a payload that comes in begins.
const INCOMING: u64 = MAX_CHUNK as u64;

#[derive(Clone, Copy)]
enum Way {
    Out,
    In,
}

impl Converting {
    pub fn new(conversion: Conversion) -> Self {
        Self { conversion, scratch: Memory(Some(Arc::new(HeapRegion::new(2 * MAX_CHUNK)))) }
    }

    /// Converts what is in these ranges of our region, and says where it is to be sent from.
    pub fn outgoing(&self, memory: &Memory, ranges: &[Descriptor]) -> Vec<Descriptor> {
        vec![Descriptor { offset: 0, len: self.convert(memory, ranges, Way::Out) }]
    }

    /// Where so many bytes of the peer's are to be received.
    pub fn room(&self, len: usize) -> Vec<Descriptor> {
        vec![Descriptor { offset: INCOMING, len: len as u32 }]
    }

    /// Converts what was received into these ranges of our region.
    pub fn landed(&self, memory: &Memory, ranges: &[Descriptor]) {
        self.convert(memory, ranges, Way::In);
    }

    /// Returns how many bytes of the peer's type it was.
    fn convert(&self, memory: &Memory, ranges: &[Descriptor], way: Way) -> u32 {
        let (ours, theirs) = (self.conversion.local(), self.conversion.remote());
        let begin = match way {
            Way::Out => 0,
            Way::In => INCOMING,
        };
        let mut bytes = 0;
        for range in ranges {
            let elements = range.len as usize / ours.bytes();
            let scratch = Descriptor { offset: begin + u64::from(bytes), len: byte_len(elements, theirs) };
            let (local, scratch) = (memory.bytes(*range), self.scratch.bytes(scratch));
            // SAFETY: both are as long as so many elements of their type (`Memory::bytes` has looked), and in different
            // regions. Nobody touches our blocks meanwhile (I3), and the scratch is this lane's.
            unsafe {
                match way {
                    Way::Out => convert(local.cast_const(), ours, scratch, theirs, elements),
                    Way::In => convert(scratch.cast_const(), theirs, local, ours, elements),
                }
            }
            bytes += byte_len(elements, theirs);
        }
        bytes
    }
}

fn byte_len(elements: usize, dtype: KvDtype) -> u32 {
    u32::try_from(elements * dtype.bytes()).expect("no chunk is that long")
}
