//! What may follow what: every request opcode after every other, at the expected PSN.

use std::sync::Arc;

use super::script::{In, RQ, Script, opcode, pkt};
use crate::engine::counters::Counter as C;
use crate::engine::qp::attr::QpState;
use crate::engine::tests::pair::Setup;
use crate::mem::{Access, IovaChoice};
use crate::wire::num::Rkey;

const REQUESTS: [&str; 19] = [
    "SEND_FIRST",
    "SEND_MIDDLE",
    "SEND_LAST",
    "SEND_LAST_IMM",
    "SEND_ONLY",
    "SEND_ONLY_IMM",
    "WRITE_FIRST",
    "WRITE_MIDDLE",
    "WRITE_LAST",
    "WRITE_LAST_IMM",
    "WRITE_ONLY",
    "WRITE_ONLY_IMM",
    "READ_REQUEST",
    "CMP_SWAP",
    "FETCH_ADD",
    "SEND_LAST_INV",
    "SEND_ONLY_INV",
    "FLUSH",
    "ATOMIC_WRITE",
];

/// What came before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Nothing,
    /// A message of one packet, or the end of a longer one.
    Complete,
    SendFirst,
    SendMiddle,
    WriteFirst,
    WriteMiddle,
}

use Before::{Complete, Nothing, SendFirst, SendMiddle, WriteFirst, WriteMiddle};

/// A script after `before`, the PSN that is expected then, and a key that can be invalidated.
fn after(before: Before, last: usize) -> (Script, u32, Rkey) {
    let access = Access::REMOTE | Access::FLUSH_GLOBAL;
    let mut s = Script::with(&Setup { access, ..Setup::default() });
    let window = s.window(40_000, 8, Access::REMOTE_READ);
    for id in 0..3 {
        s.post_recv(id, 0, 8192);
    }
    let (va, rkey) = (s.va(0), s.rkey());
    // `last`: payload of what follows.
    let write = |packets: usize| pkt("WRITE_FIRST", RQ).reth(va, rkey, 1024 * packets + last);
    let packets: Vec<In> = match before {
        Nothing => vec![],
        Complete => vec![pkt("SEND_ONLY", RQ)],
        SendFirst => vec![pkt("SEND_FIRST", RQ).len(1024)],
        SendMiddle => vec![pkt("SEND_FIRST", RQ).len(1024), pkt("SEND_MIDDLE", RQ + 1).len(1024)],
        WriteFirst => vec![write(1).len(1024)],
        WriteMiddle => vec![write(2).len(1024), pkt("WRITE_MIDDLE", RQ + 1).len(1024)],
    };
    let next = RQ + u32::try_from(packets.len()).unwrap();
    s.recv_all(packets);
    s.silent();
    (s, next, window)
}

/// Whether the table of the standard allows `name` there.
fn is_legal(before: Before, name: &str) -> bool {
    let starts = !name.contains("MIDDLE") && !name.contains("LAST");
    match before {
        Nothing | Complete => starts,
        SendFirst | SendMiddle => !starts && name.starts_with("SEND"),
        WriteFirst | WriteMiddle => !starts && name.starts_with("WRITE"),
    }
}

#[test]
fn every_request_after_every_other() {
    for name in REQUESTS {
        assert!(opcode(name).info().is_request());
        for before in [Nothing, Complete, SendFirst, SendMiddle, WriteFirst, WriteMiddle] {
            let full = name.ends_with("MIDDLE") || name.ends_with("FIRST");
            let len = if full { 1024 } else { 8 };
            // A MIDDLE must leave something for the last packet.
            let (mut s, psn, window) = after(before, if full { len + 4 } else { len });
            let has_payload = opcode(name).info().payload;
            let dma_len = if name == "WRITE_FIRST" { 1028 } else { 8 };
            let access = Access::REMOTE | Access::FLUSH_GLOBAL;
            let (region, at) = (Arc::clone(&s.region), IovaChoice::At(s.mr.iova));
            let mr = s.engine.register(s.pd, region, at, access).unwrap();
            let packet = pkt(name, psn)
                .reth(s.va(0), mr.rkey, dma_len)
                .feth(0, 1)
                .atomic(s.va(0), s.rkey(), 1, 0)
                .inv(window)
                .len(if has_payload { len } else { 0 })
                .ask();
            s.recv(packet);
            let sent: Vec<String> = s.sent().into_iter().map(|out| out.line).collect();
            let what = format!("{name} after {before:?}: {sent:?}");
            assert_eq!(sent.len(), 1, "{what}");
            assert_eq!(sent[0].contains("syn=61"), !is_legal(before, name), "{what}");
            let state = if is_legal(before, name) { QpState::Rts } else { QpState::Err };
            assert_eq!(s.state(), state, "{what}");
            let answer = match name {
                _ if state == QpState::Err => "ACK",
                "READ_REQUEST" | "ATOMIC_WRITE" | "FLUSH" => "READ_RESP_ONLY",
                "FETCH_ADD" | "CMP_SWAP" => "ATOMIC_ACK",
                _ => "ACK",
            };
            assert!(sent[0].starts_with(&format!("{answer} {psn:06x}")), "{what}");
        }
    }
}

#[test]
fn requests_that_exist_are_all_in_the_matrix() {
    let known = (0..0x20u8)
        .filter_map(crate::wire::Opcode::from_u8)
        .filter(|op| op.info().is_request())
        .count();
    assert_eq!(known, REQUESTS.len());
}

#[test]
fn a_duplicate_does_not_touch_the_open_message() {
    let mut s = Script::new();
    let (va, rkey) = (s.va(0), s.rkey());
    s.post_recv(1, 16_384, 8192);
    let read = pkt("READ_REQUEST", RQ).reth(va, rkey, 8);
    let write = pkt("WRITE_ONLY", RQ + 1).reth(va, rkey, 4).len(4);
    s.recv(read.clone());
    s.recv(write.clone());
    s.recv(pkt("SEND_FIRST", RQ + 2).len(1024));
    s.sent();
    s.recv_all([read, write, pkt("SEND_FIRST", RQ + 2).len(1024)]);
    s.expect(&["READ_RESP_ONLY 002000 syn=1f msn=1 +8", "ACK 002002 syn=1f msn=2"]);
    s.recv(pkt("SEND_MIDDLE", RQ + 3).len(1024));
    s.recv(pkt("SEND_LAST", RQ + 4).len(1).ask());
    s.expect(&["ACK 002004 syn=1f msn=3"]);
    let got = s.completions();
    assert_eq!((got.len(), got[0].byte_len), (1, 2049));
    assert_eq!(s.counter(C::DuplicateRequest), 3);
}

#[test]
fn a_gap_does_not_touch_the_open_message() {
    let mut s = Script::new();
    s.post_recv(1, 0, 8192);
    s.recv(pkt("SEND_FIRST", RQ).len(1024));
    s.recv(pkt("WRITE_ONLY", RQ + 2).reth(0, Rkey(1), 4).len(4));
    s.expect(&["ACK 002001 syn=60 msn=0"]);
    s.recv(pkt("SEND_LAST", RQ + 1).len(1).ask());
    s.expect(&["ACK 002001 syn=1f msn=1"]);
    assert_eq!(s.completions()[0].byte_len, 1025);
}
