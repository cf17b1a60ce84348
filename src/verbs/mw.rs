//! Memory windows: keys to parts of a region that come and go without the region.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::mem::MwKind;
use crate::wire::num::Rkey;

use super::pd::ProtectionDomain;

/// Type of a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MwType {
    /// Bound by [`QueuePair::bind_mw`](super::QueuePair::bind_mw), for every queue pair of the protection domain.
    /// The device makes its keys. It may be bound again without more ado.
    Type1,
    /// Bound by a work request, for the queue pair that executes it (2B).
    Type2,
}

impl From<MwType> for MwKind {
    fn from(t: MwType) -> Self {
        match t {
            MwType::Type1 => Self::Type1,
            MwType::Type2 => Self::Type2,
        }
    }
}

/// A memory window. Dropped, it is unbound and destroyed.
#[doc(alias = "ibv_mw")]
#[derive(Debug)]
pub struct MemoryWindow {
    pd: ProtectionDomain,
    rkey: AtomicU32,
    kind: MwType,
}

impl MemoryWindow {
    pub(crate) fn new(pd: ProtectionDomain, rkey: Rkey, kind: MwType) -> Self {
        Self { pd, rkey: AtomicU32::new(rkey.0), kind }
    }

    /// The key of the bind that was posted last: peers reach the window by it once that has been carried out. A
    /// bind that fails or is flushed leaves a key that is not valid; the next bind makes another one.
    pub fn rkey(&self) -> u32 {
        self.rkey.load(Ordering::Relaxed)
    }

    /// Its type.
    pub fn kind(&self) -> MwType {
        self.kind
    }

    /// A bind with this key was posted.
    pub(crate) fn set_rkey(&self, rkey: u32) {
        self.rkey.store(rkey, Ordering::Relaxed);
    }

    /// Makes the key of another bind: it differs from that of every other one of the last 255.
    pub(crate) fn next_rkey(&self) -> u32 {
        let before =
            self.rkey.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |k| Some(after(k)));
        after(before.unwrap_or_else(|key| key))
    }
}

/// The key behind `key`.
const fn after(key: u32) -> u32 {
    key & !0xff | (key.wrapping_add(1) & 0xff)
}

impl Drop for MemoryWindow {
    #[doc(alias = "ibv_dealloc_mw")]
    fn drop(&mut self) {
        let rkey = Rkey(self.rkey());
        // The window exists as long as this does.
        let _ = self.pd.nic().release(|engine| engine.dealloc_mw(self.pd.id(), rkey));
    }
}
