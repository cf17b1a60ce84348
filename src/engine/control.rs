//! Control verbs: making, changing and destroying objects.
//!
//! *Rules.* Arguments are checked whole before anything changes. Destroying an object that others use is
//! `Busy`. Nothing that was destroyed can be reached by a number it had.

use std::collections::btree_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;

use super::Engine;
use super::cause::Cause;
use super::cc::{CongestionControl, State};
use super::common::Common;
use super::config::{MAX_CQE, MAX_INLINE, MAX_QP_WR, MAX_SGE};
use super::counters::Counter;
use super::event::AsyncEvent;
use super::qp::attr::{AhAttr, NO_RECOVERY, QpAttr, QpCap, QpState, QpType, Recovery};
use super::qp::{CqRef, NewQp, Qp, QpFace, QpHandle, Receives, state};
use super::trace::NicEvent;
use crate::mem::Access;
use crate::mem::{IovaChoice, MemError, MwKind, PdId, Region, Registered};
use crate::net::{Path, SrcPort, flow_port};
use crate::queue::{CqShared, SendCaps, completion_queue, recv_queue, send_queue};
use crate::time::Instant;
use crate::wire::icrc::IpFields;
use crate::wire::num::{Lkey, Mtu, Pkey, Psn, Qpn, Rkey};

/// What a queue pair is made with.
#[derive(Debug)]
pub struct QpInit {
    /// Its type.
    pub kind: QpType,
    /// Protection domain.
    pub pd: PdId,
    /// Where its send requests complete.
    pub send_cq: u32,
    /// Where its receives complete.
    pub recv_cq: u32,
    /// The shared receive queue that it takes its receives from; then it has no receive queue of its own.
    pub srq: Option<u32>,
    /// Sizes of its queues.
    pub cap: QpCap,
    /// Every request makes a completion.
    pub sig_all: bool,
    /// Congestion control; `None`: as fast as it can.
    pub cc: Option<Box<dyn CongestionControl>>,
}

impl Engine {
    /// Makes a protection domain.
    ///
    /// # Errors
    /// `EINVAL`: too many.
    pub fn alloc_pd(&mut self) -> Result<PdId, Cause> {
        let max = self.common.config.max_pd;
        if self.pds.len() >= max as usize {
            return Err(Cause::table_full("protection domains", u64::from(max)));
        }
        // Numbers are not reused before all others: a stale one finds nobody.
        loop {
            let pd = PdId(self.next_pd);
            self.next_pd = self.next_pd.wrapping_add(1);
            if let Entry::Vacant(place) = self.pds.entry(pd) {
                place.insert(0);
                return Ok(pd);
            }
        }
    }

    /// Destroys a protection domain.
    ///
    /// # Errors
    /// `EBUSY`: it has regions, windows, queue pairs, shared receive queues or address handles.
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<(), Cause> {
        if *self.use_pd(pd)? > 0 {
            return Err(Cause::Busy {
                by: "memory regions, memory windows, queue pairs, shared receive queues or address handles of the \
                     protection domain: destroy them first",
            });
        }
        self.pds.remove(&pd);
        Ok(())
    }

    pub(super) fn use_pd(&mut self, pd: PdId) -> Result<&mut u32, Cause> {
        self.pds.get_mut(&pd).ok_or_else(|| gone("protection domain"))
    }

    /// Registers memory.
    ///
    /// # Errors
    /// See [`MemError`].
    pub fn register(
        &mut self,
        pd: PdId,
        region: Arc<Region>,
        iova: IovaChoice,
        access: Access,
    ) -> Result<Registered, Cause> {
        self.use_pd(pd)?;
        let registered = self.common.mrs.register(pd, region, iova, access)?;
        *self.use_pd(pd)? += 1;
        Ok(registered)
    }

    /// Deregisters memory. When this returns no access is under way, and none will follow.
    ///
    /// # Errors
    /// `EBUSY`: memory windows are bound to it.
    pub fn deregister(&mut self, pd: PdId, lkey: Lkey) -> Result<Arc<Region>, MemError> {
        self.common.land_all();
        let region = self.common.mrs.deregister(lkey)?;
        self.release_pd(pd);
        Ok(region)
    }

    /// Ends a registration whatever is bound to it: windows are taken off first.
    ///
    /// # Errors
    /// [`MemError::UnknownKey`].
    pub fn withdraw(&mut self, pd: PdId, lkey: Lkey) -> Result<Arc<Region>, MemError> {
        self.common.mrs.unbind_region(lkey)?;
        self.deregister(pd, lkey)
    }

    pub(super) fn release_pd(&mut self, pd: PdId) {
        if let Ok(users) = self.use_pd(pd) {
            *users = users.saturating_sub(1);
        }
    }

    /// Makes a memory window.
    ///
    /// # Errors
    /// See [`MemError`].
    pub fn alloc_mw(&mut self, pd: PdId, kind: MwKind) -> Result<Rkey, Cause> {
        self.use_pd(pd)?;
        let rkey = self.common.mrs.alloc_mw(pd, kind)?;
        *self.use_pd(pd)? += 1;
        Ok(rkey)
    }

    /// Destroys a memory window, by any key it has had: a bind that was posted and failed has not changed
    /// the key, and its owner need not keep account of that.
    ///
    /// # Errors
    /// See [`MemError`].
    pub fn dealloc_mw(&mut self, pd: PdId, rkey: Rkey) -> Result<(), Cause> {
        self.common.mrs.dealloc_mw(rkey)?;
        self.release_pd(pd);
        Ok(())
    }

    /// Makes a completion queue with room for `depth` completions.
    ///
    /// # Errors
    /// `EINVAL`: no entries or too many; too many queues.
    pub fn create_cq(&mut self, depth: u32) -> Result<(u32, Arc<CqShared>), Cause> {
        check_depth("cqe", depth, 1, MAX_CQE)?;
        let live = self.common.cqs.iter().flatten().count();
        if live >= self.common.config.max_cq as usize {
            return Err(Cause::table_full(
                "completion queues",
                u64::from(self.common.config.max_cq),
            ));
        }
        let (shared, producer) = completion_queue(depth);
        Ok((self.common.add_cq(producer), shared))
    }

    /// Changes the number of entries of a completion queue; what is in it stays.
    ///
    /// # Errors
    /// `EINVAL`: fewer than there are completions, or too many.
    pub fn resize_cq(&mut self, cq: u32, depth: u32) -> Result<(), Cause> {
        check_depth("cqe", depth, 1, MAX_CQE)?;
        let slot = self.common.cq(cq).ok_or_else(|| gone("completion queue"))?;
        if slot.producer.resize(depth) {
            return Ok(());
        }
        let held = slot.producer.shared().depth().saturating_sub(slot.producer.free());
        let what = format!(
            "cqe is {depth}, and the completion queue holds {held} completions: ask for at least {held} entries, or \
             poll some first"
        );
        Err(Cause::Invalid { what: what.into() })
    }

    /// Destroys a completion queue.
    ///
    /// # Errors
    /// `EBUSY`: queue pairs report to it.
    pub fn destroy_cq(&mut self, cq: u32) -> Result<(), Cause> {
        let slot = self.common.cq(cq).ok_or_else(|| gone("completion queue"))?;
        if slot.users > 0 {
            return Err(Cause::Busy { by: "queue pairs that report to the completion queue" });
        }
        self.common.cqs[cq as usize] = None;
        Ok(())
    }

    /// Makes a queue pair, in RESET.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: a type that is not offered. `EINVAL`: a limit is exceeded, or an object is gone.
    pub fn create_qp(&mut self, init: QpInit) -> Result<(QpHandle, Arc<QpFace>), Cause> {
        match init.kind {
            QpType::Rc | QpType::Uc | QpType::Ud => {}
            QpType::XrcSend | QpType::XrcRecv => {
                return Err(Cause::Unsupported { what: "XRC is not offered yet: use RC" });
            }
        }
        let cap = match init.srq {
            Some(_) => QpCap { recv_wr: 0, recv_sge: 0, ..init.cap },
            None => init.cap,
        };
        check_depth("cap.send_wr", cap.send_wr, 1, MAX_QP_WR)?;
        check_depth("cap.recv_wr", cap.recv_wr, 0, MAX_QP_WR)?;
        check_depth("cap.send_sge", cap.send_sge, 0, MAX_SGE)?;
        check_depth("cap.recv_sge", cap.recv_sge, 0, MAX_SGE)?;
        check_depth("cap.inline", cap.inline, 0, MAX_INLINE)?;
        self.use_pd(init.pd)?;
        for cq in [init.send_cq, init.recv_cq] {
            let slot = self.common.cq(cq).ok_or_else(|| gone("completion queue"))?;
            if slot.dead {
                let what = "the completion queue has overrun, and takes no more completions: make another one";
                return Err(Cause::Invalid { what: what.into() });
            }
        }
        let shared = match init.srq {
            Some(srq) => {
                let slot = self.common.srq(srq).ok_or_else(|| gone("shared receive queue"))?;
                Some(Receives::shared(srq, slot.pd, slot.max_sge))
            }
            None => None,
        };
        let cc = match init.cc {
            None if init.kind.is_connected() => {
                let made = self.common.config.cc.make(init.kind.is_reliable());
                made.map_err(|e| Cause::Invalid { what: e.to_string().into() })?
            }
            own => own,
        };
        let max = u64::from(self.common.config.max_qp);
        let (handle, qpn) = self.qps.reserve().ok_or(Cause::table_full("queue pairs", max))?;
        let sq = send_queue(SendCaps {
            depth: cap.send_wr,
            max_sge: cap.send_sge,
            max_inline: cap.inline,
        });
        let (rq, own) = recv_queue(cap.recv_wr, cap.recv_sge);
        let receives = shared.unwrap_or(Receives::Own(own));
        if let Some(slot) = receives.srq().and_then(|srq| self.common.srq(srq)) {
            slot.users += 1;
        }
        let mut attach = |cq: u32| {
            let tag = self.common.cq(cq).map(|slot| {
                slot.users += 1;
                slot.producer.shared().attach_qp(Arc::clone(sq.0.counters()))
            });
            CqRef { cq, tag: tag.unwrap_or_default() }
        };
        let send_cq = attach(init.send_cq);
        let recv_cq = if init.recv_cq == init.send_cq { send_cq } else { attach(init.recv_cq) };
        let qp = Qp::new(NewQp {
            handle,
            qpn,
            kind: init.kind,
            pd: init.pd,
            cap,
            sig_all: init.sig_all,
            send_cq,
            recv_cq,
            sq,
            rq,
            receives,
            cc,
        });
        let face = Arc::clone(&qp.face);
        self.qps.insert(qp);
        *self.use_pd(init.pd)? += 1;
        // Nothing is allocated for scheduling later.
        self.timers.reserve(self.qps.slots());
        self.ready.reserve(self.qps.slots());
        self.acks.reserve(self.qps.slots());
        // One more for each that is looked at in its predecessor's stead.
        self.waits.reserve(2 * self.qps.slots());
        // It may wait in two windows.
        self.common.woken.reserve(2 * self.qps.slots());
        Ok((handle, face))
    }

    /// Tells how much a queue pair's peer can buffer, for flow control. Before the transition to RTR.
    ///
    /// # Errors
    /// `EINVAL`: the queue pair is gone.
    pub fn set_peer_buffer(&mut self, handle: QpHandle, bytes: u32) -> Result<(), Cause> {
        let qp = self.qps.get(handle).ok_or_else(|| gone("queue pair"))?;
        qp.set.peer_buffer = bytes;
        Ok(())
    }

    /// How reliable queue pairs recover from losses of which nobody has said otherwise.
    pub fn usual_recovery(&self) -> Recovery {
        self.common.config.recovery
    }

    /// Tells how a queue pair would recover from losses, and its peer: it does so if both would. Before the transition to
    /// RTR. After one to RESET, nothing is known of a peer; what the queue pair would do stays, and what a peer says that
    /// has heard of it is understood.
    ///
    /// # Errors
    /// `EINVAL`: the queue pair is gone, or in a state from which none leads to RTR. `EOPNOTSUPP`: it is not RC, and has no
    /// choice.
    pub fn set_recovery(
        &mut self,
        handle: QpHandle,
        ours: Recovery,
        theirs: Recovery,
    ) -> Result<(), Cause> {
        let qp = self.qps.get(handle).ok_or_else(|| gone("queue pair"))?;
        if ours != Recovery::GoBackN && qp.kind != QpType::Rc {
            return Err(Cause::Unsupported { what: NO_RECOVERY });
        }
        if !matches!(qp.state, QpState::Reset | QpState::Init) {
            let (kind, from) = (qp.kind, qp.state);
            return Err(Cause::NoTransition { kind, from, to: QpState::Rtr });
        }
        qp.set.offers = ours;
        qp.set.recovery = Recovery::agreed(ours, theirs);
        Ok(())
    }

    /// Changes a queue pair: `ibv_modify_qp(3)`. On an error nothing has changed.
    ///
    /// # Errors
    /// `EINVAL` with the attribute at fault; `EBUSY` where something is under way; `EOPNOTSUPP`.
    pub fn modify_qp(
        &mut self,
        now: Instant,
        handle: QpHandle,
        attr: &QpAttr,
    ) -> Result<(), Cause> {
        self.common.now = now;
        self.common.land_all();
        let port_mtu = self.common.caps.path_mtu();
        let pkey = attr.pkey_index.map(|index| self.pkey(index));
        let qp = self.qps.get(handle).ok_or_else(|| gone("queue pair"))?;
        let from = qp.state;
        let to = state::check(qp.kind, from, attr)?;
        let pkey = pkey.transpose()?;
        if qp.is_draining() && matches!(to, QpState::Rts | QpState::Sqd) {
            return Err(Cause::Busy { by: "requests that the send queue is still draining" });
        }
        if let Some(asked) = attr.path_mtu {
            match port_mtu {
                Some(port) if asked <= port => {}
                port => {
                    return Err(Cause::PathMtu { asked, port: port.unwrap_or(Mtu::B256) });
                }
            }
        }
        if from == QpState::Sqd
            && (attr.max_dest_rd_atomic.is_some() && qp.is_answering()
                || attr.max_rd_atomic.is_some() && qp.has_reads_out())
        {
            return Err(Cause::Busy { by: "READs or atomics under way" });
        }
        let dest = attr.dest_qpn.map_or(qp.dest_qp, Qpn::new);
        let qpn = qp.qpn;
        let path = match &attr.ah {
            Some(ah) => {
                let src_port = match self.common.caps.src_port {
                    SrcPort::Fixed(port) => port,
                    SrcPort::Entropy => flow_port(ah.flow_label, qpn.raw(), dest.raw()),
                };
                Some(self.route(ah, src_port)?)
            }
            None => None,
        };
        if let Some((path, _)) = path.filter(|(path, _)| path.dst.is_multicast()) {
            let what = format!(
                "ah.dgid is the multicast group {}: a connected queue pair has one peer, so name its address, or send \
                 datagrams to the group",
                path.dst
            );
            return Err(Cause::Invalid { what: what.into() });
        }
        let Some(qp) = self.qps.get(handle) else { return Err(gone("queue pair")) };
        match to {
            QpState::Reset => qp.enter_reset(&mut self.common),
            QpState::Err if from != QpState::Err => qp.enter_err(&mut self.common),
            _ => {}
        }
        if matches!(to, QpState::Reset | QpState::Err) {
            qp.leave_windows(&mut self.common);
            self.schedule(handle.slot);
            self.settle();
            return Ok(());
        }
        apply(qp, now, attr);
        qp.pkey = pkey.unwrap_or(qp.pkey);
        if let Some((path, ip)) = path {
            let Some(qp) = self.qps.get(handle) else { return Err(gone("queue pair")) };
            qp.leave_windows(&mut self.common);
            qp.set_path(path, ip);
            let own =
                self.common.caps.rx_buffer.map_or(0, |b| u32::try_from(b).unwrap_or(u32::MAX));
            // What is not acknowledged would never leave a window again.
            if qp.kind.is_reliable() {
                let windows = &mut self.common.windows;
                let peer = windows.open(path.dst, qp.set.peer_buffer);
                qp.windows = Some((peer, windows.open_own(path.src, own)));
            }
        }
        let Some(qp) = self.qps.get(handle) else { return Err(gone("queue pair")) };
        match (from, to) {
            (QpState::Init, QpState::Rtr) => connect(qp, &mut self.common),
            (QpState::Rtr, QpState::Rts) => qp.start_requester(),
            // What was posted while the queue stood still fails, as it would have by itself.
            (QpState::Sqe, QpState::Rts) => qp.flush_sends(&mut self.common),
            (QpState::Sqd, QpState::Sqd) if attr.max_dest_rd_atomic.is_some() => {
                qp.resize_resources();
            }
            _ => {}
        }
        if attr.retry_cnt.is_some() || attr.rnr_retry.is_some() {
            qp.reload_retries();
        }
        qp.set_state(to);
        if (from, to) == (QpState::Rts, QpState::Sqd) {
            qp.start_drain(&mut self.common);
        }
        self.schedule(handle.slot);
        self.settle();
        Ok(())
    }

    /// An entry of the partition table.
    ///
    /// # Errors
    /// `EINVAL`: it has fewer.
    pub fn pkey(&self, index: u16) -> Result<Pkey, Cause> {
        let table = &self.common.config.pkeys;
        table.get(usize::from(index)).copied().ok_or(Cause::AttrRange {
            attr: "pkey_index",
            got: u64::from(index),
            max: table.len().saturating_sub(1) as u64,
        })
    }

    /// The path that an address handle leads along.
    pub(super) fn route(&self, ah: &AhAttr, src_port: u16) -> Result<(Path, IpFields), Cause> {
        let gid = self.gids.get(usize::from(ah.sgid_index)).ok_or(Cause::AttrRange {
            attr: "ah.sgid_index",
            got: u64::from(ah.sgid_index),
            max: self.gids.len().saturating_sub(1) as u64,
        })?;
        let dst = ah.dgid.ip().ok_or(Cause::AddressFamily)?;
        let ip = IpFields::new(gid.ip, dst, 0, true, src_port).ok_or(Cause::AddressFamily)?;
        let path = Path {
            src: gid.ip,
            dst,
            src_port,
            traffic_class: ah.traffic_class,
            hop_limit: if ah.hop_limit == 0 { 64 } else { ah.hop_limit },
            flow_label: if dst.is_ipv6() { ah.flow_label } else { 0 },
            scope_id: if ah.scope_id == 0 { gid.scope_id } else { ah.scope_id },
        };
        Ok((path, ip))
    }

    /// What the congestion control of a queue pair has come to.
    ///
    /// # Errors
    /// `EINVAL`: the queue pair is gone.
    pub fn congestion(&mut self, now: Instant, handle: QpHandle) -> Result<State, Cause> {
        let qp = self.qps.get(handle).ok_or_else(|| gone("queue pair"))?;
        Ok(qp.congestion(now))
    }

    /// What a queue pair is set to: `ibv_query_qp(3)`.
    ///
    /// # Errors
    /// `EINVAL`: the queue pair is gone.
    pub fn query_qp(&mut self, handle: QpHandle) -> Result<QpAttr, Cause> {
        let qp = self.qps.get(handle).ok_or_else(|| gone("queue pair"))?;
        let set = &*qp.set;
        Ok(QpAttr {
            state: Some(qp.state),
            cur_state: Some(qp.state),
            sqd_notify: Some(set.sqd_notify),
            access: Some(qp.access),
            pkey_index: Some(set.pkey_index),
            port: Some(set.port),
            qkey: Some(set.qkey),
            ah: Some(set.ah.clone()),
            path_mtu: Some(qp.mtu),
            timeout: Some(set.timeout),
            retry_cnt: Some(set.retry_cnt),
            rnr_retry: Some(set.rnr_retry),
            rq_psn: Some(qp.rq_psn().raw()),
            max_rd_atomic: Some(set.max_rd_atomic),
            alt: None,
            min_rnr_timer: Some(set.min_rnr_timer),
            sq_psn: Some(qp.sq_psn().raw()),
            max_dest_rd_atomic: Some(set.max_dest_rd_atomic),
            path_mig: Some(super::qp::attr::MigState::Migrated),
            cap: Some(qp.face.cap()),
            dest_qpn: Some(qp.dest_qp.raw()),
            rate_limit: Some(qp.rate_limit()),
        })
    }

    /// Destroys a queue pair. It leaves its multicast groups; what it has not been polled for vanishes; type 2 windows bound through it
    /// are free again. Its driver sends what it still had to answer before this.
    ///
    /// # Errors
    /// `EINVAL`: it is gone already.
    pub fn destroy_qp(&mut self, handle: QpHandle) -> Result<(), Cause> {
        self.common.land_all();
        let mut qp = self.qps.remove(handle).ok_or_else(|| gone("queue pair"))?;
        self.groups.leave_all(handle);
        qp.leave_windows(&mut self.common);
        qp.set_state(QpState::Reset);
        let mut detach = |r: CqRef| {
            if let Some(slot) = self.common.cq(r.cq) {
                slot.users -= 1;
                slot.producer.shared().detach_qp(r.tag);
            }
        };
        detach(qp.send_cq);
        if qp.recv_cq.cq != qp.send_cq.cq {
            detach(qp.recv_cq);
        }
        if let Some(slot) = qp.rq.srq().and_then(|srq| self.common.srq(srq)) {
            slot.users -= 1;
        }
        self.common.mrs.unbind_qp(qp.qpn);
        self.release_pd(qp.pd);
        self.timers.cancel(handle.slot);
        self.settle();
        Ok(())
    }

    /// The path of a queue pair; meaningful from RTR on.
    pub fn qp_path(&mut self, handle: QpHandle) -> Option<Path> {
        self.qps.get(handle).map(|qp| qp.path)
    }

    /// A random first PSN, as `connect` uses it.
    pub fn random_psn(&mut self) -> Psn {
        Psn::new(self.random())
    }

    /// The connections that there are: number of the queue pair, that of its peer, and where the peer is.
    pub fn connections(&mut self) -> Vec<(u32, u32, IpAddr)> {
        let slots = 0..u32::try_from(self.qps.slots()).unwrap_or(u32::MAX);
        let mut all = Vec::new();
        for slot in slots {
            if let Some(qp) = self.qps.at(slot)
                && qp.kind != QpType::Ud
                && !matches!(qp.state, QpState::Reset | QpState::Init)
            {
                all.push((qp.qpn.raw(), qp.dest_qp.raw(), qp.path.dst));
            }
        }
        all
    }

    /// Has a queue pair fail by itself: it goes to ERR, and an event says so.
    ///
    /// # Errors
    /// `EINVAL`: there is no such queue pair.
    pub fn fail_qp(&mut self, now: Instant, qpn: u32) -> Result<(), Cause> {
        self.common.now = now;
        for slot in 0..u32::try_from(self.qps.slots()).unwrap_or(u32::MAX) {
            if let Some(qp) = self.qps.at(slot)
                && qp.qpn.raw() == qpn
            {
                if qp.can_fail() {
                    qp.enter_err(&mut self.common);
                }
                self.common.event(AsyncEvent::QpFatal { qpn });
                self.settle();
                self.schedule(slot);
                return Ok(());
            }
        }
        Err(gone("queue pair"))
    }

    /// Has a completion queue fail as if it had overrun.
    ///
    /// # Errors
    /// `EINVAL`: there is no such queue.
    pub fn fail_cq(&mut self, now: Instant, cq: u32) -> Result<(), Cause> {
        self.common.now = now;
        let slot = self.common.cq(cq).ok_or_else(|| gone("completion queue"))?;
        slot.producer.fail();
        if !slot.dead {
            self.common.overrun.push(cq);
        }
        self.settle();
        Ok(())
    }

    /// Counts asynchronous events that found no place with those who want them.
    pub fn count_lost_events(&mut self, events: u64) {
        self.common.counters.add(Counter::EventsLost, events);
    }

    /// Tells how many packets the port has refused for good since it was opened.
    pub fn set_send_errors(&mut self, packets: u64) {
        self.common.counters.set(Counter::SendErr, packets);
    }

    /// Counts packets that the driver threw away because their queue pair is gone.
    pub fn count_dropped(&mut self, packets: u64) {
        self.common.counters.add(Counter::DropDestroyed, packets);
    }
}

/// The transition to RTR: a queue pair has a peer, unless it is for datagrams.
fn connect(qp: &mut Qp, c: &mut Common) {
    qp.start_responder();
    let (qpn, dest_qpn, peer) = (qp.qpn.raw(), qp.dest_qp.raw(), qp.path.dst);
    let is_connection = qp.kind != QpType::Ud;
    c.observe(|| is_connection.then_some(NicEvent::Connected { qpn, dest_qpn, peer }));
}

/// Sets the attributes; their values were checked.
fn apply(qp: &mut Qp, now: Instant, attr: &QpAttr) {
    let set = &mut *qp.set;
    macro_rules! take {
        ($($name:ident),+) => {$(
            if let Some(value) = attr.$name {
                set.$name = value;
            }
        )+};
    }
    take!(
        sqd_notify,
        port,
        pkey_index,
        qkey,
        timeout,
        retry_cnt,
        rnr_retry,
        rq_psn,
        max_rd_atomic,
        min_rnr_timer,
        sq_psn,
        max_dest_rd_atomic
    );
    if let Some(ah) = &attr.ah {
        set.ah = ah.clone();
    }
    if let Some(access) = attr.access {
        qp.access = access;
    }
    if let Some(mtu) = attr.path_mtu {
        qp.mtu = mtu;
        qp.tell(now, |cc| cc.path_mtu(u32::try_from(mtu.bytes()).unwrap_or(u32::MAX)));
    }
    if let Some(dest) = attr.dest_qpn {
        qp.dest_qp = Qpn::new(dest);
    }
    if let Some(limit) = attr.rate_limit {
        qp.set_rate_limit(now, limit);
    }
}

pub(super) fn check_depth(attr: &'static str, got: u32, min: u32, max: u32) -> Result<(), Cause> {
    if got < min {
        return Err(Cause::AttrValue { attr, got: u64::from(got), want: "at least 1" });
    }
    if got > max {
        return Err(Cause::AttrRange { attr, got: u64::from(got), max: u64::from(max) });
    }
    Ok(())
}

pub(super) fn gone(what: &'static str) -> Cause {
    Cause::Invalid { what: format!("the {what} does not exist (any more)").into() }
}
