//! Memory windows: of type 2, bound and invalidated by work requests, for one queue pair; and of type 1, bound
//! by a verb, for all.

use softroce::prelude::*;
use softroce::verbs::{Cause, MemError};

use super::Bed;
use crate::testbed::{Pair, Side, Testbed};

const EINVAL: i32 = 22;
const EBUSY: i32 = 16;

/// A pair whose second end has memory and a window bound to its bytes 100 to 200.
struct Windowed {
    pair: Pair,
    mr: MemoryRegion,
    mw: MemoryWindow,
}

impl Windowed {
    fn new(bed: &Bed, access: Access) -> Self {
        let pair = Pair::new(bed);
        let mr = pair.b.memory(4096);
        let mw = pair.b.pd.alloc_mw(MwType::Type2).unwrap();
        let before = mw.rkey();
        let wc = pair.b.done(SendWr::bind_mw(1, &mw, &mr, 100..200, access));
        assert_eq!(wc.opcode, WcOpcode::BindMw);
        assert_eq!((mw.rkey() ^ before) & !0xff, 0, "only the low byte changes");
        assert_ne!(mw.rkey(), before);
        assert_ne!(mw.rkey(), mr.rkey());
        Self { pair, mr, mw }
    }

    /// A place in the window, by its key.
    fn at(&self, offset: u64) -> RemoteSlice {
        RemoteSlice { addr: self.mr.iova() + offset, rkey: self.mw.rkey() }
    }

    fn write(&self, offset: u64) -> WcStatus {
        self.pair.a.outcome(SendWr::write(1, inline(b"12345678"), self.at(offset)))
    }
}

#[test]
fn a_window_opens_its_range_and_no_more() {
    let Some(bed) = Bed::start() else { return };
    for (offset, inside) in [(100, true), (192, true), (99, false), (193, false), (0, false)] {
        let w = Windowed::new(&bed, Access::REMOTE_WRITE);
        let want = if inside { WcStatus::Success } else { WcStatus::RemAccess };
        assert_eq!(w.write(offset), want, "{offset}");
        let written = w.mr.to_vec(0..4096).iter().filter(|&&b| b != 0).count();
        assert_eq!(written, if inside { 8 } else { 0 });
    }
}

#[test]
fn a_window_grants_what_it_was_bound_with() {
    let Some(bed) = Bed::start() else { return };
    let w = Windowed::new(&bed, Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    let mine = w.pair.a.memory(8);
    assert_eq!(w.write(100), WcStatus::Success);
    w.pair.a.done(SendWr::fetch_add(1, mine.sge(..), w.at(104), 1));
    let read = w.pair.a.outcome(SendWr::read(2, mine.sge(..), w.at(100)));
    assert_eq!(read, WcStatus::RemAccess);
}

#[test]
fn a_window_is_for_the_queue_pair_that_bound_it() {
    let Some(bed) = Bed::start() else { return };
    let w = Windowed::new(&bed, Access::REMOTE_WRITE);
    let Pair { a, b } = &w.pair;
    // A second connection in the same two domains.
    let second = Pair::connect(
        Side::with(&a.ctx, |_| a.pd.create_qp(QpType::Rc, &a.cq)),
        Side::with(&b.ctx, |_| b.pd.create_qp(QpType::Rc, &b.cq)),
        &QpAttr::default(),
    );
    second.a.post(SendWr::write(1, inline(b"x"), w.at(100)));
    assert_eq!(a.sent().status, WcStatus::RemAccess);
    assert_eq!(w.write(100), WcStatus::Success);
}

#[test]
fn invalidated_by_its_owner() {
    let Some(bed) = Bed::start() else { return };
    let w = Windowed::new(&bed, Access::REMOTE_WRITE);
    assert_eq!(w.write(100), WcStatus::Success);
    let wc = w.pair.b.done(SendWr::local_inv(2, w.mw.rkey()));
    assert_eq!(wc.opcode, WcOpcode::LocalInv);
    assert_eq!(w.write(100), WcStatus::RemAccess);
    // The region is free again.
    w.mr.deregister().unwrap();
}

#[test]
fn invalidated_by_a_message_of_the_peer() {
    let Some(bed) = Bed::start() else { return };
    let w = Windowed::new(&bed, Access::REMOTE_WRITE);
    let Pair { a, b } = &w.pair;
    let old = w.mw.rkey();
    b.qp.post_recv(RecvWr::new(7, ())).unwrap();
    a.done(SendWr::send(1, ()).invalidate(old));
    let wc = b.received().ok().unwrap();
    assert_eq!((wc.invalidated_rkey, wc.imm, wc.byte_len), (Some(old), None, 0));

    // Bound again, the window has another key, and the old one is dead.
    b.done(SendWr::bind_mw(1, &w.mw, &w.mr, 100..200, Access::REMOTE_WRITE));
    assert_ne!(w.mw.rkey(), old);
    assert_eq!(w.write(100), WcStatus::Success);
    let stale = RemoteSlice { rkey: old, ..w.at(100) };
    assert_eq!(a.outcome(SendWr::write(1, inline(b"x"), stale)), WcStatus::RemAccess);
}

#[test]
fn invalidating_what_is_no_window_is_an_error() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let mr = b.memory(8);
    b.qp.post_recv(RecvWr::new(7, ())).unwrap();
    let status = a.outcome(SendWr::send(1, ()).invalidate(mr.rkey()));
    assert!(matches!(status, WcStatus::RemAccess | WcStatus::RemInvReq), "{status:?}");
    assert_ne!(b.received().status, WcStatus::Success);
    let Pair { a, b } = Pair::new(&bed);
    let mr = b.memory(8);
    let status = b.outcome(SendWr::local_inv(1, mr.rkey()));
    assert_ne!(status, WcStatus::Success);
    assert_eq!(b.state(), QpState::Err);
    drop(a);
}

#[test]
fn a_key_of_ones_own_choice() {
    let Some(bed) = Bed::start() else { return };
    let w = Windowed::new(&bed, Access::REMOTE_WRITE);
    let b = &w.pair.b;
    b.done(SendWr::local_inv(1, w.mw.rkey()));
    let chosen = w.mw.rkey() & !0xff | 0x5a;
    b.done(SendWr::bind_mw_key(2, &w.mw, &w.mr, 100..200, Access::REMOTE_WRITE, chosen));
    assert_eq!(w.mw.rkey(), chosen);
    assert_eq!(w.write(100), WcStatus::Success);
    let foreign = chosen ^ 0x100;
    let wr = SendWr::bind_mw_key(3, &w.mw, &w.mr, 100..200, Access::REMOTE_WRITE, foreign);
    let e = b.qp.post_send(wr).unwrap_err();
    assert_eq!((e.errno(), w.mw.rkey()), (Some(EINVAL), chosen));
}

#[test]
fn binds_that_fail() {
    let Some(bed) = Bed::start() else { return };
    let write = Access::REMOTE_WRITE;
    let bind = |what: &str, region: Access, range, access| {
        let Pair { a, b } = Pair::new(&bed);
        let mr = b.pd.alloc_mr(4096, region).unwrap();
        let mw = b.pd.alloc_mw(MwType::Type2).unwrap();
        assert_eq!(
            b.outcome(SendWr::bind_mw(1, &mw, &mr, range, access)),
            WcStatus::MwBind,
            "{what}"
        );
        assert_eq!(b.state(), QpState::Err);
        drop(a);
    };
    let all = Access::REMOTE | Access::MW_BIND;
    bind("a region that takes no windows", Access::REMOTE, 0..8, write);
    bind("no local write", Access::REMOTE_READ | Access::MW_BIND, 0..8, write);
    bind("no bytes", all, 8..8, write);
    bind("a right that is not a window's", all, 0..8, write | Access::LOCAL_WRITE);
    bind("a zero-based region", all | Access::ZERO_BASED, 0..8, write);

    // A window that is bound must be invalidated first; the binding stays.
    let w = Windowed::new(&bed, write);
    let b = &w.pair.b;
    let key = w.mw.rkey();
    let again = SendWr::bind_mw_key(1, &w.mw, &w.mr, 0..8, write, key);
    assert_eq!(b.outcome(again), WcStatus::MwBind);

    // One that does not fit the queue leaves the window's key as it is, and the window usable.
    let [here, there] = bed.hosts();
    let cap = QpCap { send_wr: 1, ..QpCap::default() };
    let small = Side::with(there, |qp| qp.cap(cap));
    let Pair { a, b } = Pair::connect(Side::new(here), small, &QpAttr::default());
    let mr = b.memory(64);
    let mw = b.pd.alloc_mw(MwType::Type1).unwrap();
    let key = b.qp.bind_mw(SendWr::bind_mw(1, &mw, &mr, 0..64, write)).unwrap();
    let full = b.qp.bind_mw(SendWr::bind_mw(2, &mw, &mr, 0..8, write)).unwrap_err();
    assert_eq!(full.cause(), Some(&Cause::QueueFull { depth: 1 }));
    assert_eq!(mw.rkey(), key);
    b.sent().ok().unwrap();
    let at = RemoteSlice { addr: mr.iova() + 32, rkey: mw.rkey() };
    a.done(SendWr::write(1, inline(b"x"), at));

    // Window and region of two domains.
    let Pair { b, .. } = Pair::new(&bed);
    let elsewhere = b.ctx.alloc_pd().unwrap();
    let mw = elsewhere.alloc_mw(MwType::Type2).unwrap();
    let mr = b.memory(64);
    assert_eq!(b.outcome(SendWr::bind_mw(1, &mw, &mr, 0..8, write)), WcStatus::MwBind);

    // A range that is not one is found when posting.
    let Pair { b, .. } = Pair::new(&bed);
    let mw = b.pd.alloc_mw(MwType::Type2).unwrap();
    let mr = b.memory(64);
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is tried")]
    for range in [0..65, 65..65, 9..8] {
        let e = b.qp.post_send(SendWr::bind_mw(1, &mw, &mr, range, write)).unwrap_err();
        assert_eq!(e.errno(), Some(EINVAL));
    }
    b.done(SendWr::bind_mw(1, &mw, &mr, 0..64, write));
}

#[test]
fn no_window_outlives_its_region() {
    let Some(bed) = Bed::start() else { return };
    let w = Windowed::new(&bed, Access::REMOTE_WRITE);
    let at = w.at(100);
    let Windowed { pair: Pair { a, b }, mr, mw } = w;
    let e = mr.deregister().unwrap_err();
    assert_eq!(e.errno(), Some(EBUSY));
    assert_eq!(e.cause(), Some(&Cause::Memory(MemError::Busy { windows: 1 })));
    // The region is gone nevertheless, and its window leads nowhere.
    assert_eq!(a.outcome(SendWr::write(1, inline(b"x"), at)), WcStatus::RemAccess);
    drop((b, mw));
}

#[test]
fn a_window_that_is_dropped_lets_the_region_go() {
    let Some(bed) = Bed::start() else { return };
    let w = Windowed::new(&bed, Access::REMOTE_WRITE);
    let at = w.at(100);
    drop(w.mw);
    w.mr.deregister().unwrap();
    let status = w.pair.a.outcome(SendWr::write(1, inline(b"x"), at));
    assert_eq!(status, WcStatus::RemAccess);

    // So does the queue pair that it was bound through.
    let w = Windowed::new(&bed, Access::REMOTE_WRITE);
    w.pair.b.qp.destroy().unwrap();
    w.mr.deregister().unwrap();
}

#[test]
fn type_1_is_bound_by_its_verb_for_every_queue_pair() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let mr = b.memory(4096);
    let mw = b.pd.alloc_mw(MwType::Type1).unwrap();
    let before = mw.rkey();
    let bind = SendWr::bind_mw(1, &mw, &mr, 100..200, Access::REMOTE_WRITE);
    let rkey = b.qp.bind_mw(bind).unwrap();
    let wc = b.sent().ok().unwrap();
    assert_eq!((wc.wr_id, wc.opcode), (1, WcOpcode::BindMw));
    assert_eq!(mw.rkey(), rkey);
    assert_ne!(rkey, before, "the device makes a new key");
    assert_eq!((rkey ^ before) & !0xff, 0);
    let addr = mr.iova() + 100;
    let at = |rkey| RemoteSlice { addr, rkey };
    a.done(SendWr::write(1, inline(b"first"), at(rkey)));
    // Another queue pair of the domain.
    let second = Pair::connect(
        Side::with(&a.ctx, |_| a.pd.create_qp(QpType::Rc, &a.cq)),
        Side::with(&b.ctx, |_| b.pd.create_qp(QpType::Rc, &b.cq)),
        &QpAttr::default(),
    );
    second.a.post(SendWr::write(2, inline(b"again"), at(rkey)));
    a.sent().ok().unwrap();
    assert_eq!(mr.to_vec(100..105), b"again");
    // Bound anew, without more ado: the old key is dead.
    let other = b.memory(64);
    let bind = SendWr::bind_mw(2, &mw, &other, 0..64, Access::REMOTE_WRITE).unsignaled();
    let moved = b.qp.bind_mw(bind).unwrap();
    assert_ne!(moved, rkey);
    b.done(SendWr::write(3, (), RemoteSlice { addr: 0, rkey: 0 }));
    a.done(SendWr::write(4, inline(b"moved"), RemoteSlice { addr: other.iova(), rkey: moved }));
    assert_eq!(other.to_vec(0..5), b"moved");
    mr.deregister().unwrap();
    assert_eq!(a.outcome(SendWr::write(5, inline(b"x"), at(rkey))), WcStatus::RemAccess);
}

#[test]
fn type_1_is_unbound_by_an_empty_range() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let mr = b.memory(64);
    let mw = b.pd.alloc_mw(MwType::Type1).unwrap();
    let addr = mr.iova();
    let at = |rkey| RemoteSlice { addr, rkey };
    b.qp.bind_mw(SendWr::bind_mw(1, &mw, &mr, 0..64, Access::REMOTE_WRITE)).unwrap();
    b.sent().ok().unwrap();
    a.done(SendWr::write(1, inline(b"x"), at(mw.rkey())));
    let bound = mw.rkey();
    b.qp.bind_mw(SendWr::bind_mw(2, &mw, &mr, 0..0, Access::empty())).unwrap();
    b.sent().ok().unwrap();
    assert_eq!(a.outcome(SendWr::write(2, inline(b"x"), at(bound))), WcStatus::RemAccess);
    mr.deregister().unwrap();
}

#[test]
fn type_1_survives_a_bind_that_failed() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let closed = b.pd.alloc_mr(64, Access::REMOTE).unwrap();
    let mw = b.pd.alloc_mw(MwType::Type1).unwrap();
    b.qp.bind_mw(SendWr::bind_mw(1, &mw, &closed, 0..64, Access::REMOTE_READ)).unwrap();
    assert_eq!(b.sent().status, WcStatus::MwBind);
    // Through another queue pair, which is alive.
    let second = Pair::connect(
        Side::new(&a.ctx),
        Side::with(&b.ctx, |_| b.pd.create_qp(QpType::Rc, &b.cq)),
        &QpAttr::default(),
    );
    let mr = b.memory(64);
    mr.write(0, b"still");
    let bind = SendWr::bind_mw(2, &mw, &mr, 0..64, Access::REMOTE_READ);
    let rkey = second.b.qp.bind_mw(bind).unwrap();
    b.sent().ok().unwrap();
    let mine = second.a.memory(5);
    let there = RemoteSlice { addr: mr.iova(), rkey };
    second.a.done(SendWr::read(1, mine.sge(..), there));
    assert_eq!(mine.to_vec(0..5), b"still");
}

#[test]
fn each_type_has_its_own_way_to_be_bound() {
    let Some(bed) = Bed::start() else { return };
    let Pair { b, .. } = Pair::new(&bed);
    let mr = b.memory(64);
    let [one, two] = [MwType::Type1, MwType::Type2].map(|t| b.pd.alloc_mw(t).unwrap());
    let keys = (one.rkey(), two.rkey());
    let read = Access::REMOTE_READ;
    let refused = |e: Error, word: &str| {
        assert_eq!(e.errno(), Some(EINVAL));
        assert!(e.to_string().contains(word), "{e}");
    };
    let posted = b.qp.post_send(SendWr::bind_mw(1, &one, &mr, 0..8, read));
    refused(posted.unwrap_err(), "QueuePair::bind_mw");
    let bound = b.qp.bind_mw(SendWr::bind_mw(1, &two, &mr, 0..8, read));
    refused(bound.unwrap_err(), "post_send");
    let chosen = SendWr::bind_mw_key(1, &one, &mr, 0..8, read, one.rkey().wrapping_add(2) ^ 0x80);
    refused(b.qp.bind_mw(chosen).unwrap_err(), "made by the device");
    refused(b.qp.bind_mw(SendWr::send(1, ())).unwrap_err(), "SendWr::bind_mw");
    assert_eq!((one.rkey(), two.rkey()), keys, "nothing has changed");
}
