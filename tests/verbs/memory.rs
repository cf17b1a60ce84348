//! Memory: registering it, its rights and ranges, and what happens when it goes while requests name it.

use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context as TaskContext, Wake, Waker};

use softroce::prelude::*;
use softroce::verbs::{Cause, MemError};

use super::Bed;
use crate::testbed::{Guarded, Pair, Side, Testbed, pattern};

const EINVAL: i32 = 22;

#[track_caller]
fn memory_error(result: Result<MemoryRegion>) -> MemError {
    match result.unwrap_err() {
        Error::Verb { verb: "ibv_reg_mr", errno, cause: Cause::Memory(e) } => {
            assert_eq!(errno, e.errno());
            e
        }
        other => panic!("{other}"),
    }
}

#[test]
fn local_access() {
    let Some(bed) = Bed::start() else { return };
    let side = Side::new(bed.hosts()[0]);
    let mr = side.memory(100);
    assert_eq!((mr.len(), mr.is_empty(), mr.to_vec(0..100)), (100, false, vec![0; 100]));
    mr.fill(3..97, 0xaa);
    mr.write(10, b"hello");
    let mut got = [0; 7];
    mr.read(9, &mut got);
    assert_eq!(&got, b"\xaahello\xaa");
    assert_eq!(mr.to_vec(0..4), [0, 0, 0, 0xaa]);
    mr.store(16, 0x0102_0304_0506_0708, Ordering::Release);
    assert_eq!(mr.load(16, Ordering::Acquire), 0x0102_0304_0506_0708);
    let mut cursor = mr.cursor(90..100);
    assert_eq!(cursor.write(b"0123456789abc").unwrap(), 10);
    assert_eq!(cursor.write(b"x").unwrap(), 0);
    let mut back = String::new();
    mr.cursor(90..100).read_to_string(&mut back).unwrap();
    assert_eq!(back, "0123456789");
    assert_ne!(mr.lkey(), mr.rkey());
    assert_eq!((mr.remote().len, mr.remote().rkey), (100, mr.rkey()));
    assert_eq!(mr.sge(10..30).len(), 20);
    assert!(mr.sge(30..30).is_empty());
    for range in [0..101, 101..101] {
        catch_unwind(AssertUnwindSafe(|| mr.sge(range))).unwrap_err();
    }
    catch_unwind(AssertUnwindSafe(|| mr.load(4, Ordering::Relaxed))).unwrap_err();
    catch_unwind(AssertUnwindSafe(|| mr.load(104, Ordering::Relaxed))).unwrap_err();
    catch_unwind(AssertUnwindSafe(|| mr.write(96, b"12345"))).unwrap_err();
}

#[test]
fn what_cannot_be_registered() {
    let Some(bed) = Bed::start() else { return };
    let pd = bed.hosts()[0].alloc_pd().unwrap();
    assert_eq!(memory_error(pd.alloc_mr(0, Access::LOCAL)), MemError::Empty);
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC | Access::REMOTE_READ] {
        let e = memory_error(pd.alloc_mr(8, access));
        assert_eq!(e, MemError::NeedsLocalWrite { access });
    }
    let unknown = Access::from_bits_retain(1 << 30);
    let e = memory_error(pd.alloc_mr(8, Access::LOCAL | unknown));
    assert_eq!(e, MemError::UnknownAccess { bits: 1 << 30 });
    let e = memory_error(pd.alloc_mr(isize::MAX as usize, Access::LOCAL));
    assert_eq!(e.errno(), 12);
    assert!(matches!(e, MemError::NoMemory { .. }), "{e}");
    // What only tells what may be done remotely needs nothing, nor do hints.
    pd.alloc_mr(8, Access::REMOTE_READ).unwrap();
    pd.alloc_mr(8, Access::ON_DEMAND | Access::RELAXED_ORDERING | Access::HUGETLB).unwrap();
}

#[test]
#[expect(unsafe_code, reason = "memory of the program's own is registered by unsafe functions")]
fn memory_of_the_programs_own() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let mut bytes = pattern(1, 3001);
    // An odd address and an odd length: both ends share words with their neighbours.
    let (ptr, len) = (bytes[1..].as_mut_ptr(), 2000);
    // SAFETY: `bytes` is not looked at before the region is gone.
    let mr = unsafe { b.pd.reg_mr(ptr, len, Access::REMOTE) }.unwrap();
    assert_eq!((mr.iova(), mr.as_ptr(), mr.len()), (ptr.addr() as u64, ptr, 2000));
    let from = a.memory(2000);
    from.write(0, &pattern(2, 2000));
    a.done(SendWr::write(1, from.sge(..), mr.remote()));
    let into = a.memory(2000);
    a.done(SendWr::read(2, into.sge(..), mr.remote()));
    assert_eq!(into.to_vec(0..2000), pattern(2, 2000));
    mr.deregister().unwrap();
    let mut want = pattern(1, 3001);
    want[1..2001].copy_from_slice(&pattern(2, 2000));
    assert_eq!(bytes, want);

    // SAFETY: nothing is registered.
    let e = unsafe { b.pd.reg_mr(std::ptr::null_mut(), 8, Access::LOCAL) }.unwrap_err();
    assert_eq!(e.errno(), Some(EINVAL));
    // SAFETY: as above.
    let e = unsafe { b.pd.reg_mr(bytes.as_mut_ptr(), 0, Access::LOCAL) };
    assert_eq!(memory_error(e), MemError::Empty);
}

#[test]
#[expect(unsafe_code, reason = "memory of the program's own is registered by unsafe functions")]
fn addresses_of_ones_own_choice() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let mut bytes = vec![0_u8; 4096];
    let last = u64::MAX - 4095;
    for iova in [0, 1, 0x1000, 1 << 47, last] {
        // SAFETY: `bytes` is not looked at before the region is gone.
        let mr = unsafe { b.pd.reg_mr_iova(bytes.as_mut_ptr(), 4095, iova, Access::REMOTE) };
        let mr = mr.unwrap();
        assert_eq!((mr.iova(), mr.remote().addr), (iova, iova));
        a.done(SendWr::write(1, inline(b"first"), mr.remote()));
        a.done(SendWr::write(1, inline(b"last"), mr.remote().at(4091)));
        assert_eq!((mr.to_vec(0..5), mr.to_vec(4091..4095)), (b"first".to_vec(), b"last".to_vec()));
        // The address is what requests of this side name, too.
        b.qp.post_recv(RecvWr::new(1, mr.sge(100..200))).unwrap();
        a.done(SendWr::send(1, inline(b"sent")));
        b.received().ok().unwrap();
        assert_eq!(mr.to_vec(100..104), b"sent");
    }
    // SAFETY: nothing is registered.
    let e = unsafe { b.pd.reg_mr_iova(bytes.as_mut_ptr(), 4096, last + 1, Access::REMOTE) };
    assert_eq!(memory_error(e), MemError::AddressWraps { iova: last + 1, len: 4096 });

    let zero = b.pd.alloc_mr(64, Access::REMOTE | Access::ZERO_BASED).unwrap();
    assert_eq!(zero.remote().addr, 0);
    a.done(SendWr::write(1, inline(b"offset"), zero.remote().at(10)));
    assert_eq!(zero.to_vec(10..16), b"offset");
}

#[test]
fn each_right_is_needed_for_its_operation() {
    let Some(bed) = Bed::start() else { return };
    let rights = [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC];
    for (i, granted) in rights.into_iter().enumerate() {
        for (j, needed) in rights.into_iter().enumerate() {
            let Pair { a, b } = Pair::new(&bed);
            let mine = a.memory(8);
            let theirs = b.pd.alloc_mr(8, Access::LOCAL | granted).unwrap();
            mine.fill(0..8, 0x55);
            let wr = match needed {
                Access::REMOTE_WRITE => SendWr::write(1, mine.sge(..), theirs.remote()),
                Access::REMOTE_READ => SendWr::read(1, mine.sge(..), theirs.remote()),
                _ => SendWr::fetch_add(1, mine.sge(..), theirs.remote(), 0x55),
            };
            let want = if i == j { WcStatus::Success } else { WcStatus::RemAccess };
            assert_eq!(a.outcome(wr), want, "granted {granted:?}, needed {needed:?}");
            let untouched = theirs.load(0, Ordering::Acquire) == 0;
            assert_eq!(untouched, i != j || needed == Access::REMOTE_READ);
        }
    }
}

#[test]
fn ranges_end_where_they_end() {
    let Some(bed) = Bed::start() else { return };
    const LEN: u64 = 1000;
    let wrap = |at: i64| LEN.wrapping_add_signed(at);
    for (at, len) in [
        (wrap(0), 1),
        (wrap(-7), 8),
        (0_u64.wrapping_sub(1), 1),
        (0_u64.wrapping_sub(8), 16),
        (0, 1001),
        (u64::MAX / 2, 8),
        (0_u64.wrapping_sub(1 << 40), 64),
    ] {
        for read in [false, true] {
            let Pair { a, b } = Pair::new(&bed);
            let target = Guarded::new(&b, 0);
            let mr = b.memory(LEN as usize);
            let mine = a.memory(2000);
            mine.fill(0..2000, 0x55);
            let remote = RemoteSlice { addr: mr.iova().wrapping_add(at), rkey: mr.rkey() };
            let wr = match read {
                true => SendWr::read(1, mine.sge(..len), remote),
                false => SendWr::write(1, mine.sge(..len), remote),
            };
            assert_eq!(a.outcome(wr), WcStatus::RemAccess, "{at:#x} {len}");
            assert_eq!(mr.to_vec(0..LEN as usize), [0; LEN as usize], "nothing is placed");
            assert_eq!(mine.to_vec(0..2000), [0x55; 2000]);
            target.bytes(0);
        }
    }
    let Pair { a, b } = Pair::new(&bed);
    let mr = b.memory(LEN as usize);
    a.done(SendWr::write(1, inline(b"x"), mr.remote().at(LEN - 1)));
    // Of no bytes nothing is checked, neither key nor address.
    let nowhere = RemoteSlice { addr: u64::MAX, rkey: 0 };
    a.done(SendWr::write(1, (), nowhere));
    a.done(SendWr::read(2, (), nowhere));
    assert_eq!(mr.to_vec(0..999), [0; 999]);
}

#[test]
fn keys_that_are_not_or_no_longer() {
    let Some(bed) = Bed::start() else { return };
    let gone = |b: &Side| b.memory(64).remote();
    let foreign = |b: &Side| {
        let pd = b.ctx.alloc_pd().unwrap();
        pd.alloc_mr(64, Access::REMOTE).unwrap()
    };
    for round in 0..4 {
        let Pair { a, b } = Pair::new(&bed);
        let other_domain = foreign(&b);
        let mine = b.memory(64);
        let remote = match round {
            0 => gone(&b),
            1 => other_domain.remote(),
            2 => RemoteMr { rkey: mine.lkey(), ..mine.remote() },
            _ => RemoteMr { rkey: mine.rkey() ^ 1, ..mine.remote() },
        };
        assert_eq!(a.outcome(SendWr::write(1, inline(b"x"), remote)), WcStatus::RemAccess);
        assert_eq!(other_domain.to_vec(0..64), [0; 64]);
        assert_eq!(mine.to_vec(0..64), [0; 64]);
    }
}

#[test]
fn local_memory_of_another_domain_or_gone_or_read_only() {
    let Some(bed) = Bed::start() else { return };
    let pieces = |side: &Side| {
        let foreign = side.ctx.alloc_pd().unwrap().alloc_mr(64, Access::REMOTE).unwrap();
        let read_only = side.pd.alloc_mr(64, Access::REMOTE_READ).unwrap();
        let gone = side.memory(64).sge(..);
        (foreign, read_only, gone)
    };
    for which in 0..3 {
        let pick = |(foreign, read_only, gone): &(MemoryRegion, MemoryRegion, Sge)| match which {
            0 => foreign.sge(..),
            1 => *gone,
            _ => read_only.sge(..),
        };
        // As a source. Reading needs no right.
        let Pair { a, b } = Pair::new(&bed);
        let to = b.memory(64);
        let mine = pieces(&a);
        let want = if which == 2 { WcStatus::Success } else { WcStatus::LocProt };
        assert_eq!(a.outcome(SendWr::write(1, pick(&mine), to.remote())), want);
        if want != WcStatus::Success {
            assert_eq!(a.state(), QpState::Err);
        }
        // As a place for what is read.
        let Pair { a, b } = Pair::new(&bed);
        let from = b.memory(64);
        from.fill(0..64, 0x55);
        let mine = pieces(&a);
        let wr = SendWr::read(1, pick(&mine), from.remote());
        assert_eq!(a.outcome(wr), WcStatus::LocProt);
        assert_eq!((mine.0.to_vec(0..64), mine.1.to_vec(0..64)), (vec![0; 64], vec![0; 64]));
        // As a receive: the receiver's own fault, and the sender is told so.
        let Pair { a, b } = Pair::new(&bed);
        let mine = pieces(&b);
        b.qp.post_recv(RecvWr::new(1, pick(&mine))).unwrap();
        assert_eq!(a.outcome(SendWr::send(1, inline(b"x"))), WcStatus::RemOp);
        assert_eq!(b.received().status, WcStatus::LocProt);
        assert_eq!((a.state(), b.state()), (QpState::Err, QpState::Err));
    }
}

#[test]
fn memory_that_goes_with_requests_outstanding() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let to = b.memory(64);
    // A queue that stands still: the requests are posted, and nothing has looked at them.
    a.qp.modify(&QpAttr::to(QpState::Sqd)).unwrap();
    let (first, second) = (a.memory(64), a.memory(64));
    first.fill(0..64, 1);
    second.fill(0..64, 2);
    a.qp.post_send([
        SendWr::write(1, first.sge(..), to.remote()),
        SendWr::write(2, second.sge(..), to.remote()),
        SendWr::write(3, first.sge(..), to.remote()),
    ])
    .unwrap();
    drop(second);
    a.qp.modify(&QpAttr::to(QpState::Rts)).unwrap();
    let wc = a.sent();
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::Success));
    let wc = a.sent();
    assert_eq!((wc.wr_id, wc.status), (2, WcStatus::LocProt));
    let wc = a.sent();
    assert_eq!((wc.wr_id, wc.status), (3, WcStatus::WrFlush));
    assert_eq!(to.to_vec(0..64), [1; 64]);
}

#[test]
fn memory_that_goes_while_the_peer_reads_or_writes_it() {
    let Some(bed) = Bed::start() else { return };
    const LEN: usize = 4 << 20;
    for read in [true, false] {
        let Pair { a, b } = Pair::new(&bed);
        let (mine, theirs) = (a.memory(LEN), b.memory(LEN));
        mine.fill(0..LEN, 0x11);
        theirs.fill(0..LEN, 0x22);
        let remote = theirs.remote();
        a.post(match read {
            true => SendWr::read(1, mine.sge(..), remote),
            false => SendWr::write(1, mine.sge(..), remote),
        });
        // It has begun.
        let begun = || match read {
            true => mine.to_vec(0..1) == [0x22],
            false => theirs.to_vec(0..1) == [0x11],
        };
        bed.until("the first packet", begun);
        theirs.deregister().unwrap();
        let status = a.sent().status;
        // It may have been over by then. What is not possible: success with bytes from nowhere.
        if status == WcStatus::Success {
            assert!(!read || mine.to_vec(0..LEN) == vec![0x22; LEN]);
        } else {
            assert_eq!((status, a.state()), (WcStatus::RemAccess, QpState::Err));
        }
    }
}

#[test]
fn buffers_of_a_pool() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let (mine, theirs) = (a.pd.pool(100, 3).unwrap(), b.pd.pool(100, 3).unwrap());
    let (mut sending, mut receiving) = (InFlight::new(), InFlight::new());
    for i in 0..30_u8 {
        while let Some(buf) = theirs.try_get() {
            let sge = buf.sge();
            b.qp.post_recv(RecvWr::new(receiving.put(buf), sge)).unwrap();
        }
        assert_eq!((theirs.available(), receiving.len()), (0, 3));
        let buf = mine.try_get().unwrap();
        assert_eq!((buf.len(), buf.is_empty()), (100, false));
        buf.write(0, &[i; 100]);
        let sge = buf.sge();
        a.post(SendWr::send(sending.put(buf), sge));
        let wc = b.received().ok().unwrap();
        let got = receiving.take(wc.wr_id).unwrap();
        let mut bytes = [0; 100];
        got.read(0, &mut bytes);
        assert_eq!(bytes, [i; 100]);
        assert!(receiving.take(wc.wr_id).is_none(), "once");
        drop(sending.take(a.sent().ok().unwrap().wr_id).unwrap());
        assert!(sending.is_empty());
    }
    let buf = mine.try_get().unwrap();
    catch_unwind(AssertUnwindSafe(|| buf.write(99, b"xy"))).unwrap_err();
    catch_unwind(AssertUnwindSafe(|| buf.read(usize::MAX, &mut [0]))).unwrap_err();
    // The end is at no address before the beginning, nor in the buffer in front.
    for back in 1..8 {
        let at = usize::MAX - back + 1;
        let write = || buf.write(at, &[1; 8][..back]);
        catch_unwind(AssertUnwindSafe(write)).unwrap_err();
    }
}

#[test]
fn waiting_for_a_buffer() {
    struct Count(std::sync::atomic::AtomicU32);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let Some(bed) = Bed::start() else { return };
    let pool = bed.hosts()[0].alloc_pd().unwrap().pool(8, 1).unwrap();
    let held = pool.try_get().unwrap();
    let [first, second] = [0, 0].map(|n| Arc::new(Count(n.into())));
    let (one, two) = (Waker::from(Arc::clone(&first)), Waker::from(Arc::clone(&second)));
    let mut waits = Box::pin(pool.get());
    let mut gives_up = Box::pin(pool.get());
    assert!(waits.as_mut().poll(&mut TaskContext::from_waker(&one)).is_pending());
    assert!(gives_up.as_mut().poll(&mut TaskContext::from_waker(&two)).is_pending());
    // The one that came last is dropped: the other must not miss the buffer for that.
    drop(gives_up);
    drop(held);
    assert_eq!(first.0.load(Ordering::Relaxed), 1, "woken");
    assert!(waits.as_mut().poll(&mut TaskContext::from_waker(&one)).is_ready());
    assert_eq!(bed.block_on(async { pool.get().await.len() }), 8);
}

#[expect(unsafe_code, reason = "memory of the program's own is registered by unsafe functions")]
#[test]
fn a_region_that_goes_takes_its_windows_along() {
    let Some(bed) = Bed::start() else { return };
    let pair = Pair::new(&bed);
    let mut bytes = vec![0_u8; 4096];
    let access = Access::REMOTE | Access::MW_BIND;
    // SAFETY: `bytes` outlives the region, and is looked at after it is gone.
    let mr = unsafe { pair.b.pd.reg_mr(bytes.as_mut_ptr(), bytes.len(), access) }.unwrap();
    let mw = pair.b.pd.alloc_mw(MwType::Type2).unwrap();
    pair.b.done(SendWr::bind_mw(1, &mw, &mr, 0..64, Access::REMOTE_WRITE));
    let at = RemoteSlice { addr: mr.iova(), rkey: mw.rkey() };
    let by_region = RemoteSlice { addr: mr.iova(), rkey: mr.rkey() };
    // The program may free its memory from here on.
    drop(mr);
    assert_eq!(pair.a.outcome(SendWr::write(1, inline(b"x"), at)), WcStatus::RemAccess);
    let other = Pair::new(&bed);
    assert_eq!(other.a.outcome(SendWr::write(1, inline(b"x"), by_region)), WcStatus::RemAccess);
    assert_eq!(bytes, [0; 4096]);
}
