//! What the author of a test sees of a packet, and says about it.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use crate::net::{Ecn, Path};
use crate::time::{Duration, Instant};
use crate::wire::bth::Bth;
use crate::wire::opcode::{self, Headers, Info, Opcode};

/// A packet at the switch: between the sender's cable and the receiver's.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Packet {
    /// The datagram: BTH to ICRC.
    pub bytes: Vec<u8>,
    /// Number of the sending host, in the order in which hosts were added.
    pub from: usize,
    /// Number of the receiving host.
    pub to: usize,
    /// The IP and UDP fields. The receiver is settled: changing `path.dst` does not reroute.
    pub path: Path,
    /// IPv4 identification, which the ICRC covers.
    pub ident: u16,
    /// Virtual time.
    pub at: Instant,
}

impl Packet {
    /// What a tap's copy is before the first packet.
    pub(super) const fn empty() -> Self {
        let nobody = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        let path = Path {
            src: nobody,
            dst: nobody,
            src_port: 0,
            traffic_class: 0,
            hop_limit: 0,
            flow_label: 0,
            scope_id: 0,
        };
        Self { bytes: Vec::new(), from: 0, to: 0, path, ident: 0, at: Instant::ZERO }
    }

    /// The base transport header; `None` if there are fewer than 12 bytes.
    pub fn bth(&self) -> Option<Bth> {
        self.bytes.first_chunk().map(Bth::parse)
    }

    /// The opcode byte, known or not; `None` for an empty datagram.
    pub fn opcode(&self) -> Option<u8> {
        self.bytes.first().copied()
    }

    /// The table row of a known opcode.
    pub fn info(&self) -> Option<&'static Info> {
        self.opcode().and_then(Opcode::from_u8).map(Opcode::info)
    }

    /// The packet sequence number.
    pub fn psn(&self) -> Option<u32> {
        self.bth().map(|bth| bth.psn.raw())
    }

    /// Number of the queue pair at the receiver.
    pub fn dest_qpn(&self) -> Option<u32> {
        self.bth().map(|bth| bth.dest_qp.raw())
    }

    /// A request: it asks the receiver to do something.
    pub fn is_request(&self) -> bool {
        self.info().is_some_and(Info::is_request)
    }

    /// A response: ACK, NAK, READ response, atomic response.
    pub fn is_response(&self) -> bool {
        self.info().is_some_and(Info::is_response)
    }

    /// A positive acknowledgement.
    pub fn is_ack(&self) -> bool {
        self.acknowledge() == Some(Syndrome::Ack)
    }

    /// A negative acknowledgement; "receiver not ready" is not one (see [`is_rnr`](Self::is_rnr)).
    pub fn is_nak(&self) -> bool {
        matches!(self.acknowledge(), Some(Syndrome::Nak(_)))
    }

    /// A "receiver not ready" NAK.
    pub fn is_rnr(&self) -> bool {
        self.acknowledge() == Some(Syndrome::Rnr)
    }

    /// A congestion notification packet.
    pub fn is_cnp(&self) -> bool {
        self.opcode() == Some(Opcode::CNP.as_u8())
    }

    /// The ECN codepoint.
    pub fn ecn(&self) -> Ecn {
        self.path.ecn()
    }

    fn acknowledge(&self) -> Option<Syndrome> {
        acknowledge(&self.bytes)
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.opcode().map_or_else(|| "EMPTY".to_owned(), opcode::name_of);
        write!(f, "{:?} {} -> {} {name}", self.at, self.from, self.to)?;
        if let Some(bth) = self.bth() {
            write!(f, " qp {} psn {}", bth.dest_qp, bth.psn)?;
        }
        write!(f, " {} bytes", self.bytes.len())
    }
}

/// What shall become of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Deliver it as it was, whatever the closure did to its copy. Rules may still see to it.
    Pass,
    /// Drop it.
    Drop,
    /// Hold it back for this long at the switch; later ones overtake it.
    Delay(Duration),
    /// Deliver it twice, the copy right behind.
    Duplicate,
    /// Deliver what the closure left in `bytes`, `path` and `ident`. The ICRC is the closure's business.
    Replace,
}

/// What an ACKNOWLEDGE packet says (IBTA 9.7.5.2: bits 6 and 5 of the syndrome).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syndrome {
    Ack,
    Rnr,
    /// With its code.
    Nak(u8),
    Reserved,
}

/// The meaning of an ACKNOWLEDGE; `None` for any other packet.
pub(super) fn acknowledge(datagram: &[u8]) -> Option<Syndrome> {
    let info = Opcode::from_u8(*datagram.first()?)?.info();
    if info.operation != opcode::Operation::Acknowledge {
        return None;
    }
    // Only RD puts a header between BTH and AETH.
    let before = Bth::LEN + info.headers.intersection(Headers::RDETH).len();
    let syndrome = *datagram.get(before)?;
    Some(match syndrome >> 5 {
        0 => Syndrome::Ack,
        1 => Syndrome::Rnr,
        3 => Syndrome::Nak(syndrome & 0x1f),
        _ => Syndrome::Reserved,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::wire::num::{Pkey, Psn, Qpn};

    /// A datagram of this opcode: BTH, `rest`, and four bytes in the place of the ICRC.
    pub(in super::super) fn datagram(opcode: u8, psn: u32, rest: &[u8]) -> Vec<u8> {
        let bth = Bth {
            opcode,
            se: false,
            m: true,
            pad_count: 0,
            tver: 0,
            pkey: Pkey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qp: Qpn::new(0x11),
            ack_req: false,
            psn: Psn::new(psn),
        };
        [&bth.emit(), rest, &[0; 4]].concat()
    }

    fn packet(bytes: Vec<u8>) -> Packet {
        let path = Path {
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, 2].into(),
            src_port: 0xc000,
            traffic_class: 2,
            hop_limit: 64,
            flow_label: 0,
            scope_id: 0,
        };
        Packet { bytes, from: 0, to: 1, path, ident: 7, at: Instant::from_nanos(1500) }
    }

    #[test]
    fn acknowledgements_by_syndrome() {
        let kinds = |syndrome: u8| {
            let p = packet(datagram(0x11, 5, &[syndrome, 0, 0, 1]));
            assert!(p.is_response() && !p.is_request());
            [p.is_ack(), p.is_nak(), p.is_rnr()]
        };
        assert_eq!(kinds(0x1f), [true, false, false]);
        assert_eq!(kinds(0x00), [true, false, false]);
        assert_eq!(kinds(0x2c), [false, false, true]);
        assert_eq!(kinds(0x60), [false, true, false]);
        assert_eq!(kinds(0x63), [false, true, false]);
        assert_eq!(kinds(0x40), [false; 3], "reserved");
        assert_eq!(kinds(0x9f), [false; 3], "bit 7 is reserved");
        // RD has its own header in front.
        let rd = packet(datagram(0x51, 5, &[0, 0, 0, 0, 0x61, 0, 0, 1]));
        assert!(rd.is_nak());
        // A READ response has an AETH, but acknowledges only by the way.
        assert!(!packet(datagram(0x10, 5, &[0x1f, 0, 0, 1])).is_ack());
    }

    #[test]
    fn fields_and_text() {
        let p = packet(datagram(0x04, 0x12_3456, b"abcd"));
        assert_eq!((p.opcode(), p.psn(), p.dest_qpn()), (Some(4), Some(0x12_3456), Some(0x11)));
        assert!(p.is_request() && !p.is_cnp());
        assert_eq!(p.ecn(), Ecn::Ect0);
        assert_eq!(format!("{p:?}"), "1.500us 0 -> 1 RC_SEND_ONLY qp 000011 psn 123456 20 bytes");
    }

    #[test]
    fn anything_may_be_looked_at() {
        for len in 0..20 {
            for byte in 0..=255 {
                let p = packet(vec![byte; len]);
                let _ = (p.bth(), p.info(), p.is_ack(), p.is_nak(), p.is_rnr(), p.is_cnp());
                assert_eq!(p.psn().is_some(), len >= 12);
                assert!(!format!("{p:?}").is_empty());
            }
        }
    }
}
