//! RC between two engines: every operation, and the loss of every kind of packet.

use super::pair::{Fate, Pair, Setup};
use crate::engine::counters::Counter as C;
use crate::engine::qp::attr::{QpCap, QpState};
use crate::engine::status::WcStatus::{self, Success};
use crate::queue::{CqeFlags, SendFlags, SendOp, SendWqe};
use crate::time::Duration;
use crate::wire::num::Mtu;

const SIZES: [usize; 9] = [0, 1, 3, 1023, 1024, 1025, 2048, 2049, 65_539];

#[test]
fn send_of_every_size() {
    for len in SIZES {
        let mut p = Pair::new(&Setup::default());
        let data = p.fill(0, 0, len, 1);
        p.post_recv(1, 7, &[p.sge(1, 100_000, len.max(1))]);
        p.post(0, p.wqe(0, SendOp::Send, 3, 0), &[p.sge(0, 0, len)]);
        p.run();
        let got = p.completions(1);
        assert_eq!(got.len(), 1, "{len}");
        assert_eq!((got[0].wr_id, got[0].opcode, got[0].byte_len as usize), (7, 128, len));
        assert_eq!(p.results(0), [(3, Success)]);
        assert_eq!(p.bytes(1, 100_000, len), data, "{len}");
        p.assert_quiet();
    }
}

#[test]
fn send_write_and_read_of_every_size_and_mtu() {
    for mtu in Mtu::ALL {
        let m = mtu.bytes();
        for len in [0, 1, m - 1, m, m + 1, 2 * m - 1, 2 * m, 2 * m + 1, 3 * m + 7] {
            let mut p = Pair::new(&Setup { mtu, ..Setup::default() });
            let data = p.fill(0, 5, len, 9);
            p.post(0, p.wqe(0, SendOp::Write, 1, 333), &[p.sge(0, 5, len)]);
            p.run();
            assert_eq!(p.bytes(1, 333, len), data, "{mtu:?} {len}");
            p.post(0, p.wqe(0, SendOp::Read, 2, 333), &[p.sge(0, 500_001, len)]);
            p.run();
            assert_eq!(p.bytes(0, 500_001, len), data, "{mtu:?} {len}");
            assert_eq!(p.results(0), [(1, Success), (2, Success)]);
            assert_eq!(p.completions(1), [], "one-sided: the target has no completion");
            p.post_recv(1, 7, &[p.sge(1, 700_003, len)]);
            p.post(0, p.wqe(0, SendOp::Send, 3, 0), &[p.sge(0, 5, len)]);
            p.run();
            assert_eq!(p.bytes(1, 700_003, len), data, "{mtu:?} {len}");
            assert_eq!((p.results(0), p.results(1)), (vec![(3, Success)], vec![(7, Success)]));
            p.assert_quiet();
        }
    }
}

#[test]
fn immediate_data_and_byte_len() {
    for len in [0, 1, 1024, 3073] {
        let mut p = Pair::new(&Setup::default());
        p.post_recv(1, 1, &[p.sge(1, 0, 4096)]);
        p.post_recv(1, 2, &[]);
        let imm = |p: &Pair, op| SendWqe { imm_or_inv: 0x0102_0304, ..p.wqe(0, op, 5, 0) };
        p.post(0, imm(&p, SendOp::SendImm), &[p.sge(0, 0, len)]);
        p.post(0, imm(&p, SendOp::WriteImm), &[p.sge(0, 0, len)]);
        p.run();
        let got = p.completions(1);
        assert_eq!(got.len(), 2);
        for (wc, opcode) in got.iter().zip([128, 129]) {
            assert_eq!(
                (wc.opcode, wc.imm_or_inv, wc.byte_len as usize),
                (opcode, 0x0102_0304, len)
            );
            assert!(wc.flags.contains(CqeFlags::WITH_IMM));
        }
    }
}

#[test]
fn atomics_return_the_old_value_and_change_memory_once() {
    let mut p = Pair::new(&Setup::default());
    p.sides[1].region.store(64, 100, std::sync::atomic::Ordering::Relaxed);
    let result = |p: &Pair, at| u64::from_ne_bytes(p.bytes(0, at, 8).try_into().unwrap());
    p.post(0, SendWqe { compare_add: 5, ..p.wqe(0, SendOp::FetchAdd, 1, 64) }, &[p.sge(0, 0, 8)]);
    let cas = |p: &Pair, compare_add, swap| SendWqe {
        compare_add,
        swap,
        ..p.wqe(0, SendOp::CompareSwap, 2, 64)
    };
    p.post(0, cas(&p, 105, 7), &[p.sge(0, 8, 8)]);
    p.post(0, cas(&p, 105, 8), &[p.sge(0, 16, 8)]);
    p.run();
    assert_eq!([0, 8, 16].map(|at| result(&p, at)), [100, 105, 7]);
    assert_eq!(p.sides[1].region.load(64, std::sync::atomic::Ordering::Relaxed), 7);
    assert_eq!(p.completions(0).iter().map(|c| c.byte_len).collect::<Vec<_>>(), [8, 8, 8]);
}

#[test]
fn psn_wraps_in_every_operation() {
    let setup = Setup { psn: 0xff_fffe, ..Setup::default() };
    for op in [SendOp::Send, SendOp::Write, SendOp::Read] {
        let mut p = Pair::new(&setup);
        let source = usize::from(op == SendOp::Read);
        let data = p.fill(source, 0, 5000, 4);
        p.post_recv(1, 9, &[p.sge(1, 100_000, 5000)]);
        let (remote, local) = if op == SendOp::Read { (0, 100_000) } else { (100_000, 0) };
        p.post(0, p.wqe(0, op, 1, remote), &[p.sge(0, local, 5000)]);
        p.post(
            0,
            SendWqe { compare_add: 1, ..p.wqe(0, SendOp::FetchAdd, 2, 800_000) },
            &[p.sge(0, 900_000, 8)],
        );
        p.run();
        assert_eq!(p.results(0), [(1, Success), (2, Success)], "{op:?}");
        assert_eq!(p.bytes(1 - source, 100_000, 5000), data, "{op:?}");
    }
}

/// Each kind of packet is lost exactly once; the operation still completes with the right data, and the
/// counters show that the loss was noticed.
#[test]
fn loss_of_each_packet_class_once() {
    let len = 5000;
    for (op, to, name) in [
        (SendOp::Send, 1, "RC_SEND_FIRST"),
        (SendOp::Send, 1, "RC_SEND_MIDDLE"),
        (SendOp::Send, 1, "RC_SEND_LAST"),
        (SendOp::Write, 1, "RC_WRITE_FIRST"),
        (SendOp::Write, 1, "RC_WRITE_MIDDLE"),
        (SendOp::Write, 1, "RC_WRITE_LAST"),
        (SendOp::Write, 0, "RC_ACK"),
        (SendOp::Read, 1, "RC_READ_REQUEST"),
        (SendOp::Read, 0, "RC_READ_RESP_FIRST"),
        (SendOp::Read, 0, "RC_READ_RESP_MIDDLE"),
        (SendOp::Read, 0, "RC_READ_RESP_LAST"),
        (SendOp::FetchAdd, 1, "RC_FETCH_ADD"),
        (SendOp::FetchAdd, 0, "RC_ATOMIC_ACK"),
    ] {
        let mut p = Pair::new(&Setup::default());
        p.lose(to, name, 0);
        let source = usize::from(op == SendOp::Read);
        let data = p.fill(source, 0, len, 77);
        p.post_recv(1, 9, &[p.sge(1, 100_000, len)]);
        match op {
            SendOp::FetchAdd => {
                let wqe = SendWqe { compare_add: 3, ..p.wqe(0, op, 1, 64) };
                p.sides[1].region.store(64, 1, std::sync::atomic::Ordering::Relaxed);
                p.post(0, wqe, &[p.sge(0, 100_000, 8)]);
            }
            SendOp::Read => p.post(0, p.wqe(0, op, 1, 0), &[p.sge(0, 100_000, len)]),
            _ => p.post(0, p.wqe(0, op, 1, 100_000), &[p.sge(0, 0, len)]),
        }
        p.run();
        assert_eq!(p.results(0), [(1, Success)], "{name}");
        if op == SendOp::FetchAdd {
            assert_eq!(
                p.sides[1].region.load(64, std::sync::atomic::Ordering::Relaxed),
                4,
                "{name}: once"
            );
            assert_eq!(p.bytes(0, 100_000, 8), 1u64.to_ne_bytes(), "{name}: the value before");
        } else {
            assert_eq!(p.bytes(1 - source, 100_000, len), data, "{name}");
        }
        assert_eq!(p.counter(0, C::CompleterRetryErr), 1, "{name}: one loss, one retry");
        p.assert_quiet();
    }
}

#[test]
fn a_gap_draws_one_nak_and_one_retry() {
    let mut p = Pair::new(&Setup::default());
    p.lose(1, "RC_WRITE_MIDDLE", 3);
    let data = p.fill(0, 0, 60_000, 5);
    p.post(0, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 60_000)]);
    p.run();
    assert_eq!(p.bytes(1, 0, 60_000), data);
    let naks: Vec<_> = p.log.iter().filter(|f| f.syndrome == Some(0x60)).collect();
    assert_eq!(naks.len(), 1);
    assert_eq!(naks[0].psn, 0x1000 + 4, "it names the packet that is missing");
    assert_eq!((p.counter(0, C::RcvdSeqErr), p.counter(1, C::OutOfSeqRequest)), (1, 1));
    assert_eq!(p.counter(0, C::LocalAckTimeoutErr), 0);
}

#[test]
fn the_retry_resumes_in_the_middle_of_a_message() {
    let mut p = Pair::new(&Setup::default());
    p.lose(1, "RC_WRITE_MIDDLE", 1);
    p.post(0, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 4096 + 100)]);
    p.run();
    let sent: Vec<_> =
        p.log.iter().filter(|f| f.to == 1).map(|f| (f.name, f.psn & 0xfff)).collect();
    assert_eq!(
        sent,
        [
            ("RC_WRITE_FIRST", 0),
            ("RC_WRITE_MIDDLE", 1),
            ("RC_WRITE_MIDDLE", 2),
            ("RC_WRITE_MIDDLE", 3),
            ("RC_WRITE_LAST", 4),
            ("RC_WRITE_MIDDLE", 2),
            ("RC_WRITE_MIDDLE", 3),
            ("RC_WRITE_LAST", 4),
        ]
    );
}

#[test]
fn a_lost_read_response_is_asked_for_again_from_there() {
    let mut p = Pair::new(&Setup::default());
    p.lose(0, "RC_READ_RESP_MIDDLE", 1);
    let data = p.fill(1, 0, 5000, 2);
    p.post(0, p.wqe(0, SendOp::Read, 1, 0), &[p.sge(0, 0, 5000)]);
    p.run();
    assert_eq!(p.bytes(0, 0, 5000), data);
    let requests: Vec<_> =
        p.log.iter().filter(|f| f.name == "RC_READ_REQUEST").map(|f| f.psn & 0xfff).collect();
    assert_eq!(requests, [0, 2], "the rest, at the PSN that is missing");
    assert_eq!((p.counter(0, C::ImpliedNakSeqErr), p.counter(1, C::DuplicateRead)), (1, 1));
}

#[test]
fn an_ack_beyond_a_read_is_an_implied_nak() {
    let mut p = Pair::new(&Setup::default());
    p.lose(0, "RC_READ_RESP_ONLY", 0);
    let data = p.fill(1, 100, 64, 2);
    p.post(0, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 1000, 64)]);
    p.post(0, p.wqe(0, SendOp::Read, 2, 100), &[p.sge(0, 0, 64)]);
    p.post(0, p.wqe(0, SendOp::Write, 3, 5000), &[p.sge(0, 1000, 64)]);
    p.run();
    assert_eq!(p.results(0), [(1, Success), (2, Success), (3, Success)]);
    assert_eq!(p.bytes(0, 0, 64), data);
    assert_eq!(p.counter(0, C::ImpliedNakSeqErr), 1);
    assert_eq!(p.counter(0, C::LocalAckTimeoutErr), 0);
}

#[test]
fn a_replayed_atomic_is_answered_and_not_executed() {
    let mut p = Pair::new(&Setup::default());
    p.lose(0, "RC_ATOMIC_ACK", 0);
    for i in 0..3 {
        let wqe = SendWqe { compare_add: 1, ..p.wqe(0, SendOp::FetchAdd, i as u64, 0) };
        p.post(0, wqe, &[p.sge(0, 8 * i, 8)]);
    }
    p.run();
    let results: Vec<u64> =
        (0..3).map(|i| u64::from_ne_bytes(p.bytes(0, 8 * i, 8).try_into().unwrap())).collect();
    assert_eq!(results, [0, 1, 2]);
    assert_eq!(p.sides[1].region.load(0, std::sync::atomic::Ordering::Relaxed), 3);
    assert!(p.counter(1, C::DuplicateAtomic) > 0);
}

#[test]
fn everything_twice_changes_nothing() {
    let mut p = Pair::new(&Setup::default());
    p.rule(|_| Fate::Twice);
    let data = p.fill(0, 0, 3000, 8);
    p.post_recv(1, 1, &[p.sge(1, 200_000, 3000)]);
    p.post_recv(1, 2, &[p.sge(1, 300_000, 3000)]);
    p.post(0, p.wqe(0, SendOp::Send, 1, 0), &[p.sge(0, 0, 3000)]);
    p.post(0, SendWqe { compare_add: 1, ..p.wqe(0, SendOp::FetchAdd, 2, 0) }, &[p.sge(0, 9000, 8)]);
    p.post(0, p.wqe(0, SendOp::Read, 3, 200_000), &[p.sge(0, 400_000, 3000)]);
    p.run();
    assert_eq!(p.results(0), [(1, Success), (2, Success), (3, Success)]);
    assert_eq!(p.results(1), [(1, Success)], "the second receive is untouched");
    assert_eq!(p.bytes(0, 400_000, 3000), data);
    assert_eq!(p.sides[1].region.load(0, std::sync::atomic::Ordering::Relaxed), 1);
    assert!(p.counter(1, C::DuplicateSend) > 0 && p.counter(1, C::DuplicateAtomic) > 0);
}

#[test]
fn rnr_waits_as_long_as_it_was_told_and_then_succeeds() {
    // Code 12 is 0.64 ms; the ACK timeout (code 7, 0.52 ms) must not cut it short.
    let mut p = Pair::new(&Setup { min_rnr_timer: 12, timeout: 7, ..Setup::default() });
    p.post(0, p.wqe(0, SendOp::Send, 1, 0), &[p.sge(0, 0, 64)]);
    p.run_for(Duration::from_micros(100));
    p.post_recv(1, 5, &[p.sge(1, 0, 64)]);
    p.run();
    assert_eq!((p.results(0), p.results(1)), (vec![(1, Success)], vec![(5, Success)]));
    let sent: Vec<_> = p.log.iter().filter(|f| f.name == "RC_SEND_ONLY").map(|f| f.at).collect();
    assert_eq!(sent.len(), 2);
    assert!(sent[1] - sent[0] >= Duration::from_micros(640 + 4));
    assert_eq!((p.counter(0, C::RcvdRnrErr), p.counter(0, C::LocalAckTimeoutErr)), (1, 0));
}

#[test]
fn rnr_retries_run_out() {
    let mut p = Pair::new(&Setup { rnr_retry: 2, ..Setup::default() });
    p.post(0, p.wqe(0, SendOp::Send, 1, 0), &[p.sge(0, 0, 64)]);
    p.post(0, p.wqe(0, SendOp::Write, 2, 0), &[p.sge(0, 0, 64)]);
    p.run();
    assert_eq!(p.results(0), [(1, WcStatus::RnrRetryExc), (2, WcStatus::WrFlush)]);
    let sends = p.log.iter().filter(|f| f.name == "RC_SEND_ONLY").count();
    assert_eq!(sends, 3, "the first and two retries");
    assert_eq!((p.state(0), p.state(1)), (QpState::Err, QpState::Rts), "the responder lives on");
}

#[test]
fn rnr_seven_never_ends() {
    let mut p = Pair::new(&Setup::default());
    p.post(0, p.wqe(0, SendOp::Send, 1, 0), &[p.sge(0, 0, 64)]);
    p.run_for(Duration::from_millis(10));
    assert_eq!(p.results(0), []);
    assert!(p.counter(0, C::RcvdRnrErr) > 100);
    p.post_recv(1, 1, &[p.sge(1, 0, 64)]);
    p.run();
    assert_eq!(p.results(0), [(1, Success)]);
}

#[test]
fn losses_while_the_receiver_is_not_ready_do_not_add_up() {
    let mut p = Pair::new(&Setup { timeout: 8, retry_cnt: 2, ..Setup::default() });
    // Two of three requests are lost: as many as may be in a row.
    let mut sent = 0;
    p.rule(move |f| {
        sent += u32::from(f.to == 1);
        if f.to == 1 && !sent.is_multiple_of(3) { Fate::Drop } else { Fate::Pass }
    });
    p.post(0, p.wqe(0, SendOp::Send, 1, 0), &[p.sge(0, 0, 64)]);
    p.run_for(Duration::from_millis(100));
    assert_eq!(p.results(0), []);
    assert!(p.counter(0, C::RcvdRnrErr) > 10);
    assert!(p.counter(0, C::LocalAckTimeoutErr) > 20);
    p.post_recv(1, 1, &[p.sge(1, 0, 64)]);
    p.run();
    assert_eq!(p.results(0), [(1, Success)]);
    // A peer that is gone is still noticed: the first and two retries.
    p.rule(|_| Fate::Drop);
    p.post(0, p.wqe(0, SendOp::Send, 2, 0), &[p.sge(0, 0, 64)]);
    p.run();
    assert_eq!(p.results(0), [(2, WcStatus::RetryExc)]);
}

#[test]
fn silence_ends_in_retry_exceeded_after_the_time_that_was_set() {
    let mut p = Pair::new(&Setup { timeout: 10, retry_cnt: 3, ..Setup::default() });
    p.rule(|f| if f.to == 1 { Fate::Drop } else { Fate::Pass });
    let start = p.now;
    p.post(0, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 64)]);
    p.post(
        0,
        SendWqe { flags: SendFlags::empty(), ..p.wqe(0, SendOp::Write, 2, 0) },
        &[p.sge(0, 0, 64)],
    );
    p.post_recv(0, 3, &[p.sge(0, 0, 64)]);
    p.run();
    use WcStatus::{RetryExc, WrFlush};
    assert_eq!(
        p.results(0),
        [(1, RetryExc), (2, WrFlush), (3, WrFlush)],
        "unsignaled ones are flushed too"
    );
    assert_eq!(
        p.log.iter().filter(|f| f.to == 1 && f.psn == 0x1000).count(),
        4,
        "once and three retries"
    );
    let took = p.now - start;
    let t = Duration::from_nanos(4096 << 10);
    assert!(took >= t * 4 && took < t * 4 + Duration::from_micros(100), "{took:?}");
    assert_eq!(p.state(0), QpState::Err);
}

#[test]
fn unsignaled_requests_complete_silently() {
    let mut p = Pair::new(&Setup::default());
    for i in 0..5 {
        let flags = if i == 4 { SendFlags::SIGNALED } else { SendFlags::empty() };
        p.post(0, SendWqe { flags, ..p.wqe(0, SendOp::Write, i, 0) }, &[p.sge(0, 0, 8)]);
    }
    p.run();
    assert_eq!(p.results(0), [(4, Success)]);
}

#[test]
fn a_full_send_queue_takes_more_after_polling() {
    let mut p =
        Pair::new(&Setup { cap: QpCap { send_wr: 4, ..QpCap::default() }, ..Setup::default() });
    let quiet = |p: &Pair| SendWqe { flags: SendFlags::empty(), ..p.wqe(0, SendOp::Write, 0, 0) };
    for _ in 0..3 {
        p.post(0, quiet(&p), &[p.sge(0, 0, 8)]);
    }
    p.post(0, p.wqe(0, SendOp::Write, 3, 0), &[p.sge(0, 0, 8)]);
    p.run();
    let free = |p: &Pair| p.sides[0].face.sq.lock().free();
    assert_eq!(free(&p), 0, "acknowledged, but not polled");
    assert_eq!(p.results(0), [(3, Success)]);
    assert_eq!(free(&p), 4);
    for _ in 0..4 {
        p.post(0, quiet(&p), &[p.sge(0, 0, 8)]);
    }
    p.run();
    assert_eq!(free(&p), 0, "all unsignaled: full for good");
}

#[test]
fn fence_waits_for_reads_and_not_for_writes() {
    let mut p = Pair::new(&Setup::default());
    let fenced = |p: &Pair, id| {
        let wqe = p.wqe(0, SendOp::Write, id, 0);
        SendWqe { flags: wqe.flags | SendFlags::FENCE, ..wqe }
    };
    p.post(0, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 8)]);
    p.post(0, fenced(&p, 2), &[p.sge(0, 0, 8)]);
    assert_eq!(p.names(1), ["RC_WRITE_ONLY", "RC_WRITE_ONLY"], "nothing to wait for");
    p.post(0, p.wqe(0, SendOp::Read, 3, 0), &[p.sge(0, 100, 8)]);
    p.post(0, fenced(&p, 4), &[p.sge(0, 0, 8)]);
    assert_eq!(p.names(1).len(), 3, "the fenced WRITE waits for the READ");
    p.run();
    assert_eq!(p.results(0), [(1, Success), (2, Success), (3, Success), (4, Success)]);
    assert_eq!(p.names(1).len(), 4);
}

#[test]
fn reads_and_atomics_never_exceed_max_rd_atomic() {
    let mut p = Pair::new(&Setup { rd_atomic: 2, dest_rd_atomic: 2, ..Setup::default() });
    for i in 0..7 {
        if i % 2 == 0 {
            p.post(0, p.wqe(0, SendOp::Read, i, 0), &[p.sge(0, 0, 3000)]);
        } else {
            let wqe = SendWqe { compare_add: 1, ..p.wqe(0, SendOp::FetchAdd, i, 0) };
            p.post(0, wqe, &[p.sge(0, 8192, 8)]);
        }
    }
    assert_eq!(p.names(1).len(), 2, "the third waits");
    p.run();
    assert_eq!(p.results(0), (0..7).map(|i| (i, Success)).collect::<Vec<_>>());
    assert_eq!(p.state(1), QpState::Rts);
}

#[test]
fn zero_read_credit_is_an_error_of_the_request() {
    let mut p = Pair::new(&Setup { rd_atomic: 0, ..Setup::default() });
    p.post(0, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 8)]);
    p.post(0, p.wqe(0, SendOp::Read, 2, 0), &[p.sge(0, 0, 8)]);
    p.run();
    assert_eq!(p.results(0), [(1, Success), (2, WcStatus::LocQpOp)]);
}

#[test]
fn a_read_larger_than_the_receive_buffer_is_asked_for_in_pieces() {
    let mut p = Pair::new(&Setup { rx_buffer: Some(212_992), ..Setup::default() });
    let data = p.fill(1, 0, 300_000, 3);
    p.post(0, p.wqe(0, SendOp::Read, 1, 0), &[p.sge(0, 0, 300_000)]);
    p.run();
    assert_eq!(p.bytes(0, 0, 300_000), data);
    assert_eq!(p.results(0), [(1, Success)]);
    let requests = p.names(1).len();
    assert!(requests > 4, "{requests} requests");
    assert_eq!(p.counter(0, C::CompleterRetryErr), 0);
}

#[test]
fn several_pieces_on_both_sides() {
    let mut p = Pair::new(&Setup::default());
    let a = p.fill(0, 10, 1500, 1);
    let b = p.fill(0, 5003, 2000, 2);
    let c = p.fill(0, 9001, 3, 3);
    let whole = [a, b, c].concat();
    p.post_recv(1, 1, &[p.sge(1, 1, 7), p.sge(1, 2001, 3000), p.sge(1, 7000, 1000)]);
    let from = [p.sge(0, 10, 1500), p.sge(0, 5003, 2000), p.sge(0, 0, 0), p.sge(0, 9001, 3)];
    p.post(0, p.wqe(0, SendOp::Send, 1, 0), &from);
    p.run();
    assert_eq!(p.results(1), [(1, Success)]);
    let got = [p.bytes(1, 1, 7), p.bytes(1, 2001, 3000), p.bytes(1, 7000, 496)].concat();
    assert_eq!(got, whole);
}

#[test]
fn inline_bytes_are_taken_when_posted() {
    let mut p = Pair::new(&Setup::default());
    let wqe = p.wqe(0, SendOp::Write, 1, 50);
    let s = &p.sides[0];
    let mut sq = s.face.sq.lock();
    let mut said = *b"hello, inline";
    let (first, second) = said.split_at(7);
    sq.stage_inline(wqe, [first, second]).unwrap();
    sq.publish();
    drop(sq);
    said.fill(b'x');
    let (now, qp) = (p.now, p.sides[0].qp);
    p.sides[0].engine.handle_doorbell(now, qp);
    p.pump(0);
    p.run();
    assert_eq!(p.bytes(1, 50, 13), b"hello, inline");
    assert_eq!(said, [b'x'; 13]);
}

#[test]
fn a_bad_local_key_fails_in_order_after_what_was_sent_before() {
    let mut p = Pair::new(&Setup::default());
    let good = p.sge(0, 0, 2000);
    let bad = crate::mem::Sge { lkey: crate::wire::num::Lkey(0x1234), ..good };
    p.post(0, p.wqe(0, SendOp::Write, 1, 0), &[good]);
    p.post(0, p.wqe(0, SendOp::Write, 2, 0), &[bad]);
    p.post(0, p.wqe(0, SendOp::Write, 3, 0), &[good]);
    p.run();
    assert_eq!(p.results(0), [(1, Success), (2, WcStatus::LocProt), (3, WcStatus::WrFlush)]);
    assert_eq!(p.names(1).len(), 2, "nothing of the second or third request left");
}

#[test]
fn reordered_requests_are_repaired() {
    let mut p = Pair::new(&Setup::default());
    p.rule(|f| {
        if f.to == 1 && f.name == "RC_WRITE_MIDDLE" && f.nth == 2 {
            Fate::Late(Duration::from_micros(1))
        } else {
            Fate::Pass
        }
    });
    let data = p.fill(0, 0, 20_000, 6);
    p.post(0, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 20_000)]);
    p.run();
    assert_eq!(p.bytes(1, 0, 20_000), data);
    assert_eq!(p.results(0), [(1, Success)]);
}

#[test]
fn the_window_bounds_what_is_in_flight() {
    let config: fn(&mut crate::engine::EngineConfig) = |c| {
        c.window = crate::engine::WindowConfig { initial: 20_000, max: 20_000, enabled: true };
    };
    let mut p = Pair::new(&Setup { config, ..Setup::default() });
    let data = p.fill(0, 0, 200_000, 6);
    p.post(0, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 200_000)]);
    assert!(p.names(1).len() <= 11, "{}", p.names(1).len());
    p.run();
    assert_eq!(p.bytes(1, 0, 200_000), data);
    assert_eq!(p.counter(0, C::CompleterRetryErr), 0, "the window must not stall");
}

#[test]
fn both_families_and_self_sealed() {
    let mut p = Pair::new(&Setup { v6: true, ..Setup::default() });
    let data = p.fill(0, 0, 5000, 6);
    p.post(0, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 5000)]);
    p.run();
    assert_eq!(p.bytes(1, 0, 5000), data);
    assert_eq!(p.counter(1, C::IcrcExact), 5);
}

/// One of each operation, with several packets where it can have them, under one set-up.
fn one_of_each(p: &mut Pair) {
    let (first, second) = (p.fill(0, 0, 5000, 1), p.fill(1, 300_000, 5000, 2));
    p.post_recv(1, 70, &[p.sge(1, 100_000, 5000)]);
    p.post_recv(1, 71, &[]);
    p.post(0, p.wqe(0, SendOp::Send, 1, 0), &[p.sge(0, 0, 5000)]);
    p.post(0, p.wqe(0, SendOp::Write, 2, 200_000), &[p.sge(0, 0, 5000)]);
    let imm = SendWqe { imm_or_inv: 7, ..p.wqe(0, SendOp::WriteImm, 3, 210_000) };
    p.post(0, imm, &[p.sge(0, 0, 5000)]);
    p.post(0, p.wqe(0, SendOp::Read, 4, 300_000), &[p.sge(0, 400_000, 5000)]);
    let add = SendWqe { compare_add: 5, ..p.wqe(0, SendOp::FetchAdd, 5, 500_000) };
    p.post(0, add, &[p.sge(0, 600_000, 8)]);
    let swap = SendWqe { compare_add: 5, swap: 9, ..p.wqe(0, SendOp::CompareSwap, 6, 500_000) };
    p.post(0, swap, &[p.sge(0, 600_008, 8)]);
    p.run();
    assert_eq!(p.results(0), (1..=6).map(|id| (id, Success)).collect::<Vec<_>>());
    assert_eq!(p.results(1), [(70, Success), (71, Success)]);
    for at in [100_000, 200_000, 210_000] {
        assert_eq!(p.bytes(1, at, 5000), first, "{at}");
    }
    assert_eq!(p.bytes(0, 400_000, 5000), second);
    let word = |p: &Pair, side, at| u64::from_ne_bytes(p.bytes(side, at, 8).try_into().unwrap());
    assert_eq!((word(p, 0, 600_000), word(p, 0, 600_008), word(p, 1, 500_000)), (0, 5, 9));
    assert_eq!(p.counter(0, C::CompleterRetryErr), 0);
    p.assert_quiet();
}

#[test]
fn every_operation_over_both_families() {
    for v6 in [false, true] {
        let mut p = Pair::new(&Setup { v6, ..Setup::default() });
        one_of_each(&mut p);
        assert!((0..2).all(|side| p.counter(side, C::RxIcrcEncapsulated) == 0));
        assert!((0..2).all(|side| p.counter(side, C::IcrcExact) > 0), "v6: {v6}");
    }
}

#[test]
fn a_driver_that_takes_one_packet_at_a_time_changes_nothing() {
    // The room that a packet did not fit into is that of any packet: each leaves alone, none twice.
    let mut p = Pair::new(&Setup::default());
    p.room = 1024 + 60;
    one_of_each(&mut p);
    let sent = |p: &Pair| p.log.iter().map(|f| (f.to, f.name, f.psn)).collect::<Vec<_>>();
    let mut wide = Pair::new(&Setup::default());
    one_of_each(&mut wide);
    assert_eq!(sent(&p), sent(&wide));
}
