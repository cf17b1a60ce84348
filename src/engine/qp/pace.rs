//! Pace: when the next packet of a queue pair may leave.
//!
//! *Owns.* The moment at which the packets sent so far are paid for, and with it what is over of a nanosecond, so that the
//! rate is kept on average and not only nearly.
//!
//! *Rules.* A packet costs what it takes on an Ethernet: its frame, at least the shortest one, with preamble and gap.
//! So queue pairs whose rates add up to that of the link fill the link. The time of a packet begins when the packet
//! begins to leave; what nobody used while the queue pair was silent, late or blocked is lost, but for the credit
//! ([`EngineConfig::pacing_credit`](crate::engine::EngineConfig::pacing_credit)) and the burst
//! ([`EngineConfig::pacing_burst`](crate::engine::EngineConfig::pacing_burst)): so far ahead of its time a packet may
//! leave. A queue pair that has used its burst up waits until half of it is there again, so that packets leave in groups,
//! and none later than at its own moment. When the rate changes, what is still to be paid is paid at the new rate: else a cut would be felt one packet
//! late, and a rise from a very low rate only after the long gap before it.

use super::Qp;
use super::requester::Controller;
use crate::engine::cc::CongestionControl;
use crate::engine::common::Common;
use crate::time::{Duration, Instant, nanos};

/// What an Ethernet adds to an IP packet: header and check sequence; the shortest frame; preamble, start of frame and
/// gap (IEEE 802.3, clauses 3 and 4).
const FRAME: usize = 14 + 4;
const SHORTEST: usize = 64;
const BETWEEN: u32 = 8 + 12;

/// Bytes of the frame that an IP packet travels in.
fn frame_len(ip_packet: usize) -> u32 {
    u32::try_from((ip_packet + FRAME).max(SHORTEST)).unwrap_or(u32::MAX)
}

/// When the next packet may leave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// All packets sent are paid for then,
    next: Instant,
    /// and these bits, each a thousand-millionth of one.
    rest: u64,
    /// Bits per second; 0: there is no pace.
    rate: u64,
    /// The burst is used up, and a packet waits until half of it is there again: then. Else never.
    resume: Instant,
}

impl Pace {
    /// Nothing was sent so far.
    pub(super) fn new(rate: Option<u64>) -> Self {
        Self { next: Instant::ZERO, rest: 0, rate: number(rate), resume: Instant::FAR_FUTURE }
    }

    /// Whether there is none.
    fn is_none(&self) -> bool {
        self.rate == 0
    }

    /// Whether the next packet must wait.
    #[inline]
    pub(super) fn holds(&mut self, now: Instant, burst: Duration) -> bool {
        self.rate > 0 && self.is_ahead(now, burst)
    }

    fn is_ahead(&mut self, now: Instant, burst: Duration) -> bool {
        self.look(now);
        self.resume != Instant::FAR_FUTURE || self.next > now + burst
    }

    /// Whether the next packet must wait that follows one which has just left, if the burst ends at `horizon`.
    #[inline]
    pub(super) fn is_beyond(&self, horizon: Instant) -> bool {
        self.rate > 0 && self.next > horizon
    }

    /// A packet of `wire` bytes begins to leave.
    #[inline]
    fn charge(&mut self, now: Instant, credit: Duration, wire: u32) {
        if self.rate == 0 {
            return;
        }
        if self.next < now {
            let earliest = now.earlier(credit);
            if self.next < earliest {
                (self.next, self.rest) = (earliest, 0);
            }
        }
        let due = u64::from(wire) * 8 * 1_000_000_000 + self.rest;
        self.next = Instant::from_nanos(self.next.as_nanos().saturating_add(due / self.rate));
        self.rest = due % self.rate;
    }

    /// The rate is another from now on.
    fn set_rate(&mut self, now: Instant, rate: Option<u64>) {
        let rate = number(rate);
        if rate == self.rate {
            return;
        }
        let before = self.next;
        let left = before.saturating_since(now).as_nanos();
        let due = left * u128::from(self.rate) + u128::from(self.rest);
        self.next = self.next.min(now);
        self.rest = 0;
        let half = before.saturating_since(self.resume);
        if rate > 0 {
            let ns = u64::try_from(due / u128::from(rate)).unwrap_or(u64::MAX);
            self.next = Instant::from_nanos(self.next.as_nanos().saturating_add(ns));
            // Less than `rate`.
            self.rest = u64::try_from(due % u128::from(rate)).unwrap_or(0);
        }
        self.rate = rate;
        if self.resume != Instant::FAR_FUTURE {
            self.resume = self.next.earlier(half);
        }
    }

    /// A packet waits for it, if it `holds` one.
    pub(super) fn hold(&mut self, holds: bool, burst: Duration) {
        if holds {
            self.resume = self.next.earlier(Duration::from_nanos(nanos(burst) / 2));
        }
    }

    /// When a packet that waits may leave; if none does, never.
    #[inline]
    pub(super) fn deadline(&self) -> Instant {
        self.resume
    }

    /// Time has passed.
    #[inline]
    pub(super) fn look(&mut self, now: Instant) {
        if self.resume <= now {
            self.resume = Instant::FAR_FUTURE;
        }
    }
}

/// No pace is a rate of 0, and a rate of 0 is the slowest that there is.
fn number(rate: Option<u64>) -> u64 {
    rate.map_or(0, |rate| rate.max(1))
}

impl Qp {
    /// Whether the pace holds the next packet back; if so, it comes back when the pace lets it.
    pub(super) fn is_paced(&mut self, c: &Common) -> bool {
        let paced = self.req.pace.holds(c.now, c.config.pacing_burst);
        self.req.pace.hold(paced, c.config.pacing_burst);
        paced
    }

    /// A packet leaves, of so many bytes with its IP header: congestion control is told of its frame, the pace of what
    /// it takes on the wire.
    #[inline]
    pub(super) fn pace(&mut self, c: &Common, ip_packet: usize) {
        if self.is_steered() {
            self.pace_steered(c, ip_packet);
        }
    }

    #[inline(never)]
    fn pace_steered(&mut self, c: &Common, ip_packet: usize) {
        self.charge(c, ip_packet);
    }

    /// The same, where there is somebody to be told.
    #[inline(always)]
    pub(super) fn charge(&mut self, c: &Common, ip_packet: usize) {
        let frame = frame_len(ip_packet);
        let r = &mut self.req;
        if let Controller::Custom(custom) = &mut r.cc {
            custom.algorithm.on_send(c.now, frame);
            // It seldom is another than before.
            if r.limit > 0 || number(custom.algorithm.pacing_rate()) != r.pace.rate {
                self.follow(c.now);
            }
        }
        self.req.pace.charge(c.now, c.config.pacing_credit, frame.saturating_add(BETWEEN));
    }

    /// Whether there is an algorithm to be told of each packet, or a pace.
    #[inline]
    pub(super) fn is_steered(&self) -> bool {
        !self.req.pace.is_none() || matches!(self.req.cc, Controller::Custom(_))
    }

    /// Tells congestion control something, and goes on at the rate that it has then.
    pub(in crate::engine) fn tell(
        &mut self,
        now: Instant,
        what: impl FnOnce(&mut dyn CongestionControl),
    ) {
        if let Controller::Custom(custom) = &mut self.req.cc {
            what(custom.algorithm.as_mut());
            self.follow(now);
        }
    }

    /// Goes on at the rate that holds now.
    pub(super) fn follow(&mut self, now: Instant) {
        let rate = self.req.pacing_rate();
        self.req.pace.set_rate(now, rate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: u64 = 1_000_000_000;

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    #[test]
    fn what_packets_take_on_an_ethernet() {
        // IPv4 and UDP, BTH and ICRC: 44 bytes around the payload.
        let wire = |payload: usize| frame_len(28 + 16 + payload) + BETWEEN;
        assert_eq!([256, 512, 1024, 2048, 4096].map(wire), [338, 594, 1106, 2130, 4178]);
        assert_eq!(wire(0), 84, "the shortest frame");
        // An ACK, a READ request.
        assert_eq!([wire(4), wire(16)], [86, 98]);
    }

    #[test]
    fn fractions_of_a_nanosecond_are_kept() {
        for (rate, ns, packets) in [(40 * G, 221_200_000, 1_000_000), (3 * G, 2_949_333, 1000)] {
            let mut pace = Pace::new(Some(rate));
            let (mut now, start) = (at(1000), at(1000));
            for _ in 0..packets {
                assert!(!pace.holds(now, Duration::ZERO));
                pace.charge(now, Duration::ZERO, 1106);
                assert!(pace.holds(now, Duration::ZERO), "one at a time");
                now = pace.next;
            }
            assert_eq!((now - start).as_nanos(), ns, "{rate}");
        }
    }

    #[test]
    fn who_is_late_gets_back_no_more_than_the_burst() {
        for burst in [0, 20_000] {
            let mut pace = Pace::new(Some(8 * G));
            let length = Duration::from_nanos(burst);
            pace.charge(at(0), Duration::ZERO, 1000);
            assert_eq!(pace.next, at(1000));
            // Long after that, packets of a microsecond each.
            let mut n = 0;
            while !pace.holds(at(500_000), length) {
                pace.charge(at(500_000), Duration::ZERO, 1000);
                n += 1;
            }
            assert_eq!(n, burst / 1000 + 1);
            // It goes on with half of the burst.
            pace.hold(true, length);
            let on = 501_000 + burst / 2;
            assert_eq!(pace.deadline(), at(on));
            assert!(pace.holds(at(on - 1), length) && !pace.holds(at(on), length));
            let mut n = 0;
            while !pace.holds(at(on), length) {
                pace.charge(at(on), Duration::ZERO, 1000);
                n += 1;
            }
            assert_eq!(n, burst / 2 / 1000 + 1);
        }
    }

    #[test]
    fn who_is_late_makes_up_for_the_credit() {
        let credit = Duration::from_nanos(200);
        // A packet of 884.8 ns, and one of 221.2 ns.
        for (rate, second) in [(10 * G, 100_684), (40 * G, 100_021)] {
            let mut pace = Pace::new(Some(rate));
            pace.charge(at(0), credit, 1106);
            assert!(!pace.holds(at(100_000), Duration::ZERO));
            pace.charge(at(100_000), credit, 1106);
            assert_eq!(pace.next, at(second), "not at once, however long it was late");
            // Less late than that is made up for in full.
            let due = pace.next;
            pace.charge(due + Duration::from_nanos(150), credit, 1106);
            let after = u64::try_from((pace.next - due).as_nanos()).unwrap();
            assert!(after.abs_diff(1106 * 8 * G / rate) <= 1, "{after}");
        }
    }

    #[test]
    fn what_is_left_to_pay_is_paid_at_the_new_rate() {
        let mut pace = Pace::new(Some(8 * G));
        pace.charge(at(1000), Duration::ZERO, 4000);
        assert_eq!(pace.next, at(5000));
        pace.hold(true, Duration::from_nanos(1000));
        assert_eq!(pace.deadline(), at(4500));
        pace.set_rate(at(2000), Some(4 * G));
        assert_eq!(pace.next, at(8000), "three of the four microseconds now take six");
        assert_eq!(pace.deadline(), at(7500), "and half of the burst is what it was");
        pace.set_rate(at(5000), Some(24 * G));
        assert_eq!(pace.next, at(5500));
        pace.set_rate(at(5100), None);
        assert!(!pace.holds(at(5100), Duration::ZERO));
        pace.charge(at(5100), Duration::ZERO, 4000);
        pace.set_rate(at(6000), Some(1));
        assert!(!pace.holds(at(6000), Duration::ZERO), "nothing is owed from before");
        pace.charge(at(6000), Duration::ZERO, 1);
        assert_eq!(pace.next, at(6000 + 8 * G));
        pace.set_rate(at(6000 + G), Some(8 * G));
        assert_eq!(pace.next, at(6000 + G), "seven bits");
        assert_eq!(pace.rest, 7 * G);
    }

    #[test]
    fn a_change_of_rate_costs_no_time() {
        let mut pace = Pace::new(Some(40 * G));
        let mut now = at(0);
        for i in 0..10_000 {
            pace.charge(now, Duration::ZERO, 1106);
            pace.set_rate(now, Some(if i % 2 == 0 { 40 * G } else { 40 * G - 1 }));
            now = pace.next;
        }
        assert_eq!(now, at(2_212_000));
    }
}
