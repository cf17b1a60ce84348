//! The way of a packet: offered to a pipe, into its queue, onto its line, out at its end, through the switch.
//!
//! *Rules.* A packet is in exactly one place: named by one event, in one queue, or in one inbox. Whoever
//! takes it out of there puts it somewhere else or drops it with a reason.

use std::sync::atomic::Ordering;

use rand_chacha::ChaCha8Rng;

use crate::net::Ecn;
use crate::seed::{below, chance};
use crate::time::{Duration, Instant, nanos};

use super::fault::{self, Action};
use super::link::{frame_len, ip_len, later};
use super::queue::{Node, Pipe};
use super::store::{Notes, PacketId, Stored};
use super::tap::{Packet, Verdict};
use super::trace::Fate;
use super::{Direction, Event, Fabric, Tap, as_v6, id as host_id, pipe_of};

impl Fabric {
    /// A packet comes to the near end of a pipe, to enter it after `wait`. Whatever may be wrong with the
    /// link happens to it.
    pub(super) fn offer(&mut self, pipe: usize, id: PacketId, wait: Duration) {
        let Pipe { link, dice, host, .. } = &mut self.pipes[pipe];
        let host = *host;
        let packet = self.store.get_mut(id);
        packet.pipe = pipe;
        if ip_len(&packet.path, packet.bytes.len()) > link.mtu as usize {
            return self.drop_packet(id, Fate::TooBig, host);
        }
        if chance(&mut dice.loss, link.loss) {
            return self.drop_packet(id, Fate::Lost, host);
        }
        if chance(&mut dice.corrupt, link.corrupt) {
            self.hosts[host].counters.corrupted += u64::from(corrupt(packet, &mut dice.corrupt));
        }
        let copied = chance(&mut dice.duplicate, link.duplicate)
            .then(|| Duration::from_nanos(below(&mut dice.duplicate, link.scatter())));
        let held = chance(&mut dice.reorder, link.reorder)
            .then(|| Duration::from_nanos(1 + below(&mut dice.reorder, link.scatter())));
        if let Some(behind) = copied {
            let copy = self.copy(id);
            self.events.push(self.now + wait + behind, Event::Enter(copy));
        }
        let wait = wait + held.unwrap_or_default();
        if wait.is_zero() {
            return self.enter(pipe, id);
        }
        self.store.get_mut(id).notes |= Notes::HELD;
        self.hosts[host].counters.reordered += 1;
        self.events.push(self.now + wait, Event::Enter(id));
    }

    /// Makes a second copy, on the way into the same pipe.
    fn copy(&mut self, id: PacketId) -> PacketId {
        let host = self.pipes[self.store.get(id).pipe].host;
        self.hosts[host].counters.duplicated += 1;
        self.store.duplicate(id)
    }

    /// A packet goes onto the line, or into the queue in front of it, or nowhere.
    pub(super) fn enter(&mut self, pipe: usize, id: PacketId) {
        let p = &mut self.pipes[pipe];
        let host = p.host;
        if !self.hosts[host].up.load(Ordering::Relaxed) {
            return self.drop_packet(id, Fate::LinkDown, host);
        }
        let packet = self.store.get(id);
        let frame = frame_len(&packet.path, packet.bytes.len());
        if p.is_idle(self.now) {
            return self.start(pipe, id, frame, self.now);
        }
        // A host asks for room before it sends; a switch has no choice but to drop.
        if p.to != Node::Switch && !p.has_room_for(frame) {
            return self.drop_packet(id, Fate::QueueFull, host);
        }
        p.push(id, frame);
        if !p.draining {
            self.await_line(pipe);
        }
    }

    /// Comes back when the line of a pipe is free.
    fn await_line(&mut self, pipe: usize) {
        let p = &mut self.pipes[pipe];
        p.draining = true;
        let index = u32::try_from(pipe).expect("memory ends before 2^31 hosts");
        self.events.push(p.line.free_at(), Event::Free(index));
    }

    /// The line of a pipe is free for the next packet in its queue.
    pub(super) fn line_is_free(&mut self, pipe: usize) {
        self.pipes[pipe].draining = false;
        let Some((id, frame)) = self.pipes[pipe].pop() else { return };
        // It was there before: it starts at the very fraction of a nanosecond at which the line got free.
        self.start(pipe, id, frame, Instant::ZERO);
        if !self.pipes[pipe].is_empty() {
            self.await_line(pipe);
        }
        if self.pipes[pipe].to == Node::Switch {
            self.offer_room(self.pipes[pipe].host);
        }
    }

    /// A packet that is there since `ready` goes onto the line.
    fn start(&mut self, pipe: usize, id: PacketId, frame: usize, ready: Instant) {
        let p = &mut self.pipes[pipe];
        let packet = self.store.get_mut(id);
        packet.cut = p.cut;
        // Marked by the queue that it leaves behind, itself included: a mark set on entering would tell of
        // a queue that is gone by the time the mark is seen.
        let is_long = p.queued().saturating_add(frame) > p.link.ecn_at;
        if is_long && matches!(packet.path.ecn(), Ecn::Ect0 | Ecn::Ect1) {
            mark(packet);
            self.hosts[p.host].counters.ecn_marked += 1;
        }
        let jitter = match nanos(p.link.jitter) {
            0 => 0,
            most => below(&mut p.dice.jitter, most.saturating_add(1)),
        };
        let sent = p.line.send(ready, frame);
        p.last_arrival = p.last_arrival.max(later(sent, p.link.delay, jitter));
        self.events.push(p.last_arrival, Event::Arrive(id));
        if p.to != Node::Switch {
            self.trace.record(self.now, Fate::Passed, packet, p.last_arrival);
        }
    }

    /// The last bit of a packet is at the far end of its pipe.
    pub(super) fn arrive(&mut self, id: PacketId) {
        let packet = self.store.get(id);
        let p = &self.pipes[packet.pipe];
        if packet.cut != p.cut {
            return self.drop_packet(id, Fate::LinkDown, p.host);
        }
        match p.to {
            Node::Switch => self.switch(id),
            Node::Host(index) => {
                let host = &mut self.hosts[index];
                host.counters.delivered += 1;
                host.counters.delivered_bytes += packet.bytes.len() as u64;
                host.inbox.push_back(id);
                self.inboxed += 1;
                self.wake(index);
            }
        }
    }

    /// A packet is at the switch.
    fn switch(&mut self, id: PacketId) {
        let packet = self.store.get(id);
        let (from, dst) = (packet.from, as_v6(packet.path.dst));
        if let Some(&to) = self.routes.get(&dst) {
            return self.switch_to(id, to);
        }
        // Each member of a group gets a copy, the sender too: its NIC would hand it one.
        let member = |fabric: &Self, at| fabric.groups.get(&dst).and_then(|m| m.get(at)).copied();
        let Some(mut to) = member(self, 0) else {
            return self.drop_packet(id, Fate::NoRoute, from);
        };
        for at in 1.. {
            let Some(next) = member(self, at) else { break };
            let copy = self.store.replicate(id);
            self.hosts[from].counters.replicated += 1;
            self.switch_to(copy, to);
            to = next;
        }
        self.switch_to(id, to);
    }

    /// The switch sends a packet towards a host.
    fn switch_to(&mut self, id: PacketId, to: usize) {
        let packet = self.store.get_mut(id);
        packet.to = Some(to);
        packet.pipe = pipe_of(to, Direction::Down);
        if self.tap.is_some() || !self.untold.is_empty() {
            self.untold.push_back((id, to));
        } else {
            self.apply_rules(id, to);
        }
    }

    /// Gives the tap out, with a copy of the packet for it; `None`: there is none any more.
    pub(super) fn show(&mut self, id: PacketId, to: usize) -> Option<(Tap, Packet, u64)> {
        let tap = self.tap.take()?;
        let packet = self.store.get(id);
        let mut copy = std::mem::replace(&mut self.tapped, Packet::empty());
        copy.bytes.clear();
        copy.bytes.extend_from_slice(&packet.bytes);
        (copy.path, copy.ident) = (packet.path, packet.ident);
        (copy.from, copy.to, copy.at) = (packet.from, to, self.now);
        Some((tap, copy, self.tap_turn))
    }

    /// Takes back what [`show`](Self::show) gave out. Another tap may have come meanwhile: then the old one is
    /// returned.
    pub(super) fn shown(&mut self, tap: Tap, copy: Packet, turn: u64) -> Option<Tap> {
        self.tapped = copy;
        if turn != self.tap_turn {
            return Some(tap);
        }
        self.tap = Some(tap);
        None
    }

    /// Does with a packet at the switch what the tap has decided.
    pub(super) fn decide(&mut self, id: PacketId, to: usize, verdict: Verdict) {
        match verdict {
            Verdict::Pass => self.apply_rules(id, to),
            Verdict::Drop => self.drop_packet(id, Fate::Tapped, to),
            Verdict::Delay(wait) => self.forward(id, wait),
            Verdict::Duplicate => self.forward_twice(id),
            Verdict::Replace => {
                let packet = self.store.get_mut(id);
                packet.notes |= Notes::CHANGED;
                packet.bytes.clear();
                packet.bytes.extend_from_slice(&self.tapped.bytes);
                (packet.path, packet.ident) = (self.tapped.path, self.tapped.ident);
                self.forward(id, Duration::ZERO);
            }
        }
    }

    fn apply_rules(&mut self, id: PacketId, to: usize) {
        let packet = self.store.get_mut(id);
        let (from, to_id) = (host_id(packet.from), host_id(to));
        let counters = &mut self.hosts[to].counters;
        match self.rules.decide(from, to_id, &packet.bytes) {
            None | Some((Action::Pass, _)) => {}
            Some((Action::Drop, _)) => return self.drop_packet(id, Fate::Ruled, to),
            Some((Action::Delay(wait), _)) => return self.forward(id, wait),
            Some((Action::Duplicate, _)) => return self.forward_twice(id),
            Some((Action::Corrupt, rng)) => {
                counters.corrupted += u64::from(corrupt(packet, rng));
            }
            Some((Action::Mark, _)) => {
                mark(packet);
                counters.ecn_marked += 1;
            }
        }
        self.forward(id, Duration::ZERO);
    }

    /// On towards the receiver.
    fn forward(&mut self, id: PacketId, wait: Duration) {
        self.offer(self.store.get(id).pipe, id, wait);
    }

    fn forward_twice(&mut self, id: PacketId) {
        let copy = self.copy(id);
        self.forward(id, Duration::ZERO);
        self.forward(copy, Duration::ZERO);
    }

    /// The end of a packet that does not arrive, counted at `host`.
    pub(super) fn drop_packet(&mut self, id: PacketId, fate: Fate, host: usize) {
        self.hosts[host].counters.count_drop(fate);
        self.trace.record(self.now, fate, self.store.get(id), Instant::FAR_FUTURE);
        self.store.remove(id);
    }

    pub(super) fn uplink_has_room(&self, host: usize) -> bool {
        let p = &self.pipes[pipe_of(host, Direction::Up)];
        p.is_empty() || p.queued() < p.link.queue
    }

    /// Wakes a host that waits for room, if there is enough to make it worth while: half the queue.
    pub(super) fn offer_room(&mut self, host: usize) {
        let p = &self.pipes[pipe_of(host, Direction::Up)];
        if self.hosts[host].wants_room && p.queued() <= p.link.queue / 2 {
            self.hosts[host].wants_room = false;
            self.wake(host);
        }
    }

    fn wake(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        if !host.is_woken {
            host.is_woken = true;
            self.woken.push(host_id(index));
        }
    }
}

/// Corrupts a packet, but not twice: a second error could undo the first, or together with it escape the CRC.
fn corrupt(packet: &mut Stored, rng: &mut ChaCha8Rng) -> bool {
    let corrupts =
        !packet.notes.contains(Notes::CORRUPTED) && fault::corrupt(&mut packet.bytes, rng);
    if corrupts {
        packet.notes |= Notes::CORRUPTED;
    }
    corrupts
}

fn mark(packet: &mut Stored) {
    packet.path.traffic_class |= Ecn::Ce as u8;
    packet.notes |= Notes::MARKED;
}
