//! Round-trip times, as the requester can measure them.
//!
//! *Rules.* Measured is from a packet that asks for an ACK to the ACK that answers this very packet: one that answers a
//! later packet says nothing of the time between the two. Of a READ or an atomic it is the first packet of the answer.
//! What is sent while an answer of that kind is still due is not measured: its own waits behind that one.
//! What was sent twice is not measured, for nobody knows which of the two is answered (Karn and Partridge, SIGCOMM
//! 1987): a retry forgets all that is under way. Only queue pairs with an algorithm of congestion control measure.

use crate::time::{Duration, Instant};
use crate::wire::num::Psn;

/// Packets that are timed at once. One that finds no place takes that of the last: an ACK that answers many answers the
/// newest of them (in a ping-pong whose ACKs are coalesced, all do).
const MOST: usize = 8;

/// Packets under way that asked for an ACK, oldest first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probes {
    /// One past each, and when it left.
    sent: [(Psn, Instant); MOST],
    first: usize,
    len: usize,
}

impl Probes {
    pub(super) const NONE: Self =
        Self { sent: [(Psn::new(0), Instant::ZERO); MOST], first: 0, len: 0 };

    /// A packet that was never sent before leaves and asks for an ACK.
    pub(super) fn add(&mut self, end: Psn, now: Instant) {
        self.len = (self.len + 1).min(MOST);
        self.sent[(self.first + self.len - 1) % MOST] = (end, now);
    }

    /// Everything before `upto` is acknowledged: the time of its last packet, if that was timed.
    pub(super) fn acknowledge(&mut self, upto: Psn, now: Instant) -> Option<Duration> {
        let mut rtt = None;
        while self.len > 0 {
            let (end, at) = self.sent[self.first];
            match upto.distance_from(end) {
                ..0 => break,
                0 => rtt = Some(now.saturating_since(at)),
                1.. => {}
            }
            self.first = (self.first + 1) % MOST;
            self.len -= 1;
        }
        rtt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ack_answers_its_own_packet() {
        let (at, us) = (|us| Instant::from_nanos(us * 1000), Duration::from_micros);
        let mut probes = Probes::NONE;
        // Around the end of the numbers.
        let psn = |n: u32| Psn::new(0xff_fff0).offset(n);
        for n in 1..=12 {
            probes.add(psn(8 * n), at(u64::from(n)));
        }
        assert_eq!(probes.acknowledge(psn(7), at(20)), None);
        assert_eq!(probes.acknowledge(psn(8), at(20)), Some(us(19)));
        assert_eq!(probes.acknowledge(psn(8), at(21)), None, "once");
        assert_eq!(probes.acknowledge(psn(33), at(21)), None, "the ACK of a later packet");
        assert_eq!(probes.acknowledge(psn(40), at(30)), Some(us(25)));
        assert_eq!(probes.acknowledge(psn(56), at(30)), Some(us(23)), "the last of two");
        assert_eq!(probes.acknowledge(psn(88), at(30)), None, "eight at once");
        assert_eq!(probes.acknowledge(psn(96), at(31)), Some(us(19)), "the newest among them");
        probes.add(psn(100), at(40));
        assert_eq!(probes.acknowledge(psn(100), at(42)), Some(us(2)));
    }
}
