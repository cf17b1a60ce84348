//! Memory that goes while it is read or written.

use super::pair::{Pair, Setup};
use crate::engine::counters::Counter as C;
use crate::engine::event::AsyncEvent;
use crate::engine::qp::attr::QpState;
use crate::engine::status::WcStatus::{LocProt, RemAccess, Success, WrFlush};
use crate::mem::{Access, IovaChoice, Region, Registered};
use crate::queue::{SendOp, SendWqe};
use crate::time::Duration;
use std::sync::Arc;

/// A region of its own on a side, and its keys.
fn extra(p: &mut Pair, side: usize, len: usize) -> (Arc<Region>, Registered) {
    let region = Region::alloc(len).unwrap();
    let s = &mut p.sides[side];
    let access = Access::REMOTE;
    let mr = s.engine.register(s.pd, region.clone(), IovaChoice::Allocate, access).unwrap();
    (region, mr)
}

fn wqe(op: SendOp, id: u64, mr: &Registered) -> SendWqe {
    SendWqe {
        wr_id: id,
        op,
        flags: crate::queue::SendFlags::SIGNALED,
        remote_addr: mr.iova,
        rkey: mr.rkey,
        ..SendWqe::default()
    }
}

/// Runs until `n` packets called `name` have been sent.
fn run_until(p: &mut Pair, name: &str, n: usize) {
    while p.log.iter().filter(|f| f.name == name).count() < n {
        assert!(p.step(), "it never comes");
    }
}

#[test]
fn deregistration_in_the_middle_of_a_read() {
    // Windows so small that the READ takes several round trips.
    let config: fn(&mut crate::engine::EngineConfig) = |c| {
        c.window = crate::engine::WindowConfig { initial: 10_000, max: 10_000, enabled: true };
    };
    let mut p = Pair::new(&Setup { config, ..Setup::default() });
    let (region, mr) = extra(&mut p, 1, 50_000);
    region.fill(0..50_000, 0x11);
    p.post(0, wqe(SendOp::Read, 1, &mr), &[p.sge(0, 0, 50_000)]);
    p.post(0, p.wqe(0, SendOp::Write, 2, 0), &[p.sge(0, 0, 8)]);
    run_until(&mut p, "RC_READ_RESP_FIRST", 6);
    let pd = p.sides[1].pd;
    p.sides[1].engine.deregister(pd, mr.lkey).unwrap();
    // What was read is that of before; nothing of after is.
    let before = p.log.len();
    region.fill(0..50_000, 0x22);
    p.run();
    assert_eq!(p.results(0), [(1, RemAccess), (2, WrFlush)]);
    assert!(!p.bytes(0, 0, 50_000).contains(&0x22));
    let late = p.log[before..].iter().filter(|f| f.to == 0 && f.name != "RC_ACK");
    assert_eq!(late.count(), 0, "nothing is answered from memory that is gone");
    let qpn = p.sides[1].face.qpn().raw();
    assert_eq!(p.sides[1].events, [AsyncEvent::QpAccessErr { qpn }]);
    assert_eq!((p.state(0), p.state(1)), (QpState::Err, QpState::Err));
    p.assert_quiet();
}

#[test]
fn a_receive_in_use_is_no_matter_of_a_read_whose_memory_goes() {
    let config: fn(&mut crate::engine::EngineConfig) = |c| {
        c.window = crate::engine::WindowConfig { initial: 10_000, max: 10_000, enabled: true };
    };
    let mut p = Pair::new(&Setup { config, timeout: 0, ..Setup::default() });
    let (_region, mr) = extra(&mut p, 1, 50_000);
    p.post_recv(1, 7, &[p.sge(1, 0, 4096)]);
    p.post(0, wqe(SendOp::Read, 1, &mr), &[p.sge(0, 0, 5000)]);
    p.post(0, p.wqe(0, SendOp::Send, 2, 0), &[p.sge(0, 0, 2048)]);
    // Of the SEND the first packet alone arrives.
    let mut wire = p.take_wire();
    assert_eq!(wire.len(), 3);
    wire.pop();
    for (meta, bytes) in wire {
        p.sides[1].engine.handle_datagram(p.now, &meta, &bytes);
    }
    let pd = p.sides[1].pd;
    p.sides[1].engine.deregister(pd, mr.lkey).unwrap();
    p.pump(1);
    p.run();
    assert_eq!(p.results(1), [(7, WrFlush)]);
    let qpn = p.sides[1].face.qpn().raw();
    assert_eq!(p.sides[1].events, [AsyncEvent::QpAccessErr { qpn }]);
    assert_eq!(p.results(0), [(1, RemAccess), (2, WrFlush)]);
}

#[test]
fn deregistration_between_a_read_and_its_answer() {
    let mut p = Pair::new(&Setup::default());
    let (_region, mr) = extra(&mut p, 1, 8192);
    p.post(0, p.wqe(0, SendOp::Read, 1, 0), &[p.sge(0, 0, 2000)]);
    p.post(0, wqe(SendOp::Read, 2, &mr), &[p.sge(0, 9000, 8192)]);
    p.post(0, p.wqe(0, SendOp::Read, 3, 0), &[p.sge(0, 0, 8)]);
    p.deliver_without_sending();
    let pd = p.sides[1].pd;
    p.sides[1].engine.deregister(pd, mr.lkey).unwrap();
    p.pump(1);
    p.run();
    // The READ before it is answered, that behind it is not.
    assert_eq!(p.names(0), ["RC_READ_RESP_FIRST", "RC_READ_RESP_LAST", "RC_ACK"]);
    assert_eq!(p.results(0), [(1, Success), (2, RemAccess), (3, WrFlush)]);
    assert_eq!(p.counter(1, C::RespRemoteAccessErrors), 1);
    p.assert_quiet();
}

#[test]
fn deregistration_in_the_middle_of_a_write() {
    let config: fn(&mut crate::engine::EngineConfig) = |c| {
        c.window = crate::engine::WindowConfig { initial: 10_000, max: 10_000, enabled: true };
    };
    let mut p = Pair::new(&Setup { config, ..Setup::default() });
    let (region, mr) = extra(&mut p, 1, 50_000);
    p.fill(0, 0, 50_000, 7);
    p.post(0, wqe(SendOp::Write, 1, &mr), &[p.sge(0, 0, 50_000)]);
    run_until(&mut p, "RC_WRITE_MIDDLE", 12);
    let pd = p.sides[1].pd;
    p.sides[1].engine.deregister(pd, mr.lkey).unwrap();
    region.fill(0..50_000, 0);
    p.run();
    assert_eq!(p.results(0), [(1, RemAccess)]);
    let mut got = vec![1; 50_000];
    region.read(0, &mut got);
    assert!(got.iter().all(|&b| b == 0), "nothing is written after deregistration");
    p.assert_quiet();
}

#[test]
fn deregistration_of_what_is_sent_or_read_into() {
    for op in [SendOp::Write, SendOp::Send, SendOp::Read] {
        let config: fn(&mut crate::engine::EngineConfig) = |c| {
            c.window = crate::engine::WindowConfig { initial: 10_000, max: 10_000, enabled: true };
        };
        let mut p = Pair::new(&Setup { config, timeout: 8, ..Setup::default() });
        let (region, mr) = extra(&mut p, 0, 50_000);
        p.post_recv(1, 1, &[p.sge(1, 0, 50_000)]);
        let sge = crate::mem::Sge { addr: mr.iova, length: 50_000, lkey: mr.lkey };
        p.post(0, p.wqe(0, op, 1, 0), &[sge]);
        p.run_for(Duration::from_micros(9));
        assert_eq!(p.results(0), []);
        let pd = p.sides[0].pd;
        p.sides[0].engine.deregister(pd, mr.lkey).unwrap();
        region.fill(0..50_000, 0);
        p.run();
        assert_eq!(p.results(0), [(1, LocProt)], "{op:?}");
        let mut got = vec![1; 50_000];
        region.read(0, &mut got);
        assert!(got.iter().all(|&b| b == 0));
        assert_eq!((p.state(0), p.state(1)), (QpState::Err, QpState::Rts));
        p.assert_quiet();
    }
}

#[test]
fn a_receive_whose_memory_is_gone() {
    let mut p = Pair::new(&Setup::default());
    let (_region, mr) = extra(&mut p, 1, 4096);
    let sge = crate::mem::Sge { addr: mr.iova, length: 4096, lkey: mr.lkey };
    p.post_recv(1, 1, &[sge]);
    p.post_recv(1, 2, &[sge]);
    let pd = p.sides[1].pd;
    p.sides[1].engine.deregister(pd, mr.lkey).unwrap();
    p.post(0, p.wqe(0, SendOp::Send, 1, 0), &[p.sge(0, 0, 8)]);
    p.run();
    assert_eq!(p.results(0), [(1, crate::engine::status::WcStatus::RemOp)]);
    assert_eq!(p.results(1), [(1, LocProt), (2, WrFlush)]);
}
