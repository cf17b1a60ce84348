//! What the application puts into the work queues: plain data, one header and some words per request.
//!
//! The words of a slot hold one of three things: scatter/gather elements, two words each; inline bytes; or the
//! parameters of a bind. The header says which, and how many.

use crate::mem::{Access, MwKind, Sge};
use crate::wire::num::{Lkey, Rkey};

bitflags::bitflags! {
    /// Flags of a send request. Bits are those of `enum ibv_send_flags`.
    #[doc(alias = "ibv_send_flags")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u8 {
        /// Begins only after all earlier READs and atomics have completed.
        const FENCE = 1;
        /// Success makes a completion. (An error always does.)
        const SIGNALED = 2;
        /// The receiver's completion is a solicited one.
        const SOLICITED = 4;
        /// The bytes are in the slot.
        const INLINE = 8;
    }
}

/// What a send request does. Numbers are those of `enum ibv_wr_opcode`.
#[doc(alias = "ibv_wr_opcode")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum SendOp {
    /// Writes the peer's memory.
    Write = 0,
    /// Writes, and completes a receive with immediate data.
    WriteImm = 1,
    /// Fills a receive.
    #[default]
    Send = 2,
    /// Fills a receive, with immediate data.
    SendImm = 3,
    /// Reads the peer's memory.
    Read = 4,
    /// 64-bit compare-and-swap at the peer.
    CompareSwap = 5,
    /// 64-bit fetch-and-add at the peer.
    FetchAdd = 6,
    /// Invalidates a window of this side.
    LocalInv = 7,
    /// Binds a window of this side.
    BindMw = 8,
    /// Fills a receive and invalidates a window of the peer.
    SendInv = 9,
    /// Makes earlier writes visible or persistent.
    Flush = 14,
    /// Writes 8 bytes at once.
    AtomicWrite = 15,
}

impl SendOp {
    /// The opcode of its completion, a number of `enum ibv_wc_opcode`.
    pub const fn wc_opcode(self) -> u8 {
        match self {
            Self::Send | Self::SendImm | Self::SendInv => 0,
            Self::Write | Self::WriteImm => 1,
            Self::Read => 2,
            Self::CompareSwap => 3,
            Self::FetchAdd => 4,
            Self::BindMw => 5,
            Self::LocalInv => 6,
            Self::Flush => 8,
            Self::AtomicWrite => 9,
        }
    }
}

/// A send request in the queue, one cache line. Fields that the operation does not use are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(64))]
pub struct SendWqe {
    /// The application's.
    pub wr_id: u64,
    /// Address at the peer.
    pub remote_addr: u64,
    /// CAS: compare with this. FAA: add this. FLUSH: bytes of the range.
    pub compare_add: u64,
    /// CAS: store this.
    pub swap: u64,
    /// Key at the peer; LOCAL_INV: the window.
    pub rkey: Rkey,
    /// Bytes of payload, or of local buffers for the result.
    pub length: u32,
    /// Bytes in the slot; 0 unless [`SendFlags::INLINE`], else equal to `length`.
    pub inline_len: u32,
    /// Immediate data as a number, or the key that the peer is to invalidate. FLUSH: placement type in the low
    /// four bits, selectivity in the next two.
    pub imm_or_inv: u32,
    /// UD: index of the address handle.
    pub dest: u32,
    /// UD: queue pair at the peer. XRC: number of the shared receive queue.
    pub dest_qpn: u32,
    /// UD: its Q_Key.
    pub dest_qkey: u32,
    /// What to do.
    pub op: SendOp,
    /// How.
    pub flags: SendFlags,
    /// Scatter/gather elements in the slot.
    pub num_sge: u16,
}

/// A receive request in the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecvWqe {
    /// The application's.
    pub wr_id: u64,
    /// Bytes that fit.
    pub length: u32,
    /// Scatter/gather elements in the slot.
    pub num_sge: u16,
}

/// Parameters of a bind. The rest of it (domain and number of the queue pair) the engine knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindWqe {
    /// The window's key of now.
    pub mw: Rkey,
    /// Its key from then on.
    pub new_rkey: Rkey,
    /// The region.
    pub mr: Lkey,
    /// First address, in the address space of the region.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// Rights that the window grants.
    pub access: Access,
    /// The kind of window that the request is for.
    pub kind: MwKind,
}

/// Why a request was not posted. Nothing of it is in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The queue is full until completions are polled.
    #[error("the queue has {depth} slots, all taken")]
    QueueFull {
        /// Its slots.
        depth: u32,
    },
    /// More scatter/gather elements than the queue was made for.
    #[error("more than {max} scatter/gather elements")]
    TooManySge {
        /// What it was made for.
        max: u32,
    },
    /// More inline bytes than the queue was made for.
    #[error("more than {max} inline bytes")]
    InlineTooLong {
        /// What it was made for.
        max: u32,
    },
    /// The buffers together are 4 GiB or more.
    #[error("the buffers together are 4 GiB or more")]
    TooLong,
}

/// Words that `n` scatter/gather elements take.
pub const fn sge_words(n: u32) -> usize {
    2 * n as usize
}

/// Words that `n` inline bytes take.
pub const fn inline_words(n: u32) -> usize {
    n.div_ceil(8) as usize
}

/// Words that a bind takes.
pub const BIND_WORDS: usize = 4;

const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is what is asked for")]
const fn low(word: u64) -> u32 {
    word as u32
}

const fn join(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

/// The first `n` elements in the words of a slot, or as many as there is room for.
pub fn sges(words: &[u64], n: u16) -> impl ExactSizeIterator<Item = Sge> + Clone + '_ {
    words.as_chunks::<2>().0.iter().take(usize::from(n)).map(|&[addr, rest]| Sge {
        addr,
        length: low(rest),
        lkey: Lkey(high(rest)),
    })
}

/// What [`write_sges`] wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Elements.
    pub num_sge: u16,
    /// Bytes of all of them.
    pub length: u32,
}

/// Writes elements into the words of a slot, at most `max`.
///
/// # Errors
/// [`PostError::TooManySge`], [`PostError::TooLong`].
pub fn write_sges(
    words: &mut [u64],
    max: u32,
    list: impl IntoIterator<Item = Sge>,
) -> Result<Written, PostError> {
    let mut done = Written { num_sge: 0, length: 0 };
    let mut pairs = words.as_chunks_mut::<2>().0.iter_mut().take(max as usize);
    for sge in list {
        let pair = pairs.next().ok_or(PostError::TooManySge { max })?;
        *pair = [sge.addr, join(sge.length, sge.lkey.0)];
        done.num_sge = done.num_sge.checked_add(1).ok_or(PostError::TooManySge { max })?;
        done.length = done.length.checked_add(sge.length).ok_or(PostError::TooLong)?;
    }
    Ok(done)
}

/// Copies inline bytes from `offset` on out of the words of a slot. Past the end of the slot there are zeros.
pub fn read_inline(words: &[u64], offset: usize, dst: &mut [u8]) {
    let mut words = words.get(offset / 8..).unwrap_or_default().iter();
    let mut next = || words.next().map_or([0; 8], |word| word.to_le_bytes());
    let shift = offset % 8;
    let (head, rest) = dst.split_at_mut(if shift == 0 { 0 } else { dst.len().min(8 - shift) });
    if !head.is_empty() {
        head.copy_from_slice(&next()[shift..shift + head.len()]);
    }
    for part in rest.chunks_mut(8) {
        part.copy_from_slice(&next()[..part.len()]);
    }
}

/// Copies inline bytes into the words of a slot from `offset` on, up to its end.
pub fn write_inline(words: &mut [u64], offset: usize, src: &[u8]) {
    let mut words = words.get_mut(offset / 8..).unwrap_or_default().iter_mut();
    let mut put = |shift: usize, part: &[u8]| {
        if let Some(word) = words.next() {
            let mut bytes = word.to_le_bytes();
            bytes[shift..shift + part.len()].copy_from_slice(part);
            *word = u64::from_le_bytes(bytes);
        }
    };
    let shift = offset % 8;
    let (head, rest) = src.split_at(if shift == 0 { 0 } else { src.len().min(8 - shift) });
    if !head.is_empty() {
        put(shift, head);
    }
    for part in rest.chunks(8) {
        put(0, part);
    }
}

/// The bind in the words of a slot; `None` if there is none.
pub fn read_bind(words: &[u64]) -> Option<BindWqe> {
    let &[addr, len, keys, rest] = words.first_chunk::<BIND_WORDS>()?;
    // The kind lies in a bit that no right has.
    let kind = if rest & KIND_TYPE2 == 0 { MwKind::Type1 } else { MwKind::Type2 };
    Some(BindWqe {
        mw: Rkey(low(keys)),
        new_rkey: Rkey(high(keys)),
        mr: Lkey(low(rest)),
        addr,
        len,
        access: Access::from_bits_retain(high(rest & !KIND_TYPE2)),
        kind,
    })
}

/// Writes a bind into the words of a slot, which has room for [`BIND_WORDS`].
pub fn write_bind(words: &mut [u64], bind: &BindWqe) {
    if let Some(words) = words.first_chunk_mut::<BIND_WORDS>() {
        let kind = if bind.kind == MwKind::Type2 { KIND_TYPE2 } else { 0 };
        *words = [
            bind.addr,
            bind.len,
            join(bind.mw.0, bind.new_rkey.0),
            join(bind.mr.0, bind.access.bits()) & !KIND_TYPE2 | kind,
        ];
    }
}

const KIND_TYPE2: u64 = 1 << 63;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes() {
        // One cache line each: there is one per slot of every queue.
        assert_eq!(size_of::<SendWqe>(), 64);
        assert_eq!(size_of::<RecvWqe>(), 16);
    }

    #[test]
    fn completions_are_called_as_in_libibverbs() {
        use SendOp as Op;
        let all = [
            (Op::Write, 0, 1),
            (Op::WriteImm, 1, 1),
            (Op::Send, 2, 0),
            (Op::SendImm, 3, 0),
            (Op::Read, 4, 2),
            (Op::CompareSwap, 5, 3),
            (Op::FetchAdd, 6, 4),
            (Op::LocalInv, 7, 6),
            (Op::BindMw, 8, 5),
            (Op::SendInv, 9, 0),
            (Op::Flush, 14, 8),
            (Op::AtomicWrite, 15, 9),
        ];
        for (op, wr, wc) in all {
            assert_eq!((op as u8, op.wc_opcode()), (wr, wc), "{op:?}");
        }
    }

    #[test]
    fn elements_are_counted_and_bounded() {
        let one = Sge { addr: 1, length: u32::MAX, lkey: Lkey(3) };
        let mut words = [0; 7];
        assert_eq!(
            write_sges(&mut words, 2, [Sge { length: 1, ..one }; 3]),
            Err(PostError::TooManySge { max: 2 }),
            "more than allowed, though there is room"
        );
        let got = write_sges(&mut words, 9, [Sge { length: 0, ..one }; 4]);
        assert_eq!(got, Err(PostError::TooManySge { max: 9 }), "more than there is room for");
        assert_eq!(write_sges(&mut words, 3, [one, one]), Err(PostError::TooLong));
        assert_eq!(write_sges(&mut words, 3, []), Ok(Written { num_sge: 0, length: 0 }));
        assert_eq!(sges(&words, u16::MAX).len(), 3, "a count is never believed beyond the slot");
        assert_eq!(sges(&[], 4).len(), 0);
    }

    proptest! {
        #[test]
        fn elements_come_back(list in prop::collection::vec((any::<u64>(), 0u32..1 << 24, any::<u32>()), 0..8)) {
            let list: Vec<Sge> = list
                .into_iter()
                .map(|(addr, length, lkey)| Sge { addr, length, lkey: Lkey(lkey) })
                .collect();
            let mut words = [7; 16];
            let done = write_sges(&mut words, 8, list.iter().copied()).unwrap();
            prop_assert_eq!(done.length, list.iter().map(|sge| sge.length).sum::<u32>());
            prop_assert_eq!(sges(&words, done.num_sge).collect::<Vec<_>>(), list);
        }

        #[test]
        fn inline_bytes_come_back(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..30), 0..5),
            at in 0usize..40,
            len in 0usize..40,
        ) {
            let all = pieces.concat();
            let mut words = vec![0x5555_5555_5555_5555; 20];
            let mut offset = 0;
            for piece in &pieces {
                write_inline(&mut words, offset, piece);
                offset += piece.len();
            }
            let mut model = [0x55; 160];
            model[..all.len()].copy_from_slice(&all);
            let mut got = vec![0; len];
            read_inline(&words, at, &mut got);
            prop_assert_eq!(&got[..], &model[at..at + len]);
        }

        #[test]
        fn inline_never_leaves_the_slot(at in 0usize..100, len in 0usize..100) {
            let mut words = [u64::MAX; 4];
            write_inline(&mut words, at, &vec![1; len]);
            let mut got = vec![9; len];
            read_inline(&words, at, &mut got);
            for (i, b) in got.into_iter().enumerate() {
                prop_assert_eq!(b, u8::from(at + i < 32));
            }
        }

        #[test]
        fn binds_come_back(
            keys: [u32; 3], addr: u64, len: u64, access in 0u32..1 << 21, two: bool,
        ) {
            let bind = BindWqe {
                mw: Rkey(keys[0]),
                new_rkey: Rkey(keys[1]),
                mr: Lkey(keys[2]),
                addr,
                len,
                access: Access::from_bits_retain(access),
                kind: if two { MwKind::Type2 } else { MwKind::Type1 },
            };
            let mut words = [0; 5];
            write_bind(&mut words, &bind);
            prop_assert_eq!(read_bind(&words), Some(bind));
            prop_assert_eq!(words[4], 0);
            prop_assert_eq!(read_bind(&words[..3]), None);
        }
    }
}
