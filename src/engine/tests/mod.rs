//! Two engines talking to each other, in virtual time.

mod acks;
mod elide;
mod go_back_0;
mod lifecycle;
mod losses;
mod memory;
mod owed;
mod pacing;
pub(crate) mod pair;
pub(crate) mod pingpong;
mod random;
mod rc;
mod rows;
mod selective;
mod sharing;
mod sizes;
mod steering;
pub(crate) mod trace;
mod unreliable;
