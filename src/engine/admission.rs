//! What a datagram must pass before a queue pair sees it.
//!
//! *Rules* (IBTA 9.6). Lengths, opcode and version; a queue pair with that number, of that service, or a
//! multicast group with members; the addresses of its peer, if it has one; the partition (for a congestion notification
//! any of the device's, since NICs are known to send all of them in the default one); the ICRC. Whatever fails is
//! counted with its reason and dropped in silence: no answer, no change of any queue pair.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::Engine;
use super::config::IcrcPolicy;
use super::counters::Counter;
use super::qp::attr::QpType;
use super::trace::{NicEvent, PacketBrief};
use crate::net::{Ecn, RxMeta};
use crate::time::Instant;
use crate::wire::Error;
use crate::wire::icrc::{self, IpFields};
use crate::wire::num::Qpn;
use crate::wire::opcode::{Operation, Transport};
use crate::wire::packet::Packet;

/// The last IPv4 identification recovered from each sender.
#[derive(Debug, Default)]
pub(crate) struct Idents(BTreeMap<IpAddr, u16>);

/// Senders remembered.
const MAX_SENDERS: usize = 1024;
/// Identifications of segments of one send: at most 128.
const SEGMENTS: u16 = 128;
/// How far a sender's counter may have moved between two packets that we see.
const NEAR: u16 = 1024;

impl Idents {
    /// Whether this identification is likely from that sender; remembers it.
    fn is_likely(&mut self, sender: IpAddr, ident: u16) -> bool {
        let near = self.0.get(&sender).is_some_and(|&last| ident.wrapping_sub(last) < NEAR);
        if self.0.len() < MAX_SENDERS || self.0.contains_key(&sender) {
            self.0.insert(sender, ident);
        }
        near || ident < SEGMENTS
    }
}

/// What the ICRC check found.
enum Seal {
    Exact,
    Recovered,
    Inferred,
}

impl Engine {
    /// Takes one datagram. Afterwards [`poll_transmit`](Self::poll_transmit) and
    /// [`poll_event`](Self::poll_event) may have something.
    pub fn handle_datagram(&mut self, now: Instant, meta: &RxMeta, datagram: &[u8]) {
        self.common.now = now;
        let packet = match Packet::parse(datagram) {
            Ok(packet) => packet,
            Err(e) => {
                self.common.count(match e {
                    Error::BadVersion => Counter::DropVersion,
                    Error::UnknownOpcode(_) => Counter::DropUnknownOpcode,
                    _ => Counter::DropMalformed,
                });
                return;
            }
        };
        let info = packet.info();
        if matches!(info.transport, Transport::Rd | Transport::Xrc) {
            self.common.count(Counter::DropUnsupported);
            return;
        }
        let to = match self.addressee(meta, &packet) {
            Ok(to) => to,
            Err(reason) => return self.common.count(reason),
        };
        let admitted = match to {
            // Some NICs write the default key into notifications whatever the partition, and nothing is done with one
            // but sending slower.
            To::One(_) if info.operation == Operation::Cnp => {
                self.pkeys().iter().any(|key| packet.pkey().matches(*key))
            }
            To::One(slot) => self.qps.at(slot).is_some_and(|qp| packet.pkey().matches(qp.pkey)),
            // Its members look for themselves: they may be in several partitions.
            To::Group => true,
        };
        if !admitted {
            self.common.count(Counter::BadPkeyCntr);
            return;
        }
        let mut seal = if self.common.config.elide {
            Some(Seal::Exact)
        } else {
            check_seal(&mut self.idents, self.common.config.icrc, meta, datagram, BOOK)
        };
        if seal.is_none() && info.operation == Operation::Flush {
            seal = check_seal(&mut self.idents, self.common.config.icrc, meta, datagram, RXE_FLUSH);
            if seal.is_some() {
                self.common.count(Counter::IcrcRxeFlush);
            }
        }
        match seal {
            Some(Seal::Exact) => self.common.count(Counter::IcrcExact),
            Some(Seal::Recovered) => self.common.count(Counter::IcrcRecovered),
            Some(Seal::Inferred) => self.common.count(Counter::IcrcInferred),
            None => {
                self.common.count(Counter::RxIcrcEncapsulated);
                return;
            }
        }
        self.common.count(Counter::RcvdPkts);
        self.common.counters.add(Counter::RcvdBytes, datagram.len() as u64);
        self.common
            .observe(|| NicEvent::Arrived(PacketBrief::from_packet(&packet, datagram.len())));
        if meta.path.ecn() == Ecn::Ce {
            self.common.count(Counter::NpEcnMarkedRocePackets);
        }
        let To::One(slot) = to else { return self.deliver_to_group(meta, &packet) };
        let Some(qp) = self.qps.at(slot) else { return };
        if meta.path.ecn() == Ecn::Ce {
            qp.handle_mark(&self.common, &packet);
        }
        if info.operation == Operation::Cnp {
            let handled = qp.handle_cnp(&self.common);
            self.common.count(if handled { Counter::RpCnpHandled } else { Counter::RpCnpIgnored });
        } else if qp.kind == QpType::Ud {
            qp.handle_datagram(&mut self.common, meta, &packet);
        } else if !qp.kind.is_reliable() {
            qp.handle_unreliable(&mut self.common, &packet);
        } else if info.is_request() {
            qp.handle_request(&mut self.common, &packet);
        } else {
            qp.handle_response(&mut self.common, meta, &packet);
        }
        // Whoever waited for the room that this has made comes first.
        self.settle();
        self.schedule(slot);
    }

    /// Whom a packet is for, or why it is for nobody.
    fn addressee(&mut self, meta: &RxMeta, packet: &Packet<'_>) -> Result<To, Counter> {
        let transport = packet.info().transport;
        let group = &meta.path.dst;
        if transport == Transport::Ud && packet.dest_qp() == Qpn::MULTICAST {
            return if self.groups.has(group) { Ok(To::Group) } else { Err(Counter::DropNoQp) };
        }
        let slot = self.qps.find(packet.dest_qp()).ok_or(Counter::DropNoQp)?;
        let qp = self.qps.at(slot).ok_or(Counter::DropNoQp)?;
        if transport != Transport::Cnp && transport != qp.kind.transport() {
            return Err(Counter::DropTransport);
        }
        if !qp.is_reachable() {
            return Err(Counter::DropState);
        }
        // A datagram may come from anybody.
        let from_peer = match qp.kind {
            QpType::Ud => !group.is_multicast(),
            _ => meta.path.src == qp.path.dst && meta.path.dst == qp.path.src,
        };
        if from_peer { Ok(To::One(slot)) } else { Err(Counter::DropAddress) }
    }
}

/// Whom a packet is for.
enum To {
    /// The queue pair in this slot.
    One(u32),
    /// The queue pairs in a multicast group.
    Group,
}

/// A way to compute ICRCs: whether one is right, and which identification explains it.
#[derive(Clone, Copy)]
struct Crc {
    check: fn(&IpFields, &[u8]) -> bool,
    recover: fn(&IpFields, &[u8]) -> Option<u16>,
}

/// That of the standard.
const BOOK: Crc = Crc { check: icrc::check, recover: icrc::recover_ident };

/// That of rdma_rxe for a FLUSH, the only one that it sends. It covers all that the standard's covers, and
/// is accepted for that operation alone: an error that it lets through is as unlikely, and a FLUSH changes
/// no byte of memory. What we send is sealed by the standard, but for devices that were told otherwise.
const RXE_FLUSH: Crc = Crc { check: icrc::check_rxe_flush, recover: icrc::recover_ident_rxe_flush };

/// Checks the ICRC, with the IPv4 identification that is known, likely, or at least possible.
fn check_seal(
    idents: &mut Idents,
    policy: IcrcPolicy,
    meta: &RxMeta,
    datagram: &[u8],
    crc: Crc,
) -> Option<Seal> {
    let path = &meta.path;
    let fields = |ident, df| IpFields::new(path.src, path.dst, ident, df, path.src_port);
    let df = meta.df.unwrap_or(true);
    if let Some(ident) = meta.ident {
        return (crc.check)(&fields(ident, df)?, datagram).then_some(Seal::Exact);
    }
    // The identification that the sender's kernel most likely wrote comes first, so that one look is enough.
    let ip = fields(meta.gro_index, df)?;
    if (crc.check)(&ip, datagram) {
        return Some(Seal::Exact);
    }
    if path.dst.is_ipv6() {
        return None;
    }
    if meta.gro_index > 0 && (crc.check)(&ip.with_ident(0), datagram) {
        return Some(Seal::Exact);
    }
    if policy == IcrcPolicy::Exact {
        return None;
    }
    let ident = (crc.recover)(&ip, datagram)?;
    if idents.is_likely(path.src, ident) {
        Some(Seal::Recovered)
    } else if policy == IcrcPolicy::Recover {
        Some(Seal::Inferred)
    } else {
        None
    }
}
