//! E5: how long the queue is that DCQCN leaves, by its marking thresholds and the number of flows.

mod packets;

use super::fluid::{Span, together};
use super::plot::{Axis, Level, Lines, Plot, Series, Style, What};
use super::report::{Report, Row, Source};
use super::star::drawing;
use super::theory::{Params, fixed_point};
use super::{About, Experiment, Progress, Result, Setup};

/// See the module.
#[derive(Debug)]
pub(crate) struct E5;

const ABOUT: About = About {
    id: "e5",
    name: "queue",
    title: "The queue that marking leaves",
    question: "N flows share a 40G port under DCQCN: how long does its queue become?",
    full: "the fluid model comes to rest within 0.5 % of the root of its equations; beyond the ramp the queue stays \
           between 180.5 and 204 KB. Path MTU 1024, 5 seeds, 20 to 120 ms: the mean queue within 15 % of the oracle's and \
           -10 to +40 % of the root, CNPs 2 to 20 % above theory, utilisation at least 99.5 %, the first peak within 15 %; \
           other ramps within 15 % of the oracle",
    short: "the model as in the full variant. 1 seed: path MTU 1024, 8 and 10 flows, 10 to 25 ms: mean queue within 15 % of \
            100 and 124 KB; path MTU 4096, 2 and 4 flows, 20 to 60 ms: within 40 % of 64.5 and 20 % of 144 KB",
};

impl Experiment for E5 {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn run(&self, setup: &Setup, progress: &mut Progress) -> Result<Report> {
        let mut report = Report::new(&ABOUT, setup);
        let k = Params::paper(1024);
        report.drawing = Some(drawing(&["H0", "H1", "H2", "H3"]));
        progress.expect(6 + setup.pick(4, 50));
        let mut runs = Vec::new();
        for n in [2, 4, 8, 10, 16, 32] {
            progress.step(format_args!("fluid model, {n} flows"));
            let run = together(n, &k, Span::seconds(0.3));
            let root = fixed_point(f64::from(n), &k);
            let measured = run.tail(0.3).mean / 1e3;
            let metric = format!("fluid model, {n} flows: queue at rest");
            report.rows.push(if root.in_ramp {
                Row::within(metric, "KB", measured, root.queue / 1e3, 0.005)
            } else {
                Row::between(metric, "KB", measured, 180.5, 204.0)
            });
            if n > 16 {
                continue;
            }
            let points = run.time.iter().zip(&run.queue).take_while(|&(&t, _)| t < 0.1);
            let points = points.map(|(t, q)| (t * 1e3, q / 1e3)).collect();
            runs.push(Series::new(format!("{n} flows"), points));
        }
        let measured = packets::run(&mut report, setup, progress)?;
        report.plots.push(over_time(runs, &k));
        report.plots.push(over_flows(measured));
        report.lesson = vec![
            "A flow under DCQCN stays at its fair share only if it is told often enough to slow down: the cuts must undo \
             what the timer and the byte counter add. So each number of flows has one marking probability at which it \
             rests, and the marking ramp turns that into a queue: q* = Kmin + p*/Pmax (Kmax - Kmin). More flows need \
             more marks, and the queue grows with them."
                .into(),
            "The ramp ends. With Kmin 5 KB, Kmax 200 KB, Pmax 1 % and packets of 1024 bytes it holds up to 14 flows; \
             beyond, the queue stands just under Kmax, where the probability jumps from 1 % to 1. With path MTU 4096 it \
             ends at 4 flows: marks per second are what counts, and large packets come more seldom. Published \
             thresholds belong to the packet size they were made for."
                .into(),
            "The cube root that papers print for p* is 15 to 40 % too high; this uses the root of the equation itself."
                .into(),
        ];
        report.cite(
            Source::Published,
            "Queues of about 20, 125 and 1150 KB for 2, 10 and 64 flows in the fluid model of \"ECN or Delay\" (CoNEXT 2016), \
             read from its figure. With 1000-byte packets the root says 20.2, 122.6 and 1156 KB; the last needs a ramp that \
             goes on (Kmax 2000 KB, Pmax 10 %).",
        );
        Ok(report)
    }
}

fn over_time(series: Vec<Series>, k: &Params) -> Plot {
    Plot {
        id: "fluid".into(),
        title: "Fluid model: queue after all flows start at line rate".into(),
        what: What::Lines(Lines {
            x: Axis::new("time", "ms"),
            y: Axis::new("queue", "KB").range(0.0, 300.0),
            series: series.into_iter().map(cut).collect(),
            levels: vec![Level::new(k.kmin / 1e3, "Kmin"), Level::new(k.kmax / 1e3, "Kmax")],
            window: None,
        }),
    }
}

/// Without what is above the plot.
fn cut(mut series: Series) -> Series {
    series.points.retain(|p| p.1 <= 300.0);
    series
}

fn over_flows(measured: Vec<(f64, f64)>) -> Plot {
    let of = |mtu: u32| {
        let k = Params::paper(mtu);
        let point = |n: u32| (f64::from(n), fixed_point(f64::from(n), &k).queue.min(k.kmax) / 1e3);
        Series::new(format!("path MTU {mtu}"), (1..=32).map(point).collect())
    };
    Plot {
        id: "flows".into(),
        title: "Queue at rest by number of flows (ends at Kmax, where the ramp does)".into(),
        what: What::Lines(Lines {
            x: Axis::new("flows", ""),
            y: Axis::new("queue", "KB"),
            series: vec![
                of(1024),
                of(4096).style(Style::Dashed),
                Series::new("measured, path MTU 1024", measured).style(Style::Dots),
            ],
            levels: vec![Level::new(200.0, "Kmax")],
            window: None,
        }),
    }
}
