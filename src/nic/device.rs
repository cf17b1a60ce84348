//! What a device tells of itself: identity and limits.

use std::net::IpAddr;

use crate::engine::config::{
    MAX_AH, MAX_CQ, MAX_CQE, MAX_GROUP_MEMBERS, MAX_GROUPS, MAX_INLINE, MAX_MSG, MAX_PD, MAX_QP,
    MAX_QP_WR, MAX_SGE, MAX_SRQ, MAX_SRQ_WR,
};
use crate::engine::qp::MAX_RD_ATOMIC;
use crate::port::PortAddress;

/// Limits that a device reports and enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Queue pairs.
    pub max_qp: u32,
    /// Slots of a send or receive queue.
    pub max_qp_wr: u32,
    /// Pieces of memory in a request.
    pub max_sge: u32,
    /// Inline bytes in a request.
    pub max_inline: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Slots of a shared receive queue.
    pub max_srq_wr: u32,
    /// Memory regions and windows together.
    pub max_mr: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Multicast groups.
    pub max_mcast_grp: u32,
    /// Queue pairs in a multicast group.
    pub max_mcast_qp_attach: u32,
    /// READs and atomics in flight, each way.
    pub max_rd_atomic: u8,
    /// Bytes of a message.
    pub max_msg: u32,
}

impl Limits {
    /// The limits of every device of this crate.
    pub const ALL: Self = Self {
        max_qp: MAX_QP,
        max_qp_wr: MAX_QP_WR,
        max_sge: MAX_SGE,
        max_inline: MAX_INLINE,
        max_cq: MAX_CQ,
        max_cqe: MAX_CQE,
        max_srq: MAX_SRQ,
        max_srq_wr: MAX_SRQ_WR,
        max_mr: crate::mem::MrTable::MAX,
        max_pd: MAX_PD,
        max_ah: MAX_AH,
        max_mcast_grp: MAX_GROUPS,
        max_mcast_qp_attach: MAX_GROUP_MEMBERS,
        max_rd_atomic: MAX_RD_ATOMIC,
        max_msg: MAX_MSG,
    };
}

/// A stable, non-zero identifier made from a device's first address, in the form of an EUI-64 that is locally
/// administered.
pub fn guid(addresses: &[PortAddress]) -> u64 {
    match addresses.first().map(|a| a.ip) {
        Some(IpAddr::V4(v4)) => {
            let [a, b, c, d] = v4.octets();
            u64::from_be_bytes([0x02, 0x52, a, 0xff, 0xfe, b, c, d])
        }
        Some(IpAddr::V6(v6)) => {
            // The interface identifier, if the address has one; else whatever tells it apart.
            let [high, low] = *v6.octets().as_chunks::<8>().0 else { return 0x02 << 56 | 1 };
            let (high, low) = (u64::from_be_bytes(high), u64::from_be_bytes(low));
            (low ^ high.rotate_left(17)) & !(0xff << 56) | 0x02 << 56
        }
        None => 0x02 << 56 | 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ip: &str) -> u64 {
        let ip = ip.parse().unwrap();
        guid(&[PortAddress { ip, scope_id: 0, interface: String::new(), if_index: 0 }])
    }

    #[test]
    fn guids_differ_and_are_local() {
        let all =
            ["127.0.0.2", "127.0.0.3", "10.0.0.2", "::1", "fd00::1", "fd00::2", "fe80::1"].map(of);
        for (i, a) in all.iter().enumerate() {
            assert_eq!(a >> 56, 2, "locally administered");
            assert!(!all[..i].contains(a), "{a:x}");
        }
    }
}
