//! What a simulation does to a NIC that no network could: it dies, its verbs fail, events come from nowhere.
//!
//! *Owns.* The faults of the verbs ([`Faults`]), one list for all hosts of a simulation, and what becomes of a NIC
//! whose host was killed.
//!
//! *Rules.* Nothing here is reached by a NIC on a real port: posting asks for faults where it asks a simulation
//! whether it may go on, and an engine asks only if it was given somebody to ask. Each fault has a random stream of
//! its own, from the seed of the simulation. A fault that has an operation fail does so as a device would: the
//! queue pair goes where such an error leads.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use parking_lot::Mutex;
use rand_chacha::ChaCha8Rng;

use super::{Nic, Time};
use crate::engine::AsyncEvent;
use crate::engine::cause::Cause;
use crate::engine::errno::EIO;
use crate::engine::status::WcStatus;
use crate::engine::watch::Judge;
use crate::fabric::{FabricError, RuleHits, When};
use crate::queue::CqeKind;
use crate::seed::Seeds;
use crate::time::Instant;

/// What a program does that a fault can have fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// It posts to a send queue.
    PostSend,
    /// It posts to a receive queue, or a shared one.
    PostRecv,
    /// A request of a send queue is about to complete with success.
    Send,
    /// A receive is about to complete with success.
    Recv,
}

/// How it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The call returns this errno.
    Errno(i32),
    /// The completion has this status.
    Status(WcStatus),
}

/// A fault of the verbs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    /// What may fail: posting one queue or the other, or completing.
    pub points: [Option<Point>; 2],
    /// How.
    pub effect: Effect,
    /// On which host; `None`: all.
    pub host: Option<usize>,
    /// Of which queue pair; `None`: all.
    pub qpn: Option<u32>,
    /// Which of those that are described so far.
    pub when: When,
}

impl Fault {
    fn describes(&self, host: usize, qpn: Option<u32>, point: Point) -> bool {
        self.points.contains(&Some(point))
            && self.host.is_none_or(|h| h == host)
            && self.qpn.is_none_or(|n| Some(n) == qpn)
    }
}

/// The faults of a simulation, in the order in which they were added.
#[derive(Default)]
pub struct Faults {
    entries: Mutex<Entries>,
    /// Whether there is any.
    any: AtomicBool,
}

#[derive(Default)]
struct Entries {
    list: Vec<Entry>,
    added: u64,
}

struct Entry {
    id: u64,
    fault: Fault,
    count: RuleHits,
    rng: ChaCha8Rng,
}

impl Faults {
    /// Adds a fault, behind those that are there. Returns its number.
    ///
    /// # Errors
    /// If it counts from 0, or its probability is none.
    pub fn add(&self, fault: Fault, seeds: &Seeds) -> Result<u64, FabricError> {
        fault.when.check()?;
        let mut entries = self.entries.lock();
        let id = entries.added;
        entries.added += 1;
        let rng = seeds.derive("verb fault", id).rng();
        entries.list.push(Entry { id, fault, count: RuleHits::default(), rng });
        self.any.store(true, Ordering::Release);
        Ok(id)
    }

    /// Removes a fault.
    pub fn remove(&self, id: u64) {
        let mut entries = self.entries.lock();
        entries.list.retain(|e| e.id != id);
        self.any.store(!entries.list.is_empty(), Ordering::Release);
    }

    /// How often a fault applied.
    pub fn hits(&self, id: u64) -> RuleHits {
        let entries = self.entries.lock();
        entries.list.iter().find(|e| e.id == id).map(|e| e.count).unwrap_or_default()
    }

    /// Whether any fault changes completions.
    pub fn judges(&self) -> bool {
        let entries = self.entries.lock();
        entries.list.iter().any(|e| matches!(e.fault.effect, Effect::Status(_)))
    }

    /// What the first fault that selects this does to it.
    fn decide(&self, host: usize, qpn: Option<u32>, point: Point) -> Option<Effect> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let mut entries = self.entries.lock();
        entries.list.iter_mut().find_map(|Entry { fault, count, rng, .. }| {
            if !fault.describes(host, qpn, point) {
                return None;
            }
            count.seen += 1;
            if !fault.when.selects(count.seen, rng) {
                return None;
            }
            count.hits += 1;
            Some(fault.effect)
        })
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries.lock();
        f.debug_list().entries(entries.list.iter().map(|e| (e.id, e.fault, e.count))).finish()
    }
}

/// Judges the completions of one host.
#[derive(Debug)]
struct HostJudge {
    host: usize,
    faults: Arc<Faults>,
}

impl Judge for HostJudge {
    fn judge(&mut self, qpn: u32, kind: CqeKind) -> Option<WcStatus> {
        let point = match kind {
            CqeKind::Send => Point::Send,
            CqeKind::Recv => Point::Recv,
        };
        match self.faults.decide(self.host, Some(qpn), point) {
            Some(Effect::Status(status)) => Some(status),
            _ => None,
        }
    }
}

/// Asks whether posting fails. Only a simulated NIC gives one.
#[derive(Clone, Copy, Debug)]
pub struct PostGate<'a> {
    faults: &'a Faults,
    host: usize,
}

impl PostGate<'_> {
    /// One request is about to be posted.
    ///
    /// # Errors
    /// That of a fault that selects it.
    pub fn pass(&self, point: Point, qpn: Option<u32>) -> Result<(), Cause> {
        match self.faults.decide(self.host, qpn, point) {
            Some(Effect::Errno(errno)) => Err(Cause::Io {
                errno,
                why: "a fault of the simulation (Sim::fault) has this post fail".into(),
            }),
            _ => Ok(()),
        }
    }
}

impl Nic {
    /// Refuses posting where it would deadlock, or the host is dead; else gives whom to ask about each request, if
    /// there is somebody.
    ///
    /// # Errors
    /// As [`enter`](Self::enter).
    #[inline]
    pub fn enter_post(&self) -> Result<Option<PostGate<'_>>, Cause> {
        match &self.time {
            Time::Real { .. } => {
                self.check_process()?;
                Ok(None)
            }
            Time::Virtual { time, host, .. } => {
                self.enter()?;
                Ok(Some(PostGate { faults: time.faults(), host: *host }))
            }
        }
    }

    /// Has the faults of the simulation judge completions.
    pub fn be_judged(&self) {
        if let Time::Virtual { time, host, .. } = &self.time {
            let judge = HostJudge { host: *host, faults: Arc::clone(time.faults()) };
            self.control(|engine, _| engine.set_judge(Some(Box::new(judge))));
        }
    }

    /// Whether its host was killed.
    pub fn is_dead(&self) -> bool {
        matches!(&self.time, Time::Virtual { dead, .. } if dead.load(Ordering::Acquire))
    }

    /// Refuses what needs a living host.
    ///
    /// # Errors
    /// `EIO`: it was killed.
    pub fn living(&self) -> Result<(), Cause> {
        if self.is_dead() {
            return Err(Cause::Io {
                errno: EIO,
                why: "the host of this device was killed (Sim::kill): its objects are good for nothing but \
                      to be dropped; Sim::reboot gives the host a new device"
                    .into(),
            });
        }
        Ok(())
    }

    /// Its host dies: from now on it does nothing at all, and its verbs fail. Who waits for it learns that.
    pub fn kill(&self) {
        let Time::Virtual { dead, time, host } = &self.time else { return };
        let mut wakers = Vec::new();
        let mut cqs = Vec::new();
        self.core.with(
            |core| {
                dead.store(true, Ordering::Release);
                core.halt();
                cqs.extend(core.cqs.iter().flatten().cloned());
            },
            |_| {},
        );
        time.set_timer(*host, Instant::FAR_FUTURE);
        for entry in cqs {
            entry.publish(false, &mut wakers);
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Raises an event, with what a device would do besides.
    ///
    /// # Errors
    /// `EINVAL`: the event names an object that there is not.
    pub fn raise(&self, event: AsyncEvent) -> Result<(), Cause> {
        self.with_core(|core, now| core.raise(now, event))
    }

    /// Brings the memory up to date that bytes land in late.
    pub(super) fn land(&self, core: &mut super::Core, now: Instant) {
        if matches!(self.time, Time::Virtual { .. }) {
            core.engine.land(now);
        }
    }
}
