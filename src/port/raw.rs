//! The raw port: Ethernet frames on a network interface, past the kernel's network.
//!
//! A packet socket (`packet(7)`) brings every frame that the interface receives, and takes whole frames to send. So
//! all of a frame is in our hands: addresses, VLAN and priority, IP identification, TTL, traffic class. What a
//! station does with frames is in [`ether`](super::ether). Here they are only carried.
//!
//! The socket is opened, bound, and sent on through `pnet_datalink`. It is received from in batches of our own,
//! because `pnet` does not tell what the kernel keeps beside a frame: the VLAN tag, which it takes out of every
//! frame, and whether the UDP checksum is still missing, as it is in what the kernel of this host sends over a
//! virtual pair.
//!
//! *Privilege.* The socket needs `CAP_NET_RAW` in the user namespace of the network namespace, and nothing else
//! does: `setcap cap_net_raw+ep PROGRAM`, or root.
//!
//! *The kernel's side.* The station has addresses of its own, which the kernel of this host must not have: it
//! would answer for them too, with "port unreachable" for instance. Unless another one is asked for, the hardware
//! address is made from the first IP address, and the interface is promiscuous as long as the port is open
//! (`PACKET_MR_PROMISC`, without which `ip link` would show it), so that the interface does not drop what is sent
//! to the station. The kernel drops it (`PACKET_OTHERHOST`). With the hardware address of the interface itself, which is
//! for networks that know no other (wireless ones, many clouds), the kernel takes a look: it drops packets for
//! addresses that it does not have, but a host that forwards packets would forward them.
//!
//! Two stations on one interface do not hear each other, and neither hears the host: what an interface sends does
//! not come back to it. Each needs an end of its own of a virtual pair.
//!
//! *Offloads.* What a program of this host sends as one segmented send over a virtual pair arrives as one long
//! frame, which nobody says how to take apart: if it is longer than the MTU it is dropped and counted as merged, and
//! if not, its ICRC is wrong. So it is with frames that a card merges (LRO, UDP GRO). `ip link set dev PEER gso_max_segs
//! 1` at the sender's end, or `ethtool -K PEER tx-udp-segmentation off`, makes the kernel take it apart before.
//!
//! *Rules.* Link and MTU follow the interface. An interface that was removed is gone, also when there is another
//! one of the same name: the port stays down.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd};

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use pnet_datalink::{Channel, DataLinkSender, NetworkInterface};
use socket2::{Domain, Socket, Type};

use super::control::messages;
use super::ether::{Aside, EtherPort, Fit, Frames, Got, Link, StationConfig};
use super::monitor::Monitor;
use super::open::missing_is_fine;
use super::sys::{self, ReceiveArena};
use super::{PortStats, netdev};
use crate::time::{Duration, Instant};

/// Most frames of one call.
const CALL: usize = 32;
/// Bytes of socket buffer to ask for.
const BUFFER: usize = 4 << 20;
/// Ethernet header and one VLAN tag: the kernel allows that much beside the MTU.
const HEAD: usize = 14 + 4;
/// Receives in vain after which the monitor is asked.
const ASK_AFTER: u8 = 64;

/// What to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawConfig {
    /// Name of the interface.
    pub interface: String,
    /// Largest IP packet, if it is to be less than the interface's.
    pub mtu: Option<u32>,
    /// The station. Its MTU is not looked at.
    pub station: StationConfig,
}

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RawError {
    /// There is no such interface.
    #[error(
        "there is no network interface `{name}` in this network namespace; `ip link` lists them"
    )]
    NoInterface {
        /// The name that was asked for.
        name: String,
    },
    /// It has no hardware address.
    #[error(
        "network interface `{name}` is no Ethernet: use soft:{name}, over the kernel's network"
    )]
    NotEthernet {
        /// The interface.
        name: String,
    },
    /// It is switched off.
    #[error("network interface `{name}` is down: `ip link set {name} up`")]
    Down {
        /// The interface.
        name: String,
    },
    /// The kernel would answer for the address as well.
    #[error(
        "{ip} is an address of this host, on `{interface}`: its kernel would answer as well. Take another one of the \
         network, or soft:udp={ip}, over the kernel's network"
    )]
    KernelHas {
        /// The address.
        ip: IpAddr,
        /// The interface that has it.
        interface: String,
    },
    /// Packets would be longer than the interface carries.
    #[error(
        "network interface `{name}` carries packets of {has} bytes, not of {asked}: `ip link set {name} mtu {asked}`"
    )]
    Mtu {
        /// The interface.
        name: String,
        /// What it carries.
        has: u32,
        /// What was asked for.
        asked: u32,
    },
    /// The process may not.
    #[error("a raw port needs CAP_NET_RAW: run as root, or `setcap cap_net_raw+ep PROGRAM`")]
    NotPermitted,
    /// The system refuses something else.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl RawError {
    fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted,
            _ => Self::Io { what, source },
        }
    }

    /// The number that stands for it in C.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NoInterface { .. } => libc::ENODEV,
            Self::NotEthernet { .. } | Self::Mtu { .. } => libc::EINVAL,
            Self::Down { .. } => libc::ENETDOWN,
            Self::KernelHas { .. } => libc::EADDRINUSE,
            Self::NotPermitted => libc::EPERM,
            Self::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

/// RoCEv2 in whole frames on a network interface. See the [module](self).
pub type RawPort = EtherPort<RawLink>;

impl RawPort {
    /// Opens a packet socket on the interface.
    ///
    /// # Errors
    /// [`RawError`]: each says what to do about it.
    pub fn open(
        config: RawConfig,
        clock: impl Fn() -> Instant + Send + 'static,
    ) -> Result<Self, RawError> {
        let RawConfig { interface, mtu, station } = config;
        let link = RawLink::open(&interface, mtu, &station)?;
        Self::new(link, station, clock).map_err(RawError::io("opening a raw port"))
    }
}

/// A packet socket that is bound to an interface.
pub struct RawLink {
    /// Received from, and asked for things. The sender has a copy.
    socket: Socket,
    sender: Box<dyn DataLinkSender>,
    receive: ReceiveArena,
    /// Without notices, only [`Link::refresh`] finds out.
    monitor: Option<Monitor>,
    /// Receive calls in a row that brought nothing since the monitor was asked.
    vain: u8,
    /// Whether socket and monitor are watched.
    watched: bool,
    interface: String,
    index: u32,
    up: bool,
    /// Of the interface.
    mtu: u32,
    /// What was asked for, if less.
    most: Option<u32>,
    rx_buffer: usize,
    receive_errors: u64,
}

impl RawLink {
    fn open(name: &str, most: Option<u32>, station: &StationConfig) -> Result<Self, RawError> {
        let interface = || name.to_owned();
        let listing = || RawError::io("listing interfaces");
        let dev = netdev::interface(name)
            .map_err(listing())?
            .ok_or_else(|| RawError::NoInterface { name: interface() })?;
        if dev.loopback || dev.mac.is_none() {
            return Err(RawError::NotEthernet { name: interface() });
        }
        // First whether we may: nothing else can be mended by who may not.
        let socket = Socket::new(Domain::PACKET, Type::RAW.nonblocking(), None)
            .map_err(RawError::io("opening a packet socket"))?;
        if !dev.up {
            return Err(RawError::Down { name: interface() });
        }
        for ip in station.addresses.iter().map(|prefix| prefix.ip) {
            let local = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
            let scope_id = if local { dev.index } else { 0 };
            if let Some(has) = netdev::address(ip, scope_id).map_err(listing())? {
                return Err(RawError::KernelHas { ip, interface: has.interface });
            }
        }
        if let Some(asked) = most.filter(|asked| *asked > dev.mtu) {
            return Err(RawError::Mtu { name: interface(), has: dev.mtu, asked });
        }
        // Before it is bound: nothing arrives until then, and nothing may without them.
        set_options(&socket).map_err(RawError::io("setting the options of a packet socket"))?;
        let rx_buffer = socket.recv_buffer_size().map_err(RawError::io("reading SO_RCVBUF"))?;
        let sender = bind(&socket, &dev).map_err(RawError::io("binding a packet socket"))?;
        let mut link = Self {
            socket,
            sender,
            receive: ReceiveArena::new(CALL),
            monitor: Monitor::open().ok(),
            vain: 0,
            watched: false,
            interface: dev.name,
            index: dev.index,
            up: false,
            mtu: dev.mtu,
            most,
            rx_buffer,
            receive_errors: 0,
        };
        link.look();
        Ok(link)
    }

    /// The name of the interface.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Looks at the interface.
    fn look(&mut self) {
        let (fd, name) = (self.socket.as_fd(), &self.interface);
        // The socket knows the namespace that it was made in, whoever asks.
        let is_there = sys::interface_index(fd, name).is_ok_and(|index| index == self.index);
        let wanted = libc::IFF_UP | libc::IFF_RUNNING;
        self.up = is_there && sys::interface_flags(fd, name).is_ok_and(|f| f & wanted == wanted);
        if is_there && let Ok(mtu) = sys::interface_mtu(fd, name) {
            self.mtu = mtu;
        }
    }

    /// Looks at the interface if the kernel says that something has changed.
    fn follow(&mut self) {
        self.vain = 0;
        if self.monitor.as_ref().is_some_and(Monitor::has_changed) {
            self.look();
        }
    }
}

/// Options, each of which the kernel has since 4.20 at the latest.
fn set_options(socket: &Socket) -> io::Result<()> {
    // The kernel grants what it allows.
    socket.set_recv_buffer_size(BUFFER)?;
    socket.set_send_buffer_size(BUFFER)?;
    let fd = socket.as_fd();
    sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)?;
    // Without it there are only more frames to drop, those of the host.
    missing_is_fine(sys::set_option(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1))
}

/// Binds the socket to the interface, for frames of all kinds, and makes the interface promiscuous.
fn bind(socket: &Socket, dev: &netdev::NetDev) -> io::Result<Box<dyn DataLinkSender>> {
    let interface = NetworkInterface {
        name: dev.name.clone(),
        description: String::new(),
        index: dev.index,
        mac: dev.mac.map(Into::into),
        ips: Vec::new(),
        flags: 0,
    };
    let config = pnet_datalink::Config {
        // It never waits.
        write_timeout: Some(Duration::ZERO),
        // We bring the frames, and receive ourselves.
        write_buffer_size: 0,
        read_buffer_size: 0,
        promiscuous: true,
        // It closes what it is given, also when it fails.
        socket_fd: Some(socket.try_clone()?.into_raw_fd()),
        ..Default::default()
    };
    match pnet_datalink::channel(&interface, config)? {
        Channel::Ethernet(sender, _) => Ok(sender),
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// What the kernel keeps beside a frame: `struct tpacket_auxdata` of its include/uapi/linux/if_packet.h.
fn aside(control: &[u8]) -> Aside {
    let auxdata = |m: &super::control::Message<'_>| {
        m.level == libc::SOL_PACKET && m.kind == libc::PACKET_AUXDATA
    };
    let Some(m) = messages(control).find(auxdata) else { return Aside::default() };
    // Status, length on the wire and here, offsets of the headers, tag and its protocol.
    let Some(&[a, b, c, d, .., t0, t1, p0, p1]) = m.data.first_chunk::<20>() else {
        return Aside::default();
    };
    let status = u32::from_ne_bytes([a, b, c, d]);
    let tag = u16::from_ne_bytes([t0, t1]);
    let protocol = match status & libc::TP_STATUS_VLAN_TPID_VALID {
        0 => 0x8100,
        _ => u16::from_ne_bytes([p0, p1]),
    };
    Aside {
        tag: (status & libc::TP_STATUS_VLAN_VALID != 0).then_some((protocol, tag)),
        unsummed: status & libc::TP_STATUS_CSUMNOTREADY != 0,
    }
}

impl Link for RawLink {
    fn send(&mut self, _now: Instant, frames: &Frames) -> io::Result<usize> {
        for (sent, frame) in frames.iter().enumerate() {
            let e = match self.sender.send_to(frame, None) {
                Some(Ok(())) => continue,
                Some(Err(e)) => e,
                None => io::ErrorKind::Unsupported.into(),
            };
            if sent > 0 {
                // What is wrong with the next one is told when it is the first.
                return Ok(sent);
            }
            return Err(match e.raw_os_error() {
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => {
                    io::ErrorKind::WouldBlock.into()
                }
                None if e.kind() == io::ErrorKind::TimedOut => io::ErrorKind::WouldBlock.into(),
                _ => e,
            });
        }
        Ok(frames.len())
    }

    fn recv<'a>(
        &mut self,
        _now: Instant,
        buffers: impl Iterator<Item = &'a mut [u8]>,
        got: &mut Vec<Got>,
    ) -> io::Result<()> {
        let n = match self.receive.receive(self.socket.as_fd(), buffers) {
            Ok(n) => n,
            Err(e) => match e.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR | libc::ENOMEM | libc::ENOBUFS) => 0,
                // Told once, when the interface goes down or away.
                Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => {
                    self.receive_errors += 1;
                    self.look();
                    0
                }
                _ => return Err(e),
            },
        };
        let longest = self.mtu as usize + HEAD;
        for i in 0..n {
            let incoming = self.receive.incoming(i);
            let fit = if incoming.len > longest {
                Fit::Merged
            } else if incoming.truncated {
                Fit::Cut
            } else {
                Fit::Whole
            };
            got.push(Got { len: incoming.len, fit, aside: aside(incoming.control) });
        }
        self.vain = if n == 0 { self.vain + 1 } else { 0 };
        // The descriptor of both may be readable for the sake of the monitor alone.
        if self.vain >= ASK_AFTER {
            self.follow();
        }
        Ok(())
    }

    fn tend(&mut self, _now: Instant, epoll: &Epoll) -> io::Result<()> {
        if !self.watched {
            epoll.add(&self.socket, EpollEvent::new(EpollFlags::EPOLLIN, 1))?;
            if let Some(monitor) = &self.monitor {
                epoll.add(monitor, EpollEvent::new(EpollFlags::EPOLLIN, 2))?;
            }
            self.watched = true;
        }
        Ok(())
    }

    fn next_due(&self) -> Instant {
        Instant::FAR_FUTURE
    }

    fn refresh(&mut self) {
        self.vain = 0;
        if let Some(monitor) = &self.monitor {
            monitor.has_changed();
        }
        self.look();
    }

    fn is_up(&self) -> bool {
        self.up
    }

    fn mtu(&self) -> Option<u32> {
        Some(self.most.map_or(self.mtu, |most| most.min(self.mtu)))
    }

    fn rx_buffer(&self) -> Option<usize> {
        Some(self.rx_buffer)
    }

    fn blocked_on(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn count(&self, stats: &mut PortStats) {
        stats.receive_errors += self.receive_errors;
        stats.overruns += u64::from(sys::drops(self.socket.as_fd()).unwrap_or(0));
    }
}

impl fmt::Debug for RawLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawLink")
            .field("interface", &self.interface)
            .field("up", &self.up)
            .field("mtu", &self.mtu)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
