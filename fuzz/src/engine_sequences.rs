//! Any bytes as what two devices and the network between them do.
//!
//! Four connections of all types between two engines, in virtual time. Each byte is a step, the ones behind it
//! its arguments; what is missing at the end is 0. Requests and receives are posted, packets lost, doubled and
//! delayed, ACKs held back and coalesced, queue pairs drained, failed, reset, destroyed and made anew, memory
//! deregistered, in any order.
//! Then the faults stop. Every request completes once and in order, memory that was not lent stays as it was,
//! everything ends in a time that follows from the timeouts, and what room requests had in flow control is
//! there for new connections.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use softroce::internals::engine::qp::attr::{AhAttr, QpAttr, QpCap, QpState, QpType};
use softroce::internals::engine::{Acks, Engine, EngineConfig, LocalGid, QpFace, QpHandle, QpInit};
use softroce::internals::mem::{Access, IovaChoice, PdId, Region, Registered, Sge};
use softroce::internals::queue::{CqShared, Cqe, CqeKind, RecvQueue, SendFlags, SendOp, SendWqe};
use softroce::net::{Ident, PortCaps, RxMeta, SrcPort};
use softroce::time::{Duration, Instant};
use softroce::wire::Packet;
use softroce::wire::icrc::{self, IpFields};
use softroce::wire::num::{Gid, Mtu};

/// How far the bytes got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Requests and receives that succeeded.
    pub succeeded: u32,
    /// Those that failed, but were not flushed.
    pub failed: u32,
    /// Those that were flushed.
    pub flushed: u32,
    /// Packets that were lost or doubled.
    pub faults: u32,
}

const KINDS: [QpType; 4] = [QpType::Rc, QpType::Rc, QpType::Uc, QpType::Ud];
/// The connection whose second end takes its receives from a shared queue.
const SHARED: usize = 1;
const QKEY: u32 = 0x1ee7;
const MTU: Mtu = Mtu::B1024;
const REGION: usize = 32 << 10;
/// Bytes that a receiver buffers: little, so that room that is not given back is missed.
const BUFFER: usize = 24 << 10;
/// Most bytes of a request.
const LONGEST: usize = 12 << 10;
const SECRET: u8 = 0xa9;
const SENDS: u32 = 12;
const RECEIVES: u32 = 6;
const STEPS: usize = 400;
/// How long a packet takes.
const DELAY: Duration = Duration::from_micros(5);
/// Longer than any series of retries takes.
const END: Duration = Duration::from_secs(5);
/// Most calls of an engine in a row, and most events in a wait. More means that it never ends.
const MANY: usize = 200_000;
const FLUSHED: u8 = 5;

/// One end of a connection.
struct End {
    qp: QpHandle,
    face: Arc<QpFace>,
    shared: Option<Arc<RecvQueue>>,
    /// Requests and receives without a completion, in the order of posting.
    sends: VecDeque<u64>,
    receives: VecDeque<u64>,
}

struct Side {
    ip: Ipv4Addr,
    engine: Engine,
    pd: PdId,
    cq: u32,
    cqs: Arc<CqShared>,
    srq: u32,
    srq_face: Arc<RecvQueue>,
    /// Receives in the shared queue, and taken from it.
    shared: BTreeSet<u64>,
    ah: u32,
    /// Peers may do anything with it, until it is deregistered.
    lent: Registered,
    is_lent: bool,
    /// Nobody may do anything with it.
    private: (Arc<Region>, Registered),
    ends: Vec<Option<End>>,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Pass,
    Lost,
    Twice,
    Late,
}

struct World {
    now: Instant,
    sides: [Side; 2],
    /// By time of arrival, then in the order of sending: to whom, how, what.
    wire: BTreeMap<(Instant, u64), (usize, RxMeta, Vec<u8>)>,
    sent: u64,
    fates: VecDeque<Fate>,
    /// How their drivers treat ACKs.
    acks: [Acks; 2],
    shows_idents: bool,
    next_id: u64,
    buf: Vec<u8>,
    reached: Reached,
}

/// Does what `data` says.
///
/// # Panics
/// If anything is wrong.
pub fn run(data: &[u8]) -> Reached {
    let mut world = World::new();
    // The last byte is a step like the others, and says too whether the network shows identifications.
    world.shows_idents = data.last().is_some_and(|last| last & 1 == 1);
    let mut bytes = Bytes(data);
    for _ in 0..STEPS {
        if bytes.0.is_empty() {
            break;
        }
        world.step(&mut bytes);
    }
    world.end();
    world.reached
}

/// The arguments of steps.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }
}

impl Side {
    fn new(ip: Ipv4Addr, peer: Ipv4Addr) -> Self {
        let caps = PortCaps {
            src_port: SrcPort::Entropy,
            ident: Ident::ZeroThenIndex,
            gso_segments_v4: 16,
            gso_segments_v6: 16,
            max_transmit: 65_507,
            mtu: 1500,
            rx_buffer: Some(BUFFER),
        };
        let [.., seed] = ip.octets();
        let gid = LocalGid { ip: ip.into(), scope_id: 0 };
        let mut engine = Engine::new(EngineConfig::new([seed; 32]), caps, vec![gid]);
        let pd = engine.alloc_pd().expect("the first");
        let (cq, cqs) = engine.create_cq(1024).expect("the first");
        let (srq, srq_face) = engine.create_srq(pd, RECEIVES, 2).expect("the first");
        let attr = AhAttr { dgid: Gid::from(IpAddr::from(peer)), port: 1, ..AhAttr::default() };
        let ah = engine.create_ah(pd, &attr).expect("the first");
        let lent = register(&mut engine, pd, lent_access()).1;
        let private = register(&mut engine, pd, Access::LOCAL);
        private.0.fill(0..REGION, SECRET);
        Self {
            ip,
            engine,
            pd,
            cq,
            cqs,
            srq,
            srq_face,
            shared: BTreeSet::new(),
            ah,
            lent,
            is_lent: true,
            private,
            ends: KINDS.map(|_| None).into(),
        }
    }

    fn sge(&self, len: usize) -> Sge {
        let length = u32::try_from(len).expect("small");
        Sge { addr: self.lent.iova, length, lkey: self.lent.lkey }
    }
}

fn lent_access() -> Access {
    Access::REMOTE | Access::FLUSH_GLOBAL
}

fn register(engine: &mut Engine, pd: PdId, access: Access) -> (Arc<Region>, Registered) {
    let region = Region::alloc(REGION).expect("memory");
    let kept = Arc::clone(&region);
    let mr = engine.register(pd, kept, IovaChoice::Allocate, access).expect("all is right");
    (region, mr)
}

impl World {
    fn new() -> Self {
        let ips = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
        let mut world = Self {
            now: Instant::from_nanos(1_000_000),
            sides: [Side::new(ips[0], ips[1]), Side::new(ips[1], ips[0])],
            wire: BTreeMap::new(),
            sent: 0,
            fates: VecDeque::new(),
            acks: [Acks::Send; 2],
            shows_idents: false,
            next_id: 0,
            buf: vec![0; 1 << 16],
            reached: Reached::default(),
        };
        (0..KINDS.len()).for_each(|connection| world.renew(connection));
        world
    }

    fn step(&mut self, b: &mut Bytes<'_>) {
        let op = b.byte();
        let (side, connection) = (usize::from(op >> 4 & 1), usize::from(op >> 5) % KINDS.len());
        match op % 16 {
            0..=4 => self.post_send(side, connection, b.byte(), b.byte()),
            5 | 6 => self.post_recv(side, connection, b.byte()),
            7 | 8 => {
                let pause = [1, 10, 100, 2000][usize::from(b.byte()) % 4];
                self.pass(Duration::from_micros(pause));
            }
            9 | 10 => {
                let fates = b.byte();
                for at in [0, 2, 4, 6] {
                    self.fates.push_back(match fates >> at & 3 {
                        0 => Fate::Pass,
                        1 => Fate::Lost,
                        2 => Fate::Twice,
                        _ => Fate::Late,
                    });
                }
            }
            11 => {
                let state = match b.byte() % 4 {
                    0 => QpState::Sqd,
                    1 => QpState::Rts,
                    2 => QpState::Err,
                    _ => QpState::Reset,
                };
                self.modify(side, connection, &QpAttr::to(state));
            }
            12 => self.destroy(side, connection),
            13 => self.renew(connection),
            14 => self.lend(side),
            _ if side == 1 => {
                // What the program of one of them does: it sees to others, looks all the time, or has got a message.
                self.acks[usize::from(op >> 7)] = match op >> 5 & 3 {
                    0 => Acks::Send,
                    1 => Acks::Hold,
                    _ => Acks::Coalesce,
                };
            }
            _ => {
                // To the next thing that happens by itself.
                if let Some(at) = self.next() {
                    self.pass(at.saturating_since(self.now));
                }
            }
        }
        self.pump();
        self.collect();
    }

    /// A new queue pair at each end, connected.
    fn renew(&mut self, connection: usize) {
        for side in [0, 1] {
            self.destroy(side, connection);
            let kind = KINDS[connection];
            let one = &mut self.sides[side];
            let is_shared = connection == SHARED && side == 1;
            let cap = QpCap { send_wr: SENDS, recv_wr: RECEIVES, ..QpCap::default() };
            let (qp, face) = one
                .engine
                .create_qp(QpInit {
                    kind,
                    pd: one.pd,
                    send_cq: one.cq,
                    recv_cq: one.cq,
                    srq: is_shared.then_some(one.srq),
                    cap,
                    sig_all: true,
                    cc: None,
                })
                .expect("there is room for it");
            let shared = is_shared.then(|| Arc::clone(&one.srq_face));
            let (sends, receives) = (VecDeque::new(), VecDeque::new());
            one.ends[connection] = Some(End { qp, face, shared, sends, receives });
        }
        for side in [0, 1] {
            self.connect(side, connection);
        }
    }

    /// From RESET to RTS.
    fn connect(&mut self, side: usize, connection: usize) {
        let Some(peer) = &self.sides[1 - side].ends[connection] else { return };
        let peer = peer.face.qpn().raw();
        let dgid = Gid::from(IpAddr::from(self.sides[1 - side].ip));
        let ah = AhAttr { dgid, ..AhAttr::default() };
        let psn = 0xff_fff0;
        let init = QpAttr::to(QpState::Init).port(1).pkey_index(0_u16);
        let rtr = QpAttr::to(QpState::Rtr);
        let rts = QpAttr::to(QpState::Rts).sq_psn(psn);
        let met = rtr.clone().ah(ah).path_mtu(MTU).dest_qpn(peer).rq_psn(psn);
        let steps = match KINDS[connection] {
            QpType::Ud => [init.qkey(QKEY), rtr, rts],
            QpType::Uc => [init.access(Access::REMOTE), met, rts],
            _ => [
                init.access(lent_access()),
                met.max_dest_rd_atomic(2).min_rnr_timer(1),
                rts.timeout(6).retry_cnt(3).rnr_retry(3).max_rd_atomic(2),
            ],
        };
        let one = &mut self.sides[side];
        let Some(end) = &one.ends[connection] else { return };
        let buffer = u32::try_from(BUFFER).expect("small");
        one.engine.set_peer_buffer(end.qp, buffer).expect("it exists");
        for attr in steps {
            one.engine.modify_qp(self.now, end.qp, &attr).expect("these are the steps");
        }
    }

    fn modify(&mut self, side: usize, connection: usize, attr: &QpAttr) {
        let one = &mut self.sides[side];
        let Some(end) = &mut one.ends[connection] else { return };
        if one.engine.modify_qp(self.now, end.qp, attr).is_err() {
            return;
        }
        if attr.state == Some(QpState::Reset) {
            // What was posted is forgotten, and so are completions of it.
            end.sends.clear();
            end.receives.clear();
            self.connect(side, connection);
        }
    }

    fn destroy(&mut self, side: usize, connection: usize) {
        let one = &mut self.sides[side];
        let Some(end) = one.ends[connection].take() else { return };
        one.engine.destroy_qp(end.qp).expect("it existed");
        assert!(one.engine.query_qp(end.qp).is_err());
    }

    /// Takes memory back under everybody's hands, or lends new.
    fn lend(&mut self, side: usize) {
        let one = &mut self.sides[side];
        if one.is_lent {
            one.engine.deregister(one.pd, one.lent.lkey).expect("nothing is bound to it");
        } else {
            one.lent = register(&mut one.engine, one.pd, lent_access()).1;
        }
        one.is_lent = !one.is_lent;
    }

    fn post_send(&mut self, side: usize, connection: usize, what: u8, how: u8) {
        let peer = &self.sides[1 - side];
        // In the last case where nobody may go.
        let (rkey, base) = match how & 7 {
            7 => (peer.private.1.rkey, peer.private.1.iova),
            _ => (peer.lent.rkey, peer.lent.iova),
        };
        let peer_qpn = peer.ends[connection].as_ref().map_or(1, |end| end.face.qpn().raw());
        let one = &mut self.sides[side];
        let local = match how >> 3 & 7 {
            0 => one.private.1.lkey,
            _ => one.lent.lkey,
        };
        let Some(end) = &mut one.ends[connection] else { return };
        if matches!(end.face.state(), QpState::Reset | QpState::Init | QpState::Rtr) {
            return;
        }
        let ops = match KINDS[connection] {
            QpType::Ud => &[SendOp::Send, SendOp::SendImm][..],
            QpType::Uc => &[SendOp::Send, SendOp::Write, SendOp::SendImm, SendOp::WriteImm],
            _ => &[
                SendOp::Send,
                SendOp::Write,
                SendOp::Read,
                SendOp::FetchAdd,
                SendOp::CompareSwap,
                SendOp::AtomicWrite,
                SendOp::Flush,
                SendOp::WriteImm,
                SendOp::SendImm,
                SendOp::SendInv,
            ],
        };
        let op = ops[usize::from(what & 15) % ops.len()];
        let wanted = [8, 100, 1024, LONGEST][usize::from(what >> 4 & 3)];
        let len = match op {
            SendOp::FetchAdd | SendOp::CompareSwap | SendOp::AtomicWrite => 8,
            // The private memory is not to be changed by its owner either.
            SendOp::Flush => 0,
            _ => wanted,
        };
        let brings = matches!(op, SendOp::Read | SendOp::FetchAdd | SendOp::CompareSwap);
        let mut sge = one.lent;
        if local == one.private.1.lkey && !brings {
            sge = one.private.1;
        }
        let length = u32::try_from(len).expect("small");
        let sge = Sge { addr: sge.iova, length, lkey: sge.lkey };
        let fence = if what & 0x40 != 0 { SendFlags::FENCE } else { SendFlags::empty() };
        self.next_id += 1;
        let wqe = SendWqe {
            wr_id: self.next_id,
            op,
            flags: SendFlags::SIGNALED | fence,
            remote_addr: base.wrapping_add(u64::from(how >> 6) * 0x3000),
            rkey,
            compare_add: 64,
            imm_or_inv: 1,
            dest: one.ah,
            dest_qpn: peer_qpn,
            dest_qkey: QKEY,
            ..SendWqe::default()
        };
        let mut sq = end.face.sq.lock();
        if sq.free() == 0 {
            return;
        }
        sq.stage(wqe, (len > 0).then_some(sge)).expect("there is room");
        sq.publish();
        drop(sq);
        end.sends.push_back(self.next_id);
        one.engine.handle_doorbell(self.now, end.qp);
    }

    fn post_recv(&mut self, side: usize, connection: usize, what: u8) {
        let one = &mut self.sides[side];
        let sge = one.sge(if what & 3 == 3 { 16 } else { LONGEST + 40 });
        let Some(end) = &mut one.ends[connection] else { return };
        if end.face.state() == QpState::Reset {
            return;
        }
        for _ in 0..=what >> 6 {
            let mut rq = end.shared.as_deref().unwrap_or(&end.face.rq).lock();
            if rq.free() == 0 {
                break;
            }
            self.next_id += 1;
            rq.stage(self.next_id, [sge]).expect("there is room");
            rq.publish();
            match end.shared {
                Some(_) => {
                    one.shared.insert(self.next_id);
                }
                None => end.receives.push_back(self.next_id),
            }
        }
        one.engine.handle_doorbell(self.now, end.qp);
    }

    /// Takes completions: each is that of the oldest in its queue.
    fn collect(&mut self) {
        let reached = &mut self.reached;
        for side in &mut self.sides {
            let Side { cqs, ends, shared, .. } = side;
            cqs.poll(usize::MAX, |cqe: &Cqe| {
                let mut ends = ends.iter_mut().flatten();
                let end = ends.find(|end| end.face.qpn().raw() == cqe.qpn);
                let Some(end) = end else { panic!("{cqe:?} is of nobody") };
                match (cqe.kind, &end.shared) {
                    (CqeKind::Send, _) => {
                        assert_eq!(end.sends.pop_front(), Some(cqe.wr_id), "{cqe:?}");
                    }
                    (CqeKind::Recv, None) => {
                        assert_eq!(end.receives.pop_front(), Some(cqe.wr_id), "{cqe:?}");
                    }
                    (CqeKind::Recv, Some(_)) => assert!(shared.remove(&cqe.wr_id), "{cqe:?}"),
                }
                match cqe.status {
                    0 => reached.succeeded += 1,
                    FLUSHED => reached.flushed += 1,
                    _ => reached.failed += 1,
                }
            });
            assert!(!cqs.is_overrun());
        }
    }

    /// Takes everything that the engines want to send.
    fn pump(&mut self) {
        let ips = [self.sides[0].ip, self.sides[1].ip];
        for from in [0, 1] {
            for n in 0.. {
                assert!(n < MANY, "it sends for ever");
                let side = &mut self.sides[from];
                let sent = side.engine.poll_transmit(self.now, self.acks[from], &mut self.buf);
                let Some((transmit, _)) = sent else {
                    while side.engine.poll_event().is_some() {}
                    break;
                };
                let size = transmit.segment_size.map_or(transmit.len, usize::from);
                for (ident, datagram) in (0..).zip(self.buf[..transmit.len].chunks(size)) {
                    let packet = Packet::parse(datagram).expect("what is sent is a packet");
                    assert!(packet.payload().len() <= MTU.bytes());
                    let path = transmit.path;
                    let ips = (ips[from], ips[1 - from]);
                    assert_eq!((path.src, path.dst), (ips.0.into(), ips.1.into()));
                    let ip = IpFields::v4(ips.0, ips.1, ident, true, path.src_port);
                    assert!(icrc::check(&ip, datagram));
                    let known = self.shows_idents.then_some(ident);
                    let df = self.shows_idents.then_some(true);
                    let meta = RxMeta { path, ident: known, df, gro_index: ident };
                    let arrival = self.now + DELAY;
                    let fate = self.fates.pop_front().unwrap_or(Fate::Pass);
                    let late = arrival + DELAY * 8;
                    let arrivals = match fate {
                        Fate::Pass => &[arrival][..],
                        Fate::Lost => &[],
                        Fate::Twice => &[arrival, late],
                        Fate::Late => &[late],
                    };
                    self.reached.faults += u32::from(!matches!(fate, Fate::Pass));
                    for &at in arrivals {
                        self.sent += 1;
                        self.wire.insert((at, self.sent), (1 - from, meta, datagram.to_vec()));
                    }
                }
            }
        }
    }

    /// When something happens next by itself.
    fn next(&self) -> Option<Instant> {
        let timers = self.sides.iter().filter_map(|side| side.engine.poll_timeout());
        timers.chain(self.wire.keys().next().map(|&(at, _)| at)).min()
    }

    /// Lets time pass, with what happens in it.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        for n in 0.. {
            assert!(n < MANY, "time stands still");
            self.pump();
            self.collect();
            let Some(next) = self.next().filter(|&at| at <= end) else { break };
            self.now = self.now.max(next);
            while let Some(entry) = self.wire.first_entry().filter(|e| e.key().0 <= self.now) {
                let (at, (to, meta, mut bytes)) = entry.remove_entry();
                // What follows it without a gap comes in merged.
                let (size, mut last) = (bytes.len(), meta);
                while let Some(entry) = self.wire.first_entry().filter(|e| e.key().0 == at.0) {
                    last.gro_index += 1;
                    let (next_to, next, datagram) = entry.get();
                    if (*next_to, *next) != (to, last) || datagram.len() != size {
                        break;
                    }
                    bytes.extend(entry.remove().2);
                }
                self.sides[to].engine.handle_merged(self.now, &meta, &bytes, size);
            }
            for side in &mut self.sides {
                while side.engine.handle_timeout(self.now, 16) {}
            }
        }
        self.now = end;
    }

    /// The faults are over.
    fn end(&mut self) {
        self.fates.clear();
        for side in [0, 1] {
            if !self.sides[side].is_lent {
                self.lend(side);
            }
        }
        self.pass(END);
        for side in [0, 1] {
            for connection in 0..KINDS.len() {
                // What stands still goes on.
                self.modify(side, connection, &QpAttr::to(QpState::Rts));
            }
        }
        self.silence();
        for side in &self.sides {
            for end in side.ends.iter().flatten() {
                assert!(end.sends.is_empty(), "requests {:?} never completed", end.sends);
                if end.face.state() == QpState::Err {
                    assert!(end.receives.is_empty(), "{:?} are not flushed", end.receives);
                }
            }
        }
        self.probe();
        for side in &self.sides {
            let mut bytes = vec![0; REGION];
            side.private.0.read(0, &mut bytes);
            assert!(bytes.iter().all(|&b| b == SECRET), "memory that was not lent");
        }
    }

    /// After the time that all retries together take, nothing is left to happen.
    fn silence(&mut self) {
        self.pass(END);
        assert_eq!(self.next(), None, "it never ends");
        assert!(self.sides.iter().all(|side| !side.engine.has_transmit()));
    }

    /// New connections beside the old ones of the other kind have all the room there is.
    fn probe(&mut self) {
        for connection in [0, 1] {
            self.renew(connection);
            let before = self.reached;
            for side in [0, 1] {
                self.post_recv(side, connection, 0xc0);
            }
            for side in [0, 1] {
                // WRITEs as long as can be, and SENDs where no old receive can be too short for them.
                let send = if connection == SHARED { 0x31 } else { 0x30 };
                for what in [send, 0x31, 0x31, 0x31, send] {
                    self.post_send(side, connection, what, 0x08);
                }
            }
            self.silence();
            assert_eq!(self.reached.failed, before.failed, "a good connection failed");
            let end = |side: usize| self.sides[side].ends[connection].as_ref();
            assert!([0, 1].into_iter().all(|s| end(s).is_some_and(|e| e.sends.is_empty())));
        }
    }
}
