//! Any bytes as what two devices and the network between them do. See `src/engine_sequences.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    softroce_fuzz::engine_sequences::run(data);
});
