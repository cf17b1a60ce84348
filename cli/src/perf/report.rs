//! What comes out, in perftest's columns or as JSON.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use serde::{Deserialize, Serialize};

use super::bandwidth::Measured;
use super::control::Drops;
use super::latency::Times;
use super::options::Plan;
use super::{Failure, Result};

const MIB: f64 = 1024.0 * 1024.0;

/// The result of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Row {
    Bandwidth(Bandwidth),
    Latency(Latency),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Bandwidth {
    pub(super) bytes: u32,
    /// Messages, of all queue pairs.
    pub(super) iterations: u64,
    /// 0 where it was not looked for, as perftest does in long runs.
    pub(super) bw_peak_gbits: f64,
    pub(super) bw_average_gbits: f64,
    /// Millions of messages a second.
    pub(super) msg_rate_mpps: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Latency {
    pub(super) bytes: u32,
    pub(super) iterations: u64,
    pub(super) t_min_us: f64,
    pub(super) t_max_us: f64,
    pub(super) t_typical_us: f64,
    pub(super) t_avg_us: f64,
    pub(super) t_stdev_us: f64,
    pub(super) p99_us: f64,
    pub(super) p99_9_us: f64,
}

impl Bandwidth {
    #[expect(clippy::cast_precision_loss, reason = "of counts that fit the 53 bits")]
    pub(super) fn new(size: u32, measured: &Measured) -> Self {
        let bits = f64::from(size) * 8.0;
        let per_second = measured.messages as f64 / measured.time.as_secs_f64().max(1e-9);
        let peak = measured.best.map_or(0.0, |t| bits / t.as_secs_f64().max(1e-9) / 1e9);
        Self {
            bytes: size,
            iterations: measured.messages,
            bw_peak_gbits: peak,
            bw_average_gbits: per_second * bits / 1e9,
            msg_rate_mpps: per_second / 1e6,
        }
    }
}

impl Latency {
    /// `share`: what part of a round counts.
    #[expect(clippy::cast_precision_loss, reason = "of counts that fit the 53 bits")]
    pub(super) fn new(size: u32, times: Times, share: f64) -> Self {
        let iterations = times.rounds;
        let all = times.sorted();
        let us = |ns: f64| ns * share / 1e3;
        let n = all.len().max(1) as f64;
        let mean = all.iter().map(|&t| f64::from(t)).sum::<f64>() / n;
        let variance = all.iter().map(|&t| (f64::from(t) - mean).powi(2)).sum::<f64>() / n;
        let at = |permille: usize| {
            let index = (all.len() * permille / 1000).min(all.len().saturating_sub(1));
            us(all.get(index).map_or(0.0, |&t| f64::from(t)))
        };
        Self {
            bytes: size,
            iterations,
            t_min_us: at(0),
            t_max_us: at(1000),
            t_typical_us: at(500),
            t_avg_us: us(mean),
            t_stdev_us: us(variance.sqrt()),
            p99_us: at(990),
            p99_9_us: at(999),
        }
    }
}

impl Drops {
    pub(super) fn add(self, other: Self) -> Self {
        Self {
            port_overruns: self.port_overruns + other.port_overruns,
            retransmitted: self.retransmitted + other.retransmitted,
            sent: self.sent + other.sent,
            calls: self.calls + other.calls,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a percentage of two counts")]
    fn percent(&self) -> f64 {
        100.0 * self.retransmitted as f64 / (self.sent as f64).max(1.0)
    }
}

/// The whole result.
#[derive(Debug, Serialize)]
struct Whole<'a> {
    test: &'static str,
    qps: u32,
    tx_depth: u32,
    mtu: usize,
    local: &'a str,
    remote: &'a str,
    rows: &'a [Row],
    /// Of both sides together.
    port_overruns: u64,
    retransmitted_pkts: u64,
    sent_pkts: u64,
    retransmitted_percent: f64,
}

/// How and for whom to print.
#[derive(Debug)]
pub(super) struct Printer {
    pub(super) format: Format,
    pub(super) gbits: bool,
}

/// In which form it is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    Json,
    /// Not at all: somebody else does.
    Silent,
}

/// What came of a test.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) rows: Vec<Row>,
    /// Of both sides together.
    pub(super) drops: Drops,
}

/// Between whom it was measured.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) local: String,
    pub(super) remote: String,
    pub(super) mtu: usize,
}

impl Printer {
    /// What is about to be measured, and the heads of the columns.
    pub(super) fn heading(&self, plan: &Plan, ends: &Ends) -> Result<()> {
        if self.format != Format::Text {
            return Ok(());
        }
        let (mut text, kind) = (String::new(), plan.kind);
        let qps =
            if plan.qps == 1 { "1 queue pair".into() } else { format!("{} queue pairs", plan.qps) };
        let _ = write!(text, "{kind}: RC, {qps}, path MTU {}", ends.mtu);
        if !kind.is_latency() {
            let _ = write!(text, ", tx depth {}, post list {}", plan.tx_depth, plan.post_list);
        }
        let _ = writeln!(text, ", {} to {}\n", ends.local, ends.remote);
        if kind.is_latency() {
            let _ = writeln!(
                text,
                " #bytes     #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
                 t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]"
            );
        } else {
            let unit = if self.gbits { "Gb/sec" } else { "MiB/sec" };
            let _ = writeln!(
                text,
                " #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]"
            );
        }
        print(&text)
    }

    /// The line of one size.
    pub(super) fn row(&self, row: &Row) -> Result<()> {
        if self.format != Format::Text {
            return Ok(());
        }
        print(&match row {
            Row::Bandwidth(r) => {
                let of = |gbits: f64| if self.gbits { gbits } else { gbits * 1e9 / 8.0 / MIB };
                let (peak, average) = (of(r.bw_peak_gbits), of(r.bw_average_gbits));
                let (bytes, n, rate) = (r.bytes, r.iterations, r.msg_rate_mpps);
                format!(" {bytes:<10} {n:<14} {peak:<18.2} {average:<20.2} {rate:.6}\n")
            }
            Row::Latency(r) => format!(
                " {:<10} {:<14} {:<14.2} {:<12.2} {:<16.2} {:<14.2} {:<15.2} {:<22.2} {:.2}\n",
                r.bytes,
                r.iterations,
                r.t_min_us,
                r.t_max_us,
                r.t_typical_us,
                r.t_avg_us,
                r.t_stdev_us,
                r.p99_us,
                r.p99_9_us
            ),
        })
    }

    /// What was lost on the way, or everything as JSON.
    pub(super) fn end(&self, plan: &Plan, ends: &Ends, rows: &[Row], drops: Drops) -> Result<()> {
        if self.format == Format::Silent {
            return Ok(());
        }
        if self.format == Format::Json {
            let whole = Whole {
                test: plan.kind.name(),
                qps: plan.qps,
                tx_depth: plan.tx_depth,
                mtu: ends.mtu,
                local: &ends.local,
                remote: &ends.remote,
                rows,
                port_overruns: drops.port_overruns,
                retransmitted_pkts: drops.retransmitted,
                sent_pkts: drops.sent,
                retransmitted_percent: drops.percent(),
            };
            let mut line = serde_json::to_string(&whole).map_err(Failure::run)?;
            line.push('\n');
            return print(&line);
        }
        print(&format!(
            "\nport_overruns: {} (datagrams that found a receive buffer full), retransmitted_pkts: {} of {} \
             ({:.3} %)\n",
            drops.port_overruns,
            drops.retransmitted,
            drops.sent,
            drops.percent()
        ))
    }
}

/// Prints at once; a reader that has gone is no error of ours.
pub(super) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::run(format_args!("cannot write: {e}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::Until;
    use super::*;
    use std::time::Duration;

    #[test]
    fn bandwidth_of_known_times() {
        let measured = Measured {
            messages: 1000,
            sent: 1000,
            time: Duration::from_millis(2),
            best: Some(Duration::from_micros(1)),
        };
        let row = Bandwidth::new(1000, &measured);
        assert!((row.bw_average_gbits - 4.0).abs() < 1e-9, "{row:?}");
        assert!((row.bw_peak_gbits - 8.0).abs() < 1e-9, "{row:?}");
        assert!((row.msg_rate_mpps - 0.5).abs() < 1e-9, "{row:?}");
        let none = Measured { messages: 0, sent: 0, time: Duration::ZERO, best: None };
        assert_eq!(Bandwidth::new(8, &none).bw_peak_gbits.to_bits(), 0);
    }

    #[test]
    fn percentiles_of_known_times() {
        let mut times = Times::new(Until::Iterations(1000));
        for n in (1..=1000).rev() {
            times.record(Duration::from_micros(2 * n));
        }
        let row = Latency::new(8, times, 0.5);
        let near = |got: f64, want: f64| assert!((got - want).abs() < 1e-6, "{got} {want}");
        near(row.t_min_us, 1.0);
        near(row.t_max_us, 1000.0);
        near(row.t_typical_us, 501.0);
        near(row.t_avg_us, 500.5);
        near(row.p99_us, 991.0);
        near(row.p99_9_us, 1000.0);
        near(row.t_stdev_us, (999_999.0_f64 / 12.0).sqrt());
    }

    #[test]
    fn rows_survive_the_way_to_the_server() {
        let row = Row::Latency(Latency::new(8, Times::new(Until::Seconds(1)), 1.0));
        let text = serde_json::to_string(&row).unwrap();
        assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), row);
        let measured = Measured { messages: 3, sent: 3, time: Duration::from_secs(1), best: None };
        let row = Row::Bandwidth(Bandwidth::new(8, &measured));
        let text = serde_json::to_string(&row).unwrap();
        assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), row);
    }

    #[test]
    fn shares_of_what_was_sent() {
        let drops = Drops { port_overruns: 1, retransmitted: 5, sent: 1000, calls: 70 };
        assert!((drops.percent() - 0.5).abs() < 1e-9);
        assert_eq!(Drops::default().percent().to_bits(), 0);
        assert_eq!((drops.add(drops).sent, drops.add(drops).calls), (2000, 140));
    }
}
