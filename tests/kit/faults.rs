//! Verbs that fail by themselves, and events from nowhere.

use softroce::prelude::*;
use softroce::sim::{Link, Sim, VerbFault};

use super::{LONG, connect, pair};

use WcStatus::{LocProt, RemAccess, RemOp, RetryExc, Success, WrFlush};

const ENOMEM: i32 = 12;
const EINVAL: i32 = 22;

#[test]
fn the_nth_post_fails_and_the_next_one_does_not() {
    let sim = Sim::new(1);
    let [a, b] = pair(&sim);
    let to = b.memory(8);
    let write = |id| SendWr::write(id, inline(b"x"), to.remote());
    let guard = sim.fault_while(VerbFault::post(ENOMEM).of(&a.qp).nth(2)).unwrap();
    a.done(write(1));
    let e = a.qp.post_send(write(2)).unwrap_err();
    assert_eq!(e.errno(), Some(ENOMEM));
    assert!(e.cause().unwrap().is_shortage(), "{e}");
    assert!(e.to_string().contains("Sim::fault"), "{e}");
    a.done(write(3));
    assert_eq!((guard.hits().seen, guard.hits().hits), (3, 1));
    assert_eq!(a.cq.drain(), [], "what was refused leaves nothing behind");
}

#[test]
fn within_a_batch_the_rest_is_not_looked_at() {
    let sim = Sim::new(1);
    let [a, b] = pair(&sim);
    let to = b.memory(8);
    sim.fault(VerbFault::post_send(5).nth(3)).unwrap();
    let all = (0..5).map(|id| SendWr::write(id, inline(b"x"), to.remote()));
    let e = a.qp.post_send(all).unwrap_err();
    assert!(matches!(e, Error::Post { posted: 2, errno: 5, .. }), "{e}");
    assert_eq!([a.sent(), a.sent()], [(0, Success), (1, Success)]);
}

#[test]
fn receives_fail_too_also_shared_ones() {
    let sim = Sim::new(1);
    let [a, b] = pair(&sim);
    let srq = b.pd.create_srq(8, 1).unwrap();
    sim.fault(VerbFault::post_recv(ENOMEM).on(&b.ctx).every(2)).unwrap();
    let recv = |id| RecvWr::new(id, ());
    let ends = (0..4).map(|id| b.qp.post_recv(recv(id)).is_ok()).collect::<Vec<_>>();
    assert_eq!(ends, [true, false, true, false]);
    let e = srq.post_recv((0..4).map(recv)).unwrap_err();
    assert!(matches!(e, Error::Post { posted: 1, errno: ENOMEM, .. }), "{e}");
    // The other host, and the other queue, are left alone.
    a.qp.post_recv((0..4).map(recv)).unwrap();
    b.qp.post_send((0..4).map(|id| SendWr::send(id, ()))).unwrap();
}

#[test]
fn a_fault_ends_with_its_guard_and_is_only_for_its_queue_pair() {
    let sim = Sim::new(1);
    let [a, b] = sim.hosts(Link::default());
    let [x, y] = connect([&a, &b], QpType::Rc, &QpAttr::default());
    let [v, _w] = connect([&a, &b], QpType::Rc, &QpAttr::default());
    let to = y.memory(8);
    let guard = sim.fault_while(VerbFault::post(ENOMEM).of(&x.qp)).unwrap();
    assert!(x.qp.post_send(SendWr::write(1, inline(b"x"), to.remote())).is_err());
    v.post(SendWr::send(1, ()));
    assert_eq!(guard.hits().hits, 1);
    drop(guard);
    x.done(SendWr::write(2, inline(b"x"), to.remote()));
}

#[test]
fn chances_follow_the_seed() {
    let run = |seed| {
        let sim = Sim::new(seed);
        let [a, b] = pair(&sim);
        let to = b.memory(8);
        sim.fault(VerbFault::post_send(ENOMEM).chance(0.3)).unwrap();
        let posted = (0..60).map(|id| a.qp.post_send(SendWr::write(id, (), to.remote())).is_ok());
        posted.collect::<Vec<bool>>()
    };
    let first = run(1);
    let failed = first.iter().filter(|ok| !**ok).count();
    assert!((8..30).contains(&failed), "{failed}");
    assert_eq!(first, run(1));
    assert_ne!(first, run(2));
}

#[test]
fn a_request_that_fails_takes_the_queue_pair_to_err() {
    let sim = Sim::new(1);
    let [a, b] = pair(&sim);
    let to = b.memory(64);
    a.qp.post_recv(RecvWr::new(9, ())).unwrap();
    sim.fault(VerbFault::send_completion(RetryExc).of(&a.qp).nth(2)).unwrap();
    let write = |id| SendWr::write(id, inline(b"x"), to.remote().at(id));
    a.qp.post_send((1..=4).map(write)).unwrap();
    let ends = [(); 4].map(|()| a.sent());
    assert_eq!(ends, [(1, Success), (2, RetryExc), (3, WrFlush), (4, WrFlush)]);
    assert_eq!(a.received(), (9, WrFlush));
    assert_eq!((a.state(), b.state()), (QpState::Err, QpState::Rts));
    assert_eq!(to.to_vec(2..3), b"x", "it was executed");
    sim.settle();
    assert_eq!((a.cq.drain(), a.rcq.drain()), (vec![], vec![]));
}

#[test]
fn a_request_without_a_completion_gets_one_if_it_fails() {
    for kind in ["write", "read", "atomic"] {
        let sim = Sim::new(1);
        let [a, b] = pair(&sim);
        let (to, mine) = (b.memory(64), a.memory(64));
        sim.fault(VerbFault::completion(LocProt).nth(1)).unwrap();
        a.post(
            match kind {
                "write" => SendWr::write(1, mine.sge(..), to.remote()),
                "read" => SendWr::read(1, mine.sge(..), to.remote()),
                _ => SendWr::fetch_add(1, mine.sge(0..8), to.remote(), 1),
            }
            .unsignaled(),
        );
        assert_eq!(a.sent(), (1, LocProt), "{kind}");
        assert_eq!(a.state(), QpState::Err);
    }
}

#[test]
fn a_receive_that_fails_is_refused_to_its_sender() {
    let sim = Sim::new(1);
    let [a, b] = pair(&sim);
    b.qp.post_recv((1..=3).map(|id| RecvWr::new(id, ()))).unwrap();
    sim.fault(VerbFault::recv_completion(LocProt).on(&b.ctx).nth(2)).unwrap();
    a.done(SendWr::send(1, ()));
    a.post(SendWr::write(2, (), b.memory(8).remote()).imm(7));
    assert_eq!(a.sent(), (2, RemOp));
    assert_eq!(
        [b.received(), b.received(), b.received()],
        [(1, Success), (2, LocProt), (3, WrFlush)]
    );
    assert_eq!((a.state(), b.state()), (QpState::Err, QpState::Err));
}

#[test]
fn unreliable_services_stop_their_send_queue_alone() {
    let sim = Sim::new(1);
    let [a, b] = sim.hosts(Link::default());
    let [x, y] = connect([&a, &b], QpType::Uc, &QpAttr::default());
    y.qp.post_recv((1..=3).map(|id| RecvWr::new(id, ()))).unwrap();
    sim.fault(VerbFault::send_completion(RemAccess).of(&x.qp).nth(1)).unwrap();
    x.post(SendWr::send(1, ()));
    assert_eq!(x.sent(), (1, RemAccess));
    assert_eq!(x.state(), QpState::Sqe);
    assert_eq!(y.received(), (1, Success));
    x.qp.modify(&QpAttr::to(QpState::Rts)).unwrap();
    sim.fault(VerbFault::recv_completion(LocProt).of(&y.qp).nth(1)).unwrap();
    x.done(SendWr::send(2, ()));
    assert_eq!([y.received(), y.received()], [(2, LocProt), (3, WrFlush)]);
    assert_eq!((x.state(), y.state()), (QpState::Rts, QpState::Err));
}

#[test]
fn datagrams_fail_at_either_end() {
    let sim = Sim::new(1);
    let [a, b] = sim.hosts(Link::default());
    let [x, y] = [&a, &b].map(|ctx| super::Side::new(ctx, QpType::Ud));
    x.qp.activate(1).unwrap();
    y.qp.activate(1).unwrap();
    let to = y.qp.endpoint();
    let ah = x.pd.create_ah(&to.ah()).unwrap();
    let room = y.memory(64);
    y.qp.post_recv((1..=2).map(|id| RecvWr::new(id, room.sge(..)))).unwrap();
    sim.fault(VerbFault::send_completion(LocProt).of(&x.qp).nth(2)).unwrap();
    sim.fault(VerbFault::recv_completion(RemAccess).of(&y.qp).nth(1)).unwrap();
    let send = |id| SendWr::send(id, inline(b"hello")).to(&ah, to.qpn, to.qkey);
    x.qp.post_send((1..=2).map(send)).unwrap();
    assert_eq!([x.sent(), x.sent()], [(1, Success), (2, LocProt)]);
    assert_eq!(x.state(), QpState::Sqe);
    assert_eq!([y.received(), y.received()], [(1, RemAccess), (2, WrFlush)]);
}

#[test]
fn faults_that_make_no_sense() {
    let sim = Sim::new(1);
    let [foreign] = Sim::new(2).hosts(Link::default());
    for fault in [
        VerbFault::post(0),
        VerbFault::post(-1),
        VerbFault::post(5000),
        VerbFault::completion(Success),
        VerbFault::post(ENOMEM).nth(0),
        VerbFault::post(ENOMEM).every(0),
        VerbFault::post(ENOMEM).chance(1.5),
        VerbFault::post(ENOMEM).on(&foreign),
    ] {
        assert_eq!(sim.fault(fault).unwrap_err().errno(), Some(EINVAL), "{fault:?}");
    }
    assert_eq!(sim.raise(&foreign, Event::DeviceFatal).unwrap_err().errno(), Some(EINVAL));
}

#[test]
fn faults_are_not_seen_by_what_they_do_not_select() {
    let hash = |fault: Option<VerbFault>| {
        let sim = Sim::new(5);
        if let Some(fault) = fault {
            sim.fault(fault).unwrap();
        }
        let [a, b] = pair(&sim);
        let to = b.memory(10_000);
        a.done(SendWr::write(1, a.memory(10_000).sge(..), to.remote()));
        (sim.trace_hash(), sim.now())
    };
    let without = hash(None);
    assert_eq!(hash(Some(VerbFault::completion(RemOp).nth(100))), without);
    assert_eq!(hash(Some(VerbFault::post(ENOMEM).chance(0.0))), without);
}

#[test]
fn events_come_from_nowhere() {
    let sim = Sim::new(1);
    let [a, b] = pair(&sim);
    let srq = a.pd.create_srq(8, 1).unwrap();
    let (qpn, cq) = (a.qp.number(), a.rcq.number());
    let only_told = [
        Event::PortErr { port: 1 },
        Event::PortActive { port: 1 },
        Event::GidChange { port: 1 },
        Event::PathMig { qpn },
        Event::CommEst { qpn },
        Event::SqDrained { qpn },
        Event::QpReqErr { qpn },
        Event::QpAccessErr { qpn },
        Event::LastWqe { qpn },
        Event::SrqLimit { srq: srq.number() },
        Event::SrqErr { srq: srq.number() },
        Event::Other(99),
    ];
    for event in only_told {
        sim.raise(&a.ctx, event).unwrap();
        assert_eq!(a.ctx.wait_event(Duration::ZERO), Ok(event));
        assert_eq!(a.state(), QpState::Rts, "{event:?}");
    }
    assert_eq!(b.ctx.wait_event(Duration::ZERO), Err(Error::Timeout), "nobody else is told");
    for event in [
        Event::QpFatal { qpn: 5 },
        Event::PathMig { qpn: 5 },
        Event::CqErr { cq: 77 },
        Event::SrqLimit { srq: 77 },
        Event::PortErr { port: 2 },
    ] {
        let e = sim.raise(&a.ctx, event).unwrap_err();
        assert_eq!(e.errno(), Some(EINVAL), "{event:?}: {e}");
    }
    a.qp.post_recv(RecvWr::new(1, ())).unwrap();
    sim.raise(&a.ctx, Event::CqErr { cq }).unwrap();
    let told = [(); 2].map(|()| a.ctx.wait_event(Duration::ZERO).unwrap());
    assert_eq!(told, [Event::CqErr { cq }, Event::QpFatal { qpn }]);
    assert_eq!(a.state(), QpState::Err);
    sim.settle();
    assert_eq!(a.rcq.drain(), [], "the queue takes no more");
}

#[test]
fn a_device_that_failed_moves_nothing() {
    let sim = Sim::new(1);
    let [a, b] = pair(&sim);
    let to = a.memory(8);
    sim.raise(&a.ctx, Event::DeviceFatal).unwrap();
    assert_eq!(a.ctx.wait_event(Duration::ZERO), Ok(Event::DeviceFatal));
    let before = sim.link_counters(&a.ctx).unwrap().sent;
    a.post(SendWr::send(1, ()));
    b.post(SendWr::write(2, inline(b"x"), to.remote()));
    assert_eq!(b.cq.wait(LONG).unwrap().status, RetryExc);
    assert_eq!(sim.link_counters(&a.ctx).unwrap().sent, before);
    assert_eq!(to.to_vec(0..1), [0]);
}
