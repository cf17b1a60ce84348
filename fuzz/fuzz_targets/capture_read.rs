//! Any bytes as a capture file. See `src/capture_read.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    softroce_fuzz::capture_read::run(data);
});
