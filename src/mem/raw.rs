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
        if tail.is_empty() {
            let Some((body, last)) = body.split_last_chunk::<WORD>() else { return };
            // SAFETY: a whole number of words, all inside the view, beginning at an aligned one.
            unsafe { copy(at, body) };
            fence(Ordering::Release);
            // SAFETY: one more word of the view follows.
            let end = unsafe { at.add(body.len()) };
            // SAFETY: it is aligned and lies inside the view.
            unsafe { atom(end) }.store(u64::from_ne_bytes(*last), Ordering::Relaxed);
        } else {
            // SAFETY: a whole number of words, all inside the view, beginning at an aligned one.
            unsafe { copy(at, body) };
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

/// Stores whole words from private bytes. Safety: the pointer is aligned and all those words are registered
/// memory; the slice is a whole number of words long.
type CopyIn = unsafe fn(*mut u8, &[u8]);
/// Loads whole words into private bytes; the same contract.
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
    use std::sync::atomic::Ordering;

    /// # Safety
    /// See [`super::CopyIn`].
    pub(super) unsafe fn copy_in(dst: *mut u8, src: &[u8]) {
        for (i, bytes) in src.as_chunks::<WORD>().0.iter().enumerate() {
            // SAFETY: by contract there are as many words at dst as in src.
            let at = unsafe { dst.add(i * WORD) };
            // SAFETY: aligned, because dst is.
            unsafe { atom(at) }.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
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
        // SAFETY: reads `body`, writes as many bytes of registered words, aligned to 16, ascending. To the
        // abstract machine these are relaxed atomic stores of two words each.
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
        // SAFETY: writes `body`, reads as many bytes of registered words, aligned to 16. To the abstract
        // machine these are relaxed atomic loads of two words each.
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
    /// We do: this many bytes from `ptr`, whole pages.
    Pages(usize),
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
        Ok(Self { ptr, len, hold: Hold::Pages(size) })
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
        if let Hold::Pages(size) = self.hold {
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
