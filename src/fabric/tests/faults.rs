//! The weather, the tap and the rules.

use super::*;

#[test]
fn loss_takes_its_share_once() {
    let lossy = Link { loss: 0.1, ..FORTY };
    let (mut net, [a, b]) = network(1, [lossy; 2]);
    burst(&mut net, a, b, 10_000);
    let arrived = psns(&mut net);
    let lost = net.counters(b).lost;
    assert!((900..1100).contains(&lost), "{lost}");
    assert_eq!(net.counters(a).lost, 0, "the way up is clean");
    assert_eq!(arrived.len() as u64, 10_000 - lost);
    assert!(arrived.is_sorted());
    balance(&net);

    // Unless it is set apart.
    net.set_direction(a, Direction::Up, Link { loss: 1.0, ..FORTY }).unwrap();
    assert_eq!(net.link(a, Direction::Up).unwrap().loss, 1.0);
    assert_eq!(net.link(a, Direction::Down).unwrap(), lossy);
    burst(&mut net, a, b, 10);
    assert!(psns(&mut net).is_empty());
    assert_eq!(net.counters(a).lost, 10);
}

#[test]
fn held_back_packets_are_overtaken() {
    let (mut net, [a, b]) = network(1, [FORTY, Link { reorder: 0.05, ..FORTY }]);
    burst(&mut net, a, b, 1000);
    let mut arrived = psns(&mut net);
    let held = usize::try_from(net.counters(b).reordered).unwrap();
    assert!((20..100).contains(&held), "{held}");
    let backwards = arrived.windows(2).filter(|w| w[1] < w[0]).count();
    assert!(backwards > held / 2 && backwards <= held, "{backwards} of {held}");
    arrived.sort_unstable();
    assert!(arrived.into_iter().eq(0..1000));
}

#[test]
fn duplicates_come_after_their_original() {
    let (mut net, [a, b]) = network(1, [FORTY, Link { duplicate: 0.1, ..FORTY }]);
    burst(&mut net, a, b, 1000);
    let arrived = psns(&mut net);
    let extra = usize::try_from(net.counters(b).duplicated).unwrap();
    assert!((60..140).contains(&extra), "{extra}");
    assert_eq!(arrived.len(), 1000 + extra);
    let mut seen = std::collections::BTreeSet::new();
    let first_times: Vec<_> = arrived.into_iter().filter(|&psn| seen.insert(psn)).collect();
    assert!(first_times.into_iter().eq(0..1000));
    balance(&net);
}

#[test]
fn corrupted_packets_differ_in_one_to_three_bits() {
    let (mut net, [a, b]) = network(1, [FORTY, Link { corrupt: 0.5, ..FORTY }]);
    // A rule corrupts as well, but no packet twice.
    let rule = Rule::new(Class::Any, Action::Corrupt).chance(0.5);
    net.add_rule(rule).unwrap();
    let original = datagram(0x04, 1, &[0x5a; 100]);
    for _ in 0..1000 {
        send(&mut net, 0, a, b, &original);
    }
    let arrived = settle(&mut net);
    let flips = |bytes: &[u8]| -> u32 {
        bytes.iter().zip(&original).map(|(a, b)| (a ^ b).count_ones()).sum()
    };
    let bad = arrived.iter().filter(|p| flips(&p.3) > 0).count();
    assert_eq!(bad as u64, net.counters(b).corrupted);
    assert!((700..800).contains(&bad), "{bad}");
    assert!(arrived.iter().all(|p| p.3.len() == original.len() && flips(&p.3) <= 3));
}

#[test]
fn jitter_delays_and_keeps_the_order() {
    let jittery = Link { jitter: Duration::from_micros(5), ..FORTY };
    let (mut net, [a, b]) = network(1, [FORTY, jittery]);
    let mut late = Vec::new();
    for psn in 0..500u32 {
        // Far apart: nobody is held up by the one before.
        let at = u64::from(psn) * 20_000;
        send(&mut net, at, a, b, &datagram(0x04, psn, &[0; 1024]));
        late.push(settle(&mut net)[0].0 - at - 2444);
    }
    assert!(late.iter().all(|&l| l <= 5_000));
    let mean = late.iter().sum::<u64>() / 500;
    assert!((2_200..2_800).contains(&mean), "{mean}");
    burst(&mut net, a, b, 500);
    assert!(psns(&mut net).into_iter().eq(0..500));
}

#[test]
fn the_tap_sees_and_decides() {
    let (mut net, [a, b]) = network(1, [FORTY; 2]);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    net.tap(Box::new(move |p| {
        log.lock().push((p.at.as_nanos(), p.from, p.to, p.psn()));
        match p.psn() {
            Some(1) => Verdict::Drop,
            Some(2) => Verdict::Delay(Duration::from_micros(3)),
            Some(3) => Verdict::Duplicate,
            Some(4) => {
                p.bytes[12..16].copy_from_slice(b"tap!");
                p.path.traffic_class |= 3;
                p.ident = 9;
                Verdict::Replace
            }
            _ => {
                p.bytes.clear();
                Verdict::Pass
            }
        }
    }));
    for psn in 0..6 {
        send(&mut net, 0, a, b, &datagram(0x04, psn, b"data"));
    }
    let arrived = settle(&mut net);
    let order: Vec<_> = arrived.iter().map(|(.., b)| (b[11], b[12..16].to_vec())).collect();
    let data = |psn| (psn, b"data".to_vec());
    let expected = [data(0), data(3), data(3), (4, b"tap!".to_vec()), data(5), data(2)];
    assert_eq!(order, expected);
    let replaced = arrived[3].2;
    assert_eq!((replaced.path.ecn(), replaced.ident), (Ecn::Ce, Some(9)));
    let got = seen.lock().clone();
    assert_eq!(got.len(), 6, "copies and delayed packets are seen once");
    assert!(got.iter().all(|&(_, from, to, _)| (from, to) == (0, 1)));
    assert!(got.is_sorted());

    let c = net.counters(b);
    assert_eq!((c.tap_drops, c.duplicated, c.reordered, c.delivered), (1, 1, 1, 6));
    balance(&net);

    net.untap();
    send(&mut net, 0, a, b, &datagram(0x04, 1, b"data"));
    assert_eq!(psns(&mut net), [1]);
}

#[test]
fn rules_hit_what_they_name() {
    let (mut net, [a, b]) = network(1, [FORTY; 2]);
    let drop = net.add_rule(Rule::new(Class::Ack, Action::Drop).from(b).to(a).nth(2)).unwrap();
    let mark = net.add_rule(Rule::new(Class::Opcode(0x04), Action::Mark).first(1)).unwrap();
    net.add_rule(Rule::new(Class::Opcode(0x05), Action::Duplicate)).unwrap();
    let late = Action::Delay(Duration::from_micros(1));
    net.add_rule(Rule::new(Class::Opcode(0x06), late)).unwrap();
    for psn in 0..4 {
        send(&mut net, 0, b, a, &datagram(0x11, psn, &[0x1f, 0, 0, 0]));
    }
    assert_eq!(psns(&mut net), [0, 2, 3]);
    let at = net.now().as_nanos();
    for (psn, opcode) in [(0, 0x06), (1, 0x04), (2, 0x04), (3, 0x05)] {
        send(&mut net, at, a, b, &datagram(opcode, psn, &[0; 16]));
    }
    let arrived = settle(&mut net);
    let got: Vec<_> = arrived.iter().map(|p| (p.3[11], p.2.path.ecn() == Ecn::Ce)).collect();
    assert_eq!(got, [(1, true), (2, false), (3, false), (3, false), (0, false)]);
    assert_eq!(net.rule_hits(mark), Some(RuleHits { seen: 2, hits: 1 }));
    assert_eq!(net.remove_rule(drop), Some(RuleHits { seen: 4, hits: 1 }));
    assert_eq!(net.rule_hits(drop), None);
    let c = net.totals();
    assert_eq!((c.rule_drops, c.ecn_marked, c.duplicated, c.reordered), (1, 1, 1, 1));
    balance(&net);
}

#[test]
fn the_tap_is_asked_before_the_rules() {
    let (mut net, [a, b]) = network(1, [FORTY; 2]);
    net.tap(Box::new(|p| if p.psn() == Some(0) { Verdict::Duplicate } else { Verdict::Pass }));
    let rule = net.add_rule(Rule::new(Class::Any, Action::Drop)).unwrap();
    burst(&mut net, a, b, 2);
    assert_eq!(psns(&mut net), [0, 0]);
    assert_eq!(net.rule_hits(rule), Some(RuleHits { seen: 1, hits: 1 }));
}

#[test]
fn a_guard_takes_its_rule_along() {
    let (net, [a, b]) = network(1, [FORTY; 2]);
    let net: SharedFabric = Arc::new(Mutex::new(net));
    {
        let guard = RuleGuard::new(&net, Rule::new(Class::Any, Action::Drop)).unwrap();
        burst(&mut net.lock(), a, b, 3);
        assert!(psns(&mut net.lock()).is_empty());
        assert_eq!(guard.hits(), RuleHits { seen: 3, hits: 3 });
    }
    burst(&mut net.lock(), a, b, 3);
    assert_eq!(psns(&mut net.lock()).len(), 3);
    let refused = RuleGuard::new(&net, Rule::new(Class::Any, Action::Drop).nth(0));
    assert_eq!(refused.unwrap_err(), FabricError::Ordinal);
}
