//! What request packets say: AckReq, solicited, headers, order.

use super::script::{SQ, Script, ack, pkt};
use crate::engine::status::WcStatus::Success;
use crate::engine::tests::pair::Setup;
use crate::engine::window::WindowConfig;
use crate::queue::{SendFlags, SendOp, SendWqe};
use crate::wire::num::Mtu;

#[test]
fn every_operation() {
    let mut s = Script::new();
    let (inv, imm) = (0xabcd_ef01, 0x0102_0304);
    s.post_wqe(Script::wqe(SendOp::Send, 1), &[]);
    s.post_wqe(SendWqe { imm_or_inv: imm, ..Script::wqe(SendOp::SendImm, 2) }, &[]);
    s.post_wqe(SendWqe { imm_or_inv: inv, ..Script::wqe(SendOp::SendInv, 3) }, &[]);
    s.post_wqe(Script::wqe(SendOp::Write, 4), &[]);
    s.post_wqe(SendWqe { imm_or_inv: imm, ..Script::wqe(SendOp::WriteImm, 5) }, &[]);
    s.post_wqe(Script::wqe(SendOp::Read, 6), &[]);
    let word = s.sge(0, 8);
    let atomic = |op, id| SendWqe { compare_add: 0xcc, swap: 0xee, ..Script::wqe(op, id) };
    s.post_wqe(atomic(SendOp::FetchAdd, 7), &[word]);
    s.post_wqe(atomic(SendOp::CompareSwap, 8), &[word]);
    s.expect(&[
        "SEND_ONLY 001000 A",
        "SEND_ONLY_IMM 001001 A imm=01020304",
        "SEND_ONLY_INV 001002 A inv=abcdef01",
        "WRITE_ONLY 001003 A va=5000 rkey=77 len=0",
        "WRITE_ONLY_IMM 001004 A va=5000 rkey=77 len=0 imm=01020304",
        "READ_REQUEST 001005 va=5000 rkey=77 len=0",
        "FETCH_ADD 001006 va=5000 rkey=77 cc/0",
        "CMP_SWAP 001007 va=5000 rkey=77 ee/cc",
    ]);
}

#[test]
fn solicited_only_at_the_end_and_only_where_a_receive_completes() {
    let mut s = Script::new();
    for (id, op) in [
        SendOp::Send,
        SendOp::SendImm,
        SendOp::SendInv,
        SendOp::Write,
        SendOp::WriteImm,
        SendOp::Read,
        SendOp::FetchAdd,
        SendOp::AtomicWrite,
        SendOp::Flush,
    ]
    .into_iter()
    .enumerate()
    {
        let wqe = Script::wqe(op, id as u64);
        let sge =
            s.sge(0, if matches!(op, SendOp::FetchAdd | SendOp::AtomicWrite) { 8 } else { 1030 });
        let local = if op == SendOp::Flush { &[][..] } else { &[sge] };
        s.post_wqe(SendWqe { flags: wqe.flags | SendFlags::SOLICITED, ..wqe }, local);
    }
    assert_eq!(s.results(), [], "all of them leave");
    let solicited: Vec<String> = s
        .sent()
        .into_iter()
        .filter(|out| out.line.contains(" SE"))
        .map(|out| out.line[..out.line.find(' ').unwrap()].to_owned())
        .collect();
    assert_eq!(solicited, ["SEND_LAST", "SEND_LAST_IMM", "SEND_LAST_INV", "WRITE_LAST_IMM"]);
}

#[test]
fn the_solicited_bit_wakes_who_asked_for_it() {
    let mut s = Script::new();
    for id in 0..4 {
        s.post_recv(id, 0, 2048);
    }
    s.cqs.arm(true);
    s.recv(pkt("SEND_ONLY", super::script::RQ).len(4));
    assert_eq!(s.notified, 0);
    // On a packet that is not the last it means nothing.
    s.recv(pkt("SEND_FIRST", super::script::RQ + 1).len(1024).se());
    s.recv(pkt("SEND_LAST", super::script::RQ + 2).len(1));
    assert_eq!(s.notified, 0);
    s.recv(pkt("SEND_ONLY_IMM", super::script::RQ + 3).se());
    assert_eq!(s.notified, 1);
    // An error wakes too.
    s.cqs.arm(true);
    s.recv(pkt("SEND_LAST", super::script::RQ + 4).len(1));
    assert_eq!(s.notified, 2);
}

#[test]
fn an_ack_is_asked_for_at_the_end_of_each_message_and_every_n_packets() {
    let config: fn(&mut crate::engine::EngineConfig) = |c| {
        c.ack_every = 16;
        c.window = WindowConfig { initial: 1 << 20, max: 1 << 20, enabled: true };
    };
    let mut s = Script::with(&Setup { mtu: Mtu::B256, config, ..Setup::default() });
    s.post(SendOp::Write, 1, 40 * 256);
    s.post(SendOp::Send, 2, 1);
    s.post(SendOp::Send, 3, 20 * 256);
    let asking: Vec<usize> = s
        .sent()
        .iter()
        .enumerate()
        .filter(|(_, out)| out.line.contains(" A"))
        .map(|(i, _)| i)
        .collect();
    assert_eq!(asking, [15, 31, 39, 40, 56, 60]);
}

#[test]
fn an_ack_is_asked_for_at_each_quarter_of_the_window() {
    // Sixteen packets in flight.
    let config: fn(&mut crate::engine::EngineConfig) = |c| {
        let bytes = 16 * (1024 + 832);
        c.window = WindowConfig { initial: bytes, max: bytes, enabled: true };
    };
    let mut s = Script::with(&Setup { config, ..Setup::default() });
    s.post(SendOp::Write, 1, 40 * 1024);
    let sent = s.sent();
    assert_eq!(sent.len(), 16);
    let asking = |from: usize, sent: &[super::script::Out]| -> Vec<usize> {
        (from..).zip(sent).filter(|(_, out)| out.line.contains(" A")).map(|(i, _)| i).collect()
    };
    assert_eq!(asking(0, &sent), [3, 7, 11, 15]);
    // Each answer lets as many more go.
    for quarter in 0..6u32 {
        s.recv(ack(SQ + 4 * quarter + 3, 0x1f));
        let sent = s.sent();
        let first = 16 + 4 * quarter as usize;
        assert_eq!((sent.len(), asking(first, &sent)), (4, vec![first + 3]));
    }
    for psn in [27, 31, 35, 39] {
        s.recv(ack(SQ + psn, 0x1f));
    }
    assert_eq!(s.results(), [(1, Success)]);
    assert_eq!(s.engine.in_flight(), (0, 0));
}

#[test]
fn a_pattern_of_pieces_becomes_packets_without_seams() {
    let mut s = Script::new();
    let data = s.fill(0, 5000);
    let pieces = [s.sge(0, 1), s.sge(1, 0), s.sge(1, 1023), s.sge(1024, 3976)];
    s.post_wqe(Script::wqe(SendOp::Send, 1), &pieces);
    assert_eq!(s.out_payload(), data);
    assert_eq!(s.sent().len(), 5);
}

#[test]
fn reads_and_what_is_behind_them_wait_for_credit() {
    let mut s = Script::with(&Setup { rd_atomic: 2, ..Setup::default() });
    s.post(SendOp::Read, 1, 8);
    s.post(SendOp::FetchAdd, 2, 8);
    s.post(SendOp::Write, 3, 8);
    s.post(SendOp::CompareSwap, 4, 8);
    s.post(SendOp::Write, 5, 8);
    s.expect(&[
        "READ_REQUEST 001000 va=5000 rkey=77 len=8",
        "FETCH_ADD 001001 va=5000 rkey=77 0/0",
        "WRITE_ONLY 001002 A va=5000 rkey=77 len=8 +8",
    ]);
    s.recv(pkt("READ_RESP_ONLY", SQ).syndrome(0x1f).len(8));
    s.expect(&[
        "CMP_SWAP 001003 va=5000 rkey=77 0/0",
        "WRITE_ONLY 001004 A va=5000 rkey=77 len=8 +8",
    ]);
    // A retry of both holds no more credits than before.
    s.recv(ack(SQ + 2, 0x1f));
    assert_eq!(s.sent().len(), 4);
    assert_eq!(s.inside().req.rd_out, 2);
    s.recv(pkt("ATOMIC_ACK", SQ + 1).syndrome(0x1f));
    s.recv(pkt("ATOMIC_ACK", SQ + 3).syndrome(0x1f));
    assert_eq!(s.inside().req.rd_out, 0);
}

#[test]
fn a_fence_waits_for_reads_and_atomics_of_before() {
    let fenced = |op, id| {
        let wqe = Script::wqe(op, id);
        SendWqe { flags: wqe.flags | SendFlags::FENCE, ..wqe }
    };
    for op in [SendOp::Write, SendOp::Send, SendOp::Read, SendOp::FetchAdd] {
        let mut s = Script::new();
        let word = s.sge(0, 8);
        s.post(SendOp::Write, 1, 8);
        s.post_wqe(fenced(op, 2), &[word]);
        assert_eq!(s.sent().len(), 2, "{op:?}: a WRITE is not waited for");

        let mut s = Script::new();
        s.post(SendOp::Read, 1, 8);
        s.post(SendOp::FetchAdd, 2, 8);
        s.post_wqe(fenced(op, 3), &[word]);
        s.post(SendOp::Send, 4, 0);
        assert_eq!(s.sent().len(), 2, "{op:?}");
        s.recv(pkt("READ_RESP_ONLY", SQ).syndrome(0x1f).len(8));
        s.silent();
        s.recv(pkt("ATOMIC_ACK", SQ + 1).syndrome(0x1f));
        assert_eq!(s.sent().len(), 2, "{op:?}");
    }
}

#[test]
fn a_peer_that_tells_of_its_receives_is_not_sent_more() {
    let mut s = Script::new();
    s.post(SendOp::Send, 1, 8);
    s.expect(&["SEND_ONLY 001000 A +8"]);
    // One more, it says.
    s.recv(ack(SQ, 0x01));
    for id in 2..6 {
        s.post(SendOp::Send, id, 8);
    }
    s.expect(&["SEND_ONLY 001001 A +8"]);
    // None; so one goes and asks.
    s.recv(ack(SQ + 1, 0x00));
    s.expect(&["SEND_ONLY 001002 A +8"]);
    // Not ready after all: the wait for the receiver is as ever.
    s.recv(ack(SQ + 2, 0x21));
    s.silent();
    s.wait_us(100);
    s.expect(&["SEND_ONLY 001002 A +8"]);
    // Eight: what is left goes at once.
    s.recv(ack(SQ + 2, 0x06));
    s.expect(&["SEND_ONLY 001003 A +8", "SEND_ONLY 001004 A +8"]);
    s.recv(ack(SQ + 4, 0x00));
    // Of a long message each packet asks; what takes no receive does not wait.
    s.post(SendOp::Write, 6, 2500);
    s.expect(&[
        "WRITE_FIRST 001005 va=5000 rkey=77 len=2500 +1024",
        "WRITE_MIDDLE 001006 +1024",
        "WRITE_LAST 001007 A +452",
    ]);
    s.post(SendOp::Send, 7, 2500);
    s.silent();
    s.recv(ack(SQ + 7, 0x00));
    let lines =
        ["SEND_FIRST 001008 A +1024", "SEND_MIDDLE 001009 A +1024", "SEND_LAST 00100a A +452"];
    for (line, psn) in lines.into_iter().zip(SQ + 8..) {
        s.expect(&[line]);
        s.recv(ack(psn, 0x00));
    }
    // It tells no more: no bound.
    s.post(SendOp::Send, 8, 8);
    s.recv(ack(SQ + 11, 0x1f));
    for id in 9..12 {
        s.post(SendOp::Send, id, 8);
    }
    assert_eq!(s.sent().len(), 4);
    s.recv(ack(SQ + 14, 0x1f));
    assert_eq!(s.results(), (1..12).map(|id| (id, Success)).collect::<Vec<_>>());
    assert_eq!(s.engine.poll_timeout(), None);
}

#[test]
fn what_left_before_the_peer_told_of_its_receives_is_asked_about() {
    // No timer helps.
    let mut s = Script::with(&Setup {
        timeout: 0,
        config: |c| c.window = WindowConfig { initial: 9000, max: 9000, enabled: true },
        ..Setup::default()
    });
    s.post(SendOp::Send, 1, 20 * 1024);
    let mut acked = 0;
    for _ in 0..100 {
        let sent = s.sent();
        // Of what came, that which asked is acknowledged: no receive but that in use.
        let asked = sent.iter().filter(|out| out.line.contains(" A "));
        let psns =
            asked.map(|out| u32::from_str_radix(out.line.split(' ').nth(1).unwrap(), 16).unwrap());
        for psn in psns.collect::<Vec<_>>() {
            acked = psn;
            s.recv(ack(psn, 0x00));
        }
    }
    assert_eq!(acked, SQ + 19);
    assert_eq!(s.results(), [(1, Success)]);
}
