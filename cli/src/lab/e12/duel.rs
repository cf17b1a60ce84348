//! DCQCN and TIMELY on the same network with the same traffic.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use softroce::cc::{Timely, TimelyConfig};
use softroce::prelude::*;
use softroce::sim::{Cable, HostConfig, Payload, Sim, Topology};

use crate::lab::net::{DATA, DATA_CLASS, Net, Path};
use crate::lab::traffic::{Jitter, Station, dcqcn, until};
use crate::lab::{Failure, Result};

/// Bits per second of all lines here.
const LINE: u64 = 10_000_000_000;
const GBITS: u64 = 10;
/// Bytes of a message: an ACK for each, and with it a round trip for TIMELY to go by.
const SEGMENT: usize = 16 << 10;
/// Messages that a flow has posted.
const OUTSTANDING: u32 = 64;
const PATH: Path = Path::MTU_1024;
/// Hosts on each side of the dumbbell.
const SIDE: usize = 10;

/// Who controls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    Dcqcn,
    Timely,
    Patched,
}

impl Control {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Dcqcn => "DCQCN",
            Self::Timely => "TIMELY",
            Self::Patched => "patched TIMELY",
        }
    }

    /// A sender that begins at `first` bits per second, where the control lets one choose.
    fn queue_pair(self, from: &Station, cq: &CompletionQueue, first: u64) -> Result<QueuePair> {
        let builder = from.pd().create_qp(QpType::Rc, cq).depth(OUTSTANDING, 1);
        let timely = |config: TimelyConfig| {
            let config = TimelyConfig { initial_rate: first, ..config };
            Timely::new(config).map_err(|e| Failure::Run(e.to_string()))
        };
        let builder = match self {
            Self::Dcqcn => builder.congestion_control(dcqcn("paper", LINE)?),
            Self::Timely => builder.congestion_control(timely(TimelyConfig::new(LINE))?),
            Self::Patched => builder.congestion_control(timely(TimelyConfig::patched(LINE))?),
        };
        Ok(builder.build()?)
    }
}

/// Bytes that go from one host to another.
#[derive(Debug)]
struct Transfer {
    /// Acknowledged so far.
    done: Arc<AtomicU64>,
    /// When all was.
    end: Arc<Mutex<Option<Result<Duration, String>>>>,
    _receiver: QueuePair,
}

impl Transfer {
    /// Begins now.
    fn begin(
        sim: &Sim,
        (from, to): (&Station, &Station),
        control: Control,
        first: u64,
        bytes: Option<usize>,
        running: &Arc<AtomicU32>,
    ) -> Result<Self> {
        let cq = from.ctx.create_cq(2 * OUTSTANDING)?;
        let sender = control.queue_pair(from, &cq, first)?;
        let receiver = to.pd().create_qp(QpType::Rc, &to.ctx.create_cq(1)?).depth(1, 1).build()?;
        let [there, back] = [receiver.endpoint(), sender.endpoint()];
        let over = |peer: &QpEndpoint| {
            let ah = AhAttr { traffic_class: DATA_CLASS, ..peer.ah() };
            QpAttr::default().path_mtu(PATH.mtu).ah(ah)
        };
        sender.connect_with(&there, over(&there))?;
        receiver.connect_with(&back, over(&back))?;
        let (memory, remote) = (Arc::clone(from.memory()), to.memory().remote());
        let done = Arc::new(AtomicU64::new(0));
        let end = Arc::new(Mutex::new(None));
        let (count, note, running) = (Arc::clone(&done), Arc::clone(&end), Arc::clone(running));
        running.fetch_add(1, Relaxed);
        let clock = sim.clone();
        sim.spawn(async move {
            let mut left = bytes;
            let mut open = 0;
            let all = async {
                loop {
                    while open < OUTSTANDING && left != Some(0) {
                        let len = left.map_or(SEGMENT, |left| left.min(SEGMENT));
                        left = left.map(|left| left - len);
                        let write = SendWr::write(len as u64, memory.sge(..len), remote.at(0));
                        sender.post_send(write)?;
                        open += 1;
                    }
                    if open == 0 {
                        return Ok(clock.now());
                    }
                    count.fetch_add(cq.next().await?.ok()?.wr_id, Relaxed);
                    open -= 1;
                }
            };
            let all: softroce::verbs::Result<Duration> = all.await;
            running.fetch_sub(1, Relaxed);
            let all = all.map_err(|e| e.to_string());
            *note.lock().unwrap_or_else(PoisonError::into_inner) = Some(all);
            Ok(())
        });
        Ok(Self { done, end, _receiver: receiver })
    }

    /// When it ended, if it has.
    fn ended(&self) -> Result<Option<Duration>> {
        match &*self.end.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(None),
            Some(Ok(at)) => Ok(Some(*at)),
            Some(Err(what)) => Err(Failure::Run(format!("a transfer: {what}"))),
        }
    }
}

fn host() -> HostConfig {
    HostConfig { payload: Payload::Elided, ..HostConfig::gbits(GBITS).exact() }
}

/// Two flows to one host.
#[derive(Debug)]
pub(super) struct Two {
    /// Milliseconds, and Gbit/s of each.
    pub(super) over_time: Vec<(f64, [f64; 2])>,
    /// Jain's index of the rates in the second half.
    pub(super) fair: f64,
}

/// Two flows that begin at these rates, in Gbit/s.
pub(super) fn two(control: Control, first: [u64; 2], seed: u64, end: Duration) -> Result<Two> {
    let mut t = Topology::new();
    t.switch("S", PATH.marking());
    for name in ["A", "B", "R"] {
        t.host(name, "S", host());
    }
    let net = Net::build_with(&t, seed, SEGMENT)?;
    let sim = net.sim();
    let running = Arc::new(AtomicU32::new(0));
    let mut jitter = Jitter::new(seed);
    let mut flows = Vec::new();
    for (name, first) in ["A", "B"].into_iter().zip(first) {
        until(sim, sim.now() + PATH.start(&mut jitter, 2));
        let ends = (net.station(name), net.station("R"));
        flows.push(Transfer::begin(sim, ends, control, first * 1_000_000_000, None, &running)?);
    }
    let done = || [0, 1].map(|i: usize| flows[i].done.load(Relaxed));
    let rates = |before: [u64; 2], time: Duration| {
        let after = done();
        [0, 1].map(|i| (after[i] - before[i]) as f64 * 8.0 / time.as_nanos() as f64)
    };
    let step = end / 100;
    let mut over_time = Vec::new();
    let mut half = done();
    for i in 1..=100 {
        let before = done();
        if i == 51 {
            half = before;
        }
        let begin = sim.now();
        until(sim, step * i);
        let time = sim.now().saturating_sub(begin);
        over_time.push(((begin + time / 2).as_secs_f64() * 1e3, rates(before, time)));
    }
    for flow in &flows {
        flow.ended()?;
    }
    let fair = crate::lab::traffic::jain(&rates(half, end / 2));
    Ok(Two { over_time, fair })
}

/// Bytes of the packets in which [`WEBSEARCH`] counts.
const UNIT: f64 = 1460.0;
/// Sizes of flows of a web search cluster in packets, and which part of flows is not larger (after Alizadeh et al., "Data
/// Center TCP", SIGCOMM 2010, as simulations since have it).
const WEBSEARCH: [(f64, f64); 12] = [
    (0.0, 0.0),
    (6.0, 0.15),
    (13.0, 0.2),
    (19.0, 0.3),
    (33.0, 0.4),
    (53.0, 0.53),
    (133.0, 0.6),
    (667.0, 0.7),
    (1333.0, 0.8),
    (3333.0, 0.9),
    (6667.0, 0.97),
    (20_000.0, 1.0),
];
/// Flows below this are short.
const SHORT: usize = 100_000;

/// A number from 0 to 1, both excluded.
fn fraction(jitter: &mut Jitter) -> f64 {
    let most = 1_u64 << 52;
    let n = jitter.below(Duration::from_nanos(most)).as_nanos();
    (n as f64 + 0.5) / most as f64
}

/// Bytes of a flow, by the part of flows that are not larger.
fn size(part: f64) -> usize {
    let steps = WEBSEARCH.windows(2);
    let within = |w: &[(f64, f64)]| {
        let [(from, p), (to, q)] = [w[0], w[1]];
        (part <= q).then(|| from + (to - from) * (part - p) / (q - p))
    };
    let packets = steps.filter_map(within).next().unwrap_or(20_000.0);
    #[expect(clippy::cast_possible_truncation, reason = "at most 30 MB")]
    #[expect(clippy::cast_sign_loss, reason = "sizes are positive")]
    let bytes = (packets * UNIT).round() as usize;
    bytes.max(1)
}

/// Bytes of a flow on average.
fn mean() -> f64 {
    let middle = |w: &[(f64, f64)]| f64::midpoint(w[0].0, w[1].0) * (w[1].1 - w[0].1) * UNIT;
    WEBSEARCH.windows(2).map(middle).sum()
}

/// A flow to come.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    at: Duration,
    from: usize,
    to: usize,
    bytes: usize,
}

/// Flows at random moments, so many that they fill this part of a line.
fn arrivals(seed: u64, load: f64, end: Duration) -> Vec<Arrival> {
    let mut jitter = Jitter::new(seed);
    let index = |jitter: &mut Jitter| {
        let n = jitter.below(Duration::from_nanos(SIDE as u64)).as_nanos();
        usize::try_from(n).unwrap_or(0)
    };
    let apart = mean() * 8.0 / (LINE as f64 * load);
    let mut all = Vec::new();
    let mut at = Duration::ZERO;
    loop {
        at += Duration::from_secs_f64(-fraction(&mut jitter).ln() * apart);
        if at >= end {
            return all;
        }
        let (from, to) = (index(&mut jitter), index(&mut jitter));
        all.push(Arrival { at, from, to, bytes: size(fraction(&mut jitter)) });
    }
}

/// What a network under load was like.
#[derive(Debug)]
pub(super) struct Loaded {
    /// Milliseconds that short flows took.
    pub(super) short: Vec<f64>,
    /// Kilobytes in the queue of the trunk, sampled.
    pub(super) queue: Vec<f64>,
    pub(super) flows: u64,
    /// Flows that were not at their end when it ended.
    pub(super) unfinished: u64,
    pub(super) pauses: u64,
}

/// Ten hosts send to ten others over one cable, with the flows of a web search cluster, at 0.8 of its speed.
pub(super) fn loaded(control: Control, seed: u64, end: Duration) -> Result<Loaded> {
    let config = PATH.marking();
    let mut t = Topology::new();
    t.switch("left", config.clone()).switch("right", config);
    t.cable("left", "right", Cable::gbits(GBITS));
    let [senders, receivers] =
        ["l", "r"].map(|side| (0..SIDE).map(|i| format!("{side}{i}")).collect::<Vec<_>>());
    for (names, on) in [(&senders, "left"), (&receivers, "right")] {
        for name in names {
            t.host(name, on, host());
        }
    }
    let net = Net::build_with(&t, seed, SEGMENT)?;
    let sim = net.sim();
    let running: [Arc<AtomicU32>; SIDE] = std::array::from_fn(|_| Arc::default());
    let mut flows = Vec::new();
    let mut queue = Vec::new();
    let mut watch = |to: Duration| -> Result<()> {
        // Every 50 us, whatever happens between.
        let step = Duration::from_micros(50);
        while sim.now() < to {
            let next = step
                * u32::try_from(sim.now().as_nanos() / step.as_nanos() + 1).unwrap_or(u32::MAX);
            until(sim, next.min(to));
            if sim.now() == next {
                queue.push(net.net.queue("left", "right")?[usize::from(DATA)] as f64 / 1e3);
            }
        }
        Ok(())
    };
    for arrival in arrivals(seed, 0.8, end) {
        watch(arrival.at)?;
        let Arrival { from, to, bytes, .. } = arrival;
        let ends = (net.station(&senders[from]), net.station(&receivers[to]));
        let here = &running[from];
        // TIMELY's authors have a flow begin with its part of the line; DCQCN begins with all of it.
        let first = LINE / (u64::from(here.load(Relaxed)) + 1);
        flows.push((arrival, Transfer::begin(sim, ends, control, first, Some(bytes), here)?));
    }
    watch(end + end / 4)?;
    let (mut short, mut unfinished) = (Vec::new(), 0);
    for (arrival, flow) in &flows {
        match flow.ended()? {
            Some(at) if arrival.bytes < SHORT => {
                short.push(at.saturating_sub(arrival.at).as_secs_f64() * 1e3);
            }
            Some(_) => {}
            None => unfinished += 1,
        }
    }
    Ok(Loaded { short, queue, flows: flows.len() as u64, unfinished, pauses: net.pauses() })
}

/// The value that this part of all does not exceed.
pub(super) fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    #[expect(clippy::cast_possible_truncation, reason = "an index")]
    #[expect(clippy::cast_sign_loss, reason = "not negative")]
    let at = ((sorted.len() as f64 * part).ceil() as usize).saturating_sub(1);
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_as_large_and_as_many_as_they_should_be() {
        assert_eq!(
            [size(0.15), size(0.53), size(0.6), size(0.85)],
            [8760, 77_380, 194_180, 3_406_180]
        );
        assert_eq!(size(1.0), 29_200_000);
        assert!((mean() / 1e6 - 1.66).abs() < 0.02, "{}", mean());
        let all = arrivals(1, 0.8, Duration::from_secs(20));
        let sum: usize = all.iter().map(|a| a.bytes).sum();
        let load = sum as f64 * 8.0 / 20.0 / LINE as f64;
        assert!((load - 0.8).abs() < 0.04, "{load}");
        assert!(all.iter().all(|a| a.from < SIDE && a.to < SIDE));
        assert!(all.windows(2).all(|w| w[0].at <= w[1].at));
    }

    #[test]
    fn quantiles() {
        let values = [5.0, 1.0, 4.0, 2.0, 3.0];
        assert!((quantile(&values, 0.5) - 3.0).abs() < 1e-12);
        assert!((quantile(&values, 0.9) - 5.0).abs() < 1e-12);
        assert!(quantile(&[], 0.5).is_nan());
    }
}
