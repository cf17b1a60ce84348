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

/// A number of bytes: `4096`, `64K`, `1MiB`.
pub(super) fn parse_size(text: &str) -> Result<usize, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        _ => return Err("a number of bytes, such as 4096, 64K or 1M".to_owned()),
    };
    let size = number.parse::<usize>().ok().and_then(|n| n.checked_mul(unit));
    match size.ok_or("a number of bytes, such as 4096, 64K or 1M")? {
        size if size > MAX_SIZE => Err("at most 16 MiB".to_owned()),
        size => Ok(size),
    }
}

/// A path MTU.
pub(super) fn parse_mtu(text: &str) -> Result<Mtu, String> {
    let mtu = text.parse().ok().and_then(Mtu::from_bytes);
    mtu.ok_or_else(|| "256, 512, 1024, 2048 or 4096".to_owned())
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
    fn sizes() {
        for (text, size) in
            [("0", 0), ("4096", 4096), ("64K", 65536), ("1M", 1 << 20), ("1 MiB", 1 << 20)]
        {
            assert_eq!(parse_size(text), Ok(size), "{text}");
        }
        for text in ["", "K", "1G", "-1", "1.5K", "17M", "99999999999999999999"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert_eq!(parse_mtu("1024").ok(), Some(Mtu::B1024));
        assert!(parse_mtu("1500").is_err());
    }
}
