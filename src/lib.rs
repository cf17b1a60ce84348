//! softroce

pub mod capture;
pub mod engine;
pub mod fabric;
pub mod mem;
pub mod net;
pub mod nic;
pub mod port;
pub mod queue;
pub mod seed;
pub mod sim;
mod sync;
pub mod time;
pub mod verbs;
pub mod wire;

pub use engine::cc;
pub use verbs::{backend_status, devices, open, Backend};

/// What nearly every program imports.
pub mod prelude {
    pub use crate::time::Duration;
    pub use crate::verbs::*;
}
