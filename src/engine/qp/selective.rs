//! Selective repeat: after a loss only what is missing is sent again.
//!
//! *Negotiated.* Only between two ends that were both told of it before RTR; nothing of it is ever sent to others, who get
//! go-back-N as ever. If only one was told, what it says is understood as a sequence NAK by who has offered it.
//!
//! *Responder.* A request ahead of a gap is held, and executed when the gap has closed: nothing is executed out of order, so
//! all rules of RC stay. (To place a WRITE's packets at once, each would need a RETH of its own.) Held are at most
//! [`WINDOW`] PSNs, in memory that was set aside; what is beyond is dropped. Each packet held tells the requester what has
//! arrived: a packet of the form of an atomic acknowledgement with a syndrome that the standard leaves reserved. Its PSN
//! acknowledges all before it, its MSN field is a PSN, and its word says by bits which of the 64 from there on are held.
//! Of many packets that came in at once as many reports leave as tell of all of them.
//! A receiver that is not ready, or an error, throws all away.
//!
//! *Requester.* What lies below the newest packet that arrived and did not arrive is sent once more, and again when something
//! that was sent after it has arrived. If nothing was, the timeout goes back to the oldest, as go-back-N. No PSN is sent
//! [`WINDOW`] or more ahead of the oldest unacknowledged one. Answers that are lost (of READs, atomics, ATOMIC WRITEs and FLUSHes) are asked for again by go-back-N.

use std::fmt;

use super::attr::{QpState, Recovery};
use super::packets::Plan;
use super::requester::{Controller, Requester, is_read_class};
use super::responder::Ack;
use super::{QUANTUM, Qp, REPEATS, REQUESTS, Turn, steps};
use crate::engine::batch::Batch;
use crate::engine::cc::Loss;
use crate::engine::common::Common;
use crate::engine::counters::Counter;
use crate::engine::status::WcStatus;
use crate::wire::headers::{AtomicAckEth, Ext};
use crate::wire::num::{Msn, Mtu, Psn};
use crate::wire::packet::{Packet, PacketBuilder};
use crate::wire::{Aeth, Opcode, Syndrome};

/// PSNs that may be under way, and held.
pub(super) const WINDOW: u32 = 512;
const PLACES: usize = WINDOW as usize;
/// Bytes around a payload: BTH, the largest extended headers of RC, pad and ICRC.
const AROUND: usize = 12 + 36 + 3 + 4;

/// The syndrome of a report: a NAK code that the standard reserves.
pub(super) const REPORT: Syndrome = Syndrome::Reserved(0x7f);

/// The place of a PSN.
const fn place(psn: Psn) -> usize {
    psn.raw() as usize % PLACES
}

/// Requests ahead of a gap.
pub(super) struct Held {
    /// A place for each PSN of the window.
    bytes: Box<[u8]>,
    room: usize,
    /// Length of each; 0: nothing is held there.
    lens: Box<[u16]>,
    count: u32,
    newest: Psn,
    /// From the oldest that no report has told yet, to one past the newest such; the same: all are told.
    untold: (Psn, Psn),
    /// The receiver was not ready: what is ahead comes again anyway.
    refused: bool,
}

impl Held {
    fn new(mtu: Mtu) -> Self {
        let room = mtu.bytes() + AROUND;
        Self {
            bytes: vec![0; room * PLACES].into(),
            room,
            lens: vec![0; PLACES].into(),
            count: 0,
            newest: Psn::default(),
            untold: (Psn::default(), Psn::default()),
            refused: false,
        }
    }

    /// Keeps a packet. `false`: it is kept already, or longer than any that could be executed.
    fn put(&mut self, psn: Psn, datagram: &[u8]) -> bool {
        let at = place(psn);
        let (Ok(len), 0, true) =
            (u16::try_from(datagram.len()), self.lens[at], datagram.len() <= self.room)
        else {
            return false;
        };
        self.bytes[at * self.room..][..datagram.len()].copy_from_slice(datagram);
        self.lens[at] = len;
        if self.count == 0 || psn.distance_from(self.newest) > 0 {
            self.newest = psn;
        }
        let (from, to) = self.untold;
        let is_first = from == to;
        self.untold = (
            if is_first || psn.distance_from(from) < 0 { psn } else { from },
            if is_first || psn.distance_from(to) >= 0 { psn.offset(1) } else { to },
        );
        self.count += 1;
        true
    }

    fn get(&self, psn: Psn) -> Option<&[u8]> {
        let at = place(psn);
        let len = usize::from(self.lens[at]);
        (len > 0).then(|| &self.bytes[at * self.room..][..len])
    }

    /// So many PSNs from `from` on are not ahead any more.
    fn forget(&mut self, from: Psn, psns: u32) {
        for n in 0..psns.min(WINDOW) {
            let len = &mut self.lens[place(from.offset(n))];
            self.count -= u32::from(std::mem::take(len) > 0);
        }
        self.told(from.offset(psns));
    }

    /// Nothing before `upto` is to be told any more.
    fn told(&mut self, upto: Psn) {
        let (from, to) = self.untold;
        if self.count == 0 || upto.distance_from(to) >= 0 {
            self.untold = (to, to);
        } else if upto.distance_from(from) > 0 {
            self.untold = (upto, to);
        }
    }

    /// Whether something is held that no report has told.
    fn has_untold(&self) -> bool {
        self.untold.0 != self.untold.1
    }

    /// The expected request was refused, and all behind it comes again.
    fn refuse(&mut self) {
        self.lens.fill(0);
        self.count = 0;
        self.untold = (self.newest, self.newest);
        self.refused = true;
    }

    /// Where a report begins, and which are held from there on: it tells of the newest, and of what came before, again. But
    /// the oldest that was not told yet comes first, and the others with further reports.
    fn report(&mut self, expected: Psn) -> (Psn, u64) {
        let mut far = steps(expected, self.newest).saturating_sub(63).max(1);
        if self.has_untold() {
            far = far.min(steps(expected, self.untold.0)).max(1);
        }
        let base = expected.offset(far);
        self.told(base.offset(64));
        let held = |n: u32| u64::from(self.lens[place(base.offset(n))] > 0) << n;
        // Beyond the newest nothing is held, and places come round again.
        let most = steps(base, self.newest).min(63);
        (base, (0..=most).map(held).sum())
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, newest, .. } = self;
        f.debug_struct("Held").field("count", count).field("newest", newest).finish_non_exhaustive()
    }
}

/// What the requester knows of what has arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Board {
    arrived: [u64; PLACES / 64],
    /// All before it is acknowledged, and noted as not arrived: its place is that of another.
    base: Psn,
    /// One past the newest that has arrived, as far as reports tell; what is before `next` was sent again, or has arrived.
    newest: Psn,
    next: Psn,
    /// One past what was under way when the last loss showed.
    end: Psn,
    /// One past the newest that was sent before the last repeat: what arrives from there on was sent after it.
    fence: Psn,
    recovers: bool,
}

impl Board {
    const EMPTY: Self = Self {
        arrived: [0; PLACES / 64],
        base: Psn::new(0),
        newest: Psn::new(0),
        next: Psn::new(0),
        end: Psn::new(0),
        fence: Psn::new(0),
        recovers: false,
    };

    fn has(&self, psn: Psn) -> bool {
        self.arrived[place(psn) / 64] >> (place(psn) % 64) & 1 > 0
    }

    fn set(&mut self, psn: Psn, arrived: bool) {
        let (word, bit) = (&mut self.arrived[place(psn) / 64], 1 << (place(psn) % 64));
        *word = if arrived { *word | bit } else { *word & !bit };
    }

    /// All before `una` is acknowledged.
    pub(super) fn settle(&mut self, una: Psn) {
        if !self.recovers {
            return;
        }
        for n in 0..steps(self.base, una).min(WINDOW) {
            self.set(self.base.offset(n), false);
        }
        self.base = una;
        if self.next.distance_from(una) < 0 {
            self.next = una;
        }
        let is_ahead = |psn: Psn| una.distance_from(psn) < 0;
        self.recovers = is_ahead(self.end) || is_ahead(self.newest);
    }

    /// Whether something may be missing that was not sent again.
    fn has_missing(&self) -> bool {
        self.recovers && self.next.distance_from(self.newest) < 0
    }
}

impl Requester {
    fn board(&mut self) -> Option<&mut Option<Box<Board>>> {
        match &mut self.cc {
            Controller::Fixed(_) => None,
            Controller::Custom(custom) => Some(&mut custom.board),
        }
    }
}

impl Qp {
    /// Both ends were told: sets aside what the responder needs.
    pub(super) fn held(&self) -> Option<Box<Held>> {
        (self.set.recovery == Recovery::Selective).then(|| Box::new(Held::new(self.mtu)))
    }

    /// What the requester needs.
    pub(super) fn set_up_board(&mut self) {
        let board = (self.set.recovery == Recovery::Selective).then(|| Box::new(Board::EMPTY));
        if let (Some(_), Controller::Fixed(fixed)) = (&board, &self.req.cc) {
            self.req.cc = Controller::custom(Box::new(*fixed));
        }
        if let Some(place) = self.req.board() {
            *place = board;
        }
    }

    /// A request ahead of a gap. `true`: it is held, or was, and the requester is told.
    pub(super) fn hold(&mut self, c: &mut Common, packet: &Packet<'_>) -> bool {
        let psn = packet.psn();
        let near = steps(self.resp.epsn, psn) < WINDOW;
        let Some(held) = self.resp.held.as_mut().filter(|held| near && !held.refused) else {
            return false;
        };
        self.resp.naked.get_or_insert(c.now);
        if held.put(psn, packet.datagram()) {
            c.count(Counter::HeldRequests);
        } else {
            c.count(Counter::DropRequestAhead);
        }
        self.resp.ack = Ack::Nak(self.resp.epsn, REPORT);
        true
    }

    /// The request at `from` was executed: goes on with what is held behind it.
    #[cold]
    pub(super) fn go_on_with_held(&mut self, c: &mut Common, mut from: Psn) {
        let Some(mut held) = self.resp.held.take() else { return };
        held.refused = false;
        loop {
            held.forget(from, steps(from, self.resp.epsn));
            from = self.resp.epsn;
            let packet = held.get(from).and_then(|bytes| Packet::parse(bytes).ok());
            let Some(packet) = packet.filter(|_| self.is_reachable()) else { break };
            self.handle_request(c, &packet);
            if self.resp.epsn == from {
                // A receiver that is not ready waits for all of it anew; what found no place is as good as lost, alone.
                if self.resp.naked.is_some() {
                    held.refuse();
                } else {
                    held.forget(from, 1);
                }
                break;
            }
        }
        if held.count > 0 && self.is_reachable() {
            // Another gap: it acknowledges, too.
            self.resp.naked = Some(c.now);
            self.resp.ack = Ack::Nak(self.resp.epsn, REPORT);
        }
        self.resp.held = Some(held);
    }

    /// Whether something behind a gap is held.
    pub(super) fn has_held(&self) -> bool {
        self.resp.held.as_ref().is_some_and(|held| held.count > 0)
    }

    /// The expected request was refused: what is behind it comes again.
    pub(super) fn forget_held(&mut self) {
        if let Some(held) = &mut self.resp.held {
            held.refuse();
        }
    }

    /// Sends the reports that wait: of a packet as of a whole window that came in at once. `false`: no room in the batch.
    #[cold]
    pub(super) fn send_report(&mut self, c: &mut Common, batch: &mut Batch<'_>, psn: Psn) -> bool {
        while let Some(held) = &mut self.resp.held {
            let size = PacketBuilder::size(Opcode::RC_ATOMIC_ACK, 0);
            if !batch.takes(&self.path, size) {
                return false;
            }
            let (base, orig) = held.report(self.resp.epsn);
            let aeth = Some(Aeth { syndrome: REPORT, msn: Msn::new(base.raw()) });
            let ext = Ext { aeth, atomic_ack: Some(AtomicAckEth { orig }), ..Ext::default() };
            let (bth, ip) =
                (self.bth(Opcode::RC_ATOMIC_ACK, psn), self.ip.with_ident(batch.ident()));
            let builder = PacketBuilder::new(batch.slot(size), &bth, &ext, 0);
            let size = c.seal(builder, &ip, false);
            batch.commit(&self.path, size, self.handle.as_u64());
            c.count(Counter::OutOfSeqRequest);
            if self.resp.held.as_ref().is_none_or(|held| !held.has_untold()) {
                break;
            }
        }
        self.resp.ack = Ack::Nothing;
        true
    }

    /// A report: some of what was sent has arrived behind a gap. `false`: selective repeat is not in use.
    pub(super) fn note_arrived(&mut self, c: &mut Common, packet: &Packet<'_>) -> bool {
        let Some(mut board) = self.req.board().and_then(Option::take) else { return false };
        board.settle(self.req.una_psn);
        // While it goes back, all is sent again anyway.
        let goes_back = self.req.cursor() != self.req.top_psn || self.req.rnr_until.is_some();
        if !goes_back && let (Some(aeth), Some(word)) = (packet.aeth(), packet.atomic_ack_eth()) {
            let base = Psn::new(aeth.msn.raw());
            let mut overtaken = false;
            for psn in (0..64).filter(|n| word.orig >> n & 1 > 0).map(|n| base.offset(n)) {
                if self.req.is_outside(psn) || steps(self.req.una_psn, psn) >= WINDOW {
                    continue;
                }
                if !board.recovers {
                    let (base, newest, next, end) =
                        (self.req.una_psn, psn, self.req.una_psn, self.req.una_psn);
                    *board = Board {
                        base,
                        newest,
                        next,
                        end,
                        fence: self.req.top_psn,
                        recovers: true,
                        ..Board::EMPTY
                    };
                }
                // Of each window of packets one loss counts.
                if self.req.una_psn.distance_from(board.end) >= 0 {
                    board.end = self.req.top_psn;
                    c.count(Counter::RcvdSeqErr);
                    self.req.forget_probes();
                    self.tell(c.now, |cc| cc.on_loss(c.now, Loss::SequenceNak));
                    if let Some((to_peer, _)) = self.windows {
                        c.windows.lost(to_peer, self.unit());
                    }
                }
                board.set(psn, true);
                if psn.distance_from(board.newest) >= 0 {
                    board.newest = psn.offset(1);
                    overtaken |= psn.distance_from(board.fence) >= 0;
                }
            }
            // What was sent behind the repeats is there, and a repeat is not.
            if overtaken && self.req.una_psn.distance_from(board.next) < 0 {
                board.next = self.req.una_psn;
                board.fence = self.req.top_psn;
            }
        }
        if board.has_missing() {
            self.first |= REPEATS;
        }
        if let Some(place) = self.req.board() {
            *place = Some(board);
        }
        true
    }

    /// Goes back: nothing of what has arrived is relied on.
    pub(super) fn clear_board(&mut self) {
        if let Some(Some(board)) = self.req.board() {
            **board = Board::EMPTY;
        }
    }

    /// Whether something is to be sent again, and may be.
    fn may_repeat(&mut self) -> bool {
        matches!(self.state, QpState::Rts | QpState::Sqd)
            && self.req.rnr_until.is_none()
            && matches!(self.req.board(), Some(Some(board)) if board.has_missing())
    }

    /// Sends again what is missing. `None`: there is no more of that, or it waits for its pace.
    #[cold]
    #[inline(never)]
    pub(super) fn send_repeats(&mut self, c: &mut Common, batch: &mut Batch<'_>) -> Option<Turn> {
        while self.may_repeat() {
            let Some((plan, at)) = self.missing() else { continue };
            if self.is_paced(c) {
                return None;
            }
            if self.budget[REQUESTS] == 0 {
                self.budget = [QUANTUM; 2];
                return Some(Turn::Spent);
            }
            let size = PacketBuilder::size(plan.opcode, plan.payload);
            if !batch.takes(&self.path, size) {
                return Some(Turn::Full);
            }
            let here = (self.req.cur, self.req.cur_packet);
            (self.req.cur, self.req.cur_packet) = at;
            let built = self.build(c, batch, &plan, size);
            (self.req.cur, self.req.cur_packet) = here;
            if built.is_err() {
                // What is missing of it, and of those behind it, stays so.
                self.fail_locally(c, at.0, WcStatus::LocProt);
                continue;
            }
            c.observe(|| plan.gathered(self.qpn));
            c.count(Counter::RetransmittedPkts);
            // Whatever is under way is answered after this.
            self.req.forget_probes();
            self.budget[REQUESTS] -= 1;
            self.pace(c, size + self.path.header_len());
            self.ack_follows = true;
            let fence = self.req.top_psn;
            if let Some(Some(board)) = self.req.board() {
                board.next = plan.psn.offset(plan.psns);
                board.fence = fence;
            }
        }
        self.first &= !REPEATS;
        None
    }

    /// The packet at the next PSN that may be missing, and where it is in the send queue. `None`: it is not missing.
    fn missing(&mut self) -> Option<(Plan, (u32, u32))> {
        let board = self.req.board()?.as_mut()?;
        let psn = board.next;
        if !board.has(psn)
            && let Some(found) = self.packet_at(psn)
        {
            return Some(found);
        }
        self.req.board()?.as_mut()?.next = psn.offset(1);
        None
    }

    /// The packet with this PSN, of a request under way, and where it is in the send queue. Behind one that failed here
    /// nothing is sent again.
    fn packet_at(&mut self, psn: Psn) -> Option<(Plan, (u32, u32))> {
        let mut index = self.req.una;
        let end = self.req.failed.map_or(self.req.fresh, |(failed, _)| failed);
        while index != end {
            let track = self.req.track(index);
            let packet = steps(track.first, psn);
            if packet < track.packets {
                let (wqe, _) = self.sq.get(index)?;
                // A READ asks for all that its first PSN stands for.
                if is_read_class(wqe.op) && !packet.is_multiple_of(track.chunk) {
                    return None;
                }
                let here = (self.req.cur, self.req.cur_packet);
                (self.req.cur, self.req.cur_packet) = (index, packet);
                let plan = self.at_cursor(track);
                (self.req.cur, self.req.cur_packet) = here;
                let mut plan = plan?;
                plan.ack_req = true;
                return Some((plan, (index, packet)));
            }
            index = index.wrapping_add(1);
        }
        None
    }
}
