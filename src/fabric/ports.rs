//! Ports: what each end of a cable counts, by the names that `ethtool -S` has for it.

use std::io;

use crate::time::{Duration, Instant};

use super::pause::PauseFrame;
use super::store::Stored;
use super::switch::PRIORITIES;
use super::trace::{Fate, PacketSink};

/// Names a port: the end of a cable at a switch or at a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub(super) u32);

impl PortId {
    pub(super) const fn pipe(self) -> usize {
        self.0 as usize
    }
}

/// What one direction of a cable has counted.
#[derive(Clone, Debug, Default)]
pub(super) struct PipeCounters {
    /// Begun to be sent.
    packets: [u64; PRIORITIES],
    bytes: [u64; PRIORITIES],
    /// Arrived.
    rx_packets: [u64; PRIORITIES],
    rx_bytes: [u64; PRIORITIES],
    xoff: [u64; PRIORITIES],
    xon: [u64; PRIORITIES],
    rx_xoff: [u64; PRIORITIES],
    rx_xon: [u64; PRIORITIES],
    paused_ns: [u64; PRIORITIES],
    /// When the sender of this pipe was first asked to pause.
    first_asked: Option<Instant>,
    /// When it is asked again.
    due: [Option<Instant>; PRIORITIES],
    marked: u64,
    full: u64,
    over_share: u64,
    no_ect: u64,
    other: u64,
    /// Most bytes that waited.
    peak: [usize; PRIORITIES],
    pub(super) watchdog_fired: u64,
    pub(super) watchdog_flushed: u64,
    pub(super) watchdog_dropped: u64,
    pub(super) watchdog_at: Option<Instant>,
}

impl PipeCounters {
    pub(super) fn count_sent(&mut self, priority: u8, frame: usize) {
        self.packets[usize::from(priority)] += 1;
        self.bytes[usize::from(priority)] += frame as u64;
    }

    pub(super) fn count_arrived(&mut self, priority: u8, frame: usize) {
        self.rx_packets[usize::from(priority)] += 1;
        self.rx_bytes[usize::from(priority)] += frame as u64;
    }

    pub(super) fn count_pause(&mut self, frame: PauseFrame) {
        let p = usize::from(frame.priority);
        *if frame.quanta == 0 { &mut self.xon[p] } else { &mut self.xoff[p] } += 1;
    }

    pub(super) fn count_pause_arrived(&mut self, frame: PauseFrame) {
        let p = usize::from(frame.priority);
        *if frame.quanta == 0 { &mut self.rx_xon[p] } else { &mut self.rx_xoff[p] } += 1;
    }

    pub(super) fn note_asked(&mut self, frame: PauseFrame, now: Instant, due: Option<Instant>) {
        if due.is_some() {
            self.first_asked.get_or_insert(now);
        }
        self.due[usize::from(frame.priority)] = due;
    }

    pub(super) const fn refresh_due(&self, priority: u8) -> Option<Instant> {
        self.due[priority as usize]
    }

    pub(super) fn count_paused(&mut self, priority: u8, ns: u64) {
        self.paused_ns[usize::from(priority)] += ns;
    }

    pub(super) const fn count_marked(&mut self) {
        self.marked += 1;
    }

    pub(super) fn note_queued(&mut self, priority: u8, bytes: usize) {
        let peak = &mut self.peak[usize::from(priority)];
        *peak = (*peak).max(bytes);
    }

    pub(super) const fn count_drop(&mut self, fate: Fate) {
        match fate {
            Fate::BufferFull | Fate::QueueFull => self.full += 1,
            Fate::OverShare => self.over_share += 1,
            Fate::Watchdog => self.watchdog_dropped += 1,
            Fate::NotMarkable => self.no_ect += 1,
            _ => self.other += 1,
        }
    }
}

/// What a port has counted, sent (`tx`) and received (`rx`), in frames and frame bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortCounters {
    /// Frames sent, of each priority, pauses not counted.
    pub tx_packets: [u64; PRIORITIES],
    /// Their bytes.
    pub tx_bytes: [u64; PRIORITIES],
    /// Frames received.
    pub rx_packets: [u64; PRIORITIES],
    /// Their bytes.
    pub rx_bytes: [u64; PRIORITIES],
    /// Pauses (XOFF) sent: the other end was asked to stop, or to stay so.
    pub tx_pause: [u64; PRIORITIES],
    /// Ends of pauses (XON) sent.
    pub tx_xon: [u64; PRIORITIES],
    /// Pauses received.
    pub rx_pause: [u64; PRIORITIES],
    /// Ends of pauses received.
    pub rx_xon: [u64; PRIORITIES],
    /// Nanoseconds for which this port could not send, of pauses that are over.
    pub rx_pause_ns: [u64; PRIORITIES],
    /// When this port first asked the other end to pause.
    pub first_pause: Option<Duration>,
    /// Frames marked "congestion experienced" as they left.
    pub ecn_marked: u64,
    /// Frames dropped in front of this port because the buffer, or the queue, was full.
    pub drops_full: u64,
    /// Frames dropped in front of this port because the port that they came by held more than its share. If that one
    /// loses nothing, its headroom is too small.
    pub drops_over_share: u64,
    /// Frames dropped instead of being marked, as they were not ECN-capable.
    pub drops_not_ect: u64,
    /// Frames dropped for any other reason: loss, link down, too big.
    pub drops_other: u64,
    /// Most bytes that waited to be sent.
    pub queue_peak: [usize; PRIORITIES],
    /// Queues that the watchdog gave up.
    pub watchdog_fired: u64,
    /// Frames that were in them.
    pub watchdog_flushed: u64,
    /// All frames that it dropped, these included.
    pub watchdog_dropped: u64,
    /// When it first did.
    pub watchdog_at: Option<Duration>,
}

impl PortCounters {
    /// From the two ways of its cable, its own first.
    pub(super) fn of(out: &PipeCounters, back: &PipeCounters) -> Self {
        let since_start = |at: Instant| at.saturating_since(Instant::ZERO);
        Self {
            tx_packets: out.packets,
            tx_bytes: out.bytes,
            rx_packets: back.rx_packets,
            rx_bytes: back.rx_bytes,
            tx_pause: out.xoff,
            tx_xon: out.xon,
            rx_pause: back.rx_xoff,
            rx_xon: back.rx_xon,
            rx_pause_ns: out.paused_ns,
            first_pause: back.first_asked.map(since_start),
            ecn_marked: out.marked,
            drops_full: out.full,
            drops_over_share: out.over_share,
            drops_not_ect: out.no_ect,
            drops_other: out.other,
            queue_peak: out.peak,
            watchdog_fired: out.watchdog_fired,
            watchdog_flushed: out.watchdog_flushed,
            watchdog_dropped: out.watchdog_dropped,
            watchdog_at: out.watchdog_at.map(since_start),
        }
    }

    /// Every counter by the name that `ethtool -S` has for it (mlx5), those of a priority with its number:
    /// `tx_prio3_pause`.
    pub fn iter(&self) -> impl Iterator<Item = (String, u64)> + '_ {
        let rows: [(&str, &str, &[u64; PRIORITIES]); 9] = [
            ("tx", "packets", &self.tx_packets),
            ("tx", "bytes", &self.tx_bytes),
            ("tx", "pause", &self.tx_pause),
            ("tx", "xon", &self.tx_xon),
            ("rx", "packets", &self.rx_packets),
            ("rx", "bytes", &self.rx_bytes),
            ("rx", "pause", &self.rx_pause),
            ("rx", "xon", &self.rx_xon),
            ("rx", "pause_duration_ns", &self.rx_pause_ns),
        ];
        let of_priorities = rows.into_iter().flat_map(|(way, what, counts)| {
            let named = counts.iter().enumerate();
            named.map(move |(priority, &n)| (format!("{way}_prio{priority}_{what}"), n))
        });
        let others = [
            ("tx_ecn_mark", self.ecn_marked),
            ("tx_discards_phy", self.drops_full),
            ("rx_prio_buf_discard", self.drops_over_share),
            ("tx_wred_discard", self.drops_not_ect),
            ("link_discards", self.drops_other),
            ("tx_pause_storm_error_events", self.watchdog_fired),
            ("tx_pause_storm_discard", self.watchdog_dropped),
        ];
        of_priorities.chain(others.map(|(name, n)| (name.to_owned(), n)))
    }

    /// Pauses sent, of all priorities.
    pub fn pauses_sent(&self) -> u64 {
        self.tx_pause.iter().sum()
    }

    /// Frames dropped in front of this port, whatever the reason.
    pub const fn drops(&self) -> u64 {
        self.drops_full
            + self.drops_over_share
            + self.drops_not_ect
            + self.watchdog_dropped
            + self.drops_other
    }
}

/// A capture of what leaves by a port.
pub(super) struct PortTap {
    pipe: usize,
    sink: Option<Box<dyn PacketSink + Send>>,
    outcome: io::Result<()>,
}

impl PortTap {
    pub(super) fn new(pipe: usize, sink: Box<dyn PacketSink + Send>) -> Self {
        Self { pipe, sink: Some(sink), outcome: Ok(()) }
    }

    pub(super) const fn is_at(&self, pipe: usize) -> bool {
        self.pipe == pipe
    }

    pub(super) fn packet(&mut self, now: Instant, p: &Stored) {
        self.give(|sink| sink.packet(now, &p.path, p.ident, &p.bytes, None));
    }

    pub(super) fn frame(&mut self, now: Instant, bytes: &[u8]) {
        self.give(|sink| sink.frame(now, bytes));
    }

    /// A sink that fails gets no more.
    fn give(&mut self, f: impl FnOnce(&mut dyn PacketSink) -> io::Result<()>) {
        let Some(sink) = &mut self.sink else { return };
        if let Err(e) = f(sink.as_mut()) {
            self.outcome = Err(e);
            self.sink = None;
        }
    }

    pub(super) fn finish(self) -> io::Result<()> {
        self.outcome.and(self.sink.map_or(Ok(()), |mut sink| sink.finish()))
    }
}
