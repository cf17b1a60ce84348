//! Whether the ACK of a message that was answered may wait for the next message.
//!
//! An ACK that rides behind a lone reply makes a segmented send of two packets, which costs both hosts more than one packet
//! does; sent apart it costs more still. A peer whose program goes on when it has the reply does not need it yet, and a later
//! ACK acknowledges all that came before. But a peer whose program waits for its request to complete needs it at once, and
//! nothing in its packets tells: the last one of a queue always asks for an ACK.
//!
//! *Rules.* So it is tried. After [`FIRST_TRY`] replies that took ACKs along, one leaves alone. If the peer's next message
//! comes all the same, replies leave alone from then on, and an ACK goes with every [`MOST`]th, or sooner, so that none
//! waits longer than [`ack_delay`](super::super::EngineConfig::ack_delay). If it does not come within
//! [`ack_coalesce`](super::super::EngineConfig::ack_coalesce) of the reply, the ACK leaves by itself, and the next try is
//! after twice as many replies, up to [`LAST_TRY`]: a peer that always waits loses less than a thousandth of its time.
//! Only while the program looks all the time ([`Acks::Coalesce`](super::super::Acks)), since whoever else would have to be
//! woken for the ACK. NAKs and answers to READs and atomics never wait.

use crate::engine::config::EngineConfig;
use crate::time::Instant;
use crate::wire::num::Psn;

/// Replies that take ACKs along before the first that does not.
pub(super) const FIRST_TRY: u16 = 16;
/// The same, after many that were in vain.
const LAST_TRY: u16 = 1 << 12;
/// Replies without an ACK in a row.
pub(super) const MOST: u8 = 31;
/// The ACK has waited long enough, and does so no more, whatever comes.
const OVER: u8 = MOST + 1;

/// What is known of a peer's patience.
#[derive(Debug)]
pub(super) struct Coalescing {
    /// Replies that took ACKs along since the last try in vain.
    replies: u16,
    /// How many of them until the next try.
    next_try: u16,
    /// Replies that left without the ACK that waits. 0: none does; [`OVER`]: none may until it has left.
    alone: u8,
    /// On the engine's list.
    pub(super) listed: bool,
    /// What the ACK said when the last reply left.
    psn: Psn,
    /// When the first of those replies left.
    since: Instant,
    /// When the ACK leaves by itself.
    due: Instant,
}

impl Coalescing {
    pub(super) const NEW: Self = Self {
        replies: 0,
        next_try: FIRST_TRY,
        alone: 0,
        listed: false,
        psn: Psn::new(0),
        since: Instant::ZERO,
        due: Instant::ZERO,
    };

    /// A reply is about to leave, alone but for an ACK of `psn`. Whether the ACK waits.
    pub(super) fn waits(&mut self, now: Instant, psn: Psn, config: &EngineConfig) -> bool {
        if self.alone == 0 {
            if config.ack_coalesce.is_zero() || self.replies < self.next_try {
                self.replies = self.replies.saturating_add(1);
                return false;
            }
            self.since = now;
        } else if self.alone == OVER {
            return false;
        } else if psn == self.psn {
            // Another packet of the same reply, which proves nothing.
            return true;
        } else {
            // The peer has gone on without it.
            self.next_try = FIRST_TRY;
            self.replies = FIRST_TRY;
            if self.alone >= MOST || now + config.ack_coalesce > self.since + config.ack_delay {
                return false;
            }
        }
        (self.alone, self.psn, self.due) = (self.alone + 1, psn, now + config.ack_coalesce);
        true
    }

    /// Whether an ACK waits.
    #[inline(always)]
    pub(super) fn is_waiting(&self) -> bool {
        (1..OVER).contains(&self.alone)
    }

    /// When it leaves.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Since when it has waited.
    pub(super) fn since(&self) -> Instant {
        self.since
    }

    /// It has left.
    #[inline(always)]
    pub(super) fn end(&mut self) {
        self.alone = 0;
    }

    /// It must leave, whatever the peer does.
    pub(super) fn hurry(&mut self) {
        if self.is_waiting() {
            self.alone = OVER;
        }
    }

    /// It must leave because its time has come. `psn` is what it says now.
    pub(super) fn expire(&mut self, psn: Psn) {
        if self.is_waiting() && psn == self.psn {
            self.replies = 0;
            self.next_try = (self.next_try * 2).min(LAST_TRY);
        }
        self.hurry();
    }

    /// The queue pair begins anew, with another peer perhaps.
    pub(super) fn reset(&mut self) {
        *self = Self { listed: self.listed, ..Self::NEW };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;

    const fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    fn config() -> EngineConfig {
        EngineConfig { ack_coalesce: us(20), ack_delay: us(100), ..EngineConfig::new([0; 32]) }
    }

    /// Replies until one leaves alone, with messages `gap` apart.
    fn until_alone(c: &mut Coalescing, now: &mut Instant, psn: &mut Psn, gap: Duration) -> u32 {
        for n in 0.. {
            *now += gap;
            *psn = psn.offset(1);
            if c.waits(*now, *psn, &config()) {
                return n;
            }
            c.end();
        }
        unreachable!()
    }

    /// Messages `gap` apart, so many; with which of them the ACK goes along.
    fn along(
        c: &mut Coalescing,
        now: &mut Instant,
        psn: &mut Psn,
        gap: Duration,
        n: u32,
    ) -> Vec<u32> {
        let takes = |_: &u32| {
            *now += gap;
            *psn = psn.offset(1);
            let along = !c.waits(*now, *psn, &config());
            if along {
                c.end();
            }
            along
        };
        (1..=n).filter(takes).collect()
    }

    #[test]
    fn a_peer_that_goes_on_is_acknowledged_now_and_then() {
        let (mut c, mut now, mut psn) = (Coalescing::NEW, Instant::ZERO, Psn::new(0xff_fff0));
        assert_eq!(until_alone(&mut c, &mut now, &mut psn, us(1)), FIRST_TRY.into());
        assert_eq!(along(&mut c, &mut now, &mut psn, us(1), 64), [31, 63], "with every 32nd");
        // Slower ones: none waits longer than `ack_delay`.
        c.end();
        let slow = along(&mut c, &mut now, &mut psn, us(15), 20);
        assert_eq!(slow, [7, 14], "80 us after the first, at most");
    }

    #[test]
    fn a_peer_that_waits_is_tried_ever_more_rarely() {
        let (mut c, mut now, mut psn) = (Coalescing::NEW, Instant::ZERO, Psn::new(1));
        let mut tries = Vec::new();
        for _ in 0..12 {
            tries.push(until_alone(&mut c, &mut now, &mut psn, us(30)));
            assert_eq!(c.due(), now + us(20));
            c.expire(psn);
            assert!(!c.is_waiting());
            c.end();
        }
        assert_eq!(tries, [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 4096, 4096, 4096]);
        // One that has begun to go on is trusted again.
        until_alone(&mut c, &mut now, &mut psn, us(1));
        assert!(c.waits(now + us(1), psn.offset(1), &config()));
        c.expire(psn.offset(1));
        c.end();
        assert_eq!(until_alone(&mut c, &mut now, &mut psn, us(1)), 32);
    }

    #[test]
    fn a_wait_that_is_over_is_not_begun_again_before_the_ack_has_left() {
        let (mut c, mut now, mut psn) = (Coalescing::NEW, Instant::ZERO, Psn::new(1));
        until_alone(&mut c, &mut now, &mut psn, us(1));
        // The next message was there already when the time was over: nobody is to blame, but the ACK goes along.
        psn = psn.offset(1);
        c.expire(psn);
        assert!(!c.is_waiting());
        assert!(!c.waits(now + us(25), psn, &config()));
        assert!(!c.waits(now + us(26), psn.offset(1), &config()), "it had no room, say");
        c.end();
        assert_eq!(until_alone(&mut c, &mut now, &mut psn, us(1)), 0);
        c.hurry();
        assert!(!c.is_waiting() && !c.waits(now, psn, &config()));
    }

    #[test]
    fn two_packets_of_one_reply_prove_nothing() {
        let (mut c, mut now, mut psn) = (Coalescing::NEW, Instant::ZERO, Psn::new(1));
        until_alone(&mut c, &mut now, &mut psn, us(1));
        let due = c.due();
        assert!(c.waits(now + us(5), psn, &config()));
        assert_eq!(c.due(), due, "nor do they put it off");
        c.expire(psn);
        c.end();
        assert_eq!(until_alone(&mut c, &mut now, &mut psn, us(1)), 32);
    }

    #[test]
    fn without_time_nothing_waits() {
        let mut c = Coalescing::NEW;
        let off = EngineConfig { ack_coalesce: Duration::ZERO, ..config() };
        for n in 0..100_000 {
            assert!(!c.waits(Instant::ZERO, Psn::new(n), &off));
        }
    }
}
