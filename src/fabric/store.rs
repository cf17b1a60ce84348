//! Where the packets lie while they are under way.
//!
//! *Owns* the bytes of every packet between its sending and its receipt. Everything else passes
//! [`PacketId`]s around.
//!
//! *Rules.* Slots are reused, within classes of a power of two in size: an acknowledgement does not take a
//! large buffer, and once as many packets of each class have been under way as ever will be, nothing is
//! allocated any more.

use crate::net::Path;

/// Bytes that a buffer of class 0 holds; one of class `n` holds `SMALLEST << n`.
const SMALLEST: usize = 64;
/// The largest class holds 64 KiB.
const CLASSES: usize = 11;

/// Names a packet in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PacketId(u32);

bitflags::bitflags! {
    /// What happened to a packet on its way, beside arriving or not.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Notes: u8 {
        /// Bits have flipped.
        const CORRUPTED = 1 << 0;
        /// This is the second copy.
        const DUPLICATE = 1 << 1;
        /// It was held back.
        const HELD = 1 << 2;
        /// A switch marked it "congestion experienced".
        const MARKED = 1 << 3;
        /// The tap or a rule changed it.
        const CHANGED = 1 << 4;
    }
}

/// A packet under way.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) path: Path,
    pub(super) ident: u16,
    /// Index of the sending host.
    pub(super) from: usize,
    /// Index of the receiving host, once the switch has found it.
    pub(super) to: Option<usize>,
    /// The pipe that it is in or was last offered to.
    pub(super) pipe: usize,
    /// The pipe by which it came into the switch that it is in.
    pub(super) via: usize,
    /// How often its pipe had been cut when the packet went onto the line.
    pub(super) cut: u32,
    /// Bytes behind `bytes` that are not carried.
    pub(super) missing: usize,
    pub(super) notes: Notes,
    pub(super) bytes: Vec<u8>,
}

impl Stored {
    /// Bytes of the datagram, carried or not.
    pub(super) const fn len(&self) -> usize {
        self.bytes.len() + self.missing
    }
}

/// The packets under way.
#[derive(Debug)]
pub(super) struct Store {
    slots: Vec<Stored>,
    free: [Vec<PacketId>; CLASSES],
    live: usize,
    /// Bytes of each datagram that are carried.
    carried: usize,
}

impl Store {
    pub(super) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: [const { Vec::new() }; CLASSES],
            live: 0,
            carried: usize::MAX,
        }
    }

    /// Carries no more of a datagram than its first `bytes`, from the next packet on.
    pub(super) const fn carry(&mut self, bytes: usize) {
        self.carried = bytes;
    }

    /// Packets in the store.
    pub(super) const fn live(&self) -> usize {
        self.live
    }

    /// Takes in a packet that host `from` sends.
    pub(super) fn insert(&mut self, from: usize, path: Path, ident: u16, bytes: &[u8]) -> PacketId {
        self.live += 1;
        let (bytes, missing) = bytes.split_at(bytes.len().min(self.carried));
        let missing = missing.len();
        let class = class_to_hold(bytes.len());
        if let Some(id) = self.free[class].pop() {
            let slot = self.get_mut(id);
            slot.bytes.clear();
            slot.bytes.extend_from_slice(bytes);
            (slot.path, slot.ident) = (path, ident);
            (slot.from, slot.to) = (from, None);
            (slot.pipe, slot.via, slot.cut, slot.notes) = (0, 0, 0, Notes::empty());
            slot.missing = missing;
            return id;
        }
        let mut buffer = Vec::with_capacity(bytes.len().max(SMALLEST << class));
        buffer.extend_from_slice(bytes);
        let id = u32::try_from(self.slots.len()).expect("memory ends before 2^32 packets");
        self.slots.push(Stored {
            path,
            ident,
            from,
            to: None,
            pipe: 0,
            via: 0,
            cut: 0,
            missing,
            notes: Notes::empty(),
            bytes: buffer,
        });
        PacketId(id)
    }

    /// Makes a second copy, which should not be.
    pub(super) fn duplicate(&mut self, id: PacketId) -> PacketId {
        let copy = self.replicate(id);
        self.get_mut(copy).notes |= Notes::DUPLICATE;
        copy
    }

    /// Makes a second copy.
    pub(super) fn replicate(&mut self, id: PacketId) -> PacketId {
        let original = self.get_mut(id);
        let (from, to, path, ident) = (original.from, original.to, original.path, original.ident);
        let (pipe, via, notes) = (original.pipe, original.via, original.notes);
        let missing = original.missing;
        let bytes = std::mem::take(&mut original.bytes);
        let copy = self.insert(from, path, ident, &bytes);
        self.get_mut(id).bytes = bytes;
        let slot = self.get_mut(copy);
        (slot.to, slot.pipe, slot.via, slot.notes) = (to, pipe, via, notes);
        slot.missing = missing;
        copy
    }

    /// Gives the slot back. The id is void.
    pub(super) fn remove(&mut self, id: PacketId) {
        self.live -= 1;
        // What the buffer can hold decides: a tap may have made it grow.
        let class = class_that_holds(self.get(id).bytes.capacity());
        self.free[class].push(id);
    }

    pub(super) fn get(&self, id: PacketId) -> &Stored {
        &self.slots[id.0 as usize]
    }

    pub(super) fn get_mut(&mut self, id: PacketId) -> &mut Stored {
        &mut self.slots[id.0 as usize]
    }

    /// Slots and bytes that were ever allocated.
    #[cfg(test)]
    pub(super) fn footprint(&self) -> (usize, usize) {
        (self.slots.len(), self.slots.iter().map(|s| s.bytes.capacity()).sum())
    }
}

/// The class whose buffers hold `len` bytes; the largest one for anything longer.
fn class_to_hold(len: usize) -> usize {
    (len.div_ceil(SMALLEST).max(1).next_power_of_two().ilog2() as usize).min(CLASSES - 1)
}

/// The largest class that a buffer of this capacity may serve.
fn class_that_holds(capacity: usize) -> usize {
    ((capacity / SMALLEST).max(1).ilog2() as usize).min(CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path() -> Path {
        Path {
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, 2].into(),
            src_port: 0xc000,
            traffic_class: 2,
            hop_limit: 64,
            flow_label: 0,
            scope_id: 0,
        }
    }

    #[test]
    fn classes() {
        for (len, class) in [(0, 0), (64, 0), (65, 1), (4160, 7), (65_536, 10), (100_000, 10)] {
            assert_eq!(class_to_hold(len), class, "{len}");
        }
        for (capacity, class) in [(64, 0), (127, 0), (128, 1), (8192, 7), (131_072, 10)] {
            assert_eq!(class_that_holds(capacity), class, "{capacity}");
        }
    }

    #[test]
    fn slots_come_back_clean_and_of_their_size() {
        let mut store = Store::new();
        let large = store.insert(1, path(), 7, &[0xaa; 5000]);
        let small = store.insert(2, path(), 8, &[0xbb; 20]);
        store.get_mut(large).notes = Notes::HELD;
        store.get_mut(large).to = Some(3);
        store.remove(large);
        store.remove(small);
        assert_eq!(store.live(), 0);

        let again = store.insert(4, path(), 9, &[0xcc; 30]);
        assert_eq!(again, small, "an acknowledgement takes no large buffer");
        let again = store.insert(5, path(), 10, &[0xdd; 4200]);
        assert_eq!(again, large);
        let slot = store.get(again);
        assert_eq!((slot.from, slot.to, slot.ident, slot.notes), (5, None, 10, Notes::empty()));
        assert_eq!(slot.bytes, [0xdd; 4200]);
        assert_eq!(store.footprint(), (2, 8192 + 64));
    }

    #[test]
    fn a_copy_is_equal_but_for_the_note() {
        let mut store = Store::new();
        let id = store.insert(1, path(), 7, b"packet");
        store.get_mut(id).notes = Notes::CORRUPTED;
        store.get_mut(id).to = Some(2);
        let copy = store.duplicate(id);
        assert_eq!(store.get(copy).bytes, store.get(id).bytes);
        assert_eq!(store.get(copy).to, Some(2));
        assert_eq!(store.get(copy).notes, Notes::CORRUPTED | Notes::DUPLICATE);
        assert_eq!(store.get(id).notes, Notes::CORRUPTED);
        assert_eq!(store.live(), 2);
    }

    #[test]
    fn a_buffer_that_grew_serves_its_new_class() {
        let mut store = Store::new();
        let id = store.insert(0, path(), 0, &[1; 64]);
        store.get_mut(id).bytes = vec![2; 300];
        store.remove(id);
        assert_eq!(store.insert(0, path(), 0, &[3; 200]), id);
    }
}
