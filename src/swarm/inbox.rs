//! Memory for messages, and the receives that lie in it: of one queue pair, or of a shared queue.

use std::collections::BTreeMap;

use crate::verbs::{
    self, Access, MemoryRegion, ProtectionDomain, QueuePair, RecvWr, Sge, SharedReceiveQueue,
    WorkCompletion,
};

/// What memory is full of that nobody should touch.
const CANARY: u8 = 0xee;
/// Bytes between two pieces of a buffer.
const GAP: usize = 8;
/// Marks the numbers of receives.
pub(super) const RECEIVE: u64 = 1 << 63;
/// Marks those of shared queues, besides.
pub(super) const SHARED: u64 = 1 << 62;
/// Pieces of memory in a receive, at most.
pub(super) const PIECES: u32 = 3;

/// Buffers of one size in one region, with canaries between the pieces.
#[derive(Debug)]
pub(super) struct Slots {
    mr: MemoryRegion,
    size: usize,
}

impl Slots {
    pub(super) fn new(pd: &ProtectionDomain, n: usize, longest: usize) -> verbs::Result<Self> {
        let size = (longest + 4 * GAP).next_multiple_of(8);
        let mr = pd.alloc_mr(n * size, Access::LOCAL)?;
        mr.fill(0..n * size, CANARY);
        Ok(Self { mr, size })
    }

    /// Pieces of a buffer: place in the slot, place in the message, bytes. The last piece comes first.
    fn layout(len: usize, pieces: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        (0..pieces).map(move |i| {
            let (from, to) = (len * i / pieces, len * (i + 1) / pieces);
            (GAP + len - to + GAP * (pieces - 1 - i), from, to - from)
        })
    }

    pub(super) fn sges(&self, slot: usize, len: usize, pieces: usize) -> Vec<Sge> {
        let base = slot * self.size;
        let piece = |(at, _, n): (usize, usize, usize)| self.mr.sge(base + at..base + at + n);
        Self::layout(len, pieces).map(piece).collect()
    }

    /// The first `len` bytes of a message in a buffer made for `room`. Nothing else of the slot may have changed,
    /// but for the rest of the buffer if there are `remains` of a message that broke off. Leaves it clean.
    pub(super) fn take(
        &self,
        slot: usize,
        room: usize,
        pieces: usize,
        len: usize,
        remains: bool,
    ) -> Result<Vec<u8>, String> {
        let base = slot * self.size;
        let mut bytes = self.mr.to_vec(base..base + self.size);
        let mut message = vec![0; len];
        for (at, from, n) in Self::layout(room, pieces) {
            let used = n.min(len.saturating_sub(from));
            if used > 0 {
                message[from..from + used].copy_from_slice(&bytes[at..at + used]);
            }
            bytes[at..at + if remains { n } else { used }].fill(CANARY);
        }
        self.clean(slot);
        // All bytes at once: a search that may stop early is many times slower, and almost never stops.
        if bytes.iter().fold(0, |all, &b| all | (b ^ CANARY)) == 0 {
            return Ok(message);
        }
        let at = bytes.iter().position(|&b| b != CANARY);
        Err(format!("a byte was written that belongs to nobody: {at:?} of a buffer"))
    }

    pub(super) fn clean(&self, slot: usize) {
        self.mr.fill(slot * self.size..(slot + 1) * self.size, CANARY);
    }
}

/// Receives with their buffers.
#[derive(Debug)]
pub(super) struct Inbox {
    slots: Slots,
    /// Bytes of each receive.
    pub(super) room: usize,
    depth: usize,
    /// Several queue pairs take from it, and are done in any order.
    is_shared: bool,
    posted: u64,
    /// Those that have not come back, and where they lie.
    out: BTreeMap<u64, usize>,
    free: Vec<usize>,
}

impl Inbox {
    pub(super) fn new(
        pd: &ProtectionDomain,
        depth: u32,
        room: usize,
        is_shared: bool,
    ) -> verbs::Result<Self> {
        let depth = depth as usize;
        Ok(Self {
            slots: Slots::new(pd, depth, room)?,
            room,
            depth,
            is_shared,
            posted: 0,
            out: BTreeMap::new(),
            free: (0..depth).rev().collect(),
        })
    }

    /// Receives that were posted and have not come back.
    pub(super) fn outstanding(&self) -> usize {
        self.out.len()
    }

    /// Receives that it posts at a time, at most.
    pub(super) fn depth(&self) -> u32 {
        u32::try_from(self.depth).unwrap_or(u32::MAX)
    }

    fn mark(&self) -> u64 {
        if self.is_shared { RECEIVE | SHARED } else { RECEIVE }
    }

    /// Posts up to `most` receives, as far as the queue has room. How many.
    fn post(
        &mut self,
        most: usize,
        mut post: impl FnMut(RecvWr<'_>) -> verbs::Result<()>,
    ) -> Result<usize, String> {
        let n = most.min(self.depth - self.out.len());
        for _ in 0..n {
            let Some(&slot) = self.free.last() else { break };
            let sges = self.slots.sges(slot, self.room, pieces_of(self.posted));
            post(RecvWr::new(self.mark() | self.posted, &sges[..]))
                .map_err(|e| format!("a receive was not taken: {e}"))?;
            self.free.pop();
            self.out.insert(self.posted, slot);
            self.posted += 1;
        }
        Ok(n)
    }

    /// Fills the queue of a queue pair. How many receives were posted.
    pub(super) fn refill(&mut self, qp: &QueuePair) -> Result<usize, String> {
        self.post(usize::MAX, |wr| qp.post_recv(wr))
    }

    /// Posts up to `most` to a shared queue. How many.
    pub(super) fn refill_shared(
        &mut self,
        srq: &SharedReceiveQueue,
        most: usize,
    ) -> Result<usize, String> {
        self.post(most, |wr| srq.post_recv([wr]))
    }

    /// A receive has come back: its number, and its slot.
    pub(super) fn complete(&mut self, wc: &WorkCompletion) -> Result<(u64, usize), String> {
        let n = wc.wr_id & !self.mark();
        let oldest = self.out.first_key_value().map(|(&n, _)| n);
        if !self.is_shared && oldest != Some(n) {
            return Err(format!("{wc:?}: expected receive {oldest:?} of {}", self.posted));
        }
        match self.out.remove(&n) {
            Some(slot) => Ok((n, slot)),
            None => Err(format!("{wc:?}: receive {n} of {} is not in the queue", self.posted)),
        }
    }

    /// The message in a receive that has come back. See [`Slots::take`].
    pub(super) fn take(
        &mut self,
        (n, slot): (u64, usize),
        len: usize,
        remains: bool,
    ) -> Result<Vec<u8>, String> {
        self.free.push(slot);
        self.slots.take(slot, self.room, pieces_of(n), len, remains)
    }
}

/// Pieces of receive number `n`.
fn pieces_of(n: u64) -> usize {
    1 + usize::try_from(n % u64::from(PIECES)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Link, Sim};
    use crate::verbs::Context;

    fn back(id: u64) -> WorkCompletion {
        WorkCompletion { wr_id: id, ..WorkCompletion::default() }
    }

    fn posted(is_shared: bool) -> (Context, Inbox) {
        let [ctx] = Sim::new(1).hosts(Link::default());
        let pd = ctx.alloc_pd().unwrap();
        let mut inbox = Inbox::new(&pd, 3, 20, is_shared).unwrap();
        assert_eq!(inbox.post(usize::MAX, |_| Ok(())), Ok(3));
        assert_eq!((inbox.outstanding(), inbox.post(1, |_| Ok(()))), (3, Ok(0)));
        (ctx, inbox)
    }

    #[test]
    fn receives_of_a_queue_pair_come_back_in_order_and_once() {
        let (_ctx, mut inbox) = posted(false);
        assert!(inbox.complete(&back(RECEIVE | 1)).is_err());
        let receive = inbox.complete(&back(RECEIVE)).unwrap();
        assert!(inbox.complete(&back(RECEIVE)).is_err());
        assert!(inbox.take(receive, 0, false).is_ok());
        assert_eq!(
            inbox.post(usize::MAX, |wr| {
                assert_eq!(wr.id, RECEIVE | 3);
                Ok(())
            }),
            Ok(1)
        );
    }

    #[test]
    fn receives_of_a_shared_queue_come_back_in_any_order_and_once() {
        let (_ctx, mut inbox) = posted(true);
        for n in [2, 0] {
            assert!(inbox.complete(&back(RECEIVE | SHARED | n)).is_ok());
            assert!(inbox.complete(&back(RECEIVE | SHARED | n)).is_err());
        }
        assert!(inbox.complete(&back(RECEIVE | SHARED | 3)).is_err());
    }

    #[test]
    fn a_byte_beside_the_message_is_found() {
        let [ctx] = Sim::new(1).hosts(Link::default());
        let slots = Slots::new(&ctx.alloc_pd().unwrap(), 1, 20).unwrap();
        // Two pieces: the second half of the buffer lies in front.
        for (at, remains, clean) in [
            (8, true, true),
            (8, false, false),
            (7, true, false),
            (18, true, false),
            (25, true, false),
            (26, false, true),
            (36, true, false),
        ] {
            slots.mr.fill(at..at + 1, 1);
            let took = slots.take(0, 20, 2, 10, remains);
            assert_eq!(took.is_ok(), clean, "{at} {took:?}");
        }
        assert_eq!(slots.take(0, 20, 2, 10, false), Ok(vec![CANARY; 10]));
    }
}
