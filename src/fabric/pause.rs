//! Priority flow control: frames that ask the other end of a cable to pause, and what they do (IEEE 802.1Qbb).
//!
//! A pause frame leaves before all other frames, but after the one that is on the line. It holds for its time, counted
//! from its arrival; whoever still has too much then asks again, when half of the time is over (but not more often than
//! the line can bear: pauses of very few quanta run out before). A pause
//! of no time ends the one before. The frame that is on the line when a pause arrives is sent to its end.

use crate::time::{Duration, Instant, nanos};

use super::link::{later, line_bits};
use super::moment::Moment;
use super::queue::{Held, Node};
use super::store::PacketId;
use super::switch::{PRIORITIES, Watchdog, Xon};
use super::trace::Fate;
use super::{Event, Fabric};

/// Frame bytes of a pause: as short as a frame can be.
pub(super) const PAUSE_FRAME: usize = 64;
/// Bit times of a quantum.
const QUANTUM: u64 = 512;

/// A pause on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PauseFrame {
    /// For which priority.
    pub(super) priority: u8,
    /// How long, in quanta of the line's speed; 0 ends a pause.
    pub(super) quanta: u16,
}

impl PauseFrame {
    /// The frame as it is on the line, FCS left out.
    pub(super) fn bytes(self, source: [u8; 6]) -> [u8; PAUSE_FRAME - 4] {
        let mut frame = [0; PAUSE_FRAME - 4];
        frame[..6].copy_from_slice(&[0x01, 0x80, 0xc2, 0, 0, 0x01]);
        frame[6..12].copy_from_slice(&source);
        // MAC control, priority flow control, enabled priorities, then a time for each.
        frame[12..16].copy_from_slice(&[0x88, 0x08, 0x01, 0x01]);
        frame[17] = 1 << self.priority;
        let at = 18 + 2 * usize::from(self.priority);
        frame[at..at + 2].copy_from_slice(&self.quanta.to_be_bytes());
        frame
    }
}

/// What the sender of a pipe was asked to pause.
#[derive(Debug, Default)]
pub(super) struct Paused {
    mask: u8,
    /// When each pause ends.
    until: [Moment; PRIORITIES],
    /// When it began, however often it was prolonged.
    since: [Instant; PRIORITIES],
    /// Given up by the watchdog.
    pub(super) given_up: u8,
    /// The watchdog will look, a bit for each priority.
    watched: u8,
}

impl Paused {
    pub(super) const fn mask(&self) -> u8 {
        self.mask
    }

    pub(super) const fn is(&self, priority: u8) -> bool {
        self.mask & 1 << priority != 0
    }

    /// The cable is cut: nobody pauses any more.
    pub(super) fn clear(&mut self) {
        (self.mask, self.given_up) = (0, 0);
    }

    /// Priorities that are asked to pause.
    fn priorities(&self) -> impl Iterator<Item = u8> + use<> {
        let mask = self.mask;
        (0..8).filter(move |p| mask & 1 << p != 0)
    }

    pub(super) const fn since(&self, priority: u8) -> Instant {
        self.since[priority as usize]
    }
}

impl Fabric {
    /// Shows a packet that begins to leave to whoever captures there.
    pub(super) fn capture_packet(&mut self, pipe: usize, id: PacketId) {
        if self.port_taps.is_empty() {
            return;
        }
        let (now, packet) = (self.now, self.store.get(id));
        for tap in self.port_taps.iter_mut().filter(|tap| tap.is_at(pipe)) {
            tap.packet(now, packet);
        }
    }

    fn capture_pause(&mut self, pipe: usize, frame: PauseFrame) {
        if self.port_taps.is_empty() {
            return;
        }
        let [a, b, c, d] = u32_of(pipe).to_be_bytes();
        // Locally administered, told apart by the port.
        let bytes = frame.bytes([0x02, 0, a, b, c, d]);
        for tap in self.port_taps.iter_mut().filter(|tap| tap.is_at(pipe)) {
            tap.frame(self.now, &bytes);
        }
    }
}

/// Somebody who is still in need is asked again no more often than in this many times that a pause takes on the line.
const LEAST_FRAMES: u64 = 4;

/// When a pause is said again: when half of it is over, but not so early that the line would be full of pauses.
fn refresh_after(quanta: u16, bits_per_s: u64) -> Duration {
    let frames = (line_bits(PAUSE_FRAME) * LEAST_FRAMES * 1_000_000_000).div_ceil(bits_per_s);
    (quanta_time(quanta, bits_per_s) / 2).max(Duration::from_nanos(frames.max(1)))
}

/// Time of so many quanta at this rate.
fn quanta_time(quanta: u16, bits_per_s: u64) -> Duration {
    Duration::from_nanos(u64::from(quanta) * QUANTUM * 1_000_000_000 / bits_per_s)
}

impl Fabric {
    /// Asks the sender of `pipe` to pause, or to go on.
    pub(super) fn ask(&mut self, pipe: usize, priority: u8, xoff: bool) {
        let bit = 1 << priority;
        let (quanta, xon) = self.pause_of(pipe);
        if xoff {
            self.pipes[pipe].ingress.xoff |= bit;
            let after = refresh_after(quanta, self.pipes[pipe].link.bits_per_s);
            let to = u32_of(pipe);
            self.events.push(self.moment + after, Event::Refresh(to, priority));
            self.send_pause(pipe, PauseFrame { priority, quanta });
        } else {
            self.pipes[pipe].ingress.xoff &= !bit;
            if xon == Xon::Explicit {
                self.send_pause(pipe, PauseFrame { priority, quanta: 0 });
            }
        }
    }

    /// How whoever is at the end of a pipe pauses.
    fn pause_of(&self, pipe: usize) -> (u16, Xon) {
        match self.pipes[pipe].to {
            Node::Switch(s) => {
                let pfc = self.switches[s].config.as_ref().and_then(|config| config.pfc);
                pfc.map_or((u16::MAX, Xon::Explicit), |pfc| (pfc.quanta, pfc.xon))
            }
            Node::Host(_) => (u16::MAX, Xon::Explicit),
        }
    }

    /// Half of a pause is over: if there is still too much, the other end is asked again.
    pub(super) fn refresh(&mut self, pipe: usize, priority: u8) {
        let Some(due) = self.pipes[pipe].counters.refresh_due(priority) else { return };
        if due <= self.now && self.pipes[pipe].ingress.xoff & 1 << priority != 0 {
            self.ask(pipe, priority, true);
        }
    }

    /// Sends a pause to the sender of `pipe`: by the other way of its cable.
    fn send_pause(&mut self, pipe: usize, frame: PauseFrame) {
        let back = pipe ^ 1;
        let (quanta, _) = self.pause_of(pipe);
        let after = refresh_after(quanta, self.pipes[pipe].link.bits_per_s);
        let due = (frame.quanta != 0).then(|| self.now + after);
        self.pipes[pipe].counters.note_asked(frame, self.now, due);
        if !self.is_pipe_up(back) {
            return;
        }
        self.pipes[back].counters.count_pause(frame);
        self.pipes[back].control.push_back(frame);
        self.go_on(back);
    }

    /// Puts a pause onto a line that is free.
    pub(super) fn start_pause(&mut self, pipe: usize, ready: Moment) -> bool {
        let p = &mut self.pipes[pipe];
        let Some(frame) = p.control.pop_front() else { return false };
        let sent = p.line.send(ready, PAUSE_FRAME);
        let at = later(sent, p.link.delay, 0);
        let cut = p.cut;
        self.events.push(at, Event::Pause(u32_of(pipe), frame, cut));
        self.capture_pause(pipe, frame);
        true
    }

    /// A pause has arrived at the end of `pipe`: it is for who sends the other way.
    pub(super) fn paused(&mut self, pipe: usize, frame: PauseFrame, cut: u32) {
        if cut != self.pipes[pipe].cut {
            return;
        }
        let back = pipe ^ 1;
        let now = self.now;
        let (priority, bit) = (usize::from(frame.priority), 1 << frame.priority);
        self.pipes[pipe].counters.count_pause_arrived(frame);
        let is_paused = self.pipes[back].paused.mask & bit != 0;
        if frame.quanta == 0 {
            if is_paused {
                self.end_pause(back, frame.priority);
            }
            return;
        }
        let p = &mut self.pipes[back];
        let until = self.moment + quanta_time(frame.quanta, p.link.bits_per_s);
        p.paused.until[priority] = until;
        self.events.push(until, Event::Resume(u32_of(back), frame.priority));
        if !is_paused {
            p.paused.mask |= bit;
            p.paused.since[priority] = now;
            if let Some(watchdog) = self.watchdog_of(back) {
                self.watch_at(back, frame.priority, now + watchdog.detect);
            }
        }
    }

    /// A cable is cut: its pauses are over.
    pub(super) fn forget_pauses(&mut self, pipe: usize) {
        let now = self.now;
        let p = &mut self.pipes[pipe];
        p.control.clear();
        for priority in p.paused.priorities() {
            let lasted = now.saturating_since(p.paused.since(priority));
            p.counters.count_paused(priority, nanos(lasted));
        }
        p.paused.clear();
    }

    /// The time of a pause is over, unless it was prolonged.
    pub(super) fn pause_is_over(&mut self, pipe: usize, priority: u8) {
        let paused = &self.pipes[pipe].paused;
        if paused.is(priority) && paused.until[usize::from(priority)] <= self.moment {
            self.end_pause(pipe, priority);
        }
    }

    fn end_pause(&mut self, pipe: usize, priority: u8) {
        let now = self.now;
        let watchdog = self.watchdog_of(pipe);
        let p = &mut self.pipes[pipe];
        p.paused.mask &= !(1 << priority);
        p.released = self.moment;
        let lasted = now.saturating_since(p.paused.since(priority));
        p.counters.count_paused(priority, nanos(lasted));
        if p.paused.given_up & 1 << priority != 0
            && let Some(watchdog) = watchdog
        {
            // It counts from the end of the last pause.
            p.paused.since[usize::from(priority)] = now;
            let at = now + watchdog.restore;
            self.events.push(at.into(), Event::Restore(u32_of(pipe), priority));
        }
        self.go_on(pipe);
        self.offer_room_to(pipe);
    }

    fn watchdog_of(&self, pipe: usize) -> Option<Watchdog> {
        match self.pipes[pipe].from {
            Node::Switch(s) => self.switches[s].config.as_ref()?.watchdog,
            Node::Host(_) => None,
        }
    }

    /// Has the watchdog look, if it will not look anyway.
    fn watch_at(&mut self, pipe: usize, priority: u8, at: Instant) {
        let watched = &mut self.pipes[pipe].paused.watched;
        if *watched & 1 << priority == 0 {
            *watched |= 1 << priority;
            self.events.push(at.into(), Event::Watch(u32_of(pipe), priority));
        }
    }

    /// The watchdog looks at a queue that was paused when it last looked, or since.
    pub(super) fn watch_queue(&mut self, pipe: usize, priority: u8) {
        let Some(watchdog) = self.watchdog_of(pipe) else { return };
        let p = &mut self.pipes[pipe];
        let bit = 1 << priority;
        p.paused.watched &= !bit;
        if !p.paused.is(priority) || p.paused.given_up & bit != 0 {
            return;
        }
        let due = p.paused.since(priority) + watchdog.detect;
        if due > self.now || p.queued_of(priority) == 0 {
            // Another pause than the one for which it came; or nothing is stuck yet.
            let at = due.max(self.now + watchdog.detect / 8);
            return self.watch_at(pipe, priority, at);
        }
        p.paused.given_up |= bit;
        p.counters.watchdog_fired += 1;
        p.counters.watchdog_at.get_or_insert(self.now);
        while let Some(packet) = self.pipes[pipe].take(priority) {
            self.pipes[pipe].counters.watchdog_flushed += 1;
            self.release(Held { via: packet.via, priority, frame: packet.frame });
            self.drop_at(pipe, packet.id, Fate::Watchdog);
        }
    }

    /// A queue that was given up has not been paused for some time, or has been again.
    pub(super) fn restore_queue(&mut self, pipe: usize, priority: u8) {
        let Some(watchdog) = self.watchdog_of(pipe) else { return };
        let p = &mut self.pipes[pipe];
        let quiet = p.paused.since(priority) + watchdog.restore <= self.now;
        if !p.paused.is(priority) && quiet {
            p.paused.given_up &= !(1 << priority);
        }
    }

    /// Whether the watchdog has given up the queue that a packet is for.
    pub(super) fn is_given_up(&self, pipe: usize, priority: u8) -> bool {
        self.pipes[pipe].paused.given_up & 1 << priority != 0
    }

    /// A packet ends at the near end of a pipe.
    pub(super) fn drop_at(&mut self, pipe: usize, id: PacketId, fate: Fate) {
        self.pipes[pipe].counters.count_drop(fate);
        let host = self.blamed(pipe, id);
        self.drop_packet(id, fate, host);
    }
}

/// A pipe's number as events carry it.
pub(super) fn u32_of(pipe: usize) -> u32 {
    u32::try_from(pipe).expect("memory ends before 2^31 cables")
}
