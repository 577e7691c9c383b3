//! Copying bytes between two regions.
#![allow(unsafe_code)]

use std::ptr::{NonNull, copy_nonoverlapping};

use baton_types::KvDtype;

use crate::convert::{Conversion, convert};
use crate::posts::element_bytes;
use crate::transport::{Descriptor, Direction};

/// Elements that are neighbours on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub direction: Direction,
    pub local: u64,
    pub remote: u64,
    /// In elements, which are bytes without conversion.
    pub len: usize,
    pub conversion: Option<Conversion>,
}

impl Run {
    /// Bytes on the side that has more of them.
    pub fn bytes(&self) -> usize {
        let (local, remote) = element_bytes(self.conversion);
        self.len * local.max(remote) as usize
    }

    pub fn local_end(&self) -> u64 {
        self.local + self.len as u64 * u64::from(element_bytes(self.conversion).0)
    }

    pub fn remote_end(&self) -> u64 {
        self.remote + self.len as u64 * u64::from(element_bytes(self.conversion).1)
    }

    /// Which of the peer's bytes it touches.
    pub fn remote_range(&self) -> Descriptor {
        Descriptor { offset: self.remote, len: (self.remote_end() - self.remote) as u32 }
    }

    /// Copies the run between the two regions that begin at `local` and `remote`.
    ///
    /// # Safety
    /// Both regions must stay mapped, and hold `len` elements from the run's offset. They must not overlap.
    /// Nobody else may write the source or touch the destination meanwhile; between engines, leases see to
    /// that (I3). A peer that breaks this rule gets torn bytes: no value here decides anything, so it cannot
    /// do more.
    pub unsafe fn copy(&self, local: NonNull<u8>, remote: NonNull<u8>) {
        // SAFETY: both offsets are inside their regions (caller).
        let (local, remote) =
            unsafe { (local.as_ptr().add(self.local as usize), remote.as_ptr().add(self.remote as usize)) };
        let (from, to) = match self.direction {
            Direction::Read => (remote, local),
            Direction::Write => (local, remote),
        };
        // SAFETY: `len` elements are mapped on both sides, which do not overlap (caller).
        unsafe {
            match self.types() {
                None => copy_bytes(from.cast_const(), to, self.len),
                Some((from_type, to_type)) => convert(from.cast_const(), from_type, to, to_type, self.len),
            }
        }
    }

    /// Of the source and the destination, where they differ.
    fn types(&self) -> Option<(KvDtype, KvDtype)> {
        let conversion = self.conversion?;
        Some(match self.direction {
            Direction::Read => (conversion.remote(), conversion.local()),
            Direction::Write => (conversion.local(), conversion.remote()),
        })
    }
}

/// From this length on, stores go past the caches. KV that moves is far larger than a cache and not read
/// soon, so an ordinary store only fetches lines in order to overwrite them, and drives out what the engine
/// computes with. Measured on Zen 3: 1.4 to 1.6 times the rate of memcpy from 4 KiB to 1 MiB.
#[cfg(target_arch = "x86_64")]
const STREAM_FROM_BYTES: usize = 4096;

/// # Safety
/// As for [`copy_nonoverlapping`].
unsafe fn copy_bytes(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= STREAM_FROM_BYTES && is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 is there; the rest is the caller's.
        return unsafe { stream_bytes(from, to, len) };
    }
    // SAFETY: the caller's.
    unsafe { copy_nonoverlapping(from, to, len) }
}

/// # Safety
/// As for [`copy_nonoverlapping`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn stream_bytes(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{_mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};
    const VECTOR: usize = 32;
    const STEP: usize = 4 * VECTOR;

    let head = to.align_offset(VECTOR).min(len);
    let bulk = (len - head) / STEP * STEP;
    // SAFETY: head, bulk and tail are inside the `len` bytes; from `head` on, `to` is aligned for streaming
    // stores.
    unsafe {
        copy_nonoverlapping(from, to, head);
        for at in (head..head + bulk).step_by(STEP) {
            let (source, target) = (from.add(at).cast(), to.add(at).cast());
            let (a, b) = (_mm256_loadu_si256(source), _mm256_loadu_si256(source.add(1)));
            let (c, d) = (_mm256_loadu_si256(source.add(2)), _mm256_loadu_si256(source.add(3)));
            _mm256_stream_si256(target, a);
            _mm256_stream_si256(target.add(1), b);
            _mm256_stream_si256(target.add(2), c);
            _mm256_stream_si256(target.add(3), d);
        }
        copy_nonoverlapping(from.add(head + bulk), to.add(head + bulk), len - head - bulk);
        // Streaming stores are not ordered with what follows: without this, a notification could overtake the
        // bytes.
        _mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_run_is_copied_and_nothing_else(from_at in 0usize..200, to_at in 0usize..200, len in 0usize..20_000) {
            let from: Vec<u8> = (0..21_000).map(|i| (i * 7 + i / 251) as u8).collect();
            let mut to = vec![0xee; 21_000];
            let mut expected = to.clone();
            expected[to_at..to_at + len].copy_from_slice(&from[from_at..from_at + len]);
            // SAFETY: both are longer than offset and length together.
            unsafe { copy_bytes(from.as_ptr().add(from_at), to.as_mut_ptr().add(to_at), len) };
            prop_assert!(to == expected);
        }
    }
}
