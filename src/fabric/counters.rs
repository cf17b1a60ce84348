//! What a host and its cable count.

use std::fmt;
use std::ops::AddAssign;

use super::trace::Fate;

macro_rules! counters {
    ($(#[$outer:meta])* $name:ident { $($(#[$doc:meta])* $field:ident,)+ }) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$doc])* pub $field: u64,)+
        }

        impl $name {
            /// Every counter by its name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field),)+].into_iter()
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                $(self.$field += other.$field;)+
            }
        }
    };
}

counters! {
    /// Counts of one host since it was added. What a cable does to packets is counted at the host whose
    /// cable it is: what is lost on the way down, at the receiver.
    HostCounters {
        /// Packets that the host sent.
        sent,
        /// Their bytes, BTH to ICRC.
        sent_bytes,
        /// Packets that reached the host's inbox.
        delivered,
        /// Their bytes.
        delivered_bytes,
        /// Lost by [`Link::loss`](super::Link::loss).
        lost,
        /// Dropped by the tap on their way to the host.
        tap_drops,
        /// Dropped by a rule on their way to the host.
        rule_drops,
        /// Dropped because a queue or buffer on the way to the host was full, or took no more from where they came.
        queue_drops,
        /// Dropped because they were larger than the MTU.
        mtu_drops,
        /// Sent by the host to an address that nobody has, or to a group that nobody is in.
        no_route,
        /// Dropped because the link was down, or went down around them.
        down_drops,
        /// Dropped by a watchdog on their way to the host.
        watchdog_drops,
        /// Changed by [`Link::corrupt`](super::Link::corrupt) or a rule.
        corrupted,
        /// Second copies made.
        duplicated,
        /// Copies, beyond the first, that the switch made of the host's packets to multicast groups.
        replicated,
        /// Held back, so that others could overtake.
        reordered,
        /// Marked "congestion experienced".
        ecn_marked,
        /// Delivered, but larger than the buffer that they were to be received into.
        truncated,
    }
}

impl HostCounters {
    /// Packets that did not arrive, whatever the reason.
    pub const fn dropped(&self) -> u64 {
        self.lost
            + self.tap_drops
            + self.rule_drops
            + self.queue_drops
            + self.mtu_drops
            + self.no_route
            + self.down_drops
            + self.watchdog_drops
    }

    /// Counts a packet that was dropped.
    pub(super) fn count_drop(&mut self, fate: Fate) {
        let counter = match fate {
            Fate::Passed => return,
            Fate::Lost => &mut self.lost,
            Fate::Tapped => &mut self.tap_drops,
            Fate::Ruled => &mut self.rule_drops,
            Fate::QueueFull | Fate::BufferFull | Fate::OverShare | Fate::NotMarkable => {
                &mut self.queue_drops
            }
            Fate::Watchdog => &mut self.watchdog_drops,
            Fate::TooBig => &mut self.mtu_drops,
            Fate::NoRoute => &mut self.no_route,
            Fate::LinkDown => &mut self.down_drops,
        };
        *counter += 1;
    }
}

impl fmt::Debug for HostCounters {
    /// Those that have counted something.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().filter(|&(_, n)| n > 0)).finish()
    }
}
