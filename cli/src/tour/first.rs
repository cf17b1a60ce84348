//! The first process: makes the requests, measures, and checks its half of the memory.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use softroce::prelude::*;

use super::layout::{Atomic, Layout, check_source};
use super::plan::{Op, Row, plan};
use super::side::{Far, LIMIT, Link, Node, expect, now};
use super::{Args, Failure, child};

/// What came of the tour.
#[derive(Debug)]
pub(super) struct Tour {
    /// The two devices, for people.
    pub(super) devices: [String; 2],
    pub(super) rows: Vec<Measured>,
    /// Why it ended early.
    pub(super) failure: Option<Failure>,
    pub(super) elapsed: Duration,
    /// Datagrams that are missing in the capture.
    pub(super) uncaptured: u64,
}

/// A row of the table.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) row: Row,
    pub(super) traffic: Traffic,
    /// `None` if the row failed.
    pub(super) timing: Option<Timing>,
}

/// Packets during a row, as the first process counts them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traffic {
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Those of the sent ones that had been sent before.
    pub(super) again: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Timing {
    /// Median time of a request made alone, from posting to completion.
    pub(super) p50: Duration,
    /// Bytes of payload in a second, of requests posted together.
    pub(super) goodput: Option<f64>,
}

/// Leads through the tour. An error is that it could not begin.
pub(super) fn run(args: &Args) -> Result<Tour, Failure> {
    let began = now();
    let node = Node::open(&device(args)?)?;
    let base = args.device.split(',').next().unwrap_or_default();
    if args.peer.is_none() && base != "soft:lo" {
        return Err(Failure::new(format!(
            "--device {}: the second process needs an address of its own: name a device that has one with --peer",
            args.device
        )));
    }
    let mut link = child::start(args.peer.as_ref().unwrap_or(&args.device))?;
    let far = node.connect(&mut link, false)?;
    let devices = [node.describe(), link.hear()?];
    let mut tour =
        Tour { devices, rows: Vec::new(), failure: None, elapsed: Duration::ZERO, uncaptured: 0 };
    let mut before = Traffic::of(&node.ctx)?;
    for row in plan(far.mtu, far.group.is_some()) {
        let result = lead(&node, &far, &mut link, row);
        let after = Traffic::of(&node.ctx)?;
        let traffic = after.since(before);
        before = after;
        let (timing, failure) = match result {
            Ok(timing) => (Some(timing), None),
            Err(Failure(why)) => (None, Some(Failure::new(format!("{row}: {why}")))),
        };
        tour.rows.push(Measured { row, traffic, timing });
        if failure.is_some() {
            tour.failure = failure;
            break;
        }
    }
    if tour.failure.is_none() {
        tour.failure = link.finish().err();
    }
    tour.uncaptured = node.ctx.counters(1)?.get("port_uncaptured").copied().unwrap_or(0);
    tour.elapsed = now() - began;
    Ok(tour)
}

/// The device's name with the option to capture.
fn device(args: &Args) -> Result<String, Failure> {
    let Some(path) = &args.pcap else { return Ok(args.device.clone()) };
    let path = path
        .to_str()
        .ok_or_else(|| Failure::new(format!("--pcap {}: the name is not UTF-8", path.display())))?;
    // Both have a meaning in the names of devices.
    let path = path.replace('\\', "\\\\").replace(',', "\\,");
    Ok(format!("{},pcap={path}", args.device))
}

impl Traffic {
    fn of(ctx: &Context) -> Result<Self, Failure> {
        let counters = ctx.counters(1)?;
        let count = |name| counters.get(name).copied().unwrap_or(0);
        let (sent, received) = (count("sent_pkts"), count("rcvd_pkts"));
        Ok(Self { sent, received, again: count("retransmitted_pkts") })
    }

    fn since(self, before: Self) -> Self {
        Self {
            sent: self.sent - before.sent,
            received: self.received - before.received,
            again: self.again - before.again,
        }
    }
}

/// One row, in step with [`second::follow`](super::second).
fn lead(node: &Node, far: &Far, link: &mut Link, row: Row) -> Result<Timing, Failure> {
    link.begin();
    let layout = Layout::new(row);
    let pattern = layout.pattern();
    node.prepare(&layout, &pattern);
    let windows = if row.op.is_local() { node.windows(&layout)? } else { Vec::new() };
    if row.op == Op::LocalInv {
        node.bind(link, &layout, &windows)?;
    }
    let (why, keys): (String, Vec<u32>) = link.hear()?;
    refuse(why)?;
    let requests = Requests::new(node, far, layout, &pattern, &windows, keys);
    let timing = match requests.make(link) {
        Ok(timing) => timing,
        Err(Failure(why)) => {
            // Perhaps the other side knows more.
            link.hurry(Duration::from_secs(1));
            let more = link.tell(&Vec::<u32>::new()).and_then(|()| link.hear::<String>());
            return Err(match more {
                Ok(more) if !more.is_empty() => {
                    Failure::new(format!("{why}; the second process: {more}"))
                }
                _ => Failure(why),
            });
        }
    };
    let keys: Vec<u32> = windows.iter().map(MemoryWindow::rkey).collect();
    if row.op == Op::LocalInv {
        // What is bound could not be bound again.
        node.bind(link, &layout, &windows)?;
        for (i, window) in windows.iter().enumerate() {
            node.qp.post_send(SendWr::local_inv(i as u64, window.rkey()))?;
            expect(&link.completion(&node.cq)?, i, WcOpcode::LocalInv)?;
        }
    }
    link.tell(&keys)?;
    refuse(link.hear()?)?;
    if row.op == Op::BindMw1 {
        rebind(node, link, &layout, &windows[0])?;
    }
    layout.check_target(&node.target, &requests.expected(&pattern))?;
    check_source(&node.source, &pattern)?;
    Ok(timing)
}

/// Binds a window of type 1 anew, over bytes that the second process then has to write again by the new key.
fn rebind(
    node: &Node,
    link: &mut Link,
    layout: &Layout,
    window: &MemoryWindow,
) -> Result<(), Failure> {
    let slot = layout.slot(0);
    node.target.write(slot.start, &layout.untouched()[slot]);
    node.qp.bind_mw(node.binding(layout, 0, window))?;
    expect(&link.completion(&node.cq)?, 0, WcOpcode::BindMw)?;
    link.tell(&window.rkey())?;
    refuse(link.hear()?)
}

/// The verdict of the second process: what is wrong, or nothing.
fn refuse(why: String) -> Result<(), Failure> {
    if why.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!("the second process: {why}")))
}

/// The requests of a row, all prepared, so that making them takes no time of ours.
struct Requests<'a> {
    node: &'a Node,
    far: &'a Far,
    layout: Layout,
    pieces: Vec<Vec<Sge>>,
    inline: Vec<Vec<u8>>,
    atomics: Vec<Atomic>,
    /// Ours.
    windows: &'a [MemoryWindow],
    /// Of the second process' windows.
    keys: Vec<u32>,
}

impl<'a> Requests<'a> {
    fn new(
        node: &'a Node,
        far: &'a Far,
        layout: Layout,
        pattern: &[u8],
        windows: &'a [MemoryWindow],
        keys: Vec<u32>,
    ) -> Self {
        let op = layout.row.op;
        let all = 0..layout.row.requests();
        let comes_back = matches!(op, Op::Read | Op::ReadSge) || op.is_atomic();
        let pieces = all.clone().map(|i| match comes_back {
            true => node.scatter(&layout, i),
            false => node.gather(&layout, i),
        });
        let inline = match op {
            Op::SendInline | Op::WriteInline => all.map(|i| layout.message(pattern, i)).collect(),
            _ => Vec::new(),
        };
        let atomics = if op.is_atomic() { layout.atomics(pattern) } else { Vec::new() };
        Self { node, far, layout, pieces: pieces.collect(), inline, atomics, windows, keys }
    }

    /// Request `i`.
    fn request(&self, i: usize) -> SendWr<'_> {
        let id = i as u64;
        let there = self.far.target.at(self.layout.slot(i).start as u64);
        let local = &self.pieces[i][..];
        // Of an atomic: all work on the first slot.
        let word = self.far.target.at(self.layout.slot(0).start as u64);
        match self.layout.row.op {
            Op::Send | Op::SendSge | Op::SendSrq | Op::UcSend => SendWr::send(id, local),
            Op::SendInline => SendWr::send(id, inline(&self.inline[i])),
            Op::SendImm | Op::UcSendImm => SendWr::send(id, local).imm(self.layout.immediate(i)),
            Op::SendInv => {
                SendWr::send(id, local).invalidate(self.keys.get(i).copied().unwrap_or_default())
            }
            Op::Write | Op::WriteSge | Op::UcWrite => SendWr::write(id, local, there),
            Op::WriteInline => SendWr::write(id, inline(&self.inline[i]), there),
            Op::WriteImm | Op::UcWriteImm => {
                SendWr::write(id, local, there).imm(self.layout.immediate(i))
            }
            Op::Read | Op::ReadSge => {
                let from = self.layout.origin(i).first().map_or(0, |piece| piece.start);
                SendWr::read(id, local, self.far.source.at(from as u64))
            }
            Op::CompareSwap => {
                let Atomic { expect, operand, .. } = self.atomics[i];
                SendWr::compare_swap(id, self.pieces[i][0], word, expect, operand)
            }
            Op::FetchAdd => SendWr::fetch_add(id, self.pieces[i][0], word, self.atomics[i].operand),
            Op::AtomicWrite => SendWr::atomic_write(id, local, there),
            Op::Flush => {
                let len = u32::try_from(self.layout.row.size).unwrap_or(u32::MAX);
                SendWr::flush(id, there, len, Placement::GLOBAL)
            }
            Op::FlushAll => SendWr::flush_all(id, self.far.target, Placement::GLOBAL),
            Op::UdSend | Op::UdMulticast => self.addressed(SendWr::send(id, local)),
            Op::UdSendImm => self.addressed(SendWr::send(id, local).imm(self.layout.immediate(i))),
            Op::BindMw | Op::BindMw1 => self.node.binding(&self.layout, i, &self.windows[i]),
            Op::LocalInv => SendWr::local_inv(id, self.windows[i].rkey()),
        }
    }

    /// A datagram to the second process.
    fn addressed(&self, wr: SendWr<'a>) -> SendWr<'a> {
        let far = self.far;
        let ah = match &far.group {
            Some((group, _)) if self.layout.row.op == Op::UdMulticast => group,
            _ => &far.ah,
        };
        wr.to(ah, far.ud.qpn, far.ud.qkey)
    }

    /// Posts some of them.
    fn post(&self, range: Range<usize>) -> Result<(), Failure> {
        let (node, row) = (self.node, self.layout.row);
        match row.op {
            op if op.is_flush() => node.qp.post_send(range.flat_map(|i| {
                let there = self.far.target.at(self.layout.slot(i).start as u64);
                let write = SendWr::write(i as u64, &self.pieces[i][..], there);
                [write.unsignaled(), self.request(i)]
            }))?,
            Op::SendSrq => {
                for i in range {
                    node.carrier(row, i).post_send(self.request(i))?;
                }
            }
            Op::BindMw1 => {
                for i in range {
                    node.qp.bind_mw(self.request(i))?;
                }
            }
            _ => node.carrier(row, 0).post_send(range.map(|i| self.request(i)))?,
        }
        Ok(())
    }

    /// Waits for the completions of some of them: in order, on each queue pair.
    fn complete(&self, link: &mut Link, range: Range<usize>) -> Result<(), Failure> {
        let (node, row) = (self.node, self.layout.row);
        let mut left = range.collect::<VecDeque<_>>();
        while !left.is_empty() {
            let wc = link.completion(&node.cq)?;
            let is_next = |&&i: &&usize| node.carrier(row, i).number() == wc.qpn;
            let Some(i) = left.iter().find(is_next).copied() else {
                return Err(Failure::new("a request of another queue pair completed"));
            };
            left.retain(|&other| other != i);
            self.check(&wc, i)?;
        }
        Ok(())
    }

    /// Waits until the second process has taken what was sent unreliably, or it is lost: whatever is sent after
    /// it on a reliable connection comes after it, so when that is acknowledged, this has come.
    fn settle(&self, link: &mut Link) -> Result<(), Failure> {
        if !self.layout.row.op.is_unreliable() {
            return Ok(());
        }
        self.node.qp.post_send(SendWr::write(0, (), self.far.target))?;
        expect(&link.completion(&self.node.cq)?, 0, WcOpcode::Write)
    }

    /// Makes all of them: first one by one, then the rest together.
    fn make(&self, link: &mut Link) -> Result<Timing, Failure> {
        let row = self.layout.row;
        if row.op.is_datagram() {
            // It must not arrive: the first receive is for the first request.
            let (ud, wr) = (&self.far.ud, SendWr::send(0, ()).unsignaled());
            self.node.ud.post_send(wr.to(&self.far.ah, ud.qpn, ud.qkey ^ 1))?;
        }
        let mut times = Vec::with_capacity(row.singles());
        for i in 0..row.singles() {
            let began = now();
            self.post(i..i + 1)?;
            let wc = link.completion(&self.node.cq)?;
            times.push(now() - began);
            self.check(&wc, i)?;
            self.settle(link)?;
        }
        times.sort_unstable();
        let p50 = times.get(times.len() / 2).copied().unwrap_or_default();
        let bytes = row.burst() * row.size;
        let began = now();
        let mut at = row.singles();
        while at < row.requests() {
            let lot = at..row.requests().min(at.saturating_add(row.in_flight()));
            at = lot.end;
            self.post(lot.clone())?;
            self.complete(link, lot)?;
            self.settle(link)?;
        }
        Ok(Timing { p50, goodput: rate(bytes, began) })
    }

    /// Whether this is how request `i` has to complete.
    fn check(&self, wc: &WorkCompletion, i: usize) -> Result<(), Failure> {
        let op = self.layout.row.op;
        let opcode = match op {
            Op::Write | Op::WriteInline | Op::WriteSge => WcOpcode::Write,
            Op::WriteImm | Op::UcWrite | Op::UcWriteImm => WcOpcode::Write,
            Op::Read | Op::ReadSge => WcOpcode::Read,
            Op::CompareSwap => WcOpcode::CompSwap,
            Op::FetchAdd => WcOpcode::FetchAdd,
            Op::AtomicWrite => WcOpcode::AtomicWrite,
            Op::Flush | Op::FlushAll => WcOpcode::Flush,
            Op::BindMw | Op::BindMw1 => WcOpcode::BindMw,
            Op::LocalInv => WcOpcode::LocalInv,
            _ => WcOpcode::Send,
        };
        expect(wc, i, opcode)?;
        let comes_back = matches!(opcode, WcOpcode::Read | WcOpcode::CompSwap | WcOpcode::FetchAdd);
        let (got, size) = (wc.byte_len as usize, self.layout.row.size);
        if comes_back && got != size {
            return Err(Failure::new(format!("request {i} brought {got} bytes, not {size}")));
        }
        Ok(())
    }

    /// What has to be in our target now.
    fn expected(&self, pattern: &[u8]) -> Vec<u8> {
        match self.layout.row.op {
            Op::Read | Op::ReadSge | Op::BindMw | Op::BindMw1 => self.layout.delivered(pattern),
            op if op.is_atomic() => self.layout.values(self.atomics.iter().map(|a| a.before)),
            _ => self.layout.untouched(),
        }
    }
}

/// Bytes in a second; `None` if there are none.
#[expect(clippy::cast_precision_loss, reason = "far fewer bytes than a double can count")]
fn rate(bytes: usize, began: Instant) -> Option<f64> {
    let seconds = (now() - began).max(Duration::from_nanos(1)).min(LIMIT).as_secs_f64();
    (bytes > 0).then(|| bytes as f64 / seconds)
}
