//! One pass: what a NIC does each time somebody drives it.
//!
//! *Rules.* The order is fixed: receive, timers, doorbells, transmit, tell. The clock is read once. A pass
//! is bounded (bytes in, datagrams out, timers), so whoever makes it never pays for an unbounded amount of
//! other queue pairs' work; the report says whether there is more to do. What the network does not take
//! stays staged, and is dropped if its queue pair goes.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::task::Waker;

use super::notify::{CqNotify, EventQueue};
use super::progress::Habit;
use crate::engine::{Acks, AsyncEvent, Cause, Engine, Event, QpHandle};
use crate::net::PortCaps;
use crate::port::{Health, Port, RxBatch, TxBatch};
use crate::time::{Duration, Instant};
use crate::wire::Opcode;

/// Bytes that one pass receives, about.
const RECEIVE_BYTES: usize = 256 << 10;
/// A receive that brought fewer bytes has emptied the socket, or nearly.
const FEW_BYTES: usize = 16 << 10;
/// Transmissions that one pass sends. A segmented one counts as one.
const TRANSMITS: usize = 64;
/// A pass that moves so much takes long enough for the time at its beginning to be out of date at its end.
const LONG_BYTES: usize = 32 << 10;
const LONG_TRANSMITS: usize = 4;
/// Timers that one pass handles.
const TIMERS: usize = 256;
/// Room that must be left in the staging buffer for another transmission: a whole segmented one, so that
/// none is cut short, or one packet where the kernel does not segment.
const ROOM_SEGMENTED: usize = 60 << 10;
const ROOM_SINGLE: usize = 5 << 10;
/// When to try again after the network took no more.
const RETRY_SEND: Duration = Duration::from_micros(50);
/// Bytes of the staging buffer for what queue pairs that go owe.
const DEBTS: usize = 16 << 10;
/// Bytes of a plain ACK, BTH to ICRC.
const ACK_LEN: usize = 20;
/// How much later than asked a held ACK may leave, or one that came be looked at, when nobody makes passes: a thread that leaves the port
/// to a polling application looks again after this time, and is not woken for an ACK.
pub(super) const ACK_SLACK: Duration = Duration::from_millis(1);

/// What a pass does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Doorbells and transmit: after posting, before an object goes.
    Send,
    /// Everything. Plain ACKs wait if a receive was completed: its owner looks, and may be about to answer.
    Poll,
    /// Everything.
    Serve,
}

/// What came of a pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passed {
    /// Something moved.
    pub(super) progress: bool,
    /// So much moved that it took a while.
    pub(super) long: bool,
    /// When the engine wants to be called again.
    pub(super) next: Instant,
    /// Wakers lie in [`Core::wakers`].
    pub(super) wakers: bool,
    /// When it was.
    pub(super) now: Instant,
}

/// What the lock of a NIC protects.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) engine: Engine,
    pub(super) port: Box<dyn Port>,
    rx: RxBatch,
    /// The last datagram in `rx`, an ACK, is still to be looked at.
    left: bool,
    tx: TxBatch,
    /// What queue pairs owe that have gone since. It leaves first, and is not dropped with them.
    debts: TxBatch,
    /// Doorbells taken from the list that everybody may write.
    pub(super) bells: Vec<QpHandle>,
    /// By number of the completion queue.
    pub(super) cqs: Vec<Option<Arc<CqNotify>>>,
    /// Whose events are those of a queue pair, by its number.
    pub(super) owners: BTreeMap<u32, Arc<EventQueue>>,
    /// Whose events are those of a completion queue.
    pub(super) cq_owners: BTreeMap<u32, Arc<EventQueue>>,
    /// Whose events are those of a shared receive queue.
    pub(super) srq_owners: BTreeMap<u32, Arc<EventQueue>>,
    /// Everybody who opened the device: events of the device and its port.
    pub(super) openers: Vec<Weak<EventQueue>>,
    pub(super) wakers: Vec<Waker>,
    broken: bool,
    /// The engine has something to send and the port has no room: it says when it has.
    held: bool,
    /// What was last told of the port.
    health: Health,
}

impl Core {
    pub(super) fn new(engine: Engine, port: Box<dyn Port>, rx: RxBatch) -> Self {
        let health = port.health();
        Self {
            engine,
            port,
            rx,
            left: false,
            tx: TxBatch::default(),
            debts: TxBatch::new(DEBTS),
            bells: Vec::new(),
            cqs: Vec::new(),
            owners: BTreeMap::new(),
            cq_owners: BTreeMap::new(),
            srq_owners: BTreeMap::new(),
            openers: Vec::new(),
            wakers: Vec::new(),
            broken: false,
            held: false,
            health,
        }
    }

    /// One pass at `now`. With a `habit`, it is one of many, and others will follow.
    pub(super) fn pass(&mut self, now: Instant, work: Work, habit: Option<Habit>) -> Passed {
        let (mut progress, mut long) = (false, false);
        if work != Work::Send {
            let received = self.receive(now, work);
            progress |= received > 0;
            long |= received >= LONG_BYTES;
            let due = self.engine.poll_timeout().is_some_and(|t| t <= now);
            if due {
                progress |= self.engine.handle_timeout(now, TIMERS);
            }
        }
        self.watch_port();
        for i in 0..self.bells.len() {
            self.engine.handle_doorbell(now, self.bells[i]);
        }
        self.bells.clear();
        let received = self.engine.take_received();
        let acks = match (work, habit) {
            (Work::Poll, _) if received => Acks::Hold,
            (Work::Poll | Work::Send, Some(Habit::Looks)) => Acks::Coalesce,
            // The ACK leaves while the program goes to sleep, and not with the reply, for which the peer sleeps.
            (Work::Send, Some(Habit::Sleeps)) => Acks::Coalesce,
            _ => Acks::Send,
        };
        let sent = self.transmit(now, acks);
        progress |= sent > 0;
        long |= sent >= LONG_TRANSMITS;
        let told = self.tell();
        Passed {
            progress: progress | told,
            long,
            next: self.next(now),
            wakers: !self.wakers.is_empty(),
            now,
        }
    }

    /// Receives until about a quarter of a megabyte has come, or nearly nothing more is there.
    /// Says how many bytes that were.
    fn receive(&mut self, now: Instant, work: Work) -> usize {
        let mut total = 0;
        if std::mem::take(&mut self.left)
            && let Some((meta, datagram)) = self.rx.last()
        {
            self.engine.handle_datagram(now, &meta, datagram);
            total += datagram.len();
        }
        while total < RECEIVE_BYTES && !self.broken {
            if let Err(_e) = self.port.recv(&mut self.rx) {
                self.fail();
                break;
            }
            // Somebody looks for a message, and here it is. The ACK behind it, for the message before, can
            // wait until that somebody looks again.
            let ack = self.rx.last().filter(|(_, last)| last.len() <= ACK_LEN);
            let ack = ack.filter(|_| work == Work::Poll);
            let mut buffers = self.rx.buffers();
            while let Some((meta, merged, size)) = buffers.next() {
                let ack = ack.filter(|(_, ack)| buffers.len() == 0 && !ack.is_empty());
                let Some((ack_meta, ack)) = ack else {
                    self.engine.handle_merged(now, meta, merged, size);
                    continue;
                };
                let before = &merged[..merged.len() - ack.len()];
                if !before.is_empty() {
                    self.engine.handle_merged(now, meta, before, size);
                }
                if self.engine.has_received() {
                    self.left = true;
                } else {
                    self.engine.handle_datagram(now, &ack_meta, ack);
                }
            }
            let bytes = self.rx.bytes();
            total += bytes;
            if bytes < FEW_BYTES || self.left {
                break;
            }
        }
        total
    }

    /// Sends what the engine has, until the network takes no more or the bound is reached. Says how many
    /// transmissions were made.
    fn transmit(&mut self, now: Instant, acks: Acks) -> usize {
        self.held = false;
        // What the network did not take before goes first.
        if self.is_staged() && !self.hand_over() {
            return 0;
        }
        let mut sent = 0;
        while !self.broken && self.engine.may_transmit(now, acks) {
            let most = self.port.room().min(TRANSMITS - sent);
            self.held = most == 0 && sent < TRANSMITS;
            let segmented = self.engine.caps().gso_segments_v4 > 1;
            let room = if segmented { ROOM_SEGMENTED } else { ROOM_SINGLE };
            let mut built = 0;
            while built < most && self.tx.spare().len() >= room {
                let Some((transmit, owner)) = self.engine.poll_transmit(now, acks, self.tx.spare())
                else {
                    break;
                };
                self.tx.commit(transmit, owner);
                built += 1;
            }
            sent += built;
            if built == 0 || !self.hand_over() {
                break;
            }
        }
        sent
    }

    /// Whether something waits for the network to take it.
    fn is_staged(&self) -> bool {
        !self.tx.is_empty() || !self.debts.is_empty()
    }

    /// Gives the network what is staged. `false`: not all of it was taken.
    fn hand_over(&mut self) -> bool {
        let mut failed = false;
        for batch in [&mut self.debts, &mut self.tx] {
            if batch.is_empty() {
                continue;
            }
            failed = self.port.send(batch).is_err();
            if failed || !batch.is_empty() {
                break;
            }
        }
        if failed {
            self.fail();
            return false;
        }
        // A kernel that refuses to segment shows it here, and the packets that follow must know.
        let caps = self.port.caps();
        if caps != *self.engine.caps() {
            self.engine.set_caps(caps);
        }
        !self.is_staged()
    }

    /// Publishes completions and events, and tells who waits for them.
    fn tell(&mut self) -> bool {
        let mut told = false;
        while let Some(event) = self.engine.poll_event() {
            told = true;
            match event {
                Event::Completions { cq, notify } => {
                    if let Some(Some(entry)) = self.cqs.get(cq as usize) {
                        entry.publish(notify, &mut self.wakers);
                    }
                }
                Event::Async(event) => self.tell_event(event),
            }
        }
        told
    }

    fn tell_event(&mut self, event: AsyncEvent) {
        let owner = match (event, event.qpn()) {
            (_, Some(qpn)) => self.owners.get(&qpn),
            (AsyncEvent::CqErr { cq }, _) => self.cq_owners.get(&cq),
            (AsyncEvent::SrqErr { srq } | AsyncEvent::SrqLimit { srq }, _) => {
                self.srq_owners.get(&srq)
            }
            _ => {
                let queues = self.openers.iter().filter_map(Weak::upgrade);
                let lost = queues.filter(|queue| !queue.push(event)).count();
                return self.engine.count_lost_events(lost as u64);
            }
        };
        if owner.is_some_and(|queue| !queue.push(event)) {
            self.engine.count_lost_events(1);
        }
    }

    /// Tells everybody who opened the device what has become of its port, and the engine of its MTU.
    fn watch_port(&mut self) {
        let mtu = self.port.mtu();
        if mtu != self.engine.caps().mtu {
            self.engine.set_caps(PortCaps { mtu, ..*self.engine.caps() });
        }
        let now = self.port.health();
        if now == self.health {
            return;
        }
        let before = std::mem::replace(&mut self.health, now);
        if now.missing != before.missing {
            self.tell_event(AsyncEvent::GidChange { port: 1 });
        }
        if now.up != before.up {
            let event = if now.up {
                AsyncEvent::PortActive { port: 1 }
            } else {
                AsyncEvent::PortErr { port: 1 }
            };
            self.tell_event(event);
        }
    }

    /// Has the port look at its interfaces, and tells what has become of them.
    pub(super) fn look_at_port(&mut self) {
        self.port.refresh();
        self.watch_port();
    }

    /// The port failed for good: nothing can be sent or received any more.
    fn fail(&mut self) {
        if !self.broken {
            self.broken = true;
            self.tell_event(AsyncEvent::DeviceFatal);
        }
    }

    /// Whether the port can work at present.
    pub(super) fn is_up(&self) -> bool {
        !self.broken && self.port.health().up
    }

    fn next(&self, now: Instant) -> Instant {
        let engine = match self.engine.next_due() {
            // What is due to be sent waits for the port, or will never leave.
            _ if self.is_staged() || self.broken => self.engine.next_timer(),
            (timer, Some(acks)) => timer.into_iter().chain([acks + ACK_SLACK]).min(),
            (timer, None) => timer,
        };
        let port = self.is_staged().then(|| now + RETRY_SEND);
        let left = self.left.then(|| now + ACK_SLACK);
        engine.into_iter().chain(port).chain(left).min().unwrap_or(Instant::FAR_FUTURE)
    }

    /// When the engine wants to be called, exactly. (A simulated network says when it takes more.)
    pub(super) fn next_exact(&self) -> Instant {
        // What is due to be sent waits for room, and must not keep time from passing.
        let waits = self.held || self.is_staged();
        let timer = if waits { self.engine.next_timer() } else { self.engine.poll_timeout() };
        timer.into_iter().chain(self.engine.next_landing()).min().unwrap_or(Instant::FAR_FUTURE)
    }

    /// Its host is dead: nothing that is staged leaves, nothing is received any more.
    pub(super) fn halt(&mut self) {
        self.broken = true;
        self.tx.consume(usize::MAX);
        self.debts.consume(usize::MAX);
    }

    /// Raises an event that nothing has caused, with what a device would do besides: the queue pairs that it is about
    /// go to ERR, a device that failed moves nothing any more.
    pub(super) fn raise(&mut self, now: Instant, event: AsyncEvent) -> Result<(), Cause> {
        let gone = |what: &str| Cause::Invalid { what: format!("the device has no {what}").into() };
        match event {
            AsyncEvent::CqErr { cq } => {
                self.cq_owners.get(&cq).ok_or_else(|| gone("such completion queue"))?;
                self.engine.fail_cq(now, cq)
            }
            AsyncEvent::QpFatal { qpn } => self.engine.fail_qp(now, qpn),
            event if event.qpn().is_some_and(|qpn| !self.owners.contains_key(&qpn)) => {
                Err(gone("such queue pair"))
            }
            AsyncEvent::SrqErr { srq } | AsyncEvent::SrqLimit { srq }
                if !self.srq_owners.contains_key(&srq) =>
            {
                Err(gone("such shared receive queue"))
            }
            AsyncEvent::PortActive { port }
            | AsyncEvent::PortErr { port }
            | AsyncEvent::GidChange { port }
                if port != 1 =>
            {
                Err(gone("such port: there is only 1"))
            }
            AsyncEvent::DeviceFatal => {
                self.fail();
                Ok(())
            }
            event => {
                self.tell_event(event);
                Ok(())
            }
        }
    }

    /// Makes what a queue pair has to answer, before anything else. What the network does not take at once stays staged: it
    /// leaves, though its queue pair may be gone by then.
    pub(super) fn settle_debts(&mut self, now: Instant, handle: QpHandle) {
        for _ in 0..TRANSMITS {
            let buf = self.debts.spare();
            if self.broken || buf.len() < ROOM_SINGLE {
                break;
            }
            let Some((transmit, owner)) = self.engine.poll_owed(now, handle, buf) else { break };
            self.debts.commit(transmit, owner);
            self.hand_over();
        }
    }

    /// Sends what a queue pair still has to answer, and drops what the network did not take of it.
    pub(super) fn farewell(&mut self, now: Instant, handle: QpHandle) {
        self.settle_debts(now, handle);
        self.transmit(now, Acks::Send);
        let before: usize = self.tx.entries().map(|(t, _)| t.segments()).sum();
        self.tx.drop_owner(handle.as_u64(), |bytes| !is_answer(bytes));
        let after: usize = self.tx.entries().map(|(t, _)| t.segments()).sum();
        self.engine.count_dropped((before - after) as u64);
    }
}

/// Whether a packet answers another one: what is known of it is owed, though its queue pair is gone.
fn is_answer(packet: &[u8]) -> bool {
    packet.first().and_then(|&byte| Opcode::from_u8(byte)).is_some_and(|o| o.info().is_response())
}
