//! Who has which hardware address: the table behind ARP and neighbour discovery.
//!
//! *Rules.* The numbers are those of Linux (`arp(7)`, `Documentation/networking/ip-sysctl.rst`): an unknown
//! neighbour is asked for three times, a second apart; one that was not heard of for 30 seconds is still used,
//! and asked by itself five seconds after it was needed; three questions later it is unknown again. Whoever
//! sends us a datagram was heard of. The table has a fixed size: what was not used for longest makes room.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::time::{Duration, Instant};
use crate::wire::frame::Mac;

/// Questions before a neighbour counts as not there.
pub(super) const QUESTIONS: u8 = 3;
/// Between two questions.
pub(super) const INTERVAL: Duration = Duration::from_secs(1);
/// How long nothing need be heard of a neighbour.
pub(super) const REACHABLE: Duration = Duration::from_secs(30);
/// From the first use after that to the first question: most often something is heard meanwhile.
pub(super) const DELAY: Duration = Duration::from_secs(5);
/// Most neighbours that are remembered.
pub(super) const MOST: usize = 256;

#[derive(Clone, Copy, Debug)]
struct Neighbour {
    mac: Option<Mac>,
    heard: Instant,
    used: Instant,
    /// Questions asked since it was last heard of.
    asked: u8,
    /// When to ask next; `FAR_FUTURE`: not at all.
    due: Instant,
}

/// What is known of a neighbour that is to be sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Its address.
    Known(Mac),
    /// It is being asked for.
    Asked,
    /// There are too many others that are being asked for.
    Full,
}

/// What has become due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Ask for this neighbour; with an address, ask it alone.
    Ask(IpAddr, Option<Mac>),
    /// It does not answer, and is forgotten.
    Gone(IpAddr),
}

/// The table.
#[derive(Debug)]
pub(super) struct Neighbours {
    table: BTreeMap<IpAddr, Neighbour>,
    /// Nothing is due before.
    next: Instant,
}

impl Neighbours {
    pub(super) fn new() -> Self {
        Self { table: BTreeMap::new(), next: Instant::FAR_FUTURE }
    }

    /// Looks a neighbour up for a datagram, and has it asked for if that is needed.
    pub(super) fn find(&mut self, now: Instant, ip: IpAddr) -> Found {
        if let Some(n) = self.table.get_mut(&ip) {
            n.used = now;
            let Some(mac) = n.mac else { return Found::Asked };
            if n.due == Instant::FAR_FUTURE && now - n.heard > REACHABLE {
                n.due = now + DELAY;
                self.next = self.next.min(n.due);
            }
            return Found::Known(mac);
        }
        if !self.make_room() {
            return Found::Full;
        }
        self.table.insert(ip, Neighbour { mac: None, heard: now, used: now, asked: 0, due: now });
        self.next = self.next.min(now);
        Found::Asked
    }

    /// A datagram came from this neighbour.
    pub(super) fn hear(&mut self, now: Instant, ip: IpAddr, mac: Mac) {
        if let Some(n) = self.table.get_mut(&ip).filter(|n| n.mac == Some(mac)) {
            (n.heard, n.asked, n.due) = (now, 0, Instant::FAR_FUTURE);
        }
    }

    /// A neighbour tells its address. `create`: it talks to us, and will be talked to. `replace`: even if it
    /// had another one. Says whether this is its address now.
    pub(super) fn learn(
        &mut self,
        now: Instant,
        ip: IpAddr,
        mac: Mac,
        create: bool,
        replace: bool,
    ) -> bool {
        let known = self.table.get(&ip).copied();
        match known {
            Some(n) if n.mac.is_some_and(|old| old != mac) && !replace => return false,
            None if !create || !self.make_room() => return false,
            _ => {}
        }
        let used = known.map_or(now, |n| n.used);
        let n = Neighbour { mac: Some(mac), heard: now, used, asked: 0, due: Instant::FAR_FUTURE };
        self.table.insert(ip, n);
        true
    }

    /// Whether there is room for another one, at the expense of the one that was not used for longest.
    fn make_room(&mut self) -> bool {
        if self.table.len() < MOST {
            return true;
        }
        let known = self.table.iter().filter(|(_, n)| n.mac.is_some());
        let Some((&oldest, _)) = known.min_by_key(|(_, n)| n.used) else { return false };
        self.table.remove(&oldest);
        true
    }

    /// The next thing that is due.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Due> {
        if now < self.next {
            return None;
        }
        let Some((&ip, n)) = self.table.iter_mut().find(|(_, n)| n.due <= now) else {
            self.next = self.table.values().map(|n| n.due).min().unwrap_or(Instant::FAR_FUTURE);
            return None;
        };
        if n.asked == QUESTIONS {
            self.table.remove(&ip);
            return Some(Due::Gone(ip));
        }
        n.asked += 1;
        n.due = now + INTERVAL;
        Some(Due::Ask(ip, n.mac))
    }

    /// Nothing is due before this time.
    pub(super) fn next_due(&self) -> Instant {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
    const MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn an_unknown_neighbour_is_asked_for_three_times() {
        let mut table = Neighbours::new();
        assert_eq!(table.take_due(at(0)), None);
        assert_eq!(table.find(at(0), A), Found::Asked);
        for second in 0..3 {
            let now = at(second * 1000);
            assert_eq!(table.take_due(now), Some(Due::Ask(A, None)), "{second}");
            assert_eq!(table.take_due(now), None);
            assert_eq!(table.next_due(), now + INTERVAL);
            assert_eq!(table.find(now, A), Found::Asked);
        }
        assert_eq!(table.take_due(at(3000)), Some(Due::Gone(A)));
        assert_eq!(table.take_due(at(9000)), None);
        assert_eq!(table.next_due(), Instant::FAR_FUTURE);
        assert_eq!(table.find(at(9000), A), Found::Asked, "from the beginning");
        assert_eq!(table.take_due(at(9000)), Some(Due::Ask(A, None)));
    }

    #[test]
    fn one_that_is_silent_is_asked_when_it_is_needed() {
        let mut table = Neighbours::new();
        assert!(!table.learn(at(0), A, MAC, false, true), "nobody asked");
        assert!(table.learn(at(0), A, MAC, true, true));
        assert_eq!(table.find(at(30_000), A), Found::Known(MAC));
        assert_eq!(table.next_due(), Instant::FAR_FUTURE);
        assert_eq!(table.find(at(30_001), A), Found::Known(MAC));
        assert_eq!(table.next_due(), at(35_001));
        // It is heard of meanwhile, so it is not asked.
        table.hear(at(34_000), A, Mac([2; 6]));
        table.hear(at(34_000), A, MAC);
        assert_eq!(table.take_due(at(35_001)), None);
        assert_eq!(table.find(at(65_000), A), Found::Known(MAC));
        for second in 0..3 {
            let now = at(70_000 + second * 1000);
            assert_eq!(table.take_due(now), Some(Due::Ask(A, Some(MAC))));
            assert_eq!(table.find(now, A), Found::Known(MAC), "used until it is given up");
        }
        assert_eq!(table.take_due(at(73_000)), Some(Due::Gone(A)));
    }

    #[test]
    fn a_new_address_needs_the_right_to_replace() {
        let mut table = Neighbours::new();
        let other = Mac([2, 0, 0, 0, 0, 10]);
        assert!(table.learn(at(0), A, MAC, true, false));
        assert!(!table.learn(at(1), A, other, true, false));
        assert_eq!(table.find(at(2), A), Found::Known(MAC));
        assert!(table.learn(at(3), A, other, false, true));
        assert_eq!(table.find(at(4), A), Found::Known(other));
    }

    #[test]
    fn the_table_is_bounded() {
        let mut table = Neighbours::new();
        let ip = |n: usize| IpAddr::from([10, 0, 1 + (n / 256) as u8, (n % 256) as u8]);
        table.learn(at(0), A, MAC, true, true);
        for n in 0..MOST - 1 {
            assert_eq!(table.find(at(1), ip(n)), Found::Asked);
        }
        assert_eq!(table.find(at(1), ip(MOST)), Found::Asked, "in place of the known one");
        assert_eq!(table.find(at(1), A), Found::Full, "nobody who is being asked for is given up");
    }
}
