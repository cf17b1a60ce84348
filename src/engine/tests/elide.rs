//! Packets without payload: all but the bytes is as with them.

use std::sync::atomic::Ordering::Relaxed;

use super::pair::{Fate, Pair, Sent, Setup, pattern};
use super::unreliable::datagram;
use crate::engine::config::EngineConfig;
use crate::engine::counters::Counter;
use crate::engine::event::AsyncEvent;
use crate::engine::qp::attr::{QpState, QpType};
use crate::queue::{Cqe, SendFlags, SendOp, SendWqe};
use crate::time::Duration;
use crate::wire::num::{Lkey, Rkey};

/// Everything that a run shows to anybody.
type Seen = (Vec<Sent>, Vec<(Counter, u64)>, Vec<Vec<Cqe>>, Vec<Vec<AsyncEvent>>);

fn bytes(_: &mut EngineConfig) {}

fn elided(config: &mut EngineConfig) {
    config.elide = true;
}

/// What was seen, and whether memory holds what was moved.
fn run(setup: &Setup, scenario: fn(&mut Pair)) -> (Seen, Pair) {
    let mut p = Pair::new(setup);
    p.headers = Some(Vec::new());
    scenario(&mut p);
    let counters =
        [0, 1].map(|side: usize| p.sides[side].engine.counters().iter().collect::<Vec<_>>());
    let completions = [0, 1].map(|side| p.completions(side));
    let events = [0, 1].map(|side: usize| p.sides[side].events.clone());
    let headers = p.headers.take().unwrap();
    ((headers, counters.concat(), completions.into(), events.into()), p)
}

/// Runs a scenario with bytes and without.
fn same(setup: &Setup, scenario: fn(&mut Pair)) -> [Pair; 2] {
    let (with, a) = run(&Setup { config: bytes, ..setup.clone() }, scenario);
    let (without, b) = run(&Setup { config: elided, ..setup.clone() }, scenario);
    assert_eq!(with.0.len(), without.0.len());
    for (x, y) in with.0.iter().zip(&without.0) {
        assert_eq!(x, y, "a packet");
    }
    assert_eq!(with.1, without.1, "counters");
    assert_eq!(with.2, without.2, "completions");
    assert_eq!(with.3, without.3, "events");
    assert!(!with.0.is_empty());
    [a, b]
}

/// Where words are, at both sides: nothing else is written there.
const WORDS: usize = 900_000;

/// Every operation, over a wire that loses, doubles and delays.
fn everything(p: &mut Pair) {
    let mut n = 0u32;
    p.rule(move |_| {
        n += 1;
        match n % 97 {
            13 => Fate::Drop,
            29 => Fate::Twice,
            53 => Fate::Late(Duration::from_micros(7)),
            _ => Fate::Pass,
        }
    });
    p.fill(0, 0, 1 << 18, 3);
    p.fill(1, 1 << 19, 1 << 18, 5);
    p.sides[0].region.store(WORDS, 41, Relaxed);
    for round in 0..4u64 {
        for (k, op) in [
            SendOp::Write,
            SendOp::Send,
            SendOp::WriteImm,
            SendOp::Read,
            SendOp::SendImm,
            SendOp::CompareSwap,
            SendOp::AtomicWrite,
            SendOp::FetchAdd,
        ]
        .into_iter()
        .enumerate()
        {
            let id = round * 8 + k as u64;
            let is_word =
                matches!(op, SendOp::CompareSwap | SendOp::AtomicWrite | SendOp::FetchAdd);
            let at = if is_word { WORDS } else { 1 << 19 };
            let wqe = SendWqe { imm_or_inv: 7, compare_add: 41, swap: 9, ..p.wqe(0, op, id, at) };
            if is_word {
                p.stage_on(0, 0, wqe, &[p.sge(0, WORDS, 8)]);
            } else {
                p.stage_on(0, 0, wqe, &[p.sge(0, 64, 15_000), p.sge(0, 1 << 17, 15_001)]);
            }
        }
        p.ring(0, 0);
        // Receives come late, and some are small.
        p.run_for(Duration::from_micros(100));
        for id in 0..3 {
            p.post_recv(1, id, &[p.sge(1, 0, 20_000), p.sge(1, 40_000, 20_000)]);
        }
        p.run();
    }
}

#[test]
fn all_but_the_bytes_is_as_with_them() {
    for psn in [0x1000, 0xff_fff0] {
        let [a, b] = same(&Setup { psn, timeout: 8, ..Setup::default() }, everything);
        assert_eq!(a.bytes(1, 1 << 19, 15_000), a.bytes(0, 64, 15_000));
        assert_eq!(b.bytes(1, 1 << 19, 1 << 18), pattern(1 << 18, 5), "not moved");
        // Operands and results are.
        for side in 0..2 {
            let words = [&a, &b].map(|p| p.sides[side].region.load(WORDS, Relaxed));
            assert!(words[0] == words[1] && words[0] > 0, "side {side}: {words:?}");
        }
    }
}

#[test]
fn what_is_refused_is_refused_without_bytes() {
    // A key that is not there, a range too long, a buffer of another domain, a receive that is too small.
    let scenarios: [fn(&mut Pair); 6] = [
        |p| {
            let wqe = SendWqe { rkey: Rkey(0x1234_5600), ..p.wqe(0, SendOp::Write, 1, 0) };
            p.post(0, wqe, &[p.sge(0, 0, 5000)]);
            p.run();
        },
        |p| {
            p.post(0, p.wqe(0, SendOp::Write, 1, (1 << 20) - 4000), &[p.sge(0, 0, 5000)]);
            p.run();
        },
        |p| {
            p.post(0, p.wqe(0, SendOp::Read, 1, (1 << 20) - 4000), &[p.sge(0, 0, 5000)]);
            p.run();
        },
        |p| {
            let mut sge = p.sge(0, 0, 5000);
            sge.lkey = Lkey(sge.lkey.0 ^ 0x100);
            p.post(0, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 3000), sge]);
            p.run();
        },
        |p| {
            let mut sge = p.sge(0, 0, 5000);
            sge.addr += 1 << 20;
            p.post(0, p.wqe(0, SendOp::Read, 1, 0), &[p.sge(0, 0, 3000), sge]);
            p.run();
        },
        |p| {
            p.post_recv(1, 9, &[p.sge(1, 0, 4000)]);
            p.post(0, p.wqe(0, SendOp::Send, 1, 0), &[p.sge(0, 0, 5000)]);
            p.run();
        },
    ];
    for scenario in scenarios {
        let [a, _] = same(&Setup::default(), scenario);
        assert_eq!(a.state(0), QpState::Err);
    }
}

#[test]
fn a_key_that_dies_in_the_middle_ends_a_message_without_bytes() {
    same(&Setup { timeout: 8, ..Setup::default() }, |p| {
        p.room = 4096;
        p.post(0, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 20_000)]);
        p.step();
        p.step();
        let side = &mut p.sides[1];
        side.engine.deregister(side.pd, side.mr.lkey).unwrap();
        p.run();
    });
}

#[test]
fn inline_data_and_datagrams() {
    let scenario = |p: &mut Pair| {
        p.fill(0, 0, 1000, 9);
        for id in 0..3 {
            p.post_recv(1, id, &[p.sge(1, 0, 2000)]);
        }
        let wqe = SendWqe {
            flags: SendFlags::SIGNALED | SendFlags::INLINE,
            ..p.wqe(0, SendOp::Send, 1, 0)
        };
        {
            let mut sq = p.sides[0].qps[0].1.sq.lock();
            sq.stage_inline(wqe, [&pattern(48, 77)[..]]).unwrap();
            sq.publish();
        }
        p.ring(0, 0);
        p.run();
    };
    for p in same(&Setup::default(), scenario) {
        assert_eq!(p.bytes(1, 0, 48), pattern(48, 77), "inline data arrives");
    }
    let scenario = |p: &mut Pair| {
        p.fill(0, 0, 1000, 9);
        p.post_recv(1, 0, &[p.sge(1, 0, 2000)]);
        let wqe = datagram(p, 1);
        p.post(0, wqe, &[p.sge(0, 0, 1000)]);
        p.run();
    };
    let [a, b] = same(&Setup { kind: QpType::Ud, ..Setup::default() }, scenario);
    assert_eq!(a.bytes(1, 40, 1000), pattern(1000, 9));
    assert_eq!(b.bytes(1, 40, 1000), [0; 1000]);
    assert_eq!(a.bytes(1, 0, 40), b.bytes(1, 0, 40), "the header in front");
    assert_ne!(a.bytes(1, 0, 40), [0; 40]);
}
