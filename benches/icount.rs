//! What the engine costs, in instructions.
//!
//! Times on a shared machine say little, instructions are the same at every run: two engines with a wire of
//! memory between them work under valgrind's callgrind, each row twice with different numbers of operations,
//! so that what the making of queue pairs costs cancels out. The figures are compared with
//! `benches/icount.csv`; more than two percent worse is a failure.
//!
//! ```console
//! $ cargo bench --bench icount             # compare; needs valgrind
//! $ cargo bench --bench icount -- --bless  # the figures of now become the baseline
//! ```
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench that cannot go on may panic"
)]

#[path = "icount/pair.rs"]
mod pair;
#[path = "../tests/common/skip.rs"]
mod skip;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use pair::{Extras, Pair};
use softroce::internals::queue::SendOp;
use softroce::wire::num::Mtu;

/// How much more than the baseline is too much, in percent; and instructions that do not matter either way.
const TOLERANCE: f64 = 2.0;
const SLACK: f64 = 10.0;

/// A row: its name, the operation of which the cost is given, and how many of them the shorter run makes.
struct Row {
    name: &'static str,
    of: &'static str,
    short: u32,
    run: fn(u32),
}

const ROWS: &[Row] = &[
    Row { name: "send64_1_qp", of: "SEND", short: 2000, run: |n| sends(1, n) },
    Row { name: "send64_1000_qps", of: "SEND", short: 2000, run: |n| sends(1000, n) },
    Row { name: "send64_10000_qps", of: "SEND", short: 10_000, run: |n| sends(10_000, n) },
    Row { name: "send64_batched", of: "SEND", short: 64 * 50, run: batched },
    Row {
        name: "write_1m_4096",
        of: "packet",
        short: 256 * 4,
        run: |n| stream(SendOp::Write, Mtu::B4096, n, Extras::default()),
    },
    Row {
        name: "write_dcqcn_4096",
        of: "packet",
        short: 256 * 4,
        run: |n| stream(SendOp::Write, Mtu::B4096, n, Extras { dcqcn: true, elide: false }),
    },
    Row {
        name: "write_elided_4096",
        of: "packet",
        short: 256 * 4,
        run: |n| stream(SendOp::Write, Mtu::B4096, n, Extras { dcqcn: false, elide: true }),
    },
    Row {
        name: "write_1m_1024",
        of: "packet",
        short: 1024 * 2,
        run: |n| stream(SendOp::Write, Mtu::B1024, n, Extras::default()),
    },
    Row {
        name: "read_1m_4096",
        of: "packet",
        short: 256 * 4,
        run: |n| stream(SendOp::Read, Mtu::B4096, n, Extras::default()),
    },
    Row { name: "fetch_add", of: "atomic", short: 2000, run: atomics },
    Row { name: "no_such_qp", of: "packet", short: 5000, run: strays },
];

/// SENDs of 64 bytes, one after the other, each on the next of `qps` queue pairs.
fn sends(qps: usize, n: u32) {
    let mut pair = Pair::new(qps, Mtu::B4096);
    for i in 0..n as usize {
        pair.post_recv(i % qps, 64);
        pair.post(i % qps, SendOp::Send, 64, 1);
        pair.run();
        assert_eq!(pair.completions(), [1, 1]);
    }
}

/// SENDs of 64 bytes, 64 posted at once.
fn batched(n: u32) {
    let mut pair = Pair::new(1, Mtu::B4096);
    for _ in 0..n / 64 {
        for _ in 0..64 {
            pair.post_recv(0, 64);
        }
        pair.post(0, SendOp::Send, 64, 64);
        pair.run();
        assert_eq!(pair.completions(), [64, 64]);
    }
}

/// Messages of 1 MiB. `n` counts packets.
fn stream(op: SendOp, mtu: Mtu, n: u32, extras: Extras) {
    let mut pair = Pair::with(1, mtu, extras);
    for _ in 0..(n as usize * mtu.bytes()) >> 20 {
        pair.post(0, op, 1 << 20, 1);
        pair.run();
        assert_eq!(pair.completions(), [1, 0]);
    }
}

fn atomics(n: u32) {
    let mut pair = Pair::new(1, Mtu::B4096);
    for _ in 0..n {
        pair.post(0, SendOp::FetchAdd, 8, 1);
        pair.run();
        assert_eq!(pair.completions(), [1, 0]);
    }
}

/// Packets to a queue pair that is not there: what everybody on the network can make a device do.
fn strays(n: u32) {
    let mut pair = Pair::new(1, Mtu::B4096);
    for _ in 0..n {
        pair.stray();
    }
    assert_eq!(black_box(pair.completions()), [0, 0]);
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        // The run that valgrind watches.
        ["run", name, n] => {
            let row = ROWS.iter().find(|row| row.name == name).unwrap();
            (row.run)(n.parse().unwrap());
            ExitCode::SUCCESS
        }
        [] => compare(false),
        ["--bless"] => compare(true),
        _ => {
            println!("usage: cargo bench --bench icount [-- --bless]");
            ExitCode::from(2)
        }
    }
}

fn compare(bless: bool) -> ExitCode {
    if let Err(e) = Command::new("valgrind").arg("--version").output() {
        skip::skip(format_args!("valgrind: {e}"));
        return ExitCode::SUCCESS;
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/icount.csv");
    let baseline = read(&file);
    let mut csv = "row,instructions\n".to_owned();
    let mut worse = Vec::new();
    println!("{:<18} {:>14} {:>14} {:>8}", "row", "instructions", "baseline", "change");
    for row in ROWS {
        let long = row.short * 3;
        let spent = instructions(row.name, long) - instructions(row.name, row.short);
        let each = spent as f64 / f64::from(long - row.short);
        writeln!(csv, "{},{each:.1}", row.name).unwrap();
        let Some(before) = baseline.get(row.name) else {
            println!("{:<18} {each:>14.1} {:>14} {:>8}  per {}", row.name, "-", "new", row.of);
            worse.push(row.name);
            continue;
        };
        let change = (each / before - 1.0) * 100.0;
        println!("{:<18} {each:>14.1} {before:>14.1} {change:>7.1}%  per {}", row.name, row.of);
        if change > TOLERANCE && each > before + SLACK {
            worse.push(row.name);
        }
    }
    if bless {
        std::fs::write(&file, csv).unwrap();
        println!("written to {}", file.display());
        return ExitCode::SUCCESS;
    }
    if worse.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("more than {TOLERANCE} % above the baseline, or not in it: {}", worse.join(", "));
    println!(
        "If that is meant, `cargo bench --bench icount -- --bless`, and say why in the commit."
    );
    ExitCode::FAILURE
}

/// What callgrind counts in a run of this program.
fn instructions(row: &str, n: u32) -> u64 {
    let me: PathBuf = std::env::current_exe().unwrap();
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(me)
        .args(["run", row, &n.to_string()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().find_map(|line| line.split_once("Collected : "));
    let count = line.and_then(|(_, count)| count.trim().parse().ok());
    count.filter(|_| output.status.success()).unwrap_or_else(|| panic!("{row}: {said}"))
}

fn read(file: &Path) -> BTreeMap<String, f64> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let rows = text.lines().skip(1).filter_map(|line| line.split_once(','));
    rows.map(|(name, count)| (name.to_owned(), count.parse().unwrap())).collect()
}
