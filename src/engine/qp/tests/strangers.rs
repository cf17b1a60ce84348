//! Anything that may arrive at queue pairs that answer nobody: nothing panics, nothing outside of what was
//! granted changes, every packet is counted, and afterwards a good message arrives as ever.

use proptest::prelude::*;

use super::script::{In, RQ, Script};
use crate::engine::counters::Counter as C;
use crate::engine::qp::attr::{QpState, QpType};
use crate::engine::tests::pair::{QKEY, Setup};
use crate::mem::{Access, IovaChoice, Region};
use crate::net::Path;
use crate::wire::Opcode;
use crate::wire::num::{Gid, Mtu, Qpn, Rkey};

/// What receives may fill, and what WRITEs may.
const INBOX: usize = 4096;
const LENT: usize = 2048;
const CANARY: u8 = 0xc5;

#[derive(Clone, Debug)]
struct Forged {
    opcode: u8,
    psn: i8,
    payload: u16,
    dma_len: u16,
    address: i16,
    key: u8,
    qkey: u8,
    to: u8,
    pad: u8,
    flip: Option<u16>,
}

fn forged() -> impl Strategy<Value = Forged> {
    // SEND and WRITE of UC, then of UD, then anything.
    let opcode = prop_oneof![8 => 0x20u8..0x2c, 4 => 0x64u8..0x66, 1 => any::<u8>()];
    let psn = prop_oneof![4 => Just(0i8), 1 => -3i8..4];
    let payload = prop_oneof![3 => Just(256u16), 2 => 0u16..300, 1 => 0u16..5000];
    let numbers = (opcode, psn, payload, 0u16..3000, -300i16..2400);
    let rest = (0u8..8, 0u8..4, 0u8..6, 0u8..8, proptest::option::weighted(0.05, any::<u16>()));
    (numbers, rest).prop_map(
        |((opcode, psn, payload, dma_len, address), (key, qkey, to, pad, flip))| Forged {
            opcode,
            psn,
            payload,
            dma_len,
            address,
            key,
            qkey,
            to,
            pad,
            flip,
        },
    )
}

fn attack(kind: QpType, packets: &[Forged]) {
    let mut s = Script::with(&Setup { kind, mtu: Mtu::B256, ..Setup::default() });
    s.region.fill(0..s.region.len(), CANARY);
    let lent = Region::alloc(LENT).unwrap();
    let mr = s.engine.register(
        s.pd,
        lent,
        IovaChoice::Allocate,
        Access::REMOTE_WRITE | Access::LOCAL_WRITE,
    );
    let mr = mr.unwrap();
    let group = [239, 0, 0, 1];
    if kind == QpType::Ud {
        s.engine.attach_mcast(s.qp, Gid::from(std::net::IpAddr::from(group))).unwrap();
    }
    for (sent, p) in (1..).zip(packets) {
        while s.face.rq.lock().free() > 120 {
            s.post_recv(1, 0, INBOX / 2);
        }
        let opcode = Opcode::from_u8(p.opcode).unwrap_or(Opcode::RC_ACK);
        let expected = s.engine.query_qp(s.qp).unwrap().rq_psn.unwrap_or(0);
        let payload = if opcode.info().payload { usize::from(p.payload) } else { 0 };
        // Mostly a key and a length that fit.
        let rkey = if p.key > 1 { mr.rkey } else { Rkey(mr.rkey.0 ^ 0x100) };
        let dma_len = if p.key > 3 { payload } else { p.dma_len.into() };
        let va = mr.iova.wrapping_add_signed(if p.key > 2 { 0 } else { p.address.into() });
        let qkey = if p.qkey > 0 { QKEY } else { 1 };
        let mut packet = In::of(opcode, expected.wrapping_add_signed(p.psn.into()))
            .reth(va, rkey, dma_len)
            .deth(qkey, 9)
            .imm(7)
            .len(payload);
        if p.pad < 4 {
            packet = packet.pad(p.pad);
        }
        let (dest, dst) = match p.to {
            0 => (Qpn::MULTICAST, group),
            1 => (Qpn::MULTICAST, [239, 0, 0, 2]),
            _ => (s.face.qpn(), [10, 0, 0, 1]),
        };
        let path = Path { dst: dst.into(), ..s.path() };
        let mut bytes = packet.bytes(dest, &path, 3);
        if let Some(flip) = p.flip {
            let bit = usize::from(flip) % (8 * bytes.len());
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        s.datagram(&path, 3, &bytes);
        s.pump();
        s.silent();
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
        assert_eq!(reasons.map(|c| s.counter(c)).iter().sum::<u64>(), sent, "{p:?}");
        assert_eq!(s.state(), QpState::Rts);
        assert!(s.results().iter().all(|&(_, status)| status as u8 == 0));
    }
    let behind = s.bytes(INBOX / 2, s.region.len() - INBOX / 2);
    assert!(behind.iter().all(|&b| b == CANARY), "bytes that were not granted have changed");
    let good = match kind {
        QpType::Ud => In::of(Opcode::from_u8(0x64).unwrap(), 0).deth(QKEY, 9),
        _ => In::of(Opcode::from_u8(0x24).unwrap(), RQ),
    };
    s.post_recv(2, 0, 64);
    s.recv(good.data(b"good"));
    assert_eq!(s.results().len(), 1);
}

proptest! {
    #[test]
    fn at_an_unreliable_connection(packets in prop::collection::vec(forged(), 1..60)) {
        attack(QpType::Uc, &packets);
    }

    #[test]
    fn at_a_datagram_queue_pair(packets in prop::collection::vec(forged(), 1..60)) {
        attack(QpType::Ud, &packets);
    }
}
