//! A peer that sends anything: nothing panics, nothing outside of what was granted changes, nobody else
//! is disturbed, and every packet is counted.

use proptest::prelude::*;
use rand_core::Rng;

use super::script::{In, PEER, REGION, RQ, SQ, Script, pkt};
use crate::engine::counters::Counter as C;
use crate::engine::qp::attr::{QpAttr, QpCap, QpState, QpType};
use crate::engine::tests::pair::Setup;
use crate::engine::{Acks, QpHandle, QpInit};
use crate::mem::{Access, IovaChoice, Region, Registered, Sge};
use crate::net::Path;
use crate::queue::SendOp;
use crate::seed::Seeds;
use crate::wire::Opcode;
use crate::wire::icrc::{self, IpFields};
use crate::wire::num::{Gid, Mtu, Qpn, Rkey};
use crate::wire::packet::Packet;
use std::collections::VecDeque;
use std::sync::Arc;

/// Byte that fills what nobody may touch.
const CANARY: u8 = 0xc5;
/// Part of the script's region that a window grants.
const WINDOW: std::ops::Range<usize> = 20_000..23_000;
/// Part of it where receives, and what we read, may arrive.
const INBOX: std::ops::Range<usize> = 40_000..48_192;

/// A target with things worth attacking, and a second queue pair that has nothing to do with it.
struct Target {
    s: Script,
    window: Rkey,
    /// Granted to the peer, all of it.
    granted: Registered,
    /// Never granted: no rights; another domain.
    private: (Arc<Region>, Registered),
    foreign: (Arc<Region>, Registered),
    bystander: QpHandle,
    sent: u64,
    last: VecDeque<(Path, Vec<u8>)>,
    setup: Setup,
}

const FRIEND: [u8; 4] = [10, 0, 0, 3];
const FRIENDS_PSN: u32 = 0x77_0000;

impl Target {
    fn new() -> Self {
        let setup = Setup { timeout: 8, mtu: Mtu::B256, dest_rd_atomic: 3, ..Setup::default() };
        let mut s = Script::with(&setup);
        s.region.fill(0..REGION, CANARY);
        let window = s.window(WINDOW.start, WINDOW.len(), Access::REMOTE - Access::LOCAL_WRITE);
        let mut region = |pd, access| {
            let region = Region::alloc(9000).unwrap();
            region.fill(0..9000, CANARY);
            let choice = IovaChoice::Allocate;
            let mr = s.engine.register(pd, region.clone(), choice, access).unwrap();
            (region, mr)
        };
        let (_, granted) = region(s.pd, Access::REMOTE);
        let private = region(s.pd, Access::LOCAL);
        let pd = s.engine.alloc_pd().unwrap();
        let choice = IovaChoice::Allocate;
        let region = Region::alloc(9000).unwrap();
        region.fill(0..9000, CANARY);
        let mr = s.engine.register(pd, region.clone(), choice, Access::REMOTE).unwrap();
        let foreign = (region, mr);
        let bystander = Self::bystander(&mut s, &setup);
        let last = VecDeque::new();
        let mut target =
            Self { s, window, granted, private, foreign, bystander, sent: 0, last, setup };
        target.stock();
        target
    }

    /// A queue pair of the same device and domain, connected to somebody else.
    fn bystander(s: &mut Script, setup: &Setup) -> QpHandle {
        let (qp, face) = s
            .engine
            .create_qp(QpInit {
                kind: QpType::Rc,
                pd: s.pd,
                send_cq: s.cq,
                recv_cq: s.cq,
                srq: None,
                cap: QpCap::default(),
                sig_all: false,
                cc: None,
            })
            .unwrap();
        let dgid = Gid::from(std::net::IpAddr::from(FRIEND));
        let up = crate::engine::tests::pair::ways_up(
            &Setup { psn: FRIENDS_PSN, ..setup.clone() },
            PEER,
            dgid,
        );
        for attr in up {
            s.engine.modify_qp(s.now, qp, &attr).unwrap();
        }
        let mut rq = face.rq.lock();
        rq.stage(4711, [s.sge(INBOX.start, 8)]).unwrap();
        rq.publish();
        qp
    }

    /// Receives, and requests that wait for their answers.
    fn stock(&mut self) {
        let s = &mut self.s;
        for id in 0..4 {
            if s.face.rq.lock().free() > 0 {
                s.post_recv(id, INBOX.start, INBOX.len());
            }
        }
        let inbox = |s: &Script, len| Sge { ..s.sge(INBOX.start, len) };
        for (op, len) in [(SendOp::Read, 600), (SendOp::FetchAdd, 8), (SendOp::Write, 300)] {
            if s.face.sq.lock().free() > 8 {
                let sge = inbox(s, len);
                s.post_wqe(Script::wqe(op, 1), &[sge]);
            }
        }
        s.sent();
    }

    /// If the attack has killed it, the owner brings it up again.
    fn revive(&mut self) {
        if self.s.state() == QpState::Err {
            assert_eq!(self.s.engine.in_flight(), (0, 0));
            self.s.modify(&QpAttr::to(QpState::Reset));
            let setup = self.setup.clone();
            self.s.init(&setup);
            self.s.rtr(RQ, &setup);
            self.s.rts(SQ, &setup);
        }
        self.s.completions();
        self.s.events();
        self.stock();
    }

    fn send(&mut self, path: &Path, ident: u16, bytes: &[u8]) {
        self.sent += 1;
        self.s.datagram(path, ident, bytes);
        self.s.pump();
        self.s.sent();
    }

    /// What must hold at any time.
    fn check(&mut self) {
        let s = &self.s;
        // Each packet was dropped for one reason, or taken.
        let reasons = [
            C::DropMalformed,
            C::DropVersion,
            C::DropUnknownOpcode,
            C::DropUnsupported,
            C::DropNoQp,
            C::DropTransport,
            C::DropState,
            C::DropAddress,
            C::BadPkeyCntr,
            C::RxIcrcEncapsulated,
            C::RcvdPkts,
        ];
        assert_eq!(reasons.map(|c| s.counter(c)).iter().sum::<u64>(), self.sent);
        assert_eq!(s.counter(C::IcrcExact), s.counter(C::RcvdPkts));
        let untouched = |what: &str, bytes: &[u8]| {
            let at = bytes.iter().position(|&b| b != CANARY);
            assert_eq!(at, None, "{what} changed");
        };
        let all = s.bytes(0, REGION);
        untouched("before the window", &all[..WINDOW.start]);
        untouched("between window and inbox", &all[WINDOW.end..INBOX.start]);
        untouched("behind the inbox", &all[INBOX.end..]);
        for (what, region) in [("private", &self.private.0), ("foreign", &self.foreign.0)] {
            let mut bytes = vec![0; region.len()];
            region.read(0, &mut bytes);
            untouched(what, &bytes);
        }
        let attr = self.s.engine.query_qp(self.bystander).unwrap();
        assert_eq!(attr.state, Some(QpState::Rts));
        assert_eq!((attr.rq_psn, attr.sq_psn), (Some(FRIENDS_PSN), Some(FRIENDS_PSN)));
    }

    /// The bystander still does its work.
    fn serves_others(&mut self) {
        let path = Path { src: FRIEND.into(), ..self.s.path() };
        let qpn = self.s.engine.qps.get(self.bystander).unwrap().qpn;
        let bytes = pkt("SEND_ONLY", FRIENDS_PSN).data(b"friendly").ask().bytes(qpn, &path, 1);
        self.s.datagram(&path, 1, &bytes);
        let mut buf = vec![0; 1 << 16];
        let (transmit, owner) =
            self.s.engine.poll_transmit(self.s.now, Acks::Send, &mut buf).unwrap();
        assert_eq!((owner, transmit.path.dst), (self.bystander.as_u64(), FRIEND.into()));
        let answer = Packet::parse(&buf[..transmit.len]).unwrap();
        assert_eq!((answer.opcode(), answer.psn().raw()), (Opcode::RC_ACK, FRIENDS_PSN));
        while self.s.engine.poll_event().is_some() {}
        let got = self.s.completions();
        assert!(got.iter().any(|c| (c.wr_id, c.status) == (4711, 0)), "{got:?}");
        assert_eq!(self.s.bytes(INBOX.start, 8), b"friendly");
    }
}

/// Something that the peer sends, or that happens meanwhile. Numbers are reduced to what is interesting.
#[derive(Clone, Debug)]
enum Step {
    Bytes(Vec<u8>),
    Packet(Forged),
    /// One of the last packets again, perhaps with a bit flipped.
    Again(u8, Option<u16>),
    /// Microseconds go by.
    Wait(u16),
}

/// A packet put together from what makes trouble.
#[derive(Clone, Debug)]
struct Forged {
    opcode: u8,
    /// Which number it counts from, and how far it is off.
    psn: (u8, i8),
    address: (u8, i16),
    key: (u8, u8),
    /// Of the RETH, and of the payload.
    len: (u8, u16),
    payload: u16,
    word: u64,
    syndrome: u8,
    bits: u8,
    pad: u8,
    dest: u8,
    /// Bits that are flipped before the ICRC is made, and after.
    flips: Vec<u16>,
    late_flip: Option<u16>,
}

impl Forged {
    fn build(&self, t: &mut Target) -> (Path, u16, Vec<u8>) {
        let s = &mut t.s;
        let op = Opcode::from_u8(self.opcode).unwrap_or(Opcode::RC_ACK);
        let attr = s.engine.query_qp(s.qp).unwrap();
        let una = s.inside().req.una_psn.raw();
        let base = match self.psn.0 % 8 {
            0..=4 if op.info().is_request() => attr.rq_psn.unwrap_or(0),
            5 => attr.sq_psn.unwrap_or(0),
            6 => 0x80_0000,
            _ => una,
        };
        // Mostly exactly what is expected: otherwise nothing interesting happens.
        let off = if self.psn.0.is_multiple_of(3) { i32::from(self.psn.1 / 8) } else { 0 };
        let psn = base.wrapping_add_signed(off);
        let (regions, edges) = (
            [t.granted.iova, s.va(WINDOW.start), t.private.1.iova, t.foreign.1.iova],
            [9000, WINDOW.len() as u64, 0, 8],
        );
        let which = usize::from(self.address.0);
        let near = i64::from(self.address.1) * i64::from(self.address.0 & 1);
        let va = match self.address.0 % 16 {
            15 => u64::MAX,
            14 => 0,
            _ => regions[which % 4] + edges[which / 4 % 4] * u64::from(self.address.0 & 1),
        }
        .wrapping_add_signed(near);
        let keys = [
            t.granted.rkey,
            t.window,
            Rkey(t.granted.rkey.0 ^ 0x100),
            t.private.1.rkey,
            t.foreign.1.rkey,
            Rkey(t.granted.lkey.0),
            Rkey(t.window.0 ^ u32::from(self.key.1)),
            Rkey(0),
        ];
        let rkey = if self.key.0.is_multiple_of(2) {
            keys[which % 2]
        } else {
            keys[usize::from(self.key.0) % 8]
        };
        let payload = match self.payload % 8 {
            0 => 0,
            1..=4 => 256,
            5 => usize::from(self.payload) % 5,
            _ => usize::from(self.payload) % 1100,
        };
        let dma_len = match self.len.0 % 8 {
            0..=2 => payload,
            3 => payload + 256,
            4 => usize::from(self.len.1) % 3000,
            5 => 0,
            6 => 1 << 31,
            _ => u32::MAX as usize - usize::from(self.len.1),
        };
        let payload = if op.info().payload { payload } else { 0 };
        let mut packet = In::of(op, psn)
            .reth(va, rkey, dma_len)
            .atomic(va, rkey, self.word, self.word >> 1)
            .inv(rkey)
            .imm(self.syndrome.into())
            .syndrome(self.syndrome)
            .orig(self.word)
            .len(payload);
        if self.bits & 1 != 0 {
            packet = packet.ask();
        }
        if self.bits & 2 != 0 {
            packet = packet.se();
        }
        if self.bits & 4 != 0 {
            packet = packet.flags();
        }
        if self.pad < 4 {
            packet = packet.pad(self.pad);
        }
        let dest = match self.dest {
            0 => s.engine.qps.get(t.bystander).unwrap().qpn,
            1 => Qpn::new(s.qpn() ^ 0x10_0000),
            2 => Qpn::new(0),
            _ => s.face.qpn(),
        };
        let mut path = s.path();
        if self.dest == 3 {
            path.src = FRIEND.into();
        }
        let mut bytes = packet.bytes(dest, &path, 5);
        if !self.flips.is_empty() {
            reseal(&path, &mut bytes, &self.flips);
        }
        if let Some(flip) = self.late_flip {
            let bit = usize::from(flip) % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        (path, 5, bytes)
    }
}

/// Flips bits, and makes the ICRC right again.
fn reseal(path: &Path, bytes: &mut Vec<u8>, flips: &[u16]) {
    let end = bytes.len() - icrc::LEN;
    for &flip in flips {
        let bit = usize::from(flip) % (end * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    bytes.truncate(end);
    let ip = IpFields::new(path.src, path.dst, 5, true, path.src_port).unwrap();
    bytes.extend(icrc::compute(&ip, bytes).to_le_bytes());
}

fn run(t: &mut Target, step: &Step) {
    match step {
        Step::Bytes(bytes) => {
            let path = t.s.path();
            t.send(&path, 5, bytes);
        }
        Step::Packet(forged) => {
            let (path, ident, bytes) = forged.build(t);
            t.send(&path, ident, &bytes);
            if t.last.len() == 16 {
                t.last.pop_front();
            }
            t.last.push_back((path, bytes));
        }
        Step::Again(which, flip) => {
            let Some((path, mut bytes)) = t.last.get(usize::from(*which % 16)).cloned() else {
                return;
            };
            if let Some(flip) = flip {
                reseal(&path, &mut bytes, &[*flip]);
            }
            t.send(&path, 5, &bytes);
        }
        Step::Wait(us) => {
            t.s.wait_us(u64::from(*us) % 3000);
            t.s.sent();
        }
    }
    t.revive();
}

fn forged() -> impl Strategy<Value = Forged> {
    // RC opcodes mostly.
    let opcode = prop_oneof![9 => 0u8..0x20, 1 => any::<u8>()];
    let dest = prop_oneof![1 => 0u8..4, 9 => Just(9u8)];
    let pad = prop_oneof![1 => 0u8..4, 9 => Just(9u8)];
    let syndrome =
        prop_oneof![2 => Just(0x1fu8), 1 => any::<u8>(), 1 => Just(0x60u8), 1 => Just(0x21u8)];
    let flips = prop_oneof![
        3 => Just(Vec::new()),
        1 => prop::collection::vec(any::<u16>(), 1..6)
    ];
    let late = prop_oneof![9 => Just(None), 1 => any::<u16>().prop_map(Some)];
    let numbers = (any::<(u8, i8)>(), any::<(u8, i16)>(), any::<(u8, u8)>(), any::<(u8, u16)>());
    let more = (any::<u16>(), any::<u64>(), any::<u8>());
    (opcode, numbers, more, syndrome, pad, dest, flips, late).prop_map(
        |(
            opcode,
            (psn, address, key, len),
            (payload, word, bits),
            syndrome,
            pad,
            dest,
            flips,
            late_flip,
        )| {
            Forged {
                opcode,
                psn,
                address,
                key,
                len,
                payload,
                word,
                syndrome,
                bits,
                pad,
                dest,
                flips,
                late_flip,
            }
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => prop::collection::vec(any::<u8>(), 0..120).prop_map(Step::Bytes),
        20 => forged().prop_map(Step::Packet),
        10 => (any::<u8>(), prop::option::of(any::<u16>())).prop_map(|(which, flip)| Step::Again(which, flip)),
        1 => any::<u16>().prop_map(Step::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn anything_a_peer_may_send(steps in prop::collection::vec(step(), 1..120)) {
        let mut t = Target::new();
        for step in &steps {
            run(&mut t, step);
        }
        t.check();
        t.serves_others();
    }
}

/// The same, longer than a shrinking test can be: what it takes to get somewhere adds up.
#[test]
fn a_siege() {
    let mut rng = Seeds::new(2026).derive("siege", 0).rng();
    let mut t = Target::new();
    let mut effects = std::collections::BTreeMap::new();
    for round in 0..60_000 {
        let mut byte = || (rng.next_u32() & 0xff) as u8;
        let forged = Forged {
            opcode: byte() & if round % 16 == 0 { 0xff } else { 0x1f },
            psn: (byte(), byte().cast_signed()),
            address: (byte(), i16::from_le_bytes([byte(), byte()]) / 64),
            key: (byte(), byte()),
            len: (byte(), u16::from_le_bytes([byte(), byte()])),
            payload: u16::from_le_bytes([byte(), byte()]),
            word: u64::from_le_bytes(std::array::from_fn(|_| byte())),
            syndrome: [0x1f, 0x1f, 0x60, 0x21, byte()][usize::from(byte() % 5)],
            bits: byte(),
            pad: byte(),
            dest: byte(),
            flips: (0..byte() / 64).map(|_| u16::from_le_bytes([byte(), byte()])).skip(1).collect(),
            late_flip: (byte() < 8).then(|| u16::from_le_bytes([byte(), byte()])),
        };
        let step = match byte() {
            0..8 => Step::Wait(2000),
            8..100 => Step::Again(15 - byte() % 4, (byte() < 80).then(|| u16::from(byte()))),
            _ => Step::Packet(forged),
        };
        run(&mut t, &step);
        if round % 1000 == 999 {
            t.check();
        }
    }
    for (c, n) in t.s.engine.counters().iter() {
        effects.insert(c.name(), n);
    }
    // It did get somewhere: everything that can happen to a packet did.
    for name in [
        "rx_write_requests",
        "rx_read_requests",
        "rx_atomic_requests",
        "rdma_recvs",
        "duplicate_send",
        "duplicate_write",
        "duplicate_read",
        "duplicate_atomic",
        "drop_replay",
        "out_of_seq_request",
        "resp_remote_access_errors",
        "req_remote_access_errors",
        "req_remote_invalid_request",
        "rcvd_seq_err",
        "rcvd_rnr_err",
        "implied_nak_seq_err",
        "local_ack_timeout_err",
        "drop_ghost_response",
        "drop_unsent_response",
        "drop_response",
        "rx_icrc_encapsulated",
        "drop_no_qp",
        "drop_unsupported",
        "drop_unknown_opcode",
        "drop_version",
        "drop_malformed",
    ] {
        assert!(effects[name] > 0, "{name}: {effects:#?}");
    }
    t.serves_others();
}
