//! Who stands beside an engine: looks at what it does, has requests fail, or has bytes land late.
//!
//! A device on a real network has nobody there, and pays one branch at each place where somebody could be told. All
//! are asked through the same option, so a place that tells can judge at no further cost.
//!
//! # Bytes that land late
//! What a WRITE brings, and what answers a READ, is in memory when its packet was handled. Hardware promises less.
//! With [`Late`] in place such bytes are held, in lines of 64, and each line lands at a random time of its own, at the
//! latest when something happens that the standard lets a program rely on (IBTA o9-20, and annex A19 for FLUSH):
//!
//! - a completion is about to be written here, or a request of our own is done: a receive, a READ;
//! - a packet other than one of a WRITE without immediate data arrives here: a SEND, a READ, an atomic, an ATOMIC
//!   WRITE, a FLUSH find in memory what came before them;
//! - memory is deregistered, a queue pair modified or destroyed: nothing is touched later.
//!
//! That a WRITE was acknowledged is none of these. Bytes for a line that has some on the way have those land first,
//! so that what was written last stays.

use std::collections::BTreeMap;
use std::fmt;

use rand_chacha::ChaCha8Rng;

use super::status::WcStatus;
use super::trace::{NicEvent, Observer, PacketBrief};
use crate::mem::place::Place;
use crate::mem::{AccessError, MrTable};
use crate::queue::CqeKind;
use crate::seed::below;
use crate::time::{Duration, Instant, nanos};
use crate::wire::opcode::Operation;

/// Decides about completions that would be successful.
pub trait Judge: Send + fmt::Debug {
    /// The status that a completion of this queue pair gets instead; `None`: it may succeed.
    fn judge(&mut self, qpn: u32, kind: CqeKind) -> Option<WcStatus>;
}

/// Who stands beside an engine. Empty, it is not there at all.
#[derive(Debug, Default)]
pub(super) struct Watch {
    pub(super) observer: Option<Box<dyn Observer>>,
    pub(super) judge: Option<Box<dyn Judge>>,
    pub(super) late: Option<Late>,
}

impl Watch {
    pub(super) const fn is_empty(&self) -> bool {
        self.observer.is_none() && self.judge.is_none() && self.late.is_none()
    }

    /// Something happened: what must be in memory by then is put there, and the observer is told.
    pub(super) fn tell(&mut self, at: Instant, event: NicEvent, mrs: &MrTable) {
        if let Some(late) = &mut self.late {
            let orders = match event {
                NicEvent::Arrived(packet) => !is_plain(&packet),
                NicEvent::Retired { .. } | NicEvent::Completed { .. } => true,
                _ => false,
            };
            if orders {
                late.land_all(mrs);
            }
        }
        if let Some(observer) = &mut self.observer {
            observer.observe(at, event);
        }
    }
}

/// A packet that brings bytes and orders none.
fn is_plain(packet: &PacketBrief) -> bool {
    let info = packet.opcode.info();
    match info.operation {
        Operation::Write => !info.has_imm(),
        // Not of this side's memory; or by the request that they answer.
        Operation::ReadResponse | Operation::Acknowledge | Operation::Cnp => true,
        _ => false,
    }
}

/// Bytes of a line.
const LINE: usize = 64;
/// Moments at which the lines of a packet land: few enough that a long message does not take long to simulate.
const MOMENTS: u64 = 16;

/// Bytes that have not landed yet. See the [module](self).
pub struct Late {
    rng: ChaCha8Rng,
    within: Duration,
    /// By time and order of arrival.
    pieces: BTreeMap<(Instant, u64), Piece>,
    /// Those of each line of memory.
    lines: BTreeMap<(usize, u64), Instant>,
    taken: u64,
}

/// Bytes of one line.
#[derive(Clone, Copy)]
struct Piece {
    place: Place,
    bytes: [u8; LINE],
    len: usize,
}

impl Late {
    /// Lines land within this time, by a stream of their own.
    pub fn new(within: Duration, rng: ChaCha8Rng) -> Self {
        Self { rng, within, pieces: BTreeMap::new(), lines: BTreeMap::new(), taken: 0 }
    }

    /// Takes in what arrived at `now`.
    pub(super) fn hold(&mut self, now: Instant, mrs: &MrTable, mut place: Place, mut src: &[u8]) {
        let step = nanos(self.within) / MOMENTS;
        while !src.is_empty() {
            let (piece, rest) = src.split_at((LINE - place.address % LINE).min(src.len()));
            let line = place.address / LINE;
            self.land_line(mrs, line);
            let wait = step.saturating_mul(below(&mut self.rng, MOMENTS + 1));
            let key = (now + Duration::from_nanos(wait), self.taken);
            self.taken += 1;
            let mut bytes = [0; LINE];
            bytes[..piece.len()].copy_from_slice(piece);
            self.pieces.insert(key, Piece { place, bytes, len: piece.len() });
            self.lines.insert((line, key.1), key.0);
            (place, src) = (place.skip(piece.len()), rest);
        }
    }

    /// When the next line lands.
    pub(super) fn next(&self) -> Option<Instant> {
        self.pieces.keys().next().map(|&(at, _)| at)
    }

    /// Lets land what lands up to `now`.
    pub(super) fn land(&mut self, now: Instant, mrs: &MrTable) {
        while let Some(entry) = self.pieces.first_entry() {
            let (at, number) = *entry.key();
            if at > now {
                return;
            }
            let piece = entry.remove();
            self.lines.remove(&(piece.place.address / LINE, number));
            write(&piece, mrs);
        }
    }

    /// Lets everything land.
    pub(super) fn land_all(&mut self, mrs: &MrTable) {
        self.land(Instant::FAR_FUTURE, mrs);
    }

    fn land_line(&mut self, mrs: &MrTable, line: usize) {
        while let Some((&key, &at)) = self.lines.range((line, 0)..=(line, u64::MAX)).next() {
            self.lines.remove(&key);
            if let Some(piece) = self.pieces.remove(&(at, key.1)) {
                write(&piece, mrs);
            }
        }
    }
}

/// What is not registered any more had landed before.
fn write(piece: &Piece, mrs: &MrTable) {
    if let Some(target) = mrs.at(&piece.place, piece.len) {
        target.write_from(0, &piece.bytes[..piece.len]);
    }
}

impl fmt::Debug for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Late")
            .field("within", &self.within)
            .field("pieces", &self.pieces.len())
            .finish_non_exhaustive()
    }
}

/// The result of placing bytes.
pub(super) type Placed = Result<(), AccessError>;
