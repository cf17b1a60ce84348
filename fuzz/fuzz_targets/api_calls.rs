//! Any bytes as a program that calls verbs. See `src/api_calls.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    softroce_fuzz::api_calls::run(data);
});
