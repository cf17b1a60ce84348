//! softroce
pub mod net;
pub mod port;
pub mod time;
pub mod wire;
