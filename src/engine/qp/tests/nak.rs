//! Each NAK with each of its causes, and which cause decides where several apply.

use super::script::{In, RQ, Script, pkt};
use crate::engine::counters::Counter as C;
use crate::engine::event::AsyncEvent::{QpAccessErr, QpReqErr};
use crate::engine::qp::attr::QpState;
use crate::engine::status::WcStatus;
use crate::engine::tests::pair::Setup;
use crate::mem::{Access, IovaChoice, Region, Sge};
use crate::wire::num::{Lkey, Rkey};

const SEQ: &str = "ACK 002000 syn=60 msn=0";
const INVALID: &str = "ACK 002000 syn=61 msn=0";
const ACCESS: &str = "ACK 002000 syn=62 msn=0";
const OPERATION: &str = "ACK 002000 syn=63 msn=0";
/// RNR NAK, timer code 1.
const RNR: &str = "ACK 002000 syn=21 msn=0";

const NO_KEY: Rkey = Rkey(0x1234_5678);

fn bare() -> Script {
    Script::with(&Setup { access: Access::LOCAL, ..Setup::default() })
}

/// `packet` draws `nak`, and nothing else; the queue pair is dead and does not answer any more.
#[track_caller]
fn fatal(s: &mut Script, packet: In, nak: &str) {
    s.recv(packet);
    s.expect(&[nak]);
    assert_eq!(s.state(), QpState::Err);
    s.recv(pkt("SEND_ONLY", RQ).ask());
    s.recv(pkt("SEND_ONLY", RQ + 1).ask());
    s.silent();
    assert_eq!(s.counter(C::DropState), 2);
    assert_eq!(s.engine.poll_timeout(), None);
}

/// As [`fatal`], without a receive that could tell the application: the event does.
#[track_caller]
fn fatal_event(s: &mut Script, packet: In, nak: &str) {
    s.post_recv(9, 0, 8192);
    fatal(s, packet, nak);
    assert_eq!(s.results(), [(9, WcStatus::WrFlush)]);
    let qpn = s.qpn();
    let event = if nak == ACCESS { QpAccessErr { qpn } } else { QpReqErr { qpn } };
    assert_eq!(s.events(), [event]);
}

/// As [`fatal`], with a receive that tells it; the next one is flushed.
#[track_caller]
fn fatal_receive(s: &mut Script, packet: In, nak: &str, status: WcStatus) {
    s.post_recv(9, 0, 64);
    fatal(s, packet, nak);
    assert_eq!(s.results(), [(8, status), (9, WcStatus::WrFlush)]);
    assert_eq!(s.events(), []);
    assert_eq!(s.counter(C::RespCqeError), 1);
}

/// `packet` draws `nak`, and the queue pair lives on.
#[track_caller]
fn passing(s: &mut Script, packet: In, nak: &str) {
    s.recv(packet);
    s.expect(&[nak]);
    assert_eq!((s.state(), s.results(), s.events()), (QpState::Rts, vec![], vec![]));
}

#[test]
fn sequence_error_comes_before_everything_else() {
    // No right, no READ resources, no such key, a length above the maximum, no open message.
    for packet in [
        pkt("READ_REQUEST", RQ + 1).reth(0, NO_KEY, u32::MAX as usize),
        pkt("WRITE_MIDDLE", RQ + 1).len(7),
        pkt("SEND_LAST", RQ + 1),
        pkt("FETCH_ADD", RQ + 1).atomic(1, NO_KEY, 1, 0),
        pkt("FLUSH", RQ + 1),
    ] {
        let mut s = bare();
        passing(&mut s, packet, SEQ);
        assert_eq!((s.counter(C::OutOfSequence), s.counter(C::OutOfSeqRequest)), (1, 1));
    }
}

#[test]
fn opcode_sequence_comes_before_a_missing_receive() {
    for name in ["SEND_MIDDLE", "SEND_LAST", "SEND_LAST_IMM", "SEND_LAST_INV", "WRITE_LAST_IMM"] {
        let mut s = Script::new();
        fatal(&mut s, pkt(name, RQ).len(4), INVALID);
        assert_eq!(s.events(), [QpReqErr { qpn: s.qpn() }], "{name}");
    }
}

#[test]
fn a_right_of_the_queue_pair_comes_before_receive_and_key() {
    let all = [
        ("WRITE_ONLY", Access::REMOTE_WRITE),
        ("WRITE_ONLY_IMM", Access::REMOTE_WRITE),
        ("READ_REQUEST", Access::REMOTE_READ),
        ("FETCH_ADD", Access::REMOTE_ATOMIC),
        ("CMP_SWAP", Access::REMOTE_ATOMIC),
    ];
    for (name, right) in all {
        // All rights but the one that is needed; neither receive nor key exist.
        let mut s = Script::with(&Setup { access: Access::REMOTE - right, ..Setup::default() });
        let packet = pkt(name, RQ).reth(0, NO_KEY, 0).atomic(0, NO_KEY, 1, 0);
        fatal(&mut s, packet, INVALID);
        assert_eq!(s.events(), [QpReqErr { qpn: s.qpn() }], "{name}");
    }
}

#[test]
fn no_read_resources_at_all_comes_before_the_key() {
    for name in ["READ_REQUEST", "FETCH_ADD", "CMP_SWAP"] {
        let mut s = Script::with(&Setup { dest_rd_atomic: 0, ..Setup::default() });
        let packet = pkt(name, RQ).reth(0, NO_KEY, 8).atomic(0, NO_KEY, 1, 0);
        fatal_event(&mut s, packet, INVALID);
    }
}

#[test]
fn more_reads_than_resources_come_before_the_key() {
    for name in ["READ_REQUEST", "FETCH_ADD"] {
        let mut s = Script::with(&Setup { dest_rd_atomic: 2, ..Setup::default() });
        let (va, rkey) = (s.va(0), s.rkey());
        // All in one go: none of them has been answered when the third arrives.
        s.recv_all([
            pkt("READ_REQUEST", RQ).reth(va, rkey, 8),
            pkt("FETCH_ADD", RQ + 1).atomic(va, rkey, 1, 0),
            pkt(name, RQ + 2).reth(va, NO_KEY, 8).atomic(va, NO_KEY, 1, 0),
        ]);
        s.expect(&[
            "READ_RESP_ONLY 002000 syn=1f msn=1 +8",
            "ATOMIC_ACK 002001 syn=1f msn=2 orig=0",
            "ACK 002002 syn=61 msn=2",
        ]);
        assert_eq!(s.state(), QpState::Err, "{name}");
        assert_eq!(s.events(), [QpReqErr { qpn: s.qpn() }]);
    }
}

#[test]
fn a_missing_receive_comes_before_length_and_key() {
    for packet in [
        pkt("SEND_ONLY", RQ).len(1025),
        pkt("SEND_ONLY_IMM", RQ).len(1025),
        pkt("SEND_FIRST", RQ).len(1023),
        pkt("SEND_ONLY_INV", RQ).inv(NO_KEY),
        pkt("WRITE_ONLY_IMM", RQ).reth(0, NO_KEY, 8).len(8),
        pkt("WRITE_ONLY_IMM", RQ).reth(0, NO_KEY, 9).len(1025),
    ] {
        let mut s = Script::new();
        passing(&mut s, packet, RNR);
        assert_eq!((s.counter(C::OutOfBuffer), s.counter(C::SendRnrErr)), (1, 1));
    }
}

#[test]
fn lengths_of_sends() {
    for packet in [
        pkt("SEND_FIRST", RQ).len(1023),
        pkt("SEND_FIRST", RQ).len(1025),
        pkt("SEND_FIRST", RQ),
        pkt("SEND_ONLY", RQ).len(1025),
        pkt("SEND_ONLY_IMM", RQ).len(2048),
        pkt("SEND_ONLY", RQ).len(4).pad(1),
        pkt("SEND_ONLY", RQ).len(5).pad(2),
    ] {
        let mut s = Script::new();
        s.post_recv(8, 0, 8192);
        fatal_receive(&mut s, packet, INVALID, WcStatus::RemInvReq);
    }
    for packet in [
        pkt("SEND_MIDDLE", RQ + 1).len(1023),
        pkt("SEND_MIDDLE", RQ + 1).len(1028),
        pkt("SEND_LAST", RQ + 1),
        pkt("SEND_LAST", RQ + 1).len(1025),
        pkt("SEND_LAST_IMM", RQ + 1).len(1028),
    ] {
        let mut s = Script::new();
        s.post_recv(8, 0, 8192);
        s.recv(pkt("SEND_FIRST", RQ).len(1024));
        fatal_receive(&mut s, packet, "ACK 002001 syn=61 msn=0", WcStatus::RemInvReq);
    }
}

#[test]
fn lengths_of_writes_come_before_the_key() {
    let first = |len: usize| pkt("WRITE_FIRST", RQ).reth(0, NO_KEY, 3000).len(len);
    for packet in [
        first(1023),
        first(0),
        first(1025),
        pkt("WRITE_ONLY", RQ).reth(0, NO_KEY, 1025).len(1025),
        pkt("WRITE_FIRST", RQ).reth(0, NO_KEY, (1 << 31) + 1).len(1024),
        pkt("WRITE_ONLY", RQ).reth(0, NO_KEY, 3).len(3).pad(0),
    ] {
        let mut s = Script::new();
        fatal_event(&mut s, packet, INVALID);
    }
}

#[test]
fn lengths_of_reads_and_atomics_come_before_the_key() {
    for packet in [
        pkt("READ_REQUEST", RQ).reth(0, NO_KEY, (1 << 31) + 1),
        pkt("READ_REQUEST", RQ).reth(0, NO_KEY, 8).pad(2),
        pkt("FETCH_ADD", RQ).atomic(0, NO_KEY, 1, 0).pad(1),
        pkt("CMP_SWAP", RQ).atomic(0, NO_KEY, 1, 0).pad(3),
    ] {
        let mut s = Script::new();
        fatal_event(&mut s, packet, INVALID);
    }
}

/// Requests to memory, each with this address and key.
fn to_memory(va: u64, rkey: Rkey) -> [In; 5] {
    [
        pkt("WRITE_ONLY", RQ).reth(va, rkey, 8).len(8),
        pkt("WRITE_FIRST", RQ).reth(va, rkey, 1032).len(1024),
        pkt("READ_REQUEST", RQ).reth(va, rkey, 8),
        pkt("FETCH_ADD", RQ).atomic(va, rkey, 1, 0),
        pkt("CMP_SWAP", RQ).atomic(va, rkey, 1, 0),
    ]
}

#[test]
fn keys_that_open_nothing() {
    for i in 0..5 {
        let mut s = Script::new();
        let packet = to_memory(s.va(0), NO_KEY)[i].clone();
        fatal_event(&mut s, packet, ACCESS);
        assert_eq!(s.counter(C::RespRemoteAccessErrors), 1);
        // One bit of the low eight off.
        let mut s = Script::new();
        let packet = to_memory(s.va(0), Rkey(s.rkey().0 ^ 1))[i].clone();
        fatal_event(&mut s, packet, ACCESS);
        // The local key is not the remote key.
        let mut s = Script::new();
        let packet = to_memory(s.va(0), Rkey(s.mr.lkey.0))[i].clone();
        fatal_event(&mut s, packet, ACCESS);
    }
}

#[test]
fn keys_of_another_protection_domain() {
    for i in 0..5 {
        let mut s = Script::new();
        let pd = s.engine.alloc_pd().unwrap();
        let region = Region::alloc(4096).unwrap();
        let mr = s.engine.register(pd, region, IovaChoice::Allocate, Access::REMOTE).unwrap();
        let packet = to_memory(mr.iova, mr.rkey)[i].clone();
        fatal_event(&mut s, packet, ACCESS);
    }
}

#[test]
fn keys_without_the_right() {
    let rights = [
        Access::REMOTE_WRITE,
        Access::REMOTE_WRITE,
        Access::REMOTE_READ,
        Access::REMOTE_ATOMIC,
        Access::REMOTE_ATOMIC,
    ];
    for (i, right) in rights.into_iter().enumerate() {
        let mut s = Script::new();
        let region = Region::alloc(4096).unwrap();
        let access = Access::REMOTE - right;
        let mr = s.engine.register(s.pd, region, IovaChoice::Allocate, access).unwrap();
        let packet = to_memory(mr.iova, mr.rkey)[i].clone();
        fatal_event(&mut s, packet, ACCESS);
    }
}

#[test]
fn ranges_outside_the_region() {
    let size = super::script::REGION;
    for i in 0..5 {
        let outside: [fn(&Script) -> u64; 6] = [
            |s| s.va(0) - 8,
            |s| s.va(super::script::REGION - 4),
            |s| s.va(super::script::REGION),
            |_| 0,
            |_| u64::MAX - 7,
            // As far below the region that address and length wrap into it.
            |_| u64::MAX - 3,
        ];
        for va in outside {
            let mut s = Script::new();
            let packet = to_memory(va(&s), s.rkey())[i].clone();
            fatal_event(&mut s, packet, ACCESS);
            assert_eq!(s.bytes(0, size), vec![0; size]);
        }
    }
    // The whole range counts, also where the first packet alone would fit.
    let mut s = Script::new();
    let packet = pkt("WRITE_FIRST", RQ).reth(s.va(0), s.rkey(), size + 1).len(1024);
    fatal_event(&mut s, packet, ACCESS);
    assert_eq!(s.bytes(0, 1024), [0; 1024], "nothing is placed");
}

#[test]
fn a_bad_key_comes_before_the_rest_of_the_lengths_and_before_alignment() {
    for packet in [
        pkt("WRITE_ONLY", RQ).reth(0, NO_KEY, 9).len(8),
        pkt("WRITE_FIRST", RQ).reth(0, NO_KEY, 8).len(1024),
        pkt("FETCH_ADD", RQ).atomic(4, NO_KEY, 1, 0),
        pkt("CMP_SWAP", RQ).atomic(4, NO_KEY, 1, 0),
    ] {
        let mut s = Script::new();
        fatal_event(&mut s, packet, ACCESS);
    }
}

#[test]
fn writes_whose_payload_is_not_what_the_header_says() {
    let tail = |name, len: usize| pkt(name, RQ + 1).len(len);
    let (va, rkey) = (Script::new().va(0), Script::new().rkey());
    for packet in [
        pkt("WRITE_ONLY", RQ).reth(va, rkey, 9).len(8),
        pkt("WRITE_ONLY", RQ).reth(va, rkey, 7).len(8),
        pkt("WRITE_ONLY", RQ).reth(va, rkey, 0).len(1),
        pkt("WRITE_ONLY", RQ).reth(va, rkey, 1),
        // All of it in the first packet: then it is not a first one.
        pkt("WRITE_FIRST", RQ).reth(va, rkey, 1024).len(1024),
        pkt("WRITE_FIRST", RQ).reth(va, rkey, 0).len(1024),
    ] {
        let mut s = Script::new();
        fatal_event(&mut s, packet, INVALID);
        assert_eq!(s.bytes(0, 2048), [0; 2048], "nothing is placed");
    }
    for packet in [
        tail("WRITE_LAST", 475),
        tail("WRITE_LAST", 477),
        tail("WRITE_MIDDLE", 1024),
        tail("WRITE_LAST", 0),
        tail("WRITE_MIDDLE", 476),
    ] {
        let mut s = Script::new();
        s.recv(pkt("WRITE_FIRST", RQ).reth(va, rkey, 1500).len(1024));
        fatal_event(&mut s, packet, "ACK 002001 syn=61 msn=0");
        assert_eq!(s.bytes(1024, 1024), [0; 1024], "nothing of it is placed");
    }
}

#[test]
fn misaligned_atomics() {
    for name in ["FETCH_ADD", "CMP_SWAP"] {
        for offset in [1, 4, 7] {
            let mut s = Script::new();
            let packet = pkt(name, RQ).atomic(s.va(offset), s.rkey(), 1, 0);
            fatal_event(&mut s, packet, INVALID);
            assert_eq!(s.bytes(0, 16), [0; 16]);
        }
    }
}

#[test]
fn a_write_with_immediate_that_fails_uses_the_receive_up() {
    let (va, rkey) = (Script::new().va(0), Script::new().rkey());
    let write = |rkey, dma_len: usize, len: usize| {
        pkt("WRITE_ONLY_IMM", RQ).reth(va, rkey, dma_len).len(len)
    };
    for (packet, nak, status) in [
        (write(NO_KEY, 8, 8), ACCESS, WcStatus::LocAccess),
        (write(rkey, 9, 8), INVALID, WcStatus::RemInvReq),
        (write(rkey, 1025, 1025), INVALID, WcStatus::RemInvReq),
    ] {
        let mut s = Script::new();
        s.post_recv(8, 0, 64);
        fatal_receive(&mut s, packet, nak, status);
    }
}

#[test]
fn a_receive_that_cannot_be_filled_is_our_failure() {
    // A key that opens nothing, one that must not be written, and a range that is not inside.
    for case in 0..3 {
        let mut s = Script::new();
        let region = Region::alloc(4096).unwrap();
        let read_only =
            s.engine.register(s.pd, region, IovaChoice::Allocate, Access::REMOTE_READ).unwrap();
        let sge = match case {
            0 => Sge { lkey: Lkey(0x77), ..s.sge(0, 64) },
            1 => Sge { addr: read_only.iova, length: 64, lkey: read_only.lkey },
            _ => Sge { addr: s.va(super::script::REGION - 63), ..s.sge(0, 64) },
        };
        s.post_recv_sge(8, &[sge]);
        fatal_receive(&mut s, pkt("SEND_ONLY", RQ).len(8), OPERATION, WcStatus::LocProt);
    }
}

#[test]
fn a_send_that_is_longer_than_the_receive() {
    let mut s = Script::new();
    s.post_recv(8, 0, 7);
    fatal_receive(&mut s, pkt("SEND_ONLY", RQ).len(8), INVALID, WcStatus::LocLen);
    assert_eq!((s.counter(C::RespLocalLengthError), s.bytes(0, 8)), (1, vec![0; 8]));

    let mut s = Script::new();
    s.post_recv(8, 0, 1030);
    s.recv(pkt("SEND_FIRST", RQ).len(1024));
    let last = pkt("SEND_LAST", RQ + 1).len(7);
    fatal_receive(&mut s, last, "ACK 002001 syn=61 msn=0", WcStatus::LocLen);
}

#[test]
fn exactly_as_long_as_the_receive_fits() {
    let mut s = Script::new();
    s.post_recv(8, 0, 1030);
    s.recv(pkt("SEND_FIRST", RQ).len(1024));
    s.recv(pkt("SEND_LAST", RQ + 1).len(6).ask());
    s.expect(&["ACK 002001 syn=1f msn=1"]);
    assert_eq!(s.results(), [(8, WcStatus::Success)]);
}

#[test]
fn length_zero_needs_no_key_but_the_right() {
    for packet in [
        pkt("WRITE_ONLY", RQ).reth(0, NO_KEY, 0).ask(),
        pkt("READ_REQUEST", RQ).reth(u64::MAX, NO_KEY, 0),
    ] {
        let mut s = Script::new();
        let answer = if packet.clone().is_read() {
            "READ_RESP_ONLY 002000 syn=1f msn=1"
        } else {
            "ACK 002000 syn=1f msn=1"
        };
        s.recv(packet.clone());
        s.expect(&[answer]);
        fatal_event(&mut bare(), packet, INVALID);
    }
}

#[test]
fn an_error_in_the_middle_of_a_message_tells_the_receive_in_use() {
    // A WRITE in the middle of a SEND.
    let mut s = Script::new();
    s.post_recv(8, 0, 8192);
    s.recv(pkt("SEND_FIRST", RQ).len(1024));
    let packet = pkt("WRITE_ONLY", RQ + 1);
    fatal_receive(&mut s, packet, "ACK 002001 syn=61 msn=0", WcStatus::RemInvReq);

    // A SEND in the middle of a WRITE: no receive is in use.
    let mut s = Script::new();
    let first = pkt("WRITE_FIRST", RQ).reth(s.va(0), s.rkey(), 2000).len(1024);
    s.recv(first);
    fatal_event(&mut s, pkt("SEND_ONLY", RQ + 1), "ACK 002001 syn=61 msn=0");
}

#[test]
fn a_fatal_nak_leaves_behind_the_answers_that_precede_it() {
    let mut s = Script::new();
    let (va, rkey) = (s.va(0), s.rkey());
    s.recv_all([
        pkt("READ_REQUEST", RQ).reth(va, rkey, 2500),
        pkt("FETCH_ADD", RQ + 3).atomic(va, rkey, 1, 0),
        pkt("WRITE_ONLY", RQ + 4).reth(va, NO_KEY, 8).len(8),
        pkt("WRITE_ONLY", RQ + 5).reth(va, rkey, 8).len(8),
    ]);
    s.expect(&[
        "READ_RESP_FIRST 002000 syn=1f msn=1 +1024",
        "READ_RESP_MIDDLE 002001 +1024",
        "READ_RESP_LAST 002002 syn=1f msn=1 +452",
        "ATOMIC_ACK 002003 syn=1f msn=2 orig=0",
        "ACK 002004 syn=62 msn=2",
    ]);
    assert_eq!(s.state(), QpState::Err);
    assert_eq!(s.events(), [QpAccessErr { qpn: s.qpn() }]);
    assert_eq!(s.counter(C::DropState), 1, "what came behind it");
}
