//! Atomics: what they need, and that they are atomic, among peers and against the CPU.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use softroce::prelude::*;

use super::Bed;
use crate::testbed::{Pair, Testbed};

#[test]
fn an_address_that_is_no_word() {
    let Some(bed) = Bed::start() else { return };
    for offset in [1, 4, 7] {
        let Pair { a, b } = Pair::new(&bed);
        let (old, word) = (a.memory(8), b.memory(16));
        let wr = SendWr::fetch_add(1, old.sge(..), word.remote().at(offset), 1);
        assert_eq!(a.outcome(wr), WcStatus::RemInvReq);
        assert_eq!(word.to_vec(0..16), [0; 16]);
    }
}

#[test]
fn outside_or_not_allowed() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let (old, word) = (a.memory(8), b.memory(12));
    let beyond = SendWr::fetch_add(1, old.sge(..), word.remote().at(8), 1);
    assert_eq!(a.outcome(beyond), WcStatus::RemAccess);
    // Not allowed by the queue pair: the request as such is wrong.
    let Pair { a, b } = Pair::with(&bed, |qp| qp.access(Access::REMOTE - Access::REMOTE_ATOMIC));
    let (old, word) = (a.memory(8), b.memory(8));
    let forbidden = SendWr::compare_swap(1, old.sge(..), word.remote(), 0, 1);
    assert_eq!(a.outcome(forbidden), WcStatus::RemInvReq);
    assert_eq!(word.to_vec(0..8), [0; 8]);
}

#[test]
fn results_land_anywhere() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let (old, word) = (a.memory(24), b.memory(8));
    word.write(0, &0x1122_3344_5566_7788_u64.to_ne_bytes());
    old.fill(0..24, 0xff);
    a.done(SendWr::fetch_add(1, old.sge(5..13), word.remote(), 0));
    let want = [&[0xff; 5][..], &0x1122_3344_5566_7788_u64.to_ne_bytes(), &[0xff; 11]].concat();
    assert_eq!(old.to_vec(0..24), want);
}

#[test]
fn each_result_is_handed_out_once() {
    let Some(bed) = Bed::start() else { return };
    // Both hosts count in one word, many requests at a time.
    let Pair { a, b } = Pair::new(&bed);
    let home = crate::testbed::Side::with(&b.ctx, |_| b.pd.create_qp(QpType::Rc, &b.cq));
    home.qp.connect(&home.qp.endpoint()).unwrap();
    let word = b.memory(8);
    let (mine, theirs) = (a.memory(8 * 100), b.memory(8 * 100));
    let add = |results: &MemoryRegion, i: usize| {
        SendWr::fetch_add(1, results.sge(8 * i..8 * i + 8), word.remote(), 1).unsignaled()
    };
    a.qp.post_send((0..100).map(|i| add(&mine, i))).unwrap();
    home.qp.post_send((0..100).map(|i| add(&theirs, i))).unwrap();
    a.done(SendWr::read(2, (), word.remote()).fence());
    home.post(SendWr::read(2, (), word.remote()).fence());
    b.sent().ok().unwrap();
    let mut results: Vec<u64> = [&mine, &theirs]
        .iter()
        .flat_map(|mr| (0..100).map(|i| mr.load(8 * i, Ordering::Acquire)))
        .collect();
    results.sort_unstable();
    assert_eq!(results, (0..200).collect::<Vec<_>>());
    assert_eq!(word.load(0, Ordering::Acquire), 200);
}

#[test]
fn against_the_cpu() {
    let Some(bed) = Bed::start() else { return };
    bed.share();
    let Pair { a, b } = Pair::new(&bed);
    let (old, word) = (a.memory(8), b.memory(24));
    const ROUNDS: u64 = 200;
    // Neighbours that the CPU writes all the time, a counter that it watches, and at the end a lock that
    // both sides take.
    let over = AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(|| {
            let mut seen = 0;
            while !over.load(Ordering::Relaxed) {
                let now = word.load(8, Ordering::Acquire);
                assert!((seen..=ROUNDS).contains(&now), "{now} after {seen}");
                seen = now;
                word.store(0, !now, Ordering::Relaxed);
                word.store(16, now, Ordering::Relaxed);
                thread::yield_now();
            }
        });
        for i in 0..ROUNDS {
            a.done(SendWr::fetch_add(1, old.sge(..), word.remote().at(8), 1));
            assert_eq!(old.load(0, Ordering::Acquire), i);
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(word.load(8, Ordering::Acquire), ROUNDS);
}

#[test]
fn a_word_that_peer_and_cpu_hand_back_and_forth() {
    let Some(bed) = Bed::start() else { return };
    bed.share();
    let Pair { a, b } = Pair::new(&bed);
    let (old, word) = (a.memory(8), b.memory(8));
    const ROUNDS: u64 = 200;
    thread::scope(|s| {
        // The peer turns even numbers into odd ones, the CPU odd ones into even ones.
        s.spawn(|| {
            for turn in 0..ROUNDS {
                while word.load(0, Ordering::Acquire) != 2 * turn + 1 {
                    thread::yield_now();
                }
                word.store(0, 2 * turn + 2, Ordering::Release);
            }
        });
        for turn in 0..ROUNDS {
            let swap =
                || SendWr::compare_swap(1, old.sge(..), word.remote(), 2 * turn, 2 * turn + 1);
            loop {
                a.done(swap());
                match old.load(0, Ordering::Acquire) {
                    found if found == 2 * turn => break,
                    found => assert_eq!(found, 2 * turn - 1, "its own of the turn before"),
                }
            }
        }
    });
    assert_eq!(word.load(0, Ordering::Acquire), 2 * ROUNDS);
}
