//! What queue pairs share: turns, windows, and ACKs that ride along.

use super::pair::{Fate, Pair, Setup};
use crate::engine::cc::{AckInfo, CongestionControl, Loss};
use crate::engine::counters::Counter as C;
use crate::engine::qp::attr::{QpAttr, QpState};
use crate::engine::status::WcStatus::Success;
use crate::engine::{Acks, EngineConfig, WindowConfig};
#[cfg(target_arch = "x86_64")]
use crate::mem::{Access, IovaChoice, Region};
use crate::queue::{SendFlags, SendOp, SendWqe};
use crate::time::{Duration, Instant};
use crate::wire::num::Mtu;

/// A window of this many packets of 1024 bytes.
const fn window(packets: u32) -> WindowConfig {
    WindowConfig { initial: packets * 1856, max: packets * 1856, enabled: true }
}

/// Packets that went to each queue pair of side 1, among `n` that went to side 1 after the first `skip`.
fn shares(p: &Pair, skip: usize, n: usize) -> Vec<usize> {
    let qpns: Vec<u32> = p.sides[1].qps.iter().map(|(_, face)| face.qpn().raw()).collect();
    let packets = p.log.iter().filter(|f| f.to == 1).skip(skip).take(n);
    let these: Vec<u32> = packets.map(|f| f.qpn).collect();
    qpns.iter().map(|qpn| these.iter().filter(|&q| q == qpn).count()).collect()
}

fn quiet(p: &Pair, op: SendOp, id: u64) -> SendWqe {
    SendWqe { flags: SendFlags::empty(), ..p.wqe(0, op, id, 0) }
}

#[test]
fn queue_pairs_take_turns() {
    let config: fn(&mut EngineConfig) = |c| c.window.enabled = false;
    let setup = Setup { config, ..Setup::default() };
    let mut p = Pair::new(&setup);
    for _ in 0..3 {
        p.add_qp(&setup);
    }
    for k in 0..4 {
        p.stage_on(0, k, p.wqe(0, SendOp::Write, k as u64, 0), &[p.sge(0, 0, 100 * 1024)]);
    }
    for k in 0..4 {
        let (now, qp) = (p.now, p.sides[0].qps[k].0);
        p.sides[0].engine.handle_doorbell(now, qp);
    }
    p.pump(0);
    // In turns of sixteen packets.
    let order: Vec<u32> = p.log.iter().map(|f| f.qpn).collect();
    assert_eq!(order.len(), 400);
    let turns: Vec<&[u32]> = order.chunk_by(|a, b| a == b).collect();
    assert!(turns[..24].iter().all(|turn| turn.len() == 16), "{:?}", turns[0].len());
    assert_eq!(shares(&p, 0, 384), [96; 4]);
    p.run();
    assert_eq!(p.results(0).len(), 4);
    p.assert_quiet();
}

#[test]
fn a_window_is_shared_fairly_by_all_who_send_without_end() {
    for (packets, n) in [(2, 3), (4, 8), (20, 8), (64, 5)] {
        let config: fn(&mut EngineConfig) = match packets {
            2 => |c| c.window = window(2),
            4 => |c| c.window = window(4),
            20 => |c| c.window = window(20),
            _ => |c| c.window = window(64),
        };
        let setup = Setup { config, timeout: 14, ..Setup::default() };
        let mut p = Pair::new(&setup);
        for _ in 1..n {
            p.add_qp(&setup);
        }
        for k in 0..n {
            p.post_on(0, k, p.wqe(0, SendOp::Write, k as u64, 0), &[p.sge(0, 0, 300 * 1024)]);
        }
        p.run();
        // Whoever came first had all of the window.
        let shares = shares(&p, 2 * packets, n * 200);
        let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
        assert!(*least >= 170 && *most <= 230, "window of {packets}: {shares:?}");
        assert_eq!(p.results(0).len(), n);
        assert_eq!(p.counter(0, C::CompleterRetryErr), 0);
        p.assert_quiet();
    }
}

#[test]
fn short_messages_do_not_starve_behind_long_ones() {
    let config: fn(&mut EngineConfig) = |c| c.window = window(4);
    let setup = Setup { config, timeout: 14, ..Setup::default() };
    let mut p = Pair::new(&setup);
    for _ in 0..3 {
        p.add_qp(&setup);
    }
    for k in 0..3 {
        p.post_on(0, k, p.wqe(0, SendOp::Write, 100, 0), &[p.sge(0, 0, 500 * 1024)]);
    }
    // One after the other, each as soon as the one before is done.
    let mut took = Vec::new();
    for id in 0..20 {
        let start = p.now;
        p.post_on(0, 3, p.wqe(0, SendOp::Write, id, 0), &[p.sge(0, 0, 64)]);
        while !p.results(0).contains(&(id, Success)) {
            assert!(p.step());
        }
        took.push(p.now - start);
    }
    assert!(p.log.len() < 2000, "the long ones are not done");
    let longest = took.iter().max().unwrap();
    assert!(*longest < Duration::from_micros(100), "{took:?}");
    p.run();
    p.assert_quiet();
}

#[test]
fn a_long_read_is_not_starved_by_short_ones() {
    let config: fn(&mut EngineConfig) = |c| c.window = window(8);
    let setup = Setup { config, timeout: 14, ..Setup::default() };
    let mut p = Pair::new(&setup);
    for _ in 0..4 {
        p.add_qp(&setup);
    }
    // Four queue pairs with always one READ of a few packets each; the fifth reads much.
    let mut posted = 0;
    for k in 0..4 {
        for _ in 0..20 {
            p.post_on(0, k, quiet(&p, SendOp::Read, posted), &[p.sge(0, 0, 3000)]);
            posted += 1;
        }
    }
    p.post_on(0, 4, p.wqe(0, SendOp::Read, 7, 0), &[p.sge(0, 0, 30_000)]);
    let mut most = 0;
    while p.results(0).is_empty() {
        assert!(p.step());
        most += 1;
    }
    let reads = p.names(1).len();
    assert!(reads < 70, "{reads} requests before it was done, {most} steps");
    p.run();
    p.assert_quiet();
}

#[test]
fn room_goes_to_the_next_when_its_owner_cannot_use_it() {
    // The first has the window. The second and third wait. The second is told to wait by its peer, fails,
    // or goes, just when there is room.
    for what in 0..3 {
        let config: fn(&mut EngineConfig) = |c| c.window = window(2);
        let setup = Setup { config, timeout: 0, min_rnr_timer: 20, ..Setup::default() };
        let mut p = Pair::new(&setup);
        p.add_qp(&setup);
        p.add_qp(&setup);
        p.post_on(0, 1, p.wqe(0, SendOp::Send, 1, 0), &[]);
        p.run_for(Duration::from_micros(1));
        p.post_on(0, 0, p.wqe(0, SendOp::Write, 0, 0), &[p.sge(0, 0, 1024)]);
        p.post_on(0, 1, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 1024)]);
        p.post_on(0, 2, p.wqe(0, SendOp::Write, 2, 0), &[p.sge(0, 0, 1024)]);
        match what {
            // The SEND finds no receive: 10 ms.
            0 => {}
            1 => {
                let (now, qp) = (p.now, p.sides[0].qps[1].0);
                let err = QpAttr::to(QpState::Err);
                p.sides[0].engine.modify_qp(now, qp, &err).unwrap();
            }
            _ => {
                let qp = p.sides[0].qps[1].0;
                p.sides[0].engine.destroy_qp(qp).unwrap();
            }
        }
        p.run_for(Duration::from_millis(1));
        let got = p.results(0);
        assert!(got.contains(&(0, Success)) && got.contains(&(2, Success)), "{what}: {got:?}");
        p.post_recv_on(1, 1, 1, &[]);
        p.run();
        p.assert_quiet();
    }
}

#[test]
fn two_that_are_short_in_different_windows_do_not_wake_each_other_without_end() {
    // One fills the window of the peer but for half a packet, the other their own but for half a request.
    let config: fn(&mut EngineConfig) = |c| {
        let WindowConfig { initial, .. } = window(5);
        c.window = WindowConfig { initial: initial + 900, max: initial + 900, enabled: true };
    };
    let setup = Setup { config, timeout: 14, ..Setup::default() };
    let mut p = Pair::new(&setup);
    p.add_qp(&setup);
    p.post_on(0, 0, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 50_000)]);
    p.post_on(0, 1, p.wqe(0, SendOp::Read, 2, 100_000), &[p.sge(0, 100_000, 50_000)]);
    p.run();
    let got = p.results(0);
    assert_eq!(got.len(), 2);
    assert!(got.iter().all(|&(_, status)| status == Success));
    assert_eq!(p.counter(0, C::CompleterRetryErr), 0, "nobody had to wait for a timer");
    p.assert_quiet();
}

#[test]
fn both_windows_may_be_one() {
    // A device that talks to itself: what it sends and what it reads share a window.
    let config: fn(&mut EngineConfig) = |c| c.window = window(4);
    let setup = Setup { config, timeout: 14, ..Setup::default() };
    let mut p = Pair::loopback(&setup);
    for k in 0..2 {
        p.post_on(0, k, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 50_000)]);
        p.post_on(0, k, p.wqe(0, SendOp::Read, 2, 0), &[p.sge(0, 100_000, 50_000)]);
        p.post_on(0, k, p.wqe(0, SendOp::Write, 3, 0), &[p.sge(0, 0, 50_000)]);
    }
    p.run();
    let got = p.results(0);
    assert_eq!(got.len(), 6);
    assert!(got.iter().all(|&(_, status)| status == Success));
    assert_eq!(p.counter(0, C::CompleterRetryErr), 0);
    p.assert_quiet();
}

#[test]
fn a_window_that_shrinks_below_what_was_planned_does_not_stall() {
    // READs are cut for the window of when they are begun. Then it is halved, and halved again.
    let config: fn(&mut EngineConfig) = |c| c.window = window(64);
    let mut p = Pair::new(&Setup { config, timeout: 8, ..Setup::default() });
    let data = p.fill(1, 0, 200_000, 4);
    let mut lost = 0;
    p.rule(move |f| {
        let drop = f.name == "RC_READ_RESP_MIDDLE" && f.nth % 40 == 7 && lost < 6;
        lost += u32::from(drop);
        if drop { Fate::Drop } else { Fate::Pass }
    });
    p.post(0, p.wqe(0, SendOp::Read, 1, 0), &[p.sge(0, 0, 200_000)]);
    p.run();
    assert_eq!((p.results(0), p.bytes(0, 0, 200_000)), (vec![(1, Success)], data));
    assert!(p.counter(0, C::CompleterRetryErr) >= 4);
    p.assert_quiet();
}

#[test]
fn an_ack_leaves_behind_the_reply() {
    let mut p = Pair::new(&Setup::default());
    p.acks = [Acks::Hold; 2];
    for i in 0..10 {
        for side in 0..2 {
            p.post_recv(1 - side, i, &[p.sge(1 - side, 0, 4096)]);
            let len = [8, 1024, 3000][usize::try_from(i % 3).unwrap()];
            let before = p.log.len();
            p.post(side, p.wqe(side, SendOp::Send, i, 0), &[p.sge(side, 0, len)]);
            let names: Vec<_> = p.log[before..].iter().map(|f| f.name).collect();
            let acks = usize::from(i > 0 || side > 0);
            assert_eq!(names.len(), len.div_ceil(1024) + acks, "{names:?}");
            assert_eq!(names.last() == Some(&"RC_ACK"), acks == 1, "last: {names:?}");
            p.run_for(Duration::from_micros(5));
        }
    }
    p.run();
    assert_eq!((p.results(0).len(), p.results(1).len()), (20, 20));
    p.assert_quiet();
}

#[test]
fn acks_and_replies_leave_in_one_send() {
    let mut p = Pair::new(&Setup::default());
    p.acks = [Acks::Hold; 2];
    p.post_recv(1, 1, &[p.sge(1, 0, 64)]);
    p.post_recv(0, 1, &[p.sge(0, 0, 64)]);
    p.post(0, p.wqe(0, SendOp::Send, 1, 0), &[p.sge(0, 0, 64)]);
    p.run_for(Duration::from_micros(3));
    p.stage_on(1, 0, p.wqe(1, SendOp::Send, 2, 0), &[p.sge(1, 0, 64)]);
    let s = &mut p.sides[1];
    s.engine.handle_doorbell(p.now, s.qp);
    let mut buf = vec![0; 1 << 16];
    let (transmit, _) = s.engine.poll_transmit(p.now, Acks::Hold, &mut buf).unwrap();
    assert_eq!((transmit.len, transmit.segment_size), (80 + 20, Some(80)));
    assert_eq!((buf[0], buf[80]), (0x04, 0x11), "the SEND, then the ACK");
    assert_eq!(s.engine.poll_transmit(p.now, Acks::Hold, &mut buf), None);
}

/// Congestion control that allows so much, and less after each loss.
#[derive(Debug)]
struct Narrow {
    cwnd: u32,
    acked: u64,
    losses: u32,
}

impl CongestionControl for Narrow {
    fn on_ack(&mut self, _: Instant, ack: &AckInfo) {
        self.acked += u64::from(ack.bytes);
        // After the first tenth, next to nothing.
        if self.acked > 10_000 {
            self.cwnd = 1;
        }
    }
    fn on_loss(&mut self, _: Instant, _: Loss) {
        self.losses += 1;
    }
    fn cwnd(&self) -> Option<u32> {
        Some(self.cwnd)
    }
}

#[test]
fn a_narrow_congestion_window_slows_and_does_not_stall() {
    let cc =
        || -> Box<dyn CongestionControl> { Box::new(Narrow { cwnd: 20_000, acked: 0, losses: 0 }) };
    let mut p = Pair::new(&Setup { cc: Some(cc), ..Setup::default() });
    let data = p.fill(0, 0, 100_000, 4);
    let start = p.now;
    p.post(0, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 100_000)]);
    assert_eq!(p.names(1).len(), 19, "19 packets of 1024 bytes");
    p.run();
    assert_eq!((p.results(0), p.bytes(1, 0, 100_000)), (vec![(1, Success)], data));
    assert_eq!(p.counter(0, C::CompleterRetryErr), 0, "no timeout was needed");
    let took = p.now - start;
    // One packet for each round trip of 4 us, nearly.
    assert!(took > Duration::from_micros(300) && took < Duration::from_micros(500), "{took:?}");
    p.assert_quiet();
}

/// 1 Gbit/s.
#[derive(Debug)]
struct Paced;

impl CongestionControl for Paced {
    fn pacing_rate(&self) -> Option<u64> {
        Some(1_000_000_000)
    }
}

#[test]
fn a_pace_is_kept() {
    let setup = Setup { cc: Some(|| Box::new(Paced)), mtu: Mtu::B4096, ..Setup::default() };
    let mut p = Pair::new(&setup);
    let data = p.fill(0, 0, 250_000, 4);
    let start = p.now;
    p.post(0, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 250_000)]);
    p.run();
    assert_eq!((p.results(0), p.bytes(1, 0, 250_000)), (vec![(1, Success)], data));
    let last = p.log.iter().rfind(|f| f.to == 1).unwrap().at - start;
    // 250 kB and a per cent of headers take 2 ms.
    assert!(last > Duration::from_micros(1950) && last < Duration::from_micros(2050), "{last:?}");
    assert_eq!(p.counter(0, C::CompleterRetryErr), 0);
    p.assert_quiet();
}

/// One FLUSH of a megabyte on one queue pair, short requests on another, a short FLUSH on a third.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_long_flush_does_not_keep_others_waiting() {
    let access = Access::REMOTE | Access::FLUSH_PERSISTENT;
    let setup = Setup { access, ..Setup::default() };
    let mut p = Pair::new(&setup);
    p.add_qp(&setup);
    p.add_qp(&setup);
    let s = &mut p.sides[1];
    let region = Region::lent(1 << 20);
    let mr = s.engine.register(s.pd, region, IovaChoice::Allocate, access).unwrap();
    let flush = |wr_id, len| SendWqe {
        compare_add: len,
        imm_or_inv: 2,
        remote_addr: mr.iova,
        rkey: mr.rkey,
        ..p.wqe(0, SendOp::Flush, wr_id, 0)
    };
    let (long, short) = (flush(1, 1 << 20), flush(3, 100_000));
    p.post_on(0, 0, long, &[]);
    p.post_on(0, 1, p.wqe(0, SendOp::Read, 2, 0), &[p.sge(0, 0, 8)]);
    p.post_on(0, 2, short, &[]);
    let begun = p.now;
    p.run();
    let done: Vec<_> = p.results(0);
    assert_eq!(done, [(2, Success), (3, Success), (1, Success)]);
    let answers: Vec<_> = p.log.iter().filter(|f| f.to == 0).map(|f| f.at - begun).collect();
    assert_eq!(answers[0], p.delay, "the READ is answered when it comes");
    assert!(answers[2] - answers[1] >= Duration::from_nanos(10), "{answers:?}");
    p.assert_quiet();
}
