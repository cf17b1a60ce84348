//! The loops of the latency tests.
//!
//! WRITE and SEND go to and fro, and what counts is half of a round trip; READ and atomics are answered by
//! the other side's device, and what counts is the time from posting to completion.

use std::time::Duration;

use softroce::verbs::WcOpcode;

use super::control::Control;
use super::options::{Kind, Until};
use super::side::{Idle, Side};
use super::{Failure, Result, now};

/// Times that are kept: after so many the oldest are overwritten.
const KEPT: usize = 1 << 22;
/// With every how many messages a completion is asked for where none is waited for.
const SIGNAL_EVERY: u64 = 16;

/// What a run measured.
#[derive(Debug)]
pub(super) struct Times {
    /// Nanoseconds of each round, of the last ones if there were many.
    kept: Vec<u32>,
    /// All rounds.
    pub(super) rounds: u64,
    /// From the first to the last.
    pub(super) time: Duration,
}

impl Times {
    /// None so far.
    pub(super) fn new(until: Until) -> Self {
        let most = match until {
            Until::Iterations(n) => usize::try_from(n).map_or(KEPT, |n| n.min(KEPT)),
            Until::Seconds(_) => KEPT,
        };
        Self { kept: Vec::with_capacity(most), rounds: 0, time: Duration::ZERO }
    }

    /// Takes in a round.
    pub(super) fn record(&mut self, ns: Duration) {
        let ns = u32::try_from(ns.as_nanos()).unwrap_or(u32::MAX);
        if self.kept.len() < KEPT {
            self.kept.push(ns);
        } else {
            let at = usize::try_from(self.rounds % KEPT as u64).unwrap_or(0);
            self.kept[at] = ns;
        }
        self.rounds += 1;
    }

    /// The times in ascending order.
    pub(super) fn sorted(mut self) -> Vec<u32> {
        self.kept.sort_unstable();
        self.kept
    }
}

/// The client's side of a latency test.
pub(super) fn ping(side: &mut Side, size: u32) -> Result<Times> {
    let mut times = Times::new(side.plan.until);
    let (goal, end) = match side.plan.until {
        Until::Iterations(n) => (u64::from(n), None),
        Until::Seconds(s) => (u64::MAX, Some(Duration::from_secs(u64::from(s)))),
    };
    let mut player = Player::new(size);
    let start = now();
    let mut before = start;
    while times.rounds < goal && end.is_none_or(|end| before - start < end) {
        player.play(side)?;
        player.hear(side, || Ok(true))?;
        let after = now();
        times.record(after - before);
        before = after;
    }
    times.time = before - start;
    Ok(times)
}

/// The server's side of a test that goes to and fro: answers until the client has something to say.
pub(super) fn pong(side: &mut Side, control: &mut Control, size: u32) -> Result<u64> {
    let mut player = Player::new(size);
    let mut rounds = 0;
    while player.hear(side, || Ok(!control.is_ready()?))? {
        player.play(side)?;
        rounds += 1;
    }
    Ok(rounds)
}

/// What a side knows of the game.
#[derive(Debug)]
struct Player {
    size: u32,
    /// Messages posted, and known to be complete.
    posted: u64,
    completed: u64,
    /// Messages of the other side heard.
    heard: u64,
    /// Receives used, and not yet heard of by the caller.
    received: u64,
    idle: Idle,
}

impl Player {
    fn new(size: u32) -> Self {
        Self { size, posted: 0, completed: 0, heard: 0, received: 0, idle: Idle::new() }
    }

    /// Posts a message. That of WRITE carries the number of its round in its last byte.
    fn play(&mut self, side: &mut Side) -> Result<()> {
        let (q, size, kind) = (0, self.size, side.plan.kind);
        self.posted += 1;
        let request = side.request(q, size, self.posted);
        let answered_by_device = kind.is_read() || kind.is_atomic();
        let signaled = answered_by_device || self.posted.is_multiple_of(SIGNAL_EVERY);
        if kind == Kind::WriteLat {
            let end = side.out(q, size) + size as usize;
            let [number, ..] = self.posted.to_le_bytes();
            side.mr.write(end - 1, &[number]);
        }
        side.qps[q].post_send(if signaled { request } else { request.unsignaled() })?;
        Ok(())
    }

    /// Waits for the other side's next message, or for the own one's completion where the device answers.
    /// `false`: `go_on` said so, which is asked now and then.
    fn hear(&mut self, side: &mut Side, mut go_on: impl FnMut() -> Result<bool>) -> Result<bool> {
        let kind = side.plan.kind;
        let [next, ..] = (self.heard + 1).to_le_bytes();
        self.idle.reset();
        loop {
            let there = match kind {
                Kind::WriteLat => side.last_word(0).to_ne_bytes()[7] == next,
                Kind::SendLat => self.received > self.heard,
                _ => self.completed > self.heard,
            };
            // Slots are free again only when a completion was polled.
            let full = self.posted - self.completed >= 2 * SIGNAL_EVERY;
            if there && !full {
                self.heard += 1;
                return Ok(true);
            }
            let (size, mut wrong, mut used) = (self.size, None, 0);
            let n = side.look(|_, wc| {
                if wc.opcode == WcOpcode::Recv {
                    used += 1;
                    wrong = (wc.byte_len != size).then_some(wc.byte_len);
                } else {
                    self.completed = wc.wr_id;
                }
            })?;
            if let Some(len) = wrong {
                return Err(Failure::run(format_args!("a SEND of {len} bytes instead of {size}")));
            }
            for _ in 0..used {
                side.post_receive(0)?;
            }
            self.received += used;
            if n > 0 {
                self.idle.reset();
            } else if self.idle.again() || side.sleeps() {
                if !go_on()? {
                    return Ok(false);
                }
                self.idle.check()?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_times_are_kept_and_all_rounds_counted() {
        let mut times = Times::new(Until::Seconds(1));
        for n in 0..KEPT as u64 + 3 {
            times.record(Duration::from_nanos(n));
        }
        assert_eq!(times.rounds, KEPT as u64 + 3);
        let sorted = times.sorted();
        assert_eq!(sorted.len(), KEPT);
        assert_eq!((sorted[0], sorted[KEPT - 1] as usize), (3, KEPT + 2));
        let mut few = Times::new(Until::Iterations(2));
        few.record(Duration::from_secs(5));
        few.record(Duration::from_nanos(7));
        assert_eq!(few.sorted(), [7, u32::MAX]);
    }
}
