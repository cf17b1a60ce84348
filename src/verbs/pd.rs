//! Protection domains: what may work together.
#![allow(
    unsafe_code,
    reason = "reg_mr takes over a contract from its caller; no memory is touched here"
)]

use std::sync::Arc;

use crate::engine::cause::Cause;
use crate::mem::{Access, IovaChoice, PdId, Region};
use crate::nic::Nic;

use super::ah::{AddressHandle, answer_to};
use super::attr::AhAttr;
use super::context::Context;
use super::cq::CompletionQueue;
use super::error::{Error, Named, Result};
use super::mr::MemoryRegion;
use super::mw::{MemoryWindow, MwType};
use super::pool::Pool;
use super::qp::{QpBuilder, QpType};
use super::srq::SharedReceiveQueue;
use super::wc::WorkCompletion;

#[derive(Debug)]
struct Inner {
    ctx: Context,
    id: PdId,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Everything made in it holds a reference, so nothing is left in it.
        let _ = self.ctx.nic().release(|engine| engine.dealloc_pd(self.id));
    }
}

/// A protection domain. Queue pairs reach only memory of their own domain, and so do their peers.
///
/// A cheap handle: clones are the same domain. It is freed with the last object made in it.
#[doc(alias = "ibv_pd")]
#[derive(Clone, Debug)]
pub struct ProtectionDomain(Arc<Inner>);

impl ProtectionDomain {
    pub(crate) fn new(ctx: &Context) -> Result<Self> {
        let id = ctx.nic().control(|engine, _| engine.alloc_pd()).of("ibv_alloc_pd")?;
        Ok(Self(Arc::new(Inner { ctx: ctx.clone(), id })))
    }

    /// The device.
    pub fn context(&self) -> &Context {
        &self.0.ctx
    }

    pub(crate) fn nic(&self) -> &Arc<Nic> {
        self.0.ctx.nic()
    }

    /// Whether it is the same domain.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn id(&self) -> PdId {
        self.0.id
    }

    /// Zeroed memory of our own, registered: the way to memory that needs no `unsafe`.
    ///
    /// `Access::REMOTE` lets peers do everything, `Access::LOCAL` nothing.
    ///
    /// # Errors
    /// `EINVAL`: no bytes, or rights that need `LOCAL_WRITE` without it. `ENOMEM`.
    ///
    /// ```
    /// use softroce::prelude::*;
    /// # fn main() -> Result<()> {
    /// # let [ctx] = softroce::sim::Sim::new(1).hosts(Default::default());
    /// let mr = ctx.alloc_pd()?.alloc_mr(1 << 20, Access::LOCAL | Access::REMOTE_READ)?;
    /// assert_eq!(mr.len(), 1 << 20);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ibv_reg_mr")]
    pub fn alloc_mr(&self, len: usize, access: Access) -> Result<MemoryRegion> {
        let region = Region::alloc(len).of("ibv_reg_mr")?;
        self.register(region, IovaChoice::Allocate, access)
    }

    fn register(
        &self,
        region: Arc<Region>,
        iova: IovaChoice,
        access: Access,
    ) -> Result<MemoryRegion> {
        self.nic().enter().of("ibv_reg_mr")?;
        let kept = Arc::clone(&region);
        let keys = self
            .nic()
            .control(|engine, _| engine.register(self.id(), kept, iova, access))
            .of("ibv_reg_mr")?;
        Ok(MemoryRegion::new(self.clone(), region, keys))
    }

    /// Registers memory of the program's. Requests and peers name it by its address.
    ///
    /// # Safety
    /// Until the `MemoryRegion` is dropped the bytes are valid, and no Rust reference to them is used while
    /// the device or a peer may touch them. The words at both ends are accessed whole (8 bytes, aligned),
    /// the neighbours' bytes kept.
    ///
    /// # Errors
    /// As [`alloc_mr`](Self::alloc_mr).
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn reg_mr(&self, ptr: *mut u8, len: usize, access: Access) -> Result<MemoryRegion> {
        // SAFETY: the caller's promise.
        let region = unsafe { foreign(ptr, len)? };
        self.register(region, IovaChoice::HostAddress, access)
    }

    /// As [`reg_mr`](Self::reg_mr), with an address of the caller's choice for requests and peers.
    ///
    /// # Safety
    /// As [`reg_mr`](Self::reg_mr).
    ///
    /// # Errors
    /// As [`alloc_mr`](Self::alloc_mr); `EINVAL` if address and length wrap.
    #[doc(alias = "ibv_reg_mr_iova")]
    pub unsafe fn reg_mr_iova(
        &self,
        ptr: *mut u8,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<MemoryRegion> {
        // SAFETY: the caller's promise.
        let region = unsafe { foreign(ptr, len)? };
        self.register(region, IovaChoice::At(iova), access)
    }

    /// `count` buffers of `buf_len` bytes in one registration, for receives and sends.
    ///
    /// # Errors
    /// As [`alloc_mr`](Self::alloc_mr).
    pub fn pool(&self, buf_len: usize, count: usize) -> Result<Pool> {
        Pool::new(self, buf_len, count)
    }

    /// Starts making a queue pair that reports to `cq`.
    #[doc(alias("ibv_create_qp", "ibv_create_qp_ex"))]
    pub fn create_qp(&self, kind: QpType, cq: &CompletionQueue) -> QpBuilder {
        QpBuilder::new(self, kind, cq)
    }

    /// A receive queue of `max_wr` slots for many queue pairs; a receive has up to `max_sge` pieces of
    /// memory, all of this domain. The queue pairs may be of others.
    ///
    /// # Errors
    /// `EINVAL`: no slots, or a limit of the device is exceeded.
    #[doc(alias = "ibv_create_srq")]
    pub fn create_srq(&self, max_wr: u32, max_sge: u32) -> Result<SharedReceiveQueue> {
        SharedReceiveQueue::new(self, max_wr, max_sge)
    }

    /// An address handle for datagrams, to one host or to a multicast group.
    ///
    /// # Errors
    /// `EINVAL` with the attribute at fault, for example an address of another family than the GID of ours that
    /// it names.
    #[doc(alias = "ibv_create_ah")]
    pub fn create_ah(&self, attr: &AhAttr) -> Result<AddressHandle> {
        AddressHandle::new(self, attr)
    }

    /// An address handle for answering the sender of a datagram: `grh` are the first 40 bytes of its receive
    /// buffer. The answer leaves from the address that the datagram was sent to, or if that was a multicast
    /// group, from the first of ours of its family, with the same DSCP.
    ///
    /// # Errors
    /// `EINVAL`: the completion is not that of a datagram, or the bytes are no header.
    #[doc(alias("ibv_create_ah_from_wc", "ibv_init_ah_from_wc"))]
    pub fn create_ah_from_wc(&self, wc: &WorkCompletion, grh: &[u8; 40]) -> Result<AddressHandle> {
        AddressHandle::new(self, &answer_to(self, wc, grh)?)
    }

    /// A memory window, not bound yet.
    ///
    /// # Errors
    /// `ENOMEM`: too many.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_mw(&self, kind: MwType) -> Result<MemoryWindow> {
        self.nic().enter().of("ibv_alloc_mw")?;
        let rkey = self
            .nic()
            .control(|engine, _| engine.alloc_mw(self.id(), kind.into()))
            .of("ibv_alloc_mw")?;
        Ok(MemoryWindow::new(self.clone(), rkey, kind))
    }
}

/// # Safety
/// As [`ProtectionDomain::reg_mr`].
unsafe fn foreign(ptr: *mut u8, len: usize) -> Result<Arc<Region>> {
    if len == 0 {
        return Err(Error::verb("ibv_reg_mr", crate::mem::MemError::Empty));
    }
    if ptr.is_null() {
        return Err(Error::verb(
            "ibv_reg_mr",
            Cause::Invalid { what: "the address is null".into() },
        ));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { Region::foreign(ptr, len, None) })
}
