//! Any bytes as what a connected queue pair receives. See `src/engine_input.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    softroce_fuzz::engine_input::run(data);
});
