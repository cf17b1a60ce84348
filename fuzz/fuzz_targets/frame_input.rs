//! Any frames at a station on an Ethernet. See `src/frame_input.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    softroce_fuzz::frame_input::run(data);
});
