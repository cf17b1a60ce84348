//! `softroce ping`: whether another RoCEv2 node can be reached, and if not, which step fails.
//!
//! A message goes there and comes back over a reliable connection. Both sides find each other over TCP
//! ([`talk`]); who listens answers ([`server`]), who names a host asks and measures ([`client`]). With
//! `--pingpong` the other side is `ibv_rc_pingpong`, on any hardware ([`pingpong`]). What a silence means is
//! found out by counters, of both sides where both are ours ([`diagnose`]).
//!
//! *Rules.* Every step that can fail has a name, and a failure is one line that begins with it. Every wait is
//! bounded, but for that of a listener for its next client.

use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use softroce::verbs::Mtu;

use crate::args;
use crate::output::{self, BAD_INPUT};
use crate::perf;

mod client;
mod diagnose;
mod end;
mod pingpong;
mod report;
mod server;
mod talk;

/// Longest message.
const LONGEST: u32 = 1 << 20;

/// Check that another RoCEv2 node can be reached: a message there and back.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Start the other side first, on this machine or another one:

    softroce ping --listen

It prints what to type for the client. Before the pings a full packet goes there and back, so that a path MTU
that is too large is found. With any other RoCEv2 node, hardware too, start there

    ibv_rc_pingpong -g INDEX -s 1 -n 3

and here the same HOST with --pingpong (-c says as much as -n there, -s as -s).

Steps that can fail: name, address, out-of-band, device, mtu, icrc, answer, data.

Exit status: 0 if all pings were answered, 1 if not, 2 on bad input.")]
pub(crate) struct Args {
    /// Where the other side is
    #[arg(value_name = "HOST", required_unless_present = "listen", conflicts_with = "listen")]
    host: Option<String>,
    /// Be the other side: answer whoever pings, one after another
    #[arg(long, conflicts_with_all = ["count", "size", "mtu", "interval", "json", "pingpong"])]
    listen: bool,
    /// Device, such as soft:eth0 [default: $SOFTROCE_DEVICE, else the one on the way to HOST]
    #[arg(short, long, visible_alias = "ib-dev", value_name = "DEVICE")]
    device: Option<String>,
    /// TCP port on which the two sides find each other
    #[arg(short, long, default_value_t = perf::PORT)]
    port: u16,
    /// Pings
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Bytes of a message: 4096, 64K, 1M
    #[arg(short, long, value_name = "BYTES", default_value = "1", value_parser = size)]
    size: u32,
    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: the smaller one of both ports; 1024 with --pingpong]
    #[arg(short, long, value_name = "BYTES", value_parser = args::mtu)]
    mtu: Option<Mtu>,
    /// From one ping to the next
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds,
        allow_negative_numbers = true)]
    interval: Duration,
    /// The other side is ibv_rc_pingpong of rdma-core, or speaks like it
    #[arg(long)]
    pingpong: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Bytes of a message.
fn size(text: &str) -> Result<u32, String> {
    let size = args::message(text)?;
    if !(1..=LONGEST).contains(&size) {
        return Err(format!("wanted 1 to {LONGEST} bytes"));
    }
    Ok(size)
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "wanted a number of seconds".to_owned())?;
    let hour = 3600.0;
    if !(0.0..=hour).contains(&seconds) {
        return Err("wanted 0 to 3600 seconds".into());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// What can go wrong on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Whether the host has a name, or is a number.
    Name,
    /// Whether there is a way from here to there.
    Address,
    /// Whether the other side listens at its TCP port, and talks.
    OutOfBand,
    /// Whether both devices work.
    Device,
    /// Whether the path carries packets of the path MTU.
    Mtu,
    /// Whether packets arrive as they were sent.
    Icrc,
    /// Whether something comes back.
    Answer,
    /// Whether what comes back is what was sent.
    Data,
}

impl Step {
    const fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Address => "address",
            Self::OutOfBand => "out-of-band",
            Self::Device => "device",
            Self::Mtu => "mtu",
            Self::Icrc => "icrc",
            Self::Answer => "answer",
            Self::Data => "data",
        }
    }

    /// By its name, as the other side says it.
    fn named(name: &str) -> Option<Self> {
        let all = [
            Self::Name,
            Self::Address,
            Self::OutOfBand,
            Self::Device,
            Self::Mtu,
            Self::Icrc,
            Self::Answer,
            Self::Data,
        ];
        all.into_iter().find(|step| step.name() == name)
    }
}

/// Which step failed, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Failure {
    step: Step,
    what: String,
    status: u8,
}

impl Failure {
    fn new(step: Step, what: impl fmt::Display) -> Self {
        Self { step, what: what.to_string(), status: 1 }
    }

    /// Of what was asked for: it cannot be.
    fn usage(step: Step, what: impl fmt::Display) -> Self {
        Self { status: BAD_INPUT, ..Self::new(step, what) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.step.name(), self.what)
    }
}

/// What the verbs refuse has to do with the device.
impl From<softroce::verbs::Error> for Failure {
    fn from(e: softroce::verbs::Error) -> Self {
        Self::new(Step::Device, e)
    }
}

/// What goes wrong on the TCP connection.
impl From<perf::Failure> for Failure {
    fn from(e: perf::Failure) -> Self {
        match e {
            perf::Failure::Usage(what) | perf::Failure::Run(what) => {
                Self::new(Step::OutOfBand, what)
            }
        }
    }
}

type Result<T, E = Failure> = std::result::Result<T, E>;

/// Opens the device.
fn open(device: Option<&str>) -> Result<softroce::verbs::Context> {
    perf::open(device).map_err(|e| match e {
        perf::Failure::Usage(what) => Failure::usage(Step::Device, what),
        perf::Failure::Run(what) => Failure::new(Step::Device, what),
    })
}

/// Pings, or answers.
pub(crate) fn run(args: &Args) -> ExitCode {
    let failure = match &args.host {
        None => server::run(args.device.as_deref(), args.port).err(),
        Some(host) => {
            let (outcome, printer) = client::run(host, args);
            return printer.end(&outcome);
        }
    };
    match failure {
        None => ExitCode::SUCCESS,
        Some(failure) => {
            output::complain(format_args!("ping: {failure}"));
            ExitCode::from(failure.status)
        }
    }
}
