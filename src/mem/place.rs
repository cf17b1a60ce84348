//! Where bytes will go that are not written yet: for a simulation that has them land late.
//!
//! A [`Place`] names memory by its region and an offset. It stays right when the window is gone through which it was
//! found, and names nothing any more once the region is deregistered.

use super::table::{Entry, MrTable};
use super::{Access, AccessError, DmaSlice, PdId, Sge};
use crate::wire::num::{Lkey, Qpn, Rkey};

/// A place in registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    lkey: Lkey,
    offset: u64,
    /// Address of the byte in this process, to see which places are the same.
    pub address: usize,
}

impl Place {
    /// The place so many bytes further on.
    #[must_use]
    pub const fn skip(self, bytes: usize) -> Self {
        Self {
            offset: self.offset + bytes as u64,
            address: self.address.wrapping_add(bytes),
            ..self
        }
    }
}

impl MrTable {
    /// What a peer's request reaches, as [`remote`](Self::remote) says it, as a place.
    ///
    /// # Errors
    /// As [`remote`](Self::remote).
    pub fn remote_place(
        &self,
        (pd, qpn): (PdId, Qpn),
        rkey: Rkey,
        va: u64,
        len: u64,
        need: Access,
    ) -> Result<Place, AccessError> {
        self.remote(pd, qpn, rkey, va, len, need)?;
        let slot = self.rkey_slot(rkey);
        match self.slots.get(slot as usize).map(|slot| &slot.entry) {
            Some(Entry::Mr(_)) => self.place(slot, va),
            Some(Entry::Mw(mw)) => {
                let range = mw.grant(pd, qpn, need)?;
                let offset = va.checked_sub(range.base).ok_or(AccessError::OutOfRange)?;
                self.place(range.mr, range.addr.wrapping_add(offset))
            }
            _ => Err(AccessError::UnknownKey),
        }
    }

    /// What a local work request reaches, as [`local`](Self::local) says it, as a place.
    ///
    /// # Errors
    /// As [`local`](Self::local).
    pub fn local_place(&self, pd: PdId, sge: &Sge, need: Access) -> Result<Place, AccessError> {
        self.local(pd, sge, need)?;
        let slot = self.mr_slot(sge.lkey).ok_or(AccessError::UnknownKey)?;
        self.place(slot, sge.addr)
    }

    fn place(&self, slot: u32, va: u64) -> Result<Place, AccessError> {
        let mr = self.bound_mr(slot).ok_or(AccessError::UnknownKey)?;
        let offset = va.checked_sub(mr.iova).ok_or(AccessError::OutOfRange)?;
        let bytes = usize::try_from(offset).map_err(|_| AccessError::OutOfRange)?;
        let address = mr.region.as_ptr().addr().wrapping_add(bytes);
        Ok(Place { lkey: mr.lkey, offset, address })
    }

    /// The bytes at a place; `None`: the region is gone.
    pub fn at(&self, place: &Place, len: usize) -> Option<DmaSlice<'_>> {
        let mr = self.mr(place.lkey)?;
        mr.slice(mr.iova.wrapping_add(place.offset), len as u64).ok()
    }
}
