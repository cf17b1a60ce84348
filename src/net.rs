//! What the engine and a port say to each other: datagrams, where they go, and how they came.
//!
//! *Rules.* A datagram is everything from the BTH to the ICRC, that is the payload of UDP. Ports and the
//! fabric speak this vocabulary and know no queue pairs; the engine speaks it and knows no sockets.

use std::net::IpAddr;

use crate::wire::num::Mtu;

/// UDP destination port of RoCEv2, assigned by IANA.
pub const ROCE_PORT: u16 = 4791;

/// The ECN codepoint: the two low bits of the IPv4 TOS byte and of the IPv6 traffic class (RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Ecn {
    /// Sender takes no part in congestion notification.
    #[default]
    NotEct = 0,
    /// ECN-capable, codepoint 1.
    Ect1 = 1,
    /// ECN-capable, codepoint 0; what RoCE senders use.
    Ect0 = 2,
    /// Congestion experienced: marked by a switch on the way.
    Ce = 3,
}

impl Ecn {
    /// The codepoint in a TOS or traffic class byte.
    pub const fn of(traffic_class: u8) -> Self {
        match traffic_class & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }
}

/// The IP and UDP fields of a datagram that its two ends care about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Address of the sender. Both addresses are of one family.
    pub src: IpAddr,
    /// Address of the receiver.
    pub dst: IpAddr,
    /// UDP source port; the destination port is always [`ROCE_PORT`].
    pub src_port: u16,
    /// The whole TOS byte (IPv4) or traffic class (IPv6): DSCP above, [`Ecn`] in the two low bits.
    pub traffic_class: u8,
    /// TTL (IPv4) or hop limit (IPv6).
    pub hop_limit: u8,
    /// Flow label (IPv6), 20 bits; 0 for IPv4.
    pub flow_label: u32,
    /// Scope of a link-local IPv6 address (interface index); else 0.
    pub scope_id: u32,
}

impl Path {
    /// The ECN codepoint of the traffic class.
    pub const fn ecn(&self) -> Ecn {
        Ecn::of(self.traffic_class)
    }

    /// Bytes of IP and UDP headers in front of the datagram.
    pub const fn header_len(&self) -> usize {
        if self.dst.is_ipv4() { 28 } else { 48 }
    }
}

/// One send: a datagram, or several of one size back to back (the last may be shorter).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the bytes leave only if the port is told"]
pub struct Transmit {
    /// Where to and how. The same for all segments.
    pub path: Path,
    /// IPv4 identification that the ICRC of the first segment was computed with; segment `k` was computed
    /// with `ident + k`. Always 0 over IPv6 and on ports that say [`Ident::ZeroThenIndex`].
    pub ident: u16,
    /// Bytes in the buffer, all segments together.
    pub len: usize,
    /// Bytes of each segment; `None` for a single datagram.
    pub segment_size: Option<u16>,
}

impl Transmit {
    /// How many datagrams this is.
    pub fn segments(&self) -> usize {
        match self.segment_size {
            Some(size) => self.len.div_ceil(usize::from(size).max(1)),
            None => 1,
        }
    }
}

/// What is known of a datagram that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxMeta {
    /// Where it came from and how. `path.dst` is one of our addresses (or a multicast group).
    pub path: Path,
    /// IPv4 identification, where the port sees it. `None` on a UDP socket; irrelevant for IPv6.
    pub ident: Option<u16>,
    /// Whether "don't fragment" was set, where the port sees it. `None` means: assume it was.
    pub df: Option<bool>,
    /// Position inside a buffer that the kernel had merged (GRO); 0 for the first or only one. A sender
    /// whose kernel segments numbers the identifications 0, 1, 2, ... by this position.
    pub gro_index: u16,
}

/// How a port chooses the UDP source port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SrcPort {
    /// One socket, one port.
    Fixed(u16),
    /// Any: the engine spreads flows as Linux does (see [`flow_port`] and [`ud_port`]).
    Entropy,
}

/// What a port knows of the IPv4 identification, which the ICRC covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ident {
    /// The kernel writes 0, and `k` into segment `k` of a segmented send (unconnected UDP socket with
    /// `IP_PMTUDISC_PROBE`). On receive it is hidden.
    ZeroThenIndex,
    /// The port writes what [`Transmit::ident`] says and reports what it sees.
    Chosen,
}

/// What a port can do. Fixed while the port lives, but for `mtu` (see [`PortCaps::path_mtu`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortCaps {
    /// How the UDP source port is chosen.
    pub src_port: SrcPort,
    /// What is known of the IPv4 identification.
    pub ident: Ident,
    /// Most segments in one [`Transmit`] over IPv4; 1 where the kernel must not segment.
    pub gso_segments_v4: usize,
    /// Most segments in one [`Transmit`] over IPv6.
    pub gso_segments_v6: usize,
    /// Most bytes in one [`Transmit`], all segments together.
    pub max_transmit: usize,
    /// MTU of the interface (IP packet size).
    pub mtu: u32,
    /// Bytes that the receiving side may buffer before it drops, as granted by the kernel; `None` where
    /// there is no such limit.
    pub rx_buffer: Option<usize>,
}

impl PortCaps {
    /// The largest path MTU that fits the interface: the budget of Linux' `ib_core`, 96 bytes of headers
    /// (`ib_mtu_int_to_enum(mtu - 96)`). `None` below 352.
    pub fn path_mtu(&self) -> Option<Mtu> {
        Mtu::largest_within(self.mtu.saturating_sub(96))
    }
}

/// UDP source port of an RC or UC flow, symmetric in the two queue pair numbers
/// (Linux `rdma_get_udp_sport`: the flow label wins where there is one).
///
/// ```
/// use softroce::net::flow_port;
/// assert_eq!(flow_port(0, 0x11, 0x12), 0xc132);
/// assert_eq!(flow_port(0, 0xabcdef, 0x123456), flow_port(0, 0x123456, 0xabcdef));
/// assert_eq!(flow_port(0x12345, 1, 2), 0xe341);
/// ```
pub const fn flow_port(flow_label: u32, local_qpn: u32, remote_qpn: u32) -> u16 {
    let mut label = flow_label & 0xf_ffff;
    if label == 0 {
        let mut v = local_qpn as u64 * remote_qpn as u64;
        v ^= v >> 20;
        v ^= v >> 40;
        label = (v & 0xf_ffff) as u32;
    }
    0xc000 | low_14(label ^ (label >> 14))
}

/// UDP source port of a UD queue pair: a hash of its own number (Linux `rxe_create_qp`).
///
/// ```
/// assert_eq!(softroce::net::ud_port(0x11), 0xdf94);
/// ```
pub const fn ud_port(qpn: u32) -> u16 {
    0xc000 | low_14(qpn.wrapping_mul(0x61c8_8647) >> 18)
}

/// The low 14 bits: what a port in the dynamic range has to spend.
const fn low_14(v: u32) -> u16 {
    let [_, _, high, low] = v.to_be_bytes();
    u16::from_be_bytes([high & 0x3f, low])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_ports_follow_the_kernel() {
        assert_eq!(flow_port(0, 0x1234, 0x5678), 0xc01a);
        assert_eq!(flow_port(0, 0xab_cdef, 0x12_3456), 0xc3c8);
        assert_eq!(flow_port(0xf_ffff, 1, 1), 0xffc0);
        assert_eq!(flow_port(0x308ef, 1, 1), 0xc8e3);
        assert_eq!(ud_port(0x12), 0xf806);
    }

    #[test]
    fn segments_of_a_transmit() {
        let path = Path {
            src: [127, 0, 0, 2].into(),
            dst: [127, 0, 0, 3].into(),
            src_port: ROCE_PORT,
            traffic_class: 2,
            hop_limit: 64,
            flow_label: 0,
            scope_id: 0,
        };
        let one = Transmit { path, ident: 0, len: 100, segment_size: None };
        assert_eq!(one.segments(), 1);
        assert_eq!(Transmit { segment_size: Some(40), ..one }.segments(), 3);
        assert_eq!(path.ecn(), Ecn::Ect0);
    }
}
