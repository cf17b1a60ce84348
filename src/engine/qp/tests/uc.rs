//! Unreliable connections: requests are done when they have left, broken messages vanish, and the send
//! queue can stop alone.

use super::script::{FAR, In, RQ, SQ, Script, pkt};
use crate::engine::cause::Cause;
use crate::engine::cc::CongestionControl;
use crate::engine::counters::Counter;
use crate::engine::event::AsyncEvent;
use crate::engine::qp::attr::{QpAttr, QpState, QpType};
use crate::engine::status::WcStatus;
use crate::engine::tests::pair::{Setup, pattern};
use crate::mem::{Access, Sge};
use crate::queue::{CqeFlags, SendFlags, SendOp, SendWqe};
use crate::time::Duration;
use crate::wire::num::{Lkey, Rkey};

fn uc() -> Setup {
    Setup { kind: QpType::Uc, ..Setup::default() }
}

fn send(name: &str, n: u32) -> In {
    pkt(&format!("UC_SEND_{name}"), RQ + n)
}

fn write(name: &str, n: u32) -> In {
    pkt(&format!("UC_WRITE_{name}"), RQ + n)
}

/// A key that stands for nothing.
const NONE: Lkey = Lkey(3);

#[test]
fn requests_are_done_when_they_have_left() {
    let mut s = Script::with(&uc());
    let bytes = s.fill(0, 2500);
    s.post(SendOp::Send, 1, 2500);
    assert_eq!(s.out_payload(), bytes);
    s.expect(&[
        "UC_SEND_FIRST 001000 +1024",
        "UC_SEND_MIDDLE 001001 +1024",
        "UC_SEND_LAST 001002 +452",
    ]);
    let wc = s.completions();
    assert_eq!(wc.len(), 1);
    assert_eq!((wc[0].wr_id, wc[0].status, wc[0].opcode, wc[0].byte_len), (1, 0, 0, 2500));

    let imm = SendWqe { imm_or_inv: 0x0102_0304, ..Script::wqe(SendOp::SendImm, 2) };
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    s.post_wqe(SendWqe { flags, ..imm }, &[]);
    s.post(SendOp::Write, 3, 1025);
    s.post_wqe(SendWqe { op: SendOp::WriteImm, wr_id: 4, ..imm }, &[]);
    let (va, rkey) = FAR;
    s.expect(&[
        "UC_SEND_ONLY_IMM 001003 SE imm=01020304",
        &format!("UC_WRITE_FIRST 001004 va={va:x} rkey={rkey:x} len=1025 +1024"),
        "UC_WRITE_LAST 001005 +1",
        &format!("UC_WRITE_ONLY_IMM 001006 va={va:x} rkey={rkey:x} len=0 imm=01020304"),
    ]);
    let ok = WcStatus::Success;
    assert_eq!(s.results(), [(2, ok), (3, ok), (4, ok)]);
    // There is nothing to wait for.
    assert_eq!((s.engine.poll_timeout(), s.engine.in_flight()), (None, (0, 0)));
}

#[test]
fn unsignaled_requests_complete_in_silence() {
    let mut s = Script::with(&uc());
    let wqe = SendWqe { flags: SendFlags::empty(), ..Script::wqe(SendOp::Send, 1) };
    s.post_wqe(wqe, &[]);
    s.expect(&["UC_SEND_ONLY 001000"]);
    assert_eq!(s.results(), []);
    assert_eq!(s.counter(Counter::RdmaSends), 1);
}

#[test]
fn windows_are_bound_and_invalidated_in_the_order_of_the_queue() {
    let mut s = Script::with(&uc());
    let key = s.window(64, 128, Access::REMOTE_WRITE);
    s.recv(write("ONLY", 0).reth(s.va(64), key, 8).len(8));
    assert_eq!(s.bytes(64, 8), pattern(8, 0));
    s.post(SendOp::Send, 1, 8);
    s.post_wqe(SendWqe { rkey: key, ..Script::wqe(SendOp::LocalInv, 2) }, &[]);
    s.post(SendOp::Send, 3, 8);
    s.expect(&["UC_SEND_ONLY 001000 +8", "UC_SEND_ONLY 001001 +8"]);
    let ok = WcStatus::Success;
    assert_eq!(s.results(), [(1, ok), (2, ok), (3, ok)]);
    s.recv(write("ONLY", 1).reth(s.va(64), key, 8).data(&[0; 8]));
    assert_eq!(s.bytes(64, 8), pattern(8, 0), "the key is dead");
    assert_eq!(s.counter(Counter::DropRefused), 1);
}

#[test]
fn operations_that_the_service_does_not_have() {
    for op in [SendOp::Read, SendOp::CompareSwap, SendOp::FetchAdd, SendOp::SendInv] {
        let mut s = Script::with(&uc());
        s.post(op, 1, 8);
        s.post(SendOp::Send, 2, 8);
        s.silent();
        assert_eq!(s.results(), [(1, WcStatus::LocQpOp), (2, WcStatus::WrFlush)], "{op:?}");
        assert_eq!(s.state(), QpState::Sqe);
    }
}

#[test]
fn messages_arrive() {
    let mut s = Script::with(&uc());
    s.post_recv(1, 0, 4000);
    s.recv(send("FIRST", 0).len(1024));
    s.recv(send("MIDDLE", 1).len(1024));
    assert_eq!(s.results(), []);
    s.recv(send("LAST_IMM", 2).data(&[7; 100]).imm(0x5566_7788).se());
    let wc = s.completions();
    assert_eq!((wc.len(), wc[0].wr_id, wc[0].status, wc[0].opcode), (1, 1, 0, 128));
    assert_eq!((wc[0].byte_len, wc[0].imm_or_inv), (2148, 0x5566_7788));
    assert_eq!(wc[0].flags, CqeFlags::WITH_IMM);
    assert_eq!(s.bytes(0, 1024), pattern(1024, 0));
    assert_eq!(s.bytes(2048, 100), [7; 100]);

    s.post_recv(2, 0, 0);
    s.recv(write("FIRST", 3).reth(s.va(5000), s.rkey(), 1030).len(1024));
    s.recv(write("LAST_IMM", 4).len(6).imm(9));
    let wc = s.completions();
    assert_eq!((wc.len(), wc[0].wr_id, wc[0].opcode, wc[0].byte_len), (1, 2, 129, 1030));
    assert_eq!(s.bytes(5000, 1024), pattern(1024, 0));
    assert_eq!(s.bytes(6024, 6), pattern(6, 0));
    assert_eq!(s.counter(Counter::RxWriteRequests), 1);
    s.silent();
}

/// Each way to lose the middle of a message: what is left of it is dropped, and its receive serves the next.
#[test]
fn a_broken_message_vanishes_and_its_receive_serves_the_next() {
    let rest: [(&str, Vec<In>, u64); 4] = [
        ("a gap", vec![send("MIDDLE", 2).len(1024), send("LAST", 3).len(10)], 2),
        ("the end is missing", vec![], 0),
        ("a packet twice", vec![send("FIRST", 0).len(1024).pad(1), send("LAST", 1).len(10)], 1),
        ("of another operation", vec![write("MIDDLE", 1).len(1024), send("LAST", 2).len(1)], 2),
    ];
    for (what, packets, remainder) in rest {
        let mut s = Script::with(&uc());
        s.post_recv(1, 0, 2000);
        s.recv(send("FIRST", 0).len(1024));
        for packet in packets {
            s.recv(packet);
        }
        assert_eq!(s.results(), [], "{what}");
        s.recv(send("ONLY", 9).data(b"next"));
        let wc = s.completions();
        assert_eq!((wc.len(), wc[0].wr_id, wc[0].status, wc[0].byte_len), (1, 1, 0, 4), "{what}");
        assert_eq!(s.bytes(0, 4), b"next", "from its beginning");
        assert_eq!(s.counter(Counter::MessagesGivenUp), 1, "{what}");
        assert_eq!(s.counter(Counter::DropRemainder), remainder, "{what}");
        assert_eq!((s.state(), s.events()), (QpState::Rts, vec![]), "{what}");
        s.silent();
    }
}

#[test]
fn what_a_broken_write_has_placed_stays() {
    let mut s = Script::with(&uc());
    let (va, key) = (s.va(0), s.rkey());
    s.recv(write("FIRST", 0).reth(va, key, 2048).len(1024));
    s.recv(write("LAST", 2).data(&[9; 1024]));
    assert_eq!(s.bytes(0, 1024), pattern(1024, 0));
    assert_eq!(s.bytes(1024, 1024), [0; 1024]);
    s.recv(write("ONLY", 3).reth(va, key, 4).data(b"next"));
    assert_eq!(s.bytes(0, 4), b"next");
    assert_eq!(s.counter(Counter::MessagesGivenUp), 1);
    assert_eq!((s.counter(Counter::DropRemainder), s.counter(Counter::OutOfSequence)), (1, 2));
}

#[test]
fn a_message_may_begin_at_any_psn() {
    let mut s = Script::with(&uc());
    for id in 0..4 {
        s.post_recv(id, 0, 64);
    }
    // Ahead, behind, across the end of the number space.
    for psn in [RQ + 100, RQ - 5, 0xff_ffff, 0] {
        s.recv(pkt("UC_SEND_ONLY", psn));
    }
    assert_eq!(s.results().len(), 4);
    let counted = [Counter::OutOfSequence, Counter::DuplicateRequest].map(|c| s.counter(c));
    assert_eq!(counted, [1, 2], "the last was expected");
}

/// Whatever is wrong with a request: it is counted and dropped, with what belongs to it, and nothing else
/// happens.
#[test]
fn requests_that_cannot_be_executed_are_dropped() {
    type Packets = fn(&Script) -> Vec<In>;
    let cases: [(&str, Packets, Counter); 9] = [
        ("no receive", |_| vec![send("ONLY", 0)], Counter::OutOfBuffer),
        (
            "no receive for a long one",
            |_| vec![send("FIRST", 0).len(1024), send("LAST", 1).len(1)],
            Counter::OutOfBuffer,
        ),
        (
            "no receive for the immediate",
            |s| vec![write("ONLY_IMM", 0).reth(s.va(0), s.rkey(), 0).imm(1)],
            Counter::OutOfBuffer,
        ),
        ("a short FIRST", |_| vec![send("FIRST", 0).len(1000)], Counter::OutOfBuffer),
        (
            "a short FIRST of a WRITE",
            |s| vec![write("FIRST", 0).reth(s.va(0), s.rkey(), 2000).len(1000)],
            Counter::DropRefused,
        ),
        (
            "an unknown key",
            |s| vec![write("ONLY", 0).reth(s.va(0), Rkey(5), 8).len(8)],
            Counter::DropRefused,
        ),
        (
            "out of range",
            |s| vec![write("ONLY", 0).reth(s.va(65_530), s.rkey(), 8).len(8)],
            Counter::DropRefused,
        ),
        (
            "more than announced",
            |s| vec![write("ONLY", 0).reth(s.va(0), s.rkey(), 4).len(8)],
            Counter::DropRefused,
        ),
        (
            "a pad that does not fit",
            |s| vec![write("ONLY", 0).reth(s.va(0), s.rkey(), 8).len(8).pad(1)],
            Counter::DropRefused,
        ),
    ];
    for (what, packets, counter) in cases {
        let mut s = Script::with(&uc());
        for packet in packets(&s) {
            s.recv(packet);
        }
        assert_eq!(s.counter(counter), 1, "{what}");
        assert_eq!(s.bytes(0, 64), [0; 64], "{what}");
        assert_eq!((s.results(), s.events(), s.state()), (vec![], vec![], QpState::Rts), "{what}");
        s.post_recv(1, 0, 64);
        s.recv(send("ONLY", 2).data(b"well"));
        assert_eq!(s.results(), [(1, WcStatus::Success)], "{what}");
        s.silent();
    }
}

#[test]
fn a_send_longer_than_the_receive_is_dropped_and_the_receive_stays() {
    let mut s = Script::with(&uc());
    s.post_recv(1, 0, 1500);
    s.recv(send("FIRST", 0).len(1024));
    s.recv(send("LAST", 1).len(1024));
    assert_eq!(s.results(), []);
    assert_eq!(s.counter(Counter::RespLocalLengthError), 1);
    s.recv(send("ONLY", 2).len(1000));
    assert_eq!(s.results(), [(1, WcStatus::Success)]);
}

#[test]
fn without_the_right_of_the_queue_pair_nothing_is_written() {
    let mut s = Script::with(&Setup { access: Access::LOCAL_WRITE, ..uc() });
    s.recv(write("ONLY", 0).reth(s.va(0), s.rkey(), 8).len(8));
    assert_eq!((s.bytes(0, 8), s.counter(Counter::DropRefused)), (vec![0; 8], 1));
}

#[test]
fn a_receive_with_wrong_buffers_is_an_error_of_this_side() {
    let mut s = Script::with(&uc());
    let sge = Sge { lkey: NONE, ..s.sge(0, 64) };
    s.post_recv_sge(1, &[sge]);
    s.post_recv(2, 0, 64);
    s.recv(send("ONLY", 0).len(8));
    assert_eq!(s.results(), [(1, WcStatus::LocProt), (2, WcStatus::WrFlush)]);
    assert_eq!(s.state(), QpState::Err);
    s.silent();
}

#[test]
fn packets_of_another_service_are_not_for_it() {
    let mut s = Script::with(&uc());
    s.post_recv(1, 0, 64);
    s.recv(pkt("SEND_ONLY", RQ));
    s.recv(pkt("ACK", SQ).syndrome(0x1f));
    s.recv(pkt("UD_SEND_ONLY", RQ));
    assert_eq!(s.counter(Counter::DropTransport), 3);
    let mut rc = Script::new();
    rc.recv(send("ONLY", 0));
    assert_eq!(rc.counter(Counter::DropTransport), 1);
    assert_eq!(s.results(), []);
}

#[test]
fn the_first_packet_in_rtr_is_an_event() {
    let setup = uc();
    let mut s = Script::idle(&setup);
    s.init(&setup);
    s.rtr(RQ, &setup);
    s.post_recv(1, 0, 64);
    s.recv(send("ONLY", 0));
    s.recv(send("ONLY", 1));
    let qpn = s.qpn();
    assert_eq!(s.events(), [AsyncEvent::CommEst { qpn }]);
    assert_eq!(s.results(), [(1, WcStatus::Success)]);
}

#[test]
fn an_error_of_the_send_queue_stops_it_alone() {
    let mut s = Script::with(&uc());
    s.post_recv(10, 0, 64);
    s.post(SendOp::Send, 1, 8);
    s.post_wqe(Script::wqe(SendOp::Send, 2), &[Sge { lkey: NONE, ..s.sge(0, 8) }]);
    s.post(SendOp::Send, 3, 8);
    let results = s.results();
    let flushed = WcStatus::WrFlush;
    assert_eq!(results, [(1, WcStatus::Success), (2, WcStatus::LocProt), (3, flushed)]);
    assert_eq!(s.state(), QpState::Sqe);
    s.expect(&["UC_SEND_ONLY 001000 +8"]);
    // Receiving goes on.
    s.recv(send("ONLY", 0).len(8));
    assert_eq!(s.results(), [(10, WcStatus::Success)]);
    s.post(SendOp::Send, 4, 8);
    assert_eq!(s.results(), [(4, flushed)]);

    s.modify(&QpAttr::to(QpState::Rts).cur_state(QpState::Sqe));
    s.post(SendOp::Send, 5, 8);
    assert_eq!(s.results(), [(5, WcStatus::Success)]);
    s.expect(&["UC_SEND_ONLY 001001 +8"]);
}

/// What was posted before the transition and not looked at yet fails as it would have.
#[test]
fn leaving_sqe_flushes_what_was_posted_there() {
    let mut s = Script::with(&uc());
    s.post(SendOp::Read, 1, 8);
    let mut sq = s.face.sq.lock();
    sq.stage(Script::wqe(SendOp::Send, 2), []).unwrap();
    sq.publish();
    drop(sq);
    s.modify(&QpAttr::to(QpState::Rts));
    s.post(SendOp::Send, 3, 8);
    let results = s.results();
    assert_eq!(results[1..], [(2, WcStatus::WrFlush), (3, WcStatus::Success)]);
    s.expect(&["UC_SEND_ONLY 001000 +8"]);
}

#[test]
fn a_message_that_fails_half_way_leaves_the_numbers_in_order() {
    let mut s = Script::with(&uc());
    let wrong = Sge { lkey: NONE, ..s.sge(0, 1024) };
    let good = s.sge(0, 1024);
    s.post_wqe(Script::wqe(SendOp::Send, 1), &[good, wrong]);
    assert_eq!(s.results(), [(1, WcStatus::LocProt)]);
    s.expect(&["UC_SEND_FIRST 001000 +1024"]);
    s.modify(&QpAttr::to(QpState::Rts));
    s.post(SendOp::Send, 2, 0);
    s.expect(&["UC_SEND_ONLY 001001"]);
}

#[test]
fn sqe_leads_to_err_and_reset_too() {
    let mut s = Script::with(&uc());
    s.post_recv(10, 0, 64);
    s.post(SendOp::Read, 1, 8);
    s.modify(&QpAttr::to(QpState::Err));
    assert_eq!(s.results(), [(1, WcStatus::LocQpOp), (10, WcStatus::WrFlush)]);
    s.modify(&QpAttr::to(QpState::Reset));
    assert_eq!(s.state(), QpState::Reset);
}

#[test]
fn draining_ends_at_once() {
    let mut s = Script::with(&uc());
    s.post(SendOp::Send, 1, 3000);
    s.modify(&QpAttr::to(QpState::Sqd).sqd_notify(true));
    let qpn = s.qpn();
    assert_eq!(s.events(), [AsyncEvent::SqDrained { qpn }]);
    s.post(SendOp::Send, 2, 8);
    assert_eq!(s.sent().len(), 3);
    s.modify(&QpAttr::to(QpState::Rts));
    s.expect(&["UC_SEND_ONLY 001003 +8"]);
}

/// A rate, and nothing else.
#[derive(Debug)]
struct Rate(u64);

impl CongestionControl for Rate {
    fn pacing_rate(&self) -> Option<u64> {
        Some(self.0)
    }
}

#[test]
fn congestion_control_sets_the_pace() {
    // 1 Gbit/s: a packet of 1106 bytes on the wire takes 8.8 us.
    let mut s = Script::with(&Setup { cc: Some(|| Box::new(Rate(1_000_000_000))), ..uc() });
    s.post(SendOp::Send, 1, 20 * 1024);
    assert_eq!(s.results(), []);
    s.wait_us(400);
    let sent = s.sent();
    assert_eq!(sent.len(), 20);
    let took = sent[19].at - sent[0].at;
    let expected = Duration::from_nanos(19 * 8848 - 20_000);
    // Half of the burst is waited for.
    assert!(took.abs_diff(expected) < Duration::from_micros(20), "{took:?}, not {expected:?}");
    assert_eq!(s.results(), [(1, WcStatus::Success)]);
}

#[test]
fn attributes_of_reliable_connections_are_named_and_refused() {
    let setup = uc();
    let mut s = Script::idle(&setup);
    s.init(&setup);
    s.rtr(RQ, &setup);
    let attr = QpAttr::to(QpState::Rts).sq_psn(SQ).timeout(14);
    let got = s.engine.modify_qp(s.now, s.qp, &attr);
    let (from, to) = (QpState::Rtr, QpState::Rts);
    assert_eq!(got, Err(Cause::UnexpectedAttr { from, to, attr: "timeout" }));
}

#[test]
fn who_asks_for_an_ack_gets_none() {
    let mut s = Script::with(&uc());
    s.post_recv(1, 0, 64);
    s.recv(send("ONLY", 0).len(8).ask());
    s.recv(write("ONLY", 1).reth(s.va(100), s.rkey(), 8).len(8).ask());
    // Nor whoever leaves a gap, repeats itself, or is refused.
    s.recv(write("ONLY", 5).reth(s.va(100), s.rkey(), 8).len(8).ask());
    s.recv(write("ONLY", 5).reth(s.va(100), s.rkey(), 8).len(8).ask());
    s.recv(write("ONLY", 6).reth(s.va(100), Rkey(3), 8).len(8).ask());
    s.silent();
    assert_eq!(s.results(), [(1, WcStatus::Success)]);
    assert_eq!(s.counter(Counter::RxWriteRequests), 3);
    assert_eq!((s.engine.poll_timeout(), s.state()), (None, QpState::Rts));
}
