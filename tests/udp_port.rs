//! The UDP port over real sockets on the loopback interface, and in a network namespace of its own.
//!
//! No test waits for a time to pass: each waits for a descriptor to become readable, and gives up after
//! much longer than that can take.

#![cfg(all(feature = "udp", feature = "unstable-internals", target_os = "linux"))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

#[path = "udp_port/namespace.rs"]
mod namespace;
#[path = "common/skip.rs"]
mod skip;

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::BorrowedFd;
use std::process::{Child, Command};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use skip::skip;
use softroce::internals::port::netdev::{self, NetDevKind};
use softroce::internals::port::udp::{GsoPolicy, Numbering, OpenError, UdpConfig, UdpPort};
use softroce::internals::port::{Health, Port, PortAddress, RxBatch, TxBatch};
use softroce::net::{Path, ROCE_PORT, RxMeta, Transmit};

/// Ports on two free loopback addresses.
fn pair() -> (UdpPort, UdpPort) {
    let open =
        || UdpPort::open_loopback(UdpConfig::new(Vec::new())).expect("a free 127.0.0.x:4791");
    (open(), open())
}

fn ip_of(port: &UdpPort) -> IpAddr {
    port.addresses()[0].ip
}

/// A path from one port to another, with nothing special about it.
fn path(from: &UdpPort, to: &UdpPort) -> Path {
    Path {
        src: ip_of(from),
        dst: ip_of(to),
        src_port: ROCE_PORT,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        scope_id: 0,
    }
}

fn put(tx: &mut TxBatch, path: Path, payload: &[u8], segment_size: Option<u16>) {
    tx.spare()[..payload.len()].copy_from_slice(payload);
    tx.commit(Transmit { path, ident: 0, len: payload.len(), segment_size }, 0);
}

/// Sends one thing and makes sure that it has left.
fn send(port: &mut UdpPort, path: Path, payload: &[u8], segment_size: Option<u16>) {
    let mut tx = TxBatch::default();
    put(&mut tx, path, payload, segment_size);
    port.send(&mut tx).expect("send");
    assert!(tx.is_empty(), "left in the batch: {tx:?}");
}

fn wait_for(fd: BorrowedFd<'_>, what: PollFlags) {
    let ready = poll(&mut [PollFd::new(fd, what)], PollTimeout::from(20_000u16)).expect("poll");
    assert_eq!(ready, 1, "nothing after 20 seconds");
}

/// Waits until `n` datagrams have come in.
fn receive(port: &mut UdpPort, n: usize) -> Vec<(RxMeta, Vec<u8>)> {
    let mut rx = RxBatch::new(4, RxBatch::WHOLE);
    let mut got = Vec::new();
    loop {
        port.recv(&mut rx).expect("recv");
        got.extend(rx.iter().map(|(meta, bytes)| (meta, bytes.to_vec())));
        if got.len() >= n {
            return got;
        }
        if rx.is_empty() {
            wait_for(port.readiness().expect("a descriptor"), PollFlags::POLLIN);
        }
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..=250u8).cycle().take(len).collect()
}

#[test]
fn one_datagram_each_way_with_all_its_fields() {
    let (mut a, mut b) = pair();
    assert_ne!(ip_of(&a), ip_of(&b));
    let there = Path { traffic_class: 0x6a, hop_limit: 17, ..path(&a, &b) };
    send(&mut a, there, b"there", None);
    let got = receive(&mut b, 1);
    let meta = RxMeta { path: there, ident: None, df: None, gro_index: 0 };
    assert_eq!(got, [(meta, b"there".to_vec())]);

    let back = path(&b, &a);
    send(&mut b, back, b"back", None);
    let got = receive(&mut a, 1);
    assert_eq!((got[0].0.path, &got[0].1[..]), (back, &b"back"[..]));

    for port in [&a, &b] {
        let s = port.stats();
        assert_eq!((s.sent_datagrams, s.received_datagrams, s.send_calls), (1, 1, 1));
        assert_eq!(s.sent_bytes + s.received_bytes, 9);
        assert_eq!((s.overruns, s.wrong_interface, s.malformed, s.truncated), (0, 0, 0, 0));
    }
}

#[test]
fn this_kernel_numbers_segments_as_the_icrc_assumes() {
    let (a, _) = pair();
    let caps = a.caps();
    assert_eq!(a.numbering(), Numbering::AsExpected);
    assert!(caps.gso_segments_v4 >= 64, "{caps:?}");
    assert!(caps.mtu >= 4192, "lo carries a path MTU of 4096: {caps:?}");
    assert!(caps.rx_buffer.is_some_and(|granted| granted > 0));
}

#[test]
fn a_segmented_send_comes_apart_again() {
    let (mut a, mut b) = pair();
    let payload = pattern(15 * 4112 + 100);
    let p = path(&a, &b);
    send(&mut a, p, &payload, Some(4112));
    let got = receive(&mut b, 16);
    let whole: Vec<u8> = got.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
    assert_eq!(whole, payload);
    assert_eq!(got[15].1.len(), 100);
    let indices: Vec<u16> = got.iter().map(|(meta, _)| meta.gro_index).collect();
    assert_eq!(indices, (0..16).collect::<Vec<_>>());
    assert_eq!(a.stats().sent_datagrams, 16);
    assert_eq!(a.stats().send_calls, 1);
    assert_eq!(b.stats().received_datagrams, 16);
    assert_eq!(b.stats().received_bytes, payload.len() as u64);
}

#[test]
fn merged_and_single_datagrams_are_told_apart() {
    let (mut a, mut b) = pair();
    let mut tx = TxBatch::default();
    let p = path(&a, &b);
    put(&mut tx, p, &[1; 3000], Some(1000));
    put(&mut tx, p, &[2; 700], None);
    put(&mut tx, p, &[3; 500], Some(200));
    put(&mut tx, p, &[4; 0], None);
    put(&mut tx, p, &[5; 64], Some(64));
    a.send(&mut tx).unwrap();
    assert!(tx.is_empty());
    let got: Vec<_> = receive(&mut b, 9)
        .into_iter()
        .map(|(meta, bytes)| (bytes.first().copied(), bytes.len(), meta.gro_index))
        .collect();
    let expected = [
        (Some(1), 1000, 0),
        (Some(1), 1000, 1),
        (Some(1), 1000, 2),
        (Some(2), 700, 0),
        (Some(3), 200, 0),
        (Some(3), 200, 1),
        (Some(3), 100, 2),
        (None, 0, 0),
        (Some(5), 64, 0),
    ];
    assert_eq!(got, expected);
    assert_eq!(a.stats().send_calls, 1, "all in one sendmmsg");
}

#[test]
fn without_merging_the_same_bytes_arrive() {
    let open = |gro, gso| {
        let config = UdpConfig { gro, gso, ..UdpConfig::new(Vec::new()) };
        UdpPort::open_loopback(config).unwrap()
    };
    let mut a = open(true, GsoPolicy::On);
    let mut b = open(false, GsoPolicy::Off);
    assert_eq!((b.caps().gso_segments_v4, b.caps().gso_segments_v6), (1, 1));
    let payload = pattern(10_500);
    let p = path(&a, &b);
    send(&mut a, p, &payload, Some(1000));
    let got = receive(&mut b, 11);
    assert!(got.iter().all(|(meta, _)| meta.gro_index == 0));
    assert_eq!(got.into_iter().flat_map(|(_, bytes)| bytes).collect::<Vec<u8>>(), payload);
}

#[test]
fn many_small_datagrams_keep_their_order() {
    let (mut a, mut b) = pair();
    let p = path(&a, &b);
    let mut tx = TxBatch::default();
    let mut expected = Vec::new();
    for round in 0u8..4 {
        for i in 0..TxBatch::ENTRIES {
            let payload = [round; 80];
            put(&mut tx, p, &payload[..16 + i], None);
            expected.push(payload[..16 + i].to_vec());
        }
        assert!(tx.is_full());
        a.send(&mut tx).unwrap();
        assert!(tx.is_empty());
    }
    assert_eq!(a.stats().send_calls, 4);
    let got: Vec<_> = receive(&mut b, expected.len()).into_iter().map(|(_, bytes)| bytes).collect();
    assert_eq!(got, expected);
    assert!(
        b.stats().receive_calls < 256 / 2,
        "small datagrams are fetched several at a time: {:?}",
        b.stats()
    );
}

#[test]
fn every_traffic_class_and_hop_limit_arrives() {
    let (mut a, mut b) = pair();
    // Twice, and the second time after sends that have changed what the socket fills in by itself.
    for _ in 0..2 {
        {
            let (from, to) = (&mut a, &mut b);
            let p = path(from, to);
            let mut asked = Vec::new();
            for i in 0..=255u8 {
                let p = Path { traffic_class: i, hop_limit: 255 - i.min(254), ..p };
                asked.push((i, 255 - i.min(254)));
                send(from, p, &[i; 20], None);
            }
            let got: Vec<_> = receive(to, 256)
                .iter()
                .map(|(meta, bytes)| {
                    assert_eq!(bytes[0], meta.path.traffic_class);
                    (meta.path.traffic_class, meta.path.hop_limit)
                })
                .collect();
            assert_eq!(got, asked);
            for _ in 0..100 {
                send(from, Path { traffic_class: 2, hop_limit: 9, ..p }, &[7; 2000], Some(1000));
            }
            let got = receive(to, 200);
            assert!(got.iter().all(|(m, _)| (m.path.traffic_class, m.path.hop_limit) == (2, 9)));
        }
    }
    // A hop limit of 0 is the system's, not what was sent last.
    let p = path(&a, &b);
    send(&mut a, Path { hop_limit: 0, ..p }, b"x", None);
    let hops = std::fs::read_to_string("/proc/sys/net/ipv4/ip_default_ttl").unwrap();
    assert_eq!(receive(&mut b, 1)[0].0.path.hop_limit.to_string(), hops.trim());
}

#[test]
fn ecn_of_segmented_sends_is_kept_apart() {
    let (mut a, mut b) = pair();
    let p = path(&a, &b);
    let mut tx = TxBatch::default();
    for class in [2, 3, 0, 1] {
        put(&mut tx, Path { traffic_class: class, ..p }, &[class; 4000], Some(1000));
    }
    a.send(&mut tx).unwrap();
    let got = receive(&mut b, 16);
    assert!(got.iter().all(|(meta, bytes)| meta.path.traffic_class == bytes[0]));
    let classes: Vec<u8> = got.iter().step_by(4).map(|(meta, _)| meta.path.traffic_class).collect();
    assert_eq!(classes, [2, 3, 0, 1]);
}

#[test]
fn the_largest_sends_fit() {
    let (mut a, mut b) = pair();
    let p = path(&a, &b);
    let limit = a.caps().max_transmit;
    let payload = pattern(limit);
    send(&mut a, p, &payload, None);
    assert_eq!(receive(&mut b, 1)[0].1, payload);
    let (segment, segments) = (limit / 64, 64);
    send(&mut a, p, &payload[..segment * segments], Some(u16::try_from(segment).unwrap()));
    let got: Vec<u8> = receive(&mut b, segments).into_iter().flat_map(|(_, bytes)| bytes).collect();
    assert_eq!(got, payload[..segment * segments]);
    let most = a.caps().gso_segments_v4;
    send(&mut a, p, &payload[..most * 80], Some(80));
    assert_eq!(receive(&mut b, most).len(), most);
}

#[test]
fn what_can_never_be_sent_is_dropped_and_the_rest_goes_on() {
    let (mut a, mut b) = pair();
    let p = path(&a, &b);
    let stranger = Path { src: [203, 0, 113, 77].into(), ..p };
    let mixed = Path { dst: "::1".parse().unwrap(), ..p };
    for (bad, len, segment_size, errno) in [
        (p, 65_508, None, libc::EMSGSIZE),
        (p, 65_508, Some(4112), libc::EMSGSIZE),
        (stranger, 10, None, libc::EADDRNOTAVAIL),
        (mixed, 10, None, libc::EAFNOSUPPORT),
        // More segments than the kernel makes, sealed for identifications that single sends do not have.
        (p, 1000, Some(1), libc::EIO),
    ] {
        let before = a.stats().send_errors;
        let mut tx = TxBatch::new(1 << 17);
        put(&mut tx, p, b"before", None);
        put(&mut tx, bad, &pattern(len), segment_size);
        put(&mut tx, p, b"after", None);
        let segments = tx.entries().nth(1).unwrap().0.segments() as u64;
        a.send(&mut tx).unwrap();
        assert!(tx.is_empty());
        let got: Vec<_> = receive(&mut b, 2).into_iter().map(|(_, bytes)| bytes).collect();
        assert_eq!(got, [&b"before"[..], b"after"], "around an entry with {errno}");
        assert_eq!(a.stats().send_errors - before, segments);
        let error = a.last_error().unwrap();
        assert_eq!((error.dst, error.len, error.errno), (bad.dst, len, errno));
        assert!(error.to_string().starts_with(&format!("{len} bytes to {} not sent: ", bad.dst)));
    }
    assert_eq!(a.stats().gso_refused, 0);
}

#[test]
fn overruns_are_counted() {
    let mut a = UdpPort::open_loopback(UdpConfig::new(Vec::new())).unwrap();
    let config = UdpConfig { rcvbuf: 8192, ..UdpConfig::new(Vec::new()) };
    let mut b = UdpPort::open_loopback(config).unwrap();
    assert!(b.caps().rx_buffer.unwrap() < 1 << 20);
    let p = path(&a, &b);
    let mut tx = TxBatch::default();
    for _ in 0..TxBatch::ENTRIES {
        put(&mut tx, p, &[9; 1000], None);
    }
    a.send(&mut tx).unwrap();
    let sent = a.stats().sent_datagrams;
    assert_eq!(sent, TxBatch::ENTRIES as u64);

    let mut rx = RxBatch::new(4, RxBatch::WHOLE);
    loop {
        b.recv(&mut rx).unwrap();
        if rx.is_empty() {
            break;
        }
    }
    let s = b.stats();
    assert!(s.received_datagrams > 0 && s.overruns > 0, "{s:?}");
    assert_eq!(s.received_datagrams + s.overruns, sent);
}

#[test]
fn a_datagram_beyond_the_buffer_is_dropped_and_counted() {
    let (mut a, mut b) = pair();
    let p = path(&a, &b);
    for len in [100, 101, 99] {
        send(&mut a, p, &pattern(len), None);
    }
    send(&mut a, p, &pattern(300), Some(60));
    let mut rx = RxBatch::new(3, 100);
    let mut lengths = Vec::new();
    while lengths.len() < 2 || b.stats().truncated < 2 {
        wait_for(b.readiness().unwrap(), PollFlags::POLLIN);
        b.recv(&mut rx).unwrap();
        lengths.extend(rx.iter().map(|(_, bytes)| bytes.len()));
    }
    assert_eq!(lengths, [100, 99]);
    assert_eq!(b.stats().received_datagrams, 2);
}

#[test]
fn nothing_there_is_no_error() {
    let (mut a, mut b) = pair();
    let mut rx = RxBatch::new(2, RxBatch::WHOLE);
    b.recv(&mut rx).unwrap();
    assert!(rx.is_empty());
    let fd = b.readiness().unwrap();
    assert_eq!(poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::ZERO), Ok(0));

    let p = path(&a, &b);
    send(&mut a, p, b"x", None);
    wait_for(b.readiness().unwrap(), PollFlags::POLLIN);
    b.recv(&mut rx).unwrap();
    assert_eq!(rx.datagrams(), 1);
    b.recv(&mut rx).unwrap();
    assert!(rx.is_empty(), "each call replaces what was there");

    let mut nothing = TxBatch::default();
    a.send(&mut nothing).unwrap();
    assert!(a.blocked_on().is_none());
    assert_eq!(a.stats().send_calls, 1);
}

#[test]
fn an_address_in_use_is_explained() {
    let (a, b) = pair();
    assert_ne!(ip_of(&a), ip_of(&b), "the second port took the next free address");
    let ip = ip_of(&a);
    let error = UdpPort::open(UdpConfig::for_address(ip, 0).unwrap()).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error:?}");
    assert_eq!(error.errno(), libc::EADDRINUSE);
    let text = error.to_string();
    assert!(text.starts_with(&format!("UDP port 4791 of {ip} is taken by this process")), "{text}");
    assert!(text.contains("127.0.0.0/8"), "{text}");
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::AddrInUse);
}

#[test]
fn foreign_addresses_and_interfaces_are_refused() {
    let foreign: IpAddr = [203, 0, 113, 77].into();
    let error = UdpConfig::for_address(foreign, 0).unwrap_err();
    assert!(matches!(error, OpenError::NotAvailable { ip } if ip == foreign));
    assert_eq!(error.errno(), libc::EADDRNOTAVAIL);

    let lo = netdev::address([127, 0, 0, 1].into(), 0).unwrap().unwrap();
    let address = PortAddress { ip: foreign, ..lo };
    let error = UdpPort::open(UdpConfig::new(vec![address.clone()])).unwrap_err();
    assert!(error.to_string().contains("203.0.113.77 is not an address of this host"), "{error}");
    let skipping = UdpConfig { skip_unavailable: true, ..UdpConfig::new(vec![address]) };
    let error = UdpPort::open(skipping).unwrap_err();
    assert!(matches!(error, OpenError::NotAvailable { .. }), "none is left: {error:?}");

    let error = UdpConfig::for_interface("no such name").unwrap_err();
    assert_eq!(error.errno(), libc::ENODEV);
    let error = UdpPort::open(UdpConfig::new(Vec::new())).unwrap_err();
    assert!(error.to_string().contains("without any address"), "{error}");
}

/// A port with two loopback addresses of its own. Other processes may take one of them in between.
fn port_with_two_addresses() -> UdpPort {
    for _ in 0..100 {
        let (a, b) = pair();
        let addresses = [&a, &b].map(|p| p.addresses()[0].clone()).to_vec();
        drop((a, b));
        match UdpPort::open(UdpConfig::new(addresses)) {
            Ok(port) => return port,
            Err(OpenError::InUse { .. }) => {}
            Err(e) => panic!("{e}"),
        }
    }
    panic!("no two free addresses in 100 attempts");
}

#[test]
fn one_port_with_several_addresses() {
    let mut both = port_with_two_addresses();
    let mut other = UdpPort::open_loopback(UdpConfig::new(Vec::new())).unwrap();
    let ours: Vec<IpAddr> = both.addresses().iter().map(|a| a.ip).collect();
    assert_eq!(ours.len(), 2);
    let to = |src, dst| Path { src, dst, ..path(&other, &other) };
    let (there, back) = (ours.clone().into_iter(), ours.clone());
    let there: Vec<Path> = there.map(|dst| to(ip_of(&other), dst)).collect();
    let back: Vec<Path> = back.into_iter().map(|src| to(src, ip_of(&other))).collect();

    let fd = both.readiness().unwrap();
    assert_eq!(poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::ZERO), Ok(0));
    let mut tx = TxBatch::default();
    for p in &there {
        put(&mut tx, *p, b"to you", None);
    }
    other.send(&mut tx).unwrap();
    let got: BTreeSet<IpAddr> =
        receive(&mut both, 2).iter().map(|(meta, _)| meta.path.dst).collect();
    assert_eq!(got, ours.iter().copied().collect());

    // Entries alternate between the sockets, so each goes in a call of its own, in order.
    for p in [back[0], back[1], back[1], back[0]] {
        put(&mut tx, p, b"and back", None);
    }
    both.send(&mut tx).unwrap();
    let got: Vec<IpAddr> = receive(&mut other, 4).iter().map(|(meta, _)| meta.path.src).collect();
    assert_eq!(got, [ours[0], ours[1], ours[1], ours[0]]);
    assert_eq!(both.stats().send_calls, 3);
}

#[test]
fn a_port_talks_to_itself() {
    let mut a = UdpPort::open_loopback(UdpConfig::new(Vec::new())).unwrap();
    let p = path(&a, &a);
    send(&mut a, p, &pattern(3000), Some(1024));
    let got = receive(&mut a, 3);
    assert_eq!((got[0].0.path.src, got[0].0.path.dst), (p.src, p.dst));
    assert_eq!(got[2].1.len(), 952);
}

/// A group that no other process here is likely to use.
fn group(n: u8) -> IpAddr {
    let [_, _, c, d] = std::process::id().to_be_bytes();
    [239, 192 + n, c, d].into()
}

fn path_to(from: &UdpPort, group: IpAddr) -> Path {
    Path { dst: group, ..path(from, from) }
}

fn is_quiet(port: &UdpPort) -> bool {
    let fd = port.readiness().unwrap();
    poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(0)
}

#[test]
fn members_of_a_group_get_what_is_sent_there() {
    let (mut a, mut b) = pair();
    let p = Path { traffic_class: 0x6a, hop_limit: 9, ..path_to(&a, group(0)) };
    b.join(group(0)).unwrap();
    b.join(group(0)).unwrap();
    send(&mut a, p, b"to all", None);
    let got = receive(&mut b, 1);
    assert_eq!((got[0].0.path, &got[0].1[..]), (p, &b"to all"[..]));
    assert!(is_quiet(&a) && is_quiet(&b), "joined twice, but received once");

    // The sender is a member, too; and what is sent to it alone still arrives.
    a.join(group(0)).unwrap();
    send(&mut a, p, b"again", None);
    assert_eq!(receive(&mut a, 1)[0].0.path.dst, group(0));
    assert_eq!(receive(&mut b, 1)[0].1, b"again");
    let back = path(&b, &a);
    send(&mut b, back, b"alone", None);
    assert_eq!(receive(&mut a, 1)[0].0.path, back);

    b.leave(group(0)).unwrap();
    send(&mut a, p, b"not to b", None);
    assert_eq!(receive(&mut a, 1)[0].1, b"not to b");
    assert!(is_quiet(&b));
    // Segments are datagrams of their own, as always.
    let payload = pattern(2500);
    send(&mut a, p, &payload, Some(1000));
    let got = receive(&mut a, 3);
    assert_eq!(got.into_iter().flat_map(|(_, bytes)| bytes).collect::<Vec<u8>>(), payload);
}

#[test]
fn groups_come_and_go_in_any_order() {
    let (mut a, mut b) = pair();
    for n in 0..4 {
        b.join(group(n)).unwrap();
    }
    let mut there = vec![0, 1, 2, 3];
    for gone in [1, 3, 0] {
        b.leave(group(gone)).unwrap();
        there.retain(|&n| n != gone);
        for n in 0..4 {
            let p = path_to(&a, group(n));
            send(&mut a, p, &[n], None);
        }
        let mut got: Vec<u8> =
            receive(&mut b, there.len()).iter().map(|(_, bytes)| bytes[0]).collect();
        got.sort_unstable();
        assert_eq!(got, there);
        let p = path(&a, &b);
        send(&mut a, p, b"alone", None);
        assert_eq!(receive(&mut b, 1)[0].1, b"alone");
    }
    b.leave(group(7)).unwrap();
    let v6 = "ff05::7".parse().unwrap();
    assert_eq!(
        b.join(v6).unwrap_err().raw_os_error(),
        Some(libc::EADDRNOTAVAIL),
        "no such address"
    );
}

/// What needs interfaces and addresses of its own: runs itself again in a network namespace, where root is
/// cheap.
#[test]
fn in_a_network_namespace() {
    if std::env::var_os("SOFTROCE_NETNS").is_some() {
        namespace::all();
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/netns.sh");
    let us = std::env::current_exe().unwrap();
    let arguments = ["--exact", "in_a_network_namespace", "--nocapture"];
    let output = Command::new("sh").arg(script).arg(us).args(arguments).output().unwrap();
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    match output.status.code() {
        Some(77) => skip(stderr.trim()),
        Some(0) => assert!(stdout.contains("1 passed"), "{stdout}"),
        _ => panic!("{}\n{stdout}\n{stderr}", output.status),
    }
}
