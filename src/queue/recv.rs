//! The application's end of a receive queue, shared or not.
//!
//! *Owns.* The producer's end of the ring, behind a lock. The engine holds the other end and frees a slot when it
//! is done with it.

use crate::mem::Sge;
use crate::sync::{Mutex, MutexGuard};

use super::ring::{self, Consumer, Producer};
use super::wqe::{self, PostError, RecvWqe};

/// Makes a receive queue of `depth` slots for requests of up to `max_sge` elements.
pub fn recv_queue(depth: u32, max_sge: u32) -> (RecvQueue, Consumer<RecvWqe>) {
    let (ring, consumer) = ring::ring(depth, wqe::sge_words(max_sge));
    (RecvQueue { producer: Mutex::new(RecvProducer { ring, max_sge }) }, consumer)
}

/// A receive queue, for any thread that posts.
#[derive(Debug)]
pub struct RecvQueue {
    producer: Mutex<RecvProducer>,
}

impl RecvQueue {
    /// Takes the lock.
    pub fn lock(&self) -> MutexGuard<'_, RecvProducer> {
        self.producer.lock()
    }

    /// Changes the depth and keeps what is posted. `false`, and nothing changed, if that does not fit.
    ///
    /// # Panics
    /// If `consumer` is not the other end of this queue.
    pub fn resize(&self, consumer: &mut Consumer<RecvWqe>, depth: u32) -> bool {
        ring::resize(&mut self.lock().ring, consumer, depth)
    }

    /// Throws away what is posted, for a queue pair that returns to RESET.
    pub fn clear(&self, consumer: &mut Consumer<RecvWqe>) {
        let mut producer = self.lock();
        producer.publish();
        consumer.release(consumer.head());
    }
}

/// The producer's end, while locked.
#[derive(Debug)]
pub struct RecvProducer {
    ring: Producer<RecvWqe>,
    max_sge: u32,
}

impl RecvProducer {
    /// Slots in the queue.
    pub fn depth(&self) -> u32 {
        self.ring.depth()
    }

    /// Requests that can be posted now.
    pub fn free(&self) -> u32 {
        self.ring.free()
    }

    /// Writes a request; the engine sees it after [`publish`](Self::publish).
    ///
    /// # Errors
    /// [`PostError`]; nothing is written then.
    pub fn stage(
        &mut self,
        wr_id: u64,
        into: impl IntoIterator<Item = Sge>,
    ) -> Result<(), PostError> {
        let max = self.max_sge;
        let done = self.ring.try_stage(|slot, words| {
            let wqe::Written { num_sge, length } = wqe::write_sges(words, max, into)?;
            *slot = RecvWqe { wr_id, length, num_sge };
            Ok(())
        })?;
        if done { Ok(()) } else { Err(PostError::QueueFull { depth: self.depth() }) }
    }

    /// Hands what was written to the engine.
    pub fn publish(&mut self) {
        self.ring.publish();
    }
}
