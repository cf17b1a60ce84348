//! engine
pub mod timer;
