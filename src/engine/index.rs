//! Numbers of objects: a slot of a table, and whose turn in it.
//!
//! *Rules.* A number is 20 bits of slot, shifted by a start that is random per device, and 4 bits that
//! count the owners of the slot. Numbers 0, 1 and 0xffffff are never given out. A freed slot is reused
//! last, and not while there are few: late packets for a queue pair that is gone, and late words about a shared
//! receive queue, find nobody.

use std::collections::VecDeque;

use super::qp::{Qp, QpHandle};
use super::srq::SrqSlot;
use crate::wire::num::Qpn;

const SLOT_MASK: u32 = 0xf_ffff;
/// Slots that wait before the first of them is reused.
const COOLING: usize = 1024;

#[derive(Debug)]
struct Slot<T> {
    turn: u32,
    object: Option<T>,
}

/// Objects by number.
#[derive(Debug)]
struct Table<T> {
    slots: Vec<Slot<T>>,
    free: VecDeque<u32>,
    start: u32,
    first_turn: u32,
    live: u32,
    max: u32,
}

impl<T> Table<T> {
    fn new(random: u32, max: u32) -> Self {
        Self {
            slots: Vec::new(),
            free: VecDeque::new(),
            start: random & SLOT_MASK,
            first_turn: random >> 20 & 0xf,
            live: 0,
            max: max.min(SLOT_MASK - 3),
        }
    }

    fn number(&self, slot: u32, turn: u32) -> u32 {
        (self.start.wrapping_add(slot)) & SLOT_MASK | (turn & 0xf) << 20
    }

    /// A slot for a new object, and whose turn it is. `None`: there are too many.
    fn reserve(&mut self) -> Option<(u32, u32)> {
        if self.live >= self.max {
            return None;
        }
        let full = self.slots.len() > SLOT_MASK as usize;
        let slot = if self.free.len() > COOLING || full && !self.free.is_empty() {
            self.free.pop_front()?
        } else {
            loop {
                if self.slots.len() > SLOT_MASK as usize {
                    return None;
                }
                let slot = u32::try_from(self.slots.len()).ok()?;
                self.slots.push(Slot { turn: self.first_turn, object: None });
                // Reserved whatever the turn: 0 and 1 are management, 0xffffff is multicast.
                if !matches!(self.number(slot, 0), 0 | 1 | SLOT_MASK) {
                    break slot;
                }
            }
        };
        Some((slot, self.slots[slot as usize].turn))
    }

    fn insert(&mut self, slot: u32, object: T) {
        self.slots[slot as usize].object = Some(object);
        self.live += 1;
    }

    fn remove(&mut self, at: u32) -> Option<T> {
        let slot = self.slots.get_mut(at as usize)?;
        let object = slot.object.take()?;
        slot.turn = slot.turn.wrapping_add(1);
        self.free.push_back(at);
        self.live -= 1;
        Some(object)
    }

    /// The slot that a number names, if it is the number of its owner of now.
    fn slot_of(&self, number: u32) -> Option<u32> {
        let at = number.wrapping_sub(self.start) & SLOT_MASK;
        let slot = self.slots.get(at as usize)?;
        (slot.object.is_some() && self.number(at, slot.turn) == number).then_some(at)
    }
}

/// All queue pairs of a device.
#[derive(Debug)]
pub(crate) struct QpTable(Table<Box<Qp>>);

impl QpTable {
    pub(crate) fn new(random: u32, max: u32) -> Self {
        Self(Table::new(random, max))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.live as usize
    }

    /// Slots ever used: what per-slot tables must hold.
    pub(crate) fn slots(&self) -> usize {
        self.0.slots.len()
    }

    /// A place for a new queue pair. `None`: there are too many.
    pub(crate) fn reserve(&mut self) -> Option<(QpHandle, Qpn)> {
        let (slot, turn) = self.0.reserve()?;
        Some((QpHandle { slot, turn }, Qpn::new(self.0.number(slot, turn))))
    }

    pub(crate) fn insert(&mut self, qp: Qp) {
        self.0.insert(qp.handle.slot, Box::new(qp));
    }

    pub(crate) fn remove(&mut self, handle: QpHandle) -> Option<Box<Qp>> {
        self.get(handle)?;
        self.0.remove(handle.slot)
    }

    pub(crate) fn get(&mut self, handle: QpHandle) -> Option<&mut Qp> {
        self.at(handle.slot).filter(|qp| qp.handle == handle)
    }

    /// The queue pair in a slot, whoever it is.
    pub(crate) fn at(&mut self, slot: u32) -> Option<&mut Qp> {
        self.0.slots.get_mut(slot as usize)?.object.as_deref_mut()
    }

    /// The slot of the queue pair with this number.
    pub(crate) fn find(&self, qpn: Qpn) -> Option<u32> {
        let slot = qpn.raw().wrapping_sub(self.0.start) & SLOT_MASK;
        let qp = self.0.slots.get(slot as usize)?.object.as_deref()?;
        (qp.qpn == qpn).then_some(slot)
    }
}

/// All shared receive queues of a device.
#[derive(Debug)]
pub(crate) struct SrqTable(Table<SrqSlot>);

impl SrqTable {
    pub(crate) fn new(random: u32, max: u32) -> Self {
        Self(Table::new(random, max))
    }

    /// Enters a queue under a number of its own. `None`: there are too many.
    pub(crate) fn insert(&mut self, make: impl FnOnce() -> SrqSlot) -> Option<u32> {
        let (slot, turn) = self.0.reserve()?;
        self.0.insert(slot, make());
        Some(self.0.number(slot, turn))
    }

    pub(crate) fn get(&mut self, number: u32) -> Option<&mut SrqSlot> {
        let slot = self.0.slot_of(number)?;
        self.0.slots[slot as usize].object.as_mut()
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<SrqSlot> {
        self.0.remove(self.0.slot_of(number)?)
    }

    /// Whether there is no place for another one.
    pub(crate) fn is_full(&self) -> bool {
        self.0.live >= self.0.max
    }
}
