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

    /// Whether it belongs to somebody else.
    pub(super) fn is_foreign(&self) -> bool {
        self.span.is_foreign()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_memory_is_zero_and_ends_where_it_was_told_to() {
        let region = Region::alloc(10_001).unwrap();
        assert_eq!(region.len(), 10_001);
        let mut all = vec![1; 10_001];
        region.read(0, &mut all);
        assert!(all.iter().all(|&b| b == 0));
        region.fill(1..10_001, 0xab);
        region.read(0, &mut all);
        assert_eq!(all[0], 0);
        assert!(all[1..].iter().all(|&b| b == 0xab));
    }

    #[test]
    fn impossible_sizes_are_errors() {
        assert_eq!(Region::alloc(0).unwrap_err(), MemError::Empty);
        for len in [usize::MAX, usize::MAX / 2, isize::MAX.cast_unsigned() - 8192] {
            assert_eq!(Region::alloc(len).unwrap_err(), MemError::NoMemory { len });
        }
    }

    #[test]
    fn words_are_host_integers() {
        let region = Region::alloc(24).unwrap();
        region.store(8, 0x0102_0304_0506_0708, Ordering::Release);
        let mut bytes = [0; 8];
        region.read(8, &mut bytes);
        assert_eq!(u64::from_ne_bytes(bytes), 0x0102_0304_0506_0708);
        assert_eq!(region.load(8, Ordering::Acquire), 0x0102_0304_0506_0708);
    }

    #[test]
    #[should_panic(expected = "no aligned 8-byte word at 4")]
    fn words_are_aligned() {
        Region::alloc(24).unwrap().load(4, Ordering::Relaxed);
    }

    #[test]
    #[should_panic(expected = "are not inside a region of 24")]
    fn reading_outside_panics() {
        Region::alloc(24).unwrap().read(20, &mut [0; 5]);
    }
}
