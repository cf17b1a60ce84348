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
    /// a poll has skipped them, if others are in front of them.
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
        if self.is_empty() {
            return 0;
        }
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
        let Some(entry) = consumer.entry(tag) else { return tag };
        entry.stamp = entry.stamp.wrapping_add(1);
        let tag = QpTag { slot: tag.slot, stamp: entry.stamp };
        self.skip_stale(&mut consumer);
        tag
    }

    /// Removes a queue pair that is being destroyed, and with it what it has not been polled for.
    pub fn detach_qp(&self, tag: QpTag) {
        let mut consumer = self.poll.lock();
        if let Some(entry) = consumer.entry(tag) {
            entry.stamp = entry.stamp.wrapping_add(1);
            entry.counters = None;
            consumer.free.push(tag.slot);
            self.skip_stale(&mut consumer);
        }
    }

    /// Gives back the entries at the front that nobody will see any more.
    fn skip_stale(&self, consumer: &mut CqConsumer) {
        let to = consumer.ring.tail();
        let mut batch = Batch { consumer, taken: &self.taken.0, to };
        while let Some((cqe, _)) = batch.consumer.ring.get(batch.to) {
            let entry = batch.consumer.qps.get(cqe.qp_slot as usize);
            if entry.is_some_and(|e| e.counters.is_some() && e.stamp == cqe.stamp) {
                break;
            }
            batch.to = batch.to.wrapping_add(1);
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
    #[inline]
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

    /// Takes no more completions, as after an overrun.
    pub fn fail(&self) {
        self.shared.overrun.store(true, Ordering::Release);
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

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn cqe(tag: QpTag, wr_id: u64) -> Cqe {
        Cqe { wr_id, qp_slot: tag.slot, stamp: tag.stamp, kind: CqeKind::Recv, ..Cqe::default() }
    }

    fn ids(cq: &CqShared, max: usize) -> Vec<u64> {
        let mut ids = Vec::new();
        let n = cq.poll(max, |cqe| ids.push(cqe.wr_id));
        assert_eq!(n, ids.len());
        ids
    }

    fn attach(cq: &CqShared) -> QpTag {
        cq.attach_qp(Arc::default())
    }

    #[test]
    fn completions_come_in_order_and_no_more_than_asked_for() {
        let (cq, mut p) = completion_queue(4);
        let qp = attach(&cq);
        assert!(cq.is_empty());
        for id in 0..3 {
            p.push(cqe(qp, id), false).unwrap();
        }
        assert!(!cq.is_empty());
        assert_eq!(ids(&cq, 0), []);
        assert_eq!(ids(&cq, 2), [0, 1]);
        assert_eq!(p.free(), 3);
        assert_eq!(ids(&cq, 9), [2]);
        assert!(cq.is_empty());
    }

    #[test]
    fn what_is_staged_is_not_seen() {
        let (cq, mut p) = completion_queue(4);
        let qp = attach(&cq);
        cq.arm(false);
        p.stage(cqe(qp, 1), false).unwrap();
        p.stage(cqe(qp, 2), false).unwrap();
        assert!(cq.is_empty());
        assert_eq!(ids(&cq, 9), []);
        assert!(p.publish(), "one event for both");
        assert!(!p.publish(), "nothing new");
        assert_eq!(ids(&cq, 9), [1, 2]);
    }

    #[test]
    fn queue_pairs_that_are_gone_are_not_seen() {
        let (cq, mut p) = completion_queue(8);
        let (a, b) = (attach(&cq), attach(&cq));
        p.push(cqe(a, 1), false).unwrap();
        p.push(cqe(b, 2), false).unwrap();
        p.push(cqe(a, 3), false).unwrap();
        cq.detach_qp(a);
        let c = attach(&cq);
        assert_eq!(c.slot, a.slot, "the registry does not grow");
        assert_ne!(c, a);
        p.push(cqe(c, 4), false).unwrap();
        assert_eq!(ids(&cq, 2), [2, 4], "skipped ones do not count");
        assert!(cq.is_empty());
        cq.detach_qp(a);
        p.push(cqe(c, 5), false).unwrap();
        assert_eq!(ids(&cq, 9), [5], "an old tag detaches nobody");
        assert_eq!(cq.reset_qp(a), a);
        p.push(cqe(QpTag { slot: 99, stamp: 0 }, 6), false).unwrap();
        assert_eq!(ids(&cq, 9), []);
    }

    #[test]
    fn a_queue_pair_that_was_reset_starts_afresh() {
        let (cq, mut p) = completion_queue(8);
        let counters = Arc::new(QpCounters::default());
        let before = cq.attach_qp(Arc::clone(&counters));
        let send = |tag, index| Cqe { wqe_index: index, kind: CqeKind::Send, ..cqe(tag, 0) };
        p.push(send(before, 5), false).unwrap();
        let after = cq.reset_qp(before);
        assert_eq!(ids(&cq, 9), []);
        assert_eq!(counters.polled(), 0);
        p.push(send(after, u32::MAX), false).unwrap();
        p.push(send(after, 3), false).unwrap();
        assert_eq!(ids(&cq, 1).len(), 1);
        assert_eq!(counters.polled(), 0, "one past the largest counter");
        assert_eq!(ids(&cq, 1).len(), 1);
        assert_eq!(counters.polled(), 4);
    }

    #[test]
    fn one_arming_gives_one_event() {
        let (cq, mut p) = completion_queue(16);
        let qp = attach(&cq);
        let mut push = |solicited| p.push(cqe(qp, 0), solicited).unwrap();
        assert!(!push(true), "not armed");
        assert!(cq.arm(false), "there is one already");
        assert!(push(false));
        assert!(!push(true));
        ids(&cq, 9);
        assert!(!cq.arm(false));
        cq.arm(false);
        assert!(push(false));
        assert!(!push(false), "armed twice, still one");
    }

    #[test]
    fn solicited_events_wait_for_solicited_completions_and_errors() {
        let (cq, mut p) = completion_queue(16);
        let qp = attach(&cq);
        let error = Cqe { status: 5, ..cqe(qp, 0) };
        cq.arm(true);
        assert_eq!(p.push(cqe(qp, 0), false), Ok(false));
        assert_eq!(p.push(cqe(qp, 0), true), Ok(true));
        assert_eq!(p.push(cqe(qp, 0), true), Ok(false));
        cq.arm(true);
        assert_eq!(p.push(error, false), Ok(true));
        cq.arm(true);
        p.stage(cqe(qp, 0), true).unwrap();
        p.stage(cqe(qp, 0), false).unwrap();
        assert!(p.publish(), "one of a batch is enough");
        cq.arm(true);
        assert_eq!(p.push(cqe(qp, 0), false), Ok(false), "an earlier one is not");
        cq.arm(false);
        assert_eq!(p.push(cqe(qp, 0), false), Ok(true), "widened");
        cq.arm(false);
        cq.arm(true);
        assert_eq!(p.push(cqe(qp, 0), false), Ok(true), "not narrowed");
    }

    #[test]
    fn an_overrun_is_for_ever() {
        let (cq, mut p) = completion_queue(2);
        let qp = attach(&cq);
        p.push(cqe(qp, 1), false).unwrap();
        p.push(cqe(qp, 2), false).unwrap();
        assert!(!cq.is_overrun());
        assert_eq!(p.push(cqe(qp, 3), false), Err(Overrun));
        assert!(cq.is_overrun());
        assert_eq!(ids(&cq, 9), [1, 2], "what fitted is there");
        assert_eq!(p.push(cqe(qp, 4), false), Err(Overrun), "a hole must not look like order");
        assert_eq!(ids(&cq, 9), []);
    }

    #[test]
    fn a_panic_takes_one_completion_with_it() {
        let (cq, mut p) = completion_queue(4);
        let qp = attach(&cq);
        for id in 0..4 {
            p.push(cqe(qp, id), false).unwrap();
        }
        let panic = catch_unwind(AssertUnwindSafe(|| {
            cq.poll(9, |cqe| assert_ne!(cqe.wr_id, 1));
        }));
        assert!(panic.is_err());
        assert_eq!(ids(&cq, 9), [2, 3]);
        assert_eq!(p.free(), 4);
    }

    #[test]
    fn a_resized_queue_keeps_what_is_in_it() {
        let (cq, mut p) = completion_queue(3);
        let qp = attach(&cq);
        for id in 0..3 {
            p.push(cqe(qp, id), false).unwrap();
        }
        assert!(!p.resize(2));
        assert_eq!(cq.depth(), 3);
        assert_eq!(ids(&cq, 1), [0]);
        assert!(p.resize(2));
        assert_eq!((cq.depth(), p.free()), (2, 0));
        assert!(p.resize(10));
        p.push(cqe(qp, 3), false).unwrap();
        assert_eq!(ids(&cq, 9), [1, 2, 3]);
        assert!(cq.is_empty());
        assert_eq!(p.free(), 10);
    }

    #[derive(Clone, Debug)]
    enum Op {
        Push { qp: usize, solicited: bool, publish: bool },
        Poll(usize),
        Attach,
        Detach(usize),
        Reset(usize),
        Arm(bool),
        Resize(u32),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            8 => (0usize..9, any::<bool>(), any::<bool>())
                .prop_map(|(qp, solicited, publish)| Op::Push { qp, solicited, publish }),
            4 => (0usize..6).prop_map(Op::Poll),
            2 => Just(Op::Attach),
            1 => (0usize..9).prop_map(Op::Detach),
            1 => (0usize..9).prop_map(Op::Reset),
            2 => any::<bool>().prop_map(Op::Arm),
            1 => (1u32..20).prop_map(Op::Resize),
        ]
    }

    proptest! {
        #[test]
        fn a_queue_follows_the_model(ops in prop::collection::vec(op(), 1..150)) {
            let (cq, mut p) = completion_queue(12);
            // Entries: id, and owner as (name, life); owners: name, life, tag.
            let mut queue: VecDeque<(u64, (u64, u64), bool)> = VecDeque::new();
            let mut published = 0;
            let mut qps: Vec<(u64, u64, QpTag)> = Vec::new();
            let (mut next, mut depth, mut armed) = (0u64, 12usize, DISARMED);
            for op in ops {
                let leaves = matches!(op, Op::Detach(_) | Op::Reset(_)) && !qps.is_empty();
                match op {
                    Op::Push { qp, solicited, publish } => {
                        let n = qps.len().max(1);
                        let Some(&(name, life, tag)) = qps.get(qp % n) else { continue };
                        // An overrun ends everything; it has a test of its own.
                        if queue.len() == depth {
                            continue;
                        }
                        p.stage(cqe(tag, next), solicited).unwrap();
                        queue.push_back((next, (name, life), solicited));
                        next += 1;
                        if publish {
                            let fresh = queue.iter().skip(published);
                            let any_solicited = fresh.map(|entry| entry.2).fold(false, |a, b| a | b);
                            let fires = armed == ANY || armed == SOLICITED && any_solicited;
                            prop_assert_eq!(p.publish(), fires);
                            if fires {
                                armed = DISARMED;
                            }
                            published = queue.len();
                        }
                    }
                    Op::Poll(max) => {
                        let mut want = Vec::new();
                        while want.len() < max && published > 0 {
                            let Some((id, owner, _)) = queue.pop_front() else { break };
                            published -= 1;
                            if qps.iter().any(|&(name, life, _)| (name, life) == owner) {
                                want.push(id);
                            }
                        }
                        prop_assert_eq!(ids(&cq, max), want);
                    }
                    Op::Attach => {
                        next += 1;
                        qps.push((next, 0, attach(&cq)));
                    }
                    Op::Detach(qp) if !qps.is_empty() => {
                        let (_, _, tag) = qps.swap_remove(qp % qps.len());
                        cq.detach_qp(tag);
                    }
                    Op::Reset(qp) if !qps.is_empty() => {
                        let n = qps.len();
                        let (_, life, tag) = &mut qps[qp % n];
                        *life += 1;
                        *tag = cq.reset_qp(*tag);
                    }
                    Op::Detach(_) | Op::Reset(_) => {}
                    Op::Arm(solicited_only) => {
                        prop_assert_eq!(cq.arm(solicited_only), published > 0);
                        armed = armed.max(if solicited_only { SOLICITED } else { ANY });
                    }
                    Op::Resize(n) => {
                        let fits = queue.len() <= n as usize;
                        prop_assert_eq!(p.resize(n), fits);
                        if fits {
                            depth = n as usize;
                        }
                    }
                }
                // Where a queue pair has just gone, its completions at the front go at once.
                let alive = |owner| qps.iter().any(|&(name, life, _)| (name, life) == owner);
                while leaves && published > 0 && queue.front().is_some_and(|entry| !alive(entry.1)) {
                    queue.pop_front();
                    published -= 1;
                }
                prop_assert_eq!(cq.is_empty(), published == 0);
                prop_assert_eq!(p.free() as usize, depth - queue.len());
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;

    fn queue() -> (Arc<CqShared>, CqProducer, Cqe) {
        let (cq, p) = completion_queue(2);
        let tag = cq.attach_qp(Arc::default());
        let cqe =
            Cqe { qp_slot: tag.slot, stamp: tag.stamp, kind: CqeKind::Recv, ..Cqe::default() };
        (cq, p, cqe)
    }

    /// Whoever arms, looks and goes to sleep has seen the completion or will get the event.
    #[test]
    fn loom_no_completion_slips_between_arming_and_looking() {
        loom::model(|| {
            let (cq, mut p, cqe) = queue();
            let engine = thread::spawn(move || p.push(cqe, false).unwrap());
            cq.arm(false);
            let seen = cq.poll(1, |_| {});
            let event = engine.join().unwrap();
            assert!(seen == 1 || event, "asleep for ever");
        });
    }

    /// The same for those who look without taking.
    #[test]
    fn loom_what_arm_says_is_enough_to_go_to_sleep() {
        loom::model(|| {
            let (cq, mut p, cqe) = queue();
            let engine = thread::spawn(move || p.push(cqe, false).unwrap());
            let pending = cq.arm(false);
            let event = engine.join().unwrap();
            assert!(pending || event, "asleep for ever");
        });
    }

    /// Widening from solicited to any while a plain completion arrives.
    #[test]
    fn loom_widening_is_not_lost() {
        loom::model(|| {
            let (cq, mut p, cqe) = queue();
            cq.arm(true);
            let engine = thread::spawn(move || {
                let first = p.push(cqe, false).unwrap();
                (first, p)
            });
            let pending = cq.arm(false);
            let (event, mut p) = engine.join().unwrap();
            assert!(pending || event, "asleep for ever");
            // At most one event for all the arming: the flag is still up if there was none.
            assert_eq!(p.push(cqe, true), Ok(!event));
        });
    }

    /// Two pollers and a detach: each completion is given out at most once, none after the detach.
    #[test]
    fn loom_pollers_share_and_a_detach_is_final() {
        loom::model(|| {
            let (cq, mut p, cqe) = queue();
            let tag = QpTag { slot: cqe.qp_slot, stamp: cqe.stamp };
            p.push(cqe, false).unwrap();
            let other = Arc::clone(&cq);
            let poller = thread::spawn(move || other.poll(1, |_| {}));
            let mine = cq.poll(1, |_| {});
            cq.detach_qp(tag);
            assert_eq!(cq.poll(1, |_| {}), 0);
            let theirs = poller.join().unwrap();
            assert!(mine + theirs <= 1);
            assert!(cq.is_empty());
        });
    }
}
