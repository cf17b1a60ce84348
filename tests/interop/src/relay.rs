//! The link between us and the guest: every frame goes through here, is counted, recorded, and may be lost or held
//! back on the way.
//!
//! *Rules.* What goes wrong is decided by packets, never by time: a rule meets the n-th packet of its class, losses
//! follow a seed. Only what has been held back and is overtaken by nobody leaves after a while by itself.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use softroce::wire::frame::{LinkType, dissect};
use softroce::wire::opcode::{Operation, Position};
use softroce::wire::{NakCode, Packet, Syndrome, icrc};

use crate::Res;

/// Where a frame comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Dir {
    Us,
    Kernel,
}

impl Dir {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Us => Self::Kernel,
            Self::Kernel => Self::Us,
        }
    }
}

/// What kind of packet a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Any request.
    Request,
    /// An ACK of everything that was asked so far.
    Ack,
    /// A NAK for a gap.
    Nak,
    /// A READ response at this place of the message; an empty one also answers ATOMIC WRITE and FLUSH.
    Response(Position),
    /// The answer to an atomic.
    AtomicAck,
}

/// Loses one packet: the first of its class after `skip` others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) from: Dir,
    pub(crate) class: Class,
    pub(crate) skip: u32,
}

/// What goes wrong.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    /// Each loses one packet.
    pub(crate) rules: Vec<Rule>,
    /// One in a hundred is lost, as this seed has it.
    pub(crate) loss: Option<u64>,
    /// Of the requests (or READ responses) from there, every third is overtaken by the next.
    pub(crate) reorder: Option<Dir>,
    /// From there nothing of ours arrives any more.
    pub(crate) silence: Option<Dir>,
}

/// What has been seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stats {
    /// RoCE packets, lost ones included.
    pub(crate) packets: u64,
    /// By name of the opcode.
    pub(crate) by_name: BTreeMap<(Dir, &'static str), u64>,
    /// Lost by a fault.
    pub(crate) dropped: u64,
    /// Of these, requests of a connection; and of those, whole messages that so cannot arrive.
    pub(crate) dropped_requests: u64,
    /// Overtaken by another packet.
    pub(crate) overtaken: u64,
    /// Requests whose PSN had been sent before.
    pub(crate) again: u64,
    /// Sequence NAKs that were let through.
    pub(crate) naks: u64,
    /// RNR NAKs.
    pub(crate) rnr_naks: u64,
    /// Packets whose ICRC is wrong by the book.
    pub(crate) bad_icrc: u64,
    /// FLUSHes with the ICRC of rdma_rxe.
    pub(crate) rxe_flush: u64,
}

impl Stats {
    pub(crate) fn named(&self, from: Dir, part: &str) -> u64 {
        self.by_name
            .iter()
            .filter(|((d, name), _)| *d == from && name.contains(part))
            .map(|(_, n)| n)
            .sum()
    }
}

struct Recorded {
    time: Duration,
    bytes: Vec<u8>,
    note: Option<&'static str>,
}

/// Bytes of a cell that are kept for a capture.
const KEPT: usize = 64 << 20;

#[derive(Default)]
struct State {
    faults: Faults,
    stats: Stats,
    draws: u64,
    /// Requests, or READ responses, that `reorder` has looked at.
    looked_at: u64,
    held: Vec<(Instant, Dir, Vec<u8>)>,
    /// The PSN behind the last request, by direction and queue pair.
    ends: BTreeMap<(Dir, u32), u32>,
    /// PSN of the last packet of the last message, by direction.
    last_of_message: BTreeMap<Dir, u32>,
    mtu: u32,
    records: Vec<Recorded>,
    kept: usize,
}

/// What becomes of a frame.
enum Fate {
    Pass,
    Lost,
    Held,
}

impl State {
    fn draw(&mut self) -> u64 {
        self.draws ^= self.draws << 13;
        self.draws ^= self.draws >> 7;
        self.draws ^= self.draws << 17;
        self.draws
    }

    fn look(&mut self, from: Dir, frame: &[u8], at: Duration) -> Fate {
        let Ok(roce) = dissect(LinkType::Ethernet, frame) else {
            self.record(at, frame, None);
            return Fate::Pass;
        };
        self.stats.packets += 1;
        let note = |state: &mut Self, note| state.record(at, frame, note);
        let Ok(packet) = Packet::parse(roce.datagram) else {
            note(self, Some("not a packet"));
            return Fate::Pass;
        };
        *self.stats.by_name.entry((from, packet.info().name)).or_default() += 1;
        if !icrc::check(&roce.ip, roce.datagram) {
            let flush = packet.info().operation == Operation::Flush;
            if flush && icrc::check_rxe_flush(&roce.ip, roce.datagram) {
                self.stats.rxe_flush += 1;
            } else {
                self.stats.bad_icrc += 1;
                note(self, Some("wrong ICRC"));
                return Fate::Pass;
            }
        }
        if self.follow(from, &packet) {
            self.stats.again += 1;
        }
        let request = packet.info().is_request();
        if let Some(which) =
            self.faults.rules.iter().position(|rule| self.meets(rule, from, &packet))
        {
            if self.faults.rules[which].skip == 0 {
                self.faults.rules.remove(which);
                return self.lose(at, frame, request);
            }
            self.faults.rules[which].skip -= 1;
        }
        if self.faults.silence == Some(from) {
            return self.lose(at, frame, request);
        }
        if self.faults.loss.is_some() && self.draw().is_multiple_of(100) {
            return self.lose(at, frame, request);
        }
        let data = request || packet.info().operation == Operation::ReadResponse;
        if self.faults.reorder == Some(from) && data {
            self.looked_at += 1;
            // A few times only: who goes back to what is missing sends much again.
            if self.looked_at % 3 == 2 && self.held.is_empty() && self.stats.overtaken < 4 {
                note(self, Some("held back"));
                return Fate::Held;
            }
        }
        match packet.aeth().map(|aeth| aeth.syndrome) {
            Some(Syndrome::Nak(NakCode::SequenceError)) => self.stats.naks += 1,
            Some(Syndrome::RnrNak { .. }) => self.stats.rnr_naks += 1,
            _ => {}
        }
        note(self, None);
        Fate::Pass
    }

    fn lose(&mut self, at: Duration, frame: &[u8], request: bool) -> Fate {
        self.stats.dropped += 1;
        self.stats.dropped_requests += u64::from(request);
        self.record(at, frame, Some("lost on the way"));
        Fate::Lost
    }

    /// Follows the PSNs of requests: whether this one has been sent before.
    fn follow(&mut self, from: Dir, packet: &Packet<'_>) -> bool {
        if !packet.info().is_request() {
            return false;
        }
        let psn = packet.psn().raw();
        let count = match packet.reth() {
            Some(reth) if packet.info().operation == Operation::Read => {
                reth.dma_len.div_ceil(self.mtu.max(1)).max(1)
            }
            _ => 1,
        };
        if packet.info().position.ends() {
            self.last_of_message.insert(from, psn.wrapping_add(count - 1) & 0xff_ffff);
        }
        let end = psn.wrapping_add(count) & 0xff_ffff;
        let known = self.ends.entry((from, packet.dest_qp().raw())).or_insert(psn);
        // The sign of the difference of 24 bits.
        let before = (psn.wrapping_sub(*known) << 8).cast_signed() < 0;
        if (end.wrapping_sub(*known) << 8).cast_signed() > 0 {
            *known = end;
        }
        before
    }

    fn meets(&self, rule: &Rule, from: Dir, packet: &Packet<'_>) -> bool {
        if rule.from != from {
            return false;
        }
        let syndrome = packet.aeth().map(|aeth| aeth.syndrome);
        let info = packet.info();
        match rule.class {
            Class::Request => info.is_request(),
            Class::Ack => {
                let last = self.last_of_message.get(&from.other());
                info.operation == Operation::Acknowledge
                    && matches!(syndrome, Some(Syndrome::Ack { .. }))
                    && last == Some(&packet.psn().raw())
            }
            Class::Nak => {
                info.operation == Operation::Acknowledge
                    && matches!(syndrome, Some(Syndrome::Nak(code)) if code == NakCode::SequenceError)
            }
            Class::Response(position) => {
                info.operation == Operation::ReadResponse && info.position == position
            }
            Class::AtomicAck => info.operation == Operation::AtomicAcknowledge,
        }
    }

    fn record(&mut self, time: Duration, frame: &[u8], note: Option<&'static str>) {
        if self.kept + frame.len() <= KEPT {
            self.kept += frame.len();
            self.records.push(Recorded { time, bytes: frame.to_vec(), note });
        }
    }
}

/// One end of the link.
enum End {
    /// A socket, and the path of its peer.
    Socket(UnixDatagram, PathBuf),
    Tap(File),
}

impl End {
    fn bind(path: &Path, peer: PathBuf) -> Res<Self> {
        let _ = fs::remove_file(path);
        let socket = UnixDatagram::bind(path).map_err(|e| format!("{}: {e}", path.display()))?;
        socket.set_nonblocking(true).map_err(|e| e.to_string())?;
        Ok(Self::Socket(socket, peer))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Socket(socket, _) => socket.as_fd(),
            Self::Tap(file) => file.as_fd(),
        }
    }

    fn receive(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Socket(socket, _) => socket.recv(buf),
            Self::Tap(file) => file.read(buf),
        }
    }

    fn send(&mut self, frame: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Socket(socket, peer) => socket.send_to(frame, peer),
            Self::Tap(file) => file.write(frame),
        }
    }
}

struct Port {
    end: End,
    dir: Dir,
    /// What its peer has no room for yet.
    queue: VecDeque<Vec<u8>>,
}

impl Port {
    fn flush(&mut self) {
        while let Some(frame) = self.queue.front() {
            match self.end.send(frame) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                // Sent, or nobody is there: as on any link.
                _ => self.queue.pop_front(),
            };
        }
    }
}

/// How long a packet is held back that nobody overtakes.
const HOLD: Duration = Duration::from_millis(200);

/// The running link.
pub(crate) struct Relay {
    state: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Starts it, with sockets in `dir` (`relay-guest` for the guest's `guest`, `relay-us` for our `us`), and with a TAP
    /// device if there is one.
    pub(crate) fn start(dir: &Path, tap: Option<File>) -> Res<Self> {
        let port = |end, dir| Port { end, dir, queue: VecDeque::new() };
        let mut ports = vec![
            port(End::bind(&dir.join("relay-guest"), dir.join("guest"))?, Dir::Kernel),
            port(End::bind(&dir.join("relay-us"), dir.join("us"))?, Dir::Us),
        ];
        ports.extend(tap.map(|file| port(End::Tap(file), Dir::Us)));
        let state = Arc::new(Mutex::new(State::default()));
        let stop = Arc::new(AtomicBool::new(false));
        let (shared, ending) = (Arc::clone(&state), Arc::clone(&stop));
        let thread = std::thread::Builder::new()
            .name("relay".into())
            .spawn(move || run(&mut ports, &shared, &ending))
            .map_err(|e| format!("relay: {e}"))?;
        Ok(Self { state, stop, thread: Some(thread) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new cell: nothing goes wrong, nothing has been seen.
    pub(crate) fn begin(&self, mtu: usize) {
        let mut state = self.lock();
        let held = std::mem::take(&mut state.held);
        *state = State { held, mtu: u32::try_from(mtu).unwrap_or(u32::MAX), ..State::default() };
    }

    /// From here on this goes wrong.
    pub(crate) fn set(&self, faults: Faults) {
        let mut state = self.lock();
        state.draws = faults.loss.unwrap_or(1) | 1;
        state.faults = faults;
    }

    /// Rules that have met nothing yet.
    pub(crate) fn pending(&self) -> usize {
        self.lock().faults.rules.len()
    }

    pub(crate) fn stats(&self) -> Stats {
        self.lock().stats.clone()
    }

    /// Writes what has been recorded since the cell began.
    pub(crate) fn save(&self, path: &Path) -> Res<()> {
        let failed = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
        let file = File::create(path).map_err(|e| failed(&e))?;
        let mut writer =
            PcapNgWriter::new(std::io::BufWriter::new(file)).map_err(|e| failed(&e))?;
        let interface = InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: 0,
            options: vec![InterfaceDescriptionOption::IfTsResol(9)],
        };
        writer.write_pcapng_block(interface).map_err(|e| failed(&e))?;
        for record in &self.lock().records {
            let note = record.note.map(|note| EnhancedPacketOption::Comment(note.into()));
            let block = EnhancedPacketBlock {
                interface_id: 0,
                timestamp: record.time,
                original_len: u32::try_from(record.bytes.len()).unwrap_or(u32::MAX),
                data: (&record.bytes[..]).into(),
                options: note.into_iter().collect(),
            };
            writer.write_pcapng_block(block).map_err(|e| failed(&e))?;
        }
        writer.into_inner().flush().map_err(|e| failed(&e))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(ports: &mut [Port], shared: &Mutex<State>, stop: &AtomicBool) {
    let began = Instant::now();
    let mut buf = vec![0; 65536];
    let lock = || shared.lock().unwrap_or_else(PoisonError::into_inner);
    while !stop.load(Ordering::Relaxed) {
        let busy = ports.iter().any(|port| !port.queue.is_empty());
        let mut fds: Vec<PollFd<'_>> =
            ports.iter().map(|port| PollFd::new(port.end.fd(), PollFlags::POLLIN)).collect();
        let timeout = if busy { PollTimeout::from(1u8) } else { PollTimeout::from(20u8) };
        let _ = poll(&mut fds, timeout);
        drop(fds);
        for i in 0..ports.len() {
            let from = ports[i].dir;
            // Some at a time, so that no side starves the other.
            for _ in 0..32 {
                let Ok(len) = ports[i].end.receive(&mut buf) else { break };
                let frame = buf[..len].to_vec();
                let mut state = lock();
                match state.look(from, &frame, began.elapsed()) {
                    Fate::Lost => {}
                    Fate::Held => state.held.push((Instant::now(), from, frame)),
                    Fate::Pass => {
                        let roce = dissect(LinkType::Ethernet, &frame).is_ok();
                        let mut leaving = vec![(from, frame)];
                        if roce && let Some(at) = state.held.iter().position(|held| held.1 == from)
                        {
                            let (_, dir, frame) = state.held.remove(at);
                            state.stats.overtaken += 1;
                            leaving.push((dir, frame));
                        }
                        drop(state);
                        for (dir, frame) in leaving {
                            forward(ports, dir, &frame);
                        }
                    }
                }
            }
        }
        let mut late = Vec::new();
        lock().held.retain(|(since, dir, frame)| {
            let stays = since.elapsed() < HOLD;
            if !stays {
                late.push((*dir, frame.clone()));
            }
            stays
        });
        for (dir, frame) in late {
            forward(ports, dir, &frame);
        }
        for port in ports.iter_mut() {
            port.flush();
        }
    }
}

/// To every end on the other side, as a hub does.
fn forward(ports: &mut [Port], from: Dir, frame: &[u8]) {
    for port in ports.iter_mut().filter(|port| port.dir != from) {
        port.queue.push_back(frame.to_vec());
        port.flush();
    }
}
