//! What happens in a simulation, step by step: for explaining an operation, and for finding out why a test
//! fails.
//!
//! A [`Trace`] is a list of [`Record`]s in the order in which things happened, over all hosts and the network:
//! what NICs did ([`NicEvent`]), what became of each packet at the switch ([`Passage`]), and marks that the
//! program made itself. Times are virtual; several things may happen at one instant, and then their order in
//! the list is the order in which they happened.
//!
//! ```
//! use softroce::prelude::*;
//! use softroce::sim::trace::{NicEvent, Step};
//! use softroce::sim::{Link, Sim};
//!
//! # fn main() -> Result<()> {
//! let sim = Sim::new(1);
//! let [a, b] = sim.hosts(Link::default());
//! let (pa, cq) = (a.alloc_pd()?, a.create_cq(16)?);
//! let (pb, theirs) = (b.alloc_pd()?, b.create_cq(16)?);
//! let (x, y) = (pa.create_qp(QpType::Rc, &cq).build()?, pb.create_qp(QpType::Rc, &theirs).build()?);
//! x.connect(&y.endpoint())?;
//! y.connect(&x.endpoint())?;
//! let (here, there) = (pa.alloc_mr(9000, Access::LOCAL)?, pb.alloc_mr(9000, Access::REMOTE)?);
//!
//! let trace = sim.trace(1000)?;
//! x.post_send(SendWr::read(1, here.sge(..), there.remote()))?;
//! cq.wait(Duration::from_secs(1))?.ok()?;
//!
//! let records = trace.take();
//! let packets = records.iter().filter(|r| matches!(r.step, Step::Packet(_))).count();
//! assert_eq!(packets, 1 + 3, "a request, and its answer in three packets");
//! // Who looked memory up, and for what: once when the request came, and for each response again.
//! let checks = records.iter().filter_map(|r| match r.step {
//!     Step::Nic { host, event: NicEvent::Checked { len, need, .. } } => Some((host, len, need)),
//!     _ => None,
//! });
//! let read = Access::REMOTE_READ;
//! assert_eq!(
//!     checks.collect::<Vec<_>>(),
//!     [(1, 9000, read), (1, 4096, read), (1, 4096, read), (1, 808, read)]
//! );
//! # Ok(())
//! # }
//! ```

mod diagram;

use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

pub use diagram::Diagram;

pub use crate::engine::trace::{AccessError, CqeKind, NicEvent, PacketBrief, SendOp, WqeBrief};
pub use crate::fabric::Notes;

use crate::engine::trace::Observer;
use crate::fabric;
use crate::nic::Nic;
use crate::time::{Duration, Instant};
use crate::wire::{Bth, Ext, Packet};

use super::Sim;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// Virtual time since the beginning.
    pub at: Duration,
    /// What.
    pub step: Step,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// The NIC of a host did something.
    Nic {
        /// Number of the host, in the order in which hosts were added.
        host: usize,
        /// What it did.
        event: NicEvent,
    },
    /// The switch had done with a packet: it left towards its receiver, or was dropped.
    Packet(Passage),
    /// The program marked this place: [`Trace::mark`].
    Mark(String),
}

/// A packet on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Passage {
    /// Packets are counted from 1 as the trace sees them: if a capture ([`Sim::pcap`]) began with the trace, it
    /// is the number of the frame there.
    pub number: u64,
    /// When the switch had done with it.
    pub at: Duration,
    /// Number of the sending host.
    pub from: usize,
    /// Number of the receiving host; `None` if nobody has the address.
    pub to: Option<usize>,
    /// When its last bit reaches the receiver; `None`: never.
    pub arrival: Option<Duration>,
    /// Why it never does.
    pub dropped: Option<&'static str>,
    /// What else happened to it.
    pub notes: Notes,
    /// The base transport header, if there is one.
    pub bth: Option<Bth>,
    /// The other headers, if it is a packet that can be understood.
    pub ext: Ext,
    /// Bytes of payload, if it is a packet that can be understood.
    pub payload: Option<usize>,
    /// Bytes of the datagram, BTH to ICRC.
    pub len: usize,
    /// Bytes of the IP packet: with IP and UDP headers.
    pub ip_len: usize,
}

impl Passage {
    fn new(number: u64, p: &fabric::Passage<'_>) -> Self {
        let packet = Packet::parse(p.datagram).ok();
        Self {
            number,
            at: p.at - Instant::ZERO,
            from: p.from,
            to: p.to,
            arrival: p.arrival.map(|t| t - Instant::ZERO),
            dropped: p.dropped,
            notes: p.notes,
            bth: p.datagram.first_chunk().map(Bth::parse),
            ext: packet.map(|packet| packet.ext()).unwrap_or_default(),
            payload: packet.map(|packet| packet.payload().len()),
            len: p.datagram.len(),
            ip_len: p.datagram.len() + p.path.header_len(),
        }
    }
}

/// A recording. It ends when this is dropped.
#[must_use = "the recording ends when this is dropped"]
pub struct Trace {
    sim: Sim,
    log: Arc<Log>,
}

impl Trace {
    pub(super) fn start(sim: &Sim, capacity: usize) -> Self {
        Self::keep(sim, capacity, Keep::First)
    }

    /// A recording of the last records.
    pub(super) fn last(sim: &Sim, capacity: usize) -> Self {
        Self::keep(sim, capacity, Keep::Last)
    }

    fn keep(sim: &Sim, capacity: usize, keep: Keep) -> Self {
        let log = Arc::new(Log { capacity, keep, state: Mutex::default() });
        let mut current = sim.0.trace.lock();
        *current = Some(Arc::clone(&log));
        for (host, nic) in sim.0.time.nics() {
            log.attach(host, &nic);
        }
        let watcher = Arc::clone(&log);
        sim.0.fabric.lock().watch(Some(Box::new(move |passage| watcher.packet(passage))));
        Self { sim: sim.clone(), log }
    }

    /// Puts a mark into the trace: something that the program does and no NIC sees.
    pub fn mark(&self, label: impl Into<String>) {
        self.log.push(self.sim.0.time.now(), Step::Mark(label.into()));
    }

    /// What was recorded since the beginning, or since it was last taken. Makes room for as much again.
    pub fn take(&self) -> Vec<Record> {
        std::mem::take(&mut self.log.state.lock().records).into()
    }

    /// What is in the recording, as a picture of packets. Takes nothing out of it.
    ///
    /// ```
    /// use softroce::prelude::*;
    /// use softroce::sim::{Action, Class, Link, Rule, Sim};
    ///
    /// # fn main() -> Result<()> {
    /// let sim = Sim::new(1);
    /// # let [a, b] = sim.hosts(Link::default());
    /// # let (pa, cq) = (a.alloc_pd()?, a.create_cq(16)?);
    /// # let (pb, theirs) = (b.alloc_pd()?, b.create_cq(16)?);
    /// # let (x, y) = (pa.create_qp(QpType::Rc, &cq).build()?, pb.create_qp(QpType::Rc, &theirs).build()?);
    /// # x.connect_with(&y.endpoint(), QpAttr::default().rq_psn(0x200).sq_psn(0x100))?;
    /// # y.connect_with(&x.endpoint(), QpAttr::default().rq_psn(0x100).sq_psn(0x200))?;
    /// # let lent = pb.alloc_mr(64, Access::REMOTE)?;
    /// // ... x is connected to a peer that lends memory ...
    /// sim.rule(Rule::new(Class::Request, Action::Drop).nth(1))?;
    /// let trace = sim.trace(1000)?;
    /// x.post_send(SendWr::write(1, inline(b"hello"), lent.remote()))?;
    /// cq.wait(Duration::from_secs(1))?.ok()?;
    /// let picture = trace.diagram().of(&x).to_string();
    /// let lines: Vec<&str> = picture.lines().skip(1).collect();
    /// assert_eq!(lines, [
    ///     "      2.009 us  │── RC_WRITE_ONLY psn 0x100, 5 B ──────────────────────✗│ dropped by a rule",
    ///     " 536870.912 us  │ • goes back to psn 0x100: Timeout                     │",
    ///     " 536872.921 us  │── RC_WRITE_ONLY psn 0x100, 5 B ──────────────────────►│",
    ///     " 536876.936 us  │◄─ RC_ACK psn 0x100 ───────────────────────────────────│",
    ///     " 536878.943 us  │ • request 1: Success                                  │",
    /// ]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn diagram(&self) -> Diagram {
        let state = self.log.state.lock();
        Diagram::new(state.records.iter(), &state.connections, state.lost)
    }

    /// Records for which there was no room.
    pub fn lost(&self) -> u64 {
        self.log.state.lock().lost
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let mut current = self.sim.0.trace.lock();
        if current.as_ref().is_none_or(|log| !Arc::ptr_eq(log, &self.log)) {
            return; // Another one has taken over.
        }
        *current = None;
        for (_, nic) in self.sim.0.time.nics() {
            nic.control(|engine, _| engine.set_observer(None));
        }
        self.sim.0.fabric.lock().watch(None);
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.log.state.lock();
        f.debug_struct("Trace")
            .field("records", &state.records.len())
            .field("lost", &state.lost)
            .finish_non_exhaustive()
    }
}

/// Where all records go. One list for all hosts, so that their order is the order of events.
#[derive(Debug)]
pub(super) struct Log {
    capacity: usize,
    keep: Keep,
    state: Mutex<State>,
}

/// Which records are kept where there is no room for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    First,
    Last,
}

/// A connection, as one of its ends knows it.
#[derive(Clone, Copy, Debug)]
struct Connection {
    host: usize,
    qpn: u32,
    peer: usize,
    dest_qpn: u32,
}

#[derive(Debug, Default)]
struct State {
    records: VecDeque<Record>,
    connections: Vec<Connection>,
    lost: u64,
    /// Packets so far.
    packets: u64,
}

impl Log {
    /// Has the NIC of a host tell what it does.
    pub(super) fn attach(self: &Arc<Self>, host: usize, nic: &Nic) {
        let observer = HostLog { host, log: Arc::clone(self) };
        let known = nic.control(|engine, _| {
            engine.set_observer(Some(Box::new(observer)));
            engine.connections()
        });
        for (qpn, dest_qpn, peer) in known {
            self.connected(host, qpn, dest_qpn, peer);
        }
    }

    fn connected(&self, host: usize, qpn: u32, dest_qpn: u32, peer: IpAddr) {
        if let Some(peer) = host_at(peer) {
            self.state.lock().connections.push(Connection { host, qpn, peer, dest_qpn });
        }
    }

    fn push(&self, at: Instant, step: Step) {
        self.add(&mut self.state.lock(), at, step);
    }

    fn add(&self, state: &mut State, at: Instant, step: Step) {
        if state.records.len() >= self.capacity {
            state.lost += 1;
            if self.keep == Keep::First || state.records.pop_front().is_none() {
                return;
            }
        }
        state.records.push_back(Record { at: at - Instant::ZERO, step });
    }

    fn packet(&self, passage: &fabric::Passage<'_>) {
        let mut state = self.state.lock();
        state.packets += 1;
        let step = Step::Packet(Passage::new(state.packets, passage));
        self.add(&mut state, passage.at, step);
    }
}

/// The host that has an address: 10.0.0.1 and fd00::1 are the first one's.
fn host_at(ip: IpAddr) -> Option<usize> {
    let number = match ip {
        IpAddr::V4(v4) => u128::from(v4.to_bits() & 0xff_ffff),
        IpAddr::V6(v6) => v6.to_bits() & 0xffff_ffff,
    };
    usize::try_from(number).ok()?.checked_sub(1)
}

/// What one NIC tells.
#[derive(Debug)]
struct HostLog {
    host: usize,
    log: Arc<Log>,
}

impl Observer for HostLog {
    fn observe(&mut self, at: Instant, event: NicEvent) {
        if let NicEvent::Connected { qpn, dest_qpn, peer } = event {
            self.log.connected(self.host, qpn, dest_qpn, peer);
        }
        self.log.push(at, Step::Nic { host: self.host, event });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Action, Class, Link, Rule};
    use crate::verbs::{
        Access, CompletionQueue, Context, ProtectionDomain, QpType, QueuePair, SendWr, WcStatus,
        inline,
    };

    type Side = (ProtectionDomain, CompletionQueue, QueuePair);

    fn pair(sim: &Sim) -> ([Context; 2], [Side; 2]) {
        let hosts = sim.hosts(Link::default());
        let sides = hosts.each_ref().map(|host| {
            let (pd, cq) = (host.alloc_pd().unwrap(), host.create_cq(16).unwrap());
            let qp = pd.create_qp(QpType::Rc, &cq).build().unwrap();
            (pd, cq, qp)
        });
        let [x, y] = sides.each_ref().map(|(_, _, qp)| qp);
        x.connect(&y.endpoint()).unwrap();
        y.connect(&x.endpoint()).unwrap();
        (hosts, sides)
    }

    /// A WRITE of `len` bytes, recorded.
    fn write(sim: &Sim, len: usize, capacity: usize) -> (Vec<Record>, u64) {
        let (_hosts, [(pa, cq, x), (pb, _theirs, _y)]) = pair(sim);
        let src = pa.alloc_mr(len, Access::LOCAL).unwrap();
        let dst = pb.alloc_mr(len, Access::REMOTE).unwrap();
        let trace = sim.trace(capacity).unwrap();
        trace.mark("post");
        x.post_send(SendWr::write(7, src.sge(..), dst.remote())).unwrap();
        cq.wait(Duration::from_secs(10)).unwrap().ok().unwrap();
        sim.settle();
        (trace.take(), trace.lost())
    }

    fn nic(records: &[Record]) -> impl Iterator<Item = (usize, NicEvent)> {
        records.iter().filter_map(|r| match r.step {
            Step::Nic { host, event } => Some((host, event)),
            _ => None,
        })
    }

    #[test]
    fn an_operation_is_recorded_in_order() {
        let (records, lost) = write(&Sim::new(1), 5000, 1000);
        assert_eq!(lost, 0);
        assert_eq!(records[0].step, Step::Mark("post".into()));
        assert!(records.is_sorted_by_key(|r| r.at));
        let names: Vec<_> = records
            .iter()
            .skip(1)
            .map(|r| match &r.step {
                Step::Nic { host, event } => {
                    let text = format!("{event:?}");
                    let end = text.find([' ', '(']).unwrap();
                    format!("{} {}", ["a", "b"][*host], &text[..end])
                }
                Step::Packet(p) => format!("packet {} from {}", p.number, p.from),
                Step::Mark(label) => label.clone(),
            })
            .collect();
        assert_eq!(
            names,
            [
                "a Doorbell",
                "a Fetched",
                // Both leave in one segmented send.
                "a Gathered",
                "a Gathered",
                "a Sent",
                "a Sent",
                "packet 1 from 0",
                "packet 2 from 0",
                "b Arrived",
                "b Checked",
                "b Checked",
                "b Arrived",
                "b Checked",
                "b Sent",
                "packet 3 from 1",
                "a Arrived",
                "a Retired",
                "a Completed",
            ]
        );
        let fetched = nic(&records).find_map(|(_, event)| match event {
            NicEvent::Fetched { wqe, psns, per_request, .. } => Some((wqe, psns, per_request)),
            _ => None,
        });
        let (wqe, psns, per_request) = fetched.unwrap();
        assert_eq!((wqe.wr_id, wqe.op, wqe.length), (7, SendOp::Write, 5000));
        assert_eq!((psns, per_request, wqe.num_sge, wqe.signaled), (2, 1, 1, true));
    }

    #[test]
    fn a_loss_and_what_follows_are_recorded() {
        let sim = Sim::new(1);
        sim.rule(Rule::new(Class::Request, Action::Drop).nth(2)).unwrap();
        let (records, _) = write(&sim, 3 * 4096, 1000);
        let dropped: Vec<_> = records
            .iter()
            .filter_map(|r| match &r.step {
                Step::Packet(p) => p.dropped.map(|why| (p.number, why, p.arrival)),
                _ => None,
            })
            .collect();
        assert_eq!(dropped, [(2, "dropped by a rule", None)]);
        let first = nic(&records).find_map(|(_, event)| match event {
            NicEvent::Fetched { first_psn, .. } => Some(first_psn),
            _ => None,
        });
        let psn = |n| (first.unwrap() + n) & 0xff_ffff;
        assert!(nic(&records).any(|(host, event)| {
            host == 1
                && matches!(event, NicEvent::Ahead { psn: p, expected, .. }
                    if (p, expected) == (psn(2), psn(1)))
        }));
        assert!(nic(&records).any(|(host, event)| {
            host == 0 && matches!(event, NicEvent::WentBack { psn: p, .. } if p == psn(1))
        }));
    }

    #[test]
    fn a_key_that_does_not_fit_says_why() {
        let sim = Sim::new(1);
        let (_hosts, [(_pa, cq, x), (pb, _theirs, _y)]) = pair(&sim);
        let lent = pb.alloc_mr(64, Access::LOCAL).unwrap();
        let trace = sim.trace(100).unwrap();
        x.post_send(SendWr::write(1, inline(b"no"), lent.remote())).unwrap();
        assert_eq!(cq.wait(Duration::from_secs(1)).unwrap().status, WcStatus::RemAccess);
        let records = trace.take();
        let refused = nic(&records).find_map(|(_, event)| match event {
            NicEvent::Checked { refused, .. } => refused,
            _ => None,
        });
        assert!(matches!(refused, Some(AccessError::NoRight { .. })), "{refused:?}");
    }

    #[test]
    fn recording_changes_nothing_and_is_bounded() {
        let hash = |traced: bool| {
            let sim = Sim::new(3);
            let (_hosts, [(pa, cq, x), (pb, _theirs, _y)]) = pair(&sim);
            let dst = pb.alloc_mr(100_000, Access::REMOTE).unwrap();
            let src = pa.alloc_mr(100_000, Access::LOCAL).unwrap();
            let trace = traced.then(|| sim.trace(10).unwrap());
            x.post_send(SendWr::write(1, src.sge(..), dst.remote())).unwrap();
            cq.wait(Duration::from_secs(10)).unwrap().ok().unwrap();
            if let Some(trace) = &trace {
                assert!(trace.lost() > 0);
                assert_eq!(trace.take().len(), 10);
            }
            (sim.trace_hash(), sim.now())
        };
        assert_eq!(hash(true), hash(false));
    }

    #[test]
    fn it_ends_when_dropped_and_sees_hosts_that_come_later() {
        let sim = Sim::new(1);
        let first = sim.trace(100).unwrap();
        let (_hosts, [(_pa, _cq, x), (pb, _theirs, _y)]) = pair(&sim);
        let lent = pb.alloc_mr(64, Access::REMOTE).unwrap();
        let go = || {
            x.post_send(SendWr::write(1, inline(b"go"), lent.remote())).unwrap();
            sim.settle();
        };
        go();
        assert!(!first.take().is_empty());
        let second = sim.trace(100).unwrap();
        drop(first); // The second one goes on.
        go();
        assert!(!second.take().is_empty());
        drop(second);
        assert!(sim.0.trace.lock().is_none());
        go();
    }
}
