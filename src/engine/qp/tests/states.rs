//! What a state does with each kind of packet, and with what is posted.

use super::script::{In, RQ, SQ, Script, ack, pkt};
use crate::engine::counters::Counter as C;
use crate::engine::event::AsyncEvent;
use crate::engine::qp::attr::{QpAttr, QpState};
use crate::engine::status::WcStatus::{Success, WrFlush};
use crate::engine::tests::pair::Setup;
use crate::queue::SendOp;

/// A script in `state`. In SQD a request waits for its ACK.
fn in_state(state: QpState) -> Script {
    let setup = Setup::default();
    let mut s = Script::idle(&setup);
    if state == QpState::Reset {
        return s;
    }
    s.init(&setup);
    s.post_recv(1, 0, 64);
    if state == QpState::Init {
        return s;
    }
    s.rtr(RQ, &setup);
    if state == QpState::Rtr {
        return s;
    }
    s.rts(SQ, &setup);
    s.post(SendOp::Read, 7, 8);
    s.sent();
    match state {
        QpState::Sqd => s.modify(&QpAttr::to(QpState::Sqd)),
        QpState::Err => s.modify(&QpAttr::to(QpState::Err)),
        _ => {}
    }
    s
}

/// Every kind of request, and the kind of packet that answers it.
fn requests(s: &Script) -> [(In, &'static str); 6] {
    let (va, rkey) = (s.va(0), s.rkey());
    [
        (pkt("SEND_ONLY", RQ).ask(), "ACK"),
        (pkt("WRITE_ONLY", RQ).reth(va, rkey, 4).len(4).ask(), "ACK"),
        (pkt("READ_REQUEST", RQ).reth(va, rkey, 4), "READ_RESP_ONLY"),
        (pkt("FETCH_ADD", RQ).atomic(va, rkey, 1, 0), "ATOMIC_ACK"),
        (pkt("CMP_SWAP", RQ).atomic(va, rkey, 1, 0), "ATOMIC_ACK"),
        (pkt("ATOMIC_WRITE", RQ).reth(va, rkey, 8).len(8), "READ_RESP_ONLY"),
    ]
}

/// Every kind of response; the first answers what [`in_state`] posted.
fn responses() -> [In; 6] {
    [
        pkt("READ_RESP_ONLY", SQ).syndrome(0x1f).len(8),
        pkt("ATOMIC_ACK", SQ).syndrome(0x1f),
        ack(SQ, 0x1f),
        ack(SQ, 0x60),
        ack(SQ, 0x21),
        ack(SQ, 0x62),
    ]
}

#[test]
fn requests_are_taken_from_rtr_on_and_not_in_err() {
    for state in QpState::ALL.into_iter().filter(|&s| s != QpState::Sqe) {
        for i in 0..6 {
            let mut s = in_state(state);
            let (packet, answer) = requests(&s)[i].clone();
            s.recv(packet);
            let lines: Vec<String> = s.sent().into_iter().map(|out| out.line).collect();
            if matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd) {
                assert_eq!(lines.len(), 1, "{state:?} {i} {lines:?}");
                assert!(lines[0].starts_with(answer), "{state:?} {lines:?}");
                assert_eq!(s.counter(C::DropState), 0);
            } else {
                assert_eq!(lines, [""; 0], "{state:?} {i}");
                assert_eq!(s.counter(C::DropState), 1, "{state:?}");
                assert_eq!(s.bytes(0, 64), [0; 64]);
            }
        }
    }
}

#[test]
fn responses_are_taken_in_rts_and_sqd() {
    for state in QpState::ALL.into_iter().filter(|&s| s != QpState::Sqe) {
        for (i, packet) in responses().into_iter().enumerate() {
            let mut s = in_state(state);
            let before = s.results();
            s.recv(packet);
            let dropped = s.counter(C::DropState);
            if matches!(state, QpState::Rts | QpState::Sqd) {
                assert_eq!(dropped, 0, "{state:?} {i}");
                if i == 0 {
                    assert_eq!(s.results(), [(7, Success)]);
                }
            } else {
                assert_eq!(dropped, 1, "{state:?} {i}");
                assert_eq!(s.results(), []);
                s.silent();
            }
            let flushed = vec![(7, WrFlush), (1, WrFlush)];
            assert_eq!(before, if state == QpState::Err { flushed } else { vec![] });
        }
    }
}

#[test]
fn a_notification_slows_only_who_sends() {
    for state in QpState::ALL.into_iter().filter(|&s| s != QpState::Sqe) {
        let mut s = in_state(state);
        let cnp = In::cnp();
        s.recv(cnp);
        s.silent();
        let counters = [C::RpCnpHandled, C::RpCnpIgnored, C::DropState].map(|c| s.counter(c));
        let expected = match state {
            QpState::Rts | QpState::Sqd => [1, 0, 0],
            QpState::Rtr => [0, 1, 0],
            _ => [0, 0, 1],
        };
        assert_eq!(counters, expected, "{state:?}");
    }
}

#[test]
fn communication_is_established_by_the_first_packet_in_rtr() {
    let mut s = in_state(QpState::Rtr);
    // A response is no sign of it; any request is, also one ahead of a gap.
    s.recv(ack(SQ, 0x1f));
    assert_eq!(s.events(), []);
    s.recv(pkt("SEND_ONLY", RQ + 1));
    s.expect(&["ACK 002000 syn=60 msn=0"]);
    assert_eq!(s.events(), [AsyncEvent::CommEst { qpn: s.qpn() }]);
    s.recv(pkt("SEND_ONLY", RQ).ask());
    s.recv(pkt("WRITE_ONLY", RQ + 1).ask());
    assert_eq!(s.events(), [], "once");
    s.expect(&["ACK 002000 syn=1f msn=1", "ACK 002001 syn=1f msn=2"]);
    assert_eq!(s.results(), [(1, Success)], "a receive completes in RTR");

    let mut s = in_state(QpState::Rts);
    s.recv(pkt("SEND_ONLY", RQ));
    assert_eq!(s.events(), [], "not in RTS");

    // A queue pair that was reset starts anew.
    let setup = Setup::default();
    let mut s = in_state(QpState::Rtr);
    s.recv(pkt("WRITE_ONLY", RQ));
    s.modify(&QpAttr::to(QpState::Reset));
    s.init(&setup);
    s.rtr(RQ, &setup);
    s.recv(pkt("WRITE_ONLY", RQ).ask());
    s.expect(&["ACK 002000 syn=1f msn=1"]);
    assert_eq!(s.events(), [AsyncEvent::CommEst { qpn: s.qpn() }; 2]);
}

#[test]
fn what_is_posted_in_rtr_leaves_in_rts() {
    let setup = Setup::default();
    let mut s = in_state(QpState::Rtr);
    // Verbs refuses it; the engine keeps it.
    s.post(SendOp::Write, 3, 8);
    s.silent();
    s.rts(SQ, &setup);
    s.expect(&["WRITE_ONLY 001000 A va=5000 rkey=77 len=8 +8"]);
}

#[test]
fn a_post_in_err_is_flushed_at_once_and_in_order() {
    let mut s = in_state(QpState::Err);
    s.results();
    for id in 10..13 {
        s.post(SendOp::Write, id, 8);
        s.post_recv(100 + id, 0, 8);
        assert_eq!(s.results(), [(id, WrFlush), (100 + id, WrFlush)]);
    }
    s.silent();
    assert_eq!((s.counter(C::ReqCqeFlushError), s.counter(C::RespCqeFlushError)), (4, 4));
}

#[test]
fn unknown_opcodes_other_services_and_other_queue_pairs() {
    let mut s = in_state(QpState::Rts);
    let path = s.path();
    let mut send = |qpn: u32, first: u8, change: fn(&mut Vec<u8>)| {
        let dest = crate::wire::num::Qpn::new(qpn);
        let mut bytes = pkt("SEND_ONLY", RQ).ask().bytes(dest, &path, 0);
        bytes[0] = first;
        change(&mut bytes);
        s.datagram(&path, 0, &bytes);
        s.pump();
        s.silent();
        let drops = [
            C::DropMalformed,
            C::DropVersion,
            C::DropUnknownOpcode,
            C::DropUnsupported,
            C::DropNoQp,
            C::RxIcrcEncapsulated,
            C::RcvdPkts,
        ];
        drops.map(|c| s.counter(c))
    };
    let qpn = send(0, 0x04, |_| {});
    assert_eq!(qpn, [0, 0, 0, 0, 1, 0, 0]);
    assert_eq!(send(0xff_ffff, 0x04, |_| {}), [0, 0, 0, 0, 2, 0, 0]);
    assert_eq!(send(1, 0x1e, |_| {}), [0, 0, 1, 0, 2, 0, 0]);
    assert_eq!(send(1, 0xff, |_| {}), [0, 0, 2, 0, 2, 0, 0]);
    // UC and UD are offered, RD and XRC are not.
    for (first, refused, nobody) in [(0x24, 0, 3), (0x44, 1, 3), (0x64, 1, 4), (0xa4, 2, 4)] {
        let longer = |bytes: &mut Vec<u8>| bytes.resize(64, 0);
        assert_eq!(send(1, first, longer), [0, 0, 2, refused, nobody, 0, 0]);
    }
    assert_eq!(send(1, 0x04, |b| b[1] |= 3), [0, 1, 2, 2, 4, 0, 0]);
    assert_eq!(send(1, 0x04, |b| b.truncate(15)), [1, 1, 2, 2, 4, 0, 0]);
    assert_eq!(send(1, 0x04, |b| b.clear()), [2, 1, 2, 2, 4, 0, 0]);
    // A pad that is not there; a header that is cut; a payload where none may be.
    assert_eq!(send(1, 0x04, |b| b[1] |= 0x10), [3, 1, 2, 2, 4, 0, 0]);
    assert_eq!(send(1, 0x0a, |_| {}), [4, 1, 2, 2, 4, 0, 0]);
    assert_eq!(send(1, 0x11, |b| b.resize(24, 0)), [5, 1, 2, 2, 4, 0, 0]);
}

#[test]
fn only_the_peer_is_heard_on_its_own_path_and_partition() {
    let mut s = in_state(QpState::Rts);
    let qpn = crate::wire::num::Qpn::new(s.qpn());
    let good = s.path();
    let other = |ip: [u8; 4]| std::net::IpAddr::from(ip);
    for path in [
        crate::net::Path { src: other([10, 0, 0, 9]), ..good },
        crate::net::Path { dst: other([10, 0, 0, 9]), ..good },
        crate::net::Path { src: good.dst, dst: good.src, ..good },
    ] {
        let bytes = pkt("SEND_ONLY", RQ).ask().bytes(qpn, &path, 0);
        s.datagram(&path, 0, &bytes);
    }
    s.pump();
    s.silent();
    assert_eq!((s.counter(C::DropAddress), s.counter(C::RcvdPkts)), (3, 0));

    for pkey in [0x7ffe, 0, 0x8000, 0xfffe] {
        s.recv(pkt("SEND_ONLY", RQ).ask().pkey(pkey));
    }
    s.silent();
    assert_eq!(s.counter(C::BadPkeyCntr), 4);

    // A wrong ICRC, whatever the packet says.
    let mut bytes = pkt("SEND_ONLY", RQ).len(8).ask().bytes(qpn, &good, 0);
    bytes[14] ^= 1;
    s.datagram(&good, 0, &bytes);
    s.pump();
    s.silent();
    assert_eq!((s.counter(C::RxIcrcEncapsulated), s.counter(C::RcvdPkts)), (1, 0));
    assert_eq!(s.results(), []);

    // What does not matter: source port, traffic class (but that its mark is reported), TTL; a limited member; MigReq,
    // FECN, BECN.
    let path = crate::net::Path { src_port: 0, traffic_class: 0xff, hop_limit: 1, ..good };
    let packet = pkt("SEND_ONLY", RQ).len(8).ask().pkey(0x7fff).flags();
    s.datagram(&path, 0, &packet.bytes(qpn, &path, 0));
    s.pump();
    s.expect(&["CNP 000000", "ACK 002000 syn=1f msn=1"]);
    assert_eq!(s.counter(C::NpEcnMarkedRocePackets), 1);
    assert_eq!(s.results(), [(1, Success)]);
}

#[test]
fn reserved_bits_are_ignored() {
    let mut s = in_state(QpState::Rts);
    let path = s.path();
    let dest = crate::wire::num::Qpn::new(s.qpn());
    let ip = crate::wire::icrc::IpFields::new(path.src, path.dst, 0, true, path.src_port).unwrap();
    // Beside FECN and BECN, which the ICRC does not cover, and beside AckReq.
    let mut bytes = pkt("SEND_ONLY", RQ).len(8).ask().bytes(dest, &path, 0);
    bytes[4] |= 0x3f;
    bytes[8] |= 0x7f;
    let end = bytes.len() - 4;
    let icrc = crate::wire::icrc::compute(&ip, &bytes[..end]);
    bytes[end..].copy_from_slice(&icrc.to_le_bytes());
    s.datagram(&path, 0, &bytes);
    s.pump();
    s.expect(&["ACK 002000 syn=1f msn=1"]);
    assert_eq!(s.results(), [(1, Success)]);
    assert_eq!(s.counter(C::NpEcnMarkedRocePackets), 0, "a reserved bit is no mark");
}
