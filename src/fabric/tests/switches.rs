//! Switches with buffers: shares, marks, pauses, ways.

use super::*;
use crate::fabric::moment::Moment;
use crate::fabric::pause::PauseFrame;
use crate::fabric::trace::PacketSink;

const G: u64 = 1_000_000_000;
/// Line and frame bytes of what the sources send.
const WIRE: f64 = 1106.0;

/// Hosts that send as much as they can, and what arrives from whom.
struct Play {
    net: Fabric,
    /// Sender, path, and how often it has sent.
    flows: Vec<(HostId, Path, u64)>,
    received: Vec<u64>,
    marked: Vec<u64>,
}

fn on(net: &mut Fabric, at: SwitchId) -> HostId {
    let link = Link { bits_per_s: 40 * G, delay: Duration::from_micros(1), ..Link::default() };
    let with = Cabling { link, nic_queue: 1, priorities: PriorityMap::default(), tag: None };
    let host = net.add_host_at(at, &with).unwrap();
    net.attach(host, ip(host)).unwrap();
    host
}

fn trunk() -> Link {
    Link { bits_per_s: 40 * G, delay: Duration::from_micros(1), ..Link::default() }
}

impl Play {
    fn new(net: Fabric) -> Self {
        Self { net, flows: Vec::new(), received: Vec::new(), marked: Vec::new() }
    }

    fn flow(&mut self, from: HostId, to: HostId, traffic_class: u8) {
        // Told apart by its port.
        let src_port = u16::try_from(self.flows.len()).unwrap();
        self.flows.push((from, Path { traffic_class, src_port, ..path(from, to) }, 0));
        self.received.push(0);
        self.marked.push(0);
    }

    /// All senders whose NICs have room send a packet, in turn.
    fn fill(&mut self) {
        for at in 0..self.flows.len() {
            let (from, path, n) = self.flows[at];
            while self.flows[at].2 < u64::MAX && self.net.has_room(from) {
                let ident = u16::try_from(n & 0xffff).unwrap();
                let t = Transmit { path, ident, len: DATA, segment_size: None };
                self.net.send(self.net.now(), from, &t, &[0x24; DATA]);
                self.flows[at].2 += 1;
            }
        }
    }

    fn stop(&mut self) {
        self.flows.iter_mut().for_each(|flow| flow.2 = u64::MAX);
    }

    fn run_to(&mut self, until: Instant) {
        let (mut woken, mut buf) = (Vec::new(), [0; 2048]);
        loop {
            self.fill();
            let Some(next) = self.net.next_event().filter(|&next| next <= until) else { break };
            self.net.advance(next);
            self.net.take_woken(&mut woken);
            for host in woken.drain(..) {
                while let Some((meta, _)) = self.net.recv(host, &mut buf) {
                    self.received[usize::from(meta.path.src_port)] += 1;
                    let ce = meta.path.ecn() == Ecn::Ce;
                    self.marked[usize::from(meta.path.src_port)] += u64::from(ce);
                }
            }
        }
        self.net.advance(until);
    }

    /// Gbit/s of wire bytes that arrive of each flow between two moments.
    fn rates(&mut self, from: Duration, to: Duration) -> Vec<f64> {
        self.run_to(Instant::ZERO + from);
        let before = self.received.clone();
        self.run_to(Instant::ZERO + to);
        let ns = (to - from).as_nanos() as f64;
        let count = self.received.iter().zip(before).map(|(now, was)| (now - was) as f64);
        count.map(|n| n * WIRE * 8.0 / ns).collect()
    }
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn close(got: f64, want: f64, share: f64) {
    assert!((got - want).abs() <= want * share, "{got} is not {want} within {share}");
}

/// Each port by which packets come gets the same share, however many flows are behind it.
#[test]
fn pauses_share_by_port_and_lose_nothing() {
    for (uplinks, want) in
        [([0, 0, 0], [6.667, 6.667, 6.667, 20.0]), ([0, 0, 1], [6.667, 6.667, 13.333, 13.333])]
    {
        let mut net = Fabric::new(1);
        let [t4, l3, l4] = [(); 3].map(|()| net.add_switch(SwitchConfig::default()).unwrap());
        for leaf in [l3, l4] {
            net.connect(leaf, t4, trunk()).unwrap();
        }
        let (r, h4) = (on(&mut net, t4), on(&mut net, t4));
        let mut play = Play::new(net);
        for up in uplinks {
            let h = on(&mut play.net, [l3, l4][up]);
            play.flow(h, r, 2);
        }
        play.flow(h4, r, 2);
        play.net.check().unwrap();
        let rates = play.rates(ms(1), ms(5));
        for (got, want) in rates.iter().zip(want) {
            close(*got, want, 0.02);
        }
        close(rates.iter().sum(), 40.0, 0.001);
        assert_eq!(play.net.totals().dropped(), 0);
        let port = play.net.port_of(h4).unwrap();
        let counters = play.net.port_counters(port).unwrap();
        assert!(counters.rx_pause[0] > 100 && counters.rx_pause_ns[0] > 0, "{counters:?}");
        let (now, peak) = play.net.buffered(t4).unwrap();
        // Three ports' thresholds and what was on its way.
        assert!(now <= peak && peak < 3 * 125_000, "{peak}");
    }
}

#[test]
fn nothing_is_lost_with_headroom_and_what_is_lost_without_is_told() {
    for (headroom, lossless) in [(25_000, true), (4_000, false)] {
        let mut net = Fabric::new(1);
        let config = SwitchConfig { headroom, ..SwitchConfig::default() };
        let s = net.add_switch(config).unwrap();
        let [a, b, r] = [(); 3].map(|()| on(&mut net, s));
        let mut play = Play::new(net);
        play.flow(a, r, 2);
        play.flow(b, r, 2);
        play.run_to(Instant::ZERO + ms(2));
        let port = play.net.port_to(r).unwrap();
        let counters = play.net.port_counters(port).unwrap();
        assert_eq!(counters.drops_over_share == 0, lossless, "{counters:?}");
        assert_eq!(counters.drops(), counters.drops_over_share);
        assert_eq!(play.net.totals().dropped(), counters.drops());
    }
}

#[test]
fn who_may_not_pause_drops() {
    let mut net = Fabric::new(1);
    let config = SwitchConfig {
        pfc: None,
        headroom: 0,
        buffer: 300_000,
        threshold: Threshold::Dynamic(8.0),
        ..SwitchConfig::default()
    };
    let s = net.add_switch(config).unwrap();
    let hosts: Vec<_> = (0..5).map(|_| on(&mut net, s)).collect();
    let mut play = Play::new(net);
    for &h in &hosts[1..] {
        play.flow(h, hosts[0], 2);
    }
    let rates = play.rates(ms(1), ms(2));
    close(rates.iter().sum(), 40.0, 0.001);
    let port = play.net.port_to(hosts[0]).unwrap();
    let counters = play.net.port_counters(port).unwrap();
    assert!(counters.drops_full + counters.drops_over_share > 1000, "{counters:?}");
    assert_eq!(counters.pauses_sent(), 0);
    let (_, peak) = play.net.buffered(s).unwrap();
    assert!(peak <= 300_000 && peak > 200_000, "{peak}");
    assert_eq!(play.net.totals().queue_drops, counters.drops());
}

#[test]
fn marks_begin_at_kmin_and_are_certain_above_kmax() {
    for (marking, share) in [
        (Marking::step(20_000), 1.0..1.01),
        (Marking::red(5_000, 10_000_000, 0.5), 0.001..0.02),
        (Marking { at: MarkAt::Enqueue, ..Marking::step(20_000) }, 0.99..1.01),
        (Marking { at: MarkAt::AfterDequeue, ..Marking::step(20_000) }, 0.99..1.01),
        (Marking { priorities: 0b10, ..Marking::step(0) }, 0.0..0.0001),
    ] {
        let mut net = Fabric::new(1);
        let config = SwitchConfig { ecn: Some(marking), ..SwitchConfig::default() };
        let s = net.add_switch(config).unwrap();
        let [a, b, r] = [(); 3].map(|()| on(&mut net, s));
        let mut play = Play::new(net);
        play.flow(a, r, 2);
        play.flow(b, r, 0);
        play.run_to(Instant::ZERO + ms(1));
        let (got, marked) = (play.received.clone(), play.marked.clone());
        play.run_to(Instant::ZERO + ms(4));
        let seen = (play.marked[0] - marked[0]) as f64 / (play.received[0] - got[0]) as f64;
        assert!(share.contains(&seen), "{marking:?}: {seen}");
        assert_eq!(play.marked[1], 0, "not ECN-capable");
        let port = play.net.port_to(r).unwrap();
        let counted = play.net.port_counters(port).unwrap().ecn_marked;
        // But for what waits or is on its way.
        assert!(counted.abs_diff(play.marked[0]) < 300, "{counted} {}", play.marked[0]);
    }
}

#[test]
fn what_cannot_be_marked_may_be_dropped() {
    let mut net = Fabric::new(1);
    let ecn = Some(Marking { drop_not_ect: true, ..Marking::step(20_000) });
    let s = net.add_switch(SwitchConfig { ecn, ..SwitchConfig::default() }).unwrap();
    let [a, b, r] = [(); 3].map(|()| on(&mut net, s));
    let mut play = Play::new(net);
    play.flow(a, r, 2);
    play.flow(b, r, 0);
    play.run_to(Instant::ZERO + ms(1));
    let port = play.net.port_to(r).unwrap();
    let counters = play.net.port_counters(port).unwrap();
    assert!(counters.drops_not_ect > 100, "{counters:?}");
    assert_eq!(counters.drops(), counters.drops_not_ect);
    play.stop();
    play.run_to(Instant::ZERO + ms(2));
    assert_eq!(play.net.buffered(s).unwrap().0, 0, "what was dropped is not held");
}

/// DSCP 8 is priority 1, DSCP 16 priority 2, DSCP 48 priority 6.
#[test]
fn priorities_share_by_weight_and_strict_ones_come_first() {
    let mut net = Fabric::new(1);
    let mut scheduler = Scheduler::default();
    scheduler.quantum[1] = 3 * 2000;
    scheduler.quantum[2] = 2000;
    // All lossless, so that nobody gets less by being dropped more.
    let pfc = Some(Pfc { priorities: 0xff, ..Pfc::default() });
    let s = net.add_switch(SwitchConfig { scheduler, pfc, ..SwitchConfig::default() }).unwrap();
    let hosts: Vec<_> = (0..4).map(|_| on(&mut net, s)).collect();
    let mut play = Play::new(net);
    play.flow(hosts[1], hosts[0], 8 << 2);
    play.flow(hosts[2], hosts[0], 16 << 2);
    let rates = play.rates(ms(1), ms(3));
    close(rates[0], 30.0, 0.01);
    close(rates[1], 10.0, 0.01);
    play.flow(hosts[3], hosts[0], 48 << 2);
    let rates = play.rates(ms(4), ms(5));
    close(rates[2], 40.0, 0.001);
    assert!(rates[0] + rates[1] < 0.1, "{rates:?}");
}

/// What the tag says and what the DSCP says may differ, and a switch that looks at the wrong one pauses the wrong
/// priority.
#[test]
fn a_switch_goes_by_the_tag_or_by_the_dscp() {
    for (trust, tagged, priority) in
        [(Trust::Dscp, true, 3), (Trust::Pcp, true, 5), (Trust::Pcp, false, 0)]
    {
        let mut net = Fabric::new(1);
        let pfc = Some(Pfc { priorities: 1 << 5, ..Pfc::default() });
        let config =
            SwitchConfig { trust, pfc, headroom: 0, buffer: 300_000, ..SwitchConfig::default() };
        let s = net.add_switch(config).unwrap();
        let link = Link { bits_per_s: 40 * G, delay: Duration::from_micros(1), ..Link::default() };
        let tag = tagged.then(|| PriorityMap::default().with(26, 5).unwrap());
        let with = Cabling { link, nic_queue: 1, priorities: PriorityMap::all(5).unwrap(), tag };
        let hosts = [(); 3].map(|()| {
            let host = net.add_host_at(s, &with).unwrap();
            net.attach(host, ip(host)).unwrap();
            host
        });
        let mut play = Play::new(net);
        play.flow(hosts[0], hosts[2], 26 << 2 | 2);
        play.flow(hosts[1], hosts[2], 26 << 2 | 2);
        play.run_to(Instant::ZERO + ms(1));
        let port = play.net.port_to(hosts[2]).unwrap();
        let counters = play.net.port_counters(port).unwrap();
        let used: Vec<_> = (0..8).filter(|&p| counters.tx_packets[p] > 0).collect();
        assert_eq!(used, [priority]);
        let frame = counters.tx_bytes[priority] / counters.tx_packets[priority];
        assert_eq!(frame, if tagged { 1090 } else { 1086 });
        let asked = play.net.port_counters(play.net.port_to(hosts[0]).unwrap()).unwrap();
        assert_eq!(asked.tx_pause[5] > 0, priority == 5);
        assert_eq!(asked.pauses_sent(), asked.tx_pause[5]);
    }
}

#[test]
fn flows_spread_over_equal_ways_and_leave_those_that_are_cut() {
    let mut net = Fabric::new(3);
    let config = SwitchConfig::default;
    let [a, b, up, other] = [(); 4].map(|()| net.add_switch(config()).unwrap());
    let trunks = [(a, up), (up, b), (a, other), (other, b)]
        .map(|(x, y)| net.connect(x, y, trunk()).unwrap());
    let (from, to) = (on(&mut net, a), on(&mut net, b));
    let mut play = Play::new(net);
    for _ in 0..200 {
        play.flow(from, to, 2);
    }
    let sent = |play: &Play, trunk: TrunkId| {
        let [there, _] = play.net.ports_of(trunk).unwrap();
        play.net.port_counters(there).unwrap().tx_packets[0]
    };
    let send_all = |play: &mut Play| {
        for at in 0..200 {
            let t = Transmit { path: play.flows[at].1, ident: 0, len: DATA, segment_size: None };
            play.net.send(play.net.now(), from, &t, &[0; DATA]);
        }
        play.stop();
        let until = play.net.now() + ms(1);
        play.run_to(until);
    };
    send_all(&mut play);
    let (first, second) = (sent(&play, trunks[0]), sent(&play, trunks[2]));
    assert_eq!(first + second, 200);
    assert!((60..140).contains(&first), "{first} of 200");
    assert!(play.received.iter().all(|&n| n == 1));

    play.net.set_trunk_up(trunks[3], false).unwrap();
    send_all(&mut play);
    assert_eq!((sent(&play, trunks[0]), sent(&play, trunks[2])), (first + 200, second));
    play.net.set_trunk_up(trunks[1], false).unwrap();
    assert_eq!(play.net.check(), Err(FabricError::NoWay { from: to, to: from }));
    send_all(&mut play);
    assert_eq!(play.net.counters(from).no_route, 200);

    play.net.set_trunk_up(trunks[1], true).unwrap();
    play.net.set_trunk_up(trunks[3], true).unwrap();
    play.net.pin(a, (from, to), other).unwrap();
    send_all(&mut play);
    assert_eq!((sent(&play, trunks[0]), sent(&play, trunks[2])), (first + 200, second + 200));
    assert_eq!(play.net.pin(a, (from, to), b), Err(FabricError::NoCable { from: a, to: b }));
}

#[test]
fn a_cable_that_goes_down_under_way_loses_what_is_on_it_and_frees_the_buffer() {
    let mut net = Fabric::new(1);
    let [s, t] = [(); 2].map(|()| net.add_switch(SwitchConfig::default()).unwrap());
    let cable = net.connect(s, t, trunk()).unwrap();
    let [a, b] = [(); 2].map(|()| on(&mut net, s));
    let r = on(&mut net, t);
    let mut play = Play::new(net);
    play.flow(a, r, 2);
    play.flow(b, r, 2);
    play.run_to(Instant::ZERO + ms(1));
    assert!(play.net.buffered(s).unwrap().0 > 0);
    play.net.set_trunk_up(cable, false).unwrap();
    play.stop();
    play.run_to(Instant::ZERO + ms(2));
    assert_eq!(play.net.buffered(s).unwrap().0, 0);
    assert_eq!(play.net.in_flight(), 0);
    let totals = play.net.totals();
    assert_eq!(totals.sent, totals.delivered + totals.dropped());
    assert!(totals.down_drops > 0);
}

/// A storm: a receiver that stops has everybody stop, one switch after the other, until the watchdog ends it.
#[test]
fn a_stalled_receiver_stops_its_neighbours_until_the_watchdog_barks() {
    for guarded in [false, true] {
        let mut net = Fabric::new(1);
        let watchdog = guarded.then_some(Watchdog { detect: ms(2), restore: ms(1) });
        let w0 = net.add_switch(SwitchConfig::default()).unwrap();
        let w1 = net.add_switch(SwitchConfig { watchdog, ..SwitchConfig::default() }).unwrap();
        net.connect(w0, w1, trunk()).unwrap();
        let [a, b] = [(); 2].map(|()| on(&mut net, w0));
        let [r, x] = [(); 2].map(|()| on(&mut net, w1));
        let mut play = Play::new(net);
        play.flow(a, r, 2);
        play.flow(b, x, 2);
        play.run_to(Instant::ZERO + ms(1));
        let stalled = Receiver { bits_per_s: 0, buffer: 200_000, xoff: 100_000, xon: 97_828 };
        play.net.set_receiver(r, Some(stalled)).unwrap();
        let rates = play.rates(ms(2), ms(3));
        assert!(rates[0] + rates[1] < 0.1, "both stand still: {rates:?}");
        let (nic, switch) = (play.net.port_of(r).unwrap(), play.net.port_to(r).unwrap());
        let asked = play.net.port_counters(nic).unwrap().first_pause.unwrap();
        // Half of the line is for this host: 93 frames of 442 ns.
        close((asked - ms(1)).as_nanos() as f64, 41_100.0, 0.03);
        let rates = play.rates(ms(5), ms(9));
        let counters = play.net.port_counters(switch).unwrap();
        if !guarded {
            assert!(rates[1] < 0.1, "{rates:?}");
            assert_eq!(counters.watchdog_fired, 0);
            // Stands still for ever, asked again and again.
            assert!(counters.rx_pause[0] > 15, "{counters:?}");
            assert_eq!(play.net.totals().dropped(), 0);
            continue;
        }
        close(rates[1], 20.0, 0.02);
        assert_eq!(counters.watchdog_fired, 1);
        assert!(counters.watchdog_flushed > 50 && counters.watchdog_dropped > 1000);
        assert_eq!(play.net.totals().watchdog_drops, counters.watchdog_dropped);
        let at = counters.watchdog_at.unwrap() - asked;
        close(at.as_nanos() as f64, 2_001_000.0, 0.001);
        // It comes back to life, and so does its queue.
        play.net.set_receiver(r, None).unwrap();
        let rates = play.rates(ms(11), ms(12));
        close(rates[0], 20.0, 0.02);
    }
}

#[test]
fn a_slow_receiver_gets_what_it_takes() {
    let mut net = Fabric::new(1);
    let s = net.add_switch(SwitchConfig::default()).unwrap();
    let [a, r] = [(); 2].map(|()| on(&mut net, s));
    let slow = Receiver { bits_per_s: 4 * G, buffer: 200_000, xoff: 100_000, xon: 97_828 };
    net.set_receiver(r, Some(slow)).unwrap();
    let mut play = Play::new(net);
    play.flow(a, r, 2);
    let rates = play.rates(ms(1), ms(5));
    close(rates[0], 4.0, 0.005);
    assert_eq!(play.net.totals().dropped(), 0);
    let tight = Receiver { buffer: 100_500, ..slow };
    play.net.set_receiver(r, Some(tight)).unwrap();
    play.run_to(Instant::ZERO + ms(6));
    assert!(play.net.counters(r).queue_drops > 0, "no room for what was on its way");
    let wrong = Receiver { xon: 100_001, ..slow };
    assert!(play.net.set_receiver(r, Some(wrong)).is_err());
}

/// Three switches in a circle, each flow two cables long.
#[test]
fn a_circle_of_pauses_is_found() {
    let config = SwitchConfig { threshold: Threshold::Fixed(20_000), ..SwitchConfig::default() };
    let mut net = Fabric::new(1);
    let s = [(); 3].map(|()| net.add_switch(config.clone()).unwrap());
    for i in 0..3 {
        net.connect(s[i], s[(i + 1) % 3], trunk()).unwrap();
    }
    let senders = s.map(|at| [on(&mut net, at), on(&mut net, at)]);
    let receivers = s.map(|at| on(&mut net, at));
    let mut play = Play::new(net);
    for i in 0..3 {
        for from in senders[i] {
            let to = receivers[(i + 2) % 3];
            play.net.pin(s[i], (from, to), s[(i + 1) % 3]).unwrap();
            play.flow(from, to, 2);
        }
    }
    play.run_to(Instant::ZERO + ms(5));
    play.stop();
    play.run_to(Instant::ZERO + ms(6));
    let held = s.map(|at| play.net.buffered(at).unwrap().0);
    play.run_to(Instant::ZERO + ms(10));
    assert_eq!(s.map(|at| play.net.buffered(at).unwrap().0), held, "nothing moves");
    assert!(held.iter().all(|&bytes| bytes > 20_000), "{held:?}");
    let circle = play.net.deadlock();
    assert_eq!(circle.len(), 3, "{circle:?}");
}

#[test]
fn impossible_switches() {
    let ok = SwitchConfig::default;
    let refused = |config: SwitchConfig| config.check(4).unwrap_err().to_string();
    assert!(
        refused(SwitchConfig { buffer: 100_000, ..ok() }).contains("headroom of 4 ports is 100000")
    );
    assert!(
        refused(SwitchConfig { threshold: Threshold::Fixed(1000), ..ok() }).contains("only 1000")
    );
    assert!(
        refused(SwitchConfig { threshold: Threshold::Fixed(12_000_000), ..ok() })
            .contains("full before")
    );
    assert!(refused(SwitchConfig { threshold: Threshold::Dynamic(0.0), ..ok() }).contains("alpha"));
    assert!(
        refused(SwitchConfig { threshold: Threshold::Dynamic(f64::NAN), ..ok() }).contains("NaN")
    );
    let ecn = |m| SwitchConfig { ecn: Some(m), ..ok() };
    assert!(refused(ecn(Marking::red(10, 5, 0.1))).contains("kmin"));
    assert!(refused(ecn(Marking::red(5, 10, 1.5))).contains("pmax is 1.5"));
    let pfc = Some(Pfc { quanta: 0, ..Pfc::default() });
    assert!(refused(SwitchConfig { pfc, ..ok() }).contains("0 quanta"));
    let mut scheduler = Scheduler::default();
    scheduler.quantum[2] = 0;
    assert!(refused(SwitchConfig { scheduler, ..ok() }).contains("priority 2"));
    let watchdog = Some(Watchdog { detect: Duration::ZERO, restore: ms(1) });
    assert!(refused(SwitchConfig { watchdog, ..ok() }).contains("detect"));
    assert!(PriorityMap::all(8).is_err() && PriorityMap::default().with(64, 0).is_err());
    let map = PriorityMap::default();
    assert_eq!([0, 26 << 2, 48 << 2 | 3].map(|tos| map.of(tos)), [0, 3, 6]);

    let mut net = Fabric::new(1);
    let s = net.add_switch(ok()).unwrap();
    assert_eq!(net.connect(s, s, trunk()), Err(FabricError::Loop(s)));
    let nowhere = SwitchId(9);
    assert_eq!(net.connect(s, nowhere, trunk()), Err(FabricError::NoSuchSwitch(nowhere)));
    assert_eq!(net.set_trunk_up(TrunkId(0), true), Err(FabricError::NoSuchTrunk(TrunkId(0))));
    let (a, _) = (on(&mut net, s), net.add_host(trunk()).unwrap());
    assert!(net.check().is_err(), "two islands");
    let port = net.port_of(a).unwrap();
    assert!(net.port_counters(port).is_ok());
    assert!(net.set_trunk_up(TrunkId(0), false).is_err(), "the cable of a host");
}

/// What leaves by a port, pauses included.
struct Frames(Arc<Mutex<(u64, Vec<Vec<u8>>)>>);

impl PacketSink for Frames {
    fn packet(
        &mut self,
        _: Instant,
        _: &Path,
        _: u16,
        _: &[u8],
        _: Option<&str>,
    ) -> io::Result<()> {
        self.0.lock().0 += 1;
        Ok(())
    }

    fn frame(&mut self, _: Instant, bytes: &[u8]) -> io::Result<()> {
        self.0.lock().1.push(bytes.to_vec());
        Ok(())
    }
}

#[test]
fn pauses_are_frames_of_802_1qbb() {
    let mut net = Fabric::new(1);
    let s = net.add_switch(SwitchConfig::default()).unwrap();
    let [a, b, r] = [(); 3].map(|()| on(&mut net, s));
    let seen = Arc::new(Mutex::new((0, Vec::new())));
    let port = net.port_to(a).unwrap();
    net.capture_port(port, Box::new(Frames(Arc::clone(&seen)))).unwrap();
    let mut play = Play::new(net);
    play.flow(a, r, 26 << 2 | 2);
    play.flow(b, r, 26 << 2 | 2);
    play.run_to(Instant::ZERO + ms(1));
    play.net.stop_port_captures().unwrap();
    let (packets, frames) = &*seen.lock();
    assert_eq!(*packets, 0, "nobody sends to it");
    let (xoff, xon) = (&frames[0], &frames[1]);
    assert_eq!(xoff.len(), 60);
    assert_eq!(xoff[..6], [0x01, 0x80, 0xc2, 0, 0, 1]);
    assert_eq!(xoff[12..18], [0x88, 0x08, 0x01, 0x01, 0, 0b1000], "priority 3");
    assert_eq!(xoff[18..26], [0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    assert_eq!((&xon[..18], &xon[18..]), (&xoff[..18], &[0; 42][..]));
    let counters = play.net.port_counters(port).unwrap();
    assert_eq!(counters.tx_pause[3] + counters.tx_xon[3], frames.len() as u64);
    let named: BTreeMap<_, _> = counters.iter().collect();
    assert_eq!(named["tx_prio3_pause"], counters.tx_pause[3]);
}

/// A NIC that queues nothing has no room while it is asked to pause, and is told when that is over, to the fraction of a
/// nanosecond: its line is busy again at once.
#[test]
fn who_queues_nothing_waits_for_the_end_of_a_pause() {
    let mut net = Fabric::new(1);
    let s = net.add_switch(SwitchConfig::default()).unwrap();
    let [a, r] = [(); 2].map(|()| on(&mut net, s));
    assert!(!net.queues_frames(a));
    let t = Transmit { path: path(a, r), ident: 0, len: DATA, segment_size: None };
    net.send(net.now(), a, &t, &[0x24; DATA]);
    let until_free = net.next_event().unwrap();
    let pipe = net.hosts[a.index()].cable;
    let pause = |quanta| PauseFrame { priority: 0, quanta };
    net.moment = Moment::from(net.now()).plus_ps(300);
    net.paused(pipe ^ 1, pause(100), 0);
    let mut woken = Vec::new();
    assert!(until_free < Instant::ZERO + ms(1) && !net.has_room(a));
    net.advance(until_free);
    net.take_woken(&mut woken);
    assert!(woken.is_empty() && !net.has_room(a), "the line is free, and paused");
    // 100 quanta of 512 bits, at 40 Gbit/s, and what was over at the start.
    let over = Instant::from_nanos(1281);
    while woken.is_empty() {
        net.advance(net.next_event().unwrap());
        net.take_woken(&mut woken);
    }
    assert_eq!((woken, net.now(), net.has_room(a)), (vec![a], over, true));
    net.send(net.now(), a, &t, &[0x24; DATA]);
    let free = net.pipes[pipe].line.free_at();
    assert_eq!(free, Moment::from(Instant::from_nanos(1280)).plus_ps(300 + 221_200));
    // Who speaks in another priority is not held.
    net.paused(pipe ^ 1, PauseFrame { priority: 5, quanta: 100 }, 0);
    net.advance(Instant::from_nanos(1600));
    assert!(net.has_room(a));
}

/// Pauses of few quanta run out before they are said again, and the line is not full of them.
#[test]
fn pauses_of_few_quanta_are_said_again_at_a_bearable_pace() {
    for (gbits, quanta) in [(40, 1), (400, 1), (800, 2)] {
        let mut net = Fabric::new(1);
        let pfc = Some(Pfc { quanta, ..Pfc::default() });
        let s = net.add_switch(SwitchConfig { pfc, ..SwitchConfig::default() }).unwrap();
        let link =
            Link { bits_per_s: gbits * G, delay: Duration::from_micros(1), ..Link::default() };
        let hosts = [(); 3].map(|()| {
            let with =
                Cabling { link, nic_queue: 1, priorities: PriorityMap::default(), tag: None };
            let host = net.add_host_at(s, &with).unwrap();
            net.attach(host, ip(host)).unwrap();
            host
        });
        let mut play = Play::new(net);
        play.flow(hosts[0], hosts[2], 26 << 2);
        play.flow(hosts[1], hosts[2], 26 << 2);
        play.run_to(Instant::ZERO + Duration::from_micros(200));
        let port = play.net.port_to(hosts[0]).unwrap();
        let pauses = play.net.port_counters(port).unwrap().tx_pause[3];
        // A pause takes 84 bytes of the line.
        let most = 200_000 * gbits / (84 * 8) / 4;
        assert!(pauses > 10 && pauses <= most, "{gbits} Gbit/s, {quanta}: {pauses} of {most}");
    }
}

/// A host means by its packets what it writes into their tags, and pauses what its switch asks it to pause.
#[test]
fn who_tags_pauses_by_its_tags() {
    let mut net = Fabric::new(1);
    let config = SwitchConfig { trust: Trust::Pcp, ..SwitchConfig::default() };
    let s = net.add_switch(config).unwrap();
    let link = Link { bits_per_s: 40 * G, delay: Duration::from_micros(1), ..Link::default() };
    let tag = Some(PriorityMap::all(5).unwrap());
    let hosts = [(); 3].map(|()| {
        let with = Cabling { link, nic_queue: 1, priorities: PriorityMap::default(), tag };
        let host = net.add_host_at(s, &with).unwrap();
        net.attach(host, ip(host)).unwrap();
        host
    });
    let mut play = Play::new(net);
    // By its DSCP it would be of priority 3.
    play.flow(hosts[0], hosts[2], 26 << 2);
    play.flow(hosts[1], hosts[2], 26 << 2);
    play.run_to(Instant::ZERO + ms(1));
    let port = play.net.port_to(hosts[0]).unwrap();
    let counters = play.net.port_counters(port).unwrap();
    assert!(counters.tx_pause[5] > 10, "{counters:?}");
    assert_eq!(play.net.totals().dropped(), 0);
}

/// Lossless packets that find the whole buffer full are lost, and their port is asked to pause all the same.
#[test]
fn a_full_buffer_asks_for_a_pause() {
    let config = SwitchConfig {
        buffer: 300_000,
        threshold: Threshold::Fixed(170_000),
        ..SwitchConfig::default()
    };
    let mut net = Fabric::new(1);
    let s = net.add_switch(config).unwrap();
    let hosts = [(); 5].map(|()| on(&mut net, s));
    let mut play = Play::new(net);
    for from in &hosts[..4] {
        play.flow(*from, hosts[4], 26 << 2);
    }
    play.run_to(Instant::ZERO + ms(1));
    let ports = hosts[..4].iter().map(|h| play.net.port_to(*h).unwrap());
    let asked: u64 = ports.map(|p| play.net.port_counters(p).unwrap().tx_pause[3]).sum();
    assert!(play.net.totals().dropped() > 0 && asked > 0, "{asked}");
}

/// What a NIC may queue is no property of its cable.
#[test]
fn another_cable_leaves_the_nic_as_it_is() {
    let mut net = Fabric::new(1);
    let s = net.add_switch(SwitchConfig::default()).unwrap();
    let a = on(&mut net, s);
    net.set_link(a, Link { loss: 0.5, ..trunk() }).unwrap();
    assert!(!net.queues_frames(a));
}

#[test]
fn headers_alone_take_the_same_time() {
    let run = |carried| {
        let mut net = Fabric::new(1);
        net.carry(carried);
        let ecn = Some(Marking::red(5_000, 200_000, 0.01));
        let s = net.add_switch(SwitchConfig { ecn, ..SwitchConfig::default() }).unwrap();
        let [a, b, r] = [(); 3].map(|()| on(&mut net, s));
        let mut play = Play::new(net);
        play.flow(a, r, 2);
        play.flow(b, r, 2);
        play.run_to(Instant::ZERO + ms(2));
        let port = play.net.port_to(r).unwrap();
        (
            play.received.clone(),
            play.marked.clone(),
            play.net.port_counters(port).unwrap(),
            play.net.totals(),
        )
    };
    assert_eq!(run(usize::MAX), run(64));
}

#[test]
fn the_same_seed_gives_the_same_network() {
    let run = |seed| {
        let mut net = Fabric::new(seed);
        let ecn = Some(Marking::red(5_000, 200_000, 0.1));
        let config = SwitchConfig { ecn, ..SwitchConfig::default() };
        let [s, t] = [(); 2].map(|()| net.add_switch(config.clone()).unwrap());
        net.connect(s, t, Link { loss: 0.01, ..trunk() }).unwrap();
        let [a, b] = [(); 2].map(|()| on(&mut net, s));
        let r = on(&mut net, t);
        let mut play = Play::new(net);
        play.flow(a, r, 2);
        play.flow(b, r, 2);
        play.run_to(Instant::ZERO + ms(1));
        play.net.trace_hash()
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

/// A port of 40 Gbit/s that gets half of a line with a threshold of 24,470 bytes asks for a pause every 10.64 us, and it
/// does not matter which of two is ahead, nor by how much.
#[test]
fn pauses_are_as_many_as_arithmetic_says() {
    for ahead in [0, 59, 300] {
        let mut net = Fabric::new(1);
        let threshold = Threshold::Fixed(24_470);
        let s = net.add_switch(SwitchConfig { threshold, ..SwitchConfig::default() }).unwrap();
        let [a, b, r] = [(); 3].map(|()| on(&mut net, s));
        let mut play = Play::new(net);
        play.flow(a, r, 2);
        play.run_to(ns(ahead));
        play.flow(b, r, 2);
        play.run_to(Instant::ZERO + ms(5));
        let sent = |host| {
            let port = play.net.port_to(host).unwrap();
            play.net.port_counters(port).unwrap().pauses_sent()
        };
        assert_eq!(sent(a) + sent(b), 940, "{ahead} ns ahead");
    }
}
