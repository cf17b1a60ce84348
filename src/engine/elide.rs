//! Packets without their payload, for a laboratory in which only times and headers count.
//!
//! *Rules.* Where [`EngineConfig::elide`](super::EngineConfig::elide) says so, no payload is copied: a packet has its
//! length, and whatever bytes the buffer held. Everything is checked that is checked otherwise (keys, rights, ranges,
//! domains, lengths, PSNs), so all packets, times, counters and completions are the same as with bytes, for all devices of
//! such a network alike. What is small and decides something is real: headers, operands and results of atomics, ATOMIC
//! WRITE, inline data, and the GRH of a datagram. There is no ICRC; in its place stands whether the payload is there.

use super::common::Common;
use super::qp::{scatter_by, scatter_into};
use crate::mem::{Access, AccessError, MrTable, PdId, Sge};
use crate::wire::icrc::IpFields;
use crate::wire::packet::{Packet, PacketBuilder};

/// In place of an ICRC: the payload is there, or it is not (or there is none).
const THERE: u32 = 1;
const ELIDED: u32 = 0;

impl Common {
    /// Whether a packet that came has the payload that it tells of.
    #[inline]
    pub(super) fn is_there(&self, packet: &Packet<'_>) -> bool {
        !self.config.elide || packet.icrc() == THERE
    }

    /// Ends a packet, whose payload is there or not; gives its size.
    #[inline]
    pub(super) fn seal(&self, builder: PacketBuilder<'_>, ip: &IpFields, there: bool) -> usize {
        if self.config.elide {
            builder.finish_unsealed(if there { THERE } else { ELIDED })
        } else {
            builder.finish(ip)
        }
    }
}

/// Distributes bytes into a list of buffers, from `offset` on, if they are there; else looks whether they could be.
#[inline]
pub(super) fn scatter_there(
    there: bool,
    mrs: &MrTable,
    pd: PdId,
    list: impl Iterator<Item = Sge>,
    offset: usize,
    src: &[u8],
) -> Result<(), AccessError> {
    if there {
        return scatter_into(mrs, pd, list, offset, src);
    }
    scatter_by(list, offset, src, |sge, _, _| mrs.local(pd, sge, Access::LOCAL_WRITE).map(drop))
}
