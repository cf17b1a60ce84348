//! The 40 bytes in front of a datagram, checked field by field against what both processes know.

use std::net::IpAddr;

use softroce::prelude::*;

use super::Failure;
use super::layout::{GRH, Layout};
use super::plan::Op;
use super::side::{Far, Node};

/// Headers of UDP, of the transport (BTH and DETH), and the ICRC at the end.
const AROUND: usize = 8 + 12 + 8 + 4;
/// Protocol number of UDP.
const UDP: u8 = 17;

/// Whether this is the header of a datagram of the row from there to here.
pub(super) fn check(node: &Node, far: &Far, layout: &Layout, header: &[u8]) -> Result<(), Failure> {
    let row = layout.row;
    let imm = if row.op.has_immediate() { 4 } else { 0 };
    let udp = AROUND + imm + row.size.next_multiple_of(4);
    let ours = match &far.group {
        Some((_, group)) if row.op == Op::UdMulticast => Some(*group),
        _ => node.ud.endpoint().gid.ip(),
    };
    let ends = (far.ud.gid.ip(), ours);
    let (Some(from), Some(to)) = ends else { return Err(Failure::new("no IP address")) };
    of_udp(header, from, to, udp)
}

/// Whether `header` is that of a UDP datagram of `udp` bytes, header included.
fn of_udp(header: &[u8], from: IpAddr, to: IpAddr, udp: usize) -> Result<(), Failure> {
    let word = |at: usize| usize::from(header[at]) << 8 | usize::from(header[at + 1]);
    let v4 = from.is_ipv4();
    let (length, addresses) = match v4 {
        true => ((word(22), udp + 20), [&header[32..36], &header[36..40]]),
        false => ((word(4), udp), [&header[8..24], &header[24..40]]),
    };
    let kind = match v4 {
        true => header[..20] == [0; 20] && header[20] == 0x45 && header[29] == UDP,
        false => header[0] >> 4 == 6 && header[6] == UDP,
    };
    // The sum of all words, with the carries added again, has all bits set (RFC 1071).
    let sum: usize = (20..GRH).step_by(2).map(word).sum();
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let wrong = if !kind {
        "neither IPv4 nor IPv6, or not UDP"
    } else if length.0 != length.1 {
        "the length is wrong"
    } else if addresses != [&octets(from)[..], &octets(to)[..]] {
        "an address is wrong"
    } else if v4 && (sum & 0xffff) + (sum >> 16) != 0xffff {
        "the checksum is wrong"
    } else {
        return Ok(());
    };
    Err(Failure::new(format!("{wrong}: {header:02x?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_counts() {
        for (from, to, ignored) in [
            (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]), &[][..]),
            // Traffic class and flow label, hop limit.
            (
                [0xfd00, 0, 0, 0, 0, 0, 0, 1].into(),
                [0xfd00, 0, 0, 0, 0, 0, 0, 2].into(),
                &[1, 2, 3, 7],
            ),
        ] {
            let grh = softroce::wire::grh::Grh {
                src: from,
                dst: to,
                traffic_class: 0,
                hop_limit: 64,
                flow_label: 0,
            };
            let header = grh.emit(AROUND - 8 + 64).expect("one family");
            assert_eq!(of_udp(&header, from, to, AROUND + 64), Ok(()));
            assert!(of_udp(&header, from, to, AROUND + 65).is_err());
            assert!(of_udp(&header, to, from, AROUND + 64).is_err());
            for at in (0..GRH).filter(|at| !ignored.contains(at)) {
                let mut wrong = header;
                wrong[at] ^= 0x10;
                assert!(of_udp(&wrong, from, to, AROUND + 64).is_err(), "{from} {at}");
            }
        }
    }
}
