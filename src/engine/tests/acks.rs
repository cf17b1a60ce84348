//! Who asks for ACKs, when they leave, and the round trips that they measure.

use std::sync::Mutex;

use super::pair::{Fate, Flying, Pair, Setup};
use crate::engine::Acks;
use crate::engine::cc::{AckInfo, CongestionControl};
use crate::engine::config::EngineConfig;
use crate::engine::counters::Counter as C;
use crate::engine::status::WcStatus::Success;
use crate::engine::window::WindowConfig;
use crate::queue::SendOp;
use crate::time::{Duration, Instant};

/// As a laboratory has it: nothing asks for an ACK but the end of a message, and the ACK leaves at once.
fn lab(config: &mut EngineConfig) {
    config.window = WindowConfig { enabled: false, ..WindowConfig::default() };
    config.ack_every = u32::MAX;
    config.ack_delay = Duration::ZERO;
}

fn acks(p: &Pair) -> Vec<&Flying> {
    p.log.iter().filter(|f| f.to == 0 && f.name == "RC_ACK").collect()
}

#[test]
fn only_the_last_packet_of_a_message_asks() {
    let mut p = Pair::new(&Setup { config: lab, timeout: 0, ..Setup::default() });
    for id in 0..8 {
        p.stage_on(0, 0, p.wqe(0, SendOp::Write, id, 0), &[p.sge(0, 0, 1 << 20)]);
    }
    p.ring(0, 0);
    assert_eq!(p.names(1).len(), 8 * 1024, "all at once: there is no window");
    p.run();
    assert_eq!(p.results(0), (0..8).map(|id| (id, Success)).collect::<Vec<_>>());
    let psns: Vec<u32> = acks(&p).iter().map(|f| f.psn).collect();
    assert_eq!(psns, (1..=8).map(|n| 0x1000 + n * 1024 - 1).collect::<Vec<_>>());
    p.assert_quiet();
    // A retry asks no more often.
    p.lose(1, "RC_WRITE_MIDDLE", 100);
    p.log.clear();
    p.post(0, p.wqe(0, SendOp::Write, 9, 0), &[p.sge(0, 0, 1 << 20)]);
    p.run();
    assert_eq!(p.results(0), [(9, Success)]);
    assert_eq!(p.counter(0, C::RcvdSeqErr), 1);
    let syndromes: Vec<_> = acks(&p).iter().map(|f| f.syndrome).collect();
    assert_eq!(syndromes, [Some(0x60), Some(0x1f)]);
}

#[test]
fn without_delay_an_ack_leaves_at_once_and_before_requests() {
    let mut p = Pair::new(&Setup { config: lab, timeout: 0, ..Setup::default() });
    // Its driver would hold plain ACKs, and it has much to send itself.
    p.acks = [Acks::Hold; 2];
    p.room = 4096;
    p.post(0, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 64)]);
    p.stage_on(1, 0, p.wqe(1, SendOp::Write, 2, 1 << 16), &[p.sge(1, 1 << 16, 1 << 19)]);
    let handle = p.sides[1].qp;
    p.sides[1].engine.handle_doorbell(p.now, handle);
    let sent = p.now;
    p.run();
    let all = acks(&p);
    assert_eq!((all.len(), all[0].at), (1, sent + p.delay), "no later than the packet came");
    assert!(all[0].nth == 0 && p.log.iter().position(|f| f.to == 0).is_some());
    let first = p.log.iter().find(|f| f.to == 0).unwrap();
    assert_eq!(first.name, "RC_ACK", "before 512 packets that could leave as well");
    assert_eq!((p.results(0), p.results(1)), (vec![(1, Success)], vec![(2, Success)]));
    p.assert_quiet();
}

/// What the algorithm of side 0 was told of its ACKs.
static TOLD: Mutex<Vec<(u32, Option<u64>)>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct Listener;

impl CongestionControl for Listener {
    fn on_ack(&mut self, _now: Instant, ack: &AckInfo) {
        let rtt = ack.rtt.map(|t| u64::try_from(t.as_nanos()).unwrap());
        TOLD.lock().unwrap().push((ack.bytes, rtt));
    }
}

fn listening() -> Box<dyn CongestionControl> {
    Box::new(Listener)
}

#[test]
fn round_trips_are_measured_and_never_across_a_retry() {
    let told = || std::mem::take(&mut *TOLD.lock().unwrap());
    let setup = Setup { config: lab, cc: Some(listening), timeout: 8, ..Setup::default() };
    let mut p = Pair::new(&setup);
    told();
    let write = |p: &mut Pair, len: usize| {
        p.post(0, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, len)]);
        p.run();
        assert_eq!(p.results(0), [(1, Success)]);
    };
    // There and back.
    write(&mut p, 5000);
    assert_eq!(told(), [(5000, Some(4000))]);
    // A READ: to its first packet. An atomic.
    for (op, len, bytes) in
        [(SendOp::Read, 2048, [1024, 1024].as_slice()), (SendOp::FetchAdd, 8, &[8])]
    {
        p.post(0, p.wqe(0, op, 1, 0), &[p.sge(0, 0, len)]);
        p.run();
        let heard = told();
        assert_eq!(heard.iter().map(|(bytes, _)| *bytes).collect::<Vec<_>>(), bytes, "{op:?}");
        assert_eq!(heard[0].1, Some(4000), "{op:?}");
        assert!(heard[1..].iter().all(|(_, rtt)| rtt.is_none()), "{op:?}");
    }
    p.completions(0);
    // The answer to a READ behind another waits for that one, and says nothing of the path.
    for _ in 0..2 {
        p.stage_on(0, 0, p.wqe(0, SendOp::Read, 1, 0), &[p.sge(0, 0, 1024)]);
    }
    p.ring(0, 0);
    p.run();
    assert_eq!(told(), [(1024, Some(4000)), (1024, None)]);
    p.completions(0);
    // Nor does the ACK of a WRITE behind a READ, which is no better off.
    p.stage_on(0, 0, p.wqe(0, SendOp::Read, 1, 0), &[p.sge(0, 0, 2048)]);
    p.stage_on(0, 0, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 100)]);
    p.ring(0, 0);
    p.run();
    assert_eq!(told(), [(1024, Some(4000)), (1024, None), (100, None)]);
    p.completions(0);
    // An ACK that is slow in coming.
    p.rule(|f| if f.to == 0 { Fate::Late(Duration::from_micros(30)) } else { Fate::Pass });
    write(&mut p, 100);
    assert_eq!(told(), [(100, Some(34_000))]);
    // A lost ACK: whichever of the two packets the next one answers, it is not measured.
    p.lose(0, "RC_ACK", 0);
    write(&mut p, 100);
    assert_eq!((p.counter(0, C::LocalAckTimeoutErr), told()), (1, vec![(100, None)]));
    // The same after a gap: the last packet was never lost, and yet sent twice.
    p.lose(1, "RC_WRITE_MIDDLE", 0);
    write(&mut p, 5000);
    assert_eq!(p.counter(0, C::RcvdSeqErr), 1);
    assert_eq!(told(), [(1024, None), (5000 - 1024, None)]);
    write(&mut p, 100);
    assert_eq!(told(), [(100, Some(4000))], "and after that again");
    p.assert_quiet();
}
