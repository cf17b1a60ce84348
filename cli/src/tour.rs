//! `softroce tour`: two processes, each with a NIC of its own, and every operation between them.
//!
//! The first process starts a second one of the same program and leads through a list of rows
//! ([`plan`]) that both know. For each row both lay out the same memory and know every byte that has to be
//! in it afterwards ([`layout`]): the first one makes the requests and measures ([`first`]), the second one
//! receives, lends memory and checks ([`second`]). Their TCP connection carries keys and verdicts.

use std::path::PathBuf;
use std::process::ExitCode;

use softroce::prelude::Mtu;

use crate::args;
use crate::output::{BAD_INPUT, complain};

mod child;
mod explain;
mod first;
mod grh;
mod layout;
mod plan;
mod report;
mod second;
mod side;

/// Start two processes with a NIC each, and run every operation between them, every byte verified.
///
/// SEND, WRITE and READ from 0 bytes to 4 MiB, with immediate data, invalidation, inline bytes and scatter
/// lists, atomics, ATOMIC WRITE, FLUSH, shared receive queues and memory windows of both types on reliable
/// connections; SEND and WRITE on unreliable ones; datagrams. All over UDP on this machine. Each row has requests made one by one, whose
/// median time is the latency, and requests posted together, whose bytes per time are the goodput.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit status: 0 if every row was verified, 1 if one was not or the second process died, 2 if the tour could \
not begin.")]
pub(crate) struct Args {
    /// Explain one operation instead, step by step, on a simulated network
    #[arg(long, value_name = "WHAT", conflicts_with_all = ["device", "peer", "second"])]
    explain: Option<explain::Topic>,
    /// Bytes of the message that is explained: 4096, 64K, 1M
    #[arg(long, value_name = "BYTES", requires = "explain", value_parser = explain::parse_size)]
    size: Option<usize>,
    /// Path MTU of the explanation
    #[arg(
        long, value_name = "BYTES", requires = "explain", default_value = "4096",
        value_parser = args::mtu
    )]
    mtu: Mtu,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Write what crosses the wire to a pcapng file, for `softroce decode` and Wireshark
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Device of the first process
    #[arg(long, value_name = "SPEC", default_value = "soft:lo")]
    device: String,
    /// Device of the second process, on another address; needed with a --device other than soft:lo, of which each
    /// process has an address of its own
    #[arg(long, value_name = "SPEC")]
    peer: Option<String>,
    /// Be the second process; where to find the first one is read from the standard input
    #[arg(long, hide = true)]
    second: bool,
}

/// Why the tour ends early, as a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Failure(String);

impl Failure {
    fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(e: E) -> Self {
        Self(e.to_string())
    }
}

/// Runs the tour, or the second process of one.
pub(crate) fn run(args: &Args) -> ExitCode {
    if args.second {
        return second::run(&args.device);
    }
    if let Some(topic) = args.explain {
        return explain::run(&explain::Request {
            topic,
            size: args.size,
            mtu: args.mtu,
            json: args.json,
            pcap: args.pcap.clone(),
        });
    }
    match first::run(args) {
        Ok(tour) => {
            if let Some(Failure(why)) = &tour.failure {
                complain(format_args!("tour: {why}"));
            }
            report::print(args, &tour)
        }
        Err(Failure(why)) => {
            complain(format_args!("tour: {why}"));
            ExitCode::from(BAD_INPUT)
        }
    }
}
