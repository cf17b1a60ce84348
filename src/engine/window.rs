//! Flow control towards a receiving socket: bytes in flight for each destination address.
//!
//! A socket's buffer is shared by all queue pairs that send to it, and overrunning it is the normal case,
//! not an accident; so the limit is per address, before any congestion control. What a packet costs is
//! its payload and [`PACKET_CHARGE`] bytes of kernel bookkeeping.
//!
//! *Rules.* Deterministic: a window is halved when a sequence NAK or a timeout shows a loss, and grows by
//! one path MTU for each window's worth of bytes acknowledged in between. Two packets always fit, and
//! anything does into an empty window. READ responses are charged by the requester to the window of its
//! *own* address: it is there that they arrive. Of that one all is known, so it starts as wide as it may be.
//!
//! Who finds no room waits in line, and nobody overtakes those who wait. Whoever is woken has its turn;
//! what it leaves is for the next. One that was woken and finds too little keeps its place in front.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

/// What the receiving kernel charges for a small datagram besides its bytes.
pub(crate) const PACKET_CHARGE: u64 = 832;

/// Limits of all windows of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowConfig {
    /// Bytes in flight at first, towards an address of which nothing is known.
    pub initial: u32,
    /// Bytes in flight at most.
    pub max: u32,
    /// Off: no limit at all (for a lab where loss is the subject).
    pub enabled: bool,
}

impl Default for WindowConfig {
    fn default() -> Self {
        Self { initial: 256 << 10, max: 2 << 20, enabled: true }
    }
}

/// Index of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowId(u32);

#[derive(Debug)]
struct Window {
    addr: IpAddr,
    users: u32,
    limit: u64,
    max: u64,
    inflight: u64,
    /// Bytes acknowledged since the limit last changed.
    clean: u64,
    /// Bytes acknowledged since the last loss; as many as can be if there was none.
    since_loss: u64,
    /// Queue pairs that found no room, first come first served.
    waiting: VecDeque<u32>,
}

/// All windows of a device.
#[derive(Debug)]
pub(crate) struct Windows {
    config: WindowConfig,
    by_addr: BTreeMap<IpAddr, u32>,
    slots: Vec<Window>,
    free: Vec<u32>,
}

impl Windows {
    pub(crate) const fn new(config: WindowConfig) -> Self {
        Self { config, by_addr: BTreeMap::new(), slots: Vec::new(), free: Vec::new() }
    }

    /// The window towards `addr`, made if there is none; `room` is the receive buffer that its owner told
    /// of (0: unknown). Each `open` needs a `close`.
    pub(crate) fn open(&mut self, addr: IpAddr, room: u32) -> WindowId {
        let index = match self.by_addr.get(&addr) {
            Some(&index) => index,
            None => {
                let window = Window {
                    addr,
                    users: 0,
                    limit: u64::from(self.config.initial.min(self.config.max)),
                    max: u64::from(self.config.max),
                    inflight: 0,
                    clean: 0,
                    since_loss: u64::MAX,
                    waiting: VecDeque::new(),
                };
                let index = match self.free.pop() {
                    Some(index) => {
                        self.slots[index as usize] = window;
                        index
                    }
                    None => {
                        self.slots.push(window);
                        u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
                    }
                };
                self.by_addr.insert(addr, index);
                index
            }
        };
        let window = &mut self.slots[index as usize];
        window.users += 1;
        // What one user needs at most is one place in the queue.
        window.waiting.reserve(window.users as usize);
        if room > 0 {
            // The kernel charges single datagrams about twice their bytes.
            window.max = window.max.min(u64::from(room) / 4).max(2 * PACKET_CHARGE);
            window.limit = window.limit.min(window.max);
        }
        WindowId(index)
    }

    /// The window towards our own address `addr`, whose receive buffer is `room` bytes (0: as large as may
    /// be). It does not have to find out what fits.
    pub(crate) fn open_own(&mut self, addr: IpAddr, room: u32) -> WindowId {
        let first = !self.by_addr.contains_key(&addr);
        let id = self.open(addr, room);
        if first {
            let window = &mut self.slots[id.0 as usize];
            window.limit = window.max;
        }
        id
    }

    /// Gives back one `open` or `open_own`. Its user has nothing in flight any more.
    pub(crate) fn close(&mut self, id: WindowId, slot: u32) {
        let window = &mut self.slots[id.0 as usize];
        window.waiting.retain(|&s| s != slot);
        window.users -= 1;
        if window.users == 0 {
            self.by_addr.remove(&window.addr);
            self.free.push(id.0);
        }
    }

    /// Whether `bytes` more may be in flight; `unit` is what one full packet costs.
    pub(crate) fn has_room(&self, id: WindowId, bytes: u64, unit: u64) -> bool {
        let window = &self.slots[id.0 as usize];
        !self.config.enabled
            || window.inflight == 0
            || window.inflight + bytes <= window.limit.max(2 * unit)
    }

    /// Bytes that may go out beside those in flight; `unit` is what one full packet costs.
    pub(crate) fn room(&self, id: WindowId, unit: u64) -> u64 {
        let window = &self.slots[id.0 as usize];
        if self.config.enabled {
            window.limit.max(2 * unit).saturating_sub(window.inflight)
        } else {
            u64::MAX
        }
    }

    /// Whether somebody waits.
    pub(crate) fn has_waiters(&self, id: WindowId) -> bool {
        !self.slots[id.0 as usize].waiting.is_empty()
    }

    /// Bytes that may be in flight.
    pub(crate) fn limit(&self, id: WindowId) -> u64 {
        if self.config.enabled { self.slots[id.0 as usize].limit } else { u64::MAX }
    }

    /// Puts `slot` into the line of those that wait for room, where it does not stand yet.
    pub(crate) fn wait(&mut self, id: WindowId, slot: u32, in_front: bool) {
        let waiting = &mut self.slots[id.0 as usize].waiting;
        if in_front {
            waiting.push_front(slot);
        } else {
            waiting.push_back(slot);
        }
    }

    /// The next one waiting, if there may be room for it.
    pub(crate) fn wake(&mut self, id: WindowId) -> Option<u32> {
        let window = &mut self.slots[id.0 as usize];
        if window.inflight < window.limit { window.waiting.pop_front() } else { None }
    }

    pub(crate) fn charge(&mut self, id: WindowId, bytes: u64) {
        self.slots[id.0 as usize].inflight += bytes;
    }

    /// Takes back a charge: the bytes were lost, or will be sent again.
    pub(crate) fn release(&mut self, id: WindowId, bytes: u64) {
        let window = &mut self.slots[id.0 as usize];
        debug_assert!(window.inflight >= bytes, "released {bytes} of {}", window.inflight);
        window.inflight = window.inflight.saturating_sub(bytes);
    }

    /// Bytes arrived: release them, and grow by `mtu` after a window without loss.
    pub(crate) fn acked(&mut self, id: WindowId, bytes: u64, mtu: u64) {
        self.release(id, bytes);
        let window = &mut self.slots[id.0 as usize];
        window.clean += bytes;
        window.since_loss = window.since_loss.saturating_add(bytes);
        if window.clean >= window.limit {
            window.clean = 0;
            window.limit = (window.limit + mtu).min(window.max);
        }
    }

    /// A loss: halve. Not below two packets of `unit` bytes.
    pub(crate) fn lost(&mut self, id: WindowId, unit: u64) {
        let window = &mut self.slots[id.0 as usize];
        // Losses that fall into one window are one event.
        if window.since_loss >= window.limit / 2 {
            window.limit = (window.limit / 2).max(2 * unit);
            window.clean = 0;
        }
        window.since_loss = 0;
    }

    #[cfg(test)]
    pub(crate) fn inflight(&self, id: WindowId) -> u64 {
        self.slots[id.0 as usize].inflight
    }

    /// Bytes in flight, and queue pairs in line, of all windows.
    #[cfg(test)]
    pub(crate) fn total(&self) -> (u64, usize) {
        let all = self.slots.iter();
        (all.clone().map(|w| w.inflight).sum(), all.map(|w| w.waiting.len()).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    #[test]
    fn one_window_for_one_address() {
        let mut w = Windows::new(WindowConfig { initial: 10_000, max: 20_000, enabled: true });
        let a = w.open(addr(1), 0);
        assert_eq!(w.open(addr(1), 0), a);
        let b = w.open(addr(2), 0);
        assert_ne!(a, b);
        w.charge(a, 9_000);
        assert!(w.has_room(a, 1_000, 100) && !w.has_room(a, 1_001, 100));
        assert!(w.has_room(b, 10_000, 100), "the other address is not concerned");
        w.close(a, 7);
        assert_eq!(w.inflight(a), 9_000, "the other user is still there");
    }

    #[test]
    fn grows_while_clean_and_halves_on_loss() {
        let mut w = Windows::new(WindowConfig { initial: 10_000, max: 12_500, enabled: true });
        let a = w.open(addr(1), 0);
        for _ in 0..10 {
            w.charge(a, 10_000);
            w.acked(a, 10_000, 1_000);
        }
        assert_eq!(w.limit(a), 12_500, "never above the maximum");
        w.lost(a, 1_000);
        assert_eq!(w.limit(a), 6_250);
        w.lost(a, 1_000);
        assert_eq!(w.limit(a), 6_250, "the second loss belongs to the same window");
        for _ in 0..20 {
            w.charge(a, 4_000);
            w.acked(a, 4_000, 10);
            w.lost(a, 1_000);
        }
        assert_eq!(w.limit(a), 2_000, "two packets always fit");
        assert!(w.has_room(a, 2_000, 1_000));
    }

    #[test]
    fn the_first_loss_counts_however_early() {
        let mut w = Windows::new(WindowConfig { initial: 10_000, max: 20_000, enabled: true });
        let a = w.open(addr(1), 0);
        w.charge(a, 500);
        w.acked(a, 500, 100);
        w.lost(a, 100);
        assert_eq!(w.limit(a), 5_000);
    }

    #[test]
    fn waiters_are_woken_in_order_and_only_for_room() {
        let mut w = Windows::new(WindowConfig { initial: 4_000, max: 4_000, enabled: true });
        let a = w.open(addr(1), 0);
        w.charge(a, 4_000);
        w.wait(a, 3, false);
        w.wait(a, 1, false);
        w.wait(a, 4, true);
        assert_eq!(w.wake(a), None);
        w.acked(a, 1_000, 0);
        let woken = [(); 4].map(|()| w.wake(a));
        assert_eq!(woken, [Some(4), Some(3), Some(1), None]);
    }

    #[test]
    fn anything_fits_into_an_empty_window() {
        let mut w = Windows::new(WindowConfig { initial: 4_000, max: 4_000, enabled: true });
        let a = w.open(addr(1), 0);
        assert!(w.has_room(a, 1_000_000, 100));
        w.charge(a, 1);
        assert!(!w.has_room(a, 1_000_000, 100));
    }

    #[test]
    fn a_small_receive_buffer_is_respected() {
        let mut w = Windows::new(WindowConfig::default());
        let a = w.open(addr(1), 212_992);
        assert_eq!(w.limit(a), 53_248);
        let own = w.open_own(addr(2), 212_992);
        assert_eq!(w.limit(own), 53_248);
    }

    #[test]
    fn our_own_starts_wide_and_keeps_what_a_loss_has_taught() {
        let mut w = Windows::new(WindowConfig::default());
        let own = w.open_own(addr(1), 0);
        assert_eq!(w.limit(own), 2 << 20);
        w.charge(own, 1_000);
        w.lost(own, 1_000);
        assert_eq!(w.open_own(addr(1), 0), own);
        assert_eq!(w.limit(own), 1 << 20, "of a window that is in use, nothing is forgotten");
    }
}
