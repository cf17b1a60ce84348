//! Memory windows: bound and invalidated by requests, used and invalidated by the peer.

use super::script::{RQ, SQ, Script, ack, pkt};
use crate::engine::QpInit;
use crate::engine::counters::Counter as C;
use crate::engine::event::AsyncEvent;
use crate::engine::qp::attr::{QpAttr, QpCap, QpState, QpType};
use crate::engine::status::WcStatus::{LocAccess, LocQpOp, MwBind, Success, WrFlush};
use crate::engine::tests::pair::Setup;
use crate::mem::{Access, MemError, MwKind};
use crate::queue::{BindWqe, CqeFlags, SendFlags, SendOp, SendWqe};
use crate::wire::num::{Lkey, Rkey};

fn bind_to(s: &mut Script, at: usize, len: usize, access: Access) -> BindWqe {
    let mw = s.engine.alloc_mw(s.pd, MwKind::Type2).unwrap();
    BindWqe {
        mw,
        new_rkey: Rkey(mw.0 ^ 0x55),
        mr: s.mr.lkey,
        addr: s.va(at),
        len: len as u64,
        access,
        kind: MwKind::Type2,
    }
}

fn local_inv(rkey: Rkey, id: u64) -> SendWqe {
    SendWqe { rkey, ..Script::wqe(SendOp::LocalInv, id) }
}

#[test]
fn a_bound_window_is_used_by_the_peer_within_its_range_and_rights() {
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    let mut s = Script::new();
    let key = s.window(1000, 100, access);
    let va = s.va(1000);
    s.recv(pkt("WRITE_ONLY", RQ).reth(va + 92, key, 8).len(8).ask());
    s.expect(&["ACK 002000 syn=1f msn=1"]);
    s.recv(pkt("READ_REQUEST", RQ + 1).reth(va, key, 100));
    s.expect(&["READ_RESP_ONLY 002001 syn=1f msn=2 +100"]);
    for packet in [
        pkt("WRITE_ONLY", RQ).reth(va + 93, key, 8).len(8),
        pkt("WRITE_ONLY", RQ).reth(va - 1, key, 8).len(8),
        pkt("READ_REQUEST", RQ).reth(va, key, 101),
        pkt("FETCH_ADD", RQ).atomic(va, key, 1, 0),
    ] {
        let mut s = Script::new();
        assert_eq!(s.window(1000, 100, access), key, "equal seeds give equal keys");
        s.recv(packet);
        s.expect(&["ACK 002000 syn=62 msn=0"]);
        assert_eq!(s.state(), QpState::Err);
    }
}

#[test]
fn a_window_is_dead_before_it_is_bound_and_under_its_old_key() {
    let mut s = Script::new();
    let bind = bind_to(&mut s, 0, 64, Access::REMOTE_READ);
    let read = pkt("READ_REQUEST", RQ).reth(s.va(0), bind.mw, 8);
    s.recv(read.clone());
    s.expect(&["ACK 002000 syn=62 msn=0"]);

    let mut s = Script::new();
    let bind = bind_to(&mut s, 0, 64, Access::REMOTE_READ);
    s.bind(1, SendFlags::empty(), &bind);
    s.recv(read);
    s.expect(&["ACK 002000 syn=62 msn=0"]);
}

#[test]
fn a_bind_that_fails_is_told_in_its_turn() {
    let wrong: [fn(&mut Script, BindWqe) -> BindWqe; 6] = [
        |_, b| BindWqe { mw: Rkey(b.mw.0 ^ 0x100), new_rkey: Rkey(b.mw.0 ^ 0x100), ..b },
        |_, b| BindWqe { new_rkey: Rkey(b.mw.0 ^ 0x100), ..b },
        |s, b| BindWqe { addr: s.va(super::script::REGION - 63), ..b },
        |_, b| BindWqe { len: 0, ..b },
        |_, b| BindWqe { kind: MwKind::Type1, ..b },
        |s, b| {
            let pd = s.engine.alloc_pd().unwrap();
            let mw = s.engine.alloc_mw(pd, MwKind::Type2).unwrap();
            BindWqe { mw, new_rkey: mw, ..b }
        },
    ];
    for change in wrong {
        let mut s = Script::new();
        let bind = bind_to(&mut s, 0, 64, Access::REMOTE_READ);
        let bind = change(&mut s, bind);
        s.post(SendOp::Send, 1, 0);
        s.bind(2, SendFlags::empty(), &bind);
        s.post(SendOp::Send, 3, 0);
        s.expect(&["SEND_ONLY 001000 A"]);
        s.recv(ack(SQ, 0x1f));
        assert_eq!(s.results(), [(1, Success), (2, MwBind), (3, WrFlush)]);
    }
}

#[test]
fn a_window_can_be_bound_after_a_bind_that_failed() {
    let mut s = Script::new();
    let bind = bind_to(&mut s, 0, 64, Access::REMOTE_READ);
    s.bind(1, SendFlags::empty(), &BindWqe { len: 0, ..bind });
    assert_eq!(s.results(), [(1, MwBind)]);
    // Its owner has counted on, and names it by the key that it would have got.
    s.modify(&QpAttr::to(QpState::Reset));
    let setup = Setup::default();
    s.init(&setup);
    s.rtr(RQ, &setup);
    s.rts(SQ, &setup);
    let new_rkey = Rkey(bind.new_rkey.0 ^ 0x11);
    s.bind(2, SendFlags::SIGNALED, &BindWqe { mw: bind.new_rkey, new_rkey, ..bind });
    assert_eq!(s.results(), [(2, Success)]);
    s.recv(pkt("READ_REQUEST", RQ).reth(s.va(0), new_rkey, 8));
    s.expect(&["READ_RESP_ONLY 002000 syn=1f msn=1 +8"]);
}

#[test]
fn a_bound_window_must_be_invalidated_before_it_is_bound_again() {
    let mut s = Script::new();
    let key = s.window(0, 64, Access::REMOTE_READ);
    let again = |s: &Script| BindWqe {
        mw: key,
        new_rkey: Rkey(key.0 ^ 0x33),
        mr: s.mr.lkey,
        addr: s.va(64),
        len: 8,
        access: Access::REMOTE_READ,
        kind: MwKind::Type2,
    };
    let bind = again(&s);
    s.post_wqe(local_inv(key, 1), &[]);
    s.bind(2, SendFlags::empty(), &bind);
    s.bind(3, SendFlags::empty(), &BindWqe { mw: bind.new_rkey, ..bind });
    assert_eq!(s.results(), [(1, Success), (2, Success), (3, MwBind)]);
}

#[test]
fn binds_keep_their_place_among_other_requests() {
    // Behind a READ: done at once, told after it.
    let mut s = Script::new();
    let bind = bind_to(&mut s, 0, 64, Access::REMOTE_READ);
    s.post(SendOp::Read, 1, 8);
    s.bind(2, SendFlags::empty(), &bind);
    s.post(SendOp::Send, 3, 0);
    s.expect(&["READ_REQUEST 001000 va=5000 rkey=77 len=8", "SEND_ONLY 001001 A"]);
    s.recv(pkt("READ_REQUEST", RQ).reth(s.va(0), bind.new_rkey, 8));
    s.expect(&["READ_RESP_ONLY 002000 syn=1f msn=1 +8"]);
    assert_eq!(s.results(), []);
    s.recv(pkt("READ_RESP_ONLY", SQ).syndrome(0x1f).len(8));
    assert_eq!(s.results(), [(1, Success), (2, Success)], "without another packet");

    // Behind an atomic.
    let mut s = Script::new();
    let bind = bind_to(&mut s, 0, 64, Access::REMOTE_READ);
    s.post(SendOp::FetchAdd, 1, 8);
    s.bind(2, SendFlags::empty(), &bind);
    s.recv(pkt("ATOMIC_ACK", SQ).syndrome(0x1f));
    assert_eq!(s.results(), [(1, Success), (2, Success)]);

    // Fenced: not even done.
    let mut s = Script::new();
    let bind = bind_to(&mut s, 0, 64, Access::REMOTE_READ);
    s.post(SendOp::Read, 1, 8);
    s.bind(2, SendFlags::FENCE, &bind);
    s.post(SendOp::Send, 3, 0);
    assert_eq!(s.sent().len(), 1);
    s.recv(pkt("READ_RESP_ONLY", SQ).syndrome(0x1f).len(8));
    assert_eq!(s.results(), [(1, Success), (2, Success)]);
    s.expect(&["SEND_ONLY 001001 A"]);
}

#[test]
fn a_local_invalidation_waits_for_everything_before_it() {
    let mut s = Script::new();
    let key = s.window(0, 64, Access::REMOTE_READ);
    s.post(SendOp::Send, 1, 0);
    s.post_wqe(local_inv(key, 2), &[]);
    s.post(SendOp::Send, 3, 0);
    s.expect(&["SEND_ONLY 001000 A"]);
    // The key lives as long as the SEND is under way.
    let read = pkt("READ_REQUEST", RQ).reth(s.va(0), key, 8);
    s.recv(read);
    s.expect(&["READ_RESP_ONLY 002000 syn=1f msn=1 +8"]);
    s.recv(ack(SQ, 0x1f));
    s.expect(&["SEND_ONLY 001001 A"]);
    assert_eq!(s.results(), [(1, Success), (2, Success)]);
    let read = pkt("READ_REQUEST", RQ + 1).reth(s.va(0), key, 8);
    s.recv(read);
    s.expect(&["ACK 002001 syn=62 msn=1"]);
}

#[test]
fn what_cannot_be_invalidated_here() {
    // A region's key, a window that is not bound, the key it had before, no key.
    let wrong: [fn(&mut Script) -> Rkey; 4] = [
        |s| s.rkey(),
        |s| s.engine.alloc_mw(s.pd, MwKind::Type2).unwrap(),
        |s| Rkey(s.window(0, 64, Access::REMOTE_READ).0 ^ 0x55),
        |_| Rkey(0),
    ];
    for key in wrong {
        let mut s = Script::new();
        let key = key(&mut s);
        s.post_wqe(local_inv(key, 1), &[]);
        assert_eq!(s.results(), [(1, LocQpOp)]);
        assert_eq!(s.state(), QpState::Err);
    }
}

#[test]
fn the_peer_invalidates_with_a_send() {
    for packets in [
        vec![pkt("SEND_ONLY_INV", RQ).len(4)],
        vec![pkt("SEND_FIRST", RQ).len(1024), pkt("SEND_LAST_INV", RQ + 1).len(4)],
    ] {
        let mut s = Script::new();
        let key = s.window(0, 64, Access::REMOTE_READ);
        s.post_recv(1, 4096, 2048);
        let n = u32::try_from(packets.len()).unwrap();
        s.recv_all(packets.into_iter().map(|packet| packet.inv(key).ask()));
        let got = s.completions();
        assert_eq!((got.len(), got[0].status, got[0].opcode), (1, 0, 128));
        assert_eq!((got[0].flags, got[0].imm_or_inv), (CqeFlags::WITH_INV, key.0));
        s.sent();
        let read = pkt("READ_REQUEST", RQ + n).reth(s.va(0), key, 8);
        s.recv(read);
        assert!(s.sent()[0].line.contains("syn=62"), "the key is dead");
    }
}

#[test]
fn the_peer_cannot_invalidate_what_is_not_its_own() {
    let wrong: [fn(&mut Script) -> Rkey; 4] = [
        |s| s.rkey(),
        |s| s.engine.alloc_mw(s.pd, MwKind::Type2).unwrap(),
        |_| Rkey(0),
        |s| Rkey(s.window(0, 64, Access::REMOTE_READ).0 ^ 1),
    ];
    for key in wrong {
        let mut s = Script::new();
        s.post_recv(1, 4096, 64);
        s.post_recv(2, 4096, 64);
        let key = key(&mut s);
        s.recv(pkt("SEND_ONLY_INV", RQ).inv(key).len(4).ask());
        s.expect(&["ACK 002000 syn=62 msn=0"]);
        assert_eq!(s.results(), [(1, LocAccess), (2, WrFlush)]);
        assert_eq!(s.events(), []);
        assert!(s.engine.memory().regions() == 1, "the region is untouched");
    }
}

/// Another queue pair of the same domain, connected to the same peer.
fn second_qp(s: &mut Script) -> crate::engine::QpHandle {
    let (qp, _) = s
        .engine
        .create_qp(QpInit {
            kind: QpType::Rc,
            pd: s.pd,
            send_cq: s.cq,
            recv_cq: s.cq,
            srq: None,
            cap: QpCap::default(),
            sig_all: false,
            cc: None,
        })
        .unwrap();
    qp
}

#[test]
fn a_window_of_another_queue_pair_is_refused() {
    let mut s = Script::new();
    let key = s.window(0, 64, Access::REMOTE_READ);
    // The script goes on with another queue pair.
    let first = (s.qp, s.face.clone());
    let qp = second_qp(&mut s);
    let face = s.engine.qps.get(qp).unwrap().face.clone();
    (s.qp, s.face) = (qp, face);
    let setup = Setup::default();
    s.init(&setup);
    s.rtr(RQ, &setup);
    s.rts(SQ, &setup);
    let read = pkt("READ_REQUEST", RQ).reth(s.va(0), key, 8);
    s.recv(read.clone());
    s.expect(&["ACK 002000 syn=62 msn=0"]);
    assert_eq!(s.events(), [AsyncEvent::QpAccessErr { qpn: s.qpn() }]);
    // Neither can it invalidate it.
    s.modify(&QpAttr::to(QpState::Reset));
    s.init(&setup);
    s.rtr(RQ, &setup);
    s.rts(SQ, &setup);
    s.post_wqe(local_inv(key, 1), &[]);
    assert_eq!(s.results(), [(1, LocQpOp)]);
    // On its own it works as before.
    (s.qp, s.face) = first;
    s.recv(read);
    s.expect(&["READ_RESP_ONLY 002000 syn=1f msn=1 +8"]);
}

/// A window of type 1 and a request that binds it to 64 bytes, with the low byte of its key moved on by `by`.
fn type_1(s: &mut Script) -> impl Fn(u8) -> BindWqe + use<> {
    let mw = s.engine.alloc_mw(s.pd, MwKind::Type1).unwrap();
    let (mr, addr) = (s.mr.lkey, s.va(64));
    move |by| BindWqe {
        mw,
        new_rkey: Rkey(mw.0 & !0xff | (mw.0 + u32::from(by)) & 0xff),
        mr,
        addr,
        len: 64,
        access: Access::REMOTE_READ,
        kind: MwKind::Type1,
    }
}

#[test]
fn a_window_of_type_1_is_for_all_queue_pairs() {
    let mut s = Script::new();
    let bind = type_1(&mut s);
    s.bind(1, SendFlags::empty(), &bind(1));
    assert_eq!(s.results(), [(1, Success)]);
    let first = (s.qp, s.face.clone());
    let qp = second_qp(&mut s);
    (s.qp, s.face) = (qp, s.engine.qps.get(qp).unwrap().face.clone());
    let setup = Setup::default();
    s.init(&setup);
    s.rtr(RQ, &setup);
    s.rts(SQ, &setup);
    s.recv(pkt("READ_REQUEST", RQ).reth(s.va(64), bind(1).new_rkey, 64));
    s.expect(&["READ_RESP_ONLY 002000 syn=1f msn=1 +64"]);
    // It outlives the queue pair that bound it, and keeps its memory.
    s.engine.destroy_qp(first.0).unwrap();
    s.recv(pkt("READ_REQUEST", RQ + 1).reth(s.va(64), bind(1).new_rkey, 64));
    s.expect(&["READ_RESP_ONLY 002001 syn=1f msn=2 +64"]);
    let busy = MemError::Busy { windows: 1 };
    assert_eq!(s.engine.deregister(s.pd, s.mr.lkey).unwrap_err(), busy);
}

#[test]
fn a_window_of_type_1_is_bound_again_and_unbound() {
    let mut s = Script::new();
    let bind = type_1(&mut s);
    s.bind(1, SendFlags::empty(), &bind(1));
    // The request names the window, not the key that it has by then.
    s.bind(2, SendFlags::empty(), &bind(2));
    s.recv(pkt("READ_REQUEST", RQ).reth(s.va(64), bind(2).new_rkey, 64));
    s.expect(&["READ_RESP_ONLY 002000 syn=1f msn=1 +64"]);
    // No region is looked at.
    s.bind(3, SendFlags::empty(), &BindWqe { mr: Lkey(0), len: 0, ..bind(3) });
    assert_eq!(s.results(), [(1, Success), (2, Success), (3, Success)]);
    s.recv(pkt("READ_REQUEST", RQ + 1).reth(s.va(64), bind(3).new_rkey, 64));
    s.expect(&["ACK 002001 syn=62 msn=1"]);
    s.engine.deregister(s.pd, s.mr.lkey).unwrap();
}

#[test]
fn the_old_key_of_a_window_of_type_1_is_dead() {
    let mut s = Script::new();
    let bind = type_1(&mut s);
    s.bind(1, SendFlags::empty(), &bind(1));
    s.bind(2, SendFlags::empty(), &bind(2));
    s.recv(pkt("READ_REQUEST", RQ).reth(s.va(64), bind(1).new_rkey, 64));
    s.expect(&["ACK 002000 syn=62 msn=0"]);
}

#[test]
fn no_peer_can_invalidate_a_window_of_type_1() {
    let mut s = Script::new();
    let bind = type_1(&mut s);
    s.bind(1, SendFlags::empty(), &bind(1));
    s.post_recv(7, 0, 64);
    s.recv(pkt("SEND_ONLY_INV", RQ).inv(bind(1).new_rkey).ask());
    s.expect(&["ACK 002000 syn=62 msn=0"]);
    assert_eq!(s.results(), [(1, Success), (7, LocAccess)]);
    // Nor can its owner, by a request.
    let mut s = Script::new();
    let bind = type_1(&mut s);
    s.bind(1, SendFlags::empty(), &bind(1));
    s.post_wqe(local_inv(bind(1).new_rkey, 2), &[]);
    assert_eq!(s.results(), [(1, Success), (2, LocQpOp)]);
}

#[test]
fn a_bind_of_type_1_that_failed_leaves_the_window_as_it_was() {
    let mut s = Script::new();
    let bind = type_1(&mut s);
    s.bind(1, SendFlags::empty(), &bind(1));
    s.bind(2, SendFlags::empty(), &BindWqe { len: 1 << 20, ..bind(2) });
    assert_eq!(s.results(), [(1, Success), (2, MwBind)]);
    let qp = second_qp(&mut s);
    (s.qp, s.face) = (qp, s.engine.qps.get(qp).unwrap().face.clone());
    let setup = Setup::default();
    s.init(&setup);
    s.rtr(RQ, &setup);
    s.rts(SQ, &setup);
    s.recv(pkt("READ_REQUEST", RQ).reth(s.va(64), bind(1).new_rkey, 64));
    s.expect(&["READ_RESP_ONLY 002000 syn=1f msn=1 +64"]);
    // Its owner goes on from the key of the bind that failed.
    s.bind(3, SendFlags::empty(), &BindWqe { mw: bind(2).new_rkey, ..bind(3) });
    assert_eq!(s.results(), [(3, Success)]);
}

#[test]
fn memory_with_a_bound_window_stays_until_the_queue_pair_goes() {
    let mut s = Script::new();
    let key = s.window(0, 64, Access::REMOTE_READ);
    let busy = MemError::Busy { windows: 1 };
    assert_eq!(s.engine.deregister(s.pd, s.mr.lkey).unwrap_err(), busy);
    s.engine.destroy_qp(s.qp).unwrap();
    s.engine.deregister(s.pd, s.mr.lkey).unwrap();
    s.engine.dealloc_mw(s.pd, key).unwrap();
    assert_eq!(s.engine.memory().windows(), 0);
}

#[test]
fn a_window_goes_by_any_key_it_has_had() {
    // Its owner has posted binds that changed the key, or failed, or were flushed.
    let mut s = Script::new();
    for guess in [0, 0x55, 0xff] {
        let key = s.window(0, 64, Access::REMOTE_READ);
        s.engine.dealloc_mw(s.pd, Rkey(key.0 ^ guess)).unwrap();
        assert_eq!(s.engine.memory().windows(), 0);
        assert!(s.engine.dealloc_mw(s.pd, key).is_err());
    }
    s.engine.destroy_qp(s.qp).unwrap();
    s.engine.deregister(s.pd, s.mr.lkey).unwrap();
    s.engine.dealloc_pd(s.pd).unwrap();
}

#[test]
fn a_write_whose_window_dies_in_the_middle() {
    let mut s = Script::new();
    let key = s.window(0, 2048, Access::REMOTE_WRITE);
    let va = s.va(0);
    s.recv(pkt("WRITE_FIRST", RQ).reth(va, key, 2048).len(1024));
    s.post_wqe(local_inv(key, 1), &[]);
    assert_eq!(s.results(), [(1, Success)]);
    s.recv(pkt("WRITE_LAST", RQ + 1).len(1024));
    s.expect(&["ACK 002001 syn=62 msn=0"]);
    assert_eq!(s.bytes(1024, 1024), [0; 1024]);
    assert_eq!(s.counter(C::RespRemoteAccessErrors), 1);
}
