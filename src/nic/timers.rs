//! When each NIC of a simulation wants to be called, and who is first.
//!
//! A tournament: above each two entries stands the earlier one. Changing one costs a step for each doubling of the
//! number of hosts, asking for the first costs nothing, however many hosts there are.

use crate::time::Instant;

const NEVER: u64 = Instant::FAR_FUTURE.as_nanos();

#[derive(Debug, Default)]
pub(super) struct Timers {
    /// The winners, the final at 1; the entries themselves from `leaves` on.
    tree: Vec<u64>,
    leaves: usize,
}

impl Timers {
    /// Makes room for this many hosts.
    fn grow(&mut self, hosts: usize) {
        if hosts <= self.leaves {
            return;
        }
        let old = self.tree.split_off(self.leaves.min(self.tree.len()));
        self.leaves = hosts.next_power_of_two();
        self.tree = vec![NEVER; 2 * self.leaves];
        for (host, at) in old.into_iter().enumerate() {
            self.set(host, Instant::from_nanos(at));
        }
    }

    /// A host wants to be called at this time.
    pub(super) fn set(&mut self, host: usize, at: Instant) {
        self.grow(host + 1);
        let mut node = self.leaves + host;
        let mut at = at.as_nanos();
        while self.tree[node] != at {
            self.tree[node] = at;
            if node == 1 {
                break;
            }
            at = at.min(self.tree[node ^ 1]);
            node /= 2;
        }
    }

    /// When the first wants to be called; `None`: nobody does.
    pub(super) fn first(&self) -> Option<Instant> {
        self.tree.get(1).copied().filter(|&at| at != NEVER).map(Instant::from_nanos)
    }

    /// Appends the hosts that want to be called by `now`, in ascending order.
    pub(super) fn due(&self, now: Instant, out: &mut Vec<usize>) {
        if self.leaves > 0 {
            self.collect(1, now.as_nanos(), out);
        }
    }

    fn collect(&self, node: usize, now: u64, out: &mut Vec<usize>) {
        if self.tree[node] > now {
            return;
        }
        match node.checked_sub(self.leaves) {
            Some(host) => out.push(host),
            None => {
                self.collect(2 * node, now, out);
                self.collect(2 * node + 1, now, out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn like_a_plain_list(sets in prop::collection::vec((0_usize..40, 0_u64..100), 0..200), now in 0_u64..100) {
            let mut timers = Timers::default();
            let mut list = [NEVER; 40];
            prop_assert_eq!(timers.first(), None);
            for (host, at) in sets {
                let at = if at == 99 { NEVER } else { at };
                timers.set(host, Instant::from_nanos(at));
                list[host] = at;
                let first = list.iter().min().copied().filter(|&at| at != NEVER);
                prop_assert_eq!(timers.first().map(Instant::as_nanos), first);
            }
            let mut due = Vec::new();
            timers.due(Instant::from_nanos(now), &mut due);
            let plain: Vec<_> = (0..40).filter(|&host| list[host] <= now).collect();
            prop_assert_eq!(due, plain);
        }
    }
}
