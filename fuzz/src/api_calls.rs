//! Any bytes as a program that calls verbs in any order, right and wrong.
//!
//! Two hosts of a simulated network. Each byte is a call, the ones behind it its arguments; what is missing at
//! the end is 0. Objects are chosen from all that there are, whatever their protection domain and host, and
//! dropped in any order. Whatever is called: nothing panics or hangs, each error is one that the verb
//! documents, each completion is of something posted, once and in the order of its queue, and afterwards the
//! devices work.

use std::collections::BTreeMap;

use softroce::sim::{Link, Sim};
use softroce::time::Duration;
use softroce::verbs::{
    Access, AddressHandle, AhAttr, CompChannel, CompletionQueue, Context, Error, Gid, MemoryRegion,
    MemoryWindow, Mtu, MwType, Placement, Pool, ProtectionDomain, QpAttr, QpBuilder, QpCap,
    QpState, QpType, QueuePair, RecvWr, Result, SendWr, Sge, SharedReceiveQueue, Source, WcStatus,
    WorkCompletion, inline,
};

/// How far the bytes got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Calls that were right.
    pub accepted: u32,
    /// Calls that were refused.
    pub refused: u32,
    /// Requests and receives that succeeded.
    pub succeeded: u32,
    /// Those that failed.
    pub failed: u32,
}

/// Most objects of a kind, and most calls.
const OBJECTS: usize = 6;
const CALLS: usize = 300;
/// Most virtual time that a program takes in all; some of its queue pairs may try for ever.
const LIFETIME: Duration = Duration::from_millis(400);

const ENOMEM: i32 = 12;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;
const ETIMEDOUT: i32 = 110;

/// The arguments of calls.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n.max(1)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    fn one<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        let at = self.below(from.len());
        from.get(at)
    }
}

/// Something of a list of at most [`OBJECTS`]: the oldest one goes for it.
fn keep<T>(list: &mut Vec<T>, made: Option<T>) {
    if let Some(made) = made {
        if list.len() >= OBJECTS {
            list.remove(0);
        }
        list.push(made);
    }
}

/// A request or receive without a completion.
#[derive(Clone, Copy, Debug)]
struct Posted {
    /// Whose completion it will be; not known of one in a shared queue.
    qpn: Option<u32>,
    is_receive: bool,
}

struct Program {
    sim: Sim,
    hosts: Vec<Context>,
    pds: Vec<ProtectionDomain>,
    channels: Vec<CompChannel>,
    cqs: Vec<CompletionQueue>,
    mrs: Vec<MemoryRegion>,
    mws: Vec<MemoryWindow>,
    srqs: Vec<SharedReceiveQueue>,
    qps: Vec<QueuePair>,
    ahs: Vec<AddressHandle>,
    pools: Vec<Pool>,
    next_id: u64,
    posted: BTreeMap<u64, Posted>,
    /// Largest completed `wr_id` of a queue: of this queue pair, and whether it is that of receives.
    last: BTreeMap<(u32, bool), u64>,
    reached: Reached,
}

/// Runs `data` as a program.
///
/// # Panics
/// If anything is wrong.
pub fn run(data: &[u8]) -> Reached {
    let sim = Sim::new(1);
    let hosts = Vec::from(sim.hosts::<2>(Link::default()));
    let mut program = Program {
        sim,
        hosts,
        pds: Vec::new(),
        channels: Vec::new(),
        cqs: Vec::new(),
        mrs: Vec::new(),
        mws: Vec::new(),
        srqs: Vec::new(),
        qps: Vec::new(),
        ahs: Vec::new(),
        pools: Vec::new(),
        next_id: 0,
        posted: BTreeMap::new(),
        last: BTreeMap::new(),
        reached: Reached::default(),
    };
    let mut bytes = Bytes(data);
    for _ in 0..CALLS {
        if bytes.0.is_empty() || program.sim.now() > LIFETIME {
            break;
        }
        program.call(&mut bytes);
    }
    program.end(&mut bytes);
    program.reached
}

impl Program {
    /// What a call gave: nothing if it was refused, for a reason that its documentation names.
    #[track_caller]
    fn check<T>(&mut self, result: Result<T>, documented: &[i32]) -> Option<T> {
        match result {
            Ok(value) => {
                self.reached.accepted += 1;
                Some(value)
            }
            Err(e) => {
                self.reached.refused += 1;
                let errno = e.errno().expect("an errno");
                assert!(documented.contains(&errno), "{e} is not documented");
                assert!(!e.to_string().is_empty());
                None
            }
        }
    }

    fn call(&mut self, b: &mut Bytes<'_>) {
        let op = b.byte() % 32;
        match op {
            0 => {
                let Some(host) = b.one(&self.hosts) else { return };
                let pd = host.alloc_pd();
                let pd = self.check(pd, &[EINVAL]);
                keep(&mut self.pds, pd);
            }
            1 => self.create_cq(b),
            2..=4 => self.create(b, op),
            5 | 6 => self.create_qp(b),
            7 | 8 => self.create(b, op),
            9..=11 => self.connect(b),
            12 => {
                let Some(qp) = b.one(&self.qps) else { return };
                let done = qp.activate(u32::from(b.byte()));
                self.check(done, &[EINVAL]);
            }
            13 | 14 => {
                let Some(qp) = b.one(&self.qps) else { return };
                let before = qp.query().expect("it exists");
                let done = qp.modify(&attributes(b));
                let after = qp.query().expect("it exists");
                if done.is_err() {
                    assert_eq!(before, after, "refused, and yet changed");
                }
                self.check(done, &[EINVAL, EBUSY, EOPNOTSUPP]);
            }
            15..=18 => self.post_send(b),
            19 | 20 => self.post_recv(b),
            21 => self.post_shared(b),
            22 => self.bind(b),
            23 => self.collect(b),
            24 => {
                let time = b.pick(&[10u64, 100, 1000, 20_000]);
                self.sim.run_for(Duration::from_micros(time));
            }
            25 => {
                let Some(cq) = b.one(&self.cqs) else { return };
                let done = cq.resize(size(b));
                self.check(done, &[EINVAL]);
            }
            26 => {
                let Some(cq) = b.one(&self.cqs) else { return };
                let done = cq.arm(b.byte() & 1 != 0);
                self.check(done, &[EINVAL]);
            }
            27 => {
                let Some(srq) = b.one(&self.srqs) else { return };
                let done = match b.byte() & 1 {
                    0 => srq.set_limit(size(b)),
                    _ => srq.resize(size(b)),
                };
                assert!(srq.query().is_ok());
                self.check(done, &[EINVAL]);
            }
            28 => {
                let Some(qp) = b.one(&self.qps) else { return };
                let group = group(b);
                let done =
                    if b.byte() & 1 == 0 { qp.attach_mcast(group) } else { qp.detach_mcast(group) };
                self.check(done, &[EINVAL]);
            }
            29 => self.ask(b),
            _ => self.drop_one(b),
        }
    }

    /// Something in a protection domain.
    fn create(&mut self, b: &mut Bytes<'_>, op: u8) {
        match op {
            2 => {
                let Some(pd) = b.one(&self.pds) else { return };
                let len = b.pick(&[4096, 1, 8, 100, 65_536, 0, usize::MAX]);
                let shown = Access::REMOTE | Access::MW_BIND | Access::FLUSH_GLOBAL;
                let access = match b.byte() {
                    0 => shown,
                    1 => Access::LOCAL,
                    2 => shown | Access::ZERO_BASED,
                    bits => Access::from_bits_retain(u32::from(bits) << 2),
                };
                let mr = pd.alloc_mr(len, access);
                let mr = self.check(mr, &[EINVAL, ENOMEM]);
                keep(&mut self.mrs, mr);
            }
            3 => {
                let Some(pd) = b.one(&self.pds) else { return };
                let mw = pd.alloc_mw(b.pick(&[MwType::Type1, MwType::Type2]));
                let mw = self.check(mw, &[ENOMEM]);
                keep(&mut self.mws, mw);
            }
            4 => {
                let Some(pd) = b.one(&self.pds) else { return };
                let srq = pd.create_srq(size(b), u32::from(b.pick(&[4u8, 0, 1, 32, 33])));
                let srq = self.check(srq, &[EINVAL]);
                keep(&mut self.srqs, srq);
            }
            7 => {
                let Some(pd) = b.one(&self.pds) else { return };
                let ah = pd.create_ah(&address(b));
                let ah = self.check(ah, &[EINVAL]);
                keep(&mut self.ahs, ah);
            }
            _ => {
                let Some(pd) = b.one(&self.pds) else { return };
                let pool = pd.pool(usize::from(b.byte()), b.below(20));
                let pool = self.check(pool, &[EINVAL, ENOMEM]);
                if let Some(buf) = pool.as_ref().and_then(Pool::try_get) {
                    drop(buf);
                }
                keep(&mut self.pools, pool);
            }
        }
    }

    fn create_cq(&mut self, b: &mut Bytes<'_>) {
        let Some(host) = b.one(&self.hosts) else { return };
        let depth = size(b);
        let cq = match b.byte() % 4 {
            0 => {
                let channel = host.create_comp_channel().expect("nothing is in its way");
                let cq = host.cq_builder(depth).channel(&channel).build();
                keep(&mut self.channels, Some(channel));
                cq
            }
            1 => match b.one(&self.channels) {
                // Perhaps one of the other host.
                Some(channel) => host.cq_builder(depth).channel(channel).timestamps().build(),
                None => return,
            },
            _ => host.create_cq(depth),
        };
        let cq = self.check(cq, &[EINVAL]);
        keep(&mut self.cqs, cq);
    }

    fn create_qp(&mut self, b: &mut Bytes<'_>) {
        let Some(pd) = b.one(&self.pds) else { return };
        let Some(cq) = b.one(&self.cqs) else { return };
        let kinds = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::Rc, QpType::XrcSend];
        let mut builder: QpBuilder = pd.create_qp(b.pick(&kinds), cq);
        let options = b.byte();
        if options & 1 != 0
            && let Some(cq) = b.one(&self.cqs)
        {
            builder = builder.recv_cq(cq);
        }
        if options & 2 != 0
            && let Some(srq) = b.one(&self.srqs)
        {
            builder = builder.srq(srq);
        }
        if options & 4 != 0 {
            builder = builder.cap(capacities(b));
        }
        if options & 8 != 0 {
            builder = builder.access(Access::from_bits_retain(u32::from(b.byte()) << 2));
        } else {
            builder = builder.access(Access::REMOTE | Access::FLUSH_GLOBAL);
        }
        if options & 16 != 0 {
            builder = builder.sig_all();
        }
        if options & 32 != 0 {
            builder = builder.port(b.byte()).pkey_index(u16::from(b.byte()));
        }
        if options & 64 != 0 {
            builder = builder.gid_index(u16::from(b.byte()));
        }
        let qp = if options & 128 == 0 { builder.build() } else { builder.build_reset() };
        let qp = self.check(qp, &[EINVAL, EOPNOTSUPP]);
        keep(&mut self.qps, qp);
    }

    /// Two of them with each other, as it may be.
    fn connect(&mut self, b: &mut Bytes<'_>) {
        let Some(one) = b.one(&self.qps) else { return };
        let Some(other) = b.one(&self.qps) else { return };
        let (first, second) = (one.connect(&other.endpoint()), other.connect(&one.endpoint()));
        self.check(first, &[EINVAL]);
        self.check(second, &[EINVAL]);
    }

    fn post_send(&mut self, b: &mut Bytes<'_>) {
        let Some(qp) = b.one(&self.qps) else { return };
        let word = [0x11; 300];
        let sges: Vec<Sge> = (0..b.below(4)).filter_map(|_| piece(b, &self.mrs)).collect();
        let mut wrs = Vec::new();
        for _ in 0..=b.below(3) {
            self.next_id += 1;
            let id = self.next_id;
            let local = match (b.byte() % 4, piece(b, &self.mrs)) {
                (0, _) => Source::Inline(&word[..usize::from(b.short()) % 300]),
                (1, _) => Source::from(&sges[..]),
                (_, Some(sge)) => sge.into(),
                (_, None) => ().into(),
            };
            let sge = piece(b, &self.mrs);
            let remote = b.one(&self.mrs).map(|mr| mr.remote().at(u64::from(b.byte())));
            let (Some(sge), Some(mut remote)) = (sge, remote) else { return };
            if let Some(mw) = b.one(&self.mws).filter(|_| b.byte() & 1 != 0) {
                remote.rkey = mw.rkey();
            }
            let mut wr = match b.byte() % 12 {
                0 => SendWr::send(id, local),
                1 => SendWr::send(id, local).imm(7),
                2 => SendWr::send(id, local).invalidate(remote.rkey),
                3 => SendWr::write(id, local, remote),
                4 => SendWr::write(id, local, remote).imm(9),
                5 => SendWr::read(id, sge, remote),
                6 => SendWr::compare_swap(id, sge, remote, 0, 1),
                7 => SendWr::fetch_add(id, sge, remote, 1),
                8 => SendWr::atomic_write(id, local, remote),
                9 => SendWr::flush(
                    id,
                    remote,
                    u32::from(b.byte()),
                    Placement::from_bits_retain(b.byte()),
                ),
                10 => SendWr::flush_all(id, remote, Placement::GLOBAL),
                _ => SendWr::local_inv(id, remote.rkey),
            };
            let options = b.byte();
            if options & 1 != 0 {
                wr = wr.unsignaled();
            }
            if options & 2 != 0 {
                wr = wr.fence();
            }
            if options & 4 != 0 {
                wr = wr.solicited();
            }
            if options & 8 != 0
                && let (Some(ah), Some(to)) = (b.one(&self.ahs), b.one(&self.qps))
            {
                wr = wr.to(ah, to.number(), u32::from(b.byte()));
            }
            if options & 0xf0 == 0xf0 {
                wr = wr.imm(1).invalidate(2);
            }
            wrs.push((id, wr));
        }
        let done = qp.post_send(wrs.iter().map(|&(_, wr)| wr));
        let posted = count(&done, wrs.len());
        let of = Posted { qpn: Some(qp.number()), is_receive: false };
        self.posted.extend(wrs[..posted].iter().map(|&(id, _)| (id, of)));
        self.check(done, &[EINVAL, ENOMEM, EOPNOTSUPP]);
    }

    fn receives(&mut self, b: &mut Bytes<'_>) -> Vec<(u64, Vec<Sge>)> {
        let one = |_| {
            self.next_id += 1;
            let sges = (0..b.below(6)).filter_map(|_| piece(b, &self.mrs)).collect();
            (self.next_id, sges)
        };
        (0..2).map(one).collect()
    }

    fn post_recv(&mut self, b: &mut Bytes<'_>) {
        let wrs = self.receives(b);
        let Some(qp) = b.one(&self.qps) else { return };
        let done = qp.post_recv(wrs.iter().map(|(id, sges)| RecvWr::new(*id, &sges[..])));
        let of = Posted { qpn: Some(qp.number()), is_receive: true };
        self.posted.extend(wrs[..count(&done, wrs.len())].iter().map(|&(id, _)| (id, of)));
        self.check(done, &[EINVAL, ENOMEM, EOPNOTSUPP]);
    }

    fn post_shared(&mut self, b: &mut Bytes<'_>) {
        let wrs = self.receives(b);
        let Some(srq) = b.one(&self.srqs) else { return };
        let done = srq.post_recv(wrs.iter().map(|(id, sges)| RecvWr::new(*id, &sges[..])));
        let of = Posted { qpn: None, is_receive: true };
        self.posted.extend(wrs[..count(&done, wrs.len())].iter().map(|&(id, _)| (id, of)));
        self.check(done, &[EINVAL, ENOMEM]);
    }

    fn bind(&mut self, b: &mut Bytes<'_>) {
        let (Some(qp), Some(mw), Some(mr)) = (b.one(&self.qps), b.one(&self.mws), b.one(&self.mrs))
        else {
            return;
        };
        self.next_id += 1;
        let (from, len) = (usize::from(b.byte()), usize::from(b.short() & 0x1fff));
        let access = match b.byte() {
            0 => Access::REMOTE_WRITE | Access::REMOTE_READ,
            bits => Access::from_bits_retain(u32::from(bits) << 1),
        };
        let wr = SendWr::bind_mw(self.next_id, mw, mr, from..from + len, access);
        let done = match b.byte() & 1 {
            0 if mw.kind() == MwType::Type1 => qp.bind_mw(wr).map(drop),
            0 => qp.post_send(wr),
            _ if mw.kind() == MwType::Type1 => qp.post_send(wr),
            _ => qp.bind_mw(wr).map(drop),
        };
        if done.is_ok() {
            let of = Posted { qpn: Some(qp.number()), is_receive: false };
            self.posted.insert(self.next_id, of);
        }
        self.check(done, &[EINVAL, ENOMEM, EOPNOTSUPP]);
    }

    /// Takes completions.
    fn collect(&mut self, b: &mut Bytes<'_>) {
        let Some(cq) = b.one(&self.cqs).cloned() else { return };
        let mut some = [WorkCompletion::default(); 8];
        let room = b.pick(&[8, 1, 0]);
        let found = match b.byte() % 3 {
            0 => cq.poll(&mut some[..room]),
            1 => cq.wait_many(&mut some[..room], Duration::from_micros(200)),
            _ => cq.wait(Duration::from_micros(50)).map(|wc| {
                some[0] = wc;
                1
            }),
        };
        let Some(n) = self.check(found, &[EINVAL, ETIMEDOUT]) else { return };
        some[..n].iter().for_each(|wc| self.completed(wc));
    }

    fn completed(&mut self, wc: &WorkCompletion) {
        let posted = self.posted.remove(&wc.wr_id);
        let Some(posted) = posted else { panic!("{wc:?} completes nothing") };
        assert!(posted.qpn.is_none_or(|qpn| qpn == wc.qpn), "{wc:?} is that of {posted:?}");
        if posted.qpn.is_some() {
            let last = self.last.entry((wc.qpn, posted.is_receive)).or_default();
            assert!(*last < wc.wr_id, "{wc:?} comes after {last}");
            *last = wc.wr_id;
        }
        match wc.status {
            WcStatus::Success => self.reached.succeeded += 1,
            _ => self.reached.failed += 1,
        }
    }

    /// Calls that only ask.
    fn ask(&mut self, b: &mut Bytes<'_>) {
        let Some(host) = b.one(&self.hosts) else { return };
        let port = b.byte();
        let (attr, found) = (host.attr(), host.port(port).map(drop));
        let (key, counted) = (host.pkey(port, u16::from(b.byte())), host.counters(port));
        let event = host.wait_event(Duration::ZERO);
        self.check(attr, &[]);
        self.check(found, &[EINVAL]);
        self.check(key, &[EINVAL]);
        self.check(counted, &[EINVAL]);
        self.check(event, &[ETIMEDOUT]);
        let Some(channel) = b.one(&self.channels) else { return };
        let event = channel.wait(Duration::ZERO);
        self.check(event, &[ETIMEDOUT]);
    }

    fn drop_one(&mut self, b: &mut Bytes<'_>) {
        fn take<T>(list: &mut Vec<T>, b: &mut Bytes<'_>) -> Option<T> {
            let at = b.below(list.len());
            (at < list.len()).then(|| list.swap_remove(at))
        }
        match b.byte() % 12 {
            0 => drop(take(&mut self.pds, b)),
            1 => drop(take(&mut self.channels, b)),
            2 => drop(take(&mut self.cqs, b)),
            3 => drop(take(&mut self.mrs, b)),
            4 => {
                let Some(mr) = take(&mut self.mrs, b) else { return };
                let done = mr.deregister();
                self.check(done, &[EBUSY]);
            }
            5 => drop(take(&mut self.mws, b)),
            6 => drop(take(&mut self.srqs, b)),
            7 => drop(take(&mut self.qps, b)),
            8 => {
                let Some(qp) = take(&mut self.qps, b) else { return };
                let done = qp.destroy();
                self.check(done, &[EINVAL]);
            }
            9 => drop(take(&mut self.ahs, b)),
            10 => drop(take(&mut self.pools, b)),
            // One host at least remains.
            _ if self.hosts.len() > 1 => drop(take(&mut self.hosts, b)),
            _ => {}
        }
    }

    /// Drops everything but the devices, in an order that the bytes choose, and sees whether they still work.
    fn end(&mut self, b: &mut Bytes<'_>) {
        for _ in 0..10 * OBJECTS {
            self.drop_one(b);
        }
        for shift in 0..9 {
            match (usize::from(b.byte()) + shift) % 9 {
                0 => self.pds.clear(),
                1 => self.channels.clear(),
                2 => self.cqs.clear(),
                3 => self.mrs.clear(),
                4 => self.mws.clear(),
                5 => self.srqs.clear(),
                6 => self.qps.clear(),
                7 => self.ahs.clear(),
                _ => self.pools.clear(),
            }
        }
        // Without queue pairs there is nobody left to send.
        self.qps.clear();
        self.sim.settle();
        if let [first, .., last] | [first @ last] = &self.hosts[..] {
            works(first, last).expect("a connection between devices that were used as one may");
        }
        self.sim.settle();
    }
}

/// A message from one device to another, or to itself.
fn works(from: &Context, to: &Context) -> Result<()> {
    let side = |ctx: &Context| {
        let (pd, cq) = (ctx.alloc_pd()?, ctx.create_cq(4)?);
        let qp = pd.create_qp(QpType::Rc, &cq).build()?;
        Ok::<_, Error>((pd.alloc_mr(8, Access::LOCAL)?, cq, qp))
    };
    let ((_, ours, one), (mr, theirs, other)) = (side(from)?, side(to)?);
    one.connect(&other.endpoint())?;
    other.connect(&one.endpoint())?;
    other.post_recv(RecvWr::new(1, mr.sge(..)))?;
    one.post_send(SendWr::send(2, inline(b"it works")))?;
    assert_eq!(theirs.wait(Duration::from_secs(1))?.ok()?.wr_id, 1);
    assert_eq!(ours.wait(Duration::from_secs(1))?.ok()?.wr_id, 2);
    assert_eq!(mr.to_vec(0..8), b"it works");
    Ok(())
}

/// How many of so many requests were posted.
fn count(done: &Result<()>, all: usize) -> usize {
    match done {
        Ok(()) => all,
        Err(Error::Post { posted, .. }) => *posted,
        Err(_) => 0,
    }
}

/// A number of slots.
fn size(b: &mut Bytes<'_>) -> u32 {
    b.pick(&[16, 1, 2, 7, 64, 0, 3, (1 << 22) + 1, u32::MAX])
}

/// A piece of some region.
fn piece(b: &mut Bytes<'_>, mrs: &[MemoryRegion]) -> Option<Sge> {
    let mr = b.one(mrs)?;
    let len = match b.byte() {
        0 => 8,
        255 => mr.len(),
        n => usize::from(n) * 16,
    };
    Some(mr.sge(..len.min(mr.len())))
}

fn capacities(b: &mut Bytes<'_>) -> QpCap {
    QpCap {
        send_wr: size(b),
        recv_wr: size(b),
        send_sge: u32::from(b.byte() % 34),
        recv_sge: u32::from(b.byte() % 34),
        inline: u32::from(b.short() % 1030),
    }
}

fn group(b: &mut Bytes<'_>) -> Gid {
    let last = b.byte();
    match b.byte() % 3 {
        0 => Gid([0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]),
        1 => Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, last]),
        _ => Gid([last; 16]),
    }
}

fn address(b: &mut Bytes<'_>) -> AhAttr {
    let dgid = match b.byte() {
        host @ 0..2 => Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, host + 1]),
        host @ 2..4 => Gid([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host - 1]),
        _ => group(b),
    };
    AhAttr {
        dgid,
        sgid_index: u16::from(b.byte() % 3),
        port: if b.byte() < 200 { 1 } else { 0 },
        traffic_class: b.byte(),
        hop_limit: b.byte(),
        flow_label: u32::from(b.short()) << b.below(17),
        ..AhAttr::default()
    }
}

/// Some attributes, some of them wrong.
fn attributes(b: &mut Bytes<'_>) -> QpAttr {
    let mut attr = match QpState::from_raw(b.byte() % 8) {
        Some(state) => QpAttr::to(state),
        None => QpAttr::default(),
    };
    let chosen = u32::from(b.short()) | u32::from(b.byte()) << 16;
    let is_chosen = |n: u32| chosen >> n & 1 != 0;
    if is_chosen(0) {
        attr = attr.port(b.pick(&[1, 0, 2]));
    }
    if is_chosen(1) {
        attr = attr.pkey_index(u16::from(b.pick(&[0u8, 1])));
    }
    if is_chosen(2) {
        attr = attr.access(Access::from_bits_retain(u32::from(b.byte())));
    }
    if is_chosen(3) {
        attr = attr.ah(address(b));
    }
    if is_chosen(4) {
        attr = attr.path_mtu(b.pick(&[Mtu::B1024, Mtu::B256, Mtu::B4096]));
    }
    if is_chosen(5) {
        attr = attr.dest_qpn(u32::from(b.byte()) << b.below(25));
    }
    if is_chosen(6) {
        attr = attr.rq_psn(u32::from(b.byte()) << b.below(25));
    }
    if is_chosen(7) {
        attr = attr.max_dest_rd_atomic(b.byte());
    }
    if is_chosen(8) {
        attr = attr.min_rnr_timer(b.byte() % 40);
    }
    if is_chosen(9) {
        attr = attr.sq_psn(u32::from(b.byte()) << b.below(25));
    }
    if is_chosen(10) {
        attr = attr.timeout(b.byte() % 40);
    }
    if is_chosen(11) {
        attr = attr.retry_cnt(b.byte() % 9);
    }
    if is_chosen(12) {
        attr = attr.rnr_retry(b.byte() % 9);
    }
    if is_chosen(13) {
        attr = attr.max_rd_atomic(b.byte());
    }
    if is_chosen(14) {
        attr = attr.qkey(u32::from(b.byte()));
    }
    if is_chosen(15) {
        attr = attr.sqd_notify(true);
    }
    if is_chosen(16) {
        attr = attr.cap(capacities(b));
    }
    if is_chosen(17) {
        attr = attr.rate_limit(1);
    }
    if is_chosen(18) {
        attr = attr.alt(Box::default());
    }
    if is_chosen(19)
        && let Some(state) = QpState::from_raw(b.byte() % 8)
    {
        attr = attr.cur_state(state);
    }
    attr
}
