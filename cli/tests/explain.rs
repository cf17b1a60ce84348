//! `softroce tour --explain`, run as a program.

#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const SOFTROCE: &str = env!("CARGO_BIN_EXE_softroce");
const TOPICS: [&str; 6] = ["read", "write", "send", "atomic", "rnr", "loss"];

fn softroce(args: &[&str]) -> Output {
    Command::new(SOFTROCE).args(args).stdin(Stdio::null()).output().unwrap()
}

fn explain(args: &[&str]) -> String {
    let output = softroce(&[&["tour", "--explain"], args].concat());
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), err.as_str()), (Some(0), ""), "{args:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&explain(&[args, &["--json"]].concat())).unwrap()
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
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn steps(object: &Value) -> &Vec<Value> {
    object["steps"].as_array().unwrap()
}

fn names(object: &Value) -> Vec<&str> {
    steps(object).iter().map(|step| step["step"].as_str().unwrap()).collect()
}

fn step<'a>(object: &'a Value, name: &str) -> &'a Value {
    steps(object).iter().find(|step| step["step"] == name).unwrap()
}

fn packets(object: &Value) -> Vec<&Value> {
    steps(object).iter().flat_map(|step| step["packets"].as_array().unwrap()).collect()
}

#[test]
fn a_read_is_told_in_five_steps_with_exact_counts() {
    for (mtu, responses) in [("4096", 256), ("1024", 1024)] {
        let text = explain(&["read", "--size", "1M", "--mtu", mtu]);
        let headings: Vec<_> = text
            .lines()
            .filter(|l| l.starts_with(|c: char| c.is_ascii_digit()))
            .map(|l| l.split(':').next().unwrap())
            .collect();
        let five = ["1. POST", "2. REQUEST", "3. ACCESS", "4. RESPONSE", "5. COMPLETION"];
        assert_eq!(headings, five);
        for line in [
            "fetches the WQE and gives it".to_owned(),
            format!("The network carries {responses} packets from B to A. [1048576 bytes]"),
            format!("#4 to #{}: {} more of the same", responses - 1, responses - 4),
            format!("{:9} RC_READ_REQUEST", 1),
            format!("{:9} RC_READ_RESP_FIRST", 1),
            format!("{:9} RC_READ_RESP_MIDDLE", responses - 2),
            format!("{:9} RC_READ_RESP_LAST", 1),
            "B's application nothing at all".to_owned(),
        ] {
            assert!(text.contains(&line), "{line:?} is missing in\n{text}");
        }
    }
}

#[test]
fn a_read_larger_than_the_receive_window_is_several_requests() {
    let object = json(&["read", "--size", "1M", "--mtu", "256"]);
    let count = |name: &str| object["totals"]["opcodes"][name].as_u64().unwrap();
    let (requests, firsts) = (count("RC_READ_REQUEST"), count("RC_READ_RESP_FIRST"));
    assert!(requests > 1);
    assert_eq!((firsts, count("RC_READ_RESP_LAST")), (requests, requests));
    assert_eq!(count("RC_READ_RESP_MIDDLE") + 2 * requests, 4096);
    assert_eq!(step(&object, "check")["times"], requests);
    assert_eq!(step(&object, "access")["times"], 4096);
}

#[test]
fn it_is_the_same_every_time() {
    for topic in TOPICS {
        assert_eq!(explain(&[topic]), explain(&[topic]));
        assert_eq!(explain(&[topic, "--json"]), explain(&[topic, "--json"]));
    }
}

#[test]
fn steps_have_stable_names_and_moved_bytes() {
    let object = json(&["read", "--size", "10000"]);
    assert_eq!(
        names(&object),
        [
            "post",
            "doorbell",
            "fetch",
            "request_packets",
            "accept",
            "check",
            "access",
            "response_packets",
            "place_response",
            "retire",
            "cqe",
            "poll"
        ]
    );
    for name in ["access", "response_packets", "place_response", "cqe"] {
        assert_eq!(step(&object, name)["bytes"], 10_000, "{name}");
    }
    let check = &step(&object, "check")["fields"];
    assert_eq!((&check["result"], &check["right"]), (&"granted".into(), &"REMOTE_READ".into()));
    let rkey = object["hosts"][1]["rkey"].as_u64().unwrap();
    assert_eq!(check["rkey"], format!("{rkey:08x}"));
    assert_eq!(object["involved"]["responder_application"], false);

    let send = json(&["send", "--size", "10000"]);
    let listed = names(&send);
    for pair in ["post_receive", "post", "gather", "place", "receive_cqe", "cqe"].windows(2) {
        let at = |name| listed.iter().position(|&n| n == name).unwrap();
        assert!(at(pair[0]) < at(pair[1]), "{listed:?}");
    }
    assert_eq!(send["involved"]["responder_application"], true);
    assert_eq!(step(&send, "place")["bytes"], 10_000);

    let atomic = json(&["atomic"]);
    assert!(step(&atomic, "access")["text"].as_str().unwrap().contains("41 + 1"));
    assert_eq!(packets(&atomic).len(), 2);
}

#[test]
fn times_go_forward_and_end_with_the_poll() {
    for topic in TOPICS {
        let object = json(&[topic]);
        let ns = |step: &Value, name: &str| step[name].as_u64().unwrap();
        let poll = ns(step(&object, "poll"), "begin_ns");
        assert_eq!(ns(&object["totals"], "elapsed_ns"), poll, "{topic}");
        for step in steps(&object) {
            assert!(ns(step, "begin_ns") <= ns(step, "end_ns"), "{step}");
            assert!(ns(step, "end_ns") <= poll, "{step}");
        }
        for p in packets(&object) {
            assert!(ns(p, "sent_ns") < ns(p, "switch_ns"), "{p}");
            let arrives = p["arrival_ns"].as_u64();
            assert_eq!(arrives.is_none(), p["lost"].is_string(), "{p}");
            assert!(arrives.is_none_or(|at| at > ns(p, "switch_ns")), "{p}");
        }
    }
}

#[test]
fn a_receiver_that_is_late_costs_an_rnr_nak_and_a_timer() {
    let object = json(&["rnr"]);
    let at = |name: &str, when: &str| step(&object, name)[when].as_u64().unwrap();
    let wait = at("wait_over", "begin_ns") - at("wait", "begin_ns");
    // A timer may fire a little late, never early.
    assert!((640_000..700_000).contains(&wait), "{wait}");
    assert!(at("wait", "begin_ns") < at("post_receive", "begin_ns"));
    assert!(at("post_receive", "begin_ns") < at("wait_over", "begin_ns"));
    assert_eq!(object["totals"]["opcodes"]["RC_SEND_ONLY"], 2);
    let refuse = step(&object, "refuse")["text"].as_str().unwrap();
    assert!(
        refuse.contains("RNR NAK (receiver not ready): \"come back in 640.000 us\""),
        "{refuse}"
    );
}

#[test]
fn a_loss_is_noticed_by_a_nak_or_by_a_timer() {
    let object = json(&["loss", "--size", "32K"]);
    assert_eq!(step(&object, "go_back")["fields"]["cause"], "SequenceNak");
    assert_eq!(step(&object, "ahead")["times"], 6);
    assert_eq!(object["totals"]["packets_lost"], 1);
    // Eight packets, seven of them again, a NAK and an ACK.
    assert_eq!(packets(&object).len(), 17);
    let lost = packets(&object).into_iter().filter(|p| p["lost"].is_string());
    assert_eq!(lost.map(|p| p["number"].as_u64().unwrap()).collect::<Vec<_>>(), [2]);

    let object = json(&["loss", "--size", "100"]);
    assert_eq!(step(&object, "go_back")["fields"]["cause"], "Timeout");
    assert!(!names(&object).contains(&"refuse"));
    assert_eq!(packets(&object).len(), 3);
}

#[test]
fn the_capture_has_the_same_packets() {
    for topic in TOPICS {
        let file = Scratch::new(&format!("{topic}.pcapng"));
        let object = json(&[topic, "--pcap", file.name()]);
        let output = softroce(&["decode", "--json", file.name()]);
        assert_eq!(output.status.code(), Some(0));
        let decoded: Value = serde_json::from_slice(&output.stdout).unwrap();
        let total = object["totals"]["packets"].as_u64().unwrap();
        assert_eq!(decoded["packets"], total, "{topic}");
        assert_eq!(decoded["icrc_ok"], total, "{topic}");
        assert_eq!(decoded["opcodes"], object["totals"]["opcodes"], "{topic}");

        // Packet by packet, under the same numbers.
        let output = softroce(&["decode", file.name()]);
        let text = String::from_utf8(output.stdout).unwrap();
        let mut told = packets(&object);
        told.sort_by_key(|p| p["number"].as_u64());
        for (line, p) in text.lines().zip(&told) {
            let number = line.split_whitespace().next().unwrap();
            assert_eq!(number, p["number"].to_string());
            let psn = p["psn"].as_u64().unwrap();
            let opcode = p["opcode"].as_str().unwrap();
            assert!(line.contains(&format!(" {opcode} ")), "{line}\n{p}");
            assert!(line.contains(&format!(" psn={psn:06x} ")), "{line}\n{p}");
        }
        assert_eq!(told.len() as u64, total);
    }
}

#[test]
fn nothing_at_all_can_be_moved_too() {
    for topic in ["read", "write", "send", "rnr", "loss"] {
        let object = json(&[topic, "--size", "0"]);
        assert_eq!(object["totals"]["payload_bytes"], 0);
        assert!(!names(&object).contains(&"check"), "no byte, no key");
    }
}

#[test]
fn bad_arguments_are_one_line() {
    for (args, words) in [
        (&["--explain", "dance"][..], "read, write, send, atomic, rnr, loss"),
        (&["--explain", "read", "--mtu", "1500"], "256, 512, 1024, 2048 or 4096"),
        (&["--explain", "read", "--size", "17M"], "at most 16 MiB"),
        (&["--explain", "read", "--size", "many"], "a number of bytes"),
        (&["--explain", "atomic", "--size", "9"], "8 bytes"),
        (&["--explain", "read", "--device", "soft:lo"], "--device"),
        (&["--size", "9"], "--explain"),
        (&["--mtu", "1024"], "--explain"),
        (&["--explain", "read", "--pcap", "/nowhere/at/all"], "/nowhere/at/all: No such file"),
    ] {
        let output = softroce(&[&["tour"], args].concat());
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{args:?}: {err}");
        assert_eq!(err.lines().count(), 1, "{err}");
        assert!(err.starts_with("softroce: ") && err.contains(words), "{err}");
    }
}
