//! Notices of the kernel that an interface or an address has come, gone or changed (`rtnetlink(7)`).
//!
//! *Rules.* A notice is never read for what it says: it may be lost when there are many. It is the reason to
//! look at the interfaces again.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};

/// `RTMGRP_LINK`, `RTMGRP_IPV4_IFADDR`, `RTMGRP_IPV6_IFADDR`.
const GROUPS: u32 = 0x1 | 0x10 | 0x100;

/// A socket that becomes readable with each notice.
#[derive(Debug)]
pub(super) struct Monitor(OwnedFd);

impl Monitor {
    pub(super) fn open() -> io::Result<Self> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let protocol = SockProtocol::NetlinkRoute;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, GROUPS))?;
        Ok(Self(fd))
    }

    /// Whether there were notices since the last time anybody asked.
    pub(super) fn has_changed(&self) -> bool {
        let mut changed = false;
        let mut notice = [0; 4096];
        loop {
            match recv(self.0.as_raw_fd(), &mut notice, MsgFlags::empty()) {
                // Too many came at once; what follows is not lost.
                Ok(_) | Err(Errno::ENOBUFS) => changed = true,
                Err(Errno::EINTR) => {}
                Err(_) => return changed,
            }
        }
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
