//! Retries: go-back-N, its timers, and the account of what is in flight.

use super::Qp;
use super::attr::QpState;
use super::packets::{TO_PEER, TO_US, charge};
use super::requester::Controller;
use crate::engine::cc::Loss;
use crate::engine::common::Common;
use crate::engine::counters::Counter;
use crate::engine::status::WcStatus;
use crate::queue::SendOp;
use crate::time::{Duration, Instant};

impl Qp {
    /// Starts a retry at the oldest unacknowledged packet, unless one is under way. The queue pair fails
    /// when there were too many.
    pub(super) fn retry(&mut self, c: &mut Common, loss: Loss) {
        // One loss shows in many packets; only a timeout says that the retry itself was lost.
        if self.req.rnr_until.is_some() || self.req.retrying && loss != Loss::Timeout {
            return;
        }
        c.count(match loss {
            Loss::SequenceNak => Counter::RcvdSeqErr,
            Loss::ImpliedNak => Counter::ImpliedNakSeqErr,
            Loss::Timeout => Counter::LocalAckTimeoutErr,
        });
        if self.req.retries_left == 0 {
            c.count(Counter::RetryExceededErr);
            self.fail_oldest(c, WcStatus::RetryExc);
            return;
        }
        self.req.retries_left -= 1;
        self.req.retrying = true;
        c.count(Counter::CompleterRetryErr);
        self.req.cc.get().on_loss(c.now, loss);
        if let Some((to_peer, to_us)) = self.windows {
            let read = self.sq.get(self.req.una).is_some_and(|(wqe, _)| wqe.op == SendOp::Read);
            c.windows.lost(if read { to_us } else { to_peer }, self.unit());
        }
        self.go_back(c);
    }

    /// Moves the cursor back to the oldest unacknowledged packet.
    pub(super) fn go_back(&mut self, c: &mut Common) {
        self.release_all(c);
        self.req.cur = self.req.una;
        self.req.cur_packet = 0;
        if self.req.una != self.req.fresh {
            let track = self.req.track(self.req.una);
            let done = self.req.una_psn.distance_from(track.first);
            self.req.cur_packet = u32::try_from(done).unwrap_or(0);
        }
        self.req.resumed = true;
        self.req.unasked = 0;
        self.req.ack_deadline = None;
    }

    /// Takes all charges back.
    pub(super) fn release_all(&mut self, c: &mut Common) {
        let [peer, us] = std::mem::take(&mut self.req.charged);
        if let Some((to_peer, to_us)) = self.windows {
            c.windows.release(to_peer, peer);
            c.windows.release(to_us, us);
            c.wake_window(to_peer);
            c.wake_window(to_us);
        }
    }

    /// Releases the charge of packets `from..to` of a request that are acknowledged, as far as they are
    /// in flight.
    pub(super) fn release_acked(
        &mut self,
        c: &mut Common,
        index: u32,
        op: SendOp,
        len: u32,
        from: u32,
        to: u32,
    ) {
        let r = &self.req;
        let sent = match index.wrapping_sub(r.cur).cast_signed() {
            ..0 => to,
            0 => to.min(r.cur_packet),
            1.. => from,
        };
        let len = if matches!(op, SendOp::CompareSwap | SendOp::FetchAdd) { 0 } else { len };
        let bytes = charge(len, self.mtu.bytes(), from, sent.max(from));
        let which = if op == SendOp::Read { TO_US } else { TO_PEER };
        let bytes = bytes.min(r.charged[which]);
        self.req.charged[which] -= bytes;
        if let Some((to_peer, to_us)) = self.windows {
            let id = if which == TO_US { to_us } else { to_peer };
            c.windows.acked(id, bytes, self.mtu.bytes() as u64);
            c.wake_window(id);
        }
    }

    /// A timer of the requester may be due.
    pub(crate) fn handle_timeout(&mut self, c: &mut Common) {
        let now = c.now;
        if self.req.rnr_until.is_some_and(|t| t <= now) {
            self.req.rnr_until = None;
        }
        if self.req.next_send <= now {
            self.req.next_send = Instant::ZERO;
        }
        if let Controller::Custom(cc) = &mut self.req.cc
            && cc.next_timer().is_some_and(|t| t <= now)
        {
            cc.on_timer(now);
        }
        if self.req.ack_deadline.is_some_and(|t| t <= now) {
            self.req.ack_deadline = None;
            if matches!(self.state, QpState::Rts | QpState::Sqd) && self.req.in_flight() {
                self.retry(c, Loss::Timeout);
            }
        }
    }
}

/// The local ACK timeout, by its code; `None` for 0, which is for ever.
pub(crate) fn ack_timeout(code: u8) -> Option<Duration> {
    (code > 0).then(|| Duration::from_nanos(4096 << code.min(31)))
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn timeouts_of_the_sheet() {
        assert_eq!(ack_timeout(0), None);
        assert_eq!(ack_timeout(8), Some(Duration::from_nanos(1_048_576)));
        assert_eq!(ack_timeout(14), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(ack_timeout(31).map(|t| t.as_secs()), Some(8796));
    }
}
