//! softroce
pub mod mem;
pub mod net;
pub mod time;
pub mod wire;
