//! Control data of `sendmsg(2)` and `recvmsg(2)`, and socket addresses, as bytes: see `cmsg(3)`.
//!
//! The layout is the kernel's: a length as wide as a pointer, level and type as `int`, the data, all
//! rounded up to the width of a pointer. Read and written as plain bytes, without a pointer and without an
//! allocation for each message.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::c_int;

const WORD: usize = size_of::<usize>();
const HEADER: usize = WORD + 2 * size_of::<c_int>();

const fn round_up(len: usize) -> usize {
    len.next_multiple_of(WORD)
}

/// Bytes that one message of `len` data bytes takes.
pub(super) const fn space(len: usize) -> usize {
    round_up(HEADER) + round_up(len)
}

/// Control data to send: at most a segment size, a traffic class and a hop limit.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(super) struct Control {
    bytes: [u8; Self::SPACE],
    len: usize,
}

impl Control {
    const SPACE: usize = space(2) + 2 * space(4);

    pub(super) const EMPTY: Self = Self { bytes: [0; Self::SPACE], len: 0 };

    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    /// Appends a message. More than the three that there is space for would be a mistake of the caller.
    pub(super) fn push(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        let end = self.len + space(data.len());
        let at = &mut self.bytes[self.len..end];
        at[..WORD].copy_from_slice(&(round_up(HEADER) + data.len()).to_ne_bytes());
        at[WORD..WORD + 4].copy_from_slice(&level.to_ne_bytes());
        at[WORD + 4..WORD + 8].copy_from_slice(&kind.to_ne_bytes());
        at[round_up(HEADER)..][..data.len()].copy_from_slice(data);
        self.len = end;
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A control message that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message<'a> {
    pub(super) level: c_int,
    pub(super) kind: c_int,
    pub(super) data: &'a [u8],
}

impl Message<'_> {
    /// The data as a number. Linux says a TOS in one byte, all else as `int`.
    pub(super) fn number(&self) -> Option<u32> {
        match *self.data {
            [a] => Some(a.into()),
            [a, b] => Some(u16::from_ne_bytes([a, b]).into()),
            [a, b, c, d, ..] => Some(u32::from_ne_bytes([a, b, c, d])),
            _ => None,
        }
    }
}

/// The control messages in `bytes`, in the order of the kernel, which may be any.
pub(super) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let (len, rest) = bytes.split_first_chunk::<WORD>()?;
        let (level, rest) = rest.split_first_chunk()?;
        let (kind, _) = rest.split_first_chunk()?;
        let len = usize::from_ne_bytes(*len);
        let data = bytes.get(round_up(HEADER)..len)?;
        let message = Message {
            level: c_int::from_ne_bytes(*level),
            kind: c_int::from_ne_bytes(*kind),
            data,
        };
        bytes = bytes.get(round_up(len)..).unwrap_or(&[]);
        Some(message)
    })
}

/// A socket address as the kernel writes it: `sockaddr_in` (16 bytes) or `sockaddr_in6` (28).
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(super) struct Name {
    bytes: [u8; Self::SPACE],
    len: usize,
}

impl Name {
    pub(super) const SPACE: usize = size_of::<libc::sockaddr_in6>();

    pub(super) const EMPTY: Self = Self { bytes: [0; Self::SPACE], len: 0 };

    pub(super) fn new(ip: IpAddr, port: u16, scope_id: u32) -> Self {
        let mut name = Self::EMPTY;
        name.set(ip, port, scope_id);
        name
    }

    /// Makes it another one.
    #[expect(clippy::cast_possible_truncation, reason = "address families are small numbers")]
    pub(super) fn set(&mut self, ip: IpAddr, port: u16, scope_id: u32) {
        self.bytes[2..4].copy_from_slice(&port.to_be_bytes());
        let family = match ip {
            IpAddr::V4(v4) => {
                self.bytes[4..8].copy_from_slice(&v4.octets());
                self.bytes[8..16].fill(0);
                self.len = size_of::<libc::sockaddr_in>();
                libc::AF_INET as u16
            }
            IpAddr::V6(v6) => {
                self.bytes[4..8].fill(0);
                self.bytes[8..24].copy_from_slice(&v6.octets());
                self.bytes[24..28].copy_from_slice(&scope_id.to_ne_bytes());
                self.len = size_of::<libc::sockaddr_in6>();
                libc::AF_INET6 as u16
            }
        };
        self.bytes[..2].copy_from_slice(&family.to_ne_bytes());
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// All bytes, used or not.
    pub(super) const fn bytes(&self) -> &[u8; Self::SPACE] {
        &self.bytes
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8; Self::SPACE] {
        &mut self.bytes
    }

    /// The address, if it is one of IP.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        let b = &self.bytes;
        let port = u16::from_be_bytes([b[2], b[3]]);
        match c_int::from(u16::from_ne_bytes([b[0], b[1]])) {
            libc::AF_INET => {
                let ip = Ipv4Addr::new(b[4], b[5], b[6], b[7]);
                Some(SocketAddrV4::new(ip, port).into())
            }
            libc::AF_INET6 => {
                let ip: [u8; 16] = b[8..24].try_into().ok()?;
                let scope_id = u32::from_ne_bytes([b[24], b[25], b[26], b[27]]);
                Some(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope_id).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_pushed_is_read_back() {
        let mut control = Control::EMPTY;
        control.push(17, 103, &4112u16.to_ne_bytes());
        control.push(0, 1, &2i32.to_ne_bytes());
        control.push(0, 2, &64i32.to_ne_bytes());
        let got: Vec<_> =
            messages(control.as_bytes()).map(|m| (m.level, m.kind, m.number())).collect();
        assert_eq!(got, [(17, 103, Some(4112)), (0, 1, Some(2)), (0, 2, Some(64))]);
    }

    #[test]
    fn addresses_round_trip() {
        let v4 = Name::new([127, 0, 0, 2].into(), 4791, 0);
        assert_eq!(v4.as_bytes().len(), 16);
        assert_eq!(v4.address(), Some("127.0.0.2:4791".parse().unwrap()));
        let v6 = Name::new("fe80::1".parse().unwrap(), 4791, 3);
        assert_eq!(v6.as_bytes().len(), 28);
        assert_eq!(v6.address(), Some("[fe80::1%3]:4791".parse().unwrap()));
        assert_eq!(Name::EMPTY.address(), None);
        let mut other = v6;
        other.set([127, 0, 0, 2].into(), 4791, 0);
        assert_eq!(other.as_bytes(), v4.as_bytes());
        other.set("fe80::1".parse().unwrap(), 4791, 3);
        assert_eq!(other.as_bytes(), v6.as_bytes());
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for m in messages(&bytes) {
                prop_assert!(m.data.len() < bytes.len());
            }
        }

        #[test]
        fn short_lengths_end_the_list(len in 0usize..40, rest in any::<[u8; 32]>()) {
            let mut bytes = len.to_ne_bytes().to_vec();
            bytes.extend(rest);
            prop_assert!(messages(&bytes).count() <= 4);
        }
    }
}
