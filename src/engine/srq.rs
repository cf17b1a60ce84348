//! Shared receive queues: receives that many queue pairs take from.
//!
//! *Rules* (IBTA 10.2.9). A receive is taken when a message begins (for a WRITE with immediate data, when it
//! ends), and copied out of the queue then: messages of several queue pairs are under way at the same time,
//! and end in any order. Its buffers are checked against the protection domain of the shared queue, not
//! that of the queue pair. The limit is armed by [`Engine::modify_srq`] and fires once, when fewer receives
//! are left; armed when there are fewer already, it fires at once: a queue that has run dry sees no further
//! receive taken, so that nothing else would tell its owner.

use std::sync::Arc;

use super::Engine;
use super::cause::Cause;
use super::common::Common;
use super::config::{MAX_SGE, MAX_SRQ_WR};
use super::control::{check_depth, gone};
use super::event::AsyncEvent;
use crate::mem::PdId;
use crate::queue::{Consumer, RecvQueue, RecvWqe, recv_queue};

/// A shared receive queue as the engine sees it.
#[derive(Debug)]
pub(crate) struct SrqSlot {
    queue: Arc<RecvQueue>,
    consumer: Consumer<RecvWqe>,
    pub(crate) pd: PdId,
    pub(crate) max_sge: u32,
    /// Fewer receives than this raise the event; 0: not armed.
    limit: u32,
    /// Queue pairs that take from it.
    pub(crate) users: u32,
}

/// What a shared receive queue is set to.
#[doc(alias = "ibv_srq_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SrqAttr {
    /// Slots.
    pub max_wr: u32,
    /// Pieces of memory in a receive.
    pub max_sge: u32,
    /// Fewer receives than this raise [`AsyncEvent::SrqLimit`]; 0: not armed, or it has fired.
    pub limit: u32,
}

impl SrqSlot {
    /// Whether the limit is armed and passed; asking disarms it then.
    fn fires(&mut self) -> bool {
        let fires = self.consumer.len() < self.limit;
        if fires {
            self.limit = 0;
        }
        fires
    }
}

impl Common {
    pub(crate) fn srq(&mut self, srq: u32) -> Option<&mut SrqSlot> {
        self.srqs.get(srq)
    }

    /// Bytes that the next receive of a shared queue has room for.
    pub(crate) fn next_shared(&mut self, srq: u32) -> Option<u32> {
        let consumer = &self.srq(srq)?.consumer;
        consumer.get(consumer.tail()).map(|(wqe, _)| wqe.length)
    }

    /// Takes the next receive of a shared queue: its elements are copied to the front of `words`. `None`:
    /// the queue is empty.
    pub(crate) fn take_shared(&mut self, srq: u32, words: &mut [u64]) -> Option<RecvWqe> {
        let slot = self.srq(srq)?;
        let index = slot.consumer.tail();
        let (&wqe, from) = slot.consumer.get(index)?;
        for (to, from) in words.iter_mut().zip(from) {
            *to = *from;
        }
        slot.consumer.release(index.wrapping_add(1));
        if slot.fires() {
            self.event(AsyncEvent::SrqLimit { srq });
        }
        Some(wqe)
    }
}

impl Engine {
    /// Makes a shared receive queue of `max_wr` slots. Gives its number, and the end where receives are
    /// posted.
    ///
    /// # Errors
    /// `EINVAL`: no slots, a limit is exceeded, or the protection domain is gone.
    pub fn create_srq(
        &mut self,
        pd: PdId,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<(u32, Arc<RecvQueue>), Cause> {
        check_depth("max_wr", max_wr, 1, MAX_SRQ_WR)?;
        check_depth("max_sge", max_sge, 0, MAX_SGE)?;
        let max = self.common.config.max_srq;
        if self.common.srqs.is_full() {
            return Err(Cause::table_full("shared receive queues", u64::from(max)));
        }
        *self.use_pd(pd)? += 1;
        let (queue, consumer) = recv_queue(max_wr, max_sge);
        let queue = Arc::new(queue);
        let (shared, users) = (Arc::clone(&queue), 0);
        let slot = || SrqSlot { queue: shared, consumer, pd, max_sge, limit: 0, users };
        match self.common.srqs.insert(slot) {
            Some(number) => Ok((number, queue)),
            None => Err(Cause::table_full("shared receive queues", u64::from(max))),
        }
    }

    /// Changes the number of slots (what is posted stays) and arms the limit, or disarms it with 0:
    /// `ibv_modify_srq(3)`. On an error nothing has changed.
    ///
    /// # Errors
    /// `EINVAL`: too many slots, fewer than there are receives, or a limit above the number of slots.
    pub fn modify_srq(
        &mut self,
        srq: u32,
        max_wr: Option<u32>,
        limit: Option<u32>,
    ) -> Result<(), Cause> {
        let slot = self.common.srq(srq).ok_or_else(|| gone("shared receive queue"))?;
        let depth = max_wr.unwrap_or_else(|| slot.queue.lock().depth());
        check_depth("max_wr", depth, 1, MAX_SRQ_WR)?;
        let limit = limit.unwrap_or(slot.limit);
        check_depth("srq_limit", limit, 0, depth)?;
        if max_wr.is_some() && !slot.queue.resize(&mut slot.consumer, depth) {
            let posted = slot.consumer.len();
            let what = format!(
                "max_wr is {depth}, and the shared receive queue holds {posted} receives: ask for at least {posted} \
                 slots, or wait until some are taken"
            );
            return Err(Cause::Invalid { what: what.into() });
        }
        slot.limit = limit;
        if slot.fires() {
            self.common.event(AsyncEvent::SrqLimit { srq });
        }
        Ok(())
    }

    /// What a shared receive queue is set to: `ibv_query_srq(3)`.
    ///
    /// # Errors
    /// `EINVAL`: it is gone.
    pub fn query_srq(&mut self, srq: u32) -> Result<SrqAttr, Cause> {
        let slot = self.common.srq(srq).ok_or_else(|| gone("shared receive queue"))?;
        let max_wr = slot.queue.lock().depth();
        Ok(SrqAttr { max_wr, max_sge: slot.max_sge, limit: slot.limit })
    }

    /// Destroys a shared receive queue, and the receives in it.
    ///
    /// # Errors
    /// `EBUSY`: queue pairs take from it.
    pub fn destroy_srq(&mut self, srq: u32) -> Result<(), Cause> {
        let slot = self.common.srq(srq).ok_or_else(|| gone("shared receive queue"))?;
        if slot.users > 0 {
            return Err(Cause::Busy { by: "queue pairs that take from the shared receive queue" });
        }
        let pd = slot.pd;
        self.common.srqs.remove(srq);
        self.release_pd(pd);
        Ok(())
    }
}
