//! Requests that were executed already, and come again because an answer was lost.

use super::Qp;
use super::responder::{Ack, What};
use crate::engine::common::Common;
use crate::engine::counters::Counter;
use crate::engine::trace::NicEvent;
use crate::wire::opcode::Operation;
use crate::wire::packet::Packet;

impl Qp {
    /// A request that was executed already.
    pub(super) fn duplicate(&mut self, c: &mut Common, packet: &Packet<'_>) {
        c.count(Counter::DuplicateRequest);
        let psn = packet.psn();
        let (qpn, expected) = (self.qpn.raw(), self.resp.epsn.raw());
        c.observe(|| NicEvent::Duplicate { qpn, psn: psn.raw(), expected });
        match packet.info().operation {
            operation @ (Operation::Send | Operation::Write) => {
                c.count(match operation {
                    Operation::Send => Counter::DuplicateSend,
                    _ => Counter::DuplicateWrite,
                });
                // A NAK that waits says where to go on, which is more.
                if !matches!(self.resp.ack, Ack::Nak(..)) {
                    self.resp.ack = Ack::Plain(self.resp.epsn.prev());
                    // Who asks again has waited too long.
                    self.coalescing.complain();
                }
            }
            Operation::Read => self.duplicate_read(c, packet),
            operation @ (Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::AtomicWrite
            | Operation::Flush) => self.duplicate_done(c, psn, operation),
            _ => c.count(Counter::DropDuplicate),
        }
    }

    /// A READ again, or a tail of it: from memory as it is now.
    fn duplicate_read(&mut self, c: &mut Common, packet: &Packet<'_>) {
        let mtu = self.mtu.bytes() as u64;
        let (Some(reth), Some((place, resource))) = (packet.reth(), self.resp.find(packet.psn()))
        else {
            return c.count(Counter::DropDuplicate);
        };
        let What::Read { va, len, rkey } = resource.what else {
            return c.count(Counter::DropDuplicate);
        };
        let packet_index = packet.psn().distance_from(resource.first).unsigned_abs();
        let skipped = u64::from(packet_index) * mtu;
        let is_tail = skipped + u64::from(reth.dma_len) == u64::from(len)
            && reth.va == va.wrapping_add(skipped)
            && (reth.rkey == rkey || len == 0);
        if !is_tail {
            return c.count(Counter::DropReplay);
        }
        c.count(Counter::DuplicateRead);
        // If it has not got that far, it will be answered anyway.
        if !resource.is_pending() || resource.next > packet_index {
            self.resp.answer_again(place, packet_index);
        }
    }
}
