//! E2: the parking lot: with pauses alone, each port of a switch has an equal share, however many flows come by it.

use softroce::sim::Topology;

use super::drawing::Drawing;
use super::net::{DATA_CLASS, Net, Path, cable, host};
use super::plot::{Bar, Bars, Plot, What};
use super::report::{Report, Row, Source};
use super::traffic::{Jitter, Mark, Spec, jain, paper, until};
use super::worst::{Worst, millis};
use super::{About, Experiment, Progress, Result, Setup};

/// See the module.
#[derive(Debug)]
pub(crate) struct E2;

const ABOUT: About = About {
    id: "e2",
    name: "parking-lot",
    title: "The parking lot",
    question: "Four senders share the line to one receiver, and only pauses slow them: who gets how much?",
    full: "5 seeds, path MTU 1024. Pauses alone, 5 to 20 ms: each rate within 1 % of its port's share, the sum within \
           0.1 %. DCQCN, 60 to 120 ms: Jain's index at least 0.985, sum at least 36.8 Gbit/s, no pause at all",
    short: "1 seed. Pauses alone, path MTU 1024, 1 to 5 ms: rates within 2 %, the local one and the sums of uplinks within \
            0.5 %. DCQCN, path MTU 4096, 20 to 60 ms: Jain's index at least 0.98, sum at least 39, no pause",
};

/// By which uplink of T4 the three remote senders come.
const ONE: [&str; 3] = ["L3", "L3", "L3"];
const TWO: [&str; 3] = ["L3", "L3", "L4"];
const SENDERS: [&str; 4] = ["H1", "H2", "H3", "H4"];

/// What one run came to.
#[derive(Debug)]
struct Outcome {
    rates: Vec<f64>,
    pauses: u64,
    drawing: Drawing,
}

fn run(
    path: Path,
    uplinks: [&str; 3],
    dcqcn: bool,
    seed: u64,
    window: (u64, u64),
) -> Result<Outcome> {
    let config = if dcqcn { path.marking() } else { path.pausing(100_000) };
    let mut t = Topology::new();
    for switch in ["T4", "L3", "L4"] {
        t.switch(switch, config.clone());
    }
    t.cable("L3", "T4", cable()).cable("L4", "T4", cable());
    t.host("R", "T4", host()).host("H4", "T4", host());
    for (sender, on) in SENDERS.iter().zip(uplinks) {
        t.host(*sender, on, host());
    }
    let net = Net::build(&t, seed)?;
    let mut jitter = Jitter::new(seed);
    let mut flows = Vec::new();
    for sender in SENDERS {
        let cc = if dcqcn { Some(paper(super::net::LINE)?) } else { None };
        let start = path.start(&mut jitter, 4);
        let spec = Spec::new(path.mtu, start).traffic_class(DATA_CLASS).cc(cc);
        flows.push(net.flow(sender, "R", &spec)?);
    }
    until(net.sim(), millis(window.0));
    let mark = Mark::new(net.sim(), &flows)?;
    until(net.sim(), millis(window.1));
    let rates = mark.rates(net.sim(), &flows)?;
    let mut drawing = drawing(uplinks);
    net.show_pauses(&mut drawing);
    Ok(Outcome { rates, pauses: net.pauses(), drawing })
}

fn drawing(uplinks: [&str; 3]) -> Drawing {
    let mut drawing = Drawing::new("all cables 40 Gbit/s, 1 us")
        .switches(1, &["L3", "L4"])
        .switches(2, &["T4"])
        .hosts(0, &["H1", "H2", "H3"])
        .hosts(3, &["R", "H4"])
        .cable("L3", "T4")
        .cable("L4", "T4")
        .cable("R", "T4")
        .cable("H4", "T4")
        .bottleneck("R", "T4")
        .tag("R", "receiver")
        .tag("H4", "local");
    for (sender, on) in SENDERS.iter().zip(uplinks) {
        drawing = drawing.cable(sender, on);
    }
    drawing
}

impl Experiment for E2 {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn run(&self, setup: &Setup, progress: &mut Progress) -> Result<Report> {
        let mut report = Report::new(&ABOUT, setup);
        let seeds = setup.seeds(5);
        progress.expect(seeds.clone().count() as u64 * setup.pick(3, 4));
        let mut bars = Vec::new();
        for (group, (case, uplinks)) in
            [("one uplink", ONE), ("two uplinks", TWO)].into_iter().enumerate()
        {
            let drawing =
                pauses_alone(&mut report, setup, progress, case, uplinks, group, &mut bars)?;
            if group == 0 {
                report.drawing = Some(drawing);
            }
        }
        with_dcqcn(&mut report, setup, progress, &mut bars)?;
        report.plots = vec![Plot {
            id: "rates".into(),
            title: "Payload of each sender, by how the remote ones come in".into(),
            what: What::Bars(Bars { unit: "Gbit/s", bars }),
        }];
        report.lesson = vec![
            "A switch that runs full pauses ports, not flows. Each of its ports is let in again when its own share of the \
             buffer is empty enough, so the line to the receiver is divided among the ports that feed it: a third each if \
             there are three, half each if there are two. H4 has a port to itself. H1, H2 and H3 share theirs. Which share \
             a sender gets depends on where it is connected and by which cables its neighbours happen to come."
                .into(),
            "Congestion control gives shares to flows instead. Under DCQCN marks are as likely for one flow's packets as for \
             another's, the four rates come together, and no pause is needed."
                .into(),
        ];
        report.cite(
            Source::PublishedFromMemory,
            "On hardware (Zhu et al., SIGCOMM 2015, figure 3) the local sender had up to 20 Gbit/s, its least more than what \
             the three others got; with DCQCN all four had about 10.",
        );
        Ok(report)
    }
}

/// One way of coming in, without congestion control.
fn pauses_alone(
    report: &mut Report,
    setup: &Setup,
    progress: &Progress,
    case: &str,
    uplinks: [&str; 3],
    group: usize,
    bars: &mut Vec<Bar>,
) -> Result<Drawing> {
    let path = Path::MTU_1024;
    let window = setup.pick((1, 5), (5, 20));
    // The line is shared by the ports that are fed, and each port's share by its flows.
    let on = |uplink: &str| uplinks.iter().filter(|u| **u == uplink).count();
    let ports = 1 + ["L3", "L4"].iter().filter(|u| on(u) > 0).count();
    #[expect(clippy::cast_precision_loss, reason = "of ports and flows")]
    let share = |flows: usize| path.full() / ports as f64 / flows as f64;
    let expected: Vec<f64> = uplinks.iter().map(|u| share(on(u))).chain([share(1)]).collect();
    let mut rates = vec![Worst::default(); 4];
    let (mut l3, mut sum) = (Worst::default(), Worst::default());
    let mut seen = None;
    for seed in setup.seeds(5) {
        progress.step(format_args!("pauses alone, {case}, seed {seed}"));
        let outcome = run(path, uplinks, false, seed, window)?;
        for (worst, rate) in rates.iter_mut().zip(&outcome.rates) {
            worst.add(*rate);
        }
        let by_l3 = outcome.rates.iter().zip(uplinks).filter(|(_, u)| *u == "L3");
        l3.add(by_l3.map(|(rate, _)| rate).sum());
        sum.add(outcome.rates.iter().sum());
        seen.get_or_insert(outcome);
    }
    for (i, (sender, rate)) in SENDERS.iter().zip(&rates).enumerate() {
        let local = setup.pick(if i == 3 { 0.005 } else { 0.02 }, 0.01);
        let metric = format!("pauses alone, {case}: {sender}");
        report.rows.push(rate.within(metric, "Gbit/s", expected[i], local));
        let bar = Bar::new(format!("{sender}, {case}"), rate.first()).group(group);
        bars.push(bar.expected(expected[i], local));
    }
    let metric = format!("pauses alone, {case}: sum by L3");
    report.rows.push(l3.within(
        metric,
        "Gbit/s",
        path.full() / ports as f64,
        setup.pick(0.005, 0.01),
    ));
    let metric = format!("pauses alone, {case}: sum");
    report.rows.push(sum.within(metric, "Gbit/s", path.full(), setup.pick(0.005, 0.001)));
    Ok(seen.map_or_else(Drawing::default, |outcome| outcome.drawing))
}

fn with_dcqcn(
    report: &mut Report,
    setup: &Setup,
    progress: &Progress,
    bars: &mut Vec<Bar>,
) -> Result<()> {
    let cases =
        setup.pick(&[("one uplink", ONE)][..], &[("one uplink", ONE), ("two uplinks", TWO)]);
    let (path, window) = setup.pick((Path::MTU_4096, (20, 60)), (Path::MTU_1024, (60, 120)));
    for &(case, uplinks) in cases {
        let (mut fair, mut sum, mut pauses) = (Worst::default(), Worst::default(), 0);
        for seed in setup.seeds(5) {
            progress.step(format_args!("DCQCN, {case}, seed {seed}"));
            let outcome = run(path, uplinks, true, seed, window)?;
            fair.add(jain(&outcome.rates));
            sum.add(outcome.rates.iter().sum());
            pauses += outcome.pauses;
            if case == "one uplink" && seed == setup.seed {
                for (sender, rate) in SENDERS.iter().zip(&outcome.rates) {
                    bars.push(Bar::new(format!("{sender}, {case}, DCQCN"), *rate).group(2));
                }
            }
        }
        let least = setup.pick((0.98, 39.0), (0.985, 36.8));
        let row = fair.at_least(format!("DCQCN, {case}: Jain's index"), "", least.0);
        report.rows.push(row.from(Source::Oracle));
        let row = sum.at_least(format!("DCQCN, {case}: sum"), "Gbit/s", least.1);
        report.rows.push(row.from(Source::Oracle));
        report.rows.push(
            Row::count(format!("DCQCN, {case}: pauses"), "frames", pauses, 0).from(Source::Oracle),
        );
    }
    Ok(())
}
