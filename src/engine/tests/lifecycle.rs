//! Queue pairs that drain, fail, are reset, and go: nothing is lost in silence, nothing comes back.

use super::pair::{Fate, Pair, Setup, ways_up};
use crate::engine::config::EngineConfig;
use crate::engine::counters::Counter as C;
use crate::engine::event::AsyncEvent;
use crate::engine::qp::attr::{AhAttr, QpAttr, QpCap, QpState};
use crate::engine::status::WcStatus::{self, RetryExc, Success, WrFlush};
use crate::engine::{Acks, Cause, Engine, LocalGid};
use crate::mem::Access;
use crate::net::RxMeta;
use crate::queue::{SendFlags, SendOp, SendWqe};
use crate::time::Duration;
use crate::wire::num::Gid;

fn sqd(notify: bool) -> QpAttr {
    QpAttr::to(QpState::Sqd).sqd_notify(notify)
}

fn rts() -> QpAttr {
    QpAttr::to(QpState::Rts)
}

#[test]
fn draining_finishes_what_was_begun_and_starts_nothing() {
    let mut p = Pair::new(&Setup { rd_atomic: 1, ..Setup::default() });
    let data = p.fill(1, 0, 5000, 3);
    p.post(0, p.wqe(0, SendOp::Read, 1, 0), &[p.sge(0, 0, 5000)]);
    // Begun, but without credit: it waits, and what is behind it.
    p.post(0, p.wqe(0, SendOp::Read, 2, 0), &[p.sge(0, 100_000, 5000)]);
    p.post(0, p.wqe(0, SendOp::Send, 3, 0), &[]);
    let qpn = p.sides[0].face.qpn().raw();
    p.modify(0, &sqd(true));
    assert_eq!(p.sides[0].events, []);
    assert_eq!(p.state(0), QpState::Sqd);
    // Posting goes on.
    p.post(0, p.wqe(0, SendOp::Write, 4, 0), &[p.sge(0, 0, 8)]);
    p.post_recv(0, 9, &[p.sge(0, 500_000, 8)]);
    p.post_recv(1, 9, &[]);
    p.run();
    assert_eq!(p.results(0), [(1, Success), (2, Success)], "both were begun");
    assert_eq!(p.bytes(0, 0, 5000), data);
    assert_eq!(p.sides[0].events, [AsyncEvent::SqDrained { qpn }], "once");
    let sent = p.names(1);
    assert_eq!(sent, ["RC_READ_REQUEST", "RC_READ_REQUEST"]);
    // Receiving works.
    p.post(1, p.wqe(1, SendOp::Send, 7, 0), &[p.sge(1, 0, 8)]);
    p.run();
    assert_eq!(p.results(0), [(9, Success)]);
    // And on.
    p.modify(0, &rts());
    p.run();
    assert_eq!(p.results(0), [(3, Success), (4, Success)]);
    assert_eq!(p.sides[0].events.len(), 1);
    p.assert_quiet();
}

#[test]
fn draining_retries_and_ends_at_a_message_boundary() {
    // Four packets fit the window; the message has ten. One of them is lost while draining.
    let config: fn(&mut EngineConfig) = |c| {
        c.window = crate::engine::WindowConfig { initial: 7500, max: 7500, enabled: true };
    };
    let mut p = Pair::new(&Setup { config, ..Setup::default() });
    let data = p.fill(0, 0, 10_000, 5);
    p.post(0, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 10_000)]);
    p.post(0, p.wqe(0, SendOp::Write, 2, 0), &[p.sge(0, 0, 8)]);
    p.modify(0, &sqd(true));
    p.lose(1, "RC_WRITE_MIDDLE", 2);
    p.run();
    assert_eq!(p.results(0), [(1, Success)]);
    assert_eq!(p.bytes(1, 0, 10_000), data);
    assert_eq!(p.sides[0].events.len(), 1);
    assert!(p.counter(0, C::CompleterRetryErr) > 0);
    p.modify(0, &rts());
    p.run();
    assert_eq!(p.results(0), [(2, Success)]);
    p.assert_quiet();
}

#[test]
fn draining_with_nothing_to_drain_and_without_asking_for_the_event() {
    let mut p = Pair::new(&Setup::default());
    p.modify(0, &sqd(true));
    assert_eq!(p.sides[0].events.len(), 1);
    p.modify(0, &rts());
    p.post(0, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 8)]);
    p.modify(0, &sqd(false));
    p.run();
    assert_eq!(p.results(0), [(1, Success)]);
    assert_eq!(p.sides[0].events.len(), 1, "nobody asked");
}

#[test]
fn while_it_drains_only_err_and_reset_are_possible() {
    let mut p = Pair::new(&Setup::default());
    p.post(0, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 8)]);
    p.modify(0, &sqd(true));
    let (now, qp) = (p.now, p.sides[0].qp);
    let mut modify = |attr: QpAttr| p.sides[0].engine.modify_qp(now, qp, &attr);
    for attr in [rts(), QpAttr::to(QpState::Sqd).timeout(9)] {
        assert!(matches!(modify(attr), Err(Cause::Busy { .. })));
    }
    p.run();
    p.modify(0, &QpAttr::to(QpState::Sqd).timeout(9).retry_cnt(1).max_rd_atomic(2));
    p.post(0, p.wqe(0, SendOp::Write, 2, 0), &[p.sge(0, 0, 8)]);
    p.modify(0, &QpAttr::to(QpState::Err));
    p.run();
    assert_eq!(p.results(0), [(1, Success), (2, WrFlush)]);
    assert_eq!(p.sides[0].events.len(), 1);
}

#[test]
fn resources_of_the_responder_change_only_when_none_is_in_use() {
    let mut p = Pair::new(&Setup::default());
    let change = |n: u8| QpAttr::to(QpState::Sqd).max_dest_rd_atomic(n);
    p.modify(1, &sqd(false));
    // The READ has arrived and cannot be answered yet: nobody asks the engine to send.
    p.post(0, p.wqe(0, SendOp::Read, 1, 0), &[p.sge(0, 0, 5000)]);
    p.deliver_without_sending();
    let (now, qp) = (p.now, p.sides[1].qp);
    let refused = p.sides[1].engine.modify_qp(now, qp, &change(4));
    assert!(matches!(refused, Err(Cause::Busy { .. })), "{refused:?}");
    p.pump(1);
    p.run();
    assert_eq!(p.results(0), [(1, Success)]);
    p.modify(1, &change(1));
    p.post(0, p.wqe(0, SendOp::Read, 2, 0), &[p.sge(0, 0, 5000)]);
    p.run();
    assert_eq!(p.results(0), [(2, Success)]);
    p.modify(1, &change(0));
    p.post(0, p.wqe(0, SendOp::Read, 3, 0), &[p.sge(0, 0, 8)]);
    p.run();
    assert_eq!(p.results(0), [(3, WcStatus::RemInvReq)]);
}

#[test]
fn err_flushes_both_queues_in_order_and_what_is_posted_later() {
    let mut p = Pair::new(&Setup::default());
    p.rule(|f| if f.to == 1 { Fate::Drop } else { Fate::Pass });
    let quiet =
        |p: &Pair, id| SendWqe { flags: SendFlags::empty(), ..p.wqe(0, SendOp::Write, id, 0) };
    for id in 0..10 {
        let wqe = if id % 3 == 0 { quiet(&p, id) } else { p.wqe(0, SendOp::Send, id, 0) };
        p.post(0, wqe, &[p.sge(0, 0, 2000)]);
    }
    for id in 100..120 {
        p.post_recv(0, id, &[p.sge(0, 0, 8)]);
    }
    p.modify(0, &QpAttr::to(QpState::Err));
    let flushed = |ids: std::ops::Range<u64>| ids.map(|id| (id, WrFlush)).collect::<Vec<_>>();
    assert_eq!(p.results(0), [flushed(0..10), flushed(100..120)].concat());
    for id in 20..23 {
        p.post(0, quiet(&p, id), &[p.sge(0, 0, 8)]);
        p.post_recv(0, id + 200, &[]);
    }
    assert_eq!(p.results(0), [20, 220, 21, 221, 22, 222].map(|id| (id, WrFlush)));
    p.run();
    p.assert_quiet();
    assert_eq!(p.counter(0, C::ReqCqeFlushError) + p.counter(0, C::RespCqeFlushError), 36);
}

#[test]
fn reset_empties_the_queues_without_a_trace_and_the_queue_pair_lives_again() {
    let setup = Setup::default();
    let mut p = Pair::new(&setup);
    // Completions that were not polled, requests under way, and receives.
    for id in 0..5 {
        p.post(0, p.wqe(0, SendOp::Write, id, 0), &[p.sge(0, 0, 8)]);
    }
    p.run();
    p.rule(|_| Fate::Drop);
    for id in 5..10 {
        p.post(0, p.wqe(0, SendOp::Write, id, 0), &[p.sge(0, 0, 5000)]);
        p.post_recv(0, 100 + id, &[p.sge(0, 0, 8)]);
    }
    for side in 0..2 {
        p.modify(side, &QpAttr::to(QpState::Reset));
    }
    assert_eq!((p.results(0), p.results(1)), (vec![], vec![]));
    assert_eq!(p.sides[0].face.sq.lock().free(), setup.cap.send_wr);
    assert_eq!(p.sides[0].face.rq.lock().free(), setup.cap.recv_wr);
    p.run();
    p.assert_quiet();
    // Up again, with other PSNs.
    p.rule(|_| Fate::Pass);
    let again = Setup { psn: 0xff_ffff, ..setup };
    p.connect(&again);
    let data = p.fill(0, 0, 5000, 9);
    p.post_recv(1, 1, &[p.sge(1, 0, 5000)]);
    p.post(0, p.wqe(0, SendOp::Send, 2, 0), &[p.sge(0, 0, 5000)]);
    p.post(0, p.wqe(0, SendOp::Read, 3, 0), &[p.sge(0, 9000, 5000)]);
    p.run();
    assert_eq!(p.results(0), [(2, Success), (3, Success)]);
    assert_eq!((p.results(1), p.bytes(1, 0, 5000)), (vec![(1, Success)], data));
    p.assert_quiet();
}

#[test]
fn a_queue_pair_that_failed_lives_again_after_reset() {
    let setup = Setup { access: Access::LOCAL, ..Setup::default() };
    let mut p = Pair::new(&setup);
    for round in 0..3 {
        p.post(0, p.wqe(0, SendOp::Read, round, 0), &[p.sge(0, 0, 8)]);
        p.post(0, p.wqe(0, SendOp::Send, 10, 0), &[]);
        p.run();
        assert_eq!(p.results(0), [(round, WcStatus::RemInvReq), (10, WrFlush)]);
        assert_eq!((p.state(0), p.state(1)), (QpState::Err, QpState::Err));
        let qpn = p.sides[1].face.qpn().raw();
        assert_eq!(std::mem::take(&mut p.sides[1].events), [AsyncEvent::QpReqErr { qpn }]);
        for side in 0..2 {
            p.modify(side, &QpAttr::to(QpState::Reset));
        }
        p.connect(&setup);
    }
    p.assert_quiet();
}

#[test]
fn a_queue_pair_without_rights_still_takes_sends() {
    let mut p = Pair::new(&Setup { access: Access::empty(), ..Setup::default() });
    let data = p.fill(0, 0, 3000, 2);
    p.post_recv(1, 1, &[p.sge(1, 0, 3000)]);
    p.post(0, p.wqe(0, SendOp::Send, 1, 0), &[p.sge(0, 0, 3000)]);
    p.run();
    assert_eq!((p.results(1), p.bytes(1, 0, 3000)), (vec![(1, Success)], data));
    p.post(0, p.wqe(0, SendOp::Write, 2, 0), &[]);
    p.run();
    assert_eq!(p.results(0), [(1, Success), (2, WcStatus::RemInvReq)], "even a WRITE of nothing");
}

#[test]
fn packets_for_a_queue_pair_that_is_gone_find_nobody() {
    let mut p = Pair::new(&Setup { timeout: 8, retry_cnt: 2, ..Setup::default() });
    p.post_recv(1, 1, &[p.sge(1, 0, 64)]);
    p.post(0, p.wqe(0, SendOp::Send, 1, 0), &[p.sge(0, 0, 8)]);
    p.post(0, p.wqe(0, SendOp::Read, 2, 0), &[p.sge(0, 0, 8)]);
    // They are in flight; the responder goes.
    let (qp, pd) = (p.sides[1].qp, p.sides[1].pd);
    p.sides[1].engine.destroy_qp(qp).unwrap();
    assert!(p.sides[1].engine.destroy_qp(qp).is_err());
    p.run();
    assert_eq!(p.counter(1, C::DropNoQp), 2 * 3);
    assert_eq!(p.results(0), [(1, RetryExc), (2, WrFlush)]);
    assert_eq!(p.names(0), [""; 0], "no answer");
    assert_eq!(p.results(1), []);
    // Nothing holds its domain but the memory.
    let s = &mut p.sides[1];
    s.engine.deregister(pd, s.mr.lkey).unwrap();
    s.engine.dealloc_pd(pd).unwrap();
    s.engine.destroy_cq(s.cq).unwrap();
    assert_eq!(s.engine.qp_count(), 0);
    p.assert_quiet();

    // The requester goes: answers find nobody.
    let mut p = Pair::new(&Setup::default());
    p.post(0, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 8)]);
    p.post(0, p.wqe(0, SendOp::Read, 2, 0), &[p.sge(0, 0, 8)]);
    let qp = p.sides[0].qp;
    p.sides[0].engine.destroy_qp(qp).unwrap();
    p.run();
    assert_eq!(p.counter(0, C::DropNoQp), 2);
    p.assert_quiet();
}

#[test]
fn a_successor_at_the_same_address_is_deaf_to_the_packets_of_the_dead() {
    let mut p = Pair::new(&Setup::default());
    let dead = p.sides[1].face.qpn();
    p.post_recv(1, 1, &[p.sge(1, 0, 64)]);
    for (i, op) in [SendOp::Write, SendOp::Send, SendOp::Read, SendOp::FetchAdd].iter().enumerate()
    {
        p.post(0, p.wqe(0, *op, i as u64, 64), &[p.sge(0, 0, 8)]);
    }
    let flying = p.take_wire();
    assert_eq!(flying.len(), 4);
    for seed in 1..200u8 {
        let config = EngineConfig::new([seed, 77, 3, 4].repeat(8).try_into().unwrap());
        let gid = LocalGid { ip: p.sides[1].engine.gids()[0].ip, scope_id: 0 };
        let mut successor = Engine::new(config, *p.sides[1].engine.caps(), vec![gid]);
        // As many queue pairs as it may have, all ready for anything.
        let pd = successor.alloc_pd().unwrap();
        let (cq, _cqs) = successor.create_cq(16).unwrap();
        let setup = Setup::default();
        for _ in 0..8 {
            let (qp, _face) = super::pair::make_qp(&mut successor, pd, cq, &setup);
            let peer = p.sides[0].face.qpn().raw();
            let dgid = Gid::from(p.sides[0].engine.gids()[0].ip);
            for attr in ways_up(&setup, peer, dgid) {
                successor.modify_qp(p.now, qp, &attr).unwrap();
            }
        }
        for (meta, bytes) in &flying {
            successor.handle_datagram(p.now, meta, bytes);
        }
        let mut buf = vec![0; 1 << 16];
        let answer = successor.poll_transmit(p.now, Acks::Send, &mut buf);
        assert_eq!(answer, None, "seed {seed} answers packets for {dead}");
        assert_eq!(successor.counters().get(C::DropNoQp), 4);
    }
}

#[test]
fn numbers_come_back_late_and_under_another_generation() {
    let mut p = Pair::new(&Setup::default());
    let setup = Setup::default();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..16 * 1024 {
        let s = &mut p.sides[0];
        let (qp, face) = super::pair::make_qp(&mut s.engine, s.pd, s.cq, &setup_small(&setup));
        assert!(seen.insert(face.qpn().raw()), "a number is used again");
        assert!(!matches!(face.qpn().raw(), 0 | 1 | 0xff_ffff));
        s.engine.destroy_qp(qp).unwrap();
    }
    assert_eq!(p.sides[0].engine.qp_count(), 1);
}

fn setup_small(setup: &Setup) -> Setup {
    let cap = QpCap { send_wr: 1, recv_wr: 1, send_sge: 1, recv_sge: 1, inline: 0 };
    Setup { cap, ..setup.clone() }
}

#[test]
fn domains_are_not_taken_for_their_predecessors() {
    let mut p = Pair::new(&Setup::default());
    let engine = &mut p.sides[0].engine;
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..1000 {
        let pd = engine.alloc_pd().unwrap();
        assert!(engine.has_pd(pd) && seen.insert(pd));
        engine.dealloc_pd(pd).unwrap();
        assert!(!engine.has_pd(pd));
        assert!(engine.dealloc_pd(pd).is_err());
    }
}

#[test]
fn an_overrun_queue_fails_its_queue_pairs_and_says_so() {
    // Two queue pairs on a queue of four completions, and nobody polls.
    let setup = Setup { cq_depth: 4, timeout: 8, retry_cnt: 1, ..Setup::default() };
    let mut p = Pair::new(&setup);
    p.add_qp(&setup);
    let s = &mut p.sides[0];
    let (other_cq, _other) = s.engine.create_cq(16).unwrap();
    let mut posted = 0;
    for k in 0..2 {
        for id in 0..3 {
            p.post_on(0, k, p.wqe(0, SendOp::Write, 10 * k as u64 + id, 0), &[p.sge(0, 0, 8)]);
            posted += 1;
        }
        p.post_recv_on(0, k, 100, &[]);
        posted += 1;
    }
    p.run();
    let qpns = [0, 1].map(|k: usize| p.sides[0].qps[k].1.qpn().raw());
    let cq = p.sides[0].cq;
    assert_eq!(
        p.sides[0].events,
        [
            AsyncEvent::CqErr { cq },
            AsyncEvent::QpFatal { qpn: qpns[0] },
            AsyncEvent::QpFatal { qpn: qpns[1] },
        ]
    );
    for k in 0..2 {
        assert_eq!(p.sides[0].qps[k].1.state(), QpState::Err);
    }
    let got = p.results(0);
    assert_eq!(got.len(), 4, "{got:?}");
    assert!(got.iter().all(|&(_, status)| status == Success));
    assert_eq!(p.counter(0, C::CqOverrun), posted - 4, "each that was lost is counted");
    assert!(p.sides[0].cqs.is_overrun());
    assert_eq!(p.sides[0].engine.destroy_cq(other_cq), Ok(()));
    // It takes no more, also when it was polled.
    p.post_on(0, 0, p.wqe(0, SendOp::Write, 9, 0), &[]);
    assert_eq!(p.results(0), []);
    p.assert_quiet();
}

#[test]
fn an_overrun_queue_does_not_concern_the_queue_pairs_of_others() {
    let setup = Setup { cq_depth: 1, ..Setup::default() };
    let mut p = Pair::new(&setup);
    // The second queue pair of side 0 reports elsewhere.
    let s = &mut p.sides[0];
    let (cq, cqs) = s.engine.create_cq(64).unwrap();
    let first = std::mem::replace(&mut s.cq, cq);
    p.add_qp(&setup);
    p.sides[0].cq = first;
    for id in 0..2 {
        p.post_on(0, 0, p.wqe(0, SendOp::Write, id, 0), &[p.sge(0, 0, 8)]);
        p.post_on(0, 1, p.wqe(0, SendOp::Write, id, 0), &[p.sge(0, 0, 8)]);
    }
    p.run();
    let states = [0, 1].map(|k: usize| p.sides[0].qps[k].1.state());
    assert_eq!(states, [QpState::Err, QpState::Rts]);
    assert_eq!(cqs.poll(9, |_| {}), 2);
    // And it can be made larger in time.
    let mut p = Pair::new(&setup);
    let cq = p.sides[0].cq;
    p.sides[0].engine.resize_cq(cq, 3).unwrap();
    for id in 0..3 {
        p.post(0, p.wqe(0, SendOp::Write, id, 0), &[p.sge(0, 0, 8)]);
    }
    p.run();
    assert_eq!(p.results(0).len(), 3);
}

#[test]
fn events_that_nobody_fetches_are_counted() {
    let mut p = Pair::new(&Setup::default());
    let (now, qp) = (p.now, p.sides[0].qp);
    let engine = &mut p.sides[0].engine;
    for _ in 0..5000 {
        engine.modify_qp(now, qp, &sqd(true)).unwrap();
        engine.modify_qp(now, qp, &rts()).unwrap();
    }
    let lost = engine.counters().get(C::EventsLost);
    assert_eq!(lost, 5000 - 4096);
    p.pump(0);
    assert_eq!(p.sides[0].events.len(), 4096);
}

#[test]
fn late_copies_of_everything_change_nothing() {
    let mut p = Pair::new(&Setup::default());
    p.rule(|f| if f.nth % 2 == 0 { Fate::Pass } else { Fate::Twice });
    let data = p.fill(0, 0, 9000, 1);
    p.post_recv(1, 1, &[p.sge(1, 0, 9000)]);
    p.post(0, p.wqe(0, SendOp::Send, 1, 0), &[p.sge(0, 0, 9000)]);
    let copies = p.peek_wire();
    p.run();
    assert_eq!(p.bytes(1, 0, 9000), data);
    p.sides[1].region.fill(0..9000, 0);
    p.post_recv(1, 2, &[p.sge(1, 0, 9000)]);
    p.now += Duration::from_secs(3);
    for (to, meta, bytes) in copies {
        assert_eq!(to, 1);
        let meta: RxMeta = meta;
        p.sides[1].engine.handle_datagram(p.now, &meta, &bytes);
        p.pump(1);
    }
    p.run();
    assert_eq!(p.bytes(1, 0, 9000), vec![0; 9000]);
    assert_eq!((p.results(0), p.results(1)), (vec![(1, Success)], vec![(1, Success)]));
    p.assert_quiet();
}

#[test]
fn what_cannot_be_made_leaves_nothing_behind() {
    let config = EngineConfig { max_qp: 1, max_cq: 2, max_pd: 1, ..EngineConfig::new([9; 32]) };
    let mut p = Pair::new(&Setup::default());
    let old = &p.sides[0].engine;
    let gid = LocalGid { ip: old.gids()[0].ip, scope_id: 0 };
    let mut engine = Engine::new(config, *old.caps(), vec![gid]);
    let pd = engine.alloc_pd().unwrap();
    let (cq, _cqs) = engine.create_cq(16).unwrap();
    let init = |send_cq, recv_cq, cap| crate::engine::QpInit {
        kind: crate::engine::qp::attr::QpType::Rc,
        pd,
        send_cq,
        recv_cq,
        srq: None,
        cap,
        sig_all: false,
        cc: None,
    };
    let good = QpCap::default();
    assert!(engine.alloc_pd().is_err(), "one domain too many");
    for (send_cq, recv_cq, cap) in [
        (cq, cq, QpCap { send_wr: u32::MAX, ..good }),
        (cq, cq, QpCap { inline: u32::MAX, ..good }),
        // What comes first is there, what comes second is not.
        (cq, cq + 1, good),
        (cq + 1, cq, good),
    ] {
        assert!(engine.create_qp(init(send_cq, recv_cq, cap)).is_err());
    }
    let (qp, face) = engine.create_qp(init(cq, cq, good)).unwrap();
    assert!(engine.create_qp(init(cq, cq, good)).is_err(), "one queue pair too many");
    // Until it has a peer, nobody reaches it by its number.
    p.sides[1].engine.modify_qp(p.now, p.sides[1].qp, &QpAttr::to(QpState::Reset)).unwrap();
    let peer = ways_up(&Setup::default(), face.qpn().raw(), Gid::from(gid.ip));
    for attr in peer {
        p.sides[1].engine.modify_qp(p.now, p.sides[1].qp, &attr).unwrap();
    }
    p.post(1, p.wqe(1, SendOp::Write, 1, 0), &[p.sge(1, 0, 8)]);
    for (meta, bytes) in p.take_wire() {
        engine.handle_datagram(p.now, &meta, &bytes);
    }
    assert_eq!(engine.counters().get(C::DropState), 1);
    assert_eq!(engine.poll_transmit(p.now, Acks::Send, &mut [0; 4096]), None);
    // Each goes when what uses it has gone, and nothing that failed holds it.
    assert!(matches!(engine.destroy_cq(cq), Err(Cause::Busy { .. })));
    assert!(matches!(engine.dealloc_pd(pd), Err(Cause::Busy { .. })));
    engine.destroy_qp(qp).unwrap();
    engine.destroy_cq(cq).unwrap();
    engine.dealloc_pd(pd).unwrap();
}

#[test]
fn a_successor_inherits_no_timer() {
    // Timers of all kinds: for an ACK, for a receiver that is not ready, for an ACK of our own that is held.
    for case in 0..3 {
        let setup = Setup { timeout: 8, retry_cnt: 0, min_rnr_timer: 12, ..Setup::default() };
        let mut p = Pair::new(&setup);
        match case {
            0 => {
                p.rule(|_| Fate::Drop);
                p.post(0, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 8)]);
            }
            1 => {
                p.post(0, p.wqe(0, SendOp::Send, 1, 0), &[p.sge(0, 0, 8)]);
                p.run_for(Duration::from_micros(10));
                assert_eq!(p.counter(0, C::RcvdRnrErr), 1);
            }
            _ => {
                p.acks[0] = Acks::Hold;
                p.post_recv(0, 1, &[p.sge(0, 0, 8)]);
                p.post(1, p.wqe(1, SendOp::Send, 1, 0), &[p.sge(1, 0, 8)]);
                p.run_for(Duration::from_micros(10));
            }
        }
        assert!(p.sides[0].engine.poll_timeout().is_some(), "case {case}");
        let place = p.sides[0].qp.slot;
        for s in &mut p.sides {
            s.engine.destroy_qp(s.qp).unwrap();
        }
        p.take_wire();
        // In the end somebody has its place, and does not fail at the hour of the dead.
        p.add_qp(&setup);
        while p.sides[0].qps[1].0.slot != place {
            for s in &mut p.sides {
                let (qp, _face) = s.qps.pop().unwrap();
                s.engine.destroy_qp(qp).unwrap();
            }
            p.add_qp(&setup);
        }
        let before = p.counter(0, C::SentPkts);
        p.acks[0] = Acks::Send;
        p.run_for(Duration::from_millis(20));
        assert_eq!(p.sides[0].qps[1].1.state(), QpState::Rts, "case {case}");
        assert_eq!(p.counter(0, C::SentPkts), before, "case {case}");
        assert_eq!(p.sides[0].engine.poll_timeout(), None, "case {case}");
    }
}

#[test]
fn ten_thousand_connections_one_after_the_other() {
    // So few places that whatever was left behind would take the next one's.
    let limits: fn(&mut EngineConfig) = |c| (c.max_qp, c.max_cq, c.max_pd) = (2, 2, 2);
    let setup = setup_small(&Setup { config: limits, ..Setup::default() });
    let mut p = Pair::new(&setup);
    let mut numbers = std::collections::BTreeSet::new();
    for round in 0..10_000_u64 {
        let mut extra = Vec::new();
        for s in &mut p.sides {
            let pd = s.engine.alloc_pd().unwrap();
            let (cq, cqs) = s.engine.create_cq(4).unwrap();
            let (qp, face) = super::pair::make_qp(&mut s.engine, pd, cq, &setup);
            let region = crate::mem::Region::alloc(64).unwrap();
            let choice = crate::mem::IovaChoice::Allocate;
            let mr = s.engine.register(pd, region, choice, Access::REMOTE).unwrap();
            numbers.insert(face.qpn().raw());
            s.qps.push((qp, face));
            extra.push((pd, cq, cqs, qp, mr));
        }
        p.connect(&setup);
        let here = &extra[0].4;
        let sge = crate::mem::Sge { addr: here.iova, length: 8, lkey: here.lkey };
        let there = &extra[1].4;
        let wqe = SendWqe {
            wr_id: round,
            op: SendOp::Write,
            flags: SendFlags::SIGNALED,
            remote_addr: there.iova,
            rkey: there.rkey,
            ..SendWqe::default()
        };
        p.post_on(0, 1, wqe, &[sge]);
        p.run();
        let mut done = Vec::new();
        extra[0].2.poll(9, |c| done.push((c.wr_id, c.status)));
        assert_eq!(done, [(round, 0)]);
        for (s, (pd, cq, _, qp, mr)) in p.sides.iter_mut().zip(extra) {
            s.engine.destroy_qp(qp).unwrap();
            s.engine.deregister(pd, mr.lkey).unwrap();
            s.engine.destroy_cq(cq).unwrap();
            s.engine.dealloc_pd(pd).unwrap();
            s.qps.pop();
            assert_eq!((s.engine.qp_count(), s.engine.memory().regions()), (1, 1));
        }
        p.log.clear();
    }
    assert!(numbers.len() > 5000, "numbers are not used again soon: {}", numbers.len());
    p.assert_quiet();
}

#[test]
fn a_domain_in_use_says_what_may_use_it() {
    let mut p = Pair::new(&Setup::default());
    let engine = &mut p.sides[0].engine;
    let dgid = Gid::from(engine.gids()[0].ip);
    let attr = AhAttr { dgid, ..Default::default() };
    let pd = engine.alloc_pd().unwrap();
    let (srq, _) = engine.create_srq(pd, 1, 1).unwrap();
    let e = engine.dealloc_pd(pd).unwrap_err().to_string();
    assert!(e.contains("shared receive queues") && e.contains("destroy them first"), "{e}");
    engine.destroy_srq(srq).unwrap();
    let ah = engine.create_ah(pd, &attr).unwrap();
    let e = engine.dealloc_pd(pd).unwrap_err().to_string();
    assert!(e.contains("address handles"), "{e}");
    engine.destroy_ah(ah).unwrap();
    engine.dealloc_pd(pd).unwrap();
}
