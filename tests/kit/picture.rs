//! What a failure shows: packets as a picture, the seed, a capture.

use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use softroce::capture::Reader;
use softroce::prelude::*;
use softroce::sim::{Action, Class, FaultSchedule, Link, Rule, Sim, strategies};

use super::{LONG, connect, pair};

#[test]
fn fates_are_in_the_picture() {
    let sim = Sim::new(1);
    let [a, b] = pair(&sim);
    b.qp.post_recv((0..9).map(|id| RecvWr::new(id, ()))).unwrap();
    for (nth, action) in [
        (1, Action::Duplicate),
        (2, Action::Corrupt),
        (3, Action::Drop),
        (4, Action::Mark),
        (5, Action::Delay(Duration::from_millis(600))),
    ] {
        sim.rule(Rule::new(Class::Request, action).nth(nth)).unwrap();
    }
    let trace = sim.trace(1000).unwrap();
    trace.mark("now");
    for id in 0..9 {
        a.done(SendWr::send(id, ()));
    }
    sim.settle();
    let all = trace.diagram();
    let picture = all.to_string();
    for word in [
        "►│ duplicate",
        "►│ corrupted",
        "✗│ dropped by a rule",
        "►│ congestion experienced",
        "┄┄ now ┄┄",
    ] {
        assert!(picture.contains(word), "{word}:\n{picture}");
    }
    assert!(picture.contains(&format!("qp {:#x}", b.qp.number())), "{picture}");
    assert!(picture.contains("• receive 0: Success") && picture.contains("• request 3: Success"));
    assert!(picture.contains("• goes back to psn"), "{picture}");
    assert_eq!(picture.lines().count(), 1 + all.len());
    let short = all.clone().last(3).to_string();
    assert_eq!(short.lines().count(), 1 + 1 + 3);
    assert!(short.contains(&format!("({} lines before these are not shown)", all.len() - 3)));
    assert!(!all.is_empty() && all.last(0).is_empty());
}

#[test]
fn each_connection_has_its_own() {
    let sim = Sim::new(1);
    let hosts: [Context; 3] = sim.hosts(Link::default());
    let [h0, h1, h2] = &hosts;
    let [a, b] = connect([h0, h1], QpType::Rc, &QpAttr::default());
    let trace = sim.trace(1000).unwrap();
    // One that was made before the recording, and one after.
    let [c, d] = connect([h2, h0], QpType::Rc, &QpAttr::default());
    let (to, there) = (b.memory(8), d.memory(8));
    a.done(SendWr::write(1, inline(b"x"), to.remote()));
    c.done(SendWr::write(2, inline(b"x"), there.remote()));
    let all = trace.diagram();
    let parts = all.connections();
    assert_eq!(parts.len(), 2);
    assert_eq!(parts[0], all.clone().of(&c.qp), "the latest first");
    assert_eq!(parts[1], all.clone().of(&b.qp));
    assert_eq!(all.clone().of(&a.qp), all.clone().of(&b.qp), "from either end");
    for (part, of) in [(&parts[1], [&a, &b]), (&parts[0], [&d, &c])] {
        let text = part.to_string();
        for (side, host) in
            of.iter().zip(if of[0].qp.number() == a.qp.number() { [0, 1] } else { [0, 2] })
        {
            let head = format!("host {host}, qp {:#x}", side.qp.number());
            assert!(text.lines().next().unwrap().contains(&head), "{text}");
        }
        assert_eq!(text.matches("RC_WRITE_ONLY").count(), 1, "{text}");
        assert_eq!(text.matches("RC_ACK").count(), 1, "{text}");
    }
}

#[test]
fn a_failure_tells_seed_packets_and_capture() {
    let test = |sim: &Sim| -> Result<()> {
        let [a, b] = pair(sim);
        let to = b.memory(8);
        if sim.seed() == 7 {
            sim.rule(Rule::new(Class::Request, Action::Drop)).unwrap();
        }
        a.post(SendWr::write(5, inline(b"x"), to.remote()));
        a.cq.wait(LONG)?.ok().map(drop)
    };
    let failure = Sim::try_seeds(3..20, test).unwrap_err();
    assert_eq!(failure.seed, 7);
    assert_eq!(failure.otherwise, None);
    assert!(failure.what.contains("RetryExc"), "{failure}");
    assert_eq!(failure.at.as_millis(), 4294);
    let text = failure.to_string();
    assert!(text.starts_with("seed 7 failed after"), "{text}");
    assert!(text.contains("SOFTROCE_SEED=7 cargo test picture::a_failure_tells_seed"), "{text}");
    assert_eq!(text.matches("✗").count(), 8, "{text}");
    assert!(text.contains("• request 5: RetryExc"), "{text}");
    let file = failure.capture.unwrap();
    assert!(file.to_string_lossy().contains("seed-7.pcapng"), "{file:?}");
    let bytes = std::fs::read(&file).unwrap();
    let mut reader = Reader::new(&bytes[..]).unwrap();
    let mut frames = 0;
    while reader.next_record().unwrap().is_some() {
        frames += 1;
    }
    assert_eq!(frames, 8);
    assert_eq!(Sim::try_seeds(8..20, test).unwrap(), 12);
}

#[test]
#[should_panic(expected = "seed 2 failed after 0ns: two")]
fn a_panic_is_a_failure_too() {
    Sim::run_seeds(0..5, |sim| {
        assert!(sim.seed() != 2, "two");
        Ok::<_, Error>(())
    });
}

#[test]
fn what_does_not_follow_from_the_seed_is_found_out() {
    let runs = AtomicU64::new(0);
    let failure = Sim::try_seeds(0..9, |_| match runs.fetch_add(1, Ordering::Relaxed) {
        4 => Err("now and then"),
        _ => Ok(()),
    })
    .unwrap_err();
    assert_eq!(failure.seed, 4);
    assert_eq!(failure.otherwise.as_deref(), Some("it did not fail at all"));
    assert!(failure.to_string().contains("does not follow from the seed"), "{failure}");
}

#[test]
fn more_connections_than_are_shown() {
    let failure = Sim::try_seeds([1], |sim| {
        let [a, b] = sim.hosts(Link::default());
        for id in 0..6 {
            let [x, y] = connect([&a, &b], QpType::Rc, &QpAttr::default());
            x.done(SendWr::write(id, inline(b"x"), y.memory(8).remote()));
        }
        Err::<(), _>("six of them")
    })
    .unwrap_err();
    assert_eq!((failure.diagrams.len(), failure.hidden), (4, 2));
    assert!(failure.to_string().contains("2 more connections"), "{failure}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Messages arrive in order, each once, whatever the network does for ten milliseconds.
    #[test]
    fn a_stream_survives_any_schedule(
        seed in 0..1000u64,
        schedule in strategies::schedules(2, Duration::from_millis(10), 0..8),
    ) {
        let sim = Sim::new(seed);
        let [a, b] = sim.hosts(Link::default());
        let over = QpAttr::default().timeout(8).retry_cnt(7);
        let [x, y] = connect([&a, &b], QpType::Rc, &over);
        schedule.apply(&sim, &[&a, &b]).unwrap();
        y.qp.post_recv((0..20).map(|id| RecvWr::new(id, ()))).unwrap();
        for id in 0..20 {
            x.post(SendWr::send(id, ()).imm(u32::try_from(id).unwrap()));
            // A pulled cable of 10 ms outlasts eight timeouts of a millisecond.
            match x.cq.wait(LONG).unwrap() {
                wc if wc.status == WcStatus::Success => prop_assert_eq!(wc.wr_id, id),
                wc => {
                    prop_assert_eq!(wc.status, WcStatus::RetryExc);
                    prop_assert!(schedule != FaultSchedule::default());
                    break;
                }
            }
        }
        sim.settle();
        let ends = y.rcq.drain();
        let successes = ends.iter().take_while(|wc| wc.status == WcStatus::Success);
        for (i, wc) in successes.enumerate() {
            prop_assert_eq!(wc.imm, Some(u32::try_from(i).unwrap()));
        }
    }
}
