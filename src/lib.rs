//! softroce
pub mod capture;
pub mod net;
pub mod time;
pub mod wire;
