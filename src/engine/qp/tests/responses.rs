//! What the requester does with each response: the table of cases, in order.

use super::script::{In, RQ, SQ, Script, ack, pkt};
use crate::engine::counters::Counter as C;
use crate::engine::qp::attr::QpState;
use crate::engine::status::WcStatus::{
    self, BadResp, RemAccess, RemInvReq, RemOp, Success, WrFlush,
};
use crate::engine::tests::pair::Setup;
use crate::queue::SendOp;
use crate::time::Duration;

const READ: u32 = SQ + 4;
const ATOMIC: u32 = SQ + 7;

/// WRITE at 0, WRITE at 1 to 3, READ at 4 and 5, WRITE at 6, FETCH_ADD at 7, SEND at 8; all were sent.
fn busy() -> Script {
    let mut s = Script::new();
    s.post(SendOp::Write, 1, 8);
    s.post(SendOp::Write, 2, 2500);
    s.post(SendOp::Read, 3, 1500);
    s.post(SendOp::Write, 4, 8);
    s.post(SendOp::FetchAdd, 5, 8);
    s.post(SendOp::Send, 6, 0);
    s.expect(&[
        "WRITE_ONLY 001000 A va=5000 rkey=77 len=8 +8",
        "WRITE_FIRST 001001 va=5000 rkey=77 len=2500 +1024",
        "WRITE_MIDDLE 001002 +1024",
        "WRITE_LAST 001003 A +452",
        "READ_REQUEST 001004 va=5000 rkey=77 len=1500",
        "WRITE_ONLY 001006 A va=5000 rkey=77 len=8 +8",
        "FETCH_ADD 001007 va=5000 rkey=77 0/0",
        "SEND_ONLY 001008 A",
    ]);
    s
}

/// Requests from `first` on have left again, and no others before them.
#[track_caller]
fn went_back_to(s: &mut Script, first: &str) {
    let sent = s.sent();
    assert_eq!(sent[0].line, first);
    assert_eq!(sent.last().unwrap().line, "SEND_ONLY 001008 A");
}

const READ_AGAIN: &str = "READ_REQUEST 001004 va=5000 rkey=77 len=1500";

fn first() -> In {
    pkt("READ_RESP_FIRST", READ).syndrome(0x1f).len(1024)
}

fn last() -> In {
    pkt("READ_RESP_LAST", READ + 1).syndrome(0x1f).len(476)
}

#[test]
fn everything_answered_in_order() {
    let mut s = busy();
    s.recv(ack(SQ, 0x1f));
    assert_eq!(s.results(), [(1, Success)]);
    s.recv(ack(SQ + 2, 0x1f));
    assert_eq!(s.results(), [], "in the middle of a message");
    s.recv(first());
    assert_eq!(s.results(), [(2, Success)], "a READ response acknowledges what is before it");
    s.recv(last());
    assert_eq!(s.results(), [(3, Success)]);
    s.recv(pkt("ATOMIC_ACK", ATOMIC).syndrome(0x1f).orig(0x1122));
    assert_eq!(s.results(), [(4, Success), (5, Success)]);
    assert_eq!(s.bytes(0, 8), 0x1122u64.to_ne_bytes());
    s.recv(ack(SQ + 8, 0x1f));
    assert_eq!(s.results(), [(6, Success)]);
    s.silent();
    assert_eq!((s.engine.poll_timeout(), s.counter(C::RdmaSends)), (None, 1));
    assert_eq!(s.engine.in_flight(), (0, 0));
}

#[test]
fn what_is_acknowledged_already_is_a_ghost() {
    let mut s = busy();
    s.recv(ack(SQ + 2, 0x1f));
    s.results();
    let deadline = s.engine.poll_timeout();
    s.wait_us(100);
    for (i, ghost) in [
        ack(SQ, 0x1f),
        ack(SQ + 2, 0x1f),
        ack(SQ + 2, 0x60),
        ack(SQ + 1, 0x21),
        ack(SQ + 2, 0x62),
        ack(SQ + 2, 0x5f),
        pkt("READ_RESP_ONLY", SQ + 1).syndrome(0x1f),
        pkt("ATOMIC_ACK", SQ).syndrome(0x1f),
        ack(SQ - 4000, 0x61),
    ]
    .into_iter()
    .enumerate()
    {
        s.recv(ghost);
        s.silent();
        assert_eq!(s.counter(C::DropGhostResponse), i as u64 + 1);
    }
    assert_eq!((s.results(), s.state()), (vec![], QpState::Rts));
    assert_eq!(s.engine.poll_timeout(), deadline, "no effect on the timer");
}

#[test]
fn what_was_never_sent_cannot_be_answered() {
    let mut s = busy();
    for (i, psn) in [SQ + 9, SQ + 10, SQ + 5000].into_iter().enumerate() {
        for packet in [ack(psn, 0x1f), ack(psn, 0x62), pkt("READ_RESP_ONLY", psn).syndrome(0x1f)] {
            s.recv(packet);
        }
        assert_eq!(s.counter(C::DropUnsentResponse), 3 * (i as u64 + 1));
    }
    s.silent();
    assert_eq!((s.results(), s.state()), (vec![], QpState::Rts));
}

#[test]
fn one_ack_for_many() {
    let mut s = busy();
    s.recv(ack(SQ + 3, 0x1f));
    assert_eq!(s.results(), [(1, Success), (2, Success)]);
    // With credits.
    let mut s = busy();
    s.recv(ack(SQ + 3, 0x05));
    assert_eq!(s.results(), [(1, Success), (2, Success)]);
    s.silent();
}

#[test]
fn an_atomic_is_answered_over_what_is_acknowledged_by_it() {
    let mut s = Script::new();
    s.post(SendOp::Write, 1, 8);
    s.post(SendOp::CompareSwap, 2, 8);
    s.recv(pkt("ATOMIC_ACK", SQ + 1).syndrome(0x1f).orig(3));
    assert_eq!(s.results(), [(1, Success), (2, Success)]);
}

#[test]
fn an_rnr_nak_acknowledges_what_is_before_it_and_waits() {
    let mut s = busy();
    s.recv(ack(SQ + 1, 0x21));
    assert_eq!(s.results(), [(1, Success)]);
    s.silent();
    // Code 1 is 10 us; the wheel turns in steps of a microsecond and never early.
    s.wait_us(9);
    s.silent();
    s.wait_us(3);
    went_back_to(&mut s, "WRITE_FIRST 001001 va=5000 rkey=77 len=2500 +1024");
    assert_eq!(s.counter(C::RcvdRnrErr), 1);
    assert_eq!(s.counter(C::RnrWaitNs), 10_000);

    // In the middle of a message: the rest of it.
    let mut s = busy();
    s.recv(ack(SQ + 3, 0x21));
    s.wait_us(12);
    went_back_to(&mut s, "WRITE_LAST 001003 A +452");
}

#[test]
fn a_sequence_nak_acknowledges_what_is_before_it_and_goes_back() {
    let mut s = busy();
    s.recv(ack(SQ, 0x60));
    assert_eq!(s.results(), []);
    went_back_to(&mut s, "WRITE_ONLY 001000 A va=5000 rkey=77 len=8 +8");
    s.recv(ack(SQ + 2, 0x60));
    assert_eq!(s.results(), [(1, Success)]);
    went_back_to(&mut s, "WRITE_MIDDLE 001002 +1024");
    s.recv(ack(READ, 0x60));
    assert_eq!(s.results(), [(2, Success)]);
    went_back_to(&mut s, READ_AGAIN);
    assert_eq!((s.counter(C::RcvdSeqErr), s.counter(C::CompleterRetryErr)), (3, 3));
    assert_eq!(s.counter(C::LocalAckTimeoutErr), 0);
}

#[test]
fn a_refusal_fails_its_request_and_flushes_the_rest() {
    for (syndrome, status) in
        [(0x61, RemInvReq), (0x62, RemAccess), (0x63, RemOp), (0x64, WcStatus::RemInvRd)]
    {
        // At the first, a middle and the last packet of the second request.
        for psn in 1..=3 {
            let mut s = busy();
            s.post_recv(9, 0, 64);
            s.recv(ack(SQ + psn, syndrome));
            let flushed = [3, 4, 5, 6, 9].map(|id| (id, WrFlush));
            assert_eq!(s.results()[..], [&[(1, Success), (2, status)], &flushed[..]].concat());
            assert_eq!(s.state(), QpState::Err);
            s.silent();
            assert_eq!(s.engine.poll_timeout(), None);
            assert_eq!(s.engine.in_flight(), (0, 0));
        }
        let counted = |s: &Script| {
            (s.counter(C::ReqRemoteInvalidRequest), s.counter(C::ReqRemoteAccessErrors))
        };
        let mut s = busy();
        s.recv(ack(SQ, syndrome));
        let expected = (u64::from(syndrome == 0x61), u64::from(syndrome == 0x62));
        assert_eq!(counted(&s), expected);
    }
}

#[test]
fn a_refusal_in_the_middle_of_a_read() {
    // Of the packet that is due; of a later one of the READ; of its first, though that was answered.
    for psn in [READ + 1, READ] {
        let mut s = busy();
        s.recv(ack(SQ + 3, 0x1f));
        s.recv(first());
        assert_eq!(s.results(), [(1, Success), (2, Success)]);
        s.recv(ack(psn, 0x62));
        assert_eq!(s.results()[..2], [(3, RemAccess), (4, WrFlush)], "{psn:x}");
    }
    let mut s = busy();
    s.recv(ack(SQ + 3, 0x1f));
    s.recv(ack(READ + 1, 0x63));
    assert_eq!(s.results()[2..4], [(3, RemOp), (4, WrFlush)]);
}

#[test]
fn nothing_jumps_over_an_unanswered_read() {
    let beyond: [In; 8] = [
        ack(SQ + 6, 0x1f),
        ack(SQ + 8, 0x1f),
        ack(SQ + 6, 0x60),
        ack(SQ + 8, 0x21),
        ack(SQ + 6, 0x62),
        pkt("ATOMIC_ACK", ATOMIC).syndrome(0x1f),
        last(),
        // An ACK for the READ itself is no answer to it.
        ack(READ, 0x1f),
    ];
    for packet in beyond {
        let mut s = busy();
        s.recv(packet.clone());
        assert_eq!(s.results(), [(1, Success), (2, Success)], "{packet:?}");
        went_back_to(&mut s, READ_AGAIN);
        assert_eq!(s.counter(C::ImpliedNakSeqErr), 1, "{packet:?}");
        assert_eq!((s.counter(C::RcvdSeqErr), s.counter(C::RcvdRnrErr)), (0, 0));
        assert_eq!(s.state(), QpState::Rts);
    }
}

#[test]
fn nothing_jumps_over_an_unanswered_atomic() {
    let mut s = busy();
    s.recv(first());
    s.recv(last());
    s.recv(ack(SQ + 8, 0x1f));
    assert_eq!(s.results().len(), 4);
    went_back_to(&mut s, "FETCH_ADD 001007 va=5000 rkey=77 0/0");
    assert_eq!(s.counter(C::ImpliedNakSeqErr), 1);
}

#[test]
fn one_loss_starts_one_retry() {
    // The answer to the READ is lost; everything that comes behind it says so.
    let mut s = busy();
    s.recv_all([
        ack(SQ + 6, 0x1f),
        pkt("ATOMIC_ACK", ATOMIC).syndrome(0x1f),
        ack(SQ + 8, 0x1f),
        ack(SQ + 6, 0x60),
        last(),
    ]);
    went_back_to(&mut s, READ_AGAIN);
    assert_eq!((s.counter(C::CompleterRetryErr), s.counter(C::ImpliedNakSeqErr)), (1, 1));
    assert_eq!(s.counter(C::DropStaleResponse), 4);
    // Some of it is acknowledged by what says so: that changes nothing.
    let mut s = busy();
    s.recv(ack(SQ + 6, 0x1f));
    s.sent();
    s.recv(ack(SQ + 8, 0x1f));
    s.silent();
    assert_eq!(s.counter(C::CompleterRetryErr), 1);
    // After progress, a loss is a new one.
    s.recv(first());
    s.recv(ack(SQ + 8, 0x1f));
    went_back_to(&mut s, "READ_REQUEST 001005 va=5400 rkey=77 len=476");
    assert_eq!(s.counter(C::CompleterRetryErr), 2);
}

#[test]
fn a_repeated_sequence_nak_is_old_news() {
    let mut s = busy();
    s.recv(ack(SQ + 1, 0x60));
    went_back_to(&mut s, "WRITE_FIRST 001001 va=5000 rkey=77 len=2500 +1024");
    s.recv(ack(SQ + 1, 0x60));
    s.silent();
    assert_eq!((s.counter(C::RcvdSeqErr), s.counter(C::DropStaleResponse)), (1, 1));
    // One that brings progress is news.
    s.recv(ack(SQ + 2, 0x60));
    went_back_to(&mut s, "WRITE_MIDDLE 001002 +1024");
    assert_eq!(s.counter(C::RcvdSeqErr), 2);
}

#[test]
fn an_answer_of_the_wrong_kind_is_fatal() {
    let wrong: [(u32, In); 9] = [
        (1, pkt("READ_RESP_ONLY", SQ).syndrome(0x1f).len(8)),
        (1, pkt("READ_RESP_MIDDLE", SQ).len(1024)),
        (1, pkt("ATOMIC_ACK", SQ).syndrome(0x1f)),
        (2, pkt("READ_RESP_FIRST", SQ + 2).syndrome(0x1f).len(1024)),
        (3, pkt("ATOMIC_ACK", READ).syndrome(0x1f)),
        (3, pkt("READ_RESP_FIRST", READ).syndrome(0x60).len(1024)),
        (3, pkt("READ_RESP_FIRST", READ).syndrome(0x22).len(1024)),
        (3, pkt("READ_RESP_ONLY", READ).syndrome(0x5f).len(8)),
        (3, pkt("READ_RESP_FIRST", READ).syndrome(0x62).len(1024)),
    ];
    for (id, packet) in wrong {
        let mut s = busy();
        s.recv(packet.clone());
        let done = (1..u64::from(id)).map(|id| (id, Success));
        let flushed = (u64::from(id) + 1..=6).map(|id| (id, WrFlush));
        let expected: Vec<_> = done.chain([(u64::from(id), BadResp)]).chain(flushed).collect();
        assert_eq!(s.results(), expected, "{packet:?}");
        assert_eq!(s.state(), QpState::Err);
        s.silent();
    }
    // An atomic: by a READ response, or refused by other than an ACKNOWLEDGE.
    for packet in [
        pkt("READ_RESP_ONLY", ATOMIC).syndrome(0x1f).len(8),
        pkt("ATOMIC_ACK", ATOMIC).syndrome(0x61),
        pkt("ATOMIC_ACK", ATOMIC).syndrome(0x9f),
    ] {
        let mut s = busy();
        s.recv_all([first(), last(), packet]);
        assert_eq!(s.results()[4..], [(5, BadResp), (6, WrFlush)]);
    }
}

#[test]
fn reserved_syndromes_are_dropped() {
    let mut s = busy();
    let reserved: Vec<u8> = (0..=255u8)
        .filter(|&b| b & 0x80 != 0 || b & 0x60 == 0x40 || b & 0x60 == 0x60 && b & 0x1f > 4)
        .collect();
    for (i, &syndrome) in reserved.iter().enumerate() {
        s.recv(ack(SQ + 3, syndrome));
        assert_eq!(s.counter(C::DropResponse), i as u64 + 1, "{syndrome:02x}");
    }
    s.silent();
    assert_eq!((s.results(), s.state(), reserved.len()), (vec![], QpState::Rts, 187));
}

#[test]
fn acks_out_of_order() {
    let mut s = busy();
    s.recv_all([ack(SQ + 3, 0x1f), ack(SQ, 0x1f), ack(SQ + 1, 0x1f)]);
    assert_eq!(s.results(), [(1, Success), (2, Success)]);
    assert_eq!(s.counter(C::DropGhostResponse), 2);
}

#[test]
fn progress_restarts_the_timer_and_reloads_the_retries() {
    let mut s = Script::with(&Setup { timeout: 8, retry_cnt: 1, ..Setup::default() });
    let t = Duration::from_nanos(4096 << 8);
    s.post(SendOp::Write, 1, 3000);
    s.sent();
    for psn in SQ..SQ + 2 {
        // One retry, which is all there is; then progress.
        s.wait(t - Duration::from_micros(1));
        s.silent();
        s.wait_us(3);
        assert!(!s.sent().is_empty());
        s.recv(ack(psn, 0x1f));
    }
    assert_eq!((s.counter(C::LocalAckTimeoutErr), s.state()), (2, QpState::Rts));
    s.wait(t + t + Duration::from_micros(5));
    assert_eq!(s.results(), [(1, WcStatus::RetryExc)]);
}

#[test]
fn a_silent_peer_costs_a_timer_and_not_more() {
    let mut s = Script::with(&Setup { timeout: 0, ..Setup::default() });
    s.post(SendOp::Write, 1, 8);
    assert_eq!(s.engine.poll_timeout(), None, "timeout 0 is for ever");
    s.wait(Duration::from_secs(100_000));
    assert_eq!(s.sent().len(), 1);
    s.recv(pkt("WRITE_ONLY", RQ));
    assert_eq!(s.engine.poll_timeout(), None);
    // With a timeout: woken for each retry, and not in between.
    let mut s = Script::with(&Setup { timeout: 14, retry_cnt: 7, ..Setup::default() });
    s.post(SendOp::Write, 1, 8);
    let mut woken = 0;
    while let Some(at) = s.engine.poll_timeout() {
        woken += 1;
        assert!(woken <= 2 * 8, "woken again and again for nothing");
        s.wait(at.saturating_since(s.now).max(Duration::from_nanos(1)));
    }
    assert_eq!((s.sent().len(), s.results()), (8, vec![(1, WcStatus::RetryExc)]));
}

#[test]
fn nothing_is_sent_once_a_refusal_has_come() {
    let mut s = Script::with(&Setup { rd_atomic: 1, ..Setup::default() });
    s.post(SendOp::Read, 1, 8);
    // It waits for the READ, and what is behind it with it.
    s.post(SendOp::FetchAdd, 2, 8);
    s.post(SendOp::Send, 3, 0);
    assert_eq!(s.sent().len(), 1);
    s.recv(ack(SQ, 0x62));
    s.silent();
    assert_eq!(s.results(), [(1, RemAccess), (2, WrFlush), (3, WrFlush)]);
}
