//! Networks for experiments: switches and hosts by name, and what flows between them.
//!
//! Hosts pace exactly, ask for an ACK at the end of each message only, and carry no payload; the rest of their
//! transport is as everywhere. Data is in priority 3, CNPs are in priority 6.

use std::collections::BTreeMap;

use softroce::prelude::*;
use softroce::sim::{
    Cable, HostConfig, Marking, Network, Payload, PortCounters, Sim, SwitchConfig, Threshold,
    Topology,
};

use super::Result;
use super::drawing::Drawing;
use super::sizes::Packet;
use super::traffic::{Flow, Jitter, MESSAGE, Spec, Station};

/// Bits per second of all lines here.
pub(crate) const LINE: u64 = 40_000_000_000;
/// The same, in Gbit/s.
const GBITS: u64 = 40;
/// Priority of data.
pub(crate) const DATA: u8 = 3;
/// DSCP of data, as a traffic class: the usual one of RoCE.
pub(crate) const DATA_CLASS: u8 = 26 << 2;

/// Path MTU of an experiment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) mtu: Mtu,
    pub(crate) packet: Packet,
}

impl Path {
    pub(crate) const MTU_1024: Self = Self { mtu: Mtu::B1024, packet: Packet::of(1024) };
    pub(crate) const MTU_4096: Self = Self { mtu: Mtu::B4096, packet: Packet::of(4096) };

    /// Gbit/s of payload on a full line.
    pub(crate) fn full(self) -> f64 {
        LINE as f64 / 1e9 * self.packet.share()
    }

    /// A start within so many packet times of the beginning.
    pub(crate) fn start(self, jitter: &mut Jitter, packets: u32) -> Duration {
        let time = Duration::from_secs_f64(self.packet.time(LINE as f64) * f64::from(packets));
        jitter.below(time)
    }

    /// A switch that pauses whoever holds more than this, and marks nothing.
    pub(crate) fn pausing(self, xoff: usize) -> SwitchConfig {
        SwitchConfig { threshold: Threshold::Fixed(xoff), ..self.switch() }
    }

    /// A switch that marks as DCQCN's authors had it, and pauses late.
    pub(crate) fn marking(self) -> SwitchConfig {
        let ecn = Some(Marking::red(5_000, 200_000, 0.01));
        SwitchConfig { threshold: Threshold::Dynamic(8.0), ecn, ..self.switch() }
    }

    /// A switch of 12 MB, with an end of pauses two packets below the threshold.
    pub(crate) fn switch(self) -> SwitchConfig {
        SwitchConfig { xon_offset: 2 * self.packet.frame as usize, ..SwitchConfig::default() }
    }
}

/// A host as they all are.
pub(crate) fn host() -> HostConfig {
    HostConfig { payload: Payload::Elided, ..HostConfig::gbits(GBITS).exact() }
}

/// A cable between switches as they all are.
pub(crate) fn cable() -> Cable {
    Cable::gbits(GBITS)
}

/// A network that was built, with memory at its hosts.
#[derive(Debug)]
pub(crate) struct Net {
    pub(crate) net: Network,
    stations: BTreeMap<String, Station>,
}

impl Net {
    /// Hosts with memory for one message of the usual size.
    pub(crate) fn build(topology: &Topology, seed: u64) -> Result<Self> {
        Self::build_with(topology, seed, MESSAGE)
    }

    pub(crate) fn build_with(topology: &Topology, seed: u64, memory: usize) -> Result<Self> {
        let net = topology.build_on(Sim::exact(seed))?;
        let station = |(name, _, _): (&str, &str, &HostConfig)| {
            Ok((name.to_owned(), Station::with(&net.host(name)?, memory)?))
        };
        let stations = topology.hosts().map(station).collect::<Result<_>>()?;
        Ok(Self { net, stations })
    }

    pub(crate) fn sim(&self) -> &Sim {
        self.net.sim()
    }

    /// A host.
    ///
    /// # Panics
    /// If there is none of this name: an experiment knows its own.
    pub(crate) fn station(&self, name: &str) -> &Station {
        self.stations.get(name).expect("an experiment names hosts that it has made")
    }

    /// Has a flow begin.
    pub(crate) fn flow(&self, from: &str, to: &str, spec: &Spec) -> Result<Flow> {
        Flow::start(self.sim(), from, self.station(from), self.station(to), spec)
    }

    /// Has packets between two hosts go this way: switches in their order, there and back.
    pub(crate) fn pin(&self, from: &str, to: &str, way: &[&str]) -> Result<()> {
        for pair in way.windows(2) {
            self.net.pin(pair[0], (from, to), pair[1])?;
            self.net.pin(pair[1], (to, from), pair[0])?;
        }
        Ok(())
    }

    /// Pauses sent so far, of all ports.
    pub(crate) fn pauses(&self) -> u64 {
        self.net.ports().iter().map(|(_, _, c)| pauses(c)).sum()
    }

    /// Packets dropped so far, of all ports.
    pub(crate) fn drops(&self) -> u64 {
        self.net.ports().iter().map(|(_, _, c)| c.drops()).sum()
    }

    /// Ports that have sent pauses, by owner and other end.
    pub(crate) fn pausing(&self) -> Vec<(String, String)> {
        let sent = self.net.ports().into_iter().filter(|(_, _, c)| pauses(c) > 0);
        sent.map(|(of, to, _)| (of, to)).collect()
    }

    /// Marks the cables of a drawing that a pause has crossed.
    pub(crate) fn show_pauses(&self, drawing: &mut Drawing) {
        for (of, to) in self.pausing() {
            drawing.paused(&of, &to);
        }
    }
}

/// Pauses (XOFF) that a port has sent.
pub(crate) fn pauses(counters: &PortCounters) -> u64 {
    counters.tx_pause.iter().sum()
}
