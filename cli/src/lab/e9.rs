//! E9: head-of-line blocking: in a queue that all share, the fast get what the slow get.

use softroce::sim::{HostConfig, Receiver, Scheduler, SwitchConfig, Topology};

use super::drawing::Drawing;
use super::net::{DATA_CLASS, LINE, Net, Path, cable, host};
use super::plot::{Axis, Bar, Bars, Level, Lines, Plot, Series, What};
use super::report::{Report, Row, Source};
use super::traffic::{Jitter, Mark, Spec, Timeline, paper, until};
use super::watch::slow;
use super::worst::{Worst, millis};
use super::{About, Experiment, Progress, Result, Setup};

/// See the module.
#[derive(Debug)]
pub(crate) struct E9;

const ABOUT: About = About {
    id: "e9",
    name: "hol",
    title: "Head-of-line blocking",
    question: "B's packets go to an idle host, A's to a busy one, by the same line: what does B get?",
    full: "5 seeds, path MTU 1024, 5 to 20 ms. Three other senders to A's host: B/A 1 +-0.02, A 9.17 +-3 % at a threshold of \
           400 KB, 8.9 +-5 % at 100 KB; B in its own priority: A + B 37.03 +-0.5 %, B at least 27.5. A's host at \
           4 Gbit/s: A 3.70 +-1 %, B/A 1 +-0.03; B in its own priority 33.33 +-1 %. DCQCN, 30 to 60 ms: B at least 25.5, no pause",
    short: "1 seed, 2 to 5 ms, the same rules without the threshold of 100 KB; DCQCN: path MTU 4096, 10 to 30 ms, B at \
            least 26, no pause",
};

/// Traffic class of B where it has a priority of its own: DSCP 18, priority 2.
const OTHER_CLASS: u8 = 18 << 2;
/// Who else sends to A's host.
const LOCALS: [&str; 3] = ["C1", "C2", "C3"];

/// What one run is about.
#[derive(Clone, Copy, Debug)]
struct Case {
    path: Path,
    /// Threshold of each port; `None`: dynamic, with marks, and DCQCN at the hosts.
    xoff: Option<usize>,
    /// Three more senders; else the host is slow.
    crowded: bool,
    /// B has a priority of its own.
    own: bool,
    /// Milliseconds that count.
    window: (u64, u64),
}

/// What it came to.
#[derive(Debug)]
struct Outcome {
    a: f64,
    b: f64,
    pauses: u64,
    /// From the beginning, if it was asked for.
    timeline: Timeline,
    drawing: Drawing,
}

impl Case {
    fn run(&self, seed: u64, watch: bool) -> Result<Outcome> {
        let Self { path, xoff, crowded, own, window } = *self;
        let mut config = match xoff {
            Some(xoff) => path.pausing(xoff),
            None => path.marking(),
        };
        // Packet by packet, if there are two priorities.
        config.scheduler = Scheduler { quantum: [path.packet.frame; 8], ..Scheduler::default() };
        let receiver = (!crowded).then(|| slow(path, 4_000_000_000));
        let net = network(&config, receiver, seed)?;
        let mut jitter = Jitter::new(seed);
        let mut flows = Vec::new();
        let locals = LOCALS.iter().filter(|_| crowded).map(|c| (*c, "R", DATA_CLASS));
        let class = if own { OTHER_CLASS } else { DATA_CLASS };
        for (from, to, class) in
            [("A", "R", DATA_CLASS), ("B", "X", class)].into_iter().chain(locals)
        {
            let cc = if xoff.is_none() { Some(paper(LINE)?) } else { None };
            let start = path.start(&mut jitter, 4);
            let spec = Spec::new(path.mtu, start).traffic_class(class).cc(cc);
            flows.push(net.flow(from, to, &spec)?);
        }
        let mut timeline = Timeline::default();
        if watch {
            timeline.run(net.sim(), &flows, millis(window.0), millis(1) / 20)?;
        }
        until(net.sim(), millis(window.0));
        let mark = Mark::new(net.sim(), &flows)?;
        until(net.sim(), millis(window.1));
        let rates = mark.rates(net.sim(), &flows)?;
        let mut drawing = drawing(crowded);
        net.show_pauses(&mut drawing);
        Ok(Outcome { a: rates[0], b: rates[1], pauses: net.pauses(), timeline, drawing })
    }
}

fn network(config: &SwitchConfig, receiver: Option<Receiver>, seed: u64) -> Result<Net> {
    let mut t = Topology::new();
    t.switch("W0", config.clone()).switch("W1", config.clone()).cable("W0", "W1", cable());
    for (name, on) in [("A", "W0"), ("B", "W0"), ("X", "W1")] {
        t.host(name, on, host());
    }
    t.host("R", "W1", HostConfig { receiver, ..host() });
    for name in LOCALS {
        t.host(name, "W1", host());
    }
    Net::build(&t, seed)
}

fn drawing(crowded: bool) -> Drawing {
    let mut drawing = Drawing::new("all cables 40 Gbit/s, 1 us")
        .hosts(0, &["A", "B"])
        .switches(1, &["W0"])
        .switches(2, &["W1"])
        .hosts(3, &["X", "R"])
        .cable("A", "W0")
        .cable("B", "W0")
        .cable("W0", "W1")
        .cable("X", "W1")
        .cable("R", "W1")
        .bottleneck("R", "W1")
        .tag("A", "sends to R")
        .tag("B", "sends to X")
        .tag("X", "idle otherwise");
    if crowded {
        drawing = drawing.hosts(3, &LOCALS);
        for name in LOCALS {
            drawing = drawing.cable(name, "W1").tag(name, "sends to R");
        }
    }
    drawing
}

/// Values of A and B over seeds.
#[derive(Debug, Default)]
struct Pair {
    a: Worst,
    b: Worst,
    ratio: Worst,
    sum: Worst,
}

impl Pair {
    fn bars(&self, case: &str, group: usize, bars: &mut Vec<Bar>) {
        bars.push(Bar::new(format!("A, {case}"), self.a.first()).group(group));
        bars.push(Bar::new(format!("B, {case}"), self.b.first()).group(group));
    }
}

/// One case over all seeds, and the first outcome.
fn all_seeds(
    case: &Case,
    name: &str,
    setup: &Setup,
    progress: &Progress,
) -> Result<(Pair, Option<Outcome>, u64)> {
    let (mut pair, mut first, mut pauses) = (Pair::default(), None, 0);
    for seed in setup.seeds(5) {
        progress.step(format_args!("{name}, seed {seed}"));
        let outcome = case.run(seed, seed == setup.seed)?;
        pair.a.add(outcome.a);
        pair.b.add(outcome.b);
        pair.ratio.add(outcome.b / outcome.a);
        pair.sum.add(outcome.a + outcome.b);
        pauses += outcome.pauses;
        first.get_or_insert(outcome);
    }
    Ok((pair, first, pauses))
}

impl Experiment for E9 {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn run(&self, setup: &Setup, progress: &mut Progress) -> Result<Report> {
        let mut report = Report::new(&ABOUT, setup);
        progress.expect(setup.seeds(5).count() as u64 * setup.pick(5, 7));
        let mut bars = Vec::new();
        crowded(&mut report, setup, progress, &mut bars)?;
        slowed(&mut report, setup, progress, &mut bars)?;
        controlled(&mut report, setup, progress, &mut bars)?;
        report.plots.push(Plot {
            id: "rates".into(),
            title: "Payload of A and B".into(),
            what: What::Bars(Bars { unit: "Gbit/s", bars }),
        });
        report.lesson = vec![
            "A's packets wait for R, B's for nobody. But they wait in one line: when W1 asks W0 to pause, it is for all of the \
             priority, and what is at the head of the queue is as likely A's as B's. So B gets exactly what A gets, here a \
             quarter of a line, though the line to X is empty. How fast A's host is makes no difference to this: of a host that \
             takes in a tenth of its line, B gets a tenth."
                .into(),
            "There are two ways out. A priority of its own takes B out of A's queue: B has all that A leaves. But there are \
             eight priorities, and more than eight flows. Congestion control slows A down at its source, so that its packets do \
             not wait where B must pass: no pause, and B has the rest of the line."
                .into(),
        ];
        report.note(
            "A comes to its quarter from below: the line fills again at half of its rate after each pause. The larger the \
             threshold, the less that costs (1 % at 400 KB, 4 % at 100 KB). B/A does not feel it.",
        );
        report.note(
            "A and B run in step, because their cables are equal to the picosecond: W0 pauses both at once, and their packets \
             come in turns. If one is ahead by less than a packet for long, W0 pauses one after the other, packets come in bursts, \
             and with a slow host B gets some 5 % more than A. Real cables are like that.",
        );
        Ok(report)
    }
}

/// Four senders to one host, pauses alone.
fn crowded(
    report: &mut Report,
    setup: &Setup,
    progress: &Progress,
    bars: &mut Vec<Bar>,
) -> Result<()> {
    let window = setup.pick((2, 5), (5, 20));
    let case =
        Case { path: Path::MTU_1024, xoff: Some(400_000), crowded: true, own: false, window };
    let (same, first, _) = all_seeds(&case, "crowded host", setup, progress)?;
    let name = "crowded host, 400 KB, same priority";
    report
        .rows
        .push(same.a.within(format!("{name}: A"), "Gbit/s", 9.17, 0.03).from(Source::Oracle));
    report.rows.push(same.ratio.near(format!("{name}: B/A"), "", 1.0, 0.02));
    same.bars("same priority", 0, bars);
    if !setup.short {
        let case = Case { xoff: Some(100_000), ..case };
        let (pair, _, _) = all_seeds(&case, "crowded host, 100 KB", setup, progress)?;
        let name = "crowded host, 100 KB, same priority";
        let row = pair.a.within(format!("{name}: A"), "Gbit/s", 8.9, 0.05);
        report.rows.push(row.from(Source::Oracle));
        report.rows.push(pair.ratio.near(format!("{name}: B/A"), "", 1.0, 0.02));
    }
    let case = Case { own: true, ..case };
    let (own, with, _) = all_seeds(&case, "crowded host, own priority", setup, progress)?;
    let name = "crowded host, 400 KB, own priority";
    let full = case.path.full();
    report.rows.push(own.sum.within(format!("{name}: A + B"), "Gbit/s", full, 0.005));
    let row = own.b.at_least(format!("{name}: B"), "Gbit/s", 27.5);
    report.rows.push(row.from(Source::Oracle));
    own.bars("own priority", 1, bars);
    if let (Some(first), Some(with)) = (first, with) {
        report.plots.push(Plot {
            id: "priority".into(),
            title: "B with A in one queue, and in its own".into(),
            what: What::Lines(Lines {
                x: Axis::new("time", "ms"),
                y: Axis::new("payload", "Gbit/s"),
                series: vec![
                    Series::new("A", first.timeline.of(0)),
                    Series::new("B, same priority", first.timeline.of(1)),
                    Series::new("B, own priority", with.timeline.of(1)),
                ],
                levels: vec![
                    Level::new(full / 4.0, "a quarter"),
                    Level::new(full * 0.75, "three quarters"),
                ],
                window: None,
            }),
        });
        report.drawing = Some(first.drawing);
    }
    Ok(())
}

/// A's host takes in a tenth of its line.
fn slowed(
    report: &mut Report,
    setup: &Setup,
    progress: &Progress,
    bars: &mut Vec<Bar>,
) -> Result<()> {
    let window = setup.pick((2, 5), (5, 20));
    let path = Path::MTU_1024;
    let case = Case { path, xoff: Some(100_000), crowded: false, own: false, window };
    let tenth = path.full() / 10.0;
    let (same, _, _) = all_seeds(&case, "slow host", setup, progress)?;
    report.rows.push(same.a.within("slow host, same priority: A", "Gbit/s", tenth, 0.01));
    report.rows.push(same.ratio.near("slow host, same priority: B/A", "", 1.0, 0.03));
    same.bars("slow host, same priority", 2, bars);
    let case = Case { own: true, ..case };
    let (own, _, _) = all_seeds(&case, "slow host, own priority", setup, progress)?;
    report.rows.push(own.b.within("slow host, own priority: B", "Gbit/s", 9.0 * tenth, 0.01));
    own.bars("slow host, own priority", 3, bars);
    Ok(())
}

/// Four senders to one host, with DCQCN.
fn controlled(
    report: &mut Report,
    setup: &Setup,
    progress: &Progress,
    bars: &mut Vec<Bar>,
) -> Result<()> {
    let (path, window) = setup.pick((Path::MTU_4096, (10, 30)), (Path::MTU_1024, (30, 60)));
    let case = Case { path, xoff: None, crowded: true, own: false, window };
    let (pair, _, pauses) = all_seeds(&case, "DCQCN", setup, progress)?;
    let row = pair.b.at_least("crowded host, DCQCN: B", "Gbit/s", setup.pick(26.0, 25.5));
    report.rows.push(row.from(Source::Oracle));
    let row = Row::count("crowded host, DCQCN: pauses", "frames", pauses, 0);
    report.rows.push(row.from(Source::Oracle));
    pair.bars("same priority, DCQCN", 4, bars);
    Ok(())
}
