//! E10: what headers cost. Everything is counted, from packets that the library builds.

use softroce::prelude::*;
use softroce::sim::{Link, Sim, Verdict};
use softroce::wire::Opcode;
use softroce::wire::opcode::Position;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::plot::{Axis, Bar, Bars, Level, Lines, Plot, Series, What};
use super::report::{Report, Row, Source};
use super::sizes::{GAP, Ip, Packet, built, frame, wire, write, write_wire};
use super::{About, Experiment, Progress, Result, Setup};

/// See the module.
#[derive(Debug)]
pub(crate) struct E10;

const ABOUT: About = About {
    id: "e10",
    name: "overhead",
    title: "What headers cost",
    question: "How many of a line's bits are payload, by path MTU and message size?",
    full: "bytes of built packets and of messages on a simulated network equal the sums of their headers; \
           rates within 0.01 % of the table",
    short: "the same",
};

const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];
/// Wire bytes of a full packet, and the part of them that is payload, in percent: over IPv4 and over IPv6.
const TABLE: [(u64, f64, f64); 5] = [
    (338, 75.740, 71.508),
    (594, 86.195, 83.388),
    (1106, 92.586, 90.941),
    (2130, 96.150, 95.256),
    (4178, 98.037, 97.570),
];
/// Bytes of a WRITE, path MTU, and Gbit/s of payload that WRITEs make of a line of 100 Gbit/s.
const WRITES: [(u64, u32, f64); 5] = [
    (64, 4096, 39.51),
    (256, 4096, 72.32),
    (1024, 4096, 91.27),
    (4096, 4096, 97.66),
    (1 << 20, 4096, 98.036),
];
/// Bytes of a message, and Gbit/s of payload with one at a time, 5 us of round trip and 100 Gbit/s.
const ALONE: [(u64, f64); 3] = [(4 << 10, 6.14), (64 << 10, 50.66), (1 << 20, 92.62)];
/// What a table of four or five digits allows.
const PRINTED: f64 = 0.000_1;

impl Experiment for E10 {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn run(&self, setup: &Setup, progress: &mut Progress) -> Result<Report> {
        let mut report = Report::new(&ABOUT, setup);
        progress.expect(MTUS.len() as u64);
        packets(&mut report);
        for mtu in MTUS {
            progress.step(format_args!("path MTU {mtu}"));
            messages(&mut report, setup, mtu)?;
        }
        rates(&mut report);
        report.plots = vec![shares(), sizes()];
        report.lesson = vec![
            "A RoCEv2 data packet carries 58 bytes of headers and checksums around its payload over IPv4, 4 more for the \
             Ethernet check sequence, and the line is busy for another 20: preamble, start of frame, and the gap to the \
             next frame. So a full packet costs payload + 82 bytes of line, and its path MTU decides what a program \
             can get: 75.7 % of the line with 256 bytes, 92.6 % with 1024, 98.0 % with 4096."
                .into(),
            "Three kinds of bytes must not be mixed. Programs count payload. Queues, buffers and thresholds count \
             frames. Lines, paces and utilisation count wire bytes. A simulator that charges one for another is off by \
             2 to 8 %, more than the tolerance of most experiments here."
                .into(),
            "Small messages lose more: a WRITE carries 16 bytes of address and length, and one of 64 bytes leaves \
             60 % of the line to headers. One message at a time loses most of all: the line waits for a round trip."
                .into(),
        ];
        report.note(
            "Other simulators reckon differently: a 14-byte layer 2 without preamble and gap, or in-band telemetry in \
             every packet. Compare payload rates only after comparing these bytes.",
        );
        Ok(report)
    }
}

/// Single packets, built by the library, against the sums of their headers.
fn packets(report: &mut Report) {
    let middle = write(Position::Middle);
    for (mtu, (bytes, v4, v6)) in MTUS.into_iter().zip(TABLE) {
        let on_wire = |ip| built(ip, middle, mtu) + GAP;
        let name = format!("WRITE packet, path MTU {mtu}");
        report.rows.push(Row::count(name, "wire B", on_wire(Ip::V4).into(), bytes));
        for (ip, name, share) in [(Ip::V4, "IPv4", v4), (Ip::V6, "IPv6", v6)] {
            let measured = 100.0 * f64::from(mtu) / f64::from(on_wire(ip));
            let metric = format!("payload of the line, path MTU {mtu}, {name}");
            report
                .rows
                .push(Row::within(metric, "%", measured, share, 0.000_1).from(Source::Exact));
        }
    }
    let first = write(Position::First);
    for (what, opcode, payload, bytes) in [
        ("first packet of a WRITE, path MTU 1024", first, 1024, 1122),
        ("first packet of a WRITE, path MTU 4096", first, 4096, 4194),
        ("ACK", Opcode::RC_ACK, 0, 86),
        ("READ request", Opcode::RC_READ_REQUEST, 0, 98),
        ("CNP", Opcode::CNP, 0, 98),
    ] {
        let measured = built(Ip::V4, opcode, payload) + GAP;
        report.rows.push(Row::count(what, "wire B", measured.into(), bytes));
    }
}

/// A message on a simulated network: all its packets, as a tap sees them, against the sum of their headers.
fn messages(report: &mut Report, setup: &Setup, mtu: u32) -> Result<()> {
    const LEN: u64 = 64 << 10;
    let path = Mtu::ALL.into_iter().find(|m| m.bytes() == mtu as usize).unwrap_or(Mtu::B4096);
    let sim = Sim::exact(setup.seed);
    let [a, b] = sim.hosts(Link::default());
    let seen = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&seen);
    sim.tap(move |packet| {
        // Requests only: ACKs go the other way.
        if packet.from == 0 {
            let datagram = u32::try_from(packet.bytes.len()).unwrap_or(u32::MAX);
            // All but Ethernet, IP and UDP is in the datagram.
            let around = frame(Ip::V4, 0, 1024) - (12 + 1024 + 4);
            counter.fetch_add(u64::from(datagram + around + GAP), Relaxed);
        }
        Verdict::Pass
    });
    let (pa, cq) = (a.alloc_pd()?, a.create_cq(16)?);
    let (pb, theirs) = (b.alloc_pd()?, b.create_cq(16)?);
    let x = pa.create_qp(QpType::Rc, &cq).build()?;
    let y = pb.create_qp(QpType::Rc, &theirs).build()?;
    x.connect_with(&y.endpoint(), QpAttr::default().path_mtu(path))?;
    y.connect_with(&x.endpoint(), QpAttr::default().path_mtu(path))?;
    let len = usize::try_from(LEN).unwrap_or(usize::MAX);
    let (src, dst) = (pa.alloc_mr(len, Access::LOCAL)?, pb.alloc_mr(len, Access::REMOTE)?);
    x.post_send(SendWr::write(1, src.sge(..), dst.remote()))?;
    cq.wait(Duration::from_secs(1))?.ok()?;
    sim.untap();
    let metric = format!("WRITE of 64 KiB on a simulated network, path MTU {mtu}");
    let row = Row::count(metric, "wire B", seen.load(Relaxed), write_wire(Ip::V4, LEN, mtu));
    report.rows.push(row);
    Ok(())
}

/// Gbit/s of payload that WRITEs of one size make of a line.
#[expect(clippy::cast_precision_loss, reason = "bytes of messages")]
fn goodput(len: u64, mtu: u32, gbits: f64) -> f64 {
    len as f64 / write_wire(Ip::V4, len, mtu) as f64 * gbits
}

#[expect(clippy::cast_precision_loss, reason = "bytes of messages")]
fn rates(report: &mut Report) {
    for (mtu, expected) in [(1024, 37.0344), (4096, 39.2149)] {
        let measured = 40.0 * Packet::of(mtu).share();
        let metric = format!("payload of a 40G line, path MTU {mtu}");
        report.rows.push(Row::within(metric, "Gbit/s", measured, expected, 0.000_1));
    }
    for (len, mtu, expected) in WRITES {
        let metric = format!("WRITEs of {len} B on 100G, path MTU {mtu}");
        report.rows.push(Row::within(
            metric,
            "Gbit/s",
            goodput(len, mtu, 100.0),
            expected,
            PRINTED,
        ));
    }
    for (len, expected) in ALONE {
        let seconds = 5e-6 + write_wire(Ip::V4, len, 4096) as f64 * 8.0 / 100e9;
        let measured = len as f64 * 8.0 / seconds / 1e9;
        let metric = format!("one WRITE of {len} B at a time, 100G, round trip 5 us");
        report.rows.push(Row::within(metric, "Gbit/s", measured, expected, 0.001));
    }
}

fn shares() -> Plot {
    let full = |ip: Ip, mtu: u32| 100.0 * f64::from(mtu) / f64::from(wire(ip, 0, mtu));
    let bar = |(ip, name, group): (Ip, &str, usize), mtu: u32| {
        Bar::new(format!("path MTU {mtu}, {name}"), full(ip, mtu)).group(group)
    };
    let both = |mtu| [(Ip::V4, "IPv4", 0), (Ip::V6, "IPv6", 1)].map(|of| bar(of, mtu));
    let bars = MTUS.into_iter().flat_map(both).collect();
    Plot {
        id: "share".into(),
        title: "Payload of the line, full packets".into(),
        what: What::Bars(Bars { unit: "%", bars }),
    }
}

#[expect(clippy::cast_precision_loss, reason = "bytes of messages")]
fn sizes() -> Plot {
    let lens: Vec<u64> = (3..=22).flat_map(|p| [1_u64 << p, 3 << (p - 1)]).collect();
    let of = |mtu: u32| {
        let points = lens.iter().map(|&len| (len as f64, goodput(len, mtu, 100.0)));
        Series::new(format!("path MTU {mtu}"), points.collect())
    };
    Plot {
        id: "size".into(),
        title: "WRITEs on a line of 100 Gbit/s: payload by size of message".into(),
        what: What::Lines(Lines {
            x: Axis::new("message", "B").log(),
            y: Axis::new("payload", "Gbit/s").range(0.0, 105.0),
            series: [256, 1024, 4096].map(of).into(),
            levels: vec![Level::new(100.0, "line")],
            window: None,
        }),
    }
}
