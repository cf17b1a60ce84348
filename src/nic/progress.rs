//! Who makes progress when: the application while it polls or waits, a background thread otherwise.
//!
//! Owns the background thread, the token of responsibility for the port ([`super::handover`] decides who
//! has it) and the knowledge of whether the application polls. Knows neither engine nor sockets: it drives
//! whatever implements [`Drive`].
//!
//! # How it works
//!
//! - *The application polls.* Each empty poll makes a pass, so port and timers are served without anybody
//!   else. The background thread naps: it leaves the port alone and looks every millisecond whether that is
//!   still so. Polling means at least [`STEADY`] passes since the last [`Progress::hand_over`], the last
//!   one not longer ago than 50 us. (The count is there for the standard sequence poll, arm, poll, sleep:
//!   its last poll is no reason to nap.)
//! - *The application waits.* [`Progress::wait`] first polls a little. If that was not enough it takes the
//!   token, from the background thread if need be, and sleeps on the port itself, up to the engine's next
//!   timeout: no hand-over between threads when the datagram comes. More waiters stand by; the first of
//!   them is promoted when the holder leaves.
//! - *The application computes.* The background thread has the token, sleeps on the port and serves
//!   incoming requests, retransmissions and armed completion queues. After traffic it looks on for up to
//!   50 us, yielding the core each time, before it sleeps again.
//! - *Nothing happens.* Whoever has the token sleeps in one `ppoll` without timeout, if the engine has no
//!   timer running. No periodic wake-ups.
//!
//! # Lost wake-ups, and what prevents each
//!
//! | race | prevented by |
//! |---|---|
//! | a doorbell while the lock is released | [`super::combine`]: ring and re-check are read-modify-writes of one word |
//! | a completion between the last look and the sleep | [`Waiters`]: register, then look; publish, then ask (same kind of word), and a wake-up that is latched |
//! | the token is released while another waiter falls asleep | giving and queueing happen under one lock, and the heir is woken |
//! | a post pulls a timer earlier while the holder sleeps, or is about to | the holder announces its sleep before its last pass; every pass compares its next timeout with that |
//! | the thread is stopped while it sleeps, or is about to | the flag is read under the same lock, and the wake-up is latched |
//! | a queue is armed while the thread decides to nap | whether to nap is asked under the lock that the hand-over takes |
//! | the application stops polling while the thread naps | naps are short: it looks again after a millisecond |
//!
//! `models.rs` runs these through loom.

use std::fmt;
use std::io;
use std::sync::atomic::AtomicU32 as StaticAtomicU32;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};

use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering};
use crate::time::{Duration, Instant};

use super::handover::{Handover, Rest, Rounds, WaiterList, Who};
use super::wake::{PortFd, Wake};

#[cfg(all(test, not(loom)))]
mod tests;

/// Passes since the last hand-over from which on the application counts as polling.
pub const STEADY: u32 = 16;

/// Looks that `wait` takes before it may sleep, where there is a second core: enough for an answer that is
/// on its way.
const FEW_LOOKS: u32 = 16;

/// Who made a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The application, for its own work: posting, control verbs. Need not have looked at the port.
    Post,
    /// The application, looking for completions.
    Poll,
    /// The application inside [`Progress::wait`].
    Wait,
    /// The background thread.
    Thread,
}

/// How the application goes about getting its completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    /// It looks all the time: it polls, or what it waits for comes before it would fall asleep.
    Looks,
    /// It waits for one thing after the other, asleep.
    Sleeps,
}

/// What came of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassReport {
    /// Something moved, or a bound was reached: it is worth passing again at once.
    pub progress: bool,
    /// The engine's earliest timeout; [`Instant::FAR_FUTURE`] if there is none.
    pub next: Instant,
}

/// What progress drives.
///
/// All passes, those asked for here and those that the application makes, run under one lock
/// ([`Combine`](super::combine::Combine)). Each reads the engine's timeout under it. After each, without the
/// lock, the [`Waiters`] of those completion queues that got entries are notified, and no others: a waiter
/// notified in vain does not sleep. Where one call makes several passes, the report is of all: whether
/// any moved something, and what the last one read. Passes that were not asked for here are reported to
/// [`Progress::note_pass`].
pub trait Drive: Send + Sync + 'static {
    /// One bounded pass (receive, timers, doorbells, transmit) if the engine's lock is free. `None`:
    /// somebody else is in it.
    fn try_pass(&self, by: By) -> Option<PassReport>;

    /// One bounded pass, waiting for the lock.
    fn pass(&self, by: By) -> PassReport;

    /// Becomes readable when a pass would receive something. `None` for a port that cannot be slept on:
    /// it is looked at every millisecond.
    fn port_fd(&self) -> Option<PortFd<'_>>;

    /// What time it is, on the clock of the engine.
    fn now(&self) -> Instant;
}

/// Who drives the NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The application where it polls or waits, the background thread otherwise.
    #[default]
    Hybrid,
    /// The application alone. Nothing happens while it does not poll, post or wait: peers' requests go
    /// unanswered and lost packets stay lost.
    Manual,
    /// The background thread always; waiters only sleep.
    Dedicated {
        /// How long the thread goes on looking, yielding each time, after the last thing that moved.
        spin: Duration,
    },
}

/// How progress is made. The default suits all but benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgressConfig {
    /// Who drives the NIC.
    pub mode: Mode,
    /// How long a waiter, and the background thread of [`Mode::Hybrid`] after traffic, look before they
    /// sleep. Zero: one look.
    pub spin: Duration,
    /// How long after its last pass the application counts as polling.
    pub fresh: Duration,
    /// How long the holder of the token leaves the port alone while the application polls.
    pub nap: Duration,
}

impl ProgressConfig {
    /// `SOFTROCE_SPIN_US`: overrides [`ProgressConfig::spin`], in microseconds.
    pub const SPIN_VARIABLE: &str = "SOFTROCE_SPIN_US";

    /// The defaults: 50 us of looking, 50 us of freshness, naps of 1 ms.
    pub const fn new(mode: Mode) -> Self {
        Self {
            mode,
            spin: Duration::from_micros(50),
            fresh: Duration::from_micros(50),
            nap: Duration::from_millis(1),
        }
    }

    /// As [`ProgressConfig::new`], with what the environment says. A value that is no number is ignored.
    pub fn from_env(mode: Mode) -> Self {
        let spin = std::env::var(Self::SPIN_VARIABLE).ok();
        Self::new(mode).with_spin_us(spin.as_deref())
    }

    fn with_spin_us(mut self, text: Option<&str>) -> Self {
        if let Some(us) = text.and_then(|text| text.trim().parse().ok()) {
            self.spin = Duration::from_micros(us);
        }
        self
    }
}

impl Default for ProgressConfig {
    fn default() -> Self {
        Self::new(Mode::Hybrid)
    }
}

/// Threads that wait for a completion queue, or for another thing that they can see for themselves.
///
/// Cheap while nobody waits, but not free: one locked instruction per [`Waiters::notify`]. A plain load
/// would lose wake-ups.
pub struct Waiters(WaiterList<Wake>);

impl Waiters {
    /// Nobody waits.
    pub fn new() -> Self {
        Self(WaiterList::new())
    }

    /// Wakes those who wait. To be called after the completion was published, outside the engine's lock.
    #[inline]
    pub fn notify(&self) {
        self.0.notify();
    }
}

impl Default for Waiters {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Waiters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiters").finish_non_exhaustive()
    }
}

/// How often threads went to sleep on behalf of a NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgressStats {
    /// On the port, responsible for it.
    pub watches: u64,
    /// Leaving the port to an application that polls.
    pub naps: u64,
    /// While somebody else was responsible.
    pub stand_bys: u64,
}

/// Makes the passes that nobody else makes. One per NIC.
pub struct Progress {
    handover: Handover<Wake>,
    polls: Beat,
    waits: Beat,
    /// The last wait was not over before the waiter would fall asleep.
    sleeps: AtomicBool,
    /// The application is inside a pass.
    inside: AtomicBool,
    /// Threads that are looking, inside `wait`.
    looking: AtomicU32,
    config: ProgressConfig,
    cores: u32,
    counts: [AtomicU64; 3],
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Progress {
    /// Nothing runs yet: see [`Progress::start_thread`].
    pub fn new(config: ProgressConfig) -> Arc<Self> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Arc::new(Self {
            handover: Handover::new(matches!(config.mode, Mode::Dedicated { .. })),
            polls: Beat::new(),
            waits: Beat::new(),
            sleeps: AtomicBool::new(false),
            inside: AtomicBool::new(false),
            looking: AtomicU32::new(0),
            config,
            cores: u32::try_from(cores).unwrap_or(u32::MAX),
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            thread: Mutex::new(None),
        })
    }

    /// The application begins a pass, under the engine's lock. Until the guard is dropped it does not count as
    /// absent, however long the pass takes: one that sends much takes longer than
    /// [`ProgressConfig::fresh`].
    #[inline]
    pub fn begin_pass(&self) -> InPass<'_> {
        self.inside.store(true, Ordering::Relaxed);
        InPass(&self.inside)
    }

    /// The application made a pass, or several in a row: the last one, at `now`, left the engine with the
    /// timeout `next`. Wakes whoever would sleep past that. To be called after every pass that was not
    /// asked for through [`Drive`], by the thread that made it, without the engine's lock.
    #[inline]
    pub fn note_pass(&self, by: By, now: Instant, next: Instant) {
        match by {
            By::Poll => self.polls.beat(now),
            By::Wait => self.waits.beat(now),
            By::Post | By::Thread => {}
        }
        self.handover.note(next);
    }

    /// Blocks until `ready()`, or until `deadline` on the clock of `drive`. `false`: timed out.
    ///
    /// A completion that comes within a few microseconds costs no system call but the port's own. `ready`
    /// is called often and must not block. What makes it true must be followed by a
    /// [`notify`](Waiters::notify) of `waiters`.
    pub fn wait<D: Drive>(
        &self,
        drive: &D,
        waiters: &Waiters,
        mut ready: impl FnMut() -> bool,
        deadline: Option<Instant>,
    ) -> bool {
        if ready() {
            return true;
        }
        let looked = self.look(drive, &mut ready, deadline);
        self.sleeps.store(looked.is_none(), Ordering::Relaxed);
        if let Some(found) = looked {
            return found;
        }
        // Whoever waits does not poll. Another thread that does will show it again soon enough.
        self.polls.reset();
        let me = Wake::of_thread();
        let _registration = waiters.0.register(&me);
        self.handover.enter(&me);
        let _seat = Seat { progress: self, drive, me: &me };
        let mut rounds = Waiting {
            progress: self,
            drive,
            me: &me,
            ready,
            found: false,
            deadline: deadline.unwrap_or(Instant::FAR_FUTURE),
            spinner: None,
            spin_until: Instant::ZERO,
        };
        self.handover.stay(Who::Waiter(&me), &mut rounds);
        rounds.found
    }

    /// Looks for a while without going to sleep. `None`: it did not help.
    fn look<D: Drive>(
        &self,
        drive: &D,
        ready: &mut impl FnMut() -> bool,
        deadline: Option<Instant>,
    ) -> Option<bool> {
        let spinner = Spinner::new(self.cores);
        let _looking = Looking::new(&self.looking);
        let drives = !self.is_dedicated();
        let few = if self.cores > 1 && !self.config.spin.is_zero() { FEW_LOOKS } else { 1 };
        let mut until = None;
        for looks in 1_u32.. {
            if drives && let Some(report) = drive.try_pass(By::Wait) {
                self.handover.note(report.next);
            }
            if ready() {
                return Some(true);
            }
            let now = drive.now();
            if drives {
                self.waits.beat(now);
            }
            if deadline.is_some_and(|deadline| deadline <= now) {
                return Some(false);
            }
            let until = *until.get_or_insert(now + self.config.spin);
            if looks >= few && (now >= until || !spinner.welcome) {
                return None;
            }
            if looks < few {
                std::hint::spin_loop();
            } else {
                // Whoever is to answer may be waiting for this core: two processes share one by chance.
                thread::yield_now();
            }
        }
        None
    }

    /// The application stops looking and relies on being told: it armed a completion queue, or took a
    /// descriptor to sleep on. The background thread looks after the port at once.
    pub fn hand_over(&self) {
        self.polls.reset();
        self.waits.reset();
        self.handover.attend();
    }

    /// Has a pass made soon by somebody else. `false` if there is no background thread to see to that.
    ///
    /// The relief of a [`Combine`](super::combine::Combine) whose holder has served others for long enough.
    pub fn relieve(&self) -> bool {
        self.handover.relieve()
    }

    /// Starts the background thread, unless it runs, was stopped, or the mode is [`Mode::Manual`].
    ///
    /// The thread is named "softroce" and takes no signals but those of its own faults. It holds the NIC only while it makes a pass.
    ///
    /// # Errors
    ///
    /// The host gives no thread (`EAGAIN`, pthread_create(3)).
    pub fn start_thread<D: Drive>(self: &Arc<Self>, drive: Weak<D>) -> io::Result<()> {
        let spin = match self.config.mode {
            Mode::Manual => return Ok(()),
            Mode::Hybrid => self.config.spin,
            Mode::Dedicated { spin } => spin,
        };
        let mut thread = self.thread.lock();
        if thread.is_some() || self.handover.is_stopped() {
            return Ok(());
        }
        let wake = Arc::new(Wake::new());
        self.handover.seat_thread(Arc::clone(&wake));
        let seat = ThreadSeat(Arc::clone(self));
        let body = move || seat.0.run(drive, wake, spin);
        // A thread that could not be started drops the body, and with it the seat.
        *thread =
            Some(without_signals(|| thread::Builder::new().name("softroce".into()).spawn(body))?);
        Ok(())
    }

    /// The life of the background thread.
    fn run<D: Drive>(&self, drive: Weak<D>, me: Arc<Wake>, spin: Duration) {
        let mut rounds = Background {
            progress: self,
            port: imp::Kept::default(),
            drive,
            held: None,
            me,
            spin: if self.cores > 1 { spin } else { Duration::ZERO },
            spin_until: Instant::ZERO,
        };
        self.handover.stay(Who::Thread, &mut rounds);
    }

    /// Ends the background thread for good and waits for that, unless it calls this itself. Waiters go on
    /// without it.
    ///
    /// To be called before the last reference to the NIC is dropped: only then has nothing of it outlived
    /// the call.
    pub fn stop(&self) {
        self.handover.stop();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id())
        {
            // If it panicked, the panic hook has said so.
            let _ = thread.join();
        }
    }

    /// How often threads went to sleep on behalf of this NIC.
    pub fn stats(&self) -> ProgressStats {
        let [watches, naps, stand_bys] =
            [0, 1, 2].map(|which: usize| self.counts[which].load(Ordering::Relaxed));
        ProgressStats { watches, naps, stand_bys }
    }

    fn is_dedicated(&self) -> bool {
        matches!(self.config.mode, Mode::Dedicated { .. }) && self.handover.is_taken_for_good()
    }

    /// Whether the background thread may leave the port alone.
    fn thread_is_lazy(&self, now: Instant) -> bool {
        if matches!(self.config.mode, Mode::Dedicated { .. }) {
            return false;
        }
        self.looking.load(Ordering::Relaxed) > 0
            || self.is_steady(&self.polls, now)
            || self.is_steady(&self.waits, now)
    }

    /// What the application does over and over, while somebody else sees to the NIC when it stops.
    #[inline]
    pub fn habit(&self, now: Instant) -> Option<Habit> {
        // Asked inside a pass, which says nothing of how long ago the one before was.
        let still = |beat: &Beat| beat.is_steady() && beat.is_fresh(now, self.config.fresh);
        if !matches!(self.config.mode, Mode::Hybrid) {
            None
        } else if still(&self.polls) {
            Some(Habit::Looks)
        } else if still(&self.waits) {
            let sleeps = self.sleeps.load(Ordering::Relaxed);
            Some(if sleeps { Habit::Sleeps } else { Habit::Looks })
        } else {
            None
        }
    }

    /// Whether the application does it over and over, now as before.
    fn is_steady(&self, beat: &Beat, now: Instant) -> bool {
        beat.is_steady()
            && (self.inside.load(Ordering::Relaxed) || beat.is_fresh(now, self.config.fresh))
    }

    /// Sleeps as `rest` says, until `deadline` at most.
    fn rest(
        &self,
        me: &Wake,
        rest: Rest,
        port: Option<PortFd<'_>>,
        now: Instant,
        deadline: Instant,
    ) {
        let left =
            |until: Instant| (until != Instant::FAR_FUTURE).then(|| until.saturating_since(now));
        let shortly = (now + self.config.nap).min(deadline);
        let (count, port, timeout) = match rest {
            Rest::StandBy => (2, None, left(deadline)),
            Rest::Nap => (1, None, left(shortly)),
            Rest::Watch(until) if port.is_some() => (0, port, left(until.min(deadline))),
            Rest::Watch(until) => (0, None, left(until.min(shortly))),
        };
        self.counts[count].fetch_add(1, Ordering::Relaxed);
        me.sleep(port, timeout);
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress")
            .field("config", &self.config)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// Whether something is done over and over. Several threads may do it; a beat that is lost between two of
/// them does no harm.
#[derive(Debug)]
struct Beat {
    count: AtomicU32,
    /// `count` at the last reset.
    base: AtomicU32,
    /// When it was done last, in nanoseconds.
    at: AtomicU64,
}

impl Beat {
    fn new() -> Self {
        Self { count: AtomicU32::new(0), base: AtomicU32::new(0), at: AtomicU64::new(0) }
    }

    #[inline]
    fn beat(&self, now: Instant) {
        self.count.store(self.count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.at.store(now.as_nanos(), Ordering::Relaxed);
    }

    fn reset(&self) {
        self.base.store(self.count.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn is_steady(&self) -> bool {
        let beats =
            self.count.load(Ordering::Relaxed).wrapping_sub(self.base.load(Ordering::Relaxed));
        beats >= STEADY
    }

    fn is_fresh(&self, now: Instant, fresh: Duration) -> bool {
        now.saturating_since(Instant::from_nanos(self.at.load(Ordering::Relaxed))) < fresh
    }
}

/// The application is inside a pass. Only the holder of the engine's lock has one.
#[derive(Debug)]
pub struct InPass<'a>(&'a AtomicBool);

impl Drop for InPass<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Threads of this process that look without sleeping, whatever NIC they look at.
static SPINNERS: StaticAtomicU32 = StaticAtomicU32::new(0);

/// One of [`SPINNERS`].
struct Spinner {
    /// Cores exceed the spinners that were there first, so whoever is waited for has one too.
    welcome: bool,
}

impl Spinner {
    fn new(cores: u32) -> Self {
        let others = SPINNERS.fetch_add(1, Ordering::Relaxed);
        Self { welcome: cores > others.saturating_add(1) }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        SPINNERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts those who look at this NIC.
struct Looking<'a>(&'a AtomicU32);

impl<'a> Looking<'a> {
    fn new(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A waiter's place in the hand-over; given up when dropped, also by a panic.
struct Seat<'a, D: Drive> {
    progress: &'a Progress,
    drive: &'a D,
    me: &'a Arc<Wake>,
}

impl<D: Drive> Drop for Seat<'_, D> {
    fn drop(&mut self) {
        let Self { progress, drive, me } = self;
        progress.handover.leave(me, || progress.thread_is_lazy(drive.now()));
    }
}

/// What a thread inside `wait` does between decisions.
struct Waiting<'a, D, F> {
    progress: &'a Progress,
    drive: &'a D,
    me: &'a Arc<Wake>,
    ready: F,
    found: bool,
    deadline: Instant,
    spinner: Option<Spinner>,
    spin_until: Instant,
}

impl<D: Drive, F: FnMut() -> bool> Rounds for Waiting<'_, D, F> {
    fn done(&mut self) -> bool {
        self.found = (self.ready)();
        self.found || (self.deadline != Instant::FAR_FUTURE && self.drive.now() >= self.deadline)
    }

    fn lazy(&self) -> bool {
        self.progress.is_steady(&self.progress.polls, self.drive.now())
    }

    fn pass(&mut self) -> PassReport {
        let report = self.drive.pass(By::Wait);
        self.progress.waits.beat(self.drive.now());
        PassReport { next: report.next.min(self.deadline), ..report }
    }

    fn linger(&mut self, progress: bool) -> bool {
        if progress {
            // More may follow soon, as in a long message.
            let cores = self.progress.cores;
            let spinner = self.spinner.get_or_insert_with(|| Spinner::new(cores));
            if spinner.welcome {
                self.spin_until = self.drive.now() + self.progress.config.spin;
            }
        }
        let linger = self.spinner.as_ref().is_some_and(|spinner| spinner.welcome)
            && self.drive.now() < self.spin_until;
        if linger {
            std::hint::spin_loop();
        } else {
            self.spinner = None;
        }
        linger
    }

    fn rest(&mut self, rest: Rest) {
        self.spinner = None;
        let now = self.drive.now();
        self.progress.rest(self.me, rest, self.drive.port_fd(), now, self.deadline);
    }
}

/// What the background thread does between decisions.
struct Background<'a, D> {
    progress: &'a Progress,
    drive: Weak<D>,
    /// The NIC, from the look at whether it is still there until the sleep.
    held: Option<Arc<D>>,
    port: imp::Kept,
    me: Arc<Wake>,
    spin: Duration,
    spin_until: Instant,
}

impl<D: Drive> Rounds for Background<'_, D> {
    fn done(&mut self) -> bool {
        self.held = self.drive.upgrade();
        self.held.is_none()
    }

    fn lazy(&self) -> bool {
        self.held.as_ref().is_some_and(|drive| self.progress.thread_is_lazy(drive.now()))
    }

    fn pass(&mut self) -> PassReport {
        let nothing = PassReport { progress: false, next: Instant::FAR_FUTURE };
        self.held.as_ref().map_or(nothing, |drive| drive.pass(By::Thread))
    }

    fn linger(&mut self, progress: bool) -> bool {
        let Some(drive) = &self.held else { return false };
        let now = drive.now();
        if progress {
            self.spin_until = now + self.spin;
        }
        let linger = now < self.spin_until;
        if linger {
            self.held = None;
            thread::yield_now();
        }
        linger
    }

    fn rest(&mut self, rest: Rest) {
        let Some(drive) = self.held.take() else { return };
        let now = drive.now();
        self.port.keep(drive.port_fd());
        drop(drive);
        self.progress.rest(&self.me, rest, self.port.lend(), now, Instant::FAR_FUTURE);
    }
}

/// The background thread's place in the hand-over; given up when dropped, also by a panic.
struct ThreadSeat(Arc<Progress>);

impl Drop for ThreadSeat {
    fn drop(&mut self) {
        self.0.handover.unseat_thread();
    }
}

/// Runs `spawn` so that the thread it starts is born with all signals blocked that are sent by somebody:
/// they are the application's. Those that a thread brings upon itself cannot be put off.
#[cfg(all(target_os = "linux", feature = "udp"))]
fn without_signals<R>(spawn: impl FnOnce() -> R) -> R {
    use nix::sys::signal::{SigSet, SigmaskHow, Signal};

    let mut sent = SigSet::all();
    for own in [
        Signal::SIGABRT,
        Signal::SIGBUS,
        Signal::SIGFPE,
        Signal::SIGILL,
        Signal::SIGSEGV,
        Signal::SIGSYS,
        Signal::SIGTRAP,
    ] {
        sent.remove(own);
    }
    let before = sent.thread_swap_mask(SigmaskHow::SIG_BLOCK);
    let result = spawn();
    if let Ok(before) = before {
        // It was in force a moment ago, so it can be set.
        let _ = before.thread_set_mask();
    }
    result
}

#[cfg(not(all(target_os = "linux", feature = "udp")))]
fn without_signals<R>(spawn: impl FnOnce() -> R) -> R {
    spawn()
}

/// The port's readiness for a thread that does not hold the NIC while it sleeps: a descriptor of its own.
#[cfg(unix)]
mod imp {
    use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

    use super::PortFd;

    /// The descriptor that the NIC has, by its number, and our own. The NIC's may be another one from some
    /// moment on, and it keeps the one before open.
    #[derive(Debug, Default)]
    pub(super) struct Kept(Option<(RawFd, OwnedFd)>);

    impl Kept {
        /// Follows the NIC. Nothing is kept if the host has no descriptor left: then the port is looked at every
        /// millisecond.
        pub(super) fn keep(&mut self, port: Option<PortFd<'_>>) {
            let number = port.map(|port| port.as_raw_fd());
            if self.0.as_ref().map(|kept| kept.0) != number {
                self.0 = port.and_then(|port| Some((number?, port.try_clone_to_owned().ok()?)));
            }
        }

        pub(super) fn lend(&self) -> Option<PortFd<'_>> {
            self.0.as_ref().map(|kept| kept.1.as_fd())
        }
    }
}

#[cfg(not(unix))]
mod imp {
    use super::PortFd;

    #[derive(Debug, Default)]
    pub(super) struct Kept;

    impl Kept {
        pub(super) fn keep(&mut self, _port: Option<PortFd<'_>>) {}

        pub(super) fn lend(&self) -> Option<PortFd<'_>> {
            None
        }
    }
}
