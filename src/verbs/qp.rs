//! Queue pairs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use crate::engine::cause::Cause;
use crate::engine::cc::State;
use crate::engine::qp::attr::{Mask, Recovery, attr_name};
use crate::engine::{QpFace, QpHandle};
use crate::mem::Access;
use crate::nic::interfere::{Point, PostGate};
use crate::queue::{BindWqe, PostError, SendFlags, SendOp, SendProducer, SendWqe};
use crate::wire::num::{Gid, Rkey};

pub use crate::engine::qp::attr::{QpAttr, QpCap, QpState, QpType};

use super::attr::{AhAttr, QpInitAttr};
use super::cq::CompletionQueue;
use super::endpoint::QpEndpoint;
use super::error::{Error, Named, Result};
use super::mr::Sge;
use super::mw::MwType;
use super::pd::ProtectionDomain;
use super::srq::SharedReceiveQueue;
use super::wr::{Local, RecvWr, SendWr, Source};

mod builder;

pub use builder::QpBuilder;

/// The largest number of a queue pair.
const MAX_QPN: u32 = 0xff_ffff;
/// Longest message.
const MAX_MSG: u64 = 1 << 31;

/// What each step of `connect_with` takes.
const TO_INIT: Mask = Mask::PORT.union(Mask::PKEY_INDEX).union(Mask::ACCESS);
const TO_RTR: Mask = Mask::AV
    .union(Mask::PATH_MTU)
    .union(Mask::DEST_QPN)
    .union(Mask::RQ_PSN)
    .union(Mask::MAX_DEST_RD_ATOMIC)
    .union(Mask::MIN_RNR_TIMER)
    .union(Mask::ACCESS)
    .union(Mask::ALT_PATH)
    .union(Mask::RATE_LIMIT);
const TO_RTS: Mask = Mask::SQ_PSN
    .union(Mask::TIMEOUT)
    .union(Mask::RETRY_CNT)
    .union(Mask::RNR_RETRY)
    .union(Mask::MAX_RD_ATOMIC)
    .union(Mask::PATH_MIG);

/// A queue pair, with one owner (put it into an `Arc` to share it; posting takes `&self`).
///
/// Dropped, it is destroyed: what it has not been polled for vanishes, what it owes its peer is sent: ACKs, and of
/// answers to READs what the network takes at once.
///
/// ```
/// use softroce::prelude::*;
/// # fn main() -> Result<()> {
/// let sim = softroce::sim::Sim::new(1);
/// let [a, b] = sim.hosts(Default::default());
/// let side = |ctx: &Context| -> Result<_> {
///     let (pd, cq) = (ctx.alloc_pd()?, ctx.create_cq(16)?);
///     let qp = pd.create_qp(QpType::Rc, &cq).build()?;
///     Ok((pd.alloc_mr(64, Access::LOCAL)?, cq, qp))
/// };
/// let ((_, cq, x), (mr, theirs, y)) = (side(&a)?, side(&b)?);
/// x.connect(&y.endpoint())?;
/// y.connect(&x.endpoint())?;
///
/// y.post_recv(RecvWr::new(7, mr.sge(..)))?;
/// x.post_send(SendWr::send(1, inline(b"hello")))?;
/// cq.wait(Duration::from_secs(1))?.ok()?;
/// let wc = theirs.wait(Duration::from_secs(1))?.ok()?;
/// assert_eq!((wc.wr_id, mr.to_vec(0..wc.byte_len as usize)), (7, b"hello".to_vec()));
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ibv_qp")]
#[derive(Debug)]
pub struct QueuePair {
    pd: ProtectionDomain,
    _send_cq: CompletionQueue,
    _recv_cq: CompletionQueue,
    _srq: Option<SharedReceiveQueue>,
    handle: QpHandle,
    face: Arc<QpFace>,
    access: Access,
    port: u8,
    pkey_index: u16,
    gid_index: u16,
    gid: Gid,
    /// First PSN of this life.
    psn: AtomicU32,
    /// Its Q_Key (datagrams).
    qkey: AtomicU32,
    /// How it would recover from losses.
    recovery: Recovery,
    alive: bool,
}

impl QueuePair {
    /// Its number.
    pub fn number(&self) -> u32 {
        self.face.qpn().raw()
    }

    /// Sizes of its queues.
    pub fn cap(&self) -> QpCap {
        self.face.cap()
    }

    /// Its protection domain.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Where a peer finds this queue pair. The first PSN is drawn when it is made, and anew when it returns to
    /// RESET: late packets of its former life must find nobody.
    pub fn endpoint(&self) -> QpEndpoint {
        let ctx = self.pd.context();
        QpEndpoint {
            gid: self.gid,
            qpn: self.number(),
            psn: self.psn.load(Ordering::Relaxed),
            qkey: self.qkey.load(Ordering::Relaxed),
            lid: 0,
            mtu: ctx.active_mtu(),
            rd_atomic: crate::nic::device::Limits::ALL.max_rd_atomic.min(16),
            scope_id: ctx.scope_of(self.gid_index),
            rx_buffer: ctx.rx_buffer(),
            recovery: self.recovery,
        }
    }

    fn init_attr(&self) -> QpAttr {
        let attr = QpAttr::to(QpState::Init).port(self.port).pkey_index(self.pkey_index);
        match self.face.kind() {
            QpType::Ud => attr.qkey(0),
            _ => attr.access(self.access),
        }
    }

    /// INIT to RTS against a peer, with ordinary timers: the smaller path MTU and READ depth of both
    /// sides, timeout 17 (0.54 s: a NIC in user space stops with its process), retry_cnt 7, rnr_retry 7,
    /// min_rnr_timer 12 (0.64 ms). An unreliable connection has no timers and no READs.
    ///
    /// # Errors
    /// `EINVAL` with the attribute at fault, for example an address of another family; or the queue pair is one
    /// for datagrams. The queue pair is left where the step that failed has found it, in INIT or in RTR: connect again
    /// from INIT, or move it to RESET first.
    pub fn connect(&self, peer: &QpEndpoint) -> Result<()> {
        self.connect_with(peer, QpAttr::default())
    }

    /// The same, with any attribute overridden at the step that takes it. In INIT already, `port` and `pkey_index` are
    /// changed before the first step.
    ///
    /// # Errors
    /// As [`connect`](Self::connect). `EINVAL` too for an attribute that none of the steps takes (`state`, `cur_state`,
    /// `sqd_notify`, `qkey`, `cap`); then nothing has changed.
    pub fn connect_with(&self, peer: &QpEndpoint, over: QpAttr) -> Result<()> {
        if self.face.kind() == QpType::Ud {
            let what = "a datagram queue pair has no peer of its own: activate it, and say .to() in each request";
            return Err(Error::verb("ibv_modify_qp", Cause::Invalid { what: what.into() }));
        }
        let from = self.state()?;
        let unused = over.mask() - (TO_INIT | TO_RTR | TO_RTS);
        if over.state.is_some() || !unused.is_empty() {
            let attr = if over.state.is_some() { "state" } else { attr_name(unused) };
            let cause = Cause::UnexpectedAttr { from, to: QpState::Rts, attr };
            return Err(Error::verb("ibv_modify_qp", cause));
        }
        let reliable = self.face.kind().is_reliable();
        let mine = self.endpoint();
        if from == QpState::Reset {
            self.modify(&self.init_attr().overridden(&over, TO_INIT))?;
        } else if over.mask().intersects(Mask::PORT | Mask::PKEY_INDEX) {
            self.modify(&QpAttr::to(QpState::Init).overridden(&over, TO_INIT))?;
        }
        let nic = self.pd.nic();
        nic.control(|engine, _| {
            engine.set_recovery(self.handle, mine.recovery, peer.recovery)?;
            engine.set_peer_buffer(self.handle, peer.rx_buffer)
        })
        .of("ibv_modify_qp")?;
        let ah = AhAttr { sgid_index: self.gid_index, port: self.port, ..peer.ah() };
        let depth = mine.rd_atomic.min(peer.rd_atomic);
        let mut rtr = QpAttr::to(QpState::Rtr)
            .ah(ah)
            .path_mtu(mine.mtu.min(peer.mtu))
            .dest_qpn(peer.qpn)
            .rq_psn(peer.psn);
        let mut rts = QpAttr::to(QpState::Rts).sq_psn(mine.psn);
        if reliable {
            rtr = rtr.max_dest_rd_atomic(depth).min_rnr_timer(12);
            rts = rts.timeout(17).retry_cnt(7).rnr_retry(7).max_rd_atomic(depth);
        }
        self.modify(&rtr.overridden(&over, TO_RTR))?;
        self.modify(&rts.overridden(&over, TO_RTS))
    }

    /// INIT to RTS for a datagram queue pair, which takes datagrams with this Q_Key from then on.
    ///
    /// # Errors
    /// `EINVAL`: it is of another type.
    ///
    /// ```
    /// use softroce::prelude::*;
    /// # fn main() -> Result<()> {
    /// let sim = softroce::sim::Sim::new(1);
    /// let [a, b] = sim.hosts(Default::default());
    /// let side = |ctx: &Context| -> Result<_> {
    ///     let (pd, cq) = (ctx.alloc_pd()?, ctx.create_cq(16)?);
    ///     let qp = pd.create_qp(QpType::Ud, &cq).build()?;
    ///     qp.activate(0x1ee7)?;
    ///     Ok((pd.alloc_mr(104, Access::LOCAL)?, pd, cq, qp))
    /// };
    /// let ((_, pd, _, x), (mr, _, theirs, y)) = (side(&a)?, side(&b)?);
    ///
    /// y.post_recv(RecvWr::new(7, mr.sge(..)))?;
    /// let peer = y.endpoint();
    /// let ah = pd.create_ah(&peer.ah())?;
    /// x.post_send(SendWr::send(1, inline(b"hello")).to(&ah, peer.qpn, peer.qkey))?;
    /// let wc = theirs.wait(Duration::from_secs(1))?.ok()?;
    /// assert_eq!((wc.byte_len, wc.src_qpn, wc.has_grh), (45, x.number(), true));
    /// assert_eq!(mr.to_vec(40..45), b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn activate(&self, qkey: u32) -> Result<()> {
        if self.face.kind() != QpType::Ud {
            let what = "only a datagram queue pair is activated: connect this one";
            return Err(Error::verb("ibv_modify_qp", Cause::Invalid { what: what.into() }));
        }
        if self.state()? == QpState::Reset {
            self.modify(&self.init_attr())?;
        }
        self.modify(&QpAttr::to(QpState::Rtr).qkey(qkey))?;
        self.modify(&QpAttr::to(QpState::Rts).sq_psn(self.psn.load(Ordering::Relaxed)))
    }

    /// Changes attributes, and with them the state. What is `None` is left alone. On an error nothing has
    /// changed.
    ///
    /// # Errors
    /// `EINVAL` with the attribute at fault: missing, not taken at this step, or out of range. `EBUSY`:
    /// something is under way. `EOPNOTSUPP`: alternate path.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, attr: &QpAttr) -> Result<()> {
        let nic = self.pd.nic();
        nic.enter().of("ibv_modify_qp")?;
        nic.modify(self.handle, attr.state == Some(QpState::Reset), |engine, now| {
            engine.modify_qp(now, self.handle, attr)?;
            if let Some(qkey) = attr.qkey {
                self.qkey.store(qkey, Ordering::Relaxed);
            }
            if attr.state == Some(QpState::Reset) {
                self.qkey.store(0, Ordering::Relaxed);
                self.psn.store(engine.random_psn().raw(), Ordering::Relaxed);
            }
            Ok::<_, Cause>(())
        })
        .of("ibv_modify_qp")
    }

    /// Its attributes.
    ///
    /// # Errors
    /// `EDEADLK` inside a tap of a simulation.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QpAttr> {
        let nic = self.pd.nic();
        nic.enter().of("ibv_query_qp")?;
        nic.control(|engine, _| engine.query_qp(self.handle)).of("ibv_query_qp")
    }

    /// What its congestion control has come to: rate, target, estimate of congestion.
    ///
    /// ```
    /// use softroce::prelude::*;
    /// use softroce::cc::{Dcqcn, DcqcnConfig};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let [host, _] = softroce::sim::Sim::new(1).hosts(softroce::sim::Link::default());
    /// let cq = host.create_cq(16)?;
    /// let cc = Dcqcn::new(DcqcnConfig::preset("paper", 40_000_000_000)?)?;
    /// let qp = host.alloc_pd()?.create_qp(QpType::Rc, &cq).congestion_control(cc).build()?;
    /// let state = qp.congestion()?;
    /// assert_eq!((state.algorithm, state.rate), ("dcqcn", Some(40_000_000_000)));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `EDEADLK` inside a tap of a simulation.
    pub fn congestion(&self) -> Result<State> {
        let nic = self.pd.nic();
        nic.enter().of("ibv_query_qp")?;
        nic.control(|engine, now| engine.congestion(now, self.handle)).of("ibv_query_qp")
    }

    /// What it was made with.
    pub fn query_init(&self) -> QpInitAttr {
        QpInitAttr {
            kind: self.face.kind(),
            cap: self.face.cap(),
            sig_all: self.face.sig_all(),
            srq: self.face.srq(),
        }
    }

    /// Its state.
    ///
    /// # Errors
    /// None here; other backends may fail.
    pub fn state(&self) -> Result<QpState> {
        Ok(self.face.state())
    }

    /// Posts requests with one doorbell. Each is posted whole or not at all. Those of other threads may come
    /// between them.
    ///
    /// # Errors
    /// [`Error::Post`]: how many are in the queue, and why the next one is not: `EINVAL` (wrong state,
    /// too many pieces, too many bytes, a request that does not fit the queue pair), `ENOMEM` (queue
    /// full), `EOPNOTSUPP`.
    #[doc(alias("ibv_post_send", "ibv_wr_start", "ibv_wr_complete"))]
    pub fn post_send<'a>(&self, wrs: impl IntoIterator<Item = SendWr<'a>>) -> Result<()> {
        let gate = self.pd.nic().enter_post();
        let gate = gate.map_err(|cause| Error::post("ibv_post_send", 0, cause))?;
        let mut batch = Batch { qp: self, posted: 0, published: 0 };
        let mut wrs = wrs.into_iter();
        // The caller's code runs without any lock of ours: it may post here itself.
        while let Some(wr) = wrs.next() {
            let last = wrs.size_hint().1 == Some(0);
            let mut sq = self.face.sq.lock();
            self.pass(gate, Point::PostSend)
                .and_then(|()| self.stage(&mut sq, &wr, MwType::Type2))
                .map_err(|cause| Error::post("ibv_post_send", batch.posted, cause))?;
            batch.posted += 1;
            if last {
                sq.publish();
                batch.published = batch.posted;
            }
        }
        Ok(())
    }

    /// Binds a window of type 1, as `ibv_bind_mw(3)` does, with a request made by [`SendWr::bind_mw`]. Gives the
    /// window's new key, which the device makes; peers can use it once the request has completed, and the old one
    /// no longer. An empty range unbinds the window.
    ///
    /// The request stands in the send queue like any other, in order with those around it.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send). `EINVAL`: another request, or a window of type 2.
    ///
    /// ```
    /// use softroce::prelude::*;
    /// # fn main() -> Result<()> {
    /// # let [a, b] = softroce::sim::Sim::new(1).hosts(Default::default());
    /// # let (pd, cq) = (a.alloc_pd()?, a.create_cq(16)?);
    /// # let qp = pd.create_qp(QpType::Rc, &cq).build()?;
    /// # let theirs = b.create_cq(16)?;
    /// # let peer = b.alloc_pd()?.create_qp(QpType::Rc, &theirs).build()?;
    /// # qp.connect(&peer.endpoint())?;
    /// let mr = pd.alloc_mr(4096, Access::LOCAL | Access::MW_BIND)?;
    /// let mw = pd.alloc_mw(MwType::Type1)?;
    /// let rkey = qp.bind_mw(SendWr::bind_mw(1, &mw, &mr, 0..64, Access::REMOTE_READ))?;
    /// cq.wait(Duration::from_secs(1))?.ok()?;
    /// assert_eq!(rkey, mw.rkey());
    /// # qp.bind_mw(SendWr::bind_mw(2, &mw, &mr, 0..0, Access::empty()))?;
    /// # cq.wait(Duration::from_secs(1))?.ok()?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ibv_bind_mw")]
    pub fn bind_mw(&self, wr: SendWr<'_>) -> Result<u32> {
        let nic = self.pd.nic();
        let refused = |cause| Error::post("ibv_bind_mw", 0, cause);
        let gate = nic.enter_post().map_err(refused)?;
        if wr.bind.is_none() {
            let what = "bind_mw takes requests made by SendWr::bind_mw".into();
            return Err(refused(Cause::Invalid { what }));
        }
        let mut batch = Batch { qp: self, posted: 0, published: 0 };
        let mut sq = self.face.sq.lock();
        self.pass(gate, Point::PostSend).map_err(refused)?;
        let key = self.stage(&mut sq, &wr, MwType::Type1).map_err(refused)?;
        sq.publish();
        drop(sq);
        (batch.posted, batch.published) = (1, 1);
        Ok(key)
    }

    /// Asks whether a request may be posted, where there is somebody to ask (a simulation).
    #[inline(always)]
    fn pass(&self, gate: Option<PostGate<'_>>, point: Point) -> std::result::Result<(), Cause> {
        match gate {
            None => Ok(()),
            Some(gate) => gate.pass(point, Some(self.number())),
        }
    }

    /// Writes one request into the queue; a bind only of a window of type `bound`, whose new key it gives (else 0).
    fn stage(
        &self,
        sq: &mut SendProducer,
        wr: &SendWr<'_>,
        bound: MwType,
    ) -> std::result::Result<u32, Cause> {
        let state = self.face.state();
        if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(Cause::State {
                state,
                want: "RTS (or SQD, SQE, ERR) for posting to the send queue",
            });
        }
        if let Some(flaw) = wr.flaw {
            return Err(Cause::Invalid { what: flaw.into() });
        }
        self.check_kind(wr)?;
        let mut flags = wr.flags;
        if self.face.sig_all() {
            flags |= SendFlags::SIGNALED;
        }
        if let Some(bind) = &wr.bind {
            if bind.mw.kind() != bound {
                let what = match bind.mw.kind() {
                    MwType::Type1 => "a window of type 1 is bound by QueuePair::bind_mw",
                    MwType::Type2 => "a window of type 2 is bound by post_send",
                };
                return Err(Cause::Invalid { what: what.into() });
            }
            // A key is made once it is sure to be used: the lock is ours until then.
            if sq.free() == 0 {
                return Err(Cause::QueueFull { depth: self.face.cap().send_wr });
            }
            let key = bind.key.unwrap_or_else(|| bind.mw.next_rkey());
            if key & !0xff != bind.wqe.mw.0 & !0xff {
                return Err(Cause::Invalid {
                    what: "only the low 8 bits of a window's key may be chosen".into(),
                });
            }
            let wqe = BindWqe { new_rkey: Rkey(key), ..bind.wqe };
            sq.stage_bind(wr.id, flags, &wqe).map_err(|e| self.refused(e, 0, 0))?;
            if bind.key.is_some() {
                bind.mw.set_rkey(key);
            }
            return Ok(key);
        }
        let (dest, dest_qpn, dest_qkey) =
            wr.datagram.map_or((0, 0, 0), |(ah, qpn, qkey)| (ah.number(), qpn, qkey));
        let wqe = SendWqe {
            wr_id: wr.id,
            op: wr.op,
            flags,
            dest,
            dest_qpn,
            dest_qkey,
            remote_addr: wr.remote.addr,
            rkey: Rkey(wr.remote.rkey),
            imm_or_inv: wr.imm_or_inv,
            compare_add: wr.compare_add,
            swap: wr.swap,
            ..SendWqe::default()
        };
        match &wr.source {
            Source::Inline(bytes) => {
                check_word(wr.op, bytes.len() as u64)?;
                sq.stage_inline(wqe, [*bytes])
                    .map_err(|e| self.refused(e, bytes.len(), bytes.len() as u64))?;
            }
            Source::Local(local) => {
                let list = local.as_slice();
                check_length(wr.op, local)?;
                sq.stage(wqe, list.iter().map(|s| s.to_mem()))
                    .map_err(|e| self.refused(e, list.len(), total(list)))?;
            }
        }
        Ok(0)
    }

    /// What this type of queue pair does not do.
    fn check_kind(&self, wr: &SendWr<'_>) -> std::result::Result<(), Cause> {
        let kind = self.face.kind();
        match &wr.datagram {
            None if kind == QpType::Ud => {
                let what = "a datagram goes somewhere: say .to(&address_handle, qpn, qkey)";
                return Err(Cause::Invalid { what: what.into() });
            }
            Some(_) if kind != QpType::Ud => {
                return Err(Cause::Invalid {
                    what: "a connected queue pair takes no .to(): it has one peer".into(),
                });
            }
            Some((ah, ..)) if !ah.pd().is(&self.pd) => {
                let what =
                    "the address handle belongs to another protection domain than the queue pair";
                return Err(Cause::Mismatch { what });
            }
            &Some((_, qpn, _)) if qpn > MAX_QPN => {
                let (got, max) = (u64::from(qpn), u64::from(MAX_QPN));
                return Err(Cause::AttrRange { attr: "remote_qpn", got, max });
            }
            _ => {}
        }
        if !kind.has(wr.op) {
            let rest = match kind {
                QpType::Ud => {
                    "a datagram queue pair does SEND, with or without immediate data, and nothing else"
                }
                _ => {
                    "an unreliable connection does SEND and WRITE, with or without immediate data, and binds \
                     and invalidates windows of its own: anything else needs RC"
                }
            };
            let what = format!("the request is {:?}: {rest}", wr.op);
            return Err(Cause::Invalid { what: what.into() });
        }
        if wr.xrc {
            return Err(Cause::Unsupported { what: "XRC is not offered yet" });
        }
        if wr.op == SendOp::Flush && wr.compare_add > MAX_MSG {
            return Err(Cause::MessageTooLong { got: wr.compare_add, max: MAX_MSG });
        }
        Ok(())
    }

    /// Why a request with `got` pieces, or inline bytes, and `total` bytes does not fit.
    fn refused(&self, e: PostError, got: usize, total: u64) -> Cause {
        match e {
            PostError::QueueFull { depth } => Cause::QueueFull { depth },
            PostError::TooManySge { max } => Cause::TooManySge { got, max },
            PostError::InlineTooLong { max } => Cause::InlineTooLong { got, max },
            PostError::TooLong => Cause::MessageTooLong { got: total, max: u32::MAX.into() },
        }
    }

    /// Posts receives. Allowed from INIT on.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send). `EINVAL` too if it takes its receives from a shared queue.
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv<'a>(&self, wrs: impl IntoIterator<Item = RecvWr<'a>>) -> Result<()> {
        let gate = self.pd.nic().enter_post();
        let gate = gate.map_err(|cause| Error::post("ibv_post_recv", 0, cause))?;
        let mut batch = Receives { qp: self, posted: 0 };
        for wr in wrs {
            let list = wr.into.as_slice();
            let mut rq = self.face.rq.lock();
            let state = self.face.state();
            let staged = if let Err(cause) = self.pass(gate, Point::PostRecv) {
                Err(cause)
            } else if state == QpState::Reset {
                Err(Cause::State { state, want: "INIT or later for posting receives" })
            } else if self.face.srq().is_some() {
                Err(Cause::Invalid {
                    what: "the queue pair takes its receives from a shared receive queue: post them there"
                        .into(),
                })
            } else if self.face.cap().recv_wr == 0 {
                Err(Cause::QueueFull { depth: 0 })
            } else {
                rq.stage(wr.id, list.iter().map(|s| s.to_mem()))
                    .map_err(|e| self.refused(e, list.len(), total(list)))
            };
            staged.map_err(|cause| Error::post("ibv_post_recv", batch.posted, cause))?;
            rq.publish();
            batch.posted += 1;
        }
        Ok(())
    }

    /// Joins a multicast group: this queue pair gets a copy of each datagram that is sent to it, but for its own.
    /// The group is an IPv6 multicast address, or an IPv4 one mapped to IPv6
    /// (`Gid::from(IpAddr::from([239, 1, 2, 3]))`). Joining twice is joining once. The queue pair leaves
    /// its groups when it is dropped.
    ///
    /// Nobody needs to be in a group to send to it: see [`SendWr::to`].
    ///
    /// # Errors
    /// `EINVAL`: not a datagram queue pair, or not a multicast address. `EADDRNOTAVAIL`: the device has no address
    /// of the group's family. `EADDRINUSE`: another program has the group's UDP port and does not share it.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_mcast(&self, gid: Gid) -> Result<()> {
        let (verb, nic) = ("ibv_attach_mcast", self.pd.nic());
        nic.enter().of(verb)?;
        nic.attach_mcast(self.handle, gid).of(verb)
    }

    /// Leaves a multicast group.
    ///
    /// # Errors
    /// `EINVAL`: it is not in it.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_mcast(&self, gid: Gid) -> Result<()> {
        let (verb, nic) = ("ibv_detach_mcast", self.pd.nic());
        nic.enter().of(verb)?;
        nic.detach_mcast(self.handle, gid).of(verb)
    }

    /// Destroys it and says whether that went well; dropping does the same and keeps quiet.
    ///
    /// # Errors
    /// `EDEADLK` inside a tap of a simulation.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(mut self) -> Result<()> {
        self.pd.nic().enter().of("ibv_destroy_qp")?;
        self.alive = false;
        self.pd.nic().destroy_qp(self.handle, self.number()).of("ibv_destroy_qp")
    }
}

/// Requests of one call. Dropped, it hands them to the engine with one doorbell; also if the caller's
/// iterator panics, for what was posted whole by then.
struct Batch<'a> {
    qp: &'a QueuePair,
    posted: usize,
    published: usize,
}

impl Drop for Batch<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.published < self.posted {
            self.qp.face.sq.lock().publish();
        }
        if self.posted > 0 {
            self.qp.pd.nic().doorbell(self.qp.handle, &self.qp.face);
        }
    }
}

/// Receives of one call. In ERR the engine flushes what is posted; in all other states it looks when a
/// message comes.
struct Receives<'a> {
    qp: &'a QueuePair,
    posted: usize,
}

impl Drop for Receives<'_> {
    #[inline]
    fn drop(&mut self) {
        fence(Ordering::SeqCst);
        if self.posted > 0 && self.qp.face.state() == QpState::Err {
            self.qp.pd.nic().doorbell(self.qp.handle, &self.qp.face);
        }
    }
}

/// Bytes of all pieces.
fn total(list: &[Sge]) -> u64 {
    list.iter().map(|s| u64::from(s.len())).sum()
}

/// Some operations move one word.
fn check_word(op: SendOp, got: u64) -> std::result::Result<(), Cause> {
    let word = matches!(op, SendOp::CompareSwap | SendOp::FetchAdd | SendOp::AtomicWrite);
    if word && got != 8 { Err(Cause::AtomicLocal { got }) } else { Ok(()) }
}

/// Lengths that the operation prescribes.
fn check_length(op: SendOp, local: &Local<'_>) -> std::result::Result<(), Cause> {
    let total = total(local.as_slice());
    check_word(op, total)?;
    if total > MAX_MSG {
        return Err(Cause::MessageTooLong { got: total, max: MAX_MSG });
    }
    Ok(())
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if self.alive {
            let _ = self.pd.nic().destroy_qp(self.handle, self.number());
        }
    }
}
