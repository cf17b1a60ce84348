//! What losses leave of a line, by go-back-N and by selective repeat: one flow of WRITEs of 4 MiB over 40 Gbit/s and a round
//! trip of 4 us, in virtual time, so that the same comes out everywhere.
//!
//! Where one loss in a hundred meets another, a run of a few milliseconds is luck: it is the sum over several seeds that
//! counts. `GOODPUT_WRITES=16 cargo test --test goodput -- --nocapture` makes the table in docs/dcqcn.md.

use softroce::prelude::*;
use softroce::sim::{Link, Sim};

const LEN: usize = 4 << 20;
const SEEDS: u32 = 8;

/// What is lost with which probability: of the requests, and of what answers them.
#[derive(Clone, Copy)]
struct Losses {
    requests: f64,
    answers: f64,
}

/// Gbit/s of payload over all seeds, and how many packets were sent again.
fn goodput(lost: Losses, recovery: Recovery, writes: usize) -> Result<(f64, u64)> {
    let (mut took, mut again) = (Duration::ZERO, 0);
    for seed in 1..=SEEDS {
        let run = one_run(seed.into(), lost, recovery, writes)?;
        took += run.0;
        again += run.1;
    }
    let bits = f64::from(SEEDS) * (writes * LEN * 8) as f64;
    Ok((bits / took.as_secs_f64() / 1e9, again))
}

/// How long it took, and how many packets were sent again.
fn one_run(seed: u64, lost: Losses, recovery: Recovery, writes: usize) -> Result<(Duration, u64)> {
    let sim = Sim::new(seed);
    let (bits_per_s, delay) = (40_000_000_000, Duration::from_micros(1));
    let line = Link { bits_per_s, delay, mtu: 1500, ..Link::default() };
    let [a, b] = sim.hosts(line);
    // Losses act on what goes down to a host.
    sim.set_link(&a, Link { loss: lost.answers, ..line })?;
    sim.set_link(&b, Link { loss: lost.requests, ..line })?;
    let (pa, cq) = (a.alloc_pd()?, a.create_cq(128)?);
    let (pb, theirs) = (b.alloc_pd()?, b.create_cq(16)?);
    let x = pa.create_qp(QpType::Rc, &cq).recovery(recovery).build()?;
    let y = pb.create_qp(QpType::Rc, &theirs).recovery(recovery).build()?;
    // The shortest timeout that no switch with a full queue outlasts: 1 ms.
    let over = || QpAttr::default().timeout(8).path_mtu(Mtu::B1024);
    x.connect_with(&y.endpoint(), over())?;
    y.connect_with(&x.endpoint(), over())?;
    let src = pa.alloc_mr(LEN, Access::LOCAL)?;
    let dst = pb.alloc_mr(LEN, Access::REMOTE)?;
    let start = sim.now();
    let (mut posted, mut done) = (0, 0);
    while done < writes {
        while posted < writes && posted < done + 8 {
            x.post_send(SendWr::write(1, src.sge(..), dst.remote()))?;
            posted += 1;
        }
        cq.wait(Duration::from_secs(100))?.ok()?;
        done += 1;
    }
    Ok((sim.now() - start, a.counters(1)?["retransmitted_pkts"]))
}

#[test]
fn selective_repeat_is_never_worse() {
    let writes = std::env::var("GOODPUT_WRITES").map_or(2, |n| n.parse().unwrap());
    println!("| lost | of | go-back-N | selective repeat |\n|---|---|---|---|");
    for loss in [0.0, 0.001, 0.01, 0.05] {
        for (what, requests, answers) in
            [("requests", loss, 0.0), ("answers", 0.0, loss), ("both", loss, loss)]
        {
            let [go_back_n, selective] = [Recovery::GoBackN, Recovery::Selective]
                .map(|recovery| goodput(Losses { requests, answers }, recovery, writes).unwrap());
            let percent = loss * 100.0;
            let cell = |(goodput, again): (f64, u64)| format!("{goodput:.2} ({again})");
            println!("| {percent} % | {what} | {} | {} |", cell(go_back_n), cell(selective));
            assert!(
                selective.0 >= go_back_n.0,
                "{percent} % of {what}: {selective:?} and not {go_back_n:?}"
            );
            if requests > 0.0 {
                assert!(
                    selective.1 * 3 < go_back_n.1,
                    "{percent} % of {what}: {selective:?} and {go_back_n:?}"
                );
            }
        }
    }
}
