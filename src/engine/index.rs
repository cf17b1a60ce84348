//! Queue pair numbers: a slot of the table, and whose turn in it.
//!
//! *Rules.* A number is 20 bits of slot, shifted by a start that is random per device, and 4 bits that
//! count the owners of the slot. Numbers 0, 1 and 0xffffff are never given out. A freed slot is reused
//! last, and not while there are few: late packets for a number that is gone find nobody.

use std::collections::VecDeque;

use super::qp::{Qp, QpHandle};
use crate::wire::num::Qpn;

const SLOT_MASK: u32 = 0xf_ffff;
/// Slots that wait before the first of them is reused.
const COOLING: usize = 1024;

#[derive(Debug)]
struct Slot {
    turn: u32,
    qp: Option<Box<Qp>>,
}

/// All queue pairs of a device.
#[derive(Debug)]
pub(crate) struct QpTable {
    slots: Vec<Slot>,
    free: VecDeque<u32>,
    start: u32,
    first_turn: u32,
    live: u32,
    max: u32,
}

impl QpTable {
    pub(crate) fn new(random: u32, max: u32) -> Self {
        Self {
            slots: Vec::new(),
            free: VecDeque::new(),
            start: random & SLOT_MASK,
            first_turn: random >> 20 & 0xf,
            live: 0,
            max: max.min(SLOT_MASK - 3),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.live as usize
    }

    /// Slots ever used: what per-slot tables must hold.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    fn number(&self, slot: u32, turn: u32) -> Qpn {
        Qpn::new((self.start.wrapping_add(slot)) & SLOT_MASK | (turn & 0xf) << 20)
    }

    /// A place for a new queue pair. `None`: there are too many.
    pub(crate) fn reserve(&mut self) -> Option<(QpHandle, Qpn)> {
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
                self.slots.push(Slot { turn: self.first_turn, qp: None });
                // Reserved whatever the turn: 0 and 1 are management, 0xffffff is multicast.
                if !matches!(self.number(slot, 0).raw(), 0 | 1 | SLOT_MASK) {
                    break slot;
                }
            }
        };
        let turn = self.slots[slot as usize].turn;
        Some((QpHandle { slot, turn }, self.number(slot, turn)))
    }

    pub(crate) fn insert(&mut self, qp: Qp) {
        let slot = qp.handle.slot as usize;
        self.slots[slot].qp = Some(Box::new(qp));
        self.live += 1;
    }

    pub(crate) fn remove(&mut self, handle: QpHandle) -> Option<Box<Qp>> {
        self.get(handle)?;
        let slot = &mut self.slots[handle.slot as usize];
        let qp = slot.qp.take();
        slot.turn = slot.turn.wrapping_add(1);
        self.free.push_back(handle.slot);
        self.live -= 1;
        qp
    }

    pub(crate) fn get(&mut self, handle: QpHandle) -> Option<&mut Qp> {
        self.at(handle.slot).filter(|qp| qp.handle == handle)
    }

    /// The queue pair in a slot, whoever it is.
    pub(crate) fn at(&mut self, slot: u32) -> Option<&mut Qp> {
        self.slots.get_mut(slot as usize)?.qp.as_deref_mut()
    }

    /// The slot of the queue pair with this number.
    pub(crate) fn find(&self, qpn: Qpn) -> Option<u32> {
        let slot = qpn.raw().wrapping_sub(self.start) & SLOT_MASK;
        let qp = self.slots.get(slot as usize)?.qp.as_deref()?;
        (qp.qpn == qpn).then_some(slot)
    }
}
