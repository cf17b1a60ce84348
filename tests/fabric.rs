//! Networks with switches as a program sees them: built by name, with buffers that fill, marks and pauses.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::sync::Arc;

use softroce::cc::{Dcqcn, DcqcnConfig};
use softroce::prelude::*;
use softroce::sim::{
    Cable, HostConfig, Marking, Network, Payload, Receiver, SwitchConfig, Threshold, Topology,
};

#[path = "fabric/courier.rs"]
mod courier;

use courier::Courier;

fn forty() -> HostConfig {
    HostConfig::gbits(40).exact()
}

/// Pauses alone, or marks and pauses that come later.
fn switch(marks: bool) -> SwitchConfig {
    if marks {
        let ecn = Some(Marking::red(5_000, 200_000, 0.01));
        SwitchConfig { threshold: Threshold::Dynamic(8.0), ecn, ..SwitchConfig::default() }
    } else {
        SwitchConfig::default()
    }
}

fn dcqcn() -> Dcqcn {
    Dcqcn::new(DcqcnConfig::preset("paper", 40_000_000_000).unwrap()).unwrap()
}

/// Two pods of two racks, two leaves and a pair of spines: the testbed on which DCQCN was shown.
fn clos(marks: bool) -> Topology {
    let mut t = Topology::new();
    for name in ["t1", "t2", "t3", "t4", "l1", "l2", "l3", "l4", "s1", "s2"] {
        t.switch(name, switch(marks));
    }
    for (a, b) in [("t1", "l1"), ("t1", "l2"), ("t2", "l1"), ("t2", "l2")] {
        t.cable(a, b, Cable::gbits(40));
    }
    for (a, b) in [("t3", "l3"), ("t3", "l4"), ("t4", "l3"), ("t4", "l4")] {
        t.cable(a, b, Cable::gbits(40));
    }
    for leaf in ["l1", "l2", "l3", "l4"] {
        t.cable(leaf, "s1", Cable::gbits(40)).cable(leaf, "s2", Cable::gbits(40));
    }
    t
}

/// Four hosts of the first rack and `extra` of the third send to one of the fourth. The victim sends from the first
/// rack to the second, and shares nothing with them but its way to the leaf.
fn victim(extra: usize, marks: bool) -> Network {
    let mut t = clos(marks);
    for name in ["h1", "h2", "h3", "h4", "vs"] {
        t.host(name, "t1", forty());
    }
    t.host("r", "t4", forty()).host("vr", "t2", forty());
    for n in 0..extra {
        t.host(format!("x{n}"), "t3", forty());
    }
    let net = t.build(1).unwrap();
    for (host, leaf, down) in
        [("h1", "l1", "l3"), ("h2", "l1", "l4"), ("h3", "l2", "l3"), ("h4", "l2", "l4")]
    {
        net.pin("t1", (host, "r"), leaf).unwrap();
        net.pin(leaf, (host, "r"), "s1").unwrap();
        net.pin("s1", (host, "r"), down).unwrap();
    }
    net.pin("t1", ("vs", "vr"), "l1").unwrap();
    for n in 0..extra {
        net.pin("t3", (&format!("x{n}"), "r"), ["l3", "l4"][n % 2]).unwrap();
    }
    net
}

/// What the victim gets, and all who are in its way together, in Gbit/s, and how often somebody asked to pause.
fn run_victim(extra: usize, marks: bool, mtu: Mtu, from: u64, to: u64) -> (f64, f64, u64) {
    let net = victim(extra, marks);
    let mut couriers = vec![Courier::start(&net, "vs", "vr", mtu, marks.then(dcqcn))];
    let others = (1..5).map(|n| format!("h{n}")).chain((0..extra).map(|n| format!("x{n}")));
    couriers.extend(others.map(|host| Courier::start(&net, &host, "r", mtu, marks.then(dcqcn))));
    let at = |ms| {
        net.sim().block_on(net.sim().sleep(Duration::from_millis(ms) - net.sim().now()));
        couriers.iter().map(Courier::verified).collect::<Vec<_>>()
    };
    let (before, after) = (at(from), at(to));
    let rate = |(now, was): (&u64, u64)| (now - was) as f64 * 8.0 / ((to - from) as f64 * 1e6);
    let rates: Vec<f64> = after.iter().zip(before).map(rate).collect();
    assert_eq!(net.sim().total_counters().dropped(), 0, "pauses lose nothing");
    let pauses = net.ports().iter().map(|(_, _, c)| c.pauses_sent()).sum();
    (rates[0], rates[1..].iter().sum(), pauses)
}

/// With pauses alone the victim gets what its neighbours on the way to the leaf get, and they get a share of a host
/// that it does not even talk to: 40/(4 + 2 extra), of which 1024 in 1106 bytes are payload.
#[test]
fn a_program_is_the_victim_of_others_pauses() {
    let share = 1024.0 / 1106.0;
    for extra in [0_u32, 1, 2] {
        let (victim, others, pauses) = run_victim(extra as usize, false, Mtu::B1024, 1, 5);
        let want = 40.0 / f64::from(4 + 2 * extra) * share;
        assert!((victim / want - 1.0).abs() < 0.03, "{victim} with {extra} more, not {want}");
        assert!((others / (40.0 * share) - 1.0).abs() < 0.01, "{others}");
        assert!(pauses > 1000, "{pauses}");
    }
}

/// Who listens to marks slows down before anybody has to pause, and the victim has its way to itself.
#[test]
fn congestion_control_saves_the_victim() {
    let (victim, others, pauses) = run_victim(2, true, Mtu::B4096, 10, 30);
    assert!(victim > 13.5, "{victim}");
    assert!(others > 35.0, "{others}");
    assert_eq!(pauses, 0);
}

#[test]
fn packets_without_payload_take_the_same_time() {
    let run = |payload| {
        let host = HostConfig { payload, ..forty() };
        let net = Topology::star(3, switch(true), &host).build(5).unwrap();
        let mut sides = Vec::new();
        let to = net.host("h2").unwrap();
        let (pd, theirs) = (to.alloc_pd().unwrap(), to.create_cq(16).unwrap());
        let mr = pd.alloc_mr(1 << 20, Access::REMOTE).unwrap();
        for name in ["h0", "h1"] {
            let ctx = net.host(name).unwrap();
            let (mine, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(16).unwrap());
            let qp = mine.create_qp(QpType::Rc, &cq).congestion_control(dcqcn()).build().unwrap();
            let peer = pd.create_qp(QpType::Rc, &theirs).build().unwrap();
            qp.connect(&peer.endpoint()).unwrap();
            peer.connect(&qp.endpoint()).unwrap();
            let from = mine.alloc_mr(1 << 20, Access::LOCAL).unwrap();
            from.fill(0..1 << 20, 0x5a);
            qp.post_send((0..4).map(|id| SendWr::write(id, from.sge(..), mr.remote()))).unwrap();
            qp.post_send(SendWr::read(9, from.sge(..4096), mr.remote())).unwrap();
            sides.push((qp, cq, peer, from));
        }
        for (_, cq, ..) in &sides {
            for _ in 0..5 {
                cq.wait(Duration::from_secs(1)).unwrap().ok().unwrap();
            }
        }
        let counters: Vec<_> = ["h0", "h1", "h2"].map(|h| net.counters("sw", h).unwrap()).into();
        let states: Vec<_> = sides.iter().map(|(qp, ..)| qp.congestion().unwrap()).collect();
        (net.sim().now(), counters, states, mr.to_vec(0..4096))
    };
    let (carried, elided) = (run(Payload::Carried), run(Payload::Elided));
    assert_eq!((&carried.0, &carried.1, &carried.2), (&elided.0, &elided.1, &elided.2));
    assert_eq!((carried.3[0], elided.3[0]), (0x5a, 0), "one of them has moved bytes");
    assert!(carried.1[2].ecn_marked > 0);
}

#[test]
fn every_host_of_the_usual_networks_reaches_every_other() {
    let (config, host, cable) = (switch(false), HostConfig::gbits(100), Cable::gbits(100));
    for (topology, hosts, switches) in [
        (Topology::pair(config.clone(), &host), 2, 1),
        (Topology::star(5, config.clone(), &host), 5, 1),
        (Topology::dumbbell(3, config.clone(), &host, cable), 6, 2),
        (Topology::parking_lot(4, config.clone(), &host, cable), 4, 4),
        (Topology::leaf_spine(3, 2, 4, config.clone(), &host, cable), 12, 5),
        (Topology::fat_tree(4, config, &host, cable), 16, 20),
    ] {
        assert_eq!((topology.hosts().count(), topology.switches().count()), (hosts, switches));
        let net = topology.build(1).unwrap();
        let names: Vec<String> = topology.hosts().map(|(name, ..)| name.to_owned()).collect();
        let sides: Vec<_> = names
            .iter()
            .map(|name| {
                let ctx = net.host(name).unwrap();
                let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(64).unwrap());
                let mr = pd.alloc_mr(64, Access::REMOTE).unwrap();
                (pd, cq, mr)
            })
            .collect();
        for (i, (pd, cq, _)) in sides.iter().enumerate() {
            for (other, theirs, mr) in &sides[i + 1..] {
                let qp = pd.create_qp(QpType::Rc, cq).build().unwrap();
                let peer = other.create_qp(QpType::Rc, theirs).build().unwrap();
                qp.connect(&peer.endpoint()).unwrap();
                peer.connect(&qp.endpoint()).unwrap();
                qp.post_send(SendWr::write(1, inline(b"hello"), mr.remote())).unwrap();
                cq.wait(Duration::from_secs(1)).unwrap().ok().unwrap();
                assert_eq!(mr.to_vec(0..5), b"hello");
            }
        }
        assert_eq!(net.sim().total_counters().dropped(), 0);
    }
}

#[test]
fn networks_that_make_no_sense_are_refused_by_name() {
    let refused = |t: &Topology| {
        let e = t.build(1).map(drop).unwrap_err();
        assert_eq!(e.errno(), Some(22));
        e.to_string()
    };
    let base = || {
        let mut t = Topology::new();
        t.switch("left", switch(false)).host("a", "left", forty());
        t
    };
    let mut t = base();
    t.host("a", "left", forty());
    assert!(refused(&t).contains("a is there twice"), "{}", refused(&t));
    let mut t = base();
    t.host("b", "right", forty());
    assert!(refused(&t).contains("no switch right"), "{}", refused(&t));
    let mut t = base();
    t.switch("right", switch(false)).host("b", "right", forty());
    let why = refused(&t);
    assert!(why.contains("no way from host b to host a"), "{why}");
    let mut t = base();
    t.cable("left", "left", Cable::gbits(40));
    assert!(refused(&t).contains("itself"), "{}", refused(&t));
    let mut t = base();
    t.switch("right", switch(false)).cable("left", "right", Cable::gbits(0));
    assert!(refused(&t).contains("cable left - right: bits_per_s is 0"), "{}", refused(&t));
    let mut t = base();
    t.switch("right", switch(false));
    t.cable("left", "right", Cable::gbits(40)).cable("right", "left", Cable::gbits(40));
    assert!(refused(&t).contains("one already"), "{}", refused(&t));
    let small = SwitchConfig { buffer: 60_000, ..switch(false) };
    let t =
        Topology::star(3, SwitchConfig { threshold: Threshold::Fixed(10_000), ..small }, &forty());
    assert!(refused(&t).contains("headroom of 3 ports is 75000"), "{}", refused(&t));
    let mut slow = forty();
    slow.receiver = Some(Receiver { bits_per_s: 1, buffer: 10, xoff: 20, xon: 5 });
    let t = Topology::star(1, switch(false), &slow);
    assert!(refused(&t).contains("host h0: a receiver with 10 bytes"), "{}", refused(&t));

    let net = base().build(1).unwrap();
    for e in [
        net.host("b").map(drop).unwrap_err(),
        net.counters("a", "b").map(drop).unwrap_err(),
        net.queue("left", "left").map(drop).unwrap_err(),
        net.buffered("a").map(drop).unwrap_err(),
        net.set_cable_up("a", "left", false).unwrap_err(),
        net.pin("left", ("a", "a"), "left").unwrap_err(),
        net.set_receiver("b", None).unwrap_err(),
    ] {
        assert_eq!(e.errno(), Some(22), "{e}");
    }
}

#[test]
fn a_port_can_be_captured_with_its_pauses() {
    let net = Topology::star(3, switch(false), &forty()).build(1).unwrap();
    let file = std::env::temp_dir().join(format!("softroce-port-{}.pcapng", std::process::id()));
    net.pcap("sw", "h0", &file).unwrap();
    let couriers = [("h0", "h2"), ("h1", "h2")]
        .map(|(from, to)| Courier::start(&net, from, to, Mtu::B1024, None));
    net.sim().block_on(net.sim().sleep(Duration::from_millis(1)));
    net.stop_pcaps().unwrap();
    assert!(couriers.iter().all(|c| c.verified() > 0));
    let bytes = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let mut reader = softroce::capture::Reader::new(&bytes[..]).unwrap();
    let (mut pauses, mut packets) = (0, 0);
    while let Some(record) = reader.next_record().unwrap() {
        match record.bytes[12..14] {
            [0x88, 0x08] => pauses += 1,
            _ => packets += 1,
        }
    }
    let counters = net.counters("sw", "h0").unwrap();
    assert_eq!(pauses, counters.tx_pause[0] + counters.tx_xon[0]);
    assert_eq!(packets, counters.tx_packets.iter().sum::<u64>());
    assert!(pauses > 10 && packets > 10);
}

/// What was not sent during a pause is not made up for behind it: a NIC that paces builds no packets that cannot leave.
#[test]
fn a_slow_flow_stays_slow_behind_a_pause() {
    let config = SwitchConfig { threshold: Threshold::Fixed(20_000), ..switch(false) };
    let net = Topology::star(2, config, &forty()).build(1).unwrap();
    let (a, b) = (net.host("h0").unwrap(), net.host("h1").unwrap());
    let (pd, cq, theirs) = (a.alloc_pd().unwrap(), a.create_cq(4).unwrap(), b.alloc_pd().unwrap());
    let ten = softroce::cc::Fixed::bits_per_second(10_000_000_000);
    let qp = pd.create_qp(QpType::Rc, &cq).congestion_control(ten).build().unwrap();
    let peer = theirs.create_qp(QpType::Rc, &b.create_cq(1).unwrap()).build().unwrap();
    let mtu = |peer: &QpEndpoint| QpAttr::default().path_mtu(Mtu::B1024).ah(peer.ah());
    qp.connect_with(&peer.endpoint(), mtu(&peer.endpoint())).unwrap();
    peer.connect_with(&qp.endpoint(), mtu(&qp.endpoint())).unwrap();
    let to = theirs.alloc_mr(1 << 20, Access::REMOTE).unwrap();
    let from = pd.alloc_mr(1 << 20, Access::LOCAL).unwrap();
    let file = std::env::temp_dir().join(format!("softroce-slow-{}.pcapng", std::process::id()));
    net.pcap("h0", "sw", &file).unwrap();
    qp.post_send([SendWr::write(1, from.sge(..), to.remote())]).unwrap();

    let pass = |us| net.sim().block_on(net.sim().sleep(Duration::from_micros(us)));
    pass(100);
    let stalled = Receiver { bits_per_s: 0, buffer: 50_000, xoff: 10_000, xon: 5_000 };
    net.set_receiver("h1", Some(stalled)).unwrap();
    pass(100);
    net.set_receiver("h1", None).unwrap();
    cq.wait(Duration::from_secs(1)).unwrap().ok().unwrap();
    net.stop_pcaps().unwrap();
    let bytes = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let mut reader = softroce::capture::Reader::new(&bytes[..]).unwrap();
    let mut times = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        times.push(record.time.unwrap().as_nanos());
    }
    assert_eq!(times.len(), 1024);
    let gaps: Vec<u64> = times.windows(2).map(|w| w[1] - w[0]).collect();
    // A packet takes 884.8 ns at 10 Gbit/s; 200 ns of being late are made up for.
    let (least, most) = (gaps.iter().min().unwrap(), gaps.iter().max().unwrap());
    assert!(*most > 40_000, "it was paused: {most}");
    assert!(*least >= 684, "{least}");
    assert_eq!(gaps.iter().filter(|&&gap| gap < 880).count(), 1, "{gaps:?}");
}

/// Answers that wait for a line that is busy with data do not keep time from passing: three small WRITEs arrive, and are
/// acknowledged, within one packet of what the host itself sends.
#[test]
fn acknowledgements_wait_for_a_busy_line() {
    let net = Topology::star(5, switch(false), &forty()).build(1).unwrap();
    let ends: Vec<_> = (0..5)
        .map(|n| {
            let ctx = net.host(&format!("h{n}")).unwrap();
            let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(64).unwrap());
            let mr = pd.alloc_mr(4 << 20, Access::REMOTE | Access::LOCAL).unwrap();
            (pd, cq, mr)
        })
        .collect();
    let connected = |from: usize, to: usize| {
        let qp = ends[from].0.create_qp(QpType::Rc, &ends[from].1).build().unwrap();
        let peer = ends[to].0.create_qp(QpType::Rc, &ends[to].1).build().unwrap();
        qp.connect(&peer.endpoint()).unwrap();
        peer.connect(&qp.endpoint()).unwrap();
        (qp, peer)
    };
    let (bulk, small) = (connected(0, 1), [2, 3, 4].map(|from| connected(from, 0)));
    bulk.0.post_send([SendWr::write(1, ends[0].2.sge(..), ends[1].2.remote())]).unwrap();
    let rounds = 20;
    for round in 0..rounds {
        for (qp, _) in &small {
            qp.post_send([SendWr::write(round, inline(b"x"), ends[0].2.remote())]).unwrap();
        }
        net.sim().block_on(net.sim().sleep(Duration::from_micros(10)));
    }
    ends[0].1.wait(Duration::from_secs(1)).unwrap().ok().unwrap();
    for (_, cq, _) in &ends[2..] {
        for _ in 0..rounds {
            cq.wait(Duration::from_secs(1)).unwrap().ok().unwrap();
        }
    }
}

/// The same seed gives the same packets, by whatever way.
#[test]
fn equal_seeds_give_equal_networks() {
    let run = |seed| {
        let host = HostConfig::gbits(100);
        let t = Topology::leaf_spine(2, 2, 2, switch(true), &host, Cable::gbits(40));
        let net = t.build(seed).unwrap();
        let couriers = [("h0", "h2"), ("h1", "h2"), ("h3", "h0")]
            .map(|(from, to)| Courier::start(&net, from, to, Mtu::B4096, Some(dcqcn())));
        net.sim().block_on(net.sim().sleep(Duration::from_millis(2)));
        assert!(couriers.iter().all(|c| c.verified() > 0));
        net.sim().trace_hash()
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

/// A leaf whose one way up is cut uses the other; connections notice nothing but their lost packets.
#[test]
fn a_cable_that_is_pulled_is_gone_around() {
    let host = HostConfig::gbits(40);
    let t = Topology::leaf_spine(2, 2, 1, switch(false), &host, Cable::gbits(40));
    let net = Arc::new(t.build(1).unwrap());
    let courier = Courier::start(&net, "h0", "h1", Mtu::B1024, None);
    let pass = |ms| net.sim().block_on(net.sim().sleep(Duration::from_millis(ms)));
    pass(1);
    let way = |spine: &str| net.counters("leaf0", spine).unwrap().tx_packets[0];
    let first = if way("spine0") > 0 { "spine0" } else { "spine1" };
    net.set_cable_up("leaf0", first, false).unwrap();
    let (before, used) = (courier.verified(), way(first));
    // What comes the other way tells the receiver what is missing.
    pass(3);
    assert!(courier.verified() > before + (1 << 20));
    assert_eq!(way(first), used);
    assert!(net.sim().total_counters().down_drops > 0);
}
