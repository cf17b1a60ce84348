//! What a scenario needs of either side: the same verbs, ours and the kernel's.

use std::fmt::Debug;
use std::time::Duration;

use softroce::prelude::*;

use crate::Res;

/// Byte that memory beside a target holds.
pub(crate) const MARK: u8 = 0xe7;
/// Bytes of memory that a side has.
pub(crate) const MEMORY: usize = 4 << 20;

/// Rights, with the numbers of verbs.
pub(crate) const REMOTE: u32 = 1 | 2 | 4 | 8;

/// Where a queue pair is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) gid: Gid,
    pub(crate) qpn: u32,
    /// First PSN that it sends.
    pub(crate) psn: u32,
}

/// How two queue pairs are connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conn {
    pub(crate) mtu: Mtu,
    pub(crate) timeout: u8,
    pub(crate) retries: u8,
    pub(crate) rnr_retries: u8,
    pub(crate) rnr_timer: u8,
    /// READs and atomics in flight.
    pub(crate) depth: u8,
}

/// Memory that a peer may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lent {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Send,
    SendImm(u32),
    SendInv(u32),
    Write,
    WriteImm(u32),
    Read,
    Cas {
        expect: u64,
        new: u64,
    },
    Faa {
        add: u64,
    },
    AtomicWrite,
    /// Of this many bytes.
    Flush(u32),
}

/// A datagram's destination.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dest {
    pub(crate) ah: usize,
    pub(crate) qpn: u32,
    pub(crate) qkey: u32,
}

/// A request: local bytes by offset into the side's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Post {
    pub(crate) id: u64,
    pub(crate) op: Op,
    pub(crate) off: usize,
    pub(crate) len: usize,
    pub(crate) remote: Lent,
    pub(crate) dest: Option<Dest>,
}

/// What both sides' completions say. Statuses and opcodes have the numbers of verbs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) id: u64,
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) len: u32,
    pub(crate) imm: Option<u32>,
    pub(crate) inv: Option<u32>,
    pub(crate) src_qpn: u32,
    pub(crate) grh: bool,
}

/// A side.
pub(crate) trait End {
    fn name(&self) -> &'static str;
    /// Its address of this family.
    fn gid(&self, v6: bool) -> Gid;

    // Memory: all of it is lent to peers, with every right.
    fn lent(&self) -> Lent;
    fn fill(&mut self, off: usize, len: usize, seed: u64) -> Res<()>;
    fn mark(&mut self, off: usize, len: usize) -> Res<()>;
    /// Whether there is the pattern, with `guard` marks on both sides.
    fn check(&mut self, off: usize, len: usize, seed: u64, guard: usize) -> Res<()>;
    fn word(&mut self, off: usize) -> Res<u64>;
    fn set_word(&mut self, off: usize, v: u64) -> Res<()>;
    fn bytes(&mut self, off: usize, len: usize) -> Res<Vec<u8>>;
    /// A region of its own, with these rights; in another protection domain than the queue pairs' if `apart`.
    fn register(&mut self, off: usize, len: usize, access: u32, apart: bool) -> Res<Lent>;

    // Queue pairs, in numbered places, each with completion queues of its own.
    fn create(&mut self, slot: usize, kind: QpType, srq: bool, v6: bool) -> Res<u32>;
    fn connect(
        &mut self,
        slot: usize,
        kind: QpType,
        psn: u32,
        peer: &Address,
        conn: &Conn,
    ) -> Res<()>;
    /// For datagrams.
    fn activate(&mut self, slot: usize, psn: u32, qkey: u32) -> Res<()>;
    /// It is gone in the middle of everything; for the kernel's side, the process that it belongs to is killed.
    fn kill(&mut self) -> Res<()>;
    /// In ERR.
    fn failed(&mut self, slot: usize) -> Res<bool>;
    fn address_handle(&mut self, gid: Gid, v6: bool) -> Res<usize>;
    fn join(&mut self, slot: usize, group: Gid) -> Res<()>;
    /// Binds a window of type 1 or 2, and gives its key.
    fn bind(&mut self, slot: usize, kind: u8, off: usize, len: usize, access: u32) -> Res<Lent>;

    fn recv(&mut self, slot: usize, srq: bool, id: u64, off: usize, len: usize) -> Res<()>;
    fn post(&mut self, slot: usize, post: &Post) -> Res<()>;
    /// The next completion of the send queue, if one comes in time.
    fn sent(&mut self, slot: usize, limit: Duration) -> Res<Option<Done>>;
    fn received(&mut self, slot: usize, limit: Duration) -> Res<Option<Done>>;

    fn counter(&mut self, name: &str) -> Res<u64>;
    /// Everything but the memory is gone.
    fn reset(&mut self) -> Res<()>;
}

/// Bytes that are recognised: another stretch for each seed. The kernel's side makes the same.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
