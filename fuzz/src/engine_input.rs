//! Any bytes as what queue pairs receive.
//!
//! A device has queue pairs of all types, the *targets*: RC, RC with a shared receive queue, UC, and UD, which
//! is in a multicast group too. The bytes are datagrams, one after the other; whatever they say, memory
//! that was not lent does not change and does not leave, queue pairs that they are not for are not disturbed,
//! every datagram is counted, everything sent is a right packet, and in the end there is silence.
//!
//! Each datagram is a *mode* byte, a length (11 bits of two bytes, little-endian; the next three bits choose
//! its target) and that many bytes. Random bytes have a wrong ICRC, so a mode bit asks for repair: queue pair
//! number, partition, queue key and ICRC are set right, PSNs count from the expected one (requests) or from
//! the first one sent (responses), and keys and addresses are chosen from those that exist.

use std::collections::BTreeMap;
use std::iter;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::sync::Arc;

use softroce::internals::engine::qp::attr::{AhAttr, QpAttr, QpCap, QpState, QpType};
use softroce::internals::engine::{
    Acks, Counter, Counters, Engine, EngineConfig, LocalGid, QpFace, QpHandle, QpInit,
};
use softroce::internals::mem::{Access, IovaChoice, MwKind, PdId, Region, Registered, Sge};
use softroce::internals::queue::{BindWqe, CqShared, RecvQueue, SendFlags, SendOp, SendWqe};
use softroce::net::{Ident, Path, PortCaps, RxMeta, SrcPort};
use softroce::time::{Duration, Instant};
use softroce::wire::Packet;
use softroce::wire::icrc::{self, IpFields};
use softroce::wire::num::{Gid, Mtu, Qpn, Rkey};
use softroce::wire::opcode::{Headers, Opcode};

/// Datagrams of a merged buffer.
const MERGED: u16 = 4;

/// Set everything right that a peer of this queue pair would.
const REPAIR: u8 = 1;
/// From an address that is nobody's peer.
const STRANGER: u8 = 2;
/// As a UDP socket sees it, without the IPv4 identification. Without a pause behind it: as the first one of a merged
/// buffer, see [`merged`].
const HIDDEN_IDENT: u8 = 4;
/// Look for completions, and post receives and requests again, before it arrives.
const POST: u8 = 8;
/// Spoil the ICRC again.
const SPOIL: u8 = 0x40;
/// Marked by a switch that is congested.
const MARKED: u8 = 0x80;
/// Where the target stands in the length.
const TARGET_SHIFT: u32 = 11;
/// Behind the targets: the last of them by way of its multicast group.
const TO_GROUP: usize = 4;
/// How much time passes afterwards; see [`PAUSES`].
const PAUSE_SHIFT: u32 = 4;
const PAUSES: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_micros(20),
    Duration::from_millis(2),
    Duration::from_millis(500),
];

const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const OTHER_PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);
const NOBODY: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 4);
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
const QKEY: u32 = 0x1ee7;

const MTU: Mtu = Mtu::B1024;
/// First PSN in either direction, near enough to the end to run over it.
const FIRST_PSN: u32 = 0xff_fff0;
/// Bytes of each region.
const REGION: usize = 16 << 10;
/// What of the region with a window the window covers.
const WINDOW: Range<usize> = 1003..4005;
/// What a window of type 1 covers, which is not bound to a queue pair.
const SHARED_WINDOW: Range<usize> = 8008..9016;
/// Receives, each of two pieces in a part of the inbox of its own.
const RECEIVES: usize = 4;
const PART: usize = REGION / RECEIVES;
const PIECES: [Range<usize>; 2] = [11..1063, 1100..3503];
/// Where results of own requests go.
const RESULT: Range<usize> = 104..4104;
/// What memory that is not lent is full of.
const SECRET: [u8; 8] = [0x9d, 0x3c, 0xe1, 0x07, 0x5b, 0xf4, 0x22, 0xa8];
/// Most calls that one datagram can be worth. More means that it never ends.
const MANY: usize = 100_000;

/// Memory, and what in it may change.
struct Guarded {
    region: Arc<Region>,
    mr: Registered,
    open: Vec<Range<usize>>,
}

impl Guarded {
    /// Registers a region full of secrets, but for what is open.
    fn new(
        engine: &mut Engine,
        pd: PdId,
        access: Access,
        open: impl IntoIterator<Item = Range<usize>>,
    ) -> Self {
        let open = Vec::from_iter(open);
        let region = Region::alloc(REGION).expect("memory");
        region.write(0, &SECRET.repeat(REGION / SECRET.len()));
        open.iter().for_each(|r| region.fill(r.clone(), 0));
        let mr = engine
            .register(pd, Arc::clone(&region), IovaChoice::Allocate, access)
            .expect("nothing is wrong with it");
        Self { region, mr, open }
    }

    fn sge(&self, range: &Range<usize>) -> Sge {
        let length = u32::try_from(range.len()).expect("small");
        Sge { addr: self.mr.iova + range.start as u64, length, lkey: self.mr.lkey }
    }

    fn assert_untouched(&self, what: &str) {
        let mut bytes = vec![0; REGION];
        self.region.read(0, &mut bytes);
        // What is open may hold anything.
        let secrets = SECRET.repeat(REGION / SECRET.len());
        self.open.iter().for_each(|r| bytes[r.clone()].copy_from_slice(&secrets[r.clone()]));
        if bytes != secrets {
            let at = bytes.iter().zip(&secrets).position(|(a, b)| a != b);
            panic!("{what}: byte {at:?} has changed");
        }
    }
}

/// A queue pair that datagrams are for.
struct Target {
    kind: QpType,
    qp: QpHandle,
    face: Arc<QpFace>,
    /// Where it takes its receives from, if that is shared.
    shared: Option<Arc<RecvQueue>>,
    /// Receives land here.
    inbox: Guarded,
    /// Receives so far.
    receives: usize,
}

struct World {
    engine: Engine,
    now: Instant,
    targets: Vec<Target>,
    other: QpHandle,
    cqs: Arc<CqShared>,
    /// The peer, for datagrams.
    ah: u32,
    /// Lent whole.
    lent: Guarded,
    /// Lent through windows.
    windowed: Guarded,
    /// Of type 2, bound to the first target.
    window: Rkey,
    /// Of type 1.
    shared_window: Rkey,
    /// Results of own requests land here.
    results: Guarded,
    /// Lent to queue pairs of another protection domain.
    foreign: Guarded,
    /// Requests and receives so far; the number of each is its `wr_id`.
    posted: u64,
    /// Those without a completion, and whose they are.
    outstanding: BTreeMap<u64, usize>,
    /// Whether the input has the secret in it, and so may get it back.
    knows_secret: bool,
    buf: Vec<u8>,
}

/// Feeds `data` to the engine; what it counted.
///
/// # Panics
/// If anything is wrong.
pub fn run(data: &[u8]) -> Counters {
    let mut world = World::new(data.windows(SECRET.len()).any(|w| w == SECRET));
    let other = world.engine.query_qp(world.other).expect("it exists");
    let mut rest = data;
    while let [mode, low, high, tail @ ..] = rest {
        let length = u16::from_le_bytes([*low, *high]);
        let target = match usize::from(length >> TARGET_SHIFT) % 8 {
            target @ ..=TO_GROUP => target,
            _ => 0,
        };
        let len = usize::from(length & ((1 << TARGET_SHIFT) - 1)).min(tail.len());
        let (bytes, tail) = tail.split_at(len);
        world.step(*mode, target, bytes);
        rest = tail;
    }
    world.settle();
    let undisturbed = world.engine.query_qp(world.other).expect("it exists");
    assert_eq!(undisturbed, other);
    world.check();
    world.engine.counters().clone()
}

/// A queue pair.
fn queue_pair(
    engine: &mut Engine,
    kind: QpType,
    pd: PdId,
    cq: u32,
    srq: Option<u32>,
) -> (QpHandle, Arc<QpFace>) {
    let receives = u32::try_from(RECEIVES).expect("few");
    let cap = QpCap { send_wr: 16, recv_wr: receives, ..QpCap::default() };
    let (send_cq, recv_cq) = (cq, cq);
    let init = QpInit { kind, pd, send_cq, recv_cq, srq, cap, sig_all: true, cc: None };
    engine.create_qp(init).expect("there is room for it")
}

/// From RESET to RTS.
fn connect(engine: &mut Engine, now: Instant, kind: QpType, qp: QpHandle, peer: Ipv4Addr) {
    let ah = AhAttr { dgid: Gid::from(IpAddr::from(peer)), ..AhAttr::default() };
    let init = QpAttr::to(QpState::Init).port(1).pkey_index(0_u16);
    let rtr = QpAttr::to(QpState::Rtr);
    let rts = QpAttr::to(QpState::Rts).sq_psn(FIRST_PSN);
    let met = rtr.clone().ah(ah).path_mtu(MTU).dest_qpn(0x123_u32).rq_psn(FIRST_PSN);
    let steps = match kind {
        QpType::Ud => [init.qkey(QKEY), rtr, rts],
        QpType::Uc => [init.access(Access::REMOTE), met, rts],
        _ => [
            init.access(Access::REMOTE | Access::FLUSH_GLOBAL),
            met.max_dest_rd_atomic(4).min_rnr_timer(1),
            rts.timeout(10).retry_cnt(1).rnr_retry(1).max_rd_atomic(4),
        ],
    };
    for attr in steps {
        engine.modify_qp(now, qp, &attr).expect("these are the steps");
    }
}

impl World {
    fn new(knows_secret: bool) -> Self {
        let caps = PortCaps {
            src_port: SrcPort::Entropy,
            ident: Ident::Chosen,
            gso_segments_v4: 64,
            gso_segments_v6: 64,
            max_transmit: 65_507,
            mtu: 1500,
            rx_buffer: None,
        };
        let gid = LocalGid { ip: US.into(), scope_id: 0 };
        let mut engine = Engine::new(EngineConfig::new([7; 32]), caps, vec![gid]);
        let pd = engine.alloc_pd().expect("the first");
        let stranger = engine.alloc_pd().expect("the second");
        let (cq, cqs) = engine.create_cq(512).expect("the first");
        let receives = u32::try_from(RECEIVES).expect("few");
        let mut target = |kind: QpType, shares: bool| {
            let (srq, shared) =
                shares.then(|| engine.create_srq(pd, receives, 4).expect("the first")).unzip();
            let (qp, face) = queue_pair(&mut engine, kind, pd, cq, srq);
            connect(&mut engine, Instant::ZERO, kind, qp, PEER);
            let parts =
                (0..RECEIVES).flat_map(|i| PIECES.map(|p| p.start + i * PART..p.end + i * PART));
            let inbox = Guarded::new(&mut engine, pd, Access::LOCAL, parts);
            Target { kind, qp, face, shared, inbox, receives: 0 }
        };
        let targets = vec![
            target(QpType::Rc, false),
            target(QpType::Rc, true),
            target(QpType::Uc, false),
            target(QpType::Ud, false),
        ];
        let (other, _) = queue_pair(&mut engine, QpType::Rc, pd, cq, None);
        connect(&mut engine, Instant::ZERO, QpType::Rc, other, OTHER_PEER);
        let group = Gid::from(IpAddr::from(GROUP));
        engine.attach_mcast(targets[TO_GROUP - 1].qp, group).expect("the first group");
        let dgid = Gid::from(IpAddr::from(PEER));
        let ah = AhAttr { dgid, port: 1, ..AhAttr::default() };
        let ah = engine.create_ah(pd, &ah).expect("the first");

        let shown = Access::REMOTE | Access::FLUSH_GLOBAL;
        let lent = Guarded::new(&mut engine, pd, shown, iter::once(0..REGION));
        let bindable = Access::LOCAL_WRITE | Access::MW_BIND | Access::FLUSH_GLOBAL;
        let windowed = Guarded::new(&mut engine, pd, bindable, [WINDOW, SHARED_WINDOW]);
        let results = Guarded::new(&mut engine, pd, Access::LOCAL, iter::once(RESULT));
        let foreign = Guarded::new(&mut engine, stranger, shown, iter::empty());
        let window = engine.alloc_mw(pd, MwKind::Type2).expect("the first");
        let shared_window = engine.alloc_mw(pd, MwKind::Type1).expect("the second");
        let mut world = Self {
            engine,
            now: Instant::from_nanos(1_000_000),
            targets,
            other,
            cqs,
            ah,
            lent,
            windowed,
            window,
            shared_window,
            results,
            foreign,
            posted: 0,
            outstanding: BTreeMap::new(),
            knows_secret,
            buf: vec![0; 1 << 16],
        };
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        world.bind(window, MwKind::Type2, &WINDOW, access);
        let access = access | Access::REMOTE_ATOMIC | Access::FLUSH_GLOBAL;
        world.bind(shared_window, MwKind::Type1, &SHARED_WINDOW, access);
        (0..world.targets.len()).for_each(|target| world.post(target));
        world
    }

    /// Binds a window, through the first target.
    fn bind(&mut self, mw: Rkey, kind: MwKind, range: &Range<usize>, access: Access) {
        let bind = BindWqe {
            mw,
            new_rkey: mw,
            mr: self.windowed.mr.lkey,
            addr: self.windowed.mr.iova + range.start as u64,
            len: range.len() as u64,
            access,
            kind,
        };
        let wr_id = self.number(0);
        let target = &self.targets[0];
        let mut sq = target.face.sq.lock();
        sq.stage_bind(wr_id, SendFlags::SIGNALED, &bind).expect("one of the first requests");
        sq.publish();
        drop(sq);
        self.engine.handle_doorbell(self.now, target.qp);
        self.pump();
        self.cqs.poll(1, |cqe| assert_eq!((cqe.wr_id, cqe.status), (wr_id, 0), "bound"));
        assert!(self.outstanding.remove(&wr_id).is_some() && self.cqs.is_empty());
    }

    fn number(&mut self, target: usize) -> u64 {
        self.posted += 1;
        self.outstanding.insert(self.posted, target);
        self.posted
    }

    /// Connects again if something broke the connection, and fills both queues.
    fn post(&mut self, index: usize) {
        self.collect();
        let target = &self.targets[index];
        let (qp, kind) = (target.qp, target.kind);
        match target.face.state() {
            QpState::Err => {
                let reset = QpAttr::to(QpState::Reset);
                self.engine.modify_qp(self.now, qp, &reset).expect("possible from anywhere");
                connect(&mut self.engine, self.now, kind, qp, PEER);
                // What is in a shared queue stays there.
                if target.shared.is_none() {
                    self.outstanding.retain(|_, of| *of != index);
                }
            }
            QpState::Sqe => {
                let rts = QpAttr::to(QpState::Rts);
                self.engine.modify_qp(self.now, qp, &rts).expect("the way out of SQE");
            }
            _ => {}
        }
        loop {
            let target = &mut self.targets[index];
            let rq = target.shared.as_deref().unwrap_or(&target.face.rq);
            let mut rq = rq.lock();
            if rq.free() == 0 {
                break;
            }
            // There are as many parts as receives that can be posted, used in turns.
            let part = target.receives % RECEIVES * PART;
            target.receives += 1;
            let pieces = PIECES.map(|p| target.inbox.sge(&(p.start + part..p.end + part)));
            self.posted += 1;
            self.outstanding.insert(self.posted, index);
            rq.stage(self.posted, pieces).expect("there is room");
            rq.publish();
        }
        let to = RESULT.start;
        let result = |range: Range<usize>| self.results.sge(&(to + range.start..to + range.end));
        let reliable = [
            (SendOp::Read, result(0..3000)),
            (SendOp::Send, self.lent.sge(&(0..3000))),
            (SendOp::FetchAdd, result(3008..3016)),
            (SendOp::Write, self.lent.sge(&(64..64))),
            (SendOp::CompareSwap, result(3016..3024)),
            (SendOp::AtomicWrite, self.lent.sge(&(8..16))),
            (SendOp::Flush, self.lent.sge(&(0..0))),
        ];
        let requests = match kind {
            QpType::Rc => &reliable[..],
            QpType::Uc => &[(SendOp::Send, reliable[1].1), (SendOp::WriteImm, reliable[1].1)],
            _ => &[(SendOp::Send, reliable[5].1), (SendOp::SendImm, reliable[6].1)],
        };
        for &(op, sge) in requests {
            if self.targets[index].face.sq.lock().free() == 0 {
                break;
            }
            let wr_id = self.number(index);
            let wqe = SendWqe {
                wr_id,
                op,
                flags: SendFlags::SIGNALED,
                remote_addr: 0x1000,
                compare_add: 64,
                // A FLUSH of the range, to global visibility.
                imm_or_inv: 1,
                dest: self.ah,
                dest_qpn: 0x123,
                dest_qkey: QKEY,
                ..SendWqe::default()
            };
            let pieces = (op != SendOp::Flush).then_some(sge);
            let mut sq = self.targets[index].face.sq.lock();
            sq.stage(wqe, pieces).expect("there is room");
            sq.publish();
        }
        self.engine.handle_doorbell(self.now, qp);
        self.pump();
    }

    /// Takes completions: each is of something posted, and the only one of it.
    fn collect(&mut self) {
        let outstanding = &mut self.outstanding;
        let targets = &self.targets;
        self.cqs.poll(usize::MAX, |cqe| {
            let of = outstanding.remove(&cqe.wr_id);
            let qpn = of.map(|of| targets[of].face.qpn().raw());
            assert_eq!(qpn, Some(cqe.qpn), "{cqe:?} completes nothing of this queue pair");
        });
        assert!(!self.cqs.is_overrun());
    }

    fn step(&mut self, mode: u8, to: usize, bytes: &[u8]) {
        let index = to.min(TO_GROUP - 1);
        if mode & POST != 0 {
            self.post(index);
        }
        let src = if mode & STRANGER == 0 { PEER } else { NOBODY };
        let dst = if to == TO_GROUP { GROUP } else { US };
        let is_hurried = mode & HIDDEN_IDENT != 0 && mode >> PAUSE_SHIFT & 3 == 0;
        let is_merged = is_hurried && to != TO_GROUP && !bytes.is_empty();
        let ident = if is_merged { 0 } else { 0x4242 };
        let ip = IpFields::v4(src, dst, ident, true, 49152);
        let mut datagram = bytes.to_vec();
        if mode & REPAIR != 0 {
            self.repair(&mut datagram, to, &ip);
        }
        if let Some(last) = datagram.last_mut().filter(|_| mode & SPOIL != 0) {
            *last ^= 1;
        }
        let path = Path {
            src: src.into(),
            dst: dst.into(),
            src_port: 49152,
            traffic_class: if mode & MARKED == 0 { 2 } else { 3 },
            hop_limit: 64,
            flow_label: 0,
            scope_id: 0,
        };
        let ident = if mode & HIDDEN_IDENT == 0 { Some(ident) } else { None };
        let meta = RxMeta { path, ident, df: Some(true), gro_index: 0 };
        let before = self.outsiders(&datagram);
        let (accepted, dropped) = self.counted();
        let mut many = 1;
        if is_merged {
            let all = merged(&datagram, mode & REPAIR != 0, &ip);
            many = u64::from(MERGED);
            self.engine.handle_merged(self.now, &meta, &all, datagram.len());
        } else {
            self.engine.handle_datagram(self.now, &meta, &datagram);
        }
        let (accepted_now, dropped_now) = self.counted();
        let accepted = accepted_now - accepted;
        // The members of a group look at state and partition themselves, when it is accepted.
        let dropped = if to == TO_GROUP && accepted == 1 { 0 } else { dropped_now - dropped };
        assert_eq!(accepted + dropped, many, "each is accepted, or dropped for a reason");
        assert_eq!(self.outsiders(&datagram), before, "queue pairs that it is not for");
        self.pump();
        self.pass(PAUSES[usize::from(mode >> PAUSE_SHIFT) % PAUSES.len()]);
    }

    /// What a datagram cannot change: the queue pairs that it does not name, and the window bound to the
    /// first of them.
    fn outsiders(&mut self, datagram: &[u8]) -> (Vec<QpAttr>, Vec<u8>) {
        let named = datagram.get(5..8).map(|b| u32::from_be_bytes([0, b[0], b[1], b[2]]));
        let is_outsider = |target: &Target| match named {
            Some(n) if Qpn::new(n) == Qpn::MULTICAST => target.kind != QpType::Ud,
            named => named != Some(target.face.qpn().raw()),
        };
        let mut window = vec![0; WINDOW.len()];
        if is_outsider(&self.targets[0]) {
            self.windowed.region.read(WINDOW.start, &mut window);
        }
        let outsiders: Vec<_> =
            self.targets.iter().filter(|t| is_outsider(t)).map(|t| t.qp).collect();
        let seen = outsiders.into_iter().map(|qp| self.engine.query_qp(qp).expect("it exists"));
        (seen.collect(), window)
    }

    /// Datagrams that were accepted, and that were dropped before a queue pair saw them.
    fn counted(&self) -> (u64, u64) {
        let count = |c| self.engine.counters().get(c);
        let dropped = [
            Counter::DropMalformed,
            Counter::DropVersion,
            Counter::DropUnknownOpcode,
            Counter::DropUnsupported,
            Counter::DropNoQp,
            Counter::DropTransport,
            Counter::DropState,
            Counter::DropAddress,
            Counter::BadPkeyCntr,
            Counter::RxIcrcEncapsulated,
        ];
        (count(Counter::RcvdPkts), dropped.into_iter().map(count).sum())
    }

    /// Makes a packet of the peer out of bytes.
    fn repair(&mut self, datagram: &mut [u8], to: usize, ip: &IpFields) {
        let target = &self.targets[to.min(TO_GROUP - 1)];
        let Some((front, rest)) = datagram.split_first_chunk_mut::<12>() else { return };
        let opcode = Opcode::from_u8(front[0]);
        front[1] &= 0xf0;
        front[2..4].copy_from_slice(&[0xff, 0xff]);
        let qpn = if to == TO_GROUP { Qpn::MULTICAST } else { target.face.qpn() };
        let [_, qpn @ ..] = qpn.raw().to_be_bytes();
        front[5..8].copy_from_slice(&qpn);
        let base = match opcode {
            Some(o) if o.info().is_response() => FIRST_PSN,
            _ => {
                let attr = self.engine.query_qp(target.qp).expect("it exists");
                attr.rq_psn.expect("it always has one")
            }
        };
        let [_, psn @ ..] = &mut front[8..] else { return };
        let offset = u32::from_be_bytes([0, psn[0], psn[1], psn[2]]);
        psn.copy_from_slice(&base.wrapping_add(offset).to_be_bytes()[1..]);
        if let Some(opcode) = opcode {
            self.name_memory(opcode.info().headers, rest);
        }
        if let Some((sealed, seal)) = datagram.split_last_chunk_mut::<{ icrc::LEN }>() {
            *seal = icrc::compute(ip, sealed).to_le_bytes();
        }
    }

    /// Chooses key and address of a request among those that there are, near those that may be used.
    fn name_memory(&self, headers: Headers, rest: &mut [u8]) {
        let at = self.windowed.mr.iova + WINDOW.start as u64;
        let keys = [
            (self.lent.mr.rkey.0, self.lent.mr.iova),
            (self.window.0, at),
            (self.windowed.mr.rkey.0, at),
            (self.targets[0].inbox.mr.rkey.0, self.targets[0].inbox.mr.iova),
            (self.foreign.mr.rkey.0, self.foreign.mr.iova),
            (self.lent.mr.lkey.0, self.lent.mr.iova),
            (self.shared_window.0, self.windowed.mr.iova + SHARED_WINDOW.start as u64),
        ];
        if headers.contains(Headers::DETH) {
            // Its first half is the queue key; with this bit it is a wrong one.
            let Some(qkey) = rest.first_chunk_mut::<4>() else { return };
            if qkey[0] & 0x80 == 0 {
                *qkey = QKEY.to_be_bytes();
            }
            return;
        }
        // The RETH of a FLUSH stands behind another header.
        let skipped = if headers.contains(Headers::FETH) { 4 } else { 0 };
        let Some(rest) = rest.get_mut(skipped..) else { return };
        if headers.intersects(Headers::RETH | Headers::ATOMIC_ETH) {
            // Both begin with address and key.
            let Some((va, rest)) = rest.split_first_chunk_mut::<8>() else { return };
            let Some(rkey) = rest.first_chunk_mut::<4>() else { return };
            let Some(&(key, base)) = keys.get(usize::from(rkey[3] & 7)) else { return };
            *rkey = key.to_be_bytes();
            if va[0] & 0x80 == 0 {
                let offset = i16::from_be_bytes([va[6], va[7]]);
                *va = base.wrapping_add_signed(i64::from(offset)).to_be_bytes();
            }
        } else if headers.contains(Headers::IETH) {
            let Some(rkey) = rest.first_chunk_mut::<4>() else { return };
            let Some(&(key, _)) = keys.get(usize::from(rkey[3] & 7)) else { return };
            *rkey = key.to_be_bytes();
        }
    }

    /// Takes everything that the engine wants to send, and looks at it.
    fn pump(&mut self) {
        for _ in 0..MANY {
            let transmit = self.engine.poll_transmit(self.now, Acks::Send, &mut self.buf);
            let Some((transmit, _)) = transmit else {
                while self.engine.poll_event().is_some() {}
                return;
            };
            assert_eq!(transmit.path.dst, IpAddr::from(PEER));
            let size = transmit.segment_size.map_or(transmit.len, usize::from);
            let mut ident = transmit.ident;
            for datagram in self.buf[..transmit.len].chunks(size) {
                let packet = Packet::parse(datagram).expect("what is sent is a packet");
                let ip = IpFields::v4(US, PEER, ident, true, transmit.path.src_port);
                assert!(icrc::check(&ip, datagram));
                assert!(packet.payload().len() <= MTU.bytes());
                assert_eq!(packet.dest_qp().raw(), 0x123);
                // What answers a peer is the peer's choice; requests are made of memory that is open.
                let leaks = packet.info().is_response()
                    && packet.datagram().windows(SECRET.len()).any(|w| w == SECRET);
                assert!(!leaks || self.knows_secret, "memory that was not lent: {packet:?}");
                ident = ident.wrapping_add(1);
            }
        }
        panic!("it sends for ever");
    }

    /// Lets time pass, with the timers in it.
    fn pass(&mut self, pause: Duration) {
        let end = self.now + pause;
        for _ in 0..MANY {
            match self.engine.poll_timeout() {
                Some(next) if next <= end => {
                    self.now = self.now.max(next);
                    while self.engine.handle_timeout(self.now, 16) {}
                    self.pump();
                }
                _ => {
                    self.now = end;
                    return;
                }
            }
        }
        panic!("time stands still");
    }

    /// Waits until nothing is left to happen.
    fn settle(&mut self) {
        for _ in 0..1000 {
            if self.engine.poll_timeout().is_none() {
                break;
            }
            self.pass(Duration::from_secs(1));
        }
        assert_eq!(self.engine.poll_timeout(), None, "a timer that is armed for ever");
        assert!(!self.engine.has_transmit());
        self.collect();
    }

    /// What must hold whatever arrived.
    fn check(&self) {
        self.windowed.assert_untouched("around the windows");
        self.results.assert_untouched("around results");
        self.foreign.assert_untouched("in another protection domain");
        for (index, target) in self.targets.iter().enumerate() {
            target.inbox.assert_untouched("between the receives");
            let count = self.outstanding.values().filter(|&&of| of == index).count();
            if target.face.state() == QpState::Err {
                // What is in a shared queue stays there.
                let kept = if target.shared.is_some() { RECEIVES } else { 0 };
                assert!(count <= kept, "everything is flushed");
            }
        }
        let count = |c| self.engine.counters().get(c);
        let sealed = [Counter::IcrcExact, Counter::IcrcRecovered, Counter::IcrcInferred];
        assert_eq!(sealed.into_iter().map(count).sum::<u64>(), count(Counter::RcvdPkts));
    }
}

/// A datagram and those behind it in a merged buffer: like it, with the next PSNs, sealed again if it was. One of them is
/// another datagram for the same queue pair, the last one may be short.
fn merged(datagram: &[u8], seal: bool, ip: &IpFields) -> Vec<u8> {
    let mut all = datagram.to_vec();
    for k in 1..MERGED {
        let mut next = datagram.to_vec();
        if let Some(psn) = next.get_mut(8..12) {
            let raw = u32::from_be_bytes([psn[0], psn[1], psn[2], psn[3]]);
            let [_, rest @ ..] = raw.wrapping_add(u32::from(k)).to_be_bytes();
            psn[1..].copy_from_slice(&rest);
        }
        let what = usize::from(datagram.last().copied().unwrap_or(0));
        if k == 2 && !next.is_empty() {
            let at = what % next.len();
            // Not its queue pair.
            let at = if (5..8).contains(&at) { 4 } else { at };
            next[at] ^= 1 << (what % 8);
        }
        if k == MERGED - 1 && next.len() > 1 {
            next.truncate(next.len() - what % 2);
        }
        if let Some((sealed, last)) = next.split_last_chunk_mut::<{ icrc::LEN }>().filter(|_| seal)
        {
            *last = icrc::compute(&ip.with_ident(k), sealed).to_le_bytes();
        }
        all.extend(next);
    }
    all
}
