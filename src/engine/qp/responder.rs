//! The responder: executes the peer's requests.
//!
//! *Owns.* The expected PSN, the message that is open, and the table of READs and atomics that may be
//! asked for again. Answers are queued here and made by [`respond`](super::respond).
//!
//! *Rules* (IBTA 9.7.5, 9.9.3). A request at the expected PSN passes these checks, in this order: opcode
//! sequence; right of the queue pair; READ/atomic resources; a receive to put it into; lengths; key,
//! range and right of memory; alignment. The first that fails decides the NAK. Requests ahead draw one
//! sequence NAK for the gap; requests behind are duplicates: SEND and WRITE are acknowledged again, READ
//! is executed again, an atomic is answered from its saved result, ATOMIC WRITE and FLUSH are answered and not
//! executed. Memory is looked up by key for every
//! packet: a key that dies in the middle of a message ends it.

use super::Qp;
use super::annex::flush_right;
use super::attr::{QpState, Recovery};
use super::selective::Held;
use crate::engine::common::Common;
use crate::engine::counters::Counter;
use crate::engine::elide::scatter_there;
use crate::engine::event::AsyncEvent;
use crate::engine::status::{WcOpcode, WcStatus};
use crate::engine::trace::NicEvent;
use crate::mem::{Access, AccessError};
use crate::queue::{Cqe, CqeFlags, CqeKind};
use crate::time::Instant;
use crate::wire::headers::Reth;
use crate::wire::num::{Msn, Psn, Rkey};
use crate::wire::opcode::{Headers, Opcode, Operation, Position};
use crate::wire::packet::Packet;
use crate::wire::{NakCode, Syndrome};

/// Longest message.
pub(super) const MAX_LEN: u32 = 1 << 31;

/// A message of several packets that has begun and not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Open {
    Nothing,
    Send,
    Write,
}

/// A READ, atomic, ATOMIC WRITE or FLUSH that was accepted, kept for its answer and for duplicates.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resource {
    pub(super) first: Psn,
    pub(super) packets: u32,
    pub(super) msn: Msn,
    pub(super) what: What,
    /// Packet to send next; `packets` when all are sent.
    pub(super) next: u32,
    /// Packet with which this answer began (a duplicate READ may ask for a tail).
    pub(super) start: u32,
    /// All of it was sent once: what is sent now, if anything, answers a duplicate.
    pub(super) answered: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Read {
        va: u64,
        len: u32,
        rkey: Rkey,
    },
    Atomic {
        orig: u64,
    },
    /// An ATOMIC WRITE or FLUSH: done, with nothing to tell.
    Done,
    /// A FLUSH for persistence: what is still to be written back.
    Flush {
        va: u64,
        left: u64,
        rkey: Rkey,
    },
    /// An atomic or ATOMIC WRITE that waits for a FLUSH before it.
    Word(Word),
}

/// What is done to a word of memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word {
    pub(super) op: WordOp,
    pub(super) va: u64,
    pub(super) rkey: Rkey,
    /// What is stored, or added.
    pub(super) operand: u64,
    /// Compare-and-swap: what it must hold.
    pub(super) compare: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WordOp {
    CompareSwap,
    FetchAdd,
    Write,
}

impl Resource {
    pub(super) fn is_pending(&self) -> bool {
        self.next < self.packets
    }
}

/// The answer that follows those of the resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ack {
    Nothing,
    /// Everything up to this PSN is done.
    Plain(Psn),
    /// Anything else: leaves at once.
    Nak(Psn, Syndrome),
}

#[derive(Debug)]
pub(super) struct Responder {
    pub(super) epsn: Psn,
    pub(super) msn: Msn,
    pub(super) open: Open,
    /// The oldest receive belongs to the message: it tells its failure.
    pub(super) taken: bool,
    /// Bytes of the open message received (SEND) or still to come (WRITE).
    bytes: usize,
    write: Reth,
    /// A gap was NAKed, or a receiver-not-ready was, or something behind a gap is held; when.
    pub(super) naked: Option<Instant>,
    /// In ERR with a NAK still to leave.
    pub(super) dying: bool,
    pub(super) ack: Ack,
    /// Ring of `max_dest_rd_atomic` entries, from `oldest` on in the order of their PSNs.
    pub(super) resources: Box<[Option<Resource>]>,
    /// Where the next one goes.
    oldest: usize,
    /// Entries with something to send.
    pub(super) pending: u32,
    /// None of those before it (in the order of PSNs) has something to send.
    answering: usize,
    established: bool,
    /// Requests ahead of a gap, where they are held.
    pub(super) held: Option<Box<Held>>,
}

const NO_WRITE: Reth = Reth { va: 0, rkey: Rkey(0), dma_len: 0 };

impl Responder {
    pub(super) fn new() -> Self {
        Self {
            epsn: Psn::default(),
            msn: Msn::default(),
            open: Open::Nothing,
            taken: false,
            bytes: 0,
            write: NO_WRITE,
            naked: None,
            dying: false,
            ack: Ack::Nothing,
            resources: Box::default(),
            oldest: 0,
            pending: 0,
            answering: 0,
            established: false,
            held: None,
        }
    }

    pub(super) fn reset(&mut self) {
        *self = Self::new();
    }

    /// The queue pair goes to ERR: nothing more is answered, but for a fatal NAK and what precedes it. What was executed
    /// before the first answer that will not come is still acknowledged: its messages have arrived, and were completed
    /// as such.
    pub(super) fn abandon(&mut self) {
        if !self.dying {
            let unanswered = self.first_pending().and_then(|place| self.resources[place]);
            let (upto, msn) = match (unanswered, self.ack) {
                (Some(first), _) => (first.first, first.msn.prev()),
                (None, Ack::Nothing) => (self.epsn, Msn::default()),
                (None, Ack::Plain(_) | Ack::Nak(..)) => (self.epsn, self.msn),
            };
            // Of no message, there is nothing to say.
            let says = msn != Msn::default();
            self.ack = if says { Ack::Plain(upto.prev()) } else { Ack::Nothing };
            self.msn = msn;
            self.forget_pending();
        }
        self.open = Open::Nothing;
        self.taken = false;
    }

    /// What arrived is not acknowledged: its completion was lost.
    pub(super) fn disown(&mut self) {
        if !self.dying {
            self.ack = Ack::Nothing;
            self.forget_pending();
        }
    }

    /// Whether a fatal NAK, and what precedes it, is still to leave.
    pub(super) fn is_dying(&self) -> bool {
        self.dying
    }

    pub(super) fn has_plain_ack(&self) -> bool {
        self.pending == 0 && matches!(self.ack, Ack::Plain(_))
    }

    /// Whether there is an answer that must not wait.
    pub(super) fn is_urgent(&self) -> bool {
        self.pending > 0 || matches!(self.ack, Ack::Nak(..))
    }

    /// The entry whose PSNs contain `psn`, and its place. The newest of them: an old one may be left from
    /// the last time that the PSNs were here.
    pub(super) fn find(&self, psn: Psn) -> Option<(usize, Resource)> {
        let (newer, older) = self.resources.split_at(self.oldest);
        let newer = newer.iter().enumerate();
        let older = older.iter().enumerate().map(|(i, r)| (self.oldest + i, r));
        newer.rev().chain(older.rev()).filter_map(|(i, r)| Some((i, (*r)?))).find(|(_, r)| {
            let d = psn.distance_from(r.first);
            d >= 0 && d.unsigned_abs() < r.packets
        })
    }

    /// The place behind `place`.
    fn after(&self, place: usize) -> usize {
        // No division: this is done for each request.
        if place + 1 < self.resources.len() { place + 1 } else { 0 }
    }

    /// How many entries are older than that at `place`.
    fn age(&self, place: usize) -> usize {
        let n = self.resources.len();
        if place < self.oldest { place + n - self.oldest } else { place - self.oldest }
    }

    /// Whether another READ or atomic may be accepted: it takes the place of the oldest, which must have
    /// been answered. If it is being answered again, its sender has the first answer: it would not send
    /// more than it may.
    pub(super) fn has_place(&self) -> bool {
        let oldest = self.resources.get(self.oldest);
        oldest.is_some_and(|r| r.is_none_or(|r| r.answered || !r.is_pending()))
    }

    /// Enters an accepted READ, atomic, ATOMIC WRITE or FLUSH, which is a message of its own. Only if there
    /// is a place.
    pub(super) fn accept(&mut self, first: Psn, packets: u32, what: What) {
        let msn = self.msn.offset(1);
        let place = self.oldest;
        let Some(entry) = self.resources.get_mut(place) else { return };
        let (next, start, answered) = (0, 0, false);
        let before = entry.replace(Resource { first, packets, msn, what, next, start, answered });
        self.msn = msn;
        self.oldest = self.after(place);
        if self.pending == 0 {
            self.answering = place;
        } else if before.is_some_and(|r| r.is_pending()) {
            self.pending -= 1;
            self.answering = if self.pending == 0 { place } else { self.oldest };
        }
        self.pending += 1;
    }

    /// The entry at `place` is to be answered again, from packet `from` on.
    pub(super) fn answer_again(&mut self, place: usize, from: u32) {
        let Some(Some(r)) = self.resources.get_mut(place) else { return };
        let was_pending = r.is_pending();
        r.next = from;
        r.start = from;
        if self.pending == 0 || self.age(place) < self.age(self.answering) {
            self.answering = place;
        }
        self.pending += u32::from(!was_pending);
    }

    /// The place of the entry with something to send whose PSN is lowest.
    pub(super) fn first_pending(&mut self) -> Option<usize> {
        if self.pending == 0 {
            return None;
        }
        for _ in 0..self.resources.len() {
            if self.resources[self.answering].is_some_and(|r| r.is_pending()) {
                return Some(self.answering);
            }
            self.answering = self.after(self.answering);
        }
        None
    }

    /// Whether something waits, or is done piece by piece, that atomics must not overtake.
    pub(super) fn is_flushing(&self) -> bool {
        let begun = |what| matches!(what, What::Flush { .. } | What::Word(_));
        self.pending > 0 && self.resources.iter().flatten().any(|r| r.is_pending() && begun(r.what))
    }

    /// What the entry at `place` has come to.
    pub(super) fn set_what(&mut self, place: usize, what: What) {
        if let Some(Some(r)) = self.resources.get_mut(place) {
            r.what = what;
        }
    }

    /// One packet of the entry at `place` was sent.
    pub(super) fn answered_one(&mut self, place: usize) {
        if let Some(Some(r)) = self.resources.get_mut(place) {
            r.next += 1;
            if !r.is_pending() {
                r.answered = true;
                self.pending -= 1;
            }
        }
    }

    /// The packet that is sent next ends the answer of the entry at `place`.
    pub(super) fn cut_short(&mut self, place: usize) {
        if let Some(Some(r)) = self.resources.get_mut(place) {
            r.next = r.packets - 1;
        }
    }

    /// Nothing is answered any more.
    pub(super) fn forget_pending(&mut self) {
        self.pending = 0;
        self.resources.fill(None);
    }
}

/// Why a request is not executed.
pub(super) enum Refusal {
    /// Fatal: NAK, then ERR; the status that a receive in use completes with.
    Fatal(NakCode, WcStatus),
    /// No receive is posted.
    NotReady,
    /// A FLUSH above `max_dest_rd_atomic`. rdma_rxe does not count them, so this may be no error of the peer's:
    /// the packet is as good as lost, and comes again when there is a place.
    NoPlace,
}

impl From<AccessError> for Refusal {
    fn from(_: AccessError) -> Self {
        Self::Fatal(NakCode::RemoteAccess, WcStatus::LocAccess)
    }
}

pub(super) const INVALID: Refusal = Refusal::Fatal(NakCode::InvalidRequest, WcStatus::RemInvReq);

impl Qp {
    /// The transition to RTR.
    pub(crate) fn start_responder(&mut self) {
        self.resp.reset();
        self.resp.epsn = Psn::new(self.set.rq_psn);
        self.resp.resources = vec![None; usize::from(self.set.max_dest_rd_atomic)].into();
        self.resp.held = self.held();
    }

    /// Whether READs or atomics of the peer are still being answered.
    pub(crate) fn is_answering(&self) -> bool {
        self.resp.pending > 0
    }

    /// `max_dest_rd_atomic` changed in SQD. None is being answered; answers may be lost, though, and asked for again, so
    /// as many of the newest as fit are kept.
    pub(crate) fn resize_resources(&mut self) {
        let room = usize::from(self.set.max_dest_rd_atomic);
        let (newer, older) = self.resp.resources.split_at(self.resp.oldest);
        let mut kept: Vec<_> = older.iter().chain(newer).copied().filter(Option::is_some).collect();
        kept.drain(..kept.len().saturating_sub(room));
        self.resp.oldest = if kept.len() < room { kept.len() } else { 0 };
        kept.resize(room, None);
        self.resp.resources = kept.into();
        self.resp.answering = 0;
    }

    /// PSN that is expected next, as `query` tells it.
    pub(crate) fn rq_psn(&self) -> Psn {
        self.resp.epsn
    }

    /// A request for this queue pair, its ICRC checked.
    pub(crate) fn handle_request(&mut self, c: &mut Common, packet: &Packet<'_>) {
        if !matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd) {
            c.count(Counter::DropState);
            return;
        }
        self.establish(c);
        let psn = packet.psn();
        match psn.distance_from(self.resp.epsn) {
            0 => match self.execute(c, packet) {
                Ok(()) => {
                    self.accepted(c, packet);
                    if self.resp.naked.is_some() {
                        self.gap_closed(c, psn);
                    }
                }
                Err(refusal) => self.refuse(c, psn, refusal),
            },
            1.. => self.ahead(c, packet),
            _ => self.duplicate(c, packet),
        }
    }

    /// The first packet in RTR is an event: the peer is there.
    pub(super) fn establish(&mut self, c: &mut Common) {
        if self.state == QpState::Rtr && !self.resp.established {
            self.resp.established = true;
            c.event(AsyncEvent::CommEst { qpn: self.qpn.raw() });
        }
    }

    /// What was missing has come: nothing is NAKed any more, and what is held behind it has its turn.
    #[cold]
    fn gap_closed(&mut self, c: &mut Common, psn: Psn) {
        self.resp.naked = None;
        if self.resp.held.is_some() {
            self.go_on_with_held(c, psn);
        }
    }

    /// A packet is missing before this one: one NAK for the gap.
    fn ahead(&mut self, c: &mut Common, packet: &Packet<'_>) {
        let psn = packet.psn();
        c.count(Counter::OutOfSequence);
        let (qpn, expected) = (self.qpn.raw(), self.resp.epsn.raw());
        c.observe(|| NicEvent::Ahead { qpn, psn: psn.raw(), expected });
        if self.hold(c, packet) {
            return;
        }
        let again = match (self.resp.naked, c.config.renak_after) {
            (None, _) => true,
            (Some(at), Some(after)) => c.now.saturating_since(at) >= after,
            (Some(_), None) => false,
        };
        if again {
            if self.set.recovery == Recovery::GoBack0 {
                self.start_over();
            }
            self.resp.naked = Some(c.now);
            let syndrome = Syndrome::Nak(NakCode::SequenceError);
            let epsn = self.resp.epsn;
            self.resp.ack = Ack::Nak(epsn, syndrome);
            c.observe(|| NicEvent::Refused { qpn, psn: epsn.raw(), syndrome });
        } else {
            c.count(Counter::DropRequestAhead);
        }
    }

    /// Go-back-0: the message that is open begins anew. Nobody has learnt of it yet, and its bytes come again to where they
    /// are; a receive that it has taken stays the next one.
    #[cold]
    fn start_over(&mut self) {
        let there = match self.resp.open {
            Open::Nothing => return,
            Open::Send => self.resp.bytes,
            Open::Write => self.resp.write.dma_len as usize - self.resp.bytes,
        };
        // All packets but the last are full.
        let packets = u32::try_from(there / self.mtu.bytes()).unwrap_or(0);
        self.resp.epsn = Psn::new(self.resp.epsn.raw().wrapping_sub(packets));
        self.resp.open = Open::Nothing;
        self.resp.taken = false;
    }

    /// Bookkeeping of a request that was executed.
    fn accepted(&mut self, c: &mut Common, packet: &Packet<'_>) {
        let info = packet.info();
        let psns = match info.operation {
            Operation::Read => self.mtu.packets(packet.reth().map_or(0, |r| r.dma_len)),
            _ => 1,
        };
        self.resp.epsn = packet.psn().offset(psns);
        match info.operation {
            Operation::Send | Operation::Write => {
                if info.position.ends() {
                    self.resp.open = Open::Nothing;
                    if info.operation == Operation::Write {
                        c.count(Counter::RxWriteRequests);
                    }
                }
                // What a NAK complained about has come: its sender must not go back to it again.
                if packet.ack_req() || self.resp.ack != Ack::Nothing {
                    self.resp.ack = Ack::Plain(packet.psn());
                }
            }
            // The answer acknowledges all that came before.
            _ => self.resp.ack = Ack::Nothing,
        }
    }

    pub(super) fn execute(&mut self, c: &mut Common, packet: &Packet<'_>) -> Result<(), Refusal> {
        if packet.opcode() == Opcode::RC_SEND_ONLY && self.resp.open == Open::Nothing {
            // By far the most frequent one: needs no right, and has nothing that others may have.
            return self.execute_send(c, packet, Position::Only, Headers::empty());
        }
        let info = packet.info();
        let fits = match (self.resp.open, info.position.starts()) {
            (Open::Nothing, starts) => starts,
            (Open::Send, starts) => !starts && info.operation == Operation::Send,
            (Open::Write, starts) => !starts && info.operation == Operation::Write,
        };
        if !fits {
            return Err(INVALID);
        }
        let right = match info.operation {
            Operation::Write => Access::REMOTE_WRITE,
            Operation::Read => Access::REMOTE_READ,
            Operation::CompareSwap | Operation::FetchAdd => Access::REMOTE_ATOMIC,
            Operation::Send => Access::empty(),
            Operation::AtomicWrite => Access::REMOTE_WRITE,
            Operation::Flush => flush_right(packet)?,
            _ => return Err(INVALID),
        };
        if !self.access.contains(right) {
            return Err(INVALID);
        }
        match info.operation {
            Operation::Send => self.execute_send(c, packet, info.position, info.headers),
            Operation::Write => self.execute_write(c, packet),
            Operation::Read => self.execute_read(c, packet),
            Operation::AtomicWrite => self.execute_atomic_write(c, packet),
            Operation::Flush => self.execute_flush(c, packet, right),
            _ => self.execute_atomic(c, packet),
        }
    }

    /// Lengths that the position in a message prescribes, and the pad that belongs to the payload.
    #[inline(always)]
    fn check_length(&self, packet: &Packet<'_>, position: Position) -> Result<(), Refusal> {
        let (len, mtu) = (packet.payload().len(), self.mtu.bytes());
        let fits = match position {
            Position::First | Position::Middle => len == mtu,
            Position::Last => (1..=mtu).contains(&len),
            Position::Only => len <= mtu,
        };
        let padded = usize::from(packet.pad_count()) == len.wrapping_neg() & 3;
        if fits && padded { Ok(()) } else { Err(INVALID) }
    }

    /// `position` and `headers` are those of the opcode.
    #[inline(always)]
    fn execute_send(
        &mut self,
        c: &mut Common,
        packet: &Packet<'_>,
        position: Position,
        headers: Headers,
    ) -> Result<(), Refusal> {
        if position.starts() {
            if !self.take_receive(c) {
                return Err(Refusal::NotReady);
            }
            self.resp.taken = true;
            self.resp.bytes = 0;
        }
        self.check_length(packet, position)?;
        let payload = packet.payload();
        let Some((wqe, list)) = self.rq.taken() else { return Err(INVALID) };
        let wr_id = wqe.wr_id;
        self.resp.open = Open::Send;
        if self.resp.bytes + payload.len() > wqe.length as usize {
            c.count(Counter::RespLocalLengthError);
            return Err(Refusal::Fatal(NakCode::InvalidRequest, WcStatus::LocLen));
        }
        let there = c.is_there(packet);
        if scatter_there(there, &c.mrs, self.receive_pd(), list, self.resp.bytes, payload).is_err()
        {
            return Err(Refusal::Fatal(NakCode::RemoteOperational, WcStatus::LocProt));
        }
        self.observe_scattered(c, packet.psn(), self.resp.bytes, payload.len());
        self.resp.bytes += payload.len();
        if position.ends() {
            self.judge_receive(c)?;
            let mut flags = CqeFlags::empty();
            let mut extra = 0;
            if headers.contains(Headers::IMMDT)
                && let Some(imm) = packet.immdt()
            {
                flags |= CqeFlags::WITH_IMM;
                extra = imm.0;
            }
            if headers.contains(Headers::IETH)
                && let Some(ieth) = packet.ieth()
            {
                // The key is dead before the application learns of it.
                c.mrs
                    .invalidate(self.pd, self.qpn, ieth.rkey)
                    .map_err(|_| Refusal::Fatal(NakCode::RemoteAccess, WcStatus::LocAccess))?;
                flags |= CqeFlags::WITH_INV;
                extra = ieth.rkey.0;
            }
            let byte_len = u32::try_from(self.resp.bytes).unwrap_or(u32::MAX);
            self.complete_with(c, wr_id, packet.se(), |cqe| Cqe {
                opcode: WcOpcode::Recv as u8,
                byte_len,
                flags,
                imm_or_inv: extra,
                ..cqe
            });
            self.resp.msn = self.resp.msn.offset(1);
        }
        Ok(())
    }

    fn execute_write(&mut self, c: &mut Common, packet: &Packet<'_>) -> Result<(), Refusal> {
        let info = packet.info();
        if info.has_imm() {
            if !self.take_receive(c) {
                return Err(Refusal::NotReady);
            }
            self.resp.taken = true;
        }
        self.check_length(packet, info.position)?;
        let payload = packet.payload();
        let len = payload.len();
        if let Some(reth) = packet.reth() {
            if reth.dma_len > MAX_LEN {
                return Err(INVALID);
            }
            if reth.dma_len > 0 {
                // The whole range at once: nothing is placed of a WRITE that does not fit.
                c.remote(
                    (self.pd, self.qpn),
                    reth.rkey,
                    reth.va,
                    u64::from(reth.dma_len),
                    Access::REMOTE_WRITE,
                )?;
            }
            self.resp.write = reth;
            self.resp.bytes = reth.dma_len as usize;
        }
        self.resp.open = Open::Write;
        let fits =
            if info.position.ends() { len == self.resp.bytes } else { len < self.resp.bytes };
        if !fits {
            return Err(INVALID);
        }
        if len > 0 {
            let Reth { va, rkey, dma_len } = self.resp.write;
            let at = va.wrapping_add((dma_len as usize - self.resp.bytes) as u64);
            let there = c.is_there(packet);
            if c.is_watched() {
                c.place((self.pd, self.qpn), rkey, at, payload, there)?;
            } else {
                let right = Access::REMOTE_WRITE;
                let target = c.mrs.remote(self.pd, self.qpn, rkey, at, len as u64, right)?;
                if there {
                    target.write_from(0, payload);
                }
            }
            self.resp.bytes -= len;
        }
        if info.position.ends() {
            if let Some(imm) = packet.immdt() {
                self.judge_receive(c)?;
                let len = self.resp.write.dma_len;
                self.complete_receive(
                    c,
                    packet,
                    WcOpcode::RecvWriteImm,
                    len,
                    CqeFlags::WITH_IMM,
                    imm.0,
                );
            }
            self.resp.msn = self.resp.msn.offset(1);
        }
        Ok(())
    }

    fn execute_read(&mut self, c: &mut Common, packet: &Packet<'_>) -> Result<(), Refusal> {
        let Some(reth) = packet.reth() else { return Err(INVALID) };
        if !self.resp.has_place() || reth.dma_len > MAX_LEN || packet.pad_count() != 0 {
            return Err(INVALID);
        }
        if reth.dma_len > 0 {
            let len = u64::from(reth.dma_len);
            c.remote((self.pd, self.qpn), reth.rkey, reth.va, len, Access::REMOTE_READ)?;
        }
        let what = What::Read { va: reth.va, len: reth.dma_len, rkey: reth.rkey };
        self.resp.accept(packet.psn(), self.mtu.packets(reth.dma_len), what);
        c.count(Counter::RxReadRequests);
        Ok(())
    }

    /// Whether the receive in use, which is about to complete, may succeed.
    #[inline]
    pub(super) fn judge_receive(&self, c: &mut Common) -> Result<(), Refusal> {
        if c.is_watched()
            && let Some(status) = c.judge(self.qpn.raw(), CqeKind::Recv)
        {
            return Err(Refusal::Fatal(NakCode::RemoteOperational, status));
        }
        Ok(())
    }

    pub(super) fn complete_receive(
        &mut self,
        c: &mut Common,
        packet: &Packet<'_>,
        opcode: WcOpcode,
        byte_len: u32,
        flags: CqeFlags,
        imm_or_inv: u32,
    ) {
        let src_qpn = packet.deth().map_or(self.dest_qp, |deth| deth.src_qp).raw();
        let fill = |cqe| Cqe { opcode: opcode as u8, byte_len, flags, imm_or_inv, src_qpn, ..cqe };
        match self.rq.taken().map(|(wqe, _)| wqe.wr_id) {
            Some(wr_id) => self.complete_with(c, wr_id, packet.se(), fill),
            None => self.resp.taken = false,
        }
    }

    /// Completes the receive that was taken, which is this one, with what `fill` makes of the skeleton.
    #[inline(always)]
    fn complete_with(
        &mut self,
        c: &mut Common,
        wr_id: u64,
        solicited: bool,
        fill: impl FnOnce(Cqe) -> Cqe,
    ) {
        let cqe = Cqe {
            src_qpn: self.dest_qp.raw(),
            ..self.cqe(CqeKind::Recv, wr_id, WcStatus::Success)
        };
        self.end_taken(c, fill(cqe), solicited);
        c.count(Counter::RdmaRecvs);
        c.received = true;
        self.resp.taken = false;
    }

    fn refuse(&mut self, c: &mut Common, psn: Psn, refusal: Refusal) {
        match refusal {
            Refusal::NotReady => {
                c.count(Counter::OutOfBuffer);
                // What is in flight behind it is not a gap: it waits with its sender.
                self.resp.naked = Some(c.now);
                let timer = self.set.min_rnr_timer;
                let syndrome = Syndrome::RnrNak { timer };
                self.resp.ack = Ack::Nak(psn, syndrome);
                let qpn = self.qpn.raw();
                c.observe(|| NicEvent::Refused { qpn, psn: psn.raw(), syndrome });
                self.forget_held();
            }
            Refusal::NoPlace => {
                c.count(Counter::DropFlush);
                // The gap that it leaves shows at once; if it was there before, what is held behind it waits on.
                if !self.has_held() {
                    self.resp.naked = None;
                }
            }
            Refusal::Fatal(code, status) => {
                self.resp.naked = None;
                self.die(c, psn, code, status);
                self.forget_held();
            }
        }
    }

    /// A fatal NAK: it leaves after the answers that precede it; nothing more is executed.
    pub(super) fn die(&mut self, c: &mut Common, psn: Psn, code: NakCode, status: WcStatus) {
        let syndrome = Syndrome::Nak(code);
        self.resp.ack = Ack::Nak(psn, syndrome);
        let qpn = self.qpn.raw();
        c.observe(|| NicEvent::Refused { qpn, psn: psn.raw(), syndrome });
        self.resp.dying = true;
        if code == NakCode::RemoteAccess {
            c.count(Counter::RespRemoteAccessErrors);
        }
        // The application learns of it by the receive in use, else by an event.
        if !self.resp.taken || !self.fail_receive(c, status) {
            let qpn = self.qpn.raw();
            c.event(match code {
                NakCode::RemoteAccess => AsyncEvent::QpAccessErr { qpn },
                _ => AsyncEvent::QpReqErr { qpn },
            });
        }
        self.enter_err(c);
    }

    /// Completes the receive that was taken with an error. `false`: there is none.
    pub(super) fn fail_receive(&mut self, c: &mut Common, status: WcStatus) -> bool {
        let failed =
            self.end_receive(c, status, true, |cqe| Cqe { opcode: WcOpcode::Recv as u8, ..cqe });
        if failed {
            c.count(Counter::RespCqeError);
        }
        failed
    }
}
