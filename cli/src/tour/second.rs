//! The second process: receives, lends its memory, and checks its half of it.

use std::io;
use std::net::{Ipv4Addr, TcpStream};
use std::process::ExitCode;

use softroce::prelude::*;

use super::Failure;
use super::layout::{Layout, check_source};
use super::plan::{Op, Row, plan};
use super::side::{Far, Link, Node, expect};
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
    let far = node.connect(&mut link)?;
    link.tell(&node.describe())?;
    for row in plan() {
        follow(&node, far, &mut link, row)?;
    }
    Ok(())
}

/// What is wrong, or nothing.
fn why<T>(result: &Result<T, Failure>) -> String {
    result.as_ref().err().map_or(String::new(), |Failure(why)| why.clone())
}

/// One row, in step with [`first::lead`](super::first).
fn follow(node: &Node, far: Far, link: &mut Link, row: Row) -> Result<(), Failure> {
    link.begin();
    let layout = Layout::new(row);
    let pattern = layout.pattern();
    let ready = prepare(node, link, &layout, &pattern);
    let keys = ready.iter().flatten().map(MemoryWindow::rkey).collect::<Vec<_>>();
    link.tell(&(why(&ready), keys.clone()))?;
    let windows = ready?;
    let received = receive(node, link, &layout, &keys);
    let theirs: Vec<u32> = link.hear()?;
    let verdict = received
        .and_then(|()| answer(node, far, link, &layout, &windows, &theirs))
        .and_then(|()| layout.check_target(&node.target, &expected(&layout, &pattern)))
        .and_then(|()| check_source(&node.source, &pattern));
    link.tell(&why(&verdict))?;
    verdict
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
            Op::WriteImm => Vec::new(),
            _ => node.scatter(layout, i),
        });
        let pieces: Vec<Vec<Sge>> = pieces.collect();
        let receives = pieces.iter().zip(0..).map(|(p, id)| RecvWr::new(id, &p[..]));
        node.qp.post_recv(receives)?;
    }
    if op != Op::SendInv {
        return Ok(Vec::new());
    }
    let windows = node.windows(layout)?;
    node.bind(link, layout, &windows)?;
    Ok(windows)
}

/// Takes the messages of a row as they come.
fn receive(node: &Node, link: &mut Link, layout: &Layout, keys: &[u32]) -> Result<(), Failure> {
    let row = layout.row;
    if !row.op.is_received() {
        return Ok(());
    }
    let opcode = if row.op == Op::WriteImm { WcOpcode::RecvWriteImm } else { WcOpcode::Recv };
    for i in 0..row.requests() {
        let wc = link.completion(&node.cq)?;
        expect(&wc, i, opcode)?;
        let imm = row.op.has_immediate().then(|| layout.immediate(i));
        let found = (wc.byte_len as usize, wc.imm, wc.invalidated_rkey);
        let wanted = (row.size, imm, keys.get(i).copied());
        if found != wanted {
            let what = "bytes, immediate and invalidated key";
            return Err(Failure::new(format!(
                "receive {i} has {found:?} as {what}, not {wanted:?}"
            )));
        }
    }
    Ok(())
}

/// What the second process does with windows: that they work, or no longer do, is seen from their other end.
fn answer(
    node: &Node,
    far: Far,
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
        Op::BindMw => {
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
fn expected(layout: &Layout, pattern: &[u8]) -> Vec<u8> {
    match layout.row.op {
        Op::Read | Op::ReadSge | Op::BindMw | Op::LocalInv => layout.untouched(),
        op if op.is_atomic() => {
            layout.values(layout.atomics(pattern).last().map(|last| last.after))
        }
        _ => layout.delivered(pattern),
    }
}
