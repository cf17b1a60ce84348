//! A host of the fabric as a port: what a NIC plugs into.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
#[cfg(unix)]
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::net::{Ident, PortCaps, SrcPort};
use crate::port::{Health, Port, PortAddress, PortStats, RxBatch, TxBatch};

use super::{FabricError, HostId, SharedFabric};

/// The interface of every host: it has one.
const INTERFACE: &str = "sim0";
/// Its index, the same on every host, so that a scope means the same at both ends.
const IF_INDEX: u32 = 1;

/// A host's end of its cable.
///
/// *Rules.* The port takes the fabric's lock for the length of a call: whoever holds it must not drive a
/// NIC. It sends at the fabric's time and never moves it. A batch that does not fit into the host's end of
/// the cable stays where it is, and the host is [woken](super::Fabric::take_woken) when there is room.
pub struct FabricPort {
    fabric: SharedFabric,
    host: HostId,
    addresses: Vec<PortAddress>,
    stats: PortStats,
    segments: usize,
    up: Arc<AtomicBool>,
    mtu: Arc<AtomicU32>,
}

impl FabricPort {
    /// The port of `host`, with the addresses that it has by now.
    ///
    /// # Errors
    /// If there is no such host.
    pub fn new(fabric: &SharedFabric, host: HostId) -> Result<Self, FabricError> {
        let net = fabric.lock();
        let addresses = net.addresses(host)?.iter().copied().map(address).collect();
        let (up, mtu) = (net.up_flag(host)?, net.mtu_of(host)?);
        drop(net);
        let fabric = Arc::clone(fabric);
        Ok(Self { fabric, host, addresses, stats: PortStats::default(), segments: 64, up, mtu })
    }

    /// The same, with so many datagrams in one send; 1: each by itself.
    #[must_use]
    pub fn segmenting(self, segments: usize) -> Self {
        Self { segments: segments.max(1), ..self }
    }

    /// The host whose port this is.
    pub const fn host(&self) -> HostId {
        self.host
    }
}

impl Port for FabricPort {
    fn caps(&self) -> PortCaps {
        PortCaps {
            src_port: SrcPort::Entropy,
            ident: Ident::Chosen,
            gso_segments_v4: self.segments,
            gso_segments_v6: self.segments,
            max_transmit: TxBatch::BYTES,
            mtu: self.mtu(),
            rx_buffer: None,
        }
    }

    fn recv(&mut self, rx: &mut RxBatch) -> io::Result<()> {
        rx.clear();
        let mut fabric = self.fabric.lock();
        while let Some(buffer) = rx.spare() {
            let Some((meta, len)) = fabric.recv(self.host, buffer) else { break };
            rx.commit(meta, len, None);
            self.stats.received_datagrams += 1;
            self.stats.received_bytes += len as u64;
        }
        Ok(())
    }

    fn send(&mut self, tx: &mut TxBatch) -> io::Result<()> {
        let mut fabric = self.fabric.lock();
        let now = fabric.now();
        let mut taken = 0;
        for (transmit, bytes) in tx.entries() {
            if !fabric.has_room(self.host) {
                self.stats.send_busy += 1;
                break;
            }
            fabric.send(now, self.host, transmit, bytes);
            self.stats.sent_datagrams += transmit.segments() as u64;
            self.stats.sent_bytes += bytes.len() as u64;
            taken += 1;
        }
        tx.consume(taken);
        Ok(())
    }

    fn room(&mut self) -> usize {
        let mut fabric = self.fabric.lock();
        match (fabric.has_room(self.host), fabric.queues_frames(self.host)) {
            (false, _) => 0,
            (true, true) => usize::MAX,
            (true, false) => 1,
        }
    }

    #[cfg(unix)]
    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        self.fabric.lock().join(self.host, group).map_err(io::Error::other)
    }

    fn leave(&mut self, group: IpAddr) -> io::Result<()> {
        self.fabric.lock().leave(self.host, group).map_err(io::Error::other)
    }

    fn addresses(&self) -> &[PortAddress] {
        &self.addresses
    }

    fn health(&self) -> Health {
        // Without the lock: a device may go inside a tap.
        Health { up: self.up.load(Ordering::Relaxed), missing: 0 }
    }

    fn mtu(&self) -> u32 {
        self.mtu.load(Ordering::Relaxed)
    }

    fn stats(&self) -> PortStats {
        let truncated = self.fabric.lock().counters(self.host).truncated;
        PortStats { truncated, ..self.stats }
    }
}

impl fmt::Debug for FabricPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FabricPort").field("host", &self.host).finish_non_exhaustive()
    }
}

fn address(ip: IpAddr) -> PortAddress {
    let is_link_local = matches!(ip, IpAddr::V6(v6) if Ipv6Addr::is_unicast_link_local(&v6));
    PortAddress {
        ip,
        scope_id: if is_link_local { IF_INDEX } else { 0 },
        interface: INTERFACE.to_owned(),
        if_index: IF_INDEX,
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::super::{Direction, Fabric, Link};
    use super::*;
    use crate::net::{Path, Transmit};
    use crate::time::Instant;

    fn ports() -> (SharedFabric, [FabricPort; 2]) {
        let mut net = Fabric::new(1);
        let hosts = [Link::default(), Link { mtu: 1500, ..Link::default() }]
            .map(|link| net.add_host(link).unwrap());
        for (host, ips) in hosts.into_iter().zip([["10.0.0.1", "fe80::1"], ["fe80::2", "10.0.0.2"]])
        {
            for ip in ips {
                net.attach(host, ip.parse().unwrap()).unwrap();
            }
        }
        let net = Arc::new(Mutex::new(net));
        let ports = hosts.map(|host| FabricPort::new(&net, host).unwrap());
        (net, ports)
    }

    fn transmit(len: usize, segment_size: Option<u16>) -> Transmit {
        let path = Path {
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, 2].into(),
            src_port: 0xc123,
            traffic_class: 2,
            hop_limit: 64,
            flow_label: 0,
            scope_id: 0,
        };
        Transmit { path, ident: 5, len, segment_size }
    }

    /// Runs until somebody is woken.
    fn wait(net: &SharedFabric) -> Vec<HostId> {
        let mut woken = Vec::new();
        let mut net = net.lock();
        while woken.is_empty() {
            let next = net.next_event().unwrap();
            net.advance(next);
            net.take_woken(&mut woken);
        }
        woken
    }

    #[test]
    fn what_the_port_says_of_itself() {
        let (net, [a, b]) = ports();
        assert_eq!(a.caps().mtu, 9000);
        assert_eq!(b.caps().mtu, 1500);
        net.lock().set_link(b.host(), Link::default()).unwrap();
        assert_eq!((b.caps().mtu, b.mtu()), (9000, 9000), "a new cable");
        let narrow = Link { mtu: 1400, ..Link::default() };
        net.lock().set_direction(b.host(), Direction::Up, narrow).unwrap();
        assert_eq!((b.caps().mtu, b.mtu()), (1400, 1400), "the narrower way");
        net.lock().set_link(b.host(), Link::default()).unwrap();
        assert_eq!((a.caps().src_port, a.caps().ident), (SrcPort::Entropy, Ident::Chosen));
        assert!(a.readiness().is_none());
        assert_eq!(a.health(), Health::GOOD);
        net.lock().set_up(a.host(), false).unwrap();
        assert_eq!([a.health().up, b.health().up], [false, true]);
        net.lock().set_up(a.host(), true).unwrap();
        let shown: Vec<_> = b.addresses().iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["fe80::2%sim0", "10.0.0.2"]);
        let nobody = HostId(7);
        assert_eq!(FabricPort::new(&net, nobody).err(), Some(FabricError::NoSuchHost(nobody)));
    }

    #[test]
    fn batches_go_over_and_what_does_not_fit_waits() {
        let (net, [mut a, mut b]) = ports();
        let mut tx = TxBatch::new(16 * 1000);
        let mut rx = RxBatch::new(4, 2048);
        for byte in 0..5 {
            tx.spare()[..1000].fill(byte);
            tx.commit(transmit(1000, Some(300)), 0);
        }
        a.send(&mut tx).unwrap();
        assert!(tx.is_empty());
        // 4 x 5 segments, in batches of four buffers, the rest left in the inbox.
        let mut got = Vec::new();
        while got.len() < 20 {
            assert_eq!(wait(&net), [b.host()]);
            loop {
                b.recv(&mut rx).unwrap();
                if rx.is_empty() {
                    break;
                }
                got.extend(rx.iter().map(|(meta, bytes)| (meta.ident, bytes[0], bytes.len())));
            }
        }
        let expected: Vec<_> = (0..5)
            .flat_map(|byte| {
                [(5, 300), (6, 300), (7, 300), (8, 100)].map(|(i, l)| (Some(i), byte, l))
            })
            .collect();
        assert_eq!(got, expected);
        assert_eq!((a.stats().sent_datagrams, a.stats().sent_bytes), (20, 5000));
        assert_eq!((b.stats().received_datagrams, b.stats().received_bytes), (20, 5000));

        // The host's end of the cable takes 64 KiB and what it had begun with.
        let mut sent = 0;
        loop {
            while !tx.is_full() {
                tx.commit(transmit(1000, None), 0);
            }
            let before = tx.entries().count();
            a.send(&mut tx).unwrap();
            sent += before - tx.entries().count();
            if !tx.is_empty() {
                break;
            }
        }
        assert_eq!(sent, 1 + (64usize << 10).div_ceil(1000 + 28 + 18));
        assert_eq!(a.stats().send_busy, 1);
        while !wait(&net).contains(&a.host()) {}
        a.send(&mut tx).unwrap();
        assert!(tx.is_empty(), "there was room again");
    }

    #[test]
    fn several_at_once_and_one_too_long() {
        let (net, [mut a, mut b]) = ports();
        let mut tx = TxBatch::default();
        for len in [10, 200, 20, 30] {
            tx.commit(transmit(len, None), 0);
        }
        a.send(&mut tx).unwrap();
        net.lock().advance(Instant::from_nanos(1_000_000));
        let mut rx = RxBatch::new(2, 100);
        let mut sizes = Vec::new();
        for _ in 0..3 {
            b.recv(&mut rx).unwrap();
            sizes.push(rx.iter().map(|(_, bytes)| bytes.len()).collect::<Vec<_>>());
        }
        assert_eq!(sizes, [vec![10, 20], vec![30], vec![]]);
        assert_eq!(b.stats().truncated, 1);
    }
}
