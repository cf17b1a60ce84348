//! Marked packets and what they cause: notifications on one side, pace on the other.

use super::script::{In, RQ, SQ, Script, ack, pkt};
use crate::engine::cc::{Dcqcn, DcqcnConfig, Fixed};
use crate::engine::counters::Counter as C;
use crate::engine::qp::attr::{QpAttr, QpState, QpType};
use crate::engine::tests::pair::Setup;
use crate::queue::SendOp;
use crate::time::Duration;

/// How many notifications left, and that they are what they must be.
#[track_caller]
fn notifications(s: &mut Script) -> usize {
    let sent = s.sent();
    let cnps: Vec<_> = sent.iter().filter(|out| out.line.starts_with("CNP")).collect();
    // The form is checked for each packet that leaves; the class of its own is DSCP 48, Not-ECT.
    assert!(cnps.iter().all(|out| out.line == "CNP 000000" && out.class == 0xc0));
    cnps.len()
}

#[test]
fn the_first_mark_is_reported_at_once_and_before_all_else() {
    let mut s = Script::new();
    s.post_recv(1, 0, 64);
    s.recv_marked(pkt("SEND_ONLY", RQ).len(64).ask());
    s.expect(&["CNP 000000", "ACK 002000 syn=1f msn=1"]);
    assert_eq!((s.counter(C::NpEcnMarkedRocePackets), s.counter(C::NpCnpSent)), (1, 1));
    // The PSNs are where they were.
    s.post(SendOp::Write, 7, 0);
    assert_eq!(s.sent()[0].line.split(' ').nth(1), Some("001000"));
}

#[test]
fn one_notification_in_an_interval() {
    let mut s = Script::new();
    let write = |n| pkt("WRITE_ONLY", RQ + n);
    let (va, rkey) = (s.va(0), s.rkey());
    let mut at = Vec::new();
    // A mark each 20 microseconds.
    for n in 0..10 {
        s.recv_marked(write(n).reth(va, rkey, 0));
        if notifications(&mut s) > 0 {
            at.push(n * 20);
        }
        s.wait_us(20);
    }
    assert_eq!(at, [0, 60, 120, 180], "50 microseconds are between two");
    assert_eq!((s.counter(C::NpEcnMarkedRocePackets), s.counter(C::NpCnpSent)), (10, 4));
}

#[test]
fn a_mark_tells_of_the_path_whatever_becomes_of_the_packet() {
    let setup = Setup { config: |c| c.cnp.interval = Some(Duration::ZERO), ..Setup::default() };
    let mut s = Script::with(&setup);
    let (va, rkey) = (s.va(0), s.rkey());
    let write = |psn| pkt("WRITE_ONLY", psn).reth(va, rkey, 0);
    for (psn, what) in [(RQ, "expected"), (RQ, "duplicate"), (RQ + 5, "ahead of a gap")] {
        s.recv_marked(write(psn));
        assert_eq!(notifications(&mut s), 1, "{what}");
    }
}

#[test]
fn read_responses_are_reported_and_acks_and_notifications_are_not() {
    let mut s = Script::new();
    s.post(SendOp::Write, 1, 64);
    s.post(SendOp::Read, 2, 64);
    s.sent();
    s.recv_marked(ack(SQ, 0x1f));
    s.recv_marked(In::cnp());
    assert_eq!(notifications(&mut s), 0);
    s.recv_marked(pkt("READ_RESP_ONLY", SQ + 1).syndrome(0x1f).len(64));
    assert_eq!(notifications(&mut s), 1);
    assert_eq!((s.counter(C::NpEcnMarkedRocePackets), s.counter(C::RpCnpHandled)), (3, 1));
}

#[test]
fn unreliable_connections_notify_and_datagrams_do_not() {
    let mut s = Script::with(&Setup { kind: QpType::Uc, ..Setup::default() });
    s.recv_marked(pkt("UC_SEND_ONLY", RQ).len(8));
    assert_eq!(notifications(&mut s), 1);
    let mut s = Script::with(&Setup { kind: QpType::Ud, ..Setup::default() });
    s.recv_marked(pkt("UD_SEND_ONLY", RQ).deth(crate::engine::tests::pair::QKEY, 5).len(8));
    assert_eq!((notifications(&mut s), s.counter(C::NpEcnMarkedRocePackets)), (0, 1));
}

#[test]
fn a_device_may_be_told_to_notify_nobody() {
    let mut s = Script::with(&Setup { config: |c| c.cnp.interval = None, ..Setup::default() });
    s.recv_marked(pkt("WRITE_ONLY", RQ).reth(s.va(0), s.rkey(), 0));
    assert_eq!((notifications(&mut s), s.counter(C::NpEcnMarkedRocePackets)), (0, 1));
}

#[test]
fn a_queue_pair_in_error_notifies_nobody() {
    let mut s = Script::new();
    s.modify(&QpAttr::to(QpState::Err));
    s.recv_marked(pkt("WRITE_ONLY", RQ).reth(s.va(0), s.rkey(), 0));
    s.silent();
}

#[test]
fn who_listens_to_marks_may_be_marked() {
    let with = |cc| {
        let mut s = Script::with(&Setup { cc, ..Setup::default() });
        s.post(SendOp::Write, 1, 64);
        s.recv_marked(pkt("WRITE_ONLY", RQ).reth(s.va(0), s.rkey(), 0));
        s.sent()
            .iter()
            .map(|out| (out.line.split(' ').next().unwrap().to_owned(), out.class))
            .collect()
    };
    let classes: Vec<(String, u8)> = with(Some(|| {
        let config = DcqcnConfig::preset("paper", 40_000_000_000).unwrap();
        Box::new(Dcqcn::new(config).unwrap())
    }));
    assert_eq!(classes, [("WRITE_ONLY".to_owned(), 2), ("CNP".to_owned(), 0xc0)], "ECT(0)");
    let classes: Vec<(String, u8)> = with(Some(|| Box::new(Fixed::unlimited())));
    assert_eq!(classes[0].1, 0);
}

#[test]
fn a_rate_limit_is_kept_until_it_is_lifted() {
    let mut s = Script::new();
    let mut took = |limit: Option<u32>| {
        if let Some(limit) = limit {
            s.modify(&QpAttr::default().rate_limit(limit));
        }
        s.post(SendOp::Write, 1, 20 << 10);
        for _ in 0..400 {
            s.wait_us(10);
        }
        let sent = s.sent();
        let (first, last) = (sent.first().unwrap(), sent.last().unwrap());
        let psn = u32::from_str_radix(last.line.split(' ').nth(1).unwrap(), 16).unwrap();
        s.recv(ack(psn, 0x1f));
        assert_eq!(sent.len(), 20);
        (last.at - first.at).as_micros()
    };
    assert_eq!(took(None), 0);
    // 19 packets of 1106 bytes on the wire and the RETH of the first, at 100 Mbit/s, but for 10 to 20 microseconds.
    let limited = took(Some(100_000));
    assert!((1660..=1680).contains(&limited), "{limited}");
    assert_eq!(took(Some(0)), 0);
    s.modify(&QpAttr::default().rate_limit(7));
    assert_eq!(s.engine.query_qp(s.qp).unwrap().rate_limit, Some(7));
    assert_eq!(s.engine.congestion(s.now, s.qp).unwrap().rate, Some(7_000));
    s.modify(&QpAttr::to(QpState::Reset));
    assert_eq!(s.engine.query_qp(s.qp).unwrap().rate_limit, Some(0));
}

#[test]
fn notifications_slow_requests_and_read_responses() {
    let cc = || -> Box<dyn crate::engine::cc::CongestionControl> {
        let config = DcqcnConfig::preset("paper", 1_000_000_000).unwrap();
        Box::new(Dcqcn::new(config).unwrap())
    };
    let setup = Setup { cc: Some(cc), ..Setup::default() };
    let bytes = 32 << 10;
    // How long 32 packets take: as requests, and as the answer to a READ.
    let write = |s: &mut Script| s.post(SendOp::Write, 1, bytes);
    let read = |s: &mut Script| {
        let request = pkt("READ_REQUEST", RQ).reth(s.va(0), s.rkey(), bytes);
        s.recv(request);
    };
    for (what, start) in [("WRITE", &write as &dyn Fn(&mut Script)), ("READ_RESP", &read)] {
        let took = |notified: usize| {
            let mut s = Script::with(&setup);
            for _ in 0..notified {
                s.recv(In::cnp());
            }
            s.sent();
            start(&mut s);
            for _ in 0..200 {
                s.wait_us(10);
            }
            let sent = s.sent();
            let packets: Vec<_> = sent.iter().filter(|out| out.line.starts_with(what)).collect();
            assert_eq!(packets.len(), 32, "{what} after {notified}");
            (packets[31].at - packets[0].at).as_micros()
        };
        // 1106 bytes on the wire are 8.8 microseconds at 1 Gbit/s; 20 of them may leave ahead of their pace.
        let (free, halved) = (took(0), took(1));
        assert!((230..=270).contains(&free), "{what}: {free}");
        // Half the rate at first; each 55 microseconds bring half of the loss back.
        assert!((300..=420).contains(&halved), "{what}: {halved}");
    }
}
