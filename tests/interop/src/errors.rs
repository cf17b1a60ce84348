//! What must fail, and how: the statuses of both sides side by side. And connections whose PSNs wrap.

use std::time::{Duration, Instant};

use crate::Res;
use crate::end::{Conn, Done, End, Lent, Op, Post, REMOTE};
use crate::matrix::{By, Cell, Fault, MTU, Row};
use crate::relay::{Class, Faults, Relay, Rule};
use crate::scenario::{Bench, LONG, mtu, ok, patient};

/// Statuses, with the numbers of verbs.
const LOC_LEN: u32 = 1;
const LOC_QP_OP: u32 = 2;
const FLUSHED: u32 = 5;
const REM_INV_REQ: u32 = 9;
const REM_ACCESS: u32 = 10;
const REM_OP: u32 = 11;
const RETRY: u32 = 12;
const RNR_RETRY: u32 = 13;

/// Places in memory.
const FROM: usize = 0x1_0000;
const TO: usize = 0x20_0000;

const READ: u32 = 4;
const WRITE: u32 = 2;
const LOCAL: u32 = 1;

type Scenario = fn(&mut Bench<'_>) -> Res<()>;

/// A scenario, its name, and how the connection is set up.
struct Case {
    name: &'static str,
    conn: fn(Conn) -> Conn,
    psn: u32,
    row: Row,
    size: usize,
    run: Scenario,
}

const PLAIN: Case =
    Case { name: "", conn: |c| c, psn: 0x1234, row: Row::Write, size: 64, run: |_| Ok(()) };

/// Gives up soon, but not while an emulated machine is only slow.
fn hasty(conn: Conn) -> Conn {
    Conn { timeout: 15, retries: 3, ..conn }
}

#[rustfmt::skip]
const CASES: &[Case] = &[
    Case { name: "error write-wrong-rkey", run: |b| refused(b, Op::Write, Bad::Key), ..PLAIN },
    Case { name: "error read-wrong-rkey", run: |b| refused(b, Op::Read, Bad::Key), ..PLAIN },
    Case { name: "error atomic-wrong-rkey", run: |b| refused(b, Op::Faa { add: 1 }, Bad::Key), ..PLAIN },
    Case { name: "error write-out-of-range", run: |b| refused(b, Op::Write, Bad::Range), ..PLAIN },
    Case { name: "error read-out-of-range", run: |b| refused(b, Op::Read, Bad::Range), ..PLAIN },
    Case { name: "error write-without-right", run: |b| refused(b, Op::Write, Bad::Right(LOCAL | READ)), ..PLAIN },
    Case { name: "error read-without-right", run: |b| refused(b, Op::Read, Bad::Right(LOCAL | WRITE)), ..PLAIN },
    Case { name: "error atomic-without-right", run: |b| refused(b, Op::Faa { add: 1 }, Bad::Right(LOCAL | READ | WRITE)), ..PLAIN },
    Case { name: "error write-other-domain", run: |b| refused(b, Op::Write, Bad::Domain), ..PLAIN },
    Case { name: "error read-other-domain", run: |b| refused(b, Op::Read, Bad::Domain), ..PLAIN },
    Case { name: "error atomic-not-aligned", run: |b| refused(b, Op::Faa { add: 1 }, Bad::Alignment), ..PLAIN },
    Case { name: "error key-invalidated", run: invalidated, ..PLAIN },
    Case { name: "error send-too-long", run: too_long, row: Row::Send, ..PLAIN },
    Case { name: "error no-receive-then-one", run: late_receive, row: Row::Send, ..PLAIN },
    Case { name: "error no-receive", run: no_receive, conn: |c| Conn { rnr_retries: 2, ..c }, row: Row::Send, ..PLAIN },
    Case { name: "error no-answer", run: no_answer, conn: hasty, ..PLAIN },
    Case { name: "error peer-killed", run: killed, conn: hasty, size: 256 << 10, ..PLAIN },
    Case { name: "wrap send", run: wraps, psn: 0xff_fff0, row: Row::Send, size: (64 << 10) + 3, ..PLAIN },
    Case { name: "wrap write", run: wraps, psn: 0xff_fff0, row: Row::Write, size: (64 << 10) + 3, ..PLAIN },
    Case { name: "wrap read", run: wraps, psn: 0xff_fff0, row: Row::Read, size: (64 << 10) + 3, ..PLAIN },
    Case { name: "wrap atomic", run: wraps, psn: 0xff_fffe, row: Row::Faa, size: 8, ..PLAIN },
];

/// Names, each with who begins.
pub(crate) fn names() -> Vec<(String, usize, By)> {
    let mut names = Vec::new();
    for (i, case) in CASES.iter().enumerate() {
        for (by, who) in [(By::Us, "us"), (By::Kernel, "kernel")] {
            let ip = if is_v6(i, by) { "v6" } else { "v4" };
            names.push((format!("{} {who} {ip}", case.name), i, by));
        }
    }
    names
}

/// Takes turns.
fn is_v6(case: usize, by: By) -> bool {
    (case + usize::from(by == By::Kernel)) % 2 == 1
}

pub(crate) fn run(
    us: &mut dyn End,
    kernel: &mut dyn End,
    relay: &Relay,
    case: usize,
    by: By,
) -> Res<()> {
    let Case { conn, psn, row, size, run, .. } = CASES[case];
    relay.begin(MTU);
    us.reset()?;
    kernel.reset()?;
    let (a, b): (&mut dyn End, &mut dyn End) = match by {
        By::Us => (us, kernel),
        By::Kernel => (kernel, us),
    };
    let cell = Cell { row, by, v6: is_v6(case, by), mtu: MTU, size, fault: Fault::Clean };
    let mut bench = Bench::connect(a, b, relay, cell, [psn, psn], &conn(patient(mtu(MTU)?)))?;
    let result = run(&mut bench);
    relay.set(Faults::default());
    result
}

fn post(id: u64, op: Op, len: usize, remote: Lent) -> Post {
    Post { id, op, off: FROM, len, remote, dest: None }
}

/// The next completion has this status.
fn ends(who: &'static str, done: Option<Done>, id: u64, status: u32) -> Res<()> {
    match done {
        Some(done) if done.id == id && done.status == status => Ok(()),
        Some(done) => Err(format!(
            "{who}: request {} ends with status {}, wanted request {id} with {status}",
            done.id, done.status
        )),
        None => {
            Err(format!("{who}: no completion comes, wanted request {id} with status {status}"))
        }
    }
}

fn sent(bench: &mut Bench<'_>, id: u64, status: u32) -> Res<()> {
    let done = bench.a.sent(0, LONG)?;
    ends(bench.a.name(), done, id, status)
}

fn received(bench: &mut Bench<'_>, id: u64, status: u32) -> Res<()> {
    let done = bench.b.received(0, LONG)?;
    ends(bench.b.name(), done, id, status)
}

fn failed(end: &mut dyn End) -> Res<()> {
    let began = Instant::now();
    while !end.failed(0)? {
        if began.elapsed() > Duration::from_secs(5) {
            return Err(format!("{}: the queue pair is not in ERR", end.name()));
        }
    }
    Ok(())
}

/// What is wrong with a request for the peer's memory.
#[derive(Clone, Copy)]
enum Bad {
    Key,
    Range,
    /// The region has only these rights.
    Right(u32),
    Domain,
    Alignment,
}

/// The peer refuses it; what was posted behind it is flushed, and both queue pairs have failed. No byte has changed.
fn refused(bench: &mut Bench<'_>, op: Op, bad: Bad) -> Res<()> {
    let len = if matches!(op, Op::Faa { .. }) { 8 } else { 64 };
    let all = bench.b.lent();
    let at = |off: u64| Lent { addr: all.addr + off, ..all };
    let remote = match bad {
        Bad::Key => Lent { rkey: all.rkey ^ 0x5a, ..at(TO as u64) },
        Bad::Range => at((crate::end::MEMORY - len) as u64 + 8),
        Bad::Right(access) => bench.b.register(TO, 4096, access, false)?,
        Bad::Domain => bench.b.register(TO, 4096, REMOTE, true)?,
        Bad::Alignment => at(TO as u64 + 4),
    };
    let status = if matches!(bad, Bad::Alignment) { REM_INV_REQ } else { REM_ACCESS };
    bench.b.mark(TO, 256)?;
    bench.a.fill(FROM, len, 3)?;
    let posted = bench.a.post(0, &post(1, op, len, remote));
    if matches!((bad, bench.cell.by), (Bad::Alignment, By::Kernel)) {
        // It does not even take the request.
        let refused = matches!(&posted, Err(why) if why.contains("Invalid argument"));
        return if refused { Ok(()) } else { Err(format!("{posted:?}, wanted EINVAL")) };
    }
    posted?;
    sent(bench, 1, status)?;
    failed(bench.a)?;
    bench.a.post(0, &post(2, Op::Write, 8, at(TO as u64)))?;
    sent(bench, 2, FLUSHED)?;
    if matches!(bad, Bad::Key | Bad::Alignment) {
        let left = bench.b.bytes(TO, 256)?;
        if left.iter().any(|&byte| byte != crate::end::MARK) {
            return Err("memory has changed".into());
        }
    }
    failed(bench.b)
}

/// A window that a SEND has invalidated is closed.
fn invalidated(bench: &mut Bench<'_>) -> Res<()> {
    let window = bench.b.bind(0, 2, TO, 4096, REMOTE & !1)?;
    bench.a.fill(FROM, 64, 5)?;
    bench.a.post(0, &post(1, Op::Write, 64, window))?;
    sent(bench, 1, 0)?;
    bench.b.check(TO, 64, 5, 0)?;
    bench.b.recv(0, false, 9, TO + 8192, 64)?;
    bench.a.post(0, &post(2, Op::SendInv(window.rkey), 64, window))?;
    sent(bench, 2, 0)?;
    let done = bench.b.received(0, LONG)?;
    let done = ok(bench.b.name(), done)?;
    if done.inv != Some(window.rkey) {
        return Err(format!("invalidated key {:x?}, wanted {:x}", done.inv, window.rkey));
    }
    bench.a.post(0, &post(3, Op::Write, 64, window))?;
    sent(bench, 3, REM_ACCESS)
}

/// The receive is one byte shorter. By the standard an invalid request; rdma_rxe calls it an operational error.
fn too_long(bench: &mut Bench<'_>) -> Res<()> {
    let (at_a, at_b) = match bench.cell.by {
        By::Us => (REM_OP, LOC_QP_OP),
        By::Kernel => (REM_INV_REQ, LOC_LEN),
    };
    bench.b.recv(0, false, 7, TO, 63)?;
    bench.b.recv(0, false, 8, TO, 63)?;
    bench.a.post(0, &post(1, Op::Send, 64, Lent { addr: 0, rkey: 0 }))?;
    sent(bench, 1, at_a)?;
    received(bench, 7, at_b)?;
    received(bench, 8, FLUSHED)?;
    failed(bench.a)?;
    failed(bench.b)
}

/// It is told to try again until there is a receive.
fn late_receive(bench: &mut Bench<'_>) -> Res<()> {
    bench.a.fill(FROM, 64, 9)?;
    bench.a.post(0, &post(1, Op::Send, 64, Lent { addr: 0, rkey: 0 }))?;
    let began = Instant::now();
    while bench.relay.stats().rnr_naks < 2 {
        if began.elapsed() > LONG {
            return Err("no RNR NAK comes".into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    bench.b.mark(TO, 128)?;
    bench.b.recv(0, false, 7, TO, 64)?;
    sent(bench, 1, 0)?;
    received(bench, 7, 0)?;
    bench.b.check(TO, 64, 9, 0)
}

/// As often as it was told, and then no more.
fn no_receive(bench: &mut Bench<'_>) -> Res<()> {
    bench.a.post(0, &post(1, Op::Send, 64, Lent { addr: 0, rkey: 0 }))?;
    sent(bench, 1, RNR_RETRY)?;
    failed(bench.a)?;
    let sends = bench.relay.stats().named(bench.cell.by.dir(), "SEND");
    if sends == 3 { Ok(()) } else { Err(format!("{sends} sends for rnr_retry 2, wanted 3")) }
}

/// Nothing comes back.
fn no_answer(bench: &mut Bench<'_>) -> Res<()> {
    let silence = Some(bench.cell.by.dir().other());
    bench.relay.set(Faults { silence, ..Faults::default() });
    let remote = Lent { addr: bench.b.lent().addr + TO as u64, ..bench.b.lent() };
    bench.a.post(0, &post(1, Op::Write, 64, remote))?;
    bench.a.post(0, &post(2, Op::Send, 64, remote))?;
    sent(bench, 1, RETRY)?;
    sent(bench, 2, FLUSHED)?;
    failed(bench.a)?;
    let writes = bench.relay.stats().named(bench.cell.by.dir(), "WRITE");
    if writes == 4 { Ok(()) } else { Err(format!("{writes} WRITEs for retry_cnt 3, wanted 4")) }
}

/// In the middle of many messages the peer is no more.
fn killed(bench: &mut Bench<'_>) -> Res<()> {
    let len = bench.cell.size;
    let remote = Lent { addr: bench.b.lent().addr + TO as u64, ..bench.b.lent() };
    let count = 40;
    for id in 0..count {
        bench.a.post(0, &post(id, Op::Write, len, remote))?;
    }
    let began = Instant::now();
    while bench.relay.stats().packets < 100 {
        if began.elapsed() > LONG {
            return Err("nothing is under way".into());
        }
        std::hint::spin_loop();
    }
    bench.b.kill()?;
    let mut good = 0;
    loop {
        match bench.a.sent(0, LONG)? {
            Some(Done { status: 0, .. }) if good < count => good += 1,
            done => {
                ends(bench.a.name(), done, good, RETRY)?;
                break;
            }
        }
    }
    for id in good + 1..count {
        sent(bench, id, FLUSHED)?;
    }
    failed(bench.a)
}

/// PSNs pass the largest number, on a good link and where a packet behind it is lost.
fn wraps(bench: &mut Bench<'_>) -> Res<()> {
    bench.burst(1)?;
    bench.burst(2)?;
    let (from, class) = match bench.cell.row {
        Row::Read => {
            (bench.cell.by.dir().other(), Class::Response(softroce::wire::opcode::Position::Middle))
        }
        _ => (bench.cell.by.dir(), Class::Request),
    };
    let skip = if bench.cell.row == Row::Faa { 0 } else { 3 };
    bench.relay.set(Faults { rules: vec![Rule { from, class, skip }], ..Faults::default() });
    bench.burst(2)?;
    let stats = bench.relay.stats();
    if stats.again > 0 && stats.dropped == 1 {
        Ok(())
    } else {
        Err(format!("{} lost, {} sent again", stats.dropped, stats.again))
    }
}
