//! A capture as the replay needs it: its packets, who lost which of them, and how the programs were started.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use softroce::capture::Reader;
use softroce::time::Instant;
use softroce::wire::Packet;
use softroce::wire::frame::{Envelope, dissect};
use softroce::wire::num::Mtu;

use crate::seal::Outer;

/// A recorded packet.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) time: Instant,
    pub(crate) envelope: Envelope,
    /// From the BTH to the ICRC.
    pub(crate) datagram: Vec<u8>,
    /// The other end's guest dropped it.
    pub(crate) lost: bool,
}

impl Recorded {
    pub(crate) fn packet(&self) -> Packet<'_> {
        Packet::parse(&self.datagram).expect("rdma_rxe sends what can be parsed")
    }

    pub(crate) fn outer(&self) -> Outer {
        let e = &self.envelope;
        Outer { src: e.src, dst: e.dst, src_port: e.src_port, ident: e.ident, df: e.df }
    }
}

/// A capture.
#[derive(Debug)]
pub(crate) struct Capture {
    pub(crate) name: String,
    pub(crate) packets: Vec<Recorded>,
    pub(crate) commands: Vec<String>,
    pub(crate) mtu: Mtu,
}

impl Capture {
    pub(crate) fn read(path: &Path) -> Self {
        let json = std::fs::read_to_string(path.with_extension("json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let commands = json["commands"].as_array().unwrap();
        let commands: Vec<_> = commands.iter().map(|c| c.as_str().unwrap().to_owned()).collect();
        let bytes = std::fs::read(path).unwrap();
        let mut reader = Reader::new(&bytes[..]).unwrap();
        let mut packets = Vec::new();
        while let Some(record) = reader.next_record().unwrap() {
            let d = dissect(record.link, record.bytes).unwrap();
            packets.push(Recorded {
                time: record.time.unwrap(),
                envelope: d.envelope,
                datagram: d.datagram.to_vec(),
                lost: false,
            });
        }
        // What begins or continues a message fills the path MTU.
        let full = packets.iter().map(Recorded::packet).filter(|p| !p.info().position.ends());
        let mtu = full.map(|p| p.payload().len()).max().unwrap_or(1024);
        let mut capture = Self {
            name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
            packets,
            commands,
            mtu: Mtu::from_bytes(mtu).unwrap(),
        };
        capture.lose();
        capture
    }

    /// Marks what a filter in a guest dropped: packets of one opcode, by their numbers.
    fn lose(&mut self) {
        for command in &self.commands {
            let Some((_, rule)) = command.split_once("@th,64,8 ") else { continue };
            let words: Vec<_> = rule.split_whitespace().collect();
            let opcode: u8 = words[0].parse().unwrap();
            assert_eq!(words[1..5], ["numgen", "inc", "mod", "10000"]);
            let (from, to) = words[5].split_once('-').unwrap_or((words[5], words[5]));
            let lost: std::ops::RangeInclusive<usize> = from.parse().unwrap()..=to.parse().unwrap();
            let guest = guest(command);
            let to_guest = self
                .packets
                .iter_mut()
                .filter(|p| p.datagram[0] == opcode && is_guest(&p.envelope.dst, guest));
            for (_, packet) in to_guest.enumerate().filter(|(i, _)| lost.contains(i)) {
                packet.lost = true;
            }
        }
        assert_eq!(
            self.packets.iter().any(|p| p.lost),
            self.name.contains("loss-") && !self.loses_unseen(),
            "{}",
            self.name
        );
    }

    /// Whether its connections were made by rdma_cm.
    pub(crate) fn is_by_cm(&self) -> bool {
        self.name.split('-').any(|word| word == "cm")
    }

    /// Whether packets of one side were lost before they could be recorded.
    pub(crate) fn loses_unseen(&self) -> bool {
        self.commands.iter().any(|c| c.contains("netem"))
    }

    pub(crate) fn asked_for_hop_limit(&self) -> bool {
        self.commands.iter().any(|c| c.contains("--hop "))
    }

    pub(crate) fn asked_for_flow_label(&self) -> bool {
        self.is_by_cm() || self.commands.iter().any(|c| c.contains("--flow "))
    }

    /// The number behind an option of the `run`-th program that was run at `at`.
    pub(crate) fn option(&self, at: IpAddr, run: usize, option: &str) -> Option<u32> {
        let program =
            |c: &&String| is_guest(&at, guest(c)) && !c.contains("nft") && !c.contains("tc ");
        let runs: Vec<_> = self.commands.iter().filter(program).collect();
        let (_, value) = runs[run.min(runs.len() - 1)].split_once(&format!("{option} "))?;
        let value = value.split_whitespace().next()?;
        Some(match value.strip_prefix("0x") {
            Some(hex) => u32::from_str_radix(hex, 16).unwrap(),
            None => value.parse().unwrap(),
        })
    }
}

/// The guest that a command was run in, by its IPv4 address.
fn guest(command: &str) -> IpAddr {
    match command.split_once(": ").map(|(guest, _)| guest) {
        Some("a") => [10, 99, 0, 11].into(),
        Some("b") => [10, 99, 0, 12].into(),
        other => panic!("{other:?} is no guest"),
    }
}

/// Whether an address of either family is that guest's: 10.99.0.11 is fd99::11, and so on.
fn is_guest(ip: &IpAddr, guest: IpAddr) -> bool {
    let last = |ip: &IpAddr| match ip {
        IpAddr::V4(v4) => v4.octets()[3],
        IpAddr::V6(v6) => 10 * (v6.octets()[15] >> 4) + (v6.octets()[15] & 0xf),
    };
    last(ip) == last(&guest)
}

/// All captures.
pub(crate) fn captures() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/captures");
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut pcaps: Vec<_> = files.filter(|p| p.extension().is_some_and(|e| e == "pcap")).collect();
    pcaps.sort();
    pcaps
}
