//! How a thread sleeps until somebody wakes it or a port has something.
//!
//! Owns one sleeping place per thread: an eventfd and a latch before it. The latch keeps system calls
//! away from whoever is awake: waking a thread that does not sleep is one atomic exchange, and a thread
//! that was woken before it lay down does not go to the kernel.
//!
//! *Rules.* A wake-up is never lost, it may be spurious: the sleeper looks for itself what changed. Only
//! the owner of a [`Wake`] sleeps on it, anybody may wake it.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::Arc;

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::time::Duration;

use super::handover::Sleep;

use self::imp::Alarm;

/// The readiness of a port, as something that a thread can sleep on.
#[cfg(unix)]
pub type PortFd<'a> = std::os::fd::BorrowedFd<'a>;
/// The readiness of a port: there are none on this platform.
#[cfg(not(unix))]
pub type PortFd<'a> = &'a std::convert::Infallible;

/// Longest sleep of a thread that cannot be woken: when the host had no descriptor left for its eventfd,
/// or has no way to sleep on a port and an alarm at once.
const BLIND: Duration = Duration::from_millis(1);

/// Decides who must go to the kernel.
///
/// Sleeper: [`Latch::lie_down`], sleep if told so, [`Latch::get_up`]. Waker: [`Latch::wake`], ring if told
/// so. What the waker did before is seen by the sleeper afterwards.
#[derive(Debug)]
pub(super) struct Latch(AtomicU32);

impl Latch {
    const AWAKE: u32 = 0;
    const ASLEEP: u32 = 1;
    const WOKEN: u32 = 2;

    pub(super) fn new() -> Self {
        Self(AtomicU32::new(Self::AWAKE))
    }

    /// Whether to sleep; `false` if a wake-up came since the last [`Latch::get_up`], which this consumes.
    pub(super) fn lie_down(&self) -> bool {
        let (from, to) = (Self::AWAKE, Self::ASLEEP);
        let asleep = self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if !asleep {
            self.get_up();
        }
        asleep
    }

    /// Ends a sleep. Whether somebody woke us, who then has rung the alarm or is about to.
    pub(super) fn get_up(&self) -> bool {
        self.0.swap(Self::AWAKE, Ordering::AcqRel) == Self::WOKEN
    }

    /// Whether the alarm must be rung: the owner sleeps.
    pub(super) fn wake(&self) -> bool {
        self.0.swap(Self::WOKEN, Ordering::AcqRel) == Self::ASLEEP
    }
}

/// The sleeping place of one thread.
#[derive(Debug)]
pub struct Wake {
    latch: Latch,
    alarm: Alarm,
    rings: AtomicU64,
    sleeps: AtomicU64,
}

impl Wake {
    /// A new sleeping place.
    pub fn new() -> Self {
        Self {
            latch: Latch::new(),
            alarm: Alarm::new(),
            rings: AtomicU64::new(0),
            sleeps: AtomicU64::new(0),
        }
    }

    /// The one of this thread, made at its first use and kept for the next.
    pub(super) fn of_thread() -> OfThread {
        // A nested sleep finds the place taken and gets one of its own.
        let kept = KEPT.try_with(Cell::take).ok().flatten();
        OfThread(kept.unwrap_or_else(|| Arc::new(Self::new())))
    }

    /// Wakes the owner, or keeps it from falling asleep next time. A system call only if it sleeps.
    pub fn wake(&self) {
        if self.latch.wake() {
            self.rings.fetch_add(1, Ordering::Relaxed);
            self.alarm.ring();
        }
    }

    /// Sleeps until woken, until `port` is readable, or until `timeout` has passed (`None`: for ever).
    ///
    /// May return for no reason, for example after a signal. To be called by the owner alone.
    pub fn sleep(&self, port: Option<PortFd<'_>>, timeout: Option<Duration>) {
        if timeout.is_some_and(|timeout| timeout.is_zero()) || !self.latch.lie_down() {
            return;
        }
        self.sleeps.fetch_add(1, Ordering::Relaxed);
        let rung = self.alarm.sleep(port, timeout);
        // Both: the waker sets the latch before it rings, and a ring may be late for its own wake-up.
        if self.latch.get_up() || rung {
            self.alarm.silence();
        }
    }

    /// How often somebody had to make a system call to wake the owner.
    pub fn rings(&self) -> u64 {
        self.rings.load(Ordering::Relaxed)
    }

    /// How often the owner went to sleep.
    pub fn sleeps(&self) -> u64 {
        self.sleeps.load(Ordering::Relaxed)
    }
}

impl Sleep for Wake {
    fn wake(&self) {
        Self::wake(self);
    }
}

impl Default for Wake {
    fn default() -> Self {
        Self::new()
    }
}

thread_local! {
    static KEPT: Cell<Option<Arc<Wake>>> = const { Cell::new(None) };
}

/// The sleeping place of this thread while it is in use.
pub(super) struct OfThread(Arc<Wake>);

impl Deref for OfThread {
    type Target = Arc<Wake>;
    fn deref(&self) -> &Arc<Wake> {
        &self.0
    }
}

impl Drop for OfThread {
    fn drop(&mut self) {
        // A thread that is ending has no use for it.
        let _ = KEPT.try_with(|kept| kept.set(Some(Arc::clone(&self.0))));
    }
}

#[cfg(all(target_os = "linux", feature = "udp"))]
mod imp {
    use std::os::fd::AsFd;

    use nix::poll::{PollFd, PollFlags, ppoll};
    use nix::sys::eventfd::{EfdFlags, EventFd};
    use nix::sys::time::TimeSpec;

    use super::{BLIND, Duration, PortFd};

    /// An eventfd (eventfd(2)); `None` when the host had no descriptor left.
    #[derive(Debug)]
    pub(super) struct Alarm(Option<EventFd>);

    impl Alarm {
        pub(super) fn new() -> Self {
            let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
            Self(EventFd::from_flags(flags).ok())
        }

        pub(super) fn ring(&self) {
            // It can fail only when the count is at its limit, and then it is rung already.
            let _ = self.0.as_ref().map(|fd| fd.write(1));
        }

        pub(super) fn silence(&self) {
            let _ = self.0.as_ref().map(EventFd::read);
        }

        /// Whether the alarm rings. Errors (a signal, or no memory) count as waking up for no reason.
        pub(super) fn sleep(&self, port: Option<PortFd<'_>>, timeout: Option<Duration>) -> bool {
            let ring = self.0.as_ref().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN));
            let port = port.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            let timeout = match ring {
                Some(_) => timeout,
                None => Some(timeout.map_or(BLIND, |timeout| timeout.min(BLIND))),
            };
            let timeout = timeout.map(TimeSpec::from_duration);
            match (ring, port) {
                (Some(ring), Some(port)) => {
                    let mut fds = [ring, port];
                    let _ = ppoll(&mut fds, timeout, None);
                    fds[0].any().unwrap_or(true)
                }
                (Some(ring), None) => {
                    let mut fds = [ring];
                    let _ = ppoll(&mut fds, timeout, None);
                    fds[0].any().unwrap_or(true)
                }
                (None, Some(port)) => {
                    let _ = ppoll(&mut [port], timeout, None);
                    false
                }
                (None, None) => {
                    let _ = ppoll(&mut [], timeout, None);
                    false
                }
            }
        }
    }
}

#[cfg(not(all(target_os = "linux", feature = "udp")))]
mod imp {
    use parking_lot::{Condvar, Mutex};

    use super::{BLIND, Duration, PortFd};

    /// A flag under a lock. It cannot watch a port: whoever has one looks again after [`BLIND`].
    #[derive(Debug)]
    pub(super) struct Alarm {
        rung: Mutex<bool>,
        changed: Condvar,
    }

    impl Alarm {
        pub(super) fn new() -> Self {
            Self { rung: Mutex::new(false), changed: Condvar::new() }
        }

        pub(super) fn ring(&self) {
            *self.rung.lock() = true;
            self.changed.notify_one();
        }

        pub(super) fn silence(&self) {
            *self.rung.lock() = false;
        }

        pub(super) fn sleep(&self, port: Option<PortFd<'_>>, timeout: Option<Duration>) -> bool {
            let timeout = match port {
                Some(_) => Some(timeout.map_or(BLIND, |timeout| timeout.min(BLIND))),
                None => timeout,
            };
            let mut rung = self.rung.lock();
            if !*rung {
                match timeout {
                    Some(timeout) => {
                        self.changed.wait_for(&mut rung, timeout);
                    }
                    None => self.changed.wait(&mut rung),
                }
            }
            *rung
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn waking_the_awake_costs_no_system_call() {
        let wake = Wake::new();
        wake.wake();
        wake.wake();
        assert_eq!(wake.rings(), 0);
        // Consumed without going to the kernel, however long the sleep was to be.
        wake.sleep(None, None);
        assert_eq!(wake.sleeps(), 0);
        // And only once: this one sleeps, and ends by itself.
        wake.sleep(None, Some(Duration::from_micros(1)));
        assert_eq!(wake.sleeps(), 1);
    }

    #[test]
    fn no_time_no_sleep() {
        let wake = Wake::new();
        wake.sleep(None, Some(Duration::ZERO));
        assert_eq!(wake.sleeps(), 0);
    }

    #[test]
    fn threads_wake_each_other() {
        const ROUNDS: u32 = 2_000;
        let turn = AtomicU32::new(0);
        let sides = [Wake::new(), Wake::new()];
        thread::scope(|scope| {
            for me in 0..2 {
                let (turn, sides) = (&turn, &sides);
                scope.spawn(move || {
                    let (mine, other) = (&sides[me], &sides[1 - me]);
                    for round in 0..ROUNDS {
                        while turn.load(Ordering::Relaxed) % 2 != u32::from(me == 1) {
                            mine.sleep(None, None);
                        }
                        turn.store(2 * round + if me == 0 { 1 } else { 2 }, Ordering::Relaxed);
                        other.wake();
                    }
                });
            }
        });
        assert_eq!(turn.into_inner(), 2 * ROUNDS);
        // A wake-up costs at most one call, and a late ring at most one more sleep.
        for side in &sides {
            assert!(side.rings() <= u64::from(ROUNDS), "{side:?}");
        }
    }

    #[test]
    fn a_thread_keeps_its_place() {
        let first = Arc::as_ptr(&Wake::of_thread());
        let outer = Wake::of_thread();
        assert_eq!(Arc::as_ptr(&outer), first);
        let inner = Wake::of_thread();
        assert_ne!(Arc::as_ptr(&inner), first);
    }

    #[cfg(all(target_os = "linux", feature = "udp"))]
    #[test]
    fn a_readable_port_ends_the_sleep() {
        use std::os::fd::AsFd;

        let port = nix::sys::eventfd::EventFd::from_value(1).expect("a descriptor");
        let wake = Wake::new();
        wake.sleep(Some(port.as_fd()), None);
        assert_eq!(wake.sleeps(), 1);
    }
}
