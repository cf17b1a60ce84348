//! Whole Ethernet frames: a station with addresses of its own, whatever carries its frames.
//!
//! A port that brings frames has no kernel below it: who has which hardware address, what is for us, and what
//! has to be answered is found out here. A [`Station`] knows all that and has no outside world, and an
//! `EtherPort` puts it on a link.
//!
//! What a station does besides RoCEv2: it asks for its neighbours and answers for itself (ARP, RFC 826; neighbour
//! discovery, RFC 4861), and it answers pings. Datagrams for a neighbour whose address is not known wait, a quarter
//! of a megabyte of them; when nobody has answered for three seconds they are lost, and counted. What it sends to
//! itself, or to a group that it is in, comes back without touching the link.
//!
//! The UDP checksum is zero over IPv4, as NICs send it: the ICRC is the better one. Over IPv6 it is computed,
//! because a receiver may insist on it (RFC 8200, 8.1), and only some sockets are told not to (RFC 6935). On
//! receive zero is accepted over both, and any other value must be right.
//!
//! *Owns.* Neighbours, routes (on the link, or through a gateway), groups, and frames that wait.
//!
//! *Rules.* No clock: time is an argument. Everything that waits is bounded, and every frame that is dropped is
//! counted for its reason. Groups are joined for this station alone: no IGMP and no MLD reports are sent, because
//! the links have two ends; a switch behind the other end that forwards groups only on request has to be told so.

use std::net::IpAddr;

use crate::wire::frame::Mac;

mod answer;
#[cfg(feature = "udp")]
mod attached;
mod neighbours;
mod outbox;
mod station;

#[cfg(feature = "udp")]
pub use attached::{EtherPort, Fit, Frames, Got, Link};
pub use station::{Aside, Route, Station};

/// The MTU of a link that is not told another: a path MTU of 4096 fits, as it does on Ethernets that are set up for
/// RoCE.
pub const DEFAULT_MTU: u32 = 9000;
/// The smallest MTU: the smallest path MTU, and the headers around it.
pub const MIN_MTU: u32 = 352;
/// The largest: a frame with a tag fits a receive buffer.
pub const MAX_MTU: u32 = 65_500;

/// An address, and how much of it the neighbours have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The address.
    pub ip: IpAddr,
    /// Leading bits that all addresses on the link share.
    pub len: u8,
}

impl Prefix {
    /// Whether `ip` is on the same link.
    ///
    /// ```
    /// use softroce::internals::port::ether::Prefix;
    /// let net = Prefix { ip: [10, 99, 0, 1].into(), len: 24 };
    /// assert!(net.contains([10, 99, 0, 254].into()));
    /// assert!(!net.contains([10, 99, 1, 2].into()));
    /// ```
    pub fn contains(&self, ip: IpAddr) -> bool {
        let (bits, differ) = match (self.ip, ip) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (32, u128::from(a.to_bits() ^ b.to_bits())),
            (IpAddr::V6(a), IpAddr::V6(b)) => (128, a.to_bits() ^ b.to_bits()),
            _ => return false,
        };
        let host_bits = bits - u32::from(self.len).min(bits);
        differ.checked_shr(host_bits).unwrap_or(0) == 0
    }
}

/// What a station is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StationConfig {
    /// Its hardware address.
    pub mac: Mac,
    /// Its addresses, in the order of the GID table; at least one.
    pub addresses: Vec<Prefix>,
    /// Where datagrams go that are not for the link: the first of their family.
    pub gateways: Vec<IpAddr>,
    /// Largest IP packet.
    pub mtu: u32,
    /// The VLAN (IEEE 802.1Q) that it is in, 1 to 4094: frames of others are dropped.
    pub vlan: Option<u16>,
    /// The priority that its frames carry, 0 to 7. Without a VLAN the tag says VLAN 0, which is none.
    pub priority: Option<u8>,
    /// What people know the interface by.
    pub interface: String,
}

impl StationConfig {
    /// A station without gateway or VLAN, whose hardware address is made from its first address.
    pub fn new(addresses: Vec<Prefix>) -> Self {
        Self {
            mac: addresses.first().map(|p| Mac::of(p.ip)).unwrap_or_default(),
            addresses,
            gateways: Vec::new(),
            mtu: DEFAULT_MTU,
            vlan: None,
            priority: None,
            interface: String::new(),
        }
    }
}

#[cfg(test)]
mod tests;
