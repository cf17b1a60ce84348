//! Two engines and a wire between them, in virtual time.
//!
//! The wire delays every packet by the same time and asks a rule what to do with it, so a test can lose
//! exactly the third ACK. Everything both engines say is kept in `log`, to be compared or read.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::engine::config::EngineConfig;
use crate::engine::counters::Counter;
use crate::engine::event::{AsyncEvent, Event};
use crate::engine::qp::attr::{AhAttr, QpAttr, QpCap, QpState, QpType};
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
    pub(crate) syndrome: Option<u8>,
    pub(crate) at: Instant,
    /// How many packets of this name went to this side before.
    pub(crate) nth: usize,
}

type Rule = Box<dyn FnMut(&Flying) -> Fate>;

/// One end.
pub(crate) struct Side {
    pub(crate) engine: Engine,
    pub(crate) pd: PdId,
    pub(crate) cqs: Arc<CqShared>,
    pub(crate) qp: QpHandle,
    pub(crate) face: Arc<QpFace>,
    pub(crate) region: Arc<Region>,
    pub(crate) mr: Registered,
    pub(crate) events: Vec<AsyncEvent>,
}

pub(crate) struct Pair {
    pub(crate) now: Instant,
    pub(crate) sides: [Side; 2],
    wire: VecDeque<(Instant, u64, usize, RxMeta, Vec<u8>)>,
    rule: Rule,
    pub(crate) log: Vec<Flying>,
    pub(crate) delay: Duration,
    sequence: u64,
}

pub(crate) const REGION: usize = 1 << 20;

/// Bytes that differ from their neighbours and, by `salt`, from others.
#[expect(clippy::cast_possible_truncation, reason = "of the position, the low bytes are wanted")]
pub(crate) fn pattern(len: usize, salt: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ salt).collect()
}

/// What a pair is made with.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
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
    pub(crate) sig_all: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
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
            sig_all: false,
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
                ident: Ident::Chosen,
                gso_segments_v4: 64,
                gso_segments_v6: 64,
                max_transmit: 65_507,
                mtu: 9000,
                rx_buffer: setup.rx_buffer,
            };
            let mut config = EngineConfig::new([i + 1; 32]);
            (setup.config)(&mut config);
            let mut engine = Engine::new(config, caps, vec![LocalGid { ip: ip(i), scope_id: 0 }]);
            let pd = engine.alloc_pd().unwrap();
            let (cq, cqs) = engine.create_cq(setup.cq_depth).unwrap();
            let (qp, face) = engine
                .create_qp(QpInit {
                    kind: QpType::Rc,
                    pd,
                    send_cq: cq,
                    recv_cq: cq,
                    cap: setup.cap,
                    sig_all: setup.sig_all,
                    cc: None,
                })
                .unwrap();
            let region = Region::alloc(REGION).unwrap();
            let access = Access::REMOTE | Access::MW_BIND;
            let mr =
                engine.register(pd, Arc::clone(&region), IovaChoice::Allocate, access).unwrap();
            Side { engine, pd, cqs, qp, face, region, mr, events: Vec::new() }
        });
        let mut pair = Self {
            now: Instant::from_nanos(1_000_000),
            sides,
            wire: VecDeque::new(),
            rule: Box::new(|_| Fate::Pass),
            log: Vec::new(),
            delay: Duration::from_micros(2),
            sequence: 0,
        };
        for i in 0..2 {
            let peer = pair.sides[1 - i].face.qpn().raw();
            let dgid = Gid::from(pair.sides[1 - i].engine.gids()[0].ip);
            let modify = |pair: &mut Self, attr: QpAttr| {
                let side = &mut pair.sides[i];
                side.engine.modify_qp(pair.now, side.qp, &attr).unwrap();
            };
            let init = QpAttr::to(QpState::Init).port(1).pkey_index(0).access(setup.access);
            modify(&mut pair, init);
            modify(
                &mut pair,
                QpAttr::to(QpState::Rtr)
                    .ah(AhAttr { dgid, ..AhAttr::default() })
                    .path_mtu(setup.mtu)
                    .dest_qpn(peer)
                    .rq_psn(setup.psn)
                    .max_dest_rd_atomic(setup.dest_rd_atomic)
                    .min_rnr_timer(setup.min_rnr_timer),
            );
            modify(
                &mut pair,
                QpAttr::to(QpState::Rts)
                    .sq_psn(setup.psn)
                    .timeout(setup.timeout)
                    .retry_cnt(setup.retry_cnt)
                    .rnr_retry(setup.rnr_retry)
                    .max_rd_atomic(setup.rd_atomic),
            );
        }
        pair
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
        let s = &mut self.sides[side];
        let mut sq = s.face.sq.lock();
        sq.stage(wqe, local.iter().copied()).unwrap();
        sq.publish();
        drop(sq);
        s.engine.handle_doorbell(self.now, s.qp);
        self.pump(side);
    }

    pub(crate) fn post_recv(&mut self, side: usize, wr_id: u64, local: &[Sge]) {
        let s = &mut self.sides[side];
        let mut rq = s.face.rq.lock();
        rq.stage(wr_id, local.iter().copied()).unwrap();
        rq.publish();
        drop(rq);
        if s.face.state() == QpState::Err {
            s.engine.handle_doorbell(self.now, s.qp);
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
        let mut buf = vec![0; 1 << 16];
        loop {
            let s = &mut self.sides[side];
            let Some((t, _)) = s.engine.poll_transmit(self.now, Acks::Send, &mut buf) else {
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
                self.fly(1 - side, meta, datagram);
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
        let nth = self.log.iter().filter(|p| p.to == to && p.name == name).count();
        let flying = Flying {
            to,
            name,
            psn: packet.psn().raw(),
            syndrome: packet.aeth().map(|a| a.syndrome.as_u8()),
            at: self.now,
            nth,
        };
        let fate = (self.rule)(&flying);
        self.log.push(flying);
        let mut deliver = |extra: Duration| {
            self.sequence += 1;
            let at = self.now + self.delay + extra;
            self.wire.push_back((at, self.sequence, to, meta, datagram.to_vec()));
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
        self.wire.make_contiguous().sort_by_key(|&(at, sequence, ..)| (at, sequence));
    }

    /// Delivers foreign bytes to `to` as if the peer had sent them.
    pub(crate) fn inject(&mut self, to: usize, datagram: &[u8], ident: u16) {
        let s = &mut self.sides[to];
        let path = s.engine.qp_path(s.qp).unwrap();
        let meta = RxMeta {
            path: crate::net::Path { src: path.dst, dst: path.src, ..path },
            ident: Some(ident),
            df: Some(true),
            gro_index: 0,
        };
        s.engine.handle_datagram(self.now, &meta, datagram);
        self.pump(to);
    }

    /// Lets one thing happen: the next packet, or the next timer. `false`: nothing is left.
    pub(crate) fn step(&mut self) -> bool {
        let packet = self.wire.front().map(|p| p.0);
        let timer = self.sides.iter().filter_map(|s| s.engine.poll_timeout()).min();
        let Some(next) = packet.into_iter().chain(timer).min() else { return false };
        self.now = self.now.max(next);
        if packet.is_some_and(|at| at <= self.now) {
            let (_, _, to, meta, bytes) = self.wire.pop_front().unwrap();
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
            let packet = self.wire.front().map(|p| p.0);
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
        }
        assert!(self.wire.is_empty());
    }
}
