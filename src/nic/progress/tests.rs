//! Threads, a mock engine and a real eventfd as its port.
#![cfg(all(target_os = "linux", feature = "udp"))]

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, Signal};

use super::*;
use crate::nic::clock::MonotonicClock;
use crate::nic::combine::Combine;

const QUEUES: usize = 4;
/// Longer than any test: what should end before must be ended by somebody.
const EVER: Duration = Duration::from_secs(3600);
/// A test that waits as long as this has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// A NIC without protocol: a datagram is the number of the completion queue that gets an entry, a timer
/// gives an entry to queue 0.
struct Nic {
    clock: MonotonicClock,
    port: EventFd,
    wire: Mutex<VecDeque<usize>>,
    doorbells: Mutex<VecDeque<Instant>>,
    engine: Combine<Engine>,
    /// Entries that nobody has polled yet.
    completions: [AtomicU32; QUEUES],
    /// Bit per queue: got entries whose waiters have not been notified.
    news: AtomicU32,
    waiters: [Waiters; QUEUES],
    passes: [AtomicU32; 4],
    progress: Arc<Progress>,
    last_by: Mutex<Option<(By, Option<String>, bool)>>,
}

struct Engine {
    timer: Instant,
}

impl Nic {
    fn new(config: ProgressConfig) -> Arc<Self> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        Arc::new(Self {
            clock: MonotonicClock::new(),
            port: EventFd::from_flags(flags).expect("a descriptor"),
            wire: Mutex::new(VecDeque::new()),
            doorbells: Mutex::new(VecDeque::new()),
            engine: Combine::new(Engine { timer: Instant::FAR_FUTURE }),
            completions: std::array::from_fn(|_| AtomicU32::new(0)),
            news: AtomicU32::new(0),
            waiters: std::array::from_fn(|_| Waiters::new()),
            passes: std::array::from_fn(|_| AtomicU32::new(0)),
            progress: Progress::new(config),
            last_by: Mutex::new(None),
        })
    }

    /// With the background thread.
    fn start(config: ProgressConfig) -> Arc<Self> {
        let nic = Self::new(config);
        nic.progress.start_thread(Arc::downgrade(&nic)).expect("a thread");
        nic
    }

    /// A peer sends a datagram.
    fn send(&self, queue: usize) {
        self.wire.lock().push_back(queue);
        self.port.write(1).expect("room for a count");
    }

    fn one_pass(&self, engine: &mut Engine, by: By, report: &mut PassReport) {
        self.passes[by as usize].fetch_add(1, Ordering::Relaxed);
        let now = self.now();
        let mut progress = false;
        let mut complete = |queue: usize| {
            let blocked = SigSet::thread_get_mask().is_ok_and(|set| set.contains(Signal::SIGUSR1));
            let name = thread::current().name().map(str::to_owned);
            *self.last_by.lock() = Some((by, name, blocked));
            self.completions[queue].fetch_add(1, Ordering::Release);
            self.news.fetch_or(1 << queue, Ordering::Relaxed);
            progress = true;
        };
        if by != By::Post {
            let _ = self.port.read();
            loop {
                let Some(queue) = self.wire.lock().pop_front() else { break };
                complete(queue);
            }
        }
        while let Some(timer) = self.doorbells.lock().pop_front() {
            engine.timer = engine.timer.min(timer);
        }
        if engine.timer <= now {
            engine.timer = Instant::FAR_FUTURE;
            complete(0);
        }
        *report = PassReport { progress: report.progress | progress, next: engine.timer };
    }

    fn notify(&self) {
        let news = self.news.swap(0, Ordering::Relaxed);
        for (queue, waiters) in self.waiters.iter().enumerate() {
            if news & (1 << queue) != 0 {
                waiters.notify();
            }
        }
    }

    /// What `ibv_poll_cq` does.
    fn poll(&self, queue: usize) -> bool {
        if self.take(queue) {
            return true;
        }
        let mut report = NOTHING;
        if self.engine.try_drive(|engine| self.one_pass(engine, By::Poll, &mut report)) {
            self.notify();
            self.progress.note_pass(By::Poll, self.now(), report.next);
        }
        self.take(queue)
    }

    /// What `ibv_post_send` does: a packet leaves, and its retransmission is due at `timer`.
    fn post(&self, timer: Instant) {
        self.doorbells.lock().push_back(timer);
        let mut report = NOTHING;
        if self.engine.kick(|engine| self.one_pass(engine, By::Post, &mut report)) {
            self.notify();
            self.progress.note_pass(By::Post, self.now(), report.next);
        }
    }

    fn take(&self, queue: usize) -> bool {
        let queue = &self.completions[queue];
        queue
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |entries| entries.checked_sub(1))
            .is_ok()
    }

    fn has(&self, queue: usize) -> bool {
        self.completions[queue].load(Ordering::Acquire) > 0
    }

    /// Blocks until there is an entry.
    fn wait(&self, queue: usize) -> bool {
        let deadline = self.now() + PATIENCE;
        self.wait_until(queue, Some(deadline))
    }

    fn wait_until(&self, queue: usize, deadline: Option<Instant>) -> bool {
        self.progress.wait(self, &self.waiters[queue], || self.has(queue), deadline)
    }

    fn passes(&self, by: By) -> u32 {
        self.passes[by as usize].load(Ordering::Relaxed)
    }

    fn all_passes(&self) -> u32 {
        self.passes.iter().map(|passes| passes.load(Ordering::Relaxed)).sum()
    }

    /// Gives other threads time until `condition` holds.
    fn until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let deadline = self.now() + PATIENCE;
        while !condition() {
            assert!(self.now() < deadline, "{what} never came: {:?}", self.progress);
            thread::yield_now();
        }
    }

    fn until_watched(&self, before: ProgressStats) {
        self.until("a thread that watches", || self.progress.stats().watches > before.watches);
    }

    /// The background thread has gone to sleep on the port and everything is still.
    fn settled(config: ProgressConfig) -> Arc<Self> {
        let nic = Self::start(config);
        nic.until_watched(ProgressStats::default());
        nic
    }

    fn thread_rings(&self) -> u64 {
        self.progress.handover.thread().expect("a background thread").rings()
    }
}

const NOTHING: PassReport = PassReport { progress: false, next: Instant::FAR_FUTURE };

impl Drive for Nic {
    fn try_pass(&self, by: By) -> Option<PassReport> {
        let mut report = NOTHING;
        if !self.engine.try_drive(|engine| self.one_pass(engine, by, &mut report)) {
            return None;
        }
        self.notify();
        Some(report)
    }

    fn pass(&self, by: By) -> PassReport {
        let mut report = NOTHING;
        self.engine.drive(|engine| self.one_pass(engine, by, &mut report));
        self.notify();
        report
    }

    fn port_fd(&self) -> Option<PortFd<'_>> {
        Some(self.port.as_fd())
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        self.progress.stop();
    }
}

fn manual() -> ProgressConfig {
    ProgressConfig::new(Mode::Manual)
}

fn hybrid() -> ProgressConfig {
    ProgressConfig::new(Mode::Hybrid)
}

/// Never looks longer than it must.
fn sleepy(config: ProgressConfig) -> ProgressConfig {
    ProgressConfig { spin: Duration::ZERO, ..config }
}

/// Sleeps through whatever nobody wakes it for: once the application counts as polling it does for ever.
fn sound_naps(config: ProgressConfig) -> ProgressConfig {
    ProgressConfig { nap: EVER, fresh: EVER, ..config }
}

fn polls_steadily(nic: &Nic) {
    for _ in 0..=STEADY {
        nic.poll(3);
    }
}

#[test]
fn an_answer_that_is_there_costs_nothing_but_a_pass() {
    let nic = Nic::new(manual());
    nic.send(0);
    assert!(nic.wait(0));
    assert_eq!(nic.all_passes(), 1);
    assert!(nic.wait(0), "still there: it does not even look at the port");
    assert_eq!(nic.all_passes(), 1);
    assert_eq!(nic.progress.stats(), ProgressStats::default());
}

#[test]
fn a_waiter_sleeps_on_the_port() {
    let nic = Nic::new(sleepy(manual()));
    thread::scope(|scope| {
        scope.spawn(|| {
            nic.until_watched(ProgressStats::default());
            nic.send(0);
        });
        assert!(nic.wait(0));
    });
    assert_eq!(nic.progress.stats(), ProgressStats { watches: 1, ..ProgressStats::default() });
    let last = nic.last_by.lock().take();
    assert_eq!(last.map(|(by, ..)| by), Some(By::Wait));
}

#[test]
fn a_waiter_does_not_mistake_its_own_polls_for_somebody_elses() {
    let nic = Nic::new(sound_naps(sleepy(manual())));
    polls_steadily(&nic);
    thread::scope(|scope| {
        scope.spawn(|| {
            nic.until_watched(ProgressStats::default());
            nic.send(0);
        });
        assert!(nic.wait(0));
    });
    assert_eq!(nic.progress.stats().naps, 0);
}

#[test]
fn a_waiter_naps_while_another_thread_polls() {
    let nic = Nic::new(sound_naps(sleepy(manual())));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| nic.wait(0));
        nic.until_watched(ProgressStats::default());
        polls_steadily(&nic);
        nic.send(3);
        nic.until("a nap", || nic.progress.stats().naps == 1);
        let passes = nic.passes(By::Wait);
        // Served by the poller, woken by the completion.
        nic.send(0);
        nic.until("the end", || {
            nic.poll(1);
            waiter.is_finished()
        });
        assert!(waiter.join().expect("no panic"));
        assert_eq!(nic.passes(By::Wait), passes);
    });
}

#[test]
fn a_waiter_gives_up_at_its_deadline_and_not_before() {
    let nic = Nic::new(sleepy(manual()));
    for patience in [0, 1, 3_000_000] {
        let deadline = nic.now() + Duration::from_nanos(patience);
        assert!(!nic.wait_until(0, Some(deadline)));
        assert!(nic.now() >= deadline);
    }
    // It has looked at the port even when there was no time at all.
    nic.send(0);
    assert!(nic.wait_until(0, Some(Instant::ZERO)));
}

#[test]
fn a_completion_that_somebody_else_delivers_wakes_the_waiter() {
    let nic = Nic::new(sleepy(manual()));
    thread::scope(|scope| {
        scope.spawn(|| {
            nic.until_watched(ProgressStats::default());
            // Not through the port, which would wake the waiter by itself.
            nic.completions[0].fetch_add(1, Ordering::Release);
            nic.waiters[0].notify();
        });
        assert!(nic.wait(0));
    });
}

#[test]
fn the_second_waiter_stands_by_and_is_promoted() {
    let nic = Nic::new(sleepy(manual()));
    let waits = |queue: usize| {
        let nic = &nic;
        move || assert!(nic.wait(queue))
    };
    thread::scope(|scope| {
        let first = scope.spawn(waits(0));
        nic.until_watched(ProgressStats::default());
        let second = scope.spawn(waits(1));
        nic.until("a second waiter", || nic.progress.stats().stand_bys == 1);
        // The holder serves both.
        nic.send(1);
        second.join().expect("served by the first");
        let third = scope.spawn(waits(2));
        nic.until("a third waiter", || nic.progress.stats().stand_bys == 2);
        let before = nic.progress.stats();
        nic.send(0);
        first.join().expect("served by itself");
        // Nobody touched the port since, so it must be watched by the heir.
        nic.until_watched(before);
        nic.send(2);
        third.join().expect("served by itself");
    });
}

#[test]
fn a_timer_pulled_earlier_wakes_the_waiter() {
    let nic = Nic::new(sleepy(manual()));
    thread::scope(|scope| {
        scope.spawn(|| {
            nic.until_watched(ProgressStats::default());
            nic.post(nic.now() + Duration::from_millis(2));
        });
        assert!(nic.wait(0));
    });
    // Once for ever, and once until the timeout if that is not past already.
    assert!((1..=2).contains(&nic.progress.stats().watches), "{:?}", nic.progress.stats());
}

#[test]
fn a_timer_pulled_earlier_wakes_the_background_thread() {
    let nic = Nic::settled(hybrid());
    nic.post(nic.now() + Duration::from_millis(2));
    nic.until("the timeout", || nic.take(0));
    assert_eq!(nic.thread_rings(), 1);
    assert_eq!(nic.passes(By::Poll) + nic.passes(By::Wait), 0);
}

#[test]
fn posting_rings_only_for_an_earlier_timeout() {
    let nic = Nic::settled(hybrid());
    let before = nic.progress.stats();
    nic.post(nic.now() + EVER);
    nic.until_watched(before);
    assert_eq!(nic.thread_rings(), 1, "it slept for ever and must not");
    for _ in 0..100 {
        nic.post(nic.now() + EVER + EVER);
        assert!(!nic.poll(0));
    }
    assert_eq!(nic.thread_rings(), 1);
}

#[test]
fn the_background_thread_serves_a_passive_target() {
    let nic = Nic::settled(hybrid());
    nic.send(2);
    nic.until("a completion", || nic.take(2));
    let last = nic.last_by.lock().take();
    assert_eq!(last, Some((By::Thread, Some("softroce".into()), true)), "by whom, no signals");
    let own = SigSet::thread_get_mask().expect("a mask");
    assert!(!own.contains(Signal::SIGUSR1), "the application's threads keep theirs");
}

#[test]
fn the_thread_naps_while_the_application_polls() {
    let nic = Nic::settled(sound_naps(hybrid()));
    let passes = nic.passes(By::Thread);
    polls_steadily(&nic);
    // The first datagram wakes the thread, which finds that it is not needed.
    nic.send(0);
    nic.until("a nap", || nic.progress.stats().naps == 1);
    for _ in 0..100 {
        nic.send(0);
        nic.until("a completion", || nic.poll(0));
    }
    assert_eq!(nic.passes(By::Thread), passes);
    assert_eq!(nic.progress.stats().naps, 1);
    assert_eq!(nic.thread_rings(), 0);
}

#[test]
fn the_thread_looks_again_when_polling_stops() {
    let nic = Nic::settled(hybrid());
    nic.until("a nap", || {
        polls_steadily(&nic);
        nic.send(0);
        nic.progress.stats().naps > 0
    });
    let before = nic.passes(By::Thread);
    nic.send(2);
    nic.until("the thread", || nic.passes(By::Thread) > before);
    nic.until("a completion", || nic.take(2));
}

#[test]
fn handing_over_ends_the_nap() {
    let nic = Nic::settled(sound_naps(hybrid()));
    polls_steadily(&nic);
    nic.send(0);
    nic.until("a nap", || nic.progress.stats().naps == 1);
    while nic.poll(0) {}
    // Poll, arm, poll: the last one is no reason to nap.
    nic.progress.hand_over();
    assert!(!nic.poll(1));
    nic.send(1);
    nic.until("a completion", || nic.take(1));
    let last = nic.last_by.lock().take();
    assert_eq!(last.map(|(by, ..)| by), Some(By::Thread));
    assert_eq!(nic.progress.stats().naps, 1);
}

#[test]
fn handing_over_to_a_thread_that_watches_costs_no_wake_up() {
    let nic = Nic::settled(hybrid());
    nic.progress.hand_over();
    assert_eq!(nic.thread_rings(), 0);
}

#[test]
fn leaving_a_wait_gives_the_port_to_the_thread() {
    // Never lazy: the thread has nothing to go by but the token.
    let nic = Nic::settled(ProgressConfig { fresh: Duration::ZERO, nap: EVER, ..sleepy(hybrid()) });
    thread::scope(|scope| {
        scope.spawn(|| {
            nic.until("a thread that stands by", || nic.progress.stats().stand_bys > 0);
            nic.send(0);
        });
        assert!(nic.wait(0));
    });
    nic.send(1);
    nic.until("a completion", || nic.take(1));
    let last = nic.last_by.lock().take();
    assert_eq!(last.map(|(by, ..)| by), Some(By::Thread));
}

#[test]
fn a_panic_while_waiting_gives_the_token_back() {
    let nic = Nic::settled(ProgressConfig { fresh: Duration::ZERO, nap: EVER, ..sleepy(hybrid()) });
    let mut looks = 0;
    let died = catch_unwind(AssertUnwindSafe(|| {
        let ready = || {
            looks += 1;
            assert!(looks < 3, "the application's own mistake, while it holds the token");
            false
        };
        nic.progress.wait(&*nic, &nic.waiters[0], ready, None)
    }));
    assert!(died.is_err());
    nic.send(1);
    nic.until("a completion", || nic.take(1));
}

#[test]
fn an_idle_thread_is_silent() {
    let nic = Nic::settled(hybrid());
    let sleeper = nic.progress.handover.thread().expect("a background thread");
    let before = (nic.all_passes(), sleeper.sleeps(), sleeper.rings());
    // Fifty times as long as a nap.
    Wake::new().sleep(None, Some(Duration::from_millis(50)));
    assert_eq!((nic.all_passes(), sleeper.sleeps(), sleeper.rings()), before);
}

#[test]
fn an_idle_waiter_is_silent() {
    let nic = Nic::settled(hybrid());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| nic.wait(0));
        nic.until("the hand-over", || {
            let stats = nic.progress.stats();
            stats.stand_bys == 1 && stats.watches == 2
        });
        let before = (nic.all_passes(), nic.progress.stats());
        Wake::new().sleep(None, Some(Duration::from_millis(50)));
        assert_eq!((nic.all_passes(), nic.progress.stats()), before);
        nic.send(0);
        assert!(waiter.join().expect("no panic"));
    });
}

#[test]
fn the_thread_can_be_stopped_wherever_it_sleeps() {
    let watching = Nic::settled(hybrid());
    watching.progress.stop();
    assert!(watching.progress.handover.thread().is_none());

    let napping = Nic::settled(sound_naps(hybrid()));
    polls_steadily(&napping);
    napping.send(0);
    napping.until("a nap", || napping.progress.stats().naps == 1);
    napping.progress.stop();
    assert!(napping.progress.handover.thread().is_none());

    let standing_by = Nic::settled(sleepy(hybrid()));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| standing_by.wait(0));
        standing_by.until("a thread that stands by", || standing_by.progress.stats().stand_bys > 0);
        standing_by.progress.stop();
        assert!(standing_by.progress.handover.thread().is_none());
        // Waiters go on without it.
        standing_by.send(0);
        assert!(waiter.join().expect("no panic"));
    });
    let again = standing_by.progress.start_thread(Arc::downgrade(&standing_by));
    assert!(again.is_ok() && standing_by.progress.handover.thread().is_none(), "for good");
}

#[test]
fn dropping_the_nic_ends_the_thread() {
    let nic = Nic::settled(hybrid());
    let progress = Arc::clone(&nic.progress);
    drop(nic);
    let clock = MonotonicClock::new();
    // The drop may have been the thread's own, which does not wait for itself.
    while progress.handover.thread().is_some() {
        assert!(clock.now() < Instant::ZERO + PATIENCE);
        thread::yield_now();
    }
}

#[test]
fn there_is_one_thread_and_none_in_manual_mode() {
    let nic = Nic::settled(hybrid());
    let first = nic.progress.handover.thread();
    nic.progress.start_thread(Arc::downgrade(&nic)).expect("nothing to do");
    let second = nic.progress.handover.thread();
    assert_eq!(first.map(|thread| Arc::as_ptr(&thread)), second.map(|thread| Arc::as_ptr(&thread)));

    let nic = Nic::start(manual());
    assert!(nic.progress.handover.thread().is_none());
    assert!(!nic.progress.relieve());
}

#[test]
fn a_dedicated_thread_keeps_the_token() {
    let spin = Duration::from_micros(20);
    let nic = Nic::settled(sleepy(ProgressConfig::new(Mode::Dedicated { spin })));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| nic.wait(0));
        nic.until("a waiter that stands by", || nic.progress.stats().stand_bys == 1);
        nic.send(0);
        assert!(waiter.join().expect("no panic"));
        // One that stands by is not forgotten when the thread ends.
        let waiter = scope.spawn(|| nic.wait(1));
        nic.until("a waiter that stands by", || nic.progress.stats().stand_bys == 2);
        assert_eq!(nic.passes(By::Wait), 0);
        nic.progress.stop();
        nic.send(1);
        assert!(waiter.join().expect("no panic"));
    });
    assert!(nic.passes(By::Wait) > 0);
}

#[test]
fn relief_makes_even_a_napping_thread_pass() {
    let nic = Nic::settled(sound_naps(hybrid()));
    polls_steadily(&nic);
    nic.send(0);
    nic.until("a nap", || nic.progress.stats().naps == 1);
    let before = nic.passes(By::Thread);
    assert!(nic.progress.relieve());
    nic.until("a pass", || nic.passes(By::Thread) > before);
}

#[test]
fn a_port_without_descriptor_is_looked_at_by_time() {
    /// The same NIC, in memory.
    struct InMemory(Arc<Nic>);
    impl Drive for InMemory {
        fn try_pass(&self, by: By) -> Option<PassReport> {
            self.0.try_pass(by)
        }
        fn pass(&self, by: By) -> PassReport {
            self.0.pass(by)
        }
        fn port_fd(&self) -> Option<PortFd<'_>> {
            None
        }
        fn now(&self) -> Instant {
            self.0.now()
        }
    }
    let drive = InMemory(Nic::new(sleepy(manual())));
    let nic = &drive.0;
    thread::scope(|scope| {
        scope.spawn(|| {
            nic.until_watched(ProgressStats::default());
            nic.send(0);
        });
        let deadline = nic.now() + PATIENCE;
        assert!(nic.progress.wait(&drive, &nic.waiters[0], || nic.has(0), Some(deadline)));
    });
}

#[test]
fn the_spin_can_be_set_from_outside() {
    let spin = |text| hybrid().with_spin_us(text).spin;
    assert_eq!(spin(None), Duration::from_micros(50));
    assert_eq!(spin(Some("0")), Duration::ZERO);
    assert_eq!(spin(Some(" 7\n")), Duration::from_micros(7));
    assert_eq!(spin(Some("soon")), Duration::from_micros(50));
}

#[test]
fn a_beat_is_steady_after_some_and_for_a_while() {
    let (beat, fresh) = (Beat::new(), Duration::from_micros(50));
    let at = Instant::from_nanos;
    beat.count.store(u32::MAX - 3, Ordering::Relaxed);
    beat.reset();
    for _ in 0..STEADY {
        assert!(!beat.is_steady());
        beat.beat(at(1_000));
    }
    assert!(beat.is_steady());
    assert!(beat.is_fresh(at(50_999), fresh));
    assert!(!beat.is_fresh(at(51_000), fresh));
    beat.reset();
    assert!(!beat.is_steady());
}

#[test]
fn a_program_has_a_habit_after_some_passes_until_it_stops() {
    let (at, end) = (Instant::from_nanos, Instant::FAR_FUTURE);
    for (config, counts) in [(hybrid(), true), (manual(), false)] {
        for (by, sleeps, habit) in [
            (By::Poll, false, Habit::Looks),
            (By::Poll, true, Habit::Looks),
            (By::Wait, false, Habit::Looks),
            (By::Wait, true, Habit::Sleeps),
        ] {
            let progress = Progress::new(config);
            progress.sleeps.store(sleeps, Ordering::Relaxed);
            let pass = |n| (0..n).for_each(|_| progress.note_pass(by, at(1_000), end));
            pass(STEADY - 1);
            assert_eq!(progress.habit(at(1_000)), None);
            pass(1);
            assert_eq!(progress.habit(at(50_999)), counts.then_some(habit));
            // Inside a pass too: what counts is when the one before was.
            let inside = progress.begin_pass();
            assert_eq!(progress.habit(at(51_000)), None);
            drop(inside);
            progress.hand_over();
            assert_eq!(progress.habit(at(1_000)), None);
        }
    }
}

#[test]
fn whoever_waits_in_vain_for_a_while_sleeps() {
    let config = ProgressConfig { fresh: EVER, ..sleepy(hybrid()) };
    let nic = Nic::start(config);
    let waits = |n| (0..n).for_each(|_| nic.progress.note_pass(By::Wait, nic.now(), nic.now()));
    waits(STEADY);
    thread::scope(|scope| {
        scope.spawn(|| {
            nic.until("a wait in vain", || {
                nic.progress.stats().stand_bys + nic.progress.stats().watches > 0
            });
            nic.until("the waiter", || nic.progress.habit(nic.now()) == Some(Habit::Sleeps));
            nic.send(0);
        });
        assert!(nic.wait(0));
    });
    assert_eq!(nic.progress.habit(nic.now()), Some(Habit::Sleeps));
    // What comes before that is waited for by looking.
    nic.send(1);
    assert!(nic.wait(1));
    assert_eq!(nic.progress.habit(nic.now()), Some(Habit::Looks));
}

/// Everything at once: each of several threads polls, waits, posts and hands over by turns, a peer sends,
/// and in the end nothing may be missing.
#[test]
fn nothing_is_lost_in_a_crowd() {
    const ROUNDS: usize = 400;
    for mode in [Mode::Hybrid, Mode::Manual, Mode::Dedicated { spin: Duration::from_micros(5) }] {
        let nic = Nic::start(ProgressConfig {
            spin: Duration::from_micros(3),
            fresh: Duration::from_micros(20),
            nap: Duration::from_micros(200),
            ..ProgressConfig::new(mode)
        });
        thread::scope(|scope| {
            for me in 1..QUEUES {
                let nic = &nic;
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        nic.send(me);
                        match (round * 7 + me) % 5 {
                            0 => nic.until("a completion", || nic.poll(me)),
                            1 => {
                                nic.post(nic.now() + Duration::from_micros(50));
                                assert!(nic.wait(me));
                                assert!(nic.take(me));
                            }
                            2 if mode != Mode::Manual => {
                                nic.progress.hand_over();
                                nic.until("a completion", || nic.take(me));
                            }
                            _ => {
                                assert!(nic.wait(me), "{:?}", nic.progress);
                                assert!(nic.take(me));
                            }
                        }
                    }
                });
            }
        });
        for queue in 1..QUEUES {
            assert!(!nic.has(queue));
        }
        // The last retransmission is still due.
        assert!(nic.wait(0), "{:?}", nic.progress);
    }
}
