//! softroce
pub mod fabric;
pub mod net;
pub mod port;
pub mod seed;
pub mod time;
pub mod wire;
