//! `softroce ping`, run as a program: what answers, and each step that can fail.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "helpers of tests, where a panic is the report")]

#[path = "ping/middle.rs"]
mod middle;
#[path = "../../tests/common/process.rs"]
mod process;
#[path = "../../tests/common/skip.rs"]
mod skip;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;

use serde_json::Value;
use softroce::verbs::{
    Access, Context, Gid, MemoryRegion, Mtu, QpEndpoint, QpType, QueuePair, RecvWr, SendWr,
};

use middle::{Middle, Rule};
use process::{Finished, LONG, Running};
use skip::skip;

fn ping(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_softroce"));
    command.arg("ping").args(args).env_remove("SOFTROCE_DEVICE").stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Finished {
    Running::start(&mut ping(args)).finish()
}

/// An address of the network of a test, which no other test uses.
fn address(test: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 41, test, host)
}

fn device(test: u8, host: u8) -> String {
    format!("soft:udp={}", address(test, host))
}

/// `ping --listen`, killed when it goes out of scope.
struct Listener {
    child: Child,
    out: BufReader<ChildStdout>,
    port: u16,
}

const SERVER: u8 = 3;

impl Listener {
    fn start(test: u8) -> Self {
        Self::run(ping(&["--listen", "-d", &device(test, SERVER)]))
    }

    /// This command, at a free port; it has said that it waits.
    fn run(mut command: Command) -> Self {
        let port = free_port();
        command.args(["-p", &port.to_string()]).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut listener = Self { child, out, port };
        while !listener.line().trim().starts_with(&format!("softroce ping -p {port} ")) {}
        listener
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.out.read_line(&mut line).unwrap() > 0, "the listener has ended");
        line
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Listens at all addresses.
fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

fn free_port() -> u16 {
    listen().1
}

/// Pings from host 1 of a test's network, without pauses; JSON and the line on the standard error.
fn json(test: u8, port: u16, args: &[&str]) -> (Option<i32>, Value, String) {
    let (device, port, host) =
        (device(test, 1), port.to_string(), address(test, SERVER).to_string());
    let common = [&host, "-d", &device, "-p", &port, "-i", "0", "--json"];
    let Finished { code, stdout, stderr } = run(&[&common, args].concat());
    (
        code,
        serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{e}: {stdout}{stderr}")),
        stderr,
    )
}

/// It fails at this step with these words, in JSON and in one line.
#[track_caller]
fn fails((code, json, stderr): (Option<i32>, Value, String), step: &str, words: &[&str]) {
    assert_eq!(code, Some(1), "{json} {stderr}");
    assert_eq!(json["failure"]["step"], step, "{json}");
    let what = json["failure"]["what"].as_str().unwrap();
    for words in words {
        assert!(what.contains(words), "{words:?} is not in {what:?}");
    }
    assert_eq!(stderr, format!("softroce: ping: {step}: {what}\n"));
}

#[test]
fn all_are_answered() {
    let mut listener = Listener::start(1);
    for (args, size, mtu) in [
        (&["-c", "2"][..], 1, 4096),
        (&["-c", "1", "-s", "100000", "-m", "256"], 100_000, 256),
        (&["-c", "300", "-s", "64"], 64, 4096),
    ] {
        let (code, json, stderr) = json(1, listener.port, args);
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{json}");
        let count: u64 = args[1].parse().unwrap();
        assert_eq!((&json["sent"], &json["answered"]), (&count.into(), &count.into()));
        assert_eq!((&json["size"], &json["mtu"]), (&size.into(), &mtu.into()));
        assert_eq!(json["local"], address(1, 1).to_string());
        assert_eq!(json["remote"], address(1, SERVER).to_string());
        assert_eq!(json["failure"], Value::Null);
        let pings = json["pings"].as_array().unwrap();
        for (ping, seq) in pings.iter().zip(1..) {
            assert_eq!((&ping["seq"], &ping["bytes"]), (&Value::from(seq), &Value::from(size)));
            let time = ping["time_us"].as_f64().unwrap();
            let [min, max] = ["min", "max"].map(|k| json["rtt_us"][k].as_f64().unwrap());
            assert!(0.0 < min && min <= time && time <= max, "{json}");
        }
        assert_eq!(pings.len() as u64, count);
        // The path is looked at before: a byte and a full packet.
        let mut said = listener.line();
        while said.trim().is_empty() {
            said = listener.line();
        }
        assert!(
            said.ends_with(&format!(
                ": {} messages answered, pings and probes of the path\n",
                count + 2
            )),
            "{said}"
        );
    }
}

#[test]
fn text_is_that_of_ping() {
    let listener = Listener::start(2);
    let (from, to) = (device(2, 1), address(2, SERVER).to_string());
    let port = listener.port.to_string();
    let out = run(&[&to, "-d", &from, "-p", &port, "-c", "2", "-i", "0.01"]).ok();
    let lines: Vec<_> = out.lines().collect();
    let here = address(2, 1);
    assert_eq!(lines[0], format!("PING {to} ({to}) from {here} ({from}): 1 byte, path MTU 4096"));
    for (line, seq) in lines[1..3].iter().zip(1..) {
        let start = format!("1 byte from {to}: seq={seq} time=");
        assert!(line.starts_with(&start) && line.ends_with(" us"), "{line}");
    }
    assert_eq!(
        lines[3..6],
        ["", &format!("--- {to} ping statistics ---"), "2 sent, 2 answered, 0% lost"]
    );
    assert!(lines[6].starts_with("rtt min/avg/max = "), "{out}");
    assert_eq!(lines.len(), 7);
}

#[test]
fn loopback_needs_no_device() {
    let port = free_port().to_string();
    let mut child = ping(&["--listen", "-p", &port]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let host = lines.find_map(|line| {
        Some(line.unwrap().strip_prefix(&format!("    softroce ping -p {port} "))?.to_owned())
    });
    let host = host.unwrap();
    let finished = run(&[&host, "-p", &port, "-c", "1"]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(finished.ok().contains("1 sent, 1 answered"));
}

#[test]
fn bad_input_is_one_line() {
    for (args, part) in [
        (&["no host"][..], "name: \"no host\" is no host"),
        (&["127.0.0.1", "-d", "soft:nowhere"], "device: "),
        (&["127.0.0.1", "-m", "999"], "wanted 256, 512, 1024, 2048 or 4096"),
        (&["127.0.0.1", "-c", "0"], "-c"),
        (&["127.0.0.1", "-s", "0"], "-s"),
        (&["127.0.0.1", "-s", "1048577"], "-s"),
        (&["127.0.0.1", "--interval=-1"], "0 to 3600 seconds"),
        (&["127.0.0.1", "-i", "nan"], "0 to 3600 seconds"),
        (&["127.0.0.1", "--listen"], "--listen"),
        (&["--listen", "-c", "1"], "--listen"),
    ] {
        let Finished { code, stdout, stderr } = run(args);
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{args:?}: {stderr}");
        assert!(stderr.contains(part) && stderr.lines().count() == 1, "{args:?}: {stderr}");
    }
}

#[test]
fn nobody_listens() {
    fails(json(4, free_port(), &[]), "out-of-band", &["nobody listens", "softroce ping --listen"]);
    fails(json(4, free_port(), &["--pingpong"]), "out-of-band", &["start `ibv_rc_pingpong"]);
}

#[test]
fn who_listens_may_be_no_ping() {
    let (listener, port) = listen();
    let http = thread::Builder::new().spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&[b'x'; 100]).unwrap();
            stream.write_all(b"\n").unwrap();
        }
    });
    fails(json(5, port, &[]), "out-of-band", &["does not understand"]);
    fails(json(5, port, &["--pingpong"]), "out-of-band", &["is it ibv_rc_pingpong?"]);
    http.unwrap().join().unwrap();
}

#[test]
fn addresses_of_two_kinds_do_not_reach_each_other() {
    let listener = Listener::start(6);
    let (port, host) = (listener.port.to_string(), address(6, SERVER).to_string());
    let Finished { code, stderr, .. } = run(&[&host, "-d", "soft:udp=::1", "-p", &port]);
    assert_eq!(code, Some(1));
    assert!(
        stderr.contains("address: soft:udp=::1 has no address of the kind of 127."),
        "{stderr}"
    );
}

#[test]
fn a_larger_path_mtu_than_the_ports_have_is_refused() {
    // Both ports take 4096 here, so a listener is played that takes less.
    let server = Scripted::start(7, |_| {}, Mtu::B1024);
    let (code, json, _) = json(7, server.port, &["-m", "4096"]);
    assert_eq!((code, &json["failure"]["step"]), (Some(2), &"mtu".into()), "{json}");
    let what = json["failure"]["what"].as_str().unwrap();
    assert!(what.contains("--mtu 4096: the ports of both sides take 1024 at most"), "{what}");
}

/// Pings through a middle with this rule.
fn through(test: u8, rule: Rule, args: &[&str]) -> (Option<i32>, Value, String) {
    let listener = Listener::start(test);
    let [client, own, server] = [1, 2, SERVER].map(|host| address(test, host));
    let middle = Middle::start(own, client, server, listener.port, rule);
    let (device, port) = (device(test, 1), middle.port.to_string());
    let common = ["127.0.0.1", "-d", &device, "-p", &port, "-i", "0", "-c", "2", "--json"];
    let Finished { code, stdout, stderr } = run(&[&common, args].concat());
    (
        code,
        serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{e}: {stdout}{stderr}")),
        stderr,
    )
}

#[test]
fn somebody_in_the_middle_who_does_nothing_is_not_noticed() {
    let (code, json, _) = through(8, |_, _| Some(0), &[]);
    assert_eq!((code, &json["answered"]), (Some(0), &2.into()), "{json}");
    assert_eq!(json["remote"], address(8, 2).to_string());
}

#[test]
fn packets_that_arrive_spoilt() {
    let spoilt = through(9, |to_server, _| Some(if to_server { 0x0010_0000 } else { 0 }), &[]);
    fails(spoilt, "icrc", &["arrived at 127.0.0.1 with a wrong ICRC"]);
    let spoilt = through(10, |to_server, _| Some(if to_server { 0 } else { 0x0010_0000 }), &[]);
    fails(spoilt, "icrc", &["arrived here with a wrong ICRC"]);
}

#[test]
fn packets_that_do_not_arrive() {
    let lost = through(11, |to_server, _| (!to_server).then_some(0), &[]);
    fails(lost, "answer", &["left and none arrived at 127.0.0.1", "UDP port 4791"]);
    let lost = through(12, |to_server, _| to_server.then_some(0), &[]);
    fails(lost, "answer", &["arrived at 127.0.0.1 and its answers do not arrive here"]);
}

/// What carries a path MTU of 1024.
const NARROW: Rule = |_, len| (len < 1100).then_some(0);

#[test]
fn a_path_that_carries_less() {
    let words = ["packets of 4096 bytes do not arrive; the path carries 1024: use --mtu 1024"];
    fails(through(13, NARROW, &[]), "mtu", &words);
    let (code, json, _) = through(14, NARROW, &["-m", "1024", "-s", "5000"]);
    assert_eq!((code, &json["answered"]), (Some(0), &2.into()), "{json}");
}

/// A side of which the test says what it does, with a real queue pair. It is killed with its handle.
struct Scripted {
    port: u16,
    thread: Option<thread::JoinHandle<()>>,
}

/// What a scripted side has: its memory is of `2 * HALF` bytes.
struct Half {
    qp: QueuePair,
    mr: MemoryRegion,
    cq: softroce::verbs::CompletionQueue,
}

const HALF: usize = 8192;

impl Half {
    fn new(test: u8) -> Self {
        let ctx = Context::open(&device(test, SERVER)).unwrap();
        let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(16).unwrap());
        let mr = pd.alloc_mr(2 * HALF, Access::LOCAL).unwrap();
        let qp = pd.create_qp(QpType::Rc, &cq).build().unwrap();
        Self { qp, mr, cq }
    }

    fn post_receive(&self) {
        self.qp.post_recv(RecvWr::new(1, self.mr.sge(..HALF))).unwrap();
    }
}

impl Scripted {
    /// `ping --listen` with this path MTU, which does `prepare` and then nothing.
    fn start(test: u8, prepare: impl FnOnce(&Half) + Send + 'static, mtu: Mtu) -> Self {
        let (listener, port) = listen();
        let side = Half::new(test);
        let thread = thread::Builder::new().spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let Some(Ok(hello)) = lines.next() else { return };
            let hello: Value = serde_json::from_str(&hello).unwrap();
            let peer = hello["connect"]["endpoint"].as_str().unwrap();
            let peer: QpEndpoint = peer.parse().unwrap();
            side.qp.connect(&QpEndpoint { mtu: peer.mtu.min(mtu), ..peer }).unwrap();
            prepare(&side);
            let endpoint = QpEndpoint { mtu, ..side.qp.endpoint() }.to_string();
            let offer = serde_json::json!({ "offer": { "endpoint": endpoint } });
            writeln!(&stream, "{offer}").unwrap();
            // Each other line asks for counters.
            for _ in lines.map_while(Result::ok) {
                writeln!(&stream, "{{\"counters\":{{}}}}").unwrap();
            }
        });
        Self { port, thread: Some(thread.unwrap()) }
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        // If it still waits for a client, this is the last one.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        let how = self.thread.take().unwrap().join();
        assert!(how.is_ok() || thread::panicking(), "the scripted side has failed");
    }
}

#[test]
fn a_program_that_does_not_answer() {
    let server = Scripted::start(15, |_| {}, Mtu::B4096);
    fails(json(15, server.port, &[]), "answer", &["no program has posted a receive"]);
    let server = Scripted::start(16, Half::post_receive, Mtu::B4096);
    fails(
        json(16, server.port, &[]),
        "answer",
        &["has taken the message, and no program there answers"],
    );
}

#[test]
fn an_answer_that_is_another() {
    // It sends what is in its memory, and not what came.
    let answer = |side: &Half| {
        side.post_receive();
        side.qp.post_send(SendWr::send(2, side.mr.sge(HALF..HALF + 1))).unwrap();
    };
    let server = Scripted::start(17, answer, Mtu::B4096);
    // A byte of zeros: that of the first message is another one.
    fails(json(17, server.port, &[]), "data", &["byte 0 of 1 came back as another one"]);
}

#[test]
fn a_device_from_which_there_is_no_way() {
    // Somebody who is found at one address and says another.
    let (listener, port) = listen();
    let server = thread::Builder::new().spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut hello = String::new();
        BufReader::new(&stream).read_line(&mut hello).unwrap();
        writeln!(&stream, r#"{{"offer":{{"endpoint":"[203.0.113.1]/11/22/0/4096/1/0"}}}}"#)
            .unwrap();
    });
    let words =
        ["there is no way from 127.41.23.1", "a loopback address reaches this machine alone"];
    fails(json(23, port, &[]), "address", &words);
    server.unwrap().join().unwrap();
}

/// Plays the server of `ibv_rc_pingpong`: `count` messages of `size` bytes each way.
fn pingpong_server(test: u8, count: usize, size: usize) -> (u16, thread::JoinHandle<()>) {
    let (listener, port) = listen();
    let side = Half::new(test);
    let play = move || {
        side.post_receive();
        let (mut stream, _) = listener.accept().unwrap();
        let mut address = [0; 52];
        stream.read_exact(&mut address).unwrap();
        let peer = read_address(&address);
        side.qp.connect(&QpEndpoint { mtu: Mtu::B1024, ..peer }).unwrap();
        write_address(&mut stream, &side.qp.endpoint());
        let mut done = Vec::new();
        stream.read_to_end(&mut done).unwrap();
        assert_eq!(done, b"done\0");
        // A message is answered when it has come and the answer before is done, whichever is first.
        let (mut come, mut begun, mut done) = (0, 0, 0);
        while done < count {
            let wc = side.cq.wait(LONG).unwrap().ok().unwrap();
            if wc.wr_id == 1 {
                come += 1;
                side.post_receive();
            } else {
                done += 1;
            }
            if begun < count && come > begun && done == begun {
                begun += 1;
                side.qp.post_send(SendWr::send(2, side.mr.sge(HALF..HALF + size))).unwrap();
            }
        }
    };
    (port, thread::Builder::new().spawn(play).unwrap())
}

fn read_address(bytes: &[u8; 52]) -> QpEndpoint {
    let text = std::str::from_utf8(&bytes[..51]).unwrap();
    assert_eq!(bytes[51], 0);
    assert_eq!((&text[4..5], &text[11..12], &text[18..19]), (":", ":", ":"), "{text}");
    let number = |range: std::ops::Range<usize>| u32::from_str_radix(&text[range], 16).unwrap();
    assert_eq!(number(0..4), 0, "RoCE has no LIDs");
    let gid = Gid(u128::from_str_radix(&text[19..], 16).unwrap().to_be_bytes());
    let [qpn, psn] = [number(5..11), number(12..18)];
    format!("[{}]/{qpn:x}/{psn:x}", gid.ip().unwrap()).parse().unwrap()
}

fn write_address(stream: &mut TcpStream, e: &QpEndpoint) {
    let gid: String = e.gid.0.iter().map(|byte| format!("{byte:02x}")).collect();
    write!(stream, "0000:{:06x}:{:06x}:{gid}\0", e.qpn, e.psn).unwrap();
}

#[test]
fn a_server_of_ibv_rc_pingpong_answers() {
    for (test, ours, theirs) in [(18, 1, 1), (19, 5000, 5000), (20, 64, 4096)] {
        let (port, server) = pingpong_server(test, 3, theirs);
        let (code, json, stderr) = json(test, port, &["--pingpong", "-s", &ours.to_string()]);
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{json}");
        assert_eq!((&json["answered"], &json["mtu"]), (&3.into(), &1024.into()), "{json}");
        for ping in json["pings"].as_array().unwrap() {
            assert_eq!(ping["bytes"], theirs, "as many as it was told");
        }
        server.join().unwrap();
    }
}

#[test]
fn a_server_of_ibv_rc_pingpong_that_ends_early() {
    let (port, server) = pingpong_server(21, 1, 1);
    let (code, json, stderr) = json(21, port, &["--pingpong", "-c", "3"]);
    assert_eq!((code, &json["answered"], &json["sent"]), (Some(1), &1.into(), &2.into()), "{json}");
    assert_eq!(json["failure"]["step"], "answer", "{stderr}");
    server.join().unwrap();
}

#[test]
fn a_server_of_ibv_rc_pingpong_without_an_index() {
    let (listener, port) = listen();
    let server = thread::Builder::new().spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 52]).unwrap();
        write_address(&mut stream, &QpEndpoint { gid: Gid([0; 16]), ..read_address(&EXAMPLE) });
    });
    fails(json(22, port, &["--pingpong"]), "out-of-band", &["start it with -g"]);
    server.unwrap().join().unwrap();
}

const EXAMPLE: [u8; 52] = *b"0000:000011:000022:00000000000000000000ffff7f000001\0";

#[test]
fn networks_of_our_own() {
    if std::env::var_os("SOFTROCE_NETNS").is_some() {
        return in_a_namespace();
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/netns.sh");
    let test = std::env::current_exe().unwrap();
    let args = ["--exact", "networks_of_our_own", "--nocapture"];
    let inside = Running::start(Command::new(script).arg(test).args(args)).finish();
    match inside.code {
        Some(77) => skip(inside.stderr.trim()),
        _ => assert!(inside.ok().contains("1 passed")),
    }
}

fn ip(command: &str) {
    let status = Command::new("ip").args(command.split(' ')).status().unwrap();
    assert!(status.success(), "ip {command}");
}

fn in_a_namespace() {
    // No interface but lo: the rest of the world cannot be reached.
    let Finished { code, stderr, .. } = run(&["203.0.113.1"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("address: 203.0.113.1 cannot be reached from here"), "{stderr}");

    // Two addresses of IPv6.
    let listener = Listener::run(ping(&["--listen", "-d", "soft:udp=fd00::2"]));
    let port = listener.port.to_string();
    let out = run(&["fd00::2", "-p", &port, "-d", "soft:udp=fd00::1", "-c", "2", "-i", "0"]).ok();
    assert!(
        out.contains("PING fd00::2 (fd00::2) from fd00::1 (soft:udp=fd00::1): 1 byte"),
        "{out}"
    );
    assert!(out.contains("2 sent, 2 answered"), "{out}");

    // An interface whose other end is down; the host is found by another way.
    ip("link add v0 type veth peer name v1");
    ip("address add 10.9.0.1/24 dev v0");
    ip("link set v0 up");
    let listener = Listener::start(30);
    let (port, host) = (listener.port.to_string(), address(30, SERVER).to_string());
    let down = run(&[&host, "-p", &port, "-d", "soft:v0"]);
    assert_eq!(down.code, Some(1));
    assert!(down.stderr.contains("device: the port of soft:v0 is down"), "{}", down.stderr);
    ip("link delete v0");

    behind_a_router();
}

/// A network namespace of its own, as long as its process lives.
struct Namespace(Child);

impl Namespace {
    fn new() -> Self {
        let outside = std::fs::read_link("/proc/self/ns/net").unwrap();
        let holder = Self(Command::new("unshare").args(["-n", "sleep", "600"]).spawn().unwrap());
        let file = format!("/proc/{}/ns/net", holder.0.id());
        // It has it once the process has got that far.
        while std::fs::read_link(&file).unwrap() == outside {
            thread::yield_now();
        }
        holder
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// The same command, run in it.
    fn inside(&self, command: &Command) -> Command {
        let mut inside = Command::new("nsenter");
        inside.args(["-t", &self.pid(), "-n"]).arg(command.get_program()).args(command.get_args());
        inside.env_remove("SOFTROCE_DEVICE").stdin(Stdio::null());
        inside
    }

    fn sh(&self, script: &str) {
        let mut sh = Command::new("sh");
        let status = self.inside(sh.args(["-ec", script])).status().unwrap();
        assert!(status.success(), "{script}");
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Both ends have large packets, and the router between them has not.
fn behind_a_router() {
    let [router, far] = [(); 2].map(|()| Namespace::new());
    ip("link add near type veth peer name r0");
    ip(&format!("link set r0 netns {}", router.pid()));
    ip("link set near mtu 9000 up");
    ip("address add 10.8.0.1/24 dev near");
    router.sh(&format!(
        "ip link add r1 type veth peer name far netns {}
         ip link set r0 mtu 9000 up
         ip link set r1 mtu 1500 up
         ip address add 10.8.0.254/24 dev r0
         ip address add 10.8.1.254/24 dev r1
         echo 1 >/proc/sys/net/ipv4/ip_forward",
        far.pid()
    ));
    ip("route add 10.8.1.0/24 via 10.8.0.254");
    far.sh("ip link set lo up
         ip link set far mtu 9000 up
         ip address add 10.8.1.1/24 dev far
         ip route add default via 10.8.1.254");
    let listener = Listener::run(far.inside(&ping(&["--listen", "-d", "soft:far"])));
    let port = listener.port.to_string();
    // Without a device: that of the address on the way.
    let narrow = run(&["10.8.1.1", "-p", &port]);
    assert_eq!(narrow.code, Some(1), "{}", narrow.stdout);
    let what = "mtu: packets of 4096 bytes do not arrive; the path carries 1024: use --mtu 1024";
    assert!(narrow.stderr.contains(what), "{}", narrow.stderr);
    assert!(narrow.stdout.contains("from 10.8.0.1 (soft:udp=10.8.0.1)"), "{}", narrow.stdout);
    let out =
        run(&["10.8.1.1", "-p", &port, "-m", "1024", "-s", "9000", "-c", "2", "-i", "0"]).ok();
    assert!(out.contains("2 sent, 2 answered"), "{out}");
}
