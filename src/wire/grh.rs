//! The 40 bytes in front of a datagram in its receive buffer: where InfiniBand puts its global route header,
//! RoCEv2 puts the IP header.
//!
//! *Rules* (IBTA annex A17, `ibv_create_ah_from_wc(3)`). An IPv6 header fills the 40 bytes. An IPv4 header takes
//! the last 20, and what stands before it means nothing; here it is zero. A socket does not show the header
//! that arrived, so it is written anew from what is known of it, with the checksum that readers check.

use std::net::IpAddr;

use smoltcp::wire::{IpProtocol, Ipv4Packet, Ipv6Packet};

use super::frame::{Envelope, UDP_LEN, write_ipv4, write_ipv6};

/// The fields of an IP header that tell where a datagram came from.
///
/// ```
/// use softroce::wire::grh::Grh;
/// let grh = Grh {
///     src: [10, 0, 0, 1].into(),
///     dst: [10, 0, 0, 2].into(),
///     traffic_class: 0x68,
///     hop_limit: 64,
///     flow_label: 0,
/// };
/// let bytes = grh.emit(32).unwrap();
/// assert_eq!((&bytes[..20], bytes[20], bytes[39]), (&[0; 20][..], 0x45, 2));
/// assert_eq!(Grh::parse(&bytes), Some(grh));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grh {
    /// Address of the sender. Both addresses are of one family.
    pub src: IpAddr,
    /// Address of the receiver, or a multicast group.
    pub dst: IpAddr,
    /// The whole TOS byte (IPv4) or traffic class (IPv6).
    pub traffic_class: u8,
    /// TTL (IPv4) or hop limit (IPv6), as it arrived.
    pub hop_limit: u8,
    /// Flow label (IPv6), 20 bits; 0 for IPv4.
    pub flow_label: u32,
}

impl Grh {
    /// Bytes that it takes.
    pub const LEN: usize = 40;

    /// The bytes in front of a datagram of `datagram_len` bytes, BTH to ICRC. `None` if the addresses are of
    /// different families, or the datagram is longer than IP can say.
    pub fn emit(&self, datagram_len: usize) -> Option<[u8; Self::LEN]> {
        let mut bytes = [0; Self::LEN];
        let envelope = Envelope {
            src: self.src,
            dst: self.dst,
            src_port: 0,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            flow_label: self.flow_label,
            ident: 0,
            df: true,
        };
        let udp_len = u16::try_from(UDP_LEN + datagram_len).ok()?;
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let len = udp_len.checked_add(20)?;
                write_ipv4(&mut bytes[20..], &envelope, src, dst, len);
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                write_ipv6(&mut bytes, &envelope, src, dst, udp_len);
            }
            _ => return None,
        }
        Some(bytes)
    }

    /// Reads it, told apart as libibverbs does: an IPv4 header without options and with a correct checksum, or
    /// an IPv6 header; in either case one that UDP follows. `None` if it is neither.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let v4 = Ipv4Packet::new_unchecked(&bytes[20..]);
        let v6 = Ipv6Packet::new_unchecked(&bytes[..]);
        if bytes[20] == 0x45 && v4.next_header() == IpProtocol::Udp && v4.verify_checksum() {
            Some(Self {
                src: v4.src_addr().into(),
                dst: v4.dst_addr().into(),
                traffic_class: bytes[21],
                hop_limit: v4.hop_limit(),
                flow_label: 0,
            })
        } else if v6.version() == 6 && v6.next_header() == IpProtocol::Udp {
            Some(Self {
                src: v6.src_addr().into(),
                dst: v6.dst_addr().into(),
                traffic_class: v6.traffic_class(),
                hop_limit: v6.hop_limit(),
                flow_label: v6.flow_label(),
            })
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_headers_byte_by_byte() {
        let mut grh = Grh {
            src: [192, 168, 0, 1].into(),
            dst: [192, 168, 0, 199].into(),
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        };
        let v4 = grh.emit(87).unwrap();
        assert_eq!(v4[..20], [0; 20]);
        // The well-known example of a header checksum, but for a longer datagram and without fragments.
        assert_eq!(
            v4[20..],
            [
                0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 192, 168, 0, 1, 192, 168,
                0, 199
            ]
        );
        grh.src = "fd00::1".parse().unwrap();
        assert_eq!(grh.emit(87), None, "two families");
        grh.dst = "ff02::2".parse().unwrap();
        (grh.traffic_class, grh.flow_label) = (0x12, 0x3_4567);
        let v6 = grh.emit(87).unwrap();
        assert_eq!(v6[..8], [0x61, 0x23, 0x45, 0x67, 0, 95, 17, 64]);
        assert_eq!((v6[8], v6[23], v6[24], v6[39]), (0xfd, 1, 0xff, 2));
        assert_eq!(grh.emit(1 << 16), None);
    }

    #[test]
    fn what_is_no_header() {
        let grh = Grh {
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, 2].into(),
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        };
        assert_eq!(Grh::parse(&[0; 40]), None);
        let good = grh.emit(16).unwrap();
        for (at, byte) in [(20, 0x46), (29, 6), (31, good[31] ^ 1)] {
            let mut bytes = good;
            bytes[at] = byte;
            assert_eq!(Grh::parse(&bytes), None, "byte {at}");
        }
        // Whatever stands before an IPv4 header does not matter.
        let mut bytes = good;
        bytes[0] = 0x60;
        assert_eq!(Grh::parse(&bytes), Some(grh));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            a in any::<[u8; 16]>(), b in any::<[u8; 16]>(), v4: bool, traffic_class: u8, hop_limit: u8,
            flow_label in 0u32..1 << 20, len in 16usize..4200,
        ) {
            let ip = |x: [u8; 16]| -> IpAddr {
                if v4 { [x[0], x[1], x[2], x[3]].into() } else { x.into() }
            };
            let flow_label = if v4 { 0 } else { flow_label };
            let grh = Grh { src: ip(a), dst: ip(b), traffic_class, hop_limit, flow_label };
            let bytes = grh.emit(len).unwrap();
            // An IPv6 header may, once in a great while, look like an IPv4 one in its second half.
            prop_assume!(v4 || bytes[20] != 0x45);
            prop_assert_eq!(Grh::parse(&bytes), Some(grh));
        }

        #[test]
        fn any_bytes_can_be_read(bytes in proptest::array::uniform(any::<u8>())) {
            let _ = Grh::parse(&bytes);
        }
    }
}
