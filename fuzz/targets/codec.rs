#![no_main]

#[path = "../../crates/baton-proto/tests/hostile/codec.rs"]
mod codec;

libfuzzer_sys::fuzz_target!(|data: &[u8]| codec::play(data));
