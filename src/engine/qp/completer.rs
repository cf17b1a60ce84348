//! The completer: responses become completions.
//!
//! *Rules* (IBTA 9.7.3, 9.9.2). A response for PSN `p` acknowledges everything before `p`, but it cannot
//! jump over a READ or atomic that has not been answered: that is an implied NAK, and the retry starts
//! there. Responses to what is acknowledged already are ghosts and change nothing; responses to what was
//! never sent are dropped. Completions leave in the order of posting. Any progress reloads the retry
//! counters and restarts the ACK timer.

use super::Qp;
use super::retry::ack_timeout;
use crate::engine::cc::{AckInfo, Loss};
use crate::engine::common::Common;
use crate::engine::counters::Counter;
use crate::engine::qp::attr::QpState;
use crate::engine::status::WcStatus;
use crate::mem::{Access, AccessError, MrTable, PdId};
use crate::net::{Ecn, RxMeta};
use crate::queue::wqe::sges;
use crate::queue::{Cqe, CqeKind, SendFlags, SendOp, SendWqe};
use crate::wire::num::Psn;
use crate::wire::opcode::{Operation, Position};
use crate::wire::packet::Packet;
use crate::wire::{NakCode, Syndrome, aeth};

/// Whether an acknowledgement reached its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Advance {
    Reached,
    /// An unanswered READ or atomic is in the way.
    Blocked,
}

impl Qp {
    /// A response for this queue pair, its ICRC checked.
    pub(crate) fn handle_response(&mut self, c: &mut Common, meta: &RxMeta, packet: &Packet<'_>) {
        if !matches!(self.state, QpState::Rts | QpState::Sqd) {
            c.count(Counter::DropState);
            return;
        }
        let psn = packet.psn();
        if psn.distance_from(self.req.top_psn) >= 0 {
            c.count(Counter::DropUnsentResponse);
            return;
        }
        let before = self.req.una_psn;
        let syndrome = packet.aeth().map(|aeth| aeth.syndrome);
        if psn.distance_from(before) < 0 && !self.is_late_nak(psn, syndrome) {
            c.count(Counter::DropGhostResponse);
            return;
        }
        match (packet.info().operation, syndrome) {
            (Operation::Acknowledge, Some(Syndrome::Ack { .. })) => self.acked(c, psn),
            (Operation::Acknowledge, Some(Syndrome::RnrNak { timer })) => self.rnr(c, psn, timer),
            (Operation::Acknowledge, Some(Syndrome::Nak(code))) => self.nak(c, psn, code),
            (Operation::ReadResponse, syndrome) => self.read_response(c, packet, syndrome),
            (Operation::AtomicAcknowledge, Some(Syndrome::Ack { .. })) => {
                self.atomic_ack(c, packet)
            }
            (Operation::AtomicAcknowledge, Some(_)) => self.bad_response(c, psn),
            _ => c.count(Counter::DropResponse),
        }
        let moved = self.req.una_psn.distance_from(before);
        if moved > 0 && matches!(self.state, QpState::Rts | QpState::Sqd) {
            self.progressed(c, meta, moved);
        }
        self.report_failed(c);
        self.check_drained(c);
    }

    /// A fatal NAK within the READ that is being answered may name its first PSN.
    fn is_late_nak(&self, psn: Psn, syndrome: Option<Syndrome>) -> bool {
        matches!(
            syndrome,
            Some(Syndrome::Nak(
                NakCode::InvalidRequest | NakCode::RemoteAccess | NakCode::RemoteOperational
            ))
        ) && self.req.una != self.req.fresh
            && psn.distance_from(self.req.track(self.req.una).first) >= 0
    }

    /// Something was acknowledged.
    fn progressed(&mut self, c: &Common, meta: &RxMeta, packets: i32) {
        self.reload_retries();
        self.req.retrying = false;
        self.req.ack_deadline = if self.req.in_flight() {
            ack_timeout(self.set.timeout).map(|t| c.now + t)
        } else {
            None
        };
        let bytes = packets.unsigned_abs().saturating_mul(self.mtu.bytes() as u32);
        let ecn_echo = meta.path.ecn() == Ecn::Ce;
        self.req.cc.get().on_ack(c.now, &AckInfo { bytes, rtt: None, ecn_echo });
    }

    fn acked(&mut self, c: &mut Common, psn: Psn) {
        if self.advance(c, psn.offset(1)) == Advance::Blocked {
            self.retry(c, Loss::ImpliedNak);
        }
    }

    fn rnr(&mut self, c: &mut Common, psn: Psn, timer: u8) {
        if self.advance(c, psn) == Advance::Blocked {
            self.retry(c, Loss::ImpliedNak);
            return;
        }
        // While we wait, further NAKs for what we had in flight are old news.
        if self.req.rnr_until.is_some() {
            return;
        }
        c.count(Counter::RcvdRnrErr);
        match self.req.rnr_left {
            0 => {
                c.count(Counter::RetryRnrExceededErr);
                self.fail_oldest(c, WcStatus::RnrRetryExc);
                return;
            }
            7 => {} // for ever
            n => self.req.rnr_left = n - 1,
        }
        let wait = aeth::rnr_timer(timer);
        c.counters.add(Counter::RnrWaitNs, crate::time::nanos(wait));
        c.count(Counter::CompleterRetryErr);
        self.go_back(c);
        self.req.rnr_until = Some(c.now + wait);
    }

    fn nak(&mut self, c: &mut Common, psn: Psn, code: NakCode) {
        let reached = self.advance(c, psn);
        let status = match code {
            NakCode::SequenceError => {
                let loss = match reached {
                    Advance::Reached => Loss::SequenceNak,
                    Advance::Blocked => Loss::ImpliedNak,
                };
                // What was acknowledged on the way is progress: this is a new loss.
                self.req.retrying &= self.req.una_psn.distance_from(psn) >= 0
                    && self.req.cursor().distance_from(self.req.una_psn) >= 0
                    && self.req.retrying;
                self.retry(c, loss);
                return;
            }
            NakCode::InvalidRequest => {
                c.count(Counter::ReqRemoteInvalidRequest);
                WcStatus::RemInvReq
            }
            NakCode::RemoteAccess => {
                c.count(Counter::ReqRemoteAccessErrors);
                WcStatus::RemAccess
            }
            NakCode::RemoteOperational => WcStatus::RemOp,
            NakCode::InvalidRd => WcStatus::RemInvRd,
        };
        let within = self.req.una != self.req.fresh
            && psn.distance_from(self.req.track(self.req.una).end()) < 0;
        if within {
            self.fail_oldest(c, status);
        } else {
            self.retry(c, Loss::ImpliedNak);
        }
    }

    fn read_response(&mut self, c: &mut Common, packet: &Packet<'_>, syndrome: Option<Syndrome>) {
        let psn = packet.psn();
        let reached = self.advance(c, psn);
        let Some((&wqe, words)) = self.sq.get(self.req.una) else { return };
        let track = self.req.track(self.req.una);
        if self.req.una == self.req.fresh || wqe.op != SendOp::Read {
            return match reached {
                Advance::Blocked => self.retry(c, Loss::ImpliedNak),
                Advance::Reached => self.bad_response(c, psn),
            };
        }
        if psn != self.req.una_psn {
            // A response, or the rest of the answer, is missing.
            return self.retry(c, Loss::ImpliedNak);
        }
        if !matches!(syndrome, None | Some(Syndrome::Ack { .. })) {
            return self.bad_response(c, psn);
        }
        let index = u32::try_from(psn.distance_from(track.first)).unwrap_or(0);
        let mtu = self.mtu.bytes();
        let offset = index as usize * mtu;
        let last_of_all = index + 1 == track.packets;
        let last_of_request = index + 1 == track.chunk_end(index);
        let expected = if last_of_all { wqe.length as usize - offset } else { mtu };
        let position = packet.info().position;
        let fits_stream = match position {
            Position::First | Position::Only => !self.req.in_stream || self.req.resumed,
            Position::Middle | Position::Last => self.req.in_stream || self.req.resumed,
        };
        if packet.payload().len() != expected || position.ends() != last_of_request || !fits_stream
        {
            return self.bad_response(c, psn);
        }
        if scatter(&c.mrs, self.pd, &wqe, words, offset as u64, packet.payload()).is_err() {
            self.fail_locally(c, self.req.una, WcStatus::LocProt);
            return;
        }
        self.release_acked(c, self.req.una, wqe.op, wqe.length, index, index + 1);
        self.req.una_psn = psn.offset(1);
        self.req.in_stream = !last_of_request;
        if last_of_request {
            self.req.resumed = false;
            self.req.rd_out = self.req.rd_out.saturating_sub(1);
        }
        if last_of_all {
            self.complete_oldest(c, wqe.length);
        }
        self.catch_up();
    }

    fn atomic_ack(&mut self, c: &mut Common, packet: &Packet<'_>) {
        let psn = packet.psn();
        let reached = self.advance(c, psn);
        let Some((&wqe, words)) = self.sq.get(self.req.una) else { return };
        let atomic = matches!(wqe.op, SendOp::CompareSwap | SendOp::FetchAdd);
        if psn != self.req.una_psn || !atomic || self.req.una == self.req.fresh {
            return match reached {
                Advance::Blocked if psn != self.req.una_psn => self.retry(c, Loss::ImpliedNak),
                _ => self.bad_response(c, psn),
            };
        }
        let Some(result) = packet.atomic_ack_eth() else { return };
        let bytes = result.orig.to_ne_bytes();
        if scatter(&c.mrs, self.pd, &wqe, words, 0, &bytes).is_err() {
            self.fail_locally(c, self.req.una, WcStatus::LocProt);
            return;
        }
        self.release_acked(c, self.req.una, wqe.op, wqe.length, 0, 1);
        self.req.una_psn = psn.offset(1);
        self.req.rd_out = self.req.rd_out.saturating_sub(1);
        self.complete_oldest(c, 8);
        self.catch_up();
    }

    /// The peer answered something that does not fit the request with this PSN.
    fn bad_response(&mut self, c: &mut Common, _psn: Psn) {
        if self.req.una != self.req.fresh {
            self.fail_oldest(c, WcStatus::BadResp);
        }
    }

    /// Acknowledges everything before `upto`, as far as it may be.
    fn advance(&mut self, c: &mut Common, upto: Psn) -> Advance {
        let reached = loop {
            let index = self.req.una;
            if index == self.req.fresh {
                break Advance::Reached;
            }
            // A request that failed here is reported, not completed.
            if self.req.failed.is_some_and(|(failed, _)| failed == index) {
                break Advance::Reached;
            }
            let track = self.req.track(index);
            if track.packets == 0 {
                self.complete_oldest(c, 0);
                continue;
            }
            if upto.distance_from(self.req.una_psn) <= 0 {
                break Advance::Reached;
            }
            let Some((&wqe, _)) = self.sq.get(index) else { break Advance::Reached };
            if matches!(wqe.op, SendOp::Read | SendOp::CompareSwap | SendOp::FetchAdd) {
                break Advance::Blocked;
            }
            let end = track.end();
            let to = if upto.distance_from(end) < 0 { upto } else { end };
            let packet = |psn: Psn| u32::try_from(psn.distance_from(track.first)).unwrap_or(0);
            let (from, until) = (packet(self.req.una_psn), packet(to));
            self.release_acked(c, index, wqe.op, wqe.length, from, until);
            self.req.una_psn = to;
            if to == end {
                self.complete_oldest(c, wqe.length);
            }
        };
        self.catch_up();
        reached
    }

    /// Completes local requests that are next in line.
    pub(super) fn retire_local(&mut self, c: &mut Common) {
        let here = self.req.una_psn;
        self.advance(c, here);
    }

    /// What is acknowledged need not be sent again.
    fn catch_up(&mut self) {
        let r = &mut self.req;
        if r.una.wrapping_sub(r.cur).cast_signed() > 0 {
            r.cur = r.una;
            r.cur_packet = 0;
        }
        if r.cur == r.una && r.una != r.fresh {
            let done = u32::try_from(r.una_psn.distance_from(r.track(r.una).first)).unwrap_or(0);
            r.cur_packet = r.cur_packet.max(done);
        }
    }

    /// The oldest request is done: completes it if its owner asked for that, and frees its slot.
    fn complete_oldest(&mut self, c: &mut Common, byte_len: u32) {
        let index = self.req.una;
        self.req.una = index.wrapping_add(1);
        if let Some((&wqe, _)) = self.sq.get(index) {
            if matches!(wqe.op, SendOp::Send | SendOp::SendImm | SendOp::SendInv) {
                c.count(Counter::RdmaSends);
            }
            if wqe.flags.contains(SendFlags::SIGNALED) {
                let cqe = Cqe {
                    wqe_index: index,
                    opcode: wqe.op.wc_opcode(),
                    byte_len,
                    ..self.cqe(CqeKind::Send, wqe.wr_id, WcStatus::Success)
                };
                c.complete(self.send_cq.cq, cqe, false);
            }
        }
        self.sq.release(index.wrapping_add(1));
    }
}

/// Distributes bytes that arrived into the buffers of a request.
fn scatter(
    mrs: &MrTable,
    pd: PdId,
    wqe: &SendWqe,
    words: &[u64],
    offset: u64,
    src: &[u8],
) -> Result<(), AccessError> {
    scatter_into(mrs, pd, sges(words, wqe.num_sge), offset, src)
}

/// Distributes bytes into a list of buffers, from `offset` on.
pub(super) fn scatter_into(
    mrs: &MrTable,
    pd: PdId,
    list: impl Iterator<Item = crate::mem::Sge>,
    offset: u64,
    mut src: &[u8],
) -> Result<(), AccessError> {
    let mut skip = offset;
    for sge in list {
        if src.is_empty() {
            break;
        }
        let len = u64::from(sge.length);
        if skip >= len {
            skip -= len;
            continue;
        }
        let take = usize::try_from(len - skip).unwrap_or(usize::MAX).min(src.len());
        let (now, rest) = src.split_at(take);
        let at = usize::try_from(skip).unwrap_or(usize::MAX);
        mrs.local(pd, &sge, Access::LOCAL_WRITE)?.write_from(at, now);
        src = rest;
        skip = 0;
    }
    Ok(())
}
