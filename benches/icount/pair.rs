//! Two engines and a wire of memory, on which nothing is lost and nothing takes time.

use std::net::IpAddr;
use std::sync::Arc;

use softroce::cc::{CongestionControl, Dcqcn, DcqcnConfig};
use softroce::internals::engine::qp::attr::{AhAttr, QpAttr, QpCap, QpState, QpType};
use softroce::internals::engine::{Acks, Engine, EngineConfig, LocalGid, QpFace, QpHandle, QpInit};
use softroce::internals::mem::{Access, IovaChoice, Region, Registered, Sge};
use softroce::internals::queue::{CqShared, SendFlags, SendOp, SendWqe};
use softroce::net::{Ident, PortCaps, ROCE_PORT, RxMeta, SrcPort};
use softroce::time::Instant;
use softroce::wire::num::{Gid, Mtu};

const REGION: usize = 1 << 20;

struct Side {
    engine: Engine,
    cqs: Arc<CqShared>,
    qps: Vec<(QpHandle, Arc<QpFace>)>,
    mr: Registered,
    _region: Arc<Region>,
}

pub(crate) struct Pair {
    sides: [Side; 2],
    now: Instant,
    /// Some leaves later.
    paced: bool,
    buf: Vec<u8>,
    /// A packet that came, and how.
    last: Option<(RxMeta, Vec<u8>)>,
}

impl Pair {
    /// With so many queue pairs, the `k`-th of one side connected to the `k`-th of the other.
    pub(crate) fn new(qps: usize, mtu: Mtu) -> Self {
        Self::with(qps, mtu, Extras::default())
    }

    /// The same, with something that is not there by default.
    pub(crate) fn with(qps: usize, mtu: Mtu, extras: Extras) -> Self {
        let mut sides = [0, 1].map(|i: u8| {
            let caps = PortCaps {
                src_port: SrcPort::Fixed(ROCE_PORT),
                ident: Ident::ZeroThenIndex,
                gso_segments_v4: 64,
                gso_segments_v6: 64,
                max_transmit: 65_507,
                mtu: 65_535,
                rx_buffer: Some(8 << 20),
            };
            let gid = LocalGid { ip: ip(i), scope_id: 0 };
            let config = EngineConfig { elide: extras.elide, ..EngineConfig::new([i + 1; 32]) };
            let mut engine = Engine::new(config, caps, vec![gid]);
            let pd = engine.alloc_pd().unwrap();
            let (cq, cqs) = engine.create_cq(1024).unwrap();
            let cap = QpCap { send_wr: 64, recv_wr: 64, send_sge: 1, recv_sge: 1, inline: 0 };
            let made = (0..qps).map(|_| {
                let init = QpInit {
                    kind: QpType::Rc,
                    pd,
                    send_cq: cq,
                    recv_cq: cq,
                    srq: None,
                    cap,
                    sig_all: true,
                    cc: extras.dcqcn.then(dcqcn),
                };
                engine.create_qp(init).unwrap()
            });
            let qps = made.collect();
            let region = Region::alloc(REGION).unwrap();
            let mr = engine
                .register(pd, Arc::clone(&region), IovaChoice::Allocate, Access::REMOTE)
                .unwrap();
            Side { engine, cqs, qps, mr, _region: region }
        });
        let now = Instant::from_nanos(1_000_000);
        for k in 0..qps {
            for (i, other) in [(0, 1), (1, 0)] {
                let peer = sides[other].qps[k].1.qpn().raw();
                let dgid = Gid::from(sides[other].engine.gids()[0].ip);
                for attr in way_up(peer, dgid, mtu) {
                    let side = &mut sides[i];
                    side.engine.modify_qp(now, side.qps[k].0, &attr).unwrap();
                }
            }
        }
        Self { sides, now, paced: extras.dcqcn, buf: vec![0; 1 << 16], last: None }
    }

    /// Posts `n` requests of `len` bytes with one doorbell.
    pub(crate) fn post(&mut self, k: usize, op: SendOp, len: u32, n: u64) {
        let theirs = self.sides[1].mr;
        let side = &mut self.sides[0];
        let sge = Sge { addr: side.mr.iova, length: len, lkey: side.mr.lkey };
        let (handle, face) = &side.qps[k];
        let mut sq = face.sq.lock();
        for wr_id in 0..n {
            let wqe = SendWqe {
                wr_id,
                op,
                flags: SendFlags::SIGNALED,
                remote_addr: theirs.iova,
                rkey: theirs.rkey,
                ..SendWqe::default()
            };
            sq.stage(wqe, [sge]).unwrap();
        }
        sq.publish();
        drop(sq);
        side.engine.handle_doorbell(self.now, *handle);
    }

    pub(crate) fn post_recv(&mut self, k: usize, len: u32) {
        let side = &self.sides[1];
        let mut rq = side.qps[k].1.rq.lock();
        rq.stage(1, [Sge { addr: side.mr.iova, length: len, lkey: side.mr.lkey }]).unwrap();
        rq.publish();
    }

    /// Until nobody has anything to send, now or later.
    pub(crate) fn run(&mut self) {
        loop {
            while self.pass(0) | self.pass(1) {}
            if !self.paced {
                return;
            }
            let next = self.sides.iter().filter_map(|side| side.engine.poll_timeout()).min();
            let Some(next) = next else { return };
            self.now = self.now.max(next);
            for side in &mut self.sides {
                while side.engine.handle_timeout(self.now, 16) {}
            }
        }
    }

    /// Sends what one side has, to the other.
    fn pass(&mut self, from: usize) -> bool {
        let mut any = false;
        loop {
            let engine = &mut self.sides[from].engine;
            let Some((t, _)) = engine.poll_transmit(self.now, Acks::Send, &mut self.buf) else {
                break;
            };
            any = true;
            let size = t.segment_size.map_or(t.len, usize::from);
            let to = &mut self.sides[1 - from].engine;
            let meta = RxMeta { path: t.path, ident: None, df: None, gro_index: 0 };
            let bytes = &self.buf[..t.len];
            to.handle_merged(self.now, &meta, bytes, size);
            if self.last.is_none() {
                self.last = Some((meta, bytes[..size.min(t.len)].to_vec()));
            }
        }
        while self.sides[from].engine.poll_event().is_some() {}
        any
    }

    /// Takes what has completed, and says how many that were on each side.
    pub(crate) fn completions(&mut self) -> [usize; 2] {
        for side in &mut self.sides {
            while side.engine.poll_event().is_some() {}
        }
        [0, 1].map(|i: usize| self.sides[i].cqs.poll(usize::MAX, |_| {}))
    }

    /// A packet for a queue pair that is not there.
    pub(crate) fn stray(&mut self) {
        if self.last.is_none() {
            self.post(0, SendOp::Write, 64, 1);
            self.run();
            assert_eq!(self.completions(), [1, 0]);
            let (_, bytes) = self.last.as_mut().unwrap();
            bytes[5] ^= 0x80;
        }
        let (meta, bytes) = self.last.as_ref().unwrap();
        self.sides[1].engine.handle_datagram(self.now, meta, bytes);
    }
}

/// What a pair may have besides.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extras {
    /// DCQCN at 100 Gbit/s.
    pub(crate) dcqcn: bool,
    /// No payload.
    pub(crate) elide: bool,
}

fn dcqcn() -> Box<dyn CongestionControl> {
    let config = DcqcnConfig::preset("paper", 100_000_000_000).unwrap();
    Box::new(Dcqcn::new(config).unwrap())
}

fn ip(i: u8) -> IpAddr {
    [10, 0, 0, i + 1].into()
}

/// The transitions from RESET to RTS.
fn way_up(peer: u32, dgid: Gid, mtu: Mtu) -> [QpAttr; 3] {
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    [
        QpAttr::to(QpState::Init).port(1).pkey_index(0).access(access),
        QpAttr::to(QpState::Rtr)
            .ah(AhAttr { dgid, ..AhAttr::default() })
            .path_mtu(mtu)
            .dest_qpn(peer)
            .rq_psn(0)
            .max_dest_rd_atomic(16)
            .min_rnr_timer(12),
        QpAttr::to(QpState::Rts).sq_psn(0).timeout(14).retry_cnt(7).rnr_retry(7).max_rd_atomic(16),
    ]
}
