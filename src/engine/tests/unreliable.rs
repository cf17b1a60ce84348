//! UC and UD between two engines: every size over both families, and bad networks, where whatever arrives is
//! a message that was sent, whole.

use rand_chacha::ChaCha8Rng;

use super::pair::{Fate, Flying, Pair, QKEY, Setup, pattern};
use crate::engine::counters::Counter as C;
use crate::engine::qp::attr::{AhAttr, QpCap, QpState, QpType};
use crate::engine::status::WcStatus::Success;
use crate::engine::{Acks, EngineConfig};
use crate::queue::{SendFlags, SendOp, SendWqe};
use crate::seed::{Seeds, below};
use crate::time::Duration;
use crate::wire::grh::Grh;
use crate::wire::num::{Gid, Mtu};

fn setup(kind: QpType) -> Setup {
    let cap = QpCap { send_wr: 512, recv_wr: 512, ..QpCap::default() };
    Setup { kind, cap, mtu: Mtu::B256, ..Setup::default() }
}

/// An address handle of side 0 to side 1, and a request along it.
pub(super) fn datagram(p: &mut Pair, wr_id: u64) -> SendWqe {
    let dgid = Gid::from(p.sides[1].engine.gids()[0].ip);
    let pd = p.sides[0].pd;
    let attr = AhAttr { dgid, traffic_class: 0x6a, flow_label: 0x12345, ..AhAttr::default() };
    SendWqe {
        wr_id,
        flags: SendFlags::SIGNALED,
        dest: p.sides[0].engine.create_ah(pd, &attr).unwrap(),
        dest_qpn: p.sides[1].face.qpn().raw(),
        dest_qkey: QKEY,
        ..SendWqe::default()
    }
}

#[test]
fn messages_of_every_size_over_both_families() {
    for v6 in [false, true] {
        for len in [0, 1, 255, 256, 257, 512, 513, 70_001] {
            let mut p = Pair::new(&Setup { v6, ..setup(QpType::Uc) });
            let data = p.fill(0, 0, len, 3);
            p.post_recv(1, 7, &[p.sge(1, 5, len)]);
            p.post(0, p.wqe(0, SendOp::Send, 1, 0), &[p.sge(0, 0, len)]);
            p.post(0, p.wqe(0, SendOp::Write, 2, 200_001), &[p.sge(0, 0, len)]);
            assert_eq!(p.results(0), [(1, Success), (2, Success)], "done when they have left");
            p.run();
            let got = p.completions(1);
            assert_eq!((got.len(), got[0].wr_id, got[0].byte_len as usize), (1, 7, len));
            assert_eq!((p.bytes(1, 5, len), p.bytes(1, 200_001, len)), (data.clone(), data));
            assert!(p.names(0).is_empty(), "nothing comes back");
            p.assert_quiet();
        }
    }
}

#[test]
fn datagrams_over_both_families_and_the_header_in_front() {
    for v6 in [false, true] {
        let mut p = Pair::new(&Setup { v6, ..setup(QpType::Ud) });
        for len in [0, 1, 63, 4096] {
            let data = p.fill(0, 0, len, 3);
            p.post_recv(1, 7, &[p.sge(1, 5, 40 + len)]);
            let wqe = datagram(&mut p, 1);
            p.post(0, wqe, &[p.sge(0, 0, len)]);
            p.run();
            let got = p.completions(1);
            assert_eq!((got.len(), got[0].byte_len as usize), (1, 40 + len));
            assert_eq!(got[0].src_qpn, p.sides[0].face.qpn().raw());
            assert_eq!(p.bytes(1, 45, len), data);
            let grh = Grh::parse(&p.bytes(1, 5, 40).try_into().unwrap()).unwrap();
            let ends = [0, 1].map(|i: usize| p.sides[i].engine.gids()[0].ip);
            assert_eq!([grh.src, grh.dst], ends);
            assert_eq!((grh.traffic_class, grh.hop_limit), (0x6a, 64));
            assert_eq!(grh.flow_label, if v6 { 0x12345 } else { 0 });
            assert_eq!(p.results(0), [(1, Success)]);
        }
        p.assert_quiet();
    }
}

/// Loses, duplicates and delays one packet in fifteen each.
fn bad_network(seed: u64) -> impl FnMut(&Flying) -> Fate {
    let mut rng: ChaCha8Rng = Seeds::new(seed).derive("network", 0).rng();
    move |_| match below(&mut rng, 15) {
        0 => Fate::Drop,
        1 => Fate::Twice,
        2 => Fate::Late(Duration::from_micros(1 + below(&mut rng, 20))),
        _ => Fate::Pass,
    }
}

/// Length of message `i`: its bytes are those of the pattern with salt `i`, and its number is the immediate.
fn length(i: usize) -> usize {
    40 + i * 37 % 1500
}

const MESSAGES: usize = 200;
const SLOT: usize = 2048;

/// Sends messages over a bad network and looks at each that arrived. Gives their numbers.
fn whatever_arrives_is_whole(kind: QpType, seed: u64) -> (Pair, Vec<usize>) {
    let mut p = Pair::new(&setup(kind));
    p.rule(bad_network(seed));
    let (mut arrived, mut posted) = (Vec::new(), 0);
    let header = if kind == QpType::Ud { 40 } else { 0 };
    for i in 0..MESSAGES {
        // A ring of receives: each is looked at before its place is used again.
        while posted < arrived.len() + 100 {
            p.post_recv(1, posted as u64, &[p.sge(1, posted % 128 * SLOT, SLOT)]);
            posted += 1;
        }
        let salt = u8::try_from(i).unwrap();
        let len = if kind == QpType::Ud { length(i) % 200 } else { length(i) };
        p.fill(0, 0, len, salt);
        let base =
            if kind == QpType::Ud { datagram(&mut p, 0) } else { p.wqe(0, SendOp::Send, 0, 0) };
        let imm_or_inv = u32::try_from(i).unwrap();
        let op = SendOp::SendImm;
        p.post(
            0,
            SendWqe { op, imm_or_inv, flags: SendFlags::empty(), ..base },
            &[p.sge(0, 0, len)],
        );
        p.run_for(Duration::from_micros(3));
        collect(&mut p, header, &mut arrived);
    }
    p.run();
    collect(&mut p, header, &mut arrived);
    assert_eq!([0, 1].map(|side| p.state(side)), [QpState::Rts; 2]);
    p.assert_quiet();
    (p, arrived)
}

fn collect(p: &mut Pair, header: usize, arrived: &mut Vec<usize>) {
    for c in p.completions(1) {
        assert_eq!((c.status, c.wr_id), (0, arrived.len() as u64), "receives are used in order");
        let i = c.imm_or_inv as usize;
        let len = c.byte_len as usize - header;
        let at = arrived.len() % 128 * SLOT + header;
        let expected = if header > 0 { length(i) % 200 } else { length(i) };
        assert_eq!(len, expected, "message {i}");
        assert_eq!(p.bytes(1, at, len), pattern(len, u8::try_from(i).unwrap()), "message {i}");
        arrived.push(i);
    }
}

#[test]
fn on_a_bad_network_whole_messages_arrive_or_none() {
    let (mut given_up, mut remainders) = (0, 0);
    for seed in 0..8 {
        let (p, arrived) = whatever_arrives_is_whole(QpType::Uc, seed);
        assert!((MESSAGES / 4..MESSAGES).contains(&arrived.len()), "{}", arrived.len());
        given_up += p.counter(1, C::MessagesGivenUp);
        remainders += p.counter(1, C::DropRemainder);
    }
    assert!(given_up > 20 && remainders > 20, "{given_up} {remainders}");
}

#[test]
fn on_a_bad_network_datagrams_arrive_as_often_as_the_network_brings_them() {
    for seed in 0..4 {
        let (p, arrived) = whatever_arrives_is_whole(QpType::Ud, seed);
        assert_eq!(arrived.len() as u64, p.counter(1, C::RcvdPkts));
        assert!(arrived.len() > MESSAGES / 2);
    }
}

/// Nothing that comes back opens a window, so there is none: a program may send as fast as it can post.
#[test]
fn windows_do_not_hold_unreliable_queue_pairs_back() {
    let config: fn(&mut EngineConfig) = |c| (c.window.initial, c.window.max) = (4096, 4096);
    for kind in [QpType::Uc, QpType::Ud] {
        let mut p = Pair::new(&Setup { config, ..setup(kind) });
        p.rule(|_| Fate::Drop);
        for i in 0..100 {
            let wqe = match kind {
                QpType::Ud => datagram(&mut p, i),
                _ => p.wqe(0, SendOp::Send, i, 0),
            };
            p.post(0, wqe, &[p.sge(0, 0, 256)]);
        }
        assert_eq!(p.results(0).len(), 100, "{kind:?}");
        p.run();
        p.assert_quiet();
    }
}

/// A batch holds datagrams to one destination, and they come in the order of the queue.
#[test]
fn datagrams_to_many_destinations_leave_in_order() {
    let mut p = Pair::new(&setup(QpType::Ud));
    let pd = p.sides[0].pd;
    let first = datagram(&mut p, 0);
    let elsewhere =
        AhAttr { dgid: Gid::from(std::net::IpAddr::from([10, 0, 0, 9])), ..AhAttr::default() };
    let second = p.sides[0].engine.create_ah(pd, &elsewhere).unwrap();
    for i in 0..40 {
        let dest = if i / 5 % 2 == 0 { first.dest } else { second };
        p.stage_on(0, 0, SendWqe { wr_id: i, dest, ..first }, &[p.sge(0, 0, 100)]);
    }
    let (now, qp) = (p.now, p.sides[0].qp);
    p.sides[0].engine.handle_doorbell(now, qp);
    let mut buf = vec![0; 1 << 16];
    let mut segments = Vec::new();
    while let Some((t, _)) = p.sides[0].engine.poll_transmit(now, Acks::Send, &mut buf) {
        segments.push((t.path.dst, t.segments()));
    }
    let (here, there) = (p.sides[1].engine.gids()[0].ip, [10, 0, 0, 9].into());
    assert_eq!(segments, [(here, 5), (there, 5)].repeat(4));
    p.pump(0);
    assert_eq!(p.results(0).len(), 40);
}
