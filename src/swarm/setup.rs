//! What is there when a run begins: hosts, connections, stations.

use std::sync::Arc;

use super::datagrams::Station;
use super::end::{End, Gear};
use super::plan::{Conn, Plan, SOURCE, Service};
use super::run::{Host, Phase, Run, State, Verdict, refused};
use super::shared::SharedQueue;
use crate::seed::Seeds;
use crate::verbs::{Access, QpAttr};

/// Completions that an end has at most at a time in each of its queues.
fn depth(plan: &Plan, conn: &Conn, end: usize) -> u32 {
    let shared = plan.shared_of(conn, end).map_or(0, |s| s.depth);
    2 * (conn.sends.max(2) + conn.receives) + shared
}

impl Run<'_> {
    pub(super) fn set_up(&mut self) -> Verdict {
        self.set_up_hosts()?;
        for (index, conn) in self.plan.conns.iter().enumerate() {
            let state = self.set_up_connection(conn)?;
            self.conns.extend(state);
            self.tell_watch(index);
        }
        for plan in &self.plan.stations {
            let Some(host) = &self.hosts[plan.host] else { continue };
            let shared = host.shared.as_ref().filter(|_| plan.shared);
            let depth = plan.sends + shared.map_or(plan.receives, |s| s.inbox.depth());
            let queue = || match &host.cq {
                Some(cq) => Ok(cq.clone()),
                None => host.ctx.create_cq(depth).map_err(refused),
            };
            self.stations.push(Station::new(host, plan, [&queue()?, &queue()?])?);
        }
        self.find_ways()
    }

    fn set_up_hosts(&mut self) -> Verdict {
        let of_conn = |c| depth(self.plan, c, 0) + depth(self.plan, c, 1);
        let total: u32 = self.plan.conns.iter().map(of_conn).sum();
        let stations = self.plan.stations.iter().map(|s| s.sends + s.receives).sum::<u32>();
        for (index, link) in self.plan.links.iter().enumerate() {
            let window = self.plan.windows[index];
            let ctx = self.sim.host_with(*link, |config| {
                if let Some(bytes) = window {
                    (config.window.initial, config.window.max) = (bytes, bytes);
                }
            });
            let ctx = ctx.map_err(refused)?;
            let pd = ctx.alloc_pd().map_err(refused)?;
            let source = pd.alloc_mr(SOURCE, Access::LOCAL).map_err(refused)?;
            let mut bytes = vec![0; SOURCE];
            let mut rng = Seeds::new(self.plan.seed).derive("source", index as u64).rng();
            rand_core::Rng::fill_bytes(&mut rng, &mut bytes);
            source.write(0, &bytes);
            let counter = pd.alloc_mr(8, Access::REMOTE).map_err(refused)?;
            let shared = self.plan.shared[index].as_ref();
            let cq = match self.plan.shared_cq {
                true => {
                    let depth = 2 * total + stations + shared.map_or(0, |s| s.depth);
                    Some(ctx.create_cq(depth).map_err(refused)?)
                }
                false => None,
            };
            let shared = shared.map(|plan| SharedQueue::new(&pd, plan)).transpose();
            let (source, shared) = (Arc::new(source), shared.map_err(refused)?);
            self.hosts.push(Some(Host { shared, ctx, pd, source, counter, cq }));
        }
        Ok(())
    }

    fn set_up_connection(&self, conn: &Conn) -> Result<Option<State>, String> {
        let mut gears = Vec::new();
        for end in 0..2 {
            let Some(host) = &self.hosts[conn.hosts[end]] else { continue };
            let queue = || match &host.cq {
                Some(cq) => Ok(cq.clone()),
                None => host.ctx.create_cq(depth(self.plan, conn, end)).map_err(refused),
            };
            let (cq, rcq) = (queue()?, queue()?);
            let shared = host.shared.as_ref().filter(|_| conn.shared[end]);
            let shared = shared.map(|queue| (&queue.srq, queue.inbox.room));
            let gear = Gear::new(&host.pd, &host.source, [&cq, &rcq], conn, shared);
            let gear = gear.map_err(refused)?;
            let told = gear.told(&host.counter).ok_or("no target")?;
            let memory = gear.memory().ok_or("no target")?;
            gears.push((gear, told, memory));
        }
        let (Some((b, told_b, of_b)), Some((a, told_a, of_a))) = (gears.pop(), gears.pop()) else {
            return Ok(None);
        };
        let mtu = connect(conn, &a, &b)?;
        let end = |gear, told, memory| End::new(gear, told, conn.service, mtu, memory);
        let mut ends = [end(a, told_a, of_b), end(b, told_b, of_a)];
        excuse(self.plan, conn, &mut ends);
        Ok(Some(State {
            ends,
            phase: Phase::Alive,
            lives: conn.lives,
            moved: self.now(),
            mtu,
            muted: [false; 2],
            starved: [false; 2],
        }))
    }

    pub(super) fn tell_watch(&self, index: usize) {
        let (Some(watch), Some(conn)) = (&self.watch, self.conns.get(index)) else { return };
        let plan = &self.plan.conns[index];
        for end in 0..2 {
            let (Some(me), Some(peer)) = (&conn.ends[end].gear, &conn.ends[1 - end].gear) else {
                return;
            };
            let (psn, to) = (me.qp.endpoint().psn, peer.qp.number());
            let flow = (plan.hosts[end], plan.hosts[1 - end], to);
            let mut watch = watch.lock();
            watch.expect(flow, psn, conn.mtu);
            watch.answered_to(plan.hosts[end], me.qp.number(), flow);
        }
    }
}

/// What the planned weather excuses from the beginning.
pub(super) fn excuse(plan: &Plan, conn: &Conn, ends: &mut [End; 2]) {
    for end in ends {
        end.may_time_out = plan.is_severe() || !plan.is_clean() && conn.retry_cnt < 5;
        end.may_be_kept_waiting = conn.rnr_retry < 7;
    }
}

/// Connects the ends of a connection. The path MTU.
pub(super) fn connect(plan: &Conn, a: &Gear, b: &Gear) -> Result<usize, String> {
    let (ea, eb) = (a.qp.endpoint(), b.qp.endpoint());
    let mtu = plan.mtu.min(ea.mtu).min(eb.mtu);
    let mut over = QpAttr::default().path_mtu(mtu);
    if plan.service == Service::Rc {
        over = over
            .timeout(plan.timeout)
            .retry_cnt(plan.retry_cnt)
            .rnr_retry(plan.rnr_retry)
            .min_rnr_timer(plan.min_rnr_timer)
            .max_rd_atomic(plan.rd_atomic)
            .max_dest_rd_atomic(plan.rd_atomic);
    }
    a.qp.connect_with(&eb, over.clone()).map_err(refused)?;
    b.qp.connect_with(&ea, over).map_err(refused)?;
    Ok(mtu.bytes())
}
