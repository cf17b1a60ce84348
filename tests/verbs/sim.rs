//! The simulated network as a testbed: two hosts in virtual time.

use super::testbed::SimBed;

mod annex;
mod atomics;
mod causes;
mod clean;
mod completions;
mod datagrams;
mod events;
mod failures;
mod lifetimes;
mod limits;
mod memory;
mod ops;
mod requests;
mod shared;
mod states;
mod threads;
mod unreliable;
mod windows;

/// Nothing goes wrong.
pub(crate) type Bed = SimBed<false>;
