//! What the kernel writes into the IPv4 identification: asked from itself when a port is opened.
//!
//! The ICRC covers the identification and the "don't fragment" flag, a UDP socket can neither set nor see
//! them, and the engine relies on what Linux does: 0 in a single send, `k` in segment `k` of a segmented
//! one, "don't fragment" always. So a port sends a few datagrams to a scratch socket at its own address,
//! whose packet filter (classic BPF, no privilege needed) sees the IP header and tells its content by the
//! length to which it cuts the datagram. Each datagram arrives, right or wrong; silence means only that
//! the test could not be made.

use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, Protocol, SockAddr, SockFilter, Socket, Type};

use super::PortAddress;
use super::control::{Control, Name};
use super::sys::SendArena;

/// What the self-test found out about IPv4 identifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbering {
    /// There is no IPv4 address, and IPv6 has no identification.
    Irrelevant,
    /// Single sends carry 0, segments their index, and none may be fragmented: every ICRC is right.
    AsExpected,
    /// Single sends are right, segmented ones are not, or the kernel has none: they are refused.
    SinglesOnly,
    /// Not even single sends are right: peers that check the ICRC drop what this port sends over IPv4.
    Wrong,
    /// The test could not be made (a sandbox?), or its datagrams did not come back (a firewall?). Single
    /// sends are taken to be right.
    Unknown,
}

/// Outcome of the self-test at one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) numbering: Numbering,
    /// Most segments in one send; 1 where the kernel does not segment.
    pub(super) segments: usize,
}

impl Outcome {
    /// Where a sandbox allows no such test. Should the kernel make fewer segments it will say so.
    pub(super) const NOT_MADE: Self =
        Self { numbering: Numbering::Unknown, segments: SEGMENTS[1] as usize };
}

/// The most segments of a send that Linux allows (`UDP_MAX_SEGMENTS`), and what it allowed before 6.9.
const SEGMENTS: [u8; 2] = [128, 64];
/// Payload in front of what stands for the identification: the index, and a byte so that right differs
/// from wrong.
const BASE: u8 = 2;
/// Long enough to be cut to any expected identification.
const PAYLOAD: u8 = BASE + SEGMENTS[0];
/// First byte of a single send; segments have their index there.
const SINGLE: u8 = 0xff;
/// How long to wait for a datagram that has already been sent to an address of this host.
const PATIENCE_MS: u16 = 1000;

/// Cuts a datagram to [`BASE`] bytes plus its identification, or to one byte if that is above what a
/// segment can have or the datagram may be fragmented.
fn filter() -> [SockFilter; 7] {
    /// Offset of the IP header: `SKF_NET_OFF` of linux/filter.h.
    const IP: u32 = 0xfff0_0000;
    const UDP_HEADER: u32 = 8;
    // Instructions of classic BPF, see linux/bpf_common.h.
    const LOAD_HALF: u16 = 0x28;
    const JUMP_EQUAL: u16 = 0x15;
    const JUMP_ABOVE: u16 = 0x25;
    const ADD: u16 = 0x04;
    const RETURN_A: u16 = 0x16;
    const RETURN: u16 = 0x06;
    [
        SockFilter::new(LOAD_HALF, 0, 0, IP + 6),
        SockFilter::new(JUMP_EQUAL, 0, 4, 0x4000),
        SockFilter::new(LOAD_HALF, 0, 0, IP + 4),
        SockFilter::new(JUMP_ABOVE, 2, 0, u32::from(SEGMENTS[0]) - 1),
        SockFilter::new(ADD, 0, 0, UDP_HEADER + u32::from(BASE)),
        SockFilter::new(RETURN_A, 0, 0, 0),
        SockFilter::new(RETURN, 0, 0, UDP_HEADER + 1),
    ]
}

/// What has come back.
#[derive(Debug, Default)]
struct Seen {
    single: Option<bool>,
    segments: usize,
    wrong_segments: usize,
}

impl Seen {
    fn datagrams(&self) -> usize {
        usize::from(self.single.is_some()) + self.segments
    }

    /// Takes a datagram in: its first byte says what was sent, its length what the filter saw.
    fn take(&mut self, first: u8, len: usize, v4: bool) {
        let ident = if first == SINGLE { 0 } else { first };
        let right = len == usize::from(if v4 { BASE.saturating_add(ident) } else { PAYLOAD });
        if first == SINGLE {
            self.single = Some(right);
        } else {
            self.segments += 1;
            self.wrong_segments += usize::from(!right);
        }
    }

    /// What follows, if `segments` were accepted by the kernel.
    fn outcome(&self, segments: usize, v4: bool) -> Outcome {
        // A kernel without segmentation sends one long datagram.
        let segments = if self.segments == 1 { 1 } else { segments };
        let segments_right = self.segments > 1 && self.wrong_segments == 0;
        let numbering = match self.single {
            _ if !v4 => Numbering::Irrelevant,
            Some(true) if segments_right => Numbering::AsExpected,
            Some(true) if self.segments > 0 || segments == 1 => Numbering::SinglesOnly,
            Some(false) => Numbering::Wrong,
            _ => Numbering::Unknown,
        };
        let usable =
            matches!(numbering, Numbering::AsExpected | Numbering::Irrelevant | Numbering::Unknown);
        Outcome { numbering, segments: if usable { segments } else { 1 } }
    }
}

/// Sends from the socket `fd`, which is bound to `address`, to a scratch socket at the same address.
///
/// Takes well below a millisecond where datagrams come back, and a second where they do not.
///
/// # Errors
/// When there can be no scratch socket.
pub(super) fn run(
    fd: BorrowedFd<'_>,
    arena: &mut SendArena,
    address: &PortAddress,
) -> io::Result<Outcome> {
    let v4 = address.ip.is_ipv4();
    let scratch = Socket::new(
        if v4 { Domain::IPV4 } else { Domain::IPV6 },
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    scratch.set_nonblocking(true)?;
    scratch.set_recv_buffer_size(1 << 20)?;
    if v4 {
        scratch.attach_filter(&filter())?;
    }
    let any_port = Name::new(address.ip, 0, address.scope_id);
    let Some(any_port) = any_port.address() else { return Err(io::ErrorKind::InvalidInput.into()) };
    scratch.bind(&SockAddr::from(any_port))?;
    let scratch = UdpSocket::from(scratch);
    let to = Name::new(address.ip, scratch.local_addr()?.port(), address.scope_id);

    let single = [SINGLE; PAYLOAD as usize];
    let send = |arena: &mut SendArena, control, payload: &[u8]| {
        arena.send(fd, std::iter::once((control, payload)), |control, name, place| {
            (*name, *place) = (to, control);
        })
    };
    let single_sent = send(arena, Control::EMPTY, &single).is_ok();
    let mut control = Control::EMPTY;
    control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &u16::from(PAYLOAD).to_ne_bytes());
    let payload: Vec<u8> = (0..SEGMENTS[0]).flat_map(|k| [k; PAYLOAD as usize]).collect();
    let accepted = SEGMENTS
        .map(usize::from)
        .into_iter()
        .find(|n| send(arena, control, &payload[..n * usize::from(PAYLOAD)]).is_ok());
    let expected = usize::from(single_sent) + accepted.unwrap_or(0);

    let mut seen = Seen::default();
    let mut buf = [0; PAYLOAD as usize];
    while seen.datagrams() < expected {
        match scratch.recv(&mut buf) {
            Ok(0) => break,
            Ok(len) => seen.take(buf[0], len, v4),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let mut fds = [PollFd::new(scratch.as_fd(), PollFlags::POLLIN)];
                match poll(&mut fds, PollTimeout::from(PATIENCE_MS)) {
                    Ok(0) => break,
                    Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                    Err(e) => return Err(e.into()),
                }
            }
            Err(e) => return Err(e),
        }
    }
    Ok(seen.outcome(accepted.unwrap_or(1), v4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::{netdev, sys};

    /// Runs the test from a socket whose path MTU discovery is `discover`, which decides how Linux numbers.
    fn run_with(ip: &str, discover: i32) -> Outcome {
        let socket = UdpSocket::bind((ip, 0)).unwrap();
        let address = netdev::address(ip.parse().unwrap(), 0).unwrap().unwrap();
        let (level, name) = (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER);
        sys::set_option(socket.as_fd(), level, name, discover).unwrap();
        run(socket.as_fd(), &mut SendArena::new(4), &address).unwrap()
    }

    #[test]
    fn linux_numbers_probing_sockets_as_expected() {
        let outcome = run_with("127.0.0.1", libc::IP_PMTUDISC_PROBE);
        assert_eq!(outcome.numbering, Numbering::AsExpected);
        assert!(SEGMENTS.map(usize::from).contains(&outcome.segments));
    }

    #[test]
    fn other_numbering_is_noticed() {
        // These sockets take identifications from a counter; the second one also lets routers fragment.
        for discover in [libc::IP_PMTUDISC_WANT, libc::IP_PMTUDISC_DONT] {
            let outcome = run_with("127.0.0.1", discover);
            assert_eq!(outcome, Outcome { numbering: Numbering::Wrong, segments: 1 });
        }
    }

    #[test]
    fn verdicts() {
        let seen = |single, segments, wrong_segments| Seen { single, segments, wrong_segments };
        let verdict = |s: Seen| (s.outcome(128, true).numbering, s.outcome(128, true).segments);
        assert_eq!(verdict(seen(Some(true), 128, 0)), (Numbering::AsExpected, 128));
        assert_eq!(verdict(seen(Some(true), 7, 0)), (Numbering::AsExpected, 128));
        assert_eq!(verdict(seen(Some(true), 128, 3)), (Numbering::SinglesOnly, 1));
        assert_eq!(verdict(seen(Some(false), 128, 0)), (Numbering::Wrong, 1));
        assert_eq!(verdict(seen(Some(true), 0, 0)), (Numbering::Unknown, 128));
        assert_eq!(verdict(seen(None, 0, 0)), (Numbering::Unknown, 128));
        assert_eq!(seen(Some(true), 0, 0).outcome(1, true).numbering, Numbering::SinglesOnly);
        assert_eq!(verdict(seen(Some(true), 1, 0)), (Numbering::SinglesOnly, 1));
        assert_eq!(seen(None, 1, 0).outcome(128, false).segments, 1);
        assert_eq!(
            seen(None, 0, 0).outcome(64, false),
            Outcome { numbering: Numbering::Irrelevant, segments: 64 }
        );
    }
}
