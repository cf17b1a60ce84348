//! `softroce perf sweep`: bandwidth over the size of messages, for several depths and numbers of queue pairs.
//!
//! Each number of queue pairs with each depth is a test of its own between two processes here, as
//! `--local` makes it, with all sizes one after the other.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use plotters::prelude::*;
use serde::Serialize;

use super::options::{Kind, Plan, Until};
use super::report::{Format, Outcome, Printer, Row, print};
use super::{Failure, Result, session};
use crate::args;

/// Measure bandwidth over sizes, depths and numbers of queue pairs
///
/// Both sides run here. Prints a line for each combination; --csv and --svg write a table and a chart.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What is measured
    #[arg(long, value_enum, default_value = "write_bw")]
    test: Which,
    /// Sizes of messages, with commas between them
    #[arg(short, long, value_name = "BYTES,...", value_delimiter = ',', value_parser = args::message,
          default_value = "64,256,1K,4K,16K,64K,256K,1M")]
    sizes: Vec<u32>,
    /// Messages of a queue pair that are posted and not complete, at most
    #[arg(
        short = 't',
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "1,16,128"
    )]
    depths: Vec<u32>,
    /// Queue pairs
    #[arg(short, long, value_name = "N,...", value_delimiter = ',', default_value = "1,8")]
    qps: Vec<u32>,
    /// Seconds for each combination
    #[arg(
        short = 'D',
        long,
        value_name = "SECONDS",
        default_value_t = 1,
        conflicts_with = "iters"
    )]
    duration: u32,
    /// Measure so many messages of each queue pair instead
    #[arg(short = 'n', long, value_name = "N")]
    iters: Option<u32>,
    /// Device, such as soft:eth0 or soft:udp=fd00::1 [default: $SOFTROCE_DEVICE, else soft:lo]
    #[arg(short = 'd', long = "ib-dev", value_name = "DEVICE")]
    device: Option<String>,
    /// Write the table to this file, as comma-separated values
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Draw bandwidth over size into this file, a line for each depth and number of queue pairs
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Which {
    #[value(name = "write_bw")]
    Write,
    #[value(name = "read_bw")]
    Read,
    #[value(name = "send_bw")]
    Send,
}

impl Which {
    const fn kind(self) -> Kind {
        match self {
            Self::Write => Kind::WriteBw,
            Self::Read => Kind::ReadBw,
            Self::Send => Kind::SendBw,
        }
    }
}

/// One combination.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Point {
    test: &'static str,
    qps: u32,
    tx_depth: u32,
    bytes: u32,
    messages: u64,
    gbits: f64,
    mpps: f64,
}

/// What was lost with one number of queue pairs and one depth, all sizes together.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Losses {
    qps: u32,
    tx_depth: u32,
    port_overruns: u64,
    retransmitted_pkts: u64,
    sent_pkts: u64,
}

#[derive(Debug, Serialize)]
struct Whole<'a> {
    rows: &'a [Point],
    losses: &'a [Losses],
}

pub(super) fn run(args: &Args) -> Result<()> {
    let until = match args.iters {
        Some(n) => Until::Iterations(n),
        None => Until::Seconds(args.duration),
    };
    let mut plans = Vec::new();
    for &qps in &args.qps {
        for &depth in &args.depths {
            plans.push(Plan::swept(args.test.kind(), &args.sizes, qps, depth, until)?);
        }
    }
    // Better now than after minutes of measuring.
    for path in args.csv.iter().chain(&args.svg) {
        write(path, "")?;
    }
    let silent = Printer { format: Format::Silent, gbits: true };
    let (mut points, mut losses) = (Vec::new(), Vec::new());
    if !args.json {
        print("  qps  depth     bytes   messages    Gbit/s     Mmsg/s\n")?;
    }
    for plan in &plans {
        let outcome = session::both(plan, args.device.as_deref(), &silent)?;
        losses.push(Losses::of(plan, &outcome));
        for point in Point::all_of(plan, &outcome) {
            if !args.json {
                print(&point.line())?;
            }
            points.push(point);
        }
    }
    if let Some(path) = &args.csv {
        write(path, &csv(&points))?;
    }
    if let Some(path) = &args.svg {
        write(path, &chart(args.test.kind(), &points).map_err(Failure::run)?)?;
    }
    if args.json {
        let whole = Whole { rows: &points, losses: &losses };
        let mut line = serde_json::to_string(&whole).map_err(Failure::run)?;
        line.push('\n');
        return print(&line);
    }
    let sum = |of: fn(&Losses) -> u64| losses.iter().map(of).sum::<u64>();
    print(&format!(
        "\nport_overruns: {}, retransmitted_pkts: {} of {}\n",
        sum(|l| l.port_overruns),
        sum(|l| l.retransmitted_pkts),
        sum(|l| l.sent_pkts)
    ))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)
        .map_err(|e| Failure::Usage(format!("cannot write {}: {e}", path.display())))
}

impl Point {
    fn all_of<'a>(plan: &'a Plan, outcome: &'a Outcome) -> impl Iterator<Item = Self> + 'a {
        outcome.rows.iter().filter_map(|row| match row {
            Row::Bandwidth(row) => Some(Self {
                test: plan.kind.name(),
                qps: plan.qps,
                tx_depth: plan.tx_depth,
                bytes: row.bytes,
                messages: row.iterations,
                gbits: row.bw_average_gbits,
                mpps: row.msg_rate_mpps,
            }),
            Row::Latency(_) => None,
        })
    }

    fn line(&self) -> String {
        let Self { qps, tx_depth, bytes, messages, gbits, mpps, .. } = self;
        format!("{qps:>5}  {tx_depth:>5}  {bytes:>8}  {messages:>9}  {gbits:>8.3}  {mpps:>9.4}\n")
    }
}

impl Losses {
    fn of(plan: &Plan, outcome: &Outcome) -> Self {
        Self {
            qps: plan.qps,
            tx_depth: plan.tx_depth,
            port_overruns: outcome.drops.port_overruns,
            retransmitted_pkts: outcome.drops.retransmitted,
            sent_pkts: outcome.drops.sent,
        }
    }
}

/// The table with one line of names.
fn csv(points: &[Point]) -> String {
    let mut text = String::from("test,qps,tx_depth,bytes,messages,gbits,mpps\n");
    for p in points {
        let Point { test, qps, tx_depth, bytes, messages, gbits, mpps } = p;
        let _ = writeln!(text, "{test},{qps},{tx_depth},{bytes},{messages},{gbits:.6},{mpps:.6}");
    }
    text
}

/// A line of the chart: bandwidth over size.
#[derive(Debug, PartialEq)]
struct Line {
    qps: u32,
    depth: u32,
    at: Vec<(f64, f64)>,
}

/// One line for each number of queue pairs and depth, in the order in which they come.
fn lines(points: &[Point]) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for p in points {
        let at = (f64::from(p.bytes), p.gbits);
        match lines.iter_mut().find(|line| (line.qps, line.depth) == (p.qps, p.tx_depth)) {
            Some(line) => line.at.push(at),
            None => lines.push(Line { qps: p.qps, depth: p.tx_depth, at: vec![at] }),
        }
    }
    for line in &mut lines {
        line.at.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    lines
}

/// Bandwidth over size, the sizes on a logarithmic axis.
fn chart(kind: Kind, points: &[Point]) -> Result<String, Box<dyn std::error::Error>> {
    let bytes = || points.iter().map(|p| f64::from(p.bytes));
    let (least, most) = (bytes().fold(f64::INFINITY, f64::min), bytes().fold(1.0, f64::max));
    let top = points.iter().map(|p| p.gbits).fold(0.0, f64::max);
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (960, 600)).into_drawing_area();
        root.fill(&WHITE)?;
        // One size alone needs an axis, too.
        let sizes = (least.min(most / 2.0)..most.max(2.0)).log_scale().base(2.0);
        let mut chart = ChartBuilder::on(&root)
            .caption(format!("softroce perf sweep: {kind}"), ("sans-serif", 22))
            .margin(16)
            .x_label_area_size(48)
            .y_label_area_size(64)
            .build_cartesian_2d(sizes, 0.0..(top * 1.05).max(1e-9))?;
        chart
            .configure_mesh()
            .x_desc("bytes of a message")
            .y_desc("Gbit/s")
            .x_label_formatter(&|bytes| size(*bytes))
            .light_line_style(WHITE)
            .draw()?;
        for (i, Line { qps, depth, at }) in lines(points).into_iter().enumerate() {
            let colour = Palette99::pick(i).to_rgba();
            chart
                .draw_series(LineSeries::new(at, colour.stroke_width(2)))?
                .label(format!("{qps} QP, depth {depth}"))
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2))
                });
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()?;
        root.present()?;
    }
    Ok(text)
}

/// A size as it is spoken of.
fn size(bytes: f64) -> String {
    const KIB: f64 = 1024.0;
    if bytes >= KIB * KIB {
        format!("{}M", bytes / (KIB * KIB))
    } else if bytes >= KIB {
        format!("{}K", bytes / KIB)
    } else {
        format!("{bytes}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(qps: u32, tx_depth: u32, bytes: u32, gbits: f64) -> Point {
        Point { test: "write_bw", qps, tx_depth, bytes, messages: 10, gbits, mpps: 0.5 }
    }

    #[test]
    fn a_line_of_values_for_each_point() {
        let text = csv(&[point(1, 16, 64, 0.25), point(8, 1, 4096, 3.0)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "test,qps,tx_depth,bytes,messages,gbits,mpps",
                "write_bw,1,16,64,10,0.250000,0.500000",
                "write_bw,8,1,4096,10,3.000000,0.500000",
            ]
        );
    }

    #[test]
    fn a_line_of_the_chart_for_each_depth_and_number() {
        let points = [point(1, 1, 4096, 2.0), point(1, 1, 64, 1.0), point(2, 1, 64, 3.0)];
        let one = Line { qps: 1, depth: 1, at: vec![(64.0, 1.0), (4096.0, 2.0)] };
        let other = Line { qps: 2, depth: 1, at: vec![(64.0, 3.0)] };
        assert_eq!(lines(&points), [one, other]);
        let svg = chart(Kind::WriteBw, &points).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
        for text in
            ["softroce perf sweep: write_bw", "1 QP, depth 1", "2 QP, depth 1", "Gbit/s", "4K"]
        {
            assert!(svg.contains(text), "no {text} in {svg}");
        }
        assert_eq!(svg, chart(Kind::WriteBw, &points).unwrap());
    }

    #[test]
    fn charts_of_little() {
        assert!(chart(Kind::SendBw, &[point(1, 1, 64, 0.0)]).unwrap().contains("</svg>"));
        assert!(chart(Kind::SendBw, &[point(1, 1, 1, 1.0)]).unwrap().contains("</svg>"));
    }
}
