//! A simulated network that loses, doubles and reorders packets, as a testbed.

use softroce::prelude::*;
use softroce::sim::{Link, Sim};

use super::testbed::Testbed;

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

pub(crate) struct Bed {
    sim: Sim,
    hosts: [Context; 2],
}

impl Testbed for Bed {
    fn try_new() -> Result<Self, String> {
        let sim = Sim::new(2);
        let bad = Link { loss: 0.02, reorder: 0.02, duplicate: 0.02, ..Link::default() };
        let hosts = sim.hosts(bad);
        Ok(Self { sim, hosts })
    }

    fn hosts(&self) -> [&Context; 2] {
        let [a, b] = &self.hosts;
        [a, b]
    }

    fn into_hosts(self) -> [Context; 2] {
        self.hosts
    }

    fn share(&self) {
        self.sim.shared();
    }

    fn pass_time(&self) {
        self.sim.run_for(Duration::from_micros(50));
    }

    fn block_on<T>(&self, f: impl Future<Output = T>) -> T {
        self.sim.block_on(f)
    }
}
