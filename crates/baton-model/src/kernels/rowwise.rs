//! What happens to one row at a time: normalisation, rotation, the gated activation, additions.

use super::simd::{LANES, Simd, dispatch, exp, sum_lanes};

#[inline(always)]
unsafe fn rms_norm_kernel<S: Simd>(x: *const f32, weight: *const f32, out: *mut f32, len: usize, eps: f32) {
    // SAFETY: the caller's: `len` values, a multiple of sixteen.
    unsafe {
        let mut squares = S::splat(0.0);
        for i in (0..len).step_by(LANES) {
            let x = S::load(x.add(i));
            squares = S::fma(x, x, squares);
        }
        let scale = S::splat(1.0 / (sum_lanes::<S>(squares) / len as f32 + eps).sqrt());
        for i in (0..len).step_by(LANES) {
            let normed = S::mul(S::load(x.add(i)), scale);
            S::store(out.add(i), S::mul(normed, S::load(weight.add(i))));
        }
    }
}

dispatch! {
    /// `out = x / sqrt(mean(x^2) + eps) * weight`; `out` may be `x`.
    ///
    /// # Safety
    /// The processor must have `isa`; `len` values at each pointer, a multiple of sixteen.
    pub unsafe fn rms_norm(x: *const f32, weight: *const f32, out: *mut f32, len: usize, eps: f32) = rms_norm_kernel
}

#[inline(always)]
unsafe fn swiglu_kernel<S: Simd>(gate: *const f32, up: *const f32, out: *mut f32, len: usize) {
    // SAFETY: the caller's: `len` values, a multiple of sixteen.
    unsafe {
        let one = S::splat(1.0);
        for i in (0..len).step_by(LANES) {
            let g = S::load(gate.add(i));
            let sigmoid_inverse = S::add(one, exp::<S>(S::sub(S::splat(0.0), g)));
            S::store(out.add(i), S::mul(S::div(g, sigmoid_inverse), S::load(up.add(i))));
        }
    }
}

dispatch! {
    /// `out = gate / (1 + e^-gate) * up`.
    ///
    /// # Safety
    /// As for [`rms_norm`].
    pub unsafe fn swiglu(gate: *const f32, up: *const f32, out: *mut f32, len: usize) = swiglu_kernel
}

#[inline(always)]
unsafe fn add_kernel<S: Simd>(x: *mut f32, y: *const f32, len: usize) {
    for i in (0..len).step_by(LANES) {
        // SAFETY: the caller's: `len` values, a multiple of sixteen.
        unsafe { S::store(x.add(i), S::add(S::load(x.add(i)), S::load(y.add(i)))) };
    }
}

dispatch! {
    /// `x += y`.
    ///
    /// # Safety
    /// As for [`rms_norm`].
    pub unsafe fn add(x: *mut f32, y: *const f32, len: usize) = add_kernel
}

#[inline(always)]
unsafe fn rotate_kernel<S: Simd>(head: *mut f32, cos: *const f32, sin: *const f32, half: usize, scale: f32) {
    let _ = std::marker::PhantomData::<S>;
    for i in 0..half {
        // SAFETY: the caller's: `2 half` values of the head, `half` of each table. Plain operations: nothing is fused.
        unsafe {
            let (a, b) = (*head.add(i), *head.add(half + i));
            let (c, s) = (*cos.add(i), *sin.add(i));
            *head.add(i) = (a * c - b * s) * scale;
            *head.add(half + i) = (b * c + a * s) * scale;
        }
    }
}

dispatch! {
    /// Rotates the pairs `(i, i + half)` of a head by the angles of its position, and scales.
    ///
    /// # Safety
    /// The processor must have `isa`; `2 half` values of `head`, `half` of each table.
    pub unsafe fn rotate(head: *mut f32, cos: *const f32, sin: *const f32, half: usize, scale: f32) = rotate_kernel
}
