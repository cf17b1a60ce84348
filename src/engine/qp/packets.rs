//! Request packets: what the one at the cursor is, whether it may leave now, and its bytes.

use super::requester::{Controller, Track, is_read_class};
use super::retry::ack_timeout;
use super::seals::REQUEST;
use super::{Qp, REQUESTS};
use crate::engine::batch::Batch;
use crate::engine::common::Common;
use crate::engine::counters::Counter;
use crate::engine::trace::NicEvent;
use crate::engine::window::PACKET_CHARGE;
use crate::mem::{Access, AccessError, LocalKey, PdId};
use crate::queue::wqe::{read_inline, sges};
use crate::queue::{SendFlags, SendOp, SendWqe};
use crate::wire::Opcode;
use crate::wire::headers::{AtomicEth, Ext, Feth, Ieth, ImmDt, Reth};
use crate::wire::num::{Psn, Qpn, Rkey};
use crate::wire::opcode::{Headers, Operation, Position, Tail, Transport};
use crate::wire::packet::PacketBuilder;

/// Index into what the requester has charged to windows.
pub(super) const TO_PEER: usize = 0;
pub(super) const TO_US: usize = 1;

/// A packet that could be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) opcode: Opcode,
    pub(super) psn: Psn,
    /// PSNs that it takes.
    pub(super) psns: u32,
    /// Where its payload starts in the message.
    pub(super) offset: usize,
    pub(super) payload: usize,
    /// Length that its header tells of: of the message, or of the part of a READ that is asked for.
    dma_len: u32,
    pub(super) ack_req: bool,
    pub(super) se: bool,
    pub(super) charge: u64,
    window: usize,
    /// A READ or atomic that was not sent before.
    takes_credit: bool,
}

impl Plan {
    /// What stands behind the BTH. (The opcode says which of it.)
    pub(super) fn ext(&self, wqe: &SendWqe) -> Ext {
        let reth = Reth { va: wqe.remote_addr, rkey: wqe.rkey, dma_len: self.dma_len };
        let atomic = |swap_add, compare| {
            let eth = AtomicEth { va: wqe.remote_addr, rkey: wqe.rkey, swap_add, compare };
            Ext { atomic: Some(eth), ..Ext::default() }
        };
        match wqe.op {
            SendOp::CompareSwap => atomic(wqe.swap, wqe.compare_add),
            SendOp::FetchAdd => atomic(wqe.compare_add, 0),
            SendOp::Read => {
                let va = reth.va.wrapping_add(self.offset as u64);
                Ext { reth: Some(Reth { va, ..reth }), ..Ext::default() }
            }
            SendOp::Flush => {
                let [.., feth] = wqe.imm_or_inv.to_be_bytes();
                let feth = Feth { sel: feth >> 4 & 3, plt: feth & 0xf };
                Ext { feth: Some(feth), reth: Some(reth), ..Ext::default() }
            }
            _ => Ext {
                reth: Some(reth),
                immdt: Some(ImmDt(wqe.imm_or_inv)),
                ieth: Some(Ieth { rkey: Rkey(wqe.imm_or_inv) }),
                ..Ext::default()
            },
        }
    }

    /// What an observer is told of its payload.
    pub(super) fn gathered(&self, qpn: Qpn) -> Option<NicEvent> {
        let Self { psn, offset, payload: bytes, .. } = *self;
        (bytes > 0).then(|| NicEvent::Gathered { qpn: qpn.raw(), psn: psn.raw(), offset, bytes })
    }
}

/// What is known of the receive that a packet needs.
enum Credit {
    /// There is one, or none is needed.
    There,
    /// The peer has not told of one: the packet goes alone, and asks for an ACK, and with it for news.
    Unknown,
    /// One that asks is under way.
    Asked,
}

/// Charge of packets `from..to` of a message of `len` bytes.
pub(super) fn charge(len: u32, mtu: usize, from: u32, to: u32) -> u64 {
    let bytes = |packet: u32| (u64::from(packet) * mtu as u64).min(u64::from(len));
    bytes(to) - bytes(from) + u64::from(to - from) * PACKET_CHARGE
}

impl Qp {
    pub(super) fn plan_packet(&mut self, c: &mut Common, track: Track) -> Option<Plan> {
        let mut plan = self.at_cursor(track)?;
        if plan.takes_credit && self.req.rd_out >= self.set.max_rd_atomic {
            return None;
        }
        if !self.kind.is_reliable() {
            // Nothing comes back that could tell of room or be asked for.
            plan.ack_req = false;
            return (!self.is_paced(c)).then_some(plan);
        }
        if self.req.is_credited {
            match self.credit() {
                Credit::There => {}
                Credit::Unknown => plan.ack_req = true,
                Credit::Asked => return None,
            }
        }
        if !self.has_room(c, &mut plan) {
            return None;
        }
        Some(plan)
    }

    /// Whether the packet at the cursor finds a receive, as far as the peer has told (IBTA 9.7.7.2).
    #[cold]
    fn credit(&self) -> Credit {
        let op = self.sq.get(self.req.cur).map(|(wqe, _)| wqe.op);
        let takes_receive =
            matches!(op, Some(SendOp::Send | SendOp::SendImm | SendOp::SendInv | SendOp::WriteImm));
        let is_beyond = self.req.cur.wrapping_sub(self.req.credit_end).cast_signed() >= 0;
        // What is under way may have left before the peer said so, and ask for nothing.
        let is_asked = self.req.asked.distance_from(self.req.una_psn) > 0;
        match (takes_receive && is_beyond, self.req.in_flight() && is_asked) {
            (false, _) => Credit::There,
            (true, false) => Credit::Unknown,
            (true, true) => Credit::Asked,
        }
    }

    /// The packet at the cursor, whether or not it may leave. (In line here, and once more where selective repeat needs
    /// it: as a function of its own it costs every packet something.)
    #[inline(always)]
    pub(super) fn at_cursor(&self, track: Track) -> Option<Plan> {
        let (wqe, _) = self.sq.get(self.req.cur)?;
        let packet = self.req.cur_packet;
        let mtu = self.mtu.bytes();
        let psn = track.first.offset(packet);
        let mut plan = Plan {
            opcode: Opcode::RC_READ_REQUEST,
            psn,
            psns: 1,
            offset: packet as usize * mtu,
            payload: 0,
            dma_len: wqe.length,
            ack_req: true,
            se: false,
            charge: PACKET_CHARGE,
            window: TO_PEER,
            takes_credit: false,
        };
        if !is_read_class(wqe.op) {
            self.plan_data(&mut plan, wqe, track)?;
            return Some(plan);
        }
        plan.takes_credit = self.req.is_outside(psn);
        let operation = match wqe.op {
            SendOp::Read => {
                let end = track.chunk_end(packet);
                plan.psns = end - packet;
                plan.window = TO_US;
                plan.charge = charge(wqe.length, mtu, packet, end);
                let bytes = (end as usize * mtu).min(wqe.length as usize) - plan.offset;
                plan.dma_len = u32::try_from(bytes).unwrap_or(u32::MAX);
                return Some(plan);
            }
            SendOp::AtomicWrite => {
                plan.payload = wqe.length as usize;
                plan.charge = charge(wqe.length, mtu, 0, 1);
                Operation::AtomicWrite
            }
            SendOp::Flush => {
                plan.dma_len = u32::try_from(wqe.compare_add).unwrap_or(u32::MAX);
                Operation::Flush
            }
            SendOp::CompareSwap => Operation::CompareSwap,
            _ => Operation::FetchAdd,
        };
        plan.opcode = Opcode::compose(Transport::Rc, operation, Position::Only, Tail::Plain)?;
        Some(plan)
    }

    /// A packet of a SEND or WRITE.
    #[inline(always)]
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
        plan.opcode = Opcode::compose(self.kind.transport(), operation, position, tail)?;
        plan.payload = (wqe.length as usize - plan.offset).min(self.mtu.bytes());
        plan.charge = charge(wqe.length, self.mtu.bytes(), packet, packet + 1);
        // SE means something only where a receive completes.
        plan.se = last
            && wqe.flags.contains(SendFlags::SOLICITED)
            && (operation == Operation::Send || tail == Tail::Imm);
        plan.ack_req = last;
        Some(())
    }

    /// Whether window and pace let the packet go. Says how it is woken if not, and whether the packet asks
    /// for an ACK.
    fn has_room(&mut self, c: &mut Common, plan: &mut Plan) -> bool {
        let Some((to_peer, to_us)) = self.windows else { return false };
        let mut full = false;
        let cwnd = match &self.req.cc {
            Controller::Fixed(_) => None,
            Controller::Custom(custom) => {
                if custom.board.is_some() {
                    let left = self.req.left_of_board(plan.psn);
                    full = left == 0;
                    plan.ack_req |= self.req.unasked_of_board() <= 1;
                }
                custom.algorithm.cwnd()
            }
        };
        let paced = self.req.pace.holds(c.now, c.config.pacing_burst);
        let which = plan.window;
        let in_flight = self.req.charged[TO_PEER];
        // An ACK comes back for each quarter of what may be in flight, or at least that often.
        plan.ack_req |= self.req.unasked + 1 >= c.config.ack_every
            || self.req.unasked_bytes + plan.charge >= c.windows.limit(to_peer) / 4;
        if let Some(cwnd) = cwnd.map(u64::from) {
            // It is told of payload alone.
            let with = |charged: u64, packets: u32| {
                charged.saturating_sub(u64::from(packets) * PACKET_CHARGE) + plan.payload as u64
            };
            plan.ack_req |= with(self.req.unasked_bytes, self.req.unasked) >= cwnd / 4;
            full |= which == TO_PEER && in_flight > 0 && with(in_flight, self.req.flying) > cwnd;
        }
        let id = if which == TO_US { to_us } else { to_peer };
        let short = !c.windows.has_room(id, plan.charge, self.unit());
        let behind = !self.req.woken[which] && c.windows.has_waiters(id);
        if short || behind || full {
            // Room comes from ACKs. If none was asked for, because there was more room when the packets
            // in flight were sent, one more goes and asks.
            let asked = self.req.asked.distance_from(self.req.una_psn) > 0;
            if which == TO_PEER && in_flight > 0 && !asked {
                plan.ack_req = true;
                self.req.pace.hold(paced, c.config.pacing_burst);
                return !paced;
            }
            if (short || behind) && !self.req.in_line[which] {
                // Who was woken for too little room keeps its place; who has used it has had its turn.
                let in_front = self.req.woken[which] && !self.req.served;
                c.windows.wait(id, self.handle.slot, in_front);
                self.req.in_line[which] = true;
            }
            self.req.no_room = short.then_some(which);
            return false;
        }
        self.req.pace.hold(paced, c.config.pacing_burst);
        !paced
    }

    #[inline(always)]
    pub(super) fn build(
        &mut self,
        c: &Common,
        batch: &mut Batch<'_>,
        plan: &Plan,
        size: usize,
    ) -> Result<(), AccessError> {
        let mut bth = self.bth(plan.opcode, plan.psn);
        bth.ack_req = plan.ack_req;
        bth.se = plan.se;
        let ident = batch.ident();
        // It is there: the plan was made from it.
        let Some((wqe, words)) = self.sq.get(self.req.cur) else { return Ok(()) };
        let bth = bth.with_pad_for(plan.payload).emit();
        let mut builder = PacketBuilder::behind(&bth, batch.slot(size), plan.opcode, plan.payload);
        if plan.opcode.info().headers != Headers::empty() {
            builder.put_ext(plan.opcode, &plan.ext(wqe));
        }
        let mut there = true;
        if plan.payload > 0 {
            let to = builder.payload_mut();
            there = gather(c, &mut None, self.pd, wqe, words, plan.offset, to)?;
        }
        let size = if c.config.rxe_flush && wqe.op == SendOp::Flush && !c.config.elide {
            builder.finish_rxe_flush(&self.ip.with_ident(ident))
        } else {
            self.seal(c, REQUEST, builder, ident, there)
        };
        batch.commit(&self.path, size, self.handle.as_u64());
        Ok(())
    }

    /// Sends more packets like `plan`, which is from the middle of a message and has just left: as many as
    /// would each be planned in the same way and leave at once without asking for an ACK. What they need is
    /// looked up once for all of them.
    #[inline(never)]
    pub(super) fn send_middles(
        &mut self,
        c: &mut Common,
        batch: &mut Batch<'_>,
        plan: &Plan,
        size: usize,
    ) -> Result<(), AccessError> {
        let most = self.middles(c, plan).min(batch.more(size));
        let is_steered = self.is_steered();
        let horizon = c.now + c.config.pacing_burst;
        let (mut plan, mut sent) = (Plan { ack_req: false, ..*plan }, 0);
        let mut built = Ok(());
        while sent < most {
            if self.req.pace.is_beyond(horizon) {
                break;
            }
            plan.psn = plan.psn.offset(1);
            plan.offset += plan.payload;
            built = self.build(c, batch, &plan, size);
            if built.is_err() {
                break;
            }
            c.observe(|| plan.gathered(self.qpn));
            sent += 1;
            if is_steered {
                self.charge(c, size + self.path.header_len());
            }
        }
        let (r, charge) = (&mut self.req, u64::from(sent) * plan.charge);
        self.budget[REQUESTS] -= sent;
        r.cur_packet += sent;
        r.top_psn = r.top_psn.offset(sent);
        r.unasked += sent;
        r.unasked_bytes += charge;
        r.charged[TO_PEER] += charge;
        r.flying += sent;
        if let Some((to_peer, _)) = self.windows {
            c.windows.charge(to_peer, charge);
        }
        built
    }

    /// How many packets like `plan`, which has just left, would follow it without another thought.
    fn middles(&self, c: &Common, plan: &Plan) -> u32 {
        let r = &self.req;
        let Some((to_peer, _)) = self.windows else { return 0 };
        let bound = match &r.cc {
            Controller::Fixed(_) => u32::MAX,
            Controller::Custom(custom) if custom.algorithm.cwnd().is_some() => return 0,
            Controller::Custom(custom) if custom.board.is_some() => {
                let unasked = r.unasked_of_board().saturating_sub(1);
                r.left_of_board(plan.psn.offset(1)).min(unasked)
            }
            Controller::Custom(_) => u32::MAX,
        };
        let again = r.top_psn != plan.psn.offset(1);
        let behind = !r.woken[TO_PEER] && c.windows.has_waiters(to_peer);
        if again || behind || r.is_credited {
            return 0;
        }
        // The next packet that is not in the middle, and the next one that asks for an ACK, end it.
        let left = (r.track(r.cur).packets - r.cur_packet).saturating_sub(1);
        let unasked = c.config.ack_every.saturating_sub(r.unasked + 1);
        let quarter = (c.windows.limit(to_peer) / 4).saturating_sub(r.unasked_bytes + 1);
        let room = c.windows.room(to_peer, self.unit()).min(quarter) / plan.charge;
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        left.min(unasked).min(room).min(self.budget[REQUESTS]).min(bound)
    }

    /// Bookkeeping after a packet went into the batch.
    pub(super) fn sent(&mut self, c: &mut Common, plan: &Plan, size: usize) {
        let r = &mut self.req;
        let end = plan.psn.offset(plan.psns);
        if !r.is_outside(plan.psn) {
            c.counters.count(Counter::RetransmittedPkts);
        } else if let Controller::Custom(custom) = &mut r.cc
            && plan.ack_req
            // What answers it waits behind all answers that are still due.
            && r.rd_out == 0
        {
            custom.probes.add(plan.psn.offset(1), c.now);
        }
        if r.is_outside(end) {
            r.top_psn = end;
        }
        if plan.takes_credit {
            r.rd_out += 1;
        }
        r.served = true;
        r.cur_packet += plan.psns;
        if plan.ack_req {
            (r.unasked, r.unasked_bytes, r.asked) = (0, 0, end);
        } else {
            r.unasked += 1;
            r.unasked_bytes += plan.charge;
        }
        r.charged[plan.window] += plan.charge;
        r.flying += u32::from(plan.window == TO_PEER);
        if r.ack_deadline.is_none() {
            r.ack_deadline = ack_timeout(self.set.timeout).map(|t| c.now + t);
        }
        if let Some((to_peer, to_us)) = self.windows {
            c.windows.charge(if plan.window == TO_US { to_us } else { to_peer }, plan.charge);
        }
        self.pace(c, size + self.path.header_len());
    }
}

/// Collects payload from the buffers of a request. `false`: what could be collected is left where it is. `key`: the one
/// that was used last, where that is kept.
#[inline(always)]
pub(super) fn gather<'c>(
    c: &'c Common,
    key: &mut Option<LocalKey<'c>>,
    pd: PdId,
    wqe: &SendWqe,
    words: &[u64],
    offset: usize,
    mut dst: &mut [u8],
) -> Result<bool, AccessError> {
    if wqe.flags.contains(SendFlags::INLINE) {
        read_inline(words, offset, dst);
        return Ok(true);
    }
    let there = !c.config.elide || wqe.op == SendOp::AtomicWrite;
    let mut skip = offset;
    for sge in sges(words, wqe.num_sge) {
        let len = sge.length as usize;
        if skip >= len {
            skip -= len;
            continue;
        }
        let (now, rest) = dst.split_at_mut((len - skip).min(dst.len()));
        let known = match *key {
            Some(key) if key.is(sge.lkey) => key,
            _ => *key.insert(c.mrs.local_key(pd, sge.lkey, Access::empty())?),
        };
        let source = known.slice(&sge)?;
        if there {
            source.read_into(skip, now);
        }
        dst = rest;
        skip = 0;
        if dst.is_empty() {
            break;
        }
    }
    Ok(there)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_add_up() {
        let whole = charge(5000, 1024, 0, 5);
        assert_eq!(whole, 5000 + 5 * PACKET_CHARGE);
        assert_eq!((0..5).map(|p| charge(5000, 1024, p, p + 1)).sum::<u64>(), whole);
        assert_eq!(charge(0, 1024, 0, 1), PACKET_CHARGE);
    }
}
