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
//! # What happened
//! [`Sim::trace`] records what NICs and network do, step by step, and [`Sim::pcap`] keeps the packets.

mod exec;
pub mod trace;

use std::fmt;
use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

pub use crate::fabric::{
    Action, Class, HostCounters, Link, Packet, Rule, RuleGuard, RuleHits, Verdict,
};

use crate::capture::Writer;
use crate::engine::EngineConfig;
use crate::engine::cause::Cause;
use crate::engine::config::MAX_PKEYS;
use crate::fabric::{Fabric, FabricPort, HostId, PacketSink, SharedFabric};
use crate::net;
use crate::nic::virtual_time::VirtualTime;
use crate::nic::{Nic, OpenNic};
use crate::seed::Seeds;
use crate::time::{Duration, Instant};
use crate::verbs::{Backend, Context, Device, Error, Result};
use crate::wire::num::Pkey;

use exec::Executor;

/// The environment variable that overrides every seed.
pub const SEED_VARIABLE: &str = "SOFTROCE_SEED";

/// A simulated network with its hosts. A cheap handle: clones are the same simulation.
#[derive(Clone)]
pub struct Sim(Arc<Inner>);

struct Inner {
    seed: u64,
    seeds: Seeds,
    fabric: SharedFabric,
    time: Arc<VirtualTime>,
    executor: Executor,
    hosts: Mutex<u32>,
    /// The trace that is being recorded.
    trace: Mutex<Option<Arc<trace::Log>>>,
}

impl Sim {
    /// An empty network.
    ///
    /// If a test panics, the seed is printed with the panic.
    ///
    /// # Panics
    /// If [`SEED_VARIABLE`] is set to something that is not a number: a failure would not be repeated.
    pub fn new(seed: u64) -> Self {
        let seed = match std::env::var(SEED_VARIABLE) {
            Ok(text) => text.trim().parse().unwrap_or_else(|_| {
                panic!("{SEED_VARIABLE} is {text:?}: it must be a number, or not be set")
            }),
            Err(_) => seed,
        };
        let seeds = Seeds::new(seed);
        let fabric = Arc::new(Mutex::new(Fabric::from_seeds(seeds.derive("fabric", 0))));
        let time = VirtualTime::new(Arc::clone(&fabric));
        Self(Arc::new(Inner {
            seed,
            seeds,
            fabric,
            time,
            executor: Executor::new(),
            hosts: Mutex::new(0),
            trace: Mutex::new(None),
        }))
    }

    /// The seed in use.
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    /// `N` more hosts on the switch, each its own device with an IPv4 and an IPv6 address (10.0.0.1 and
    /// fd00::1 for the first host).
    ///
    /// # Panics
    /// The link makes no sense: a probability outside 0 to 1, no rate, an MTU below 352. See
    /// [`try_host`](Self::try_host) for an error instead.
    #[track_caller]
    pub fn hosts<const N: usize>(&self, link: Link) -> [Context; N] {
        std::array::from_fn(|_| match self.try_host(link) {
            Ok(ctx) => ctx,
            Err(e) => panic!("{e}"),
        })
    }

    /// One more host.
    ///
    /// # Errors
    /// `EINVAL`: the link makes no sense, with the value at fault.
    pub fn try_host(&self, link: Link) -> Result<Context> {
        self.host_with(link, |_| ())
    }

    /// One more host, with these entries behind the first (0xffff) of its partition table.
    ///
    /// # Errors
    /// `EINVAL`: the link makes no sense, a key is none (its lower 15 bits are 0), or there are more than 127.
    pub fn try_host_in(&self, link: Link, pkeys: &[u16]) -> Result<Context> {
        if pkeys.len() >= MAX_PKEYS || pkeys.iter().any(|key| key & 0x7fff == 0) {
            let what = "up to 127 partition keys, none of them 0 or 0x8000".into();
            return Err(Error::verb("sim", Cause::Invalid { what }));
        }
        self.host_with(link, |config| config.pkeys.extend(pkeys.iter().map(|&key| Pkey(key))))
    }

    /// One more host, with an engine set up differently.
    pub(crate) fn host_with(
        &self,
        link: Link,
        configure: impl FnOnce(&mut EngineConfig),
    ) -> Result<Context> {
        let invalid = |e: crate::fabric::FabricError| {
            Error::verb("sim", Cause::Invalid { what: e.to_string().into() })
        };
        self.0.time.enter().map_err(|cause| Error::verb("sim", cause))?;
        let mut hosts = self.0.hosts.lock();
        let index = *hosts;
        let host = {
            let mut fabric = self.0.fabric.lock();
            let host = fabric.add_host(link).map_err(invalid)?;
            let n = index + 1;
            let [_, b, c, d] = n.to_be_bytes();
            fabric.attach(host, [10, b, c, d].into()).map_err(invalid)?;
            let low = u128::from(n);
            let v6 = std::net::Ipv6Addr::from(0xfd00_u128 << 112 | low);
            fabric.attach(host, v6.into()).map_err(invalid)?;
            host
        };
        *hosts += 1;
        let mut seed = [0; 32];
        let mut rng = self.0.seeds.derive("nic", u64::from(index)).rng();
        rand_core::Rng::fill_bytes(&mut rng, &mut seed);
        let mut config = EngineConfig::new(seed);
        configure(&mut config);
        let port = FabricPort::new(&self.0.fabric, host).map_err(invalid)?;
        let nic = Nic::simulated(Box::new(port), config, Arc::clone(&self.0.time));
        self.0.time.add(&nic);
        if let Some(log) = &*self.0.trace.lock() {
            log.attach(index as usize, &nic);
        }
        let device = Device {
            name: format!("sim:{index}"),
            backend: Backend::Soft,
            guid: nic.guid(),
            speed_mbps: Some(link.bits_per_s / 1_000_000),
        };
        Ok(Context::from_nic(device, OpenNic::new(nic)))
    }

    fn host_of(&self, host: &Context) -> Result<HostId> {
        let ours = host.nic().virtual_time().is_some_and(|t| Arc::ptr_eq(t, &self.0.time));
        let index = host.device().name.strip_prefix("sim:").and_then(|n| n.parse().ok());
        match index {
            Some(index) if ours => Ok(HostId(index)),
            _ => Err(Error::verb(
                "sim",
                Cause::Mismatch { what: "the context is not a host of this simulation" },
            )),
        }
    }

    /// Changes the link of a host, in both directions.
    ///
    /// # Errors
    /// `EINVAL`: not a host of this simulation, or a link that makes no sense.
    pub fn set_link(&self, host: &Context, link: Link) -> Result<()> {
        let id = self.host_of(host)?;
        let set = self.0.fabric.lock().set_link(id, link);
        set.map_err(|e| Error::verb("sim", Cause::Invalid { what: e.to_string().into() }))
    }

    /// Pulls the cable of a host, or plugs it in again. What is on the way is lost. Its device raises
    /// [`Event::PortErr`](crate::verbs::Event::PortErr) or [`PortActive`](crate::verbs::Event::PortActive).
    ///
    /// # Errors
    /// `EINVAL`: not a host of this simulation.
    pub fn set_up(&self, host: &Context, up: bool) -> Result<()> {
        let id = self.host_of(host)?;
        let set = self.0.fabric.lock().set_up(id, up);
        set.map_err(|e| Error::verb("sim", Cause::Invalid { what: e.to_string().into() }))?;
        // The device notices in a pass.
        host.nic().control(|_, _| ());
        Ok(())
    }

    /// What the network counted of a host's packets.
    ///
    /// # Errors
    /// `EINVAL`: not a host of this simulation.
    pub fn link_counters(&self, host: &Context) -> Result<HostCounters> {
        let id = self.host_of(host)?;
        Ok(self.0.fabric.lock().counters(id))
    }

    /// Has `f` see every packet before it is delivered. It may drop, delay, duplicate or change it.
    ///
    /// It runs inside the network: calling verbs or the simulation from it is an error (`EDEADLK`).
    pub fn tap(&self, mut f: impl FnMut(&mut Packet) -> Verdict + Send + 'static) {
        // Weak: the tap is part of the network that the time drives.
        let time = Arc::downgrade(&self.0.time);
        let tap = move |packet: &mut Packet| match time.upgrade() {
            Some(time) => time.inside_tap(|| f(packet)),
            None => Verdict::Pass,
        };
        self.0.fabric.lock().tap(Box::new(tap));
    }

    /// Removes the tap.
    pub fn untap(&self) {
        self.0.fabric.lock().untap();
    }

    /// Adds a rule for packets: for faults that are easier said than programmed.
    ///
    /// # Errors
    /// `EINVAL`: the rule makes no sense.
    pub fn rule(&self, rule: Rule) -> Result<()> {
        let added = self.0.fabric.lock().add_rule(rule);
        added
            .map(drop)
            .map_err(|e| Error::verb("sim", Cause::Invalid { what: e.to_string().into() }))
    }

    /// Adds a rule for as long as the guard lives, which also tells how often it applied.
    ///
    /// # Errors
    /// `EINVAL`: the rule makes no sense.
    pub fn rule_while(&self, rule: Rule) -> Result<RuleGuard> {
        let added = RuleGuard::new(&self.0.fabric, rule);
        added.map_err(|e| Error::verb("sim", Cause::Invalid { what: e.to_string().into() }))
    }

    /// What the network counted of all hosts together, also of those that are gone.
    pub fn total_counters(&self) -> HostCounters {
        self.0.fabric.lock().totals()
    }

    /// Runs a task on the simulation's own executor. [`CompletionQueue::next`](crate::verbs::CompletionQueue::next)
    /// and [`sleep`](Self::sleep) wake it in virtual time. If it fails, [`block_on`](Self::block_on) panics with the
    /// error.
    pub fn spawn(&self, f: impl Future<Output = Result<()>> + Send + 'static) {
        self.0.executor.spawn(f);
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

    /// A digest of everything that crossed the network: times, hosts, bytes, and what became of them.
    pub fn trace_hash(&self) -> u64 {
        self.0.fabric.lock().trace_hash()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        #[expect(clippy::print_stderr, reason = "the seed is what a failing test must tell")]
        if std::thread::panicking() {
            eprintln!(
                "softroce::sim: seed {}; repeat with {SEED_VARIABLE}={}",
                self.seed, self.seed
            );
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

    fn finish(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
