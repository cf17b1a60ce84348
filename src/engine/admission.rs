//! What a datagram must pass before a queue pair sees it.
//!
//! *Rules* (IBTA 9.6). Lengths, opcode and version; a queue pair with that number, of that service; the
//! addresses of its peer; the partition; the ICRC. Whatever fails is counted with its reason and dropped
//! in silence: no answer, no change of any queue pair.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::Engine;
use super::config::IcrcPolicy;
use super::counters::Counter;
use super::qp::attr::QpType;
use crate::net::{Ecn, RxMeta};
use crate::time::Instant;
use crate::wire::Error;
use crate::wire::icrc::{self, IpFields};
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
        let kind = match info.transport {
            Transport::Rc | Transport::Cnp => QpType::Rc,
            Transport::Uc | Transport::Rd | Transport::Ud | Transport::Xrc => {
                self.common.count(Counter::DropUnsupported);
                return;
            }
        };
        let Some(slot) = self.qps.find(packet.dest_qp()) else {
            self.common.count(Counter::DropNoQp);
            return;
        };
        let Some(qp) = self.qps.at(slot) else { return };
        if qp.kind != kind {
            self.common.count(Counter::DropTransport);
            return;
        }
        if !qp.is_reachable() {
            self.common.count(Counter::DropState);
            return;
        }
        if meta.path.src != qp.path.dst || meta.path.dst != qp.path.src {
            self.common.count(Counter::DropAddress);
            return;
        }
        if !packet.pkey().matches(qp.pkey) {
            self.common.count(Counter::BadPkeyCntr);
            return;
        }
        let mut seal = check_seal(&mut self.idents, self.common.config.icrc, meta, datagram, BOOK);
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
        if meta.path.ecn() == Ecn::Ce {
            self.common.count(Counter::NpEcnMarkedRocePackets);
        }
        if info.operation == Operation::Cnp {
            let handled = qp.handle_cnp(&self.common);
            self.common.count(if handled { Counter::RpCnpHandled } else { Counter::RpCnpIgnored });
        } else if info.is_request() {
            qp.handle_request(&mut self.common, &packet);
        } else {
            qp.handle_response(&mut self.common, meta, &packet);
        }
        // Whoever waited for the room that this has made comes first.
        self.settle();
        self.schedule(slot);
    }
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
/// no byte of memory. What we send is sealed by the standard.
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
