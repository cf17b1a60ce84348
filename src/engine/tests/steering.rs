//! Algorithms of congestion control at work: what their windows and rates do on a wire, and where they come from.

use super::pair::{Fate, Pair, Setup};
use crate::engine::cc::{Algorithm, CongestionControl, Swift, SwiftConfig, Timely, TimelyConfig};
use crate::engine::config::EngineConfig;
use crate::engine::counters::Counter as C;
use crate::engine::qp::attr::{QpAttr, QpState, QpType};
use crate::engine::status::WcStatus::{RetryExc, Success};
use crate::engine::window::PACKET_CHARGE;
use crate::queue::SendOp;
use crate::time::{Duration, Instant, nanos};

const G: u64 = 1_000_000_000;
const LEN: usize = 200 << 10;

fn lab(config: &mut EngineConfig) {
    config.pacing_burst = Duration::ZERO;
    config.ack_delay = Duration::ZERO;
}

fn swift_config() -> SwiftConfig {
    SwiftConfig {
        base_target: Duration::from_micros(20),
        hops: 0,
        flow_range: Duration::ZERO,
        max_window: 5.0,
        min_window: 0.25,
        ..SwiftConfig::new(100 * G)
    }
}

fn swift() -> Box<dyn CongestionControl> {
    Box::new(Swift::new(swift_config()).unwrap())
}

fn write(p: &mut Pair, len: usize) {
    p.post(0, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, len)]);
}

/// Window of side 0, in bytes.
fn cwnd(p: &mut Pair) -> u32 {
    let (now, qp) = (p.now, p.sides[0].qp);
    p.sides[0].engine.congestion(now, qp).unwrap().cwnd.unwrap()
}

#[test]
fn the_window_of_swift_bounds_what_is_in_flight() {
    let mut p = Pair::new(&Setup { cc: Some(swift), config: lab, ..Setup::default() });
    let data = p.fill(0, 0, LEN, 3);
    write(&mut p, LEN);
    let mut most = 0;
    loop {
        let charged = p.sides[0].engine.in_flight().0;
        most = most.max(charged);
        assert!(charged <= 5 * (1024 + PACKET_CHARGE), "{charged}");
        if !p.step() {
            break;
        }
    }
    assert_eq!(most, 5 * (1024 + PACKET_CHARGE), "and it is used");
    assert_eq!((p.results(0), p.bytes(1, 0, LEN)), (vec![(1, Success)], data));
    assert_eq!(cwnd(&mut p), 5 * 1024, "a round trip of 4 us is below the target");
    p.assert_quiet();
}

#[test]
fn below_one_packet_it_is_the_pace_that_counts() {
    let mut p = Pair::new(&Setup { cc: Some(swift), config: lab, timeout: 0, ..Setup::default() });
    // A round trip of 200 us, ten times the target.
    p.delay = Duration::from_micros(100);
    write(&mut p, LEN / 4);
    p.run();
    assert_eq!((p.results(0), cwnd(&mut p)), (vec![(1, Success)], 256), "a quarter of a packet");
    let sent: Vec<Instant> = p.log.iter().filter(|f| f.to == 1).map(|f| f.at).collect();
    let gaps: Vec<u64> = sent.windows(2).map(|two| nanos(two[1] - two[0])).collect();
    // Of a message of 50 packets the last thirty: a packet each 800 us, one behind the other.
    assert!(gaps[20..].iter().all(|gap| (799_000..=801_000).contains(gap)), "{gaps:?}");
    p.assert_quiet();
}

#[test]
fn timeouts_close_the_window_of_swift() {
    let setup = Setup { cc: Some(swift), config: lab, timeout: 5, ..Setup::default() };
    let mut p = Pair::new(&setup);
    write(&mut p, LEN);
    for _ in 0..20 {
        p.step();
    }
    assert_eq!(cwnd(&mut p), 5 * 1024);
    p.rule(|f| if f.to == 1 { Fate::Drop } else { Fate::Pass });
    let mut seen = vec![5 * 1024];
    while p.step() {
        let now = cwnd(&mut p);
        if seen.last() != Some(&now) {
            seen.push(now);
        }
    }
    assert_eq!(seen, [5120, 2560, 1280, 640, 320, 256], "five halves, the fifth the least");
    assert_eq!(p.results(0), [(1, RetryExc)]);
    assert_eq!(p.counter(0, C::LocalAckTimeoutErr), 8);
}

#[test]
fn timely_finds_its_way_down_and_up() {
    let timely = || -> Box<dyn CongestionControl> {
        let config = TimelyConfig { segment: 4096, ..TimelyConfig::new(10 * G) };
        Box::new(Timely::new(config).unwrap())
    };
    let config = |c: &mut EngineConfig| {
        lab(c);
        c.ack_every = 4;
    };
    let setup = Setup { cc: Some(timely), config, timeout: 0, ..Setup::default() };
    let mut p = Pair::new(&setup);
    let rate = |p: &mut Pair| {
        let (now, qp) = (p.now, p.sides[0].qp);
        p.sides[0].engine.congestion(now, qp).unwrap().rate.unwrap()
    };
    assert_eq!(rate(&mut p), 5 * G);
    write(&mut p, LEN);
    p.run();
    let free = rate(&mut p);
    assert!(free > 5 * G, "a short round trip");
    // 400 us each way are beyond t_high.
    p.delay = Duration::from_micros(400);
    write(&mut p, LEN);
    p.run();
    let slowed = rate(&mut p);
    assert!(slowed < free / 4, "{slowed}");
    p.delay = Duration::from_micros(2);
    write(&mut p, LEN);
    p.run();
    assert!(rate(&mut p) > slowed);
    assert_eq!(p.results(0), [(1, Success); 3]);
}

#[test]
fn a_queue_pair_without_its_own_has_that_of_its_device() {
    let config = |c: &mut EngineConfig| {
        c.cc = Algorithm::parse("dcqcn:25g", 1).unwrap();
    };
    let swift = |c: &mut EngineConfig| c.cc = Algorithm::parse("swift:25g", 1).unwrap();
    for (config, kind, own, name) in [
        (config as fn(&mut EngineConfig), QpType::Rc, false, "dcqcn"),
        (config, QpType::Uc, false, "dcqcn"),
        (config, QpType::Ud, false, "fixed"),
        (config, QpType::Rc, true, "swift"),
        (swift, QpType::Rc, false, "swift"),
        (swift, QpType::Uc, false, "fixed"),
        (|_: &mut EngineConfig| {}, QpType::Rc, false, "fixed"),
    ] {
        let cc = own.then_some(self::swift as fn() -> Box<dyn CongestionControl>);
        let mut p = Pair::new(&Setup { kind, config, cc, ..Setup::default() });
        let (now, qp) = (p.now, p.sides[0].qp);
        let state = p.sides[0].engine.congestion(now, qp).unwrap();
        assert_eq!(state.algorithm, name, "{kind:?}");
        if name == "dcqcn" {
            assert_eq!(state.rate, Some(25 * G));
        }
    }
}

#[test]
fn reset_is_a_fresh_start() {
    let setup = Setup { cc: Some(swift), config: lab, timeout: 0, ..Setup::default() };
    let mut p = Pair::new(&setup);
    p.delay = Duration::from_micros(100);
    write(&mut p, LEN / 4);
    p.run();
    assert_eq!((p.results(0), cwnd(&mut p)), (vec![(1, Success)], 256));
    // A pace of 800 us runs.
    for side in 0..2 {
        p.modify(side, &QpAttr::to(QpState::Reset));
    }
    assert_eq!(cwnd(&mut p), 5 * 1024);
    p.delay = Duration::from_micros(2);
    p.connect(&setup);
    let start = p.now;
    p.log.clear();
    write(&mut p, 5 * 1024);
    assert!(p.log.iter().filter(|f| f.to == 1).all(|f| f.at == start));
    assert_eq!(p.names(1).len(), 5, "a whole window, at once");
    p.run();
    assert_eq!(p.results(0), [(1, Success)]);
}
