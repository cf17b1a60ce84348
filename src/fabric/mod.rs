//! The simulated network: hosts on one switch, in virtual time.
//!
//! ```text
//!            uplink: queue, line, delay                downlink: faults, queue, line, delay
//!   host a ────────────────────────────► switch ────────────────────────────► host b
//!                                     route, tap, rules
//! ```
//!
//! A packet waits for the sender's line, occupies it, and is at the switch when its last bit is. The switch
//! stores and forwards: it finds the receiver, asks the tap and the [`Rule`]s, lets the receiver's [`Link`]
//! do its worst, and puts the packet into the queue of that link, or drops it if the queue is full. Then the
//! same again, down to the host's inbox.
//!
//! *Owns* all packets under way, all links, and the virtual time of the network. It knows datagrams and no
//! queue pairs; it reads opcodes only to tell kinds of packets apart.
//!
//! *Rules.* No I/O, no clock, no thread: [`Fabric::send`] takes packets in, [`Fabric::next_event`] says when
//! something happens, [`Fabric::advance`] makes it happen, [`Fabric::take_woken`] says who has something and
//! [`Fabric::recv`] hands it out. Events of one moment happen in the order in which they were caused. The
//! same calls after the same seed give the same packets at the same nanoseconds, in any process, on any
//! machine: [`Fabric::trace_hash`] proves it. Every random choice of every link has a stream of its own, so
//! that a host more or less changes nothing for the others. Every packet that does not arrive is counted by
//! its reason. In steady state nothing is allocated.
//!
//! ```
//! use softroce::internals::fabric::{Fabric, Link};
//! use softroce::net::{Path, Transmit};
//! use softroce::time::Instant;
//!
//! let mut net = Fabric::new(1);
//! let [a, b] = [net.add_host(Link::default())?, net.add_host(Link::default())?];
//! net.attach(a, [10, 0, 0, 1].into())?;
//! net.attach(b, [10, 0, 0, 2].into())?;
//!
//! let path = Path {
//!     src: [10, 0, 0, 1].into(),
//!     dst: [10, 0, 0, 2].into(),
//!     src_port: 0xc000,
//!     traffic_class: 2,
//!     hop_limit: 64,
//!     flow_label: 0,
//!     scope_id: 0,
//! };
//! let datagram = [0x64; 20];
//! let t = Transmit { path, ident: 7, len: 20, segment_size: None };
//! net.send(Instant::ZERO, a, &t, &datagram);
//! while let Some(at) = net.next_event() {
//!     net.advance(at);
//! }
//! let mut buf = [0; 64];
//! let (meta, len) = net.recv(b, &mut buf).expect("arrived");
//! assert_eq!((&buf[..len], meta.path, meta.ident), (&datagram[..], path, Some(7)));
//! // Twice 86 bytes at 100 Gbit/s, and twice 2 us.
//! assert_eq!(net.now(), Instant::from_nanos(4014));
//! # Ok::<(), softroce::internals::fabric::FabricError>(())
//! ```

mod counters;
mod error;
mod event;
mod fault;
mod flow;
mod link;
mod moment;
mod pause;
mod port;
mod ports;
mod queue;
mod receiver;
mod route;
mod store;
mod switch;
mod tap;
#[cfg(test)]
mod tests;
mod topology;
mod trace;

use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::{fmt, io};

use parking_lot::Mutex;

use crate::net::{RxMeta, Transmit};
use crate::seed::Seeds;
use crate::time::{Duration, Instant};

pub use counters::HostCounters;
pub use error::FabricError;
pub use fault::{Action, Class, Rule, RuleHits, RuleId, When};
pub use link::Link;
pub use port::FabricPort;
pub use ports::{PortCounters, PortId};
pub use receiver::Receiver;
pub use store::Notes;
pub use switch::{
    MarkAt, Marking, PRIORITIES, Pfc, PriorityMap, Scheduler, SwitchConfig, SwitchId, Threshold,
    Trust, Watchdog, Xon,
};
pub use tap::{Packet, Verdict};
pub use topology::{Cabling, TrunkId};
pub use trace::{PacketSink, Passage, Watcher};

use event::EventQueue;
use fault::Rules;
use moment::Moment;
use pause::PauseFrame;
use ports::PortTap;
use queue::Pipe;
use receiver::Inflow;
use store::{PacketId, Store};
use switch::Switch;
use trace::Trace;

/// Names a host of a fabric: hosts are numbered from 0 in the order in which they were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u32);

impl HostId {
    /// As an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The two ways of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the host to the switch.
    Up,
    /// From the switch to the host.
    Down,
}

/// A fabric that several users share: the ports of its hosts, and whoever moves its time.
pub type SharedFabric = Arc<Mutex<Fabric>>;

/// What happens at some moment.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The last bit of a packet reaches the end of its pipe.
    Arrive(PacketId),
    /// A packet that was held back goes on into its pipe.
    Enter(PacketId),
    /// The line of a pipe is free for the next packet that waits.
    Free(u32),
    /// A pause reaches the end of a pipe that had been cut so often when it left.
    Pause(u32, PauseFrame, u32),
    /// A pause of this priority may be over.
    Resume(u32, u8),
    /// A pause that was asked for may have to be asked for again.
    Refresh(u32, u8),
    /// The watchdog looks at a queue.
    Watch(u32, u8),
    /// A queue that was given up may be used again.
    Restore(u32, u8),
    /// A slow host has taken in the next packet.
    Drained(u32),
}

/// Is shown each packet at the switch, and decides about it.
pub type Tap = Box<dyn FnMut(&mut Packet) -> Verdict + Send>;

/// A tap that looks at a packet while the network is not locked. Dropped, it has decided.
struct Asked<'a> {
    fabric: &'a Mutex<Fabric>,
    id: PacketId,
    host: usize,
    verdict: Verdict,
    /// The tap, the copy that it works on, and whose turn it was.
    tap: Option<(Tap, Packet, u64)>,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let mut fabric = self.fabric.lock();
        let gone = self.tap.take().and_then(|(tap, copy, turn)| fabric.shown(tap, copy, turn));
        fabric.decide(self.id, self.host, self.verdict);
        drop(fabric);
        // What it held may lead back to the network.
        drop(gone);
    }
}

/// A network of hosts on one switch, or on several.
pub struct Fabric {
    now: Instant,
    /// The same to the picosecond, and not rounded up to the end of the nanosecond.
    moment: Moment,
    seeds: Seeds,
    events: EventQueue<Event>,
    store: Store,
    hosts: Vec<Host>,
    /// The first is for whoever speaks of hosts and no switches: it has room for everything.
    switches: Vec<Switch>,
    /// Two for each cable: away from the host (between switches: from the first), then back.
    pipes: Vec<Pipe>,
    /// Switches or cables were added since ways were last looked for.
    stale: bool,
    /// Paths that were chosen by hand: the pipe out of a switch, for packets from one host to another.
    pins: BTreeMap<(usize, usize, usize), usize>,
    /// Captures of ports.
    port_taps: Vec<PortTap>,
    /// By address, IPv4 as IPv4-mapped.
    routes: BTreeMap<u128, usize>,
    /// Members of multicast groups, in ascending order. None is empty.
    groups: BTreeMap<u128, Vec<usize>>,
    rules: Rules,
    tap: Option<Tap>,
    /// Changes with each tap that is set or removed: one that runs meanwhile is not put back.
    tap_turn: u64,
    /// The copy that a tap works on.
    tapped: Packet,
    /// Packets at the switch that the tap has not seen yet, and where they go.
    untold: VecDeque<(PacketId, usize)>,
    trace: Trace,
    woken: Vec<HostId>,
    /// Packets in inboxes: arrived, not yet received.
    inboxed: usize,
}

#[derive(Debug)]
struct Host {
    /// The pipe away from it; the one to it is the next.
    cable: usize,
    /// Which of its packets belongs to which priority; `None`: all to priority 0.
    priorities: Option<PriorityMap>,
    /// The priority that it writes into the VLAN tags of its packets; `None`: they have no tag.
    tag: Option<PriorityMap>,
    /// How it takes packets in, if not at once.
    inflow: Option<Inflow>,
    /// Shared with its port, which is asked while the fabric is locked.
    up: Arc<AtomicBool>,
    /// The smaller MTU of both ways.
    mtu: Arc<AtomicU32>,
    addresses: Vec<IpAddr>,
    inbox: VecDeque<PacketId>,
    counters: HostCounters,
    is_woken: bool,
    wants_room: bool,
}

impl Fabric {
    /// An empty network. Everything that is random about it follows from `seed`.
    pub fn new(seed: u64) -> Self {
        Self::from_seeds(Seeds::new(seed))
    }

    /// As [`new`](Self::new), below a node of a larger seed tree.
    pub fn from_seeds(seeds: Seeds) -> Self {
        Self {
            now: Instant::ZERO,
            moment: Moment::ZERO,
            seeds,
            events: EventQueue::new(),
            store: Store::new(),
            hosts: Vec::new(),
            switches: vec![Switch::new(None, 0)],
            pipes: Vec::new(),
            stale: false,
            pins: BTreeMap::new(),
            port_taps: Vec::new(),
            routes: BTreeMap::new(),
            groups: BTreeMap::new(),
            rules: Rules::new(),
            tap: None,
            tap_turn: 0,
            tapped: Packet::empty(),
            untold: VecDeque::new(),
            trace: Trace::new(),
            woken: Vec::new(),
            inboxed: 0,
        }
    }

    /// Gives a host an address; again, if it has it already. A host may have many.
    ///
    /// # Errors
    /// If another host has it, or no single host can have it.
    pub fn attach(&mut self, host: HostId, addr: IpAddr) -> Result<(), FabricError> {
        let index = self.index(host)?;
        let plain = addr.to_canonical();
        let is_broadcast = matches!(plain, IpAddr::V4(v4) if v4.is_broadcast());
        if plain.is_unspecified() || plain.is_multicast() || is_broadcast {
            return Err(FabricError::NotUnicast(addr));
        }
        match self.routes.entry(as_v6(addr)) {
            Entry::Vacant(route) => {
                route.insert(index);
                self.hosts[index].addresses.push(addr);
                Ok(())
            }
            Entry::Occupied(route) if *route.get() == index => Ok(()),
            Entry::Occupied(route) => {
                Err(FabricError::AddressInUse { addr, owner: id(*route.get()) })
            }
        }
    }

    /// Lets a host receive what is sent to a multicast group, what it sends there itself included; again, if it
    /// does already.
    ///
    /// # Errors
    /// If there is no such host, or the address is no multicast group.
    pub fn join(&mut self, host: HostId, group: IpAddr) -> Result<(), FabricError> {
        let index = self.index(host)?;
        if !group.to_canonical().is_multicast() {
            return Err(FabricError::NotMulticast(group));
        }
        let members = self.groups.entry(as_v6(group)).or_default();
        // In the order of hosts, whoever came first.
        if let Err(at) = members.binary_search(&index) {
            members.insert(at, index);
        }
        Ok(())
    }

    /// Ends what [`join`](Self::join) began, if anything; packets that the switch has passed on arrive.
    ///
    /// # Errors
    /// If there is no such host.
    pub fn leave(&mut self, host: HostId, group: IpAddr) -> Result<(), FabricError> {
        let index = self.index(host)?;
        if let Entry::Occupied(mut members) = self.groups.entry(as_v6(group)) {
            members.get_mut().retain(|&member| member != index);
            if members.get().is_empty() {
                members.remove();
            }
        }
        Ok(())
    }

    /// The addresses of a host, in the order in which it got them.
    ///
    /// # Errors
    /// If there is no such host.
    pub fn addresses(&self, host: HostId) -> Result<&[IpAddr], FabricError> {
        Ok(&self.hosts[self.index(host)?].addresses)
    }

    /// Replaces a host's cable, for what goes onto it from now on. What its NIC may queue stays as it is.
    ///
    /// # Errors
    /// If there is no such host, or a field is out of range.
    pub fn set_link(&mut self, host: HostId, link: Link) -> Result<(), FabricError> {
        let queue = self.pipes[self.pipe_of(self.index(host)?, Direction::Up)].link.queue;
        self.set_direction(host, Direction::Down, link)?;
        self.set_direction(host, Direction::Up, Link { queue, ..link.uplink() })
    }

    /// Replaces one way of a host's cable. What is wrong with `link` then acts on that way: a way up that
    /// loses packets does so before the switch sees them. On the way up `queue` is what the host may have
    /// waiting before [`has_room`](Self::has_room) says no.
    ///
    /// # Errors
    /// If there is no such host, or a field is out of range.
    pub fn set_direction(
        &mut self,
        host: HostId,
        direction: Direction,
        link: Link,
    ) -> Result<(), FabricError> {
        link.check()?;
        let index = self.index(host)?;
        let pipe = self.pipe_of(index, direction);
        self.pipes[pipe].set_link(link);
        let mtu = |direction| self.pipes[self.pipe_of(index, direction)].link.mtu;
        let smaller = mtu(Direction::Up).min(mtu(Direction::Down));
        self.hosts[index].mtu.store(smaller, Ordering::Relaxed);
        Ok(())
    }

    /// One way of a host's cable as it is.
    ///
    /// # Errors
    /// If there is no such host.
    pub fn link(&self, host: HostId, direction: Direction) -> Result<Link, FabricError> {
        Ok(self.pipes[self.pipe_of(self.index(host)?, direction)].link)
    }

    /// Plugs a host's cable in or out. What is on it or waits for it when it goes down is dropped, and so
    /// is all that comes while it is down.
    ///
    /// # Errors
    /// If there is no such host.
    pub fn set_up(&mut self, host: HostId, up: bool) -> Result<(), FabricError> {
        let index = self.index(host)?;
        if self.hosts[index].up.swap(up, Ordering::Relaxed) && !up {
            for direction in [Direction::Up, Direction::Down] {
                self.cut(self.pipe_of(index, direction));
            }
            self.offer_room(index);
        }
        Ok(())
    }

    /// A host loses its power: its cable goes dead, it leaves its multicast groups, and what it has not yet taken
    /// from its inbox is gone.
    ///
    /// # Errors
    /// If there is no such host.
    pub fn power_off(&mut self, host: HostId) -> Result<(), FabricError> {
        self.set_up(host, false)?;
        let index = host.index();
        self.forget_inflow(index);
        while let Some(id) = self.hosts[index].inbox.pop_front() {
            self.store.remove(id);
            self.inboxed -= 1;
        }
        self.groups.values_mut().for_each(|members| members.retain(|&member| member != index));
        self.groups.retain(|_, members| !members.is_empty());
        Ok(())
    }

    /// Whether a host's cable is plugged in.
    ///
    /// # Errors
    /// If there is no such host.
    pub fn is_up(&self, host: HostId) -> Result<bool, FabricError> {
        Ok(self.hosts[self.index(host)?].up.load(Ordering::Relaxed))
    }

    /// The same, to be asked without the fabric.
    fn mtu_of(&self, host: HostId) -> Result<Arc<AtomicU32>, FabricError> {
        Ok(Arc::clone(&self.hosts[self.index(host)?].mtu))
    }

    fn up_flag(&self, host: HostId) -> Result<Arc<AtomicBool>, FabricError> {
        Ok(Arc::clone(&self.hosts[self.index(host)?].up))
    }

    /// How many hosts there are.
    pub fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// Sends from a host: each segment of `bytes` as a packet of its own, segment `k` over IPv4 with
    /// identification `t.ident + k`. Moves the time of the network to `now` if it lies behind; at the network's own
    /// time nothing else happens, so a host may send while a tap looks at a packet.
    ///
    /// Never refuses: see [`has_room`](Self::has_room).
    ///
    /// # Panics
    /// If `host` is not of this fabric.
    pub fn send(&mut self, now: Instant, host: HostId, t: &Transmit, bytes: &[u8]) {
        if now > self.now {
            self.advance(now);
        }
        self.moment = self.moment.max(self.now.into());
        self.settle_routes();
        let index = host.index();
        let bytes = &bytes[..t.len.min(bytes.len())];
        let size = t.segment_size.map_or(bytes.len(), usize::from).max(1);
        // A datagram without a byte is one, too.
        let single = (bytes.is_empty() && t.segment_size.is_none()).then_some(bytes);
        let mut ident = t.ident;
        for datagram in bytes.chunks(size).chain(single) {
            let counters = &mut self.hosts[index].counters;
            counters.sent += 1;
            counters.sent_bytes += datagram.len() as u64;
            let id = self.store.insert(index, t.path, ident, datagram);
            if let Some(tag) = &self.hosts[index].tag {
                self.store.get_mut(id).pcp = Some(tag.of(t.path.traffic_class));
            }
            self.offer(self.pipe_of(index, Direction::Up), id, Duration::ZERO);
            if t.path.dst.is_ipv4() {
                ident = ident.wrapping_add(1);
            }
        }
    }

    /// When something happens next; `None`: never, unless somebody sends.
    pub fn next_event(&self) -> Option<Instant> {
        self.events.next_at()
    }

    /// Lets everything happen up to `to` and at `to`.
    pub fn advance(&mut self, to: Instant) {
        while let Some((id, host)) = self.advance_to_tap(to) {
            let verdict = match self.show(id, host) {
                Some((mut tap, mut copy, turn)) => {
                    let verdict = tap(&mut copy);
                    self.shown(tap, copy, turn);
                    verdict
                }
                None => Verdict::Pass,
            };
            self.decide(id, host, verdict);
        }
    }

    /// The same for a shared network, which is not locked while the tap runs: what a tap calls, and what goes with
    /// the things that it drops, may come back here. It must not move time.
    pub fn advance_shared(fabric: &Mutex<Self>, to: Instant) {
        loop {
            let mut locked = fabric.lock();
            let Some((id, host)) = locked.advance_to_tap(to) else { return };
            // Also if the tap panics, the packet goes on.
            let mut asked = Asked { fabric, id, host, verdict: Verdict::Pass, tap: None };
            asked.tap = locked.show(id, host);
            drop(locked);
            if let Some((tap, copy, _)) = &mut asked.tap {
                asked.verdict = tap(copy);
            }
        }
    }

    /// Lets everything happen at the next moment at which something does, and so on until a host is woken; nothing
    /// beyond `to`, and nothing at `before` or later. Says what time it is then. Only without a tap: whoever looks at
    /// packets wants the time of each.
    pub(crate) fn advance_until_woken(&mut self, to: Instant, before: Instant) -> Instant {
        while let Some(at) = self.events.next_at() {
            let is_enough = at > self.now && !self.woken.is_empty();
            if at > to || at >= before || is_enough {
                break;
            }
            self.advance_to_tap(at);
        }
        self.now
    }

    /// Whether somebody looks at each packet.
    pub(crate) fn is_tapped(&self) -> bool {
        self.tap.is_some() || !self.untold.is_empty()
    }

    /// Lets everything happen up to `to` and at `to`, or until a packet is at the switch that the tap must see: says
    /// which, and to which host it goes.
    fn advance_to_tap(&mut self, to: Instant) -> Option<(PacketId, usize)> {
        self.settle_routes();
        loop {
            if let Some(untold) = self.untold.pop_front() {
                return Some(untold);
            }
            let Some((at, event)) = self.events.pop_until(to) else { break };
            self.moment = self.moment.max(at);
            self.now = self.now.max(at.ceil());
            match event {
                Event::Arrive(id) => self.arrive(id),
                Event::Enter(id) => self.enter(self.store.get(id).pipe, id),
                Event::Free(pipe) => self.line_is_free(pipe as usize),
                Event::Pause(pipe, frame, cut) => self.paused(pipe as usize, frame, cut),
                Event::Resume(pipe, priority) => self.pause_is_over(pipe as usize, priority),
                Event::Refresh(pipe, priority) => self.refresh(pipe as usize, priority),
                Event::Watch(pipe, priority) => self.watch_queue(pipe as usize, priority),
                Event::Restore(pipe, priority) => self.restore_queue(pipe as usize, priority),
                Event::Drained(host) => self.drained(host as usize),
            }
        }
        self.now = self.now.max(to);
        self.moment = self.moment.max(to.into());
        None
    }

    /// How much has happened: packets that arrived somewhere or were held back, lines that got free, pauses.
    pub fn events(&self) -> u64 {
        self.events.happened()
    }

    /// The time of the network: up to it everything has happened.
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Appends the hosts, in ascending order, to which something came since the last call, or which got the
    /// room that they [asked for](Self::has_room).
    pub fn take_woken(&mut self, out: &mut Vec<HostId>) {
        self.woken.sort_unstable();
        for host in &self.woken {
            self.hosts[host.index()].is_woken = false;
        }
        out.append(&mut self.woken);
    }

    /// Datagrams in a host's inbox. A host is woken once for all that came: it receives until none is left,
    /// or looks here.
    ///
    /// # Panics
    /// If `host` is not of this fabric.
    pub fn inbox_len(&self, host: HostId) -> usize {
        self.hosts[host.index()].inbox.len()
    }

    /// Takes a datagram from a host's inbox, into the front of `buf`; `None` if nothing has arrived. One
    /// that does not fit is counted and skipped.
    ///
    /// # Panics
    /// If `host` is not of this fabric.
    pub fn recv(&mut self, host: HostId, buf: &mut [u8]) -> Option<(RxMeta, usize)> {
        loop {
            let id = self.hosts[host.index()].inbox.pop_front()?;
            let packet = self.store.get(id);
            let path = packet.path;
            let ident = Some(packet.ident);
            let len = packet.len();
            let fits = len <= buf.len();
            if fits {
                // What was not carried stays as it is in the buffer.
                buf[..packet.bytes.len()].copy_from_slice(&packet.bytes);
            }
            self.store.remove(id);
            self.inboxed -= 1;
            if fits {
                return Some((RxMeta { path, ident, df: Some(true), gro_index: 0 }, len));
            }
            self.hosts[host.index()].counters.truncated += 1;
        }
    }

    /// Shows each packet that reaches the switch and has a receiver to `tap`, in the order of the switch,
    /// before rules and faults. Replaces the tap that was there.
    pub fn tap(&mut self, tap: Tap) {
        self.set_tap(Some(tap));
    }

    /// Removes the tap. One that runs meanwhile has seen its last packet.
    pub fn untap(&mut self) {
        self.set_tap(None);
    }

    /// Gives back the tap that was there: dropping it may lead back here, so that is not done under a lock.
    pub(crate) fn set_tap(&mut self, tap: Option<Tap>) -> Option<Tap> {
        self.tap_turn += 1;
        std::mem::replace(&mut self.tap, tap)
    }

    /// Adds a rule, behind those that are there. Rules see what the tap passes.
    ///
    /// # Errors
    /// If its probability is none, or it counts from 0.
    pub fn add_rule(&mut self, rule: Rule) -> Result<RuleId, FabricError> {
        self.rules.add(rule, &self.seeds)
    }

    /// Removes a rule. Returns how often it applied; `None` if there is no such rule.
    pub fn remove_rule(&mut self, id: RuleId) -> Option<RuleHits> {
        self.rules.remove(id)
    }

    /// How often a rule applied; `None` if there is no such rule.
    pub fn rule_hits(&self, id: RuleId) -> Option<RuleHits> {
        self.rules.hits(id)
    }

    /// Gives a copy of each packet from now on to `sink`: as it leaves the switch towards its receiver, or
    /// as it is dropped.
    ///
    /// # Errors
    /// What went wrong with the capture that this one ends, if there was one. The new one runs regardless.
    pub fn start_capture(&mut self, sink: Box<dyn PacketSink + Send>) -> io::Result<()> {
        self.trace.start(sink)
    }

    /// Ends the capture.
    ///
    /// # Errors
    /// What the sink said, then or while packets came.
    pub fn stop_capture(&mut self) -> io::Result<()> {
        self.trace.stop()
    }

    /// Shows each packet from now on to `watcher`, when the switch has done with it: what a capture gets, too,
    /// and what became of it. Replaces the watcher that was there; `None`: nobody any more.
    pub fn watch(&mut self, watcher: Option<Watcher>) {
        self.trace.watch(watcher);
    }

    /// A digest of everything that crossed the network so far: times, hosts, addresses, bytes and what
    /// became of each packet. The same on every machine.
    pub const fn trace_hash(&self) -> u64 {
        self.trace.digest()
    }

    /// What a host and its cable have counted.
    ///
    /// # Panics
    /// If `host` is not of this fabric.
    pub fn counters(&self, host: HostId) -> HostCounters {
        self.hosts[host.index()].counters
    }

    /// The counters of all hosts together. Without packets under way,
    /// `sent + duplicated + replicated == delivered + dropped()`.
    pub fn totals(&self) -> HostCounters {
        let mut sum = HostCounters::default();
        for host in &self.hosts {
            sum += host.counters;
        }
        sum
    }

    /// Packets under way: sent, neither delivered to an inbox nor dropped.
    pub const fn in_flight(&self) -> usize {
        self.store.live() - self.inboxed
    }

    /// Frame bytes that wait at one end of a host's cable.
    ///
    /// # Errors
    /// If there is no such host.
    pub fn queued(&self, host: HostId, direction: Direction) -> Result<usize, FabricError> {
        Ok(self.pipes[self.pipe_of(self.index(host)?, direction)].queued())
    }

    /// Slots and bytes that the store of packets ever allocated.
    #[cfg(test)]
    fn footprint(&self) -> (usize, usize) {
        self.store.footprint()
    }

    /// One way of a host's cable.
    fn pipe_of(&self, host: usize, direction: Direction) -> usize {
        self.hosts[host].cable + usize::from(direction == Direction::Down)
    }

    fn index(&self, host: HostId) -> Result<usize, FabricError> {
        if host.index() < self.hosts.len() {
            Ok(host.index())
        } else {
            Err(FabricError::NoSuchHost(host))
        }
    }
}

impl fmt::Debug for Fabric {
    /// A snapshot: every host and its cable, what they have counted, and what is under way.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric")
            .field("now", &self.now)
            .field("next_event", &self.next_event())
            .field("in_flight", &self.in_flight())
            .field("trace_hash", &self.trace_hash())
            .field("tapped", &self.tap.is_some())
            .field("capturing", &self.trace.is_capturing())
            .field("rules", &self.rules)
            .field("hosts", &self.hosts)
            .field("pipes", &self.pipes)
            .finish_non_exhaustive()
    }
}

/// Removes its rule when it is dropped: for a fault that lasts as long as a phase of a test.
#[derive(Debug)]
#[must_use = "the rule goes when the guard is dropped"]
pub struct RuleGuard {
    fabric: SharedFabric,
    id: RuleId,
}

impl RuleGuard {
    /// Adds a rule for as long as the guard lives.
    ///
    /// # Errors
    /// As [`Fabric::add_rule`].
    pub fn new(fabric: &SharedFabric, rule: Rule) -> Result<Self, FabricError> {
        let id = fabric.lock().add_rule(rule)?;
        Ok(Self { fabric: Arc::clone(fabric), id })
    }

    /// How often the rule applied so far.
    pub fn hits(&self) -> RuleHits {
        self.fabric.lock().rule_hits(self.id).unwrap_or_default()
    }
}

impl Drop for RuleGuard {
    fn drop(&mut self) {
        self.fabric.lock().remove_rule(self.id);
    }
}

fn id(index: usize) -> HostId {
    HostId(u32::try_from(index).expect("memory ends before 2^32 hosts"))
}

/// An address as a number; IPv4 as IPv4-mapped IPv6.
fn as_v6(ip: IpAddr) -> u128 {
    let v6 = match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    v6.to_bits()
}
