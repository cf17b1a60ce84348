//! A station, frame by frame.

use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::net::{Path, ROCE_PORT};
use crate::port::PortStats;
use crate::time::{Duration, Instant};
use crate::wire::frame::{self, Envelope, UdpChecksum};

const OURS: Mac = Mac([2, 0, 10, 99, 0, 1]);
const THEIRS: Mac = Mac([2, 0, 0, 0, 0, 9]);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn config() -> StationConfig {
    StationConfig::new(vec![
        Prefix { ip: ip("10.99.0.1"), len: 24 },
        Prefix { ip: ip("fd99::1"), len: 64 },
    ])
}

fn station() -> Station {
    Station::new(config())
}

/// Bytes in hex, spaces between them or not.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pairs = digits.as_chunks::<2>().0.iter();
    pairs.map(|p| u8::from_str_radix(std::str::from_utf8(p).unwrap(), 16).unwrap()).collect()
}

/// What waits to leave; it leaves.
fn sent(station: &mut Station) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    station.drain(|frame| frames.push(frame.to_vec()));
    frames
}

fn padded(mut frame: Vec<u8>) -> Vec<u8> {
    answer::pad(&mut frame);
    frame
}

/// An ARP packet from 10.99.0.2.
fn arp(operation: u8, target: &str) -> Vec<u8> {
    let IpAddr::V4(target) = ip(target) else { panic!("ARP is for IPv4") };
    let mut frame = hex("ffffffffffff 020000000009 0806 0001 0800 06 04 00");
    frame.push(operation);
    frame.extend(hex("020000000009 0a630002 000000000000"));
    frame.extend(target.octets());
    padded(frame)
}

fn envelope(src: &str, dst: &str) -> Envelope {
    Envelope {
        src: ip(src),
        dst: ip(dst),
        src_port: 0xc123,
        traffic_class: 0x6a,
        hop_limit: 64,
        flow_label: 0,
        ident: 0x1234,
        df: true,
    }
}

fn roce(to: Mac, envelope: &Envelope, checksum: UdpChecksum) -> Vec<u8> {
    let mut frame = vec![0; 128];
    let datagram = *b"not looked into";
    let len = frame::emit(&mut frame, THEIRS, to, envelope, checksum, &datagram).unwrap();
    frame.truncate(len);
    padded(frame)
}

fn path(src: &str, dst: &str) -> Path {
    Path {
        src: ip(src),
        dst: ip(dst),
        src_port: ROCE_PORT,
        traffic_class: 2,
        hop_limit: 0,
        flow_label: 0,
        scope_id: 0,
    }
}

/// The one counter that has counted, by what `of` picks.
#[track_caller]
fn drops(station: &mut Station, frame: &[u8], of: fn(&mut PortStats) -> &mut u64) {
    let mut expected = *station.stats();
    *of(&mut expected) += 1;
    assert_eq!(station.receive(at(0), frame), None);
    assert_eq!(*station.stats(), expected);
    assert_eq!(sent(station), Vec::<Vec<u8>>::new(), "and nothing is said");
}

#[test]
fn arp_is_answered() {
    let mut station = station();
    assert_eq!(station.receive(at(0), &arp(1, "10.99.0.1")), None);
    let reply = "020000000009 02000a630001 0806 0001 0800 06 04 0002 \
                 02000a630001 0a630001 020000000009 0a630002";
    assert_eq!(sent(&mut station), [padded(hex(reply))]);
    assert_eq!(*station.stats(), PortStats::default(), "nothing was dropped");
    // Who asks is known from now on.
    let path = path("10.99.0.1", "10.99.0.2");
    assert_eq!(station.route(at(0), &path, 100), Route::Link(THEIRS));
    drops(&mut station, &arp(1, "10.99.0.7"), |s| &mut s.wrong_address);
    let mut other = arp(1, "10.99.0.1");
    other[17] = 0x34;
    drops(&mut station, &other, |s| &mut s.malformed);
}

#[test]
fn somebody_with_our_address_is_not_believed() {
    let mut station = station();
    let mut frame = arp(1, "10.99.0.1");
    frame[28..32].copy_from_slice(&[10, 99, 0, 1]);
    station.receive(at(0), &frame);
    assert_eq!(sent(&mut station).len(), 1);
    assert_eq!(station.route(at(0), &path("10.99.0.1", "10.99.0.1"), 9), Route::Own);
}

/// A neighbour solicitation for fd99::1 from fd99::2, as Linux sends it.
const SOLICITATION: &str = "3333ff000001 020000000009 86dd 60000000 0020 3a ff \
    fd990000000000000000000000000002 ff0200000000000000000001ff000001 \
    8700 0000 00000000 fd990000000000000000000000000001 0101 020000000009";

/// The checksum of an ICMPv6 message, over what the frame says.
fn seal_icmp_v6(frame: &mut [u8]) {
    frame[56..58].fill(0);
    let len = u16::from_be_bytes([frame[18], frame[19]]);
    let mut sum: u32 = u32::from(len) + 58;
    for pair in frame[22..54 + usize::from(len)].chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let sum = !u16::try_from(sum).unwrap();
    frame[56..58].copy_from_slice(&sum.to_be_bytes());
}

fn solicitation() -> Vec<u8> {
    let mut frame = hex(SOLICITATION);
    seal_icmp_v6(&mut frame);
    frame
}

#[test]
fn a_solicitation_is_answered() {
    let mut station = station();
    assert_eq!(station.receive(at(0), &solicitation()), None);
    let mut reply = hex("020000000009 02000a630001 86dd 60000000 0020 3a ff \
         fd990000000000000000000000000001 fd990000000000000000000000000002 \
         8800 0000 60000000 fd990000000000000000000000000001 0201 02000a630001");
    seal_icmp_v6(&mut reply);
    assert_eq!(sent(&mut station), [reply]);
    assert_eq!(station.route(at(0), &path("fd99::1", "fd99::2"), 9), Route::Link(THEIRS));

    // Somebody wants this address: told in public, and not learnt.
    let mut probe = solicitation();
    probe[22..38].fill(0);
    seal_icmp_v6(&mut probe);
    station.receive(at(0), &probe);
    let answers = sent(&mut station);
    assert_eq!(answers[0][..6], [0x33, 0x33, 0, 0, 0, 1]);
    assert_eq!(answers[0][58], 0x20, "not solicited");

    let mut far = solicitation();
    far[21] = 254;
    drops(&mut station, &far, |s| &mut s.malformed);
    let mut wrong = solicitation();
    wrong[56] ^= 1;
    drops(&mut station, &wrong, |s| &mut s.bad_checksum);
    let mut none = solicitation();
    none[79] = 0;
    seal_icmp_v6(&mut none);
    drops(&mut station, &none, |s| &mut s.malformed);
}

#[test]
fn a_datagram_waits_for_its_neighbour() {
    let mut station = station();
    let path = path("10.99.0.1", "10.99.0.2");
    for n in 0..2 {
        assert_eq!(station.route(at(0), &path, 4), Route::Wait(path.dst));
        station.hold(path.dst, &path, 0x100 + n, &[9; 4]);
    }
    station.handle_timeout(at(0));
    let question = "ffffffffffff 02000a630001 0806 0001 0800 06 04 0001 \
                    02000a630001 0a630001 000000000000 0a630002";
    assert_eq!(sent(&mut station), [padded(hex(question))]);
    assert_eq!(station.next_due(), at(1000));
    station.receive(at(3), &arp(2, "10.99.0.1"));
    let held = sent(&mut station);
    for (frame, ident) in held.iter().zip(0x100..) {
        let found = frame::dissect(frame::LinkType::Ethernet, frame).unwrap();
        assert_eq!(frame[..12], [THEIRS.0, OURS.0].concat());
        assert_eq!((found.envelope.ident, found.datagram), (ident, &[9; 4][..]));
        assert_eq!((found.envelope.hop_limit, found.udp_checksum), (64, 0));
    }
    assert_eq!(held.len(), 2);
}

#[test]
fn what_nobody_answers_for_is_lost() {
    let mut station = station();
    for dst in ["10.99.0.3", "fd99::3"] {
        let v4 = ip(dst).is_ipv4();
        let path = path(if v4 { "10.99.0.1" } else { "fd99::1" }, dst);
        let before = *station.stats();
        assert_eq!(station.route(at(0), &path, 4), Route::Wait(path.dst));
        station.hold(path.dst, &path, 0, &[9; 4]);
        for second in 0..3 {
            station.handle_timeout(at(second * 1000));
            assert_eq!(sent(&mut station).len(), 1);
        }
        assert_eq!(*station.stats(), before);
        station.handle_timeout(at(3000));
        let stats = station.stats();
        assert_eq!(stats.unresolved, before.unresolved + 1);
        assert_eq!(stats.send_errors, before.send_errors + 1);
        let why = if v4 { "ARP" } else { "neighbour solicitations" };
        let text = format!("4 bytes to {dst} not sent: no answer to {why} for {dst}");
        assert_eq!(station.last_error.unwrap().to_string(), text);
    }
}

#[test]
fn what_waits_is_bounded() {
    let mut station = station();
    let path = path("10.99.0.1", "10.99.0.2");
    station.route(at(0), &path, 4096);
    for _ in 0..100 {
        station.hold(path.dst, &path, 0, &[9; 4096]);
    }
    let refused = station.stats().send_errors;
    assert!((30..50).contains(&refused), "{refused}");
    station.receive(at(1), &arp(2, "10.99.0.1"));
    assert_eq!(sent(&mut station).len() as u64, 100 - refused);
    // Answers are bounded too: nobody takes them here.
    for _ in 0..100_000 {
        station.receive(at(1), &arp(1, "10.99.0.1"));
    }
    assert!(station.stats().unanswered > 80_000);
}

#[test]
fn datagrams_for_us_are_found() {
    let mut station = station();
    let v4 = envelope("10.99.0.2", "10.99.0.1");
    let v6 = Envelope { flow_label: 0x54321, ..envelope("fd99::2", "fd99::1") };
    for (e, checksum) in [
        (v4, UdpChecksum::Zero),
        (v4, UdpChecksum::Computed),
        (Envelope { df: false, ..v4 }, UdpChecksum::Zero),
        (v6, UdpChecksum::Zero),
        (v6, UdpChecksum::Computed),
    ] {
        let frame = roce(OURS, &e, checksum);
        let (meta, range) = station.receive(at(0), &frame).unwrap();
        assert_eq!(&frame[range], b"not looked into");
        let is_v4 = e.dst.is_ipv4();
        assert_eq!(meta.ident, is_v4.then_some(0x1234));
        assert_eq!((meta.df, meta.gro_index), (Some(e.df), 0));
        let Path { src, dst, src_port, traffic_class, flow_label, .. } = meta.path;
        assert_eq!((src, dst, src_port), (e.src, e.dst, e.src_port));
        assert_eq!((traffic_class, flow_label), (e.traffic_class, e.flow_label));
    }
    assert_eq!(station.stats().received_datagrams, 5);
    assert_eq!(station.stats().received_bytes, 5 * 15);
}

#[test]
fn everything_else_is_counted_for_its_reason() {
    let mut station = station();
    let v4 = envelope("10.99.0.2", "10.99.0.1");
    let good = roce(OURS, &v4, UdpChecksum::Computed);
    let changed = |at: usize, to: u8| {
        let mut frame = good.clone();
        frame[at] = to;
        frame
    };
    drops(&mut station, &changed(5, 9), |s| &mut s.other_station);
    drops(&mut station, &changed(6, 3), |s| &mut s.malformed);
    drops(&mut station, &changed(12, 0x88), |s| &mut s.other_traffic);
    drops(&mut station, &changed(20, 0x20), |s| &mut s.fragments);
    drops(&mut station, &changed(22, 63), |s| &mut s.bad_checksum);
    drops(&mut station, &changed(44, 1), |s| &mut s.bad_checksum);
    drops(&mut station, &changed(23, 6), |s| &mut s.other_traffic);
    drops(&mut station, &changed(36, 0), |s| &mut s.other_traffic);
    drops(&mut station, &changed(39, 200), |s| &mut s.malformed);
    drops(&mut station, &good[..50], |s| &mut s.malformed);
    drops(&mut station, &good[..9], |s| &mut s.malformed);
    let other = roce(OURS, &envelope("10.99.0.2", "10.99.0.9"), UdpChecksum::Zero);
    drops(&mut station, &other, |s| &mut s.wrong_address);
    let group = roce(OURS, &envelope("10.99.0.2", "239.1.2.3"), UdpChecksum::Zero);
    drops(&mut station, &group, |s| &mut s.wrong_address);
    let odd = roce(OURS, &envelope("239.1.2.3", "10.99.0.1"), UdpChecksum::Zero);
    drops(&mut station, &odd, |s| &mut s.malformed);
    let tagged = [&good[..12], &[0x81, 0, 0x60, 5], &good[12..]].concat();
    drops(&mut station, &tagged, |s| &mut s.wrong_vlan);
    // A priority alone is no VLAN.
    let priority = [&good[..12], &[0x81, 0, 0x60, 0], &good[12..]].concat();
    assert!(station.receive(at(0), &priority).is_some());
    assert!(station.receive(at(0), &good).is_some());
}

#[test]
fn what_was_taken_out_of_a_frame_counts_like_what_is_in_it() {
    let v4 = envelope("10.99.0.2", "10.99.0.1");
    let good = roce(OURS, &v4, UdpChecksum::Computed);
    let tagged = [&good[..12], &[0x81, 0, 0x60, 5], &good[12..]].concat();
    let mut in_it = Station::new(StationConfig { vlan: Some(5), ..config() });
    let mut in_none = station();
    let of = |protocol, tag| Aside { tag: Some((protocol, tag)), unsummed: false };
    for (vlan, aside, frame, arrives) in [
        (true, of(0x8100, 0x6005), &good, true),
        (true, of(0x8100, 6), &good, false),
        (true, of(0x88a8, 5), &good, false),
        // One inside another.
        (true, of(0x8100, 5), &tagged, false),
        (false, of(0x8100, 5), &good, false),
        (false, of(0x8100, 0x6000), &good, true),
    ] {
        let station = if vlan { &mut in_it } else { &mut in_none };
        let before = station.stats().wrong_vlan;
        assert_eq!(station.receive_with(at(0), frame, aside).is_some(), arrives, "{aside:?}");
        assert_eq!(station.stats().wrong_vlan - before, u64::from(!arrives));
    }
    // The checksum of UDP is not there yet; that of IP always is.
    let unsummed = Aside { tag: None, unsummed: true };
    let mut frame = good.clone();
    frame[40] ^= 1;
    assert!(in_none.receive_with(at(0), &frame, unsummed).is_some());
    drops(&mut in_none, &frame, |s| &mut s.bad_checksum);
    frame[22] = 63;
    assert_eq!(in_none.receive_with(at(0), &frame, unsummed), None);
}

#[test]
fn a_group_is_heard_while_it_is_joined() {
    let mut station = station();
    for (src, group, mac) in [
        ("10.99.0.2", "239.129.2.3", Mac([0x01, 0, 0x5e, 1, 2, 3])),
        ("fd99::2", "ff0e::1:2", Mac([0x33, 0x33, 0, 1, 0, 2])),
    ] {
        let frame = roce(mac, &envelope(src, group), UdpChecksum::Zero);
        drops(&mut station, &frame, |s| &mut s.other_station);
        station.join(ip(group));
        assert_eq!(station.receive(at(0), &frame).unwrap().0.path.dst, ip(group));
        let ours = if ip(group).is_ipv4() { "10.99.0.1" } else { "fd99::1" };
        assert_eq!(station.route(at(0), &path(ours, group), 9), Route::Link(mac));
        station.leave(ip(group));
        drops(&mut station, &frame, |s| &mut s.other_station);
    }
}

#[test]
fn frames_of_a_vlan_are_tagged() {
    let mut station = Station::new(StationConfig { vlan: Some(5), priority: Some(3), ..config() });
    let good = roce(OURS, &envelope("10.99.0.2", "10.99.0.1"), UdpChecksum::Zero);
    drops(&mut station, &good, |s| &mut s.wrong_vlan);
    let tagged = [&good[..12], &[0x81, 0, 0, 5], &good[12..]].concat();
    let (_, range) = station.receive(at(0), &tagged).unwrap();
    assert_eq!(&tagged[range], b"not looked into");

    let mut buf = vec![0xee; station.frame_space()];
    for (src, dst) in [("10.99.0.1", "10.99.0.2"), ("fd99::1", "fd99::2")] {
        let len = station.write(THEIRS, &path(src, dst), 7, b"whatever", &mut buf);
        assert_eq!(buf[..16], [&THEIRS.0[..], &OURS.0, &[0x81, 0, 0x60, 5]].concat());
        let found = frame::dissect(frame::LinkType::Ethernet, &buf[..len]).unwrap();
        assert_eq!(found.datagram, b"whatever");
        assert_eq!(found.udp_checksum == 0, ip(dst).is_ipv4());
    }
    let request = arp(1, "10.99.0.1");
    station.receive(at(0), &[&request[..12], &[0x81, 0, 0, 5], &request[12..]].concat());
    assert_eq!(sent(&mut station)[0][12..18], [0x81, 0, 0x60, 5, 0x08, 0x06]);
}

#[test]
fn datagrams_go_where_they_should() {
    let mut station =
        Station::new(StationConfig { gateways: vec![ip("10.99.0.254")], mtu: 1500, ..config() });
    let mut route = |src, dst, len| station.route(at(0), &path(src, dst), len);
    assert_eq!(route("10.99.0.1", "10.99.0.2", 1472), Route::Wait(ip("10.99.0.2")));
    assert_eq!(route("10.99.0.1", "10.99.0.2", 1473), Route::None(libc::EMSGSIZE));
    assert_eq!(route("fd99::1", "fd99::2", 1453), Route::None(libc::EMSGSIZE));
    assert_eq!(route("10.99.0.1", "192.0.2.1", 9), Route::Wait(ip("10.99.0.254")));
    assert_eq!(route("fd99::1", "2001:db8::1", 9), Route::None(libc::ENETUNREACH));
    assert_eq!(route("fd99::1", "fe80::1", 9), Route::Wait(ip("fe80::1")));
    assert_eq!(route("10.99.0.9", "10.99.0.2", 9), Route::None(libc::EADDRNOTAVAIL));
    assert_eq!(route("10.99.0.1", "fd99::2", 9), Route::None(libc::EAFNOSUPPORT));
    assert_eq!(route("10.99.0.1", "255.255.255.255", 9), Route::None(libc::EACCES));
    assert_eq!(route("fd99::1", "fd99::1", 9), Route::Own);
}

#[test]
fn pings_are_answered() {
    let mut station = station();
    let ping =
        hex("02000a630001 020000000009 0800 4500 0020 0001 4000 40 01 0000 0a630002 0a630001 \
         0800 0000 0007 0001 70696e67");
    let mut ping = padded(ping);
    let mut ip4 = smoltcp::wire::Ipv4Packet::new_unchecked(&mut ping[14..]);
    ip4.fill_checksum();
    smoltcp::wire::Icmpv4Packet::new_unchecked(&mut ping[34..46]).fill_checksum();
    station.receive(at(0), &ping);
    let answers = sent(&mut station);
    let [pong] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!(pong[..12], [THEIRS.0, OURS.0].concat());
    assert_eq!(pong[26..36], hex("0a630001 0a630002 0000"));
    assert_eq!(pong[38..46], hex("0007 0001 70696e67"));
    let icmp = smoltcp::wire::Icmpv4Packet::new_unchecked(&pong[34..46]);
    assert!(icmp.verify_checksum());
    assert!(smoltcp::wire::Ipv4Packet::new_unchecked(&pong[14..]).verify_checksum());
    ping[40] ^= 1;
    drops(&mut station, &ping, |s| &mut s.bad_checksum);

    let mut ping =
        hex("02000a630001 020000000009 86dd 60000000 000c 3a 40 fd990000000000000000000000000002 \
         fd990000000000000000000000000001 8000 0000 0007 0001 70696e67");
    seal_icmp_v6(&mut ping);
    station.receive(at(0), &ping);
    let mut pong =
        hex("020000000009 02000a630001 86dd 60000000 000c 3a 40 fd990000000000000000000000000001 \
         fd990000000000000000000000000002 8100 0000 0007 0001 70696e67");
    seal_icmp_v6(&mut pong);
    assert_eq!(sent(&mut station), [pong]);
}

#[test]
fn what_is_sent_to_oneself_comes_back_and_is_bounded() {
    let mut station = station();
    let path = path("10.99.0.1", "10.99.0.1");
    station.send_to_self(&path, 7, b"echo");
    let mut buf = [0; 16];
    let (meta, len) = station.take_own(&mut buf).unwrap();
    assert_eq!((&buf[..len], meta.ident, meta.path), (&b"echo"[..], Some(7), path));
    assert!(station.take_own(&mut buf).is_none());
    for _ in 0..2000 {
        station.send_to_self(&path, 7, &[1; 4096]);
    }
    assert_eq!(station.stats().overruns, 2000 - 1024);
}

#[test]
fn prefixes_of_every_length() {
    let net = |text: &str, len| Prefix { ip: ip(text), len };
    assert!(net("10.0.0.1", 32).contains(ip("10.0.0.1")));
    assert!(!net("10.0.0.1", 32).contains(ip("10.0.0.0")));
    assert!(net("10.0.0.1", 1).contains(ip("127.0.0.1")));
    assert!(net("fd00::1", 128).contains(ip("fd00::1")));
    assert!(!net("fd00::1", 127).contains(ip("fd00::2")));
    assert!(!net("fd00::1", 1).contains(ip("10.0.0.1")));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever comes: no panic, one reason for each frame, and a datagram lies within its frame.
    #[test]
    fn frames_from_anywhere_do_no_harm(
        kind in 0usize..6,
        changes in proptest::collection::vec((0usize..120, any::<u8>()), 0..6),
        cut in 0usize..140,
        noise in proptest::collection::vec(any::<u8>(), 0..80),
    ) {
        let v4 = envelope("10.99.0.2", "10.99.0.1");
        let v6 = envelope("fd99::2", "fd99::1");
        let mut frame = match kind {
            0 => arp(1, "10.99.0.1"),
            1 => solicitation(),
            2 => roce(OURS, &v4, UdpChecksum::Computed),
            3 => roce(OURS, &v6, UdpChecksum::Zero),
            4 => [&OURS.0[..], &THEIRS.0, &[0x86, 0xdd], &noise].concat(),
            _ => noise,
        };
        for (at, to) in changes {
            if let Some(byte) = frame.get_mut(at) {
                *byte = to;
            }
        }
        if kind == 1 && frame.len() == 86 && frame[18..20] == [0, 0x20] {
            // Past the checksum, into the options.
            seal_icmp_v6(&mut frame);
        }
        frame.truncate(cut);
        let mut station = station();
        let received = station.receive(at(0), &frame);
        if let Some((_, range)) = &received {
            prop_assert!(range.end <= frame.len());
        }
        let s = *station.stats();
        let dropped = s.other_station + s.wrong_vlan + s.wrong_address + s.fragments
            + s.bad_checksum + s.malformed + s.other_traffic;
        prop_assert_eq!(s.received_datagrams, u64::from(received.is_some()));
        prop_assert!(dropped + s.received_datagrams <= 1);
        station.handle_timeout(at(0) + Duration::from_secs(9));
        prop_assert!(sent(&mut station).len() <= 2);
    }
}
