//! What is known of a datagram that arrived at a UDP socket: its path, out of the control data.

use std::net::{IpAddr, SocketAddr};

use super::control::{Name, messages};
use super::sys::{Incoming, RECEIVED_CONTROL};
use crate::net::{Path, RxMeta};

/// Index of the loopback interface in every network namespace (`LOOPBACK_IFINDEX` of the kernel).
const LOOPBACK_INDEX: u32 = 1;

/// Why a datagram that arrived goes no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dropped {
    Truncated,
    WrongInterface,
    Malformed,
}

/// What is known of a datagram, and the size of its segments if it is several.
type Described = Result<(RxMeta, Option<u16>), Dropped>;

/// Describes datagrams, and remembers the last one: the next mostly comes from the same sender in the same way.
#[derive(Debug)]
pub(super) struct Arrivals {
    from: [u8; Name::SPACE],
    control: Vec<u8>,
    if_index: u32,
    described: Described,
}

impl Default for Arrivals {
    fn default() -> Self {
        Self {
            from: [0; Name::SPACE],
            control: Vec::with_capacity(RECEIVED_CONTROL),
            if_index: 0,
            described: Err(Dropped::Malformed),
        }
    }
}

impl Arrivals {
    /// As [`describe`].
    pub(super) fn describe(&mut self, incoming: &Incoming<'_>, if_index: u32) -> Described {
        if incoming.truncated {
            return Err(Dropped::Truncated);
        }
        if incoming.from.bytes() != &self.from
            || incoming.control != &self.control[..]
            || if_index != self.if_index
        {
            self.from = *incoming.from.bytes();
            self.control.clear();
            self.control.extend_from_slice(incoming.control);
            self.if_index = if_index;
            self.described = describe(incoming, if_index);
        }
        self.described
    }
}

/// Puts together what is known of a datagram, for an address of the interface `if_index`.
fn describe(incoming: &Incoming<'_>, if_index: u32) -> Described {
    if incoming.truncated {
        return Err(Dropped::Truncated);
    }
    let from = incoming.from.address().ok_or(Dropped::Malformed)?;
    let (mut arrived_at, mut arrived_by) = (None, 0);
    let (mut traffic_class, mut hop_limit, mut segment_size) = (0, 0, None);
    for m in messages(incoming.control) {
        let byte = || m.number().and_then(|n| u8::try_from(n).ok()).unwrap_or(0);
        match (m.level, m.kind) {
            (libc::SOL_UDP, libc::UDP_GRO) => {
                segment_size = m.number().and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0);
            }
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                traffic_class = byte();
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                hop_limit = byte();
            }
            // struct in_pktinfo: interface, local address, destination of the header.
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                if let Some(&[a, b, c, d, _, _, _, _, w, x, y, z]) = m.data.first_chunk() {
                    arrived_by = u32::from_ne_bytes([a, b, c, d]);
                    arrived_at = Some(IpAddr::from([w, x, y, z]));
                }
            }
            // struct in6_pktinfo: destination of the header, interface.
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                if let Some((ip, rest)) = m.data.split_first_chunk::<16>()
                    && let Some(index) = rest.first_chunk()
                {
                    arrived_by = u32::from_ne_bytes(*index);
                    arrived_at = Some(IpAddr::from(*ip));
                }
            }
            _ => {}
        }
    }
    let dst = arrived_at.filter(|d| d.is_ipv4() == from.is_ipv4()).ok_or(Dropped::Malformed)?;
    // What a host sends to itself passes through the loopback interface, whatever address it is for.
    if arrived_by != if_index && (arrived_by != LOOPBACK_INDEX || dst.is_loopback()) {
        return Err(Dropped::WrongInterface);
    }
    let scope_id = match from {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(v6) => v6.scope_id(),
    };
    let path = Path {
        src: from.ip(),
        dst,
        src_port: from.port(),
        traffic_class,
        hop_limit,
        flow_label: 0,
        scope_id,
    };
    Ok((RxMeta { path, ident: None, df: None, gro_index: 0 }, segment_size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::control::space;

    /// Control data as Linux writes it for a datagram to 127.0.0.2 that came in by interface 1.
    fn control(if_index: u32) -> Vec<u8> {
        let mut data = Vec::new();
        let mut push = |kind: i32, payload: &[u8]| {
            let start = data.len();
            data.extend((16 + payload.len()).to_ne_bytes());
            data.extend(libc::IPPROTO_IP.to_ne_bytes());
            data.extend(kind.to_ne_bytes());
            data.extend(payload);
            data.resize(start + space(payload.len()), 0);
        };
        push(libc::IP_TOS, &[0x6b]);
        push(libc::IP_TTL, &64i32.to_ne_bytes());
        let [a, b, c, d] = if_index.to_ne_bytes();
        push(libc::IP_PKTINFO, &[a, b, c, d, 127, 0, 0, 2, 127, 0, 0, 2]);
        data
    }

    #[test]
    fn datagrams_are_described_by_their_control_data() {
        let from = Name::new([127, 0, 0, 3].into(), 49152, 0);
        let control = control(1);
        let incoming = Incoming { len: 7, from: &from, control: &control, truncated: false };
        let (meta, segment_size) = describe(&incoming, 1).unwrap();
        let path = Path {
            src: [127, 0, 0, 3].into(),
            dst: [127, 0, 0, 2].into(),
            src_port: 49152,
            traffic_class: 0x6b,
            hop_limit: 64,
            flow_label: 0,
            scope_id: 0,
        };
        assert_eq!(meta, RxMeta { path, ident: None, df: None, gro_index: 0 });
        assert_eq!(segment_size, None);

        let cut = Incoming { truncated: true, ..incoming };
        assert_eq!(describe(&cut, 1), Err(Dropped::Truncated));
        let nowhere = Incoming { control: &control[..48], ..incoming };
        assert_eq!(describe(&nowhere, 1), Err(Dropped::Malformed));
        let from = Name::new("::1".parse().unwrap(), 1, 0);
        let mixed = Incoming { from: &from, ..incoming };
        assert_eq!(describe(&mixed, 1), Err(Dropped::Malformed));
        let nobody = Incoming { from: &Name::EMPTY, ..incoming };
        assert_eq!(describe(&nobody, 1), Err(Dropped::Malformed));
    }

    #[test]
    fn one_that_comes_otherwise_than_the_last_is_described_anew() {
        let (near, far) = ([127, 0, 0, 3], [127, 0, 0, 4]);
        let mut arrivals = Arrivals::default();
        let nothing = Incoming { len: 0, from: &Name::EMPTY, control: &[], truncated: false };
        assert_eq!(arrivals.describe(&nothing, 0), Err(Dropped::Malformed));
        let mut marked = control(1);
        marked[16] ^= 1;
        for (from, port, control, if_index, truncated) in [
            (near, 1, control(1), 1, false),
            (near, 1, control(1), 1, false),
            (near, 1, marked.clone(), 1, false),
            (near, 2, marked.clone(), 1, false),
            (far, 2, marked.clone(), 1, false),
            (far, 2, marked, 7, false),
            (far, 2, control(2), 1, false),
            (near, 1, control(1), 1, true),
            (near, 1, control(1), 1, false),
        ] {
            let from = Name::new(from.into(), port, 0);
            let incoming = Incoming { len: 7, from: &from, control: &control, truncated };
            assert_eq!(arrivals.describe(&incoming, if_index), describe(&incoming, if_index));
        }
    }

    #[test]
    fn loopback_addresses_are_reached_through_loopback_only() {
        let from = Name::new([127, 0, 0, 3].into(), 49152, 0);
        let through = |if_index, ours| {
            let control = control(if_index);
            describe(&Incoming { len: 7, from: &from, control: &control, truncated: false }, ours)
        };
        assert!(through(1, 1).is_ok());
        assert_eq!(through(2, 1), Err(Dropped::WrongInterface));
        assert_eq!(through(0, 1), Err(Dropped::WrongInterface));
    }
}
