//! Words and FLUSHes at the responder: atomics, ATOMIC WRITE and FLUSH (IBTA 9.4.5, annex A19).
//!
//! *Rules.* Each is remembered for its duplicates: an atomic is answered from its result, ATOMIC WRITE and
//! FLUSH are answered, and none is executed twice. What is placed was visible when it arrived, so a FLUSH for
//! global visibility is one fence. A FLUSH for persistence may take long, since caches are written back line by line:
//! it is a resource as a READ is, advances in pieces when it is its turn to be answered, and others have their
//! turns between. All pieces at one instant of the engine's time share a budget
//! ([`Common::take_flush_budget`]). Its key is looked up for each piece. Atomics and ATOMIC WRITEs behind it wait for
//! it: they are what programs say with that the bytes before are safe. SENDs and WRITEs do not.

use super::Qp;
use super::responder::{INVALID, MAX_LEN, Refusal, Resource, What, Word, WordOp};
use crate::engine::common::Common;
use crate::engine::counters::Counter;
use crate::mem::{Access, AccessError};
use crate::wire::num::Psn;
use crate::wire::opcode::Operation;
use crate::wire::packet::Packet;

/// Selectivity of a FLUSH: the range that it names, or all that its key reaches.
const SEL_RANGE: u8 = 0;
const SEL_REGION: u8 = 1;

/// Bytes that one turn of a FLUSH for persistence writes back.
const PIECE: u64 = 16 << 10;

/// How far a resource that is executed in its turn has come.
pub(super) enum Advance {
    /// It is done, and can be answered.
    Done,
    /// There is more to do; others first.
    More,
    /// Nothing more at this instant.
    NotNow,
}

/// The rights that a FLUSH needs, by its placement type.
pub(super) fn flush_right(packet: &Packet<'_>) -> Result<Access, Refusal> {
    match packet.feth().map_or(0, |feth| feth.plt) {
        1 => Ok(Access::FLUSH_GLOBAL),
        2 => Ok(Access::FLUSH_PERSISTENT),
        3 => Ok(Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT),
        _ => Err(INVALID),
    }
}

impl Qp {
    pub(super) fn execute_atomic(
        &mut self,
        c: &mut Common,
        packet: &Packet<'_>,
    ) -> Result<(), Refusal> {
        let Some(eth) = packet.atomic_eth() else { return Err(INVALID) };
        // An atomic that cannot be remembered must not run: its duplicate would run again.
        if !self.resp.has_place() || packet.pad_count() != 0 {
            return Err(INVALID);
        }
        let op = match packet.info().operation {
            Operation::CompareSwap => WordOp::CompareSwap,
            _ => WordOp::FetchAdd,
        };
        let (va, rkey, operand, compare) = (eth.va, eth.rkey, eth.swap_add, eth.compare);
        self.execute_word(c, packet.psn(), Word { op, va, rkey, operand, compare })
    }

    /// 8 bytes, all at once. It is remembered: a duplicate must not overwrite what was written since.
    pub(super) fn execute_atomic_write(
        &mut self,
        c: &mut Common,
        packet: &Packet<'_>,
    ) -> Result<(), Refusal> {
        let (Some(reth), Ok(bytes)) = (packet.reth(), packet.payload().try_into()) else {
            return Err(INVALID);
        };
        if !self.resp.has_place() || reth.dma_len != 8 || packet.pad_count() != 0 {
            return Err(INVALID);
        }
        let (va, rkey, operand) = (reth.va, reth.rkey, u64::from_ne_bytes(bytes));
        let word = Word { op: WordOp::Write, va, rkey, operand, compare: 0 };
        self.execute_word(c, packet.psn(), word)
    }

    fn execute_word(&mut self, c: &mut Common, psn: Psn, word: Word) -> Result<(), Refusal> {
        if self.resp.is_flushing() {
            c.remote((self.pd, self.qpn), word.rkey, word.va, 8, word.right())?;
            if !word.va.is_multiple_of(8) {
                return Err(INVALID);
            }
            self.resp.accept(psn, 1, What::Word(word));
            return Ok(());
        }
        let what = self.perform(c, word)?;
        self.resp.accept(psn, 1, what);
        Ok(())
    }

    /// Does it, and says what is to be answered.
    fn perform(&self, c: &mut Common, word: Word) -> Result<What, Refusal> {
        // Who sees the word may rely on what was written before it, also if it was held meanwhile.
        c.land_all();
        let target = c.remote((self.pd, self.qpn), word.rkey, word.va, 8, word.right())?;
        if !word.va.is_multiple_of(8) {
            return Err(INVALID);
        }
        let what = match word.op {
            WordOp::CompareSwap => {
                What::Atomic { orig: target.compare_swap(word.compare, word.operand)? }
            }
            WordOp::FetchAdd => What::Atomic { orig: target.fetch_add(word.operand)? },
            WordOp::Write => {
                target.atomic_write(word.operand.to_ne_bytes())?;
                What::Done
            }
        };
        c.count(match word.op {
            WordOp::Write => Counter::RxAtomicWriteRequests,
            _ => Counter::RxAtomicRequests,
        });
        Ok(what)
    }

    /// What was written before becomes visible at once, or persistent in its turn.
    pub(super) fn execute_flush(
        &mut self,
        c: &mut Common,
        packet: &Packet<'_>,
        right: Access,
    ) -> Result<(), Refusal> {
        let (Some(feth), Some(reth)) = (packet.feth(), packet.reth()) else { return Err(INVALID) };
        if self.resp.resources.is_empty() || packet.pad_count() != 0 {
            return Err(INVALID);
        }
        if !self.resp.has_place() {
            return Err(Refusal::NoPlace);
        }
        let (owner, rkey) = ((self.pd, self.qpn), reth.rkey);
        let (va, left) = match feth.sel {
            SEL_RANGE if reth.dma_len <= MAX_LEN => (reth.va, u64::from(reth.dma_len)),
            // A key that reaches nothing is refused below.
            SEL_REGION => c.mrs.reach(rkey).unwrap_or((reth.va, 0)),
            _ => return Err(INVALID),
        };
        let target = c.remote(owner, rkey, va, left, right)?;
        target.make_visible();
        let what = if right.contains(Access::FLUSH_PERSISTENT) {
            What::Flush { va, left, rkey }
        } else {
            c.count(Counter::RxFlushRequests);
            What::Done
        };
        self.resp.accept(packet.psn(), 1, what);
        Ok(())
    }

    /// The turn of a resource that is not done yet.
    pub(super) fn carry_out(
        &mut self,
        c: &mut Common,
        place: usize,
        resource: &Resource,
    ) -> Result<Advance, AccessError> {
        match resource.what {
            What::Flush { left: 0, .. } => {
                c.count(Counter::RxFlushRequests);
                self.resp.set_what(place, What::Done);
                Ok(Advance::Done)
            }
            What::Flush { va, left, rkey } => {
                let bytes = c.take_flush_budget(left.min(PIECE));
                if bytes == 0 {
                    return Ok(Advance::NotNow);
                }
                let owner = (self.pd, self.qpn);
                c.remote(owner, rkey, va, bytes, Access::FLUSH_PERSISTENT)?.make_persistent();
                let (va, left) = (va.wrapping_add(bytes), left - bytes);
                self.resp.set_what(place, What::Flush { va, left, rkey });
                Ok(if left > 0 { Advance::More } else { Advance::Done })
            }
            What::Word(word) => {
                // Its alignment was looked at, so that only the key can be wrong by now.
                let what = self.perform(c, word).map_err(|_| AccessError::UnknownKey)?;
                self.resp.set_what(place, what);
                Ok(Advance::Done)
            }
            What::Read { .. } | What::Atomic { .. } | What::Done => Ok(Advance::Done),
        }
    }

    /// An atomic, ATOMIC WRITE or FLUSH again: it is answered, from what it came to. One that is not done yet
    /// will be answered anyway.
    pub(super) fn duplicate_done(&mut self, c: &mut Common, psn: Psn, operation: Operation) {
        let is_atomic = matches!(operation, Operation::CompareSwap | Operation::FetchAdd);
        let found = self.resp.find(psn).filter(|(_, resource)| match resource.what {
            What::Read { .. } => false,
            What::Atomic { .. } => is_atomic,
            What::Done => !is_atomic,
            What::Flush { .. } => operation == Operation::Flush,
            What::Word(word) => is_atomic != (word.op == WordOp::Write),
        });
        let Some((place, _)) = found else { return c.count(Counter::DropDuplicate) };
        self.resp.answer_again(place, 0);
        c.count(match operation {
            Operation::Flush => Counter::DuplicateFlush,
            Operation::AtomicWrite => Counter::DuplicateAtomicWrite,
            _ => Counter::DuplicateAtomic,
        });
    }
}

impl Word {
    /// The right that it needs.
    const fn right(&self) -> Access {
        match self.op {
            WordOp::Write => Access::REMOTE_WRITE,
            _ => Access::REMOTE_ATOMIC,
        }
    }
}
