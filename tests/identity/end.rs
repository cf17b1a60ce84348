//! One end of a recorded conversation, played by an engine: it is given the same queue pair, requests and
//! answers at the same times, and is asked for a packet whenever one was recorded.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use softroce::internals::engine::qp::attr::{AhAttr, QpAttr, QpCap, QpState, QpType};
use softroce::internals::engine::{
    Acks, Engine, EngineConfig, LocalGid, QpFace, QpHandle, QpInit, WindowConfig,
};
use softroce::internals::mem::{Access, IovaChoice, MwKind, PdId, Region, Registered, Sge};
use softroce::internals::queue::{BindWqe, SendFlags, SendOp, SendWqe};
use softroce::net::{Ident, Path, PortCaps, RxMeta, SrcPort};
use softroce::time::{Duration, Instant};
use softroce::wire::num::{Gid, Rkey};
use softroce::wire::opcode::{Operation, Tail};
use softroce::wire::{NakCode, Packet, Syndrome};

use crate::conversation::Peers;
use crate::record::{Capture, Recorded};
use crate::seal::{self, Outer};

/// A packet of ours.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) path: Path,
    pub(crate) ident: u16,
    pub(crate) datagram: Vec<u8>,
}

impl Sent {
    pub(crate) fn packet(&self) -> Packet<'_> {
        Packet::parse(&self.datagram).expect("what we send can be parsed")
    }

    pub(crate) fn outer(&self) -> Outer {
        let Path { src, dst, src_port, .. } = self.path;
        Outer { src, dst, src_port, ident: self.ident, df: true }
    }
}

const SOURCE: usize = 1 << 20;
/// Number that stands for queue pair 1, which engines do not have.
const STAND_IN: u32 = 0x11;
/// A key that stands for one that nobody was given.
const NO_KEY: Rkey = Rkey(0x00de_ad00);

/// What a key of the peer's stands for: one of ours, and the memory that it reaches, with its first address.
type Key = (Rkey, Option<(u64, Arc<Region>)>);

pub(crate) struct End<'c> {
    capture: &'c Capture,
    peers: Peers,
    /// Packets of this conversation, in order, and whether this end sent them.
    script: Vec<(&'c Recorded, bool)>,
    engine: Engine,
    pd: PdId,
    qp: QpHandle,
    face: Arc<QpFace>,
    now: Instant,
    /// Payload of our requests and results of them; the next free byte.
    source: (Arc<Region>, Registered),
    filled: usize,
    /// PSN behind our last new request.
    next_psn: Option<u32>,
    handles: BTreeMap<(IpAddr, u8, u32, u8), u32>,
    /// What the peer's keys stand for here.
    keys: BTreeMap<u32, Key>,
    /// Requests of the peer that were seen.
    seen: BTreeSet<u32>,
    receive_size: usize,
    receives_posted: bool,
    /// Sent and not yet compared: requests, and answers.
    waiting: [VecDeque<Sent>; 2],
}

fn psn_after(psn: u32, n: u32) -> u32 {
    psn.wrapping_add(n) & 0xff_ffff
}

/// Whether `a` is `b` or behind it.
fn not_before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) & 0xff_ffff < 1 << 23
}

impl<'c> End<'c> {
    pub(crate) fn new(capture: &'c Capture, peers: &Peers) -> Self {
        let script = peers.script(capture);
        let config = EngineConfig {
            renak_after: None,
            ack_every: ACK_EVERY,
            // rdma_rxe knows no room at the receiver, and asks for no ACK because of it.
            window: WindowConfig { enabled: false, ..WindowConfig::default() },
            first_qpn: Some(if peers.qpn == 1 { STAND_IN } else { peers.qpn }),
            ..EngineConfig::new([7; 32])
        };
        let caps = PortCaps {
            src_port: SrcPort::Entropy,
            ident: Ident::Chosen,
            gso_segments_v4: 1,
            gso_segments_v6: 1,
            max_transmit: 65_507,
            mtu: 9000,
            rx_buffer: None,
        };
        let gid = LocalGid { ip: peers.ip, scope_id: 0 };
        let mut engine = Engine::new(config, caps, vec![gid]);
        let pd = engine.alloc_pd().unwrap();
        let (cq, _) = engine.create_cq(1024).unwrap();
        let init = QpInit {
            kind: peers.kind,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            cap: QpCap::default(),
            sig_all: false,
            cc: None,
        };
        let (qp, face) = engine.create_qp(init).unwrap();
        let source = Region::alloc(SOURCE).unwrap();
        let access = Access::REMOTE | Access::MW_BIND | Access::FLUSH_GLOBAL;
        let mr = engine.register(pd, Arc::clone(&source), IovaChoice::Allocate, access).unwrap();
        let receive_size = capture.option(peers.ip, peers.run, "--recv-size").unwrap_or(16 << 10);
        let mut end = Self {
            capture,
            peers: peers.clone(),
            now: script[0].0.time,
            script,
            engine,
            pd,
            qp,
            face,
            source: (source, mr),
            filled: 0,
            next_psn: None,
            handles: BTreeMap::new(),
            keys: BTreeMap::new(),
            seen: BTreeSet::new(),
            receive_size: receive_size as usize,
            receives_posted: false,
            waiting: [const { VecDeque::new() }; 2],
        };
        end.learn_keys();
        end.bring_up();
        end
    }

    fn bring_up(&mut self) {
        let Peers { kind, peer, dest_qpn, run, .. } = self.peers;
        let first = |sent: bool| {
            let mut requests = self
                .script
                .iter()
                .filter(|(r, ours)| *ours == sent && r.packet().info().is_request());
            requests.next().map(|(r, _)| r.packet())
        };
        let sq_psn = first(true).map_or(0, |p| p.psn().raw());
        let rq_psn = first(false).map_or(0, |p| p.psn().raw());
        let qkey = first(true).and_then(|p| p.deth()).map_or(0, |deth| deth.qkey.0);
        let number = |option: &str, default: u8| -> u8 {
            let said = self.capture.option(self.peers.ip, run, option);
            said.map_or(default, |n| n.try_into().unwrap())
        };
        let access = Access::REMOTE | Access::FLUSH_GLOBAL;
        let init = QpAttr::to(QpState::Init).port(1).pkey_index(0);
        let ah = AhAttr {
            dgid: Gid::from(peer),
            traffic_class: number("--tclass", 0),
            hop_limit: number("--hop", 0),
            flow_label: self.peers.flow_label,
            ..AhAttr::default()
        };
        let rtr = QpAttr::to(QpState::Rtr);
        let connected = |rtr: QpAttr| {
            rtr.ah(ah.clone()).path_mtu(self.capture.mtu).dest_qpn(dest_qpn).rq_psn(rq_psn)
        };
        let rts = QpAttr::to(QpState::Rts).sq_psn(sq_psn);
        let ways = match kind {
            QpType::Ud => [init.qkey(qkey), rtr, rts],
            QpType::Uc => [init.access(access), connected(rtr), rts],
            _ => [
                init.access(access),
                connected(rtr).max_dest_rd_atomic(16).min_rnr_timer(number("--min-rnr", 12)),
                rts.timeout(number("--timeout", 14))
                    .retry_cnt(number("--retry", 7))
                    .rnr_retry(number("--rnr", 7))
                    .max_rd_atomic(16),
            ],
        };
        for attr in ways {
            self.engine.modify_qp(self.now, self.qp, &attr).unwrap();
        }
        self.bind_windows();
        self.next_psn = Some(sq_psn);
    }

    /// Registers what the peer's keys stood for.
    fn learn_keys(&mut self) {
        let mut ranges: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        let mut refused = BTreeSet::new();
        for (recorded, _) in self.script.iter().filter(|(_, ours)| !ours) {
            let packet = recorded.packet();
            let reached = match (packet.reth(), packet.atomic_eth()) {
                (Some(reth), _) => (reth.rkey.0, reth.va, u64::from(reth.dma_len.max(8))),
                (_, Some(atomic)) => (atomic.rkey.0, atomic.va, 8),
                _ => continue,
            };
            let (key, va, len) = reached;
            let psn = packet.psn();
            let refusal = Syndrome::Nak(NakCode::RemoteAccess);
            if self.script.iter().any(|(r, ours)| {
                let p = r.packet();
                *ours && p.psn() == psn && p.aeth().is_some_and(|a| a.syndrome == refusal)
            }) {
                refused.insert(key);
            }
            let range = ranges.entry(key).or_insert((va, va + len));
            *range = (range.0.min(va), range.1.max(va + len));
        }
        for (key, (from, to)) in ranges {
            if refused.contains(&key) {
                self.keys.insert(key, (NO_KEY, None));
                continue;
            }
            let from = from & !7;
            let region = Region::alloc(usize::try_from(to - from).unwrap()).unwrap();
            let access = Access::REMOTE | Access::FLUSH_GLOBAL;
            let mr = self
                .engine
                .register(self.pd, Arc::clone(&region), IovaChoice::At(from), access)
                .unwrap();
            self.keys.insert(key, (mr.rkey, Some((from, region))));
        }
    }

    /// Binds a window for each key that the peer invalidates.
    fn bind_windows(&mut self) {
        let invalidated: BTreeSet<u32> = self
            .script
            .iter()
            .filter(|(_, ours)| !ours)
            .filter_map(|(r, _)| Some(r.packet().ieth()?.rkey.0))
            .collect();
        for key in invalidated {
            let mw = self.engine.alloc_mw(self.pd, MwKind::Type2).unwrap();
            let new_rkey = Rkey(mw.0 & !0xff | key & 0xff);
            let mr = self.source.1;
            let bind = BindWqe {
                mw,
                new_rkey,
                mr: mr.lkey,
                addr: mr.iova,
                len: 4096,
                access: Access::REMOTE_READ,
                kind: MwKind::Type2,
            };
            let mut sq = self.face.sq.lock();
            sq.stage_bind(0, SendFlags::empty(), &bind).unwrap();
            sq.publish();
            drop(sq);
            self.engine.handle_doorbell(self.now, self.qp);
            assert!(self.transmit().is_none(), "a bind is nobody's business");
            self.keys.insert(key, (new_rkey, None));
        }
    }

    /// Plays the script; `compare` is called with each recorded packet of this end, and ours. Returns how many more
    /// answers we sent because theirs were lost before they could be recorded.
    pub(crate) fn play(mut self, mut compare: impl FnMut(&Recorded, Sent)) -> usize {
        let mut unseen = 0;
        for at in 0..self.script.len() {
            let (recorded, ours) = self.script[at];
            self.now = self.now.max(recorded.time);
            while self.engine.handle_timeout(self.now, 16) {}
            if !ours {
                if !recorded.lost {
                    self.take(at);
                }
                continue;
            }
            let theirs = recorded.packet();
            let is_request = theirs.info().is_request();
            if is_request {
                self.post(at);
            }
            let sent = loop {
                let sent = self.next(is_request, recorded);
                // An answer that was lost before the place where the packets were recorded.
                if is_request || sent.packet().psn() == theirs.psn() || !self.capture.loses_unseen()
                {
                    break sent;
                }
                unseen += 1;
            };
            compare(recorded, sent);
        }
        while let Some(sent) = self.transmit() {
            self.waiting[usize::from(sent.packet().info().is_request())].push_back(sent);
        }
        let left: Vec<_> = self.waiting.iter().flatten().map(|s| s.packet().info().name).collect();
        assert_eq!(left, [""; 0], "{}: {:?} sent more", self.capture.name, self.peers);
        unseen
    }

    /// The next packet of ours that is, or is not, a request.
    fn next(&mut self, is_request: bool, recorded: &Recorded) -> Sent {
        loop {
            if let Some(sent) = self.waiting[usize::from(is_request)].pop_front() {
                return sent;
            }
            if let Some(sent) = self.transmit() {
                self.waiting[usize::from(sent.packet().info().is_request())].push_back(sent);
                continue;
            }
            // Their timers and ours are set when the packet is made, here by an emulated processor.
            let at = self.engine.poll_timeout();
            let at = at.unwrap_or_else(|| {
                panic!(
                    "{}: {:?}: never sends {:?}",
                    self.capture.name,
                    self.peers,
                    recorded.packet()
                )
            });
            assert!(
                at <= recorded.time + SLACK,
                "{}: sends {:?} {:?} too late",
                self.capture.name,
                recorded.packet(),
                at.saturating_since(recorded.time)
            );
            self.now = self.now.max(at);
            while self.engine.handle_timeout(self.now, 16) {}
        }
    }

    fn transmit(&mut self) -> Option<Sent> {
        let mut buf = vec![0xee; 1 << 16];
        let (transmit, _) = self.engine.poll_transmit(self.now, Acks::Send, &mut buf)?;
        while self.engine.poll_event().is_some() {}
        assert_eq!(transmit.segments(), 1);
        buf.truncate(transmit.len);
        Some(Sent { path: transmit.path, ident: transmit.ident, datagram: buf })
    }

    /// Posts the message that begins with the packet at `at`, unless it repeats one.
    fn post(&mut self, at: usize) {
        let first = self.script[at].0.packet();
        let psn = first.psn().raw();
        if self.next_psn.is_some_and(|next| !not_before(psn, next)) {
            return;
        }
        // The rest of a message is asked for when its first packet is.
        if !first.info().position.starts() {
            self.next_psn = Some(psn_after(psn, 1));
            return;
        }
        let (payload, last) = self.message(at);
        let info = last.info();
        let mut wqe = SendWqe { wr_id: at as u64, ..SendWqe::default() };
        wqe.op = match (info.operation, info.tail()) {
            (Operation::Send, Tail::Plain) => SendOp::Send,
            (Operation::Send, Tail::Imm) => SendOp::SendImm,
            (Operation::Send, Tail::Inv) => SendOp::SendInv,
            (Operation::Write, Tail::Plain) => SendOp::Write,
            (Operation::Write, _) => SendOp::WriteImm,
            (Operation::Read, _) => SendOp::Read,
            (Operation::CompareSwap, _) => SendOp::CompareSwap,
            (Operation::FetchAdd, _) => SendOp::FetchAdd,
            (Operation::AtomicWrite, _) => SendOp::AtomicWrite,
            (Operation::Flush, _) => SendOp::Flush,
            (other, _) => panic!("{other:?} is no request"),
        };
        if last.se() {
            wqe.flags |= SendFlags::SOLICITED;
        }
        let mut length = payload.len();
        let mut psns = self.capture.mtu.packets(u32::try_from(length).unwrap());
        if let Some(reth) = first.reth() {
            (wqe.remote_addr, wqe.rkey) = (reth.va, reth.rkey);
            match info.operation {
                Operation::Read => {
                    length = reth.dma_len as usize;
                    psns = self.capture.mtu.packets(reth.dma_len);
                }
                Operation::Flush => wqe.compare_add = u64::from(reth.dma_len),
                _ => assert_eq!(reth.dma_len as usize, length),
            }
        }
        if let Some(atomic) = first.atomic_eth() {
            (wqe.remote_addr, wqe.rkey) = (atomic.va, atomic.rkey);
            (wqe.compare_add, wqe.swap) = match info.operation {
                Operation::CompareSwap => (atomic.compare, atomic.swap_add),
                _ => (atomic.swap_add, 0),
            };
            length = 8;
        }
        if let Some(imm) = last.immdt() {
            wqe.imm_or_inv = imm.0;
        }
        if let Some(ieth) = last.ieth() {
            wqe.imm_or_inv = ieth.rkey.0;
        }
        if let Some(feth) = first.feth() {
            wqe.imm_or_inv = u32::from(feth.sel) << 4 | u32::from(feth.plt);
        }
        if let Some(deth) = first.deth() {
            wqe.dest = self.handle_to(at);
            wqe.dest_qpn = first.dest_qp().raw();
            wqe.dest_qkey = deth.qkey.0;
        }
        let (region, mr) = &self.source;
        region.write(self.filled, &payload);
        let sge = Sge {
            addr: mr.iova + self.filled as u64,
            length: u32::try_from(length).unwrap(),
            lkey: mr.lkey,
        };
        self.filled += length.next_multiple_of(8);
        let mut sq = self.face.sq.lock();
        sq.stage(wqe, (length > 0).then_some(sge)).unwrap();
        sq.publish();
        drop(sq);
        self.engine.handle_doorbell(self.now, self.qp);
        self.next_psn = Some(psn_after(psn, psns));
        if psns > 1 && info.operation != Operation::Read {
            self.next_psn = Some(psn_after(psn, 1));
        }
    }

    /// Payload and last packet of the message that begins at `at`.
    fn message(&self, at: usize) -> (Vec<u8>, Packet<'c>) {
        let (mut payload, mut psn) = (Vec::new(), self.script[at].0.packet().psn().raw());
        for (recorded, ours) in &self.script[at..] {
            let packet = recorded.packet();
            if !ours || !packet.info().is_request() || packet.psn().raw() != psn {
                continue;
            }
            payload.extend(packet.payload());
            if packet.info().position.ends() {
                return (payload, packet);
            }
            psn = psn_after(psn, 1);
        }
        // It was refused before all of it was sent; its header says how long it would have been.
        let first = self.script[at].0.packet();
        let reth = first.reth().expect("a WRITE says how long it is");
        payload.resize(reth.dma_len as usize, 0);
        (payload, first)
    }

    fn handle_to(&mut self, at: usize) -> u32 {
        let e = self.script[at].0.envelope;
        let run = self.peers.run;
        let flow_label = self.peers.flow_label;
        let hop = self.capture.option(self.peers.ip, run, "--hop").unwrap_or(0);
        let ah = AhAttr {
            dgid: Gid::from(e.dst),
            traffic_class: e.traffic_class,
            hop_limit: hop.try_into().unwrap(),
            flow_label,
            ..AhAttr::default()
        };
        let engine = &mut self.engine;
        *self
            .handles
            .entry((e.dst, e.traffic_class, flow_label, ah.hop_limit))
            .or_insert_with(|| engine.create_ah(self.pd, &ah).unwrap())
    }

    /// Takes a packet of the peer, with our keys in place of those that were recorded.
    fn take(&mut self, at: usize) {
        let recorded = self.script[at].0;
        let packet = recorded.packet();
        let mut datagram = recorded.datagram.clone();
        let outer = recorded.outer();
        if packet.info().is_request() {
            self.prepare(at);
            let key_at = match (packet.info().operation, packet.info().tail()) {
                (Operation::Flush, _) => Some(24),
                (_, Tail::Inv) => Some(12),
                _ if packet.reth().is_some() || packet.atomic_eth().is_some() => Some(20),
                _ => None,
            };
            if let Some(key_at) = key_at {
                let key = &mut datagram[key_at..key_at + 4];
                let theirs = u32::from_be_bytes(key.try_into().unwrap());
                key.copy_from_slice(&self.keys[&theirs].0.0.to_be_bytes());
                let (sealed, icrc) = datagram.split_last_chunk_mut().unwrap();
                *icrc = seal::icrc(&outer, sealed);
            }
        }
        let e = &recorded.envelope;
        let path = Path {
            src: e.src,
            dst: e.dst,
            src_port: e.src_port,
            traffic_class: e.traffic_class,
            hop_limit: e.hop_limit,
            flow_label: e.flow_label,
            scope_id: 0,
        };
        let meta = RxMeta { path, ident: Some(e.ident), df: Some(e.df), gro_index: 0 };
        self.engine.handle_datagram(self.now, &meta, &datagram);
        if packet.info().is_request() {
            while let Some(sent) = self.transmit() {
                self.waiting[usize::from(sent.packet().info().is_request())].push_back(sent);
            }
        }
        while self.engine.poll_event().is_some() {}
    }

    /// Brings memory and receives to the state in which the peer's request found them.
    fn prepare(&mut self, at: usize) {
        let packet = self.script[at].0.packet();
        let psn = packet.psn().raw();
        let mut answers =
            self.script[at..].iter().filter(|(_, ours)| *ours).map(|(r, _)| r.packet());
        let not_ready = |p: &Packet<'_>| {
            p.aeth().is_some_and(|a| matches!(a.syndrome, Syndrome::RnrNak { .. }))
        };
        if !self.receives_posted && !answers.clone().any(|p| not_ready(&p)) {
            self.receives_posted = true;
            let mr = self.source.1;
            let length = u32::try_from(self.receive_size).unwrap();
            let addr = mr.iova + (SOURCE - self.receive_size) as u64;
            let mut rq = self.face.rq.lock();
            for id in 0..64 {
                rq.stage(id, [Sge { addr, length, lkey: mr.lkey }]).unwrap();
            }
            rq.publish();
        }
        let is_new = self.seen.insert(psn);
        match packet.info().operation {
            Operation::Read => {
                let reth = packet.reth().unwrap();
                let Some((_, Some((from, region)))) = self.keys.get(&reth.rkey.0) else { return };
                let mtu = self.capture.mtu;
                for answer in
                    answers.filter(|p| !p.info().is_request() && p.opcode().info().payload)
                {
                    let nth = answer.psn().raw().wrapping_sub(psn) & 0xff_ffff;
                    if nth < mtu.packets(reth.dma_len) {
                        let at = reth.va - from + u64::from(nth) * mtu.bytes() as u64;
                        region.write(usize::try_from(at).unwrap(), answer.payload());
                    }
                }
            }
            Operation::CompareSwap | Operation::FetchAdd if is_new => {
                let atomic = packet.atomic_eth().unwrap();
                let Some((_, Some((from, region)))) = self.keys.get(&atomic.rkey.0) else { return };
                let original =
                    answers.find(|p| p.psn().raw() == psn && p.atomic_ack_eth().is_some());
                let original = original.and_then(|p| p.atomic_ack_eth()).unwrap();
                region.store(usize::try_from(atomic.va - from).unwrap(), original.orig, Relaxed);
            }
            _ => {}
        }
    }
}

/// rdma_rxe asks for an ACK in the middle of a message when this is the number of packets since the last.
const ACK_EVERY: u32 = 66;
/// How much later than theirs a timer of ours may fire.
const SLACK: Duration = Duration::from_millis(50);
