//! Several threads on one queue pair, one completion queue, one device.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use softroce::prelude::*;
use softroce::verbs::Cause;

use super::Bed;
use crate::testbed::{Pair, Side, Testbed, next};

const THREADS: u32 = 4;

#[test]
fn several_wait_for_one_queue_and_each_completion_goes_to_one() {
    let Some(bed) = Bed::start() else { return };
    bed.share();
    let Pair { a, b } = Pair::new(&bed);
    const MESSAGES: u32 = 400;
    const STOP: u32 = u32::MAX;
    let seen = Mutex::new(Vec::new());
    b.qp.post_recv((0..100).map(|id| RecvWr::new(id, ()))).unwrap();
    thread::scope(|s| {
        for _ in 0..THREADS {
            s.spawn(|| {
                loop {
                    let wc = next(&b.rcq).ok().unwrap();
                    b.qp.post_recv(RecvWr::new(1, ())).unwrap();
                    match wc.imm {
                        Some(STOP) => return,
                        imm => seen.lock().unwrap().push(imm.unwrap()),
                    }
                }
            });
        }
        for i in 0..MESSAGES + THREADS {
            let imm = if i < MESSAGES { i } else { STOP };
            a.post(SendWr::send(1, ()).imm(imm));
            next(&a.cq).ok().unwrap();
        }
    });
    let mut seen = seen.into_inner().unwrap();
    seen.sort_unstable();
    assert_eq!(seen, (0..MESSAGES).collect::<Vec<_>>());
}

#[test]
fn several_post_to_one_queue_pair() {
    let Some(bed) = Bed::start() else { return };
    bed.share();
    let Pair { a, b } = Pair::with(&bed, |qp| qp.depth(16, 128));
    const EACH: u32 = 200;
    let polled = AtomicU64::new(0);
    b.qp.post_recv((0..128).map(|id| RecvWr::new(id, ()))).unwrap();
    thread::scope(|s| {
        for me in 0..THREADS {
            let (a, polled) = (&a, &polled);
            s.spawn(move || {
                for i in 0..EACH {
                    let wr = || SendWr::send(u64::from(i), ()).imm(me << 16 | i);
                    while let Err(e) = a.qp.post_send(wr()) {
                        assert!(matches!(e.cause(), Some(Cause::QueueFull { .. })), "{e}");
                        // Whoever finds it full polls, for all.
                        let mut some = [WorkCompletion::default(); 4];
                        let n = a.cq.poll(&mut some).unwrap();
                        some[..n].iter().for_each(|wc| assert!(wc.ok().is_ok()));
                        polled.fetch_add(n as u64, Ordering::Relaxed);
                        thread::yield_now();
                    }
                }
            });
        }
        s.spawn(|| {
            let mut expected = [0; THREADS as usize];
            for _ in 0..THREADS * EACH {
                let imm = next(&b.rcq).ok().unwrap().imm.unwrap();
                b.qp.post_recv(RecvWr::new(1, ())).unwrap();
                let (from, i) = ((imm >> 16) as usize, imm & 0xffff);
                assert_eq!(i, expected[from], "in the order of posting");
                expected[from] += 1;
            }
        });
    });
    for _ in polled.into_inner()..u64::from(THREADS * EACH) {
        a.sent().ok().unwrap();
    }
    assert_eq!(a.cq.drain(), []);
}

#[test]
fn each_thread_waits_for_a_queue_of_its_own() {
    let Some(bed) = Bed::start() else { return };
    bed.share();
    let pairs: Vec<Pair> = (0..THREADS).map(|_| Pair::new(&bed)).collect();
    let play = |me: &Side, begins: bool| {
        me.qp.post_recv((0..16).map(|id| RecvWr::new(id, ()))).unwrap();
        let ping = || me.post(SendWr::send(1, ()).unsignaled());
        if begins {
            ping();
        }
        for i in 0..100 {
            next(&me.rcq).ok().unwrap();
            me.qp.post_recv(RecvWr::new(1, ())).unwrap();
            if i % 16 == 0 {
                // Makes room in the queue.
                me.post(SendWr::write(2, (), RemoteSlice { addr: 0, rkey: 0 }));
                next(&me.cq).ok().unwrap();
            }
            if !(begins && i == 99) {
                ping();
            }
        }
    };
    thread::scope(|s| {
        for Pair { a, b } in &pairs {
            s.spawn(|| play(a, true));
            s.spawn(|| play(b, false));
        }
    });
}

#[test]
fn objects_come_and_go_while_others_work() {
    let Some(bed) = Bed::start() else { return };
    bed.share();
    let Pair { a, b } = Pair::new(&bed);
    let (from, to) = (a.memory(50_000), b.memory(50_000));
    let over = AtomicBool::new(false);
    thread::scope(|s| {
        for host in bed.hosts() {
            let over = &over;
            s.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let side = Side::new(host);
                    let mr = side.memory(100);
                    side.qp.connect(&side.qp.endpoint()).unwrap();
                    side.qp.post_recv(RecvWr::new(1, mr.sge(..))).unwrap();
                    side.post(SendWr::send(1, mr.sge(..50)));
                    drop(mr);
                    thread::yield_now();
                }
            });
        }
        for i in 0..200 {
            from.fill(0..50_000, i);
            a.post(SendWr::write(1, from.sge(..), to.remote()));
            next(&a.cq).ok().unwrap();
            assert_eq!(to.to_vec(49_000..50_000), [i; 1000]);
        }
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn used_in_one_thread_and_dropped_in_another() {
    let Some(bed) = Bed::start() else { return };
    bed.share();
    let Pair { a, b } = Pair::new(&bed);
    let to = b.memory(8);
    thread::scope(|s| {
        let used = s.spawn(move || {
            a.post(SendWr::write(1, inline(b"x"), to.remote()));
            next(&a.cq).ok().unwrap();
            (a, to)
        });
        let all = (used.join().unwrap(), b);
        s.spawn(move || drop(all));
    });
}
