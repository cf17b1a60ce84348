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
            save(&files, capture.file_name().and_then(|n| n.to_str()).expect("a name"), &bytes);
        }
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
