//! Unreliable datagrams: one packet, one message, any destination.
//!
//! *Rules* (IBTA 9.8.3, 10.2.5). Requester: each request names an address handle of its own protection domain, a
//! queue pair and a Q_Key; a Q_Key with the high bit set stands for that of the sending queue pair. A message
//! longer than the path MTU of the port is LOC_LEN_ERR. There is no window: nothing comes back that could
//! open one. A datagram to a multicast group goes to the queue pair number that stands for all. Responder:
//! after the Q_Key the receive is looked at; what finds none, or finds one too short for it and the 40 bytes
//! in front of it, is dropped and counted, and the receive stays. PSNs are written and not looked at.

use super::{Qp, REQUESTS, Turn};
use crate::engine::batch::Batch;
use crate::engine::common::Common;
use crate::engine::counters::Counter;
use crate::engine::elide::scatter_there;
use crate::engine::status::{WcOpcode, WcStatus};
use crate::engine::trace::{NicEvent, WqeBrief};
use crate::mem::AccessError;
use crate::net::{Path, RxMeta, SrcPort, ud_port};
use crate::queue::{CqeFlags, SendFlags, SendOp, SendWqe};
use crate::wire::Opcode;
use crate::wire::grh::Grh;
use crate::wire::headers::{Deth, Ext, ImmDt};
use crate::wire::icrc::IpFields;
use crate::wire::num::{Qkey, Qpn};
use crate::wire::opcode::{Operation, Position, Tail, Transport};
use crate::wire::packet::{Packet, PacketBuilder};

use super::completer::scatter_into;
use super::packets::gather;
use super::responder::Refusal;

/// A Q_Key with this bit set is controlled: programs cannot say one that is not their queue pair's.
const CONTROLLED: u32 = 1 << 31;

const SEND: Opcode = send_only(Tail::Plain);
const SEND_IMM: Opcode = send_only(Tail::Imm);

/// Only for the constants above.
const fn send_only(tail: Tail) -> Opcode {
    match Opcode::compose(Transport::Ud, Operation::Send, Position::Only, tail) {
        Some(opcode) => opcode,
        None => unreachable!(),
    }
}

impl Qp {
    /// Sends datagrams until there is nothing to send, no room, or the quantum is spent.
    pub(super) fn send_datagrams(&mut self, c: &mut Common, batch: &mut Batch<'_>) -> Turn {
        while self.may_request() {
            let Some((&wqe, _)) = self.sq.get(self.req.cur) else { break };
            if self.is_paced(c) {
                break;
            }
            if self.budget[REQUESTS] == 0 {
                return Turn::Spent;
            }
            match self.send_datagram(c, batch, &wqe) {
                Ok(true) => self.budget[REQUESTS] -= 1,
                Ok(false) => return Turn::Full,
                Err(status) => self.fail_oldest(c, status),
            }
        }
        Turn::Idle
    }

    /// Sends the datagram of a request, which is done with that. `false`: no room in the batch.
    fn send_datagram(
        &mut self,
        c: &mut Common,
        batch: &mut Batch<'_>,
        wqe: &SendWqe,
    ) -> Result<bool, WcStatus> {
        if !self.kind.has(wqe.op) {
            return Err(WcStatus::LocQpOp);
        }
        let payload = wqe.length as usize;
        if payload > c.caps.path_mtu().map_or(0, |mtu| mtu.bytes()) {
            return Err(WcStatus::LocLen);
        }
        let path = match c.ahs.get(wqe.dest) {
            Some(ah) if ah.pd == self.pd => Path { src_port: self.datagram_port(c), ..ah.path },
            _ => return Err(WcStatus::LocQpOp),
        };
        let ip = IpFields::new(path.src, path.dst, batch.ident(), true, path.src_port);
        let ip = ip.ok_or(WcStatus::LocQpOp)?;
        let opcode = if wqe.op == SendOp::SendImm { SEND_IMM } else { SEND };
        let size = PacketBuilder::size(opcode, payload);
        if !batch.takes(&path, size) {
            return Ok(false);
        }
        let qkey = if wqe.dest_qkey & CONTROLLED != 0 { self.set.qkey } else { wqe.dest_qkey };
        let ext = Ext {
            deth: Some(Deth { qkey: Qkey(qkey), src_qp: self.qpn }),
            immdt: Some(ImmDt(wqe.imm_or_inv)),
            ..Ext::default()
        };
        let psn = self.req.next_psn;
        c.observe(|| {
            let (wqe, words) = self.sq.get(self.req.cur)?;
            Some(NicEvent::Fetched {
                qpn: self.qpn.raw(),
                wqe: WqeBrief::new(self.req.cur, wqe, words),
                first_psn: psn.raw(),
                psns: 1,
                per_request: 1,
            })
        });
        let mut bth = self.bth(opcode, psn);
        bth.se = wqe.flags.contains(SendFlags::SOLICITED);
        bth.dest_qp = if path.dst.is_multicast() { Qpn::MULTICAST } else { Qpn::new(wqe.dest_qpn) };
        let mut builder = PacketBuilder::new(batch.slot(size), &bth, &ext, payload);
        let mut there = true;
        if payload > 0
            && let Some((wqe, words)) = self.sq.get(self.req.cur)
        {
            there = gather(c, &mut None, self.pd, wqe, words, 0, builder.payload_mut())
                .map_err(|_| WcStatus::LocProt)?;
            let (qpn, psn) = (self.qpn.raw(), psn.raw());
            c.observe(|| NicEvent::Gathered { qpn, psn, offset: 0, bytes: payload });
        }
        let size = c.seal(builder, &ip, there);
        batch.commit(&path, size, self.handle.as_u64());
        self.pace(c, size + path.header_len());
        let r = &mut self.req;
        let next = psn.offset(1);
        (r.next_psn, r.una_psn, r.top_psn) = (next, next, next);
        r.cur = r.cur.wrapping_add(1);
        r.fresh = r.cur;
        self.complete_oldest(c, wqe.length);
        Ok(true)
    }

    /// UDP source port of our datagrams.
    fn datagram_port(&self, c: &Common) -> u16 {
        match c.caps.src_port {
            SrcPort::Fixed(port) => port,
            SrcPort::Entropy => ud_port(self.qpn.raw()),
        }
    }

    /// A datagram for this queue pair, its ICRC checked.
    pub(crate) fn handle_datagram(&mut self, c: &mut Common, meta: &RxMeta, packet: &Packet<'_>) {
        // What is for a group has not been looked at yet.
        if !packet.pkey().matches(self.pkey) {
            return c.count(Counter::BadPkeyCntr);
        }
        if packet.deth().is_none_or(|deth| deth.qkey.0 != self.set.qkey) {
            return c.count(Counter::QkeyViolCntr);
        }
        let payload = packet.payload();
        let padded = usize::from(packet.pad_count()) == payload.len().wrapping_neg() & 3;
        let grh = Grh {
            src: meta.path.src,
            dst: meta.path.dst,
            traffic_class: meta.path.traffic_class,
            hop_limit: meta.path.hop_limit,
            flow_label: meta.path.flow_label,
        };
        let header = grh.emit(packet.datagram().len()).filter(|_| padded);
        let Some(header) = header else { return c.count(Counter::DropRefused) };
        let needed = Grh::LEN + payload.len();
        // One that is too short stays where it is, for the next datagram.
        match self.next_receive(c) {
            None => return c.count(Counter::OutOfBuffer),
            Some(length) if (length as usize) < needed => {
                return c.count(Counter::RespLocalLengthError);
            }
            Some(_) => {}
        }
        if !self.take_receive(c) {
            return c.count(Counter::OutOfBuffer);
        }
        if self.place(c, &header, packet).is_err() {
            return self.fail_here(c, WcStatus::LocProt);
        }
        self.observe_scattered(c, packet.psn(), 0, needed);
        if let Err(Refusal::Fatal(_, status)) = self.judge_receive(c) {
            return self.fail_here(c, status);
        }
        let (mut flags, mut imm) = (CqeFlags::GRH, 0);
        if let Some(immdt) = packet.immdt() {
            flags |= CqeFlags::WITH_IMM;
            imm = immdt.0;
        }
        let needed = u32::try_from(needed).unwrap_or(u32::MAX);
        self.complete_receive(c, packet, WcOpcode::Recv, needed, flags, imm);
    }

    /// Fills the receive that was taken.
    fn place(&self, c: &Common, header: &[u8], packet: &Packet<'_>) -> Result<(), AccessError> {
        let Some((_, list)) = self.rq.taken() else { return Ok(()) };
        let pd = self.receive_pd();
        scatter_into(&c.mrs, pd, list.clone(), 0, header)?;
        scatter_there(c.is_there(packet), &c.mrs, pd, list, header.len(), packet.payload())
    }
}
