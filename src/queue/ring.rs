//! A bounded queue with one producer and one consumer, in memory that both share.
//!
//! *Owns.* The slots. Each has a header of type `H` and a fixed number of 64-bit words behind it.
//!
//! *Rules.*
//! - Positions are `u32` counters that only grow and wrap. Slots `tail..head` belong to the consumer, all
//!   others to the producer. The producer moves `head` with release after it has written, the consumer moves
//!   `tail` with release after it has read; each reads the other's counter with acquire.
//! - Either end is a token that cannot be copied. Its methods are the only way to the slots, so there is one
//!   producer and one consumer by construction.
//! - The depth is any number, also 0 (always full). Slots are allocated for the next power of two, so that the
//!   slot of a position is a mask away.
#![allow(
    unsafe_code,
    reason = "slots are shared between two threads, who owns which is the protocol above"
)]

use std::cell;
use std::fmt;
use std::slice;

use crate::sync::{Arc, AtomicU32, Ordering, UnsafeCell};

/// A value on a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Line<T>(pub(super) T);

struct Shared<H> {
    /// One past the last slot published.
    head: Line<AtomicU32>,
    /// The first slot not yet released.
    tail: Line<AtomicU32>,
    /// As many as a power of two, and not none.
    headers: Box<[UnsafeCell<H>]>,
    /// `stride` words for each header. They are entered together with their header.
    words: Box<[cell::UnsafeCell<u64>]>,
    stride: usize,
}

// SAFETY: the two tokens see to it that each slot is reached by one thread at a time (module docs); headers move
// from thread to thread, hence Send.
unsafe impl<H: Send> Sync for Shared<H> {}
// SAFETY: as above; nothing in it is tied to a thread.
unsafe impl<H: Send> Send for Shared<H> {}

impl<H: Copy + Default> Shared<H> {
    fn new(depth: u32, stride: usize, at: u32) -> Arc<Self> {
        let slots = depth.next_power_of_two() as usize;
        Arc::new(Self {
            head: Line(AtomicU32::new(at)),
            tail: Line(AtomicU32::new(at)),
            headers: (0..slots).map(|_| UnsafeCell::new(H::default())).collect(),
            words: (0..slots * stride).map(|_| cell::UnsafeCell::new(0)).collect(),
            stride,
        })
    }

    /// The slot of a position.
    fn slot(&self, count: u32) -> usize {
        count as usize & (self.headers.len() - 1)
    }

    /// The words of a slot.
    fn words(&self, slot: usize) -> *mut u64 {
        let at = slot * self.stride;
        // A slice's pointer, not an element's, so that it may reach over the whole slot.
        cell::UnsafeCell::raw_get(self.words[at..at + self.stride].as_ptr())
    }
}

/// The end that fills slots.
pub struct Producer<H> {
    shared: Arc<Shared<H>>,
    depth: u32,
    /// The next slot to write; ahead of the shared head by what is staged.
    next: u32,
    /// The shared head, which only we move.
    published: u32,
    /// A tail seen earlier; the true one is here or further on.
    tail: u32,
}

/// The end that empties slots.
pub struct Consumer<H> {
    shared: Arc<Shared<H>>,
    /// The first slot not yet released.
    first: u32,
}

/// Makes a ring of `depth` slots, each a header and `stride` words, all zero or default.
pub fn ring<H: Copy + Default>(depth: u32, stride: usize) -> (Producer<H>, Consumer<H>) {
    ring_at(depth, stride, 0)
}

/// The same, with counters that begin at `at`.
fn ring_at<H: Copy + Default>(depth: u32, stride: usize, at: u32) -> (Producer<H>, Consumer<H>) {
    let shared = Shared::new(depth, stride, at);
    let producer =
        Producer { shared: Arc::clone(&shared), depth, next: at, published: at, tail: at };
    (producer, Consumer { shared, first: at })
}

impl<H: Copy + Default> Producer<H> {
    /// Slots in the ring.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Counter of the slot that is written next.
    pub fn next(&self) -> u32 {
        self.next
    }

    /// The first slot that the consumer has not released.
    pub fn tail(&self) -> u32 {
        self.shared.tail.0.load(Ordering::Acquire)
    }

    /// Slots that can be written now.
    pub fn free(&self) -> u32 {
        self.depth - self.next.wrapping_sub(self.tail())
    }

    /// Writes the next slot and publishes it, with all staged before. `false` if the ring is full; `f` is not
    /// called then.
    pub fn push(&mut self, f: impl FnOnce(&mut H, &mut [u64])) -> bool {
        let done = self.stage(f);
        self.publish();
        done
    }

    /// Writes the next slot without telling the consumer. `false` if the ring is full.
    pub fn stage(&mut self, f: impl FnOnce(&mut H, &mut [u64])) -> bool {
        let done = self.try_stage(|header, words| {
            f(header, words);
            Ok::<(), std::convert::Infallible>(())
        });
        matches!(done, Ok(true))
    }

    /// As [`stage`](Self::stage), for writers that may give up. Header and words hold whatever they held when
    /// the slot was last used. If `f` fails or panics the slot stays free.
    ///
    /// # Errors
    /// What `f` says.
    pub fn try_stage<E>(
        &mut self,
        f: impl FnOnce(&mut H, &mut [u64]) -> Result<(), E>,
    ) -> Result<bool, E> {
        if self.next.wrapping_sub(self.tail) >= self.depth {
            self.tail = self.tail();
            if self.next.wrapping_sub(self.tail) >= self.depth {
                return Ok(false);
            }
        }
        let slot = self.shared.slot(self.next);
        self.shared.headers[slot].with_mut(|header| {
            // SAFETY: the slot is not in tail..head, so the consumer does not reach it, and the acquire load
            // of the tail made its last reads happen before. This is the only producer, borrowed mutably.
            let header = unsafe { &mut *header };
            let words = self.shared.words(slot);
            // SAFETY: as above, for `stride` words that belong to this slot alone.
            let words = unsafe { slice::from_raw_parts_mut(words, self.shared.stride) };
            f(header, words)
        })?;
        self.next = self.next.wrapping_add(1);
        Ok(true)
    }

    /// Hands all staged slots to the consumer.
    pub fn publish(&mut self) {
        if self.published != self.next {
            self.published = self.next;
            self.shared.head.0.store(self.published, Ordering::Release);
        }
    }
}

impl<H: Copy + Default> Consumer<H> {
    /// One past the last slot published.
    pub fn head(&self) -> u32 {
        self.shared.head.0.load(Ordering::Acquire)
    }

    /// The first slot not yet released.
    pub fn tail(&self) -> u32 {
        self.first
    }

    /// Slots published and not released.
    pub fn len(&self) -> u32 {
        self.head().wrapping_sub(self.first)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Header and words of slot `i`, if it is published and not released.
    pub fn get(&self, i: u32) -> Option<(&H, &[u64])> {
        let ahead = i.wrapping_sub(self.first);
        if ahead >= self.len() {
            return None;
        }
        let slot = self.shared.slot(i);
        self.shared.headers[slot].with(|header| {
            // SAFETY: the slot is in tail..head, so the producer does not write it before `release` moves
            // the tail, which needs this borrow to be over; the acquire load of the head made its writes
            // happen before.
            let header = unsafe { &*header };
            let words = self.shared.words(slot);
            // SAFETY: as above, for `stride` words that belong to this slot alone.
            let words = unsafe { slice::from_raw_parts(words, self.shared.stride) };
            Some((header, words))
        })
    }

    /// Gives all slots before `to` back to the producer.
    ///
    /// # Panics
    /// If `to` is not in `tail..=head`.
    pub fn release(&mut self, to: u32) {
        let n = to.wrapping_sub(self.first);
        if n == 0 {
            return;
        }
        assert!(n <= self.len(), "released {n} slots of {}", self.len());
        self.first = to;
        self.shared.tail.0.store(to, Ordering::Release);
    }
}

/// Changes the depth of a ring, of which the caller holds both ends. Everything in it stays, also what is
/// staged, under the same counters. `false`, and nothing changed, if it does not fit.
///
/// # Panics
/// If the two are not ends of one ring.
pub fn resize<H: Copy + Default>(
    producer: &mut Producer<H>,
    consumer: &mut Consumer<H>,
    depth: u32,
) -> bool {
    assert!(Arc::ptr_eq(&producer.shared, &consumer.shared), "ends of two rings");
    let published = producer.published;
    producer.publish();
    let tail = consumer.tail();
    if consumer.len() > depth {
        // What was staged stays staged: nobody has looked meanwhile, as we hold the consumer.
        producer.published = published;
        producer.shared.head.0.store(published, Ordering::Release);
        return false;
    }
    let (mut new, new_consumer) = ring_at(depth, consumer.shared.stride, tail);
    let mut i = tail;
    while let Some((header, words)) = consumer.get(i) {
        new.stage(|to, to_words| {
            *to = *header;
            to_words.copy_from_slice(words);
        });
        i = i.wrapping_add(1);
    }
    new.published = published;
    new.shared.head.0.store(published, Ordering::Release);
    *producer = new;
    *consumer = new_consumer;
    true
}

impl<H> fmt::Debug for Producer<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer")
            .field("depth", &self.depth)
            .field("next", &self.next)
            .field("published", &self.published)
            .finish_non_exhaustive()
    }
}

impl<H> fmt::Debug for Consumer<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("tail", &self.first).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
#[expect(clippy::cast_possible_truncation, reason = "the numbers are small")]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread;

    fn put(p: &mut Producer<u64>, v: u64) -> bool {
        p.push(|header, words| {
            *header = v;
            words.fill(v + 1);
        })
    }

    fn take(c: &mut Consumer<u64>) -> Option<u64> {
        let (&v, words) = c.get(c.tail())?;
        assert!(words.iter().all(|&w| w == v + 1), "{words:?} behind {v}");
        c.release(c.tail().wrapping_add(1));
        Some(v)
    }

    #[test]
    fn a_ring_of_no_slots_is_always_full() {
        let (mut p, c) = ring::<u64>(0, 3);
        assert_eq!(p.free(), 0);
        assert!(!put(&mut p, 1));
        assert!(c.is_empty() && c.get(0).is_none());
    }

    #[test]
    fn nothing_is_seen_before_it_is_published() {
        let (mut p, c) = ring::<u64>(4, 1);
        assert!(p.stage(|header, _| *header = 1));
        assert!(p.stage(|header, _| *header = 2));
        assert_eq!((p.free(), c.len()), (2, 0));
        assert!(c.get(0).is_none());
        p.publish();
        assert_eq!(c.len(), 2);
        assert_eq!(c.get(1).map(|(&header, _)| header), Some(2));
        assert!(c.get(2).is_none() && c.get(u32::MAX).is_none());
    }

    #[test]
    fn a_writer_that_fails_or_panics_leaves_the_slot_free() {
        let (mut p, mut c) = ring::<u64>(2, 1);
        assert!(put(&mut p, 1));
        assert_eq!(p.try_stage(|_, _| Err("no")), Err("no"));
        let panic = catch_unwind(AssertUnwindSafe(|| p.push(|_, _| panic!("in the writer"))));
        assert!(panic.is_err());
        assert_eq!((p.free(), c.len()), (1, 1));
        assert!(put(&mut p, 2));
        assert_eq!((take(&mut c), take(&mut c), take(&mut c)), (Some(1), Some(2), None));
    }

    #[test]
    #[should_panic(expected = "released 2 slots of 1")]
    fn releasing_what_is_not_there_panics() {
        let (mut p, mut c) = ring::<u64>(4, 0);
        put(&mut p, 1);
        c.release(2);
    }

    #[test]
    #[should_panic(expected = "ends of two rings")]
    fn ends_of_two_rings_do_not_resize() {
        let (mut p, _) = ring::<u64>(4, 0);
        let (_, mut c) = ring::<u64>(4, 0);
        resize(&mut p, &mut c, 8);
    }

    #[derive(Clone, Debug)]
    enum Op {
        Push,
        Stage,
        Publish,
        Take(u32),
        Resize(u32),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            6 => Just(Op::Push),
            4 => Just(Op::Stage),
            2 => Just(Op::Publish),
            5 => (0u32..5).prop_map(Op::Take),
            1 => (0u32..12).prop_map(Op::Resize),
        ]
    }

    proptest! {
        #[test]
        fn a_ring_behaves_as_a_deque(
            depth in 1u32..9,
            stride in 0usize..4,
            // Counters wrap soon, soon or late.
            start in prop_oneof![Just(0), (u32::MAX - 20)..=u32::MAX, any::<u32>()],
            ops in prop::collection::vec(op(), 1..200),
        ) {
            let (mut p, mut c) = ring_at::<u64>(depth, stride, start);
            let (mut model, mut published, mut depth) = (VecDeque::new(), 0, depth as usize);
            let mut next = 0;
            for op in ops {
                match op {
                    Op::Push | Op::Stage => {
                        let write = |header: &mut u64, words: &mut [u64]| {
                            *header = next;
                            words.fill(next + 1);
                        };
                        let push = matches!(op, Op::Push);
                        let done = if push { p.push(write) } else { p.stage(write) };
                        prop_assert_eq!(done, model.len() < depth);
                        if done {
                            model.push_back(next);
                            next += 1;
                        }
                        if push {
                            published = model.len();
                        }
                    }
                    Op::Publish => {
                        p.publish();
                        published = model.len();
                    }
                    Op::Take(n) => {
                        for _ in 0..n {
                            let want = if published > 0 { model.pop_front() } else { None };
                            published = published.saturating_sub(1);
                            prop_assert_eq!(take(&mut c), want);
                        }
                    }
                    Op::Resize(n) => {
                        let done = resize(&mut p, &mut c, n);
                        prop_assert_eq!(done, model.len() <= n as usize);
                        if done {
                            depth = n as usize;
                        }
                    }
                }
                prop_assert_eq!(p.depth() as usize, depth);
                prop_assert_eq!(p.free() as usize, depth - model.len());
                prop_assert_eq!(c.len() as usize, published);
                prop_assert_eq!(p.next().wrapping_sub(c.tail()) as usize, model.len());
                for (i, v) in model.iter().enumerate() {
                    let at = c.tail().wrapping_add(i as u32);
                    prop_assert_eq!(c.get(at).map(|(&h, _)| h), (i < published).then_some(*v));
                }
            }
        }
    }

    #[test]
    fn two_threads_see_every_slot_once_in_order() {
        const N: u64 = 100_000;
        let (mut p, mut c) = ring_at::<u64>(7, 3, u32::MAX - 1000);
        thread::scope(|s| {
            s.spawn(move || {
                for v in 0..N {
                    while !put(&mut p, v) {
                        thread::yield_now();
                    }
                }
            });
            for v in 0..N {
                let got = loop {
                    match take(&mut c) {
                        Some(got) => break got,
                        None => thread::yield_now(),
                    }
                };
                assert_eq!(got, v);
            }
        });
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;

    /// Through the wrap of slots and counters, batched and not. The cells notice if both ends are in one slot.
    #[test]
    fn loom_slots_change_hands_by_release_and_acquire() {
        loom::model(|| {
            let (mut p, mut c) = ring_at::<u32>(2, 1, u32::MAX - 1);
            let producer = thread::spawn(move || {
                assert!(p.stage(|header, words| (*header, words[0]) = (0, 10)));
                assert!(p.push(|header, words| (*header, words[0]) = (1, 11)));
                while !p.push(|header, words| (*header, words[0]) = (2, 12)) {
                    thread::yield_now();
                }
            });
            let mut want = 0;
            while want < 3 {
                let Some((&v, words)) = c.get(c.tail()) else {
                    thread::yield_now();
                    continue;
                };
                assert_eq!((v, words[0]), (want, u64::from(want) + 10));
                want += 1;
                c.release(c.tail().wrapping_add(1));
            }
            producer.join().unwrap();
            assert!(c.is_empty());
        });
    }

    #[test]
    fn loom_a_full_ring_refuses_until_a_slot_is_released() {
        loom::model(|| {
            let (mut p, mut c) = ring_at::<u32>(1, 0, u32::MAX);
            assert!(p.push(|header, _| *header = 1));
            let consumer = thread::spawn(move || {
                assert_eq!(c.get(c.tail()).map(|(&h, _)| h), Some(1));
                c.release(c.tail().wrapping_add(1));
                c
            });
            let second = p.push(|header, _| *header = 2);
            let c = consumer.join().unwrap();
            assert_eq!(c.get(0).map(|(&h, _)| h), second.then_some(2));
        });
    }
}
