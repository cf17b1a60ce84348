//! Who looks after the port and the timers while nobody polls, and how that duty changes hands.
//!
//! Owns the *token*: whoever holds it must not sleep past a datagram or past the engine's next timeout.
//! Threads inside `wait` hold it before the background thread does; others stand by. No system call, no
//! clock and no engine here: those come in through [`Sleep`] and [`Rounds`], so that loom can run the same
//! decisions in a model.
//!
//! *Rules.*
//! - All decisions are made under one short lock, which is a leaf: nothing else is locked and nobody is
//!   woken under it. It is taken only by those who are about to sleep, to wake somebody, or to leave. What
//!   every pass pays is one load in [`Handover::note`].
//! - Before it sleeps, the holder says so ([`Handover::plan`]), makes a pass under the engine's lock, and
//!   only then lies down ([`Handover::lie_down`]). A pass of somebody else comes either before that one, and
//!   then its timers are in the holder's report, or after it, and then the engine's lock has shown it the
//!   announcement. That is why `note` needs no barrier of its own.
//! - The token never lies on the floor while somebody stands by: whoever leaves gives it to the first in
//!   the queue, or else to the background thread, and wakes the one it gave it to.

use std::sync::Arc;

use crate::nic::combine::Bell;
use crate::sync::{AtomicU64, Mutex, Ordering};
use crate::time::Instant;

use super::progress::PassReport;

/// A thread that can be woken: it stops sleeping, or does not begin.
pub(super) trait Sleep {
    /// Wakes the thread. What the caller did before is seen by it afterwards.
    fn wake(&self);
}

/// How to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// Until woken: somebody else has the token.
    StandBy,
    /// Until woken, for a short while: the application polls and serves port and timers by that.
    Nap,
    /// Until woken, until the port is readable, or until this time.
    Watch(Instant),
}

/// What a thread does between two decisions. System calls and the clock are behind this.
pub(super) trait Rounds {
    /// Whether there is nothing more to stay for. Asked before every decision.
    fn done(&mut self) -> bool;
    /// Whether the application polls, so that the holder of the token may leave the port alone. Called
    /// under the lock of the hand-over.
    fn lazy(&self) -> bool;
    /// Makes a pass, waiting for the engine's lock. The report says how long the thread may sleep.
    fn pass(&mut self) -> PassReport;
    /// Whether to look again rather than sleep; told whether the last pass moved something.
    fn linger(&mut self, progress: bool) -> bool;
    /// Sleeps.
    fn rest(&mut self, rest: Rest);
}

/// Who speaks.
#[derive(Debug)]
pub(super) enum Who<'a, S> {
    /// The background thread.
    Thread,
    /// A thread inside `wait`, between [`Handover::enter`] and [`Handover::leave`].
    Waiter(&'a Arc<S>),
}

impl<S> Clone for Who<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Who<'_, S> {}

/// What a thread was last told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Posture {
    Awake,
    StandBy,
    Nap,
    Watch,
}

#[derive(Debug)]
struct Seat<S> {
    sleeper: Arc<S>,
    posture: Posture,
}

/// The answer to [`Handover::plan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    /// The background thread is to end.
    Stop,
    /// Sleep so.
    Rest(Rest),
    /// Make a pass.
    Pass,
}

#[derive(Debug)]
struct Seats<S> {
    /// The waiter that holds the token. While there is one, the background thread does not.
    waiter: Option<Seat<S>>,
    /// Waiters without the token, first come, first promoted.
    queue: Vec<Arc<S>>,
    /// The background thread; it holds the token while no waiter does.
    thread: Option<Seat<S>>,
    /// The background thread never gives the token to a waiter.
    exclusive: bool,
    /// The background thread is to end.
    stop: bool,
    /// Somebody was promised a pass: the next holder to plan makes one, even if the application polls.
    urgent: bool,
}

impl<S> Seats<S> {
    fn holder(&mut self) -> Option<&mut Seat<S>> {
        self.waiter.as_mut().or(self.thread.as_mut())
    }

    /// The seat of `who` if it holds the token.
    fn seat(&mut self, who: Who<'_, S>) -> Option<&mut Seat<S>> {
        match who {
            Who::Thread if self.waiter.is_some() => None,
            Who::Thread => self.thread.as_mut(),
            Who::Waiter(me) => self.waiter.as_mut().filter(|seat| Arc::ptr_eq(&seat.sleeper, me)),
        }
    }
}

/// The token and those who may hold it.
#[derive(Debug)]
pub(super) struct Handover<S> {
    /// Nanoseconds: until when the holder of the token sleeps or is about to. A pass whose next timeout is
    /// earlier must tell it. [`AWAKE`] while nobody needs to be told. Written under the lock only.
    alarm: AtomicU64,
    seats: Mutex<Seats<S>>,
}

/// No timeout is earlier than this.
const AWAKE: u64 = 0;

impl<S: Sleep> Handover<S> {
    /// Nobody there yet. With `exclusive`, waiters stand by while the background thread lives.
    pub(super) fn new(exclusive: bool) -> Self {
        Self {
            alarm: AtomicU64::new(AWAKE),
            seats: Mutex::new(Seats {
                waiter: None,
                queue: Vec::new(),
                thread: None,
                exclusive,
                stop: false,
                urgent: false,
            }),
        }
    }

    /// Stays until there is nothing to stay for. The whole life of a waiter (entered before, leaving
    /// afterwards) and of the background thread (seated before, unseated afterwards).
    pub(super) fn stay(&self, who: Who<'_, S>, rounds: &mut impl Rounds) {
        let mut linger = false;
        while !rounds.done() {
            match self.plan(who, !linger, || rounds.lazy()) {
                Plan::Stop => return,
                Plan::Rest(rest) => {
                    linger = false;
                    rounds.rest(rest);
                }
                Plan::Pass => {
                    let report = rounds.pass();
                    linger = rounds.linger(report.progress);
                    if linger || report.progress {
                        continue;
                    }
                    if let Some(until) = self.lie_down(who, report.next) {
                        rounds.rest(Rest::Watch(until));
                    }
                }
            }
        }
    }

    /// A waiter comes. Takes the token if it is free or with the background thread, else queues.
    pub(super) fn enter(&self, me: &Arc<S>) {
        let mut seats = self.seats.lock();
        if seats.waiter.is_some() || (seats.exclusive && seats.thread.is_some()) {
            seats.queue.push(Arc::clone(me));
            return;
        }
        seats.waiter = Some(Seat { sleeper: Arc::clone(me), posture: Posture::Awake });
        self.alarm.store(AWAKE, Ordering::Relaxed);
        // Two threads on one port would both wake up for each datagram: it must leave its sleep there. From
        // a nap it comes back by itself.
        let roused = seats.thread.as_mut().filter(|seat| seat.posture == Posture::Watch).map(rouse);
        drop(seats);
        wake(roused);
    }

    /// A waiter goes, whatever the reason. Somebody else has the token when this returns, if anybody can.
    pub(super) fn leave(&self, me: &Arc<S>, lazy: impl Fn() -> bool) {
        let mut seats = self.seats.lock();
        if seats.seat(Who::Waiter(me)).is_none() {
            seats.queue.retain(|other| !Arc::ptr_eq(other, me));
            return;
        }
        let roused = self.pass_on(&mut seats, lazy);
        drop(seats);
        wake(roused);
    }

    /// The token leaves the waiter that holds it. Whom to wake.
    fn pass_on(&self, seats: &mut Seats<S>, lazy: impl Fn() -> bool) -> Option<Arc<S>> {
        self.alarm.store(AWAKE, Ordering::Relaxed);
        seats.waiter = None;
        if !seats.queue.is_empty() {
            let sleeper = seats.queue.remove(0);
            seats.waiter = Some(Seat { sleeper: Arc::clone(&sleeper), posture: Posture::Awake });
            return Some(sleeper);
        }
        let thread = seats.thread.as_mut()?;
        match thread.posture {
            Posture::StandBy => Some(rouse(thread)),
            // It looks again soon, which is soon enough while the application polls.
            Posture::Nap if seats.urgent || !lazy() => Some(rouse(thread)),
            Posture::Nap | Posture::Awake | Posture::Watch => None,
        }
    }

    /// The background thread takes its seat.
    pub(super) fn seat_thread(&self, sleeper: Arc<S>) {
        self.seats.lock().thread = Some(Seat { sleeper, posture: Posture::Awake });
    }

    /// The background thread goes, whatever the reason.
    pub(super) fn unseat_thread(&self) {
        let mut seats = self.seats.lock();
        seats.thread = None;
        // Those whom an exclusive thread kept waiting.
        let roused = if seats.waiter.is_none() { self.pass_on(&mut seats, || false) } else { None };
        drop(seats);
        wake(roused);
    }

    /// The background thread's place to sleep.
    #[cfg(all(test, not(loom)))]
    pub(super) fn thread(&self) -> Option<Arc<S>> {
        self.seats.lock().thread.as_ref().map(|seat| Arc::clone(&seat.sleeper))
    }

    /// Tells the background thread to end.
    pub(super) fn stop(&self) {
        let mut seats = self.seats.lock();
        seats.stop = true;
        let roused = seats.thread.as_mut().map(rouse);
        drop(seats);
        wake(roused);
    }

    /// Whether the background thread was told to end.
    pub(super) fn is_stopped(&self) -> bool {
        self.seats.lock().stop
    }

    /// Whether waiters can only stand by.
    pub(super) fn is_taken_for_good(&self) -> bool {
        let seats = self.seats.lock();
        seats.exclusive && seats.thread.is_some()
    }

    /// What `who` is to do next. If it is a pass and `sleepy`, then others are told from here on that the
    /// sleep after it is for ever, until [`Handover::lie_down`] knows better.
    fn plan(&self, who: Who<'_, S>, sleepy: bool, lazy: impl Fn() -> bool) -> Plan {
        let mut seats = self.seats.lock();
        if matches!(who, Who::Thread) && seats.stop {
            return Plan::Stop;
        }
        let urgent = seats.urgent;
        let Some(seat) = seats.seat(who) else {
            if let (Who::Thread, Some(thread)) = (who, &mut seats.thread) {
                thread.posture = Posture::StandBy;
            }
            return Plan::Rest(Rest::StandBy);
        };
        // Asked under the lock: a hand-over comes before, and this sees it, or after, and ends the nap.
        if !urgent && lazy() {
            seat.posture = Posture::Nap;
            self.alarm.store(AWAKE, Ordering::Relaxed);
            return Plan::Rest(Rest::Nap);
        }
        seat.posture = Posture::Awake;
        seats.urgent = false;
        let alarm = if sleepy { Instant::FAR_FUTURE.as_nanos() } else { AWAKE };
        self.alarm.store(alarm, Ordering::Relaxed);
        Plan::Pass
    }

    /// Until when `who` may sleep, its own pass having said `next`. `None`: not at all, plan again.
    fn lie_down(&self, who: Who<'_, S>, next: Instant) -> Option<Instant> {
        let mut seats = self.seats.lock();
        let seat = seats.seat(who)?;
        // Somebody's pass may have said something earlier meanwhile.
        let until = self.alarm.load(Ordering::Relaxed).min(next.as_nanos());
        if until == AWAKE {
            return None;
        }
        seat.posture = Posture::Watch;
        self.alarm.store(until, Ordering::Relaxed);
        Some(Instant::from_nanos(until))
    }

    /// After a pass, without the engine's lock: the engine's next timeout. Wakes the holder of the token
    /// if it sleeps for longer.
    #[inline]
    pub(super) fn note(&self, next: Instant) {
        // The engine's lock orders this after the announcement of whoever made a pass before ours.
        if next.as_nanos() < self.alarm.load(Ordering::Relaxed) {
            self.pull(next);
        }
    }

    #[cold]
    fn pull(&self, next: Instant) {
        let mut seats = self.seats.lock();
        if next.as_nanos() >= self.alarm.load(Ordering::Relaxed) {
            return;
        }
        // Still awake: it takes the minimum when it lies down.
        self.alarm.store(next.as_nanos(), Ordering::Relaxed);
        let roused = seats.holder().filter(|seat| seat.posture == Posture::Watch).map(rouse);
        drop(seats);
        wake(roused);
    }

    /// The application stops polling and relies on being told. To be called after that was recorded where
    /// [`Rounds::lazy`] looks.
    pub(super) fn attend(&self) {
        let mut seats = self.seats.lock();
        let roused = seats.holder().filter(|seat| seat.posture == Posture::Nap).map(rouse);
        drop(seats);
        wake(roused);
    }

    /// Promises that the holder of the token, whoever that is by then, makes a pass after this call.
    /// `false` without a background thread: a waiter alone may leave before it has passed.
    pub(super) fn relieve(&self) -> bool {
        let mut seats = self.seats.lock();
        if seats.thread.is_none() || seats.stop {
            return false;
        }
        seats.urgent = true;
        // Should it be between its pass and its sleep, the wake-up waits for it there.
        let roused = seats.holder().map(rouse);
        drop(seats);
        wake(roused);
        true
    }
}

fn rouse<S>(seat: &mut Seat<S>) -> Arc<S> {
    seat.posture = Posture::Awake;
    Arc::clone(&seat.sleeper)
}

fn wake<S: Sleep>(sleeper: Option<Arc<S>>) {
    if let Some(sleeper) = sleeper {
        sleeper.wake();
    }
}

/// Threads that sleep until something happens that they can see for themselves, such as an entry in a
/// completion queue.
#[derive(Debug)]
pub(super) struct WaiterList<S> {
    /// Rung while the list is not empty. A bell, because waiter and notifier are in the same race as the
    /// two sides of the combining lock: register, then look; publish, then ask whether anybody waits.
    waiting: Bell,
    list: Mutex<Vec<Arc<S>>>,
}

impl<S: Sleep> WaiterList<S> {
    pub(super) fn new() -> Self {
        Self { waiting: Bell::new(), list: Mutex::new(Vec::new()) }
    }

    /// From here on `me` is woken by each [`WaiterList::notify`]. Look for the event after this call.
    pub(super) fn register(&self, me: &Arc<S>) -> Registration<'_, S> {
        let mut list = self.list.lock();
        list.push(Arc::clone(me));
        self.waiting.ring();
        Registration { list: self, me: Arc::clone(me) }
    }

    /// Wakes all. To be called after the event was published.
    #[inline]
    pub(super) fn notify(&self) {
        if self.waiting.heard() {
            self.wake_all();
        }
    }

    /// [`WaiterList::notify`] as it must not be.
    #[cfg(all(test, loom))]
    pub(super) fn notify_without_barrier(&self) {
        if self.waiting.is_rung() {
            self.wake_all();
        }
    }

    #[cold]
    fn wake_all(&self) {
        for sleeper in self.list.lock().iter() {
            sleeper.wake();
        }
    }
}

/// Takes its waiter off the list when dropped.
pub(super) struct Registration<'a, S: Sleep> {
    list: &'a WaiterList<S>,
    me: Arc<S>,
}

impl<S: Sleep> Drop for Registration<'_, S> {
    fn drop(&mut self) {
        let mut list = self.list.list.lock();
        if let Some(at) = list.iter().position(|other| Arc::ptr_eq(other, &self.me)) {
            list.swap_remove(at);
        }
        if list.is_empty() {
            self.list.waiting.clear();
        }
    }
}
