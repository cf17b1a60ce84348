//! The network of a file: a shape, what its switches, hosts and cables are like, and those that differ.

use std::collections::{BTreeMap, BTreeSet};

use softroce::prelude::*;
use softroce::sim::{
    Cable, HostConfig, Link, MarkAt, Marking, PRIORITIES, Payload, PriorityMap, Sim, SwitchConfig,
    Threshold, Topology, Trust, Watchdog, Xon,
};

use super::super::sizes::{Ip, frame};
use super::read::{Bad, Read, Section, Val};

/// DSCP of data where nothing else is said: the usual one of RoCE.
pub(super) const DSCP: u8 = 26;
/// What a packet has in front of its payload and behind it, at most, of what an MTU counts.
const HEADERS: u32 = 96;

/// A network, before it is built.
#[derive(Debug)]
pub(super) struct Plan {
    /// Line of the shape, for what is wrong with all of it.
    at: usize,
    pub(super) shape: String,
    pub(super) mtu: Mtu,
    switches: Vec<(String, usize, SwitchConfig)>,
    hosts: Vec<(String, usize, String, HostConfig)>,
    cables: Vec<(String, String, usize, Cable)>,
}

/// What the file says of the priorities of a host, where they are not those of its switch.
#[derive(Clone, Debug, Default)]
struct Own {
    /// DSCPs of other priorities.
    dscp: Vec<(u8, u8)>,
    /// It writes tags; DSCPs of other priorities there.
    pcp: Option<Vec<(u8, u8)>>,
}

impl Plan {
    pub(super) fn read(root: &Section<'_>) -> Read<Self> {
        let network = root.section("network")?;
        let mtu = network.or("mtu", path_mtu, Mtu::B1024)?;
        let link = link(&network, &Link { bits_per_s: 40_000_000_000, ..usual_link() })?;
        let trunk = root.section("trunks")?;
        let cable = Cable { link: self::link(&trunk, &link)? };
        trunk.finish()?;
        let switch = root.section("switch")?;
        let xon_offset = 2 * longest(mtu) as usize;
        let usual = SwitchConfig { xon_offset, ..SwitchConfig::default() };
        let (at, config) = (switch.at, switch_config(&switch, &usual, mtu)?);
        switch.finish()?;
        let section = root.section("host")?;
        let mut host = HostConfig { payload: Payload::Elided, ..HostConfig::gbits(1).exact() };
        host.link = link;
        let mut own = Own::default();
        let host = host_config(&section, &host, &mut own)?;
        section.finish()?;
        let (shape, topology) = shape(&network, &config, &host, cable)?;
        let here = network.at;
        network.finish()?;

        let switches = topology.switches().map(|name| (name.to_owned(), at, config.clone()));
        let hosts = topology
            .hosts()
            .map(|(name, on, config)| (name.to_owned(), here, on.to_owned(), config.clone()));
        let cables = topology.cables().map(|(a, b, c)| (a.to_owned(), b.to_owned(), here, *c));
        let mut plan = Self {
            at: here,
            shape,
            mtu,
            switches: switches.collect(),
            hosts: hosts.collect(),
            cables: cables.collect(),
        };
        plan.read_switches(root, &config)?;
        plan.read_hosts(root, &host, &own)?;
        plan.read_links(root, &cable.link)?;
        plan.check()?;
        Ok(plan)
    }

    fn read_switches(&mut self, root: &Section<'_>, usual: &SwitchConfig) -> Read<()> {
        let mut seen = BTreeSet::new();
        for section in root.sections("switches")? {
            let name = section.need("name")?;
            let text = self.free(&name, |plan, text| plan.has_host(text))?;
            once(&mut seen, text.clone(), name.at, format_args!("switch {text}"))?;
            let known = self.switches.iter().position(|(n, ..)| *n == text);
            let base = known.map_or(usual, |i| &self.switches[i].2);
            let entry = (text, section.at, switch_config(&section, base, self.mtu)?);
            match known {
                Some(i) => self.switches[i] = entry,
                None => self.switches.push(entry),
            }
            section.finish()?;
        }
        Ok(())
    }

    fn read_hosts(&mut self, root: &Section<'_>, usual: &HostConfig, own: &Own) -> Read<()> {
        let mut seen = BTreeSet::new();
        let mut owns = BTreeMap::new();
        for section in root.sections("hosts")? {
            let name = section.need("name")?;
            let text = self.free(&name, |plan, text| plan.has_switch(text))?;
            once(&mut seen, text.clone(), name.at, format_args!("host {text}"))?;
            let known = self.hosts.iter().position(|(n, ..)| *n == text);
            let base = known.map_or(usual, |i| &self.hosts[i].3);
            let link = link(&section, &base.link)?;
            let mut own = own.clone();
            let config = host_config(&section, &HostConfig { link, ..base.clone() }, &mut own)?;
            owns.insert(text.clone(), own);
            let on = match (section.get("on"), known) {
                (None, Some(i)) => self.hosts[i].2.clone(),
                _ => {
                    let on = section.need("on")?;
                    if !self.has_switch(on.text()?) {
                        return Err(on.bad(format_args!("there is no switch {}", on.text()?)));
                    }
                    on.name()?
                }
            };
            let entry = (text, section.at, on, config);
            match known {
                Some(i) => self.hosts[i] = entry,
                None => self.hosts.push(entry),
            }
            section.finish()?;
        }
        for (name, _, on, config) in &mut self.hosts {
            let of_switch =
                self.switches.iter().find(|(n, ..)| n == on).map(|(.., c)| c.priorities);
            let own = owns.get(name).unwrap_or(own);
            config.priorities = mapped(of_switch.unwrap_or_default(), &own.dscp);
            config.tag = own.pcp.as_ref().map(|others| mapped(config.priorities, others));
        }
        Ok(())
    }

    fn read_links(&mut self, root: &Section<'_>, usual: &Link) -> Read<()> {
        let mut seen = BTreeSet::new();
        for section in root.sections("links")? {
            let mut ends = Vec::new();
            for key in ["a", "b"] {
                let end = section.need(key)?;
                let name = end.text()?;
                if self.has_host(name) {
                    return Err(end.bad(format_args!(
                        "{name} is a host: what its cable is like stands in [[hosts]]"
                    )));
                }
                if !self.has_switch(name) {
                    return Err(end.bad(format_args!("there is no switch {name}")));
                }
                ends.push(name.to_owned());
            }
            if ends[0] == ends[1] {
                return Err(Bad::new(section.at, "a cable from a switch to itself"));
            }
            let mut pair = ends.clone();
            pair.sort_unstable();
            once(&mut seen, pair, section.at, format_args!("cable {} - {}", ends[0], ends[1]))?;
            let joins =
                |a: &str, b: &str| (a == ends[0] && b == ends[1]) || (a == ends[1] && b == ends[0]);
            let known = self.cables.iter().position(|(a, b, ..)| joins(a, b));
            let base = known.map_or(*usual, |i| self.cables[i].3.link);
            let cable = Cable { link: link(&section, &base)? };
            match known {
                Some(i) => (self.cables[i].2, self.cables[i].3) = (section.at, cable),
                None => {
                    self.cables.push((ends[0].clone(), ends[1].clone(), section.at, cable));
                }
            }
            section.finish()?;
        }
        Ok(())
    }

    /// A name that nothing of the other kind has.
    fn free(&self, name: &Val<'_>, taken: impl Fn(&Self, &str) -> bool) -> Read<String> {
        let text = name.name()?;
        if taken(self, &text) {
            return Err(name.bad(format_args!("{text} is something else already")));
        }
        Ok(text)
    }

    pub(super) fn has_host(&self, name: &str) -> bool {
        self.hosts.iter().any(|(n, ..)| n == name)
    }

    pub(super) fn has_switch(&self, name: &str) -> bool {
        self.switches.iter().any(|(n, ..)| n == name)
    }

    pub(super) fn hosts(&self) -> impl Iterator<Item = (&str, &str, &HostConfig)> {
        self.hosts.iter().map(|(name, _, on, config)| (name.as_str(), on.as_str(), config))
    }

    pub(super) fn switches(&self) -> impl Iterator<Item = (&str, &SwitchConfig)> {
        self.switches.iter().map(|(name, _, config)| (name.as_str(), config))
    }

    pub(super) fn cables(&self) -> impl Iterator<Item = (&str, &str, &Cable)> {
        self.cables.iter().map(|(a, b, _, cable)| (a.as_str(), b.as_str(), cable))
    }

    pub(super) fn host(&self, name: &str) -> Option<&HostConfig> {
        self.hosts.iter().find(|(n, ..)| n == name).map(|(.., config)| config)
    }

    /// Whether a cable connects these two.
    pub(super) fn joined(&self, a: &str, b: &str) -> bool {
        let on = |host: &str, switch: &str| {
            self.hosts.iter().any(|(n, _, on, _)| n == host && on == switch)
        };
        let trunk = |a: &str, b: &str| self.cables.iter().any(|(x, y, ..)| x == a && y == b);
        on(a, b) || on(b, a) || trunk(a, b) || trunk(b, a)
    }

    /// The smallest MTU of all cables.
    fn least_mtu(&self) -> u32 {
        let hosts = self.hosts.iter().map(|(.., h)| h.link.mtu);
        hosts.chain(self.cables.iter().map(|(.., c)| c.link.mtu)).min().unwrap_or(u32::MAX)
    }

    /// Whether packets of a flow fit through all cables, and there is a way for them.
    pub(super) fn check_flow(&self, at: usize, from: &str, to: &str, mtu: Mtu) -> Read<()> {
        let (least, needs) = (self.least_mtu(), payload(mtu) + HEADERS);
        if least < needs {
            return Err(Bad::new(
                at,
                format_args!(
                    "packets of path MTU {} need cables with an MTU of {needs}; one has {least}",
                    mtu.bytes()
                ),
            ));
        }
        let on = |host: &str| self.hosts.iter().find(|(n, ..)| n == host).map(|(.., on, _)| on);
        let (Some(first), Some(last)) = (on(from), on(to)) else { return Ok(()) };
        if self.distances([first.as_str()]).contains_key(last.as_str()) {
            return Ok(());
        }
        Err(Bad::new(at, format_args!("there is no way from {from} to {to}")))
    }

    /// How many cables each switch is from the nearest of some.
    fn distances<'a>(
        &'a self,
        from: impl IntoIterator<Item = &'a str>,
    ) -> BTreeMap<&'a str, usize> {
        let mut known: BTreeMap<&str, usize> = from.into_iter().map(|name| (name, 0)).collect();
        for distance in 1..=self.switches.len() {
            let next: Vec<&str> = self
                .cables
                .iter()
                .flat_map(|(a, b, ..)| [(a, b), (b, a)])
                .filter(|(x, y)| {
                    known.get(x.as_str()) == Some(&(distance - 1))
                        && !known.contains_key(y.as_str())
                })
                .map(|(_, y)| y.as_str())
                .collect();
            if next.is_empty() {
                break;
            }
            known.extend(next.into_iter().map(|name| (name, distance)));
        }
        known
    }

    /// The DSCP by which all switches that may lie on the way put a packet into a priority.
    pub(super) fn dscp_of(&self, from: &str, to: &str, priority: u8) -> Option<u8> {
        let host = |name: &str| self.hosts.iter().find(|(n, ..)| n == name);
        let (Some((_, _, first, sender)), Some((_, _, last, _))) = (host(from), host(to)) else {
            return None;
        };
        let [there, back] = [first, last].map(|name| self.distances([name.as_str()]));
        let whole = there.get(last.as_str())?;
        let is_between = |name: &str| {
            there.get(name).zip(back.get(name)).is_some_and(|(there, back)| there + back == *whole)
        };
        let between: Vec<_> =
            self.switches.iter().filter(|(name, ..)| is_between(name)).map(|(.., c)| c).collect();
        let is_it = |dscp: &u8| {
            let of = |config: &SwitchConfig| match config.trust {
                Trust::Dscp => config.priorities.of(dscp << 2),
                Trust::Pcp => sender.tag.map_or(0, |tag| tag.of(dscp << 2)),
            };
            between.iter().all(|config| of(config) == priority)
        };
        [DSCP].into_iter().chain(0..64).find(is_it)
    }

    /// Whether each part makes sense, with the ports that it has.
    fn check(&self) -> Read<()> {
        if self.hosts.len() < 2 {
            return Err(Bad::new(self.at, "a network has at least two hosts"));
        }
        for (name, at, config) in &self.switches {
            let hosts = self.hosts.iter().filter(|(_, _, on, _)| on == name).count();
            let trunks = self.cables.iter().filter(|(a, b, ..)| a == name || b == name).count();
            let said =
                |e: &dyn std::fmt::Display| Bad::new(*at, format_args!("switch {name}: {e}"));
            config.check(hosts + trunks).map_err(|e| said(&e))?;
            let longest = longest(self.mtu) as usize;
            if config.buffer < longest {
                return Err(said(&format_args!(
                    "a buffer of {} bytes holds no packet",
                    config.buffer
                )));
            }
            let untagged = self.hosts.iter().find(|(.., h)| h.tag.is_none());
            if let (Trust::Pcp, Some((host, ..))) = (config.trust, untagged) {
                return Err(said(&format_args!(
                    "it trusts the priority in tags, and host {host} writes none: give it `pcp`"
                )));
            }
        }
        for (name, at, _, config) in &self.hosts {
            let said = |e: &dyn std::fmt::Display| Bad::new(*at, format_args!("host {name}: {e}"));
            config.link.check().map_err(|e| said(&e))?;
        }
        for (a, b, at, cable) in &self.cables {
            let said = |e| Bad::new(*at, format_args!("cable {a} - {b}: {e}"));
            cable.link.check().map_err(said)?;
        }
        // What only the whole can tell: who does not reach whom.
        self.topology().build_on(Sim::exact(1)).map(drop).map_err(|e| Bad::new(self.at, e))
    }

    /// The network, to be built.
    pub(super) fn topology(&self) -> Topology {
        let mut t = Topology::new();
        for (name, _, config) in &self.switches {
            t.switch(name, config.clone());
        }
        for (a, b, _, cable) in &self.cables {
            t.cable(a, b, *cable);
        }
        for (name, _, on, config) in &self.hosts {
            t.host(name, on, config.clone());
        }
        t
    }

    /// How far each switch is from the nearest host.
    pub(super) fn heights(&self) -> BTreeMap<&str, usize> {
        self.distances(self.hosts.iter().map(|(_, _, on, _)| on.as_str()))
    }
}

/// Something that a file says once.
fn once<T: Ord>(
    seen: &mut BTreeSet<T>,
    key: T,
    at: usize,
    what: impl std::fmt::Display,
) -> Read<()> {
    if seen.insert(key) { Ok(()) } else { Err(Bad::new(at, format_args!("{what} is there twice"))) }
}

fn usual_link() -> Link {
    Link { delay: Duration::from_micros(1), ..Link::default() }
}

fn payload(mtu: Mtu) -> u32 {
    u32::try_from(mtu.bytes()).unwrap_or(u32::MAX)
}

/// Frame bytes of a full packet.
pub(super) fn longest(mtu: Mtu) -> u32 {
    frame(Ip::V4, 0, payload(mtu))
}

/// A path MTU.
pub(super) fn path_mtu(value: &Val<'_>) -> Read<Mtu> {
    Ok(match value.whole()? {
        256 => Mtu::B256,
        512 => Mtu::B512,
        1024 => Mtu::B1024,
        2048 => Mtu::B2048,
        4096 => Mtu::B4096,
        other => {
            return Err(value.bad(format_args!(
                "{other} is no path MTU; there are: 256, 512, 1024, 2048, 4096"
            )));
        }
    })
}

/// What a section says of a cable.
fn link(section: &Section<'_>, base: &Link) -> Read<Link> {
    let mut link = *base;
    link.bits_per_s = section.or("rate", Val::some_rate, link.bits_per_s)?;
    link.delay = section.or("delay", Val::time, link.delay)?;
    link.loss = section.or("loss", Val::chance, link.loss)?;
    if let Some(mtu) = section.get("link_mtu") {
        link.mtu = u32::try_from(mtu.within(352, 65_535)?).unwrap_or(u32::MAX);
    }
    Ok(link)
}

/// A named shape, and what it is made of.
fn shape(
    network: &Section<'_>,
    config: &SwitchConfig,
    host: &HostConfig,
    cable: Cable,
) -> Read<(String, Topology)> {
    let shape = network.need("shape")?;
    let config = || config.clone();
    let many = |key: &'static str, least: u64, most: u64| {
        let many = network.need(key)?.within(least, most)?;
        Ok(usize::try_from(many).unwrap_or(usize::MAX))
    };
    let topology = match shape.text()? {
        "pair" => Topology::pair(config(), host),
        "star" => Topology::star(many("hosts", 2, 1024)?, config(), host),
        "dumbbell" => Topology::dumbbell(many("hosts", 1, 512)?, config(), host, cable),
        "parking-lot" => Topology::parking_lot(many("switches", 2, 64)?, config(), host, cable),
        "leaf-spine" => {
            let (leaves, spines) = (many("leaves", 1, 64)?, many("spines", 1, 64)?);
            Topology::leaf_spine(leaves, spines, many("hosts", 1, 64)?, config(), host, cable)
        }
        "fat-tree" => {
            let ports = network.need("ports")?;
            let k = ports.within(2, 16)?;
            if k % 2 == 1 {
                return Err(ports.bad("a fat tree has an even number of ports"));
            }
            Topology::fat_tree(usize::try_from(k).unwrap_or(2), config(), host, cable)
        }
        "explicit" => Topology::new(),
        other => {
            return Err(shape.bad(format_args!(
                "there is no {other:?}; there are: pair, star, dumbbell, parking-lot, leaf-spine, fat-tree, explicit"
            )));
        }
    };
    Ok((shape.text()?.to_owned(), topology))
}

/// Priorities as a list, to bits.
fn priorities(value: &Val<'_>) -> Read<u8> {
    let mut bits = 0;
    for one in value.list() {
        bits |= 1 << one.within(0, 7)?;
    }
    Ok(bits)
}

/// Priorities of DSCPs: `{ 26 = 3 }`.
fn priorities_of(value: &Val<'_>) -> Read<Vec<(u8, u8)>> {
    let one = |(key, priority): (String, Val<'_>)| match key.parse() {
        Ok(dscp) if dscp < 64 => Ok((dscp, u8::try_from(priority.within(0, 7)?).unwrap_or(7))),
        _ => Err(priority.bad("the key is not a DSCP, which is 0 to 63")),
    };
    value.entries()?.into_iter().map(one).collect()
}

/// A map, with some DSCPs in other priorities.
fn mapped(map: PriorityMap, others: &[(u8, u8)]) -> PriorityMap {
    // Both numbers are in range: whoever read them has looked.
    others.iter().fold(map, |map, &(dscp, to)| map.with(dscp, to).unwrap_or(map))
}

fn switch_config(section: &Section<'_>, base: &SwitchConfig, mtu: Mtu) -> Read<SwitchConfig> {
    let mut config = base.clone();
    let packet = longest(mtu);
    config.buffer = section.or("buffer", Val::bytes, config.buffer)?;
    config.headroom = section.or("headroom", Val::bytes, config.headroom)?;
    let (xoff, alpha) = (section.get("xoff"), section.get("alpha"));
    match (&xoff, &alpha) {
        (Some(_), Some(alpha)) => {
            return Err(
                alpha.bad("the threshold is `xoff` bytes or `alpha` times what is free, not both")
            );
        }
        (Some(xoff), None) => config.threshold = Threshold::Fixed(xoff.bytes()?),
        (None, Some(alpha)) => config.threshold = Threshold::Dynamic(alpha.number()?),
        (None, None) => {}
    }
    config.xon_offset = section.or("xon_offset", Val::bytes, config.xon_offset)?;
    let lossless = section.maybe("lossless", priorities)?;
    let quanta = section.maybe("pause_quanta", |v| v.within(1, 65_535))?;
    let xon =
        section.maybe("xon", |v| v.word(&[("explicit", Xon::Explicit), ("timer", Xon::Timer)]))?;
    let pfc = section.get("pfc");
    if let Some(value) = &pfc {
        config.pfc = value.flag()?.then(|| config.pfc.unwrap_or_default());
    }
    match &mut config.pfc {
        Some(pfc) => {
            pfc.priorities = lossless.unwrap_or(pfc.priorities);
            pfc.quanta = quanta.and_then(|q| u16::try_from(q).ok()).unwrap_or(pfc.quanta);
            pfc.xon = xon.unwrap_or(pfc.xon);
        }
        None if lossless.is_some() || quanta.is_some() || xon.is_some() => {
            let at = pfc.map_or(section.at, |v| v.at);
            return Err(Bad::new(
                at,
                "`lossless`, `pause_quanta` and `xon` are about pauses, and there is no `pfc`",
            ));
        }
        None => {}
    }
    config.ecn = marking(section, config.ecn)?;
    let others = section.or("dscp", priorities_of, Vec::new())?;
    config.priorities = mapped(config.priorities, &others);
    let trust = [("dscp", Trust::Dscp), ("pcp", Trust::Pcp)];
    config.trust = section.or("trust", |v| v.word(&trust), config.trust)?;
    config.scheduler.strict = section.or("strict", priorities, config.scheduler.strict)?;
    if let Some(weights) = section.get("weights") {
        let list = weights.list();
        if list.len() != PRIORITIES {
            return Err(weights.bad("a weight for each of the eight priorities"));
        }
        for (weight, quantum) in list.iter().zip(&mut config.scheduler.quantum) {
            let weight = u32::try_from(weight.within(0, 10_000)?).unwrap_or(0);
            *quantum = weight * packet;
        }
    }
    if let Some(detect) = section.maybe("watchdog", Val::time)? {
        config.watchdog = Some(Watchdog { detect, restore: detect });
    }
    Ok(config)
}

fn marking(section: &Section<'_>, base: Option<Marking>) -> Read<Option<Marking>> {
    let (kmin, kmax) = (section.get("kmin"), section.get("kmax"));
    let pmax = section.get("pmax");
    let at = section.maybe("mark_at", |v| {
        v.word(&[
            ("dequeue", MarkAt::Dequeue),
            ("after-dequeue", MarkAt::AfterDequeue),
            ("enqueue", MarkAt::Enqueue),
        ])
    })?;
    let marked = section.maybe("marked", priorities)?;
    let mut marking = match (&kmin, &kmax, base) {
        (_, _, Some(base)) => base,
        (Some(_), Some(_), None) => Marking::red(0, 0, 1.0),
        (None, None, None) => {
            let orphan = pmax.as_ref().map(|v| v.at);
            if orphan.is_some() || at.is_some() || marked.is_some() {
                let what = "`pmax`, `mark_at` and `marked` are about marks, which `kmin` and `kmax` switch on";
                return Err(Bad::new(orphan.unwrap_or(section.at), what));
            }
            return Ok(None);
        }
        (Some(one), None, None) | (None, Some(one), None) => {
            return Err(one.bad("`kmin` and `kmax` belong together"));
        }
    };
    for (value, to) in [(&kmin, &mut marking.kmin), (&kmax, &mut marking.kmax)] {
        if let Some(value) = value {
            *to = value.bytes()?;
        }
    }
    if let Some(value) = kmin.or(kmax).filter(|_| marking.kmin > marking.kmax) {
        return Err(value.bad(format_args!(
            "marking begins at {} bytes and is complete at {}: kmin must not be above kmax",
            marking.kmin, marking.kmax
        )));
    }
    if let Some(pmax) = pmax {
        marking.pmax = pmax.chance()?;
    }
    marking.at = at.unwrap_or(marking.at);
    marking.priorities = marked.unwrap_or(marking.priorities);
    Ok(Some(marking))
}

fn host_config(section: &Section<'_>, base: &HostConfig, own: &mut Own) -> Read<HostConfig> {
    let mut config = base.clone();
    // Who says nothing of it keeps the queue that he has.
    match section.maybe("exact", Val::flag)? {
        Some(true) => config = config.exact(),
        Some(false) => {
            let usual = HostConfig::gbits(1);
            (config.exact, config.nic_queue) = (false, usual.nic_queue);
        }
        None => {}
    }
    config.nic_queue = section.or("nic_queue", Val::bytes, config.nic_queue)?;
    if let Some(interval) = section.maybe("cnp_interval", Val::time)? {
        config.cnp_interval = Some(interval);
    }
    own.dscp.extend(section.or("dscp", priorities_of, Vec::new())?);
    if let Some(pcp) = section.maybe("pcp", priorities_of)? {
        own.pcp = Some(pcp);
    }
    Ok(config)
}
