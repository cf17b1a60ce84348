//! Faults of the verbs: posting fails, or a completion is an error.

use std::sync::Arc;

use super::{RuleHits, Sim, When, refused};
use crate::engine::cause::Cause;
use crate::nic::interfere::{Effect, Fault, Faults, Point};
use crate::verbs::{Context, Error, QueuePair, Result, WcStatus};

/// The largest errno of Linux.
const MAX_ERRNO: i32 = 4095;

/// Something that verbs do wrong: see [`Sim::fault`].
///
/// ```
/// use softroce::sim::VerbFault;
/// use softroce::verbs::WcStatus;
/// let third_post = VerbFault::post(12).nth(3); // ENOMEM
/// let now_and_then = VerbFault::send_completion(WcStatus::RetryExc).chance(0.01);
/// # let _ = (third_post, now_and_then);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use = "a fault does nothing until it is given to a simulation"]
pub struct VerbFault {
    points: [Option<Point>; 2],
    effect: Effect,
    of: Of,
    when: When,
}

/// Whose verbs. `None` is no host of a simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Of {
    All,
    Host(Option<Home>),
    Qp(Option<Home>, u32),
}

/// A host, and the simulation that it is of.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Home {
    /// Where its clock lies in memory: to tell simulations apart, and for nothing else.
    simulation: usize,
    host: usize,
}

impl Home {
    fn of(ctx: &Context) -> Option<Self> {
        let time = ctx.nic().virtual_time()?;
        Some(Self { simulation: Arc::as_ptr(time).addr(), host: index_of(ctx)? })
    }
}

impl VerbFault {
    const fn new(points: [Option<Point>; 2], effect: Effect) -> Self {
        Self { points, effect, of: Of::All, when: When::Always }
    }

    /// Posting a request, of either queue or a shared one, fails with this errno; `ENOMEM` is 12.
    pub const fn post(errno: i32) -> Self {
        Self::new([Some(Point::PostSend), Some(Point::PostRecv)], Effect::Errno(errno))
    }

    /// The same, only of send queues.
    pub const fn post_send(errno: i32) -> Self {
        Self::new([Some(Point::PostSend), None], Effect::Errno(errno))
    }

    /// The same, only of receive queues, also shared ones.
    pub const fn post_recv(errno: i32) -> Self {
        Self::new([Some(Point::PostRecv), None], Effect::Errno(errno))
    }

    /// What would complete with success completes with this status, signaled or not.
    pub const fn completion(status: WcStatus) -> Self {
        Self::new([Some(Point::Send), Some(Point::Recv)], Effect::Status(status))
    }

    /// The same, only of send queues.
    pub const fn send_completion(status: WcStatus) -> Self {
        Self::new([Some(Point::Send), None], Effect::Status(status))
    }

    /// The same, only of receives.
    pub const fn recv_completion(status: WcStatus) -> Self {
        Self::new([Some(Point::Recv), None], Effect::Status(status))
    }

    /// Only on this host.
    pub fn on(mut self, host: &Context) -> Self {
        self.of = Of::Host(Home::of(host));
        self
    }

    /// Only of this queue pair.
    pub fn of(mut self, qp: &QueuePair) -> Self {
        self.of = Of::Qp(Home::of(qp.pd().context()), qp.number());
        self
    }

    /// Only some of those that it describes.
    pub const fn when(mut self, when: When) -> Self {
        self.when = when;
        self
    }

    /// Only the first `n`.
    pub const fn first(self, n: u64) -> Self {
        self.when(When::First(n))
    }

    /// Only the `n`th, counted from 1.
    pub const fn nth(self, n: u64) -> Self {
        self.when(When::Nth(n))
    }

    /// Only each `n`th.
    pub const fn every(self, n: u64) -> Self {
        self.when(When::Every(n))
    }

    /// Each with probability `p`, from a random stream of its own.
    pub const fn chance(self, p: f64) -> Self {
        self.when(When::Chance(p))
    }

    fn check(self, sim: &Sim) -> Result<Fault> {
        let bad = |what: &'static str| Error::verb("sim", Cause::Invalid { what: what.into() });
        match self.effect {
            Effect::Errno(1..=MAX_ERRNO) => {}
            Effect::Errno(_) => return Err(bad("an errno is 1 to 4095")),
            Effect::Status(WcStatus::Success) => {
                return Err(bad("a fault has a completion fail: Success is no failure"));
            }
            Effect::Status(_) => {}
        }
        let ours = Arc::as_ptr(&sim.0.time).addr();
        let host = |home: Option<Home>| {
            let home = home.filter(|home| home.simulation == ours);
            home.map(|home| home.host)
                .ok_or_else(|| bad("the fault names something that is no part of this simulation"))
        };
        let (host, qpn) = match self.of {
            Of::All => (None, None),
            Of::Host(home) => (Some(host(home)?), None),
            Of::Qp(home, qpn) => (Some(host(home)?), Some(qpn)),
        };
        Ok(Fault { points: self.points, effect: self.effect, host, qpn, when: self.when })
    }
}

/// The number of a simulated host.
pub(super) fn index_of(host: &Context) -> Option<usize> {
    host.device().name.strip_prefix("sim:").and_then(|n| n.parse().ok())
}

/// Removes its fault when it is dropped.
#[derive(Debug)]
#[must_use = "the fault goes when the guard is dropped"]
pub struct VerbFaultGuard {
    faults: Arc<Faults>,
    id: u64,
}

impl VerbFaultGuard {
    /// How often the fault applied so far.
    pub fn hits(&self) -> RuleHits {
        self.faults.hits(self.id)
    }
}

impl Drop for VerbFaultGuard {
    fn drop(&mut self) {
        self.faults.remove(self.id);
    }
}

impl Sim {
    /// Has verbs fail from now on, by their own account: a request cannot be posted, or completes with an error.
    ///
    /// Where several faults describe the same, the first that selects it decides, as with [rules](Self::rule); each
    /// request of a batch is asked about by itself. A request whose completion is made an error was executed; then
    /// the queue pair goes where such an error leads: to ERR, or on UC and UD for the send queue to SQE, and what is
    /// behind it is flushed. A receive that fails is refused to its sender with "remote operational error" on RC.
    ///
    /// ```
    /// use softroce::prelude::*;
    /// use softroce::sim::{Link, Sim, VerbFault};
    ///
    /// # fn main() -> Result<()> {
    /// let sim = Sim::new(1);
    /// # let [a, b] = sim.hosts(Link::default());
    /// # let (pa, cq) = (a.alloc_pd()?, a.create_cq(16)?);
    /// # let (pb, theirs) = (b.alloc_pd()?, b.create_cq(16)?);
    /// # let (x, y) = (pa.create_qp(QpType::Rc, &cq).build()?, pb.create_qp(QpType::Rc, &theirs).build()?);
    /// # x.connect(&y.endpoint())?;
    /// # y.connect(&x.endpoint())?;
    /// # let lent = pb.alloc_mr(64, Access::REMOTE)?;
    /// // ... x is connected to a peer that lends memory ...
    /// sim.fault(VerbFault::post_send(12).of(&x).nth(3))?;
    /// sim.fault(VerbFault::send_completion(WcStatus::RemAccess).of(&x).nth(2))?;
    ///
    /// let write = |id| SendWr::write(id, inline(b"x"), lent.remote());
    /// let e = x.post_send((1..=4).map(write)).unwrap_err();
    /// assert!(matches!(e, Error::Post { posted: 2, errno: 12, .. }), "{e}");
    /// x.post_send(write(3))?; // posted, and flushed: the second one fails
    /// let ends = [(); 3].map(|()| cq.wait(Duration::from_secs(1)).map(|wc| (wc.wr_id, wc.status)));
    /// use WcStatus::{RemAccess, Success, WrFlush};
    /// assert_eq!(ends, [Ok((1, Success)), Ok((2, RemAccess)), Ok((3, WrFlush))]);
    /// assert_eq!(x.state()?, QpState::Err);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `EINVAL`: a fault that makes no sense (no errno, [`Success`](WcStatus::Success), a probability that is none, a
    /// count from 0), or one that names what is no part of this simulation.
    pub fn fault(&self, fault: VerbFault) -> Result<()> {
        self.add_fault(fault).map(drop)
    }

    /// The same for as long as the guard lives, which also tells how often it applied.
    ///
    /// # Errors
    /// As [`fault`](Self::fault).
    pub fn fault_while(&self, fault: VerbFault) -> Result<VerbFaultGuard> {
        let id = self.add_fault(fault)?;
        Ok(VerbFaultGuard { faults: Arc::clone(self.0.time.faults()), id })
    }

    fn add_fault(&self, fault: VerbFault) -> Result<u64> {
        let faults = self.0.time.faults();
        let id = faults.add(fault.check(self)?, &self.0.seeds).map_err(refused)?;
        if matches!(fault.effect, Effect::Status(_)) {
            for (_, nic) in self.0.time.nics() {
                nic.be_judged();
            }
        }
        Ok(id)
    }
}
