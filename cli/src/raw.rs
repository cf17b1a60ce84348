//! What the sockets can do without an engine: the baselines of `softroce perf ratios`.
//!
//! The numbers of a UDP path change severalfold with the machine, its load and the placement of its
//! processors, so the engine is judged by ratios to a loop that does the least that an engine could do on
//! the same sockets in the same minute: build headers, copy the payload, compute a CRC-32 over each packet,
//! send in segments, receive merged, check and copy again. [`RawTx`] and [`RawRx`] are the two ends of a
//! stream, [`RawPing`] and [`RawPong`] those of a ping-pong; each end may be a process of its own.
//!
//! *Rules.* The metric is the median time per packet around building and system calls. Waiting (for credit,
//! for something to arrive) is outside of it, so that a descheduled process does not count. The receiver
//! returns credit over the same sockets, also outside. One pass of a loop is one `step`, the same for two
//! processes as for both ends in one thread. No `unsafe`: `socket2` sends with control data, `nix` receives
//! with it, neither allocates.

use std::hint::spin_loop;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, RecvMsg, SockaddrStorage, recvmsg, setsockopt, sockopt,
};
use serde::{Deserialize, Serialize};
use socket2::{Domain, MsgHdr, Protocol, SockAddr, Socket, Type};

/// Bytes in front of the payload, as many as the base transport header has.
const HEADER: usize = 12;
/// Bytes of the CRC behind it.
const TRAILER: usize = 4;
/// Bytes that payload is copied from at the sender and to at the receiver: more than a first-level cache.
const MESSAGE: usize = 1 << 20;
/// Steps whose time is kept for the median.
const KEPT: usize = 1 << 18;
/// Tries between two looks at whether to go on.
const SPINS: u32 = 64;
/// Without credit for so long, what is missing counts as lost. Longer than a receiver is usually kept from
/// running on a busy machine.
const PATIENCE_MS: u16 = 200;
/// The same, for who is compared with it.
pub(crate) const RAW_PATIENCE: Duration = Duration::from_millis(PATIENCE_MS as u64);
/// ECN-capable, as RoCE sends.
const ECT0: u32 = 2;

/// What is sent in each step of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shape {
    /// Bytes of a datagram in front of the segmented ones, in a send of its own; 0 for none.
    pub(crate) first: usize,
    /// Bytes of each segment: header, payload, CRC.
    pub(crate) segment: usize,
    /// Segments of each send.
    pub(crate) segments: usize,
    /// Bytes that may be on their way.
    pub(crate) window: usize,
}

impl Shape {
    /// WRITE at a path MTU of 4096, without its first packet: 15 segments of 4112 bytes.
    pub(crate) const R1: Self = Self { first: 0, segment: 4112, segments: 15, window: 1 << 20 };
    /// WRITE of 64 KiB: the first packet carries 16 bytes of header more, and so goes alone.
    pub(crate) const R1B: Self = Self { first: 4128, ..Self::R1 };
    /// A path MTU of 1024: 62 segments of 1040 bytes.
    pub(crate) const R2: Self = Self { first: 0, segment: 1040, segments: 62, window: 1 << 20 };
    /// Small messages: 64 segments of 80 bytes.
    pub(crate) const R3: Self = Self { first: 0, segment: 80, segments: 64, window: 64 << 10 };

    /// Small messages, each in a send of its own.
    pub(crate) const R3_SINGLE: Self = Self { segments: 1, ..Self::R3 };

    /// Packets of each step.
    pub(crate) fn packets(&self) -> u64 {
        self.segments as u64 + u64::from(self.first > 0)
    }

    fn bytes(&self) -> usize {
        self.first + self.segment * self.segments
    }
}

/// What a run measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Packets sent or received; round trips of a ping-pong.
    pub(crate) packets: u64,
    /// Median over all sends (of a receiver: over as many packets) of the time per packet, waiting excluded;
    /// for a ping, of half a round trip. Not a number if nothing was measured.
    pub(crate) busy_ns_per_packet_median: f64,
    /// From the start of the run to its end.
    pub(crate) wall_ns: u64,
    /// Packets with a wrong CRC.
    pub(crate) bad: u64,
    /// Times that credit did not come back because datagrams were lost.
    pub(crate) stalls: u64,
}

#[expect(clippy::disallowed_methods, reason = "a baseline measures real time")]
fn now() -> Instant {
    Instant::now()
}

fn ns(since: Instant) -> u64 {
    u64::try_from(now().duration_since(since).as_nanos()).unwrap_or(u64::MAX)
}

/// Times of the steps of a run.
#[derive(Debug)]
pub(crate) struct Record {
    started: Instant,
    /// Packets that make one entry: those of a whole send, however they arrive.
    group: u64,
    /// Nanoseconds and packets of the entry that is not yet complete.
    busy: u64,
    packets: u64,
    /// Whether waiting is in it.
    waited: bool,
    per_packet: Vec<f32>,
    sample: Sample,
}

impl Record {
    /// `group`: packets that make one entry.
    pub(crate) fn new(group: u64) -> Self {
        Self {
            started: now(),
            group,
            busy: 0,
            packets: 0,
            waited: false,
            per_packet: Vec::with_capacity(KEPT),
            sample: Sample::default(),
        }
    }

    /// Takes in a step that took from `since` to now.
    #[expect(clippy::cast_precision_loss, reason = "seven digits of a time are plenty")]
    pub(crate) fn step(&mut self, since: Instant, packets: u64, waited: bool) {
        self.busy += ns(since);
        self.packets += packets;
        self.waited |= waited;
        self.sample.packets += packets;
        if self.packets >= self.group {
            if !self.waited && self.per_packet.len() < KEPT {
                self.per_packet.push(self.busy as f32 / self.packets as f32);
            }
            (self.busy, self.packets, self.waited) = (0, 0, false);
        }
    }

    /// The medians.
    pub(crate) fn finish(mut self) -> Sample {
        let middle = self.per_packet.len() / 2;
        let median = match self.per_packet.is_empty() {
            true => f32::NAN,
            false => *self.per_packet.select_nth_unstable_by(middle, f32::total_cmp).1,
        };
        let (busy_ns_per_packet_median, wall_ns) = (f64::from(median), ns(self.started));
        Sample { busy_ns_per_packet_median, wall_ns, ..self.sample }
    }
}

/// A socket with the options that the UDP port has, but for what only its accounting needs.
fn open(at: SocketAddr, buffer: usize) -> io::Result<Socket> {
    let socket =
        Socket::new(Domain::for_address(at), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    socket.set_recv_buffer_size(buffer)?;
    socket.set_send_buffer_size(buffer)?;
    setsockopt(&socket, sockopt::UdpGroSegment, &true)?;
    if at.is_ipv4() {
        // As the socket's own, so that no send needs control data for it: the baseline is what is fastest.
        socket.set_tos_v4(ECT0)?;
        socket.set_recv_tos_v4(true)?;
        setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
    } else {
        socket.set_tclass_v6(ECT0)?;
        socket.set_recv_tclass_v6(true)?;
        setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
    }
    socket.bind(&at.into())?;
    Ok(socket)
}

fn address_of(socket: &Socket) -> io::Result<SocketAddr> {
    let at = socket.local_addr()?;
    at.as_socket().ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

/// The control message that asks for segments of `size` bytes; see `cmsg(3)` and `udp(7)`.
fn segment_control(size: usize) -> Vec<u8> {
    const WORD: usize = size_of::<usize>();
    let header = WORD + 2 * size_of::<libc::c_int>();
    let size = u16::try_from(size).unwrap_or(u16::MAX).to_ne_bytes();
    let mut bytes = (header + size.len()).to_ne_bytes().to_vec();
    bytes.extend(libc::SOL_UDP.to_ne_bytes());
    bytes.extend(libc::UDP_SEGMENT.to_ne_bytes());
    bytes.extend(size);
    bytes.resize((header + size.len()).next_multiple_of(WORD), 0);
    bytes
}

/// Sends it all; says whether it had to wait for room.
fn send(socket: &Socket, to: &SockAddr, parts: &[IoSlice<'_>], control: &[u8]) -> io::Result<bool> {
    let message = MsgHdr::new().with_addr(to).with_buffers(parts).with_control(control);
    let mut waited = false;
    loop {
        match socket.sendmsg(&message, 0) {
            Ok(_) => return Ok(waited),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                waited = true;
                wait(socket, PollFlags::POLLOUT)?;
            }
            Err(e) => return Err(e),
        }
    }
}

/// Sleeps until the socket is ready, or has not been for long: then `false`.
fn wait(socket: &Socket, what: PollFlags) -> io::Result<bool> {
    match poll(&mut [PollFd::new(socket.as_fd(), what)], PollTimeout::from(PATIENCE_MS)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::EINTR) => Ok(true),
        Err(e) => Err(e.into()),
    }
}

/// A buffer to receive into, and one for control data.
#[derive(Debug)]
struct Receiver {
    buffer: Vec<u8>,
    control: Vec<u8>,
}

/// Something that was received into the buffer of a [`Receiver`].
#[derive(Clone, Copy, Debug)]
struct Received {
    len: usize,
    segment: usize,
    from: Option<SocketAddr>,
}

impl Receiver {
    fn new() -> Self {
        let control = cmsg_space!(libc::in6_pktinfo, i32, i32);
        Self { buffer: vec![0; 1 << 16], control: vec![0; control.capacity()] }
    }

    /// One try; `None` when nothing is there.
    fn receive(&mut self, socket: &Socket) -> io::Result<Option<Received>> {
        let mut into = [IoSliceMut::new(&mut self.buffer)];
        let (fd, now) = (socket.as_raw_fd(), MsgFlags::MSG_DONTWAIT);
        let got: RecvMsg<'_, '_, SockaddrStorage> =
            match recvmsg(fd, &mut into, Some(&mut self.control), now) {
                Ok(got) => got,
                Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
                Err(e) => return Err(e.into()),
            };
        let merged = got.cmsgs()?.find_map(|c| match c {
            ControlMessageOwned::UdpGroSegments(size) => usize::try_from(size).ok(),
            _ => None,
        });
        let from = got.address.and_then(|a| {
            let v4 = a.as_sockaddr_in().map(|a| SocketAddr::from((a.ip(), a.port())));
            v4.or_else(|| a.as_sockaddr_in6().map(|a| SocketAddr::from((a.ip(), a.port()))))
        });
        Ok(Some(Received { len: got.bytes, segment: merged.unwrap_or(got.bytes).max(1), from }))
    }
}

/// Fills in number, payload and CRC of a packet.
fn seal(packet: &mut [u8], number: u32, payload: &[u8]) {
    let end = packet.len() - TRAILER;
    let start = end - payload.len();
    packet[8..HEADER].copy_from_slice(&number.to_be_bytes());
    packet[start..end].copy_from_slice(payload);
    let crc = crc32fast::hash(&packet[..end]);
    packet[end..].copy_from_slice(&crc.to_le_bytes());
}

/// Whether the CRC of a packet is right.
fn is_sound(packet: &[u8]) -> bool {
    match packet.split_last_chunk::<TRAILER>() {
        Some((covered, crc)) => crc32fast::hash(covered).to_le_bytes() == *crc,
        None => false,
    }
}

/// The sending end of a stream.
#[derive(Debug)]
pub(crate) struct RawTx {
    socket: Socket,
    to: SockAddr,
    shape: Shape,
    control: Vec<u8>,
    message: Vec<u8>,
    /// Where in the message the next payload begins.
    at: usize,
    staging: Vec<u8>,
    number: u32,
    /// Bytes sent.
    sent: u64,
    /// Of these, the bytes that the receiver has told of.
    told: u64,
    /// Of the others, those that never arrived.
    lost: u64,
    /// Fruitless looks for credit in a row.
    dry: u32,
    credit: Receiver,
}

impl RawTx {
    /// Sends from `at` to `to`.
    ///
    /// # Errors
    /// What the socket says.
    pub(crate) fn open(at: SocketAddr, to: SocketAddr, shape: Shape) -> io::Result<Self> {
        Ok(Self {
            socket: open(at, 4 << 20)?,
            to: to.into(),
            shape,
            control: if shape.segments > 1 { segment_control(shape.segment) } else { Vec::new() },
            message: (0..=250).cycle().take(MESSAGE).collect(),
            at: 0,
            staging: vec![0; shape.bytes()],
            number: 0,
            sent: 0,
            told: 0,
            lost: 0,
            dry: 0,
            credit: Receiver::new(),
        })
    }

    /// Sends while `go_on` says so, which is told how many packets have left.
    ///
    /// # Errors
    /// What the socket says.
    pub(crate) fn run_for(&mut self, mut go_on: impl FnMut(u64) -> bool) -> io::Result<Sample> {
        let mut record = Record::new(self.shape.packets());
        while go_on(record.sample.packets) {
            if self.has_credit(&mut record)? {
                self.step(&mut record)?;
            }
        }
        Ok(record.finish())
    }

    /// Whether the next send fits into the window, after some looking for credit.
    fn has_credit(&mut self, record: &mut Record) -> io::Result<bool> {
        let room = self.shape.window.saturating_sub(self.shape.bytes()) as u64;
        for _ in 0..SPINS {
            if self.sent.saturating_sub(self.told + self.lost) <= room {
                self.dry = 0;
                return Ok(true);
            }
            match self.credit.receive(&self.socket)? {
                Some(got) => {
                    if let Some(told) = self.credit.buffer[..got.len].first_chunk() {
                        self.told = self.told.max(u64::from_le_bytes(*told));
                    }
                }
                None => spin_loop(),
            }
        }
        self.dry += 1;
        // What the receiver does not tell of was dropped in front of its full buffer.
        if self.dry > SPINS && !wait(&self.socket, PollFlags::POLLIN)? {
            self.lost = self.sent.saturating_sub(self.told);
            record.sample.stalls += 1;
        }
        Ok(false)
    }

    /// Builds and sends what the shape says. Needs credit.
    fn step(&mut self, record: &mut Record) -> io::Result<()> {
        let started = now();
        let payload = self.shape.segment - HEADER - TRAILER;
        let (first, segments) = self.staging.split_at_mut(self.shape.first);
        let first = (!first.is_empty()).then_some(first);
        for packet in first.into_iter().chain(segments.chunks_exact_mut(self.shape.segment)) {
            if self.at + payload > MESSAGE {
                self.at = 0;
            }
            seal(packet, self.number, &self.message[self.at..self.at + payload]);
            self.number = self.number.wrapping_add(1);
            self.at += payload;
        }
        let (first, segments) = self.staging.split_at(self.shape.first);
        let mut waited = false;
        if !first.is_empty() {
            waited |= send(&self.socket, &self.to, &[IoSlice::new(first)], &[])?;
        }
        waited |= send(&self.socket, &self.to, &[IoSlice::new(segments)], &self.control)?;
        self.sent += self.shape.bytes() as u64;
        record.step(started, self.shape.packets(), waited);
        Ok(())
    }
}

/// The receiving end of a stream.
#[derive(Debug)]
pub(crate) struct RawRx {
    socket: Socket,
    receiver: Receiver,
    shape: Shape,
    destination: Vec<u8>,
    at: usize,
    from: Option<SockAddr>,
    received: u64,
    told: u64,
}

impl RawRx {
    /// Receives at `at` what a [`RawTx`] of the same shape sends.
    ///
    /// # Errors
    /// What the socket says.
    pub(crate) fn open(at: SocketAddr, shape: Shape) -> io::Result<Self> {
        Self::with_buffer(at, shape, 4 << 20)
    }

    fn with_buffer(at: SocketAddr, shape: Shape, buffer: usize) -> io::Result<Self> {
        Ok(Self {
            socket: open(at, buffer)?,
            receiver: Receiver::new(),
            shape,
            destination: vec![0; MESSAGE],
            at: 0,
            from: None,
            received: 0,
            told: 0,
        })
    }

    /// Where it receives.
    ///
    /// # Errors
    /// What the socket says.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        address_of(&self.socket)
    }

    /// Receives while `go_on` says so, which is told how many packets have arrived.
    ///
    /// # Errors
    /// What the socket says.
    pub(crate) fn run_for(&mut self, mut go_on: impl FnMut(u64) -> bool) -> io::Result<Sample> {
        let mut record = Record::new(self.shape.packets());
        let mut idle = 0;
        while go_on(record.sample.packets) {
            idle += SPINS;
            for _ in 0..SPINS {
                if self.step(&mut record)? {
                    idle = 0;
                } else {
                    spin_loop();
                }
            }
            // The end of a run, or all that the sender may send before it hears of it.
            if idle > SPINS * SPINS {
                self.tell()?;
            }
        }
        self.tell()?;
        Ok(record.finish())
    }

    /// Receives, checks and copies what is there; `false` when nothing is.
    fn step(&mut self, record: &mut Record) -> io::Result<bool> {
        let started = now();
        let Some(got) = self.receiver.receive(&self.socket)? else { return Ok(false) };
        let mut packets = 0;
        for packet in self.receiver.buffer[..got.len].chunks(got.segment) {
            packets += 1;
            if packet.len() < HEADER + TRAILER || !is_sound(packet) {
                record.sample.bad += 1;
                continue;
            }
            let payload = &packet[HEADER..packet.len() - TRAILER];
            if self.at + payload.len() > MESSAGE {
                self.at = 0;
            }
            self.destination[self.at..self.at + payload.len()].copy_from_slice(payload);
            self.at += payload.len();
        }
        record.step(started, packets.max(1), false);
        self.received += got.len as u64;
        if self.from.is_none() {
            self.from = got.from.map(SockAddr::from);
        }
        if self.received - self.told >= self.shape.window as u64 / 4 {
            self.tell()?;
        }
        Ok(true)
    }

    /// Tells the sender how much has arrived, unless it knows.
    fn tell(&mut self) -> io::Result<()> {
        if let Some(to) = self.from.as_ref().filter(|_| self.received > self.told) {
            send(&self.socket, to, &[IoSlice::new(&self.received.to_le_bytes())], &[])?;
            self.told = self.received;
        }
        Ok(())
    }
}

/// Runs both ends of a stream in the calling thread (R5): no byte crosses to another processor.
///
/// # Errors
/// What the sockets say.
#[cfg(test)]
fn run_both(
    tx: &mut RawTx,
    rx: &mut RawRx,
    mut go_on: impl FnMut(u64) -> bool,
) -> io::Result<(Sample, Sample)> {
    let (mut sent, mut received) =
        (Record::new(tx.shape.packets()), Record::new(rx.shape.packets()));
    while go_on(sent.sample.packets) {
        if tx.has_credit(&mut sent)? {
            tx.step(&mut sent)?;
        }
        while rx.step(&mut received)? {}
    }
    rx.tell()?;
    Ok((sent.finish(), received.finish()))
}

/// One end of a ping-pong of 64 bytes of payload.
#[derive(Debug)]
struct Player {
    socket: Socket,
    /// Sleeps for what comes, instead of looking all the time.
    blocking: bool,
    receiver: Receiver,
    header: [u8; HEADER],
    payload: [u8; 64],
    number: u32,
}

impl Player {
    fn open(at: SocketAddr, blocking: bool) -> io::Result<Self> {
        Ok(Self {
            socket: open(at, 4 << 20)?,
            blocking,
            receiver: Receiver::new(),
            header: [0; HEADER],
            payload: [7; 64],
            number: 0,
        })
    }

    fn send(&mut self, to: &SockAddr) -> io::Result<()> {
        self.header[8..].copy_from_slice(&self.number.to_be_bytes());
        self.number = self.number.wrapping_add(1);
        let mut crc = crc32fast::Hasher::new();
        crc.update(&self.header);
        crc.update(&self.payload);
        let crc = crc.finalize().to_le_bytes();
        let parts = [&self.header[..], &self.payload, &crc].map(IoSlice::new);
        send(&self.socket, to, &parts, &[]).map(|_| ())
    }

    /// Looks, or sleeps, for an answer while `go_on` says so.
    fn receive(&mut self, mut go_on: impl FnMut() -> bool) -> io::Result<Option<Received>> {
        loop {
            if self.blocking {
                wait(&self.socket, PollFlags::POLLIN)?;
            }
            for _ in 0..if self.blocking { 1 } else { SPINS } {
                if let Some(got) = self.receiver.receive(&self.socket)? {
                    return Ok(Some(got));
                }
                spin_loop();
            }
            if !go_on() {
                return Ok(None);
            }
        }
    }

    fn is_sound(&self, got: &Received) -> bool {
        is_sound(&self.receiver.buffer[..got.len])
    }
}

/// The end of a ping-pong (R4) that measures.
#[derive(Debug)]
pub(crate) struct RawPing {
    player: Player,
    to: SockAddr,
}

impl RawPing {
    /// Plays from `at` with the [`RawPong`] at `to`. `blocking`: sleeps for each answer.
    ///
    /// # Errors
    /// What the socket says.
    pub(crate) fn open(at: SocketAddr, to: SocketAddr, blocking: bool) -> io::Result<Self> {
        Ok(Self { player: Player::open(at, blocking)?, to: to.into() })
    }

    /// Plays while `go_on` says so, which is told how many packets have gone either way. The median is that
    /// of half a round trip. A lost packet ends the run with what there is.
    ///
    /// # Errors
    /// What the socket says.
    pub(crate) fn run_for(&mut self, mut go_on: impl FnMut(u64) -> bool) -> io::Result<Sample> {
        let mut record = Record::new(2);
        // An answer that came too late for the last run would always be one ahead in this one.
        while self.player.receiver.receive(&self.player.socket)?.is_some() {}
        while go_on(record.sample.packets) {
            let started = now();
            self.player.send(&self.to)?;
            // A round that was begun is finished.
            let patient = || ns(started) < u64::from(PATIENCE_MS) * 1_000_000;
            let Some(got) = self.player.receive(patient)? else { break };
            record.sample.bad += u64::from(!self.player.is_sound(&got));
            record.step(started, 2, false);
        }
        Ok(record.finish())
    }
}

/// The end of a ping-pong that answers.
#[derive(Debug)]
pub(crate) struct RawPong {
    player: Player,
}

impl RawPong {
    /// Answers at `at`. `blocking`: sleeps for each ping.
    ///
    /// # Errors
    /// What the socket says.
    pub(crate) fn open(at: SocketAddr, blocking: bool) -> io::Result<Self> {
        Ok(Self { player: Player::open(at, blocking)? })
    }

    /// Where it answers.
    ///
    /// # Errors
    /// What the socket says.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        address_of(&self.player.socket)
    }

    /// Answers while `go_on` says so, which is told how many packets have been answered.
    ///
    /// # Errors
    /// What the socket says.
    pub(crate) fn run_for(&mut self, mut go_on: impl FnMut(u64) -> bool) -> io::Result<Sample> {
        let mut record = Record::new(1);
        let mut last = None;
        while let Some(got) = self.player.receive(|| go_on(record.sample.packets))? {
            let started = now();
            record.sample.bad += u64::from(!self.player.is_sound(&got));
            // The address is converted once, as an engine does it for a connected pair.
            if let Some(from) = got.from
                && last.as_ref().is_none_or(|(known, _)| *known != from)
            {
                last = Some((from, SockAddr::from(from)));
            }
            if let Some((_, to)) = &last {
                self.player.send(to)?;
            }
            record.step(started, 1, false);
            if !go_on(record.sample.packets) {
                break;
            }
        }
        Ok(record.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

    /// Both ends of a stream, each in a thread, until the sender has sent `packets` packets and what is
    /// left of them has arrived.
    fn stream(shape: Shape, packets: u64, mut rx: RawRx) -> (Sample, Sample) {
        let mut tx = RawTx::open(ANY, rx.local_addr().unwrap(), shape).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|s| {
            let sender = s.spawn(|| {
                let sample = tx.run_for(|n| n < packets).unwrap();
                done.store(true, Ordering::Release);
                sample
            });
            // Each look tries to receive some times; loopback has delivered long before the last one.
            let mut looks_after_the_end = 0;
            let received = rx.run_for(|n| {
                looks_after_the_end += u32::from(done.load(Ordering::Acquire));
                n < packets && looks_after_the_end < 10_000
            });
            (sender.join().unwrap(), received.unwrap())
        })
    }

    #[test]
    fn streams_arrive_whole() {
        for shape in [Shape::R1, Shape::R1B, Shape::R2, Shape::R3, Shape::R3_SINGLE] {
            let packets = shape.packets() * 200;
            let rx = RawRx::open(ANY, shape).unwrap();
            let (sent, received) = stream(shape, packets, rx);
            assert_eq!(sent.packets, packets, "{shape:?}");
            assert_eq!((received.packets, received.bad), (packets, 0), "{shape:?}");
            for sample in [sent, received] {
                assert!(sample.busy_ns_per_packet_median > 0.0, "{sample:?}");
                assert!(sample.wall_ns > 0);
            }
        }
    }

    #[test]
    fn a_stream_survives_loss() {
        let mut rx = RawRx::with_buffer(ANY, Shape::R1, 4096).unwrap();
        let mut tx = RawTx::open(ANY, rx.local_addr().unwrap(), Shape::R1).unwrap();
        // Nobody receives, so nearly all is lost, and the window is full again and again.
        let sent = tx.run_for(|n| n < 600).unwrap();
        assert_eq!(sent.packets, 600);
        assert_eq!(sent.stalls, 600 / 15 * 61_680 / (1 << 20));
        let mut looks = 0..10;
        let received = rx.run_for(|_| looks.next().is_some()).unwrap();
        assert!(received.packets > 0 && received.packets < 600, "{received:?}");
        // What was lost weighs on the window no longer.
        let (sent, more) = run_both(&mut tx, &mut rx, |n| n < 600).unwrap();
        assert_eq!((sent.packets, sent.stalls, more.packets, more.bad), (600, 0, 600, 0));
    }

    #[test]
    fn one_thread_can_do_both_ends() {
        let mut rx = RawRx::open(ANY, Shape::R1).unwrap();
        let mut tx = RawTx::open(ANY, rx.local_addr().unwrap(), Shape::R1).unwrap();
        let (sent, received) = run_both(&mut tx, &mut rx, |n| n < 3000).unwrap();
        assert_eq!((sent.packets, received.packets, received.bad), (3000, 3000, 0));
    }

    #[test]
    fn a_wrong_crc_is_counted() {
        let mut rx = RawRx::open(ANY, Shape::R3).unwrap();
        let from = open(ANY, 1 << 16).unwrap();
        let to = SockAddr::from(rx.local_addr().unwrap());
        let mut packet = [0; 80];
        seal(&mut packet, 1, &[7; 64]);
        assert!(is_sound(&packet));
        send(&from, &to, &[IoSlice::new(&packet)], &[]).unwrap();
        packet[20] ^= 1;
        send(&from, &to, &[IoSlice::new(&packet)], &[]).unwrap();
        send(&from, &to, &[IoSlice::new(b"short")], &[]).unwrap();
        let sample = rx.run_for(|n| n < 3).unwrap();
        assert_eq!((sample.packets, sample.bad), (3, 2));
    }

    #[test]
    fn ping_and_pong() {
        for blocking in [false, true] {
            play(blocking);
        }
    }

    fn play(blocking: bool) {
        let mut pong = RawPong::open(ANY, blocking).unwrap();
        let mut ping = RawPing::open(ANY, pong.local_addr().unwrap(), blocking).unwrap();
        std::thread::scope(|s| {
            let answers = s.spawn(move || pong.run_for(|n| n < 500).unwrap());
            let sample = ping.run_for(|n| n < 1000).unwrap();
            assert_eq!((sample.packets, sample.bad), (1000, 0));
            assert!(sample.busy_ns_per_packet_median > 0.0);
            let answers = answers.join().unwrap();
            assert_eq!((answers.packets, answers.bad), (500, 0));
        });
    }
}
