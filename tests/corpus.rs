//! The corpora of the fuzz targets, replayed without a fuzzer.
//!
//! Each file runs through what its target runs through. Together they still reach what they were kept for.

#![cfg(feature = "unstable-internals")]

#[expect(unreachable_pub, reason = "public to the fuzz targets")]
#[path = "../fuzz/src/lib.rs"]
mod fuzz;

use std::fs;
use std::path::Path;

use fuzz::{capture_read, engine_input, packet_parse};
use softroce::internals::engine::Counter;

/// All files of a target, smallest name first.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let entries = fs::read_dir(folder).expect("a folder of the repository");
    let mut files: Vec<_> = entries
        .map(|entry| {
            let path = entry.expect("an entry").path();
            (path.display().to_string(), fs::read(&path).expect("a file of the corpus"))
        })
        .collect();
    files.sort();
    files
}

/// Runs one input after the other. The last one named is the one that failed.
#[expect(clippy::print_stdout, reason = "shown only if a test fails")]
fn replay<R>(target: &str, run: impl Fn(&[u8]) -> R) -> Vec<R> {
    let files = corpus(target);
    let replayed = files.iter().map(|(name, bytes)| {
        println!("{name}");
        run(bytes)
    });
    replayed.collect()
}

#[test]
fn packets() {
    let reached = replay("packet_parse", packet_parse::run);
    assert!(reached.iter().filter(|r| r.packet).count() >= 50);
    assert!(reached.iter().filter(|r| r.frame).count() >= 50);
    assert!(reached.iter().any(|r| !r.packet && !r.frame));
}

#[test]
fn captures() {
    let reached = replay("capture_read", capture_read::run);
    assert!(reached.iter().filter(|r| r.whole && r.packets > 0).count() >= 10);
    assert!(reached.iter().any(|r| r.notes > 0));
    assert!(reached.iter().any(|r| !r.whole && r.frames > 0), "files that end too early");
}

#[test]
fn datagrams() {
    let counted = replay("engine_input", engine_input::run);
    let sum = |c| counted.iter().map(|counters| counters.get(c)).sum::<u64>();
    let missing: Vec<_> = REACHED.into_iter().filter(|&c| sum(c) == 0).map(Counter::name).collect();
    assert!(missing.is_empty(), "no longer reached: {missing:?}");
}

/// What datagrams can lead to, each for a reason of its own.
const REACHED: [Counter; 37] = [
    Counter::CompleterRetryErr,
    Counter::DropAddress,
    Counter::DropDuplicate,
    Counter::DropGhostResponse,
    Counter::DropMalformed,
    Counter::DropNoQp,
    Counter::DropRequestAhead,
    Counter::DropResponse,
    Counter::DropState,
    Counter::DropUnknownOpcode,
    Counter::DropUnsentResponse,
    Counter::DropUnsupported,
    Counter::DropVersion,
    Counter::DuplicateAtomic,
    Counter::DuplicateRead,
    Counter::DuplicateSend,
    Counter::DuplicateWrite,
    Counter::IcrcInferred,
    Counter::IcrcRecovered,
    Counter::ImpliedNakSeqErr,
    Counter::LocalAckTimeoutErr,
    Counter::NpEcnMarkedRocePackets,
    Counter::OutOfSeqRequest,
    Counter::RcvdRnrErr,
    Counter::RcvdSeqErr,
    Counter::RdmaRecvs,
    Counter::RdmaSends,
    Counter::ReqRemoteAccessErrors,
    Counter::ReqRemoteInvalidRequest,
    Counter::RespLocalLengthError,
    Counter::RespRemoteAccessErrors,
    Counter::RetryExceededErr,
    Counter::RetryRnrExceededErr,
    Counter::RxAtomicRequests,
    Counter::RxIcrcEncapsulated,
    Counter::RxReadRequests,
    Counter::RxWriteRequests,
];

#[test]
fn they_stay_small() {
    let files = ["packet_parse", "capture_read", "engine_input"].map(corpus).concat();
    let bytes: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
    assert!(bytes < 300_000, "{bytes} bytes in {} files", files.len());
}
