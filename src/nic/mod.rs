//! The NIC: an engine, a port, a clock, and whoever drives them.
//!
//! An engine is single-threaded code; a program has many threads. Around the engine stands one lock
//! ([`combine`]) that nobody waits for on the data path: posting writes to the queue, and runs a pass if
//! the engine is free or leaves that to whoever is in it. Who drives when nobody calls is the matter of
//! [`progress`] (real time) and [`virtual_time`] (a simulated network). A pass is described in [`core`].
//!
//! This is the only module that knows both engines and ports, the only one that starts a thread, and with
//! [`clock`] the only one that reads the time.

pub mod clock;
pub mod combine;
mod core;
pub mod device;
mod handover;
pub mod interfere;
#[cfg(all(test, loom))]
mod models;
pub mod notify;
pub mod progress;
pub mod signal;
#[cfg(all(test, not(loom)))]
mod tests;
mod timers;
pub mod virtual_time;
pub mod wake;

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;

use parking_lot::Mutex;

use self::clock::MonotonicClock;
use self::combine::Combine;
use self::core::{Core, Passed, Work};
use self::notify::{Channel, CqNotify, EventQueue};
use self::progress::{By, Drive, PassReport, Progress, ProgressConfig, Waiters};
use self::virtual_time::VirtualTime;
use self::wake::PortFd;

use crate::engine::AsyncEvent;
#[cfg(feature = "unstable-internals")]
use crate::engine::Counter;
use crate::engine::cause::Cause;
use crate::engine::{Counters, Engine, EngineConfig, LocalGid, QpFace, QpHandle, QpInit};
use crate::fork::Origin;
use crate::mem::PdId;
use crate::port::{Port, PortAddress, PortStats, RxBatch};
use crate::queue::RecvQueue;
use crate::time::{Duration, Instant};
use crate::wire::num::{Gid, Mtu};

/// Buffers of a pass: each holds what a socket delivers at once.
const RX_BUFFERS: usize = 8;

/// What a child process is told.
const CHILD: &str = "the device belongs to the process that opened it, and this is a child of that process: open a \
                     device of its own here";

/// Who keeps the time of a NIC, and who drives it.
enum Time {
    Real {
        clock: MonotonicClock,
        progress: Arc<Progress>,
        /// A descriptor of our own that becomes readable with the port.
        #[cfg(all(feature = "udp", target_os = "linux"))]
        port: Option<std::os::fd::OwnedFd>,
        /// The same of the port with the sockets of multicast groups, once there are such.
        #[cfg(all(feature = "udp", target_os = "linux"))]
        port_and_groups: std::sync::OnceLock<std::os::fd::OwnedFd>,
    },
    Virtual {
        time: Arc<VirtualTime>,
        /// Number of its host.
        host: usize,
        /// The host was killed.
        dead: AtomicBool,
    },
}

/// A NIC. Shared by everything that was made on it.
pub struct Nic {
    origin: Origin,
    core: Combine<Core>,
    /// Doorbells rung while somebody else was in the engine.
    bells: Mutex<Vec<QpHandle>>,
    /// Set after a doorbell was put there: passes look at this, not at the lock. What orders the two sides is
    /// the bell of [`combine`].
    has_bells: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
    has_wakers: AtomicBool,
    time: Time,
    /// Packets sent and received, as the last pass left them.
    #[cfg(feature = "unstable-internals")]
    moved: [AtomicU64; 2],
    addresses: Vec<PortAddress>,
    guid: u64,
    pkeys: u16,
}

impl Nic {
    /// A NIC on a real port. `configure` changes what its engine is made with.
    ///
    /// # Errors
    /// The system gives no entropy or no descriptor.
    pub fn real(
        port: Box<dyn Port>,
        progress: ProgressConfig,
        configure: impl FnOnce(&mut EngineConfig),
    ) -> Result<Arc<Self>, Cause> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(|e| Cause::Invalid {
            what: format!("the system gives no random numbers for keys: {e}").into(),
        })?;
        let clock = MonotonicClock::new();
        let progress = Progress::new(progress);
        #[cfg(all(feature = "udp", target_os = "linux"))]
        let port_fd = match port.readiness().map(|fd| fd.try_clone_to_owned()) {
            Some(Err(e)) => return Err(Cause::io(&e, "duplicating the port's descriptor")),
            Some(Ok(fd)) => Some(fd),
            None => None,
        };
        let relief = Arc::clone(&progress);
        let time = Time::Real {
            clock,
            progress,
            #[cfg(all(feature = "udp", target_os = "linux"))]
            port: port_fd,
            #[cfg(all(feature = "udp", target_os = "linux"))]
            port_and_groups: std::sync::OnceLock::new(),
        };
        let rx = RxBatch::new(RX_BUFFERS, RxBatch::WHOLE);
        let around = |core| Combine::with_relief(core, move || relief.relieve());
        let mut config = EngineConfig::new(seed);
        configure(&mut config);
        Ok(Arc::new(Self::build(port, config, rx, time, around)))
    }

    /// A NIC on a host of a simulated network.
    pub fn simulated(
        port: Box<dyn Port>,
        config: EngineConfig,
        time: Arc<VirtualTime>,
        host: usize,
    ) -> Arc<Self> {
        // The network hands out single datagrams.
        let rx = RxBatch::new(64, 8 << 10);
        let time = Time::Virtual { time, host, dead: AtomicBool::new(false) };
        Arc::new(Self::build(port, config, rx, time, Combine::new))
    }

    fn build(
        port: Box<dyn Port>,
        config: EngineConfig,
        rx: RxBatch,
        time: Time,
        around: impl FnOnce(Core) -> Combine<Core>,
    ) -> Self {
        let addresses = port.addresses().to_vec();
        let gids = addresses.iter().map(|a| LocalGid { ip: a.ip, scope_id: a.scope_id }).collect();
        let pkeys = u16::try_from(config.pkeys.len()).unwrap_or(u16::MAX);
        let engine = Engine::new(config, port.caps(), gids);
        let guid = device::guid(&addresses);
        Self {
            origin: Origin::here(),
            core: around(Core::new(engine, port, rx)),
            bells: Mutex::new(Vec::new()),
            has_bells: AtomicBool::new(false),
            wakers: Mutex::new(Vec::new()),
            has_wakers: AtomicBool::new(false),
            time,
            #[cfg(feature = "unstable-internals")]
            moved: [AtomicU64::new(0), AtomicU64::new(0)],
            addresses,
            guid,
            pkeys,
        }
    }

    /// Its addresses, in the order of the GID table.
    pub fn addresses(&self) -> &[PortAddress] {
        &self.addresses
    }

    /// Entries of its partition table.
    pub fn pkey_count(&self) -> u16 {
        self.pkeys
    }

    /// Its identifier.
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// Whether it is part of a simulation.
    pub fn virtual_time(&self) -> Option<&Arc<VirtualTime>> {
        match &self.time {
            Time::Virtual { time, .. } => Some(time),
            Time::Real { .. } => None,
        }
    }

    /// What time it is for this NIC.
    pub fn now(&self) -> Instant {
        match &self.time {
            Time::Real { clock, .. } => clock.now(),
            Time::Virtual { time, .. } => time.now(),
        }
    }

    /// Refuses calls in a child of the process that opened the NIC. Its locks may be held for ever, its thread is
    /// missing, and its sockets are those of the parent.
    ///
    /// # Errors
    /// `ENODEV`.
    #[inline]
    pub fn check_process(&self) -> Result<(), Cause> {
        if self.is_here() { Ok(()) } else { Err(Cause::NoDevice { why: CHILD.into() }) }
    }

    /// Whether this is the process that opened the NIC. Elsewhere destructors leave it alone.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.origin.is_here()
    }

    /// Refuses calls from where they would deadlock (a tap of the simulation), or do harm (a child process), and of a
    /// simulated host that was killed.
    ///
    /// # Errors
    /// `EDEADLK`, `ENODEV`, `EIO`.
    pub fn enter(&self) -> Result<(), Cause> {
        self.check_process()?;
        match &self.time {
            Time::Real { .. } => Ok(()),
            Time::Virtual { time, .. } => {
                time.enter()?;
                self.living()
            }
        }
    }

    /// Runs `f` under the lock, and a pass after it: what `f` leaves to be sent or told is sent and told.
    fn with_core<R>(&self, f: impl FnOnce(&mut Core, Instant) -> R) -> R {
        let report = Cell::new(None);
        let pass =
            |core: &mut Core| report.set(Some(merge(report.get(), self.run(core, Work::Send))));
        let result = self.core.with(
            |core| {
                let result = f(core, self.now());
                pass(core);
                result
            },
            pass,
        );
        self.after(By::Post, report.get());
        result
    }

    /// Runs a control verb: `f` has the engine to itself.
    pub fn control<R>(&self, f: impl FnOnce(&mut Engine, Instant) -> R) -> R {
        self.with_core(|core, now| f(&mut core.engine, now))
    }

    /// The same for a destructor, which leaves the NIC alone in a child process.
    pub fn release<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> Option<R> {
        self.is_here().then(|| self.control(|engine, _| f(engine)))
    }

    /// Makes a queue pair. Its events go to `events`.
    ///
    /// # Errors
    /// As [`Engine::create_qp`].
    pub fn create_qp(
        self: &Arc<Self>,
        init: QpInit,
        events: &Arc<EventQueue>,
    ) -> Result<(QpHandle, Arc<QpFace>), Cause> {
        self.start_thread()?;
        self.with_core(|core, _| {
            let (handle, face) = core.engine.create_qp(init)?;
            core.owners.insert(face.qpn().raw(), Arc::clone(events));
            // Ringing must not allocate.
            let many = core.engine.qp_count() + 1;
            core.bells.reserve(many);
            self.bells.lock().reserve(many);
            Ok((handle, face))
        })
    }

    /// Runs `f`, which modifies a queue pair. If that forgets what it owes its peer, it sends that first.
    pub fn modify<R>(
        &self,
        handle: QpHandle,
        forgets: bool,
        f: impl FnOnce(&mut Engine, Instant) -> R,
    ) -> R {
        self.with_core(|core, now| {
            if forgets {
                core.settle_debts(now, handle);
            }
            f(&mut core.engine, now)
        })
    }

    /// Destroys a queue pair, after it has sent the answers that it owes.
    ///
    /// # Errors
    /// As [`Engine::destroy_qp`].
    pub fn destroy_qp(&self, handle: QpHandle, qpn: u32) -> Result<(), Cause> {
        self.check_process()?;
        self.with_core(|core, now| {
            core.farewell(now, handle);
            for group in core.engine.leave_groups(handle) {
                // What comes nevertheless finds nobody.
                let _ = core.port.leave(group);
            }
            if let Some(events) = core.owners.remove(&qpn) {
                events.forget(|event| event.qpn() == Some(qpn));
            }
            core.engine.destroy_qp(handle)
        })
    }

    /// Destroys an address handle, after what was posted has been sent as far as the network takes it.
    pub fn destroy_ah(&self, number: u32) {
        if !self.is_here() {
            return;
        }
        self.with_core(|core, _| {
            self.run(core, Work::Send);
            // Its owner has it once.
            let _ = core.engine.destroy_ah(number);
        });
    }

    /// Puts a queue pair into a multicast group.
    ///
    /// # Errors
    /// As [`Engine::attach_mcast`]; or the port cannot join the group.
    pub fn attach_mcast(&self, handle: QpHandle, gid: Gid) -> Result<(), Cause> {
        self.with_core(|core, _| {
            let Some(group) = core.engine.attach_mcast(handle, gid)? else { return Ok(()) };
            let joined = core.port.join(group);
            let joined = joined.and_then(|()| {
                self.keep_readiness(core).inspect_err(|_| {
                    // Nobody would ever sleep on the group's socket.
                    let _ = core.port.leave(group);
                })
            });
            if let Err(e) = joined {
                core.engine.detach_mcast(handle, gid)?;
                return Err(Cause::io(&e, "joining the multicast group"));
            }
            Ok(())
        })?;
        // Whoever sleeps on the port without the group's socket looks again.
        if let Time::Real { progress, .. } = &self.time {
            let now = self.now();
            progress.note_pass(By::Post, now, now);
        }
        Ok(())
    }

    /// Keeps a descriptor of our own for the port with its groups.
    fn keep_readiness(&self, core: &Core) -> std::io::Result<()> {
        #[cfg(all(feature = "udp", target_os = "linux"))]
        if let Time::Real { port_and_groups, .. } = &self.time
            && port_and_groups.get().is_none()
            && let Some(fd) = core.port.readiness()
        {
            // Only one thread is in the engine.
            let _ = port_and_groups.set(fd.try_clone_to_owned()?);
        }
        #[cfg(not(all(feature = "udp", target_os = "linux")))]
        let _ = core;
        Ok(())
    }

    /// Takes a queue pair out of a multicast group.
    ///
    /// # Errors
    /// As [`Engine::detach_mcast`].
    pub fn detach_mcast(&self, handle: QpHandle, gid: Gid) -> Result<(), Cause> {
        self.with_core(|core, _| {
            if let Some(group) = core.engine.detach_mcast(handle, gid)? {
                core.port.leave(group).map_err(|e| Cause::io(&e, "leaving the multicast group"))?;
            }
            Ok(())
        })
    }

    /// Makes a completion queue. Its events go to `channel`, and if it overruns to `events`.
    ///
    /// # Errors
    /// As [`Engine::create_cq`].
    pub fn create_cq(
        &self,
        depth: u32,
        channel: Option<Arc<Channel>>,
        events: &Arc<EventQueue>,
    ) -> Result<Arc<CqNotify>, Cause> {
        self.with_core(|core, _| {
            let (cq, shared) = core.engine.create_cq(depth)?;
            let entry = Arc::new(CqNotify::new(cq, shared, channel));
            let index = cq as usize;
            if core.cqs.len() <= index {
                core.cqs.resize(index + 1, None);
            }
            core.cqs[index] = Some(Arc::clone(&entry));
            core.cq_owners.insert(cq, Arc::clone(events));
            Ok(entry)
        })
    }

    /// Destroys a completion queue.
    ///
    /// # Errors
    /// As [`Engine::destroy_cq`].
    pub fn destroy_cq(&self, cq: u32) -> Result<(), Cause> {
        self.check_process()?;
        self.with_core(|core, _| {
            core.engine.destroy_cq(cq)?;
            if let Some(events) = core.cq_owners.remove(&cq) {
                events.forget(|event| *event == AsyncEvent::CqErr { cq });
            }
            if let Some(entry) = core.cqs.get_mut(cq as usize).and_then(Option::take)
                && let Some(channel) = &entry.channel
            {
                channel.forget(cq);
            }
            Ok(())
        })
    }

    /// Makes a shared receive queue. Its events go to `events`.
    ///
    /// # Errors
    /// As [`Engine::create_srq`].
    pub fn create_srq(
        &self,
        pd: PdId,
        max_wr: u32,
        max_sge: u32,
        events: &Arc<EventQueue>,
    ) -> Result<(u32, Arc<RecvQueue>), Cause> {
        self.with_core(|core, _| {
            let (srq, queue) = core.engine.create_srq(pd, max_wr, max_sge)?;
            core.srq_owners.insert(srq, Arc::clone(events));
            Ok((srq, queue))
        })
    }

    /// Destroys a shared receive queue.
    ///
    /// # Errors
    /// As [`Engine::destroy_srq`].
    pub fn destroy_srq(&self, srq: u32) -> Result<(), Cause> {
        self.check_process()?;
        self.with_core(|core, _| {
            core.engine.destroy_srq(srq)?;
            if let Some(events) = core.srq_owners.remove(&srq) {
                let [failed, low] = [AsyncEvent::SrqErr { srq }, AsyncEvent::SrqLimit { srq }];
                events.forget(|event| *event == failed || *event == low);
            }
            Ok(())
        })
    }

    /// Somebody opened the device and wants its events.
    pub fn add_opener(&self, events: &Arc<EventQueue>) {
        self.with_core(|core, _| {
            core.openers.retain(|w| w.strong_count() > 0);
            core.openers.push(Arc::downgrade(events));
        });
    }

    /// Counters of the engine, and those of the port.
    pub fn counters(&self) -> (Counters, PortStats) {
        self.with_core(|core, _| {
            let stats = core.port.stats();
            core.engine.set_send_errors(stats.send_errors);
            (core.engine.counters().clone(), stats)
        })
    }

    /// Packets sent and received, as the last pass left them.
    #[cfg(feature = "unstable-internals")]
    pub fn moved(&self) -> (u64, u64) {
        (self.moved[0].load(Ordering::Relaxed), self.moved[1].load(Ordering::Relaxed))
    }

    /// Whether the port can work at present.
    pub fn is_up(&self) -> bool {
        self.with_core(|core, _| {
            core.look_at_port();
            core.is_up()
        })
    }

    /// Largest path MTU that the port carries at present.
    pub fn path_mtu(&self) -> Option<Mtu> {
        self.with_core(|core, _| {
            core.look_at_port();
            core.engine.caps().path_mtu()
        })
    }

    /// Has the port look at its interfaces: what has become of them is among the events when this returns.
    pub fn look_at_port(&self) {
        self.with_core(|core, _| core.look_at_port());
    }

    /// Somebody will sleep until there is an event. They come from now on whether there are queue pairs or not.
    ///
    /// # Errors
    /// The host gives no thread. `ENODEV` (child process).
    pub fn follow_port(self: &Arc<Self>) -> Result<(), Cause> {
        self.check_process()?;
        self.start_thread()?;
        self.look_at_port();
        self.hand_over();
        Ok(())
    }

    /// Something was posted: sends it from here if the engine is free, else leaves it to whoever is in it.
    #[inline]
    pub fn doorbell(&self, handle: QpHandle, face: &QpFace) {
        let mut report = None;
        let mut mine = Some(handle);
        let ran = self.core.try_drive(|core| {
            core.bells.extend(mine.take());
            report = Some(merge(report, self.run(core, Work::Send)));
        });
        if !ran {
            if face.ring() {
                self.bells.lock().push(handle);
                self.has_bells.store(true, Ordering::Release);
            }
            self.core.kick(|core| report = Some(merge(report, self.run(core, Work::Send))));
        }
        self.after(By::Post, report);
    }

    /// The application looks for completions and there are none: makes a pass, if nobody else is at it.
    ///
    /// In a simulation, lets everything happen that happens next.
    ///
    /// # Errors
    /// `EDEADLK` (simulation), `ENODEV` (child process).
    pub fn poll(&self) -> Result<(), Cause> {
        self.check_process()?;
        match &self.time {
            Time::Real { .. } => {
                let mut report = None;
                self.core
                    .try_drive(|core| report = Some(merge(report, self.run(core, Work::Poll))));
                self.after(By::Poll, report);
                Ok(())
            }
            Time::Virtual { time, .. } => {
                self.living()?;
                time.poll()
            }
        }
    }

    /// Blocks until `ready` or until `timeout` has passed (`Duration::MAX`: for ever). `false`: timed out.
    /// What makes `ready` true must notify `waiters`.
    ///
    /// # Errors
    /// `EDEADLK` (simulation): nothing is left to happen that could make it true. `ENODEV` (child process).
    pub fn wait(
        &self,
        waiters: &Waiters,
        ready: impl FnMut() -> bool,
        timeout: Duration,
    ) -> Result<bool, Cause> {
        self.check_process()?;
        match &self.time {
            Time::Real { clock, progress, .. } => {
                let deadline =
                    (timeout < Duration::from_secs(1 << 32)).then(|| clock.now() + timeout);
                Ok(progress.wait(self, waiters, ready, deadline))
            }
            Time::Virtual { time, .. } => {
                let mut ready = ready;
                let found = time.wait(|| self.is_dead() || ready(), timeout)?;
                self.living()?;
                Ok(found)
            }
        }
    }

    /// The application will sleep until it is told: somebody else must look after the port.
    pub fn hand_over(&self) {
        if self.is_here()
            && let Time::Real { progress, .. } = &self.time
        {
            progress.hand_over();
        }
    }

    fn start_thread(self: &Arc<Self>) -> Result<(), Cause> {
        match &self.time {
            Time::Real { progress, .. } => progress
                .start_thread(Arc::downgrade(self))
                .map_err(|e| Cause::io(&e, "starting the NIC's thread")),
            Time::Virtual { .. } => Ok(()),
        }
    }

    /// One pass, under the lock.
    fn run(&self, core: &mut Core, work: Work) -> Passed {
        let now = self.now();
        if self.has_bells.load(Ordering::Acquire) {
            self.has_bells.store(false, Ordering::Relaxed);
            core.bells.append(&mut self.bells.lock());
        }
        let (_inside, habit) = match &self.time {
            Time::Real { progress, .. } if work != Work::Serve => {
                (Some(progress.begin_pass()), progress.habit(now))
            }
            _ => (None, None),
        };
        self.land(core, now);
        let mut passed = core.pass(now, work, habit);
        // Somebody may ask how long ago the last pass was, and means its end.
        if passed.long && matches!(self.time, Time::Real { .. }) {
            passed.now = self.now();
        }
        #[cfg(feature = "unstable-internals")]
        {
            let counters = core.engine.counters();
            self.moved[0].store(counters.get(Counter::SentPkts), Ordering::Relaxed);
            self.moved[1].store(counters.get(Counter::RcvdPkts), Ordering::Relaxed);
        }
        if passed.wakers {
            self.wakers.lock().append(&mut core.wakers);
            self.has_wakers.store(true, Ordering::Release);
        }
        if let Time::Virtual { time, host, dead } = &self.time
            && !dead.load(Ordering::Acquire)
        {
            time.set_timer(*host, core.next_exact());
        }
        passed
    }

    /// What follows passes, without the lock: tasks are woken, and sleepers learn of earlier timeouts.
    fn after(&self, by: By, report: Option<Passed>) {
        let Some(passed) = report else { return };
        self.wake_tasks();
        if let Time::Real { progress, .. } = &self.time {
            progress.note_pass(by, passed.now, passed.next);
        }
    }

    fn wake_tasks(&self) {
        if self.has_wakers.load(Ordering::Acquire) && self.has_wakers.swap(false, Ordering::AcqRel)
        {
            let wakers = std::mem::take(&mut *self.wakers.lock());
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    /// A pass in virtual time: until nothing more happens at this instant.
    fn serve_virtual(&self) {
        // A bound against an engine that never comes to rest at one instant, which would be a bug.
        for _ in 0..1_000_000 {
            let mut report = None;
            self.core.drive(|core| report = Some(merge(report, self.run(core, Work::Serve))));
            self.wake_tasks();
            if report.is_none_or(|passed: Passed| !passed.progress) {
                return;
            }
        }
    }
}

impl Drive for Nic {
    fn try_pass(&self, by: By) -> Option<PassReport> {
        let mut report = None;
        self.core.try_drive(|core| report = Some(merge(report, self.run(core, work(by)))));
        self.wake_tasks();
        report.map(PassReport::from)
    }

    fn pass(&self, by: By) -> PassReport {
        let mut report = None;
        self.core.drive(|core| report = Some(merge(report, self.run(core, work(by)))));
        self.wake_tasks();
        report.map_or(PassReport { progress: false, next: Instant::FAR_FUTURE }, PassReport::from)
    }

    fn port_fd(&self) -> Option<PortFd<'_>> {
        #[cfg(all(feature = "udp", target_os = "linux"))]
        if let Time::Real { port, port_and_groups, .. } = &self.time {
            return port_and_groups.get().or(port.as_ref()).map(std::os::fd::AsFd::as_fd);
        }
        None
    }

    fn now(&self) -> Instant {
        Self::now(self)
    }
}

const fn work(by: By) -> Work {
    match by {
        By::Poll | By::Wait => Work::Poll,
        By::Post => Work::Send,
        By::Thread => Work::Serve,
    }
}

impl From<Passed> for PassReport {
    fn from(passed: Passed) -> Self {
        Self { progress: passed.progress, next: passed.next }
    }
}

/// One report for several passes.
fn merge(earlier: Option<Passed>, passed: Passed) -> Passed {
    Passed { progress: passed.progress | earlier.is_some_and(|e| e.progress), ..passed }
}

/// A NIC as its users hold it. With the last of them it closes: what it owes leaves, the thread has ended
/// and the socket is closed when that drop returns.
#[derive(Debug)]
pub struct OpenNic(Arc<Nic>);

impl OpenNic {
    /// Opens it.
    pub fn new(nic: Arc<Nic>) -> Arc<Self> {
        Arc::new(Self(nic))
    }

    /// The NIC.
    pub fn nic(&self) -> &Arc<Nic> {
        &self.0
    }
}

impl Drop for OpenNic {
    fn drop(&mut self) {
        if !self.0.is_here() {
            // All of it stays as it is, sockets included, until this process ends: it may be half changed.
            std::mem::forget(Arc::clone(&self.0));
            return;
        }
        match &self.0.time {
            Time::Real { progress, .. } => {
                self.0.core.drive(|core| {
                    self.0.run(core, Work::Send);
                });
                // The thread borrows the NIC only while it makes a pass: after this, nobody does.
                progress.stop();
            }
            Time::Virtual { time, .. } => time.forget(&self.0),
        }
    }
}

impl fmt::Debug for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nic").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}
