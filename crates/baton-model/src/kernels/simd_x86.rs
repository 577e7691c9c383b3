//! [`Simd`] on x86-64: AVX-512 with VNNI, and AVX2 with FMA and F16C.

use std::arch::x86_64::*;

use super::simd::{LANES, Simd, array};

/// One register of sixteen lanes.
#[derive(Clone, Copy, Debug)]
pub struct Avx512;

// SAFETY (of all functions): the trait's contract gives the instruction set and valid pointers.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    const PANEL_VECTORS: usize = 2;
    const ROWS: usize = 6;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: __m512) {
        unsafe { _mm512_storeu_ps(p, x) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn first(n: usize, x: __m512, other: __m512) -> __m512 {
        let mask = if n >= LANES { u16::MAX } else { (1u16 << n) - 1 };
        unsafe { _mm512_mask_mov_ps(other, mask, x) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> __m512 {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn splat_i(x: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(x) }
    }
    #[inline(always)]
    unsafe fn load_i(p: *const i32) -> __m512i {
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store_i(p: *mut i32, x: __m512i) {
        unsafe { _mm512_storeu_si512(p.cast(), x) }
    }
    #[inline(always)]
    unsafe fn add_i(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn and(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn xor(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_xor_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn shl(x: __m512i, n: u32) -> __m512i {
        unsafe { _mm512_sllv_epi32(x, _mm512_set1_epi32(n as i32)) }
    }
    #[inline(always)]
    unsafe fn shr(x: __m512i, n: u32) -> __m512i {
        unsafe { _mm512_srlv_epi32(x, _mm512_set1_epi32(n as i32)) }
    }
    #[inline(always)]
    unsafe fn sar(x: __m512i, n: u32) -> __m512i {
        unsafe { _mm512_srav_epi32(x, _mm512_set1_epi32(n as i32)) }
    }
    #[inline(always)]
    unsafe fn to_f32(x: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(x) }
    }
    #[inline(always)]
    unsafe fn bits(x: __m512) -> __m512i {
        unsafe { _mm512_castps_si512(x) }
    }
    #[inline(always)]
    unsafe fn from_bits(x: __m512i) -> __m512 {
        unsafe { _mm512_castsi512_ps(x) }
    }
    #[inline(always)]
    unsafe fn nibble(x: __m512i, zero: i32) -> __m512 {
        // A table look-up reads only the low four bits of an index: no mask and no conversion.
        unsafe {
            let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            let table = _mm512_cvtepi32_ps(_mm512_sub_epi32(lanes, _mm512_set1_epi32(zero)));
            _mm512_permutexvar_ps(x, table)
        }
    }
    #[inline(always)]
    unsafe fn dot4(acc: __m512i, w: __m512i, x: __m512i) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(acc, w, x) }
    }
    #[inline(always)]
    unsafe fn transpose(from: *const f32, stride: usize, to: *mut f32, out_stride: usize) {
        unsafe {
            for (row, column) in [(0, 0), (0, 8), (8, 0), (8, 8)] {
                transpose8(
                    from.add(row * stride + column),
                    stride,
                    to.add(column * out_stride + row),
                    out_stride,
                );
            }
        }
    }
}

/// Two registers of eight lanes.
#[derive(Clone, Copy, Debug)]
pub struct Avx2;

macro_rules! pairwise {
    ($a:expr, $b:expr, $op:ident) => {
        [$op($a[0], $b[0]), $op($a[1], $b[1])]
    };
}

// SAFETY (of all functions): the trait's contract gives the instruction set and valid pointers.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Avx2 {
    type F = [__m256; 2];
    type I = [__m256i; 2];
    const PANEL_VECTORS: usize = 1;
    const ROWS: usize = 6;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: Self::F) {
        unsafe {
            _mm256_storeu_ps(p, x[0]);
            _mm256_storeu_ps(p.add(8), x[1]);
        }
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        unsafe { pairwise!(a, b, _mm256_add_ps) }
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        unsafe { pairwise!(a, b, _mm256_sub_ps) }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        unsafe { pairwise!(a, b, _mm256_mul_ps) }
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        unsafe { pairwise!(a, b, _mm256_div_ps) }
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        unsafe { pairwise!(a, b, _mm256_max_ps) }
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        unsafe { pairwise!(a, b, _mm256_min_ps) }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    unsafe fn first(n: usize, x: Self::F, other: Self::F) -> Self::F {
        unsafe {
            let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let n = n.min(LANES) as i32;
            array!([_mm256_setzero_ps(); 2], i => {
                let mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8 * i as i32), lanes);
                _mm256_blendv_ps(other[i], x[i], _mm256_castsi256_ps(mask))
            })
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::F {
        unsafe {
            [_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast()))]
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self::F {
        unsafe {
            array!([_mm256_setzero_ps(); 2], i => {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(8 * i).cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            })
        }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn splat_i(x: i32) -> Self::I {
        unsafe { [_mm256_set1_epi32(x); 2] }
    }
    #[inline(always)]
    unsafe fn load_i(p: *const i32) -> Self::I {
        unsafe { [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(8).cast())] }
    }
    #[inline(always)]
    unsafe fn store_i(p: *mut i32, x: Self::I) {
        unsafe {
            _mm256_storeu_si256(p.cast(), x[0]);
            _mm256_storeu_si256(p.add(8).cast(), x[1]);
        }
    }
    #[inline(always)]
    unsafe fn add_i(a: Self::I, b: Self::I) -> Self::I {
        unsafe { pairwise!(a, b, _mm256_add_epi32) }
    }
    #[inline(always)]
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I {
        unsafe { pairwise!(a, b, _mm256_and_si256) }
    }
    #[inline(always)]
    unsafe fn xor(a: Self::I, b: Self::I) -> Self::I {
        unsafe { pairwise!(a, b, _mm256_xor_si256) }
    }
    #[inline(always)]
    unsafe fn shl(x: Self::I, n: u32) -> Self::I {
        unsafe {
            [
                _mm256_sllv_epi32(x[0], _mm256_set1_epi32(n as i32)),
                _mm256_sllv_epi32(x[1], _mm256_set1_epi32(n as i32)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn shr(x: Self::I, n: u32) -> Self::I {
        unsafe {
            [
                _mm256_srlv_epi32(x[0], _mm256_set1_epi32(n as i32)),
                _mm256_srlv_epi32(x[1], _mm256_set1_epi32(n as i32)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn sar(x: Self::I, n: u32) -> Self::I {
        unsafe {
            [
                _mm256_srav_epi32(x[0], _mm256_set1_epi32(n as i32)),
                _mm256_srav_epi32(x[1], _mm256_set1_epi32(n as i32)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn to_f32(x: Self::I) -> Self::F {
        unsafe { [_mm256_cvtepi32_ps(x[0]), _mm256_cvtepi32_ps(x[1])] }
    }
    #[inline(always)]
    unsafe fn bits(x: Self::F) -> Self::I {
        unsafe { [_mm256_castps_si256(x[0]), _mm256_castps_si256(x[1])] }
    }
    #[inline(always)]
    unsafe fn from_bits(x: Self::I) -> Self::F {
        unsafe { [_mm256_castsi256_ps(x[0]), _mm256_castsi256_ps(x[1])] }
    }
    #[inline(always)]
    unsafe fn nibble(x: Self::I, zero: i32) -> Self::F {
        unsafe {
            let (mask, zero) = (_mm256_set1_epi32(15), _mm256_set1_epi32(zero));
            [
                _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_and_si256(x[0], mask), zero)),
                _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_and_si256(x[1], mask), zero)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn dot4(acc: Self::I, w: Self::I, x: Self::I) -> Self::I {
        // The eight-bit multiplication of AVX2 saturates: go through 16 bits, even and odd bytes apart.
        unsafe {
            let low = _mm256_set1_epi16(0xff);
            array!([_mm256_setzero_si256(); 2], i => {
                let (w, x) = (w[i], x[i]);
                let even = _mm256_madd_epi16(
                    _mm256_and_si256(w, low),
                    _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x)),
                );
                let odd = _mm256_madd_epi16(_mm256_srli_epi16::<8>(w), _mm256_srai_epi16::<8>(x));
                _mm256_add_epi32(acc[i], _mm256_add_epi32(even, odd))
            })
        }
    }
    #[inline(always)]
    unsafe fn transpose(from: *const f32, stride: usize, to: *mut f32, out_stride: usize) {
        unsafe {
            for (row, column) in [(0, 0), (0, 8), (8, 0), (8, 8)] {
                transpose8(
                    from.add(row * stride + column),
                    stride,
                    to.add(column * out_stride + row),
                    out_stride,
                );
            }
        }
    }
}

/// Eight rows of eight, in registers.
///
/// # Safety
/// AVX2; eight rows of eight values must be readable `stride` apart and writable `out_stride` apart.
#[inline(always)]
unsafe fn transpose8(from: *const f32, stride: usize, to: *mut f32, out_stride: usize) {
    // SAFETY: the caller's.
    unsafe {
        let r = array!([_mm256_setzero_ps(); 8], i => _mm256_loadu_ps(from.add(i * stride)));
        let low = array!([r[0]; 4], i => _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]));
        let high = array!([r[0]; 4], i => _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]));
        // Columns 0 to 3 of both halves, first of rows 0 to 3, then of rows 4 to 7.
        let mut quads = [r[0]; 8];
        for i in 0..2 {
            quads[4 * i] = _mm256_shuffle_ps::<0x44>(low[2 * i], low[2 * i + 1]);
            quads[4 * i + 1] = _mm256_shuffle_ps::<0xee>(low[2 * i], low[2 * i + 1]);
            quads[4 * i + 2] = _mm256_shuffle_ps::<0x44>(high[2 * i], high[2 * i + 1]);
            quads[4 * i + 3] = _mm256_shuffle_ps::<0xee>(high[2 * i], high[2 * i + 1]);
        }
        for i in 0..4 {
            let low = _mm256_permute2f128_ps::<0x20>(quads[i], quads[i + 4]);
            let high = _mm256_permute2f128_ps::<0x31>(quads[i], quads[i + 4]);
            _mm256_storeu_ps(to.add(i * out_stride), low);
            _mm256_storeu_ps(to.add((i + 4) * out_stride), high);
        }
    }
}
