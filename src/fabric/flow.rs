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
use super::link::{ip_len, later};
use super::moment::Moment;
use super::pause::u32_of;
use super::queue::{Held, Node, Pipe, Waiting};
use super::store::{Notes, PacketId, Stored};
use super::switch::{Admission, MarkAt, can_be_marked};
use super::tap::{Packet, Verdict};
use super::trace::Fate;
use super::{Event, Fabric, HostId, Tap, as_v6, id as host_id};

impl Fabric {
    /// A packet comes to the near end of a pipe, to enter it after `wait`. Whatever may be wrong with the
    /// link happens to it.
    pub(super) fn offer(&mut self, pipe: usize, id: PacketId, wait: Duration) {
        let host = self.blamed(pipe, id);
        let Pipe { link, dice, .. } = &mut self.pipes[pipe];
        let packet = self.store.get_mut(id);
        packet.pipe = pipe;
        if ip_len(&packet.path, packet.len()) > link.mtu as usize {
            return self.drop_at(pipe, id, Fate::TooBig);
        }
        if chance(&mut dice.loss, link.loss) {
            return self.drop_at(pipe, id, Fate::Lost);
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
            self.events.push(self.moment + wait + behind, Event::Enter(copy));
        }
        let wait = wait + held.unwrap_or_default();
        if wait.is_zero() {
            return self.enter(pipe, id);
        }
        self.store.get_mut(id).notes |= Notes::HELD;
        self.hosts[host].counters.reordered += 1;
        self.events.push(self.moment + wait, Event::Enter(id));
    }

    /// The host at which is counted what a pipe does to a packet: whose cable it is; between switches, who
    /// would have received it.
    pub(super) fn blamed(&self, pipe: usize, id: PacketId) -> usize {
        match (self.pipes[pipe].from, self.pipes[pipe].to) {
            (Node::Host(host), _) | (_, Node::Host(host)) => host,
            _ => {
                let packet = self.store.get(id);
                packet.to.unwrap_or(packet.from)
            }
        }
    }

    /// Makes a second copy, on the way into the same pipe.
    fn copy(&mut self, id: PacketId) -> PacketId {
        let host = self.blamed(self.store.get(id).pipe, id);
        self.hosts[host].counters.duplicated += 1;
        self.store.duplicate(id)
    }

    /// Whether both ends of a cable are plugged in.
    pub(super) fn is_pipe_up(&self, pipe: usize) -> bool {
        match (self.pipes[pipe].from, self.pipes[pipe].to) {
            (Node::Host(host), _) | (_, Node::Host(host)) => {
                self.hosts[host].up.load(Ordering::Relaxed)
            }
            _ => self.pipes[pipe].up,
        }
    }

    /// A packet goes onto the line, or into the queue in front of it, or nowhere.
    pub(super) fn enter(&mut self, pipe: usize, id: PacketId) {
        if !self.is_pipe_up(pipe) {
            return self.drop_at(pipe, id, Fate::LinkDown);
        }
        let packet = self.store.get(id);
        let frame = packet.frame_len();
        let priority = self.priority_at(self.pipes[pipe].from, packet);
        let via = packet.via;
        if self.pipes[pipe].managed && !self.admit(pipe, id, via, priority, frame) {
            return;
        }
        let p = &mut self.pipes[pipe];
        let waiting = Waiting { id, frame, via };
        if p.is_idle(self.moment, priority) {
            p.counters.note_queued(priority, frame);
            // A host that waited for the end of a pause was told of it at the end of a nanosecond, and would have been
            // there.
            let waited = !p.queues_frames() && p.released.ceil() == self.now;
            let ready = if waited { p.released } else { self.moment };
            return self.start(pipe, waiting, priority, frame, ready);
        }
        // A host asks for room before it sends; a switch has no choice but to drop.
        if matches!(p.from, Node::Switch(_)) && !p.managed && !p.has_room_for(frame) {
            return self.drop_at(pipe, id, Fate::QueueFull);
        }
        p.push(waiting, priority);
        let queued = p.queued_of(priority);
        p.counters.note_queued(priority, queued);
        if !p.draining && p.has_work() {
            self.await_line(pipe);
        }
    }

    /// The priority of a packet where it is.
    pub(super) fn priority_at(&self, node: Node, packet: &Stored) -> u8 {
        match node {
            Node::Switch(s) => match &self.switches[s].config {
                Some(config) => config.priority_of(packet.path.traffic_class, packet.pcp),
                None => 0,
            },
            Node::Host(h) => {
                let host = &self.hosts[h];
                // What it writes into its tags is what it means by it.
                let map = host.priorities.map(|by_dscp| host.tag.unwrap_or(by_dscp));
                map.map_or(0, |map| map.of(packet.path.traffic_class))
            }
        }
    }

    /// A packet is to wait in a switch that accounts for it: `false` if it is dropped.
    fn admit(&mut self, pipe: usize, id: PacketId, via: usize, priority: u8, frame: usize) -> bool {
        let Node::Switch(s) = self.pipes[pipe].from else { return true };
        if self.is_given_up(pipe, priority) {
            self.drop_at(pipe, id, Fate::Watchdog);
            return false;
        }
        let queued = self.pipes[pipe].queued_of(priority) + frame;
        let dice = &mut self.pipes[pipe].dice.marks;
        let marks = self.switches[s].marks(priority, queued, MarkAt::Enqueue, |p| chance(dice, p));
        if let Some(marking) = marks
            && !can_be_marked(self.store.get(id).path.ecn())
            && marking.drop_not_ect
        {
            self.drop_at(pipe, id, Fate::NotMarkable);
            return false;
        }
        let (xoff, dropped) =
            match self.switches[s].admit(&mut self.pipes[via].ingress, priority, frame) {
                Admission::Stored(xoff) => (xoff, None),
                Admission::Full(xoff) => (xoff, Some(Fate::BufferFull)),
                Admission::OverShare(xoff) => (xoff, Some(Fate::OverShare)),
            };
        if xoff {
            self.ask(via, priority, true);
        }
        if let Some(fate) = dropped {
            self.drop_at(pipe, id, fate);
            return false;
        }
        if marks.is_some() {
            self.mark_at(pipe, id);
        }
        true
    }

    /// A frame has left a switch, or never will: its room is free.
    pub(super) fn release(&mut self, held: Held) {
        let Held { via, priority, frame } = held;
        let Node::Switch(s) = self.pipes[via].to else { return };
        if self.switches[s].release(&mut self.pipes[via].ingress, priority, frame) {
            self.ask(via, priority, false);
        }
    }

    /// Comes back when the line of a pipe is free.
    fn await_line(&mut self, pipe: usize) {
        let p = &mut self.pipes[pipe];
        p.draining = true;
        self.events.push(p.line.free_at().max(self.moment), Event::Free(u32_of(pipe)));
    }

    /// Something may go onto the line that might not before. If the line is free it does at once: among events of one
    /// moment, what was on its way for longer comes first.
    pub(super) fn go_on(&mut self, pipe: usize) {
        let p = &self.pipes[pipe];
        if p.draining || !p.has_work() {
            return;
        }
        if p.line.free_at() <= self.moment {
            self.line_is_free(pipe);
        } else {
            self.await_line(pipe);
        }
    }

    /// The line of a pipe is free for the next packet in its queue.
    pub(super) fn line_is_free(&mut self, pipe: usize) {
        self.pipes[pipe].draining = false;
        if let Some(held) = self.pipes[pipe].sending.take() {
            self.release(held);
            if self.pipes[pipe].draining {
                // What came in by this port let it go on, and a pause has taken the line for that.
                return;
            }
        }
        let p = &mut self.pipes[pipe];
        // What was there before starts at the very fraction of a picosecond at which the line got free.
        let ready = if p.line.free_at() < self.moment { self.moment } else { Moment::ZERO };
        loop {
            if !self.start_pause(pipe, ready) {
                let Some((packet, priority, queued)) = self.pipes[pipe].pop() else { break };
                self.start(pipe, packet, priority, queued, ready);
            }
            let p = &self.pipes[pipe];
            if p.draining || !p.has_work() {
                break;
            }
            if p.line.free_at() > self.moment {
                self.await_line(pipe);
                break;
            }
            // It was dropped instead of sent.
        }
        self.offer_room_to(pipe);
    }

    /// If a pipe begins at a host: it may have room again.
    pub(super) fn offer_room_to(&mut self, pipe: usize) {
        if let Node::Host(host) = self.pipes[pipe].from {
            self.offer_room(host);
        }
    }

    /// A packet that is there since `ready` goes onto the line. `queued` bytes were waiting, itself included.
    fn start(&mut self, pipe: usize, waiting: Waiting, priority: u8, queued: usize, ready: Moment) {
        let Waiting { id, frame, via } = waiting;
        if !self.mark(pipe, id, priority, queued, frame) {
            self.release(Held { via, priority, frame });
            return self.drop_at(pipe, id, Fate::NotMarkable);
        }
        let p = &mut self.pipes[pipe];
        let packet = self.store.get_mut(id);
        packet.cut = p.cut;
        let jitter = match nanos(p.link.jitter) {
            0 => 0,
            most => below(&mut p.dice.jitter, most.saturating_add(1)),
        };
        let sent = p.line.send(ready, frame);
        p.last_arrival = p.last_arrival.max(later(sent, p.link.delay, jitter));
        p.last_priority = priority;
        p.counters.count_sent(priority, frame);
        self.events.push(p.last_arrival, Event::Arrive(id));
        if matches!(p.to, Node::Host(_)) {
            self.trace.record(self.now, Fate::Passed, packet, p.last_arrival.ceil());
        }
        self.capture_packet(pipe, id);
        if self.pipes[pipe].managed {
            self.pipes[pipe].sending = Some(Held { via, priority, frame });
        }
        if self.pipes[pipe].timed && !self.pipes[pipe].draining {
            self.await_line(pipe);
        }
    }

    /// Marks a packet that leaves, if its queue says so. `false`: it is to be dropped instead.
    ///
    /// Marked by the queue that it leaves behind, itself included: a mark set on entering would tell of a queue that is
    /// gone by the time the mark is seen.
    fn mark(
        &mut self,
        pipe: usize,
        id: PacketId,
        priority: u8,
        queued: usize,
        frame: usize,
    ) -> bool {
        let p = &mut self.pipes[pipe];
        if queued > p.link.ecn_at {
            self.mark_at(pipe, id);
        }
        let p = &mut self.pipes[pipe];
        let Node::Switch(s) = p.from else { return true };
        if !p.managed {
            return true;
        }
        let dice = &mut p.dice.marks;
        let mut decide =
            |queued, at| self.switches[s].marks(priority, queued, at, |p| chance(dice, p));
        let marking = decide(queued, MarkAt::Dequeue)
            .or_else(|| decide(queued - frame.min(queued), MarkAt::AfterDequeue));
        match marking {
            Some(marking) => self.mark_at(pipe, id) || !marking.drop_not_ect,
            None => true,
        }
    }

    /// Writes "congestion experienced" into a packet; `false` if it may not be.
    fn mark_at(&mut self, pipe: usize, id: PacketId) -> bool {
        let packet = self.store.get_mut(id);
        let ecn = packet.path.ecn();
        if matches!(ecn, Ecn::Ect0 | Ecn::Ect1) {
            mark(packet);
            self.pipes[pipe].counters.count_marked();
            let host = self.blamed(pipe, id);
            self.hosts[host].counters.ecn_marked += 1;
        }
        can_be_marked(ecn)
    }

    /// The last bit of a packet is at the far end of its pipe.
    pub(super) fn arrive(&mut self, id: PacketId) {
        let packet = self.store.get(id);
        let pipe = packet.pipe;
        let p = &self.pipes[pipe];
        if packet.cut != p.cut {
            return self.drop_at(pipe, id, Fate::LinkDown);
        }
        let frame = packet.frame_len();
        let priority = self.priority_at(p.to, packet);
        self.pipes[pipe].counters.count_arrived(priority, frame);
        match self.pipes[pipe].to {
            Node::Switch(s) => self.switch(s, id),
            Node::Host(index) => self.take_in(index, pipe, id, frame),
        }
    }

    /// A packet is in a host's inbox.
    pub(super) fn deliver(&mut self, index: usize, id: PacketId) {
        let host = &mut self.hosts[index];
        host.counters.delivered += 1;
        host.counters.delivered_bytes += self.store.get(id).len() as u64;
        host.inbox.push_back(id);
        self.inboxed += 1;
        self.wake(index);
    }

    /// A packet is at a switch.
    fn switch(&mut self, s: usize, id: PacketId) {
        let packet = self.store.get_mut(id);
        packet.via = packet.pipe;
        let (from, dst) = (packet.from, as_v6(packet.path.dst));
        if let Some(to) = packet.to {
            // Its first switch has found out.
            return self.switch_to(s, id, to);
        }
        if let Some(&to) = self.routes.get(&dst) {
            return self.switch_to(s, id, to);
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
            self.switch_to(s, copy, to);
            to = next;
        }
        self.switch_to(s, id, to);
    }

    /// The switch sends a packet towards a host.
    fn switch_to(&mut self, s: usize, id: PacketId, to: usize) {
        let packet = self.store.get_mut(id);
        packet.to = Some(to);
        let from = packet.from;
        let Some(pipe) = self.way_out(s, id, to) else {
            return self.drop_packet(id, Fate::NoRoute, from);
        };
        self.store.get_mut(id).pipe = pipe;
        if matches!(self.pipes[pipe].to, Node::Switch(_)) {
            return self.offer(pipe, id, Duration::ZERO);
        }
        // The last switch: what taps and rules decide happens once to each packet.
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

    /// Whether a host should go on sending: its own end of the cable has room. If not, it is woken when
    /// half of the queue is free. A host that may queue less than a frame has none, either, while the priority in which
    /// it sent last is paused.
    ///
    /// # Panics
    /// If `host` is not of this fabric.
    pub fn has_room(&mut self, host: HostId) -> bool {
        let has_room = self.uplink_has_room(host.index());
        self.hosts[host.index()].wants_room = !has_room;
        has_room
    }

    /// Whether a host may have more than one frame waiting for its cable.
    pub(crate) fn queues_frames(&self, host: HostId) -> bool {
        self.pipes[self.hosts[host.index()].cable].queues_frames()
    }

    pub(super) fn uplink_has_room(&self, host: usize) -> bool {
        let p = &self.pipes[self.hosts[host].cable];
        if p.is_empty() { !p.is_held_at_source() } else { p.queued() < p.link.queue }
    }

    /// Wakes a host that waits for room, if there is enough to make it worth while: half the queue.
    pub(super) fn offer_room(&mut self, host: usize) {
        let p = &self.pipes[self.hosts[host].cable];
        let has_room = p.queued() <= p.link.queue / 2 && !p.is_held_at_source();
        if self.hosts[host].wants_room && has_room {
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
