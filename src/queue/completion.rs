//! Completion queues: the engine's end, and the application's.
//!
//! *Owns.* The ring of completions, the registry of queue pairs that report to it, and the flag by which the
//! application asks for an event.
//!
//! # Queue pairs that are gone
//! A completion names its queue pair by a [`QpTag`]: a slot of the registry and a stamp. Detaching or resetting
//! a queue pair changes the stamp of its slot, and polling skips completions whose stamp is old: what a
//! destroyed queue pair has left behind is never seen, even if its slot or number has a new owner.
//!
//! # Events
//! The application arms the queue, looks once more, and goes to sleep. The engine publishes a completion and looks
//! whether the queue is armed. Either side has a sequentially consistent fence between its store and its load,
//! so at least one sees the other: the application sees the completion, or the engine the flag. One arming
//! gives at most one event.

use std::fmt;
use std::sync::Arc;

use crate::sync::{AtomicBool, AtomicU32, Mutex, Ordering, fence};

use super::cqe::{Cqe, CqeKind};
use super::ring::{self, Consumer, Line, Producer};

/// What completion queues count for a queue pair.
#[derive(Debug, Default)]
pub struct QpCounters {
    /// One past the last request of the send queue whose completion, or a later one, was polled.
    polled: AtomicU32,
}

impl QpCounters {
    /// One past the last request of the send queue that polling has freed.
    pub fn polled(&self) -> u32 {
        self.polled.load(Ordering::Acquire)
    }

    /// Only under the lock of the completion queue, or with no completion under way that could count.
    pub(super) fn set_polled(&self, to: u32) {
        self.polled.store(to, Ordering::Release);
    }
}

/// How completions name their queue pair: [`Cqe::qp_slot`] and [`Cqe::stamp`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpTag {
    /// Slot in the registry.
    pub slot: u32,
    /// Changes with each owner, and with each reset of one.
    pub stamp: u32,
}

/// The completion did not fit: the application polls too rarely, or made the queue too small. The queue takes no
/// more completions from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("completion queue overrun")]
pub struct Overrun;

const DISARMED: u32 = 0;
const SOLICITED: u32 = 1;
const ANY: u32 = 2;

/// Makes a completion queue of `depth` entries.
pub fn completion_queue(depth: u32) -> (Arc<CqShared>, CqProducer) {
    let (producer, consumer) = ring::ring(depth, 0);
    let shared = Arc::new(CqShared {
        armed: AtomicU32::new(DISARMED),
        overrun: AtomicBool::new(false),
        pushed: Line(AtomicU32::new(0)),
        taken: Line(AtomicU32::new(0)),
        poll: Mutex::new(CqConsumer { ring: consumer, depth, qps: Vec::new(), free: Vec::new() }),
    });
    (Arc::clone(&shared), CqProducer { ring: producer, shared, solicited: false })
}

/// What application and engine share of a completion queue. All methods may be called from any thread.
pub struct CqShared {
    armed: AtomicU32,
    overrun: AtomicBool,
    /// Completions published: the head of the ring, for those who have neither end.
    pushed: Line<AtomicU32>,
    /// Completions taken out: its tail.
    taken: Line<AtomicU32>,
    poll: Mutex<CqConsumer>,
}

struct CqConsumer {
    ring: Consumer<Cqe>,
    depth: u32,
    qps: Vec<QpEntry>,
    free: Vec<u32>,
}

struct QpEntry {
    stamp: u32,
    counters: Option<Arc<QpCounters>>,
}

/// Gives slots back when a poll is over, however it ends.
struct Batch<'a> {
    consumer: &'a mut CqConsumer,
    taken: &'a AtomicU32,
    to: u32,
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if self.to != self.consumer.ring.tail() {
            self.consumer.ring.release(self.to);
            self.taken.store(self.to, Ordering::Release);
        }
    }
}

impl CqShared {
    /// Entries.
    pub fn depth(&self) -> u32 {
        self.poll.lock().depth
    }

    /// Whether nothing waits to be polled, without a lock. Completions of queue pairs that are gone count until
    /// a poll has skipped them.
    pub fn is_empty(&self) -> bool {
        self.pushed.0.load(Ordering::Acquire) == self.taken.0.load(Ordering::Acquire)
    }

    /// Whether a completion was lost. Then the queue is of no more use.
    pub fn is_overrun(&self) -> bool {
        self.overrun.load(Ordering::Acquire)
    }

    /// Takes up to `max` completions, in order, and gives each to `out`, which runs under the queue's lock and
    /// must not come back here. Says how many. If `out` panics, the completion it was given is gone.
    pub fn poll(&self, max: usize, mut out: impl FnMut(&Cqe)) -> usize {
        let mut consumer = self.poll.lock();
        let to = consumer.ring.tail();
        let mut batch = Batch { consumer: &mut consumer, taken: &self.taken.0, to };
        let mut n = 0;
        while n < max {
            let CqConsumer { ring, qps, .. } = &*batch.consumer;
            let Some((cqe, _)) = ring.get(batch.to) else { break };
            batch.to = batch.to.wrapping_add(1);
            let Some(entry) = qps.get(cqe.qp_slot as usize) else { continue };
            let Some(counters) = entry.counters.as_ref() else { continue };
            if entry.stamp != cqe.stamp {
                continue;
            }
            if cqe.kind == CqeKind::Send {
                counters.set_polled(cqe.wqe_index.wrapping_add(1));
            }
            n += 1;
            out(cqe);
        }
        n
    }

    /// Asks for one event: at the next completion, or only at the next that is solicited or an error. Asking
    /// for any while asked for solicited widens; the other way round changes nothing (IBTA 11.4.2.2). Says whether
    /// completions are there already, for which no event will come: the application must poll before it sleeps.
    pub fn arm(&self, solicited_only: bool) -> bool {
        let want = if solicited_only { SOLICITED } else { ANY };
        self.armed.fetch_max(want, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        !self.is_empty()
    }

    /// Enters a queue pair. Its completions here carry the tag.
    pub fn attach_qp(&self, counters: Arc<QpCounters>) -> QpTag {
        let mut consumer = self.poll.lock();
        let CqConsumer { qps, free, .. } = &mut *consumer;
        if let Some(slot) = free.pop()
            && let Some(entry) = qps.get_mut(slot as usize)
        {
            entry.counters = Some(counters);
            return QpTag { slot, stamp: entry.stamp };
        }
        let slot = u32::try_from(qps.len()).unwrap_or(u32::MAX);
        qps.push(QpEntry { stamp: 0, counters: Some(counters) });
        QpTag { slot, stamp: 0 }
    }

    /// Makes the tag's completions invisible and gives the queue pair another: on its way to RESET.
    pub fn reset_qp(&self, tag: QpTag) -> QpTag {
        let mut consumer = self.poll.lock();
        match consumer.entry(tag) {
            Some(entry) => {
                entry.stamp = entry.stamp.wrapping_add(1);
                QpTag { slot: tag.slot, stamp: entry.stamp }
            }
            None => tag,
        }
    }

    /// Removes a queue pair that is being destroyed, and with it what it has not been polled for.
    pub fn detach_qp(&self, tag: QpTag) {
        let mut consumer = self.poll.lock();
        if let Some(entry) = consumer.entry(tag) {
            entry.stamp = entry.stamp.wrapping_add(1);
            entry.counters = None;
            consumer.free.push(tag.slot);
        }
    }
}

impl CqConsumer {
    /// The entry that a tag stands for, if it still does.
    fn entry(&mut self, tag: QpTag) -> Option<&mut QpEntry> {
        let entry = self.qps.get_mut(tag.slot as usize)?;
        (entry.stamp == tag.stamp && entry.counters.is_some()).then_some(entry)
    }
}

impl fmt::Debug for CqShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CqShared")
            .field("empty", &self.is_empty())
            .field("overrun", &self.is_overrun())
            .finish_non_exhaustive()
    }
}

/// The engine's end of a completion queue.
#[derive(Debug)]
pub struct CqProducer {
    ring: Producer<Cqe>,
    shared: Arc<CqShared>,
    /// Whether a staged completion is solicited or an error.
    solicited: bool,
}

impl CqProducer {
    /// What the application sees of it.
    pub fn shared(&self) -> &Arc<CqShared> {
        &self.shared
    }

    /// Entries that are free.
    pub fn free(&self) -> u32 {
        self.ring.free()
    }

    /// Publishes a completion, with all staged before. `true`: the application asked for an event, and this is
    /// it.
    ///
    /// # Errors
    /// [`Overrun`], also for ever after; what was staged before is published.
    pub fn push(&mut self, cqe: Cqe, solicited: bool) -> Result<bool, Overrun> {
        let staged = self.stage(cqe, solicited);
        let notify = self.publish();
        staged.map(|()| notify)
    }

    /// Writes a completion without publishing it. `solicited`: the message's last packet had its SE bit set. (An
    /// error counts as solicited anyway.)
    ///
    /// # Errors
    /// [`Overrun`], also for ever after.
    pub fn stage(&mut self, cqe: Cqe, solicited: bool) -> Result<(), Overrun> {
        if self.shared.overrun.load(Ordering::Relaxed) {
            return Err(Overrun);
        }
        if !self.ring.stage(|slot, _| *slot = cqe) {
            self.shared.overrun.store(true, Ordering::Release);
            return Err(Overrun);
        }
        self.solicited |= solicited || cqe.status != 0;
        Ok(())
    }

    /// Publishes what is staged. `true`: the application asked for an event, and this is it.
    #[must_use = "the application may be asleep"]
    pub fn publish(&mut self) -> bool {
        let head = self.ring.next();
        if head == self.shared.pushed.0.load(Ordering::Relaxed) {
            return false;
        }
        let solicited = std::mem::take(&mut self.solicited);
        self.ring.publish();
        self.shared.pushed.0.store(head, Ordering::Release);
        fence(Ordering::SeqCst);
        let armed = self.shared.armed.load(Ordering::Relaxed);
        let wanted = armed == ANY || armed == SOLICITED && solicited;
        // Between load and swap the flag can only have been widened.
        wanted && self.shared.armed.swap(DISARMED, Ordering::AcqRel) != DISARMED
    }

    /// Changes the number of entries and keeps all completions. `false`, and nothing changed, if they do not fit.
    pub fn resize(&mut self, depth: u32) -> bool {
        let mut consumer = self.shared.poll.lock();
        let done = ring::resize(&mut self.ring, &mut consumer.ring, depth);
        if done {
            consumer.depth = depth;
        }
        done
    }
}
