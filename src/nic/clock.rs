//! The real clock.
//!
//! *Rules.* Nothing else in the crate reads a clock. A pass reads it once and hands the result down.

use crate::time::{Instant, nanos};

/// The monotonic clock of the host, counted from the moment this value was made.
///
/// Copies share the origin, so their readings compare.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    origin: imp::Reading,
}

impl MonotonicClock {
    /// A clock that shows zero now.
    pub fn new() -> Self {
        Self { origin: imp::read() }
    }

    /// Time since the origin. Never goes back (`CLOCK_MONOTONIC`: stands still while the host is suspended).
    pub fn now(&self) -> Instant {
        Instant::from_nanos(imp::since(self.origin))
    }
}

/// The clock itself: each pass reads it, and `std::time::Instant` is more careful with differences than is needed here.
#[cfg(all(target_os = "linux", feature = "udp"))]
mod imp {
    use nix::time::{ClockId, clock_gettime};

    /// Nanoseconds.
    pub(super) type Reading = u64;

    #[inline]
    pub(super) fn read() -> Reading {
        // It fails for clocks that do not exist only.
        clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |t| crate::time::nanos(t.into()))
    }

    #[inline]
    pub(super) fn since(origin: Reading) -> u64 {
        read().saturating_sub(origin)
    }
}

#[cfg(not(all(target_os = "linux", feature = "udp")))]
mod imp {
    pub(super) type Reading = std::time::Instant;

    #[expect(clippy::disallowed_methods, reason = "the one place that reads the real clock")]
    pub(super) fn read() -> Reading {
        Reading::now()
    }

    pub(super) fn since(origin: Reading) -> u64 {
        crate::time::nanos(origin.elapsed())
    }
}

/// The time of day, for people to read: in captures.
///
/// Read once, when this value is made, and counted on by the monotonic clock from there: later readings are
/// never earlier, and differences are true even if somebody sets the time.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    origin: Instant,
    clock: MonotonicClock,
}

impl WallClock {
    /// A clock that shows the time of the system now.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the real clock")]
    pub fn new() -> Self {
        let now = std::time::SystemTime::now();
        let since = now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self { origin: Instant::from_nanos(nanos(since)), clock: MonotonicClock::new() }
    }

    /// Time since the beginning of 1970, UTC.
    pub fn now(&self) -> Instant {
        self.origin + (self.clock.now() - Instant::ZERO)
    }
}

impl Default for WallClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Default for MonotonicClock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn copies_share_the_origin() {
        let clock = MonotonicClock::new();
        let copy = clock;
        let (a, b, c) = (clock.now(), copy.now(), clock.now());
        assert!(a <= b && b <= c, "{a:?} {b:?} {c:?}");
    }

    #[test]
    fn the_time_of_day_is_of_this_age_and_goes_on() {
        let clock = WallClock::new();
        let (a, b) = (clock.now(), clock.now());
        // Between 2020 and 2200, in seconds.
        assert!((1_577_836_800..7_258_118_400).contains(&(a.as_nanos() / 1_000_000_000)), "{a:?}");
        assert!(a <= b && b - a < crate::time::Duration::from_secs(60), "{a:?} {b:?}");
    }
}
