//! Whole frames around a datagram: Ethernet, IP and UDP, for captures, the simulated network and ports
//! that send frames.
//!
//! IP and UDP headers are read and written through `smoltcp`'s wire types; VLAN tags and Linux' cooked
//! headers are a few lines here.
//!
//! *Rules.* [`dissect`] never panics, whatever the bytes. Lengths come from the IP and UDP headers, never
//! from the frame: short Ethernet frames are padded, and some captures carry the frame check sequence.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv6Packet, UdpPacket,
};

use super::icrc::{DST_PORT, IpFields};

const ETHERNET_LEN: usize = EthernetFrame::<&[u8]>::header_len();
const IPV4_LEN: usize = smoltcp::wire::IPV4_HEADER_LEN;
const IPV6_LEN: usize = smoltcp::wire::IPV6_HEADER_LEN;
pub(super) const UDP_LEN: usize = smoltcp::wire::UDP_HEADER_LEN;

/// The most headers that [`emit`] puts in front of a datagram: Ethernet, IPv6, UDP.
pub const MAX_OVERHEAD: usize = ETHERNET_LEN + IPV6_LEN + UDP_LEN;

/// An Ethernet address.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// A locally administered address that stands for an IP address where no real one is known. Different
    /// IPv4 addresses have different ones; of IPv6 addresses, those that differ in the last 40 bits only.
    /// Multicast goes to the group that the RFCs say (1112 and 2464).
    ///
    /// ```
    /// use softroce::wire::frame::Mac;
    /// let mac = |ip: &str| Mac::of(ip.parse().unwrap()).to_string();
    /// assert_eq!(mac("10.99.0.11"), "02:00:0a:63:00:0b");
    /// assert_eq!(mac("224.0.1.99"), "01:00:5e:00:01:63");
    /// assert_eq!(mac("ff02::1:2"), "33:33:00:01:00:02");
    /// ```
    pub fn of(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => {
                let [a, b, c, d] = v4.octets();
                if v4.is_multicast() {
                    Self([0x01, 0x00, 0x5e, b & 0x7f, c, d])
                } else {
                    Self([0x02, 0x00, a, b, c, d])
                }
            }
            IpAddr::V6(v6) => {
                let o = v6.octets();
                if v6.is_multicast() {
                    Self([0x33, 0x33, o[12], o[13], o[14], o[15]])
                } else {
                    // The last five bytes, stirred by the others so that prefixes differ too.
                    let mut mac = [0x02, o[11], o[12], o[13], o[14], o[15]];
                    for (i, byte) in o[..11].iter().enumerate() {
                        mac[1 + i % 5] ^= byte.rotate_left(3);
                    }
                    Self(mac)
                }
            }
        }
    }
}

impl Mac {
    /// Whether it is of a group, broadcast included, and not of one station.
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// What is no Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("wanted six bytes in hex between colons")]
pub struct NoMac;

impl std::str::FromStr for Mac {
    type Err = NoMac;

    /// Reads what [`Display`](fmt::Display) writes: `02:00:0a:63:00:0b`.
    fn from_str(text: &str) -> Result<Self, NoMac> {
        let mut parts = text.split(':');
        let mut mac = [0; 6];
        for byte in &mut mac {
            let part = parts.next().filter(|p| p.len() == 2).ok_or(NoMac)?;
            // Not everything that a number may begin with.
            let digits = part.bytes().all(|b| b.is_ascii_hexdigit());
            *byte = u8::from_str_radix(part, 16).ok().filter(|_| digits).ok_or(NoMac)?;
        }
        if parts.next().is_some() { Err(NoMac) } else { Ok(Self(mac)) }
    }
}

/// The IP and UDP fields around a datagram. The destination port is that of RoCEv2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Address of the sender. Both addresses are of one family.
    pub src: IpAddr,
    /// Address of the receiver.
    pub dst: IpAddr,
    /// UDP source port.
    pub src_port: u16,
    /// The whole TOS byte (IPv4) or traffic class (IPv6).
    pub traffic_class: u8,
    /// TTL (IPv4) or hop limit (IPv6).
    pub hop_limit: u8,
    /// Flow label (IPv6), 20 bits.
    pub flow_label: u32,
    /// Identification (IPv4).
    pub ident: u16,
    /// "Don't fragment" (IPv4).
    pub df: bool,
}

impl Envelope {
    /// What the ICRC covers of it; `None` if the addresses are of different families.
    pub const fn ip_fields(&self) -> Option<IpFields> {
        IpFields::new(self.src, self.dst, self.ident, self.df, self.src_port)
    }

    /// Bytes of the whole frame around a datagram, without Ethernet's own padding and check sequence.
    pub const fn frame_len(&self, datagram_len: usize) -> usize {
        let ip = if self.dst.is_ipv4() { IPV4_LEN } else { IPV6_LEN };
        ETHERNET_LEN + ip + UDP_LEN + datagram_len
    }
}

/// What to write into the UDP checksum. The ICRC does not cover it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpChecksum {
    /// Zero: none. What RoCE NICs send, over IPv6 too.
    Zero,
    /// The checksum over the datagram, as the kernel writes it for a UDP socket.
    Computed,
}

/// Why there is no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmitError {
    /// The two addresses are of different families.
    #[error("source and destination are of different address families")]
    MixedFamilies,
    /// The datagram does not fit the length fields of IP and UDP.
    #[error("the datagram is longer than IP can say")]
    TooLong,
    /// The buffer is shorter than [`Envelope::frame_len`].
    #[error("the buffer is shorter than the frame")]
    BufferTooShort,
}

/// Writes an Ethernet frame to the front of `buf` and returns its length, [`Envelope::frame_len`].
///
/// The IPv4 header has no options, and its checksum is right.
///
/// # Errors
/// As listed at [`EmitError`]; the buffer is then as it was.
pub fn emit(
    buf: &mut [u8],
    src_mac: Mac,
    dst_mac: Mac,
    envelope: &Envelope,
    checksum: UdpChecksum,
    datagram: &[u8],
) -> Result<usize, EmitError> {
    let Envelope { src, dst, .. } = *envelope;
    if src.is_ipv4() != dst.is_ipv4() {
        return Err(EmitError::MixedFamilies);
    }
    // IPv4 counts its own header, IPv6 does not.
    let counted = if dst.is_ipv4() { IPV4_LEN } else { 0 };
    let ip_len = u16::try_from(counted + UDP_LEN + datagram.len());
    let ip_len = ip_len.map_err(|_| EmitError::TooLong)?;
    let len = envelope.frame_len(datagram.len());
    let buf = buf.get_mut(..len).ok_or(EmitError::BufferTooShort)?;

    let mut frame = EthernetFrame::new_unchecked(buf);
    frame.set_src_addr(EthernetAddress(src_mac.0));
    frame.set_dst_addr(EthernetAddress(dst_mac.0));
    let (segment, udp_len) = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            frame.set_ethertype(EthernetProtocol::Ipv4);
            let (header, segment) = frame.payload_mut().split_at_mut(IPV4_LEN);
            write_ipv4(header, envelope, src, dst, ip_len);
            (segment, ip_len - 20)
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            frame.set_ethertype(EthernetProtocol::Ipv6);
            let (header, segment) = frame.payload_mut().split_at_mut(IPV6_LEN);
            write_ipv6(header, envelope, src, dst, ip_len);
            (segment, ip_len)
        }
        _ => return Err(EmitError::MixedFamilies),
    };
    segment[UDP_LEN..].copy_from_slice(datagram);
    let mut udp = UdpPacket::new_unchecked(segment);
    udp.set_src_port(envelope.src_port);
    udp.set_dst_port(DST_PORT);
    udp.set_len(udp_len);
    match checksum {
        UdpChecksum::Zero => udp.set_checksum(0),
        UdpChecksum::Computed => udp.fill_checksum(&src.into(), &dst.into()),
    }
    Ok(len)
}

/// Writes an IPv4 header without options into the 20 bytes of `header`. `len` counts them too.
pub(super) fn write_ipv4(
    header: &mut [u8],
    envelope: &Envelope,
    src: Ipv4Addr,
    dst: Ipv4Addr,
    len: u16,
) {
    header.fill(0);
    let mut ip = Ipv4Packet::new_unchecked(header);
    ip.set_version(4);
    ip.set_header_len(20);
    ip.set_dscp(envelope.traffic_class >> 2);
    ip.set_ecn(envelope.traffic_class & 3);
    ip.set_total_len(len);
    ip.set_ident(envelope.ident);
    ip.set_dont_frag(envelope.df);
    ip.set_hop_limit(envelope.hop_limit);
    ip.set_next_header(IpProtocol::Udp);
    ip.set_src_addr(src);
    ip.set_dst_addr(dst);
    ip.fill_checksum();
}

/// Writes an IPv6 header into the 40 bytes of `header`. `len` does not count them.
pub(super) fn write_ipv6(
    header: &mut [u8],
    envelope: &Envelope,
    src: Ipv6Addr,
    dst: Ipv6Addr,
    len: u16,
) {
    header.fill(0);
    let mut ip = Ipv6Packet::new_unchecked(header);
    ip.set_version(6);
    ip.set_traffic_class(envelope.traffic_class);
    ip.set_flow_label(envelope.flow_label);
    ip.set_payload_len(len);
    ip.set_next_header(IpProtocol::Udp);
    ip.set_hop_limit(envelope.hop_limit);
    ip.set_src_addr(src);
    ip.set_dst_addr(dst);
}

/// What a captured frame begins with: the link types of pcap and pcapng that can carry RoCEv2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkType {
    /// Ethernet, number 1.
    Ethernet,
    /// Linux "cooked", number 113: what the device `any` gives.
    LinuxSll,
    /// The second version of it, number 276.
    LinuxSll2,
    /// IPv4 or IPv6 without a link layer, number 101 (12 and 14 in old files).
    RawIp,
    /// IPv4 without a link layer, number 228.
    Ipv4,
    /// IPv6 without a link layer, number 229.
    Ipv6,
    /// Any other number. Nothing in there is found.
    Other(u16),
}

impl LinkType {
    /// From the number in a capture file (`LINKTYPE_*` of the pcap format).
    pub const fn from_raw(raw: u16) -> Self {
        match raw {
            1 => Self::Ethernet,
            12 | 14 | 101 => Self::RawIp,
            113 => Self::LinuxSll,
            228 => Self::Ipv4,
            229 => Self::Ipv6,
            276 => Self::LinuxSll2,
            other => Self::Other(other),
        }
    }
}

/// A RoCEv2 datagram in its frame.
#[derive(Clone, Copy, Debug)]
pub struct Dissected<'a> {
    /// IP and UDP fields.
    pub envelope: Envelope,
    /// What the ICRC covers of them.
    pub ip: IpFields,
    /// UDP checksum; 0 is none.
    pub udp_checksum: u16,
    /// The datagram, as much of it as was captured.
    pub datagram: &'a [u8],
    /// Its length, as the UDP header says.
    pub datagram_len: usize,
}

impl Dissected<'_> {
    /// Whether the capture cut the datagram short.
    pub const fn is_cut(&self) -> bool {
        self.datagram.len() < self.datagram_len
    }
}

/// Why a frame has no RoCEv2 datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[non_exhaustive]
pub enum NotRoce {
    /// A link layer that is not understood.
    #[error("link type {0}")]
    LinkType(u16),
    /// Captured bytes end before the UDP header does.
    #[error("cut before the end of the UDP header")]
    Cut,
    /// RoCE version 1, which is not IP.
    #[error("RoCE v1 (ethertype 0x8915)")]
    RoceV1,
    /// Neither IPv4 nor IPv6.
    #[error("ethertype {0:#06x}")]
    EtherType(u16),
    /// An IP version that does not fit the link layer.
    #[error("IP version {0}")]
    IpVersion(u8),
    /// Not UDP, or UDP behind IPv6 extension headers.
    #[error("IP protocol {0}")]
    Protocol(u8),
    /// A fragment. RoCEv2 is never fragmented.
    #[error("IP fragment")]
    Fragment,
    /// IPv4 with the reserved flag set, which no host sends (RFC 791) and the ICRC covers.
    #[error("IPv4 with the reserved flag set")]
    ReservedFlag,
    /// UDP to another port.
    #[error("UDP port {0}")]
    Port(u16),
    /// To the port of RoCEv2, but with IPv4 options, which RoCEv2 does not have.
    #[error("UDP port 4791 with IP options")]
    IpOptions,
    /// The lengths in the IP and UDP headers contradict each other.
    #[error("IP and UDP lengths that contradict each other")]
    BadLength,
}

/// Finds the RoCEv2 datagram in a captured frame.
///
/// # Errors
/// Why there is none, as listed at [`NotRoce`].
pub fn dissect(link: LinkType, bytes: &[u8]) -> Result<Dissected<'_>, NotRoce> {
    let (ethertype, packet) = match link {
        LinkType::Ethernet => tagged(bytes, 12, 14)?,
        LinkType::LinuxSll => tagged(bytes, 14, 16)?,
        LinkType::LinuxSll2 => tagged(bytes, 0, 20)?,
        LinkType::Ipv4 => (0x0800, bytes),
        LinkType::Ipv6 => (0x86dd, bytes),
        LinkType::RawIp => match bytes.first().ok_or(NotRoce::Cut)? >> 4 {
            4 => (0x0800, bytes),
            6 => (0x86dd, bytes),
            version => return Err(NotRoce::IpVersion(version)),
        },
        LinkType::Other(raw) => return Err(NotRoce::LinkType(raw)),
    };
    match EthernetProtocol::from(ethertype) {
        EthernetProtocol::Ipv4 => ipv4(packet),
        EthernetProtocol::Ipv6 => ipv6(packet),
        EthernetProtocol::Unknown(0x8915) => Err(NotRoce::RoceV1),
        _ => Err(NotRoce::EtherType(ethertype)),
    }
}

/// The ethertype at `at` and what begins at `header_len`, behind any number of VLAN tags (IEEE 802.1Q).
fn tagged(bytes: &[u8], at: usize, header_len: usize) -> Result<(u16, &[u8]), NotRoce> {
    let mut rest = bytes.get(header_len..).ok_or(NotRoce::Cut)?;
    let mut ethertype = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    while matches!(ethertype, 0x8100 | 0x88a8 | 0x9100) {
        let ([_, _, high, low], behind) = rest.split_first_chunk().ok_or(NotRoce::Cut)?;
        ethertype = u16::from_be_bytes([*high, *low]);
        rest = behind;
    }
    Ok((ethertype, rest))
}

fn ipv4(bytes: &[u8]) -> Result<Dissected<'_>, NotRoce> {
    if bytes.len() < IPV4_LEN {
        return Err(NotRoce::Cut);
    }
    let ip = Ipv4Packet::new_unchecked(bytes);
    if ip.version() != 4 {
        return Err(NotRoce::IpVersion(ip.version()));
    }
    if ip.next_header() != IpProtocol::Udp {
        return Err(NotRoce::Protocol(ip.next_header().into()));
    }
    if ip.more_frags() || ip.frag_offset() != 0 {
        return Err(NotRoce::Fragment);
    }
    if bytes[6] & 0x80 != 0 {
        return Err(NotRoce::ReservedFlag);
    }
    let header_len = usize::from(ip.header_len());
    if header_len < IPV4_LEN {
        return Err(NotRoce::BadLength);
    }
    let envelope = Envelope {
        src: ip.src_addr().into(),
        dst: ip.dst_addr().into(),
        src_port: 0,
        traffic_class: ip.dscp() << 2 | ip.ecn(),
        hop_limit: ip.hop_limit(),
        flow_label: 0,
        ident: ip.ident(),
        df: ip.dont_frag(),
    };
    let segment_len = usize::from(ip.total_len()).checked_sub(header_len);
    let dissected = udp(envelope, bytes.get(header_len..).ok_or(NotRoce::Cut)?, segment_len)?;
    if header_len == IPV4_LEN { Ok(dissected) } else { Err(NotRoce::IpOptions) }
}

fn ipv6(bytes: &[u8]) -> Result<Dissected<'_>, NotRoce> {
    if bytes.len() < IPV6_LEN {
        return Err(NotRoce::Cut);
    }
    let ip = Ipv6Packet::new_unchecked(bytes);
    if ip.version() != 6 {
        return Err(NotRoce::IpVersion(ip.version()));
    }
    match ip.next_header() {
        IpProtocol::Udp => {}
        IpProtocol::Ipv6Frag => return Err(NotRoce::Fragment),
        other => return Err(NotRoce::Protocol(other.into())),
    }
    let envelope = Envelope {
        src: ip.src_addr().into(),
        dst: ip.dst_addr().into(),
        src_port: 0,
        traffic_class: ip.traffic_class(),
        hop_limit: ip.hop_limit(),
        flow_label: ip.flow_label(),
        ident: 0,
        df: true,
    };
    udp(envelope, &bytes[IPV6_LEN..], Some(usize::from(ip.payload_len())))
}

/// The UDP part. `segment_len` is what IP says that UDP has, header and all.
fn udp(
    envelope: Envelope,
    bytes: &[u8],
    segment_len: Option<usize>,
) -> Result<Dissected<'_>, NotRoce> {
    let (header, rest) = bytes.split_at_checked(UDP_LEN).ok_or(NotRoce::Cut)?;
    let udp = UdpPacket::new_unchecked(header);
    if udp.dst_port() != DST_PORT {
        return Err(NotRoce::Port(udp.dst_port()));
    }
    if segment_len != Some(usize::from(udp.len())) {
        return Err(NotRoce::BadLength);
    }
    let datagram_len = usize::from(udp.len()).checked_sub(UDP_LEN).ok_or(NotRoce::BadLength)?;
    let envelope = Envelope { src_port: udp.src_port(), ..envelope };
    Ok(Dissected {
        envelope,
        ip: envelope.ip_fields().expect("both addresses are of one IP header"),
        udp_checksum: udp.checksum(),
        datagram: &rest[..datagram_len.min(rest.len())],
        datagram_len,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn v4() -> Envelope {
        Envelope {
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, 2].into(),
            src_port: 0xc123,
            traffic_class: 0x6a,
            hop_limit: 64,
            flow_label: 0,
            ident: 0x1234,
            df: true,
        }
    }

    fn v6() -> Envelope {
        Envelope {
            src: "2001:db8::1".parse().unwrap(),
            dst: "2001:db8::2".parse().unwrap(),
            flow_label: 0x1_2345,
            ident: 0,
            ..v4()
        }
    }

    fn frame(envelope: &Envelope, datagram: &[u8]) -> Vec<u8> {
        let mut buf = vec![0xaa; envelope.frame_len(datagram.len())];
        let macs = (Mac::of(envelope.src), Mac::of(envelope.dst));
        let len = emit(&mut buf, macs.0, macs.1, envelope, UdpChecksum::Computed, datagram);
        assert_eq!(len, Ok(buf.len()));
        buf
    }

    #[track_caller]
    fn found(link: LinkType, bytes: &[u8]) -> (Envelope, Vec<u8>) {
        let d = dissect(link, bytes).unwrap();
        assert!(!d.is_cut());
        (d.envelope, d.datagram.to_vec())
    }

    #[test]
    fn frames_of_both_families() {
        for envelope in [v4(), v6()] {
            let b = frame(&envelope, b"datagram");
            assert_eq!(found(LinkType::Ethernet, &b), (envelope, b"datagram".to_vec()));
            let mut b = b;
            // A trailer, be it padding or a check sequence, is not part of it.
            b.extend([0; 20]);
            assert_eq!(found(LinkType::Ethernet, &b), (envelope, b"datagram".to_vec()));
        }
    }

    #[test]
    fn checksums() {
        for envelope in [v4(), v6()] {
            let b = frame(&envelope, b"datagram");
            let (src, dst) = (envelope.src.into(), envelope.dst.into());
            let segment = match envelope.src {
                IpAddr::V4(_) => {
                    let ip = Ipv4Packet::new_checked(&b[14..]).unwrap();
                    assert!(ip.verify_checksum());
                    ip.payload()
                }
                IpAddr::V6(_) => Ipv6Packet::new_checked(&b[14..]).unwrap().payload(),
            };
            let udp = UdpPacket::new_checked(segment).unwrap();
            assert_ne!(udp.checksum(), 0);
            assert!(udp.verify_checksum(&src, &dst));
            let mut zero = b.clone();
            let mac = Mac::default();
            emit(&mut zero, mac, mac, &envelope, UdpChecksum::Zero, b"datagram").unwrap();
            assert_eq!(dissect(LinkType::Ethernet, &zero).unwrap().udp_checksum, 0);
        }
    }

    #[test]
    fn what_cannot_be_a_frame() {
        let mut buf = vec![0; 70_000];
        let mac = Mac::default();
        let zero = UdpChecksum::Zero;
        let mixed = Envelope { dst: v6().dst, ..v4() };
        assert_eq!(emit(&mut buf, mac, mac, &mixed, zero, &[]), Err(EmitError::MixedFamilies));
        let most = vec![0; 65_535 - 28];
        assert_eq!(emit(&mut buf, mac, mac, &v4(), zero, &most), Ok(65_535 + 14));
        let more = vec![0; 65_535 - 27];
        assert_eq!(emit(&mut buf, mac, mac, &v4(), zero, &more), Err(EmitError::TooLong));
        let most = vec![0; 65_535 - 8];
        assert_eq!(emit(&mut buf, mac, mac, &v6(), zero, &most), Ok(65_535 + 54));
        let more = vec![0; 65_535 - 7];
        assert_eq!(emit(&mut buf, mac, mac, &v6(), zero, &more), Err(EmitError::TooLong));
        let short = &mut buf[..41];
        assert_eq!(emit(short, mac, mac, &v4(), zero, &[]), Err(EmitError::BufferTooShort));
    }

    #[test]
    fn link_layers() {
        for envelope in [v4(), v6()] {
            let ethernet = frame(&envelope, b"datagram");
            let (ethertype, packet) = (&ethernet[12..14], &ethernet[14..]);
            let expected = (envelope, b"datagram".to_vec());
            let one_tag = [&ethernet[..12], &[0x81, 0, 0, 7], ethertype, packet].concat();
            assert_eq!(found(LinkType::Ethernet, &one_tag), expected);
            let two_tags =
                [&ethernet[..12], &[0x88, 0xa8, 0, 7, 0x81, 0, 0, 8], ethertype, packet].concat();
            assert_eq!(found(LinkType::Ethernet, &two_tags), expected);
            let sll = [&[0; 14], ethertype, packet].concat();
            assert_eq!(found(LinkType::LinuxSll, &sll), expected);
            let sll2 = [ethertype, &[0; 18], packet].concat();
            assert_eq!(found(LinkType::LinuxSll2, &sll2), expected);
            assert_eq!(found(LinkType::RawIp, packet), expected);
            let own = if envelope.src.is_ipv4() { LinkType::Ipv4 } else { LinkType::Ipv6 };
            assert_eq!(found(own, packet), expected);
        }
        assert_eq!(LinkType::from_raw(12), LinkType::RawIp);
        assert_eq!(LinkType::from_raw(276), LinkType::LinuxSll2);
        assert_eq!(LinkType::from_raw(105), LinkType::Other(105));
    }

    #[track_caller]
    fn refused(bytes: &[u8], at: usize, value: u8, why: NotRoce) {
        let mut b = bytes.to_vec();
        b[at] = value;
        assert_eq!(dissect(LinkType::Ethernet, &b).unwrap_err(), why);
    }

    #[test]
    fn what_is_not_rocev2() {
        let b = frame(&v4(), b"datagram");
        refused(&b, 12, 0x86, NotRoce::EtherType(0x8600));
        refused(&b, 14, 0x65, NotRoce::IpVersion(6));
        refused(&b, 14, 0x44, NotRoce::BadLength);
        refused(&b, 23, 6, NotRoce::Protocol(6));
        refused(&b, 20, 0x20, NotRoce::Fragment);
        refused(&b, 21, 0x01, NotRoce::Fragment);
        refused(&b, 20, 0xc0, NotRoce::ReservedFlag);
        refused(&b, 17, 37, NotRoce::BadLength);
        refused(&b, 39, 15, NotRoce::BadLength);
        refused(&b, 37, 0xb8, NotRoce::Port(4792));
        let b = frame(&v6(), b"datagram");
        refused(&b, 14, 0x45, NotRoce::IpVersion(4));
        refused(&b, 20, 0, NotRoce::Protocol(0));
        refused(&b, 20, 44, NotRoce::Fragment);

        let roce_v1 = [&b[..12], &[0x89, 0x15], &b[14..]].concat();
        assert_eq!(dissect(LinkType::Ethernet, &roce_v1).unwrap_err(), NotRoce::RoceV1);
        assert_eq!(dissect(LinkType::Other(105), &b).unwrap_err(), NotRoce::LinkType(105));
        assert_eq!(dissect(LinkType::RawIp, &[0x15]).unwrap_err(), NotRoce::IpVersion(1));
    }

    #[test]
    fn ip_options_are_refused_by_name() {
        let mut b = frame(&v4(), b"datagram");
        b[14] = 0x46;
        b[17] += 4;
        b.splice(34..34, [0; 4]);
        assert_eq!(dissect(LinkType::Ethernet, &b).unwrap_err(), NotRoce::IpOptions);
        b[41] += 1;
        assert_eq!(dissect(LinkType::Ethernet, &b).unwrap_err(), NotRoce::Port(4792));
    }

    #[test]
    fn cut_frames() {
        for envelope in [v4(), v6()] {
            let b = frame(&envelope, b"datagram");
            let headers = b.len() - 8;
            for len in 0..headers {
                let why = dissect(LinkType::Ethernet, &b[..len]).unwrap_err();
                assert_eq!(why, NotRoce::Cut, "{len} bytes");
            }
            for len in headers..b.len() {
                let d = dissect(LinkType::Ethernet, &b[..len]).unwrap();
                assert!(d.is_cut());
                assert_eq!((d.datagram.len(), d.datagram_len), (len - headers, 8));
            }
        }
    }

    #[test]
    fn addresses_are_read_as_they_are_written() {
        let mac = Mac([0x02, 0x00, 0x0a, 0x63, 0x00, 0xfb]);
        assert_eq!(mac.to_string().parse(), Ok(mac));
        assert_eq!("02:00:0A:63:00:FB".parse(), Ok(mac));
        for bad in
            ["", "02:00:0a:63:00", "02:00:0a:63:00:fb:1", "2:0:a:63:0:fb", "+2:00:0a:63:00:fb"]
        {
            assert_eq!(bad.parse::<Mac>(), Err(NoMac), "{bad}");
        }
        assert!(Mac([0xff; 6]).is_group() && !mac.is_group());
    }

    proptest! {
        #[test]
        fn dissecting_never_panics(
            bytes in proptest::collection::vec(any::<u8>(), 0..120),
            raw in prop_oneof![
                Just(1u16), Just(101), Just(113), Just(228), Just(229), Just(276), any::<u16>()
            ],
        ) {
            let _ = dissect(LinkType::from_raw(raw), &bytes);
        }

        #[test]
        fn dissecting_damaged_frames_never_panics(
            six: bool, at in 0usize..90, value: u8, cut in 0usize..90,
        ) {
            let mut b = frame(&if six { v6() } else { v4() }, &[7; 16]);
            let at = at % b.len();
            b[at] = value;
            b.truncate(cut);
            if let Ok(d) = dissect(LinkType::Ethernet, &b) {
                prop_assert!(d.datagram.len() <= d.datagram_len);
            }
        }

        #[test]
        fn every_field_comes_back(
            six: bool, src: u128, dst: u128, src_port: u16, traffic_class: u8, hop_limit: u8,
            flow_label in 0u32..1 << 20, ident: u16, df: bool,
            datagram in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let octets = |n: u128| n.to_be_bytes();
            let quad = |n: u128| <[u8; 4]>::try_from(&octets(n)[..4]).unwrap();
            let envelope = if six {
                let (src, dst) = (octets(src).into(), octets(dst).into());
                Envelope {
                    src, dst, src_port, traffic_class, hop_limit, flow_label, ident: 0, df: true,
                }
            } else {
                let (src, dst) = (quad(src).into(), quad(dst).into());
                Envelope {
                    src, dst, src_port, traffic_class, hop_limit, flow_label: 0, ident, df,
                }
            };
            let b = frame(&envelope, &datagram);
            prop_assert_eq!(found(LinkType::Ethernet, &b), (envelope, datagram));
        }
    }
}
