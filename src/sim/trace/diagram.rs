//! The packets of connections as a picture in text: time down the page, a column for each host.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use super::{Connection, NicEvent, Passage, Record, Step};
use crate::sim::faults::index_of;
use crate::time::Duration;
use crate::verbs::QueuePair;
use crate::wire::opcode::name_of;
use crate::wire::{NakCode, Syndrome};

/// Where something happens: a host, and one of its queue pairs.
type Place = (usize, u32);
/// The two ends of a connection, the lower one first; twice the same where only one is known.
type Ends = (Place, Place);

/// Packets, and what hosts do about them, as a picture: see [`Trace::diagram`](super::Trace::diagram).
///
/// A line for each packet, at the time at which the switch had done with it: an arrow from its sender to its receiver,
/// with opcode, PSN and bytes of payload; one that was lost ends in `✗`. What became of it otherwise stands at the end
/// of the line. What a host says beside its own line are completions, and going back to send again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagram {
    events: Vec<(Duration, Event)>,
    /// Events before these, which are not shown.
    before: usize,
    /// Records that the trace had no room for.
    lost: u64,
    /// The connection that is shown, if it is only one.
    ends: Option<Ends>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    Packet(Ends, Box<Passage>),
    /// Something that a host says: at which queue pair, of which connection.
    Note(Ends, Place, String),
    Mark(String),
}

impl Event {
    const fn ends(&self) -> Option<Ends> {
        match self {
            Self::Packet(ends, _) | Self::Note(ends, ..) => Some(*ends),
            Self::Mark(_) => None,
        }
    }
}

impl Diagram {
    pub(super) fn new<'a>(
        records: impl Iterator<Item = &'a Record>,
        connections: &[Connection],
        lost: u64,
    ) -> Self {
        let peers: BTreeMap<Place, Place> =
            connections.iter().map(|c| ((c.host, c.qpn), (c.peer, c.dest_qpn))).collect();
        let ends = |place: Place| match peers.get(&place) {
            Some(&peer) => (place.min(peer), place.max(peer)),
            None => (place, place),
        };
        let event = |record: &Record| {
            let event = match &record.step {
                Step::Packet(p) => {
                    let qpn = p.bth.map_or(0, |bth| bth.dest_qp.raw());
                    // A datagram says itself where it comes from.
                    let ends = match (p.to, p.ext.deth) {
                        (Some(to), Some(deth)) => {
                            let (a, b) = ((p.from, deth.src_qp.raw()), (to, qpn));
                            (a.min(b), a.max(b))
                        }
                        (Some(to), None) => ends((to, qpn)),
                        (None, _) => ((p.from, 0), (p.from, 0)),
                    };
                    Event::Packet(ends, Box::new(p.clone()))
                }
                Step::Mark(label) => Event::Mark(label.clone()),
                Step::Nic { host, event } => {
                    let (qpn, text) = note(event)?;
                    let place = (*host, qpn);
                    Event::Note(ends(place), place, text)
                }
            };
            Some((record.at, event))
        };
        Self { events: records.filter_map(event).collect(), before: 0, lost, ends: None }
    }

    /// Only what belongs to the connection of this queue pair.
    #[must_use]
    pub fn of(mut self, qp: &QueuePair) -> Self {
        let host = index_of(qp.pd().context()).unwrap_or(usize::MAX);
        let place = (host, qp.number());
        let is_of = |(a, b): Ends| a == place || b == place;
        let ends = self.events.iter().filter_map(|(_, e)| e.ends()).filter(|&e| is_of(e));
        // Where both ends are known, rather than one.
        let ends = ends.max_by_key(|(a, b)| a != b).unwrap_or((place, place));
        self.retain(ends);
        self
    }

    fn retain(&mut self, ends: Ends) {
        self.events.retain(|(_, e)| e.ends().is_none_or(|e| e == ends));
        self.ends = Some(ends);
    }

    /// A diagram for each connection, that with the latest packet first.
    #[must_use]
    pub fn connections(&self) -> Vec<Self> {
        let mut seen = BTreeSet::new();
        let packets = self.events.iter().rev().filter_map(|(_, e)| match e {
            Event::Packet(ends, _) => Some(*ends),
            _ => None,
        });
        let latest = packets.filter(|ends| seen.insert(*ends));
        latest
            .map(|ends| {
                let mut one = self.clone();
                one.retain(ends);
                one
            })
            .collect()
    }

    /// Only the last `n` lines.
    #[must_use]
    pub fn last(mut self, n: usize) -> Self {
        let hidden = self.events.len().saturating_sub(n);
        self.events.drain(..hidden);
        self.before += hidden;
        self
    }

    /// Lines of packets, notes and marks.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Hosts that have a column, in ascending order.
    fn hosts(&self) -> Vec<usize> {
        let mut hosts = BTreeSet::new();
        let known = self.ends.into_iter().flat_map(|(a, b)| [a.0, b.0]);
        hosts.extend(known);
        for (_, event) in &self.events {
            match event {
                Event::Packet(_, p) => hosts.extend([p.from].into_iter().chain(p.to)),
                Event::Note(_, (host, _), _) => {
                    hosts.insert(*host);
                }
                Event::Mark(_) => {}
            }
        }
        hosts.into_iter().collect()
    }
}

/// Characters from one column to the next: room for the longest label, and for the number of a queue pair in it.
const GAP: usize = 56;
const GAP_WITH_QP: usize = 72;
/// Characters before the first column.
const MARGIN: usize = 16;

/// A line with a mark for each host.
struct Row(Vec<char>);

impl Row {
    fn new(columns: usize, gap: usize) -> Self {
        let mut row = vec![' '; MARGIN + 1 + columns.saturating_sub(1) * gap];
        (0..columns).for_each(|i| row[MARGIN + i * gap] = '│');
        Self(row)
    }

    /// Writes over what is there, as far as the text goes.
    fn put(&mut self, at: usize, text: &str) {
        for (i, c) in text.chars().enumerate() {
            if self.0.len() <= at + i {
                self.0.resize(at + i + 1, ' ');
            }
            self.0[at + i] = c;
        }
    }

    fn time(&mut self, at: Duration) {
        let us = at.as_nanos() / 1000;
        let text = format!("{us}.{:03} us", at.as_nanos() % 1000);
        self.put((MARGIN - 2).saturating_sub(text.len()), &text);
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text: String = self.0.iter().collect();
        f.write_str(text.trim_end())
    }
}

impl fmt::Display for Diagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts = self.hosts();
        let column = |host: usize| hosts.iter().position(|&h| h == host).unwrap_or(0);
        let gap = if self.ends.is_some() { GAP } else { GAP_WITH_QP };
        let at = |host: usize| MARGIN + column(host) * gap;
        let mut head = Row::new(0, gap);
        for &host in &hosts {
            let mut text = format!("host {host}");
            if let Some((a, b)) = self.ends {
                for (_, qpn) in [a, b].into_iter().filter(|p| p.0 == host) {
                    // Both ends may be on one host, or only one known.
                    let known = format!(", qp {qpn:#x}");
                    if !text.contains(&known) {
                        text.push_str(&known);
                    }
                }
            }
            head.put(at(host).saturating_sub(4), &text);
        }
        writeln!(f, "{head}")?;
        if self.lost > 0 {
            writeln!(f, "({} records were not kept)", self.lost)?;
        }
        if self.before > 0 {
            writeln!(f, "({} lines before these are not shown)", self.before)?;
        }
        for (time, event) in &self.events {
            let mut row = Row::new(hosts.len(), gap);
            row.time(*time);
            match event {
                Event::Mark(label) => row.put(MARGIN, &format!("┄┄ {label} ┄┄")),
                Event::Note(_, (host, _), text) => row.put(at(*host) + 2, text),
                Event::Packet(_, p) => {
                    let from = at(p.from);
                    // To itself, or to nobody: a stub to the right.
                    let to = p.to.map(&at).filter(|&to| to != from).unwrap_or(from + gap - 4);
                    arrow(&mut row, from, to, p, self.ends.is_none());
                }
            }
            writeln!(f, "{row}")?;
        }
        Ok(())
    }
}

/// Draws a packet.
fn arrow(row: &mut Row, from: usize, to: usize, p: &Passage, name_qp: bool) {
    let (low, high) = (from.min(to), from.max(to));
    for at in low + 1..high {
        row.put(at, "─");
    }
    row.put(low + 3, &format!(" {} ", describe(p, name_qp)));
    let (end, head) = if from < to { (high - 1, "►") } else { (low + 1, "◄") };
    row.put(end, if p.dropped.is_some() { "✗" } else { head });
    let fate: Vec<&str> = p.notes.words().chain(p.dropped).collect();
    let margin = row.0.len() + 1;
    row.put(margin, &fate.join(", "));
}

/// What a packet is.
fn describe(p: &Passage, name_qp: bool) -> String {
    let Some(bth) = p.bth else { return format!("{} bytes", p.len) };
    let mut text = name_of(bth.opcode);
    let _ = match p.ext.aeth.map(|aeth| aeth.syndrome) {
        Some(Syndrome::RnrNak { .. }) => write!(text, " RNR"),
        Some(Syndrome::Nak(NakCode::SequenceError)) => write!(text, " NAK sequence"),
        Some(Syndrome::Nak(code)) => write!(text, " NAK {code:?}"),
        _ => Ok(()),
    };
    let _ = write!(text, " psn {:#x}", bth.psn.raw());
    if let Some(bytes) = p.payload.filter(|&n| n > 0) {
        let _ = write!(text, ", {bytes} B");
    }
    if name_qp {
        let _ = write!(text, ", qp {:#x}", bth.dest_qp.raw());
    }
    text
}

/// What a NIC says beside its packets.
fn note(event: &NicEvent) -> Option<(u32, String)> {
    Some(match *event {
        NicEvent::Completed { qpn, wr_id, status, kind, .. } => {
            let kind = match kind {
                super::CqeKind::Send => "request",
                super::CqeKind::Recv => "receive",
            };
            (qpn, format!("• {kind} {wr_id}: {status:?}"))
        }
        NicEvent::WentBack { qpn, loss, psn } => {
            (qpn, format!("• goes back to psn {psn:#x}: {loss:?}"))
        }
        NicEvent::WaitsForReceiver { qpn, psn, wait } => {
            (qpn, format!("• receiver not ready: psn {psn:#x} again in {wait:?}"))
        }
        _ => return None,
    })
}
