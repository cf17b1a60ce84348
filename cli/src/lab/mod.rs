//! `softroce lab`: experiments on RoCE networks, each number beside what it should be.
//!
//! An [`Experiment`] makes a [`Report`]: rows with their rules ([`report`]), plots ([`plot`], [`svg`]), a picture of
//! the network ([`drawing`]). What is expected comes from counting bytes ([`sizes`]), from formulas ([`theory`],
//! [`fluid`]), or from an independent model. [`html`] makes a page of it.
//!
//! *Rules.* A seed gives the same rows to the last digit. An experiment whose numbers are not as expected is no
//! error: the exit status says so, and the row why it may be.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::output::{BAD_INPUT, complain, print};

mod bench;
mod drawing;
mod e1;
mod e10;
mod e11;
mod e12;
mod e2;
mod e3;
mod e4;
mod e5;
mod e6;
mod e7;
mod e8;
mod e9;
mod fluid;
mod html;
mod net;
mod plot;
mod report;
mod sizes;
mod star;
mod svg;
mod theory;
mod traffic;
mod user;
mod watch;
mod worst;

use report::{Note, Report};
use user::Custom;

/// Experiments on RoCE networks, with expected values and a verdict.
///
/// How two flows come to equal rates, who suffers from a pause, what a queue settles at: each experiment runs the
/// NIC's own transport on simulated switches and holds every number against theory. The same seed gives the same
/// numbers.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:

    softroce lab list
    softroce lab run parking-lot --short
    softroce lab run all --out pages     (open pages/index.html)
    softroce lab run mine.toml           (see docs/lab.md for what may stand in it)

Exit status: 0 if all numbers are as expected, 1 if some are not, 2 on bad input.")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Which experiments there are, and what each of them asks
    List {
        /// Say too by which rules each of them passes
        #[arg(short, long)]
        verbose: bool,
        /// Print a JSON array instead of text
        #[arg(long)]
        json: bool,
    },
    /// Run experiments
    Run(RunArgs),
    /// How fast the simulator is on this machine
    Bench(bench::BenchArgs),
}

#[derive(Debug, clap::Args)]
struct RunArgs {
    /// Names or numbers of experiments (see `list`), `all`, or files of one's own (FILE.toml)
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// The seed, or the first of several [default: 1, or what a file says]
    #[arg(long, value_name = "N", value_parser = crate::args::seed)]
    seed: Option<u64>,
    /// Write result.json, the plots as .svg and page.html into this directory; of several experiments, each into
    /// one of its own below it, and index.html
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Shorter runs with wider rules: seconds instead of minutes. Files say themselves how long they run
    #[arg(long)]
    short: bool,
    /// Print JSON instead of text: an object, or of several experiments an array
    #[arg(long)]
    json: bool,
}

/// What is known of an experiment before it runs.
#[derive(Debug, Serialize)]
pub(crate) struct About {
    /// Its number.
    pub(crate) id: &'static str,
    /// What it is called: letters and `-`.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) question: &'static str,
    /// When the long variant passes, in words.
    pub(crate) full: &'static str,
    /// When the short variant passes.
    pub(crate) short: &'static str,
}

/// Something to find out.
pub(crate) trait Experiment: Sync {
    fn about(&self) -> &'static About;

    /// Runs it.
    ///
    /// # Errors
    /// It could not be run. Numbers that are not as expected are none.
    fn run(&self, setup: &Setup, progress: &mut Progress) -> Result<Report>;
}

/// How an experiment is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    pub(crate) short: bool,
}

impl Setup {
    /// One of two values, by the variant.
    pub(crate) fn pick<T>(&self, short: T, full: T) -> T {
        if self.short { short } else { full }
    }
}

impl Report {
    /// Nothing found yet.
    pub(crate) fn new(about: &About, setup: &Setup) -> Self {
        Self {
            name: about.name.into(),
            title: about.title.into(),
            question: about.question.into(),
            argument: None,
            lesson: Vec::new(),
            seed: setup.seed,
            short: setup.short,
            rules: setup.pick(about.short, about.full).into(),
            rows: Vec::new(),
            plots: Vec::new(),
            drawing: None,
            notes: Vec::<Note>::new(),
        }
    }
}

/// How far an experiment is, for somebody who waits. Silent unless the standard error is a terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    fn new(name: impl Into<std::borrow::Cow<'static, str>>) -> Self {
        // Hides itself where nobody looks.
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template("{prefix} {bar:30} {pos}/{len} {msg}");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        bar.set_prefix(name);
        Self { bar }
    }

    /// There will be so many steps more.
    pub(crate) fn expect(&self, steps: u64) {
        self.bar.inc_length(steps);
    }

    /// The next step begins.
    pub(crate) fn step(&self, what: impl fmt::Display) {
        self.bar.inc(1);
        self.bar.set_message(what.to_string());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Why there is no result.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What was asked for cannot be.
    Usage(String),
    /// It went wrong.
    Run(String),
}

impl From<softroce::verbs::Error> for Failure {
    fn from(e: softroce::verbs::Error) -> Self {
        Self::Run(e.to_string())
    }
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// All experiments, in the order of their numbers.
const ALL: &[&dyn Experiment] = &[
    &e1::E1,
    &e2::E2,
    &e3::E3,
    &e4::E4,
    &e5::E5,
    &e6::E6,
    &e7::E7,
    &e8::E8,
    &e9::E9,
    &e10::E10,
    &e11::E11,
    &e12::E12,
];

pub(crate) fn run(args: &Args) -> ExitCode {
    let done = match &args.what {
        What::List { verbose, json } => return list(*verbose, *json),
        What::Run(args) => run_all(args),
        What::Bench(args) => bench::bench(args),
    };
    let (what, status) = match done {
        Ok(status) => return status,
        Err(Failure::Usage(what)) => (what, BAD_INPUT),
        Err(Failure::Run(what)) => (what, 1),
    };
    // It may repeat what stands in a file.
    complain(format_args!("lab: {}", report::harmless(&what)));
    ExitCode::from(status)
}

fn list(verbose: bool, json: bool) -> ExitCode {
    print(0, |out| {
        if json {
            let all: Vec<_> = ALL.iter().map(|e| e.about()).collect();
            serde_json::to_writer(&mut *out, &all)?;
            return writeln!(out);
        }
        for about in ALL.iter().map(|e| e.about()) {
            let About { id, name, title, question, full, short } = about;
            writeln!(out, "{id:<4} {name:<16} {title}")?;
            writeln!(out, "     {question}")?;
            if verbose {
                writeln!(out, "     passes if: {full}")?;
                writeln!(out, "     --short:   {short}")?;
            }
        }
        Ok(())
    })
}

/// What is to be run.
enum Chosen {
    Named(&'static dyn Experiment),
    Custom(Box<Custom>),
}

impl Chosen {
    fn name(&self) -> String {
        match self {
            Self::Named(experiment) => experiment.about().name.to_owned(),
            Self::Custom(custom) => custom.name().to_owned(),
        }
    }

    fn run(&self, args: &RunArgs, progress: &mut Progress) -> Result<Report> {
        match self {
            Self::Named(experiment) => {
                let setup = Setup { seed: args.seed.unwrap_or(1), short: args.short };
                experiment.run(&setup, progress)
            }
            Self::Custom(custom) => custom.run(args.seed, progress),
        }
    }
}

/// The experiments of these names, in the order in which they were named. Files are read.
fn chosen(names: &[String]) -> Result<Vec<Chosen>> {
    let mut all = Vec::new();
    for name in names {
        if Custom::is_file(name) {
            all.push(Chosen::Custom(Box::new(Custom::read(name)?)));
        } else {
            all.extend(named(name)?.into_iter().map(Chosen::Named));
        }
    }
    Ok(all)
}

/// The experiment of a name, or all of them.
fn named(name: &str) -> Result<Vec<&'static dyn Experiment>> {
    if name == "all" {
        return Ok(ALL.to_vec());
    }
    let is_it = |e: &&&dyn Experiment| {
        let about = e.about();
        about.name == name || about.id.eq_ignore_ascii_case(name) || about.id[1..] == *name
    };
    match ALL.iter().find(is_it) {
        Some(experiment) => Ok(vec![*experiment]),
        None => {
            let all: Vec<_> = ALL.iter().map(|e| e.about().name).collect();
            let all = all.join(", ");
            let what = format!(
                "there is no experiment {name}: wanted 1 to {}, {all}, all, or FILE.toml",
                ALL.len()
            );
            Err(Failure::Usage(what))
        }
    }
}

/// Whether each may have a directory of its own beside the index.
fn apart(chosen: &[Chosen]) -> Result<()> {
    let mut seen = BTreeSet::from(["index.html".to_owned(), "result.json".to_owned()]);
    for experiment in chosen {
        let name = experiment.name();
        if !seen.insert(name.clone()) {
            let what = format!(
                "--out: something else is written to {name} there already: give the experiment another `name`, or run it once"
            );
            return Err(Failure::Usage(what));
        }
    }
    Ok(())
}

fn run_all(args: &RunArgs) -> Result<ExitCode> {
    let chosen = chosen(&args.names)?;
    let several = chosen.len() > 1;
    if let Some(out) = &args.out {
        if several {
            apart(&chosen)?;
        }
        // Better now than after minutes.
        written(out, fs::create_dir_all(out))?;
    }
    let mut reports = Vec::new();
    for experiment in chosen {
        let mut progress = Progress::new(experiment.name());
        let report = experiment.run(args, &mut progress)?;
        drop(progress);
        if let Some(out) = &args.out {
            let dir = if several { out.join(&*report.name) } else { out.clone() };
            write_files(&report, &dir, several)?;
        }
        if !args.json {
            let shown = print(0, |out| {
                report.print(out)?;
                if several { writeln!(out) } else { Ok(()) }
            });
            if shown != ExitCode::SUCCESS {
                return Ok(shown);
            }
        }
        reports.push(report);
    }
    if let (Some(out), true) = (&args.out, several) {
        write(&out.join("index.html"), &html::index(&reports))?;
        let all = all_json(&reports).map_err(|e| Failure::Run(e.to_string()))?;
        write(&out.join("result.json"), &all)?;
    }
    let status = u8::from(reports.iter().any(|r| !r.ok()));
    Ok(print(status, |out| match (&reports[..], args.json) {
        (_, false) => Ok(()),
        ([one], _) => out.write_all(one.json()?.as_bytes()),
        (all, _) => out.write_all(all_json(all)?.as_bytes()),
    }))
}

fn all_json(reports: &[Report]) -> io::Result<String> {
    let all: Vec<_> = reports.iter().map(Report::verdict).collect();
    let mut text = serde_json::to_string_pretty(&all)?;
    text.push('\n');
    Ok(text)
}

/// Everything about an experiment, as files. `up`: there is an index above.
fn write_files(report: &Report, dir: &Path, up: bool) -> Result<()> {
    written(dir, fs::create_dir_all(dir))?;
    let json = report.json().map_err(|e| Failure::Run(e.to_string()))?;
    write(&dir.join("result.json"), &json)?;
    if let Some(drawing) = &report.drawing {
        write(&dir.join("network.svg"), &drawing.draw(&report.title).file())?;
    }
    for plot in &report.plots {
        write(&dir.join(format!("{}.svg", plot.id)), &svg::draw(plot).file())?;
    }
    write(&dir.join("page.html"), &html::page(report, up))
}

fn write(path: &Path, text: &str) -> Result<()> {
    written(path, fs::write(path, text))
}

fn written(path: &Path, how: io::Result<()>) -> Result<()> {
    how.map_err(|e| Failure::Usage(format!("cannot write {}: {e}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experiments_have_names_of_their_own() {
        let mut seen = BTreeSet::new();
        for about in ALL.iter().map(|e| e.about()) {
            assert!(seen.insert(about.id) && seen.insert(about.name), "{about:?}");
            let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(about.name.chars().all(is_plain) && about.name != "all", "{about:?}");
            for text in [about.title, about.question, about.full, about.short] {
                assert!(!text.is_empty(), "{about:?}");
            }
        }
    }

    #[test]
    fn they_are_found_by_name_and_number() {
        let names = |text: &str| {
            let names: Vec<String> = text.split(' ').map(String::from).collect();
            chosen(&names).map(|all| all.iter().map(Chosen::name).collect::<Vec<_>>())
        };
        assert_eq!(names("E10 overhead").unwrap(), ["overhead", "overhead"]);
        assert_eq!(names("all").unwrap().len(), ALL.len());
        assert!(
            matches!(names("overheads"), Err(Failure::Usage(what)) if what.contains("overhead, "))
        );
    }

    /// The short variant of an experiment passes, and comes to the same bytes again.
    fn passes_and_repeats(name: &str) {
        let experiment = named(name).unwrap()[0];
        let run = || {
            let setup = Setup { seed: 1, short: true };
            experiment.run(&setup, &mut Progress::new("test")).unwrap()
        };
        let (first, second) = (run(), run());
        assert!(first.ok(), "{:#?}", first.rows.iter().filter(|r| !r.ok).collect::<Vec<_>>());
        assert_eq!(first.json().unwrap(), second.json().unwrap());
        assert_eq!(html::page(&first, true), html::page(&second, true));
        assert!(!first.rows.is_empty() && !first.plots.is_empty() && !first.lesson.is_empty());
    }

    /// A test for each, so that they run side by side.
    macro_rules! short_runs {
        ($($test:ident $name:literal)*) => {
            #[test]
            fn all_experiments_are_tested() {
                let tested = [$($name),*];
                assert_eq!(ALL.iter().map(|e| e.about().name).collect::<Vec<_>>(), tested);
            }
            mod short_runs {
                $(#[test] fn $test() { super::passes_and_repeats($name); })*
            }
        };
    }
    short_runs! {
        convergence "convergence"
        parking_lot "parking-lot"
        victim "victim"
        ecn_before_pfc "ecn-before-pfc"
        queue "queue"
        stability "stability"
        storm "storm"
        loss "loss"
        hol "hol"
        overhead "overhead"
        collectives "collectives"
        deadlock "deadlock"
    }
}
