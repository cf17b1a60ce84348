//! loom's view of the hand-over: the real [`Handover`], [`WaiterList`], [`Latch`] and [`Combine`] around a
//! mock engine and a mock kernel. Each model is one race that could lose a wake-up; a lost one shows as a
//! deadlock, because nothing else ends a sleep here: naps are for ever, and time stands still until the
//! rest of the model is over.

use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Condvar, Mutex};
use loom::thread;

use super::combine::Combine;
use super::handover::{Handover, Rest, Rounds, Sleep, WaiterList, Who};
use super::progress::PassReport;
use super::wake::Latch;
use crate::time::Instant;

const LONG: Instant = Instant::from_nanos(100);
const SOON: Instant = Instant::from_nanos(50);
const QUEUES: usize = 2;
const EYES: usize = 3;

/// What system calls see.
#[derive(Default)]
struct Kernel {
    /// Datagrams in the socket: the completion queue that each is for.
    datagrams: Vec<usize>,
    /// The eventfds.
    rung: [bool; EYES],
    /// Nothing else happens, so time goes on to the next timeout.
    quiet: bool,
    now: Instant,
}

/// A thread's place to sleep: [`super::wake::Wake`] with the kernel above.
struct Eye {
    latch: Latch,
    which: usize,
    world: Arc<Outside>,
}

#[derive(Default)]
struct Outside {
    kernel: Mutex<Kernel>,
    changed: Condvar,
}

impl Outside {
    fn change<R>(&self, change: impl FnOnce(&mut Kernel) -> R) -> R {
        let result = change(&mut self.kernel.lock().expect("a panic ends the model"));
        self.changed.notify_all();
        result
    }
}

impl Sleep for Eye {
    fn wake(&self) {
        if self.latch.wake() {
            self.world.change(|kernel| kernel.rung[self.which] = true);
        }
    }
}

impl Eye {
    fn sleep(&self, watch: bool, until: Instant) {
        if !self.latch.lie_down() {
            return;
        }
        let mut kernel = self.world.kernel.lock().expect("a panic ends the model");
        loop {
            if kernel.rung[self.which] || (watch && !kernel.datagrams.is_empty()) {
                break;
            }
            if kernel.quiet && until != Instant::FAR_FUTURE {
                kernel.now = kernel.now.max(until);
                break;
            }
            kernel = self.world.changed.wait(kernel).expect("a panic ends the model");
        }
        let rung = kernel.rung[self.which];
        drop(kernel);
        if self.latch.get_up() || rung {
            self.world.change(|kernel| kernel.rung[self.which] = false);
        }
    }
}

struct World {
    outside: Arc<Outside>,
    /// The state of the engine is its timer.
    engine: Combine<Instant>,
    handover: Handover<Eye>,
    completed: [AtomicBool; QUEUES],
    waiters: [WaiterList<Eye>; QUEUES],
    doorbell: AtomicBool,
    polling: AtomicBool,
}

impl World {
    fn new(timer: Instant) -> Arc<Self> {
        Arc::new(Self {
            outside: Arc::default(),
            engine: Combine::new(timer),
            handover: Handover::new(false),
            completed: std::array::from_fn(|_| AtomicBool::new(false)),
            waiters: std::array::from_fn(|_| WaiterList::new()),
            doorbell: AtomicBool::new(false),
            polling: AtomicBool::new(false),
        })
    }

    fn eye(&self, which: usize) -> Arc<Eye> {
        Arc::new(Eye { latch: Latch::new(), which, world: Arc::clone(&self.outside) })
    }

    fn send(&self, queue: usize) {
        self.outside.change(|kernel| kernel.datagrams.push(queue));
    }

    fn quiet(&self) {
        self.outside.change(|kernel| kernel.quiet = true);
    }

    fn pass(&self) -> PassReport {
        let mut report = PassReport { progress: false, next: Instant::FAR_FUTURE };
        let mut news = [false; QUEUES];
        self.engine.drive(|timer| {
            let (datagrams, now) = {
                let mut kernel = self.outside.kernel.lock().expect("a panic ends the model");
                (std::mem::take(&mut kernel.datagrams), kernel.now)
            };
            for queue in datagrams {
                news[queue] = true;
            }
            if *timer <= now {
                assert_eq!(*timer, now, "slept past the timeout");
                *timer = Instant::FAR_FUTURE;
                news[0] = true;
            }
            if self.doorbell.swap(false, Ordering::Relaxed) {
                news[1] = true;
            }
            for (completed, news) in self.completed.iter().zip(news) {
                if news {
                    completed.store(true, Ordering::Release);
                    report.progress = true;
                }
            }
            report.next = *timer;
        });
        for (waiters, news) in self.waiters.iter().zip(news) {
            if news {
                waiters.notify();
            }
        }
        report
    }

    /// `post_send`: a packet leaves, and its retransmission is due at `when`.
    fn post(&self, when: Instant) {
        let mut next = Instant::FAR_FUTURE;
        self.engine.drive(|timer| {
            *timer = (*timer).min(when);
            next = *timer;
        });
        self.handover.note(next);
    }

    /// `wait`.
    fn wait(&self, me: &Arc<Eye>, queue: usize) {
        let _registration = self.waiters[queue].register(me);
        self.handover.enter(me);
        self.handover.stay(Who::Waiter(me), &mut Life { world: self, me, queue: Some(queue) });
        self.handover.leave(me, || self.polling.load(Ordering::Relaxed));
    }

    /// A thread of the application that relies on others, as one that sleeps on a completion channel.
    fn rely(&self, me: &Arc<Eye>, queue: usize) {
        let _registration = self.waiters[queue].register(me);
        while !self.completed[queue].load(Ordering::Acquire) {
            me.sleep(false, Instant::FAR_FUTURE);
        }
    }

    /// The background thread.
    fn start(self: &Arc<Self>) -> thread::JoinHandle<()> {
        let (world, me) = (Arc::clone(self), self.eye(EYES - 1));
        world.handover.seat_thread(Arc::clone(&me));
        thread::spawn(move || {
            world.handover.stay(Who::Thread, &mut Life { world: &world, me: &me, queue: None });
            world.handover.unseat_thread();
        })
    }
}

struct Life<'a> {
    world: &'a World,
    me: &'a Arc<Eye>,
    /// What a waiter waits for.
    queue: Option<usize>,
}

impl Rounds for Life<'_> {
    fn done(&mut self) -> bool {
        self.queue.is_some_and(|queue| self.world.completed[queue].load(Ordering::Acquire))
    }

    fn lazy(&self) -> bool {
        self.world.polling.load(Ordering::Relaxed)
    }

    fn pass(&mut self) -> PassReport {
        self.world.pass()
    }

    fn linger(&mut self, _progress: bool) -> bool {
        false
    }

    fn rest(&mut self, rest: Rest) {
        match rest {
            Rest::StandBy | Rest::Nap => self.me.sleep(false, Instant::FAR_FUTURE),
            Rest::Watch(until) => self.me.sleep(true, until),
        }
    }
}

fn check(preemptions: Option<usize>, model: fn()) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(model);
}

fn join(thread: thread::JoinHandle<()>) {
    thread.join().expect("a panic ends the model");
}

/// A completion between the last look and the sleep. It comes from a pass of somebody else, so that
/// nothing at the port would wake the waiter.
#[test]
fn loom_completion_while_the_waiter_lies_down() {
    check(None, || {
        let world = World::new(Instant::FAR_FUTURE);
        let other = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                world.completed[0].store(true, Ordering::Release);
                world.waiters[0].notify();
            })
        };
        world.wait(&world.eye(0), 0);
        join(other);
    });
}

/// The same, with a notifier that asks by a plain load whether anybody waits.
#[test]
#[should_panic(expected = "deadlock")]
fn loom_without_the_barrier_a_completion_is_lost() {
    check(None, || {
        let world = World::new(Instant::FAR_FUTURE);
        let other = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                world.completed[0].store(true, Ordering::Release);
                world.waiters[0].notify_without_barrier();
            })
        };
        world.wait(&world.eye(0), 0);
        join(other);
    });
}

fn pulled_earlier(from: Instant) {
    let world = World::new(from);
    let poster = {
        let world = Arc::clone(&world);
        thread::spawn(move || {
            world.post(SOON);
            world.quiet();
        })
    };
    world.wait(&world.eye(0), 0);
    join(poster);
    assert_eq!(world.outside.kernel.lock().expect("no panic").now, SOON);
}

/// A post starts the only timer while the waiter lies down: it must not sleep for ever.
#[test]
fn loom_timer_started_while_the_waiter_lies_down() {
    check(Some(4), || pulled_earlier(Instant::FAR_FUTURE));
}

/// A post pulls the timer earlier while the waiter lies down: it must not sleep until the old one.
#[test]
fn loom_timer_pulled_earlier_while_the_waiter_lies_down() {
    check(Some(4), || pulled_earlier(LONG));
}

/// The same while the responsibility goes from a leaving waiter to the background thread.
#[test]
fn loom_timer_pulled_earlier_while_the_waiter_leaves() {
    check(Some(2), || {
        let world = World::new(Instant::FAR_FUTURE);
        world.send(1);
        let thread = world.start();
        let poster = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                world.wait(&world.eye(1), 1);
                world.post(SOON);
                world.quiet();
            })
        };
        world.rely(&world.eye(0), 0);
        join(poster);
        world.handover.stop();
        join(thread);
    });
}

/// The token is released while another waiter falls asleep.
#[test]
fn loom_token_released_while_another_falls_asleep() {
    check(Some(3), || {
        let world = World::new(Instant::FAR_FUTURE);
        world.send(0);
        let other = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.wait(&world.eye(1), 1))
        };
        world.wait(&world.eye(0), 0);
        // For the one that is still there, with or without the token a moment ago.
        world.send(1);
        join(other);
    });
}

/// A waiter takes the token from the background thread and gives it back.
#[test]
fn loom_token_from_the_thread_and_back() {
    check(Some(3), || {
        let world = World::new(Instant::FAR_FUTURE);
        world.send(0);
        let thread = world.start();
        let me = world.eye(0);
        world.wait(&me, 0);
        world.send(1);
        world.rely(&me, 1);
        world.handover.stop();
        join(thread);
    });
}

/// The background thread is stopped while it lies down.
#[test]
fn loom_stop_while_the_thread_lies_down() {
    check(None, || {
        let world = World::new(Instant::FAR_FUTURE);
        let thread = world.start();
        world.handover.stop();
        join(thread);
    });
}

/// It is stopped while it stands by, or comes back from that.
#[test]
fn loom_stop_while_the_thread_stands_by() {
    check(Some(3), || {
        let world = World::new(Instant::FAR_FUTURE);
        let thread = world.start();
        let waiter = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.wait(&world.eye(0), 0))
        };
        world.handover.stop();
        world.send(0);
        join(waiter);
        join(thread);
    });
}

/// A completion queue is armed while the thread decides to nap: from then on nobody polls.
#[test]
fn loom_hand_over_while_the_thread_begins_to_nap() {
    check(Some(3), || {
        let world = World::new(Instant::FAR_FUTURE);
        world.polling.store(true, Ordering::Relaxed);
        let thread = world.start();
        world.polling.store(false, Ordering::Relaxed);
        world.handover.attend();
        world.send(1);
        world.rely(&world.eye(0), 1);
        world.handover.stop();
        join(thread);
    });
}

/// The same while a waiter has the token and naps, and leaves.
#[test]
fn loom_hand_over_while_a_waiter_naps() {
    check(Some(2), || {
        let world = World::new(Instant::FAR_FUTURE);
        world.polling.store(true, Ordering::Relaxed);
        let thread = world.start();
        let waiter = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.wait(&world.eye(1), 0))
        };
        world.polling.store(false, Ordering::Relaxed);
        world.handover.attend();
        world.send(0);
        world.send(1);
        world.rely(&world.eye(0), 1);
        join(waiter);
        world.handover.stop();
        join(thread);
    });
}

/// A holder of the engine's lock asks for relief: a pass begins after that, whatever the thread is at.
#[test]
fn loom_relief_while_the_thread_lies_down() {
    check(Some(3), || {
        let world = World::new(Instant::FAR_FUTURE);
        world.polling.store(true, Ordering::Relaxed);
        let thread = world.start();
        world.doorbell.store(true, Ordering::Relaxed);
        assert!(world.handover.relieve());
        world.rely(&world.eye(0), 1);
        world.handover.stop();
        join(thread);
    });
}
