//! Loss where something must not happen twice: ATOMIC WRITE, FLUSH, and receives that are shared.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::pair::{Fate, Pair, Setup, make_qp, pattern};
use crate::engine::QpInit;
use crate::engine::counters::Counter as C;
use crate::engine::qp::attr::Recovery::{self, GoBack0, GoBackN};
use crate::engine::qp::attr::{QpAttr, QpState};
use crate::engine::status::WcStatus::Success;
use crate::mem::{Access, IovaChoice};
use crate::queue::{RecvQueue, SendOp, SendWqe};
use crate::time::Duration;

/// A pair whose memory may be flushed, too.
fn flushable() -> Pair {
    let access = Access::REMOTE | Access::FLUSH_GLOBAL;
    let mut p = Pair::new(&Setup { access, ..Setup::default() });
    let side = &mut p.sides[1];
    let region = Arc::clone(&side.region);
    side.mr = side.engine.register(side.pd, region, IovaChoice::Allocate, access).unwrap();
    p
}

#[test]
fn each_packet_of_atomic_write_and_flush_may_be_lost_once() {
    for (op, to, name) in [
        (SendOp::AtomicWrite, 1, "RC_ATOMIC_WRITE"),
        (SendOp::AtomicWrite, 0, "RC_READ_RESP_ONLY"),
        (SendOp::Flush, 1, "RC_FLUSH"),
        (SendOp::Flush, 0, "RC_READ_RESP_ONLY"),
    ] {
        let mut p = flushable();
        p.lose(to, name, 0);
        p.sides[0].region.store(0, 7, Relaxed);
        if op == SendOp::Flush {
            let wqe = SendWqe { compare_add: 64, imm_or_inv: 1, ..p.wqe(0, op, 1, 0) };
            p.post(0, wqe, &[]);
        } else {
            p.post(0, p.wqe(0, op, 1, 0), &[p.sge(0, 0, 8)]);
        }
        // Once it is done the program goes on with the word, before the answer is asked for again.
        while p.log.iter().all(|f| f.name != "RC_READ_RESP_ONLY") {
            assert!(p.step(), "{name}: it is never answered");
        }
        let first = p.sides[1].region.load(0, Relaxed);
        assert_eq!(first, if op == SendOp::Flush { 0 } else { 7 }, "{name}");
        p.sides[1].region.store(0, 8, Relaxed);
        p.run();
        assert_eq!(p.results(0), [(1, Success)], "{name}");
        assert_eq!(p.sides[1].region.load(0, Relaxed), 8, "{name}: not done again");
        let (executed, again) = match op {
            SendOp::Flush => (C::RxFlushRequests, C::DuplicateFlush),
            _ => (C::RxAtomicWriteRequests, C::DuplicateAtomicWrite),
        };
        let expected = (1, u64::from(to == 0));
        assert_eq!((p.counter(1, executed), p.counter(1, again)), expected, "{name}");
        assert_eq!(p.counter(0, C::CompleterRetryErr), 1, "{name}: one loss, one retry");
        p.assert_quiet();
    }
}

/// A pair whose newest queue pair on side 1 takes its receives from a shared queue of `depth` slots.
fn sharing(depth: u32, recovery: Recovery) -> (Pair, Arc<RecvQueue>) {
    let setup = Setup::default();
    let mut p = Pair::new(&setup);
    let sender = &mut p.sides[0];
    let qp = make_qp(&mut sender.engine, sender.pd, sender.cq, &setup);
    sender.qps.push(qp);
    let side = &mut p.sides[1];
    let (srq, queue) = side.engine.create_srq(side.pd, depth, 4).unwrap();
    let init = QpInit {
        kind: setup.kind,
        pd: side.pd,
        send_cq: side.cq,
        recv_cq: side.cq,
        srq: Some(srq),
        cap: setup.cap,
        sig_all: false,
        cc: None,
    };
    side.qps.push(side.engine.create_qp(init).unwrap());
    for side in &mut p.sides {
        side.engine.set_recovery(side.qps[1].0, recovery, recovery).unwrap();
    }
    p.connect(&setup);
    (p, queue)
}

const SLOT: usize = 8192;

/// Posts receives of [`SLOT`] bytes with these numbers.
fn fill(p: &Pair, queue: &RecvQueue, ids: std::ops::Range<usize>) {
    let mut queue = queue.lock();
    for id in ids {
        queue.stage(id as u64, [p.sge(1, id * SLOT, SLOT)]).unwrap();
        queue.publish();
    }
}

#[test]
fn a_message_that_loses_packets_takes_one_shared_receive() {
    let packets = [(1, "RC_SEND_FIRST"), (1, "RC_SEND_MIDDLE"), (1, "RC_SEND_LAST"), (0, "RC_ACK")];
    for (recovery, (to, name)) in
        [GoBackN, GoBack0].into_iter().flat_map(|r| packets.map(|packet| (r, packet)))
    {
        let (mut p, queue) = sharing(8, recovery);
        fill(&p, &queue, 0..4);
        p.lose(to, name, 0);
        let data = p.fill(0, 0, 5000, 77);
        let after = p.fill(0, 10_000, 3000, 78);
        p.post_on(0, 1, p.wqe(0, SendOp::Send, 1, 0), &[p.sge(0, 0, 5000)]);
        p.run();
        p.post_on(0, 1, p.wqe(0, SendOp::Send, 2, 0), &[p.sge(0, 10_000, 3000)]);
        p.run();
        assert_eq!(p.results(0), [(1, Success), (2, Success)], "{name}");
        let got: Vec<_> = p.completions(1).iter().map(|c| (c.wr_id, c.byte_len)).collect();
        assert_eq!(got, [(0, 5000), (1, 3000)], "{name}: each in one receive");
        assert_eq!((p.bytes(1, 0, 5000), p.bytes(1, SLOT, 3000)), (data, after), "{name}");
        assert_eq!(queue.lock().free(), 6, "{name}: two are taken");
        assert_eq!(p.counter(0, C::CompleterRetryErr), 1, "{name}: one loss, one retry");
        p.assert_quiet();
    }
}

#[test]
fn a_lost_not_ready_of_a_shared_queue_is_said_again() {
    let (mut p, queue) = sharing(8, GoBackN);
    let mut said = 0;
    p.rule(move |f| {
        let is_rnr = f.syndrome == Some(0x21);
        said += u32::from(is_rnr);
        if is_rnr && said == 1 { Fate::Drop } else { Fate::Pass }
    });
    p.fill(0, 0, 3000, 5);
    p.post_on(0, 1, p.wqe(0, SendOp::Send, 1, 0), &[p.sge(0, 0, 3000)]);
    p.run_for(Duration::from_millis(8));
    assert_eq!((p.counter(0, C::LocalAckTimeoutErr), p.results(0).len()), (1, 0));
    assert!(p.counter(1, C::SendRnrErr) > p.counter(0, C::RcvdRnrErr));
    fill(&p, &queue, 0..1);
    p.run();
    assert_eq!(p.results(0), [(1, Success)]);
    assert_eq!(p.bytes(1, 0, 3000), pattern(3000, 5));
    assert_eq!(p.counter(1, C::SendRnrErr), p.counter(0, C::RcvdRnrErr) + 1);
    p.assert_quiet();
}

/// As its device was told, and no other packet.
#[test]
fn a_flush_for_rdma_rxe_has_the_icrc_of_rdma_rxe() {
    for (rxe, v6) in [(true, false), (true, true), (false, false)] {
        let access = Access::REMOTE | Access::FLUSH_GLOBAL;
        let config: fn(&mut crate::engine::EngineConfig) =
            if rxe { |c| c.rxe_flush = true } else { |c| c.rxe_flush = false };
        let mut p = Pair::new(&Setup { access, config, v6, ..Setup::default() });
        let side = &mut p.sides[1];
        let region = Arc::clone(&side.region);
        side.mr = side.engine.register(side.pd, region, IovaChoice::Allocate, access).unwrap();
        p.post(0, p.wqe(0, SendOp::Write, 1, 0), &[]);
        p.post(0, p.wqe(0, SendOp::Write, 2, 0), &[p.sge(0, 0, 2050)]);
        p.post(0, SendWqe { compare_add: 64, imm_or_inv: 1, ..p.wqe(0, SendOp::Flush, 3, 0) }, &[]);
        p.run();
        assert_eq!(p.results(0), [(1, Success), (2, Success), (3, Success)]);
        assert_eq!(p.counter(1, C::IcrcRxeFlush), u64::from(rxe), "v6: {v6}");
        assert_eq!(p.counter(1, C::RxIcrcEncapsulated), 0);
        p.assert_quiet();
    }
}

/// A stream that takes longer to arrive than the responder waits until it asks again.
#[test]
fn one_loss_of_a_slow_stream_over_a_long_way_does_not_kill() {
    for retry_cnt in [1, 7] {
        let config: fn(&mut crate::engine::EngineConfig) = |c| c.window.enabled = false;
        let mut p = Pair::new(&Setup { timeout: 17, retry_cnt, config, ..Setup::default() });
        p.delay = Duration::from_millis(10);
        // A packet in 0.88 ms.
        p.modify(0, &QpAttr::to(QpState::Rts).rate_limit(10_000));
        p.lose(1, "RC_WRITE_MIDDLE", 9);
        let data = p.fill(0, 0, 60_000, 9);
        p.post(0, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 60_000)]);
        p.run();
        assert_eq!((p.results(0), p.bytes(1, 0, 60_000)), (vec![(1, Success)], data));
        let asked = p.log.iter().filter(|f| f.syndrome == Some(0x60)).count();
        assert!(asked > 8, "asked {asked} times");
        assert!(p.counter(0, C::RcvdSeqErr) <= 6, "{}", p.counter(0, C::RcvdSeqErr));
        assert_eq!(p.counter(0, C::LocalAckTimeoutErr), 0);
        p.assert_quiet();
    }
}

/// With no timeout to wait for: the responder asks again after a millisecond, and is heard.
#[test]
fn a_repeat_that_is_lost_too_is_asked_for_again() {
    let mut p = Pair::new(&Setup { timeout: 0, ..Setup::default() });
    let data = p.fill(0, 0, 5000, 9);
    let (mut psn, mut lost) = (None, 0);
    p.rule(move |f| {
        if f.name == "RC_WRITE_MIDDLE" && f.psn == *psn.get_or_insert(f.psn) && lost < 2 {
            lost += 1;
            return Fate::Drop;
        }
        Fate::Pass
    });
    p.post(0, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 5000)]);
    p.run_for(Duration::from_millis(2));
    assert_eq!((p.results(0), p.counter(0, C::RcvdSeqErr)), (vec![], 1));
    // Whatever comes behind the gap shows the responder that it is still there.
    p.post(0, p.wqe(0, SendOp::Write, 2, 0), &[p.sge(0, 0, 0)]);
    p.run();
    assert_eq!(p.results(0), [(1, Success), (2, Success)]);
    assert_eq!((p.counter(0, C::RcvdSeqErr), p.counter(0, C::LocalAckTimeoutErr)), (2, 0));
    assert_eq!(p.bytes(1, 0, 5000), data);
    p.assert_quiet();
}
