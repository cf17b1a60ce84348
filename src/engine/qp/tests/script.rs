//! One queue pair, alone: literal packets in, exact packets out.
//!
//! The peer exists only on paper. A script says what arrives ([`Script::recv`]), what is posted, and which
//! lines must have left ([`Script::expect`]). A line is the opcode, the PSN in hex, `A` and `SE` where the
//! bits are set, then the headers, then the number of payload bytes:
//!
//! ```text
//! WRITE_FIRST 001000 va=5000 rkey=77 len=2500 +1024
//! ACK 002003 syn=1f msn=2
//! ```
//!
//! Whatever leaves is checked for what every packet must be: addressed to the peer, MigReq set, reserved
//! bits zero, the default partition, the right ICRC.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use crate::engine::config::EngineConfig;
use crate::engine::counters::Counter;
use crate::engine::event::{AsyncEvent, Event};
use crate::engine::qp::attr::{AhAttr, QpAttr, QpState, Recovery};
use crate::engine::qp::{Qp, QpFace, QpHandle};
use crate::engine::status::WcStatus;
use crate::engine::tests::pair::{QKEY, Setup, fitting, pattern};
use crate::engine::{Acks, Engine, LocalGid, QpInit};
use crate::mem::{Access, IovaChoice, MwKind, PdId, Region, Registered, Sge};
use crate::net::{Ecn, Ident, Path, PortCaps, RxMeta, SrcPort};
use crate::queue::{BindWqe, CqShared, Cqe, RecvQueue, SendFlags, SendOp, SendWqe};
use crate::time::{Duration, Instant};
use crate::wire::headers::{AtomicAckEth, AtomicEth, Deth, Ext, Feth, Ieth, ImmDt, Reth};
use crate::wire::icrc::{self, IpFields};
use crate::wire::num::{Gid, Msn, Pkey, Psn, Qkey, Qpn, Rkey};
use crate::wire::opcode::Operation;
use crate::wire::packet::{Packet, PacketBuilder};
use crate::wire::{Aeth, Bth, Opcode, Syndrome};

/// First PSN that we send.
pub(super) const SQ: u32 = 0x00_1000;
/// First PSN that the peer sends.
pub(super) const RQ: u32 = 0x00_2000;
/// The peer's queue pair.
pub(super) const PEER: u32 = 0x00_00bb;
/// An address and a key in the peer's memory, which nobody looks up.
pub(super) const FAR: (u64, u32) = (0x5000, 0x77);
/// Bytes of our region.
pub(super) const REGION: usize = 1 << 16;

pub(super) const US: [u8; 4] = [10, 0, 0, 1];
pub(super) const THEM: [u8; 4] = [10, 0, 0, 2];

/// A packet that the peer sends.
#[derive(Clone, Debug)]
pub(super) struct In {
    opcode: Opcode,
    bth: Bth,
    ext: Ext,
    payload: Vec<u8>,
    pad: Option<u8>,
}

/// The opcode called `RC_<name>`, or `<name>` if it names its service.
#[track_caller]
pub(super) fn opcode(name: &str) -> Opcode {
    (0..=255)
        .filter_map(Opcode::from_u8)
        .find(|op| op.info().name.strip_prefix("RC_").unwrap_or(op.info().name) == name)
        .unwrap_or_else(|| panic!("no opcode {name}"))
}

/// A packet of RC or of the service in its name, without payload and with headers of zeros.
#[track_caller]
pub(super) fn pkt(name: &str, psn: u32) -> In {
    In::of(opcode(name), psn)
}

/// An ACKNOWLEDGE with this syndrome byte.
pub(super) fn ack(psn: u32, syndrome: u8) -> In {
    pkt("ACK", psn).syndrome(syndrome)
}

impl In {
    /// A packet without payload and with headers of zeros.
    pub(super) fn of(opcode: Opcode, psn: u32) -> Self {
        let bth = Bth {
            opcode: opcode.as_u8(),
            se: false,
            m: false,
            pad_count: 0,
            tver: 0,
            pkey: Pkey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qp: Qpn::default(),
            ack_req: false,
            psn: Psn::new(psn),
        };
        Self { opcode, bth, ext: Ext::default(), payload: Vec::new(), pad: None }
    }

    /// Asks for an ACK.
    pub(super) fn ask(mut self) -> Self {
        self.bth.ack_req = true;
        self
    }

    /// Solicited.
    pub(super) fn se(mut self) -> Self {
        self.bth.se = true;
        self
    }

    /// `n` bytes of the usual pattern.
    pub(super) fn len(self, n: usize) -> Self {
        self.data(&pattern(n, 0))
    }

    pub(super) fn data(mut self, bytes: &[u8]) -> Self {
        self.payload = bytes.to_vec();
        self
    }

    pub(super) fn reth(mut self, va: u64, rkey: Rkey, dma_len: usize) -> Self {
        let dma_len = u32::try_from(dma_len).unwrap();
        self.ext.reth = Some(Reth { va, rkey, dma_len });
        self
    }

    /// FAA: adds `x`. CAS: stores `x` if it finds `compare`.
    pub(super) fn atomic(mut self, va: u64, rkey: Rkey, x: u64, compare: u64) -> Self {
        self.ext.atomic = Some(AtomicEth { va, rkey, swap_add: x, compare });
        self
    }

    /// FLUSH: selectivity and placement type.
    pub(super) fn feth(mut self, sel: u8, plt: u8) -> Self {
        self.ext.feth = Some(Feth { sel, plt });
        self
    }

    pub(super) fn imm(mut self, imm: u32) -> Self {
        self.ext.immdt = Some(ImmDt(imm));
        self
    }

    pub(super) fn inv(mut self, rkey: Rkey) -> Self {
        self.ext.ieth = Some(Ieth { rkey });
        self
    }

    /// Of a datagram: its Q_Key, and who sends it.
    pub(super) fn deth(mut self, qkey: u32, src_qp: u32) -> Self {
        self.ext.deth = Some(Deth { qkey: Qkey(qkey), src_qp: Qpn::new(src_qp) });
        self
    }

    pub(super) fn syndrome(mut self, syndrome: u8) -> Self {
        self.ext.aeth = Some(Aeth { syndrome: Syndrome::from_u8(syndrome), msn: Msn::new(1) });
        self
    }

    pub(super) fn orig(mut self, orig: u64) -> Self {
        self.ext.atomic_ack = Some(AtomicAckEth { orig });
        self
    }

    /// A pad count other than the one that belongs to the payload; so many bytes follow it.
    pub(super) fn pad(mut self, pad: u8) -> Self {
        self.pad = Some(pad);
        self
    }

    pub(super) fn pkey(mut self, pkey: u16) -> Self {
        self.bth.pkey = Pkey(pkey);
        self
    }

    /// What is set here must be ignored: MigReq, FECN and BECN.
    pub(super) fn flags(mut self) -> Self {
        (self.bth.m, self.bth.fecn, self.bth.becn) = (true, true, true);
        self
    }

    /// A congestion notification packet.
    pub(super) fn cnp() -> Self {
        let packet = Self::of(Opcode::CNP, 0);
        Self { bth: Bth { becn: true, ..packet.bth }, ..packet }
    }

    pub(super) fn is_read(&self) -> bool {
        self.opcode == Opcode::RC_READ_REQUEST
    }

    /// The datagram, sealed for `path` and identification `ident`.
    pub(super) fn bytes(&self, dest: Qpn, path: &Path, ident: u16) -> Vec<u8> {
        let bth = Bth { dest_qp: dest, ..self.bth };
        let ip = IpFields::new(path.src, path.dst, ident, true, path.src_port).unwrap();
        let mut buf = vec![0; PacketBuilder::size(self.opcode, self.payload.len())];
        let mut builder = PacketBuilder::new(&mut buf, &bth, &self.ext, self.payload.len());
        builder.payload_mut().copy_from_slice(&self.payload);
        builder.finish(&ip);
        if let Some(pad) = self.pad {
            let header = self.opcode.info().header_len;
            buf.truncate(header + self.payload.len());
            buf.resize(header + self.payload.len() + usize::from(pad), 0);
            buf[1] = buf[1] & !0x30 | pad << 4;
            buf.extend(icrc::compute(&ip, &buf).to_le_bytes());
        }
        buf
    }
}

/// A packet that left.
#[derive(Clone, Debug)]
pub(super) struct Out {
    /// Traffic class.
    pub(super) class: u8,
    /// Since the script began.
    pub(super) at: Duration,
    /// Which address and queue pair it is for.
    pub(super) to: (IpAddr, u32),
    /// UDP source port.
    pub(super) port: u16,
    pub(super) line: String,
    pub(super) payload: Vec<u8>,
}

/// One engine with one queue pair, connected to a peer that the script plays.
pub(super) struct Script {
    pub(super) engine: Engine,
    pub(super) now: Instant,
    pub(super) qp: QpHandle,
    pub(super) face: Arc<QpFace>,
    pub(super) pd: PdId,
    pub(super) cq: u32,
    pub(super) cqs: Arc<CqShared>,
    /// The shared receive queue, if the queue pair has one.
    pub(super) srq: Option<(u32, Arc<RecvQueue>)>,
    pub(super) region: Arc<Region>,
    pub(super) mr: Registered,
    /// Told that a solicited completion arrived, if it was asked for.
    pub(super) notified: usize,
    /// The partition key that every packet must carry.
    pub(super) pkey: u16,
    acks: Acks,
    out: Vec<Out>,
    events: Vec<AsyncEvent>,
    ident: u16,
}

const START: Instant = Instant::from_nanos(10_000_000);

impl Script {
    pub(super) fn new() -> Self {
        Self::with(&Setup::default())
    }

    /// With these attributes; `psn` of them is not used.
    pub(super) fn with(setup: &Setup) -> Self {
        Self::at(SQ, RQ, setup)
    }

    /// With these first PSNs.
    pub(super) fn at(sq: u32, rq: u32, setup: &Setup) -> Self {
        let mut script = Self::idle(setup);
        script.init(setup);
        script.rtr(rq, setup);
        script.rts(sq, setup);
        script
    }

    /// The same, between two ends that agreed on selective repeat.
    pub(super) fn selective(sq: u32, rq: u32, setup: &Setup) -> Self {
        let mut script = Self::idle(setup);
        script.init(setup);
        script.engine.set_recovery(script.qp, Recovery::Selective, Recovery::Selective).unwrap();
        script.rtr(rq, setup);
        script.rts(sq, setup);
        script
    }

    /// Taking receives from a shared queue of `depth` slots.
    pub(super) fn sharing(depth: u32, setup: &Setup) -> Self {
        let mut script = Self::idle_on(setup, Some(depth));
        script.init(setup);
        script.rtr(RQ, setup);
        script.rts(SQ, setup);
        script
    }

    /// In RESET.
    pub(super) fn idle(setup: &Setup) -> Self {
        Self::idle_on(setup, None)
    }

    fn idle_on(setup: &Setup, shared: Option<u32>) -> Self {
        let caps = PortCaps {
            src_port: SrcPort::Entropy,
            ident: Ident::Chosen,
            gso_segments_v4: 1,
            gso_segments_v6: 1,
            max_transmit: 65_507,
            mtu: 9000,
            rx_buffer: setup.rx_buffer,
        };
        let mut config = EngineConfig::new([7; 32]);
        (setup.config)(&mut config);
        let gid = LocalGid { ip: US.into(), scope_id: 0 };
        let mut engine = Engine::new(config, caps, vec![gid]);
        let pd = engine.alloc_pd().unwrap();
        let (cq, cqs) = engine.create_cq(setup.cq_depth).unwrap();
        let srq = shared.map(|depth| engine.create_srq(pd, depth, 4).unwrap());
        let (qp, face) = engine
            .create_qp(QpInit {
                kind: setup.kind,
                pd,
                send_cq: cq,
                recv_cq: cq,
                srq: srq.as_ref().map(|(number, _)| *number),
                cap: setup.cap,
                sig_all: false,
                cc: setup.cc.map(|make| make()),
            })
            .unwrap();
        let region = Region::alloc(REGION).unwrap();
        let access = Access::REMOTE | Access::MW_BIND;
        let mr = engine.register(pd, Arc::clone(&region), IovaChoice::Allocate, access).unwrap();
        Self {
            engine,
            now: START,
            qp,
            face,
            pd,
            cq,
            cqs,
            srq,
            region,
            mr,
            notified: 0,
            pkey: 0xffff,
            acks: Acks::Send,
            out: Vec::new(),
            events: Vec::new(),
            ident: 0,
        }
    }

    #[track_caller]
    pub(super) fn modify(&mut self, attr: &QpAttr) {
        self.engine.modify_qp(self.now, self.qp, attr).unwrap();
        self.pump();
    }

    pub(super) fn init(&mut self, setup: &Setup) {
        let attr = QpAttr::to(QpState::Init).port(1).pkey_index(0).access(setup.access).qkey(QKEY);
        self.modify(&fitting(setup.kind, attr));
    }

    pub(super) fn rtr(&mut self, rq: u32, setup: &Setup) {
        self.modify(&fitting(
            setup.kind,
            QpAttr::to(QpState::Rtr)
                .ah(AhAttr { dgid: Gid::from(IpAddr::from(THEM)), ..AhAttr::default() })
                .path_mtu(setup.mtu)
                .dest_qpn(PEER)
                .rq_psn(rq)
                .max_dest_rd_atomic(setup.dest_rd_atomic)
                .min_rnr_timer(setup.min_rnr_timer),
        ));
    }

    pub(super) fn rts(&mut self, sq: u32, setup: &Setup) {
        self.modify(&fitting(
            setup.kind,
            QpAttr::to(QpState::Rts)
                .sq_psn(sq)
                .timeout(setup.timeout)
                .retry_cnt(setup.retry_cnt)
                .rnr_retry(setup.rnr_retry)
                .max_rd_atomic(setup.rd_atomic),
        ));
    }

    /// From now on plain ACKs are held.
    pub(super) fn hold_acks(&mut self) {
        self.acks = Acks::Hold;
    }

    /// The way from the peer to us.
    pub(super) fn path(&self) -> Path {
        Path {
            src: THEM.into(),
            dst: US.into(),
            src_port: 0xc001,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            scope_id: 0,
        }
    }

    /// A packet of the peer arrives; what it causes to leave is kept for [`expect`](Self::expect).
    pub(super) fn recv(&mut self, packet: In) {
        self.take(&packet);
        self.pump();
    }

    /// Packets that arrive in one go: the engine sends nothing in between.
    pub(super) fn recv_all(&mut self, packets: impl IntoIterator<Item = In>) {
        for packet in packets {
            self.take(&packet);
        }
        self.pump();
    }

    fn take(&mut self, packet: &In) {
        self.ident = self.ident.wrapping_add(1);
        let path = self.path();
        let bytes = packet.bytes(self.face.qpn(), &path, self.ident);
        self.datagram(&path, self.ident, &bytes);
    }

    /// The same, marked by a switch.
    pub(super) fn recv_marked(&mut self, packet: In) {
        self.ident = self.ident.wrapping_add(1);
        let path = Path { traffic_class: Ecn::Ce as u8, ..self.path() };
        let bytes = packet.bytes(self.face.qpn(), &path, self.ident);
        self.datagram(&path, self.ident, &bytes);
        self.pump();
    }

    /// Any bytes arrive, along any path.
    pub(super) fn datagram(&mut self, path: &Path, ident: u16, bytes: &[u8]) {
        let meta = RxMeta { path: *path, ident: Some(ident), df: Some(true), gro_index: 0 };
        self.engine.handle_datagram(self.now, &meta, bytes);
    }

    pub(super) fn pump(&mut self) {
        let mut buf = vec![0; 1 << 16];
        while let Some((t, owner)) = self.engine.poll_transmit(self.now, self.acks, &mut buf) {
            assert_eq!(owner, self.qp.as_u64());
            assert_eq!(t.segment_size, None);
            assert_eq!(t.path.src, IpAddr::from(US));
            let ip = IpFields::new(t.path.src, t.path.dst, t.ident, true, t.path.src_port).unwrap();
            assert!(icrc::check(&ip, &buf[..t.len]), "wrong ICRC");
            let packet = Packet::parse(&buf[..t.len]).expect("what we send can be parsed");
            check_form(&packet, self.pkey);
            match packet.deth() {
                None => {
                    assert_eq!(t.path.dst, IpAddr::from(THEM));
                    assert_eq!(packet.dest_qp(), Qpn::new(PEER));
                }
                Some(deth) => assert_eq!(deth.src_qp, self.face.qpn()),
            }
            self.out.push(Out {
                class: t.path.traffic_class,
                at: self.now - START,
                to: (t.path.dst, packet.dest_qp().raw()),
                port: t.path.src_port,
                line: line(&packet),
                payload: packet.payload().to_vec(),
            });
        }
        while let Some(event) = self.engine.poll_event() {
            match event {
                Event::Async(e) => self.events.push(e),
                Event::Completions { notify, .. } => self.notified += usize::from(notify),
            }
        }
    }

    /// What has left since the last time anybody asked.
    pub(super) fn sent(&mut self) -> Vec<Out> {
        std::mem::take(&mut self.out)
    }

    /// Payload of everything that has left since the last time anybody asked for it all.
    pub(super) fn out_payload(&self) -> Vec<u8> {
        self.out.iter().flat_map(|out| out.payload.iter().copied()).collect()
    }

    /// Exactly these lines have left since the last time anybody asked.
    #[track_caller]
    pub(super) fn expect(&mut self, lines: &[&str]) {
        let sent: Vec<String> = self.sent().into_iter().map(|out| out.line).collect();
        assert_eq!(sent, lines);
    }

    #[track_caller]
    pub(super) fn silent(&mut self) {
        self.expect(&[]);
    }

    /// Lets time pass; timers fire when they are due.
    pub(super) fn wait(&mut self, d: Duration) {
        let end = self.now + d;
        while let Some(next) = self.engine.poll_timeout().filter(|&t| t <= end) {
            self.now = self.now.max(next);
            while self.engine.handle_timeout(self.now, 16) {}
            self.pump();
        }
        self.now = end;
    }

    pub(super) fn wait_us(&mut self, us: u64) {
        self.wait(Duration::from_micros(us));
    }

    /// Address of byte `at` of our region, as peers say it.
    pub(super) fn va(&self, at: usize) -> u64 {
        self.mr.iova + at as u64
    }

    pub(super) fn rkey(&self) -> Rkey {
        self.mr.rkey
    }

    pub(super) fn sge(&self, at: usize, len: usize) -> Sge {
        Sge { addr: self.va(at), length: u32::try_from(len).unwrap(), lkey: self.mr.lkey }
    }

    /// A signaled request to the peer's memory at [`FAR`].
    pub(super) fn wqe(op: SendOp, wr_id: u64) -> SendWqe {
        let (remote_addr, rkey) = (FAR.0, Rkey(FAR.1));
        SendWqe { wr_id, op, flags: SendFlags::SIGNALED, remote_addr, rkey, ..SendWqe::default() }
    }

    #[track_caller]
    pub(super) fn post_wqe(&mut self, wqe: SendWqe, local: &[Sge]) {
        let mut sq = self.face.sq.lock();
        sq.stage(wqe, local.iter().copied()).unwrap();
        sq.publish();
        drop(sq);
        self.engine.handle_doorbell(self.now, self.qp);
        self.pump();
    }

    /// Posts a signaled request with `len` bytes from, or to, the start of our region.
    #[track_caller]
    pub(super) fn post(&mut self, op: SendOp, wr_id: u64, len: usize) {
        let sge = self.sge(0, len);
        self.post_wqe(Self::wqe(op, wr_id), &[sge]);
    }

    #[track_caller]
    pub(super) fn bind(&mut self, wr_id: u64, flags: SendFlags, bind: &BindWqe) {
        let mut sq = self.face.sq.lock();
        sq.stage_bind(wr_id, flags | SendFlags::SIGNALED, bind).unwrap();
        sq.publish();
        drop(sq);
        self.engine.handle_doorbell(self.now, self.qp);
        self.pump();
    }

    /// A window of type 2 on part of our region, allocated and bound by a request.
    #[track_caller]
    pub(super) fn window(&mut self, at: usize, len: usize, access: Access) -> Rkey {
        let mw = self.engine.alloc_mw(self.pd, MwKind::Type2).unwrap();
        let bind = BindWqe {
            mw,
            new_rkey: Rkey(mw.0 ^ 0x55),
            mr: self.mr.lkey,
            addr: self.va(at),
            len: len as u64,
            access,
            kind: MwKind::Type2,
        };
        self.bind(77, SendFlags::empty(), &bind);
        assert_eq!(self.results(), [(77, WcStatus::Success)]);
        bind.new_rkey
    }

    /// Posts a receive of `len` bytes at `at` of our region.
    #[track_caller]
    pub(super) fn post_recv(&mut self, wr_id: u64, at: usize, len: usize) {
        let sge = self.sge(at, len);
        self.post_recv_sge(wr_id, &[sge]);
    }

    #[track_caller]
    pub(super) fn post_recv_sge(&mut self, wr_id: u64, sges: &[Sge]) {
        let mut rq = match &self.srq {
            Some((_, queue)) => queue.lock(),
            None => self.face.rq.lock(),
        };
        rq.stage(wr_id, sges.iter().copied()).unwrap();
        rq.publish();
        drop(rq);
        if self.face.state() == QpState::Err {
            self.engine.handle_doorbell(self.now, self.qp);
        }
        self.pump();
    }

    pub(super) fn completions(&mut self) -> Vec<Cqe> {
        let mut out = Vec::new();
        self.cqs.poll(usize::MAX, |cqe| out.push(*cqe));
        out
    }

    /// (wr_id, status) of what has completed since the last time anybody asked.
    pub(super) fn results(&mut self) -> Vec<(u64, WcStatus)> {
        let status = |c: &Cqe| WcStatus::from_raw(c.status.into());
        self.completions().iter().map(|c| (c.wr_id, status(c))).collect()
    }

    /// Events since the last time anybody asked.
    pub(super) fn events(&mut self) -> Vec<AsyncEvent> {
        std::mem::take(&mut self.events)
    }

    pub(super) fn counter(&self, c: Counter) -> u64 {
        self.engine.counters().get(c)
    }

    pub(super) fn state(&self) -> QpState {
        self.face.state()
    }

    pub(super) fn qpn(&self) -> u32 {
        self.face.qpn().raw()
    }

    /// The queue pair itself.
    pub(super) fn inside(&mut self) -> &Qp {
        self.engine.qps.get(self.qp).unwrap()
    }

    /// Fills part of our region with the usual pattern.
    pub(super) fn fill(&self, at: usize, len: usize) -> Vec<u8> {
        let bytes = pattern(len, 0);
        self.region.write(at, &bytes);
        bytes
    }

    pub(super) fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.region.read(at, &mut out);
        out
    }
}

/// What holds for every packet that we send.
#[track_caller]
fn check_form(packet: &Packet<'_>, pkey: u16) {
    let (b, info) = (packet.datagram(), packet.info());
    let is_cnp = info.operation == Operation::Cnp;
    assert_eq!(b[1] & 0x4f, if is_cnp { 0 } else { 0x40 }, "MigReq set, transport version 0");
    assert_eq!(packet.pkey(), Pkey(pkey), "its partition");
    assert_eq!(b[4], if is_cnp { 0x40 } else { 0 }, "FECN, BECN, reserved");
    assert!(!is_cnp || b[12..28] == [0; 16] && b.len() == 32, "16 reserved bytes");
    assert_eq!(b[8] & 0x7f, 0, "reserved");
    let end = b.len() - icrc::LEN;
    let pad = usize::from(packet.pad_count());
    assert!(b[end - pad..end].iter().all(|&b| b == 0), "pad");
    assert_eq!(b.len() % 4, 0);
    let may_solicit = info.completes_receive();
    assert!(!packet.se() || may_solicit, "solicited on {}", info.name);
    assert!(!packet.ack_req() || info.is_request(), "AckReq on {}", info.name);
    if always_asks(info.operation) {
        assert!(packet.ack_req());
    }
}

/// Whether all packets of this kind are answered, so that asking goes without saying.
fn always_asks(operation: Operation) -> bool {
    use Operation::{AtomicWrite, CompareSwap, FetchAdd, Flush, Read};
    matches!(operation, Read | FetchAdd | CompareSwap | AtomicWrite | Flush)
}

/// A packet in one line.
fn line(packet: &Packet<'_>) -> String {
    let name = packet.info().name;
    let name = name.strip_prefix("RC_").unwrap_or(name);
    let mut line = format!("{name} {}", packet.psn());
    if packet.ack_req() && !always_asks(packet.info().operation) {
        line += " A";
    }
    if packet.se() {
        line += " SE";
    }
    if let Some(Feth { sel, plt }) = packet.feth() {
        let _ = write!(line, " sel={sel} plt={plt}");
    }
    if let Some(Deth { qkey, .. }) = packet.deth() {
        let _ = write!(line, " qkey={:x}", qkey.0);
    }
    if let Some(Reth { va, rkey, dma_len }) = packet.reth() {
        let _ = write!(line, " va={va:x} rkey={:x} len={dma_len}", rkey.0);
    }
    if let Some(AtomicEth { va, rkey, swap_add, compare }) = packet.atomic_eth() {
        let _ = write!(line, " va={va:x} rkey={:x} {swap_add:x}/{compare:x}", rkey.0);
    }
    if let Some(Aeth { syndrome, msn }) = packet.aeth() {
        let _ = write!(line, " syn={:02x} msn={}", syndrome.as_u8(), msn.raw());
    }
    if let Some(AtomicAckEth { orig }) = packet.atomic_ack_eth() {
        let _ = write!(line, " orig={orig:x}");
    }
    if let Some(ImmDt(imm)) = packet.immdt() {
        let _ = write!(line, " imm={imm:08x}");
    }
    if let Some(Ieth { rkey }) = packet.ieth() {
        let _ = write!(line, " inv={:x}", rkey.0);
    }
    if packet.info().payload && !packet.payload().is_empty() {
        let _ = write!(line, " +{}", packet.payload().len());
    }
    line
}
