//! Every limit that a device tells is one that it keeps: at it works, one beyond is refused by name.

use softroce::prelude::*;
use softroce::verbs::{AtomicCap, Cause, MemError, PortState};

use super::Bed;
use crate::testbed::{Pair, Side, Testbed};

const EINVAL: i32 = 22;

#[test]
fn sizes_of_a_queue_pair() {
    let Some(bed) = Bed::start() else { return };
    let [host, _] = bed.hosts();
    let (pd, cq) = (host.alloc_pd().unwrap(), host.create_cq(1).unwrap());
    let attr = host.attr().unwrap();
    let small = QpCap { send_wr: 1, recv_wr: 1, send_sge: 1, recv_sge: 1, inline: 0 };
    let make = |cap| pd.create_qp(QpType::Rc, &cq).cap(cap).build();
    let at =
        QpCap { send_sge: attr.max_sge, recv_sge: attr.max_sge, inline: attr.max_inline, ..small };
    let qp = make(at).unwrap();
    assert_eq!((qp.cap(), qp.query_init().cap), (at, at));
    make(QpCap { send_wr: attr.max_qp_wr, ..small }).unwrap();
    make(QpCap { recv_wr: attr.max_qp_wr, ..small }).unwrap();
    make(QpCap { recv_wr: 0, ..small }).unwrap();
    for (cap, name, max) in [
        (QpCap { send_wr: attr.max_qp_wr + 1, ..small }, "cap.send_wr", attr.max_qp_wr),
        (QpCap { recv_wr: attr.max_qp_wr + 1, ..small }, "cap.recv_wr", attr.max_qp_wr),
        (QpCap { send_sge: attr.max_sge + 1, ..small }, "cap.send_sge", attr.max_sge),
        (QpCap { recv_sge: attr.max_sge + 1, ..small }, "cap.recv_sge", attr.max_sge),
        (QpCap { inline: attr.max_inline + 1, ..small }, "cap.inline", attr.max_inline),
    ] {
        let e = make(cap).unwrap_err();
        assert_eq!(e.errno(), Some(EINVAL));
        let (got, max) = (u64::from(max) + 1, u64::from(max));
        assert_eq!(e.cause(), Some(&Cause::AttrRange { attr: name, got, max }));
        assert!(e.to_string().contains(name) && e.to_string().contains(&max.to_string()), "{e}");
    }
    assert!(make(QpCap { send_wr: 0, ..small }).is_err());
}

#[test]
fn the_largest_lists_and_inline_data_work() {
    let Some(bed) = Bed::start() else { return };
    let attr = bed.hosts()[0].attr().unwrap();
    let cap = QpCap {
        send_sge: attr.max_sge,
        recv_sge: attr.max_sge,
        inline: attr.max_inline,
        ..QpCap::default()
    };
    let Pair { a, b } = Pair::with(&bed, |qp| qp.cap(cap));
    let n = attr.max_sge as usize;
    let (from, to) = (a.memory(3 * n), b.memory(4 * n));
    for i in 0..n {
        from.write(3 * i, &[i as u8 + 1]);
    }
    let gather: Vec<Sge> = (0..n).map(|i| from.sge(3 * i..3 * i + 1)).collect();
    let scatter: Vec<Sge> = (0..n).map(|i| to.sge(4 * i..4 * i + 1)).collect();
    b.qp.post_recv(RecvWr::new(1, &scatter[..])).unwrap();
    a.done(SendWr::send(1, &gather[..]));
    b.received().ok().unwrap();
    assert!((0..n).all(|i| to.to_vec(4 * i..4 * i + 2) == [i as u8 + 1, 0]));
    let bytes = vec![7; attr.max_inline as usize];
    let to = b.memory(bytes.len());
    a.done(SendWr::write(2, inline(&bytes), to.remote()));
    assert_eq!(to.to_vec(0..bytes.len()), bytes);
}

#[test]
fn entries_of_a_completion_queue() {
    let Some(bed) = Bed::start() else { return };
    let [host, _] = bed.hosts();
    let max = host.attr().unwrap().max_cqe;
    let cq = host.create_cq(max).unwrap();
    assert!(cq.depth() >= max);
    let beyond = Cause::AttrRange { attr: "cqe", got: u64::from(max) + 1, max: u64::from(max) };
    assert_eq!(host.create_cq(max + 1).unwrap_err().cause(), Some(&beyond));
    assert_eq!(cq.resize(max + 1).unwrap_err().cause(), Some(&beyond));
    cq.resize(1).unwrap();
}

#[test]
fn reads_and_atomics_in_flight() {
    let Some(bed) = Bed::start() else { return };
    let attr = bed.hosts()[0].attr().unwrap();
    let most = u8::try_from(attr.max_qp_rd_atom).unwrap();
    assert_eq!(u32::from(most), attr.max_qp_init_rd_atom);
    let over = QpAttr::default().max_rd_atomic(most).max_dest_rd_atomic(most);
    let choose = |ctx| Side::with(ctx, |qp| qp.depth(256, 1));
    let Pair { a, b } = Pair::connect(choose(bed.hosts()[0]), choose(bed.hosts()[1]), &over);
    let (mine, theirs) = (a.memory(8 * 200), b.memory(8));
    let add =
        |i: usize| SendWr::fetch_add(i as u64, mine.sge(8 * i..8 * i + 8), theirs.remote(), 1);
    a.qp.post_send((0..200).map(add)).unwrap();
    for i in 0..200 {
        assert_eq!(a.sent().ok().unwrap().wr_id, i);
        let result = mine.load(8 * i as usize, std::sync::atomic::Ordering::Acquire);
        assert_eq!(result, i);
    }
    // One beyond is refused when it is asked for: see the ranges of states.
}

#[test]
fn bytes_of_a_message() {
    let Some(bed) = Bed::start() else { return };
    let [a, b] = bed.hosts().map(Side::new);
    // Nobody answers, so what is accepted is not carried through.
    a.qp.connect_with(&b.qp.endpoint(), QpAttr::default().timeout(0)).unwrap();
    let max = a.ctx.port(1).unwrap().max_msg_size;
    assert_eq!(max, 1 << 31);
    // Pages that are never touched cost nothing.
    let huge = a.memory((1 << 31) + 1);
    let too_long = |wr: SendWr<'_>, got: u64| {
        let e = a.qp.post_send(wr).unwrap_err();
        assert_eq!(e.errno(), Some(EINVAL));
        assert_eq!(e.cause(), Some(&Cause::MessageTooLong { got, max: u64::from(max) }));
    };
    let nowhere = RemoteSlice { addr: 0, rkey: 0 };
    too_long(SendWr::write(1, huge.sge(..), nowhere), (1 << 31) + 1);
    too_long(SendWr::read(1, huge.sge(..), nowhere), (1 << 31) + 1);
    let halves = [huge.sge(..1 << 30), huge.sge(..(1 << 30) + 1)];
    too_long(SendWr::send(1, &halves), (1 << 31) + 1);
    let several = [huge.sge(..1 << 31); 4];
    too_long(SendWr::send(1, &several), 1 << 33);
    a.post(SendWr::send(2, huge.sge(..1 << 31)));
    a.qp.modify(&QpAttr::to(QpState::Err)).unwrap();
    assert_eq!(a.sent().wr_id, 2);
}

#[test]
#[expect(unsafe_code, reason = "memory of the program's own is registered by unsafe functions")]
fn keys_for_regions_and_windows() {
    let Some(bed) = Bed::start() else { return };
    let [host, _] = bed.hosts();
    let attr = host.attr().unwrap();
    assert_eq!(attr.max_mr, attr.max_mw);
    let pd = host.alloc_pd().unwrap();
    let mut bytes = vec![0_u8; 64];
    let ptr = bytes.as_mut_ptr();
    // SAFETY: `bytes` outlives the regions and is not looked at.
    let register = || unsafe { pd.reg_mr(ptr, 64, Access::LOCAL) };
    let mut regions: Vec<_> = (0..attr.max_mr - 1).map(|_| register().unwrap()).collect();
    let window = pd.alloc_mw(MwType::Type2).unwrap();
    let full = Cause::Memory(MemError::TableFull { max: attr.max_mr });
    let e = register().unwrap_err();
    assert_eq!((e.errno(), e.cause()), (Some(12), Some(&full)));
    assert_eq!(pd.alloc_mw(MwType::Type2).unwrap_err().cause(), Some(&full));
    drop(window);
    regions.push(register().unwrap());
    assert!(register().is_err());
    regions.pop();
    register().unwrap();
}

#[test]
fn what_a_device_tells_of_itself() {
    let Some(bed) = Bed::start() else { return };
    let [a, b] = bed.hosts();
    let attr = a.attr().unwrap();
    assert_ne!(attr.node_guid, 0);
    assert_ne!(attr.node_guid, b.attr().unwrap().node_guid);
    assert_eq!((attr.node_guid, attr.sys_image_guid), (a.device().guid, a.device().guid));
    assert_eq!((attr.ports, attr.max_pkeys), (1, 1));
    assert_eq!(attr.atomic_cap, AtomicCap::Global);
    assert!(attr.memory_windows && attr.timestamps && !attr.xrc);
    let port = a.port(1).unwrap();
    assert_eq!((port.state, port.lid), (PortState::Active, 0));
    assert_eq!((port.active_mtu, port.max_mtu), (Mtu::B4096, Mtu::B4096));
    assert!(port.speed_mbps > 0);
    let gids = a.gids().unwrap();
    assert_eq!(gids.len(), port.gid_len as usize);
    assert!(gids.iter().enumerate().all(|(i, g)| usize::from(g.index) == i && g.port == 1));
    assert!(gids[0].gid.ip().is_some_and(|ip| ip.is_ipv4()));
    assert_eq!(a.pkey(1, 0), Ok(0xffff));
    for e in [
        a.port(2).map(drop).unwrap_err(),
        a.port(0).map(drop).unwrap_err(),
        a.pkey(2, 0).map(drop).unwrap_err(),
        a.pkey(1, 1).map(drop).unwrap_err(),
        a.counters(2).map(drop).unwrap_err(),
    ] {
        assert_eq!(e.errno(), Some(EINVAL), "{e}");
    }
    let last = gids.len() as u16;
    let (pd, cq) = (a.alloc_pd().unwrap(), a.create_cq(1).unwrap());
    let e = pd.create_qp(QpType::Rc, &cq).gid_index(last).build().unwrap_err();
    let max = u64::from(last) - 1;
    assert_eq!(e.cause(), Some(&Cause::AttrRange { attr: "sgid_index", got: max + 1, max }));
    let qp = pd.create_qp(QpType::Rc, &cq).gid_index(last - 1).build().unwrap();
    assert_eq!(qp.endpoint().gid, gids[usize::from(last) - 1].gid);
}

#[test]
fn many_small_objects() {
    let Some(bed) = Bed::start() else { return };
    let [host, _] = bed.hosts();
    let pds: Vec<_> = (0..2000).map(|_| host.alloc_pd().unwrap()).collect();
    let cqs: Vec<_> = (0..2000).map(|_| host.create_cq(1).unwrap()).collect();
    let qps: Vec<_> = pds
        .iter()
        .zip(&cqs)
        .map(|(pd, cq)| pd.create_qp(QpType::Rc, cq).depth(1, 1).build().unwrap())
        .collect();
    let mut numbers: Vec<u32> = qps.iter().map(QueuePair::number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 2000);
    drop((pds, cqs));
    drop(qps);
}
