//! The swarm: random programs on random networks, each from a seed, held against a reference model.
//!
//! A seed becomes a [`Plan`]: hosts and cables, connections and their attributes, requests, and a schedule of
//! faults. [`run()`] carries it out through the verbs on a [`Sim`](crate::sim::Sim) and asks at every turn whether
//! what it sees may be. When the faults are over, everything must come to its end within the time that the
//! timeouts give.
//!
//! # What is asked
//! - Every signaled request completes once, in the order of posting; behind a failure everything is flushed.
//! - A failure has a reason: a request that had to fail, or a fault that the plan has.
//! - Every message arrives once, in order, whole; and nothing else is written, not even between two pieces.
//! - What is acknowledged has happened.
//! - Memory of a peer is as some number of packets leaves it, and never goes back.
//! - A READ brings what was there in its turn or later, up to the next fence.
//! - An atomic happens once, and brings what was there before it.
//! - On the wire each packet is well-formed, its ICRC right, and no PSN is left out; a receiver that asked for
//!   time gets it.
//! - Where nothing was lost, nothing is sent again.
//! - Both ends of the network count the same packets, and in the end there is silence.

mod check;
mod datagrams;
mod draw;
mod end;
mod inbox;
mod loose;
mod model;
mod plan;
mod request;
mod run;
mod setup;
mod shared;
mod shrink;
mod wire;

pub use loose::{Disorder, Loose};
pub use model::{Accepted, Answer, Effect, Message, Posted, Stream};
pub use plan::{
    BAD, Bad, Conn, Datagram, End, Fault, KINDS, Key, Kind, Op, Plan, QKEYS, Row, SOURCE, Service,
    Shared, Station, TOO_LONG, To, WORDS, What,
};
pub use run::{Options, Outcome, run};
pub use shrink::shrink;
