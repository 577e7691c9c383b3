//! The arithmetic of the CPU runner.
//!
//! Every result has one definition, in terms of single IEEE operations in a fixed order, which all instruction sets follow
//! (I7): sixteen-lane vectors (one AVX-512 register, two of AVX2, an array elsewhere), multiplications fused with additions
//! where [`simd::Simd::fma`] says so and nowhere else, and our own `exp`.
//!
//! - A matrix product adds up blocks of 32 inputs. Within a block, one chain of fused operations in the order of the inputs,
//!   over the *stored* values of the weights; then the block's scale, and where the format has one its minimum times the sum of
//!   the block's inputs. A row's result so depends on nothing but the row.
//! - Attention goes over tiles of 32 positions, aligned to position 0, with a running maximum. K and V are rounded to the pool's
//!   type when they are stored, and widened exactly when they are read.
#![allow(unsafe_code)]
// Rows and lanes are indices into several arrays at once.
#![allow(clippy::needless_range_loop)]

pub mod activations;
pub mod aligned;
pub mod arena;
pub mod attention;
pub mod kv_element;
pub mod matmul;
pub mod packed;
pub mod pool;
pub mod rowwise;
pub mod simd;
#[cfg(target_arch = "x86_64")]
pub mod simd_x86;
