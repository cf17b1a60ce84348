//! The transport: queue pairs, and the packets between them. Sans-IO and single-threaded.
//!
//! An [`Engine`] is one device. Its driver (see `nic`) feeds it datagrams, doorbells and the time, and
//! takes from it datagrams, events and the time at which it wants to be called again:
//!
//! ```text
//!             handle_datagram          poll_transmit
//!   network ─────────────────►┌──────┐────────────────► network
//!             handle_timeout  │Engine│ poll_timeout
//!     clock ─────────────────►│      │────────────────► clock
//!             handle_doorbell │      │ poll_event
//!   queues  ─────────────────►└──────┘────────────────► queues, event lists
//! ```
//!
//! *Rules.* The engine has no socket, clock, thread or randomness of its own: everything comes in through
//! its arguments and its seed, so equal inputs give equal bytes. After any `handle_*` or control call,
//! [`poll_transmit`](Engine::poll_transmit) and [`poll_event`](Engine::poll_event) may have something,
//! and [`poll_timeout`](Engine::poll_timeout) may have changed. Nothing is allocated for a packet or a
//! request. Nothing that a peer sends can make it panic.

mod admission;
mod ah;
mod batch;
pub mod cause;
pub mod cc;
mod common;
pub mod config;
mod control;
pub mod counters;
mod elide;
pub mod errno;
pub mod event;
mod index;
mod mcast;
pub mod qp;
pub mod srq;
pub mod status;
#[cfg(test)]
pub(crate) mod tests;
mod timer;
pub mod trace;
pub mod watch;
pub mod window;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

pub use cause::Cause;
pub use config::{EngineConfig, IcrcPolicy};
pub use control::QpInit;
pub use counters::{Counter, Counters};
pub use event::{AsyncEvent, Event};
pub use qp::{QpFace, QpHandle};
pub use srq::SrqAttr;
pub use window::WindowConfig;

use admission::Idents;
use batch::Batch;
use common::Common;
use index::QpTable;
use mcast::Groups;
use qp::{Turn, Waiting};
use timer::Wheel;
use trace::{NicEvent, Observer, PacketBrief};
use watch::{Judge, Late};

use crate::mem::{MrTable, PdId};
use crate::net::{Ident, PortCaps, Transmit};
use crate::time::{Duration, Instant};
use crate::wire::num::Pkey;

/// One of the device's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalGid {
    /// The address.
    pub ip: IpAddr,
    /// Its scope, if it is link-local.
    pub scope_id: u32,
}

/// Whether plain ACKs leave in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// Yes.
    Send,
    /// Only together with other packets of their queue pair: the application has just been given
    /// something and may be about to answer. They leave with a later pass, at the latest at
    /// [`Engine::poll_timeout`].
    Hold,
    /// Yes, but for those behind a lone reply to a peer that goes on without them, for somebody will look again soon.
    Coalesce,
}

/// A device.
#[derive(Debug)]
pub struct Engine {
    common: Common,
    qps: QpTable,
    groups: Groups,
    /// Users of each protection domain.
    pds: BTreeMap<PdId, u32>,
    next_pd: u32,
    gids: Vec<LocalGid>,
    timers: Wheel,
    /// Queue pairs with something to send, in the order of their turns.
    ready: VecDeque<u32>,
    /// Queue pairs with a plain ACK to send.
    acks: VecDeque<u32>,
    /// When held ACKs must leave.
    acks_due: Option<Instant>,
    /// Queue pairs whose plain ACK waits for another message, and when to look at each again.
    waits: VecDeque<(Instant, u32)>,
    /// All that are ready have had their share of this instant.
    stalled: bool,
    idents: Idents,
    rng: ChaCha8Rng,
    /// IPv4 identification of the next packet, where the port lets us choose.
    next_ident: u16,
}

impl Engine {
    /// A device with no objects. `gids` are its addresses, in the order of its GID table.
    pub fn new(config: EngineConfig, caps: PortCaps, gids: Vec<LocalGid>) -> Self {
        let mut rng = ChaCha8Rng::from_seed(config.seed);
        let mut key = [0; 16];
        rng.fill_bytes(&mut key);
        // Somewhere in the lower half of the address space, on a page.
        let iova_base = (rng.next_u64() >> 20 | 1 << 40) & !0xfff;
        let random = rng.next_u32();
        let qps = QpTable::new(config.first_qpn.unwrap_or(random), config.max_qp);
        let next_ident = (rng.next_u32() & 0xffff) as u16;
        // What must not leave ahead of its time must not be late, either: lateness is lost.
        let fine = config.pacing_burst < Duration::from_nanos(1 << timer::COARSE);
        let timers = Wheel::new(if fine { timer::EXACT } else { timer::COARSE });
        Self {
            // From the other end of the same word: elsewhere than queue pairs, mostly.
            common: Common::new(config, caps, MrTable::new(key, iova_base), random.reverse_bits()),
            qps,
            groups: Groups::default(),
            pds: BTreeMap::new(),
            next_pd: 0,
            gids,
            timers,
            ready: VecDeque::new(),
            acks: VecDeque::new(),
            acks_due: None,
            waits: VecDeque::new(),
            stalled: false,
            idents: Idents::default(),
            rng,
            next_ident,
        }
    }

    /// Has `observer` told of each thing that happens from now on; `None`: nobody any more.
    pub fn set_observer(&mut self, observer: Option<Box<dyn Observer>>) {
        self.common.watch(|w| w.observer = observer);
    }

    /// Has `judge` asked about each completion that would be successful; `None`: nobody any more.
    pub fn set_judge(&mut self, judge: Option<Box<dyn Judge>>) {
        self.common.watch(|w| w.judge = judge);
    }

    /// Has bytes land late from now on; `None`: at once again. What is on its way lands now.
    pub fn set_late(&mut self, late: Option<Late>) {
        self.common.land_all();
        self.common.watch(|w| w.late = late);
    }

    /// Time has passed: lets bytes land whose time has come.
    pub fn land(&mut self, now: Instant) {
        let Common { watch, mrs, .. } = &mut self.common;
        if let Some(late) = watch.as_mut().and_then(|w| w.late.as_mut()) {
            late.land(now, mrs);
        }
    }

    /// When bytes land next.
    pub fn next_landing(&self) -> Option<Instant> {
        self.common.watch.as_ref()?.late.as_ref()?.next()
    }

    /// What the port can do.
    pub fn caps(&self) -> &PortCaps {
        &self.common.caps
    }

    /// The port can do something else than before: it segments no more, or its interface has another MTU.
    pub fn set_caps(&mut self, caps: PortCaps) {
        self.common.caps = caps;
    }

    /// The device's addresses.
    pub fn gids(&self) -> &[LocalGid] {
        &self.gids
    }

    /// The partition table.
    pub fn pkeys(&self) -> &[Pkey] {
        &self.common.config.pkeys
    }

    /// Counters.
    pub fn counters(&self) -> &Counters {
        &self.common.counters
    }

    /// Registered memory, to look at.
    pub fn memory(&self) -> &MrTable {
        &self.common.mrs
    }

    /// Queue pairs that exist.
    pub fn qp_count(&self) -> usize {
        self.qps.len()
    }

    /// Whether a protection domain exists.
    pub fn has_pd(&self, pd: PdId) -> bool {
        self.pds.contains_key(&pd)
    }

    /// Bytes in flight, and queue pairs in line, of all windows together.
    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> (u64, usize) {
        self.common.windows.total()
    }

    fn random(&mut self) -> u32 {
        self.rng.next_u32()
    }

    /// Something was posted to a queue pair.
    pub fn handle_doorbell(&mut self, now: Instant, handle: QpHandle) {
        self.common.now = now;
        let Some(qp) = self.qps.get(handle) else { return };
        self.common.observe(|| NicEvent::Doorbell { qpn: qp.qpn.raw() });
        qp.handle_doorbell(&mut self.common);
        self.settle();
        self.schedule(handle.slot);
    }

    /// Time has passed: handles at most `max` timers that are due. `true`: there may be more.
    pub fn handle_timeout(&mut self, now: Instant, max: usize) -> bool {
        self.common.now = now;
        for _ in 0..max {
            let Some(slot) = self.timers.expire(now) else { return false };
            if let Some(qp) = self.qps.at(slot) {
                if qp.deadline().is_some_and(|t| t <= now) {
                    qp.handle_timeout(&mut self.common);
                }
                self.settle();
                self.schedule(slot);
            }
        }
        true
    }

    /// When [`handle_timeout`](Self::handle_timeout) and [`poll_transmit`](Self::poll_transmit) want to
    /// be called, if nothing happens before. A bound: there may be nothing to do yet.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.next_due() {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The same but for what waits to be sent: when [`handle_timeout`](Self::handle_timeout) wants to be called.
    pub fn next_timer(&self) -> Option<Instant> {
        self.timers.next_due()
    }

    /// The same, apart: the next timer, and when held ACKs must leave.
    pub fn next_due(&self) -> (Option<Instant>, Option<Instant>) {
        let resume = self.stalled.then(|| self.common.next_instant());
        let timer = self.timers.next_due();
        let timer = timer.into_iter().chain(resume).min();
        match self.waits.front() {
            Some(&(at, _)) => (timer, Some(self.acks_due.map_or(at, |due| due.min(at)))),
            None => (timer, self.acks_due),
        }
    }

    /// Whether the pass so far has completed a receive.
    pub fn has_received(&self) -> bool {
        self.common.received
    }

    /// Whether the pass so far has completed a receive; asking resets it.
    pub fn take_received(&mut self) -> bool {
        std::mem::take(&mut self.common.received)
    }

    /// Whether something waits to be sent, be it an ACK that is held back.
    pub fn has_transmit(&self) -> bool {
        !self.ready.is_empty() || !self.acks.is_empty() || !self.waits.is_empty()
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) may have something now. Notes since when ACKs are held back.
    #[inline]
    pub fn may_transmit(&mut self, now: Instant, acks: Acks) -> bool {
        let delay = self.common.config.ack_delay;
        !self.ready.is_empty()
            || (!self.acks.is_empty()
                && (acks != Acks::Hold || *self.acks_due.get_or_insert(now + delay) <= now))
            || self.waits.front().is_some_and(|&(at, _)| at <= now || acks == Acks::Send)
    }

    /// The next transmission, written to the front of `buf`: one packet, or several of one size to one
    /// destination. With it comes the queue pair that made the first packet
    /// ([`QpHandle::as_u64`]). Call until `None`, or again after the network has taken some.
    ///
    /// `buf` must hold the largest packet; 64 KiB is what the kernel takes at once.
    #[inline]
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        acks: Acks,
        buf: &mut [u8],
    ) -> Option<(Transmit, u64)> {
        // Most calls are the last of a pass.
        if self.may_transmit(now, acks) { self.transmit(now, acks, buf) } else { None }
    }

    fn transmit(&mut self, now: Instant, acks: Acks, buf: &mut [u8]) -> Option<(Transmit, u64)> {
        self.common.now = now;
        // Held long enough, or not to be held.
        let at_once = self.common.config.ack_delay.is_zero();
        self.common.coalesce = acks == Acks::Coalesce && !at_once;
        if !self.waits.is_empty() {
            self.end_waits(now, acks == Acks::Send);
        }
        let due = at_once || self.acks_due.is_some_and(|t| t <= now);
        let send = due || acks != Acks::Hold;
        if self.ready.is_empty() && (!send || self.acks.is_empty()) {
            self.note_held_acks();
            return None;
        }
        let mut batch = Batch::new(buf, &self.common.caps, self.first_ident());
        if due {
            // Before anybody's requests: they may take for ever.
            self.fill_acks_first(&mut batch);
        }
        self.fill(&mut batch);
        if send {
            self.fill_acks(&mut batch);
        }
        self.note_held_acks();
        let (count, finished) = (batch.count(), batch.finish()?);
        Some(self.dispatch(finished, count, buf))
    }

    /// The next transmission of what a queue pair has to answer, and of nothing else, as
    /// [`poll_transmit`](Self::poll_transmit) gives it: for one that is going.
    pub fn poll_owed(
        &mut self,
        now: Instant,
        handle: QpHandle,
        buf: &mut [u8],
    ) -> Option<(Transmit, u64)> {
        self.common.now = now;
        let mut batch = Batch::new(buf, &self.common.caps, self.first_ident());
        self.qps.get(handle)?.send_owed(&mut self.common, &mut batch);
        let (count, finished) = (batch.count(), batch.finish()?);
        Some(self.dispatch(finished, count, buf))
    }

    /// Identification of the first packet of a transmission.
    fn first_ident(&self) -> u16 {
        match self.common.caps.ident {
            Ident::ZeroThenIndex => 0,
            Ident::Chosen => self.next_ident,
        }
    }

    /// A transmission of `count` packets is complete: counts it, and tells who watches.
    #[inline(always)]
    fn dispatch(
        &mut self,
        (mut transmit, owner): (Transmit, u64),
        count: usize,
        buf: &[u8],
    ) -> (Transmit, u64) {
        self.common.counters.add(Counter::SentPkts, count as u64);
        self.common.counters.add(Counter::SentBytes, transmit.len as u64);
        if transmit.path.dst.is_ipv6() {
            transmit.ident = 0;
        } else if self.common.caps.ident == Ident::Chosen {
            self.next_ident = self.next_ident.wrapping_add(u16::try_from(count).unwrap_or(0));
        }
        if self.common.is_watched() {
            let size = transmit.segment_size.map_or(transmit.len, usize::from);
            for datagram in buf[..transmit.len].chunks(size.max(1)) {
                self.common.observe(|| PacketBrief::of(datagram).map(NicEvent::Sent));
            }
        }
        (transmit, owner)
    }

    /// Gives queue pairs their turns until the batch is full or nobody has anything.
    fn fill(&mut self, batch: &mut Batch<'_>) {
        self.stalled = false;
        let mut stalled = 0;
        while let Some(&slot) = self.ready.front() {
            let Some(qp) = self.qps.at(slot) else {
                self.ready.pop_front();
                continue;
            };
            let turn = qp.send(&mut self.common, batch);
            if turn != Turn::Full {
                // What room it left is for those that wait.
                for window in qp.end_turn().into_iter().flatten() {
                    self.common.wake_window(window);
                }
            }
            match turn {
                Turn::Idle => {
                    qp.queued = false;
                    if let Some(at) = qp.list_wait() {
                        self.enlist(at, slot);
                    }
                    self.ready.pop_front();
                    self.queue_ack(slot);
                }
                Turn::Spent | Turn::Stalled => self.ready.rotate_left(1),
                Turn::Full => {}
            }
            stalled = if turn == Turn::Stalled { stalled + 1 } else { 0 };
            self.schedule_timer(slot);
            self.settle();
            if turn == Turn::Full {
                return;
            }
            if stalled > 0 && stalled >= self.ready.len() {
                self.stalled = true;
                return;
            }
        }
    }

    /// The same as [`fill_acks`](Self::fill_acks), where it is rarely wanted.
    #[cold]
    fn fill_acks_first(&mut self, batch: &mut Batch<'_>) {
        self.fill_acks(batch);
    }

    /// Adds plain ACKs, as far as they fit.
    #[inline(always)]
    fn fill_acks(&mut self, batch: &mut Batch<'_>) {
        while let Some(&slot) = self.acks.front() {
            if let Some(qp) = self.qps.at(slot) {
                if qp.has_plain_ack() && !qp.send_ack(&mut self.common, batch) {
                    return;
                }
                qp.ack_queued = false;
            }
            self.acks.pop_front();
        }
    }

    /// ACKs that waited long enough, or (`all`) may not wait any more, are to be sent.
    #[cold]
    fn end_waits(&mut self, now: Instant, all: bool) {
        for _ in 0..self.waits.len() {
            let Some(&(at, slot)) = self.waits.front() else { break };
            if at > now && !all {
                break;
            }
            self.waits.pop_front();
            let Some(qp) = self.qps.at(slot) else { continue };
            match qp.end_wait(now, all) {
                Waiting::Until(at) => self.enlist(at, slot),
                Waiting::Over { late } => {
                    self.queue_ack(slot);
                    // Should this pass hold ACKs back: this one was long enough.
                    if late {
                        self.acks_due = Some(now);
                    }
                }
            }
        }
    }

    /// Puts a queue pair on the list of those whose ACKs wait, which is in the order of times.
    pub(crate) fn enlist(&mut self, at: Instant, slot: u32) {
        let place = self.waits.partition_point(|&(other, _)| other <= at);
        self.waits.insert(place, (at, slot));
    }

    fn note_held_acks(&mut self) {
        // Those that left with other packets need not be waited for.
        while let Some(&slot) = self.acks.front() {
            match self.qps.at(slot) {
                Some(qp) if qp.has_plain_ack() => break,
                Some(qp) => qp.ack_queued = false,
                None => {}
            }
            self.acks.pop_front();
        }
        if self.acks.is_empty() {
            self.acks_due = None;
        } else if self.acks_due.is_none() {
            self.acks_due = Some(self.common.now + self.common.config.ack_delay);
        }
    }

    /// The next event. Completions become visible to the application by this call.
    pub fn poll_event(&mut self) -> Option<Event> {
        if let Some((cq, notify)) = self.common.publish_next() {
            return Some(Event::Completions { cq, notify });
        }
        self.common.events.pop_front().map(Event::Async)
    }

    /// Puts a queue pair where it belongs after anything happened to it.
    fn schedule(&mut self, slot: u32) {
        let Some(qp) = self.qps.at(slot) else { return };
        if !qp.queued && qp.wants_to_send() {
            qp.queued = true;
            self.ready.push_back(slot);
        }
        self.queue_ack(slot);
        self.schedule_timer(slot);
    }

    fn queue_ack(&mut self, slot: u32) {
        if let Some(qp) = self.qps.at(slot)
            && !qp.ack_queued
            && qp.has_plain_ack()
        {
            qp.ack_queued = true;
            self.acks.push_back(slot);
        }
    }

    /// An armed timer is moved only to fire earlier; one that fires early is armed again.
    fn schedule_timer(&mut self, slot: u32) {
        let Some(qp) = self.qps.at(slot) else { return };
        match qp.deadline() {
            None => {
                qp.armed = Instant::FAR_FUTURE;
                self.timers.cancel(slot);
            }
            Some(at) if at < qp.armed || !self.timers.is_armed(slot) => {
                qp.armed = at;
                self.timers.arm(slot, at);
            }
            Some(_) => {}
        }
    }

    /// What follows from what happened: queue pairs woken, completion queues overrun.
    fn settle(&mut self) {
        while let Some(cq) = self.common.overrun.pop() {
            let Some(queue) = self.common.cq(cq) else { continue };
            if !std::mem::replace(&mut queue.dead, true) {
                self.common.event(AsyncEvent::CqErr { cq });
            }
            for slot in 0..u32::try_from(self.qps.slots()).unwrap_or(u32::MAX) {
                if let Some(qp) = self.qps.at(slot)
                    && (qp.send_cq.cq == cq || qp.recv_cq.cq == cq)
                    && qp.can_fail()
                {
                    if qp.recv_cq.cq == cq {
                        qp.disown();
                    }
                    qp.enter_err(&mut self.common);
                    let qpn = qp.qpn.raw();
                    self.common.event(AsyncEvent::QpFatal { qpn });
                    self.schedule(slot);
                }
            }
        }
        let mut next = 0;
        while let Some(&(slot, window)) = self.common.woken.get(next) {
            next += 1;
            let qp = self.qps.at(slot);
            let qp = qp.and_then(|qp| qp.take_wake(window).then_some(qp));
            // If it is gone, or has no use for it, it is the next one's turn.
            let Some(qp) = qp else {
                self.common.wake_window(window);
                continue;
            };
            if !qp.queued {
                qp.queued = true;
                self.ready.push_back(slot);
            }
        }
        self.common.woken.clear();
    }
}
