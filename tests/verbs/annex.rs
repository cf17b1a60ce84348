//! ATOMIC WRITE and FLUSH.

use std::sync::atomic::Ordering;

use softroce::prelude::*;
use softroce::verbs::{Cause, MemError};

use super::Bed;
use crate::testbed::{Pair, Testbed};

const EINVAL: i32 = 22;
const FLUSHED: Access = Access::REMOTE.union(Access::FLUSH_GLOBAL);

#[test]
fn an_atomic_write_arrives_whole_and_behind_what_came_before() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let (from, to) = (a.memory(64), b.memory(64));
    from.store(8, 0x0102_0304_0506_0708, Ordering::Relaxed);
    let wc = a.done(SendWr::atomic_write(1, from.sge(8..16), to.remote().at(16)));
    assert_eq!(wc.opcode, WcOpcode::AtomicWrite);
    assert_eq!(to.load(16, Ordering::Acquire), 0x0102_0304_0506_0708, "a host integer stays one");
    let pieces = [from.sge(8..11), from.sge(0..5)];
    a.done(SendWr::atomic_write(2, &pieces, to.remote().at(24)));
    assert_eq!(to.to_vec(24..32)[..3], from.to_vec(8..11));
    a.qp.post_send([
        SendWr::write(3, inline(b"the message"), to.remote().at(32)).unsignaled(),
        SendWr::atomic_write(4, inline(&7_u64.to_ne_bytes()), to.remote().at(0)),
    ])
    .unwrap();
    bed.until("the flag", || to.load(0, Ordering::Acquire) == 7);
    assert_eq!(to.to_vec(32..43), b"the message");
    a.sent().ok().unwrap();
    assert_eq!(b.counter("rx_atomic_write_requests"), 3);
}

#[test]
fn an_atomic_write_is_8_aligned_bytes_of_memory_that_may_be_written() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let (from, to) = (a.memory(64), b.memory(64));
    for len in [0, 4, 16] {
        let e = a.qp.post_send(SendWr::atomic_write(1, from.sge(..len), to.remote())).unwrap_err();
        assert_eq!(
            (e.errno(), e.cause()),
            (Some(EINVAL), Some(&Cause::AtomicLocal { got: len as u64 }))
        );
        let bytes = vec![0; len];
        assert!(a.qp.post_send(SendWr::atomic_write(1, inline(&bytes), to.remote())).is_err());
    }
    let crooked = to.remote().at(4);
    assert_eq!(a.outcome(SendWr::atomic_write(1, from.sge(..8), crooked)), WcStatus::RemInvReq);
    let Pair { a, b } = Pair::new(&bed);
    let readable = b.pd.alloc_mr(8, Access::LOCAL | Access::REMOTE_READ).unwrap();
    let write = SendWr::atomic_write(1, inline(&[1; 8]), readable.remote());
    assert_eq!(a.outcome(write), WcStatus::RemAccess);
    assert_eq!(readable.to_vec(0..8), [0; 8]);
}

#[test]
fn a_flush_makes_what_was_written_before_visible() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let to = b.pd.alloc_mr(100_000, FLUSHED).unwrap();
    let from = a.memory(100_000);
    from.fill(0..100_000, 0x5a);
    a.qp.post_send([
        SendWr::write(1, from.sge(..), to.remote()).unsignaled(),
        SendWr::flush(2, to.remote(), 100_000, Placement::GLOBAL),
    ])
    .unwrap();
    let wc = a.sent().ok().unwrap();
    assert_eq!((wc.wr_id, wc.opcode), (2, WcOpcode::Flush));
    assert_eq!(to.to_vec(0..100_000), from.to_vec(0..100_000));
    a.done(SendWr::flush(3, to.remote().at(10), 0, Placement::GLOBAL));
    a.done(SendWr::flush_all(4, to.remote(), Placement::GLOBAL));
    assert_eq!(b.counter("rx_flush_requests"), 3);
}

#[test]
fn a_flush_needs_the_right_and_the_range() {
    let Some(bed) = Bed::start() else { return };
    type Make = fn(RemoteMr) -> SendWr<'static>;
    let cases: [(Access, Make); 4] = [
        (Access::REMOTE, |to| SendWr::flush(1, to, 8, Placement::GLOBAL)),
        (Access::REMOTE, |to| SendWr::flush_all(1, to, Placement::GLOBAL)),
        (FLUSHED, |to| SendWr::flush(1, to, 65, Placement::GLOBAL)),
        (FLUSHED, |to| SendWr::flush_all(1, to, Placement::GLOBAL | Placement::PERSISTENT)),
    ];
    for (access, make) in cases {
        let Pair { a, b } = Pair::new(&bed);
        let to = b.pd.alloc_mr(64, access).unwrap();
        assert_eq!(a.outcome(make(to.remote())), WcStatus::RemAccess);
        assert_eq!(b.event(), Event::QpAccessErr { qpn: b.qp.number() });
    }
    // A queue pair through which nobody may.
    let Pair { a, b } = Pair::with(&bed, |qp| qp.access(Access::REMOTE));
    let to = b.pd.alloc_mr(64, FLUSHED).unwrap();
    let flush = SendWr::flush(1, to.remote(), 8, Placement::GLOBAL);
    assert_eq!(a.outcome(flush), WcStatus::RemInvReq);
    let e = a.qp.post_send(SendWr::flush(1, to.remote(), 8, Placement::empty())).unwrap_err();
    assert_eq!(e.errno(), Some(EINVAL));
    let long = SendWr::flush(1, to.remote(), (1 << 31) + 1, Placement::GLOBAL);
    let e = a.qp.post_send(long).unwrap_err();
    assert_eq!(e.cause(), Some(&Cause::MessageTooLong { got: (1 << 31) + 1, max: 1 << 31 }));
}

#[test]
fn a_window_may_let_its_users_flush() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let mr = b.pd.alloc_mr(4096, FLUSHED | Access::MW_BIND).unwrap();
    let mw = b.pd.alloc_mw(MwType::Type2).unwrap();
    let grants = Access::REMOTE_WRITE | Access::FLUSH_GLOBAL;
    b.done(SendWr::bind_mw(1, &mw, &mr, 64..128, grants));
    let at = |addr| RemoteSlice { addr: mr.iova() + addr, rkey: mw.rkey() };
    a.done(SendWr::flush(1, at(64), 64, Placement::GLOBAL));
    a.done(SendWr::flush_all(2, at(0), Placement::GLOBAL));
    let beside = SendWr::flush(3, at(64), 65, Placement::GLOBAL);
    assert_eq!(a.outcome(beside), WcStatus::RemAccess);
}

#[test]
fn our_own_memory_cannot_be_made_persistent() {
    let Some(bed) = Bed::start() else { return };
    let pd = bed.hosts()[0].alloc_pd().unwrap();
    let e = pd.alloc_mr(64, Access::REMOTE | Access::FLUSH_PERSISTENT).unwrap_err();
    assert_eq!(
        (e.errno(), e.cause()),
        (Some(EINVAL), Some(&Cause::Memory(MemError::NotPersistent)))
    );
}

#[cfg(target_arch = "x86_64")]
#[test]
#[expect(unsafe_code, reason = "memory of the program's own is registered by unsafe functions")]
fn memory_that_its_owner_calls_persistent() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let mut words = vec![0_u64; 1000];
    let ptr = words.as_mut_ptr().cast();
    let access = Access::REMOTE | Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
    // SAFETY: `words` outlives the region and is looked at through it only.
    let to = unsafe { b.pd.reg_mr(ptr, 8000, access) }.unwrap();
    a.qp.post_send([
        SendWr::write(1, inline(b"to stay"), to.remote().at(3)).unsignaled(),
        SendWr::flush(2, to.remote().at(3), 7, Placement::PERSISTENT),
        SendWr::flush_all(3, to.remote(), Placement::PERSISTENT | Placement::GLOBAL),
    ])
    .unwrap();
    for id in [2, 3] {
        assert_eq!(a.sent().ok().unwrap().wr_id, id);
    }
    assert_eq!(to.to_vec(3..10), b"to stay");
    drop(to);
    drop(words);
}

/// Longer than one pass of the device takes.
#[cfg(target_arch = "x86_64")]
#[test]
#[expect(unsafe_code, reason = "memory of the program's own is registered by unsafe functions")]
fn a_long_flush_and_what_follows_it() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let len = 16 << 20;
    let mut words = vec![0_u64; len / 8];
    let access = Access::REMOTE | Access::FLUSH_PERSISTENT;
    // SAFETY: `words` outlives the region and is looked at through it only.
    let to = unsafe { b.pd.reg_mr(words.as_mut_ptr().cast(), len, access) }.unwrap();
    let result = a.memory(8);
    a.qp.post_send([
        SendWr::flush_all(1, to.remote(), Placement::PERSISTENT),
        SendWr::atomic_write(2, inline(&7_u64.to_ne_bytes()), to.remote()),
        SendWr::fetch_add(3, result.sge(..), to.remote(), 1),
    ])
    .unwrap();
    // It serves others meanwhile.
    let lent = a.memory(8);
    b.done(SendWr::write(9, inline(b"not idle"), lent.remote()));
    for id in [1, 2, 3] {
        assert_eq!(a.sent().ok().unwrap().wr_id, id);
    }
    assert_eq!(
        (result.to_vec(0..8), to.to_vec(0..8)),
        (7_u64.to_ne_bytes().to_vec(), 8_u64.to_ne_bytes().to_vec())
    );
    drop(to);
    drop(words);
}
