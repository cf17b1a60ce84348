//! Collectives as programs: each rank posts WRITEs with immediate data and waits for those of others.
//!
//! *Rules.* A rank learns of a message by the completion of its receive, which is there with the last packet. Posting
//! takes no time. What a rank sends one after the other follows without a gap: the next message is posted when the
//! last packet of the one before has been handed to the line, not when it was acknowledged.

use std::cell::RefCell;
use std::future::Future;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use softroce::prelude::*;
use softroce::sim::{Marking, Sim, SwitchConfig, Topology};

use super::super::net::{DATA_CLASS, LINE, Net, Path, host};
use super::super::sizes::{Ip, write_wire};
use super::super::traffic::{Gate, Jitter, Line, Pair, Station, paper};
use super::super::{Failure, Result};
use super::ring as ring_time;

/// Threshold of pauses of each port, bytes.
const XOFF: usize = 50_000;
/// Bytes that each rank has for each other in an all-to-all.
pub(super) const SHARE: u32 = 200 << 10;
/// How much longer than the lines need it may take.
const PATIENCE: f64 = 40.0;

/// What a collective came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    /// From the beginning until the last rank has all.
    pub(super) seconds: f64,
    /// When the last rank began.
    pub(super) jitter: f64,
    pub(super) pauses: u64,
    pub(super) marks: u64,
    /// Most bytes that waited for one line.
    pub(super) peak: usize,
}

/// In which order a rank serves the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Rank i begins with i + 1.
    Shifted,
    /// To all at once, a packet each in turn.
    RoundRobin,
    /// All begin with rank 0.
    Same,
}

/// How far the tasks of a collective are.
#[derive(Debug, Default)]
struct Progress {
    running: AtomicUsize,
    /// Nanoseconds at which the last message arrived.
    last: AtomicU64,
    failure: Mutex<Option<String>>,
    /// Opens when all are done, one has failed, or it takes too long.
    over: Gate,
}

impl Progress {
    fn fail(&self, what: String) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(what);
        self.over.open();
    }

    fn arrived(&self, sim: &Sim) {
        let now = u64::try_from(sim.now().as_nanos()).unwrap_or(u64::MAX);
        self.last.fetch_max(now, Relaxed);
    }
}

/// Ranks on one switch.
#[derive(Debug)]
struct Ranks {
    net: Net,
    n: usize,
    progress: Arc<Progress>,
    /// Queue pairs live as long as they are held, and an ACK leaves later than its message completes.
    receivers: RefCell<Vec<QueuePair>>,
}

/// From one rank to another.
#[derive(Debug)]
struct Way {
    sender: QueuePair,
    /// Where the sender's requests complete, and the receiver's.
    cq: CompletionQueue,
    theirs: CompletionQueue,
}

fn name(rank: usize) -> String {
    format!("H{rank}")
}

impl Ranks {
    fn new(n: usize, config: SwitchConfig, seed: u64, memory: usize) -> Result<Self> {
        let mut t = Topology::new();
        t.switch("SW", config);
        for rank in 0..n {
            t.host(name(rank), "SW", host());
        }
        let net = Net::build_with(&t, seed, memory)?;
        Ok(Self { net, n, progress: Arc::default(), receivers: RefCell::default() })
    }

    fn station(&self, rank: usize) -> &Station {
        self.net.station(&name(rank))
    }

    fn sim(&self) -> &Sim {
        self.net.sim()
    }

    /// Connects two ranks, with receives posted for so many messages.
    fn connect(&self, ranks: (usize, usize), line: &Line, messages: u32) -> Result<Way> {
        let ends = (self.station(ranks.0), self.station(ranks.1));
        let Pair { sender, cq, receiver, theirs } =
            Pair::connect(ends.0, ends.1, line, (messages, messages))?;
        for message in 0..messages {
            receiver.post_recv(RecvWr::new(message.into(), ()))?;
        }
        self.receivers.borrow_mut().push(receiver);
        Ok(Way { sender, cq, theirs })
    }

    /// Has a task run. All must be started before time goes on.
    fn spawn(&self, task: impl Future<Output = softroce::verbs::Result<()>> + Send + 'static) {
        let progress = Arc::clone(&self.progress);
        progress.running.fetch_add(1, Relaxed);
        self.sim().spawn(async move {
            if let Err(e) = task.await {
                progress.fail(e.to_string());
            }
            if progress.running.fetch_sub(1, Relaxed) == 1 {
                progress.over.open();
            }
            Ok(())
        });
    }

    /// Runs until all is done.
    fn finish(&self, jitter: Duration, at_best: f64) -> Result<Outcome> {
        let late = Arc::clone(&self.progress);
        self.sim().at(Duration::from_secs_f64(at_best * PATIENCE), move |_| {
            late.fail("it does not come to an end".into());
        });
        self.sim().block_on(self.progress.over.wait());
        let failure = self.progress.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(what) = failure {
            return Err(Failure::Run(what));
        }
        let dropped = self.net.drops();
        if dropped > 0 {
            return Err(Failure::Run(format!("{dropped} packets were dropped")));
        }
        let (mut marks, mut peak) = (0, 0);
        for rank in 0..self.n {
            let port = self.net.net.counters("SW", &name(rank))?;
            marks += port.ecn_marked;
            peak = peak.max(port.queue_peak.into_iter().max().unwrap_or(0));
        }
        Ok(Outcome {
            seconds: Duration::from_nanos(self.progress.last.load(Relaxed)).as_secs_f64(),
            jitter: jitter.as_secs_f64(),
            pauses: self.net.pauses(),
            marks,
            peak,
        })
    }
}

/// A ring all-reduce of so many bytes per rank: 2 (n - 1) steps, in each of which every rank sends a chunk to the next
/// rank, and has one from the rank before, which it sends on when it has all of it.
///
/// The hosts run DCQCN and the switch both marks and pauses: there should be nothing to mark, and nobody to pause.
pub(super) fn ring(path: Path, n: usize, bytes: usize, seed: u64) -> Result<Outcome> {
    let ecn = Some(Marking::red(5_000, 200_000, 0.01));
    let config = SwitchConfig { ecn, ..path.pausing(XOFF) };
    let chunk = bytes / n;
    let ranks = Ranks::new(n, config, seed, chunk)?;
    let steps = 2 * u32::try_from(n - 1).unwrap_or(u32::MAX / 2);
    let line = Line::new(path.mtu, Some(paper(LINE)?.into()), DATA_CLASS);
    let (mut outs, mut ins) = (Vec::new(), Vec::new());
    for rank in 0..n {
        let way = ranks.connect((rank, (rank + 1) % n), &line, steps)?;
        outs.push((way.sender, way.cq));
        ins.push(way.theirs);
    }
    // What a rank sends on comes from the rank before.
    ins.rotate_right(1);
    for (rank, ((sender, cq), theirs)) in outs.into_iter().zip(ins).enumerate() {
        let memory = Arc::clone(ranks.station(rank).memory());
        let remote = ranks.station((rank + 1) % n).memory().remote();
        let (sim, progress) = (ranks.sim().clone(), Arc::clone(&ranks.progress));
        ranks.spawn(async move {
            for step in 0..steps {
                let write = SendWr::write(step.into(), memory.sge(..chunk), remote.at(0));
                sender.post_send(write.imm(step))?;
                theirs.next().await?.ok()?;
            }
            progress.arrived(&sim);
            // Its last chunk may still be on the way.
            for _ in 0..steps {
                cq.next().await?.ok()?;
            }
            Ok(())
        });
    }
    ranks.finish(Duration::ZERO, ring_time(n as u64, bytes as u64, path.packet, LINE as f64))
}

/// Seconds that an all-to-all takes if every line is full all the time.
pub(super) fn all_to_all_ideal(path: Path, n: usize) -> f64 {
    let bytes = (n - 1) as u64 * write_wire(Ip::V4, SHARE.into(), path.packet.mtu);
    bytes as f64 * 8.0 / LINE as f64
}

/// An all-to-all of [`SHARE`] bytes from each rank to each other.
pub(super) fn all_to_all(
    path: Path,
    n: usize,
    order: Order,
    dcqcn: bool,
    seed: u64,
) -> Result<Outcome> {
    let config = if dcqcn { path.marking() } else { path.pausing(XOFF) };
    let ranks = Ranks::new(n, config, seed, SHARE as usize)?;
    let mut jitter = Jitter::new(seed);
    let mut last_start = Duration::ZERO;
    for rank in 0..n {
        let start = path.start(&mut jitter, u32::try_from(n).unwrap_or(u32::MAX));
        last_start = last_start.max(start);
        let others: Vec<usize> = match order {
            Order::Shifted | Order::RoundRobin => (1..n).map(|k| (rank + k) % n).collect(),
            Order::Same => (0..n).filter(|to| *to != rank).collect(),
        };
        let mut queue = Vec::new();
        for to in others {
            let cc = if dcqcn { Some(paper(LINE)?.into()) } else { None };
            let line = Line::new(path.mtu, cc, DATA_CLASS);
            let Way { sender, cq, theirs } = ranks.connect((rank, to), &line, 2)?;
            let (sim, progress) = (ranks.sim().clone(), Arc::clone(&ranks.progress));
            ranks.spawn(async move {
                theirs.next().await?.ok()?;
                progress.arrived(&sim);
                Ok(())
            });
            queue.push((sender, cq, ranks.station(to).memory().remote()));
        }
        let memory = Arc::clone(ranks.station(rank).memory());
        let sim = ranks.sim().clone();
        ranks.spawn(async move {
            sim.sleep(start).await;
            for (sender, _, remote) in &queue {
                let first = sender.query()?.sq_psn;
                post(sender, &memory, *remote, path)?;
                if order != Order::RoundRobin {
                    sent(&sim, sender, first, path).await?;
                }
            }
            for (_, cq, _) in &queue {
                for _ in 0..2 {
                    cq.next().await?.ok()?;
                }
            }
            Ok(())
        });
    }
    ranks.finish(last_start, all_to_all_ideal(path, n))
}

/// Posts a message as two WRITEs, the second of one packet: when that one is begun can be seen, and when it has arrived
/// all has.
fn post(
    qp: &QueuePair,
    memory: &MemoryRegion,
    remote: RemoteMr,
    path: Path,
) -> softroce::verbs::Result<()> {
    let (body, all) = ((SHARE - path.packet.mtu) as usize, SHARE as usize);
    let wrs = [
        SendWr::write(0, memory.sge(..body), remote.at(0)),
        SendWr::write(1, memory.sge(body..all), remote.at(body as u64)).imm(0),
    ];
    qp.post_send(wrs)
}

/// Waits until the last packet of a message has been begun.
async fn sent(
    sim: &Sim,
    qp: &QueuePair,
    first: Option<u32>,
    path: Path,
) -> softroce::verbs::Result<()> {
    let packets = SHARE.div_ceil(path.packet.mtu);
    let time = Duration::from_secs_f64(path.packet.time(LINE as f64));
    // It cannot be earlier.
    sim.sleep(time * (packets - 1)).await;
    loop {
        // PSNs are given to a request when its first packet is about to leave.
        let psns = qp.query()?.sq_psn.zip(first);
        let begun = psns.map_or(0, |(now, first)| now.wrapping_sub(first) & 0x00ff_ffff);
        if begun >= packets {
            return Ok(());
        }
        sim.sleep(time / 4).await;
    }
}
