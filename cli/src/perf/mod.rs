//! `softroce perf`: how fast it is, in perftest's words.
//!
//! Two processes, a server and a client, agree over TCP ([`control`]) on what to measure; the client decides
//! and the server does its part. Each side makes the same objects ([`side`]); the loops that are timed are
//! in [`bandwidth`] and [`latency`], what they print in [`report`]. [`sweep`] runs many of them and draws
//! the result; [`ratios`] compares the engine with what
//! the same sockets can do without it.
//!
//! *Rules.* What is timed touches nothing but verbs and the clock. Every wait is bounded. Bad input is one
//! line and exit status 2, a run that failed one line and exit status 1.

use std::fmt;
use std::io;
use std::process::ExitCode;

use crate::output;

mod bandwidth;
pub(crate) mod control;
mod latency;
mod options;
mod ratios;
mod report;
mod session;
mod side;
mod sweep;

pub(crate) use options::PORT;
use options::{Kind, Options};
pub(crate) use side::open;

/// Measure bandwidth and latency between two processes or machines.
///
/// Tests, flags and columns are those of perftest (ib_write_bw and its kin) where they mean the same.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Start the server first, without HOST:

    softroce perf write_bw

It prints what to type in another shell, on this machine or another one: the same with its address. What is
measured (-s, -n, -q, ...) is said at the client and followed by the server; -d, -p and the format of the
output are each side's own. The same with both sides started by one command:

    softroce perf write_bw --local

Exit status: 0 if all was measured and the data arrived right, 1 if not, 2 on bad input.")]
pub(crate) struct Args {
    #[command(subcommand)]
    test: Test,
}

#[derive(Debug, clap::Subcommand)]
enum Test {
    /// Bandwidth of WRITE
    #[command(name = "write_bw")]
    WriteBw(Options),
    /// Bandwidth of READ
    #[command(name = "read_bw")]
    ReadBw(Options),
    /// Bandwidth of SEND
    #[command(name = "send_bw")]
    SendBw(Options),
    /// Rate of FETCH AND ADD
    #[command(name = "atomic_bw")]
    AtomicBw(Options),
    /// Latency of WRITE: half of a round trip
    #[command(name = "write_lat")]
    WriteLat(Options),
    /// Latency of READ: from posting to completion
    #[command(name = "read_lat")]
    ReadLat(Options),
    /// Latency of SEND: half of a round trip
    #[command(name = "send_lat")]
    SendLat(Options),
    /// Latency of FETCH AND ADD: from posting to completion
    #[command(name = "atomic_lat")]
    AtomicLat(Options),
    /// Bandwidth over sizes, depths and numbers of queue pairs: CSV and SVG
    #[command(name = "sweep")]
    Sweep(sweep::Args),
    /// The engine against bare sockets, in one run
    #[command(name = "ratios")]
    Ratios(ratios::Args),
}

/// Why a test ends without a result.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What was asked for cannot be.
    Usage(String),
    /// It went wrong.
    Run(String),
}

impl Failure {
    fn run(what: impl fmt::Display) -> Self {
        Self::Run(what.to_string())
    }
}

impl From<softroce::verbs::Error> for Failure {
    fn from(e: softroce::verbs::Error) -> Self {
        Self::run(e)
    }
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        Self::run(e)
    }
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Measures, and says how it went.
pub(crate) fn run(args: &Args) -> ExitCode {
    let result = match &args.test {
        Test::WriteBw(options) => session::run(Kind::WriteBw, options),
        Test::ReadBw(options) => session::run(Kind::ReadBw, options),
        Test::SendBw(options) => session::run(Kind::SendBw, options),
        Test::AtomicBw(options) => session::run(Kind::AtomicBw, options),
        Test::WriteLat(options) => session::run(Kind::WriteLat, options),
        Test::ReadLat(options) => session::run(Kind::ReadLat, options),
        Test::SendLat(options) => session::run(Kind::SendLat, options),
        Test::AtomicLat(options) => session::run(Kind::AtomicLat, options),
        Test::Sweep(args) => sweep::run(args),
        Test::Ratios(args) => ratios::run(args),
    };
    let (what, status) = match result {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Usage(what)) => (what, output::BAD_INPUT),
        Err(Failure::Run(what)) => (what, 1),
    };
    output::complain(format_args!("perf: {what}"));
    ExitCode::from(status)
}

/// The real time.
#[expect(clippy::disallowed_methods, reason = "measuring is about real time")]
pub(crate) fn now() -> std::time::Instant {
    std::time::Instant::now()
}
