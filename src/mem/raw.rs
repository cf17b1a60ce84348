//! The only code that touches registered bytes.
//!
//! # The memory model
//! There is one granule: the aligned 64-bit word.
//! - Everybody touches registered memory through relaxed atomics on whole words. Atomics of several sizes on
//!   the same bytes would be undefined, so there is never a byte-sized access, not at the ends either.
//! - A write that covers only part of a word merges it by compare-and-swap: two parties that write
//!   neighbouring bytes of one word lose nothing. A read that wants only part loads the word and picks.
//! - Words are touched in ascending order. Before the last store of a write stands a release fence. Who loads
//!   that last word with acquire and sees the new value also sees all earlier bytes of the write: the
//!   program that polls on the last word of a WRITE is right to.
//! - Atomics of peers ([`DmaSlice::fetch_add`], [`DmaSlice::compare_swap`]) are the same atomics, hence atomic
//!   against the program's own loads and stores of the word ([`Bytes::word`]).
//!
//! Private bytes (a packet, the caller's slice) stay plain slices.
//!
//! # The two copies
//! [`words`] holds the reference, a loop over `AtomicU64`. Debug builds (and so every sanitizer run, which
//! needs to see the accesses), other targets and CPUs without AVX use it. [`wide`] moves 64 bytes per turn in
//! inline assembly, in aligned 16-byte loads and stores, which CPUs with AVX guarantee to be atomic (Intel
//! SDM 3A 9.1.1, AMD APM 2 7.3.2). Ordinary stores are not reordered on x86, so it keeps the ascending order;
//! `rep movs` would not, because its stores may become visible in any order (SDM 3A 9.2.4).
#![allow(
    unsafe_code,
    reason = "the accesses that every safe interface to registered memory is made of"
)]

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::{AccessError, MemError, Region};
use crate::fork::Origin;

const WORD: usize = 8;

/// A view of registered bytes: a pointer and a length, with bounds checked on every access.
///
/// `Copy`, `Send` and `Sync`: any number of them may be used from anywhere at the same time.
#[derive(Clone, Copy)]
pub struct Bytes<'a> {
    ptr: NonNull<u8>,
    len: usize,
    _region: PhantomData<&'a [AtomicU64]>,
}

// SAFETY: every access through the view is an atomic one on memory that outlives 'a.
unsafe impl Send for Bytes<'_> {}
// SAFETY: as above.
unsafe impl Sync for Bytes<'_> {}

impl fmt::Debug for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bytes").field("len", &self.len).finish_non_exhaustive()
    }
}

impl<'a> Bytes<'a> {
    /// A view of `len` bytes at `ptr`.
    ///
    /// # Safety
    /// During `'a`, all aligned 64-bit words that hold at least one of the bytes are valid for reads and
    /// writes through `ptr` (for reads, if nothing is ever written through this view), and Rust code touches
    /// them only by atomics on whole words.
    pub const unsafe fn new(ptr: NonNull<u8>, len: usize) -> Self {
        Self { ptr, len, _region: PhantomData }
    }

    /// Bytes in view.
    pub const fn len(self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Address of the first byte in this process.
    pub const fn as_ptr(self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// `len` bytes from `at`; `None` unless all of them lie inside.
    pub fn sub(self, at: usize, len: usize) -> Option<Self> {
        if at > self.len || len > self.len - at {
            return None;
        }
        // SAFETY: at is at most the length of the view, which is one allocation.
        let ptr = unsafe { self.ptr.add(at) };
        // SAFETY: the bytes are some of those that this view was promised for.
        Some(unsafe { Self::new(ptr, len) })
    }

    #[track_caller]
    fn range(self, at: usize, len: usize) -> Self {
        match self.sub(at, len) {
            Some(part) => part,
            None => panic!("{len} bytes at {at} are not inside a region of {}", self.len),
        }
    }

    /// The aligned 64-bit word at `at`: for flags, counters and atomics. `None` if it is not aligned in host
    /// memory or not inside.
    pub fn word(self, at: usize) -> Option<&'a AtomicU64> {
        let part = self.sub(at, WORD)?;
        if !part.ptr.addr().get().is_multiple_of(WORD) {
            return None;
        }
        // SAFETY: one whole aligned word of the view, touched by atomics only, during 'a.
        Some(unsafe { AtomicU64::from_ptr(part.ptr.as_ptr().cast()) })
    }

    /// Copies bytes from `at` on out into `dst`.
    ///
    /// # Panics
    /// If the range is not inside, as slicing does.
    #[track_caller]
    pub fn read_into(self, at: usize, dst: &mut [u8]) {
        self.range(at, dst.len()).read(dst, copy_out());
    }

    /// Copies `src` in from `at` on, ascending, with a release fence before the last store.
    ///
    /// # Panics
    /// If the range is not inside, as slicing does.
    #[track_caller]
    pub fn write_from(self, at: usize, src: &[u8]) {
        self.range(at, src.len()).write(src, copy_in());
    }

    /// Sets `len` bytes from `at` on, as [`write_from`](Self::write_from) would.
    ///
    /// # Panics
    /// If the range is not inside, as slicing does.
    #[track_caller]
    pub fn fill(self, at: usize, len: usize, byte: u8) {
        let part = self.range(at, len);
        let src = [byte; 4096];
        for start in (0..len).step_by(src.len()) {
            let n = src.len().min(len - start);
            part.range(start, n).write(&src[..n], copy_in());
        }
    }

    /// Fills `dst`, which is as long as the view.
    fn read(self, dst: &mut [u8], copy: CopyOut) {
        debug_assert_eq!(self.len, dst.len());
        let (word, shift) = self.first_word();
        let (head, rest) = dst.split_at_mut(head_len(shift, self.len));
        let mut at = word;
        if !head.is_empty() {
            // SAFETY: the word holds bytes of the view.
            let bytes = unsafe { atom(at) }.load(Ordering::Relaxed).to_ne_bytes();
            head.copy_from_slice(&bytes[shift..shift + head.len()]);
            if rest.is_empty() {
                return;
            }
            // SAFETY: the view goes on in the next word.
            at = unsafe { at.add(WORD) };
        }
        let (body, tail) = rest.split_at_mut(rest.len() & !(WORD - 1));
        // SAFETY: body is a whole number of words, all inside the view, beginning at an aligned one.
        unsafe { copy(body, at) };
        if !tail.is_empty() {
            // SAFETY: the view goes on behind the body.
            let last = unsafe { at.add(body.len()) };
            // SAFETY: the word holds bytes of the view.
            let bytes = unsafe { atom(last) }.load(Ordering::Relaxed).to_ne_bytes();
            tail.copy_from_slice(&bytes[..tail.len()]);
        }
    }

    /// Stores `src`, which is as long as the view.
    fn write(self, src: &[u8], copy: CopyIn) {
        debug_assert_eq!(self.len, src.len());
        let (word, shift) = self.first_word();
        let (head, rest) = src.split_at(head_len(shift, self.len));
        let mut at = word;
        if !head.is_empty() {
            if rest.is_empty() {
                fence(Ordering::Release);
            }
            // SAFETY: the word holds bytes of the view.
            merge(unsafe { atom(at) }, shift, head);
            if rest.is_empty() {
                return;
            }
            // SAFETY: the view goes on in the next word.
            at = unsafe { at.add(WORD) };
        }
        let (body, tail) = rest.split_at(rest.len() & !(WORD - 1));
        // SAFETY: a whole number of words, all inside the view, beginning at an aligned one.
        unsafe { copy(at, body) };
        if !tail.is_empty() {
            // SAFETY: the view goes on behind the body.
            let end = unsafe { at.add(body.len()) };
            fence(Ordering::Release);
            // SAFETY: the word holds bytes of the view.
            merge(unsafe { atom(end) }, 0, tail);
        }
    }

    /// The word that holds the first byte, and the position of that byte in it.
    fn first_word(self) -> (*mut u8, usize) {
        let p = self.ptr.as_ptr();
        let shift = p.addr() & (WORD - 1);
        (p.wrapping_sub(shift), shift)
    }
}

/// How many of `len` bytes, the first of them at position `shift` of its word, share a word with something in
/// front of them.
const fn head_len(shift: usize, len: usize) -> usize {
    if shift == 0 {
        return 0;
    }
    let room = WORD - shift;
    if len < room { len } else { room }
}

/// # Safety
/// `p` is aligned and points to a word of registered memory that outlives `'a`.
unsafe fn atom<'a>(p: *mut u8) -> &'a AtomicU64 {
    debug_assert!(p.addr().is_multiple_of(WORD));
    // SAFETY: by contract; everybody uses atomics on these words.
    unsafe { AtomicU64::from_ptr(p.cast()) }
}

/// What a merge needs of a word. A trait so that the model checker can look at the same code.
trait Word {
    fn get(&self) -> u64;
    fn swap_if(&self, current: u64, new: u64) -> Result<u64, u64>;
}

impl Word for AtomicU64 {
    fn get(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }
    fn swap_if(&self, current: u64, new: u64) -> Result<u64, u64> {
        self.compare_exchange_weak(current, new, Ordering::Relaxed, Ordering::Relaxed)
    }
}

/// Puts `part` into the word from position `shift` on and leaves its other bytes as they are.
fn merge(word: &impl Word, shift: usize, part: &[u8]) {
    let mut seen = word.get();
    loop {
        let mut bytes = seen.to_ne_bytes();
        bytes[shift..shift + part.len()].copy_from_slice(part);
        match word.swap_if(seen, u64::from_ne_bytes(bytes)) {
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}

/// Stores whole words from private bytes, ascending, with a release fence before the last. Safety: the pointer
/// is aligned and all those words are registered memory; the slice is a whole number of words long.
type CopyIn = unsafe fn(*mut u8, &[u8]);
/// Loads whole words into private bytes, ascending; the same contract.
type CopyOut = unsafe fn(&mut [u8], *mut u8);

fn copy_in() -> CopyIn {
    if wide::usable() { wide::copy_in } else { words::copy_in }
}

fn copy_out() -> CopyOut {
    if wide::usable() { wide::copy_out } else { words::copy_out }
}

/// The reference: one relaxed atomic access per word, ascending.
mod words {
    use super::{WORD, atom};
    use std::sync::atomic::{Ordering, fence};

    /// # Safety
    /// See [`super::CopyIn`].
    pub(super) unsafe fn copy_in(dst: *mut u8, src: &[u8]) {
        let Some((last, body)) = src.as_chunks::<WORD>().0.split_last() else { return };
        for (i, bytes) in body.iter().enumerate() {
            // SAFETY: by contract there are as many words at dst as in src.
            let at = unsafe { dst.add(i * WORD) };
            // SAFETY: aligned, because dst is.
            unsafe { atom(at) }.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        fence(Ordering::Release);
        // SAFETY: by contract one more word follows.
        let at = unsafe { dst.add(body.len() * WORD) };
        // SAFETY: aligned, because dst is.
        unsafe { atom(at) }.store(u64::from_ne_bytes(*last), Ordering::Relaxed);
    }

    /// # Safety
    /// See [`super::CopyOut`].
    pub(super) unsafe fn copy_out(dst: &mut [u8], src: *mut u8) {
        for (i, bytes) in dst.as_chunks_mut::<WORD>().0.iter_mut().enumerate() {
            // SAFETY: by contract there are as many words at src as in dst.
            let at = unsafe { src.add(i * WORD) };
            // SAFETY: aligned, because src is.
            *bytes = unsafe { atom(at) }.load(Ordering::Relaxed).to_ne_bytes();
        }
    }
}

/// 64 bytes per turn, in aligned 16-byte accesses to the registered side.
#[cfg(target_arch = "x86_64")]
mod wide {
    use super::{WORD, words};
    use std::arch::asm;

    const STEP: usize = 64;

    /// Whether this build and this CPU use it.
    pub(super) fn usable() -> bool {
        !cfg!(any(debug_assertions, loom)) && supported()
    }

    /// Whether aligned 16-byte accesses are atomic on this CPU.
    pub(super) fn supported() -> bool {
        std::arch::is_x86_feature_detected!("avx")
    }

    /// Bytes in front of the first 16-byte boundary, and whole steps behind them.
    fn plan(at: *mut u8, len: usize) -> (usize, usize) {
        let lead = (at.addr() & WORD).min(len);
        (lead, (len - lead) / STEP)
    }

    /// # Safety
    /// See [`super::CopyIn`]; and [`supported`].
    pub(super) unsafe fn copy_in(dst: *mut u8, src: &[u8]) {
        let (lead, steps) = plan(dst, src.len());
        if steps == 0 {
            // SAFETY: the same contract.
            return unsafe { words::copy_in(dst, src) };
        }
        let (first, rest) = src.split_at(lead);
        let (body, last) = rest.split_at(steps * STEP);
        // SAFETY: the first word, or nothing.
        unsafe { words::copy_in(dst, first) };
        let to = dst.wrapping_add(lead);
        // SAFETY: reads `body`, writes as many bytes of registered words, aligned to 16. To the abstract machine
        // it is the reference loop, with its fence: x86 makes stores visible in program order.
        unsafe {
            asm!(
                "2:",
                "movups {a}, [{src}]",
                "movups {b}, [{src} + 16]",
                "movups {c}, [{src} + 32]",
                "movups {d}, [{src} + 48]",
                "movaps [{dst}], {a}",
                "movaps [{dst} + 16], {b}",
                "movaps [{dst} + 32], {c}",
                "movaps [{dst} + 48], {d}",
                "add {src}, 64",
                "add {dst}, 64",
                "dec {n}",
                "jnz 2b",
                src = inout(reg) body.as_ptr() => _,
                dst = inout(reg) to => _,
                n = inout(reg) steps => _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack),
            );
        }
        // SAFETY: the words that are left.
        unsafe { words::copy_in(to.wrapping_add(body.len()), last) };
    }

    /// # Safety
    /// See [`super::CopyOut`]; and [`supported`].
    pub(super) unsafe fn copy_out(dst: &mut [u8], src: *mut u8) {
        let (lead, steps) = plan(src, dst.len());
        if steps == 0 {
            // SAFETY: the same contract.
            return unsafe { words::copy_out(dst, src) };
        }
        let (first, rest) = dst.split_at_mut(lead);
        let (body, last) = rest.split_at_mut(steps * STEP);
        // SAFETY: the first word, or nothing.
        unsafe { words::copy_out(first, src) };
        let from = src.wrapping_add(lead);
        // SAFETY: writes `body`, reads as many bytes of registered words, aligned to 16. To the abstract machine
        // it is the reference loop.
        unsafe {
            asm!(
                "2:",
                "movaps {a}, [{src}]",
                "movaps {b}, [{src} + 16]",
                "movaps {c}, [{src} + 32]",
                "movaps {d}, [{src} + 48]",
                "movups [{dst}], {a}",
                "movups [{dst} + 16], {b}",
                "movups [{dst} + 32], {c}",
                "movups [{dst} + 48], {d}",
                "add {src}, 64",
                "add {dst}, 64",
                "dec {n}",
                "jnz 2b",
                src = inout(reg) from => _,
                dst = inout(reg) body.as_mut_ptr() => _,
                n = inout(reg) steps => _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack),
            );
        }
        // SAFETY: the words that are left.
        unsafe { words::copy_out(last, from.wrapping_add(steps * STEP)) };
    }
}

/// Targets without a wide copy.
#[cfg(not(target_arch = "x86_64"))]
mod wide {
    pub(super) use super::words::{copy_in, copy_out};

    pub(super) fn usable() -> bool {
        false
    }
}

/// Whether [`DmaSlice::make_persistent`] does what it says on this processor.
pub(super) const CAN_PERSIST: bool = cfg!(target_arch = "x86_64");

/// Writing caches back, line by line (Intel SDM 2A, CLFLUSH; AMD APM 3, CLFLUSH).
#[cfg(target_arch = "x86_64")]
mod persist {
    use super::Bytes;
    use std::arch::x86_64::{_mm_clflush, _mm_mfence};

    /// The smallest line of any such processor.
    const LINE: usize = 64;

    pub(super) fn write_back(bytes: Bytes<'_>) {
        let ptr = bytes.as_ptr();
        // The first step only to the next line, so that each line is touched once, by a byte of the view.
        let mut at = 0;
        while at < bytes.len() {
            // SAFETY: at is inside the view.
            let line = unsafe { ptr.add(at) };
            // SAFETY: the byte is valid for reads as long as the view, and its contents do not change.
            unsafe { _mm_clflush(line) };
            at += LINE - (line.addr() & (LINE - 1));
        }
        // SAFETY: needs nothing but SSE2, which every x86-64 has.
        unsafe { _mm_mfence() };
    }
}

/// Regions that would need it are not registered here.
#[cfg(not(target_arch = "x86_64"))]
mod persist {
    use super::Bytes;

    pub(super) fn write_back(_bytes: Bytes<'_>) {}
}

/// A checked piece of registered memory: what a key lookup gives out.
///
/// `Copy`; lives as long as the borrow of the table that made it.
#[derive(Clone, Copy, Debug)]
pub struct DmaSlice<'t> {
    bytes: Bytes<'t>,
}

impl<'t> DmaSlice<'t> {
    pub(super) const fn new(bytes: Bytes<'t>) -> Self {
        Self { bytes }
    }

    /// Bytes in it.
    pub const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Copies bytes from `offset` on out into `dst`.
    ///
    /// # Panics
    /// If the range is not inside, as slicing does.
    #[track_caller]
    pub fn read_into(&self, offset: usize, dst: &mut [u8]) {
        self.bytes.read_into(offset, dst);
    }

    /// Copies `src` in from `offset` on, ascending, with a release fence before the last store.
    ///
    /// # Panics
    /// If the range is not inside, as slicing does.
    #[track_caller]
    pub fn write_from(&self, offset: usize, src: &[u8]) {
        self.bytes.write_from(offset, src);
    }

    /// Adds to the word at the beginning, wrapping; gives its value from before.
    ///
    /// # Errors
    /// [`AccessError::Unaligned`] unless there is an aligned word.
    pub fn fetch_add(&self, add: u64) -> Result<u64, AccessError> {
        Ok(self.target()?.fetch_add(add, Ordering::AcqRel))
    }

    /// Stores `swap` into the word at the beginning if it holds `compare`; gives its value from before.
    ///
    /// # Errors
    /// [`AccessError::Unaligned`] unless there is an aligned word.
    pub fn compare_swap(&self, compare: u64, swap: u64) -> Result<u64, AccessError> {
        let word = self.target()?;
        match word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire) {
            Ok(before) | Err(before) => Ok(before),
        }
    }

    /// Stores 8 bytes into the word at the beginning, all at once.
    ///
    /// # Errors
    /// [`AccessError::Unaligned`] unless there is an aligned word.
    pub fn atomic_write(&self, bytes: [u8; 8]) -> Result<(), AccessError> {
        self.target()?.store(u64::from_ne_bytes(bytes), Ordering::Release);
        Ok(())
    }

    /// Waits until everything written before is visible to everybody: what a FLUSH for global visibility asks
    /// for.
    pub fn make_visible(&self) {
        fence(Ordering::SeqCst);
    }

    /// Writes the bytes back from the caches to memory and waits until they are there: what a FLUSH for
    /// persistence asks for. They then outlive a loss of power if the memory does, which is what its owner
    /// said by [`Access::FLUSH_PERSISTENT`](super::Access::FLUSH_PERSISTENT). Bytes of a file in the page cache
    /// are not written to the file's disk by it.
    ///
    /// Takes some nanoseconds for each 64 bytes.
    pub fn make_persistent(&self) {
        self.make_visible();
        persist::write_back(self.bytes);
    }

    fn target(&self) -> Result<&'t AtomicU64, AccessError> {
        self.bytes.word(0).ok_or(AccessError::Unaligned)
    }
}

/// Memory that stays where it is for as long as the value lives.
pub(super) struct Span {
    ptr: NonNull<u8>,
    len: usize,
    hold: Hold,
}

/// Who owns the memory behind a [`Span`].
enum Hold {
    /// We do: this many bytes from `ptr`, whole pages. Not in a child, where others may be by now.
    Pages(usize, Origin),
    /// Somebody else, kept alive by this.
    Foreign { _keep: Option<Box<dyn Any + Send + Sync>> },
}

// SAFETY: a span is only ever turned into `Bytes`, whose accesses are atomic; what is kept is Send and Sync.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

impl Span {
    /// Zeroed pages of our own.
    pub(super) fn alloc(len: usize) -> Result<Self, MemError> {
        if len == 0 {
            return Err(MemError::Empty);
        }
        let size = len
            .checked_next_multiple_of(pages::SIZE)
            .filter(|&size| isize::try_from(size).is_ok())
            .ok_or(MemError::NoMemory { len })?;
        let ptr = pages::map(size).ok_or(MemError::NoMemory { len })?;
        Ok(Self { ptr, len, hold: Hold::Pages(size, Origin::here()) })
    }

    pub(super) fn bytes(&self) -> Bytes<'_> {
        // SAFETY: our own pages, or foreign memory as promised to `Region::foreign`; alive while self is.
        unsafe { Bytes::new(self.ptr, self.len) }
    }

    pub(super) const fn is_foreign(&self) -> bool {
        matches!(self.hold, Hold::Foreign { .. })
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Hold::Pages(size, origin) = self.hold
            && origin.is_here()
        {
            // SAFETY: mapped by `alloc` with this size; views borrow the span, so there are none left.
            unsafe { pages::unmap(self.ptr, size) };
        }
    }
}

impl Region {
    /// Memory that belongs to somebody else: a C program's, a shared mapping, a `static`. `keep` is dropped
    /// when the region is.
    ///
    /// The first and the last aligned 64-bit word may stick out of the range. They are touched as a whole all
    /// the same: a read loads them, a write to their part inside rewrites the rest with its own value by
    /// compare-and-swap. A word never crosses a page, so what sticks out is always mapped.
    ///
    /// # Safety
    /// As long as the region lives (in the program's hands, or in a NIC's until it is deregistered):
    /// - every aligned 64-bit word that holds at least one byte of `ptr..ptr + len` is valid for reads and, if
    ///   the region is registered with a right to write or written to by the program, for writes, through
    ///   `ptr`. Memory from a Rust allocator therefore begins and ends at multiples of 8;
    /// - Rust code touches those words only by atomics on whole words, and holds no reference to the bytes.
    ///   (Code outside the abstract machine, as a C program's, that uses plain loads and stores takes part in
    ///   the race under its own compiler's rules, as it does with a hardware NIC.)
    ///
    /// A null `ptr` is not valid.
    pub unsafe fn foreign(
        ptr: *mut u8,
        len: usize,
        keep: Option<Box<dyn Any + Send + Sync>>,
    ) -> Arc<Self> {
        // SAFETY: the caller promises memory, which is not at null.
        let ptr = unsafe { NonNull::new_unchecked(ptr) };
        Self::of(Span { ptr, len, hold: Hold::Foreign { _keep: keep } })
    }
}

#[cfg(test)]
impl Region {
    /// Memory that counts as somebody else's.
    pub(crate) fn lent(len: usize) -> Arc<Self> {
        let words: Arc<[AtomicU64]> = (0..len.div_ceil(WORD)).map(|_| AtomicU64::new(0)).collect();
        let ptr = words.as_ptr().cast_mut().cast();
        // SAFETY: atomics, which the region keeps.
        unsafe { Self::foreign(ptr, len, Some(Box::new(words))) }
    }
}

/// Anonymous mappings, not inherited by children.
#[cfg(target_os = "linux")]
mod pages {
    use std::ptr::{self, NonNull};

    pub(super) const SIZE: usize = 4096;

    /// `size` zeroed bytes, aligned to a page. `size` is a multiple of [`SIZE`] and not 0.
    pub(super) fn map(size: usize) -> Option<NonNull<u8>> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new anonymous mapping wherever the kernel likes.
        let p = unsafe { libc::mmap(ptr::null_mut(), size, prot, flags, -1, 0) };
        if p == libc::MAP_FAILED {
            return None;
        }
        // A child that touches its parent's registered memory is a bug, and a copy of it would cost. Kernels
        // without the call lose only that, so the result does not matter.
        // SAFETY: the mapping just made.
        unsafe { libc::madvise(p, size, libc::MADV_DONTFORK) };
        NonNull::new(p.cast())
    }

    /// # Safety
    /// `ptr` and `size` are of one [`map`], and nothing uses the memory any more.
    pub(super) unsafe fn unmap(ptr: NonNull<u8>, size: usize) {
        // SAFETY: by contract. The call fails only for arguments that were never mapped.
        unsafe { libc::munmap(ptr.as_ptr().cast(), size) };
    }
}

/// Zeroed pages from the allocator.
#[cfg(not(target_os = "linux"))]
mod pages {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    pub(super) const SIZE: usize = 4096;

    /// `size` zeroed bytes, aligned to a page. `size` is a multiple of [`SIZE`] and not 0.
    pub(super) fn map(size: usize) -> Option<NonNull<u8>> {
        let layout = Layout::from_size_align(size, SIZE).ok()?;
        // SAFETY: the size is not zero.
        NonNull::new(unsafe { alloc_zeroed(layout) })
    }

    /// # Safety
    /// `ptr` and `size` are of one [`map`], and nothing uses the memory any more.
    pub(super) unsafe fn unmap(ptr: NonNull<u8>, size: usize) {
        if let Ok(layout) = Layout::from_size_align(size, SIZE) {
            // SAFETY: by contract; `map` made the same layout.
            unsafe { dealloc(ptr.as_ptr(), layout) };
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    /// Both copies, where the CPU has both.
    fn copies() -> Vec<(&'static str, CopyIn, CopyOut)> {
        let mut all: Vec<(&str, CopyIn, CopyOut)> =
            vec![("words", words::copy_in, words::copy_out)];
        #[cfg(target_arch = "x86_64")]
        if wide::supported() {
            all.push(("wide", wide::copy_in, wide::copy_out));
        }
        all
    }

    fn pattern(len: usize, seed: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 7 + seed * 31 + 1).to_le_bytes()[0]).collect()
    }

    fn contents(bytes: Bytes<'_>) -> Vec<u8> {
        // Word by word and through another function than those under test.
        (0..bytes.len() / WORD)
            .flat_map(|i| bytes.word(i * WORD).unwrap().load(Ordering::Relaxed).to_ne_bytes())
            .collect()
    }

    #[test]
    fn all_offsets_and_lengths_and_neighbours() {
        const SIZE: usize = 320;
        for (name, copy_in, copy_out) in copies() {
            let span = Span::alloc(SIZE).unwrap();
            let bytes = span.bytes();
            for at in 0..24 {
                for len in 0..=SIZE - 24 - 8 {
                    let before = pattern(SIZE, len);
                    bytes.write_from(0, &before);
                    let src = pattern(len, at + 100);
                    bytes.sub(at, len).unwrap().write(&src, copy_in);
                    let mut model = before;
                    model[at..at + len].copy_from_slice(&src);
                    assert_eq!(contents(bytes), model, "{name}: {len} bytes at {at}");
                    let mut back = vec![0xee; len];
                    bytes.sub(at, len).unwrap().read(&mut back, copy_out);
                    assert_eq!(back, src, "{name}: {len} bytes at {at}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn a_region_behaves_as_a_vec(
            ops in prop::collection::vec(
                (any::<bool>(), 0usize..5000, 0usize..5000, any::<usize>()), 1..20),
        ) {
            const SIZE: usize = 9001;
            for (_, copy_in, copy_out) in copies() {
                let span = Span::alloc(SIZE).unwrap();
                let bytes = span.bytes();
                let mut model = vec![0; SIZE];
                for &(write, at, len, seed) in &ops {
                    let len = len.min(SIZE - at);
                    let part = bytes.sub(at, len).unwrap();
                    if write {
                        let src = pattern(len, seed % 251);
                        part.write(&src, copy_in);
                        model[at..at + len].copy_from_slice(&src);
                    } else {
                        let mut got = vec![0; len];
                        part.read(&mut got, copy_out);
                        prop_assert_eq!(&got[..], &model[at..at + len]);
                    }
                }
                let mut all = vec![0; SIZE];
                bytes.read_into(0, &mut all);
                prop_assert_eq!(all, model);
            }
        }

        #[test]
        fn foreign_memory_at_any_address(at in 0usize..16, len in 1usize..80, seed in 0usize..99) {
            let words: Arc<[AtomicU64]> = (0..16).map(|_| AtomicU64::new(0x5555_5555_5555_5555)).collect();
            let ptr = words.as_ptr().cast::<u8>().cast_mut().wrapping_add(at);
            // SAFETY: whole words of an allocation of atomics, which `keep` keeps.
            let region = unsafe { Region::foreign(ptr, len, Some(Box::new(Arc::clone(&words)))) };
            let src = pattern(len, seed);
            region.write(0, &src);
            let all: Vec<u8> =
                words.iter().flat_map(|w| w.load(Ordering::Relaxed).to_ne_bytes()).collect();
            prop_assert!(all[..at].iter().all(|&b| b == 0x55));
            prop_assert_eq!(&all[at..at + len], &src[..]);
            prop_assert!(all[at + len..].iter().all(|&b| b == 0x55));
            prop_assert_eq!(Arc::strong_count(&words), 2);
            drop(region);
            prop_assert_eq!(Arc::strong_count(&words), 1, "dropped with the region");
        }
    }

    #[test]
    fn racing_neighbours_lose_nothing() {
        // Ranges that meet inside words, and a counter in the middle of it all.
        const CUTS: [usize; 6] = [0, 3, 21, 77, 79, 96];
        const COUNTER: usize = 96;
        const TURNS: u32 = 20_000;
        for (name, copy_in, _) in copies() {
            let span = Span::alloc(256).unwrap();
            let bytes = span.bytes();
            let start = &Barrier::new(CUTS.len() - 1 + 3);
            thread::scope(|s| {
                for range in CUTS.windows(2) {
                    s.spawn(move || {
                        start.wait();
                        let part = bytes.sub(range[0], range[1] - range[0]).unwrap();
                        for turn in (1..=TURNS).map(|turn| turn.to_le_bytes()[0]) {
                            part.write(&vec![turn; part.len()], copy_in);
                            let mut seen = vec![0; part.len()];
                            part.read(&mut seen, words::copy_out);
                            assert!(
                                seen.iter().all(|&b| b == turn),
                                "{name}: a neighbour was heard"
                            );
                        }
                    });
                }
                for _ in 0..2 {
                    s.spawn(move || {
                        start.wait();
                        let word = DmaSlice::new(bytes.sub(COUNTER, WORD).unwrap());
                        for _ in 0..TURNS {
                            word.fetch_add(3).unwrap();
                        }
                    });
                }
                s.spawn(move || {
                    start.wait();
                    // Right behind the counter.
                    for turn in (1..=TURNS).map(|turn| turn.to_le_bytes()[0]) {
                        bytes.sub(COUNTER + WORD, 70).unwrap().write(&[turn; 70], copy_in);
                    }
                });
            });
            let counter = bytes.word(COUNTER).unwrap().load(Ordering::Relaxed);
            assert_eq!(counter, u64::from(2 * 3 * TURNS), "{name}");
            let mut all = [0; 96];
            bytes.read_into(0, &mut all);
            assert!(all.iter().all(|&b| b == TURNS.to_le_bytes()[0]), "{name}: {all:?}");
        }
    }

    #[test]
    fn whoever_sees_the_last_word_sees_the_rest() {
        const WORDS: usize = 129;
        const LAST: usize = (WORDS - 1) * WORD;
        for (name, copy_in, _) in copies() {
            let span = Span::alloc(WORDS * WORD).unwrap();
            let bytes = span.bytes();
            let done = AtomicBool::new(false);
            thread::scope(|s| {
                s.spawn(|| {
                    for n in 1..=3000u64 {
                        let src: Vec<u8> = (0..WORDS).flat_map(|_| n.to_ne_bytes()).collect();
                        bytes.write(&src, copy_in);
                    }
                    done.store(true, Ordering::Release);
                });
                let mut looks = 0;
                while looks == 0 || !done.load(Ordering::Acquire) {
                    let last = bytes.word(LAST).unwrap().load(Ordering::Acquire);
                    for i in 0..WORDS {
                        let word = bytes.word(i * WORD).unwrap().load(Ordering::Relaxed);
                        assert!(
                            word >= last,
                            "{name}: word {i} is {word}, the last one was {last}"
                        );
                    }
                    looks += 1;
                }
            });
        }
    }

    #[test]
    fn atomics_need_a_whole_aligned_word() {
        let span = Span::alloc(64).unwrap();
        let at = |at, len| DmaSlice::new(span.bytes().sub(at, len).unwrap());
        assert_eq!(at(8, 8).fetch_add(5), Ok(0));
        assert_eq!(at(8, 8).fetch_add(u64::MAX), Ok(5), "wraps");
        assert_eq!(at(8, 8).compare_swap(4, 77), Ok(4));
        assert_eq!(at(8, 8).compare_swap(4, 99), Ok(77), "not equal: unchanged");
        assert_eq!(at(8, 8).compare_swap(77, 1), Ok(77));
        assert_eq!(at(8, 8).atomic_write(9u64.to_ne_bytes()), Ok(()));
        assert_eq!(span.bytes().word(8).unwrap().load(Ordering::Relaxed), 9);
        for (a, len) in [(9, 8), (4, 8), (8, 7), (64, 0)] {
            let target = at(a, len);
            assert_eq!(target.fetch_add(1), Err(AccessError::Unaligned), "{len} bytes at {a}");
            assert_eq!(target.compare_swap(0, 1), Err(AccessError::Unaligned));
            assert_eq!(target.atomic_write([1; 8]), Err(AccessError::Unaligned));
        }
        let mut all = [0; 64];
        span.bytes().read_into(0, &mut all);
        assert_eq!(all.iter().filter(|&&b| b != 0).count(), 1, "nothing else was touched");
    }

    #[test]
    fn views_stay_inside() {
        let span = Span::alloc(100).unwrap();
        let bytes = span.bytes();
        assert!(bytes.sub(100, 0).is_some_and(Bytes::is_empty));
        for (at, len) in [(101, 0), (0, 101), (99, 2), (usize::MAX, 1), (1, usize::MAX)] {
            assert!(bytes.sub(at, len).is_none(), "{len} at {at}");
        }
        assert!(bytes.word(88).is_some());
        assert!(bytes.word(96).is_none(), "only half of it is inside");
        assert!(bytes.word(usize::MAX - 3).is_none());
    }

    #[test]
    #[should_panic(expected = "2 bytes at 99 are not inside a region of 100")]
    fn writing_outside_panics() {
        Span::alloc(100).unwrap().bytes().write_from(99, &[0; 2]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn pages_are_aligned_and_not_inherited() {
        let span = Span::alloc(5000).unwrap();
        let start = span.bytes().as_ptr().addr();
        assert_eq!(start % pages::SIZE, 0);
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in smaps.lines() {
            let bounds = line.split(' ').next().and_then(|range| range.split_once('-'));
            if let Some((from, to)) = bounds
                && let (Ok(from), Ok(to)) =
                    (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16))
            {
                inside = (from..to).contains(&start);
            }
            // "dc": do not copy on fork.
            if inside && let Some(flags) = line.strip_prefix("VmFlags:") {
                assert!(flags.split(' ').any(|flag| flag == "dc"), "{line}");
                return;
            }
        }
        panic!("the mapping is not in /proc/self/smaps");
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::{Word, merge};
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering};

    impl Word for AtomicU64 {
        fn get(&self) -> u64 {
            self.load(Ordering::Relaxed)
        }
        fn swap_if(&self, current: u64, new: u64) -> Result<u64, u64> {
            self.compare_exchange_weak(current, new, Ordering::Relaxed, Ordering::Relaxed)
        }
    }

    #[test]
    fn loom_merges_into_one_word_lose_nothing() {
        loom::model(|| {
            let word = Arc::new(AtomicU64::new(0));
            let other = Arc::clone(&word);
            let thread = loom::thread::spawn(move || merge(&*other, 3, &[7, 8]));
            merge(&*word, 0, &[4, 5, 6]);
            thread.join().unwrap();
            let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
            assert_eq!(bytes, [4, 5, 6, 7, 8, 0, 0, 0]);
        });
    }
}
