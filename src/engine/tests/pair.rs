//! Two engines and a wire between them, in virtual time.
//!
//! The wire delays every packet by the same time and asks a rule what to do with it, so a test can lose
//! exactly the third ACK. Everything both engines say is kept in `log`, to be compared or read.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::engine::cc::CongestionControl;
use crate::engine::config::EngineConfig;
use crate::engine::counters::Counter;
use crate::engine::event::{AsyncEvent, Event};
use crate::engine::qp::attr::{AhAttr, Mask, QpAttr, QpCap, QpState, QpType};
use crate::engine::qp::{QpFace, QpHandle};
use crate::engine::status::WcStatus;
use crate::engine::{Acks, Engine, LocalGid, QpInit};
use crate::mem::{Access, IovaChoice, PdId, Region, Registered, Sge};
use crate::net::{Ident, PortCaps, RxMeta, SrcPort};
use crate::queue::{CqShared, Cqe, SendFlags, SendOp, SendWqe};
use crate::time::{Duration, Instant};
use crate::wire::num::{Gid, Mtu};
use crate::wire::packet::Packet;

/// What the wire does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Pass,
    Drop,
    Twice,
    /// Arrives later than it would.
    Late(Duration),
}

/// A packet on the wire, as rules see it.
#[derive(Clone, Debug)]
pub(crate) struct Flying {
    pub(crate) to: usize,
    pub(crate) name: &'static str,
    pub(crate) psn: u32,
    /// Queue pair that it goes to.
    pub(crate) qpn: u32,
    pub(crate) syndrome: Option<u8>,
    pub(crate) at: Instant,
    /// How many packets of this name went to this side before.
    pub(crate) nth: usize,
}

/// When a packet was sent, its identification, its length, and its headers.
pub(crate) type Sent = (Instant, Option<u16>, usize, Vec<u8>);

type Rule = Box<dyn FnMut(&Flying) -> Fate>;

/// One end.
pub(crate) struct Side {
    pub(crate) engine: Engine,
    pub(crate) pd: PdId,
    pub(crate) cqs: Arc<CqShared>,
    pub(crate) cq: u32,
    pub(crate) qp: QpHandle,
    pub(crate) face: Arc<QpFace>,
    /// All queue pairs, the one above first.
    pub(crate) qps: Vec<(QpHandle, Arc<QpFace>)>,
    pub(crate) region: Arc<Region>,
    pub(crate) mr: Registered,
    pub(crate) events: Vec<AsyncEvent>,
}

pub(crate) struct Pair {
    pub(crate) now: Instant,
    pub(crate) sides: [Side; 2],
    /// By time of arrival, then in the order of sending: to whom, how, what.
    wire: BTreeMap<(Instant, u64), (usize, RxMeta, Vec<u8>)>,
    rule: Rule,
    pub(crate) log: Vec<Flying>,
    seen: BTreeMap<(usize, &'static str), usize>,
    /// Every byte that was sent, with its time, if it is to be kept.
    pub(crate) tape: Option<Vec<u8>>,
    /// The same without payload and ICRC, and with its length, if it is to be kept.
    pub(crate) headers: Option<Vec<Sent>>,
    pub(crate) delay: Duration,
    /// Bytes that a side may send at once.
    pub(crate) room: usize,
    /// What a side does with plain ACKs.
    pub(crate) acks: [Acks; 2],
    loopback: bool,
    sequence: u64,
}

pub(crate) const REGION: usize = 1 << 20;

/// Bytes that differ from their neighbours and, by `salt`, from others.
#[expect(clippy::cast_possible_truncation, reason = "of the position, the low bytes are wanted")]
pub(crate) fn pattern(len: usize, salt: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ salt).collect()
}

pub(crate) fn make_qp(
    engine: &mut Engine,
    pd: PdId,
    cq: u32,
    setup: &Setup,
) -> (QpHandle, Arc<QpFace>) {
    engine
        .create_qp(QpInit {
            kind: setup.kind,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            cap: setup.cap,
            sig_all: setup.sig_all,
            cc: setup.cc.map(|make| make()),
        })
        .unwrap()
}

/// The transitions from RESET to RTS.
pub(crate) fn ways_up(setup: &Setup, peer: u32, dgid: Gid) -> [QpAttr; 3] {
    let all = [
        QpAttr::to(QpState::Init).port(1).pkey_index(0).access(setup.access).qkey(QKEY),
        QpAttr::to(QpState::Rtr)
            .ah(AhAttr { dgid, ..AhAttr::default() })
            .path_mtu(setup.mtu)
            .dest_qpn(peer)
            .rq_psn(setup.psn)
            .max_dest_rd_atomic(setup.dest_rd_atomic)
            .min_rnr_timer(setup.min_rnr_timer),
        QpAttr::to(QpState::Rts)
            .sq_psn(setup.psn)
            .timeout(setup.timeout)
            .retry_cnt(setup.retry_cnt)
            .rnr_retry(setup.rnr_retry)
            .max_rd_atomic(setup.rd_atomic),
    ];
    all.map(|attr| fitting(setup.kind, attr))
}

/// Queue key of datagram queue pairs.
pub(crate) const QKEY: u32 = 0x1ee7;

/// The attributes without those that this type of queue pair does not take on its way from RESET to RTS.
pub(crate) fn fitting(kind: QpType, attr: QpAttr) -> QpAttr {
    let takes = match kind {
        QpType::Rc => Mask::all() - Mask::QKEY,
        QpType::Uc => {
            Mask::PORT
                | Mask::PKEY_INDEX
                | Mask::ACCESS
                | Mask::AV
                | Mask::PATH_MTU
                | Mask::DEST_QPN
                | Mask::RQ_PSN
                | Mask::SQ_PSN
        }
        _ => Mask::PORT | Mask::PKEY_INDEX | Mask::QKEY | Mask::SQ_PSN,
    };
    QpAttr { state: attr.state, ..QpAttr::default() }.overridden(&attr, takes)
}

/// What a pair is made with.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) kind: QpType,
    pub(crate) mtu: Mtu,
    pub(crate) cap: QpCap,
    pub(crate) cq_depth: u32,
    pub(crate) psn: u32,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) rd_atomic: u8,
    pub(crate) dest_rd_atomic: u8,
    pub(crate) access: Access,
    pub(crate) config: fn(&mut EngineConfig),
    pub(crate) rx_buffer: Option<usize>,
    pub(crate) v6: bool,
    /// Most segments of a transmission.
    pub(crate) gso: usize,
    pub(crate) ident: Ident,
    pub(crate) sig_all: bool,
    pub(crate) cc: Option<fn() -> Box<dyn CongestionControl>>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            kind: QpType::Rc,
            mtu: Mtu::B1024,
            cap: QpCap::default(),
            cq_depth: 1024,
            psn: 0x00_1000,
            timeout: 10,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 1,
            rd_atomic: 16,
            dest_rd_atomic: 16,
            access: Access::REMOTE,
            config: |_| {},
            rx_buffer: None,
            v6: false,
            gso: 64,
            ident: Ident::Chosen,
            sig_all: false,
            cc: None,
        }
    }
}

impl Pair {
    pub(crate) fn new(setup: &Setup) -> Self {
        let ip = |i: u8| -> std::net::IpAddr {
            if setup.v6 {
                std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(i) + 1).into()
            } else {
                [10, 0, 0, i + 1].into()
            }
        };
        let sides = [0, 1].map(|i: u8| {
            let caps = PortCaps {
                src_port: SrcPort::Entropy,
                ident: setup.ident,
                gso_segments_v4: setup.gso,
                gso_segments_v6: setup.gso,
                max_transmit: 65_507,
                mtu: 9000,
                rx_buffer: setup.rx_buffer,
            };
            let mut config = EngineConfig::new([i + 1; 32]);
            (setup.config)(&mut config);
            let mut engine = Engine::new(config, caps, vec![LocalGid { ip: ip(i), scope_id: 0 }]);
            let pd = engine.alloc_pd().unwrap();
            let (cq, cqs) = engine.create_cq(setup.cq_depth).unwrap();
            let (qp, face) = make_qp(&mut engine, pd, cq, setup);
            let region = Region::alloc(REGION).unwrap();
            let access = Access::REMOTE | Access::MW_BIND;
            let mr =
                engine.register(pd, Arc::clone(&region), IovaChoice::Allocate, access).unwrap();
            let qps = vec![(qp, Arc::clone(&face))];
            Side { engine, pd, cqs, cq, qp, face, qps, region, mr, events: Vec::new() }
        });
        let mut pair = Self {
            now: Instant::from_nanos(1_000_000),
            sides,
            wire: BTreeMap::new(),
            rule: Box::new(|_| Fate::Pass),
            log: Vec::new(),
            seen: BTreeMap::new(),
            tape: None,
            headers: None,
            delay: Duration::from_micros(2),
            room: 1 << 16,
            acks: [Acks::Send; 2],
            loopback: false,
            sequence: 0,
        };
        pair.connect(setup);
        pair
    }

    /// Another queue pair on each side, with the completion queues and memory of the first.
    pub(crate) fn add_qp(&mut self, setup: &Setup) {
        for side in &mut self.sides {
            let qp = make_qp(&mut side.engine, side.pd, side.cq, setup);
            side.qps.push(qp);
        }
        self.connect(setup);
    }

    /// Two queue pairs of side 0 that are connected to each other; side 1 is not there.
    pub(crate) fn loopback(setup: &Setup) -> Self {
        let mut pair = Self::new(setup);
        pair.loopback = true;
        let side = &mut pair.sides[0];
        let dgid = Gid::from(side.engine.gids()[0].ip);
        side.qps = [(); 2].map(|()| make_qp(&mut side.engine, side.pd, side.cq, setup)).into();
        for i in 0..2 {
            let peer = side.qps[1 - i].1.qpn().raw();
            for attr in ways_up(setup, peer, dgid) {
                side.engine.modify_qp(pair.now, side.qps[i].0, &attr).unwrap();
            }
        }
        (pair.sides[1].mr, pair.sides[1].region) = {
            let side = &pair.sides[0];
            (side.mr, Arc::clone(&side.region))
        };
        pair
    }

    /// Brings the newest queue pairs up to RTS.
    pub(crate) fn connect(&mut self, setup: &Setup) {
        let ends = [0, 1].map(|i: usize| {
            let side = &self.sides[i];
            (side.qps.last().unwrap().clone(), Gid::from(side.engine.gids()[0].ip))
        });
        for i in 0..2 {
            let (peer, dgid) = &ends[1 - i];
            for attr in ways_up(setup, peer.1.qpn().raw(), *dgid) {
                self.sides[i].engine.modify_qp(self.now, ends[i].0.0, &attr).unwrap();
            }
        }
    }

    /// Asks `rule` about every packet from now on.
    pub(crate) fn rule(&mut self, rule: impl FnMut(&Flying) -> Fate + 'static) {
        self.rule = Box::new(rule);
    }

    /// Loses the `nth` packet of this name that goes to `to`, counted from now.
    pub(crate) fn lose(&mut self, to: usize, name: &'static str, nth: usize) {
        let mut seen = 0;
        self.rule(move |p| {
            if p.to == to && p.name == name {
                seen += 1;
                if seen == nth + 1 {
                    return Fate::Drop;
                }
            }
            Fate::Pass
        });
    }

    pub(crate) fn sge(&self, side: usize, at: usize, len: usize) -> Sge {
        let mr = &self.sides[side].mr;
        Sge { addr: mr.iova + at as u64, length: u32::try_from(len).unwrap(), lkey: mr.lkey }
    }

    /// A request to the peer's region at `remote`.
    pub(crate) fn wqe(&self, side: usize, op: SendOp, wr_id: u64, remote: usize) -> SendWqe {
        let mr = &self.sides[1 - side].mr;
        SendWqe {
            wr_id,
            op,
            flags: SendFlags::SIGNALED,
            remote_addr: mr.iova + remote as u64,
            rkey: mr.rkey,
            ..SendWqe::default()
        }
    }

    pub(crate) fn post(&mut self, side: usize, wqe: SendWqe, local: &[Sge]) {
        self.post_on(side, 0, wqe, local);
    }

    /// Posts on the `k`-th queue pair of a side.
    pub(crate) fn post_on(&mut self, side: usize, k: usize, wqe: SendWqe, local: &[Sge]) {
        self.stage_on(side, k, wqe, local);
        self.ring(side, k);
    }

    /// Posts without telling the engine.
    pub(crate) fn stage_on(&mut self, side: usize, k: usize, wqe: SendWqe, local: &[Sge]) {
        let mut sq = self.sides[side].qps[k].1.sq.lock();
        sq.stage(wqe, local.iter().copied()).unwrap();
        sq.publish();
    }

    /// Tells the engine.
    pub(crate) fn ring(&mut self, side: usize, k: usize) {
        let s = &mut self.sides[side];
        s.engine.handle_doorbell(self.now, s.qps[k].0);
        self.pump(side);
    }

    pub(crate) fn post_recv(&mut self, side: usize, wr_id: u64, local: &[Sge]) {
        self.post_recv_on(side, 0, wr_id, local);
    }

    pub(crate) fn post_recv_on(&mut self, side: usize, k: usize, wr_id: u64, local: &[Sge]) {
        let face = Arc::clone(&self.sides[side].qps[k].1);
        let mut rq = face.rq.lock();
        rq.stage(wr_id, local.iter().copied()).unwrap();
        rq.publish();
        drop(rq);
        if face.state() == QpState::Err {
            self.ring(side, k);
        }
        self.pump(side);
    }

    pub(crate) fn modify(&mut self, side: usize, attr: &QpAttr) {
        let s = &mut self.sides[side];
        s.engine.modify_qp(self.now, s.qp, attr).unwrap();
        self.pump(side);
    }

    /// Takes everything out of an engine that it has to say.
    pub(crate) fn pump(&mut self, side: usize) {
        let mut buf = vec![0; self.room];
        loop {
            let s = &mut self.sides[side];
            let Some((t, _)) = s.engine.poll_transmit(self.now, self.acks[side], &mut buf) else {
                break;
            };
            let size = t.segment_size.map_or(t.len, usize::from);
            for (k, datagram) in buf[..t.len].chunks(size).enumerate() {
                let meta = RxMeta {
                    path: t.path,
                    ident: Some(t.ident.wrapping_add(u16::try_from(k).unwrap())),
                    df: Some(true),
                    gro_index: 0,
                };
                let to = if self.loopback { side } else { 1 - side };
                self.fly(to, meta, datagram);
            }
        }
        let s = &mut self.sides[side];
        while let Some(e) = s.engine.poll_event() {
            if let Event::Async(e) = e {
                s.events.push(e);
            }
        }
    }

    fn fly(&mut self, to: usize, meta: RxMeta, datagram: &[u8]) {
        let packet = Packet::parse(datagram).expect("what we send can be parsed");
        let name = packet.info().name;
        let seen = self.seen.entry((to, name)).or_default();
        let nth = *seen;
        *seen += 1;
        if let Some(tape) = &mut self.tape {
            tape.extend(self.now.as_nanos().to_le_bytes());
            tape.extend(meta.ident.unwrap_or(0).to_le_bytes());
            tape.extend(datagram);
        }
        if let Some(headers) = &mut self.headers {
            let header = datagram[..packet.info().header_len].to_vec();
            headers.push((self.now, meta.ident, datagram.len(), header));
        }
        let flying = Flying {
            to,
            name,
            psn: packet.psn().raw(),
            qpn: packet.dest_qp().raw(),
            syndrome: packet.aeth().map(|a| a.syndrome.as_u8()),
            at: self.now,
            nth,
        };
        let fate = (self.rule)(&flying);
        self.log.push(flying);
        let mut deliver = |extra: Duration| {
            self.sequence += 1;
            let at = self.now + self.delay + extra;
            self.wire.insert((at, self.sequence), (to, meta, datagram.to_vec()));
        };
        match fate {
            Fate::Pass => deliver(Duration::ZERO),
            Fate::Drop => {}
            Fate::Twice => {
                deliver(Duration::ZERO);
                deliver(Duration::ZERO);
            }
            Fate::Late(extra) => deliver(extra),
        }
    }

    fn next_arrival(&self) -> Option<Instant> {
        self.wire.first_key_value().map(|(key, _)| key.0)
    }

    /// Delivers all that is under way; what that causes stays in the engines.
    pub(crate) fn deliver_without_sending(&mut self) {
        while let Some(((at, _), (to, meta, bytes))) = self.wire.pop_first() {
            self.now = self.now.max(at);
            self.sides[to].engine.handle_datagram(self.now, &meta, &bytes);
        }
    }

    /// Takes all that is under way.
    pub(crate) fn take_wire(&mut self) -> Vec<(RxMeta, Vec<u8>)> {
        std::mem::take(&mut self.wire).into_values().map(|(_, meta, bytes)| (meta, bytes)).collect()
    }

    /// Copies of all that is under way.
    pub(crate) fn peek_wire(&self) -> Vec<(usize, RxMeta, Vec<u8>)> {
        self.wire.values().cloned().collect()
    }

    /// Lets one thing happen: the next packet, or the next timer. `false`: nothing is left.
    pub(crate) fn step(&mut self) -> bool {
        let packet = self.next_arrival();
        let timer = self.sides.iter().filter_map(|s| s.engine.poll_timeout()).min();
        let Some(next) = packet.into_iter().chain(timer).min() else { return false };
        self.now = self.now.max(next);
        if packet.is_some_and(|at| at <= self.now) {
            let (_, (to, meta, bytes)) = self.wire.pop_first().unwrap();
            self.sides[to].engine.handle_datagram(self.now, &meta, &bytes);
            self.pump(to);
        } else {
            for side in 0..2 {
                while self.sides[side].engine.handle_timeout(self.now, 16) {}
                self.pump(side);
            }
        }
        true
    }

    /// Runs until nothing is left to happen.
    pub(crate) fn run(&mut self) {
        for _ in 0..1_000_000 {
            if !self.step() {
                return;
            }
        }
        panic!("it never ends; last packets: {:?}", &self.log[self.log.len().saturating_sub(20)..]);
    }

    /// Runs for a time.
    pub(crate) fn run_for(&mut self, d: Duration) {
        let end = self.now + d;
        loop {
            let packet = self.next_arrival();
            let timer = self.sides.iter().filter_map(|s| s.engine.poll_timeout()).min();
            match packet.into_iter().chain(timer).min() {
                Some(next) if next <= end => assert!(self.step()),
                _ => break,
            }
        }
        self.now = end;
    }

    /// All completions of a side so far.
    pub(crate) fn completions(&mut self, side: usize) -> Vec<Cqe> {
        let mut out = Vec::new();
        self.sides[side].cqs.poll(usize::MAX, |cqe| out.push(*cqe));
        out
    }

    /// (wr_id, status) of all completions of a side so far.
    pub(crate) fn results(&mut self, side: usize) -> Vec<(u64, WcStatus)> {
        self.completions(side)
            .iter()
            .map(|c| (c.wr_id, WcStatus::from_raw(c.status.into())))
            .collect()
    }

    pub(crate) fn counter(&self, side: usize, c: Counter) -> u64 {
        self.sides[side].engine.counters().get(c)
    }

    /// Names of the packets that went to `to`, in order.
    pub(crate) fn names(&self, to: usize) -> Vec<&'static str> {
        self.log.iter().filter(|p| p.to == to).map(|p| p.name).collect()
    }

    pub(crate) fn state(&self, side: usize) -> QpState {
        self.sides[side].face.state()
    }

    /// Fills part of a side's region with a pattern of its own.
    pub(crate) fn fill(&self, side: usize, at: usize, len: usize, salt: u8) -> Vec<u8> {
        let bytes = pattern(len, salt);
        self.sides[side].region.write(at, &bytes);
        bytes
    }

    pub(crate) fn bytes(&self, side: usize, at: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.sides[side].region.read(at, &mut out);
        out
    }

    /// What must hold when nothing is under way: no timer, nothing to send.
    pub(crate) fn assert_quiet(&self) {
        for side in &self.sides {
            assert_eq!(side.engine.poll_timeout(), None, "a timer is armed on an idle queue pair");
            assert!(!side.engine.has_transmit());
            assert_eq!(side.engine.in_flight(), (0, 0), "windows are empty, and nobody waits");
        }
        assert!(self.wire.is_empty());
    }
}
