//! Shared receive queues.

use std::sync::Arc;

use crate::engine::SrqAttr;
use crate::engine::cause::Cause;
use crate::nic::interfere::Point;
use crate::queue::{PostError, RecvQueue};

use super::error::{Error, Named, Result};
use super::mr::Sge;
use super::pd::ProtectionDomain;
use super::wr::RecvWr;

#[derive(Debug)]
struct Inner {
    pd: ProtectionDomain,
    number: u32,
    queue: Arc<RecvQueue>,
    max_sge: u32,
}

impl Drop for Inner {
    #[doc(alias = "ibv_destroy_srq")]
    fn drop(&mut self) {
        // Its queue pairs hold references, so none is left.
        let _ = self.pd.nic().destroy_srq(self.number);
    }
}

/// A receive queue shared by many queue pairs. A cheap handle: clones are the same queue.
///
/// A message takes a receive when it begins, whichever queue pair it comes in on, so a thousand mostly idle
/// connections need no thousand times the buffers. The completion says which queue pair it was. Finding the queue empty, a
/// peer is told to try again later, as with a queue of its own.
///
/// *Refilling in time.* [`set_limit`](Self::set_limit) has [`Event::SrqLimit`](super::Event::SrqLimit) raised once
/// when fewer receives are left.
///
/// *Taking a queue pair down without losing a receive.* Move it to ERR (or it has gone there); wait for
/// [`Event::LastWqe`](super::Event::LastWqe), after which it takes no more receives; poll the completion queue
/// until it is empty; destroy it.
///
/// ```
/// use softroce::prelude::*;
/// # fn main() -> Result<()> {
/// # let [ctx, other] = softroce::sim::Sim::new(1).hosts(Default::default());
/// let (pd, cq) = (ctx.alloc_pd()?, ctx.create_cq(64)?);
/// let srq = pd.create_srq(32, 1)?;
/// let mr = pd.alloc_mr(4096, Access::LOCAL)?;
/// srq.post_recv((0..4).map(|id| RecvWr::new(id, mr.sge(id as usize * 1024..(id as usize + 1) * 1024))))?;
/// let qp = pd.create_qp(QpType::Rc, &cq).srq(&srq).build()?;
/// # let theirs = other.create_cq(16)?;
/// # let peer = other.alloc_pd()?.create_qp(QpType::Rc, &theirs).build()?;
/// # peer.connect(&qp.endpoint())?;
/// # qp.connect(&peer.endpoint())?;
/// # peer.post_send(SendWr::send(1, inline(b"hello")))?;
/// let wc = cq.wait(Duration::from_secs(1))?.ok()?;
/// assert_eq!((wc.wr_id, wc.qpn), (0, qp.number()));
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ibv_srq")]
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue(Arc<Inner>);

impl SharedReceiveQueue {
    pub(crate) fn new(pd: &ProtectionDomain, max_wr: u32, max_sge: u32) -> Result<Self> {
        let verb = "ibv_create_srq";
        pd.nic().enter().of(verb)?;
        let events = pd.context().events();
        let (number, queue) = pd.nic().create_srq(pd.id(), max_wr, max_sge, events).of(verb)?;
        Ok(Self(Arc::new(Inner { pd: pd.clone(), number, queue, max_sge })))
    }

    /// Its number, as [`Event::SrqLimit`](super::Event::SrqLimit) names it.
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// Its protection domain.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.0.pd
    }

    /// Posts receives, from any thread. Each is posted whole or not at all.
    ///
    /// # Errors
    /// [`Error::Post`]: how many are in the queue, and why the next one is not: `ENOMEM` (queue full),
    /// `EINVAL` (too many pieces of memory, or too many bytes).
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_recv<'a>(&self, wrs: impl IntoIterator<Item = RecvWr<'a>>) -> Result<()> {
        let verb = "ibv_post_srq_recv";
        let gate = self.0.pd.nic().enter_post().map_err(|cause| Error::post(verb, 0, cause))?;
        for (posted, wr) in wrs.into_iter().enumerate() {
            if let Some(gate) = gate {
                gate.pass(Point::PostRecv, None)
                    .map_err(|cause| Error::post(verb, posted, cause))?;
            }
            let list = wr.into.as_slice();
            let mut queue = self.0.queue.lock();
            let staged = queue.stage(wr.id, list.iter().map(|s| s.to_mem()));
            staged.map_err(|e| Error::post(verb, posted, self.refused(e, list)))?;
            queue.publish();
        }
        Ok(())
    }

    fn refused(&self, e: PostError, list: &[Sge]) -> Cause {
        match e {
            PostError::QueueFull { depth } => Cause::QueueFull { depth },
            PostError::TooLong => Cause::MessageTooLong {
                got: list.iter().map(|s| u64::from(s.len())).sum(),
                max: u32::MAX.into(),
            },
            PostError::TooManySge { .. } | PostError::InlineTooLong { .. } => {
                Cause::TooManySge { got: list.len(), max: self.0.max_sge }
            }
        }
    }

    /// Arms the limit: once fewer than `limit` receives are left,
    /// [`Event::SrqLimit`](super::Event::SrqLimit) is raised, once; at once if there are fewer now. 0 disarms it.
    ///
    /// # Errors
    /// `EINVAL`: more than the queue has slots.
    #[doc(alias = "ibv_modify_srq")]
    pub fn set_limit(&self, limit: u32) -> Result<()> {
        self.modify(None, Some(limit))
    }

    /// Changes the number of slots; what is posted stays.
    ///
    /// # Errors
    /// `EINVAL`: too many, fewer than there are receives, or fewer than the limit that is armed.
    #[doc(alias = "ibv_modify_srq")]
    pub fn resize(&self, max_wr: u32) -> Result<()> {
        self.modify(Some(max_wr), None)
    }

    fn modify(&self, max_wr: Option<u32>, limit: Option<u32>) -> Result<()> {
        let (verb, nic) = ("ibv_modify_srq", self.0.pd.nic());
        nic.enter().of(verb)?;
        nic.control(|engine, _| engine.modify_srq(self.0.number, max_wr, limit)).of(verb)
    }

    /// What it is set to.
    ///
    /// # Errors
    /// `EDEADLK` inside a tap of a simulation.
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> Result<SrqAttr> {
        let (verb, nic) = ("ibv_query_srq", self.0.pd.nic());
        nic.enter().of(verb)?;
        nic.control(|engine, _| engine.query_srq(self.0.number)).of(verb)
    }
}
