//! Traffic for experiments: flows of large WRITEs between hosts, and what of them has arrived.
//!
//! A flow is a pair of RC queue pairs. Its sender keeps [`OUTSTANDING`] WRITEs of [`MESSAGE`] bytes in the queue and
//! posts the next one when one completes. What has arrived is read off the receiver's queue pair: the packet that it
//! expects next, so that rates are exact to a packet and not to a message.
//!
//! *Rules.* Every start and every choice comes from the seed. Time moves by [`until`] alone, which runs the flows
//! too.

use std::cell::Cell;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use softroce::cc::{Algorithm, Dcqcn, DcqcnConfig, Fixed, Swift, Timely};
use softroce::prelude::*;
use softroce::sim::Sim;

use super::{Failure, Result};

/// Bytes of a message.
pub(crate) const MESSAGE: usize = 4 << 20;
/// Messages that a flow has posted.
pub(crate) const OUTSTANDING: u32 = 64;
/// Packet sequence numbers, which begin again after so many.
const PSNS: u32 = 1 << 24;

/// A host with memory to write from and to.
#[derive(Debug)]
pub(crate) struct Station {
    pub(crate) ctx: Context,
    pd: ProtectionDomain,
    memory: Arc<MemoryRegion>,
}

impl Station {
    /// With room for messages of so many bytes, which all flows of the host share.
    pub(crate) fn with(ctx: &Context, bytes: usize) -> Result<Self> {
        let pd = ctx.alloc_pd()?;
        let memory = Arc::new(pd.alloc_mr(bytes, Access::REMOTE | Access::LOCAL)?);
        Ok(Self { ctx: ctx.clone(), pd, memory })
    }

    pub(crate) fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    pub(crate) fn memory(&self) -> &Arc<MemoryRegion> {
        &self.memory
    }

    /// One of its counters.
    pub(crate) fn counter(&self, name: &str) -> Result<u64> {
        let all = self.ctx.counters(1)?;
        let value = all.get(name).copied();
        value.ok_or_else(|| Failure::Run(format!("a device has no counter {name}")))
    }
}

/// What a flow does.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) mtu: Mtu,
    /// Bytes of each message.
    pub(crate) message: usize,
    /// Bytes in all; `None`: it never ends.
    pub(crate) total: Option<usize>,
    /// When it begins.
    pub(crate) start: Duration,
    /// What sets its pace; `None`: it is that of the usual line.
    pub(crate) cc: Option<Cc>,
    pub(crate) recovery: Recovery,
    /// Traffic class of its packets; the two ECN bits are the congestion control's.
    pub(crate) traffic_class: u8,
}

/// What sets the pace of a flow.
#[derive(Clone, Debug)]
pub(crate) enum Cc {
    /// These bits per second.
    Rate(u64),
    Dcqcn(Dcqcn),
    Swift(Swift),
    Timely(Timely),
}

impl From<Dcqcn> for Cc {
    fn from(cc: Dcqcn) -> Self {
        Self::Dcqcn(cc)
    }
}

impl Cc {
    /// An algorithm; where it is none, the rate of the line.
    pub(crate) fn of(algorithm: &Algorithm, line_rate: u64) -> Result<Self> {
        let refused = |e: softroce::cc::ParamError| Failure::Usage(e.to_string());
        Ok(match algorithm {
            Algorithm::Dcqcn(config) => Self::Dcqcn(Dcqcn::new(config.clone()).map_err(refused)?),
            Algorithm::Swift(config) => Self::Swift(Swift::new(config.clone()).map_err(refused)?),
            Algorithm::Timely(config) => {
                Self::Timely(Timely::new(config.clone()).map_err(refused)?)
            }
            _ => Self::Rate(line_rate),
        })
    }
}

impl Spec {
    /// A flow without end and without congestion control.
    pub(crate) fn new(mtu: Mtu, start: Duration) -> Self {
        let (total, cc, recovery) = (None, None, Recovery::GoBackN);
        Self { mtu, message: MESSAGE, total, start, cc, recovery, traffic_class: 0 }
    }

    pub(crate) fn cc<C: Into<Cc>>(mut self, cc: Option<C>) -> Self {
        self.cc = cc.map(Into::into);
        self
    }

    pub(crate) fn recovery(mut self, recovery: Recovery) -> Self {
        self.recovery = recovery;
        self
    }

    /// Messages of so many bytes.
    pub(crate) fn message(mut self, bytes: usize) -> Self {
        self.message = bytes;
        self
    }

    #[cfg_attr(not(test), expect(dead_code, reason = "of flows that end"))]
    pub(crate) fn total(mut self, bytes: usize) -> Self {
        self.total = Some(bytes);
        self
    }

    pub(crate) fn traffic_class(mut self, class: u8) -> Self {
        self.traffic_class = class;
        self
    }
}

/// DCQCN as its authors deployed it.
pub(crate) fn paper(line_rate: u64) -> Result<Dcqcn> {
    dcqcn("paper", line_rate)
}

/// DCQCN by a preset.
pub(crate) fn dcqcn(preset: &str, line_rate: u64) -> Result<Dcqcn> {
    let config = DcqcnConfig::preset(preset, line_rate).and_then(Dcqcn::new);
    config.map_err(|e| Failure::Run(e.to_string()))
}

/// How a pair of queue pairs is connected.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) mtu: Mtu,
    pub(crate) cc: Option<Cc>,
    pub(crate) recovery: Recovery,
    pub(crate) traffic_class: u8,
}

impl Line {
    pub(crate) fn new(mtu: Mtu, cc: Option<Cc>, traffic_class: u8) -> Self {
        Self { mtu, cc, recovery: Recovery::GoBackN, traffic_class }
    }

    fn of(spec: &Spec) -> Self {
        let Spec { mtu, recovery, traffic_class, .. } = *spec;
        Self { mtu, cc: spec.cc.clone(), recovery, traffic_class }
    }
}

/// Two connected queue pairs, and where each completes.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) sender: QueuePair,
    pub(crate) cq: CompletionQueue,
    pub(crate) receiver: QueuePair,
    pub(crate) theirs: CompletionQueue,
}

impl Pair {
    /// Connects two hosts, with room for so many sends at the one and receives at the other.
    pub(crate) fn connect(
        from: &Station,
        to: &Station,
        line: &Line,
        (sends, receives): (u32, u32),
    ) -> Result<Self> {
        let cq = from.ctx.create_cq(2 * sends)?;
        let builder = from.pd.create_qp(QpType::Rc, &cq).depth(sends, 1).recovery(line.recovery);
        let builder = match line.cc.clone().unwrap_or(Cc::Rate(super::net::LINE)) {
            Cc::Rate(rate) => builder.congestion_control(Fixed::bits_per_second(rate)),
            Cc::Dcqcn(cc) => builder.congestion_control(cc),
            Cc::Swift(cc) => builder.congestion_control(cc),
            Cc::Timely(cc) => builder.congestion_control(cc),
        };
        let sender = builder.build()?;
        let theirs = to.ctx.create_cq(receives)?;
        let receiver = to.pd.create_qp(QpType::Rc, &theirs).depth(1, receives);
        let receiver = receiver.recovery(line.recovery).build()?;
        let [there, back] = [receiver.endpoint(), sender.endpoint()];
        let over = |peer: &QpEndpoint| {
            let ah = AhAttr { traffic_class: line.traffic_class, ..peer.ah() };
            QpAttr::default().path_mtu(line.mtu).ah(ah)
        };
        sender.connect_with(&there, over(&there))?;
        receiver.connect_with(&back, over(&back))?;
        Ok(Self { sender, cq, receiver, theirs })
    }
}

/// What the task of a flow says.
#[derive(Debug, Default)]
struct Shared {
    /// Bytes of messages that have completed.
    completed: AtomicU64,
    /// Nanoseconds at which the last one has; 0: it has not.
    ended: AtomicU64,
    end: Gate,
    failure: Mutex<Option<String>>,
}

/// How long messages and packets of a flow are.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    mtu: u64,
    message: u64,
    total: u64,
}

impl Sizes {
    fn of(spec: &Spec) -> Self {
        let total = spec.total.map_or(u64::MAX, |bytes| bytes as u64);
        Self { mtu: spec.mtu.bytes() as u64, message: spec.message as u64, total }
    }

    /// Bytes of the first packets: the last packet of a message holds what is left of it.
    fn bytes(self, packets: u64) -> u64 {
        let each = self.message.div_ceil(self.mtu).max(1);
        let (whole, begun) = (packets / each, packets % each);
        (whole * self.message + begun * self.mtu).min(self.total)
    }
}

/// A flow.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) name: String,
    receiver: QueuePair,
    sizes: Sizes,
    /// The packet that the receiver expected when last asked, and packets so far.
    seen: Cell<(u32, u64)>,
    shared: Arc<Shared>,
}

impl Flow {
    /// Connects two hosts and has the flow begin at its time.
    pub(crate) fn start(
        sim: &Sim,
        name: impl Into<String>,
        from: &Station,
        to: &Station,
        spec: &Spec,
    ) -> Result<Self> {
        let Pair { sender, cq, receiver, .. } =
            Pair::connect(from, to, &Line::of(spec), (OUTSTANDING, 1))?;
        let back = sender.endpoint();
        let sender = Arc::new(sender);
        let shared = Arc::new(Shared::default());
        let seen = Cell::new((back.psn, 0));
        let sizes = Sizes::of(spec);
        let flow = Self { name: name.into(), receiver, sizes, seen, shared: Arc::clone(&shared) };
        let mut source = Source {
            qp: sender,
            memory: Arc::clone(&from.memory),
            remote: to.memory.remote(),
            message: spec.message,
            left: spec.total,
        };
        let opened = Arc::new(Gate::default());
        let gate = Arc::clone(&opened);
        // A task that never ends would keep the simulation for ever.
        let clock = spec.total.map(|_| sim.clone());
        sim.at(spec.start, move |_| gate.open());
        sim.spawn(async move {
            opened.wait().await;
            match source.run(&cq, &shared).await {
                Ok(()) => {
                    let now = clock.map_or(Duration::ZERO, |sim| sim.now());
                    shared.ended.store(nanos(now), Relaxed);
                }
                Err(e) => {
                    *shared.failure.lock().unwrap_or_else(PoisonError::into_inner) =
                        Some(e.to_string());
                }
            }
            shared.end.open();
            Ok(())
        });
        Ok(flow)
    }

    /// Bytes of payload that have arrived in order.
    ///
    /// To be asked before 2^24 more packets have.
    pub(crate) fn received(&self) -> Result<u64> {
        let (before, packets) = self.seen.get();
        let expected = self.receiver.query()?.rq_psn.unwrap_or(before);
        let packets = packets + u64::from(expected.wrapping_sub(before) % PSNS);
        self.seen.set((expected, packets));
        Ok(self.sizes.bytes(packets))
    }

    /// Bytes of messages that have completed at the sender.
    pub(crate) fn completed(&self) -> u64 {
        self.shared.completed.load(Relaxed)
    }

    /// When its last message completed, from the beginning of the simulation.
    pub(crate) fn ended(&self) -> Option<Duration> {
        let ns = self.shared.ended.load(Relaxed);
        (ns > 0).then(|| Duration::from_nanos(ns))
    }

    /// An error, if a request of it has failed.
    pub(crate) fn check(&self) -> Result<()> {
        let failure = self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner);
        match &*failure {
            Some(what) => Err(Failure::Run(format!("flow {}: {what}", self.name))),
            None => Ok(()),
        }
    }

    /// Waits until it is at its end.
    #[cfg_attr(not(test), expect(dead_code, reason = "for tests, which wait for ends"))]
    pub(crate) async fn end(&self) {
        self.shared.end.wait().await;
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What posts.
#[derive(Debug)]
struct Source {
    qp: Arc<QueuePair>,
    memory: Arc<MemoryRegion>,
    remote: RemoteMr,
    message: usize,
    left: Option<usize>,
}

impl Source {
    /// Posts one message, if there is one left. Its length is its number.
    fn post(&mut self) -> softroce::verbs::Result<bool> {
        let len = self.left.map_or(self.message, |left| left.min(self.message));
        if len == 0 {
            return Ok(false);
        }
        if let Some(left) = &mut self.left {
            *left -= len;
        }
        let write = SendWr::write(len as u64, self.memory.sge(..len), self.remote.at(0));
        self.qp.post_send(write)?;
        Ok(true)
    }

    async fn run(&mut self, cq: &CompletionQueue, shared: &Shared) -> softroce::verbs::Result<()> {
        let mut open = 0_u32;
        while open < OUTSTANDING && self.post()? {
            open += 1;
        }
        while open > 0 {
            let wc = cq.next().await?.ok()?;
            shared.completed.fetch_add(wc.wr_id, Relaxed);
            open -= 1;
            if self.post()? {
                open += 1;
            }
        }
        Ok(())
    }
}

/// Something that is waited for, and happens once.
#[derive(Debug, Default)]
pub(crate) struct Gate(Mutex<(bool, Vec<Waker>)>);

impl Gate {
    pub(crate) fn open(&self) {
        let waiting = {
            let mut gate = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            gate.0 = true;
            std::mem::take(&mut gate.1)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    pub(crate) async fn wait(&self) {
        poll_fn(|cx| {
            let mut gate = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if gate.0 {
                return Poll::Ready(());
            }
            gate.1.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// Lets the simulation and its flows run until a time since its beginning.
pub(crate) fn until(sim: &Sim, when: Duration) {
    sim.block_on(sim.sleep(when.saturating_sub(sim.now())));
}

/// What of some flows had arrived at a time.
#[derive(Debug)]
pub(crate) struct Mark {
    at: Duration,
    bytes: Vec<u64>,
}

impl Mark {
    /// Now.
    pub(crate) fn new(sim: &Sim, flows: &[Flow]) -> Result<Self> {
        let bytes = flows.iter().map(Flow::received).collect::<Result<_>>()?;
        Ok(Self { at: sim.now(), bytes })
    }

    /// Gbit/s of payload of each flow since then. An error if a request of one has failed.
    pub(crate) fn rates(&self, sim: &Sim, flows: &[Flow]) -> Result<Vec<f64>> {
        flows.iter().try_for_each(Flow::check)?;
        self.moved(sim, flows)
    }

    /// The same, also of flows that have failed.
    #[expect(clippy::cast_precision_loss, reason = "of bytes in a window")]
    pub(crate) fn moved(&self, sim: &Sim, flows: &[Flow]) -> Result<Vec<f64>> {
        let now = Self::new(sim, flows)?;
        let ns = (now.at.saturating_sub(self.at)).as_nanos() as f64;
        let rate = |(after, before): (&u64, &u64)| (after - before) as f64 * 8.0 / ns.max(1.0);
        Ok(now.bytes.iter().zip(&self.bytes).map(rate).collect())
    }
}

/// Gbit/s of each flow in consecutive windows of a run, for a plot.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    /// Middle of each window in ms, and a rate for each flow.
    pub(crate) rates: Vec<(f64, Vec<f64>)>,
}

impl Timeline {
    /// Runs from now until `end` in windows of `step`, and notes the rates.
    pub(crate) fn run(
        &mut self,
        sim: &Sim,
        flows: &[Flow],
        end: Duration,
        step: Duration,
    ) -> Result<()> {
        let mut mark = Mark::new(sim, flows)?;
        while sim.now() < end {
            let next = (sim.now() + step).min(end);
            until(sim, next);
            let middle = (mark.at + next) / 2;
            self.rates.push((middle.as_secs_f64() * 1e3, mark.rates(sim, flows)?));
            mark = Mark::new(sim, flows)?;
        }
        Ok(())
    }

    /// The rates of one flow.
    pub(crate) fn of(&self, flow: usize) -> Vec<(f64, f64)> {
        let rate = |(at, rates): &(f64, Vec<f64>)| Some((*at, *rates.get(flow)?));
        self.rates.iter().filter_map(rate).collect()
    }
}

/// Jain's index: 1 if all are equal, 1/n if one has all.
#[expect(clippy::cast_precision_loss, reason = "of a few flows")]
pub(crate) fn jain(rates: &[f64]) -> f64 {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|r| r * r).sum();
    sum * sum / (rates.len() as f64 * squares)
}

/// Start times by a seed.
#[derive(Debug)]
pub(crate) struct Jitter(u64);

impl Jitter {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number of the sequence (splitmix64, Steele, Lea and Flood 2014).
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A time below `most`, in whole nanoseconds.
    pub(crate) fn below(&mut self, most: Duration) -> Duration {
        let most = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX).max(1);
        Duration::from_nanos(self.next() % most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use softroce::sim::Link;

    const MS: Duration = Duration::from_millis(1);

    fn link() -> Link {
        let delay = Duration::from_micros(1);
        Link { bits_per_s: 40_000_000_000, delay, ..Link::default() }
    }

    #[track_caller]
    fn near(got: f64, want: f64, rel: f64) {
        assert!((got / want - 1.0).abs() <= rel, "{got} instead of {want}");
    }

    #[test]
    fn a_flow_fills_its_line() {
        let sim = Sim::new(1);
        let hosts = sim.hosts::<2>(link()).map(|ctx| Station::with(&ctx, MESSAGE).unwrap());
        let spec = Spec::new(Mtu::B4096, Duration::from_micros(3));
        let flow = [Flow::start(&sim, "a", &hosts[0], &hosts[1], &spec).unwrap()];
        until(&sim, 2 * MS);
        let mark = Mark::new(&sim, &flow).unwrap();
        let mut line = Timeline::default();
        line.run(&sim, &flow, 6 * MS, MS).unwrap();
        near(mark.rates(&sim, &flow).unwrap()[0], 39.2149, 0.005);
        assert_eq!(line.rates.len(), 4);
        near(line.of(0)[3].1, 39.2149, 0.01);
        assert!((line.of(0)[0].0 - 2.5).abs() < 1e-9);
        // Whole messages, and not more of them than have arrived.
        let (done, here) = (flow[0].completed(), flow[0].received().unwrap());
        assert!(done > 0 && done % MESSAGE as u64 == 0 && done <= here, "{done} {here}");
    }

    #[test]
    fn a_flow_that_ends_sends_what_it_was_told() {
        let sim = Sim::new(1);
        let hosts = sim.hosts::<2>(link()).map(|ctx| Station::with(&ctx, MESSAGE).unwrap());
        let total = MESSAGE + 3 * 4096;
        let spec = Spec::new(Mtu::B4096, Duration::ZERO).total(total);
        let flow = Flow::start(&sim, "a", &hosts[0], &hosts[1], &spec).unwrap();
        sim.block_on(flow.end());
        flow.check().unwrap();
        assert_eq!((flow.completed(), flow.received().unwrap()), (total as u64, total as u64));
        let us = sim.now().as_secs_f64() * 1e6;
        near(us, 1027.0 * 4178.0 * 8.0 / 40e3 + 6.0, 0.01);
        assert!(hosts[0].counter("sent_pkts").is_ok() && hosts[0].counter("nothing").is_err());
    }

    #[test]
    fn what_has_arrived_is_counted_in_bytes_of_messages() {
        let of = |message, total| Sizes { mtu: 1024, message, total };
        for (sizes, packets, bytes) in [
            (of(64, u64::MAX), 3, 192),
            (of(1024, u64::MAX), 3, 3072),
            (of(2500, u64::MAX), 2, 2048),
            (of(2500, u64::MAX), 3, 2500),
            (of(2500, u64::MAX), 4, 3524),
            (of(2500, 2600), 4, 2600),
            (of(64, 100), 2, 100),
        ] {
            assert_eq!(sizes.bytes(packets), bytes, "{packets} of {sizes:?}");
        }
    }

    #[test]
    fn rates_are_those_of_messages_that_are_no_multiple_of_the_mtu() {
        for (message, total) in [(64, 10_000), (1500, 100_000)] {
            let sim = Sim::new(1);
            let hosts = sim.hosts::<2>(link()).map(|ctx| Station::with(&ctx, MESSAGE).unwrap());
            let spec = Spec::new(Mtu::B1024, Duration::ZERO).message(message);
            let endless = [Flow::start(&sim, "a", &hosts[0], &hosts[1], &spec).unwrap()];
            let mark = Mark::new(&sim, &endless).unwrap();
            until(&sim, MS);
            let (done, here) = (endless[0].completed(), endless[0].received().unwrap());
            let open = u64::from(OUTSTANDING) * message as u64;
            assert!((done..=done + open).contains(&here), "{done} {here}");
            #[expect(clippy::cast_precision_loss, reason = "of bytes in a window")]
            let gbits = here as f64 * 8.0 / 1e6;
            near(mark.rates(&sim, &endless).unwrap()[0], gbits, 1e-9);
            let spec = spec.total(total);
            let flow = Flow::start(&sim, "b", &hosts[0], &hosts[1], &spec).unwrap();
            sim.block_on(flow.end());
            assert_eq!((flow.completed(), flow.received().unwrap()), (total as u64, total as u64));
        }
    }

    #[test]
    fn a_flow_that_fails_says_so() {
        let sim = Sim::new(1);
        let [a, b] = sim.hosts::<2>(link());
        let hosts = [&a, &b].map(|ctx| Station::with(ctx, MESSAGE).unwrap());
        let spec = Spec::new(Mtu::B4096, Duration::ZERO);
        let flow = [Flow::start(&sim, "a", &hosts[0], &hosts[1], &spec).unwrap()];
        let mark = Mark::new(&sim, &flow).unwrap();
        sim.kill(&b).unwrap();
        sim.block_on(flow[0].end());
        assert!(flow[0].check().is_err());
        assert!(mark.rates(&sim, &flow).is_err());
    }

    #[test]
    fn fairness_of_known_rates() {
        assert!((jain(&[10.0, 10.0, 10.0]) - 1.0).abs() < 1e-12);
        assert!((jain(&[40.0, 0.0]) - 0.5).abs() < 1e-12);
        assert!((jain(&[36.02, 1.01]) - 0.528).abs() < 1e-3);
    }

    #[test]
    fn starts_come_from_the_seed() {
        let starts = |seed| {
            let mut jitter = Jitter::new(seed);
            [0; 100].map(|_| jitter.below(Duration::from_nanos(884)))
        };
        assert_eq!(starts(1), starts(1));
        assert_ne!(starts(1), starts(2));
        let of = starts(7);
        assert!(of.iter().all(|t| *t < Duration::from_nanos(884)));
        assert!(of.iter().max() > Some(&Duration::from_nanos(700)));
        assert!(of.iter().min() < Some(&Duration::from_nanos(200)));
        assert_eq!(Jitter::new(1).below(Duration::ZERO), Duration::ZERO);
    }
}
