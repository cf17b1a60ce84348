//! The ICRC: the invariant CRC at the end of every datagram (IBTA 7.8 and annex A17).
//!
//! A CRC-32 (that of Ethernet) over 8 bytes of ones, the IP header, the UDP header, and the datagram from
//! the BTH to the pad, where everything that may change on the way counts as ones: TOS, TTL and header
//! checksum of IPv4; traffic class, flow label and hop limit of IPv6; the UDP checksum; byte 4 of the BTH.
//! It is the only little-endian field of a packet.
//!
//! *Rules.* The IPv4 identification and the "don't fragment" bit are covered, so whoever computes an ICRC
//! must know what the IP layer writes there. A receiver that does not see the identification may solve for
//! it: [`recover_ident`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use super::bth::Bth;

/// Bytes of an ICRC.
pub const LEN: usize = 4;

/// Destination port of RoCEv2, which the ICRC covers.
pub(super) const DST_PORT: u16 = 4791;

/// IP protocol number of UDP.
const UDP: u8 = 17;

/// The CRC after the leading 8 bytes of ones, from where every computation goes on.
const AFTER_ONES: u32 = !0xdebb_20e3;

/// Where every computation begins. It knows already what the processor can do.
static BEHIND_ONES: LazyLock<crc32fast::Hasher> =
    LazyLock::new(|| crc32fast::Hasher::new_with_initial(AFTER_ONES));

/// The IP and UDP fields that the ICRC covers. Lengths are derived from the datagram, and the destination
/// port is that of RoCEv2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpFields(Family);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4 { src: Ipv4Addr, dst: Ipv4Addr, ident: u16, df: bool, src_port: u16 },
    V6 { src: Ipv6Addr, dst: Ipv6Addr, src_port: u16 },
}

impl IpFields {
    /// Over IPv4: identification and "don't fragment" as they are on the wire. No options, no fragments.
    pub const fn v4(src: Ipv4Addr, dst: Ipv4Addr, ident: u16, df: bool, src_port: u16) -> Self {
        Self(Family::V4 { src, dst, ident, df, src_port })
    }

    /// Over IPv6, without extension headers.
    pub const fn v6(src: Ipv6Addr, dst: Ipv6Addr, src_port: u16) -> Self {
        Self(Family::V6 { src, dst, src_port })
    }

    /// Over either family; over IPv6 `ident` and `df` do not exist. `None` if the families differ.
    pub const fn new(
        src: IpAddr,
        dst: IpAddr,
        ident: u16,
        df: bool,
        src_port: u16,
    ) -> Option<Self> {
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Self::v4(src, dst, ident, df, src_port)),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Self::v6(src, dst, src_port)),
            _ => None,
        }
    }

    /// The same with another IPv4 identification. Nothing changes over IPv6.
    #[must_use]
    pub const fn with_ident(self, ident: u16) -> Self {
        match self.0 {
            Family::V4 { src, dst, df, src_port, .. } => Self::v4(src, dst, ident, df, src_port),
            Family::V6 { .. } => self,
        }
    }
}

/// Length of the masked headers: IP, UDP, BTH.
const V4_LEN: usize = 20 + 8 + Bth::LEN;
const V6_LEN: usize = 40 + 8 + Bth::LEN;
/// What stands behind the BTH of a short packet is summed together with the headers: each start of a CRC costs
/// as much as these bytes do.
const SHORT: usize = 64;

/// The ICRC of a datagram, as a number. `sealed` is the datagram from the BTH to the pad, without the ICRC.
///
/// On the wire it goes out least significant byte first. 0 for less than a BTH, which has no ICRC; and of
/// no use for what does not fit a UDP datagram.
pub fn compute(ip: &IpFields, sealed: &[u8]) -> u32 {
    let Some((bth, rest)) = sealed.split_first_chunk() else { return 0 };
    let mut b = [0xff; V6_LEN + SHORT];
    let len = headers(&mut b, ip, sealed.len(), bth);
    let mut hasher = BEHIND_ONES.clone();
    if rest.len() <= SHORT {
        b[len..len + rest.len()].copy_from_slice(rest);
        hasher.update(&b[..len + rest.len()]);
    } else {
        hasher.update(&b[..len]);
        hasher.update(rest);
    }
    hasher.finalize()
}

/// Writes the headers of a datagram of which `sealed` bytes count, masked, up to the end of the BTH. `b` is all ones.
/// Gives their length.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the length fields have 16 bits")]
fn headers(
    b: &mut [u8; V6_LEN + SHORT],
    ip: &IpFields,
    sealed: usize,
    bth: &[u8; Bth::LEN],
) -> usize {
    let udp_len = (8 + sealed + LEN) as u16;
    match *ip {
        IpFields(Family::V4 { src, dst, ident, df, src_port }) => {
            b[0] = 0x45;
            b[2..4].copy_from_slice(&udp_len.wrapping_add(20).to_be_bytes());
            b[4..6].copy_from_slice(&ident.to_be_bytes());
            b[6] = u8::from(df) << 6;
            b[7] = 0;
            b[9] = UDP;
            b[12..16].copy_from_slice(&src.octets());
            b[16..20].copy_from_slice(&dst.octets());
            b[20..V4_LEN].copy_from_slice(&masked_transport(src_port, udp_len, bth));
            V4_LEN
        }
        IpFields(Family::V6 { src, dst, src_port }) => {
            b[0] = 0x6f;
            b[4..6].copy_from_slice(&udp_len.to_be_bytes());
            b[6] = UDP;
            b[8..24].copy_from_slice(&src.octets());
            b[24..40].copy_from_slice(&dst.octets());
            b[40..V6_LEN].copy_from_slice(&masked_transport(src_port, udp_len, bth));
            V6_LEN
        }
    }
}

/// UDP and base transport header with ones where they are not covered.
fn masked_transport(src_port: u16, udp_len: u16, bth: &[u8; Bth::LEN]) -> [u8; 8 + Bth::LEN] {
    let mut b = [0xff; 8 + Bth::LEN];
    b[..2].copy_from_slice(&src_port.to_be_bytes());
    b[2..4].copy_from_slice(&DST_PORT.to_be_bytes());
    b[4..6].copy_from_slice(&udp_len.to_be_bytes());
    b[8..].copy_from_slice(bth);
    b[8 + 4] = 0xff;
    b
}

/// The ICRCs of datagrams that are alike: between the same addresses and ports, of one length, and with one
/// beginning, which ends in front of the PSN. What they share is summed once.
///
/// They may differ in the IPv4 identification. A CRC is linear, so what another identification changes is added
/// to the sum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alike {
    beginning: [u8; Self::BEGINNING],
    /// Bytes from the BTH to the pad.
    sealed: u32,
    /// The sum of what they share, with identification 0.
    shared: u32,
    has_ident: bool,
}

impl Alike {
    /// Bytes with which each of them begins.
    pub(crate) const BEGINNING: usize = 8;

    /// Those of which there are none.
    pub(crate) const NONE: Self =
        Self { beginning: [0; Self::BEGINNING], sealed: 0, shared: 0, has_ident: false };

    /// Those that are like `sealed`, a datagram from the BTH to the pad. The identification of `ip` does not
    /// matter. `None` for less than a BTH.
    pub(crate) fn new(ip: &IpFields, sealed: &[u8]) -> Option<Self> {
        let mut b = [0xff; V6_LEN + SHORT];
        let len = headers(&mut b, &ip.with_ident(0), sealed.len(), sealed.first_chunk()?);
        let mut hasher = BEHIND_ONES.clone();
        hasher.update(&b[..len - (Bth::LEN - Self::BEGINNING)]);
        Some(Self {
            beginning: *sealed.first_chunk()?,
            sealed: u32::try_from(sealed.len()).ok()?,
            shared: hasher.finalize(),
            has_ident: matches!(ip.0, Family::V4 { .. }),
        })
    }

    /// Whether this is one of them, as far as the datagram tells.
    #[inline]
    pub(crate) fn has(&self, sealed: &[u8]) -> bool {
        sealed.len() == self.sealed as usize && sealed.first_chunk() == Some(&self.beginning)
    }

    /// The ICRC of one of them; `sealed` is all of it, from the BTH to the pad.
    ///
    /// The word with the PSN is summed apart. It may have been written just now, and a processor that loads 16
    /// bytes at once waits for the stores of which they are made.
    #[inline]
    pub(crate) fn compute(&self, ident: u16, sealed: &[u8]) -> u32 {
        let Some((head, rest)) = sealed.split_first_chunk::<{ Bth::LEN }>() else { return 0 };
        let [.., a, b, c, d] = *head;
        let ident = if self.has_ident { ident } else { 0 };
        let [high, low] = ident.to_be_bytes();
        let added = IDENT[0][usize::from(high)] ^ IDENT[1][usize::from(low)];
        let sum = word(self.shared ^ added, [a, b, c, d]);
        match *rest {
            [] => sum,
            // An ACK.
            [a, b, c, d] => word(sum, [a, b, c, d]),
            _ => crc(sum, rest),
        }
    }

    /// Whether the ICRC at the end of one of them is right.
    #[inline]
    pub(crate) fn check(&self, ident: u16, datagram: &[u8]) -> bool {
        split(datagram).is_some_and(|(sealed, icrc)| self.compute(ident, sealed) == icrc)
    }
}

/// Continues a CRC (a finished one) over four bytes.
#[inline]
fn word(so_far: u32, bytes: [u8; 4]) -> u32 {
    // As a remainder, which is what a step works on.
    let [a, b, c, d] = (!so_far ^ u32::from_le_bytes(bytes)).to_le_bytes();
    let [t3, t2, t1, t0] = &WORD;
    !(t3[usize::from(a)] ^ t2[usize::from(b)] ^ t1[usize::from(c)] ^ t0[usize::from(d)])
}

/// What each value of the four bytes of a word adds to a remainder.
static WORD: [[u32; 256]; 4] = [moved(3), moved(2), moved(1), moved(0)];

/// What each value of the two bytes of an identification adds to the sum of what datagrams share.
static IDENT: [[u32; 256]; 2] = {
    // Bytes behind the two: of IP, of UDP, and of the datagram.
    const BEHIND: usize = 14 + 8 + Alike::BEGINNING;
    [moved(BEHIND + 1), moved(BEHIND)]
};

/// What each value of a byte adds to a CRC if `behind` bytes follow it.
#[expect(clippy::cast_possible_truncation, reason = "less than 256")]
const fn moved(behind: usize) -> [u32; 256] {
    // A step over a byte, its own or another, multiplies by x^8.
    let mut steps = ONE;
    let mut bits = 0;
    while bits < 8 * (1 + behind) {
        steps = multiply(steps, ONE >> 1);
        bits += 1;
    }
    let mut of = [0; 256];
    let mut byte = 0;
    while byte < of.len() {
        of[byte] = multiply(byte as u32, steps);
        byte += 1;
    }
    of
}

/// Whether the ICRC at the end of a datagram is right. Less than a BTH and an ICRC is wrong.
pub fn check(ip: &IpFields, datagram: &[u8]) -> bool {
    split(datagram).is_some_and(|(sealed, icrc)| compute(ip, sealed) == icrc)
}

/// The IPv4 identification that explains the ICRC of a received datagram, if one does. That of `ip` does
/// not matter; the rest of `ip` must be right.
///
/// If the datagram is intact, the answer is the identification it travelled with. If it is not, there is
/// still one with a probability of 2^-16: who accepts any identification has a 16-bit check. `None` over
/// IPv6, which has no such field, and for less than a BTH and an ICRC.
///
/// A CRC is linear: two datagrams of one length that differ in the identification alone have ICRCs that
/// differ by `ident(x) * x^(8n + 32)`, where `n` is the number of bytes behind the field. Multiplying the
/// difference by `x^-(8n + 32)` gives the identification back, and 16 zero bits.
pub fn recover_ident(ip: &IpFields, datagram: &[u8]) -> Option<u16> {
    let IpFields(Family::V4 { .. }) = ip else { return None };
    let (sealed, icrc) = split(datagram)?;
    explain(icrc ^ compute(&ip.with_ident(0), sealed), sealed.len())
}

/// The same for a FLUSH of Linux rdma_rxe, see [`compute_rxe_flush`].
pub fn recover_ident_rxe_flush(ip: &IpFields, datagram: &[u8]) -> Option<u16> {
    let IpFields(Family::V4 { .. }) = ip else { return None };
    let (sealed, icrc) = split(datagram)?;
    explain(icrc ^ compute_rxe_flush(&ip.with_ident(0), sealed), 2 * sealed.len())
}

/// The identification that makes this difference to a sum with identification 0 that covers so many bytes behind the
/// UDP header.
pub(crate) fn explain(delta: u32, covered: usize) -> Option<u16> {
    // Behind the identification: 14 bytes of IP, 8 of UDP, and what is covered; and the 32 bits of the CRC.
    let n = u16::try_from(14 + 8 + covered + 4).ok()?;
    let ident = multiply(delta, inverse_of_bytes(n));
    let [high, low, 0, 0] = ident.to_be_bytes() else { return None };
    // Bits of a CRC run backwards, so the byte that stands first in the packet is the lower one.
    Some(u16::from_be_bytes([low, high]))
}

/// What Linux rdma_rxe (6.12 and 7.3) writes as the ICRC of a FLUSH: the CRC runs on over the sealed part,
/// unmasked, a second time. By the book it is [`compute`].
pub fn compute_rxe_flush(ip: &IpFields, sealed: &[u8]) -> u32 {
    crc(compute(ip, sealed), sealed)
}

/// Whether the ICRC at the end of a datagram is that of a FLUSH of Linux rdma_rxe, see [`compute_rxe_flush`].
pub fn check_rxe_flush(ip: &IpFields, datagram: &[u8]) -> bool {
    split(datagram).is_some_and(|(sealed, icrc)| compute_rxe_flush(ip, sealed) == icrc)
}

/// Splits a datagram into what the ICRC covers and the ICRC.
fn split(datagram: &[u8]) -> Option<(&[u8], u32)> {
    let (sealed, icrc) = datagram.split_last_chunk::<LEN>()?;
    (sealed.len() >= Bth::LEN).then_some((sealed, u32::from_le_bytes(*icrc)))
}

/// Continues the CRC `so_far` (a finished one) over `bytes`.
fn crc(so_far: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(so_far);
    hasher.update(bytes);
    hasher.finalize()
}

/// The polynomial, reflected: bit 31 is the coefficient of x^0.
const POLY: u32 = 0xedb8_8320;

/// Product of two polynomials modulo [`POLY`].
const fn multiply(mut a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    while b != 0 {
        if b & 0x8000_0000 != 0 {
            product ^= a;
        }
        b <<= 1;
        a = if a & 1 != 0 { a >> 1 ^ POLY } else { a >> 1 };
    }
    product
}

/// x^0.
const ONE: u32 = 0x8000_0000;

/// x^-1: times x it is the constant 1.
const X_INVERSE: u32 = POLY << 1 | 1;

/// `x^-(8 * step)` to the powers 0 to 255.
const fn inverse_powers(step: u32) -> [u32; 256] {
    let mut base = X_INVERSE;
    let mut bits = 1;
    while bits < 8 * step {
        base = multiply(base, base);
        bits *= 2;
    }
    let mut powers = [ONE; 256];
    let mut i = 1;
    while i < 256 {
        powers[i] = multiply(powers[i - 1], base);
        i += 1;
    }
    powers
}

/// x^-(8n). Two table look-ups and a product, for the receive path of kernel peers comes through here once
/// per packet.
fn inverse_of_bytes(n: u16) -> u32 {
    static LOW: [u32; 256] = inverse_powers(1);
    static HIGH: [u32; 256] = inverse_powers(256);
    let [high, low] = n.to_be_bytes();
    multiply(LOW[usize::from(low)], HIGH[usize::from(high)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    /// "Hello, RoCEv2" in an RC SEND ONLY, without the ICRC.
    const SEALED: [u8; 28] =
        *b"\x04\xf0\xff\xff\x00\x00\x00\x12\x80\x12\x34\x56Hello, RoCEv2\0\0\0";

    fn sealed_with(icrc: u32) -> Vec<u8> {
        [&SEALED[..], &icrc.to_le_bytes()].concat()
    }

    #[test]
    fn known_values() {
        // The first differs from the second in the identification only.
        let ip = IpFields::v4(A, B, 0, true, 0xc123);
        assert_eq!(compute(&ip, &SEALED), 0x9272_812c);
        assert_eq!(compute(&ip.with_ident(0x1234), &SEALED), 0xcb94_6660);
        assert!(check(&ip, &sealed_with(0x9272_812c)));
        assert!(!check(&ip, &sealed_with(0x9272_812d)));
        assert!(!check(&ip, &[]));
    }

    #[test]
    fn byte_4_of_the_bth_is_free_to_change() {
        let ip = IpFields::v6(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST, 1);
        let mut marked = SEALED;
        marked[4] = 0xc0;
        assert_eq!(compute(&ip, &marked), compute(&ip, &SEALED));
    }

    #[test]
    fn families_do_not_mix() {
        let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
        assert_eq!(IpFields::new(A.into(), v6, 0, true, 1), None);
        assert_eq!(IpFields::new(v6, B.into(), 0, true, 1), None);
        assert!(IpFields::new(v6, v6, 0, true, 1).is_some());
    }

    #[test]
    fn the_inverse_of_x() {
        let x = ONE >> 1;
        assert_eq!(multiply(X_INVERSE, x), ONE);
        let mut byte = ONE;
        for _ in 0..8 {
            byte = multiply(byte, x);
        }
        let mut power = ONE;
        for n in 0..=u16::MAX {
            assert_eq!(multiply(power, inverse_of_bytes(n)), ONE, "{n} bytes");
            power = multiply(power, byte);
        }
    }

    #[test]
    fn no_identification_over_ipv6() {
        let ip = IpFields::v6(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST, 1);
        let datagram = sealed_with(compute(&ip, &SEALED));
        assert!(check(&ip, &datagram));
        assert_eq!(recover_ident(&ip, &datagram), None);
    }

    #[test]
    fn every_identification_is_recovered() {
        let ip = IpFields::v4(A, B, 0x5555, true, 4791);
        for ident in 0..=u16::MAX {
            let datagram = sealed_with(compute(&ip.with_ident(ident), &SEALED));
            assert_eq!(recover_ident(&ip, &datagram), Some(ident));
        }
    }

    #[test]
    fn an_identification_explains_one_error_in_65536() {
        let ip = IpFields::v4(A, B, 0, true, 4791);
        let explained = (0..1u32 << 20)
            .filter(|i| recover_ident(&ip, &sealed_with(i.wrapping_mul(0x9e37_79b1))).is_some())
            .count();
        assert!((4..=40).contains(&explained), "expected about 16, got {explained}");
    }

    #[test]
    fn nothing_panics_on_short_or_long_input() {
        let v4 = IpFields::v4(A, B, 0, true, 4791);
        let v6 = IpFields::v6(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST, 1);
        let long = vec![0; 70_000];
        for ip in [v4, v6] {
            for len in (0..80).chain(65_400..65_600).chain([70_000]) {
                compute(&ip, &long[..len]);
                compute_rxe_flush(&ip, &long[..len]);
                recover_ident(&ip, &long[..len]);
                recover_ident_rxe_flush(&ip, &long[..len]);
                check(&ip, &long[..len]);
                assert_eq!(Alike::new(&ip, &long[..len]).is_some(), len >= Bth::LEN);
                if let Some(alike) = Alike::new(&ip, &long[..100]) {
                    assert!(!alike.check(0, &long[..len]));
                }
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_alike_shares_a_sum(
            mut sealed in proptest::collection::vec(any::<u8>(), 12..300), rest: [u8; 4],
            ident: u16, df: bool, port: u16, v6: bool,
        ) {
            let ip = if v6 {
                IpFields::v6(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST, port)
            } else {
                IpFields::v4(A, B, 0x5555, df, port)
            };
            let alike = Alike::new(&ip, &sealed).unwrap();
            let last = sealed.len() - 1;
            sealed[last] ^= 0x40;
            sealed[8..12].copy_from_slice(&rest);
            prop_assert!(alike.has(&sealed));
            prop_assert!(!alike.has(&sealed[..last]));
            let want = compute(&ip.with_ident(ident), &sealed);
            prop_assert_eq!(alike.compute(ident, &sealed), want);
            prop_assert!(alike.check(ident, &[&sealed[..], &want.to_le_bytes()].concat()));
        }

        #[test]
        fn an_identification_is_recovered_at_any_length(
            mut datagram in proptest::collection::vec(any::<u8>(), 16..4200),
            ident: u16, df: bool, port: u16,
        ) {
            let ip = IpFields::v4(A, B, ident, df, port);
            let at = datagram.len() - LEN;
            let icrc = compute(&ip, &datagram[..at]);
            datagram[at..].copy_from_slice(&icrc.to_le_bytes());
            prop_assert!(check(&ip, &datagram));
            prop_assert_eq!(recover_ident(&ip.with_ident(0), &datagram), Some(ident));
            if at <= 2000 {
                let icrc = compute_rxe_flush(&ip, &datagram[..at]);
                datagram[at..].copy_from_slice(&icrc.to_le_bytes());
                prop_assert!(check_rxe_flush(&ip, &datagram));
                prop_assert_eq!(recover_ident_rxe_flush(&ip.with_ident(0), &datagram), Some(ident));
                let icrc = compute(&ip, &datagram[..at]);
                datagram[at..].copy_from_slice(&icrc.to_le_bytes());
            }
            // The other setting of the bit does not explain it away.
            let other = IpFields::v4(A, B, ident, !df, port);
            prop_assert_eq!(recover_ident(&other, &datagram), None);
        }
    }
}
