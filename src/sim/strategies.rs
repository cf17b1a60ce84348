//! Strategies for [proptest](https://docs.rs/proptest): networks and what goes wrong with them. They shrink towards
//! fewer faults, and those towards weaker, shorter and earlier ones. With the feature `proptest`.
//!
//! ```
//! use proptest::prelude::*;
//! use softroce::prelude::*;
//! use softroce::sim::{FaultSchedule, Link, Sim, strategies};
//!
//! /// A WRITE arrives, whatever happens within ten milliseconds.
//! fn arrives(schedule: &FaultSchedule) -> Result<()> {
//!     let sim = Sim::new(1);
//!     let [a, b] = sim.hosts(Link::default());
//!     schedule.apply(&sim, &[&a, &b])?;
//!     let (pa, cq) = (a.alloc_pd()?, a.create_cq(16)?);
//!     let (pb, theirs) = (b.alloc_pd()?, b.create_cq(16)?);
//!     let (x, y) = (pa.create_qp(QpType::Rc, &cq).build()?, pb.create_qp(QpType::Rc, &theirs).build()?);
//!     x.connect(&y.endpoint())?;
//!     y.connect(&x.endpoint())?;
//!     let (src, dst) = (pa.alloc_mr(1 << 16, Access::LOCAL)?, pb.alloc_mr(1 << 16, Access::REMOTE)?);
//!     x.post_send(SendWr::write(1, src.sge(..), dst.remote()))?;
//!     cq.wait(Duration::from_secs(60))?.ok().map(drop)
//! }
//!
//! let config = ProptestConfig { cases: 20, failure_persistence: None, ..ProptestConfig::default() };
//! proptest!(config, |(schedule in strategies::schedules(2, Duration::from_millis(10), 0..6))| {
//!     prop_assert_eq!(arrives(&schedule), Ok(()));
//! });
//! ```

use std::ops::Range;

use proptest::collection::vec;
use proptest::prelude::{BoxedStrategy, Just, Strategy};
use proptest::prop_oneof;

use super::{Class, FaultSchedule, Link, NetFault, Phase};
use crate::time::{Duration, nanos};

/// A probability from 0 to `most`.
fn chances(most: f64) -> impl Strategy<Value = f64> + Clone {
    // In thousandths: a number that shrinks well, and prints short.
    (0..=1000u32).prop_map(move |n| f64::from(n) / 1000.0 * most)
}

/// A time from nothing to `most`, in microseconds.
fn times(most: Duration) -> impl Strategy<Value = Duration> + Clone {
    (0..=nanos(most) / 1000).prop_map(Duration::from_micros)
}

/// Links that lose, double, reorder or damage up to a tenth of the packets, with delays up to 50 us. The simplest is one
/// on which nothing is wrong.
pub fn links() -> impl Strategy<Value = Link> {
    let tenth = || chances(0.1);
    let delay = times(Duration::from_micros(50));
    (tenth(), tenth(), tenth(), tenth(), delay).prop_map(
        |(loss, duplicate, reorder, corrupt, delay)| {
            let delay = delay.max(Link::default().delay);
            Link { loss, duplicate, reorder, corrupt, delay, ..Link::default() }
        },
    )
}

/// Kinds of packets for which a rule is worth while.
pub fn classes() -> impl Strategy<Value = Class> {
    prop_oneof![
        Just(Class::Any),
        Just(Class::Request),
        Just(Class::Response),
        Just(Class::Ack),
        Just(Class::SequenceNak),
        Just(Class::RnrNak),
    ]
}

/// One thing that is wrong: up to a fifth of the packets, a delay of up to 100 us, one packet, or the cable.
pub fn faults() -> BoxedStrategy<NetFault> {
    let fifth = || chances(0.2);
    prop_oneof![
        3 => fifth().prop_map(NetFault::Loss),
        1 => (classes(), 1..20u64).prop_map(|(class, nth)| NetFault::Drop { class, nth }),
        1 => fifth().prop_map(NetFault::Duplicate),
        1 => fifth().prop_map(NetFault::Reorder),
        1 => fifth().prop_map(NetFault::Corrupt),
        1 => times(Duration::from_micros(100)).prop_map(NetFault::Delay),
        1 => Just(NetFault::Unplugged),
    ]
    .boxed()
}

/// Schedules of so many phases for so many hosts, over after `within`. The simplest has as few phases as there may be:
/// with `0..n` it is the one in which nothing goes wrong.
///
/// # Panics
/// No hosts.
pub fn schedules(
    hosts: usize,
    within: Duration,
    phases: Range<usize>,
) -> impl Strategy<Value = FaultSchedule> {
    assert!(hosts > 0, "a schedule is for at least one host");
    let phase = (0..hosts, times(within), times(within), faults());
    let phase = phase.prop_map(move |(host, from, lasts, fault)| {
        let lasts = lasts.min(within - from);
        Phase { host, from, lasts, fault }
    });
    vec(phase, phases).prop_map(|phases| FaultSchedule { phases })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{TestError, TestRunner};

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_simplest_is_nothing_at_all() {
        let mut runner = TestRunner::deterministic();
        for _ in 0..20 {
            let mut schedule = schedules(3, 10 * MS, 0..8).new_tree(&mut runner).unwrap();
            while schedule.simplify() {}
            assert_eq!(schedule.current(), FaultSchedule::default());
            let mut link = links().new_tree(&mut runner).unwrap();
            while link.simplify() {}
            assert_eq!(link.current(), Link::default());
        }
    }

    /// A failure that needs one phase of loss is shrunk to one phase, short and weak.
    #[test]
    fn a_failure_keeps_what_it_needs() {
        let mut runner = TestRunner::deterministic();
        let needs = |p: &Phase| matches!(p.fault, NetFault::Loss(p) if p >= 0.05) && p.host == 1;
        let found = runner.run(&schedules(2, 10 * MS, 0..8), |schedule| {
            prop_assert!(!schedule.phases.iter().any(needs));
            Ok(())
        });
        let Err(TestError::Fail(_, smallest)) = found else { panic!("{found:?}") };
        let [phase] = smallest.phases[..] else { panic!("{smallest:?}") };
        assert_eq!((phase.from, phase.lasts), (Duration::ZERO, Duration::ZERO));
        assert_eq!((phase.host, phase.fault), (1, NetFault::Loss(0.05)));
    }

    proptest! {
        #[test]
        fn schedules_make_sense_and_end_in_time(schedule in schedules(2, 10 * MS, 0..8)) {
            prop_assert!(schedule.end() <= 10 * MS);
            let sim = crate::sim::Sim::new(1);
            let [a, b] = sim.hosts(Link::default());
            prop_assert_eq!(schedule.apply(&sim, &[&a, &b]), Ok(()));
        }
    }
}
