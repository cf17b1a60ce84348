//! softroce

pub mod capture;
pub mod engine;
pub mod fabric;
pub mod mem;
pub mod net;
pub mod nic;
pub mod port;
pub mod queue;
pub mod seed;
pub mod sim;
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
