//! The keys of one NIC: who may do what to which bytes.
//!
//! *Owns.* One slot per memory region or window, its two keys, and the allocator of addresses.
//!
//! # Keys
//! The upper 24 bits of a key are a secret permutation of (slot, generation), so a lookup is an index and a
//! compare, and neighbouring registrations have keys that look unrelated. The low 8 bits belong to the consumer
//! in windows of type 2 and look random elsewhere. lkeys come from another permutation than rkeys, and the two
//! keys of a region always differ: what a program tells its peers does not name anything in its own requests. A
//! freed slot is used again only after all others, with the next generation, so an old key stays dead for
//! long. Regions and windows share the slots, hence never each other's keys. No key is 0.
//!
//! # Order of checks
//! Key (all 32 bits), protection domain, queue pair (windows of type 2), rights, range. All rights asked for
//! must be there. Ranges are compared by subtraction, never by a sum that could wrap.

use std::collections::VecDeque;
use std::sync::Arc;

use super::keys::Permutation;
use super::raw::{CAN_PERSIST, DmaSlice};
use super::window::Window;
use super::{Access, AccessError, MemError, PdId, Region, Sge};
use crate::wire::num::{Lkey, Qpn, Rkey};

/// Bits of a key that choose the slot.
pub(super) const INDEX_BITS: u32 = 17;
/// Slots; number 0 is never used.
pub(super) const SLOTS: u32 = 1 << INDEX_BITS;
/// Step of the address allocator.
const PAGE: u64 = 4096;

/// Where a region begins in the address space of its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IovaChoice {
    /// At an address that the device chooses: whole pages, never given out twice, equal for equal seeds.
    Allocate,
    /// At its address in this process, as `ibv_reg_mr` does.
    HostAddress,
    /// At this address, as `ibv_reg_mr_iova` does.
    At(u64),
}

/// What a registration is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// For this side's work requests.
    pub lkey: Lkey,
    /// For peers.
    pub rkey: Rkey,
    /// Address of the first byte; 0 if zero based.
    pub iova: u64,
}

/// A registered region.
pub(super) struct Mr {
    pub(super) lkey: Lkey,
    rkey: Rkey,
    pub(super) pd: PdId,
    pub(super) access: Access,
    /// Address of the first byte, as peers and requests say it.
    pub(super) iova: u64,
    pub(super) region: Arc<Region>,
    /// Windows bound to it.
    pub(super) windows: u32,
}

/// What a slot holds.
pub(super) enum Entry {
    Free,
    Mr(Mr),
    Mw(Window),
}

/// A slot, with what must outlive its entries.
pub(super) struct Slot {
    /// How often it has been taken. The low 7 bits are the generation in the key.
    uses: u32,
    pub(super) entry: Entry,
}

/// The memory regions and windows of one NIC. See the [module](self) for how keys are made and checked.
pub struct MrTable {
    rkeys: Permutation,
    lkeys: Permutation,
    /// Slots ever used; number 0 stays empty.
    pub(super) slots: Vec<Slot>,
    /// Freed slots, the longest free first.
    freed: VecDeque<u32>,
    /// Slots of all windows, in no order.
    pub(super) windows: Vec<u32>,
    /// Windows of type 2 that are bound.
    pub(super) bound_type2: u32,
    regions: u32,
    next_iova: u64,
}

impl MrTable {
    /// Most regions and windows together.
    pub const MAX: u32 = SLOTS - 1;

    /// An empty table. `key` is secret and makes the keys; addresses are allocated from `iova_base` on.
    pub fn new(key: [u8; 16], iova_base: u64) -> Self {
        let mut seeds = [0; 4];
        for (seed, bytes) in seeds.iter_mut().zip(key.as_chunks::<4>().0) {
            *seed = u32::from_le_bytes(*bytes);
        }
        Self {
            rkeys: Permutation::new(seeds, 0),
            lkeys: Permutation::new(seeds, 1),
            slots: vec![Slot { uses: 0, entry: Entry::Free }],
            freed: VecDeque::new(),
            windows: Vec::new(),
            bound_type2: 0,
            regions: 0,
            next_iova: (iova_base & !(PAGE - 1)).max(PAGE),
        }
    }

    /// Registered regions.
    pub fn regions(&self) -> u32 {
        self.regions
    }

    /// Allocated windows.
    pub fn windows(&self) -> usize {
        self.windows.len()
    }

    /// Registers a region. [`Access::ZERO_BASED`] overrides `iova`.
    ///
    /// # Errors
    /// [`MemError::Empty`], [`MemError::UnknownAccess`], [`MemError::NeedsLocalWrite`],
    /// [`MemError::NotPersistent`], [`MemError::AddressWraps`], [`MemError::TableFull`]. Nothing is registered
    /// then.
    pub fn register(
        &mut self,
        pd: PdId,
        region: Arc<Region>,
        iova: IovaChoice,
        access: Access,
    ) -> Result<Registered, MemError> {
        if region.is_empty() {
            return Err(MemError::Empty);
        }
        let unknown = access.bits() & !Access::all().bits();
        if unknown != 0 {
            return Err(MemError::UnknownAccess { bits: unknown });
        }
        if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
            && !access.contains(Access::LOCAL_WRITE)
        {
            return Err(MemError::NeedsLocalWrite { access });
        }
        if access.contains(Access::FLUSH_PERSISTENT) && !(region.is_foreign() && CAN_PERSIST) {
            return Err(MemError::NotPersistent);
        }
        let len = region.len() as u64;
        let start = match iova {
            _ if access.contains(Access::ZERO_BASED) => 0,
            IovaChoice::Allocate => self.next_iova,
            IovaChoice::HostAddress => region.as_ptr().addr() as u64,
            IovaChoice::At(addr) => addr,
        };
        let wraps = MemError::AddressWraps { iova: start, len };
        let end = start.checked_add(len).ok_or(wraps)?;
        let mut next_iova = self.next_iova;
        if iova == IovaChoice::Allocate && !access.contains(Access::ZERO_BASED) {
            next_iova = end.checked_next_multiple_of(PAGE).ok_or(wraps)?;
        }
        let (index, lkey, rkey) = self.take_slot()?;
        self.next_iova = next_iova;
        self.regions += 1;
        self.slots[index as usize].entry =
            Entry::Mr(Mr { lkey, rkey, pd, access, iova: start, region, windows: 0 });
        Ok(Registered { lkey, rkey, iova: start })
    }

    /// Ends a registration. Once this returns, neither key reaches memory, and no access is under way.
    ///
    /// # Errors
    /// [`MemError::UnknownKey`]; [`MemError::Busy`] while memory windows are bound to it (IBTA 10.6.6.1).
    pub fn deregister(&mut self, lkey: Lkey) -> Result<Arc<Region>, MemError> {
        let index = self.lkeys.slot_of(lkey.0);
        let mr = self.mr(lkey).ok_or(MemError::UnknownKey)?;
        if mr.windows > 0 {
            return Err(MemError::Busy { windows: mr.windows });
        }
        let Entry::Mr(mr) = self.free_slot(index) else { return Err(MemError::UnknownKey) };
        self.regions -= 1;
        Ok(mr.region)
    }

    /// What a local work request reaches: for reading if `need` is empty, else with these rights.
    ///
    /// # Errors
    /// The reason for the completion error.
    pub fn local(&self, pd: PdId, sge: &Sge, need: Access) -> Result<DmaSlice<'_>, AccessError> {
        self.local_key(pd, sge.lkey, need)?.slice(sge)
    }

    /// The first half of [`local`](Self::local): whether this lkey may be used so at all. The other half follows for
    /// each buffer.
    ///
    /// # Errors
    /// The reason for the completion error.
    #[inline]
    pub fn local_key(
        &self,
        pd: PdId,
        lkey: Lkey,
        need: Access,
    ) -> Result<LocalKey<'_>, AccessError> {
        let mr = self.mr(lkey).ok_or(AccessError::UnknownKey)?;
        if mr.pd != pd {
            return Err(AccessError::WrongPd);
        }
        allowed(need, mr.access)?;
        Ok(LocalKey(mr))
    }

    /// What a peer's request on queue pair `qpn` of domain `pd` reaches by the rkey of a region or of a bound
    /// window: `len` bytes from `va`.
    ///
    /// # Errors
    /// The reason for the NAK.
    pub fn remote(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
        va: u64,
        len: u64,
        need: Access,
    ) -> Result<DmaSlice<'_>, AccessError> {
        let slot = self.slots.get(self.rkeys.slot_of(rkey.0) as usize);
        match slot.map(|slot| &slot.entry) {
            Some(Entry::Mr(mr)) if mr.rkey == rkey => {
                if mr.pd != pd {
                    return Err(AccessError::WrongPd);
                }
                allowed(need, mr.access)?;
                mr.slice(va, len)
            }
            Some(Entry::Mw(mw)) if mw.rkey == rkey => {
                let range = mw.grant(pd, qpn, need)?;
                let mr = self.bound_mr(range.mr).ok_or(AccessError::UnknownKey)?;
                let offset = va.checked_sub(range.base).ok_or(AccessError::OutOfRange)?;
                within(offset, len, range.len)?;
                mr.slice(range.addr + offset, len)
            }
            _ => Err(AccessError::UnknownKey),
        }
    }

    /// All that an rkey reaches, as address and length: for a FLUSH of everything. Who may is checked by
    /// [`remote`](Self::remote).
    pub fn reach(&self, rkey: Rkey) -> Option<(u64, u64)> {
        match &self.slots.get(self.rkeys.slot_of(rkey.0) as usize)?.entry {
            Entry::Mr(mr) if mr.rkey == rkey => Some((mr.iova, mr.region.len() as u64)),
            Entry::Mw(mw) if mw.rkey == rkey => mw.range(),
            _ => None,
        }
    }

    /// The region with this lkey.
    pub(super) fn mr(&self, lkey: Lkey) -> Option<&Mr> {
        match &self.slots.get(self.lkeys.slot_of(lkey.0) as usize)?.entry {
            Entry::Mr(mr) if mr.lkey == lkey => Some(mr),
            _ => None,
        }
    }

    /// The slot of the region with this lkey.
    pub(super) fn mr_slot(&self, lkey: Lkey) -> Option<u32> {
        self.mr(lkey).map(|_| self.lkeys.slot_of(lkey.0))
    }

    /// The region in a slot.
    pub(super) fn bound_mr(&self, slot: u32) -> Option<&Mr> {
        match &self.slots.get(slot as usize)?.entry {
            Entry::Mr(mr) => Some(mr),
            _ => None,
        }
    }

    /// The region in a slot, to count its windows.
    pub(super) fn bound_mr_mut(&mut self, slot: u32) -> Option<&mut Mr> {
        match &mut self.slots.get_mut(slot as usize)?.entry {
            Entry::Mr(mr) => Some(mr),
            _ => None,
        }
    }

    /// Whether a region has this rkey.
    pub(super) fn is_region(&self, rkey: Rkey) -> bool {
        self.bound_mr(self.rkey_slot(rkey)).is_some_and(|mr| mr.rkey == rkey)
    }

    /// The slot that an rkey would be in.
    pub(super) fn rkey_slot(&self, rkey: Rkey) -> u32 {
        self.rkeys.slot_of(rkey.0)
    }

    /// Takes a free slot and makes its keys.
    pub(super) fn take_slot(&mut self) -> Result<(u32, Lkey, Rkey), MemError> {
        let index = match u32::try_from(self.slots.len()) {
            Ok(fresh) if fresh < SLOTS => {
                self.slots.push(Slot { uses: 0, entry: Entry::Free });
                fresh
            }
            _ => self.freed.pop_front().ok_or(MemError::TableFull { max: Self::MAX })?,
        };
        let slot = &mut self.slots[index as usize];
        loop {
            slot.uses = slot.uses.wrapping_add(1);
            let name = (slot.uses & 0x7f) << INDEX_BITS | index;
            let (rkey, mut lkey) =
                (self.rkeys.key(name, slot.uses), self.lkeys.key(name, slot.uses));
            // Upper bits of zero could become key 0, which programs take for "none".
            if rkey >> 8 == 0 || lkey >> 8 == 0 {
                continue;
            }
            if lkey == rkey {
                lkey ^= 1;
            }
            return Ok((index, Lkey(lkey), Rkey(rkey)));
        }
    }

    /// Empties a slot.
    pub(super) fn free_slot(&mut self, index: u32) -> Entry {
        self.freed.push_back(index);
        std::mem::replace(&mut self.slots[index as usize].entry, Entry::Free)
    }
}

impl std::fmt::Debug for MrTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the secret.
        f.debug_struct("MrTable")
            .field("regions", &self.regions)
            .field("windows", &self.windows.len())
            .finish_non_exhaustive()
    }
}

/// An lkey that was looked up, with the right to use it; the table does not change meanwhile.
#[derive(Clone, Copy)]
pub struct LocalKey<'t>(&'t Mr);

impl<'t> LocalKey<'t> {
    /// Whether it is this one.
    #[inline]
    pub fn is(&self, lkey: Lkey) -> bool {
        self.0.lkey == lkey
    }

    /// What a buffer reaches, of which the key is this one.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`].
    #[inline]
    pub fn slice(&self, sge: &Sge) -> Result<DmaSlice<'t>, AccessError> {
        debug_assert!(self.is(sge.lkey));
        self.0.slice(sge.addr, u64::from(sge.length))
    }
}

impl std::fmt::Debug for LocalKey<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("LocalKey").field(&self.0.lkey).finish()
    }
}

impl Mr {
    /// `len` bytes from address `va`, if all are inside.
    #[inline]
    pub(super) fn slice(&self, va: u64, len: u64) -> Result<DmaSlice<'_>, AccessError> {
        let offset = va.checked_sub(self.iova).ok_or(AccessError::OutOfRange)?;
        let offset = usize::try_from(offset).map_err(|_| AccessError::OutOfRange)?;
        let len = usize::try_from(len).map_err(|_| AccessError::OutOfRange)?;
        let part = self.region.bytes().sub(offset, len).ok_or(AccessError::OutOfRange)?;
        Ok(DmaSlice::new(part))
    }
}

/// All of `need` must be in `have`; one right of several is not enough.
pub(super) fn allowed(need: Access, have: Access) -> Result<(), AccessError> {
    if have.contains(need) { Ok(()) } else { Err(AccessError::NoRight { need, have }) }
}

/// Whether `len` bytes from `offset` lie within `size`.
pub(super) fn within(offset: u64, len: u64, size: u64) -> Result<(), AccessError> {
    if offset <= size && len <= size - offset { Ok(()) } else { Err(AccessError::OutOfRange) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{Bind, MwKind};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const PD: PdId = PdId(1);
    const QP: Qpn = Qpn::new(0x11);

    fn table() -> MrTable {
        MrTable::new(*b"a key for tests.", 0x10_0000)
    }

    fn region(len: usize) -> Arc<Region> {
        Region::alloc(len).unwrap()
    }

    fn register(t: &mut MrTable, len: usize, access: Access) -> Registered {
        t.register(PD, region(len), IovaChoice::Allocate, access).unwrap()
    }

    fn sge(r: &Registered, offset: u64, length: u32) -> Sge {
        Sge { addr: r.iova.wrapping_add(offset), length, lkey: r.lkey }
    }

    fn check(
        t: &MrTable,
        r: &Registered,
        offset: u64,
        len: u64,
        need: Access,
    ) -> Result<usize, AccessError> {
        t.remote(PD, QP, r.rkey, r.iova.wrapping_add(offset), len, need).map(|slice| slice.len())
    }

    #[test]
    fn what_is_registered_can_be_reached_until_it_is_not() {
        let mut t = table();
        let memory = region(100);
        let r = t.register(PD, Arc::clone(&memory), IovaChoice::Allocate, Access::REMOTE).unwrap();
        t.remote(PD, QP, r.rkey, r.iova + 10, 5, Access::REMOTE_WRITE)
            .unwrap()
            .write_from(0, b"hello");
        let mut got = [0; 7];
        t.local(PD, &sge(&r, 9, 7), Access::empty()).unwrap().read_into(0, &mut got);
        assert_eq!(&got, b"\0hello\0");
        assert_eq!(t.regions(), 1);
        assert!(Arc::ptr_eq(&t.deregister(r.lkey).unwrap(), &memory));
        assert_eq!(t.regions(), 0);
        assert_eq!(check(&t, &r, 0, 1, Access::REMOTE_READ), Err(AccessError::UnknownKey));
        assert_eq!(
            t.local(PD, &sge(&r, 0, 1), Access::empty()).unwrap_err(),
            AccessError::UnknownKey
        );
        assert_eq!(t.deregister(r.lkey).unwrap_err(), MemError::UnknownKey);
    }

    #[test]
    fn all_rights_asked_for_must_be_there() {
        let mut t = table();
        let have = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let r = register(&mut t, 64, have);
        assert_eq!(check(&t, &r, 0, 8, Access::REMOTE_READ), Ok(8));
        assert_eq!(check(&t, &r, 0, 8, Access::REMOTE_ATOMIC), Ok(8));
        for need in [
            Access::REMOTE_WRITE,
            Access::REMOTE_WRITE | Access::REMOTE_READ,
            Access::FLUSH_GLOBAL,
            Access::FLUSH_GLOBAL | Access::REMOTE_ATOMIC,
        ] {
            assert_eq!(check(&t, &r, 0, 8, need), Err(AccessError::NoRight { need, have }));
        }
        let read_only = register(&mut t, 64, Access::empty());
        assert!(t.local(PD, &sge(&read_only, 0, 8), Access::empty()).is_ok());
        assert_eq!(
            t.local(PD, &sge(&read_only, 0, 8), Access::LOCAL_WRITE).unwrap_err(),
            AccessError::NoRight { need: Access::LOCAL_WRITE, have: Access::empty() }
        );
    }

    #[test]
    fn ranges_that_wrap_are_refused() {
        let mut t = table();
        let r = register(&mut t, 128, Access::REMOTE);
        let read = Access::REMOTE_READ;
        for (va, len) in [
            (u64::MAX - 63, 128),
            (r.iova.wrapping_sub(80), 96),
            (r.iova, u64::MAX),
            (r.iova + 1, u64::MAX),
            (r.iova + 128, u64::MAX - 127),
            (0, u64::MAX),
            (u64::MAX, 1),
            (u64::MAX, u64::MAX),
        ] {
            let got = t.remote(PD, QP, r.rkey, va, len, read).map(|s| s.len());
            assert_eq!(got, Err(AccessError::OutOfRange), "{len:#x} at {va:#x}");
        }
        for addr in [u64::MAX - 63, r.iova.wrapping_sub(80), 0] {
            let got = t.local(PD, &Sge { addr, length: u32::MAX, lkey: r.lkey }, Access::empty());
            assert_eq!(got.map(|s| s.len()), Err(AccessError::OutOfRange), "{addr:#x}");
        }
        for iova in [u64::MAX, u64::MAX - 63, u64::MAX - 127] {
            assert_eq!(
                t.register(PD, region(128), IovaChoice::At(iova), Access::empty()),
                Err(MemError::AddressWraps { iova, len: 128 })
            );
        }
        let top = IovaChoice::At(u64::MAX - 128);
        let r = t.register(PD, region(128), top, Access::REMOTE).unwrap();
        assert_eq!(check(&t, &r, 0, 128, read), Ok(128), "the last address that can be");
        assert_eq!(check(&t, &r, 1, 128, read), Err(AccessError::OutOfRange));
        assert_eq!(check(&t, &r, 128, 0, read), Ok(0), "no bytes at the end");
        assert_eq!(check(&t, &r, 129, 0, read), Err(AccessError::OutOfRange));
    }

    #[test]
    fn domains_do_not_mix() {
        let mut t = table();
        let r = register(&mut t, 64, Access::REMOTE);
        let other = PdId(2);
        let got = t.remote(other, QP, r.rkey, r.iova, 1, Access::REMOTE_READ).map(|s| s.len());
        assert_eq!(got, Err(AccessError::WrongPd));
        let got = t.local(other, &sge(&r, 0, 1), Access::empty()).map(|s| s.len());
        assert_eq!(got, Err(AccessError::WrongPd));
    }

    #[test]
    fn peers_may_write_only_where_the_owner_may() {
        let mut t = table();
        for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC | Access::REMOTE_READ] {
            let got = t.register(PD, region(8), IovaChoice::Allocate, access);
            assert_eq!(got, Err(MemError::NeedsLocalWrite { access }));
        }
        let odd = Access::from_bits_retain(1 << 30);
        let got = t.register(PD, region(8), IovaChoice::Allocate, odd);
        assert_eq!(got, Err(MemError::UnknownAccess { bits: 1 << 30 }));
        assert_eq!(t.regions(), 0);
    }

    #[test]
    fn addresses_are_chosen_in_whole_pages_or_as_told() {
        let mut t = MrTable::new([7; 16], 0x12_3456);
        let access = Access::LOCAL_WRITE;
        assert_eq!(register(&mut t, 1, access).iova, 0x12_3000);
        assert_eq!(register(&mut t, 4097, access).iova, 0x12_4000);
        assert_eq!(register(&mut t, 4096, access).iova, 0x12_6000);
        assert_eq!(register(&mut t, 5, access).iova, 0x12_7000);
        assert_eq!(register(&mut t, 5, access | Access::ZERO_BASED).iova, 0);
        let at = t.register(PD, region(5), IovaChoice::At(77), access).unwrap();
        assert_eq!(at.iova, 77);
        let memory = region(5);
        let host = t.register(PD, Arc::clone(&memory), IovaChoice::HostAddress, access).unwrap();
        assert_eq!(host.iova, memory.as_ptr().addr() as u64);
        assert_eq!(register(&mut t, 5, access).iova, 0x12_8000, "the others took none");
        assert_eq!(MrTable::new([7; 16], 0).next_iova, PAGE, "0 is not an address");
        let mut t = MrTable::new([7; 16], u64::MAX);
        let full = t.register(PD, region(1), IovaChoice::Allocate, access);
        assert_eq!(full, Err(MemError::AddressWraps { iova: u64::MAX - 4095, len: 1 }));
    }

    #[test]
    fn zero_based_addresses_are_offsets() {
        let mut t = table();
        let r = register(&mut t, 64, Access::REMOTE | Access::ZERO_BASED);
        let memory = t.deregister(r.lkey).unwrap();
        memory.write(5, &[9]);
        let r = t
            .register(PD, memory, IovaChoice::At(0x1000), Access::REMOTE | Access::ZERO_BASED)
            .unwrap();
        assert_eq!(r.iova, 0);
        let mut got = [0];
        t.remote(PD, QP, r.rkey, 5, 1, Access::REMOTE_READ).unwrap().read_into(0, &mut got);
        assert_eq!(got, [9]);
        assert_eq!(check(&t, &r, 0x1000, 1, Access::REMOTE_READ), Err(AccessError::OutOfRange));
    }

    #[test]
    fn the_two_keys_of_a_region_name_different_things() {
        let mut t = table();
        for _ in 0..5000 {
            let r = register(&mut t, 8, Access::REMOTE);
            assert_ne!(r.lkey.0, r.rkey.0);
            assert!(r.lkey.0 != 0 && r.rkey.0 != 0);
            let swapped = Registered { lkey: Lkey(r.rkey.0), rkey: Rkey(r.lkey.0), ..r };
            assert_eq!(
                check(&t, &swapped, 0, 1, Access::REMOTE_READ),
                Err(AccessError::UnknownKey),
                "an lkey is no rkey"
            );
            let got = t.local(PD, &sge(&swapped, 0, 1), Access::empty()).map(|s| s.len());
            assert_eq!(got, Err(AccessError::UnknownKey), "an rkey is no lkey");
        }
    }

    #[test]
    fn every_bit_of_a_key_counts() {
        let mut t = table();
        let r = register(&mut t, 8, Access::REMOTE);
        for bit in 0..32 {
            let wrong = Registered {
                lkey: Lkey(r.lkey.0 ^ 1 << bit),
                rkey: Rkey(r.rkey.0 ^ 1 << bit),
                ..r
            };
            let got = check(&t, &wrong, 0, 1, Access::REMOTE_READ);
            assert_eq!(got, Err(AccessError::UnknownKey), "bit {bit}");
            let got = t.local(PD, &sge(&wrong, 0, 1), Access::empty()).map(|s| s.len());
            assert_eq!(got, Err(AccessError::UnknownKey), "bit {bit}");
        }
    }

    #[test]
    fn keys_come_from_the_secret_alone() {
        let keys = |secret| {
            let mut t = MrTable::new(secret, 0);
            (0..100).map(|_| register(&mut t, 1, Access::empty())).collect::<Vec<_>>()
        };
        assert_eq!(keys([1; 16]), keys([1; 16]));
        let (a, b) = (keys([1; 16]), keys([2; 16]));
        assert!(a.iter().zip(&b).all(|(a, b)| a.rkey != b.rkey && a.lkey != b.lkey));
    }

    /// More registrations than slots, more than any 16-bit counter, windows in between.
    #[test]
    fn keys_of_the_dead_stay_dead_and_windows_never_get_a_regions_key() {
        let mut t = table();
        let memory = region(8);
        let living = register(&mut t, 8, Access::REMOTE);
        let window = t.alloc_mw(PD, MwKind::Type2).unwrap();
        let mut rkeys = BTreeSet::from([living.rkey, window]);
        let mut lkeys = BTreeSet::from([living.lkey]);
        let mut dead = Vec::new();
        for i in 0..SLOTS + SLOTS / 2 {
            if i % 5 == 0 {
                let rkey = t.alloc_mw(PD, MwKind::Type1).unwrap();
                assert!(rkeys.insert(rkey), "{rkey} twice after {i}");
                t.dealloc_mw(rkey).unwrap();
                continue;
            }
            let r = t.register(PD, Arc::clone(&memory), IovaChoice::At(0), Access::REMOTE).unwrap();
            assert!(rkeys.insert(r.rkey), "{} twice after {i}", r.rkey);
            assert!(lkeys.insert(r.lkey), "{} twice after {i}", r.lkey);
            t.deregister(r.lkey).unwrap();
            if i % 64 == 1 {
                dead.push(r);
            }
        }
        for r in &dead {
            assert_eq!(check(&t, r, 0, 1, Access::REMOTE_READ), Err(AccessError::UnknownKey));
            assert_eq!(t.deregister(r.lkey).unwrap_err(), MemError::UnknownKey);
        }
        assert_eq!(check(&t, &living, 0, 8, Access::REMOTE_READ), Ok(8));
        assert_eq!((t.regions(), t.windows()), (1, 1));
        assert!(t.dealloc_mw(window).is_ok());
    }

    #[test]
    fn a_full_table_says_so_and_takes_more_when_one_has_gone() {
        let mut t = table();
        let memory = region(8);
        let add = |t: &mut MrTable| {
            t.register(PD, Arc::clone(&memory), IovaChoice::At(0), Access::empty())
        };
        let first = add(&mut t).unwrap();
        for _ in 1..MrTable::MAX {
            add(&mut t).unwrap();
        }
        let full = MemError::TableFull { max: 131_071 };
        assert_eq!(add(&mut t), Err(full));
        assert_eq!(t.alloc_mw(PD, MwKind::Type2), Err(full));
        t.deregister(first.lkey).unwrap();
        let next = add(&mut t).unwrap();
        assert!(next.lkey != first.lkey && next.rkey != first.rkey);
        assert_eq!(add(&mut t), Err(full));
        assert_eq!(t.regions(), MrTable::MAX);
    }

    #[test]
    fn a_region_with_windows_stays() {
        let mut t = table();
        let r = register(&mut t, 64, Access::LOCAL_WRITE | Access::MW_BIND);
        let mw = t.alloc_mw(PD, MwKind::Type2).unwrap();
        let bind = Bind {
            pd: PD,
            qpn: QP,
            mw,
            new_rkey: mw,
            mr: r.lkey,
            addr: r.iova,
            len: 64,
            access: Access::REMOTE_WRITE,
            kind: MwKind::Type2,
        };
        t.bind(&bind).unwrap();
        assert_eq!(t.deregister(r.lkey).unwrap_err(), MemError::Busy { windows: 1 });
        assert!(t.remote(PD, QP, mw, r.iova, 64, Access::REMOTE_WRITE).is_ok());
        t.invalidate(PD, QP, mw).unwrap();
        assert!(t.deregister(r.lkey).is_ok());
    }

    #[test]
    fn errors_have_the_numbers_of_libibverbs() {
        assert_eq!(MemError::Busy { windows: 1 }.errno(), 16);
        assert_eq!(MemError::NoMemory { len: 1 }.errno(), 12);
        assert_eq!(MemError::TableFull { max: 1 }.errno(), 12);
        for e in [MemError::Empty, MemError::UnknownKey, MemError::AddressWraps { iova: 0, len: 0 }]
        {
            assert_eq!(e.errno(), 22, "{e}");
        }
    }

    proptest! {
        #[test]
        fn no_key_address_or_length_panics(
            key: u32, addr: u64, len: u64, length: u32, need: u32, qpn: u32,
        ) {
            let mut t = table();
            let r = register(&mut t, 64, Access::REMOTE | Access::MW_BIND);
            let mw = t.alloc_mw(PD, MwKind::Type1).unwrap();
            let need = Access::from_bits_retain(need);
            for rkey in [Rkey(key), r.rkey, mw] {
                let _ = t.remote(PD, Qpn::new(qpn), rkey, addr, len, need);
                let _ = t.invalidate(PD, Qpn::new(qpn), rkey);
            }
            for lkey in [Lkey(key), r.lkey] {
                let _ = t.local(PD, &Sge { addr, length, lkey }, need);
                let bind = Bind {
                    pd: PD, qpn: QP, mw, new_rkey: Rkey(mw.0 ^ key & 0xff), mr: lkey, addr, len,
                    access: need, kind: MwKind::Type1,
                };
                let _ = t.bind(&bind);
            }
            prop_assert_eq!(check(&t, &r, 0, 64, Access::REMOTE_READ), Ok(64));
        }
    }
}
