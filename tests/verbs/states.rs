//! The state machine, by the verbs: every step by hand, what each state refuses, and what flushing leaves.

use softroce::prelude::*;
use softroce::verbs::Cause;

use super::Bed;
use crate::testbed::{Guarded, Pair, Side, Testbed, pattern};

const EINVAL: i32 = 22;
const EBUSY: i32 = 16;

fn init() -> QpAttr {
    QpAttr::to(QpState::Init).port(1).pkey_index(0).access(Access::REMOTE)
}

fn rtr(peer: &QpEndpoint) -> QpAttr {
    QpAttr::to(QpState::Rtr)
        .ah(peer.ah())
        .path_mtu(Mtu::B1024)
        .dest_qpn(peer.qpn)
        .rq_psn(peer.psn)
        .max_dest_rd_atomic(9)
        .min_rnr_timer(13)
}

fn rts(mine: &QpEndpoint) -> QpAttr {
    QpAttr::to(QpState::Rts).sq_psn(mine.psn).timeout(18).retry_cnt(6).rnr_retry(5).max_rd_atomic(8)
}

/// A queue pair in RESET.
fn in_reset(ctx: &Context) -> Side {
    let side = Side::new(ctx);
    side.qp.modify(&QpAttr::to(QpState::Reset)).unwrap();
    side
}

fn error() -> QpAttr {
    QpAttr::to(QpState::Err)
}

#[track_caller]
fn refused(side: &Side, attr: &QpAttr) -> Cause {
    // In RTS the peer may be at work: on a real network its packets move these at any time.
    let settled = || match side.qp.query().unwrap() {
        told if told.state == Some(QpState::Rts) => QpAttr { rq_psn: None, sq_psn: None, ..told },
        told => told,
    };
    let before = settled();
    let e = side.qp.modify(attr).unwrap_err();
    assert_eq!(e.errno(), Some(EINVAL), "{e}");
    assert_eq!(settled(), before, "nothing has changed");
    e.cause().unwrap().clone()
}

#[test]
fn step_by_step_and_told_back() {
    let Some(bed) = Bed::start() else { return };
    let [a, b] = bed.hosts().map(in_reset);
    for (x, y) in [(&a, &b), (&b, &a)] {
        assert_eq!(x.state(), QpState::Reset);
        x.qp.modify(&init()).unwrap();
        assert_eq!(x.state(), QpState::Init);
        x.qp.modify(&rtr(&y.qp.endpoint())).unwrap();
        assert_eq!(x.state(), QpState::Rtr);
        x.qp.modify(&rts(&x.qp.endpoint())).unwrap();
        assert_eq!(x.state(), QpState::Rts);
    }
    let (mine, theirs) = (a.qp.endpoint(), b.qp.endpoint());
    let told = a.qp.query().unwrap();
    assert_eq!((told.state, told.cur_state), (Some(QpState::Rts), Some(QpState::Rts)));
    assert_eq!((told.port, told.pkey_index), (Some(1), Some(0)));
    assert_eq!(told.access, Some(Access::REMOTE));
    assert_eq!(told.ah, Some(theirs.ah()));
    assert_eq!((told.path_mtu, told.dest_qpn), (Some(Mtu::B1024), Some(theirs.qpn)));
    assert_eq!((told.rq_psn, told.sq_psn), (Some(theirs.psn), Some(mine.psn)));
    assert_eq!((told.max_rd_atomic, told.max_dest_rd_atomic), (Some(8), Some(9)));
    assert_eq!((told.timeout, told.retry_cnt, told.rnr_retry), (Some(18), Some(6), Some(5)));
    assert_eq!((told.min_rnr_timer, told.cap), (Some(13), Some(a.qp.cap())));

    let to = Guarded::new(&b, 3000);
    let from = a.memory(3000);
    from.write(0, &pattern(1, 3000));
    a.done(SendWr::write(1, from.sge(..), to.remote()));
    assert_eq!(to.bytes(3000), pattern(1, 3000));
    // Three packets of 1024 bytes at most.
    assert_eq!(a.qp.query().unwrap().sq_psn, Some(mine.psn.wrapping_add(3) & 0xff_ffff));
    assert_eq!(b.qp.query().unwrap().rq_psn, Some(mine.psn.wrapping_add(3) & 0xff_ffff));
}

#[test]
fn each_attribute_that_a_step_needs_is_missed_by_name() {
    let Some(bed) = Bed::start() else { return };
    let [a, b] = bed.hosts().map(in_reset);
    let theirs = b.qp.endpoint();
    let missing = |attr: QpAttr, to: QpState, name: &str| {
        let from = a.state();
        match refused(&a, &attr) {
            Cause::MissingAttr { from: f, to: t, attr } => {
                assert_eq!((f, t, attr), (from, to, name));
            }
            other => panic!("{name}: {other}"),
        }
    };
    for (attr, name) in [
        (QpAttr { port: None, ..init() }, "port"),
        (QpAttr { pkey_index: None, ..init() }, "pkey_index"),
        (QpAttr { access: None, ..init() }, "access"),
    ] {
        missing(attr, QpState::Init, name);
    }
    a.qp.modify(&init()).unwrap();
    let full = || rtr(&theirs);
    for (attr, name) in [
        (QpAttr { ah: None, ..full() }, "ah"),
        (QpAttr { path_mtu: None, ..full() }, "path_mtu"),
        (QpAttr { dest_qpn: None, ..full() }, "dest_qpn"),
        (QpAttr { rq_psn: None, ..full() }, "rq_psn"),
        (QpAttr { max_dest_rd_atomic: None, ..full() }, "max_dest_rd_atomic"),
        (QpAttr { min_rnr_timer: None, ..full() }, "min_rnr_timer"),
    ] {
        missing(attr, QpState::Rtr, name);
    }
    a.qp.modify(&full()).unwrap();
    let full = || rts(&a.qp.endpoint());
    for (attr, name) in [
        (QpAttr { sq_psn: None, ..full() }, "sq_psn"),
        (QpAttr { timeout: None, ..full() }, "timeout"),
        (QpAttr { retry_cnt: None, ..full() }, "retry_cnt"),
        (QpAttr { rnr_retry: None, ..full() }, "rnr_retry"),
        (QpAttr { max_rd_atomic: None, ..full() }, "max_rd_atomic"),
    ] {
        missing(attr, QpState::Rts, name);
    }
    a.qp.modify(&full()).unwrap();
}

#[test]
fn values_out_of_range_are_named_with_what_would_do() {
    let Some(bed) = Bed::start() else { return };
    let [a, b] = bed.hosts().map(Side::new);
    let full = || rtr(&b.qp.endpoint());
    let range = |attr, got, max| Cause::AttrRange { attr, got, max };
    let far_gid = AhAttr { sgid_index: 200, ..b.qp.endpoint().ah() };
    let last = a.ctx.gids().unwrap().len() as u64 - 1;
    for (attr, cause) in [
        (full().dest_qpn(1_u32 << 24), range("dest_qpn", 1 << 24, 0xff_ffff)),
        (full().rq_psn(1_u32 << 24), range("rq_psn", 1 << 24, 0xff_ffff)),
        (full().max_dest_rd_atomic(129), range("max_dest_rd_atomic", 129, 128)),
        (full().min_rnr_timer(32), range("min_rnr_timer", 32, 31)),
        (full().pkey_index(1), range("pkey_index", 1, 0)),
        (full().ah(far_gid), range("ah.sgid_index", 200, last)),
        (full().ah(AhAttr::default()), Cause::AddressFamily),
    ] {
        assert_eq!(refused(&a, &attr), cause);
    }
    let v6: QpEndpoint = "[2001:db8::1]/1/1".parse().unwrap();
    assert_eq!(refused(&a, &full().ah(v6.ah())), Cause::AddressFamily);
    let unexpected =
        Cause::UnexpectedAttr { from: QpState::Init, to: QpState::Rtr, attr: "timeout" };
    assert_eq!(refused(&a, &full().timeout(14)), unexpected);
    let stale = refused(&a, &init().cur_state(QpState::Rts));
    assert!(matches!(stale, Cause::AttrValue { attr: "cur_state", .. }), "{stale}");
    let port = refused(&a, &init().port(2));
    assert_eq!(port, Cause::AttrValue { attr: "port", got: 2, want: "1" });

    a.qp.modify(&full()).unwrap();
    let full = || rts(&a.qp.endpoint());
    for (attr, cause) in [
        (full().timeout(32), range("timeout", 32, 31)),
        (full().retry_cnt(8), range("retry_cnt", 8, 7)),
        (full().rnr_retry(8), range("rnr_retry", 8, 7)),
        (full().max_rd_atomic(129), range("max_rd_atomic", 129, 128)),
        (full().sq_psn(1_u32 << 24), range("sq_psn", 1 << 24, 0xff_ffff)),
    ] {
        assert_eq!(refused(&a, &attr), cause);
    }
}

#[test]
fn steps_that_do_not_exist() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let kind = QpType::Rc;
    let not_to = |side: &Side, states: &[QpState]| {
        let from = side.state();
        for &to in states {
            let cause = refused(side, &QpAttr::to(to));
            assert_eq!(cause, Cause::NoTransition { kind, from, to });
        }
    };
    not_to(&a, &[Init, Rtr, Sqe]);
    let e = a.qp.connect(&b.qp.endpoint()).unwrap_err();
    assert_eq!(e.cause(), Some(&Cause::NoTransition { kind, from: Rts, to: Rtr }));
    a.qp.modify(&QpAttr::to(Sqd)).unwrap();
    not_to(&a, &[Init, Rtr, Sqe]);
    a.qp.modify(&error()).unwrap();
    not_to(&a, &[Init, Rtr, Rts, Sqd, Sqe]);
    a.qp.modify(&error()).unwrap();
    a.qp.modify(&QpAttr::to(Reset)).unwrap();
    not_to(&a, &[Rtr, Rts, Sqd, Sqe, Err]);
    a.qp.modify(&QpAttr::to(Reset)).unwrap();
    a.qp.modify(&init()).unwrap();
    not_to(&a, &[Rts, Sqd, Sqe]);
    a.qp.modify(&init()).unwrap();
}

#[test]
fn what_can_be_posted_in_which_state() {
    let Some(bed) = Bed::start() else { return };
    let [a, b] = bed.hosts().map(in_reset);
    let send = || a.qp.post_send(SendWr::send(1, ()));
    let receive = || a.qp.post_recv(RecvWr::new(1, ()));
    let wrong_state = |result: Result<()>, state: QpState| {
        let e = result.unwrap_err();
        assert_eq!(e.errno(), Some(EINVAL));
        assert!(matches!(e.cause(), Some(Cause::State { state: s, .. }) if *s == state), "{e}");
        assert!(e.to_string().contains(&format!("{state:?}")), "{e}");
    };
    wrong_state(send(), QpState::Reset);
    wrong_state(receive(), QpState::Reset);
    a.qp.modify(&init()).unwrap();
    wrong_state(send(), QpState::Init);
    receive().unwrap();
    a.qp.modify(&rtr(&b.qp.endpoint())).unwrap();
    wrong_state(send(), QpState::Rtr);
    receive().unwrap();
    a.qp.modify(&rts(&a.qp.endpoint())).unwrap();
    receive().unwrap();
    a.qp.modify(&QpAttr::to(QpState::Sqd)).unwrap();
    send().unwrap();
    receive().unwrap();
    a.qp.modify(&error()).unwrap();
    send().unwrap();
    receive().unwrap();
    for _ in 0..2 {
        assert_eq!(a.sent().status, WcStatus::WrFlush);
    }
    for _ in 0..5 {
        assert_eq!(a.received().status, WcStatus::WrFlush);
    }
}

#[test]
fn the_error_state_flushes_everything_in_order() {
    let Some(bed) = Bed::start() else { return };
    // The peer is not there, so all stays outstanding.
    let [a, b] = bed.hosts().map(Side::new);
    a.qp.connect_with(&b.qp.endpoint(), QpAttr::default().timeout(0)).unwrap();
    let wrs = (0..10).map(|id| {
        let wr = SendWr::send(id, inline(b"x"));
        if id % 3 == 0 { wr.unsignaled() } else { wr }
    });
    a.qp.post_send(wrs).unwrap();
    a.qp.post_recv((0..20).map(|id| RecvWr::new(id, ()))).unwrap();
    a.qp.modify(&error()).unwrap();
    a.qp.post_send((10..12).map(|id| SendWr::send(id, ()).unsignaled())).unwrap();
    a.qp.post_recv(RecvWr::new(20, ())).unwrap();
    for id in 0..12 {
        let wc = a.sent();
        assert_eq!((wc.wr_id, wc.status, wc.qpn), (id, WcStatus::WrFlush, a.qp.number()));
    }
    for id in 0..21 {
        let wc = a.received();
        assert_eq!((wc.wr_id, wc.status, wc.qpn), (id, WcStatus::WrFlush, a.qp.number()));
    }
    assert_eq!((a.cq.drain(), a.rcq.drain()), (vec![], vec![]));
}

#[test]
fn reset_forgets_and_the_queue_pair_can_be_used_again() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let to = Guarded::new(&b, 4);
    for round in 0..3 {
        let before = a.qp.endpoint().psn;
        // A completion that nobody polls, requests that fail, receives that nothing comes for.
        b.qp.post_recv(RecvWr::new(1, ())).unwrap();
        a.qp.post_recv((0..5).map(|id| RecvWr::new(id, ()))).unwrap();
        a.post(SendWr::send(1, ()));
        b.received().ok().unwrap();
        a.qp.modify(&error()).unwrap();
        for side in [&a, &b] {
            side.qp.modify(&QpAttr::to(QpState::Reset)).unwrap();
            assert_eq!(side.state(), QpState::Reset);
        }
        assert_eq!((a.cq.drain(), a.rcq.drain()), (vec![], vec![]), "completions are forgotten");
        // What is still on its way, the ACK of the message among it, belongs to a former life.
        assert_ne!(a.qp.endpoint().psn, before);
        // From RESET, all the way.
        a.qp.connect(&b.qp.endpoint()).unwrap();
        b.qp.connect(&a.qp.endpoint()).unwrap();
        let data = [round; 4];
        a.done(SendWr::write(7, inline(&data), to.remote()));
        assert_eq!(to.bytes(4), data);
    }
}

#[test]
fn attributes_of_ones_own_when_connecting() {
    let Some(bed) = Bed::start() else { return };
    let [a, b] = bed.hosts().map(Side::new);
    let over = |mine: u32, theirs: u32| {
        QpAttr::default()
            .path_mtu(Mtu::B512)
            .timeout(20)
            .retry_cnt(3)
            .rnr_retry(2)
            .min_rnr_timer(1)
            .max_rd_atomic(3)
            .max_dest_rd_atomic(4)
            .sq_psn(mine)
            .rq_psn(theirs)
            .access(Access::LOCAL | Access::REMOTE_WRITE)
    };
    // The sequence numbers wrap in the middle of the first message.
    a.qp.connect_with(&b.qp.endpoint(), over(0xff_fffe, 7)).unwrap();
    b.qp.connect_with(&a.qp.endpoint(), over(7, 0xff_fffe)).unwrap();
    let told = a.qp.query().unwrap();
    assert_eq!((told.path_mtu, told.timeout, told.retry_cnt), (Some(Mtu::B512), Some(20), Some(3)));
    assert_eq!((told.rnr_retry, told.min_rnr_timer), (Some(2), Some(1)));
    assert_eq!((told.max_rd_atomic, told.max_dest_rd_atomic), (Some(3), Some(4)));
    assert_eq!((told.sq_psn, told.rq_psn), (Some(0xff_fffe), Some(7)));
    assert_eq!(told.access, Some(Access::LOCAL | Access::REMOTE_WRITE));

    let to = Guarded::new(&b, 5000);
    let from = a.memory(5000);
    from.write(0, &pattern(1, 5000));
    a.done(SendWr::write(1, from.sge(..), to.remote()));
    assert_eq!(to.bytes(5000), pattern(1, 5000));
    assert_eq!(a.qp.query().unwrap().sq_psn, Some(0xff_fffe + 10 - (1 << 24)));
}

#[test]
fn what_connect_chooses_by_itself() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let told = a.qp.query().unwrap();
    assert_eq!((told.timeout, told.retry_cnt, told.rnr_retry), (Some(17), Some(7), Some(7)));
    let all = Access::REMOTE | Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
    assert_eq!((told.min_rnr_timer, told.access), (Some(12), Some(all)));
    assert_eq!(told.path_mtu, Some(a.qp.endpoint().mtu.min(b.qp.endpoint().mtu)));
    assert_eq!(told.max_rd_atomic, Some(16));
    // The smaller of both sides' figures is taken.
    let [a, b] = bed.hosts().map(Side::new);
    let modest = QpEndpoint { mtu: Mtu::B512, rd_atomic: 2, ..b.qp.endpoint() };
    a.qp.connect(&modest).unwrap();
    let told = a.qp.query().unwrap();
    assert_eq!((told.path_mtu, told.max_rd_atomic), (Some(Mtu::B512), Some(2)));
}

#[test]
fn an_endpoint_can_be_printed_and_pasted() {
    let Some(bed) = Bed::start() else { return };
    let [a, b] = bed.hosts().map(Side::new);
    let paste = |side: &Side| side.qp.endpoint().to_string().parse::<QpEndpoint>().unwrap();
    a.qp.connect(&paste(&b)).unwrap();
    b.qp.connect(&paste(&a)).unwrap();
    b.qp.post_recv(RecvWr::new(1, ())).unwrap();
    a.done(SendWr::send(1, ()));
    assert_eq!(a.qp.endpoint(), a.qp.endpoint(), "drawn once");
}

#[test]
fn rights_of_the_queue_pair_can_be_changed_while_it_runs() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::with(&bed, |qp| qp.access(Access::LOCAL | Access::REMOTE_WRITE));
    let to = b.memory(8);
    a.done(SendWr::write(1, inline(b"x"), to.remote()));
    b.qp.modify(&QpAttr::default().access(Access::REMOTE)).unwrap();
    let mine = a.memory(8);
    a.done(SendWr::read(2, mine.sge(..), to.remote()));
    a.done(SendWr::fetch_add(3, mine.sge(..), to.remote(), 1));
    b.qp.modify(&QpAttr::default().access(Access::LOCAL)).unwrap();
    assert_eq!(a.outcome(SendWr::read(4, mine.sge(..), to.remote())), WcStatus::RemInvReq);
}

#[test]
fn draining_ends_before_the_queue_runs_again() {
    let Some(bed) = Bed::start() else { return };
    // The peer is not there, so what was begun does not end.
    let [a, b] = bed.hosts().map(Side::new);
    a.qp.connect_with(&b.qp.endpoint(), QpAttr::default().timeout(0)).unwrap();
    a.post(SendWr::send(1, ()));
    a.qp.modify(&QpAttr::to(QpState::Sqd)).unwrap();
    let e = a.qp.modify(&QpAttr::to(QpState::Rts)).unwrap_err();
    assert_eq!((e.errno(), a.state()), (Some(EBUSY), QpState::Sqd));
    assert!(e.to_string().contains("draining"), "{e}");
    a.qp.modify(&error()).unwrap();
    assert_eq!(a.sent().status, WcStatus::WrFlush);
}

#[test]
fn numbers_and_first_sequence_numbers_differ() {
    let Some(bed) = Bed::start() else { return };
    let [host, _] = bed.hosts();
    let (pd, cq) = (host.alloc_pd().unwrap(), host.create_cq(1).unwrap());
    let qps: Vec<QueuePair> =
        (0..50).map(|_| pd.create_qp(QpType::Rc, &cq).depth(1, 1).build().unwrap()).collect();
    let mut numbers: Vec<u32> = qps.iter().map(QueuePair::number).collect();
    let mut psns: Vec<u32> = qps.iter().map(|qp| qp.endpoint().psn).collect();
    // A successor does not have the number of a predecessor.
    drop(qps);
    let next = pd.create_qp(QpType::Rc, &cq).build().unwrap();
    assert!(!numbers.contains(&next.number()));
    for list in [&mut numbers, &mut psns] {
        list.sort_unstable();
        list.dedup();
        assert_eq!(list.len(), 50);
    }
    assert!(numbers.iter().all(|&n| n > 1 && n < 0xff_ffff));
}

#[test]
fn read_resources_do_not_change_while_it_runs() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let (mine, theirs) = (a.memory(1 << 20), b.memory(1 << 20));
    theirs.fill(0..1 << 20, 0x33);
    a.qp.post_send((0..8).map(|id| SendWr::read(id, mine.sge(..), theirs.remote()))).unwrap();
    // With the READs under way, and after them.
    for id in 0..8 {
        for n in [0, 1, 128] {
            let (from, to) = (QpState::Rts, QpState::Rts);
            let cause = refused(&b, &QpAttr::default().max_dest_rd_atomic(n));
            assert_eq!(cause, Cause::UnexpectedAttr { from, to, attr: "max_dest_rd_atomic" });
        }
        assert_eq!(a.sent().ok().unwrap().wr_id, id);
    }
    assert_eq!(mine.to_vec(0..1 << 20), vec![0x33; 1 << 20]);
}
