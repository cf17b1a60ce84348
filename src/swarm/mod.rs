//! The swarm: random programs on random networks, each from a seed, held against a reference model.
//!
//! A seed becomes a [`Plan`]: hosts and cables, connections and their attributes, requests, and a schedule of
//! faults. [`run()`] carries it out through the verbs on a [`Sim`](crate::sim::Sim) and asks at every turn whether
//! what it sees may be. When the faults are over, everything must come to its end within the time that the
//! timeouts give.
//!
//! # What is asked
//! Of every service:
//! - Every signaled request completes once, in the order of posting; behind a failure everything is flushed.
//! - A failure has a reason: a request that had to fail, or a fault that the plan has.
//! - Nothing is written that belongs to nobody, not even between two pieces of a buffer.
//! - On the wire each packet is well-formed, its ICRC right, and no PSN is left out; a receiver that asked for
//!   time gets it.
//! - Both ends of the network count the same packets, and in the end there is silence. Queue pairs that go to ERR
//!   then give everything back.
//!
//! Of reliable connections:
//! - Every message arrives once, in order, whole.
//! - What is acknowledged has happened. When a FLUSH completes, all before it is there.
//! - Memory of a peer is as some number of packets leaves it, and never goes back.
//! - A READ brings what was there in its turn or later, up to the next fence.
//! - An atomic happens once, and brings what was there before it. An ATOMIC WRITE happens once.
//! - Where nothing was lost, nothing is sent again.
//!
//! Of unreliable connections:
//! - A message arrives whole or not at all; once and in order, unless the network has made copies or let packets
//!   overtake each other. Behind a request that fails here, the queue goes on when it is told to.
//! - A byte of a peer's memory is as it was, or as some WRITE has left it, and none that was overwritten by a
//!   message which has arrived.
//! - Where nothing was lost, all is there but for what found no receive, and that is counted.
//!
//! Of datagrams:
//! - One arrives as it was sent, where it was sent to, with the Q_Key that is asked for there, behind the header
//!   that it had on the network; once for each member of a group but its sender, unless the network has made
//!   copies.
//! - Where nothing was lost, what does not arrive is counted with its reason.
//!
//! Of shared receive queues:
//! - A receive is used once, by one queue pair, in the order of posting for each of them; none is lost.
//! - The limit fires once each time that it is armed, when fewer receives are left, and then it does.
//! - A queue pair in ERR tells once that it takes no more.

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
