//! TIMELY: a rate that follows the slope of the round-trip time.
//!
//! *Sources.* Mittal et al., "TIMELY: RTT-based Congestion Control for the Datacenter", SIGCOMM 2015 (the rules); Zhu et
//! al., "ECN or Delay: Lessons Learnt from Analysis of DCQCN and TIMELY", CoNEXT 2016 (that it has no single point to
//! come to rest at, and the patch that gives it one).
//!
//! *Rules.* One step for each segment that is acknowledged with a measured round trip, and at most one in a least round
//! trip. Floating point as in [`swift`](super::swift): the four operations, rounded alike everywhere.

use super::swift::whole;
use super::{AckInfo, CongestionControl, ParamError, State};
use crate::time::{Duration, Instant, nanos};

/// Parameters of [`Timely`].
#[derive(Clone, Debug, PartialEq)]
pub struct TimelyConfig {
    /// What a flow never exceeds, in bits per second.
    pub line_rate: u64,
    /// Where it starts. The authors: line rate divided by one more than the flows that the sender already has.
    pub initial_rate: u64,
    /// What no step goes below.
    pub min_rate: u64,
    /// Below this the rate grows, whatever the slope.
    pub t_low: Duration,
    /// Above this it shrinks, whatever the slope.
    pub t_high: Duration,
    /// Round trip of an empty path: what slopes are measured in.
    pub min_rtt: Duration,
    /// Weight of the newest difference in the slope.
    pub alpha: f64,
    /// How strongly a slope cuts.
    pub beta: f64,
    /// Step of growth, in bits per second.
    pub step: u64,
    /// So many times a falling slope in a row, and growth is five steps at once.
    pub hyper: u32,
    /// Bytes acknowledged between two steps.
    pub segment: u32,
    /// As patched: it comes to rest where the round trip is a little above `t_low`, with equal rates for equal flows.
    pub patched: bool,
}

impl TimelyConfig {
    /// As published, for links of `line_rate` bits per second.
    pub fn new(line_rate: u64) -> Self {
        let step = 10_000_000.min(line_rate);
        Self {
            line_rate,
            initial_rate: (line_rate / 2).max(step),
            min_rate: step,
            t_low: Duration::from_micros(50),
            t_high: Duration::from_micros(500),
            min_rtt: Duration::from_micros(20),
            alpha: 0.875,
            beta: 0.8,
            step,
            hyper: 5,
            segment: 16_000,
            patched: false,
        }
    }

    /// As patched.
    pub fn patched(line_rate: u64) -> Self {
        Self { beta: 0.008, patched: true, ..Self::new(line_rate) }
    }

    fn check(&self) -> Result<(), ParamError> {
        let wrong = if self.min_rate == 0 {
            "a least rate of 0 stops a flow for ever"
        } else if !(self.min_rate..=self.line_rate).contains(&self.initial_rate) {
            "the initial rate lies between the least rate and the line rate"
        } else if self.t_low.is_zero() || self.t_low > self.t_high {
            "t_low has a length and is not above t_high"
        } else if self.min_rtt.is_zero() {
            "min_rtt has no length"
        } else if !(self.alpha > 0.0 && self.alpha <= 1.0 && self.beta > 0.0 && self.beta <= 1.0) {
            "alpha and beta are parts of one"
        } else if self.step == 0 {
            "a rate that does not grow never recovers (step)"
        } else {
            return Ok(());
        };
        Err(ParamError::Contradiction(wrong))
    }
}

/// The reaction point of TIMELY, for one reliable queue pair: it lives on measured round trips, which only ACKs bring.
///
/// ```
/// use softroce::cc::{CongestionControl, Timely, TimelyConfig};
///
/// let timely = Timely::new(TimelyConfig::new(10_000_000_000))?;
/// assert_eq!(timely.pacing_rate(), Some(5_000_000_000));
/// # Ok::<(), softroce::cc::ParamError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Timely {
    config: TimelyConfig,
    rate: f64,
    /// The last round trip, and the smoothed difference between two, in nanoseconds.
    last: Option<f64>,
    slope: f64,
    /// Steps in a row with a slope that does not rise.
    falling: u32,
    /// Bytes acknowledged since the last step, and when that was.
    acked: u32,
    stepped: Option<Instant>,
}

impl Timely {
    /// At its initial rate.
    ///
    /// # Errors
    /// [`ParamError::Contradiction`].
    pub fn new(config: TimelyConfig) -> Result<Self, ParamError> {
        config.check()?;
        Ok(Self {
            rate: config.initial_rate as f64,
            last: None,
            slope: 0.0,
            falling: 0,
            acked: 0,
            stepped: None,
            config,
        })
    }

    /// Its parameters.
    pub fn config(&self) -> &TimelyConfig {
        &self.config
    }

    /// A step: the rate after a round trip of `rtt` nanoseconds, with this slope in parts of `min_rtt`.
    fn step(&mut self, rtt: f64, slope: f64) -> f64 {
        let TimelyConfig { beta, patched, hyper, .. } = self.config;
        let (step, rate) = (self.config.step as f64, self.rate);
        let (low, high) = (nanos(self.config.t_low) as f64, nanos(self.config.t_high) as f64);
        if slope > 0.0 || rtt < low || rtt > high {
            self.falling = 0;
        }
        if rtt < low {
            return rate + step;
        }
        if rtt > high {
            return rate * (1.0 - beta * (1.0 - high / rtt));
        }
        if patched {
            // Between growth for a falling slope and a cut for a rising one there is no jump.
            let weight = (2.0 * slope + 0.5).clamp(0.0, 1.0);
            let error = (rtt - low) / low;
            return step * (1.0 - weight) + rate * (1.0 - beta * weight * error);
        }
        if slope <= 0.0 {
            self.falling = self.falling.saturating_add(1);
            return rate + if self.falling >= hyper { 5.0 * step } else { step };
        }
        rate * (1.0 - beta * slope)
    }
}

impl CongestionControl for Timely {
    fn on_ack(&mut self, now: Instant, ack: &AckInfo) {
        self.acked = self.acked.saturating_add(ack.bytes);
        let Some(rtt) = ack.rtt else { return };
        let early = self.stepped.is_some_and(|t| now.saturating_since(t) < self.config.min_rtt);
        if self.acked < self.config.segment || early {
            return;
        }
        (self.acked, self.stepped) = (0, Some(now));
        let rtt = nanos(rtt).max(1) as f64;
        // Of the first one there is no difference.
        let difference = rtt - self.last.replace(rtt).unwrap_or(rtt);
        let alpha = self.config.alpha;
        self.slope = (1.0 - alpha) * self.slope + alpha * difference;
        let slope = self.slope / nanos(self.config.min_rtt) as f64;
        let rate = self.step(rtt, slope);
        self.rate = rate.max(self.config.min_rate as f64).min(self.config.line_rate as f64);
    }

    fn pacing_rate(&self) -> Option<u64> {
        Some(whole(self.rate))
    }

    fn reset(&mut self, _now: Instant) {
        if let Ok(fresh) = Self::new(self.config.clone()) {
            *self = fresh;
        }
    }

    fn state(&self, _now: Instant) -> State {
        let algorithm = if self.config.patched { "timely-patched" } else { "timely" };
        State { algorithm, rate: self.pacing_rate(), ..State::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: u64 = 1_000_000_000;
    const M: u64 = 1_000_000;

    /// Rates after round trips of so many microseconds, each with a segment, 100 us apart.
    fn rates(cc: &mut Timely, rtts: &[u64]) -> Vec<u64> {
        let start = nanos(cc.stepped.unwrap_or(Instant::ZERO) - Instant::ZERO) / 1000;
        let step = |(n, us): (usize, &u64)| {
            let now = Instant::from_nanos((start + 100 * (n as u64 + 1)) * 1000);
            let rtt = Some(Duration::from_micros(*us));
            cc.on_ack(now, &AckInfo { bytes: 16_000, rtt, ecn_echo: false });
            cc.pacing_rate().unwrap()
        };
        rtts.iter().enumerate().map(step).collect()
    }

    fn timely(config: TimelyConfig) -> Timely {
        Timely::new(config).unwrap()
    }

    #[test]
    fn grows_below_shrinks_above_and_follows_the_slope_between() {
        let mut cc = timely(TimelyConfig::new(10 * G));
        assert_eq!(rates(&mut cc, &[30, 40]), [5010 * M, 5020 * M], "below t_low, though it rises");
        // Slope: 0.125 * 0.875 * 10 + 0.875 * 60 = 53.59 us, 2.68 of min_rtt; 1 - 0.8 * 2.68 is below 0.
        assert_eq!(rates(&mut cc, &[100]), [10 * M], "the least rate");
        // 0.125 * 53.59375 = 6.699; not rising enough to forget that it rose: 0.335, so 1 - 0.268.
        cc.rate = 1e9;
        assert_eq!(rates(&mut cc, &[100]), [732_031_249]);
        // 600 us: 1 - 0.8 / 6.
        let mut cc = timely(TimelyConfig::new(10 * G));
        assert_eq!(rates(&mut cc, &[600]), [4_333_333_333]);
    }

    #[test]
    fn five_falls_in_a_row_make_it_hasty() {
        let mut cc = timely(TimelyConfig::new(10 * G));
        let steps = rates(&mut cc, &[200, 199, 198, 197, 196, 195, 194]);
        let grown: Vec<u64> = steps.iter().map(|rate| (rate - 5 * G) / M).collect();
        assert_eq!(grown, [10, 20, 30, 40, 90, 140, 190]);
        assert!(rates(&mut cc, &[400])[0] < 5 * G);
        assert_eq!(cc.falling, 0);
        let fast = rates(&mut timely(TimelyConfig::new(5_000 * M + 5 * M)), &[10; 600]);
        assert_eq!(fast[599], 5_005 * M, "never above line rate");
    }

    #[test]
    fn the_patch_has_no_jump_and_a_point_of_rest() {
        let rest = |rate: u64| {
            let config = TimelyConfig { initial_rate: rate, ..TimelyConfig::patched(10 * G) };
            let mut cc = timely(config);
            // Without a slope the weight is a half: 5 Mbit/s and 1 - 0.004 * error.
            rates(&mut cc, &[100, 100])
        };
        assert_eq!(rest(G), [1_001_000_000, 1_001_996_000]);
        // At rest: 5 Mbit/s = rate * 0.004 * error, so 1.25 Gbit/s at an error of 1.
        assert_eq!(rest(1_250 * M), [1_250 * M; 2]);
        assert!(rest(2 * G)[1] < 2 * G);
        assert_eq!(
            timely(TimelyConfig::patched(G)).state(Instant::ZERO).algorithm,
            "timely-patched"
        );
    }

    #[test]
    fn a_step_takes_a_segment_and_a_round_trip() {
        let mut cc = timely(TimelyConfig::new(10 * G));
        let mut ack = |us: u64, bytes: u32, rtt: Option<u64>| {
            let rtt = rtt.map(Duration::from_micros);
            let now = Instant::from_nanos(us * 1000);
            cc.on_ack(now, &AckInfo { bytes, rtt, ecn_echo: false });
            cc.pacing_rate().unwrap() / M
        };
        assert_eq!(ack(1, 15_999, Some(10)), 5000);
        assert_eq!(ack(2, 1, None), 5000, "not measured");
        assert_eq!(ack(3, 1, Some(10)), 5010);
        assert_eq!(ack(22, 16_000, Some(10)), 5010, "19 us after the last step");
        assert_eq!(ack(23, 0, Some(10)), 5020);
        cc.reset(Instant::ZERO);
        assert_eq!((cc.pacing_rate(), cc.last, cc.stepped), (Some(5 * G), None, None));
    }

    #[test]
    fn contradictions_are_refused() {
        let config = || TimelyConfig::new(10 * G);
        let refused = |config: TimelyConfig| Timely::new(config).is_err();
        assert!(refused(TimelyConfig::new(0)));
        assert!(refused(TimelyConfig { min_rate: 0, ..config() }));
        assert!(refused(TimelyConfig { initial_rate: 11 * G, ..config() }));
        assert!(refused(TimelyConfig { t_low: Duration::from_secs(1), ..config() }));
        assert!(refused(TimelyConfig { min_rtt: Duration::ZERO, ..config() }));
        assert!(refused(TimelyConfig { beta: f64::NAN, ..config() }));
        assert!(refused(TimelyConfig { step: 0, ..config() }));
        assert!(!refused(config()) && !refused(TimelyConfig::patched(10 * G)));
    }
}
