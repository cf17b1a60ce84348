//! E1: whether flows under DCQCN come to equal rates, and how soon.

use softroce::cc::Dcqcn;
use softroce::prelude::Duration;
use softroce::sim::{Marking, SwitchConfig};

use super::fluid::{Span, Start, apart};
use super::net::{LINE, Path};
use super::plot::{Axis, Level, Lines, Plot, Series, What};
use super::report::{Report, Row, Source};
use super::star::{Sender, Star, alike, drawing, name};
use super::theory::Params;
use super::traffic::{Jitter, Mark, Timeline, dcqcn, jain, paper};
use super::worst::{Worst, millis};
use super::{About, Experiment, Progress, Result, Setup};

/// See the module.
#[derive(Debug)]
pub(crate) struct E1;

const ABOUT: About = About {
    id: "e1",
    name: "convergence",
    title: "Coming to equal rates",
    question: "One flow has the line, another has an eighth of it: does DCQCN make them equal, and with which constants \
               does it not?",
    full: "path MTU 1024. Two flows from 40 and 5 Gbit/s, 10 seeds: within 25 % of equal shares for 50 ms on end after \
           60 ms, and for 98 % of the time then, Jain's index at least 0.985 over 180 to 300 ms, payload at least 36.66 Gbit/s; the strawman at most 0.7. \
           A third flow, and 4, 8, 16 to 1, 5 seeds each: as the oracle",
    short: "path MTU 4096, 1 seed. Two flows, 40 to 100 ms: Jain's index at least 0.97, payload at least 38.8 Gbit/s; the \
            strawman, 30 to 60 ms: at most 0.7",
};

const ONE_MS: Duration = Duration::from_millis(1);

/// So many milliseconds on end near equal rates are no accident.
const SETTLED: usize = 50;

/// Constants of DCQCN, and the marks that belong to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Constants {
    Paper,
    Strawman,
}

impl Constants {
    fn control(self) -> Result<Dcqcn> {
        match self {
            Self::Paper => paper(LINE),
            Self::Strawman => dcqcn("strawman", LINE),
        }
    }

    fn switch(self, path: Path) -> SwitchConfig {
        match self {
            Self::Paper => path.marking(),
            Self::Strawman => SwitchConfig { ecn: Some(Marking::step(40_000)), ..path.marking() },
        }
    }
}

/// Two flows that begin at 40 and 5 Gbit/s.
#[derive(Debug)]
struct Pair {
    line: Timeline,
    /// Gbit/s of payload in the window that counts.
    rates: Vec<f64>,
}

fn pair(path: Path, constants: Constants, seed: u64, window: (u64, u64)) -> Result<Pair> {
    let mut jitter = Jitter::new(seed);
    let mut senders = Vec::new();
    for rate in [LINE, LINE / 8] {
        let cc = Some(constants.control()?.starting_at(rate));
        senders.push(Sender { start: path.start(&mut jitter, 2), cc });
    }
    let star = Star::new(path, constants.switch(path), seed, &senders)?;
    let (sim, mut line) = (star.net.sim(), Timeline::default());
    line.run(sim, &star.flows, millis(window.0), ONE_MS)?;
    let mark = Mark::new(sim, &star.flows)?;
    line.run(sim, &star.flows, millis(window.1), ONE_MS)?;
    let rates = mark.rates(sim, &star.flows)?;
    Ok(Pair { line, rates })
}

impl Timeline {
    /// Whether, in each 5 ms, the mean of some flow is more than a quarter away from `fair`; with their ends, in ms.
    fn apart(&self, fair: f64) -> Vec<(f64, bool)> {
        let is_apart = |windows: &[(f64, Vec<f64>)]| {
            let flows = windows.first().map_or(0, |w| w.1.len());
            (0..flows).any(|f| {
                let mean = windows.iter().map(|w| w.1[f]).sum::<f64>() / 5.0;
                (mean - fair).abs() > 0.25 * fair
            })
        };
        // To the end of the last millisecond.
        let end = |windows: &[(f64, Vec<f64>)]| windows.last().map_or(0.0, |w| w.0 + 0.5);
        self.rates.windows(5).map(|w| (end(w), is_apart(w))).collect()
    }

    /// When, in ms, the flows were last more than a quarter from `fair` before [`SETTLED`] without that, and the share
    /// of the time in which they were so again later.
    #[expect(clippy::cast_precision_loss, reason = "of milliseconds")]
    fn settled(&self, fair: f64) -> (f64, f64) {
        let apart = self.apart(fair);
        let (mut last, mut from) = (0.0, 0);
        for (i, &(end, is_apart)) in apart.iter().enumerate() {
            if i - from >= SETTLED {
                break;
            }
            if is_apart {
                (last, from) = (end, i + 1);
            }
        }
        let later = &apart[from..];
        let again = later.iter().filter(|w| w.1).count();
        (last, again as f64 / later.len().max(1) as f64)
    }
}

impl Experiment for E1 {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn run(&self, setup: &Setup, progress: &mut Progress) -> Result<Report> {
        let mut report = Report::new(&ABOUT, setup);
        report.drawing = Some(drawing(&["H0", "H1"]).tag("H0", "40 Gbit/s").tag("H1", "5 Gbit/s"));
        progress.expect(setup.pick(2, 10 + 1 + 5 + 15));
        fluid(&mut report);
        pairs(&mut report, setup, progress)?;
        if !setup.short {
            third(&mut report, setup, progress)?;
            for n in [4, 8, 16] {
                incast(&mut report, setup, progress, n)?;
            }
        }
        report.lesson = vec![
            "Every cut takes the same part of a rate, so it takes more from the faster flow; every step of recovery adds the \
             same to both. That is what makes flows equal, if they recover often enough between cuts. It takes some 30 ms \
             here, thousands of round trips: DCQCN is gentle, and short flows are over before they are fair."
                .into(),
            "Equal is meant on average. Marks are drawn by lot, and rates wander: in a run of 300 ms two flows are a fifth apart every \
             now and then, and in one of some two dozen seeds they are once a quarter off again for some milliseconds."
                .into(),
            "The strawman is the same algorithm with the constants that QCN and DCTCP would suggest: a recovery timer of \
             1.5 ms, a byte counter of 150 KB, and marks that begin all at once at 40 KB. Its byte counter helps the fast flow, \
             which counts faster, and the slow one stays slow for ever. The two that matter are the timer, which must be \
             short, and marks that grow with the queue."
                .into(),
        ];
        report.cite(
            Source::Published,
            "The fluid model and an ns-3 model of \"ECN or Delay\" (CoNEXT 2016): a third flow falls to about 2.5 Gbit/s within \
             milliseconds, passes 10 after 20 to 30 ms, and is at 13 after 60 ms.",
        );
        report.cite(
            Source::PublishedFromMemory,
            "Zhu et al., SIGCOMM 2015: the constants of QCN and DCTCP do not converge, the deployed ones do; K to 1 incast \
             moves more than 39 Gbit/s in total.",
        );
        Ok(report)
    }
}

/// How soon the model makes two flows equal.
fn fluid(report: &mut Report) {
    let k = Params::paper(1024);
    let span = Span { step: 2e-6, ..Span::seconds(0.15) };
    let joins = [Start::LINE_RATE, Start { at: 0.05, rate: 1.0 }];
    let run = apart(&joins, &k, span);
    for (part, ms) in [(0.25, 33.1), (0.1, 49.3), (0.05, 59.3)] {
        let measured = run.last_apart(0.050_1, part) * 1e3;
        let metric = format!("fluid model, a second flow joins: within {} % after", part * 100.0);
        report.rows.push(Row::near(metric, "ms", measured, ms, 0.5).from(Source::Oracle));
    }
}

fn pairs(report: &mut Report, setup: &Setup, progress: &Progress) -> Result<()> {
    let path = setup.pick(Path::MTU_4096, Path::MTU_1024);
    let window = setup.pick((40, 100), (180, 300));
    let [mut fair, mut sum, mut apart, mut again] = [(); 4].map(|()| Worst::default());
    let mut shown = Timeline::default();
    for seed in setup.seeds(10) {
        progress.step(format_args!("two flows, seed {seed}"));
        let pair = pair(path, Constants::Paper, seed, window)?;
        fair.add(jain(&pair.rates));
        sum.add(pair.rates.iter().sum());
        let (last, share) = pair.line.settled(path.full() / 2.0);
        apart.add(last);
        again.add(100.0 * share);
        if seed == setup.seed {
            shown = pair.line;
        }
    }
    let range = format!("{} to {} ms", window.0, window.1);
    let metric = format!("two flows, {range}: Jain's index");
    report.rows.push(fair.at_least(metric, "", setup.pick(0.97, 0.985)).from(Source::Oracle));
    let metric = format!("two flows, {range}: payload");
    report.rows.push(sum.at_least(metric, "Gbit/s", setup.pick(38.8, 36.66)).from(Source::Oracle));
    if !setup.short {
        let row =
            apart.at_most("two flows: come within 25 % of equal (5 ms mean) after", "ms", 60.0);
        report.rows.push(row.from(Source::Oracle));
        let row = again.at_most("two flows: time not within 25 % after that", "%", 2.0);
        report.rows.push(row.from(Source::Oracle));
    }
    report.plots.push(rates(
        "paper",
        "Deployed constants: from 40 and 5 Gbit/s",
        &shown,
        path,
        2,
        window,
    ));

    progress.step("strawman");
    let window = setup.pick((30, 60), (180, 300));
    let straw = pair(path, Constants::Strawman, setup.seed, window)?;
    let metric = format!("strawman, {} to {} ms: Jain's index", window.0, window.1);
    report.rows.push(Row::at_most(metric, "", jain(&straw.rates), 0.7).from(Source::Oracle));
    report.plots.push(rates(
        "strawman",
        "Strawman constants: the same start",
        &straw.line,
        path,
        2,
        window,
    ));
    Ok(())
}

/// Rates of all flows over time.
fn rates(
    id: &str,
    title: &str,
    line: &Timeline,
    path: Path,
    flows: usize,
    window: (u64, u64),
) -> Plot {
    let series = (0..flows).map(|f| Series::new(name(f), line.of(f))).collect();
    #[expect(clippy::cast_precision_loss, reason = "of flows and milliseconds")]
    let (fair, window) = (path.full() / flows as f64, (window.0 as f64, window.1 as f64));
    Plot {
        id: id.into(),
        title: title.into(),
        what: What::Lines(Lines {
            x: Axis::new("time", "ms"),
            y: Axis::new("payload", "Gbit/s").range(0.0, 40.0),
            series,
            levels: vec![Level::new(fair, "equal")],
            window: Some(window),
        }),
    }
}

/// A third flow joins two.
fn third(report: &mut Report, setup: &Setup, progress: &Progress) -> Result<()> {
    let path = Path::MTU_1024;
    let windows = [(1, 6), (15, 25), (55, 115)];
    let mut newcomer = vec![Worst::default(); windows.len()];
    let mut shown = Timeline::default();
    for seed in setup.seeds(5) {
        progress.step(format_args!("a third flow, seed {seed}"));
        let mut senders = alike(path, 3, seed, true)?;
        senders[2].start += millis(100);
        let star = Star::new(path, path.marking(), seed, &senders)?;
        let mut line = Timeline::default();
        line.run(star.net.sim(), &star.flows, millis(220), ONE_MS)?;
        for (worst, (from, to)) in newcomer.iter_mut().zip(windows) {
            let (from, to) = (100.0 + f64::from(from), 100.0 + f64::from(to));
            let inside = line.of(2).into_iter().filter(|p| p.0 > from && p.0 < to);
            let inside: Vec<(f64, f64)> = inside.collect();
            worst.add(super::star::mean(&inside));
        }
        if seed == setup.seed {
            shown = line;
        }
    }
    let expected = [(2.8, 0.9), (8.1, 1.6), (12.5, 3.0)];
    for ((worst, (from, to)), (rate, off)) in newcomer.iter().zip(windows).zip(expected) {
        let metric = format!("a third flow, {from} to {to} ms after it joined");
        report.rows.push(worst.near(metric, "Gbit/s", rate, off).from(Source::Oracle));
    }
    let plot = rates("third", "A third flow joins two at 100 ms", &shown, path, 3, (155, 215));
    report.plots.push(plot);
    Ok(())
}

/// N flows at once.
fn incast(report: &mut Report, setup: &Setup, progress: &Progress, n: u32) -> Result<()> {
    let path = Path::MTU_1024;
    let (mut fair, mut util) = (Worst::default(), Worst::default());
    for seed in setup.seeds(5) {
        progress.step(format_args!("{n} flows, seed {seed}"));
        let star = Star::new(path, path.marking(), seed, &alike(path, n, seed, true)?)?;
        star.until(millis(100));
        let rates = star.rates_until(millis(200))?;
        fair.add(jain(&rates));
        util.add(100.0 * rates.iter().sum::<f64>() / path.full());
    }
    let metric = format!("{n} flows at once, 100 to 200 ms: Jain's index");
    report.rows.push(fair.at_least(metric, "", 0.99).from(Source::Oracle));
    let metric = format!("{n} flows at once, 100 to 200 ms: utilisation");
    report.rows.push(util.at_least(metric, "%", 99.5).from(Source::Oracle));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each seed has starts and marks of its own; what is asked holds for all of them.
    #[test]
    fn seeds_differ_within_what_is_tolerated() {
        let mut all: Vec<Vec<f64>> = Vec::new();
        for seed in 1..=10 {
            let pair = pair(Path::MTU_4096, Constants::Paper, seed, (40, 100)).unwrap();
            let (fair, sum) = (jain(&pair.rates), pair.rates.iter().sum::<f64>());
            assert!(fair >= 0.97 && sum >= 38.8, "seed {seed}: {fair} {sum}");
            assert!(!all.contains(&pair.rates), "seed {seed} is as another");
            all.push(pair.rates);
        }
    }

    #[test]
    fn settling_is_found_and_what_comes_later_is_not_it() {
        let mut line = Timeline::default();
        for ms in 0..200 {
            let at = f64::from(ms) + 0.5;
            let off = if ms < 10 || (100..110).contains(&ms) { 6.0 } else { 0.0 };
            line.rates.push((at, vec![20.0 + off, 20.0 - off]));
        }
        // A mean over 5 ms leaves a quarter of 20 when one window of 6 is not in it.
        let (last, again) = line.settled(20.0);
        assert!((last - 10.0).abs() < 1e-9, "{last}");
        assert!((again - 6.0 / 190.0).abs() < 1e-9, "{again}");
        let (last, again) = Timeline::default().settled(20.0);
        assert!(last.abs() < 1e-9 && again.abs() < 1e-9);
        line.rates.truncate(40);
        line.rates.iter_mut().for_each(|w| w.1 = vec![26.0, 14.0]);
        assert!((line.settled(20.0).0 - 40.0).abs() < 1e-9, "never");
    }
}
