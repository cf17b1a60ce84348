//! Memory regions, and pieces of them.
//!
//! Registered memory changes while the program looks: a peer writes it, and so does the NIC's thread. So
//! nobody gets a plain reference to it without `unsafe`. [`MemoryRegion::read`], [`write`](MemoryRegion::write),
//! [`load`](MemoryRegion::load) and [`store`](MemoryRegion::store) go through word-sized atomics: a race gives
//! old bytes, new bytes, or some of each, and never undefined behaviour.
#![allow(
    unsafe_code,
    reason = "the contracts that callers of unsafe functions take on; no memory is touched here"
)]

use std::io::{self, Read, Write};
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::engine::cause::Cause;
use crate::mem::{self, Region, Registered};
use crate::wire::num::Lkey;

use super::error::{Error, Named, Result};
use super::pd::ProtectionDomain;

/// A piece of registered memory, for a work request.
///
/// Made by [`MemoryRegion::sge`]; it cannot be made from numbers without `unsafe`. It borrows nothing: a
/// request that comes when the region is gone completes with an error.
///
/// ```
/// # use softroce::prelude::*;
/// fn piece(mr: &MemoryRegion) -> Sge {
///     mr.sge(..8)
/// }
/// ```
///
/// ```compile_fail
/// # use softroce::prelude::*;
/// fn piece() -> Sge {
///     Sge { addr: 0x1000, len: 8, lkey: 1 }
/// }
/// ```
///
/// ```compile_fail
/// # use softroce::prelude::*;
/// fn piece() -> Sge {
///     Sge::from_raw(0x1000, 8, 1)
/// }
/// ```
#[doc(alias = "ibv_sge")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    addr: u64,
    len: u32,
    lkey: u32,
}

impl Sge {
    /// A piece named by numbers, as C programs do.
    ///
    /// # Safety
    /// The key is not one of memory that Rust code holds references into.
    pub unsafe fn from_raw(addr: u64, len: u32, lkey: u32) -> Self {
        Self { addr, len, lkey }
    }

    /// Bytes.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn to_mem(self) -> mem::Sge {
        mem::Sge { addr: self.addr, length: self.len, lkey: Lkey(self.lkey) }
    }
}

/// A peer's memory, as the peer told us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RemoteMr {
    /// Address of its first byte, at the peer.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// Key.
    pub rkey: u32,
}

impl RemoteMr {
    /// The place `offset` bytes in. The length of a request is that of its local side.
    pub fn at(&self, offset: u64) -> RemoteSlice {
        RemoteSlice { addr: self.addr.wrapping_add(offset), rkey: self.rkey }
    }
}

/// A place in a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSlice {
    /// Address, at the peer.
    pub addr: u64,
    /// Key.
    pub rkey: u32,
}

impl From<RemoteMr> for RemoteSlice {
    fn from(r: RemoteMr) -> Self {
        r.at(0)
    }
}

/// Registered memory. Dropped, it is deregistered and then, if it is ours, freed.
///
/// ```
/// use softroce::prelude::*;
/// # fn main() -> Result<()> {
/// # let [ctx] = softroce::sim::Sim::new(1).hosts(Default::default());
/// let pd = ctx.alloc_pd()?;
/// let mr = pd.alloc_mr(4096, Access::REMOTE)?;
/// mr.write(0, b"hello");
/// assert_eq!(mr.to_vec(0..5), b"hello");
/// println!("peers may use {:?}", mr.remote());
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ibv_mr")]
#[derive(Debug)]
pub struct MemoryRegion {
    pd: ProtectionDomain,
    region: Arc<Region>,
    keys: Registered,
    registered: bool,
}

impl MemoryRegion {
    pub(crate) fn new(pd: ProtectionDomain, region: Arc<Region>, keys: Registered) -> Self {
        Self { pd, region, keys, registered: true }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// Whether it has none (it has at least one).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Key of this side's requests.
    pub fn lkey(&self) -> u32 {
        self.keys.lkey.0
    }

    /// Key of peers.
    pub fn rkey(&self) -> u32 {
        self.keys.rkey.0
    }

    /// Address of the first byte as requests and peers name it.
    pub fn iova(&self) -> u64 {
        self.keys.iova
    }

    /// Its protection domain.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// A piece of it for a work request.
    ///
    /// # Panics
    /// Out of range, or above 4 GiB, as slicing does.
    #[doc(alias = "ibv_sge")]
    #[track_caller]
    pub fn sge(&self, range: impl RangeBounds<usize>) -> Sge {
        let range = self.resolve(range);
        let len = u32::try_from(range.len()).expect("a piece is shorter than 4 GiB");
        Sge { addr: self.keys.iova.wrapping_add(range.start as u64), len, lkey: self.lkey() }
    }

    #[track_caller]
    fn resolve(&self, range: impl RangeBounds<usize>) -> Range<usize> {
        let start = match range.start_bound() {
            Bound::Included(&n) => n,
            Bound::Excluded(&n) => n + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&n) => n + 1,
            Bound::Excluded(&n) => n,
            Bound::Unbounded => self.len(),
        };
        assert!(
            start <= end && end <= self.len(),
            "range {start}..{end} of a region of {} bytes",
            self.len()
        );
        start..end
    }

    /// What a peer needs to reach it.
    pub fn remote(&self) -> RemoteMr {
        RemoteMr { addr: self.keys.iova, len: self.len() as u64, rkey: self.rkey() }
    }

    /// Copies bytes out. If a peer writes meanwhile, some words may be old and some new.
    ///
    /// # Panics
    /// Out of range.
    pub fn read(&self, at: usize, dst: &mut [u8]) {
        self.region.read(at, dst);
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// Out of range.
    pub fn write(&self, at: usize, src: &[u8]) {
        self.region.write(at, src);
    }

    /// A copy of some bytes.
    ///
    /// # Panics
    /// Out of range.
    #[track_caller]
    pub fn to_vec(&self, range: Range<usize>) -> Vec<u8> {
        let range = self.resolve(range);
        let mut out = vec![0; range.len()];
        self.read(range.start, &mut out);
        out
    }

    /// Sets bytes to one value.
    ///
    /// # Panics
    /// Out of range.
    pub fn fill(&self, range: Range<usize>, byte: u8) {
        self.region.fill(range, byte);
    }

    /// An aligned 8-byte word, for flags and counters that a peer sets. With `Acquire`, everything that
    /// the peer's message wrote before this word is seen too.
    ///
    /// # Panics
    /// Out of range, or not a multiple of 8.
    pub fn load(&self, at: usize, order: Ordering) -> u64 {
        self.region.load(at, order)
    }

    /// Sets an aligned 8-byte word.
    ///
    /// # Panics
    /// Out of range, or not a multiple of 8.
    pub fn store(&self, at: usize, v: u64, order: Ordering) {
        self.region.store(at, v, order);
    }

    /// `Read` and `Write` over a range.
    ///
    /// # Panics
    /// Out of range.
    #[track_caller]
    pub fn cursor(&self, range: Range<usize>) -> MrCursor<'_> {
        let range = self.resolve(range);
        MrCursor { mr: self, at: range.start, end: range.end }
    }

    /// Where the bytes are in this process.
    pub fn as_ptr(&self) -> *mut u8 {
        self.region.as_ptr()
    }

    /// The bytes, without a copy.
    ///
    /// # Safety
    /// While the slice lives, no posted request writes here and no peer holds a key that lets it.
    ///
    /// # Panics
    /// Out of range.
    #[track_caller]
    pub unsafe fn as_slice(&self, range: Range<usize>) -> &[u8] {
        let range = self.resolve(range);
        // SAFETY: in range.
        let start = unsafe { self.as_ptr().add(range.start) };
        // SAFETY: in range, alive as long as `self`, and the caller keeps writers away.
        unsafe { std::slice::from_raw_parts(start, range.len()) }
    }

    /// The bytes, without a copy, to be changed.
    ///
    /// # Safety
    /// As [`as_slice`](Self::as_slice), and nothing reads here either.
    ///
    /// # Panics
    /// Out of range.
    #[expect(
        clippy::mut_from_ref,
        reason = "exclusive by the caller's promise, like UnsafeCell::get"
    )]
    #[track_caller]
    pub unsafe fn as_mut_slice(&self, range: Range<usize>) -> &mut [u8] {
        let range = self.resolve(range);
        // SAFETY: in range.
        let start = unsafe { self.as_ptr().add(range.start) };
        // SAFETY: in range, alive as long as `self`, and the caller keeps everybody else away.
        unsafe { std::slice::from_raw_parts_mut(start, range.len()) }
    }

    /// Deregisters it and says whether that went well; dropping does the same and keeps quiet. When this
    /// returns, no access is under way and none will follow, by whatever key.
    ///
    /// # Errors
    /// `EBUSY`: memory windows were bound to it. They no longer are: as the region is gone in any case, so is
    /// every way to its bytes.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn deregister(mut self) -> Result<()> {
        let (pd, lkey) = (self.pd.id(), self.keys.lkey);
        self.pd.nic().enter().of("ibv_dereg_mr")?;
        match self.pd.nic().control(|engine, _| engine.deregister(pd, lkey)) {
            Ok(_region) => {
                self.registered = false;
                Ok(())
            }
            Err(e) => Err(Error::verb("ibv_dereg_mr", Cause::from(e))),
        }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if self.registered {
            let (pd, lkey) = (self.pd.id(), self.keys.lkey);
            // With the windows that are bound to it: memory of the program's may be freed after this. The key
            // is that of a region which is registered, so there is no other way for this to end.
            let _ = self.pd.nic().release(|engine| engine.withdraw(pd, lkey));
        }
    }
}

/// Reads and writes a range of a region from front to end.
#[derive(Debug)]
pub struct MrCursor<'a> {
    mr: &'a MemoryRegion,
    at: usize,
    end: usize,
}

impl Read for MrCursor<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = buf.len().min(self.end - self.at);
        self.mr.read(self.at, &mut buf[..n]);
        self.at += n;
        Ok(n)
    }
}

impl Write for MrCursor<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = buf.len().min(self.end - self.at);
        self.mr.write(self.at, &buf[..n]);
        self.at += n;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
