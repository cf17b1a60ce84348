//! A simulated network: the same verbs, in virtual time, the same every run.
//!
//! ```
//! use softroce::prelude::*;
//! use softroce::sim::{Link, Sim};
//!
//! # fn main() -> Result<()> {
//! let sim = Sim::new(42);
//! let [a, b] = sim.hosts(Link { loss: 0.05, ..Link::default() });
//! let (pa, cq) = (a.alloc_pd()?, a.create_cq(16)?);
//! let (pb, theirs) = (b.alloc_pd()?, b.create_cq(16)?);
//! let (x, y) = (pa.create_qp(QpType::Rc, &cq).build()?, pb.create_qp(QpType::Rc, &theirs).build()?);
//! x.connect(&y.endpoint())?;
//! y.connect(&x.endpoint())?;
//!
//! let src = pa.alloc_mr(1 << 20, Access::LOCAL)?;
//! let dst = pb.alloc_mr(1 << 20, Access::REMOTE)?;
//! src.fill(0..1 << 20, 0x5a);
//! x.post_send(SendWr::write(1, src.sge(..), dst.remote()))?;
//! cq.wait(Duration::from_secs(10))?.ok()?; // virtual seconds
//! assert_eq!(dst.to_vec(0..1 << 20), vec![0x5a; 1 << 20]);
//! # Ok(())
//! # }
//! ```
//!
//! # Time
//! Time moves when the program waits, polls in vain, or runs the simulation: it jumps from event to
//! event, so a minute of timeouts costs nothing. One thread drives a simulation, the first that moves
//! time; another gets `EDEADLK` unless [`Sim::shared`] was called, which gives up equal runs.
//!
//! # Seeds
//! Everything random comes from the seed of [`Sim::new`]: losses, keys, queue pair numbers. The same seed
//! gives the same packets at the same times, on any machine: [`Sim::trace_hash`] proves it. The environment
//! variable `SOFTROCE_SEED` overrides the seed, to repeat a failure.
//!
//! # What goes wrong
//! | what | how |
//! |---|---|
//! | packets are lost, doubled, overtaken, damaged, delayed | [`Link`], [`Sim::rule`], [`Sim::tap`] |
//! | a cable is pulled | [`Sim::set_up`] |
//! | a call or a completion fails, an event comes | [`Sim::fault`], [`Sim::raise`] |
//! | a host dies and comes back | [`Sim::kill`], [`Sim::reboot`] |
//! | bytes are in memory later than their packet | [`Sim::late_placement`] |
//! | something of this at a given time | [`Sim::at`], [`FaultSchedule`] |
//!
//! # What happened
//! [`Sim::run_seeds`] runs a test under many seeds and shows the failure of one: the seed, the packets of its
//! connections as a [`Diagram`](trace::Diagram), and a capture. [`Sim::trace`] records what NICs and network do, step
//! by step, and [`Sim::pcap`] keeps the packets.

mod check;
mod exec;
mod faults;
mod hosts;
mod schedule;
#[cfg(feature = "proptest")]
pub mod strategies;
mod topology;
pub mod trace;

use std::fmt;
use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

pub use check::Failure;
pub use faults::{VerbFault, VerbFaultGuard};
pub use schedule::{FaultSchedule, NetFault, Phase};
pub use topology::{Cable, HostConfig, Network, Payload, Topology};

pub use crate::fabric::{
    Action, Class, HostCounters, HostId, Link, MarkAt, Marking, PRIORITIES, Packet, Pfc,
    PortCounters, PriorityMap, Receiver, Rule, RuleGuard, RuleHits, Scheduler, SwitchConfig,
    Threshold, Trust, Verdict, Watchdog, When, Xon,
};

use crate::capture::Writer;
use crate::engine::cause::Cause;
use crate::fabric::{Fabric, FabricError, PacketSink, SharedFabric};
use crate::net;
use crate::nic::virtual_time::{Inside, VirtualTime};
use crate::seed::Seeds;
use crate::time::{Duration, Instant};
use crate::verbs::{Context, Error, Result};

use exec::Executor;

/// The environment variable that overrides every seed.
pub const SEED_VARIABLE: &str = "SOFTROCE_SEED";

/// A simulated network with its hosts. A cheap handle: clones are the same simulation.
#[derive(Clone)]
pub struct Sim(Arc<Inner>);

struct Inner {
    seed: u64,
    /// Another seed can be had by the environment.
    yields: bool,
    seeds: Seeds,
    fabric: SharedFabric,
    time: Arc<VirtualTime>,
    executor: Executor,
    hosts: Mutex<Vec<hosts::Machine>>,
    /// The trace that is being recorded.
    trace: Mutex<Option<Arc<trace::Log>>>,
}

impl Sim {
    /// An empty network. [`SEED_VARIABLE`], where it is set, overrides the seed.
    ///
    /// If a test panics, the seed is printed with the panic.
    ///
    /// # Panics
    /// If [`SEED_VARIABLE`] is set to something that is not a number: a failure would not be repeated.
    pub fn new(seed: u64) -> Self {
        Self::of(seed_of_environment().unwrap_or(seed), true)
    }

    /// The same with this seed, whatever the environment says: for programs that are told their seed in another way,
    /// and print it.
    ///
    /// ```
    /// use softroce::sim::Sim;
    /// assert_eq!(Sim::exact(7).seed(), 7);
    /// ```
    pub fn exact(seed: u64) -> Self {
        Self::of(seed, false)
    }

    fn of(seed: u64, yields: bool) -> Self {
        let seeds = Seeds::new(seed);
        let fabric = Arc::new(Mutex::new(Fabric::from_seeds(seeds.derive("fabric", 0))));
        let time = VirtualTime::new(Arc::clone(&fabric));
        Self(Arc::new(Inner {
            seed,
            yields,
            seeds,
            fabric,
            time,
            executor: Executor::new(),
            hosts: Mutex::default(),
            trace: Mutex::new(None),
        }))
    }

    /// The seed in use.
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    /// Has `f` see every packet before it is delivered. It may drop, delay, duplicate or change it.
    ///
    /// It runs between two events. Verbs refuse to be called from it, and so does what moves time or adds hosts
    /// (`EDEADLK`, or a panic where there is no error to give). All else of the simulation may be called: it may set
    /// links, add rules, kill hosts, remove or replace itself. A tap that holds the simulation keeps it alive until
    /// it is removed.
    pub fn tap(&self, mut f: impl FnMut(&mut Packet) -> Verdict + Send + 'static) {
        // Weak: the tap is part of the network that the time drives.
        let time = Arc::downgrade(&self.0.time);
        let tap = move |packet: &mut Packet| match time.upgrade() {
            Some(time) => time.run_inside(Inside::Tap, || f(packet)),
            None => Verdict::Pass,
        };
        let before = self.0.fabric.lock().set_tap(Some(Box::new(tap)));
        // Not under the lock: with it may go what leads back here.
        drop(before);
    }

    /// Removes the tap. From inside the tap: it has seen its last packet.
    pub fn untap(&self) {
        let before = self.0.fabric.lock().set_tap(None);
        drop(before);
    }

    /// Drops the [tap](Self::tap), all [tasks](Self::spawn), done or not, and what was to be done [later](Self::at).
    /// What they hold of the simulation, itself or a device, keeps it in memory: a program that makes many simulations
    /// and leaves tasks behind, in endless loops for example, calls this at the end of each.
    /// ([`run_seeds`](Self::run_seeds) and [`try_seeds`](Self::try_seeds) do so for each of their simulations.)
    ///
    /// ```
    /// use softroce::prelude::*;
    /// use softroce::sim::Sim;
    ///
    /// let sim = Sim::new(1);
    /// let beat = sim.clone();
    /// sim.spawn(async move {
    ///     loop {
    ///         beat.sleep(Duration::from_millis(1)).await;
    ///     }
    /// });
    /// sim.block_on(sim.sleep(Duration::from_millis(10)));
    /// sim.end();
    /// ```
    pub fn end(&self) {
        self.untap();
        self.0.executor.clear();
        self.0.time.forget_actions();
    }

    /// Adds a rule for packets: for faults that are easier said than programmed.
    ///
    /// # Errors
    /// `EINVAL`: the rule makes no sense.
    pub fn rule(&self, rule: Rule) -> Result<()> {
        let added = self.0.fabric.lock().add_rule(rule);
        added.map(drop).map_err(refused)
    }

    /// Adds a rule for as long as the guard lives, which also tells how often it applied.
    ///
    /// # Errors
    /// `EINVAL`: the rule makes no sense.
    pub fn rule_while(&self, rule: Rule) -> Result<RuleGuard> {
        RuleGuard::new(&self.0.fabric, rule).map_err(refused)
    }

    /// What the network counted of all hosts together, also of those that are gone.
    pub fn total_counters(&self) -> HostCounters {
        self.0.fabric.lock().totals()
    }

    /// Runs a task on the simulation's own executor. [`CompletionQueue::next`](crate::verbs::CompletionQueue::next)
    /// and [`sleep`](Self::sleep) wake it in virtual time. If it fails, [`block_on`](Self::block_on) panics with the
    /// error.
    pub fn spawn(&self, f: impl Future<Output = Result<()>> + Send + 'static) {
        self.0.executor.spawn(f, None);
    }

    /// The same, for a task that dies with its host: it is dropped when the host is [killed](Self::kill), also if it
    /// has failed by then because it was.
    ///
    /// # Errors
    /// `EINVAL`: not a host of this simulation. `EIO`: it was killed.
    pub fn spawn_on(
        &self,
        host: &Context,
        f: impl Future<Output = Result<()>> + Send + 'static,
    ) -> Result<()> {
        self.host_of(host)?;
        host.nic().living().map_err(|cause| Error::verb("sim", cause))?;
        self.0.executor.spawn(f, Some(host.nic()));
        Ok(())
    }

    /// Has something done at a virtual time since the beginning, whoever drives the simulation then; before all else
    /// that happens at that instant, in the order of these calls. It may call verbs and the simulation, but not move
    /// time. If that time is over, it is done next.
    ///
    /// ```
    /// use softroce::prelude::*;
    /// use softroce::sim::{Link, Sim};
    ///
    /// # fn main() -> Result<()> {
    /// let sim = Sim::new(1);
    /// let [a] = sim.hosts(Link::default());
    /// let host = a.clone();
    /// sim.at(Duration::from_secs(5), move |sim| sim.set_up(&host, false).unwrap());
    /// assert_eq!(a.wait_event(Duration::from_secs(60))?, Event::PortErr { port: 1 });
    /// assert_eq!(sim.now(), Duration::from_secs(5));
    /// # Ok(())
    /// # }
    /// ```
    pub fn at(&self, when: Duration, f: impl FnOnce(&Self) + Send + 'static) {
        let sim = Arc::downgrade(&self.0);
        let action = move || {
            if let Some(inner) = sim.upgrade() {
                f(&Self(inner));
            }
        };
        self.0.time.schedule(Instant::ZERO + when, Box::new(action));
    }

    /// Runs a task, and all others, until it is done. Tasks run in the order in which they were woken.
    ///
    /// # Panics
    /// A task failed; or nothing is left to happen, and it is not done; or another thread drives the
    /// simulation.
    #[track_caller]
    pub fn block_on<T>(&self, f: impl Future<Output = T>) -> T {
        match self.0.executor.block_on(&self.0.time, f) {
            Ok(value) => value,
            Err(e) => panic!("seed {}: {e}", self.0.seed),
        }
    }

    /// Lets virtual time pass, inside a task.
    pub async fn sleep(&self, d: Duration) {
        let until = self.0.time.now() + d;
        self.0.executor.sleep_until(until, &self.0.time).await;
    }

    /// Virtual time since the beginning.
    pub fn now(&self) -> Duration {
        self.0.time.now() - Instant::ZERO
    }

    /// Runs for a time.
    ///
    /// # Panics
    /// Another thread drives the simulation, or this process is a child of the one that made it.
    #[track_caller]
    pub fn run_for(&self, d: Duration) {
        if let Err(cause) = self.0.time.run_for(d) {
            panic!("{cause}");
        }
    }

    /// Runs until nothing is left to happen.
    ///
    /// # Panics
    /// Another thread drives the simulation, or this process is a child of the one that made it.
    #[track_caller]
    pub fn settle(&self) {
        if let Err(cause) = self.0.time.settle() {
            panic!("{cause}");
        }
    }

    /// Lets any thread drive the simulation. Runs are no longer equal.
    pub fn shared(&self) {
        self.0.time.share();
    }

    /// Writes everything that crosses the network from now on to a pcapng file: what was lost, too, with a
    /// comment that says so.
    ///
    /// # Errors
    /// The file's.
    pub fn pcap(&self, path: impl AsRef<Path>) -> Result<()> {
        let file = io::BufWriter::new(std::fs::File::create(path)?);
        let writer = Writer::new(file)?;
        self.0.fabric.lock().start_capture(Box::new(Pcap(writer)))?;
        Ok(())
    }

    /// Ends the capture and writes what is left of it.
    ///
    /// # Errors
    /// The file's, also those of earlier packets.
    pub fn stop_pcap(&self) -> Result<()> {
        Ok(self.0.fabric.lock().stop_capture()?)
    }

    /// Records from now on what NICs and network do, step by step: at most `capacity` records, the first
    /// ones. Ends the recording that was going on, if there was one; ends itself when the
    /// [`Trace`](trace::Trace) is dropped. See [`trace`].
    ///
    /// Recording changes nothing: neither packets nor times nor [`trace_hash`](Self::trace_hash).
    ///
    /// # Errors
    /// `EDEADLK`: called from inside a tap.
    pub fn trace(&self, capacity: usize) -> Result<trace::Trace> {
        self.0.time.enter().map_err(|cause| Error::verb("sim", cause))?;
        Ok(trace::Trace::start(self, capacity))
    }

    /// How many events the network has had: each packet is one at the end of each of its cables, and one more where a
    /// switch with a buffer has sent it. What NICs do in between is not counted.
    pub fn events(&self) -> u64 {
        self.0.fabric.lock().events()
    }

    /// A digest of everything that crossed the network: times, hosts, bytes, and what became of them.
    pub fn trace_hash(&self) -> u64 {
        self.0.fabric.lock().trace_hash()
    }
}

/// What [`SEED_VARIABLE`] says; nothing if it is not set, or empty.
fn seed_of_environment() -> Option<u64> {
    let text = std::env::var_os(SEED_VARIABLE).filter(|text| !text.is_empty())?;
    let seed = text.to_str().and_then(|text| text.trim().parse().ok());
    Some(seed.unwrap_or_else(|| {
        panic!("{SEED_VARIABLE} is {text:?}: it must be a number, or not be set")
    }))
}

/// What the network refuses, as an error.
fn refused(e: FabricError) -> Error {
    Error::verb("sim", Cause::Invalid { what: e.to_string().into() })
}

impl Drop for Inner {
    fn drop(&mut self) {
        #[expect(clippy::print_stderr, reason = "the seed is what a failing test must tell")]
        if std::thread::panicking() {
            let seed = self.seed;
            if self.yields {
                eprintln!("softroce::sim: seed {seed}; repeat with {SEED_VARIABLE}={seed}");
            } else {
                eprintln!("softroce::sim: seed {seed}");
            }
        }
        // A file that could not be written was the business of `stop_pcap`.
        let _ = self.fabric.lock().stop_capture();
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sim")
            .field("seed", &self.0.seed)
            .field("now", &self.now())
            .finish_non_exhaustive()
    }
}

/// A capture file as the network sees it.
struct Pcap<W: io::Write>(Writer<W>);

impl<W: io::Write + Send> PacketSink for Pcap<W> {
    fn packet(
        &mut self,
        at: Instant,
        path: &net::Path,
        ident: u16,
        datagram: &[u8],
        comment: Option<&str>,
    ) -> io::Result<()> {
        self.0.write_commented(at, path, ident, datagram, comment)
    }

    fn frame(&mut self, at: Instant, bytes: &[u8]) -> io::Result<()> {
        self.0.write_ethernet(at, bytes)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
