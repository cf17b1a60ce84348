//! softroce
pub mod engine;
pub mod net;
pub mod time;
pub mod wire;
