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

use super::raw::DmaSlice;
use super::window::Window;
use super::{Access, AccessError, MemError, PdId, Region, Sge};
use crate::wire::num::{Lkey, Qpn, Rkey};

/// Bits of a key that choose the slot.
const INDEX_BITS: u32 = 17;
/// Slots; number 0 is never used.
const SLOTS: u32 = 1 << INDEX_BITS;
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
    lkey: Lkey,
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
    /// [`MemError::AddressWraps`], [`MemError::TableFull`]. Nothing is registered then.
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
        let mr = self.mr(sge.lkey).ok_or(AccessError::UnknownKey)?;
        if mr.pd != pd {
            return Err(AccessError::WrongPd);
        }
        allowed(need, mr.access)?;
        mr.slice(sge.addr, u64::from(sge.length))
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

impl Mr {
    /// `len` bytes from address `va`, if all are inside.
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

/// A keyed permutation of 24-bit numbers: a Feistel network of four rounds on two halves of 12 bits.
struct Permutation {
    rounds: [u32; 4],
}

impl Permutation {
    fn new(seeds: [u32; 4], which: u32) -> Self {
        let mut state = which;
        Self {
            rounds: seeds.map(|seed| {
                state = mix(state ^ seed);
                state
            }),
        }
    }

    /// The key of slot-and-generation `name`: its 24 bits permuted, and 8 bits that depend on everything.
    fn key(&self, name: u32, uses: u32) -> u32 {
        let low = mix(mix(self.rounds[3] ^ uses) ^ name) >> 24;
        self.permute(name) << 8 | low
    }

    /// The slot that a key belongs to, if it belongs to any.
    fn slot_of(&self, key: u32) -> u32 {
        self.invert(key >> 8) & (SLOTS - 1)
    }

    fn permute(&self, v: u32) -> u32 {
        let (mut l, mut r) = (v >> 12, v & 0xfff);
        for k in self.rounds {
            (l, r) = (r, l ^ half(r, k));
        }
        l << 12 | r
    }

    fn invert(&self, v: u32) -> u32 {
        let (mut l, mut r) = (v >> 12, v & 0xfff);
        for k in self.rounds.into_iter().rev() {
            (l, r) = (r ^ half(l, k), l);
        }
        l << 12 | r
    }
}

/// The round function: 12 bits from 12 bits and a round key.
fn half(v: u32, k: u32) -> u32 {
    mix(v ^ k) >> 20
}

/// A permutation of 32 bits in which every bit of the input changes about half of the output.
fn mix(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x7feb_352d);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846c_a68b);
    x ^ x >> 16
}
