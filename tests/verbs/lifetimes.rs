//! Objects go in every order, idle or with requests under way: nothing breaks, and nothing else suffers.

use std::any::Any;

use softroce::prelude::*;

use super::Bed;
use crate::testbed::{Pair, Side, Testbed, pattern};

type Objects = Vec<Box<dyn Any>>;

/// One of everything at each end, connected.
fn everything(bed: &Bed, busy: bool) -> (Objects, Pair) {
    let Pair { a, b } = Pair::new(bed);
    let channel = a.ctx.create_comp_channel().unwrap();
    let watched = a.ctx.cq_builder(4).channel(&channel).build().unwrap();
    let extra = a.pd.create_qp(QpType::Rc, &watched).depth(1, 1).build().unwrap();
    watched.arm(false).unwrap();
    let (mr, theirs) = (a.memory(100_000), b.memory(100_000));
    let mw = a.pd.alloc_mw(MwType::Type2).unwrap();
    a.done(SendWr::bind_mw(1, &mw, &mr, 0..8, Access::REMOTE_WRITE));
    let pool = a.pd.pool(64, 2).unwrap();
    let (mut in_flight, buf) = (InFlight::new(), pool.try_get().unwrap());
    if busy {
        a.qp.post_recv(RecvWr::new(1, buf.sge())).unwrap();
        a.qp.post_send([
            SendWr::write(2, mr.sge(..), theirs.remote()),
            SendWr::read(3, mr.sge(..), theirs.remote()).unsignaled(),
            SendWr::send(4, mr.sge(..8)),
            SendWr::fetch_add(5, mr.sge(8..16), theirs.remote(), 1),
        ])
        .unwrap();
        b.post(SendWr::read(1, theirs.sge(..), mr.remote()));
    }
    in_flight.put(buf);
    let Side { qp, cq, rcq, pd, ctx } = a;
    let mut objects: Objects = vec![
        Box::new(qp),
        Box::new(cq),
        Box::new(rcq),
        Box::new(pd),
        Box::new(ctx),
        Box::new(channel),
        Box::new(watched),
        Box::new(extra),
        Box::new(mr),
        Box::new(mw),
        Box::new(pool),
        Box::new(in_flight),
    ];
    objects.push(Box::new(theirs));
    (objects, Pair { a: Side::new(bed.hosts()[0]), b })
}

/// Drops them in an order of its own for each seed.
fn drop_in_some_order(mut objects: Objects, seed: u64, bed: &Bed, busy: bool) {
    for draw in pattern(seed, objects.len()) {
        drop(objects.swap_remove(usize::from(draw) % objects.len()));
        // What is under way meets what is left.
        if busy && draw % 3 == 0 {
            bed.pass_time();
        }
    }
}

#[test]
fn every_order_while_idle() {
    let Some(bed) = Bed::start() else { return };
    for seed in 0..200 {
        let (objects, _rest) = everything(&bed, false);
        drop_in_some_order(objects, seed, &bed, false);
    }
    still_working(&bed);
}

#[test]
fn every_order_while_busy() {
    let Some(bed) = Bed::start() else { return };
    for seed in 0..100 {
        let (objects, rest) = everything(&bed, true);
        drop_in_some_order(objects, 1000 + seed, &bed, true);
        drop(rest);
    }
    still_working(&bed);
}

fn still_working(bed: &Bed) {
    let Pair { a, b } = Pair::new(bed);
    let to = b.memory(10_000);
    let from = a.memory(10_000);
    from.fill(0..10_000, 1);
    a.done(SendWr::write(1, from.sge(..), to.remote()));
    assert_eq!(to.to_vec(0..10_000), [1; 10_000]);
}

#[test]
fn children_keep_their_parents() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let to = b.memory(8);
    // Only the queue pairs are left, and what completes to a clone of a queue.
    let cq = a.cq.clone();
    let (x, y) = (a.qp, b.qp);
    drop((a.cq, a.rcq, a.pd, a.ctx, b.cq, b.rcq, b.pd, b.ctx));
    drop(bed);
    x.post_send(SendWr::write(1, inline(b"x"), to.remote())).unwrap();
    cq.wait(crate::testbed::LONG).unwrap().ok().unwrap();
    assert_eq!(to.to_vec(0..1), b"x");
    drop(y);
}

#[test]
fn a_thousand_connections_one_after_the_other() {
    let Some(bed) = Bed::start() else { return };
    let [here, there] = bed.hosts();
    for round in 0..1000_u64 {
        let Pair { a, b } = Pair::connect(Side::new(here), Side::new(there), &QpAttr::default());
        let (from, to) = (a.memory(3000), b.memory(3000));
        let data = pattern(round, 3000);
        from.write(0, &data);
        b.qp.post_recv(RecvWr::new(round, ())).unwrap();
        a.done(SendWr::write(round, from.sge(..), to.remote()).imm(1));
        assert_eq!(b.received().ok().unwrap().wr_id, round);
        assert_eq!(to.to_vec(0..3000), data);
    }
    // Nothing of them is left: all the keys that a device has can be had.
    for ctx in [here, there] {
        let pd = ctx.alloc_pd().unwrap();
        let all = (0..ctx.attr().unwrap().max_mw).map(|_| pd.alloc_mw(MwType::Type2));
        let all: Result<Vec<_>> = all.collect();
        assert!(all.is_ok(), "{:?}", all.err());
    }
    still_working(&bed);
}
