//! Frames that wait: answers for the link, datagrams for the address of a neighbour, and what we send to
//! ourselves.
//!
//! *Rules.* All are bounded in bytes, and buffers are used again. What is held for one neighbour leaves in the
//! order in which it came.

use std::collections::VecDeque;
use std::net::IpAddr;

use crate::net::RxMeta;
use crate::wire::frame::Mac;

/// Most bytes of all frames that wait.
const ALL_BYTES: usize = 1 << 20;
/// Most bytes of frames that wait for one neighbour: a little more than the kernel's `unres_qlen_bytes`.
const HOP_BYTES: usize = 256 << 10;
/// Most bytes of datagrams to ourselves: as much as the window of a peer of whom nothing is known, several times.
const OWN_BYTES: usize = 4 << 20;
/// Buffers that are kept for the next frames.
const SPARE: usize = 64;

/// A frame that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) frame: Vec<u8>,
    /// The neighbour whose address is to be found first.
    hop: Option<IpAddr>,
    /// The datagram in it; none in what answers a question.
    pub(super) datagram: Option<Datagram>,
}

/// What is told of a datagram that is sent late, or not at all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Datagram {
    pub(super) dst: IpAddr,
    pub(super) len: usize,
}

/// The frames that wait.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    queue: VecDeque<Waiting>,
    own: VecDeque<(RxMeta, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
    bytes: usize,
    own_bytes: usize,
    /// Frames among them that could leave.
    ready: usize,
}

impl Outbox {
    /// An empty buffer, to be filled and then given to one of the queues.
    pub(super) fn buffer(&mut self) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer
    }

    fn recycle(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARE {
            self.spare.push(buffer);
        }
    }

    /// Whether a frame of `len` bytes may wait for `hop`, or for the link.
    pub(super) fn has_room(&self, hop: Option<IpAddr>, len: usize) -> bool {
        let for_hop =
            || -> usize { self.queue.iter().filter(|w| w.hop == hop).map(|w| w.frame.len()).sum() };
        self.bytes + len <= ALL_BYTES && (hop.is_none() || for_hop() + len <= HOP_BYTES)
    }

    /// A frame that could leave at once.
    pub(super) fn answer(&mut self, frame: Vec<u8>) {
        self.bytes += frame.len();
        self.ready += 1;
        self.queue.push_back(Waiting { frame, hop: None, datagram: None });
    }

    /// A frame without its destination, which `hop` will tell.
    pub(super) fn hold(&mut self, hop: IpAddr, datagram: Datagram, frame: Vec<u8>) {
        self.bytes += frame.len();
        self.queue.push_back(Waiting { frame, hop: Some(hop), datagram: Some(datagram) });
    }

    /// The address of `hop` is known: what waits for it may leave.
    pub(super) fn release(&mut self, hop: IpAddr, mac: Mac) {
        for waiting in self.queue.iter_mut().filter(|w| w.hop == Some(hop)) {
            waiting.hop = None;
            waiting.frame[..6].copy_from_slice(&mac.0);
            self.ready += 1;
        }
    }

    /// Drops the first of what waits for `hop`.
    pub(super) fn give_up(&mut self, hop: IpAddr) -> Option<Datagram> {
        let at = self.queue.iter().position(|w| w.hop == Some(hop))?;
        let waiting = self.queue.remove(at)?;
        self.bytes -= waiting.frame.len();
        self.recycle(waiting.frame);
        waiting.datagram
    }

    /// Whether something could leave.
    pub(super) fn is_ready(&self) -> bool {
        self.ready > 0
    }

    /// What could leave, oldest first.
    pub(super) fn ready(&self) -> impl Iterator<Item = &Waiting> {
        self.queue.iter().filter(|w| w.hop.is_none())
    }

    /// The first of what could leave has left, or is lost.
    pub(super) fn pop_ready(&mut self) -> Option<Option<Datagram>> {
        let at = self.queue.iter().position(|w| w.hop.is_none())?;
        let waiting = self.queue.remove(at)?;
        self.bytes -= waiting.frame.len();
        self.ready -= 1;
        self.recycle(waiting.frame);
        Some(waiting.datagram)
    }

    /// A datagram to ourselves. Says whether there was room.
    pub(super) fn send_to_self(&mut self, meta: RxMeta, datagram: &[u8]) -> bool {
        if self.own_bytes + datagram.len() > OWN_BYTES {
            return false;
        }
        let mut buffer = self.buffer();
        buffer.extend_from_slice(datagram);
        self.own_bytes += datagram.len();
        self.own.push_back((meta, buffer));
        true
    }

    /// Whether there is something from ourselves.
    pub(super) fn has_own(&self) -> bool {
        !self.own.is_empty()
    }

    /// The next datagram from ourselves, into the front of `buf`.
    pub(super) fn take_own(&mut self, buf: &mut [u8]) -> Option<(RxMeta, usize)> {
        let (meta, datagram) = self.own.pop_front()?;
        self.own_bytes -= datagram.len();
        let len = datagram.len().min(buf.len());
        buf[..len].copy_from_slice(&datagram[..len]);
        self.recycle(datagram);
        Some((meta, len))
    }
}
