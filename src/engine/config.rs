//! What an engine is made with: limits, seed, and the choices where devices differ.

use super::cc::Algorithm;
use super::qp::attr::Recovery;
use super::window::WindowConfig;
use crate::time::Duration;
use crate::wire::num::Pkey;

/// What to do with an IPv4 packet whose identification the port does not see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IcrcPolicy {
    /// Take what some identification explains, and count how likely it is: 0 or the position in a merged
    /// buffer is exact, small or near the sender's last is *recovered*, any other is *inferred*.
    #[default]
    Recover,
    /// As `Recover`, but drop what would be inferred.
    Window,
    /// Only identification 0, or the position in a merged buffer.
    Exact,
}

/// Configuration of an [`Engine`](super::Engine). The defaults are those of a device on a real network.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Seed of keys, queue pair numbers and identifications. Real devices draw it from the system.
    pub seed: [u8; 32],
    /// What the ICRC check does about a hidden IPv4 identification.
    pub icrc: IcrcPolicy,
    /// FLUSHes leave with the ICRC of Linux rdma_rxe, which takes no other, and not with that of the standard.
    pub rxe_flush: bool,
    /// Flow control towards receiving sockets.
    pub window: WindowConfig,
    /// How long a plain ACK may wait for a packet to travel with. Zero: it leaves at once, before all requests.
    pub ack_delay: Duration,
    /// How long the ACK of a message that was answered may wait behind the answer, where the program will look again soon: for
    /// the peer's next message, if the peer goes on without it (`engine/qp/coalesce.rs`). Zero: it leaves with the answer.
    pub ack_coalesce: Duration,
    /// After this time a further packet ahead of a gap draws another sequence NAK (the first may be lost).
    /// `None`: one NAK for each gap, as the standard has it.
    pub renak_after: Option<Duration>,
    /// Congestion control of connected queue pairs that were given none of their own.
    pub cc: Algorithm,
    /// How reliable queue pairs of which nobody says otherwise recover from losses, where their peers do so, too.
    pub recovery: Recovery,
    /// What is done about packets that come in marked.
    pub cnp: CnpConfig,
    /// How far ahead of its pace a packet may leave: credit for segmented sends. Zero: each packet alone, at its own
    /// moment. Below a microsecond, timers tick in nanoseconds.
    pub pacing_burst: Duration,
    /// How much of the time that a queue pair was late or blocked it makes up for, besides the burst.
    pub pacing_credit: Duration,
    /// Packets in a row without a request for an ACK, at most. `u32::MAX`, with the window off: only the last packet of a
    /// message asks.
    pub ack_every: u32,
    /// No payload is copied or looked at, and no ICRC computed or checked; all else is as it would be. For simulated networks
    /// on which all devices do so and nothing is damaged: see `engine/elide.rs`.
    pub elide: bool,
    /// Partition table. Index 0 is the default partition, which a queue pair is in that asks for no other.
    pub pkeys: Vec<Pkey>,
    /// Number of the first queue pair, where it matters to somebody who has recorded it; the others follow. `None`:
    /// drawn from the seed. Numbers that are reserved are left out all the same.
    pub first_qpn: Option<u32>,
    /// Most queue pairs.
    pub max_qp: u32,
    /// Most completion queues.
    pub max_cq: u32,
    /// Most shared receive queues.
    pub max_srq: u32,
    /// Most protection domains.
    pub max_pd: u32,
}

impl EngineConfig {
    /// The defaults, with this seed.
    pub fn new(seed: [u8; 32]) -> Self {
        Self {
            seed,
            icrc: IcrcPolicy::Recover,
            rxe_flush: false,
            window: WindowConfig::default(),
            ack_delay: Duration::from_micros(100),
            ack_coalesce: Duration::from_micros(20),
            renak_after: Some(Duration::from_millis(1)),
            cc: Algorithm::None,
            recovery: Recovery::GoBackN,
            cnp: CnpConfig::default(),
            // Enough for one segmented send at high rates.
            pacing_burst: Duration::from_micros(20),
            pacing_credit: Duration::ZERO,
            ack_every: 64,
            elide: false,
            pkeys: vec![Pkey::DEFAULT],
            first_qpn: None,
            max_qp: MAX_QP,
            max_cq: MAX_CQ,
            max_srq: MAX_SRQ,
            max_pd: MAX_PD,
        }
    }
}

/// The notification point: how senders of packets that were marked on the way are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CnpConfig {
    /// Least time between two notifications of a queue pair (`np_min_time_between_cnps`). `None`: none is sent.
    pub interval: Option<Duration>,
    /// Traffic class of notifications: DSCP 48 (`np_cnp_dscp`), which switches serve first, and not ECN-capable.
    pub traffic_class: u8,
}

impl Default for CnpConfig {
    fn default() -> Self {
        Self { interval: Some(Duration::from_micros(50)), traffic_class: 48 << 2 }
    }
}

/// Entries of a partition table behind the default one. `None`: more than there is room for, or one is no key (its
/// lower 15 bits are 0).
pub fn partitions(keys: &[u16]) -> Option<Vec<Pkey>> {
    let fits = keys.len() < MAX_PKEYS && keys.iter().all(|key| key & 0x7fff != 0);
    fits.then(|| keys.iter().copied().map(Pkey).collect())
}

/// Most queue pairs.
pub const MAX_QP: u32 = (1 << 20) - 16;
/// Most completion queues.
pub const MAX_CQ: u32 = 1 << 20;
/// Most protection domains.
pub const MAX_PD: u32 = 1 << 20;
/// Most entries of the partition table.
pub const MAX_PKEYS: usize = 128;
/// Most slots of a send or receive queue.
pub const MAX_QP_WR: u32 = 1 << 20;
/// Most slots of a shared receive queue.
pub const MAX_SRQ_WR: u32 = 1 << 20;
/// Most shared receive queues.
pub const MAX_SRQ: u32 = 1 << 16;
/// Most pieces of memory in one request.
pub const MAX_SGE: u32 = 32;
/// Most inline bytes in one request.
pub const MAX_INLINE: u32 = 1024;
/// Most entries of a completion queue.
pub const MAX_CQE: u32 = 1 << 22;
/// Most address handles.
pub const MAX_AH: u32 = 1 << 20;
/// Most multicast groups of a device.
pub const MAX_GROUPS: u32 = 8192;
/// Most queue pairs in a multicast group: so often one datagram is copied. That of Linux `rdma_rxe`.
pub const MAX_GROUP_MEMBERS: u32 = 56;
/// Longest message, in bytes.
pub const MAX_MSG: u32 = 1 << 31;
