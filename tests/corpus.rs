//! The corpora of the fuzz targets, replayed without a fuzzer.
//!
//! Each file runs through what its target runs through. Together they still reach what they were kept for.

#![cfg(feature = "unstable-internals")]

#[expect(unreachable_pub, reason = "public to the fuzz targets")]
#[path = "../fuzz/src/lib.rs"]
mod fuzz;

use std::fs;
use std::path::Path;

use fuzz::{
    api_calls, capture_read, endpoint_parse, engine_input, engine_sequences, frame_input,
    packet_parse,
};
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
fn frames() {
    let reached = replay("frame_input", frame_input::run);
    let sum = |of: fn(&frame_input::Reached) -> u64| reached.iter().map(of).sum::<u64>();
    assert!(sum(|r| r.datagrams) >= 8 && sum(|r| r.dropped) >= 12, "{reached:?}");
    assert!(sum(|r| r.said) >= 10, "{reached:?}");
    assert!(reached.iter().filter(|r| r.learnt).count() >= 4, "{reached:?}");
}

#[test]
fn captures() {
    let reached = replay("capture_read", capture_read::run);
    assert!(reached.iter().filter(|r| r.whole && r.packets > 0).count() >= 10);
    assert!(reached.iter().any(|r| r.notes > 0));
    assert!(reached.iter().any(|r| !r.whole && r.frames > 0), "files that end too early");
}

#[test]
fn endpoints() {
    let reached = replay("endpoint_parse", endpoint_parse::run);
    assert!(reached.iter().filter(|r| r.text).count() >= 3);
    assert!(reached.iter().filter(|r| r.message).count() >= 8);
    assert!(reached.iter().any(|r| r.endpoint));
    assert!(reached.iter().any(|r| !r.text && !r.message));
}

#[test]
fn programs() {
    let reached = replay("api_calls", api_calls::run);
    let sum = |of: fn(&api_calls::Reached) -> u32| reached.iter().map(of).sum::<u32>();
    assert!(sum(|r| r.accepted) >= 80 && sum(|r| r.refused) >= 10, "{reached:?}");
    assert!(sum(|r| r.succeeded) >= 20 && sum(|r| r.failed) >= 1, "{reached:?}");
}

#[test]
fn sequences() {
    let reached = replay("engine_sequences", engine_sequences::run);
    let sum = |of: fn(&engine_sequences::Reached) -> u32| reached.iter().map(of).sum::<u32>();
    assert!(sum(|r| r.succeeded) >= 200 && sum(|r| r.failed) >= 5, "{reached:?}");
    assert!(sum(|r| r.flushed) >= 20 && sum(|r| r.faults) >= 50, "{reached:?}");
}

#[test]
fn datagrams() {
    let counted = replay("engine_input", engine_input::run);
    let sum = |c| counted.iter().map(|counters| counters.get(c)).sum::<u64>();
    let missing: Vec<_> = REACHED.into_iter().filter(|&c| sum(c) == 0).map(Counter::name).collect();
    assert!(missing.is_empty(), "no longer reached: {missing:?}");
}

/// What datagrams can lead to, each for a reason of its own.
const REACHED: [Counter; 50] = [
    Counter::CompleterRetryErr,
    Counter::DropAddress,
    Counter::DropDuplicate,
    Counter::DropGhostResponse,
    Counter::DropMalformed,
    Counter::DropNoQp,
    Counter::DropRefused,
    Counter::DropRemainder,
    Counter::DropRequestAhead,
    Counter::DropResponse,
    Counter::DropState,
    Counter::DropTransport,
    Counter::DropUnknownOpcode,
    Counter::DropUnsentResponse,
    Counter::DropUnsupported,
    Counter::DropVersion,
    Counter::DuplicateAtomic,
    Counter::DuplicateAtomicWrite,
    Counter::DuplicateFlush,
    Counter::DuplicateRead,
    Counter::DuplicateRequest,
    Counter::DuplicateSend,
    Counter::DuplicateWrite,
    Counter::IcrcInferred,
    Counter::IcrcRecovered,
    Counter::ImpliedNakSeqErr,
    Counter::LocalAckTimeoutErr,
    Counter::MessagesGivenUp,
    Counter::NpEcnMarkedRocePackets,
    Counter::OutOfBuffer,
    Counter::OutOfSeqRequest,
    Counter::OutOfSequence,
    Counter::QkeyViolCntr,
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
    Counter::RxAtomicWriteRequests,
    Counter::RxFlushRequests,
    Counter::RxIcrcEncapsulated,
    Counter::RxReadRequests,
    Counter::RxWriteRequests,
    Counter::SendRnrErr,
];

const TARGETS: [&str; 7] = [
    "api_calls",
    "capture_read",
    "endpoint_parse",
    "engine_input",
    "engine_sequences",
    "frame_input",
    "packet_parse",
];

#[test]
fn they_stay_small() {
    let files = TARGETS.map(corpus).concat();
    let bytes: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
    assert!(bytes < 320_000, "{bytes} bytes in {} files", files.len());
}
