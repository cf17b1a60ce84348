//! The two batches that travel between an engine and a port.
//!
//! *Owns.* All memory that packets pass through on their way: buffers to receive into, one buffer to send
//! from.
//!
//! *Rules.* Buffers are allocated when they are used for the first time, so that a device on which nothing happens costs
//! next to nothing, and never after that. Both stay in the cache when they are drained often: receive
//! buffers are filled from the first one each time, and a send buffer that has been emptied starts over.

use std::fmt;

use crate::net::{RxMeta, Transmit};
use crate::wire::Bth;

/// Datagrams that arrived: some buffers of one size, filled in place.
///
/// ```
/// use softroce::net::{Path, RxMeta};
/// use softroce::internals::port::RxBatch;
///
/// let local = [127, 0, 0, 2].into();
/// let path = Path {
///     src: local, dst: local, src_port: 4791, traffic_class: 0, hop_limit: 64, flow_label: 0, scope_id: 0,
/// };
/// let mut rx = RxBatch::new(4, 2048);
/// rx.spare().unwrap()[..5].copy_from_slice(b"aabbc");
/// // The kernel had merged three datagrams, of 2, 2 and 1 bytes.
/// rx.commit(RxMeta { path, ident: None, df: None, gro_index: 0 }, 5, Some(2));
/// let got: Vec<_> = rx.iter().map(|(meta, bytes)| (meta.gro_index, bytes)).collect();
/// assert_eq!(got, [(0, &b"aa"[..]), (1, b"bb"), (2, b"c")]);
/// ```
pub struct RxBatch {
    /// Empty before the first use.
    arena: Box<[u8]>,
    buffers: usize,
    buffer_len: usize,
    /// Buffers given away since the last `clear`, from the front of the arena.
    used: usize,
    filled: Vec<Filled>,
}

struct Filled {
    meta: RxMeta,
    start: usize,
    len: usize,
    segment_size: Option<u16>,
}

impl Filled {
    fn datagrams(&self) -> usize {
        match self.segment_size {
            Some(size) => self.len.div_ceil(usize::from(size).max(1)).max(1),
            None => 1,
        }
    }
}

impl RxBatch {
    /// Bytes of a receive buffer that holds whatever a UDP socket delivers, merged datagrams included.
    pub const WHOLE: usize = 1 << 16;

    /// A batch of `buffers` buffers of `buffer_len` bytes each. A UDP port wants [`RxBatch::WHOLE`].
    pub fn new(buffers: usize, buffer_len: usize) -> Self {
        Self {
            arena: Box::default(),
            buffers: if buffer_len == 0 { 0 } else { buffers },
            buffer_len,
            used: 0,
            filled: Vec::new(),
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.used = 0;
        self.filled.clear();
    }

    /// The next free buffer, to be filled and then given to [`RxBatch::commit`]; `None` when all are taken.
    #[inline]
    pub fn spare(&mut self) -> Option<&mut [u8]> {
        if self.arena.is_empty() {
            self.allocate();
        }
        let start = self.used * self.buffer_len;
        self.arena.get_mut(start..start + self.buffer_len).filter(|buffer| !buffer.is_empty())
    }

    /// All free buffers, in the order in which `commit` and `skip` take them.
    #[cfg(all(feature = "udp", target_os = "linux"))]
    pub(super) fn spares(&mut self) -> impl ExactSizeIterator<Item = &mut [u8]> {
        if self.arena.is_empty() {
            self.allocate();
        }
        let len = self.buffer_len.max(1);
        self.arena[self.used * self.buffer_len..].chunks_exact_mut(len)
    }

    #[cold]
    fn allocate(&mut self) {
        self.arena = vec![0; self.buffers * self.buffer_len].into_boxed_slice();
        self.filled = Vec::with_capacity(self.buffers);
    }

    /// How many buffers are free.
    pub fn spare_buffers(&self) -> usize {
        self.buffers - self.used
    }

    /// Takes the first `len` bytes of the [spare](RxBatch::spare) buffer into the batch.
    ///
    /// With a `segment_size` they are several datagrams of that size, the last of which may be shorter.
    /// Without a free buffer nothing happens; `len` beyond the buffer counts as its end.
    pub fn commit(&mut self, meta: RxMeta, len: usize, segment_size: Option<u16>) {
        debug_assert!(len <= self.buffer_len && self.spare_buffers() > 0);
        if self.spare_buffers() == 0 {
            return;
        }
        if self.arena.is_empty() {
            self.allocate();
        }
        let start = self.used * self.buffer_len;
        self.filled.push(Filled { meta, start, len: len.min(self.buffer_len), segment_size });
        self.used += 1;
    }

    /// Passes over the [spare](RxBatch::spare) buffer: what was written into it is not wanted.
    pub fn skip(&mut self) {
        self.used += usize::from(self.spare_buffers() > 0);
    }

    /// Every datagram in order of arrival, merged ones taken apart and numbered in [`RxMeta::gro_index`].
    pub fn iter(&self) -> impl Iterator<Item = (RxMeta, &[u8])> {
        self.filled.iter().flat_map(|f| {
            let bytes = &self.arena[f.start..f.start + f.len];
            let size = f.segment_size.map_or(f.len, usize::from).max(1);
            (0..f.datagrams()).map(move |k| {
                let from = (k * size).min(bytes.len());
                let to = (from + size).min(bytes.len());
                let gro_index = u16::try_from(k).unwrap_or(u16::MAX);
                (RxMeta { gro_index, ..f.meta }, &bytes[from..to])
            })
        })
    }

    /// Every buffer in order of arrival: what is known of its first datagram, all that is in it, and the size of its
    /// datagrams, of which the last may be shorter.
    pub fn buffers(&self) -> impl ExactSizeIterator<Item = (&RxMeta, &[u8], usize)> {
        self.filled.iter().map(|f| {
            let bytes = &self.arena[f.start..f.start + f.len];
            (&f.meta, bytes, f.segment_size.map_or(f.len, usize::from).max(1))
        })
    }

    /// The last datagram.
    pub fn last(&self) -> Option<(RxMeta, &[u8])> {
        let filled = self.filled.last()?;
        let bytes = &self.arena[filled.start..filled.start + filled.len];
        let (meta, Some(size)) = (&filled.meta, filled.segment_size) else {
            return Some((filled.meta, bytes));
        };
        let size = usize::from(size).max(1);
        let before = bytes.len().saturating_sub(1) / size;
        let gro_index = u16::try_from(before).unwrap_or(u16::MAX);
        Some((RxMeta { gro_index, ..*meta }, &bytes[before * size..]))
    }

    /// Whether nothing has arrived.
    pub fn is_empty(&self) -> bool {
        self.filled.is_empty()
    }

    /// How many datagrams have arrived, merged ones counted apart.
    pub fn datagrams(&self) -> usize {
        self.filled.iter().map(Filled::datagrams).sum()
    }

    /// How many bytes have arrived.
    pub fn bytes(&self) -> usize {
        self.filled.iter().map(|f| f.len).sum()
    }
}

impl fmt::Debug for RxBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RxBatch")
            .field("datagrams", &self.datagrams())
            .field("bytes", &self.bytes())
            .field("spare_buffers", &self.spare_buffers())
            .finish()
    }
}

/// Datagrams to send: one staging buffer, filled from the front, and the entries that lie in it.
///
/// ```
/// use softroce::net::{Path, Transmit};
/// use softroce::internals::port::TxBatch;
///
/// let local = [127, 0, 0, 2].into();
/// let path = Path {
///     src: local, dst: local, src_port: 4791, traffic_class: 0, hop_limit: 64, flow_label: 0, scope_id: 0,
/// };
/// let mut tx = TxBatch::default();
/// tx.spare()[..4].copy_from_slice(b"ping");
/// tx.commit(Transmit { path, ident: 0, len: 4, segment_size: None }, 7);
/// assert_eq!(tx.entries().next().unwrap().1, b"ping");
/// tx.drop_owner(7, |_| true);
/// assert!(tx.is_empty());
/// ```
pub struct TxBatch {
    /// Empty before the first use.
    buf: Box<[u8]>,
    capacity: usize,
    /// Where in `buf` the first packet begins.
    lead: usize,
    /// Where it ends.
    end: usize,
    /// End of the part of `buf` that was given away since it was last empty.
    used: usize,
    entries: Vec<Entry>,
    /// Entries at the front that are gone.
    head: usize,
    /// Entries from `head` on that are still to be sent.
    live: usize,
}

struct Entry {
    transmit: Transmit,
    owner: u64,
    start: usize,
    dropped: bool,
}

impl TxBatch {
    /// Bytes of the staging buffer of [`TxBatch::default`]: enough for the largest segmented send, and
    /// small enough to stay in the cache.
    pub const BYTES: usize = 1 << 16;
    /// Most entries of a batch.
    pub const ENTRIES: usize = 64;

    /// A batch with a staging buffer of `capacity` bytes.
    pub fn new(capacity: usize) -> Self {
        Self {
            buf: Box::default(),
            capacity,
            lead: 0,
            end: 0,
            used: 0,
            entries: Vec::new(),
            head: 0,
            live: 0,
        }
    }

    #[cold]
    fn allocate(&mut self) {
        // Copies out of registered memory are twice as fast to where 16 bytes are aligned. The payload of
        // most packets lies 12 bytes, a bare BTH, behind their beginning, and full packets of every path
        // MTU are a multiple of 16 long.
        const ALIGN: usize = 16;
        self.buf = vec![0; self.capacity + ALIGN].into_boxed_slice();
        self.lead = (self.buf.as_ptr().addr() + Bth::LEN).wrapping_neg() % ALIGN;
        self.end = self.lead + self.capacity;
        self.used = self.lead;
        self.entries = Vec::with_capacity(Self::ENTRIES);
    }

    /// Free bytes at the end, for the next [`Transmit`]; none when the batch [is full](TxBatch::is_full).
    pub fn spare(&mut self) -> &mut [u8] {
        if self.buf.is_empty() {
            self.allocate();
        }
        let from = if self.entries.len() == Self::ENTRIES { self.end } else { self.used };
        &mut self.buf[from..self.end]
    }

    /// Takes the first `transmit.len` bytes of the [spare](TxBatch::spare) ones into the batch.
    ///
    /// `owner` is the sender's tag for [`TxBatch::drop_owner`]. An entry that does not fit is not taken.
    pub fn commit(&mut self, transmit: Transmit, owner: u64) {
        let fits = transmit.len <= self.spare().len() && self.entries.len() < Self::ENTRIES;
        debug_assert!(fits, "{} bytes do not fit", transmit.len);
        if !fits {
            return;
        }
        self.entries.push(Entry { transmit, owner, start: self.used, dropped: false });
        self.used += transmit.len;
        self.live += 1;
    }

    /// What is still to be sent, oldest first.
    pub fn entries(&self) -> impl Iterator<Item = (&Transmit, &[u8])> {
        self.entries[self.head..].iter().filter(|e| !e.dropped).map(|e| {
            let t = &e.transmit;
            (t, &self.buf[e.start..e.start + t.len])
        })
    }

    /// What is to be sent, if it is one entry and no more.
    #[inline]
    pub fn only(&self) -> Option<(&Transmit, &[u8])> {
        match &self.entries[self.head..] {
            [e] if !e.dropped => {
                let t = &e.transmit;
                Some((t, &self.buf[e.start..e.start + t.len]))
            }
            _ => None,
        }
    }

    /// The first of [`entries`](TxBatch::entries).
    pub fn first(&self) -> Option<Transmit> {
        self.entries().next().map(|(t, _)| *t)
    }

    /// The first `n` of [`entries`](TxBatch::entries) are gone. When none is left the buffer starts over.
    pub fn consume(&mut self, n: usize) {
        let mut n = n.min(self.live);
        self.live -= n;
        while n > 0 {
            n -= usize::from(!self.entries[self.head].dropped);
            self.head += 1;
        }
        self.restart_if_empty();
    }

    /// The first `bytes` of the first entry, whole segments of it, are gone. Over IPv4 the identification of the
    /// rest is that of its first segment.
    pub fn consume_segments(&mut self, bytes: usize) {
        let Some(first) = self.entries[self.head..].iter_mut().find(|e| !e.dropped) else { return };
        if bytes >= first.transmit.len {
            return self.consume(1);
        }
        if let Some(size) =
            first.transmit.segment_size.filter(|_| first.transmit.path.dst.is_ipv4())
        {
            let gone = u16::try_from(bytes / usize::from(size).max(1)).unwrap_or(u16::MAX);
            first.transmit.ident = first.transmit.ident.wrapping_add(gone);
        }
        first.start += bytes;
        first.transmit.len -= bytes;
        if first.transmit.segment_size.is_some_and(|s| usize::from(s) >= first.transmit.len) {
            first.transmit.segment_size = None;
        }
    }

    /// Whether nothing is to be sent.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Whether no further entry can be taken before the batch has been drained.
    pub fn is_full(&self) -> bool {
        self.entries.len() == Self::ENTRIES || (self.used == self.end && !self.buf.is_empty())
    }

    /// Drops the entries of `owner`, whose queue pair is gone, of which `which` says so of their bytes: they are skipped
    /// from now on.
    pub fn drop_owner(&mut self, owner: u64, which: impl Fn(&[u8]) -> bool) {
        for e in &mut self.entries[self.head..] {
            let bytes = &self.buf[e.start..e.start + e.transmit.len];
            if e.owner == owner && !e.dropped && which(bytes) {
                e.dropped = true;
                self.live -= 1;
            }
        }
        self.restart_if_empty();
    }

    fn restart_if_empty(&mut self) {
        if self.live == 0 {
            self.entries.clear();
            self.head = 0;
            self.used = self.lead;
        }
    }
}

impl Default for TxBatch {
    fn default() -> Self {
        Self::new(Self::BYTES)
    }
}

impl fmt::Debug for TxBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TxBatch")
            .field("entries", &self.live)
            .field("bytes", &self.entries().map(|(t, _)| t.len).sum::<usize>())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::{Path, ROCE_PORT};
    use proptest::prelude::*;

    fn path() -> Path {
        Path {
            src: [127, 0, 0, 2].into(),
            dst: [127, 0, 0, 3].into(),
            src_port: ROCE_PORT,
            traffic_class: 2,
            hop_limit: 64,
            flow_label: 0,
            scope_id: 0,
        }
    }

    fn meta() -> RxMeta {
        RxMeta { path: path(), ident: None, df: None, gro_index: 0 }
    }

    fn put(tx: &mut TxBatch, byte: u8, len: usize, owner: u64) {
        tx.spare()[..len].fill(byte);
        tx.commit(Transmit { path: path(), ident: 0, len, segment_size: None }, owner);
    }

    fn left(tx: &TxBatch) -> Vec<(u8, usize)> {
        tx.entries().map(|(t, bytes)| (bytes[0], t.len)).collect()
    }

    #[test]
    fn an_empty_datagram_is_one_datagram() {
        let mut rx = RxBatch::new(2, 64);
        rx.commit(meta(), 0, None);
        rx.commit(meta(), 0, Some(0));
        assert_eq!(rx.iter().map(|(_, b)| b.len()).collect::<Vec<_>>(), [0, 0]);
        assert_eq!((rx.datagrams(), rx.bytes(), rx.is_empty()), (2, 0, false));
    }

    #[test]
    fn skipped_buffers_leave_no_datagram() {
        let mut rx = RxBatch::new(2, 64);
        rx.spare().unwrap()[0] = 1;
        rx.skip();
        rx.spare().unwrap()[0] = 2;
        rx.commit(meta(), 1, None);
        assert_eq!(rx.iter().map(|(_, b)| b[0]).collect::<Vec<_>>(), [2]);
        assert!(rx.spare().is_none());
        rx.skip();
        rx.clear();
        assert_eq!((rx.is_empty(), rx.spare_buffers()), (true, 2));
    }

    #[test]
    fn a_send_batch_starts_over_when_it_is_empty() {
        let mut tx = TxBatch::new(100);
        put(&mut tx, 1, 60, 0);
        put(&mut tx, 2, 40, 0);
        assert!(tx.is_full() && tx.spare().is_empty());
        tx.consume(1);
        assert!(tx.is_full(), "the front is free only when all is");
        tx.consume(1);
        assert_eq!((tx.is_empty(), tx.is_full(), tx.spare().len()), (true, false, 100));
        tx.consume(5);
    }

    #[test]
    fn payload_behind_a_bare_header_is_aligned() {
        for capacity in [100, TxBatch::BYTES] {
            let mut tx = TxBatch::new(capacity);
            for _ in 0..2 {
                assert_eq!(tx.spare().len(), capacity);
                assert!(tx.spare()[Bth::LEN..].as_ptr().addr().is_multiple_of(16));
                put(&mut tx, 1, 60, 0);
                tx.consume(1);
            }
        }
    }

    #[test]
    fn no_more_entries_than_promised() {
        let mut tx = TxBatch::default();
        for _ in 0..TxBatch::ENTRIES {
            put(&mut tx, 1, 1, 0);
        }
        assert!(tx.is_full() && tx.spare().is_empty());
    }

    #[test]
    fn entries_of_a_dead_owner_are_passed_over() {
        let mut tx = TxBatch::default();
        for (byte, owner) in [(1, 7), (2, 8), (3, 7), (4, 9)] {
            put(&mut tx, byte, 10, owner);
        }
        tx.drop_owner(7, |_| true);
        tx.drop_owner(7, |_| true);
        assert_eq!(left(&tx), [(2, 10), (4, 10)]);
        tx.consume(1);
        assert_eq!(left(&tx), [(4, 10)]);
        tx.drop_owner(9, |_| true);
        assert!(tx.is_empty() && left(&tx).is_empty());
    }

    #[test]
    fn an_entry_can_go_segment_by_segment() {
        let mut tx = TxBatch::default();
        put(&mut tx, 9, 1, 0);
        tx.drop_owner(0, |_| true);
        put(&mut tx, 8, 4, 1);
        for (byte, i) in tx.spare()[..25].iter_mut().zip(0..) {
            *byte = i;
        }
        tx.commit(Transmit { path: path(), ident: 0, len: 25, segment_size: Some(10) }, 2);
        tx.drop_owner(1, |_| true);
        tx.consume_segments(10);
        let (t, bytes) = tx.entries().next().unwrap();
        assert_eq!((t.len, t.segment_size, bytes[0], t.ident), (15, Some(10), 10, 1));
        tx.consume_segments(10);
        let (t, bytes) = tx.entries().next().unwrap();
        assert_eq!((t.len, t.segment_size, bytes[0], t.ident), (5, None, 20, 2));
        tx.consume_segments(5);
        assert!(tx.is_empty());
    }

    proptest! {
        /// The batch against a plain list of what should be left.
        #[test]
        fn send_batch_keeps_what_was_not_sent(steps in proptest::collection::vec((0u8..4, 1u8..9), 1..200)) {
            let mut tx = TxBatch::new(256);
            let mut model: Vec<(u8, usize, u64)> = Vec::new();
            for (i, (what, n)) in (0u8..=255).cycle().zip(steps) {
                match what {
                    0 | 1 => {
                        let len = usize::from(n) * 3;
                        if !tx.is_full() && tx.spare().len() >= len {
                            put(&mut tx, i, len, u64::from(n % 3));
                            model.push((i, len, u64::from(n % 3)));
                        }
                    }
                    2 => {
                        tx.consume(usize::from(n));
                        model.drain(..usize::from(n).min(model.len()));
                    }
                    _ => {
                        tx.drop_owner(u64::from(n % 3), |_| true);
                        model.retain(|e| e.2 != u64::from(n % 3));
                    }
                }
                prop_assert_eq!(left(&tx), model.iter().map(|e| (e.0, e.1)).collect::<Vec<_>>());
                prop_assert_eq!(tx.is_empty(), model.is_empty());
            }
        }
    }
}
