//! The verbs: what programs see.
//!
//! The names are those of libibverbs where it has one (`#[doc(alias)]` finds them by their C names), the
//! objects are handles that keep what they stand on alive. All handles are `Send` and `Sync`; all verbs
//! take `&self` and may be called from any thread.
//!
//! | object | keeps alive | dropping it |
//! |---|---|---|
//! | [`Context`] | the device | closes the device, when it is the last of everything made on it |
//! | [`ProtectionDomain`], [`CompChannel`] | `Context` | frees it |
//! | [`MemoryRegion`] | `ProtectionDomain` | deregisters, then frees the memory if it is ours |
//! | [`CompletionQueue`] | `Context`, its channel | frees it |
//! | [`SharedReceiveQueue`] | `ProtectionDomain` | frees it, and forgets the receives in it |
//! | [`QueuePair`] | `ProtectionDomain`, its `CompletionQueue`s, its `SharedReceiveQueue` | answers what it owes, leaves its multicast groups, then is gone; completions not polled vanish |
//! | [`MemoryWindow`] | `ProtectionDomain` | unbinds and frees it |
//! | [`AddressHandle`] | `ProtectionDomain` | is gone; requests that name it and were not sent fail |
//! | [`PoolBuf`] | its [`Pool`] | goes back to the pool |

mod ah;
mod attr;
mod context;
mod cq;
mod device;
mod endpoint;
mod error;
mod mr;
mod mw;
pub mod oob;
mod pd;
mod pool;
mod qp;
mod srq;
mod wc;
mod wr;

pub use ah::AddressHandle;
pub use attr::{
    AhAttr, AltPath, AtomicCap, DeviceAttr, GidEntry, GidKind, MigState, PortAttr, PortState,
    QpInitAttr,
};
pub use context::Context;
pub use cq::{CompChannel, CompletionQueue, CqBuilder, CqEvent};
pub use device::{Backend, DEVICE_VARIABLE, Device, backend_status, devices, open};
pub use endpoint::QpEndpoint;
pub use error::{Error, Result};
pub use mr::{MemoryRegion, MrCursor, RemoteMr, RemoteSlice, Sge};
pub use mw::{MemoryWindow, MwType};
pub use pd::ProtectionDomain;
pub use pool::{InFlight, Pool, PoolBuf};
pub use qp::{QpAttr, QpBuilder, QpCap, QpState, QpType, QueuePair};
pub use srq::SharedReceiveQueue;
pub use wc::WorkCompletion;
pub use wr::{Local, Placement, RecvWr, SendWr, Source, inline};

pub use crate::engine::SrqAttr;
pub use crate::engine::cause::Cause;
pub use crate::engine::event::AsyncEvent as Event;
pub use crate::engine::qp::attr::Recovery;
pub use crate::engine::status::{WcOpcode, WcStatus};
pub use crate::mem::{Access, BindError, MemError};
pub use crate::wire::num::{Gid, Mtu};

#[cfg(test)]
mod tests {
    use super::*;

    fn shared<T: Send + Sync>() {}

    #[test]
    fn handles_can_be_sent_and_shared() {
        shared::<Context>();
        shared::<ProtectionDomain>();
        shared::<MemoryRegion>();
        shared::<CompletionQueue>();
        shared::<CompChannel>();
        shared::<QueuePair>();
        shared::<SharedReceiveQueue>();
        shared::<MemoryWindow>();
        shared::<AddressHandle>();
        shared::<Pool>();
        shared::<PoolBuf>();
        shared::<Error>();
    }

    #[test]
    fn a_completion_is_a_cache_line() {
        assert_eq!(size_of::<WorkCompletion>(), 64);
        assert_eq!(size_of::<Sge>(), 16);
    }
}
