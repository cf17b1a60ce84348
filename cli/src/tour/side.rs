//! What both processes have: a NIC with its objects, and a line to the other process.

use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::time::Instant;

use softroce::prelude::oob::Wire;
use softroce::prelude::*;

use super::Failure;
use super::child::Second;
use super::layout::{INLINE, Layout};
use super::plan::{Op, Row, plan};

/// Longest that anything of a row may take.
pub(super) const LIMIT: Duration = Duration::from_secs(10);
/// How often somebody who waits looks whether the other process lives.
const LOOK: Duration = Duration::from_millis(100);
/// How long somebody who waits polls before going to sleep: longer than it takes to wake the other side up on
/// a busy machine, so that not both of them sleep each time.
const POLL: Duration = Duration::from_micros(200);
/// How long a process that has closed its end of the line may take to end.
const DYING: Duration = Duration::from_secs(1);

#[expect(clippy::disallowed_methods, reason = "the tour measures real time")]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// Connections that share a receive queue.
pub(super) const SHARERS: usize = 4;
/// Fewer receives than this in the shared queue raise its event.
pub(super) const LOW: u32 = 8;

/// The multicast group, of local scope (RFC 2365). Other tours on this machine use it as well: their datagrams
/// have other Q_Keys.
const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 255, 47, 91));

/// A NIC, and all that the rows need on it.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) ctx: Context,
    pub(super) pd: ProtectionDomain,
    pub(super) cq: CompletionQueue,
    /// A reliable connection, for most rows.
    pub(super) qp: QueuePair,
    /// One for a request that is denied, after which it is of no more use.
    pub(super) spare: QueuePair,
    pub(super) uc: QueuePair,
    pub(super) ud: QueuePair,
    /// Reliable connections that take their receives from `srq`.
    pub(super) sharers: Vec<QueuePair>,
    pub(super) srq: SharedReceiveQueue,
    /// Where messages come from.
    pub(super) source: MemoryRegion,
    /// Where they go to.
    pub(super) target: MemoryRegion,
}

/// The other side.
#[derive(Debug)]
pub(super) struct Far {
    pub(super) source: RemoteMr,
    pub(super) target: RemoteMr,
    /// Its datagram queue pair, and the way to it.
    pub(super) ud: QpEndpoint,
    pub(super) ah: AddressHandle,
    /// The way to the group that the second process is in, and its address.
    pub(super) group: Option<(AddressHandle, IpAddr)>,
    /// The path MTU.
    pub(super) mtu: Mtu,
}

impl Node {
    /// Opens a device and makes everything on it.
    pub(super) fn open(device: &str) -> Result<Self, Failure> {
        let ctx = Context::open(device)?;
        let layouts = || plan(Mtu::B4096, true).into_iter().map(Layout::new);
        let requests = layouts().map(|l| l.row.requests()).max().unwrap_or(0);
        let depth = u32::try_from(requests)?;
        let source = layouts().map(|l| l.source_len()).max().unwrap_or(1);
        let target = layouts().map(|l| l.target_len()).max().unwrap_or(1);
        let (pd, cq) = (ctx.alloc_pd()?, ctx.create_cq(2 * depth)?);
        // A FLUSH has a WRITE in front.
        let cap = QpCap { send_wr: 2 * depth, recv_wr: depth, inline: INLINE, ..QpCap::default() };
        let make = |kind| pd.create_qp(kind, &cq).cap(cap).build();
        let (qp, spare) = (make(QpType::Rc)?, make(QpType::Rc)?);
        let (uc, ud) = (make(QpType::Uc)?, make(QpType::Ud)?);
        // Each process has a Q_Key of its own. The highest bit would make it a controlled one.
        ud.activate(std::process::id() & 0x7fff_ffff)?;
        let srq = pd.create_srq(depth, 1)?;
        let sharers =
            (0..SHARERS).map(|_| pd.create_qp(QpType::Rc, &cq).cap(cap).srq(&srq).build());
        let sharers = sharers.collect::<Result<_>>()?;
        let source = pd.alloc_mr(source, Access::LOCAL | Access::REMOTE_READ)?;
        let target =
            pd.alloc_mr(target, Access::REMOTE | Access::MW_BIND | Access::FLUSH_GLOBAL)?;
        Ok(Self { ctx, pd, cq, qp, spare, uc, ud, sharers, srq, source, target })
    }

    /// Connects to the other side's node.
    pub(super) fn connect(&self, link: &mut Link, is_second: bool) -> Result<Far, Failure> {
        let all = || self.connections().chain([&self.ud]);
        let ours = all().map(QueuePair::endpoint).collect::<Vec<_>>();
        link.tell(&(ours, self.source.remote(), self.target.remote()))?;
        let (theirs, source, target): (Vec<QpEndpoint>, _, _) = link.hear()?;
        let (Some(&ud), true) = (theirs.last(), theirs.len() == all().count()) else {
            return Err(Failure::new("the other process is of another version"));
        };
        for (qp, endpoint) in self.connections().zip(&theirs) {
            qp.connect(endpoint)?;
        }
        let ah = self.pd.create_ah(&ud.ah())?;
        let group = self.meet(link, is_second)?;
        // Both are ready.
        link.tell(&())?;
        link.hear::<()>()?;
        Ok(Far { source, target, ud, ah, group, mtu: ud.mtu.min(self.ud.endpoint().mtu) })
    }

    /// The second process joins a multicast group, where both addresses are such of the loopback interface of
    /// IPv4 and the system lets it.
    fn meet(
        &self,
        link: &mut Link,
        is_second: bool,
    ) -> Result<Option<(AddressHandle, IpAddr)>, Failure> {
        let ours = self.ud.endpoint().gid.ip();
        let loopback = ours.is_some_and(|ip| ip.is_ipv4() && ip.is_loopback());
        let can = loopback && (!is_second || self.ud.attach_mcast(Gid::from(GROUP)).is_ok());
        link.tell(&u8::from(can))?;
        if link.hear::<u8>()? == 0 || !can {
            return Ok(None);
        }
        let to = AhAttr { dgid: Gid::from(GROUP), ..AhAttr::default() };
        Ok(Some((self.pd.create_ah(&to)?, GROUP)))
    }

    /// All queue pairs that have a peer.
    fn connections(&self) -> impl Iterator<Item = &QueuePair> {
        [&self.qp, &self.spare, &self.uc].into_iter().chain(&self.sharers)
    }

    /// The queue pair of request `i` of a row.
    pub(super) fn carrier(&self, row: Row, i: usize) -> &QueuePair {
        match row.op {
            Op::UcSend | Op::UcSendImm | Op::UcWrite | Op::UcWriteImm => &self.uc,
            op if op.is_datagram() => &self.ud,
            Op::SendSrq => &self.sharers[i % SHARERS],
            _ => &self.qp,
        }
    }

    /// Its name for people: device, address, process.
    pub(super) fn describe(&self) -> String {
        let name = &self.ctx.device().name;
        let short = name.split_once(',').map_or(name.as_str(), |(base, _options)| base);
        let gid = self.qp.endpoint().gid;
        let address = gid.ip().map_or_else(|| gid.to_string(), |ip| ip.to_string());
        format!("{short} at {address} (process {})", std::process::id())
    }

    /// Fills the memory for a row.
    pub(super) fn prepare(&self, layout: &Layout, pattern: &[u8]) {
        self.source.write(0, pattern);
        self.target.write(0, &layout.untouched());
    }

    /// The pieces of the source that request `i` takes its bytes from.
    pub(super) fn gather(&self, layout: &Layout, i: usize) -> Vec<Sge> {
        layout.origin(i).into_iter().map(|piece| self.source.sge(piece)).collect()
    }

    /// The pieces of the target that the bytes of request `i` go to.
    pub(super) fn scatter(&self, layout: &Layout, i: usize) -> Vec<Sge> {
        let header = layout.row.op.is_datagram().then(|| layout.header(i));
        header.into_iter().chain(layout.landing(i)).map(|piece| self.target.sge(piece)).collect()
    }

    /// As many windows as the row has requests, not bound yet.
    pub(super) fn windows(&self, layout: &Layout) -> Result<Vec<MemoryWindow>, Failure> {
        let kind = if layout.row.op == Op::BindMw1 { MwType::Type1 } else { MwType::Type2 };
        let all = (0..layout.row.requests()).map(|_| self.pd.alloc_mw(kind));
        Ok(all.collect::<Result<_>>()?)
    }

    /// Binds all of them, each to the slot of its request, and waits for that.
    pub(super) fn bind(
        &self,
        link: &mut Link,
        layout: &Layout,
        windows: &[MemoryWindow],
    ) -> Result<(), Failure> {
        self.qp.post_send(windows.iter().enumerate().map(|(i, w)| self.binding(layout, i, w)))?;
        for i in 0..windows.len() {
            let wc = link.completion(&self.cq)?;
            expect(&wc, i, WcOpcode::BindMw)?;
        }
        Ok(())
    }

    /// The request that binds the window of request `i`.
    pub(super) fn binding<'a>(
        &'a self,
        layout: &Layout,
        i: usize,
        window: &'a MemoryWindow,
    ) -> SendWr<'a> {
        let slot = layout.slot(i);
        // A window has at least one byte, also where the message has none.
        let range = slot.start..slot.end.max(slot.start + 1);
        SendWr::bind_mw(i as u64, window, &self.target, range, Access::REMOTE_WRITE)
    }
}

/// Whether this is the completion of request `i`, and a success.
pub(super) fn expect(wc: &WorkCompletion, i: usize, opcode: WcOpcode) -> Result<(), Failure> {
    let wc = wc.ok()?;
    if (wc.wr_id, wc.opcode) == (i as u64, opcode) {
        return Ok(());
    }
    let (id, got) = (wc.wr_id, wc.opcode);
    Err(Failure::new(format!("{got:?} {id} completed where {opcode:?} {i} should have")))
}

/// The line to the other process, and the time that a row has.
#[derive(Debug)]
pub(super) struct Link {
    tcp: TcpStream,
    /// The process at the other end, where that is ours to look after.
    second: Option<Second>,
    deadline: Instant,
}

impl Link {
    pub(super) fn new(tcp: TcpStream, second: Option<Second>) -> Result<Self, Failure> {
        tcp.set_nodelay(true)?;
        tcp.set_write_timeout(Some(LIMIT))?;
        Ok(Self { tcp, second, deadline: now() + LIMIT })
    }

    /// A row begins.
    pub(super) fn begin(&mut self) {
        self.deadline = now() + LIMIT;
    }

    /// There is not more than this left to wait.
    pub(super) fn hurry(&mut self, left: Duration) {
        self.deadline = self.deadline.min(now() + left);
    }

    pub(super) fn tell<T: Wire>(&mut self, what: &T) -> Result<(), Failure> {
        oob::send(&mut self.tcp, what).map_err(|e| self.explain(&e))
    }

    pub(super) fn hear<T: Wire>(&mut self) -> Result<T, Failure> {
        let left = self.deadline.saturating_duration_since(now());
        self.tcp.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        oob::receive(&mut self.tcp).map_err(|e| self.explain(&e))
    }

    /// What is behind an error of the line: most often the other process has ended.
    fn explain(&mut self, e: &Error) -> Failure {
        if *e == Error::Timeout {
            let limit = LIMIT.as_secs();
            return Failure::new(format!("the other process said nothing for {limit} s"));
        }
        match self.second.as_mut().and_then(|second| second.ended_within(DYING)) {
            Some(death) => death,
            None => Failure::new(format!("the other process is gone: {e}")),
        }
    }

    /// The next completion, of a success.
    pub(super) fn completion(&mut self, cq: &CompletionQueue) -> Result<WorkCompletion, Failure> {
        let wc = self.next(cq)?;
        match wc.status {
            WcStatus::Success => Ok(wc),
            _ => Err(self.second_died().unwrap_or(Error::Completion(wc).into())),
        }
    }

    fn next(&mut self, cq: &CompletionQueue) -> Result<WorkCompletion, Failure> {
        let mut one = [WorkCompletion::default()];
        let began = now();
        while now() - began < POLL {
            if cq.poll(&mut one)? > 0 {
                return Ok(one[0]);
            }
            // The other side may need this processor.
            std::thread::yield_now();
        }
        loop {
            match cq.wait(LOOK) {
                Err(Error::Timeout) if now() < self.deadline => {
                    if let Some(death) = self.second_died() {
                        return Err(death);
                    }
                }
                Err(Error::Timeout) => {
                    let limit = LIMIT.as_secs();
                    return Err(Failure::new(format!("nothing completed for {limit} s")));
                }
                other => return Ok(other?),
            }
        }
    }

    /// The status of the next completion, which is meant to be an error.
    pub(super) fn denied(&mut self, cq: &CompletionQueue) -> Result<WcStatus, Failure> {
        Ok(self.next(cq)?.status)
    }

    fn second_died(&mut self) -> Option<Failure> {
        self.second.as_mut()?.ended_within(Duration::ZERO)
    }

    /// Waits for the second process to end as it should.
    pub(super) fn finish(mut self) -> Result<(), Failure> {
        self.second.take().map_or(Ok(()), Second::finish)
    }
}
