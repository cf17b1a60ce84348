//! One direction of a cable: the queue in front of the line, the line, and the way to its other end.
//!
//! *Owns* the order of the packets waiting, the state of the line, and the random streams of the cable's
//! faults. *Rules.* First in, first out; a packet on the line is out of the queue.

use std::collections::VecDeque;
use std::fmt;

use rand_chacha::ChaCha8Rng;

use crate::seed::Seeds;
use crate::time::Instant;

use super::link::{Line, Link};
use super::store::PacketId;

/// What a pipe leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// The switch.
    Switch,
    /// The host of this index.
    Host(usize),
}

/// One direction of a cable.
#[derive(Debug)]
pub(super) struct Pipe {
    pub(super) link: Link,
    pub(super) line: Line,
    pub(super) to: Node,
    /// Index of the host whose cable this is.
    pub(super) host: usize,
    /// How often the link went down.
    pub(super) cut: u64,
    /// When the last packet arrives that went onto the line: none arrives before it.
    pub(super) last_arrival: Instant,
    /// Whether an event will take the next packet from the queue.
    pub(super) draining: bool,
    pub(super) dice: Dice,
    waiting: VecDeque<(PacketId, usize)>,
    queued: usize,
}

impl Pipe {
    pub(super) fn new(link: Link, to: Node, host: usize, seeds: &Seeds) -> Self {
        Self {
            link,
            line: Line::new(link.bits_per_s),
            to,
            host,
            cut: 0,
            last_arrival: Instant::ZERO,
            draining: false,
            dice: Dice::new(seeds),
            waiting: VecDeque::new(),
            queued: 0,
        }
    }

    pub(super) fn set_link(&mut self, link: Link) {
        if link.bits_per_s != self.link.bits_per_s {
            self.line.set_rate(link.bits_per_s);
        }
        self.link = link;
    }

    /// Whether a packet goes onto the line at once.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        self.waiting.is_empty() && self.line.free_at() <= now
    }

    /// Frame bytes waiting.
    pub(super) const fn queued(&self) -> usize {
        self.queued
    }

    /// Whether another frame may wait. A switch drops what may not; a host does not send it.
    pub(super) fn has_room_for(&self, frame: usize) -> bool {
        self.queued.saturating_add(frame) <= self.link.queue
    }

    /// Puts a packet at the end of the queue.
    pub(super) fn push(&mut self, id: PacketId, frame: usize) {
        self.queued += frame;
        self.waiting.push_back((id, frame));
    }

    /// Takes the packet at the head of the queue, and its frame bytes.
    pub(super) fn pop(&mut self) -> Option<(PacketId, usize)> {
        let (id, frame) = self.waiting.pop_front()?;
        self.queued -= frame;
        Some((id, frame))
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
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
        }
    }
}

impl fmt::Debug for Dice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dice").finish_non_exhaustive()
    }
}
