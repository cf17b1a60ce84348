//! Opening the sockets of a UDP port: what is asked for, with which options, and why it may fail.
//!
//! *Rules.* An error names the likely cause and what to do about it: most people meet this module through
//! its errors.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd;

use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, SockAddr, Socket, Type};

use super::control::Name;
use super::owner::{self, Owner};
use super::{PortAddress, netdev, sys};
use crate::net::ROCE_PORT;

/// Whether to send several packets in one segmented send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GsoPolicy {
    /// Over IPv6 always; over IPv4 where the kernel's own code makes the segments.
    #[default]
    Auto,
    /// Wherever the self-test has not shown that the kernel numbers segments wrongly.
    On,
    /// Never.
    Off,
}

/// What to open.
#[derive(Clone, Debug)]
pub struct UdpConfig {
    /// The addresses, in the order of the GID table; at least one.
    pub addresses: Vec<PortAddress>,
    /// UDP port of both ends. Anything but [`ROCE_PORT`] is not RoCEv2.
    pub port: u16,
    /// Bytes of receive buffer to ask for, per socket. The kernel grants what `net.core.rmem_max` allows.
    pub rcvbuf: usize,
    /// Bytes of send buffer to ask for, per socket. The kernel grants what `net.core.wmem_max` allows.
    pub sndbuf: usize,
    /// Whether to send in segments.
    pub gso: GsoPolicy,
    /// Whether to let the kernel merge what arrives.
    pub gro: bool,
    /// Whether to leave out addresses that cannot be bound at the moment, such as IPv6 addresses that are
    /// still being probed for duplicates. One at least must remain.
    pub skip_unavailable: bool,
}

impl UdpConfig {
    /// The usual settings for these addresses.
    pub fn new(addresses: Vec<PortAddress>) -> Self {
        Self {
            addresses,
            port: ROCE_PORT,
            rcvbuf: 4 << 20,
            sndbuf: 4 << 20,
            gso: GsoPolicy::Auto,
            gro: true,
            skip_unavailable: false,
        }
    }

    /// One address of this host; `scope_id` as in [`netdev::address`].
    ///
    /// # Errors
    /// [`OpenError::NotAvailable`] if no interface has it.
    pub fn for_address(ip: IpAddr, scope_id: u32) -> Result<Self, OpenError> {
        let found = netdev::address(ip, scope_id).map_err(OpenError::io("listing interfaces"))?;
        Ok(Self::new(vec![found.ok_or(OpenError::NotAvailable { ip })?]))
    }

    /// All addresses that an interface has at this moment; those not yet usable will be left out.
    ///
    /// # Errors
    /// [`OpenError::NoInterface`], or [`OpenError::NoAddress`] if it has none.
    pub fn for_interface(name: &str) -> Result<Self, OpenError> {
        let found = netdev::interface(name).map_err(OpenError::io("listing interfaces"))?;
        let dev = found.ok_or_else(|| OpenError::NoInterface { name: name.to_owned() })?;
        if dev.addresses.is_empty() {
            return Err(OpenError::NoAddress { name: name.to_owned() });
        }
        Ok(Self { skip_unavailable: true, ..Self::new(dev.addresses) })
    }
}

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Something else is bound to the address.
    #[error("{}", in_use(.ip, .port, .owner))]
    InUse {
        /// The address.
        ip: IpAddr,
        /// The UDP port.
        port: u16,
        /// Who it probably is.
        owner: Owner,
    },
    /// This host does not have the address.
    #[error(
        "{ip} is not an address of this host, or not usable yet (an IPv6 address is first probed for \
         duplicates); `ip address` lists them"
    )]
    NotAvailable {
        /// The address.
        ip: IpAddr,
    },
    /// There is no such interface.
    #[error(
        "there is no network interface `{name}` in this network namespace; `ip link` lists them"
    )]
    NoInterface {
        /// The name that was asked for.
        name: String,
    },
    /// The interface has no address.
    #[error("network interface `{name}` has no IP address; add one with `ip address add`")]
    NoAddress {
        /// The interface.
        name: String,
    },
    /// A socket could not be made as needed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// The sentence for [`OpenError::InUse`].
fn in_use(ip: &IpAddr, port: &u16, owner: &Owner) -> String {
    let way_out = if owner.wildcard && owner.process.is_none() && owner.rxe {
        "`rmmod rdma_rxe`, or run in a network namespace of its own"
    } else if owner.wildcard {
        "stop it, or run in a network namespace of its own"
    } else if ip.is_loopback() && ip.is_ipv4() {
        "stop it, or take another address of 127.0.0.0/8"
    } else {
        "stop it, or take another address of this host"
    };
    let ip = if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() };
    format!("UDP port {port} of {ip} is taken by {owner}: {way_out}")
}

impl OpenError {
    pub(super) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }

    /// The number that stands for it in C.
    pub fn errno(&self) -> i32 {
        match self {
            Self::InUse { .. } => libc::EADDRINUSE,
            Self::NotAvailable { .. } => libc::EADDRNOTAVAIL,
            Self::NoInterface { .. } | Self::NoAddress { .. } => libc::ENODEV,
            Self::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

impl From<OpenError> for io::Error {
    fn from(e: OpenError) -> Self {
        Self::new(Self::from_raw_os_error(e.errno()).kind(), e)
    }
}

/// A socket with all its options, not yet bound.
pub(super) fn new_socket(v4: bool, config: &UdpConfig) -> Result<UdpSocket, OpenError> {
    let domain = if v4 { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::DGRAM.nonblocking(), Some(Protocol::UDP))
        .map_err(OpenError::io("creating a UDP socket"))?;
    set_options(&socket, v4, config)
        .map_err(OpenError::io("setting the options of a UDP socket"))?;
    Ok(socket.into())
}

fn set_options(socket: &Socket, v4: bool, config: &UdpConfig) -> io::Result<()> {
    let fd = socket.as_fd();
    socket.set_recv_buffer_size(config.rcvbuf)?;
    socket.set_send_buffer_size(config.sndbuf)?;
    if v4 {
        sys::set_option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
        setsockopt(&fd, sockopt::Ipv4PacketInfo, &true)?;
        setsockopt(&fd, sockopt::Ipv4RecvTtl, &true)?;
        socket.set_recv_tos_v4(true)?;
    } else {
        socket.set_only_v6(true)?;
        let (level, probe) = (libc::IPPROTO_IPV6, libc::IPV6_PMTUDISC_PROBE);
        sys::set_option(fd, level, libc::IPV6_MTU_DISCOVER, probe)?;
        setsockopt(&fd, sockopt::Ipv6RecvPacketInfo, &true)?;
        socket.set_recv_hoplimit_v6(true)?;
        socket.set_recv_tclass_v6(true)?;
        // Most RoCEv2 senders leave the UDP checksum out, which IPv6 has to be told to accept.
        missing_is_fine(sys::set_option(fd, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1))?;
    }
    if config.gro {
        missing_is_fine(setsockopt(&fd, sockopt::UdpGroSegment, &true).map_err(io::Error::from))?;
    }
    Ok(())
}

/// Lets a socket that is not yet bound share its address, which is a group's: every program of the host that is
/// in the group has one of its own, and gets a copy of all that comes.
pub(super) fn share_address(socket: &UdpSocket) -> io::Result<()> {
    socket2::SockRef::from(socket).set_reuse_address(true)
}

/// Joins the group of `address` at its interface. The socket then receives what comes for this group in by this
/// interface, and nothing of the groups that others have joined.
pub(super) fn join(socket: &UdpSocket, address: &PortAddress) -> io::Result<()> {
    let socket = socket2::SockRef::from(socket);
    match address.ip {
        IpAddr::V4(group) => {
            let (level, option) = (libc::IPPROTO_IP, libc::IP_MULTICAST_ALL);
            sys::set_option(socket.as_fd(), level, option, 0)?;
            let interface = InterfaceIndexOrAddress::Index(address.if_index);
            socket.join_multicast_v4_n(&group, &interface)
        }
        IpAddr::V6(group) => {
            let (level, option) = (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_ALL);
            missing_is_fine(sys::set_option(socket.as_fd(), level, option, 0))?;
            socket.join_multicast_v6(&group, address.if_index)
        }
    }
}

/// Older kernels do not know the option, and then the port works without.
pub(super) fn missing_is_fine(set: io::Result<()>) -> io::Result<()> {
    match set {
        Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        other => other,
    }
}

/// Binds a socket, and finds out who is in the way.
pub(super) fn bind(socket: &UdpSocket, address: &PortAddress, port: u16) -> Result<(), OpenError> {
    let ip = address.ip;
    let name = match Name::new(ip, port, address.scope_id).address() {
        Some(name) => SockAddr::from(name),
        None => return Err(OpenError::NotAvailable { ip }),
    };
    socket2::SockRef::from(socket).bind(&name).map_err(|e| match e.raw_os_error() {
        Some(libc::EADDRINUSE) => OpenError::InUse { ip, port, owner: owner::find(ip, port) },
        Some(libc::EADDRNOTAVAIL | libc::ENODEV) => OpenError::NotAvailable { ip },
        _ => OpenError::Io { what: "binding a UDP socket", source: e },
    })
}
