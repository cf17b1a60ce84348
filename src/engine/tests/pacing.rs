//! Pace on the wire: exact gaps, what a rate is made of, and what becomes of the time in which nobody sent.

use std::sync::Mutex;

use super::pair::{Pair, Setup};
use crate::engine::cc::{CongestionControl, Fixed};
use crate::engine::config::EngineConfig;
use crate::engine::qp::attr::QpType;
use crate::engine::status::WcStatus::Success;
use crate::engine::window::WindowConfig;
use crate::queue::SendOp;
use crate::time::{Duration, Instant};

const G: u64 = 1_000_000_000;

fn fixed_40g() -> Box<dyn CongestionControl> {
    Box::new(Fixed::bits_per_second(40 * G))
}

fn alone(config: &mut EngineConfig) {
    config.pacing_burst = Duration::ZERO;
    config.window = WindowConfig { enabled: false, ..WindowConfig::default() };
}

fn setup(kind: QpType) -> Setup {
    Setup { kind, cc: Some(fixed_40g), config: alone, timeout: 0, ..Setup::default() }
}

/// Times of the packets to one side whose name begins so, in nanoseconds since the first of them.
fn times(p: &Pair, to: usize, name: &str) -> Vec<u64> {
    let all = p.log.iter().filter(|f| f.to == to && f.name.starts_with(name));
    let all: Vec<u64> = all.map(|f| f.at.as_nanos()).collect();
    all.iter().map(|t| t - all[0]).collect()
}

/// The `n`-th of packets of 1106 bytes on the wire at 40 Gbit/s, behind a first one with `more` bytes than they.
fn due(n: usize, more: u64) -> u64 {
    let tenths = if n == 0 { 0 } else { n as u64 * 2212 + more * 2 };
    tenths / 10
}

#[test]
fn every_packet_leaves_at_its_own_moment_and_none_is_late() {
    for kind in [QpType::Rc, QpType::Uc] {
        let mut p = Pair::new(&setup(kind));
        p.post(0, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 1 << 20)]);
        p.run();
        assert_eq!(p.results(0), [(1, Success)]);
        let name = if kind == QpType::Rc { "RC_WRITE" } else { "UC_WRITE" };
        let sent = times(&p, 1, name);
        assert_eq!(sent.len(), 1024);
        for (n, at) in sent.iter().enumerate() {
            assert_eq!(*at, due(n, 16), "{kind:?}, packet {n}");
        }
        p.assert_quiet();
    }
}

#[test]
fn answers_of_a_read_are_paced_alike() {
    let mut p = Pair::new(&setup(QpType::Rc));
    p.post(0, p.wqe(0, SendOp::Read, 1, 0), &[p.sge(0, 0, 1 << 20)]);
    p.run();
    assert_eq!(p.results(0), [(1, Success)]);
    let sent = times(&p, 0, "RC_READ_RESP");
    assert_eq!(sent.len(), 1024);
    for (n, at) in sent.iter().enumerate() {
        assert_eq!(*at, due(n, 4), "packet {n}");
    }
}

#[test]
fn silence_gives_no_credit_beyond_the_burst() {
    let two_microseconds = |c: &mut EngineConfig| {
        alone(c);
        c.pacing_burst = Duration::from_micros(2);
    };
    // 2 us are nine packets of 221 ns, and one leaves at once.
    for (config, at_once) in [(alone as fn(&mut EngineConfig), 1), (two_microseconds, 10)] {
        let mut p = Pair::new(&Setup { config, ..setup(QpType::Rc) });
        for id in 0..3 {
            p.log.clear();
            p.post(0, p.wqe(0, SendOp::Write, id, 0), &[p.sge(0, 0, 1 << 16)]);
            p.run();
            p.run_for(Duration::from_millis(1));
            let sent = times(&p, 1, "RC_WRITE");
            assert_eq!(sent.iter().filter(|at| **at == 0).count(), at_once, "message {id}");
            // A timer of 1.024 us adds what it is late by.
            let (ahead, late) = if at_once > 1 { (2000, 1024) } else { (0, 0) };
            let last = due(63, 16) - ahead;
            assert!((last..=last + late).contains(&sent[63]), "message {id}: {}", sent[63]);
        }
    }
}

/// 40 Gbit/s, and a tenth of that from the first call of the timer on; what it was told.
#[derive(Debug)]
struct Slower {
    at: Option<Instant>,
}

static FRAMES: Mutex<Vec<u32>> = Mutex::new(Vec::new());

impl CongestionControl for Slower {
    fn on_send(&mut self, _now: Instant, bytes: u32) {
        FRAMES.lock().unwrap().push(bytes);
    }
    fn on_timer(&mut self, _now: Instant) {
        self.at = None;
    }
    fn next_timer(&self) -> Option<Instant> {
        self.at
    }
    fn pacing_rate(&self) -> Option<u64> {
        Some(if self.at.is_some() { 40 * G } else { 4 * G })
    }
}

#[test]
fn a_cut_is_felt_by_the_gap_that_runs_and_frames_are_what_it_is_told_of() {
    // In the middle of the gap behind the third packet, which begins 445.6 ns and ends 666.8 ns after the first.
    let cc = || -> Box<dyn CongestionControl> {
        Box::new(Slower { at: Some(Instant::from_nanos(1_000_500)) })
    };
    let mut p = Pair::new(&Setup { cc: Some(cc), ..setup(QpType::Rc) });
    FRAMES.lock().unwrap().clear();
    p.post(0, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 5000)]);
    p.run();
    // 166.8 ns of the gap are left when the rate changes, and take ten times as long.
    assert_eq!(times(&p, 1, "RC_WRITE"), [0, 224, 445, 500 + 1668, 500 + 1668 + 2212]);
    // The first one has a RETH, the last one 904 bytes.
    assert_eq!(*FRAMES.lock().unwrap(), [1102, 1086, 1086, 1086, 966]);
}
