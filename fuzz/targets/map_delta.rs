#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| copyhold_fuzz::run("map_delta", input));
