//! E3: the victim: a flow that does not go where the congestion is, and is slowed by it all the same.

use softroce::sim::Topology;

use super::drawing::Drawing;
use super::net::{DATA_CLASS, LINE, Net, Path, cable, host};
use super::plot::{Bar, Bars, Plot, What};
use super::report::{Report, Row, Source};
use super::traffic::{Jitter, Mark, Spec, paper, until};
use super::worst::{Worst, millis};
use super::{About, Experiment, Progress, Result, Setup};
use crate::output::count;

/// See the module.
#[derive(Debug)]
pub(crate) struct E3;

const ABOUT: About = About {
    id: "e3",
    name: "victim",
    title: "The victim flow",
    question: "A flow shares one cable with two that go to a congested receiver elsewhere: how much has it left?",
    full: "5 seeds, path MTU 1024. Pauses alone, 5 to 20 ms: the victim within 3 % of the rate of its neighbours, the sum \
           at the receiver within 0.1 % of its line, pauses on 13, 15, 17 ports. DCQCN, 40 to 80 ms: the victim at least \
           18.5 and 23.5 Gbit/s, no pause",
    short: "1 seed. Pauses alone, path MTU 1024, 1 to 5 ms: the victim within 3 %. DCQCN, path MTU 4096, 10 to 30 ms: at \
            least 13.5 Gbit/s, no pause",
};

/// What one run came to.
#[derive(Debug)]
struct Outcome {
    victim: f64,
    /// Of all flows to the congested receiver.
    sum: f64,
    pauses: u64,
    /// Ports that have sent pauses.
    ports: usize,
    drawing: Drawing,
}

/// Senders to R, and the switches of their ways.
fn ways(extra: usize) -> Vec<(&'static str, Vec<&'static str>)> {
    let mut ways = vec![
        ("H11", vec!["T1", "L1", "S1", "L3", "T4"]),
        ("H12", vec!["T1", "L1", "S1", "L4", "T4"]),
        ("H13", vec!["T1", "L2", "S1", "L3", "T4"]),
        ("H14", vec!["T1", "L2", "S1", "L4", "T4"]),
        ("H31", vec!["T3", "L3", "T4"]),
        ("H32", vec!["T3", "L4", "T4"]),
    ];
    ways.truncate(4 + extra);
    ways
}

fn run(path: Path, extra: usize, dcqcn: bool, seed: u64, window: (u64, u64)) -> Result<Outcome> {
    let config = if dcqcn { path.marking() } else { path.pausing(100_000) };
    let mut t = Topology::new();
    for switch in ["S1", "S2", "L1", "L2", "L3", "L4", "T1", "T2", "T3", "T4"] {
        t.switch(switch, config.clone());
    }
    for (a, b) in CABLES {
        t.cable(a, b, cable());
    }
    t.host("R", "T4", host()).host("VS", "T1", host()).host("VR", "T2", host());
    let senders = ways(extra);
    for (sender, way) in &senders {
        t.host(*sender, way[0], host());
    }
    let net = Net::build(&t, seed)?;
    let mut jitter = Jitter::new(seed);
    let victim = [("VS", "VR", vec!["T1", "L1", "T2"])];
    let all = senders.into_iter().map(|(s, way)| (s, "R", way)).chain(victim);
    let mut flows = Vec::new();
    for (from, to, way) in all {
        net.pin(from, to, &way)?;
        let cc = if dcqcn { Some(paper(LINE)?) } else { None };
        let start = path.start(&mut jitter, 7);
        let spec = Spec::new(path.mtu, start).traffic_class(DATA_CLASS).cc(cc);
        flows.push(net.flow(from, to, &spec)?);
    }
    until(net.sim(), millis(window.0));
    let mark = Mark::new(net.sim(), &flows)?;
    until(net.sim(), millis(window.1));
    let mut rates = mark.rates(net.sim(), &flows)?;
    let victim = rates.pop().unwrap_or(f64::NAN);
    let mut drawing = drawing(extra);
    net.show_pauses(&mut drawing);
    let (sum, pauses, ports) = (rates.iter().sum(), net.pauses(), net.pausing().len());
    Ok(Outcome { victim, sum, pauses, ports, drawing })
}

/// Cables between switches.
const CABLES: [(&str, &str); 16] = [
    ("T1", "L1"),
    ("T1", "L2"),
    ("T2", "L1"),
    ("T2", "L2"),
    ("T3", "L3"),
    ("T3", "L4"),
    ("T4", "L3"),
    ("T4", "L4"),
    ("L1", "S1"),
    ("L1", "S2"),
    ("L2", "S1"),
    ("L2", "S2"),
    ("L3", "S1"),
    ("L3", "S2"),
    ("L4", "S1"),
    ("L4", "S2"),
];

fn drawing(extra: usize) -> Drawing {
    let mut drawing = Drawing::new("all cables 40 Gbit/s, 1 us")
        .switches(0, &["S1", "S2"])
        .switches(1, &["L1", "L2", "L3", "L4"])
        .switches(2, &["T1", "T2", "T3", "T4"])
        .hosts(3, &["H11", "H12", "H13", "H14", "VS", "VR"]);
    let extras = ["H31", "H32"];
    drawing = drawing.hosts(3, &extras[..extra]).hosts(3, &["R"]);
    for (a, b) in CABLES {
        drawing = drawing.cable(a, b);
    }
    for (sender, way) in ways(extra) {
        drawing = drawing.cable(sender, way[0]);
    }
    drawing
        .cable("VS", "T1")
        .cable("VR", "T2")
        .cable("R", "T4")
        .bottleneck("R", "T4")
        .tag("R", "receiver")
        .tag("VS", "victim")
}

impl Experiment for E3 {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn run(&self, setup: &Setup, progress: &mut Progress) -> Result<Report> {
        let mut report = Report::new(&ABOUT, setup);
        let seeds = setup.seeds(5).count() as u64;
        progress.expect(seeds * setup.pick(4, 5));
        let mut bars = Vec::new();
        for (extra, ports) in [(0, 13), (1, 15), (2, 17)] {
            let drawing = pauses_alone(&mut report, setup, progress, (extra, ports), &mut bars)?;
            if extra == 2 {
                report.drawing = Some(drawing);
            }
        }
        let cases = setup.pick(&[(2, 13.5)][..], &[(0, 18.5), (2, 23.5)]);
        for &(extra, least) in cases {
            with_dcqcn(&mut report, setup, progress, (extra, least), &mut bars)?;
        }
        report.plots = vec![Plot {
            id: "victim".into(),
            title: "Payload of the victim".into(),
            what: What::Bars(Bars { unit: "Gbit/s", bars }),
        }];
        report.lesson = vec![
            "The victim's way is free but for one cable, which it shares with two flows to the congested receiver. If every \
             flow had a queue of its own, it would have half of that cable, or more. But pauses stop cables: the switch in \
             front of the receiver pauses its neighbours, these theirs, and the whole tree of cables behind the receiver \
             stands still together. Once its cable is paused, the victim moves as fast as the flows beside it."
                .into(),
            "So it is slowed by senders that it never meets: each one that is added on the other side of the network, under \
             T3, takes a further part. With n senders to the receiver, some of them behind the same two leaves, the victim has \
             what its neighbours have: the receiver's line over 4 + 2x for x of them."
                .into(),
            "Congestion control that acts before pauses do removes the coupling: with DCQCN the same network sends no pause, \
             and the victim has what its neighbours leave of the cable."
                .into(),
        ];
        report.cite(
            Source::PublishedFromMemory,
            "On hardware (Zhu et al., SIGCOMM 2015, figure 4) the victim had a median of 10 Gbit/s without extra senders and \
             4.5 with two, by pauses alone.",
        );
        Ok(report)
    }
}

fn pauses_alone(
    report: &mut Report,
    setup: &Setup,
    progress: &Progress,
    (extra, ports): (usize, u64),
    bars: &mut Vec<Bar>,
) -> Result<Drawing> {
    let path = Path::MTU_1024;
    let (mut victim, mut sum) = (Worst::default(), Worst::default());
    let mut seen = None;
    let case = format!("pauses alone, {} under T3", count(extra as u64, "sender"));
    let mut tree = Worst::default();
    for seed in setup.seeds(5) {
        progress.step(format_args!("{case}, seed {seed}"));
        let outcome = run(path, extra, false, seed, setup.pick((1, 5), (5, 20)))?;
        victim.add(outcome.victim);
        sum.add(outcome.sum);
        #[expect(clippy::cast_precision_loss, reason = "of ports")]
        tree.add(outcome.ports as f64);
        seen.get_or_insert(outcome);
    }
    #[expect(clippy::cast_precision_loss, reason = "of senders")]
    let expected = path.full() / (4 + 2 * extra) as f64;
    report.rows.push(victim.within(format!("{case}: victim"), "Gbit/s", expected, 0.03));
    if !setup.short {
        report.rows.push(sum.within(format!("{case}: sum at R"), "Gbit/s", path.full(), 0.001));
        #[expect(clippy::cast_precision_loss, reason = "of ports")]
        report.rows.push(tree.near(format!("{case}: ports that paused"), "", ports as f64, 0.0));
    }
    bars.push(Bar::new(case, victim.first()).expected(expected, 0.03));
    Ok(seen.map_or_else(Drawing::default, |outcome| outcome.drawing))
}

fn with_dcqcn(
    report: &mut Report,
    setup: &Setup,
    progress: &Progress,
    (extra, least): (usize, f64),
    bars: &mut Vec<Bar>,
) -> Result<()> {
    let (path, window) = setup.pick((Path::MTU_4096, (10, 30)), (Path::MTU_1024, (40, 80)));
    let (mut victim, mut pauses) = (Worst::default(), 0);
    let case = format!("DCQCN, {} under T3", count(extra as u64, "sender"));
    for seed in setup.seeds(5) {
        progress.step(format_args!("{case}, seed {seed}"));
        let outcome = run(path, extra, true, seed, window)?;
        victim.add(outcome.victim);
        pauses += outcome.pauses;
    }
    let row = victim.at_least(format!("{case}: victim"), "Gbit/s", least);
    report.rows.push(row.from(Source::Oracle));
    report
        .rows
        .push(Row::count(format!("{case}: pauses"), "frames", pauses, 0).from(Source::Oracle));
    bars.push(Bar::new(case, victim.first()).group(2));
    Ok(())
}
