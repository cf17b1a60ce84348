//! A station on an Ethernet, sans-IO: what it makes of the frames that come, and which frames it sends.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, Icmpv4Message, Icmpv4Packet, Icmpv6Message, Icmpv6Packet,
    Ipv4Packet, Ipv6Packet, NdiscNeighborFlags, NdiscRepr, UdpPacket,
};

use super::answer::{self, Head};
use super::neighbours::{Due, Found, Neighbours};
use super::outbox::{Datagram, Outbox};
use super::{MAX_MTU, MIN_MTU, Prefix, StationConfig};
use crate::net::{Path, RxMeta};
use crate::port::{PortAddress, PortStats, SendError};
use crate::time::Instant;
use crate::wire::frame::{self, Envelope, LinkType, Mac, NotRoce, UdpChecksum};

/// TTL and hop limit of datagrams that do not say one: that of the kernel.
const HOPS: u8 = 64;
/// Bytes of a VLAN tag.
const TAG: usize = 4;
/// The protocol of a VLAN's tag (IEEE 802.1Q).
const VLAN: u16 = 0x8100;
const BROADCAST: Mac = Mac([0xff; 6]);

/// Why a frame was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dropped {
    Station,
    Vlan,
    Address,
    Fragment,
    Checksum,
    Malformed,
    Other,
}

impl From<NotRoce> for Dropped {
    fn from(why: NotRoce) -> Self {
        match why {
            NotRoce::Fragment => Self::Fragment,
            NotRoce::Cut | NotRoce::BadLength | NotRoce::IpOptions | NotRoce::ReservedFlag => {
                Self::Malformed
            }
            _ => Self::Other,
        }
    }
}

/// What a network card, or the kernel, keeps beside a frame instead of in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Aside {
    /// The tag that stood behind the addresses: its protocol (0x8100: a VLAN's) and what it says.
    pub tag: Option<(u16, u16)>,
    /// It comes from this host, whose kernel has left the UDP checksum to a card that it never came to.
    pub unsummed: bool,
}

/// Where a datagram is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// On the link, to this station or group.
    Link(Mac),
    /// To ourselves.
    Own,
    /// To a neighbour who is being asked for.
    Wait(IpAddr),
    /// Nowhere, for this reason (`errno`).
    None(i32),
}

/// A frame that was looked at.
type Sorted = Result<Option<(RxMeta, Range<usize>)>, Dropped>;

/// A station. See the [module](super).
#[derive(Debug)]
pub struct Station {
    config: StationConfig,
    addresses: Vec<PortAddress>,
    head: Head,
    groups: Vec<IpAddr>,
    /// Groups of hardware addresses that are listened to.
    macs: Vec<Mac>,
    neighbours: Neighbours,
    pub(super) outbox: Outbox,
    pub(super) stats: PortStats,
    pub(super) last_error: Option<SendError>,
}

impl Station {
    /// A station with these addresses.
    pub fn new(config: StationConfig) -> Self {
        let address = |p: &Prefix| {
            let local = matches!(p.ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
            // There is one interface, which the kernel does not know.
            PortAddress {
                ip: p.ip,
                scope_id: u32::from(local),
                interface: config.interface.clone(),
                if_index: 1,
            }
        };
        let addresses = config.addresses.iter().map(address).collect();
        let vlan = config.vlan.unwrap_or(0);
        let tag = (config.vlan.is_some() || config.priority.is_some())
            .then(|| u16::from(config.priority.unwrap_or(0)) << 13 | vlan);
        let mut station = Self {
            head: Head { src: config.mac, tag },
            addresses,
            config,
            groups: Vec::new(),
            macs: Vec::new(),
            neighbours: Neighbours::new(),
            outbox: Outbox::default(),
            stats: PortStats::default(),
            last_error: None,
        };
        station.listen();
        station
    }

    /// Its configuration.
    pub fn config(&self) -> &StationConfig {
        &self.config
    }

    /// Its addresses, in the order of the GID table.
    pub fn addresses(&self) -> &[PortAddress] {
        &self.addresses
    }

    /// What was counted.
    pub fn stats(&self) -> &PortStats {
        &self.stats
    }

    /// Most bytes of a frame that [`Station::write`] makes.
    pub fn frame_space(&self) -> usize {
        let mtu = self.config.mtu.clamp(MIN_MTU, MAX_MTU) as usize;
        (self.head.len() + mtu).max(answer::SHORTEST)
    }

    /// Takes the frames of a group, from now on.
    pub fn join(&mut self, group: IpAddr) {
        if !self.groups.contains(&group) {
            self.groups.push(group);
            self.listen();
        }
    }

    /// Takes them no more.
    pub fn leave(&mut self, group: IpAddr) {
        self.groups.retain(|g| *g != group);
        self.listen();
    }

    fn listen(&mut self) {
        let solicited = self.config.addresses.iter().filter_map(|p| match p.ip {
            IpAddr::V6(v6) => Some(IpAddr::V6(answer::solicited_node(v6))),
            IpAddr::V4(_) => None,
        });
        let all_nodes = IpAddr::V6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1));
        let groups = self.groups.iter().copied().chain(solicited).chain([all_nodes]);
        self.macs = groups.map(Mac::of).collect();
    }

    fn is_ours(&self, ip: IpAddr) -> bool {
        self.config.addresses.iter().any(|p| p.ip == ip)
    }

    /// The neighbour on the way to `dst`; itself, if it is on the link.
    fn hop(&self, dst: IpAddr) -> Option<IpAddr> {
        let local = matches!(dst, IpAddr::V6(v6) if v6.is_unicast_link_local());
        if local || self.config.addresses.iter().any(|p| p.contains(dst)) {
            return Some(dst);
        }
        self.config.gateways.iter().find(|g| g.is_ipv4() == dst.is_ipv4()).copied()
    }

    /// The address of ours to ask for `target` with.
    fn asker(&self, target: IpAddr) -> Option<IpAddr> {
        let ours = || self.config.addresses.iter().filter(|p| p.ip.is_ipv4() == target.is_ipv4());
        ours().find(|p| p.contains(target)).or_else(|| ours().next()).map(|p| p.ip)
    }

    /// What the link carries has changed.
    pub fn set_mtu(&mut self, mtu: u32) {
        self.config.mtu = mtu;
    }

    /// Looks at a frame. A RoCEv2 datagram for us is returned: where it came from, and where in `frame` it lies.
    /// Questions of the link are answered into the outbox, answers are taken note of, all else is counted.
    pub fn receive(&mut self, now: Instant, frame: &[u8]) -> Option<(RxMeta, Range<usize>)> {
        self.receive_with(now, frame, Aside::default())
    }

    /// The same, for a frame that is not quite as it was on the wire.
    pub fn receive_with(
        &mut self,
        now: Instant,
        frame: &[u8],
        aside: Aside,
    ) -> Option<(RxMeta, Range<usize>)> {
        match self.sort(now, frame, aside) {
            Ok(Some((meta, at))) => {
                self.stats.received_datagrams += 1;
                self.stats.received_bytes += at.len() as u64;
                Some((meta, at))
            }
            Ok(None) => None,
            Err(why) => {
                *match why {
                    Dropped::Station => &mut self.stats.other_station,
                    Dropped::Vlan => &mut self.stats.wrong_vlan,
                    Dropped::Address => &mut self.stats.wrong_address,
                    Dropped::Fragment => &mut self.stats.fragments,
                    Dropped::Checksum => &mut self.stats.bad_checksum,
                    Dropped::Malformed => &mut self.stats.malformed,
                    Dropped::Other => &mut self.stats.other_traffic,
                } += 1;
                None
            }
        }
    }

    fn sort(&mut self, now: Instant, frame: &[u8], aside: Aside) -> Sorted {
        let (dst, rest) = frame.split_first_chunk().ok_or(Dropped::Malformed)?;
        let (src, rest) = rest.split_first_chunk().ok_or(Dropped::Malformed)?;
        let (dst, src) = (Mac(*dst), Mac(*src));
        if dst != self.config.mac && dst != BROADCAST && !self.macs.contains(&dst) {
            return Err(Dropped::Station);
        }
        // The sender is one station.
        if src.is_group() {
            return Err(Dropped::Malformed);
        }
        let (ethertype, mut packet) = rest.split_first_chunk().ok_or(Dropped::Malformed)?;
        let mut ethertype = u16::from_be_bytes(*ethertype);
        let mut vlan = 0;
        if let Some((protocol, tag)) = aside.tag {
            // Another one behind it, or one of a provider: none of our VLANs.
            if protocol != VLAN || ethertype == VLAN {
                return Err(Dropped::Vlan);
            }
            vlan = tag & 0xfff;
        } else if ethertype == VLAN {
            let ([t0, t1, e0, e1], behind) =
                packet.split_first_chunk().ok_or(Dropped::Malformed)?;
            vlan = u16::from_be_bytes([*t0, *t1]) & 0xfff;
            ethertype = u16::from_be_bytes([*e0, *e1]);
            packet = behind;
        }
        // VLAN 0 is none: a frame that has a priority only.
        if vlan != self.config.vlan.unwrap_or(0) {
            return Err(Dropped::Vlan);
        }
        let at = frame.len() - packet.len();
        match ethertype {
            0x0806 => self.take_arp(now, packet),
            0x0800 => self.sort_v4(now, (at, src), packet, aside),
            0x86dd => self.sort_v6(now, (at, src), packet, aside),
            _ => Err(Dropped::Other),
        }
    }

    fn sort_v4(
        &mut self,
        now: Instant,
        (at, mac): (usize, Mac),
        packet: &[u8],
        aside: Aside,
    ) -> Sorted {
        let found = frame::dissect(LinkType::Ipv4, packet);
        match found {
            Ok(found) => self.take_datagram(now, (at, mac), packet, &found, aside),
            Err(NotRoce::Protocol(1)) => self.answer_echo_v4(mac, packet),
            Err(why) => Err(why.into()),
        }
    }

    fn sort_v6(
        &mut self,
        now: Instant,
        (at, mac): (usize, Mac),
        packet: &[u8],
        aside: Aside,
    ) -> Sorted {
        let found = frame::dissect(LinkType::Ipv6, packet);
        match found {
            Ok(found) => self.take_datagram(now, (at, mac), packet, &found, aside),
            Err(NotRoce::Protocol(58)) => self.take_icmp_v6(now, mac, packet),
            Err(why) => Err(why.into()),
        }
    }

    /// A datagram to the port of RoCEv2.
    fn take_datagram(
        &mut self,
        now: Instant,
        (at, mac): (usize, Mac),
        packet: &[u8],
        found: &frame::Dissected<'_>,
        aside: Aside,
    ) -> Sorted {
        let Envelope { src, dst, ident, df, .. } = found.envelope;
        if found.is_cut() || src.is_unspecified() || src.is_multicast() {
            return Err(Dropped::Malformed);
        }
        if !self.is_ours(dst) && !self.groups.contains(&dst) {
            return Err(Dropped::Address);
        }
        if dst.is_ipv4() && !Ipv4Packet::new_unchecked(packet).verify_checksum() {
            return Err(Dropped::Checksum);
        }
        let header = if dst.is_ipv4() { 20 } else { 40 };
        // Zero means that there is none, which RoCEv2 allows over IPv6 too.
        if found.udp_checksum != 0 && !aside.unsummed {
            let udp = UdpPacket::new_unchecked(&packet[header..]);
            if !udp.verify_checksum(&src.into(), &dst.into()) {
                return Err(Dropped::Checksum);
            }
        }
        if let Some(hop) = self.hop(src) {
            self.neighbours.hear(now, hop, mac);
        }
        let local = [src, dst].iter().any(|ip| match ip {
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
            IpAddr::V4(_) => false,
        });
        let path = Path {
            src,
            dst,
            src_port: found.envelope.src_port,
            traffic_class: found.envelope.traffic_class,
            hop_limit: found.envelope.hop_limit,
            flow_label: found.envelope.flow_label,
            scope_id: u32::from(local),
        };
        let ident = dst.is_ipv4().then_some(ident);
        let start = at + header + 8;
        let meta = RxMeta { path, ident, df: Some(df), gro_index: 0 };
        Ok(Some((meta, start..start + found.datagram.len())))
    }

    fn take_arp(&mut self, now: Instant, packet: &[u8]) -> Sorted {
        let packet = ArpPacket::new_checked(packet).map_err(|_| Dropped::Malformed)?;
        let Ok(ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr,
            source_protocol_addr: theirs,
            target_protocol_addr: asked,
            ..
        }) = ArpRepr::parse(&packet)
        else {
            return Err(Dropped::Malformed);
        };
        let mac = Mac(source_hardware_addr.0);
        let for_us = self.is_ours(asked.into());
        // A probe has no address yet (RFC 5227), and nobody else has ours.
        if self.may_be_learnt(theirs.into(), mac) {
            self.learn(now, theirs.into(), mac, for_us, true);
        }
        match operation {
            ArpOperation::Request if for_us => {
                let head = self.head;
                self.answer(64, |frame| answer::arp_reply(frame, head, asked, (mac, theirs)));
                Ok(None)
            }
            ArpOperation::Reply if for_us => Ok(None),
            _ => Err(Dropped::Address),
        }
    }

    /// Whether an address may be that of a neighbour.
    fn may_be_learnt(&self, ip: IpAddr, mac: Mac) -> bool {
        let one = !ip.is_unspecified() && !ip.is_multicast() && ip != Ipv4Addr::BROADCAST;
        one && !self.is_ours(ip) && !mac.is_group() && mac != Mac([0; 6])
    }

    fn learn(&mut self, now: Instant, ip: IpAddr, mac: Mac, create: bool, replace: bool) {
        if self.neighbours.learn(now, ip, mac, create, replace) {
            self.outbox.release(ip, mac);
        }
    }

    /// Puts an answer of at most `len` bytes into the outbox, or counts that there was no room.
    fn answer(&mut self, len: usize, write: impl FnOnce(&mut Vec<u8>)) {
        if !self.outbox.has_room(None, len) {
            self.stats.unanswered += 1;
            return;
        }
        let mut frame = self.outbox.buffer();
        write(&mut frame);
        self.outbox.answer(frame);
    }

    fn answer_echo_v4(&mut self, mac: Mac, packet: &[u8]) -> Sorted {
        let ip = Ipv4Packet::new_checked(packet).map_err(|_| Dropped::Malformed)?;
        let (src, dst) = (ip.src_addr(), ip.dst_addr());
        if !self.is_ours(dst.into()) {
            return Err(Dropped::Address);
        }
        if ip.more_frags() || ip.frag_offset() != 0 {
            return Err(Dropped::Fragment);
        }
        let request = ip.payload();
        let icmp = Icmpv4Packet::new_checked(request).map_err(|_| Dropped::Malformed)?;
        if icmp.msg_type() != Icmpv4Message::EchoRequest || src.is_multicast() {
            return Err(Dropped::Other);
        }
        if !ip.verify_checksum() || !icmp.verify_checksum() {
            return Err(Dropped::Checksum);
        }
        if 20 + request.len() > self.config.mtu as usize {
            return Err(Dropped::Other);
        }
        let head = self.head;
        let len = 64 + request.len();
        self.answer(len, |frame| answer::echo_v4(frame, head, dst, (mac, src), request));
        Ok(None)
    }

    fn take_icmp_v6(&mut self, now: Instant, mac: Mac, packet: &[u8]) -> Sorted {
        let ip = Ipv6Packet::new_checked(packet).map_err(|_| Dropped::Malformed)?;
        let (src, dst, body) = (ip.src_addr(), ip.dst_addr(), ip.payload());
        let icmp = Icmpv6Packet::new_unchecked(body);
        if body.len() < 4 {
            return Err(Dropped::Malformed);
        }
        let kind = icmp.msg_type();
        let asks = matches!(kind, Icmpv6Message::NeighborSolicit | Icmpv6Message::NeighborAdvert);
        if !asks && kind != Icmpv6Message::EchoRequest {
            return Err(Dropped::Other);
        }
        icmp.check_len().map_err(|_| Dropped::Malformed)?;
        if !icmp.verify_checksum(&src, &dst) {
            return Err(Dropped::Checksum);
        }
        if !asks {
            if !self.is_ours(dst.into()) || src.is_unspecified() || src.is_multicast() {
                return Err(Dropped::Address);
            }
            if 40 + body.len() > self.config.mtu as usize {
                return Err(Dropped::Other);
            }
            let head = self.head;
            let len = 64 + body.len();
            self.answer(len, |frame| answer::echo_v6(frame, head, dst, (mac, src), body));
            return Ok(None);
        }
        // From this link, and from nowhere else (RFC 4861, 7.1).
        if ip.hop_limit() != 255 || icmp.msg_code() != 0 {
            return Err(Dropped::Malformed);
        }
        match NdiscRepr::parse(&icmp).map_err(|_| Dropped::Malformed)? {
            NdiscRepr::NeighborSolicit { target_addr, lladdr } => {
                if !self.is_ours(target_addr.into()) {
                    return Err(Dropped::Address);
                }
                let theirs = lladdr.and_then(|a| Some(Mac(a.as_bytes().try_into().ok()?)));
                if let Some(theirs) = theirs.filter(|m| self.may_be_learnt(src.into(), *m)) {
                    self.learn(now, src.into(), theirs, true, true);
                }
                let head = self.head;
                let to = (theirs.unwrap_or(mac), src);
                self.answer(128, |frame| answer::advertisement(frame, head, target_addr, to));
            }
            NdiscRepr::NeighborAdvert { flags, target_addr, lladdr } => {
                // Without an option it speaks of the address that the frame came from.
                let theirs = lladdr.and_then(|a| Some(Mac(a.as_bytes().try_into().ok()?)));
                let theirs = theirs.unwrap_or(mac);
                if self.may_be_learnt(target_addr.into(), theirs) {
                    let replace = flags.contains(NdiscNeighborFlags::OVERRIDE);
                    self.learn(now, target_addr.into(), theirs, false, replace);
                }
            }
            _ => return Err(Dropped::Other),
        }
        Ok(None)
    }

    /// Where a datagram of `len` bytes is to go. A neighbour that is not known is asked for from now on.
    pub fn route(&mut self, now: Instant, path: &Path, len: usize) -> Route {
        let Path { src, dst, .. } = *path;
        if src.is_ipv4() != dst.is_ipv4() {
            return Route::None(libc::EAFNOSUPPORT);
        }
        if !self.is_ours(src) {
            return Route::None(libc::EADDRNOTAVAIL);
        }
        if len + path.header_len() > self.config.mtu as usize {
            return Route::None(libc::EMSGSIZE);
        }
        if dst.is_multicast() {
            return Route::Link(Mac::of(dst));
        }
        if self.is_ours(dst) {
            return Route::Own;
        }
        if dst.is_unspecified() || dst == Ipv4Addr::BROADCAST {
            return Route::None(libc::EACCES);
        }
        let Some(hop) = self.hop(dst) else { return Route::None(libc::ENETUNREACH) };
        match self.neighbours.find(now, hop) {
            Found::Known(mac) => Route::Link(mac),
            Found::Asked => Route::Wait(hop),
            Found::Full => Route::None(libc::ENOBUFS),
        }
    }

    /// Writes the frame of a datagram to the front of `buf`, which has room for [`Station::frame_space`], and
    /// returns its length. 0: the datagram is longer than [`Station::route`] was told.
    pub fn write(
        &self,
        mac: Mac,
        path: &Path,
        ident: u16,
        datagram: &[u8],
        buf: &mut [u8],
    ) -> usize {
        let hop_limit = if path.hop_limit == 0 { HOPS } else { path.hop_limit };
        let envelope = Envelope {
            src: path.src,
            dst: path.dst,
            src_port: path.src_port,
            traffic_class: path.traffic_class,
            hop_limit,
            flow_label: path.flow_label,
            ident,
            df: true,
        };
        let checksum = if path.dst.is_ipv4() { UdpChecksum::Zero } else { UdpChecksum::Computed };
        let front = if self.head.tag.is_some() { TAG } else { 0 };
        let Some(untagged) = buf.get_mut(front..) else { return 0 };
        let written = frame::emit(untagged, self.config.mac, mac, &envelope, checksum, datagram);
        let Ok(len) = written else { return 0 };
        if let Some(tag) = self.head.tag {
            buf.copy_within(TAG..TAG + 12, 0);
            buf[12..14].copy_from_slice(&[0x81, 0x00]);
            buf[14..16].copy_from_slice(&tag.to_be_bytes());
        }
        let len = front + len;
        let padded = len.max(answer::SHORTEST).min(buf.len());
        buf[len..padded].fill(0);
        padded
    }

    /// Keeps a datagram until `hop` has answered. What there is no room for is dropped: the newest, because the
    /// ones before it are of use to a receiver that takes them in order.
    pub fn hold(&mut self, hop: IpAddr, path: &Path, ident: u16, datagram: &[u8]) {
        let space = datagram.len() + frame::MAX_OVERHEAD + TAG;
        if !self.outbox.has_room(Some(hop), space) {
            self.refuse(path.dst, datagram.len(), libc::ENOBUFS);
            return;
        }
        let mut frame = self.outbox.buffer();
        frame.resize(space.max(answer::SHORTEST), 0);
        let len = self.write(Mac([0; 6]), path, ident, datagram, &mut frame);
        frame.truncate(len);
        self.outbox.hold(hop, Datagram { dst: path.dst, len: datagram.len() }, frame);
    }

    /// A datagram to an address or group of ours comes back.
    pub fn send_to_self(&mut self, path: &Path, ident: u16, datagram: &[u8]) {
        let ident = path.dst.is_ipv4().then_some(ident);
        let meta = RxMeta { path: *path, ident, df: Some(true), gro_index: 0 };
        if self.outbox.send_to_self(meta, datagram) {
            self.stats.received_datagrams += 1;
            self.stats.received_bytes += datagram.len() as u64;
        } else {
            self.stats.overruns += 1;
        }
    }

    /// Whether what is sent to this group comes back.
    pub fn is_member(&self, group: IpAddr) -> bool {
        self.groups.contains(&group)
    }

    /// Counts a datagram that cannot be sent.
    pub fn refuse(&mut self, dst: IpAddr, len: usize, errno: i32) {
        self.stats.send_errors += 1;
        self.last_error = Some(SendError { dst, len, errno, neighbour: None });
    }

    /// Asks who is to be asked, and gives up who does not answer.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(due) = self.neighbours.take_due(now) {
            match due {
                Due::Ask(ip, mac) => {
                    let (head, asker) = (self.head, self.asker(ip));
                    if let Some(asker) = asker {
                        self.answer(128, |f| answer::question(f, head, asker, ip, mac));
                    }
                }
                Due::Gone(ip) => {
                    while let Some(Datagram { dst, len }) = self.outbox.give_up(ip) {
                        self.stats.unresolved += 1;
                        self.refuse(dst, len, libc::EHOSTUNREACH);
                        if let Some(error) = &mut self.last_error {
                            error.neighbour = Some(ip);
                        }
                    }
                }
            }
        }
    }

    /// Whether something could leave.
    pub fn is_ready(&self) -> bool {
        self.outbox.is_ready()
    }

    /// Whether there is something from ourselves.
    pub fn has_own(&self) -> bool {
        self.outbox.has_own()
    }

    /// The next datagram from ourselves, into the front of `buf`, and its length.
    pub fn take_own(&mut self, buf: &mut [u8]) -> Option<(RxMeta, usize)> {
        self.outbox.take_own(buf)
    }

    /// Hands over what could leave: answers, questions, and what waited for an answer.
    pub fn drain(&mut self, mut each: impl FnMut(&[u8])) {
        self.outbox.ready().for_each(|waiting| each(&waiting.frame));
        while self.outbox.pop_ready().is_some() {}
    }

    /// When to call [`Station::handle_timeout`] next.
    pub fn next_due(&self) -> Instant {
        self.neighbours.next_due()
    }
}
