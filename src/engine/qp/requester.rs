//! The requester: work requests become request packets, again if need be.
//!
//! *Owns.* Three positions in the send queue: `una`, the oldest request not completed; `cur`, the one that
//! is being sent, with the packet to send next; and `fresh`, the first that was never begun. Sending
//! moves `cur` towards `fresh`; acknowledgements move `una`; a retry (go-back-N) moves `cur` back to `una`.
//!
//! *Rules.* A request gets its PSNs when it is begun and keeps them, and its packet boundaries, through
//! all retries (IBTA 9.7.2). Nothing is stored for a retry: the packet is made anew from registered
//! memory. What is in flight is charged to a window, and released when it is acknowledged or given up.

use super::{Qp, Turn};
use crate::engine::batch::Batch;
use crate::engine::cc::{CongestionControl, Fixed, Loss};
use crate::engine::common::Common;
use crate::engine::counters::Counter;
use crate::engine::event::AsyncEvent;
use crate::engine::qp::attr::QpState;
use crate::engine::status::WcStatus;
use crate::engine::window::PACKET_CHARGE;
use crate::mem::{Access, AccessError, Bind, MrTable, PdId};
use crate::queue::wqe::{read_bind, read_inline, sges};
use crate::queue::{SendFlags, SendOp, SendWqe};
use crate::time::{Duration, Instant};
use crate::wire::Opcode;
use crate::wire::headers::{AtomicEth, Ext, Ieth, ImmDt, Reth};
use crate::wire::num::{Psn, Rkey};
use crate::wire::opcode::{Operation, Position, Tail, Transport};
use crate::wire::packet::PacketBuilder;

/// PSNs that may be unacknowledged: half of the number space, so that old and new can be told apart.
const MAX_SPAN: u32 = 1 << 23;
/// How far ahead of its pace a sender may run: enough for one segmented send at high rates.
const PACING_BURST: Duration = Duration::from_micros(20);

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
    /// One past its last PSN.
    pub(super) fn end(&self) -> Psn {
        self.first.offset(self.packets)
    }

    /// One past the last packet of the chunk that `packet` lies in.
    pub(super) fn chunk_end(&self, packet: u32) -> u32 {
        (packet / self.chunk + 1).saturating_mul(self.chunk).min(self.packets)
    }
}

/// The algorithm of a queue pair.
#[derive(Debug)]
pub(super) enum Controller {
    Fixed(Fixed),
    Custom(Box<dyn CongestionControl>),
}

impl Controller {
    pub(super) fn get(&mut self) -> &mut dyn CongestionControl {
        match self {
            Self::Fixed(fixed) => fixed,
            Self::Custom(custom) => custom.as_mut(),
        }
    }

    fn peek(&self) -> &dyn CongestionControl {
        match self {
            Self::Fixed(fixed) => fixed,
            Self::Custom(custom) => custom.as_ref(),
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
    next_psn: Psn,
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
    /// The stream of READ responses at `una_psn` may start in its middle: we asked for a remainder.
    pub(super) resumed: bool,
    /// A READ response that opens a stream has arrived, and not its last.
    pub(super) in_stream: bool,
    pub(super) ack_deadline: Option<Instant>,
    pub(super) rnr_until: Option<Instant>,
    /// Packets sent since one asked for an ACK.
    unasked: u32,
    /// Bytes in flight, as charged to the peer's window and to our own.
    pub(super) charged: [u64; 2],
    /// A request that failed here, to be reported when all before it are done.
    pub(super) failed: Option<(u32, WcStatus)>,
    /// The event of state SQD is still to come.
    pub(super) drain_event: bool,
    pub(super) cc: Controller,
    /// When the pace lets the next packet go.
    next_send: Instant,
    /// A packet waits for that, or nearly that.
    ahead: bool,
    /// The last packet that could have been sent found no room in its window.
    pub(super) no_room: bool,
}

/// Index into [`Requester::charged`].
const TO_PEER: usize = 0;
const TO_US: usize = 1;

/// A packet that could be sent.
#[derive(Clone, Copy, Debug)]
struct Plan {
    opcode: Opcode,
    psn: Psn,
    /// PSNs that it takes.
    psns: u32,
    /// Where its payload starts in the message.
    offset: u64,
    payload: usize,
    ext: Ext,
    ack_req: bool,
    se: bool,
    charge: u64,
    window: usize,
    /// A READ or atomic that was not sent before.
    takes_credit: bool,
}

impl Requester {
    pub(super) fn new(depth: u32, cc: Option<Box<dyn CongestionControl>>) -> Self {
        let cc = cc.map_or(Controller::Fixed(Fixed::unlimited()), Controller::Custom);
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
            resumed: false,
            in_stream: false,
            ack_deadline: None,
            rnr_until: None,
            unasked: 0,
            charged: [0; 2],
            failed: None,
            drain_event: false,
            cc,
            next_send: Instant::ZERO,
            ahead: false,
            no_room: false,
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
        self.failed = None;
        self.drain_event = false;
    }

    pub(super) fn track(&self, index: u32) -> Track {
        self.track[index as usize & (self.track.len() - 1)]
    }

    fn track_mut(&mut self, index: u32) -> &mut Track {
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

    /// Whether something is in flight.
    pub(super) fn in_flight(&self) -> bool {
        self.una_psn != self.cursor()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let cc = match &self.cc {
            Controller::Fixed(_) => None,
            custom @ Controller::Custom(_) => custom.peek().next_timer(),
        };
        let paced = self.ahead.then(|| self.next_send.earlier(PACING_BURST));
        [self.ack_deadline, self.rnr_until, cc, paced].into_iter().flatten().min()
    }
}

/// Charge of packets `from..to` of a message of `len` bytes.
fn charge(len: u32, mtu: usize, from: u32, to: u32) -> u64 {
    let bytes = |packet: u32| (u64::from(packet) * mtu as u64).min(u64::from(len));
    bytes(to) - bytes(from) + u64::from(to - from) * PACKET_CHARGE
}

const fn is_read_class(op: SendOp) -> bool {
    matches!(op, SendOp::Read | SendOp::CompareSwap | SendOp::FetchAdd)
}

impl Qp {
    /// Whether [`send_requests`](Self::send_requests) may find something.
    pub(super) fn may_request(&self) -> bool {
        match self.state {
            QpState::Rts => {
                self.req.rnr_until.is_none()
                    && self.req.failed.is_none()
                    && (self.req.cur != self.req.fresh || self.req.fresh != self.sq.head())
            }
            QpState::Sqd => {
                self.req.rnr_until.is_none()
                    && self.req.failed.is_none()
                    && self.req.cur != self.req.fresh
            }
            _ => false,
        }
    }

    /// Sends request packets until there is nothing to send, no room, or the quantum is spent.
    pub(super) fn send_requests(&mut self, c: &mut Common, batch: &mut Batch<'_>) -> Turn {
        loop {
            let Some(plan) = self.plan(c) else { return Turn::Idle };
            if self.budget == 0 {
                return Turn::Spent;
            }
            let size = PacketBuilder::size(plan.opcode, plan.payload);
            if !batch.takes(&self.path, size) {
                return Turn::Full;
            }
            if self.build(c, batch, &plan, size).is_err() {
                // The request fails in its turn, when those before it are done.
                self.fail_locally(c, self.req.cur, WcStatus::LocProt);
                return Turn::Idle;
            }
            self.budget -= 1;
            self.sent(c, &plan, size);
        }
    }

    /// The packet at the cursor, if it may be sent now. Begins requests, and carries out what is done
    /// here, on the way.
    fn plan(&mut self, c: &mut Common) -> Option<Plan> {
        self.req.no_room = false;
        if !self.may_request() {
            return None;
        }
        loop {
            if self.req.cur == self.req.fresh {
                if !self.begin(c) {
                    return None;
                }
                // What is done here is done already, and the cursor behind it.
                continue;
            }
            if self.req.failed.is_some() {
                return None;
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
        let wqe = *wqe;
        let fenced = wqe.flags.contains(SendFlags::FENCE) && self.req.rd_out > 0;
        let mut track = Track { first: self.req.next_psn, packets: 0, chunk: 1 };
        match wqe.op {
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
            SendOp::Flush | SendOp::AtomicWrite => {
                return self.fail_beginning(c, index, track, WcStatus::LocQpOp);
            }
            SendOp::Send | SendOp::SendImm | SendOp::SendInv | SendOp::Write | SendOp::WriteImm => {
                if fenced {
                    return false;
                }
                track.packets = packets(wqe.length, self.mtu.bytes());
            }
            SendOp::Read | SendOp::CompareSwap | SendOp::FetchAdd => {
                if fenced {
                    return false;
                }
                if self.set.max_rd_atomic == 0 {
                    return self.fail_beginning(c, index, track, WcStatus::LocQpOp);
                }
                if wqe.op == SendOp::Read {
                    track.packets = packets(wqe.length, self.mtu.bytes());
                    track.chunk = self.read_chunk(c, track.packets);
                } else {
                    track.packets = 1;
                }
            }
        }
        let span = self.req.next_psn.distance_from(self.req.una_psn).cast_unsigned();
        if span + track.packets > MAX_SPAN {
            return false;
        }
        *self.req.track_mut(index) = track;
        self.req.next_psn = track.end();
        self.req.fresh = index.wrapping_add(1);
        if track.packets == 0 {
            self.retire_local(c);
        }
        true
    }

    /// Response packets that one READ request asks for: all of them, unless our own socket could not hold
    /// the answer.
    fn read_chunk(&self, c: &Common, packets: u32) -> u32 {
        let Some((_, to_us)) = self.windows else { return packets };
        let fits = c.windows.largest(to_us) / self.unit();
        u32::try_from(fits).unwrap_or(u32::MAX).max(2).min(packets)
    }

    fn plan_packet(&mut self, c: &mut Common, track: Track) -> Option<Plan> {
        let (&wqe, _) = self.sq.get(self.req.cur)?;
        let packet = self.req.cur_packet;
        let mtu = self.mtu.bytes();
        let psn = track.first.offset(packet);
        let mut plan = Plan {
            opcode: Opcode::RC_READ_REQUEST,
            psn,
            psns: 1,
            offset: u64::from(packet) * mtu as u64,
            payload: 0,
            ext: Ext::default(),
            ack_req: true,
            se: false,
            charge: 0,
            window: TO_PEER,
            takes_credit: false,
        };
        if is_read_class(wqe.op) {
            if wqe.op == SendOp::Read {
                let end = track.chunk_end(packet);
                plan.psns = end - packet;
                plan.window = TO_US;
                plan.charge = charge(wqe.length, mtu, packet, end);
                let bytes = (u64::from(end) * mtu as u64).min(u64::from(wqe.length)) - plan.offset;
                plan.ext.reth = Some(Reth {
                    va: wqe.remote_addr.wrapping_add(plan.offset),
                    rkey: wqe.rkey,
                    dma_len: u32::try_from(bytes).unwrap_or(u32::MAX),
                });
            } else {
                let operation = match wqe.op {
                    SendOp::CompareSwap => Operation::CompareSwap,
                    _ => Operation::FetchAdd,
                };
                plan.opcode =
                    Opcode::compose(Transport::Rc, operation, Position::Only, Tail::Plain)?;
                plan.charge = PACKET_CHARGE;
                plan.ext.atomic = Some(match wqe.op {
                    SendOp::CompareSwap => AtomicEth {
                        va: wqe.remote_addr,
                        rkey: wqe.rkey,
                        swap_add: wqe.swap,
                        compare: wqe.compare_add,
                    },
                    _ => AtomicEth {
                        va: wqe.remote_addr,
                        rkey: wqe.rkey,
                        swap_add: wqe.compare_add,
                        compare: 0,
                    },
                });
            }
            plan.takes_credit = psn.distance_from(self.req.top_psn) >= 0;
            if plan.takes_credit && self.req.rd_out >= self.set.max_rd_atomic {
                return None;
            }
        } else {
            self.plan_data(&mut plan, &wqe, track)?;
        }
        if !self.has_room(c, &mut plan) {
            return None;
        }
        Some(plan)
    }

    /// A packet of a SEND or WRITE.
    fn plan_data(&self, plan: &mut Plan, wqe: &SendWqe, track: Track) -> Option<()> {
        let packet = self.req.cur_packet;
        let last = packet + 1 == track.packets;
        let position = match (packet == 0, last) {
            (true, true) => Position::Only,
            (true, false) => Position::First,
            (false, true) => Position::Last,
            (false, false) => Position::Middle,
        };
        let (operation, tail) = match wqe.op {
            SendOp::SendImm => (Operation::Send, Tail::Imm),
            SendOp::SendInv => (Operation::Send, Tail::Inv),
            SendOp::Write => (Operation::Write, Tail::Plain),
            SendOp::WriteImm => (Operation::Write, Tail::Imm),
            _ => (Operation::Send, Tail::Plain),
        };
        let tail = if last { tail } else { Tail::Plain };
        plan.opcode = Opcode::compose(Transport::Rc, operation, position, tail)?;
        plan.payload = (u64::from(wqe.length) - plan.offset).min(self.mtu.bytes() as u64) as usize;
        plan.charge = charge(wqe.length, self.mtu.bytes(), packet, packet + 1);
        plan.ext.reth = Some(Reth { va: wqe.remote_addr, rkey: wqe.rkey, dma_len: wqe.length });
        plan.ext.immdt = Some(ImmDt(wqe.imm_or_inv));
        plan.ext.ieth = Some(Ieth { rkey: Rkey(wqe.imm_or_inv) });
        // SE means something only where a receive completes.
        plan.se = last
            && wqe.flags.contains(SendFlags::SOLICITED)
            && (operation == Operation::Send || tail == Tail::Imm);
        plan.ack_req = last;
        Some(())
    }

    /// Whether window and pace let the packet go. Says how it is woken if not.
    fn has_room(&mut self, c: &mut Common, plan: &mut Plan) -> bool {
        let unit = self.unit();
        if let Some((to_peer, to_us)) = self.windows {
            let id = if plan.window == TO_US { to_us } else { to_peer };
            if !c.windows.has_room(id, plan.charge, unit) {
                c.windows.wait(id, self.handle.slot);
                self.req.no_room = true;
                return false;
            }
            // An ACK must come back before the window is used up.
            plan.ack_req |= plan.window == TO_PEER
                && !c.windows.has_room(id, plan.charge + unit, 0)
                || self.req.unasked + 1 >= c.config.ack_every;
        }
        if let Controller::Custom(cc) = &self.req.cc {
            if let Some(cwnd) = cc.cwnd() {
                let after = self.req.charged[TO_PEER] + plan.charge;
                if self.req.charged[TO_PEER] > 0 && after > u64::from(cwnd) {
                    return false;
                }
                // Nor before that one is.
                plan.ack_req |= after + unit > u64::from(cwnd);
            }
            if cc.pacing_rate().is_some() && self.req.next_send > c.now + PACING_BURST {
                self.req.ahead = true;
                return false;
            }
        }
        true
    }

    fn build(
        &mut self,
        c: &Common,
        batch: &mut Batch<'_>,
        plan: &Plan,
        size: usize,
    ) -> Result<(), AccessError> {
        let mut bth = self.bth(plan.opcode, plan.psn);
        bth.ack_req = plan.ack_req;
        bth.se = plan.se;
        let ip = self.ip.with_ident(batch.ident());
        let mut builder = PacketBuilder::new(batch.slot(size), &bth, &plan.ext, plan.payload);
        if plan.payload > 0
            && let Some((wqe, words)) = self.sq.get(self.req.cur)
        {
            gather(&c.mrs, self.pd, wqe, words, plan.offset, builder.payload_mut())?;
        }
        let size = builder.finish(&ip);
        batch.commit(&self.path, size, self.handle.as_u64());
        Ok(())
    }

    /// Bookkeeping after a packet went into the batch.
    fn sent(&mut self, c: &mut Common, plan: &Plan, size: usize) {
        let r = &mut self.req;
        let end = plan.psn.offset(plan.psns);
        if plan.psn.distance_from(r.top_psn) < 0 {
            c.counters.count(Counter::RetransmittedPkts);
        }
        if end.distance_from(r.top_psn) > 0 {
            r.top_psn = end;
        }
        if plan.takes_credit {
            r.rd_out += 1;
        }
        r.cur_packet += plan.psns;
        r.unasked = if plan.ack_req { 0 } else { r.unasked + 1 };
        r.charged[plan.window] += plan.charge;
        if r.ack_deadline.is_none() {
            r.ack_deadline = ack_timeout(self.set.timeout).map(|t| c.now + t);
        }
        if let Some((to_peer, to_us)) = self.windows {
            c.windows.charge(if plan.window == TO_US { to_us } else { to_peer }, plan.charge);
        }
        if let Controller::Custom(cc) = &mut r.cc {
            let wire = u32::try_from(size + self.path.header_len()).unwrap_or(u32::MAX);
            cc.on_send(c.now, wire);
            if let Some(rate) = cc.pacing_rate() {
                let ns = u64::from(wire) * 8 * 1_000_000_000 / rate.max(1);
                r.next_send = r.next_send.max(c.now) + Duration::from_nanos(ns);
            }
        }
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
        if self.req.failed.is_none() {
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
        if self.req.next_send <= now + PACING_BURST {
            self.req.ahead = false;
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
        self.reload_retries();
    }

    pub(super) fn reload_retries(&mut self) {
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

    /// A CNP arrived. `false`: nothing is sent that could be slowed.
    pub(crate) fn handle_cnp(&mut self, c: &Common) -> bool {
        if !matches!(self.state, QpState::Rts | QpState::Sqd) {
            return false;
        }
        self.req.cc.get().on_cnp(c.now);
        true
    }
}

/// Packets of a message.
fn packets(len: u32, mtu: usize) -> u32 {
    u32::try_from((len as usize).div_ceil(mtu)).unwrap_or(u32::MAX).max(1)
}

/// The local ACK timeout, by its code; `None` for 0, which is for ever.
pub(crate) fn ack_timeout(code: u8) -> Option<Duration> {
    (code > 0).then(|| Duration::from_nanos(4096 << code.min(31)))
}

/// Collects payload from the buffers of a request.
fn gather(
    mrs: &MrTable,
    pd: PdId,
    wqe: &SendWqe,
    words: &[u64],
    offset: u64,
    mut dst: &mut [u8],
) -> Result<(), AccessError> {
    if wqe.flags.contains(SendFlags::INLINE) {
        read_inline(words, usize::try_from(offset).unwrap_or(usize::MAX), dst);
        return Ok(());
    }
    let mut skip = offset;
    for sge in sges(words, wqe.num_sge) {
        let len = u64::from(sge.length);
        if skip >= len {
            skip -= len;
            continue;
        }
        let take = usize::try_from(len - skip).unwrap_or(usize::MAX).min(dst.len());
        let (now, rest) = dst.split_at_mut(take);
        mrs.local(pd, &sge, Access::empty())?
            .read_into(usize::try_from(skip).unwrap_or(usize::MAX), now);
        dst = rest;
        skip = 0;
        if dst.is_empty() {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn segmentation() {
        assert_eq!([0, 1, 1024, 1025, 2048].map(|n| packets(n, 1024)), [1, 1, 1, 2, 2]);
        assert_eq!(packets(1 << 31, 256), 1 << 23);
    }

    #[test]
    fn timeouts_of_the_sheet() {
        assert_eq!(ack_timeout(0), None);
        assert_eq!(ack_timeout(8), Some(Duration::from_nanos(1_048_576)));
        assert_eq!(ack_timeout(14), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(ack_timeout(31).map(|t| t.as_secs()), Some(8796));
    }

    #[test]
    fn charges_add_up() {
        let whole = charge(5000, 1024, 0, 5);
        assert_eq!(whole, 5000 + 5 * PACKET_CHARGE);
        assert_eq!((0..5).map(|p| charge(5000, 1024, p, p + 1)).sum::<u64>(), whole);
        assert_eq!(charge(0, 1024, 0, 1), PACKET_CHARGE);
    }

    #[test]
    fn chunks_of_a_read() {
        let t = Track { first: Psn::new(7), packets: 10, chunk: 4 };
        assert_eq!([0, 3, 4, 7, 8, 9].map(|p| t.chunk_end(p)), [4, 4, 8, 8, 10, 10]);
    }
}
