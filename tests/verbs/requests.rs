//! What a request may be made of, and what a full queue does.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use softroce::prelude::*;
use softroce::verbs::{AltPath, Cause, MigState, QpBuilder};

use super::Bed;
use crate::testbed::{Guarded, LONG, Pair, Side, Testbed, pattern};

const EINVAL: i32 = 22;
const ENOMEM: i32 = 12;

/// A batch was cut short: how many were posted, the errno, and why.
#[track_caller]
fn cut_short(result: Result<()>) -> (usize, i32, Cause) {
    match result {
        Err(Error::Post { posted, errno, cause, .. }) => (posted, errno, cause),
        other => panic!("wanted Error::Post, got {other:?}"),
    }
}

fn cap(send_wr: u32) -> QpCap {
    QpCap { send_wr, ..QpCap::default() }
}

#[test]
fn inline_bytes_may_be_reused_at_once() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let (to, target) = (b.memory(64), Guarded::new(&b, 64));
    b.qp.post_recv(RecvWr::new(1, to.sge(..))).unwrap();
    b.qp.post_recv(RecvWr::new(2, ())).unwrap();
    let mut bytes = *b"some bytes on the stack";
    a.post(SendWr::send(1, inline(&bytes)));
    bytes.fill(0);
    a.post(SendWr::write(2, inline(b"others"), target.remote()).imm(9));
    for _ in 0..2 {
        a.sent().ok().unwrap();
    }
    assert_eq!(b.received().ok().unwrap().byte_len, 23);
    assert_eq!(to.to_vec(0..23), b"some bytes on the stack");
    assert_eq!(b.received().ok().unwrap().byte_len, 6);
    assert_eq!(target.bytes(6), b"others");
}

#[test]
fn inline_up_to_the_limit_and_no_further() {
    let Some(bed) = Bed::start() else { return };
    let choose = |qp: QpBuilder| qp.cap(QpCap { inline: 100, ..QpCap::default() });
    let Pair { a, b } = Pair::with(&bed, choose);
    let to = Guarded::new(&b, 200);
    for len in [0, 1, 99, 100] {
        let data = pattern(1, len);
        a.done(SendWr::write(1, inline(&data), to.remote()));
        assert_eq!(to.bytes(len), data);
        to.mr.fill(61..261, 0xe7);
    }
    let too_long = [0; 101];
    let batch = [
        SendWr::write(1, inline(b"x"), to.remote()),
        SendWr::write(2, inline(&too_long), to.remote()),
        SendWr::write(3, inline(b"y"), to.remote()),
    ];
    let refused = cut_short(a.qp.post_send(batch));
    assert_eq!(refused, (1, EINVAL, Cause::InlineTooLong { got: 101, max: 100 }));
    assert_eq!(a.sent().ok().unwrap().wr_id, 1, "the first one is in the queue");
    a.done(SendWr::write(4, inline(b"z"), to.remote()));
    assert_eq!(to.bytes(1), b"z");
}

#[test]
fn no_inline_data_where_none_was_asked_for() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::with(&bed, |qp| qp.cap(QpCap { inline: 0, ..QpCap::default() }));
    assert_eq!(a.qp.cap().inline, 0);
    let to = Guarded::new(&b, 8);
    let refused = cut_short(a.qp.post_send(SendWr::write(1, inline(b"x"), to.remote())));
    assert_eq!(refused, (0, EINVAL, Cause::InlineTooLong { got: 1, max: 0 }));
    a.done(SendWr::write(2, inline(b""), to.remote()));
    to.bytes(0);
}

#[test]
fn pieces_are_sent_and_filled_in_order() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::over(&bed, &QpAttr::default().path_mtu(Mtu::B256));
    let (from, to) = (a.memory(4096), b.memory(4096));
    let data = pattern(1, 4096);
    from.write(0, &data);
    // Pieces that end in the middle of packets and of words, one of no bytes, out of order.
    let gather = [from.sge(1000..1300), from.sge(7..8), from.sge(5..5), from.sge(0..777)];
    let whole = [&data[1000..1300], &data[7..8], &data[0..777]].concat();
    let scatter = [to.sge(2000..2001), to.sge(3..500), to.sge(9..9), to.sge(1001..1900)];
    let scattered = || [to.to_vec(2000..2001), to.to_vec(3..500), to.to_vec(1001..1900)].concat();
    assert_eq!(whole.len(), 1078);

    b.qp.post_recv(RecvWr::new(1, &scatter)).unwrap();
    a.done(SendWr::send(1, &gather));
    assert_eq!(b.received().ok().unwrap().byte_len, 1078);
    assert_eq!(scattered()[..1078], whole);

    to.fill(0..4096, 0);
    let contiguous = Guarded::new(&b, 1078);
    a.done(SendWr::write(1, &gather, contiguous.remote()));
    assert_eq!(contiguous.bytes(1078), whole);

    b.done(SendWr::read(1, &scatter, from.remote().at(100)));
    assert_eq!(scattered(), data[100..100 + 1397]);
}

#[test]
fn more_pieces_than_allowed() {
    let Some(bed) = Bed::start() else { return };
    let choose = |qp: QpBuilder| qp.cap(QpCap { send_sge: 2, recv_sge: 3, ..QpCap::default() });
    let Pair { a, b } = Pair::with(&bed, choose);
    let mr = a.memory(64);
    let piece = mr.sge(0..1);
    let refused = cut_short(a.qp.post_send(SendWr::send(1, &[piece; 3])));
    assert_eq!(refused, (0, EINVAL, Cause::TooManySge { got: 3, max: 2 }));
    let refused = cut_short(a.qp.post_recv(RecvWr::new(1, &[piece; 4])));
    assert_eq!(refused, (0, EINVAL, Cause::TooManySge { got: 4, max: 3 }));
    let to = b.memory(8);
    b.qp.post_recv(RecvWr::new(1, &[to.sge(0..1), to.sge(4..5), to.sge(6..7)])).unwrap();
    a.done(SendWr::send(1, &[piece; 2]));
    assert_eq!(b.received().ok().unwrap().byte_len, 2);
}

#[test]
fn a_full_send_queue_says_so_and_a_polled_completion_makes_room() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::with(&bed, |qp| qp.cap(cap(4)));
    let to = b.memory(8);
    let write = |id| SendWr::write(id, inline(b"x"), to.remote());
    let refused = cut_short(a.qp.post_send((0..6).map(write)));
    assert_eq!(refused, (4, ENOMEM, Cause::QueueFull { depth: 4 }));
    bed.until("all done at the peer", || b.counter("rx_write_requests") == 4);
    // All are done, but none was polled.
    assert_eq!(cut_short(a.qp.post_send(write(9))), (0, ENOMEM, Cause::QueueFull { depth: 4 }));
    assert_eq!(a.sent().ok().unwrap().wr_id, 0);
    a.post(write(4));
    assert_eq!(cut_short(a.qp.post_send(write(9))).0, 0);
    for id in 1..5 {
        assert_eq!(a.sent().ok().unwrap().wr_id, id);
    }
    a.qp.post_send((5..9).map(write)).unwrap();
    for id in 5..9 {
        assert_eq!(a.sent().ok().unwrap().wr_id, id);
    }
}

#[test]
fn unsignaled_requests_free_their_slots_with_a_later_signaled_one() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::with(&bed, |qp| qp.cap(cap(4)));
    let to = b.memory(8);
    let quiet = |id| SendWr::write(id, inline(b"x"), to.remote()).unsignaled();
    a.qp.post_send([quiet(0), quiet(1), SendWr::write(2, inline(b"y"), to.remote()), quiet(3)])
        .unwrap();
    bed.until("all done at the peer", || b.counter("rx_write_requests") == 4);
    assert_eq!(cut_short(a.qp.post_send(quiet(9))).2, Cause::QueueFull { depth: 4 });
    assert_eq!(a.sent().ok().unwrap().wr_id, 2, "the only one that completes");
    let refused = cut_short(a.qp.post_send((4..8).map(quiet)));
    assert_eq!(refused.0, 3, "those of 0, 1 and 2 are free");

    // Nothing will ever be polled now: the queue is full for good.
    bed.until("all done at the peer", || b.counter("rx_write_requests") == 7);
    assert_eq!(a.cq.poll(&mut [WorkCompletion::default()]), Ok(0));
    assert_eq!(cut_short(a.qp.post_send(quiet(9))).2, Cause::QueueFull { depth: 4 });
}

#[test]
fn everything_is_signaled_where_the_queue_pair_says_so() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::with(&bed, QpBuilder::sig_all);
    let to = b.memory(8);
    assert!(a.qp.query_init().sig_all);
    let wc = a.done(SendWr::write(5, inline(b"x"), to.remote()).unsignaled());
    assert_eq!(wc.wr_id, 5);
}

#[test]
fn a_full_receive_queue() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::with(&bed, |qp| qp.depth(8, 2));
    let to = b.memory(8);
    let receive = |id| RecvWr::new(id, to.sge(..));
    let refused = cut_short(b.qp.post_recv((0..3).map(receive)));
    assert_eq!(refused, (2, ENOMEM, Cause::QueueFull { depth: 2 }));
    a.done(SendWr::send(1, inline(b"x")));
    assert_eq!(b.received().ok().unwrap().wr_id, 0);
    b.qp.post_recv(receive(2)).unwrap();
    assert_eq!(cut_short(b.qp.post_recv(receive(3))).2, Cause::QueueFull { depth: 2 });
}

#[test]
fn a_fence_waits_for_reads_and_atomics() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let (mine, theirs) = (a.memory(1 << 16), b.memory(1 << 16));
    let data = pattern(1, 1 << 16);
    theirs.write(0, &data);
    for turn in 0..20 {
        mine.fill(0..1 << 16, 0);
        b.qp.post_recv(RecvWr::new(turn, theirs.sge(..0))).unwrap();
        // What the SEND sends is what the READ before it brings, which is a megabit later.
        let copy = Guarded::new(&b, 8);
        a.qp.post_send([
            SendWr::read(1, mine.sge(..), theirs.remote()).unsignaled(),
            SendWr::write(2, mine.sge((1 << 16) - 8..), copy.remote()).unsignaled().fence(),
            SendWr::fetch_add(3, mine.sge(..8), copy.mr.remote().at(64 - 64), 0).unsignaled(),
            SendWr::send(4, ()).fence(),
        ])
        .unwrap();
        assert_eq!(a.sent().ok().unwrap().wr_id, 4);
        assert_eq!(copy.bytes(8), data[(1 << 16) - 8..]);
        b.received().ok().unwrap();
        assert_eq!(mine.load(0, Ordering::Acquire), 0xe7e7_e7e7_e7e7_e7e7, "the atomic is done");
    }
}

#[test]
fn reads_beyond_the_depth_wait_their_turn() {
    let Some(bed) = Bed::start() else { return };
    let over = QpAttr::default().max_rd_atomic(1).max_dest_rd_atomic(1);
    let Pair { a, b } = Pair::over(&bed, &over);
    let (mine, theirs) = (a.memory(40 * 1000), b.memory(40 * 1000));
    let data = pattern(1, 40_000);
    theirs.write(0, &data);
    a.qp.post_send((0..40).map(|i| {
        let at = i as usize * 1000;
        SendWr::read(i, mine.sge(at..at + 1000), theirs.remote().at(at as u64))
    }))
    .unwrap();
    for i in 0..40 {
        assert_eq!(a.sent().ok().unwrap().wr_id, i);
    }
    assert_eq!(mine.to_vec(0..40_000), data);
}

#[test]
fn a_read_where_none_is_allowed_fails_and_does_not_hang() {
    let Some(bed) = Bed::start() else { return };
    let over = QpAttr::default().max_rd_atomic(0).max_dest_rd_atomic(0);
    let Pair { a, b } = Pair::over(&bed, &over);
    let (mine, theirs) = (a.memory(8), b.memory(8));
    let told = a.qp.query().unwrap();
    assert_eq!((told.max_rd_atomic, told.max_dest_rd_atomic), (Some(0), Some(0)));
    b.qp.post_recv(RecvWr::new(1, ())).unwrap();
    a.done(SendWr::send(1, ()));
    a.done(SendWr::write(1, mine.sge(..), theirs.remote()));
    match a.qp.post_send(SendWr::read(2, mine.sge(..), theirs.remote())) {
        Ok(()) => {
            let wc = a.sent();
            assert_eq!((wc.wr_id, wc.status), (2, WcStatus::LocQpOp));
            assert_eq!(a.state(), QpState::Err);
        }
        Err(e) => assert_eq!(e.errno(), Some(EINVAL)),
    }
}

#[test]
fn requests_that_contradict_themselves() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let (mine, theirs) = (a.memory(64), b.memory(64));
    let remote = theirs.remote();
    for (wr, part) in [
        (SendWr::read(1, mine.sge(..8), remote).imm(1), "immediate"),
        (SendWr::fetch_add(1, mine.sge(..8), remote, 1).imm(1), "immediate"),
        (SendWr::write(1, mine.sge(..8), remote).invalidate(1), "invalidation"),
        (SendWr::send(1, ()).imm(1).invalidate(1), "invalidation"),
        (SendWr::send(1, ()).invalidate(1).imm(1), "immediate"),
    ] {
        let (posted, errno, cause) = cut_short(a.qp.post_send(wr));
        assert_eq!((posted, errno), (0, EINVAL), "{wr:?}");
        assert!(cause.to_string().contains(part), "{cause}");
    }
    for len in [0, 4, 7, 9, 64] {
        for wr in [
            SendWr::fetch_add(1, mine.sge(..len), remote, 1),
            SendWr::compare_swap(1, mine.sge(..len), remote, 1, 2),
        ] {
            let refused = cut_short(a.qp.post_send(wr));
            assert_eq!(refused, (0, EINVAL, Cause::AtomicLocal { got: len as u64 }));
        }
    }
    // None of this has hurt the queue pair.
    a.done(SendWr::write(1, mine.sge(..8), remote));
}

#[test]
fn what_is_not_offered_yet_is_refused() {
    const EOPNOTSUPP: i32 = 95;
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let (pd, ctx) = (&a.pd, &a.ctx);
    let memory = b.memory(64);
    let theirs = memory.remote();
    let no = |what: &str, errno: Option<i32>| assert_eq!(errno, Some(EOPNOTSUPP), "{what}");
    let post = |wr| a.qp.post_send(wr).unwrap_err().errno();
    no("XRC", post(SendWr::send(1, ()).xrc_srq(1)));
    for kind in [QpType::XrcSend, QpType::XrcRecv] {
        let e = pd.create_qp(kind, &a.cq).build().unwrap_err();
        no("another type of queue pair", e.errno());
        assert!(e.to_string().contains("use RC"), "{e}");
    }
    let alt = AltPath { ah: theirs_ah(&b), pkey_index: 0, timeout: 14 };
    no("alternate path", a.qp.modify(&QpAttr::default().alt(Box::new(alt))).unwrap_err().errno());
    let migrate = QpAttr::default().path_mig(MigState::Rearm);
    no("migration", a.qp.modify(&migrate).unwrap_err().errno());
    assert!(!ctx.attr().unwrap().xrc);
    // What belongs to datagrams is wrong on a connected queue pair.
    assert_eq!(a.qp.activate(1).unwrap_err().errno(), Some(EINVAL));
    assert_eq!(a.qp.attach_mcast(Gid::default()).unwrap_err().errno(), Some(EINVAL));
    assert_eq!(a.qp.detach_mcast(Gid::default()).unwrap_err().errno(), Some(EINVAL));
    a.done(SendWr::write(1, inline(b"as before"), theirs));
}

fn theirs_ah(side: &Side) -> AhAttr {
    side.qp.endpoint().ah()
}

#[test]
fn an_iterator_that_panics_leaves_whole_requests_posted() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let to = b.memory(8);
    let wrs = (0..10).map(|id| match id {
        5 => panic!("the caller's own"),
        _ => SendWr::write(id, inline(b"x"), to.remote()),
    });
    catch_unwind(AssertUnwindSafe(|| a.qp.post_send(wrs))).unwrap_err();
    for id in 0..5 {
        assert_eq!(a.sent().ok().unwrap().wr_id, id, "posted, and the doorbell was rung");
    }
    let receives = (0..10).map(|id| match id {
        3 => panic!("the caller's own"),
        _ => RecvWr::new(id, ()),
    });
    catch_unwind(AssertUnwindSafe(|| b.qp.post_recv(receives))).unwrap_err();
    for id in 0..3 {
        a.done(SendWr::send(9, ()));
        assert_eq!(b.received().ok().unwrap().wr_id, id);
    }
    a.done(SendWr::write(6, inline(b"x"), to.remote()));
}

#[test]
fn an_iterator_may_post_itself() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let to = b.memory(8);
    let write = |id| SendWr::write(id, inline(b"x"), to.remote());
    a.qp.post_send((0..3).map(|id| {
        a.qp.post_send(write(10 + id)).unwrap();
        write(id)
    }))
    .unwrap();
    let mut ids: Vec<u64> = (0..6).map(|_| a.sent().ok().unwrap().wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 2, 10, 11, 12]);
    b.qp.post_recv((0..2).map(|id| {
        b.qp.post_recv(RecvWr::new(10 + id, ())).unwrap();
        RecvWr::new(id, ())
    }))
    .unwrap();
    for _ in 0..4 {
        a.done(SendWr::send(1, ()));
        b.rcq.wait(LONG).unwrap().ok().unwrap();
    }
}

#[test]
fn empty_batches_are_nothing() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, .. } = Pair::new(&bed);
    a.qp.post_send([]).unwrap();
    a.qp.post_recv([]).unwrap();
    assert_eq!(a.cq.poll(&mut []), Ok(0));
    let e = a.cq.wait_many(&mut [], LONG).unwrap_err();
    assert_eq!(e.errno(), Some(EINVAL));
}
