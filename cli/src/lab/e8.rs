//! E8: what a lost packet costs, by the way it is recovered.

use softroce::prelude::Recovery;
use softroce::sim::{Action, Class, Rule, SwitchConfig, When};
use softroce::wire::opcode::Operation;

use super::net::{self, DATA, LINE};
use super::plot::{Axis, Level, Lines, Plot, Series, Style, What};
use super::report::{Report, Row};
use super::sizes::{AETH, Ip, Packet, wire};
use super::star::{Star, alike, drawing};
use super::traffic::MESSAGE;
use super::worst::{Worst, millis};
use super::{About, Experiment, Progress, Result, Setup};

/// See the module.
#[derive(Debug)]
pub(crate) struct E8;

const ABOUT: About = About {
    id: "e8",
    name: "loss",
    title: "What a lost packet costs",
    question: "How much of a line is left when packets are lost, with go-back-N and with selective repeat?",
    full: "closed forms as tabled. One flow, 40G, 4 us, path MTU 1024, 221 ms: every 256th packet lost, payload within 2 % \
           of the line of 33.852 Gbit/s, and within 0.5 % of 1 - n/256 with n as counted; with selective repeat within \
           0.5 % of 255/256 of the line; with go-back-0 no message completes while the line is busy. Random losses of \
           0.01 to 5 %, 5 seeds: go-back-N within 2 % of the line of the closed form, selective repeat within 0.5 % of what \
           is not lost",
    short: "closed forms as tabled; every 256th packet lost, 11 ms, by all three, as in the full variant",
};

/// A path: line (Gbit/s), round trip of propagation (us), path MTU; packets sent for nothing per loss, and Gbit/s of
/// payload with every 256th packet lost.
const PATHS: [(f64, f64, u32, u64, f64); 7] = [
    (40.0, 4.0, 1024, 22, 33.852),
    (40.0, 6.0, 1024, 31, 32.550),
    (100.0, 10.0, 1024, 117, 50.27),
    (40.0, 4.0, 4096, 8, 37.989),
    (40.0, 6.0, 4096, 11, 37.530),
    (100.0, 10.0, 4096, 33, 85.40),
    (400.0, 10.0, 4096, 123, 203.7),
];

/// A sender, a switch that stores packets before it forwards them, and a receiver.
#[derive(Clone, Copy, Debug)]
struct Path {
    bits_per_s: f64,
    /// Propagation there and back, seconds.
    round_trip: f64,
    packet: Packet,
}

impl Path {
    /// Slots of the line from the lost packet (included) to its retransmission (not included): the next packet makes
    /// the receiver send a NAK, through the same switch.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small count")]
    fn wasted(&self) -> u64 {
        let slot = self.packet.time(self.bits_per_s);
        let nak = f64::from(wire(Ip::V4, AETH, 0)) * 8.0 / self.bits_per_s;
        ((3.0 * slot + self.round_trip + 2.0 * nak) / slot - 1e-9).ceil() as u64
    }

    /// Slots in so many seconds.
    fn slots(&self, seconds: f64) -> f64 {
        seconds / self.packet.time(self.bits_per_s)
    }
}

/// Part of the slots that deliver, with go-back-N: `n` are lost with each packet, and `wait` more when the
/// retransmission is lost too.
fn go_back_n(p: f64, n: f64, wait: f64) -> f64 {
    1.0 / (1.0 + n * p / (1.0 - p) + wait * p * p / (1.0 - p))
}

#[expect(clippy::cast_precision_loss, reason = "small counts")]
impl Experiment for E8 {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn run(&self, setup: &Setup, progress: &mut Progress) -> Result<Report> {
        let mut report = Report::new(&ABOUT, setup);
        report.drawing = Some(drawing(&["H0"]).tag("SW", "loses"));
        progress.expect(setup.pick(3, 3 + 5 * (BACK.len() + SELECTIVE.len()) as u64));
        for (gbits, us, mtu, n, payload) in PATHS {
            let packet = Packet::of(mtu);
            let path = Path { bits_per_s: gbits * 1e9, round_trip: us * 1e-6, packet };
            let case = format!("{gbits}G, {us} us, path MTU {mtu}");
            let wasted = path.wasted();
            let metric = format!("{case}: packets sent for nothing per loss");
            report.rows.push(Row::count(metric, "packets", wasted, n));
            let measured = gbits * packet.share() * (1.0 - wasted as f64 / 256.0);
            let metric = format!("{case}: payload, every 256th packet lost");
            report.rows.push(Row::within(metric, "Gbit/s", measured, payload, 0.000_5));
        }
        // Percent of the line, by the closed form with a second NAK after 1 ms.
        let star = Path { bits_per_s: 40e9, round_trip: 4e-6, packet: Packet::of(1024) };
        for (p, expected) in
            [(1e-5, 99.98), (1e-4, 99.78), (1e-3, 97.41), (1.0 / 256.0, 86.54), (1e-2, 59.56)]
        {
            let measured = 100.0 * go_back_n(p, star.wasted() as f64, star.slots(1e-3));
            let metric =
                format!("go-back-N, 40G, 4 us, path MTU 1024, loss {}", super::report::number(p));
            report.rows.push(Row::near(metric, "% of the line", measured, expected, 0.01));
        }
        let measured = packets(&mut report, setup, progress, &star)?;
        report.plots = vec![over_loss(&star, measured)];
        report.lesson = vec![
            "Reliable connections go back: the responder takes packets in order only, so with one lost packet all that \
             follow it are thrown away until its retransmission arrives. That takes a round trip, and a round trip is many \
             packets on a fast line: 22 at 40 Gbit/s and 4 us, 123 at 400 Gbit/s and 10 us with the largest packets."
                .into(),
            "So go-back-N is good as long as losses are rare. One packet in ten thousand costs 0.2 %, one in a hundred 40 %. \
             Above one in a thousand a second effect takes over: the responder sends one NAK per gap, and if the \
             retransmission is lost too, nothing happens until a timer. This NIC sends a second NAK after a millisecond; \
             with the 67 ms of a retransmission timer, one loss in a hundred leaves 3 % of the line instead of 60 %."
                .into(),
            "Selective repeat sends again only what is missing: what is left of the line is what is not lost.".into(),
            "The first NICs for RoCE went back to the first packet of the message (go-back-0). Of messages with more packets than \
             there are between two losses none ever completes, and the line is full all the time: a network that is \
             busy and does nothing."
                .into(),
        ];
        report.note(
            "The textbook count of packets per loss, 1 + RTT C / packet, is 2 to 3 too low on a path with one switch.",
        );
        Ok(report)
    }
}

/// Random losses that are measured with go-back-N, and with selective repeat.
const BACK: [f64; 4] = [1e-4, 1e-3, 1e-2, 5e-2];
const SELECTIVE: [f64; 3] = [1e-3, 1e-2, 5e-2];

/// What of a flow arrives when packets are lost.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    /// Gbit/s of payload.
    payload: f64,
    /// Packets sent again per packet lost.
    again: f64,
    /// Messages that have completed.
    completed: u64,
    /// Percent of the time that the line to the receiver was in use.
    busy: f64,
}

/// One flow, and packets that get lost at the switch.
#[expect(clippy::cast_precision_loss, reason = "of counts")]
fn lossy(recovery: Recovery, seed: u64, when: When, ms: u64) -> Result<Outcome> {
    let path = net::Path::MTU_1024;
    let config = SwitchConfig { pfc: None, ..path.switch() };
    let star = Star::recovering(path, config, seed, &alike(path, 1, seed, false)?, recovery)?;
    let sim = star.net.sim();
    let from = sim.host_of(&star.net.station("H0").ctx)?;
    let data = Class::Operation(Operation::Write);
    let rule = sim.rule_while(Rule::new(data, Action::Drop).from(from).when(when))?;
    let rates = star.rates_until(millis(ms))?;
    let again = star.net.station("H0").counter("retransmitted_pkts")?;
    let lost = rule.hits().hits;
    let carried = star.port()?.tx_packets[usize::from(DATA)] as f64;
    Ok(Outcome {
        payload: rates.iter().sum(),
        again: again as f64 / lost as f64,
        completed: star.flows[0].completed() / MESSAGE as u64,
        busy: 100.0 * carried * path.packet.time(LINE as f64) / (ms as f64 * 1e-3),
    })
}

/// Percent lost, and percent of the line that delivers, as measured.
#[derive(Debug, Default)]
struct Measured {
    back: Vec<(f64, f64)>,
    selective: Vec<(f64, f64)>,
}

/// Runs them.
#[expect(clippy::cast_precision_loss, reason = "of counts")]
fn packets(
    report: &mut Report,
    setup: &Setup,
    progress: &Progress,
    star: &Path,
) -> Result<Measured> {
    let full = net::Path::MTU_1024.full();
    let mut measured = Measured::default();
    let every_256th = |how: &str, recovery| {
        progress.step(format_args!("every 256th packet lost, {how}"));
        lossy(recovery, setup.seed, When::Every(256), setup.pick(11, 221))
    };
    let outcome = every_256th("go-back-N", Recovery::GoBackN)?;
    let metric = "measured, every 256th packet lost: payload";
    report.rows.push(Row::near(metric, "Gbit/s", outcome.payload, 33.852, 0.02 * full));
    let metric = "measured, every 256th packet lost: packets sent again per loss";
    report.rows.push(Row::near(metric, "packets", outcome.again, star.wasted() as f64, 1.0));
    let counted = full * (1.0 - outcome.again / 256.0);
    let metric = "the same, by packets counted: payload";
    report.rows.push(Row::within(metric, "Gbit/s", outcome.payload, counted, 0.005));
    measured.back.push((100.0 / 256.0, 100.0 * outcome.payload / full));

    let outcome = every_256th("selective repeat", Recovery::Selective)?;
    let metric = "selective repeat, every 256th packet lost: payload";
    report.rows.push(Row::within(metric, "Gbit/s", outcome.payload, full * 255.0 / 256.0, 0.005));
    let metric = "selective repeat, every 256th packet lost: packets sent again per loss";
    report.rows.push(Row::near(metric, "packets", outcome.again, 1.0, 0.02));
    measured.selective.push((100.0 / 256.0, 100.0 * outcome.payload / full));

    let outcome = every_256th("go-back-0", Recovery::GoBack0)?;
    let metric = "go-back-0, every 256th packet lost: messages completed";
    report.rows.push(Row::count(metric, "messages", outcome.completed, 0));
    let metric = "go-back-0, every 256th packet lost: line to the receiver in use";
    report.rows.push(Row::at_least(metric, "% of the time", outcome.busy, 99.0));
    if setup.short {
        return Ok(measured);
    }
    for p in SELECTIVE {
        let mut delivering = Worst::default();
        for seed in setup.seeds(5) {
            progress.step(format_args!("loss {p}, selective repeat, seed {seed}"));
            let outcome = lossy(Recovery::Selective, seed, When::Chance(p), 221)?;
            delivering.add(100.0 * outcome.payload / full);
        }
        let metric = format!("selective repeat, random loss {}", super::report::number(p));
        report.rows.push(delivering.within(metric, "% of the line", 100.0 * (1.0 - p), 0.005));
        measured.selective.push((p * 100.0, delivering.first()));
    }
    for p in BACK {
        let mut delivering = Worst::default();
        for seed in setup.seeds(5) {
            progress.step(format_args!("loss {p}, seed {seed}"));
            let outcome = lossy(Recovery::GoBackN, seed, When::Chance(p), 221)?;
            delivering.add(100.0 * outcome.payload / full);
        }
        let expected = 100.0 * go_back_n(p, star.wasted() as f64, star.slots(1e-3));
        let metric = format!("measured, random loss {}", super::report::number(p));
        report.rows.push(delivering.near(metric, "% of the line", expected, 2.0));
        measured.back.push((p * 100.0, delivering.first()));
    }
    Ok(measured)
}

#[expect(clippy::cast_precision_loss, reason = "small counts")]
fn over_loss(path: &Path, measured: Measured) -> Plot {
    let losses: Vec<f64> =
        (0..=60).map(|i| 10_f64.powf(f64::from(i).mul_add(0.0625, -5.0))).collect();
    let n = path.wasted() as f64;
    let series = |name: &str, of: &dyn Fn(f64) -> f64| {
        Series::new(name, losses.iter().map(|&p| (p * 100.0, 100.0 * of(p))).collect())
    };
    let (again, timer) = (path.slots(1e-3), path.slots(4096e-9 * f64::from(1 << 14)));
    Plot {
        id: "loss".into(),
        title: "Share of a 40G line that delivers, 4 us of round trip, path MTU 1024".into(),
        what: What::Lines(Lines {
            x: Axis::new("packets lost", "%").log(),
            y: Axis::new("delivering", "% of the line").range(0.0, 100.0),
            series: vec![
                series("selective repeat", &|p| 1.0 - p),
                series("go-back-N, second NAK after 1 ms", &|p| go_back_n(p, n, again)),
                series("go-back-N, timer of 67 ms", &|p| go_back_n(p, n, timer))
                    .style(Style::Dashed),
                Series::new("go-back-N, measured", measured.back).style(Style::Dots),
                Series::new("selective repeat, measured", measured.selective).style(Style::Dots),
            ],
            levels: vec![Level::new(100.0, "line")],
            window: None,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losing_nothing_costs_nothing() {
        assert!((go_back_n(0.0, 22.0, 4521.0) - 1.0).abs() < 1e-12);
        assert!(go_back_n(1e-3, 22.0, 0.0) > go_back_n(1e-3, 22.0, 4521.0));
        // Without the second effect it is the textbook's (1 - p) / (1 - p + n p).
        let (p, n) = (0.01, 22.0);
        assert!((go_back_n(p, n, 0.0) - (1.0 - p) / (1.0 - p + n * p)).abs() < 1e-12);
    }
}
