//! `softroce`: the command line of the user-space RoCEv2 NIC.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod decode;
#[cfg(target_os = "linux")]
mod perf;
#[cfg(target_os = "linux")]
mod raw;

/// RoCEv2 in user space: tools.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Decode(decode::Args),
    #[cfg(target_os = "linux")]
    Perf(perf::Args),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Decode(args) => decode::run(&args),
        #[cfg(target_os = "linux")]
        Command::Perf(args) => perf::run(&args),
    }
}
