//! Work requests: what to do, with which bytes.

use std::iter;

use crate::mem::Access;
use crate::queue::{BindWqe, SendFlags, SendOp};
use crate::wire::num::{Lkey, Rkey};

use super::ah::AddressHandle;
use super::mr::{MemoryRegion, RemoteSlice, Sge};
use super::mw::{MemoryWindow, MwType};

/// Pieces of registered memory: none, one or several.
#[derive(Clone, Copy, Debug)]
pub enum Local<'a> {
    /// Nothing: a message of no bytes.
    None,
    /// One piece.
    One(Sge),
    /// Several, filled or sent in this order.
    Many(&'a [Sge]),
}

impl<'a> Local<'a> {
    pub(crate) fn as_slice(&'a self) -> &'a [Sge] {
        match self {
            Self::None => &[],
            Self::One(sge) => std::slice::from_ref(sge),
            Self::Many(list) => list,
        }
    }
}

impl From<()> for Local<'_> {
    fn from((): ()) -> Self {
        Self::None
    }
}

impl From<Sge> for Local<'_> {
    fn from(s: Sge) -> Self {
        Self::One(s)
    }
}

impl<'a> From<&'a [Sge]> for Local<'a> {
    fn from(s: &'a [Sge]) -> Self {
        Self::Many(s)
    }
}

impl<'a, const N: usize> From<&'a [Sge; N]> for Local<'a> {
    fn from(s: &'a [Sge; N]) -> Self {
        Self::Many(s)
    }
}

/// What a SEND or WRITE takes its bytes from: registered memory, or any bytes, copied when posting.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Registered memory.
    Local(Local<'a>),
    /// Bytes copied when the request is posted.
    Inline(&'a [u8]),
}

impl<'a, T: Into<Local<'a>>> From<T> for Source<'a> {
    fn from(t: T) -> Self {
        Self::Local(t.into())
    }
}

/// Bytes that are copied when the request is posted, up to [`QpCap::inline`](super::QpCap::inline) of them. They need not be
/// registered, and may be reused at once.
///
/// They are what a message is made of, so they go where bytes are taken from:
///
/// ```
/// # use softroce::prelude::*;
/// fn say(qp: &QueuePair, theirs: RemoteMr) -> Result<()> {
///     qp.post_send([SendWr::send(1, inline(b"hello")), SendWr::write(2, inline(b"there"), theirs)])
/// }
/// fn hear(qp: &QueuePair, mr: &MemoryRegion, theirs: RemoteMr) -> Result<()> {
///     qp.post_recv(RecvWr::new(1, mr.sge(..)))?;
///     qp.post_send(SendWr::read(2, mr.sge(..), theirs))
/// }
/// ```
///
/// and not where bytes arrive:
///
/// ```compile_fail
/// # use softroce::prelude::*;
/// fn hear(qp: &QueuePair) -> Result<()> {
///     qp.post_recv(RecvWr::new(1, inline(b"hello")))
/// }
/// ```
///
/// ```compile_fail
/// # use softroce::prelude::*;
/// fn hear(qp: &QueuePair, theirs: RemoteMr) -> Result<()> {
///     qp.post_send(SendWr::read(2, inline(b"hello"), theirs))
/// }
/// ```
#[doc(alias = "IBV_SEND_INLINE")]
pub fn inline(bytes: &[u8]) -> Source<'_> {
    Source::Inline(bytes)
}

bitflags::bitflags! {
    /// What a FLUSH brings about. Bits are those of `enum ibv_placement_type`.
    #[doc(alias = "ibv_placement_type")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Placement: u8 {
        /// Everybody at the peer sees what was written.
        const GLOBAL = 1;
        /// What was written outlives a loss of power.
        const PERSISTENT = 2;
    }
}

/// One request for the send queue. Signaled unless said otherwise.
///
/// It is its own iterator, so one request is a batch of one: `qp.post_send(wr)` and
/// `qp.post_send([a, b])` are the same verb.
#[doc(alias("ibv_send_wr", "ibv_wr_opcode"))]
#[derive(Clone, Copy, Debug)]
#[must_use = "a request does nothing until it is posted"]
pub struct SendWr<'a> {
    pub(crate) id: u64,
    pub(crate) op: SendOp,
    pub(crate) flags: SendFlags,
    pub(crate) source: Source<'a>,
    pub(crate) remote: RemoteSlice,
    pub(crate) imm_or_inv: u32,
    /// CAS: compared with. FAA: added.
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) bind: Option<Bind<'a>>,
    /// What contradicts itself, found when posting.
    pub(crate) flaw: Option<&'static str>,
    /// Where a datagram goes: the way, the queue pair, its Q_Key.
    pub(crate) datagram: Option<(&'a AddressHandle, u32, u32)>,
    pub(crate) xrc: bool,
}

/// What a bind is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bind<'a> {
    pub(crate) mw: &'a MemoryWindow,
    pub(crate) wqe: BindWqe,
    /// The key that the caller chose; else one is made when the request is posted.
    pub(crate) key: Option<u32>,
}

impl<'a> SendWr<'a> {
    fn new(id: u64, op: SendOp, source: Source<'a>) -> Self {
        Self {
            id,
            op,
            flags: SendFlags::SIGNALED,
            source,
            remote: RemoteSlice { addr: 0, rkey: 0 },
            imm_or_inv: 0,
            compare_add: 0,
            swap: 0,
            bind: None,
            flaw: None,
            datagram: None,
            xrc: false,
        }
    }

    /// A message for a receive that the peer has posted.
    #[doc(alias = "IBV_WR_SEND")]
    pub fn send(id: u64, from: impl Into<Source<'a>>) -> Self {
        Self::new(id, SendOp::Send, from.into())
    }

    /// Writes into the peer's memory.
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    pub fn write(id: u64, from: impl Into<Source<'a>>, to: impl Into<RemoteSlice>) -> Self {
        Self { remote: to.into(), ..Self::new(id, SendOp::Write, from.into()) }
    }

    /// Reads from the peer's memory.
    #[doc(alias = "IBV_WR_RDMA_READ")]
    pub fn read(id: u64, into: impl Into<Local<'a>>, from: impl Into<RemoteSlice>) -> Self {
        Self { remote: from.into(), ..Self::new(id, SendOp::Read, Source::Local(into.into())) }
    }

    /// Replaces 8 aligned bytes of the peer's by `new` if they are `expect`. The value before lands in
    /// `local`, 8 bytes in host order.
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    pub fn compare_swap(
        id: u64,
        local: Sge,
        remote: impl Into<RemoteSlice>,
        expect: u64,
        new: u64,
    ) -> Self {
        Self {
            remote: remote.into(),
            compare_add: expect,
            swap: new,
            ..Self::new(id, SendOp::CompareSwap, Source::Local(local.into()))
        }
    }

    /// Adds to 8 aligned bytes of the peer's, wrapping. The value before lands in `local`, 8 bytes in host
    /// order.
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    pub fn fetch_add(id: u64, local: Sge, remote: impl Into<RemoteSlice>, add: u64) -> Self {
        Self {
            remote: remote.into(),
            compare_add: add,
            ..Self::new(id, SendOp::FetchAdd, Source::Local(local.into()))
        }
    }

    /// Writes 8 aligned bytes of the peer's, all at once: whoever reads them sees the old ones or the new ones,
    /// and with the new ones everything that was written before. It counts as a READ in flight
    /// (`max_rd_atomic`), and completes when the bytes are in place. On connected queue pairs (RC).
    #[doc(alias = "IBV_WR_ATOMIC_WRITE")]
    pub fn atomic_write(id: u64, from: impl Into<Source<'a>>, to: impl Into<RemoteSlice>) -> Self {
        Self { remote: to.into(), ..Self::new(id, SendOp::AtomicWrite, from.into()) }
    }

    /// Has everything that was written before to `len` bytes of the peer's memory made visible or persistent, and
    /// completes when that is done. It counts as a READ in flight (`max_rd_atomic`). The memory must have been
    /// registered with the rights ([`Access::FLUSH_GLOBAL`], [`Access::FLUSH_PERSISTENT`]). On connected queue
    /// pairs (RC).
    ///
    /// For persistence the peer's device writes caches back, some nanoseconds for each 64 bytes, while it serves others.
    /// Atomics and ATOMIC WRITEs that follow take effect after it; a WRITE or SEND that follows need not. One that takes
    /// longer than timeout and retries of the queue pair allow ends with RETRY_EXC_ERR: flush a few gigabytes in parts.
    ///
    /// Linux rdma_rxe up to 7.3 computes another ICRC for this packet than the standard says. What it sends is
    /// accepted; what is sent to it, by the standard, it does not answer, unless the device was opened with
    /// `quirk=rxe-flush`.
    ///
    /// ```
    /// use softroce::prelude::*;
    /// # fn main() -> Result<()> {
    /// # let [a, b] = softroce::sim::Sim::new(1).hosts(Default::default());
    /// # let (cq, theirs) = (a.create_cq(16)?, b.create_cq(16)?);
    /// # let (pa, pb) = (a.alloc_pd()?, b.alloc_pd()?);
    /// # let (x, y) = (pa.create_qp(QpType::Rc, &cq).build()?, pb.create_qp(QpType::Rc, &theirs).build()?);
    /// # x.connect(&y.endpoint())?;
    /// # y.connect(&x.endpoint())?;
    /// let lent = pb.alloc_mr(4096, Access::REMOTE | Access::FLUSH_GLOBAL)?;
    /// x.post_send([
    ///     SendWr::write(1, inline(b"hello"), lent.remote()).unsignaled(),
    ///     SendWr::flush(2, lent.remote(), 5, Placement::GLOBAL),
    /// ])?;
    /// assert_eq!(cq.wait(Duration::from_secs(1))?.ok()?.opcode, WcOpcode::Flush);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("IBV_WR_FLUSH", "ibv_wr_flush"))]
    pub fn flush(id: u64, at: impl Into<RemoteSlice>, len: u32, placement: Placement) -> Self {
        Self::flush_with(id, at.into(), u64::from(len), placement, 0)
    }

    /// As [`flush`](Self::flush), for all of the memory that the key reaches.
    #[doc(alias = "IBV_FLUSH_MR")]
    pub fn flush_all(id: u64, of: impl Into<RemoteSlice>, placement: Placement) -> Self {
        Self::flush_with(id, of.into(), 0, placement, 1)
    }

    fn flush_with(
        id: u64,
        remote: RemoteSlice,
        len: u64,
        placement: Placement,
        level: u32,
    ) -> Self {
        let mut wr = Self::new(id, SendOp::Flush, Source::Local(Local::None));
        if placement.is_empty() || !Placement::all().contains(placement) {
            wr.flaw = Some("a FLUSH asks for global visibility, for persistence, or for both");
        }
        wr.remote = remote;
        wr.compare_add = len;
        wr.imm_or_inv = level << 4 | u32::from(placement.bits() & 3);
        wr
    }

    /// Lets peers reach `range` of `mr` through a window, with `access`. The window's key changes each time such
    /// a request is posted: [`MemoryWindow::rkey`] tells the new one.
    ///
    /// A window of type 2 is bound by [`post_send`](super::QueuePair::post_send), one of type 1 by
    /// [`bind_mw`](super::QueuePair::bind_mw). An empty range unbinds a window of type 1.
    #[doc(alias = "IBV_WR_BIND_MW")]
    pub fn bind_mw(
        id: u64,
        mw: &'a MemoryWindow,
        mr: &'a MemoryRegion,
        range: std::ops::Range<usize>,
        access: Access,
    ) -> Self {
        let mut wr = Self::new(id, SendOp::BindMw, Source::Local(Local::None));
        if range.start > range.end || range.end > mr.len() {
            wr.flaw =
                Some("the range of a bind must begin before it ends, and lie within the region");
        }
        let key = Rkey(mw.rkey());
        let bind = BindWqe {
            mw: key,
            // Chosen when it is posted.
            new_rkey: key,
            mr: Lkey(mr.lkey()),
            addr: mr.iova().wrapping_add(range.start as u64),
            len: range.end.saturating_sub(range.start) as u64,
            access,
            kind: mw.kind().into(),
        };
        wr.bind = Some(Bind { mw, wqe: bind, key: None });
        wr
    }

    /// As [`bind_mw`](Self::bind_mw), with a key of the caller's choice: only its low 8 bits may differ from the
    /// window's. For windows of type 2.
    pub fn bind_mw_key(
        id: u64,
        mw: &'a MemoryWindow,
        mr: &'a MemoryRegion,
        range: std::ops::Range<usize>,
        access: Access,
        rkey: u32,
    ) -> Self {
        let mut wr = Self::bind_mw(id, mw, mr, range, access);
        if mw.kind() == MwType::Type1 {
            wr.flaw = Some("the key of a window of type 1 is made by the device: use bind_mw");
        }
        if let Some(bind) = &mut wr.bind {
            bind.key = Some(rkey);
        }
        wr
    }

    /// Invalidates a bound type 2 window of this queue pair, after everything posted before.
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    pub fn local_inv(id: u64, rkey: u32) -> Self {
        let mut wr = Self::new(id, SendOp::LocalInv, Source::Local(Local::None));
        wr.remote.rkey = rkey;
        wr
    }

    /// With immediate data, which the receiver gets as the same number. For SEND and WRITE.
    #[doc(alias("IBV_WR_SEND_WITH_IMM", "IBV_WR_RDMA_WRITE_WITH_IMM"))]
    pub fn imm(mut self, v: u32) -> Self {
        self.op = match self.op {
            SendOp::Send | SendOp::SendImm => SendOp::SendImm,
            SendOp::Write | SendOp::WriteImm => SendOp::WriteImm,
            other => {
                self.flaw = Some("immediate data goes with SEND and WRITE only");
                other
            }
        };
        self.imm_or_inv = v;
        self
    }

    /// Has the receiver's window `rkey` invalidated when the message arrives. For SEND.
    #[doc(alias = "IBV_WR_SEND_WITH_INV")]
    pub fn invalidate(mut self, rkey: u32) -> Self {
        self.op = match self.op {
            SendOp::Send | SendOp::SendInv => SendOp::SendInv,
            other => {
                self.flaw = Some("invalidation goes with SEND only, and not with immediate data");
                other
            }
        };
        self.imm_or_inv = rkey;
        self
    }

    /// Success makes no completion. (An error always does.) Its slot in the queue is free again when a
    /// later signaled request was polled.
    pub fn unsignaled(mut self) -> Self {
        self.flags.remove(SendFlags::SIGNALED);
        self
    }

    /// Begins only after all earlier READs and atomics have completed.
    #[doc(alias = "IBV_SEND_FENCE")]
    pub fn fence(mut self) -> Self {
        self.flags.insert(SendFlags::FENCE);
        self
    }

    /// The receiver's completion counts as solicited. For SEND, and WRITE with immediate data.
    #[doc(alias = "IBV_SEND_SOLICITED")]
    pub fn solicited(mut self) -> Self {
        self.flags.insert(SendFlags::SOLICITED);
        self
    }

    /// Where a datagram goes: along which way, to which queue pair, with which Q_Key. For queue pairs of type UD,
    /// whose requests all need it. To a multicast group `qpn` means nothing: it goes to all members. A Q_Key
    /// with the highest bit set stands for that of the sending queue pair.
    ///
    /// The handle must live until the request has completed; else that is with `LocQpOp`.
    #[doc(alias("ibv_wr_set_ud_addr", "remote_qkey", "remote_qpn"))]
    pub fn to(mut self, ah: &'a AddressHandle, qpn: u32, qkey: u32) -> Self {
        self.datagram = Some((ah, qpn, qkey));
        self
    }

    /// The shared receive queue that a message of an XRC queue pair is for. Not offered yet.
    pub fn xrc_srq(mut self, _number: u32) -> Self {
        self.xrc = true;
        self
    }
}

impl<'a> IntoIterator for SendWr<'a> {
    type Item = Self;
    type IntoIter = iter::Once<Self>;
    fn into_iter(self) -> Self::IntoIter {
        iter::once(self)
    }
}

/// One request for a receive queue: where the next message goes.
#[doc(alias = "ibv_recv_wr")]
#[derive(Clone, Copy, Debug)]
#[must_use = "a request does nothing until it is posted"]
pub struct RecvWr<'a> {
    /// The number that its completion will carry.
    pub id: u64,
    /// Where the bytes go.
    pub into: Local<'a>,
}

impl<'a> RecvWr<'a> {
    /// A receive into registered memory.
    pub fn new(id: u64, into: impl Into<Local<'a>>) -> Self {
        Self { id, into: into.into() }
    }
}

impl<'a> IntoIterator for RecvWr<'a> {
    type Item = Self;
    type IntoIter = iter::Once<Self>;
    fn into_iter(self) -> Self::IntoIter {
        iter::once(self)
    }
}
