//! Any bytes as endpoints and `oob` messages. See `src/endpoint_parse.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    softroce_fuzz::endpoint_parse::run(data);
});
