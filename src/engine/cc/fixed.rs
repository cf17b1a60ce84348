//! A rate that nothing changes.

use super::{CongestionControl, State};
use crate::time::Instant;

/// Sends at a fixed rate, or as fast as it can.
///
/// ```
/// use softroce::cc::{CongestionControl, Fixed};
/// assert_eq!(Fixed::unlimited().pacing_rate(), None);
/// assert_eq!(Fixed::bits_per_second(10_000_000_000).pacing_rate(), Some(10_000_000_000));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Fixed {
    rate: Option<u64>,
}

impl Fixed {
    /// As fast as it can.
    pub const fn unlimited() -> Self {
        Self { rate: None }
    }

    /// At `rate` bits per second on the wire. Zero is taken as one.
    pub const fn bits_per_second(rate: u64) -> Self {
        Self { rate: Some(if rate == 0 { 1 } else { rate }) }
    }
}

impl CongestionControl for Fixed {
    fn pacing_rate(&self) -> Option<u64> {
        self.rate
    }

    fn state(&self, _now: Instant) -> State {
        State { algorithm: "fixed", rate: self.rate, ..State::default() }
    }
}
