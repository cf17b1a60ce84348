//! The second process: receives, lends its memory, and checks its half of it.

use std::io;
use std::net::{Ipv4Addr, TcpStream};
use std::process::ExitCode;

use softroce::prelude::*;

use super::Failure;
use super::grh;
use super::layout::{GRH, Layout, check_source};
use super::plan::{Op, Row, plan};
use super::side::{Far, LIMIT, LOW, Link, Node, SHARERS, expect};
use crate::output::{BAD_INPUT, complain};

/// The whole second process.
pub(super) fn run(device: &str) -> ExitCode {
    let mut line = String::new();
    let read = io::stdin().read_line(&mut line);
    let call = line.split_once(' ').and_then(|(port, token)| {
        Some((port.parse::<u16>().ok()?, token.trim().parse::<u64>().ok()?))
    });
    let (Ok(_), Some((port, token))) = (read, call) else {
        complain(format_args!("tour: --second is for `softroce tour` alone"));
        return ExitCode::from(BAD_INPUT);
    };
    match serve(device, port, token) {
        Ok(()) => ExitCode::SUCCESS,
        // The first process has been told, or is no more.
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve(device: &str, port: u16, token: u64) -> Result<(), Failure> {
    let mut link = Link::new(TcpStream::connect((Ipv4Addr::LOCALHOST, port))?, None)?;
    link.tell(&token)?;
    let opened = Node::open(device);
    link.tell(&why(&opened))?;
    let node = opened?;
    let far = node.connect(&mut link, true)?;
    link.tell(&node.describe())?;
    for row in plan(far.mtu, far.group.is_some()) {
        follow(&node, &far, &mut link, row)?;
    }
    Ok(())
}

/// What is wrong, or nothing.
fn why<T>(result: &Result<T, Failure>) -> String {
    result.as_ref().err().map_or(String::new(), |Failure(why)| why.clone())
}

/// One row, in step with [`first::lead`](super::first).
fn follow(node: &Node, far: &Far, link: &mut Link, row: Row) -> Result<(), Failure> {
    link.begin();
    let layout = Layout::new(row);
    let pattern = layout.pattern();
    let ready = prepare(node, link, &layout, &pattern);
    let keys = ready.iter().flatten().map(MemoryWindow::rkey).collect::<Vec<_>>();
    link.tell(&(why(&ready), keys.clone()))?;
    let windows = ready?;
    let received = receive(node, far, link, &layout, &keys);
    let theirs: Vec<u32> = link.hear()?;
    let verdict = received.and_then(|order| {
        answer(node, far, link, &layout, &windows, &theirs)?;
        check(node, far, &layout, &pattern, order)
    });
    link.tell(&why(&verdict))?;
    verdict?;
    if row.op != Op::BindMw1 {
        return Ok(());
    }
    let old = theirs.first().copied().unwrap_or_default();
    let new = link.hear()?;
    let verdict = rebound(node, far, link, &layout, old, new);
    link.tell(&why(&verdict))?;
    verdict
}

/// Compares all of the memory; `order` is the request whose message each receive got.
fn check(
    node: &Node,
    far: &Far,
    layout: &Layout,
    pattern: &[u8],
    order: Vec<usize>,
) -> Result<(), Failure> {
    let mut expected = expected(layout, pattern, order);
    if layout.row.op.is_datagram() {
        for i in 0..layout.row.requests() {
            let header = node.target.to_vec(layout.header(i));
            grh::check(node, far, layout, &header).map_err(|Failure(why)| {
                Failure::new(format!("the header of message {i}: {why}"))
            })?;
            expected[layout.header(i)].copy_from_slice(&header);
        }
    }
    let compared = layout.check_target(&node.target, &expected);
    if compared.is_err() && layout.row.op.is_unreliable() {
        let lost = layout.lost(&node.target, &expected);
        if lost > 0 {
            return Err(gone(layout, lost));
        }
    }
    compared.and_then(|()| check_source(&node.source, pattern))
}

/// Messages of an unreliable service have not come.
fn gone(layout: &Layout, lost: usize) -> Failure {
    let all = layout.row.requests();
    Failure::new(format!(
        "{lost} of {all} messages were lost on the way; the service is unreliable"
    ))
}

/// After the first window was bound anew: its old key is denied, the new one works.
fn rebound(
    node: &Node,
    far: &Far,
    link: &mut Link,
    layout: &Layout,
    old: u32,
    new: u32,
) -> Result<(), Failure> {
    let there = far.target.at(layout.slot(0).start as u64);
    let (wrong, right) = (node.gather(layout, 1), node.gather(layout, 0));
    let denied = SendWr::write(0, &wrong[..], RemoteSlice { rkey: old, ..there });
    node.spare.post_send(denied)?;
    match link.denied(&node.cq)? {
        WcStatus::RemAccess => {}
        status => {
            let what = "a WRITE with the key of a former binding";
            return Err(Failure::new(format!("{what} ended with {status:?}, not RemAccess")));
        }
    }
    node.qp.post_send(SendWr::write(1, &right[..], RemoteSlice { rkey: new, ..there }))?;
    expect(&link.completion(&node.cq)?, 1, WcOpcode::Write)
}

/// Memory, receives and windows for a row.
fn prepare(
    node: &Node,
    link: &mut Link,
    layout: &Layout,
    pattern: &[u8],
) -> Result<Vec<MemoryWindow>, Failure> {
    let op = layout.row.op;
    node.prepare(layout, pattern);
    if op.is_atomic()
        && let Some(first) = layout.atomics(pattern).first()
    {
        node.target.write(layout.slot(0).start, &first.before.to_ne_bytes());
    }
    if op.is_received() {
        // A WRITE with immediate data takes a receive, but brings its own address.
        let pieces = (0..layout.row.requests()).map(|i| match op {
            op if op.is_write_imm() => Vec::new(),
            _ => node.scatter(layout, i),
        });
        let pieces: Vec<Vec<Sge>> = pieces.collect();
        let receives = pieces.iter().zip(0..).map(|(p, id)| RecvWr::new(id, &p[..]));
        if op == Op::SendSrq {
            node.srq.post_recv(receives)?;
            node.srq.set_limit(LOW)?;
        } else {
            node.carrier(layout.row, 0).post_recv(receives)?;
        }
    }
    if op != Op::SendInv {
        return Ok(Vec::new());
    }
    let windows = node.windows(layout)?;
    node.bind(link, layout, &windows)?;
    Ok(windows)
}

/// Takes the messages of a row as they come; for each receive, the request that it was for.
fn receive(
    node: &Node,
    far: &Far,
    link: &mut Link,
    layout: &Layout,
    keys: &[u32],
) -> Result<Vec<usize>, Failure> {
    let row = layout.row;
    let mut order = Vec::new();
    if !row.op.is_received() {
        return Ok((0..row.requests()).collect());
    }
    let mut wcs = Vec::new();
    for i in 0..row.requests() {
        match link.completion(&node.cq) {
            Ok(wc) => wcs.push(wc),
            // Later messages have taken the receives of the missing ones: only the number is sure.
            Err(_) if row.op.is_unreliable() => return Err(gone(layout, row.requests() - i)),
            Err(e) => return Err(e),
        }
    }
    let mut sharers = [0; SHARERS];
    let opcode = if row.op.is_write_imm() { WcOpcode::RecvWriteImm } else { WcOpcode::Recv };
    for (receive, wc) in wcs.iter().enumerate() {
        expect(wc, receive, opcode)?;
        let sharer = node.sharers.iter().position(|qp| qp.number() == wc.qpn);
        let i = match sharer {
            Some(k) => {
                sharers[k] += 1;
                k + SHARERS * (sharers[k] - 1)
            }
            None => receive,
        };
        order.push(i);
        if node.carrier(row, i).number() != wc.qpn {
            return Err(Failure::new(format!("receive {receive} was for another queue pair")));
        }
        let imm = row.op.has_immediate().then(|| layout.immediate(i));
        let found = (wc.byte_len as usize, wc.imm, wc.invalidated_rkey);
        let front = if row.op.is_datagram() { GRH } else { 0 };
        let wanted = (front + row.size, imm, keys.get(i).copied());
        if found != wanted {
            let what = "bytes, immediate and invalidated key";
            return Err(Failure::new(format!(
                "receive {i} has {found:?} as {what}, not {wanted:?}"
            )));
        }
        if row.op.is_datagram() && (wc.src_qpn, wc.has_grh) != (far.ud.qpn, true) {
            return Err(Failure::new(format!("receive {i} tells another sender, or no header")));
        }
    }
    if row.op == Op::SendSrq {
        limit_reached(node)?;
    }
    Ok(order)
}

/// The shared receive queue has told that it was running low.
fn limit_reached(node: &Node) -> Result<(), Failure> {
    match node.ctx.wait_event(LIMIT) {
        Ok(Event::SrqLimit { srq }) if srq == node.srq.number() => Ok(()),
        Ok(event) => Err(Failure::new(format!("{event:?} came where SrqLimit should have"))),
        Err(e) => Err(Failure::new(format!("SrqLimit did not come: {e}"))),
    }
}

/// What the second process does with windows: that they work, or no longer do, is seen from their other end.
fn answer(
    node: &Node,
    far: &Far,
    link: &mut Link,
    layout: &Layout,
    windows: &[MemoryWindow],
    theirs: &[u32],
) -> Result<(), Failure> {
    let through = |i: usize, key: u32| RemoteSlice {
        rkey: key,
        ..far.target.at(layout.slot(i).start as u64)
    };
    match layout.row.op {
        // What is bound could not be bound again.
        Op::SendInv => node.bind(link, layout, windows),
        Op::BindMw | Op::BindMw1 => {
            for (i, &key) in theirs.iter().enumerate() {
                let from = node.gather(layout, i);
                node.qp.post_send(SendWr::write(i as u64, &from[..], through(i, key)))?;
                expect(&link.completion(&node.cq)?, i, WcOpcode::Write)?;
            }
            Ok(())
        }
        Op::LocalInv => {
            let from = node.gather(layout, 0);
            let key = theirs.first().copied().unwrap_or_default();
            node.qp.post_send(SendWr::write(0, &from[..], through(0, key)))?;
            match link.denied(&node.cq)? {
                WcStatus::RemAccess => Ok(()),
                status => {
                    let what = "a WRITE with an invalidated key";
                    Err(Failure::new(format!("{what} ended with {status:?}, not RemAccess")))
                }
            }
        }
        _ => Ok(()),
    }
}

/// What has to be in our target now.
fn expected(layout: &Layout, pattern: &[u8], order: Vec<usize>) -> Vec<u8> {
    match layout.row.op {
        Op::Read | Op::ReadSge | Op::BindMw | Op::BindMw1 | Op::LocalInv => layout.untouched(),
        op if op.is_atomic() => {
            layout.values(layout.atomics(pattern).last().map(|last| last.after))
        }
        _ => layout.delivered_as(pattern, order),
    }
}
