//! A simulated network that loses, doubles and reorders packets, as a testbed.

use super::testbed::SimBed;

mod annex;
mod atomics;
mod causes;
mod completions;
mod events;
mod failures;
mod lifetimes;
mod limits;
mod memory;
mod ops;
mod requests;
mod shared;
mod states;
mod windows;

/// Two in a hundred packets are lost, two reordered, two doubled.
pub(crate) type Bed = SimBed<true>;
