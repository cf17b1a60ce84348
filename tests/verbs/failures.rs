//! What fails, with which status, what is left of the queues, and how to go on.

use softroce::prelude::*;

use super::Bed;
use crate::testbed::{Guarded, Pair, Side, Testbed, pattern};

/// Gives up on a dead peer within a few milliseconds.
fn impatient() -> QpAttr {
    QpAttr::default().timeout(8).retry_cnt(2)
}

#[test]
fn a_peer_that_is_gone() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let to = b.memory(64);
    let remote = to.remote();
    a.done(SendWr::write(1, inline(b"x"), remote));
    a.lose_patience();
    // With everything that it has, its device included.
    let [_here, there] = bed.into_hosts();
    drop((to, b, there));
    a.qp.post_send([
        SendWr::write(2, inline(b"x"), remote).unsignaled(),
        SendWr::send(3, inline(b"x")),
        SendWr::read(4, (), remote).unsignaled(),
    ])
    .unwrap();
    let wc = a.sent();
    assert_eq!((wc.wr_id, wc.status), (2, WcStatus::RetryExc));
    assert_eq!(a.state(), QpState::Err);
    for id in [3, 4] {
        let wc = a.sent();
        assert_eq!((wc.wr_id, wc.status), (id, WcStatus::WrFlush));
    }
    assert_eq!(a.counter("retry_exceeded_err"), 1);
    assert_eq!(a.counter("local_ack_timeout_err"), 3, "two retries, and the timeout after them");
}

#[test]
fn a_peer_that_is_not_ready_yet() {
    let Some(bed) = Bed::start() else { return };
    let [a, b] = bed.hosts().map(Side::new);
    a.qp.connect_with(&b.qp.endpoint(), impatient()).unwrap();
    // Still in INIT: what comes is dropped, not answered.
    assert_eq!(a.outcome(SendWr::send(1, ())), WcStatus::RetryExc);
    assert_eq!((a.state(), b.state()), (QpState::Err, QpState::Init));
    b.until_counted("drop_state");
}

#[test]
fn a_peer_whose_queue_pair_is_gone_while_another_lives() {
    let Some(bed) = Bed::start() else { return };
    let dying = Pair::over(&bed, &impatient());
    let living = Pair::new(&bed);
    let to = living.b.memory(8);
    dying.b.qp.destroy().unwrap();
    dying.a.post(SendWr::send(1, ()));
    living.a.done(SendWr::write(2, inline(b"x"), to.remote()));
    assert_eq!(dying.a.sent().status, WcStatus::RetryExc);
    living.a.done(SendWr::write(3, inline(b"x"), to.remote()));
    living.b.until_counted("drop_no_qp");
}

#[test]
fn the_other_side_counts_from_elsewhere() {
    let Some(bed) = Bed::start() else { return };
    let [a, b] = bed.hosts().map(Side::new);
    let psn = a.qp.endpoint().psn;
    a.qp.connect_with(&b.qp.endpoint(), impatient()).unwrap();
    let behind = QpAttr::default().rq_psn(psn.wrapping_sub(5) & 0xff_ffff);
    b.qp.connect_with(&a.qp.endpoint(), behind).unwrap();
    assert_eq!(a.outcome(SendWr::send(1, ())), WcStatus::RetryExc);
    // The peer has complained.
    b.until_counted("out_of_seq_request");
    assert_eq!(b.state(), QpState::Rts);
}

#[test]
fn no_receive_and_no_patience() {
    let Some(bed) = Bed::start() else { return };
    for retries in [0, 1, 3] {
        let over = QpAttr::default().rnr_retry(retries).min_rnr_timer(1);
        let Pair { a, b } = Pair::over(&bed, &over);
        let before = [a.counter("rcvd_rnr_err"), b.counter("send_rnr_err")];
        a.qp.post_send([SendWr::send(1, inline(b"x")), SendWr::send(2, ())]).unwrap();
        let wc = a.sent();
        assert_eq!((wc.wr_id, wc.status), (1, WcStatus::RnrRetryExc));
        let wc = a.sent();
        assert_eq!((wc.wr_id, wc.status), (2, WcStatus::WrFlush));
        let after = [a.counter("rcvd_rnr_err"), b.counter("send_rnr_err")];
        assert_eq!(after[0] - before[0], u64::from(retries) + 1);
        assert!(after[1] - before[1] > u64::from(retries));
        // The peer has done nothing wrong.
        assert_eq!((a.state(), b.state()), (QpState::Err, QpState::Rts));
    }
}

#[test]
fn no_receive_but_patience() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::over(&bed, &QpAttr::default().min_rnr_timer(1));
    let to = Guarded::new(&b, 9000);
    let from = a.memory(9000);
    from.write(0, &pattern(1, 9000));
    a.post(SendWr::send(1, from.sge(..)));
    a.post(SendWr::write(2, inline(b"after it"), to.remote()).imm(1));
    bed.until("it has been sent away ten times", || b.counter("send_rnr_err") >= 10);
    assert_eq!(a.cq.drain(), []);
    b.qp.post_recv(RecvWr::new(7, to.sge())).unwrap();
    assert_eq!(a.sent().ok().unwrap().wr_id, 1);
    assert_eq!(b.received().ok().unwrap().byte_len, 9000);
    assert_eq!(to.bytes(9000), pattern(1, 9000));
    // The immediate waits for a receive as well.
    bed.until("sent away again", || b.counter("send_rnr_err") >= 12);
    assert_eq!(a.cq.drain(), []);
    b.qp.post_recv(RecvWr::new(8, ())).unwrap();
    assert_eq!(a.sent().ok().unwrap().wr_id, 2);
    assert_eq!(b.received().ok().unwrap().opcode, WcOpcode::RecvWriteImm);
}

#[test]
fn an_error_in_the_middle_of_a_queue() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let to = b.memory(8 * 20);
    b.qp.post_recv((0..5).map(|id| RecvWr::new(id, ()))).unwrap();
    a.qp.post_recv((0..3).map(|id| RecvWr::new(id, ()))).unwrap();
    let wrs = (0..20_u64).map(|id| {
        let at = match id {
            11 => RemoteSlice { rkey: to.rkey() ^ 0xff00, ..to.remote().at(0) },
            _ => to.remote().at(8 * id),
        };
        let wr = SendWr::write(id, inline(b"written!"), at);
        if id % 4 == 3 { wr.unsignaled() } else { wr }
    });
    a.qp.post_send(wrs).unwrap();
    for id in (0..11).filter(|id| id % 4 != 3) {
        assert_eq!(a.sent().ok().unwrap().wr_id, id);
    }
    // From here on all complete, signaled or not: the first has the cause.
    for id in 11..20 {
        let wc = a.sent();
        let want = if id == 11 { WcStatus::RemAccess } else { WcStatus::WrFlush };
        assert_eq!((wc.wr_id, wc.status), (id, want));
    }
    for id in 0..3 {
        let wc = a.received();
        assert_eq!((wc.wr_id, wc.status), (id, WcStatus::WrFlush));
    }
    for id in 0..5 {
        let wc = b.received();
        assert_eq!((wc.wr_id, wc.status), (id, WcStatus::WrFlush), "the peer's too");
    }
    assert_eq!(to.to_vec(0..88), b"written!".repeat(11));
    assert_eq!(to.to_vec(88..160), [0; 72], "nothing of what came after the error");
    // A request posted to a failed queue pair is flushed.
    assert_eq!(a.outcome(SendWr::send(99, ())), WcStatus::WrFlush);
}

#[test]
fn a_message_longer_than_its_receive() {
    let Some(bed) = Bed::start() else { return };
    for len in [65, 5000, 100_000] {
        let Pair { a, b } = Pair::new(&bed);
        let to = Guarded::new(&b, 64);
        let from = a.memory(100_000);
        b.qp.post_recv((1..3).map(|id| RecvWr::new(id, to.sge()))).unwrap();
        assert_eq!(a.outcome(SendWr::send(1, from.sge(..len))), WcStatus::RemInvReq);
        let wc = b.received();
        assert_eq!((wc.wr_id, wc.status), (1, WcStatus::LocLen));
        let wc = b.received();
        assert_eq!((wc.wr_id, wc.status), (2, WcStatus::WrFlush));
        assert_eq!((a.state(), b.state()), (QpState::Err, QpState::Err));
        to.bytes(64);
    }
}

#[test]
fn two_ends_with_different_path_mtus() {
    let Some(bed) = Bed::start() else { return };
    let [a, b] = bed.hosts().map(Side::new);
    a.qp.connect_with(&b.qp.endpoint(), QpAttr::default().path_mtu(Mtu::B1024)).unwrap();
    b.qp.connect_with(&a.qp.endpoint(), QpAttr::default().path_mtu(Mtu::B512)).unwrap();
    let (from, to) = (a.memory(4096), b.memory(4096));
    a.done(SendWr::write(1, from.sge(..512), to.remote()));
    assert_eq!(a.outcome(SendWr::write(2, from.sge(..513), to.remote())), WcStatus::RemInvReq);
}

#[test]
fn both_ends_go_on_after_an_error() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let to = b.memory(8);
    let wrong = RemoteSlice { rkey: 0, ..to.remote().at(0) };
    for _ in 0..3 {
        assert_eq!(a.outcome(SendWr::write(1, inline(b"x"), wrong)), WcStatus::RemAccess);
        assert_eq!(b.event(), Event::QpAccessErr { qpn: b.qp.number() });
        for side in [&a, &b] {
            side.qp.modify(&QpAttr::to(QpState::Reset)).unwrap();
        }
        a.qp.connect(&b.qp.endpoint()).unwrap();
        b.qp.connect(&a.qp.endpoint()).unwrap();
        a.done(SendWr::write(2, inline(b"x"), to.remote()));
    }
}

#[test]
fn a_write_to_the_own_device_that_is_refused() {
    let Some(bed) = Bed::start() else { return };
    // An unknown key, a range that ends outside, one that wraps.
    let wrong: [fn(&MemoryRegion) -> RemoteSlice; 3] = [
        |mr| RemoteSlice { rkey: mr.rkey() ^ 0xff00, ..mr.remote().at(0) },
        |mr| RemoteSlice { addr: mr.iova() + 57, rkey: mr.rkey() },
        |mr| RemoteSlice { addr: 0_u64.wrapping_sub(4), rkey: mr.rkey() },
    ];
    for wrong in wrong {
        let [x, y] = [0, 1].map(|_| Side::new(bed.hosts()[0]));
        let Pair { a, b } = Pair::connect(x, y, &QpAttr::default());
        let to = b.memory(64);
        let before = b.counter("rx_write_requests");
        let wr = SendWr::write(1, inline(b"12345678"), wrong(&to));
        assert_eq!(a.outcome(wr), WcStatus::RemAccess);
        assert_eq!((a.state(), b.state()), (QpState::Err, QpState::Err));
        assert_eq!((to.to_vec(0..64), b.counter("rx_write_requests")), (vec![0; 64], before));
        assert_eq!(b.event(), Event::QpAccessErr { qpn: b.qp.number() });

        // To oneself: by the time that the NAK is back the queue pair has failed already, as responder.
        let side = Side::new(bed.hosts()[0]);
        side.qp.connect(&side.qp.endpoint()).unwrap();
        let to = side.memory(64);
        let wr = SendWr::write(1, inline(b"12345678"), wrong(&to));
        assert_eq!(side.outcome(wr), WcStatus::WrFlush);
        assert_eq!((side.state(), to.to_vec(0..64)), (QpState::Err, vec![0; 64]));
        assert_eq!(side.counter("rx_write_requests"), before);
        assert_eq!(side.event(), Event::QpAccessErr { qpn: side.qp.number() });
    }
}
