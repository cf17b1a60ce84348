//! What the fuzz targets do with the bytes they get: one module for each.
//!
//! *Rules.* A `run` is a function of its bytes alone and panics if anything is wrong. What it returns says
//! how far the bytes got, so that whoever replays a corpus can tell that it still reaches what it should.

pub mod api_calls;
pub mod capture_read;
pub mod endpoint_parse;
pub mod engine_input;
pub mod engine_sequences;
pub mod frame_input;
pub mod packet_parse;
