//! Completion queues, their events, and the channels that carry them.

use softroce::prelude::*;
use softroce::verbs::Cause;

use super::Bed;
use crate::testbed::{LONG, Pair, Side, Testbed};

const EINVAL: i32 = 22;

/// A connected pair whose receiver's queue reports to a channel, with receives posted.
struct Watched {
    pair: Pair,
    channel: CompChannel,
    bed: Bed,
}

impl Watched {
    fn start() -> Option<Self> {
        let bed = Bed::start()?;
        let [a, b] = bed.hosts();
        let channel = b.create_comp_channel().unwrap();
        let rcq = b.cq_builder(256).channel(&channel).build().unwrap();
        let mut b = Side::with(b, |qp| qp.recv_cq(&rcq));
        b.rcq = rcq;
        let pair = Pair::connect(Side::new(a), b, &QpAttr::default());
        pair.b.qp.post_recv((0..128).map(|id| RecvWr::new(id, ()))).unwrap();
        Some(Self { pair, channel, bed })
    }

    /// Sends a message of no bytes, and waits until it is acknowledged. (Its completion at the receiver may
    /// become visible a little later.)
    #[track_caller]
    fn send(&self, solicited: bool) {
        let wr = SendWr::send(1, ());
        self.pair.a.done(if solicited { wr.solicited() } else { wr });
    }

    /// An event is there, and it is the receiver's.
    #[track_caller]
    fn event(&self) {
        let event = self.channel.get_event(LONG).unwrap();
        assert_eq!(event.cq().number(), self.pair.b.rcq.number());
    }

    /// The receiver takes `n` completions.
    #[track_caller]
    fn take(&self, n: usize) {
        for _ in 0..n {
            self.pair.b.received().ok().unwrap();
        }
    }

    #[track_caller]
    fn no_event(&self) {
        let event = self.channel.wait(Duration::ZERO).map(|cq| cq.number());
        assert_eq!(event, Err(Error::Timeout));
    }
}

#[test]
fn polling_gives_what_is_there_and_no_more_than_asked_for() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let to = b.memory(8);
    a.qp.post_send((0..10).map(|id| SendWr::write(id, inline(b"x"), to.remote()))).unwrap();
    let mut got = Vec::new();
    let mut some = [WorkCompletion::default(); 4];
    while got.len() < 10 {
        let n = a.cq.wait_many(&mut some, LONG).unwrap();
        assert!((1..=4).contains(&n));
        got.extend(some[..n].iter().map(|wc| wc.ok().unwrap().wr_id));
    }
    assert_eq!(got, (0..10).collect::<Vec<_>>());
    assert_eq!(a.cq.poll(&mut some), Ok(0));
    assert_eq!(a.cq.wait(Duration::ZERO), Err(Error::Timeout));
    assert_eq!(a.cq.wait(Duration::from_micros(10)), Err(Error::Timeout));
}

#[test]
fn a_program_that_only_polls_gets_there() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let mine = a.memory(100_000);
    let theirs = b.memory(100_000);
    a.post(SendWr::read(1, mine.sge(..), theirs.remote()));
    let mut one = [WorkCompletion::default()];
    while a.cq.poll(&mut one).unwrap() == 0 {
        std::hint::spin_loop();
    }
    assert_eq!(one[0].ok().unwrap().byte_len, 100_000);
}

#[test]
fn arming_gives_one_event_for_what_comes_later() {
    let Some(w) = Watched::start() else { return };
    let rcq = &w.pair.b.rcq;
    w.send(false);
    w.no_event();
    w.take(1);

    rcq.arm(false).unwrap();
    w.no_event();
    w.send(false);
    w.event();
    // It is disarmed now.
    w.send(false);
    w.send(true);
    w.no_event();
    w.take(3);
    w.no_event();

    // Completions that are there already make no event; the next one does.
    w.send(false);
    w.bed.until("there is one", || w.pair.b.counter("rdma_recvs") == 5);
    rcq.arm(false).unwrap();
    w.no_event();
    w.send(false);
    w.event();
    w.take(2);
    w.no_event();
}

#[test]
fn solicited_arming_waits_for_what_the_sender_marks() {
    let Some(w) = Watched::start() else { return };
    let rcq = &w.pair.b.rcq;
    rcq.arm(true).unwrap();
    for _ in 0..3 {
        w.send(false);
    }
    w.no_event();
    w.send(true);
    w.event();
    w.take(4);

    // The mark of a WRITE with immediate counts too, in the last of its packets.
    rcq.arm(true).unwrap();
    let (from, to) = (w.pair.a.memory(20_000), w.pair.b.memory(20_000));
    w.pair.a.done(SendWr::write(1, from.sge(..), to.remote()).imm(1));
    w.no_event();
    w.pair.a.done(SendWr::write(1, from.sge(..), to.remote()).imm(1).solicited());
    w.event();

    // Asking for all widens; asking for solicited ones after that narrows nothing.
    rcq.arm(true).unwrap();
    rcq.arm(false).unwrap();
    rcq.arm(true).unwrap();
    w.send(false);
    w.event();
    w.no_event();
}

#[test]
fn an_error_counts_as_solicited() {
    let Some(w) = Watched::start() else { return };
    let Watched { pair: Pair { b, .. }, .. } = &w;
    b.rcq.arm(true).unwrap();
    b.qp.modify(&QpAttr::to(QpState::Err)).unwrap();
    w.event();
    let all = b.rcq.drain();
    assert_eq!(all.len(), 128);
    assert!(all.iter().all(|wc| wc.status == WcStatus::WrFlush));
}

#[test]
fn poll_arm_poll_never_loses_one() {
    let Some(w) = Watched::start() else { return };
    let Watched { pair: Pair { a, b }, channel, .. } = &w;
    const ROUNDS: u32 = 500;
    for round in 0..ROUNDS {
        // The message is on its way while the receiver decides to sleep: it may come before the first
        // look, between the looks, or while the receiver sleeps.
        a.post(SendWr::send(u64::from(round), ()));
        let mut one = [WorkCompletion::default()];
        loop {
            if b.rcq.poll(&mut one).unwrap() > 0 {
                break;
            }
            b.rcq.arm(false).unwrap();
            if !b.rcq.drain().is_empty() {
                break;
            }
            let event = channel.get_event(LONG).unwrap();
            assert_eq!(event.cq().number(), b.rcq.number());
        }
        b.qp.post_recv(RecvWr::new(1, ())).unwrap();
        a.sent().ok().unwrap();
        // An event for what a look has found is left over, as with hardware.
        while channel.wait(Duration::ZERO).is_ok() {}
    }
}

#[test]
fn waiting_leaves_the_channel_and_what_was_armed_alone() {
    let Some(w) = Watched::start() else { return };
    let Watched { pair: Pair { a, b }, .. } = &w;
    b.rcq.arm(false).unwrap();
    a.post(SendWr::send(1, ()));
    b.received().ok().unwrap();
    w.event();
    w.no_event();
    a.post(SendWr::send(1, ()));
    b.received().ok().unwrap();
    w.no_event();
}

#[test]
fn several_queues_on_one_channel() {
    let Some(bed) = Bed::start() else { return };
    let [_, host] = bed.hosts();
    let channel = host.create_comp_channel().unwrap();
    let pairs: Vec<Pair> = (0..3)
        .map(|_| {
            let [a, b] = bed.hosts();
            let rcq = b.cq_builder(16).channel(&channel).build().unwrap();
            let mut b = Side::with(b, |qp| qp.recv_cq(&rcq));
            b.rcq = rcq;
            b.rcq.arm(false).unwrap();
            b.qp.post_recv(RecvWr::new(1, ())).unwrap();
            Pair::connect(Side::new(a), b, &QpAttr::default())
        })
        .collect();
    for i in [2, 0, 1] {
        pairs[i].a.done(SendWr::send(1, ()));
        let cq = channel.wait(LONG).unwrap();
        assert_eq!(cq.number(), pairs[i].b.rcq.number());
        assert_eq!(cq.wait(LONG).unwrap().ok().unwrap().qpn, pairs[i].b.qp.number());
    }
}

#[test]
fn an_event_of_a_queue_that_is_gone_is_gone() {
    let Some(w) = Watched::start() else { return };
    let Watched { pair: Pair { a, b }, channel, bed } = w;
    b.rcq.arm(false).unwrap();
    a.done(SendWr::send(1, ()));
    drop(b);
    assert!(channel.wait(Duration::ZERO).is_err());
    drop(bed);
}

#[cfg(all(feature = "udp", target_os = "linux"))]
#[test]
fn the_channels_descriptor_is_readable_while_it_has_events() {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let Some(w) = Watched::start() else { return };
    let Watched { pair: Pair { a, b }, channel, bed } = &w;
    let readable = || {
        let mut fds = [PollFd::new(channel.fd().unwrap(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
    };
    assert!(!readable());
    b.rcq.arm(false).unwrap();
    a.post(SendWr::send(1, ()));
    bed.until("readable", readable);
    // Another queue of the channel adds a second event: readable until both are fetched.
    let cq = b.ctx.cq_builder(16).channel(channel).build().unwrap();
    let extra = b.pd.create_qp(QpType::Rc, &cq).build().unwrap();
    cq.arm(false).unwrap();
    extra.modify(&QpAttr::to(QpState::Err)).unwrap();
    extra.post_recv(RecvWr::new(1, ())).unwrap();
    bed.until("a flushed receive", || !cq.drain().is_empty());
    w.event();
    assert!(readable());
    assert_eq!(channel.wait(LONG).unwrap().number(), cq.number());
    assert!(!readable());
}

#[test]
fn what_cannot_be_armed_or_made() {
    let Some(bed) = Bed::start() else { return };
    let [a, b] = bed.hosts();
    let e = a.create_cq(4).unwrap().arm(false).unwrap_err();
    assert_eq!(e.errno(), Some(EINVAL));
    assert!(e.to_string().contains("channel"), "{e}");
    let channel = b.create_comp_channel().unwrap();
    let e = a.cq_builder(4).channel(&channel).build().unwrap_err();
    assert_eq!(e.errno(), Some(EINVAL));
    assert!(matches!(e.cause(), Some(Cause::Mismatch { .. })), "{e}");
    let e = a.cq_builder(4).vector(1).build().unwrap_err();
    assert_eq!(e.cause(), Some(&Cause::AttrRange { attr: "comp_vector", got: 1, max: 0 }));
    assert!(a.create_cq(0).is_err());
    assert!(a.create_cq(33).unwrap().depth() >= 33);
    // A queue of one device and a domain of the other do not go together.
    let pd = a.alloc_pd().unwrap();
    let e = pd.create_qp(QpType::Rc, &b.create_cq(4).unwrap()).build().unwrap_err();
    assert!(matches!(e.cause(), Some(Cause::Mismatch { .. })), "{e}");
}

#[test]
fn resizing_keeps_what_is_there() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let to = b.memory(8);
    let cq = &a.cq;
    a.qp.post_send((0..6).map(|id| SendWr::write(id, inline(b"x"), to.remote()))).unwrap();
    bed.until("all done at the peer", || b.counter("rx_write_requests") == 6);
    assert_eq!(cq.wait(LONG).unwrap().wr_id, 0);
    bed.until("all acknowledged", || {
        // Too small as long as five completions are there; until then they would fit.
        let refused = cq.resize(4);
        refused.is_err_and(|e| e.errno() == Some(EINVAL)) || {
            cq.resize(256).unwrap();
            false
        }
    });
    cq.resize(5).unwrap();
    assert!(cq.depth() >= 5);
    for id in 1..6 {
        assert_eq!(cq.wait(LONG).unwrap().ok().unwrap().wr_id, id);
    }
    cq.resize(1000).unwrap();
    assert!(cq.depth() >= 1000);
    assert!(cq.resize(0).is_err());
    a.done(SendWr::write(7, inline(b"x"), to.remote()));
}

#[test]
fn a_queue_that_overruns_says_so() {
    let Some(bed) = Bed::start() else { return };
    let [a, b] = bed.hosts();
    let cq = a.create_cq(4).unwrap();
    let mut a = Side::with(a, |_| {
        let pd = a.alloc_pd().unwrap();
        pd.create_qp(QpType::Rc, &cq).recv_cq(&a.create_cq(4).unwrap())
    });
    a.cq = cq;
    let Pair { a, b } = Pair::connect(a, Side::new(b), &QpAttr::default());
    let depth = u64::from(a.cq.depth());
    let to = b.memory(8);
    a.qp.post_send((0..=depth).map(|id| SendWr::write(id, inline(b"x"), to.remote()))).unwrap();
    let mut events = vec![a.event(), a.event()];
    events.sort_by_key(|e| !matches!(e, Event::CqErr { .. }));
    assert_eq!(events, [Event::CqErr { cq: a.cq.number() }, Event::QpFatal { qpn: a.qp.number() }]);
    assert_eq!(a.state(), QpState::Err);
    for id in 0..depth {
        assert_eq!(a.sent().ok().unwrap().wr_id, id, "what fitted is there");
    }
    assert_eq!(a.cq.drain(), []);
    assert_eq!(a.counter("cq_overrun"), 1);
}

#[test]
fn timestamps_where_asked_for() {
    let Some(bed) = Bed::start() else { return };
    let [a, b] = bed.hosts();
    let cq = a.cq_builder(16).timestamps().build().unwrap();
    let mut a = Side::with(a, |_| a.alloc_pd().unwrap().create_qp(QpType::Rc, &cq));
    a.cq = cq;
    let Pair { a, b } = Pair::connect(a, Side::new(b), &QpAttr::default());
    b.qp.post_recv((0..2).map(|id| RecvWr::new(id, ()))).unwrap();
    let first = a.done(SendWr::send(1, ())).timestamp.unwrap();
    let second = a.done(SendWr::send(2, ())).timestamp.unwrap();
    assert!(0 < first && first < second, "{first} {second}");
    assert_eq!(b.received().timestamp, None);
}

#[test]
fn completions_of_a_queue_pair_that_is_gone_are_gone() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let to = b.memory(8);
    let neighbour = Pair::connect(
        Side::with(&a.ctx, |_| a.pd.create_qp(QpType::Rc, &a.cq)),
        Side::new(&b.ctx),
        &QpAttr::default(),
    );
    b.qp.post_recv((0..3).map(|id| RecvWr::new(id, ()))).unwrap();
    a.qp.post_send((0..3).map(|id| SendWr::send(id, ()))).unwrap();
    for id in 0..3 {
        assert_eq!(b.received().ok().unwrap().wr_id, id);
    }
    let _ = to;
    a.qp.destroy().unwrap();
    assert_eq!(a.cq.drain(), []);
    // The neighbour on the same queue is not touched.
    neighbour.b.qp.post_recv(RecvWr::new(1, ())).unwrap();
    neighbour.a.post(SendWr::send(77, ()));
    assert_eq!(a.cq.wait(LONG).unwrap().ok().unwrap().wr_id, 77);
}

#[test]
fn completions_as_futures() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    b.qp.post_recv((0..100).map(|id| RecvWr::new(id, ()))).unwrap();
    bed.block_on(async {
        for id in 0..100 {
            a.post(SendWr::send(id, ()));
            assert_eq!(a.cq.next().await.unwrap().ok().unwrap().wr_id, id);
            assert_eq!(b.rcq.next().await.unwrap().ok().unwrap().wr_id, id);
        }
    });
}

#[test]
fn a_future_that_is_dropped_takes_no_completion_along() {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Context as TaskContext, Poll, Wake, Waker};
    struct Count(AtomicU32);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let to = b.memory(8);
    let [first, second] = [0, 0].map(|n| Arc::new(Count(n.into())));
    let (one, two) = (Waker::from(Arc::clone(&first)), Waker::from(Arc::clone(&second)));
    let mut waits = pin!(a.cq.next());
    assert!(waits.as_mut().poll(&mut TaskContext::from_waker(&one)).is_pending());
    {
        // What it waited for comes when nobody asks it any more.
        let mut gives_up = pin!(a.cq.next());
        assert!(gives_up.as_mut().poll(&mut TaskContext::from_waker(&two)).is_pending());
        a.post(SendWr::write(1, inline(b"x"), to.remote()));
        bed.until("both are woken", || {
            first.0.load(Ordering::Relaxed) > 0 && second.0.load(Ordering::Relaxed) > 0
        });
    }
    let Poll::Ready(wc) = waits.as_mut().poll(&mut TaskContext::from_waker(&one)) else {
        panic!("the completion went with the one that gave up");
    };
    assert_eq!(wc.unwrap().ok().unwrap().wr_id, 1);
    // A request whose task is gone is carried out, and its completion is the next one's.
    a.post(SendWr::write(2, inline(b"y"), to.remote()));
    assert_eq!(bed.block_on(a.cq.next()).unwrap().ok().unwrap().wr_id, 2);
    assert_eq!(to.to_vec(0..1), b"y");
}

#[test]
fn an_event_that_is_held_keeps_its_queue_and_stops_nobody() {
    let Some(w) = Watched::start() else { return };
    let Watched { pair: Pair { a, b }, channel, .. } = w;
    b.rcq.arm(false).unwrap();
    a.done(SendWr::send(1, ()));
    let event = channel.get_event(LONG).unwrap();
    // All handles go while the event is not acknowledged.
    let Side { qp, rcq, .. } = b;
    let number = rcq.number();
    qp.destroy().unwrap();
    drop(rcq);
    assert_eq!(event.cq().number(), number);
    drop(event);
    drop(channel);
    a.qp.destroy().unwrap();
}

#[test]
fn one_poll_gives_completions_of_both_kinds() {
    let Some(bed) = Bed::start() else { return };
    let host = bed.hosts()[0];
    let (cq, pd) = (host.create_cq(16).unwrap(), host.alloc_pd().unwrap());
    let side = Side {
        qp: pd.create_qp(QpType::Rc, &cq).build().unwrap(),
        rcq: cq.clone(),
        cq: cq.clone(),
        ctx: host.clone(),
        pd,
    };
    side.qp.connect(&side.qp.endpoint()).unwrap();
    side.qp.post_recv(RecvWr::new(1, ())).unwrap();
    side.post(SendWr::send(2, ()));
    bed.until("both are there", || {
        side.counter("rdma_recvs") == 1 && side.counter("rdma_sends") == 1
    });
    let mut all = [WorkCompletion::default(); 16];
    let n = cq.wait_many(&mut all, LONG).unwrap();
    let mut got: Vec<_> = all[..n].iter().map(|wc| (wc.ok().unwrap().wr_id, wc.opcode)).collect();
    got.sort_by_key(|&(id, _)| id);
    assert_eq!(got, [(1, WcOpcode::Recv), (2, WcOpcode::Send)]);
}

#[test]
fn whoever_is_woken_may_use_the_queue_at_once() {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context as TaskContext, Wake, Waker};
    /// Uses everything that a lock could be held on.
    struct Again(CompletionQueue, AtomicBool);
    impl Wake for Again {
        fn wake(self: Arc<Self>) {
            self.0.arm(false).unwrap();
            assert!(self.0.poll(&mut [WorkCompletion::default()]).is_ok());
            let mut more = pin!(self.0.next());
            let _ = more.as_mut().poll(&mut TaskContext::from_waker(Waker::noop()));
            self.1.store(true, Ordering::Relaxed);
        }
    }
    let Some(w) = Watched::start() else { return };
    let Pair { a, b } = &w.pair;
    let again = Arc::new(Again(b.rcq.clone(), AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&again));
    let mut waits = pin!(b.rcq.next());
    assert!(waits.as_mut().poll(&mut TaskContext::from_waker(&waker)).is_pending());
    a.post(SendWr::send(1, ()));
    w.bed.until("woken", || again.1.load(Ordering::Relaxed));
}

#[test]
fn completions_of_queue_pairs_that_are_gone_take_no_room() {
    let Some(bed) = Bed::start() else { return };
    let host = bed.hosts()[0];
    let (cq, pd) = (host.create_cq(64).unwrap(), host.alloc_pd().unwrap());
    for _ in 0..10 {
        let qp = pd.create_qp(QpType::Rc, &cq).depth(1, 32).build().unwrap();
        qp.connect(&qp.endpoint()).unwrap();
        qp.post_recv((0..32).map(|id| RecvWr::new(id, ()))).unwrap();
        // All are flushed, and nobody polls.
        qp.modify(&QpAttr::to(QpState::Err)).unwrap();
    }
    assert_eq!(host.counters(1).unwrap()["cq_overrun"], 0);
    cq.resize(1).unwrap();
    assert_eq!(cq.poll(&mut [WorkCompletion::default()]), Ok(0));
}

/// A waker that does something when it is registered.
struct Hook<'a>(&'a dyn Fn());

#[test]
#[expect(unsafe_code, reason = "a waker whose clone does something is made by hand")]
fn what_comes_while_a_task_registers_is_not_missed() {
    use std::pin::pin;
    use std::task::{Context as TaskContext, RawWaker, RawWakerVTable, Waker};
    unsafe fn clone(data: *const ()) -> RawWaker {
        // SAFETY: the pointer is to the hook below, which outlives every waker made here: all go before it does.
        let hook = unsafe { &*data.cast::<Hook<'_>>() };
        (hook.0)();
        RawWaker::new(data, &TABLE)
    }
    unsafe fn nothing(_: *const ()) {}
    static TABLE: RawWakerVTable = RawWakerVTable::new(clone, nothing, nothing, nothing);

    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    b.qp.post_recv(RecvWr::new(1, ())).unwrap();
    let come = || {
        a.post(SendWr::send(1, ()));
        bed.until("it has come", || b.counter("rdma_recvs") == 1);
    };
    let hook = Hook(&come);
    // SAFETY: the functions of the table do what a waker promises: they neither own nor free anything.
    let waker = unsafe { Waker::from_raw(RawWaker::new((&raw const hook).cast(), &TABLE)) };
    let mut waits = pin!(b.rcq.next());
    let first = waits.as_mut().poll(&mut TaskContext::from_waker(&waker));
    assert!(first.is_ready(), "nobody would ever wake it");
}
