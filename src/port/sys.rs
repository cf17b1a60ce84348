//! The system calls of the UDP port that no safe wrapper offers.
//!
//! `nix::sendmsg` allocates for each call, `nix::sendmmsg` has one set of control messages for all
//! datagrams of a call (ours differ in segment size and traffic class), `nix::recvmmsg` does not restore
//! the lengths of name and control buffers that the kernel shortens, and `socket2` has neither batch call.
//! So the four message calls are made here over headers that are allocated once. The rest are options and
//! requests that neither crate knows.
//!
//! A message that is alone (`send_one`, `receive_one`) goes through `syscall(2)`: the C library's `sendmsg` and
//! `recvmsg` are cancellation points, which costs a program with threads four locked instructions a message,
//! and nothing here is ever cancelled.
//!
//! *Rules.* Everything here is a thin function with a safe signature: it owns or borrows what its pointers
//! point to for as long as the call lasts, and no pointer is read after it. Nothing blocks.

#![allow(unsafe_code, reason = "system calls; each block says why its pointers are valid")]
#![expect(clippy::cast_possible_truncation, reason = "sizes of our own structures and batches")]

use std::fmt;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{c_int, c_uint};

use super::control::{Control, Name};

/// `-1` as the error that `errno` names, any other result as a count.
fn count(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Headers for `sendmsg(2)` and `sendmmsg(2)`.
pub(super) struct SendArena {
    headers: Box<[libc::mmsghdr]>,
    vectors: Box<[libc::iovec]>,
    names: Box<[Name]>,
    controls: Box<[Control]>,
}

// SAFETY: the pointers in the headers and vectors are written at the start of each `send`, read by the
// kernel before it returns, and never followed by anybody else. Between two calls they are mere numbers.
unsafe impl Send for SendArena {}

impl SendArena {
    /// For at most `n` datagrams a call.
    pub(super) fn new(n: usize) -> Self {
        Self {
            headers: vec![empty_header(); n].into_boxed_slice(),
            vectors: vec![EMPTY_VECTOR; n].into_boxed_slice(),
            names: vec![Name::EMPTY; n].into_boxed_slice(),
            controls: vec![Control::EMPTY; n].into_boxed_slice(),
        }
    }

    /// Sends as many of `batch` as the arena has headers for and the socket takes; says how many that were.
    /// Each is a datagram, or several of one size if the control data says so; `address` writes where it goes, and its
    /// control data. Never blocks. An error is about the first datagram.
    pub(super) fn send<'a, T>(
        &mut self,
        fd: BorrowedFd<'_>,
        batch: impl Iterator<Item = (T, &'a [u8])>,
        address: impl Fn(T, &mut Name, &mut Control),
    ) -> io::Result<usize> {
        let slots = self.headers.iter_mut().zip(&mut self.vectors);
        let slots = slots.zip(&mut self.names).zip(&mut self.controls);
        let mut n = 0;
        // The slots come first: when they are used up nothing more is taken from the batch.
        for ((((header, vector), name), control), (to, payload)) in slots.zip(batch) {
            control.clear();
            address(to, name, control);
            fill(&mut header.msg_hdr, vector, name, control, payload);
            n += 1;
        }
        let (fd, flags) = (fd.as_raw_fd(), libc::MSG_DONTWAIT);
        match &mut self.headers[..n] {
            [] => Ok(0),
            headers => {
                let vlen = headers.len() as c_uint;
                // SAFETY: each of the `vlen` headers of the slice was filled above with pointers and lengths of a
                // payload, which lives for 'a and so beyond this function, and of a vector, a name and control
                // data in our own boxes, which nobody else can touch while we hold `&mut self`. `sendmmsg` reads
                // what they point to and writes only `msg_len` inside them.
                let sent = unsafe { libc::sendmmsg(fd, headers.as_mut_ptr(), vlen, flags as _) };
                count(sent as isize)
            }
        }
    }

    /// Sends one, as [`send`](Self::send) does: most are alone, and a list of one takes longer.
    #[inline]
    pub(super) fn send_one(
        &mut self,
        fd: BorrowedFd<'_>,
        payload: &[u8],
        address: impl FnOnce(&mut Name, &mut Control),
    ) -> io::Result<()> {
        let (header, vector) = (&mut self.headers[0].msg_hdr, &mut self.vectors[0]);
        let (name, control) = (&mut self.names[0], &mut self.controls[0]);
        control.clear();
        address(name, control);
        fill(header, vector, name, control, payload);
        let (fd, header, flags) = (fd.as_raw_fd(), &raw const *header, libc::MSG_DONTWAIT);
        // SAFETY: the header was filled above with pointers and lengths of the payload, which is borrowed for
        // longer than this call, and of a vector, a name and control data in our own boxes, which nobody else
        // can touch while we hold `&mut self`. `sendmsg` only reads them.
        let sent = unsafe { libc::syscall(libc::SYS_sendmsg, fd, header, flags) };
        count(sent as isize).map(|_| ())
    }
}

/// Has a header describe one datagram.
#[inline(always)]
fn fill(
    header: &mut libc::msghdr,
    vector: &mut libc::iovec,
    name: &Name,
    control: &Control,
    payload: &[u8],
) {
    vector.iov_base = payload.as_ptr().cast_mut().cast();
    vector.iov_len = payload.len();
    header.msg_name = name.as_bytes().as_ptr().cast_mut().cast();
    header.msg_namelen = name.as_bytes().len() as _;
    header.msg_iov = vector;
    header.msg_iovlen = 1;
    header.msg_control = control.as_bytes().as_ptr().cast_mut().cast();
    header.msg_controllen = control.as_bytes().len() as _;
}

impl fmt::Debug for SendArena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendArena").field("headers", &self.headers.len()).finish()
    }
}

/// What came with a datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct Incoming<'a> {
    /// Bytes in the buffer.
    pub(super) len: usize,
    /// The sender.
    pub(super) from: &'a Name,
    /// Control messages.
    pub(super) control: &'a [u8],
    /// The buffer was too small: the rest is lost.
    pub(super) truncated: bool,
}

/// Room for all control messages that a socket of ours asks for: packet information (20 bytes at most),
/// segment size, traffic class, hop limit.
pub(super) const RECEIVED_CONTROL: usize = super::control::space(20) + 3 * super::control::space(4);

#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct ReceivedControl([u8; RECEIVED_CONTROL]);

/// Headers for `recvmsg(2)` and `recvmmsg(2)`.
pub(super) struct ReceiveArena {
    headers: Box<[libc::mmsghdr]>,
    vectors: Box<[libc::iovec]>,
    names: Box<[Name]>,
    controls: Box<[ReceivedControl]>,
}

// SAFETY: as for `SendArena`: the pointers matter only inside `receive`.
unsafe impl Send for ReceiveArena {}

impl ReceiveArena {
    /// For at most `n` datagrams a call.
    pub(super) fn new(n: usize) -> Self {
        Self {
            headers: vec![empty_header(); n].into_boxed_slice(),
            vectors: vec![EMPTY_VECTOR; n].into_boxed_slice(),
            names: vec![Name::EMPTY; n].into_boxed_slice(),
            controls: vec![ReceivedControl([0; RECEIVED_CONTROL]); n].into_boxed_slice(),
        }
    }

    /// Receives what is there, one datagram (or merged buffer) into each of `buffers`; says how many came.
    /// Never blocks: `WouldBlock` when there is nothing.
    pub(super) fn receive<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        buffers: impl Iterator<Item = &'a mut [u8]>,
    ) -> io::Result<usize> {
        let slots = self.headers.iter_mut().zip(&mut self.vectors);
        let slots = slots.zip(&mut self.names).zip(&mut self.controls);
        let mut n = 0;
        for ((((header, vector), name), control), buffer) in slots.zip(buffers) {
            offer(&mut header.msg_hdr, vector, name, control, buffer);
            n += 1;
        }
        let (fd, flags) = (fd.as_raw_fd(), libc::MSG_DONTWAIT);
        match &mut self.headers[..n] {
            [] => Ok(0),
            headers => {
                let (vlen, now) = (headers.len() as c_uint, std::ptr::null_mut());
                // SAFETY: each of the `vlen` headers of the slice was filled above with pointers and lengths of a
                // buffer that is borrowed exclusively for 'a and so beyond this function, and of a vector, a name and
                // a control buffer in our own boxes, under `&mut self`. The buffers are distinct, as each is an
                // exclusive borrow. The kernel writes no more than those lengths. A null timeout is allowed.
                let got =
                    unsafe { libc::recvmmsg(fd, headers.as_mut_ptr(), vlen, flags as _, now) };
                count(got as isize)
            }
        }
    }

    /// Receives one, as [`receive`](Self::receive) does: who looks all the time mostly finds none.
    #[inline]
    pub(super) fn receive_one(&mut self, fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<()> {
        let (header, vector) = (&mut self.headers[0], &mut self.vectors[0]);
        offer(&mut header.msg_hdr, vector, &mut self.names[0], &mut self.controls[0], buffer);
        let (fd, flags) = (fd.as_raw_fd(), libc::MSG_DONTWAIT);
        // SAFETY: the header was filled above with pointers and lengths of a buffer that is borrowed exclusively for
        // longer than this call, and of a vector, a name and a control buffer in our own boxes, under `&mut self`.
        // The kernel writes no more than those lengths.
        let got = unsafe { libc::syscall(libc::SYS_recvmsg, fd, &raw mut header.msg_hdr, flags) };
        header.msg_len = count(got as isize)? as c_uint;
        Ok(())
    }

    /// What came with datagram `i` of the last [`receive`](Self::receive), which said that there were more
    /// than `i`.
    pub(super) fn incoming(&self, i: usize) -> Incoming<'_> {
        let h = &self.headers[i].msg_hdr;
        let control = &self.controls[i].0;
        // The type differs between C libraries.
        let control_len: usize = h.msg_controllen as _;
        Incoming {
            len: self.headers[i].msg_len as usize,
            from: &self.names[i],
            control: &control[..control_len.min(control.len())],
            truncated: h.msg_flags & libc::MSG_TRUNC != 0,
        }
    }
}

impl fmt::Debug for ReceiveArena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveArena").field("headers", &self.headers.len()).finish()
    }
}

/// Has a header offer a buffer to receive into.
#[inline(always)]
fn offer(
    header: &mut libc::msghdr,
    vector: &mut libc::iovec,
    name: &mut Name,
    control: &mut ReceivedControl,
    buffer: &mut [u8],
) {
    vector.iov_base = buffer.as_mut_ptr().cast();
    vector.iov_len = buffer.len();
    header.msg_name = name.bytes_mut().as_mut_ptr().cast();
    header.msg_namelen = Name::SPACE as _;
    header.msg_iov = vector;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = control.0.len() as _;
    header.msg_flags = 0;
}

const EMPTY_VECTOR: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

fn empty_header() -> libc::mmsghdr {
    // SAFETY: integers and raw pointers only, for which all zero is a value. (Field by field is not
    // possible: the structure has private padding on some targets.)
    unsafe { mem::zeroed() }
}

/// Sets a socket option whose value is an `int`.
pub(super) fn set_option(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: c_int,
) -> io::Result<()> {
    let len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes from the pointer, which is to a local `int` of that size.
    let set =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) };
    count(set as isize).map(|_| ())
}

/// How many datagrams a socket has dropped, modulo 2^32: `SO_MEMINFO` (Linux 4.12).
///
/// The control message of `SO_RXQ_OVFL` has the same number, but only with the next datagram that is
/// received, and it costs time for each of them.
pub(super) fn drops(fd: BorrowedFd<'_>) -> io::Result<u32> {
    // From the kernel's include/uapi/asm-generic/socket.h and linux/sock_diag.h; not in libc.
    const SO_MEMINFO: c_int = 55;
    const SK_MEMINFO_DROPS: usize = 8;
    let mut info = [0u32; 16];
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `info`, which has that size, and the length
    // written to `len`.
    let got = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_MEMINFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    count(got as isize)?;
    match info[..(len as usize / size_of::<u32>()).min(info.len())].get(SK_MEMINFO_DROPS) {
        Some(&drops) => Ok(drops),
        None => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// A request about the interface `name`, still without its value.
fn interface_request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: a byte array and a union of plain data; all zero is a value of each member.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    // One byte stays zero, as the kernel wants.
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as _;
    }
    Ok(request)
}

/// MTU of the interface `name`: `SIOCGIFMTU`, see `netdevice(7)`. `fd` is any socket.
pub(super) fn interface_mtu(fd: BorrowedFd<'_>, name: &str) -> io::Result<u32> {
    let mut request = interface_request(name)?;
    // SAFETY: the kernel reads and writes one `ifreq`, which is what the pointer is to.
    let got = unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) };
    count(got as isize)?;
    // SAFETY: after this request the member that the kernel has set is the MTU.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Index of the interface `name`: `SIOCGIFINDEX`. It is another one if another interface has the name now.
#[cfg(feature = "raw")]
pub(super) fn interface_index(fd: BorrowedFd<'_>, name: &str) -> io::Result<u32> {
    let mut request = interface_request(name)?;
    // SAFETY: the kernel reads and writes one `ifreq`, which is what the pointer is to.
    let got = unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFINDEX, &raw mut request) };
    count(got as isize)?;
    // SAFETY: after this request the member that the kernel has set is the index.
    let index = unsafe { request.ifr_ifru.ifru_ifindex };
    u32::try_from(index).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Flags of the interface `name`, such as `IFF_UP`: `SIOCGIFFLAGS`. `fd` is any socket.
#[cfg(feature = "raw")]
pub(super) fn interface_flags(fd: BorrowedFd<'_>, name: &str) -> io::Result<c_int> {
    let mut request = interface_request(name)?;
    // SAFETY: the kernel reads and writes one `ifreq`, which is what the pointer is to.
    let got = unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request) };
    count(got as isize)?;
    // SAFETY: after this request the member that the kernel has set are the flags.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(flags.into())
}

/// Driver of the interface `name`, such as `veth`: `SIOCETHTOOL` with `ETHTOOL_GDRVINFO`. Needs no
/// privilege, and unlike `/sys/class/net` it is about the network namespace of the caller. `fd` is any
/// socket.
pub(super) fn interface_driver(fd: BorrowedFd<'_>, name: &str) -> io::Result<String> {
    // struct ethtool_drvinfo of the kernel's include/uapi/linux/ethtool.h; not in libc.
    #[repr(C)]
    struct DriverInfo {
        command: u32,
        driver: [u8; 32],
        rest: [u8; 4 * 32 + 12],
        counts: [u32; 5],
    }
    const ETHTOOL_GDRVINFO: u32 = 3;
    let mut info = DriverInfo {
        command: ETHTOOL_GDRVINFO,
        driver: [0; 32],
        rest: [0; 4 * 32 + 12],
        counts: [0; 5],
    };
    let mut request = interface_request(name)?;
    request.ifr_ifru.ifru_data = (&raw mut info).cast();
    // SAFETY: the kernel reads one `ifreq` and, as the command in front of `info` says, fills one
    // `ethtool_drvinfo` at the pointer inside it; `info` has that layout and outlives the call.
    let got = unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    count(got as isize)?;
    let end = info.driver.iter().position(|&b| b == 0).unwrap_or(info.driver.len());
    Ok(String::from_utf8_lossy(&info.driver[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn control_space_is_that_of_libc() {
        for len in [1u32, 2, 4, 12, 20] {
            // SAFETY: pure arithmetic.
            let libc_space = unsafe { libc::CMSG_SPACE(len) };
            assert_eq!(super::super::control::space(len as usize), libc_space as usize);
        }
    }

    #[test]
    fn batches_travel_whole_and_in_order() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let at = receiver.local_addr().unwrap();
        let mut arena = SendArena::new(3);
        let payloads = [[1u8; 5], [2; 5], [3; 5], [4; 5]];
        let address = |(), name: &mut Name, _: &mut Control| name.set(at.ip(), at.port(), 0);
        let sent = arena.send(sender.as_fd(), payloads.iter().map(|p| ((), &p[..])), address);
        assert_eq!(sent.unwrap(), 3, "as many as there are headers");
        assert_eq!(arena.send(sender.as_fd(), std::iter::empty(), address).unwrap(), 0);

        let mut arena = ReceiveArena::new(8);
        let mut buffers = [[0u8; 4]; 8];
        let got = arena.receive(receiver.as_fd(), buffers.iter_mut().map(|b| &mut b[..]));
        assert_eq!(got.unwrap(), 3);
        for (i, buffer) in buffers.iter().enumerate().take(3) {
            let incoming = arena.incoming(i);
            assert_eq!(incoming.from.address(), Some(sender.local_addr().unwrap()));
            assert_eq!((incoming.len, incoming.truncated), (4, true));
            assert_eq!(*buffer, [i as u8 + 1; 4]);
        }
        let none = arena.receive(receiver.as_fd(), buffers.iter_mut().map(|b| &mut b[..]));
        assert_eq!(none.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn drops_are_counted_by_the_socket() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        set_option(receiver.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, 4096).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(drops(receiver.as_fd()).unwrap(), 0);
        for _ in 0..64 {
            sender.send_to(&[0; 1000], receiver.local_addr().unwrap()).unwrap();
        }
        let mut kept = 0;
        receiver.set_nonblocking(true).unwrap();
        while receiver.recv(&mut [0; 1000]).is_ok() {
            kept += 1;
        }
        assert!(kept > 0);
        assert_eq!(drops(receiver.as_fd()).unwrap(), 64 - kept);
    }

    #[test]
    fn requests_about_interfaces() {
        let any = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(interface_mtu(any.as_fd(), "lo").unwrap() >= 1280);
        assert!(interface_mtu(any.as_fd(), "no such name").is_err());
        assert!(interface_mtu(any.as_fd(), "a name that is far too long").is_err());
        assert!(interface_driver(any.as_fd(), "no such name").is_err());
    }
}
