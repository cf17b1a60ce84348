//! Makes the corpora anew: `cargo run --manifest-path fuzz/Cargo.toml --example seeds`.
//!
//! The seeds are cut from recorded captures: packets as they are for `packet_parse`, whole small files for
//! `capture_read`, conversations for `engine_input`. What fuzzing found worth keeping is added to them by
//! hand, under names of its own; existing files of other names are left alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use softroce::capture::Reader;
use softroce::wire::Packet;
use softroce::wire::frame::{Dissected, LinkType, dissect};
use softroce::wire::num::Psn;
use softroce::wire::opcode::Headers;

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let data = root.join("../tests/data");
    let corpus = |target: &str| {
        let folder = root.join("corpus").join(target);
        fs::create_dir_all(&folder).expect("a folder for the corpus");
        folder
    };
    let (packets, files, inputs) =
        (corpus("packet_parse"), corpus("capture_read"), corpus("engine_input"));
    let mut kinds = BTreeSet::new();
    for capture in captures(&data.join("captures")) {
        let bytes = fs::read(&capture).expect("a capture");
        let name = capture.file_stem().and_then(|n| n.to_str()).expect("a name");
        if bytes.len() < 1500 {
            save(&files, name, &bytes);
        }
        let mut conversations = Conversations::default();
        frames(&bytes, |link, frame, found| {
            let opcode = found.datagram[0];
            if kinds.insert((opcode, found.envelope.src.is_ipv6())) {
                let version = if found.envelope.src.is_ipv6() { "v6" } else { "v4" };
                let with = |first: u8, bytes: &[u8]| [&[first], bytes].concat();
                save(
                    &packets,
                    &format!("datagram-{opcode:02x}-{version}"),
                    &with(7, found.datagram),
                );
                assert_eq!(link, LinkType::Ethernet);
                save(&packets, &format!("frame-{opcode:02x}-{version}"), &with(0, frame));
            }
            conversations.add(found);
        });
        for (index, input) in conversations.inputs().into_iter().enumerate() {
            if input.len() < 4000 {
                save(&inputs, &format!("{name}-{index}"), &input);
            }
        }
    }
    for capture in captures(&data.join("links")) {
        let bytes = fs::read(&capture).expect("a capture");
        if bytes.len() < 12_000 {
            let name = capture.file_name().and_then(|n| n.to_str()).expect("a name");
            save(&files, &name.replace('.', "-"), &bytes);
        }
    }
    for (name, script) in scripts() {
        save(&inputs, &format!("script-{name}"), &script.0);
    }
}

fn captures(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of captures");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let is_capture = |p: &PathBuf| p.extension().is_some_and(|e| e == "pcap" || e == "pcapng");
    let mut paths: Vec<_> = paths.filter(is_capture).collect();
    paths.sort();
    paths
}

fn frames(bytes: &[u8], mut f: impl FnMut(LinkType, &[u8], &Dissected<'_>)) {
    let mut reader = Reader::new(bytes).expect("a capture");
    while let Some(record) = reader.next_record().expect("a whole capture") {
        if let Ok(found) = dissect(record.link, record.bytes) {
            f(record.link, record.bytes, &found);
        }
    }
}

fn save(folder: &Path, name: &str, bytes: &[u8]) {
    fs::write(folder.join(name), bytes).expect("the corpus can be written");
}

/// What each queue pair received, as inputs of `engine_input`.
#[derive(Default)]
struct Conversations(BTreeMap<(String, u32), Vec<u8>>);

impl Conversations {
    fn add(&mut self, found: &Dissected<'_>) {
        let Ok(packet) = Packet::parse(found.datagram) else { return };
        let to = (found.envelope.dst.to_string(), packet.dest_qp().raw());
        let input = self.0.entry(to).or_default();
        let mut datagram = found.datagram.to_vec();
        // Requests count from the expected PSN, so all are expected; responses from the first one sent,
        // which are the first few that any program sends.
        let nth = u32::try_from(input.len()).expect("small") % 4;
        let psn = if packet.info().is_response() { Psn::new(nth) } else { Psn::new(0) };
        datagram[9..12].copy_from_slice(&psn.raw().to_be_bytes()[1..]);
        if packet.info().headers.intersects(Headers::RETH | Headers::ATOMIC_ETH) {
            // Into the memory that is lent whole, or through a window, in turns.
            datagram[12..20].copy_from_slice(&0x100u64.to_be_bytes());
            datagram[20..24].copy_from_slice(&(nth & 1).to_be_bytes());
        }
        let is_first = input.is_empty();
        // Repaired; the first one with requests posted, every one with a little time behind it.
        let mode = 1 | if is_first { 8 } else { 0 } | 1 << 4;
        // A small message says as much as a long one.
        datagram.truncate(0x7ff);
        let len = u16::try_from(datagram.len()).expect("cut").to_le_bytes();
        input.extend([mode, len[0], len[1]]);
        input.extend(datagram);
    }

    fn inputs(self) -> Vec<Vec<u8>> {
        self.0.into_values().collect()
    }
}

/// An input of `engine_input`, packet by packet. Requests of its queue pairs take these PSNs, from the first:
/// READ of three packets, SEND of three, fetch-and-add, WRITE, compare-and-swap.
#[derive(Default)]
struct Script(Vec<u8>);

/// Mode bits of `engine_input`.
const REPAIR: u8 = 0x01;
const POST: u8 = 0x08;
const A_LITTLE_LATER: u8 = 0x10;
const SPOIL: u8 = 0x40;
const MARKED: u8 = 0x80;

const ACK: &[u8] = &[0x1f, 0, 0, 1];

impl Script {
    /// A packet with the extended headers `ext` and so many bytes of payload. `psn` counts from the expected
    /// one for requests, from the first one sent for answers.
    fn packet(mut self, mode: u8, opcode: u8, psn: i32, ext: &[u8], payload: usize) -> Self {
        let pad = payload.wrapping_neg() & 3;
        let mut datagram = vec![0; 12];
        datagram[0] = opcode;
        datagram[1] = 0x40 | u8::try_from(pad).expect("two bits") << 4;
        datagram[8] = 0x80;
        datagram[9..12].copy_from_slice(&psn.to_be_bytes()[1..]);
        datagram.extend(ext);
        datagram.resize(datagram.len() + payload, 0x33);
        datagram.resize(datagram.len() + pad + 4, 0);
        let len = u16::try_from(datagram.len()).expect("small").to_le_bytes();
        self.0.extend([mode, len[0], len[1]]);
        self.0.extend(datagram);
        self
    }

    fn request(self, opcode: u8, psn: i32, ext: &[u8], payload: usize) -> Self {
        self.packet(REPAIR, opcode, psn, ext, payload)
    }

    fn answer(self, opcode: u8, psn: i32, ext: &[u8], payload: usize) -> Self {
        self.packet(REPAIR, opcode, psn, ext, payload)
    }
}

/// Address, key and length of a RETH: an offset into the memory that `key` chooses.
fn reth(offset: u16, key: u32, len: u32) -> Vec<u8> {
    [&u64::from(offset).to_be_bytes()[..], &key.to_be_bytes(), &len.to_be_bytes()].concat()
}

/// Fetch-and-add of 1.
fn fetch_add(offset: u16) -> Vec<u8> {
    let numbers = [1u64.to_be_bytes(), [0; 8]].concat();
    [&u64::from(offset).to_be_bytes()[..], &[0; 4], &numbers].concat()
}

fn scripts() -> Vec<(&'static str, Script)> {
    let start = Script::default;
    vec![
        (
            "all-is-answered",
            start()
                .answer(0x0d, 0, ACK, 1024)
                .answer(0x0e, 1, &[], 1024)
                .answer(0x0f, 2, ACK, 952)
                .answer(0x11, 5, ACK, 0)
                .answer(0x12, 6, &[ACK, &[0; 8]].concat(), 0)
                .answer(0x11, 7, ACK, 0)
                .answer(0x12, 8, &[ACK, &[0; 8]].concat(), 0),
        ),
        (
            "duplicates",
            start()
                .request(0x04, 0, &[], 100)
                .request(0x04, -1, &[], 100)
                .request(0x0a, 0, &reth(16, 0, 50), 50)
                .request(0x0a, -1, &reth(16, 0, 50), 50)
                .request(0x0c, 0, &reth(16, 0, 60), 0)
                .request(0x0c, -1, &reth(16, 0, 60), 0)
                .request(0x14, 0, &fetch_add(64), 0)
                .request(0x14, -1, &fetch_add(64), 0),
        ),
        (
            "window",
            start()
                .request(0x0a, 0, &reth(0, 1, 64), 64)
                .request(0x0c, 0, &reth(2000, 1, 1002), 0)
                .request(0x0c, 0, &reth(2000, 1, 1003), 0),
        ),
        ("private", start().request(0x0c, 0, &reth(0, 3, 8), 0)),
        ("foreign", start().request(0x0a, 0, &reth(0, 4, 8), 8)),
        ("spoiled", start().packet(REPAIR | SPOIL, 0x04, 0, &[], 10)),
        ("marked", start().packet(REPAIR | MARKED, 0x04, 0, &[], 10)),
        ("gap", start().request(0x04, 1, &[], 10).request(0x04, 0, &[], 10)),
        (
            "never-ready",
            (0..3).fold(start(), |script, _| {
                script.packet(REPAIR | A_LITTLE_LATER, 0x11, 0, &[0x21, 0, 0, 0], 0)
            }),
        ),
        ("lost-and-naked", start().answer(0x11, 3, &[0x60, 0, 0, 0], 0)),
        ("invalid", start().answer(0x11, 0, &[0x61, 0, 0, 0], 0)),
        ("refused", start().answer(0x11, 0, &[0x62, 0, 0, 0], 0)),
        ("broken-and-connected-again", {
            let broken = start().request(0x0c, 0, &reth(0, 3, 8), 0);
            broken.packet(REPAIR | POST, 0x04, 0, &[], 10)
        }),
        (
            "too-long",
            start()
                .request(0x00, 0, &[], 1024)
                .request(0x01, 0, &[], 1024)
                .request(0x01, 0, &[], 1024)
                .request(0x02, 0, &[], 1000),
        ),
    ]
}
