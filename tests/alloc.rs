//! The data path allocates nothing: once warm, no operation asks for memory, in no thread of the process.
//!
//! What is counted is the whole process. So this test is a program of its own: the usual harness allocates
//! when it starts a test, reports another, or finds that one takes long.

#![expect(unsafe_code, reason = "an allocator that counts")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

#[path = "common/skip.rs"]
mod skip;

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use softroce::prelude::*;
use softroce::sim::{Link, Sim};

/// The system's allocator, counting while it is told to.
struct Counting;

static COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
/// Where the first allocation came from that was one too many.
static CULPRIT: OnceLock<Backtrace> = OnceLock::new();
/// How many allocations are allowed at present.
static ALLOWED: AtomicU64 = AtomicU64::new(u64::MAX);

fn count() {
    if COUNTING.load(Relaxed) && ALLOCATIONS.fetch_add(1, Relaxed) == ALLOWED.load(Relaxed) {
        // To find out allocates as well.
        COUNTING.store(false, Relaxed);
        drop(CULPRIT.set(Backtrace::force_capture()));
    }
}

// SAFETY: all is the system allocator's; counting touches no memory but two atomics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const LONG: Duration = Duration::from_secs(60);

/// What a hundred rounds of an operation on a bad network may allocate. The simulated network makes room when
/// more packets are under way than ever before, and bad luck can bring that about at any time. Each round of
/// long messages loses a few packets, so an allocation for each loss or retry is far above.
const NEW_MAXIMA: u64 = 10;

#[track_caller]
fn allocates_nothing(what: &str, each: impl FnMut()) {
    allocates_at_most(0, what, each);
}

#[track_caller]
fn allocates_at_most(most: u64, what: &str, each: impl FnMut()) {
    ALLOWED.store(most, Relaxed);
    let n = allocations(each);
    ALLOWED.store(u64::MAX, Relaxed);
    let culprit = CULPRIT.get().map_or_else(String::new, ToString::to_string);
    assert!(n <= most, "{n} or more allocations in 100 rounds of {what}; number {n}:\n{culprit}");
}

/// Runs `each` often enough to be warm, then counts what a hundred more rounds allocate.
fn allocations(mut each: impl FnMut()) -> u64 {
    (0..300).for_each(|_| each());
    ALLOCATIONS.store(0, Relaxed);
    COUNTING.store(true, Relaxed);
    (0..100).for_each(|_| each());
    COUNTING.store(false, Relaxed);
    ALLOCATIONS.load(Relaxed)
}

struct Side {
    qp: QueuePair,
    cq: CompletionQueue,
    mr: MemoryRegion,
}

impl Side {
    fn new(ctx: &Context) -> Self {
        Self::of(ctx, QpType::Rc)
    }

    fn of(ctx: &Context, kind: QpType) -> Self {
        let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(64).unwrap());
        let qp = pd.create_qp(kind, &cq).build().unwrap();
        let mr = pd.alloc_mr(1 << 18, Access::REMOTE).unwrap();
        // A thread's first sleep at a queue makes room for the sleeper. It looks a while before that.
        assert_eq!(cq.wait(Duration::from_millis(50)), Err(Error::Timeout));
        Self { qp, cq, mr }
    }

    fn wait(&self) {
        self.cq.wait(LONG).unwrap().ok().unwrap();
    }

    fn poll(&self) {
        let mut one = [WorkCompletion::default()];
        while self.cq.poll(&mut one).unwrap() == 0 {
            std::hint::spin_loop();
        }
        one[0].ok().unwrap();
    }
}

fn connected([a, b]: [&Context; 2]) -> [Side; 2] {
    let (a, b) = (Side::new(a), Side::new(b));
    a.qp.connect(&b.qp.endpoint()).unwrap();
    b.qp.connect(&a.qp.endpoint()).unwrap();
    [a, b]
}

/// Every operation, small and of many packets, completed in the way that `get` does it.
fn every_operation([a, b]: &[Side; 2], how: &str, get: fn(&Side), most: u64) {
    let theirs = b.mr.remote();
    let rounds = |what: &str, each: &mut dyn FnMut()| {
        allocates_at_most(most, &format!("{what}, {how}"), each);
    };
    let one = |what: &str, wr: &dyn Fn() -> SendWr<'static>| {
        rounds(what, &mut || {
            a.qp.post_send(wr()).unwrap();
            get(a);
        });
    };
    for len in [8, 5000, 1 << 18] {
        let mine = a.mr.sge(..len);
        one(&format!("WRITE of {len}"), &|| SendWr::write(1, mine, theirs));
        one(&format!("READ of {len}"), &|| SendWr::read(1, mine, theirs));
        rounds(&format!("SEND of {len}"), &mut || {
            b.qp.post_recv(RecvWr::new(1, b.mr.sge(..))).unwrap();
            a.qp.post_send(SendWr::send(1, mine).imm(7)).unwrap();
            get(b);
            get(a);
        });
    }
    let word = a.mr.sge(..8);
    one("FETCH_ADD", &|| SendWr::fetch_add(1, word, theirs, 1));
    one("CAS", &|| SendWr::compare_swap(1, word, theirs, 0, 1));
    one("inline WRITE", &|| SendWr::write(1, inline(b"inline"), theirs));
    rounds("a batch of gathers", &mut || {
        let list = [a.mr.sge(..9), a.mr.sge(20..5000), a.mr.sge(7..8)];
        let wrs = (0..8).map(|id| {
            let wr = SendWr::write(id, &list, theirs);
            if id < 7 { wr.unsignaled() } else { wr }
        });
        a.qp.post_send(wrs).unwrap();
        get(a);
    });
}

/// What unreliable queue pairs do, small and large; datagrams to two destinations in turn.
fn unreliable(hosts: [&Context; 2], how: &str) {
    let [a, b] = hosts.map(|ctx| Side::of(ctx, QpType::Uc));
    a.qp.connect(&b.qp.endpoint()).unwrap();
    b.qp.connect(&a.qp.endpoint()).unwrap();
    let theirs = b.mr.remote();
    for len in [8, 50_000] {
        let mine = a.mr.sge(..len);
        allocates_nothing(&format!("UC SEND and WRITE of {len}, {how}"), || {
            b.qp.post_recv([RecvWr::new(1, b.mr.sge(..)), RecvWr::new(2, ())]).unwrap();
            a.qp.post_send([SendWr::send(1, mine), SendWr::write(2, mine, theirs).imm(1)]).unwrap();
            [&a, &a, &b, &b].into_iter().for_each(Side::wait);
        });
    }
    let [a, b] = hosts.map(|ctx| Side::of(ctx, QpType::Ud));
    let c = Side::of(hosts[0], QpType::Ud);
    for side in [&a, &b, &c] {
        side.qp.activate(1).unwrap();
    }
    // Of this process alone.
    let [_, b1, b2, b3] = std::process::id().to_be_bytes();
    let group = Gid::from(std::net::IpAddr::from([238, b1, b2, b3]));
    let ah = |attr: &AhAttr| a.qp.pd().create_ah(attr).unwrap();
    let ways = [&b, &c].map(|side| (ah(&side.qp.endpoint().ah()), side.qp.number()));
    b.qp.attach_mcast(group).unwrap();
    let all = ah(&AhAttr { dgid: group, ..AhAttr::default() });
    for len in [0, 4000] {
        allocates_nothing(&format!("datagrams of {len}, {how}"), || {
            for side in [&b, &b, &c] {
                side.qp.post_recv(RecvWr::new(1, side.mr.sge(..))).unwrap();
            }
            let wr = || SendWr::send(1, a.mr.sge(..len));
            let [(here, x), (there, y)] = &ways;
            let wrs = [wr().to(here, *x, 1), wr().to(there, *y, 1), wr().to(&all, 0, 1)];
            a.qp.post_send(wrs).unwrap();
            [&a, &a, &a, &b, &b, &c].into_iter().for_each(Side::wait);
        });
    }
}

const NAME: &str = "no_operation_allocates";

#[expect(clippy::print_stdout, reason = "it says what a test says")]
fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--list") {
        println!("{NAME}: test");
    } else if args.iter().any(|arg| !arg.starts_with('-') && !NAME.contains(arg.as_str())) {
        println!("{NAME} is not what was asked for");
    } else {
        no_operation_allocates();
        println!("test {NAME} ... ok");
    }
}

fn no_operation_allocates() {
    the_count_counts();
    a_crowd_at_a_lock();
    a_refused_request();
    in_a_simulation();
    in_a_simulation_with_losses();
    #[cfg(all(feature = "udp", target_os = "linux"))]
    {
        udp::by_polling();
        udp::by_waiting();
        udp::by_events_of_a_channel();
    }
}

#[cfg(all(feature = "udp", target_os = "linux"))]
mod udp {
    use super::*;

    /// Two devices on loopback addresses of their own.
    fn devices() -> Option<[Context; 2]> {
        let mut free = (1..2000).map(|n| {
            let [_, b, c, d] = (0x01_0000 + (std::process::id() * 7 + n) % 0x0e_fffe).to_be_bytes();
            Context::open(&format!("soft:udp=127.{b}.{c}.{d}"))
        });
        let mut next =
            || free.find(|opened| !opened.as_ref().is_err_and(|e| e.errno() == Some(98)));
        match (next(), next()) {
            (Some(a), Some(b)) => Some([a.unwrap(), b.unwrap()]),
            _ => {
                skip::skip("UDP port 4791 is taken at all addresses");
                None
            }
        }
    }

    pub(super) fn by_polling() {
        let Some([a, b]) = devices() else { return };
        every_operation(&connected([&a, &b]), "polling", Side::poll, 0);
    }

    pub(super) fn by_waiting() {
        let Some([a, b]) = devices() else { return };
        every_operation(&connected([&a, &b]), "waiting", Side::wait, 0);
        unreliable([&a, &b], "waiting");
    }

    pub(super) fn by_events_of_a_channel() {
        let Some([a, b]) = devices() else { return };
        let channel = a.create_comp_channel().unwrap();
        let cq = a.cq_builder(64).channel(&channel).build().unwrap();
        let pd = a.alloc_pd().unwrap();
        let qp = pd.create_qp(QpType::Rc, &cq).build().unwrap();
        let mr = pd.alloc_mr(64, Access::LOCAL).unwrap();
        let theirs = Side::new(&b);
        qp.connect(&theirs.qp.endpoint()).unwrap();
        theirs.qp.connect(&qp.endpoint()).unwrap();
        assert_eq!(channel.get_event(Duration::from_millis(50)).err(), Some(Error::Timeout));
        assert_eq!(cq.wait(Duration::from_millis(50)), Err(Error::Timeout));
        allocates_nothing("a WRITE whose completion is an event", || {
            cq.arm(false).unwrap();
            qp.post_send(SendWr::write(1, mr.sge(..), theirs.mr.remote())).unwrap();
            drop(channel.get_event(LONG).unwrap());
            cq.wait(LONG).unwrap().ok().unwrap();
        });
    }
}

fn in_a_simulation() {
    let [a, b] = Sim::new(1).hosts(Link::default());
    every_operation(&connected([&a, &b]), "waiting", Side::wait, 0);
    unreliable([&a, &b], "in a simulation");
}

fn in_a_simulation_with_losses() {
    let sim = Sim::new(1);
    let bad = Link { loss: 0.03, reorder: 0.02, duplicate: 0.02, ..Link::default() };
    let [a, b] = sim.hosts(bad);
    let pair = connected([&a, &b]);
    every_operation(&pair, "losing and waiting", Side::wait, NEW_MAXIMA);
    let counters = a.counters(1).unwrap();
    for name in
        ["rcvd_seq_err", "local_ack_timeout_err", "implied_nak_seq_err", "retransmitted_pkts"]
    {
        assert!(counters[name] > 10, "{name}: {counters:?}");
    }
}

/// parking_lot's table of waiting threads grows with the number of threads that ever waited for a lock, at
/// the moment when one waits for its first time. This makes it large enough for all that come later.
fn a_crowd_at_a_lock() {
    let (lock, all) = (parking_lot::Mutex::new(()), std::sync::Barrier::new(65));
    std::thread::scope(|scope| {
        let held = lock.lock();
        for _ in 0..64 {
            scope.spawn(|| {
                all.wait();
                drop(lock.lock());
            });
        }
        all.wait();
        // Time for most of them to fall asleep.
        (0..10_000).for_each(|_| std::thread::yield_now());
        drop(held);
    });
}

fn a_refused_request() {
    let [a, b] = Sim::new(1).hosts(Link::default());
    let [a, b] = connected([&a, &b]);
    allocates_nothing("refusals", || {
        let theirs = b.mr.remote();
        a.qp.post_send(SendWr::write(1, inline(&[0; 65]), theirs)).unwrap_err();
        a.qp.post_send(SendWr::fetch_add(1, a.mr.sge(..4), theirs, 1)).unwrap_err();
        a.qp.post_send(SendWr::read(1, a.mr.sge(..4), theirs).imm(1)).unwrap_err();
    });
}

fn the_count_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 100);
}
