//! The numbers of the protocol, each a type of its own.
//!
//! [`Psn`] and [`Msn`] are 24 bits wide and wrap, so they have no `Ord`: [`Psn::distance_from`] is the
//! comparison that survives the wrap.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const MASK_24: u32 = 0x00ff_ffff;

macro_rules! serial_24 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        pub struct $name(u32);

        impl $name {
            /// The low 24 bits of `raw`.
            pub const fn new(raw: u32) -> Self {
                Self(raw & MASK_24)
            }

            /// As a number, 0 to 0xffffff.
            pub const fn raw(self) -> u32 {
                self.0
            }

            /// `n` further on, wrapping at 2^24.
            #[must_use]
            pub const fn offset(self, n: u32) -> Self {
                Self::new(self.0.wrapping_add(n))
            }

            /// The one before, wrapping.
            #[must_use]
            pub const fn prev(self) -> Self {
                Self::new(self.0.wrapping_sub(1))
            }

            /// Signed distance in serial arithmetic: positive if `self` is after `earlier`. Meaningful
            /// while the two lie within 2^23 of each other.
            pub const fn distance_from(self, earlier: Self) -> i32 {
                ((self.0.wrapping_sub(earlier.0)) << 8).cast_signed() >> 8
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:06x}", self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:06x}", self.0)
            }
        }
    };
}

serial_24! {
    /// Packet sequence number.
    ///
    /// ```
    /// use softroce::wire::num::Psn;
    /// let last = Psn::new(0xff_ffff);
    /// assert_eq!(last.offset(2), Psn::new(1));
    /// assert_eq!(last.offset(2).distance_from(last), 2);
    /// assert_eq!(last.distance_from(Psn::new(1)), -2);
    /// ```
    Psn
}

serial_24! {
    /// Message sequence number: how many messages the responder has completed.
    Msn
}

macro_rules! plain {
    ($(#[$doc:meta])* $name:ident($raw:ty), $fmt:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $raw);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $fmt, self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $fmt, self.0)
            }
        }
    };
}

/// Queue pair number, 24 bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qpn(u32);

impl Qpn {
    /// The general services interface: connection management.
    pub const GSI: Self = Self(1);
    /// Destination of every multicast datagram.
    pub const MULTICAST: Self = Self(MASK_24);

    /// The low 24 bits of `raw`.
    pub const fn new(raw: u32) -> Self {
        Self(raw & MASK_24)
    }

    /// As a number, 0 to 0xffffff.
    pub const fn raw(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:06x}", self.0)
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:06x}", self.0)
    }
}

plain! {
    /// Key that lets a peer reach memory.
    Rkey(u32), "{:08x}"
}
plain! {
    /// Key that lets this side's work requests reach memory.
    Lkey(u32), "{:08x}"
}
plain! {
    /// Partition key; bit 15 is full membership.
    Pkey(u16), "{:04x}"
}
plain! {
    /// Queue key of datagrams.
    Qkey(u32), "{:08x}"
}

impl Pkey {
    /// The default partition, full member: the only one on RoCE.
    pub const DEFAULT: Self = Self(0xffff);

    /// Whether packets with this key may enter a partition with `other`: same non-zero low 15 bits and
    /// at least one full member (IBTA 10.9.1.1).
    pub const fn matches(self, other: Self) -> bool {
        self.0 & 0x7fff != 0 && (self.0 ^ other.0) & 0x7fff == 0 && (self.0 | other.0) & 0x8000 != 0
    }
}

/// A 16-byte RoCE address: an IPv6 address as it is, an IPv4 address mapped (`::ffff:a.b.c.d`).
///
/// ```
/// use softroce::wire::num::Gid;
/// use std::net::IpAddr;
/// let ip: IpAddr = "10.0.0.1".parse().unwrap();
/// assert_eq!(Gid::from(ip).ip(), Some(ip));
/// assert_eq!(Gid::default().ip(), None);
/// ```
#[doc(alias = "ibv_gid")]
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The address it stands for; `None` for the all-zero GID.
    pub fn ip(&self) -> Option<IpAddr> {
        let v6 = Ipv6Addr::from(self.0);
        match v6.to_ipv4_mapped() {
            Some(v4) => Some(v4.into()),
            None if v6.is_unspecified() => None,
            None => Some(v6.into()),
        }
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => v4.into(),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(v4: Ipv4Addr) -> Self {
        Self(v4.to_ipv6_mapped().octets())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

/// Path MTU: the most payload bytes in one packet. Numeric values are those of `enum ibv_mtu`.
#[doc(alias = "ibv_mtu")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes: what an Ethernet MTU of 1500 carries.
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes: needs an Ethernet MTU of 4192 or more.
    B4096 = 5,
}

impl Mtu {
    /// All of them, smallest first.
    pub const ALL: [Self; 5] = [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096];

    /// In bytes.
    pub const fn bytes(self) -> usize {
        128 << (self as usize)
    }

    /// Packets of a message of `len` bytes; one for none.
    pub const fn packets(self, len: u32) -> u32 {
        // A shift: a size that is known when the program runs would be divided by.
        let full = len >> (7 + self as u32);
        let rest = len as usize & (self.bytes() - 1) != 0;
        if full == 0 { 1 } else { full + rest as u32 }
    }

    /// From the number of `enum ibv_mtu`, 1 to 5.
    pub const fn from_raw(raw: u8) -> Option<Self> {
        match raw {
            1 => Some(Self::B256),
            2 => Some(Self::B512),
            3 => Some(Self::B1024),
            4 => Some(Self::B2048),
            5 => Some(Self::B4096),
            _ => None,
        }
    }

    /// From a size in bytes, exact.
    pub fn from_bytes(bytes: usize) -> Option<Self> {
        Self::ALL.into_iter().find(|m| m.bytes() == bytes)
    }

    /// The largest that is not above `bytes`.
    pub fn largest_within(bytes: u32) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|m| m.bytes() <= bytes as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn segmentation() {
        let of = |m: Mtu, lengths: [u32; 5]| lengths.map(|n| m.packets(n));
        assert_eq!(of(Mtu::B1024, [0, 1, 1024, 1025, 2048]), [1, 1, 1, 2, 2]);
        assert_eq!(of(Mtu::B4096, [4095, 4096, 4097, 1 << 20, u32::MAX]), [1, 1, 2, 256, 1 << 20]);
        assert_eq!(Mtu::B256.packets(1 << 31), 1 << 23);
    }

    #[test]
    fn mtu_numbers() {
        assert_eq!(Mtu::ALL.map(Mtu::bytes), [256, 512, 1024, 2048, 4096]);
        for m in Mtu::ALL {
            assert_eq!(Mtu::from_raw(m as u8), Some(m));
            assert_eq!(Mtu::from_bytes(m.bytes()), Some(m));
        }
        assert_eq!(Mtu::from_raw(0), None);
        assert_eq!(Mtu::from_raw(6), None);
        assert_eq!(Mtu::largest_within(1404), Some(Mtu::B1024));
        assert_eq!(Mtu::largest_within(255), None);
    }

    #[test]
    fn pkey_membership() {
        let limited = Pkey(0x7fff);
        assert!(Pkey::DEFAULT.matches(Pkey::DEFAULT));
        assert!(Pkey::DEFAULT.matches(limited));
        assert!(!limited.matches(limited), "two limited members may not talk");
        assert!(!Pkey::DEFAULT.matches(Pkey(0x8001)));
        assert!(!Pkey(0x8000).matches(Pkey(0x8000)), "the zero partition is invalid");
    }

    #[test]
    fn gids_of_both_families() {
        let v4 = Gid::from(Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(v4.to_string(), "::ffff:10.0.0.1");
        assert_eq!(v4.ip(), Some([10, 0, 0, 1].into()));
        let v6: IpAddr = "fe80::1".parse().unwrap();
        assert_eq!(Gid::from(v6).ip(), Some(v6));
    }

    proptest! {
        #[test]
        fn psn_serial_arithmetic(base in 0u32..1 << 24, step in 0u32..1 << 23) {
            let a = Psn::new(base);
            let b = a.offset(step);
            prop_assert_eq!(b.distance_from(a), step.cast_signed());
            prop_assert_eq!(a.distance_from(b), -step.cast_signed());
            prop_assert_eq!(b.offset(1).prev(), b);
            prop_assert!(b.raw() < 1 << 24);
        }
    }
}
