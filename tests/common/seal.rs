//! The ICRC once more, bit by bit from the text of the standard: an opinion that does not depend on the
//! library's.

use std::net::IpAddr;

/// What the ICRC covers of the IP and UDP headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outer {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) src_port: u16,
    /// IPv4 identification.
    pub(crate) ident: u16,
    /// "Don't fragment" (IPv4).
    pub(crate) df: bool,
}

/// CRC-32 of Ethernet, one bit after the other. `crc` is that of what came before, inverted.
fn crc(mut crc: u32, bytes: &[u8]) -> u32 {
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    crc
}

/// The headers in front of `sealed` with ones where they may change on the way (IBTA annex A17.3.3).
fn masked(outer: &Outer, sealed: &[u8]) -> Vec<u8> {
    let udp_len = u16::try_from(8 + sealed.len() + 4).expect("it fits a datagram");
    let mut m = vec![0xff; 8];
    match (outer.src, outer.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            m.extend([0x45, 0xff]);
            m.extend((udp_len + 20).to_be_bytes());
            m.extend(outer.ident.to_be_bytes());
            m.extend([if outer.df { 0x40 } else { 0 }, 0, 0xff, 17, 0xff, 0xff]);
            m.extend(src.octets());
            m.extend(dst.octets());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            m.extend([0x6f, 0xff, 0xff, 0xff]);
            m.extend(udp_len.to_be_bytes());
            m.extend([17, 0xff]);
            m.extend(src.octets());
            m.extend(dst.octets());
        }
        _ => panic!("addresses of two families"),
    }
    m.extend(outer.src_port.to_be_bytes());
    m.extend(4791u16.to_be_bytes());
    m.extend(udp_len.to_be_bytes());
    m.extend([0xff, 0xff]);
    m.extend(sealed);
    let bth = m.len() - sealed.len();
    m[bth + 4] = 0xff;
    m
}

/// The four bytes behind `sealed`, a datagram from the BTH to the pad.
pub(crate) fn icrc(outer: &Outer, sealed: &[u8]) -> [u8; 4] {
    (!crc(!0, &masked(outer, sealed))).to_le_bytes()
}

/// What Linux rdma_rxe writes behind a FLUSH: its CRC runs on over the datagram, unmasked.
pub(crate) fn icrc_of_rxe_flush(outer: &Outer, sealed: &[u8]) -> [u8; 4] {
    (!crc(crc(!0, &masked(outer, sealed)), sealed)).to_le_bytes()
}
