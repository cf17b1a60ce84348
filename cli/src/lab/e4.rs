//! E4: marks before pauses: which settings of a switch let congestion control act first.

use softroce::sim::{Marking, SwitchConfig, Threshold};

use super::net::Path;
use super::plot::{Bar, Bars, Plot, What};
use super::report::{Report, Row, Source};
use super::star::{Star, alike, drawing};
use super::worst::{Worst, millis};
use super::{About, Experiment, Progress, Result, Setup};

/// See the module.
#[derive(Debug)]
pub(crate) struct E4;

const ABOUT: About = About {
    id: "e4",
    name: "ecn-before-pfc",
    title: "Marks before pauses",
    question: "N senders start at once at line rate: with which thresholds do marks slow them, and with which only pauses?",
    full: "path MTU 1024, 5 seeds, pauses in 10 to 20 ms: pauses alone 1884, 2740, 2740 within 5 % with 2, 8, 16 flows; \
           dynamic thresholds none, and the peak of the queue within 15 %; a fixed threshold at most 25 % and 12 % of pauses \
           alone, and 5; marks that begin above it, with 2 flows, exactly as many as without marks. Without pauses, 2 MB: \
           no drop with 8 flows, 1800 within 20 % with 16, all within 5 ms",
    short: "the same in 0 to 5 ms, 1 seed, for: pauses alone with 2 flows (940), misconfigured with 2, dynamic with 16, \
            no pauses with 8 and 16; a fixed threshold with 8 over 20 ms",
};

/// Settings of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setting {
    /// A fixed threshold, nothing is marked and nobody listens.
    PausesAlone,
    /// Marks, and a threshold of eight times what is free.
    Dynamic,
    /// Marks, and the same fixed threshold.
    Fixed,
    /// Marks that begin above what the threshold lets any queue become.
    Misconfigured,
    /// Marks, no pauses, 2 MB.
    NoPauses,
}

impl Setting {
    const fn name(self) -> &'static str {
        match self {
            Self::PausesAlone => "pauses alone",
            Self::Dynamic => "marks, dynamic threshold",
            Self::Fixed => "marks, fixed threshold",
            Self::Misconfigured => "marks from 120 KB, fixed threshold",
            Self::NoPauses => "marks, no pauses, 2 MB",
        }
    }

    fn switch(self, path: Path) -> SwitchConfig {
        let fixed = path.pausing(24_470);
        let marking = path.marking();
        match self {
            Self::PausesAlone => fixed,
            Self::Dynamic => marking,
            Self::Fixed => SwitchConfig { threshold: Threshold::Fixed(24_470), ..marking },
            Self::Misconfigured => {
                SwitchConfig { ecn: Some(Marking::red(120_000, 200_000, 0.01)), ..fixed }
            }
            Self::NoPauses => SwitchConfig { buffer: 2_000_000, headroom: 0, pfc: None, ..marking },
        }
    }
}

/// What one run came to.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    /// Pauses within the window.
    pauses: u64,
    drops: u64,
    /// After the first 5 ms.
    late_drops: u64,
    /// Longest queue, bytes.
    peak: f64,
}

#[expect(clippy::cast_precision_loss, reason = "bytes of a queue")]
fn run(setting: Setting, n: u32, seed: u64, window: (u64, u64)) -> Result<Outcome> {
    let path = Path::MTU_1024;
    let senders = alike(path, n, seed, setting != Setting::PausesAlone)?;
    let star = Star::new(path, setting.switch(path), seed, &senders)?;
    star.until(millis(window.0.min(5)));
    star.until(millis(window.0));
    let before = star.net.pauses();
    star.until(millis(window.1.min(window.0.max(5))));
    let early = star.net.drops();
    star.until(millis(window.1));
    star.flows.iter().try_for_each(super::traffic::Flow::check)?;
    let peak = star.port()?.queue_peak.into_iter().max().unwrap_or(0) as f64;
    let drops = star.net.drops();
    Ok(Outcome { pauses: star.net.pauses() - before, drops, late_drops: drops - early, peak })
}

/// Over the seeds.
#[derive(Debug, Default)]
struct Seeds {
    pauses: Worst,
    drops: Worst,
    late_drops: u64,
    peak: Worst,
    /// Of each seed.
    counts: Vec<u64>,
}

#[expect(clippy::cast_precision_loss, reason = "of counts")]
fn over_seeds(
    setup: &Setup,
    progress: &Progress,
    setting: Setting,
    n: u32,
    window: (u64, u64),
) -> Result<Seeds> {
    let mut all = Seeds::default();
    for seed in setup.seeds(5) {
        progress.step(format_args!("{}, {n} flows, seed {seed}", setting.name()));
        let outcome = run(setting, n, seed, window)?;
        all.pauses.add(outcome.pauses as f64);
        all.drops.add(outcome.drops as f64);
        all.late_drops += outcome.late_drops;
        all.peak.add(outcome.peak / 1e3);
        all.counts.push(outcome.pauses);
    }
    Ok(all)
}

impl Experiment for E4 {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn run(&self, setup: &Setup, progress: &mut Progress) -> Result<Report> {
        let mut report = Report::new(&ABOUT, setup);
        report.drawing = Some(drawing(&["H0", "H1", "H2", "...", "H15"]));
        progress.expect(setup.pick(6, 5 * 12));
        let mut bars = Vec::new();
        if setup.short {
            short(&mut report, setup, progress, &mut bars)?;
        } else {
            full(&mut report, setup, progress, &mut bars)?;
        }
        without_pauses(&mut report, setup, progress)?;
        report.plots = vec![Plot {
            id: "pauses".into(),
            title: "Pauses sent".into(),
            what: What::Bars(Bars { unit: "frames", bars }),
        }];
        report.lesson = vec![
            "Pauses are asked for by what one port has in the buffer, marks are made by what waits for one line. Marks act first \
             only if the queue at which flows come to rest is reached before any port holds its threshold: q*(N) < N Xoff. \
             A dynamic threshold, a multiple of what is free, leaves that room while the buffer is empty, and takes it away \
             when it fills."
                .into(),
            "A fixed threshold of 24.47 KB is what 32 ports and eight priorities leave of 12 MB. Marks that begin at 120 KB \
             never happen with two flows: they are paused at 49 KB together. The switch then does exactly what it would do \
             without marks, to the frame, and nothing in its configuration looks wrong."
                .into(),
            "Nothing protects the start. Flows begin at line rate, and the first notifications come when the queue is there \
             already: 16 flows pile up 4 MB. Pauses catch that, or a buffer of that size, or the packets are lost."
                .into(),
        ];
        report.cite(
            Source::PublishedFromMemory,
            "Zhu et al., SIGCOMM 2015: pauses at the spines fall from millions to almost none with DCQCN (figure 15); with 8 to 1 \
             and no pauses the 10th percentile of throughput is zero, and misconfigured it is degraded (figure 18).",
        );
        Ok(report)
    }
}

fn short(
    report: &mut Report,
    setup: &Setup,
    progress: &Progress,
    bars: &mut Vec<Bar>,
) -> Result<()> {
    let window = (0, 5);
    let alone = over_seeds(setup, progress, Setting::PausesAlone, 2, window)?;
    let metric = "pauses alone, 2 flows, 0 to 5 ms: pauses";
    report.rows.push(alone.pauses.within(metric, "frames", 940.0, 0.05).from(Source::Oracle));
    same(report, setup, progress, window, &alone)?;
    dynamic(report, setup, progress, window, (16, 3930.0))?;
    let fixed = over_seeds(setup, progress, Setting::Fixed, 8, (10, 20))?;
    let metric = "marks, fixed threshold, 8 flows, 10 to 20 ms: pauses";
    let row = fixed.pauses.at_most(metric, "frames", 0.12 * 2740.0);
    report.rows.push(row.from(Source::Oracle));
    bars.push(Bar::new("pauses alone, 2 flows, 5 ms", alone.pauses.first()).expected(940.0, 0.05));
    bars.push(Bar::new("fixed threshold, 8 flows, 10 ms", fixed.pauses.first()).group(1));
    Ok(())
}

/// Marks that come too late change nothing at all.
fn same(
    report: &mut Report,
    setup: &Setup,
    progress: &Progress,
    window: (u64, u64),
    alone: &Seeds,
) -> Result<()> {
    let late = over_seeds(setup, progress, Setting::Misconfigured, 2, window)?;
    let of = |s: &Seeds| s.counts.iter().sum::<u64>();
    let metric = "marks from 120 KB, 2 flows: pauses, as without marks";
    report.rows.push(Row::count(metric, "frames", of(&late), of(alone)));
    Ok(())
}

fn dynamic(
    report: &mut Report,
    setup: &Setup,
    progress: &Progress,
    window: (u64, u64),
    (n, peak): (u32, f64),
) -> Result<()> {
    let all = over_seeds(setup, progress, Setting::Dynamic, n, window)?;
    let metric = format!("marks, dynamic threshold, {n} flows: pauses");
    let pauses = all.counts.iter().sum();
    report.rows.push(Row::count(metric, "frames", pauses, 0).from(Source::Oracle));
    let metric = format!("marks, dynamic threshold, {n} flows: longest queue");
    report.rows.push(all.peak.within(metric, "KB", peak, 0.15).from(Source::Oracle));
    Ok(())
}

fn full(
    report: &mut Report,
    setup: &Setup,
    progress: &Progress,
    bars: &mut Vec<Bar>,
) -> Result<()> {
    let window = (10, 20);
    for (n, expected, share) in [(2, 1884.0, 0.25), (8, 2740.0, 0.12), (16, 2740.0, 5.0 / 2740.0)] {
        let alone = over_seeds(setup, progress, Setting::PausesAlone, n, window)?;
        let metric = format!("pauses alone, {n} flows, 10 to 20 ms: pauses");
        report
            .rows
            .push(alone.pauses.within(metric, "frames", expected, 0.05).from(Source::Oracle));
        if n == 2 {
            same(report, setup, progress, window, &alone)?;
        }
        let fixed = over_seeds(setup, progress, Setting::Fixed, n, window)?;
        let metric = format!("marks, fixed threshold, {n} flows, 10 to 20 ms: pauses");
        let row = fixed.pauses.at_most(metric, "frames", (share * expected).round());
        report.rows.push(row.from(Source::Oracle));
        let bar = Bar::new(format!("pauses alone, {n} flows"), alone.pauses.first());
        bars.push(bar.expected(expected, 0.05));
        bars.push(Bar::new(format!("fixed threshold, {n} flows"), fixed.pauses.first()).group(1));
    }
    for case in [(2, 222.0), (8, 1399.0), (16, 3926.0)] {
        dynamic(report, setup, progress, (0, 20), case)?;
    }
    Ok(())
}

fn without_pauses(report: &mut Report, setup: &Setup, progress: &Progress) -> Result<()> {
    let window = setup.pick((0, 5), (0, 20));
    let few = over_seeds(setup, progress, Setting::NoPauses, 8, window)?;
    let metric = "no pauses, 2 MB, 8 flows: drops";
    report.rows.push(few.drops.near(metric, "packets", 0.0, 0.0).from(Source::Oracle));
    let many = over_seeds(setup, progress, Setting::NoPauses, 16, window)?;
    let metric = "no pauses, 2 MB, 16 flows: drops";
    report.rows.push(many.drops.within(metric, "packets", 1800.0, 0.2).from(Source::Oracle));
    if !setup.short {
        let metric = "no pauses, 2 MB, 16 flows: drops after 5 ms";
        report.rows.push(Row::count(metric, "packets", many.late_drops, 0).from(Source::Oracle));
    }
    Ok(())
}
