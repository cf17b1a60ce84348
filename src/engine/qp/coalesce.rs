//! Whether the ACK of a message that was answered may wait for the next message.
//!
//! An ACK that rides behind a lone reply makes a segmented send of two packets, which costs both hosts more than one packet
//! does; sent apart it costs more still. A peer whose program goes on when it has the reply does not need it yet, and a later
//! ACK acknowledges all that came before. But a peer whose program waits for its request to complete needs it at once, and
//! nothing in its packets tells: the last one of a queue always asks for an ACK.
//!
//! *Rules.* So it is tried. After [`FIRST_TRY`] replies that took ACKs along, one leaves alone. If the peer's next message
//! comes within [`ack_coalesce`](super::super::EngineConfig::ack_coalesce) of it, the next reply leaves alone, too, and so on up
//! to [`MOST`] of them; the one after them takes the ACK. If it does not come in time, or comes a second time, the ACK leaves by
//! itself, and the next try is after twice as many replies, up to [`LAST_TRY`]: a peer that always waits loses a hundredth
//! of its time. Only one that has gone on for [`PROOF`] messages since is trusted as in the beginning, which is nearly as long
//! as it takes to gain what a vain wait costs; one that waits after every few messages is tried ever more rarely, too. (To
//! be stricter was tried: hosts stop for 20 µs now and then, and soon hardly any ACK waited.)
//!
//! Where the program goes to sleep, the ACK follows its reply at once, which nobody notices. What comes meanwhile and is not
//! answered is acknowledged as ever. Whoever drives the engine says of each reply whether an ACK may wait behind it
//! ([`Acks::Coalesce`](super::super::Acks)): somebody must look again soon, without being woken. NAKs and answers to READs and
//! atomics never wait. No ACK waits longer than `MOST` times `ack_coalesce`, 0.14 ms, where the device tells peers to allow
//! for 2 ms (`local_ca_ack_delay`).

use crate::engine::config::EngineConfig;
use crate::time::Instant;
use crate::wire::num::Psn;

/// Replies that take ACKs along before the first that does not.
const FIRST_TRY: u16 = 4;
/// The same, after many that were in vain.
const LAST_TRY: u16 = 1 << 9;
/// Replies without an ACK in a row. Few, for the peer's send queue has to have room for all that is not acknowledged, and
/// programs take it that a message was when it is answered.
const MOST: u8 = 7;
/// Messages for which a peer must go on since it last did not.
const PROOF: u16 = 32;
/// The ACK has waited long enough, and does so no more, whatever comes.
const OVER: u8 = MOST + 1;

/// What is known of a peer's patience.
#[derive(Debug)]
pub(super) struct Coalescing {
    /// Replies since the last try in vain: those that took ACKs along, and then those whose ACKs have waited.
    replies: u16,
    /// How many of them until the next try.
    next_try: u16,
    /// Replies that left without the ACK that waits. 0: none does; [`OVER`]: none may until it has left.
    alone: u8,
    /// On the engine's list.
    pub(super) listed: bool,
    /// What the ACK said when the last reply left.
    psn: Psn,
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
        due: Instant::ZERO,
    };

    /// A reply is about to leave, alone but for an ACK of `psn`. Whether the ACK waits.
    pub(super) fn waits(&mut self, now: Instant, psn: Psn, config: &EngineConfig) -> bool {
        if self.alone == 0 {
            if config.ack_coalesce.is_zero() || self.replies < self.next_try {
                self.replies = self.replies.saturating_add(1);
                return false;
            }
        } else if self.alone == OVER {
            return false;
        } else if psn == self.psn {
            // Another packet of the same reply, which proves nothing.
            return true;
        } else {
            // The peer has gone on without it.
            self.prove();
            if self.alone >= MOST {
                return false;
            }
        }
        self.due = now + config.ack_coalesce;
        (self.alone, self.psn) = (self.alone + 1, psn);
        true
    }

    /// Whether an ACK waits.
    #[inline(always)]
    pub(super) fn is_waiting(&self) -> bool {
        (1..OVER).contains(&self.alone)
    }

    /// Whether that of `psn` does. One of a message that was not answered does not.
    #[inline(always)]
    pub(super) fn is_waiting_at(&self, psn: Psn) -> bool {
        self.is_waiting() && psn == self.psn
    }

    /// When it leaves.
    pub(super) fn due(&self) -> Instant {
        self.due
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
    /// Whether it is late: the peer has not gone on.
    pub(super) fn expire(&mut self, psn: Psn) -> bool {
        let late = self.is_waiting_at(psn);
        if late {
            self.blame();
        }
        self.hurry();
        late
    }

    /// It leaves before its time, because the program goes to sleep: that keeps no peer waiting.
    pub(super) fn leave_early(&mut self) {
        if self.is_waiting() {
            self.prove();
        }
        self.hurry();
    }

    /// The peer asks again for what it was not told: it does not go on, or not for as long.
    pub(super) fn complain(&mut self) {
        if self.is_waiting() {
            self.blame();
        }
        self.hurry();
    }

    /// An ACK has waited, and nobody for it.
    fn prove(&mut self) {
        self.replies += 1;
        if self.replies >= self.next_try + PROOF {
            self.next_try = FIRST_TRY;
            self.replies = FIRST_TRY;
        }
    }

    fn blame(&mut self) {
        self.replies = 0;
        self.next_try = (self.next_try * 2).min(LAST_TRY);
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
        EngineConfig { ack_coalesce: us(20), ..EngineConfig::new([0; 32]) }
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
        assert_eq!(along(&mut c, &mut now, &mut psn, us(1), 64), [7, 15, 23, 31, 39, 47, 55, 63]);
        // The same where rounds take longer.
        c.end();
        assert_eq!(along(&mut c, &mut now, &mut psn, us(19), 32), [8, 16, 24, 32]);
    }

    #[test]
    fn a_peer_that_waits_is_tried_ever_more_rarely() {
        let (mut c, mut now, mut psn) = (Coalescing::NEW, Instant::ZERO, Psn::new(1));
        let mut tries = Vec::new();
        for _ in 0..10 {
            tries.push(until_alone(&mut c, &mut now, &mut psn, us(30)));
            assert_eq!(c.due(), now + us(20));
            c.expire(psn);
            assert!(!c.is_waiting());
            c.end();
        }
        assert_eq!(tries, [4, 8, 16, 32, 64, 128, 256, 512, 512, 512]);
        // To go on for a while is not enough to be trusted again; to do so for longer is.
        until_alone(&mut c, &mut now, &mut psn, us(1));
        assert_eq!(along(&mut c, &mut now, &mut psn, us(1), 31), [7, 15, 23, 31]);
        assert!(along(&mut c, &mut now, &mut psn, us(1), 1).is_empty());
        c.expire(psn);
        c.end();
        assert_eq!(until_alone(&mut c, &mut now, &mut psn, us(1)), 512);
        assert_eq!(along(&mut c, &mut now, &mut psn, us(1), 37), [7, 15, 23, 31]);
        c.expire(psn);
        c.end();
        assert_eq!(until_alone(&mut c, &mut now, &mut psn, us(1)), 2 * u32::from(FIRST_TRY));
    }

    #[test]
    fn a_program_that_goes_to_sleep_in_time_is_trusted_again() {
        let (mut c, mut now, mut psn) = (Coalescing::NEW, Instant::ZERO, Psn::new(1));
        for expected in [4, 8] {
            assert_eq!(until_alone(&mut c, &mut now, &mut psn, us(1)), expected);
            c.expire(psn);
            c.end();
        }
        assert_eq!(until_alone(&mut c, &mut now, &mut psn, us(1)), 16);
        for _ in 0..PROOF {
            c.leave_early();
            assert!(!c.is_waiting());
            c.end();
            assert_eq!(until_alone(&mut c, &mut now, &mut psn, us(1)), 0);
        }
        c.expire(psn);
        c.end();
        assert_eq!(until_alone(&mut c, &mut now, &mut psn, us(1)), 2 * u32::from(FIRST_TRY));
    }

    #[test]
    fn a_peer_that_asks_again_is_told_and_tried_later() {
        let (mut c, mut now, mut psn) = (Coalescing::NEW, Instant::ZERO, Psn::new(1));
        until_alone(&mut c, &mut now, &mut psn, us(1));
        c.complain();
        assert!(!c.is_waiting());
        c.end();
        assert_eq!(until_alone(&mut c, &mut now, &mut psn, us(1)), 2 * u32::from(FIRST_TRY));
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
        assert_eq!(until_alone(&mut c, &mut now, &mut psn, us(1)), 2 * u32::from(FIRST_TRY));
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
