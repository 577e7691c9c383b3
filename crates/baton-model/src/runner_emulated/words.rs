//! What the emulated model stores, and how it mixes what it reads.
//!
//! Elements are drawn from so few values that F32, F16 and BF16 hold each of them exactly: sign, 7 bits of mantissa, and an
//! exponent that makes them at least 2^-7 and below 2. All arithmetic is on the bits of F32. So a transfer may convert between
//! these types and lose nothing.

/// Bits of an F32 that differ between elements, and those that all have; of two elements in a word.
const FREE: u64 = 0x83ff_0000_83ff_0000;
const FIXED: u64 = 0x3c00_0000_3c00_0000;

/// Odd constants with no structure (digits of pi).
pub(super) const KEYS: [u64; 4] =
    [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7345, 0xa409_3822_299f_31d1, 0x082e_fa98_ec4e_6c89];

/// Both halves of the 128-bit product.
pub(super) fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

pub(super) fn mix(x: u64) -> u64 {
    fold(x ^ KEYS[0], x.rotate_left(29) ^ KEYS[3])
}

/// Four neighbouring elements of one type in memory, aligned as one of them.
pub(super) trait Quad: Copy {
    /// The bits of F32, two elements a word. Different for different stored bits.
    fn widen(self) -> [u64; 2];
    /// What [`four`] gives, in this type.
    fn narrow(words: [u64; 2]) -> Self;
}

#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct F32Quad([u32; 4]);

#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct F16Quad([u16; 4]);

#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Bf16Quad([u16; 4]);

fn join([a, b, c, d]: [u32; 4]) -> [u64; 2] {
    [u64::from(a) | u64::from(b) << 32, u64::from(c) | u64::from(d) << 32]
}

fn split([x, y]: [u64; 2]) -> [u32; 4] {
    [x as u32, (x >> 32) as u32, y as u32, (y >> 32) as u32]
}

impl Quad for F32Quad {
    fn widen(self) -> [u64; 2] {
        join(self.0)
    }
    fn narrow(words: [u64; 2]) -> Self {
        Self(split(words))
    }
}

impl Quad for Bf16Quad {
    fn widen(self) -> [u64; 2] {
        join(self.0.map(|bits| u32::from(bits) << 16))
    }
    fn narrow(words: [u64; 2]) -> Self {
        Self(split(words).map(|bits| (bits >> 16) as u16))
    }
}

/// What the exponents of F32 and F16 differ by.
const EXPONENTS: u32 = 127 - 15;

impl Quad for F16Quad {
    fn widen(self) -> [u64; 2] {
        // Exact for the values that are stored; any other bits (infinite ones, say) still give bits of their own.
        let shifted = |bits: u32| (bits & 0x8000) << 16 | (bits & 0x7fff) << 13;
        join(self.0.map(|bits| shifted(bits.into()) + (EXPONENTS << 23)))
    }
    fn narrow(words: [u64; 2]) -> Self {
        let halve = |bits: u32| (bits >> 16 & 0x8000) | ((bits & 0x7fff_ffff) - (EXPONENTS << 23)) >> 13;
        Self(split(words).map(|bits| halve(bits) as u16))
    }
}

/// Four elements out of 64 random bits.
pub(super) fn four(random: u64) -> [u64; 2] {
    // The rotation brings other bits below the mask.
    [random & FREE | FIXED, random.rotate_left(16) & FREE | FIXED]
}

/// A sum over elements and where they are, without a chain of multiplications.
pub(super) struct Digest {
    key: u64,
    lane: u64,
    sum: u64,
}

impl Digest {
    pub(super) fn new(position: usize) -> Self {
        let key = (position as u64).wrapping_mul(KEYS[2]);
        Self { key, lane: key, sum: 0 }
    }

    /// The next four elements.
    pub(super) fn add(&mut self, [a, b]: [u64; 2]) {
        self.lane = self.lane.wrapping_add(KEYS[1]);
        self.sum = self.sum.wrapping_add(fold(a ^ self.lane, b ^ self.lane.rotate_left(32) ^ KEYS[0]));
    }

    pub(super) fn end(&self) -> u64 {
        fold(self.sum ^ self.key ^ KEYS[3], KEYS[2])
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn what_is_stored_is_exact_in_every_type() {
        for i in 0..10_000u64 {
            let words = four(mix(i));
            assert_eq!(F32Quad::narrow(words).widen(), words);
            assert_eq!(F16Quad::narrow(words).widen(), words);
            assert_eq!(Bf16Quad::narrow(words).widen(), words);
            let (half, bf) = (F16Quad::narrow(words).0, Bf16Quad::narrow(words).0);
            for (i, bits) in split(words).into_iter().enumerate() {
                let value = f32::from_bits(bits);
                assert!((0.007_812_5..2.0).contains(&value.abs()), "{value}");
                assert_eq!(f16::from_f32(value).to_bits(), half[i]);
                assert_eq!(bf16::from_f32(value).to_bits(), bf[i]);
                assert_eq!(
                    (f16::from_bits(half[i]).to_f32(), bf16::from_bits(bf[i]).to_f32()),
                    (value, value)
                );
            }
        }
    }

    #[test]
    fn no_two_stored_halves_read_alike() {
        let read = |bits: u16| F16Quad([bits; 4]).widen()[0];
        let distinct: std::collections::BTreeSet<u64> = (0..=u16::MAX).map(read).collect();
        assert_eq!(distinct.len(), 1 << 16);
    }
}
