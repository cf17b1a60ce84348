//! Building a network: switches, hosts on them, cables between them.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};

use super::link::Link;
use super::pause::u32_of;
use super::ports::{PortCounters, PortId, PortTap};
use super::queue::{Held, Node, Pipe};
use super::switch::{PRIORITIES, PriorityMap, Switch, SwitchConfig, SwitchId};
use super::trace::{Fate, PacketSink};
use super::{Direction, Fabric, FabricError, Host, HostCounters, HostId, id};

/// Names a cable between two switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrunkId(pub u32);

/// How a host is connected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cabling {
    /// Its cable. What is wrong with it happens on the way down, to the host.
    pub link: Link,
    /// Frame bytes that the host may have waiting at its end of the cable: what it has queued there leaves no matter how
    /// slow it is told to be meanwhile.
    pub nic_queue: usize,
    /// Which of its packets belongs to which priority.
    pub priorities: PriorityMap,
    /// The priority that it writes into the VLAN tags of its packets, by their DSCP; `None`: they have no tag.
    pub tag: Option<PriorityMap>,
}

impl Fabric {
    /// Adds a host with a cable to the first switch, where everything is of one priority and nobody pauses.
    ///
    /// # Errors
    /// If a field of `link` is out of range: see [`Link::check`].
    pub fn add_host(&mut self, link: Link) -> Result<HostId, FabricError> {
        self.cable_host(SwitchId(0), link, link.uplink(), None)
    }

    /// Adds a host on a switch.
    ///
    /// # Errors
    /// If there is no such switch, or a field of the link is out of range.
    pub fn add_host_at(&mut self, at: SwitchId, with: &Cabling) -> Result<HostId, FabricError> {
        let up = Link { queue: with.nic_queue, ..with.link.uplink() };
        let host = self.cable_host(at, with.link, up, Some(with.priorities))?;
        self.hosts[host.index()].tag = with.tag;
        Ok(host)
    }

    fn cable_host(
        &mut self,
        at: SwitchId,
        down: Link,
        up: Link,
        priorities: Option<PriorityMap>,
    ) -> Result<HostId, FabricError> {
        down.check()?;
        let s = self.switch_index(at)?;
        let index = self.hosts.len();
        let seeds = self.seeds.derive("host", index as u64);
        let cable = self.pipes.len();
        let (host, switch) = (Node::Host(index), Node::Switch(s));
        self.pipes.push(Pipe::new(up, host, switch, &seeds.derive("up", 0)));
        self.pipes.push(Pipe::new(down, switch, host, &seeds.derive("down", 0)));
        self.manage(cable + 1, s);
        self.pipes[cable].timed = priorities.is_some();
        self.hosts.push(Host {
            cable,
            priorities,
            tag: None,
            inflow: None,
            up: Arc::new(AtomicBool::new(true)),
            mtu: Arc::new(AtomicU32::new(down.mtu)),
            addresses: Vec::new(),
            inbox: VecDeque::new(),
            counters: HostCounters::default(),
            is_woken: false,
            wants_room: false,
        });
        Ok(id(index))
    }

    /// A pipe leads out of a switch: it does there as the switch does.
    fn manage(&mut self, pipe: usize, s: usize) {
        let switch = &mut self.switches[s];
        switch.out.push(pipe);
        if let Some(config) = &switch.config {
            self.pipes[pipe].managed = true;
            self.pipes[pipe].timed = true;
            self.pipes[pipe].set_scheduler(config.scheduler);
        }
    }

    /// Adds a switch.
    ///
    /// # Errors
    /// If its configuration contradicts itself. Whether the buffer holds the headroom of all ports is asked by
    /// [`check`](Self::check), when they are there.
    pub fn add_switch(&mut self, config: SwitchConfig) -> Result<SwitchId, FabricError> {
        config.check(0)?;
        let index = self.switches.len();
        let salt = self.seeds.derive("switch", index as u64).u64();
        self.switches.push(Switch::new(Some(config), salt));
        self.stale = true;
        Ok(SwitchId(u32_of(index)))
    }

    /// Connects two switches.
    ///
    /// # Errors
    /// If they do not exist or are the same, or a field of the link is out of range. What is wrong with the link happens
    /// on both ways.
    pub fn connect(
        &mut self,
        a: SwitchId,
        b: SwitchId,
        link: Link,
    ) -> Result<TrunkId, FabricError> {
        link.check()?;
        let (from, to) = (self.switch_index(a)?, self.switch_index(b)?);
        if from == to {
            return Err(FabricError::Loop(a));
        }
        let pipe = self.pipes.len();
        let seeds = self.seeds.derive("trunk", pipe as u64);
        let (x, y) = (Node::Switch(from), Node::Switch(to));
        self.pipes.push(Pipe::new(link, x, y, &seeds.derive("there", 0)));
        self.pipes.push(Pipe::new(link, y, x, &seeds.derive("back", 0)));
        self.manage(pipe, from);
        self.manage(pipe + 1, to);
        self.stale = true;
        Ok(TrunkId(u32_of(pipe)))
    }

    /// Whether all hosts reach each other, and all switches have room for the headroom of their ports.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&mut self) -> Result<(), FabricError> {
        for switch in &self.switches {
            if let Some(config) = &switch.config {
                config.check(switch.out.len())?;
            }
        }
        for host in 1..self.hosts.len() {
            // Ways go both ways: whoever reaches the first reaches all.
            self.check_way(id(host), id(0))?;
        }
        Ok(())
    }

    /// Plugs a cable between switches in or out. What is on it or waits for it is dropped; what comes takes another
    /// way, if there is one.
    ///
    /// # Errors
    /// If there is no such cable.
    pub fn set_trunk_up(&mut self, trunk: TrunkId, up: bool) -> Result<(), FabricError> {
        let pipe = trunk.0 as usize;
        let is_trunk = |at: usize| {
            self.pipes
                .get(at)
                .is_some_and(|p| matches!((p.from, p.to), (Node::Switch(_), Node::Switch(_))))
        };
        if !pipe.is_multiple_of(2) || !is_trunk(pipe) {
            return Err(FabricError::NoSuchTrunk(trunk));
        }
        for way in [pipe, pipe + 1] {
            if self.pipes[way].up && !up {
                self.pipes[way].up = false;
                self.cut(way);
            }
            self.pipes[way].up = up;
        }
        self.reroute();
        Ok(())
    }

    /// A pipe is cut: what is on it or waits for it is gone, and so are its pauses.
    pub(super) fn cut(&mut self, pipe: usize) {
        self.pipes[pipe].cut += 1;
        self.forget_pauses(pipe);
        self.pipes[pipe].ingress.xoff = 0;
        while let Some((packet, priority)) = self.pipes[pipe].discard() {
            if self.pipes[pipe].managed {
                self.release(Held { via: packet.via, priority, frame: packet.frame });
            }
            self.drop_at(pipe, packet.id, Fate::LinkDown);
        }
    }

    /// The switch that a host is on.
    ///
    /// # Errors
    /// If there is no such host.
    pub fn switch_of(&self, host: HostId) -> Result<SwitchId, FabricError> {
        match self.pipes[self.pipe_of(self.index(host)?, Direction::Up)].to {
            Node::Switch(s) => Ok(SwitchId(u32_of(s))),
            Node::Host(_) => Err(FabricError::NoSuchHost(host)),
        }
    }

    /// The port of a host.
    ///
    /// # Errors
    /// If there is no such host.
    pub fn port_of(&self, host: HostId) -> Result<PortId, FabricError> {
        Ok(PortId(u32_of(self.pipe_of(self.index(host)?, Direction::Up))))
    }

    /// The port of its switch that a host is on.
    ///
    /// # Errors
    /// If there is no such host.
    pub fn port_to(&self, host: HostId) -> Result<PortId, FabricError> {
        Ok(PortId(u32_of(self.pipe_of(self.index(host)?, Direction::Down))))
    }

    /// The two ports of a cable between switches: of the switch that was named first, then of the other.
    ///
    /// # Errors
    /// If there is no such cable.
    pub fn ports_of(&self, trunk: TrunkId) -> Result<[PortId; 2], FabricError> {
        self.pipe_at(PortId(trunk.0)).map_err(|_| FabricError::NoSuchTrunk(trunk))?;
        Ok([PortId(trunk.0), PortId(trunk.0 ^ 1)])
    }

    /// What a port has counted.
    ///
    /// # Errors
    /// If there is no such port.
    pub fn port_counters(&self, port: PortId) -> Result<PortCounters, FabricError> {
        let pipe = self.pipe_at(port)?;
        Ok(PortCounters::of(&self.pipes[pipe].counters, &self.pipes[pipe ^ 1].counters))
    }

    /// Frame bytes that wait to leave by a port, of each priority.
    ///
    /// # Errors
    /// If there is no such port.
    pub fn port_queue(&self, port: PortId) -> Result<[usize; PRIORITIES], FabricError> {
        let pipe = &self.pipes[self.pipe_at(port)?];
        let mut bytes = [0; PRIORITIES];
        for (priority, bytes) in (0..).zip(&mut bytes) {
            *bytes = pipe.queued_of(priority);
        }
        Ok(bytes)
    }

    /// Priorities that a port must not send at this moment, a bit each.
    ///
    /// # Errors
    /// If there is no such port.
    pub fn port_paused(&self, port: PortId) -> Result<u8, FabricError> {
        Ok(self.pipes[self.pipe_at(port)?].paused.mask())
    }

    /// Bytes in a switch, and the most that there ever were.
    ///
    /// # Errors
    /// If there is no such switch.
    pub fn buffered(&self, switch: SwitchId) -> Result<(usize, usize), FabricError> {
        let switch = &self.switches[self.switch_index(switch)?];
        Ok((switch.used, switch.peak))
    }

    /// Gives a copy of each frame that begins to leave by a port, pauses included, to `sink`.
    ///
    /// # Errors
    /// If there is no such port.
    pub fn capture_port(
        &mut self,
        port: PortId,
        sink: Box<dyn PacketSink + Send>,
    ) -> Result<(), FabricError> {
        let pipe = self.pipe_at(port)?;
        self.port_taps.push(PortTap::new(pipe, sink));
        Ok(())
    }

    /// Ends all captures of ports.
    ///
    /// # Errors
    /// What the first sink said that failed.
    pub fn stop_port_captures(&mut self) -> io::Result<()> {
        let taps = std::mem::take(&mut self.port_taps);
        taps.into_iter().map(PortTap::finish).fold(Ok(()), io::Result::and)
    }

    /// Carries no more than this much of each datagram, from now on: the rest arrives as whatever the receiver's buffer
    /// holds. Times and lengths are as ever.
    pub const fn carry(&mut self, bytes: usize) {
        self.store.carry(bytes);
    }

    /// Queues that wait for each other in a circle: each is paused by a switch in which only packets for the next one
    /// are in the way. Nothing in them will ever move (without a watchdog). Empty if there is no such circle.
    ///
    /// Named by port and priority, in the order in which each waits for the next.
    pub fn deadlock(&self) -> Vec<(PortId, u8)> {
        for pipe in 0..self.pipes.len() {
            for priority in 0..8 {
                let mut circle = Vec::new();
                if self.follow(pipe, priority, &mut circle) {
                    return circle;
                }
            }
        }
        Vec::new()
    }

    /// Whether a stuck queue waits, through others, for one that is on the way already; `circle` is what was passed.
    fn follow(&self, pipe: usize, priority: u8, circle: &mut Vec<(PortId, u8)>) -> bool {
        let p = &self.pipes[pipe];
        if !p.paused.is(priority) || p.queued_of(priority) == 0 {
            return false;
        }
        let here = (PortId(u32_of(pipe)), priority);
        if let Some(at) = circle.iter().position(|&seen| seen == here) {
            circle.drain(..at);
            return true;
        }
        circle.push(here);
        if let Node::Switch(s) = p.to {
            for &next in &self.switches[s].out {
                let in_the_way = |p8: u8| self.pipes[next].waiting(p8).any(|w| w.via == pipe);
                for p8 in 0..8 {
                    if in_the_way(p8) && self.follow(next, p8, circle) {
                        return true;
                    }
                }
            }
        }
        circle.pop();
        false
    }

    /// How many switches there are, the first included.
    pub fn switches(&self) -> usize {
        self.switches.len()
    }

    pub(super) fn switch_index(&self, switch: SwitchId) -> Result<usize, FabricError> {
        if switch.index() < self.switches.len() {
            Ok(switch.index())
        } else {
            Err(FabricError::NoSuchSwitch(switch))
        }
    }

    fn pipe_at(&self, port: PortId) -> Result<usize, FabricError> {
        if port.pipe() < self.pipes.len() {
            Ok(port.pipe())
        } else {
            Err(FabricError::NoSuchPort(port))
        }
    }
}
