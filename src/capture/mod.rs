//! Captures: writing what went over a network, reading what others recorded, and saying what it means.
//!
//! [`Writer`] makes pcapng files, and [`Tap`] has one written of what passes a port; [`Reader`] reads pcap and pcapng; [`inspect()`] judges the ICRC of a
//! datagram found in one and its [`Display`](std::fmt::Display) is a line of text; [`Analysis`] follows the
//! flows and notes retransmissions, gaps and NAKs.
//!
//! *Rules.* Nothing here panics on any file. The engine does not know that it is being captured.

mod analysis;
mod inspect;
mod reader;
mod tap;
mod writer;

pub use analysis::{Analysis, Cause, Note};
pub use inspect::{Describe, Icrc, Inspected, Segments, describe, inspect};
pub use reader::{Beginning, ReadError, Reader, Record};
pub use tap::Tap;
pub use writer::Writer;
