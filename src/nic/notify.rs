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
        self.ready.lock().push_back(cq);
        self.signal.raise();
        self.waiters.notify();
    }

    /// The next event: the number of a completion queue.
    pub fn take(&self) -> Option<u32> {
        let cq = self.ready.lock().pop_front()?;
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
    wakers: Mutex<Vec<Waker>>,
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
            wakers: Mutex::new(Vec::new()),
            has_wakers: AtomicBool::new(false),
        }
    }

    /// Has `waker` woken when there is something. The caller looks once more after this.
    pub fn register(&self, waker: &Waker) {
        let mut wakers = self.wakers.lock();
        if !wakers.iter().any(|w| w.will_wake(waker)) {
            wakers.push(waker.clone());
        }
        // Read-modify-write on both sides: either the look that follows sees the completion, or the
        // publisher sees the waker.
        self.has_wakers.swap(true, Ordering::AcqRel);
    }

    /// Completions were published; `notify`: the channel's event is due. Wakers to be woken, without any
    /// lock, go to `out`.
    pub(super) fn publish(&self, notify: bool, out: &mut Vec<Waker>) {
        self.waiters.notify();
        if notify && let Some(channel) = &self.channel {
            channel.raise(self.cq);
        }
        if self.has_wakers.swap(false, Ordering::AcqRel) {
            out.append(&mut self.wakers.lock());
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
        }
        self.signal.raise();
        self.waiters.notify();
        true
    }

    /// The next event.
    pub fn take(&self) -> Option<AsyncEvent> {
        let event = self.events.lock().pop_front()?;
        self.signal.lower();
        Some(event)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.events.lock().is_empty()
    }
}
