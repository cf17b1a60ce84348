//! Every operation, in every size where something changes: none, one byte, around the path MTU, many
//! packets.

use softroce::prelude::*;

use super::Bed;
use crate::testbed::{Guarded, LONG, Pair, Side, Testbed, pattern};

/// Lengths around everything that a length can cross.
fn sizes(mtu: usize) -> [usize; 8] {
    [0, 1, 8, mtu - 1, mtu, mtu + 1, (64 << 10) + 3, 1 << 20]
}

/// Runs `each` with connected queue pairs of the smallest, a middle and the largest path MTU.
fn with_each_mtu(each: impl Fn(&Pair, usize)) {
    let Some(bed) = Bed::start() else { return };
    for mtu in [Mtu::B256, Mtu::B1024, Mtu::B4096] {
        let pair = Pair::over(&bed, &QpAttr::default().path_mtu(mtu));
        for len in sizes(mtu.bytes()) {
            each(&pair, len);
        }
    }
}

#[test]
fn send() {
    with_each_mtu(|Pair { a, b }, len| {
        let (from, to) = (Guarded::new(a, len), Guarded::new(b, len + 5));
        let data = pattern(1, len);
        from.mr.write(61, &data);
        b.qp.post_recv(RecvWr::new(7, to.sge())).unwrap();
        let wc = a.done(SendWr::send(3, from.sge()));
        assert_eq!((wc.wr_id, wc.opcode, wc.qpn), (3, WcOpcode::Send, a.qp.number()));
        let wc = b.received().ok().unwrap();
        assert_eq!((wc.wr_id, wc.opcode, wc.qpn), (7, WcOpcode::Recv, b.qp.number()));
        assert_eq!((wc.byte_len as usize, wc.imm, wc.invalidated_rkey), (len, None, None));
        assert_eq!(to.bytes(len), data);
    });
}

#[test]
fn send_with_immediate() {
    with_each_mtu(|Pair { a, b }, len| {
        let (from, to) = (Guarded::new(a, len), Guarded::new(b, len));
        let data = pattern(2, len);
        from.mr.write(61, &data);
        b.qp.post_recv(RecvWr::new(7, to.sge())).unwrap();
        let wc = a.done(SendWr::send(3, from.sge()).imm(0x0102_0304));
        assert_eq!((wc.opcode, wc.imm), (WcOpcode::Send, None));
        let wc = b.received().ok().unwrap();
        assert_eq!((wc.opcode, wc.imm), (WcOpcode::Recv, Some(0x0102_0304)));
        assert_eq!(wc.byte_len as usize, len);
        assert_eq!(to.bytes(len), data);
    });
}

#[test]
fn write() {
    with_each_mtu(|Pair { a, b }, len| {
        let (from, to) = (Guarded::new(a, len), Guarded::new(b, len));
        let data = pattern(3, len);
        from.mr.write(61, &data);
        let wc = a.done(SendWr::write(3, from.sge(), to.remote()));
        assert_eq!((wc.wr_id, wc.opcode, wc.qpn), (3, WcOpcode::Write, a.qp.number()));
        assert_eq!(to.bytes(len), data);
        assert_eq!(from.bytes(len), data, "the source stays as it was");
        assert_eq!(b.rcq.drain(), [], "nobody is told");
    });
}

#[test]
fn write_with_immediate() {
    with_each_mtu(|Pair { a, b }, len| {
        let (from, to, spare) = (Guarded::new(a, len), Guarded::new(b, len), Guarded::new(b, 64));
        let data = pattern(4, len);
        from.mr.write(61, &data);
        b.qp.post_recv(RecvWr::new(7, spare.sge())).unwrap();
        let wc = a.done(SendWr::write(3, from.sge(), to.remote()).imm(0xffff_fffe));
        assert_eq!(wc.opcode, WcOpcode::Write);
        let wc = b.received().ok().unwrap();
        assert_eq!((wc.wr_id, wc.opcode, wc.imm), (7, WcOpcode::RecvWriteImm, Some(0xffff_fffe)));
        assert_eq!(wc.byte_len as usize, len, "bytes written");
        assert_eq!(to.bytes(len), data);
        spare.bytes(0);
    });
}

#[test]
fn read() {
    with_each_mtu(|Pair { a, b }, len| {
        let (into, from) = (Guarded::new(a, len), Guarded::new(b, len));
        let data = pattern(5, len);
        from.mr.write(61, &data);
        let wc = a.done(SendWr::read(3, into.sge(), from.remote()));
        assert_eq!((wc.wr_id, wc.opcode), (3, WcOpcode::Read));
        assert_eq!(wc.byte_len as usize, len);
        assert_eq!(into.bytes(len), data);
        assert_eq!(from.bytes(len), data, "the source stays as it was");
        assert_eq!(b.rcq.drain(), [], "nobody is told");
    });
}

#[test]
fn atomics() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let (old, word) = (a.memory(8), b.memory(24));
    word.fill(0..24, 0xff);
    let load = |mr: &MemoryRegion, at| mr.load(at, std::sync::atomic::Ordering::Acquire);
    let at = || word.remote().at(8);

    word.write(8, &40_u64.to_ne_bytes());
    let wc = a.done(SendWr::fetch_add(1, old.sge(..), at(), 2));
    assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::FetchAdd, 8));
    assert_eq!((load(&old, 0), load(&word, 8)), (40, 42));
    a.done(SendWr::fetch_add(1, old.sge(..), at(), u64::MAX - 41));
    assert_eq!((load(&old, 0), load(&word, 8)), (42, 0), "wraps");

    let wc = a.done(SendWr::compare_swap(1, old.sge(..), at(), 1, 7));
    assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::CompSwap, 8));
    assert_eq!((load(&old, 0), load(&word, 8)), (0, 0), "not what was expected");
    let swapped = 0x0102_0304_0506_0708;
    a.done(SendWr::compare_swap(1, old.sge(..), at(), 0, swapped));
    assert_eq!((load(&old, 0), load(&word, 8)), (0, swapped), "a number of the host");
    assert_eq!((load(&word, 0), load(&word, 16)), (u64::MAX, u64::MAX), "the neighbours");
}

#[test]
fn many_requests_complete_in_the_order_of_posting() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let (mine, theirs) = (a.memory(1 << 16), b.memory(1 << 16));
    for id in 0..40 {
        b.qp.post_recv(RecvWr::new(id, theirs.sge(..64))).unwrap();
    }
    // A long one between short ones, and READs between SENDs: none overtakes in the queue.
    let wrs = (0..40).map(|id| match id % 4 {
        0 => SendWr::send(id, mine.sge(..8)),
        1 => SendWr::read(id, mine.sge(..1 << 16), theirs.remote()),
        2 => SendWr::write(id, mine.sge(..40_000), theirs.remote()),
        _ => SendWr::fetch_add(id, mine.sge(..8), theirs.remote(), 1),
    });
    a.qp.post_send(wrs).unwrap();
    for id in 0..40 {
        let wc = a.sent().ok().unwrap();
        assert_eq!(wc.wr_id, id);
    }
    for id in 0..10 {
        assert_eq!(b.received().ok().unwrap().wr_id, id);
    }
    assert_eq!(b.rcq.drain(), []);
}

#[test]
fn both_directions_at_once() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let len = 300_000;
    let memory = [&a, &b].map(|side| {
        let (from, to) = (Guarded::new(side, len), Guarded::new(side, len));
        from.mr.write(61, &pattern(u64::from(side.qp.number()), len));
        (from, to)
    });
    let [(from_a, to_a), (from_b, to_b)] = &memory;
    a.post(SendWr::write(1, from_a.sge(), to_b.remote()));
    b.post(SendWr::write(1, from_b.sge(), to_a.remote()));
    a.sent().ok().unwrap();
    b.sent().ok().unwrap();
    assert_eq!(to_b.bytes(len), from_a.bytes(len));
    assert_eq!(to_a.bytes(len), from_b.bytes(len));
}

#[test]
fn a_queue_pair_connected_to_itself() {
    let Some(bed) = Bed::start() else { return };
    let side = Side::new(bed.hosts()[0]);
    side.qp.connect(&side.qp.endpoint()).unwrap();
    let (from, to) = (Guarded::new(&side, 9000), Guarded::new(&side, 9000));
    let data = pattern(6, 9000);
    from.mr.write(61, &data);
    side.qp.post_recv(RecvWr::new(2, to.sge())).unwrap();
    side.done(SendWr::send(1, from.sge()));
    assert_eq!(side.received().ok().unwrap().byte_len, 9000);
    assert_eq!(to.bytes(9000), data);
    let back = Guarded::new(&side, 9000);
    side.done(SendWr::read(3, back.sge(), to.remote()));
    assert_eq!(back.bytes(9000), data);
    // WRITE with immediate takes a receive here, too.
    let data = pattern(7, 9000);
    from.mr.write(61, &data);
    side.qp.post_recv(RecvWr::new(5, ())).unwrap();
    side.done(SendWr::write(4, from.sge(), to.remote()).imm(7));
    let wc = side.received().ok().unwrap();
    assert_eq!(
        (wc.wr_id, wc.opcode, wc.imm, wc.byte_len),
        (5, WcOpcode::RecvWriteImm, Some(7), 9000)
    );
    assert_eq!(to.bytes(9000), data);
}

#[test]
fn two_queue_pairs_of_one_device() {
    let Some(bed) = Bed::start() else { return };
    let [x, y] = [0, 1].map(|_| Side::new(bed.hosts()[0]));
    let Pair { a, b } = Pair::connect(x, y, &QpAttr::default());
    let to = Guarded::new(&b, 5000);
    b.qp.post_recv(RecvWr::new(2, to.sge())).unwrap();
    a.done(SendWr::send(1, inline(b"to a neighbour")));
    assert_eq!(b.rcq.wait(LONG).unwrap().ok().unwrap().byte_len, 14);
    assert_eq!(to.bytes(14), b"to a neighbour");
    let (word, result) = (b.memory(8), a.memory(8));
    a.done(SendWr::write(2, inline(&5_u64.to_ne_bytes()), word.remote()));
    a.done(SendWr::fetch_add(3, result.sge(..), word.remote(), 2));
    assert_eq!(result.to_vec(0..8), 5_u64.to_ne_bytes());
    assert_eq!(word.to_vec(0..8), 7_u64.to_ne_bytes());
    b.qp.post_recv(RecvWr::new(4, ())).unwrap();
    a.done(SendWr::write(5, inline(b"x"), to.remote()).imm(6));
    assert_eq!(b.received().ok().unwrap().imm, Some(6));
}

#[test]
fn thousands_of_rounds_between_programs_that_poll() {
    const ROUNDS: u64 = 5000;
    let Some(bed) = Bed::start() else { return };
    // A device may leave messages of such programs unacknowledged for a while, and must not do so for good: a slot is
    // free again only when a request is acknowledged.
    let Pair { a, b } = Pair::with(&bed, |qp| qp.depth(32, 4));
    let used = std::cell::Cell::new([4_u64; 2]);
    let replace = |side: usize| {
        let mut now = used.get();
        let n = std::mem::take(&mut now[side]);
        used.set(now);
        let qp = [&a.qp, &b.qp][side];
        qp.post_recv((0..n).map(|id| RecvWr::new(id, ()))).unwrap();
    };
    let play = |side: usize, n: u64| {
        let wr = SendWr::send(n, ());
        let wr = if n.is_multiple_of(8) { wr } else { wr.unsignaled() };
        [&a, &b][side].post(wr);
        replace(side);
    };
    let hear = |side: usize| {
        let (Side { cq, rcq, .. }, mut wc) = ([&a, &b][side], [WorkCompletion::default()]);
        bed.until("the message is there", || {
            if cq.poll(&mut wc).unwrap() > 0 {
                wc[0].ok().unwrap();
            }
            rcq.poll(&mut wc).unwrap() > 0
        });
        wc[0].ok().unwrap();
        let mut now = used.get();
        now[side] += 1;
        used.set(now);
    };
    replace(0);
    replace(1);
    for n in 1..ROUNDS {
        play(0, n);
        hear(1);
        play(1, n);
        hear(0);
    }
    for side in [&a, &b] {
        side.post(SendWr::send(ROUNDS, ()));
        while side.sent().ok().unwrap().wr_id < ROUNDS {}
    }
}
