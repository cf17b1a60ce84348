//! Bytes that land late: never later than a program may rely on, and otherwise whenever they like.

use proptest::prelude::*;
use softroce::prelude::*;
use softroce::sim::{Link, Sim};

use super::{Side, connect, pair};

const LATE: Duration = Duration::from_millis(100);
const LEN: usize = 3000;

/// A connection whose second host has everything land late, memory there, and a source full of ones.
fn late(seed: u64) -> (Sim, [Side; 2], MemoryRegion, MemoryRegion) {
    let sim = Sim::new(seed);
    let [a, b] = pair(&sim);
    sim.late_placement(&b.ctx, LATE).unwrap();
    let (from, to) = (a.memory(LEN), b.memory(LEN));
    from.fill(0..LEN, 1);
    (sim, [a, b], from, to)
}

fn ones(mr: &MemoryRegion) -> usize {
    mr.to_vec(0..LEN).iter().filter(|&&b| b == 1).count()
}

#[test]
fn the_senders_completion_says_nothing() {
    let (sim, [a, _b], from, to) = late(1);
    a.done(SendWr::write(1, from.sge(..), to.remote()));
    let seen = ones(&to);
    assert!(seen < LEN, "{seen}");
    assert!(sim.now() < Duration::from_millis(1), "the packets themselves are not late");
    sim.run_for(LATE / 2);
    let later = ones(&to);
    assert!(seen < later && later < LEN, "{seen}, {later}");
    sim.run_for(LATE);
    assert_eq!(ones(&to), LEN);
}

#[test]
fn lines_land_in_any_order() {
    let mut last_first = 0;
    for seed in 0..50 {
        let (sim, [a, _b], from, to) = late(seed);
        a.done(SendWr::write(1, from.sge(..), to.remote()));
        while to.to_vec(LEN - 8..LEN) != [1; 8] {
            sim.run_for(Duration::from_millis(1));
        }
        last_first += u32::from(ones(&to) < LEN);
    }
    assert!(last_first > 30, "{last_first}");
}

/// Each thing that orders, one by one.
#[test]
fn what_a_program_may_rely_on_holds() {
    type Orders = fn(&[Side; 2], &MemoryRegion);
    let orders: [(&str, Orders); 8] = [
        ("a SEND and its receive", |[a, b], _| {
            b.qp.post_recv(RecvWr::new(1, ())).unwrap();
            a.post(SendWr::send(2, ()));
            b.received();
        }),
        ("immediate data", |[a, b], to| {
            b.qp.post_recv(RecvWr::new(1, ())).unwrap();
            a.post(SendWr::write(2, (), to.remote()).imm(1));
            b.received();
        }),
        ("a READ", |[a, _], to| a.done(SendWr::read(2, a.memory(8).sge(..), to.remote()))),
        ("an atomic", |[a, b], _| {
            let word = b.memory(8);
            a.post(SendWr::fetch_add(2, a.memory(8).sge(..), word.remote(), 5));
            while word.load(0, std::sync::atomic::Ordering::Acquire) != 5 {
                a.cq.poll(&mut []).unwrap();
                let _ = a.cq.wait(Duration::from_micros(1));
            }
        }),
        ("an ATOMIC WRITE", |[a, b], _| {
            a.done(SendWr::atomic_write(2, inline(&7u64.to_ne_bytes()), b.memory(8).remote()));
        }),
        ("a completion of the owner's own", |[_, b], _| {
            let mine = b.memory(16);
            let mw = b.pd.alloc_mw(MwType::Type2).unwrap();
            b.done(SendWr::bind_mw(3, &mw, &mine, 0..8, Access::REMOTE_READ));
        }),
        ("modify", |[_, b], _| b.qp.modify(&QpAttr::to(QpState::Err)).unwrap()),
        ("deregistration of anything", |[_, b], _| drop(b.memory(8))),
    ];
    for (name, order) in orders {
        for seed in 0..5 {
            let (_sim, sides, from, to) = late(seed);
            sides[0].done(SendWr::write(1, from.sge(..), to.remote()));
            assert!(ones(&to) < LEN, "{name}");
            order(&sides, &to);
            assert_eq!(ones(&to), LEN, "{name}, seed {seed}");
        }
    }
}

#[test]
fn a_read_brings_what_a_write_before_it_wrote() {
    for seed in 0..20 {
        let (_sim, [a, _b], from, to) = late(seed);
        let back = a.memory(LEN);
        a.post(SendWr::write(1, from.sge(..), to.remote()).unsignaled());
        a.done(SendWr::read(2, back.sge(..), to.remote()));
        assert_eq!(ones(&back), LEN);
    }
}

#[test]
fn answers_to_a_read_are_there_with_its_completion_and_not_before() {
    let mut torn = 0;
    for seed in 0..20 {
        let (sim, [a, b], from, to) = late(seed);
        // The late host reads; its peer lends.
        b.post(SendWr::read(1, to.sge(..), from.remote()));
        let mut partly = false;
        while b.cq.drain().is_empty() {
            sim.run_for(Duration::from_nanos(100));
            partly |= (1..LEN).contains(&ones(&to));
        }
        torn += u32::from(partly);
        assert_eq!(ones(&to), LEN);
        // Without a completion of its own, with the next one.
        to.fill(0..LEN, 0);
        b.post(SendWr::read(2, to.sge(..), from.remote()).unsignaled());
        b.done(SendWr::write(3, (), from.remote()));
        assert_eq!(ones(&to), LEN);
        drop(a);
    }
    assert!(torn == 0, "one packet and its completion come at one instant: {torn}");
}

#[test]
fn a_long_read_lands_line_by_line() {
    let sim = Sim::new(3);
    let [a, b] = pair(&sim);
    sim.late_placement(&b.ctx, Duration::from_micros(1)).unwrap();
    let (from, to) = (a.memory(1 << 16), b.memory(1 << 16));
    from.fill(0..1 << 16, 1);
    b.post(SendWr::read(1, to.sge(..), from.remote()));
    let mut holes = false;
    while b.cq.drain().is_empty() {
        sim.run_for(Duration::from_nanos(200));
        let bytes = to.to_vec(0..1 << 16);
        let last = bytes.iter().rposition(|&b| b == 1).unwrap_or(0);
        holes |= bytes[..last].contains(&0);
    }
    assert!(holes);
    assert_eq!(to.to_vec(0..1 << 16), vec![1; 1 << 16]);
}

#[test]
fn what_was_written_last_stays() {
    for seed in 0..30 {
        let (sim, [a, _b], from, to) = late(seed);
        for round in 1..=5u8 {
            from.fill(0..LEN, round);
            let at = usize::from(round) * 11;
            a.done(SendWr::write(1, from.sge(at..LEN), to.remote().at(at as u64)));
        }
        sim.settle();
        let bytes = to.to_vec(0..LEN);
        assert!(bytes[55..].iter().all(|&b| b == 5));
        assert!(bytes[44..55].iter().all(|&b| b == 4));
    }
}

#[test]
fn nothing_is_lost_with_a_window_or_touched_after_deregistration() {
    let (sim, [a, b], from, to) = late(1);
    let mw = b.pd.alloc_mw(MwType::Type2).unwrap();
    b.done(SendWr::bind_mw(1, &mw, &to, 0..LEN, Access::REMOTE_WRITE));
    let window = RemoteSlice { addr: to.remote().at(0).addr, rkey: mw.rkey() };
    a.done(SendWr::write(1, from.sge(..), window));
    assert!(ones(&to) < LEN);
    b.done(SendWr::local_inv(2, mw.rkey()));
    assert_eq!(ones(&to), LEN);
    // Its owner takes memory back in the middle of it.
    let back = b.memory(LEN);
    a.done(SendWr::write(2, from.sge(..), back.remote()));
    drop(back);
    sim.settle();
}

#[test]
fn the_same_again_and_packets_are_as_without() {
    let run = |within| {
        let sim = Sim::new(4);
        let [a, b] = sim.hosts(Link { loss: 0.05, ..Link::default() });
        let [a, b] = connect([&a, &b], QpType::Rc, &QpAttr::default());
        sim.late_placement(&b.ctx, within).unwrap();
        let (from, to) = (a.memory(1 << 16), b.memory(1 << 16));
        from.fill(0..1 << 16, 1);
        a.done(SendWr::write(1, from.sge(..), to.remote()));
        (sim.trace_hash(), to.to_vec(0..1 << 16))
    };
    let first = run(LATE);
    assert_eq!(run(LATE), first);
    let none = run(Duration::ZERO);
    assert_eq!(none.0, first.0);
    assert!(none.1 != first.1 && none.1 == vec![1; 1 << 16]);
}

#[test]
fn it_ends_when_it_is_told_to_and_outlives_a_reboot() {
    let (sim, [a, b], from, to) = late(1);
    a.done(SendWr::write(1, from.sge(..), to.remote()));
    sim.late_placement(&b.ctx, Duration::ZERO).unwrap();
    assert_eq!(ones(&to), LEN, "what was on its way lands");
    to.fill(0..LEN, 0);
    a.done(SendWr::write(2, from.sge(..), to.remote()));
    assert_eq!(ones(&to), LEN);
    sim.late_placement(&b.ctx, LATE).unwrap();
    let again = sim.reboot(&b.ctx).unwrap();
    let [x, y] = connect([&a.ctx, &again], QpType::Rc, &QpAttr::default());
    let (from, to) = (x.memory(LEN), y.memory(LEN));
    from.fill(0..LEN, 1);
    x.done(SendWr::write(1, from.sge(..), to.remote()));
    assert!(ones(&to) < LEN);
}

/// What a peer does to memory, and how its owner learns that it may look.
#[derive(Clone, Debug)]
enum Op {
    Write {
        at: usize,
        len: usize,
        byte: u8,
        signaled: bool,
    },
    /// A message: its receive orders all before it.
    Send,
    /// The peer reads all of it back.
    Read,
    Add {
        word: usize,
    },
    /// Time passes, and nothing is ordered.
    Wait(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..LEN, 0..600usize, any::<u8>(), any::<bool>()).prop_map(|(at, len, byte, signaled)| {
            Op::Write { at, len: len.min(LEN - at), byte, signaled }
        }),
        1 => Just(Op::Send),
        1 => Just(Op::Read),
        1 => (0..LEN / 8).prop_map(|word| Op::Add { word }),
        1 => (0..200_000u64).prop_map(Op::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// At every moment at which a program may rely on it, memory is what it would be if nothing were late.
    #[test]
    fn memory_follows_the_model_wherever_it_may_be_looked_at(
        seed in 0..1000u64,
        loss in prop_oneof![Just(0.0), Just(0.05)],
        ops in prop::collection::vec(op(), 1..40),
    ) {
        let sim = Sim::new(seed);
        let [a, b] = sim.hosts(Link { loss, ..Link::default() });
        let over = QpAttr::default().path_mtu(Mtu::B256);
        let [a, b] = connect([&a, &b], QpType::Rc, &over);
        sim.late_placement(&b.ctx, Duration::from_micros(100)).unwrap();
        let (from, back, to) = (a.memory(LEN), a.memory(LEN), b.memory(LEN));
        let mut model = vec![0; LEN];
        for op in ops {
            match op {
                Op::Write { at, len, byte, signaled } => {
                    from.fill(0..len, byte);
                    let wr = SendWr::write(1, from.sge(0..len), to.remote().at(at as u64));
                    a.post(if signaled { wr } else { wr.unsignaled() });
                    // The source is used again.
                    if signaled {
                        prop_assert_eq!(a.sent().1, WcStatus::Success);
                    } else {
                        a.done(SendWr::write(2, (), to.remote()));
                    }
                    model[at..at + len].fill(byte);
                }
                Op::Send => {
                    b.qp.post_recv(RecvWr::new(1, ())).unwrap();
                    a.done(SendWr::send(3, ()));
                    prop_assert_eq!(b.received().1, WcStatus::Success);
                    prop_assert_eq!(&to.to_vec(0..LEN), &model);
                }
                Op::Read => {
                    a.done(SendWr::read(4, back.sge(..), to.remote()));
                    prop_assert_eq!(&back.to_vec(0..LEN), &model);
                }
                Op::Add { word } => {
                    let (at, result) = (word * 8, a.memory(8));
                    let target = to.remote().at(at as u64);
                    a.done(SendWr::fetch_add(5, result.sge(..), target, 1));
                    let before = u64::from_ne_bytes(model[at..at + 8].try_into().unwrap());
                    prop_assert_eq!(result.to_vec(0..8), before.to_ne_bytes());
                    model[at..at + 8].copy_from_slice(&before.wrapping_add(1).to_ne_bytes());
                    prop_assert_eq!(&to.to_vec(0..LEN), &model);
                }
                Op::Wait(ns) => sim.run_for(Duration::from_nanos(ns)),
            }
        }
        sim.run_for(Duration::from_millis(1));
        prop_assert_eq!(to.to_vec(0..LEN), model);
    }
}
