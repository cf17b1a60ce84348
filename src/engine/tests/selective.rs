//! Selective repeat between two engines: what is lost is sent again, and nothing else.

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use super::pair::{Fate, Pair, Setup, make_qp, pattern, ways_up};
use crate::engine::config::EngineConfig;
use crate::engine::counters::Counter as C;
use crate::engine::qp::attr::QpState;
use crate::engine::qp::attr::Recovery::{self, GoBackN, Selective};
use crate::engine::status::WcStatus::{LocProt, RemAccess, Success, WrFlush};
use crate::engine::window::WindowConfig;
use crate::mem::{Access, IovaChoice, Sge};
use crate::queue::{SendOp, SendWqe};
use crate::time::Duration;
use crate::wire::num::{Gid, Rkey};

fn lab(config: &mut EngineConfig) {
    config.window = WindowConfig { enabled: false, ..WindowConfig::default() };
}

/// A pair of which the newest queue pairs, number 1, were told; or only those of some sides.
fn told(setup: &Setup, sides: [bool; 2]) -> Pair {
    told_of(Selective, setup, sides)
}

/// The same, of a way to recover.
pub(super) fn told_of(recovery: Recovery, setup: &Setup, sides: [bool; 2]) -> Pair {
    let mut p = Pair::new(setup);
    let now = p.now;
    for (side, told) in p.sides.iter_mut().zip(sides) {
        let qp = make_qp(&mut side.engine, side.pd, side.cq, setup);
        let theirs = if told { recovery } else { GoBackN };
        side.engine.set_recovery(qp.0, recovery, theirs).unwrap();
        side.qps.push(qp);
    }
    for i in 0..2 {
        let (peer, dgid) = (&p.sides[1 - i], Gid::from(p.sides[1 - i].engine.gids()[0].ip));
        let peer = peer.qps[1].1.qpn().raw();
        for attr in ways_up(setup, peer, dgid) {
            let side = &mut p.sides[i];
            side.engine.modify_qp(now, side.qps[1].0, &attr).unwrap();
        }
    }
    p
}

pub(super) fn setup() -> Setup {
    Setup { config: lab, ..Setup::default() }
}

#[test]
fn each_kind_of_packet_may_be_lost_once() {
    for (op, name) in [
        (SendOp::Write, "RC_WRITE_FIRST"),
        (SendOp::Write, "RC_WRITE_MIDDLE"),
        (SendOp::Write, "RC_WRITE_LAST"),
        (SendOp::WriteImm, "RC_WRITE_LAST_IMM"),
        (SendOp::Send, "RC_SEND_FIRST"),
        (SendOp::Send, "RC_SEND_MIDDLE"),
        (SendOp::Send, "RC_SEND_LAST"),
        (SendOp::Read, "RC_READ_REQUEST"),
        (SendOp::FetchAdd, "RC_FETCH_ADD"),
        (SendOp::AtomicWrite, "RC_ATOMIC_WRITE"),
    ] {
        for psn in [0x1000, 0xff_fffe] {
            let mut p = told(&Setup { psn, ..setup() }, [true; 2]);
            p.lose(1, name, 0);
            let data = p.fill(0, 0, 30_000, 9);
            p.fill(1, 700_000, 5000, 11);
            p.post_recv_on(1, 1, 7, &[p.sge(1, 500_000, 40_000)]);
            let is_word = matches!(op, SendOp::FetchAdd | SendOp::AtomicWrite);
            let wqe = p.wqe(0, op, 1, if op == SendOp::Read { 700_000 } else { 100_000 });
            let local = match op {
                SendOp::Read => p.sge(0, 600_000, 5000),
                _ if is_word => p.sge(0, 800_000, 8),
                _ => p.sge(0, 0, 30_000),
            };
            p.stage_on(0, 1, wqe, &[local]);
            // There is always something behind it that shows the gap.
            p.stage_on(0, 1, p.wqe(0, SendOp::Write, 2, 200_000), &[p.sge(0, 0, 30_000)]);
            p.ring(0, 1);
            p.run();
            assert_eq!(p.results(0), [(1, Success), (2, Success)], "{name}");
            assert_eq!(p.counter(0, C::RetransmittedPkts), 1, "{name}: this one alone");
            assert_eq!(p.counter(0, C::LocalAckTimeoutErr), 0, "{name}");
            assert!(p.counter(1, C::HeldRequests) > 20, "{name}");
            assert_eq!(p.bytes(1, 200_000, 30_000), data, "{name}");
            match op {
                SendOp::Write | SendOp::WriteImm => assert_eq!(p.bytes(1, 100_000, 30_000), data),
                SendOp::Send => assert_eq!(p.bytes(1, 500_000, 30_000), data),
                SendOp::Read => assert_eq!(p.bytes(0, 600_000, 5000), pattern(5000, 11)),
                _ => {}
            }
            p.assert_quiet();
        }
    }
}

#[test]
fn who_was_not_told_sees_nothing_of_it() {
    for sides in [[false; 2], [true, false], [false, true]] {
        let mut p = told(&setup(), sides);
        p.lose(1, "RC_WRITE_MIDDLE", 3);
        let data = p.fill(0, 0, 60_000, 4);
        p.post_on(0, 1, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 60_000)]);
        p.run();
        assert_eq!(p.results(0), [(1, Success)], "{sides:?}");
        assert!(p.bytes(1, 0, 60_000) == data, "{sides:?}");
        let reports = p.log.iter().filter(|f| f.syndrome == Some(0x7f)).count();
        assert_eq!(reports > 0, sides[1], "{sides:?}");
        assert_eq!((p.counter(0, C::RcvdSeqErr), p.counter(0, C::LocalAckTimeoutErr)), (1, 0));
        p.assert_quiet();
    }
}

/// Everything, over a wire that loses, doubles and delays at random.
pub(super) fn random(recovery: Recovery, seed: u8, loss: u64, psn: u32) -> Pair {
    let mut p = told_of(recovery, &Setup { psn, timeout: 8, ..setup() }, [true; 2]);
    let mut rng = ChaCha8Rng::from_seed([seed; 32]);
    p.rule(move |_| match rng.next_u64() % 10_000 {
        n if n < loss => Fate::Drop,
        n if n < loss + 50 => Fate::Twice,
        n if n < loss + 100 => Fate::Late(Duration::from_micros(n % 20)),
        _ => Fate::Pass,
    });
    let data = p.fill(0, 0, 200_000, seed);
    p.fill(1, 900_000, 50_000, seed ^ 0xff);
    for id in 0..8 {
        p.post_recv_on(1, 1, id, &[p.sge(1, 700_000, 20_000)]);
    }
    let mut expected = Vec::new();
    for (id, at) in (0..40u64).zip((0..).step_by(4000)) {
        let (op, local) = match id % 5 {
            0..=2 => (SendOp::Write, p.sge(0, at, 40_000)),
            3 => (SendOp::Read, p.sge(0, 960_000, 50_000)),
            _ if id % 10 == 4 => (SendOp::Send, p.sge(0, at, 20_000)),
            _ => (SendOp::FetchAdd, p.sge(0, 1_030_000, 8)),
        };
        let remote = match op {
            SendOp::Write => 200_000 + at,
            SendOp::FetchAdd => 1_030_000,
            _ => 900_000,
        };
        let wqe = SendWqe { compare_add: 1, ..p.wqe(0, op, id, remote) };
        p.stage_on(0, 1, wqe, &[local]);
        expected.push((id, Success));
    }
    p.ring(0, 1);
    p.run();
    assert_eq!(p.results(0), expected, "seed {seed}, loss {loss}");
    // Those of the WRITEs that no later one overwrites in part.
    assert_eq!(p.bytes(1, 200_000, 180_000), data[..180_000], "seed {seed}, loss {loss}");
    assert_eq!(p.bytes(0, 960_000, 50_000), pattern(50_000, seed ^ 0xff));
    let sum = p.sides[1].region.load(1_030_000, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(sum, 4, "each atomic once: seed {seed}, loss {loss}");
    p.assert_quiet();
    p
}

#[test]
fn random_losses_lose_no_byte() {
    for (seed, psn) in [(1, 0x1000), (2, 0xff_ff00), (3, 0)] {
        for loss in [0, 10, 100, 500] {
            let p = random(Selective, seed, loss, psn);
            let (lost, again) = (p.counter(1, C::HeldRequests), p.counter(0, C::RetransmittedPkts));
            assert!(loss < 100 || lost > 0 && again > 0, "seed {seed}, loss {loss}");
        }
    }
}

#[test]
fn of_many_losses_each_is_repeated_once() {
    let lose = |p: &mut Pair| {
        p.rule(|f| {
            let first = f.to == 1 && f.name == "RC_WRITE_MIDDLE" && f.nth < 200;
            if first && f.nth % 20 == 7 { Fate::Drop } else { Fate::Pass }
        });
        let data = p.fill(0, 0, 220_000, 4);
        p.post_on(0, 1, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 220_000)]);
        p.run();
        assert_eq!(p.results(0), [(1, Success)]);
        assert!(p.bytes(1, 0, 220_000) == data);
        p.counter(0, C::RetransmittedPkts)
    };
    assert_eq!(lose(&mut told(&setup(), [true; 2])), 10);
    assert!(lose(&mut told(&setup(), [false; 2])) > 100, "go-back-N");
}

/// As a real port does, which empties its socket before it sends.
#[test]
fn of_a_window_that_comes_in_at_once_only_what_is_missing_is_repeated() {
    // All reports in one batch, or each in one of its own.
    for room in [1 << 16, 40] {
        let mut p = told(&setup(), [true; 2]);
        p.lose(1, "RC_WRITE_MIDDLE", 20);
        let data = p.fill(0, 0, 250 << 10, 4);
        p.post_on(0, 1, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 250 << 10)]);
        p.deliver_without_sending();
        p.room = room;
        p.pump(1);
        p.room = 1 << 16;
        let reports = p.log.iter().filter(|f| f.syndrome == Some(0x7f)).count();
        assert_eq!(reports, 4, "228 packets are held, 64 to a report");
        p.run();
        assert_eq!(p.results(0), [(1, Success)]);
        assert!(p.bytes(1, 0, 250 << 10) == data);
        assert_eq!(p.counter(0, C::RetransmittedPkts), 1);
        assert_eq!(p.counter(0, C::LocalAckTimeoutErr), 0);
        p.assert_quiet();
    }
}

#[test]
fn nothing_is_begun_behind_a_request_that_cannot_be_repeated() {
    let mut p = told(&setup(), [true; 2]);
    let side = &mut p.sides[0];
    let region = Arc::clone(&side.region);
    let access = Access::REMOTE;
    let mr = side.engine.register(side.pd, region, IovaChoice::Allocate, access).unwrap();
    // One packet of each is lost, of the first its repeat, too.
    let mut lost = 0;
    p.rule(move |f| {
        let is_first = f.to == 1 && f.psn == 0x1001;
        lost += u32::from(is_first);
        if is_first && lost < 3 || f.psn == 0x1006 { Fate::Drop } else { Fate::Pass }
    });
    p.stage_on(0, 1, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 5000)]);
    let sge = Sge { addr: mr.iova, length: 5000, lkey: mr.lkey };
    p.stage_on(0, 1, p.wqe(0, SendOp::Write, 2, 10_000), &[sge]);
    p.ring(0, 1);
    p.deliver_without_sending();
    p.pump(1);
    let side = &mut p.sides[0];
    side.engine.deregister(side.pd, mr.lkey).unwrap();
    p.run_for(p.delay);
    assert_eq!((p.counter(0, C::RetransmittedPkts), p.results(0)), (1, vec![]));
    for id in 3..5 {
        p.post_on(0, 1, p.wqe(0, SendOp::Write, id, 0), &[p.sge(0, 0, 5000)]);
    }
    p.run();
    assert_eq!(p.results(0), [(1, Success), (2, LocProt), (3, WrFlush), (4, WrFlush)]);
    let behind = p.log.iter().filter(|f| f.to == 1 && f.psn >= 0x100a).count();
    assert_eq!(behind, 0, "packets of what was posted later");
    p.assert_quiet();
}

#[test]
fn a_repeat_that_is_lost_too_waits_for_the_timeout() {
    let mut p = told(&Setup { timeout: 8, ..setup() }, [true; 2]);
    let mut lost = 0;
    p.rule(move |f| {
        let it = f.to == 1 && f.psn == 0x1005;
        lost += u32::from(it);
        if it && lost < 3 { Fate::Drop } else { Fate::Pass }
    });
    let data = p.fill(0, 0, 60_000, 4);
    p.post_on(0, 1, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 60_000)]);
    p.run();
    assert_eq!((p.results(0), p.bytes(1, 0, 60_000)), (vec![(1, Success)], data));
    assert_eq!(p.counter(0, C::LocalAckTimeoutErr), 1);
    p.assert_quiet();
}

#[test]
fn a_repeat_that_is_lost_shows_by_what_was_sent_after_it() {
    let mut p = told(&Setup { timeout: 8, ..setup() }, [true; 2]);
    let mut lost = 0;
    p.rule(move |f| {
        let it = f.to == 1 && f.psn == 0x1005;
        lost += u32::from(it);
        if it && lost < 3 { Fate::Drop } else { Fate::Pass }
    });
    // More than may be under way at once: something is left to be sent after the repeat.
    p.post_on(0, 1, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 1 << 20)]);
    p.run();
    assert_eq!(p.results(0), [(1, Success)]);
    assert_eq!((p.counter(0, C::RetransmittedPkts), p.counter(0, C::LocalAckTimeoutErr)), (2, 0));
    p.assert_quiet();
}

#[test]
fn no_more_is_under_way_than_can_be_held() {
    let mut p = told(&setup(), [true; 2]);
    p.delay = Duration::from_micros(500);
    p.stage_on(0, 1, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 1 << 20)]);
    p.ring(0, 1);
    assert_eq!(p.names(1).len(), 512);
    p.run();
    assert_eq!(p.results(0), [(1, Success)]);
    p.assert_quiet();
}

#[test]
fn receivers_that_are_not_ready_and_errors_end_it() {
    // The SEND whose receive is missing is held, and finds none when its turn comes.
    let mut p = told(&setup(), [true; 2]);
    p.lose(1, "RC_WRITE_MIDDLE", 0);
    let data = p.fill(0, 0, 30_000, 9);
    p.stage_on(0, 1, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 30_000)]);
    p.stage_on(0, 1, p.wqe(0, SendOp::Send, 2, 0), &[p.sge(0, 0, 30_000)]);
    p.stage_on(0, 1, p.wqe(0, SendOp::Write, 3, 100_000), &[p.sge(0, 0, 30_000)]);
    p.ring(0, 1);
    p.run_for(Duration::from_micros(200));
    assert_eq!(p.results(0), [(1, Success)]);
    assert!(p.counter(0, C::RcvdRnrErr) > 0);
    p.post_recv_on(1, 1, 7, &[p.sge(1, 500_000, 40_000)]);
    p.run();
    assert_eq!(p.results(0), [(2, Success), (3, Success)]);
    assert_eq!((p.bytes(1, 500_000, 30_000), p.bytes(1, 100_000, 30_000)), (data.clone(), data));
    p.assert_quiet();
    // A held WRITE to nowhere.
    p.lose(1, "RC_WRITE_MIDDLE", 0);
    p.stage_on(0, 1, p.wqe(0, SendOp::Write, 4, 0), &[p.sge(0, 0, 30_000)]);
    let wqe = SendWqe { rkey: Rkey(0x1234_5600), ..p.wqe(0, SendOp::Write, 5, 0) };
    p.stage_on(0, 1, wqe, &[p.sge(0, 0, 30_000)]);
    p.ring(0, 1);
    p.run();
    assert_eq!(p.results(0), [(4, Success), (5, RemAccess)]);
    assert_eq!(p.sides[1].qps[1].1.state(), QpState::Err);
    p.assert_quiet();
}
