//! softroce
pub mod engine;
pub mod mem;
pub mod capture;
pub mod net;
pub mod port;
pub mod queue;
mod sync;
pub mod fabric;
pub mod net;
pub mod seed;
pub mod time;
pub mod wire;
