//! `softroce tour --explain`: one operation, step by step.
//!
//! The operation runs between two hosts of a simulated network, in virtual time ([`journey`]); what is told is
//! what engines and network recorded of it ([`softroce::sim::trace`]), put in order ([`steps`]) and in words
//! ([`words`]). Nothing here knows how an operation works: with another engine the tale would be another.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use softroce::prelude::*;

use super::Failure;
use crate::args;
use crate::output::{BAD_INPUT, complain, print};

mod journey;
mod print;
mod steps;
mod words;

/// What is explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Topic {
    /// Reading a peer's memory
    Read,
    /// Writing a peer's memory
    Write,
    /// Sending to a peer that receives
    Send,
    /// Fetch-and-add on a peer's memory
    Atomic,
    /// Sending to a peer that has not posted a receive
    Rnr,
    /// A packet is lost on the way
    Loss,
}

/// Longest message: more packets than anybody wants to see.
const MAX_SIZE: usize = 16 << 20;

impl Topic {
    const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Send => "send",
            Self::Atomic => "atomic",
            Self::Rnr => "rnr",
            Self::Loss => "loss",
        }
    }

    const fn operation(self) -> &'static str {
        match self {
            Self::Read => "READ",
            Self::Write | Self::Loss => "WRITE",
            Self::Send | Self::Rnr => "SEND",
            Self::Atomic => "FETCH & ADD",
        }
    }

    const fn default_size(self) -> usize {
        match self {
            Self::Read => 1 << 20,
            Self::Write | Self::Send => 64 << 10,
            Self::Loss => 32 << 10,
            Self::Rnr => 4 << 10,
            Self::Atomic => 8,
        }
    }
}

/// Bytes of the message that is explained.
pub(super) fn parse_size(text: &str) -> Result<usize, String> {
    let size = usize::try_from(args::bytes(text)?).ok().filter(|&size| size <= MAX_SIZE);
    size.ok_or_else(|| "at most 16 MiB".to_owned())
}

/// What to explain, and how to show it.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) topic: Topic,
    pub(super) size: Option<usize>,
    pub(super) mtu: Mtu,
    pub(super) json: bool,
    pub(super) pcap: Option<PathBuf>,
}

/// Explains.
pub(super) fn run(request: &Request) -> ExitCode {
    let told = journey::run(request).and_then(|journey| {
        let steps = steps::of(&journey)?;
        Ok((journey, steps))
    });
    match told {
        Ok((journey, steps)) => print(0, |out| match request.json {
            true => print::json(&journey, &steps, out),
            false => print::text(&journey, &steps, out),
        }),
        Err(Failure(why)) => {
            complain(format_args!("tour: {why}"));
            ExitCode::from(BAD_INPUT)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_an_end() {
        assert_eq!(parse_size("16M"), Ok(16 << 20));
        for text in ["17M", "1G", "x"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
