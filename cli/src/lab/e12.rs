//! E12: what congestion control is for: three switches that wait for each other for ever, and two controls compared.
//!
//! Of the comparison only the order counts: who is fairer, whose short flows are faster.

use super::plot::{Axis, Level, Lines, Plot, Series, Style, What};
use super::report::{Report, Row, Source};
use super::worst::{Worst, millis};
use super::{About, Experiment, Progress, Result, Setup};

mod deadlock;
mod duel;

use deadlock::{Outcome, STOP, Ways, XOFF, early, late};
use duel::{Control, Loaded, loaded, quantile, two};

/// See the module.
#[derive(Debug)]
pub(crate) struct E12;

const ABOUT: About = About {
    id: "e12",
    name: "deadlock",
    title: "Deadlock in a triangle; ECN against delay",
    question: "Can pauses stop a network for ever? And which control leaves less to pauses, by marks or by delay?",
    full: "5 seeds. Three switches, all flows clockwise, threshold 20 KB: a circle of three queues, and from 50 us after the \
           senders are off no byte moves in ten round trips, nor ever; by up-down ways, or with a dynamic threshold, all is \
           empty in the end. DCQCN and TIMELY, the order only: TIMELY from 7 and 3 Gbit/s is less fair than from 5 and 5, \
           patched it is fairer. Web search flows on a dumbbell, 3 times 1 s: short flows take longer with TIMELY, and longer \
           with the patch (p90 of all seeds together), whose queue is the longest, too",
    short: "1 seed, the same rules; web search flows for 0.2 s, DCQCN and patched TIMELY only",
};

impl Experiment for E12 {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn run(&self, setup: &Setup, progress: &mut Progress) -> Result<Report> {
        let mut report = Report::new(&ABOUT, setup);
        triangle(&mut report, setup, progress)?;
        shares(&mut report, setup, progress)?;
        websearch(&mut report, setup, progress)?;
        report.lesson = vec![
            "Each switch is full of packets for the next one, which is full, too, and has asked it to pause. Nobody can move \
             before the next one does, and the next one is, by two others, itself. The senders are switched off, and the bytes \
             stay where they are. Nothing is broken, no packet was lost, and no traffic will ever pass here again."
                .into(),
            "It takes a circle of ways, and pauses. If packets never go up again once they have gone down (S0 is on top), there \
             is no circle; that is how data centres are wired. If a port may have nearly all of a large buffer before anybody is \
             asked to pause, there are no pauses, as long as the buffer lasts. Congestion control makes it last."
                .into(),
            "TIMELY knows the slope of the delay, and any equal shares or unequal ones have the slope 0: what two flows begin \
             with, they keep. The patch compares the delay itself with a target, and the flows come together; but each flow more \
             makes the queue longer, where DCQCN's marks hold it near the thresholds of the switch. Short flows wait in that queue."
                .into(),
        ];
        report.cite(
            Source::Published,
            "Zhu et al., CoNEXT 2016 (ECN or Delay): TIMELY's shares depend on where its flows start, the patch gives it one \
             point of rest; on a dumbbell with web search flows DCQCN's short flows are far faster than TIMELY's.",
        );
        report.cite(
            Source::PublishedFromMemory,
            "A circle of buffers that depend on each other is necessary for a deadlock and not sufficient (Hu et al., HotNets \
             2016); in a data centre one came from packets that were flooded against the rule of up and down (Guo et al., \
             SIGCOMM 2016).",
        );
        Ok(report)
    }
}

/// Deadlock, and two ways out.
fn triangle(report: &mut Report, setup: &Setup, progress: &Progress) -> Result<()> {
    let cases = [
        ("clockwise, 20 KB", early(), Ways::Circle),
        ("up-down, 20 KB", early(), Ways::UpDown),
        ("clockwise, dynamic", late(), Ways::Circle),
    ];
    progress.expect(cases.len() as u64 * setup.seeds(5).count() as u64);
    let mut series = Vec::new();
    for (case, config, ways) in cases {
        let stuck = ways == Ways::Circle && config == early();
        let mut all: Vec<Outcome> = Vec::new();
        for seed in setup.seeds(5) {
            progress.step(format_args!("{case}, seed {seed}"));
            all.push(deadlock::run(&config, ways, seed)?);
        }
        // What is least as it should be.
        let most = |of: fn(&Outcome) -> usize| all.iter().map(of).max().unwrap_or(0) as u64;
        let least = |of: fn(&Outcome) -> usize| all.iter().map(of).min().unwrap_or(0) as u64;
        let metric = |what: &str| format!("{case}: {what}");
        if stuck {
            let circle = Row::count(metric("queues in a circle"), "", least(|o| o.circle), 3);
            // Whoever pauses holds more than what would end it, here of one port.
            let held = least(|o| o.held) as f64;
            let floor = (XOFF - 2 * deadlock::PATH.packet.frame as usize) as f64;
            let held = Row::at_least(metric("held by each switch"), "B", held, floor);
            let moved = metric("change in ten round trips");
            let moved = Row::count(moved, "B", most(|o| o.moved), 0);
            let later = most(|o| o.total.abs_diff(o.left));
            let later = Row::count(metric("change in 3 ms"), "B", later, 0);
            report.rows.extend([circle, held, moved, later]);
            report.drawing = all.first().map(|o| o.drawing.clone());
        } else {
            let circle = Row::count(metric("queues in a circle"), "", most(|o| o.circle), 0);
            let left = Row::count(metric("held in the end"), "B", most(|o| o.left), 0);
            report.rows.extend([circle, left]);
        }
        if let Some(first) = all.first() {
            series.push(Series::new(case, first.over_time.clone()));
        }
    }
    let off = STOP.as_secs_f64() * 1e3;
    report.plots.push(Plot {
        id: "held".into(),
        title: "Bytes in the three switches; the senders are switched off after 1 ms".into(),
        what: What::Lines(Lines {
            x: Axis::new("time", "ms"),
            y: Axis::new("held", "KB").log(),
            series,
            levels: Vec::new(),
            window: Some((off, 4.0 * off)),
        }),
    });
    Ok(())
}

/// Two flows, from equal and from unequal rates.
fn shares(report: &mut Report, setup: &Setup, progress: &Progress) -> Result<()> {
    let end = millis(setup.pick(60, 100));
    let mut fair: [Worst; 3] = Default::default();
    let mut jains: [Vec<f64>; 3] = Default::default();
    let mut plots = Vec::new();
    progress.expect(3 * setup.seeds(5).count() as u64);
    let cases = [
        (Control::Timely, [5, 5], "equal"),
        (Control::Timely, [7, 3], "unequal"),
        (Control::Patched, [7, 3], "patched"),
    ];
    for seed in setup.seeds(5) {
        for (((control, first, id), fair), jains) in
            cases.into_iter().zip(&mut fair).zip(&mut jains)
        {
            let name = format!("{} from {} and {} Gbit/s", control.name(), first[0], first[1]);
            progress.step(format_args!("{name}, seed {seed}"));
            let run = two(control, first, seed, end)?;
            fair.add(run.fair);
            jains.push(run.fair);
            if seed != setup.seed {
                continue;
            }
            let of = |i: usize| run.over_time.iter().map(|(ms, rates)| (*ms, rates[i])).collect();
            plots.push(Plot {
                id: format!("shares-{id}"),
                title: name,
                what: What::Lines(Lines {
                    x: Axis::new("time", "ms"),
                    y: Axis::new("payload", "Gbit/s").range(0.0, 8.0),
                    series: ["A", "B"]
                        .iter()
                        .enumerate()
                        .map(|(i, n)| Series::new(*n, of(i)))
                        .collect(),
                    levels: Vec::new(),
                    window: Some((end.as_secs_f64() * 500.0, end.as_secs_f64() * 1e3)),
                }),
            });
        }
    }
    let [_, unequal, patched] = &fair;
    let bound = jains[0].iter().copied().fold(f64::INFINITY, f64::min);
    let better = jains[1].iter().copied().fold(0.0, f64::max);
    let rows = [
        unequal.at_most("TIMELY from 7 and 3: Jain's index, less than from 5 and 5", "", bound),
        patched.at_least(
            "patched TIMELY from 7 and 3: Jain's index, more than unpatched",
            "",
            better,
        ),
    ];
    report.rows.extend(rows.into_iter().map(|row| row.from(Source::Published)));
    report.plots.append(&mut plots);
    Ok(())
}

/// What some runs of one control came to, taken together.
#[derive(Debug, Default)]
struct Sum {
    short: Vec<f64>,
    queue: Vec<f64>,
    unfinished: u64,
    flows: u64,
    pauses: u64,
}

impl Sum {
    fn add(&mut self, run: Loaded) {
        self.short.extend(run.short);
        self.queue.extend(run.queue);
        self.unfinished += run.unfinished;
        self.flows += run.flows;
        self.pauses += run.pauses;
    }
}

/// Many flows of all sizes.
fn websearch(report: &mut Report, setup: &Setup, progress: &Progress) -> Result<()> {
    let end = millis(setup.pick(200, 1000));
    let controls: &[Control] = setup.pick(
        &[Control::Dcqcn, Control::Patched],
        &[Control::Dcqcn, Control::Timely, Control::Patched],
    );
    progress.expect(controls.len() as u64 * setup.seeds(3).count() as u64);
    let mut all = Vec::new();
    for &control in controls {
        let mut sum = Sum::default();
        for seed in setup.seeds(3) {
            progress.step(format_args!("web search, {}, seed {seed}", control.name()));
            sum.add(loaded(control, seed, end)?);
        }
        all.push((control, sum));
    }
    let Some(((_, dcqcn), others)) = all.split_first() else { return Ok(()) };
    let p90 = |values: &[f64]| quantile(values, 0.9);
    let (short, queue) = (p90(&dcqcn.short), p90(&dcqcn.queue));
    for (control, sum) in others {
        let name = control.name();
        let metric = format!("web search, {name}: p90 of short flows, more than DCQCN's");
        let row = Row::at_least(metric, "ms", p90(&sum.short), short).why(
            "TIMELY keeps the queue short here, at the price of long flows that hardly move: see the notes",
        );
        report.rows.push(row.from(Source::Published));
        if *control == Control::Patched {
            let metric = format!("web search, {name}: p90 of the queue, more than DCQCN's");
            let row = Row::at_least(metric, "KB", p90(&sum.queue), queue);
            report.rows.push(row.from(Source::Published));
        }
    }
    for (control, sum) in &all {
        report.note(format!(
            "Web search flows, {}: {} of {} flows had not ended a quarter of the time after the last one began; half of the short \
             ones took up to {:.3} ms, nine in ten {:.3}, 99 in 100 {:.3}; {} pauses.",
            control.name(),
            sum.unfinished,
            sum.flows,
            quantile(&sum.short, 0.5),
            p90(&sum.short),
            quantile(&sum.short, 0.99),
            sum.pauses,
        ));
    }
    if !setup.short {
        report.note(
            "TIMELY as published keeps the queue short here: its short flows are behind DCQCN's by a few percent only, not \
             by as much as in the paper. It pays with the long ones: a flow that has met a steep rise is at the least rate of \
             10 Mbit/s, and adds 10 Mbit/s for each 16 KB. (Each packet leaves at its own moment here. Senders that pace by \
             bursts of 16 to 64 KB were not tried.)",
        );
    }
    let cdf = |of: fn(&Sum) -> &Vec<f64>| {
        all.iter()
            .map(|(c, sum)| Series::cdf(c.name(), of(sum).clone()).style(Style::Step))
            .collect()
    };
    report.plots.push(Plot {
        id: "short-flows".into(),
        title: "Web search: flows below 100 KB, from their beginning to their end".into(),
        what: What::Lines(Lines {
            x: Axis::new("time", "ms").log(),
            y: Axis::new("part of flows", ""),
            series: cdf(|sum| &sum.short),
            levels: vec![Level::new(0.9, "p90")],
            window: None,
        }),
    });
    report.plots.push(Plot {
        id: "queue".into(),
        title: "Web search: the queue of the one cable".into(),
        what: What::Lines(Lines {
            x: Axis::new("queue", "KB").range(0.1, 20_000.0).log(),
            y: Axis::new("part of the time", ""),
            series: cdf(|sum| &sum.queue),
            levels: vec![Level::new(0.9, "p90")],
            window: None,
        }),
    });
    Ok(())
}
