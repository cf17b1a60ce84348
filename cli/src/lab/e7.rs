//! E7: the storm: a receiver that takes nothing more pauses its switch, that one the next, and so on.

use softroce::prelude::Duration;
use softroce::sim::{Receiver, SwitchConfig, Topology, Watchdog};

use super::drawing::Drawing;
use super::net::{DATA_CLASS, Net, Path, cable, host};
use super::plot::{Axis, Level, Lines, Plot, Series, What};
use super::report::{Report, Row, Source};
use super::traffic::{Flow, Jitter, Mark, Spec, Timeline, until};
use super::worst::{Worst, millis};
use super::{About, Experiment, Progress, Result, Setup};

/// See the module.
#[derive(Debug)]
pub(crate) struct E7;

const ABOUT: About = About {
    id: "e7",
    name: "storm",
    title: "A storm of pauses",
    question: "A NIC stops taking packets in: how far and how fast do the pauses go, and who else stands still?",
    full: "path MTU 1024, 5 seeds, times from the stall: first pause of the receiver 40.9 ± 0.5 us, of W3 82.6 ± 1, then \
           21.56 ± 0.25 a hop; the bystander 0.159 Gbit/s ± 10 % over 10 ms. Drained at 4 Gbit/s: sender 3.70 ± 1 %, the \
           bystander 1 to 1.05 of it, no watchdog; at 20: both within 0.5 % of half. Watchdog of 2 ms: fires at 2.042 ms, \
           97 ± 3 packets, the bystander at half ± 1 % then",
    short: "the same, 1 seed; the stall for 0.3 ms, with the watchdog 2.3, the drain at 4 Gbit/s for 10",
};

/// When the receiver stalls.
const STALL: u64 = 1;
const SWITCHES: [&str; 4] = ["W0", "W1", "W2", "W3"];
const XOFF: usize = 100_000;

/// What one run came to.
#[derive(Debug)]
struct Outcome {
    net: Net,
    flows: Vec<Flow>,
    /// Gbit/s of payload of sender and bystander, from the stall to the end.
    rates: Vec<f64>,
    line: Timeline,
}

/// `drain`: bits per second at which the receiver takes packets in. `for_us`: how long after the stall.
fn run(drain: u64, watchdog: bool, seed: u64, for_us: u64) -> Result<Outcome> {
    let path = Path::MTU_1024;
    let mut t = Topology::new();
    for switch in SWITCHES {
        let detect = millis(2);
        let dog = Watchdog { detect, restore: detect };
        let watchdog = (watchdog && switch == "W3").then_some(dog);
        t.switch(switch, SwitchConfig { watchdog, ..path.pausing(XOFF) });
    }
    for pair in SWITCHES.windows(2) {
        t.cable(pair[0], pair[1], cable());
    }
    t.host("A", "W0", host()).host("B", "W0", host());
    t.host("R", "W3", host()).host("X", "W3", host());
    let net = Net::build(&t, seed)?;
    let mut jitter = Jitter::new(seed);
    let mut flows = Vec::new();
    for (from, to) in [("A", "R"), ("B", "X")] {
        let start = path.start(&mut jitter, 2);
        flows.push(net.flow(from, to, &Spec::new(path.mtu, start).traffic_class(DATA_CLASS))?);
    }
    let mut line = Timeline::default();
    let step = Duration::from_micros(50);
    line.run(net.sim(), &flows, millis(STALL), step)?;
    let xon = XOFF - 2 * path.packet.frame as usize;
    let slow = Receiver { bits_per_s: drain, buffer: 4 * XOFF, xoff: XOFF, xon };
    net.net.set_receiver("R", Some(slow))?;
    let mark = Mark::new(net.sim(), &flows)?;
    line.run(net.sim(), &flows, millis(STALL) + Duration::from_micros(for_us), step)?;
    let rates = mark.rates(net.sim(), &flows)?;
    Ok(Outcome { net, flows, rates, line })
}

impl Outcome {
    /// First pause that a port has sent, in us after the stall.
    fn first(&self, of: &str, towards: &str) -> Result<f64> {
        let first = self.net.net.counters(of, towards)?.first_pause;
        Ok(first.map_or(f64::NAN, |at| (at.as_secs_f64() - STALL as f64 / 1e3) * 1e6))
    }
}

fn drawing() -> Drawing {
    let mut drawing = Drawing::new("all cables 40 Gbit/s, 1 us")
        .hosts(0, &["A", "B"])
        .switches(1, &SWITCHES)
        .hosts(2, &["R", "X"])
        .cable("A", "W0")
        .cable("B", "W0")
        .cable("R", "W3")
        .cable("X", "W3")
        .bottleneck("R", "W3")
        .tag("R", "stalls")
        .tag("B", "bystander")
        .tag("A", "sender");
    for pair in SWITCHES.windows(2) {
        drawing = drawing.cable(pair[0], pair[1]);
    }
    drawing
}

impl Experiment for E7 {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn run(&self, setup: &Setup, progress: &mut Progress) -> Result<Report> {
        let mut report = Report::new(&ABOUT, setup);
        progress.expect(setup.pick(3, 20));
        stalled(&mut report, setup, progress)?;
        slow(&mut report, setup, progress)?;
        guarded(&mut report, setup, progress)?;
        report.lesson = vec![
            "A NIC that takes nothing more in is no error to the network: it pauses, and the protocol says that it may. Its \
             buffer is full after 40 us, the switch in front of it after another 40, and then a switch every 21.56 us: the \
             time that the line takes to fill 100 KB, and the cable. After 130 us nobody in this network moves who shares \
             a cable with the sender, wherever he wants to go."
                .into(),
            "A receiver that is only slow does the same to its neighbours: whoever shares the way gets the rate of the slow \
             one. It pauses for microseconds at a time, so a watchdog that waits for a queue to stand still never sees it."
                .into(),
            "A watchdog gives up a queue that has stood still for its time, and drops what is in it and what comes for it. That \
             saves the others, after two milliseconds here, and 200 in a switch as it is delivered. The packets that it drops \
             still take their part of the way."
                .into(),
        ];
        report.cite(
            Source::PublishedFromMemory,
            "Guo et al., SIGCOMM 2016: one NIC that sent over 2000 pauses a second blocked a cluster; watchdogs of 100 ms in \
             NICs and 200 ms in switches since.",
        );
        Ok(report)
    }
}

fn stalled(report: &mut Report, setup: &Setup, progress: &Progress) -> Result<()> {
    let [mut r, mut w3, mut hop, mut b] = [(); 4].map(|()| Worst::default());
    for seed in setup.seeds(5) {
        progress.step(format_args!("stall, seed {seed}"));
        let outcome = run(0, false, seed, setup.pick(300, 10_000))?;
        r.add(outcome.first("R", "W3")?);
        w3.add(outcome.first("W3", "W2")?);
        hop.add((outcome.first("W1", "W0")? - outcome.first("W3", "W2")?) / 2.0);
        b.add(outcome.rates[1]);
        if seed == setup.seed {
            let mut drawing = drawing();
            outcome.net.show_pauses(&mut drawing);
            report.drawing = Some(drawing);
        }
    }
    let from = |row: Row| row.from(Source::Oracle);
    report.rows.push(from(r.near("stall: first pause of the receiver", "us", 40.9, 0.5)));
    report.rows.push(from(w3.near("stall: first pause of W3", "us", 82.6, 1.0)));
    report.rows.push(hop.near("stall: per hop, W3 to W1", "us", 21.56, 0.25));
    if !setup.short {
        let metric = "stall: bystander over 10 ms";
        report.rows.push(from(b.within(metric, "Gbit/s", 0.159, 0.1)));
    }
    Ok(())
}

fn slow(report: &mut Report, setup: &Setup, progress: &Progress) -> Result<()> {
    let [mut a, mut ratio, mut both] = [(); 3].map(|()| Worst::default());
    let mut fired = 0;
    for seed in setup.seeds(5) {
        progress.step(format_args!("drain of 4 Gbit/s, seed {seed}"));
        let outcome = run(4_000_000_000, true, seed, 10_000)?;
        a.add(outcome.rates[0]);
        ratio.add(outcome.rates[1] / outcome.rates[0]);
        fired += outcome.net.net.counters("W3", "R")?.watchdog_fired;
        if seed == setup.seed {
            report.plots.push(rates("slow", "Drained at 4 Gbit/s", &outcome.line));
        }
        if !setup.short {
            progress.step(format_args!("drain of 20 Gbit/s, seed {seed}"));
            let outcome = run(20_000_000_000, false, seed, 10_000)?;
            outcome.rates.iter().for_each(|rate| both.add(*rate));
        }
    }
    // What the receiver has taken in, at its rate; the oracle counts what has come to its buffer, 100 KB more.
    let drained = 4.0 * Path::MTU_1024.packet.share();
    report.rows.push(a.within("drain of 4 Gbit/s: sender", "Gbit/s", drained, 0.01));
    let row = ratio.between("drain of 4 Gbit/s: bystander over sender", "", 1.0, 1.05);
    report.rows.push(row.from(Source::Oracle));
    report
        .rows
        .push(Row::count("drain of 4 Gbit/s: watchdog", "times", fired, 0).from(Source::Oracle));
    if !setup.short {
        let half = Path::MTU_1024.full() / 2.0;
        report.rows.push(both.within("drain of 20 Gbit/s: each", "Gbit/s", half, 0.005));
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "of packets")]
fn guarded(report: &mut Report, setup: &Setup, progress: &Progress) -> Result<()> {
    let [mut fires, mut flushed, mut later] = [(); 3].map(|()| Worst::default());
    for seed in setup.seeds(5) {
        progress.step(format_args!("watchdog, seed {seed}"));
        let outcome = run(0, true, seed, setup.pick(2_300, 5_000))?;
        let port = outcome.net.net.counters("W3", "R")?;
        let at = port.watchdog_at.map_or(f64::NAN, |at| at.as_secs_f64() * 1e3 - STALL as f64);
        fires.add(at);
        flushed.add(port.watchdog_flushed as f64);
        if seed == setup.seed {
            report.plots.push(rates("watchdog", "Stalled, with a watchdog of 2 ms", &outcome.line));
        }
        if !setup.short {
            let mark = Mark::new(outcome.net.sim(), &outcome.flows)?;
            until(outcome.net.sim(), millis(STALL + 10));
            later.add(mark.rates(outcome.net.sim(), &outcome.flows)?[1]);
        }
    }
    let row = fires.near("watchdog of 2 ms: fires after the stall", "ms", 2.042, 0.002);
    report.rows.push(row.from(Source::Oracle));
    let row =
        flushed.near("watchdog of 2 ms: packets that it throws away at once", "packets", 97.0, 3.0);
    report.rows.push(row.from(Source::Oracle));
    if !setup.short {
        let half = Path::MTU_1024.full() / 2.0;
        let metric = "watchdog of 2 ms: bystander, 5 to 10 ms after the stall";
        report.rows.push(later.within(metric, "Gbit/s", half, 0.01));
    }
    Ok(())
}

fn rates(id: &str, title: &str, line: &Timeline) -> Plot {
    let series = ["A, sender", "B, bystander"].into_iter().enumerate();
    Plot {
        id: id.into(),
        title: format!("{title}: payload of both flows"),
        what: What::Lines(Lines {
            x: Axis::new("time", "ms"),
            y: Axis::new("payload", "Gbit/s"),
            series: series.map(|(i, name)| Series::new(name, line.of(i))).collect(),
            levels: vec![Level::new(Path::MTU_1024.full() / 2.0, "half")],
            window: None,
        }),
    }
}
