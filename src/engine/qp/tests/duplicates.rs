//! Requests that arrive again: answered, never executed twice.

use super::script::{RQ, Script, pkt};
use crate::engine::counters::Counter as C;
use crate::engine::qp::attr::{QpAttr, QpState};
use crate::engine::status::WcStatus::Success;
use crate::engine::tests::pair::Setup;
use crate::mem::Access;
use crate::wire::num::Rkey;

fn word(s: &Script, at: usize) -> u64 {
    u64::from_ne_bytes(s.bytes(at, 8).try_into().unwrap())
}

#[test]
fn sends_and_writes_are_acknowledged_up_to_what_is_done() {
    let mut s = Script::new();
    s.post_recv(1, 0, 64);
    s.post_recv(2, 64, 64);
    let send = pkt("SEND_ONLY", RQ).data(b"first");
    s.recv(send.clone().ask());
    let write = pkt("WRITE_ONLY", RQ + 1).reth(s.va(200), s.rkey(), 4).data(b"once");
    s.recv(write.clone().ask());
    s.expect(&["ACK 002000 syn=1f msn=1", "ACK 002001 syn=1f msn=2"]);
    s.region.fill(0..4096, 0);
    // Without AckReq too, with the newest PSN and MSN.
    s.recv(send.clone());
    s.recv(write.clone());
    s.expect(&["ACK 002001 syn=1f msn=2"; 2]);
    // One for all that arrive together.
    s.recv_all([send.clone(), write.clone(), send.ask(), write.ask()]);
    s.expect(&["ACK 002001 syn=1f msn=2"]);
    assert_eq!((s.counter(C::DuplicateSend), s.counter(C::DuplicateWrite)), (3, 3));
    assert_eq!(s.bytes(0, 4096), [0; 4096], "nothing is placed twice");
    assert_eq!(s.results(), [(1, Success)], "the second receive is untouched");
}

#[test]
fn every_packet_of_a_message_and_every_kind() {
    let mut s = Script::new();
    s.post_recv(1, 0, 8192);
    s.post_recv(2, 0, 8192);
    let window = s.window(40_000, 8, Access::REMOTE_READ);
    let (va, rkey) = (s.va(9000), s.rkey());
    let packets = [
        pkt("SEND_FIRST", RQ).len(1024),
        pkt("SEND_MIDDLE", RQ + 1).len(1024),
        pkt("SEND_LAST_INV", RQ + 2).inv(window).len(9),
        pkt("WRITE_FIRST", RQ + 3).reth(va, rkey, 2057).len(1024),
        pkt("WRITE_MIDDLE", RQ + 4).len(1024),
        pkt("WRITE_LAST_IMM", RQ + 5).imm(5).len(9),
    ];
    s.recv_all(packets.clone());
    assert_eq!(s.results(), [(1, Success), (2, Success)]);
    s.silent();
    for packet in packets {
        s.recv(packet);
        s.expect(&["ACK 002005 syn=1f msn=2"]);
    }
    assert_eq!(s.results(), []);
    assert_eq!(s.state(), QpState::Rts, "the key is not invalidated twice");
}

#[test]
fn a_duplicate_in_the_middle_of_a_message_acknowledges_what_is_there() {
    let mut s = Script::new();
    s.post_recv(1, 0, 8192);
    s.recv(pkt("SEND_FIRST", RQ).len(1024));
    s.recv(pkt("SEND_FIRST", RQ).len(1024));
    s.expect(&["ACK 002000 syn=1f msn=0"]);
}

#[test]
fn a_read_is_executed_again_on_memory_as_it_is() {
    let mut s = Script::new();
    s.fill(0, 2500);
    let read = pkt("READ_REQUEST", RQ).reth(s.va(0), s.rkey(), 2500);
    s.recv(read.clone());
    assert_eq!(s.sent().iter().map(|out| out.payload.len()).sum::<usize>(), 2500);
    s.region.fill(0..2500, 0xee);
    s.recv(read);
    let again = s.sent();
    let lines: Vec<_> = again.iter().map(|out| out.line.as_str()).collect();
    assert_eq!(
        lines,
        [
            "READ_RESP_FIRST 002000 syn=1f msn=1 +1024",
            "READ_RESP_MIDDLE 002001 +1024",
            "READ_RESP_LAST 002002 syn=1f msn=1 +452",
        ]
    );
    assert!(again.iter().all(|out| out.payload.iter().all(|&b| b == 0xee)));
    assert_eq!(s.counter(C::DuplicateRead), 1);
    assert_eq!(s.counter(C::RxReadRequests), 1);
}

#[test]
fn a_read_may_ask_for_the_tail() {
    let mut s = Script::new();
    let data = s.fill(0, 4000);
    let (va, rkey) = (s.va(0), s.rkey());
    s.recv(pkt("READ_REQUEST", RQ).reth(va, rkey, 4000));
    s.sent();
    // From the second packet; from the last.
    s.recv(pkt("READ_REQUEST", RQ + 1).reth(va + 1024, rkey, 4000 - 1024));
    let tail: Vec<u8> = s.out_payload();
    assert_eq!(tail, data[1024..]);
    s.expect(&[
        "READ_RESP_FIRST 002001 syn=1f msn=1 +1024",
        "READ_RESP_MIDDLE 002002 +1024",
        "READ_RESP_LAST 002003 syn=1f msn=1 +928",
    ]);
    s.recv(pkt("READ_REQUEST", RQ + 3).reth(va + 3072, rkey, 928));
    s.expect(&["READ_RESP_ONLY 002003 syn=1f msn=1 +928"]);
    // What comes next is at the PSN that it would have without all that.
    s.recv(pkt("READ_REQUEST", RQ + 4).reth(va, rkey, 4));
    s.expect(&["READ_RESP_ONLY 002004 syn=1f msn=2 +4"]);
}

#[test]
fn a_read_that_is_no_tail_is_dropped() {
    let mut s = Script::new();
    let (va, rkey) = (s.va(0), s.rkey());
    s.recv(pkt("READ_REQUEST", RQ).reth(va, rkey, 4000));
    s.sent();
    let wrong = [
        // Another address, length or key than those of the original at that PSN.
        pkt("READ_REQUEST", RQ).reth(va + 8, rkey, 4000),
        pkt("READ_REQUEST", RQ).reth(va, rkey, 3999),
        pkt("READ_REQUEST", RQ).reth(va, rkey, 4001),
        pkt("READ_REQUEST", RQ).reth(va, Rkey(rkey.0 ^ 1), 4000),
        pkt("READ_REQUEST", RQ + 1).reth(va, rkey, 4000),
        pkt("READ_REQUEST", RQ + 1).reth(va + 1024, rkey, 1024),
        pkt("READ_REQUEST", RQ + 1).reth(va, rkey, 4000 - 1024),
        pkt("READ_REQUEST", RQ + 3).reth(va + 3072, rkey, 0),
        pkt("READ_REQUEST", RQ).reth(va, rkey, 0),
        // So that length and position add up, modulo 2^64.
        pkt("READ_REQUEST", RQ + 1).reth(u64::MAX, rkey, 4000 - 1024),
    ];
    let n = wrong.len() as u64;
    for packet in wrong {
        s.recv(packet);
        s.silent();
    }
    assert_eq!((s.counter(C::DropReplay), s.counter(C::DuplicateRead)), (n, 0));
    // No READ was there.
    s.recv(pkt("READ_REQUEST", RQ - 1).reth(va, rkey, 4000));
    s.silent();
    assert_eq!((s.counter(C::DropDuplicate), s.state()), (1, QpState::Rts));
}

#[test]
fn a_read_of_nothing_again() {
    let mut s = Script::new();
    let read = pkt("READ_REQUEST", RQ).reth(5, Rkey(1), 0);
    s.recv(read.clone());
    s.recv(read);
    s.expect(&["READ_RESP_ONLY 002000 syn=1f msn=1"; 2]);
}

#[test]
fn a_duplicate_of_a_read_under_way_goes_back() {
    let mut s = Script::new();
    let (va, rkey) = (s.va(0), s.rkey());
    let read = pkt("READ_REQUEST", RQ).reth(va, rkey, 30 * 1024);
    // Both before anything is sent: it will be answered anyway, from the start.
    s.recv_all([read, pkt("READ_REQUEST", RQ + 20).reth(va + 20 * 1024, rkey, 10 * 1024)]);
    let sent = s.sent();
    assert_eq!(sent.len(), 30);
    assert!(sent[20].line.starts_with("READ_RESP_MIDDLE 002014"));
    assert_eq!(s.counter(C::DuplicateRead), 1);
}

#[test]
fn an_atomic_is_answered_with_what_it_found_the_first_time() {
    let mut s = Script::new();
    s.region.store(8, 5, std::sync::atomic::Ordering::Relaxed);
    let add = pkt("FETCH_ADD", RQ).atomic(s.va(8), s.rkey(), 10, 0);
    let cas = pkt("CMP_SWAP", RQ + 1).atomic(s.va(8), s.rkey(), 99, 15);
    s.recv(add.clone());
    s.recv(cas.clone());
    let answers =
        ["ATOMIC_ACK 002000 syn=1f msn=1 orig=5", "ATOMIC_ACK 002001 syn=1f msn=2 orig=f"];
    s.expect(&answers);
    assert_eq!(word(&s, 8), 99);
    s.region.store(8, 1234, std::sync::atomic::Ordering::Relaxed);
    // In the order of PSNs, however they arrive; once each.
    s.recv_all([cas.clone(), add, cas]);
    s.expect(&answers);
    assert_eq!(word(&s, 8), 1234, "not executed again");
    assert_eq!((s.counter(C::DuplicateAtomic), s.counter(C::RxAtomicRequests)), (3, 2));
}

#[test]
fn an_atomic_that_is_not_remembered_is_dropped() {
    let mut s = Script::with(&Setup { dest_rd_atomic: 2, ..Setup::default() });
    let (va, rkey) = (s.va(8), s.rkey());
    let add = |psn| pkt("FETCH_ADD", psn).atomic(va, rkey, 1, 0);
    for i in 0..3 {
        s.recv(add(RQ + i));
    }
    s.sent();
    // The third has taken the place of the first.
    s.recv(add(RQ));
    s.silent();
    s.recv(add(RQ + 1));
    s.expect(&["ATOMIC_ACK 002001 syn=1f msn=2 orig=1"]);
    // At the PSN of a READ, or of nothing.
    s.recv(pkt("READ_REQUEST", RQ + 3).reth(va, rkey, 8));
    s.sent();
    s.recv(add(RQ + 3));
    s.recv(add(RQ - 1));
    s.silent();
    assert_eq!((word(&s, 8), s.counter(C::DropDuplicate)), (3, 3));
    // And a READ at the PSN of an atomic.
    s.recv(pkt("READ_REQUEST", RQ + 2).reth(va, rkey, 8));
    s.silent();
    assert_eq!((s.counter(C::DropDuplicate), s.state()), (4, QpState::Rts));
}

#[test]
fn flush_and_atomic_write_behind_are_dropped() {
    let mut s = Script::new();
    s.recv(pkt("WRITE_ONLY", RQ));
    s.recv(pkt("FLUSH", RQ));
    s.recv(pkt("ATOMIC_WRITE", RQ).len(8));
    s.silent();
    assert_eq!((s.counter(C::DropDuplicate), s.state()), (2, QpState::Rts));
}

#[test]
fn a_duplicate_does_not_take_the_place_of_a_new_request() {
    // One resource. The network has duplicated the first READ, and both copies of it and the second READ
    // arrive before anything can be sent.
    for answered in [false, true] {
        let mut s = Script::with(&Setup { dest_rd_atomic: 1, ..Setup::default() });
        let (va, rkey) = (s.va(0), s.rkey());
        let first = pkt("READ_REQUEST", RQ).reth(va, rkey, 2000);
        let second = pkt("FETCH_ADD", RQ + 2).atomic(va, rkey, 1, 0);
        if answered {
            s.recv(first.clone());
            s.sent();
        }
        s.recv_all([first, second]);
        if answered {
            s.expect(&["ATOMIC_ACK 002002 syn=1f msn=2 orig=0"]);
            assert_eq!(s.state(), QpState::Rts);
        } else {
            // The peer did send more than it may.
            assert_eq!(s.sent().last().unwrap().line, "ACK 002002 syn=61 msn=1");
            assert_eq!(s.state(), QpState::Err);
        }
    }
}

#[test]
fn duplicates_and_new_requests_in_a_ring_that_turns() {
    let mut s = Script::with(&Setup { dest_rd_atomic: 3, ..Setup::default() });
    let (va, rkey) = (s.va(0), s.rkey());
    let add = |i| pkt("FETCH_ADD", RQ + i).atomic(va, rkey, 1, 0);
    for i in 0..20 {
        s.recv(add(i));
        s.sent();
        // The two before it and itself, newest first, then the next: answers come in order. The oldest
        // makes place for the next one.
        let first = i.saturating_sub(2);
        s.recv_all((first..=i).rev().map(add));
        let psns: Vec<u32> = (first..=i).collect();
        let lines: Vec<String> = psns
            .iter()
            .map(|i| format!("ATOMIC_ACK {:06x} syn=1f msn={} orig={i:x}", RQ + i, i + 1))
            .collect();
        s.expect(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    }
    assert_eq!(word(&s, 0), 20);
    // All three wait when a new one comes.
    s.recv_all([add(19), add(17), add(18), add(20)]);
    s.expect(&[
        "ATOMIC_ACK 002012 syn=1f msn=19 orig=12",
        "ATOMIC_ACK 002013 syn=1f msn=20 orig=13",
        "ATOMIC_ACK 002014 syn=1f msn=21 orig=14",
    ]);
    assert_eq!(s.counter(C::DropDuplicate), 0);
}

#[test]
fn a_duplicate_of_a_read_whose_memory_is_gone_is_refused_and_no_more() {
    // A READ is done when its sender has the answer; then the memory may go. A copy of the request may
    // still be under way.
    let mut s = Script::new();
    let region = crate::mem::Region::alloc(8192).unwrap();
    let mr =
        s.engine.register(s.pd, region, crate::mem::IovaChoice::Allocate, Access::REMOTE).unwrap();
    let read = pkt("READ_REQUEST", RQ).reth(mr.iova, mr.rkey, 3000);
    let send = pkt("SEND_ONLY", RQ + 3).ask();
    s.post_recv(1, 0, 0);
    s.recv(read.clone());
    s.recv(send.clone());
    s.sent();
    s.engine.deregister(s.pd, mr.lkey).unwrap();
    s.recv_all([read, send]);
    s.expect(&["ACK 002000 syn=62 msn=1", "ACK 002003 syn=1f msn=2"]);
    assert_eq!((s.state(), s.events()), (QpState::Rts, vec![]));
    s.post_recv(2, 0, 0);
    s.recv(pkt("SEND_ONLY", RQ + 4).ask());
    s.expect(&["ACK 002004 syn=1f msn=3"]);
}

#[test]
fn answers_are_kept_for_repeats_when_their_number_changes() {
    for (room, kept) in [(16, 3), (2, 2), (1, 1), (0, 0)] {
        let mut s = Script::new();
        let adds: Vec<_> = (0..3)
            .map(|i| pkt("FETCH_ADD", RQ + i).atomic(s.va(8 * i as usize), s.rkey(), 1, 0))
            .collect();
        s.recv_all(adds.clone());
        assert_eq!(s.sent().len(), 3);
        // All three were lost.
        s.modify(&QpAttr::to(QpState::Sqd));
        s.modify(&QpAttr::to(QpState::Sqd).max_dest_rd_atomic(room));
        for (i, add) in adds.into_iter().enumerate() {
            s.recv(add);
            let want = usize::from(i + kept >= 3);
            assert_eq!(s.sent().len(), want, "{room} places, the {i}th");
            assert_eq!(word(&s, 8 * i), 1, "executed once");
        }
        // And new ones find their places.
        if room > 0 {
            for i in 3..6 {
                s.recv(pkt("FETCH_ADD", RQ + i).atomic(s.va(8 * i as usize), s.rkey(), 1, 0));
                assert_eq!(s.sent().len(), 1);
                assert_eq!(word(&s, 8 * i as usize), 1);
            }
        }
    }
}
