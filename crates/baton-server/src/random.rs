//! Randomness from the operating system, for everything that a stranger must not guess or that must differ
//! between lives.

use rand::TryRng;
use rand::rngs::SysRng;

/// # Panics
/// If the operating system has no randomness to give; nothing here would be safe without it.
pub(crate) fn draw_u64() -> u64 {
    SysRng.try_next_u64().expect("the operating system gives random numbers")
}

pub(crate) fn draw_u128() -> u128 {
    u128::from(draw_u64()) << 64 | u128::from(draw_u64())
}
