//! A child of `fork(2)`: what it inherited refuses it, and leaves the parent alone; it can open devices of its own.

#![cfg(all(feature = "udp", target_os = "linux"))]
#![expect(unsafe_code, reason = "forks, and waits for the child")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

#[path = "common/skip.rs"]
mod skip;

use std::panic::{AssertUnwindSafe, catch_unwind};

use softroce::prelude::*;
use softroce::sim::Sim;

const ENODEV: i32 = 19;
const LONG: Duration = Duration::from_secs(20);

/// A queue pair that is connected to itself, and what belongs to it.
struct Device {
    qp: QueuePair,
    mw: MemoryWindow,
    mr: MemoryRegion,
    srq: SharedReceiveQueue,
    channel: CompChannel,
    cq: CompletionQueue,
    pd: ProtectionDomain,
    ctx: Context,
}

impl Device {
    fn open() -> Result<Self> {
        let ctx = Context::open("soft:lo")?;
        let pd = ctx.alloc_pd()?;
        let channel = ctx.create_comp_channel()?;
        let cq = ctx.cq_builder(16).channel(&channel).build()?;
        let srq = pd.create_srq(4, 1)?;
        let mr = pd.alloc_mr(4096, Access::REMOTE)?;
        let mw = pd.alloc_mw(MwType::Type2)?;
        let qp = pd.create_qp(QpType::Rc, &cq).srq(&srq).build()?;
        qp.connect(&qp.endpoint())?;
        Ok(Self { qp, mw, mr, srq, channel, cq, pd, ctx })
    }

    /// Bytes go from one half of the memory to the other.
    fn works(&self, byte: u8) {
        self.mr.fill(0..2048, byte);
        let to = self.mr.remote().at(2048);
        self.qp.post_send(SendWr::write(1, self.mr.sge(..2048), to)).unwrap();
        self.cq.wait(LONG).unwrap().ok().unwrap();
        assert_eq!(self.mr.to_vec(2048..4096), [byte; 2048]);
    }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T>) {
    let e = result.unwrap_err();
    assert_eq!(e.errno(), Some(ENODEV), "{e}");
    assert!(e.to_string().contains("child"), "{e}");
}

/// All of it in the child: what it inherited, and a device of its own.
fn in_child(device: Device, sim: &Sim, simulated: &Context, idle: &CompletionQueue) {
    let Device { qp, mw, mr, srq, channel, cq, pd, ctx } = device;
    refused(qp.post_send(SendWr::send(1, ())));
    refused(qp.post_recv(RecvWr::new(1, ())));
    refused(srq.post_recv([RecvWr::new(1, ())]));
    refused(srq.set_limit(1));
    refused(qp.modify(&QpAttr::to(QpState::Err)));
    refused(qp.query());
    refused(cq.poll(&mut [WorkCompletion::default()]));
    refused(cq.wait(LONG));
    refused(cq.arm(false));
    refused(cq.resize(32));
    assert_eq!(cq.drain(), []);
    refused(channel.wait(LONG));
    refused(channel.fd());
    refused(ctx.wait_event(LONG));
    refused(ctx.events_fd());
    refused(ctx.port(1));
    refused(ctx.counters(1));
    refused(ctx.alloc_pd());
    refused(ctx.create_cq(1));
    refused(pd.create_srq(1, 1));
    refused(pd.alloc_mr(64, Access::LOCAL));
    refused(pd.alloc_mw(MwType::Type1));
    refused(pd.create_qp(QpType::Rc, &cq).build());
    refused(simulated.alloc_pd());
    refused(idle.wait(LONG));
    assert!(catch_unwind(AssertUnwindSafe(|| sim.settle())).is_err());
    // Destructors do nothing.
    drop((qp, mw, mr, srq, channel, cq, pd, ctx));

    let own = Device::open().unwrap();
    own.works(3);
    own.works(4);
}

#[test]
fn a_child_is_refused_and_opens_its_own() {
    let device = match Device::open() {
        Ok(device) => device,
        Err(e) => return skip::skip(e.to_string()),
    };
    device.works(1);
    let sim = Sim::new(1);
    let [simulated] = sim.hosts(softroce::sim::Link::default());
    let idle = simulated.create_cq(1).unwrap();
    // SAFETY: the child uses what the C library keeps in order across a fork, such as its allocator, and this library.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // It must not hang: the signal would end it.
        // SAFETY: sets a timer.
        unsafe { libc::alarm(60) };
        let done = catch_unwind(AssertUnwindSafe(|| in_child(device, &sim, &simulated, &idle)));
        // SAFETY: ends the child without running what belongs to the parent.
        unsafe { libc::_exit(if done.is_ok() { 0 } else { 1 }) };
    }
    // The parent's goes on meanwhile, and afterwards.
    device.works(2);
    let mut status = 0;
    // SAFETY: the child is ours, and `status` is there for the call.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child has failed, or was ended by a signal");
    device.works(5);
    let counters = device.ctx.counters(1).unwrap();
    assert_eq!((counters["drop_no_qp"], counters["local_ack_timeout_err"]), (0, 0));
}
