//! softroce
pub mod net;
pub mod seed;
pub mod time;
pub mod wire;
