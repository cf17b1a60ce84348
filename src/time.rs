//! Time as a plain number: nanoseconds since an origin that the driver chose.
//!
//! *Rules.* Nothing in this crate but `nic/clock.rs` reads a clock. Everything else is told what time it
//! is, so that a test writes time as a literal and the simulator can jump over silence.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

pub use std::time::Duration;

/// A point in time, in nanoseconds since the origin of the clock that made it.
///
/// ```
/// use softroce::time::{Duration, Instant};
/// let t = Instant::from_nanos(5_000);
/// assert_eq!(t + Duration::from_micros(2), Instant::from_nanos(7_000));
/// assert_eq!(t.saturating_since(Instant::from_nanos(9_000)), Duration::ZERO);
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The origin.
    pub const ZERO: Self = Self(0);
    /// Later than anything that happens: 584 years after the origin.
    pub const FAR_FUTURE: Self = Self(u64::MAX);

    /// The point `ns` nanoseconds after the origin.
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// This much earlier; the origin, if that would be before it.
    #[must_use]
    pub const fn earlier(self, d: Duration) -> Self {
        Self::from_nanos(self.0.saturating_sub(nanos(d)))
    }

    /// Time passed since `earlier`; zero if `earlier` is in fact later.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Nanoseconds of a duration, saturating after 584 years.
pub(crate) const fn nanos(d: Duration) -> u64 {
    let whole = d.as_secs().saturating_mul(1_000_000_000);
    whole.saturating_add(d.subsec_nanos() as u64)
}

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, d: Duration) -> Self {
        Self(self.0.saturating_add(nanos(d)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, d: Duration) {
        *self = *self + d;
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Self) -> Duration {
        self.saturating_since(earlier)
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::FAR_FUTURE {
            return f.write_str("never");
        }
        write!(f, "{}.{:03}us", self.0 / 1000, self.0 % 1000)
    }
}
