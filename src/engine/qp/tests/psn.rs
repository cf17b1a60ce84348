//! Expected, ahead, behind: the three regions of the PSN space, and where it wraps.

use super::script::{RQ, SQ, Script, ack, pkt};
use crate::engine::counters::Counter as C;
use crate::engine::status::WcStatus::Success;
use crate::engine::tests::pair::Setup;
use crate::engine::window::WindowConfig;
use crate::mem::Sge;
use crate::queue::SendOp;
use crate::wire::num::{Lkey, Mtu};

const HALF: u32 = 1 << 23;

#[test]
fn half_of_the_space_is_ahead_and_half_behind() {
    for first in [RQ, 0, 0xff_ffff, HALF] {
        for ahead in [1, 2, 1000, HALF - 1] {
            let mut s = Script::at(SQ, first, &Setup::default());
            s.recv(pkt("WRITE_ONLY", first.wrapping_add(ahead)));
            s.expect(&[&format!("ACK {first:06x} syn=60 msn=0")]);
            assert_eq!(s.counter(C::OutOfSequence), 1);
        }
        for behind in [1, 2, 1000, HALF - 1, HALF] {
            let mut s = Script::at(SQ, first, &Setup::default());
            s.recv(pkt("WRITE_ONLY", first.wrapping_sub(behind)));
            let last = first.wrapping_sub(1) & 0xff_ffff;
            s.expect(&[&format!("ACK {last:06x} syn=1f msn=0")]);
            assert_eq!(s.counter(C::DuplicateRequest), 1);
        }
    }
}

#[test]
fn the_responder_counts_over_the_end() {
    let mut s = Script::at(SQ, 0xff_fffe, &Setup::default());
    let data = s.fill(0, 3000);
    let (va, rkey) = (s.va(0), s.rkey());
    s.post_recv(1, 8192, 4096);
    s.recv(pkt("SEND_FIRST", 0xff_fffe).data(&data[..1024]));
    s.recv(pkt("SEND_MIDDLE", 0xff_ffff).data(&data[1024..2048]));
    s.recv(pkt("SEND_LAST", 0).data(&data[2048..]).ask());
    s.expect(&["ACK 000000 syn=1f msn=1"]);
    assert_eq!(s.bytes(8192, 3000), data);

    let mut s = Script::at(SQ, 0xff_fffe, &Setup::default());
    s.recv(pkt("READ_REQUEST", 0xff_fffe).reth(va, rkey, 3000));
    s.expect(&[
        "READ_RESP_FIRST fffffe syn=1f msn=1 +1024",
        "READ_RESP_MIDDLE ffffff +1024",
        "READ_RESP_LAST 000000 syn=1f msn=1 +952",
    ]);
    s.recv(pkt("READ_REQUEST", 0).reth(va + 2048, rkey, 952));
    s.expect(&["READ_RESP_ONLY 000000 syn=1f msn=1 +952"]);
    s.recv(pkt("WRITE_ONLY", 1).ask());
    s.expect(&["ACK 000001 syn=1f msn=2"]);
}

#[test]
fn the_requester_counts_over_the_end() {
    let mut s = Script::at(0xff_ffff, RQ, &Setup::default());
    s.post(SendOp::Write, 1, 2500);
    s.post(SendOp::Read, 2, 2000);
    s.post(SendOp::FetchAdd, 3, 8);
    s.expect(&[
        "WRITE_FIRST ffffff va=5000 rkey=77 len=2500 +1024",
        "WRITE_MIDDLE 000000 +1024",
        "WRITE_LAST 000001 A +452",
        "READ_REQUEST 000002 va=5000 rkey=77 len=2000",
        "FETCH_ADD 000004 va=5000 rkey=77 0/0",
    ]);
    // A NAK from before the end and one from behind it.
    s.recv(ack(0xff_ffff, 0x60));
    s.sent();
    s.recv(ack(0, 0x1f));
    s.recv(ack(1, 0x60));
    assert_eq!(s.sent()[0].line, "WRITE_LAST 000001 A +452");
    s.recv(pkt("READ_RESP_FIRST", 2).syndrome(0x1f).len(1024));
    assert_eq!(s.results(), [(1, Success)]);
    s.recv(pkt("READ_RESP_LAST", 3).syndrome(0x1f).len(976));
    s.recv(pkt("ATOMIC_ACK", 4).syndrome(0x1f).orig(5));
    assert_eq!(s.results(), [(2, Success), (3, Success)]);
}

/// 2^31 bytes at the smallest path MTU take half of all PSNs: the most that may be unacknowledged.
#[test]
fn the_longest_message_fills_the_span_and_nothing_passes_it() {
    let config: fn(&mut crate::engine::EngineConfig) = |c| {
        c.window = WindowConfig { enabled: false, ..WindowConfig::default() };
    };
    let mut s = Script::with(&Setup { mtu: Mtu::B256, config, ..Setup::default() });
    // The buffer is looked up when something arrives.
    let nowhere = |length| Sge { addr: 0, length, lkey: Lkey(0) };
    let end = SQ + HALF;
    s.post_wqe(Script::wqe(SendOp::Read, 1), &[nowhere(1 << 31)]);
    s.expect(&["READ_REQUEST 001000 va=5000 rkey=77 len=2147483648"]);
    s.post_wqe(Script::wqe(SendOp::Read, 2), &[nowhere(1 << 31)]);
    s.post_wqe(Script::wqe(SendOp::Read, 3), &[nowhere(0)]);
    s.silent();
    // Of what was sent the last is known, of what was not sent neither the first nor the last is.
    s.recv(pkt("READ_RESP_LAST", end).syndrome(0x1f).len(256));
    s.recv(pkt("READ_RESP_LAST", SQ - 1).syndrome(0x1f).len(256));
    assert_eq!(s.counter(C::DropUnsentResponse) + s.counter(C::DropGhostResponse), 2);
    assert_eq!(s.counter(C::ImpliedNakSeqErr), 0);
    s.recv(pkt("READ_RESP_LAST", end - 1).syndrome(0x1f).len(256));
    assert_eq!(s.counter(C::ImpliedNakSeqErr), 1);
    s.expect(&["READ_REQUEST 001000 va=5000 rkey=77 len=2147483648"]);
}

#[test]
fn the_span_moves_with_what_is_acknowledged() {
    let config: fn(&mut crate::engine::EngineConfig) = |c| {
        c.window = WindowConfig { enabled: false, ..WindowConfig::default() };
    };
    let mut s = Script::with(&Setup { mtu: Mtu::B256, config, ..Setup::default() });
    s.post(SendOp::Read, 1, 256);
    let most = Sge { addr: 0, length: (1 << 31) - 256, lkey: Lkey(0) };
    s.post_wqe(Script::wqe(SendOp::Read, 2), &[most]);
    s.post(SendOp::Write, 3, 0);
    assert_eq!(s.sent().len(), 2, "2^23 PSNs are taken");
    s.recv(pkt("READ_RESP_ONLY", SQ).syndrome(0x1f).len(256));
    s.expect(&[&format!("WRITE_ONLY {:06x} A va=5000 rkey=77 len=0", SQ + HALF)]);
}
