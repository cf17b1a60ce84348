//! Networks for experiments.

use softroce::prelude::*;
use softroce::sim::{Link, Sim};

use super::Result;
use super::traffic::Station;

/// Bits per second of all lines here.
pub(crate) const LINE: u64 = 40_000_000_000;
/// From one end of a cable to the other.
pub(crate) const CABLE: Duration = Duration::from_micros(1);

/// Hosts at one switch.
#[derive(Debug)]
pub(crate) struct Star {
    pub(crate) sim: Sim,
    pub(crate) hosts: Vec<Station>,
}

impl Star {
    /// So many hosts, with memory for messages of so many bytes.
    pub(crate) fn new(seed: u64, hosts: usize, memory: usize) -> Result<Self> {
        let sim = Sim::new(seed);
        let link = Link { bits_per_s: LINE, delay: CABLE, ..Link::default() };
        let host = |_| Station::with(&sim.try_host(link)?, memory);
        let hosts = (0..hosts).map(host).collect::<Result<_>>()?;
        Ok(Self { sim, hosts })
    }
}
