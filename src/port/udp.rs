//! The UDP port: RoCEv2 over ordinary sockets, without privilege.
//!
//! One socket per address, bound to UDP port 4791 and never connected, with `IP_PMTUDISC_PROBE`: that is
//! the one combination in which Linux writes a known identification (0, or the index of the segment) and
//! "don't fragment", both of which the ICRC covers. A [self-test](Numbering) checks it at opening.
//!
//! Batches are what makes it fast. Several packets of one size to one destination leave in one send
//! (`UDP_SEGMENT`) and come in as one buffer (`UDP_GRO`), which is worth more than anything else; what
//! cannot be merged goes through `sendmmsg` and `recvmmsg`. Traffic class, hop limit and segment size
//! travel as control data of each send, so one socket serves all destinations. See `udp(7)`, `ip(7)`,
//! `ipv6(7)`.
//!
//! A multicast group is received through a socket of its own, bound to the group's address and shared with
//! whoever else is in it on this host; what is sent there leaves through the ordinary sockets, and the
//! kernel hands members on this host a copy.
//!
//! *Owns.* The sockets, their options and counters.
//!
//! *Rules.* Segmented sends over IPv4 are offered only where the kernel's own code makes the segments
//! (loopback, veth, TUN): network hardware may number them otherwise. Packets that arrive through another
//! interface than that of the address are dropped and counted; loopback itself is no boundary of trust,
//! every local user can send there. The flow label is left to the kernel (the ICRC leaves it out).

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags, EpollTimeout};

use super::arrival::{Arrivals, Dropped};
use super::control::{Control, Name};
use super::endpoint::{Endpoint, habits, health, smallest_mtu, watch};
use super::monitor::Monitor;
use super::netdev;
use super::open::{bind, join, new_socket, share_address};
use super::sys::{self, ReceiveArena, SendArena};
use super::{Health, Port, PortAddress, PortStats, RxBatch, SendError, TxBatch, selftest};
use crate::net::{Ident, Path, PortCaps, SrcPort, Transmit};

pub use super::open::{GsoPolicy, OpenError, UdpConfig};
pub use super::owner::Owner;
pub use super::selftest::Numbering;

/// Most datagrams of one `recvmmsg` call.
const RECEIVE_CALL: usize = 32;
/// Bytes in one receive call above which a larger call would save nothing.
const ENOUGH_BYTES: usize = RxBatch::WHOLE;
/// Receives in vain after which the monitor is asked.
const ASK_AFTER: u8 = 64;
/// Most bytes of a send, all segments together: what an IPv4 datagram can carry. (IPv6 has 20 more.)
const MAX_TRANSMIT: usize = 65_507;

/// RoCEv2 over UDP sockets. See the [module](self).
///
/// ```no_run
/// use softroce::internals::port::{Port, RxBatch, udp::{UdpConfig, UdpPort}};
///
/// let mut port = UdpPort::open(UdpConfig::for_interface("eth0")?)?;
/// let mut rx = RxBatch::new(4, RxBatch::WHOLE);
/// port.recv(&mut rx)?;
/// for (meta, datagram) in rx.iter() {
///     println!("{} bytes from {}", datagram.len(), meta.path.src);
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct UdpPort {
    /// One for each address, in their order; behind them those of groups, whose address is the group.
    endpoints: Vec<Endpoint>,
    addresses: Vec<PortAddress>,
    /// Watches the sockets where there are several, or have been, and the monitor.
    epoll: Option<Epoll>,
    /// What the next endpoint is told apart by.
    next_token: u64,
    /// Where an interface is not the loopback, which never changes.
    monitor: Option<Monitor>,
    /// Receive calls in a row that brought nothing since the monitor was asked.
    empty: u8,
    health: Health,
    port: u16,
    /// What sockets of groups are made like.
    config: UdpConfig,
    caps: PortCaps,
    numbering: Numbering,
    send: SendArena,
    receive: ReceiveArena,
    arrivals: Arrivals,
    stats: PortStats,
    last_error: Option<SendError>,
    /// The socket that took no more in the last send.
    blocked: Option<usize>,
}

impl UdpPort {
    /// Opens a socket for each address, and runs the self-test if one of them is IPv4.
    ///
    /// # Errors
    /// [`OpenError`]; its text names the likely cause and what to do about it.
    pub fn open(config: UdpConfig) -> Result<Self, OpenError> {
        let mut sockets = Vec::new();
        let mut unavailable = None;
        for address in &config.addresses {
            let socket = new_socket(address.ip.is_ipv4(), &config)?;
            match bind(&socket, address, config.port) {
                Ok(()) => sockets.push((socket, address.clone())),
                Err(e @ OpenError::NotAvailable { .. }) if config.skip_unavailable => {
                    unavailable = Some(e);
                }
                Err(e) => return Err(e),
            }
        }
        if sockets.is_empty() {
            let none = OpenError::io("opening a UDP port without any address");
            return Err(unavailable.unwrap_or_else(|| none(io::ErrorKind::InvalidInput.into())));
        }
        Self::with_sockets(sockets, &config)
    }

    /// Opens the first of 127.0.0.2, 127.0.0.3, ... whose port is free: a device of its own for each
    /// process. `config.addresses` is not looked at.
    ///
    /// # Errors
    /// [`OpenError::InUse`] if something holds the port at all addresses, or at the first thousand.
    pub fn open_loopback(config: UdpConfig) -> Result<Self, OpenError> {
        let first = IpAddr::from([127, 0, 0, 2]);
        let found = netdev::address(first, 0).map_err(OpenError::io("listing interfaces"))?;
        let template = found.ok_or(OpenError::NotAvailable { ip: first })?;
        let socket = new_socket(true, &config)?;
        let mut taken = None;
        let candidates = (0x7f00_0002..0x7f00_03ff).map(Ipv4Addr::from);
        for ip in candidates.filter(|ip| !matches!(ip.octets()[3], 0 | 255)) {
            let address = PortAddress { ip: ip.into(), ..template.clone() };
            match bind(&socket, &address, config.port) {
                Ok(()) => return Self::with_sockets(vec![(socket, address)], &config),
                Err(e @ OpenError::InUse { owner: Owner { wildcard: true, .. }, .. }) => {
                    return Err(e);
                }
                Err(e @ OpenError::InUse { .. }) => taken = taken.or(Some(e)),
                Err(e) => return Err(e),
            }
        }
        Err(taken.unwrap_or(OpenError::NotAvailable { ip: first }))
    }

    /// What the self-test found out about the kernel's IPv4 identifications.
    pub fn numbering(&self) -> Numbering {
        self.numbering
    }

    /// The port around sockets that are bound.
    fn with_sockets(
        sockets: Vec<(UdpSocket, PortAddress)>,
        config: &UdpConfig,
    ) -> Result<Self, OpenError> {
        let devices = netdev::interfaces().map_err(OpenError::io("listing interfaces"))?;
        let mut send = SendArena::new(TxBatch::ENTRIES);
        let mut endpoints = Vec::new();
        let mut rx_buffer = usize::MAX;
        let mut numbering = Numbering::Irrelevant;
        let (mut segments_v4, mut segments_v6) = (None, None);
        for (socket, address) in sockets {
            let v4 = address.ip.is_ipv4();
            let granted = socket2::SockRef::from(&socket).recv_buffer_size();
            rx_buffer = rx_buffer.min(granted.map_err(OpenError::io("reading SO_RCVBUF"))?);
            let segments = if v4 { &mut segments_v4 } else { &mut segments_v6 };
            // It is the kernel that is being tested, so once for each family will do.
            if segments.is_none() {
                let outcome = selftest::run(socket.as_fd(), &mut send, &address)
                    .unwrap_or(selftest::Outcome::NOT_MADE);
                if v4 {
                    numbering = outcome.numbering;
                }
                *segments = Some(outcome.segments);
            }
            if v4 && config.gso != GsoPolicy::On {
                let dev = devices.iter().find(|d| d.index == address.if_index);
                let known = numbering == Numbering::AsExpected;
                if !known || !dev.is_some_and(|d| d.kind.segments_in_software()) {
                    segments_v4 = Some(1);
                }
            }
            if !v4 {
                let (level, option) = (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF);
                let index = address.if_index.cast_signed();
                sys::set_option(socket.as_fd(), level, option, index)
                    .map_err(OpenError::io("choosing the interface of multicast"))?;
            }
            let (class, hops) = habits(&socket, v4).map_err(OpenError::io("reading a TTL"))?;
            let token = endpoints.len() as u64;
            endpoints.push(Endpoint { socket, address, token, class, hops, wanted: 1 });
        }
        let segments = |found: Option<usize>| match config.gso {
            GsoPolicy::Off => 1,
            GsoPolicy::Auto | GsoPolicy::On => found.unwrap_or(1),
        };
        let caps = PortCaps {
            src_port: SrcPort::Fixed(config.port),
            ident: Ident::ZeroThenIndex,
            gso_segments_v4: segments(segments_v4),
            gso_segments_v6: segments(segments_v6),
            max_transmit: MAX_TRANSMIT,
            mtu: smallest_mtu(&devices, &endpoints).unwrap_or(0),
            rx_buffer: Some(rx_buffer),
        };
        let loopback = |index| devices.iter().any(|d| d.index == index && d.loopback);
        let steady = endpoints.iter().all(|e| loopback(e.address.if_index));
        // Without notices the port works as well as it can.
        let monitor = if steady { None } else { Monitor::open().ok() };
        let epoll = match &endpoints[..] {
            [_] if monitor.is_none() => None,
            all => {
                let watch = watch(all, monitor.as_ref());
                Some(watch.map_err(OpenError::io("creating an epoll descriptor"))?)
            }
        };
        let health = health(&devices, &endpoints);
        Ok(Self {
            addresses: endpoints.iter().map(|e| e.address.clone()).collect(),
            next_token: endpoints.len() as u64,
            endpoints,
            epoll,
            monitor,
            empty: 0,
            health,
            port: config.port,
            config: config.clone(),
            caps,
            numbering,
            send,
            receive: ReceiveArena::new(RECEIVE_CALL),
            arrivals: Arrivals::default(),
            stats: PortStats::default(),
            last_error: None,
            blocked: None,
        })
    }

    /// Looks at the interfaces again if the kernel says that something has changed.
    fn look_at_interfaces(&mut self) {
        if self.monitor.as_ref().is_some_and(Monitor::has_changed)
            && let Ok(devices) = netdev::interfaces()
        {
            // Sockets of groups stand behind those of addresses.
            self.health = health(&devices, &self.endpoints[..self.addresses.len()]);
            self.read_mtu();
        }
    }

    fn read_mtu(&mut self) {
        let mtus = self
            .endpoints
            .iter()
            .filter_map(|e| sys::interface_mtu(e.socket.as_fd(), &e.address.interface).ok());
        if let Some(mtu) = mtus.min() {
            self.caps.mtu = mtu;
        }
    }

    /// A socket for what comes for a group in by one interface.
    fn group_endpoint(&self, group: PortAddress) -> Result<Endpoint, OpenError> {
        let v4 = group.ip.is_ipv4();
        let socket = new_socket(v4, &self.config)?;
        share_address(&socket).map_err(OpenError::io("sharing the address of a group"))?;
        bind(&socket, &group, self.config.port)?;
        join(&socket, &group).map_err(OpenError::io("joining a multicast group"))?;
        let (class, hops) = habits(&socket, v4).map_err(OpenError::io("reading a TTL"))?;
        Ok(Endpoint { socket, address: group, token: self.next_token, class, hops, wanted: 1 })
    }

    /// Takes an endpoint up, and watches it with all others.
    fn add_endpoint(&mut self, endpoint: Endpoint) -> io::Result<()> {
        if self.epoll.is_none() {
            self.epoll = Some(watch(&self.endpoints, self.monitor.as_ref())?);
        }
        if let Some(epoll) = &self.epoll {
            epoll.add(&endpoint.socket, EpollEvent::new(EpollFlags::EPOLLIN, endpoint.token))?;
        }
        self.next_token += 1;
        self.endpoints.push(endpoint);
        Ok(())
    }

    /// Drops the endpoint at `at`, which is a group's; the last one takes its place. What was counted at its
    /// socket stays counted.
    fn drop_endpoint(&mut self, at: usize) -> io::Result<()> {
        let gone = self.endpoints.swap_remove(at);
        self.stats.overruns += u64::from(sys::drops(gone.socket.as_fd()).unwrap_or(0));
        // Closing the socket takes it off the list as well, unless a child of this process has it open.
        self.epoll.as_ref().map_or(Ok(()), |epoll| Ok(epoll.delete(&gone.socket)?))
    }

    /// The endpoint that an event is of. Not known: it is that of the monitor, or of one that is gone.
    fn endpoint_with(&self, token: u64) -> Option<usize> {
        self.endpoints.iter().position(|e| e.token == token)
    }

    /// One receive call at endpoint `at`.
    fn receive_from(&mut self, at: usize, rx: &mut RxBatch) -> io::Result<()> {
        let endpoint = &mut self.endpoints[at];
        let wanted = endpoint.wanted.min(RECEIVE_CALL).min(rx.spare_buffers());
        if wanted == 0 {
            return Ok(());
        }
        self.stats.receive_calls += 1;
        let socket = endpoint.socket.as_fd();
        let received = match (wanted, rx.spare()) {
            (1, Some(buffer)) => self.receive.receive_one(socket, buffer).map(|()| 1),
            _ => self.receive.receive(socket, rx.spares().take(wanted)),
        };
        let got = match received {
            Ok(n) => n,
            Err(e) => {
                self.stats.receive_calls_in_vain += 1;
                endpoint.wanted = 1;
                match e.raw_os_error() {
                    Some(libc::EAGAIN | libc::EINTR) => return Ok(()),
                    // What the network or a lack of memory may cause for a while.
                    Some(
                        libc::ENETDOWN
                        | libc::ENETUNREACH
                        | libc::EHOSTUNREACH
                        | libc::EHOSTDOWN
                        | libc::ECONNREFUSED
                        | libc::EPROTO
                        | libc::ENOPROTOOPT
                        | libc::EMSGSIZE
                        | libc::ENOMEM
                        | libc::ENOBUFS,
                    ) => {
                        self.stats.receive_errors += 1;
                        return Ok(());
                    }
                    _ => return Err(e),
                }
            }
        };
        let mut bytes = 0;
        for i in 0..got {
            let incoming = self.receive.incoming(i);
            bytes += incoming.len;
            match self.arrivals.describe(&incoming, endpoint.address.if_index) {
                Ok((meta, segment_size)) => {
                    let datagrams = match segment_size {
                        Some(size) => incoming.len.div_ceil(usize::from(size).max(1)).max(1),
                        None => 1,
                    };
                    self.stats.received_datagrams += datagrams as u64;
                    self.stats.received_bytes += incoming.len as u64;
                    rx.commit(meta, incoming.len, segment_size);
                }
                Err(dropped) => {
                    *match dropped {
                        Dropped::Truncated => &mut self.stats.truncated,
                        Dropped::WrongInterface => &mut self.stats.wrong_interface,
                        Dropped::Malformed => &mut self.stats.malformed,
                    } += 1;
                    rx.skip();
                }
            }
        }
        // Offer more buffers only while a call fills all that it is offered with small datagrams. A single
        // answer is then fetched without looking for a second one, and merged buffers stay in the cache.
        endpoint.wanted = match got {
            n if n < wanted || bytes >= ENOUGH_BYTES => n.max(1),
            _ => (2 * wanted).min(RECEIVE_CALL),
        };
        Ok(())
    }

    /// The endpoint that sends from this address.
    fn endpoint_of(&self, path: &Path) -> Option<usize> {
        let same = |a: &PortAddress| {
            a.ip == path.src
                && (a.scope_id == 0 || path.scope_id == 0 || a.scope_id == path.scope_id)
        };
        self.endpoints.iter().position(|e| same(&e.address))
    }

    /// Most segments of a send to this address.
    fn segments_to(&self, dst: &IpAddr) -> usize {
        if dst.is_ipv4() { self.caps.gso_segments_v4 } else { self.caps.gso_segments_v6 }
    }

    fn segments_to_mut(&mut self, dst: &IpAddr) -> &mut usize {
        if dst.is_ipv4() { &mut self.caps.gso_segments_v4 } else { &mut self.caps.gso_segments_v6 }
    }

    /// Whether `errno` means that a datagram of this send is longer than the interface allows, whose MTU may
    /// have changed.
    fn is_too_long(&mut self, t: &Transmit, errno: i32) -> bool {
        self.read_mtu();
        let datagram = t.segment_size.map_or(t.len, |size| t.len.min(usize::from(size)));
        let limit = self.caps.mtu.min(u32::from(u16::MAX)) as usize;
        errno == libc::EMSGSIZE || t.len > MAX_TRANSMIT || datagram + t.path.header_len() > limit
    }

    /// Drops the first entry of `tx`.
    fn drop_first(&mut self, tx: &mut TxBatch, errno: i32) {
        if let Some(t) = tx.first() {
            self.stats.send_errors += t.segments() as u64;
            self.last_error =
                Some(SendError { dst: t.path.dst, len: t.len, errno, neighbour: None });
        }
        tx.consume(1);
    }

    /// Sends `first`, the first entry of `tx`, and those behind it that go through the same socket and need
    /// no more care, in one call.
    fn send_run(&mut self, at: usize, first: &Transmit, tx: &mut TxBatch) -> io::Result<()> {
        let (src, scope_id) = (first.path.src, first.path.scope_id);
        let limit = self.segments_to(&first.path.dst);
        let endpoint = &mut self.endpoints[at];
        endpoint.class.see(endpoint.socket.as_fd(), first.path.traffic_class);
        let hop_limit = endpoint.hop_limit(&first.path);
        endpoint.hops.see(endpoint.socket.as_fd(), hop_limit);
        self.stats.send_calls += 1;
        if let Some((t, bytes)) = tx.only() {
            let (endpoint, port) = (&*endpoint, self.port);
            self.send.send_one(endpoint.socket.as_fd(), bytes, |name, control| {
                endpoint.address(t, port, name, control);
            })?;
            self.stats.sent_datagrams += t.segments() as u64;
            self.stats.sent_bytes += t.len as u64;
            tx.consume(1);
            return Ok(());
        }
        let run = tx.entries().take_while(|(t, _)| {
            let same_socket = t.path.src == src && t.path.scope_id == scope_id;
            same_socket && t.path.dst.is_ipv4() == src.is_ipv4() && t.segments() <= limit
        });
        let (endpoint, port) = (&*endpoint, self.port);
        let n = self.send.send(endpoint.socket.as_fd(), run, |t, name, control| {
            endpoint.address(t, port, name, control);
        })?;
        for (t, _) in tx.entries().take(n) {
            self.stats.sent_datagrams += t.segments() as u64;
            self.stats.sent_bytes += t.len as u64;
        }
        tx.consume(n);
        Ok(())
    }

    /// Sends segments of `first`, the first entry of `tx`, which has more than the kernel makes, as single
    /// datagrams.
    ///
    /// Over IPv4 that cannot be: segment `k` was sealed for identification `k`, and a single send carries 0,
    /// so every peer that checks the ICRC exactly would drop all but the first. Such an entry is dropped,
    /// and the requester, which learns of the lower limit before its next packet, repeats what is missing
    /// in single sends.
    fn send_singly(&mut self, at: usize, first: &Transmit, tx: &mut TxBatch) -> io::Result<()> {
        let size = first.segment_size.map_or(first.len, usize::from);
        if first.path.dst.is_ipv4() || size == 0 {
            self.drop_first(tx, libc::EIO);
            return Ok(());
        }
        let endpoint = &self.endpoints[at];
        let single = Transmit { segment_size: None, ..*first };
        let segments = tx.entries().take(1).flat_map(|(_, bytes)| bytes.chunks(size));
        let segments = segments.map(|payload| (&single, payload));
        self.stats.send_calls += 1;
        let port = self.port;
        let n = self.send.send(endpoint.socket.as_fd(), segments, |t, name, control| {
            endpoint.address(t, port, name, control);
        })?;
        let bytes = (n * size).min(first.len);
        self.stats.sent_datagrams += n as u64;
        self.stats.sent_bytes += bytes as u64;
        tx.consume_segments(bytes);
        Ok(())
    }
}

impl Port for UdpPort {
    fn caps(&self) -> PortCaps {
        self.caps
    }

    fn recv(&mut self, rx: &mut RxBatch) -> io::Result<()> {
        rx.clear();
        if self.endpoints.len() == 1 {
            self.receive_from(0, rx)?;
            // The descriptor of both may be readable for the sake of the monitor alone: then it is asked after
            // some receives in vain, and not after each, because programs that poll make many.
            self.empty = if rx.is_empty() { self.empty + 1 } else { 0 };
            if self.empty >= ASK_AFTER {
                self.empty = 0;
                self.look_at_interfaces();
            }
            return Ok(());
        }
        let Some(epoll) = &self.epoll else { return Ok(()) };
        let mut noticed = false;
        let mut events = [EpollEvent::empty(); 16];
        self.stats.receive_calls += 1;
        let ready = match epoll.wait(&mut events, EpollTimeout::ZERO) {
            Ok(n) => n,
            Err(nix::errno::Errno::EINTR) => 0,
            Err(e) => return Err(e.into()),
        };
        if ready == 0 {
            self.stats.receive_calls_in_vain += 1;
        }
        for event in &events[..ready] {
            if rx.spare_buffers() == 0 {
                break;
            }
            // The kernel keeps the order in which sockets became ready and puts those that still are at
            // the end, so a busy one does not starve the others.
            match self.endpoint_with(event.data()) {
                Some(at) => self.receive_from(at, rx)?,
                None => noticed = true,
            }
        }
        if noticed {
            self.look_at_interfaces();
        }
        Ok(())
    }

    fn send(&mut self, tx: &mut TxBatch) -> io::Result<()> {
        self.blocked = None;
        while let Some(first) = tx.first() {
            let Some(at) = self.endpoint_of(&first.path) else {
                self.drop_first(tx, libc::EADDRNOTAVAIL);
                continue;
            };
            if first.path.src.is_ipv4() != first.path.dst.is_ipv4() {
                self.drop_first(tx, libc::EAFNOSUPPORT);
                continue;
            }
            let sent = if first.segments() > self.segments_to(&first.path.dst) {
                self.send_singly(at, &first, tx)
            } else {
                self.send_run(at, &first, tx)
            };
            let Err(e) = sent else { continue };
            match e.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                    self.stats.send_busy += 1;
                    self.blocked = Some(at);
                    return Ok(());
                }
                Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT) => return Err(e),
                // Kernels differ in what they say to segments beyond the MTU.
                Some(errno @ (libc::EMSGSIZE | libc::EINVAL))
                    if self.is_too_long(&first, errno) =>
                {
                    self.drop_first(tx, libc::EMSGSIZE);
                }
                // The route cannot be segmented for: a device without checksum offload, IPsec, or a kernel
                // that allows fewer segments than it did in the self-test. The next round does without.
                Some(libc::EIO | libc::EINVAL) if first.segments() > 1 => {
                    self.stats.gso_refused += 1;
                    *self.segments_to_mut(&first.path.dst) = 1;
                }
                errno => self.drop_first(tx, errno.unwrap_or(libc::EIO)),
            }
        }
        Ok(())
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        match &self.epoll {
            Some(epoll) => Some(epoll.0.as_fd()),
            None => Some(self.endpoints[0].socket.as_fd()),
        }
    }

    fn blocked_on(&self) -> Option<BorrowedFd<'_>> {
        self.blocked.map(|at| self.endpoints[at].socket.as_fd())
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        if self.endpoints.iter().any(|e| e.address.ip == group) {
            return Ok(());
        }
        let mut interfaces: Vec<PortAddress> = Vec::new();
        for address in self.addresses.iter().filter(|a| a.ip.is_ipv4() == group.is_ipv4()) {
            if !interfaces.iter().any(|known| known.if_index == address.if_index) {
                interfaces.push(address.clone());
            }
        }
        if interfaces.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL));
        }
        // The kernel wants to know the interface of what is valid on one link only.
        let local = matches!(group, IpAddr::V6(v6) if v6.octets()[1] & 0xf <= 2);
        for address in interfaces {
            let scope_id = if local { address.if_index } else { 0 };
            let joined = self
                .group_endpoint(PortAddress { ip: group, scope_id, ..address })
                .map_err(io::Error::from)
                .and_then(|endpoint| self.add_endpoint(endpoint));
            if let Err(e) = joined {
                // All or none.
                let _ = self.leave(group);
                return Err(e);
            }
        }
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) -> io::Result<()> {
        let mut result = Ok(());
        while let Some(at) = self.endpoints.iter().position(|e| e.address.ip == group) {
            result = result.and(self.drop_endpoint(at));
        }
        result
    }

    fn addresses(&self) -> &[PortAddress] {
        &self.addresses
    }

    fn health(&self) -> Health {
        self.health
    }

    fn mtu(&self) -> u32 {
        self.caps.mtu
    }

    fn stats(&self) -> PortStats {
        let overruns = self.endpoints.iter().map(|e| sys::drops(e.socket.as_fd()).unwrap_or(0));
        let overruns = self.stats.overruns + overruns.map(u64::from).sum::<u64>();
        PortStats { overruns, ..self.stats }
    }

    fn last_error(&self) -> Option<SendError> {
        self.last_error
    }

    fn refresh(&mut self) {
        self.look_at_interfaces();
    }
}

impl Endpoint {
    /// The hop limit to send with: 0 means "not said", as in an address handle that was left zero.
    fn hop_limit(&self, path: &Path) -> u8 {
        if path.hop_limit == 0 { self.hops.initial } else { path.hop_limit }
    }

    /// Where a datagram (or several in segments) goes, as the system call wants it. Control data only for what the
    /// socket would not do by itself: it is copied, and allocated for, by the kernel.
    fn address(&self, t: &Transmit, port: u16, name: &mut Name, control: &mut Control) {
        let path = &t.path;
        if let Some(size) = t.segment_size.filter(|_| t.segments() > 1) {
            control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &size.to_ne_bytes());
        }
        let (level, class, hops) = if path.dst.is_ipv4() {
            (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL)
        } else {
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT)
        };
        if path.traffic_class != self.class.value {
            control.push(level, class, &i32::from(path.traffic_class).to_ne_bytes());
        }
        let hop_limit = self.hop_limit(path);
        // Sockets fill in another value for multicast.
        if hop_limit != self.hops.value || path.dst.is_multicast() {
            control.push(level, hops, &i32::from(hop_limit).to_ne_bytes());
        }
        name.set(path.dst, port, path.scope_id);
    }
}

impl fmt::Display for UdpPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("udp:")?;
        for (i, address) in self.addresses.iter().enumerate() {
            write!(f, "{}{address}", if i > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
