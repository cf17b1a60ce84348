//! Time inside the network: to the picosecond.
//!
//! A packet of 1106 bytes takes 221.2 ns at 40 Gbit/s. Lines that are rounded to whole nanoseconds keep their rate, but not
//! the order of packets that come by two lines at once, and which of two is first decides who is paused. Hosts
//! live in nanoseconds: what happens within one is there at its end.

use std::ops::Add;

use crate::time::{Duration, Instant, nanos};

const PS_PER_NS: u64 = 1000;

/// A moment of the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment {
    ns: u64,
    /// Below 1000.
    ps: u16,
}

impl Moment {
    pub(super) const ZERO: Self = Self { ns: 0, ps: 0 };

    pub(super) const fn parts(self) -> (u64, u16) {
        (self.ns, self.ps)
    }

    pub(super) const fn from_parts((ns, ps): (u64, u16)) -> Self {
        Self { ns, ps }
    }

    /// The first whole nanosecond that is not before it.
    pub(super) const fn ceil(self) -> Instant {
        Instant::from_nanos(self.ns.saturating_add(if self.ps > 0 { 1 } else { 0 }))
    }

    /// So many picoseconds later.
    pub(super) fn plus_ps(self, ps: u64) -> Self {
        let sum = u64::from(self.ps) + ps % PS_PER_NS;
        let ns = self.ns.saturating_add(ps / PS_PER_NS).saturating_add(sum / PS_PER_NS);
        let ps = u16::try_from(sum % PS_PER_NS).expect("a remainder below 1000");
        Self { ns, ps }
    }

    pub(super) const fn plus_ns(self, ns: u64) -> Self {
        Self { ns: self.ns.saturating_add(ns), ps: self.ps }
    }
}

impl From<Instant> for Moment {
    fn from(at: Instant) -> Self {
        Self { ns: at.as_nanos(), ps: 0 }
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, d: Duration) -> Self {
        self.plus_ns(nanos(d))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_nanosecond_add_up() {
        let at = Moment::from(Instant::from_nanos(7)).plus_ps(221_200).plus_ps(221_900);
        assert_eq!((at.parts(), at.ceil()), ((450, 100), Instant::from_nanos(451)));
        let whole = at.plus_ps(900);
        assert_eq!((whole.parts(), whole.ceil()), ((451, 0), Instant::from_nanos(451)));
        assert!(at < whole && at + Duration::from_nanos(1) > whole);
        let end = Moment::from(Instant::FAR_FUTURE).plus_ps(u64::MAX);
        assert_eq!(end.ceil(), Instant::FAR_FUTURE);
    }
}
