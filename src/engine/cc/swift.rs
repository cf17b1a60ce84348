//! Swift: a window that the delay opens and closes.
//!
//! *Source.* Kumar et al., "Swift: Delay is Simple and Effective for Congestion Control in the Datacenter", SIGCOMM 2020
//! (algorithm 1 and section 3.5); where a constant is not published, its field says so.
//!
//! *Rules.* The window counts packets and may be a fraction of one; then one packet is under way at a time, and the time
//! between two is paced. Of floating point only addition, multiplication, division and square root are used, which IEEE
//! 754 rounds alike everywhere: every machine computes the same.

use super::{AckInfo, CongestionControl, Loss, ParamError, State};
use crate::time::{Duration, Instant, nanos};

/// Parameters of [`Swift`]. Delays are round trips; windows are in packets.
#[derive(Clone, Debug, PartialEq)]
pub struct SwiftConfig {
    /// Target of a large flow over no switch. Not published as a number; 20 us suits two or three hops at 100 Gbit/s.
    pub base_target: Duration,
    /// What each switch on the way, there and back, adds to the target.
    pub hop_target: Duration,
    /// Switches on the way, there and back.
    pub hops: u32,
    /// Most that a small window adds to the target, so that many small flows still find their share. Zero: nothing.
    pub flow_range: Duration,
    /// Windows between which it falls from that to nothing.
    pub flow_min: f64,
    /// See [`flow_min`](Self::flow_min).
    pub flow_max: f64,
    /// Packets that the window grows by in a round trip below the target.
    pub additive: f64,
    /// How strongly a delay beyond the target cuts: of the part of the delay that is beyond.
    pub beta: f64,
    /// Most that one cut takes of the window.
    pub max_cut: f64,
    /// Smallest window.
    pub min_window: f64,
    /// Largest window, and the first one.
    pub max_window: f64,
    /// After so many timeouts in a row the window is the smallest.
    pub timeouts: u32,
}

impl SwiftConfig {
    /// For links of `line_rate` bits per second: the largest window is what such a link carries in twice the target.
    pub fn new(line_rate: u64) -> Self {
        let base = Duration::from_micros(20);
        // Packets of a path MTU of 1024; larger ones only make the limit larger.
        let largest = line_rate as f64 * 2.0 * base.as_secs_f64() / (8.0 * 1024.0);
        Self {
            base_target: base,
            hop_target: Duration::from_nanos(3050),
            hops: 2,
            flow_range: 5 * base,
            flow_min: 0.1,
            flow_max: 100.0,
            additive: 1.0,
            beta: 0.8,
            max_cut: 0.5,
            min_window: 0.01,
            max_window: if largest > 4.0 { largest } else { 4.0 },
            timeouts: 5,
        }
    }

    fn check(&self) -> Result<(), ParamError> {
        let is_part = |x: f64| x > 0.0 && x <= 1.0;
        let wrong = if self.base_target.is_zero() {
            "a target of no time keeps every window the smallest"
        } else if !(self.min_window > 0.0 && self.min_window <= self.max_window) {
            "the smallest window is above 0 and not above the largest"
        } else if !(1.0..=4_000_000.0).contains(&self.max_window) {
            "the largest window is between one packet and four million"
        } else if !(self.flow_min > 0.0 && self.flow_min < self.flow_max) {
            "flow_min is above 0 and below flow_max"
        } else if !(self.additive > 0.0 && self.additive.is_finite()) {
            "a window that does not grow never recovers (additive)"
        } else if !is_part(self.beta) || !is_part(self.max_cut) || self.max_cut >= 1.0 {
            "beta and max_cut are parts of one, max_cut not all of it"
        } else {
            return Ok(());
        };
        Err(ParamError::Contradiction(wrong))
    }
}

/// The reaction point of Swift, for one reliable queue pair: it lives on measured round trips, which only ACKs bring.
///
/// ```
/// use softroce::cc::{CongestionControl, Swift, SwiftConfig};
///
/// let swift = Swift::new(SwiftConfig { max_window: 100.0, ..SwiftConfig::new(100_000_000_000) })?;
/// assert_eq!(swift.cwnd(), Some(100 * 1024));
/// # Ok::<(), softroce::cc::ParamError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Swift {
    config: SwiftConfig,
    /// Payload of a full packet.
    packet: u32,
    window: f64,
    /// Slope and constant of what a small window adds to the target, in nanoseconds.
    slope: f64,
    constant: f64,
    /// The newest round trip, in nanoseconds.
    rtt: f64,
    cut_at: Option<Instant>,
    /// Bytes acknowledged since the window was last looked at.
    acked: u32,
    timeouts: u32,
}

impl Swift {
    /// With the largest window.
    ///
    /// # Errors
    /// [`ParamError::Contradiction`].
    pub fn new(config: SwiftConfig) -> Result<Self, ParamError> {
        config.check()?;
        let range = nanos(config.flow_range) as f64;
        let (most, least) = (1.0 / config.flow_min.sqrt(), 1.0 / config.flow_max.sqrt());
        let slope = range / (most - least);
        Ok(Self {
            packet: 1024,
            window: config.max_window,
            slope,
            constant: -slope * least,
            rtt: nanos(config.base_target) as f64,
            cut_at: None,
            acked: 0,
            timeouts: 0,
            config,
        })
    }

    /// Its parameters.
    pub fn config(&self) -> &SwiftConfig {
        &self.config
    }

    /// The window in packets.
    pub fn window(&self) -> f64 {
        self.window
    }

    /// The delay that it aims at with its window of now.
    pub fn target(&self) -> Duration {
        Duration::from_nanos(whole(self.target_nanos()))
    }

    fn target_nanos(&self) -> f64 {
        let fixed = self.config.base_target + self.config.hop_target * self.config.hops;
        let wish = self.slope / self.window.sqrt() + self.constant;
        let range = nanos(self.config.flow_range) as f64;
        nanos(fixed) as f64 + wish.max(0.0).min(range)
    }

    /// Once per round trip the window may shrink.
    fn may_cut(&self, now: Instant) -> bool {
        self.cut_at.is_none_or(|at| nanos(now.saturating_since(at)) as f64 >= self.rtt)
    }

    /// The window is another.
    fn set(&mut self, now: Instant, window: f64) {
        let window = window.max(self.config.min_window).min(self.config.max_window);
        if window < self.window {
            self.cut_at = Some(now);
        }
        self.window = window;
    }
}

impl CongestionControl for Swift {
    fn path_mtu(&mut self, bytes: u32) {
        self.packet = bytes.max(1);
    }

    fn on_ack(&mut self, now: Instant, ack: &AckInfo) {
        self.timeouts = 0;
        self.acked = self.acked.saturating_add(ack.bytes);
        let Some(rtt) = ack.rtt else { return };
        let packets = f64::from(std::mem::take(&mut self.acked)) / f64::from(self.packet);
        self.rtt = nanos(rtt).max(1) as f64;
        let target = self.target_nanos();
        if self.rtt < target {
            let per_window = if self.window >= 1.0 { packets / self.window } else { packets };
            self.set(now, self.window + self.config.additive * per_window);
        } else if self.may_cut(now) {
            let beyond = (self.rtt - target) / self.rtt;
            let keep = (1.0 - self.config.beta * beyond).max(1.0 - self.config.max_cut);
            self.set(now, self.window * keep);
        }
    }

    fn on_loss(&mut self, now: Instant, loss: Loss) {
        if loss == Loss::Timeout {
            self.timeouts = self.timeouts.saturating_add(1);
            if self.timeouts >= self.config.timeouts {
                self.set(now, self.config.min_window);
                return;
            }
        } else {
            self.timeouts = 0;
        }
        if self.may_cut(now) {
            self.set(now, self.window * (1.0 - self.config.max_cut));
        }
    }

    fn cwnd(&self) -> Option<u32> {
        Some(u32::try_from(whole(self.window * f64::from(self.packet))).unwrap_or(u32::MAX))
    }

    fn pacing_rate(&self) -> Option<u64> {
        // Above that the window is enough.
        if self.window >= 1.0 {
            return None;
        }
        // What a packet takes on an Ethernet, over IPv4.
        let bits = f64::from(self.packet.saturating_add(82)) * 8.0;
        Some(whole(bits * 1e9 * self.window / self.rtt))
    }

    fn reset(&mut self, _now: Instant) {
        let packet = self.packet;
        if let Ok(fresh) = Self::new(self.config.clone()) {
            *self = Self { packet, ..fresh };
        }
    }

    fn state(&self, _now: Instant) -> State {
        State {
            algorithm: "swift",
            rate: self.pacing_rate(),
            cwnd: self.cwnd(),
            ..State::default()
        }
    }
}

/// The whole part of a number that is not negative.
#[expect(clippy::cast_possible_truncation, reason = "what does not fit is as large as can be")]
#[expect(clippy::cast_sign_loss, reason = "not negative")]
pub(super) fn whole(x: f64) -> u64 {
    x as u64
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "IEEE 754 says what comes out")]
mod tests {
    use super::*;

    fn config() -> SwiftConfig {
        SwiftConfig {
            base_target: Duration::from_micros(20),
            hop_target: Duration::from_micros(3),
            hops: 2,
            flow_range: Duration::ZERO,
            max_window: 64.0,
            ..SwiftConfig::new(100_000_000_000)
        }
    }

    fn swift(config: SwiftConfig) -> Swift {
        let mut swift = Swift::new(config).unwrap();
        swift.path_mtu(1024);
        swift
    }

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    /// An ACK of so many packets after a round trip of so long.
    fn ack(packets: u32, us: u64) -> AckInfo {
        let rtt = Some(Duration::from_micros(us));
        AckInfo { bytes: packets * 1024, rtt, ecn_echo: false }
    }

    #[test]
    fn below_the_target_a_window_grows_by_one_packet() {
        let mut cc = swift(config());
        assert_eq!((cc.target(), cc.cwnd()), (Duration::from_micros(26), Some(65_536)));
        cc.set(at(0), 8.0);
        cc.on_ack(at(1), &ack(4, 10));
        assert_eq!(cc.window, 8.5);
        // What was acknowledged without a round trip counts at the next one.
        cc.on_ack(at(2), &AckInfo { rtt: None, ..ack(17, 0) });
        assert_eq!(cc.window, 8.5);
        cc.on_ack(at(3), &ack(17, 10));
        assert_eq!(cc.window, 8.5 + 34.0 / 8.5);
        cc.set(at(3), 0.5);
        cc.on_ack(at(4), &ack(1, 25));
        assert_eq!(cc.window, 1.5, "below one packet, a packet for each ACK");
        for t in 5..200 {
            cc.on_ack(at(t), &ack(64, 10));
        }
        assert_eq!(cc.window, 64.0, "and never above the largest");
    }

    #[test]
    fn beyond_the_target_it_is_cut_once_in_a_round_trip() {
        let mut cc = swift(config());
        // 14 of 40 us are beyond: 1 - 0.8 * 0.35.
        cc.on_ack(at(100), &ack(1, 40));
        assert_eq!(cc.window, 64.0 * (1.0 - 0.8 * 0.35));
        let once = cc.window;
        cc.on_ack(at(139), &ack(1, 40));
        assert_eq!(cc.window, once, "39 us after the last cut");
        // 74 of 100 us are beyond: 0.592, but no cut takes more than half.
        cc.on_ack(at(240), &ack(1, 100));
        assert_eq!(cc.window, once * 0.5);
    }

    #[test]
    fn small_windows_have_a_longer_target() {
        let range = Duration::from_micros(100);
        let mut cc = swift(SwiftConfig { flow_range: range, max_window: 200.0, ..config() });
        // alpha = 100 us / (1/sqrt(0.1) - 1/sqrt(100)) = 32.65 us; at a window of 1: 26 + 32.65 - 3.27.
        cc.window = 1.0;
        assert_eq!(cc.target().as_nanos(), 26_000 + 29_389);
        cc.window = 0.01;
        assert_eq!(cc.target(), Duration::from_micros(126), "no more than the range");
        cc.window = 100.0;
        assert_eq!(cc.target(), Duration::from_micros(26));
        cc.window = 200.0;
        assert_eq!(cc.target(), Duration::from_micros(26), "and no less than nothing");
    }

    #[test]
    fn fractions_of_a_packet_are_a_pace() {
        let mut cc = swift(config());
        assert_eq!(cc.pacing_rate(), None);
        cc.on_ack(at(0), &ack(1, 50));
        cc.window = 0.25;
        // A packet of 1106 bytes on the wire each 200 us.
        assert_eq!(cc.pacing_rate(), Some(1106 * 8 * 5000));
        assert_eq!(cc.cwnd(), Some(256));
        cc.path_mtu(4096);
        assert_eq!((cc.pacing_rate(), cc.cwnd()), (Some(4178 * 8 * 5000), Some(1024)));
    }

    #[test]
    fn losses_halve_and_many_timeouts_leave_the_least() {
        let mut cc = swift(config());
        cc.on_loss(at(100), Loss::SequenceNak);
        assert_eq!(cc.window, 32.0);
        cc.on_loss(at(110), Loss::SequenceNak);
        assert_eq!(cc.window, 32.0, "in the same round trip");
        for (n, left) in [16.0, 8.0, 4.0, 2.0, 0.01].into_iter().enumerate() {
            cc.on_loss(at(1000 * (n as u64 + 1)), Loss::Timeout);
            assert_eq!(cc.window, left, "timeout {n}");
        }
        cc.on_ack(at(9000), &ack(1, 10));
        assert_eq!((cc.window, cc.timeouts), (1.01, 0));
        cc.reset(at(9001));
        assert_eq!((cc.window, cc.cwnd(), cc.cut_at), (64.0, Some(65_536), None));
    }

    #[test]
    fn contradictions_are_refused() {
        let refused = |config: SwiftConfig| Swift::new(config).is_err();
        assert!(refused(SwiftConfig { base_target: Duration::ZERO, ..config() }));
        assert!(refused(SwiftConfig { min_window: 0.0, ..config() }));
        assert!(refused(SwiftConfig { max_window: f64::NAN, ..config() }));
        assert!(refused(SwiftConfig { flow_min: 100.0, ..config() }));
        assert!(refused(SwiftConfig { additive: f64::INFINITY, ..config() }));
        assert!(refused(SwiftConfig { max_cut: 1.0, ..config() }));
        assert!(!refused(config()));
    }
}
