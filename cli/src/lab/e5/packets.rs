//! The queue of real packets, beside the models.

use softroce::prelude::Duration;
use softroce::sim::{Marking, SwitchConfig};

use super::super::net::Path;
use super::super::plot::{Axis, Level, Lines, Plot, Series, What};
use super::super::report::{Report, Source};
use super::super::star::{Star, alike, mean};
use super::super::theory::{Params, fixed_point};
use super::super::worst::{Worst, millis};
use super::super::{Progress, Result, Setup};

/// Time between two looks at the queue.
const LOOK: Duration = Duration::from_micros(5);

/// What one run came to.
#[derive(Debug)]
struct Outcome {
    /// (ms, bytes), over all of it.
    queue: Vec<(f64, f64)>,
    /// Mean of the window, bytes.
    mean: f64,
    /// CNPs per second and flow in the window.
    cnps: f64,
    /// Part of the line that is used in the window.
    util: f64,
    /// The longest queue that there was, bytes.
    peak: f64,
}

/// What is run.
#[derive(Clone, Copy, Debug)]
struct Case {
    path: Path,
    flows: u32,
    marking: Marking,
    /// Milliseconds.
    window: (u64, u64),
}

#[expect(clippy::cast_precision_loss, reason = "counts and bytes of queues")]
fn packets(case: &Case, seed: u64) -> Result<Outcome> {
    let Case { path, flows, marking, window } = *case;
    let config = SwitchConfig { ecn: Some(marking), ..path.marking() };
    let star = Star::new(path, config, seed, &alike(path, flows, seed, true)?)?;
    let mut queue = star.queue_until(millis(window.0), LOOK)?;
    let cnps = star.cnps()?;
    let before = queue.len();
    let mark = super::super::traffic::Mark::new(star.net.sim(), &star.flows)?;
    queue.extend(star.queue_until(millis(window.1), LOOK)?);
    let rates = mark.rates(star.net.sim(), &star.flows)?;
    let seconds = (window.1 - window.0) as f64 / 1e3;
    let peak = star.port()?.queue_peak.into_iter().max().unwrap_or(0) as f64;
    Ok(Outcome {
        mean: mean(&queue[before..]),
        cnps: (star.cnps()? - cnps) as f64 / f64::from(flows) / seconds,
        util: rates.iter().sum::<f64>() / path.full(),
        peak,
        queue,
    })
}

/// The ramp of the paper.
const PAPER: Marking = Marking::red(5_000, 200_000, 0.01);

/// Runs them; for 1024 bytes, the mean queues in KB by number of flows.
pub(super) fn run(
    report: &mut Report,
    setup: &Setup,
    progress: &Progress,
) -> Result<Vec<(f64, f64)>> {
    if setup.short { short(report, setup, progress) } else { full(report, setup, progress) }
}

fn short(report: &mut Report, setup: &Setup, progress: &Progress) -> Result<Vec<(f64, f64)>> {
    let (mut measured, mut shown) = (Vec::new(), Vec::new());
    for (path, flows, window, expected, rel) in [
        (Path::MTU_1024, 8, (10, 25), 100.0, 0.15),
        (Path::MTU_1024, 10, (10, 25), 124.0, 0.15),
        (Path::MTU_4096, 2, (20, 60), 64.5, 0.4),
        (Path::MTU_4096, 4, (20, 60), 144.0, 0.2),
    ] {
        let mtu = path.mtu.bytes();
        progress.step(format_args!("{flows} flows, path MTU {mtu}"));
        let case = Case { path, flows, marking: PAPER, window };
        let outcome = packets(&case, setup.seed)?;
        let mut worst = Worst::default();
        worst.add(outcome.mean / 1e3);
        let metric =
            format!("path MTU {mtu}, {flows} flows, {} to {} ms: mean queue", window.0, window.1);
        report.rows.push(worst.within(metric, "KB", expected, rel).from(Source::Oracle));
        if mtu == 1024 {
            measured.push((f64::from(flows), outcome.mean / 1e3));
            shown.push(line(flows, outcome));
        }
    }
    report.plots.extend(plots(shown));
    Ok(measured)
}

/// The queue over time, in KB.
fn line(flows: u32, outcome: Outcome) -> Series {
    let points = outcome.queue.into_iter().map(|(ms, bytes)| (ms, bytes / 1e3)).collect();
    Series::new(format!("{flows} flows"), points)
}

/// The same queues over time, and how they are distributed.
fn plots(shown: Vec<Series>) -> [Plot; 2] {
    let end = shown.iter().flat_map(|s| s.points.last()).map(|p| p.0).fold(0.0, f64::max);
    let late = |s: &Series| {
        let values = s.points.iter().filter(|p| p.0 > end * 0.4).map(|p| p.1);
        Series::cdf(s.name.clone(), values.collect())
    };
    let spread = shown.iter().map(late).collect();
    let over_time = Plot {
        id: "packets".into(),
        title: "Queue of packets, path MTU 1024 (the peak at the start is cut off)".into(),
        what: What::Lines(Lines {
            x: Axis::new("time", "ms"),
            y: Axis::new("queue", "KB").range(0.0, 300.0),
            series: shown.into_iter().map(super::cut).collect(),
            levels: vec![Level::new(200.0, "Kmax"), Level::new(5.0, "Kmin")],
            window: None,
        }),
    };
    let distribution = Plot {
        id: "distribution".into(),
        title: "How long the queue is, after the start".into(),
        what: What::Lines(Lines {
            x: Axis::new("queue", "KB"),
            y: Axis::new("part of the time", "").range(0.0, 1.0),
            series: spread,
            levels: Vec::new(),
            window: None,
        }),
    };
    [over_time, distribution]
}

/// Flows, mean queue 20 to 120 ms (KB), and first peak (KB) of the oracle.
const FLOWS: [(u32, f64, f64); 4] =
    [(2, 24.4, 222.0), (4, 55.1, 515.0), (8, 120.4, 1399.0), (10, 148.3, 1926.0)];
/// Ramps and mean queues of the second half (KB) with 2 and 8 flows, by the oracle.
const RAMPS: [(&str, Marking, [f64; 2]); 5] = [
    ("Kmin 20 KB", Marking::red(20_000, 200_000, 0.01), [37.3, 129.7]),
    ("Kmax 400 KB", Marking::red(5_000, 400_000, 0.01), [48.0, 249.6]),
    ("Pmax 10 %", Marking::red(5_000, 200_000, 0.1), [5.8, 17.3]),
    ("100 to 400 KB, 20 %", Marking::red(100_000, 400_000, 0.2), [95.5, 109.0]),
    ("step at 40 KB", Marking::step(40_000), [28.4, 30.5]),
];

fn full(report: &mut Report, setup: &Setup, progress: &Progress) -> Result<Vec<(f64, f64)>> {
    let path = Path::MTU_1024;
    let k = Params::paper(1024);
    let (mut measured, mut shown) = (Vec::new(), Vec::new());
    for flows in [2, 4, 8, 10, 16, 32] {
        let mut of = [(); 4].map(|()| Worst::default());
        for seed in setup.seeds(5) {
            progress.step(format_args!("{flows} flows, seed {seed}"));
            let outcome = packets(&Case { path, flows, marking: PAPER, window: (20, 120) }, seed)?;
            let values =
                [outcome.mean / 1e3, outcome.cnps, outcome.util * 100.0, outcome.peak / 1e3];
            for (worst, value) in of.iter_mut().zip(values) {
                worst.add(value);
            }
            if seed == setup.seed {
                measured.push((f64::from(flows), outcome.mean / 1e3));
                if flows <= 10 {
                    shown.push(line(flows, outcome));
                }
            }
        }
        let [queue, cnps, util, peak] = of;
        let root = fixed_point(f64::from(flows), &k);
        let case = format!("{flows} flows, 20 to 120 ms");
        match FLOWS.iter().find(|f| f.0 == flows) {
            Some(&(_, expected, first)) => {
                let row = queue.within(format!("{case}: mean queue"), "KB", expected, 0.15);
                report.rows.push(row.from(Source::Oracle));
                let q = root.queue / 1e3;
                let metric =
                    format!("{case}: mean queue, by the root {}", super::super::report::number(q));
                report.rows.push(queue.between(metric, "KB", 0.9 * q, 1.4 * q));
                let row = peak.within(format!("{flows} flows: first peak"), "KB", first, 0.15);
                report.rows.push(row.from(Source::Oracle));
            }
            None => {
                let metric = format!("{case}: mean queue, beyond the ramp");
                report.rows.push(queue.between(metric, "KB", 180.5, 204.0));
            }
        }
        let metric = format!("{case}: CNPs per second and flow");
        report.rows.push(cnps.between(metric, "1/s", 1.02 * root.cnps, 1.2 * root.cnps));
        report.rows.push(util.at_least(format!("{case}: utilisation"), "%", 99.5));
    }
    for (name, marking, expected) in RAMPS {
        for (flows, expected) in [2, 8].into_iter().zip(expected) {
            progress.step(format_args!("{name}, {flows} flows"));
            let mut queue = Worst::default();
            let case = Case { path, flows, marking, window: (60, 120) };
            queue.add(packets(&case, setup.seed)?.mean / 1e3);
            let metric = format!("{name}, {flows} flows, 60 to 120 ms: mean queue");
            report.rows.push(queue.within(metric, "KB", expected, 0.15).from(Source::Oracle));
        }
    }
    report.plots.extend(plots(shown));
    Ok(measured)
}
