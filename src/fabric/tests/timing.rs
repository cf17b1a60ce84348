//! Addresses, lines, queues, cables: when what arrives where.

use super::*;

#[test]
fn a_packet_takes_two_lines_and_two_delays() {
    let (mut net, [a, b]) = network(1, [FORTY; 2]);
    let bytes = datagram(0x04, 1, &[7; 1024]);
    assert_eq!(bytes.len(), DATA);
    let t = Transmit { path: path(a, b), ident: 0xfffe, len: DATA, segment_size: None };
    net.send(ns(100), a, &t, &bytes);
    assert_eq!(net.in_flight(), 1);
    // 100 + 221.2 + 1000, and the same again.
    assert_eq!(net.next_event(), Some(ns(1322)));
    let arrived = settle(&mut net);
    let meta = RxMeta { path: path(a, b), ident: Some(0xfffe), df: Some(true), gro_index: 0 };
    assert_eq!(arrived, [(2543, b, meta, bytes)]);
    assert_eq!(net.in_flight(), 0);
}

#[test]
fn the_slower_line_sets_the_pace() {
    let slow = Link { bits_per_s: 1_000_000_000, ..FORTY };
    let (mut net, [a, b]) = network(1, [FORTY, slow]);
    burst(&mut net, a, b, 3);
    let times: Vec<_> = settle(&mut net).iter().map(|a| a.0).collect();
    // 222 + 1000 to the switch, then 8848 ns each.
    assert_eq!(times, [1222 + 8848 + 1000, 1222 + 2 * 8848 + 1000, 1222 + 3 * 8848 + 1000]);
}

#[test]
fn line_rate_is_exact() {
    let (mut net, [a, b]) = network(1, [FORTY; 2]);
    burst(&mut net, a, b, 10_000);
    let arrived = settle(&mut net);
    assert_eq!(arrived.len(), 10_000);
    // The first is there after two line times and two delays, each further one 221.2 ns later.
    let first = arrived[0].0;
    for (i, (at, ..)) in arrived.iter().enumerate() {
        let exact = (i as u64 * 2212).div_ceil(10);
        assert!(at.abs_diff(first + exact) <= 1, "packet {i}: {at}");
    }
}

#[test]
fn segments_become_packets_of_their_own() {
    let (mut net, [a, b]) = network(1, [FORTY; 2]);
    let bytes: Vec<u8> = (0..250).map(|i| u8::try_from(i).unwrap()).collect();
    let t = Transmit { path: path(a, b), ident: 0xffff, len: 250, segment_size: Some(100) };
    net.send(ns(0), a, &t, &bytes);
    let got: Vec<_> = settle(&mut net).into_iter().map(|(_, _, m, b)| (m.ident, b)).collect();
    let expected: Vec<_> =
        [0xffff, 0, 1].into_iter().map(Some).zip(bytes.chunks(100).map(<[u8]>::to_vec)).collect();
    assert_eq!(got, expected);

    // Over IPv6 there is no identification to count.
    let v6 = ["fd00::1".parse().unwrap(), "fd00::2".parse().unwrap()];
    net.attach(a, v6[0]).unwrap();
    net.attach(b, v6[1]).unwrap();
    let path = Path { src: v6[0], dst: v6[1], flow_label: 0x12345, ..path(a, b) };
    net.send(ns(0), a, &Transmit { path, ident: 0, ..t }, &bytes);
    let got = settle(&mut net);
    assert!(got.iter().all(|(_, _, m, _)| m.ident == Some(0) && m.path == path));
    assert_eq!(got.len(), 3);
}

#[test]
fn empty_and_short_transmits() {
    let (mut net, [a, b]) = network(1, [FORTY; 2]);
    let t = Transmit { path: path(a, b), ident: 0, len: 0, segment_size: None };
    net.send(ns(0), a, &t, &[]);
    net.send(ns(0), a, &Transmit { segment_size: Some(8), ..t }, &[]);
    net.send(ns(0), a, &Transmit { len: 100, ..t }, &[1, 2, 3]);
    net.send(ns(0), a, &Transmit { len: 2, segment_size: Some(0), ..t }, &[1, 2, 3]);
    let got: Vec<_> = settle(&mut net).into_iter().map(|(.., b)| b).collect();
    assert_eq!(got, [&[][..], &[1, 2, 3], &[1], &[2]]);
}

#[test]
fn addresses_lead_to_their_host() {
    let (mut net, [a, b]) = network(1, [FORTY; 2]);
    assert_eq!(net.attach(a, ip(a)), Ok(()), "its own already");
    assert_eq!(net.attach(a, ip(b)), Err(FabricError::AddressInUse { addr: ip(b), owner: b }),);
    let mapped: IpAddr = "::ffff:10.0.0.2".parse().unwrap();
    assert_eq!(
        net.attach(a, mapped).unwrap_err().to_string(),
        "::ffff:10.0.0.2 belongs to host 1",
        "the same GID"
    );
    let v6 = "fd00::1".parse().unwrap();
    net.attach(a, v6).unwrap();
    assert_eq!(net.addresses(a), Ok(&[ip(a), v6][..]));
    assert_eq!(net.addresses(b), Ok(&[ip(b)][..]));
    for nobody in ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255", "::ffff:224.0.0.1"] {
        let addr = nobody.parse().unwrap();
        assert_eq!(net.attach(a, addr), Err(FabricError::NotUnicast(addr)));
    }

    // To oneself through the switch, like anything else.
    send(&mut net, 0, a, a, &datagram(0x04, 5, &[0; 1024]));
    let arrived = settle(&mut net);
    assert_eq!((arrived.len(), arrived[0].0, arrived[0].1), (1, 2443, a));

    let unknown = Path { dst: [10, 9, 9, 9].into(), ..path(a, b) };
    let t = Transmit { path: unknown, ident: 0, len: 16, segment_size: None };
    net.send(ns(0), a, &t, &[0; 16]);
    assert!(settle(&mut net).is_empty());
    assert_eq!(net.counters(a).no_route, 1);
    balance(&net);
}

#[test]
fn nobody_by_that_number() {
    let (mut net, [_, b]) = network(1, [FORTY; 2]);
    let no = HostId(2);
    assert_eq!(net.hosts(), 2);
    assert_eq!(net.attach(no, ip(no)), Err(FabricError::NoSuchHost(no)));
    assert_eq!(net.set_link(no, FORTY), Err(FabricError::NoSuchHost(no)));
    assert_eq!(net.set_up(no, true), Err(FabricError::NoSuchHost(no)));
    assert_eq!(net.is_up(no).unwrap_err().to_string(), "there is no host 2");
    assert_eq!(net.addresses(no), Err(FabricError::NoSuchHost(no)));
    assert_eq!(net.queued(no, Direction::Up), Err(FabricError::NoSuchHost(no)));
    assert_eq!(net.link(no, Direction::Up), Err(FabricError::NoSuchHost(no)));
    assert_eq!(net.set_link(b, Link { mtu: 9, ..FORTY }), Err(FabricError::Mtu(9)));
    assert_eq!(
        net.add_host(Link { loss: 2.0, ..FORTY }).unwrap_err().to_string(),
        "loss is 2: not a probability, which is 0 to 1"
    );
    assert_eq!(net.hosts(), 2);
}

#[test]
fn packets_above_the_mtu_are_dropped_on_either_side() {
    let small = Link { mtu: 1500, ..FORTY };
    let (mut net, [a, b]) = network(1, [FORTY, small]);
    send(&mut net, 0, a, b, &[0; 1472]);
    send(&mut net, 0, a, b, &[0; 1473]);
    send(&mut net, 0, b, a, &[0; 1473]);
    send(&mut net, 0, a, b, &[0; 8973]);
    let arrived = settle(&mut net);
    assert_eq!(arrived.len(), 1);
    assert_eq!(arrived[0].3.len(), 1472);
    // Counted at the cable that is too narrow: at the receiver's, the sender's, and the sender's.
    assert_eq!((net.counters(a).mtu_drops, net.counters(b).mtu_drops), (1, 2));
    balance(&net);
}

#[test]
fn a_full_queue_drops_the_tail() {
    // Two hosts at 40 Gbit/s into one line of 40: half of it waits.
    let narrow = Link { queue: 10 * 1086, ..FORTY };
    let (mut net, [a, b, c]) = network(1, [FORTY, FORTY, narrow]);
    burst(&mut net, a, c, 100);
    burst(&mut net, b, c, 100);
    let mut arrived = Vec::new();
    let mut longest = 0;
    while let Some(at) = net.next_event() {
        step_to(&mut net, at, &mut arrived);
        longest = longest.max(net.queued(c, Direction::Down).unwrap());
    }
    assert!((9 * 1086..=10 * 1086).contains(&longest), "{longest}: filled to the brim");
    let drops = net.counters(c).queue_drops;
    assert_eq!(arrived.len() as u64 + drops, 200);
    // When the last two come, 99 have begun to go down and ten wait.
    assert_eq!(drops, 91);
    assert_eq!(net.counters(c).delivered, 200 - drops);
    balance(&net);
}

#[test]
fn long_queues_mark_what_can_be_marked() {
    let marking = Link { ecn_at: 5 * 1086, ..FORTY };
    let (mut net, [a, b, c]) = network(1, [FORTY, FORTY, marking]);
    for psn in 0..20 {
        let bytes = datagram(0x04, psn, &[0; 1024]);
        send(&mut net, 0, a, c, &bytes);
        let t = Transmit { path: path(b, c), ident: 0, len: DATA, segment_size: None };
        let not_ect = Path { traffic_class: 0x68, ..t.path };
        net.send(ns(0), b, &Transmit { path: not_ect, ..t }, &bytes);
    }
    let arrived = settle(&mut net);
    let of = |host| arrived.iter().filter(move |p| p.2.path.src == ip(host));
    assert!(of(b).all(|p| p.2.path.traffic_class == 0x68), "not ECN-capable: left alone");
    let marks: Vec<bool> = of(a).map(|p| p.2.path.ecn() == Ecn::Ce).collect();
    // Two come in the time in which one leaves. Packet n of the forty that leave, counted from 0, leaves
    // n + 2 behind, itself included, until all are there; then 40 - n. From a come the even ones.
    let expected: Vec<bool> = (0..20).map(|i| (2 * i + 2).min(40 - 2 * i) > 5).collect();
    assert_eq!(marks, expected);
    assert_eq!(net.counters(c).ecn_marked, marks.iter().filter(|&&m| m).count() as u64);

    net.set_link(c, Link { ecn_at: 0, ..FORTY }).unwrap();
    send(&mut net, 0, a, c, &[0; 100]);
    assert_eq!(settle(&mut net)[0].2.path.ecn(), Ecn::Ce, "0 marks everything");
}

#[test]
fn a_link_that_goes_down_takes_everything_with_it() {
    let (mut net, [a, b]) = network(1, [FORTY, Link { bits_per_s: 4_000_000_000, ..FORTY }]);
    burst(&mut net, a, b, 10);
    // At 7 us two have arrived, one or more are on the line or the cable, the others wait.
    net.advance(ns(7_000));
    assert_eq!((net.counters(b).delivered, net.in_flight()), (2, 8));
    net.set_up(b, false).unwrap();
    net.set_up(b, true).unwrap();
    send(&mut net, 7_000, a, b, &datagram(0x04, 99, &[]));
    let arrived = psns(&mut net);
    assert_eq!(arrived, [0, 1, 99], "what was on the cable is gone, even if it is back at once");
    assert_eq!(net.counters(b).down_drops, 8);

    net.set_up(b, false).unwrap();
    assert_eq!(net.is_up(b), Ok(false));
    send(&mut net, 0, a, b, &[0; 50]);
    send(&mut net, 0, b, a, &[0; 50]);
    assert!(settle(&mut net).is_empty());
    assert_eq!(net.counters(b).down_drops, 10);
    // The sender of what it cannot send is the one that it is counted at.
    net.set_up(b, true).unwrap();
    net.set_up(a, false).unwrap();
    send(&mut net, 0, a, b, &[0; 50]);
    assert!(settle(&mut net).is_empty());
    assert_eq!(net.counters(a).down_drops, 1);
    balance(&net);
}

#[test]
fn a_new_cable_holds_for_what_comes() {
    let (mut net, [a, b]) = network(1, [FORTY; 2]);
    send(&mut net, 0, a, b, &datagram(0x04, 1, &[0; 1024]));
    net.advance(ns(100));
    net.set_link(a, Link { delay: Duration::ZERO, ..FORTY }).unwrap();
    send(&mut net, 100, a, b, &datagram(0x04, 2, &[0; 1024]));
    // The first was under way with the old delay. The second has none, but does not overtake: both are at
    // the switch at 1221.2, and down it takes two line times.
    assert_eq!(psns(&mut net), [1, 2]);
    assert_eq!(net.now(), ns(1221 + 443 + 1000));
}

#[test]
fn room_is_asked_for_and_announced() {
    let (mut net, [a, b]) = network(1, [FORTY; 2]);
    assert!(net.has_room(a));
    let mut sent = 0;
    while net.has_room(a) {
        send(&mut net, 0, a, b, &datagram(0x04, sent, &[0; 1024]));
        sent += 1;
    }
    // One is on the line, and 64 KiB wait.
    assert_eq!(sent, 1 + (64u32 << 10).div_ceil(1086));
    let mut woken = Vec::new();
    net.take_woken(&mut woken);
    assert!(woken.is_empty());
    while !woken.contains(&a) {
        net.advance(net.next_event().unwrap());
        net.take_woken(&mut woken);
    }
    assert_eq!(net.queued(a, Direction::Up), Ok(30 * 1086), "half of it");
    assert!(net.has_room(a));

    while net.has_room(a) {
        send(&mut net, 0, a, b, &[0; 1024]);
    }
    woken.clear();
    net.set_up(a, false).unwrap();
    net.take_woken(&mut woken);
    assert_eq!(woken, [a], "a link that is down takes anything");
    assert!(net.has_room(a));
    assert_eq!(net.queued(a, Direction::Up), Ok(0));
}

#[test]
fn a_buffer_too_small_is_counted() {
    let (mut net, [a, b]) = network(1, [FORTY; 2]);
    send(&mut net, 0, a, b, &[1; 100]);
    send(&mut net, 0, a, b, &[2; 50]);
    net.advance(ns(1_000_000));
    assert_eq!(net.inbox_len(b), 2);
    let mut buf = [0; 64];
    let (_, len) = net.recv(b, &mut buf).unwrap();
    assert_eq!(buf[..len], [2; 50]);
    assert_eq!(net.recv(b, &mut buf), None);
    assert_eq!((net.counters(b).truncated, net.counters(b).delivered), (1, 2));
    balance(&net);
}

#[test]
fn sending_late_moves_time_and_sending_early_does_not() {
    let (mut net, [a, b]) = network(1, [FORTY; 2]);
    send(&mut net, 0, a, b, &[0; 50]);
    send(&mut net, 10_000, a, b, &[0; 50]);
    assert_eq!((net.now(), net.counters(b).delivered), (ns(10_000), 1));
    send(&mut net, 5, a, b, &[0; 50]);
    assert_eq!(net.now(), ns(10_000));
    let arrived = settle(&mut net);
    assert_eq!(arrived.len(), 3);
    assert!(arrived[2].0 > 12_000);
}
