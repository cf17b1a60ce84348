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

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::wire::num::Lkey;

    fn sge(addr: u64, length: u32) -> Sge {
        Sge { addr, length, lkey: Lkey(7) }
    }

    #[test]
    fn requests_arrive_whole_and_in_order() {
        let (rq, mut engine) = recv_queue(3, 2);
        let mut p = rq.lock();
        p.stage(1, [sge(10, 100), sge(20, 200)]).unwrap();
        p.stage(2, []).unwrap();
        assert!(engine.is_empty());
        p.publish();
        let (wqe, words) = engine.get(0).unwrap();
        assert_eq!(*wqe, RecvWqe { wr_id: 1, length: 300, num_sge: 2 });
        assert_eq!(wqe::sges(words, 2).collect::<Vec<_>>(), [sge(10, 100), sge(20, 200)]);
        assert_eq!(*engine.get(1).unwrap().0, RecvWqe { wr_id: 2, length: 0, num_sge: 0 });
        engine.release(1);
        assert_eq!(p.free(), 2);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let (rq, mut engine) = recv_queue(1, 1);
        let mut p = rq.lock();
        assert_eq!(p.stage(1, [sge(0, 1); 2]), Err(PostError::TooManySge { max: 1 }));
        p.stage(2, [sge(0, 1)]).unwrap();
        assert_eq!(p.stage(3, [sge(0, 1)]), Err(PostError::QueueFull { depth: 1 }));
        p.publish();
        engine.release(1);
        p.stage(4, [sge(0, 1)]).unwrap();
    }

    #[test]
    fn a_cleared_queue_takes_as_much_as_a_new_one() {
        let (rq, mut engine) = recv_queue(2, 1);
        let stage = |id| rq.lock().stage(id, [sge(0, 1)]);
        stage(1).unwrap();
        rq.lock().publish();
        stage(2).unwrap();
        rq.clear(&mut engine);
        assert!(engine.is_empty());
        stage(3).unwrap();
        stage(4).unwrap();
        rq.lock().publish();
        assert_eq!(engine.get(engine.tail()).unwrap().0.wr_id, 3);
        assert_eq!(engine.len(), 2);
    }

    #[test]
    fn a_resized_queue_keeps_what_is_posted() {
        let (rq, mut engine) = recv_queue(2, 1);
        for id in 0..2 {
            rq.lock().stage(id, [sge(id, 1)]).unwrap();
        }
        rq.lock().publish();
        assert!(!rq.resize(&mut engine, 1));
        assert_eq!((rq.lock().depth(), engine.len()), (2, 2));
        assert!(rq.resize(&mut engine, 5));
        assert_eq!((rq.lock().free(), engine.len()), (3, 2));
        let (wqe, words) = engine.get(1).unwrap();
        assert_eq!((wqe.wr_id, wqe::sges(words, 1).next()), (1, Some(sge(1, 1))));
    }
}
