//! The NIC of a real port: who runs the engine, when, and on which clock.
pub mod clock;
pub mod combine;
mod handover;
pub mod progress;
pub mod wake;

#[cfg(all(test, loom))]
mod models;
