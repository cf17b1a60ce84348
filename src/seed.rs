//! One number in, as many independent random streams out as anybody wants.
//!
//! A [`Seeds`] is a node of a tree. [`Seeds::derive`] makes a child for a purpose (a label) and a number,
//! [`Seeds::rng`] the node's own stream. Neither depends on what else was derived, or when: a host added
//! to a simulated network leaves the streams of all others as they were.
//!
//! *Rules.* Every random choice below the verbs comes from such a stream. The values are part of what a
//! seed means and do not change with the platform or the release: a test holds them.

use std::fmt;

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// A node of the seed tree.
///
/// ```
/// use softroce::internals::seed::Seeds;
/// let root = Seeds::new(42);
/// let a = root.derive("host", 0).u64();
/// assert_ne!(a, root.derive("host", 1).u64());
/// assert_eq!(a, Seeds::new(42).derive("host", 0).u64());
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Seeds([u8; 32]);

impl Seeds {
    /// The root of the tree of `seed`.
    pub fn new(seed: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        Self(key)
    }

    /// The child for `label` and `index`: block `index` of the ChaCha8 stream that the label selects, under
    /// this node's key.
    #[must_use]
    pub fn derive(&self, label: &str, index: u64) -> Self {
        let mut rng = self.rng();
        // Stream 0 is the node's own; the lowest bit keeps every label away from it.
        rng.set_stream(fnv1a(label.as_bytes()) | 1);
        rng.set_word_pos(u128::from(index) * 16);
        let mut key = [0; 32];
        rng.fill_bytes(&mut key);
        Self(key)
    }

    /// The node's own stream.
    pub fn rng(&self) -> ChaCha8Rng {
        ChaCha8Rng::from_seed(self.0)
    }

    /// The first number of the node's own stream: for what takes a plain seed.
    pub fn u64(&self) -> u64 {
        self.rng().next_u64()
    }
}

impl fmt::Debug for Seeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seeds({:016x})", self.u64())
    }
}

/// Whether an event of probability `p` happens. No draw where the answer is known.
pub(crate) fn chance(rng: &mut ChaCha8Rng, p: f64) -> bool {
    // 53 bits fill a double exactly, so the comparison is the same on every machine.
    let unit = |x: u64| (x >> 11) as f64 / (1u64 << 53) as f64;
    p > 0.0 && unit(rng.next_u64()) < p
}

/// A number below `n`; 0 for `n` = 0.
pub(crate) fn below(rng: &mut ChaCha8Rng, n: u64) -> u64 {
    let product = u128::from(rng.next_u64()) * u128::from(n);
    (product >> 64) as u64
}

/// FNV-1a, 64 bits.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &b| {
        (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_what_they_are() {
        let root = Seeds::new(1);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8, "published test value of FNV-1a");
        // Computed by another implementation of ChaCha8.
        assert_eq!(root.u64(), 0x61a9_4a49_a0e9_5ecf);
        assert_eq!(root.derive("host", 0).u64(), 0xbe28_4804_6fd4_0646);
        assert_eq!(root.derive("host", 1).u64(), 0x1eec_308f_1df4_b3c0);
        assert_eq!(root.derive("host", 1).derive("loss", 0).u64(), 0x6d1a_a3c5_cf95_d919);
    }

    #[test]
    fn siblings_cousins_and_roots_differ() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..4 {
            let root = Seeds::new(seed);
            assert!(seen.insert(root.u64()));
            for label in ["a", "b", "aa", ""] {
                for index in [0, 1, u64::MAX] {
                    let child = root.derive(label, index);
                    assert!(seen.insert(child.u64()));
                    assert!(seen.insert(child.derive(label, index).u64()));
                }
            }
        }
    }

    #[test]
    fn chances_and_ranges() {
        let mut rng = Seeds::new(7).rng();
        assert!(!chance(&mut rng, 0.0));
        assert!((0..1000).all(|_| chance(&mut rng, 1.0)));
        let hits = (0..10_000).filter(|_| chance(&mut rng, 0.25)).count();
        assert!((2_300..2_700).contains(&hits), "{hits}");
        let mut counts = [0u32; 5];
        for _ in 0..10_000 {
            counts[usize::try_from(below(&mut rng, 5)).unwrap()] += 1;
        }
        assert!(counts.iter().all(|c| (1_850..2_150).contains(c)), "{counts:?}");
        assert_eq!(below(&mut rng, 0), 0);
        assert_eq!(below(&mut rng, 1), 0);
    }
}
