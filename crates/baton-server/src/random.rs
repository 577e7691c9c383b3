//! Randomness from the operating system, for everything that a stranger must not guess or that must differ
//! between lives.

use rand::TryRng;
use rand::rngs::SysRng;

/// # Panics
/// If the operating system has no randomness to give; nothing here would be safe without it.
pub(crate) fn draw_u64() -> u64 {
    SysRng.try_next_u64().expect("the operating system gives random numbers")
}

/// # Panics
/// As [`draw_u64`].
pub(crate) fn draw_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SysRng.try_fill_bytes(&mut bytes).expect("the operating system gives random numbers");
    bytes
}

pub(crate) fn draw_u128() -> u128 {
    u128::from(draw_u64()) << 64 | u128::from(draw_u64())
}
