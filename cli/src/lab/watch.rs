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

#[cfg(test)]
pub(crate) mod tests {
    use crate::lab::{Experiment, Progress, Setup, html};

    /// The short variant of an experiment passes, and comes to the same bytes again.
    pub(crate) fn short_passes_and_repeats(experiment: &dyn Experiment) {
        let run = || {
            let setup = Setup { seed: 1, short: true };
            experiment.run(&setup, &mut Progress::new("test")).unwrap()
        };
        let (first, second) = (run(), run());
        assert!(first.ok(), "{:#?}", first.rows.iter().filter(|r| !r.ok).collect::<Vec<_>>());
        assert_eq!(first.json().unwrap(), second.json().unwrap());
        assert_eq!(html::page(&first, true), html::page(&second, true));
        assert!(first.drawing.is_some() && !first.plots.is_empty() && !first.lesson.is_empty());
    }
}
