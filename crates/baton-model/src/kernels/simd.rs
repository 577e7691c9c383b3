//! Sixteen lanes, and what may be done with them.

/// Lanes of every vector.
pub const LANES: usize = 16;

/// Sixteen-lane arithmetic of one instruction set. All implementations give the same bits.
///
/// # Safety
/// Every function may be called only on a processor that has the instruction set, and inlines only into functions compiled for
/// it. Pointers must be valid for sixteen elements of their type, aligned or not.
#[allow(clippy::missing_safety_doc)]
pub trait Simd: Copy + 'static {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen i32.
    type I: Copy;
    /// How many vectors of one panel row a kernel should hold: 1 or 2.
    const PANEL_VECTORS: usize;
    /// How many rows a kernel should hold: 1 or 6.
    const ROWS: usize;

    unsafe fn splat(x: f32) -> Self::F;
    unsafe fn load(p: *const f32) -> Self::F;
    unsafe fn store(p: *mut f32, x: Self::F);
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c` in one rounding.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The first `n` lanes of `x` (all if more), and `other` behind them.
    unsafe fn first(n: usize, x: Self::F, other: Self::F) -> Self::F;

    unsafe fn load_f16(p: *const u16) -> Self::F;
    unsafe fn load_bf16(p: *const u16) -> Self::F;

    /// Asks for the cache line at `p`, which need not be valid.
    unsafe fn prefetch(p: *const u8);

    unsafe fn splat_i(x: i32) -> Self::I;
    unsafe fn load_i(p: *const i32) -> Self::I;
    unsafe fn store_i(p: *mut i32, x: Self::I);
    unsafe fn add_i(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn xor(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn shl(x: Self::I, n: u32) -> Self::I;
    /// Shifts zeros in.
    unsafe fn shr(x: Self::I, n: u32) -> Self::I;
    /// Shifts copies of the sign in.
    unsafe fn sar(x: Self::I, n: u32) -> Self::I;
    /// Rounds to nearest where it must.
    unsafe fn to_f32(x: Self::I) -> Self::F;
    unsafe fn bits(x: Self::F) -> Self::I;
    unsafe fn from_bits(x: Self::I) -> Self::F;
    /// The low four bits of each lane, less `zero`: an integer in `-zero..16 - zero`.
    unsafe fn nibble(x: Self::I, zero: i32) -> Self::F;
    /// Adds to each lane the product of its four unsigned bytes in `w` and four signed bytes in `x`.
    unsafe fn dot4(acc: Self::I, w: Self::I, x: Self::I) -> Self::I;
    /// Reads sixteen rows of sixteen values, `stride` apart, and writes them as columns, `out_stride` apart.
    unsafe fn transpose(from: *const f32, stride: usize, to: *mut f32, out_stride: usize);
}

/// `array::from_fn` without a closure. A closure is compiled without its surroundings' target features, and so is the code of
/// `core` that calls it: the compiler may not inline intrinsics into them, and each one becomes a call.
macro_rules! array {
    ([$start:expr; $len:expr], $i:ident => $value:expr) => {{
        let mut array = [$start; $len];
        for $i in 0..$len {
            array[$i] = $value;
        }
        array
    }};
}
pub(crate) use array;

/// Any processor: arrays. Kept small: without registers to fill, more rows at once would only be more code.
#[derive(Clone, Copy, Debug)]
pub struct Portable;

/// `a * b + c` in one rounding.
#[inline(always)]
fn fused(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
        a.mul_add(b, c)
    } else {
        fused_by_f64(a, b, c)
    }
}

/// The same without an instruction for it, where `f32::mul_add` would be a call for each lane.
///
/// The product of two f32 is exact in f64. The sum is rounded *to odd*: to the neighbour whose last bit is 1, unless it is exact.
/// So the second rounding, to f32, which has more than two bits less, can tell on which side of a tie the exact sum is.
#[inline(always)]
fn fused_by_f64(a: f32, b: f32, c: f32) -> f32 {
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    // What the sum has lost (Knuth); NaN if it is not finite.
    let of_c = sum - product;
    let lost = (product - (sum - of_c)) + (c - of_c);
    let inexact = u64::from(lost.abs() > 0.0);
    let away = (lost.to_bits() ^ sum.to_bits()) >> 63 & inexact;
    // One step towards zero if it was rounded away from zero; then the last bit.
    f64::from_bits((sum.to_bits() - away) | inexact) as f32
}

#[inline(always)]
fn each<T: Copy, U: Copy + Default>(x: [T; LANES], f: impl Fn(T) -> U) -> [U; LANES] {
    array!([U::default(); LANES], i => f(x[i]))
}

#[inline(always)]
fn both<T: Copy, U: Copy + Default>(a: [T; LANES], b: [T; LANES], f: impl Fn(T, T) -> U) -> [U; LANES] {
    array!([U::default(); LANES], i => f(a[i], b[i]))
}

// SAFETY (of all functions): plain code; pointers are valid by the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Portable {
    type F = [f32; LANES];
    type I = [i32; LANES];
    const PANEL_VECTORS: usize = 1;
    const ROWS: usize = 1;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        unsafe { p.cast::<Self::F>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: Self::F) {
        unsafe { p.cast::<Self::F>().write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        both(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        both(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        both(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        both(a, b, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        both(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        both(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        array!([0.0; LANES], i => fused(a[i], b[i], c[i]))
    }
    #[inline(always)]
    unsafe fn first(n: usize, x: Self::F, other: Self::F) -> Self::F {
        array!([0.0; LANES], i => if i < n { x[i] } else { other[i] })
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::F {
        let halves = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        each(halves, |bits| half::f16::from_bits(bits).to_f32())
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self::F {
        let halves = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        each(halves, |bits| f32::from_bits(u32::from(bits) << 16))
    }
    #[inline(always)]
    unsafe fn prefetch(_: *const u8) {}
    #[inline(always)]
    unsafe fn splat_i(x: i32) -> Self::I {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load_i(p: *const i32) -> Self::I {
        unsafe { p.cast::<Self::I>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_i(p: *mut i32, x: Self::I) {
        unsafe { p.cast::<Self::I>().write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn add_i(a: Self::I, b: Self::I) -> Self::I {
        both(a, b, i32::wrapping_add)
    }
    #[inline(always)]
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I {
        both(a, b, |a, b| a & b)
    }
    #[inline(always)]
    unsafe fn xor(a: Self::I, b: Self::I) -> Self::I {
        both(a, b, |a, b| a ^ b)
    }
    #[inline(always)]
    unsafe fn shl(x: Self::I, n: u32) -> Self::I {
        each(x, |x| x << n)
    }
    #[inline(always)]
    unsafe fn shr(x: Self::I, n: u32) -> Self::I {
        each(x, |x| (x as u32 >> n) as i32)
    }
    #[inline(always)]
    unsafe fn sar(x: Self::I, n: u32) -> Self::I {
        each(x, |x| x >> n)
    }
    #[inline(always)]
    unsafe fn to_f32(x: Self::I) -> Self::F {
        each(x, |x| x as f32)
    }
    #[inline(always)]
    unsafe fn bits(x: Self::F) -> Self::I {
        each(x, |x| x.to_bits() as i32)
    }
    #[inline(always)]
    unsafe fn from_bits(x: Self::I) -> Self::F {
        each(x, |x| f32::from_bits(x as u32))
    }
    #[inline(always)]
    unsafe fn nibble(x: Self::I, zero: i32) -> Self::F {
        each(x, |x| ((x & 15) - zero) as f32)
    }
    #[inline(always)]
    unsafe fn dot4(acc: Self::I, w: Self::I, x: Self::I) -> Self::I {
        let mut sum = acc;
        for i in 0..LANES {
            let (w, x) = (w[i].to_le_bytes(), x[i].to_le_bytes());
            for j in 0..4 {
                sum[i] += i32::from(w[j]) * i32::from(x[j] as i8);
            }
        }
        sum
    }
    #[inline(always)]
    unsafe fn transpose(from: *const f32, stride: usize, to: *mut f32, out_stride: usize) {
        for row in 0..LANES {
            for column in 0..LANES {
                unsafe { *to.add(column * out_stride + row) = *from.add(row * stride + column) };
            }
        }
    }
}

/// `e^x`, within 2 units in the last place; below -87 it stays at `e^-87`, above 88 at `e^88`.
///
/// Cephes' `expf`: `x = n ln 2 + r`, a polynomial in `r`, and `n` added to the exponent. `e^0` is exactly 1.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub unsafe fn exp<S: Simd>(x: S::F) -> S::F {
    // Adding this to a small number leaves the nearest integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // SAFETY: the caller runs on S's processor.
    unsafe {
        let x = S::min(S::max(x, S::splat(-87.0)), S::splat(88.0));
        let shifted = S::fma(x, S::splat(std::f32::consts::LOG2_E), S::splat(ROUND));
        let n = S::sub(shifted, S::splat(ROUND));
        let r = S::fma(n, S::splat(-355.0 / 512.0), x);
        let r = S::fma(n, S::splat(2.121_944_4e-4), r);
        let mut p = S::splat(1.987_569_1e-4);
        for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
            p = S::fma(p, r, S::splat(c));
        }
        let p = S::add(S::fma(S::mul(r, r), p, r), S::splat(1.0));
        S::from_bits(S::add_i(S::bits(p), S::shl(S::bits(shifted), 23)))
    }
}

/// The sum of sixteen lanes: halves added to halves.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub unsafe fn sum_lanes<S: Simd>(x: S::F) -> f32 {
    let mut lanes = [0.0f32; LANES];
    // SAFETY: sixteen elements; the caller runs on S's processor.
    unsafe { S::store(lanes.as_mut_ptr(), x) };
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}

/// The largest of sixteen lanes.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub unsafe fn max_lanes<S: Simd>(x: S::F) -> f32 {
    let mut lanes = [0.0f32; LANES];
    // SAFETY: as in `sum_lanes`.
    unsafe { S::store(lanes.as_mut_ptr(), x) };
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] = if lanes[i] > lanes[i + half] { lanes[i] } else { lanes[i + half] };
        }
    }
    lanes[0]
}

/// The instruction sets there are kernels for, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
    /// AVX2, FMA and F16C.
    Avx2,
    Portable,
}

impl Isa {
    pub const ALL: [Self; 3] = [Self::Avx512, Self::Avx2, Self::Portable];

    /// Whether this processor has it.
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            Self::Portable => true,
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// The best that this processor has.
    pub fn best() -> Self {
        Self::ALL.into_iter().find(|isa| isa.is_available()).unwrap_or(Self::Portable)
    }
}

/// Makes one function per instruction set out of a generic `kernel::<S>(args)`, and `name(isa, args)` that calls the right one.
macro_rules! dispatch {
    ($(#[$doc:meta])* pub unsafe fn $name:ident($($arg:ident: $type:ty),* $(,)?) = $kernel:ident $(::<$($generic:ty),*>)?) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        pub unsafe fn $name(isa: $crate::kernels::simd::Isa, $($arg: $type),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
            unsafe fn avx512($($arg: $type),*) {
                // SAFETY: passed on from the caller.
                unsafe { $kernel::<$crate::kernels::simd_x86::Avx512 $($(, $generic)*)?>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2($($arg: $type),*) {
                // SAFETY: passed on from the caller.
                unsafe { $kernel::<$crate::kernels::simd_x86::Avx2 $($(, $generic)*)?>($($arg),*) }
            }
            // SAFETY: an `Isa` other than `Portable` exists only where `is_available` said so (`KernelSet::new`); the rest is
            // passed on from the caller.
            unsafe {
                match isa {
                    #[cfg(target_arch = "x86_64")]
                    $crate::kernels::simd::Isa::Avx512 => avx512($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    $crate::kernels::simd::Isa::Avx2 => avx2($($arg),*),
                    _ => $kernel::<$crate::kernels::simd::Portable $($(, $generic)*)?>($($arg),*),
                }
            }
        }
    };
}
pub(crate) use dispatch;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn assert_fused(a: f32, b: f32, c: f32) {
        let (got, want) = (fused_by_f64(a, b, c), a.mul_add(b, c));
        let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
        assert!(same, "{a:e} * {b:e} + {c:e}: {got:e}, and not {want:e}");
    }

    #[test]
    fn sums_close_to_a_tie_round_as_the_exact_sum_does() {
        let tiny = f32::from_bits(1);
        let step = f32::EPSILON;
        let values = [
            0.0,
            tiny,
            3.0 * tiny,
            f32::MIN_POSITIVE,
            1e-30,
            step / 2.0,
            step,
            0.5,
            1.0,
            1.0 + step,
            3.0,
            1e30,
        ];
        let ends = [f32::MAX, f32::INFINITY, f32::NAN];
        let all: Vec<f32> = values.into_iter().chain(ends).flat_map(|x| [x, -x]).collect();
        for &a in &all {
            for &b in &all {
                all.iter().for_each(|&c| assert_fused(a, b, c));
            }
        }
        // A little below a tie, which is what the f64 sum of them is.
        let (a, b, c) = (step / 2.0 * (1.0 + 2.0f32.powi(-15)), 1.0 - 2.0f32.powi(-15), 1.0 + step);
        assert_ne!((f64::from(a) * f64::from(b) + f64::from(c)) as f32, a.mul_add(b, c));
        assert_fused(a, b, c);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100_000))]
        #[test]
        fn any_bits_give_what_the_processor_gives(a in any::<u32>(), b in any::<u32>(), c in any::<u32>()) {
            assert_fused(f32::from_bits(a), f32::from_bits(b), f32::from_bits(c));
        }

        /// Exponents close to one another, few digits, and a last bit now and then: ties and near ties.
        #[test]
        fn near_ties_give_what_the_processor_gives(
            a in 0u32..16, b in 0u32..1 << 24, c in 0u32..1 << 24, scale in -160i32..120, shift in -30i32..30,
        ) {
            let power = |n: i32| 2.0f64.powi(n) as f32;
            let (a, b) = (a as f32 * power(scale / 2), b as f32 * power(scale - scale / 2));
            assert_fused(a, b, c as f32 * power(scale) * power(shift));
            assert_fused(a, b, -(c as f32 * power(scale) * power(shift)));
        }
    }
}
