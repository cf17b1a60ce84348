//! softroce
pub mod net;
pub mod time;
pub mod wire;
