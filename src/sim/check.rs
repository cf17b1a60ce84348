//! A test under many seeds, and what to show of the one that fails.
//!
//! *Rules.* The seeds run as fast as they can, without any recording. One that fails is run once more, the same by its
//! seed, with everything recorded: what a failure shows costs nothing before there is one.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use super::trace::{Diagram, Trace};
use super::{SEED_VARIABLE, Sim, seed_of_environment};
use crate::time::Duration;

/// Records that are kept of a run that failed, the last ones.
const RECORDS: usize = 50_000;
/// Lines that are shown of each connection, the last ones.
const LINES: usize = 24;
/// Connections that are shown, those with the latest packets.
const CONNECTIONS: usize = 4;

/// A seed under which a test has failed. `Display` shows all of it, over many lines.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// What the test said: its error, or the message of its panic.
    pub what: String,
    /// Virtual time at which it failed.
    pub at: Duration,
    /// A command that runs this seed alone.
    pub repeat: String,
    /// The last packets of all connections in one picture, if there are several: what one did to the other.
    pub together: Option<Diagram>,
    /// The last packets of each connection, those with the latest packets first.
    pub diagrams: Vec<Diagram>,
    /// Connections that are not shown.
    pub hidden: usize,
    /// A capture of the run, readable by Wireshark; or why there is none.
    pub capture: Result<PathBuf, String>,
    /// What the test said when it ran once more to be recorded, if that was something else: then it does not depend on
    /// its seed alone, and the rest is of that run.
    pub otherwise: Option<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {} failed after {:?}: {}", self.seed, self.at, self.what)?;
        writeln!(f, "repeat with: {}", self.repeat)?;
        if let Some(otherwise) = &self.otherwise {
            writeln!(
                f,
                "run once more, to be recorded, it did not fail the same way ({otherwise}): something in it does not \
                 follow from the seed"
            )?;
        }
        match &self.capture {
            Ok(path) => writeln!(f, "packets: {}", path.display())?,
            Err(why) => writeln!(f, "packets: no capture: {why}")?,
        }
        for diagram in self.together.iter().chain(&self.diagrams) {
            write!(f, "\n{diagram}")?;
        }
        if self.hidden > 0 {
            write!(f, "\n{} more connections are in the capture\n", self.hidden)?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

impl Sim {
    /// Runs a test on a simulation of each of these seeds, until one fails. For tests: the failure is a panic whose
    /// message tells what [`Failure`] holds.
    ///
    /// The test fails by an error or a panic (whose own message appears as well, twice: the seed that failed is run once
    /// more, to be recorded). With [`SEED_VARIABLE`] set, that seed is the only one. After the test the simulation is
    /// [ended](Self::end).
    ///
    /// ```
    /// use softroce::prelude::*;
    /// use softroce::sim::{Link, Sim};
    ///
    /// Sim::run_seeds(0..50, |sim| -> Result<()> {
    ///     let [a, b] = sim.hosts(Link { loss: 0.05, ..Link::default() });
    ///     let (pa, cq) = (a.alloc_pd()?, a.create_cq(16)?);
    ///     let (pb, theirs) = (b.alloc_pd()?, b.create_cq(16)?);
    ///     let (x, y) = (pa.create_qp(QpType::Rc, &cq).build()?, pb.create_qp(QpType::Rc, &theirs).build()?);
    ///     x.connect(&y.endpoint())?;
    ///     y.connect(&x.endpoint())?;
    ///     let lent = pb.alloc_mr(64, Access::REMOTE)?;
    ///     x.post_send(SendWr::write(1, inline(b"hello"), lent.remote()))?;
    ///     cq.wait(Duration::from_secs(10))?.ok()?;
    ///     assert_eq!(lent.to_vec(0..5), b"hello");
    ///     Ok(())
    /// });
    /// ```
    ///
    /// # Panics
    /// One has failed. [`SEED_VARIABLE`] is set to something that is not a number.
    #[track_caller]
    pub fn run_seeds<E: fmt::Display>(
        seeds: impl IntoIterator<Item = u64>,
        test: impl Fn(&Self) -> Result<(), E>,
    ) {
        if let Err(failure) = Self::try_seeds(seeds, test) {
            panic!("{failure}");
        }
    }

    /// The same for programs: gives the failure, or says how many seeds were run.
    ///
    /// # Errors
    /// The first failure.
    ///
    /// # Panics
    /// [`SEED_VARIABLE`] is set to something that is not a number.
    pub fn try_seeds<E: fmt::Display>(
        seeds: impl IntoIterator<Item = u64>,
        test: impl Fn(&Self) -> Result<(), E>,
    ) -> Result<u64, Box<Failure>> {
        let only = seed_of_environment().is_some();
        let mut runs = 0;
        for seed in seeds {
            let sim = Self::new(seed);
            runs += 1;
            let outcome = outcome(&sim, &test);
            sim.end();
            if let Err(what) = outcome {
                let (seed, at) = (sim.seed(), sim.now());
                drop(sim);
                return Err(Box::new(record(seed, what, at, &test)));
            }
            if only {
                break;
            }
        }
        Ok(runs)
    }
}

/// What a test says of a simulation.
fn outcome<E: fmt::Display>(
    sim: &Sim,
    test: &impl Fn(&Sim) -> Result<(), E>,
) -> Result<(), String> {
    match catch_unwind(AssertUnwindSafe(|| test(sim))) {
        Ok(said) => said.map_err(|e| e.to_string()),
        Err(panic) => Err(message(&*panic)),
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without a message".into())
}

/// Runs a seed that has failed once more.
fn record<E: fmt::Display>(
    seed: u64,
    what: String,
    at: Duration,
    test: &impl Fn(&Sim) -> Result<(), E>,
) -> Failure {
    let sim = Sim::new(seed);
    let path = capture_path(seed);
    let started = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    let started = started.map_err(|e| e.to_string());
    let started = started.and_then(|()| sim.pcap(&path).map_err(|e| e.to_string()));
    let trace = Trace::last(&sim, RECORDS);
    let again = outcome(&sim, test);
    let capture = started.and_then(|()| sim.stop_pcap().map_err(|e| e.to_string()));
    let all = trace.diagram();
    sim.end();
    let mut diagrams = all.connections();
    let together = (diagrams.len() > 1).then(|| all.last(LINES));
    let hidden = diagrams.len().saturating_sub(CONNECTIONS);
    diagrams.truncate(CONNECTIONS);
    let otherwise = match again {
        Err(again) if again == what => None,
        Err(again) => Some(again),
        Ok(()) => Some("it did not fail at all".into()),
    };
    Failure {
        seed,
        what,
        at,
        repeat: command(seed),
        together,
        diagrams: diagrams.into_iter().map(|d| d.last(LINES)).collect(),
        hidden,
        capture: capture.map(|()| path),
        otherwise,
    }
}

/// In a test its name, else that of the program.
fn name() -> String {
    let program = || {
        let exe = std::env::current_exe().ok()?;
        Some(exe.file_stem()?.to_string_lossy().into_owned())
    };
    let thread = std::thread::current();
    let name = thread.name().filter(|&name| name != "main").map(str::to_owned);
    name.or_else(program).unwrap_or_else(|| "softroce".into())
}

/// A command that runs the seed again.
fn command(seed: u64) -> String {
    let thread = std::thread::current();
    let args: Vec<String> =
        std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    match thread.name() {
        // The harness of tests names its threads after them.
        Some(test) if test != "main" => format!("{SEED_VARIABLE}={seed} cargo test {test}"),
        _ => format!("{SEED_VARIABLE}={seed} {}", args.join(" ")),
    }
}

/// A file for the capture: beside what cargo builds, or where temporary files go.
fn capture_path(seed: u64) -> PathBuf {
    let exe = std::env::current_exe().unwrap_or_default();
    // Cargo marks the directories that it makes.
    let target = exe.ancestors().find(|dir| dir.join("CACHEDIR.TAG").is_file());
    let base = target.map_or_else(std::env::temp_dir, Path::to_path_buf).join("softroce");
    let name: String =
        name().chars().map(|c| if c.is_alphanumeric() || c == '_' { c } else { '-' }).collect();
    base.join(format!("{name}-seed-{seed}.pcapng"))
}
