//! E7: the storm: one host that takes nothing in stops switch after switch, and what a watchdog does about it.

use softroce::prelude::Duration;
use softroce::sim::{SwitchConfig, Topology, Watchdog};

use super::drawing::Drawing;
use super::net::{DATA, DATA_CLASS, LINE, Net, Path, cable, host};
use super::plot::{Axis, Bar, Bars, Level, Lines, Plot, Series, What};
use super::report::{Report, Row, Source};
use super::sizes::{GAP, PFC_FRAME};
use super::traffic::{Flow, Jitter, Mark, Spec, Timeline, until};
use super::watch::{PortMark, first_pause, slow};
use super::worst::{Worst, millis};
use super::{About, Experiment, Progress, Result, Setup};

/// See the module.
#[derive(Debug)]
pub(crate) struct E7;

const ABOUT: About = About {
    id: "e7",
    name: "storm",
    title: "The storm of a stalled host",
    question: "One host stops taking packets in: how far does it stop a network, how fast, and what helps?",
    full: "5 seeds, path MTU 1024, R stalls at 1 ms of 11. Senders at half a line each: R pauses after 40.9 +-0.5 us, W3 \
           after 82.6 +-1 us, each further hop 21.56 +-0.25 us later; B afterwards 0.159 Gbit/s +-10 %. Watchdog: gives \
           up 2 ms after the pause came, within 0.25 us, 97 +-3 frames; B from 5 ms on 18.517 +-1 %. R at 4 Gbit/s: \
           3.78 +-1 % arrive, B 1 to 1.05 of it, the watchdog sees nothing. R at 20 Gbit/s: both 18.517 +-0.5 %. Senders \
           at the full line: R 39.2 +-8.3 us, W3 83.5 +-8.3 us, hops as before, 103 +-3 frames, B/A 1.058 +-0.015",
    short: "1 seed, the same rules; stalled to 1.3 ms, with the watchdog to 3.3 ms, at 20 Gbit/s to 3 ms; without B from \
            5 ms on",
};

/// The switches, from the senders to the receivers.
const CHAIN: [&str; 4] = ["W0", "W1", "W2", "W3"];
/// When the host stalls.
const STALL: Duration = millis(1);
/// How long a queue may be stuck where there is a watchdog.
const DETECT: Duration = millis(2);
/// By then the storm has come to the senders.
const SOON: Duration = Duration::from_micros(300);
/// Over how long it is counted what still arrives.
const AFTER: Duration = millis(10);
const PATH: Path = Path::MTU_1024;

/// How A and B send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Senders {
    /// By cables of half the speed: their packets come in turns, and nobody pauses them before the stall.
    Even,
    /// At the full line: the first switch pauses them in turns, and their packets come in bursts.
    Bursts,
}

/// A from W0 to R, B the same way to X; both on W3.
fn build(senders: Senders, guarded: bool, seed: u64) -> Result<(Net, Vec<Flow>)> {
    let plain = PATH.pausing(100_000);
    let mut t = Topology::new();
    for switch in CHAIN {
        let guard = guarded && switch == "W3";
        let watchdog = guard.then_some(Watchdog { detect: DETECT, restore: DETECT });
        t.switch(switch, SwitchConfig { watchdog, ..plain.clone() });
    }
    for pair in CHAIN.windows(2) {
        t.cable(pair[0], pair[1], cable());
    }
    let mut sender = host();
    if senders == Senders::Even {
        sender.link.bits_per_s = LINE / 2;
    }
    t.host("A", "W0", sender.clone()).host("B", "W0", sender);
    t.host("R", "W3", host()).host("X", "W3", host());
    let net = Net::build(&t, seed)?;
    let mut jitter = Jitter::new(seed);
    let mut flows = Vec::new();
    for (from, to) in [("A", "R"), ("B", "X")] {
        let spec = Spec::new(PATH.mtu, PATH.start(&mut jitter, 2)).traffic_class(DATA_CLASS);
        flows.push(net.flow(from, to, &spec)?);
    }
    until(net.sim(), STALL);
    Ok((net, flows))
}

fn drawing() -> Drawing {
    Drawing::new("cables 40 Gbit/s, those of A and B 20; 1 us each")
        .hosts(0, &["A", "B"])
        .switches(1, &["W0"])
        .switches(2, &["W1"])
        .switches(3, &["W2"])
        .switches(4, &["W3"])
        .hosts(5, &["R", "X"])
        .cable("A", "W0")
        .cable("B", "W0")
        .cable("W0", "W1")
        .cable("W1", "W2")
        .cable("W2", "W3")
        .cable("R", "W3")
        .cable("X", "W3")
        .bottleneck("R", "W3")
        .tag("A", "sends to R")
        .tag("B", "sends to X")
        .tag("R", "stalls")
        .tag("X", "idle otherwise")
}

/// Pauses of a storm in their order: who asks whom.
const HOPS: [(&str, &str); 4] = [("R", "W3"), ("W3", "W2"), ("W2", "W1"), ("W1", "W0")];

impl Experiment for E7 {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn run(&self, setup: &Setup, progress: &mut Progress) -> Result<Report> {
        let mut report = Report::new(&ABOUT, setup);
        progress.expect(7 * setup.seeds(5).count() as u64);
        stalled(&mut report, setup, progress)?;
        guarded(&mut report, setup, progress)?;
        slowed(&mut report, setup, progress)?;
        halved(&mut report, setup, progress)?;
        in_bursts(&mut report, setup, progress)?;
        report.lesson = vec![
            "R takes nothing in any more. Its buffer fills, it asks W3 to pause; W3 fills and asks W2; and so on up to the \
             senders, a hop in the time that a full line takes to fill the share of one port. After an eighth of a \
             millisecond four switches stand still. B sends to X, which is idle, by lines that are idle, and gets nothing: it \
             is in the same queues as A. A pause knows ports and priorities, and no flows."
                .into(),
            "A watchdog drops what is in a queue that has been stuck for too long, and what comes for it. A's packets are lost, \
             B has its half of the chain again (A's packets take the other half and are dropped at its end). The price of the \
             cure: a priority that loses nothing has lost packets."
                .into(),
            "A host that is slow, and not dead, is worse. It lets its switch go on again and again, so no pause lasts for as \
             long as the watchdog waits. A and B both get what the slow host takes in, for as long as it is slow, and no \
             alarm goes off."
                .into(),
        ];
        report.cite(
            Source::PublishedFromMemory,
            "In a data centre (Guo et al., SIGCOMM 2016) one NIC that sent more than 2000 pauses per second blocked a whole \
             cluster. Since then NICs there watch themselves (100 ms) and switches watch them (200 ms); slow hosts were cured \
             by large pages and by buffers with dynamic thresholds.",
        );
        report.note("The watchdog has 2 ms to keep the run short. Switches ship with 200 ms.");
        report.note(
            "The first pauses depend on the order in which A's and B's packets come. From cables of half the speed they come in \
             turns. At the full line W0 pauses one sender and then the other, and they come in bursts of up to thirty; then R \
             is as much as 4 us early or late, and with it all that follows, but a hop takes what it takes. (The independent \
             model has turns at the full line, too, as long as all its cables are equal to the picosecond. With a jitter of \
             1 ps it has the bursts: the values expected here are from that.)",
        );
        Ok(report)
    }
}

/// Times from the stall to the first pause of each hop, for one seed after the other.
#[derive(Debug, Default)]
struct Spread {
    first: [Worst; HOPS.len()],
    hop: Worst,
}

impl Spread {
    fn add(&mut self, net: &Net) -> Result<()> {
        let mut times = [0.0; HOPS.len()];
        for (((of, to), time), worst) in HOPS.iter().zip(&mut times).zip(&mut self.first) {
            *time = first_pause(net, of, to, STALL)?;
            worst.add(*time);
        }
        self.hop.add((times[3] - times[1]) / 2.0);
        Ok(())
    }

    /// Rows of R, of W3, and of the hops behind; for the first two what is expected, and how far off it may be.
    fn rows(&self, case: &str, r: (f64, f64), w3: (f64, f64), report: &mut Report) {
        let rows = [
            self.first[0].near(format!("{case}: first pause of R"), "us", r.0, r.1),
            self.first[1].near(format!("{case}: first pause of W3"), "us", w3.0, w3.1),
            self.hop.near(format!("{case}: from hop to hop"), "us", 21.56, 0.25),
        ];
        report.rows.extend(rows.into_iter().map(|row| row.from(Source::Oracle)));
    }
}

/// The host takes nothing in, and nobody watches.
fn stalled(report: &mut Report, setup: &Setup, progress: &Progress) -> Result<()> {
    let (mut spread, mut rest) = (Spread::default(), Worst::default());
    for seed in setup.seeds(5) {
        progress.step(format_args!("stalled, seed {seed}"));
        let (net, flows) = build(Senders::Even, false, seed)?;
        net.net.set_receiver("R", Some(slow(PATH, 0)))?;
        let before = flows[1].received()?;
        if seed == setup.seed {
            let mut timeline = Timeline::default();
            let soon = STALL + Duration::from_micros(250);
            timeline.run(net.sim(), &flows, soon, Duration::from_micros(5))?;
            let title = "R stalls: what A and B still get";
            report.plots.push(over_time("stalled", title, &timeline, Scale::Micros));
        }
        until(net.sim(), setup.pick(STALL + SOON, STALL + AFTER));
        flows.iter().try_for_each(Flow::check)?;
        spread.add(&net)?;
        let bits = (flows[1].received()? - before) as f64 * 8.0;
        rest.add(bits / AFTER.as_nanos() as f64);
        if seed == setup.seed {
            let mut drawing = drawing();
            net.show_pauses(&mut drawing);
            report.drawing = Some(drawing);
        }
    }
    spread.rows("stalled", (40.9, 0.5), (82.6, 1.0), report);
    // Nothing moves after a fifth of a millisecond: what came until then is what came in 10 ms.
    let row = rest.within("stalled: B, over 10 ms", "Gbit/s", 0.159, 0.1);
    report.rows.push(row.from(Source::Oracle));
    let expected = [(40.9, 0.5), (82.6, 1.0), (104.1, 1.25), (125.7, 1.5)];
    let bars = HOPS.iter().zip(&spread.first).zip(expected);
    let bars = bars.map(|(((of, to), worst), (us, off))| {
        Bar::new(format!("{of} asks {to}"), worst.first()).expected(us, off / us)
    });
    report.plots.push(Plot {
        id: "first-pause".into(),
        title: "From the stall to the first pause".into(),
        what: What::Bars(Bars { unit: "us", bars: bars.collect() }),
    });
    Ok(())
}

/// The same, with a watchdog at the last switch.
fn guarded(report: &mut Report, setup: &Setup, progress: &Progress) -> Result<()> {
    let (mut waited, mut flushed, mut back) =
        (Worst::default(), Worst::default(), Worst::default());
    let mut fired = 0;
    for seed in setup.seeds(5) {
        progress.step(format_args!("stalled, watchdog, seed {seed}"));
        let (net, flows) = build(Senders::Even, true, seed)?;
        net.net.set_receiver("R", Some(slow(PATH, 0)))?;
        let mut timeline = Timeline::default();
        let end = STALL + setup.pick(Duration::from_micros(2300), millis(5));
        timeline.run(net.sim(), &flows, end, Duration::from_micros(100))?;
        if !setup.short {
            let mark = Mark::new(net.sim(), &flows)?;
            until(net.sim(), STALL + AFTER);
            back.add(mark.rates(net.sim(), &flows)?[1]);
        }
        flows.iter().try_for_each(Flow::check)?;
        let seen = net.net.counters("W3", "R")?;
        let asked = first_pause(&net, "R", "W3", STALL)?;
        let at = seen.watchdog_at.map_or(f64::NAN, |at| at.as_nanos() as f64 / 1e3);
        let since = (STALL + DETECT).as_nanos() as f64 / 1e3;
        waited.add(at - since - asked);
        flushed.add(seen.watchdog_flushed as f64);
        fired += seen.watchdog_fired;
        if seed == setup.seed {
            let title = "R stalls, and W3 has a watchdog of 2 ms";
            report.plots.push(over_time("watchdog", title, &timeline, Scale::Millis));
        }
    }
    let seeds = setup.seeds(5).count() as u64;
    report.rows.push(Row::count("watchdog: queues given up, one a seed", "", fired, seeds));
    // The pause takes its own time on the line, and that of the cable.
    let travel = f64::from(PFC_FRAME + GAP) * 8.0 / (LINE as f64 / 1e6) + 1.0;
    let metric = "watchdog: gives up 2 ms and so long after R's first pause";
    report.rows.push(waited.near(metric, "us", travel, 0.25));
    let row = flushed.near("watchdog: frames in the queue", "frames", 97.0, 3.0);
    report.rows.push(row.from(Source::Oracle));
    if !setup.short {
        let metric = "watchdog: B, 5 to 10 ms after the stall";
        report.rows.push(back.within(metric, "Gbit/s", PATH.full() / 2.0, 0.01));
    }
    Ok(())
}

/// The host takes a tenth of the line in.
fn slowed(report: &mut Report, setup: &Setup, progress: &Progress) -> Result<()> {
    let (mut a, mut ratio) = (Worst::default(), Worst::default());
    let mut fired = 0;
    for seed in setup.seeds(5) {
        progress.step(format_args!("R at 4 Gbit/s, seed {seed}"));
        let (net, flows) = build(Senders::Even, true, seed)?;
        let mark = Slow::begin(&net, &flows)?;
        let mut timeline = Timeline::default();
        if seed == setup.seed {
            timeline.run(net.sim(), &flows, STALL + millis(3), Duration::from_micros(50))?;
        }
        until(net.sim(), STALL + AFTER);
        let (arrived, b) = mark.rates(&net, &flows)?;
        a.add(arrived);
        ratio.add(b / arrived);
        fired += net.net.counters("W3", "R")?.watchdog_fired;
        if seed == setup.seed {
            let title = "R takes in 4 Gbit/s: what A and B get";
            report.plots.push(over_time("slow", title, &timeline, Scale::Millis));
            let bars = HOPS.iter().zip(&mark.asked).map(|((of, to), port)| {
                Ok(Bar::new(format!("{to}, asked by {of}"), port.paused(&net)?))
            });
            report.plots.push(Plot {
                id: "paused".into(),
                title: "R takes in 4 Gbit/s: part of the time for which each port is paused".into(),
                what: What::Bars(Bars { unit: "%", bars: bars.collect::<Result<_>>()? }),
            });
        }
    }
    let row = a.within("R at 4 Gbit/s: A, arrived at R, over 10 ms", "Gbit/s", 3.78, 0.01);
    report.rows.push(row.from(Source::Oracle));
    let row = ratio.between("R at 4 Gbit/s: B/A", "", 1.0, 1.05);
    report.rows.push(row.from(Source::Oracle));
    report.rows.push(Row::count("R at 4 Gbit/s: queues given up", "", fired, 0));
    Ok(())
}

/// What was there when the host became slow.
#[derive(Debug)]
struct Slow {
    flows: Mark,
    /// Packets count when they come to its port: its buffer takes in what it does not yet.
    here: PortMark,
    /// The ports that will be asked to pause.
    asked: Vec<PortMark>,
}

impl Slow {
    fn begin(net: &Net, flows: &[Flow]) -> Result<Self> {
        net.net.set_receiver("R", Some(slow(PATH, 4_000_000_000)))?;
        let asked = HOPS.iter().map(|(of, to)| PortMark::new(net, to, of));
        Ok(Self {
            flows: Mark::new(net.sim(), flows)?,
            here: PortMark::new(net, "R", "W3")?,
            asked: asked.collect::<Result<_>>()?,
        })
    }

    /// Of A and B since then.
    fn rates(&self, net: &Net, flows: &[Flow]) -> Result<(f64, f64)> {
        let b = self.flows.rates(net.sim(), flows)?[1];
        Ok((self.here.arrived(net, PATH, DATA)?, b))
    }
}

/// The host takes in as much as A has anyway.
fn halved(report: &mut Report, setup: &Setup, progress: &Progress) -> Result<()> {
    let mut rates = [Worst::default(), Worst::default()];
    let mut beyond = 0;
    for seed in setup.seeds(5) {
        progress.step(format_args!("R at 20 Gbit/s, seed {seed}"));
        let (net, flows) = build(Senders::Even, false, seed)?;
        net.net.set_receiver("R", Some(slow(PATH, LINE / 2)))?;
        let mark = Mark::new(net.sim(), &flows)?;
        until(net.sim(), setup.pick(millis(3), STALL + AFTER));
        for (worst, rate) in rates.iter_mut().zip(mark.rates(net.sim(), &flows)?) {
            worst.add(rate);
        }
        for (of, to) in HOPS {
            beyond += net.net.counters(of, to)?.pauses_sent();
        }
    }
    for (flow, rate) in ["A", "B"].iter().zip(&rates) {
        let metric = format!("R at 20 Gbit/s: {flow}");
        report.rows.push(rate.within(metric, "Gbit/s", PATH.full() / 2.0, 0.005));
    }
    let row = Row::count("R at 20 Gbit/s: pauses of R and between switches", "frames", beyond, 0);
    report.rows.push(row.from(Source::Oracle));
    Ok(())
}

/// The same once more, with senders at the full line.
fn in_bursts(report: &mut Report, setup: &Setup, progress: &Progress) -> Result<()> {
    let (mut spread, mut flushed, mut ratio) =
        (Spread::default(), Worst::default(), Worst::default());
    for seed in setup.seeds(5) {
        progress.step(format_args!("senders at the full line, stalled, seed {seed}"));
        let (net, flows) = build(Senders::Bursts, true, seed)?;
        net.net.set_receiver("R", Some(slow(PATH, 0)))?;
        until(net.sim(), STALL + Duration::from_micros(2300));
        flows.iter().try_for_each(Flow::check)?;
        spread.add(&net)?;
        flushed.add(net.net.counters("W3", "R")?.watchdog_flushed as f64);

        progress.step(format_args!("senders at the full line, R at 4 Gbit/s, seed {seed}"));
        let (net, flows) = build(Senders::Bursts, false, seed)?;
        let mark = Slow::begin(&net, &flows)?;
        until(net.sim(), STALL + AFTER);
        let (arrived, b) = mark.rates(&net, &flows)?;
        ratio.add(b / arrived);
    }
    spread.rows("senders at the full line", (39.2, 8.3), (83.5, 8.3), report);
    let metric = "senders at the full line, watchdog: frames in the queue";
    report.rows.push(flushed.near(metric, "frames", 103.0, 3.0).from(Source::Oracle));
    let metric = "senders at the full line, R at 4 Gbit/s: B/A";
    report.rows.push(ratio.near(metric, "", 1.058, 0.015).from(Source::Oracle));
    Ok(())
}

/// What the time axis of a plot counts.
#[derive(Clone, Copy, Debug)]
enum Scale {
    /// Microseconds since the stall.
    Micros,
    /// Milliseconds since the beginning.
    Millis,
}

/// Rates of A and B.
fn over_time(id: &str, title: &str, timeline: &Timeline, scale: Scale) -> Plot {
    let (label, unit) = match scale {
        Scale::Micros => ("time since the stall", "us"),
        Scale::Millis => ("time", "ms"),
    };
    let at = |ms: f64| match scale {
        Scale::Micros => (ms - STALL.as_secs_f64() * 1e3) * 1e3,
        Scale::Millis => ms,
    };
    let series = ["A, to R", "B, to X"].iter().enumerate().map(|(i, name)| {
        let points = timeline.of(i).into_iter().map(|(ms, rate)| (at(ms), rate));
        Series::new(*name, points.collect())
    });
    Plot {
        id: id.into(),
        title: title.into(),
        what: What::Lines(Lines {
            x: Axis::new(label, unit),
            y: Axis::new("payload", "Gbit/s"),
            series: series.collect(),
            levels: vec![Level::new(PATH.full() / 2.0, "half a line")],
            window: None,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_passes_and_repeats() {
        super::super::watch::tests::short_passes_and_repeats(&E7);
    }
}
