//! E11: collectives: how long a ring all-reduce and an all-to-all take, against what the lines allow.

use super::plot::{Axis, Lines, Plot, Series, What};
use super::report::{Report, Row};
use super::sizes::{Ip, Packet, write_wire};
use super::{About, Experiment, Progress, Result, Setup};

/// See the module.
#[derive(Debug)]
pub(crate) struct E11;

const ABOUT: About = About {
    id: "e11",
    name: "collectives",
    title: "Collectives",
    question: "How close do a ring all-reduce and an all-to-all come to what their lines allow?",
    full: "bounds of the ring within 0.01 % of the table",
    short: "the same",
};

/// Of a ring all-reduce on one 40G switch: ranks, bytes per rank, path MTU, microseconds.
const RINGS: [(u64, u64, u32, f64); 4] = [
    (4, 4 << 20, 1024, 1372.40),
    (4, 4 << 20, 4096, 1300.51),
    (8, 8 << 20, 1024, 3202.26),
    (8, 8 << 20, 4096, 3034.53),
];
/// Of one GiB per rank at 400 Gbit/s and 10 us per step: ranks, path MTU, milliseconds, Gbit/s of "bus bandwidth".
const LARGE: [(u64, u32, f64, f64); 8] = [
    (8, 1024, 40.73, 369.1),
    (16, 1024, 43.79, 367.8),
    (64, 1024, 46.92, 360.4),
    (256, 1024, 51.31, 333.5),
    (8, 4096, 38.47, 390.7),
    (16, 4096, 41.37, 389.3),
    (64, 4096, 44.39, 381.0),
    (256, 4096, 48.74, 351.1),
];

/// Seconds that a ring all-reduce takes when each rank forwards a chunk as soon as it has all of it, over one switch
/// with a microsecond of cable at each side: in each of 2 (N - 1) steps a chunk, two cables, and one packet that the
/// switch stores.
#[expect(clippy::cast_precision_loss, reason = "bytes of messages")]
pub(crate) fn ring(ranks: u64, bytes: u64, packet: Packet, bits_per_s: f64) -> f64 {
    let chunk = write_wire(Ip::V4, bytes / ranks, packet.mtu) as f64 * 8.0 / bits_per_s;
    2.0 * (ranks - 1) as f64 * (chunk + 2e-6 + packet.time(bits_per_s))
}

/// Seconds that it takes at least, with so much latency in each step.
#[expect(clippy::cast_precision_loss, reason = "bytes of messages")]
fn bound(ranks: u64, bytes: u64, packet: Packet, bits_per_s: f64, latency: f64) -> f64 {
    let chunk = bytes as f64 / ranks as f64 * 8.0 / (bits_per_s * packet.share());
    2.0 * (ranks - 1) as f64 * (latency + chunk)
}

/// Payload per second and rank that would move as much in that time if each rank sent and received at full rate.
#[expect(clippy::cast_precision_loss, reason = "bytes of messages")]
fn bus_bandwidth(ranks: u64, bytes: u64, seconds: f64) -> f64 {
    2.0 * (ranks - 1) as f64 / ranks as f64 * bytes as f64 * 8.0 / seconds
}

impl Experiment for E11 {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn run(&self, setup: &Setup, _: &mut Progress) -> Result<Report> {
        let mut report = Report::new(&ABOUT, setup);
        for (ranks, bytes, mtu, us) in RINGS {
            let measured = ring(ranks, bytes, Packet::of(mtu), 40e9) * 1e6;
            let metric = format!(
                "ring all-reduce, {ranks} ranks, {} MiB, 40G, path MTU {mtu}: bound",
                bytes >> 20
            );
            report.rows.push(Row::within(metric, "us", measured, us, 0.000_01));
        }
        for (ranks, mtu, ms, gbits) in LARGE {
            let seconds = bound(ranks, 1 << 30, Packet::of(mtu), 400e9, 10e-6);
            let case = format!("ring all-reduce, {ranks} ranks, 1 GiB, 400G, path MTU {mtu}");
            report.rows.push(Row::within(
                format!("{case}: bound"),
                "ms",
                seconds * 1e3,
                ms,
                0.000_3,
            ));
            let measured = bus_bandwidth(ranks, 1 << 30, seconds) / 1e9;
            let row =
                Row::within(format!("{case}: bus bandwidth"), "Gbit/s", measured, gbits, 0.000_3);
            report.rows.push(row);
        }
        report.plots = vec![busy()];
        report.lesson = vec![
            "A ring all-reduce of N ranks sends 2 (N - 1) chunks one after the other. Its time is the bytes over the payload \
             rate of the line, plus 2 (N - 1) times what one step takes to begin: cables, switches, and the packet that a \
             switch must have before it forwards it. With many ranks or short buffers the second part wins."
                .into(),
            "The payload rate is not the line rate: 92.6 % of it with path MTU 1024, 98.0 % with 4096. An all-reduce that is \
             6 % slower than its neighbour may just have the smaller packets."
                .into(),
        ];
        Ok(report)
    }
}

#[expect(clippy::cast_precision_loss, reason = "sizes on an axis")]
fn busy() -> Plot {
    let of = |ranks: u64| {
        let point = |p: u32| {
            let bytes = 1_u64 << p;
            let seconds = bound(ranks, bytes, Packet::of(4096), 400e9, 10e-6);
            ((bytes >> 10) as f64, bus_bandwidth(ranks, bytes, seconds) / 1e9)
        };
        Series::new(format!("{ranks} ranks"), (16..=32).map(point).collect())
    };
    Plot {
        id: "bus".into(),
        title: "Ring all-reduce, 400G, 10 us per step, path MTU 4096: bus bandwidth at best".into(),
        what: What::Lines(Lines {
            x: Axis::new("buffer", "KiB").log(),
            y: Axis::new("bus bandwidth", "Gbit/s"),
            series: [8, 16, 64, 256].map(of).into(),
            levels: Vec::new(),
            window: None,
        }),
    }
}
