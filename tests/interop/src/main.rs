//! Scenarios between softroce and rdma_rxe, the Linux kernel's own RoCE in software, which runs in a virtual machine.
//!
//! Not called by hand: `tests/interop/run` builds what this needs. docs/interop.md has the matrix and the findings.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program that reports to people")]

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
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use crate::end::End;
use crate::guest::Guest;
use crate::kernel::Kernel;
use crate::matrix::{Cell, Fault};
use crate::ours::Ours;
use crate::relay::Relay;
use crate::report::{Line, Report};

/// A result whose error is for people.
pub(crate) type Res<T> = Result<T, String>;

const USAGE: &str =
    "usage: softroce-interop [--kernel V]... [--quick] [--rootless] [--only TEXT]... [--first]
                        [--limit SECONDS] [--cache DIR] [--out DIR] [--program FILE] [--pairs]";

/// What was asked for.
struct Options {
    kernels: Vec<String>,
    quick: bool,
    /// Without the parts that need root: only the frame port.
    rootless: bool,
    /// Only cells whose name has all of these words.
    only: Vec<String>,
    /// Stop after the first cell that fails.
    first: bool,
    /// Print the list of pairs made anew, and end.
    pairs: bool,
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
            first: false,
            pairs: false,
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
                "--first" => o.first = true,
                "--pairs" => o.pairs = true,
                "--limit" => {
                    o.limit =
                        Duration::from_secs(value()?.parse().map_err(|e| format!("--limit: {e}"))?)
                }
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
    /// The kernel is one before 6.2.
    old: bool,
}

impl Runner<'_> {
    fn cells(&mut self, us: &mut Ours, kernel: &mut Kernel, cells: Vec<Cell>) -> Res<()> {
        for cell in cells {
            let name = cell.to_string();
            if !self.options.wanted(&format!("{} {} {name}", self.kernel, self.port)) {
                continue;
            }
            self.may_go_on()?;
            let began = Instant::now();
            self.seed += 1;
            let result = scenario::run((us, kernel), self.relay, cell, self.seed, self.old);
            let (messages, failure) = match result {
                Ok(cost) => (cost.messages, None),
                Err(why) => (0, Some(why)),
            };
            if failure.is_some() {
                let counters = us.counters().unwrap_or_default();
                let counters: Vec<String> =
                    counters.iter().map(|(name, n)| format!("{name}={n}")).collect();
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
            self.may_go_on()?;
            let began = Instant::now();
            let failure = errors::run(us, kernel, self.relay, case, by).err();
            self.note(&name, began, 1, failure);
            if self.guest_is_gone(kernel) {
                return Err("the guest does not answer any more".into());
            }
        }
        Ok(())
    }

    /// The UDP port is not shown the identification that rdma_rxe has put into its ICRCs: it was found out, nothing
    /// was refused, and it is counted.
    fn hidden_identification(&mut self, us: &mut Ours) -> Res<()> {
        let name = "identification of IPv4 found out";
        if !self.options.only.is_empty() {
            return Ok(());
        }
        self.relay.begin(matrix::MTU);
        let began = Instant::now();
        let (recovered, inferred) = (us.counter("icrc_recovered")?, us.counter("icrc_inferred")?);
        let refused = us.counter("rx_icrc_encapsulated")?;
        self.report.notes.push(format!(
            "kernel {}, udp: {} packets with a right ICRC and all fields known, {recovered} with a likely identification, \
             {inferred} with another, {refused} refused",
            self.kernel,
            us.counter("icrc_exact")?
        ));
        let good = recovered > 0 && refused == 0;
        let failure = (!good)
            .then(|| format!("{recovered} recovered, {inferred} inferred, {refused} refused"));
        self.note(name, began, 0, failure);
        Ok(())
    }

    /// Where rdma_rxe is, our UDP port is not, and says why.
    fn coexistence(&mut self, kernel: &mut Kernel) -> Res<()> {
        let name = "coexistence: the port is taken";
        if !self.options.wanted(&format!("{} {} {name}", self.kernel, self.port)) {
            return Ok(());
        }
        self.relay.begin(matrix::MTU);
        let began = Instant::now();
        let (status, out) = kernel.guest.shell("/opt/softroce devinfo soft:eth0 2>&1")?;
        let good = status != 0 && out.contains("rdma_rxe") && out.contains("4791");
        let failure = (!good).then(|| format!("devinfo ends with {status}: {}", out.trim()));
        self.note(name, began, 0, failure);
        Ok(())
    }

    fn guest_is_gone(&self, kernel: &mut Kernel) -> bool {
        let failed = self.report.lines.last().is_some_and(|line| line.failure.is_some());
        failed && kernel.guest.ask("hello").is_err()
    }

    /// Whether another cell may be run: there is time, and no failure that ends it all.
    fn may_go_on(&self) -> Res<()> {
        if self.began.elapsed() >= self.options.limit {
            return Err(format!("not finished after {} s", self.options.limit.as_secs()));
        }
        let failed = self.report.lines.last().is_some_and(|line| line.failure.is_some());
        if self.options.first && failed {
            return Err("stopped after the first failure".into());
        }
        Ok(())
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
            let file =
                format!("{}-{}-{name}.pcapng", line.kernel, line.port).replace([' ', '='], "-");
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
fn with_kernel(
    options: &Options,
    report: &mut Report,
    version: &str,
    dir: &Path,
    began: Instant,
) -> Res<()> {
    let tap = if options.rootless { None } else { Some(tap::create("roce0", &TAP)?) };
    let relay = Relay::start(dir, tap)?;
    let booting = Instant::now();
    let extra = options.program.as_deref().map(|program| extra(program, dir)).transpose()?;
    let guest = Guest::start(&options.cache, version, dir, extra.as_deref())?;
    println!("kernel {} in {:.1} s", guest.version, booting.elapsed().as_secs_f64());
    let old = guest.version.starts_with("6.1.");
    let mut kernel = Kernel::new(guest)?;
    let mut runner = Runner {
        options,
        report,
        relay: &relay,
        kernel: version.to_owned(),
        port: "frames",
        began,
        seed: 0,
        old,
    };
    let known = |cells: Vec<Cell>| {
        cells.into_iter().filter(|cell| !(old && cell.row.is_new())).collect::<Vec<_>>()
    };
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
        if extra.is_some() {
            runner.coexistence(&mut kernel)?;
        }
        runner.cells(&mut us, &mut kernel, known(lengths))?;
        if !options.quick {
            runner.cells(&mut us, &mut kernel, known(matrix::pairs()))?;
        }
    }
    if !options.rootless {
        runner.port = "udp";
        let mut us = Ours::open("soft:roce0,quirk=rxe-flush")?;
        meet(&mut kernel, ["10.99.0.2", "fd99::2"])?;
        let clean = |cell: &Cell| cell.fault == Fault::Clean;
        let cells = matrix::faults().into_iter().filter(clean).chain(matrix::quick_lengths());
        runner.cells(&mut us, &mut kernel, known(cells.collect()))?;
        runner.hidden_identification(&mut us)?;
    }
    Ok(())
}

/// A directory whose files the guest gets: our command line tool.
fn extra(program: &Path, dir: &Path) -> Res<PathBuf> {
    let extra = dir.join("extra");
    let to = extra.join("opt/softroce");
    let out = Command::new("install")
        .args(["-s", "-D"])
        .args([program, &to])
        .output()
        .map_err(|e| format!("install: {e}"))?;
    if out.status.success() {
        Ok(extra)
    } else {
        Err(String::from_utf8_lossy(&out.stderr).into_owned())
    }
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

/// What is not run, on purpose.
fn leave_out(options: &Options, report: &mut Report) {
    let run = if options.quick {
        matrix::quick_faults().len() + matrix::quick_lengths().len()
    } else {
        matrix::faults().len() + matrix::lengths().len() + matrix::pairs().len()
    };
    let why = "of the product of all columns on one port and kernel, what the lists leave out";
    report.left_out.push((why.into(), matrix::product().saturating_sub(run)));
    if options.kernels.iter().any(|kernel| kernel == "6.1") {
        let new = matrix::faults()
            .into_iter()
            .chain(matrix::lengths())
            .filter(|cell| cell.row.is_new())
            .count();
        report.left_out.push(("kernel 6.1 has no ATOMIC WRITE and no FLUSH".into(), new));
    }
    report.left_out.push((
        "ATOMIC WRITE and FLUSH by the kernel with random losses, FLUSH by us: rdma_rxe repeats them wrongly".into(),
        2 * 2 * 2 + 2,
    ));
    if options.rootless {
        report.left_out.push((
            "the UDP port needs a TAP device, and so root".into(),
            matrix::quick_lengths().len(),
        ));
    }
}

fn run(options: &Options, report: &mut Report) -> Res<()> {
    fs::create_dir_all(&options.out).map_err(|e| format!("{}: {e}", options.out.display()))?;
    // Sockets have short names only.
    let dir = std::env::temp_dir().join(format!("softroce-interop-{}", std::process::id()));
    fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let began = Instant::now();
    let mut result = Ok(());
    leave_out(options, report);
    for version in &options.kernels {
        result = with_kernel(options, report, version, &dir, began)
            .map_err(|e| format!("kernel {version}: {e}"));
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
    if options.pairs {
        println!(
            "# Pairs of columns that the other lists leave out; `softroce-interop --pairs` makes this anew."
        );
        for cell in matrix::choose_pairs() {
            println!("{cell}");
        }
        return ExitCode::SUCCESS;
    }
    let mut report = Report::default();
    let result = run(&options, &mut report);
    if let Err(e) = report.save(&options.out) {
        eprintln!("{e}");
    }
    if let Err(e) = &result {
        report.notes.push(format!("broken off: {e}"));
    }
    print!("{}", report.summary());
    if result.is_ok() && report.failed() == 0 && report.passed() > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
