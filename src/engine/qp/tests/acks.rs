//! When the responder acknowledges, and with which numbers.

use super::script::{RQ, SQ, Script, ack, pkt};
use crate::engine::counters::Counter as C;
use crate::engine::qp::attr::QpState;
use crate::engine::tests::pair::Setup;
use crate::queue::SendOp;
use crate::time::Duration;

fn with_receives(n: u64) -> Script {
    let mut s = Script::new();
    for id in 0..n {
        s.post_recv(id, 0, 8192);
    }
    s
}

#[test]
fn only_who_asks_gets_an_ack() {
    let mut s = with_receives(3);
    s.recv(pkt("SEND_ONLY", RQ));
    s.silent();
    s.recv(pkt("SEND_ONLY", RQ + 1).ask());
    s.expect(&["ACK 002001 syn=1f msn=2"]);
    s.recv(pkt("SEND_FIRST", RQ + 2).len(1024).ask());
    s.expect(&["ACK 002002 syn=1f msn=2"]);
    s.recv(pkt("SEND_LAST", RQ + 3).len(1).ask());
    s.expect(&["ACK 002003 syn=1f msn=3"]);
}

#[test]
fn one_ack_for_all_that_arrived_together() {
    let mut s = with_receives(5);
    s.recv_all((0..5).map(|i| pkt("SEND_ONLY", RQ + i).ask()));
    s.expect(&["ACK 002004 syn=1f msn=5"]);
}

#[test]
fn msn_counts_messages_a_read_when_it_is_accepted() {
    let mut s = with_receives(4);
    let (va, rkey) = (s.va(0), s.rkey());
    s.recv(pkt("SEND_FIRST", RQ).len(1024).ask());
    s.expect(&["ACK 002000 syn=1f msn=0"]);
    s.recv(pkt("SEND_LAST_IMM", RQ + 1).len(1).ask());
    s.expect(&["ACK 002001 syn=1f msn=1"]);
    s.recv(pkt("WRITE_FIRST", RQ + 2).reth(va, rkey, 1025).len(1024).ask());
    s.expect(&["ACK 002002 syn=1f msn=1"]);
    s.recv(pkt("WRITE_LAST", RQ + 3).len(1).ask());
    s.expect(&["ACK 002003 syn=1f msn=2"]);
    s.recv(pkt("WRITE_ONLY_IMM", RQ + 4).reth(va, rkey, 1).len(1).ask());
    s.expect(&["ACK 002004 syn=1f msn=3"]);
    s.recv_all([
        pkt("READ_REQUEST", RQ + 5).reth(va, rkey, 2000),
        pkt("READ_REQUEST", RQ + 7).reth(va, rkey, 0),
        pkt("FETCH_ADD", RQ + 8).atomic(va, rkey, 0, 0),
        pkt("SEND_ONLY", RQ + 9).ask(),
    ]);
    s.expect(&[
        "READ_RESP_FIRST 002005 syn=1f msn=4 +1024",
        "READ_RESP_LAST 002006 syn=1f msn=4 +976",
        "READ_RESP_ONLY 002007 syn=1f msn=5",
        "ATOMIC_ACK 002008 syn=1f msn=6 orig=d9ba9b7c5d3e1f00",
        "ACK 002009 syn=1f msn=7",
    ]);
}

#[test]
fn an_ack_waits_behind_the_answers_to_reads() {
    let mut s = with_receives(2);
    let (va, rkey) = (s.va(0), s.rkey());
    s.recv_all([
        pkt("READ_REQUEST", RQ).reth(va, rkey, 20 * 1024),
        pkt("SEND_ONLY", RQ + 20).ask(),
    ]);
    let sent = s.sent();
    assert_eq!(sent.len(), 21, "more than one turn's worth");
    assert_eq!(sent[20].line, "ACK 002014 syn=1f msn=2");

    // A READ behind the SEND acknowledges it.
    s.recv_all([pkt("SEND_ONLY", RQ + 21).ask(), pkt("READ_REQUEST", RQ + 22).reth(va, rkey, 8)]);
    s.expect(&["READ_RESP_ONLY 002016 syn=1f msn=4 +8"]);
}

#[test]
fn one_nak_for_each_gap() {
    let mut s = with_receives(9);
    s.recv(pkt("SEND_ONLY", RQ).ask());
    s.expect(&["ACK 002000 syn=1f msn=1"]);
    for psn in [3, 4, 2, 5] {
        s.recv(pkt("SEND_ONLY", RQ + psn).ask());
    }
    s.expect(&["ACK 002001 syn=60 msn=1"]);
    // A duplicate does not end it.
    s.recv(pkt("SEND_ONLY", RQ).ask());
    s.expect(&["ACK 002000 syn=1f msn=1"]);
    s.recv(pkt("SEND_ONLY", RQ + 6).ask());
    s.silent();
    assert_eq!((s.counter(C::OutOfSequence), s.counter(C::OutOfSeqRequest)), (5, 1));
    assert_eq!(s.counter(C::DropRequestAhead), 4);
    // What was missing does; then there is another gap.
    s.recv(pkt("SEND_ONLY", RQ + 1).ask());
    s.expect(&["ACK 002001 syn=1f msn=2"]);
    s.recv(pkt("SEND_ONLY", RQ + 3).ask());
    s.expect(&["ACK 002002 syn=60 msn=2"]);
}

#[test]
fn a_nak_that_may_be_lost_is_repeated_after_a_millisecond() {
    let mut s = with_receives(1);
    s.recv(pkt("SEND_ONLY", RQ + 1));
    s.expect(&["ACK 002000 syn=60 msn=0"]);
    s.wait(Duration::from_nanos(999_999));
    s.recv(pkt("SEND_ONLY", RQ + 2));
    s.silent();
    s.wait(Duration::from_nanos(1));
    s.recv(pkt("SEND_ONLY", RQ + 3));
    s.expect(&["ACK 002000 syn=60 msn=0"]);
    s.recv(pkt("SEND_ONLY", RQ + 4));
    s.silent();
}

#[test]
fn a_nak_is_not_repeated_where_that_is_switched_off() {
    let mut s = Script::with(&Setup { config: |c| c.renak_after = None, ..Setup::default() });
    s.recv(pkt("SEND_ONLY", RQ + 1));
    s.expect(&["ACK 002000 syn=60 msn=0"]);
    s.wait(Duration::from_secs(5));
    s.recv(pkt("SEND_ONLY", RQ + 2));
    s.silent();
}

#[test]
fn what_was_missing_and_arrives_in_the_same_pass_is_not_complained_about() {
    let mut s = with_receives(3);
    s.recv_all([pkt("SEND_ONLY", RQ + 1), pkt("SEND_ONLY", RQ), pkt("SEND_ONLY", RQ + 1)]);
    s.expect(&["ACK 002001 syn=1f msn=2"]);
    // Also if a READ was missing: its answer says enough.
    let read = pkt("READ_REQUEST", RQ + 2).reth(s.va(0), s.rkey(), 4);
    s.recv_all([pkt("SEND_ONLY", RQ + 3), read]);
    s.expect(&["READ_RESP_ONLY 002002 syn=1f msn=3 +4"]);
    assert_eq!((s.counter(C::OutOfSequence), s.counter(C::OutOfSeqRequest)), (2, 0), "none left");
}

#[test]
fn a_receive_in_time_saves_the_nak_and_its_counter() {
    let mut s = Script::new();
    let (path, qpn) = (s.path(), s.face.qpn());
    let packet = pkt("SEND_ONLY", RQ).ask();
    s.datagram(&path, 1, &packet.bytes(qpn, &path, 1));
    let mut rq = s.face.rq.lock();
    rq.stage(7, []).unwrap();
    rq.publish();
    drop(rq);
    s.recv(packet);
    s.expect(&["ACK 002000 syn=1f msn=1"]);
    assert_eq!((s.counter(C::OutOfBuffer), s.counter(C::SendRnrErr)), (1, 0));
}

#[test]
fn a_duplicate_does_not_displace_a_nak() {
    let mut s = with_receives(2);
    s.recv(pkt("SEND_ONLY", RQ));
    s.recv_all([pkt("SEND_ONLY", RQ + 2), pkt("SEND_ONLY", RQ)]);
    s.expect(&["ACK 002001 syn=60 msn=1"]);
}

#[test]
fn behind_a_receiver_that_is_not_ready_there_is_no_gap() {
    let mut s = Script::new();
    let (va, rkey) = (s.va(0), s.rkey());
    s.recv(pkt("SEND_ONLY", RQ).ask());
    s.expect(&["ACK 002000 syn=21 msn=0"]);
    // What was in flight behind it.
    s.recv(pkt("SEND_ONLY", RQ + 1).ask());
    s.recv(pkt("READ_REQUEST", RQ + 2).reth(va, rkey, 8));
    s.silent();
    assert_eq!(s.counter(C::DropRequestAhead), 2);
    // It comes again: not ready again, then ready.
    s.recv(pkt("SEND_ONLY", RQ).ask());
    s.expect(&["ACK 002000 syn=21 msn=0"]);
    s.post_recv(1, 0, 8);
    s.recv(pkt("SEND_ONLY", RQ).ask());
    s.expect(&["ACK 002000 syn=1f msn=1"]);
    // A gap after that is a gap.
    s.recv(pkt("SEND_ONLY", RQ + 2).ask());
    s.expect(&["ACK 002001 syn=60 msn=1"]);
    assert_eq!((s.counter(C::SendRnrErr), s.state()), (2, QpState::Rts));
}

#[test]
fn not_ready_names_the_timer_that_was_set() {
    for timer in [0, 1, 12, 31] {
        let mut s = Script::with(&Setup { min_rnr_timer: timer, ..Setup::default() });
        s.recv(pkt("SEND_FIRST", RQ).len(1024));
        s.expect(&[&format!("ACK 002000 syn={:02x} msn=0", 0x20 + timer)]);
    }
}

#[test]
fn a_write_with_immediate_needs_its_receive_at_the_end() {
    let mut s = Script::new();
    let first = pkt("WRITE_FIRST", RQ).reth(s.va(0), s.rkey(), 1025).len(1024).ask();
    s.recv(first);
    s.expect(&["ACK 002000 syn=1f msn=0"]);
    let last = pkt("WRITE_LAST_IMM", RQ + 1).imm(9).len(1).ask();
    s.recv(last.clone());
    s.expect(&["ACK 002001 syn=21 msn=0"]);
    s.post_recv(5, 4096, 16);
    s.recv(last);
    s.expect(&["ACK 002001 syn=1f msn=1"]);
    let got = s.completions();
    assert_eq!((got.len(), got[0].opcode, got[0].byte_len), (1, 129, 1025));
    assert_eq!((got[0].imm_or_inv, s.bytes(4096, 16)), (9, vec![0; 16]));
}

#[test]
fn held_acks_leave_at_the_latest_after_the_delay() {
    let mut s = with_receives(9);
    s.hold_acks();
    s.recv(pkt("SEND_ONLY", RQ).ask());
    s.silent();
    s.wait_us(50);
    s.recv(pkt("SEND_ONLY", RQ + 1).ask());
    s.wait_us(49);
    s.silent();
    s.wait_us(1);
    let sent = s.sent();
    assert_eq!((sent.len(), sent[0].at), (1, Duration::from_micros(100)));
    assert_eq!(sent[0].line, "ACK 002001 syn=1f msn=2");
    assert_eq!(s.engine.poll_timeout(), None);
    // Answers and NAKs are never held.
    let read = pkt("READ_REQUEST", RQ + 2).reth(s.va(0), s.rkey(), 4);
    s.recv(read);
    s.recv(pkt("SEND_ONLY", RQ + 4));
    s.expect(&["READ_RESP_ONLY 002002 syn=1f msn=3 +4", "ACK 002003 syn=60 msn=3"]);
}

#[test]
fn held_acks_do_not_wait_for_ever_while_receives_go_on() {
    let mut s = with_receives(99);
    s.hold_acks();
    let mut sent = 0;
    for i in 0..90 {
        s.wait_us(10);
        s.recv(pkt("SEND_ONLY", RQ + i).ask());
        sent += s.sent().len();
    }
    assert_eq!(sent, 8, "one each 100 us");
}

#[test]
fn a_held_ack_leaves_with_the_next_data_behind_it() {
    let mut s = with_receives(9);
    s.hold_acks();
    s.recv(pkt("SEND_ONLY", RQ).ask());
    s.silent();
    s.post(SendOp::Send, 1, 20);
    s.expect(&["SEND_ONLY 001000 A +20", "ACK 002000 syn=1f msn=1"]);
    assert!(!s.engine.has_transmit());
    s.recv(ack(SQ, 0x1f));
    // Data of several packets, the last of them a short one.
    s.recv(pkt("SEND_ONLY", RQ + 1).ask());
    s.post(SendOp::Send, 2, 1024 + 4);
    s.expect(&["SEND_FIRST 001001 +1024", "SEND_LAST 001002 A +4", "ACK 002001 syn=1f msn=2"]);
    s.recv(ack(SQ + 2, 0x1f));
    assert_eq!(s.engine.poll_timeout(), None, "nothing is left to wait for");
}

#[test]
fn a_turn_is_shared_by_answers_and_requests() {
    // The peer reads without end; what we have to send leaves nevertheless.
    let mut s = Script::new();
    let (va, rkey) = (s.va(0), s.rkey());
    let reads = (0..4).map(|i| pkt("READ_REQUEST", RQ + 64 * i).reth(va, rkey, 64 * 1024));
    let mut sq = s.face.sq.lock();
    sq.stage(Script::wqe(SendOp::Write, 1), [s.sge(0, 32 * 1024)]).unwrap();
    sq.publish();
    drop(sq);
    s.engine.handle_doorbell(s.now, s.qp);
    s.recv_all(reads);
    let kinds: Vec<bool> = s.sent().iter().map(|out| out.line.starts_with("WRITE")).collect();
    assert_eq!(kinds.iter().filter(|&&write| write).count(), 32);
    assert_eq!(kinds.len(), 32 + 256);
    assert!(kinds[..33].iter().filter(|&&write| write).count() >= 16, "{kinds:?}");
}
