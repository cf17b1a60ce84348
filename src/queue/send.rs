//! The application's end of a send queue.
//!
//! *Owns.* The producer's end of the ring, behind a lock. The engine holds the other end.
//!
//! *Rules.* A slot can be used again when two things have happened: the engine has released it, and a
//! completion of its request or of a later one has been polled. So a program that never asks for completions
//! fills the queue and finds it full for good, as on hardware; and the completion queue need not hold more
//! than one entry per slot of the queues that report to it.

use std::sync::Arc;

use crate::mem::Sge;
use crate::sync::{Mutex, MutexGuard};

use super::completion::QpCounters;
use super::ring::{self, Consumer, Producer};
use super::wqe::{self, BindWqe, PostError, SendFlags, SendOp, SendWqe};

/// What a send queue is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendCaps {
    /// Slots.
    pub depth: u32,
    /// Most elements of a request.
    pub max_sge: u32,
    /// Most inline bytes of a request.
    pub max_inline: u32,
}

impl SendCaps {
    /// Words of a slot.
    fn stride(&self) -> usize {
        let payload = wqe::sge_words(self.max_sge).max(wqe::inline_words(self.max_inline));
        payload.max(wqe::BIND_WORDS)
    }
}

/// Makes a send queue.
pub fn send_queue(caps: SendCaps) -> (SendQueue, Consumer<SendWqe>) {
    let (ring, consumer) = ring::ring(caps.depth, caps.stride());
    let counters = Arc::new(QpCounters::default());
    let producer = SendProducer { ring, caps, counters: Arc::clone(&counters), polled: 0 };
    (SendQueue { caps, counters, producer: Mutex::new(producer) }, consumer)
}

/// A send queue, for any thread that posts.
#[derive(Debug)]
pub struct SendQueue {
    caps: SendCaps,
    counters: Arc<QpCounters>,
    producer: Mutex<SendProducer>,
}

impl SendQueue {
    /// What it was made for.
    pub fn caps(&self) -> SendCaps {
        self.caps
    }

    /// What the completion queue counts for it; see
    /// [`CqShared::attach_qp`](super::completion::CqShared::attach_qp).
    pub fn counters(&self) -> &Arc<QpCounters> {
        &self.counters
    }

    /// Takes the lock.
    pub fn lock(&self) -> MutexGuard<'_, SendProducer> {
        self.producer.lock()
    }

    /// Throws away what is posted and makes all slots usable, for a queue pair that returns to RESET. Before
    /// this, the completion queue must have been told
    /// ([`CqShared::reset_qp`](super::completion::CqShared::reset_qp)), so that no old completion counts.
    pub fn clear(&self, consumer: &mut Consumer<SendWqe>) {
        let mut producer = self.lock();
        producer.publish();
        consumer.release(consumer.head());
        self.counters.set_polled(consumer.head());
        producer.polled = consumer.head();
    }
}

/// The producer's end, while locked.
#[derive(Debug)]
pub struct SendProducer {
    ring: Producer<SendWqe>,
    caps: SendCaps,
    counters: Arc<QpCounters>,
    /// A count of polled requests seen earlier; the true one is here or further on.
    polled: u32,
}

impl SendProducer {
    /// Counter of the next request.
    pub fn next(&self) -> u32 {
        self.ring.next()
    }

    /// Requests that can be posted now.
    pub fn free(&mut self) -> u32 {
        self.polled = self.counters.polled();
        let waiting = self.ring.next().wrapping_sub(self.polled);
        self.ring.free().min(self.caps.depth.saturating_sub(waiting))
    }

    /// Writes a request with its elements; the engine sees it after [`publish`](Self::publish). `num_sge`,
    /// `length` and `inline_len` of `wqe` are filled in. Gives the request's counter.
    ///
    /// # Errors
    /// [`PostError`]; nothing is written then.
    pub fn stage(
        &mut self,
        wqe: SendWqe,
        local: impl IntoIterator<Item = Sge>,
    ) -> Result<u32, PostError> {
        let max = self.caps.max_sge;
        self.write(|slot, words| {
            let wqe::Written { num_sge, length } = wqe::write_sges(words, max, local)?;
            let flags = wqe.flags - SendFlags::INLINE;
            *slot = SendWqe { num_sge, length, inline_len: 0, flags, ..wqe };
            Ok(())
        })
    }

    /// Writes a request and copies its payload, in pieces, into the slot.
    ///
    /// # Errors
    /// [`PostError`]; nothing is written then.
    pub fn stage_inline<'a>(
        &mut self,
        wqe: SendWqe,
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<u32, PostError> {
        let max = self.caps.max_inline;
        self.write(|slot, words| {
            let mut length = 0u32;
            for piece in pieces {
                let at = length;
                length = u32::try_from(piece.len())
                    .ok()
                    .and_then(|n| length.checked_add(n))
                    .filter(|&sum| sum <= max)
                    .ok_or(PostError::InlineTooLong { max })?;
                wqe::write_inline(words, at as usize, piece);
            }
            let flags = wqe.flags | SendFlags::INLINE;
            *slot = SendWqe { num_sge: 0, length, inline_len: length, flags, ..wqe };
            Ok(())
        })
    }

    /// Writes a request to bind a window.
    ///
    /// # Errors
    /// [`PostError::QueueFull`].
    pub fn stage_bind(
        &mut self,
        wr_id: u64,
        flags: SendFlags,
        bind: &BindWqe,
    ) -> Result<u32, PostError> {
        self.write(|slot, words| {
            let flags = flags - SendFlags::INLINE;
            *slot = SendWqe { wr_id, op: SendOp::BindMw, flags, ..SendWqe::default() };
            wqe::write_bind(words, bind);
            Ok(())
        })
    }

    /// Hands what was written to the engine.
    pub fn publish(&mut self) {
        self.ring.publish();
    }

    fn write(
        &mut self,
        f: impl FnOnce(&mut SendWqe, &mut [u64]) -> Result<(), PostError>,
    ) -> Result<u32, PostError> {
        let full = PostError::QueueFull { depth: self.caps.depth };
        let index = self.ring.next();
        if index.wrapping_sub(self.polled) >= self.caps.depth && self.free() == 0 {
            return Err(full);
        }
        if self.ring.try_stage(f)? { Ok(index) } else { Err(full) }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
#[expect(clippy::cast_possible_truncation, reason = "the numbers are small")]
mod tests {
    use super::*;
    use crate::mem::{Access, MwKind};
    use crate::queue::cqe::{Cqe, CqeKind};
    use crate::queue::{CqProducer, CqShared, QpTag, completion_queue};
    use crate::wire::num::{Lkey, Rkey};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    const CAPS: SendCaps = SendCaps { depth: 4, max_sge: 2, max_inline: 20 };

    fn wqe(wr_id: u64) -> SendWqe {
        SendWqe { wr_id, flags: SendFlags::SIGNALED, ..SendWqe::default() }
    }

    fn sge(addr: u64, length: u32) -> Sge {
        Sge { addr, length, lkey: Lkey(7) }
    }

    /// A send queue, its engine's end, and a completion queue.
    struct Bench {
        sq: SendQueue,
        engine: Consumer<SendWqe>,
        cq: Arc<CqShared>,
        producer: CqProducer,
        tag: QpTag,
    }

    impl Bench {
        fn new() -> Self {
            let (sq, engine) = send_queue(CAPS);
            let (cq, producer) = completion_queue(8);
            let tag = cq.attach_qp(Arc::clone(sq.counters()));
            Self { sq, engine, cq, producer, tag }
        }

        fn post(&self, id: u64) -> Result<u32, PostError> {
            let mut p = self.sq.lock();
            let index = p.stage(wqe(id), [])?;
            p.publish();
            Ok(index)
        }

        fn complete(&mut self, wqe_index: u32) {
            let QpTag { slot, stamp } = self.tag;
            let cqe = Cqe { qp_slot: slot, stamp, wqe_index, ..Cqe::default() };
            self.producer.push(cqe, false).unwrap();
        }

        fn poll(&self) -> usize {
            self.cq.poll(1, |_| {})
        }
    }

    const FULL: Result<u32, PostError> = Err(PostError::QueueFull { depth: 4 });

    #[test]
    fn a_slot_is_free_when_its_completion_or_a_later_one_was_polled() {
        let mut b = Bench::new();
        for id in 0..4 {
            assert_eq!(b.post(id), Ok(id as u32));
        }
        assert_eq!(b.post(9), FULL);
        b.engine.release(4);
        assert_eq!(b.post(9), FULL, "the engine is done, but nothing was polled");
        b.complete(2);
        assert_eq!(b.post(9), FULL, "completed, but not polled");
        assert_eq!(b.poll(), 1);
        assert_eq!(b.sq.lock().free(), 3, "0 and 1 were not signaled, 2 was");
        for id in 4..7 {
            assert_eq!(b.post(id), Ok(id as u32));
        }
        assert_eq!(b.post(9), FULL);
    }

    #[test]
    fn a_slot_is_not_free_while_the_engine_is_in_it() {
        let mut b = Bench::new();
        for id in 0..4 {
            b.post(id).unwrap();
        }
        b.complete(1);
        assert_eq!(b.poll(), 1);
        assert_eq!(b.post(9), FULL, "polled, but not released");
        b.engine.release(1);
        assert_eq!(b.post(4), Ok(4));
        assert_eq!(b.post(9), FULL);
    }

    #[test]
    fn receives_free_no_send_slots() {
        let mut b = Bench::new();
        b.post(0).unwrap();
        b.engine.release(1);
        let QpTag { slot, stamp } = b.tag;
        let cqe = Cqe { qp_slot: slot, stamp, kind: CqeKind::Recv, ..Cqe::default() };
        b.producer.push(cqe, false).unwrap();
        assert_eq!(b.poll(), 1);
        assert_eq!(b.sq.lock().free(), 3);
    }

    #[test]
    fn a_reset_queue_is_empty_and_old_completions_do_not_count() {
        let mut b = Bench::new();
        for id in 0..4 {
            b.post(id).unwrap();
        }
        b.complete(0);
        b.tag = b.cq.reset_qp(b.tag);
        b.sq.clear(&mut b.engine);
        assert!(b.engine.is_empty());
        assert_eq!(b.sq.lock().free(), 4);
        assert_eq!(b.post(4), Ok(4));
        assert_eq!(b.poll(), 0, "of the time before the reset");
        assert_eq!(b.sq.lock().free(), 3);
        b.engine.release(5);
        b.complete(4);
        assert_eq!(b.poll(), 1);
        assert_eq!(b.sq.lock().free(), 4);
    }

    #[test]
    fn elements_and_lengths_are_filled_in() {
        let (sq, engine) = send_queue(CAPS);
        let mut p = sq.lock();
        let odd = SendWqe { num_sge: 9, length: 9, inline_len: 9, ..wqe(1) };
        let odd = SendWqe { flags: odd.flags | SendFlags::INLINE, ..odd };
        p.stage(odd, [sge(1, 10), sge(2, 20)]).unwrap();
        assert_eq!(p.stage(wqe(2), [sge(1, 1); 3]), Err(PostError::TooManySge { max: 2 }));
        assert_eq!(p.stage(wqe(2), [sge(1, u32::MAX); 2]), Err(PostError::TooLong));
        assert_eq!(p.next(), 1, "nothing of the refused");
        p.publish();
        let (got, words) = engine.get(0).unwrap();
        assert_eq!(*got, SendWqe { num_sge: 2, length: 30, ..wqe(1) });
        assert_eq!(wqe::sges(words, 2).collect::<Vec<_>>(), [sge(1, 10), sge(2, 20)]);
    }

    #[test]
    fn inline_bytes_are_copied_when_posted() {
        let (sq, engine) = send_queue(CAPS);
        let mut p = sq.lock();
        let mut bytes = *b"hello, world";
        p.stage_inline(wqe(1), [&bytes[..5], &[], &bytes[5..]]).unwrap();
        bytes.fill(0);
        let long = [0; 21];
        let error = Err(PostError::InlineTooLong { max: 20 });
        assert_eq!(p.stage_inline(wqe(2), [&long[..]]), error);
        assert_eq!(p.stage_inline(wqe(2), [&long[..20], &long[..1]]), error);
        p.stage_inline(wqe(2), [&long[..20]]).unwrap();
        p.publish();
        let (got, words) = engine.get(0).unwrap();
        assert_eq!((got.length, got.inline_len, got.num_sge), (12, 12, 0));
        assert!(got.flags.contains(SendFlags::INLINE | SendFlags::SIGNALED));
        let mut text = [0; 12];
        wqe::read_inline(words, 0, &mut text);
        assert_eq!(&text, b"hello, world");
    }

    #[test]
    fn binds_fit_into_any_slot() {
        let (sq, engine) = send_queue(SendCaps { depth: 1, max_sge: 0, max_inline: 0 });
        let bind = BindWqe {
            mw: Rkey(1),
            new_rkey: Rkey(2),
            mr: Lkey(3),
            addr: 4,
            len: 5,
            access: Access::REMOTE_READ,
            kind: MwKind::Type2,
        };
        let mut p = sq.lock();
        assert_eq!(p.stage(wqe(1), [sge(0, 0)]), Err(PostError::TooManySge { max: 0 }));
        assert_eq!(p.stage_inline(wqe(1), [&[1][..]]), Err(PostError::InlineTooLong { max: 0 }));
        p.stage_bind(6, SendFlags::SIGNALED, &bind).unwrap();
        p.publish();
        let (got, words) = engine.get(0).unwrap();
        assert_eq!((got.wr_id, got.op), (6, SendOp::BindMw));
        assert_eq!(wqe::read_bind(words), Some(bind));
    }

    #[test]
    fn a_panic_in_the_list_posts_nothing_of_that_request() {
        let (sq, engine) = send_queue(CAPS);
        sq.lock().stage(wqe(1), []).unwrap();
        let panic = catch_unwind(AssertUnwindSafe(|| {
            let list =
                [1, 2].into_iter().map(|n| if n == 2 { panic!("in the list") } else { sge(n, 1) });
            let _ = sq.lock().stage(wqe(2), list);
        }));
        assert!(panic.is_err());
        let mut p = sq.lock();
        assert_eq!((p.next(), p.free()), (1, 3));
        p.publish();
        assert_eq!(engine.len(), 1);
    }

    #[test]
    fn a_queue_without_slots_is_full() {
        let (sq, _engine) = send_queue(SendCaps { depth: 0, ..CAPS });
        assert_eq!(sq.lock().stage(wqe(1), []), Err(PostError::QueueFull { depth: 0 }));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::queue::completion_queue;
    use crate::queue::cqe::Cqe;
    use loom::thread;

    /// The engine completes a request and releases its slot only then; the program polls and posts again. It gets
    /// the slot after both, and the engine never finds the new request under the old one.
    #[test]
    fn loom_a_slot_is_posted_again_after_release_and_poll() {
        loom::model(|| {
            let caps = SendCaps { depth: 1, max_sge: 0, max_inline: 0 };
            let (sq, mut engine) = send_queue(caps);
            let (cq, mut producer) = completion_queue(2);
            let tag = cq.attach_qp(Arc::clone(sq.counters()));
            let post = |wr_id| {
                let mut p = sq.lock();
                let done = p.stage(SendWqe { wr_id, ..SendWqe::default() }, []).is_ok();
                p.publish();
                done
            };
            assert!(post(1));
            assert!(!post(2));
            let thread = thread::spawn(move || {
                let wr_id = engine.get(0).map(|(wqe, _)| wqe.wr_id);
                assert_eq!(wr_id, Some(1));
                let cqe = Cqe { wr_id: 1, qp_slot: tag.slot, stamp: tag.stamp, ..Cqe::default() };
                producer.push(cqe, false).unwrap();
                assert_eq!(engine.get(0).map(|(wqe, _)| wqe.wr_id), Some(1), "still its own");
                engine.release(1);
                engine
            });
            let polled = cq.poll(1, |cqe| assert_eq!(cqe.wr_id, 1));
            let posted = post(2);
            assert!(polled == 1 || !posted, "posted without a poll");
            let engine = thread.join().unwrap();
            assert_eq!(engine.get(1).map(|(wqe, _)| wqe.wr_id), posted.then_some(2));
            if polled == 0 {
                assert_eq!(cq.poll(1, |_| {}), 1);
            }
            assert_eq!(post(3), !posted);
        });
    }
}
