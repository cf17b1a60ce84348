//! DCQCN: a rate that notifications cut and time brings back.
//!
//! *Sources.* Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015 (the rules);
//! IEEE 802.1Qau, QCN (the increase); published simulators and firmware documentation (the variants, each a
//! switch in [`DcqcnConfig`]).
//!
//! *Rules.* Integers only: rates in bits per second, alpha in 2^-32, so that every machine computes the same.
//! Alpha falls with time; it is brought up to date when it is needed, not by a timer. The timer of the
//! increase rests while there is nothing to regain.

use super::params::{AlphaClock, Clamp, DcqcnConfig, ParamError, Stages};
use super::{CongestionControl, State};
use crate::time::{Duration, Instant};

/// Alpha of 1.
const ONE: u64 = 1 << 32;

/// The reaction point of DCQCN, for one queue pair.
///
/// It starts at line rate. Whoever receives its packets answers marked ones ("congestion experienced") with
/// congestion notification packets, and each of those, or the first in a while, cuts the rate.
///
/// ```
/// use softroce::cc::{CongestionControl, Dcqcn, DcqcnConfig};
/// use softroce::time::Instant;
///
/// let mut cc = Dcqcn::new(DcqcnConfig::preset("paper", 40_000_000_000)?)?;
/// assert_eq!(cc.pacing_rate(), Some(40_000_000_000));
/// cc.on_cnp(Instant::from_nanos(1_000));
/// assert_eq!(cc.pacing_rate(), Some(20_000_000_000), "the first one halves the rate");
/// # Ok::<(), softroce::cc::ParamError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Dcqcn {
    config: DcqcnConfig,
    /// Rate in force, and the one that it recovers towards.
    rate: u64,
    target: u64,
    /// In 2^-32, as of `alpha_at`.
    alpha: u64,
    alpha_at: Instant,
    /// A CNP came since `alpha_at` (periodic clock).
    noticed: bool,
    /// Increases since the last cut.
    by_time: u32,
    by_bytes: u32,
    bytes_left: u64,
    /// The next increase by the timer.
    increase_at: Option<Instant>,
    /// The cut that a CNP asked for.
    cut_at: Option<Instant>,
    /// When the periods of cuts began; `None`: no CNP so far.
    periods_from: Option<Instant>,
}

impl Dcqcn {
    /// At line rate.
    ///
    /// # Errors
    /// [`ParamError::Contradiction`].
    pub fn new(config: DcqcnConfig) -> Result<Self, ParamError> {
        config.check()?;
        Ok(Self {
            rate: config.line_rate,
            target: config.line_rate,
            alpha: u64::from(config.initial_alpha) << 22,
            alpha_at: Instant::ZERO,
            noticed: false,
            by_time: 0,
            by_bytes: 0,
            bytes_left: config.byte_reset,
            increase_at: None,
            cut_at: None,
            periods_from: None,
            config,
        })
    }

    /// The same, beginning at another rate than the line's: for experiments with flows that are not alike.
    #[must_use]
    pub fn starting_at(mut self, bits_per_s: u64) -> Self {
        let rate = bits_per_s.clamp(self.config.min_rate, self.config.line_rate);
        (self.rate, self.target) = (rate, rate);
        self
    }

    /// Its parameters.
    pub fn config(&self) -> &DcqcnConfig {
        &self.config
    }

    /// Alpha at `now`, between 0 and 1: how much of the time there is congestion, by its own estimate.
    pub fn alpha(&self, now: Instant) -> f64 {
        let mut then = self.clone();
        then.age(now);
        then.alpha as f64 / ONE as f64
    }

    /// The rate that it recovers towards, in bits per second.
    pub fn target(&self) -> u64 {
        self.target
    }

    /// Alpha moves towards 0 by its weight.
    fn lower(&mut self) {
        self.alpha -= self.alpha * u64::from(self.config.g) / 1024;
    }

    /// After [`lower`](Self::lower): it has moved towards 1 instead.
    fn raise(&mut self) {
        self.alpha += (ONE / 1024) * u64::from(self.config.g);
    }

    /// Brings alpha up to date.
    fn age(&mut self, now: Instant) {
        if self.periods_from.is_none() {
            return;
        }
        let period = self.config.alpha_time;
        let mut left = whole(now.saturating_since(self.alpha_at), period);
        self.alpha_at += times(period, left);
        while left > 0 {
            let before = self.alpha;
            self.lower();
            if std::mem::take(&mut self.noticed) {
                self.raise();
            } else if self.alpha == before {
                // As small as it gets.
                break;
            }
            left -= 1;
        }
    }

    fn cut(&mut self, now: Instant) {
        let clamp = match self.config.clamp {
            Clamp::Always => true,
            Clamp::AfterTimeInc => self.by_time > 0,
            Clamp::Never => false,
        };
        if clamp {
            self.target = self.rate;
        }
        let rate = u128::from(self.rate);
        // alpha / 2 with a shift of 11, as the hardware has it: its alpha has 10 bits.
        let part = (rate * u128::from(self.alpha)) << 10 >> (32 + u32::from(self.config.gd));
        let left = u64::try_from(rate.saturating_sub(part)).unwrap_or(u64::MAX);
        let least = u64::try_from(rate * u128::from(self.config.min_dec_fac) / 100).unwrap_or(0);
        self.rate = left.max(least).max(self.config.min_rate);
        self.begin_recovery(now);
    }

    /// The increase starts from its beginning.
    fn begin_recovery(&mut self, now: Instant) {
        (self.by_time, self.by_bytes) = (0, 0);
        self.bytes_left = self.config.byte_reset;
        self.increase_at = Some(now + self.config.time_reset);
    }

    /// The first CNP, where it sets a rate or only starts the clocks. `true`: there is nothing more to do.
    fn first(&mut self, now: Instant) -> bool {
        self.alpha = u64::from(self.config.initial_alpha) << 22;
        self.alpha_at = now;
        self.periods_from = Some(now);
        if self.config.first_cnp_rate == 0 {
            return false;
        }
        self.target = self.rate;
        self.rate = self.config.first_cnp_rate.clamp(self.config.min_rate, self.rate);
        self.begin_recovery(now);
        true
    }

    /// One step up, by the timer or the byte counter.
    fn increase(&mut self, count: fn(&mut Self) -> &mut u32) {
        let add_one = |cc: &mut Self| {
            let count = count(cc);
            *count = count.saturating_add(1);
        };
        if self.config.count_first {
            add_one(self);
        }
        let threshold = self.config.threshold;
        let (low, high) = (self.by_time.min(self.by_bytes), self.by_time.max(self.by_bytes));
        let step = match self.config.stages {
            Stages::Qcn if high < threshold => 0,
            Stages::Qcn if low >= threshold => {
                self.config.hai_rate.saturating_mul(u64::from(low - threshold) + 1)
            }
            Stages::Timer if self.by_time < threshold => 0,
            Stages::Timer if self.by_time > threshold => self.config.hai_rate,
            _ => self.config.ai_rate,
        };
        if self.config.reduce_far_target && high <= 1 && self.target / 10 > self.rate {
            self.target /= 8;
        }
        self.target = self.target.saturating_add(step).min(self.config.line_rate);
        self.rate = self.rate.midpoint(self.target);
        if !self.config.count_first {
            add_one(self);
        }
        // The middle of two neighbours is the lower one.
        if self.rate + 1 >= self.config.line_rate {
            self.rate = self.config.line_rate;
        }
    }

    fn has_regained_all(&self) -> bool {
        self.rate == self.config.line_rate
    }

    /// Whether timer and byte counter run twice as fast.
    fn is_hasty(&self) -> bool {
        let both = self.by_time.min(self.by_bytes);
        self.config.fast_hyper && both >= self.config.threshold
    }
}

impl CongestionControl for Dcqcn {
    fn on_send(&mut self, _now: Instant, bytes: u32) {
        if self.config.byte_reset == 0 || self.has_regained_all() {
            return;
        }
        self.bytes_left = self.bytes_left.saturating_sub(u64::from(bytes));
        if self.bytes_left == 0 {
            self.increase(|cc| &mut cc.by_bytes);
            let reset = self.config.byte_reset;
            self.bytes_left = if self.is_hasty() { reset.div_ceil(2) } else { reset };
        }
    }

    fn on_cnp(&mut self, now: Instant) {
        let periodic = self.config.alpha_clock == AlphaClock::Periodic;
        if self.periods_from.is_none() {
            if self.first(now) {
                return;
            }
        } else {
            self.age(now);
            self.noticed = periodic;
        }
        if self.config.cut_period.is_zero() {
            if !periodic && self.config.raise_first {
                self.lower();
                self.raise();
            }
            self.cut(now);
            if !periodic && !self.config.raise_first {
                self.lower();
                self.raise();
            }
        } else if self.cut_at.is_none() {
            // At the end of the period that runs.
            let from = self.periods_from.unwrap_or(now);
            let gone = whole(now.saturating_since(from), self.config.cut_period);
            self.cut_at = Some(from + times(self.config.cut_period, gone + 1));
            if !periodic {
                self.lower();
                self.raise();
            }
        }
        if !periodic {
            self.alpha_at = now;
        }
    }

    fn on_timer(&mut self, now: Instant) {
        while let Some(due) = self.next_timer()
            && due <= now
        {
            if self.cut_at == Some(due) {
                self.cut_at = None;
                self.age(due);
                self.cut(due);
                continue;
            }
            self.increase(|cc| &mut cc.by_time);
            let reset = self.config.time_reset;
            let period = if self.is_hasty() { reset / 2 } else { reset };
            self.increase_at = (!self.has_regained_all()).then(|| due + period);
        }
    }

    fn next_timer(&self) -> Option<Instant> {
        match (self.cut_at, self.increase_at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    fn pacing_rate(&self) -> Option<u64> {
        Some(self.rate)
    }

    fn wants_ecn(&self) -> bool {
        true
    }

    fn reset(&mut self, _now: Instant) {
        // It was checked when it was made.
        if let Ok(fresh) = Self::new(self.config.clone()) {
            *self = fresh;
        }
    }

    fn state(&self, now: Instant) -> State {
        State {
            algorithm: "dcqcn",
            rate: Some(self.rate),
            target: Some(self.target),
            alpha: Some(self.alpha(now)),
            ..State::default()
        }
    }
}

/// How many whole periods there are in a time.
fn whole(time: Duration, period: Duration) -> u64 {
    u64::try_from(time.as_nanos() / period.as_nanos().max(1)).unwrap_or(u64::MAX)
}

/// A time of `n` periods.
fn times(period: Duration, n: u64) -> Duration {
    let ns = period.as_nanos().saturating_mul(u128::from(n));
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const G: u64 = 1_000_000_000;

    fn config(preset: &str) -> DcqcnConfig {
        DcqcnConfig::preset(preset, 40 * G).unwrap()
    }

    fn dcqcn(preset: &str) -> Dcqcn {
        Dcqcn::new(config(preset)).unwrap()
    }

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    /// Rates after each of `n` increases by the timer, in Mbit/s.
    fn steps(cc: &mut Dcqcn, n: usize) -> Vec<u64> {
        let step = |_| {
            let due = cc.next_timer().expect("something to regain");
            cc.on_timer(due);
            cc.rate / 1_000_000
        };
        (0..n).map(step).collect()
    }

    #[test]
    fn the_first_notification_halves_the_rate_and_five_steps_recover_it() {
        let mut cc = dcqcn("paper");
        assert_eq!((cc.rate, cc.next_timer()), (40 * G, None));
        cc.on_cnp(at(100));
        cc.on_cnp(at(150));
        assert_eq!((cc.rate, cc.target), (10 * G, 20 * G), "alpha is still 1");
        assert_eq!(cc.next_timer(), Some(at(205)));
        assert_eq!(steps(&mut cc, 5), [15_000, 17_500, 18_750, 19_375, 19_687]);
        // Then 40 Mbit/s more each time: (19687.5 + 20040) / 2, and so on.
        assert_eq!(steps(&mut cc, 2), [19_863, 19_971]);
        assert_eq!(cc.next_timer(), Some(at(150 + 8 * 55)));
    }

    #[test]
    fn alpha_falls_while_nothing_comes_and_rises_with_each_notification() {
        let mut cc = dcqcn("paper");
        cc.on_cnp(at(0));
        assert_eq!(cc.alpha(at(54)), 1.0);
        assert_eq!(cc.alpha(at(55)), 255.0 / 256.0);
        let falls = |n: i32| (255.0f64 / 256.0).powi(n);
        assert!((cc.alpha(at(5500)) - falls(100)).abs() < 1e-6);
        cc.on_cnp(at(5500));
        let risen = falls(100) * 255.0 / 256.0 + 1.0 / 256.0;
        assert!((cc.alpha(at(5500)) - risen).abs() < 1e-6, "{}", cc.alpha(at(5500)));
        assert!(cc.alpha(at(60_000_000)) < 1e-6, "nothing is left after a minute");
    }

    #[test]
    fn timer_and_byte_counter_together_make_it_hyper() {
        let mut cc = dcqcn("paper");
        for t in 0..4 {
            cc.on_cnp(at(t));
        }
        assert_eq!((cc.rate, cc.target), (2_500_000_000, 5 * G));
        steps(&mut cc, 5);
        assert_eq!(cc.target, 5 * G, "recovered by the timer");
        for i in 0..5 {
            cc.on_send(at(300), 10_000_000 - 1);
            assert_eq!(cc.by_bytes, i);
            cc.on_send(at(300), 1);
            assert_eq!(cc.by_bytes, i + 1);
        }
        assert_eq!(
            cc.target,
            5 * G + 5 * 40_000_000,
            "one of the two is past the threshold: additive"
        );
        cc.on_send(at(300), 10_000_000);
        assert_eq!(cc.target, 5 * G + 5 * 40_000_000 + 200_000_000, "both are: 200 Mbit/s");
        steps(&mut cc, 1);
        // 5 by the timer, 6 by bytes: the lower one counts.
        assert_eq!(cc.target, 5 * G + 5 * 40_000_000 + 2 * 200_000_000);
        cc.on_send(at(300), 10_000_000);
        assert_eq!(cc.target, 5 * G + 5 * 40_000_000 + 4 * 200_000_000, "6 and 6: twice as much");
    }

    #[test]
    fn a_flow_that_has_regained_all_needs_no_timer() {
        let mut cc = dcqcn("paper");
        cc.on_cnp(at(0));
        let mut n = 0;
        while let Some(due) = cc.next_timer() {
            cc.on_timer(due);
            n += 1;
        }
        assert_eq!(cc.rate, 40 * G);
        assert!(n < 60, "{n} steps");
        let end = at(55 * n);
        cc.on_timer(end);
        cc.on_send(end, u32::MAX);
        assert_eq!((cc.rate, cc.next_timer()), (40 * G, None));
    }

    #[test]
    fn the_simulator_of_its_authors_raises_and_counts_first() {
        let mut cc = dcqcn("ns3-rdma");
        cc.on_cnp(at(0));
        // Alpha: 0.5 * 255/256 + 1/256; half of it goes.
        assert_eq!(cc.rate / 1_000_000, 29_960);
        assert_eq!(steps(&mut cc, 5).len(), 5);
        assert_eq!(cc.by_time, 5);
        let mut paper =
            Dcqcn::new(DcqcnConfig { count_first: false, ..config("ns3-rdma") }).unwrap();
        paper.on_cnp(at(0));
        steps(&mut paper, 5);
        for cc in [&mut cc, &mut paper] {
            cc.target = 35 * G;
        }
        steps(&mut paper, 1);
        steps(&mut cc, 1);
        assert_eq!((cc.target, paper.target), (35_040_000_000, 35_040_000_000));
    }

    #[test]
    fn a_nic_looks_at_notifications_once_per_period() {
        let mut cc = dcqcn("hpcc");
        cc.on_cnp(at(10));
        cc.on_cnp(at(12));
        assert_eq!((cc.rate, cc.next_timer()), (40 * G, Some(at(14))));
        cc.on_timer(at(14));
        // Alpha looked at itself at 11, 12, 13 and 14, and saw a notification once.
        let mut alpha = 1.0f64;
        for seen in [false, false, true, false] {
            alpha = alpha * 255.0 / 256.0 + if seen { 1.0 / 256.0 } else { 0.0 };
        }
        assert!((cc.alpha(at(14)) - alpha).abs() < 1e-6, "{} {alpha}", cc.alpha(at(14)));
        let expected = 40e9 * (1.0 - alpha / 2.0);
        assert!((cc.rate as f64 - expected).abs() < 100.0, "{} {expected}", cc.rate);
        // No increase by the timer since the last cut: the target stays.
        cc.on_cnp(at(15));
        cc.on_timer(at(18));
        assert_eq!(cc.target, 40 * G);
        assert_eq!(cc.next_timer(), Some(at(318)));
        let before = cc.rate;
        steps(&mut cc, 1);
        assert_eq!(cc.rate, before.midpoint(40 * G), "one step of recovery");
        cc.on_cnp(at(320));
        let before = cc.rate;
        cc.on_timer(at(322));
        assert_eq!(cc.target, before);
    }

    #[test]
    fn timer_alone_recovers_adds_once_and_goes_hyper() {
        let mut cc = dcqcn("hpcc");
        cc.target = 20 * G;
        cc.rate = 10 * G;
        cc.periods_from = Some(at(0));
        cc.increase_at = Some(at(300));
        let targets: Vec<_> =
            (0..4).map(|_| (steps(&mut cc, 1), cc.target).1 / 1_000_000).collect();
        // 8 and 80 Mbit/s for 40 Gbit/s.
        assert_eq!(targets, [20_000, 20_008, 20_088, 20_168]);
    }

    #[test]
    fn cuts_are_limited() {
        let mut deep = config("nvidia-fw");
        deep.gd = 10;
        let mut cc = Dcqcn::new(deep).unwrap();
        cc.on_cnp(at(0));
        cc.on_timer(at(4));
        assert_eq!(cc.rate, 20 * G, "all of alpha would go, but 50 % stay");
        let mut cc = dcqcn("paper");
        for t in 0..100 {
            cc.on_cnp(at(t));
        }
        assert_eq!(cc.rate, 40_000_000, "the least rate");
    }

    #[test]
    fn the_first_notification_may_set_a_rate() {
        let mut config = config("nvidia-fw");
        config.set("rate_to_set_on_first_cnp", "5000").unwrap();
        let mut cc = Dcqcn::new(config).unwrap();
        cc.on_cnp(at(0));
        assert_eq!((cc.rate, cc.target), (5 * G, 40 * G));
        assert_eq!(cc.next_timer(), Some(at(300)));
    }

    #[derive(Clone, Debug)]
    enum Event {
        Cnp,
        Sent(u32),
        Nothing,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            2 => Just(Event::Cnp),
            4 => (1u32..20_000_000).prop_map(Event::Sent),
            4 => Just(Event::Nothing),
        ]
    }

    proptest! {
        /// However events fall, the rate stays in its bounds, timers lie ahead, and a driver that is late or asks
        /// too often changes nothing.
        #[test]
        fn bounds_and_lateness(
            preset in prop::sample::select(DcqcnConfig::PRESETS),
            events in prop::collection::vec((event(), 0u64..2_000), 1..100),
        ) {
            let (mut cc, mut late, mut now) = (dcqcn(preset), dcqcn(preset), 0);
            for (event, wait) in events {
                for step in [wait / 3, wait / 2, wait] {
                    cc.on_timer(at(now + step));
                }
                now += wait;
                late.on_timer(at(now));
                for cc in [&mut cc, &mut late] {
                    match event {
                        Event::Cnp => cc.on_cnp(at(now)),
                        Event::Sent(bytes) => cc.on_send(at(now), bytes),
                        Event::Nothing => {}
                    }
                    prop_assert!((cc.config.min_rate..=40 * G).contains(&cc.rate), "{cc:?}");
                    prop_assert!(cc.rate <= cc.target && cc.target <= 40 * G, "{cc:?}");
                    prop_assert!(cc.next_timer().is_none_or(|t| t > at(now)), "{cc:?}");
                    prop_assert!(cc.alpha <= ONE);
                }
                prop_assert_eq!(cc.rate, late.rate);
                prop_assert_eq!(cc.alpha(at(now)), late.alpha(at(now)));
            }
        }
    }
}
