//! What a datagram must pass before a queue pair sees it.
//!
//! *Rules* (IBTA 9.6). Lengths, opcode and version; a queue pair with that number, of that service, or a
//! multicast group with members; the addresses of its peer, if it has one; the partition (for a congestion notification
//! any of the device's, since NICs are known to send all of them in the default one); the ICRC. Whatever fails is
//! counted with its reason and dropped in silence: no answer, no change of any queue pair.
//!
//! Datagrams that came in merged are mostly alike, but for their PSNs and payloads. Those that are like the one before
//! have passed all of this with it, but for the ICRC, and are a *row*: it is handled with less ado, and to no other
//! effect.

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
#[derive(Clone, Copy)]
enum Seal {
    Exact,
    Recovered,
    Inferred,
}

impl Engine {
    /// Takes datagrams that came in merged: all of `size` bytes, the last may be shorter. `meta` is that of the first.
    /// The same as [`handle_datagram`](Self::handle_datagram) for each of them.
    pub fn handle_merged(&mut self, now: Instant, meta: &RxMeta, bytes: &[u8], size: usize) {
        let (mut meta, mut rest, size) = (*meta, bytes, size.max(1));
        loop {
            let (datagram, behind) = rest.split_at(size.min(rest.len()));
            let slot = self.admit(now, &meta, datagram);
            meta.gro_index = meta.gro_index.saturating_add(1);
            rest = behind;
            if let Some(slot) = slot
                && rest.len() >= size
            {
                rest = self.handle_row(slot, &mut meta, datagram, rest);
            }
            if rest.is_empty() {
                return;
            }
        }
    }

    /// Takes one datagram. Afterwards [`poll_transmit`](Self::poll_transmit) and
    /// [`poll_event`](Self::poll_event) may have something.
    pub fn handle_datagram(&mut self, now: Instant, meta: &RxMeta, datagram: &[u8]) {
        self.admit(now, meta, datagram);
    }

    /// Takes those that follow `first`, which was for the queue pair in `slot`, as far as they are like it and intact.
    /// Gives the others.
    #[inline(never)]
    fn handle_row<'d>(
        &mut self,
        slot: u32,
        meta: &mut RxMeta,
        first: &'d [u8],
        mut rest: &'d [u8],
    ) -> &'d [u8] {
        let (Ok(first), Some(qp)) = (Packet::parse(first), self.qps.at(slot)) else { return rest };
        let (size, is_request) = (first.datagram().len(), first.info().is_request());
        let Some(alike) = qp.came_alike(meta, is_request, first.sealed()) else { return rest };
        let mut taken = 0;
        while let Some((datagram, behind)) = rest.split_at_checked(size) {
            let Some(packet) = first.another(datagram) else { break };
            let Some(qp) = self.qps.at(slot).filter(|qp| qp.is_reachable()) else { break };
            // As the kernel of the sender numbers what it segments itself, or all 0.
            if !alike.check(meta.gro_index, datagram) && !alike.check(0, datagram) {
                break;
            }
            if is_request {
                qp.handle_request(&mut self.common, &packet);
            } else {
                qp.handle_response(&mut self.common, meta, &packet);
            }
            let waits = qp.queued || !qp.wants_to_send();
            if self.common.is_unsettled() {
                self.settle();
            }
            if !waits {
                // Its turn comes before that of those who have something to send later.
                self.schedule(slot);
            }
            meta.gro_index = meta.gro_index.saturating_add(1);
            rest = behind;
            taken += 1;
        }
        if taken > 0 {
            let counters = &mut self.common.counters;
            counters.add(Counter::IcrcExact, taken);
            counters.add(Counter::RcvdPkts, taken);
            counters.add(Counter::RcvdBytes, taken * size as u64);
            self.schedule(slot);
        }
        rest
    }

    /// Takes a datagram. Says which queue pair it was for, if those that are like it can be handled as a row.
    #[inline(always)]
    fn admit(&mut self, now: Instant, meta: &RxMeta, datagram: &[u8]) -> Option<u32> {
        self.common.now = now;
        let packet = match Packet::parse(datagram) {
            Ok(packet) => packet,
            Err(e) => {
                self.common.count(match e {
                    Error::BadVersion => Counter::DropVersion,
                    Error::UnknownOpcode(_) => Counter::DropUnknownOpcode,
                    _ => Counter::DropMalformed,
                });
                return None;
            }
        };
        let info = packet.info();
        if matches!(info.transport, Transport::Rd | Transport::Xrc) {
            self.common.count(Counter::DropUnsupported);
            return None;
        }
        let to = match self.addressee(meta, &packet) {
            Ok(to) => to,
            Err(reason) => {
                self.common.count(reason);
                return None;
            }
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
            return None;
        }
        let seal = self.check_seal(meta, &packet, &to);
        match seal {
            Some(Seal::Exact) => self.common.count(Counter::IcrcExact),
            Some(Seal::Recovered) => self.common.count(Counter::IcrcRecovered),
            Some(Seal::Inferred) => self.common.count(Counter::IcrcInferred),
            None => {
                self.common.count(Counter::RxIcrcEncapsulated);
                return None;
            }
        }
        self.common.count(Counter::RcvdPkts);
        self.common.counters.add(Counter::RcvdBytes, datagram.len() as u64);
        self.common
            .observe(|| NicEvent::Arrived(PacketBrief::from_packet(&packet, datagram.len())));
        if meta.path.ecn() == Ecn::Ce {
            self.common.count(Counter::NpEcnMarkedRocePackets);
        }
        let To::One(slot) = to else {
            self.deliver_to_group(meta, &packet);
            return None;
        };
        let marked = meta.path.ecn() == Ecn::Ce;
        let qp = self.qps.at(slot)?;
        let in_rows = qp.kind == QpType::Rc && info.operation != Operation::Cnp;
        if marked {
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
        let hidden = meta.ident.is_none() && matches!(seal, Some(Seal::Exact));
        let seen = self.common.is_watched() || self.common.config.elide || marked;
        (in_rows && hidden && !seen).then_some(slot)
    }

    /// Checks the ICRC.
    #[inline(always)]
    fn check_seal(&mut self, meta: &RxMeta, packet: &Packet<'_>, to: &To) -> Option<Seal> {
        if self.common.config.elide {
            return Some(Seal::Exact);
        }
        let (sealed, info) = (packet.sealed(), packet.info());
        let check = Check { idents: &mut self.idents, policy: self.common.config.icrc, meta };
        if let To::One(slot) = to
            && let Some(qp) = self.qps.at(*slot)
            && qp.kind != QpType::Ud
            && info.operation != Operation::Flush
        {
            let alike = qp.came_alike(meta, info.is_request(), sealed)?;
            return check.seal(packet, sealed.len(), |ident| alike.compute(ident, sealed));
        }
        self.check_seal_apart(meta, packet)
    }

    /// The same where not much is shared with other packets.
    fn check_seal_apart(&mut self, meta: &RxMeta, packet: &Packet<'_>) -> Option<Seal> {
        let (path, df) = (&meta.path, meta.df.unwrap_or(true));
        let ip = IpFields::new(path.src, path.dst, 0, df, path.src_port)?;
        let (sealed, policy) = (packet.sealed(), self.common.config.icrc);
        let check = Check { idents: &mut self.idents, policy, meta };
        let by_the_book = |ident| icrc::compute(&ip.with_ident(ident), sealed);
        let seal = check.seal(packet, sealed.len(), by_the_book);
        if seal.is_some() || packet.info().operation != Operation::Flush {
            return seal;
        }
        // That of rdma_rxe, the only one that it sends. It covers all that the standard's covers, and is accepted
        // for that operation alone: an error that it lets through is as unlikely, and a FLUSH changes no byte of
        // memory. What we send is sealed by the standard, but for devices that were told otherwise.
        let check = Check { idents: &mut self.idents, policy, meta };
        let by_rxe = |ident| icrc::compute_rxe_flush(&ip.with_ident(ident), sealed);
        let seal = check.seal(packet, 2 * sealed.len(), by_rxe);
        if seal.is_some() {
            self.common.count(Counter::IcrcRxeFlush);
        }
        seal
    }

    /// Whom a packet is for, or why it is for nobody.
    #[inline(always)]
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

/// A look at an ICRC.
struct Check<'a> {
    idents: &'a mut Idents,
    policy: IcrcPolicy,
    meta: &'a RxMeta,
}

impl Check<'_> {
    /// Whether it is right, with the IPv4 identification that is known, likely, or at least possible. `sum` gives the
    /// right one for each, and covers so many bytes behind the UDP header.
    #[inline(always)]
    fn seal(self, packet: &Packet<'_>, covered: usize, sum: impl Fn(u16) -> u32) -> Option<Seal> {
        let (meta, icrc) = (self.meta, packet.icrc());
        // What the sender's kernel most likely wrote comes first, so that one look is enough.
        if sum(meta.ident.unwrap_or(meta.gro_index)) == icrc {
            return Some(Seal::Exact);
        }
        if meta.ident.is_some() || meta.path.dst.is_ipv6() {
            return None;
        }
        let apart = icrc ^ sum(0);
        if apart == 0 {
            return Some(Seal::Exact);
        }
        if self.policy == IcrcPolicy::Exact {
            return None;
        }
        let ident = icrc::explain(apart, covered)?;
        if self.idents.is_likely(meta.path.src, ident) {
            Some(Seal::Recovered)
        } else if self.policy == IcrcPolicy::Recover {
            Some(Seal::Inferred)
        } else {
            None
        }
    }
}
