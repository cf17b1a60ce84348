//! What a tap may do: drop what it holds, whatever that is, and set the simulation up differently.

use std::sync::{Arc, Mutex};

use softroce::prelude::*;
use softroce::sim::{Action, Class, Link, Rule, Sim, Verdict};
use softroce::verbs::AhAttr;

use super::{Side, connect, pair};

/// Runs `f` once, at the first packet of a SEND from a to b, which is passed. What it returns.
fn at_a_packet<T: Send + 'static>(
    sim: &Sim,
    [a, b]: &[Side; 2],
    f: impl FnOnce(Sim) -> T + Send + 'static,
) -> T {
    b.qp.post_recv(RecvWr::new(1, ())).unwrap();
    let said = Arc::new(Mutex::new(None));
    let (place, inner, mut f) = (Arc::clone(&said), sim.clone(), Some(f));
    sim.tap(move |_| {
        if let Some(f) = f.take() {
            let said = f(inner.clone());
            *place.lock().unwrap() = Some(said);
        }
        Verdict::Pass
    });
    a.done(SendWr::send(1, ()));
    sim.untap();
    sim.settle();
    let said = said.lock().unwrap().take();
    said.expect("the tap has run")
}

#[test]
fn a_queue_pair_in_a_group_may_go_inside_a_tap() {
    let sim = Sim::new(1);
    let sides = pair(&sim);
    let member = Side::new(&sides[1].ctx, QpType::Ud);
    member.qp.activate(1).unwrap();
    member.qp.attach_mcast(Gid::from(std::net::IpAddr::from([239, 1, 2, 3]))).unwrap();
    at_a_packet(&sim, &sides, |_| drop(member));
    // The group is left: what is sent to it finds nobody.
    let from = Side::new(&sides[0].ctx, QpType::Ud);
    from.qp.activate(1).unwrap();
    let dgid = Gid::from(std::net::IpAddr::from([239, 1, 2, 3]));
    let attr = AhAttr { dgid, ..from.qp.endpoint().ah() };
    let ah = from.pd.create_ah(&attr).unwrap();
    from.done(SendWr::send(1, inline(b"x")).to(&ah, 0xff_ffff, 1));
    sim.settle();
    assert_eq!(sim.link_counters(&from.ctx).unwrap().no_route, 1);
}

#[test]
fn the_last_context_of_a_host_may_go_inside_a_tap() {
    let sim = Sim::new(1);
    let sides = pair(&sim);
    let [third] = sim.hosts(Link::default());
    let all = (Side::new(&third, QpType::Rc), third);
    at_a_packet(&sim, &sides, |_| drop(all));
    let [a, b] = &sides;
    b.qp.post_recv(RecvWr::new(2, ())).unwrap();
    a.done(SendWr::send(2, ()));
}

/// What is staged because the cable takes no more leaves with the next pass, and dropping makes one.
#[test]
fn a_busy_sender_may_go_inside_a_tap() {
    let sim = Sim::new(1);
    let [a, b] = sim.hosts(Link { bits_per_s: 1_000_000_000, ..Link::default() });
    let sides = connect([&a, &b], QpType::Rc, &QpAttr::default());
    let [x, y] = connect([&a, &b], QpType::Rc, &QpAttr::default());
    let (from, to) = (x.memory(1 << 20), y.memory(1 << 20));
    x.post(SendWr::write(1, from.sge(..), to.remote()));
    at_a_packet(&sim, &sides, |_| drop((from, x)));
    sim.settle();
    assert_eq!(y.state(), QpState::Rts);
}

#[test]
fn a_tap_may_set_the_simulation_up_differently() {
    let sim = Sim::new(1);
    let sides = pair(&sim);
    let (a, b) = (sides[0].ctx.clone(), sides[1].ctx.clone());
    let before = sim.link_counters(&b).unwrap();
    let guard = at_a_packet(&sim, &sides, move |sim| {
        assert_eq!(sim.seed(), 1);
        assert!(sim.now() > Duration::ZERO);
        assert_eq!(sim.link_counters(&b).unwrap().delivered, before.delivered);
        assert_eq!(sim.total_counters().sent, 1);
        let hash = sim.trace_hash();
        assert_eq!(sim.trace_hash(), hash);
        sim.set_link(&b, Link { delay: Duration::from_millis(1), ..Link::default() }).unwrap();
        sim.set_up(&a, true).unwrap();
        sim.rule(Rule::new(Class::Nak, Action::Pass)).unwrap();
        drop(sim.rule_while(Rule::new(Class::Any, Action::Drop)).unwrap());
        sim.spawn(async { Ok(()) });
        sim.at(Duration::from_secs(1), |_| ());
        sim.raise(&a, Event::GidChange { port: 1 }).unwrap();
        sim.rule_while(Rule::new(Class::Ack, Action::Duplicate)).unwrap()
    });
    assert_eq!(guard.hits().hits, 1, "the ACK came after the tap");
    assert!(sim.now() > Duration::from_millis(1), "on the new link");
    assert_eq!(sides[0].ctx.wait_event(Duration::ZERO), Ok(Event::GidChange { port: 1 }));
}

#[test]
fn a_tap_may_remove_or_replace_itself() {
    let sim = Sim::new(1);
    let [a, b] = pair(&sim);
    b.qp.post_recv((0..3).map(|id| RecvWr::new(id, ()))).unwrap();
    let seen = Arc::new(Mutex::new([0; 2]));
    let (first, second, inner) = (Arc::clone(&seen), Arc::clone(&seen), sim.clone());
    sim.tap(move |_| {
        first.lock().unwrap()[0] += 1;
        let (second, innermost) = (Arc::clone(&second), inner.clone());
        inner.tap(move |_| {
            second.lock().unwrap()[1] += 1;
            innermost.untap();
            Verdict::Pass
        });
        Verdict::Pass
    });
    for id in 0..3 {
        a.done(SendWr::send(id, ()));
    }
    assert_eq!(*seen.lock().unwrap(), [1, 1]);
}

#[test]
fn what_moves_time_or_calls_verbs_is_refused_with_a_sentence() {
    let sim = Sim::new(1);
    let sides = pair(&sim);
    let (a, cq) = (sides[0].ctx.clone(), sides[0].cq.clone());
    let said = at_a_packet(&sim, &sides, move |sim| {
        let panics = |f: &dyn Fn()| {
            let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_err();
            panic.downcast_ref::<String>().unwrap().clone()
        };
        vec![
            panics(&|| sim.settle()),
            panics(&|| sim.run_for(Duration::from_millis(1))),
            panics(&|| sim.block_on(async {})),
            sim.try_host(Link::default()).unwrap_err().to_string(),
            sim.trace(10).map(drop).unwrap_err().to_string(),
            sim.reboot(&a).unwrap_err().to_string(),
            cq.wait(Duration::ZERO).unwrap_err().to_string(),
            a.alloc_pd().unwrap_err().to_string(),
        ]
    });
    for (i, said) in said.iter().enumerate() {
        assert!(said.contains("a tap runs inside the network"), "{i}: {said}");
    }
}

#[test]
fn what_is_scheduled_may_call_verbs_and_not_move_time() {
    let sim = Sim::new(1);
    let [a, b] = pair(&sim);
    let to = b.memory(8);
    let said = Arc::new(Mutex::new(Vec::new()));
    let (a, place, remote) = (Arc::new(a), Arc::clone(&said), to.remote());
    let poster = Arc::clone(&a);
    sim.at(Duration::from_millis(2), move |sim| {
        assert_eq!(sim.now(), Duration::from_millis(2));
        poster.post(SendWr::write(1, inline(b"x"), remote));
        let mut one = [WorkCompletion::default()];
        place.lock().unwrap().push(poster.cq.poll(&mut one).unwrap_err());
        place.lock().unwrap().push(poster.cq.wait(Duration::MAX).map(drop).unwrap_err());
    });
    let order = Arc::new(Mutex::new(Vec::new()));
    for n in 0..3 {
        let order = Arc::clone(&order);
        sim.at(Duration::from_millis(1), move |_| order.lock().unwrap().push(n));
    }
    assert_eq!(a.sent(), (1, WcStatus::Success));
    assert_eq!(*order.lock().unwrap(), [0, 1, 2]);
    for e in said.lock().unwrap().iter() {
        assert_eq!(e.errno(), Some(35));
        assert!(e.to_string().contains("Sim::at"), "{e}");
    }
    // What is late is done next.
    let late = Arc::clone(&order);
    sim.at(Duration::ZERO, move |_| late.lock().unwrap().push(9));
    sim.settle();
    assert_eq!(order.lock().unwrap().last(), Some(&9));
}

#[test]
fn a_tap_that_panics_loses_no_packet() {
    let sim = Sim::new(1);
    let [a, b] = pair(&sim);
    b.qp.post_recv(RecvWr::new(1, ())).unwrap();
    let mut first = true;
    sim.tap(move |_| {
        if std::mem::take(&mut first) {
            panic!("a tap that panics, on purpose");
        }
        Verdict::Pass
    });
    a.post(SendWr::send(1, ()));
    let waits = std::panic::AssertUnwindSafe(|| a.sent());
    assert!(std::panic::catch_unwind(waits).is_err());
    assert_eq!(a.sent(), (1, WcStatus::Success));
    let totals = sim.total_counters();
    assert_eq!((totals.sent, totals.delivered), (2, 2));
}
