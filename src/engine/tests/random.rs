//! A network that loses, duplicates and reorders at random, from a seed.

use rand_chacha::ChaCha8Rng;

use super::pair::{Fate, Pair, Setup};
use crate::engine::counters::Counter as C;
use crate::engine::qp::attr::QpState;
use crate::engine::status::WcStatus::Success;
use crate::queue::{SendOp, SendWqe};
use crate::seed::{Seeds, below};
use crate::time::Duration;

/// Per cent of packets that are lost, as many that are duplicated, and as many that come late.
pub(super) fn bad_network(seed: u64, per_cent: u64) -> impl FnMut(&super::pair::Flying) -> Fate {
    let mut rng: ChaCha8Rng = Seeds::new(seed).derive("network", 0).rng();
    move |_| match below(&mut rng, 100) / per_cent.max(1) {
        _ if per_cent == 0 => Fate::Pass,
        0 => Fate::Drop,
        1 => Fate::Twice,
        2 => Fate::Late(Duration::from_micros(1 + below(&mut rng, 30))),
        _ => Fate::Pass,
    }
}

const COUNTER: usize = 0;
const RECEIVES: usize = 4096;
const SENDS: usize = 8192;
const RESULTS: usize = 16_384;
const SOURCE: usize = 100_000;
const COPIES: usize = 300_000;

/// Number `i` of the workload: SENDs that carry their number, atomics on one word, WRITEs and READs
/// that move a stretch of memory each.
fn post(p: &mut Pair, i: usize) {
    let id = i as u64;
    match i % 4 {
        0 => {
            p.sides[0].region.write(SENDS + 8 * (i % 128), &id.to_le_bytes());
            let local = p.sge(0, SENDS + 8 * (i % 128), 8);
            p.post(0, p.wqe(0, SendOp::Send, id, 0), &[local]);
        }
        1 => {
            let wqe = SendWqe { compare_add: 1, ..p.wqe(0, SendOp::FetchAdd, id, COUNTER) };
            p.post(0, wqe, &[p.sge(0, RESULTS + 8 * i, 8)]);
        }
        2 => {
            let at = 150 * i;
            let local = p.sge(0, SOURCE + at, 150 + i % 3000);
            p.post(0, p.wqe(0, SendOp::Write, id, SOURCE + at), &[local]);
        }
        _ => {
            let at = 150 * i;
            let local = p.sge(0, COPIES + at, 150);
            p.post(0, p.wqe(0, SendOp::Read, id, SOURCE + at), &[local]);
        }
    }
}

/// Runs `n` operations over a bad network. The receiver is not ready now and then.
fn workload(p: &mut Pair, n: usize) {
    let (mut posted, mut done, mut receives, mut received) = (0, 0, 0, 0);
    let mut ids = Vec::new();
    let mut numbers = Vec::new();
    while done < n {
        while posted < n && posted - done < 48 {
            post(p, posted);
            posted += 1;
        }
        if receives == received {
            // All were used: the next SENDs may find none for a moment.
            p.run_for(Duration::from_micros(60));
            for k in 0..8 {
                p.post_recv(1, receives, &[p.sge(1, RECEIVES + 8 * k, 8)]);
                receives += 1;
            }
        }
        assert!(p.step(), "{done} of {n} are done and nothing is left to happen");
        for (id, status) in p.results(0) {
            assert_eq!(status, Success, "request {id}");
            ids.push(id);
            done += 1;
        }
        for (id, status) in p.results(1) {
            assert_eq!((id, status), (received, Success));
            let slot = usize::try_from(id % 8).unwrap();
            let bytes = p.bytes(1, RECEIVES + 8 * slot, 8);
            numbers.push(u64::from_le_bytes(bytes.try_into().unwrap()));
            received += 1;
        }
    }
    p.run();
    assert_eq!(ids, (0..n as u64).collect::<Vec<_>>(), "in the order of posting");
    assert_eq!(numbers, (0..n as u64).step_by(4).collect::<Vec<_>>(), "each SEND once, in order");
}

fn fetched(p: &Pair, n: usize) -> Vec<u64> {
    let value = |i: usize| u64::from_ne_bytes(p.bytes(0, RESULTS + 8 * i, 8).try_into().unwrap());
    (0..n).filter(|i| i % 4 == 1).map(value).collect()
}

const N: usize = 1000;

fn setup() -> Setup {
    Setup { timeout: 6, rd_atomic: 8, dest_rd_atomic: 8, ..Setup::default() }
}

#[test]
fn a_thousand_operations_over_a_bad_network() {
    let mut recovered = [0; 10];
    for seed in 0..4 {
        let mut p = Pair::new(&setup());
        let source = p.fill(0, SOURCE, 160_000, 11);
        p.rule(bad_network(seed, 5));
        workload(&mut p, N);
        assert_eq!(fetched(&p, N), (0..250).collect::<Vec<_>>(), "each atomic once, in order");
        for i in (2..N).step_by(4) {
            let len = 150 + i % 3000;
            assert_eq!(p.bytes(1, SOURCE + 150 * i, len), source[150 * i..150 * i + len]);
        }
        // A READ follows the WRITEs before it, which reach over what it reads or do not.
        for i in (3..N).step_by(4) {
            let at = 150 * i;
            let written = |k: usize| {
                (2..i).step_by(4).any(|w| (150 * w..150 * w + 150 + w % 3000).contains(&k))
            };
            let expected: Vec<u8> =
                (at..at + 150).map(|k| if written(k) { source[k] } else { 0 }).collect();
            assert_eq!(p.bytes(0, COPIES + at, 150), expected, "READ {i}");
        }
        assert_eq!((p.state(0), p.state(1)), (QpState::Rts, QpState::Rts));
        p.assert_quiet();
        let kinds = [
            p.counter(0, C::RcvdSeqErr),
            p.counter(0, C::ImpliedNakSeqErr),
            p.counter(0, C::LocalAckTimeoutErr),
            p.counter(0, C::RcvdRnrErr),
            p.counter(0, C::DropGhostResponse),
            p.counter(1, C::DuplicateSend),
            p.counter(1, C::DuplicateWrite),
            p.counter(1, C::DuplicateRead),
            p.counter(1, C::DuplicateAtomic),
            p.counter(1, C::DropRequestAhead),
        ];
        for (total, n) in recovered.iter_mut().zip(kinds) {
            *total += n;
        }
    }
    assert!(recovered.iter().all(|&n| n > 10), "each kind of recovery happened: {recovered:?}");
}

#[test]
fn a_good_network_needs_no_recovery() {
    let mut p = Pair::new(&setup());
    workload(&mut p, N);
    assert_eq!(fetched(&p, N), (0..250).collect::<Vec<_>>());
    for c in [C::RcvdSeqErr, C::ImpliedNakSeqErr, C::LocalAckTimeoutErr] {
        assert_eq!(p.counter(0, c), 0, "{c:?}");
    }
    assert_eq!(p.counter(1, C::DuplicateRequest), 0);
    p.assert_quiet();
}

#[test]
fn a_terrible_network_too() {
    let mut p = Pair::new(&Setup { timeout: 4, ..setup() });
    // Seven retries are not enough for such a loss in a row, so it must make progress in between.
    p.rule(bad_network(99, 20));
    workload(&mut p, 200);
    assert_eq!(fetched(&p, 200), (0..50).collect::<Vec<_>>());
    p.assert_quiet();
}

#[test]
fn with_one_resource_and_small_windows() {
    for (rd, bytes) in [(1, 6_000), (1, 1 << 20), (8, 6_000), (3, 20_000)] {
        let config: fn(&mut crate::engine::EngineConfig) = match bytes {
            6_000 => |c| {
                c.window = crate::engine::WindowConfig { initial: 6000, max: 6000, enabled: true };
            },
            20_000 => |c| c.window.initial = 20_000,
            _ => |_| {},
        };
        let mut p = Pair::new(&Setup { rd_atomic: rd, dest_rd_atomic: rd, config, ..setup() });
        p.rule(bad_network(7 + u64::from(rd), 5));
        workload(&mut p, 400);
        assert_eq!(fetched(&p, 400), (0..100).collect::<Vec<_>>(), "{rd} {bytes}");
        p.assert_quiet();
    }
}

/// All bytes, times and counters of a run.
fn run(seed: u64, device: u8) -> (Vec<u8>, Vec<(C, u64)>) {
    let config: fn(&mut crate::engine::EngineConfig) = match device {
        0 => |_| {},
        _ => |c| c.seed = [77; 32],
    };
    let mut p = Pair::new(&Setup { config, ..setup() });
    p.tape = Some(Vec::new());
    p.rule(bad_network(seed, 5));
    workload(&mut p, 200);
    let counters = p.sides.iter().flat_map(|s| s.engine.counters().iter()).collect();
    (p.tape.take().unwrap(), counters)
}

#[test]
fn equal_seeds_give_equal_bytes_and_others_do_not() {
    let first = run(1, 0);
    assert!(first.0.len() > 50_000);
    assert!(first == run(1, 0), "the same seed twice");
    assert!(first.0 != run(2, 0).0, "another network");
    assert!(first.0 != run(1, 1).0, "other devices");
}
