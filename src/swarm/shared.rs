//! Shared receive queues: who posts to them, and what they tell.
//!
//! What is asked of the limit: it fires only when it is armed, once, and when fewer receives are left; and it does
//! fire then. How many are left is known between two numbers, for each queue pair may hold one receive of a
//! message that has not ended.

use super::inbox::{Inbox, PIECES};
use super::plan::{Plan, Shared};
use super::run::{Run, Verdict, refused};
use crate::time::Instant;
use crate::verbs::{self, Event, ProtectionDomain, QpState, RecvWr, SharedReceiveQueue};

/// A shared receive queue with its receives.
#[derive(Debug)]
pub(super) struct SharedQueue {
    pub(super) srq: SharedReceiveQueue,
    pub(super) inbox: Inbox,
    /// When a receive came back last.
    pub(super) moved: Instant,
    next_post: Instant,
    armed: bool,
    /// Fewer receives than the limit were left when it was looked at last.
    overdue: bool,
}

impl SharedQueue {
    pub(super) fn new(pd: &ProtectionDomain, plan: &Shared) -> verbs::Result<Self> {
        Ok(Self {
            srq: pd.create_srq(plan.depth, PIECES)?,
            inbox: Inbox::new(pd, plan.depth, plan.room, true)?,
            moved: Instant::ZERO,
            next_post: Instant::ZERO,
            armed: false,
            overdue: false,
        })
    }

    /// Posts receives, and arms the limit again, when it is time. Whether it did.
    fn tend(&mut self, now: Instant, plan: &Shared) -> Result<bool, String> {
        if now < self.next_post || self.inbox.outstanding() > plan.low as usize {
            return Ok(false);
        }
        self.next_post = now + plan.gap;
        let mut posted = 0;
        // At least so many that somebody gets on whom nobody holds up.
        while self.inbox.outstanding() <= plan.low as usize || posted < plan.batch {
            match self.inbox.refill_shared(&self.srq, 1)? {
                0 => break,
                n => posted += n,
            }
        }
        if plan.limit > 0 && !self.armed {
            (self.armed, self.overdue) = (true, false);
            self.srq.set_limit(plan.limit).map_err(refused)?;
        }
        Ok(posted > 0)
    }

    /// The limit has fired. `held`: receives that queue pairs may hold, if that is known.
    fn fired(&mut self, plan: &Shared, held: Option<usize>) -> Verdict {
        let out = self.inbox.outstanding();
        if !std::mem::replace(&mut self.armed, false) {
            return Err("the limit of a shared queue fired and was not armed, or twice".into());
        }
        if held.is_some_and(|held| out >= plan.limit as usize + held) {
            return Err(format!(
                "the limit of {} fired with {out} receives in the shared queue",
                plan.limit
            ));
        }
        Ok(())
    }

    /// Whether the limit should have fired.
    fn check_limit(&mut self, plan: &Shared) -> Verdict {
        let is_below = self.armed && self.inbox.outstanding() < plan.limit as usize;
        if is_below && self.overdue {
            let left = self.inbox.outstanding();
            return Err(format!("the limit of {} does not fire, and {left} are left", plan.limit));
        }
        self.overdue = is_below;
        Ok(())
    }

    /// Nobody takes receives any more: those that have not come back are in the queue, no more and no fewer.
    fn check_balance(&self) -> Verdict {
        let depth = self.srq.query().map_err(refused)?.max_wr as usize;
        let mut room = 0;
        while room <= depth && self.srq.post_recv([RecvWr::new(0, ())]).is_ok() {
            room += 1;
        }
        let out = self.inbox.outstanding();
        if room + out != depth {
            return Err(format!(
                "{out} receives of a shared queue have not come back, and {} of its {depth} slots are full",
                depth - room.min(depth)
            ));
        }
        Ok(())
    }
}

/// Ends and stations of a host that take from its shared queue.
fn sharers(plan: &Plan, host: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
    let conns = plan.conns.iter().enumerate();
    conns.flat_map(move |(i, c)| {
        let ends = (0..2).filter(move |&end| c.hosts[end] == host && c.shared[end]);
        ends.map(move |end| (i, end))
    })
}

impl Run<'_> {
    /// Takes the events of all hosts with a shared queue. Before completions: what has led to an event is known
    /// when it is judged, after them.
    pub(super) fn collect_events(&self) -> Vec<(usize, Event)> {
        let mut events = Vec::new();
        for (index, host) in self.hosts.iter().enumerate() {
            let Some(host) = host.as_ref().filter(|h| h.shared.is_some()) else { continue };
            while let Ok(event) = host.ctx.wait_event(std::time::Duration::ZERO) {
                events.push((index, event));
            }
        }
        events
    }

    /// Judges events, and what should have been one.
    pub(super) fn check_events(&mut self, events: Vec<(usize, Event)>) -> Verdict {
        for (host, event) in events {
            match event {
                Event::SrqLimit { .. } => {
                    self.seen.limits += 1;
                    let is_muted = |(conn, end): (usize, usize)| {
                        self.conns[conn].muted[end] || self.conns[conn].ends[end].gear.is_none()
                    };
                    let known = !sharers(self.plan, host).any(is_muted);
                    let held = known.then(|| self.plan.sharers(host));
                    if let Some((queue, plan)) = self.shared_of(host) {
                        queue.fired(plan, held).map_err(|what| format!("host {host}: {what}"))?;
                    }
                }
                Event::LastWqe { qpn } => {
                    self.seen.last_receives += 1;
                    self.last_wqe(host, qpn)?;
                }
                _ => {}
            }
        }
        for host in 0..self.hosts.len() {
            if let Some((queue, plan)) = self.shared_of(host) {
                queue.check_limit(plan).map_err(|what| format!("host {host}: {what}"))?;
            }
        }
        Ok(())
    }

    fn shared_of(&mut self, host: usize) -> Option<(&mut SharedQueue, &Shared)> {
        let queue = self.hosts[host].as_mut().and_then(|h| h.shared.as_mut())?;
        self.plan.shared[host].as_ref().map(|plan| (queue, plan))
    }

    /// A queue pair has told that it takes no more receives.
    fn last_wqe(&mut self, host: usize, qpn: u32) -> Verdict {
        for (conn, end) in sharers(self.plan, host) {
            let e = &mut self.conns[conn].ends[end];
            if e.gear.as_ref().is_some_and(|g| g.qp.number() == qpn) {
                e.last_told += 1;
                if e.state() == Some(QpState::Err) && e.last_told == 1 {
                    return Ok(());
                }
                return Err(format!(
                    "connection {conn}, end {end}, in {:?}: the last receive was taken, told for time {}",
                    e.state(),
                    e.last_told
                ));
            }
        }
        self.station_left(host, qpn)
    }

    /// Lets the owners of shared queues post receives.
    pub(super) fn tend_shared(&mut self) -> Result<bool, String> {
        let now = self.now();
        let mut moved = false;
        for host in 0..self.hosts.len() {
            let mut sharers = sharers(self.plan, host);
            if sharers.any(|(conn, end)| self.conns[conn].starved[end]) {
                continue;
            }
            if let Some((queue, plan)) = self.shared_of(host) {
                moved |= queue.tend(now, plan)?;
            }
        }
        Ok(moved)
    }

    /// All queue pairs are in ERR, and what they held has come back.
    pub(super) fn check_shared(&self) -> Verdict {
        for (index, host) in self.hosts.iter().enumerate() {
            if let Some(queue) = host.as_ref().and_then(|h| h.shared.as_ref()) {
                queue.check_balance().map_err(|what| format!("host {index}: {what}"))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::inbox::{RECEIVE, SHARED};
    use super::*;
    use crate::sim::{Link, Sim};
    use crate::time::Duration;

    const PLAN: Shared =
        Shared { depth: 4, room: 8, low: 4, batch: 64, gap: Duration::ZERO, limit: 2 };

    #[test]
    fn the_limit_fires_once_and_in_time() {
        let [ctx] = Sim::new(1).hosts(Link::default());
        let mut queue = SharedQueue::new(&ctx.alloc_pd().unwrap(), &PLAN).unwrap();
        assert!(queue.fired(&PLAN, None).is_err(), "not armed");
        assert_eq!(queue.tend(Instant::ZERO, &PLAN), Ok(true));
        assert!(queue.armed && queue.check_limit(&PLAN).is_ok());
        assert!(queue.fired(&PLAN, Some(2)).is_err(), "two at least are left");
        queue.armed = true;
        assert!(queue.fired(&PLAN, Some(3)).is_ok() && queue.fired(&PLAN, Some(3)).is_err());
        queue.armed = true;
        for n in 0..3 {
            let id = RECEIVE | SHARED | n;
            let wc = verbs::WorkCompletion { wr_id: id, ..verbs::WorkCompletion::default() };
            queue.inbox.complete(&wc).unwrap();
        }
        assert!(queue.check_limit(&PLAN).is_ok(), "it may be on its way");
        assert!(queue.check_limit(&PLAN).is_err(), "it is not");
    }

    #[test]
    fn a_lost_receive_is_missed() {
        let [ctx] = Sim::new(1).hosts(Link::default());
        let mut queue = SharedQueue::new(&ctx.alloc_pd().unwrap(), &PLAN).unwrap();
        queue.tend(Instant::ZERO, &PLAN).unwrap();
        assert_eq!(queue.check_balance(), Ok(()));
        let [ctx] = Sim::new(1).hosts(Link::default());
        let mut queue = SharedQueue::new(&ctx.alloc_pd().unwrap(), &PLAN).unwrap();
        queue.inbox.refill_shared(&queue.srq, 3).unwrap();
        let id = RECEIVE | SHARED;
        let wc = verbs::WorkCompletion { wr_id: id, ..verbs::WorkCompletion::default() };
        // It is in the queue still.
        queue.inbox.complete(&wc).unwrap();
        assert!(queue.check_balance().is_err());
    }
}
