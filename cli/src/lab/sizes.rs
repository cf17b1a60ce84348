//! Which bytes count where.
//!
//! *Payload* is what programs see. A *frame* is what lies in queues: everything from the Ethernet header to the
//! check sequence. The *wire* is busy for 20 bytes more: preamble, start of frame, and the gap between frames.
//! Queues, thresholds and byte counters are measured in frames; lines, paces and rates in wire bytes.
//!
//! [`frame`] adds up headers; [`built`] asks the library to build the packet. A test holds them together.

use softroce::wire::frame::{Envelope, Mac, UdpChecksum, emit};
use softroce::wire::icrc::IpFields;
use softroce::wire::num::{Pkey, Psn, Qpn};
use softroce::wire::opcode::{Operation, Position, Tail, Transport};
use softroce::wire::{Bth, Ext, Opcode, PacketBuilder};

/// Ethernet header.
const ETHERNET: u32 = 14;
/// Ethernet frame check sequence.
const FCS: u32 = 4;
/// The shortest Ethernet frame, check sequence included.
const FRAME_MIN: u32 = 64;
/// Preamble, start of frame, and the gap between two frames.
pub(crate) const GAP: u32 = 8 + 12;
const IPV4: u32 = 20;
const IPV6: u32 = 40;
const UDP: u32 = 8;
const BTH: u32 = 12;
const ICRC: u32 = 4;
/// RDMA header: the first packet of a WRITE, and a READ request.
pub(crate) const RETH: u32 = 16;
/// Acknowledgement header: ACKs, and READ responses but for those in the middle.
pub(crate) const AETH: u32 = 4;

/// A version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ip {
    V4,
    V6,
}

/// Frame bytes of a packet with `ext` bytes of headers behind the BTH and so much payload.
pub(crate) const fn frame(ip: Ip, ext: u32, payload: u32) -> u32 {
    let ip = match ip {
        Ip::V4 => IPV4,
        Ip::V6 => IPV6,
    };
    let pad = payload.wrapping_neg() & 3;
    let frame = ETHERNET + ip + UDP + BTH + ext + payload + pad + ICRC + FCS;
    if frame < FRAME_MIN { FRAME_MIN } else { frame }
}

/// Wire bytes of the same packet.
pub(crate) const fn wire(ip: Ip, ext: u32, payload: u32) -> u32 {
    frame(ip, ext, payload) + GAP
}

/// Frame bytes of a packet that the library builds and puts into an Ethernet frame.
pub(crate) fn built(ip: Ip, opcode: Opcode, payload: u32) -> u32 {
    let (src, dst) = match ip {
        Ip::V4 => ([10, 0, 0, 1].into(), [10, 0, 0, 2].into()),
        Ip::V6 => {
            let host = |n| [0xfd00, 0, 0, 0, 0, 0, 0, n].into();
            (host(1), host(2))
        }
    };
    let envelope = Envelope {
        src,
        dst,
        src_port: 0xc000,
        traffic_class: 26 << 2 | 2,
        hop_limit: 64,
        flow_label: 0,
        ident: 0,
        df: true,
    };
    let bth = Bth {
        opcode: opcode.as_u8(),
        se: false,
        m: true,
        pad_count: 0,
        tver: 0,
        pkey: Pkey::DEFAULT,
        fecn: false,
        becn: false,
        dest_qp: Qpn::new(0x11),
        ack_req: false,
        psn: Psn::new(0),
    };
    let mut datagram = vec![0; PacketBuilder::size(opcode, payload as usize)];
    let packet = PacketBuilder::new(&mut datagram, &bth, &Ext::default(), payload as usize);
    let fields: Option<IpFields> = envelope.ip_fields();
    let fields = fields.expect("both addresses are of one family");
    let len = packet.finish(&fields);
    let mut frame = vec![0; envelope.frame_len(len)];
    let sent = emit(
        &mut frame,
        Mac::of(src),
        Mac::of(dst),
        &envelope,
        UdpChecksum::Zero,
        &datagram[..len],
    );
    let len = sent.expect("the frame has its size");
    u32::try_from(len).expect("frames are short").max(FRAME_MIN - FCS) + FCS
}

/// The opcode of a packet of an RC WRITE.
pub(crate) fn write(position: Position) -> Opcode {
    Opcode::compose(Transport::Rc, Operation::Write, position, Tail::Plain)
        .expect("there are WRITEs of all lengths")
}

/// Full packets of one path MTU over IPv4: what the models reckon with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Packet {
    /// Payload bytes.
    pub(crate) mtu: u32,
    /// What a queue holds.
    pub(crate) frame: u32,
    /// What a line is busy with.
    pub(crate) wire: u32,
}

impl Packet {
    /// A WRITE packet in the middle of its message, over IPv4.
    pub(crate) const fn of(mtu: u32) -> Self {
        Self { mtu, frame: frame(Ip::V4, 0, mtu), wire: wire(Ip::V4, 0, mtu) }
    }

    /// Part of a line's bits that is payload.
    pub(crate) fn share(self) -> f64 {
        f64::from(self.mtu) / f64::from(self.wire)
    }

    /// Seconds on a line of so many bits per second.
    pub(crate) fn time(self, bits_per_s: f64) -> f64 {
        f64::from(self.wire) * 8.0 / bits_per_s
    }
}

/// Wire bytes of a whole WRITE of so many bytes.
pub(crate) fn write_wire(ip: Ip, len: u64, mtu: u32) -> u64 {
    let packets = len.div_ceil(u64::from(mtu)).max(1);
    let last = len - (packets - 1) * u64::from(mtu);
    let last = u32::try_from(last).expect("at most a path MTU");
    let full = (packets - 1) * u64::from(wire(ip, 0, mtu));
    if packets == 1 {
        return u64::from(wire(ip, RETH, last));
    }
    full + u64::from(wire(ip, 0, last)) + u64::from(RETH)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a CNP carries in the place of a payload.
    const CNP_BODY: u32 = 16;

    /// The sums against the library's own packets: all kinds, all pads, both versions of IP.
    #[test]
    fn sums_of_headers_are_what_is_built() {
        for ip in [Ip::V4, Ip::V6] {
            for (opcode, ext) in [
                (write(Position::First), RETH),
                (write(Position::Middle), 0),
                (write(Position::Only), RETH),
            ] {
                for payload in [0, 1, 2, 3, 4, 63, 256, 1024, 4096] {
                    assert_eq!(
                        built(ip, opcode, payload),
                        frame(ip, ext, payload),
                        "{opcode:?} {payload}"
                    );
                }
            }
            for (opcode, ext) in
                [(Opcode::RC_ACK, AETH), (Opcode::RC_READ_REQUEST, RETH), (Opcode::CNP, CNP_BODY)]
            {
                assert_eq!(built(ip, opcode, 0), frame(ip, ext, 0), "{opcode:?}");
            }
        }
    }

    #[test]
    fn known_sizes() {
        assert_eq!(Packet::of(1024), Packet { mtu: 1024, frame: 1086, wire: 1106 });
        assert_eq!(Packet::of(4096), Packet { mtu: 4096, frame: 4158, wire: 4178 });
        assert!((Packet::of(1024).time(40e9) * 1e12 - 221_200.0).abs() < 1e-6);
        assert_eq!((frame(Ip::V4, AETH, 0), frame(Ip::V4, CNP_BODY, 0)), (66, 78));
        assert_eq!(write_wire(Ip::V4, 4 << 20, 1024), 4096 * 1106 + 16);
        assert_eq!(write_wire(Ip::V4, 1025, 1024), 1122 + u64::from(wire(Ip::V4, 0, 1)));
        assert_eq!(write_wire(Ip::V4, 64, 1024), 162);
    }
}
