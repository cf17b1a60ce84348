//! Answers: READ responses, atomic acknowledgements, ACKs and NAKs become packets.
//!
//! *Rules.* Answers leave in the order of their PSNs (IBTA 9.7.5.1): those of READs and atomics first,
//! then the ACK or NAK that waits behind them. A NAK is counted when it leaves: one that is overtaken by what it
//! asks for is never sent. READ responses are made from memory packet by packet,
//! when they leave, at the pace of congestion control; a key that has died by then ends the answer with a NAK, never with bytes that were
//! not read.

use super::annex::Advance;
use super::responder::{Ack, Resource, What};
use super::seals::RESPONSE;
use super::selective::REPORT;
use super::{ANSWERS, Qp, Turn};
use crate::engine::batch::Batch;
use crate::engine::common::Common;
use crate::engine::counters::Counter;
use crate::engine::status::WcStatus;
use crate::mem::Access;
use crate::wire::headers::{AtomicAckEth, Ext};
use crate::wire::num::Psn;
use crate::wire::opcode::{Operation, Position, Tail, Transport};
use crate::wire::packet::PacketBuilder;
use crate::wire::{Aeth, NakCode, Opcode, Syndrome};

const FIRST: Opcode = read_response(Position::First);
const MIDDLE: Opcode = read_response(Position::Middle);
const LAST: Opcode = read_response(Position::Last);
const ONLY: Opcode = read_response(Position::Only);

/// Only for the constants above.
const fn read_response(position: Position) -> Opcode {
    match Opcode::compose(Transport::Rc, Operation::ReadResponse, position, Tail::Plain) {
        Some(opcode) => opcode,
        None => unreachable!(),
    }
}

/// What became of one packet of an answer.
enum Answer {
    Sent,
    /// No room in the batch.
    Full,
    /// The memory is gone; a NAK waits, and there is nothing more to answer.
    Lost,
    /// Executed by now: it can be answered.
    Ready,
    /// A piece of it was executed; others first.
    Begun,
    /// Nothing more of it at this instant.
    NotNow,
    /// The pace holds it back.
    Paced,
}

impl Qp {
    /// Sends answers that must not wait: those of READs and atomics, and NAKs.
    pub(super) fn send_responses(&mut self, c: &mut Common, batch: &mut Batch<'_>) -> Turn {
        while let Some(place) = self.resp.first_pending() {
            if self.budget[ANSWERS] == 0 {
                return Turn::Spent;
            }
            let Some(resource) = self.resp.resources[place] else { break };
            let answer = match resource.what {
                What::Atomic { orig } => self.answer_atomic(c, batch, &resource, orig),
                What::Done => self.answer_done(c, batch, &resource),
                What::Read { .. } => self.answer_read(c, batch, place, &resource),
                What::Flush { .. } | What::Word(_) => match self.carry_out(c, place, &resource) {
                    Ok(Advance::Done) => Answer::Ready,
                    Ok(Advance::More) => Answer::Begun,
                    Ok(Advance::NotNow) => Answer::NotNow,
                    Err(_) => self.lose_source(c, batch, place, &resource),
                },
            };
            match answer {
                Answer::Sent => self.budget[ANSWERS] -= 1,
                Answer::Full => return Turn::Full,
                Answer::Lost => break,
                Answer::Ready => continue,
                Answer::Begun => return Turn::Spent,
                Answer::NotNow => return Turn::Stalled,
                Answer::Paced => return Turn::Idle,
            }
            self.resp.answered_one(place);
        }
        if matches!(self.resp.ack, Ack::Nak(..)) && !self.send_ack(c, batch) {
            return Turn::Full;
        }
        Turn::Idle
    }

    fn answer_atomic(
        &mut self,
        c: &Common,
        batch: &mut Batch<'_>,
        resource: &Resource,
        orig: u64,
    ) -> Answer {
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: resource.msn };
        let ack = AtomicAckEth { orig };
        let ext = Ext { aeth: Some(aeth), atomic_ack: Some(ack), ..Ext::default() };
        if self.emit(c, batch, Opcode::RC_ATOMIC_ACK, resource.first, &ext) {
            Answer::Sent
        } else {
            Answer::Full
        }
    }

    /// ATOMIC WRITE and FLUSH are answered as a READ of no bytes would be.
    fn answer_done(&mut self, c: &Common, batch: &mut Batch<'_>, resource: &Resource) -> Answer {
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: resource.msn };
        let ext = Ext { aeth: Some(aeth), ..Ext::default() };
        if self.emit(c, batch, ONLY, resource.first, &ext) { Answer::Sent } else { Answer::Full }
    }

    /// The next packet of a READ, from memory as it is.
    fn answer_read(
        &mut self,
        c: &mut Common,
        batch: &mut Batch<'_>,
        place: usize,
        resource: &Resource,
    ) -> Answer {
        let What::Read { va, len, rkey } = resource.what else { return Answer::Lost };
        let psn = resource.first.offset(resource.next);
        let mtu = self.mtu.bytes();
        let offset = resource.next as usize * mtu;
        let payload = (len as usize - offset).min(mtu);
        let first = resource.next == resource.start;
        let last = resource.next + 1 == resource.packets;
        let opcode = match (first, last) {
            (true, true) => ONLY,
            (true, false) => FIRST,
            (false, true) => LAST,
            (false, false) => MIDDLE,
        };
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: resource.msn };
        if self.is_paced(c) {
            return Answer::Paced;
        }
        let size = PacketBuilder::size(opcode, payload);
        if !batch.takes(&self.path, size) {
            return Answer::Full;
        }
        let bth = self.bth(opcode, psn).with_pad_for(payload).emit();
        let ident = batch.ident();
        let mut builder = PacketBuilder::behind(&bth, batch.slot(size), opcode, payload);
        if opcode != MIDDLE {
            builder.put_aeth(aeth);
        }
        if payload > 0 {
            let (at, bytes) = (va.wrapping_add(offset as u64), payload as u64);
            let there = !c.config.elide;
            match c.remote((self.pd, self.qpn), rkey, at, bytes, Access::REMOTE_READ) {
                Ok(source) if there => source.read_into(0, builder.payload_mut()),
                Ok(_) => {}
                Err(_) => return self.lose_source(c, batch, place, resource),
            }
        }
        let size = self.seal(c, RESPONSE, builder, ident, false);
        batch.commit(&self.path, size, self.handle.as_u64());
        self.pace(c, size + self.path.header_len());
        Answer::Sent
    }

    /// The memory of a READ is no longer there for the peer.
    fn lose_source(
        &mut self,
        c: &mut Common,
        batch: &mut Batch<'_>,
        place: usize,
        resource: &Resource,
    ) -> Answer {
        let psn = resource.first.offset(resource.next);
        let syndrome = Syndrome::Nak(NakCode::RemoteAccess);
        if resource.answered {
            // A duplicate of a READ that was answered. Its sender has the answer and will not care, or
            // it has lost it and is told now; memory may go when a READ is done, so nobody is at fault.
            let ext = Ext { aeth: Some(Aeth { syndrome, msn: resource.msn }), ..Ext::default() };
            if !self.emit(c, batch, Opcode::RC_ACK, psn, &ext) {
                return Answer::Full;
            }
            c.count(Counter::RespRemoteAccessErrors);
            self.resp.cut_short(place);
            return Answer::Sent;
        }
        // It and what was asked for later is not answered; what was asked for earlier has been.
        self.resp.forget_pending();
        if self.resp.dying {
            self.resp.ack = Ack::Nak(psn, syndrome);
        } else {
            // Whatever receive is in use has nothing to do with it.
            self.resp.taken = false;
            self.die(c, psn, NakCode::RemoteAccess, WcStatus::LocAccess);
        }
        Answer::Lost
    }

    /// Sends the ACK or NAK that waits. `false`: no room in the batch.
    #[inline(always)]
    pub(crate) fn send_ack(&mut self, c: &mut Common, batch: &mut Batch<'_>) -> bool {
        let (psn, syndrome) = match self.resp.ack {
            Ack::Nothing => return true,
            Ack::Plain(psn) => (psn, Syndrome::ACK),
            Ack::Nak(psn, REPORT) => return self.send_report(c, batch, psn),
            Ack::Nak(psn, syndrome) => (psn, syndrome),
        };
        let opcode = Opcode::RC_ACK;
        let size = PacketBuilder::size(opcode, 0);
        if !batch.takes(&self.path, size) {
            return false;
        }
        let bth = self.bth(opcode, psn).emit();
        let ident = batch.ident();
        let mut builder = PacketBuilder::behind(&bth, batch.slot(size), opcode, 0);
        builder.put_aeth(Aeth { syndrome, msn: self.resp.msn });
        let size = self.seal(c, RESPONSE, builder, ident, false);
        batch.commit(&self.path, size, self.handle.as_u64());
        match syndrome {
            Syndrome::RnrNak { .. } => c.count(Counter::SendRnrErr),
            Syndrome::Nak(NakCode::SequenceError) => c.count(Counter::OutOfSeqRequest),
            _ => {}
        }
        self.resp.ack = Ack::Nothing;
        self.resp.dying = false;
        self.coalescing.end();
        true
    }

    /// A packet without payload.
    pub(super) fn emit(
        &mut self,
        c: &Common,
        batch: &mut Batch<'_>,
        opcode: Opcode,
        psn: Psn,
        ext: &Ext,
    ) -> bool {
        let size = PacketBuilder::size(opcode, 0);
        if !batch.takes(&self.path, size) {
            return false;
        }
        let ident = batch.ident();
        let bth = self.bth(opcode, psn);
        let builder = PacketBuilder::new(batch.slot(size), &bth, ext, 0);
        let size = self.seal(c, RESPONSE, builder, ident, false);
        batch.commit(&self.path, size, self.handle.as_u64());
        true
    }
}
