//! Where the bytes of a row are, before and after, at both sides.
//!
//! Each side has two regions. *Source* holds the row's pattern, which depends on the operation and the size
//! and nowhere repeats; request `i` takes its bytes from another place of it. *Target* is full of one value,
//! the canary, but for one slot per request with a gap behind each; slots begin at odd addresses. Both
//! sides know all of this, so each can tell every byte that it has to find in its memory.

use std::ops::Range;

use softroce::prelude::MemoryRegion;

use super::Failure;
use super::plan::{Op, Row};

/// What is in the target before anything arrives.
const CANARY: u8 = 0xc5;
/// Bytes of canary between two slots, at least.
const GAP: usize = 64;
/// From where one request begins in the source to where the next one does.
const STEP: usize = 13;
/// Longest inline message.
pub(super) const INLINE: u32 = 64;
/// Bytes of the header in front of a datagram that arrived.
pub(super) const GRH: usize = 40;

/// The memory of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) row: Row,
    stride: usize,
}

/// One step of the chain of atomics: all work on the same word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Atomic {
    /// What compare-and-swap compares with.
    pub(super) expect: u64,
    /// What it writes, or what fetch-and-add adds.
    pub(super) operand: u64,
    /// The value before, which it has to return.
    pub(super) before: u64,
    /// The value after.
    pub(super) after: u64,
}

impl Layout {
    pub(super) const fn new(row: Row) -> Self {
        // A slot may begin up to 7 bytes late.
        let stride = row.size.next_multiple_of(8) + GAP + 8;
        Self { row, stride: stride + if row.op.is_datagram() { GRH } else { 0 } }
    }

    /// Bytes of the target that the row uses.
    pub(super) fn target_len(&self) -> usize {
        GAP + self.row.requests() * self.stride
    }

    /// Bytes of the source that the row uses.
    pub(super) fn source_len(&self) -> usize {
        self.row.size + self.row.requests() * STEP
    }

    /// What the source holds: a pseudo-random stream (SplitMix64) that the operation and the size seed.
    pub(super) fn pattern(&self) -> Vec<u8> {
        let mut state = (self.row.op as u64) << 32 ^ self.row.size as u64;
        let mut word = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ z >> 31
        };
        let mut bytes = Vec::with_capacity(self.source_len() + 8);
        while bytes.len() < self.source_len() {
            bytes.extend(word().to_le_bytes());
        }
        bytes.truncate(self.source_len());
        if self.row.size == 1 {
            // A byte and its three bytes of pad may look like an Ethernet type and two bytes that are zero.
            // Wireshark would then dissect them so. From 0xc0 on no such type is known.
            bytes.iter_mut().for_each(|b| *b |= 0xc0);
        }
        bytes
    }

    /// The slot of request `i` in the target.
    pub(super) fn slot(&self, i: usize) -> Range<usize> {
        let late = if self.row.op.is_aligned() { 0 } else { i % 8 };
        let front = if self.row.op.is_datagram() { GRH } else { 0 };
        let start = GAP + i * self.stride + late + front;
        start..start + self.row.size
    }

    /// Where the header of datagram `i` goes.
    pub(super) fn header(&self, i: usize) -> Range<usize> {
        let start = self.slot(i).start;
        start - GRH..start
    }

    /// Where request `i` takes its bytes from in the source, in the order of the message.
    pub(super) fn origin(&self, i: usize) -> Vec<Range<usize>> {
        let all = i * STEP..i * STEP + self.row.size;
        if !self.row.op.gathers() {
            return nonempty([all]);
        }
        // Unequal pieces, the first ones last in memory.
        let cuts = [0, 1, self.row.size / 3, self.row.size - 5, self.row.size];
        nonempty([3, 2, 1, 0].map(|k| all.start + cuts[k]..all.start + cuts[k + 1]))
    }

    /// Where the bytes of request `i` go to in the target, in the order of the message.
    pub(super) fn landing(&self, i: usize) -> Vec<Range<usize>> {
        let all = self.slot(i);
        if !self.row.op.scatters() {
            return nonempty([all]);
        }
        let cut = all.start + self.row.size / 5;
        nonempty([cut..all.end, all.start..cut])
    }

    /// The message of request `i`.
    pub(super) fn message(&self, pattern: &[u8], i: usize) -> Vec<u8> {
        self.origin(i).into_iter().flat_map(|piece| &pattern[piece]).copied().collect()
    }

    /// The immediate data of request `i`.
    pub(super) fn immediate(&self, i: usize) -> u32 {
        let low = |n: usize| u32::try_from(n & 0xffff).unwrap_or_default();
        0x8000_0001 ^ low(i) << 8 ^ low(self.row.size)
    }

    /// The chain of atomics, and so the word that it begins with. One compare-and-swap in four compares with
    /// a wrong value and has to change nothing.
    pub(super) fn atomics(&self, pattern: &[u8]) -> Vec<Atomic> {
        let words =
            pattern.chunks_exact(8).map(|b| b.iter().fold(0, |n, &b| n << 8 | u64::from(b)));
        let mut words = words.cycle();
        let mut next = || words.next().unwrap_or_default();
        let mut before = next();
        let steps = (0..self.row.requests()).map(|i| {
            let operand = next();
            let (expect, after) = match self.row.op {
                Op::FetchAdd => (0, before.wrapping_add(operand)),
                _ if i % 4 == 3 => (!before, before),
                _ => (before, operand),
            };
            let step = Atomic { expect, operand, before, after };
            before = after;
            step
        });
        steps.collect()
    }

    /// What the target has to hold when all requests have delivered their messages.
    pub(super) fn delivered(&self, pattern: &[u8]) -> Vec<u8> {
        self.delivered_as(pattern, 0..self.row.requests())
    }

    /// The same where the receives were not taken in the order of the requests: `order` is the request of each.
    pub(super) fn delivered_as(
        &self,
        pattern: &[u8],
        order: impl IntoIterator<Item = usize>,
    ) -> Vec<u8> {
        let mut all = self.untouched();
        for (receive, i) in order.into_iter().enumerate() {
            let mut message = &self.message(pattern, i)[..];
            for piece in self.landing(receive) {
                let (bytes, rest) = message.split_at(piece.len());
                all[piece].copy_from_slice(bytes);
                message = rest;
            }
        }
        all
    }

    /// What the target has to hold when nothing has arrived.
    pub(super) fn untouched(&self) -> Vec<u8> {
        vec![CANARY; self.target_len()]
    }

    /// What the target has to hold when 8-byte values have arrived in the first slots.
    pub(super) fn values(&self, values: impl IntoIterator<Item = u64>) -> Vec<u8> {
        let mut all = self.untouched();
        for (i, value) in values.into_iter().enumerate() {
            all[self.slot(i)].copy_from_slice(&value.to_ne_bytes());
        }
        all
    }

    /// Compares the target with what it has to hold.
    pub(super) fn check_target(
        &self,
        target: &MemoryRegion,
        expected: &[u8],
    ) -> Result<(), Failure> {
        self.compare(expected, |at, bytes| target.read(at, bytes))
    }

    /// How many slots lack all or a part of their message and hold nothing else: packets did not come.
    pub(super) fn lost(&self, target: &MemoryRegion, expected: &[u8]) -> usize {
        let slots = (0..self.row.requests()).map(|i| self.slot(i));
        let lacks = |slot: &Range<usize>| {
            let (found, wanted) = (target.to_vec(slot.clone()), &expected[slot.clone()]);
            found != wanted && found.iter().zip(wanted).all(|(f, w)| f == w || *f == CANARY)
        };
        slots.filter(lacks).count()
    }

    fn compare(&self, expected: &[u8], read: impl FnMut(usize, &mut [u8])) -> Result<(), Failure> {
        let Some((at, found)) = difference(expected, read) else { return Ok(()) };
        let i = at.saturating_sub(GAP) / self.stride;
        let slot = self.slot(i);
        let place = match at {
            at if slot.contains(&at) => format!("byte {} of message {i}", at - slot.start),
            at if self.row.op.is_datagram() && self.header(i).contains(&at) => {
                format!("byte {} of the header of message {i}", at - self.header(i).start)
            }
            at if at < slot.start => format!("{} bytes in front of message {i}", slot.start - at),
            at => format!("{} bytes behind the end of message {i}", at - slot.end),
        };
        let wanted = expected[at];
        Err(Failure::new(format!("{place} is {found:#04x} and should be {wanted:#04x}")))
    }
}

/// Compares the source with the pattern that was written to it: nothing may have changed it.
pub(super) fn check_source(source: &MemoryRegion, pattern: &[u8]) -> Result<(), Failure> {
    match difference(pattern, |at, bytes| source.read(at, bytes)) {
        None => Ok(()),
        Some((at, found)) => {
            let wanted = pattern[at];
            let what = format!("byte {at} of the source is {found:#04x}, no longer {wanted:#04x}");
            Err(Failure::new(what))
        }
    }
}

fn nonempty<const N: usize>(pieces: [Range<usize>; N]) -> Vec<Range<usize>> {
    pieces.into_iter().filter(|p| !p.is_empty()).collect()
}

/// The first place where memory is not as expected, and the byte there.
fn difference(expected: &[u8], mut read: impl FnMut(usize, &mut [u8])) -> Option<(usize, u8)> {
    const CHUNK: usize = 64 << 10;
    let mut found = vec![0; CHUNK.min(expected.len())];
    for (chunk, at) in expected.chunks(CHUNK).zip((0..).step_by(CHUNK)) {
        let found = &mut found[..chunk.len()];
        read(at, found);
        if found != chunk {
            let k = found.iter().zip(chunk).position(|(a, b)| a != b)?;
            return Some((at + k, found[k]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tour::plan::plan;
    use softroce::prelude::Mtu;

    /// Reads from a copy.
    fn of(memory: &[u8]) -> impl FnMut(usize, &mut [u8]) {
        |at, bytes| bytes.copy_from_slice(&memory[at..at + bytes.len()])
    }

    #[test]
    fn pieces_cover_the_message_and_slots_keep_apart() {
        for row in plan(Mtu::B4096, true) {
            let l = Layout::new(row);
            for i in 0..row.requests() {
                for pieces in [l.origin(i), l.landing(i)] {
                    assert_eq!(pieces.iter().map(Range::len).sum::<usize>(), row.size, "{row}");
                }
                assert!(l.slot(i).end + GAP <= l.slot(i + 1).start, "{row}");
                if row.op.is_datagram() {
                    let from = if i == 0 { 0 } else { l.slot(i - 1).end };
                    assert!(from + GAP <= l.header(i).start, "{row}");
                }
                assert!(l.landing(i).iter().all(|p| p.end <= l.target_len()), "{row}");
                assert!(l.origin(i).iter().all(|p| p.end <= l.source_len()), "{row}");
            }
            assert_eq!(l.pattern().len(), l.source_len());
        }
    }

    #[test]
    fn messages_differ() {
        let l = Layout::new(Row { op: Op::Send, size: 64 });
        let pattern = l.pattern();
        let mut all: Vec<_> = (0..l.row.requests()).map(|i| l.message(&pattern, i)).collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), l.row.requests());
        assert_ne!(pattern, Layout::new(Row { op: Op::Write, size: 64 }).pattern());
        let gathered = Layout::new(Row { op: Op::SendSge, size: 64 });
        let pattern = gathered.pattern();
        let message = gathered.message(&pattern, 0);
        assert_eq!((message[..5].to_vec(), message[63]), (pattern[59..64].to_vec(), pattern[0]));
    }

    #[test]
    fn one_wrong_byte_is_found_and_named() {
        for op in [Op::Send, Op::SendSge, Op::Read] {
            let l = Layout::new(Row { op, size: 4096 });
            let pattern = l.pattern();
            let expected = l.delivered(&pattern);
            assert_eq!(l.compare(&expected, of(&expected)), Ok(()));
            for (at, place) in [
                (l.slot(9).start, "byte 0 of message 9 is"),
                (l.slot(9).end - 1, "byte 4095 of message 9 is"),
                (l.slot(9).end, "0 bytes behind the end of message 9 is"),
                (l.slot(0).start - 1, "1 bytes in front of message 0 is"),
                (0, "64 bytes in front of message 0 is"),
                (expected.len() - 1, "bytes behind the end of message 127 is"),
            ] {
                let mut memory = expected.clone();
                memory[at] ^= 0x10;
                let Failure(why) = l.compare(&expected, of(&memory)).unwrap_err();
                assert!(why.contains(place), "{op:?} {at}: {why}");
            }
        }
    }

    #[test]
    fn a_message_that_did_not_come_is_found() {
        let l = Layout::new(Row { op: Op::Write, size: 1 << 20 });
        let pattern = l.pattern();
        let expected = l.delivered(&pattern);
        let Failure(why) = l.compare(&expected, of(&l.untouched())).unwrap_err();
        let first = pattern[0];
        assert_eq!(why, format!("byte 0 of message 0 is 0xc5 and should be {first:#04x}"));
    }

    #[test]
    fn receives_taken_in_another_order() {
        let l = Layout::new(Row { op: Op::SendSrq, size: 64 });
        let pattern = l.pattern();
        let n = l.row.requests();
        assert_eq!(l.delivered_as(&pattern, 0..n), l.delivered(&pattern));
        let turned = l.delivered_as(&pattern, (0..n).rev());
        assert_eq!(turned[l.slot(0)], l.message(&pattern, n - 1));
        assert_eq!(turned[l.slot(n - 1)], l.message(&pattern, 0));
    }

    #[test]
    fn atomics_are_a_chain() {
        for op in [Op::CompareSwap, Op::FetchAdd] {
            let l = Layout::new(Row { op, size: 8 });
            let chain = l.atomics(&l.pattern());
            assert_eq!(chain.len(), 128);
            assert!(chain.windows(2).all(|w| w[0].after == w[1].before));
            let unchanged = chain.iter().filter(|s| s.before == s.after).count();
            assert_eq!(unchanged, if op == Op::CompareSwap { 32 } else { 0 });
            for s in chain {
                let swapped = if s.expect == s.before { s.operand } else { s.before };
                let added = s.before.wrapping_add(s.operand);
                assert_eq!(s.after, if op == Op::CompareSwap { swapped } else { added });
            }
            assert_eq!(l.slot(7).start % 8, 0);
        }
    }
}
