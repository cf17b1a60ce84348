//! Hosts that take packets in slowly, or not at all: what makes a NIC ask its switch to pause.

use std::collections::VecDeque;

use super::link::Line;
use super::moment::Moment;
use super::pause::u32_of;
use super::store::PacketId;
use super::trace::Fate;
use super::{Direction, Event, Fabric, FabricError, HostId};

/// How a host takes packets in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receiver {
    /// Bits per second at which it empties its buffer, counted as on the line; 0: it is stalled.
    pub bits_per_s: u64,
    /// Frame bytes that fit into its buffer; more are dropped.
    pub buffer: usize,
    /// Bytes above which it asks its switch to pause.
    pub xoff: usize,
    /// Bytes down to which it must come before it lets the switch go on.
    pub xon: usize,
}

/// The buffer of a host that takes packets in slowly.
#[derive(Debug)]
pub(super) struct Inflow {
    config: Receiver,
    line: Line,
    waiting: VecDeque<(PacketId, usize)>,
    held: usize,
    /// An event will take the first packet out.
    busy: bool,
}

impl Fabric {
    /// Has a host take packets in at this speed, from a buffer of its own; `None`: at once, as at first. What is in the
    /// buffer then is taken in at once.
    ///
    /// # Errors
    /// If there is no such host, or the thresholds contradict each other.
    pub fn set_receiver(
        &mut self,
        host: HostId,
        receiver: Option<Receiver>,
    ) -> Result<(), FabricError> {
        let index = self.index(host)?;
        if let Some(Receiver { buffer, xoff, xon, .. }) = receiver
            && !(xon <= xoff && xoff < buffer)
        {
            return Err(FabricError::Receiver { buffer, xoff, xon });
        }
        let before = self.hosts[index].inflow.take();
        let mut left = before.map_or_else(VecDeque::new, |inflow| inflow.waiting);
        let Some(config) = receiver else {
            while let Some((id, _)) = left.pop_front() {
                self.deliver(index, id);
            }
            self.end_pauses(index);
            return Ok(());
        };
        let held = left.iter().map(|&(_, frame)| frame).sum();
        let line = Line::new(config.bits_per_s.max(1));
        // An event that is under way finds out that another buffer is there.
        self.hosts[index].inflow = Some(Inflow { config, line, waiting: left, held, busy: false });
        self.take_next(index);
        Ok(())
    }

    /// A packet has come to a host by its cable.
    pub(super) fn take_in(&mut self, index: usize, pipe: usize, id: PacketId, frame: usize) {
        let Some(inflow) = &mut self.hosts[index].inflow else { return self.deliver(index, id) };
        if inflow.held + frame > inflow.config.buffer {
            return self.drop_at(pipe, id, Fate::BufferFull);
        }
        inflow.held += frame;
        inflow.waiting.push_back((id, frame));
        let over = inflow.held > inflow.config.xoff;
        let priority = self.priority_at(self.pipes[pipe].from, self.store.get(id));
        if over && self.pipes[pipe].ingress.xoff & 1 << priority == 0 {
            self.ask(pipe, priority, true);
        }
        self.take_next(index);
    }

    /// Has the next packet taken in, if nothing is.
    fn take_next(&mut self, index: usize) {
        let now = self.moment;
        let Some(inflow) = &mut self.hosts[index].inflow else { return };
        let Some(&(_, frame)) = inflow.waiting.front() else { return };
        if inflow.busy || inflow.config.bits_per_s == 0 {
            return;
        }
        inflow.busy = true;
        let ready = if inflow.line.free_at() < now { now } else { Moment::ZERO };
        let done = inflow.line.send(ready, frame);
        self.events.push(done, Event::Drained(u32_of(index)));
    }

    /// A host has taken a packet in.
    pub(super) fn drained(&mut self, index: usize) {
        let Some(inflow) = &mut self.hosts[index].inflow else { return };
        // The event may be of a buffer that was replaced: then its line is not free yet.
        if !inflow.busy || inflow.line.free_at() > self.moment {
            return;
        }
        inflow.busy = false;
        let Some((id, frame)) = inflow.waiting.pop_front() else { return };
        inflow.held -= frame;
        let may_go_on = inflow.held <= inflow.config.xon;
        self.deliver(index, id);
        if may_go_on {
            self.end_pauses(index);
        }
        self.take_next(index);
    }

    /// A host lets its switch go on.
    fn end_pauses(&mut self, index: usize) {
        let pipe = self.pipe_of(index, Direction::Down);
        for priority in 0..8 {
            if self.pipes[pipe].ingress.xoff & 1 << priority != 0 {
                self.ask(pipe, priority, false);
            }
        }
    }

    /// What a host has not taken in yet is gone.
    pub(super) fn forget_inflow(&mut self, index: usize) {
        let Some(inflow) = &mut self.hosts[index].inflow else { return };
        inflow.held = 0;
        inflow.busy = false;
        let waiting = std::mem::take(&mut inflow.waiting);
        let pipe = self.pipe_of(index, Direction::Down);
        self.pipes[pipe].ingress.xoff = 0;
        for (id, _) in waiting {
            self.drop_at(pipe, id, Fate::LinkDown);
        }
    }
}
