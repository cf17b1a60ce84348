//! Virtual time: a simulated network drives its NICs, and time jumps from event to event.
//!
//! *Owns.* Which NIC is on which host, what time it is, and who may move it.
//!
//! *Rules.* Time moves only in [`VirtualTime::step`], called by whoever waits, polls in vain, or runs the
//! simulation. Events of one instant happen in a fixed order: the network first, then NICs by the number
//! of their host. The first thread that moves time owns the simulation; another gets `EDEADLK` unless the
//! simulation was declared shared. A tap runs between two events, without any lock: it may drop objects of the
//! verbs and set the network up differently, but not call verbs. What the program has scheduled for an instant
//! comes first in it; that may call verbs, too. Neither may move time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::ThreadId;

use parking_lot::Mutex;

use super::Nic;
use super::interfere::Faults;
use super::timers::Timers;
use crate::engine::cause::Cause;
use crate::fabric::{Fabric, HostId, SharedFabric};
use crate::fork::Origin;
use crate::time::{Duration, Instant};

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Something happened.
    Ran,
    /// The next event lies beyond the limit.
    Beyond,
    /// Nothing is left to happen.
    Idle,
}

/// The clock and the driver of a simulation.
pub struct VirtualTime {
    fabric: SharedFabric,
    now: AtomicU64,
    hosts: Mutex<Hosts>,
    timers: Mutex<Timers>,
    owner: Mutex<Option<ThreadId>>,
    shared: AtomicBool,
    /// The thread that is inside the program's code, called from a step.
    inside: Mutex<Option<(ThreadId, Inside)>>,
    /// The process that made it.
    origin: Origin,
    /// One driver at a time, where several are allowed.
    driving: Mutex<()>,
    actions: Mutex<Actions>,
    /// Faults of the verbs.
    faults: Arc<Faults>,
}

/// Code of the program that a step calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inside {
    /// A tap.
    Tap,
    /// Something that was scheduled.
    Action,
}

/// What is to be done at some time, in the order in which it was scheduled.
#[derive(Default)]
struct Actions {
    queue: BTreeMap<(Instant, u64), Box<dyn FnOnce() + Send>>,
    scheduled: u64,
}

/// When a NIC, the program and the network have something to do next.
#[derive(Clone, Copy, Debug)]
struct Next {
    timer: Option<Instant>,
    action: Option<Instant>,
    network: Option<Instant>,
}

impl Next {
    fn first(&self) -> Option<Instant> {
        self.timer.into_iter().chain(self.action).chain(self.network).min()
    }
}

#[derive(Default)]
struct Hosts {
    nics: Vec<Weak<Nic>>,
    woken: Vec<HostId>,
    /// Indices of those that are called in this step.
    called: Vec<usize>,
    due: Vec<Arc<Nic>>,
}

impl VirtualTime {
    /// The driver of this network.
    pub fn new(fabric: SharedFabric) -> Arc<Self> {
        Arc::new(Self {
            fabric,
            now: AtomicU64::new(0),
            hosts: Mutex::default(),
            timers: Mutex::default(),
            owner: Mutex::new(None),
            shared: AtomicBool::new(false),
            inside: Mutex::new(None),
            origin: Origin::here(),
            driving: Mutex::new(()),
            actions: Mutex::default(),
            faults: Arc::default(),
        })
    }

    /// The network.
    pub fn fabric(&self) -> &SharedFabric {
        &self.fabric
    }

    /// What time it is.
    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.now.load(Ordering::Acquire))
    }

    /// Faults of the verbs.
    pub fn faults(&self) -> &Arc<Faults> {
        &self.faults
    }

    /// Puts a NIC on the next host. Hosts are numbered as they are added to the network.
    pub fn add(&self, nic: &Arc<Nic>) {
        self.hosts.lock().nics.push(Arc::downgrade(nic));
    }

    /// Puts another NIC on a host.
    pub fn replace(&self, host: usize, nic: &Arc<Nic>) {
        if let Some(place) = self.hosts.lock().nics.get_mut(host) {
            *place = Arc::downgrade(nic);
        }
    }

    /// The host that a NIC is on; `None`: it is on none, or not any more.
    pub fn host_of(&self, nic: &Nic) -> Option<HostId> {
        let hosts = self.hosts.lock();
        let index = hosts.nics.iter().position(|w| std::ptr::eq(w.as_ptr(), nic))?;
        u32::try_from(index).ok().map(HostId)
    }

    /// A NIC wants to be called at this time, and not at the one that it said before.
    pub(super) fn set_timer(&self, host: usize, at: Instant) {
        self.timers.lock().set(host, at);
    }

    /// Has something done at a time, before all else that happens then. What lies in the past is done next.
    pub fn schedule(&self, at: Instant, action: Box<dyn FnOnce() + Send>) {
        let mut actions = self.actions.lock();
        actions.scheduled += 1;
        let key = (at, actions.scheduled);
        actions.queue.insert(key, action);
    }

    /// Nothing that was scheduled is done.
    pub fn forget_actions(&self) {
        let queue = std::mem::take(&mut self.actions.lock().queue);
        // Without the lock: what an action holds may lead back here.
        drop(queue);
    }

    /// The NICs that there are, by the number of their host.
    pub fn nics(&self) -> Vec<(usize, Arc<Nic>)> {
        let hosts = self.hosts.lock();
        hosts.nics.iter().enumerate().filter_map(|(i, nic)| Some((i, nic.upgrade()?))).collect()
    }

    /// A NIC goes: its host falls silent.
    pub(super) fn forget(&self, nic: &Nic) {
        if let Some(host) = self.host_of(nic) {
            self.set_timer(host.index(), Instant::FAR_FUTURE);
            // It exists: it was added with the NIC.
            let _ = self.fabric.lock().set_up(host, false);
        }
    }

    /// Lets any thread move time. What happens when depends on the threads from then on.
    pub fn share(&self) {
        self.shared.store(true, Ordering::Relaxed);
    }

    fn inside(&self) -> Option<Inside> {
        let me = std::thread::current().id();
        self.inside.lock().and_then(|(thread, what)| (thread == me).then_some(what))
    }

    /// Refuses calls from inside a tap.
    ///
    /// # Errors
    /// `EDEADLK`.
    pub fn enter(&self) -> Result<(), Cause> {
        if !self.origin.is_here() {
            let why = "the simulation belongs to the process that made it, and this is a child of that process".into();
            return Err(Cause::NoDevice { why });
        }
        if self.inside() == Some(Inside::Tap) {
            return Err(Cause::Deadlock {
                why: "a tap runs inside the network: it may look at the packet and decide, not call verbs \
                      or move time",
            });
        }
        Ok(())
    }

    /// Runs code of the program, called from a step.
    pub fn run_inside<R>(&self, what: Inside, f: impl FnOnce() -> R) -> R {
        struct Leave<'a>(&'a Mutex<Option<(ThreadId, Inside)>>);
        impl Drop for Leave<'_> {
            fn drop(&mut self) {
                *self.0.lock() = None;
            }
        }
        *self.inside.lock() = Some((std::thread::current().id(), what));
        let _leave = Leave(&self.inside);
        f()
    }

    /// Whether this thread may move time.
    ///
    /// # Errors
    /// `EDEADLK`: another thread does.
    pub fn drive(&self) -> Result<(), Cause> {
        self.enter()?;
        if self.inside().is_some() {
            return Err(Cause::Deadlock {
                why: "what was scheduled with Sim::at runs between two events: it may call verbs, not move time",
            });
        }
        if self.shared.load(Ordering::Relaxed) {
            return Ok(());
        }
        let me = std::thread::current().id();
        match *self.owner.lock().get_or_insert(me) {
            owner if owner == me => Ok(()),
            _ => Err(Cause::Deadlock {
                why: "another thread drives this simulation: use one thread, or Sim::shared() and give up \
                      equal runs",
            }),
        }
    }

    /// Lets everything happen that happens next, if that is not after `limit`.
    pub fn step(&self, limit: Instant) -> Step {
        let _one = self.driving.lock();
        self.step_alone(limit)
    }

    /// The same, for who drives.
    fn step_alone(&self, limit: Instant) -> Step {
        let mut next = self.next_events();
        if next.first().is_none_or(|t| t > limit) && self.shared.load(Ordering::Relaxed) {
            self.wait_for_others();
            next = self.next_events();
        }
        let Some(first) = next.first() else { return Step::Idle };
        if first > limit {
            return Step::Beyond;
        }
        let now = match self.network_alone(&next, limit) {
            Some(now) => now,
            None => {
                let now = self.now().max(first);
                // Everything that happens in this step happens now.
                self.now.store(now.as_nanos(), Ordering::Release);
                self.act(now);
                Fabric::advance_shared(&self.fabric, now);
                now
            }
        };
        let mut hosts = self.hosts.lock();
        let Hosts { nics, woken, called, due } = &mut *hosts;
        woken.clear();
        called.clear();
        due.clear();
        self.fabric.lock().take_woken(woken);
        self.timers.lock().due(now, called);
        called.extend(woken.iter().map(|host| host.index()));
        called.sort_unstable();
        called.dedup();
        for &index in &*called {
            let Some(nic) = nics.get(index).and_then(Weak::upgrade) else { continue };
            if !nic.is_dead() {
                due.push(nic);
            }
        }
        let mut due = std::mem::take(due);
        drop(hosts);
        for nic in &due {
            nic.serve_virtual();
        }
        // Not under the lock: the last reference to a NIC may be among them.
        due.clear();
        self.hosts.lock().due = due;
        Step::Ran
    }

    /// Does what was scheduled up to now.
    fn act(&self, now: Instant) {
        loop {
            let mut actions = self.actions.lock();
            let Some(entry) = actions.queue.first_entry() else { return };
            if entry.key().0 > now {
                return;
            }
            let action = entry.remove();
            drop(actions);
            self.run_inside(Inside::Action, action);
        }
    }

    /// When something happens next.
    fn next_events(&self) -> Next {
        let timer = self.timers.lock().first();
        let action = self.actions.lock().queue.keys().next().map(|&(at, _)| at);
        let network = self.fabric.lock().next_event();
        Next { timer, action, network }
    }

    /// If the network comes first, lets it run until it concerns a host: what packets do on the way is nobody's
    /// business. Says what time it is then.
    fn network_alone(&self, next: &Next, limit: Instant) -> Option<Instant> {
        let network = next.network?;
        let timer = next.timer.unwrap_or(Instant::FAR_FUTURE);
        let action = next.action.unwrap_or(Instant::FAR_FUTURE);
        let mut fabric = self.fabric.lock();
        if network >= timer || network >= action || fabric.is_tapped() {
            return None;
        }
        // At one instant the network comes before NICs, and what was scheduled before both.
        let now = fabric.advance_until_woken(limit.min(timer), action).max(self.now());
        self.now.store(now.as_nanos(), Ordering::Release);
        Some(now)
    }

    /// A thread that is inside a NIC may be about to serve a doorbell that another one has left to it: what that
    /// leads to happens before time passes.
    fn wait_for_others(&self) {
        let nics: Vec<_> = self.hosts.lock().nics.iter().filter_map(Weak::upgrade).collect();
        for nic in nics {
            nic.control(|_, _| ());
        }
    }

    /// Time passes until `t`, with nothing happening. For who drives.
    fn skip_to(&self, t: Instant) {
        if t > self.now() {
            self.now.store(t.as_nanos(), Ordering::Release);
            Fabric::advance_shared(&self.fabric, t);
        }
    }

    /// Lets everything happen that happens next; nothing if nothing is left.
    ///
    /// # Errors
    /// `EDEADLK`.
    pub fn poll(&self) -> Result<(), Cause> {
        self.drive()?;
        self.step(Instant::FAR_FUTURE);
        Ok(())
    }

    /// Runs events until `ready`, or until `timeout` has passed. `false`: timed out.
    ///
    /// # Errors
    /// `EDEADLK`: no time limit, and nothing is left to happen.
    pub fn wait(&self, mut ready: impl FnMut() -> bool, timeout: Duration) -> Result<bool, Cause> {
        self.drive()?;
        let deadline = self.now() + timeout;
        loop {
            if ready() {
                return Ok(true);
            }
            let one = self.driving.lock();
            // Another thread may have brought it since the look above: then no time must pass.
            if ready() {
                return Ok(true);
            }
            match self.step_alone(deadline) {
                Step::Ran => {}
                // What others were at has brought it.
                Step::Beyond | Step::Idle if ready() => return Ok(true),
                Step::Beyond | Step::Idle if deadline != Instant::FAR_FUTURE => {
                    self.skip_to(deadline);
                    drop(one);
                    return Ok(ready());
                }
                Step::Beyond | Step::Idle => {
                    return Err(Cause::Deadlock {
                        why: "nothing is left to happen in the simulation, so this would wait for ever",
                    });
                }
            }
        }
    }

    /// Runs for a time.
    ///
    /// # Errors
    /// `EDEADLK`.
    pub fn run_for(&self, d: Duration) -> Result<(), Cause> {
        self.wait(|| false, d).map(drop)
    }

    /// Runs until nothing is left to happen.
    ///
    /// # Errors
    /// `EDEADLK`.
    pub fn settle(&self) -> Result<(), Cause> {
        self.drive()?;
        while self.step(Instant::FAR_FUTURE) == Step::Ran {}
        Ok(())
    }
}

impl std::fmt::Debug for VirtualTime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VirtualTime").field("now", &self.now()).finish_non_exhaustive()
    }
}
