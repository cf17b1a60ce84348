//! Real devices: their names, who shares them, and what is in the way of opening one.

use std::net::{IpAddr, UdpSocket};

use softroce::net::ROCE_PORT;
use softroce::prelude::*;
use softroce::verbs::Cause;
use softroce::{backend_status, devices, open};

use crate::testbed::{LONG, Pair, Side};
use crate::udp::open_free;

const ENODEV: i32 = 19;
const EINVAL: i32 = 22;
#[cfg(not(feature = "raw"))]
const EOPNOTSUPP: i32 = 95;
const EADDRINUSE: i32 = 98;
const EADDRNOTAVAIL: i32 = 99;

fn device() -> Option<Context> {
    open_free().map_err(crate::skip::skip).ok()
}

fn ip_of(ctx: &Context) -> IpAddr {
    ctx.gids().unwrap()[0].gid.ip().unwrap()
}

#[test]
fn names_that_open_nothing() {
    for (name, errno, words) in [
        ("soft:no-such-interface", ENODEV, &["no-such-interface", "soft:lo", "soft:udp="][..]),
        ("no-such-interface", ENODEV, &["no-such-interface", "soft:lo"]),
        ("soft:", ENODEV, &["soft:lo"]),
        ("", ENODEV, &["soft:lo"]),
        ("ibverbs:mlx5_0", ENODEV, &["soft:lo"]),
        ("soft:udp=banana", EINVAL, &["banana", "no IP address"]),
        ("soft:udp=", EINVAL, &["no IP address"]),
        ("soft:udp=fe80::1%nowhere0", EINVAL, &["nowhere0"]),
        ("soft:lo,gso=perhaps", EINVAL, &["gso=perhaps", "gso=on"]),
        ("soft:lo,colour=red", EINVAL, &["colour=red"]),
        // TEST-NET-3: nobody has it.
        ("soft:udp=203.0.113.77", EADDRNOTAVAIL, &["203.0.113.77", "ip address"]),
    ] {
        let e = Context::open(name).map(drop).unwrap_err();
        assert_eq!(e.errno(), Some(errno), "{name}: {e}");
        for word in words {
            assert!(e.to_string().contains(word), "{name}: {word:?} is not in \"{e}\"");
        }
        assert_eq!(matches!(e, Error::NoDevice(_)), errno == ENODEV, "{e:?}");
    }
}

#[cfg(not(feature = "raw"))]
#[test]
fn raw_devices_want_their_feature() {
    let e = Context::open("soft:raw=eth0,ip=10.0.0.5/24").map(drop).unwrap_err();
    assert_eq!(e.errno(), Some(EOPNOTSUPP));
    assert!(e.to_string().contains("feature \"raw\""), "{e}");
}

#[test]
fn which_there_are() {
    let list = devices().unwrap();
    assert!(list.iter().any(|d| d.name == "soft:lo"), "{list:?}");
    assert!(list.iter().all(|d| d.backend == Backend::Soft));
    backend_status(Backend::Soft).unwrap();
    let e = backend_status(Backend::Ibverbs).unwrap_err();
    assert_eq!(e.errno(), Some(ENODEV));
}

#[test]
fn an_address_that_is_taken() {
    let Some(ctx) = device() else { return };
    let ip = ip_of(&ctx);
    // Nothing is left of a device that was closed: the address is free at once.
    drop(ctx);
    let _holder = UdpSocket::bind((ip, ROCE_PORT)).unwrap();
    let e = Context::open(&format!("soft:udp={ip}")).map(drop).unwrap_err();
    assert_eq!(e.errno(), Some(EADDRINUSE));
    assert!(matches!(e.cause(), Some(Cause::Address { errno: EADDRINUSE, .. })), "{e:?}");
    let text = e.to_string();
    for word in ["ibv_open_device", "4791", &ip.to_string(), "this process", "127.0.0.0/8"] {
        assert!(text.contains(word), "{word:?} is not in \"{text}\"");
    }
}

#[test]
fn a_device_opened_twice_is_shared() {
    let Some(first) = device() else { return };
    let name = first.device().name.clone();
    let second = Context::open(&name).unwrap();
    assert_eq!(first.device(), second.device());
    assert_eq!(first.gids().unwrap(), second.gids().unwrap());
    assert_eq!(first.attr().unwrap(), second.attr().unwrap());

    // Queue pairs of both openings talk, on one socket.
    let Pair { a, b } = Pair::connect(Side::new(&first), Side::new(&second), &QpAttr::default());
    let to = b.memory(64);
    a.done(SendWr::write(1, inline(b"shared"), to.remote()));
    assert_eq!(to.to_vec(0..6), b"shared");
    // The thread of the device may look at its socket in between.
    let counters = |ctx: &Context| {
        let mut all = ctx.counters(1).unwrap();
        all.remove("port_receive_calls");
        all.remove("port_receive_calls_in_vain");
        all
    };
    assert_eq!(counters(&first), counters(&second));

    // Each opening has the events of its own objects.
    let wrong = RemoteSlice { rkey: 0, ..to.remote().at(0) };
    assert_eq!(a.outcome(SendWr::write(1, inline(b"x"), wrong)), WcStatus::RemAccess);
    assert_eq!(second.wait_event(LONG), Ok(Event::QpAccessErr { qpn: b.qp.number() }));
    assert_eq!(first.wait_event(Duration::ZERO), Err(Error::Timeout));

    // The device lives as long as one of them, and no longer.
    drop((a, first, to));
    assert!(UdpSocket::bind((ip_of(&second), ROCE_PORT)).is_err());
    let ip = ip_of(&second);
    drop((b, second));
    drop(UdpSocket::bind((ip, ROCE_PORT)).unwrap());
    let again = Context::open(&name).unwrap();
    assert_eq!(again.counters(1).unwrap()["sent_pkts"], 0, "a new one");
}

#[test]
fn a_successor_at_the_same_address_is_nobody_to_the_peers_of_the_dead() {
    let Some(here) = device() else { return };
    let Some(there) = device() else { return };
    let name = there.device().name.clone();
    let Pair { a, b } = Pair::connect(Side::new(&here), Side::new(&there), &QpAttr::default());
    let to = b.memory(1 << 16);
    let from = a.memory(1 << 16);
    from.fill(0..1 << 16, 0x77);
    a.done(SendWr::write(1, from.sge(..), to.remote()));
    let remote = to.remote();
    a.lose_patience();
    drop((b, to, there));

    // A new process, so to speak: the same address, the same kinds of objects in the same order.
    let there = Context::open(&name).unwrap();
    let successor = Side::new(&there);
    successor.qp.connect(&a.qp.endpoint()).unwrap();
    let to = successor.memory(1 << 16);
    a.qp.post_send([SendWr::write(2, from.sge(..), remote), SendWr::send(3, from.sge(..8))])
        .unwrap();
    assert_eq!(a.sent().status, WcStatus::RetryExc, "nobody has answered");
    assert_eq!(to.to_vec(0..1 << 16), vec![0; 1 << 16]);
    successor.until_counted("drop_no_qp");
    assert_eq!(successor.state(), QpState::Rts);
}

#[test]
fn the_loopback_device_gives_each_process_an_address() {
    // Opened through the environment's choice, which tests leave alone.
    if std::env::var_os(softroce::verbs::DEVICE_VARIABLE).is_some() {
        return;
    }
    let Some(_possible) = device() else { return };
    let one = open().unwrap();
    assert_eq!(one.device().name, "soft:lo");
    assert!(ip_of(&one).is_loopback() && ip_of(&one) != IpAddr::from([127, 0, 0, 1]));
    // In one process it is one device.
    let two = Context::open("soft:lo").unwrap();
    assert_eq!(ip_of(&one), ip_of(&two));
    let side = Side::new(&one);
    side.qp.connect(&side.qp.endpoint()).unwrap();
    side.qp.post_recv(RecvWr::new(1, ())).unwrap();
    side.done(SendWr::send(1, ()));
}
