//! What a queue pair owes its peer leaves, also when others have much to send, and when it stops or goes.

use super::pair::{Pair, Setup};
use crate::engine::cc::{CongestionControl, Fixed};
use crate::engine::event::AsyncEvent;
use crate::engine::qp::attr::{QpAttr, QpState, QpType};
use crate::engine::status::WcStatus::{self, LocProt, RemAccess, Success, WrFlush};
use crate::engine::{Acks, EngineConfig};
use crate::mem::Sge;
use crate::net::RxMeta;
use crate::queue::{SendFlags, SendOp, SendWqe};
use crate::time::Instant;
use crate::wire::num::{Lkey, Rkey};
use crate::wire::{Opcode, opcode};

/// What side 0 sends at `at`, until it is an ACK; how many transmissions that took.
fn until_an_ack(p: &mut Pair, at: Instant) -> Option<usize> {
    let mut buf = vec![0; 1 << 16];
    (1..64).find(|_| {
        let sent = p.sides[0].engine.poll_transmit(at, Acks::Send, &mut buf);
        sent.is_some() && buf[0] == Opcode::RC_ACK.as_u8()
    })
}

#[test]
fn an_ack_does_not_wait_for_the_end_of_others_requests() {
    for v6 in [false, true] {
        let setup = Setup { gso: 1, v6, ..Setup::default() };
        let mut p = Pair::new(&setup);
        p.add_qp(&Setup { kind: QpType::Uc, ..setup });
        p.post_recv(0, 1, &[p.sge(0, 0, 64)]);
        p.post(1, p.wqe(1, SendOp::Send, 1, 0), &[p.sge(1, 0, 64)]);
        p.acks[0] = Acks::Hold;
        p.step();
        // Unreliable requests are bounded by nothing but the port.
        p.stage_on(0, 1, p.wqe(0, SendOp::Write, 2, 0), &[p.sge(0, 0, 1 << 19)]);
        let (now, uc) = (p.now, p.sides[0].qps[1].0);
        p.sides[0].engine.handle_doorbell(now, uc);
        let delay = EngineConfig::new([0; 32]).ack_delay;
        let _ = until_an_ack(&mut p, now);
        assert_eq!(until_an_ack(&mut p, now + delay), Some(1), "v6: {v6}");
    }
}

#[test]
fn what_a_queue_pair_that_goes_owes_leaves_first() {
    let setup = Setup { gso: 1, ..Setup::default() };
    let mut p = Pair::new(&setup);
    for _ in 0..3 {
        p.add_qp(&Setup { kind: QpType::Uc, ..setup.clone() });
    }
    p.acks[0] = Acks::Hold;
    p.post_recv(0, 1, &[p.sge(0, 0, 64)]);
    p.post(1, p.wqe(1, SendOp::Send, 1, 0), &[p.sge(1, 0, 64)]);
    p.step();
    for k in 1..4 {
        p.stage_on(0, k, p.wqe(0, SendOp::Write, 2, 0), &[p.sge(0, 0, 1 << 19)]);
        let (now, uc) = (p.now, p.sides[0].qps[k].0);
        p.sides[0].engine.handle_doorbell(now, uc);
    }
    // It has requests of its own, too.
    p.stage_on(0, 0, p.wqe(0, SendOp::Write, 4, 0), &[p.sge(0, 0, 1 << 17)]);
    let (now, leaving) = (p.now, p.sides[0].qp);
    p.sides[0].engine.handle_doorbell(now, leaving);
    assert_eq!(owed(&mut p, 0), ["RC_ACK"], "that, and nothing of anybody's requests");
    // And a response of a READ.
    p.post(1, p.wqe(1, SendOp::Read, 3, 0), &[p.sge(1, 0, 2000)]);
    p.deliver_without_sending();
    assert_eq!(owed(&mut p, 0), ["RC_READ_RESP_FIRST", "RC_READ_RESP_LAST"]);
}

/// Has the first queue pair of a side send what it owes, to the other side; says what that was.
fn owed(p: &mut Pair, side: usize) -> Vec<String> {
    let (mut buf, mut names, qp) = (vec![0; 1 << 16], Vec::new(), p.sides[side].qp);
    while let Some((t, _)) = p.sides[side].engine.poll_owed(p.now, qp, &mut buf) {
        names.push(opcode::name_of(buf[0]));
        let meta = RxMeta { path: t.path, ident: Some(t.ident), df: Some(true), gro_index: 0 };
        let size = t.segment_size.map_or(t.len, usize::from);
        assert_eq!(size, t.len, "made with segments of one packet");
        p.sides[1 - side].engine.handle_datagram(p.now, &meta, &buf[..t.len]);
    }
    p.pump(1 - side);
    names
}

/// A message has arrived at side 1, its receive is complete, and its ACK waits for an answer of the program.
fn delivered(setup: &Setup) -> Pair {
    let mut p = Pair::new(setup);
    p.acks[1] = Acks::Hold;
    p.post_recv(1, 7, &[p.sge(1, 0, 64)]);
    p.post(0, p.wqe(0, SendOp::Send, 1, 0), &[p.sge(0, 0, 64)]);
    p.step();
    assert_eq!((p.results(1), p.results(0)), (vec![(7, Success)], vec![]));
    p.acks[1] = Acks::Send;
    p
}

#[test]
fn an_ack_that_was_held_leaves_though_its_queue_pair_stops() {
    let mut p = delivered(&Setup::default());
    p.modify(1, &QpAttr::to(QpState::Err));
    p.run();
    assert_eq!(p.results(0), [(1, Success)]);
    // By a request that fails here.
    let mut p = delivered(&Setup::default());
    let wrong = Sge { lkey: Lkey(p.sides[1].mr.lkey.0 ^ 1), ..p.sge(1, 0, 8) };
    p.post(1, p.wqe(1, SendOp::Send, 2, 0), &[wrong]);
    p.run();
    assert_eq!((p.results(1), p.results(0)), (vec![(2, LocProt)], vec![(1, Success)]));
    // By RESET, if its driver settles what is owed first.
    let mut p = delivered(&Setup::default());
    assert_eq!(owed(&mut p, 1), ["RC_ACK"]);
    p.modify(1, &QpAttr::to(QpState::Reset));
    p.run();
    assert_eq!(p.results(0), [(1, Success)]);
}

#[test]
fn an_ack_of_a_queue_pair_that_stopped_covers_what_was_done_and_no_more() {
    let setup = Setup { timeout: 8, retry_cnt: 1, ..Setup::default() };
    // A READ arrives and is not answered before the end; then a SEND behind it, too.
    for behind in [false, true] {
        let mut p = delivered(&setup);
        p.post_recv(1, 8, &[p.sge(1, 0, 64)]);
        p.post(0, p.wqe(0, SendOp::Read, 2, 0), &[p.sge(0, 0, 64)]);
        if behind {
            p.post(0, p.wqe(0, SendOp::Send, 3, 0), &[p.sge(0, 0, 64)]);
        }
        p.deliver_without_sending();
        p.modify(1, &QpAttr::to(QpState::Err));
        p.run();
        let want = [(1, Success), (2, WcStatus::RetryExc), (3, WrFlush)];
        assert_eq!(p.results(0), want[..2 + usize::from(behind)]);
    }
    // A SEND finds no receive: its NAK would have acknowledged the one before it.
    let mut p = delivered(&setup);
    p.post(0, p.wqe(0, SendOp::Send, 2, 0), &[p.sge(0, 0, 64)]);
    p.deliver_without_sending();
    p.modify(1, &QpAttr::to(QpState::Err));
    p.run();
    assert_eq!(p.results(0), [(1, Success), (2, WcStatus::RetryExc)]);
    // Nothing was done: nothing is said.
    let mut p = Pair::new(&setup);
    p.post(0, p.wqe(0, SendOp::Read, 1, 0), &[p.sge(0, 0, 64)]);
    p.deliver_without_sending();
    p.modify(1, &QpAttr::to(QpState::Err));
    assert_eq!(p.names(0), [""; 0]);
}

#[test]
fn a_message_whose_completion_is_lost_is_not_acknowledged() {
    let mut p = Pair::new(&Setup { cq_depth: 1, timeout: 8, retry_cnt: 1, ..Setup::default() });
    for id in 1..=2 {
        p.post_recv(1, id, &[p.sge(1, 0, 64)]);
    }
    p.post(0, p.wqe(0, SendOp::Send, 1, 0), &[p.sge(0, 0, 64)]);
    p.run();
    assert_eq!(p.results(0), [(1, Success)]);
    // The first is still in the queue of the receiver.
    p.post(0, p.wqe(0, SendOp::Send, 2, 0), &[p.sge(0, 0, 64)]);
    p.run();
    assert_eq!(p.state(1), QpState::Err);
    assert_eq!((p.results(0), p.results(1)), (vec![(2, WcStatus::RetryExc)], vec![(1, Success)]));
}

fn slow() -> Box<dyn CongestionControl> {
    Box::new(Fixed::bits_per_second(1_000_000_000))
}

#[test]
fn a_fatal_nak_waits_behind_an_answer_that_keeps_to_a_pace() {
    let setup = Setup { cc: Some(slow), timeout: 0, ..Setup::default() };
    let mut p = Pair::new(&setup);
    p.post(0, p.wqe(0, SendOp::Read, 1, 0), &[p.sge(0, 0, 1 << 18)]);
    let wrong = SendWqe { rkey: Rkey(1), ..p.wqe(0, SendOp::Write, 2, 0) };
    p.post(0, wrong, &[p.sge(0, 0, 8)]);
    p.run();
    assert_eq!(p.results(0), [(1, Success), (2, RemAccess)]);
    assert_eq!(p.names(0).last(), Some(&"RC_ACK"));
    p.assert_quiet();
}

#[test]
fn a_queue_that_overran_fails_whoever_is_brought_up_on_it_again() {
    let setup = Setup { cq_depth: 1, ..Setup::default() };
    let mut p = Pair::new(&setup);
    for id in 0..2 {
        p.post(0, p.wqe(0, SendOp::Write, id, 0), &[p.sge(0, 0, 8)]);
    }
    p.run();
    let (cq, qpn) = (p.sides[0].cq, p.sides[0].face.qpn().raw());
    let fatal = AsyncEvent::QpFatal { qpn };
    assert_eq!(p.sides[0].events, [AsyncEvent::CqErr { cq }, fatal]);
    p.results(0);
    for side in 0..2 {
        p.modify(side, &QpAttr::to(QpState::Reset));
    }
    p.connect(&setup);
    assert_eq!(p.state(0), QpState::Rts);
    // In silence as long as nothing completes there.
    p.post(
        0,
        SendWqe { flags: SendFlags::empty(), ..p.wqe(0, SendOp::Write, 5, 0) },
        &[p.sge(0, 0, 8)],
    );
    p.run();
    assert_eq!(p.state(0), QpState::Rts);
    p.post(0, p.wqe(0, SendOp::Write, 6, 0), &[p.sge(0, 0, 8)]);
    p.run();
    assert_eq!((p.state(0), p.results(0)), (QpState::Err, vec![]));
    assert_eq!(p.sides[0].events[2..], [fatal], "the queue itself is told of once");
    p.assert_quiet();
}
