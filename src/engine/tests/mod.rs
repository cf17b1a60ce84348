//! Two engines talking to each other, in virtual time.

mod acks;
mod elide;
mod lifecycle;
mod losses;
mod memory;
mod pacing;
pub(crate) mod pair;
mod random;
mod rc;
mod selective;
mod sharing;
mod sizes;
mod steering;
pub(crate) mod trace;
mod unreliable;
