//! The real clock.
//!
//! *Rules.* Nothing else in the crate reads a clock. A pass reads it once and hands the result down.

use crate::time::{Instant, nanos};

/// The monotonic clock of the host, counted from the moment this value was made.
///
/// Copies share the origin, so their readings compare.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    origin: std::time::Instant,
}

impl MonotonicClock {
    /// A clock that shows zero now.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the real clock")]
    pub fn new() -> Self {
        Self { origin: std::time::Instant::now() }
    }

    /// Time since the origin. Never goes back (`CLOCK_MONOTONIC`: stands still while the host is suspended).
    pub fn now(&self) -> Instant {
        Instant::from_nanos(nanos(self.origin.elapsed()))
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
}
