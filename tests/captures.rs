//! Every recorded capture: what is in it, that its packets can be rebuilt, and what is noted about them.

#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

#[path = "common/skip.rs"]
mod skip;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use skip::skip;
use softroce::capture::{Analysis, Icrc, Inspected, Reader, Writer, inspect};
use softroce::time::{Duration, Instant};
use softroce::wire::frame::{Dissected, Mac, NotRoce, UdpChecksum, dissect, emit};
use softroce::wire::{Packet, PacketBuilder, icrc, opcode};

fn data(dir: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(dir)
}

fn captures() -> Vec<PathBuf> {
    let dir = data("captures");
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut pcaps: Vec<_> = files.filter(|p| p.extension().is_some_and(|e| e == "pcap")).collect();
    pcaps.sort();
    assert_eq!(pcaps.len(), 64);
    pcaps
}

fn name(path: &Path) -> &str {
    path.file_stem().unwrap().to_str().unwrap()
}

/// Calls `f` with every frame of a capture, and with the datagram found in it.
fn frames(path: &Path, mut f: impl FnMut(&[u8], &Dissected<'_>)) {
    let bytes = fs::read(path).unwrap();
    let mut reader = Reader::new(&bytes[..]).unwrap();
    while let Some(record) = reader.next_record().unwrap() {
        let datagram = dissect(record.link, record.bytes).expect("nothing but RoCEv2 was recorded");
        f(record.bytes, &datagram);
    }
}

fn inspected(path: &Path, mut f: impl FnMut(&Inspected<'_>)) {
    frames(path, |_, d| f(&inspect(d).expect("a BTH")));
}

#[test]
fn packets_opcodes_and_icrcs_are_those_that_were_counted() {
    for path in captures() {
        let json = fs::read_to_string(path.with_extension("json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let mut opcodes = BTreeMap::new();
        let (mut packets, mut ok, mut rxe) = (0u64, 0u64, 0u64);
        inspected(&path, |i| {
            packets += 1;
            *opcodes.entry(opcode::name_of(i.bth.opcode)).or_insert(0u64) += 1;
            match i.icrc {
                Icrc::Ok => ok += 1,
                Icrc::RxeFlush => rxe += 1,
                _ => panic!("{}: {i}", path.display()),
            }
            assert_eq!(i.problem, None);
        });
        let name = name(&path);
        assert_eq!(json["packets"].as_u64(), Some(packets), "{name}");
        assert_eq!(json["stats"]["icrc"]["ok"].as_u64().unwrap_or(0), ok, "{name}");
        assert_eq!(json["stats"]["icrc"]["rxe"].as_u64().unwrap_or(0), rxe, "{name}");
        assert_eq!(json["opcodes"], serde_json::to_value(opcodes).unwrap(), "{name}");
    }
}

#[test]
fn every_packet_is_rebuilt_byte_for_byte() {
    let mut rebuilt = 0;
    for path in captures() {
        frames(&path, |bytes, d| {
            let p = Packet::parse(d.datagram).unwrap();
            let mut datagram = vec![0xee; PacketBuilder::size(p.opcode(), p.payload().len())];
            let mut builder =
                PacketBuilder::new(&mut datagram, &p.bth(), &p.ext(), p.payload().len());
            builder.payload_mut().copy_from_slice(p.payload());
            let len = builder.finish(&d.ip);
            assert_eq!(len, datagram.len());
            if inspect(d).unwrap().icrc == Icrc::RxeFlush {
                let doubled = icrc::compute_rxe_flush(&d.ip, &datagram[..len - icrc::LEN]);
                datagram[len - icrc::LEN..].copy_from_slice(&doubled.to_le_bytes());
            }
            assert_eq!(datagram, d.datagram, "{}", path.display());

            let mut frame = vec![0xee; bytes.len()];
            let mac = |at: usize| Mac(bytes[at..at + 6].try_into().unwrap());
            let len = emit(&mut frame, mac(6), mac(0), &d.envelope, UdpChecksum::Zero, &datagram);
            // Short frames may be padded.
            let len = len.unwrap();
            assert_eq!(frame[..len], bytes[..len], "{}", path.display());
            rebuilt += 1;
        });
    }
    assert_eq!(rebuilt, 1000);
}

#[test]
fn the_identification_is_recovered_from_the_icrc() {
    let mut recovered = 0;
    for path in captures() {
        inspected(&path, |i| {
            let d = &i.frame;
            if d.envelope.src.is_ipv6() || i.icrc != Icrc::Ok {
                return;
            }
            let ident = icrc::recover_ident(&d.ip.with_ident(0), d.datagram);
            assert_eq!(ident, Some(d.envelope.ident), "{}", path.display());
            recovered += 1;
        });
    }
    assert!(recovered > 700, "{recovered}");
}

/// All notes of a capture and how often each was made.
fn notes(capture: &str) -> BTreeMap<String, usize> {
    let path =
        captures().into_iter().find(|p| name(p) == capture).expect("there is such a capture");
    let mut notes = BTreeMap::new();
    let mut analysis = Analysis::new();
    inspected(&path, |i| {
        for note in analysis.observe(i) {
            *notes.entry(note.to_string()).or_insert(0) += 1;
        }
    });
    notes
}

#[track_caller]
fn noted(captures: &[&str], expected: &[(&str, usize)]) {
    let expected: BTreeMap<_, _> =
        expected.iter().map(|(n, count)| ((*n).into(), *count)).collect();
    for capture in captures {
        assert_eq!(notes(capture), expected, "{capture}");
    }
}

const RETRANSMISSION: &str = "retransmission";
const AFTER_NAK: &str = "retransmission after a sequence NAK";
const AFTER_RNR_NAK: &str = "retransmission after an RNR NAK";
const DUPLICATE: &str = "duplicate: was answered already";
const AGAIN: &str = "answered again";

#[test]
fn where_nothing_was_lost_nothing_is_noted() {
    let quiet = ["cm", "pingpong", "perftest", "rc", "uc", "ud", "flush", "atomic"];
    let mut seen = 0;
    for path in captures() {
        let name = name(&path);
        let plain = name.trim_start_matches("k612-").trim_start_matches("k7-");
        let plain = plain.trim_start_matches("to-k61-");
        if quiet.contains(&plain.split('-').next().unwrap()) {
            noted(&[name], &[]);
            seen += 1;
        }
    }
    assert_eq!(seen, 41);
}

#[test]
fn a_lost_request_in_the_middle_is_asked_for_again() {
    // Two of three PSNs behind the hole had been sent, and are sent again with it.
    noted(
        &[
            "loss-send-middle-v4",
            "loss-send-middle-v6",
            "k612-loss-send-middle-v4",
            "loss-write-only-pipelined-v4",
            "loss-write-only-pipelined-v6",
        ],
        &[("NAK: PSN sequence error", 1), (AFTER_NAK, 3)],
    );
}

#[test]
fn a_timeout_repeats_the_message() {
    noted(&["loss-read-request-v4", "loss-read-request-v6"], &[(RETRANSMISSION, 1)]);
    noted(&["loss-all-retry-exceeded-v4"], &[(RETRANSMISSION, 3)]);
    // The responder lacked the last of three packets; it acknowledges the other two again.
    noted(&["loss-send-last-v4"], &[(RETRANSMISSION, 3), (AGAIN, 1)]);
}

#[test]
fn a_lost_answer_makes_duplicates() {
    noted(&["loss-ack-v4"], &[(RETRANSMISSION, 3), (DUPLICATE, 3), (AGAIN, 3)]);
    noted(&["loss-atomic-ack-v6"], &[(RETRANSMISSION, 1), (DUPLICATE, 1), (AGAIN, 1)]);
    noted(
        &[
            "loss-read-response-middle-v4",
            "k612-loss-read-response-middle-v4",
            "k612-loss-read-response-middle-v6",
            "k7-loss-read-response-middle-v4",
        ],
        &[(RETRANSMISSION, 1), (DUPLICATE, 1), (AGAIN, 3)],
    );
    // Lost before the place of the capture: this one is a real hole.
    noted(
        &["netem-loss-v4"],
        &[("gap: at least 1 PSN missing", 1), (RETRANSMISSION, 1), (DUPLICATE, 1), (AGAIN, 7)],
    );
}

#[test]
fn naks_are_named() {
    noted(&["nak-remote-access-v4"], &[("NAK: remote access error", 5)]);
    noted(
        &["k612-nak-remote-access-v4", "k612-nak-remote-access-v6"],
        &[("NAK: remote access error", 3)],
    );
    noted(&["nak-invalid-request-v6"], &[("NAK: remote operational error", 2)]);
    noted(
        &["rnr-nak-recover-v4", "k612-rnr-nak-recover-v6"],
        &[("RNR NAK: wait 81.92 ms", 5), (AFTER_RNR_NAK, 5)],
    );
    noted(&["rnr-nak-exhausted-v6"], &[("RNR NAK: wait 40.96 ms", 3), (AFTER_RNR_NAK, 2)]);
}

/// Opcode, verdict, and the opcodes of the segments, for each packet.
fn seen(path: &Path) -> Vec<(String, Icrc, Vec<String>)> {
    let mut seen = Vec::new();
    let mut analysis = Analysis::new();
    inspected(path, |i| {
        assert_eq!(analysis.observe(i), []);
        let segments = i.segments().map(|s| {
            let segment = inspect(&s).unwrap();
            assert_eq!(segment.icrc, Icrc::Ok);
            assert_eq!(analysis.observe(&segment), []);
            opcode::name_of(segment.bth.opcode)
        });
        seen.push((opcode::name_of(i.bth.opcode), i.icrc, segments.collect()));
    });
    seen
}

#[test]
fn unsplit_sends_on_a_loopback_interface() {
    let message = ["FIRST", "MIDDLE", "MIDDLE", "MIDDLE", "LAST"].map(|p| format!("RC_SEND_{p}"));
    let first = ("RC_SEND_FIRST".to_owned(), Icrc::Unsplit { segment_len: Some(1040) });
    let one = ("RC_SEND_ONLY".to_owned(), Icrc::Ok, vec![]);
    let of_one_family = [(first.0, first.1, message.to_vec()), one];
    let of_both = [of_one_family.clone(), of_one_family].concat();
    for file in ["loopback-unsplit.pcap", "any-cooked.pcap", "any-cooked-v2.pcap"] {
        assert_eq!(seen(&data("links").join(file)), of_both, "{file}");
    }
}

#[test]
fn packets_cut_by_the_capture() {
    let bytes = fs::read(data("links").join("loopback-snaplen-60.pcap")).unwrap();
    let mut reader = Reader::new(&bytes[..]).unwrap();
    let mut seen = Vec::new();
    let mut analysis = Analysis::new();
    while let Some(record) = reader.next_record().unwrap() {
        assert_eq!(record.bytes.len(), 60);
        let found = dissect(record.link, record.bytes);
        seen.push(found.map(|d| {
            let i = inspect(&d).unwrap();
            assert_eq!(analysis.observe(&i), []);
            i.icrc
        }));
    }
    // Sixty bytes show the BTH over IPv4, and not even the UDP port over IPv6.
    let too_long = Icrc::Unsplit { segment_len: None };
    assert_eq!(seen, [Ok(too_long), Ok(Icrc::Cut), Err(NotRoce::Cut), Err(NotRoce::Cut)]);
}

#[test]
fn the_same_capture_in_another_format() {
    let lines = |path: &Path| {
        let mut lines = Vec::new();
        inspected(path, |i| lines.push(i.to_string()));
        lines
    };
    let pcap = lines(&data("captures").join("rc-atomic-v4.pcap"));
    assert_eq!(pcap, lines(&data("links").join("rc-atomic-v4.pcapng")));
    assert_eq!(pcap.len(), 14);
}

#[test]
fn wireshark_takes_what_is_written() {
    let mut writer = Writer::new(Vec::new()).unwrap();
    let mut time = Instant::from_nanos(1_700_000_000_000_000_000);
    for path in captures() {
        frames(&path, |_, d| {
            time += Duration::from_nanos(1001);
            writer.write_frame(time, &d.envelope, d.datagram, Some(name(&path))).unwrap();
        });
    }
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("written.pcapng");
    fs::write(&file, writer.into_inner().unwrap()).unwrap();

    // Heuristics take some payloads for protocols that they are not.
    let fields = ["frame.comment", "frame.protocols", "_ws.malformed", "frame.time_epoch"];
    let checksums = ["ip.checksum.status", "udp.checksum.status"];
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(&file).args(["-T", "fields"]);
    tshark.args(["--disable-protocol", "rpcordma", "--disable-protocol", "infiniband.eoib"]);
    tshark.args(["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"]);
    tshark.args(fields.iter().chain(&checksums).flat_map(|field| ["-e", field]));
    let output = match tshark.output() {
        Ok(output) => output,
        Err(e) => return skip(format!("tshark: {e}")),
    };
    let text = String::from_utf8(output.stdout).unwrap();
    let mut time = 1_700_000_000_000_000_000u64;
    for line in text.lines() {
        time += 1001;
        let columns: Vec<_> = line.split('\t').collect();
        let [comment, protocols, malformed, epoch, ip, udp] = columns[..] else {
            panic!("{line}");
        };
        assert!(protocols.contains(":udp:infiniband"), "{line}");
        assert_eq!(malformed, "", "{line}");
        assert_eq!(epoch, format!("1700000000.{:09}", time % 1_000_000_000), "{line}");
        // 1 is good; IPv6 has no header checksum.
        assert_eq!((ip, udp), (if comment.ends_with("v6") { "" } else { "1" }, "1"), "{line}");
    }
    assert_eq!(text.lines().count(), 1000);
    fs::remove_file(&file).unwrap();
}
