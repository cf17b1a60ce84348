//! One direction of a cable: the queues in front of the line, the line, and the way to its other end.
//!
//! *Owns* the order of the packets waiting, the state of the line, what was asked to pause, and the random streams of
//! the cable's faults. *Rules.* Within a priority first in, first out; a packet on the line is out of the queue. What
//! must not wait (pauses) goes before everything. Where nobody speaks of priorities, everything is in priority 0.

use std::collections::VecDeque;
use std::fmt;

use rand_chacha::ChaCha8Rng;

use crate::seed::Seeds;

use super::link::{Line, Link};
use super::moment::Moment;
use super::pause::{PauseFrame, Paused};
use super::ports::PipeCounters;
use super::store::PacketId;
use super::switch::{Ingress, PRIORITIES, Scheduler};

/// The shortest frame of an Ethernet.
const SHORTEST: usize = 64;

/// What a pipe begins at or leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// The switch of this index.
    Switch(usize),
    /// The host of this index.
    Host(usize),
}

/// A packet that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) id: PacketId,
    pub(super) frame: usize,
    /// The pipe by which it came into the switch that it waits in.
    pub(super) via: usize,
}

/// A frame on the line, which the switch holds until its last bit has left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) via: usize,
    pub(super) priority: u8,
    pub(super) frame: usize,
}

/// One direction of a cable.
#[derive(Debug)]
pub(super) struct Pipe {
    pub(super) link: Link,
    pub(super) line: Line,
    pub(super) from: Node,
    pub(super) to: Node,
    /// Whether it is up. The pipes of a host follow their host.
    pub(super) up: bool,
    /// How often the link went down.
    pub(super) cut: u32,
    /// When the last packet arrives that went onto the line: none arrives before it.
    pub(super) last_arrival: Moment,
    /// Whether an event will take the next packet from the queue.
    pub(super) draining: bool,
    pub(super) dice: Dice,
    /// The end of each frame is an event, whether something waits for it or not: where several lines run in step,
    /// the order among them then stays what it was, and is not that in which their hosts refill them.
    pub(super) timed: bool,
    /// It begins at a switch that accounts for what lies in it.
    pub(super) managed: bool,
    /// What is on the line, at such a switch.
    pub(super) sending: Option<Held>,
    /// Pauses to send.
    pub(super) control: VecDeque<PauseFrame>,
    /// What its sender was asked to pause.
    pub(super) paused: Paused,
    /// Priority of the frame that went onto the line last.
    pub(super) last_priority: u8,
    /// When a pause was over last.
    pub(super) released: Moment,
    /// What came by it and lies in the switch at its end.
    pub(super) ingress: Ingress,
    pub(super) counters: PipeCounters,
    queues: [VecDeque<Waiting>; PRIORITIES],
    bytes: [usize; PRIORITIES],
    /// Priorities that have packets, a bit each.
    filled: u8,
    scheduler: Scheduler,
    /// What is left of its quantum to each priority, and whose turn it is.
    deficit: [u32; PRIORITIES],
    turn: u8,
    /// Whoever's turn it is has got its quantum.
    granted: bool,
    queued: usize,
}

impl Pipe {
    pub(super) fn new(link: Link, from: Node, to: Node, seeds: &Seeds) -> Self {
        Self {
            link,
            line: Line::new(link.bits_per_s),
            from,
            to,
            up: true,
            cut: 0,
            last_arrival: Moment::ZERO,
            draining: false,
            dice: Dice::new(seeds),
            timed: false,
            managed: false,
            sending: None,
            control: VecDeque::new(),
            paused: Paused::default(),
            last_priority: 0,
            released: Moment::ZERO,
            ingress: Ingress::default(),
            counters: PipeCounters::default(),
            queues: [const { VecDeque::new() }; PRIORITIES],
            bytes: [0; PRIORITIES],
            filled: 0,
            scheduler: Scheduler::default(),
            deficit: [0; PRIORITIES],
            turn: 0,
            granted: false,
            queued: 0,
        }
    }

    pub(super) fn set_link(&mut self, link: Link) {
        if link.bits_per_s != self.link.bits_per_s {
            self.line.set_rate(link.bits_per_s);
        }
        self.link = link;
    }

    pub(super) const fn set_scheduler(&mut self, scheduler: Scheduler) {
        self.scheduler = scheduler;
    }

    /// Whether a packet of this priority goes onto the line at once.
    pub(super) fn is_idle(&self, now: Moment, priority: u8) -> bool {
        self.ready() == 0
            && self.control.is_empty()
            && self.line.free_at() <= now
            && !(self.timed && self.draining)
            && self.filled & 1 << priority == 0
            && !self.paused.is(priority)
    }

    /// Frame bytes waiting.
    pub(super) const fn queued(&self) -> usize {
        self.queued
    }

    /// Frame bytes of a priority waiting.
    pub(super) fn queued_of(&self, priority: u8) -> usize {
        self.bytes[usize::from(priority)]
    }

    /// Whether the queue is one of several frames.
    pub(super) const fn queues_frames(&self) -> bool {
        self.link.queue >= SHORTEST
    }

    /// Whether a NIC that queues less than a frame builds none: what it sent last was asked to pause. A frame built
    /// meanwhile would leave late, and right before the next one, as if its flow were faster than it is.
    pub(super) const fn is_held_at_source(&self) -> bool {
        !self.queues_frames() && self.paused.is(self.last_priority)
    }

    /// Whether another frame may wait. A switch drops what may not; a host does not send it.
    pub(super) fn has_room_for(&self, frame: usize) -> bool {
        self.queued.saturating_add(frame) <= self.link.queue
    }

    /// Puts a packet at the end of the queue of its priority.
    pub(super) fn push(&mut self, packet: Waiting, priority: u8) {
        let p = usize::from(priority);
        self.queued += packet.frame;
        self.bytes[p] += packet.frame;
        self.filled |= 1 << p;
        self.queues[p].push_back(packet);
    }

    /// Priorities that have packets and may send.
    pub(super) const fn ready(&self) -> u8 {
        self.filled & !self.paused.mask()
    }

    /// Whether something may go onto the line.
    pub(super) fn has_work(&self) -> bool {
        self.ready() != 0 || !self.control.is_empty()
    }

    /// Takes the packet whose turn it is, with its priority and the length of its queue, itself included.
    pub(super) fn pop(&mut self) -> Option<(Waiting, u8, usize)> {
        let priority = self.choose(self.ready())?;
        let before = self.queued_of(priority);
        self.take(priority).map(|packet| (packet, priority, before))
    }

    /// Takes a packet that will not be sent.
    pub(super) fn discard(&mut self) -> Option<(Waiting, u8)> {
        // The highest that has any.
        let priority = u8::try_from(self.filled.checked_ilog2()?).ok()?;
        self.take(priority).map(|packet| (packet, priority))
    }

    /// Takes the first packet of a priority.
    pub(super) fn take(&mut self, priority: u8) -> Option<Waiting> {
        let p = usize::from(priority);
        let packet = self.queues[p].pop_front()?;
        self.bytes[p] -= packet.frame;
        self.queued -= packet.frame;
        if self.queues[p].is_empty() {
            self.filled &= !(1 << p);
            self.deficit[p] = 0;
        }
        Some(packet)
    }

    /// Whose turn it is.
    fn choose(&mut self, ready: u8) -> Option<u8> {
        let strict = ready & self.scheduler.strict;
        if let Some(highest) = strict.checked_ilog2() {
            return u8::try_from(highest).ok();
        }
        if ready.count_ones() <= 1 {
            // Nobody to share with.
            return ready.checked_ilog2().and_then(|p| u8::try_from(p).ok());
        }
        // Ends: with each round a deficit grows by a quantum, which is not 0.
        loop {
            let p = usize::from(self.turn);
            if ready & 1 << p != 0 {
                if !self.granted {
                    self.deficit[p] = self.deficit[p].saturating_add(self.scheduler.quantum[p]);
                    self.granted = true;
                }
                let frame = self.queues[p].front().map_or(0, |packet| packet.frame);
                let frame = u32::try_from(frame).unwrap_or(u32::MAX);
                if self.deficit[p] >= frame {
                    self.deficit[p] -= frame;
                    return Some(self.turn);
                }
            }
            self.turn = (self.turn + 1) % 8;
            self.granted = false;
        }
    }

    /// Whether nothing waits.
    pub(super) const fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// The packets of a priority that wait.
    pub(super) fn waiting(&self, priority: u8) -> impl Iterator<Item = &Waiting> {
        self.queues[usize::from(priority)].iter()
    }
}

/// The random streams of one direction, one for each thing that may go wrong: that losing more packets does
/// not change which ones are corrupted keeps two runs comparable.
pub(super) struct Dice {
    pub(super) loss: ChaCha8Rng,
    pub(super) corrupt: ChaCha8Rng,
    pub(super) duplicate: ChaCha8Rng,
    pub(super) reorder: ChaCha8Rng,
    pub(super) jitter: ChaCha8Rng,
    pub(super) marks: ChaCha8Rng,
}

impl Dice {
    fn new(seeds: &Seeds) -> Self {
        let stream = |purpose| seeds.derive(purpose, 0).rng();
        Self {
            loss: stream("loss"),
            corrupt: stream("corrupt"),
            duplicate: stream("duplicate"),
            reorder: stream("reorder"),
            jitter: stream("jitter"),
            marks: stream("marks"),
        }
    }
}

impl fmt::Debug for Dice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dice").finish_non_exhaustive()
    }
}
