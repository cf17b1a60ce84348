//! What the network remembers: a digest of everything, and a copy of each packet for whoever captures.
//!
//! A packet is recorded when the switch has done with it: as it begins to leave towards its receiver, or as
//! it is dropped. The record is what the receiver gets, marks and flipped bits included.
//!
//! *The digest.* A state of 64 bits, 0 at first. A record is a row of 64-bit words: time and time of arrival
//! in nanoseconds (all ones: never), fate, notes, number of the sending and of the receiving host (all ones:
//! none), source address and destination address (two words each, as IPv6, high half first), source port,
//! traffic class, hop limit, flow label, identification, length; then the bytes of the datagram as
//! little-endian words, filled up with zeros to a multiple of eight words. Four lanes start as
//! [`LANES`]. A lane takes two words in by `lane = fold((lane ^ first) * (second ^ KEY))`, where `fold` is the
//! exclusive or of the two halves of the 128-bit product. Lane 0 takes in the state and a 0; then, of each
//! eight words, every lane takes two in turn; at the end lane 0 takes in the other three, each with a 0, and
//! is the new state. It is integer arithmetic only, so it is the same on every machine.

use std::io;
use std::net::IpAddr;

use crate::net::Path;
use crate::time::Instant;

use super::store::{Notes, Stored};

/// Where the packets of a capture go, such as into a pcapng file.
pub trait PacketSink {
    /// Takes a packet, with the identification that its ICRC was computed with. `comment` says what the
    /// network did to it, if anything: `lost`, `duplicate, corrupted`.
    ///
    /// # Errors
    /// Ends the capture. The fabric keeps the error for whoever stops it.
    fn packet(
        &mut self,
        at: Instant,
        path: &Path,
        ident: u16,
        datagram: &[u8],
        comment: Option<&str>,
    ) -> io::Result<()>;

    /// Takes a frame that is no datagram, such as a pause: Ethernet header and payload, no FCS.
    ///
    /// # Errors
    /// As [`packet`](Self::packet).
    fn frame(&mut self, at: Instant, bytes: &[u8]) -> io::Result<()> {
        let _ = (at, bytes);
        Ok(())
    }

    /// Writes out what is buffered: nothing more will come.
    ///
    /// # Errors
    /// What the writer says.
    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A packet that the switch has done with, as a watcher sees it.
#[derive(Clone, Copy, Debug)]
pub struct Passage<'a> {
    /// When.
    pub at: Instant,
    /// When its last bit reaches the receiver; `None`: never.
    pub arrival: Option<Instant>,
    /// Why not.
    pub dropped: Option<&'static str>,
    /// What else happened to it.
    pub notes: Notes,
    /// Number of the sending host.
    pub from: usize,
    /// Number of the receiving host; `None` if the switch does not know one.
    pub to: Option<usize>,
    /// IP and UDP fields.
    pub path: &'a Path,
    /// BTH to ICRC.
    pub datagram: &'a [u8],
}

/// Is shown each packet when the switch has done with it.
pub type Watcher = Box<dyn FnMut(&Passage<'_>) + Send>;

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Fate {
    /// On its way to the receiver.
    Passed = 0,
    /// Lost by the probability of the link.
    Lost = 1,
    /// Dropped by the tap.
    Tapped = 2,
    /// Dropped by a rule.
    Ruled = 3,
    /// Dropped because the queue was full.
    QueueFull = 4,
    /// Dropped because it is larger than the MTU.
    TooBig = 5,
    /// Dropped because nobody has the address.
    NoRoute = 6,
    /// Dropped because the link was down, or went down around it.
    LinkDown = 7,
    /// Dropped because the buffer of a switch, or of a slow host, was full.
    BufferFull = 8,
    /// Dropped because the port by which it came held more than its share, headroom included.
    OverShare = 9,
    /// Dropped instead of being marked.
    NotMarkable = 10,
    /// Dropped because the watchdog has given its queue up.
    Watchdog = 11,
}

impl Fate {
    const fn comment(self) -> Option<&'static str> {
        match self {
            Self::Passed => None,
            Self::Lost => Some("lost"),
            Self::Tapped => Some("dropped by the tap"),
            Self::Ruled => Some("dropped by a rule"),
            Self::QueueFull => Some("dropped: queue full"),
            Self::TooBig => Some("dropped: larger than the MTU"),
            Self::NoRoute => Some("dropped: no host has this address"),
            Self::LinkDown => Some("dropped: link down"),
            Self::BufferFull => Some("dropped: buffer full"),
            Self::OverShare => Some("dropped: its port holds more than its share"),
            Self::NotMarkable => Some("dropped: would have been marked"),
            Self::Watchdog => Some("dropped by the watchdog"),
        }
    }
}

/// The digest and the capture of a fabric.
pub(super) struct Trace {
    digest: u64,
    sink: Option<Box<dyn PacketSink + Send>>,
    outcome: io::Result<()>,
    comment: String,
    watcher: Option<Watcher>,
}

impl Trace {
    pub(super) fn new() -> Self {
        // The longest comment: five notes and a fate.
        let comment = String::with_capacity(128);
        Self { digest: 0, sink: None, outcome: Ok(()), comment, watcher: None }
    }

    pub(super) const fn digest(&self) -> u64 {
        self.digest
    }

    pub(super) const fn is_capturing(&self) -> bool {
        self.sink.is_some()
    }

    pub(super) fn watch(&mut self, watcher: Option<Watcher>) {
        self.watcher = watcher;
    }

    /// Starts a capture, after the end of the one before.
    pub(super) fn start(&mut self, sink: Box<dyn PacketSink + Send>) -> io::Result<()> {
        let before = self.stop();
        self.sink = Some(sink);
        before
    }

    /// Ends the capture. Returns what went wrong.
    pub(super) fn stop(&mut self) -> io::Result<()> {
        let outcome = std::mem::replace(&mut self.outcome, Ok(()));
        match self.sink.take() {
            Some(mut sink) => outcome.and(sink.finish()),
            None => outcome,
        }
    }

    /// Records a packet. `arrival` is when its last bit reaches the host, for one that does.
    pub(super) fn record(&mut self, at: Instant, fate: Fate, p: &Stored, arrival: Instant) {
        self.digest = digest_of(self.digest, &header_of(at, fate, p, arrival), &p.bytes);

        if let Some(watcher) = &mut self.watcher {
            watcher(&Passage {
                at,
                arrival: (arrival != Instant::FAR_FUTURE).then_some(arrival),
                dropped: fate.comment(),
                notes: p.notes,
                from: p.from,
                to: p.to,
                path: &p.path,
                datagram: &p.bytes,
            });
        }
        let Some(sink) = &mut self.sink else { return };
        self.comment.clear();
        for text in p.notes.words() {
            push_word(&mut self.comment, text);
        }
        if let Some(text) = fate.comment() {
            push_word(&mut self.comment, text);
        }
        let comment = Some(&*self.comment).filter(|c| !c.is_empty());
        if let Err(e) = sink.packet(at, &p.path, p.ident, &p.bytes, comment) {
            self.outcome = Err(e);
            self.sink = None;
        }
    }
}

impl Notes {
    /// What happened, in words.
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        let words = [
            (Self::DUPLICATE, "duplicate"),
            (Self::CORRUPTED, "corrupted"),
            (Self::HELD, "held back"),
            (Self::CHANGED, "changed"),
            (Self::MARKED, "congestion experienced"),
        ];
        words.into_iter().filter_map(move |(note, word)| self.contains(note).then_some(word))
    }
}

fn push_word(list: &mut String, word: &str) {
    if !list.is_empty() {
        list.push_str(", ");
    }
    list.push_str(word);
}

/// The words of a record in front of its bytes.
fn header_of(at: Instant, fate: Fate, p: &Stored, arrival: Instant) -> [u64; 16] {
    let Path { src, dst, src_port, traffic_class, hop_limit, flow_label, scope_id: _ } = p.path;
    let host = |h: Option<usize>| h.map_or(u64::MAX, |h| h as u64);
    let [src_high, src_low] = halves(src);
    let [dst_high, dst_low] = halves(dst);
    [
        at.as_nanos(),
        arrival.as_nanos(),
        fate as u64,
        p.notes.bits().into(),
        host(Some(p.from)),
        host(p.to),
        src_high,
        src_low,
        dst_high,
        dst_low,
        src_port.into(),
        traffic_class.into(),
        hop_limit.into(),
        flow_label.into(),
        p.ident.into(),
        p.len() as u64,
    ]
}

fn halves(ip: IpAddr) -> [u64; 2] {
    let bits = super::as_v6(ip);
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of 128 bits")]
    let halves = [(bits >> 64) as u64, bits as u64];
    halves
}

/// The golden ratio.
const KEY: u64 = 0x9e37_79b9_7f4a_7c15;
/// The first hexadecimal digits of pi behind the point.
const LANES: [u64; 4] =
    [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344, 0xa409_3822_299f_31d0, 0x082e_fa98_ec4e_6c89];

/// Takes two words into a lane.
const fn step(lane: u64, first: u64, second: u64) -> u64 {
    let product = (lane ^ first) as u128 * (second ^ KEY) as u128;
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of 128 bits")]
    let folded = (product >> 64) as u64 ^ product as u64;
    folded
}

/// Takes a record into the state. Four lanes, because one would wait for its own multiplications.
fn digest_of(state: u64, header: &[u64; 16], bytes: &[u8]) -> u64 {
    let mut lanes = LANES;
    lanes[0] = step(lanes[0], state, 0);
    let mut take = |words: &[u64; 8]| {
        for (lane, [first, second]) in lanes.iter_mut().zip(words.as_chunks().0) {
            *lane = step(*lane, *first, *second);
        }
    };
    let words_of = |block: &[u8; 64]| {
        let mut words = [0; 8];
        for (word, bytes) in words.iter_mut().zip(block.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        words
    };
    header.as_chunks().0.iter().for_each(&mut take);
    let (blocks, rest) = bytes.as_chunks();
    for block in blocks {
        take(&words_of(block));
    }
    if !rest.is_empty() {
        let mut last = [0; 64];
        last[..rest.len()].copy_from_slice(rest);
        take(&words_of(&last));
    }
    let [first, others @ ..] = lanes;
    others.into_iter().fold(first, |state, lane| step(state, lane, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_counts() {
        let header = [3; 16];
        let original: Vec<u8> = (0u8..100).collect();
        let mut seen = std::collections::BTreeSet::from([digest_of(0, &header, &original)]);
        for bit in 0..64 {
            assert!(seen.insert(digest_of(1 << bit, &header, &original)), "state, bit {bit}");
        }
        for bit in 0..16 * 64 {
            let mut changed = header;
            changed[bit / 64] ^= 1 << (bit % 64);
            assert!(seen.insert(digest_of(0, &changed, &original)), "header, bit {bit}");
        }
        for bit in 0..800 {
            let mut changed = original.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(seen.insert(digest_of(0, &header, &changed)), "bytes, bit {bit}");
        }
        let mut turned = original.clone();
        turned.rotate_left(8);
        assert!(seen.insert(digest_of(0, &header, &turned)), "words in another order");
        // Changes of the highest bits in one lane, which a plain multiplication would never move down.
        let mut tops = original;
        tops[7] ^= 0x80;
        tops[71] ^= 0x80;
        assert!(seen.insert(digest_of(0, &header, &tops)));
    }

    #[test]
    fn the_documented_function() {
        // Computed by another implementation of the module's description.
        let header = std::array::from_fn(|i| i as u64);
        let bytes: Vec<u8> = (0u8..100).collect();
        assert_eq!(digest_of(0, &header, &[]), 0x469f_2434_156d_7e9c);
        assert_eq!(digest_of(42, &header, &bytes), 0x544d_d583_2960_e9e9);
    }
}
