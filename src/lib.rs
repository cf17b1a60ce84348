//! The RDMA NIC you can `cargo add`: RoCEv2 in user space.
//!
//! A NIC of this crate is an ordinary object of an ordinary process. It speaks RoCEv2, the protocol of
//! RDMA over Ethernet, on UDP port 4791; programs drive it through safe verbs that are named and behave
//! like those of libibverbs. The same program runs on real sockets and on a simulated network in virtual
//! time ([`sim`]).
//!
//! # What it is not
//! It does not bypass the kernel, and one device uses about one core: it is for developing, testing and
//! understanding RDMA programs, not for replacing hardware. Reliable and unreliable connections (RC, UC) and
//! datagrams (UD) are built, XRC is not yet; what is missing is refused with `EOPNOTSUPP` and a sentence.
//!
//! # The picture
//! ```text
//!   verbs     Context ─ ProtectionDomain ─ MemoryRegion, QueuePair ─ CompletionQueue
//!     │          post_send, post_recv                        poll, wait
//!     ▼              ▼                                          ▲
//!   engine    requester ── packets ──►          ──► responder ── completions
//!     ▲           ▲      ACKs, data ◄── network ◄──     │
//!     │           └─────── completer                    ▼
//!   memory    every access by key, range, right and protection domain
//! ```
//!
//! # The smallest program
//! ```
//! use softroce::prelude::*;
//! use softroce::sim::{Link, Sim};
//!
//! # fn main() -> Result<()> {
//! let sim = Sim::new(1); // or softroce::open()? in two processes
//! let [a, b] = sim.hosts(Link::default());
//! let (pa, cq) = (a.alloc_pd()?, a.create_cq(16)?);
//! let (pb, theirs) = (b.alloc_pd()?, b.create_cq(16)?);
//! let x = pa.create_qp(QpType::Rc, &cq).build()?;
//! let y = pb.create_qp(QpType::Rc, &theirs).build()?;
//! x.connect(&y.endpoint())?;
//! y.connect(&x.endpoint())?;
//!
//! let lent = pb.alloc_mr(4096, Access::REMOTE)?;
//! x.post_send(SendWr::write(1, inline(b"hello"), lent.remote()))?;
//! cq.wait(Duration::from_secs(1))?.ok()?;
//! assert_eq!(lent.to_vec(0..5), b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # Threads and progress
//! Every handle is `Send` and `Sync`, and every verb takes `&self`. While a program polls or waits, its own
//! thread does the device's work; while it computes, a background thread does (peers' READs and WRITEs
//! are served by a program that never calls in). `SOFTROCE_SPIN_US` says how long a waiter looks before it
//! sleeps, 50 by default; `SOFTROCE_PROGRESS=manual` does without the thread.
//!
//! # Safety
//! Registered memory may change at any time, so it is read and written through
//! [`MemoryRegion`](verbs::MemoryRegion), by word-sized atomics. Posting is safe: requests carry keys, and a key
//! that is wrong or gone is a completion status. `unsafe` is left where a program registers memory of its own
//! ([`reg_mr`](verbs::ProtectionDomain::reg_mr)) or wants a plain slice of it.
//!
//! # Errors
//! Each error names the verb, its errno, and a [`Cause`](verbs::Cause): the attribute at fault, the values, and
//! the way out.
//!
//! # Features
//! - `udp` (default): devices on real networks, `soft:lo` and `soft:IFACE`, and on the cable of a virtual machine,
//!   `soft:frames=SOCKET`. Linux. Without it the simulation remains, on any platform.
//! - `raw`: devices on an interface past the kernel's network, `soft:raw=IFACE`. Linux, with `CAP_NET_RAW`.
//! - `proptest`: strategies for faults of a simulated network, [`sim`]`::strategies`.
//! - `serde`: `Serialize` and `Deserialize` for what programs tell each other.
//! - `unstable-internals`: the layers below the verbs, without any promise.

// Without the feature, much of the layers below the verbs is reachable only through them, or not at all;
// what is really unused shows with it.
#![cfg_attr(
    not(feature = "unstable-internals"),
    allow(
        dead_code,
        unused_imports,
        unnameable_types,
        unreachable_pub,
        reason = "public under `unstable-internals`"
    )
)]

pub mod capture;
mod engine;
mod fabric;
mod fork;
mod mem;
pub mod net;
mod nic;
mod port;
mod queue;
mod seed;
pub mod sim;
#[cfg(test)]
#[path = "../tests/common/skip.rs"]
mod skip;
#[cfg(feature = "unstable-internals")]
mod swarm;
mod sync;
pub mod time;
pub mod verbs;
pub mod wire;

pub use engine::cc;
pub use verbs::{Backend, backend_status, devices, open};

/// What nearly every program imports.
pub mod prelude {
    pub use crate::time::Duration;
    pub use crate::verbs::{
        Access, AddressHandle, AhAttr, Backend, CompChannel, CompletionQueue, Context, Device,
        Error, Event, Gid, InFlight, MemoryRegion, MemoryWindow, Mtu, MwType, Placement, Pool,
        PoolBuf, ProtectionDomain, QpAttr, QpCap, QpEndpoint, QpState, QpType, QueuePair, Recovery,
        RecvWr, RemoteMr, RemoteSlice, Result, SendWr, Sge, SharedReceiveQueue, WcOpcode, WcStatus,
        WorkCompletion, inline, oob,
    };
}

/// The layers below the verbs, for fuzzing, benches and ports of one's own.
///
/// Nothing in here is covered by semantic versioning: any release may change any of it.
#[cfg(feature = "unstable-internals")]
pub mod internals {
    /// The transport, sans-IO: queue pairs and the packets between them.
    pub mod engine {
        pub use crate::engine::*;
    }
    /// The simulated network below the NICs: hosts, links, faults, in virtual time.
    pub mod fabric {
        pub use crate::fabric::*;
    }
    /// Registered memory and its keys.
    pub mod mem {
        pub use crate::mem::*;
    }
    /// An engine, a port and a clock, and who drives them.
    pub mod nic {
        pub use crate::nic::*;
    }
    /// Where datagrams leave the process.
    pub mod port {
        pub use crate::port::*;
    }
    /// What application and engine share: send, receive and completion queues.
    pub mod queue {
        pub use crate::queue::*;
    }
    /// Random programs on random networks, against a reference model.
    pub mod swarm {
        pub use crate::swarm::*;
    }
    /// One number in, independent random streams out.
    pub mod seed {
        pub use crate::seed::*;
    }
}

/// The program of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
