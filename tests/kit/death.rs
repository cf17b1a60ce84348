//! Hosts that die, and come back.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use softroce::prelude::*;
use softroce::sim::{Link, Sim, Verdict};
use softroce::verbs::AhAttr;

use super::{LONG, Side, connect, pair};

const EIO: i32 = 5;

#[test]
fn peers_find_out_by_their_timeouts() {
    let sim = Sim::new(1);
    let [a, b] = sim.hosts(Link::default());
    // 4.096 us * 2^10, four times.
    let over = QpAttr::default().timeout(10).retry_cnt(3);
    let [x, y] = connect([&a, &b], QpType::Rc, &over);
    let to = y.memory(8);
    x.done(SendWr::write(1, inline(b"x"), to.remote()));
    sim.kill(&b).unwrap();
    let (start, sent) = (sim.now(), sim.link_counters(&b).unwrap().sent);
    x.qp.post_recv(RecvWr::new(9, ())).unwrap();
    x.qp.post_send((2..4).map(|id| SendWr::write(id, inline(b"y"), to.remote()))).unwrap();
    assert_eq!(x.sent(), (2, WcStatus::RetryExc));
    let timeout = Duration::from_nanos(4096 << 10);
    let took = sim.now() - start;
    assert!((4 * timeout..5 * timeout).contains(&took), "{took:?}");
    assert_eq!(x.sent(), (3, WcStatus::WrFlush));
    assert_eq!(x.received(), (9, WcStatus::WrFlush));
    assert_eq!(sim.link_counters(&b).unwrap().sent, sent, "nothing is said");
    assert_eq!(to.to_vec(0..1), b"x", "what had arrived can be looked at, and nothing came since");
}

#[test]
fn nothing_under_way_is_finished() {
    let sim = Sim::new(1);
    let [a, b] = pair(&sim);
    let (from, to) = (a.memory(1 << 20), b.memory(1 << 20));
    from.fill(0..1 << 20, 1);
    a.post(SendWr::write(1, from.sge(..), to.remote()));
    sim.run_for(Duration::from_micros(20));
    sim.kill(&a.ctx).unwrap();
    let sent = sim.link_counters(&a.ctx).unwrap().sent;
    sim.settle();
    assert_eq!(sim.link_counters(&a.ctx).unwrap().sent, sent);
    let arrived = to.to_vec(0..1 << 20).iter().filter(|&&b| b == 1).count();
    assert!(arrived > 0 && arrived < 1 << 20, "{arrived}");
    assert_eq!(a.cq.drain(), [], "no flush");
    assert_eq!(b.state(), QpState::Rts, "the peer does not know");
    let totals = sim.total_counters();
    assert_eq!(totals.sent, totals.delivered + totals.dropped());
}

#[test]
fn verbs_of_the_dead_fail_with_a_sentence() {
    let sim = Sim::new(1);
    let [a, b] = pair(&sim);
    let channel = a.ctx.create_comp_channel().unwrap();
    let srq = a.pd.create_srq(8, 1).unwrap();
    let mr = a.memory(8);
    sim.kill(&a.ctx).unwrap();
    sim.kill(&a.ctx).unwrap();
    let mut one = [WorkCompletion::default()];
    let refused = [
        a.ctx.alloc_pd().map(drop),
        a.ctx.create_cq(1).map(drop),
        a.ctx.attr().map(drop),
        a.ctx.port(1).map(drop),
        a.ctx.counters(1).map(drop),
        a.pd.alloc_mr(8, Access::LOCAL).map(drop),
        a.pd.create_qp(QpType::Rc, &a.cq).build().map(drop),
        a.qp.post_send(SendWr::send(1, ())),
        a.qp.post_recv(RecvWr::new(1, ())),
        srq.post_recv(RecvWr::new(1, ())),
        a.qp.modify(&QpAttr::to(QpState::Err)),
        a.qp.query().map(drop),
        a.cq.poll(&mut one).map(drop),
        a.cq.wait(LONG).map(drop),
        sim.block_on(a.cq.next()).map(drop),
        channel.wait(LONG).map(drop),
        a.ctx.wait_event(LONG).map(drop),
        sim.set_up(&a.ctx, true),
        sim.raise(&a.ctx, Event::DeviceFatal),
        sim.late_placement(&a.ctx, LONG),
        sim.spawn_on(&a.ctx, async { Ok(()) }),
    ];
    for (i, refused) in refused.into_iter().enumerate() {
        let e = refused.expect_err(&i.to_string());
        assert_eq!(e.errno(), Some(EIO), "{i}: {e}");
        assert!(e.to_string().contains("killed"), "{i}: {e}");
    }
    assert_eq!(sim.now(), Duration::ZERO);
    drop((mr, srq, channel, a));
    sim.settle();
    assert_eq!(b.state(), QpState::Rts);
}

#[test]
fn who_waits_learns_it_at_once() {
    let sim = Sim::new(1);
    let [a, b] = pair(&sim);
    let at = Duration::from_millis(3);
    let victim = b.ctx.clone();
    sim.at(at, move |sim| sim.kill(&victim).unwrap());
    let e = b.cq.wait(Duration::MAX).unwrap_err();
    assert_eq!((e.errno(), sim.now()), (Some(EIO), at));
    // A task, too.
    let victim = a.ctx.clone();
    sim.at(2 * at, move |sim| sim.kill(&victim).unwrap());
    assert_eq!(sim.block_on(a.cq.next()).unwrap_err().errno(), Some(EIO));
    assert_eq!(sim.now(), 2 * at);
}

#[test]
fn tasks_of_a_host_die_with_it() {
    let sim = Sim::new(1);
    let [a, b] = pair(&sim);
    let counts = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
    for (i, side) in [&a, &b].into_iter().enumerate() {
        let (sim2, counts) = (sim.clone(), Arc::clone(&counts));
        let task = async move {
            loop {
                sim2.sleep(Duration::from_millis(1)).await;
                counts[i].fetch_add(1, Ordering::Relaxed);
            }
        };
        sim.spawn_on(&side.ctx, task).unwrap();
    }
    // One that would fail of it.
    let cq = b.cq.clone();
    sim.spawn_on(&b.ctx, async move { cq.next().await.map(drop) }).unwrap();
    sim.block_on(async {
        sim.sleep(Duration::from_micros(5500)).await;
        sim.kill(&b.ctx).unwrap();
        sim.sleep(Duration::from_millis(5)).await;
    });
    assert_eq!(counts.each_ref().map(|n| n.load(Ordering::Relaxed)), [10, 5]);
    // The other loop holds the simulation.
    sim.end();
    assert_eq!(Arc::strong_count(&counts), 1);
}

#[test]
fn a_host_comes_back_with_nothing_but_its_address() {
    let sim = Sim::new(1);
    let [a, b] = pair(&sim);
    let old = b.qp.endpoint();
    let lent = b.memory(8).remote();
    sim.kill(&b.ctx).unwrap();
    let again = sim.reboot(&b.ctx).unwrap();
    assert_eq!(again.gids().unwrap(), a_gids(&again));
    assert_eq!(again.device().name, b.ctx.device().name);
    assert!(b.ctx.alloc_pd().is_err(), "the old device stays dead");
    assert_eq!(sim.reboot(&b.ctx).unwrap_err().errno(), Some(22), "it runs again already");
    sim.kill(&b.ctx).unwrap();
    assert!(again.alloc_pd().is_ok(), "killing the dead does not kill its successor");

    // Nobody answers for the dead.
    a.post(SendWr::write(1, inline(b"x"), lent));
    assert_eq!(a.sent(), (1, WcStatus::RetryExc));
    let unknown = again.counters(1).unwrap()["drop_no_qp"];
    assert!(unknown > 0, "{:?}", again.counters(1));
    let [x, y] = connect([&a.ctx, &again], QpType::Rc, &QpAttr::default());
    assert_ne!((y.qp.endpoint().qpn, y.qp.endpoint().psn), (old.qpn, old.psn));
    let to = y.memory(8);
    x.done(SendWr::write(2, inline(b"y"), to.remote()));
    assert_eq!(to.to_vec(0..1), b"y");
    // With the old handles gone, too.
    drop(b);
    x.done(SendWr::write(3, inline(b"z"), to.remote()));
    // And once more, in one go.
    let third = sim.reboot(&again).unwrap();
    assert!(again.alloc_pd().is_err() && third.alloc_pd().is_ok());
}

fn a_gids(ctx: &Context) -> Vec<softroce::verbs::GidEntry> {
    let gids = ctx.gids().unwrap();
    let ips: Vec<_> = gids.iter().map(|g| g.gid.ip().unwrap().to_string()).collect();
    assert_eq!(ips, ["10.0.0.2", "fd00::2"]);
    gids
}

#[test]
fn the_same_run_again_with_deaths_in_it() {
    let run = || {
        let sim = Sim::new(9);
        let [a, b] = pair(&sim);
        let to = b.memory(1 << 16);
        a.post(SendWr::write(1, a.memory(1 << 16).sge(..), to.remote()));
        sim.run_for(Duration::from_micros(9));
        let again = sim.reboot(&b.ctx).unwrap();
        let [x, y] = connect([&a.ctx, &again], QpType::Rc, &QpAttr::default());
        x.done(SendWr::write(1, inline(b"x"), y.memory(8).remote()));
        (sim.trace_hash(), sim.now(), y.qp.number())
    };
    assert_eq!(run(), run());
}

#[test]
fn a_tap_may_kill() {
    let sim = Sim::new(1);
    let [a, b] = pair(&sim);
    b.qp.post_recv((0..8).map(|id| RecvWr::new(id, ()))).unwrap();
    let (sim2, victim) = (sim.clone(), b.ctx.clone());
    let mut requests = 0;
    sim.tap(move |packet| {
        requests += u32::from(packet.is_request());
        if requests == 3 {
            sim2.kill(&victim).unwrap();
        }
        Verdict::Pass
    });
    a.qp.post_send((0..8).map(|id| SendWr::send(id, ()))).unwrap();
    while a.sent().1 == WcStatus::Success {}
    assert_eq!(a.state(), QpState::Err);
    sim.untap();
}

#[test]
fn the_dead_are_in_no_group() {
    let sim = Sim::new(1);
    let hosts: [Context; 2] = sim.hosts(Link::default());
    let [x, y] = hosts.each_ref().map(|ctx| Side::new(ctx, QpType::Ud));
    let group = Gid::from(std::net::IpAddr::from([239, 1, 2, 3]));
    for side in [&x, &y] {
        side.qp.activate(1).unwrap();
    }
    y.qp.attach_mcast(group).unwrap();
    let ah = x.pd.create_ah(&AhAttr { dgid: group, ..x.qp.endpoint().ah() });
    let ah = ah.unwrap();
    let send = |id| SendWr::send(id, inline(b"x")).to(&ah, 0xff_ffff, 1);
    x.done(send(1));
    sim.settle();
    assert_eq!(sim.link_counters(&hosts[1]).unwrap().delivered, 1);
    sim.kill(&hosts[1]).unwrap();
    x.done(send(2));
    sim.settle();
    assert_eq!(sim.link_counters(&hosts[0]).unwrap().no_route, 1, "nobody is in it");
    let seen = Arc::new(Mutex::new(0));
    let count = Arc::clone(&seen);
    sim.tap(move |_| {
        *count.lock().unwrap() += 1;
        Verdict::Pass
    });
    x.done(send(3));
    sim.settle();
    assert_eq!(*seen.lock().unwrap(), 0);
}
