//! The hosts of a simulation: adding them, their cables, their death and their next life.

use super::{HostConfig, HostCounters, HostId, Link, Payload, Sim, refused};
use crate::engine::cause::Cause;
use crate::engine::watch::Late;
use crate::engine::{EngineConfig, config};
use crate::fabric::{Cabling, FabricPort, SwitchId};
use crate::nic::{Nic, OpenNic};
use crate::time::Duration;
use crate::verbs::{Backend, Context, Device, Error, Event, Result};

use std::sync::Arc;

/// Datagrams that Linux segments one send into, at most: what a NIC does here, it does there.
const SEGMENTS: usize = 64;
/// What a host that paces exactly makes up for after a pause or a wait: next to nothing of a slow flow, and at the rate
/// of the line enough for the line to be busy at once.
const CREDIT: Duration = Duration::from_nanos(200);
/// Bytes of a datagram that are carried where payload is not: all headers that there are, and more.
const CARRIED: usize = 128;

/// How a host is connected.
enum Cabled<'a> {
    /// To the first switch.
    First(Link),
    /// To another.
    On(SwitchId, &'a Cabling),
}

/// What of a host outlives its device.
pub(super) struct Machine {
    config: EngineConfig,
    speed_mbps: u64,
    /// Datagrams in one send.
    segments: usize,
    /// Devices that it has had.
    lives: u64,
    late: Duration,
}

impl Sim {
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
        let Some(pkeys) = config::partitions(pkeys) else {
            let what = "up to 127 partition keys, none of them 0 or 0x8000".into();
            return Err(Error::verb("sim", Cause::Invalid { what }));
        };
        self.host_with(link, |config| config.pkeys.extend(pkeys))
    }

    /// One more host, with an engine set up differently.
    pub(crate) fn host_with(
        &self,
        link: Link,
        configure: impl FnOnce(&mut EngineConfig),
    ) -> Result<Context> {
        self.add_host(Cabled::First(link), SEGMENTS, configure)
    }

    /// One more host, on a switch.
    pub(super) fn host_on(
        &self,
        at: SwitchId,
        cabling: &Cabling,
        host: &HostConfig,
    ) -> Result<Context> {
        let Some(pkeys) = config::partitions(&host.pkeys) else {
            let what = "up to 127 partition keys, none of them 0 or 0x8000".into();
            return Err(Error::verb("sim", Cause::Invalid { what }));
        };
        let elided = host.payload == Payload::Elided;
        if elided {
            self.0.fabric.lock().carry(CARRIED);
        }
        let segments = if host.exact { 1 } else { SEGMENTS };
        self.add_host(Cabled::On(at, cabling), segments, |config| {
            config.pkeys.extend(pkeys);
            config.cnp.interval = host.cnp_interval;
            config.elide = elided;
            if host.exact {
                config.window.enabled = false;
                config.ack_every = u32::MAX;
                config.ack_delay = Duration::ZERO;
                config.pacing_burst = Duration::ZERO;
                config.pacing_credit = CREDIT;
            }
        })
    }

    fn add_host(
        &self,
        cabled: Cabled<'_>,
        segments: usize,
        configure: impl FnOnce(&mut EngineConfig),
    ) -> Result<Context> {
        self.0.time.enter().map_err(|cause| Error::verb("sim", cause))?;
        let mut machines = self.0.hosts.lock();
        let (host, bits_per_s) = {
            let mut fabric = self.0.fabric.lock();
            let (added, link) = match cabled {
                Cabled::First(link) => (fabric.add_host(link), link),
                Cabled::On(at, cabling) => (fabric.add_host_at(at, cabling), cabling.link),
            };
            let host = added.map_err(refused)?;
            let n = host.0 + 1;
            let [_, b, c, d] = n.to_be_bytes();
            fabric.attach(host, [10, b, c, d].into()).map_err(refused)?;
            let low = u128::from(n);
            let v6 = std::net::Ipv6Addr::from(0xfd00_u128 << 112 | low);
            fabric.attach(host, v6.into()).map_err(refused)?;
            (host, link.bits_per_s)
        };
        let mut config = EngineConfig::new([0; 32]);
        configure(&mut config);
        let speed_mbps = bits_per_s / 1_000_000;
        let mut machine = Machine { config, speed_mbps, segments, lives: 0, late: Duration::ZERO };
        let nic = self.boot(host, &mut machine)?;
        machines.push(machine);
        self.0.time.add(nic.nic());
        drop(machines);
        self.started(host, nic.nic());
        Ok(self.open(host, speed_mbps, nic))
    }

    /// Gives a host a new device.
    fn boot(&self, host: HostId, machine: &mut Machine) -> Result<Arc<OpenNic>> {
        let mut seeds = self.0.seeds.derive("nic", host.0.into());
        // The first life's seed is that of the host.
        if machine.lives > 0 {
            seeds = seeds.derive("life", machine.lives);
        }
        machine.lives += 1;
        let mut seed = [0; 32];
        rand_core::Rng::fill_bytes(&mut seeds.rng(), &mut seed);
        let config = EngineConfig { seed, ..machine.config.clone() };
        let port = FabricPort::new(&self.0.fabric, host).map_err(refused)?;
        let port = port.segmenting(machine.segments);
        let time = Arc::clone(&self.0.time);
        Ok(OpenNic::new(Nic::simulated(Box::new(port), config, time, host.index())))
    }

    /// A device is on its host: whoever looks at all of them looks at it, too.
    fn started(&self, host: HostId, nic: &Nic) {
        if let Some(log) = &*self.0.trace.lock() {
            log.attach(host.index(), nic);
        }
        if self.0.time.faults().judges() {
            nic.be_judged();
        }
    }

    fn open(&self, host: HostId, speed_mbps: u64, nic: Arc<OpenNic>) -> Context {
        let device = Device {
            name: format!("sim:{}", host.0),
            backend: Backend::Soft,
            guid: nic.nic().guid(),
            speed_mbps: Some(speed_mbps),
        };
        Context::from_nic(device, nic)
    }

    /// The number of a host, for [rules](super::Rule).
    ///
    /// ```
    /// use softroce::sim::{Action, Class, Link, Rule, Sim};
    ///
    /// # fn main() -> softroce::verbs::Result<()> {
    /// let sim = Sim::new(1);
    /// let [a, b] = sim.hosts(Link::default());
    /// let (a, b) = (sim.host_of(&a)?, sim.host_of(&b)?);
    /// sim.rule(Rule::new(Class::Ack, Action::Drop).from(b).to(a).nth(3))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `EINVAL`: not a host of this simulation.
    pub fn host_of(&self, host: &Context) -> Result<HostId> {
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
        self.0.fabric.lock().set_link(id, link).map_err(refused)
    }

    /// Pulls the cable of a host, or plugs it in again. What is on the way is lost. Its device raises
    /// [`Event::PortErr`] or [`PortActive`](Event::PortActive).
    ///
    /// # Errors
    /// `EINVAL`: not a host of this simulation. `EIO`: it was killed.
    pub fn set_up(&self, host: &Context, up: bool) -> Result<()> {
        let id = self.host_of(host)?;
        host.nic().living().map_err(|cause| Error::verb("sim", cause))?;
        self.plug(id, host.nic(), up)
    }

    pub(super) fn plug(&self, host: HostId, nic: &Nic, up: bool) -> Result<()> {
        let set = self.0.fabric.lock().set_up(host, up);
        set.map_err(refused)?;
        // The device notices in a pass.
        nic.control(|_, _| ());
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

    /// Kills a host, as a pulled plug does: from this moment it sends nothing and answers nothing; what it had sent and
    /// the switch had not yet passed on is lost. Nobody is told. Its peers find out by their timeouts: a request that
    /// is under way completes with [`RetryExc`](crate::verbs::WcStatus::RetryExc) after `retry_cnt` + 1 of them.
    ///
    /// What was made on the dead device can only be dropped: verbs fail with `EIO` and a sentence, who waits for a
    /// completion gets that error, and tasks of [`spawn_on`](Self::spawn_on) are dropped. Its memory stays readable,
    /// for the test that wants to see what had arrived. Killing the dead does nothing.
    ///
    /// ```
    /// use softroce::prelude::*;
    /// use softroce::sim::{Link, Sim};
    ///
    /// # fn main() -> Result<()> {
    /// let sim = Sim::new(1);
    /// let [a, b] = sim.hosts(Link::default());
    /// let side = |ctx: &Context| -> Result<_> {
    ///     let (pd, cq) = (ctx.alloc_pd()?, ctx.create_cq(16)?);
    ///     let qp = pd.create_qp(QpType::Rc, &cq).build()?;
    ///     Ok((pd, cq, qp))
    /// };
    /// let ((_, cq, x), (_, theirs, y)) = (side(&a)?, side(&b)?);
    /// x.connect(&y.endpoint())?;
    /// y.connect(&x.endpoint())?;
    ///
    /// sim.kill(&b)?;
    /// x.post_send(SendWr::send(1, inline(b"anybody?")))?;
    /// // Eight timeouts of 0.54 s.
    /// assert_eq!(cq.wait(Duration::from_secs(5))?.status, WcStatus::RetryExc);
    /// assert_eq!(theirs.wait(Duration::ZERO).unwrap_err().errno(), Some(5));
    ///
    /// let b = sim.reboot(&b)?; // the same host and addresses; nothing else is as it was
    /// assert!(b.alloc_pd().is_ok());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `EINVAL`: not a host of this simulation.
    pub fn kill(&self, host: &Context) -> Result<()> {
        let id = self.host_of(host)?;
        let nic = host.nic();
        if !nic.is_dead() {
            nic.kill();
            self.0.fabric.lock().power_off(id).map_err(refused)?;
            self.0.executor.bury(nic);
        }
        Ok(())
    }

    /// Starts a host again, after killing it if it lives. It has its addresses, its cable (plugged in) and its
    /// settings; its new device has no objects, and other keys and numbers than the one before.
    ///
    /// # Errors
    /// `EINVAL`: not a host of this simulation, or it runs again already. `EDEADLK`: called from inside a tap.
    pub fn reboot(&self, host: &Context) -> Result<Context> {
        let id = self.host_of(host)?;
        self.0.time.enter().map_err(|cause| Error::verb("sim", cause))?;
        if self.0.time.host_of(host.nic()) != Some(id) {
            let what = "the host runs again already, with another device than this one";
            return Err(Error::verb("sim", Cause::Invalid { what: what.into() }));
        }
        self.kill(host)?;
        let mut machines = self.0.hosts.lock();
        let gone = || Error::verb("sim", Cause::Invalid { what: "there is no such host".into() });
        let machine = machines.get_mut(id.index()).ok_or_else(gone)?;
        self.0.fabric.lock().set_up(id, true).map_err(refused)?;
        let nic = self.boot(id, machine)?;
        let (speed_mbps, late) = (machine.speed_mbps, machine.late);
        drop(machines);
        self.0.time.replace(id.index(), nic.nic());
        self.started(id, nic.nic());
        self.place_late(id, nic.nic(), late);
        Ok(self.open(id, speed_mbps, nic))
    }

    /// Raises an asynchronous event that nothing has caused, with what a device would do besides: after
    /// [`QpFatal`](Event::QpFatal) the queue pair is in ERR, after [`CqErr`](Event::CqErr) the completion queue takes
    /// no more and its queue pairs are in ERR, after [`DeviceFatal`](Event::DeviceFatal) the device neither sends nor
    /// receives. All others are told and change nothing; for a port that is really down, see [`set_up`](Self::set_up).
    ///
    /// ```
    /// use softroce::prelude::*;
    /// use softroce::sim::{Link, Sim};
    ///
    /// # fn main() -> Result<()> {
    /// let sim = Sim::new(1);
    /// let [a] = sim.hosts(Link::default());
    /// let (pd, cq) = (a.alloc_pd()?, a.create_cq(16)?);
    /// let qp = pd.create_qp(QpType::Rc, &cq).build()?;
    /// let fatal = Event::QpFatal { qpn: qp.number() };
    /// sim.raise(&a, fatal)?;
    /// assert_eq!(a.wait_event(Duration::ZERO)?, fatal);
    /// assert_eq!(qp.state()?, QpState::Err);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `EINVAL`: not a host of this simulation, or the event names an object that its device does not have. `EIO`: it
    /// was killed.
    pub fn raise(&self, host: &Context, event: Event) -> Result<()> {
        self.host_of(host)?;
        let nic = host.nic();
        nic.living().and_then(|()| nic.raise(event)).map_err(|cause| Error::verb("sim", cause))
    }

    /// Has bytes of WRITEs to a host, and of answers to its READs, be in memory later than their packets: in lines of
    /// 64 bytes, each at a random moment within this time, in any order. [`ZERO`](Duration::ZERO) ends that.
    ///
    /// Without it every byte is in memory when its packet was handled, which is more than hardware promises. A program
    /// may rely on what the standard says (IBTA o9-20, and annex A19 for FLUSH), and that holds here too. Everything
    /// has landed when
    /// - a completion is written on the host: of a receive, which a later SEND or WRITE with immediate data takes, or of
    ///   a request of its own, such as the READ that the bytes answer;
    /// - a SEND, WRITE with immediate data, READ, atomic, ATOMIC WRITE or FLUSH arrives, so that it finds in memory what
    ///   came before it, and a word that an atomic has changed tells that all before is there;
    /// - memory is deregistered, a queue pair is modified or destroyed.
    ///
    /// What a program may not rely on, and what this shows: that a WRITE's last byte is there last; that a second
    /// WRITE is there after the first; that a WRITE is there when its *sender* got its completion.
    ///
    /// ```
    /// use softroce::prelude::*;
    /// use softroce::sim::{Link, Sim};
    /// use std::sync::atomic::Ordering::Acquire;
    ///
    /// // "The last word is set, so the rest is there": how many seeds show that it is not.
    /// fn torn(late: Duration) -> Result<usize> {
    ///     let mut torn = 0;
    ///     for seed in 0..20 {
    ///         let sim = Sim::new(seed);
    ///         let [a, b] = sim.hosts(Link::default());
    ///         sim.late_placement(&b, late)?;
    /// #       let (pa, cq) = (a.alloc_pd()?, a.create_cq(16)?);
    /// #       let (pb, theirs) = (b.alloc_pd()?, b.create_cq(16)?);
    /// #       let (x, y) = (pa.create_qp(QpType::Rc, &cq).build()?, pb.create_qp(QpType::Rc, &theirs).build()?);
    /// #       x.connect(&y.endpoint())?;
    /// #       y.connect(&x.endpoint())?;
    ///         // ... x at host a is connected to y at host b ...
    ///         let (src, dst) = (pa.alloc_mr(1024, Access::LOCAL)?, pb.alloc_mr(1024, Access::REMOTE)?);
    ///         src.fill(0..1024, 1);
    ///         x.post_send(SendWr::write(1, src.sge(..), dst.remote()))?;
    ///         while dst.load(1016, Acquire) == 0 {
    ///             sim.run_for(Duration::from_nanos(100));
    ///         }
    ///         torn += usize::from(dst.to_vec(0..1024) != [1; 1024]);
    ///     }
    ///     Ok(torn)
    /// }
    /// # fn main() -> Result<()> {
    /// assert_eq!(torn(Duration::ZERO)?, 0);
    /// assert!(torn(Duration::from_micros(10))? > 10);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `EINVAL`: not a host of this simulation. `EIO`: it was killed.
    pub fn late_placement(&self, host: &Context, within: Duration) -> Result<()> {
        let id = self.host_of(host)?;
        host.nic().living().map_err(|cause| Error::verb("sim", cause))?;
        if let Some(machine) = self.0.hosts.lock().get_mut(id.index()) {
            machine.late = within;
        }
        self.place_late(id, host.nic(), within);
        Ok(())
    }

    fn place_late(&self, host: HostId, nic: &Nic, within: Duration) {
        let rng = self.0.seeds.derive("late", host.0.into()).rng();
        let late = (!within.is_zero()).then(|| Late::new(within, rng));
        nic.control(|engine, _| engine.set_late(late));
    }
}
