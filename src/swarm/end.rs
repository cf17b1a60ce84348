//! One end of a connection: its objects, what it posts, and what becomes of it.

use std::collections::VecDeque;
use std::sync::Arc;

use super::inbox::{Inbox, Slots};
use super::loose::{Disorder, Loose};
use super::model::{Accepted, Answer, Effect, Message, Posted, Stream};
use super::plan::{Bad, Conn, Kind, Op, Service, WORDS};
use super::request::{Ready, prepare_bad};
use crate::time::Instant;
use crate::verbs::{
    Access, CompletionQueue, MemoryRegion, MemoryWindow, MwType, ProtectionDomain, QpAttr, QpState,
    QpType, QueuePair, Recovery, RemoteMr, RemoteSlice, Sge, SharedReceiveQueue, WcOpcode,
    WcStatus, WorkCompletion,
};

/// Number of a life within those of requests.
const LIFE_SHIFT: u32 = 40;

/// The window of an end, as its owner and its user see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lent {
    Nothing,
    /// A request to bind is under way.
    Binding(Key),
    Bound(Key),
    /// An invalidation is under way.
    Dying(Key),
    Dead(Key),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) rkey: u32,
    pub(super) from: usize,
    pub(super) len: usize,
}

/// The objects of an end. They go with its host.
#[derive(Debug)]
pub(super) struct Gear {
    pub(super) qp: QueuePair,
    pub(super) cq: CompletionQueue,
    pub(super) rcq: CompletionQueue,
    pd: ProtectionDomain,
    pub(super) source: Arc<MemoryRegion>,
    landing: Slots,
    /// Its own receives, unless it takes them from a shared queue.
    pub(super) inbox: Option<Inbox>,
    /// What the peer writes to.
    pub(super) target: Option<MemoryRegion>,
    /// What the peer may read only.
    pub(super) limited: MemoryRegion,
    pub(super) window: MemoryWindow,
    pub(super) gone: Sge,
    /// Bytes of its receives.
    room: usize,
}

/// What a peer tells about itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    pub(super) target: RemoteMr,
    pub(super) limited: RemoteMr,
    /// The word that all count with.
    counter: RemoteMr,
    /// Bytes of each of its receives.
    pub(super) room: usize,
    pub(super) lent: Lent,
}

/// A request under way, and what must be done when it is over.
#[derive(Clone, Copy, Debug)]
struct Pending {
    index: usize,
    slot: Option<(usize, usize, usize)>,
    local: Option<Lent>,
}

/// Something to tell the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Note {
    /// A request was posted that will break it.
    Breaks,
    /// A message was posted that is longer than its receives.
    Overflows,
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct End {
    pub(super) gear: Option<Gear>,
    pub(super) told: Told,
    pub(super) stream: Stream,
    /// What its requests do at the peer, if it is unreliable.
    pub(super) loose: Option<Loose>,
    pub(super) next_op: usize,
    pub(super) next_post: Instant,
    /// The last receive that it took from a shared queue.
    last_shared: Option<u64>,
    /// How often it has told in this life that it takes none any more.
    pub(super) last_told: u32,
    /// A FLUSH has completed: what was written before it is there.
    pub(super) flushed: bool,
    /// There is a reason for it to be in ERR.
    pub(super) may_flush: bool,
    /// There is a reason for its peer not to answer.
    pub(super) may_time_out: bool,
    /// There is a reason for its peer to refuse access.
    pub(super) may_be_refused: bool,
    /// There is a reason for its peer not to be ready.
    pub(super) may_be_kept_waiting: bool,
    /// There are reasons for one receive to end like each of these.
    pub(super) spoils: Vec<WcStatus>,
    pending: VecDeque<Pending>,
    free: Vec<usize>,
    last_window_use: Option<usize>,
    life: u64,
    /// What its FETCH AND ADDs on the shared word have brought.
    pub(super) counts: Vec<u64>,
    pub(super) counts_posted: u64,
}

const LANDINGS: usize = 20;

impl Gear {
    pub(super) fn new(
        pd: &ProtectionDomain,
        source: &Arc<MemoryRegion>,
        queues: [&CompletionQueue; 2],
        plan: &Conn,
        shared: Option<(&SharedReceiveQueue, usize)>,
    ) -> crate::verbs::Result<Self> {
        let kind = match plan.service {
            Service::Rc => QpType::Rc,
            Service::Uc => QpType::Uc,
        };
        let mut qp =
            pd.create_qp(kind, queues[0]).recv_cq(queues[1]).depth(plan.sends, plan.receives);
        if plan.selective {
            qp = qp.recovery(Recovery::Selective);
        }
        if plan.v6 {
            qp = qp.gid_index(v6_index(pd)?);
        }
        let inbox = match shared {
            Some((srq, _)) => {
                qp = qp.srq(srq);
                None
            }
            None => Some(Inbox::new(pd, plan.receives, plan.max_len, false)?),
        };
        let gone = pd.alloc_mr(64, Access::LOCAL)?;
        let target = pd.alloc_mr(plan.target, TARGET)?;
        let pattern: Vec<u8> = (0..=250).cycle().take(plan.target).collect();
        target.write(0, &pattern);
        Ok(Self {
            qp: qp.build()?,
            cq: queues[0].clone(),
            rcq: queues[1].clone(),
            pd: pd.clone(),
            source: Arc::clone(source),
            landing: Slots::new(pd, LANDINGS, plan.max_len.max(8))?,
            inbox,
            target: Some(target),
            limited: pd.alloc_mr(64, Access::LOCAL | Access::REMOTE_READ)?,
            window: pd.alloc_mw(window_kind(plan))?,
            gone: gone.sge(..),
            room: shared.map_or(plan.max_len, |(_, room)| room),
        })
    }

    pub(super) fn told(&self, counter: &MemoryRegion) -> Option<Told> {
        Some(Told {
            target: self.target.as_ref()?.remote(),
            limited: self.limited.remote(),
            counter: counter.remote(),
            room: self.room,
            lent: Lent::Nothing,
        })
    }

    pub(super) fn memory(&self) -> Option<Vec<u8>> {
        self.target.as_ref().map(|t| t.to_vec(0..t.len()))
    }

    /// A new window for a new life, and a target if it is gone.
    pub(super) fn renew(&mut self, plan: &Conn) -> crate::verbs::Result<()> {
        self.window = self.pd.alloc_mw(window_kind(plan))?;
        if self.target.is_none() {
            self.target = Some(self.pd.alloc_mr(plan.target, TARGET)?);
        }
        Ok(())
    }
}

/// A message of a host's pattern, and where it lies.
pub(super) fn gather(
    source: &MemoryRegion,
    src: usize,
    pieces: usize,
    len: usize,
) -> (Vec<Sge>, Vec<u8>) {
    let mut sges = Vec::with_capacity(pieces);
    let mut bytes = Vec::with_capacity(len);
    for i in 0..pieces {
        let n = len * (i + 1) / pieces - len * i / pieces;
        let at = (src + 4099 * i) % (super::plan::SOURCE - n);
        sges.push(source.sge(at..at + n));
        let old = bytes.len();
        bytes.resize(old + n, 0);
        source.read(at, &mut bytes[old..]);
    }
    (sges, bytes)
}

fn window_kind(plan: &Conn) -> MwType {
    if plan.type1 { MwType::Type1 } else { MwType::Type2 }
}

/// Rights of a target.
const TARGET: Access = Access::REMOTE.union(Access::MW_BIND).union(Access::FLUSH_GLOBAL);

pub(super) fn v6_index(pd: &ProtectionDomain) -> crate::verbs::Result<u16> {
    let gids = pd.context().gids()?;
    let v6 = gids.iter().position(|g| g.gid.ip().is_some_and(|ip| ip.is_ipv6()));
    Ok(v6.and_then(|i| u16::try_from(i).ok()).unwrap_or(0))
}

impl End {
    pub(super) fn new(
        gear: Gear,
        told: Told,
        service: Service,
        mtu: usize,
        memory: Vec<u8>,
    ) -> Self {
        Self {
            gear: Some(gear),
            told,
            loose: (service == Service::Uc).then(|| Loose::new(&memory)),
            stream: Stream::new(mtu, memory),
            next_op: 0,
            next_post: Instant::ZERO,
            last_shared: None,
            last_told: 0,
            flushed: false,
            may_flush: false,
            may_time_out: false,
            may_be_refused: false,
            may_be_kept_waiting: false,
            spoils: Vec::new(),
            pending: VecDeque::new(),
            free: (0..LANDINGS).collect(),
            last_window_use: None,
            life: 0,
            counts: Vec::new(),
            counts_posted: 0,
        }
    }

    /// The connection begins anew: nothing is in any queue.
    pub(super) fn renew(&mut self, told: Told, service: Service, mtu: usize, memory: Vec<u8>) {
        let (counts, next_op) = (std::mem::take(&mut self.counts), self.next_op);
        let (life, posted, at) = (self.life + 1, self.counts_posted, self.next_post);
        if let Some(gear) = self.gear.take() {
            (0..LANDINGS).for_each(|slot| gear.landing.clean(slot));
            *self = Self::new(gear, told, service, mtu, memory);
        }
        (self.counts, self.next_op, self.life) = (counts, next_op, life);
        (self.counts_posted, self.next_post) = (posted, at);
    }

    /// Deregisters the target, unless a window is on it. Whether it is gone.
    pub(super) fn deregister(&mut self) -> Result<bool, String> {
        let Some(gear) = &mut self.gear else { return Ok(false) };
        if !matches!(self.told.lent, Lent::Nothing | Lent::Dead(_)) {
            return Ok(false);
        }
        let Some(target) = gear.target.take() else { return Ok(false) };
        target.deregister().map_err(|e| format!("a region without windows stays: {e}"))?;
        Ok(true)
    }

    pub(super) fn state(&self) -> Option<QpState> {
        self.gear.as_ref().and_then(|g| g.qp.state().ok())
    }

    /// Posts receives if no more than `low` of its own are left. How many.
    pub(super) fn post_receives(&mut self, low: u32) -> Result<usize, String> {
        let Some(gear) = &mut self.gear else { return Ok(0) };
        match &mut gear.inbox {
            Some(inbox) if inbox.outstanding() <= low as usize => inbox.refill(&gear.qp),
            _ => Ok(0),
        }
    }

    /// Receives of its own that have not come back.
    pub(super) fn receives_out(&self) -> usize {
        let inbox = self.gear.as_ref().and_then(|g| g.inbox.as_ref());
        inbox.map_or(0, Inbox::outstanding)
    }

    /// Whether it takes its receives from a shared queue.
    pub(super) fn is_shared(&self) -> bool {
        self.gear.as_ref().is_some_and(|g| g.inbox.is_none())
    }

    /// Whether, being in ERR, it has told that it takes no more receives from a shared queue.
    pub(super) fn has_left(&self) -> bool {
        !self.is_shared() || self.last_told == 1
    }

    /// Posts up to `batch` requests. How many, and what the peer must know. `peer` is what it lends;
    /// `unused`: it makes no use of what is lent to it.
    pub(super) fn post(
        &mut self,
        ops: &[Op],
        batch: usize,
        peer: &mut Told,
        unused: bool,
    ) -> Result<(usize, Vec<Note>), String> {
        let Some(gear) = self.gear.take() else { return Ok((0, Vec::new())) };
        let room = gear.qp.cap().send_wr as usize - self.stream.outstanding();
        let mut ready = Vec::new();
        let mut notes = Vec::new();
        while ready.len() < batch.min(room) && self.next_op < ops.len() && !self.free.is_empty() {
            let op = &ops[self.next_op];
            let kind = self.kind_now(&gear, op, peer, unused);
            ready.push(self.prepare(&gear, op, kind, peer, &mut notes));
            self.next_op += 1;
            if ready.last().is_some_and(|r| r.is_verb(&gear)) {
                break;
            }
        }
        let verb = ready.last().filter(|r| r.is_verb(&gear));
        let list = &ready[..ready.len() - usize::from(verb.is_some())];
        let mut posted = gear.qp.post_send(list.iter().map(|r| r.wr(&gear)));
        if let (Some(verb), Ok(())) = (verb, &posted) {
            posted = gear.qp.bind_mw(verb.wr(&gear)).map(drop);
        }
        self.gear = Some(gear);
        match posted {
            Ok(()) => Ok((ready.len(), notes)),
            Err(e) => Err(format!("{room} slots of the send queue are free, but: {e}")),
        }
    }

    /// What is posted instead of what cannot be now.
    fn kind_now(&self, gear: &Gear, op: &Op, peer: &Told, unused: bool) -> Kind {
        if self.loose.is_some() {
            return match op.kind {
                Kind::Bad(Bad::Local | Bad::TooLong | Bad::WriteBeyond | Bad::Right) => op.kind,
                Kind::Bad(_) => Kind::Bad(Bad::Key),
                kind => kind,
            };
        }
        let own = self.told.lent;
        let is_bound = matches!(own, Lent::Bound(_));
        let type1 = gear.window.kind() == MwType::Type1;
        // One of type 1 may be bound to something else at any time.
        let is_free = matches!(own, Lent::Nothing | Lent::Dead(_)) || type1 && is_bound && unused;
        let may_bind = is_free && gear.target.is_some();
        let bound = matches!(peer.lent, Lent::Bound(_));
        match op.kind {
            Kind::SendInv if !bound || type1 => Kind::Send,
            Kind::BindMw if !may_bind => Kind::Write,
            Kind::LocalInv if !is_bound || !unused => Kind::Read,
            Kind::Bad(Bad::DeadWindow) if !matches!(peer.lent, Lent::Dead(_)) => {
                Kind::Bad(Bad::Key)
            }
            Kind::Bad(Bad::WindowBeyond) if !bound => Kind::Bad(Bad::WriteBeyond),
            kind => kind,
        }
    }

    /// Where a request goes: place in the target, and key.
    fn place(&mut self, op: &Op, len: usize, peer: &Told) -> (usize, u32) {
        let data = usize::try_from(peer.target.len).unwrap_or(0) - WORDS;
        let (lo, hi, rkey, window) = match peer.lent {
            Lent::Bound(k) if op.window && k.len >= len => (k.from, k.from + k.len, k.rkey, true),
            _ => (0, data, peer.target.rkey, false),
        };
        if window {
            self.last_window_use = Some(self.stream.posted());
        }
        let room = (hi - lo - len) as u64;
        // Often the very end: what counts bytes counts wrong there.
        let at = if op.at.is_multiple_of(5) { room } else { op.at % (room + 1) };
        (lo + usize::try_from(at).unwrap_or(0), rkey)
    }

    /// Where 8 aligned bytes go.
    fn place_word(&mut self, op: &Op, peer: &Told) -> (usize, u32) {
        // Windows begin at multiples of 8, targets too.
        let (at, rkey) = self.place(op, 8, peer);
        (at & !7, rkey)
    }

    fn id(&self) -> u64 {
        self.life << LIFE_SHIFT | self.stream.posted() as u64
    }

    /// Makes a request, and tells the model.
    fn prepare(
        &mut self,
        gear: &Gear,
        op: &Op,
        kind: Kind,
        peer: &mut Told,
        notes: &mut Vec<Note>,
    ) -> Ready {
        let id = self.id();
        let mut ready = Ready {
            id,
            op: *op,
            kind,
            sges: Vec::new(),
            bytes: None,
            remote: peer.target.at(0),
            imm: u32::try_from(op.value >> 32).unwrap_or(0),
            compare: 0,
            range: (0, 0),
            fence: op.fence,
        };
        let mut posted = Posted {
            id,
            opcode: WcOpcode::Send,
            signaled: op.signaled,
            fence: op.fence,
            fails: None,
            effect: Effect::Nothing,
            answer: Answer::Nothing,
            message: None,
        };
        let mut pending = Pending { index: self.stream.posted(), slot: None, local: None };
        match kind {
            Kind::Send | Kind::SendImm | Kind::SendInv | Kind::Write | Kind::WriteImm => {
                self.prepare_bytes(gear, peer, &mut ready, &mut posted);
            }
            Kind::Read | Kind::CompareSwap | Kind::FetchAdd | Kind::Count => {
                self.prepare_answered(gear, peer, &mut ready, &mut posted, &mut pending);
            }
            Kind::AtomicWrite => self.prepare_atomic_write(gear, peer, &mut ready, &mut posted),
            Kind::Flush => {
                posted.opcode = WcOpcode::Flush;
                let (at, rkey) = self.place(op, op.len, peer);
                ready.remote = RemoteSlice { rkey, ..peer.target.at(at as u64) };
            }
            Kind::BindMw => {
                posted.opcode = WcOpcode::BindMw;
                let data = gear.target.as_ref().map_or(0, MemoryRegion::len) - WORDS;
                let from = usize::try_from(op.at % 4).unwrap_or(0) * 24;
                ready.range = (from, data - from - usize::from(op.at & 64 != 0) * 40);
                let rkey = gear.window.rkey();
                let rkey = rkey & !0xff | rkey.wrapping_add(1) & 0xff;
                let key = Key { rkey, from, len: ready.range.1 };
                self.told.lent = Lent::Binding(key);
                pending.local = Some(Lent::Bound(key));
            }
            Kind::LocalInv => {
                posted.opcode = match gear.window.kind() {
                    MwType::Type1 => WcOpcode::BindMw,
                    MwType::Type2 => WcOpcode::LocalInv,
                };
                if let Lent::Bound(key) = self.told.lent {
                    self.told.lent = Lent::Dying(key);
                    pending.local = Some(Lent::Dead(key));
                }
            }
            Kind::Bad(bad) => {
                prepare_bad(gear, peer, bad, &mut ready, &mut posted);
                if self.loose.is_some() {
                    self.lose(bad, &mut posted);
                } else if bad != Bad::Local {
                    notes.push(if bad == Bad::TooLong { Note::Overflows } else { Note::Breaks });
                }
                if bad == Bad::Misaligned {
                    pending.slot = self.land(gear, &mut ready, 8, 1);
                }
            }
        }
        posted.fence = ready.fence;
        if let Some(loose) = &mut self.loose {
            let message = posted.message.take();
            let write = match std::mem::replace(&mut posted.effect, Effect::Nothing) {
                Effect::Bytes { at, data } => Some((at, data)),
                _ => None,
            };
            loose.post(id, message, write);
        }
        self.stream.post(posted);
        self.pending.push_back(pending);
        ready
    }

    /// Requests that carry bytes.
    fn prepare_bytes(
        &mut self,
        gear: &Gear,
        peer: &mut Told,
        ready: &mut Ready,
        posted: &mut Posted,
    ) {
        let op = ready.op;
        let (sges, data) = gather(&gear.source, op.src, op.pieces, op.len);
        if op.inline {
            ready.bytes = Some(data.clone());
        }
        ready.sges = sges;
        let is_write = matches!(ready.kind, Kind::Write | Kind::WriteImm);
        let has_imm = matches!(ready.kind, Kind::SendImm | Kind::WriteImm);
        let mut message = Message {
            opcode: if is_write { WcOpcode::RecvWriteImm } else { WcOpcode::Recv },
            len: data.len(),
            data: if is_write { Vec::new() } else { data.clone() },
            imm: has_imm.then_some(ready.imm),
            invalidates: None,
        };
        if is_write {
            posted.opcode = WcOpcode::Write;
            let (at, rkey) = self.place(&op, op.len, peer);
            ready.remote = RemoteSlice { rkey, ..peer.target.at(at as u64) };
            posted.effect = Effect::Bytes { at, data };
        }
        if let (Kind::SendInv, Lent::Bound(key)) = (ready.kind, peer.lent) {
            peer.lent = Lent::Dying(key);
            ready.imm = key.rkey;
            message.invalidates = Some(key.rkey);
            // A READ that must be repeated would find the window gone.
            ready.fence = true;
        }
        if ready.kind != Kind::Write {
            posted.message = Some(message);
        }
    }

    /// A request that an unreliable connection carries, and its peer does not execute.
    fn lose(&self, bad: Bad, posted: &mut Posted) {
        if bad == Bad::Local {
            return;
        }
        posted.fails = None;
        if bad == Bad::TooLong {
            // One that no receive has room for.
            let (opcode, len) = (WcOpcode::Recv, usize::MAX);
            posted.message =
                Some(Message { opcode, len, data: Vec::new(), imm: None, invalidates: None });
        }
    }

    /// 8 bytes at once: a word of its own, or bytes that WRITEs go to.
    fn prepare_atomic_write(
        &mut self,
        gear: &Gear,
        peer: &Told,
        ready: &mut Ready,
        posted: &mut Posted,
    ) {
        let op = ready.op;
        let (sges, data) = gather(&gear.source, op.src, op.pieces, 8);
        if op.inline {
            ready.bytes = Some(data.clone());
        }
        ready.sges = sges;
        let words = usize::try_from(peer.target.len).unwrap_or(0) - WORDS;
        let (at, rkey) = match op.at & 2 {
            0 => {
                let word = usize::try_from(op.at / 4 % (WORDS as u64 / 8)).unwrap_or(0);
                (words + word * 8, peer.target.rkey)
            }
            _ => self.place_word(&op, peer),
        };
        posted.opcode = WcOpcode::AtomicWrite;
        ready.remote = RemoteSlice { rkey, ..peer.target.at(at as u64) };
        posted.effect =
            Effect::Word { at, value: data.first_chunk().map_or(0, |b| u64::from_ne_bytes(*b)) };
    }

    /// Requests that bring something back.
    fn prepare_answered(
        &mut self,
        gear: &Gear,
        peer: &Told,
        ready: &mut Ready,
        posted: &mut Posted,
        pending: &mut Pending,
    ) {
        let op = ready.op;
        let words = usize::try_from(peer.target.len).unwrap_or(0) - WORDS;
        let at = words + usize::try_from(op.at % (WORDS as u64 / 8)).unwrap_or(0) * 8;
        match ready.kind {
            Kind::Read => {
                posted.opcode = WcOpcode::Read;
                // Now and then of the words, too.
                let (at, rkey) = match op.at % 4 {
                    0 if op.len <= WORDS => (words, peer.target.rkey),
                    _ => self.place(&op, op.len, peer),
                };
                ready.remote = RemoteSlice { rkey, ..peer.target.at(at as u64) };
                posted.answer = Answer::Bytes { at, data: self.stream.ahead(at, op.len).to_vec() };
                pending.slot = self.land(gear, ready, op.len, op.pieces);
            }
            Kind::Count => {
                posted.opcode = WcOpcode::FetchAdd;
                ready.remote = peer.counter.at(0);
                posted.answer = Answer::Count;
                self.counts_posted += 1;
                pending.slot = self.land(gear, ready, 8, 1);
            }
            _ => {
                let before = self.stream.word(at);
                posted.answer = Answer::Word(before);
                ready.remote = peer.target.at(at as u64);
                let value = if ready.kind == Kind::FetchAdd {
                    posted.opcode = WcOpcode::FetchAdd;
                    before.wrapping_add(op.value)
                } else {
                    posted.opcode = WcOpcode::CompSwap;
                    ready.compare = if op.at & 16 == 0 { before } else { op.value ^ 1 };
                    if ready.compare == before { op.value } else { before }
                };
                posted.effect = Effect::Word { at, value };
                pending.slot = self.land(gear, ready, 8, 1);
            }
        }
    }

    /// Takes a buffer for an answer.
    fn land(
        &mut self,
        gear: &Gear,
        ready: &mut Ready,
        len: usize,
        pieces: usize,
    ) -> Option<(usize, usize, usize)> {
        let slot = self.free.pop()?;
        ready.sges = gear.landing.sges(slot, len, pieces);
        Some((slot, len, pieces))
    }

    /// A completion of a request.
    pub(super) fn completed(&mut self, wc: &WorkCompletion) -> Result<(), String> {
        let (flush, time, refused) = (self.may_flush, self.may_time_out, self.may_be_refused);
        let rnr = self.may_be_kept_waiting;
        if let Some(loose) = self.loose.as_mut().filter(|_| wc.status != WcStatus::Success) {
            loose.kept(wc.wr_id);
        }
        let accepted = self.stream.completed(wc, |p, status| match status {
            WcStatus::WrFlush => flush,
            WcStatus::RetryExc => time,
            WcStatus::RnrRetryExc => {
                rnr && (p.message.is_some() || p.fails == Some(WcStatus::RemInvReq))
            }
            WcStatus::RemAccess => refused,
            _ => false,
        })?;
        match accepted {
            Accepted::Done(index) => {
                self.flushed |= self.stream.get(index).opcode == WcOpcode::Flush;
                self.over(index + 1)
            }
            Accepted::Failed(index) => self.over(index),
            Accepted::Flushed => Ok(()),
        }
    }

    /// The queue pair is in ERR, and all its completions were taken.
    pub(super) fn settle_silent(&mut self) -> Result<(), String> {
        if self.stream.failed().is_some() {
            return Ok(());
        }
        self.stream.settle_silent();
        self.over(self.stream.settled())
    }

    /// The first `n` requests are done: looks at what they brought.
    fn over(&mut self, n: usize) -> Result<(), String> {
        while let Some(&p) = self.pending.front().filter(|p| p.index < n) {
            self.pending.pop_front();
            if let Some(lent) = p.local {
                self.told.lent = lent;
            }
            let Some((slot, len, pieces)) = p.slot else { continue };
            let Some(gear) = &self.gear else { continue };
            let got = gear.landing.take(slot, len, pieces, len, false)?;
            self.free.push(slot);
            let word = got.first_chunk().map_or(0, |b| u64::from_ne_bytes(*b));
            match &self.stream.get(p.index).answer {
                Answer::Nothing => {}
                Answer::Bytes { .. } => self.stream.check_read(p.index, &got)?,
                Answer::Count => self.counts.push(word),
                Answer::Word(before) if *before == word => {}
                Answer::Word(before) => {
                    let id = self.stream.get(p.index).id;
                    return Err(format!(
                        "atomic {id} brought {word:#x}, and {before:#x} was there"
                    ));
                }
            }
        }
        Ok(())
    }

    /// The send queue has stopped and is empty: it goes on.
    pub(super) fn go_on(&mut self) -> crate::verbs::Result<()> {
        self.stream.go_on();
        match &self.gear {
            Some(gear) => gear.qp.modify(&QpAttr::to(QpState::Rts)),
            None => Ok(()),
        }
    }

    /// A completion of a receive. `peer` is who sends here, `shared` the queue that the receive is from, if it is
    /// not its own.
    pub(super) fn arrived(
        &mut self,
        wc: &WorkCompletion,
        peer: &mut Self,
        shared: Option<&mut Inbox>,
        disorder: Disorder,
    ) -> Result<(), String> {
        let is_err = self.state() == Some(QpState::Err);
        let own = self.gear.as_mut().and_then(|g| g.inbox.as_mut());
        let is_shared = shared.is_some();
        let Some(inbox) = shared.or(own) else {
            return Err(format!("{wc:?}: it has no such receives"));
        };
        let receive = inbox.complete(wc)?;
        if is_shared && self.last_shared.replace(receive.0) >= Some(receive.0) {
            return Err(format!("{wc:?}: receives of one queue pair were not taken in order"));
        }
        if wc.status != WcStatus::Success {
            inbox.take(receive, 0, true)?;
            let explained = self.spoils.contains(&wc.status);
            if explained {
                // At most one: the queue pair is in ERR.
                self.spoils.clear();
            }
            if is_err && (explained || wc.status == WcStatus::WrFlush) {
                return Ok(());
            }
            return Err(format!("{wc:?}: nothing that happened explains this status"));
        }
        let len = if wc.opcode == WcOpcode::RecvWriteImm { 0 } else { wc.byte_len as usize };
        if len > inbox.room {
            return Err(format!("{wc:?}: longer than its buffer"));
        }
        let data = inbox.take(receive, len, peer.loose.is_some())?;
        match &mut peer.loose {
            Some(loose) => loose.message(wc, &data, disorder)?,
            None => peer.stream.message(wc, &data)?,
        }
        if let (Some(rkey), Lent::Dying(key)) = (wc.invalidated_rkey, self.told.lent)
            && rkey == key.rkey
        {
            self.told.lent = Lent::Dead(key);
        }
        Ok(())
    }

    /// Whether the peer's window is not in use by any request under way.
    pub(super) fn uses_no_window(&self) -> bool {
        self.last_window_use.is_none_or(|i| i < self.stream.settled())
    }
}
