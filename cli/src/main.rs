//! `softroce`: the command line of the user-space RoCEv2 NIC.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod args;
mod decode;
mod devinfo;
mod lab;
mod output;
#[cfg(target_os = "linux")]
mod perf;
#[cfg(target_os = "linux")]
mod ping;
#[cfg(target_os = "linux")]
mod raw;
mod sim;
mod tour;

/// RoCEv2 in user space: tools.
#[derive(Debug, Parser)]
#[command(name = "softroce", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Tour(tour::Args),
    Devinfo(devinfo::Args),
    Decode(decode::Args),
    Sim(sim::Args),
    Lab(lab::Args),
    #[cfg(target_os = "linux")]
    Ping(ping::Args),
    #[cfg(target_os = "linux")]
    Perf(perf::Args),
}

fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => match cli.command {
            Command::Tour(args) => tour::run(&args),
            Command::Devinfo(args) => devinfo::run(&args),
            Command::Decode(args) => decode::run(&args),
            Command::Sim(args) => sim::run(&args),
            Command::Lab(args) => lab::run(&args),
            #[cfg(target_os = "linux")]
            Command::Ping(args) => ping::run(&args),
            #[cfg(target_os = "linux")]
            Command::Perf(args) => perf::run(&args),
        },
        Err(e) if e.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = e.print();
            ExitCode::from(output::BAD_INPUT)
        }
        Err(e) if e.use_stderr() => {
            output::complain(format_args!("{}", output::usage(&e)));
            ExitCode::from(output::BAD_INPUT)
        }
        // --help and --version.
        Err(e) => output::printed(e.print(), 0),
    }
}
