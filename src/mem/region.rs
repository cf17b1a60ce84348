//! A piece of memory that can be registered: ours, or somebody else's under contract.
//!
//! *Owns.* The pages it allocated, until the last handle is gone. A registration holds one.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::MemError;
use super::raw::{Bytes, Span};

/// Memory that peers and the engine may change at any time; see [`raw`](super::raw) for the model.
pub struct Region {
    span: Span,
}

impl Region {
    /// Allocates zeroed memory: whole pages, not inherited by child processes, `len` bytes of them in use.
    ///
    /// # Errors
    /// [`MemError::Empty`] for 0 bytes; [`MemError::NoMemory`].
    pub fn alloc(len: usize) -> Result<Arc<Self>, MemError> {
        Ok(Self::of(Span::alloc(len)?))
    }

    pub(super) fn of(span: Span) -> Arc<Self> {
        Arc::new(Self { span })
    }

    /// Bytes in it.
    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Address of the first byte in this process.
    pub fn as_ptr(&self) -> *mut u8 {
        self.bytes().as_ptr()
    }

    /// All of it.
    pub fn bytes(&self) -> Bytes<'_> {
        self.span.bytes()
    }

    /// Copies out from `at` on. Against a concurrent write it is torn at word boundaries only.
    ///
    /// # Panics
    /// If the range is not inside, as slicing does.
    #[track_caller]
    pub fn read(&self, at: usize, dst: &mut [u8]) {
        self.bytes().read_into(at, dst);
    }

    /// Copies in from `at` on, ascending. Whoever loads the last word with acquire and sees it sees the rest.
    ///
    /// # Panics
    /// If the range is not inside, as slicing does.
    #[track_caller]
    pub fn write(&self, at: usize, src: &[u8]) {
        self.bytes().write_from(at, src);
    }

    /// Sets a range to one byte.
    ///
    /// # Panics
    /// If the range is not inside, as slicing does.
    #[track_caller]
    pub fn fill(&self, range: Range<usize>, byte: u8) {
        assert!(range.start <= range.end, "the range {range:?} ends before it starts");
        self.bytes().fill(range.start, range.end - range.start, byte);
    }

    /// Loads the aligned 8-byte word at `at`.
    ///
    /// # Panics
    /// If it is not inside or not aligned (in host memory), or if `order` is not one for loads.
    #[track_caller]
    pub fn load(&self, at: usize, order: Ordering) -> u64 {
        self.word(at).load(order)
    }

    /// Stores into the aligned 8-byte word at `at`.
    ///
    /// # Panics
    /// If it is not inside or not aligned (in host memory), or if `order` is not one for stores.
    #[track_caller]
    pub fn store(&self, at: usize, value: u64, order: Ordering) {
        self.word(at).store(value, order);
    }

    #[track_caller]
    fn word(&self, at: usize) -> &AtomicU64 {
        match self.bytes().word(at) {
            Some(word) => word,
            None => panic!("no aligned 8-byte word at {at} in a region of {} bytes", self.len()),
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("len", &self.len())
            .field("foreign", &self.span.is_foreign())
            .finish_non_exhaustive()
    }
}
