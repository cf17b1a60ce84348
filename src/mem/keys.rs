//! How keys are made: a secret permutation of slot and generation, see [`table`](super::table).

use std::cell::Cell;

use super::table::SLOTS;

/// A keyed permutation of 24-bit numbers: a Feistel network of four rounds on two halves of 12 bits.
pub(super) struct Permutation {
    rounds: [u32; 4],
    /// The upper bits of a key, and what they stand for: many packets in a row name the same one.
    last: Cell<(u32, u32)>,
}

impl Permutation {
    pub(super) fn new(seeds: [u32; 4], which: u32) -> Self {
        let mut state = which;
        Self {
            rounds: seeds.map(|seed| {
                state = mix(state ^ seed);
                state
            }),
            // No key has upper bits of 0, and slot 0 is never used: who asks finds nothing, as it should be.
            last: Cell::new((0, 0)),
        }
    }

    /// The key of slot-and-generation `name`: its 24 bits permuted, and 8 bits that depend on everything.
    pub(super) fn key(&self, name: u32, uses: u32) -> u32 {
        let low = mix(mix(self.rounds[3] ^ uses) ^ name) >> 24;
        self.permute(name) << 8 | low
    }

    /// The slot that a key belongs to, if it belongs to any.
    pub(super) fn slot_of(&self, key: u32) -> u32 {
        let (last, name) = self.last.get();
        let name = if key >> 8 == last {
            name
        } else {
            let name = self.invert(key >> 8);
            self.last.set((key >> 8, name));
            name
        };
        name & (SLOTS - 1)
    }

    fn permute(&self, v: u32) -> u32 {
        let (mut l, mut r) = (v >> 12, v & 0xfff);
        for k in self.rounds {
            (l, r) = (r, l ^ half(r, k));
        }
        l << 12 | r
    }

    fn invert(&self, v: u32) -> u32 {
        let (mut l, mut r) = (v >> 12, v & 0xfff);
        for k in self.rounds.into_iter().rev() {
            (l, r) = (r ^ half(l, k), l);
        }
        l << 12 | r
    }
}

/// The round function: 12 bits from 12 bits and a round key. One multiplication, because every packet waits for
/// four of these; the upper bits of the product depend on all bits of `v`.
fn half(v: u32, k: u32) -> u32 {
    (v ^ k).wrapping_mul(0x9e37_79b1) >> 20
}

/// A permutation of 32 bits in which every bit of the input changes about half of the output.
fn mix(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x7feb_352d);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846c_a68b);
    x ^ x >> 16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_permutation_hits_every_number_once() {
        let p = Permutation::new([1, 2, 3, 4], 0);
        let mut hit = vec![0u64; 1 << 18];
        for v in 0..1 << 24 {
            let out = p.permute(v) as usize;
            hit[out / 64] |= 1 << (out % 64);
        }
        assert!(hit.iter().all(|&word| word == u64::MAX));
    }

    /// Flipping any one bit of a name flips about half of the bits of its key, for every secret.
    #[test]
    fn neighbours_look_unrelated() {
        for secret in 0..50 {
            let p = Permutation::new([secret, 0, 0, 0], 1);
            for bit in 0..24 {
                let flips = |v: u32| (p.permute(v) ^ p.permute(v ^ 1 << bit)).count_ones();
                let total: u32 = (0..1000).map(|v| flips(v * 16_777)).sum();
                assert!(
                    (10_500..13_500).contains(&total),
                    "secret {secret} bit {bit}: {total} of 24000"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn permutations_run_backwards(
            seeds: [u32; 4], which in 0u32..2, v in 0u32..1 << 24, other in 0u32..1 << 24,
        ) {
            let p = Permutation::new(seeds, which);
            prop_assert!(p.permute(v) < 1 << 24);
            prop_assert_eq!(p.invert(p.permute(v)), v);
            // Whatever it was asked for last.
            for v in [v, v, other, v, other, other] {
                prop_assert_eq!(p.slot_of(p.permute(v) << 8 | 0x5a), v & (SLOTS - 1));
            }
        }
    }
}
