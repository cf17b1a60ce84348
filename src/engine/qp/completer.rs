//! The completer: responses become completions.
//!
//! *Rules* (IBTA 9.7.3, 9.9.2). A response for PSN `p` acknowledges everything before `p`, but it cannot
//! jump over a READ or atomic that has not been answered: that is an implied NAK, and the retry starts
//! there. Responses to what is acknowledged already are ghosts and change nothing; responses to what was
//! never sent are dropped. Completions leave in the order of posting. Any progress reloads the retry
//! counters and restarts the ACK timer; it is booked before what else the response leads to, so that a
//! retry that it starts counts.

use super::requester::{Controller, is_atomic, is_read_class};
use super::retry::ack_timeout;
use super::selective::REPORT;
use super::{Qp, steps};
use crate::engine::cc::{AckInfo, Loss};
use crate::engine::common::Common;
use crate::engine::counters::Counter;
use crate::engine::elide::scatter_there;
use crate::engine::qp::attr::{QpState, Recovery};
use crate::engine::status::WcStatus;
use crate::engine::trace::NicEvent;
use crate::mem::{Access, AccessError, MrTable, PdId};
use crate::net::{Ecn, RxMeta};
use crate::queue::wqe::sges;
use crate::queue::{Cqe, CqeKind, SendFlags, SendOp, SendWqe};
use crate::wire::aeth::{NO_CREDITS, credits};
use crate::wire::num::Psn;
use crate::wire::opcode::{Operation, Position};
use crate::wire::packet::Packet;
use crate::wire::{NakCode, Syndrome};

/// Whether an acknowledgement reached its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Advance {
    Reached,
    /// An unanswered READ or atomic is in the way.
    Blocked,
}

/// What a response leads to, once the progress that it brought is booked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Nothing,
    /// Something is missing before it.
    Retry(Loss),
    /// The receiver is not ready: timer code of the wait.
    Wait(u8),
    /// The oldest request fails.
    Fail(WcStatus),
}

/// What is needed of a request when it is done.
#[derive(Clone, Copy)]
struct Done {
    wr_id: u64,
    length: u32,
    op: SendOp,
    flags: SendFlags,
}

impl Done {
    const fn of(wqe: &SendWqe) -> Self {
        Self { wr_id: wqe.wr_id, length: wqe.length, op: wqe.op, flags: wqe.flags }
    }
}

impl Qp {
    /// A response for this queue pair, its ICRC checked.
    pub(crate) fn handle_response(&mut self, c: &mut Common, meta: &RxMeta, packet: &Packet<'_>) {
        if !matches!(self.state, QpState::Rts | QpState::Sqd) {
            c.count(Counter::DropState);
            return;
        }
        let psn = packet.psn();
        let before = self.req.una_psn;
        let syndrome = packet.aeth().map(|aeth| aeth.syndrome);
        if self.req.is_outside(psn) {
            match (packet.info().operation, syndrome) {
                // The refusal of a READ that is being answered may name any of its packets.
                (Operation::Acknowledge, Some(Syndrome::Nak(code)))
                    if self.is_within_read(psn) && code != NakCode::SequenceError =>
                {
                    let status = refused(c, code);
                    self.fail_oldest(c, status);
                }
                (Operation::Acknowledge, Some(Syndrome::Nak(NakCode::SequenceError)))
                    if self.starts_anew(psn) =>
                {
                    self.start_anew(c);
                }
                _ if psn.distance_from(before) < 0 => c.count(Counter::DropGhostResponse),
                _ => c.count(Counter::DropUnsentResponse),
            }
            return;
        }
        let outcome = match (packet.info().operation, syndrome) {
            (Operation::Acknowledge, Some(Syndrome::Ack { .. })) => {
                self.up_to(c, psn.offset(1), Outcome::Nothing)
            }
            (Operation::Acknowledge, Some(Syndrome::RnrNak { timer })) => {
                self.up_to(c, psn, Outcome::Wait(timer))
            }
            (Operation::Acknowledge, Some(Syndrome::Nak(code))) => self.nak(c, psn, code),
            (Operation::ReadResponse, syndrome) => self.read_response(c, packet, syndrome),
            (Operation::AtomicAcknowledge, Some(syndrome)) => self.atomic_ack(c, packet, syndrome),
            // A reserved syndrome.
            _ => {
                c.count(Counter::DropResponse);
                return;
            }
        };
        let moved = self.req.una_psn != before;
        if moved {
            self.progressed(c, meta);
        }
        if let (Some(Syndrome::Ack { credits }), Outcome::Nothing) = (syndrome, outcome)
            && (credits != NO_CREDITS || self.req.is_credited)
        {
            self.note_credits(credits);
        }
        // A request that failed here comes first, if its turn has come.
        self.report_failed(c);
        if self.state != QpState::Err {
            let used = match outcome {
                Outcome::Nothing => true,
                Outcome::Retry(loss) => self.retry(c, loss),
                Outcome::Wait(timer) => self.wait_for_receiver(c, timer),
                Outcome::Fail(status) => {
                    self.fail_oldest(c, status);
                    true
                }
            };
            if !used && !moved {
                c.count(Counter::DropStaleResponse);
            }
        }
        self.check_drained(c);
    }

    /// The peer has told how many receives it has for what it has not executed yet.
    #[cold]
    fn note_credits(&mut self, code: u8) {
        let credits = credits(code);
        self.req.is_credited = credits.is_some();
        // What it has executed is complete here. (Requests that are carried out here take no receive, and are counted
        // nevertheless: a little less than what it allows.)
        self.req.credit_end = self.req.una.wrapping_add(credits.unwrap_or(0));
    }

    /// Whether `psn` lies in the answered part of the READ that is being answered.
    fn is_within_read(&self, psn: Psn) -> bool {
        self.oldest_is(|op| op == SendOp::Read) && {
            let first = self.req.track(self.req.una).first;
            steps(first, psn) < steps(first, self.req.una_psn)
        }
    }

    /// Whether the oldest request was begun and is of this kind.
    pub(super) fn oldest_is(&self, kind: impl FnOnce(SendOp) -> bool) -> bool {
        self.req.una != self.req.fresh
            && self.sq.get(self.req.una).is_some_and(|(wqe, _)| kind(wqe.op))
    }

    /// Something was acknowledged.
    fn progressed(&mut self, c: &Common, meta: &RxMeta) {
        self.reload_retries();
        self.req.retrying = false;
        self.req.ack_deadline = if self.req.in_flight() {
            ack_timeout(self.set.timeout).map(|t| c.now + t)
        } else {
            None
        };
        let bytes = std::mem::take(&mut self.req.acked_bytes);
        let ecn_echo = meta.path.ecn() == Ecn::Ce;
        if let Controller::Custom(custom) = &mut self.req.cc {
            let rtt = custom.probes.acknowledge(self.req.una_psn, c.now);
            if let Some(board) = &mut custom.board {
                board.settle(self.req.una_psn);
            }
            self.tell(c.now, |cc| cc.on_ack(c.now, &AckInfo { bytes, rtt, ecn_echo }));
        }
    }

    /// Everything before `upto` is acknowledged; if nothing is in the way, `then` follows.
    fn up_to(&mut self, c: &mut Common, upto: Psn, then: Outcome) -> Outcome {
        match self.advance(c, upto) {
            Advance::Reached => then,
            Advance::Blocked => Outcome::Retry(Loss::ImpliedNak),
        }
    }

    fn nak(&mut self, c: &mut Common, psn: Psn, code: NakCode) -> Outcome {
        let outcome = self.up_to(c, psn, Outcome::Retry(Loss::SequenceNak));
        if code == NakCode::SequenceError {
            return outcome;
        }
        let track = self.req.track(self.req.una);
        if steps(track.first, psn) < track.packets {
            Outcome::Fail(refused(c, code))
        } else {
            // Of a later request than one that was not answered.
            Outcome::Retry(Loss::ImpliedNak)
        }
    }

    fn read_response(
        &mut self,
        c: &mut Common,
        packet: &Packet<'_>,
        syndrome: Option<Syndrome>,
    ) -> Outcome {
        let psn = packet.psn();
        let reached = self.up_to(c, psn, Outcome::Nothing);
        let index = self.req.una;
        if psn != self.req.una_psn {
            return reached;
        }
        let Some((&wqe, words)) = self.sq.get(index) else { return reached };
        let track = self.req.track(index);
        let packet_index = steps(track.first, psn);
        let mtu = self.mtu.bytes();
        // ATOMIC WRITE and FLUSH are answered by an empty one.
        let answer = if wqe.op == SendOp::Read { wqe.length as usize } else { 0 };
        let offset = packet_index as usize * mtu;
        let last_of_all = packet_index + 1 == track.packets;
        let last_of_request = packet_index + 1 == track.chunk_end(packet_index);
        let position = packet.info().position;
        let in_order = match position {
            Position::First | Position::Only => !self.req.in_stream,
            Position::Middle | Position::Last => self.req.in_stream,
        };
        let fits = is_read_class(wqe.op)
            && !is_atomic(wqe.op)
            && matches!(syndrome, None | Some(Syndrome::Ack { .. }))
            && packet.payload().len() == (answer - offset).min(mtu)
            && position.ends() == last_of_request
            && (in_order || self.req.resumed);
        if !fits {
            return Outcome::Fail(WcStatus::BadResp);
        }
        let (bytes, there) = (packet.payload(), !c.config.elide);
        let list = sges(words, wqe.num_sge);
        let placed = if c.is_watched() {
            c.scatter(self.pd, list, offset, bytes, there)
                .inspect(|()| self.observe_scattered(c, psn, offset, bytes.len()))
        } else {
            scatter_there(there, &c.mrs, self.pd, list, offset, bytes)
        };
        if placed.is_err() {
            return Outcome::Fail(WcStatus::LocProt);
        }
        self.release_acked(c, index, wqe.op, wqe.length, packet_index, packet_index + 1);
        self.req.una_psn = psn.offset(1);
        self.req.in_stream = !last_of_request;
        if last_of_request {
            self.req.resumed = false;
            self.req.rd_out = self.req.rd_out.saturating_sub(1);
        }
        if last_of_all {
            self.complete_oldest(c, wqe.length);
        }
        self.retire_local(c);
        Outcome::Nothing
    }

    fn atomic_ack(&mut self, c: &mut Common, packet: &Packet<'_>, syndrome: Syndrome) -> Outcome {
        let psn = packet.psn();
        let reached = self.up_to(c, psn, Outcome::Nothing);
        let index = self.req.una;
        if psn != self.req.una_psn {
            return reached;
        }
        let Some((&wqe, words)) = self.sq.get(index) else { return reached };
        let (true, Syndrome::Ack { .. }, Some(result)) =
            (is_atomic(wqe.op), syndrome, packet.atomic_ack_eth())
        else {
            return self.no_atomic_ack(c, packet, syndrome);
        };
        let list = sges(words, wqe.num_sge);
        if scatter_into(&c.mrs, self.pd, list, 0, &result.orig.to_ne_bytes()).is_err() {
            return Outcome::Fail(WcStatus::LocProt);
        }
        self.observe_scattered(c, psn, 0, 8);
        self.release_acked(c, index, wqe.op, wqe.length, 0, 1);
        self.req.una_psn = psn.offset(1);
        self.req.rd_out = self.req.rd_out.saturating_sub(1);
        self.complete_oldest(c, wqe.length);
        self.retire_local(c);
        Outcome::Nothing
    }

    /// What has the form of an atomic acknowledgement and is none: a report, or wrong.
    #[cold]
    fn no_atomic_ack(
        &mut self,
        c: &mut Common,
        packet: &Packet<'_>,
        syndrome: Syndrome,
    ) -> Outcome {
        if syndrome != REPORT || self.set.offers != Recovery::Selective {
            return Outcome::Fail(WcStatus::BadResp);
        }
        if self.note_arrived(c, packet) {
            return Outcome::Nothing;
        }
        // The other end was told and this one was not: it is a NAK, too.
        Outcome::Retry(Loss::SequenceNak)
    }

    /// Acknowledges everything before `upto`, as far as it may be. `upto` is not before `una_psn`, and
    /// not beyond what was sent.
    fn advance(&mut self, c: &mut Common, upto: Psn) -> Advance {
        let reached = loop {
            let index = self.req.una;
            // A request that failed here is reported, not completed.
            if index == self.req.fresh || self.req.failed.is_some_and(|(i, _)| i == index) {
                break Advance::Reached;
            }
            let track = self.req.track(index);
            if track.packets == 0 {
                self.complete_oldest(c, 0);
                continue;
            }
            let more = steps(self.req.una_psn, upto);
            if more == 0 {
                break Advance::Reached;
            }
            let Some((wqe, _)) = self.sq.get(index) else { break Advance::Reached };
            if is_read_class(wqe.op) {
                break Advance::Blocked;
            }
            let wqe = Done::of(wqe);
            let from = steps(track.first, self.req.una_psn);
            let to = track.packets.min(from + more);
            self.release_acked(c, index, wqe.op, wqe.length, from, to);
            self.req.una_psn = track.first.offset(to);
            if to == track.packets {
                self.complete_this(c, index, Some(wqe), wqe.length);
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
            let reached = steps(r.track(r.una).first, r.una_psn);
            if reached > r.cur_packet {
                // A late answer to what was asked before the retry: of a READ, the remainder is asked for.
                r.cur_packet = reached;
                r.resumed = true;
            }
        }
    }

    /// Tells of bytes that arrived with `psn` and are in their place: from `offset` of the message on.
    pub(super) fn observe_scattered(&self, c: &mut Common, psn: Psn, offset: usize, bytes: usize) {
        let (qpn, psn) = (self.qpn.raw(), psn.raw());
        c.observe(|| (bytes > 0).then_some(NicEvent::Scattered { qpn, psn, offset, bytes }));
    }

    /// The oldest request is done: completes it if its owner asked for that, and frees its slot.
    pub(super) fn complete_oldest(&mut self, c: &mut Common, byte_len: u32) {
        let index = self.req.una;
        let done = self.sq.get(index).map(|(wqe, _)| Done::of(wqe));
        self.complete_this(c, index, done, byte_len);
    }

    /// The same where it is at hand already.
    #[inline(always)]
    fn complete_this(&mut self, c: &mut Common, index: u32, done: Option<Done>, byte_len: u32) {
        if c.is_watched() && self.is_failed_by_judge(c, index) {
            return;
        }
        self.req.una = index.wrapping_add(1);
        if let Some(done) = done {
            if matches!(done.op, SendOp::Send | SendOp::SendImm | SendOp::SendInv) {
                c.count(Counter::RdmaSends);
            }
            if done.flags.contains(SendFlags::SIGNALED) {
                let cqe = Cqe {
                    wqe_index: index,
                    opcode: done.op.wc_opcode(),
                    byte_len,
                    ..self.cqe(CqeKind::Send, done.wr_id, WcStatus::Success)
                };
                c.complete(self.send_cq.cq, cqe, false);
            }
        }
        self.sq.release(index.wrapping_add(1));
    }

    /// Whether the oldest request, which is done, fails nevertheless because somebody wants that. Tells that it is
    /// done if not.
    #[cold]
    fn is_failed_by_judge(&mut self, c: &mut Common, index: u32) -> bool {
        let qpn = self.qpn.raw();
        let Some(wr_id) = self.sq.get(index).map(|(wqe, _)| wqe.wr_id) else { return false };
        if let Some(status) = c.judge(qpn, CqeKind::Send) {
            self.fail_oldest(c, status);
            return true;
        }
        c.observe(|| NicEvent::Retired { qpn, index, wr_id });
        false
    }
}

/// The status of a request that the peer refused.
fn refused(c: &mut Common, code: NakCode) -> WcStatus {
    match code {
        NakCode::InvalidRequest => {
            c.count(Counter::ReqRemoteInvalidRequest);
            WcStatus::RemInvReq
        }
        NakCode::RemoteAccess => {
            c.count(Counter::ReqRemoteAccessErrors);
            WcStatus::RemAccess
        }
        NakCode::InvalidRd => WcStatus::RemInvRd,
        NakCode::RemoteOperational | NakCode::SequenceError => WcStatus::RemOp,
    }
}

/// Distributes bytes into a list of buffers, from `offset` on.
pub(in crate::engine) fn scatter_into(
    mrs: &MrTable,
    pd: PdId,
    list: impl Iterator<Item = crate::mem::Sge>,
    offset: usize,
    src: &[u8],
) -> Result<(), AccessError> {
    scatter_by(list, offset, src, |sge, skip, bytes| {
        mrs.local(pd, sge, Access::LOCAL_WRITE)?.write_from(skip, bytes);
        Ok(())
    })
}

/// Gives each buffer of a list its part of the bytes, from `offset` on: the buffer, where in it, the bytes.
#[inline]
pub(in crate::engine) fn scatter_by(
    list: impl Iterator<Item = crate::mem::Sge>,
    offset: usize,
    mut src: &[u8],
    mut put: impl FnMut(&crate::mem::Sge, usize, &[u8]) -> Result<(), AccessError>,
) -> Result<(), AccessError> {
    let mut skip = offset;
    for sge in list {
        if src.is_empty() {
            break;
        }
        let len = sge.length as usize;
        if skip >= len {
            skip -= len;
            continue;
        }
        let (now, rest) = src.split_at((len - skip).min(src.len()));
        put(&sge, skip, now)?;
        src = rest;
        skip = 0;
    }
    Ok(())
}
