//! Our side: the library's verbs.

use std::sync::atomic::Ordering;
use std::time::Duration;

use softroce::prelude::*;
use softroce::verbs::{AhAttr, Placement, RemoteSlice};

use crate::Res;
use crate::end::{Address, Conn, Dest, Done, End, Lent, MARK, MEMORY, Op, Post, pattern};

struct Slot {
    qp: QueuePair,
    cq: CompletionQueue,
    rcq: CompletionQueue,
}

/// A device of ours, and what has been made on it.
pub(crate) struct Ours {
    ctx: Context,
    pd: ProtectionDomain,
    memory: MemoryRegion,
    slots: Vec<Option<Slot>>,
    srq: Option<SharedReceiveQueue>,
    handles: Vec<AddressHandle>,
    windows: Vec<MemoryWindow>,
    regions: Vec<MemoryRegion>,
}

fn said<T>(result: Result<T>) -> Res<T> {
    result.map_err(|e| format!("softroce: {e}"))
}

impl Ours {
    pub(crate) fn open(device: &str) -> Res<Self> {
        let ctx = said(Context::open(device))?;
        let pd = said(ctx.alloc_pd())?;
        let access = Access::REMOTE | Access::MW_BIND | Access::FLUSH_GLOBAL;
        let memory = said(pd.alloc_mr(MEMORY, access))?;
        Ok(Self {
            ctx,
            pd,
            memory,
            slots: (0..4).map(|_| None).collect(),
            srq: None,
            handles: Vec::new(),
            windows: Vec::new(),
            regions: Vec::new(),
        })
    }

    fn slot(&self, slot: usize) -> Res<&Slot> {
        self.slots
            .get(slot)
            .and_then(Option::as_ref)
            .ok_or_else(|| "softroce: no queue pair there".into())
    }

    fn gid_index(&self, v6: bool) -> Res<u16> {
        let wanted = self.gid(v6);
        let gids = said(self.ctx.gids())?;
        let entry = gids.iter().find(|entry| entry.gid == wanted);
        entry.map(|entry| entry.index).ok_or_else(|| format!("softroce: no address {wanted}"))
    }

    fn next(cq: &CompletionQueue, limit: Duration) -> Res<Option<Done>> {
        match cq.wait(limit) {
            Ok(wc) => Ok(Some(Done {
                id: wc.wr_id,
                status: wc.status as u32,
                opcode: wc.opcode as u32,
                len: wc.byte_len,
                imm: wc.imm,
                inv: wc.invalidated_rkey,
                src_qpn: wc.src_qpn,
                grh: wc.has_grh,
            })),
            Err(Error::Timeout) => Ok(None),
            Err(e) => Err(format!("softroce: {e}")),
        }
    }

    /// All counters that are not zero.
    pub(crate) fn counters(&self) -> Res<Vec<(String, u64)>> {
        Ok(said(self.ctx.counters(1))?.into_iter().filter(|(_, n)| *n > 0).collect())
    }
}

impl End for Ours {
    fn name(&self) -> &'static str {
        "softroce"
    }

    fn gid(&self, v6: bool) -> Gid {
        let gids = self.ctx.gids().unwrap_or_default();
        let global = |gid: &Gid| {
            gid.ip().is_some_and(|ip| ip.is_ipv6() == v6 && !ip.to_string().starts_with("fe80"))
        };
        gids.iter().map(|entry| entry.gid).find(global).unwrap_or(Gid([0; 16]))
    }

    fn lent(&self) -> Lent {
        Lent { addr: self.memory.iova(), rkey: self.memory.rkey() }
    }

    fn fill(&mut self, off: usize, len: usize, seed: u64) -> Res<()> {
        self.memory.write(off, &pattern(seed, len));
        Ok(())
    }

    fn mark(&mut self, off: usize, len: usize) -> Res<()> {
        self.memory.fill(off..off + len, MARK);
        Ok(())
    }

    fn check(&mut self, off: usize, len: usize, seed: u64, guard: usize) -> Res<()> {
        let bytes = self.memory.to_vec(off - guard..off + len + guard);
        if bytes[..guard].iter().chain(&bytes[guard + len..]).any(|&byte| byte != MARK) {
            return Err("softroce: bytes beside the target have changed".into());
        }
        let wanted = pattern(seed, len);
        match bytes[guard..guard + len].iter().zip(&wanted).position(|(a, b)| a != b) {
            Some(at) => Err(format!("softroce: other bytes from {at} of {len} on")),
            None => Ok(()),
        }
    }

    fn word(&mut self, off: usize) -> Res<u64> {
        Ok(self.memory.load(off, Ordering::Acquire))
    }

    fn set_word(&mut self, off: usize, v: u64) -> Res<()> {
        self.memory.store(off, v, Ordering::Release);
        Ok(())
    }

    fn bytes(&mut self, off: usize, len: usize) -> Res<Vec<u8>> {
        Ok(self.memory.to_vec(off..off + len))
    }

    fn register(&mut self, _off: usize, len: usize, access: u32, apart: bool) -> Res<Lent> {
        let pd = if apart { said(self.ctx.alloc_pd())? } else { self.pd.clone() };
        let mr = said(pd.alloc_mr(len, Access::from_bits_retain(access)))?;
        let lent = Lent { addr: mr.iova(), rkey: mr.rkey() };
        self.regions.push(mr);
        Ok(lent)
    }

    fn create(&mut self, slot: usize, kind: QpType, srq: bool, v6: bool) -> Res<u32> {
        let (cq, rcq) = (said(self.ctx.create_cq(256))?, said(self.ctx.create_cq(256))?);
        let mut builder =
            self.pd.create_qp(kind, &cq).recv_cq(&rcq).gid_index(self.gid_index(v6)?).depth(64, 64);
        if srq {
            if self.srq.is_none() {
                self.srq = Some(said(self.pd.create_srq(64, 1))?);
            }
            if let Some(srq) = &self.srq {
                builder = builder.srq(srq);
            }
        }
        let qp = said(builder.build())?;
        let number = qp.number();
        self.slots[slot] = Some(Slot { qp, cq, rcq });
        Ok(number)
    }

    fn connect(
        &mut self,
        slot: usize,
        kind: QpType,
        psn: u32,
        peer: &Address,
        conn: &Conn,
    ) -> Res<()> {
        let v6 = peer.gid.ip().is_some_and(|ip| ip.is_ipv6());
        let ah = AhAttr {
            dgid: peer.gid,
            sgid_index: self.gid_index(v6)?,
            port: 1,
            ..AhAttr::default()
        };
        let qp = &self.slot(slot)?.qp;
        let mut rtr =
            QpAttr::to(QpState::Rtr).ah(ah).path_mtu(conn.mtu).dest_qpn(peer.qpn).rq_psn(peer.psn);
        let mut rts = QpAttr::to(QpState::Rts).sq_psn(psn);
        if kind == QpType::Rc {
            rtr = rtr.max_dest_rd_atomic(conn.depth).min_rnr_timer(conn.rnr_timer);
            rts = rts
                .timeout(conn.timeout)
                .retry_cnt(conn.retries)
                .rnr_retry(conn.rnr_retries)
                .max_rd_atomic(conn.depth);
        }
        said(qp.modify(&rtr))?;
        said(qp.modify(&rts))
    }

    fn activate(&mut self, slot: usize, psn: u32, qkey: u32) -> Res<()> {
        let qp = &self.slot(slot)?.qp;
        said(qp.modify(&QpAttr::to(QpState::Rtr).qkey(qkey)))?;
        said(qp.modify(&QpAttr::to(QpState::Rts).sq_psn(psn)))
    }

    fn kill(&mut self) -> Res<()> {
        self.reset()
    }

    fn failed(&mut self, slot: usize) -> Res<bool> {
        Ok(said(self.slot(slot)?.qp.state())? == QpState::Err)
    }

    fn address_handle(&mut self, gid: Gid, v6: bool) -> Res<usize> {
        let attr =
            AhAttr { dgid: gid, sgid_index: self.gid_index(v6)?, port: 1, ..AhAttr::default() };
        self.handles.push(said(self.pd.create_ah(&attr))?);
        Ok(self.handles.len() - 1)
    }

    fn join(&mut self, slot: usize, group: Gid) -> Res<()> {
        said(self.slot(slot)?.qp.attach_mcast(group))
    }

    fn bind(&mut self, slot: usize, kind: u8, off: usize, len: usize, access: u32) -> Res<Lent> {
        let kind = if kind == 1 { MwType::Type1 } else { MwType::Type2 };
        let mw = said(self.pd.alloc_mw(kind))?;
        let access = Access::from_bits_retain(access);
        let Slot { qp, cq, .. } = self.slot(slot)?;
        let wr = SendWr::bind_mw(77, &mw, &self.memory, off..off + len, access);
        match kind {
            MwType::Type1 => said(qp.bind_mw(wr)).map(drop)?,
            MwType::Type2 => said(qp.post_send(wr))?,
        }
        said(said(cq.wait(Duration::from_secs(10)))?.ok())?;
        let lent = Lent { addr: self.memory.iova() + off as u64, rkey: mw.rkey() };
        self.windows.push(mw);
        Ok(lent)
    }

    fn recv(&mut self, slot: usize, srq: bool, id: u64, off: usize, len: usize) -> Res<()> {
        let wr = RecvWr::new(id, self.memory.sge(off..off + len));
        match &self.srq {
            Some(queue) if srq => said(queue.post_recv(wr)),
            _ => said(self.slot(slot)?.qp.post_recv(wr)),
        }
    }

    fn post(&mut self, slot: usize, post: &Post) -> Res<()> {
        let Slot { qp, .. } = self.slot(slot)?;
        let local = self.memory.sge(post.off..post.off + post.len);
        let remote = RemoteSlice { addr: post.remote.addr, rkey: post.remote.rkey };
        let id = post.id;
        let wr = match post.op {
            Op::Send => SendWr::send(id, local),
            Op::SendImm(imm) => SendWr::send(id, local).imm(imm),
            Op::SendInv(key) => SendWr::send(id, local).invalidate(key),
            Op::Write => SendWr::write(id, local, remote),
            Op::WriteImm(imm) => SendWr::write(id, local, remote).imm(imm),
            Op::Read => SendWr::read(id, local, remote),
            Op::Cas { expect, new } => SendWr::compare_swap(id, local, remote, expect, new),
            Op::Faa { add } => SendWr::fetch_add(id, local, remote, add),
            Op::AtomicWrite => SendWr::atomic_write(id, local, remote),
            Op::Flush(len) => SendWr::flush(id, remote, len, Placement::GLOBAL),
        };
        match post.dest {
            Some(Dest { ah, qpn, qkey }) => said(qp.post_send(wr.to(&self.handles[ah], qpn, qkey))),
            None => said(qp.post_send(wr)),
        }
    }

    fn sent(&mut self, slot: usize, limit: Duration) -> Res<Option<Done>> {
        Self::next(&self.slot(slot)?.cq, limit)
    }

    fn received(&mut self, slot: usize, limit: Duration) -> Res<Option<Done>> {
        Self::next(&self.slot(slot)?.rcq, limit)
    }

    fn counter(&mut self, name: &str) -> Res<u64> {
        Ok(said(self.ctx.counters(1))?.get(name).copied().unwrap_or(0))
    }

    fn reset(&mut self) -> Res<()> {
        self.slots.iter_mut().for_each(|slot| *slot = None);
        self.srq = None;
        self.handles.clear();
        self.windows.clear();
        self.regions.clear();
        Ok(())
    }
}
