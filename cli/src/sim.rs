//! `softroce sim`: random programs on simulated networks, held against a reference model.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use serde::Serialize;
use softroce::internals::swarm::{Options, Outcome, Plan, run as carry_out, shrink};

use crate::args;
use crate::output::{BAD_INPUT, complain, count, print};

/// Try the device on simulated networks: random programs, random faults, every answer checked.
///
/// Each seed is a network of its own: hosts, connections, requests, and a schedule of faults. A seed always
/// gives the same run. One that fails is made smaller, and what happened is written to files.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Files of seed N that failed: softroce-sim-N.txt (what was done, and the packets),
softroce-sim-N.pcapng (for Wireshark).

Exit status: 0 if nothing failed, 1 if something did, 2 if a file could not be written.")]
pub(crate) struct Args {
    /// The seed, or the first of several
    #[arg(long, default_value = "1", value_name = "N", value_parser = args::seed)]
    seed: u64,
    /// How many seeds
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Stop only after more failures than this
    #[arg(long, default_value_t = 0, value_name = "N")]
    tolerate: u64,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Write the packets and the plan also of runs that do not fail
    #[arg(long)]
    keep: bool,
    /// Where files are written; made if it is not there
    #[arg(long, default_value = ".", value_name = "DIRECTORY")]
    out: PathBuf,
}

#[derive(Debug, Default, Serialize)]
struct Report {
    seeds: u64,
    failures: u64,
    trace_hash: String,
    packets: u64,
    requests: u64,
    #[serde(skip)]
    counters: BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failed: Vec<Failed>,
}

#[derive(Debug, Serialize)]
struct Failed {
    seed: u64,
    what: String,
}

#[expect(clippy::disallowed_methods, reason = "how long it took, for somebody who waits")]
pub(crate) fn run(args: &Args) -> ExitCode {
    let began = Instant::now();
    // Better now than after minutes.
    let Some(last) = args.seed.checked_add(args.seeds - 1) else {
        complain(format_args!(
            "sim: --seeds {} from {} on goes beyond the last seed, {}",
            args.seeds,
            args.seed,
            u64::MAX
        ));
        return ExitCode::from(BAD_INPUT);
    };
    if let Err(e) = fs::create_dir_all(&args.out) {
        complain(format_args!("sim: cannot make {}: {e}", args.out.display()));
        return ExitCode::from(BAD_INPUT);
    }
    let mut report = Report::default();
    let mut digest = 0_u64;
    for seed in args.seed..=last {
        if !args.json && args.seeds == 1 {
            let told = print(0, |out| writeln!(out, "seed {seed}"));
            if told != ExitCode::SUCCESS {
                return told;
            }
        }
        let plan = Plan::new(seed);
        let outcome = carry_out(&plan, &Options::default());
        report.seeds += 1;
        report.packets += outcome.packets;
        report.requests += outcome.requests;
        // Order counts.
        digest = (digest.rotate_left(5) ^ outcome.trace_hash).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for (name, n) in outcome.counters {
            *report.counters.entry(name).or_default() += n;
        }
        let kept = match outcome.failure {
            None if args.keep => keep(&plan, &args.out),
            None => Ok(()),
            Some(what) => {
                report.failures += 1;
                let told = tell(&plan, &what, &args.out);
                report.failed.push(Failed { seed, what });
                told
            }
        };
        if let Err(e) = kept {
            let stem = stem(&args.out, seed);
            complain(format_args!("sim: cannot write {}.txt and .pcapng: {e}", stem.display()));
            return ExitCode::from(BAD_INPUT);
        }
        if report.failures > args.tolerate {
            break;
        }
    }
    report.trace_hash = format!("{digest:016x}");
    let status = u8::from(report.failures > 0);
    print(status, |out| {
        if args.json {
            serde_json::to_writer(&mut *out, &report)?;
            return writeln!(out);
        }
        summary(out, &report, began.elapsed().as_secs_f64())
    })
}

fn summary(out: &mut dyn Write, report: &Report, seconds: f64) -> io::Result<()> {
    writeln!(
        out,
        "{}, {}, {}, {} in {seconds:.1} s ({:.0} thousand a second); trace {}",
        count(report.seeds, "seed"),
        count(report.failures, "failure"),
        count(report.requests, "request"),
        count(report.packets, "packet"),
        report.packets as f64 / 1000.0 / seconds.max(0.001),
        report.trace_hash
    )?;
    let happened = report.counters.iter().filter(|&(name, &n)| {
        n > 0 && !["_pkts", "_bytes", "_ns", "_exact"].iter().any(|end| name.ends_with(end))
    });
    for (name, n) in happened {
        writeln!(out, "{n:>12} {name}")?;
    }
    Ok(())
}

/// Says what failed, makes it smaller, and writes it down.
fn tell(plan: &Plan, what: &str, out: &Path) -> io::Result<()> {
    complain(format_args!("seed {}: {what}", plan.seed));
    complain(format_args!("repeat with: softroce sim --seed {}", plan.seed));
    let fails = |p: &Plan| carry_out(p, &Options::default()).failure.is_some();
    let smaller = shrink(plan, fails);
    let outcome = keep_plan(&smaller, out)?;
    complain(format_args!(
        "made smaller: {} of {} faults, {} of {} requests, {} packets: {}",
        smaller.faults.len(),
        plan.faults.len(),
        smaller.requests(),
        plan.requests(),
        outcome.packets,
        outcome.failure.as_deref().unwrap_or("which does not fail with the packets recorded")
    ));
    for fault in &smaller.faults {
        complain(format_args!("  {:?} to {:?}: {:?}", fault.from, fault.until, fault.what));
    }
    let stem = stem(out, plan.seed);
    complain(format_args!("see {}.txt and {}.pcapng", stem.display(), stem.display()));
    Ok(())
}

/// What the files of a seed are called, without the end of the name.
fn stem(out: &Path, seed: u64) -> PathBuf {
    out.join(format!("softroce-sim-{seed}"))
}

fn keep(plan: &Plan, out: &Path) -> io::Result<()> {
    keep_plan(plan, out).map(drop)
}

/// Runs a plan once more and writes down what happens.
fn keep_plan(plan: &Plan, out: &Path) -> io::Result<Outcome> {
    let stem = stem(out, plan.seed);
    let options = Options { trace: true, pcap: Some(stem.with_extension("pcapng")) };
    let outcome = carry_out(plan, &options);
    let mut file = io::BufWriter::new(fs::File::create(stem.with_extension("txt"))?);
    writeln!(file, "{}\n\n{plan:#?}\n", outcome.failure.as_deref().unwrap_or("nothing failed"))?;
    for line in &outcome.trace {
        writeln!(file, "{line}")?;
    }
    file.flush()?;
    Ok(outcome)
}
