//! Any bytes as a capture file.
//!
//! Whatever is in it, reading ends, with an error or at the end, and every packet found on the way can be
//! taken apart, followed and printed.

use softroce::capture::{Analysis, ReadError, Reader, inspect};
use softroce::wire::frame::dissect;

/// How far the bytes got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Frames read.
    pub frames: usize,
    /// RoCEv2 packets in them.
    pub packets: usize,
    /// Things noted about those.
    pub notes: usize,
    /// Whether the file was read to its end.
    pub whole: bool,
}

/// Reads `data` to its end and follows what is in it.
pub fn run(data: &[u8]) -> Reached {
    let mut reached = Reached::default();
    let Ok(mut reader) = Reader::new(data) else { return reached };
    let mut analysis = Analysis::new();
    loop {
        let record = match reader.next_record() {
            Ok(Some(record)) => record,
            Ok(None) => break,
            Err(e) => {
                assert!(!matches!(e, ReadError::Io(_)), "bytes in memory can be read: {e}");
                assert!(!e.to_string().is_empty());
                return reached;
            }
        };
        reached.frames += 1;
        assert_eq!(record.number, reached.frames as u64);
        // Each takes bytes of the file, so that no file goes on for ever.
        assert!(reached.frames <= data.len());
        let Ok(found) = dissect(record.link, record.bytes) else { continue };
        let Some(inspected) = inspect(&found) else { continue };
        reached.packets += 1;
        assert!(!inspected.to_string().is_empty());
        for note in analysis.observe(&inspected) {
            assert!(!note.to_string().is_empty());
            reached.notes += 1;
        }
    }
    reached.whole = true;
    reached
}
