//! Any bytes as what a connected queue pair receives.
//!
//! A device has two connected RC queue pairs. The bytes are datagrams from the peer of the first, one after
//! the other; whatever they say, memory that was not lent does not change and does not leave, the other
//! queue pair is not disturbed, every datagram is counted, everything sent is a right packet, and in the end
//! there is silence.
//!
//! Each datagram is a *mode* byte, a length (two bytes, little-endian) and that many bytes. Random bytes
//! have a wrong ICRC, so a mode bit asks for repair: queue pair number, partition and ICRC are set right, PSNs
//! count from the expected one (requests) or from the first one sent (responses), and keys and addresses are
//! chosen from those that exist.

use std::collections::BTreeSet;
use std::iter;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::sync::Arc;

use softroce::internals::engine::qp::attr::{AhAttr, QpAttr, QpCap, QpState, QpType};
use softroce::internals::engine::{
    Acks, Counter, Counters, Engine, EngineConfig, LocalGid, QpFace, QpHandle, QpInit,
};
use softroce::internals::mem::{Access, IovaChoice, MwKind, PdId, Region, Registered, Sge};
use softroce::internals::queue::{BindWqe, CqShared, SendFlags, SendOp, SendWqe};
use softroce::net::{Ident, Path, PortCaps, RxMeta, SrcPort};
use softroce::time::{Duration, Instant};
use softroce::wire::Packet;
use softroce::wire::icrc::{self, IpFields};
use softroce::wire::num::{Gid, Mtu, Rkey};
use softroce::wire::opcode::{Headers, Opcode};

/// Set everything right that a peer of this queue pair would.
const REPAIR: u8 = 1;
/// From an address that is nobody's peer.
const STRANGER: u8 = 2;
/// As a UDP socket sees it, without the IPv4 identification.
const HIDDEN_IDENT: u8 = 4;
/// Look for completions, and post receives and requests again, before it arrives.
const POST: u8 = 8;
/// Spoil the ICRC again.
const SPOIL: u8 = 0x40;
/// Marked by a switch that is congested.
const MARKED: u8 = 0x80;
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

const MTU: Mtu = Mtu::B1024;
/// First PSN in either direction, near enough to the end to run over it.
const FIRST_PSN: u32 = 0xff_fff0;
/// Bytes of each region.
const REGION: usize = 16 << 10;
/// What of the region with a window the window covers.
const WINDOW: Range<usize> = 1003..4005;
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

struct World {
    engine: Engine,
    now: Instant,
    qp: QpHandle,
    face: Arc<QpFace>,
    other: QpHandle,
    cqs: Arc<CqShared>,
    /// Lent whole.
    lent: Guarded,
    /// Lent through a window.
    windowed: Guarded,
    window: Rkey,
    /// Receives land here.
    inbox: Guarded,
    /// Results of own requests land here.
    results: Guarded,
    /// Lent to queue pairs of another protection domain.
    foreign: Guarded,
    /// Requests and receives so far; the number of each is its `wr_id`.
    posted: u64,
    /// Those without a completion.
    outstanding: BTreeSet<u64>,
    /// Receives so far.
    receives: usize,
    delivered: u64,
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
        let len = usize::from(u16::from_le_bytes([*low, *high]) & 0x7ff).min(tail.len());
        let (bytes, tail) = tail.split_at(len);
        world.step(*mode, bytes);
        rest = tail;
    }
    world.settle();
    let undisturbed = world.engine.query_qp(world.other).expect("it exists");
    assert_eq!(undisturbed, other);
    world.check();
    world.engine.counters().clone()
}

/// A connected queue pair.
fn queue_pair(engine: &mut Engine, pd: PdId, cq: u32, peer: Ipv4Addr) -> (QpHandle, Arc<QpFace>) {
    let receives = u32::try_from(RECEIVES).expect("few");
    let cap = QpCap { send_wr: 16, recv_wr: receives, ..QpCap::default() };
    let (send_cq, recv_cq, kind) = (cq, cq, QpType::Rc);
    let init = QpInit { kind, pd, send_cq, recv_cq, srq: None, cap, sig_all: true, cc: None };
    let (qp, face) = engine.create_qp(init).expect("there is room for it");
    connect(engine, Instant::ZERO, qp, peer);
    (qp, face)
}

/// From RESET to RTS.
fn connect(engine: &mut Engine, now: Instant, qp: QpHandle, peer: Ipv4Addr) {
    let ah = AhAttr { dgid: Gid::from(IpAddr::from(peer)), ..AhAttr::default() };
    let steps = [
        QpAttr::to(QpState::Init).port(1).pkey_index(0_u16).access(Access::REMOTE),
        QpAttr::to(QpState::Rtr)
            .ah(ah)
            .path_mtu(MTU)
            .dest_qpn(0x123_u32)
            .rq_psn(FIRST_PSN)
            .max_dest_rd_atomic(4)
            .min_rnr_timer(1),
        QpAttr::to(QpState::Rts)
            .sq_psn(FIRST_PSN)
            .timeout(10)
            .retry_cnt(1)
            .rnr_retry(1)
            .max_rd_atomic(4),
    ];
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
        let (cq, cqs) = engine.create_cq(256).expect("the first");
        let (qp, face) = queue_pair(&mut engine, pd, cq, PEER);
        let (other, _) = queue_pair(&mut engine, pd, cq, OTHER_PEER);

        let lent = Guarded::new(&mut engine, pd, Access::REMOTE, iter::once(0..REGION));
        let bindable = Access::LOCAL_WRITE | Access::MW_BIND;
        let windowed = Guarded::new(&mut engine, pd, bindable, iter::once(WINDOW));
        let parts =
            (0..RECEIVES).flat_map(|i| PIECES.map(|p| p.start + i * PART..p.end + i * PART));
        let inbox = Guarded::new(&mut engine, pd, Access::LOCAL, parts);
        let results = Guarded::new(&mut engine, pd, Access::LOCAL, iter::once(RESULT));
        let foreign = Guarded::new(&mut engine, stranger, Access::REMOTE, iter::empty());
        let window = engine.alloc_mw(pd, MwKind::Type2).expect("the first");
        let mut world = Self {
            engine,
            now: Instant::from_nanos(1_000_000),
            qp,
            face,
            other,
            cqs,
            lent,
            windowed,
            window,
            inbox,
            results,
            foreign,
            posted: 0,
            outstanding: BTreeSet::new(),
            receives: 0,
            delivered: 0,
            knows_secret,
            buf: vec![0; 1 << 16],
        };
        world.bind();
        world.post();
        world
    }

    /// Binds the window, through the queue pair.
    fn bind(&mut self) {
        let addr = self.windowed.mr.iova + WINDOW.start as u64;
        let bind = BindWqe {
            mw: self.window,
            new_rkey: self.window,
            mr: self.windowed.mr.lkey,
            addr,
            len: WINDOW.len() as u64,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ,
            kind: MwKind::Type2,
        };
        let wr_id = self.number();
        let mut sq = self.face.sq.lock();
        sq.stage_bind(wr_id, SendFlags::SIGNALED, &bind).expect("the first request");
        sq.publish();
        drop(sq);
        self.engine.handle_doorbell(self.now, self.qp);
        self.pump();
        self.cqs.poll(1, |cqe| assert_eq!((cqe.wr_id, cqe.status), (wr_id, 0), "bound"));
        assert!(self.outstanding.remove(&wr_id) && self.cqs.is_empty());
    }

    fn number(&mut self) -> u64 {
        self.posted += 1;
        self.outstanding.insert(self.posted);
        self.posted
    }

    /// Connects again if something broke the connection, and fills both queues.
    fn post(&mut self) {
        self.collect();
        if self.face.state() == QpState::Err {
            let reset = QpAttr::to(QpState::Reset);
            self.engine.modify_qp(self.now, self.qp, &reset).expect("possible from anywhere");
            connect(&mut self.engine, self.now, self.qp, PEER);
            self.outstanding.clear();
        }
        while self.face.rq.lock().free() > 0 {
            let wr_id = self.number();
            // There are as many parts as receives that can be posted, used in turns.
            let part = self.receives % RECEIVES * PART;
            self.receives += 1;
            let pieces = PIECES.map(|p| self.inbox.sge(&(p.start + part..p.end + part)));
            let mut rq = self.face.rq.lock();
            rq.stage(wr_id, pieces).expect("there is room");
            rq.publish();
        }
        let to = RESULT.start;
        let requests = [
            (SendOp::Read, self.results.sge(&(to..to + 3000))),
            (SendOp::Send, self.lent.sge(&(0..3000))),
            (SendOp::FetchAdd, self.results.sge(&(to + 3008..to + 3016))),
            (SendOp::Write, self.lent.sge(&(64..64))),
            (SendOp::CompareSwap, self.results.sge(&(to + 3016..to + 3024))),
        ];
        for (op, sge) in requests {
            if self.face.sq.lock().free() == 0 {
                break;
            }
            let wr_id = self.number();
            let flags = SendFlags::SIGNALED;
            let wqe = SendWqe { wr_id, op, flags, remote_addr: 0x1000, ..SendWqe::default() };
            let mut sq = self.face.sq.lock();
            sq.stage(wqe, [sge]).expect("there is room");
            sq.publish();
        }
        self.engine.handle_doorbell(self.now, self.qp);
        self.pump();
    }

    /// Takes completions: each is of something posted, and the only one of it.
    fn collect(&mut self) {
        let outstanding = &mut self.outstanding;
        self.cqs.poll(usize::MAX, |cqe| {
            assert!(outstanding.remove(&cqe.wr_id), "{cqe:?} completes nothing");
        });
        assert!(!self.cqs.is_overrun());
    }

    fn step(&mut self, mode: u8, bytes: &[u8]) {
        if mode & POST != 0 {
            self.post();
        }
        let src = if mode & STRANGER == 0 { PEER } else { NOBODY };
        let ident = 0x4242;
        let mut datagram = bytes.to_vec();
        if mode & REPAIR != 0 {
            self.repair(&mut datagram, &IpFields::v4(src, US, ident, true, 49152));
        }
        if let Some(last) = datagram.last_mut().filter(|_| mode & SPOIL != 0) {
            *last ^= 1;
        }
        let path = Path {
            src: src.into(),
            dst: US.into(),
            src_port: 49152,
            traffic_class: if mode & MARKED == 0 { 2 } else { 3 },
            hop_limit: 64,
            flow_label: 0,
            scope_id: 0,
        };
        let ident = if mode & HIDDEN_IDENT == 0 { Some(ident) } else { None };
        let meta = RxMeta { path, ident, df: Some(true), gro_index: 0 };
        self.engine.handle_datagram(self.now, &meta, &datagram);
        self.delivered += 1;
        self.pump();
        self.pass(PAUSES[usize::from(mode >> PAUSE_SHIFT) % PAUSES.len()]);
    }

    /// Makes a packet of the peer out of bytes.
    fn repair(&mut self, datagram: &mut [u8], ip: &IpFields) {
        let Some((front, rest)) = datagram.split_first_chunk_mut::<12>() else { return };
        let opcode = Opcode::from_u8(front[0]);
        front[1] &= 0xf0;
        front[2..4].copy_from_slice(&[0xff, 0xff]);
        let [_, qpn @ ..] = self.face.qpn().raw().to_be_bytes();
        front[5..8].copy_from_slice(&qpn);
        let base = match opcode {
            Some(o) if o.info().is_response() => FIRST_PSN,
            _ => {
                let attr = self.engine.query_qp(self.qp).expect("it exists");
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
            (self.inbox.mr.rkey.0, self.inbox.mr.iova),
            (self.foreign.mr.rkey.0, self.foreign.mr.iova),
            (self.lent.mr.lkey.0, self.lent.mr.iova),
        ];
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
        self.windowed.assert_untouched("around the window");
        self.inbox.assert_untouched("between the receives");
        self.results.assert_untouched("around results");
        self.foreign.assert_untouched("in another protection domain");

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
        let dropped: u64 = dropped.into_iter().map(count).sum();
        let accepted = count(Counter::RcvdPkts);
        assert_eq!(accepted + dropped, self.delivered, "each is accepted, or dropped for a reason");
        let sealed = [Counter::IcrcExact, Counter::IcrcRecovered, Counter::IcrcInferred];
        assert_eq!(sealed.into_iter().map(count).sum::<u64>(), accepted);
        if self.face.state() == QpState::Err {
            let receives = self.outstanding.len();
            assert_eq!(receives, 0, "everything is flushed");
        }
    }
}
