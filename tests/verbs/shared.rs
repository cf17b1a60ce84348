//! Shared receive queues: many queue pairs, one queue, one pool.

use std::thread;

use softroce::prelude::*;
use softroce::verbs::Cause;

use super::Bed;
use crate::testbed::{LONG, Pair, Side, Testbed, next, pattern};

const EINVAL: i32 = 22;

/// A server's side with its shared queue, and `N` clients that are connected to it.
struct Served<const N: usize> {
    srq: SharedReceiveQueue,
    server: Vec<Side>,
    clients: Vec<Side>,
    mr: MemoryRegion,
}

impl<const N: usize> Served<N> {
    const SLOT: usize = 8192;

    fn new(bed: &Bed) -> Self {
        let [a, b] = bed.hosts();
        let first = Side::new(b);
        let srq = first.pd.create_srq(64, 2).unwrap();
        let mr = first.memory(64 * Self::SLOT);
        let (mut server, mut clients) = (Vec::new(), Vec::new());
        for _ in 0..N {
            let mut theirs = Side::with(b, |_| {
                first.pd.create_qp(QpType::Rc, &first.cq).recv_cq(&first.rcq).srq(&srq)
            });
            (theirs.cq, theirs.rcq) = (first.cq.clone(), first.rcq.clone());
            let pair = Pair::connect(Side::new(a), theirs, &QpAttr::default());
            server.push(pair.b);
            clients.push(pair.a);
        }
        Self { srq, server, clients, mr }
    }

    /// Posts the receives of these numbers, each with a slot of its own.
    fn post(&self, ids: std::ops::Range<u64>) {
        self.srq.post_recv(ids.map(|id| self.receive(id))).unwrap();
    }

    fn receive(&self, id: u64) -> RecvWr<'static> {
        let at = id as usize % 64 * Self::SLOT;
        RecvWr::new(id, self.mr.sge(at..at + Self::SLOT))
    }

    fn bytes(&self, wc: &WorkCompletion) -> Vec<u8> {
        let at = wc.wr_id as usize % 64 * Self::SLOT;
        self.mr.to_vec(at..at + wc.byte_len as usize)
    }
}

#[test]
fn messages_of_many_queue_pairs_land_in_one_queue() {
    let Some(bed) = Bed::start() else { return };
    let s = Served::<8>::new(&bed);
    s.post(0..40);
    let from = s.clients.iter().map(|c| c.memory(8000)).collect::<Vec<_>>();
    for round in 0..5 {
        for (i, (client, mr)) in s.clients.iter().zip(&from).enumerate() {
            mr.write(0, &pattern(i as u64, 8000));
            client.post(SendWr::send(round, mr.sge(..1000 * (round as usize + 1))));
        }
        // Each is several packets long from the second round on; they come in side by side.
        let mut seen = Vec::new();
        for _ in 0..8 {
            let wc = s.server[0].received().ok().unwrap();
            let i = s.server.iter().position(|side| side.qp.number() == wc.qpn).unwrap();
            assert_eq!(s.bytes(&wc), pattern(i as u64, 8000)[..wc.byte_len as usize]);
            seen.push(i);
        }
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3, 4, 5, 6, 7]);
        for client in &s.clients {
            client.sent().ok().unwrap();
        }
    }
    let attr = s.srq.query().unwrap();
    assert!(attr.max_wr >= 64 && attr.max_sge >= 2);
    assert_eq!(attr.limit, 0);
}

#[test]
fn an_empty_queue_makes_peers_wait_and_loses_nothing() {
    let Some(bed) = Bed::start() else { return };
    let s = Served::<2>::new(&bed);
    for client in &s.clients {
        client.post(SendWr::send(1, inline(b"are you there?")));
    }
    bed.until("both refused", || s.server[0].counter("send_rnr_err") >= 2);
    s.post(0..2);
    for client in &s.clients {
        client.sent().ok().unwrap();
    }
    for _ in 0..2 {
        assert_eq!(s.bytes(&s.server[0].received().ok().unwrap()), b"are you there?");
    }
}

#[test]
fn the_limit_is_told_once_to_who_made_the_queue() {
    let Some(bed) = Bed::start() else { return };
    let s = Served::<2>::new(&bed);
    s.post(0..4);
    s.srq.set_limit(3).unwrap();
    assert_eq!(s.srq.query().unwrap().limit, 3);
    for (i, client) in [0, 1, 0].map(|i| &s.clients[i]).into_iter().enumerate() {
        client.done(SendWr::send(i as u64, ()));
    }
    let told = Event::SrqLimit { srq: s.srq.number() };
    assert_eq!(s.server[0].event(), told);
    assert_eq!(s.server[0].ctx.wait_event(Duration::ZERO), Err(Error::Timeout));
    s.post(4..8);
    s.srq.set_limit(6).unwrap();
    assert_eq!(s.server[0].event(), told, "armed with five left");
    let e = s.srq.set_limit(65).unwrap_err();
    assert_eq!(e.cause(), Some(&Cause::AttrRange { attr: "srq_limit", got: 65, max: 64 }));
}

#[test]
fn a_queue_pair_leaves_without_losing_a_receive() {
    let Some(bed) = Bed::start() else { return };
    let mut s = Served::<2>::new(&bed);
    s.post(0..10);
    s.clients[0].done(SendWr::send(1, inline(b"mine")));
    let leaving = s.server.remove(0);
    let qpn = leaving.qp.number();
    leaving.qp.modify(&QpAttr::to(QpState::Err)).unwrap();
    assert_eq!(leaving.event(), Event::LastWqe { qpn });
    // What had come is there; what is left is for the other.
    let wc = leaving.received().ok().unwrap();
    assert_eq!((wc.qpn, s.bytes(&wc)), (qpn, b"mine".to_vec()));
    assert_eq!(leaving.rcq.drain(), []);
    leaving.qp.destroy().unwrap();
    s.clients[1].qp.post_send((0..9).map(|id| SendWr::send(id, ()))).unwrap();
    let mut ids: Vec<_> = (0..9).map(|_| s.server[0].received().ok().unwrap().wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, (1..10).collect::<Vec<_>>());
}

#[test]
fn several_threads_fill_it() {
    let Some(bed) = Bed::start() else { return };
    bed.share();
    let s = Served::<4>::new(&bed);
    const EACH: u64 = 300;
    s.srq.resize(4 * EACH as u32).unwrap();
    // A client may have got to its end before anybody polls.
    s.server[0].rcq.resize(4 * EACH as u32).unwrap();
    thread::scope(|scope| {
        for part in 0..4 {
            let (srq, server) = (s.srq.clone(), &s.server[0]);
            scope.spawn(move || {
                // However late they come, nobody gives up.
                while server.counter("send_rnr_err") < 2 {
                    thread::yield_now();
                }
                for id in part * EACH..(part + 1) * EACH {
                    srq.post_recv(RecvWr::new(id, ())).unwrap();
                }
            });
        }
        let clients: Vec<_> = s
            .clients
            .iter()
            .map(|client| {
                scope.spawn(move || {
                    for id in 0..EACH {
                        client.post(SendWr::send(id, ()));
                        next(&client.cq).ok().unwrap();
                    }
                })
            })
            .collect();
        // Polls while they are at it: to whoever waits while no client has anything under way, virtual time
        // is over at once.
        let (mut ids, mut some) = (Vec::new(), [WorkCompletion::default(); 16]);
        while !clients.iter().all(thread::ScopedJoinHandle::is_finished) {
            let n = s.server[0].rcq.poll(&mut some).unwrap();
            ids.extend(some[..n].iter().map(|wc| wc.ok().unwrap().wr_id));
        }
        while ids.len() < 4 * EACH as usize {
            ids.push(next(&s.server[0].rcq).ok().unwrap().wr_id);
        }
        ids.sort_unstable();
        assert_eq!(ids, (0..4 * EACH).collect::<Vec<_>>());
    });
}

#[test]
fn what_is_refused() {
    let Some(bed) = Bed::start() else { return };
    let s = Served::<1>::new(&bed);
    let [a, b] = bed.hosts();
    let qp = &s.server[0].qp;
    let e = qp.post_recv(RecvWr::new(1, ())).unwrap_err();
    assert_eq!(e.errno(), Some(EINVAL));
    assert!(e.to_string().contains("shared receive queue: post them there"), "{e}");
    assert_eq!((qp.cap().recv_wr, qp.query_init().srq), (0, Some(s.srq.number())));
    assert_eq!(s.clients[0].qp.query_init().srq, None);

    let three = [s.mr.sge(..1); 3];
    let e = s.srq.post_recv(RecvWr::new(1, &three)).unwrap_err();
    assert_eq!(e.cause(), Some(&Cause::TooManySge { got: 3, max: 2 }));
    let Err(Error::Post { posted, cause, .. }) = s.srq.post_recv((0..65).map(|id| s.receive(id)))
    else {
        panic!("65 in 64 slots");
    };
    assert_eq!((posted, cause), (64, Cause::QueueFull { depth: 64 }));
    assert_eq!(s.srq.resize(63).unwrap_err().errno(), Some(EINVAL));
    s.srq.resize(65).unwrap();
    s.srq.post_recv(s.receive(64)).unwrap();

    let cq = a.create_cq(1).unwrap();
    let e = a.alloc_pd().unwrap().create_qp(QpType::Rc, &cq).srq(&s.srq).build().unwrap_err();
    assert!(matches!(e.cause(), Some(Cause::Mismatch { .. })), "{e}");
    let limits = b.attr().unwrap();
    let pd = b.alloc_pd().unwrap();
    pd.create_srq(limits.max_srq_wr, 1).unwrap();
    pd.create_srq(1, limits.max_srq_sge).unwrap();
    for (wr, sge) in [(0, 1), (limits.max_srq_wr + 1, 1), (1, limits.max_srq_sge + 1)] {
        assert_eq!(pd.create_srq(wr, sge).unwrap_err().errno(), Some(EINVAL));
    }
}

#[test]
fn it_lives_as_long_as_its_queue_pairs() {
    let Some(bed) = Bed::start() else { return };
    let s = Served::<1>::new(&bed);
    s.post(0..2);
    let Served { srq, server, clients, mr } = s;
    drop(srq);
    clients[0].done(SendWr::send(1, inline(b"still here")));
    let wc = server[0].rcq.wait(LONG).unwrap().ok().unwrap();
    assert_eq!(mr.to_vec(0..wc.byte_len as usize), b"still here");
}
