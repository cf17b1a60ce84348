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
#[cfg(all(test, loom))]
mod models;
pub mod notify;
pub mod progress;
pub mod signal;
pub mod virtual_time;
pub mod wake;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::Waker;

use parking_lot::Mutex;

use self::clock::MonotonicClock;
use self::combine::Combine;
use self::core::{Core, Passed, Work};
use self::notify::{Channel, CqNotify, EventQueue};
use self::progress::{By, Drive, PassReport, Progress, ProgressConfig, Waiters};
use self::virtual_time::VirtualTime;
use self::wake::PortFd;

use crate::engine::cause::Cause;
use crate::engine::{Engine, EngineConfig, LocalGid, QpFace, QpHandle, QpInit};
use crate::port::{Port, PortAddress, PortStats, RxBatch};
use crate::time::{Duration, Instant};

/// Buffers of a pass: each holds what a socket delivers at once.
const RX_BUFFERS: usize = 8;

/// Who keeps the time of a NIC, and who drives it.
enum Time {
    Real {
        clock: MonotonicClock,
        progress: Arc<Progress>,
        /// A descriptor of our own that becomes readable with the port.
        #[cfg(all(feature = "udp", target_os = "linux"))]
        port: Option<std::os::fd::OwnedFd>,
    },
    Virtual(Arc<VirtualTime>),
}

/// A NIC. Shared by everything that was made on it.
pub struct Nic {
    core: Combine<Core>,
    /// Doorbells rung while somebody else was in the engine.
    bells: Mutex<Vec<QpHandle>>,
    wakers: Mutex<Vec<Waker>>,
    has_wakers: AtomicBool,
    time: Time,
    /// When the engine wants to be called again, as the last pass left it (virtual time).
    next: AtomicU64,
    addresses: Vec<PortAddress>,
    guid: u64,
}

impl Nic {
    /// A NIC on a real port.
    ///
    /// # Errors
    /// The system gives no entropy or no descriptor.
    pub fn real(port: Box<dyn Port>, progress: ProgressConfig) -> Result<Arc<Self>, Cause> {
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
        };
        let rx = RxBatch::new(RX_BUFFERS, RxBatch::WHOLE);
        let around = |core| Combine::with_relief(core, move || relief.relieve());
        Ok(Arc::new(Self::build(port, EngineConfig::new(seed), rx, time, around)))
    }

    /// A NIC on a simulated network.
    pub fn simulated(port: Box<dyn Port>, config: EngineConfig, time: Arc<VirtualTime>) -> Arc<Self> {
        // The network hands out single datagrams.
        let rx = RxBatch::new(64, 8 << 10);
        Arc::new(Self::build(port, config, rx, Time::Virtual(time), Combine::new))
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
        let engine = Engine::new(config, port.caps(), gids);
        let guid = device::guid(&addresses);
        Self {
            core: around(Core::new(engine, port, rx)),
            bells: Mutex::new(Vec::new()),
            wakers: Mutex::new(Vec::new()),
            has_wakers: AtomicBool::new(false),
            time,
            next: AtomicU64::new(u64::MAX),
            addresses,
            guid,
        }
    }

    /// Its addresses, in the order of the GID table.
    pub fn addresses(&self) -> &[PortAddress] {
        &self.addresses
    }

    /// Its identifier.
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// Whether it is part of a simulation.
    pub fn virtual_time(&self) -> Option<&Arc<VirtualTime>> {
        match &self.time {
            Time::Virtual(time) => Some(time),
            Time::Real { .. } => None,
        }
    }

    /// What time it is for this NIC.
    pub fn now(&self) -> Instant {
        match &self.time {
            Time::Real { clock, .. } => clock.now(),
            Time::Virtual(time) => time.now(),
        }
    }

    /// Refuses calls from where they would deadlock (a tap of the simulation).
    ///
    /// # Errors
    /// `EDEADLK`.
    pub fn enter(&self) -> Result<(), Cause> {
        match &self.time {
            Time::Real { .. } => Ok(()),
            Time::Virtual(time) => time.enter(),
        }
    }

    /// Runs a control verb: `f` has the engine to itself; what it leaves to be sent is sent.
    pub fn control<R>(&self, f: impl FnOnce(&mut Engine, Instant) -> R) -> R {
        let mut passed = None;
        let result = self.core.with(
            |core| {
                let now = self.now();
                let result = f(&mut core.engine, now);
                passed = Some(self.finish(core, now, Work::Send));
                result
            },
            |core| drop(self.run(core, Work::Send)),
        );
        if let Some(passed) = passed {
            self.after(By::Post, passed);
        }
        result
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
        let made = self.core.with(
            |core| {
                let made = core.engine.create_qp(init);
                if let Ok((_, face)) = &made {
                    core.owners.insert(face.qpn().raw(), Arc::clone(events));
                    // Ringing must not allocate.
                    let many = core.engine.qp_count();
                    core.bells.reserve(many);
                    self.bells.lock().reserve(many);
                }
                made
            },
            |core| drop(self.run(core, Work::Send)),
        )?;
        Ok(made)
    }

    /// Destroys a queue pair, after it has sent the answers that it owes.
    ///
    /// # Errors
    /// As [`Engine::destroy_qp`].
    pub fn destroy_qp(&self, handle: QpHandle, qpn: u32) -> Result<(), Cause> {
        self.core.with(
            |core| {
                core.farewell(self.now(), handle);
                core.owners.remove(&qpn);
                core.engine.destroy_qp(handle)
            },
            |core| drop(self.run(core, Work::Send)),
        )
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
        self.core.with(
            |core| {
                let (cq, shared) = core.engine.create_cq(depth)?;
                let entry = Arc::new(CqNotify::new(cq, shared, channel));
                let index = cq as usize;
                if core.cqs.len() <= index {
                    core.cqs.resize(index + 1, None);
                }
                core.cqs[index] = Some(Arc::clone(&entry));
                core.cq_owners.insert(cq, Arc::clone(events));
                Ok(entry)
            },
            |core| drop(self.run(core, Work::Send)),
        )
    }

    /// Destroys a completion queue.
    ///
    /// # Errors
    /// As [`Engine::destroy_cq`].
    pub fn destroy_cq(&self, cq: u32) -> Result<(), Cause> {
        self.core.with(
            |core| {
                core.engine.destroy_cq(cq)?;
                core.cq_owners.remove(&cq);
                if let Some(entry) = core.cqs.get_mut(cq as usize).and_then(Option::take)
                    && let Some(channel) = &entry.channel
                {
                    channel.forget(cq);
                }
                Ok(())
            },
            |core| drop(self.run(core, Work::Send)),
        )
    }

    /// Somebody opened the device and wants its events.
    pub fn add_opener(&self, events: &Arc<EventQueue>) {
        self.core.with(
            |core| {
                core.openers.retain(|w| w.strong_count() > 0);
                core.openers.push(Arc::downgrade(events));
            },
            |core| drop(self.run(core, Work::Send)),
        );
    }

    /// Counters of the port.
    pub fn port_stats(&self) -> PortStats {
        self.core.with(|core| core.port.stats(), |core| drop(self.run(core, Work::Send)))
    }

    /// Whether the port failed for good.
    pub fn is_broken(&self) -> bool {
        self.core.with(|core| core.is_broken(), |core| drop(self.run(core, Work::Send)))
    }

    /// Something was posted: sends it from here if the engine is free, else leaves it to whoever is in it.
    #[inline]
    pub fn doorbell(&self, handle: QpHandle, face: &QpFace) {
        let mut passed = None;
        let mut first = true;
        let ran = self.core.try_drive(|core| {
            if first {
                first = false;
                core.bells.push(handle);
            }
            passed = Some(self.run(core, Work::Send));
        });
        if !ran {
            if face.ring() {
                self.bells.lock().push(handle);
            }
            self.core.kick(|core| passed = Some(self.run(core, Work::Send)));
        }
        if let Some(passed) = passed {
            self.after(By::Post, passed);
        }
    }

    /// The application looks for completions and there are none: makes a pass, if nobody else is at it.
    ///
    /// In a simulation, lets everything happen that happens next.
    ///
    /// # Errors
    /// `EDEADLK` (simulation).
    pub fn poll(&self) -> Result<(), Cause> {
        match &self.time {
            Time::Real { .. } => {
                let mut passed = None;
                self.core.try_drive(|core| passed = Some(self.run(core, Work::Poll)));
                if let Some(passed) = passed {
                    self.after(By::Poll, passed);
                }
                Ok(())
            }
            Time::Virtual(time) => time.poll(),
        }
    }

    /// Blocks until `ready` or until `timeout` has passed (`Duration::MAX`: for ever). `false`: timed out.
    /// What makes `ready` true must notify `waiters`.
    ///
    /// # Errors
    /// `EDEADLK` (simulation): nothing is left to happen that could make it true.
    pub fn wait(
        &self,
        waiters: &Waiters,
        ready: impl FnMut() -> bool,
        timeout: Duration,
    ) -> Result<bool, Cause> {
        match &self.time {
            Time::Real { clock, progress, .. } => {
                let deadline = (timeout < Duration::from_secs(1 << 32)).then(|| clock.now() + timeout);
                Ok(progress.wait(self, waiters, ready, deadline))
            }
            Time::Virtual(time) => time.wait(ready, timeout),
        }
    }

    /// The application will sleep until it is told: somebody else must look after the port.
    pub fn hand_over(&self) {
        if let Time::Real { progress, .. } = &self.time {
            progress.hand_over();
        }
    }

    fn start_thread(self: &Arc<Self>) -> Result<(), Cause> {
        match &self.time {
            Time::Real { progress, .. } => progress
                .start_thread(Arc::downgrade(self))
                .map_err(|e| Cause::io(&e, "starting the NIC's thread")),
            Time::Virtual(_) => Ok(()),
        }
    }

    /// One pass, under the lock.
    fn run(&self, core: &mut Core, work: Work) -> Passed {
        let now = self.now();
        self.finish(core, now, work)
    }

    fn finish(&self, core: &mut Core, now: Instant, work: Work) -> Passed {
        {
            let mut bells = self.bells.lock();
            if !bells.is_empty() {
                core.bells.append(&mut bells);
            }
        }
        let passed = core.pass(now, work);
        if passed.wakers {
            self.wakers.lock().append(&mut core.wakers);
            self.has_wakers.store(true, Ordering::Release);
        }
        if matches!(self.time, Time::Virtual(_)) {
            self.next.store(core.next_exact(now).as_nanos(), Ordering::Relaxed);
        }
        passed
    }

    /// What follows a pass, without the lock.
    fn after(&self, by: By, passed: Passed) {
        if self.has_wakers.load(Ordering::Acquire) && self.has_wakers.swap(false, Ordering::AcqRel) {
            let wakers = std::mem::take(&mut *self.wakers.lock());
            wakers.into_iter().for_each(Waker::wake);
        }
        if let Time::Real { progress, clock, .. } = &self.time {
            progress.note_pass(by, clock.now(), passed.next);
        }
    }

    /// A pass in virtual time: until nothing more happens at this instant.
    fn serve_virtual(&self) {
        for _ in 0..1_000_000 {
            let mut passed = None;
            self.core.drive(|core| passed = Some(self.run(core, Work::Serve)));
            let Some(passed) = passed else { return };
            self.after(By::Thread, passed);
            if !passed.progress {
                return;
            }
        }
    }

    /// When the engine wants to be called again, as the last pass left it (virtual time).
    fn next_virtual(&self) -> Instant {
        Instant::from_nanos(self.next.load(Ordering::Relaxed))
    }
}

impl Drive for Nic {
    fn try_pass(&self, by: By) -> Option<PassReport> {
        let work = if by == By::Thread { Work::Serve } else { Work::Poll };
        let mut report = None;
        self.core.try_drive(|core| merge(&mut report, self.run(core, work)));
        report.map(|passed| self.report(passed))
    }

    fn pass(&self, by: By) -> PassReport {
        let work = if by == By::Thread { Work::Serve } else { Work::Poll };
        let mut report = None;
        self.core.drive(|core| merge(&mut report, self.run(core, work)));
        report.map_or(
            PassReport { progress: false, next: Instant::FAR_FUTURE },
            |passed| self.report(passed),
        )
    }

    fn port_fd(&self) -> Option<PortFd<'_>> {
        #[cfg(all(feature = "udp", target_os = "linux"))]
        if let Time::Real { port: Some(fd), .. } = &self.time {
            return Some(std::os::fd::AsFd::as_fd(fd));
        }
        None
    }

    fn now(&self) -> Instant {
        Self::now(self)
    }
}

impl Nic {
    fn report(&self, passed: Passed) -> PassReport {
        if self.has_wakers.load(Ordering::Acquire) && self.has_wakers.swap(false, Ordering::AcqRel) {
            let wakers = std::mem::take(&mut *self.wakers.lock());
            wakers.into_iter().for_each(Waker::wake);
        }
        PassReport { progress: passed.progress, next: passed.next }
    }
}

/// One report for several passes.
fn merge(report: &mut Option<Passed>, passed: Passed) {
    let progress = passed.progress | report.is_some_and(|r: Passed| r.progress);
    *report = Some(Passed { progress, ..passed });
}

impl Drop for Nic {
    fn drop(&mut self) {
        match &self.time {
            Time::Real { progress, .. } => {
                // The last answers leave before the socket closes.
                self.core.drive(|core| drop(self.run(core, Work::Send)));
                progress.stop();
            }
            Time::Virtual(time) => time.forget(self),
        }
    }
}

impl fmt::Debug for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nic").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// A NIC that may be gone.
pub type WeakNic = Weak<Nic>;
