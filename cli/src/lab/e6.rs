//! E6: when DCQCN swings instead of coming to rest: the number of flows, and how late they are told.

use super::fluid::{Span, together};
use super::plot::{Axis, Level, Lines, Plot, Series, Style, What};
use super::report::{Report, Row, Source};
use super::theory::{Params, critical_delay};
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
           1 KB) and swings above, as far and with as much lost as the table says",
    short: "the same",
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
        progress.expect((CRITICAL.len() + SWINGS.len()) as u64);
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
        report.plots = vec![delays(&k), queues(swings)];
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
