//! Memory windows: rights on part of a region that come and go without the region.
//!
//! A window of type 1 belongs to a protection domain. One of type 2 is bound to a queue pair and its domain
//! (the flavour that the standard calls 2B): only requests that arrive on that queue pair may use it, and a work
//! request or a peer can invalidate it. Both keep the upper 24 bits of their key for life; the low 8 change with
//! each bind as the consumer likes, or not.
//!
//! *Rules.* A region cannot go while windows are bound to it, so a bound window always has its memory. Binding,
//! invalidating and unbinding do not allocate.

use super::table::{Entry, MrTable, allowed, within};
use super::{Access, AccessError, MemError, PdId};
use crate::wire::num::{Lkey, Qpn, Rkey};

/// Which kind of window.
#[doc(alias = "ibv_mw_type")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MwKind {
    /// Bound by its own verb, to the protection domain.
    Type1 = 1,
    /// Bound by a work request, to the queue pair that executed it.
    Type2 = 2,
}

/// Rights that a window may grant.
const GRANTS: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT);

/// A request to bind a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// Protection domain of the queue pair that executes it.
    pub pd: PdId,
    /// That queue pair.
    pub qpn: Qpn,
    /// The window's key of now.
    pub mw: Rkey,
    /// Its key from then on: the same upper 24 bits, any low 8.
    pub new_rkey: Rkey,
    /// The region.
    pub mr: Lkey,
    /// First address, in the address space of the region.
    pub addr: u64,
    /// Bytes. 0 unbinds a window of type 1.
    pub len: u64,
    /// Rights that the window grants; [`Access::ZERO_BASED`] makes addresses in a window of type 2 start at 0.
    pub access: Access,
    /// The kind of window that the request is for.
    pub kind: MwKind,
}

/// Why a bind was refused. The completion says only that it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// No window has this key.
    #[error("unknown window")]
    UnknownWindow,
    /// The window is of the other type.
    #[error("window of the other type")]
    WrongKind,
    /// No region has this lkey.
    #[error("unknown region")]
    UnknownRegion,
    /// Queue pair, window and region are not all of one protection domain (IBTA C10-72).
    #[error("queue pair, window and region are of different protection domains")]
    WrongPd,
    /// The new key is not one of this window's: its upper 24 bits differ.
    #[error("the new key differs in the upper 24 bits")]
    ForeignKey,
    /// A window of type 2 must be invalidated before it is bound again (IBTA o10-37.2.30).
    #[error("window is bound")]
    NotFree,
    /// A window of type 2 has at least one byte (IBTA o10-37.2.40).
    #[error("length 0")]
    Empty,
    /// The region was registered without [`Access::MW_BIND`] (IBTA C10-73).
    #[error("the region takes no windows")]
    NoBindRight,
    /// Remote writes and atomics need a region with [`Access::LOCAL_WRITE`] (IBTA C10-74); flushes need one
    /// that may be flushed.
    #[error("the region does not have the rights for {access:?}")]
    NoRight {
        /// What the window was to grant.
        access: Access,
    },
    /// Rights that a window of this type cannot grant.
    #[error("a window cannot grant {access:?}")]
    BadAccess {
        /// The rights in question.
        access: Access,
    },
    /// Windows cannot be bound to a zero-based region.
    #[error("the region is zero based")]
    ZeroBased,
    /// Not all of the range lies inside the region (IBTA C10-75).
    #[error("outside the region")]
    OutOfRange,
}

/// A window in the table.
pub(super) struct Window {
    pub(super) rkey: Rkey,
    kind: MwKind,
    pd: PdId,
    bound: Option<Bound>,
    /// Its place in the list of windows.
    place: u32,
}

/// What a window is bound to.
#[derive(Clone, Copy)]
struct Bound {
    /// Type 2: the queue pair.
    qpn: Qpn,
    access: Access,
    range: Range,
}

/// Part of a region, under addresses of its own.
#[derive(Clone, Copy)]
pub(super) struct Range {
    /// Slot of the region.
    pub(super) mr: u32,
    /// First address as peers say it.
    pub(super) base: u64,
    /// First address in the address space of the region.
    pub(super) addr: u64,
    pub(super) len: u64,
}

impl Window {
    /// First address and length, as peers say them, if it is bound.
    pub(super) fn range(&self) -> Option<(u64, u64)> {
        self.bound.as_ref().map(|bound| (bound.range.base, bound.range.len))
    }

    /// Checks everything but the range.
    pub(super) fn grant(&self, pd: PdId, qpn: Qpn, need: Access) -> Result<Range, AccessError> {
        let bound = self.bound.as_ref().ok_or(AccessError::NotBound)?;
        if self.pd != pd {
            return Err(AccessError::WrongPd);
        }
        if self.kind == MwKind::Type2 && bound.qpn != qpn {
            return Err(AccessError::WrongQp);
        }
        allowed(need, bound.access)?;
        Ok(bound.range)
    }
}

impl MrTable {
    /// Allocates a window, bound to nothing; gives its first key.
    ///
    /// # Errors
    /// [`MemError::TableFull`].
    pub fn alloc_mw(&mut self, pd: PdId, kind: MwKind) -> Result<Rkey, MemError> {
        let (index, _, rkey) = self.take_slot()?;
        let place = u32::try_from(self.windows.len()).unwrap_or(u32::MAX);
        self.windows.push(index);
        self.slots[index as usize].entry = Entry::Mw(Window { rkey, kind, pd, bound: None, place });
        Ok(rkey)
    }

    /// Frees a window, bound or not, by any key that it has had or may yet have: only the upper 24 bits name
    /// it.
    ///
    /// # Errors
    /// [`MemError::UnknownKey`].
    pub fn dealloc_mw(&mut self, rkey: Rkey) -> Result<(), MemError> {
        let index = self.window_named(rkey).ok_or(MemError::UnknownKey)?;
        self.unbind(index);
        let Entry::Mw(mw) = self.free_slot(index) else { return Err(MemError::UnknownKey) };
        self.windows.swap_remove(mw.place as usize);
        if let Some(&moved) = self.windows.get(mw.place as usize)
            && let Some(other) = self.window_mut(moved)
        {
            other.place = mw.place;
        }
        Ok(())
    }

    /// Binds a window, or refuses and leaves everything as it was.
    ///
    /// A window of type 1 may be bound again without more ado, and is unbound by length 0, which looks at no
    /// region. It changes its key in either case.
    ///
    /// Of `b.mw` the upper 24 bits count. Its owner knows the rest only if every earlier bind has been carried
    /// out, and one that failed or was flushed must not spoil the next.
    ///
    /// # Errors
    /// The reason, see [`BindError`].
    pub fn bind(&mut self, b: &Bind) -> Result<(), BindError> {
        let index = self.window_named(b.mw).ok_or(BindError::UnknownWindow)?;
        let Entry::Mw(mw) = &self.slots[index as usize].entry else {
            return Err(BindError::UnknownWindow);
        };
        if mw.kind != b.kind {
            return Err(BindError::WrongKind);
        }
        if mw.pd != b.pd {
            return Err(BindError::WrongPd);
        }
        if (mw.rkey.0 ^ b.new_rkey.0) >> 8 != 0 {
            return Err(BindError::ForeignKey);
        }
        if b.kind == MwKind::Type2 {
            if mw.bound.is_some() {
                return Err(BindError::NotFree);
            }
            if b.len == 0 {
                return Err(BindError::Empty);
            }
        }
        let bound = if b.len == 0 { None } else { Some(self.checked(b)?) };
        self.unbind(index);
        if let Some(bound) = &bound {
            if let Some(mr) = self.bound_mr_mut(bound.range.mr) {
                mr.windows += 1;
            }
            self.bound_type2 += u32::from(b.kind == MwKind::Type2);
        }
        if let Some(mw) = self.window_mut(index) {
            mw.rkey = b.new_rkey;
            mw.bound = bound;
        }
        Ok(())
    }

    /// The checks that concern region and rights.
    fn checked(&self, b: &Bind) -> Result<Bound, BindError> {
        let mr_slot = self.mr_slot(b.mr).ok_or(BindError::UnknownRegion)?;
        let mr = self.bound_mr(mr_slot).ok_or(BindError::UnknownRegion)?;
        if mr.pd != b.pd {
            return Err(BindError::WrongPd);
        }
        if !mr.access.contains(Access::MW_BIND) {
            return Err(BindError::NoBindRight);
        }
        if mr.access.contains(Access::ZERO_BASED) {
            return Err(BindError::ZeroBased);
        }
        // IBTA o10-36.2.2: windows of type 1 are never zero based.
        let extra = if b.kind == MwKind::Type2 { Access::ZERO_BASED } else { Access::empty() };
        if !(GRANTS | extra).contains(b.access) {
            return Err(BindError::BadAccess { access: b.access });
        }
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let flushes = b.access & (Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT);
        if b.access.intersects(writes) && !mr.access.contains(Access::LOCAL_WRITE)
            || !mr.access.contains(flushes)
        {
            return Err(BindError::NoRight { access: b.access });
        }
        let offset = b.addr.checked_sub(mr.iova).ok_or(BindError::OutOfRange)?;
        within(offset, b.len, mr.region.len() as u64).map_err(|_| BindError::OutOfRange)?;
        let base = if b.access.contains(Access::ZERO_BASED) { 0 } else { b.addr };
        let range = Range { mr: mr_slot, base, addr: b.addr, len: b.len };
        Ok(Bound { qpn: b.qpn, access: b.access, range })
    }

    /// Frees a window of type 2 for its next bind: LOCAL_INV and SEND_WITH_INVALIDATE. The key is dead when
    /// this returns.
    ///
    /// # Errors
    /// [`AccessError::NotInvalidatable`] for regions, windows of type 1 and windows not bound
    /// (IBTA o10-37.2.26); the reason for others.
    pub fn invalidate(&mut self, pd: PdId, qpn: Qpn, rkey: Rkey) -> Result<(), AccessError> {
        let Some(index) = self.window_slot(rkey) else {
            let region = self.is_region(rkey);
            return Err(if region {
                AccessError::NotInvalidatable
            } else {
                AccessError::UnknownKey
            });
        };
        let Entry::Mw(mw) = &self.slots[index as usize].entry else {
            return Err(AccessError::UnknownKey);
        };
        let Some(bound) = mw.bound.filter(|_| mw.kind == MwKind::Type2) else {
            return Err(AccessError::NotInvalidatable);
        };
        if mw.pd != pd {
            return Err(AccessError::WrongPd);
        }
        if bound.qpn != qpn {
            return Err(AccessError::WrongQp);
        }
        self.unbind(index);
        Ok(())
    }

    /// Frees the windows of type 2 that are bound to a queue pair which is being destroyed.
    pub fn unbind_qp(&mut self, qpn: Qpn) {
        if self.bound_type2 == 0 {
            return;
        }
        for place in 0..self.windows.len() {
            let index = self.windows[place];
            let of_qp = self.window_mut(index).is_some_and(|mw| {
                mw.kind == MwKind::Type2 && mw.bound.is_some_and(|bound| bound.qpn == qpn)
            });
            if of_qp {
                self.unbind(index);
            }
        }
    }

    /// Takes all windows off a region.
    ///
    /// # Errors
    /// [`MemError::UnknownKey`].
    pub fn unbind_region(&mut self, lkey: Lkey) -> Result<(), MemError> {
        let mr = self.mr_slot(lkey).ok_or(MemError::UnknownKey)?;
        for place in 0..self.windows.len() {
            let index = self.windows[place];
            if self.window_mut(index).is_some_and(|w| w.bound.is_some_and(|b| b.range.mr == mr)) {
                self.unbind(index);
            }
        }
        Ok(())
    }

    /// Takes a window off its region, if it is on one.
    fn unbind(&mut self, index: u32) {
        let Some(mw) = self.window_mut(index) else { return };
        let type2 = mw.kind == MwKind::Type2;
        let Some(bound) = mw.bound.take() else { return };
        if let Some(mr) = self.bound_mr_mut(bound.range.mr) {
            mr.windows -= 1;
        }
        self.bound_type2 -= u32::from(type2);
    }

    /// The slot of the window with this key, all 32 bits of it.
    fn window_slot(&self, rkey: Rkey) -> Option<u32> {
        let index = self.rkey_slot(rkey);
        match &self.slots.get(index as usize)?.entry {
            Entry::Mw(mw) if mw.rkey == rkey => Some(index),
            _ => None,
        }
    }

    /// The slot of the window with a key that differs from this one at most in the low 8 bits.
    fn window_named(&self, rkey: Rkey) -> Option<u32> {
        let index = self.rkey_slot(rkey);
        match &self.slots.get(index as usize)?.entry {
            Entry::Mw(mw) if (mw.rkey.0 ^ rkey.0) >> 8 == 0 => Some(index),
            _ => None,
        }
    }

    fn window_mut(&mut self, index: u32) -> Option<&mut Window> {
        match &mut self.slots.get_mut(index as usize)?.entry {
            Entry::Mw(mw) => Some(mw),
            _ => None,
        }
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "the numbers are small")]
mod tests;
