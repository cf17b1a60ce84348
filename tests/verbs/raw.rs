//! Interfaces as a testbed: two devices of this process on the two ends of a virtual pair, past the kernel's
//! network. And what is special about them, with the kernel's network at the other end.
//!
//! Each test makes a network namespace, and the pair in it. Only root may do that in a process that has threads.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::panic::resume_unwind;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use nix::sched::{CloneFlags, unshare};
use socket2::{Domain, Protocol, Socket, Type};
use softroce::prelude::*;
use softroce::verbs::PortState;

use super::testbed::{Guarded, LONG, Pair, Side, Testbed, pattern};
use super::udp;

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

/// Runs `f` in a network namespace that `commands` of `ip(8)` have furnished.
fn in_namespace<T: Send>(commands: &str, f: impl FnOnce() -> T + Send) -> Result<T, String> {
    let inside = || {
        unshare(CloneFlags::CLONE_NEWNET).map_err(|e| format!("no network namespace: {e}"))?;
        ip(commands)?;
        Ok(f())
    };
    // A thread of its own: it never comes back from there, and what it starts is there too.
    thread::scope(|scope| scope.spawn(inside).join().unwrap_or_else(|e| resume_unwind(e)))
}

/// Commands of `ip(8)`, a line each.
fn ip(commands: &str) -> Result<(), String> {
    let mut ip = Command::new("ip");
    ip.args(["-batch", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = ip.spawn().map_err(|e| format!("no ip(8) here (package iproute2): {e}"))?;
    let written = child.stdin.take().unwrap().write_all(commands.as_bytes());
    let output = child.wait_with_output().unwrap();
    if written.is_err() || !output.status.success() {
        return Err(format!("ip: {}\n{commands}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(())
}

/// A virtual pair. Its names are given once: a device is open once in a process, by its name.
struct Veth {
    ends: [String; 2],
    n: u32,
}

impl Veth {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { ends: ["a", "b"].map(|end| format!("sr{n}{end}")), n }
    }

    /// What makes it.
    fn commands(&self) -> String {
        let [a, b] = &self.ends;
        let mut all = format!("link add {a} mtu 9000 type veth peer name {b} mtu 9000\n");
        for end in &self.ends {
            all += &format!("link set {end} addrgenmode none\nlink set {end} up\n");
        }
        all
    }

    /// The station's address, the kernel's, and that of a second station.
    fn addresses(&self, v4: bool) -> [String; 3] {
        let (high, low) = (100 + self.n / 256, self.n % 256);
        [1, 2, 3].map(|host| {
            if v4 {
                format!("10.{high}.{low}.{host}")
            } else {
                format!("fd99:{high}:{low}::{host}")
            }
        })
    }
}

/// Opens a device. The kernel tells of a link some time after it is there.
fn open(name: &str) -> Context {
    let ctx = Context::open(name).unwrap();
    while ctx.port(1).unwrap().state != PortState::Active {
        ctx.wait_event(LONG).unwrap();
    }
    while ctx.wait_event(Duration::ZERO).is_ok() {}
    ctx
}

/// Both ends of a pair.
fn both_ends() -> Result<[Context; 2], String> {
    let veth = Veth::new();
    let [a, b] = &veth.ends;
    let names = [
        format!("soft:raw={a},ip=10.99.0.1/24,ip=fd99::1/64"),
        format!("soft:raw={b},ip=10.99.0.2/24,ip=fd99::2/64"),
    ];
    in_namespace(&veth.commands(), || names.map(|name| open(&name)))
}

/// Two devices on a virtual pair.
pub(crate) struct Bed(udp::Bed);

impl Testbed for Bed {
    fn try_new() -> Result<Self, String> {
        Ok(Self(udp::Bed::of(both_ends()?)))
    }

    fn hosts(&self) -> [&Context; 2] {
        self.0.hosts()
    }

    fn into_hosts(self) -> [Context; 2] {
        self.0.into_hosts()
    }

    fn share(&self) {}

    fn pass_time(&self) {
        self.0.pass_time();
    }

    fn block_on<T>(&self, f: impl Future<Output = T>) -> T {
        self.0.block_on(f)
    }
}

/// Runs `f` with a station and with the kernel's network at the other end, and with the address of the station.
fn with_the_kernel(v4: bool, options: &str, f: impl FnOnce(&Veth, udp::Bed, IpAddr) + Send) {
    let veth = Veth::new();
    let [a, b] = &veth.ends;
    let [ours, theirs, _] = veth.addresses(v4);
    let (len, nodad) = if v4 { (24, "") } else { (64, "nodad") };
    let commands = format!("{}address add {theirs}/{len} dev {b} {nodad}\n", veth.commands());
    let names = [format!("soft:raw={a},ip={ours}/{len}"), format!("soft:udp={theirs}{options}")];
    let done = in_namespace(&commands, || {
        let hosts = names.map(|name| open(&name));
        f(&veth, udp::Bed::of(hosts), ours.parse().unwrap());
    });
    if let Err(why) = done {
        crate::skip::skip(why);
    }
}

/// WRITEs and READs from both ends.
fn exchange(bed: &impl Testbed) -> Pair {
    let pair = Pair::new(bed);
    let len = 300_001;
    for (seed, from, to) in [(1, &pair.a, &pair.b), (2, &pair.b, &pair.a)] {
        let (data, there, back) = (pattern(seed, len), Guarded::new(to, len), from.memory(len));
        let source = from.memory(len);
        source.write(0, &data);
        from.done(SendWr::write(1, source.sge(..), there.remote()));
        assert_eq!(there.bytes(len), data);
        from.done(SendWr::read(2, back.sge(..), there.remote()));
        assert_eq!(back.to_vec(0..len), data);
    }
    pair
}

/// An echo request of the kernel's side, and the answer to it.
fn ping(to: IpAddr) {
    let v4 = to.is_ipv4();
    let (domain, protocol) =
        if v4 { (Domain::IPV4, Protocol::ICMPV4) } else { (Domain::IPV6, Protocol::ICMPV6) };
    let mut socket = Socket::new(domain, Type::RAW, Some(protocol)).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    let (request, reply) = if v4 { (8, 0) } else { (128, 129) };
    // Kind, code, checksum, identifier, number, and something to bring back.
    let mut packet = [request, 0, 0, 0, 0x12, 0x34, 0, 1, b's', b'o', b'f', b't'];
    if v4 {
        let words = packet.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
        let sum = words.sum::<u32>();
        packet[2..4].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
    }
    socket.send_to(&packet, &SocketAddr::new(to, 0).into()).unwrap();
    let mut buf = [0; 256];
    loop {
        let n = socket.read(&mut buf).unwrap();
        let answer = &buf[if v4 { 20 } else { 0 }..n];
        if answer[0] == reply && answer[4..] == packet[4..] {
            return;
        }
    }
}

#[test]
fn the_kernels_network_at_the_other_end() {
    for v4 in [true, false] {
        with_the_kernel(v4, ",gso=off", |_, bed, station| {
            // Before there are queue pairs.
            ping(station);
            let Pair { a, b } = exchange(&bed);
            let of = |side: &Side, how| side.counter(how);
            // A READ and a WRITE of three hundred thousand bytes, and acknowledgements.
            let enough = 2 * 300_000 / 4096;
            assert!(of(&a, "icrc_exact") > enough, "{:?}", a.ctx.counters(1));
            assert_eq!((of(&a, "icrc_recovered"), of(&a, "icrc_inferred")), (0, 0));
            // A UDP socket does not tell the identifications that the station has chosen.
            let known = if v4 { "icrc_recovered" } else { "icrc_exact" };
            assert!(of(&b, known) > enough, "{:?}", b.ctx.counters(1));
            for side in [&a, &b] {
                assert_eq!(side.counter("rx_icrc_encapsulated"), 0);
                assert_eq!(side.counter("port_bad_checksum"), 0);
                assert_eq!(side.counter("port_send_errors"), 0);
            }
            ping(station);
        });
    }
}

#[test]
fn two_stations_of_a_vlan() {
    let veth = Veth::new();
    let [a, b] = &veth.ends;
    let [first, kernel, second] = veth.addresses(true);
    let commands = format!("{}address add {kernel}/24 dev {b}\n", veth.commands());
    let names = [
        format!("soft:raw={a},ip={first}/24,vlan=5,pcp=3"),
        format!("soft:raw={b},ip={second}/24,vlan=5"),
    ];
    let done = in_namespace(&commands, || {
        let bed = udp::Bed::of(names.map(|name| open(&name)));
        let Pair { a, b } = exchange(&bed);
        assert_eq!((a.counter("port_wrong_vlan"), b.counter("port_wrong_vlan")), (0, 0));
        // The host at the other end is in no VLAN. It asks where the station is, and is not heard.
        let socket = UdpSocket::bind((kernel.as_str(), 0)).unwrap();
        socket.send_to(b"?", (first.as_str(), 9)).unwrap();
        bed.until("a question without a tag", || a.counter("port_wrong_vlan") > 0);
    });
    if let Err(why) = done {
        crate::skip::skip(why);
    }
}

#[test]
fn with_the_address_of_the_interface_itself() {
    let veth = Veth::new();
    let mac = "02:00:00:00:5a:01";
    let [a, b] = &veth.ends;
    let commands = format!("{}link set {a} address {mac}\n", veth.commands());
    let names = [
        format!("soft:raw={a},ip=10.99.0.1/24,ip=fd99::1/64,mac={mac}"),
        format!("soft:raw={b},ip=10.99.0.2/24,ip=fd99::2/64,mtu=1500"),
    ];
    let hosts = in_namespace(&commands, || names.map(|name| open(&name)));
    match hosts {
        Ok(hosts) => {
            assert_eq!(hosts[0].port(1).unwrap().active_mtu, Mtu::B4096);
            assert_eq!(hosts[1].port(1).unwrap().active_mtu, Mtu::B1024);
            let bed = udp::Bed::of(hosts);
            let pair = Pair::over(&bed, &QpAttr::default().path_mtu(Mtu::B1024));
            let to = Guarded::new(&pair.b, 5000);
            let from = pair.a.memory(5000);
            from.write(0, &pattern(1, 5000));
            pair.a.done(SendWr::write(1, from.sge(..), to.remote()));
            assert_eq!(to.bytes(5000), pattern(1, 5000));
        }
        Err(why) => crate::skip::skip(why),
    }
}

#[test]
fn segments_that_the_kernel_has_not_taken_apart() {
    with_the_kernel(true, ",gso=on", |veth, bed, _| {
        let patient = QpAttr::default().path_mtu(Mtu::B4096).timeout(17);
        let Pair { a, b } = Pair::over(&bed, &patient);
        let len = 64 << 10;
        let (from, to) = (b.memory(len), Guarded::new(&a, len));
        from.write(0, &pattern(3, len));
        b.post(SendWr::write(1, from.sge(..), to.remote()));
        bed.until("a frame that is too long", || a.counter("port_merged") > 0);
        // As the documentation says.
        ip(&format!("link set {} gso_max_segs 1\n", veth.ends[1])).unwrap();
        b.sent().ok().unwrap();
        assert_eq!(to.bytes(len), pattern(3, len));
    });
}

#[test]
fn a_link_and_an_mtu_that_change() {
    let veth = Veth::new();
    let [a, b] = &veth.ends;
    let name = format!("soft:raw={a},ip=10.99.0.1/24");
    let done = in_namespace(&veth.commands(), || {
        let ctx = open(&name);
        let say = |commands: String| ip(&commands).unwrap();
        assert_eq!(ctx.port(1).unwrap().active_mtu, Mtu::B4096);
        for (state, event) in
            [("down", Event::PortErr { port: 1 }), ("up", Event::PortActive { port: 1 })]
        {
            // Of the other end, and of this one.
            say(format!("link set {b} {state}\n"));
            assert_eq!(ctx.wait_event(LONG), Ok(event));
        }
        for (state, event) in
            [("down", Event::PortErr { port: 1 }), ("up", Event::PortActive { port: 1 })]
        {
            say(format!("link set {a} {state}\n"));
            assert_eq!(ctx.wait_event(LONG), Ok(event));
        }
        for (mtu, want) in [(1500, Mtu::B1024), (9000, Mtu::B4096)] {
            say(format!("link set {a} mtu {mtu}\n"));
            assert_eq!(ctx.port(1).unwrap().active_mtu, want);
        }
        say(format!("link delete {a}\n"));
        assert_eq!(ctx.wait_event(LONG), Ok(Event::PortErr { port: 1 }));
        // Another one of the same name is another one.
        say(veth.commands());
        assert_eq!(ctx.port(1).unwrap().state, PortState::Down);
    });
    if let Err(why) = done {
        crate::skip::skip(why);
    }
}

/// The error of a name that opens nothing.
#[track_caller]
fn refused(name: &str, errno: i32, words: &[&str]) {
    let e = Context::open(name).map(drop).unwrap_err();
    assert_eq!(e.errno(), Some(errno), "{name}: {e}");
    for word in words {
        assert!(e.to_string().contains(word), "{name}: {word:?} is not in \"{e}\"");
    }
}

#[test]
fn names_that_open_nothing() {
    let veth = Veth::new();
    let [a, b] = &veth.ends;
    let commands = format!("{}address add 10.98.0.1/24 dev {b}\n", veth.commands());
    let done = in_namespace(&commands, || {
        refused("soft:raw=nowhere0,ip=10.0.0.5/24", 19, &["nowhere0", "ip link"]);
        refused("soft:raw=lo,ip=10.0.0.5/24", 22, &["soft:lo"]);
        refused(&format!("soft:raw={a}"), 22, &["wanted an address"]);
        refused(&format!("soft:raw={a},ip=10.0.0.5/24,rcvbuf=1"), 22, &["rcvbuf=1", "vlan="]);
        let name = format!("soft:raw={a},ip=10.0.0.5/24,mtu=9001");
        refused(&name, 22, &["9000", "not of 9001", "ip link set"]);
        // On whichever interface: the kernel answers for all of its addresses on each.
        let name = format!("soft:raw={a},ip=10.98.0.1/24");
        refused(&name, 98, &["10.98.0.1", b, "soft:udp="]);
        ip(&format!("link set {a} down\n")).unwrap();
        refused(&format!("soft:raw={a},ip=10.0.0.5/24"), 100, &["is down", "ip link set", "up"]);
    });
    if let Err(why) = done {
        crate::skip::skip(why);
    }
}

/// Set to the name of a device in the process that may not open it.
const MAY_NOT: &str = "SOFTROCE_MAY_NOT_OPEN";

#[test]
fn a_program_that_may_not() {
    if let Some(name) = std::env::var_os(MAY_NOT) {
        refused(&name.into_string().unwrap(), 1, &["CAP_NET_RAW", "setcap cap_net_raw+ep"]);
        return;
    }
    let veth = Veth::new();
    let done = in_namespace(&veth.commands(), || {
        let mut us = Command::new("setpriv");
        us.arg("--bounding-set=-net_raw").arg(std::env::current_exe().unwrap());
        us.args(["--exact", "raw::a_program_that_may_not", "--nocapture"]);
        us.env(MAY_NOT, format!("soft:raw={},ip=10.0.0.5/24", veth.ends[0]));
        us.output().map_err(|e| format!("no setpriv(1) here (package util-linux): {e}"))
    });
    match done.flatten() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
        }
        Err(why) => crate::skip::skip(why),
    }
}
