//! `softroce decode`, run as a program.

#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use softroce::capture::Writer;
use softroce::net;
use softroce::time::Instant;

const SOFTROCE: &str = env!("CARGO_BIN_EXE_softroce");

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data").join(name)
}

fn pcaps() -> Vec<PathBuf> {
    let files = fs::read_dir(data("captures")).unwrap().map(|entry| entry.unwrap().path());
    let mut pcaps: Vec<_> = files.filter(|p| p.extension().is_some_and(|e| e == "pcap")).collect();
    pcaps.sort();
    pcaps
}

/// A file of a test's own, gone when the test is over.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let path = dir.join(format!("{}-{name}", std::process::id()));
        fs::write(&path, bytes).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn decode<P: AsRef<OsStr>>(options: &[&str], files: &[P]) -> Output {
    Command::new(SOFTROCE).arg("decode").args(options).args(files).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn objects(output: &Output) -> Vec<Value> {
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn status(output: &Output) -> Option<i32> {
    output.status.code()
}

#[test]
fn every_capture_is_counted_right() {
    let files = pcaps();
    let output = decode(&["--json"], &files);
    assert_eq!(status(&output), Some(0));
    assert_eq!(text(&output.stderr), "");
    let objects = objects(&output);
    assert_eq!(objects.len(), 64);
    for (file, object) in files.iter().zip(objects) {
        let beside = fs::read_to_string(file.with_extension("json")).unwrap();
        let beside: Value = serde_json::from_str(&beside).unwrap();
        let rxe = beside["stats"]["icrc"]["rxe"].as_u64().unwrap_or(0);
        let packets = beside["packets"].as_u64().unwrap();
        let expected = json!({
            "file": file.display().to_string(),
            "packets": packets,
            "rocev2": packets,
            "icrc_ok": packets - rxe,
            "icrc_bad": 0,
            "icrc_other": rxe,
            "opcodes": beside["opcodes"],
        });
        assert_eq!(object, expected);
    }
}

#[test]
fn keys_stand_in_their_order() {
    let output = decode(&["--json"], &[data("captures/k7-flush-v6.pcap")]);
    let line = text(&output.stdout);
    let keys = [
        "file",
        "packets",
        "rocev2",
        "icrc_ok",
        "icrc_bad",
        "icrc_other",
        "opcodes",
        "RC_FLUSH",
        "RC_READ_RESP_ONLY",
    ];
    let places: Vec<_> = keys.iter().map(|k| line.find(&format!("\"{k}\":")).unwrap()).collect();
    assert!(places.is_sorted(), "{line}");
}

#[test]
fn a_line_per_packet_and_a_summary() {
    let output = decode(&[], &[data("captures/loss-atomic-ack-v6.pcap")]);
    assert_eq!(status(&output), Some(0));
    let text = text(&output.stdout);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        lines[0],
        "     1     0.000000000 [fd99::11]:53376 > [fd99::12] tc=00 flow=00000 hop=64 RC_FETCH_ADD \
         se=0 m=0 pad_count=0 tver=0 pkey=ffff fecn=0 becn=0 dest_qp=000040 ack_req=1 psn=000100 \
         va=00007fe9df37b000 rkey=0000352f swap_add=0102030405060708 compare=0000000000000000 \
         payload=0 icrc=9856392e ok"
    );
    assert!(lines[2].ends_with(" ok [retransmission] [duplicate: was answered already]"));
    assert!(lines[3].ends_with(" ok [answered again]"));
    let summary = lines[6..].join("\n");
    assert!(summary.starts_with(&format!(
        "{}: 6 packets, 6 of them RoCEv2; ICRC: 6 ok, 0 bad, 0 other\n        3 RC_ATOMIC_ACK\n",
        data("captures/loss-atomic-ack-v6.pcap").display()
    )));
    assert!(summary.contains("\n  noted:\n        1 answered again\n"));

    let quiet = decode(&["-q"], &[data("captures/loss-atomic-ack-v6.pcap")]);
    assert_eq!(String::from_utf8(quiet.stdout).unwrap().trim_end(), summary);
}

#[test]
fn other_kinds_of_captures() {
    let unsplit = ["loopback-unsplit.pcap", "any-cooked.pcap", "any-cooked-v2.pcap"];
    let files: Vec<_> = unsplit.iter().map(|f| data("links").join(f)).collect();
    let output = decode(&["--json"], &files);
    assert_eq!(status(&output), Some(0));
    for object in objects(&output) {
        assert_eq!(object["icrc_ok"], 2);
        assert_eq!(object["icrc_bad"], 0);
        assert_eq!(object["icrc_other"], 2);
        assert_eq!(object["rocev2"], 4);
    }
    let output = decode(&[], &files[..1]);
    let text = text(&output.stdout);
    assert_eq!(text.matches("unsplit send: datagrams of 1040 bytes, icrc of all ok").count(), 2);
    assert_eq!(text.matches("\n       | ").count(), 10);

    let output = decode(&["--json"], &[data("links/loopback-snaplen-60.pcap")]);
    assert_eq!(status(&output), Some(0));
    let object = &objects(&output)[0];
    assert_eq!((&object["packets"], &object["icrc_other"]), (&json!(4), &json!(2)));
}

/// A capture with one packet whose ICRC is wrong.
fn with_a_wrong_icrc() -> Vec<u8> {
    let mut bytes = fs::read(data("captures/rc-tos-ttl-v4.pcap")).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    bytes
}

#[test]
fn a_wrong_icrc_is_status_1() {
    let file = Scratch::new("wrong.pcap", &with_a_wrong_icrc());
    let good = data("captures/rc-tos-ttl-v4.pcap");
    let output = decode(&["--json"], &[&file.0, &good]);
    assert_eq!(status(&output), Some(1));
    let objects = objects(&output);
    assert_eq!((&objects[0]["icrc_ok"], &objects[0]["icrc_bad"]), (&json!(3), &json!(1)));
    assert_eq!((&objects[1]["icrc_ok"], &objects[1]["icrc_bad"]), (&json!(4), &json!(0)));
    let output = decode(&[], &[&file.0]);
    assert_eq!(text(&output.stdout).matches(" BAD (computed ").count(), 1);
}

#[test]
fn bad_input_is_status_2_and_one_line_and_the_rest_is_done() {
    let good = data("captures/rc-tos-ttl-v4.pcap");
    let whole = fs::read(&good).unwrap();
    let missing = (PathBuf::from("no-such-file.pcap"), "cannot be read: No such file");
    let scratch = [
        (Scratch::new("empty", &[]), "is empty"),
        (Scratch::new("text", b"hello world"), "is neither a pcap nor a pcapng file: it begins"),
        (Scratch::new("cut", &whole[..200]), "ends in the middle of a packet or header, after 1 "),
        (
            Scratch::new("damaged", &[&whole[..24], &[0xff; 40]].concat()),
            "is damaged after 0 packets: the next packet claims more than 16 MiB",
        ),
        (
            Scratch::new("radio", &[&whole[..20], &[105], &whole[21..]].concat()),
            "has link type 105: only Ethernet, Linux cooked and raw IP are understood",
        ),
    ];
    let bad = scratch.iter().map(|(s, why)| (s.0.clone(), *why));
    for (path, why) in bad.chain([missing, (data("captures"), "cannot be read: Is a directory")]) {
        for options in [&["--json"][..], &["-q"], &[]] {
            let output = decode(options, &[&good, &path, &good]);
            assert_eq!(status(&output), Some(2), "{path:?}");
            let complaint = text(&output.stderr);
            assert_eq!(complaint.lines().count(), 1, "{complaint}");
            let begin = format!("softroce: {} {why}", path.display());
            assert!(complaint.starts_with(&begin), "{complaint}");
            let done = text(&output.stdout).matches("rc-tos-ttl-v4.pcap").count();
            assert_eq!(done, 2, "the others are decoded");
            if options == ["--json"] {
                assert_eq!(objects(&output).len(), 2);
            }
        }
    }
    // Worse than a wrong ICRC, in whatever order.
    let wrong = Scratch::new("wrong-too.pcap", &with_a_wrong_icrc());
    for files in [[&wrong.0, &scratch[0].0.0], [&scratch[0].0.0, &wrong.0]] {
        assert_eq!(status(&decode(&["-q"], &files)), Some(2));
    }
}

#[test]
fn wrong_usage_is_status_2() {
    assert_eq!(status(&decode::<&str>(&[], &[])), Some(2));
    assert_eq!(
        status(&decode(&["--no-such-option"], &[data("captures/rc-read-v4.pcap")])),
        Some(2)
    );
}

#[test]
fn frames_that_are_not_rocev2_are_counted_apart() {
    let mut bytes = fs::read(data("captures/rc-tos-ttl-v4.pcap")).unwrap();
    // The first frame becomes ARP by its ethertype.
    bytes[24 + 16 + 13] = 0x06;
    let file = Scratch::new("arp.pcap", &bytes);
    let output = decode(&["--json"], &[&file.0]);
    assert_eq!(status(&output), Some(0));
    let object = &objects(&output)[0];
    assert_eq!((&object["packets"], &object["rocev2"]), (&json!(4), &json!(3)));
    let output = decode(&["-q"], &[&file.0]);
    assert!(text(&output.stdout).ends_with("  other frames:\n        1 ethertype 0x0806\n"));
}

#[test]
fn the_standard_input_is_a_file() {
    let mut child = Command::new(SOFTROCE)
        .args(["decode", "--json", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let bytes = fs::read(data("captures/rc-read-v4.pcap")).unwrap();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(status(&output), Some(0));
    assert_eq!(objects(&output)[0]["packets"], 21);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    // More than a pipe holds.
    let files = [pcaps(), pcaps(), pcaps(), pcaps()].concat();
    let mut child = Command::new(SOFTROCE)
        .arg("decode")
        .args(&files)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut some = [0; 100];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stderr), "");
    assert_eq!(status(&output), Some(0));
}

#[test]
fn unwritable_output_is_a_failure() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = Command::new(SOFTROCE)
        .arg("decode")
        .arg(data("captures/rc-read-v4.pcap"))
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(status(&output), Some(2));
    assert!(text(&output.stderr).starts_with("softroce: cannot write: "));
}

#[test]
fn unknown_opcodes_and_malformed_packets() {
    let path = net::Path {
        src: [10, 0, 0, 1].into(),
        dst: [10, 0, 0, 2].into(),
        src_port: 0xc000,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        scope_id: 0,
    };
    let mut writer = Writer::new(Vec::new()).unwrap();
    let mut datagram = [0; 20];
    datagram[0] = 0x1e;
    writer.write(Instant::from_nanos(1), &path, 0, &datagram).unwrap();
    // A READ request without room for its RETH.
    datagram[0] = 0x0c;
    writer.write(Instant::from_nanos(2), &path, 0, &datagram).unwrap();
    // Too short to be anything.
    writer.write(Instant::from_nanos(3), &path, 0, &datagram[..15]).unwrap();
    let file = Scratch::new("odd.pcapng", &writer.into_inner().unwrap());

    let output = decode(&["--json"], &[&file.0]);
    assert_eq!(status(&output), Some(1), "their ICRCs are wrong as well");
    let object = &objects(&output)[0];
    assert_eq!(object["opcodes"], json!({"RC_READ_REQUEST": 1, "UNKNOWN_1E": 1}));
    assert_eq!((&object["packets"], &object["rocev2"]), (&json!(3), &json!(2)));
    let output = decode(&[], &[&file.0]);
    let text = text(&output.stdout);
    assert!(text.contains(" malformed (unknown opcode 0x1e) icrc=00000000 BAD (computed "));
    assert!(text.contains("1 UDP port 4791, too short for a BTH and an ICRC\n"));
}
