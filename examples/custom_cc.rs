//! Congestion control of one's own, beside others: two senders, one receiver, and somebody who wants an answer meanwhile.
//!
//! The algorithm is the trait [`CongestionControl`]; the network marks packets when its queue is long.
#![expect(clippy::print_stdout, reason = "a program that says what it did")]
use softroce::cc::{AckInfo, CongestionControl, Dcqcn, DcqcnConfig, Fixed};
use softroce::prelude::*;
use softroce::sim::{Link, Sim};
use softroce::time::Instant;

const LINE: u64 = 10_000_000_000;
const LEN: usize = 16 << 20;
const SEC: Duration = Duration::from_secs(1);

/// Takes a quarter off for notifications, at most once in a while, and adds a little for each round trip.
#[derive(Debug)]
struct Quarter {
    rate: u64,
    deaf_until: Instant,
}

impl CongestionControl for Quarter {
    fn on_cnp(&mut self, now: Instant) {
        if now >= self.deaf_until {
            self.rate = (self.rate - self.rate / 4).max(LINE / 1000);
            self.deaf_until = now + Duration::from_micros(100);
        }
    }
    fn on_ack(&mut self, _now: Instant, ack: &AckInfo) {
        if ack.rtt.is_some() {
            self.rate = (self.rate + LINE / 500).min(LINE);
        }
    }
    fn pacing_rate(&self) -> Option<u64> {
        Some(self.rate)
    }
    fn wants_ecn(&self) -> bool {
        true
    }
}

type Side = (ProtectionDomain, CompletionQueue, QueuePair);

fn side(host: &Context, cc: impl CongestionControl + 'static) -> Result<Side> {
    let (pd, cq) = (host.alloc_pd()?, host.create_cq(64)?);
    let qp = pd.create_qp(QpType::Rc, &cq).congestion_control(cc).build()?;
    Ok((pd, cq, qp))
}

/// Two senders write 16 MiB each to one receiver. How long that took, how many packets were marked, and how long a small
/// message of a third one waited in the same queue at worst.
fn contend<C>(make: impl Fn() -> C) -> Result<(Duration, u64, Duration)>
where
    C: CongestionControl + 'static,
{
    let sim = Sim::new(7);
    let link = Link { bits_per_s: LINE, ecn_at: 100_000, ..Link::default() };
    let [a, b, c, receiver] = sim.hosts(link);
    let (theirs, cq) = (receiver.alloc_pd()?, receiver.create_cq(64)?);
    let dst = theirs.alloc_mr(LEN, Access::REMOTE)?;
    let mut sides = Vec::new();
    for host in [&a, &b, &c] {
        let is_small = host.gids()? == c.gids()?;
        let side = if is_small { side(host, Fixed::unlimited())? } else { side(host, make())? };
        let peer = theirs.create_qp(QpType::Rc, &cq).build()?;
        side.2.connect(&peer.endpoint())?;
        peer.connect(&side.2.endpoint())?;
        let src = side.0.alloc_mr(LEN, Access::LOCAL)?;
        sides.push((side, src, peer));
    }
    let start = sim.now();
    for ((_, _, qp), src, _) in &sides[..2] {
        qp.post_send(SendWr::write(1, src.sge(..), dst.remote()))?;
    }
    let ((_, cq, qp), src, _) = &sides[2];
    let (mut done, mut worst) = (0, Duration::ZERO);
    while done < 2 {
        let sent = sim.now();
        qp.post_send(SendWr::write(2, src.sge(..8), dst.remote()))?;
        cq.wait(SEC)?.ok()?;
        worst = worst.max(sim.now() - sent);
        for ((_, cq, _), ..) in &sides[..2] {
            for wc in cq.drain() {
                wc.ok()?;
                done += 1;
            }
        }
    }
    let marked = receiver.counters(1)?["np_ecn_marked_roce_packets"];
    Ok((sim.now() - start, marked, worst))
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let config = DcqcnConfig::preset("paper", LINE)?;
    let dcqcn = Dcqcn::new(config)?;
    let rows = [
        ("fixed", contend(Fixed::unlimited)?),
        ("dcqcn", contend(|| dcqcn.clone())?),
        ("ours", contend(|| Quarter { rate: LINE, deaf_until: Instant::ZERO })?),
    ];
    println!("two senders of 16 MiB over 10 Gbit/s, and a small message at a time beside them:");
    for (name, (took, marked, worst)) in rows {
        println!("{name:>6}: {took:>12?}, {marked:>5} packets marked, worst answer {worst:>10?}");
    }
    let [(_, fixed), (_, dcqcn), (_, ours)] = rows;
    assert_eq!(fixed.1, 0, "packets that nobody may mark");
    assert!(dcqcn.1 > 0 && ours.1 > 0);
    assert!(ours.2 < fixed.2 && dcqcn.2 < fixed.2, "shorter queues, shorter waits");
    assert!(ours.0 < 2 * fixed.0 && dcqcn.0 < 2 * fixed.0, "and the line does not idle");
    Ok(())
}
