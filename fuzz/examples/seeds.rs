//! Makes the corpora anew: `cargo run --manifest-path fuzz/Cargo.toml --example seeds`.
//!
//! The seeds are cut from recorded captures: packets as they are for `packet_parse`, whole small files for
//! `capture_read`, conversations for `engine_input`; written here for the rest. What fuzzing found worth keeping is added to them by
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
    for (name, script) in scripts().into_iter().chain(scripts_of_all_types()) {
        save(&inputs, &format!("script-{name}"), &script.bytes);
    }
    for (name, input) in endpoints() {
        save(&corpus("endpoint_parse"), name, &input);
    }
    for (name, input) in sequences() {
        save(&corpus("engine_sequences"), name, &input);
    }
    for (name, calls) in programs() {
        save(&corpus("api_calls"), name, &calls.concat());
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
/// READ of three packets, SEND of three, fetch-and-add, WRITE, compare-and-swap, ATOMIC WRITE, FLUSH.
#[derive(Default)]
struct Script {
    /// Whom its packets are for; see [`SHARED`].
    target: u16,
    bytes: Vec<u8>,
}

/// Targets of `engine_input`, the first of which is 0.
const SHARED: u16 = 1;
const UC: u16 = 2;
const UD: u16 = 3;
const GROUP: u16 = 4;

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
        let len = u16::try_from(datagram.len()).expect("small") | self.target << 11;
        let len = len.to_le_bytes();
        self.bytes.extend([mode, len[0], len[1]]);
        self.bytes.extend(datagram);
        self
    }

    /// Those that follow are for another one.
    fn to(self, target: u16) -> Self {
        Self { target, ..self }
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

/// Placement, selectivity and a RETH.
fn feth(placement: u8, level: u8, offset: u16, key: u32, len: u32) -> Vec<u8> {
    [&[0, 0, 0, level << 4 | placement][..], &reth(offset, key, len)].concat()
}

/// A queue key and the sender.
const DETH: &[u8] = &[0, 0, 0, 0, 0, 0, 1, 0x23];

/// What there is to parse: text behind any byte, messages behind the one that says of which type.
fn endpoints() -> Vec<(&'static str, Vec<u8>)> {
    let text = |text: &str| [&[7], text.as_bytes()].concat();
    let message = |kind: u8, body: &[u8]| {
        let len = u32::try_from(body.len()).expect("short").to_be_bytes();
        [&[kind, 1][..], &len, body].concat()
    };
    let mut endpoint = vec![1];
    endpoint.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]);
    endpoint.extend([0, 0, 0, 0x11, 0, 0, 0, 0x22, 0, 0, 0, 0x33, 0, 0, 5, 16, 0, 0, 0, 0x44]);
    let region = [0x11; 20];
    let list = [&[0, 0, 0, 1][..], &endpoint, &[0, 0, 0, 2, b'a', b'b']].concat();
    vec![
        ("text-v4", text("[10.0.0.1]/11/22/33/4096/16/44")),
        ("text-mapped", text("[::ffff:10.0.0.1]/00001c/5a3f21/00000000/4096/16/8388608")),
        ("text-scope", text("[fe80::1%3]/11/abcdef")),
        ("text-zero", text("[::]/1/2")),
        ("text-too-much", text("[10.0.0.1]/1/2/0/1024/1/0/9")),
        ("message-endpoint", message(0, &endpoint)),
        ("message-regions", message(1, &[&endpoint[..], &[0, 0, 0, 1], &region].concat())),
        ("message-named", message(2, &list)),
        ("message-numbers", message(3, &[9; 15])),
        ("message-nested", message(4, &[0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, b'x'])),
        (
            "message-mixed",
            message(5, &[&[0, 0, 0, 1, b'x', 0, 0, 0, 1][..], &region, &[1]].concat()),
        ),
        ("message-nothings", message(6, &[0, 0, 0, 9])),
        ("message-barrier", message(7, &[])),
    ]
}

/// Programs, call by call.
fn programs() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    // On each host: a protection domain, a completion queue, a region, a queue pair of this kind.
    let two = |kind: u8| -> Vec<Vec<u8>> {
        let side = |n: u8| [vec![0, n], vec![1, n, 0, 2], vec![2, n, 0, 0], vec![5, n, n, kind, 0]];
        [0, 1].into_iter().flat_map(side).collect()
    };
    let connect = vec![9, 0, 1];
    // Two receives for the second queue pair, of 64 bytes.
    let receive = || vec![19, 1, 1, 4, 1, 1, 4, 1];
    // One request of the first queue pair, 16 bytes from the first region to the second; where there are
    // windows, it names none.
    let request_beside = |windows: bool, op: u8, options: &[u8]| -> Vec<u8> {
        let key: &[u8] = if windows { &[0, 0] } else { &[0] };
        [&[15, 0, 0, 0, 2, 0, 1, 0, 1, 1, 0][..], key, &[op], options].concat()
    };
    let request = |op, options: &[u8]| request_beside(false, op, options);
    let wait = |n: u8| vec![vec![24, 2], vec![23, n, 0, 1], vec![23, n, 0, 0]];
    let mut all = Vec::new();
    for (name, kind) in [("reliable", 0), ("unreliable", 1)] {
        let mut calls = two(kind);
        calls.extend([connect.clone(), receive(), receive()]);
        // All but FLUSH of a range, which takes more arguments; the one that fails comes last.
        calls.extend([0, 1, 3, 4, 5, 6, 7, 8, 10].map(|op| request(op, &[0])));
        calls.extend([request(9, &[64, 1, 0]), request(2, &[0]), request(0, &[0])]);
        calls.extend(wait(0));
        calls.extend(wait(1));
        all.push((name, calls));
    }
    let mut calls = two(2);
    calls.extend([vec![12, 0, 7], vec![12, 1, 7], receive(), vec![7, 0, 1, 0, 0, 0, 0, 0, 0, 0]]);
    calls.extend([request(0, &[8, 0, 1, 7]), request(1, &[8, 0, 1, 7])]);
    calls.push(vec![28, 1, 5, 0, 0]);
    calls.extend(wait(0));
    calls.extend(wait(1));
    all.push(("datagrams", calls));
    let mut calls = two(0);
    calls.extend([vec![4, 1, 0, 0], vec![3, 0, 0], vec![3, 0, 1]]);
    calls.extend([vec![5, 1, 1, 0, 2, 0], vec![9, 0, 2], vec![21, 1, 1, 1, 1, 1, 1, 0]]);
    calls.extend([vec![22, 0, 0, 0, 0, 8, 0, 0, 0], vec![22, 0, 1, 0, 0, 8, 0, 0, 0]]);
    calls.extend([
        request_beside(true, 0, &[0]),
        vec![27, 0, 0, 1],
        vec![26, 0, 0],
        vec![25, 0, 1],
    ]);
    calls.extend(wait(0));
    calls.extend(wait(1));
    calls.extend([vec![13, 0, 0, 0, 0, 0], vec![13, 0, 6, 0, 0, 0], vec![29, 0, 1, 0, 0]]);
    calls.extend((0..12).map(|kind| vec![30, kind, 0]));
    all.push(("shared-and-windows", calls));
    all
}

/// Steps of `engine_sequences`: what stands in the low half of the first byte, the end and the connection in
/// the high half.
fn sequences() -> Vec<(&'static str, Vec<u8>)> {
    let every = |step: &dyn Fn(u8) -> Vec<u8>| -> Vec<u8> {
        (0..8u8).flat_map(|end| step(end << 4)).collect()
    };
    // Receives at all ends, requests of all kinds from all of them.
    let receives = every(&|end| vec![5 | end, 0xc0]);
    let requests = |size: u8| every(&|end| (0..10).flat_map(|op| [end, size | op, 0x08]).collect());
    let good =
        [&receives[..], &requests(0x10), &[7, 3], &receives, &requests(0x30), &[7, 3]].concat();
    let bad = |fates: u8| [9, fates].repeat(20);
    let upset = |step: u8, how: &[u8]| {
        let upset = every(&|end| [&[step | end][..], how].concat());
        [&receives[..], &requests(0x30), &[7, 1], &upset, &[7, 2], &good].concat()
    };
    vec![
        ("good", good.clone()),
        ("lost", [&bad(0x11), &good[..]].concat()),
        ("twice", [&bad(0xa2), &good[..]].concat()),
        ("late", [&bad(0x33), &good[..]].concat()),
        ("drained", upset(11, &[0])),
        ("failed", upset(11, &[2])),
        ("reset", upset(11, &[3])),
        ("destroyed", upset(12, &[])),
        ("renewed", upset(13, &[])),
        ("deregistered", [&receives[..], &requests(0x30), &[14, 30, 7, 3, 14, 30], &good].concat()),
        (
            "not-lent",
            [&receives[..], &[1, 0x31, 0x0f, 33, 0x32, 0x0f, 1, 0x32, 0xc8, 7, 3]].concat(),
        ),
    ]
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

/// What other queue pairs receive than the first one, and what came to it later.
fn scripts_of_all_types() -> Vec<(&'static str, Script)> {
    let start = Script::default;
    vec![
        (
            "atomic-writes-and-flushes",
            start()
                .request(0x1d, 0, &reth(8, 0, 8), 8)
                .request(0x1d, -1, &reth(8, 0, 8), 8)
                .request(0x1c, 0, &feth(1, 0, 0, 0, 64), 0)
                .request(0x1c, -1, &feth(1, 0, 0, 0, 64), 0)
                .request(0x1c, 0, &feth(1, 1, 0, 6, 0), 0)
                .request(0x1c, 0, &feth(2, 0, 0, 0, 64), 0),
        ),
        (
            "window-of-type-1",
            start()
                .request(0x0a, 0, &reth(0, 6, 64), 64)
                .request(0x14, 0, &[&reth(8, 6, 0)[..12], &[0; 16]].concat(), 0)
                .to(SHARED)
                .request(0x0c, 0, &reth(0, 6, 64), 0)
                .to(UC)
                .request(0x2a, 0, &reth(0, 6, 64), 64)
                .request(0x2a, 0, &reth(0, 1, 64), 64),
        ),
        (
            "shared-receives",
            (0..5)
                .fold(start().to(SHARED), |script, _| script.request(0x04, 0, &[], 100))
                .packet(REPAIR | POST, 0x04, 0, &[], 100)
                .request(0x17, 0, &[0, 0, 0, 1], 100),
        ),
        (
            "unreliable",
            start()
                .to(UC)
                .request(0x20, 0, &[], 1024)
                .request(0x21, 0, &[], 1024)
                .request(0x22, 0, &[], 100)
                .request(0x24, 3, &[], 100)
                .request(0x24, -2, &[], 100)
                .request(0x20, 0, &[], 1024)
                .request(0x22, 1, &[], 10)
                .request(0x2a, 0, &reth(0, 3, 64), 64)
                .request(0x2b, 0, &[&reth(0, 0, 64)[..], &[0, 0, 0, 5]].concat(), 64)
                .packet(REPAIR | POST, 0x25, 0, &[0, 0, 0, 5], 64)
                .request(0x04, 0, &[], 10),
        ),
        (
            "datagrams",
            start()
                .to(UD)
                .request(0x64, 0, DETH, 100)
                .request(0x65, 0, &[DETH, &[0, 0, 0, 9]].concat(), 100)
                .request(0x64, 0, &[&[0x80], &DETH[1..]].concat(), 100)
                .to(GROUP)
                .request(0x64, 0, DETH, 100)
                .request(0x64, 0, DETH, 100)
                .request(0x64, 0, DETH, 100)
                .packet(REPAIR | POST, 0x64, 0, DETH, 1024),
        ),
    ]
}
