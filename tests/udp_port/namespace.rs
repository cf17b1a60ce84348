//! What needs interfaces and addresses of its own: called by a test that runs itself in a network namespace.

use super::*;

/// All of it, one after the other: they share the namespace.
pub(super) fn all() {
    two_ports_over_ipv6();
    groups_over_ipv6();
    an_owner_of_all_addresses_is_named();
    a_virtual_pair();
    packets_through_another_interface_are_dropped();
    a_host_without_ipv6();
    a_link_and_addresses_that_come_and_go();
    a_device_without_queue_pairs_follows_its_interface();
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().expect("ip(8)");
    assert!(status.success(), "ip {arguments}");
}

fn open(address: &str) -> UdpPort {
    let ip = address.parse().expect("an address");
    UdpPort::open(UdpConfig::for_address(ip, 0).expect("an address of ours")).expect("free")
}

/// Lets the port look until it says so, and sleeps on its descriptor meanwhile.
fn until_healthy(port: &mut UdpPort, want: Health) {
    let mut rx = RxBatch::new(4, 2048);
    for _ in 0..1000 {
        port.recv(&mut rx).unwrap();
        if port.health() == want {
            return;
        }
        let mut fds = [PollFd::new(port.readiness().unwrap(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::from(10_000_u16)).unwrap();
    }
    panic!("still {:?}, not {want:?}", port.health());
}

/// Waits until the link of an interface is there: the kernel tells of it some time after the command.
fn until_running(interface: &str) {
    let dev = netdev::interface(interface).unwrap().unwrap();
    let config = UdpConfig { port: 4790, ..UdpConfig::new(dev.addresses[..1].to_vec()) };
    until_healthy(&mut UdpPort::open(config).unwrap(), Health::GOOD);
}

fn a_link_and_addresses_that_come_and_go() {
    ip("link add h0 type veth peer name h1");
    ip("address add 10.98.0.1/24 dev h0");
    ip("link set h1 up");
    ip("link set h0 up");
    until_running("h0");
    // With one socket and with two.
    for two in [false, true] {
        if two {
            ip("address add 10.98.0.2/24 dev h0");
        }
        let dev = netdev::interface("h0").unwrap().unwrap();
        let addresses = dev.addresses.into_iter().filter(|a| a.ip.is_ipv4()).collect();
        let mut port = UdpPort::open(UdpConfig::new(addresses)).unwrap();
        assert_eq!((port.addresses().len(), port.health()), (1 + usize::from(two), Health::GOOD));
        ip("link set h1 down");
        until_healthy(&mut port, Health { up: false, missing: 0 });
        ip("link set h1 up");
        until_healthy(&mut port, Health::GOOD);
        let last = if two { 2 } else { 1 };
        for n in (1..=last).rev() {
            ip(&format!("address delete 10.98.0.{n}/24 dev h0"));
            let missing = last - n + 1;
            until_healthy(&mut port, Health { up: n > 1, missing });
        }
        ip("address add 10.98.0.1/24 dev h0");
        until_healthy(&mut port, Health { up: true, missing: last - 1 });
    }
    ip("link delete h0");
    // The loopback interface is not watched: nothing is ever wrong with it.
    assert_eq!(open("127.0.0.9").health(), Health::GOOD);
}

fn a_device_without_queue_pairs_follows_its_interface() {
    use softroce::verbs::{Context, Event, Mtu, PortState};

    ip("link add q0 type veth peer name q1");
    ip("link set q0 addrgenmode none");
    ip("address add 10.99.0.1/24 dev q0");
    ip("link set q1 up");
    ip("link set q0 up");
    until_running("q0");
    let long = std::time::Duration::from_secs(20);
    // By the descriptor of events.
    let ctx = Context::open("soft:q0").unwrap();
    let fd = ctx.events_fd().unwrap();
    for (state, event) in
        [("down", Event::PortErr { port: 1 }), ("up", Event::PortActive { port: 1 })]
    {
        ip(&format!("link set q1 {state}"));
        let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
        assert_eq!(poll(&mut fds, PollTimeout::from(20_000_u16)), Ok(1), "{state}");
        assert_eq!(ctx.wait_event(long), Ok(event));
    }
    drop(ctx);
    until_running("q0");
    // Asking is enough, and so is waiting.
    let ctx = Context::open("soft:q0").unwrap();
    assert_eq!(ctx.port(1).unwrap().active_mtu, Mtu::B1024);
    ip("link set q1 mtu 9000");
    ip("link set q0 mtu 9000");
    assert_eq!(ctx.port(1).unwrap().active_mtu, Mtu::B4096);
    // Of this end the kernel tells at once.
    ip("link set q0 down");
    assert_eq!(ctx.port(1).unwrap().state, PortState::Down);
    assert_eq!(ctx.wait_event(long), Ok(Event::PortErr { port: 1 }));
    ip("link set q0 up");
    assert_eq!(ctx.wait_event(long), Ok(Event::PortActive { port: 1 }));
    drop(ctx);
    ip("link delete q0");
}

fn two_ports_over_ipv6() {
    let (mut a, mut b) = (open("fd00::1"), open("fd00::2"));
    assert_eq!(a.numbering(), Numbering::Irrelevant);
    let most = a.caps().gso_segments_v6;
    assert!(most >= 64, "{:?}", a.caps());
    let p = Path { traffic_class: 0x6b, hop_limit: 3, ..path(&a, &b) };
    let payload = pattern(15 * 4112 + 7);
    send(&mut a, p, &payload, Some(4112));
    let got = receive(&mut b, 16);
    assert!(got.iter().zip(0..).all(|((meta, _), i)| meta.path == p && meta.gro_index == i));
    assert_eq!(got.into_iter().flat_map(|(_, bytes)| bytes).collect::<Vec<u8>>(), payload);
    let back = Path { traffic_class: 1, ..path(&b, &a) };
    for _ in 0..100 {
        send(&mut b, back, b"reply", None);
    }
    assert!(receive(&mut a, 100).iter().all(|(meta, _)| meta.path.traffic_class == 1));

    // More segments than the kernel makes: they leave as single datagrams, as IPv6 has no identification.
    let payload = pattern((most + 3) * 100);
    send(&mut a, p, &payload, Some(100));
    let got = receive(&mut b, most + 3);
    assert_eq!(got.into_iter().flat_map(|(_, bytes)| bytes).collect::<Vec<u8>>(), payload);
    assert_eq!((a.stats().send_errors, a.caps().gso_segments_v6), (0, most));
}

fn groups_over_ipv6() {
    ip("link add m0 type veth peer name m1");
    ip("link set m1 up");
    for address in ["fd97::1/64", "fd97::2/64"] {
        ip(&format!("-6 address add {address} dev m0 nodad"));
    }
    ip("link set m0 up");
    until_running("m0");
    let (mut a, mut b) = (open("fd97::1"), open("fd97::2"));
    // Of the site, and of the link.
    for group in ["ff05::1:7", "ff02::1:7"] {
        let group: IpAddr = group.parse().unwrap();
        b.join(group).unwrap();
        let p = Path { hop_limit: 5, ..path_to(&a, group) };
        send(&mut a, p, b"to all", None);
        let got = receive(&mut b, 1);
        assert_eq!((got[0].0.path.src, got[0].0.path.dst), (p.src, group));
        assert_eq!((got[0].0.path.hop_limit, &got[0].1[..]), (5, &b"to all"[..]));
        b.leave(group).unwrap();
        send(&mut a, p, b"to nobody", None);
        assert!(is_quiet(&b));
    }
    drop((a, b));
    ip("link delete m0");
}

fn an_owner_of_all_addresses_is_named() {
    let wildcard = UdpSocket::bind(("0.0.0.0", ROCE_PORT)).unwrap();
    let error = UdpPort::open_loopback(UdpConfig::new(Vec::new())).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("this process, which holds all addresses"), "{text}");
    assert!(text.contains("network namespace of its own"), "{text}");
    drop(wildcard);
    UdpPort::open_loopback(UdpConfig::new(Vec::new())).unwrap();
}

fn a_virtual_pair() {
    ip("link add v0 mtu 1500 type veth peer name v1");
    ip("address add 10.99.0.1/24 dev v0");
    ip("-6 address add fd99::1/64 dev v0 nodad");
    ip("link set v1 up");
    let error = UdpConfig::for_interface("v1").unwrap_err();
    assert!(matches!(error, OpenError::NoAddress { .. }), "no address before it is up: {error}");
    let dev = netdev::interface("v0").unwrap().unwrap();
    assert_eq!((dev.kind, dev.mtu, dev.up), (NetDevKind::Veth, 1500, false));
    assert!(dev.mac.is_some() && !dev.loopback);
    ip("link set v0 up");
    // The link-local address is being probed for duplicates now; the port opens without it, or with it.
    let mut config = UdpConfig::for_interface("v0").unwrap();
    assert_eq!(config.addresses[0].ip.to_string(), "10.99.0.1");
    config.sndbuf = 4096;
    let mut port = UdpPort::open(config).unwrap();
    let caps = port.caps();
    assert_eq!((caps.mtu, caps.path_mtu().map(|m| m.bytes())), (1500, Some(1024)));
    assert!(caps.gso_segments_v4 > 1 && caps.gso_segments_v6 > 1, "{caps:?}");

    // The MTU is obeyed, and noticed when it changes.
    let neighbour = Path { dst: [10, 99, 0, 2].into(), ..path(&port, &port) };
    let mut tx = TxBatch::default();
    put(&mut tx, neighbour, &[0; 1473], None);
    put(&mut tx, neighbour, &[0; 4000], Some(1473));
    port.send(&mut tx).unwrap();
    assert!(tx.is_empty());
    assert_eq!(port.stats().send_errors, 4);
    assert_eq!(port.last_error().unwrap().errno, libc::EMSGSIZE);
    assert_eq!(port.stats().gso_refused, 0);
    ip("link set v0 mtu 9000");
    port.refresh();
    assert_eq!(port.caps().mtu, 9000);
    ip("link set v0 mtu 1300");
    put(&mut tx, neighbour, &[0; 1400], None);
    port.send(&mut tx).unwrap();
    assert_eq!((port.stats().send_errors, port.caps().mtu), (5, 1300));

    // Nobody answers for the neighbour, so datagrams pile up in front of the interface until the send
    // buffer is full. What does not fit stays in the batch, in order.
    let mut sent = 0u64;
    while tx.is_empty() {
        assert!(sent < 10_000, "{:?}", port.stats());
        for _ in 0..4 {
            put(&mut tx, neighbour, &[1; 1000], None);
        }
        let before = port.stats().sent_datagrams;
        port.send(&mut tx).unwrap();
        sent += port.stats().sent_datagrams - before;
    }
    assert!(port.blocked_on().is_some() && port.stats().send_busy == 1);
    let left = tx.entries().count();
    assert!(left > 0 && sent.is_multiple_of(4) == left.is_multiple_of(4));
    port.send(&mut tx).unwrap();
    assert_eq!((tx.entries().count(), port.stats().send_busy), (left, 2));
    // In the end the kernel gives up on the neighbour, and there is room again.
    wait_for(port.blocked_on().unwrap(), PollFlags::POLLOUT);
    port.send(&mut tx).unwrap();
    assert!(tx.entries().count() < left);
    drop(port);
    ip("link delete v0");
}

fn packets_through_another_interface_are_dropped() {
    // The neighbour lives in a namespace of its own, for which a process has to hold it.
    let holder = Command::new("unshare").args(["-n", "sleep", "600"]).spawn().expect("unshare(1)");
    let holder = KillOnDrop(holder);
    let pid = holder.0.id();
    let there = |arguments: &str| {
        let enter = ["-t", &pid.to_string(), "-n"].map(str::to_owned);
        Command::new("nsenter").args(enter).args(arguments.split(' ')).output().expect("nsenter(1)")
    };
    // It has it as soon as it no longer sees the addresses of ours.
    while String::from_utf8_lossy(&there("ip address").stdout).contains("fd00::1") {
        std::thread::yield_now();
    }
    ip("link add w0 type veth peer name w1");
    ip(&format!("link set w1 netns {pid}"));
    ip("address add 10.98.0.1/24 dev w0");
    ip("address add 10.98.1.1/32 dev lo");
    ip("link set w0 up");
    for step in [
        "ip address add 10.98.0.2/24 dev w1",
        "ip link set w1 up",
        "ip route add 10.98.1.1/32 via 10.98.0.1",
    ] {
        let output = there(step);
        assert!(output.status.success(), "{step}: {output:?}");
    }
    let mut outer = open("10.98.0.1");
    let mut inner = open("10.98.1.1");
    let say = |to: &str| {
        let script = format!("echo -n hello >/dev/udp/{to}/{ROCE_PORT}");
        let enter = ["-t", &pid.to_string(), "-n", "bash", "-c", &script].map(str::to_owned);
        let output = Command::new("nsenter").args(enter).output().expect("nsenter(1)");
        assert!(output.status.success(), "{output:?}");
    };
    say("10.98.0.1");
    let got = receive(&mut outer, 1);
    assert_eq!((got[0].0.path.src.to_string(), &got[0].1[..]), ("10.98.0.2".into(), &b"hello"[..]));

    say("10.98.1.1");
    wait_for(inner.readiness().unwrap(), PollFlags::POLLIN);
    let mut rx = RxBatch::new(1, RxBatch::WHOLE);
    inner.recv(&mut rx).unwrap();
    assert!(rx.is_empty());
    assert_eq!((inner.stats().wrong_interface, inner.stats().received_datagrams), (1, 0));

    // To one's own addresses, also of other interfaces, packets pass through loopback. That is no stranger.
    let p = path(&inner, &outer);
    send(&mut inner, p, b"inside", None);
    assert_eq!(receive(&mut outer, 1)[0].1, b"inside");
    let p = path(&outer, &inner);
    send(&mut outer, p, b"outside", None);
    assert_eq!(receive(&mut inner, 1)[0].1, b"outside");
}

struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // It may have ended by itself, which is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The last of them: the namespace has no IPv6 any more.
fn a_host_without_ipv6() {
    std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").unwrap();
    let error = UdpConfig::for_address("fd00::1".parse().unwrap(), 0).map(UdpPort::open);
    assert!(!matches!(error, Ok(Ok(_))), "there is no such address any more");
    ip("link add n0 type veth peer name n1");
    ip("address add 10.97.0.1/24 dev n0");
    ip("link set n0 up");
    ip("link set n1 up");
    let config = UdpConfig::for_interface("n0").unwrap();
    let addresses: Vec<String> = config.addresses.iter().map(|a| a.ip.to_string()).collect();
    assert_eq!(addresses, ["10.97.0.1"]);
    for mut port in [UdpPort::open(config).unwrap(), open("127.0.0.1")] {
        let p = path(&port, &port);
        send(&mut port, p, &pattern(3000), Some(1024));
        assert_eq!(receive(&mut port, 3)[2].1.len(), 952);
    }
    ip("link delete n0");
}
