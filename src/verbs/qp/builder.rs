//! What a queue pair is made with.

use std::sync::atomic::AtomicU32;

use crate::engine::QpInit;
use crate::engine::cause::Cause;
use crate::engine::cc::CongestionControl;
use crate::engine::qp::attr::{NO_RECOVERY, Recovery};
use crate::mem::Access;

use super::{QpCap, QpType, QueuePair};
use crate::verbs::cq::CompletionQueue;
use crate::verbs::error::{Error, Named, Result};
use crate::verbs::pd::ProtectionDomain;
use crate::verbs::srq::SharedReceiveQueue;

/// Makes a queue pair.
#[derive(Debug)]
#[must_use = "nothing is made before `build`"]
pub struct QpBuilder {
    pd: ProtectionDomain,
    kind: QpType,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    cap: QpCap,
    port: u8,
    pkey_index: u16,
    gid_index: Option<u16>,
    access: Access,
    sig_all: bool,
    srq: Option<SharedReceiveQueue>,
    cc: Option<Box<dyn CongestionControl>>,
    recovery: Option<Recovery>,
}

impl QpBuilder {
    pub(crate) fn new(pd: &ProtectionDomain, kind: QpType, cq: &CompletionQueue) -> Self {
        Self {
            pd: pd.clone(),
            kind,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            cap: QpCap::default(),
            port: 1,
            pkey_index: 0,
            gid_index: None,
            access: Access::REMOTE | Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT,
            sig_all: false,
            srq: None,
            cc: None,
            recovery: None,
        }
    }

    /// Receives complete here, not where sends do.
    pub fn recv_cq(mut self, cq: &CompletionQueue) -> Self {
        self.recv_cq = cq.clone();
        self
    }

    /// Receives come from a shared queue; it has none of its own then, whatever the sizes say. For every type of queue
    /// pair: on RC a peer that finds it empty is told to try again, on UC and UD its message is dropped and counted.
    /// (The standard speaks of RC and UD; Linux and hardware take UC as well. What a message of UC has taken when it
    /// breaks off serves the next one of the same queue pair.)
    pub fn srq(mut self, srq: &SharedReceiveQueue) -> Self {
        self.srq = Some(srq.clone());
        self
    }

    /// Sizes of the queues.
    pub fn cap(mut self, cap: QpCap) -> Self {
        self.cap = cap;
        self
    }

    /// Slots of the send and the receive queue.
    pub fn depth(mut self, send: u32, recv: u32) -> Self {
        self.cap.send_wr = send;
        self.cap.recv_wr = recv;
        self
    }

    /// Port of the device, 1.
    pub fn port(mut self, port: u8) -> Self {
        self.port = port;
        self
    }

    /// Which partition it is in: index into the partition table. Default 0.
    pub fn pkey_index(mut self, i: u16) -> Self {
        self.pkey_index = i;
        self
    }

    /// Which of the device's addresses to use. Default: the first IPv4 one, else the first.
    pub fn gid_index(mut self, i: u16) -> Self {
        self.gid_index = Some(i);
        self
    }

    /// What peers may do through this queue pair. Default: everything that their keys allow. Nothing of that
    /// kind with datagrams.
    pub fn access(mut self, a: Access) -> Self {
        self.access = a;
        self
    }

    /// Every request makes a completion, signaled or not.
    pub fn sig_all(mut self) -> Self {
        self.sig_all = true;
        self
    }

    /// How fast it sends. Default: as fast as it can.
    pub fn congestion_control(mut self, cc: impl CongestionControl + 'static) -> Self {
        self.cc = Some(Box::new(cc));
        self
    }

    /// What is sent again after a loss (RC alone). Default: what the device was opened with (`retry=selective`), else
    /// [`Recovery::GoBackN`]. The others take effect where both ends want the same and [`connect`](QueuePair::connect) to
    /// what the other one's [`endpoint`](QueuePair::endpoint) says; towards all others it is go-back-N, and nothing that the
    /// standard does not know is sent.
    pub fn recovery(mut self, wanted: Recovery) -> Self {
        self.recovery = Some(wanted);
        self
    }

    /// Makes it, in INIT, so that receives can be posted before anybody connects.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: a type that is not offered, or one that has no choice of a [`recovery`](Self::recovery). `EINVAL`: a limit is exceeded, or objects of different
    /// devices.
    #[doc(alias = "ibv_create_qp")]
    pub fn build(self) -> Result<QueuePair> {
        let qp = self.build_reset()?;
        qp.modify(&qp.init_attr())?;
        Ok(qp)
    }

    /// Makes it, in RESET, for those who drive the state machine themselves.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    #[doc(alias = "ibv_create_qp")]
    pub fn build_reset(self) -> Result<QueuePair> {
        let verb = "ibv_create_qp";
        let ctx = self.pd.context();
        if self.srq.as_ref().is_some_and(|srq| !srq.pd().context().is(ctx)) {
            let what =
                "the shared receive queue belongs to another device than the protection domain";
            return Err(Error::verb(verb, Cause::Mismatch { what }));
        }
        if !self.send_cq.context().is(ctx) || !self.recv_cq.context().is(ctx) {
            let what = "the completion queue belongs to another device than the protection domain";
            return Err(Error::verb(verb, Cause::Mismatch { what }));
        }
        let gids = ctx.gids()?;
        let gid_index = match self.gid_index {
            Some(i) if usize::from(i) < gids.len() => i,
            Some(i) => {
                let max = gids.len().saturating_sub(1) as u64;
                let cause = Cause::AttrRange { attr: "sgid_index", got: i.into(), max };
                return Err(Error::verb(verb, cause));
            }
            None => {
                let v4 = gids.iter().position(|g| g.gid.ip().is_some_and(|ip| ip.is_ipv4()));
                u16::try_from(v4.unwrap_or(0)).unwrap_or(0)
            }
        };
        let nic = ctx.nic();
        nic.enter().of(verb)?;
        let init = QpInit {
            kind: self.kind,
            pd: self.pd.id(),
            send_cq: self.send_cq.number(),
            recv_cq: self.recv_cq.number(),
            srq: self.srq.as_ref().map(SharedReceiveQueue::number),
            cap: self.cap,
            sig_all: self.sig_all,
            cc: self.cc,
        };
        let choices = self.recovery.filter(|&wanted| wanted != Recovery::GoBackN);
        if choices.is_some() && self.kind != QpType::Rc {
            return Err(Error::verb(verb, Cause::Unsupported { what: NO_RECOVERY }));
        }
        let (handle, face) = nic.create_qp(init, ctx.events()).of(verb)?;
        let (psn, usual) = nic.control(|engine, _| (engine.random_psn(), engine.usual_recovery()));
        let usual = if self.kind == QpType::Rc { usual } else { Recovery::GoBackN };
        let recovery = self.recovery.unwrap_or(usual);
        let qp = QueuePair {
            pd: self.pd,
            _send_cq: self.send_cq,
            _recv_cq: self.recv_cq,
            _srq: self.srq,
            handle,
            face,
            access: self.access,
            port: self.port,
            pkey_index: self.pkey_index,
            gid_index,
            gid: gids.get(usize::from(gid_index)).map(|g| g.gid).unwrap_or_default(),
            psn: AtomicU32::new(psn.raw()),
            qkey: AtomicU32::new(0),
            recovery,
            alive: true,
        };
        // Its endpoint says so from here on, whoever connects it, and how.
        qp.pd
            .nic()
            .control(|engine, _| engine.set_recovery(handle, recovery, Recovery::GoBackN))
            .of(verb)?;
        Ok(qp)
    }
}
