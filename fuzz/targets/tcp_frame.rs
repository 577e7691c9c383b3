#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| baton_transport::tcp::hostile::play_frame(data));
