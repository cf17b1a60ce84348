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
