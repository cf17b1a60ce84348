//! The event queue: what happens next, and in which order if at the same nanosecond.
//!
//! *Rules.* Events come out by time, and those of one time in the order in which they went in. That order
//! is the whole of the simulator's determinism, so nothing else may decide it.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::time::Instant;

use super::moment::Moment;

/// Events of type `E`, ordered by (time, order of arrival).
///
/// A binary heap of 32-byte entries: the packets themselves lie in the store. It allocates only while it is
/// fuller than it ever was.
#[derive(Debug)]
pub(super) struct EventQueue<E> {
    heap: BinaryHeap<Entry<E>>,
    pushed: u64,
}

#[derive(Debug)]
struct Entry<E> {
    /// Nanoseconds and picoseconds.
    ns: u64,
    ps: u16,
    seq: u64,
    event: E,
}

impl<E> EventQueue<E> {
    pub(super) const fn new() -> Self {
        Self { heap: BinaryHeap::new(), pushed: 0 }
    }

    /// Adds an event. One for the past happens next.
    pub(super) fn push(&mut self, at: Moment, event: E) {
        let (ns, ps) = at.parts();
        self.pushed += 1;
        self.heap.push(Entry { ns, ps, seq: self.pushed, event });
    }

    /// Events that have happened.
    pub(super) fn happened(&self) -> u64 {
        self.pushed - self.heap.len() as u64
    }

    /// When the next event happens.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.heap.peek().map(|e| e.at().ceil())
    }

    /// Takes the next event, if it happens at `to` or before.
    pub(super) fn pop_until(&mut self, to: Instant) -> Option<(Moment, E)> {
        if self.next_at()? > to {
            return None;
        }
        self.heap.pop().map(|e| (e.at(), e.event))
    }
}

impl<E> Entry<E> {
    fn at(&self) -> Moment {
        Moment::from_parts((self.ns, self.ps))
    }
}

// The heap has its greatest on top, so the earliest entry is the greatest.
impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.ns, other.ps, other.seq).cmp(&(self.ns, self.ps, self.seq))
    }
}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<E> Eq for Entry<E> {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ends_at_the_given_time() {
        let mut q = EventQueue::new();
        q.push(Instant::from_nanos(5).into(), 'b');
        q.push(Instant::from_nanos(4).into(), 'a');
        assert_eq!(q.next_at(), Some(Instant::from_nanos(4)));
        assert_eq!(q.pop_until(Instant::from_nanos(3)), None);
        assert_eq!(q.pop_until(Instant::from_nanos(4)), Some((Instant::from_nanos(4).into(), 'a')));
        assert_eq!(q.pop_until(Instant::from_nanos(4)), None);
        assert_eq!(q.pop_until(Instant::FAR_FUTURE), Some((Instant::from_nanos(5).into(), 'b')));
        assert_eq!(q.next_at(), None);
    }

    proptest! {
        #[test]
        fn comes_out_like_a_stable_sort(times in prop::collection::vec(0u64..20, 0..200)) {
            let mut q = EventQueue::new();
            for (i, &t) in times.iter().enumerate() {
                q.push(Instant::from_nanos(t).into(), i);
            }
            let mut expected: Vec<_> = times.iter().copied().enumerate().collect();
            expected.sort_by_key(|&(_, t)| t);
            let mut got = Vec::new();
            while let Some((at, i)) = q.pop_until(Instant::FAR_FUTURE) {
                got.push((i, at.ceil().as_nanos()));
            }
            prop_assert_eq!(got, expected);
        }
    }
}
