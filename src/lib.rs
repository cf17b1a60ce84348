//! softroce
pub mod net;
pub mod nic;
mod sync;
pub mod time;
pub mod wire;
