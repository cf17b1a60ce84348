//! Real sockets as a testbed: two devices of this process on loopback addresses of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::thread::{self, Thread};

use softroce::prelude::*;

use super::testbed::{LONG, Testbed};

mod annex;
mod atomics;
mod causes;
mod clean;
mod completions;
mod datagrams;
mod events;
mod failures;
mod lifetimes;
mod limits;
mod memory;
mod ops;
mod requests;
mod shared;
mod states;
mod threads;
mod unreliable;
mod windows;

/// Out of the host, from an address of the loopback interface.
#[test]
fn what_the_kernel_does_not_send_is_counted() {
    let Some(bed) = Bed::start() else { return };
    let ctx = bed.hosts()[0];
    let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(4).unwrap());
    let qp = pd.create_qp(QpType::Ud, &cq).build().unwrap();
    qp.activate(1).unwrap();
    let nowhere = "[::ffff:192.0.2.1]/1/1".parse::<QpEndpoint>().unwrap();
    let ah = pd.create_ah(&nowhere.ah()).unwrap();
    qp.post_send([1, 2].map(|id| SendWr::send(id, ()).to(&ah, 7, 1))).unwrap();
    for _ in 0..2 {
        cq.wait(LONG).unwrap().ok().unwrap();
    }
    let counters = ctx.counters(1).unwrap();
    assert_eq!((counters["send_err"], counters["port_send_errors"]), (2, 2));
    assert_eq!(counters["port_receive_errors"], 0);
}

pub(crate) struct Bed {
    hosts: [Context; 2],
    /// Nothing ever completes here.
    idle: CompletionQueue,
}

/// Wakes the thread that runs a task.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// `EADDRINUSE`.
const TAKEN: i32 = 98;

/// The next device of this process. Other processes look elsewhere, or find the address taken. Fails where
/// somebody holds all addresses.
pub(crate) fn open_free() -> Result<Context, String> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        // 127.16.0.0 to 127.255.255.255, a stretch for each process. Below it is what `soft:lo` takes.
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let at = std::process::id().wrapping_mul(2053).wrapping_add(n) % (0xf0_0000 - 2);
        let [_, b, c, d] = (0x10_0001 + at).to_be_bytes();
        match Context::open(&format!("soft:udp=127.{b}.{c}.{d}")) {
            Ok(ctx) => return Ok(ctx),
            Err(e) if e.to_string().contains("all addresses") => return Err(e.to_string()),
            Err(e) => assert_eq!(e.errno(), Some(TAKEN), "{e}"),
        }
    }
}

impl Bed {
    /// Two devices that reach each other.
    pub(crate) fn of(hosts: [Context; 2]) -> Self {
        let idle = hosts[0].create_cq(1).unwrap();
        Self { hosts, idle }
    }
}

impl Testbed for Bed {
    fn try_new() -> Result<Self, String> {
        Ok(Self::of([open_free()?, open_free()?]))
    }

    fn hosts(&self) -> [&Context; 2] {
        let [a, b] = &self.hosts;
        [a, b]
    }

    fn into_hosts(self) -> [Context; 2] {
        self.hosts
    }

    fn share(&self) {}

    fn pass_time(&self) {
        // A bounded sleep that ends early if there is something to see.
        let _ = self.idle.wait(Duration::from_millis(1));
    }

    fn block_on<T>(&self, f: impl Future<Output = T>) -> T {
        let mut f = std::pin::pin!(f);
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            match f.as_mut().poll(&mut TaskContext::from_waker(&waker)) {
                Poll::Ready(done) => return done,
                // Until it is woken, or for much longer than that can take.
                Poll::Pending => {
                    let sleep = Duration::from_secs(60);
                    thread::park_timeout(sleep);
                }
            }
        }
    }
}
