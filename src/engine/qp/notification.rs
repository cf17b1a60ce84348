//! The notification point: marked packets become congestion notification packets.
//!
//! *Rules* (IBTA A17.9.3; the rate limit is that of DCQCN). A packet with data or a request that a switch has
//! marked is reported to its sender at once, if none was reported in the interval before. Duplicates and packets
//! ahead of a gap count as well, for the mark tells of the path. ACKs and notifications are not reported: what sends
//! them is not what fills the queue. A notification takes no PSN and is not answered; if it is lost, the next mark
//! makes another. It leaves before everything else, in a traffic class of its own, and cannot be marked itself.

use super::{NOTIFICATION, Qp};
use crate::engine::batch::Batch;
use crate::engine::common::Common;
use crate::engine::counters::Counter;
use crate::net::Path;
use crate::time::Instant;
use crate::wire::headers::Ext;
use crate::wire::num::Psn;
use crate::wire::opcode::Operation;
use crate::wire::packet::{Packet, PacketBuilder};
use crate::wire::{Bth, Opcode};

/// What a queue pair remembers of its notifications.
#[derive(Clone, Copy, Debug)]
pub(super) struct Notification {
    /// Marks before this instant are told of already.
    quiet_until: Instant,
}

impl Notification {
    pub(super) const NONE: Self = Self { quiet_until: Instant::ZERO };
}

impl Qp {
    /// A packet for this queue pair came in marked.
    pub(crate) fn handle_mark(&mut self, c: &Common, packet: &Packet<'_>) {
        let info = packet.info();
        // A datagram's sender has many peers, and its queue pair no rate.
        let of_flow = self.kind.is_connected();
        let is_reported = info.is_request() || info.operation == Operation::ReadResponse;
        if !of_flow || !is_reported || c.now < self.notification.quiet_until {
            return;
        }
        if let Some(interval) = c.config.cnp.interval {
            self.notification.quiet_until = c.now + interval;
            self.first |= NOTIFICATION;
        }
    }

    /// Sends the notification that is due. `false`: no room in the batch.
    pub(super) fn send_notification(&mut self, c: &mut Common, batch: &mut Batch<'_>) -> bool {
        let path = Path { traffic_class: c.config.cnp.traffic_class, ..self.path };
        let size = PacketBuilder::size(Opcode::CNP, 0);
        if !batch.takes(&path, size) {
            return false;
        }
        let bth = Bth { becn: true, m: false, ..self.bth(Opcode::CNP, Psn::default()) };
        let ip = self.ip.with_ident(batch.ident());
        let builder = PacketBuilder::new(batch.slot(size), &bth, &Ext::default(), 0);
        let size = c.seal(builder, &ip, false);
        batch.commit(&path, size, self.handle.as_u64());
        self.first &= !NOTIFICATION;
        c.count(Counter::NpCnpSent);
        true
    }
}
