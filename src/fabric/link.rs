//! A host's cable: what it can do, what is wrong with it, and how long a packet takes on it.
//!
//! *Bytes.* A *frame* is what lies in a queue: Ethernet header, IP, UDP, datagram and FCS, at least 64
//! bytes. The *line* is busy 20 bytes longer: preamble before, gap behind. Queue limits and marking
//! thresholds count frame bytes, time counts line bytes.
//!
//! *Rules.* No floating point in time. A line carries the fraction of a picosecond over to the next packet,
//! so that packets back to back run at exactly the stated rate, whatever it is.

use crate::net::Path;
use crate::time::{Duration, nanos};

use super::FabricError;
use super::moment::Moment;

/// Ethernet header and FCS.
const FRAME: usize = 14 + 4;
/// The shortest Ethernet frame, FCS included.
const FRAME_MIN: usize = 64;
/// Preamble, start of frame and the gap between two frames.
const GAP: usize = 8 + 12;
/// The fastest line: 1 Pbit/s.
const RATE_MAX: u64 = 1_000_000_000_000_000;
/// Smallest MTU: 256 bytes of payload and the 96 bytes of headers that Linux reserves.
const MTU_MIN: u32 = 352;
/// Largest MTU: what the length field of IPv4 can say.
const MTU_MAX: u32 = 65_535;
/// What a host may queue at its own end of the cable: some sixteen packets of 4 KiB, enough to keep the
/// line busy between two visits of its driver, and little enough for urgent packets to get through.
const UPLINK_QUEUE: usize = 64 << 10;

/// A cable between a host and the switch, or one direction of it.
///
/// A packet crosses two: up from its sender, down to its receiver. Delay, rate and MTU hold each way. What
/// is wrong with the cable (`loss` to `ecn_at`), and `queue`, act at the switch, on what goes *down* to the
/// host: a packet between two hosts with `loss: 0.01` is lost once in a hundred times, not twice.
///
/// ```
/// use softroce::{sim::Link, time::Duration};
/// let wan = Link { delay: Duration::from_millis(5), loss: 0.001, ..Link::default() };
/// assert_eq!(wan.bits_per_s, 100_000_000_000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Propagation from one end to the other.
    pub delay: Duration,
    /// Additional delay, uniform between zero and this, of each packet. Order is kept; for overtaking see
    /// `reorder`.
    pub jitter: Duration,
    /// Speed of the line, in bits per second: 1 to 10^15.
    pub bits_per_s: u64,
    /// Largest IP packet: 352 to 65535 bytes. A larger one is dropped, as with "don't fragment" set.
    pub mtu: u32,
    /// Frame bytes that may wait at the switch to go down; what does not fit is dropped. The packet on the
    /// line does not count.
    pub queue: usize,
    /// Probability that a packet is lost.
    pub loss: f64,
    /// Probability that a packet is held back, so that later ones overtake it: for a random time of up to
    /// sixteen times what the largest frame takes on the line.
    pub reorder: f64,
    /// Probability that a packet comes twice. The copy follows up to sixteen large frames later.
    pub duplicate: f64,
    /// Probability that one to three bits of the datagram flip, at random but where the ICRC sees it: a
    /// CRC-32 finds every error of three bits in a packet of this size, so none slips through.
    pub corrupt: f64,
    /// Frame bytes waiting, the leaving packet included, above which the switch marks ECN-capable packets
    /// with "congestion experienced". 0 marks all, `usize::MAX` none.
    pub ecn_at: usize,
}

impl Default for Link {
    /// 100 Gbit/s, 2 us each way, MTU 9000, nothing wrong.
    ///
    /// The queue is 1 MiB: the share of one port in a switch chip of 32 MB with 32 ports, ten times what the
    /// line carries in a round trip of four delays, and four senders with 256 KiB in flight each.
    fn default() -> Self {
        Self {
            delay: Duration::from_micros(2),
            jitter: Duration::ZERO,
            bits_per_s: 100_000_000_000,
            mtu: 9000,
            queue: 1 << 20,
            loss: 0.0,
            reorder: 0.0,
            duplicate: 0.0,
            corrupt: 0.0,
            ecn_at: usize::MAX,
        }
    }
}

impl Link {
    /// Whether the fields are in range.
    ///
    /// # Errors
    /// Names the first field that is not, its value, and the range.
    pub fn check(&self) -> Result<(), FabricError> {
        let chances = [
            ("loss", self.loss),
            ("reorder", self.reorder),
            ("duplicate", self.duplicate),
            ("corrupt", self.corrupt),
        ];
        for (field, value) in chances {
            check_probability(field, value)?;
        }
        if !(1..=RATE_MAX).contains(&self.bits_per_s) {
            return Err(FabricError::Rate(self.bits_per_s));
        }
        if !(MTU_MIN..=MTU_MAX).contains(&self.mtu) {
            return Err(FabricError::Mtu(self.mtu));
        }
        Ok(())
    }

    /// The way up of a cable: nothing goes wrong on it.
    pub(super) fn uplink(&self) -> Self {
        Self {
            delay: self.delay,
            jitter: self.jitter,
            bits_per_s: self.bits_per_s,
            mtu: self.mtu,
            queue: UPLINK_QUEUE,
            ..Self::default()
        }
    }

    /// Nanoseconds within which packets held back and copies appear.
    pub(super) fn scatter(&self) -> u64 {
        // The MTU is below 2^16 and the rate at least 1, so this is below 2^54.
        16 * line_bits(self.mtu as usize + FRAME) * 1_000_000_000 / self.bits_per_s
    }
}

/// Whether `value` is a probability.
pub(super) fn check_probability(field: &'static str, value: f64) -> Result<(), FabricError> {
    if (0.0..=1.0).contains(&value) {
        Ok(())
    } else {
        Err(FabricError::Probability { field, value })
    }
}

/// Bytes of the IP packet that carries a datagram.
pub(super) fn ip_len(path: &Path, datagram: usize) -> usize {
    path.header_len().saturating_add(datagram)
}

/// Bytes of the frame that carries a datagram, FCS included.
pub(super) fn frame_len(path: &Path, datagram: usize) -> usize {
    ip_len(path, datagram).saturating_add(FRAME).max(FRAME_MIN)
}

/// Bits for which a frame occupies the line.
pub(super) fn line_bits(frame: usize) -> u64 {
    (frame as u64 + GAP as u64) * 8
}

/// The transmitter of one direction: busy until some moment.
#[derive(Debug)]
pub(super) struct Line {
    bits_per_s: u64,
    /// Busy until then and `rest / bits_per_s` of a picosecond.
    free: Moment,
    /// Always below `bits_per_s`.
    rest: u64,
}

impl Line {
    pub(super) const fn new(bits_per_s: u64) -> Self {
        Self { bits_per_s, free: Moment::ZERO, rest: 0 }
    }

    /// Changes the rate, from the next packet on.
    pub(super) fn set_rate(&mut self, bits_per_s: u64) {
        *self = Self { bits_per_s, free: self.free_at(), rest: 0 };
    }

    /// The first whole picosecond at which the line is free.
    pub(super) fn free_at(&self) -> Moment {
        self.free.plus_ps(u64::from(self.rest > 0))
    }

    /// Sends a frame that was there at `ready`, behind what is on the line. Returns when its last bit has
    /// left, in whole picoseconds.
    pub(super) fn send(&mut self, ready: Moment, frame: usize) -> Moment {
        if ready > self.free {
            (self.free, self.rest) = (ready, 0);
        }
        // Frames are below 2^17 bytes, so this is below 2^63.
        let time = line_bits(frame) * 1_000_000_000_000 + self.rest;
        self.free = self.free.plus_ps(time / self.bits_per_s);
        self.rest = time % self.bits_per_s;
        self.free_at()
    }
}

/// `at` plus a duration and a number of nanoseconds.
pub(super) fn later(at: Moment, delay: Duration, more: u64) -> Moment {
    at.plus_ns(nanos(delay)).plus_ns(more)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Instant;
    use proptest::prelude::*;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    fn path(ip: IpAddr) -> Path {
        Path {
            src: ip,
            dst: ip,
            src_port: 0xc000,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            scope_id: 0,
        }
    }

    /// Line bytes of a packet with `ext` bytes of extended headers and this much payload.
    fn on_the_line(ip: IpAddr, ext: usize, payload: usize) -> u64 {
        line_bits(frame_len(&path(ip), 12 + ext + payload + 4)) / 8
    }

    #[test]
    fn bytes_on_the_line() {
        let v4 = Ipv4Addr::LOCALHOST.into();
        for (payload, line) in [(256, 338), (512, 594), (1024, 1106), (2048, 2130), (4096, 4178)] {
            assert_eq!(on_the_line(v4, 0, payload), line);
            assert_eq!(on_the_line(Ipv6Addr::LOCALHOST.into(), 0, payload), line + 20);
        }
        assert_eq!(on_the_line(v4, 16, 1024), 1122, "first packet of a WRITE");
        assert_eq!(on_the_line(v4, 4, 0), 86, "ACK");
        assert_eq!(on_the_line(v4, 16, 0), 98, "READ request, CNP");
        assert_eq!(on_the_line(v4, 0, 0), 84, "padded to the shortest frame");
    }

    #[test]
    fn back_to_back_at_exactly_the_rate() {
        // 1106 bytes at 40 Gbit/s are 221.2 ns.
        let mut line = Line::new(40_000_000_000);
        let mut ends = (0..5).map(|_| line.send(Moment::ZERO, 1086).ceil().as_nanos());
        assert!(ends.by_ref().take(4).eq([222, 443, 664, 885]));
        assert_eq!(ends.next(), Some(1106));
        drop(ends);
        for _ in 5..1_000_000 {
            line.send(Moment::ZERO, 1086);
        }
        assert_eq!(line.free_at().ceil(), Instant::from_nanos(221_200_000));
    }

    #[test]
    fn an_idle_line_starts_when_the_packet_is_there() {
        let mut line = Line::new(40_000_000_000);
        line.send(Moment::ZERO, 1086);
        assert_eq!(
            line.send(Instant::from_nanos(1000).into(), 1086).ceil(),
            Instant::from_nanos(1222)
        );
        // Ready within the nanosecond in which the line gets free: it waits for the fraction.
        assert_eq!(
            line.send(Instant::from_nanos(1221).into(), 1086).ceil(),
            Instant::from_nanos(1443)
        );
    }

    #[test]
    fn a_new_rate_holds_from_the_next_packet() {
        let mut line = Line::new(40_000_000_000);
        line.send(Moment::ZERO, 1086);
        line.set_rate(8_000_000_000);
        assert_eq!(line.send(Moment::ZERO, 1086).ceil(), Instant::from_nanos(222 + 1106));
    }

    #[test]
    fn the_extremes_do_not_overflow() {
        let mut slow = Line::new(1);
        assert_eq!(slow.send(Moment::ZERO, 64).ceil(), Instant::from_nanos(672_000_000_000));
        slow.send(Instant::from_nanos(u64::MAX - 1).into(), 65_553);
        assert_eq!(slow.free_at().ceil(), Instant::FAR_FUTURE);
        let mut fast = Line::new(RATE_MAX);
        for _ in 0..1000 {
            fast.send(Moment::ZERO, 105);
        }
        assert_eq!(fast.free_at().ceil(), Instant::from_nanos(1));
        let slowest = Link { bits_per_s: 1, mtu: MTU_MAX, ..Link::default() };
        assert_eq!(slowest.scatter(), 16 * (65_535 + 38) * 8 * 1_000_000_000);
    }

    #[test]
    fn silly_values_are_named() {
        let ok = Link::default();
        assert_eq!(ok.check(), Ok(()));
        for (link, said) in [
            (Link { loss: 1.5, ..ok }, "loss is 1.5: not a probability, which is 0 to 1"),
            (Link { reorder: -0.1, ..ok }, "reorder is -0.1: not a probability, which is 0 to 1"),
            (
                Link { corrupt: f64::NAN, ..ok },
                "corrupt is NaN: not a probability, which is 0 to 1",
            ),
            (Link { bits_per_s: 0, ..ok }, "bits_per_s is 0: not within 1 to 10^15"),
            (Link { mtu: 351, ..ok }, "mtu is 351: not within 352 to 65535"),
            (Link { mtu: 65_536, ..ok }, "mtu is 65536: not within 352 to 65535"),
        ] {
            assert_eq!(link.check().unwrap_err().to_string(), said);
        }
        assert_eq!(Link { loss: 1.0, mtu: 352, bits_per_s: RATE_MAX, ..ok }.check(), Ok(()));
    }

    proptest! {
        #[test]
        fn never_early_never_a_nanosecond_late(
            rate in 1u64..2_000_000_000_000,
            frames in prop::collection::vec(64usize..9018, 1..50),
        ) {
            let mut line = Line::new(rate);
            let mut bits = 0u128;
            for frame in frames {
                bits += u128::from(line_bits(frame));
                let exact = (bits * 1_000_000_000).div_ceil(u128::from(rate));
                prop_assert_eq!(u128::from(line.send(Moment::ZERO, frame).ceil().as_nanos()), exact);
            }
        }
    }
}
