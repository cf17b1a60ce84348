//! Slow hosts, for experiments about pauses.

use softroce::sim::Receiver;

use super::net::Path;

/// Bytes that a host holds before it asks its switch to pause.
const HOST_XOFF: usize = 100_000;
/// What is on its way to a host while its switch learns that it must stop, and to spare.
const HOST_HEADROOM: usize = 50_000;

/// A host that takes packets in at this speed, counted on the line; 0: not at all.
pub(crate) fn slow(path: Path, bits_per_s: u64) -> Receiver {
    Receiver {
        bits_per_s,
        buffer: HOST_XOFF + HOST_HEADROOM,
        xoff: HOST_XOFF,
        xon: HOST_XOFF - 2 * path.packet.frame as usize,
    }
}
