//! A queue pair: its state, its two halves, and what the application sees of it.
//!
//! The *requester* ([`requester`]) turns work requests into packets and the *completer* ([`completer`])
//! turns responses into completions; together they own the send queue. The *responder* ([`responder`])
//! executes the peer's requests, and answers them ([`respond`]); what it tells of marked packets stands in
//! [`notification`]. What unreliable connections do otherwise
//! stands in [`uc`], what datagrams do in [`ud`]. Each file says which rules it follows.

mod annex;
pub mod attr;
mod coalesce;
mod completer;
mod duplicates;
pub(crate) mod flush;
mod notification;
mod pace;
mod packets;
mod probes;
mod receives;
mod requester;
mod respond;
mod responder;
mod retry;
mod row;
mod seals;
mod selective;
pub(crate) mod state;
#[cfg(test)]
mod tests;
mod uc;
mod ud;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use attr::{AhAttr, QpCap, QpState, QpType, Recovery};
use coalesce::Coalescing;
pub(super) use completer::{scatter_by, scatter_into};
use notification::Notification;
pub(crate) use receives::Receives;
use requester::Requester;
use responder::{Ack, Responder};
use seals::Seals;

use super::batch::Batch;
use super::cc::CongestionControl;
use super::common::Common;
use super::status::WcStatus;
use super::window::{PACKET_CHARGE, WindowId};
use crate::mem::{Access, PdId};
use crate::net::{Ecn, Path};
use crate::queue::{Consumer, Cqe, CqeFlags, CqeKind, QpTag, RecvQueue, SendQueue, SendWqe};
use crate::time::Instant;
use crate::wire::icrc::IpFields;
use crate::wire::num::{Mtu, Pkey, Psn, Qpn};
use crate::wire::{Bth, Opcode};

/// Most READs and atomics in flight, each way.
pub const MAX_RD_ATOMIC: u8 = 128;

/// Packets that a queue pair may send before it is the next one's turn.
const QUANTUM: u32 = 16;

/// What application and engine share of a queue pair.
#[derive(Debug)]
pub struct QpFace {
    qpn: Qpn,
    state: AtomicU8,
    /// Rung and not yet looked at.
    bell: AtomicBool,
    cap: QpCap,
    sig_all: bool,
    kind: QpType,
    srq: Option<u32>,
    /// Where requests are posted.
    pub sq: SendQueue,
    /// Where receives are posted, unless it takes them from a shared queue.
    pub rq: RecvQueue,
}

impl QpFace {
    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Its type.
    pub fn kind(&self) -> QpType {
        self.kind
    }

    /// The shared receive queue that it takes its receives from.
    pub fn srq(&self) -> Option<u32> {
        self.srq
    }

    /// What it was made for.
    pub fn cap(&self) -> QpCap {
        self.cap
    }

    /// Whether every request makes a completion.
    pub fn sig_all(&self) -> bool {
        self.sig_all
    }

    /// Its state. Posting checks it under the lock of the queue; the engine changes it before it empties
    /// or flushes the queue.
    pub fn state(&self) -> QpState {
        QpState::from_raw(self.state.load(Ordering::SeqCst)).unwrap_or(QpState::Err)
    }

    /// Notes that there is something in the send queue. `true`: the engine is to be told.
    pub fn ring(&self) -> bool {
        !self.bell.swap(true, Ordering::SeqCst)
    }

    /// The engine looks now; what is posted later needs another ring.
    pub(crate) fn answer(&self) {
        self.bell.store(false, Ordering::SeqCst);
    }
}

/// How the engine and its driver name a queue pair: a slot, and whose turn in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QpHandle {
    pub(crate) slot: u32,
    pub(crate) turn: u32,
}

impl QpHandle {
    /// As one number.
    pub const fn as_u64(self) -> u64 {
        (self.turn as u64) << 32 | self.slot as u64
    }
}

/// One of the two completion queues of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CqRef {
    pub(crate) cq: u32,
    pub(crate) tag: QpTag,
}

/// Attributes that are set once and read rarely.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) ah: AhAttr,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) sqd_notify: bool,
    pub(crate) port: u8,
    pub(crate) pkey_index: u16,
    pub(crate) qkey: u32,
    /// How it would recover from losses; how it does.
    pub(crate) offers: Recovery,
    pub(crate) recovery: Recovery,
    /// Receive buffer that the peer told of; 0: unknown.
    pub(crate) peer_buffer: u32,
}

/// What has become of an ACK that waits for the peer's next message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// It goes on waiting, until then.
    Until(Instant),
    /// It is to be sent, if it has not left yet.
    Over {
        /// The message has not come in time.
        late: bool,
    },
}

/// What a turn at sending ended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nothing to send until something happens.
    Idle,
    /// More to send, but others first.
    Spent,
    /// The next packet does not fit the batch.
    Full,
    /// More to do, and nothing more of it at this instant.
    Stalled,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) handle: QpHandle,
    pub(crate) qpn: Qpn,
    pub(crate) dest_qp: Qpn,
    pub(crate) state: QpState,
    pub(crate) kind: QpType,
    pub(crate) access: Access,
    pub(crate) pd: PdId,
    pub(crate) mtu: Mtu,
    /// Its partition: that of all packets that it sends, and that it takes.
    pub(crate) pkey: Pkey,
    pub(crate) path: Path,
    /// The fields of `path` as the ICRC wants them.
    ip: IpFields,
    /// Flow control towards the peer, and towards our own address (READ responses).
    pub(crate) windows: Option<(WindowId, WindowId)>,
    pub(crate) send_cq: CqRef,
    pub(crate) recv_cq: CqRef,
    sq: Consumer<SendWqe>,
    pub(crate) rq: Receives,
    req: Requester,
    resp: Responder,
    pub(crate) face: Arc<QpFace>,
    pub(crate) set: Box<Settings>,
    /// On the ring of those with something to send.
    pub(crate) queued: bool,
    /// On the ring of those with a plain ACK to send.
    pub(crate) ack_queued: bool,
    /// Whether its plain ACK waits for another message.
    coalescing: Coalescing,
    /// What its timer is armed for.
    pub(crate) armed: Instant,
    /// Answers and requests left in this turn: neither keeps the other waiting.
    budget: [u32; 2],
    /// Something was sent since a plain ACK left: one that waits goes with it.
    ack_follows: bool,
    /// What leaves before all else, by bits.
    first: u8,
    /// What it tells of packets that came in marked.
    notification: Notification,
    /// What ICRCs have in common.
    seals: Seals,
}

/// Indices into [`Qp::budget`].
const ANSWERS: usize = 0;
const REQUESTS: usize = 1;

/// Bits of [`Qp::first`]: a congestion notification, and what selective repeat sends again. They share a place because
/// each of them is rare, and everybody looks there.
const NOTIFICATION: u8 = 1;
const REPEATS: u8 = 2;

/// PSNs from `from` on to `to`, where `to` is not before `from`. (Distances are signed, and end where the
/// longest message does.)
const fn steps(from: Psn, to: Psn) -> u32 {
    to.raw().wrapping_sub(from.raw()) & 0xff_ffff
}

/// What [`Qp::new`] needs.
#[derive(Debug)]
pub(crate) struct NewQp {
    pub(crate) handle: QpHandle,
    pub(crate) qpn: Qpn,
    pub(crate) kind: QpType,
    pub(crate) pd: PdId,
    pub(crate) cap: QpCap,
    pub(crate) sig_all: bool,
    pub(crate) send_cq: CqRef,
    pub(crate) recv_cq: CqRef,
    pub(crate) sq: (SendQueue, Consumer<SendWqe>),
    pub(crate) rq: RecvQueue,
    pub(crate) receives: Receives,
    pub(crate) cc: Option<Box<dyn CongestionControl>>,
}

const NOWHERE: std::net::Ipv4Addr = std::net::Ipv4Addr::UNSPECIFIED;

impl Qp {
    pub(crate) fn new(new: NewQp) -> Self {
        let face = Arc::new(QpFace {
            qpn: new.qpn,
            state: AtomicU8::new(QpState::Reset as u8),
            bell: AtomicBool::new(false),
            cap: new.cap,
            sig_all: new.sig_all,
            kind: new.kind,
            srq: new.receives.srq(),
            sq: new.sq.0,
            rq: new.rq,
        });
        Self {
            handle: new.handle,
            qpn: new.qpn,
            dest_qp: Qpn::default(),
            state: QpState::Reset,
            kind: new.kind,
            access: Access::empty(),
            pd: new.pd,
            mtu: Mtu::B256,
            pkey: Pkey::DEFAULT,
            path: Path {
                src: NOWHERE.into(),
                dst: NOWHERE.into(),
                src_port: 0,
                traffic_class: 0,
                hop_limit: 0,
                flow_label: 0,
                scope_id: 0,
            },
            ip: IpFields::v4(NOWHERE, NOWHERE, 0, true, 0),
            windows: None,
            send_cq: new.send_cq,
            recv_cq: new.recv_cq,
            sq: new.sq.1,
            rq: new.receives,
            req: Requester::new(new.cap.send_wr, new.cc),
            resp: Responder::new(),
            face,
            set: Box::default(),
            queued: false,
            ack_queued: false,
            coalescing: Coalescing::NEW,
            armed: Instant::FAR_FUTURE,
            budget: [QUANTUM; 2],
            ack_follows: false,
            first: 0,
            notification: Notification::NONE,
            seals: Seals::NONE,
        }
    }

    pub(crate) fn set_path(&mut self, path: Path, ip: IpFields) {
        self.path = path;
        if path.ecn() == Ecn::NotEct && self.req.cc.peek().wants_ecn() {
            self.path.traffic_class |= Ecn::Ect0 as u8;
        }
        self.ip = ip;
        self.seals = Seals::NONE;
    }

    pub(crate) fn set_state(&mut self, state: QpState) {
        self.state = state;
        self.face.state.store(state as u8, Ordering::SeqCst);
    }

    /// Something was posted.
    pub(crate) fn handle_doorbell(&mut self, c: &mut Common) {
        self.face.answer();
        match self.state {
            QpState::Err => self.flush(c),
            QpState::Sqe => self.flush_sends(c),
            _ => {}
        }
    }

    /// Whether packets for it can have an effect.
    pub(crate) fn is_reachable(&self) -> bool {
        matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }

    /// Whether it can go to ERR on its own.
    pub(crate) fn can_fail(&self) -> bool {
        !matches!(self.state, QpState::Reset | QpState::Err)
    }

    /// Sends what it can into `batch`: a congestion notification before all and what is repeated selectively, then answers, then
    /// requests, then a plain ACK if one waits.
    pub(crate) fn send(&mut self, c: &mut Common, batch: &mut Batch<'_>) -> Turn {
        if self.first != 0
            && let Some(turn) = self.send_first(c, batch)
        {
            return turn;
        }
        let before = batch.count();
        let answers = self.send_responses(c, batch);
        let turn = match answers {
            Turn::Full => Turn::Full,
            Turn::Idle | Turn::Spent | Turn::Stalled => match self.send_requests(c, batch) {
                Turn::Idle => answers,
                turn => turn,
            },
        };
        self.ack_follows |= batch.count() > before;
        if turn == Turn::Full {
            return turn;
        }
        // A plain ACK rides along, last: it is the shortest packet there is, and ends a segmented send.
        if turn == Turn::Idle {
            if self.ack_follows && self.resp.has_plain_ack() {
                let waits = c.coalesce && batch.count() == 1 && self.coalesces(c);
                if !waits && !self.send_ack(c, batch) {
                    return Turn::Full;
                }
            }
            self.ack_follows = false;
        }
        self.budget = [QUANTUM; 2];
        turn
    }

    /// Sends what goes before all else. `None`: the rest may follow.
    #[cold]
    fn send_first(&mut self, c: &mut Common, batch: &mut Batch<'_>) -> Option<Turn> {
        if self.first & NOTIFICATION != 0 && !self.send_notification(c, batch) {
            return Some(Turn::Full);
        }
        if self.first & REPEATS != 0 { self.send_repeats(c, batch) } else { None }
    }

    /// Whether there may be something to send besides a plain ACK. It costs little to be wrong.
    pub(crate) fn wants_to_send(&self) -> bool {
        self.first != 0 || self.resp.is_urgent() || self.may_request()
    }

    /// Whether a plain ACK is to be sent, and does not wait for another message.
    pub(crate) fn has_plain_ack(&self) -> bool {
        let waits = |ack| matches!(ack, Ack::Plain(psn) if self.coalescing.is_waiting_at(psn));
        self.resp.has_plain_ack() && !waits(self.resp.ack)
    }

    /// One packet is about to leave by itself, a reply it seems: whether the ACK behind it waits for another message.
    fn coalesces(&mut self, c: &Common) -> bool {
        match self.resp.ack {
            Ack::Plain(psn) => self.coalescing.waits(c.now, psn, &c.config),
            _ => false,
        }
    }

    /// An ACK that waits has just begun to: until when.
    pub(crate) fn list_wait(&mut self) -> Option<Instant> {
        let is_new = self.coalescing.is_waiting() && !self.coalescing.listed;
        is_new.then(|| {
            self.coalescing.listed = true;
            self.coalescing.due()
        })
    }

    /// What was on the list is looked at, because its time has come or because (`all`) nothing waits any more.
    pub(crate) fn end_wait(&mut self, now: Instant, all: bool) -> Waiting {
        if !self.coalescing.listed {
            return Waiting::Over { late: false };
        }
        if self.coalescing.is_waiting() && !all && self.coalescing.due() > now {
            return Waiting::Until(self.coalescing.due());
        }
        self.coalescing.listed = false;
        let late = match self.resp.ack {
            Ack::Plain(psn) if self.coalescing.due() <= now => self.coalescing.expire(psn),
            _ => {
                self.coalescing.leave_early();
                false
            }
        };
        Waiting::Over { late }
    }

    /// What arrived is not acknowledged.
    pub(crate) fn disown(&mut self) {
        self.resp.disown();
    }

    /// Sends what it has to answer and to acknowledge, as far as it fits and keeps to its pace.
    pub(crate) fn send_owed(&mut self, c: &mut Common, batch: &mut Batch<'_>) {
        self.budget[ANSWERS] = QUANTUM;
        self.send_responses(c, batch);
        if self.resp.has_plain_ack() {
            // What does not fit is for the next one.
            let _ = self.send_ack(c, batch);
        }
        self.budget = [QUANTUM; 2];
    }

    /// When [`handle_timeout`](Self::handle_timeout) must be called, at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let is_sender = matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        // A fatal NAK waits behind answers that keep to a pace.
        if is_sender || self.resp.is_dying() { self.req.deadline() } else { None }
    }

    /// A header towards the peer.
    fn bth(&self, opcode: Opcode, psn: Psn) -> Bth {
        Bth {
            opcode: opcode.as_u8(),
            se: false,
            m: true,
            pad_count: 0,
            tver: 0,
            pkey: self.pkey,
            fecn: false,
            becn: false,
            dest_qp: self.dest_qp,
            ack_req: false,
            psn,
        }
    }

    /// What a full packet costs in a window.
    fn unit(&self) -> u64 {
        self.mtu.bytes() as u64 + PACKET_CHARGE
    }

    /// Bytes of the parts: all of it, requester, responder, settings, one entry of the responder's ring.
    #[cfg(test)]
    pub(crate) const fn sizes() -> [usize; 5] {
        [
            size_of::<Self>(),
            size_of::<Requester>(),
            size_of::<Responder>(),
            size_of::<Settings>(),
            size_of::<Option<responder::Resource>>(),
        ]
    }

    /// The skeleton of a completion of this queue pair.
    #[inline]
    fn cqe(&self, kind: CqeKind, wr_id: u64, status: WcStatus) -> Cqe {
        let tag = match kind {
            CqeKind::Send => self.send_cq.tag,
            CqeKind::Recv => self.recv_cq.tag,
        };
        Cqe {
            wr_id,
            qp_slot: tag.slot,
            stamp: tag.stamp,
            qpn: self.qpn.raw(),
            status: status as u8,
            kind,
            flags: CqeFlags::empty(),
            ..Cqe::default()
        }
    }
}
