//! The network as a whole.

mod faults;
mod groups;
mod random;
mod switches;
mod timing;
mod trace;

use std::net::IpAddr;

use super::tap::tests::datagram;
use super::*;
use crate::net::{Ecn, Path};

/// Line time of 1086 frame bytes (1024 of payload) at 40 Gbit/s is 221.2 ns.
const FORTY: Link = Link {
    delay: Duration::from_micros(1),
    jitter: Duration::ZERO,
    bits_per_s: 40_000_000_000,
    mtu: 9000,
    queue: 1 << 20,
    loss: 0.0,
    reorder: 0.0,
    duplicate: 0.0,
    corrupt: 0.0,
    ecn_at: usize::MAX,
};

/// Bytes of a datagram with 1024 of payload.
const DATA: usize = 12 + 1024 + 4;

fn ip(host: HostId) -> IpAddr {
    [10, 0, 0, u8::try_from(host.0 + 1).unwrap()].into()
}

fn ns(n: u64) -> Instant {
    Instant::from_nanos(n)
}

fn path(from: HostId, to: HostId) -> Path {
    Path {
        src: ip(from),
        dst: ip(to),
        src_port: 0xc000,
        traffic_class: Ecn::Ect0 as u8,
        hop_limit: 64,
        flow_label: 0,
        scope_id: 0,
    }
}

fn network<const N: usize>(seed: u64, links: [Link; N]) -> (Fabric, [HostId; N]) {
    let mut net = Fabric::new(seed);
    let hosts = links.map(|link| net.add_host(link).unwrap());
    for host in hosts {
        net.attach(host, ip(host)).unwrap();
    }
    (net, hosts)
}

fn send(net: &mut Fabric, at: u64, from: HostId, to: HostId, bytes: &[u8]) {
    let t = Transmit { path: path(from, to), ident: 0, len: bytes.len(), segment_size: None };
    net.send(ns(at), from, &t, bytes);
}

/// When, where, how, what.
type Arrival = (u64, HostId, RxMeta, Vec<u8>);

/// Runs up to and including `to`, event by event.
fn step_to(net: &mut Fabric, to: Instant, arrived: &mut Vec<Arrival>) {
    let mut woken = Vec::new();
    let mut buf = vec![0; 1 << 16];
    while let Some(at) = net.next_event().filter(|&at| at <= to) {
        net.advance(at);
        net.take_woken(&mut woken);
        assert!(woken.is_sorted());
        for host in woken.drain(..) {
            while let Some((meta, len)) = net.recv(host, &mut buf) {
                arrived.push((at.as_nanos(), host, meta, buf[..len].to_vec()));
            }
        }
    }
}

/// Runs until nothing happens any more.
fn settle(net: &mut Fabric) -> Vec<Arrival> {
    let mut arrived = Vec::new();
    step_to(net, Instant::FAR_FUTURE, &mut arrived);
    arrived
}

/// PSNs in the order in which they arrived.
fn psns(net: &mut Fabric) -> Vec<u32> {
    settle(net).iter().map(|(.., b)| u32::from_be_bytes([0, b[9], b[10], b[11]])).collect()
}

/// Sends `n` packets with PSNs from 0, all at once.
fn burst(net: &mut Fabric, from: HostId, to: HostId, n: u32) {
    let now = net.now().as_nanos();
    for psn in 0..n {
        send(net, now, from, to, &datagram(0x04, psn, &[0; 1024]));
    }
}

fn balance(net: &Fabric) {
    let sum = net.totals();
    assert_eq!(
        sum.sent + sum.duplicated + sum.replicated,
        sum.delivered + sum.dropped() + net.in_flight() as u64,
        "{sum:?}"
    );
}

#[test]
fn a_fabric_may_move_between_threads() {
    fn is_send<T: Send>() {}
    is_send::<Fabric>();
    is_send::<SharedFabric>();
}
