//! The result of the tour, as a table or as JSON.

use std::io::{self, Write};
use std::process::ExitCode;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use softroce::prelude::*;

use super::first::{Measured, Tour};
use super::plan::Size;
use super::{Args, Failure};
use crate::output::{BAD_INPUT, complain, print as output};

pub(super) fn print(args: &Args, tour: &Tour) -> ExitCode {
    let mut status = u8::from(tour.failure.is_some());
    if tour.uncaptured > 0 {
        let n = tour.uncaptured;
        complain(format_args!("tour: the capture lacks {n} packets: its file took no more"));
        status = BAD_INPUT;
    }
    output(status, |out| match args.json {
        true => json(args, tour, out),
        false => text(args, tour, out),
    })
}

fn text(args: &Args, tour: &Tour, out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "operation",
        "size",
        "requests",
        "sent",
        "received",
        "p50",
        "goodput",
        "verified",
    ]);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut last = None;
    for m in &tour.rows {
        let name = if last == Some(m.row.op) { "" } else { m.row.op.name() };
        last = Some(m.row.op);
        table.add_row([
            name.to_owned(),
            Size(m.row.size).to_string(),
            m.row.requests().to_string(),
            m.traffic.sent.to_string(),
            m.traffic.received.to_string(),
            m.timing.as_ref().map_or("-".into(), |t| time(t.p50)),
            m.timing.as_ref().and_then(|t| t.goodput).map_or("-".into(), rate),
            if m.timing.is_some() { "yes" } else { "NO" }.to_owned(),
        ]);
    }
    for line in table.lines() {
        writeln!(out, "{}", line.trim_end())?;
    }
    let [here, there] = &tour.devices;
    writeln!(out, "\nBetween {here} and {there}.")?;
    writeln!(
        out,
        "sent, received: packets, as the first one counts them. p50: from posting to completion, one at a time."
    )?;
    let again: u64 = tour.rows.iter().map(|m| m.traffic.again).sum();
    if again > 0 {
        writeln!(out, "{again} packets were sent again: some were lost on the way.")?;
    }
    if tour.failure.is_some() {
        return Ok(());
    }
    writeln!(
        out,
        "{} requests, {}: every byte verified at both sides, in {:.1} s.",
        tour.requests(),
        mega(tour.bytes()),
        tour.elapsed.as_secs_f64()
    )?;
    writeln!(out, "\nNext:")?;
    let next = next(args);
    let width = next.iter().map(|(command, _)| command.len()).max().unwrap_or_default();
    for (command, what) in next {
        writeln!(out, "  {command:width$}   {what}")?;
    }
    Ok(())
}

/// What to try after the tour. The commands call this program as it was called itself: it need not be where a
/// shell would look for it.
fn next(args: &Args) -> Vec<(String, &'static str)> {
    let us = std::env::args().next().unwrap_or_else(|| "softroce".to_owned());
    let look = match &args.pcap {
        Some(file) => vec![
            (format!("{us} decode {} | less", file.display()), "a line for each packet"),
            (format!("wireshark {}", file.display()), "the same with everything in it"),
        ],
        None => vec![
            (format!("{us} tour --pcap tour.pcapng"), "keep the packets"),
            (format!("{us} decode tour.pcapng | less"), "a line for each of them"),
        ],
    };
    let more = [
        (format!("{us} perf write_bw --local"), "how fast, in perftest's words"),
        (format!("{us} devinfo -v"), "devices, limits and addresses"),
        (
            "cargo run --release --example rc_pingpong".to_owned(),
            "your first program, in two shells",
        ),
    ];
    look.into_iter().chain(more).collect()
}

/// `8.13 us`, `1.92 ms`.
fn time(t: Duration) -> String {
    let us = t.as_secs_f64() * 1e6;
    if us < 1e3 { format!("{us:.2} us") } else { format!("{:.2} ms", us / 1e3) }
}

/// `3.2 MB/s`, `1.25 GB/s`.
fn rate(bytes_per_second: f64) -> String {
    let mb = bytes_per_second / 1e6;
    if mb < 1e3 { format!("{mb:.1} MB/s") } else { format!("{:.2} GB/s", mb / 1e3) }
}

fn mega(bytes: usize) -> String {
    format!("{} MB", bytes / 1_000_000)
}

impl Tour {
    fn requests(&self) -> usize {
        self.rows.iter().map(|m| m.row.requests()).sum()
    }

    fn bytes(&self) -> usize {
        self.rows.iter().map(|m| m.row.bytes()).sum()
    }
}

/// The JSON object, in this order.
#[derive(Serialize)]
struct Json<'a> {
    verified: bool,
    failure: Option<&'a str>,
    devices: &'a [String; 2],
    pcap: Option<String>,
    requests: usize,
    payload_bytes: usize,
    packets_sent: u64,
    packets_received: u64,
    packets_retransmitted: u64,
    elapsed_ms: u128,
    rows: Vec<JsonRow>,
}

#[derive(Serialize)]
struct JsonRow {
    operation: &'static str,
    size: usize,
    requests: usize,
    packets_sent: u64,
    packets_received: u64,
    packets_retransmitted: u64,
    latency_p50_ns: Option<u128>,
    goodput_bytes_per_s: Option<f64>,
    verified: bool,
}

impl JsonRow {
    fn of(m: &Measured) -> Self {
        Self {
            operation: m.row.op.name(),
            size: m.row.size,
            requests: m.row.requests(),
            packets_sent: m.traffic.sent,
            packets_received: m.traffic.received,
            packets_retransmitted: m.traffic.again,
            latency_p50_ns: m.timing.as_ref().map(|t| t.p50.as_nanos()),
            goodput_bytes_per_s: m.timing.as_ref().and_then(|t| t.goodput.map(f64::round)),
            verified: m.timing.is_some(),
        }
    }
}

fn json(args: &Args, tour: &Tour, out: &mut dyn Write) -> io::Result<()> {
    let sum = |of: fn(&Measured) -> u64| tour.rows.iter().map(of).sum();
    let object = Json {
        verified: tour.failure.is_none(),
        failure: tour.failure.as_ref().map(|Failure(why)| why.as_str()),
        devices: &tour.devices,
        pcap: args.pcap.as_ref().map(|p| p.display().to_string()),
        requests: tour.requests(),
        payload_bytes: tour.bytes(),
        packets_sent: sum(|m| m.traffic.sent),
        packets_received: sum(|m| m.traffic.received),
        packets_retransmitted: sum(|m| m.traffic.again),
        elapsed_ms: tour.elapsed.as_millis(),
        rows: tour.rows.iter().map(JsonRow::of).collect(),
    };
    serde_json::to_writer(&mut *out, &object)?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(time(Duration::from_nanos(8_128)), "8.13 us");
        assert_eq!(time(Duration::from_micros(1_920)), "1.92 ms");
        assert_eq!(rate(3.21e6), "3.2 MB/s");
        assert_eq!(rate(1.249e9), "1.25 GB/s");
        assert_eq!(mega(213_999_999), "213 MB");
    }
}
