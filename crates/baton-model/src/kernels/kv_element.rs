//! The element types of the KV pool, as attention reads them and projections are stored.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::simd::Simd;

/// One type of KV element. Arithmetic is in f32: elements are widened, exactly, when they are read, and rounded to nearest, ties
/// to even, when they are stored.
///
/// # Safety
/// See [`Simd`].
#[allow(clippy::missing_safety_doc)]
pub trait KvElement: Copy + 'static {
    /// Whether a run of elements is a run of f32.
    const IS_F32: bool = false;

    unsafe fn load<S: Simd>(from: *const Self) -> S::F;
    fn widen(self) -> f32;
    /// Rounds as many values as there are.
    fn store(values: &[f32], to: &mut [Self]);
}

// SAFETY (of all functions): the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl KvElement for f32 {
    const IS_F32: bool = true;

    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const Self) -> S::F {
        unsafe { S::load(from) }
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
    #[inline(always)]
    fn store(values: &[f32], to: &mut [Self]) {
        to.copy_from_slice(values);
    }
}

// SAFETY (of all functions): the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl KvElement for f16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const Self) -> S::F {
        unsafe { S::load_f16(from.cast()) }
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn store(values: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(values);
    }
}

// SAFETY (of all functions): the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl KvElement for bf16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const Self) -> S::F {
        unsafe { S::load_bf16(from.cast()) }
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn store(values: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(values);
    }
}
