//! softroce

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
        Error, Event, Gid, InFlight, MemoryRegion, MemoryWindow, Mtu, MwType, Pool, PoolBuf,
        ProtectionDomain, QpAttr, QpCap, QpEndpoint, QpState, QpType, QueuePair, RecvWr, RemoteMr,
        RemoteSlice, Result, SendWr, Sge, SharedReceiveQueue, WcOpcode, WcStatus, WorkCompletion,
        inline, oob,
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
    /// One number in, independent random streams out.
    pub mod seed {
        pub use crate::seed::*;
    }
}
