//! Which way a packet takes: the shortest, and among equal ones that of its flow (ECMP).
//!
//! *Rules.* A flow is told by its addresses and its UDP source port, as switches do for RoCEv2, where the destination
//! port is always the same. Each switch mixes in a number of its own, or all would choose alike. Cables that are down
//! are not used, from the moment at which they go down. A path that was pinned is taken while it is up.

use std::collections::VecDeque;

use crate::net::Path;

use super::queue::Node;
use super::store::PacketId;
use super::{Direction, Fabric, FabricError, HostId, SwitchId, as_v6};

impl Fabric {
    /// The pipe by which a packet leaves a switch towards a host; `None`: there is no way.
    pub(super) fn way_out(&self, s: usize, id: PacketId, to: usize) -> Option<usize> {
        let down = self.pipe_of(to, Direction::Down);
        let Node::Switch(last) = self.pipes[down].from else { return None };
        if last == s {
            return Some(down);
        }
        let packet = self.store.get(id);
        if let Some(&pin) = self.pins.get(&(s, packet.from, to))
            && self.pipes[pin].up
        {
            return Some(pin);
        }
        let ways = self.switches[s].next.get(last)?;
        match ways.as_slice() {
            [] => None,
            &[only] => Some(only),
            several => {
                let hash = flow_hash(&packet.path, self.switches[s].salt);
                // The modulus is the length, so there is one.
                several.get(usize::try_from(hash % several.len() as u64).ok()?).copied()
            }
        }
    }

    /// The network was added to: its ways are found before anybody looks for one, and not with each cable.
    pub(super) fn settle_routes(&mut self) {
        if self.stale {
            self.reroute();
        }
    }

    /// Finds all shortest ways anew: after a cable came, went down or came up.
    pub(super) fn reroute(&mut self) {
        self.stale = false;
        let n = self.switches.len();
        let mut hops = vec![usize::MAX; n];
        let mut queue = VecDeque::new();
        for switch in &mut self.switches {
            switch.next = vec![Vec::new(); n];
        }
        for target in 0..n {
            hops.fill(usize::MAX);
            hops[target] = 0;
            queue.push_back(target);
            while let Some(at) = queue.pop_front() {
                for out in 0..self.switches[at].out.len() {
                    let pipe = self.switches[at].out[out];
                    // Cables go both ways, so the way back is as long.
                    if let Node::Switch(next) = self.pipes[pipe].to
                        && self.pipes[pipe].up
                        && hops[next] == usize::MAX
                    {
                        hops[next] = hops[at] + 1;
                        queue.push_back(next);
                    }
                }
            }
            for at in 0..n {
                for out in 0..self.switches[at].out.len() {
                    let pipe = self.switches[at].out[out];
                    if let Node::Switch(next) = self.pipes[pipe].to
                        && self.pipes[pipe].up
                        && hops[at] != usize::MAX
                        && hops[next] != usize::MAX
                        && hops[next] + 1 == hops[at]
                    {
                        self.switches[at].next[target].push(pipe);
                    }
                }
            }
        }
    }

    /// Has packets from one host to another leave a switch towards another, whatever their flow.
    ///
    /// # Errors
    /// If one of them does not exist, or no cable leads there.
    pub fn pin(
        &mut self,
        at: SwitchId,
        hosts: (HostId, HostId),
        towards: SwitchId,
    ) -> Result<(), FabricError> {
        let (from, to) = (self.index(hosts.0)?, self.index(hosts.1)?);
        let (s, next) = (self.switch_index(at)?, self.switch_index(towards)?);
        let leads = |&&pipe: &&usize| self.pipes[pipe].to == Node::Switch(next);
        let Some(&pipe) = self.switches[s].out.iter().find(leads) else {
            return Err(FabricError::NoCable { from: at, to: towards });
        };
        self.pins.insert((s, from, to), pipe);
        Ok(())
    }

    /// Whether there is a way from one host to another.
    ///
    /// # Errors
    /// If there is none, or one of them does not exist.
    pub fn check_way(&mut self, from: HostId, to: HostId) -> Result<(), FabricError> {
        self.settle_routes();
        let at = |host: HostId| -> Result<_, FabricError> {
            let down = self.pipe_of(self.index(host)?, Direction::Down);
            Ok(self.pipes[down].from)
        };
        match (at(from)?, at(to)?) {
            (a, b) if a == b => Ok(()),
            (Node::Switch(a), Node::Switch(b))
                if self.switches[a].next.get(b).is_some_and(|ways| !ways.is_empty()) =>
            {
                Ok(())
            }
            _ => Err(FabricError::NoWay { from, to }),
        }
    }
}

/// A number for a flow, well mixed (the finalizer of `splitmix64`).
fn flow_hash(path: &Path, salt: u64) -> u64 {
    let fold = |ip| {
        let bits = as_v6(ip);
        #[expect(clippy::cast_possible_truncation, reason = "the two halves of 128 bits")]
        let folded = (bits >> 64) as u64 ^ bits as u64;
        folded
    };
    [fold(path.src), fold(path.dst), u64::from(path.src_port)].into_iter().fold(salt, |h, word| {
        let mut z = (h ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}
