//! The end of a queue pair's work: errors, ERR, RESET.
//!
//! *Rules* (IBTA 10.3.1.7, 10.7.3.1). On an error the requests before it have completed, it completes
//! with its status, signaled or not, and everything behind it, in both queues, completes with WR_FLUSH_ERR
//! in order. A fatal NAK still leaves, after the answers that precede it. On UC and UD an error of the send
//! queue stops that alone (SQE), until a transition to RTS. RESET empties the queues
//! without completions and makes those not yet polled invisible.

use super::attr::QpState;
use super::notification::Notification;
use super::{Qp, Settings};
use crate::engine::common::Common;
use crate::engine::counters::Counter;
use crate::engine::status::WcStatus;
use crate::queue::{Cqe, CqeKind};
use crate::sync::{Ordering, fence};
use crate::wire::num::Pkey;

impl Qp {
    /// The oldest request fails with `status`; the queue pair goes to ERR, or if it is of an unreliable
    /// service its send queue stops (SQE).
    pub(super) fn fail_oldest(&mut self, c: &mut Common, status: WcStatus) {
        if let Some((&wqe, _)) = self.sq.get(self.req.una) {
            c.count(Counter::ReqCqeError);
            let cqe = Cqe {
                wqe_index: self.req.una,
                opcode: wqe.op.wc_opcode(),
                ..self.cqe(CqeKind::Send, wqe.wr_id, status)
            };
            c.complete(self.send_cq.cq, cqe, true);
            self.req.una = self.req.una.wrapping_add(1);
            self.sq.release(self.req.una);
        }
        if self.kind.is_reliable() {
            self.enter_err(c);
        } else {
            self.enter_sqe(c);
        }
    }

    /// Goes to SQE: the send queue is flushed, and what is posted there later; receiving goes on.
    fn enter_sqe(&mut self, c: &mut Common) {
        // Visible to posting first, as with ERR.
        self.set_state(QpState::Sqe);
        self.flush_sends(c);
    }

    /// Goes to ERR and flushes both queues.
    pub(crate) fn enter_err(&mut self, c: &mut Common) {
        // Visible to posting before the queues are flushed, so that nothing falls between.
        self.set_state(QpState::Err);
        // Whoever posts a receive writes it and then reads the state; here it is the other way round.
        fence(Ordering::SeqCst);
        self.release_all(c);
        self.resp.abandon();
        self.first = 0;
        self.notification = Notification::NONE;
        self.flush(c);
    }

    /// Completes everything posted with WR_FLUSH_ERR. In ERR, also for what is posted later.
    pub(crate) fn flush(&mut self, c: &mut Common) {
        self.flush_sends(c);
        self.flush_receives(c);
    }

    /// Completes what is in the send queue with WR_FLUSH_ERR. The next PSN is that of the first packet that
    /// was not sent.
    pub(crate) fn flush_sends(&mut self, c: &mut Common) {
        let head = self.sq.head();
        let mut index = self.sq.tail();
        while index != head {
            if let Some((&wqe, _)) = self.sq.get(index) {
                c.count(Counter::ReqCqeFlushError);
                let cqe = Cqe {
                    wqe_index: index,
                    opcode: wqe.op.wc_opcode(),
                    ..self.cqe(CqeKind::Send, wqe.wr_id, WcStatus::WrFlush)
                };
                c.complete(self.send_cq.cq, cqe, true);
            }
            index = index.wrapping_add(1);
            self.sq.release(index);
        }
        self.req.start(self.req.una_psn, head);
    }

    /// Goes to RESET: nothing is left of what was.
    pub(crate) fn enter_reset(&mut self, c: &mut Common) {
        self.set_state(QpState::Reset);
        self.forget_completions(c);
        self.release_all(c);
        self.resp.reset();
        self.coalescing.reset();
        self.first = 0;
        self.notification = Notification::NONE;
        self.face.sq.clear(&mut self.sq);
        self.forget_receives();
        let head = self.sq.head();
        self.req.limit = 0;
        let now = c.now;
        self.tell(now, |cc| cc.reset(now));
        self.req.start(self.req.una_psn, head);
        // Its peer was told, and may be the next one, too.
        *self.set = Settings { offers: self.set.offers, ..Settings::default() };
        self.pkey = Pkey::DEFAULT;
    }

    /// Makes completions that were not polled yet invisible.
    fn forget_completions(&mut self, c: &mut Common) {
        let same = self.send_cq.cq == self.recv_cq.cq;
        if let Some(slot) = c.cq(self.send_cq.cq) {
            self.send_cq.tag = slot.producer.shared().reset_qp(self.send_cq.tag);
        }
        if same {
            self.recv_cq.tag = self.send_cq.tag;
        } else if let Some(slot) = c.cq(self.recv_cq.cq) {
            self.recv_cq.tag = slot.producer.shared().reset_qp(self.recv_cq.tag);
        }
    }
}
