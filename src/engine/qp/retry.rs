//! Retries: go-back-N, its timers, and the account of what is in flight.
//!
//! *Go-back-0* ([`Recovery::GoBack0`]) is go-back-N of which each retry begins at the first packet of the oldest message,
//! acknowledged or not, and a responder that begins the message anew, too ([`Qp::start_over`]). It is there to be
//! looked at, and the paths that others take know nothing of it.

use super::attr::{QpState, Recovery};
use super::packets::{TO_PEER, TO_US, charge};
use super::requester::{is_atomic, is_read_class};
use super::{Qp, steps};
use crate::engine::cc::Loss;
use crate::engine::common::Common;
use crate::engine::counters::Counter;
use crate::engine::status::WcStatus;
use crate::engine::trace::NicEvent;
use crate::engine::window::{PACKET_CHARGE, WindowId};
use crate::queue::SendOp;
use crate::time::Duration;
use crate::wire::aeth;
use crate::wire::num::Psn;

/// A sequence NAK that comes so long after a retry began is not a copy of the one that began it: the responder has
/// seen packets behind the gap again. Ours says so after a millisecond ([`renak_after`]); Linux and the standard never.
/// But what was sent before the retry shows it the gap, too, for a round trip, which may be longer: so the time doubles
/// with each retry until there is progress.
///
/// [`renak_after`]: crate::engine::EngineConfig::renak_after
const ASKED_AGAIN: Duration = Duration::from_micros(500);

impl Qp {
    /// Starts a retry at the oldest unacknowledged packet. `false`: one is under way, of which this loss
    /// is part. The queue pair fails when there were too many.
    pub(super) fn retry(&mut self, c: &mut Common, loss: Loss) -> bool {
        // A responder that begins anew says so once each time, and is no nearer to being lost.
        let begins_anew = loss == Loss::SequenceNak && self.set.recovery == Recovery::GoBack0;
        self.retry_from(c, loss, begins_anew)
    }

    /// The same; `begins_anew`: the responder expects the oldest message from its first packet on.
    fn retry_from(&mut self, c: &mut Common, loss: Loss, begins_anew: bool) -> bool {
        // One loss shows in many packets; only a timeout says that the retry itself was lost, or a responder that
        // asks again when the first answer should long be there. To be asked is a sign of life: of that nobody dies.
        let asked_again = loss == Loss::SequenceNak
            && self.req.retries_left > 0
            && c.now.saturating_since(self.req.went_back) >= self.asked_again();
        let part_of_it = self.req.retrying && loss != Loss::Timeout && !asked_again && !begins_anew;
        if self.req.rnr_until.is_some() || part_of_it {
            return false;
        }
        c.count(match loss {
            Loss::SequenceNak => Counter::RcvdSeqErr,
            Loss::ImpliedNak => Counter::ImpliedNakSeqErr,
            Loss::Timeout => Counter::LocalAckTimeoutErr,
        });
        if self.req.retries_left == 0 && !begins_anew {
            c.count(Counter::RetryExceededErr);
            self.fail_oldest(c, WcStatus::RetryExc);
            return true;
        }
        c.observe(|| NicEvent::WentBack { qpn: self.qpn.raw(), loss, psn: self.req.una_psn.raw() });
        self.req.retries_left -= u8::from(!begins_anew);
        self.req.retrying = true;
        self.req.went_back = c.now;
        c.count(Counter::CompleterRetryErr);
        self.tell(c.now, |cc| cc.on_loss(c.now, loss));
        if let Some((to_peer, to_us)) = self.windows {
            let read = self.oldest_is(|op| op == SendOp::Read);
            c.windows.lost(if read { to_us } else { to_peer }, self.unit());
        }
        if begins_anew || self.set.recovery == Recovery::GoBack0 {
            self.rewind();
        }
        self.go_back(c);
        true
    }

    /// How long after a retry began another sequence NAK asks for one more.
    fn asked_again(&self) -> Duration {
        let tried = self.set.retry_cnt.saturating_sub(self.req.retries_left);
        ASKED_AGAIN * (1 << tried.saturating_sub(1))
    }

    /// Go-back-0: nothing of the oldest message is acknowledged. (Of a READ, what has arrived is there.)
    #[cold]
    fn rewind(&mut self) {
        if self.req.una != self.req.fresh && !self.oldest_is(is_read_class) {
            let track = self.req.track(self.req.una);
            if track.packets > 0 {
                self.req.una_psn = track.first;
            }
        }
    }

    /// Whether a responder that begins a message anew may name this PSN, which was acknowledged. Who offers to recover
    /// so may have been taken at its word, also where it was never told of that.
    #[cold]
    pub(super) fn starts_anew(&self, psn: Psn) -> bool {
        self.set.offers == Recovery::GoBack0
            && self.req.una != self.req.fresh
            && psn == self.req.track(self.req.una).first
    }

    /// It has named it.
    #[cold]
    pub(super) fn start_anew(&mut self, c: &mut Common) {
        if !self.retry_from(c, Loss::SequenceNak, true) {
            c.count(Counter::DropStaleResponse);
        }
    }

    /// The receiver was not ready: nothing is sent until the time has passed that it asked for. `false`:
    /// we wait already, and this NAK answers what was in flight when the first one came.
    pub(super) fn wait_for_receiver(&mut self, c: &mut Common, timer: u8) -> bool {
        if self.req.rnr_until.is_some() {
            return false;
        }
        c.count(Counter::RcvdRnrErr);
        // Whatever it has told of its receives before.
        self.req.credit_end = self.req.una;
        match self.req.rnr_left {
            0 => {
                c.count(Counter::RetryRnrExceededErr);
                self.fail_oldest(c, WcStatus::RnrRetryExc);
                return true;
            }
            7 => {} // for ever
            n => self.req.rnr_left = n - 1,
        }
        let wait = aeth::rnr_timer(timer);
        c.observe(|| NicEvent::WaitsForReceiver {
            qpn: self.qpn.raw(),
            psn: self.req.una_psn.raw(),
            wait,
        });
        c.counters.add(Counter::RnrWaitNs, crate::time::nanos(wait));
        c.count(Counter::CompleterRetryErr);
        self.go_back(c);
        self.req.rnr_until = Some(c.now + wait);
        // What we retried has arrived, so the path works both ways: a loss from here on is another, and the
        // losses of a long wait do not add up to a dead peer.
        self.req.retrying = false;
        self.req.retries_left = self.set.retry_cnt;
        true
    }

    /// Moves the cursor back to the oldest unacknowledged packet.
    fn go_back(&mut self, c: &mut Common) {
        self.release_all(c);
        let r = &mut self.req;
        r.cur = r.una;
        r.cur_packet = if r.una == r.fresh { 0 } else { steps(r.track(r.una).first, r.una_psn) };
        r.resumed = true;
        r.unasked = 0;
        r.unasked_bytes = 0;
        r.asked = r.una_psn;
        r.ack_deadline = None;
        r.forget_probes();
        self.clear_board();
    }

    /// Takes all charges back, and lets others have the room.
    pub(super) fn release_all(&mut self, c: &mut Common) {
        let [peer, us] = std::mem::take(&mut self.req.charged);
        self.req.flying = 0;
        if let Some((to_peer, to_us)) = self.windows {
            c.windows.release(to_peer, peer);
            c.windows.release(to_us, us);
            c.wake_window(to_peer);
            c.wake_window(to_us);
        }
    }

    /// Leaves its windows, if it has any: on the way to other ones, or to nowhere.
    pub(crate) fn leave_windows(&mut self, c: &mut Common) {
        let Some((to_peer, to_us)) = self.windows.take() else { return };
        let [peer, us] = std::mem::take(&mut self.req.charged);
        self.req.flying = 0;
        self.req.in_line = [false; 2];
        self.req.woken = [false; 2];
        for (id, bytes) in [(to_peer, peer), (to_us, us)] {
            c.windows.release(id, bytes);
            c.windows.close(id, self.handle.slot);
        }
        c.wake_window(to_peer);
        c.wake_window(to_us);
    }

    /// It is its turn in a window. `false`: it does not stand in line there, or has no use for it.
    pub(crate) fn take_wake(&mut self, id: WindowId) -> bool {
        let Some((to_peer, to_us)) = self.windows else { return false };
        for (which, window) in [(TO_PEER, to_peer), (TO_US, to_us)] {
            if window == id && self.req.in_line[which] {
                self.req.in_line[which] = false;
                self.req.woken[which] = self.may_request();
                return self.req.woken[which];
            }
        }
        false
    }

    /// Its turn at sending is over. Gives the windows in which others may try now: those in which it did
    /// not find too little room itself, if it used some or had its turn there. (To wake others for nothing
    /// would have two queue pairs, each short of room in another window, wake each other without end.)
    pub(crate) fn end_turn(&mut self) -> [Option<WindowId>; 2] {
        let woken = std::mem::take(&mut self.req.woken);
        let served = std::mem::take(&mut self.req.served);
        let Some((to_peer, to_us)) = self.windows else { return [None; 2] };
        let short = self.req.no_room.map(|which| if which == TO_US { to_us } else { to_peer });
        [(TO_PEER, to_peer), (TO_US, to_us)]
            .map(|(which, id)| Some(id).filter(|_| (served || woken[which]) && short != Some(id)))
    }

    /// Packets `from..to` of a request are acknowledged: releases the charge of those that are in flight.
    /// (After a retry was started, an answer to the first attempt may be ahead of the cursor.)
    pub(super) fn release_acked(
        &mut self,
        c: &mut Common,
        index: u32,
        op: SendOp,
        length: u32,
        from: u32,
        to: u32,
    ) {
        let r = &mut self.req;
        let mtu = self.mtu.bytes();
        let sent = match index.wrapping_sub(r.cur).cast_signed() {
            ..0 => to,
            0 => to.min(r.cur_packet),
            1.. => from,
        };
        let len = if is_atomic(op) { 0 } else { length };
        let charged = charge(len, mtu, from, sent.max(from));
        let payload = charge(length, mtu, from, to) - u64::from(to - from) * PACKET_CHARGE;
        let payload = u32::try_from(payload).unwrap_or(u32::MAX);
        r.acked_bytes = r.acked_bytes.saturating_add(payload);
        let which = if op == SendOp::Read { TO_US } else { TO_PEER };
        debug_assert!(r.charged[which] >= charged, "released {charged} of {:?}", r.charged);
        r.charged[which] = r.charged[which].saturating_sub(charged);
        if which == TO_PEER {
            r.flying = r.flying.saturating_sub(sent.saturating_sub(from));
        }
        if let Some((to_peer, to_us)) = self.windows {
            let id = if which == TO_US { to_us } else { to_peer };
            c.windows.acked(id, charged, mtu as u64);
            c.wake_window(id);
        }
    }

    /// A timer of the requester may be due.
    pub(crate) fn handle_timeout(&mut self, c: &mut Common) {
        let now = c.now;
        if self.req.rnr_until.is_some_and(|t| t <= now) {
            self.req.rnr_until = None;
            c.observe(|| NicEvent::WaitOver { qpn: self.qpn.raw() });
        }
        self.req.pace.look(now);
        if self.req.cc.peek().next_timer().is_some_and(|t| t <= now) {
            self.tell(now, |cc| cc.on_timer(now));
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
mod tests {
    use super::*;

    #[test]
    fn timeouts_of_the_sheet() {
        assert_eq!(ack_timeout(0), None);
        assert_eq!(ack_timeout(8), Some(Duration::from_nanos(1_048_576)));
        assert_eq!(ack_timeout(14), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(ack_timeout(31).map(|t| t.as_secs()), Some(8796));
    }
}
