#![no_main]

#[path = "../../crates/baton-proto/tests/hostile/side_channel.rs"]
mod side_channel;

libfuzzer_sys::fuzz_target!(|data: &[u8]| side_channel::play(data));
