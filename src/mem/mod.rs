//! Registered memory: the bytes, the keys that name them, and the only code that touches them.
//!
//! *Owns.* [`Region`] is a piece of memory, [`MrTable`] the keys of one NIC, [`DmaSlice`] the checked view
//! that a lookup gives out. Regions that this crate allocates are whole pages of their own.
//!
//! *Rules.*
//! - Registered bytes change under everybody's eyes: a peer writes them, the engine writes them, the program
//!   reads them. So nobody ever makes a `&[u8]` of them. All access goes through [`raw`], which uses relaxed
//!   atomics on aligned 64-bit words and merges parts of words by compare-and-swap.
//! - Permission is part of the lookup: what [`MrTable`] hands out has been checked against key, protection
//!   domain, rights and range, and lives only as long as the borrow of the table. It is looked up again for
//!   every packet, so a deregistration takes effect between two packets and never under one.
//! - No lookup allocates, none panics, whatever the key, the address and the length.
//!
//! This module knows no packets.

mod keys;
pub mod place;
pub mod raw;
pub mod region;
pub mod table;
pub mod window;

pub use raw::{Bytes, DmaSlice};
pub use region::Region;
pub use table::{IovaChoice, LocalKey, MrTable, Registered};
pub use window::{Bind, BindError, MwKind};

use crate::wire::num::Lkey;

bitflags::bitflags! {
    /// What may be done to memory, and by whom. Bits are those of `enum ibv_access_flags`.
    ///
    /// Reading by the owner's own requests is always allowed. Writing by a peer (also by its atomics) implies
    /// writing by the owner, so [`REMOTE_WRITE`](Self::REMOTE_WRITE) and
    /// [`REMOTE_ATOMIC`](Self::REMOTE_ATOMIC) are refused without [`LOCAL_WRITE`](Self::LOCAL_WRITE)
    /// (`ibv_reg_mr(3)`).
    ///
    /// ```
    /// # #[cfg(feature = "unstable-internals")] {
    /// use softroce::internals::mem::Access;
    /// let mine = Access::LOCAL_WRITE | Access::REMOTE_READ;
    /// assert!(Access::REMOTE.contains(mine));
    /// assert!(!mine.contains(Access::REMOTE_WRITE));
    /// # }
    /// ```
    #[doc(alias = "ibv_access_flags")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The owner's requests may write: receives land here, READs and atomics bring their results here.
        const LOCAL_WRITE = 1;
        /// A peer may write: WRITE, ATOMIC WRITE.
        const REMOTE_WRITE = 2;
        /// A peer may read: READ.
        const REMOTE_READ = 4;
        /// A peer may use compare-and-swap and fetch-and-add.
        const REMOTE_ATOMIC = 8;
        /// Memory windows may be bound to this region.
        const MW_BIND = 16;
        /// Addresses start at 0: what a peer calls the address is the offset.
        const ZERO_BASED = 32;
        /// Pages need not be pinned. Without effect here, where nothing is pinned.
        const ON_DEMAND = 64;
        /// The memory is made of huge pages. A hint without effect here.
        const HUGETLB = 128;
        /// A peer may FLUSH to global visibility.
        const FLUSH_GLOBAL = 256;
        /// A peer may FLUSH to persistence.
        const FLUSH_PERSISTENT = 512;
        /// Writes may become visible out of order. Without effect here: they never do.
        const RELAXED_ORDERING = 1 << 20;

        /// Only the owner: local reads and writes.
        const LOCAL = 1;
        /// Everything that a peer can do by READ, WRITE and atomics, and the owner's writes.
        const REMOTE = 1 | 2 | 4 | 8;
    }
}

/// A protection domain, as a number. Memory and queue pairs work together only within one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PdId(pub u32);

/// One piece of registered memory, as a work request names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// Address of the first byte, in the address space of the key (an iova).
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Key of the memory region.
    pub lkey: Lkey,
}

/// Why memory could not be allocated, registered or released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemError {
    /// A region of no bytes.
    #[error("a memory region has at least one byte")]
    Empty,
    /// The system gave no memory.
    #[error("the system has no {len} bytes of memory to give")]
    NoMemory {
        /// Bytes asked for.
        len: usize,
    },
    /// Peers may only write where the owner may.
    #[error("REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE; asked for {access:?}")]
    NeedsLocalWrite {
        /// What was asked for.
        access: Access,
    },
    /// Memory that a FLUSH cannot make persistent: allocated here, hence gone with the process; or on a
    /// processor whose cache this crate cannot write back.
    #[error(
        "FLUSH_PERSISTENT needs persistent memory that the program has mapped itself, on x86-64"
    )]
    NotPersistent,
    /// Bits that no right has.
    #[error("unknown access bits {bits:#x}")]
    UnknownAccess {
        /// The unknown ones.
        bits: u32,
    },
    /// The region would run over the end of the 64-bit address space.
    #[error("{len} bytes from {iova:#x} run over the end of the address space")]
    AddressWraps {
        /// First address.
        iova: u64,
        /// Bytes.
        len: u64,
    },
    /// All keys are in use.
    #[error("all {max} keys for memory regions and windows are in use")]
    TableFull {
        /// Regions and windows that fit.
        max: u32,
    },
    /// No region or window has this key (any more).
    #[error("no memory region or window has this key")]
    UnknownKey,
    /// Memory windows are bound to the region.
    #[error("{windows} memory windows are bound to the region; unbind or deallocate them first")]
    Busy {
        /// How many.
        windows: u32,
    },
}

impl MemError {
    /// The error number that libibverbs would report.
    pub const fn errno(&self) -> i32 {
        // Linux numbers, which is what the verbs face speaks everywhere.
        match self {
            Self::NoMemory { .. } | Self::TableFull { .. } => 12, // ENOMEM
            Self::Busy { .. } => 16,                              // EBUSY
            _ => 22,                                              // EINVAL
        }
    }
}

/// Why an access to registered memory was refused. For traces and counters: a peer only learns that it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// No region or window has this key; it may have had an owner before.
    #[error("unknown key")]
    UnknownKey,
    /// The key belongs to another protection domain.
    #[error("key of another protection domain")]
    WrongPd,
    /// The window is bound to another queue pair.
    #[error("window of another queue pair")]
    WrongQp,
    /// The window exists but is bound to nothing.
    #[error("window not bound")]
    NotBound,
    /// At least one of the rights that the access needs is missing.
    #[error("needs {need:?}, has {have:?}")]
    NoRight {
        /// What the access needs.
        need: Access,
        /// What the key grants.
        have: Access,
    },
    /// Not all of the range lies inside.
    #[error("outside the region")]
    OutOfRange,
    /// Only a bound type 2 window can be invalidated by a work request.
    #[error("key cannot be invalidated")]
    NotInvalidatable,
    /// Atomics need an aligned 64-bit word.
    #[error("not an aligned 8-byte word")]
    Unaligned,
}
