//! Odd packets, and what is answered: by our NIC, and by Linux rdma_rxe.
//!
//! A host at the other end of an Ethernet cable sends frames that are made by hand, with everything in them that
//! a sender may do otherwise or get wrong. Kernels 6.1, 6.12 and 7.3 were sent the same frames, and what they
//! answered is in `tests/data/probe-*.txt`. Where we answer something else stands in one table, with the reason.

#![cfg(all(feature = "udp", target_os = "linux"))]
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

#[path = "probe/cable.rs"]
mod cable;
#[path = "probe/script.rs"]
mod script;
#[path = "common/seal.rs"]
mod seal;

use std::collections::BTreeMap;

use softroce::verbs::Context;

use cable::{Cable, V4, V6};
use script::{Line, Prober};

/// An answer of ours that is another than a kernel's.
struct Difference {
    probe: &'static str,
    /// Kernels that answer otherwise.
    kernels: &'static [&'static str],
    theirs: &'static str,
    ours: &'static str,
    reason: &'static str,
}

const ALL: &[&str] = &["6.1", "6.12", "7.3"];

/// All of them.
const DIFFERENCES: &[Difference] = &[
    Difference {
        probe: "tos/tc 0x03 (CE)",
        kernels: ALL,
        theirs: "RC_ACK syndrome=1f",
        ours: "CNP, RC_ACK syndrome=1f",
        reason: "a packet that met congestion is reported to its sender (IBTA annex A17), as NICs do. rdma_rxe knows no \
                 congestion notifications.",
    },
    Difference {
        probe: "PSN ahead again (2nd time)",
        kernels: ALL,
        theirs: "no answer",
        ours: "RC_ACK syndrome=60",
        reason: "one NAK is enough for a gap (IBTA 9.7.5), unless it is lost. So a packet that is still ahead after a \
                 millisecond draws another one; its requester goes back once, whether one arrives or both.",
    },
    Difference {
        probe: "FLUSH with the ICRC by the book",
        kernels: &["6.12"],
        theirs: "no answer",
        ours: "RC_READ_RESP_ONLY syndrome=1f",
        reason: "the ICRC is right. rdma_rxe runs its CRC over a FLUSH twice and takes only that; we take both, and \
                 send that of the standard.",
    },
    Difference {
        probe: "SEND_ONLY of 1400 on a 1024 path",
        kernels: &["6.1"],
        theirs: "RC_ACK syndrome=1f",
        ours: "RC_ACK syndrome=61",
        reason: "a packet above the path MTU is an invalid request (IBTA 9.7.4). Kernel 6.1 takes it, later ones \
                 answer as we do.",
    },
    Difference {
        probe: "SEND_ONLY of 1400 on a 1024 path: the next packet",
        kernels: &["6.1"],
        theirs: "RC_ACK syndrome=1f",
        ours: "no answer",
        reason: "the NAK before has ended the connection.",
    },
];

/// The lines with names that differ.
fn named(lines: impl Iterator<Item = Line>) -> Vec<Line> {
    let mut named: Vec<Line> = Vec::new();
    for line in lines {
        let name = match named.last() {
            Some(last) if line.name.ends_with("next packet on that QP") => {
                format!("{}: the next packet", last.name)
            }
            _ => line.name,
        };
        named.push(Line { name, ..line });
    }
    named
}

/// The kernel's answers to all probes. What a kernel numbers or draws for itself is left out: IPv4
/// identifications, and the UDP source port, which its queue pair numbers make.
fn kernel(version: &str) -> Vec<Line> {
    let file = format!("{}/tests/data/probe-{version}.txt", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(file).unwrap();
    let lines = text.lines().filter_map(|line| line.split_once(" -> "));
    let own = |word: &&str| !word.starts_with("id=") && !word.starts_with("sport=");
    named(lines.map(|(name, answer)| Line {
        name: name.trim_end().to_owned(),
        answer: answer.split_whitespace().filter(own).collect::<Vec<_>>().join(" "),
    }))
}

/// Our NIC's answers.
fn ours(flush: bool) -> Vec<Line> {
    let (cable, device) = Cable::new(if flush { "flush" } else { "plain" });
    let ctx = Context::open(&device).unwrap();
    let mut lines = Vec::new();
    for ends in [V4, V6] {
        lines.extend(Prober::new(&cable, &ctx, ends).probe(flush));
    }
    // Of the two FLUSHes the second one is the first once more.
    let counted =
        ["icrc_rxe_flush", "rx_flush_requests", "duplicate_flush", "rx_icrc_encapsulated"];
    let flushes = 2 * u64::from(flush);
    assert_eq!(counted.map(|name| ctx.counters(1).unwrap()[name]), [flushes, flushes, flushes, 2]);
    named(lines.into_iter())
}

/// The answer as the kernel would write it: without what is otherwise in all of ours.
fn without_our_ways(answer: &str) -> String {
    if answer == "no answer" {
        return answer.to_owned();
    }
    let parts = answer.split(" || ").map(|part| {
        let is_cnp = part.starts_with("CNP ");
        assert!(is_cnp || part.contains(" M pad="), "MigReq is always set: {part}");
        let part = part.replace(" M pad=", " pad=");
        if part.contains("| v4 ") {
            return part;
        }
        let (before, after) = part.split_once("csum=").unwrap();
        let (checksum, after) = after.split_once(' ').unwrap();
        assert_ne!(checksum, "0000", "over IPv6 there is a UDP checksum: {part}");
        format!("{before}csum=0000 {after}")
    });
    parts.collect::<Vec<_>>().join(" || ")
}

/// What it comes to: opcodes and syndromes.
fn gist(answer: &str) -> String {
    let gist = |part: &str| {
        let words = part.split_whitespace().enumerate();
        let kept = words.filter(|(i, word)| *i == 0 || word.starts_with("syndrome="));
        kept.map(|(_, word)| word).collect::<Vec<_>>().join(" ")
    };
    match answer {
        "no answer" => answer.to_owned(),
        _ => answer.split(" || ").map(gist).collect::<Vec<_>>().join(", "),
    }
}

#[test]
fn odd_packets_are_answered_as_the_kernel_does() {
    let answers = [false, true].map(ours);
    let mut compared = 0;
    let mut found = BTreeMap::new();
    for version in ALL {
        let theirs = kernel(version);
        let flush = theirs.iter().any(|line| line.name.contains("FLUSH"));
        let ours = &answers[usize::from(flush)];
        let names = |lines: &[Line]| lines.iter().map(|l| l.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(ours), names(&theirs), "{version}");
        for (our, their) in ours.iter().zip(&theirs) {
            compared += 1;
            if without_our_ways(&our.answer) != their.answer {
                let gists = [gist(&their.answer), gist(&our.answer)];
                assert_eq!(found.insert((our.name.clone(), *version), gists), None);
            }
        }
    }
    assert_eq!(compared, 90 + 94 + 90);
    let mut listed = BTreeMap::new();
    for d in DIFFERENCES {
        for (family, version) in
            ["v4", "v6"].iter().flat_map(|f| d.kernels.iter().map(move |v| (f, *v)))
        {
            let gists = [d.theirs.to_owned(), d.ours.to_owned()];
            listed.insert((format!("{family} {}", d.probe), version), gists);
        }
    }
    assert_eq!(found, listed);
}

#[test]
fn the_documentation_lists_every_difference() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/interop.md");
    let text = std::fs::read_to_string(file).unwrap();
    for Difference { probe, kernels, theirs, ours, reason } in DIFFERENCES {
        let row = format!("| {probe} | {} | {theirs} | {ours} | {reason} |", kernels.join(", "));
        assert!(text.contains(&row), "docs/interop.md lacks this line:\n{row}");
    }
}
