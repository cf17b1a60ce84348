//! The loops of the bandwidth tests.

use std::time::{Duration, Instant};

use softroce::verbs::{WcOpcode, WorkCompletion};

use super::control::Control;
use super::options::Until;
use super::side::{Idle, Side, Watch};
use super::{Failure, Result, now};

/// Messages for which the peak is looked for; it takes the square of their number.
const MOST_FOR_PEAK: usize = 20_000;

/// What a run measured.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Measured {
    /// Messages in that time, of all queue pairs.
    pub(super) messages: u64,
    /// Messages sent, those among them that were not counted.
    pub(super) sent: u64,
    /// From the first post to the last completion.
    pub(super) time: Duration,
    /// The shortest mean time for a message over any stretch; `None` if it was not looked for.
    pub(super) best: Option<Duration>,
}

/// When messages were posted and when they completed.
#[derive(Debug)]
struct Times {
    start: Instant,
    posted: Vec<u64>,
    completed: Vec<u64>,
    wanted: bool,
}

impl Times {
    fn new(until: Until, qps: u32) -> Self {
        let most = match until {
            Until::Iterations(n) => usize::try_from(u64::from(n) * u64::from(qps)).ok(),
            Until::Seconds(_) => None,
        };
        let wanted = most.filter(|&n| n <= MOST_FOR_PEAK);
        let room = || Vec::with_capacity(wanted.unwrap_or(0));
        Self { start: now(), posted: room(), completed: room(), wanted: wanted.is_some() }
    }

    fn ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn post(&mut self, messages: u32) {
        if self.wanted {
            let at = self.ns();
            self.posted.extend((0..messages).map(|_| at));
        }
    }

    fn complete(&mut self, messages: u32) {
        if self.wanted {
            let at = self.ns();
            self.completed.extend((0..messages).map(|_| at));
        }
    }

    /// As perftest: over all stretches, from a post to a later completion.
    fn best(&self) -> Option<Duration> {
        if !self.wanted {
            return None;
        }
        let mut best = f64::INFINITY;
        for (i, &posted) in self.posted.iter().enumerate() {
            for (n, &completed) in (1_u32..).zip(&self.completed[i..]) {
                #[expect(clippy::cast_precision_loss, reason = "of nanoseconds below a day")]
                let mean = completed.saturating_sub(posted) as f64 / f64::from(n);
                best = best.min(mean);
            }
        }
        best.is_finite().then(|| Duration::from_secs_f64(best / 1e9))
    }
}

/// What a queue pair has under way.
#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    posted: u64,
    completed: u64,
}

/// The client's side: posts and counts completions.
pub(super) fn pump(side: &mut Side, size: u32) -> Result<Measured> {
    let plan = side.plan.clone();
    let every = plan.signal_every(size);
    let (goal, end) = match plan.until {
        Until::Iterations(n) => (u64::from(n), None),
        Until::Seconds(s) => (u64::MAX, Some(Duration::from_secs(u64::from(s)))),
    };
    let mut lanes = vec![Lane::default(); side.qps.len()];
    let mut times = Times::new(plan.until, plan.qps);
    let mut last = times.start;
    let mut over = false;
    let mut idle = Idle::new();
    loop {
        over |= end.is_some_and(|end| times.start.elapsed() >= end);
        for (q, lane) in lanes.iter_mut().enumerate() {
            loop {
                let room = u64::from(plan.tx_depth) - (lane.posted - lane.completed);
                let left = if over { 0 } else { goal - lane.posted };
                let list = u64::from(plan.post_list).min(left);
                if list == 0 || room < list {
                    break;
                }
                #[expect(clippy::cast_possible_truncation, reason = "at most the depth of a queue")]
                let list = list as u32;
                times.post(list);
                // The last message is signaled in any case, as far as it is known to be the last.
                let first = lane.posted;
                let numbers = (1..=u64::from(list)).map(|i| first + i);
                let signaled = |n: u64| n.is_multiple_of(u64::from(every)) || n == goal;
                let wrs = numbers.map(|n| {
                    let wr = side.request(q, size, n);
                    if signaled(n) { wr } else { wr.unsignaled() }
                });
                side.qps[q].post_send(wrs)?;
                lane.posted += u64::from(list);
            }
        }
        let done = |l: &Lane| {
            l.completed >= if over { l.posted - l.posted % u64::from(every) } else { goal }
        };
        if lanes.iter().all(done) {
            break;
        }
        let n = side.look(|q, wc| {
            let lane = &mut lanes[q];
            #[expect(clippy::cast_possible_truncation, reason = "at most the depth of a queue")]
            times.complete((wc.wr_id - lane.completed) as u32);
            lane.completed = wc.wr_id;
        })?;
        if n > 0 {
            last = now();
            idle.reset();
        } else if idle.again() || side.sleeps() {
            idle.check()?;
        }
    }
    // What was posted without a completion before time was up is under way still; with one more that has a
    // completion all of it is known to have arrived. It is not counted.
    let messages = lanes.iter().map(|l| l.completed).sum();
    let mut sent: u64 = lanes.iter().map(|l| l.posted).sum();
    let mut open = 0;
    for (q, lane) in lanes.iter().enumerate().filter(|(_, l)| l.completed < l.posted) {
        side.qps[q].post_send(side.request(q, size, lane.posted + 1))?;
        (open, sent) = (open + 1, sent + 1);
    }
    while open > 0 {
        match side.look(|_, _| ())? {
            0 if idle.again() || side.sleeps() => idle.check()?,
            n => open -= n.min(open),
        }
    }
    Ok(Measured { messages, sent, time: last - times.start, best: times.best() })
}

/// The server's side: lets the device work until the client has something to say. For send_bw, puts back
/// each receive that was used. Says how many there were.
pub(super) fn attend(side: &mut Side, control: &mut Control, size: u32) -> Result<u64> {
    let mut received = 0;
    let mut used = Vec::with_capacity(64);
    let mut idle = Idle::new();
    let mut watch = Watch::new();
    loop {
        let n = side.look(|q, wc: &WorkCompletion| {
            if wc.opcode == WcOpcode::Recv {
                used.push((q, wc.byte_len));
            }
        })?;
        received += used.len() as u64;
        for (q, len) in used.drain(..) {
            if len != size {
                return Err(Failure::run(format_args!("a SEND of {len} bytes instead of {size}")));
            }
            side.post_receive(q)?;
        }
        if n > 0 {
            idle.reset();
        } else if idle.again() || side.sleeps() {
            if control.is_ready()? {
                return Ok(received);
            }
            watch.look(side)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_the_best_stretch() {
        let mut times = Times::new(Until::Iterations(4), 1);
        times.posted = vec![0, 0, 100, 100];
        times.completed = vec![90, 100, 120, 160];
        // From the post at 100 to the completion at 120 is one message in 20 ns.
        assert_eq!(times.best(), Some(Duration::from_nanos(20)));
        assert_eq!(Times::new(Until::Seconds(1), 1).best(), None);
        assert_eq!(Times::new(Until::Iterations(20_001), 1).best(), None);
        assert!(Times::new(Until::Iterations(10_000), 2).wanted);
    }
}
