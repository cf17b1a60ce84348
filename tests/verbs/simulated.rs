//! What only a simulation has: virtual time, one driver, taps that must not call back, the same run again.

use std::sync::{Arc, Mutex};
use std::thread;

use softroce::prelude::*;
use softroce::sim::{Link, Sim, Verdict};
use softroce::verbs::{Cause, PortState};

use crate::testbed::{Pair, Side};

const EDEADLK: i32 = 35;

fn pair(sim: &Sim, link: Link) -> Pair {
    let [a, b] = sim.hosts(link);
    Pair::connect(Side::new(&a), Side::new(&b), &QpAttr::default())
}

#[test]
fn time_jumps_over_silence_and_stands_still_otherwise() {
    let sim = Sim::new(1);
    let Pair { a, b } = pair(&sim, Link::default());
    assert_eq!(sim.now(), Duration::ZERO, "setting up takes no time");
    assert_eq!(a.cq.wait(Duration::from_secs(3600)), Err(Error::Timeout));
    assert_eq!(sim.now(), Duration::from_secs(3600));
    let to = b.memory(8);
    a.post(SendWr::write(1, inline(b"x"), to.remote()));
    assert_eq!(sim.now(), Duration::from_secs(3600), "posting takes no time");
    for _ in 0..100 {
        assert_eq!(to.load(0, std::sync::atomic::Ordering::Acquire), 0, "looking moves no time");
    }
    a.sent().ok().unwrap();
    // There and back over two cables each way, 2 us each.
    let trip = sim.now() - Duration::from_secs(3600);
    assert!((8..10).contains(&trip.as_micros()), "{trip:?}");
    sim.run_for(Duration::from_millis(5));
    assert_eq!(sim.now(), Duration::from_secs(3600) + trip + Duration::from_millis(5));
    sim.settle();
}

#[test]
fn waiting_for_what_can_never_come_is_an_error() {
    let sim = Sim::new(1);
    let Pair { a, .. } = pair(&sim, Link::default());
    let e = a.cq.wait(Duration::MAX).unwrap_err();
    assert_eq!(e.errno(), Some(EDEADLK));
    assert!(e.to_string().contains("for ever"), "{e}");
    let e = a.ctx.wait_event(Duration::MAX).unwrap_err();
    assert_eq!(e.errno(), Some(EDEADLK));
    let channel = a.ctx.create_comp_channel().unwrap();
    assert_eq!(channel.wait(Duration::MAX).map(drop).unwrap_err().errno(), Some(EDEADLK));
    assert_eq!(sim.now(), Duration::ZERO);
}

#[test]
fn one_thread_drives() {
    let sim = Sim::new(1);
    let Pair { a, b } = pair(&sim, Link::default());
    b.qp.post_recv((0..2).map(|id| RecvWr::new(id, ()))).unwrap();
    a.done(SendWr::send(1, ()));
    thread::scope(|s| {
        s.spawn(|| {
            // Setting up and posting do not move time, so everybody may.
            let _more = Side::new(&a.ctx);
            a.post(SendWr::send(2, ()));
            let e = a.cq.wait(Duration::from_secs(1)).unwrap_err();
            assert_eq!(e.errno(), Some(EDEADLK));
            assert!(e.to_string().contains("Sim::shared"), "{e}");
            assert_eq!(
                a.cq.poll(&mut [WorkCompletion::default()]).unwrap_err().errno(),
                Some(EDEADLK)
            );
        });
    });
    a.sent().ok().unwrap();
    sim.shared();
    thread::scope(|s| {
        s.spawn(|| a.cq.wait(Duration::from_secs(1)).unwrap_err());
    });
}

#[test]
fn calling_into_the_simulation_from_a_tap_is_an_error() {
    let sim = Sim::new(1);
    let Pair { a, b } = pair(&sim, Link::default());
    b.qp.post_recv(RecvWr::new(1, ())).unwrap();
    let mr = Arc::new(b.memory(8));
    let errors = Arc::new(Mutex::new(Vec::new()));
    let (seen, ctx, cq, memory) =
        (Arc::clone(&errors), a.ctx.clone(), a.cq.clone(), Arc::clone(&mr));
    sim.tap(move |packet| {
        let mut seen = seen.lock().unwrap();
        if seen.is_empty() {
            seen.push(ctx.alloc_pd().map(drop).unwrap_err());
            seen.push(ctx.create_cq(1).map(drop).unwrap_err());
            seen.push(ctx.attr().map(drop).unwrap_err());
            seen.push(ctx.counters(1).map(drop).unwrap_err());
            seen.push(cq.poll(&mut [WorkCompletion::default()]).map(drop).unwrap_err());
            seen.push(cq.wait(Duration::from_secs(1)).map(drop).unwrap_err());
            seen.push(ctx.wait_event(Duration::ZERO).map(drop).unwrap_err());
        }
        // Looking at memory and at the packet is what a tap may do.
        assert_eq!(memory.to_vec(0..1), [0]);
        assert!(packet.opcode().is_some());
        Verdict::Pass
    });
    a.done(SendWr::send(1, ()));
    for e in errors.lock().unwrap().iter() {
        assert_eq!(e.errno(), Some(EDEADLK), "{e}");
        assert!(matches!(e.cause(), Some(Cause::Deadlock { .. })), "{e}");
    }
    assert_eq!(errors.lock().unwrap().len(), 7);
    // It holds a device.
    sim.end();
    assert_eq!(Arc::strong_count(&errors), 1);
}

#[test]
fn a_tap_may_drop_what_it_holds() {
    let sim = Sim::new(1);
    let Pair { a, b } = pair(&sim, Link::default());
    let to = b.memory(8);
    // The last handle of an object goes inside the network.
    let mut held = Some((a.memory(8), Side::new(&a.ctx)));
    sim.tap(move |_| {
        held.take();
        Verdict::Pass
    });
    a.done(SendWr::write(1, inline(b"x"), to.remote()));
    a.done(SendWr::write(2, inline(b"x"), to.remote()));
}

#[test]
fn a_tap_drops_delays_doubles_and_replaces() {
    let sim = Sim::new(1);
    let Pair { a, b } = pair(&sim, Link::default());
    b.qp.post_recv((0..4).map(|id| RecvWr::new(id, ()))).unwrap();
    let mut n = 0;
    sim.tap(move |packet| {
        n += 1;
        match n {
            1 => Verdict::Drop,
            2 => Verdict::Duplicate,
            3 => Verdict::Delay(Duration::from_micros(700)),
            4 => {
                let last = packet.bytes.len() - 1;
                packet.bytes[last] ^= 1;
                Verdict::Replace
            }
            _ => Verdict::Pass,
        }
    });
    for id in 0..4 {
        a.done(SendWr::send(id, ()));
    }
    for id in 0..4 {
        assert_eq!(b.received().ok().unwrap().wr_id, id);
    }
    assert_eq!(b.rcq.drain(), []);
    let wrong = a.counter("rx_icrc_encapsulated") + b.counter("rx_icrc_encapsulated");
    assert_eq!(wrong, 1);
    sim.untap();
    assert_eq!(b.counter("duplicate_send"), 1 + 2 * (wrong - 1), "{:?}", b.ctx.counters(1));
}

#[test]
fn links_that_make_no_sense() {
    let sim = Sim::new(1);
    for (link, field) in [
        (Link { loss: 1.5, ..Link::default() }, "loss"),
        (Link { reorder: -0.1, ..Link::default() }, "reorder"),
        (Link { duplicate: f64::NAN, ..Link::default() }, "duplicate"),
        (Link { bits_per_s: 0, ..Link::default() }, "bits_per_s"),
        (Link { mtu: 100, ..Link::default() }, "mtu"),
    ] {
        let e = sim.try_host(link).map(drop).unwrap_err();
        assert_eq!(e.errno(), Some(22));
        assert!(e.to_string().contains(field) || e.to_string().contains("MTU"), "{e}");
    }
    let [host] = sim.hosts(Link::default());
    let [foreign] = Sim::new(2).hosts(Link::default());
    assert_eq!(sim.set_link(&foreign, Link::default()).unwrap_err().errno(), Some(22));
    assert_eq!(sim.set_up(&foreign, false).unwrap_err().errno(), Some(22));
    sim.set_link(&host, Link { loss: 0.1, ..Link::default() }).unwrap();
}

#[test]
fn a_path_mtu_above_what_the_port_carries() {
    let sim = Sim::new(1);
    let [a, b] = sim.hosts(Link { mtu: 1500, ..Link::default() });
    assert_eq!(a.port(1).unwrap().active_mtu, Mtu::B1024);
    let [x, y] = [&a, &b].map(Side::new);
    let over = QpAttr::default().path_mtu(Mtu::B2048);
    let e = x.qp.connect_with(&y.qp.endpoint(), over).unwrap_err();
    assert_eq!(e.cause(), Some(&Cause::PathMtu { asked: Mtu::B2048, port: Mtu::B1024 }));
    assert!(e.to_string().contains("2048") && e.to_string().contains("1024"), "{e}");
    // By itself the smaller of both is taken.
    Pair::connect(Side::new(&a), Side::new(&b), &QpAttr::default());
    let [narrow] = sim.hosts(Link { mtu: 600, ..Link::default() });
    let pair = Pair::connect(Side::new(&a), Side::new(&narrow), &QpAttr::default());
    assert_eq!(pair.a.qp.query().unwrap().path_mtu, Some(Mtu::B256));
    let to = pair.b.memory(5000);
    pair.a.done(SendWr::write(1, pair.a.memory(5000).sge(..0), to.remote()));
}

#[test]
fn a_cable_that_is_pulled() {
    let sim = Sim::new(1);
    let [a, b] = sim.hosts(Link::default());
    let over = QpAttr::default().timeout(14).retry_cnt(7);
    let Pair { a, b } = Pair::connect(Side::new(&a), Side::new(&b), &over);
    let to = b.memory(8);
    sim.set_up(&b.ctx, false).unwrap();
    a.post(SendWr::write(1, inline(b"x"), to.remote()));
    sim.run_for(Duration::from_millis(300));
    assert_eq!(a.cq.drain(), []);
    sim.set_up(&b.ctx, true).unwrap();
    a.sent().ok().unwrap();
    // Pulled for good: eight times 67 ms, and not longer.
    sim.set_up(&b.ctx, false).unwrap();
    let before = sim.now();
    assert_eq!(a.outcome(SendWr::write(2, inline(b"x"), to.remote())), WcStatus::RetryExc);
    let took = sim.now() - before;
    assert_eq!(took.as_millis(), 8 * 67, "{took:?}");
}

#[test]
fn a_pulled_cable_is_told_to_everybody_who_opened_the_device() {
    let sim = Sim::new(1);
    let [a, b] = sim.hosts(Link::default());
    sim.set_up(&a, false).unwrap();
    assert_eq!(a.wait_event(Duration::ZERO), Ok(Event::PortErr { port: 1 }));
    assert_eq!(a.port(1).unwrap().state, PortState::Down);
    sim.set_up(&a, false).unwrap();
    assert_eq!(a.wait_event(Duration::ZERO), Err(Error::Timeout), "nothing has changed");
    sim.set_up(&a, true).unwrap();
    assert_eq!(a.wait_event(Duration::ZERO), Ok(Event::PortActive { port: 1 }));
    assert_eq!(a.port(1).unwrap().state, PortState::Active);
    assert_eq!(b.wait_event(Duration::ZERO), Err(Error::Timeout), "its own cable is in");
}

#[test]
fn partitions_keep_their_members_among_themselves() {
    let sim = Sim::new(1);
    let host = |keys: &[u16]| sim.try_host_in(Link::default(), keys).unwrap();
    let (a, b) = (host(&[0x8001, 0x0002]), host(&[0x0002, 0x8001, 0x8002]));
    let keys = |ctx: &Context| {
        let n = ctx.port(1).unwrap().pkey_len;
        assert_eq!(n, ctx.attr().unwrap().max_pkeys);
        (0..n).map(|i| ctx.pkey(1, i).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(keys(&a), [0xffff, 0x8001, 0x0002]);
    assert_eq!(keys(&b), [0xffff, 0x0002, 0x8001, 0x8002]);
    let e = a.pkey(1, 3).unwrap_err();
    assert_eq!(e.cause(), Some(&Cause::AttrRange { attr: "pkey_index", got: 3, max: 2 }));
    let patience = QpAttr::default().timeout(8).retry_cnt(1);
    // 0xffff with itself, full with full, limited with full; limited with limited, and strangers.
    for (i, j, talk) in [(0, 0, true), (1, 2, true), (2, 3, true), (2, 1, false), (1, 3, false)] {
        let side = |ctx: &Context, index| Side::with(ctx, |qp| qp.pkey_index(index));
        let Pair { a, b } = Pair::connect(side(&a, i), side(&b, j), &patience);
        let before = b.counter("bad_pkey_cntr");
        b.qp.post_recv(RecvWr::new(1, ())).unwrap();
        let want = if talk { WcStatus::Success } else { WcStatus::RetryExc };
        assert_eq!(a.outcome(SendWr::send(1, ())), want, "{i} {j}");
        assert_eq!(b.counter("bad_pkey_cntr") > before, !talk);
        assert_eq!(a.qp.query().unwrap().pkey_index, Some(i));
    }
    for keys in [&[0_u16][..], &[0x8000], &[1; 128]] {
        assert_eq!(sim.try_host_in(Link::default(), keys).unwrap_err().errno(), Some(22));
    }
}

#[test]
fn a_task_that_fails_ends_the_run() {
    let sim = Sim::new(1);
    let Pair { a, b } = pair(&sim, Link::default());
    let cq = a.cq.clone();
    sim.spawn(async move {
        cq.next().await?.ok()?;
        Err(Error::Timeout)
    });
    b.qp.post_recv(RecvWr::new(1, ())).unwrap();
    a.post(SendWr::send(1, ()));
    let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        sim.block_on(sim.sleep(Duration::from_secs(1)));
    }));
    let why = died.unwrap_err();
    let why = why.downcast_ref::<String>().unwrap();
    assert!(why.contains("seed 1") && why.contains("nothing came in time"), "{why}");
}

#[test]
fn tasks_sleep_in_virtual_time_and_wake_in_order() {
    let sim = Sim::new(1);
    let _hosts: [Context; 2] = sim.hosts(Link::default());
    let order = Arc::new(Mutex::new(Vec::new()));
    for ms in [30_u64, 10, 20, 10] {
        let (here, order) = (sim.clone(), Arc::clone(&order));
        sim.spawn(async move {
            here.sleep(Duration::from_millis(ms)).await;
            order.lock().unwrap().push((ms, here.now()));
            Ok(())
        });
    }
    sim.block_on(sim.sleep(Duration::from_millis(40)));
    let at = |ms| (ms, Duration::from_millis(ms));
    assert_eq!(*order.lock().unwrap(), [at(10), at(10), at(20), at(30)]);
    assert_eq!(sim.now(), Duration::from_millis(40));
}

#[test]
fn a_task_that_can_never_end_is_a_panic_and_no_hang() {
    let sim = Sim::new(7);
    let [a] = sim.hosts(Link::default());
    let cq = a.create_cq(1).unwrap();
    let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = sim.block_on(cq.next());
    }));
    let why = died.unwrap_err();
    assert!(why.downcast_ref::<String>().unwrap().contains("nothing is left to happen"));
}

#[test]
fn equal_seeds_give_equal_runs_and_others_do_not() {
    let run = |seed| {
        let sim = Sim::new(seed);
        let bad = Link { loss: 0.05, reorder: 0.02, duplicate: 0.02, ..Link::default() };
        let Pair { a, b } = pair(&sim, bad);
        let (from, to) = (a.memory(200_000), b.memory(200_000));
        a.done(SendWr::write(1, from.sge(..), to.remote()));
        a.done(SendWr::read(2, from.sge(..), to.remote()));
        (sim.trace_hash(), sim.now(), a.qp.number(), to.rkey(), to.iova(), a.qp.endpoint().psn)
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5).0, run(6).0);
}

#[test]
fn simulations_side_by_side_do_not_know_each_other() {
    let run = |seed| {
        let sim = Sim::new(seed);
        let Pair { a, b } = pair(&sim, Link { loss: 0.05, ..Link::default() });
        let (from, to) = (a.memory(20_000), b.memory(20_000));
        a.done(SendWr::write(1, from.sge(..), to.remote()));
        (sim.trace_hash(), sim.now(), a.qp.number(), to.rkey())
    };
    let alone: Vec<_> = (0..10).map(run).collect();
    // Ten threads, each with a hundred of them, all with the same names and addresses.
    thread::scope(|s| {
        for start in 0..10_usize {
            let (alone, run) = (&alone, &run);
            s.spawn(move || {
                for seed in (0..100).map(|i| (start + i) % 10) {
                    assert_eq!(run(seed as u64), alone[seed], "seed {seed}");
                }
            });
        }
    });
}

/// A line on which one of two hundred packets is lost, and two ends that would recover so.
fn bad_line(recovery: [Recovery; 2]) -> (Sim, [Side; 2]) {
    let sim = Sim::new(5);
    let hosts = sim.hosts(Link { loss: 0.005, ..Link::default() });
    let [x, y] = recovery;
    let [a, b] = hosts.each_ref();
    let sides = [
        Side::with(a, |builder| builder.recovery(x)),
        Side::with(b, |builder| builder.recovery(y)),
    ];
    (sim, sides)
}

/// Messages long enough to be acknowledged in their middle.
fn writes_arrive(from: &Side, to: &Side) {
    let (src, dst) = (from.memory(200 << 10), to.memory(200 << 10));
    for id in 0..20 {
        from.post(SendWr::write(id, src.sge(..), dst.remote()));
    }
    for _ in 0..20 {
        from.sent().ok().unwrap();
    }
}

#[test]
fn an_end_that_is_brought_up_by_hand_understands_what_its_endpoint_offers() {
    let at_1024 = || QpAttr::default().path_mtu(Mtu::B1024);
    for recovery in [Recovery::Selective, Recovery::GoBack0] {
        let (_sim, [a, b]) = bad_line([recovery; 2]);
        for life in 0..2 {
            if life > 0 {
                for side in [&a, &b] {
                    side.qp.modify(&QpAttr::to(QpState::Reset)).unwrap();
                }
                let init = QpAttr::to(QpState::Init).port(1).pkey_index(0).access(Access::REMOTE);
                b.qp.modify(&init).unwrap();
            }
            let (mine, theirs) = (b.qp.endpoint(), a.qp.endpoint());
            a.qp.connect_with(&mine, at_1024()).unwrap();
            let rtr = QpAttr::to(QpState::Rtr)
                .ah(theirs.ah())
                .path_mtu(Mtu::B1024)
                .dest_qpn(theirs.qpn)
                .rq_psn(theirs.psn)
                .max_dest_rd_atomic(1)
                .min_rnr_timer(12);
            b.qp.modify(&rtr).unwrap();
            let rts = QpAttr::to(QpState::Rts).sq_psn(mine.psn);
            b.qp.modify(&rts.timeout(10).retry_cnt(7).rnr_retry(7).max_rd_atomic(1)).unwrap();
            writes_arrive(&b, &a);
            assert!(b.counter("rcvd_seq_err") > 0, "{recovery:?}");
            assert_eq!(a.counter("held_requests") > 0, recovery == Recovery::Selective);
        }
    }
}

#[test]
fn to_connect_again_in_vain_changes_nothing() {
    let (_sim, [a, b]) = bad_line([Recovery::GoBack0, Recovery::GoBackN]);
    let over = || QpAttr::default().path_mtu(Mtu::B1024).timeout(10);
    a.qp.connect_with(&b.qp.endpoint(), over()).unwrap();
    b.qp.connect_with(&a.qp.endpoint(), over()).unwrap();
    let other = QpEndpoint { recovery: Recovery::GoBack0, ..b.qp.endpoint() };
    let e = a.qp.connect_with(&other, over()).unwrap_err();
    assert!(matches!(e.cause(), Some(Cause::NoTransition { .. })), "{e}");
    // It would start messages over, and its peer has never heard of that.
    writes_arrive(&b, &a);
    assert!(b.counter("rcvd_seq_err") > 0);
}
