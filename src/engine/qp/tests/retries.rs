//! Timeouts, retries, waits for a receiver: when, from where, how often.

use std::sync::Mutex;

use super::script::{RQ, SQ, Script, ack, pkt};
use crate::engine::cc::{AckInfo, CongestionControl};
use crate::engine::counters::Counter as C;
use crate::engine::qp::attr::QpState;
use crate::engine::status::WcStatus::{self, LocProt, RetryExc, RnrRetryExc, Success, WrFlush};
use crate::engine::tests::pair::Setup;
use crate::mem::Sge;
use crate::queue::{SendFlags, SendOp, SendWqe};
use crate::time::{Duration, Instant};
use crate::wire::num::Lkey;

const WRITE: &str = "WRITE_ONLY 001000 A va=5000 rkey=77 len=8 +8";
/// The resolution of timers, which are never early.
const TICK: Duration = Duration::from_nanos(1024);

/// Waits `d`, in which nothing may leave, and a little more, in which something must.
#[track_caller]
fn leaves_after(s: &mut Script, d: Duration, lines: &[&str]) {
    s.wait(d - Duration::from_nanos(1));
    s.silent();
    s.wait(TICK + TICK);
    s.expect(lines);
}

fn timeout(code: u8) -> Duration {
    Duration::from_nanos(4096 << code)
}

#[test]
fn the_ack_timeout_is_what_was_set() {
    for code in [1, 5, 8, 14, 17, 20, 31] {
        let mut s = Script::with(&Setup { timeout: code, retry_cnt: 2, ..Setup::default() });
        let t = timeout(code);
        s.post(SendOp::Write, 1, 8);
        s.wait(t * 3 + TICK * 6);
        let sent = s.sent();
        assert_eq!(sent.len(), 3);
        for pair in sent.windows(2) {
            let gap = pair[1].at - pair[0].at;
            assert!(gap >= t && gap <= t + TICK, "{gap:?} for {t:?}");
        }
        assert_eq!(s.results(), [(1, RetryExc)]);
    }
}

#[test]
fn retries_are_as_many_as_were_set_and_seven_is_seven() {
    for retries in [0, 1, 3, 7] {
        let setup = Setup { timeout: 8, retry_cnt: retries, ..Setup::default() };
        let mut s = Script::with(&setup);
        s.post(SendOp::Write, 1, 8);
        s.post(SendOp::Send, 2, 0);
        s.wait(timeout(8) * 9);
        let sent = s.sent();
        assert_eq!(sent.len(), 2 * (1 + usize::from(retries)));
        assert_eq!(s.results(), [(1, RetryExc), (2, WrFlush)]);
        assert_eq!(s.state(), QpState::Err);
        let counted = [C::LocalAckTimeoutErr, C::CompleterRetryErr, C::RetryExceededErr];
        let n = u64::from(retries);
        assert_eq!(counted.map(|c| s.counter(c)), [n + 1, n, 1]);
        assert_eq!(s.counter(C::RetransmittedPkts), 2 * n);
        assert_eq!((s.engine.poll_timeout(), s.engine.in_flight()), (None, (0, 0)));
    }
}

#[test]
fn sequence_naks_and_timeouts_share_the_retries() {
    let mut s = Script::with(&Setup { timeout: 8, retry_cnt: 2, ..Setup::default() });
    s.post(SendOp::Write, 1, 8);
    s.recv(ack(SQ, 0x60));
    s.expect(&[WRITE, WRITE]);
    s.wait(timeout(8) + TICK + TICK);
    s.expect(&[WRITE]);
    s.wait(timeout(8) + TICK + TICK);
    assert_eq!(s.results(), [(1, RetryExc)]);
}

/// The responder asks again each millisecond as long as what was sent before the retry arrives behind the gap.
#[test]
fn to_be_asked_again_for_a_long_round_trip_does_not_kill() {
    for (retries, gone_back) in [(7, &[0, 1, 2, 4, 8, 16, 32][..]), (3, &[0, 1, 2]), (1, &[0])] {
        let mut s = Script::with(&Setup { timeout: 14, retry_cnt: retries, ..Setup::default() });
        s.post(SendOp::Write, 1, 8);
        s.sent();
        let mut again = Vec::new();
        for ms in 0..60 {
            s.recv(ack(SQ, 0x60));
            again.extend(s.sent().iter().map(|_| ms));
            s.wait(Duration::from_millis(1));
        }
        assert_eq!((&again[..], s.results()), (gone_back, vec![]), "retry_cnt {retries}");
        assert_eq!(s.state(), QpState::Rts);
        // Progress begins to count anew.
        s.recv(ack(SQ, 0x1f));
        assert_eq!(s.results(), [(1, Success)]);
        s.post(SendOp::Write, 2, 8);
        s.recv(ack(SQ + 1, 0x60));
        assert_eq!(s.sent().len(), 2);
        s.wait(Duration::from_millis(1));
        s.recv(ack(SQ + 1, 0x60));
        assert_eq!(s.sent().len(), usize::from(retries > 1));
        // What ends it is silence.
        s.wait(timeout(14) * 9);
        assert_eq!(s.results(), [(2, RetryExc)]);
    }
}

#[test]
fn a_timeout_goes_back_to_the_oldest_packet() {
    let mut s = Script::with(&Setup { timeout: 8, ..Setup::default() });
    s.post(SendOp::Write, 1, 2500);
    s.post(SendOp::FetchAdd, 2, 8);
    s.post(SendOp::Send, 3, 8);
    s.sent();
    s.recv(ack(SQ, 0x1f));
    leaves_after(
        &mut s,
        timeout(8),
        &[
            "WRITE_MIDDLE 001001 +1024",
            "WRITE_LAST 001002 A +452",
            "FETCH_ADD 001003 va=5000 rkey=77 0/0",
            "SEND_ONLY 001004 A +8",
        ],
    );
}

#[test]
fn retransmissions_read_memory_anew_and_are_otherwise_the_same() {
    let mut s = Script::new();
    s.fill(0, 8);
    let sge = s.sge(0, 8);
    let wqe = SendWqe { imm_or_inv: 0x0a0b_0c0d, ..Script::wqe(SendOp::WriteImm, 1) };
    let flags = wqe.flags | SendFlags::SOLICITED;
    s.post_wqe(SendWqe { flags, ..wqe }, &[sge]);
    let first = s.sent().remove(0);
    assert_eq!(first.line, "WRITE_ONLY_IMM 001000 A SE va=5000 rkey=77 len=8 imm=0a0b0c0d +8");
    s.region.fill(0..8, 0xaa);
    s.recv(ack(SQ, 0x60));
    let second = s.sent().remove(0);
    assert_eq!((second.line, second.payload), (first.line, vec![0xaa; 8]));
}

#[test]
fn a_nak_may_name_a_packet_of_a_later_request() {
    let mut s = Script::new();
    for id in 1..=4 {
        s.post(SendOp::Send, id, 8);
    }
    s.sent();
    s.recv(ack(SQ + 2, 0x60));
    assert_eq!(s.results(), [(1, Success), (2, Success)]);
    s.expect(&["SEND_ONLY 001002 A +8", "SEND_ONLY 001003 A +8"]);
}

#[test]
fn an_ack_of_the_first_attempt_spares_the_second() {
    // Everything is lost but the ACKs, which are late: they arrive while the retry is under way, for
    // more than it has sent yet.
    let config: fn(&mut crate::engine::EngineConfig) = |c| {
        c.window = crate::engine::WindowConfig { initial: 4 * 1856, max: 4 * 1856, enabled: true };
    };
    let mut s = Script::with(&Setup { timeout: 8, config, ..Setup::default() });
    s.post(SendOp::Write, 1, 3 * 1024);
    s.post(SendOp::Write, 2, 1024);
    assert_eq!(s.sent().len(), 4);
    // The loss halves the window: two packets leave again.
    s.wait(timeout(8) + TICK + TICK);
    s.expect(&[
        "WRITE_FIRST 001000 A va=5000 rkey=77 len=3072 +1024",
        "WRITE_MIDDLE 001001 A +1024",
    ]);
    s.recv(ack(SQ + 2, 0x1f));
    assert_eq!(s.results(), [(1, Success)]);
    s.expect(&["WRITE_ONLY 001003 A va=5000 rkey=77 len=1024 +1024"]);
    s.recv(ack(SQ + 3, 0x1f));
    assert_eq!(s.results(), [(2, Success)]);
    assert_eq!((s.engine.poll_timeout(), s.engine.in_flight()), (None, (0, 0)));
}

#[test]
fn a_late_answer_to_a_read_spares_the_second_attempt() {
    let mut s = Script::with(&Setup { timeout: 8, rd_atomic: 1, ..Setup::default() });
    s.post(SendOp::Write, 1, 8);
    s.post(SendOp::Read, 2, 8);
    s.post(SendOp::Read, 3, 8);
    s.expect(&[WRITE, "READ_REQUEST 001001 va=5000 rkey=77 len=8"]);
    s.wait(timeout(8) + TICK + TICK);
    assert_eq!(s.sent().len(), 2);
    // It answers the first attempt or the second; a copy answers nothing.
    let answer = pkt("READ_RESP_ONLY", SQ + 1).syndrome(0x1f).len(8);
    s.recv_all([answer.clone(), answer]);
    assert_eq!(s.results(), [(1, Success), (2, Success)]);
    s.expect(&["READ_REQUEST 001002 va=5000 rkey=77 len=8"]);
    s.recv(pkt("READ_RESP_ONLY", SQ + 2).syndrome(0x1f).len(8));
    assert_eq!(s.results(), [(3, Success)]);
}

/// Round trips that the algorithm was told of, with each ACK.
static TOLD: Mutex<Vec<Option<Duration>>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct Listener;

impl CongestionControl for Listener {
    fn on_ack(&mut self, _now: Instant, ack: &AckInfo) {
        TOLD.lock().unwrap().push(ack.rtt);
    }
}

#[test]
fn what_was_sent_before_a_repeat_is_not_measured() {
    let cc: fn() -> Box<dyn CongestionControl> = || Box::new(Listener);
    let mut s = Script::selective(0, RQ, &Setup { cc: Some(cc), ..Setup::default() });
    // It begins at the PSN that stands where an MSN would: at 1.
    let report = |bits| pkt("ATOMIC_ACK", 0).syndrome(0x7f).orig(bits);
    let write = |psn: u32| format!("WRITE_ONLY {psn:06x} A va=5000 rkey=77 len=8 +8");
    for id in 0..8 {
        s.post(SendOp::Write, id, 8);
    }
    assert_eq!(s.sent().len(), 8);
    s.recv(report(0b0_0011));
    s.expect(&[&write(0)]);
    s.post(SendOp::Write, 8, 8);
    s.expect(&[&write(8)]);
    // Packet 4 of the same loss is repeated behind packet 8, whose ACK waits for that.
    s.wait_us(10);
    s.recv(report(0b1_0111));
    s.expect(&[&write(4)]);
    s.wait_us(90);
    s.recv(ack(8, 0x1f));
    assert_eq!(s.results().len(), 9);
    s.post(SendOp::Write, 9, 8);
    s.wait_us(5);
    s.recv(ack(9, 0x1f));
    let five = Duration::from_micros(5);
    assert_eq!(*TOLD.lock().unwrap(), [None, Some(five)]);
}

#[test]
fn rnr_waits_are_those_of_the_table() {
    let milliseconds = [
        655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28,
        1.92, 2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88,
        163.84, 245.76, 327.68, 491.52,
    ];
    for (code, ms) in (0..32u8).zip(milliseconds) {
        // The ACK timeout is shorter than nearly all of them, and must not cut them short.
        let mut s = Script::with(&Setup { timeout: 1, ..Setup::default() });
        s.post(SendOp::Write, 1, 8);
        s.recv(ack(SQ, 0x20 + code));
        s.expect(&[WRITE]);
        leaves_after(&mut s, Duration::from_secs_f64(ms / 1000.0), &[WRITE]);
        assert_eq!(s.counter(C::LocalAckTimeoutErr), 0);
    }
}

#[test]
fn rnr_retries_are_as_many_as_were_set_and_seven_is_for_ever() {
    for retries in 0..7 {
        let mut s = Script::with(&Setup { rnr_retry: retries, ..Setup::default() });
        s.post(SendOp::Send, 1, 8);
        s.post(SendOp::Send, 2, 8);
        for _ in 0..retries {
            s.recv(ack(SQ, 0x21));
            s.wait_us(12);
            assert_eq!(s.results(), []);
        }
        s.recv(ack(SQ, 0x21));
        assert_eq!(s.results(), [(1, RnrRetryExc), (2, WrFlush)]);
        assert_eq!(s.sent().len(), 2 * (1 + usize::from(retries)));
        assert_eq!(s.counter(C::RetryRnrExceededErr), 1);
    }
    let mut s = Script::with(&Setup { rnr_retry: 7, retry_cnt: 0, ..Setup::default() });
    s.post(SendOp::Send, 1, 8);
    for _ in 0..1000 {
        s.recv(ack(SQ, 0x21));
        s.wait_us(12);
    }
    assert_eq!((s.state(), s.sent().len()), (QpState::Rts, 1001));
}

#[test]
fn rnr_retries_are_reloaded_by_progress_and_are_not_those_of_timeouts() {
    let setup = Setup { rnr_retry: 1, retry_cnt: 1, timeout: 8, ..Setup::default() };
    let mut s = Script::with(&setup);
    for id in 0..4 {
        s.post(SendOp::Send, id, 8);
    }
    for psn in SQ..SQ + 4 {
        s.recv(ack(psn, 0x21));
        s.wait_us(12);
        s.wait(timeout(8) + TICK + TICK);
        s.recv(ack(psn, 0x1f));
    }
    assert_eq!(s.results(), [0, 1, 2, 3].map(|id| (id, Success)));
    assert_eq!((s.counter(C::RcvdRnrErr), s.counter(C::LocalAckTimeoutErr)), (4, 4));
}

#[test]
fn nothing_cuts_the_wait_for_a_receiver_short() {
    let mut s = Script::with(&Setup { timeout: 1, ..Setup::default() });
    s.post(SendOp::Send, 1, 8);
    s.post(SendOp::Send, 2, 8);
    s.sent();
    // 0.64 ms.
    s.recv(ack(SQ, 0x2c));
    s.recv_all([ack(SQ, 0x2c), ack(SQ, 0x60), ack(SQ - 1, 0x1f), ack(SQ + 2, 0x60)]);
    s.post(SendOp::Send, 3, 8);
    // Requests of the peer are answered meanwhile.
    s.recv(pkt("WRITE_ONLY", RQ).ask());
    s.expect(&["ACK 002000 syn=1f msn=1"]);
    s.wait(Duration::from_micros(639));
    s.silent();
    s.wait(Duration::from_micros(2));
    assert_eq!(s.sent().len(), 3);
    assert_eq!((s.counter(C::RcvdRnrErr), s.counter(C::DropStaleResponse)), (1, 2));
    assert_eq!(s.counter(C::LocalAckTimeoutErr), 0);
}

#[test]
fn a_loss_behind_a_wait_is_noticed_at_once() {
    // Lost, retried, not ready, and lost again.
    let mut s = Script::new();
    s.post(SendOp::Send, 1, 8);
    s.post(SendOp::Send, 2, 8);
    s.recv(ack(SQ, 0x60));
    s.recv(ack(SQ, 0x21));
    s.wait_us(12);
    assert_eq!(s.sent().len(), 6);
    s.recv(ack(SQ, 0x60));
    s.expect(&["SEND_ONLY 001000 A +8", "SEND_ONLY 001001 A +8"]);
    assert_eq!(s.counter(C::RcvdSeqErr), 2);
}

#[test]
fn a_request_that_fails_here_waits_for_those_before_it() {
    let mut s = Script::with(&Setup { timeout: 8, ..Setup::default() });
    let bad = |s: &Script| Sge { lkey: Lkey(0x1234), ..s.sge(0, 8) };
    s.post(SendOp::Send, 1, 8);
    s.post(SendOp::Send, 2, 8);
    let sge = bad(&s);
    s.post_wqe(Script::wqe(SendOp::Send, 3), &[sge]);
    s.post(SendOp::Send, 4, 8);
    s.expect(&["SEND_ONLY 001000 A +8", "SEND_ONLY 001001 A +8"]);
    assert_eq!((s.results(), s.state()), (vec![], QpState::Rts));
    // They are retried like any other.
    let both = ["SEND_ONLY 001000 A +8", "SEND_ONLY 001001 A +8"];
    s.wait(timeout(8) + TICK + TICK);
    s.expect(&both);
    s.recv(ack(SQ, 0x60));
    s.silent();
    s.recv(ack(SQ + 1, 0x60));
    s.expect(&both[1..]);
    s.recv(ack(SQ + 1, 0x21));
    s.wait_us(12);
    s.expect(&both[1..]);
    assert_eq!(s.results(), [(1, Success)]);
    s.recv(ack(SQ + 1, 0x1f));
    assert_eq!(s.results(), [(2, Success), (3, LocProt), (4, WrFlush)]);
    s.silent();
    assert_eq!((s.engine.poll_timeout(), s.engine.in_flight()), (None, (0, 0)));
}

#[test]
fn a_request_that_fails_in_its_middle() {
    // Two packets have left when the third piece of memory turns out to be none.
    let mut s = Script::new();
    s.post(SendOp::Send, 1, 8);
    let pieces = [s.sge(0, 2048), Sge { lkey: Lkey(0x1234), ..s.sge(0, 8) }];
    s.post_wqe(Script::wqe(SendOp::Write, 2), &pieces);
    assert_eq!(s.sent().len(), 3);
    // They are acknowledged: the request before them is what that completes.
    s.recv(ack(SQ + 2, 0x1f));
    assert_eq!(s.results(), [(1, Success), (2, LocProt)]);
    s.silent();
    assert_eq!(s.engine.in_flight(), (0, 0));
    // Or it is refused, or asked for again: that does not matter any more.
    for syndrome in [0x60, 0x62, 0x21] {
        let mut s = Script::new();
        s.post(SendOp::Send, 1, 8);
        s.post_wqe(Script::wqe(SendOp::Write, 2), &pieces_of(&s));
        s.sent();
        s.recv(ack(SQ + 2, syndrome));
        assert_eq!(s.results(), [(1, Success), (2, LocProt)], "{syndrome:x}");
        s.silent();
    }
}

fn pieces_of(s: &Script) -> [Sge; 2] {
    [s.sge(0, 2048), Sge { lkey: Lkey(0x1234), ..s.sge(0, 8) }]
}

#[test]
fn what_fails_first_is_told_also_if_a_later_request_failed_before() {
    let mut s = Script::with(&Setup { timeout: 8, retry_cnt: 1, ..Setup::default() });
    s.post(SendOp::Read, 1, 2000);
    let sge = Sge { lkey: Lkey(0x1234), ..s.sge(0, 8) };
    s.post_wqe(Script::wqe(SendOp::Send, 2), &[sge]);
    // No answer at all.
    s.wait(timeout(8) * 2 + TICK * 4);
    assert_eq!(s.results(), [(1, RetryExc), (2, WrFlush)]);

    // Its own buffer is bad too.
    let mut s = Script::new();
    s.post_wqe(Script::wqe(SendOp::Read, 1), &[sge]);
    s.post_wqe(Script::wqe(SendOp::Send, 2), &[sge]);
    s.recv(pkt("READ_RESP_ONLY", SQ).syndrome(0x1f).len(8));
    assert_eq!(s.results(), [(1, LocProt), (2, WrFlush)]);

    // The peer refuses it.
    let mut s = Script::new();
    s.post(SendOp::Send, 1, 8);
    s.post_wqe(Script::wqe(SendOp::Send, 2), &[sge]);
    s.recv(ack(SQ, 0x61));
    assert_eq!(s.results(), [(1, WcStatus::RemInvReq), (2, WrFlush)]);
}

#[test]
fn a_request_whose_memory_goes_before_its_retry_fails_before_a_later_one_that_failed_already() {
    let mut s = Script::with(&Setup { timeout: 8, ..Setup::default() });
    s.post(SendOp::Send, 1, 8);
    let sge = Sge { lkey: Lkey(0x1234), ..s.sge(0, 8) };
    s.post_wqe(Script::wqe(SendOp::Send, 2), &[sge]);
    s.expect(&["SEND_ONLY 001000 A +8"]);
    s.engine.deregister(s.pd, s.mr.lkey).unwrap();
    assert_eq!(s.results(), []);
    // Its packet is lost, and cannot be made again.
    s.wait(timeout(8) + TICK + TICK);
    assert_eq!(s.results(), [(1, LocProt), (2, WrFlush)]);
    s.silent();
    assert_eq!((s.engine.poll_timeout(), s.engine.in_flight()), (None, (0, 0)));
}

#[test]
fn memory_that_ends_in_the_middle_of_a_long_message() {
    // Packets from the middle leave in a row: those that could be made are in flight, and count.
    let mut s = Script::new();
    s.post(SendOp::Send, 1, 8);
    let pieces = [s.sge(0, 6 * 1024), Sge { lkey: Lkey(0x1234), ..s.sge(0, 4096) }];
    s.post_wqe(Script::wqe(SendOp::Write, 2), &pieces);
    assert_eq!(s.sent().len(), 7);
    s.recv(ack(SQ + 6, 0x1f));
    assert_eq!(s.results(), [(1, Success), (2, LocProt)]);
    s.silent();
    assert_eq!(s.engine.in_flight(), (0, 0));
}

#[test]
fn requests_that_cannot_be_carried_out() {
    let cases: [(SendOp, u32, WcStatus); 6] = [
        (SendOp::AtomicWrite, 4, WcStatus::LocLen),
        (SendOp::FetchAdd, 4, WcStatus::LocLen),
        (SendOp::CompareSwap, 16, WcStatus::LocLen),
        (SendOp::Write, (1 << 31) + 1, WcStatus::LocLen),
        (SendOp::Read, u32::MAX, WcStatus::LocLen),
        (SendOp::LocalInv, 0, WcStatus::LocQpOp),
    ];
    for (op, length, status) in cases {
        let mut s = Script::new();
        s.post(SendOp::Send, 1, 8);
        let sge = Sge { length, ..s.sge(0, 8) };
        s.post_wqe(Script::wqe(op, 2), &[sge]);
        s.post(SendOp::Send, 3, 8);
        s.expect(&["SEND_ONLY 001000 A +8"]);
        s.recv(ack(SQ, 0x1f));
        assert_eq!(s.results(), [(1, Success), (2, status), (3, WrFlush)], "{op:?}");
    }
    let mut s = Script::with(&Setup { rd_atomic: 0, ..Setup::default() });
    s.post(SendOp::FetchAdd, 1, 8);
    assert_eq!(s.results(), [(1, WcStatus::LocQpOp)]);
}

#[test]
fn a_queue_whose_depth_is_no_power_of_two_goes_round() {
    for depth in [1, 3, 5, 100] {
        let cap = crate::engine::qp::attr::QpCap { send_wr: depth, ..Default::default() };
        let config: fn(&mut crate::engine::EngineConfig) = |c| c.window.enabled = false;
        let mut s = Script::with(&Setup { cap, config, ..Setup::default() });
        let mut psn = SQ;
        for round in 0..30u64 {
            for id in 0..u64::from(depth) {
                // Different sizes, so that a mixed up record would show.
                s.post(SendOp::Write, round * 1000 + id, 1 + usize::from(id % 3 == 0) * 1024);
            }
            let sent = s.sent();
            let n = u32::try_from(sent.len()).unwrap();
            // The second half again, then all is acknowledged.
            s.recv(ack(psn + n / 2, 0x60));
            let again = s.sent();
            assert_eq!(again[0].line, sent[(n / 2) as usize].line);
            psn += n;
            s.recv(ack(psn - 1, 0x1f));
            assert_eq!(s.results().len(), depth as usize);
        }
    }
}
