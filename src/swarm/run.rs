//! A run: carries out a plan on a simulated network and holds what happens against the model.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::datagrams::Station;
use super::end::{End, Gear, Note};
use super::inbox::{RECEIVE, SHARED};
use super::loose::Disorder;
use super::plan::{Conn, Fault, Plan, What};
use super::setup::{connect, excuse};
use super::shared::SharedQueue;
use super::wire::Watch;
use crate::fabric::{Link, RuleGuard};
use crate::seed::{Seeds, below};
use crate::sim::Sim;
use crate::time::{Duration, Instant};
use crate::verbs::{
    CompletionQueue, Context, Error, MemoryRegion, ProtectionDomain, QpAttr, QpState, WcStatus,
    WorkCompletion,
};

/// How a run went.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Its seed.
    pub seed: u64,
    /// Digest of everything that crossed the network.
    pub trace_hash: u64,
    /// Packets that were sent or delivered.
    pub packets: u64,
    /// Requests that completed, well or not.
    pub requests: u64,
    /// Virtual time that it took.
    pub took: Duration,
    /// What the devices counted, summed up, and what the run itself did.
    pub counters: BTreeMap<String, u64>,
    /// What cannot be.
    pub failure: Option<String>,
    /// The last packets, if they were recorded.
    pub trace: Vec<String>,
}

/// What to do besides.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Record what crosses the network, as text.
    pub trace: bool,
    /// And as packets, in this pcapng file.
    pub pcap: Option<std::path::PathBuf>,
}

/// A host, while it lives.
pub(super) struct Host {
    /// Goes first: what it was made in is needed for that.
    pub(super) shared: Option<SharedQueue>,
    pub(super) ctx: Context,
    pub(super) pd: ProtectionDomain,
    pub(super) source: Arc<MemoryRegion>,
    pub(super) counter: MemoryRegion,
    /// One queue for everything, if that is the plan.
    pub(super) cq: Option<CompletionQueue>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Alive,
    /// One end has failed.
    Broken(Instant),
    Over,
}

pub(super) struct State {
    pub(super) ends: [End; 2],
    pub(super) phase: Phase,
    pub(super) lives: u32,
    pub(super) moved: Instant,
    pub(super) mtu: usize,
    pub(super) muted: [bool; 2],
    pub(super) starved: [bool; 2],
}

pub(super) struct Run<'a> {
    pub(super) plan: &'a Plan,
    pub(super) sim: Sim,
    pub(super) hosts: Vec<Option<Host>>,
    pub(super) conns: Vec<State>,
    pub(super) stations: Vec<Station>,
    /// What the network has done so far.
    pub(super) disorder: Disorder,
    begun: Vec<bool>,
    ended: Vec<bool>,
    rules: BTreeMap<usize, RuleGuard>,
    quiet: Instant,
    pub(super) watch: Option<Arc<Mutex<Watch>>>,
    pub(super) requests: u64,
    pub(super) died: bool,
    /// Memory that peers write to was deregistered.
    pub(super) deregistered: bool,
    /// Events of shared queues, and accounts that were balanced.
    pub(super) seen: Seen,
}

/// How often what is asked could have gone wrong.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// Limits of shared queues that fired.
    pub(super) limits: u64,
    /// Queue pairs that told that they take no more receives.
    pub(super) last_receives: u64,
    /// Hosts with something unreliable to account for, where nothing was lost.
    pub(super) balanced: u64,
}

/// Something is under way.
const EBUSY: i32 = 16;

/// Why a run ends early.
pub(super) type Verdict = Result<(), String>;

/// A verb was refused that should not be.
pub(super) fn refused(e: Error) -> String {
    format!("refused: {e}")
}

/// Carries out a plan.
pub fn run(plan: &Plan, options: &Options) -> Outcome {
    let sim = Sim::exact(plan.seed);
    let watch = (plan.watched || options.trace).then(|| Watch::new(plan, options.trace));
    let watch = watch.map(|w| Arc::new(Mutex::new(w)));
    if let Some(watch) = &watch {
        let watch = Arc::clone(watch);
        sim.tap(move |packet| watch.lock().packet(packet));
    }
    let mut run = Run {
        plan,
        sim: sim.clone(),
        hosts: Vec::new(),
        conns: Vec::new(),
        stations: Vec::new(),
        disorder: Disorder::default(),
        begun: vec![false; plan.faults.len()],
        ended: vec![false; plan.faults.len()],
        rules: BTreeMap::new(),
        quiet: Instant::ZERO + plan.quiet(),
        watch,
        requests: 0,
        died: false,
        deregistered: false,
        seen: Seen::default(),
    };
    let started = match &options.pcap {
        Some(path) => sim.pcap(path).map_err(refused),
        None => Ok(()),
    };
    let failure = started.and_then(|()| run.set_up()).and_then(|()| run.carry_out()).err();
    let failure = failure.map(|what| format!("at {:?}: {what}", sim.now()));
    let mut counters = BTreeMap::new();
    for host in run.hosts.iter().flatten() {
        for (name, n) in host.ctx.counters(1).unwrap_or_default() {
            *counters.entry(name).or_default() += n;
        }
    }
    let Seen { limits, last_receives, balanced } = run.seen;
    for (name, n) in [
        ("swarm_limit_events", limits),
        ("swarm_last_wqe_events", last_receives),
        ("swarm_balanced_hosts", balanced),
    ] {
        counters.insert(name.into(), n);
    }
    let trace = run.watch.as_ref().map(|w| w.lock().take_lines()).unwrap_or_default();
    let Run { requests, hosts, conns, stations, .. } = run;
    let packets = sim.total_counters();
    drop((conns, stations, hosts));
    let _ = sim.stop_pcap();
    Outcome {
        seed: plan.seed,
        trace_hash: sim.trace_hash(),
        packets: packets.sent + packets.delivered,
        requests,
        took: sim.now(),
        counters,
        failure,
        trace,
    }
}

impl Run<'_> {
    pub(super) fn now(&self) -> Instant {
        Instant::ZERO + self.sim.now()
    }

    fn carry_out(&mut self) -> Verdict {
        let mut rng = Seeds::new(self.plan.seed).derive("pace", 0).rng();
        let mut pause = Duration::from_micros(1);
        let mut rounds = 0_u64;
        loop {
            rounds += 1;
            let mut moved = self.faults()?;
            moved |= self.collect()?;
            for index in 0..self.conns.len() {
                moved |= self.tend(index)?;
            }
            moved |= self.tend_shared()? | self.tend_stations()?;
            if rounds.is_multiple_of(16) {
                self.look_at_memory()?;
            }
            if let Some(what) = self.watch.as_ref().and_then(|w| w.lock().failure()) {
                return Err(what);
            }
            let stations = self.plan.stations.iter().zip(&self.stations);
            if self.conns.iter().all(|c| c.phase == Phase::Over)
                && stations.into_iter().all(|(plan, station)| station.is_done(plan))
            {
                break;
            }
            pause = if moved {
                Duration::from_nanos(500 + below(&mut rng, 5000))
            } else {
                (pause * 2).min(Duration::from_micros(200))
            };
            self.sim.run_for(pause);
        }
        self.finish()
    }

    /// Begins and ends faults.
    fn faults(&mut self) -> Result<bool, String> {
        let now = self.sim.now();
        let mut moved = false;
        for i in 0..self.plan.faults.len() {
            let fault = &self.plan.faults[i];
            if !self.begun[i] && fault.from <= now {
                self.begun[i] = true;
                moved = true;
                self.begin(i, fault)?;
            }
            if self.begun[i] && !self.ended[i] && fault.until <= now {
                self.ended[i] = true;
                moved = true;
                if !self.end(i, fault)? {
                    self.ended[i] = false;
                }
            }
        }
        Ok(moved)
    }

    /// The cable of a host with everything that is wrong with it now.
    fn set_weather(&self, host: usize) -> Verdict {
        let mut link: Link = self.plan.links[host];
        for (i, fault) in self.plan.faults.iter().enumerate() {
            if let What::Weather { host: at, loss, reorder, duplicate, corrupt, jitter, delay } =
                fault.what
                && at == host
                && self.begun[i]
                && !self.ended[i]
            {
                link.loss = link.loss.max(loss);
                link.reorder = link.reorder.max(reorder);
                link.duplicate = link.duplicate.max(duplicate);
                link.corrupt = link.corrupt.max(corrupt);
                link.jitter = link.jitter.max(jitter);
                link.delay = link.delay.max(delay + self.plan.links[host].delay);
            }
        }
        match &self.hosts[host] {
            Some(host) => self.sim.set_link(&host.ctx, link).map_err(refused),
            None => Ok(()),
        }
    }

    fn set_cable(&self, host: usize) -> Verdict {
        let Some(live) = &self.hosts[host] else { return Ok(()) };
        let down = self
            .plan
            .faults
            .iter()
            .enumerate()
            .any(|(i, f)| f.what == What::Down { host } && self.begun[i] && !self.ended[i]);
        self.sim.set_up(&live.ctx, !down).map_err(refused)
    }

    fn begin(&mut self, index: usize, fault: &Fault) -> Verdict {
        match fault.what {
            What::Weather { host, .. } => self.set_weather(host)?,
            What::Rule(rule) => {
                self.rules.insert(index, self.sim.rule_while(rule).map_err(refused)?);
            }
            What::Down { host } => self.set_cable(host)?,
            What::NoReceives { conn, end } => self.conns[conn].starved[end] = true,
            What::Deaf { station } => self.stations[station].deaf = true,
            What::NoPolls { conn, end } => self.conns[conn].muted[end] = !self.plan.shared_cq,
            What::Drain { conn, end } => {
                if let Some(gear) = &self.conns[conn].ends[end].gear
                    && gear.qp.state() == Ok(QpState::Rts)
                {
                    gear.qp.modify(&QpAttr::to(QpState::Sqd)).map_err(refused)?;
                }
            }
            What::Error { conn, end } => self.fail(conn, end)?,
            What::Deregister { conn, end } => {
                if self.conns[conn].phase == Phase::Alive {
                    let [a, b] = &mut self.conns[conn].ends;
                    let (owner, user) = if end == 0 { (a, b) } else { (b, a) };
                    if owner.deregister()? {
                        self.deregistered = true;
                        owner.may_flush = true;
                        owner.spoils.push(WcStatus::LocAccess);
                        user.may_be_refused = true;
                    }
                }
            }
            What::Death { host } => {
                self.died = true;
                for (plan, conn) in self.plan.conns.iter().zip(&mut self.conns) {
                    for end in 0..2 {
                        if plan.hosts[end] == host {
                            conn.ends[end].gear = None;
                            conn.ends[1 - end].may_time_out = true;
                        }
                    }
                }
                for (plan, station) in self.plan.stations.iter().zip(&mut self.stations) {
                    if plan.host == host {
                        station.gear = None;
                    }
                }
                self.hosts[host] = None;
            }
        }
        Ok(())
    }

    /// Ends a fault, if that goes now.
    fn end(&mut self, index: usize, fault: &Fault) -> Result<bool, String> {
        match fault.what {
            What::Weather { host, .. } => self.set_weather(host)?,
            What::Rule(_) => drop(self.rules.remove(&index)),
            What::Down { host } => self.set_cable(host)?,
            What::NoReceives { conn, end } => self.conns[conn].starved[end] = false,
            What::Deaf { station } => self.stations[station].deaf = false,
            What::NoPolls { conn, end } => self.conns[conn].muted[end] = false,
            What::Drain { conn, end } => {
                if let Some(gear) = &self.conns[conn].ends[end].gear
                    && gear.qp.state() == Ok(QpState::Sqd)
                {
                    match gear.qp.modify(&QpAttr::to(QpState::Rts)) {
                        // It has not drained yet.
                        Err(e) if e.errno() == Some(EBUSY) => return Ok(false),
                        done => done.map_err(refused)?,
                    }
                }
            }
            What::Error { .. } | What::Deregister { .. } | What::Death { .. } => {}
        }
        Ok(true)
    }

    /// Sends an end to ERR.
    fn fail(&mut self, conn: usize, end: usize) -> Verdict {
        let ends = &mut self.conns[conn].ends;
        let Some(gear) = &ends[end].gear else { return Ok(()) };
        if gear.qp.state() == Ok(QpState::Err) {
            return Ok(());
        }
        gear.qp.modify(&QpAttr::to(QpState::Err)).map_err(refused)?;
        ends[end].may_flush = true;
        ends[1 - end].may_time_out = true;
        Ok(())
    }

    /// Takes completions. Those of requests come first: what they acknowledge has arrived.
    fn collect(&mut self) -> Result<bool, String> {
        // Whoever is in ERR does not answer.
        for conn in &mut self.conns {
            for end in 0..2 {
                conn.ends[1 - end].may_time_out |= conn.ends[end].state() == Some(QpState::Err);
            }
        }
        let network = self.sim.total_counters();
        self.disorder = Disorder { copies: network.duplicated > 0, late: network.reordered > 0 };
        let events = self.collect_events();
        let mut moved = !events.is_empty();
        for host in 0..self.hosts.len() {
            let Some(cq) = self.hosts[host].as_ref().and_then(|h| h.cq.clone()) else { continue };
            let mut all = cq.drain();
            // Stable: the order within each kind is kept.
            all.sort_by_key(|wc| wc.wr_id & RECEIVE);
            moved |= !all.is_empty();
            for wc in all {
                self.dispatch(host, &wc)?;
            }
        }
        for receives in [false, true] {
            for index in 0..self.conns.len() {
                for end in 0..2 {
                    if self.conns[index].muted[end] || self.plan.shared_cq {
                        continue;
                    }
                    let Some(gear) = &self.conns[index].ends[end].gear else { continue };
                    let all = if receives { gear.rcq.drain() } else { gear.cq.drain() };
                    moved |= !all.is_empty();
                    for wc in all {
                        self.take(index, end, &wc)?;
                    }
                }
            }
            for index in 0..self.stations.len() {
                let gear = self.stations[index].gear.as_ref().filter(|_| !self.plan.shared_cq);
                let Some(gear) = gear else { continue };
                let all = if receives { gear.rcq.drain() } else { gear.cq.drain() };
                moved |= !all.is_empty();
                for wc in all {
                    self.station_takes(index, &wc)?;
                }
            }
        }
        self.check_events(events)?;
        if moved {
            self.check_delivered()?;
            self.check_flushed()?;
        }
        Ok(moved)
    }

    /// What was written before a FLUSH that has completed is there.
    fn check_flushed(&mut self) -> Verdict {
        for (index, conn) in self.conns.iter_mut().enumerate() {
            let flushed = conn.ends.iter_mut().map(|e| std::mem::take(&mut e.flushed));
            if flushed.fold(false, |a, b| a | b) && conn.phase != Phase::Over {
                look_at_memory(index, conn, false)?;
            }
        }
        Ok(())
    }

    /// A completion of a shared queue.
    fn dispatch(&mut self, host: usize, wc: &WorkCompletion) -> Verdict {
        for (index, plan) in self.plan.conns.iter().enumerate() {
            for end in 0..2 {
                let gear = self.conns[index].ends[end].gear.as_ref();
                if plan.hosts[end] == host && gear.is_some_and(|g| g.qp.number() == wc.qpn) {
                    return self.take(index, end, wc);
                }
            }
        }
        match self.station_of(host, wc.qpn) {
            Some(index) => self.station_takes(index, wc),
            None => Err(format!("{wc:?}: no queue pair of host {host} has this number")),
        }
    }

    fn take(&mut self, index: usize, end: usize, wc: &WorkCompletion) -> Verdict {
        let now = self.now();
        let conn = &mut self.conns[index];
        conn.moved = now;
        let [a, b] = &mut conn.ends;
        let (me, peer) = if end == 0 { (a, b) } else { (b, a) };
        let qpn = me.gear.as_ref().map_or(0, |g| g.qp.number());
        let taken = if wc.qpn != qpn {
            Err(format!("{wc:?}: it is not of queue pair {qpn:#x}"))
        } else if wc.wr_id & RECEIVE == 0 {
            self.requests += 1;
            me.completed(wc)
        } else if wc.wr_id & SHARED == 0 {
            me.arrived(wc, peer, None, self.disorder)
        } else {
            let host = self.hosts[self.plan.conns[index].hosts[end]].as_mut();
            let shared = host.and_then(|h| h.shared.as_mut()).map(|queue| {
                queue.moved = now;
                &mut queue.inbox
            });
            me.arrived(wc, peer, shared, self.disorder)
        };
        taken.map_err(|what| format!("connection {index}, end {end}: {what}"))
    }

    /// What is acknowledged has arrived.
    fn check_delivered(&self) -> Verdict {
        for (index, conn) in self.conns.iter().enumerate() {
            if conn.muted != [false; 2] || conn.phase == Phase::Over {
                continue;
            }
            for end in 0..2 {
                let (sender, receiver) = (&conn.ends[end].stream, &conn.ends[1 - end]);
                let (sent, received) = (sender.acknowledged_messages(), sender.received());
                if receiver.gear.is_some() && received < sent {
                    return Err(format!(
                        "connection {index}: {sent} messages of end {end} are acknowledged, {received} arrived"
                    ));
                }
            }
        }
        Ok(())
    }

    fn look_at_memory(&mut self) -> Verdict {
        for (index, conn) in self.conns.iter_mut().enumerate() {
            if conn.phase == Phase::Over {
                continue;
            }
            look_at_memory(index, conn, false)?;
        }
        Ok(())
    }

    /// Time within which a connection must get on once the faults are over. Connections wait for each other
    /// where they share a window, so the longest timeout counts, and a turn of another before each retry.
    fn patience(&self, plan: &Conn) -> Duration {
        let longest = self.plan.conns.iter().map(|c| c.timeout).max().unwrap_or_default();
        let timeout = Duration::from_nanos(4096 << longest) * 2;
        let rnr = crate::wire::aeth::rnr_timer(plan.min_rnr_timer);
        timeout * (u32::from(plan.retry_cnt) + 3) + rnr * 12 + Duration::from_millis(5)
    }

    /// When a receive came back last to a shared queue that a connection uses: it has to wait for others there.
    fn shared_moved(&self, index: usize) -> Instant {
        let plan = &self.plan.conns[index];
        let hosts = (0..2).filter(|&end| plan.shared[end]).map(|end| plan.hosts[end]);
        let queues = hosts.filter_map(|h| self.hosts[h].as_ref()?.shared.as_ref());
        queues.map(|queue| queue.moved).max().unwrap_or(Instant::ZERO)
    }

    /// Lets a connection get on.
    fn tend(&mut self, index: usize) -> Result<bool, String> {
        let now = self.now();
        let plan = &self.plan.conns[index];
        let phase = self.conns[index].phase;
        if phase == Phase::Over {
            return Ok(false);
        }
        let wait = self.patience(plan);
        let conn = &mut self.conns[index];
        let since = conn.moved.max(self.quiet);
        if now.saturating_since(since) > wait
            && conn.muted == [false; 2]
            && now.saturating_since(self.shared_moved(index)) > wait
        {
            let conn = &self.conns[index];
            return Err(format!(
                "connection {index} stands still: {:?} in the queues, states {:?}, faults over since {:?}",
                conn.ends.each_ref().map(|e| e.stream.outstanding()),
                conn.ends.each_ref().map(End::state),
                now.saturating_since(self.quiet)
            ));
        }
        match phase {
            Phase::Alive => self.work(index),
            Phase::Broken(since) => self.bury(index, since),
            Phase::Over => Ok(false),
        }
    }

    fn work(&mut self, index: usize) -> Result<bool, String> {
        let now = self.now();
        let plan = &self.plan.conns[index];
        let conn = &mut self.conns[index];
        let mut moved = false;
        for end in &mut conn.ends {
            if end.state() == Some(QpState::Sqe) && end.stream.outstanding() == 0 {
                end.go_on().map_err(refused)?;
                moved = true;
            }
        }
        let broken = |e: &End| {
            if e.loose.is_some() && e.state() == Some(QpState::Sqe) {
                return false;
            }
            e.stream.failed().is_some() || !matches!(e.state(), Some(QpState::Rts | QpState::Sqd))
        };
        if conn.ends.iter().any(broken) {
            conn.phase = Phase::Broken(now);
            conn.moved = now;
            return Ok(true);
        }
        for end in 0..2 {
            let [a, b] = &mut conn.ends;
            let (me, peer) = if end == 0 { (a, b) } else { (b, a) };
            let its = &plan.ends[end];
            if !conn.starved[end] {
                moved |= me.post_receives(its.low)? > 0;
            }
            if me.next_op < its.ops.len() && now >= me.next_post {
                let unused = peer.uses_no_window();
                let (posted, notes) = me.post(&its.ops, its.batch, &mut peer.told, unused)?;
                if posted > 0 {
                    me.next_post = now + its.gap;
                    moved = true;
                }
                for note in notes {
                    peer.may_flush = true;
                    me.may_time_out = true;
                    if note == Note::Overflows {
                        peer.spoils.push(WcStatus::LocLen);
                    }
                }
            }
        }
        let idle = |end: usize| {
            let e = &conn.ends[end];
            e.next_op == plan.ends[end].ops.len() && e.stream.outstanding() == 0
        };
        if idle(0) && idle(1) {
            conn.phase = Phase::Over;
            look_at_memory(index, conn, true)?;
            // What was acknowledged has arrived; what was not sent has not.
            return Ok(true);
        }
        if moved {
            conn.moved = now;
        }
        Ok(moved)
    }

    /// One end has failed: sees to it that the other does, and that all comes back; then connects anew.
    fn bury(&mut self, index: usize, since: Instant) -> Result<bool, String> {
        let now = self.now();
        let plan = &self.plan.conns[index];
        let late = now.saturating_since(since) > Duration::from_micros(300);
        let mut clean = true;
        for end in 0..2 {
            let conn = &mut self.conns[index];
            let e = &mut conn.ends[end];
            let Some(state) = e.state() else { continue };
            if state == QpState::Err && late && conn.muted == [false; 2] {
                // All completions are there: what is left was a success that nobody wanted to hear of.
                e.settle_silent()
                    .map_err(|what| format!("connection {index}, end {end}: {what}"))?;
            }
            clean &= state == QpState::Err && e.stream.outstanding() == 0 && e.receives_out() == 0;
            clean &= e.has_left() && !(e.is_shared() && conn.muted[end]);
            let idle = e.stream.is_silent();
            if state == QpState::Sqd && conn.muted == [false; 2] {
                // It would wait for the end of its fault.
                self.fail(index, end)?;
            } else if state != QpState::Err && idle && late {
                self.fail(index, end)?;
            }
        }
        if !clean || !late {
            return Ok(false);
        }
        let conn = &mut self.conns[index];
        look_at_memory(index, conn, true)?;
        conn.phase = Phase::Over;
        let gone = conn.ends.iter().any(|e| e.gear.is_none());
        if gone || conn.lives == 0 {
            return Ok(true);
        }
        conn.lives -= 1;
        conn.moved = now;
        for end in &conn.ends {
            if let Some(gear) = &end.gear {
                gear.qp.modify(&QpAttr::to(QpState::Reset)).map_err(refused)?;
            }
        }
        let [a, b] = &mut conn.ends;
        for (end, host) in [&mut *a, &mut *b].into_iter().zip(plan.hosts) {
            let (Some(gear), Some(host)) = (&mut end.gear, &self.hosts[host]) else { continue };
            gear.renew(plan).map_err(refused)?;
            end.told = gear.told(&host.counter).ok_or("no target")?;
        }
        let (Some(of_a), Some(of_b)) =
            (a.gear.as_ref().and_then(Gear::memory), b.gear.as_ref().and_then(Gear::memory))
        else {
            return Ok(true);
        };
        let (told_a, told_b, mtu) = (a.told, b.told, conn.mtu);
        a.renew(told_a, plan.service, mtu, of_b);
        b.renew(told_b, plan.service, mtu, of_a);
        if let (Some(a), Some(b)) = (&a.gear, &b.gear) {
            connect(plan, a, b)?;
        }
        conn.phase = Phase::Alive;
        excuse(self.plan, plan, &mut conn.ends);
        self.tell_watch(index);
        Ok(true)
    }

    /// Everybody is done: all must be at rest, and the accounts must balance.
    fn finish(&mut self) -> Verdict {
        let wait = self.plan.conns.iter().map(|c| self.patience(c)).max().unwrap_or_default();
        let wait = wait.max(self.plan.quiet().saturating_sub(self.sim.now()) + wait);
        self.sim.run_for(wait);
        self.faults()?;
        self.collect()?;
        let before = self.sim.total_counters();
        self.sim.run_for(wait);
        let after = self.sim.total_counters();
        if before != after {
            return Err(format!("nothing was left to do, and packets were sent: {after:?}"));
        }
        let gone = after.delivered + after.dropped();
        if after.sent + after.duplicated + after.replicated != gone {
            return Err(format!("packets are missing or too many on the network: {after:?}"));
        }
        self.check_counts()?;
        self.check_devices(&after)?;
        self.close()
    }

    /// Everything goes to ERR, and comes back.
    fn close(&mut self) -> Verdict {
        for index in 0..self.conns.len() {
            for end in 0..2 {
                self.fail(index, end)?;
            }
        }
        self.close_stations()?;
        self.sim.run_for(Duration::from_micros(300));
        self.collect()?;
        for (index, conn) in self.conns.iter().enumerate() {
            for (end, e) in conn.ends.iter().enumerate().filter(|(_, e)| e.gear.is_some()) {
                if e.stream.outstanding() + e.receives_out() > 0 || !e.has_left() {
                    return Err(format!(
                        "connection {index}, end {end} is in ERR, and {} receives are missing",
                        e.receives_out()
                    ));
                }
            }
        }
        self.check_closed_stations()?;
        self.check_shared()
    }
}

/// Both targets of a connection.
pub(super) fn look_at_memory(index: usize, conn: &mut State, last: bool) -> Verdict {
    let memory = conn.ends.each_ref().map(|e| e.gear.as_ref().and_then(Gear::memory));
    for end in 0..2 {
        let Some(actual) = &memory[1 - end] else { continue };
        if let Some(loose) = &conn.ends[end].loose {
            loose
                .check_memory(actual)
                .map_err(|what| format!("connection {index}, requests of end {end}: {what}"))?;
            continue;
        }
        let stream = &mut conn.ends[end].stream;
        // What an end that is gone has sent is known; whether it was told is not.
        let looked = if last && conn.ends[1 - end].gear.is_some() && stream.outstanding() == 0 {
            stream.check_final(actual)
        } else {
            stream.check_memory(actual)
        };
        looked.map_err(|what| format!("connection {index}, requests of end {end}: {what}"))?;
    }
    Ok(())
}
