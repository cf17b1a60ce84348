//! A lock around single-threaded state, run by whichever thread is there.
//!
//! Owns the state, the lock and the bell beside it. Somebody who finds the lock taken does not wait: it
//! queues its work where a pass will find it, rings, and leaves. The holder looks at the bell after it
//! has let go of the lock and runs one more pass if it rang. (Linux' `rxe_task` has the same idea in its
//! armed state.)
//!
//! *Rules.*
//! - Work queued before [`Combine::kick`] is seen by a pass that starts after the call began, here or in
//!   the holder. Nobody blocks for that, nobody spins.
//! - After the lock is released the bell is read by a read-modify-write, never by a plain load. Ringer:
//!   ring, then try the lock. Holder: unlock, then read the bell. With a plain load both may see the past
//!   (the load passes the unlock in the store buffer): the ringer finds the lock taken, the holder finds
//!   the bell silent, and the work lies there until somebody calls for another reason. Two
//!   read-modify-writes of one word are ordered. If the ring comes first, the holder reads it. If the
//!   holder comes first, the ringer acquires what the holder released, the unlock among it, so its
//!   `try_lock` finds the lock free, or taken by somebody later who will read the bell after the ring. A
//!   pair of `SeqCst` fences does the same job for one barrier more on the ringer's side.
//! - Every access to the bell that changes it is a read-modify-write as well, so that rings of several
//!   threads form one release sequence: whoever clears the bell sees the work of all of them.
//! - A holder may serve others only for [`RELIEF_AFTER`] passes in a row; then it asks for relief
//!   ([`Combine::with_relief`]), and goes on itself only if there is none.
//! - A panic in a closure unwinds through the call and leaves the state as it was at that point, the lock
//!   free (no poisoning) and the bell ringing: whoever comes next, in whatever way, runs a pass.

use std::fmt;

use crate::sync::{AtomicU32, Mutex, Ordering};

/// Passes that a holder runs for others before it asks for relief.
pub const RELIEF_AFTER: u32 = if cfg!(loom) { 1 } else { 16 };

/// One bit that is read and written only by read-modify-writes: see the rules of the module.
#[derive(Debug)]
pub(super) struct Bell(AtomicU32);

impl Bell {
    const RUNG: u32 = 1;
    /// What a reading adds, so that it is a write too. The sum wraps above the bit and never touches it.
    const READ: u32 = 2;

    pub(super) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Everything before this is seen by whoever hears or clears the bell.
    pub(super) fn ring(&self) {
        self.0.fetch_or(Self::RUNG, Ordering::AcqRel);
    }

    /// Whether it rang. Everything before this is seen by whoever rings later.
    pub(super) fn heard(&self) -> bool {
        self.0.fetch_add(Self::READ, Ordering::AcqRel) & Self::RUNG != 0
    }

    /// Whether it rang, as far as a plain load can tell.
    pub(super) fn is_rung(&self) -> bool {
        self.0.load(Ordering::Acquire) & Self::RUNG != 0
    }

    /// Silences the bell. A ring that the first, cheap look misses stays for [`Bell::heard`].
    pub(super) fn clear(&self) {
        if self.is_rung() {
            self.0.fetch_and(!Self::RUNG, Ordering::AcqRel);
        }
    }
}

/// Asks another thread to run a pass soon; `false` if there is none to ask.
type Relief = Box<dyn Fn() -> bool + Send + Sync>;

/// A lock around single-threaded state, run by whichever thread is there.
pub struct Combine<T> {
    bell: Bell,
    state: Mutex<T>,
    relief: Option<Relief>,
}

impl<T> Combine<T> {
    /// Puts the lock around `value`. A holder serves others until nobody rings.
    pub fn new(value: T) -> Self {
        Self { bell: Bell::new(), state: Mutex::new(value), relief: None }
    }

    /// As [`Combine::new`], with a limit to what a holder does for others.
    ///
    /// `relief` is called after [`RELIEF_AFTER`] passes in a row, without the lock. By returning `true` it
    /// promises that some thread calls [`Combine::drive`] after that.
    pub fn with_relief(value: T, relief: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { relief: Some(Box::new(relief)), ..Self::new(value) }
    }

    /// Waits for the lock and runs `f`. Then, the lock released, runs `again` as long as somebody rang.
    ///
    /// For control verbs. `f` need not look at queued work.
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R, again: impl FnMut(&mut T)) -> R {
        let result = {
            let mut state = self.state.lock();
            let ring = RingOnPanic(&self.bell);
            let result = f(&mut state);
            ring.defuse();
            result
        };
        self.settle(again);
        result
    }

    /// Runs `f` if the lock is free, and then `again` as long as somebody rang. `None` if it is taken.
    pub fn try_with<R>(&self, f: impl FnOnce(&mut T) -> R, again: impl FnMut(&mut T)) -> Option<R> {
        let result = {
            let mut state = self.state.try_lock()?;
            let ring = RingOnPanic(&self.bell);
            let result = f(&mut state);
            ring.defuse();
            result
        };
        self.settle(again);
        Some(result)
    }

    /// Sees to it that a pass starts after this call began: here if the lock is free (`true`), else in the
    /// holder, who runs one more. Never blocks.
    ///
    /// For posting: queue the work where `pass` looks, then kick.
    pub fn kick(&self, mut pass: impl FnMut(&mut T)) -> bool {
        if !self.try_pass(&mut pass) {
            self.bell.ring();
            if !self.try_pass(&mut pass) {
                return false;
            }
        }
        self.settle(pass);
        true
    }

    /// Runs `pass` here if the lock is free, and again as long as somebody rang. Whether it ran.
    ///
    /// For polling, where there is nothing to queue: unlike [`Combine::kick`] it asks nothing of a holder.
    pub fn try_drive(&self, mut pass: impl FnMut(&mut T)) -> bool {
        let ran = self.try_pass(&mut pass);
        if ran {
            self.settle(pass);
        }
        ran
    }

    /// Waits for the lock, runs `pass` here, and again as long as somebody rang.
    pub fn drive(&self, mut pass: impl FnMut(&mut T)) {
        {
            let mut state = self.state.lock();
            self.pass(&mut state, &mut pass);
        }
        self.settle(pass);
    }

    fn try_pass(&self, pass: &mut impl FnMut(&mut T)) -> bool {
        let Some(mut state) = self.state.try_lock() else { return false };
        self.pass(&mut state, pass);
        true
    }

    fn pass(&self, state: &mut T, pass: &mut impl FnMut(&mut T)) {
        let ring = RingOnPanic(&self.bell);
        self.bell.clear();
        pass(state);
        ring.defuse();
    }

    /// The duty of everybody who held the lock, after releasing it.
    fn settle(&self, mut pass: impl FnMut(&mut T)) {
        let mut passes = 0;
        while self.bell.heard() {
            if passes >= RELIEF_AFTER && self.relief.as_ref().is_some_and(|ask| ask()) {
                return;
            }
            // Taken again: the duty is with the new holder, who reads the bell after us.
            if !self.try_pass(&mut pass) {
                return;
            }
            passes += 1;
        }
    }
}

impl<T> fmt::Debug for Combine<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Combine").field("bell", &self.bell).finish_non_exhaustive()
    }
}

/// Keeps the promise of a pass that a panic cut short. (Whether the thread is panicking says nothing: it may
/// be unwinding already, and destroy objects on its way.)
struct RingOnPanic<'a>(&'a Bell);

impl RingOnPanic<'_> {
    fn defuse(self) {
        std::mem::forget(self);
    }
}

impl Drop for RingOnPanic<'_> {
    fn drop(&mut self) {
        self.0.ring();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64};
    use std::thread;

    use super::*;

    #[test]
    fn kick_runs_here_when_the_lock_is_free() {
        let combine = Combine::new(0);
        assert!(combine.kick(|passes| *passes += 1));
        assert_eq!(combine.try_with(|passes| *passes, |_| unreachable!("nobody rang")), Some(1));
    }

    #[test]
    fn a_holder_runs_one_more_pass_for_whoever_rang() {
        let combine = Combine::new(Vec::new());
        combine.with(
            |log| {
                log.push("control");
                assert!(!combine.kick(|_| unreachable!("the lock is taken")));
                assert!(combine.try_with(|_| (), |_| ()).is_none());
            },
            |log| log.push("again"),
        );
        assert_eq!(combine.with(|log| log.clone(), |_| ()), ["control", "again"]);
    }

    #[test]
    fn a_ring_before_the_pass_is_not_served_twice() {
        let combine = Combine::new(0);
        combine.bell.ring();
        combine.drive(|passes| *passes += 1);
        assert_eq!(combine.with(|passes| *passes, |_| unreachable!("the bell was cleared")), 1);
    }

    #[test]
    fn a_holder_asks_for_relief() {
        static HELP: AtomicBool = AtomicBool::new(false);
        let combine = Combine::with_relief(0, || HELP.load(Ordering::Relaxed));
        // A colleague who rings during each pass, for longer than one is ready to serve.
        let pass = |passes: &mut u32| {
            *passes += 1;
            HELP.store(*passes > 2 * RELIEF_AFTER, Ordering::Relaxed);
            combine.kick(|_| ());
        };
        combine.drive(pass);
        // Nobody to ask before; the first who can be asked takes over, and the ring is left to him.
        let passes = combine.with(|passes| *passes, |_| ());
        assert_eq!(passes, 2 * RELIEF_AFTER + 1);
    }

    #[test]
    fn a_panic_leaves_the_lock_free_and_the_bell_ringing() {
        let combine = Combine::new(0);
        combine.bell.ring();
        let died = catch_unwind(AssertUnwindSafe(|| {
            combine.drive(|passes| {
                *passes += 1;
                panic!("in the middle of a pass");
            });
        }));
        assert!(died.is_err());
        // Even a call that passes nothing itself makes good for it.
        assert_eq!(combine.try_with(|passes| *passes, |passes| *passes += 1), Some(1));
        assert_eq!(combine.with(|passes| *passes, |_| ()), 2);
    }

    #[test]
    fn a_thread_that_is_unwinding_already_is_no_panic_of_ours() {
        struct Destroys<'a>(&'a Combine<u32>);
        impl Drop for Destroys<'_> {
            fn drop(&mut self) {
                assert!(thread::panicking());
                self.0.with(|passes| *passes += 1, |passes| *passes += 100);
            }
        }
        let combine = Combine::new(0);
        let died = catch_unwind(AssertUnwindSafe(|| {
            let _on_the_way = Destroys(&combine);
            panic!("elsewhere");
        }));
        assert!(died.is_err());
        assert_eq!(combine.with(|passes| *passes, |_| ()), 1, "nobody rang");
    }

    #[test]
    fn threads_lose_no_work() {
        const THREADS: usize = 4;
        const ROUNDS: u64 = 20_000;
        let queued: Arc<[AtomicU64; THREADS]> = Arc::default();
        let combine = Arc::new(Combine::new([0; THREADS]));
        thread::scope(|scope| {
            for me in 0..THREADS {
                let (queued, combine) = (&queued, &combine);
                scope.spawn(move || {
                    for round in 1..=ROUNDS {
                        queued[me].store(round, Ordering::Relaxed);
                        let pass = |seen: &mut [u64; THREADS]| {
                            for (seen, queued) in seen.iter_mut().zip(queued.iter()) {
                                *seen = queued.load(Ordering::Relaxed);
                            }
                        };
                        match round % 4 {
                            0 => combine.drive(pass),
                            1 => {
                                combine.try_with(|_| (), pass);
                            }
                            _ => {
                                combine.kick(pass);
                            }
                        }
                    }
                    combine.kick(|seen| seen[me] = queued[me].load(Ordering::Relaxed));
                });
            }
        });
        assert_eq!(*combine.state.lock(), [ROUNDS; THREADS]);
    }
}

/// The models run real code, except where a test says what it plants instead.
#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;

    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    use super::*;

    const PARTIES: usize = 3;

    /// A doorbell per thread, as weak as it may be, and the lock around the record of what passes saw.
    struct World {
        doorbells: [AtomicBool; PARTIES],
        combine: Combine<[bool; PARTIES]>,
    }

    impl World {
        fn new() -> Arc<Self> {
            let doorbells = std::array::from_fn(|_| AtomicBool::new(false));
            Arc::new(Self { doorbells, combine: Combine::new([false; PARTIES]) })
        }

        fn post(&self, who: usize) {
            self.doorbells[who].store(true, Ordering::Relaxed);
        }

        fn pass(&self) -> impl FnMut(&mut [bool; PARTIES]) + '_ {
            |seen| {
                for (seen, bell) in seen.iter_mut().zip(&self.doorbells) {
                    *seen |= bell.load(Ordering::Relaxed);
                }
            }
        }

        /// After all calls have returned: what did passes see?
        fn seen(&self) -> [bool; PARTIES] {
            *self.combine.state.lock()
        }
    }

    fn race(parties: &[fn(&World)]) -> [bool; PARTIES] {
        let world = World::new();
        let threads: Vec<_> = parties[1..]
            .iter()
            .map(|&party| {
                let world = Arc::clone(&world);
                thread::spawn(move || party(&world))
            })
            .collect();
        parties[0](&world);
        for thread in threads {
            thread.join().expect("a panic ends the model");
        }
        world.seen()
    }

    fn kick<const WHO: usize>(world: &World) {
        world.post(WHO);
        world.combine.kick(world.pass());
    }

    /// Lost wake-up 1: a doorbell while the holder unlocks.
    #[test]
    fn loom_two_kicks() {
        loom::model(|| assert_eq!(race(&[kick::<0>, kick::<1>]), [true, true, false]));
    }

    #[test]
    fn loom_three_kicks() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| assert_eq!(race(&[kick::<0>, kick::<1>, kick::<2>]), [true; 3]));
    }

    #[test]
    fn loom_kick_during_a_control_verb() {
        let control = |world: &World| world.combine.with(|_| (), world.pass());
        loom::model(move || assert!(race(&[control, kick::<1>])[1]));
    }

    #[test]
    fn loom_kick_during_a_poll() {
        let poll = |world: &World| {
            world.combine.try_with(|_| (), world.pass());
        };
        loom::model(move || assert!(race(&[poll, kick::<1>])[1]));
    }

    #[test]
    fn loom_kick_during_a_drive() {
        let drive = |world: &World| {
            world.post(0);
            world.combine.drive(world.pass());
        };
        loom::model(move || assert_eq!(race(&[drive, kick::<1>]), [true, true, false]));
    }

    /// A holder who is relieved leaves nothing behind: the reliever passes when asked and only then.
    #[test]
    fn loom_relief() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let asked = Arc::new(AtomicBool::new(false));
            let called = Arc::new(loom::sync::Notify::new());
            let relief = {
                let (asked, called) = (Arc::clone(&asked), Arc::clone(&called));
                move || {
                    asked.store(true, Ordering::Release);
                    called.notify();
                    true
                }
            };
            let doorbells = std::array::from_fn(|_| AtomicBool::new(false));
            let combine = Combine::with_relief([false; PARTIES], relief);
            let world = Arc::new(World { doorbells, combine });
            let over = Arc::new(AtomicBool::new(false));
            let helper = {
                let (world, called) = (Arc::clone(&world), Arc::clone(&called));
                let over = Arc::clone(&over);
                thread::spawn(move || {
                    loop {
                        called.wait();
                        let last = over.load(Ordering::Acquire);
                        while asked.swap(false, Ordering::AcqRel) {
                            world.combine.drive(world.pass());
                        }
                        if last {
                            return;
                        }
                    }
                })
            };
            let other = {
                let world = Arc::clone(&world);
                thread::spawn(move || {
                    kick::<1>(&world);
                    kick::<2>(&world);
                })
            };
            kick::<0>(&world);
            other.join().expect("a panic ends the model");
            over.store(true, Ordering::Release);
            called.notify();
            helper.join().expect("a panic ends the model");
            assert_eq!(world.seen(), [true; 3]);
        });
    }

    /// A kick whose holder looks at the bell by a plain load after it unlocked.
    fn kick_without_barrier<const WHO: usize>(world: &World) {
        world.post(WHO);
        let combine = &world.combine;
        if !combine.try_pass(&mut world.pass()) {
            combine.bell.ring();
            if !combine.try_pass(&mut world.pass()) {
                return;
            }
        }
        while combine.bell.is_rung() {
            if !combine.try_pass(&mut world.pass()) {
                return;
            }
        }
    }

    #[test]
    #[should_panic(expected = "assertion")]
    fn loom_without_the_barrier_a_doorbell_is_lost() {
        let kicks: [fn(&World); 2] = [kick_without_barrier::<0>, kick_without_barrier::<1>];
        loom::model(move || assert_eq!(race(&kicks), [true, true, false]));
    }

    /// A kick that rings by a plain store: the ringer's side of the same mistake.
    fn kick_with_plain_ring<const WHO: usize>(world: &World) {
        world.post(WHO);
        let combine = &world.combine;
        if !combine.try_pass(&mut world.pass()) {
            combine.bell.0.store(Bell::RUNG, Ordering::Release);
            if !combine.try_pass(&mut world.pass()) {
                return;
            }
        }
        combine.settle(world.pass());
    }

    #[test]
    #[should_panic(expected = "assertion")]
    fn loom_with_a_plain_ring_a_doorbell_is_lost() {
        let kicks: [fn(&World); 2] = [kick_with_plain_ring::<0>, kick_with_plain_ring::<1>];
        loom::model(move || assert_eq!(race(&kicks), [true, true, false]));
    }
}
