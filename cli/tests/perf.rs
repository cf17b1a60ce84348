//! `softroce perf`, run as a program: every test with data that is checked, who is told what when it fails.
//!
//! Nothing here judges speed: the machine may be busy.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "helpers of tests, where a panic is the report")]

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

const SOFTROCE: &str = env!("CARGO_BIN_EXE_softroce");

fn perf(args: &[&str]) -> Command {
    let mut command = Command::new(SOFTROCE);
    command.arg("perf").args(args).env_remove("SOFTROCE_DEVICE").stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    perf(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Runs both sides and gives the JSON.
fn measure(args: &[&str]) -> Value {
    let output = run(&[args, &["--local", "--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output.stderr));
    let line = text(&output.stdout);
    assert_eq!(line.lines().count(), 1, "{line}");
    serde_json::from_str(line).unwrap()
}

fn free_port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string()
}

/// A server that has said that it waits, killed when it goes out of scope.
struct Server {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
    /// What it said to type.
    invitation: String,
}

impl Server {
    fn start(args: &[&str]) -> Self {
        let mut child = perf(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut server = Self { child, out, invitation: String::new() };
        while !server.invitation.contains("softroce perf ") {
            server.invitation.clear();
            assert!(server.out.read_line(&mut server.invitation).unwrap() > 0, "the server ended");
        }
        server
    }

    /// Its exit status, and what it said.
    fn end(mut self) -> (Option<i32>, String, String) {
        let (mut out, mut err) = (String::new(), String::new());
        self.out.read_to_string(&mut out).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        (self.child.wait().unwrap().code(), out, err)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn bandwidth_tests_move_and_check_data() {
    for (test, size, every) in [
        ("write_bw", "100000", &["-q", "3", "-n", "50"][..]),
        ("write_bw", "1", &["-n", "300", "-l", "16"]),
        ("read_bw", "65536", &["-q", "2", "-n", "40"]),
        ("send_bw", "5000", &["-q", "2", "-n", "200", "-r", "64"]),
        ("send_bw", "64", &["-n", "1000", "-l", "32", "-e"]),
    ] {
        let json = measure(&[&[test, "-s", size], every].concat());
        let qps: u64 =
            every.iter().position(|a| *a == "-q").map_or(1, |i| every[i + 1].parse().unwrap());
        let n: u64 =
            every.iter().position(|a| *a == "-n").map_or(0, |i| every[i + 1].parse().unwrap());
        assert_eq!(json["test"], test);
        assert_eq!(json["qps"], qps);
        let row = &json["rows"][0];
        assert_eq!(row["bytes"].to_string(), size);
        assert_eq!(row["iterations"], n * qps, "{json}");
        let (peak, average) =
            (row["bw_peak_gbits"].as_f64().unwrap(), row["bw_average_gbits"].as_f64().unwrap());
        assert!(0.0 < average && average <= peak * 1.000_001, "{json}");
        assert_eq!(json["port_overruns"], 0, "{json}");
        let packets = size.parse::<u64>().unwrap().div_ceil(4096) * n * qps;
        assert!(json["sent_pkts"].as_u64().unwrap() >= packets, "{json}");
    }
}

#[test]
fn atomics_add_up() {
    let json = measure(&["atomic_bw", "-q", "2", "-n", "300"]);
    assert_eq!(
        (&json["rows"][0]["bytes"], &json["rows"][0]["iterations"]),
        (&8.into(), &600.into())
    );
    let json = measure(&["atomic_lat", "-n", "100"]);
    assert_eq!(json["rows"][0]["iterations"], 100);
}

#[test]
fn latency_tests_play_as_often_as_asked() {
    for (test, more) in [
        ("write_lat", &["-s", "1"][..]),
        ("write_lat", &["-s", "9000"]),
        ("send_lat", &["-s", "64"]),
        ("send_lat", &["-s", "8192", "-e"]),
        ("read_lat", &["-s", "5000"]),
    ] {
        // More than 256: the number that WRITE carries in its last byte starts over.
        let json = measure(&[&[test, "-n", "300"], more].concat());
        let row = &json["rows"][0];
        assert_eq!(row["iterations"], 300, "{json}");
        let at = |name: &str| row[name].as_f64().unwrap();
        let ordered =
            [at("t_min_us"), at("t_typical_us"), at("p99_us"), at("p99_9_us"), at("t_max_us")];
        assert!(ordered.is_sorted() && ordered[0] > 0.0, "{json}");
        assert!(at("t_min_us") <= at("t_avg_us") && at("t_avg_us") <= at("t_max_us"), "{json}");
    }
}

#[test]
fn all_sizes_and_a_duration() {
    let json = measure(&["send_bw", "-a", "-n", "20"]);
    let sizes: Vec<u64> =
        json["rows"].as_array().unwrap().iter().map(|r| r["bytes"].as_u64().unwrap()).collect();
    assert_eq!(sizes, (1..=23).map(|n| 1 << n).collect::<Vec<_>>());
    // Small messages, of which not each has a completion when time is up.
    let json = measure(&["write_bw", "-s", "256", "-D", "1"]);
    assert!(json["rows"][0]["iterations"].as_u64().unwrap() > 0);
}

#[test]
fn one_process_where_there_is_one_address() {
    let json = measure(&["write_bw", "-d", "soft:udp=127.0.77.1", "-n", "200"]);
    assert_eq!((&json["local"], &json["remote"]), (&"127.0.77.1".into(), &"127.0.77.1".into()));
    let json = measure(&["send_lat", "-d", "soft:udp=127.0.77.2", "-n", "50"]);
    assert_eq!(json["rows"][0]["iterations"], 50);
}

#[test]
fn a_small_receive_buffer_is_not_overrun() {
    // What Linux gives by default: 208 KiB as the kernel counts.
    let device = ["-d", "soft:lo,rcvbuf=106496"];
    let json =
        measure(&[&["write_bw", "-q", "8", "-s", "262144", "-n", "50"], &device[..]].concat());
    assert_eq!(json["port_overruns"], 0, "{json}");
    assert!(json["retransmitted_percent"].as_f64().unwrap() < 0.1, "{json}");
}

#[test]
fn the_other_shell_types_what_the_server_says() {
    let port = free_port();
    let server = Server::start(&["read_bw", "-p", &port]);
    let typed: Vec<&str> = server.invitation.split_whitespace().collect();
    assert_eq!(typed[..3], ["softroce", "perf", "read_bw"], "{}", server.invitation);
    let output = run(&[&typed[2..], &["-n", "100", "-s", "20000", "--report_gbits"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    assert!(table.contains("BW average[Gb/sec]"), "{table}");
    let row = |table: &str| {
        let line = table.lines().find(|line| line.starts_with(" 20000 ")).unwrap();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(row(table)[1], "100");
    let (status, out, err) = server.end();
    assert_eq!((status, err.as_str()), (Some(0), ""));
    assert!(out.contains("BW average[MiB/sec]"), "{out}");
    assert_eq!(row(&out)[4], row(table)[4], "both print the same rate");
    let lost = |table: &str| table.lines().last().unwrap().to_owned();
    assert_eq!(lost(&out), lost(table));
}

#[test]
fn a_client_without_a_server_a_server_without_a_client() {
    let output = run(&["write_bw", "127.0.0.1", "-p", &free_port()]);
    assert_eq!(output.status.code(), Some(1));
    let e = text(&output.stderr);
    assert!(e.contains("no server at 127.0.0.1") && e.contains("softroce perf write_bw"), "{e}");
    assert_eq!(e.lines().count(), 1, "{e}");

    // The client goes away in the middle.
    let port = free_port();
    let server = Server::start(&["write_bw", "-p", &port]);
    let mut client = perf(&["write_bw", "127.0.0.2", "-p", &port, "-D", "60"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut heading = [0; 8];
    client.stdout.take().unwrap().read_exact(&mut heading).unwrap();
    client.kill().unwrap();
    client.wait().unwrap();
    let (status, _, err) = server.end();
    assert_eq!(status, Some(1));
    assert!(err.contains("gone") && err.lines().count() == 1, "{err}");
}

#[test]
fn both_sides_must_run_the_same_test() {
    let port = free_port();
    let server = Server::start(&["write_bw", "-p", &port]);
    let output = run(&["send_bw", "127.0.0.1", "-p", &port]);
    let (status, _, err) = server.end();
    for (status, err) in [(output.status.code(), text(&output.stderr)), (status, err.as_str())] {
        assert_eq!(status, Some(2), "{err}");
        assert!(err.contains("the server runs write_bw, the client send_bw"), "{err}");
    }
}

#[test]
fn bad_input_is_one_line() {
    for (args, part) in [
        (&["write_bw", "-q", "0"][..], "-q 0"),
        (&["write_bw", "-s", "many"], "many"),
        (&["write_bw", "-m", "1500", "--local"], "4096"),
        (&["write_lat", "-t", "8"], "bandwidth tests"),
        (&["write_bw", "--local", "127.0.0.1"], "--local"),
        (&["write_bw", "--local", "-d", "soft:nowhere"], "soft:lo"),
        (&["write_bw", "--local", "-d", "soft:lo,rcvbuf=0"], "rcvbuf=0"),
        (&["write_bw", "-s", "64X"], "such as 4096, 64K or 1M"),
        (&["write_bw", "--local", "-d", "soft:udp=192.0.2.1"], "not an address of this host"),
        (&["write_bw", "no host of this name"], "no host"),
        (&["ratios", "--rows", "nothing"], "write_1m_4096"),
        (&["ratios", "--pairs", "1"], "3..=80"),
        (&["sweep", "-s", "0"], "-s 0"),
        (&["sweep", "--depths", "1,20000"], "-t 20000"),
        (&["sweep", "--qps", "1,x"], "'x'"),
        (&["sweep", "--svg", "/nowhere/chart.svg"], "/nowhere/chart.svg"),
        (&["sweep", "--test", "write_lat"], "write_bw"),
    ] {
        let output = run(args);
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {err}");
        assert!(err.contains(part) && err.lines().count() == 1, "{args:?}: {err}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn ratios_are_measured_and_told() {
    let output =
        run(&["ratios", "--rows", "send64_single,lat_spin,lat_block", "--pairs", "3", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let json: Value = serde_json::from_str(text(&output.stdout)).unwrap();
    let rows = json["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["send64_single", "lat_spin", "lat_block"]);
    for row in rows {
        let at = |name: &str| row[name].as_f64().unwrap();
        assert!(0.0 < at("q1") && at("q1") <= at("ratio") && at("ratio") <= at("q3"), "{row}");
        assert!(at("pairs") >= 3.0 && at("wall") > 0.0, "{row}");
        assert!(at("base_ns") > 0.0 && at("engine_ns") > 0.0, "{row}");
        // A send at one side and a receive at the other, more or less.
        assert!((0.1..10.0).contains(&at("calls")), "{row}");
        assert!(row["drops"].is_u64(), "{row}");
    }
}

#[test]
fn a_sweep_is_a_table_and_a_chart() {
    let name = |what: &str| {
        let file = format!("softroce-sweep-{}.{what}", std::process::id());
        std::env::temp_dir().join(file).into_os_string().into_string().unwrap()
    };
    let (csv, svg) = (name("csv"), name("svg"));
    let output = run(&[
        "sweep", "--test", "send_bw", "-n", "40", "-s", "64,5000", "-t", "1,8", "-q", "1,2",
        "--csv", &csv, "--svg", &svg, "--json",
    ]);
    let table = std::fs::read_to_string(&csv);
    let chart = std::fs::read_to_string(&svg);
    for file in [&csv, &svg] {
        let _ = std::fs::remove_file(file);
    }
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let json: Value = serde_json::from_str(text(&output.stdout)).unwrap();
    let rows = json["rows"].as_array().unwrap();
    let of = |row: &Value| ["qps", "tx_depth", "bytes"].map(|name| row[name].as_u64().unwrap());
    let combinations = [1, 2].into_iter().flat_map(|qps| {
        [1, 8].into_iter().flat_map(move |depth| [64, 5000].map(|bytes| [qps, depth, bytes]))
    });
    assert!(rows.iter().map(of).eq(combinations), "{json}");
    let table = table.unwrap();
    assert_eq!(table.lines().count(), 1 + rows.len(), "{table}");
    for (row, line) in rows.iter().zip(table.lines().skip(1)) {
        let [qps, depth, bytes] = of(row);
        let messages = row["messages"].as_u64().unwrap();
        assert_eq!(messages, 40 * qps);
        assert!(line.starts_with(&format!("send_bw,{qps},{depth},{bytes},{messages},")), "{line}");
        assert!(row["gbits"].as_f64().unwrap() > 0.0, "{row}");
    }
    assert_eq!(json["losses"].as_array().unwrap().len(), 4);
    let chart = chart.unwrap();
    assert!(chart.starts_with("<svg") && chart.contains("2 QP, depth 8"), "{chart}");
}
