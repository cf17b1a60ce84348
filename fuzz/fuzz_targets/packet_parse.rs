//! Any bytes as a packet, and as a frame around one. See `src/packet_parse.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    softroce_fuzz::packet_parse::run(data);
});
