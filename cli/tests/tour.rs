//! `softroce tour`, run as a program: two processes that talk over UDP.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "helpers of tests, where a panic is the report")]

#[path = "../../tests/common/skip.rs"]
mod skip;

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const SOFTROCE: &str = env!("CARGO_BIN_EXE_softroce");

/// Longest that a test waits for anything: far longer than it takes, for machines that are busy.
const PATIENCE: Duration = Duration::from_secs(120);

#[expect(clippy::disallowed_methods, reason = "processes live in real time")]
fn now() -> Instant {
    Instant::now()
}

/// Until something holds; `false` if it does not in time.
#[expect(clippy::disallowed_methods, reason = "processes live in real time")]
fn eventually(mut holds: impl FnMut() -> bool) -> bool {
    let deadline = now() + PATIENCE;
    while now() < deadline {
        if holds() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

fn tour(args: &[&str]) -> Command {
    let mut command = Command::new(SOFTROCE);
    command.arg("tour").args(args).stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn status(output: &Output) -> Option<i32> {
    output.status.code()
}

/// A file of a test's own, gone when the test is over.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
        Self(dir.join(format!("{}-{name}", std::process::id())))
    }

    fn name(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn len(&self) -> u64 {
        fs::metadata(&self.0).map_or(0, |m| m.len())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// State and parent of a process: proc_pid_stat(5).
fn process(pid: u32) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn children(of: u32) -> Vec<u32> {
    let pids = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|e| e.unwrap().file_name().to_str()?.parse().ok());
    pids.filter(|&pid| process(pid).is_some_and(|(_, parent)| parent == of)).collect()
}

/// Whether it is no more, or only waits for somebody to take note of its end.
fn is_gone(pid: u32) -> bool {
    process(pid).is_none_or(|(state, _)| state == 'Z')
}

fn signal(pid: u32, name: &str) {
    let kill = format!("kill -{name} {pid}");
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
}

/// A tour that is under way, and the second process of it.
fn under_way(capture: &Scratch, args: &[&str]) -> (Child, u32) {
    let first = tour(&["--pcap", capture.name()])
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It has sent something: both processes are in the middle of a row.
    assert!(eventually(|| capture.len() > 500_000), "the tour does not begin");
    let second = children(first.id());
    assert_eq!(second.len(), 1, "{second:?}");
    (first, second[0])
}

#[test]
fn every_row_is_verified() {
    let output = tour(&[]).output().unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!((status(&output), err), (Some(0), ""), "{out}");
    let rows: Vec<_> = out.lines().skip(1).take_while(|line| !line.is_empty()).collect();
    assert_eq!(rows.len(), 74);
    assert!(rows.iter().all(|row| row.ends_with(" yes")), "{out}");
    for part in [
        " operation ",
        "\n SEND                            0 B ",
        " 64 KiB + 3 ",
        "\n COMPARE & SWAP ",
        "\n WRITE + FLUSH all ",
        "\n SEND to an SRQ ",
        "\n UC WRITE with immediate ",
        "\n UD SEND with immediate ",
        "\n UD SEND to a group ",
        "\n MW type 1, then rebound ",
        "\nBetween soft:lo at 127.0.0.",
        ": every byte verified at both sides, in ",
        " tour --pcap tour.pcapng ",
    ] {
        assert!(out.contains(part), "{part:?}: {out}");
    }
    // The commands to try next exist.
    let (_, next) = out.split_once("\nNext:\n").unwrap();
    let ours = next.lines().filter_map(|line| line.strip_prefix(&format!("  {SOFTROCE} ")));
    let ours: Vec<_> = ours.collect();
    assert_eq!(ours.len(), 4, "{next}");
    for line in ours {
        let command = line.split(' ').next().unwrap();
        let help = Command::new(SOFTROCE).args([command, "--help"]).output().unwrap();
        assert_eq!(status(&help), Some(0), "{command}");
    }
}

#[test]
fn the_capture_holds_what_the_table_says() {
    let file = Scratch::new("tour, of a test.pcapng");
    let output = tour(&["--json", "--pcap", file.name()]).output().unwrap();
    assert_eq!((status(&output), text(&output.stderr)), (Some(0), ""));
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&object["verified"], &object["failure"]), (&Value::Bool(true), &Value::Null));
    assert_eq!(object["pcap"], file.name());
    let devices = object["devices"].as_array().unwrap();
    assert!(devices.len() == 2 && devices[0] != devices[1], "{devices:?}");
    let rows = object["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 74);
    let number = |row: &Value, key: &str| row[key].as_u64().unwrap();
    for row in rows {
        assert_eq!(row["verified"], true, "{row}");
        assert!(number(row, "latency_p50_ns") > 0, "{row}");
        let local = row["operation"].as_str().unwrap().contains("then");
        let moves = number(row, "size") > 0 && !local;
        assert_eq!(
            row["goodput_bytes_per_s"].as_f64().is_some_and(|rate| rate > 0.0),
            moves,
            "{row}"
        );
    }
    let row = |operation: &str, size: u64| {
        let is = |r: &&Value| r["operation"] == operation && r["size"] == size;
        rows.iter().find(is).unwrap_or_else(|| panic!("{operation} of {size}"))
    };
    for operation in ["SEND", "WRITE", "READ"] {
        for size in [0, 1, 64, 1024, 4096, 65_539, 1 << 20, 4 << 20] {
            let row = row(operation, size);
            // A path MTU of 4096 on the loopback interface; the last packet is shorter.
            let packets = number(row, "requests") * size.div_ceil(4096).max(1);
            let way = if operation == "READ" { "packets_received" } else { "packets_sent" };
            assert!(number(row, way) >= packets, "{row}");
        }
    }
    for operation in ["SEND with invalidate", "WRITE with immediate", "WRITE inline"] {
        assert_eq!(row(operation, 64)["requests"], 128);
    }
    for operation in ["COMPARE & SWAP", "FETCH & ADD", "ATOMIC WRITE"] {
        assert!(number(row(operation, 8), "packets_received") >= 128);
    }

    // The capture has all of these packets, and the answers that came after the last row.
    let counted = number(&object, "packets_sent") + number(&object, "packets_received");
    let decode = Command::new(SOFTROCE).args(["decode", "--json", file.name()]).output().unwrap();
    assert_eq!((status(&decode), text(&decode.stderr)), (Some(0), ""));
    let decoded: Value = serde_json::from_slice(&decode.stdout).unwrap();
    let packets = number(&decoded, "packets");
    assert!((counted..counted + 100).contains(&packets), "{packets} captured, {counted} counted");
    assert_eq!(number(&decoded, "icrc_ok"), packets, "{decoded}");
    assert_eq!((&decoded["icrc_bad"], &decoded["icrc_other"]), (&0.into(), &0.into()));
    for opcode in ["RC_SEND_LAST", "RC_SEND_ONLY_INV", "RC_WRITE_LAST_IMM", "RC_READ_REQUEST"] {
        assert!(number(&decoded["opcodes"], opcode) > 0, "{opcode}");
    }
    for (opcode, times) in OPCODES {
        assert_eq!(number(&decoded["opcodes"], opcode), *times, "{opcode}");
    }
    wireshark_agrees(&file, packets);
}

/// Packets of the capture, for some opcodes.
const OPCODES: &[(&str, u64)] = &[
    ("RC_CMP_SWAP", 128),
    ("RC_ATOMIC_WRITE", 128),
    ("RC_FLUSH", 3 * 128),
    ("UC_SEND_ONLY_IMM", 2 * 128),
    ("UC_WRITE_LAST_IMM", 62),
    // Each of the nine rows begins with one that must not arrive.
    ("UD_SEND_ONLY", 6 * 128 + 9),
    ("UD_SEND_ONLY_IMM", 3 * 128),
];

/// tshark finds RoCEv2 in every packet, and nothing wrong with it.
fn wireshark_agrees(file: &Scratch, packets: u64) {
    let tshark = |filter: &str| {
        Command::new("tshark")
            // Two heuristics that take short messages for other protocols.
            .args(["--disable-protocol", "rpcordma", "--disable-protocol", "infiniband.eoib"])
            .args(["-r", file.name(), "-Y", filter, "-T", "fields", "-e", "frame.number"])
            .output()
    };
    let strange = match tshark("_ws.malformed || !infiniband") {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return skip::skip("there is no tshark here");
        }
        result => result.unwrap(),
    };
    assert_eq!((status(&strange), text(&strange.stdout)), (Some(0), ""), "{strange:?}");
    let all = tshark("infiniband").unwrap();
    assert_eq!(text(&all.stdout).lines().count() as u64, packets);
}

#[test]
fn a_second_process_that_is_killed_is_a_failure() {
    let file = Scratch::new("killed.pcapng");
    let (first, second) = under_way(&file, &[]);
    let began = now();
    signal(second, "KILL");
    let output = first.wait_with_output().unwrap();
    assert!(now() - began < Duration::from_secs(30), "{:?}", now() - began);
    assert_eq!(status(&output), Some(1));
    let (out, complaint) = (text(&output.stdout), text(&output.stderr));
    assert!(
        complaint.starts_with("softroce: tour: ") && complaint.lines().count() == 1,
        "{complaint}"
    );
    assert!(complaint.contains("the second process ended: signal: 9 (SIGKILL)"), "{complaint}");
    assert!(out.contains(" yes\n") && out.contains(" NO\n"), "{out}");
    assert!(process(second).is_none(), "not even a zombie is left");
    // The capture ends with a whole packet.
    let decode = Command::new(SOFTROCE).args(["decode", "-q", file.name()]).output().unwrap();
    assert_eq!((status(&decode), text(&decode.stderr)), (Some(0), ""));
}

#[test]
fn a_second_process_that_hangs_is_a_failure() {
    let file = Scratch::new("hangs.pcapng");
    let (first, second) = under_way(&file, &["--json"]);
    signal(second, "STOP");
    let output = first.wait_with_output().unwrap();
    assert_eq!(status(&output), Some(1));
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(object["verified"], false);
    assert_eq!(object["rows"].as_array().unwrap().last().unwrap()["verified"], false);
    let failure = object["failure"].as_str().unwrap();
    assert_eq!(text(&output.stderr), format!("softroce: tour: {failure}\n"));
    assert!(process(second).is_none(), "it was killed: {failure}");
}

#[test]
fn the_second_process_does_not_outlive_the_first() {
    let file = Scratch::new("first-killed.pcapng");
    let (mut first, second) = under_way(&file, &[]);
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(eventually(|| is_gone(second)));
    // What had been captured is there, up to a whole packet.
    let decode = Command::new(SOFTROCE).args(["decode", "-q", file.name()]).output().unwrap();
    assert_eq!((status(&decode), text(&decode.stderr)), (Some(0), ""));
}

#[test]
fn what_cannot_begin_is_status_2_and_one_line() {
    let taken = Scratch::new("directory");
    fs::create_dir(&taken.0).unwrap();
    for (args, part) in [
        (&["--no-such-option"][..], "unexpected argument '--no-such-option' found"),
        (&["--jsn"], "tip: a similar argument exists: '--json'"),
        (&["--pcap"], "a value is required for '--pcap <FILE>'"),
        (&["soft:lo"], "unexpected argument 'soft:lo' found"),
        (
            &["--pcap", "/no/such/directory/t.pcapng"],
            "capturing to /no/such/directory/t.pcapng: No such",
        ),
        (&["--pcap", taken.name()], "Is a directory"),
        (&["--device", "soft:nonsense"], "there is no device \"nonsense\"; there is soft:lo"),
        (&["--device", "soft:lo,speed=fast"], "device option \"speed=fast\": wanted gso=on"),
        (
            &["--peer", "soft:udp=x"],
            "the second process: ibv_open_device: soft:udp=x: \"x\" is no IP",
        ),
        // Both would want the same address.
        (&["--device", "soft:udp=127.9.47.91"], "name a device that has one with --peer"),
        (
            &["--device", "soft:udp=127.9.47.91", "--peer", "soft:udp=127.9.47.91"],
            "the second process: ibv_open_device: ",
        ),
        (&["--second"], "--second is for `softroce tour` alone"),
    ] {
        let output = tour(args).output().unwrap();
        let complaint = text(&output.stderr);
        assert_eq!((status(&output), text(&output.stdout)), (Some(2), ""), "{args:?} {complaint}");
        assert!(complaint.starts_with("softroce: ") && complaint.contains(part), "{complaint}");
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
    }
    fs::remove_dir(&taken.0).unwrap();
}

#[test]
fn a_stranger_who_calls_is_not_taken_for_the_second_process() {
    let mut second =
        Command::new(SOFTROCE).args(["tour", "--second"]).stdin(Stdio::piped()).spawn().unwrap();
    // Nobody listens there (the port is that of discard, and unprivileged programs cannot have it).
    second.stdin.take().unwrap().write_all(b"9 12345\n").unwrap();
    let status = second.wait().unwrap();
    assert_eq!(status.code(), Some(1));
}

#[test]
fn a_capture_that_finds_no_room_is_status_2_and_the_tour_goes_on() {
    let file = Scratch::new("too-long.pcapng");
    // Files end at 2000 blocks of 512 bytes, as on a full disk.
    let script = "trap '' XFSZ; ulimit -f 2000; exec \"$0\" tour --json --pcap \"$1\"";
    let output = Command::new("sh").args(["-c", script, SOFTROCE, file.name()]).output().unwrap();
    let complaint = text(&output.stderr);
    assert_eq!(status(&output), Some(2), "{complaint}");
    assert!(complaint.starts_with("softroce: tour: the capture lacks "), "{complaint}");
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(object["verified"], true);
    assert!(file.len() <= 2000 * 512);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let mut first = tour(&[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(first.stdout.take());
    let mut complaint = String::new();
    first.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
    assert_eq!((first.wait().unwrap().code(), &complaint[..]), (Some(0), ""));
}
