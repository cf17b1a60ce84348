//! E6: when DCQCN swings instead of coming to rest: the number of flows, and how late they are told.

use softroce::prelude::Duration;
use softroce::sim::{Action, Class, Rule};
use softroce::wire::Opcode;

use super::fluid::{Span, together};
use super::net::Path;
use super::plot::{Axis, Level, Lines, Plot, Series, Style, What};
use super::report::{Report, Row, Source};
use super::star::{Star, alike, deviation, drawing};
use super::theory::{Params, critical_delay};
use super::traffic::Mark;
use super::worst::{Worst, millis};
use super::{About, Experiment, Progress, Result, Setup};

/// See the module.
#[derive(Debug)]
pub(crate) struct E6;

const ABOUT: About = About {
    id: "e6",
    name: "stability",
    title: "Late feedback",
    question: "How late may a mark reach the sender before the queue swings between empty and full?",
    full: "critical delays within 0.5 us of an eigenvalue solver; the fluid model rests below them (deviation under \
           1 KB) and swings above, as far and with as much lost as the table says. Packets, path MTU 1024, 5 seeds, 75 to \
           150 ms: 10 flows told after 85 us use 92 to 96 % and deviate by over 65 KB, after 4 us over 99.5 % and under \
           45 KB; 2 flows after 85 us over 99 %; 32 flows 87 to 91 %",
    short: "the models as in the full variant. Packets, 1 seed, 10 flows, 15 to 40 ms: after 85 us 88.5 to 94.5 %, \
            71 ± 8 KB; after 4 us over 99.5 %, 42 ± 9 KB",
};

/// Flows, and the critical delay in us by an eigenvalue solver.
const CRITICAL: [(u32, f64); 7] =
    [(2, 88.9), (4, 74.0), (8, 65.2), (10, 66.3), (16, 79.2), (32, 140.5), (64, 285.8)];
/// Flows, delay in us, standard deviation of the queue in KB, and utilisation in percent, by the same model in another
/// language.
const SWINGS: [(u32, f64, f64, f64); 5] = [
    (2, 85.0, 0.0, 100.0),
    (10, 4.0, 0.0, 100.0),
    (4, 85.0, 34.04, 99.94),
    (10, 85.0, 79.43, 94.72),
    (32, 85.0, 120.29, 89.52),
];

impl Experiment for E6 {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn run(&self, setup: &Setup, progress: &mut Progress) -> Result<Report> {
        let mut report = Report::new(&ABOUT, setup);
        progress.expect((CRITICAL.len() + SWINGS.len()) as u64 + setup.pick(2, 20));
        report.drawing = Some(drawing(&["H0", "H1", "H2", "H3"]));
        let k = Params::paper(1024);
        for (n, expected) in CRITICAL {
            progress.step(format_args!("critical delay, {n} flows"));
            let measured = critical_delay(f64::from(n), &k).unwrap_or(f64::INFINITY) * 1e6;
            let metric = format!("critical delay, {n} flows");
            report.rows.push(Row::near(metric, "us", measured, expected, 0.5).from(Source::Oracle));
        }
        let mut swings = Vec::new();
        for (n, us, sd, util) in SWINGS {
            progress.step(format_args!("fluid model, {n} flows, {us} us"));
            let late = Params { delay: us * 1e-6, ..k };
            let run = together(n, &late, Span::seconds(0.3));
            let tail = run.tail(0.3);
            let case = format!("fluid model, {n} flows, {us} us");
            let metric = format!("{case}: deviation of the queue");
            let row = if sd < 1.0 {
                Row::at_most(metric, "KB", tail.sd / 1e3, 1.0)
            } else {
                Row::near(metric, "KB", tail.sd / 1e3, sd, 1.0).from(Source::Oracle)
            };
            report.rows.push(row);
            let metric = format!("{case}: utilisation");
            report
                .rows
                .push(Row::near(metric, "%", tail.util * 100.0, util, 0.2).from(Source::Oracle));
            if us > 80.0 && n <= 10 {
                let last = run.time.iter().zip(&run.queue).skip_while(|&(&t, _)| t < 0.28);
                let points = last.map(|(t, q)| ((t - 0.28) * 1e3, q / 1e3)).collect();
                swings.push(Series::new(format!("{n} flows"), points));
            }
        }
        let shown = packets(&mut report, setup, progress)?;
        report.plots = vec![delays(&k), queues(swings), measured(shown)];
        report.lesson = vec![
            "A control loop that reacts to the past swings if the past is too old. For DCQCN the worst number of flows is \
             neither small nor large: with 8 to 12 flows the queue is on the ramp, each flow is slow enough to hear seldom, \
             and feedback later than 65 us makes it swing. With 2 flows, or 64 on a ramp that goes on, more is allowed."
                .into(),
            "What swings is not only the queue: while it is empty the line idles. Ten flows told after 85 us lose 5 % of the \
             line; told after 4 us, nothing."
                .into(),
            "85 us is not far away: a millisecond-scale queue anywhere on the way back, a slow notification point, or a CNP \
             that waits behind data. CNPs belong into a priority of their own."
                .into(),
        ];
        report.cite(
            Source::Published,
            "4 us: 2, 10 and 64 flows are stable; 85 us: 2 and 64 settle, 10 diverges into full-scale oscillation (\"ECN or \
             Delay\", CoNEXT 2016, figures 3 to 5). Its phase margins, by a Taylor expansion, are pessimistic between 25 and \
             50 us; the worst numbers of flows agree.",
        );
        Ok(report)
    }
}

/// N flows of packets, told after so many microseconds.
#[derive(Debug)]
struct Outcome {
    /// (ms, bytes)
    queue: Vec<(f64, f64)>,
    util: f64,
}

/// From mark to cut on this network, in ns, without further delay: the marked packet to the receiver, and the CNP back
/// over two cables.
const ALREADY: u64 = 3_300;

fn told_late(n: u32, us: u64, seed: u64, window: (u64, u64)) -> Result<Outcome> {
    let path = Path::MTU_1024;
    let star = Star::new(path, path.marking(), seed, &alike(path, n, seed, true)?)?;
    let later = Duration::from_nanos((us * 1000).saturating_sub(ALREADY));
    star.net.sim().rule(Rule::new(Class::Opcode(Opcode::CNP.as_u8()), Action::Delay(later)))?;
    star.until(millis(window.0));
    let mark = Mark::new(star.net.sim(), &star.flows)?;
    let queue = star.queue_until(millis(window.1), Duration::from_micros(5))?;
    let rates = mark.rates(star.net.sim(), &star.flows)?;
    Ok(Outcome { queue, util: 100.0 * rates.iter().sum::<f64>() / path.full() })
}

/// What a case must come to: least and most utilisation in percent, and least and most deviation in KB.
type Bounds = [(f64, f64); 2];

fn packets(report: &mut Report, setup: &Setup, progress: &Progress) -> Result<Vec<Series>> {
    let any = (0.0, f64::INFINITY);
    let full: &[(u32, u64, Bounds)] = &[
        (10, 85, [(92.0, 96.0), (65.0, 200.0)]),
        (10, 4, [(99.5, 100.1), (0.0, 45.0)]),
        (2, 85, [(99.0, 100.1), any]),
        (32, 85, [(87.0, 91.0), any]),
    ];
    let short: &[(u32, u64, Bounds)] =
        &[(10, 85, [(88.5, 94.5), (63.0, 79.0)]), (10, 4, [(99.5, 100.1), (33.0, 51.0)])];
    let window = setup.pick((15, 40), (75, 150));
    let mut shown = Vec::new();
    for &(n, us, [util, sd]) in setup.pick(short, full) {
        let (mut used, mut swing) = (Worst::default(), Worst::default());
        let case = format!("packets, {n} flows, {us} us");
        for seed in setup.seeds(5) {
            progress.step(format_args!("{case}, seed {seed}"));
            let outcome = told_late(n, us, seed, window)?;
            used.add(outcome.util);
            swing.add(deviation(&outcome.queue) / 1e3);
            if seed == setup.seed && n == 10 {
                let kb = outcome.queue.into_iter().map(|(ms, bytes)| (ms, bytes / 1e3)).collect();
                shown.push(Series::new(format!("{n} flows, {us} us"), kb));
            }
        }
        let row = used.between(format!("{case}: utilisation"), "%", util.0, util.1);
        report.rows.push(row.from(Source::Oracle));
        if sd.1.is_finite() {
            let row = swing.between(format!("{case}: deviation of the queue"), "KB", sd.0, sd.1);
            report.rows.push(row.from(Source::Oracle));
        }
    }
    Ok(shown)
}

fn measured(series: Vec<Series>) -> Plot {
    Plot {
        id: "packets".into(),
        title: "Packets: the queue of ten flows, told soon and late".into(),
        what: What::Lines(Lines {
            x: Axis::new("time", "ms"),
            y: Axis::new("queue", "KB"),
            series,
            levels: vec![Level::new(200.0, "Kmax")],
            window: None,
        }),
    }
}

fn delays(k: &Params) -> Plot {
    let of = |mtu: u32| {
        let k = Params { packet: super::sizes::Packet::of(mtu), ..*k };
        let point = |n: u32| Some((f64::from(n), critical_delay(f64::from(n), &k)? * 1e6));
        let flows = [1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64];
        Series::new(format!("path MTU {mtu}"), flows.into_iter().filter_map(point).collect())
    };
    Plot {
        id: "delay".into(),
        title: "Critical delay by number of flows: above the line the queue swings".into(),
        what: What::Lines(Lines {
            x: Axis::new("flows", "").log(),
            y: Axis::new("delay from mark to cut", "us").range(0.0, 400.0),
            series: vec![of(1024), of(4096).style(Style::Dashed)],
            levels: vec![Level::new(85.0, "85 us"), Level::new(4.0, "4 us")],
            window: None,
        }),
    }
}

fn queues(series: Vec<Series>) -> Plot {
    Plot {
        id: "swing".into(),
        title: "Fluid model: queue with 85 us of delay, long after the start".into(),
        what: What::Lines(Lines {
            x: Axis::new("time", "ms"),
            y: Axis::new("queue", "KB"),
            series,
            levels: vec![Level::new(200.0, "Kmax")],
            window: None,
        }),
    }
}
