//! What a scenario runs on, and what all of them need: connected queue pairs, guarded memory, bytes to
//! recognise.

use softroce::prelude::*;
use softroce::sim::{Link, Sim};
use softroce::verbs::QpBuilder;

/// Much longer than anything here takes. In a simulation it costs nothing.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Two hosts and a network between them.
pub(crate) trait Testbed: Sized {
    /// Sets it up, or says why that cannot be done here.
    fn try_new() -> Result<Self, String>;
    /// The hosts, each a device of its own.
    fn hosts(&self) -> [&Context; 2];
    /// The hosts alone.
    fn into_hosts(self) -> [Context; 2];
    /// Lets several threads use it at the same time.
    fn share(&self);
    /// Lets something happen.
    fn pass_time(&self);
    /// Runs a task to its end.
    fn block_on<T>(&self, f: impl Future<Output = T>) -> T;

    /// Sets it up; `None` if it cannot be had here and may be skipped.
    fn start() -> Option<Self> {
        match Self::try_new() {
            Ok(bed) => Some(bed),
            Err(why) => {
                crate::skip::skip(why);
                None
            }
        }
    }

    /// Waits for something that no completion tells.
    #[track_caller]
    fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        for _ in 0..60_000 {
            if done() {
                return;
            }
            self.pass_time();
        }
        panic!("never happened: {what}");
    }
}

/// Two simulated hosts, on a good or a bad network.
pub(crate) struct SimBed<const LOSSY: bool> {
    sim: Sim,
    hosts: [Context; 2],
}

impl<const LOSSY: bool> Testbed for SimBed<LOSSY> {
    fn try_new() -> Result<Self, String> {
        let good = Link::default();
        let bad = Link { loss: 0.02, reorder: 0.02, duplicate: 0.02, ..good };
        let (seed, link) = if LOSSY { (2, bad) } else { (1, good) };
        let sim = Sim::new(seed);
        let hosts = sim.hosts(link);
        Ok(Self { sim, hosts })
    }

    fn hosts(&self) -> [&Context; 2] {
        self.hosts.each_ref()
    }

    fn into_hosts(self) -> [Context; 2] {
        self.hosts
    }

    fn share(&self) {
        self.sim.shared();
    }

    fn pass_time(&self) {
        self.sim.run_for(Duration::from_micros(50));
    }

    fn block_on<T>(&self, f: impl Future<Output = T>) -> T {
        self.sim.block_on(f)
    }
}

/// One end: a queue pair with a completion queue for each of its queues.
pub(crate) struct Side {
    pub(crate) qp: QueuePair,
    /// Of the send queue.
    pub(crate) cq: CompletionQueue,
    /// Of the receive queue.
    pub(crate) rcq: CompletionQueue,
    pub(crate) pd: ProtectionDomain,
    pub(crate) ctx: Context,
}

impl Side {
    /// With a queue pair in INIT.
    pub(crate) fn new(ctx: &Context) -> Self {
        Self::with(ctx, |builder| builder)
    }

    /// The same, with a queue pair of one's own choice.
    pub(crate) fn with(ctx: &Context, choose: impl FnOnce(QpBuilder) -> QpBuilder) -> Self {
        Self::of(ctx, QpType::Rc, choose)
    }

    /// With a queue pair of this type.
    pub(crate) fn of(
        ctx: &Context,
        kind: QpType,
        choose: impl FnOnce(QpBuilder) -> QpBuilder,
    ) -> Self {
        let pd = ctx.alloc_pd().unwrap();
        let (cq, rcq) = (ctx.create_cq(256).unwrap(), ctx.create_cq(256).unwrap());
        let qp = choose(pd.create_qp(kind, &cq).recv_cq(&rcq)).build().unwrap();
        Self { qp, cq, rcq, pd, ctx: ctx.clone() }
    }

    /// Posts one request.
    #[track_caller]
    pub(crate) fn post(&self, wr: SendWr<'_>) {
        self.qp.post_send(wr).unwrap();
    }

    /// The next completion of the send queue.
    #[track_caller]
    pub(crate) fn sent(&self) -> WorkCompletion {
        self.cq.wait(LONG).unwrap()
    }

    /// The next completion of the receive queue.
    #[track_caller]
    pub(crate) fn received(&self) -> WorkCompletion {
        self.rcq.wait(LONG).unwrap()
    }

    /// Posts a request and waits until it has succeeded.
    #[track_caller]
    pub(crate) fn done(&self, wr: SendWr<'_>) -> WorkCompletion {
        self.post(wr);
        self.sent().ok().unwrap()
    }

    /// Posts a request and waits for what becomes of it.
    #[track_caller]
    pub(crate) fn outcome(&self, wr: SendWr<'_>) -> WcStatus {
        self.post(wr);
        self.sent().status
    }

    /// Memory for everything.
    pub(crate) fn memory(&self, len: usize) -> MemoryRegion {
        self.pd.alloc_mr(len, Access::REMOTE | Access::MW_BIND).unwrap()
    }

    /// From here on gives up on a dead peer within a few milliseconds. Nothing may be under way.
    pub(crate) fn lose_patience(&self) {
        let sqd = || QpAttr::to(QpState::Sqd);
        self.qp.modify(&sqd()).unwrap();
        self.qp.modify(&sqd().timeout(8).retry_cnt(2)).unwrap();
        self.qp.modify(&QpAttr::to(QpState::Rts)).unwrap();
    }

    pub(crate) fn state(&self) -> QpState {
        self.qp.state().unwrap()
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        self.ctx.counters(1).unwrap()[name]
    }

    /// Waits until its device has counted something. A peer that gives up tells nothing of when: on a busy machine
    /// what it sent may still wait in a socket.
    #[track_caller]
    pub(crate) fn until_counted(&self, name: &str) {
        let idle = self.ctx.create_cq(1).unwrap();
        for _ in 0..60_000 {
            if self.counter(name) > 0 {
                return;
            }
            assert_eq!(idle.wait(Duration::from_millis(1)), Err(Error::Timeout));
        }
        panic!("never counted: {name}");
    }

    /// The next asynchronous event.
    #[track_caller]
    pub(crate) fn event(&self) -> Event {
        self.ctx.wait_event(LONG).unwrap()
    }
}

/// Two connected ends.
pub(crate) struct Pair {
    pub(crate) a: Side,
    pub(crate) b: Side,
}

impl Pair {
    pub(crate) fn new(bed: &impl Testbed) -> Self {
        Self::over(bed, &QpAttr::default())
    }

    /// With attributes of one's own choice, at both ends.
    pub(crate) fn over(bed: &impl Testbed, over: &QpAttr) -> Self {
        let [a, b] = bed.hosts().map(Side::new);
        Self::connect(a, b, over)
    }

    /// With queue pairs of one's own choice, at both ends.
    pub(crate) fn with(bed: &impl Testbed, choose: impl Fn(QpBuilder) -> QpBuilder) -> Self {
        let [a, b] = bed.hosts().map(|ctx| Side::with(ctx, &choose));
        Self::connect(a, b, &QpAttr::default())
    }

    pub(crate) fn connect(a: Side, b: Side, over: &QpAttr) -> Self {
        a.qp.connect_with(&b.qp.endpoint(), over.clone()).unwrap();
        b.qp.connect_with(&a.qp.endpoint(), over.clone()).unwrap();
        Self { a, b }
    }
}

/// The next completion, for scenarios of several threads. In a simulation that several threads drive, time passes
/// for one of them however long the scheduler keeps another from posting, so a timeout there says little.
#[track_caller]
pub(crate) fn next(cq: &CompletionQueue) -> WorkCompletion {
    for _ in 0..100_000 {
        match cq.wait(LONG) {
            Err(Error::Timeout) => std::thread::yield_now(),
            other => return other.unwrap(),
        }
    }
    panic!("nothing came");
}

/// Bytes that are recognised: another stretch for each seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Memory with guards at both ends, to notice what is written beside the target. The target is at an odd
/// address, so that no copy is of whole words.
pub(crate) struct Guarded {
    pub(crate) mr: MemoryRegion,
    len: usize,
}

impl Guarded {
    const GUARD: usize = 61;
    const MARK: u8 = 0xe7;

    pub(crate) fn new(side: &Side, len: usize) -> Self {
        let mr = side.memory(len + 2 * Self::GUARD);
        mr.fill(0..mr.len(), Self::MARK);
        Self { mr, len }
    }

    /// Everything between the guards.
    pub(crate) fn sge(&self) -> Sge {
        self.mr.sge(Self::GUARD..Self::GUARD + self.len)
    }

    /// The first byte between the guards.
    pub(crate) fn remote(&self) -> RemoteSlice {
        self.mr.remote().at(Self::GUARD as u64)
    }

    /// The first bytes between the guards, which must be all that has changed.
    #[track_caller]
    pub(crate) fn bytes(&self, len: usize) -> Vec<u8> {
        let mut all = self.mr.to_vec(0..self.mr.len());
        let behind = all.split_off(Self::GUARD + len);
        let bytes = all.split_off(Self::GUARD);
        assert!(all.iter().all(|&b| b == Self::MARK), "bytes before the target have changed");
        assert!(behind.iter().all(|&b| b == Self::MARK), "bytes behind the target have changed");
        bytes
    }
}
