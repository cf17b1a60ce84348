//! Scenarios between softroce and rdma_rxe, the Linux kernel's own RoCE in software, which runs in a virtual machine.
//!
//! Not called by hand: `tests/interop/run` builds what this needs. docs/interop.md has the matrix and the findings.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that reports to people")]

mod end;
mod errors;
mod guest;
mod kernel;
mod matrix;
mod ours;
mod relay;
mod report;
mod scenario;
mod tap;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::guest::Guest;
use crate::kernel::Kernel;
use crate::matrix::{Cell, Fault};
use crate::ours::Ours;
use crate::relay::Relay;
use crate::report::{Line, Report};

/// A result whose error is for people.
pub(crate) type Res<T> = Result<T, String>;

const USAGE: &str = "usage: softroce-interop [--kernel V]... [--quick] [--rootless] [--only TEXT]... [--limit SECONDS]
                        [--cache DIR] [--out DIR] [--program FILE] [--list]";

/// What was asked for.
struct Options {
    kernels: Vec<String>,
    quick: bool,
    /// Without the parts that need root: only the frame port.
    rootless: bool,
    /// Only cells whose name has all of these words.
    only: Vec<String>,
    list: bool,
    limit: Duration,
    cache: PathBuf,
    out: PathBuf,
    /// The command line tool, to be run in the guest.
    program: Option<PathBuf>,
}

impl Options {
    fn parse(args: impl Iterator<Item = String>) -> Res<Self> {
        let mut o = Self {
            kernels: Vec::new(),
            quick: false,
            rootless: false,
            only: Vec::new(),
            list: false,
            limit: Duration::from_secs(1800),
            cache: PathBuf::from("/nonexistent"),
            out: PathBuf::from("target/interop"),
            program: None,
        };
        let mut args = args;
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} wants a value\n{USAGE}"));
            match arg.as_str() {
                "--kernel" => o.kernels.push(value()?),
                "--quick" => o.quick = true,
                "--rootless" => o.rootless = true,
                "--only" => o.only.push(value()?),
                "--list" => o.list = true,
                "--limit" => o.limit = Duration::from_secs(value()?.parse().map_err(|e| format!("--limit: {e}"))?),
                "--cache" => o.cache = value()?.into(),
                "--out" => o.out = value()?.into(),
                "--program" => o.program = Some(value()?.into()),
                _ => return Err(format!("{arg}?\n{USAGE}")),
            }
        }
        if o.kernels.is_empty() {
            o.kernels = vec!["6.12".into()];
            if !o.quick {
                o.kernels.insert(0, "6.1".into());
            }
        }
        Ok(o)
    }

    fn wanted(&self, name: &str) -> bool {
        self.only.iter().all(|part| name.contains(part.as_str()))
    }
}

/// Runs one thing with a name, and notes what comes of it.
struct Runner<'a> {
    options: &'a Options,
    report: &'a mut Report,
    relay: &'a Relay,
    kernel: String,
    port: &'static str,
    began: Instant,
    seed: u64,
}

impl Runner<'_> {
    fn cells(&mut self, us: &mut Ours, kernel: &mut Kernel, cells: Vec<Cell>) -> Res<()> {
        for cell in cells {
            let name = cell.to_string();
            if !self.options.wanted(&format!("{} {} {name}", self.kernel, self.port)) {
                continue;
            }
            self.within_limit()?;
            let began = Instant::now();
            self.seed += 1;
            let result = scenario::run(us, kernel, self.relay, cell, self.seed);
            let (messages, failure) = match result {
                Ok(cost) => (cost.messages, None),
                Err(why) => (0, Some(why)),
            };
            if failure.is_some() {
                let counters = us.counters().unwrap_or_default();
                let counters: Vec<String> = counters.iter().map(|(name, n)| format!("{name}={n}")).collect();
                eprintln!("  softroce's counters: {}", counters.join(" "));
            }
            self.note(&name, began, messages, failure);
            if self.guest_is_gone(kernel) {
                return Err("the guest does not answer any more".into());
            }
        }
        Ok(())
    }

    fn errors(&mut self, us: &mut Ours, kernel: &mut Kernel) -> Res<()> {
        for (name, case, by) in errors::names() {
            if !self.options.wanted(&format!("{} {} {name}", self.kernel, self.port)) {
                continue;
            }
            self.within_limit()?;
            let began = Instant::now();
            let failure = errors::run(us, kernel, self.relay, case, by).err();
            self.note(&name, began, 1, failure);
            if self.guest_is_gone(kernel) {
                return Err("the guest does not answer any more".into());
            }
        }
        Ok(())
    }

    fn guest_is_gone(&self, kernel: &mut Kernel) -> bool {
        let failed = self.report.lines.last().is_some_and(|line| line.failure.is_some());
        failed && kernel.guest.ask("hello").is_err()
    }

    fn within_limit(&self) -> Res<()> {
        if self.began.elapsed() < self.options.limit {
            return Ok(());
        }
        Err(format!("not finished after {} s", self.options.limit.as_secs()))
    }

    fn note(&mut self, name: &str, began: Instant, messages: usize, failure: Option<String>) {
        let stats = self.relay.stats();
        let line = Line {
            kernel: self.kernel.clone(),
            port: self.port,
            cell: name.to_owned(),
            failure,
            messages,
            packets: stats.packets,
            dropped: stats.dropped,
            overtaken: stats.overtaken,
            again: stats.again,
            millis: began.elapsed().as_millis(),
        };
        let verdict = if line.failure.is_none() { "ok" } else { "FAILED" };
        println!(
            "{:>6.1} {} {:<6} {:<52} {verdict:<6} {:>6} packets {:>4} lost {:>4} again {:>6} ms",
            self.began.elapsed().as_secs_f64(),
            line.kernel,
            line.port,
            line.cell,
            line.packets,
            line.dropped,
            line.again,
            line.millis,
        );
        if let Some(why) = &line.failure {
            let file = format!("{}-{}-{name}.pcapng", line.kernel, line.port).replace([' ', '='], "-");
            let path = self.options.out.join(file);
            println!("       {why}");
            match self.relay.save(&path) {
                Ok(()) => println!("       packets: {}", path.display()),
                Err(e) => println!("       no capture: {e}"),
            }
        }
        self.report.lines.push(line);
    }
}

/// Our addresses.
const FRAMES: &str = "ip=10.99.0.1/24,ip=fd99::1/64,mtu=9000,quirk=rxe-flush";
const TAP: [&str; 2] = ["10.99.0.2/24", "fd99::2/64"];

/// Everything with one kernel.
fn with_kernel(options: &Options, report: &mut Report, version: &str, dir: &Path, began: Instant) -> Res<()> {
    let tap = if options.rootless { None } else { Some(tap::create("roce0", &TAP)?) };
    let relay = Relay::start(dir, tap)?;
    let booting = Instant::now();
    let guest = Guest::start(&options.cache, version, dir, None)?;
    println!("kernel {} in {:.1} s", guest.version, booting.elapsed().as_secs_f64());
    let old = guest.version.starts_with("6.1.");
    let mut kernel = Kernel::new(guest)?;
    let mut runner =
        Runner { options, report, relay: &relay, kernel: version.to_owned(), port: "frames", began, seed: 0 };
    let known = |cells: Vec<Cell>| cells.into_iter().filter(|cell| !(old && cell.row.is_new())).collect::<Vec<_>>();
    let (faults, lengths) = if options.quick {
        (matrix::quick_faults(), matrix::quick_lengths())
    } else {
        (matrix::faults(), matrix::lengths())
    };
    {
        let socket = |name: &str| dir.join(name).display().to_string();
        let device = format!("soft:frames={},peer={},{FRAMES}", socket("us"), socket("relay-us"));
        let mut us = Ours::open(&device)?;
        meet(&mut kernel, ["10.99.0.1", "fd99::1"])?;
        runner.cells(&mut us, &mut kernel, known(faults))?;
        runner.errors(&mut us, &mut kernel)?;
        runner.cells(&mut us, &mut kernel, known(lengths))?;
    }
    if !options.rootless {
        runner.port = "udp";
        let mut us = Ours::open("soft:roce0,quirk=rxe-flush")?;
        meet(&mut kernel, ["10.99.0.2", "fd99::2"])?;
        let clean = |cell: &Cell| cell.fault == Fault::Clean;
        let cells = matrix::faults().into_iter().filter(clean).chain(matrix::quick_lengths());
        runner.cells(&mut us, &mut kernel, known(cells.collect()))?;
    }
    Ok(())
}

/// The guest learns the hardware addresses of ours: its driver waits no longer than a second for that.
fn meet(kernel: &mut Kernel, addresses: [&str; 2]) -> Res<()> {
    for address in addresses {
        let (status, out) = kernel.guest.shell(&format!("ping -c 1 -W 10 {address}"))?;
        if status != 0 {
            return Err(format!("the guest does not reach {address}: {out}"));
        }
    }
    Ok(())
}

fn run(options: &Options, report: &mut Report) -> Res<()> {
    fs::create_dir_all(&options.out).map_err(|e| format!("{}: {e}", options.out.display()))?;
    // Sockets have short names only.
    let dir = std::env::temp_dir().join(format!("softroce-interop-{}", std::process::id()));
    fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let began = Instant::now();
    let mut result = Ok(());
    for version in &options.kernels {
        result = with_kernel(options, report, version, &dir, began).map_err(|e| format!("kernel {version}: {e}"));
        if result.is_err() {
            break;
        }
    }
    let _ = fs::remove_dir_all(&dir);
    result
}

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(e) => {
            eprintln!("{e}");
            return ExitCode::from(2);
        }
    };
    let mut report = Report::default();
    let result = run(&options, &mut report);
    if let Err(e) = report.save(&options.out) {
        eprintln!("{e}");
    }
    if let Err(e) = &result {
        report.notes.push(format!("broken off: {e}"));
    }
    print!("{}", report.summary());
    if result.is_ok() && report.failed() == 0 && report.passed() > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
