//! Answers: READ responses, atomic acknowledgements, ACKs and NAKs become packets.
//!
//! *Rules.* Answers leave in the order of their PSNs (IBTA 9.7.5.1): those of READs and atomics first,
//! then the ACK or NAK that waits behind them. READ responses are made from memory packet by packet,
//! when they leave; a key that has died by then ends the answer with a NAK, never with bytes that were
//! not read.

use super::responder::{Ack, Resource, What};
use super::{Qp, Turn};
use crate::engine::batch::Batch;
use crate::engine::common::Common;
use crate::engine::status::WcStatus;
use crate::mem::Access;
use crate::wire::headers::{AtomicAckEth, Ext};
use crate::wire::num::Psn;
use crate::wire::opcode::{Operation, Position, Tail, Transport};
use crate::wire::packet::PacketBuilder;
use crate::wire::{Aeth, NakCode, Opcode, Syndrome};

impl Qp {
    /// Sends answers that must not wait: those of READs and atomics, and NAKs.
    pub(super) fn send_responses(&mut self, c: &mut Common, batch: &mut Batch<'_>) -> Turn {
        while self.resp.pending > 0 {
            if self.budget == 0 {
                return Turn::Spent;
            }
            let Some(index) = self.first_pending() else {
                self.resp.pending = 0;
                break;
            };
            match self.send_resource(c, batch, index) {
                Some(true) => self.budget -= 1,
                Some(false) => return Turn::Full,
                // The memory is gone: a NAK is queued, and this was its last answer.
                None => {}
            }
        }
        if matches!(self.resp.ack, Ack::Nak(..)) && !self.send_ack(batch) {
            return Turn::Full;
        }
        Turn::Idle
    }

    /// The resource with something to send whose PSN is lowest.
    fn first_pending(&self) -> Option<usize> {
        let epsn = self.resp.epsn;
        self.resp
            .resources
            .iter()
            .enumerate()
            .filter_map(|(i, r)| r.filter(Resource::is_pending).map(|r| (i, r.first)))
            .min_by_key(|&(_, first)| first.distance_from(epsn))
            .map(|(i, _)| i)
    }

    /// Sends the next packet of a resource. `Some(false)`: no room in the batch. `None`: it failed.
    fn send_resource(
        &mut self,
        c: &mut Common,
        batch: &mut Batch<'_>,
        index: usize,
    ) -> Option<bool> {
        let resource = self.resp.resources.get(index).copied().flatten()?;
        let psn = resource.first.offset(resource.next);
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: resource.msn };
        let mut ext = Ext { aeth: Some(aeth), ..Ext::default() };
        match resource.what {
            What::Atomic { orig } => {
                ext.atomic_ack = Some(AtomicAckEth { orig });
                if !self.emit(batch, Opcode::RC_ATOMIC_ACK, psn, &ext) {
                    return Some(false);
                }
            }
            What::Read { va, len, rkey } => {
                let mtu = self.mtu.bytes() as u64;
                let offset = u64::from(resource.next) * mtu;
                let payload = (u64::from(len) - offset).min(mtu);
                let first = resource.next == resource.start;
                let last = resource.next + 1 == resource.packets;
                let position = match (first, last) {
                    (true, true) => Position::Only,
                    (true, false) => Position::First,
                    (false, true) => Position::Last,
                    (false, false) => Position::Middle,
                };
                let opcode =
                    Opcode::compose(Transport::Rc, Operation::ReadResponse, position, Tail::Plain)?;
                let payload_len = usize::try_from(payload).ok()?;
                let size = PacketBuilder::size(opcode, payload_len);
                if !batch.takes(&self.path, size) {
                    return Some(false);
                }
                let bth = self.bth(opcode, psn);
                let ip = self.ip.with_ident(batch.ident());
                let mut builder = PacketBuilder::new(batch.slot(size), &bth, &ext, payload_len);
                if payload > 0 {
                    let at = va.wrapping_add(offset);
                    let source =
                        c.mrs.remote(self.pd, self.qpn, rkey, at, payload, Access::REMOTE_READ);
                    match source {
                        Ok(slice) => slice.read_into(0, builder.payload_mut()),
                        Err(_) => {
                            self.lose_source(c, index, psn);
                            return None;
                        }
                    }
                }
                let size = builder.finish(&ip);
                batch.commit(&self.path, size, self.handle.as_u64());
            }
        }
        if let Some(Some(r)) = self.resp.resources.get_mut(index) {
            r.next += 1;
            if !r.is_pending() {
                self.resp.pending -= 1;
            }
        }
        Some(true)
    }

    /// The memory of a READ in progress is no longer there for the peer.
    fn lose_source(&mut self, c: &mut Common, index: usize, psn: Psn) {
        // It and what was asked for later is not answered; what was asked for earlier has been.
        for r in self.resp.resources.iter_mut() {
            if r.is_some_and(|r| r.first.distance_from(psn) >= 0) {
                *r = None;
            }
        }
        self.resp.resources[index] = None;
        self.resp.pending = 0;
        if self.resp.dying {
            self.resp.ack = Ack::Nak(psn, Syndrome::Nak(NakCode::RemoteAccess));
        } else {
            self.die(c, psn, NakCode::RemoteAccess, WcStatus::LocAccess);
        }
    }

    /// Sends the ACK or NAK that waits. `false`: no room in the batch.
    pub(crate) fn send_ack(&mut self, batch: &mut Batch<'_>) -> bool {
        let (psn, syndrome) = match self.resp.ack {
            Ack::Nothing => return true,
            Ack::Plain(psn) => (psn, Syndrome::ACK),
            Ack::Nak(psn, syndrome) => (psn, syndrome),
        };
        let ext = Ext { aeth: Some(Aeth { syndrome, msn: self.resp.msn }), ..Ext::default() };
        if !self.emit(batch, Opcode::RC_ACK, psn, &ext) {
            return false;
        }
        self.resp.ack = Ack::Nothing;
        self.resp.dying = false;
        true
    }

    /// A packet without payload.
    fn emit(&self, batch: &mut Batch<'_>, opcode: Opcode, psn: Psn, ext: &Ext) -> bool {
        let size = PacketBuilder::size(opcode, 0);
        if !batch.takes(&self.path, size) {
            return false;
        }
        let ip = self.ip.with_ident(batch.ident());
        let size = PacketBuilder::new(batch.slot(size), &self.bth(opcode, psn), ext, 0).finish(&ip);
        batch.commit(&self.path, size, self.handle.as_u64());
        true
    }
}
