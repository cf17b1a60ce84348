//! How the application learns that something happened: channels, event lists, wakers.
//!
//! *Owns.* The bridge from what the engine publishes to who waits for it. Nothing here blocks: a pass
//! tells, and those who wait do so in [`progress`](super::progress) or in virtual time.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use parking_lot::Mutex;

use super::progress::Waiters;
use super::signal::Signal;
use crate::engine::AsyncEvent;
use crate::engine::event::MAX_EVENTS;
use crate::queue::CqShared;

/// A completion event channel: completion queues whose event was asked for and came.
#[derive(Debug, Default)]
pub struct Channel {
    ready: Mutex<VecDeque<u32>>,
    /// Readable while there are events.
    pub signal: Signal,
    /// Who waits for one.
    pub waiters: Waiters,
}

impl Channel {
    fn raise(&self, cq: u32) {
        {
            // The descriptor changes with the list: whoever takes an event finds it counted.
            let mut ready = self.ready.lock();
            ready.push_back(cq);
            self.signal.raise();
        }
        self.waiters.notify();
    }

    /// The next event: the number of a completion queue.
    pub fn take(&self) -> Option<u32> {
        let mut ready = self.ready.lock();
        let cq = ready.pop_front()?;
        self.signal.lower();
        Some(cq)
    }

    /// Forgets events of a completion queue that is gone.
    pub fn forget(&self, cq: u32) {
        let mut ready = self.ready.lock();
        let before = ready.len();
        ready.retain(|&c| c != cq);
        for _ in ready.len()..before {
            self.signal.lower();
        }
    }

    /// Whether there is no event.
    pub fn is_empty(&self) -> bool {
        self.ready.lock().is_empty()
    }
}

/// Where somebody is on a list of [`Wakers`]; nowhere, at first.
#[derive(Debug, Default)]
pub struct Place(Option<u64>);

/// Wakers of those who wait: one for each, so that who goes takes its own along and no other.
#[derive(Debug, Default)]
pub struct Wakers {
    list: Vec<(u64, Waker)>,
    next: u64,
}

impl Wakers {
    /// Enters a waker. The one that was there before comes back: what a program does when its waker goes is its own
    /// matter, and not for under a lock.
    pub fn put(&mut self, place: &mut Place, waker: Waker) -> Option<Waker> {
        let mine = self.list.iter_mut().find(|(number, _)| Some(*number) == place.0);
        if let Some((_, known)) = mine {
            return Some(std::mem::replace(known, waker));
        }
        place.0 = Some(self.next);
        self.list.push((self.next, waker));
        self.next += 1;
        None
    }

    /// Takes a waker off the list, if it is there.
    pub fn remove(&mut self, place: &mut Place) -> Option<Waker> {
        let number = place.0.take()?;
        let at = self.list.iter().position(|&(n, _)| n == number)?;
        Some(self.list.remove(at).1)
    }

    /// Moves all to `out`.
    pub fn take(&mut self, out: &mut Vec<Waker>) {
        out.extend(self.list.drain(..).map(|(_, waker)| waker));
    }
}

/// The completion queue as those who wait for it see it.
pub struct CqNotify {
    /// Its number.
    pub cq: u32,
    /// The queue.
    pub shared: Arc<CqShared>,
    /// Threads that sleep until it has something.
    pub waiters: Waiters,
    /// Where its events go.
    pub channel: Option<Arc<Channel>>,
    wakers: Mutex<Wakers>,
    has_wakers: AtomicBool,
}

impl CqNotify {
    /// Nobody waits yet.
    pub fn new(cq: u32, shared: Arc<CqShared>, channel: Option<Arc<Channel>>) -> Self {
        Self {
            cq,
            shared,
            waiters: Waiters::new(),
            channel,
            wakers: Mutex::default(),
            has_wakers: AtomicBool::new(false),
        }
    }

    /// Has `waker` woken when there is something. The caller looks once more after this, and
    /// [takes it back](Self::unregister) when it waits no more.
    pub fn register(&self, place: &mut Place, waker: &Waker) {
        let waker = waker.clone();
        let before = self.wakers.lock().put(place, waker);
        drop(before);
        // Read-modify-write on both sides: either the look that follows sees the completion, or the
        // publisher sees the waker.
        self.has_wakers.swap(true, Ordering::AcqRel);
    }

    /// Whoever registered at `place` does not wait any more.
    pub fn unregister(&self, place: &mut Place) {
        if place.0.is_some() {
            let waker = self.wakers.lock().remove(place);
            drop(waker);
        }
    }

    /// Completions were published; `notify`: the channel's event is due. Wakers to be woken, without any
    /// lock, go to `out`.
    pub(super) fn publish(&self, notify: bool, out: &mut Vec<Waker>) {
        self.waiters.notify();
        if notify && let Some(channel) = &self.channel {
            channel.raise(self.cq);
        }
        if self.has_wakers.swap(false, Ordering::AcqRel) {
            self.wakers.lock().take(out);
        }
    }
}

impl fmt::Debug for CqNotify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CqNotify")
            .field("cq", &self.cq)
            .field("shared", &self.shared)
            .finish_non_exhaustive()
    }
}

/// Asynchronous events of one opener of the device.
#[derive(Debug, Default)]
pub struct EventQueue {
    events: Mutex<VecDeque<AsyncEvent>>,
    /// Readable while there are events.
    pub signal: Signal,
    /// Who waits for one.
    pub waiters: Waiters,
}

impl EventQueue {
    /// Appends an event. `false`: there are [`MAX_EVENTS`], and it is lost.
    #[must_use = "what is lost is counted"]
    pub(super) fn push(&self, event: AsyncEvent) -> bool {
        {
            let mut events = self.events.lock();
            if events.len() >= MAX_EVENTS {
                return false;
            }
            events.push_back(event);
            self.signal.raise();
        }
        self.waiters.notify();
        true
    }

    /// The next event.
    pub fn take(&self) -> Option<AsyncEvent> {
        let mut events = self.events.lock();
        let event = events.pop_front()?;
        self.signal.lower();
        Some(event)
    }

    /// Forgets events of an object that is gone: its number may be another's by now.
    pub(super) fn forget(&self, is_its: impl Fn(&AsyncEvent) -> bool) {
        let mut events = self.events.lock();
        let before = events.len();
        events.retain(|event| !is_its(event));
        for _ in events.len()..before {
            self.signal.lower();
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.events.lock().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::completion_queue;
    use std::task::{Wake, Waker};

    struct Nobody;

    impl Wake for Nobody {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn who_waits_no_more_leaves_no_waker() {
        let (shared, _producer) = completion_queue(4);
        let cq = CqNotify::new(0, shared, None);
        let waker = Waker::from(Arc::new(Nobody));
        let mut kept = Place::default();
        cq.register(&mut kept, &waker);
        for _ in 0..100 {
            // The same task, waiting at another place as well, or once more at the same one.
            let mut place = Place::default();
            cq.register(&mut place, &waker);
            cq.register(&mut place, &waker);
            assert_eq!(cq.wakers.lock().list.len(), 2);
            cq.unregister(&mut place);
        }
        let mut woken = Vec::new();
        cq.publish(false, &mut woken);
        assert_eq!(woken.len(), 1, "whoever still waits");
        cq.unregister(&mut kept);
        assert_eq!(cq.wakers.lock().list.len(), 0);
    }

    #[test]
    fn events_of_what_is_gone_go_with_it() {
        let queue = EventQueue::default();
        let events =
            [AsyncEvent::CqErr { cq: 1 }, AsyncEvent::DeviceFatal, AsyncEvent::CqErr { cq: 2 }];
        for event in events {
            assert!(queue.push(event));
        }
        queue.forget(|event| *event == events[0]);
        assert_eq!(
            [queue.take(), queue.take(), queue.take()],
            [Some(events[1]), Some(events[2]), None]
        );
    }

    /// Events that are taken while others come: in the end nothing is left, and the descriptor says so.
    #[cfg(all(feature = "udp", target_os = "linux"))]
    #[test]
    fn a_descriptor_is_silent_when_all_was_taken() {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        use std::os::fd::BorrowedFd;

        const MANY: u32 = 50_000;
        fn is_silent(fd: BorrowedFd<'_>) -> bool {
            poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(0)
        }
        let (events, channel) = (EventQueue::default(), Channel::default());
        let fds = [events.signal.fd().unwrap(), channel.signal.fd().unwrap()];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for cq in 0..MANY {
                    while !events.push(AsyncEvent::CqErr { cq }) {
                        std::thread::yield_now();
                    }
                    channel.raise(cq);
                }
            });
            let (mut taken, mut told) = (0, 0);
            while taken < MANY || told < MANY {
                taken += u32::from(events.take().is_some());
                told += u32::from(channel.take().is_some());
            }
        });
        assert!(fds.into_iter().all(is_silent));
    }
}
