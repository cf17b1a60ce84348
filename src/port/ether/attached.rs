//! A station on a link: the port that whole frames leave by.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use super::station::{Aside, Route, Station};
use super::{StationConfig, outbox};
use crate::net::{Ident, PortCaps, SrcPort, Transmit};
use crate::port::{Health, Port, PortAddress, PortStats, RxBatch, SendError, TxBatch};
use crate::time::{Duration, Instant};

/// Most frames that a link is offered at once.
const BATCH: usize = 32;
/// Most segments of a transmission. Each is a frame of its own, but the engine makes them in one go.
const SEGMENTS: usize = 16;
/// Most bytes of a transmission: what the largest batch holds.
const MAX_TRANSMIT: usize = 60 << 10;

/// When to offer a link again what it did not take of answers, and of what waited for a neighbour.
const RETRY_FLUSH: Duration = Duration::from_millis(1);

/// What carries frames.
///
/// *Rules.* No call blocks. A link that has nobody at its other end loses what it is given, as a cable that is not
/// plugged in does, and says so by [`Link::is_up`].
pub trait Link: Send + fmt::Debug {
    /// Sends from the front of `frames` and says how many it took.
    ///
    /// # Errors
    /// `WouldBlock`: none at this moment. All else: they are lost.
    fn send(&mut self, now: Instant, frames: &Frames) -> io::Result<usize>;

    /// Receives into `buffers`, a frame each, and describes them in `got`, in the same order. Nothing there is no
    /// error.
    ///
    /// # Errors
    /// Nothing can be received any more.
    fn recv<'a>(
        &mut self,
        now: Instant,
        buffers: impl Iterator<Item = &'a mut [u8]>,
        got: &mut Vec<Got>,
    ) -> io::Result<()>;

    /// Does what is due, such as looking for the other end again, and keeps `epoll` watching what brings frames.
    /// Called before anything else, and in each pass.
    ///
    /// # Errors
    /// The system has no descriptors left.
    fn tend(&mut self, now: Instant, epoll: &Epoll) -> io::Result<()>;

    /// When to call [`Link::tend`] if nothing happens meanwhile.
    fn next_due(&self) -> Instant;

    /// Whether another pass is due at once, such as for frames that have been read already.
    fn is_due(&self) -> bool {
        false
    }

    /// Looks at what [`Link::tend`] only looks at now and then.
    fn refresh(&mut self) {}

    /// Whether somebody is at the other end, as far as is known.
    fn is_up(&self) -> bool;

    /// The largest IP packet that it carries, if that is the link's to say. It may change.
    fn mtu(&self) -> Option<u32> {
        None
    }

    /// Bytes that wait for [`Link::recv`] before frames are dropped; `None`: the sender has to wait instead.
    fn rx_buffer(&self) -> Option<usize> {
        None
    }

    /// Becomes writable when a [`Link::send`] that took nothing is worth another try.
    fn blocked_on(&self) -> Option<BorrowedFd<'_>>;

    /// Adds what the link has counted itself.
    fn count(&self, stats: &mut PortStats);
}

/// A frame that came.
#[derive(Clone, Copy, Debug)]
pub struct Got {
    /// Bytes in the buffer.
    pub len: usize,
    /// Whether it is all there, and by itself.
    pub fit: Fit,
    /// What is not in the buffer.
    pub aside: Aside,
}

impl Got {
    /// A frame as it was on the wire, unless it was too long for its buffer.
    pub fn new(len: usize, truncated: bool) -> Self {
        let fit = if truncated { Fit::Cut } else { Fit::Whole };
        Self { len, fit, aside: Aside::default() }
    }
}

/// Whether a frame can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It is whole.
    Whole,
    /// The buffer was too small for it.
    Cut,
    /// It is several that somebody has merged, and nobody says how.
    Merged,
}

/// Frames to send, in slots of one size.
pub struct Frames {
    bytes: Box<[u8]>,
    slot: usize,
    lens: Vec<usize>,
}

impl Frames {
    fn new(slot: usize) -> Self {
        let bytes = vec![0; slot * BATCH].into_boxed_slice();
        Self { bytes, slot, lens: Vec::with_capacity(BATCH) }
    }

    fn clear(&mut self) {
        self.lens.clear();
    }

    /// The next free slot.
    fn spare(&mut self) -> Option<&mut [u8]> {
        let at = self.lens.len() * self.slot;
        self.bytes.get_mut(at..at + self.slot)
    }

    /// Takes the first `len` bytes of it.
    fn commit(&mut self, len: usize) {
        self.lens.push(len);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lens.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.lens.is_empty()
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let slots = self.bytes.chunks(self.slot.max(1));
        slots.zip(&self.lens).map(|(slot, &len)| &slot[..len])
    }
}

impl fmt::Debug for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frames").field("frames", &self.lens.len()).finish_non_exhaustive()
    }
}

/// What came of offering frames to the link.
enum Sent {
    /// So many left.
    Some(usize),
    /// None at this moment.
    Busy,
    /// All are lost, for this reason (`errno`).
    Lost(i32),
}

/// RoCEv2 in whole Ethernet frames. See the [module](super).
///
/// A timer of the kernel's is part of [`Port::readiness`], so whoever sleeps on the port also wakes when a neighbour
/// is to be asked again.
pub struct EtherPort<L> {
    link: L,
    station: Station,
    clock: Box<dyn Fn() -> Instant + Send>,
    epoll: Epoll,
    timer: TimerFd,
    /// When the timer rings; `FAR_FUTURE`: not at all.
    rings: Instant,
    frames: Frames,
    got: Vec<Got>,
    blocked: bool,
}

impl<L: Link> EtherPort<L> {
    /// Puts a station on a link. `clock` never goes back.
    ///
    /// # Errors
    /// The system gives no descriptors.
    pub fn new(
        mut link: L,
        config: StationConfig,
        clock: impl Fn() -> Instant + Send + 'static,
    ) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        epoll.add(&timer, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        link.tend(clock(), &epoll)?;
        let mut station = Station::new(config);
        if let Some(mtu) = link.mtu() {
            station.set_mtu(mtu);
        }
        let frames = Frames::new(station.frame_space());
        let mut port = Self {
            link,
            station,
            clock: Box::new(clock),
            epoll,
            timer,
            rings: Instant::FAR_FUTURE,
            frames,
            got: Vec::with_capacity(BATCH),
            blocked: false,
        };
        port.arm(false)?;
        Ok(port)
    }

    /// The link.
    pub fn link(&self) -> &L {
        &self.link
    }

    /// Does what is due. Says when it is.
    fn tend(&mut self) -> io::Result<Instant> {
        let now = (self.clock)();
        if now >= self.rings {
            // Read, or it stays readable. Spurious reads are no error.
            match self.timer.wait() {
                Ok(()) | Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
            self.rings = Instant::FAR_FUTURE;
        }
        self.link.tend(now, &self.epoll)?;
        self.follow_mtu();
        self.station.handle_timeout(now);
        Ok(now)
    }

    /// The link may carry more, or less, than it did. Between two batches, when there are no frames.
    fn follow_mtu(&mut self) {
        let Some(mtu) = self.link.mtu() else { return };
        if mtu == self.station.config().mtu {
            return;
        }
        self.station.set_mtu(mtu);
        let slot = self.station.frame_space();
        // What waits was written for the longer ones.
        if slot > self.frames.slot {
            self.frames = Frames::new(slot);
        }
    }

    /// Has the timer ring when something is due. It may ring too early, which does no harm.
    fn arm(&mut self, at_once: bool) -> io::Result<()> {
        let now = (self.clock)();
        let due = self.station.next_due().min(self.link.next_due());
        // What waited for a neighbour is in no batch whose owner would try again.
        let stuck = self.station.is_ready().then(|| now + RETRY_FLUSH);
        let due = if at_once { now } else { stuck.map_or(due, |retry| due.min(retry)) };
        if due >= self.rings {
            return Ok(());
        }
        // Zero would switch it off.
        let wait = (due - now).max(Duration::from_nanos(1));
        let expiration = Expiration::OneShot(TimeSpec::from_duration(wait));
        self.timer.set(expiration, TimerSetTimeFlags::empty())?;
        self.rings = due;
        Ok(())
    }

    /// Offers what is in `frames` to the link.
    fn offer(&mut self, now: Instant) -> Sent {
        self.station.stats.send_calls += 1;
        match self.link.send(now, &self.frames) {
            Ok(0) => Sent::Busy,
            Ok(n) => Sent::Some(n),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Sent::Busy,
            Err(e) => Sent::Lost(e.raw_os_error().unwrap_or(libc::EIO)),
        }
    }

    /// Sends what waits and may leave. Says whether all has left.
    fn flush(&mut self, now: Instant) -> bool {
        while self.station.is_ready() {
            self.frames.clear();
            for waiting in self.station.outbox.ready() {
                let Some(slot) = self.frames.spare() else { break };
                let len = waiting.frame.len().min(slot.len());
                slot[..len].copy_from_slice(&waiting.frame[..len]);
                self.frames.commit(len);
            }
            let (n, lost) = match self.offer(now) {
                Sent::Some(n) => (n, None),
                Sent::Busy => {
                    self.station.stats.send_busy += 1;
                    return false;
                }
                Sent::Lost(errno) => (self.frames.len(), Some(errno)),
            };
            for _ in 0..n {
                let Some(Some(outbox::Datagram { dst, len })) = self.station.outbox.pop_ready()
                else {
                    continue;
                };
                match lost {
                    None => {
                        self.station.stats.sent_datagrams += 1;
                        self.station.stats.sent_bytes += len as u64;
                    }
                    Some(errno) => self.station.refuse(dst, len, errno),
                }
            }
        }
        true
    }

    /// Writes frames for the front of `tx` as long as they go to the link. With none written, the first segment goes
    /// elsewhere.
    fn gather(&mut self, now: Instant, tx: &TxBatch) {
        self.frames.clear();
        for (t, bytes) in tx.entries() {
            for (ident, datagram) in segments(t, bytes) {
                let Some(slot) = self.frames.spare() else { return };
                let Route::Link(mac) = self.station.route(now, &t.path, datagram.len()) else {
                    return;
                };
                let len = self.station.write(mac, &t.path, ident, datagram, slot);
                if len == 0 {
                    return;
                }
                self.frames.commit(len);
            }
        }
    }

    /// The first segment of `tx` does not go to the link.
    fn divert(&mut self, now: Instant, tx: &mut TxBatch) {
        let Some((t, bytes)) = tx.entries().next() else { return };
        let Some((ident, datagram)) = segments(t, bytes).next() else {
            return tx.consume(1);
        };
        let (path, len) = (t.path, datagram.len());
        match self.station.route(now, &path, len) {
            Route::Own => {
                self.station.send_to_self(&path, ident, datagram);
                self.station.stats.sent_datagrams += 1;
                self.station.stats.sent_bytes += len as u64;
            }
            Route::Wait(hop) => self.station.hold(hop, &path, ident, datagram),
            Route::None(errno) => self.station.refuse(path.dst, len, errno),
            // It could not be written.
            Route::Link(_) => self.station.refuse(path.dst, len, libc::EMSGSIZE),
        }
        tx.consume_segments(len.max(1));
    }

    /// The first `n` segments of `tx` have left, or are lost.
    fn settle(&mut self, tx: &mut TxBatch, n: usize, lost: Option<i32>) {
        for _ in 0..n {
            let Some((t, bytes)) = tx.entries().next() else { return };
            let Some((ident, datagram)) = segments(t, bytes).next() else { return };
            let (path, len) = (t.path, datagram.len());
            // The station is a member itself: the link does not bring back what it sends.
            if self.station.is_member(path.dst) {
                self.station.send_to_self(&path, ident, datagram);
            }
            match lost {
                None => {
                    self.station.stats.sent_datagrams += 1;
                    self.station.stats.sent_bytes += len as u64;
                }
                Some(errno) => self.station.refuse(path.dst, len, errno),
            }
            tx.consume_segments(len.max(1));
        }
    }

    fn send_all(&mut self, now: Instant, tx: &mut TxBatch) {
        if !self.flush(now) {
            self.blocked = true;
            return;
        }
        while !tx.is_empty() {
            self.gather(now, tx);
            if self.frames.is_empty() {
                self.divert(now, tx);
                continue;
            }
            match self.offer(now) {
                Sent::Some(n) => self.settle(tx, n, None),
                Sent::Lost(errno) => self.settle(tx, self.frames.len(), Some(errno)),
                Sent::Busy => {
                    self.station.stats.send_busy += 1;
                    self.blocked = true;
                    return;
                }
            }
        }
        // Questions for neighbours.
        self.station.handle_timeout(now);
        self.flush(now);
    }
}

/// The datagrams of a transmission, with their identifications.
fn segments<'a>(t: &Transmit, bytes: &'a [u8]) -> impl Iterator<Item = (u16, &'a [u8])> {
    let size = t.segment_size.map_or(bytes.len(), usize::from).max(1);
    let ident = t.ident;
    bytes.chunks(size).zip(0..=u16::MAX).map(move |(d, k)| (ident.wrapping_add(k), d))
}

impl<L: Link> Port for EtherPort<L> {
    fn caps(&self) -> PortCaps {
        PortCaps {
            src_port: SrcPort::Entropy,
            ident: Ident::Chosen,
            gso_segments_v4: SEGMENTS,
            gso_segments_v6: SEGMENTS,
            max_transmit: MAX_TRANSMIT,
            mtu: self.station.config().mtu,
            rx_buffer: self.link.rx_buffer(),
        }
    }

    fn recv(&mut self, rx: &mut RxBatch) -> io::Result<()> {
        rx.clear();
        let now = self.tend()?;
        while let Some(buf) = rx.spare() {
            let Some((meta, len)) = self.station.take_own(buf) else { break };
            rx.commit(meta, len, None);
        }
        self.station.stats.receive_calls += 1;
        self.got.clear();
        self.link.recv(now, rx.spares(), &mut self.got)?;
        if self.got.is_empty() {
            self.station.stats.receive_calls_in_vain += 1;
        }
        for got in &self.got {
            let Some(buf) = rx.spare() else { break };
            match got.fit {
                Fit::Whole => {}
                Fit::Cut => self.station.stats.truncated += 1,
                Fit::Merged => self.station.stats.merged += 1,
            }
            if got.fit != Fit::Whole {
                rx.skip();
                continue;
            }
            match self.station.receive_with(now, &buf[..got.len], got.aside) {
                Some((meta, at)) => {
                    let len = at.len();
                    buf.copy_within(at, 0);
                    rx.commit(meta, len, None);
                }
                None => rx.skip(),
            }
        }
        self.flush(now);
        self.arm(self.station.has_own() || self.link.is_due())
    }

    fn send(&mut self, tx: &mut TxBatch) -> io::Result<()> {
        self.blocked = false;
        let now = self.tend()?;
        self.send_all(now, tx);
        self.arm(self.station.has_own() || self.link.is_due())
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.0.as_fd())
    }

    fn blocked_on(&self) -> Option<BorrowedFd<'_>> {
        if self.blocked { self.link.blocked_on() } else { None }
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        if !self.station.addresses().iter().any(|a| a.ip.is_ipv4() == group.is_ipv4()) {
            return Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL));
        }
        self.station.join(group);
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) -> io::Result<()> {
        self.station.leave(group);
        Ok(())
    }

    fn addresses(&self) -> &[PortAddress] {
        self.station.addresses()
    }

    fn health(&self) -> Health {
        Health { up: self.link.is_up(), missing: 0 }
    }

    fn mtu(&self) -> u32 {
        self.station.config().mtu
    }

    fn stats(&self) -> PortStats {
        let mut stats = *self.station.stats();
        self.link.count(&mut stats);
        stats
    }

    fn last_error(&self) -> Option<SendError> {
        self.station.last_error
    }

    fn refresh(&mut self) {
        let now = (self.clock)();
        // What cannot be done now is tried again in the next pass, which tells.
        let _ = self.link.tend(now, &self.epoll);
        self.link.refresh();
        self.follow_mtu();
    }
}

impl<L: fmt::Debug> fmt::Debug for EtherPort<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtherPort")
            .field("link", &self.link)
            .field("station", &self.station)
            .finish_non_exhaustive()
    }
}
