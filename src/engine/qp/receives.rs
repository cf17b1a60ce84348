//! Where a queue pair takes its receives from: its own queue, or a shared one.
//!
//! *Rules.* [`Qp::take_receive`] is the only way to a receive. A message has at most one. One of its own
//! queue stays in its slot until it is done; one of a shared queue is copied out when it is taken, because
//! others may be done earlier.

use super::Qp;
use crate::engine::common::Common;
use crate::engine::counters::Counter;
use crate::engine::event::AsyncEvent;
use crate::engine::status::{WcOpcode, WcStatus};
use crate::mem::{PdId, Sge};
use crate::queue::wqe::{sge_words, sges};
use crate::queue::{Consumer, Cqe, CqeFlags, CqeKind, RecvWqe};

/// The source of receives.
#[derive(Debug)]
pub(crate) enum Receives {
    /// A queue of its own.
    Own(Consumer<RecvWqe>),
    /// A shared one.
    Shared(Box<Shared>),
}

/// One user of a shared receive queue.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The queue.
    pub(crate) srq: u32,
    pd: PdId,
    /// The receive that was taken for the message that is open.
    held: Option<RecvWqe>,
    /// Its elements.
    words: Box<[u64]>,
    /// Told that it holds no more receives, and will take none.
    told: bool,
}

impl Receives {
    /// From shared queue `srq` of domain `pd`.
    pub(crate) fn shared(srq: u32, pd: PdId, max_sge: u32) -> Self {
        let words = vec![0; sge_words(max_sge)].into();
        Self::Shared(Box::new(Shared { srq, pd, held: None, words, told: false }))
    }

    /// The shared queue, if it is one.
    pub(crate) fn srq(&self) -> Option<u32> {
        match self {
            Self::Own(_) => None,
            Self::Shared(shared) => Some(shared.srq),
        }
    }

    /// The receive that the message has, after [`Qp::take_receive`].
    pub(super) fn taken(&self) -> Option<(RecvWqe, impl Iterator<Item = Sge> + Clone + '_)> {
        let (wqe, words) = match self {
            Self::Own(ring) => ring.get(ring.tail()).map(|(wqe, words)| (*wqe, words))?,
            Self::Shared(shared) => (shared.held?, &shared.words[..]),
        };
        Some((wqe, sges(words, wqe.num_sge)))
    }

    /// The receive is done with.
    fn release(&mut self) {
        match self {
            Self::Own(ring) => ring.release(ring.tail().wrapping_add(1)),
            Self::Shared(shared) => shared.held = None,
        }
    }
}

impl Qp {
    /// Takes a receive for the message that begins, or ends with immediate data. `false`: there is none.
    pub(super) fn take_receive(&mut self, c: &mut Common) -> bool {
        match &mut self.rq {
            Receives::Own(ring) => !ring.is_empty(),
            Receives::Shared(shared) => {
                if shared.held.is_none() {
                    shared.held = c.take_shared(shared.srq, &mut shared.words);
                }
                shared.held.is_some()
            }
        }
    }

    /// Bytes that the next receive has room for, if there is one. It is not taken.
    pub(super) fn next_receive(&self, c: &mut Common) -> Option<u32> {
        match &self.rq {
            Receives::Own(ring) => ring.get(ring.tail()).map(|(wqe, _)| wqe.length),
            Receives::Shared(shared) => match &shared.held {
                Some(wqe) => Some(wqe.length),
                None => c.next_shared(shared.srq),
            },
        }
    }

    /// The domain that the buffers of its receives belong to.
    pub(super) fn receive_pd(&self) -> PdId {
        match &self.rq {
            Receives::Own(_) => self.pd,
            Receives::Shared(shared) => shared.pd,
        }
    }

    /// Completes the receive that was taken, with what `fill` makes of the skeleton. `false`: none was.
    pub(super) fn end_receive(
        &mut self,
        c: &mut Common,
        status: WcStatus,
        solicited: bool,
        fill: impl FnOnce(Cqe) -> Cqe,
    ) -> bool {
        let Some(wr_id) = self.rq.taken().map(|(wqe, _)| wqe.wr_id) else { return false };
        let cqe = fill(self.cqe(CqeKind::Recv, wr_id, status));
        self.end_taken(c, cqe, solicited);
        true
    }

    /// Completes the receive that was taken with this.
    #[inline(always)]
    pub(super) fn end_taken(&mut self, c: &mut Common, cqe: Cqe, solicited: bool) {
        c.complete(self.recv_cq.cq, cqe, solicited);
        self.rq.release();
    }

    /// Flushes the receives that it has: all of its own queue, or the one that it took from a shared queue.
    /// Those that are still there are for others; that no more will come from here is told by an event.
    pub(super) fn flush_receives(&mut self, c: &mut Common) {
        let flushed = |cqe| Cqe { opcode: WcOpcode::Recv as u8, flags: CqeFlags::empty(), ..cqe };
        // What is posted from here on rings the bell.
        let many = match &self.rq {
            Receives::Own(ring) => ring.len(),
            Receives::Shared(shared) => u32::from(shared.held.is_some()),
        };
        for _ in 0..many {
            if self.end_receive(c, WcStatus::WrFlush, true, flushed) {
                c.count(Counter::RespCqeFlushError);
            }
        }
        if let Receives::Shared(shared) = &mut self.rq
            && !std::mem::replace(&mut shared.told, true)
        {
            c.event(AsyncEvent::LastWqe { qpn: self.qpn.raw() });
        }
    }

    /// Forgets the receives that it has, on the way to RESET.
    pub(super) fn forget_receives(&mut self) {
        match &mut self.rq {
            Receives::Own(ring) => self.face.rq.clear(ring),
            Receives::Shared(shared) => (shared.held, shared.told) = (None, false),
        }
    }
}
