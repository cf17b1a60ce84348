//! The wire, byte for byte: whatever rdma_rxe was recorded to send, an engine in its place sends too.
//!
//! Each end of each conversation in the captures is played by an engine, which gets the same queue pair, the
//! same requests with the same bytes, and what arrived there. All that it sends, requests and answers,
//! retransmissions too, is compared with the recording from the BTH to the ICRC, and so are the fields of
//! IP and UDP. Where we differ on purpose stands in one table, by field and with the reason.

#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

#[path = "identity/conversation.rs"]
mod conversation;
#[path = "identity/end.rs"]
mod end;
#[path = "identity/record.rs"]
mod record;
#[path = "common/seal.rs"]
mod seal;
#[path = "identity/table.rs"]
mod table;

use std::collections::BTreeMap;

use conversation::ends;
use end::{End, Sent};
use record::{Capture, Recorded, captures};
use table::{Case, DIFFERENCES, Difference};

/// Answers in the captures that were lost before they were recorded.
const UNSEEN: usize = 1;

/// What was found.
#[derive(Debug, Default)]
struct Tally {
    compared: usize,
    unseen: usize,
    /// Packets that are others than they should be.
    wrong: Vec<String>,
    /// Packets that differ, by field.
    differing: BTreeMap<&'static str, usize>,
}

impl Tally {
    fn compare(&mut self, capture: &Capture, recorded: &Recorded, mut sent: Sent) {
        let case = Case::new(capture, recorded);
        let what = format!("{}: {:?}", capture.name, recorded.packet());
        // Ours is sealed right, whatever is in it.
        let (sealed, icrc) = sent.datagram.split_last_chunk().unwrap();
        assert_eq!(*icrc, seal::icrc(&sent.outer(), sealed), "{what}");

        let mut crc: fn(&seal::Outer, &[u8]) -> [u8; 4] = seal::icrc;
        for difference in DIFFERENCES {
            if difference.adopt(&case, &mut sent) {
                *self.differing.entry(difference.field).or_default() += 1;
                if difference.is_of_the_seal() {
                    crc = seal::icrc_of_rxe_flush;
                }
            }
        }
        // With those fields, and with their identification, it is the same packet, and sealed the same.
        let (sealed, icrc) = sent.datagram.split_last_chunk_mut().unwrap();
        *icrc = crc(&recorded.outer(), sealed);
        if sent.datagram != recorded.datagram {
            self.wrong.push(format!("{what}\n  ours: {:?}", sent.packet()));
        }
        let e = &recorded.envelope;
        let theirs = (e.src, e.dst, e.src_port, e.traffic_class, e.hop_limit, e.flow_label, e.df);
        let p = &sent.path;
        let ours = (p.src, p.dst, p.src_port, p.traffic_class, p.hop_limit, p.flow_label);
        let ours = (ours.0, ours.1, ours.2, ours.3, ours.4, ours.5, true);
        if ours != theirs {
            self.wrong.push(format!("{what}\n  ours: {ours:?}\n  theirs: {theirs:?}"));
        }
        self.compared += 1;
    }
}

#[test]
fn every_recorded_packet_is_sent_by_our_engine() {
    let mut tally = Tally::default();
    for path in captures() {
        let capture = Capture::read(&path);
        let before = tally.compared;
        for peers in ends(&capture) {
            let end = End::new(&capture, &peers);
            tally.unseen += end.play(|recorded, sent| tally.compare(&capture, recorded, sent));
        }
        assert_eq!(tally.compared - before, capture.packets.len(), "{}", capture.name);
    }
    assert!(tally.wrong.is_empty(), "{}", tally.wrong.join("\n"));
    assert_eq!(tally.compared, 1000);
    // Their answers that a queue behind the responder lost before they were recorded; ours are all there.
    assert_eq!(tally.unseen, UNSEEN);
    let listed: BTreeMap<_, _> = DIFFERENCES.iter().map(|d| (d.field, d.count)).collect();
    assert_eq!(tally.differing, listed);
}

#[test]
fn the_documentation_lists_every_difference() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/interop.md");
    let text = std::fs::read_to_string(file).unwrap();
    for Difference { field, count, reason, .. } in DIFFERENCES {
        let row = format!("| {field} | {count} | {reason} |");
        assert!(text.contains(&row), "docs/interop.md lacks this line:\n{row}");
    }
}
