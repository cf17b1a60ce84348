//! Rows change nothing: what leaves is what would leave packet by packet, and what comes in merged has the effect that
//! it has packet by packet.

#![expect(clippy::cast_possible_truncation, reason = "the numbers are small")]

use rand_chacha::ChaCha8Rng;

use super::pair::{Pair, Setup};
use crate::engine::Acks;
use crate::engine::counters::Counter as C;
use crate::engine::event::Event;
use crate::engine::qp::attr::{QpAttr, QpState};
use crate::mem::Sge;
use crate::net::{Ident, RxMeta, Transmit};
use crate::queue::{Cqe, SendFlags, SendOp, SendWqe};
use crate::seed::{Seeds, below};
use crate::wire::icrc::{self, IpFields};
use crate::wire::num::Lkey;

const SOURCE: usize = 0;
const SINK: usize = 100_000;
const RECEIVES: usize = 300_000;
/// Longest message.
const LONGEST: usize = 3000;

/// Two pairs that differ in one thing.
struct Twins([Pair; 2]);

impl Twins {
    fn new(setups: [&Setup; 2]) -> Self {
        let twins = Self(setups.map(Pair::new));
        for pair in &twins.0 {
            for side in &pair.sides {
                let bytes: Vec<u8> = (0..50_000_u32).map(|i| (i * 7 + i / 251) as u8).collect();
                side.region.write(SOURCE, &bytes);
            }
        }
        twins
    }

    /// Both do the same.
    fn each<R>(&mut self, f: impl FnMut(&mut Pair) -> R) -> [R; 2] {
        self.0.each_mut().map(f)
    }

    /// Posts up to `n` requests, most of them like the one before.
    fn post(&mut self, rng: &mut ChaCha8Rng, side: usize, qp: usize, n: u64) {
        const OPS: [SendOp; 8] = {
            use SendOp::{FetchAdd, Read, Send, SendImm, Write, WriteImm};
            [Send, Send, Send, SendImm, Write, WriteImm, Read, FetchAdd]
        };
        let mut what = (SendOp::Send, 64, SendFlags::empty());
        for id in 0..below(rng, n) + 1 {
            if below(rng, 6) == 0 {
                let op = OPS[below(rng, 8) as usize];
                let len = [0, 1, 8, 64, 64, 100, 1024, LONGEST][below(rng, 8) as usize];
                let flags = SendFlags::from_bits_truncate(below(rng, 16) as u8);
                what = (op, len, flags);
            }
            let (op, len, mut flags) = what;
            let is_send = matches!(op, SendOp::Send | SendOp::SendImm);
            flags.set(SendFlags::INLINE, len <= 64 && is_send && flags.contains(SendFlags::INLINE));
            flags.set(SendFlags::SIGNALED, below(rng, 3) == 0);
            let len = if op == SendOp::FetchAdd { 8 } else { len };
            let at = below(rng, 2000) as usize;
            let dead = below(rng, 300) == 0;
            self.each(|pair| {
                let wqe = SendWqe { flags, imm_or_inv: at as u32, ..pair.wqe(side, op, id, SINK) };
                let mut sge = pair.sge(side, SOURCE + at, len);
                if op == SendOp::Read || op == SendOp::FetchAdd {
                    sge = pair.sge(side, SINK + 8 * at, len);
                }
                if dead {
                    sge.lkey = Lkey(sge.lkey.0 ^ 0x100);
                }
                stage(pair, side, qp, wqe, sge);
            });
        }
        self.each(|pair| {
            let s = &mut pair.sides[side];
            s.engine.handle_doorbell(pair.now, s.qps[qp].0);
        });
    }

    /// Posts receives, sometimes too few of them.
    fn post_receives(&mut self, rng: &mut ChaCha8Rng, side: usize, qp: usize) {
        for _ in 0..below(rng, 100) {
            let len = if below(rng, 200) == 0 { 32 } else { LONGEST };
            let at = RECEIVES + below(rng, 2000) as usize;
            self.each(|pair| {
                let sge = pair.sge(side, at, len);
                let mut rq = pair.sides[side].qps[qp].1.rq.lock();
                // Full is full for both.
                let _ = rq.stage(at as u64, [sge]);
                rq.publish();
            });
        }
    }

    /// Side 0 starts nothing new, or goes on.
    fn drain_or_go_on(&mut self, rng: &mut ChaCha8Rng) {
        let to = if below(rng, 2) == 0 { QpState::Sqd } else { QpState::Rts };
        self.each(|pair| {
            let s = &mut pair.sides[0];
            // From ERR there is no way to either, for both.
            let _ = s.engine.modify_qp(pair.now, s.qp, &QpAttr::to(to));
        });
    }

    /// What one side has to send.
    fn transmissions(&mut self, side: usize) -> [Vec<(Transmit, Vec<u8>)>; 2] {
        self.each(|pair| {
            let mut buf = vec![0; 1 << 16];
            let s = &mut pair.sides[side];
            let mut all = Vec::new();
            while let Some((t, _)) = s.engine.poll_transmit(pair.now, Acks::Send, &mut buf) {
                all.push((t, buf[..t.len].to_vec()));
            }
            while let Some(event) = s.engine.poll_event() {
                if let Event::Async(e) = event {
                    s.events.push(e);
                }
            }
            all
        })
    }

    /// Lets time pass until something is due. `false`: nothing ever is.
    fn pass_time(&mut self) -> bool {
        self.each(|pair| {
            let next = pair.sides.iter().filter_map(|s| s.engine.poll_timeout()).min();
            let Some(next) = next else { return false };
            pair.now = pair.now.max(next);
            for side in &mut pair.sides {
                while side.engine.handle_timeout(pair.now, 16) {}
            }
            true
        })[0]
    }

    /// Everything that can be seen of both.
    fn assert_same(&mut self, seed: u64) {
        for side in 0..2 {
            let [a, b]: [Vec<Cqe>; 2] = self.each(|pair| pair.completions(side));
            assert_eq!(a, b, "completions of side {side}, seed {seed}");
            let [a, b] = self.each(|pair| {
                let mut bytes = vec![0; 400_000];
                pair.sides[side].region.read(0, &mut bytes);
                bytes
            });
            assert!(a == b, "memory of side {side}, seed {seed}");
            let [a, b] = self.each(|pair| format!("{:?}", pair.sides[side].engine.counters()));
            assert_eq!(a, b, "counters of side {side}, seed {seed}");
            let [a, b] = self.each(|pair| {
                let s = &mut pair.sides[side];
                let qps = s.qps.iter().map(|(qp, _)| format!("{:?}", s.engine.qps.get(*qp)));
                (qps.collect::<Vec<_>>(), std::mem::take(&mut s.events))
            });
            assert_eq!(a, b, "state of side {side}, seed {seed}");
        }
    }
}

fn stage(pair: &mut Pair, side: usize, qp: usize, wqe: SendWqe, sge: Sge) {
    let s = &pair.sides[side];
    let mut sq = s.qps[qp].1.sq.lock();
    // Full is full for both.
    if wqe.flags.contains(SendFlags::INLINE) {
        let mut bytes = vec![0; sge.length as usize];
        s.region.read((sge.addr - s.mr.iova) as usize, &mut bytes);
        let _ = sq.stage_inline(wqe, [&bytes[..]]);
    } else {
        let _ = sq.stage(wqe, [sge]);
    }
    sq.publish();
}

/// Each packet, as it arrives where identifications are seen.
fn packets(all: &[(Transmit, Vec<u8>)]) -> Vec<(RxMeta, Vec<u8>)> {
    let of = |(t, bytes): &(Transmit, Vec<u8>)| {
        let size = t.segment_size.map_or(t.len, usize::from);
        let v6 = t.path.dst.is_ipv6();
        let meta = |k| RxMeta {
            path: t.path,
            ident: Some(if v6 { 0 } else { t.ident.wrapping_add(k) }),
            df: Some(true),
            gro_index: 0,
        };
        let all = (0..).zip(bytes.chunks(size)).map(|(k, bytes)| (meta(k), bytes.to_vec()));
        all.collect::<Vec<_>>()
    };
    all.iter().flat_map(of).collect()
}

#[test]
fn what_leaves_in_a_row_is_what_leaves_one_by_one() {
    let mut longest = 0;
    for seed in 0..150 {
        let mut rng: ChaCha8Rng = Seeds::new(seed).derive("rows out", 0).rng();
        let in_rows = setup(seed);
        let mut twins = Twins::new([&in_rows, &Setup { gso: 1, ..in_rows.clone() }]);
        for _ in 0..4 {
            twins.post(&mut rng, 0, 0, 100);
            twins.post_receives(&mut rng, 1, 0);
            for side in [0, 1, 0, 1] {
                if seed % 5 == 3 {
                    twins.drain_or_go_on(&mut rng);
                }
                let [rows, single] = twins.transmissions(side);
                longest = longest.max(rows.iter().map(|(t, _)| t.segments()).max().unwrap_or(0));
                let (rows, single) = (packets(&rows), packets(&single));
                assert_eq!(rows, single, "seed {seed}");
                let lost = below(&mut rng, 200) as usize;
                for (_, (meta, bytes)) in rows.iter().enumerate().filter(|&(k, _)| k != lost) {
                    twins.each(|pair| {
                        let now = pair.now;
                        pair.sides[1 - side].engine.handle_datagram(now, meta, bytes);
                    });
                }
            }
            twins.pass_time();
        }
        twins.assert_same(seed);
    }
    assert!(longest >= 32, "the longest row had {longest} packets");
}

#[test]
fn what_comes_in_a_row_does_what_it_does_one_by_one() {
    let mut recovered = 0;
    for seed in 0..150 {
        let mut rng: ChaCha8Rng = Seeds::new(seed).derive("rows in", 0).rng();
        let setup = Setup { ident: Ident::ZeroThenIndex, ..setup(seed) };
        let mut twins = Twins::new([&setup; 2]);
        twins.each(|pair| pair.add_qp(&setup));
        for round in 0..60 {
            let qp = below(&mut rng, 2) as usize;
            if round % 10 == 0 {
                twins.post(&mut rng, 0, qp, 100);
                twins.post(&mut rng, 1, 1 - qp, 20);
            }
            for side in 0..2 {
                if below(&mut rng, 2) == 0 {
                    twins.post_receives(&mut rng, side, qp);
                }
                let [all, same] = twins.transmissions(1 - side);
                assert!(all == same, "what side {} sends, seed {seed}, round {round}", 1 - side);
                for (t, mut bytes) in all {
                    let size = t.segment_size.map_or(t.len, usize::from);
                    if seed % 5 == 2 {
                        number_all_0(&t, &mut bytes, size);
                    }
                    spoil(&mut rng, &mut bytes, size);
                    let mut meta = RxMeta { path: t.path, ident: None, df: None, gro_index: 0 };
                    if below(&mut rng, 50) == 0 {
                        meta.path.traffic_class |= 3;
                    }
                    let now = twins.0[0].now;
                    let [merged, apart] = &mut twins.0;
                    merged.sides[side].engine.handle_merged(now, &meta, &bytes, size);
                    for (datagram, gro_index) in bytes.chunks(size).zip(0..) {
                        let meta = RxMeta { gro_index, ..meta };
                        apart.sides[side].engine.handle_datagram(now, &meta, datagram);
                    }
                }
            }
            if below(&mut rng, 2) == 0 {
                twins.pass_time();
            }
        }
        recovered += twins.0[0].sides[1].engine.counters().get(C::OutOfSequence);
        twins.assert_same(seed);
    }
    assert!(recovered > 100, "{recovered} packets came after a gap");
}

/// What a seed is run with: near the end of the PSNs, over IPv6, and neither.
fn setup(seed: u64) -> Setup {
    let psn = if seed.is_multiple_of(3) { 0xff_ffd0 } else { 0x1000 };
    Setup { psn, v6: seed % 4 == 1, ..Setup::default() }
}

/// Seals datagrams again, as from a host that sends each by itself.
fn number_all_0(t: &Transmit, bytes: &mut [u8], size: usize) {
    let ip = IpFields::new(t.path.src, t.path.dst, 0, true, t.path.src_port).unwrap();
    for datagram in bytes.chunks_mut(size) {
        let (sealed, last) = datagram.split_last_chunk_mut::<{ icrc::LEN }>().unwrap();
        *last = icrc::compute(&ip, sealed).to_le_bytes();
    }
}

/// What a network may do to some of the datagrams of a buffer.
fn spoil(rng: &mut ChaCha8Rng, bytes: &mut Vec<u8>, size: usize) {
    let many = bytes.len() / size;
    let at = |rng: &mut ChaCha8Rng| below(rng, many.max(1) as u64) as usize * size;
    match below(rng, 12) {
        // A bit.
        0 => {
            let at = below(rng, bytes.len() as u64) as usize;
            bytes[at] ^= 1 << below(rng, 8);
        }
        // Two change places: neither is numbered as it was.
        1 if many > 1 => {
            let (a, b) = (at(rng), at(rng));
            for i in 0..size {
                bytes.swap(a + i, b + i);
            }
        }
        // One is lost, and those behind it move up.
        2 if many > 1 => {
            let at = at(rng);
            bytes.drain(at..at + size);
        }
        // One comes twice.
        3 => {
            let at = at(rng);
            let copy = bytes[at..(at + size).min(bytes.len())].to_vec();
            if copy.len() == size && bytes.len() < 50_000 {
                bytes.splice(at..at, copy);
            }
        }
        // The end is missing.
        4 => bytes.truncate(1 + below(rng, bytes.len() as u64) as usize),
        _ => {}
    }
}
