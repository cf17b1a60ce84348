//! The test kit of the simulation: what it does wrong on purpose it does as said, and no more; what it shows of a
//! failure is there.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

#[path = "kit/death.rs"]
mod death;
#[path = "kit/faults.rs"]
mod faults;
#[path = "kit/late.rs"]
mod late;
#[path = "kit/picture.rs"]
mod picture;
#[path = "kit/taps.rs"]
mod taps;

use softroce::prelude::*;
use softroce::sim::{Link, Sim};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// One end of a connection.
struct Side {
    qp: QueuePair,
    cq: CompletionQueue,
    rcq: CompletionQueue,
    pd: ProtectionDomain,
    ctx: Context,
}

impl Side {
    fn new(ctx: &Context, kind: QpType) -> Self {
        let pd = ctx.alloc_pd().unwrap();
        let (cq, rcq) = (ctx.create_cq(64).unwrap(), ctx.create_cq(64).unwrap());
        let qp = pd.create_qp(kind, &cq).recv_cq(&rcq).build().unwrap();
        Self { qp, cq, rcq, pd, ctx: ctx.clone() }
    }

    fn memory(&self, len: usize) -> MemoryRegion {
        self.pd.alloc_mr(len, Access::REMOTE | Access::MW_BIND).unwrap()
    }

    #[track_caller]
    fn post(&self, wr: SendWr<'_>) {
        self.qp.post_send(wr).unwrap();
    }

    /// The next completion of the send queue: number and status.
    #[track_caller]
    fn sent(&self) -> (u64, WcStatus) {
        let wc = self.cq.wait(LONG).unwrap();
        (wc.wr_id, wc.status)
    }

    /// The next completion of the receive queue.
    #[track_caller]
    fn received(&self) -> (u64, WcStatus) {
        let wc = self.rcq.wait(LONG).unwrap();
        (wc.wr_id, wc.status)
    }

    #[track_caller]
    fn done(&self, wr: SendWr<'_>) {
        self.post(wr);
        assert_eq!(self.sent().1, WcStatus::Success);
    }

    fn state(&self) -> QpState {
        self.qp.state().unwrap()
    }
}

fn connect([a, b]: [&Context; 2], kind: QpType, over: &QpAttr) -> [Side; 2] {
    let [x, y] = [a, b].map(|ctx| Side::new(ctx, kind));
    x.qp.connect_with(&y.qp.endpoint(), over.clone()).unwrap();
    y.qp.connect_with(&x.qp.endpoint(), over.clone()).unwrap();
    [x, y]
}

/// Two hosts, and a reliable connection between them.
fn pair(sim: &Sim) -> [Side; 2] {
    let [a, b] = sim.hosts(Link::default());
    connect([&a, &b], QpType::Rc, &QpAttr::default())
}
