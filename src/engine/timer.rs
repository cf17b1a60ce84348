//! A hierarchical timing wheel: one timer for each queue pair, cheap to move.
//!
//! *Owns* which slot (queue pair index) is due when. *Rules.* Arming, moving and cancelling cost a few
//! loads and stores and never allocate after [`Wheel::reserve`]. [`Wheel::expire`] hands out slots in the
//! order of their ticks and never earlier than asked; within a tick the order is that of arming.
//! Resolution is one tick: of a power of two of nanoseconds, which whoever makes the wheel chooses.

use std::cell::Cell;

use crate::time::Instant;

/// log2 of the nanoseconds in a tick, where a microsecond does not matter.
pub(super) const COARSE: u32 = 10;
/// The same for ticks of a nanosecond.
pub(super) const EXACT: u32 = 0;
/// log2 of the buckets in a level.
const LEVEL_BITS: u32 = 6;
const BUCKETS: u32 = 1 << LEVEL_BITS;
/// 11 * 6 bits: every `Instant` has its place.
const LEVELS: u32 = 11;
/// So many slots of a bucket are looked at to tell when the next one is due.
const FEW: usize = 8;
/// Buckets of all levels.
const PLACES: usize = (LEVELS * BUCKETS) as usize;
const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    prev: u32,
    next: u32,
    /// Tick at which it is due.
    due: u64,
    /// Level * BUCKETS + bucket, or `NIL` when idle.
    place: u32,
}

const IDLE: Node = Node { prev: NIL, next: NIL, due: 0, place: NIL };

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

/// The wheel. Slots are small integers chosen by the caller.
#[derive(Debug)]
pub(super) struct Wheel {
    nodes: Vec<Node>,
    lists: Box<[List; PLACES]>,
    /// Bit `b` of word `l`: bucket `b` of level `l` is not empty.
    occupied: [u64; LEVELS as usize],
    /// All ticks before this one have been handed out.
    current: u64,
    /// log2 of the nanoseconds in a tick.
    tick_bits: u32,
    /// What is due next, if that is known: it is asked for more often than it changes.
    next: Cell<Option<Option<Instant>>>,
}

impl Wheel {
    /// An empty wheel at the origin of time, with ticks of two to the power of `tick_bits` nanoseconds.
    pub(super) fn new(tick_bits: u32) -> Self {
        Self {
            nodes: Vec::new(),
            lists: Box::new([List { head: NIL, tail: NIL }; PLACES]),
            occupied: [0; LEVELS as usize],
            current: 0,
            tick_bits,
            next: Cell::new(None),
        }
    }

    /// Makes room for slots `0..slots`.
    pub(super) fn reserve(&mut self, slots: usize) {
        if self.nodes.len() < slots {
            self.nodes.resize(slots, IDLE);
        }
    }

    /// Whether the slot is armed.
    pub(super) fn is_armed(&self, slot: u32) -> bool {
        self.nodes.get(slot as usize).is_some_and(|n| n.place != NIL)
    }

    /// Arms `slot` for `at`, moving it if it was armed already.
    pub(super) fn arm(&mut self, slot: u32, at: Instant) {
        // Round up: a timer may be late by a tick, never early.
        let part = (1 << self.tick_bits) - 1;
        let due = (at.as_nanos().saturating_add(part) >> self.tick_bits).max(self.current);
        if self.nodes[slot as usize].place != NIL {
            if self.nodes[slot as usize].due == due {
                return;
            }
            self.unlink(slot);
        }
        self.nodes[slot as usize].due = due;
        self.link(slot);
    }

    /// Forgets `slot`.
    pub(super) fn cancel(&mut self, slot: u32) {
        if self.is_armed(slot) {
            self.unlink(slot);
        }
    }

    /// The earliest time at which [`expire`](Self::expire) may have something: exact for what is due
    /// soon or lies among few, else a lower bound (start of a bucket). `None` if nothing is armed.
    #[inline]
    pub(super) fn next_due(&self) -> Option<Instant> {
        match self.next.get() {
            Some(next) => next,
            None => self.find_next_due(),
        }
    }

    fn find_next_due(&self) -> Option<Instant> {
        let next = self.first_bucket().map(|(level, bucket, start)| {
            let due =
                if level == 0 { start } else { self.earliest(level, bucket).unwrap_or(start) };
            Instant::from_nanos(due << self.tick_bits)
        });
        self.next.set(Some(next));
        next
    }

    /// The earliest tick in a bucket, if it does not take long to say.
    fn earliest(&self, level: u32, bucket: u32) -> Option<u64> {
        let mut slot = self.lists[(level * BUCKETS + bucket) as usize].head;
        let mut earliest = u64::MAX;
        for _ in 0..FEW {
            let node = self.nodes.get(slot as usize)?;
            earliest = earliest.min(node.due);
            slot = node.next;
            if slot == NIL {
                return Some(earliest);
            }
        }
        None
    }

    /// Takes one slot that is due at `now`. Call until `None`.
    pub(super) fn expire(&mut self, now: Instant) -> Option<u32> {
        let now = now.as_nanos() >> self.tick_bits;
        while let Some((level, bucket, start)) = self.first_bucket()
            && start <= now
        {
            self.current = start;
            let place = level * BUCKETS + bucket;
            if level == 0 {
                let slot = self.lists[place as usize].head;
                self.unlink(slot);
                return Some(slot);
            }
            self.cascade(place);
        }
        self.current = self.current.max(now);
        None
    }

    /// Sorts a bucket whose time has come into lower levels.
    fn cascade(&mut self, place: u32) {
        let mut slot = self.lists[place as usize].head;
        self.lists[place as usize] = List { head: NIL, tail: NIL };
        self.vacate(place);
        self.next.set(None);
        while slot != NIL {
            let next = self.nodes[slot as usize].next;
            self.link(slot);
            slot = next;
        }
    }

    /// The occupied bucket that starts first, and the tick of its start. All of a lower level is earlier
    /// than all of a higher one, because a slot's level is that of the highest digit in which it differs
    /// from `current`.
    fn first_bucket(&self) -> Option<(u32, u32, u64)> {
        let (level, &word) = (0..LEVELS).zip(&self.occupied).find(|&(_, &word)| word != 0)?;
        let bucket = word.trailing_zeros();
        let shift = LEVEL_BITS * level;
        let above = (u64::MAX << LEVEL_BITS) << shift;
        Some((level, bucket, self.current & above | u64::from(bucket) << shift))
    }

    fn link(&mut self, slot: u32) {
        self.next.set(None);
        let due = self.nodes[slot as usize].due;
        debug_assert!(due >= self.current, "buckets are emptied before the time passes them");
        let differing = (due ^ self.current) | u64::from(BUCKETS - 1);
        let level = differing.ilog2() / LEVEL_BITS;
        let bucket = digit(due, level);
        let place = level * BUCKETS + bucket;
        let tail = self.lists[place as usize].tail;
        let node = &mut self.nodes[slot as usize];
        node.prev = tail;
        node.next = NIL;
        node.place = place;
        if tail == NIL {
            self.lists[place as usize].head = slot;
        } else {
            self.nodes[tail as usize].next = slot;
        }
        self.lists[place as usize].tail = slot;
        self.occupied[level as usize] |= 1 << bucket;
    }

    fn unlink(&mut self, slot: u32) {
        self.next.set(None);
        let Node { prev, next, place, .. } = self.nodes[slot as usize];
        if prev == NIL {
            self.lists[place as usize].head = next;
        } else {
            self.nodes[prev as usize].next = next;
        }
        if next == NIL {
            self.lists[place as usize].tail = prev;
        } else {
            self.nodes[next as usize].prev = prev;
        }
        if self.lists[place as usize].head == NIL {
            self.vacate(place);
        }
        self.nodes[slot as usize].place = NIL;
    }

    fn vacate(&mut self, place: u32) {
        self.occupied[(place / BUCKETS) as usize] &= !(1 << (place % BUCKETS));
    }
}

/// The digit of a tick that chooses the bucket in a level.
#[expect(clippy::cast_possible_truncation, reason = "six bits")]
const fn digit(tick: u64, level: u32) -> u32 {
    (tick >> (LEVEL_BITS * level) & (BUCKETS as u64 - 1)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn drain(w: &mut Wheel, now: Instant) -> Vec<u32> {
        std::iter::from_fn(|| w.expire(now)).collect()
    }

    #[test]
    fn fires_in_order_and_not_early() {
        let mut w = Wheel::new(COARSE);
        w.reserve(4);
        w.arm(0, Instant::from_nanos(5_000_000));
        w.arm(1, Instant::from_nanos(3_000));
        w.arm(2, Instant::from_nanos(70_000));
        assert_eq!(drain(&mut w, Instant::from_nanos(2_999)), []);
        assert_eq!(drain(&mut w, Instant::from_nanos(80_000)), [1, 2]);
        assert_eq!(drain(&mut w, Instant::from_nanos(4_999_999)), []);
        assert_eq!(drain(&mut w, Instant::from_nanos(5_002_000)), [0]);
        assert_eq!(w.next_due(), None);
    }

    #[test]
    fn pulled_earlier_and_pushed_later() {
        let mut w = Wheel::new(COARSE);
        w.reserve(2);
        w.arm(0, Instant::from_nanos(1 << 40));
        w.arm(0, Instant::from_nanos(10_000));
        assert_eq!(drain(&mut w, Instant::from_nanos(20_000)), [0]);
        w.arm(1, Instant::from_nanos(30_000));
        w.arm(1, Instant::from_nanos(90_000));
        assert_eq!(drain(&mut w, Instant::from_nanos(50_000)), []);
        assert_eq!(drain(&mut w, Instant::from_nanos(100_000)), [1]);
    }

    #[test]
    fn a_nanosecond_is_told_apart_where_that_was_asked_for() {
        let mut w = Wheel::new(EXACT);
        w.reserve(2);
        w.arm(0, Instant::from_nanos(1_000_221));
        w.arm(1, Instant::from_nanos(1_000_222));
        assert_eq!(w.next_due(), Some(Instant::from_nanos(1_000_221)), "exact, however far");
        assert_eq!(drain(&mut w, Instant::from_nanos(1_000_220)), []);
        assert_eq!(drain(&mut w, Instant::from_nanos(1_000_221)), [0]);
        assert_eq!(w.next_due(), Some(Instant::from_nanos(1_000_222)));
        w.arm(0, Instant::from_nanos(u64::MAX));
        assert_eq!(drain(&mut w, Instant::from_nanos(u64::MAX - 1)), [1]);
        assert_eq!(drain(&mut w, Instant::from_nanos(u64::MAX)), [0]);
    }

    #[test]
    fn a_year_ahead() {
        let mut w = Wheel::new(COARSE);
        w.reserve(1);
        let year = Duration::from_secs(365 * 24 * 3600);
        w.arm(0, Instant::ZERO + year);
        let mut now = Instant::ZERO;
        let mut steps = 0;
        while let Some(next) = w.next_due() {
            now = next.max(now);
            if w.expire(now).is_some() {
                break;
            }
            steps += 1;
            assert!(steps < 1000, "next_due must move on");
        }
        assert!(now >= Instant::ZERO + year);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Arm(u32, u64),
        Cancel(u32),
        Advance(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        // Spread over all levels: microseconds to days.
        let delay = (0u32..48, any::<u64>()).prop_map(|(bits, v)| v & ((1 << bits) - 1));
        prop_oneof![
            4 => (0u32..16, delay.clone()).prop_map(|(s, d)| Step::Arm(s, d)),
            1 => (0u32..16).prop_map(Step::Cancel),
            3 => delay.prop_map(Step::Advance),
        ]
    }

    proptest! {
        #[test]
        fn agrees_with_a_sorted_list(
            tick_bits in prop_oneof![Just(COARSE), Just(EXACT)],
            steps in proptest::collection::vec(step(), 1..200),
        ) {
            let mut wheel = Wheel::new(tick_bits);
            wheel.reserve(16);
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            let mut now = 0u64;
            for s in steps {
                match s {
                    Step::Arm(slot, delay) => {
                        wheel.arm(slot, Instant::from_nanos(now + delay));
                        model.insert(slot, (now + delay).div_ceil(1 << tick_bits));
                    }
                    Step::Cancel(slot) => {
                        wheel.cancel(slot);
                        model.remove(&slot);
                    }
                    Step::Advance(delay) => {
                        if let (Some(next), Some(first)) = (wheel.next_due(), model.values().min()) {
                            prop_assert!(next.as_nanos() >> tick_bits <= (*first).max(now >> tick_bits));
                        }
                        now += delay;
                        let mut fired = Vec::new();
                        while let Some(slot) = wheel.expire(Instant::from_nanos(now)) {
                            fired.push((model.remove(&slot).expect("armed"), slot));
                        }
                        prop_assert!(fired.iter().all(|&(due, _)| due <= now >> tick_bits));
                        prop_assert!(fired.is_sorted_by_key(|&(due, _)| due), "{:?}", fired);
                        prop_assert!(model.values().all(|&due| due > now >> tick_bits));
                    }
                }
                prop_assert_eq!(wheel.next_due().is_some(), !model.is_empty());
            }
        }
    }
}
