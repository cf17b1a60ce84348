//! `softroce`: the command line of the user-space RoCEv2 NIC.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod decode;
#[cfg(target_os = "linux")]
#[cfg_attr(not(test), expect(dead_code, reason = "the baselines of `perf ratios`, which follows"))]
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
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Decode(args) => decode::run(&args),
    }
}
