//! softroce

pub mod capture;
pub mod engine;
pub mod fabric;
pub mod mem;
pub mod net;
pub mod port;
pub mod queue;
pub mod seed;
mod sync;
pub mod time;
pub mod wire;
