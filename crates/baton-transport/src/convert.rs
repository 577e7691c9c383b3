//! Copies that change the type of the elements, for two engines whose KV has different ones.
#![allow(unsafe_code)]

use std::ptr::copy_nonoverlapping;

use baton_types::KvDtype;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::transport::TransportError;

/// The element types of our memory and a peer's, where they differ.
///
/// Wider types hold the values of narrower ones exactly; the other way they are rounded to nearest, ties to even, and what F16
/// cannot hold becomes infinite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conversion {
    local: KvDtype,
    remote: KvDtype,
}

impl Conversion {
    /// None if there is nothing to convert.
    ///
    /// # Errors
    /// If one of two different types is not a float.
    pub fn between(local: KvDtype, remote: KvDtype) -> Result<Option<Self>, TransportError> {
        if local == remote {
            return Ok(None);
        }
        if [local, remote].contains(&KvDtype::U8) {
            return Err(TransportError::Unconvertible(local, remote));
        }
        Ok(Some(Self { local, remote }))
    }

    pub(crate) fn local(self) -> KvDtype {
        self.local
    }

    pub(crate) fn remote(self) -> KvDtype {
        self.remote
    }
}

/// Elements converted at once.
const CHUNK: usize = 256;

/// Converts `len` elements.
///
/// # Safety
/// So many elements of the types must be readable at `from` and writable at `to`, which do not overlap; neither needs to be
/// aligned.
pub(crate) unsafe fn convert(from: *const u8, from_type: KvDtype, to: *mut u8, to_type: KvDtype, len: usize) {
    let mut wide = [0.0f32; CHUNK];
    for start in (0..len).step_by(CHUNK) {
        let wide = &mut wide[..CHUNK.min(len - start)];
        // SAFETY: these elements are among the `len`.
        unsafe {
            widen(from.add(start * from_type.bytes()), from_type, wide);
            narrow(wide, to.add(start * to_type.bytes()), to_type);
        }
    }
}

/// # Safety
/// As many elements as `to` has must be readable at `from`.
unsafe fn widen(from: *const u8, dtype: KvDtype, to: &mut [f32]) {
    let bytes = to.len() * dtype.bytes();
    // SAFETY: `bytes` bytes are readable, and both buffers hold as many.
    unsafe {
        match dtype {
            KvDtype::F32 => copy_nonoverlapping(from, to.as_mut_ptr().cast(), bytes),
            KvDtype::F16 => {
                let mut halves = [f16::ZERO; CHUNK];
                copy_nonoverlapping(from, halves.as_mut_ptr().cast(), bytes);
                halves[..to.len()].convert_to_f32_slice(to);
            }
            KvDtype::Bf16 => {
                let mut halves = [bf16::ZERO; CHUNK];
                copy_nonoverlapping(from, halves.as_mut_ptr().cast(), bytes);
                halves[..to.len()].convert_to_f32_slice(to);
            }
            KvDtype::U8 => unreachable!("no `Conversion` has it"),
        }
    }
}

/// # Safety
/// As many elements as `from` has must be writable at `to`.
unsafe fn narrow(from: &[f32], to: *mut u8, dtype: KvDtype) {
    let bytes = from.len() * dtype.bytes();
    // SAFETY: `bytes` bytes are writable, and both buffers hold as many.
    unsafe {
        match dtype {
            KvDtype::F32 => copy_nonoverlapping(from.as_ptr().cast(), to, bytes),
            KvDtype::F16 => {
                let mut halves = [f16::ZERO; CHUNK];
                halves[..from.len()].convert_from_f32_slice(from);
                copy_nonoverlapping(halves.as_ptr().cast(), to, bytes);
            }
            KvDtype::Bf16 => {
                let mut halves = [bf16::ZERO; CHUNK];
                halves[..from.len()].convert_from_f32_slice(from);
                copy_nonoverlapping(halves.as_ptr().cast(), to, bytes);
            }
            KvDtype::U8 => unreachable!("no `Conversion` has it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOATS: [KvDtype; 3] = [KvDtype::F32, KvDtype::F16, KvDtype::Bf16];

    fn stored(value: f32, dtype: KvDtype) -> Vec<u8> {
        match dtype {
            KvDtype::F32 => value.to_le_bytes().to_vec(),
            KvDtype::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
            KvDtype::Bf16 => bf16::from_f32(value).to_le_bytes().to_vec(),
            KvDtype::U8 => unreachable!(),
        }
    }

    #[test]
    fn every_element_is_converted_whatever_the_length_and_alignment() {
        for (from_type, to_type) in FLOATS.iter().flat_map(|from| FLOATS.map(|to| (*from, to))) {
            for len in [0, 1, 255, 256, 257, 700] {
                // Exact in each type: what is converted is what would have been stored.
                let values = (0..len).map(|i| (i % 255) as f32 - 127.0);
                let source: Vec<u8> =
                    [0].into_iter().chain(values.clone().flat_map(|x| stored(x, from_type))).collect();
                let want: Vec<u8> = values.flat_map(|x| stored(x, to_type)).collect();
                let mut got = vec![0xee; want.len() + 6];
                // SAFETY: `len` elements on both sides, from the second byte and from the fourth.
                unsafe { convert(source.as_ptr().add(1), from_type, got.as_mut_ptr().add(3), to_type, len) };
                assert_eq!(got[3..want.len() + 3], want, "{len} of {from_type:?} to {to_type:?}");
                assert_eq!((&got[..3], &got[want.len() + 3..]), (&[0xee; 3][..], &[0xee; 3][..]));
            }
        }
    }

    #[test]
    fn narrowing_rounds_to_nearest_and_even() {
        let narrowed = |x: f32, dtype| {
            let mut out = [0u8; 2];
            // SAFETY: one element each.
            unsafe { convert((&raw const x).cast(), KvDtype::F32, out.as_mut_ptr(), dtype, 1) };
            u16::from_le_bytes(out)
        };
        let one = 0x3f80_0000;
        for (low, want) in [(0x7fff, 0x3f80), (0x8000, 0x3f80), (0x8001, 0x3f81), (0x1_8000, 0x3f82)] {
            assert_eq!(narrowed(f32::from_bits(one + low), KvDtype::Bf16), want);
        }
        assert_eq!(narrowed(1e6, KvDtype::F16), f16::INFINITY.to_bits());
    }

    #[test]
    fn only_floats_convert() {
        assert_eq!(Conversion::between(KvDtype::U8, KvDtype::U8), Ok(None));
        assert!(Conversion::between(KvDtype::U8, KvDtype::F32).is_err());
        assert!(Conversion::between(KvDtype::F16, KvDtype::Bf16).unwrap().is_some());
    }
}
