//! Datagrams: where they go, what must be true of one that comes, and what is written in front of it.

use std::net::IpAddr;

use super::script::{In, PEER, RQ, Script, THEM, US, pkt};
use crate::engine::cause::Cause;
use crate::engine::counters::Counter;
use crate::engine::qp::attr::{AhAttr, QpAttr, QpState, QpType};
use crate::engine::qp::{QpFace, QpHandle};
use crate::engine::status::WcStatus;
use crate::engine::tests::pair::{QKEY, Setup, make_qp, pattern, ways_up};
use crate::engine::tests::trace::notes;
use crate::engine::trace::NicEvent;
use crate::mem::Sge;
use crate::net::{Path, ud_port};
use crate::queue::{CqeFlags, SendFlags, SendOp, SendWqe};
use crate::wire::grh::Grh;
use crate::wire::num::{Gid, Lkey, Qpn};

fn ud() -> Setup {
    Setup { kind: QpType::Ud, ..Setup::default() }
}

const GROUP: [u8; 4] = [239, 1, 2, 3];

fn to(ip: impl Into<IpAddr>) -> AhAttr {
    AhAttr { dgid: Gid::from(ip.into()), ..AhAttr::default() }
}

impl Script {
    fn ah(&mut self, attr: &AhAttr) -> u32 {
        self.engine.create_ah(self.pd, attr).unwrap()
    }

    /// A signaled datagram to [`PEER`].
    fn datagram_to(ah: u32, op: SendOp, wr_id: u64) -> SendWqe {
        SendWqe {
            wr_id,
            op,
            flags: SendFlags::SIGNALED,
            dest: ah,
            dest_qpn: PEER,
            dest_qkey: QKEY,
            ..SendWqe::default()
        }
    }

    /// A datagram of the peer to `group`.
    fn recv_at(&mut self, group: [u8; 4], from: [u8; 4], packet: &In) {
        let path = Path { src: from.into(), dst: group.into(), ..self.path() };
        let bytes = packet.bytes(Qpn::MULTICAST, &path, 7);
        self.datagram(&path, 7, &bytes);
        self.pump();
    }

    /// Another datagram queue pair that is ready, beside the one of the script.
    fn neighbour(&mut self) -> (QpHandle, std::sync::Arc<QpFace>) {
        let setup = ud();
        let (qp, face) = make_qp(&mut self.engine, self.pd, self.cq, &setup);
        for attr in ways_up(&setup, 0, Gid::default()) {
            self.engine.modify_qp(self.now, qp, &attr).unwrap();
        }
        (qp, face)
    }

    fn attach(&mut self, qp: QpHandle) -> Option<IpAddr> {
        self.engine.attach_mcast(qp, Gid::from(IpAddr::from(GROUP))).unwrap()
    }
}

fn send(n: u32) -> In {
    pkt("UD_SEND_ONLY", RQ + n).deth(QKEY, 0x123)
}

fn receive_on(s: &Script, face: &QpFace, wr_id: u64) {
    let mut rq = face.rq.lock();
    rq.stage(wr_id, [s.sge(0, 200)]).unwrap();
    rq.publish();
}

#[test]
fn datagrams_go_where_their_request_says() {
    let mut s = Script::with(&ud());
    let bytes = s.fill(0, 100);
    let here = s.ah(&to(THEM));
    let there = s.ah(&to([10, 0, 0, 77]));
    let sge = s.sge(0, 100);
    s.post_wqe(Script::datagram_to(here, SendOp::Send, 1), &[sge]);
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    let imm = Script::datagram_to(there, SendOp::SendImm, 2);
    s.post_wqe(
        SendWqe { flags, imm_or_inv: 0x0a0b_0c0d, dest_qpn: 0x99, dest_qkey: 5, ..imm },
        &[],
    );
    assert_eq!(s.out_payload(), bytes);
    let out = s.sent();
    let lines: Vec<&str> = out.iter().map(|o| o.line.as_str()).collect();
    assert_eq!(
        lines,
        ["UD_SEND_ONLY 001000 qkey=1ee7 +100", "UD_SEND_ONLY_IMM 001001 SE qkey=5 imm=0a0b0c0d",]
    );
    assert_eq!(out[0].to, (THEM.into(), PEER));
    assert_eq!(out[1].to, ([10, 0, 0, 77].into(), 0x99));
    assert_eq!([out[0].port, out[1].port], [ud_port(s.qpn()); 2]);
    let wc = s.completions();
    assert_eq!((wc.len(), wc[0].wr_id, wc[0].status, wc[0].opcode), (2, 1, 0, 0));
    assert_eq!((s.engine.poll_timeout(), s.engine.in_flight()), (None, (0, 0)));
}

#[test]
fn a_controlled_qkey_is_that_of_the_queue_pair() {
    let mut s = Script::with(&ud());
    let ah = s.ah(&to(THEM));
    let wqe = Script::datagram_to(ah, SendOp::Send, 1);
    s.post_wqe(SendWqe { dest_qkey: 1 << 31, ..wqe }, &[]);
    s.post_wqe(SendWqe { dest_qkey: u32::MAX, ..wqe }, &[]);
    s.post_wqe(SendWqe { dest_qkey: i32::MAX.cast_unsigned(), ..wqe }, &[]);
    s.modify(&QpAttr::default().qkey(0x8001_0000));
    s.post_wqe(SendWqe { dest_qkey: 1 << 31, ..wqe }, &[]);
    s.expect(&[
        "UD_SEND_ONLY 001000 qkey=1ee7",
        "UD_SEND_ONLY 001001 qkey=1ee7",
        "UD_SEND_ONLY 001002 qkey=7fffffff",
        "UD_SEND_ONLY 001003 qkey=80010000",
    ]);
}

/// Each local error stops the send queue; the receives go on, and RTS starts it again.
#[test]
fn errors_of_requests() {
    type Request = fn(&mut Script) -> (SendWqe, Vec<Sge>);
    let cases: [(&str, Request, WcStatus); 8] = [
        (
            "longer than the path MTU of the port",
            |s| {
                let ah = s.ah(&to(THEM));
                (Script::datagram_to(ah, SendOp::Send, 1), vec![s.sge(0, 4097)])
            },
            WcStatus::LocLen,
        ),
        ("no handle", |_| (Script::datagram_to(0, SendOp::Send, 1), vec![]), WcStatus::LocQpOp),
        (
            "a handle that is gone",
            |s| {
                let ah = s.ah(&to(THEM));
                s.engine.destroy_ah(ah).unwrap();
                (Script::datagram_to(ah, SendOp::Send, 1), vec![])
            },
            WcStatus::LocQpOp,
        ),
        (
            "a handle of another domain",
            |s| {
                let pd = s.engine.alloc_pd().unwrap();
                let ah = s.engine.create_ah(pd, &to(THEM)).unwrap();
                (Script::datagram_to(ah, SendOp::Send, 1), vec![])
            },
            WcStatus::LocQpOp,
        ),
        (
            "a wrong key",
            |s| {
                let ah = s.ah(&to(THEM));
                let sge = Sge { lkey: Lkey(3), ..s.sge(0, 8) };
                (Script::datagram_to(ah, SendOp::Send, 1), vec![sge])
            },
            WcStatus::LocProt,
        ),
        (
            "a WRITE",
            |s| (Script::datagram_to(s.ah(&to(THEM)), SendOp::Write, 1), vec![]),
            WcStatus::LocQpOp,
        ),
        (
            "a READ",
            |s| (Script::datagram_to(s.ah(&to(THEM)), SendOp::Read, 1), vec![]),
            WcStatus::LocQpOp,
        ),
        (
            "an invalidation",
            |s| (Script::datagram_to(s.ah(&to(THEM)), SendOp::LocalInv, 1), vec![]),
            WcStatus::LocQpOp,
        ),
    ];
    for (what, request, status) in cases {
        let mut s = Script::with(&ud());
        s.post_recv(10, 0, 100);
        let (wqe, sges) = request(&mut s);
        s.post_wqe(wqe, &sges);
        let good = s.ah(&to(THEM));
        s.post_wqe(Script::datagram_to(good, SendOp::Send, 2), &[]);
        assert_eq!(s.results(), [(1, status), (2, WcStatus::WrFlush)], "{what}");
        assert_eq!(s.state(), QpState::Sqe);
        s.silent();
        s.recv(send(0));
        assert_eq!(s.results(), [(10, WcStatus::Success)], "{what}");
        s.modify(&QpAttr::to(QpState::Rts));
        s.post_wqe(Script::datagram_to(good, SendOp::Send, 3), &[s.sge(0, 4096)]);
        assert_eq!(s.results(), [(3, WcStatus::Success)], "{what}");
        s.expect(&["UD_SEND_ONLY 001000 qkey=1ee7 +4096"]);
    }
}

#[test]
fn what_arrives_has_the_header_in_front_of_it() {
    let mut s = Script::with(&ud());
    s.region.write(0, &[0xee; 256]);
    s.post_recv(1, 0, 200);
    let packet = send(0).data(&[5; 33]).imm(0);
    s.recv(packet);
    let wc = s.completions();
    assert_eq!((wc.len(), wc[0].wr_id, wc[0].status, wc[0].opcode), (1, 1, 0, 128));
    assert_eq!((wc[0].byte_len, wc[0].src_qpn, wc[0].pkey_index), (73, 0x123, 0));
    assert_eq!(wc[0].flags, CqeFlags::GRH);
    let header: [u8; 40] = s.bytes(0, 40).try_into().unwrap();
    assert_eq!(header[..20], [0; 20]);
    let grh = Grh::parse(&header).expect("with a correct checksum");
    let path = s.path();
    assert_eq!((grh.src, grh.dst), (path.src, path.dst));
    assert_eq!((grh.hop_limit, grh.traffic_class), (path.hop_limit, path.traffic_class));
    // 20 IP, 8 UDP, 12 BTH, 8 DETH, 33 payload, 3 pad, 4 ICRC.
    assert_eq!(header[22..24], 88u16.to_be_bytes());
    assert_eq!(s.bytes(40, 33), [5; 33]);
    assert_eq!(s.bytes(73, 8), [0xee; 8]);

    s.post_recv(2, 0, 40);
    s.recv(pkt("UD_SEND_ONLY_IMM", 0).deth(QKEY, 0xff_fffe).imm(0x0102_0304).se());
    let wc = s.completions();
    assert_eq!((wc[0].wr_id, wc[0].byte_len, wc[0].src_qpn), (2, 40, 0xff_fffe));
    assert_eq!((wc[0].flags, wc[0].imm_or_inv), (CqeFlags::GRH | CqeFlags::WITH_IMM, 0x0102_0304));
    s.silent();
}

#[test]
fn the_header_may_lie_in_a_buffer_of_its_own() {
    let mut s = Script::with(&ud());
    let (grh, rest) = (s.sge(1000, 40), s.sge(3, 50));
    s.post_recv_sge(1, &[grh, rest]);
    s.recv(send(0).len(50));
    assert_eq!(s.results(), [(1, WcStatus::Success)]);
    assert_eq!(s.bytes(3, 50), pattern(50, 0));
    assert_eq!(s.bytes(1020, 1), [0x45]);
}

/// Anybody may send, with any PSN.
#[test]
fn senders_need_not_be_known_and_psns_mean_nothing() {
    let mut s = Script::with(&ud());
    for (id, psn) in [0, 0xff_ffff, 0, 7].into_iter().enumerate() {
        s.post_recv(id as u64, 0, 100);
        let last = u8::try_from(id).unwrap() + 100;
        let path = Path { src: [10, 9, 8, last].into(), ..s.path() };
        let bytes = pkt("UD_SEND_ONLY", psn).deth(QKEY, 9).bytes(Qpn::new(s.qpn()), &path, 1);
        s.datagram(&path, 1, &bytes);
        s.pump();
        assert_eq!(s.results(), [(id as u64, WcStatus::Success)]);
        assert_eq!(s.bytes(35, 1), [last], "the sender's address");
    }
    assert_eq!((s.events(), s.counter(Counter::OutOfSequence)), (vec![], 0));
}

#[test]
fn datagrams_that_are_dropped_and_why() {
    let mut s = Script::with(&ud());
    let count = |s: &Script| {
        [
            Counter::QkeyViolCntr,
            Counter::OutOfBuffer,
            Counter::RespLocalLengthError,
            Counter::DropRefused,
            Counter::BadPkeyCntr,
            Counter::DropTransport,
        ]
        .map(|c| s.counter(c))
    };
    s.recv(send(0));
    assert_eq!(count(&s), [0, 1, 0, 0, 0, 0], "no receive");
    s.post_recv(1, 0, 49);
    s.recv(pkt("UD_SEND_ONLY", 0).deth(QKEY ^ 1, 9));
    assert_eq!(count(&s), [1, 1, 0, 0, 0, 0], "another Q_Key");
    s.recv(send(0).len(10));
    assert_eq!(count(&s), [1, 1, 1, 0, 0, 0], "one byte too long for the receive");
    s.recv(send(0).len(8).pad(1));
    assert_eq!(count(&s), [1, 1, 1, 1, 0, 0], "a pad that does not belong there");
    s.recv(send(0).len(8).pkey(0x1234));
    assert_eq!(count(&s), [1, 1, 1, 1, 1, 0], "another partition");
    s.recv(pkt("SEND_ONLY", RQ).len(8));
    s.recv(pkt("UC_SEND_ONLY", RQ).len(8));
    assert_eq!(count(&s), [1, 1, 1, 1, 1, 2], "another service");
    let path = Path { dst: GROUP.into(), ..s.path() };
    let bytes = send(0).bytes(Qpn::new(s.qpn()), &path, 1);
    s.datagram(&path, 1, &bytes);
    assert_eq!(s.counter(Counter::DropAddress), 1, "to a group, but for one queue pair");
    // After all that the receive is there, as it was.
    s.recv(send(0).len(9));
    assert_eq!(s.results(), [(1, WcStatus::Success)]);
    assert_eq!(s.state(), QpState::Rts);
    s.silent();
}

#[test]
fn a_receive_with_wrong_buffers_is_an_error_of_this_side() {
    let mut s = Script::with(&ud());
    let sge = Sge { lkey: Lkey(3), ..s.sge(0, 64) };
    s.post_recv_sge(1, &[sge]);
    s.recv(send(0));
    assert_eq!(s.results(), [(1, WcStatus::LocProt)]);
    assert_eq!(s.state(), QpState::Err);
}

#[test]
fn only_from_rtr_on() {
    let setup = ud();
    let mut s = Script::idle(&setup);
    s.init(&setup);
    s.post_recv(1, 0, 64);
    s.recv(send(0));
    assert_eq!(s.counter(Counter::DropState), 1);
    s.rtr(0, &setup);
    s.recv(send(0));
    assert_eq!(s.results(), [(1, WcStatus::Success)]);
    assert_eq!(s.events(), [], "nobody is established: anybody may send");
}

#[test]
fn handles_are_checked_when_they_are_made_and_counted_by_their_domain() {
    let mut s = Script::with(&ud());
    let refused = |s: &mut Script, attr: &AhAttr| s.engine.create_ah(s.pd, attr).unwrap_err();
    let flow = AhAttr { flow_label: 1 << 20, ..to(THEM) };
    let range = |attr, got, max| Cause::AttrRange { attr, got, max };
    assert_eq!(refused(&mut s, &flow), range("ah.flow_label", 1 << 20, 0xf_ffff));
    let gid = AhAttr { sgid_index: 1, ..to(THEM) };
    assert_eq!(refused(&mut s, &gid), range("ah.sgid_index", 1, 0));
    let v6: IpAddr = "fd00::1".parse().unwrap();
    assert_eq!(refused(&mut s, &to(v6)), Cause::AddressFamily);
    let port = Cause::AttrValue { attr: "ah.port", got: 2, want: "1" };
    assert_eq!(refused(&mut s, &AhAttr { port: 2, ..to(THEM) }), port);
    let pd = s.engine.alloc_pd().unwrap();
    let ah = s.engine.create_ah(pd, &to(THEM)).unwrap();
    assert!(matches!(s.engine.dealloc_pd(pd), Err(Cause::Busy { .. })));
    s.engine.destroy_ah(ah).unwrap();
    assert!(s.engine.destroy_ah(ah).is_err());
    s.engine.dealloc_pd(pd).unwrap();
    assert!(s.engine.create_ah(pd, &to(THEM)).is_err());
}

#[test]
fn a_datagram_to_a_group_is_for_all_queue_pairs() {
    let mut s = Script::with(&ud());
    let ah = s.ah(&to(GROUP));
    s.post_wqe(Script::datagram_to(ah, SendOp::Send, 1), &[]);
    assert_eq!(s.sent()[0].to, (GROUP.into(), 0xff_ffff));
    assert_eq!(s.results(), [(1, WcStatus::Success)]);
}

#[test]
fn members_of_a_group_each_get_a_copy_and_one_does_not_hinder_another() {
    let mut s = Script::with(&ud());
    let (second, second_face) = s.neighbour();
    let (third, third_face) = s.neighbour();
    let qp = s.qp;
    assert_eq!(s.attach(qp), Some(GROUP.into()), "the device joins");
    assert_eq!([s.attach(second), s.attach(third), s.attach(third)], [None; 3]);
    // The first has no receive, the second another Q_Key.
    s.engine.modify_qp(s.now, second, &QpAttr::default().qkey(5)).unwrap();
    receive_on(&s, &second_face, 2);
    receive_on(&s, &third_face, 3);
    s.recv_at(GROUP, THEM, &send(0).len(20));
    let wc = s.completions();
    assert_eq!((wc.len(), wc[0].wr_id, wc[0].byte_len, wc[0].src_qpn), (1, 3, 60, 0x123));
    assert_eq!(Grh::parse(&s.bytes(0, 40).try_into().unwrap()).map(|g| g.dst), Some(GROUP.into()));
    assert_eq!((s.counter(Counter::OutOfBuffer), s.counter(Counter::QkeyViolCntr)), (1, 1));
    s.post_recv(1, 0, 100);
    s.engine.modify_qp(s.now, second, &QpAttr::default().qkey(QKEY)).unwrap();
    receive_on(&s, &third_face, 3);
    s.recv_at(GROUP, THEM, &send(0));
    let ids: Vec<u64> = s.results().into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, [1, 2, 3]);
    assert_eq!(s.counter(Counter::RcvdPkts), 2, "packets, not copies");
}

#[test]
fn a_sender_does_not_hear_itself() {
    let mut s = Script::with(&ud());
    let (second, second_face) = s.neighbour();
    let (qp, qpn) = (s.qp, s.qpn());
    s.attach(qp);
    s.attach(second);
    for _ in 0..2 {
        s.post_recv(1, 0, 100);
        receive_on(&s, &second_face, 2);
    }
    s.recv_at(GROUP, US, &pkt("UD_SEND_ONLY", 0).deth(QKEY, qpn));
    assert_eq!(s.results(), [(2, WcStatus::Success)]);
    assert_eq!(s.counter(Counter::DropEcho), 1);
    // The same number at another host is somebody else.
    s.recv_at(GROUP, THEM, &pkt("UD_SEND_ONLY", 0).deth(QKEY, qpn));
    assert_eq!(s.results().len(), 2);
}

#[test]
fn groups_that_nobody_is_in() {
    let mut s = Script::with(&ud());
    s.post_recv(1, 0, 100);
    s.recv_at(GROUP, THEM, &send(0));
    assert_eq!(s.counter(Counter::DropNoQp), 1);
    let (qp, gid) = (s.qp, Gid::from(IpAddr::from(GROUP)));
    let (second, _) = s.neighbour();
    s.attach(qp);
    s.attach(second);
    assert_eq!(s.engine.detach_mcast(qp, gid), Ok(None));
    assert!(s.engine.detach_mcast(qp, gid).is_err(), "not in it any more");
    assert_eq!(s.engine.leave_groups(second), [IpAddr::from(GROUP)], "the device leaves");
    assert_eq!(s.attach(qp), Some(GROUP.into()));
    assert_eq!(s.engine.detach_mcast(qp, gid), Ok(Some(GROUP.into())));
    s.attach(second);
    s.engine.destroy_qp(second).unwrap();
    s.recv_at(GROUP, THEM, &send(0));
    assert_eq!(s.counter(Counter::DropNoQp), 2);
    assert_eq!(s.results(), []);
}

#[test]
fn who_cannot_be_in_a_group() {
    let mut s = Script::new();
    let qp = s.qp;
    let gid = Gid::from(IpAddr::from(GROUP));
    let Err(Cause::Invalid { what }) = s.engine.attach_mcast(qp, gid) else { panic!() };
    assert!(what.contains("only a datagram queue pair"), "{what}");
    let mut s = Script::with(&ud());
    let qp = s.qp;
    for gid in [Gid::default(), Gid::from(IpAddr::from(THEM))] {
        let Err(Cause::Invalid { what }) = s.engine.attach_mcast(qp, gid) else { panic!() };
        assert!(what.contains("no multicast group"), "{what}");
    }
    let group = Setup { kind: QpType::Uc, ..Setup::default() };
    let mut uc = Script::idle(&group);
    uc.init(&group);
    let [_, rtr, _] = ways_up(&group, PEER, gid);
    let Err(Cause::Invalid { what }) = uc.engine.modify_qp(uc.now, uc.qp, &rtr) else { panic!() };
    assert!(what.contains("one peer"), "{what}");
}

#[test]
fn a_member_that_is_reset_is_still_a_member() {
    let mut s = Script::with(&ud());
    let (qp, setup) = (s.qp, ud());
    s.attach(qp);
    s.modify(&QpAttr::to(QpState::Reset));
    s.recv_at(GROUP, THEM, &send(0));
    assert_eq!(s.counter(Counter::DropState), 1);
    s.init(&setup);
    s.rtr(0, &setup);
    s.post_recv(1, 0, 100);
    s.recv_at(GROUP, THEM, &send(0));
    assert_eq!(s.results(), [(1, WcStatus::Success)]);
}

#[test]
fn who_asks_for_an_ack_gets_none() {
    let mut s = Script::with(&ud());
    s.post_recv(1, 0, 64);
    s.recv(send(0).len(8).ask());
    s.recv(send(1).len(8).ask());
    s.silent();
    assert_eq!(s.results(), [(1, WcStatus::Success)]);
    assert_eq!((s.engine.poll_timeout(), s.counter(Counter::OutOfBuffer)), (None, 1));
}

#[test]
fn an_observer_is_told_of_each_step_of_a_datagram() {
    let mut s = Script::with(&ud());
    let notes = notes(&mut s.engine);
    let ah = s.ah(&to(THEM));
    let sge = s.sge(0, 100);
    s.post_wqe(Script::datagram_to(ah, SendOp::Send, 5), &[sge]);
    s.post_recv(1, 1000, 200);
    s.recv(send(0).len(60));
    let told = notes.lock().unwrap();
    let steps: Vec<_> = told
        .iter()
        .filter_map(|(_, event)| match event {
            NicEvent::Fetched { wqe, psns: 1, first_psn, .. } if wqe.wr_id == 5 => {
                Some(("fetched", *first_psn, usize::try_from(wqe.length).unwrap()))
            }
            NicEvent::Gathered { psn, bytes, offset: 0, .. } => Some(("gathered", *psn, *bytes)),
            NicEvent::Scattered { psn, bytes, offset: 0, .. } => Some(("scattered", *psn, *bytes)),
            NicEvent::Sent(brief) => Some(("sent", brief.psn, brief.payload)),
            _ => None,
        })
        .collect();
    assert_eq!(
        steps,
        [
            ("fetched", 0x1000, 100),
            ("gathered", 0x1000, 100),
            ("sent", 0x1000, 100),
            ("scattered", RQ, 100)
        ]
    );
}

#[test]
fn groups_and_their_members_have_a_number() {
    use crate::engine::config::{MAX_GROUP_MEMBERS, MAX_GROUPS};
    let mut s = Script::with(&ud());
    let group = |n: u32| Gid::from(IpAddr::from([239, 1, n.to_be_bytes()[2], n.to_be_bytes()[3]]));
    let make = |s: &mut Script| s.neighbour().0;
    for _ in 0..MAX_GROUP_MEMBERS {
        let qp = make(&mut s);
        s.engine.attach_mcast(qp, group(0)).unwrap();
    }
    let late = make(&mut s);
    let full = Cause::table_full("queue pairs in a multicast group", MAX_GROUP_MEMBERS.into());
    assert_eq!(s.engine.attach_mcast(late, group(0)), Err(full));
    for n in 1..MAX_GROUPS {
        s.engine.attach_mcast(late, group(n)).unwrap();
    }
    let full = Cause::table_full("multicast groups", MAX_GROUPS.into());
    assert_eq!(s.engine.attach_mcast(late, group(MAX_GROUPS)), Err(full));
    s.engine.detach_mcast(late, group(1)).unwrap();
    s.engine.attach_mcast(late, group(MAX_GROUPS)).unwrap();
}
