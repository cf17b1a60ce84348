//! Who makes progress: a process is served while it does something else, what it owes leaves before it
//! ends, and one that has nothing to do is silent.
//!
//! Each test is two processes. The second is this test again, told by the environment to be the other side.

#![cfg(all(feature = "udp", target_os = "linux"))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

#[path = "common/process.rs"]
mod process;
#[path = "common/skip.rs"]
mod skip;

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::Ordering::{Acquire, Release};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use softroce::prelude::*;

use process::Running;

const LONG: Duration = Duration::from_secs(60);
/// Set in the second process: where the first one listens.
const PEER: &str = "SOFTROCE_TEST_PEER";

/// The stream to the first process, in the second.
fn second() -> Option<TcpStream> {
    let peer = std::env::var(PEER).ok()?;
    Some(bounded(TcpStream::connect(peer).unwrap()))
}

/// A stream on which nobody waits for ever.
fn bounded(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Starts the second process of test `name`.
fn start(name: &str) -> (Running, TcpStream) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]).env(PEER, at);
    let mut second = Running::start(&mut command);
    // It connects, or it ends.
    let mut fds = [PollFd::new(std::os::fd::AsFd::as_fd(&listener), PollFlags::POLLIN)];
    for _ in 0..600 {
        if poll(&mut fds, PollTimeout::from(100_u16)).unwrap() == 1 {
            return (second, bounded(listener.accept().unwrap().0));
        }
        assert!(
            second.child.try_wait().unwrap().is_none(),
            "the second process ended: {}",
            second.finish().stderr
        );
    }
    panic!("the second process does not come");
}

/// A queue pair that is connected with the other process's, and memory that it may use.
struct Side {
    qp: QueuePair,
    cq: CompletionQueue,
    mr: MemoryRegion,
    theirs: RemoteMr,
    ctx: Context,
    tcp: TcpStream,
}

impl Side {
    fn connect(mut tcp: TcpStream) -> Self {
        let ctx = Context::open("soft:lo").unwrap();
        let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(64).unwrap());
        let qp = pd.create_qp(QpType::Rc, &cq).build().unwrap();
        let mr = pd.alloc_mr(1 << 20, Access::REMOTE).unwrap();
        qp.post_recv(RecvWr::new(1, mr.sge(..64))).unwrap();
        let (peer, theirs) = oob::exchange(&mut tcp, &(qp.endpoint(), mr.remote())).unwrap();
        qp.connect(&peer).unwrap();
        oob::exchange(&mut tcp, &()).unwrap();
        Self { qp, cq, mr, theirs, ctx, tcp }
    }

    #[track_caller]
    fn done(&self, wr: SendWr<'_>) -> WorkCompletion {
        self.qp.post_send(wr).unwrap();
        self.cq.wait(LONG).unwrap().ok().unwrap()
    }
}

/// Whether `soft:lo` can be opened here at all.
fn possible() -> bool {
    match Context::open("soft:lo") {
        Ok(_) => true,
        // Somebody, such as rdma_rxe, holds the port at all addresses.
        Err(e) if e.errno() == Some(98) => {
            skip::skip(e);
            false
        }
        Err(e) => panic!("{e}"),
    }
}

/// Reads, writes and counts in the memory of a peer that is not looking.
fn use_memory_of(peer: &Side) {
    let Side { mr, theirs, .. } = peer;
    for i in 0..100_u64 {
        mr.store(0, i, Release);
        peer.done(SendWr::write(1, mr.sge(..8), theirs.at(64)));
        peer.done(SendWr::read(2, mr.sge(8..16), theirs.at(64)));
        assert_eq!(mr.load(8, Acquire), i);
        peer.done(SendWr::fetch_add(3, mr.sge(16..24), theirs.at(128), 1));
        assert_eq!(mr.load(16, Acquire), i);
    }
    peer.done(SendWr::read(4, mr.sge(..), *theirs));
}

#[test]
fn a_process_that_sleeps_in_read_is_served() {
    if let Some(tcp) = second() {
        let mut side = Side::connect(tcp);
        // Nothing of the library is called from here on.
        let mut end = [0];
        side.tcp.read_exact(&mut end).unwrap();
        assert_eq!(side.mr.load(128, Acquire), 100);
        return;
    }
    if !possible() {
        return;
    }
    let (second, tcp) = start("a_process_that_sleeps_in_read_is_served");
    let mut side = Side::connect(tcp);
    use_memory_of(&side);
    oob::send(&mut side.tcp, &0_u8).unwrap();
    second.finish().ok();
}

#[test]
fn a_process_that_computes_is_served() {
    if let Some(tcp) = second() {
        let side = Side::connect(tcp);
        // It computes until a word of its own memory says that it is over, and calls nothing.
        let mut n = 0_u64;
        while side.mr.load((1 << 20) - 8, Acquire) == 0 {
            for i in 0..1000 {
                n = std::hint::black_box(n.rotate_left(7) ^ i);
            }
        }
        assert_eq!(side.mr.load(128, Acquire), 100);
        return;
    }
    if !possible() {
        return;
    }
    let (second, tcp) = start("a_process_that_computes_is_served");
    let side = Side::connect(tcp);
    use_memory_of(&side);
    side.done(SendWr::write(5, inline(&1_u64.to_ne_bytes()), side.theirs.at((1 << 20) - 8)));
    second.finish().ok();
}

#[test]
fn the_last_ack_of_a_program_that_ends_reaches_its_peer() {
    if let Some(tcp) = second() {
        let side = Side::connect(tcp);
        // The message is taken by polling, after which an ACK may wait for an answer to travel with. There
        // is none: the program ends.
        let mut one = [WorkCompletion::default()];
        while side.cq.poll(&mut one).unwrap() == 0 {
            std::hint::spin_loop();
        }
        assert_eq!(one[0].ok().unwrap().opcode, WcOpcode::Recv);
        return;
    }
    if !possible() {
        return;
    }
    for _ in 0..50 {
        let (second, tcp) = start("the_last_ack_of_a_program_that_ends_reaches_its_peer");
        let side = Side::connect(tcp);
        side.done(SendWr::send(1, inline(b"good-bye")));
        second.finish().ok();
    }
}

#[test]
fn a_peer_that_is_killed_ends_in_an_error_and_not_in_a_hang() {
    if let Some(tcp) = second() {
        let mut side = Side::connect(tcp);
        let mut end = [0];
        // Until it is killed.
        let _ = side.tcp.read(&mut end);
        return;
    }
    if !possible() {
        return;
    }
    let (second, tcp) = start("a_peer_that_is_killed_ends_in_an_error_and_not_in_a_hang");
    let side = Side::connect(tcp);
    side.done(SendWr::write(1, inline(b"x"), side.theirs));
    let sqd = || QpAttr::to(QpState::Sqd);
    side.qp.modify(&sqd()).unwrap();
    side.qp.modify(&sqd().timeout(10).retry_cnt(3)).unwrap();
    side.qp.modify(&QpAttr::to(QpState::Rts)).unwrap();
    drop(second);
    side.qp.post_send(SendWr::write(2, inline(b"x"), side.theirs)).unwrap();
    let wc = side.cq.wait(LONG).unwrap();
    assert_eq!((wc.wr_id, wc.status), (2, WcStatus::RetryExc));
    assert_eq!(side.qp.state().unwrap(), QpState::Err);
}

/// Times that the threads of the NICs of this process went to sleep or were about to wait.
fn switches_of_background_threads() -> (usize, u64) {
    let mut threads = 0;
    let mut switches = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        // A thread may end while we look.
        let Ok(name) = std::fs::read_to_string(task.join("comm")) else { continue };
        if name.trim() != "softroce" {
            continue;
        }
        let Ok(status) = std::fs::read_to_string(task.join("status")) else { continue };
        let line = status.lines().find(|l| l.starts_with("voluntary_ctxt_switches")).unwrap();
        threads += 1;
        switches += line.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap();
    }
    (threads, switches)
}

#[test]
fn a_process_with_nothing_to_do_is_silent() {
    if let Some(tcp) = second() {
        let side = Side::connect(tcp);
        // Traffic, by polling and by waiting, and a queue that is armed.
        let channel = side.ctx.create_comp_channel().unwrap();
        let cq = side.ctx.cq_builder(4).channel(&channel).build().unwrap();
        cq.arm(false).unwrap();
        for _ in 0..200 {
            side.done(SendWr::write(1, side.mr.sge(..4096), side.theirs));
        }
        side.qp.post_send(SendWr::write(1, side.mr.sge(..8), side.theirs)).unwrap();
        while side.cq.poll(&mut [WorkCompletion::default()]).unwrap() == 0 {}
        oob::exchange(&mut &side.tcp, &()).unwrap();
        // The threads come to rest: they may still look on for a while, or nap while somebody polls.
        let pause = |ms: u16| poll(&mut [], PollTimeout::from(ms)).unwrap();
        pause(100);
        let (threads, before) = switches_of_background_threads();
        assert_eq!(threads, 1);
        pause(500);
        let (_, after) = switches_of_background_threads();
        // Naps of a millisecond would be hundreds.
        assert!(after - before <= 2, "{} wake-ups while nothing happened", after - before);
        oob::exchange(&mut &side.tcp, &()).unwrap();
        return;
    }
    if !possible() {
        return;
    }
    let (second, tcp) = start("a_process_with_nothing_to_do_is_silent");
    let side = Side::connect(tcp);
    oob::exchange(&mut &side.tcp, &()).unwrap();
    oob::exchange(&mut &side.tcp, &()).unwrap();
    second.finish().ok();
}
