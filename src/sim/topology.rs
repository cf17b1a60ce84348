//! Networks of more than one switch: named hosts, switches and cables, with buffers that fill, marks and pauses.
//!
//! ```
//! use softroce::prelude::*;
//! use softroce::sim::{Cable, HostConfig, Marking, SwitchConfig, Threshold, Topology};
//!
//! # fn main() -> Result<()> {
//! let mut t = Topology::new();
//! let config = SwitchConfig {
//!     threshold: Threshold::Dynamic(8.0),
//!     ecn: Some(Marking::red(5_000, 200_000, 0.01)),
//!     ..SwitchConfig::default()
//! };
//! t.switch("left", config.clone()).switch("right", config);
//! t.cable("left", "right", Cable::gbits(40));
//! t.host("a", "left", HostConfig::gbits(40)).host("b", "right", HostConfig::gbits(40));
//!
//! let net = t.build(1)?;
//! let (a, b) = (net.host("a")?, net.host("b")?);
//! # let side = |ctx: &Context| -> Result<_> {
//! #     let (pd, cq) = (ctx.alloc_pd()?, ctx.create_cq(16)?);
//! #     let qp = pd.create_qp(QpType::Rc, &cq).build()?;
//! #     Ok((pd, cq, qp))
//! # };
//! # let ((pa, cq, x), (pb, _, y)) = (side(&a)?, side(&b)?);
//! # x.connect(&y.endpoint())?;
//! # y.connect(&x.endpoint())?;
//! # let (from, to) = (pa.alloc_mr(100_000, Access::LOCAL)?, pb.alloc_mr(100_000, Access::REMOTE)?);
//! // ... x at a is connected to y at b ...
//! x.post_send(SendWr::write(1, from.sge(..), to.remote()))?;
//! cq.wait(Duration::from_secs(1))?.ok()?;
//! let counters = net.counters("left", "right")?;
//! assert!(counters.tx_bytes[0] > 100_000);
//! assert_eq!(counters.drops(), 0);
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use super::{Pcap, Sim, refused};
use crate::capture::Writer;
use crate::engine::cause::Cause;
use crate::fabric::{
    Cabling, HostId, Link, PRIORITIES, PortCounters, PortId, PriorityMap, Receiver, SwitchConfig,
    SwitchId, TrunkId,
};
use crate::time::Duration;
use crate::verbs::{Context, Error, Result};

/// A cable between two switches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cable {
    /// Speed, delay and MTU of both ways, and what is wrong with them. `queue` and `ecn_at` do not apply: there
    /// the switch decides.
    pub link: Link,
}

impl Cable {
    /// This many Gbit/s, 1 us, MTU 9000, nothing wrong.
    pub fn gbits(rate: u64) -> Self {
        Self { link: link(rate) }
    }
}

fn link(gbits: u64) -> Link {
    let bits_per_s = gbits.saturating_mul(1_000_000_000);
    Link { bits_per_s, delay: Duration::from_micros(1), ..Link::default() }
}

/// What is carried of payloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Payload {
    /// All of it: data can be verified.
    #[default]
    Carried,
    /// Headers only. Packets have their lengths, and come and go at the same times, but memory is neither read nor
    /// written: for networks too large for their bytes. All hosts must agree.
    Elided,
}

/// A host and its cable.
#[derive(Clone, Debug, PartialEq)]
pub struct HostConfig {
    /// Speed, delay and MTU of its cable, and what is wrong with it on the way down.
    pub link: Link,
    /// Frame bytes that its NIC may have waiting for the cable.
    pub nic_queue: usize,
    /// Which of its packets belongs to which priority.
    pub priorities: PriorityMap,
    /// The priority that it writes into the VLAN tags of its packets (PCP), by their DSCP; `None`: no tags.
    pub tag: Option<PriorityMap>,
    /// How it takes packets in; `None`: at once.
    pub receiver: Option<Receiver>,
    /// Partition keys behind the default one.
    pub pkeys: Vec<u16>,
    /// Every packet leaves at its own moment, as hardware paces: no segmentation, no credit for bursts. An ACK is asked
    /// for at the end of each message only, and comes at once. The flow control towards sockets is off.
    pub exact: bool,
    /// What is carried of payloads.
    pub payload: Payload,
    /// Least time between two congestion notifications of a flow; `None`: none is sent.
    pub cnp_interval: Option<Duration>,
}

impl HostConfig {
    /// This many Gbit/s, 1 us, a NIC that queues 64 KiB, payload carried.
    pub fn gbits(rate: u64) -> Self {
        Self {
            link: link(rate),
            nic_queue: 64 << 10,
            priorities: PriorityMap::default(),
            tag: None,
            receiver: None,
            pkeys: Vec::new(),
            exact: false,
            payload: Payload::Carried,
            cnp_interval: Some(Duration::from_micros(50)),
        }
    }

    /// The same, paced exactly, with next to nothing queued in the NIC.
    pub fn exact(self) -> Self {
        Self { exact: true, nic_queue: 1, ..self }
    }
}

/// A network that can be built, with names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Topology {
    switches: Vec<(String, SwitchConfig)>,
    hosts: Vec<(String, String, HostConfig)>,
    cables: Vec<(String, String, Cable)>,
}

impl Topology {
    /// Nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// One more switch.
    pub fn switch(&mut self, name: impl Into<String>, config: SwitchConfig) -> &mut Self {
        self.switches.push((name.into(), config));
        self
    }

    /// One more host, on a switch.
    pub fn host(
        &mut self,
        name: impl Into<String>,
        on: impl Into<String>,
        config: HostConfig,
    ) -> &mut Self {
        self.hosts.push((name.into(), on.into(), config));
        self
    }

    /// One more cable between two switches.
    pub fn cable(&mut self, a: impl Into<String>, b: impl Into<String>, cable: Cable) -> &mut Self {
        self.cables.push((a.into(), b.into(), cable));
        self
    }

    /// Two hosts, `h0` and `h1`, on the switch `sw`.
    pub fn pair(config: SwitchConfig, host: &HostConfig) -> Self {
        Self::star(2, config, host)
    }

    /// `n` hosts, `h0` to `h{n-1}`, on the switch `sw`.
    pub fn star(n: usize, config: SwitchConfig, host: &HostConfig) -> Self {
        let mut t = Self::new();
        t.switch("sw", config);
        for i in 0..n {
            t.host(format!("h{i}"), "sw", host.clone());
        }
        t
    }

    /// `n` hosts on each of two switches, `l0`... on `left`, `r0`... on `right`, and one cable between them.
    pub fn dumbbell(n: usize, config: SwitchConfig, host: &HostConfig, cable: Cable) -> Self {
        let mut t = Self::new();
        t.switch("left", config.clone()).switch("right", config);
        t.cable("left", "right", cable);
        for i in 0..n {
            t.host(format!("l{i}"), "left", host.clone());
            t.host(format!("r{i}"), "right", host.clone());
        }
        t
    }

    /// A row of `n` switches, `sw0` to `sw{n-1}`, each with a host `h0` to `h{n-1}`: whoever goes further shares
    /// with more.
    pub fn parking_lot(n: usize, config: SwitchConfig, host: &HostConfig, cable: Cable) -> Self {
        let mut t = Self::new();
        for i in 0..n {
            t.switch(format!("sw{i}"), config.clone());
            t.host(format!("h{i}"), format!("sw{i}"), host.clone());
            if i > 0 {
                t.cable(format!("sw{}", i - 1), format!("sw{i}"), cable);
            }
        }
        t
    }

    /// `leaves` switches `leaf0`... with `hosts` hosts each, `h0`... counted through, and a cable from each to each
    /// of `spines` switches `spine0`...
    pub fn leaf_spine(
        leaves: usize,
        spines: usize,
        hosts: usize,
        config: SwitchConfig,
        host: &HostConfig,
        cable: Cable,
    ) -> Self {
        let mut t = Self::new();
        for s in 0..spines {
            t.switch(format!("spine{s}"), config.clone());
        }
        for l in 0..leaves {
            t.switch(format!("leaf{l}"), config.clone());
            for s in 0..spines {
                t.cable(format!("leaf{l}"), format!("spine{s}"), cable);
            }
            for h in 0..hosts {
                t.host(format!("h{}", l * hosts + h), format!("leaf{l}"), host.clone());
            }
        }
        t
    }

    /// The fat tree of `k` ports (`k` even): `k` pods with `k/2` switches `edge{pod}.{i}` with `k/2` hosts each and
    /// `k/2` switches `agg{pod}.{i}`, and `k²/4` switches `core{i}`. Hosts are `h0` to `h{k³/4-1}`.
    pub fn fat_tree(k: usize, config: SwitchConfig, host: &HostConfig, cable: Cable) -> Self {
        let half = k / 2;
        let mut t = Self::new();
        for core in 0..half * half {
            t.switch(format!("core{core}"), config.clone());
        }
        let mut hosts = 0;
        for pod in 0..k {
            for i in 0..half {
                t.switch(format!("agg{pod}.{i}"), config.clone());
                t.switch(format!("edge{pod}.{i}"), config.clone());
                for up in 0..half {
                    t.cable(format!("agg{pod}.{i}"), format!("core{}", i * half + up), cable);
                }
            }
            for edge in 0..half {
                for agg in 0..half {
                    t.cable(format!("edge{pod}.{edge}"), format!("agg{pod}.{agg}"), cable);
                }
                for _ in 0..half {
                    t.host(format!("h{hosts}"), format!("edge{pod}.{edge}"), host.clone());
                    hosts += 1;
                }
            }
        }
        t
    }

    /// Names of the switches, in the order in which they were added.
    pub fn switches(&self) -> impl Iterator<Item = &str> {
        self.switches.iter().map(|(name, _)| name.as_str())
    }

    /// Names of the hosts and of the switches that they are on.
    pub fn hosts(&self) -> impl Iterator<Item = (&str, &str, &HostConfig)> {
        self.hosts.iter().map(|(name, on, config)| (name.as_str(), on.as_str(), config))
    }

    /// The cables between switches.
    pub fn cables(&self) -> impl Iterator<Item = (&str, &str, &Cable)> {
        self.cables.iter().map(|(a, b, cable)| (a.as_str(), b.as_str(), cable))
    }

    /// Builds it. Equal seeds give equal networks.
    ///
    /// # Errors
    /// `EINVAL`: a name that is there twice or not at all, a cable or switch that makes no sense, a buffer smaller than
    /// the headroom of its ports, a host that others cannot reach; the error names it.
    pub fn build(&self, seed: u64) -> Result<Network> {
        self.build_on(Sim::new(seed))
    }

    /// Builds it on a simulation that there is.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn build_on(&self, sim: Sim) -> Result<Network> {
        let mut net = Network {
            sim,
            switches: BTreeMap::new(),
            hosts: BTreeMap::new(),
            trunks: BTreeMap::new(),
        };
        for (name, config) in &self.switches {
            let added = net.sim.0.fabric.lock().add_switch(config.clone());
            let id = added.map_err(|e| invalid(format!("switch {name}: {e}")))?;
            net.new_name(name)?;
            net.switches.insert(name.clone(), id);
        }
        for (a, b, cable) in &self.cables {
            let ends = (net.switch_id(a)?, net.switch_id(b)?);
            let added = net.sim.0.fabric.lock().connect(ends.0, ends.1, cable.link);
            let id = added.map_err(|e| invalid(format!("cable {a} - {b}: {e}")))?;
            if net.trunk(a, b).is_ok() {
                let what =
                    format!("cable {a} - {b}: there is one already; a faster one does the same");
                return Err(invalid(what));
            }
            net.trunks.insert((a.clone(), b.clone()), id);
        }
        for (name, on, config) in &self.hosts {
            let at = net.switch_id(on).map_err(|_| {
                invalid(format!("host {name}: there is no switch {on} to put it on"))
            })?;
            net.new_name(name)?;
            let cabling = Cabling {
                link: config.link,
                nic_queue: config.nic_queue,
                priorities: config.priorities,
                tag: config.tag,
            };
            let in_words = |e: Error| match e.cause() {
                Some(cause) => invalid(format!("host {name}: {cause}")),
                None => e,
            };
            let context = net.sim.host_on(at, &cabling, config).map_err(in_words)?;
            let id = net.sim.host_of(&context)?;
            let set = net.sim.0.fabric.lock().set_receiver(id, config.receiver);
            set.map_err(|e| invalid(format!("host {name}: {e}")))?;
            net.hosts.insert(name.clone(), (id, context));
        }
        let checked = net.sim.0.fabric.lock().check();
        checked.map_err(|e| invalid(net.with_names(&e.to_string())))?;
        Ok(net)
    }
}

fn invalid(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::verb("sim", Cause::Invalid { what: what.into() })
}

/// A network that was built: a simulation whose hosts, switches and ports have names.
///
/// A port is named by whose it is and by what is at the other end of its cable.
pub struct Network {
    sim: Sim,
    switches: BTreeMap<String, SwitchId>,
    hosts: BTreeMap<String, (HostId, Context)>,
    trunks: BTreeMap<(String, String), TrunkId>,
}

impl Network {
    /// The simulation: time, tasks, faults.
    pub fn sim(&self) -> &Sim {
        &self.sim
    }

    /// The device of a host.
    ///
    /// # Errors
    /// `EINVAL`: there is no such host.
    pub fn host(&self, name: &str) -> Result<Context> {
        match self.hosts.get(name) {
            Some((_, context)) => Ok(context.clone()),
            None => Err(invalid(format!("there is no host {name}"))),
        }
    }

    /// What a port has counted.
    ///
    /// # Errors
    /// `EINVAL`: no cable connects these two.
    pub fn counters(&self, of: &str, towards: &str) -> Result<PortCounters> {
        let port = self.port(of, towards)?;
        self.sim.0.fabric.lock().port_counters(port).map_err(refused)
    }

    /// Frame bytes that wait to leave by a port, of each priority.
    ///
    /// # Errors
    /// `EINVAL`: no cable connects these two.
    pub fn queue(&self, of: &str, towards: &str) -> Result<[usize; PRIORITIES]> {
        let port = self.port(of, towards)?;
        self.sim.0.fabric.lock().port_queue(port).map_err(refused)
    }

    /// Priorities that a port must not send at this moment, a bit each.
    ///
    /// # Errors
    /// `EINVAL`: no cable connects these two.
    pub fn paused(&self, of: &str, towards: &str) -> Result<u8> {
        let port = self.port(of, towards)?;
        self.sim.0.fabric.lock().port_paused(port).map_err(refused)
    }

    /// Bytes in a switch now, and the most that there ever were.
    ///
    /// # Errors
    /// `EINVAL`: there is no such switch.
    pub fn buffered(&self, switch: &str) -> Result<(usize, usize)> {
        let id = self.switch_id(switch)?;
        self.sim.0.fabric.lock().buffered(id).map_err(refused)
    }

    /// Every port with its owner, the other end of its cable, and what it has counted: hosts first, by name.
    pub fn ports(&self) -> Vec<(String, String, PortCounters)> {
        let hosts = self.hosts.keys().flat_map(|name| {
            let switch = self.switch_of(name).unwrap_or_default();
            [(name.clone(), switch.clone()), (switch, name.clone())]
        });
        let trunks = self.trunks.keys();
        let trunks = trunks.flat_map(|(a, b)| [(a.clone(), b.clone()), (b.clone(), a.clone())]);
        let all = hosts.chain(trunks);
        all.filter_map(|(of, to)| self.counters(&of, &to).ok().map(|c| (of, to, c))).collect()
    }

    /// Pulls the cable between two switches, or plugs it in again.
    ///
    /// # Errors
    /// `EINVAL`: there is none. For a host's see [`Sim::set_up`].
    pub fn set_cable_up(&self, a: &str, b: &str, up: bool) -> Result<()> {
        let (trunk, _) = self.trunk(a, b)?;
        self.sim.0.fabric.lock().set_trunk_up(trunk, up).map_err(refused)
    }

    /// Has packets from one host to another leave a switch towards another, whatever their flow.
    ///
    /// # Errors
    /// `EINVAL`: one of them does not exist, or no cable leads there.
    pub fn pin(&self, at: &str, hosts: (&str, &str), towards: &str) -> Result<()> {
        let ids = (self.host_id(hosts.0)?, self.host_id(hosts.1)?);
        let (at, towards) = (self.switch_id(at)?, self.switch_id(towards)?);
        self.sim.0.fabric.lock().pin(at, ids, towards).map_err(refused)
    }

    /// Has a host take packets in slowly, not at all, or (`None`) at once.
    ///
    /// # Errors
    /// `EINVAL`: there is no such host, or the thresholds contradict each other.
    pub fn set_receiver(&self, host: &str, receiver: Option<Receiver>) -> Result<()> {
        let id = self.host_id(host)?;
        self.sim.0.fabric.lock().set_receiver(id, receiver).map_err(refused)
    }

    /// Queues that wait for each other in a circle, for ever: ports by their two ends, and priorities. Empty if there
    /// is no such circle.
    pub fn deadlock(&self) -> Vec<(String, String, u8)> {
        let circle = self.sim.0.fabric.lock().deadlock();
        let named = circle.into_iter().filter_map(|(port, priority)| {
            let (of, to) = self.name_of(port)?;
            Some((of, to, priority))
        });
        named.collect()
    }

    /// Writes everything that leaves by a port from now on to a pcapng file, pauses included, until
    /// [`stop_pcaps`](Self::stop_pcaps).
    ///
    /// # Errors
    /// The file's, or `EINVAL`: no cable connects these two.
    pub fn pcap(&self, of: &str, towards: &str, path: impl AsRef<Path>) -> Result<()> {
        let port = self.port(of, towards)?;
        let file = std::io::BufWriter::new(std::fs::File::create(path)?);
        let sink = Box::new(Pcap(Writer::new(file)?));
        self.sim.0.fabric.lock().capture_port(port, sink).map_err(refused)
    }

    /// Ends the captures of all ports and writes what is left of them.
    ///
    /// # Errors
    /// The files', also those of earlier packets.
    pub fn stop_pcaps(&self) -> Result<()> {
        Ok(self.sim.0.fabric.lock().stop_port_captures()?)
    }

    fn port(&self, of: &str, towards: &str) -> Result<PortId> {
        let host = |name: &str| self.hosts.get(name).map(|(id, _)| *id);
        let on = |host: &str, switch: &str| self.switch_of(host).is_some_and(|s| s == switch);
        let fabric = &self.sim.0.fabric;
        match (host(of), host(towards)) {
            (Some(id), None) if on(of, towards) => {
                return fabric.lock().port_of(id).map_err(refused);
            }
            (None, Some(id)) if on(towards, of) => {
                return fabric.lock().port_to(id).map_err(refused);
            }
            _ => {}
        }
        let (trunk, turned) = self.trunk(of, towards)?;
        let [there, back] = fabric.lock().ports_of(trunk).map_err(refused)?;
        Ok(if turned { back } else { there })
    }

    fn switch_of(&self, host: &str) -> Option<String> {
        let (id, _) = self.hosts.get(host)?;
        let at = self.sim.0.fabric.lock().switch_of(*id).ok()?;
        self.switches.iter().find(|&(_, &s)| s == at).map(|(name, _)| name.clone())
    }

    fn trunk(&self, a: &str, b: &str) -> Result<(TrunkId, bool)> {
        let key = |x: &str, y: &str| (x.to_owned(), y.to_owned());
        let there = self.trunks.get(&key(a, b)).map(|&id| (id, false));
        let back = || self.trunks.get(&key(b, a)).map(|&id| (id, true));
        there.or_else(back).ok_or_else(|| invalid(format!("no cable connects {a} and {b}")))
    }

    fn name_of(&self, port: PortId) -> Option<(String, String)> {
        let known = self.ports().into_iter().map(|(of, to, _)| (of, to));
        known.into_iter().find(|(of, to)| self.port(of, to).is_ok_and(|p| p == port))
    }

    fn new_name(&self, name: &str) -> Result<()> {
        if self.switches.contains_key(name) || self.hosts.contains_key(name) {
            return Err(invalid(format!("{name} is there twice")));
        }
        Ok(())
    }

    fn switch_id(&self, name: &str) -> Result<SwitchId> {
        let known = self.switches.get(name).copied();
        known.ok_or_else(|| invalid(format!("there is no switch {name}")))
    }

    fn host_id(&self, name: &str) -> Result<HostId> {
        let known = self.hosts.get(name).map(|(id, _)| *id);
        known.ok_or_else(|| invalid(format!("there is no host {name}")))
    }

    /// Says which hosts and switches are meant by numbers.
    fn with_names(&self, message: &str) -> String {
        let mut text = message.to_owned();
        for (name, (id, _)) in &self.hosts {
            text = replace_word(&text, &format!("host {}", id.0), &format!("host {name}"));
        }
        for (name, id) in &self.switches {
            text = replace_word(&text, &format!("switch {}", id.0), &format!("switch {name}"));
        }
        text
    }
}

/// Replaces a phrase that ends with a number, where the number ends there too.
fn replace_word(text: &str, from: &str, to: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(from) {
        let (before, found) = rest.split_at(at);
        let behind = &found[from.len()..];
        out.push_str(before);
        let is_word = !behind.starts_with(|c: char| c.is_ascii_digit());
        out.push_str(if is_word { to } else { from });
        rest = behind;
    }
    out + rest
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network")
            .field("sim", &self.sim)
            .field("switches", &self.switches.keys())
            .field("hosts", &self.hosts.keys())
            .finish_non_exhaustive()
    }
}
