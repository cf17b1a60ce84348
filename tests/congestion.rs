//! Congestion control by its trait: a fixed rate is kept, and an algorithm of the user's is told what happens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use softroce::cc::{AckInfo, CongestionControl, Fixed, Loss};
use softroce::prelude::*;
use softroce::sim::{Link, Sim, Verdict};
use softroce::time::Instant;

const LEN: usize = 1 << 20;

/// Writes a megabyte under `cc`; how long it took.
fn write_under(sim: &Sim, cc: impl CongestionControl + 'static) -> Result<Duration> {
    let [a, b] = sim.hosts(Link::default());
    let (pa, cq) = (a.alloc_pd()?, a.create_cq(16)?);
    let (pb, theirs) = (b.alloc_pd()?, b.create_cq(16)?);
    let x = pa.create_qp(QpType::Rc, &cq).congestion_control(cc).build()?;
    let y = pb.create_qp(QpType::Rc, &theirs).build()?;
    x.connect(&y.endpoint())?;
    y.connect(&x.endpoint())?;
    let src = pa.alloc_mr(LEN, Access::LOCAL)?;
    let dst = pb.alloc_mr(LEN, Access::REMOTE)?;
    src.fill(0..LEN, 7);
    let start = sim.now();
    x.post_send(SendWr::write(1, src.sge(..), dst.remote()))?;
    cq.wait(Duration::from_secs(10))?.ok()?;
    assert_eq!(dst.to_vec(0..LEN), vec![7; LEN]);
    Ok(sim.now() - start)
}

#[test]
fn a_fixed_rate_is_kept() {
    let fast = write_under(&Sim::new(1), Fixed::unlimited()).unwrap();
    assert!(fast < Duration::from_millis(1), "{fast:?}");
    // 255 packets of 4096 bytes that take 4178 on an Ethernet, at 1 Gbit/s: 8.523 ms, less what may leave ahead of its
    // pace, and a round trip for the last one.
    let slow = write_under(&Sim::new(1), Fixed::bits_per_second(1_000_000_000)).unwrap();
    assert!(slow > Duration::from_micros(8_500) && slow < Duration::from_micros(8_540), "{slow:?}");
}

#[derive(Debug, Default)]
struct Seen {
    sent: AtomicU64,
    acked: AtomicU64,
    losses: AtomicU64,
    timers: AtomicU64,
}

/// One packet in flight; notes what it is told.
#[derive(Debug)]
struct StopAndWait {
    seen: Arc<Seen>,
    next: Option<Instant>,
}

impl CongestionControl for StopAndWait {
    fn on_send(&mut self, now: Instant, _bytes: u32) {
        self.seen.sent.fetch_add(1, Relaxed);
        self.next = Some(now + Duration::from_micros(1));
    }
    fn on_ack(&mut self, _now: Instant, ack: &AckInfo) {
        self.seen.acked.fetch_add(u64::from(ack.bytes), Relaxed);
    }
    fn on_loss(&mut self, _now: Instant, _loss: Loss) {
        self.seen.losses.fetch_add(1, Relaxed);
    }
    fn on_timer(&mut self, _now: Instant) {
        self.seen.timers.fetch_add(1, Relaxed);
        self.next = None;
    }
    fn next_timer(&self) -> Option<Instant> {
        self.next
    }
    fn cwnd(&self) -> Option<u32> {
        Some(1)
    }
}

#[test]
fn an_algorithm_of_the_users_is_told_and_obeyed() {
    let sim = Sim::new(3);
    let mut n = 0;
    sim.tap(move |p| {
        n += usize::from(p.to == 1);
        if n == 100 { Verdict::Drop } else { Verdict::Pass }
    });
    let seen = Arc::new(Seen::default());
    let took = write_under(&sim, StopAndWait { seen: Arc::clone(&seen), next: None }).unwrap();
    assert!(took > Duration::from_micros(256 * 8), "a round trip for each packet: {took:?}");
    assert_eq!(seen.acked.load(Relaxed), LEN as u64);
    assert!(seen.sent.load(Relaxed) >= 257);
    assert_eq!(seen.losses.load(Relaxed), 1);
    assert!(seen.timers.load(Relaxed) > 200);
}

/// Writes 4 MiB over a link that loses one packet in a hundred; how many were sent again, and held.
fn over_a_bad_link(selective: [bool; 2], told: bool) -> Result<(u64, u64)> {
    let sim = Sim::new(11);
    let [a, b] = sim.hosts(Link { loss: 0.01, ..Link::default() });
    let (pa, cq) = (a.alloc_pd()?, a.create_cq(16)?);
    let (pb, theirs) = (b.alloc_pd()?, b.create_cq(16)?);
    let recovery = |wanted| if wanted { Recovery::Selective } else { Recovery::GoBackN };
    let x = pa.create_qp(QpType::Rc, &cq).recovery(recovery(selective[0])).build()?;
    let y = pb.create_qp(QpType::Rc, &theirs).recovery(recovery(selective[1])).build()?;
    assert_eq!(x.endpoint().to_string().ends_with("/sr"), selective[0]);
    x.connect(&y.endpoint())?;
    // As if it came from one that has never heard of it.
    y.connect(&QpEndpoint { recovery: recovery(told && selective[0]), ..x.endpoint() })?;
    let src = pa.alloc_mr(LEN, Access::LOCAL)?;
    let dst = pb.alloc_mr(LEN, Access::REMOTE)?;
    src.fill(0..LEN, 7);
    for _ in 0..4 {
        x.post_send(SendWr::write(1, src.sge(..), dst.remote()))?;
    }
    for _ in 0..4 {
        cq.wait(Duration::from_secs(10))?.ok()?;
    }
    assert_eq!(dst.to_vec(0..LEN), vec![7; LEN]);
    Ok((a.counters(1)?["retransmitted_pkts"], b.counters(1)?["held_requests"]))
}

#[test]
fn selective_repeat_takes_two() {
    let (go_back_n, held) = over_a_bad_link([false; 2], true).unwrap();
    assert_eq!(held, 0);
    for one in [[true, false], [false, true]] {
        assert_eq!(
            over_a_bad_link(one, true).unwrap(),
            (go_back_n, 0),
            "packet by packet the same"
        );
    }
    // One side was told, and the other could be, but was not.
    over_a_bad_link([true; 2], false).unwrap();
    let (selective, held) = over_a_bad_link([true; 2], true).unwrap();
    assert!(held > 0 && selective * 5 < go_back_n, "{selective} and not {go_back_n}");
}

/// How a queue pair recovers is for those that send again what is lost.
#[test]
fn only_reliable_connections_choose_their_recovery() {
    let sim = Sim::new(1);
    let [host] = sim.hosts(Link::default());
    let (pd, cq) = (host.alloc_pd().unwrap(), host.create_cq(16).unwrap());
    for recovery in [Recovery::Selective, Recovery::GoBack0] {
        let qp = pd.create_qp(QpType::Rc, &cq).recovery(recovery).build().unwrap();
        assert_eq!(qp.endpoint().recovery, recovery);
        for kind in [QpType::Uc, QpType::Ud] {
            let refused = pd.create_qp(kind, &cq).recovery(recovery).build().unwrap_err();
            assert!(refused.to_string().contains("only RC sends again what is lost"), "{refused}");
            assert_eq!(refused.errno(), Some(95));
            assert!(pd.create_qp(kind, &cq).recovery(Recovery::GoBackN).build().is_ok());
        }
    }
}
