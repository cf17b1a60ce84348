//! Address handles: where datagrams go.
//!
//! *Owns.* The table of handles. A request names its handle by a number: 20 bits of slot, and 12 bits that count
//! the owners of the slot, so that a request that outlives its handle finds nobody. 0 is never a number.

use super::Engine;
use super::cause::Cause;
use super::config::MAX_AH;
use super::control::gone;
use super::qp::attr::AhAttr;
use super::qp::state;
use crate::mem::PdId;
use crate::net::Path;

const SLOT_BITS: u32 = 20;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;

/// An address handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ah {
    pub(crate) pd: PdId,
    /// The way; the UDP source port is that of the queue pair that sends.
    pub(crate) path: Path,
}

#[derive(Debug)]
struct Slot {
    turn: u32,
    ah: Option<Ah>,
}

/// The address handles of a device.
#[derive(Debug, Default)]
pub(crate) struct AhTable {
    slots: Vec<Slot>,
    /// Slots that can be used again.
    free: Vec<u32>,
}

impl AhTable {
    /// The handle with this number.
    pub(crate) fn get(&self, number: u32) -> Option<&Ah> {
        let slot = self.slots.get((number & SLOT_MASK) as usize)?;
        if slot.turn == number >> SLOT_BITS { slot.ah.as_ref() } else { None }
    }

    fn insert(&mut self, ah: Ah) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.slots.len()).ok().filter(|&n| n < MAX_AH)?;
                self.slots.push(Slot { turn: 1, ah: None });
                index
            }
        };
        let slot = &mut self.slots[index as usize];
        slot.ah = Some(ah);
        Some(slot.turn << SLOT_BITS | index)
    }

    fn remove(&mut self, number: u32) -> Option<Ah> {
        self.get(number)?;
        let index = number & SLOT_MASK;
        let slot = &mut self.slots[index as usize];
        // 1 to 4095, and round.
        slot.turn = slot.turn % 0xfff + 1;
        self.free.push(index);
        slot.ah.take()
    }
}

impl Engine {
    /// Makes an address handle; its number goes into [`SendWqe::dest`](crate::queue::SendWqe::dest).
    ///
    /// # Errors
    /// `EINVAL` with the attribute at fault, or too many.
    pub fn create_ah(&mut self, pd: PdId, attr: &AhAttr) -> Result<u32, Cause> {
        self.use_pd(pd)?;
        state::check_ah(attr)?;
        let (path, _) = self.route(attr, 0)?;
        let full = Cause::table_full("address handles", u64::from(MAX_AH));
        let number = self.common.ahs.insert(Ah { pd, path }).ok_or(full)?;
        *self.use_pd(pd)? += 1;
        Ok(number)
    }

    /// Destroys an address handle. Requests that name it and have not been sent fail with LOC_QP_OP_ERR.
    ///
    /// # Errors
    /// `EINVAL`: it is gone already.
    pub fn destroy_ah(&mut self, number: u32) -> Result<(), Cause> {
        let ah = self.common.ahs.remove(number).ok_or_else(|| gone("address handle"))?;
        self.release_pd(ah.pd);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ah(last: u8) -> Ah {
        let path = Path {
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, last].into(),
            src_port: 0,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            scope_id: 0,
        };
        Ah { pd: PdId(0), path }
    }

    #[test]
    fn numbers_of_the_past_find_nobody() {
        let mut table = AhTable::default();
        assert!(table.get(0).is_none());
        let first = table.insert(ah(1)).unwrap();
        let other = table.insert(ah(2)).unwrap();
        let mut seen = vec![first, other];
        let mut last = first;
        for _ in 0..4094 {
            assert!(table.remove(last).is_some());
            assert!(table.get(last).is_none() && table.remove(last).is_none());
            last = table.insert(ah(3)).unwrap();
            assert!(last != 0 && !seen.contains(&last), "{last:#x} again");
            seen.push(last);
        }
        assert_eq!(table.get(last).map(|ah| ah.path.dst), Some([10, 0, 0, 3].into()));
        assert_eq!(table.get(other).map(|ah| ah.path.dst), Some([10, 0, 0, 2].into()));
        assert_eq!(table.slots.len(), 2);
    }
}
