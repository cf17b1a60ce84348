//! Where packets leave the process, and where they come in.
//!
//! A [`Port`] moves batches of datagrams: [`RxBatch`] is filled by the port and read by the engine,
//! [`TxBatch`] is filled by the engine and drained by the port. Neither call blocks, and neither allocates.
//!
//! *Owns.* The sockets (or whatever else carries packets), their addresses, and the counters of everything
//! that was lost between a socket and the engine.
//!
//! *Rules.* A port knows datagrams and paths ([`crate::net`]), no queue pairs. It never waits: who wants to
//! sleep does so on [`Port::readiness`]. It drops a datagram only with a counter, and returns an error only
//! when it can no longer do its work.

use std::fmt::{self, Debug};
use std::io;
use std::net::IpAddr;
#[cfg(unix)]
use std::os::fd::BorrowedFd;

use crate::net::PortCaps;

#[cfg(all(feature = "udp", target_os = "linux"))]
mod arrival;
mod batch;
#[cfg(all(feature = "udp", target_os = "linux"))]
mod control;
#[cfg(all(feature = "udp", target_os = "linux"))]
mod endpoint;
#[cfg(target_os = "linux")]
pub mod ether;
#[cfg(all(feature = "udp", target_os = "linux"))]
pub mod frames;
#[cfg(all(feature = "udp", target_os = "linux"))]
mod monitor;
#[cfg(all(feature = "udp", target_os = "linux"))]
pub mod netdev;
#[cfg(all(feature = "udp", target_os = "linux"))]
mod open;
#[cfg(all(feature = "udp", target_os = "linux"))]
mod owner;
#[cfg(all(feature = "raw", target_os = "linux"))]
pub mod raw;
#[cfg(all(feature = "udp", target_os = "linux"))]
mod selftest;
#[cfg(all(feature = "udp", target_os = "linux"))]
mod sys;
#[cfg(all(feature = "udp", target_os = "linux"))]
pub mod udp;

pub use batch::{RxBatch, TxBatch};

/// Where packets leave the process.
///
/// One call moves a batch, so the dynamic dispatch costs nothing that could be measured.
pub trait Port: Send + Debug {
    /// What the port can do. Cheap: ask before each pass rather than once, because a kernel that turns out
    /// not to segment lowers [`PortCaps::gso_segments_v4`] or [`PortCaps::gso_segments_v6`] to 1.
    fn caps(&self) -> PortCaps;

    /// Replaces the content of `rx` with datagrams that have arrived; leaves it empty when there are none.
    ///
    /// One call reads about as much as one system call brings. More may be waiting: call until empty.
    ///
    /// # Errors
    /// When the port can receive no more. Nothing there, an interrupted call or a passing condition of the
    /// network are not errors.
    fn recv(&mut self, rx: &mut RxBatch) -> io::Result<()>;

    /// Sends from the front of `tx` and consumes what it sent; what the network does not take at this moment
    /// stays in `tx`.
    ///
    /// An entry that can never be sent (too long, no route, forbidden by a firewall) is dropped, counted in
    /// [`PortStats::send_errors`] and remembered as [`Port::last_error`]. That is packet loss like any
    /// other: the protocol repairs it, or the queue pair runs out of retries.
    ///
    /// # Errors
    /// When the port can send no more.
    fn send(&mut self, tx: &mut TxBatch) -> io::Result<()>;

    /// How many transmissions to build before the next [`Port::send`]. With more than it takes at once the rest is
    /// staged, and leaves later than it was planned for: fine where a queue follows in any case, wrong where packets are
    /// paced one by one. Cheap: asked before each batch.
    fn room(&mut self) -> usize {
        usize::MAX
    }

    /// Becomes readable when [`Port::recv`] has something. `None`: in memory, never slept on.
    #[cfg(unix)]
    fn readiness(&self) -> Option<BorrowedFd<'_>>;

    /// Becomes writable when a [`Port::send`] that left entries in its batch is worth another try. `None`
    /// when the last one left nothing.
    #[cfg(unix)]
    fn blocked_on(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Receives what is sent to a multicast group from now on, at all interfaces of ours of its family. What we
    /// send there ourselves comes back, too. Joining twice is joining once.
    ///
    /// [`Port::readiness`] may be another descriptor afterwards.
    ///
    /// # Errors
    /// The network does not let us, or there is no address of this family.
    fn join(&mut self, group: IpAddr) -> io::Result<()>;

    /// Ends what [`Port::join`] began.
    ///
    /// # Errors
    /// The network does not let us. Nothing of the group is received any more in any case.
    fn leave(&mut self, group: IpAddr) -> io::Result<()>;

    /// Our addresses, in the order of the device's GID table.
    fn addresses(&self) -> &[PortAddress];

    /// Whether the port can work, as far as this side knows. Cheap: asked in each pass.
    fn health(&self) -> Health {
        Health::GOOD
    }

    /// The smallest MTU of its interfaces, as [`Port::caps`] has it. Cheap, and without any lock: asked in each
    /// pass.
    fn mtu(&self) -> u32 {
        self.caps().mtu
    }

    /// What has been counted since the port was opened.
    fn stats(&self) -> PortStats;

    /// The last entry that could not be sent, and why.
    fn last_error(&self) -> Option<SendError> {
        None
    }

    /// Looks whether links, addresses or MTUs have changed, without waiting for [`Port::recv`] to notice.
    fn refresh(&mut self) {}
}

impl Port for Box<dyn Port> {
    fn caps(&self) -> PortCaps {
        (**self).caps()
    }

    fn recv(&mut self, rx: &mut RxBatch) -> io::Result<()> {
        (**self).recv(rx)
    }

    fn send(&mut self, tx: &mut TxBatch) -> io::Result<()> {
        (**self).send(tx)
    }

    fn room(&mut self) -> usize {
        (**self).room()
    }

    #[cfg(unix)]
    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        (**self).readiness()
    }

    #[cfg(unix)]
    fn blocked_on(&self) -> Option<BorrowedFd<'_>> {
        (**self).blocked_on()
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        (**self).join(group)
    }

    fn leave(&mut self, group: IpAddr) -> io::Result<()> {
        (**self).leave(group)
    }

    fn addresses(&self) -> &[PortAddress] {
        (**self).addresses()
    }

    fn health(&self) -> Health {
        (**self).health()
    }

    fn mtu(&self) -> u32 {
        (**self).mtu()
    }

    fn stats(&self) -> PortStats {
        (**self).stats()
    }

    fn last_error(&self) -> Option<SendError> {
        (**self).last_error()
    }

    fn refresh(&mut self) {
        (**self).refresh();
    }
}

/// What may come and go while a port is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// An interface has a link, and still has one of our addresses.
    pub up: bool,
    /// How many of our addresses are gone.
    pub missing: usize,
}

impl Health {
    /// Nothing is wrong.
    pub const GOOD: Self = Self { up: true, missing: 0 };
}

/// An address of a port, and the interface that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortAddress {
    /// The address.
    pub ip: IpAddr,
    /// Scope of a link-local IPv6 address (the interface index); else 0.
    pub scope_id: u32,
    /// Name of the interface, such as `eth0`; empty where there is none.
    pub interface: String,
    /// Index of the interface; 0 where there is none.
    pub if_index: u32,
}

impl fmt::Display for PortAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.ip)?;
        if self.scope_id != 0 {
            write!(f, "%{}", self.interface)?;
        }
        Ok(())
    }
}

/// Counters of a port. All count from its opening and never go back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortStats {
    /// Datagrams sent, each segment counted.
    pub sent_datagrams: u64,
    /// Bytes sent, without IP and UDP headers.
    pub sent_bytes: u64,
    /// System calls made to send, failed ones included.
    pub send_calls: u64,
    /// Datagrams that were dropped because they could not be sent. See [`Port::last_error`].
    pub send_errors: u64,
    /// Times that the network took no more for the moment, and entries stayed in the batch.
    pub send_busy: u64,
    /// Datagrams handed to the engine, each segment counted.
    pub received_datagrams: u64,
    /// Bytes handed to the engine, without IP and UDP headers.
    pub received_bytes: u64,
    /// System calls made to receive, those that brought nothing included.
    pub receive_calls: u64,
    /// Those among them that brought nothing.
    pub receive_calls_in_vain: u64,
    /// Passing errors of the receiving side, such as an interface that is down.
    pub receive_errors: u64,
    /// Datagrams that the kernel dropped at the socket: nearly always because the receive buffer was full,
    /// rarely because of a wrong UDP checksum. A merged buffer counts as one.
    pub overruns: u64,
    /// Datagrams dropped because they came in through an interface that is not the device's.
    pub wrong_interface: u64,
    /// Datagrams dropped because they were longer than a receive buffer.
    pub truncated: u64,
    /// Datagrams dropped because the kernel did not say where they were sent to.
    pub malformed: u64,
    /// Times that segmented sending was switched off because the kernel refused it.
    pub gso_refused: u64,
    /// Frames dropped because they were sent to another station, or to a group that was not joined.
    pub other_station: u64,
    /// Frames dropped because they were of another VLAN.
    pub wrong_vlan: u64,
    /// Packets dropped because their IP address, or the one they asked for, is none of ours.
    pub wrong_address: u64,
    /// IP fragments dropped: RoCEv2 is never fragmented.
    pub fragments: u64,
    /// Packets dropped because a checksum of IP, UDP or ICMP was wrong.
    pub bad_checksum: u64,
    /// Packets dropped because they were neither RoCEv2 nor anything that a port answers.
    pub other_traffic: u64,
    /// Datagrams dropped because their neighbour did not answer; also among `send_errors`.
    pub unresolved: u64,
    /// Questions of ARP, neighbour discovery or ping not answered, or not asked, because too much was waiting.
    pub unanswered: u64,
    /// Frames dropped because they were longer than the MTU of their interface: the kernel of this host had merged
    /// several datagrams in one, or had not yet taken apart what was sent as one.
    pub merged: u64,
    /// Connections closed because their bytes were not frames.
    pub bad_framing: u64,
    /// Datagrams that are missing in the capture that was asked for: its file took no more.
    pub uncaptured: u64,
}

/// An entry that could not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendError {
    /// Where it was to go.
    pub dst: IpAddr,
    /// Its bytes, all segments together.
    pub len: usize,
    /// What the kernel said, or would have said.
    pub errno: i32,
    /// The neighbour that was asked for its hardware address and did not answer, if that was why.
    pub neighbour: Option<IpAddr>,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes to {} not sent: ", self.len, self.dst)?;
        match self.neighbour {
            Some(ip @ IpAddr::V4(_)) => write!(f, "no answer to ARP for {ip}"),
            Some(ip) => write!(f, "no answer to neighbour solicitations for {ip}"),
            None => write!(f, "{}", io::Error::from_raw_os_error(self.errno)),
        }
    }
}

impl std::error::Error for SendError {}
