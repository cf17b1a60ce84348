//! The frames that hold a link together: ARP, neighbour discovery, echo.
//!
//! *Rules.* What these functions are given was looked at before: an echo request is one, and whole.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetProtocol, Icmpv4Message,
    Icmpv4Packet, Icmpv6Message, Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv4Packet, Ipv4Repr,
    Ipv6Packet, Ipv6Repr, NdiscNeighborFlags, NdiscRepr,
};

use crate::wire::frame::Mac;

/// Ethernet frames are at least so long, without their check sequence.
pub(super) const SHORTEST: usize = 60;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// What stands in front of each frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) src: Mac,
    /// VLAN and priority, as in the tag.
    pub(super) tag: Option<u16>,
}

impl Head {
    /// Bytes of it.
    pub(super) const fn len(&self) -> usize {
        if self.tag.is_some() { 18 } else { 14 }
    }

    fn write(&self, frame: &mut Vec<u8>, dst: Mac, ethertype: EthernetProtocol) {
        frame.extend_from_slice(&dst.0);
        frame.extend_from_slice(&self.src.0);
        if let Some(tag) = self.tag {
            frame.extend_from_slice(&[0x81, 0x00]);
            frame.extend_from_slice(&tag.to_be_bytes());
        }
        frame.extend_from_slice(&u16::from(ethertype).to_be_bytes());
    }
}

/// Zeroes up to the shortest length.
pub(super) fn pad(frame: &mut Vec<u8>) {
    if frame.len() < SHORTEST {
        frame.resize(SHORTEST, 0);
    }
}

/// Room for `len` bytes at the end.
fn more(frame: &mut Vec<u8>, len: usize) -> &mut [u8] {
    let at = frame.len();
    frame.resize(at + len, 0);
    &mut frame[at..]
}

/// The group that a host with this address is asked in (RFC 4291, 2.7.1).
pub(super) fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let o = ip.octets();
    let low = u16::from_be_bytes([o[14], o[15]]);
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(o[13]), low)
}

/// Asks for the address of `target`: everybody, or `known` alone. Both IP addresses are of one family; nothing
/// is written otherwise.
pub(super) fn question(
    frame: &mut Vec<u8>,
    head: Head,
    src: IpAddr,
    target: IpAddr,
    known: Option<Mac>,
) {
    match (src, target) {
        (IpAddr::V4(src), IpAddr::V4(target)) => {
            head.write(frame, known.unwrap_or(Mac([0xff; 6])), EthernetProtocol::Arp);
            let repr = arp(ArpOperation::Request, (head.src, src), (Mac([0; 6]), target));
            repr.emit(&mut ArpPacket::new_unchecked(more(frame, repr.buffer_len())));
        }
        (IpAddr::V6(src), IpAddr::V6(target)) => {
            let group = solicited_node(target);
            let (dst, mac) = match known {
                Some(mac) => (target, mac),
                None => (group, Mac::of(group.into())),
            };
            let lladdr = Some(EthernetAddress(head.src.0).into());
            let repr = NdiscRepr::NeighborSolicit { target_addr: target, lladdr };
            ndisc(frame, head, mac, (src, dst), repr);
        }
        _ => return,
    }
    pad(frame);
}

fn arp(operation: ArpOperation, from: (Mac, Ipv4Addr), to: (Mac, Ipv4Addr)) -> ArpRepr {
    ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: EthernetAddress(from.0.0),
        source_protocol_addr: from.1,
        target_hardware_addr: EthernetAddress(to.0.0),
        target_protocol_addr: to.1,
    }
}

/// Tells an asker who has `ours`.
pub(super) fn arp_reply(frame: &mut Vec<u8>, head: Head, ours: Ipv4Addr, to: (Mac, Ipv4Addr)) {
    head.write(frame, to.0, EthernetProtocol::Arp);
    let repr = arp(ArpOperation::Reply, (head.src, ours), to);
    repr.emit(&mut ArpPacket::new_unchecked(more(frame, repr.buffer_len())));
    pad(frame);
}

/// Tells an asker who has `ours`. One without an address is told in public: it wants to know whether its own is
/// taken (RFC 4861, 7.2.4).
pub(super) fn advertisement(frame: &mut Vec<u8>, head: Head, ours: Ipv6Addr, to: (Mac, Ipv6Addr)) {
    let public = to.1.is_unspecified();
    let (mac, dst) = if public { (Mac::of(ALL_NODES.into()), ALL_NODES) } else { to };
    let solicited =
        if public { NdiscNeighborFlags::empty() } else { NdiscNeighborFlags::SOLICITED };
    let repr = NdiscRepr::NeighborAdvert {
        flags: solicited | NdiscNeighborFlags::OVERRIDE,
        target_addr: ours,
        lladdr: Some(EthernetAddress(head.src.0).into()),
    };
    ndisc(frame, head, mac, (ours, dst), repr);
    pad(frame);
}

fn ndisc(
    frame: &mut Vec<u8>,
    head: Head,
    mac: Mac,
    (src, dst): (Ipv6Addr, Ipv6Addr),
    repr: NdiscRepr<'_>,
) {
    let repr = Icmpv6Repr::Ndisc(repr);
    ipv6(frame, head, mac, (src, dst), 255, repr.buffer_len());
    let mut packet = Icmpv6Packet::new_unchecked(more(frame, repr.buffer_len()));
    repr.emit(&src, &dst, &mut packet, &ChecksumCapabilities::default());
}

fn ipv6(
    frame: &mut Vec<u8>,
    head: Head,
    mac: Mac,
    (src_addr, dst_addr): (Ipv6Addr, Ipv6Addr),
    hop_limit: u8,
    payload_len: usize,
) {
    head.write(frame, mac, EthernetProtocol::Ipv6);
    let next_header = IpProtocol::Icmpv6;
    let ip = Ipv6Repr { src_addr, dst_addr, next_header, payload_len, hop_limit };
    ip.emit(&mut Ipv6Packet::new_unchecked(more(frame, ip.buffer_len())));
}

/// Answers an ICMP echo request that came to `ours`.
pub(super) fn echo_v4(
    frame: &mut Vec<u8>,
    head: Head,
    ours: Ipv4Addr,
    (mac, to): (Mac, Ipv4Addr),
    request: &[u8],
) {
    head.write(frame, mac, EthernetProtocol::Ipv4);
    let ip = Ipv4Repr {
        src_addr: ours,
        dst_addr: to,
        next_header: IpProtocol::Icmp,
        payload_len: request.len(),
        hop_limit: 64,
    };
    let header = more(frame, ip.buffer_len());
    ip.emit(&mut Ipv4Packet::new_unchecked(header), &ChecksumCapabilities::default());
    let packet = more(frame, request.len());
    packet.copy_from_slice(request);
    let mut packet = Icmpv4Packet::new_unchecked(packet);
    packet.set_msg_type(Icmpv4Message::EchoReply);
    packet.fill_checksum();
    pad(frame);
}

/// Answers an ICMPv6 echo request that came to `ours`.
pub(super) fn echo_v6(
    frame: &mut Vec<u8>,
    head: Head,
    ours: Ipv6Addr,
    (mac, to): (Mac, Ipv6Addr),
    request: &[u8],
) {
    ipv6(frame, head, mac, (ours, to), 64, request.len());
    let packet = more(frame, request.len());
    packet.copy_from_slice(request);
    let mut packet = Icmpv6Packet::new_unchecked(packet);
    packet.set_msg_type(Icmpv6Message::EchoReply);
    packet.fill_checksum(&ours, &to);
    pad(frame);
}
