//! Shared receive queues: who takes what, when the limit fires, and how a queue pair leaves.

use std::sync::Arc;

use super::script::{RQ, SQ, Script, pkt};
use crate::engine::QpInit;
use crate::engine::cause::Cause;
use crate::engine::counters::Counter as C;
use crate::engine::event::AsyncEvent::{LastWqe, QpAccessErr, SrqLimit};
use crate::engine::qp::attr::{QpAttr, QpCap, QpState, QpType};
use crate::engine::qp::{QpFace, QpHandle};
use crate::engine::status::WcStatus::{LocLen, LocProt, Success, WrFlush};
use crate::engine::tests::pair::{QKEY, Setup, pattern};
use crate::mem::{Access, IovaChoice, Region, Sge};
use crate::wire::num::Rkey;

fn sharing(depth: u32) -> Script {
    Script::sharing(depth, &Setup::default())
}

fn number(s: &Script) -> u32 {
    s.srq.as_ref().unwrap().0
}

/// Another queue pair on the same shared queue, with the same PSNs.
fn another(s: &mut Script) -> (QpHandle, Arc<QpFace>) {
    let setup = Setup::default();
    let init = QpInit {
        kind: QpType::Rc,
        pd: s.pd,
        send_cq: s.cq,
        recv_cq: s.cq,
        srq: s.srq.as_ref().map(|(number, _)| *number),
        cap: QpCap::default(),
        sig_all: false,
        cc: None,
    };
    let mut other = s.engine.create_qp(init).unwrap();
    swap(s, &mut other);
    s.init(&setup);
    s.rtr(RQ, &setup);
    s.rts(SQ, &setup);
    swap(s, &mut other);
    other
}

/// The script goes on with the other queue pair.
fn swap(s: &mut Script, other: &mut (QpHandle, Arc<QpFace>)) {
    std::mem::swap(&mut s.qp, &mut other.0);
    std::mem::swap(&mut s.face, &mut other.1);
}

fn left(s: &mut Script) -> u32 {
    let attr = s.engine.query_srq(number(s)).unwrap();
    attr.max_wr - s.srq.as_ref().unwrap().1.lock().free()
}

#[test]
fn messages_of_two_queue_pairs_take_turns_and_end_in_any_order() {
    let mut s = sharing(8);
    let mut b = another(&mut s);
    for (id, at) in [(0, 0), (1, 4096), (2, 8192)] {
        s.post_recv(id, at, 4096);
    }
    s.recv(pkt("SEND_FIRST", RQ).len(1024));
    swap(&mut s, &mut b);
    s.recv(pkt("SEND_FIRST", RQ).data(&pattern(1024, 9)));
    swap(&mut s, &mut b);
    assert_eq!(left(&mut s), 1, "a receive is taken when a message begins");
    s.recv(pkt("SEND_MIDDLE", RQ + 1).len(1024));
    swap(&mut s, &mut b);
    s.recv(pkt("SEND_LAST", RQ + 1).data(&pattern(100, 9)).ask());
    s.expect(&["ACK 002001 syn=1f msn=1"]);
    let qpn = s.qpn();
    let done = s.completions();
    assert_eq!((done[0].wr_id, done[0].byte_len, done[0].qpn), (1, 1124, qpn));
    assert_eq!(s.bytes(4096, 1024), pattern(1024, 9));
    swap(&mut s, &mut b);
    s.recv(pkt("SEND_LAST", RQ + 2).len(4).ask());
    let done = s.completions();
    assert_eq!((done[0].wr_id, done[0].byte_len, done[0].qpn), (0, 2052, s.qpn()));
    assert_eq!(s.bytes(0, 1024), pattern(1024, 0));
    assert_eq!(left(&mut s), 1);
}

#[test]
fn a_write_with_immediate_takes_its_receive_at_its_end() {
    let mut s = sharing(8);
    s.post_recv(1, 0, 0);
    let (va, rkey) = (s.va(64), s.rkey());
    s.recv(pkt("WRITE_FIRST", RQ).reth(va, rkey, 1028).len(1024));
    assert_eq!(left(&mut s), 1);
    s.recv(pkt("WRITE_LAST_IMM", RQ + 1).imm(7).len(4).ask());
    assert_eq!(s.results(), [(1, Success)]);
    assert_eq!(left(&mut s), 0);
}

#[test]
fn an_empty_queue_is_not_ready_and_takes_part_again_once_it_is_filled() {
    let mut s = sharing(8);
    s.recv(pkt("SEND_ONLY", RQ).len(4).ask());
    s.expect(&["ACK 002000 syn=21 msn=0"]);
    assert_eq!(s.counter(C::OutOfBuffer), 1);
    s.post_recv(1, 0, 64);
    s.recv(pkt("SEND_ONLY", RQ).len(4).ask());
    s.expect(&["ACK 002000 syn=1f msn=1"]);
    assert_eq!(s.results(), [(1, Success)]);
}

#[test]
fn the_limit_fires_once_when_fewer_are_left_and_when_armed_too_late() {
    let mut s = sharing(8);
    let srq = number(&s);
    for id in 0..5 {
        s.post_recv(id, 0, 64);
    }
    s.engine.modify_srq(srq, None, Some(4)).unwrap();
    s.pump();
    assert_eq!(s.events(), []);
    s.recv(pkt("SEND_ONLY", RQ).len(4));
    assert_eq!(s.events(), [], "four are not fewer than four");
    s.recv(pkt("SEND_ONLY", RQ + 1).len(4));
    assert_eq!(s.events(), [SrqLimit { srq }]);
    assert_eq!(s.engine.query_srq(srq).unwrap().limit, 0, "disarmed");
    s.recv(pkt("SEND_ONLY", RQ + 2).len(4));
    assert_eq!(s.events(), []);
    // There are two.
    s.engine.modify_srq(srq, None, Some(2)).unwrap();
    s.pump();
    assert_eq!(s.events(), []);
    s.engine.modify_srq(srq, None, Some(0)).unwrap();
    s.recv(pkt("SEND_ONLY", RQ + 3).len(4));
    assert_eq!(s.events(), [], "disarmed by its owner");
    s.engine.modify_srq(srq, None, Some(2)).unwrap();
    s.pump();
    assert_eq!(s.events(), [SrqLimit { srq }], "armed when there was one");
}

#[test]
fn what_is_posted_outlives_a_change_of_size() {
    let mut s = sharing(4);
    let srq = number(&s);
    for id in 0..4 {
        s.post_recv(id, 0, 64);
    }
    assert!(matches!(s.engine.modify_srq(srq, Some(3), None), Err(Cause::Invalid { .. })));
    let range = Err(Cause::AttrRange { attr: "srq_limit", got: 9, max: 8 });
    assert_eq!(s.engine.modify_srq(srq, Some(8), Some(9)), range);
    assert_eq!(s.engine.query_srq(srq).unwrap().max_wr, 4, "on an error nothing has changed");
    s.engine.modify_srq(srq, Some(8), None).unwrap();
    for id in 4..8 {
        s.post_recv(id, 0, 64);
    }
    for id in 0..8 {
        s.recv(pkt("SEND_ONLY", RQ + id).len(4));
    }
    let ids: Vec<u64> = s.completions().iter().map(|c| c.wr_id).collect();
    assert_eq!(ids, [0, 1, 2, 3, 4, 5, 6, 7]);
    s.engine.modify_srq(srq, Some(1), None).unwrap();
}

#[test]
fn going_to_err_flushes_the_one_that_is_held_and_says_so_once() {
    let mut s = sharing(8);
    let qpn = s.qpn();
    for id in 0..3 {
        s.post_recv(id, 0, 4096);
    }
    s.recv(pkt("SEND_FIRST", RQ).len(1024));
    s.modify(&QpAttr::to(QpState::Err));
    assert_eq!(s.results(), [(0, WrFlush)]);
    assert_eq!(s.events(), [LastWqe { qpn }]);
    assert_eq!(left(&mut s), 2, "the others are for others");
    s.modify(&QpAttr::to(QpState::Err));
    s.post(crate::queue::SendOp::Send, 9, 0);
    assert_eq!(s.results(), [(9, WrFlush)]);
    assert_eq!(s.events(), []);
    // The next life.
    let setup = Setup::default();
    s.modify(&QpAttr::to(QpState::Reset));
    s.init(&setup);
    s.rtr(RQ, &setup);
    s.recv(pkt("SEND_ONLY", RQ).len(4));
    assert_eq!(s.results(), [(1, Success)]);
    s.events();
    s.modify(&QpAttr::to(QpState::Err));
    assert_eq!(s.results(), []);
    assert_eq!(s.events(), [LastWqe { qpn }]);
}

#[test]
fn a_message_that_fails_tells_by_its_receive_and_no_other() {
    let mut s = sharing(8);
    let qpn = s.qpn();
    for id in 0..2 {
        s.post_recv(id, 0, 8);
    }
    s.recv(pkt("SEND_ONLY", RQ).len(9).ask());
    s.expect(&["ACK 002000 syn=61 msn=0"]);
    assert_eq!(s.results(), [(0, LocLen)]);
    assert_eq!(s.events(), [LastWqe { qpn }]);
    assert_eq!(left(&mut s), 1);

    let mut s = sharing(8);
    let qpn = s.qpn();
    s.post_recv(0, 0, 8);
    s.recv(pkt("WRITE_ONLY", RQ).reth(0, Rkey(1), 4).len(4).ask());
    assert_eq!(s.results(), []);
    assert_eq!(s.events(), [QpAccessErr { qpn }, LastWqe { qpn }]);
    assert_eq!(left(&mut s), 1);
}

#[test]
fn a_reset_forgets_the_one_that_is_held() {
    let mut s = sharing(8);
    for id in 0..2 {
        s.post_recv(id, 0, 4096);
    }
    s.recv(pkt("SEND_FIRST", RQ).len(1024));
    s.modify(&QpAttr::to(QpState::Reset));
    let setup = Setup::default();
    s.init(&setup);
    s.rtr(RQ, &setup);
    s.recv(pkt("SEND_ONLY", RQ).len(4));
    assert_eq!(s.results(), [(1, Success)]);
}

#[test]
fn buffers_belong_to_the_domain_of_the_shared_queue() {
    let mut s = sharing(8);
    // A shared queue of another domain, and memory of that domain.
    let pd = s.engine.alloc_pd().unwrap();
    let region = Region::alloc(64).unwrap();
    let choice = IovaChoice::Allocate;
    let mr = s.engine.register(pd, Arc::clone(&region), choice, Access::LOCAL).unwrap();
    let first = s.srq.replace(s.engine.create_srq(pd, 4, 4).unwrap());
    let mut b = another(&mut s);
    swap(&mut s, &mut b);
    s.post_recv_sge(1, &[Sge { addr: mr.iova, length: 64, lkey: mr.lkey }]);
    s.recv(pkt("SEND_ONLY", RQ).len(4).ask());
    assert_eq!(s.results(), [(1, Success)]);
    // Memory of the queue pair's own domain is not its.
    s.post_recv(2, 0, 64);
    s.recv(pkt("SEND_ONLY", RQ + 1).len(4).ask());
    assert_eq!(s.results(), [(2, LocProt)]);
    let srq = number(&s);
    assert!(matches!(s.engine.destroy_srq(srq), Err(Cause::Busy { .. })));
    assert!(matches!(s.engine.dealloc_pd(pd), Err(Cause::Busy { .. })));
    s.engine.destroy_qp(s.qp).unwrap();
    s.engine.destroy_srq(srq).unwrap();
    s.engine.deregister(pd, mr.lkey).unwrap();
    s.engine.dealloc_pd(pd).unwrap();
    assert!(s.engine.destroy_srq(srq).is_err(), "it is gone");
    assert!(s.engine.query_srq(srq).is_err());
    assert!(first.is_some());
}

#[test]
fn a_receive_is_taken_once_for_a_message_that_comes_in_pieces_and_again() {
    let mut s = sharing(8);
    for id in 0..2 {
        s.post_recv(id, 0, 4096);
    }
    s.recv(pkt("SEND_FIRST", RQ).len(1024));
    // A gap, and the peer goes back to the beginning.
    s.recv(pkt("SEND_LAST", RQ + 2).len(4).ask());
    s.recv(pkt("SEND_FIRST", RQ).len(1024));
    s.recv(pkt("SEND_MIDDLE", RQ + 1).len(1024));
    s.recv(pkt("SEND_LAST", RQ + 2).len(4).ask());
    assert_eq!(s.results(), [(0, Success)]);
    assert_eq!(left(&mut s), 1);
}

#[test]
fn limits_of_shared_queues() {
    let mut s = sharing(8);
    let pd = s.pd;
    for (wr, sge, ok) in [
        (0, 1, false),
        (1, 0, true),
        (1 << 20, 1, true),
        ((1 << 20) + 1, 1, false),
        (1, 32, true),
        (1, 33, false),
    ] {
        assert_eq!(s.engine.create_srq(pd, wr, sge).is_ok(), ok, "{wr} {sge}");
    }
    let few: fn(&mut crate::engine::EngineConfig) = |c| c.max_srq = 1;
    let mut s = Script::sharing(8, &Setup { config: few, ..Setup::default() });
    let pd = s.pd;
    let full = s.engine.create_srq(pd, 1, 1).map(drop);
    assert_eq!(full, Err(Cause::Limit { what: "shared receive queues", got: 2, max: 1 }));
    let init = QpInit {
        kind: QpType::Rc,
        pd,
        send_cq: s.cq,
        recv_cq: s.cq,
        srq: Some(7),
        cap: QpCap::default(),
        sig_all: false,
        cc: None,
    };
    assert!(s.engine.create_qp(init).is_err(), "no such shared queue");
}

#[test]
fn receives_of_any_number_of_pieces_round_the_ring() {
    for most in [1, 2, 27, 32] {
        let mut s = sharing(1);
        s.srq = Some(s.engine.create_srq(s.pd, 3, most).unwrap());
        let mut pair = [another(&mut s), another(&mut s)];
        s.region.fill(0..3 * 1024, 0xee);
        let pieces = |round: u32| (round % (most + 1)) as usize;
        // Pieces of three bytes, eight apart.
        let post = |s: &mut Script, round: u32| {
            let at = (round % 3) as usize * 1024;
            let sges: Vec<Sge> = (0..pieces(round)).map(|i| s.sge(at + 8 * i, 3)).collect();
            s.post_recv_sge(round.into(), &sges);
        };
        post(&mut s, 0);
        post(&mut s, 1);
        for round in 0..3 * most + 7 {
            post(&mut s, round + 2);
            let data = pattern(3 * pieces(round), 0x40);
            let who = &mut pair[(round % 2) as usize];
            swap(&mut s, who);
            s.recv(pkt("SEND_ONLY", RQ + round / 2).data(&data));
            swap(&mut s, who);
            assert_eq!(s.results(), [(round.into(), Success)], "{round} of at most {most}");
            let at = (round % 3) as usize * 1024;
            let mut want = vec![0xee; 1024];
            for (i, piece) in data.chunks(3).enumerate() {
                want[8 * i..8 * i + 3].copy_from_slice(piece);
            }
            assert_eq!(s.bytes(at, 1024), want, "{round} of at most {most}");
            s.region.fill(at..at + 1024, 0xee);
        }
    }
}

#[test]
fn numbers_come_back_late() {
    let mut s = sharing(1);
    let mut seen = std::collections::BTreeSet::from([number(&s)]);
    for _ in 0..16 * 1024 {
        let (srq, _) = s.engine.create_srq(s.pd, 1, 1).unwrap();
        assert!(seen.insert(srq), "a number is used again");
        s.engine.destroy_srq(srq).unwrap();
        assert!(s.engine.query_srq(srq).is_err(), "nobody has the number");
        assert!(s.engine.destroy_srq(srq).is_err());
    }
}

/// On UC and UD what finds no receive is dropped, and nobody is told.
#[test]
fn unreliable_queue_pairs_share_too() {
    for kind in [QpType::Uc, QpType::Ud] {
        let mut s = Script::sharing(8, &Setup { kind, ..Setup::default() });
        let (name, header) =
            if kind == QpType::Ud { ("UD_SEND_ONLY", 40) } else { ("UC_SEND_ONLY", 0) };
        let message = |n: u32, salt| pkt(name, RQ + n).deth(QKEY, 0x123).data(&pattern(60, salt));
        s.recv(message(0, 1));
        assert_eq!((s.counter(C::OutOfBuffer), s.results()), (1, vec![]));
        s.post_recv(1, 0, 200);
        s.post_recv(2, 1000, 200);
        let srq = number(&s);
        s.engine.modify_srq(srq, None, Some(1)).unwrap();
        s.recv(message(1, 2));
        s.recv(message(2, 3));
        s.recv(message(3, 4));
        s.silent();
        let done = s.completions();
        let done: Vec<_> = done.iter().map(|c| (c.wr_id, c.byte_len as usize)).collect();
        assert_eq!(done, [(1, header + 60), (2, header + 60)]);
        assert_eq!(s.bytes(header, 60), pattern(60, 2));
        assert_eq!(s.bytes(1000 + header, 60), pattern(60, 3));
        assert_eq!((s.counter(C::OutOfBuffer), left(&mut s)), (2, 0));
        assert_eq!(s.events(), [SrqLimit { srq }]);
        // One that is too short stays, for all.
        s.post_recv(3, 0, 50);
        s.recv(message(4, 5));
        assert_eq!(s.results(), []);
        assert_eq!(s.counter(C::RespLocalLengthError), 1);
        s.modify(&QpAttr::to(QpState::Err));
        let qpn = s.qpn();
        assert_eq!(s.events(), [LastWqe { qpn }]);
    }
}

/// What a message of UC has taken when it breaks off serves the next one of the same queue pair.
#[test]
fn a_broken_message_keeps_its_receive_for_the_next() {
    let mut s = Script::sharing(8, &Setup { kind: QpType::Uc, ..Setup::default() });
    s.post_recv(1, 0, 4096);
    s.post_recv(2, 4096, 4096);
    s.recv(pkt("UC_SEND_FIRST", RQ).len(1024));
    assert_eq!(left(&mut s), 1);
    s.recv(pkt("UC_SEND_LAST", RQ + 2).len(4));
    s.recv(pkt("UC_SEND_ONLY", RQ + 3).data(&pattern(8, 9)));
    let done = s.completions();
    assert_eq!((done.len(), done[0].wr_id, done[0].byte_len), (1, 1, 8));
    assert_eq!((s.bytes(0, 8), left(&mut s)), (pattern(8, 9), 1));
    assert_eq!(s.counter(C::MessagesGivenUp), 1);
    // Taken and not used: flushed with its queue pair.
    s.recv(pkt("UC_SEND_FIRST", RQ + 4).len(1024));
    s.modify(&QpAttr::to(QpState::Err));
    assert_eq!(s.results(), [(2, WrFlush)]);
}
