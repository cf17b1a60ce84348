//! Datagrams: to one queue pair or to a group, and back to whoever wrote.

use std::net::IpAddr;

use softroce::prelude::*;

use super::Bed;
use crate::testbed::{LONG, Side, Testbed, pattern};

const EINVAL: i32 = 22;
const QKEY: u32 = 0x1ee7;
const GRH: usize = 40;

/// A datagram queue pair that is ready.
fn ready(ctx: &Context) -> Side {
    let side = Side::of(ctx, QpType::Ud, |builder| builder);
    side.qp.activate(QKEY).unwrap();
    side
}

fn two(bed: &impl Testbed) -> [Side; 2] {
    bed.hosts().map(ready)
}

/// The way from one side to another.
fn way(from: &Side, to: &Side) -> AddressHandle {
    from.pd.create_ah(&to.qp.endpoint().ah()).unwrap()
}

/// A group of which no other test, here or in another process, knows.
fn group() -> Gid {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let [_, b, c, d] = (std::process::id().wrapping_mul(251).wrapping_add(n)).to_be_bytes();
    Gid::from(IpAddr::from([239, b, c, d]))
}

#[test]
fn datagrams_of_every_size_and_what_is_in_front_of_them() {
    let Some(bed) = Bed::start() else { return };
    let [a, b] = two(&bed);
    let ah = way(&a, &b);
    let mtu = a.qp.endpoint().mtu.bytes();
    let (from, to) = (a.memory(mtu), b.memory(GRH + mtu));
    for len in [0, 1, 7, 256, mtu - 1, mtu] {
        let data = pattern(len as u64, len);
        from.write(0, &data);
        to.fill(0..to.len(), 0xe7);
        b.qp.post_recv(RecvWr::new(7, to.sge(..))).unwrap();
        let wr = SendWr::send(3, from.sge(..len)).imm(0x0102_0304);
        let wc = a.done(wr.to(&ah, b.qp.number(), QKEY));
        assert_eq!((wc.wr_id, wc.opcode, wc.qpn), (3, WcOpcode::Send, a.qp.number()));
        let wc = b.received().ok().unwrap();
        assert_eq!((wc.wr_id, wc.opcode, wc.imm), (7, WcOpcode::Recv, Some(0x0102_0304)));
        assert_eq!((wc.byte_len as usize, wc.has_grh), (GRH + len, true));
        assert_eq!((wc.src_qpn, wc.qpn), (a.qp.number(), b.qp.number()));
        assert_eq!((wc.pkey_index, wc.sl, wc.slid), (0, 0, 0));
        assert_eq!(to.to_vec(GRH..GRH + len), data);
        assert!(to.to_vec(GRH + len..to.len()).iter().all(|&b| b == 0xe7));
        assert_eq!(to.to_vec(0..20), [0; 20]);
        assert_eq!(to.to_vec(20..21), [0x45]);
        let addresses = [&a, &b].map(|side| side.qp.endpoint().gid.0);
        assert_eq!(to.to_vec(32..36), addresses[0][12..]);
        assert_eq!(to.to_vec(36..40), addresses[1][12..]);
    }
}

#[test]
fn replies_go_to_whoever_wrote() {
    let Some(bed) = Bed::start() else { return };
    let [a, b] = two(&bed);
    let c = ready(bed.hosts()[0]);
    let (question, answer) = (b.memory(100), [&a, &c].map(|side| side.memory(100)));
    for ((asker, mr), name) in [&a, &c].into_iter().zip(&answer).zip([b"from a", b"from c"]) {
        b.qp.post_recv(RecvWr::new(1, question.sge(..))).unwrap();
        asker.qp.post_recv(RecvWr::new(2, mr.sge(..))).unwrap();
        let ah = way(asker, &b);
        asker.done(SendWr::send(1, inline(name)).to(&ah, b.qp.number(), QKEY));
        let wc = b.received().ok().unwrap();
        let mut grh = [0; GRH];
        question.read(0, &mut grh);
        let back = b.pd.create_ah_from_wc(&wc, &grh).unwrap();
        assert_eq!(back.attr().dgid, asker.qp.endpoint().gid);
        let payload = question.sge(GRH..wc.byte_len as usize);
        b.done(SendWr::send(3, payload).to(&back, wc.src_qpn, QKEY));
        let wc = asker.received().ok().unwrap();
        assert_eq!(wc.src_qpn, b.qp.number());
        assert_eq!(mr.to_vec(GRH..wc.byte_len as usize), name);
    }
}

#[test]
fn what_is_dropped_is_counted_and_costs_no_receive() {
    let Some(bed) = Bed::start() else { return };
    let [a, b] = two(&bed);
    let (ah, peer) = (way(&a, &b), b.qp.number());
    let memory = b.memory(GRH + 4);
    a.done(SendWr::send(1, ()).to(&ah, peer, QKEY));
    bed.until("there is no receive", || b.counter("out_of_buffer") == 1);
    b.qp.post_recv(RecvWr::new(7, memory.sge(..))).unwrap();
    a.done(SendWr::send(2, ()).to(&ah, peer, QKEY + 1));
    a.done(SendWr::send(3, inline(b"long!")).to(&ah, peer, QKEY));
    a.done(SendWr::send(4, ()).to(&ah, peer ^ 0x80_0000, QKEY));
    a.done(SendWr::send(5, inline(b"good")).to(&ah, peer, QKEY));
    let wc = b.received().ok().unwrap();
    assert_eq!((wc.wr_id, memory.to_vec(GRH..GRH + 4)), (7, b"good".to_vec()));
    for name in ["qkey_viol_cntr", "resp_local_length_error", "drop_no_qp"] {
        assert_eq!(b.counter(name), 1, "{name}");
    }
    assert_eq!((a.state(), b.state()), (QpState::Rts, QpState::Rts));
}

#[test]
fn a_controlled_qkey_stands_for_the_senders() {
    let Some(bed) = Bed::start() else { return };
    let [a, b] = two(&bed);
    let (ah, peer) = (way(&a, &b), b.qp.number());
    let controlled = 0x8000_0001;
    b.qp.modify(&QpAttr::default().qkey(controlled)).unwrap();
    assert_eq!(b.qp.endpoint().qkey, controlled);
    b.qp.post_recv(RecvWr::new(1, b.memory(GRH).sge(..))).unwrap();
    // Whoever does not have it cannot say it.
    a.done(SendWr::send(1, ()).to(&ah, peer, controlled));
    bed.until("the Q_Key is wrong", || b.counter("qkey_viol_cntr") == 1);
    a.qp.modify(&QpAttr::default().qkey(controlled)).unwrap();
    let memory = b.memory(GRH);
    b.qp.post_recv(RecvWr::new(2, memory.sge(..))).unwrap();
    a.done(SendWr::send(1, ()).to(&ah, peer, 1 << 31));
    // The first receive was into memory that is gone: an error of that side.
    assert_eq!((b.received().status, b.state()), (WcStatus::LocProt, QpState::Err));
}

#[test]
fn errors_here_stop_the_send_queue_until_it_is_started_again() {
    let Some(bed) = Bed::start() else { return };
    let [a, b] = two(&bed);
    let (ah, peer) = (way(&a, &b), b.qp.number());
    let mtu = a.qp.endpoint().mtu.bytes();
    let (long, there) = (a.memory(mtu + 1), b.memory(GRH + 8));
    let cases: [(SendWr<'_>, WcStatus); 2] = [
        (SendWr::send(1, long.sge(..)), WcStatus::LocLen),
        (SendWr::send(1, there.sge(..8)), WcStatus::LocProt),
    ];
    for (wr, status) in cases {
        a.qp.post_send([wr, SendWr::send(2, ())].map(|wr| wr.to(&ah, peer, QKEY))).unwrap();
        assert_eq!((a.sent().status, a.sent().status), (status, WcStatus::WrFlush));
        assert_eq!(a.state(), QpState::Sqe);
        a.qp.modify(&QpAttr::to(QpState::Rts)).unwrap();
    }
    b.qp.post_recv(RecvWr::new(1, there.sge(..))).unwrap();
    a.done(SendWr::send(3, ()).to(&ah, peer, QKEY));
    b.received().ok().unwrap();
}

#[test]
fn a_handle_may_go_when_its_request_is_posted() {
    let Some(bed) = Bed::start() else { return };
    let [a, b] = two(&bed);
    let there = b.memory(GRH + 8);
    for id in 0..3 {
        b.qp.post_recv(RecvWr::new(id, there.sge(..))).unwrap();
        let ah = way(&a, &b);
        a.post(SendWr::send(id, ()).to(&ah, b.qp.number(), QKEY));
        drop(ah);
        a.sent().ok().unwrap();
        assert_eq!(b.received().ok().unwrap().wr_id, id);
    }
}

#[test]
fn misuse_is_refused_in_words() {
    let Some(bed) = Bed::start() else { return };
    let [a, b] = two(&bed);
    let (ah, peer) = (way(&a, &b), b.qp.number());
    let memory = a.memory(64);
    let says = |result: Result<()>, word: &str| {
        let e = result.unwrap_err();
        assert_eq!(e.errno(), Some(EINVAL), "{e}");
        assert!(e.to_string().contains(word), "{word:?} is not in: {e}");
    };
    let post = |wr| a.qp.post_send(wr);
    says(post(SendWr::send(1, ())), ".to(");
    let remote = RemoteSlice { addr: 0, rkey: 0 };
    says(post(SendWr::write(1, (), remote).to(&ah, peer, QKEY)), "does SEND");
    says(post(SendWr::read(1, memory.sge(..8), remote).to(&ah, peer, QKEY)), "does SEND");
    says(post(SendWr::local_inv(1, 5).to(&ah, peer, QKEY)), "does SEND");
    says(post(SendWr::send(1, ()).to(&ah, 1 << 24, QKEY)), "16777216");
    let other = ready(bed.hosts()[0]);
    says(post(SendWr::send(1, ()).to(&way(&other, &b), peer, QKEY)), "another protection domain");
    says(a.qp.connect(&b.qp.endpoint()), "activate");
    let connected = Side::new(bed.hosts()[0]);
    says(connected.qp.activate(1), "connect");
    says(connected.qp.attach_mcast(group()), "only a datagram");
    says(a.qp.attach_mcast(b.qp.endpoint().gid), "no multicast group");
    says(a.qp.detach_mcast(group()), "not in the group");
    let ah = |attr: &AhAttr| a.pd.create_ah(attr).map(drop);
    says(ah(&AhAttr { sgid_index: 99, ..b.qp.endpoint().ah() }), "sgid_index is 99");
    says(ah(&AhAttr::default()), "GID");
    let from_wc = |wc, grh| a.pd.create_ah_from_wc(&wc, &grh).map(drop);
    says(from_wc(WorkCompletion::default(), [0; GRH]), "not that of a datagram");
    let attr = a.qp.query().unwrap();
    assert_eq!((attr.state, attr.qkey), (Some(QpState::Rts), Some(QKEY)));
    says(a.qp.modify(&QpAttr::default().access(Access::REMOTE)), "access");
}

#[test]
fn states_of_a_datagram_queue_pair() {
    let Some(bed) = Bed::start() else { return };
    let [a, b] = two(&bed);
    assert_eq!(a.qp.endpoint().qkey, QKEY);
    a.qp.modify(&QpAttr::to(QpState::Reset)).unwrap();
    assert_eq!(a.qp.endpoint().qkey, 0);
    let e = a.qp.modify(&QpAttr::to(QpState::Init).port(1).pkey_index(0)).unwrap_err();
    assert!(e.to_string().contains("qkey"), "{e}");
    a.qp.activate(5).unwrap();
    assert_eq!((a.qp.endpoint().qkey, a.state()), (5, QpState::Rts));
    let (ah, memory) = (way(&b, &a), a.memory(GRH));
    a.qp.post_recv(RecvWr::new(1, memory.sge(..))).unwrap();
    b.done(SendWr::send(1, ()).to(&ah, a.qp.number(), 5));
    a.received().ok().unwrap();
    let ah = way(&a, &b);
    a.qp.modify(&QpAttr::to(QpState::Sqd).sqd_notify(true)).unwrap();
    assert_eq!(a.event(), Event::SqDrained { qpn: a.qp.number() });
    a.post(SendWr::send(2, ()).to(&ah, b.qp.number(), QKEY));
    assert_eq!(a.cq.drain(), []);
    a.qp.modify(&QpAttr::to(QpState::Rts)).unwrap();
    assert_eq!(a.sent().ok().unwrap().wr_id, 2);
}

/// Many to many, in bursts, on both testbeds: nothing is lost between hosts that keep up.
#[test]
fn bursts_to_several_destinations() {
    let Some(bed) = Bed::start() else { return };
    let [a, b] = two(&bed);
    let c = ready(bed.hosts()[0]);
    let memory = [&b, &c].map(|side| side.memory(100 * 60));
    let sent = a.memory(60);
    for i in 0..30 {
        for (side, mr) in [&b, &c].into_iter().zip(&memory) {
            let wr = RecvWr::new(i, mr.sge(100 * i as usize..100 * (i as usize + 1)));
            side.qp.post_recv(wr).unwrap();
        }
    }
    let ways = [&b, &c].map(|side| (way(&a, side), side.qp.number()));
    a.qp.post_send((0..60).map(|i| {
        let (ah, qpn) = &ways[i % 2];
        SendWr::send(i as u64, sent.sge(..i)).to(ah, *qpn, QKEY)
    }))
    .unwrap();
    for i in 0..60 {
        assert_eq!(a.sent().ok().unwrap().wr_id, i);
    }
    for (n, side) in [&b, &c].into_iter().enumerate() {
        for i in 0..30 {
            let wc = side.received().ok().unwrap();
            assert_eq!((wc.wr_id, wc.byte_len as usize), (i, GRH + 2 * i as usize + n));
        }
    }
}

#[test]
fn every_member_of_a_group_but_the_sender() {
    let Some(bed) = Bed::start() else { return };
    let [a, b] = two(&bed);
    let neighbour = ready(bed.hosts()[0]);
    let outsider = ready(bed.hosts()[1]);
    let group = group();
    let members = [&a, &b, &neighbour];
    for side in members {
        side.qp.attach_mcast(group).unwrap();
        side.qp.attach_mcast(group).unwrap();
    }
    let memory = [&a, &b, &neighbour, &outsider].map(|side| {
        let mr = side.memory(100);
        side.qp.post_recv(RecvWr::new(1, mr.sge(..))).unwrap();
        mr
    });
    let ah = a.pd.create_ah(&AhAttr { dgid: group, ..AhAttr::default() }).unwrap();
    a.done(SendWr::send(1, inline(b"to all")).to(&ah, 0xff_ffff, QKEY));
    for (side, mr) in [(&b, &memory[1]), (&neighbour, &memory[2])] {
        let wc = side.received().ok().unwrap();
        assert_eq!((wc.src_qpn, wc.byte_len, wc.qpn), (a.qp.number(), 46, side.qp.number()));
        assert_eq!(mr.to_vec(GRH..GRH + 6), b"to all");
        // It can be answered.
        let mut grh = [0; GRH];
        mr.read(0, &mut grh);
        let back = side.pd.create_ah_from_wc(&wc, &grh).unwrap();
        side.done(SendWr::send(2, ()).to(&back, wc.src_qpn, QKEY));
        a.received().ok().unwrap();
        a.qp.post_recv(RecvWr::new(1, memory[0].sge(..))).unwrap();
    }
    bed.until("its own copy has come back", || a.counter("drop_echo") == 1);
    assert_eq!((a.rcq.drain(), outsider.rcq.drain()), (vec![], vec![]));

    // Without the last members of a host nothing comes there any more.
    b.qp.detach_mcast(group).unwrap();
    neighbour.qp.post_recv(RecvWr::new(4, memory[2].sge(..))).unwrap();
    b.qp.post_recv(RecvWr::new(4, memory[1].sge(..))).unwrap();
    a.done(SendWr::send(3, ()).to(&ah, 0, QKEY));
    assert_eq!(neighbour.received().ok().unwrap().wr_id, 4);
    assert_eq!(b.rcq.drain(), []);
}

/// Somebody sleeps while a group is joined: what comes for the group wakes it.
#[test]
fn a_datagram_for_a_group_wakes_whoever_waits() {
    let Some(bed) = Bed::start() else { return };
    let [a, b] = two(&bed);
    let group = group();
    let memory = b.memory(100);
    b.qp.post_recv([RecvWr::new(1, memory.sge(..)), RecvWr::new(2, memory.sge(..))]).unwrap();
    let (ah, direct) =
        (a.pd.create_ah(&AhAttr { dgid: group, ..AhAttr::default() }).unwrap(), way(&a, &b));
    // Before the group, the port alone is watched.
    a.done(SendWr::send(1, ()).to(&direct, b.qp.number(), QKEY));
    b.rcq.wait(LONG).unwrap().ok().unwrap();
    b.qp.attach_mcast(group).unwrap();
    a.done(SendWr::send(2, ()).to(&ah, 0, QKEY));
    assert_eq!(b.rcq.wait(LONG).unwrap().ok().unwrap().wr_id, 2);
    // And afterwards the port still is.
    b.qp.post_recv(RecvWr::new(3, memory.sge(..))).unwrap();
    a.done(SendWr::send(3, ()).to(&direct, b.qp.number(), QKEY));
    assert_eq!(b.rcq.wait(LONG).unwrap().ok().unwrap().wr_id, 3);
}

#[test]
fn a_queue_pair_that_goes_leaves_its_groups() {
    let Some(bed) = Bed::start() else { return };
    let [a, b] = two(&bed);
    let groups: Vec<Gid> = (0..5).map(|_| group()).collect();
    let gone = ready(bed.hosts()[1]);
    for &group in &groups {
        gone.qp.attach_mcast(group).unwrap();
    }
    let (last, memory) = (groups[4], b.memory(100));
    b.qp.attach_mcast(last).unwrap();
    gone.qp.destroy().unwrap();
    b.qp.post_recv([RecvWr::new(1, memory.sge(..)), RecvWr::new(2, memory.sge(..))]).unwrap();
    for group in [groups[0], last] {
        let ah = a.pd.create_ah(&AhAttr { dgid: group, ..AhAttr::default() }).unwrap();
        a.done(SendWr::send(1, ()).to(&ah, 0, QKEY));
    }
    b.received().ok().unwrap();
    assert_eq!(b.rcq.drain(), []);
}
