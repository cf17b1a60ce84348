//! The requester: work requests become request packets, again if need be.
//!
//! *Owns.* Three positions in the send queue: `una`, the oldest request not completed; `cur`, the one that
//! is being sent, with the packet to send next; and `fresh`, the first that was never begun. Sending
//! moves `cur` towards `fresh`; acknowledgements move `una`; a retry (go-back-N) moves `cur` back to `una`.
//!
//! *Rules.* A request gets its PSNs when it is begun and keeps them, and its packet boundaries, through
//! all retries (IBTA 9.7.2). Nothing is stored for a retry: the packet is made anew from registered
//! memory. What is in flight is charged to a window, and released when it is acknowledged or given up.

use super::pace::Pace;
use super::packets::Plan;
use super::probes::Probes;
use super::selective::{Board, WINDOW};
use super::{Qp, REQUESTS, Turn, steps};
use crate::engine::batch::Batch;
use crate::engine::cc::{CongestionControl, Fixed, State};
use crate::engine::common::Common;
use crate::engine::config::MAX_MSG;
use crate::engine::event::AsyncEvent;
use crate::engine::qp::attr::{QpState, QpType};
use crate::engine::status::WcStatus;
use crate::engine::trace::{NicEvent, WqeBrief};
use crate::mem::Bind;
use crate::queue::wqe::read_bind;
use crate::queue::{SendFlags, SendOp};
use crate::time::Instant;
use crate::wire::num::Psn;
use crate::wire::opcode::Position;
use crate::wire::packet::PacketBuilder;

/// PSNs that may be unacknowledged: half of the number space, so that old and new can be told apart.
pub(super) const MAX_SPAN: u32 = 1 << 23;

/// What is remembered of a request that was begun.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Track {
    pub(super) first: Psn,
    /// PSNs that it takes; 0 for what is done here.
    pub(super) packets: u32,
    /// A READ: response packets that one request packet asks for.
    pub(super) chunk: u32,
}

impl Track {
    /// One past the last packet of the chunk that `packet` lies in.
    pub(super) fn chunk_end(&self, packet: u32) -> u32 {
        (packet / self.chunk + 1).saturating_mul(self.chunk).min(self.packets)
    }
}

/// The algorithm of a queue pair.
#[derive(Debug)]
pub(super) enum Controller {
    /// As fast as it can.
    Fixed(Fixed),
    Custom(Box<Custom>),
}

/// An algorithm that its owner has chosen, and what it needs besides; and what selective repeat needs, so that who has
/// neither is asked for both at once.
#[derive(Debug)]
pub(super) struct Custom {
    pub(super) algorithm: Box<dyn CongestionControl>,
    pub(super) probes: Probes,
    /// What has arrived ahead of a gap, where that is told.
    pub(super) board: Option<Box<Board>>,
}

impl Controller {
    pub(super) fn custom(algorithm: Box<dyn CongestionControl>) -> Self {
        Self::Custom(Box::new(Custom { algorithm, probes: Probes::NONE, board: None }))
    }

    pub(super) fn peek(&self) -> &dyn CongestionControl {
        match self {
            Self::Fixed(fixed) => fixed,
            Self::Custom(custom) => custom.algorithm.as_ref(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Requester {
    /// Oldest request not completed.
    pub(super) una: u32,
    /// Request being sent, and its packet to send next.
    pub(super) cur: u32,
    pub(super) cur_packet: u32,
    /// First request never begun.
    pub(super) fresh: u32,
    /// Oldest PSN not acknowledged.
    pub(super) una_psn: Psn,
    /// First PSN that belongs to no request.
    pub(super) next_psn: Psn,
    /// One past the highest PSN ever sent.
    pub(super) top_psn: Psn,
    /// By request counter modulo its length, a power of two.
    track: Box<[Track]>,
    /// READ and atomic requests sent and not answered.
    pub(super) rd_out: u8,
    pub(super) retries_left: u8,
    pub(super) rnr_left: u8,
    /// A retry was started and nothing was acknowledged since: its further NAKs are old news.
    pub(super) retrying: bool,
    /// When the last retry began.
    pub(super) went_back: Instant,
    /// The stream of READ responses at `una_psn` may start in its middle: we asked for a remainder.
    pub(super) resumed: bool,
    /// A READ response that opens a stream has arrived, and not its last.
    pub(super) in_stream: bool,
    pub(super) ack_deadline: Option<Instant>,
    pub(super) rnr_until: Option<Instant>,
    /// Packets sent since one asked for an ACK, and what they are charged.
    pub(super) unasked: u32,
    pub(super) unasked_bytes: u64,
    /// One past the last packet in flight that asked for an ACK; not beyond `una_psn` if none did.
    pub(super) asked: Psn,
    /// Payload acknowledged since congestion control was told.
    pub(super) acked_bytes: u32,
    /// Bytes in flight, as charged to the peer's window and to our own.
    pub(super) charged: [u64; 2],
    /// Packets in flight, of those that are charged to the peer's window.
    pub(super) flying: u32,
    /// The peer tells how many receives it has: requests from `credit_end` on find none, as far as it has said.
    pub(super) is_credited: bool,
    pub(super) credit_end: u32,
    /// A request that failed here, to be reported when all before it are done.
    pub(super) failed: Option<(u32, WcStatus)>,
    /// The event of state SQD is still to come.
    pub(super) drain_event: bool,
    pub(super) cc: Controller,
    /// Most bits per second, whatever congestion control says; 0: no limit.
    pub(super) limit: u64,
    pub(super) pace: Pace,
    /// The window in which the last packet that could have been sent found too little room, by the index
    /// into [`charged`](Self::charged); and those where it waits in line, and where it has its turn.
    pub(super) no_room: Option<usize>,
    pub(super) in_line: [bool; 2],
    pub(super) woken: [bool; 2],
    /// It has sent something in this turn.
    pub(super) served: bool,
}

impl Requester {
    pub(super) fn new(depth: u32, cc: Option<Box<dyn CongestionControl>>) -> Self {
        let cc = cc.map_or(Controller::Fixed(Fixed::unlimited()), Controller::custom);
        let pace = Pace::new(cc.peek().pacing_rate());
        Self {
            una: 0,
            cur: 0,
            cur_packet: 0,
            fresh: 0,
            una_psn: Psn::default(),
            next_psn: Psn::default(),
            top_psn: Psn::default(),
            track: vec![Track::default(); depth.next_power_of_two() as usize].into(),
            rd_out: 0,
            retries_left: 0,
            rnr_left: 0,
            retrying: false,
            went_back: Instant::ZERO,
            resumed: false,
            in_stream: false,
            ack_deadline: None,
            rnr_until: None,
            unasked: 0,
            unasked_bytes: 0,
            asked: Psn::default(),
            acked_bytes: 0,
            charged: [0; 2],
            flying: 0,
            is_credited: false,
            credit_end: 0,
            failed: None,
            drain_event: false,
            cc,
            limit: 0,
            pace,
            no_room: None,
            in_line: [false; 2],
            woken: [false; 2],
            served: false,
        }
    }

    /// At the transition to RTS.
    pub(super) fn start(&mut self, psn: Psn, head: u32) {
        self.una = head;
        self.cur = head;
        self.cur_packet = 0;
        self.fresh = head;
        self.una_psn = psn;
        self.next_psn = psn;
        self.top_psn = psn;
        self.rd_out = 0;
        self.retrying = false;
        self.resumed = false;
        self.in_stream = false;
        self.ack_deadline = None;
        self.rnr_until = None;
        self.unasked = 0;
        self.unasked_bytes = 0;
        self.asked = psn;
        self.acked_bytes = 0;
        self.pace = Pace::new(self.pacing_rate());
        self.forget_probes();
        self.is_credited = false;
        self.failed = None;
        self.drain_event = false;
    }

    pub(super) fn track(&self, index: u32) -> Track {
        self.track[index as usize & (self.track.len() - 1)]
    }

    pub(super) fn track_mut(&mut self, index: u32) -> &mut Track {
        let mask = self.track.len() - 1;
        &mut self.track[index as usize & mask]
    }

    /// PSN of the packet at the cursor.
    pub(super) fn cursor(&self) -> Psn {
        if self.cur == self.fresh {
            self.next_psn
        } else {
            self.track(self.cur).first.offset(self.cur_packet)
        }
    }

    /// Whether a PSN does not lie between the oldest that is unacknowledged and the last that was sent.
    pub(super) fn is_outside(&self, psn: Psn) -> bool {
        steps(self.una_psn, psn) >= steps(self.una_psn, self.top_psn)
    }

    /// How many PSNs from `psn` on may be under way where selective repeat is in use.
    pub(super) fn left_of_board(&self, psn: Psn) -> u32 {
        WINDOW.saturating_sub(steps(self.una_psn, psn))
    }

    /// The how manieth packet from now on asks for an ACK there, at the latest.
    pub(super) fn unasked_of_board(&self) -> u32 {
        (WINDOW / 4).saturating_sub(self.unasked)
    }

    /// Whether something is in flight.
    pub(super) fn in_flight(&self) -> bool {
        self.una_psn != self.cursor()
    }

    /// Bits per second at which packets leave; `None`: as they come.
    pub(super) fn pacing_rate(&self) -> Option<u64> {
        let rate = match &self.cc {
            Controller::Fixed(_) => None,
            Controller::Custom(custom) => custom.algorithm.pacing_rate(),
        };
        match (rate, self.limit) {
            (rate, 0) => rate,
            (rate, limit) => Some(rate.map_or(limit, |rate| rate.min(limit))),
        }
    }

    /// Round trips under way are not measured: something of them is sent again.
    pub(super) fn forget_probes(&mut self) {
        if let Controller::Custom(custom) = &mut self.cc {
            custom.probes = Probes::NONE;
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let cc = match &self.cc {
            Controller::Fixed(_) => None,
            custom @ Controller::Custom(_) => custom.peek().next_timer(),
        };
        let paced = self.pace.deadline();
        let or_never = |t: Option<Instant>| t.unwrap_or(Instant::FAR_FUTURE);
        let next = or_never(self.ack_deadline).min(or_never(self.rnr_until));
        let next = next.min(or_never(cc)).min(paced);
        (next != Instant::FAR_FUTURE).then_some(next)
    }
}

/// Whether it is answered by more than an ACK.
pub(super) const fn is_read_class(op: SendOp) -> bool {
    matches!(op, SendOp::Read | SendOp::AtomicWrite | SendOp::Flush) || is_atomic(op)
}

pub(super) const fn is_atomic(op: SendOp) -> bool {
    matches!(op, SendOp::CompareSwap | SendOp::FetchAdd)
}

/// Whether its local side is one word.
const fn moves_a_word(op: SendOp) -> bool {
    matches!(op, SendOp::AtomicWrite) || is_atomic(op)
}

impl Qp {
    /// Whether [`send_requests`](Self::send_requests) may find something.
    pub(super) fn may_request(&self) -> bool {
        let end = match (self.state, self.req.failed) {
            // What is before a request that failed here must still be brought to its end. (It may have failed when it was
            // to be sent again, with others begun behind it.)
            (QpState::Rts | QpState::Sqd, Some((failed, _))) => {
                let age = |i: u32| i.wrapping_sub(self.req.una);
                if age(self.req.cur) >= age(failed) {
                    return false;
                }
                failed
            }
            (QpState::Rts, None) => self.sq.head(),
            (QpState::Sqd, None) => self.req.fresh,
            _ => return false,
        };
        self.req.rnr_until.is_none() && self.req.cur != end
    }

    /// Sends request packets until there is nothing to send, no room, or the quantum is spent.
    pub(super) fn send_requests(&mut self, c: &mut Common, batch: &mut Batch<'_>) -> Turn {
        if self.kind == QpType::Ud {
            return self.send_datagrams(c, batch);
        }
        loop {
            let Some(plan) = self.plan(c) else { return Turn::Idle };
            if self.budget[REQUESTS] == 0 {
                return Turn::Spent;
            }
            let size = PacketBuilder::size(plan.opcode, plan.payload);
            if !batch.takes(&self.path, size) {
                return Turn::Full;
            }
            let mut built = self.build(c, batch, &plan, size);
            if built.is_ok() {
                c.observe(|| plan.gathered(self.qpn));
                self.budget[REQUESTS] -= 1;
                if self.kind.is_reliable() {
                    self.sent(c, &plan, size);
                    match plan.opcode.info().position {
                        Position::Middle => built = self.send_middles(c, batch, &plan, size),
                        Position::Only => self.send_row(c, batch, &plan, size),
                        Position::First | Position::Last => {}
                    }
                } else {
                    self.left(c, &plan, size);
                }
            }
            if built.is_err() {
                // The request fails in its turn, when those before it are done.
                self.fail_locally(c, self.req.cur, WcStatus::LocProt);
                return Turn::Idle;
            }
        }
    }

    /// The packet at the cursor, if it may be sent now. Begins requests, and carries out what is done
    /// here, on the way.
    fn plan(&mut self, c: &mut Common) -> Option<Plan> {
        self.req.no_room = None;
        if !self.may_request() {
            return None;
        }
        loop {
            if self.req.failed.is_some_and(|(failed, _)| failed == self.req.cur) {
                return None;
            }
            if self.req.cur == self.req.fresh {
                if !self.begin(c) {
                    return None;
                }
                // What is done here is done already, and the cursor behind it.
                continue;
            }
            let track = self.req.track(self.req.cur);
            if self.req.cur_packet < track.packets {
                return self.plan_packet(c, track);
            }
            self.req.cur = self.req.cur.wrapping_add(1);
            self.req.cur_packet = 0;
        }
    }

    /// Begins the next request: gives it PSNs, or carries it out if it is a local one. `false`: none
    /// there, or it must wait.
    fn begin(&mut self, c: &mut Common) -> bool {
        let index = self.req.fresh;
        if self.state != QpState::Rts {
            return false;
        }
        let Some((wqe, words)) = self.sq.get(index) else { return false };
        let fenced = wqe.flags.contains(SendFlags::FENCE) && self.req.rd_out > 0;
        let mut track = Track { first: self.req.next_psn, packets: 0, chunk: 1 };
        match wqe.op {
            op if !self.kind.has(op) => {
                return self.fail_beginning(c, index, track, WcStatus::LocQpOp);
            }
            SendOp::LocalInv => {
                // IBTA 10.6.5.1: after all that was posted before.
                if self.req.una != index {
                    return false;
                }
                if c.mrs.invalidate(self.pd, self.qpn, wqe.rkey).is_err() {
                    return self.fail_beginning(c, index, track, WcStatus::LocQpOp);
                }
            }
            SendOp::BindMw => {
                if fenced {
                    return false;
                }
                let bound = read_bind(words).is_some_and(|b| {
                    let bind = Bind {
                        pd: self.pd,
                        qpn: self.qpn,
                        mw: b.mw,
                        new_rkey: b.new_rkey,
                        mr: b.mr,
                        addr: b.addr,
                        len: b.len,
                        access: b.access,
                        kind: b.kind,
                    };
                    c.mrs.bind(&bind).is_ok()
                });
                if !bound {
                    return self.fail_beginning(c, index, track, WcStatus::MwBind);
                }
            }
            _ if wqe.length > MAX_MSG || moves_a_word(wqe.op) && wqe.length != 8 => {
                return self.fail_beginning(c, index, track, WcStatus::LocLen);
            }
            SendOp::Send | SendOp::SendImm | SendOp::SendInv | SendOp::Write | SendOp::WriteImm => {
                if fenced {
                    return false;
                }
                track.packets = self.mtu.packets(wqe.length);
            }
            SendOp::Read
            | SendOp::CompareSwap
            | SendOp::FetchAdd
            | SendOp::AtomicWrite
            | SendOp::Flush => {
                if fenced {
                    return false;
                }
                if self.set.max_rd_atomic == 0 {
                    return self.fail_beginning(c, index, track, WcStatus::LocQpOp);
                }
                if wqe.op == SendOp::Read {
                    track.packets = self.mtu.packets(wqe.length);
                    track.chunk = self.read_chunk(c, track.packets);
                } else {
                    track.packets = 1;
                }
            }
        }
        let span = steps(self.req.una_psn, self.req.next_psn);
        if span + track.packets > MAX_SPAN {
            return false;
        }
        c.observe(|| {
            let (wqe, words) = self.sq.get(index)?;
            Some(NicEvent::Fetched {
                qpn: self.qpn.raw(),
                wqe: WqeBrief::new(index, wqe, words),
                first_psn: track.first.raw(),
                psns: track.packets,
                per_request: track.chunk,
            })
        });
        *self.req.track_mut(index) = track;
        self.req.next_psn = track.first.offset(track.packets);
        self.req.fresh = index.wrapping_add(1);
        if track.packets == 0 {
            self.retire_local(c);
        }
        true
    }

    /// Response packets that one READ request asks for: all of them, unless our own socket could not hold
    /// the answer. Then two requests fit, so that one is answered while the next is under way.
    fn read_chunk(&self, c: &Common, packets: u32) -> u32 {
        let Some((_, to_us)) = self.windows else { return packets };
        let fits = c.windows.limit(to_us) / self.unit();
        if u64::from(packets) <= fits {
            return packets;
        }
        u32::try_from(fits / 2).unwrap_or(u32::MAX).max(2)
    }

    /// A request failed before it was sent: it takes its place in the queue, to be reported in order.
    fn fail_beginning(
        &mut self,
        c: &mut Common,
        index: u32,
        track: Track,
        status: WcStatus,
    ) -> bool {
        *self.req.track_mut(index) = track;
        self.req.fresh = index.wrapping_add(1);
        self.fail_locally(c, index, status);
        false
    }

    /// Notes that a request failed on this side. Those before it complete first; nothing more is sent.
    pub(super) fn fail_locally(&mut self, c: &mut Common, index: u32, status: WcStatus) {
        // Of several the oldest counts: one that was sent already may fail later, when it is made anew for a retry.
        let age = |i: u32| i.wrapping_sub(self.req.una);
        if self.req.failed.is_none_or(|(other, _)| age(index) < age(other)) {
            self.req.failed = Some((index, status));
        }
        self.report_failed(c);
    }

    /// Reports the failed request, if all before it are done.
    pub(super) fn report_failed(&mut self, c: &mut Common) {
        if let Some((index, status)) = self.req.failed
            && index == self.req.una
        {
            self.fail_oldest(c, status);
        }
    }

    /// In SQD, raises the event when all that was begun is done.
    pub(super) fn check_drained(&mut self, c: &mut Common) {
        if self.state == QpState::Sqd && self.req.drain_event && self.req.una == self.req.fresh {
            self.req.drain_event = false;
            c.event(AsyncEvent::SqDrained { qpn: self.qpn.raw() });
        }
    }

    /// Whether a send queue in SQD still has requests under way.
    pub(crate) fn is_draining(&self) -> bool {
        self.state == QpState::Sqd && self.req.una != self.req.fresh
    }

    /// Whether READs or atomics of ours wait for their answer.
    pub(crate) fn has_reads_out(&self) -> bool {
        self.req.rd_out > 0
    }

    /// The transition to RTS (from RTR).
    pub(crate) fn start_requester(&mut self) {
        self.req.start(Psn::new(self.set.sq_psn), self.sq.tail());
        self.set_up_board();
        self.reload_retries();
    }

    /// Begins to count anew: there was progress, or the limits were changed.
    pub(crate) fn reload_retries(&mut self) {
        self.req.retries_left = self.set.retry_cnt;
        self.req.rnr_left = self.set.rnr_retry;
    }

    /// The transition to SQD.
    pub(crate) fn start_drain(&mut self, c: &mut Common) {
        self.req.drain_event = self.set.sqd_notify;
        self.check_drained(c);
    }

    /// PSN of the next packet, as `query` tells it.
    pub(crate) fn sq_psn(&self) -> Psn {
        self.req.next_psn
    }

    /// The limit that its owner has set, in kbit/s; 0: none.
    pub(crate) fn rate_limit(&self) -> u32 {
        u32::try_from(self.req.limit / 1000).unwrap_or(u32::MAX)
    }

    /// Limits it to so many kbit/s; 0: no limit.
    pub(crate) fn set_rate_limit(&mut self, now: Instant, kilobits: u32) {
        self.req.limit = u64::from(kilobits) * 1000;
        self.follow(now);
    }

    /// What its congestion control has come to.
    pub(crate) fn congestion(&self, now: Instant) -> State {
        let state = self.req.cc.peek().state(now);
        State { rate: self.req.pacing_rate(), ..state }
    }

    /// A CNP arrived. `false`: nothing is sent that could be slowed.
    pub(crate) fn handle_cnp(&mut self, c: &Common) -> bool {
        if !matches!(self.state, QpState::Rts | QpState::Sqd) {
            return false;
        }
        self.tell(c.now, |cc| cc.on_cnp(c.now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_a_read() {
        let t = Track { first: Psn::new(7), packets: 10, chunk: 4 };
        assert_eq!([0, 3, 4, 7, 8, 9].map(|p| t.chunk_end(p)), [4, 4, 8, 8, 10, 10]);
    }
}
