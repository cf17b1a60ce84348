//! What a network refuses, in words.

use std::net::IpAddr;

use crate::time::Duration;

use super::{HostId, PortId, SwitchId, TrunkId};

/// What a fabric refuses.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// No host has this number.
    #[error("there is no host {}", .0.0)]
    NoSuchHost(HostId),
    /// Another host has this address.
    #[error("{addr} belongs to host {}", .owner.0)]
    AddressInUse {
        /// The address.
        addr: IpAddr,
        /// Who has it.
        owner: HostId,
    },
    /// Unspecified, multicast and broadcast addresses belong to nobody.
    #[error("{0} is not the address of one host")]
    NotUnicast(IpAddr),
    /// Only multicast groups can be joined.
    #[error("{0} is not a multicast group")]
    NotMulticast(IpAddr),
    /// A probability that is none.
    #[error("{field} is {value}: not a probability, which is 0 to 1")]
    Probability {
        /// Which.
        field: &'static str,
        /// Its value.
        value: f64,
    },
    /// A rate that no line has.
    #[error("bits_per_s is {0}: not within 1 to 10^15")]
    Rate(u64),
    /// An MTU too small for any path MTU, or larger than IP knows.
    #[error("mtu is {0}: not within 352 to 65535")]
    Mtu(u32),
    /// No switch has this number.
    #[error("there is no switch {}", .0.0)]
    NoSuchSwitch(SwitchId),
    /// No port has this number.
    #[error("there is no port {}", .0.0)]
    NoSuchPort(PortId),
    /// No cable between switches has this number.
    #[error("there is no trunk {}", .0.0)]
    NoSuchTrunk(TrunkId),
    /// A switch cannot be connected with itself.
    #[error("a cable from switch {} to itself", .0.0)]
    Loop(SwitchId),
    /// There is no way from one host to another.
    #[error("there is no way from host {} to host {}", .from.0, .to.0)]
    NoWay {
        /// From here.
        from: HostId,
        /// To there.
        to: HostId,
    },
    /// A path that no cable makes.
    #[error("no cable leads from switch {} to switch {}", .from.0, .to.0)]
    NoCable {
        /// From here.
        from: SwitchId,
        /// To there.
        to: SwitchId,
    },
    /// 802.1p has priorities 0 to 7.
    #[error("priority {0}: there are 0 to 7")]
    NoSuchPriority(u8),
    /// A DSCP has six bits.
    #[error("DSCP {0}: there are 0 to 63")]
    NoSuchDscp(u8),
    /// The headroom of all ports takes the whole buffer.
    #[error(
        "a buffer of {buffer} bytes leaves nothing to share: the headroom of {ports} ports is {headroom}"
    )]
    Headroom {
        /// Bytes of the buffer.
        buffer: usize,
        /// Bytes of all headroom.
        headroom: usize,
        /// How many ports.
        ports: usize,
    },
    /// A threshold that is lower than the end of the pause below it.
    #[error("pauses end {xon_offset} bytes below the threshold, which is only {xoff}")]
    Xon {
        /// The threshold.
        xoff: usize,
        /// How far below it a pause ends.
        xon_offset: usize,
    },
    /// A threshold that is never reached.
    #[error(
        "the threshold is {xoff} bytes, but only {shared} are shared: the buffer is full before anybody pauses"
    )]
    Xoff {
        /// The threshold.
        xoff: usize,
        /// Bytes that are shared.
        shared: usize,
    },
    /// A dynamic threshold out of range.
    #[error("alpha of the dynamic threshold is {0}: not above 0 and at most 1024")]
    Alpha(f64),
    /// A pause of no time.
    #[error("a pause of 0 quanta is none")]
    Quanta,
    /// A ramp that falls.
    #[error(
        "marking begins at {kmin} bytes and is complete at {kmax}: kmin must not be above kmax"
    )]
    Marking {
        /// Where it begins.
        kmin: usize,
        /// Where it is complete.
        kmax: usize,
    },
    /// A priority that would never be served.
    #[error("priority {priority} is not strict and has a quantum of 0: it would never be served")]
    Quantum {
        /// Which.
        priority: usize,
    },
    /// A watchdog that would bark at every pause.
    #[error("the watchdog's detect time is {0:?}: at least 1 us")]
    Watchdog(Duration),
    /// A receiver that pauses later than it is full, or goes on later than it pauses.
    #[error(
        "a receiver with {buffer} bytes that pauses at {xoff} and goes on at {xon}: xon <= xoff < buffer"
    )]
    Receiver {
        /// Its bytes.
        buffer: usize,
        /// Where it pauses.
        xoff: usize,
        /// Where it goes on.
        xon: usize,
    },
    /// A rule that selects the zeroth packet, or every zeroth: packets are counted from 1.
    #[error("a rule counts packets from 1, so there is no packet 0")]
    Ordinal,
}
