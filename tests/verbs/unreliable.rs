//! Unreliable connections: what they do, what they do not, and how the send queue stops and goes on.

use softroce::prelude::*;

use super::Bed;
use crate::testbed::{Guarded, Pair, Side, Testbed, pattern};

const EINVAL: i32 = 22;

fn connected(bed: &impl Testbed) -> Pair {
    let [a, b] = bed.hosts().map(|ctx| Side::of(ctx, QpType::Uc, |builder| builder));
    Pair::connect(a, b, &QpAttr::default())
}

/// A key that stands for nothing.
fn nowhere(to: &MemoryRegion) -> RemoteSlice {
    RemoteSlice { addr: to.iova(), rkey: 0 }
}

#[test]
fn send_and_write_of_every_size() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = connected(&bed);
    let mtu = a.qp.query().unwrap().path_mtu.unwrap().bytes();
    for len in [0, 1, 8, mtu - 1, mtu, mtu + 1, 50_001] {
        let (from, to, by_write) =
            (Guarded::new(&a, len), Guarded::new(&b, len), Guarded::new(&b, len));
        let data = pattern(len as u64, len);
        from.mr.write(61, &data);
        b.qp.post_recv([RecvWr::new(1, to.sge()), RecvWr::new(2, ())]).unwrap();
        let wc = a.done(SendWr::send(3, from.sge()).imm(0x0102_0304));
        assert_eq!((wc.wr_id, wc.opcode, wc.qpn), (3, WcOpcode::Send, a.qp.number()));
        let wc = b.received().ok().unwrap();
        assert_eq!((wc.wr_id, wc.opcode, wc.imm), (1, WcOpcode::Recv, Some(0x0102_0304)));
        assert_eq!((wc.byte_len as usize, wc.has_grh), (len, false));
        assert_eq!(to.bytes(len), data);

        a.done(SendWr::write(4, from.sge(), by_write.remote()).imm(9));
        let wc = b.received().ok().unwrap();
        assert_eq!((wc.wr_id, wc.opcode, wc.imm), (2, WcOpcode::RecvWriteImm, Some(9)));
        assert_eq!(wc.byte_len as usize, len);
        assert_eq!(by_write.bytes(len), data);
    }
    assert_eq!((a.state(), b.state()), (QpState::Rts, QpState::Rts));
}

/// Nobody is told of what cannot be executed, and the connection goes on.
#[test]
fn what_the_peer_cannot_take_is_gone() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = connected(&bed);
    let memory = b.memory(64);
    a.done(SendWr::send(1, inline(b"no receive")));
    bed.until("there is no receive", || b.counter("out_of_buffer") == 1);
    a.done(SendWr::write(2, inline(b"no key"), nowhere(&memory)));
    b.qp.post_recv(RecvWr::new(7, memory.sge(..4))).unwrap();
    a.done(SendWr::send(3, inline(b"too long")));
    a.done(SendWr::send(4, inline(b"good")));
    let wc = b.received().ok().unwrap();
    assert_eq!((wc.wr_id, wc.byte_len, memory.to_vec(0..4)), (7, 4, b"good".to_vec()));
    assert_eq!(memory.to_vec(4..64), [0; 60]);
    for (name, n) in [("out_of_buffer", 1), ("drop_refused", 2), ("resp_local_length_error", 1)] {
        assert_eq!(b.counter(name), n, "{name}");
    }
    assert_eq!((a.state(), b.state()), (QpState::Rts, QpState::Rts));
}

#[test]
fn operations_that_need_a_reliable_connection() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = connected(&bed);
    let (mine, theirs) = (a.memory(64), b.memory(64));
    let refused = [
        SendWr::read(1, mine.sge(..8), theirs.remote()),
        SendWr::compare_swap(1, mine.sge(..8), theirs.remote(), 0, 1),
        SendWr::fetch_add(1, mine.sge(..8), theirs.remote(), 1),
        SendWr::send(1, ()).invalidate(5),
        SendWr::atomic_write(1, inline(&[0; 8]), theirs.remote()),
        SendWr::flush(1, theirs.remote(), 8, Placement::GLOBAL),
    ];
    for wr in refused {
        let e = a.qp.post_send(wr).unwrap_err();
        assert_eq!(e.errno(), Some(EINVAL), "{e}");
        assert!(e.to_string().contains("needs RC"), "{e}");
    }
    assert_eq!(a.qp.activate(1).unwrap_err().errno(), Some(EINVAL));
    let rts = a.qp.modify(&QpAttr::to(QpState::Rts).timeout(14)).unwrap_err();
    assert!(rts.to_string().contains("timeout"), "{rts}");
    a.done(SendWr::write(2, inline(b"as before"), theirs.remote()));
}

#[test]
fn windows_work() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = connected(&bed);
    let mr = b.memory(128);
    let mw = b.pd.alloc_mw(MwType::Type2).unwrap();
    b.done(SendWr::bind_mw(1, &mw, &mr, 0..64, Access::REMOTE_WRITE));
    let through = RemoteSlice { addr: mr.iova(), rkey: mw.rkey() };
    b.qp.post_recv(RecvWr::new(1, ())).unwrap();
    a.done(SendWr::write(2, inline(b"through"), through).imm(0));
    b.received().ok().unwrap();
    assert_eq!(mr.to_vec(0..7), b"through");
    b.done(SendWr::local_inv(3, mw.rkey()));
    a.done(SendWr::write(4, inline(b"closed!"), through));
    bed.until("the WRITE is refused", || b.counter("drop_refused") == 1);
    assert_eq!(mr.to_vec(0..7), b"through");
}

#[test]
fn an_error_here_stops_the_send_queue_until_it_is_started_again() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = connected(&bed);
    let (theirs, mine) = (b.memory(64), a.memory(64));
    let wrong = b.memory(64);
    a.post(SendWr::write(1, inline(b"1"), theirs.remote()));
    a.post(SendWr::write(2, wrong.sge(..8), theirs.remote()));
    a.post(SendWr::write(3, inline(b"3"), theirs.remote()));
    let outcomes: Vec<_> = (0..3).map(|_| a.sent()).map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(outcomes, [(1, WcStatus::Success), (2, WcStatus::LocProt), (3, WcStatus::WrFlush)]);
    assert_eq!(a.state(), QpState::Sqe);
    // It receives.
    a.qp.post_recv(RecvWr::new(9, mine.sge(..))).unwrap();
    b.done(SendWr::send(1, inline(b"still there?")));
    assert_eq!(a.received().ok().unwrap().byte_len, 12);
    assert_eq!(a.outcome(SendWr::send(4, ())), WcStatus::WrFlush);

    a.qp.modify(&QpAttr::to(QpState::Rts).cur_state(QpState::Sqe)).unwrap();
    b.qp.post_recv(RecvWr::new(5, theirs.sge(..))).unwrap();
    a.done(SendWr::send(5, inline(b"yes")));
    assert_eq!(b.received().ok().unwrap().byte_len, 3);
}

#[test]
fn many_requests_at_once_complete_in_order() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = connected(&bed);
    let (mine, theirs) = (a.memory(9000), b.memory(9000));
    for id in 0..50 {
        b.qp.post_recv(RecvWr::new(id, theirs.sge(..))).unwrap();
    }
    a.qp.post_send((0..50).map(|id| SendWr::send(id, mine.sge(..100 * id as usize)))).unwrap();
    for id in 0..50 {
        assert_eq!(a.sent().ok().unwrap().wr_id, id);
    }
    for id in 0..50 {
        let wc = b.received().ok().unwrap();
        assert_eq!((wc.wr_id, u64::from(wc.byte_len)), (id, 100 * id));
    }
}
