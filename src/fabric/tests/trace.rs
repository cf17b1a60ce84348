//! Captures, the trace hash, and that a seed means the same everywhere.

use super::*;

/// Remembers what it is given; the lines are shared with the test.
struct Lines {
    lines: Arc<Mutex<Vec<String>>>,
    /// Packets before the disk is full.
    room: usize,
}

impl PacketSink for Lines {
    fn packet(
        &mut self,
        at: Instant,
        path: &Path,
        ident: u16,
        datagram: &[u8],
        comment: Option<&str>,
    ) -> io::Result<()> {
        if self.room == 0 {
            return Err(io::Error::other("disk full"));
        }
        self.room -= 1;
        let psn = datagram[11];
        let comment = comment.unwrap_or("-");
        self.lines.lock().push(format!("{at:?} {} {ident} {psn} {comment}", path.dst));
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.lines.lock().push("end".into());
        Ok(())
    }
}

fn lines(room: usize) -> (Arc<Mutex<Vec<String>>>, Box<Lines>) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    (Arc::clone(&lines), Box::new(Lines { lines, room }))
}

#[test]
fn a_capture_has_every_packet_and_its_fate() {
    let (mut net, [a, b]) = network(1, [FORTY; 2]);
    let (got, sink) = lines(usize::MAX);
    net.start_capture(sink).unwrap();
    net.tap(Box::new(|p| match p.psn() {
        Some(1) => Verdict::Drop,
        Some(2) => Verdict::Duplicate,
        Some(3) => Verdict::Replace,
        _ => Verdict::Pass,
    }));
    net.add_rule(Rule::new(Class::Opcode(0x05), Action::Drop)).unwrap();
    net.add_rule(Rule::new(Class::Opcode(0x06), Action::Corrupt)).unwrap();
    for psn in 0..4 {
        send(&mut net, 0, a, b, &datagram(0x04, psn, &[]));
    }
    send(&mut net, 0, a, b, &datagram(0x05, 5, &[]));
    settle(&mut net);
    net.set_link(b, Link { loss: 1.0, ..FORTY }).unwrap();
    send(&mut net, 10_000, a, b, &datagram(0x04, 6, &[]));
    settle(&mut net);
    net.set_link(b, Link { ecn_at: 0, mtu: 1000, ..FORTY }).unwrap();
    send(&mut net, 20_000, a, b, &datagram(0x04, 7, &[0; 1000]));
    send(&mut net, 20_000, a, b, &datagram(0x04, 8, &[]));
    settle(&mut net);
    net.stop_capture().unwrap();
    send(&mut net, 30_000, a, b, &datagram(0x04, 9, &[]));
    settle(&mut net);

    // 84 bytes are 16.8 ns on the line.
    let expected = [
        "1.017us 10.0.0.2 0 0 -",
        "1.034us 10.0.0.2 0 1 dropped by the tap",
        "1.051us 10.0.0.2 0 2 -",
        "1.068us 10.0.0.2 0 2 duplicate",
        "1.084us 10.0.0.2 0 5 dropped by a rule",
        "1.084us 10.0.0.2 0 3 changed",
        "11.017us 10.0.0.2 0 6 lost",
        "21.217us 10.0.0.2 0 7 dropped: larger than the MTU",
        "21.234us 10.0.0.2 0 8 congestion experienced",
        "end",
    ];
    assert_eq!(*got.lock(), expected);
}

#[test]
fn a_capture_that_fails_says_so_at_the_end() {
    let (mut net, [a, b]) = network(1, [FORTY; 2]);
    let (got, sink) = lines(2);
    net.start_capture(sink).unwrap();
    burst(&mut net, a, b, 5);
    assert_eq!(settle(&mut net).len(), 5);
    assert_eq!(got.lock().len(), 2);
    assert_eq!(net.stop_capture().unwrap_err().to_string(), "disk full");
    assert!(net.stop_capture().is_ok(), "said once");

    // The next one ends the one before.
    let (first, sink) = lines(2);
    net.start_capture(sink).unwrap();
    let (second, sink) = lines(2);
    net.start_capture(sink).unwrap();
    burst(&mut net, a, b, 1);
    settle(&mut net);
    assert_eq!((first.lock().len(), second.lock().len()), (1, 1));
}

/// Everything that can go wrong, at once.
const STORMY: Link = Link {
    jitter: Duration::from_nanos(700),
    queue: 8_000,
    loss: 0.02,
    reorder: 0.05,
    duplicate: 0.03,
    corrupt: 0.02,
    ecn_at: 5_000,
    ..FORTY
};

/// A fixed scenario: three hosts send each other packets of all sizes through a storm, with a tap, rules
/// and a flapping link.
fn storm(seed: u64, first_byte: u8, shift: u64) -> (u64, HostCounters) {
    let slow = Link { bits_per_s: 25_000_000_000, ..STORMY };
    let (mut net, hosts) = network(seed, [STORMY, STORMY, slow]);
    net.tap(Box::new(|p| match p.psn() {
        Some(psn) if psn % 97 == 0 => Verdict::Drop,
        Some(psn) if psn % 101 == 0 => Verdict::Delay(Duration::from_micros(2)),
        _ => Verdict::Pass,
    }));
    net.add_rule(Rule::new(Class::Any, Action::Mark).chance(0.01)).unwrap();
    net.add_rule(Rule::new(Class::Request, Action::Drop).every(70)).unwrap();
    for psn in 0..1000u32 {
        let from = hosts[psn as usize % 3];
        let to = hosts[(psn as usize + 1 + psn as usize % 2) % 3];
        let mut body = vec![0x3c; 4 * (psn as usize * 7 % 256)];
        if let Some(b) = body.first_mut() {
            *b = first_byte;
        }
        let at = u64::from(psn) * 50 + if psn == 0 { shift } else { 0 };
        send(&mut net, at, from, to, &datagram(0x04, psn, &body));
        if psn % 400 == 300 {
            net.set_up(hosts[2], false).unwrap();
        } else if psn % 400 == 320 {
            net.set_up(hosts[2], true).unwrap();
        }
    }
    settle(&mut net);
    balance(&net);
    assert_eq!(net.in_flight(), 0);
    (net.trace_hash(), net.totals())
}

#[test]
fn the_same_seed_gives_the_same_trace_everywhere() {
    let (hash, totals) = storm(42, 1, 0);
    // Recorded once; a difference means that what a seed stands for has changed.
    assert_eq!(hash, 0xb02b_0e42_1998_6457, "{totals:?}");
    let c = totals;
    let all = [
        c.lost,
        c.tap_drops,
        c.rule_drops,
        c.queue_drops,
        c.down_drops,
        c.corrupted,
        c.duplicated,
        c.reordered,
        c.ecn_marked,
    ];
    assert!(all.iter().all(|&n| n > 0), "the storm has everything: {c:?}");
    assert_eq!(storm(42, 1, 0), (hash, totals));
}

#[test]
fn the_trace_hash_notices() {
    let (hash, totals) = storm(42, 1, 0);
    assert_ne!(storm(43, 1, 0).0, hash, "another seed");
    let (bytes, same) = storm(42, 2, 0);
    assert_eq!(same, totals);
    assert_ne!(bytes, hash, "other bytes");
    assert_ne!(storm(42, 1, 1).0, hash, "a nanosecond");
}

#[test]
fn links_draw_independently() {
    let weather = Link { loss: 0.3, reorder: 0.1, jitter: Duration::from_micros(1), ..FORTY };
    let run = |others: bool| {
        let mut net = Fabric::new(5);
        let [a, b] = [net.add_host(FORTY).unwrap(), net.add_host(weather).unwrap()];
        let c = others.then(|| net.add_host(weather).unwrap());
        for host in [a, b].into_iter().chain(c) {
            net.attach(host, ip(host)).unwrap();
        }
        let mut arrived = Vec::new();
        for psn in 0..200 {
            let at = u64::from(psn) * 1000;
            step_to(&mut net, ns(at), &mut arrived);
            send(&mut net, at, a, b, &datagram(0x04, psn, &[0; 200]));
            if let Some(c) = c {
                step_to(&mut net, ns(at + 500), &mut arrived);
                send(&mut net, at + 500, b, c, &datagram(0x04, psn, &[0; 200]));
            }
        }
        step_to(&mut net, Instant::FAR_FUTURE, &mut arrived);
        arrived.retain(|p| p.1 == b);
        arrived
    };
    let alone = run(false);
    assert!(alone.len() < 180);
    assert!(alone == run(true), "the same packets at the same times");
}

#[test]
fn purposes_draw_independently() {
    let corrupted = |loss| {
        let (mut net, [a, b]) = network(3, [FORTY, Link { loss, corrupt: 0.2, ..FORTY }]);
        burst(&mut net, a, b, 200);
        let is_bad = |p: Arrival| p.3 != datagram(0x04, u32::from(p.3[11]), &[0; 1024]);
        settle(&mut net).into_iter().map(is_bad).collect::<Vec<_>>()
    };
    // The k-th packet that is not lost meets the k-th draw of the corruption, lost ones or not.
    let (clean, lossy) = (corrupted(0.0), corrupted(0.1));
    assert!(lossy.len() < clean.len());
    assert_eq!(lossy[..], clean[..lossy.len()]);
}

#[test]
fn nothing_is_allocated_once_it_runs() {
    let (mut net, hosts) = network(9, [STORMY; 3]);
    let mut footprint = None;
    for round in 0..50u64 {
        for i in 0..300u32 {
            let (from, to) = (hosts[i as usize % 3], hosts[(i as usize + 1) % 3]);
            let size = if i % 2 == 0 { 4 } else { 1024 };
            let at = round * 1_000_000 + u64::from(i) * 100;
            send(&mut net, at, from, to, &datagram(0x04, i, &vec![0; size]));
        }
        settle(&mut net);
        // The load is random, so the peak creeps up for a while.
        if round == 20 {
            footprint = Some(net.footprint());
        }
    }
    let (slots, bytes) = net.footprint();
    let (slots_before, bytes_before) = footprint.unwrap();
    assert!(slots <= slots_before + 4 && bytes <= bytes_before + 4 * 2048);
    assert!(slots < 350, "{slots} slots for 15000 packets, 300 at a time");
}

#[test]
fn a_snapshot_can_be_printed() {
    let (mut net, [a, b]) = network(1, [FORTY; 2]);
    net.tap(Box::new(|_| Verdict::Pass));
    net.add_rule(Rule::new(Class::Nak, Action::Drop)).unwrap();
    burst(&mut net, a, b, 2);
    let text = format!("{net:#?}");
    for part in ["in_flight: 2", "tapped: true", "capturing: false", "class: Nak", "\"sent\": 2"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}
